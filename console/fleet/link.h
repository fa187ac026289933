/* link.h - a feed from a real run, through its agent
 *
 * Asks for the status every second and listens to telemetry; what telemetry loses (it may) is requested: steps from the first
 * missing one, events after the last known one. Tails the run's log files, which are on this machine. Survives the agent's death
 * and return. A command whose answer is lost is sent again under its own id, so it is carried out once. */
#pragma once
#include "console/fleet/feed.h"

/* Connect to the run in run_dir. ERR_CLOSED: it is not live. Returns the feed; its free closes it. read_only: over the sockets
 * that only show the run, the only ones that others than its owner may use. */
struct feed *link_new(const char *run_dir, bool read_only, struct run_view *m, int64_t now_ns, struct error *err);
