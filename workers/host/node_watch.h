/* node_watch.h - what an agent reports about its node: the answer to status, samples for the journal, and alarms about devices
 *
 * One per agent, used by its loop thread. The figures are those of the table in protocol/run/telemetry.h. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/wire/message.h"

struct node_watch;
struct node_process {    // one of the run's on this node
    int64_t pid;
    double cpu_cores, mem_bytes, threads;
};
/* run_dir: its file system is reported. */
struct node_watch *node_watch_new(const char *run_dir, struct error *err);
void node_watch_free(struct node_watch *n);
/* Take a new sample when there is one and sum what the run's processes use. What an operator must know at once (a lost device, new
 * uncorrectable memory errors, a driver that does not answer) is passed to alarm, once each time it happens. */
void node_watch_tick(struct node_watch *n, const struct node_process *process, int n_process, void (*alarm)(void *ctx, const char *text),
                     void *ctx);
/* Add the node's figures (node, host, devices and no_gpu of the answer to status) to an open map. */
void node_watch_status_write(const struct node_watch *n, struct msg_out *m);
/* Is this the name of one of these fields? */
bool node_figures_key(const char *key);
/* Copy these fields from a map into an open one; name, unless NULL, replaces node. */
void node_figures_copy(struct msg_out *m, const struct mval *from, const char *name);
/* Add gpu_mem_bytes and gpu_percent of a process to an open map of gauges, if they are known. */
void node_watch_process_write(const struct node_watch *n, int64_t pid, struct msg_out *m);
/* The message that writes the newest sample into the journal; false: no new sample. */
bool node_watch_sample_write(struct node_watch *n, struct msg_out *m);
