#include "workers/host/node_watch.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "workers/host/sampler.h"

#define DRIVER_LIMIT_S 30    // time without a sample after which the driver counts as not answering

struct node_watch {
    struct sampler *sampler;
    char host[256];
    bool known, unsent, driver_late;
    struct node_sample now;
    enum gpu_state told[NODE_GPUS];    // the last state passed to alarm
    double ecc_told[NODE_GPUS];        // the last count of uncorrected errors; NAN: unknown
};

struct node_watch *node_watch_new(const char *run_dir, struct error *err)
{
    struct node_watch *n = calloc(1, sizeof *n);
    if (!n) {
        error_set(err, ERR_NO_MEMORY, "no memory for telemetry");
        return NULL;
    }
    for (int i = 0; i < NODE_GPUS; i++)
        n->ecc_told[i] = NAN;
    if (gethostname(n->host, sizeof n->host - 1) != 0)
        snprintf(n->host, sizeof n->host, "node");
    if (!(n->sampler = sampler_new(run_dir, err))) {
        free(n);
        return NULL;
    }
    return n;
}

void node_watch_free(struct node_watch *n)
{
    if (!n)
        return;
    sampler_free(n->sampler);
    free(n);
}

/* ---- alarms ---- */

static void device_watch(struct node_watch *n, int i, void (*alarm)(void *ctx, const char *text), void *ctx)
{
    const struct gpu_sample *g = &n->now.gpu[i];
    char text[256], what[160];
    double ecc = g->value[GPU_ECC_UNCORRECTED];
    snprintf(what, sizeof what, "GPU %d of %.60s (%.40s%s%.31s)", i, n->host, g->name[0] ? g->name : "no name", g->bus[0] ? ", bus " : "",
             g->bus);
    if (g->state != n->told[i]) {
        static const char *const words[] = {
            [GPU_FINE] = "answers again",
            [GPU_GONE] = "has fallen off the bus; look for its Xid in dmesg, then reset it or restart the machine",
            [GPU_NEEDS_RESET] = "must be reset before it works again (nvidia-smi -r, or restart the machine)",
        };
        snprintf(text, sizeof text, "%s %s", what, words[g->state]);
        alarm(ctx, text);
        n->told[i] = g->state;
    }
    if (ecc > n->ecc_told[i]) {    // not on the first sample: older errors are not news
        snprintf(text, sizeof text, "%s has %.0f new uncorrectable memory errors; results since the last checkpoint are in doubt", what,
                 ecc - n->ecc_told[i]);
        alarm(ctx, text);
    }
    if (!isnan(ecc))
        n->ecc_told[i] = ecc;
}

/* Memory that the run's own processes hold on a device; unknown where the driver does not list them, as between containers. */
static void device_share(struct gpu_sample *g, const struct node_process *process, int n_process)
{
    for (int i = 0; i < g->n_process; i++)
        for (int k = 0; k < n_process; k++)
            if (g->process[i].pid == process[k].pid) {
                double *mem = &g->value[GPU_RUN_MEM], *util = &g->value[GPU_RUN_UTIL];
                if (!isnan(g->process[i].mem_bytes))
                    *mem = (isnan(*mem) ? 0 : *mem) + g->process[i].mem_bytes;
                if (!isnan(g->process[i].util_percent))
                    *util = (isnan(*util) ? 0 : *util) + g->process[i].util_percent;
            }
}

void node_watch_tick(struct node_watch *n, const struct node_process *process, int n_process, void (*alarm)(void *ctx, const char *text),
                     void *ctx)
{
    bool late = sampler_silent_s(n->sampler) > DRIVER_LIMIT_S;
    if (late != n->driver_late) {
        char text[256];
        snprintf(text, sizeof text,
                 late ? "the GPU driver of %.60s has not answered for %d s; GPU figures are not updated"
                      : "the GPU driver of %.60s answers again",
                 n->host, DRIVER_LIMIT_S);
        alarm(ctx, text);
        n->driver_late = late;
    }
    if (!sampler_take(n->sampler, &n->now))
        return;
    double *host = n->now.host;
    host[HOST_RUN_CPU] = host[HOST_RUN_MEM] = host[HOST_RUN_THREADS] = 0;
    for (int k = 0; k < n_process; k++) {
        host[HOST_RUN_CPU] += process[k].cpu_cores;
        host[HOST_RUN_MEM] += process[k].mem_bytes;
        host[HOST_RUN_THREADS] += process[k].threads;
    }
    for (int i = 0; i < n->now.n_gpu; i++) {
        device_share(&n->now.gpu[i], process, n_process);
        device_watch(n, i, alarm, ctx);
    }
    n->known = n->unsent = true;
}

/* ---- reporting ---- */

static void figures_write(struct msg_out *m, const char *key, const struct telemetry_field *fields, const double *value, int n)
{
    msg_map(m, key);
    for (int i = 0; i < n; i++)
        if (!isnan(value[i]))
            msg_f64(m, fields[i].name, value[i]);
    msg_end(m);
}

static void device_write(const struct gpu_sample *g, int i, struct msg_out *m)
{
    static const char *const states[] = { [GPU_FINE] = "ok", [GPU_GONE] = "lost", [GPU_NEEDS_RESET] = "needs reset" };
    char text[160];
    msg_map(m, NULL);
    snprintf(text, sizeof text, "gpu %d", i);
    msg_str(m, "name", text);
    msg_str(m, "what", g->name);
    msg_str(m, "uuid", g->uuid);
    msg_str(m, "bus", g->bus);
    msg_str(m, "state", states[g->state]);
    msg_str(m, "throttle", throttle_text(g->value[GPU_THROTTLE], text, sizeof text));
    figures_write(m, "figures", gpu_fields, g->value, GPU_FIELD_N);
    msg_list(m, "processes");
    for (int k = 0; k < g->n_process; k++) {
        msg_map(m, NULL);
        msg_i64(m, "pid", g->process[k].pid);
        if (!isnan(g->process[k].mem_bytes))
            msg_f64(m, "mem_bytes", g->process[k].mem_bytes);
        if (!isnan(g->process[k].util_percent))
            msg_f64(m, "util_percent", g->process[k].util_percent);
        msg_end(m);
    }
    msg_end(m);
    msg_end(m);
}

void node_watch_status_write(const struct node_watch *n, struct msg_out *m)
{
    if (!n->known)
        return;
    msg_str(m, "node", n->host);
    figures_write(m, "host", host_fields, n->now.host, HOST_FIELD_N);
    msg_list(m, "devices");
    for (int i = 0; i < n->now.n_gpu; i++)
        device_write(&n->now.gpu[i], i, m);
    msg_end(m);
    if (n->now.no_gpu[0])
        msg_str(m, "no_gpu", n->now.no_gpu);
}

static const char *const figure_keys[] = { "node", "host", "devices", "no_gpu" };

bool node_figures_key(const char *key)
{
    for (size_t i = 0; i < ARRAY_SIZE(figure_keys); i++)
        if (strcmp(figure_keys[i], key) == 0)
            return true;
    return false;
}

void node_figures_copy(struct msg_out *m, const struct mval *from, const char *name)
{
    if (name)
        msg_str(m, "node", name);
    for (size_t i = name ? 1 : 0; i < ARRAY_SIZE(figure_keys); i++)
        if (mval_get(from, figure_keys[i]))
            msg_copy(m, figure_keys[i], mval_get(from, figure_keys[i]));
}

void node_watch_process_write(const struct node_watch *n, int64_t pid, struct msg_out *m)
{
    double mem = NAN, util = NAN;
    for (int i = 0; i < n->now.n_gpu; i++)
        for (int k = 0; k < n->now.gpu[i].n_process; k++) {
            const struct gpu_process *p = &n->now.gpu[i].process[k];
            if (p->pid != pid)
                continue;
            mem = isnan(mem) ? p->mem_bytes : mem + p->mem_bytes;
            util = isnan(util) ? p->util_percent : util + p->util_percent;
        }
    if (!isnan(mem))
        msg_f64(m, "gpu_mem_bytes", mem);
    if (!isnan(util))
        msg_f64(m, "gpu_percent", util);
}

bool node_watch_sample_write(struct node_watch *n, struct msg_out *m)
{
    char name[96];
    if (!n->unsent)
        return false;
    n->unsent = false;
    msg_begin(m, MSG_PUBLISH);
    msg_str(m, "topic", "sample");
    msg_map(m, "body");
    msg_str(m, "node", n->host);
    msg_f64(m, "time", n->now.wall_s);
    msg_map(m, "figures");
    for (int i = 0; i < HOST_FIELD_N; i++)
        if (!isnan(n->now.host[i])) {
            snprintf(name, sizeof name, "host/%s", host_fields[i].name);
            msg_f64(m, name, n->now.host[i]);
        }
    for (int g = 0; g < n->now.n_gpu; g++)
        for (int i = 0; i < GPU_FIELD_N; i++)
            if (!isnan(n->now.gpu[g].value[i])) {
                snprintf(name, sizeof name, "gpu/%d/%s", g, gpu_fields[i].name);
                msg_f64(m, name, n->now.gpu[g].value[i]);
            }
    msg_end(m);
    msg_end(m);
    return true;
}
