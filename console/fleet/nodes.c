#include "console/fleet/nodes.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/name_hash.h"
#include "protocol/run/telemetry.h"

#define SLOTS 4096    // of the table of nodes; a power of two above MODEL_HOSTS

enum device_fault device_fault(const struct device_view *d)
{
    if (strcmp(d->state, "ok") != 0)
        return DEVICE_LOST;
    if (d->ecc_uncorrected > 0)
        return DEVICE_FAILING;
    return throttle_is_fault(d->throttle) ? DEVICE_SLOWED : DEVICE_WELL;
}

enum device_fault device_fault_say(const struct device_view *d, char *out, size_t size)
{
    enum device_fault fault = device_fault(d);
    out[0] = 0;
    switch (fault) {
    case DEVICE_WELL: break;
    case DEVICE_SLOWED: snprintf(out, size, "is slowed by %s", d->throttle); break;
    case DEVICE_FAILING: snprintf(out, size, "has %.0f memory error%s", d->ecc_uncorrected, d->ecc_uncorrected == 1 ? "" : "s"); break;
    case DEVICE_LOST: snprintf(out, size, "%s%s", strcmp(d->state, "lost") == 0 ? "is " : "", d->state); break;
    }
    return fault;
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : NAN;
}

static void devices_count(const struct run_view *m, struct node_state *s)
{
    double use = 0, full = 0;
    int n_use = 0, n_full = 0;
    s->heat = NAN;
    for (int i = 0; i < m->host[s->host].n_device; i++) {
        const struct device_view *d = &m->device[s->first + i];
        double p = percent(d->mem_used_bytes, d->mem_total_bytes);
        switch (device_fault(d)) {
        case DEVICE_WELL: break;
        case DEVICE_SLOWED: s->slowed++; break;
        case DEVICE_FAILING: s->failing++; break;
        case DEVICE_LOST: s->lost++; break;
        }
        s->heat = fmax(s->heat, d->temp_celsius);
        if (!isnan(d->util_percent)) {
            use += d->util_percent;
            n_use++;
        }
        if (!isnan(p)) {
            full += p;
            n_full++;
        }
    }
    s->use = n_use ? use / n_use : NAN;
    s->full = n_full ? full / n_full : NAN;
}

size_t proc_node(const struct run_view *m, const struct proc *p, const char **node)
{
    const char *end = strchr(p->name, '/');
    *node = p->name;
    if (end)
        return (size_t)(end - p->name);
    *node = m->n_host > 0 && m->host[0].own ? m->host[0].node : "";
    return strlen(*node);
}

/* What is wrong with the processes of each node, and whether one of them passes. */
static void processes_count(const struct run_view *m, struct nodes *n, process_passes *passes, const void *ctx)
{
    int16_t slot[SLOTS];
    memset(slot, -1, sizeof(slot));
    for (int i = 0; i < n->n; i++) {
        const char *name = m->host[n->node[i].host].node;
        uint32_t at = name_hash(name, strlen(name)) % SLOTS;
        while (slot[at] >= 0)
            at = (at + 1) % SLOTS;
        slot[at] = (int16_t)i;
    }
    for (int i = 0; i < m->n_proc; i++) {
        const struct proc *p = &m->proc[i];
        const char *name;
        size_t len = proc_node(m, p, &name);
        if (p->verdict == PROC_OK && !passes)
            continue;
        for (uint32_t at = name_hash(name, len) % SLOTS; slot[at] >= 0; at = (at + 1) % SLOTS) {
            struct node_state *s = &n->node[slot[at]];
            const char *node = m->host[s->host].node;
            if (strlen(node) == len && memcmp(node, name, len) == 0) {
                s->stuck += p->verdict != PROC_OK && p->verdict != PROC_SLOW;
                s->slow += p->verdict == PROC_SLOW;
                s->shown |= passes && passes(ctx, p);
                break;
            }
        }
    }
}

void nodes_make(struct nodes *n, const struct run_view *m, process_passes *passes, const void *ctx)
{
    n->n = 0;
    for (int h = 0, device = 0; h < m->n_host; device += m->host[h++].n_device) {
        n->node[n->n] = (struct node_state){ .host = h, .first = device, .shown = !passes };
        devices_count(m, &n->node[n->n++]);
    }
    processes_count(m, n, passes, ctx);
}

double node_severity(const struct node_state *s)
{
    return -(1000.0 * s->lost + 300.0 * s->stuck + 100.0 * s->failing + 10.0 * s->slowed + s->slow);
}

static int by_key(const void *a, const void *b)
{
    const struct node_state *x = a, *y = b;
    return x->key != y->key ? (x->key > y->key) - (x->key < y->key) : x->host - y->host;
}

void nodes_sort(struct nodes *n)
{
    qsort(n->node, (size_t)n->n, sizeof(n->node[0]), by_key);
}
