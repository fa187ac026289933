/* trace.c - a table of operations that records the times of the calls it passes on */
#include "kernels/trace.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"

enum trace_op {
#define TRACE_ENUM(name) TRACE_##name,
    OPS_TABLE(TRACE_ENUM) TRACE_weight_refresh,
    TRACE_mem_copy,
    N_TRACE,
};
static const char *const trace_name[] = {
#define TRACE_NAME(name) #name,
    OPS_TABLE(TRACE_NAME) "weight_refresh", "mem_copy"
};
struct trace {
    struct ops table;    // what dev->op points to while tracing
    const struct ops *inner;
    struct {
        int64_t n, ns;
    } total[N_TRACE];
    int64_t t0_ns;
    int64_t n_event, max_events;
    struct trace_event {
        int64_t start_ns, end_ns;    // since t0_ns
        enum trace_op op;
    } event[];
};

static void trace_note(struct trace *t, enum trace_op op, int64_t start_ns)
{
    int64_t end_ns = clock_ns();
    t->total[op].n++;
    t->total[op].ns += end_ns - start_ns;
    if (t->n_event < t->max_events)
        t->event[t->n_event++] = (struct trace_event){ start_ns - t->t0_ns, end_ns - t->t0_ns, op };
}

#define TRACE_FN(name)                                                                                                                     \
    static bool name##_trace(struct device *dev, const struct name *a, struct error *err)                                                  \
    {                                                                                                                                      \
        int64_t start_ns = clock_ns();                                                                                                     \
        bool ok = dev->trace->inner->name(dev, a, err) && (dev->host_memory || dev->trace->inner->device_sync(dev, err));                  \
        trace_note(dev->trace, TRACE_##name, start_ns);                                                                                    \
        return ok;                                                                                                                         \
    }
OPS_TABLE(TRACE_FN)

static bool weight_refresh_trace(struct device *dev, struct weight *w, struct error *err)
{
    int64_t start_ns = clock_ns();
    bool ok = dev->trace->inner->weight_refresh(dev, w, err);
    trace_note(dev->trace, TRACE_weight_refresh, start_ns);
    return ok;
}

static bool mem_copy_trace(struct device *dev, void *dst, const void *src, size_t size_bytes, enum copy_dir dir, struct error *err)
{
    int64_t start_ns = clock_ns();
    bool ok = dev->trace->inner->mem_copy(dev, dst, src, size_bytes, dir, err);
    trace_note(dev->trace, TRACE_mem_copy, start_ns);
    return ok;
}

bool trace_start(struct device *dev, int64_t max_events, struct error *err)
{
    BUG_IF(dev->trace, "%s is already being traced", dev->name);
    struct trace *t = calloc(1, sizeof *t + (size_t)max_events * sizeof t->event[0]);
    if (!t)
        return error_set(err, ERR_NO_MEMORY, "no memory for a trace of %" PRId64 " events", max_events);
    t->table = *dev->op;
    t->inner = dev->op;
    t->max_events = max_events;
    t->t0_ns = clock_ns();
#define TRACE_SET(name) t->table.name = t->inner->name ? name##_trace : NULL;
    OPS_TABLE(TRACE_SET)
    t->table.weight_refresh = weight_refresh_trace;
    t->table.mem_copy = mem_copy_trace;
    dev->trace = t;
    dev->op = &t->table;
    return true;
}

bool trace_stop(struct device *dev, const char *path, struct error *err)
{
    struct trace *t = dev->trace;
    if (!t)
        return true;
    dev->op = t->inner;
    dev->trace = NULL;
    bool ok = true;
    FILE *f = path ? file_create_stream(path, false, err) : NULL;
    ok = !path || f;
    if (f) {
        double began_us = clock_wall_s() * 1e6 - (double)(clock_ns() - t->t0_ns) * 1e-3;    // where time 0 is, since 1970
        fprintf(f, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"began_us\":%.0f},\"traceEvents\":[\n", began_us);
        for (int64_t i = 0; i < t->n_event; i++)
            fprintf(f, "{\"name\":\"%s\",\"ph\":\"X\",\"pid\":1,\"tid\":\"%s\",\"ts\":%.3f,\"dur\":%.3f}%s\n", trace_name[t->event[i].op],
                    dev->name, (double)t->event[i].start_ns * 1e-3, (double)(t->event[i].end_ns - t->event[i].start_ns) * 1e-3,
                    i + 1 < t->n_event ? "," : "");
        fprintf(f, "]}\n");
        bool written = !ferror(f);
        if (fclose(f) != 0 || !written)
            ok = error_errno(err, "cannot write '%s'", path);
    }
    free(t);
    return ok;
}

void trace_print(const struct device *dev)
{
    const struct trace *t = dev->trace;
    int64_t all_ns = 0;
    bool done[N_TRACE] = { false };
    for (int i = 0; i < N_TRACE; i++)
        all_ns += t->total[i].ns;
    for (int round = 0; round < N_TRACE; round++) {
        int best = -1;
        for (int i = 0; i < N_TRACE; i++)
            if (!done[i] && t->total[i].n && (best < 0 || t->total[i].ns > t->total[best].ns))
                best = i;
        if (best < 0)
            return;
        done[best] = true;
        fprintf(stderr, "%-16s %8" PRId64 " calls %10.3f ms %5.1f %%\n", trace_name[best], t->total[best].n,
                (double)t->total[best].ns * 1e-6, 100.0 * (double)t->total[best].ns / (double)(all_ns ? all_ns : 1));
    }
}
