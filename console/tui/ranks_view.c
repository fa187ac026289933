#include "console/tui/ranks_view.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/tui/widget.h"
#include "protocol/settings/knobs.h"
#include "protocol/settings/metrics.h"

#define RANKS_SHOWN 16    // trainers, or stages of one, whose idle time comes one by one

static double last(const struct run_view *m, enum metric_id id)
{
    return m->metric[id].n > 0 ? m->metric[id].last : NAN;
}

/* The value of the newest step, which a metric may not have. */
static double newest(const struct run_view *m, enum metric_id id)
{
    return series_at(&m->metric[id], m->metric[M_RANKS_N].n - 1);
}

int ranks_rows(const struct run_view *m)
{
    return last(m, M_RANKS_N) > 1 ? 2 : last(m, M_STAGES_N) > 1 ? 1 : 0;
}

static int setting(const struct run_view *m, const char *name)
{
    for (int i = 0; i < n_knobs; i++)
        if (strcmp(knobs[i].name, name) == 0)
            return atoi(m->knob[i].text);
    return 0;
}

const char *ranks_layout(const struct run_view *m, char *out, size_t size)
{
    int team = setting(m, "producer_tensor_parallel_size"), trainer_team = setting(m, "tensor_parallel_size");
    char on[48] = "", of[24] = "";
    out[0] = 0;
    if (ranks_rows(m) == 0)
        return out;
    if (trainer_team > 1)
        snprintf(of, sizeof(of), " of %d devices", trainer_team);
    if (last(m, M_STAGES_N) > 1)
        snprintf(on, sizeof(on), " in %.0f stages%s each", last(m, M_STAGES_N), of);
    else if (trainer_team > 1)
        snprintf(on, sizeof(on), " on %d devices each", trainer_team);
    int n = last(m, M_RANKS_N) > 1 ? snprintf(out, size, "%.0f trainers%s, zero_stage %.0f", last(m, M_RANKS_N), on, last(m, M_ZERO_STAGE))
                                   : snprintf(out, size, "trainer in %.0f stages%s", last(m, M_STAGES_N), of);
    if (team > 1)
        snprintf(out + n, size - (size_t)n, ", producers on %d%s", team, on[0] ? "" : " devices each");
    return out;
}

/* " 0.12 0.5": the idle seconds of each trainer (of each stage), as far as they come one by one. */
static void idle_text(const struct run_view *m, enum metric_id many, enum metric_id idle, char *out, size_t size)
{
    char name[64], value[16];
    size_t n = 0;
    for (int q = 0; q < MIN((int)last(m, many), RANKS_SHOWN); q++) {
        snprintf(name, sizeof(name), "%s/%d", metrics[idle].name, q);
        for (int i = 0; i < m->n_extra; i++)
            if (strcmp(m->extra[i].name, name) == 0 && n < size)
                n += (size_t)snprintf(out + n, size - n, " %s", value_format(value, m->extra[i].series.last));
    }
    if (n == 0)
        snprintf(out, size, " at most %s", value_format(value, last(m, idle)));
}

static void stages_draw(const struct run_view *m, struct cells *c, struct rect r)
{
    char text[160];
    int x = r.x + cells_text(c, r.x, r.y, r.w, ranks_layout(m, text, sizeof(text)), ROLE_TEXT);
    idle_text(m, M_STAGES_N, M_STAGES_IDLE_S, text, sizeof(text));
    cells_fmt(c, x, r.y, r.x + r.w - x, ROLE_DIM, "  idle, s:%s", text);
}

/* "trainer 1 (worker cpu:1)", by what its process plays. */
static void late_text(const struct run_view *m, int rank, char *out, size_t size)
{
    char plays[32];
    int n = snprintf(plays, sizeof(plays), "trainer %d", rank);
    snprintf(out, size, "%s", plays);
    for (int i = 0; i < m->n_proc; i++)
        if (strncmp(m->proc[i].plays, plays, (size_t)n) == 0 && strchr(", ", m->proc[i].plays[n]))    // or its end
            snprintf(out, size, "%s (%s)", plays, m->proc[i].name);
}

void ranks_draw(const struct run_view *m, struct cells *c, struct rect r)
{
    char text[160], reduced[16], reduce[16], gathered[16], gather[16], value[16];
    double between = newest(m, M_HOSTS_REDUCE_GB);
    if (r.h < 1 || ranks_rows(m) == 0)
        return;
    if (!(last(m, M_RANKS_N) > 1)) {
        stages_draw(m, c, r);
        return;
    }
    double late = newest(m, M_RANKS_LATE), step_s = last(m, M_STEP_S), exposed = last(m, M_RANKS_EXPOSED_S);
    int end = r.x + r.w, x = r.x + cells_text(c, r.x, r.y, r.w, ranks_layout(m, text, sizeof(text)), ROLE_TEXT);
    x += cells_fmt(c, x, r.y, end - x, ROLE_DIM, "  reduce %s in %s s, gather %s in %s s",
                   bytes_format(reduced, last(m, M_RANKS_REDUCE_GB) * 1e9), value_format(reduce, last(m, M_RANKS_REDUCE_S)),
                   bytes_format(gathered, last(m, M_RANKS_GATHER_GB) * 1e9), value_format(gather, last(m, M_RANKS_GATHER_S)));
    if (!isnan(between) && x < end)
        cells_fmt(c, x, r.y, end - x, ROLE_DIM, "; between hosts %s + %s", bytes_format(reduced, between * 1e9),
                  bytes_format(gathered, newest(m, M_HOSTS_GATHER_GB) * 1e9));
    if (r.h < 2)
        return;
    idle_text(m, M_RANKS_N, M_RANKS_IDLE_S, text, sizeof(text));
    x = r.x
        + cells_fmt(c, r.x, r.y + 1, r.w, ROLE_DIM, "exposed %s %% of a step  idle, s:%s", value_format(value, 100 * exposed / step_s),
                    text);
    if (isnan(late) || x >= end)
        return;
    late_text(m, (int)late, text, sizeof(text));
    cells_fmt(c, x, r.y + 1, end - x, ROLE_TEXT, "  late: %s by %s s", text, value_format(value, newest(m, M_RANKS_LATE_S)));
}
