/* hosts_view.h - the hosts and GPUs below the list of processes; pure
 *
 * Shown are the hosts of the processes that pass the list's filter. Where lines for all of them do not fit, each host is a row of cells, a
 * GPU each, the worst host first, and lines that are left say the worst ones in words. */
#pragma once
#include "console/fleet/nodes.h"
#include "console/tui/cells.h"

/* passes: the filter; NULL: every host is shown. Rows that words for all of them take: */
int hosts_rows(const struct run_view *m, process_passes *passes, const void *ctx);
void hosts_draw(const struct run_view *m, struct cells *c, struct rect r, process_passes *passes, const void *ctx);
