/* picker.h - the list of runs from which an operator opens one: state and two pure ends, and the loop around them
 *
 * Owned by the loop thread. */
#pragma once
#include "console/tui/cells.h"
#include "console/tui/console.h"
#include "console/tui/keys.h"
#include "protocol/run/run_list.h"

struct picker {
    struct run_list list;
    int sel, top;       // of the rows that the filter leaves: the selected one, and the first one drawn
    bool typing;        // the filter
    char filter[96];    // what a row must hold
};
enum picked {
    PICK_NOTHING,    // yet
    PICK_OPEN,       // the selected run
    PICK_QUIT,
};
/* page: rows that are seen at once. */
enum picked picker_key(struct picker *p, uint32_t key, int page);
/* wall_s: since 1970. */
void picker_draw(const struct picker *p, struct cells *c, double wall_s);
/* The selected row; NULL: none is left. */
const struct run_row *picker_selected(const struct picker *p);
int picker_page(int screen_h);

/* Show the runs under runs_dir, looking again while it waits, until the operator opens one: its folder is in out, or "" when he quits.
 * ERR_NOT_FOUND: there is no such folder. ERR_CLOSED: the terminal has gone. */
MUST_USE bool picker_run(const char *runs_dir, const struct console_options *options, char *out, size_t size, struct error *err);
