/* link.h - a feed from a real run, through its agent
 *
 * Asks for the status every second and listens to telemetry; whatever telemetry loses (it may) is asked for again: steps from
 * the first one missing, events after the last one known. Tails the run's log files, which are on this machine. Survives the
 * agent's death and return. A command whose answer is lost is asked about again under its own id, so it is carried out once. */
#pragma once
#include "console/fleet/feed.h"

struct mval;
/* Connect to the run in run_dir. ERR_CLOSED: it is not live. Returns the feed; its free closes it. */
/* read_only: by the sockets that only show the run; who is not its owner has no others. */
struct feed *link_new(const char *run_dir, bool read_only, struct model *m, int64_t now_ns, struct error *err);
/* Add a rollout group, as messages and the run's rollout file hold it, to m; one that is among the newest already is left out. */
void rollout_take(struct model *m, const struct mval *v);
