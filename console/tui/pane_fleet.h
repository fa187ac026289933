/* pane_fleet.h - many nodes at a glance: a cell per GPU, grouped by node, the worst node first; drawn in the workers' pane */
#pragma once
#include "console/fleet/nodes.h"
#include "console/tui/app.h"

enum fleet_sort {
    FLEET_WORST,
    FLEET_IDLE,
    FLEET_HOT,
    FLEET_FULL,
    FLEET_NAME,
    N_FLEET_SORT,
};
enum fleet_value {
    FLEET_USE,
    FLEET_MEMORY,
    FLEET_HEAT,
    FLEET_POWER,
    N_FLEET_VALUE,
};
struct fleet_view {
    enum fleet_sort sort;
    enum fleet_value value;
};
/* Nodes that pass the filter: "lost", "slowed", "errors", "stuck" and "slow" find those with such trouble, other words those of that
 * name. */
int64_t fleet_rows(const struct run_view *m, const char *filter);
int fleet_columns(const struct run_view *m, struct rect body);    // nodes side by side
/* The name of the node that is drawn in place row; NULL: none is. */
const char *fleet_node(const struct fleet_view *v, const struct run_view *m, const char *filter, int64_t row);
/* The first node to draw, so that node sel is visible; starts from the one drawn first so far. */
int64_t fleet_top(const struct run_view *m, struct rect body, const char *filter, int64_t top, int64_t sel);
/* The place of the node that is drawn at cell x, y when top is drawn first; -1: none is. */
int64_t fleet_at(const struct run_view *m, struct rect body, const char *filter, int64_t top, int x, int y);
/* Columns of a node: its sign, name and devices, and a gap; and its drawing in r. */
int fleet_node_width(const struct run_view *m, int *name_w);
void fleet_node_draw(const struct fleet_view *v, const struct run_view *m, struct cells *c, struct rect r, int name_w,
                     const struct node_state *s);
void fleet_draw(const struct fleet_view *v, const struct app *a, struct cells *c, struct rect r, const char *filter, int64_t top,
                int64_t sel);
