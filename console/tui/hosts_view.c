#include "console/tui/hosts_view.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "console/tui/pane_fleet.h"

/* "87" or "-" when it is not known. */
static const char *known(char out[16], double v)
{
    if (isnan(v))
        snprintf(out, 16, "-");
    else
        snprintf(out, 16, "%.0f", v);
    return out;
}

static void device_draw(struct cells *c, struct rect r, const struct device_view *d)
{
    char util[16], used[16], total[16], temp[16], power[16], limit[16], clock[16], ecc[64] = "";
    bool lost = strcmp(d->state, "ok") != 0, errors = d->ecc_uncorrected > 0;
    int x = r.x + cells_fmt(c, r.x, r.y, r.w, lost ? ROLE_CRIT : ROLE_TITLE, "%-7s", d->name);
    if (lost) {
        cells_fmt(c, x, r.y, r.x + r.w - x, ROLE_CRIT, "%s %s", d->what, d->state);
        return;
    }
    if (errors)
        snprintf(ecc, sizeof(ecc), "  %.0f memory errors", d->ecc_uncorrected);
    x += cells_fmt(c, x, r.y, r.x + r.w - x, ROLE_TEXT, "%3s %%  %8s of %8s  %3s C  %4s of %4s W  %5s MHz", known(util, d->util_percent),
                   bytes_format(used, d->mem_used_bytes), bytes_format(total, d->mem_total_bytes), known(temp, d->temp_celsius),
                   known(power, d->power_watts), known(limit, d->power_limit_watts), known(clock, d->sm_clock_mhz));
    if (x < r.x + r.w)
        cells_fmt(c, x, r.y, r.x + r.w - x,
                  errors           ? ROLE_CRIT
                  : d->throttle[0] ? ROLE_WARN
                                   : ROLE_DIM,
                  "  %s%s%s", d->what, ecc, d->throttle[0] ? "  clocks: " : "");
    int used_w = (int)strlen(d->what) + 2 + (int)strlen(ecc) + (d->throttle[0] ? 10 : 0);
    if (d->throttle[0] && x + used_w < r.x + r.w)
        cells_text(c, x + used_w, r.y, r.x + r.w - x - used_w, d->throttle, ROLE_WARN);
}

static void host_draw(struct cells *c, struct rect r, const struct host_view *h)
{
    char cpu[16], used[16], total[16], disk[16];
    cells_fmt(c, r.x, r.y, r.w, ROLE_DIM, "%-7s%3s %%  %8s of %8s  disk %s %% full  %s", "host", known(cpu, h->cpu_percent),
              bytes_format(used, h->mem_used_bytes), bytes_format(total, h->mem_total_bytes), known(disk, h->disk_percent), h->node);
}

/* One node, and its GPUs below it, as far as there are lines. Returns the lines that were drawn. */
static int node_words_draw(const struct run_view *m, struct cells *c, struct rect r, const struct node_state *s)
{
    int n = 0;
    if (n < r.h)
        host_draw(c, (struct rect){ r.x, r.y + n++, r.w, 1 }, &m->host[s->host]);
    for (int i = 0; i < m->host[s->host].n_device && n < r.h; i++)
        device_draw(c, (struct rect){ r.x, r.y + n++, r.w, 1 }, &m->device[s->first + i]);
    return n;
}

/* A cell per GPU, nodes side by side. Returns the lines that were drawn; the last one counts the nodes without a place. */
static int nodes_cells_draw(const struct run_view *m, struct cells *c, struct rect r, const struct nodes *f)
{
    static const struct fleet_view use = { .value = FLEET_USE };
    int name_w, w = fleet_node_width(m, &name_w), across = MAX((r.w + 2) / w, 1), wanted = (f->n + across - 1) / across;
    int lines = MIN(wanted, r.h), fit = wanted <= r.h ? f->n : (lines - 1) * across;
    for (int i = 0; i < fit; i++) {
        struct rect at = { r.x + i % across * w, r.y + i / across, MIN(w - 2, r.w), 1 };
        fleet_node_draw(&use, m, c, at, name_w, &f->node[i]);
    }
    if (fit < f->n)
        cells_fmt(c, r.x, r.y + lines - 1, r.w, ROLE_DIM, fit ? "and %d more nodes: f shows all" : "%d nodes: f shows all", f->n - fit);
    return lines;
}

static void nodes_shown(struct nodes *f, const struct run_view *m, process_passes *passes, const void *ctx)
{
    int kept = 0;
    nodes_make(f, m, passes, ctx);
    for (int i = 0; i < f->n; i++)
        if (f->node[i].shown)
            f->node[kept++] = f->node[i];
    f->n = kept;
}

static int words_rows(const struct run_view *m, const struct nodes *f)
{
    int n = f->n;
    for (int i = 0; i < f->n; i++)
        n += m->host[f->node[i].host].n_device;
    return n;
}

int hosts_rows(const struct run_view *m, process_passes *passes, const void *ctx)
{
    struct nodes f;
    nodes_shown(&f, m, passes, ctx);
    return words_rows(m, &f);
}

void hosts_draw(const struct run_view *m, struct cells *c, struct rect r, process_passes *passes, const void *ctx)
{
    struct nodes f;
    int n = 0;
    nodes_shown(&f, m, passes, ctx);
    if (words_rows(m, &f) > r.h) {    // all of them as cells, then the worst in words
        for (int i = 0; i < f.n; i++)
            f.node[i].key = node_severity(&f.node[i]);
        nodes_sort(&f);
        n = nodes_cells_draw(m, c, r, &f);
    }
    for (int i = 0; i < f.n && n < r.h; i++)
        n += node_words_draw(m, c, (struct rect){ r.x, r.y + n, r.w, r.h - n }, &f.node[i]);
}
