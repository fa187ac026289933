/* picker.h - the list of runs from which an operator opens one: its state, its two pure functions (keys in, cells out), and
 * their loop
 *
 * Owned by the loop thread. */
#pragma once
#include "console/tui/cells.h"
#include "console/tui/console.h"
#include "console/tui/keys.h"
#include "protocol/run/run_list.h"

struct picker {
    struct run_list list;
    int sel, top;       // indices among the rows that pass the filter: the selected and the first drawn
    bool typing;        // into the filter
    char filter[96];    // text that a row must contain
};
enum picked {
    PICK_NOTHING,    // yet
    PICK_OPEN,       // the selected run
    PICK_QUIT,
};
/* page: rows visible at once. */
enum picked picker_key(struct picker *p, uint32_t key, int page);
/* wall_s: since 1970. */
void picker_draw(const struct picker *p, struct cells *c, double wall_s);
/* The selected row; NULL: no row passes the filter. */
const struct run_row *picker_selected(const struct picker *p);
int picker_page(int screen_h);

/* Show the runs under runs_dir, updating the list meanwhile, until the operator opens one: out gets its folder, or "" after
 * quitting. ERR_NOT_FOUND: there is no such folder. ERR_CLOSED: the terminal is gone. */
MUST_USE bool picker_run(const char *runs_dir, const struct console_options *options, char *out, size_t size, struct error *err);
