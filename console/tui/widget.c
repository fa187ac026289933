/* widget.c - see widget.h */
#include "console/tui/widget.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define LABEL_W 6    // columns of the numbers beside a chart
#define SMOOTH 24    // the line is a mean over 1/24 of the range shown
#define LETTER_EVERY 18

const char *value_format(char out[16], double v)
{
    double a = fabs(v);
    if (isnan(v))
        snprintf(out, 16, "-");
    else if (isinf(v))
        snprintf(out, 16, v > 0 ? "inf" : "-inf");
    else if (a == 0)
        snprintf(out, 16, "0");
    else if (a == floor(a) && a < 10000)    // counts stay whole numbers
        snprintf(out, 16, "%.0f", v);
    else if (a < 9.95e-10)
        snprintf(out, 16, "%.0e", v);
    else if (a < 9.995e-4)
        snprintf(out, 16, v < 0 ? "%.0e" : "%.1e", v);
    else if (a < 0.09995)
        snprintf(out, 16, v < 0 ? "%.3f" : "%.4f", v);
    else if (a < 0.9995)
        snprintf(out, 16, "%.3f", v);
    else if (a < 9.995)
        snprintf(out, 16, "%.2f", v);
    else if (a < 999.5)
        snprintf(out, 16, a < 99.95 ? "%.1f" : "%.0f", v);
    else if (a < 999.5e3)
        snprintf(out, 16, a < 99.95e3 ? "%.1fk" : "%.0fk", v / 1e3);
    else if (a < 999.5e6)
        snprintf(out, 16, a < 99.95e6 ? "%.1fM" : "%.0fM", v / 1e6);
    else if (a < 999.5e9)
        snprintf(out, 16, a < 99.95e9 ? "%.1fG" : "%.0fG", v / 1e9);
    else
        snprintf(out, 16, "%.0e", v);
    char *e = strchr(out, 'e');    // 1.2e-05 has a useless digit
    if (e && e[1] && e[2] == '0' && e[3])
        memmove(e + 2, e + 3, strlen(e + 3) + 1);
    return out;
}

const char *bytes_format(char out[16], double b)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    size_t i = 0;
    if (!(b >= 0)) {
        snprintf(out, 16, "-");
        return out;
    }
    while (b >= 999.5 && i + 1 < ARRAY_SIZE(units)) {
        b /= 1024;
        i++;
    }
    snprintf(out, 16, i == 0 || b >= 99.95 ? "%.0f %s" : "%.1f %s", fmin(b, 99999), units[i]);
    return out;
}

void chart_range(double min, double max, double *lo, double *hi)
{
    if (!(max > min)) {    // flat: in the middle of a range around it
        double pad = min == 0 ? 1 : fabs(min) * 0.5;
        *lo = min == 0 ? 0 : min - pad;
        *hi = min + pad;
        return;
    }
    static const double nice[] = { 1, 2, 2.5, 5, 10 };
    double raw = (max - min) / 4, base = pow(10, floor(log10(raw))), tick = base * 10;
    for (size_t i = ARRAY_SIZE(nice); i-- > 0;)
        if (nice[i] * base >= raw)
            tick = nice[i] * base;
    *lo = floor(min / tick) * tick;
    *hi = ceil(max / tick) * tick;
}

/* The contents of a dot column, in dots from the bottom; lo > hi: nothing. */
struct column {
    int band_lo, band_hi;    // single values
    int line_lo, line_hi;    // the smoothed line, joined with the column before
};
struct plot {    // how steps and values are mapped to dots
    const struct series *s;
    int64_t from, to;
    int columns, rows;    // dots
    double lo, hi;        // of the axis; with log_scale: their logarithms
    int64_t smooth;       // steps
    bool log_scale;
    int64_t (*step_of)(const void *arg, int64_t step);    // as in struct chart_line
    const void *arg;
};

/* The series' step at a step of the chart. */
static int64_t own_step(const struct plot *p, int64_t step)
{
    return p->step_of ? p->step_of(p->arg, step) : step;
}

/* What is known of the chart's steps a <= step < b. */
static struct series_span plot_query(const struct plot *p, int64_t a, int64_t b)
{
    if (!p->step_of)
        return series_query(p->s, a, b);
    int64_t first = own_step(p, a);
    return series_query(p->s, first, b > a ? MAX(own_step(p, b), first + 1) : first);
}

/* A value's place on the axis; NAN: a logarithm does not exist. */
static double axis_value(bool log_scale, double v)
{
    return !log_scale ? v : v > 0 ? log10(v) : NAN;
}

static int dot_of(const struct plot *p, double v)
{
    double at = axis_value(p->log_scale, v);
    double t = isnan(at) ? 0 : (at - p->lo) / (p->hi - p->lo);
    return (int)(fmin(fmax(t, 0), 1) * (p->rows - 1) + 0.5);
}

/* The smoothed value at a dot column; between steps (fewer steps than dots) a straight line. */
static double line_at(const struct plot *p, int i)
{
    double per = (double)(p->to - p->from) / p->columns;    // steps per dot column
    if (per >= 1) {
        int64_t b = p->from + (int64_t)floor((i + 1) * per), a = p->from + (int64_t)floor(i * per);
        if (own_step(p, a) >= p->s->n)
            return NAN;
        return plot_query(p, MAX(p->from, MIN(a, b - p->smooth)), MAX(b, a + 1)).mean;
    }
    double x = (double)p->from + (i + 0.5) * per - 0.5;
    int64_t a = MAX((int64_t)floor(x), p->from);
    double va = plot_query(p, MAX(p->from, a + 1 - p->smooth), a + 1).mean;
    double vb = own_step(p, a + 1) < p->s->n ? plot_query(p, MAX(p->from, a + 2 - p->smooth), a + 2).mean : NAN;
    if (own_step(p, a) >= p->s->n || isnan(series_at(p->s, own_step(p, a))) || isnan(va))
        return NAN;
    double t = x - (double)a;
    if (isnan(vb) || t <= 0)
        return t < 0.5 + per ? va : NAN;
    return va + (vb - va) * t;
}

static struct column column_at(const struct plot *p, int i, int *before)
{
    struct column c = { 1, 0, 1, 0 };
    double per = (double)(p->to - p->from) / p->columns;
    int64_t a = p->from + (int64_t)floor(i * per), b = p->from + (int64_t)floor((i + 1) * per);
    struct series_span span = plot_query(p, a, b > a ? b : a);
    if (span.n > 0 && !isnan(axis_value(p->log_scale, span.max))) {
        c.band_lo = dot_of(p, span.min);
        c.band_hi = dot_of(p, span.max);
    }
    double v = line_at(p, i);
    if (isnan(axis_value(p->log_scale, v))) {
        *before = -1;
        return c;
    }
    int y = dot_of(p, v);
    c.line_lo = c.line_hi = y;
    if (*before >= 0 && *before < y - 1)
        c.line_lo = *before + 1;
    if (*before >= 0 && *before > y + 1)
        c.line_hi = *before - 1;
    *before = y;
    return c;
}

static bool in_span(int lo, int hi, int y)
{
    return y >= lo && y <= hi;
}

static const uint8_t braille_bit[4][2] = { { 0x40, 0x80 }, { 0x04, 0x20 }, { 0x02, 0x10 }, { 0x01, 0x08 } };    // from below

static void cell_draw_braille(struct cells *out, int x, int y, const struct column col[2], int bottom)
{
    unsigned line = 0, band = 0;
    for (int dx = 0; dx < 2; dx++)
        for (int dy = 0; dy < 4; dy++) {
            if (in_span(col[dx].line_lo, col[dx].line_hi, bottom + dy))
                line |= braille_bit[dy][dx];
            if (in_span(col[dx].band_lo, col[dx].band_hi, bottom + dy))
                band |= braille_bit[dy][dx];
        }
    if (line)
        cells_put(out, x, y, 0x2800 + line, ROLE_CHART);
    else if (band)
        cells_put(out, x, y, 0x2800 + band, ROLE_BAND);
}

static void plot_draw(struct cells *out, struct rect r, const struct plot *p, enum chart_glyphs glyphs)
{
    int before = -1;
    for (int x = 0; x < r.w; x++) {
        if (glyphs == GLYPHS_BRAILLE) {
            struct column col[2];
            col[0] = column_at(p, 2 * x, &before);
            col[1] = column_at(p, 2 * x + 1, &before);
            for (int y = 0; y < r.h; y++)
                cell_draw_braille(out, r.x + x, r.y + r.h - 1 - y, col, 4 * y);
            continue;
        }
        struct column col = column_at(p, x, &before);
        for (int y = 0; y < r.h; y++) {
            int row = r.y + r.h - 1 - y;
            if (glyphs == GLYPHS_ASCII) {
                if (in_span(col.line_lo, col.line_hi, y))
                    cells_put(out, r.x + x, row, '*', ROLE_CHART);
                else if (in_span(col.band_lo, col.band_hi, y))
                    cells_put(out, r.x + x, row, '.', ROLE_BAND);
                continue;
            }
            int top = col.line_lo > col.line_hi ? -1 : before;    // an area up to the line, in eighths
            int full = top + 1 - 8 * y;
            if (top >= 0 && full > 0)
                cells_put(out, r.x + x, row, full >= 8 ? 0x2588 : 0x2580 + (uint32_t)full, full >= 8 ? ROLE_BAND : ROLE_CHART);
        }
    }
}

/* One of several lines: without the single values, joined with what is in the cells, and with its letter at every LETTER_EVERY'th column
 * from `first` on. */
static void line_draw(struct cells *out, struct rect r, const struct plot *p, enum chart_glyphs glyphs, const struct chart_line *line,
                      int first)
{
    int before = -1;
    for (int x = 0; x < r.w; x++) {
        struct column col[2] = { column_at(p, glyphs == GLYPHS_BRAILLE ? 2 * x : x, &before), { 1, 0, 1, 0 } };
        if (glyphs == GLYPHS_BRAILLE)
            col[1] = column_at(p, 2 * x + 1, &before);
        int per_y = glyphs == GLYPHS_BRAILLE ? 4 : glyphs == GLYPHS_BLOCK ? 8 : 1;
        bool letter = glyphs != GLYPHS_BRAILLE || x % LETTER_EVERY == first;
        for (int y = 0; y < r.h; y++) {
            int row = r.y + r.h - 1 - y;
            const struct cell *old = &out->cell[row * out->w + r.x + x];
            unsigned bits = 0;
            for (int dx = 0; dx < 2; dx++)
                for (int dy = 0; dy < per_y; dy++)
                    if (in_span(col[dx].line_lo, col[dx].line_hi, per_y * y + dy))
                        bits |= glyphs == GLYPHS_BRAILLE ? braille_bit[dy][dx] : 1;
            if (bits && letter)
                cells_put(out, r.x + x, row, (unsigned char)line->letter, line->role);
            else if (bits)
                cells_put(out, r.x + x, row, old->ch >= 0x2800 && old->ch < 0x2900 ? old->ch | bits : 0x2800 + bits, line->role);
        }
    }
}

static int column_of(const struct plot *p, int w, int64_t step)
{
    return (int)((double)(step - p->from) / (double)(p->to - p->from) * w);
}

static void marks_draw(struct cells *out, struct rect area, const struct plot *p, const struct chart *c, int axis_y)
{
    for (int i = 0; i <= c->n_mark; i++) {    // the last one is the time cursor
        bool cursor = i == c->n_mark;
        int64_t step = cursor ? c->cursor : c->mark[i];
        if (step < p->from || step >= p->to || (cursor && c->cursor < 0))
            continue;
        int x = area.x + column_of(p, area.w, step);
        for (int y = area.y; y < area.y + area.h; y++)
            cells_put(out, x, y, cursor ? 0x2502 : 0x2506, cursor ? ROLE_FOCUS : ROLE_MARK);
        if (axis_y >= 0)
            cells_put(out, x, axis_y, 0x25b2, cursor ? ROLE_FOCUS : ROLE_MARK);
    }
}

/* A dotted line at the value of an alarm's bound, behind what is drawn after it. */
static void bound_draw(struct cells *out, struct rect area, const struct plot *p, double bound, int per_y)
{
    double at = axis_value(p->log_scale, bound);
    if (isnan(at) || at < p->lo || at > p->hi)
        return;
    int y = area.y + area.h - 1 - dot_of(p, bound) / per_y;
    for (int x = area.x; x < area.x + area.w; x++)
        cells_put(out, x, y, 0x2508, ROLE_WARN);
}

/* The smallest positive value of a range, as far as its columns tell; NAN: there is none. */
static double least_positive(const struct series *s, int64_t from, int64_t to)
{
    double least = NAN;
    for (int i = 0; i < 256; i++) {
        int64_t a = from + (to - from) * i / 256, b = MAX(from + (to - from) * (i + 1) / 256, a + 1);
        struct series_span span = series_query(s, a, b);
        double v = span.min > 0 ? span.min : span.max;
        if (span.n > 0 && v > 0)
            least = fmin(least, v);
    }
    return least;
}

/* The axis that holds the values of s: in p. False: there is nothing to show. */
static bool plot_fit(struct plot *p, struct series_span span)
{
    if (span.n == 0)
        return false;
    if (!p->log_scale) {
        chart_range(span.min, span.max, &p->lo, &p->hi);
        return true;
    }
    if (!(span.max > 0))
        return false;
    p->lo = floor(log10(span.min));
    p->hi = MAX(ceil(log10(span.max)), p->lo + 1);
    return true;
}

static struct series_span span_of(const struct series *s, int64_t from, int64_t to, bool log_scale)
{
    struct series_span span = series_query(s, from, to);
    if (log_scale && span.n > 0 && !(span.min > 0))
        span.min = least_positive(s, from, to);
    return span;
}

static struct series_span line_span(const struct chart_line *l, int64_t from, int64_t to, bool log_scale)
{
    if (!l->step_of)
        return span_of(l->series, from, to, log_scale);
    int64_t first = l->step_of(l->arg, from);
    return span_of(l->series, first, MAX(l->step_of(l->arg, to), first + 1), log_scale);
}

static struct series_span span_join(struct series_span a, struct series_span b)
{
    return (struct series_span){ fmin(a.min, b.min), fmax(a.max, b.max), NAN, a.n + b.n };
}

/* What stands below the axis for a step of the series. */
static void tick_text(const struct chart *c, int64_t step, char out[32])
{
    char time[16];
    if (c->tick_s > 0)
        snprintf(out, 32, "%s", duration_format(time, (double)step * c->tick_s));
    else
        snprintf(out, 32, "%" PRId64, step);
}

static void axes_draw(struct cells *out, struct rect r, struct rect area, const struct plot *p, const struct chart *c, bool below)
{
    static const struct {
        double share;
        int least_h;
    } labels[] = { { 1, 0 }, { 0, 0 }, { 0.5, 5 } };
    char text[32], number[16];
    for (size_t i = 0; i < ARRAY_SIZE(labels); i++) {
        double v = p->lo + labels[i].share * (p->hi - p->lo);
        int y = labels[i].share > 0.9 ? area.y : labels[i].share < 0.1 ? area.y + area.h - 1 : area.y + area.h / 2;
        if (area.h >= labels[i].least_h)
            cells_text_right(out, r.x, y, LABEL_W, value_format(number, p->log_scale ? pow(10, v) : v), ROLE_AXIS);
    }
    for (int y = 0; y < area.h; y++)
        cells_put(out, area.x - 1, area.y + y, 0x2502, ROLE_AXIS);
    if (!below)
        return;
    int y = r.y + r.h - 1;
    for (int i = 0; i < c->n_mark; i++)    // below the numbers: a digit less is another number
        if (c->mark[i] >= p->from && c->mark[i] < p->to)
            cells_put(out, area.x + column_of(p, area.w, c->mark[i]), y, 0x25b2, ROLE_MARK);
    tick_text(c, p->from, text);
    cells_text(out, area.x, y, area.w, text, ROLE_AXIS);
    tick_text(c, p->to - 1, text);
    cells_text_right(out, area.x, y, area.w, text, ROLE_AXIS);
    if (c->cursor >= p->from && c->cursor < p->to) {
        tick_text(c, c->cursor, text);
        int x = column_of(p, area.w, c->cursor), n = (int)strlen(text);
        cells_text(out, area.x + MAX(0, MIN(x, area.w - n)), y, n, text, ROLE_FOCUS);
    }
}

void chart_draw(struct cells *out, struct rect r, const struct chart *c)
{
    if (r.w < 1 || r.h < 1)
        return;
    int64_t from = MAX(c->from, 0), to = MAX(c->to, from + 1);
    struct series_span span = { NAN, NAN, NAN, 0 };
    if (c->series)
        span = span_of(c->series, from, to, c->log_scale);
    for (int i = 0; i < c->n_line; i++)
        if (!c->line[i].own_scale)
            span = span_join(span, line_span(&c->line[i], from, to, c->log_scale));
    bool labels = r.w >= 16 && r.h >= 3, axis = labels && r.h >= 4;
    struct rect area = { r.x + (labels ? LABEL_W + 1 : 0), r.y, r.w - (labels ? LABEL_W + 1 : 0), r.h - (axis ? 1 : 0) };
    struct plot p = { .s = c->series, .from = from, .to = to, .log_scale = c->log_scale };
    if (!plot_fit(&p, span)) {
        const char *why = span.n > 0 ? "no value above 0" : "no data yet";
        cells_text(out, r.x + MAX(0, (r.w - (int)strlen(why)) / 2), r.y + r.h / 2, r.w, why, ROLE_DIM);
        return;
    }
    int per_x = c->glyphs == GLYPHS_BRAILLE ? 2 : 1, per_y = c->glyphs == GLYPHS_BRAILLE ? 4 : c->glyphs == GLYPHS_BLOCK ? 8 : 1;
    p.columns = area.w * per_x;
    p.rows = area.h * per_y;
    p.smooth = c->smooth > 0 ? c->smooth : MAX((MIN(to, c->series->n) - from) / SMOOTH, 1);
    bound_draw(out, area, &p, c->low, per_y);
    bound_draw(out, area, &p, c->high, per_y);
    marks_draw(out, area, &p, c, -1);
    if (c->n_line == 0)
        plot_draw(out, area, &p, c->glyphs);
    for (int i = c->n_line; i >= 0 && c->n_line > 0; i--) {    // the chart's own series last, on top
        struct chart_line own = { .series = c->series, .letter = 'a', .role = ROLE_SERIES1 };
        const struct chart_line *line = i ? &c->line[i - 1] : &own;
        struct plot q = p;
        q.s = line->series;
        q.step_of = line->step_of;
        q.arg = line->arg;
        if (!line->own_scale || plot_fit(&q, line_span(line, from, to, q.log_scale)))
            line_draw(out, area, &q, c->glyphs, line, (3 + 5 * i) % LETTER_EVERY);
    }
    if (labels)
        axes_draw(out, r, area, &p, c, axis);
}

void spark_draw(struct cells *out, struct rect r, const struct series *s, int64_t from, int64_t to, enum chart_glyphs glyphs)
{
    struct series_span all = series_query(s, from, to);
    for (int x = 0; x < r.w && to > from; x++) {
        int64_t a = from + (to - from) * x / r.w, b = MAX(from + (to - from) * (x + 1) / r.w, a + 1);
        struct series_span span = series_query(s, a, b);
        double share = all.max > all.min ? (span.mean - all.min) / (all.max - all.min) : 0.5;
        if (span.n == 0)    // no data must not look like zero
            cells_put(out, r.x + x, r.y, ' ', ROLE_TEXT);
        else if (glyphs == GLYPHS_ASCII)
            cells_put(out, r.x + x, r.y, '0' + (uint32_t)(fmin(fmax(share, 0), 1) * 9 + 0.5), ROLE_CHART);
        else
            cells_put(out, r.x + x, r.y, 0x2581 + (uint32_t)(fmin(fmax(share, 0), 1) * 7 + 0.5), ROLE_CHART);
    }
}

void gauge_draw(struct cells *out, struct rect r, double share, enum chart_glyphs glyphs)
{
    int eighths = isnan(share) ? 0 : (int)(fmin(fmax(share, 0), 1) * r.w * 8 + 0.5);
    for (int x = 0; x < r.w; x++) {
        int here = MIN(MAX(eighths - 8 * x, 0), 8);
        if (glyphs == GLYPHS_ASCII)
            cells_put(out, r.x + x, r.y, here >= 4 ? '#' : '-', here >= 4 ? ROLE_GAUGE : ROLE_GAUGE_REST);
        else if (here == 0)
            cells_put(out, r.x + x, r.y, 0x2500, ROLE_GAUGE_REST);
        else
            cells_put(out, r.x + x, r.y, here == 8 ? 0x2588 : (uint32_t)(0x2590 - here), ROLE_GAUGE);
    }
}
