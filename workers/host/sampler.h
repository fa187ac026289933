/* sampler.h - the node's figures, sampled every second by a separate thread
 *
 * A thread, because a driver in trouble may block a call for minutes and the agent's loop must keep running. It shares only the
 * newest sample, under a lock. sampler_take is for the agent's loop. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/run/telemetry.h"
#include "workers/host/nvml.h"

struct node_sample {
    double wall_s;                // when it was complete
    double host[HOST_FIELD_N];    // HOST_RUN_* are left to the caller, which knows the run's processes
    struct gpu_sample gpu[NODE_GPUS];
    int n_gpu;
    char driver[80];     // NVIDIA's version, "": none
    char no_gpu[256];    // why there are no GPUs, "": there are some
};
struct sampler;
/* Start the thread; run_dir: its file system is reported. */
struct sampler *sampler_new(const char *run_dir, struct error *err);
/* End the thread. When the driver blocks it, it is abandoned after a second, which is only acceptable when the process ends too. */
void sampler_free(struct sampler *s);
/* Write the newest sample into out; false: none since the last call. */
bool sampler_take(struct sampler *s, struct node_sample *out);
/* Seconds since the thread last finished a sample: a large number means that the driver does not answer. */
double sampler_silent_s(struct sampler *s);
/* The host's current figures; before holds the basis for rates (zeroed before the first call). */
struct host_before {
    bool known;
    double busy, total;                      // processor ticks
    double read, written, sent, received;    // at the first sample; NAN: not known
};
void host_sample(double value[HOST_FIELD_N], struct host_before *before, const char *run_dir);
