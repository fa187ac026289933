#include "console/tui/chart_view.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define STEPS_LEAST 8    // shown at the closest zoom

static const int64_t smoothings[] = { 0, 1, 10, 50, 250 };    // steps; 0: as many as suit the range

void chart_view_range(const struct chart_view *v, int64_t first, int64_t n, int64_t *from, int64_t *to)
{
    n = MAX(n, first + 1);
    int64_t w = v->steps > 0 ? MIN(v->steps, n - first) : n - first;
    *to = v->end > 0 ? MAX(MIN(v->end, n), first + w) : n;
    *from = *to - w;
}

int64_t chart_view_first(const struct series *s)
{
    return s->n > 1 && isnan(series_at(s, 0)) ? 1 : 0;
}

struct chart chart_view_of(const struct chart_view *v, const struct series *s, int64_t n, enum chart_glyphs glyphs)
{
    struct chart c = { .series = s,
                       .cursor = v->cursor,
                       .low = NAN,
                       .high = NAN,
                       .log_scale = v->log_scale,
                       .smooth = smoothings[v->smoothing],
                       .glyphs = glyphs };
    chart_view_range(v, chart_view_first(s), n, &c.from, &c.to);
    return c;
}

/* Show w steps, and keep what is under the cursor, or else the end, where it is. */
static void zoom(struct chart_view *v, bool in, int64_t n)
{
    int64_t from, to;
    chart_view_range(v, 0, n, &from, &to);
    int64_t w = to - from, next = in ? w * 2 / 3 : w * 3 / 2;
    if (next >= n) {
        v->steps = v->end = 0;
        return;
    }
    v->steps = MAX(next, STEPS_LEAST);
    if (v->cursor >= from && v->cursor < to) {
        int64_t end = v->cursor + (to - v->cursor) * v->steps / w + 1;
        v->end = end >= n ? 0 : MAX(end, v->cursor + 1);
    }
}

/* Show w steps from `from` on. With a cursor the view stays where it is; without one its end follows the run. The cursor comes along, at
 * the edge that is nearer to where it was. */
static void pan_to(struct chart_view *v, int64_t from, int64_t w, int64_t n)
{
    from = MAX(MIN(from, n - w), 0);
    v->end = from + w >= n && v->cursor < 0 ? 0 : from + w;
    if (v->cursor >= 0)
        v->cursor = MAX(MIN(v->cursor, from + w - 1), from);
}

void chart_view_go(struct chart_view *v, int64_t step, int64_t n)
{
    int64_t from, to;
    v->cursor = MAX(MIN(step, n - 1), 0);
    chart_view_range(v, 0, n, &from, &to);
    if (v->steps == 0)
        return;    // the whole history has it in view
    int64_t w = to - from;
    pan_to(v, v->cursor < from ? v->cursor : v->cursor >= to ? v->cursor - w + 1 : from, w, n);
}

bool chart_view_act(struct chart_view *v, enum request req, int64_t n)
{
    int64_t from, to;
    chart_view_range(v, 0, n, &from, &to);
    int64_t w = to - from, by = MAX(w / 60, 1);
    switch (req) {
    case REQ_ZOOM_IN: zoom(v, true, n); return true;
    case REQ_ZOOM_OUT: zoom(v, false, n); return true;
    case REQ_ZOOM_RESET:
        v->steps = v->end = 0;
        v->cursor = -1;
        return true;
    case REQ_PAN_BACK: pan_to(v, from - MAX(w / 2, 1), w, n); return true;
    case REQ_PAN_ON: pan_to(v, from + MAX(w / 2, 1), w, n); return true;
    case REQ_LEFT: chart_view_go(v, (v->cursor < 0 ? to : v->cursor) - by, n); return true;
    case REQ_RIGHT: chart_view_go(v, (v->cursor < 0 ? to - 1 : v->cursor) + by, n); return true;
    case REQ_LOG: v->log_scale = !v->log_scale; return true;
    case REQ_SMOOTH: v->smoothing = (v->smoothing + 1) % (int)ARRAY_SIZE(smoothings); return true;
    default: return false;
    }
}

const char *chart_view_note(const struct chart_view *v, char out[64])
{
    int64_t steps = smoothings[v->smoothing];
    out[0] = 0;
    if (steps == 1)
        snprintf(out, 64, "single values");
    else if (steps > 1)
        snprintf(out, 64, "mean of %d", (int)steps);
    if (v->log_scale)
        snprintf(out + strlen(out), 64 - strlen(out), "%slogarithmic", out[0] ? ", " : "");
    return out;
}

int marks_find(const struct run_view *m, int64_t mark[MARKS_MAX])
{
    int n = 0;
    const struct event_view *e;
    for (int64_t i = 0; n < MARKS_MAX && (e = view_event_at(m, i)) != NULL; i++)
        if ((mark[n] = view_change_step(m, e)) > 0)
            n++;
    return n;
}

void band_find(const struct run_view *m, const char *metric, struct chart *c)
{
    c->low = c->high = NAN;
    for (int i = 0; i < m->n_alarm; i++) {
        const struct alarm_view *v = &m->alarm[i];
        if (v->state == ALARM_MUTED || strcmp(v->metric, metric) != 0)
            continue;
        if (v->when == ALARM_BELOW)
            c->low = v->limit;
        if (v->when == ALARM_ABOVE)
            c->high = v->limit;
    }
}
