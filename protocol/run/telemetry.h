/* telemetry.h - the one table of the figures that an agent samples on its node, for the host and each GPU
 *
 * Each row has name, unit, meaning and wandb's name; the table drives the agent's sampler, the answer to status, the journal's samples,
 * the console, OpenMetrics, wandb and the docs. A sample is an array of doubles by row of the table; NAN: not known, never 0.
 * In the journal and on the wire a figure is called host/NAME or gpu/INDEX/NAME. Read-only: any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "protocol/base/buf.h"

#define NODE_GPUS 16    // most GPUs of one node

enum host_field {
    HOST_CPU,
    HOST_LOAD,
    HOST_MEM_USED,
    HOST_MEM_TOTAL,
    HOST_MEM_PERCENT,
    HOST_RUN_CPU,
    HOST_RUN_MEM,
    HOST_RUN_THREADS,
    HOST_DISK_PERCENT,
    HOST_DISK_USED,
    HOST_DISK_READ,
    HOST_DISK_WRITTEN,
    HOST_NET_SENT,
    HOST_NET_RECEIVED,
    HOST_FIELD_N,
};
enum gpu_field {
    GPU_UTIL,
    GPU_MEM_UTIL,
    GPU_MEM_PERCENT,
    GPU_MEM_USED,
    GPU_MEM_TOTAL,
    GPU_RUN_MEM,
    GPU_RUN_UTIL,
    GPU_TEMP,
    GPU_MEM_TEMP,
    GPU_POWER,
    GPU_POWER_LIMIT,
    GPU_POWER_PERCENT,
    GPU_SM_CLOCK,
    GPU_SM_CLOCK_MAX,
    GPU_MEM_CLOCK,
    GPU_GRAPHICS_CLOCK,
    GPU_THROTTLE,
    GPU_SLOWED,
    GPU_ECC_CORRECTED,
    GPU_ECC_UNCORRECTED,
    GPU_ROWS_REMAPPED,
    GPU_FAN,
    GPU_ENCODER,
    GPU_PCIE_GEN,
    GPU_PCIE_GEN_MAX,
    GPU_PCIE_WIDTH,
    GPU_PCIE_WIDTH_MAX,
    GPU_PCIE_TX,
    GPU_PCIE_RX,
    GPU_NVLINKS,
    GPU_NVLINK_TX,
    GPU_NVLINK_RX,
    GPU_NVLINK_ERRORS,
    GPU_LOST,
    GPU_FIELD_N,
};
struct telemetry_field {
    const char *name;      // ends with its unit, where it has one
    const char *unit;      // OpenMetrics' word for it, "": none
    const char *wandb;     // after "system." or "system.gpu.INDEX."; NULL: not sent there
    double wandb_scale;    // wandb's unit / ours
    const char *help;
};
extern const struct telemetry_field host_fields[HOST_FIELD_N], gpu_fields[GPU_FIELD_N];

/* A figure's row by its full name ("host/load", "gpu/3/temp_celsius"); gpu is -1 for the host's. NULL: not in the table. */
const struct telemetry_field *telemetry_find(const char *full_name, int *gpu);
/* The bits of GPU_THROTTLE in words, separated by commas; "" when nothing reduces the clocks. */
const char *throttle_text(double bits, char *out, size_t size);
/* Bits of GPU_THROTTLE that slow work down (not: idle, or clocks set by a program). */
bool throttle_slows(unsigned long long bits);
/* Does a text of throttle_text name a reason that a machine that is well does not have: heat, or its power supply? The power limit is
 * none, since every busy GPU meets it. A word that is not known is. */
bool throttle_is_fault(const char *text);
/* The table in Markdown. */
void telemetry_print_docs(struct buf *out);
