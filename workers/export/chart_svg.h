/* chart_svg.h - one line chart as SVG, for pages and files that people look at without a console
 *
 * A chart costs the same for 100,000 steps as for 100 (series.h): where there are more steps than columns, a band shows the smallest
 * and largest value of each column and a line their mean, so no spike is lost. Every chart has a title and a description in words, for
 * readers of screens. Nothing here locks. */
#pragma once
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/record/series.h"

#define CHART_SVG_LINES 4
#define CHART_SVG_WIDTH 460
#define CHART_SVG_HEIGHT 200

struct chart_svg {
    const char *title, *unit;    // UTF-8 of any kind; unit "": none
    struct {
        const char *label;
        const struct series *series;    // borrowed
    } line[CHART_SVG_LINES];
    int n_line;
    bool dots;                // each known value is a dot: values far apart, such as evaluations
    int64_t first, n_step;    // the steps first..first+n_step-1 are shown
    const int64_t *mark;      // (n_mark) steps with a vertical line: what an operator changed, and where the run went back
    int n_mark;
    int y;    // of its top edge in a picture of several
};
/* Append an element <svg> that takes its colours from classes (chart_svg_style). id: a word that no other chart of the page has. */
void chart_svg_print(struct buf *out, const struct chart_svg *c, const char *id);
/* The rules of CSS that the charts' classes need, for light and dark screens. */
const char *chart_svg_style(void);
/* Append text with &, <, >, " and ' escaped; bytes that XML forbids, or that are no UTF-8, become U+FFFD. */
void xml_text(struct buf *out, const char *text, size_t len);
/* A number as people read it: 4 digits, with k, M or G above 10,000; "–" when it is not known. Returns out. */
const char *figure_text(double v, char out[32]);
