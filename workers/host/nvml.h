/* nvml.h - the node's NVIDIA GPUs as reported by their management library
 *
 * The library is opened at run time (libnvidia-ml.so.1, or what RC_NVML_LIBRARY names) and called through our own prototypes, so
 * that one binary runs with and without a driver. A figure that device, driver or permissions do not provide is unknown (NAN),
 * never 0. Calls may take long when the driver is in trouble, so they run on a thread that no other waits for (sampler.h). */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/run/telemetry.h"

#define GPU_PROCESSES 32    // most processes of one device

enum gpu_state {
    GPU_FINE,
    GPU_GONE,    // fallen off the bus: nothing is known about it until the machine or the device is reset
    GPU_NEEDS_RESET,
};
struct gpu_process {
    int64_t pid;
    double mem_bytes, util_percent;    // NAN: unknown
};
struct gpu_sample {
    char name[96], uuid[96], bus[32];    // "": unknown
    enum gpu_state state;
    double value[GPU_FIELD_N];    // GPU_RUN_MEM and GPU_RUN_UTIL are left to the caller, which knows the run's processes
    struct gpu_process process[GPU_PROCESSES];
    int n_process;
};
struct nvml;
/* Open the library and find the devices. NULL: there is none (ERR_NOT_FOUND) or it does not work (ERR_UNSUPPORTED); err says why. */
struct nvml *nvml_new(struct error *err);
void nvml_free(struct nvml *n);
int nvml_n_gpu(const struct nvml *n);    // at most NODE_GPUS
const char *nvml_driver(const struct nvml *n);
/* Sample device i. Rates (GPU_NVLINK_TX, ...) are since the last sample, so the first has none. */
void nvml_sample(struct nvml *n, int i, struct gpu_sample *out);
