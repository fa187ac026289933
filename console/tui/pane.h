/* pane.h - one screen of the console: a table of functions, and data that only they know
 *
 * A pane's own struct begins with a struct pane and stands in the pane's file; the console makes it, hands it to the pane's
 * functions, and knows of it what stands here. The functions may read the console (app.h) and ask it for dialogs,
 * prompts and messages. */
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
    void (*init)(struct pane *p);    // sets what does not begin as 0; NULL: all does
    void (*draw)(const struct pane *p, const struct app *a, struct cells *c, struct rect r, int64_t now_ns);
    /* Carry out a request; false: not this pane's, the common meaning holds. NULL: none is. */
    bool (*act)(struct pane *p, struct app *a, enum request req, int64_t now_ns);
    /* Close what is shown in full; false: nothing is. NULL: the pane opens nothing. */
    bool (*close)(struct pane *p);
    /* Rows that can be selected, and how many of them are seen at once in a body; NULL: the pane is no list, or moves
     * through it by itself. */
    int64_t (*rows)(const struct pane *p, const struct app *a);
    int (*page)(const struct app *a, struct rect body);
};
struct pane {
    const struct pane_type *type;
    char filter[INPUT_MAX];    // what its rows must hold (filter_matches)
    int64_t sel, top;          // with rows: the selected one and the first one drawn, of what the filter leaves
};
extern const struct pane_type pane_overview, pane_workers, pane_rollouts, pane_knobs, pane_log, pane_events;

/* A pane of this type, for pane_free. NULL: no memory. */
struct pane *pane_new(const struct pane_type *type);
void pane_free(struct pane *p);    // NULL is fine
bool pane_act(struct pane *p, struct app *a, enum request req, int64_t now_ns);
bool pane_close(struct pane *p);
/* Keep the selection on a row that is there, and seen. */
void pane_fix(struct pane *p, const struct app *a);

/* for panes */
bool filter_matches(const char *filter, const char *text);    // "" all, "!x" not holding x, else holding x; no case
/* The first of n rows to draw, so that row sel is seen on a page, from the one drawn first until now. */
int64_t list_top(int64_t top, int64_t sel, int64_t n, int page);
