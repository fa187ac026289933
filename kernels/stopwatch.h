/* stopwatch.h - how long a device, or a lane of it, takes for some of what it is asked for, by its own clock
 *
 * Two marks around each part that is measured. Nothing waits while it is measured, unless more than STOPWATCH_N parts are not
 * done yet. One thread, that which drives the device. */
#pragma once
#include <stdbool.h>
#include "protocol/base/error.h"

#define STOPWATCH_N 32
#define STOPWATCH_DEVICE (-1)    // in place of a lane: the device's own stream of work
struct device;
struct stopwatch;
struct stopwatch *stopwatch_new(struct device *dev, int lane, struct error *err);    // dev is borrowed until stopwatch_free
void stopwatch_free(struct stopwatch *w);                                            // NULL is fine
/* What is asked for between these two is measured. */
MUST_USE bool stopwatch_begin(struct stopwatch *w, struct error *err);
MUST_USE bool stopwatch_end(struct stopwatch *w, struct error *err);
/* *s (seconds) = all that was measured since the last such call; waits until it is done. */
MUST_USE bool stopwatch_take(struct stopwatch *w, double *s, struct error *err);
