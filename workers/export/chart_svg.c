#include "workers/export/chart_svg.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/utf8.h"

#define LEFT 56    // for the numbers of the y axis
#define RIGHT 10
#define TOP 30       // for the title
#define BOTTOM 24    // for the steps
#define PLOT_W (CHART_SVG_WIDTH - LEFT - RIGHT)
#define PLOT_H (CHART_SVG_HEIGHT - TOP - BOTTOM)
#define TICKS 4    // as many as fit without their numbers meeting

/* What the chart shows: its steps as columns, its values as a range. */
struct frame {
    int64_t first, n;
    int n_column;
    double low, high;
};

void xml_text(struct buf *out, const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        int n = utf8_look((const uint8_t *)text + i, len - i);
        unsigned char c = (unsigned char)text[i];
        size_t take = n > 0 ? (size_t)n : n < 0 ? (size_t)-n : len - i;
        bool forbidden = n <= 0 || (c < 32 && c != '\n' && c != '\t') || c == 127
                         || (n == 3 && memcmp(text + i, "\xef\xbf\xbe", 3) >= 0 && memcmp(text + i, "\xef\xbf\xbf", 3) <= 0);
        const char *entity = c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '"' ? "&quot;" : c == '\'' ? "&#39;" : NULL;
        if (forbidden)
            buf_str(out, "\xef\xbf\xbd");
        else if (entity)
            buf_str(out, entity);
        else
            buf_add(out, text + i, take);
        i += take;
    }
}

static void xml_str(struct buf *out, const char *text)
{
    xml_text(out, text, strlen(text));
}

const char *figure_text(double v, char out[32])
{
    double size = fabs(v);
    if (!isfinite(v))
        snprintf(out, 32, "–");
    else if (size >= 1e13 || (size > 0 && size < 1e-4))
        snprintf(out, 32, "%.3g", v);
    else if (size >= 1e9)
        snprintf(out, 32, "%.4gG", v / 1e9);
    else if (size >= 1e6)
        snprintf(out, 32, "%.4gM", v / 1e6);
    else if (size >= 1e4)
        snprintf(out, 32, "%.4gk", v / 1e3);
    else
        snprintf(out, 32, "%.4g", v);
    return out;
}

const char *chart_svg_style(void)
{
    return ".chart{font:11px system-ui,sans-serif;fill:#333}.chart .t{font-weight:600;font-size:12px}.chart .g{stroke:#ddd}"
           ".chart .m{stroke:#999;stroke-dasharray:2 3}.chart path{fill:none;stroke-width:1.6;stroke-linejoin:round}"
           ".chart .b{stroke:none;fill-opacity:.18}.l0{stroke:#1f6fb4}.l1{stroke:#c2571a}.l2{stroke:#2b8a4b}.l3{stroke:#8a3fb0}"
           ".f0{fill:#1f6fb4!important}.f1{fill:#c2571a!important}.f2{fill:#2b8a4b!important}.f3{fill:#8a3fb0!important}"
           "@media(prefers-color-scheme:dark){.chart{fill:#ccc}.chart .g{stroke:#3a3a3a}.chart .m{stroke:#777}.l0{stroke:#6cb0ee}"
           ".l1{stroke:#f0945a}.l2{stroke:#6fce8f}.l3{stroke:#c98be6}.f0{fill:#6cb0ee!important}.f1{fill:#f0945a!important}"
           ".f2{fill:#6fce8f!important}.f3{fill:#c98be6!important}}";
}

/* ---- places */
static double x_of(const struct frame *f, double column)
{
    return LEFT + (f->n_column > 1 ? column / (f->n_column - 1) : 0.5) * PLOT_W;
}

static double y_of(const struct frame *f, double v)
{
    return TOP + (f->high - v) / (f->high - f->low) * PLOT_H;
}

static double x_of_step(const struct frame *f, int64_t step)
{
    return x_of(f, f->n > 1 ? (double)(step - f->first) * (f->n_column - 1) / (double)(f->n - 1) : 0);
}

/* What the steps of a column hold, from the least to the largest value. */
static struct series_span column_span(const struct frame *f, const struct series *s, int column)
{
    return series_query(s, f->first + f->n * column / f->n_column, f->first + f->n * (column + 1) / f->n_column);
}

static struct frame frame_of(const struct chart_svg *c)
{
    struct frame f = { c->first, MAX(c->n_step, (int64_t)1), 0, INFINITY, -INFINITY };
    f.n_column = (int)MIN(f.n, (int64_t)PLOT_W);
    for (int i = 0; i < c->n_line; i++) {
        struct series_span span = series_query(c->line[i].series, f.first, f.first + f.n);
        if (span.n > 0) {
            f.low = MIN(f.low, span.min);
            f.high = MAX(f.high, span.max);
        }
    }
    if (f.low > f.high) {
        f.low = 0;
        f.high = 1;
    }
    double room = f.high > f.low ? 0.05 * (f.high - f.low) : f.low != 0 ? 0.1 * fabs(f.low) : 1;
    bool floor_0 = f.low >= 0 && f.low - room < 0;    // a share or a length is not drawn as if it could be below 0
    f.low = floor_0 ? 0 : f.low - room;
    f.high += room;
    return f;
}

/* ---- parts */
/* The largest of 1, 2 and 5 times a power of 10 that gives at most n parts of span. */
static double tick_size(double span, int n)
{
    double power = pow(10, floor(log10(span / n)));
    for (int i = 0; i < 3; i++)
        if (power * (double[]){ 1, 2, 5 }[i] * n >= span)
            return power * (double[]){ 1, 2, 5 }[i];
    return power * 10;
}

static void axes_print(struct buf *out, const struct frame *f)
{
    char text[32];
    double size = tick_size(f->high - f->low, TICKS);
    for (double k = ceil(f->low / size); k * size <= f->high && k < ceil(f->low / size) + 2 * TICKS; k++) {
        double y = y_of(f, k * size);
        buf_fmt(out, "<path class=\"g\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>", LEFT, y,
                CHART_SVG_WIDTH - RIGHT, LEFT - 5, y + 4, figure_text(fabs(k * size) < size / 1e6 ? 0 : k * size, text));
    }
    size = MAX(1, tick_size((double)f->n, TICKS));
    for (double at = ceil((double)f->first / size) * size; at <= (double)(f->first + f->n - 1); at += size)
        buf_fmt(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f</text>", x_of_step(f, (int64_t)at), CHART_SVG_HEIGHT - 8, at);
}

static void marks_print(struct buf *out, const struct chart_svg *c, const struct frame *f)
{
    for (int i = 0; i < c->n_mark; i++)
        if (c->mark[i] >= f->first && c->mark[i] < f->first + f->n)
            buf_fmt(out, "<path class=\"m\" d=\"M%.1f %dV%d\"/>", x_of_step(f, c->mark[i]), TOP, TOP + PLOT_H);
}

/* The smallest and largest values of each column, as one area for each run of columns that have any. */
static void band_print(struct buf *out, const struct chart_svg *c, const struct frame *f, int line)
{
    buf_fmt(out, "<path class=\"b f%d\" d=\"", line);
    for (int from = 0; from < f->n_column; from++) {
        int to = from;
        while (to < f->n_column && column_span(f, c->line[line].series, to).n > 0)
            to++;
        for (int k = from; k < to; k++)
            buf_fmt(out, "%c%.1f %.1f", k == from ? 'M' : 'L', x_of(f, k), y_of(f, column_span(f, c->line[line].series, k).max));
        for (int k = to - 1; k >= from; k--)
            buf_fmt(out, "L%.1f %.1f", x_of(f, k), y_of(f, column_span(f, c->line[line].series, k).min));
        if (to > from)
            buf_char(out, 'Z');
        from = to;
    }
    buf_str(out, "\"/>");
}

static void dots_print(struct buf *out, const struct chart_svg *c, const struct frame *f, int line)
{
    for (int k = 0; k < f->n_column; k++) {
        struct series_span span = column_span(f, c->line[line].series, k);
        if (span.n > 0)
            buf_fmt(out, "<circle class=\"f%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\"/>", line, x_of(f, k), y_of(f, span.mean));
    }
}

/* The means of the columns; steps without a value between two of them are a gap, unless the chart's values are far apart anyway. */
static void line_print(struct buf *out, const struct chart_svg *c, const struct frame *f, int line)
{
    bool joined = false;
    buf_fmt(out, "<path class=\"l%d\" d=\"", line);
    for (int k = 0; k < f->n_column; k++) {
        struct series_span span = column_span(f, c->line[line].series, k);
        if (span.n > 0)
            buf_fmt(out, "%c%.1f %.1f", joined ? 'L' : 'M', x_of(f, k), y_of(f, span.mean));
        joined = span.n > 0 || (joined && c->dots);
    }
    buf_str(out, "\"/>");
}

/* A line in words: where it begins, ends, and goes between. */
static void line_describe(struct buf *out, const struct chart_svg *c, int line)
{
    const struct series *s = c->line[line].series;
    struct series_span span = series_query(s, c->first, c->first + c->n_step);
    int64_t first = c->first, last = c->first + c->n_step - 1;
    char a[32], b[32], low[32], high[32];
    xml_str(out, c->line[line].label);
    if (span.n == 0) {
        buf_str(out, ": no value. ");
        return;
    }
    while (isnan(series_at(s, first)))
        first++;
    while (isnan(series_at(s, last)))
        last--;
    buf_fmt(out, ": %s at step %" PRId64 ", %s at step %" PRId64 ", between %s and %s. ", figure_text(series_at(s, first), a), first,
            figure_text(series_at(s, last), b), last, figure_text(span.min, low), figure_text(span.max, high));
}

static void heading_print(struct buf *out, const struct chart_svg *c)
{
    int x = LEFT;
    buf_fmt(out, "<text class=\"t\" x=\"%d\" y=\"16\">", x);
    xml_str(out, c->title);
    if (c->unit[0]) {
        buf_str(out, " (");
        xml_str(out, c->unit);
        buf_char(out, ')');
    }
    buf_str(out, "</text>");
    if (c->n_line < 2)
        return;
    buf_fmt(out, "<text x=\"%d\" y=\"16\" text-anchor=\"end\">", CHART_SVG_WIDTH - RIGHT);
    for (int i = 0; i < c->n_line; i++) {
        buf_fmt(out, "<tspan class=\"f%d\">%s● ", i, i ? "  " : "");
        xml_str(out, c->line[i].label);
        buf_str(out, "</tspan>");
    }
    buf_str(out, "</text>");
}

void chart_svg_print(struct buf *out, const struct chart_svg *c, const char *id)
{
    struct frame f = frame_of(c);
    buf_fmt(
        out,
        "<svg class=\"chart\" xmlns=\"http://www.w3.org/2000/svg\" y=\"%d\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\" "
        "aria-labelledby=\"%s-t %s-d\"><title id=\"%s-t\">",
        c->y, CHART_SVG_WIDTH, CHART_SVG_HEIGHT, CHART_SVG_WIDTH, CHART_SVG_HEIGHT, id, id, id);
    xml_str(out, c->title);
    buf_fmt(out, "</title><desc id=\"%s-d\">", id);
    for (int i = 0; i < c->n_line; i++)
        line_describe(out, c, i);
    buf_str(out, "</desc>");
    heading_print(out, c);
    axes_print(out, &f);
    marks_print(out, c, &f);
    for (int i = 0; i < c->n_line; i++) {
        if (f.n > f.n_column)
            band_print(out, c, &f, i);
        line_print(out, c, &f, i);
        if (c->dots)
            dots_print(out, c, &f, i);
    }
    buf_str(out, "</svg>\n");
}
