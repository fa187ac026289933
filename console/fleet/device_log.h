/* device_log.h - how hosts and GPUs were used since the run began, from the samples that its agents keep in the journal
 *
 * A curve is a series by ticks of telemetry_s seconds since the first sample. Read in slices (device_log_pump), so that keys are
 * answered meanwhile. Owned by the console's loop thread; the panes read it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "console/fleet/run_view.h"
#include "protocol/run/telemetry.h"

#define DEVICE_LOG_MAX 128    // hosts and GPUs with curves; the others are counted
#define DEVICE_CURVES 8

struct device_curves {
    char node[64];
    int gpu;                               // -1: the host itself
    struct series curve[DEVICE_CURVES];    // by device_curve
};
struct device_log;
/* That of the run in run_dir. NULL: no memory. */
struct device_log *device_log_new(const char *run_dir);
void device_log_free(struct device_log *d);    // NULL is fine
/* Go on for about budget_ns; looks for news once per second. Raises m's version when there is something new. True: there is more to do
 * at once. */
bool device_log_pump(struct device_log *d, struct run_view *m, int64_t budget_ns, int64_t now_ns);
/* The i-th host or GPU, each host before its GPUs; NULL: there are fewer. */
const struct device_curves *device_log_at(const struct device_log *d, int i);
int device_log_left_out(const struct device_log *d);     // that have no room
int64_t device_log_ticks(const struct device_log *d);    // of the history
double device_log_tick_s(const struct device_log *d);
const char *device_log_why(const struct device_log *d);    // why there is nothing; "": nothing is wrong
/* What curve k of a host (gpu -1) or a GPU shows; NULL: it has fewer. */
const struct telemetry_field *device_curve(int gpu, int k);
