#include "console/fleet/device_log.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/record/journal.h"

#define POLL_NS ((int64_t)1000000000)
#define SAMPLES_AT_ONCE 500
#define GAP_TICKS 3    // samples that are nearer than this are joined: their times jitter

static const enum host_field host_curves[] = { HOST_CPU, HOST_MEM_PERCENT, HOST_RUN_CPU, HOST_RUN_MEM, HOST_LOAD, HOST_DISK_PERCENT };
static const enum gpu_field gpu_curves[] = { GPU_UTIL,     GPU_MEM_PERCENT, GPU_POWER,     GPU_TEMP,
                                             GPU_SM_CLOCK, GPU_MEM_UTIL,    GPU_NVLINK_TX, GPU_PCIE_RX };

struct device_log {
    char run_dir[4096], why[256];
    struct journal *journal;    // NULL: not open
    int64_t polled_ns, seq;     // of the last sample taken
    double first_s, tick_s;     // when the first sample was made, since 1970
    int64_t n_tick;
    struct device_curves *device;    // (DEVICE_LOG_MAX) n are used
    int n;
    bool full;       // a host or GPU came that has no room
    int left_out;    // how many, by what the run says of itself
    bool more;
};

const struct telemetry_field *device_curve(int gpu, int k)
{
    if (k < 0 || k >= (int)(gpu < 0 ? ARRAY_SIZE(host_curves) : ARRAY_SIZE(gpu_curves)))
        return NULL;
    return gpu < 0 ? &host_fields[host_curves[k]] : &gpu_fields[gpu_curves[k]];
}

struct device_log *device_log_new(const char *run_dir)
{
    struct device_log *d = calloc(1, sizeof *d);
    if (d && !(d->device = calloc(DEVICE_LOG_MAX, sizeof *d->device))) {
        free(d);
        return NULL;
    }
    if (d)
        snprintf(d->run_dir, sizeof d->run_dir, "%s", run_dir);
    return d;
}

void device_log_free(struct device_log *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->n; i++)
        for (int k = 0; k < DEVICE_CURVES; k++)
            series_release(&d->device[i].curve[k]);
    journal_close(d->journal);
    free(d->device);
    free(d);
}

/* The curves of a host or GPU, made if there is room (NULL: none). They stay sorted: a node's host, then its GPUs; nodes by name. */
static struct device_curves *device_of(struct device_log *d, const char *node, int gpu)
{
    int at = 0;
    for (; at < d->n; at++) {
        int order = strcmp(d->device[at].node, node);
        if (order == 0 && d->device[at].gpu == gpu)
            return &d->device[at];
        if (order > 0 || (order == 0 && d->device[at].gpu > gpu))
            break;
    }
    if (d->n == DEVICE_LOG_MAX)
        return NULL;
    memmove(&d->device[at + 1], &d->device[at], (size_t)(d->n++ - at) * sizeof d->device[0]);
    struct device_curves *c = &d->device[at];
    *c = (struct device_curves){ .gpu = gpu };
    snprintf(c->node, sizeof c->node, "%s", node);
    for (int k = 0; k < DEVICE_CURVES; k++)
        series_init(&c->curve[k]);
    return c;
}

static void figure_take(struct device_log *d, const char *node, const struct journal_metric *f, int64_t tick)
{
    int gpu;
    const struct telemetry_field *field = telemetry_find(f->name, &gpu);
    int k = 0;
    while (field && device_curve(gpu, k) && device_curve(gpu, k) != field)
        k++;
    if (!field || !device_curve(gpu, k))
        return;
    struct device_curves *c = device_of(d, node, gpu);
    d->full |= !c;
    if (!c)
        return;
    struct series *s = &c->curve[k];
    for (int64_t t = s->n; t > 0 && t < tick && tick - s->n < GAP_TICKS - 1; t++)
        series_set(s, t, f->value);
    series_set(s, tick, f->value);
}

struct samples_slice {
    struct device_log *d;
    int64_t n;
};

static bool sample_take(void *arg, const struct journal_sample *s)
{
    struct samples_slice *slice = arg;
    struct device_log *d = slice->d;
    if (slice->n++ == SAMPLES_AT_ONCE)
        return false;
    d->seq = s->seq;
    if (d->first_s == 0)
        d->first_s = s->wall_s;
    int64_t tick = (int64_t)((s->wall_s - d->first_s) / d->tick_s);
    if (tick < 0 || tick >= SERIES_MAX)
        return true;
    d->n_tick = MAX(d->n_tick, tick + 1);
    for (int i = 0; i < s->n; i++)
        figure_take(d, s->node, &s->figure[i], tick);
    return true;
}

/* Seconds between samples, as the run has them; fixed once the first was read. */
static double interval_find(const struct run_view *m)
{
    struct error unused;
    const struct knob *k = knob_find("telemetry_s", &unused);
    double s = k ? strtod(m->knob[k - knobs].text, NULL) : 0;
    return s >= 1 ? s : 1;
}

bool device_log_pump(struct device_log *d, struct run_view *m, int64_t budget_ns, int64_t now_ns)
{
    struct error err;
    int64_t begin = clock_ns();
    if (!d->more && d->polled_ns && now_ns - d->polled_ns < POLL_NS)
        return false;
    d->polled_ns = now_ns;
    if (d->first_s == 0)
        d->tick_s = interval_find(m);
    if (!d->journal && !(d->journal = journal_open_reader(d->run_dir, &err))) {
        snprintf(d->why, sizeof d->why, "%.255s", err.text);
        return d->more = false;
    }
    d->why[0] = 0;
    do {
        struct samples_slice slice = { .d = d };
        if (!journal_samples_read(d->journal, d->seq, sample_take, &slice, &err)) {
            snprintf(d->why, sizeof d->why, "%.255s", err.text);
            return d->more = false;
        }
        d->more = slice.n > SAMPLES_AT_ONCE;
        if (slice.n > 0)
            view_changed(m);
    } while (d->more && clock_ns() - begin < budget_ns);
    if (d->full)
        d->left_out = MAX(m->n_host + m->n_device - d->n, 1);
    return d->more;
}

const struct device_curves *device_log_at(const struct device_log *d, int i)
{
    return i >= 0 && i < d->n ? &d->device[i] : NULL;
}

int device_log_left_out(const struct device_log *d)
{
    return d->left_out;
}

int64_t device_log_ticks(const struct device_log *d)
{
    return d->n_tick;
}

double device_log_tick_s(const struct device_log *d)
{
    return d->tick_s;
}

const char *device_log_why(const struct device_log *d)
{
    return d->why;
}
