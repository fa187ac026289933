/* pane.h - one screen of the console: a table of functions, and data that only they use
 *
 * A pane's own struct begins with a struct pane and is defined in the pane's file; the console makes it, passes it to the pane's
 * functions, and knows only what is declared here. The functions may read the console (app.h) and ask it for dialogs, prompts and
 * messages. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "console/tui/cells.h"
#include "console/tui/keys.h"

#define INPUT_MAX 256    // bytes of one typed line
struct app;
struct pane;
struct pane_type {
    const char *name;
    size_t size;                     // bytes of the pane's own struct
    void (*init)(struct pane *p);    // sets fields that do not start as 0; NULL: all do
    void (*draw)(const struct pane *p, const struct app *a, struct cells *c, struct rect r, int64_t now_ns);
    /* Carry out a request; false: this pane does not handle it, so the common meaning applies. NULL: it handles none. */
    bool (*act)(struct pane *p, struct app *a, enum request req, int64_t now_ns);
    /* Close what is shown in full; false: nothing is. NULL: the pane never opens anything. */
    bool (*close)(struct pane *p);
    /* Rows that can be selected, and how many of them are visible at once in a body; NULL: the pane is not a list, or handles
     * movement itself. */
    int64_t (*rows)(const struct pane *p, const struct app *a);
    int (*page)(const struct app *a, struct rect body);
    /* The first row to draw, starting from the row drawn first so far; NULL: as list_top has it. */
    int64_t (*top)(const struct pane *p, const struct app *a);
    int (*head)(struct rect body);    // rows of the body above the first of them; NULL: a border and a heading
    /* A click on cell x, y, which is in the body; false: it selects a row of the list, if there is one. NULL: always. */
    bool (*click)(struct pane *p, struct app *a, struct rect body, int x, int y);
};
struct pane {
    const struct pane_type *type;
    char filter[INPUT_MAX];    // text that its rows must contain (filter_matches)
    int64_t sel, top;          // with rows: the selected and the first drawn row, among those that pass the filter
};
#define PANE_TYPE(id, type, key, keys, help) extern const struct pane_type pane_##type;
PANES(PANE_TYPE)

/* Make a pane of this type, for pane_free. NULL: no memory. */
struct pane *pane_new(const struct pane_type *type);
void pane_free(struct pane *p);    // NULL is fine
bool pane_act(struct pane *p, struct app *a, enum request req, int64_t now_ns);
bool pane_close(struct pane *p);
/* Keep the selection on an existing, visible row. */
void pane_fix(struct pane *p, const struct app *a);

/* for panes */
bool filter_matches(const char *filter,
                    const char *text);    // "": all; "!x": without x; "^x": begins with x; else containing x; ignores case
/* The first of n rows to draw, so that row sel is visible on a page; starts from the row drawn first so far. */
int64_t list_top(int64_t top, int64_t sel, int64_t n, int page);
