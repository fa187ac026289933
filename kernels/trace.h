/* trace.h - where a device's time goes: every operation's start and end, as a timeline for Chrome's trace viewer or Perfetto
 *
 * Tracing replaces the device's table by one that measures. On cuda each operation is then waited for, so times are exact but
 * overlap is lost. The thread that drives the device calls these functions. */
#pragma once
#include "kernels/ops.h"
/* Start tracing dev; at most max_events are kept (later ones only counted in the totals). False: no memory. */
MUST_USE bool trace_start(struct device *dev, int64_t max_events, struct error *err);
/* Stop, and write the trace to path, a JSON object with traceEvents; or nothing when path is NULL. */
MUST_USE bool trace_stop(struct device *dev, const char *path, struct error *err);
/* Print one line per operation to stderr, most time first: calls, ms, share. While tracing. */
void trace_print(const struct device *dev);
