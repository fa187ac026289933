/* pane_data.c - what the run has learned of its data: prompts by pass rate, never solved, always solved, filtered, in quarantine
 *
 * A histogram of pass rates, a list of prompts, hardest first, and the newest group of the chosen one. Enter shows its groups. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/tui/app.h"
#include "console/tui/text.h"

enum prompt_class {
    CLASS_ALL,
    CLASS_NEVER,
    CLASS_SOMETIMES,
    CLASS_ALWAYS,
    CLASS_FILTERED,
    CLASS_QUARANTINE,
    CLASS_N,
};
static const struct {
    const char *name, *help;
} classes[CLASS_N] = {
    [CLASS_ALL] = { "prompts with groups", "" },
    [CLASS_NEVER] = { "prompts never solved", "no sample of any group was right" },
    [CLASS_SOMETIMES] = { "prompts sometimes solved", "" },
    [CLASS_ALWAYS] = { "prompts always solved", "every sample of every group was right" },
    [CLASS_FILTERED] = { "prompts with a filtered group", "it was left out of training" },
    [CLASS_QUARANTINE] = { "prompts in quarantine", "they are issued no more" },
};
#define BUCKETS 7    // 0, four quarters between, 1, not scored or not counted yet

struct data_pane {
    struct pane pane;    // sel and top: rows of the list
    enum prompt_class shown;
};

/* Share of right answers over all groups; NAN: none is scored. */
static double pass_rate(const struct archive_prompt *p)
{
    return p->n_scored > 0 ? p->solved / (double)p->n_scored : NAN;
}

static bool in_class(const struct archive_prompt *p, enum prompt_class k)
{
    double rate = pass_rate(p);
    switch (k) {
    case CLASS_NEVER: return rate == 0;
    case CLASS_SOMETIMES: return rate > 0 && rate < 1;
    case CLASS_ALWAYS: return rate >= 1;
    case CLASS_FILTERED: return p->n_filtered > 0;
    case CLASS_QUARANTINE: return p->quarantined;
    case CLASS_ALL:
    case CLASS_N: break;
    }
    return true;
}

static const struct archive_prompt *prompts_of(const struct app *a, int64_t *n, int64_t *uncounted)
{
    *n = *uncounted = 0;
    return a->archive ? archive_prompts(a->archive, n, uncounted) : NULL;
}

/* Does it belong to the class that is shown, and pass the filter (a line, or words of it)? */
static bool prompt_shown(const struct data_pane *o, const struct archive_prompt *p)
{
    char text[96];
    if (!in_class(p, o->shown))
        return false;
    if (!o->pane.filter[0])    // there may be very many
        return true;
    snprintf(text, sizeof(text), "line %" PRId64 " row %" PRId64 "%s", p->line, p->row, p->quarantined ? " quarantine" : "");
    return filter_matches(o->pane.filter, text);
}

static int64_t data_rows(const struct pane *pane, const struct app *a)
{
    const struct data_pane *o = (const struct data_pane *)pane;
    int64_t n, uncounted, rows = 0;
    const struct archive_prompt *p = prompts_of(a, &n, &uncounted);
    for (int64_t i = 0; i < n; i++)
        rows += prompt_shown(o, &p[i]);
    return rows;
}

/* The first prompt from the i'th on that is shown, hardest first as the archive sorts them; NULL: there is none. */
static const struct archive_prompt *data_next(const struct data_pane *o, const struct app *a, int64_t i)
{
    int64_t n, uncounted;
    const struct archive_prompt *p = prompts_of(a, &n, &uncounted);
    for (; i < n; i++)
        if (prompt_shown(o, &p[i]))
            return &p[i];
    return NULL;
}

/* That of a row of the list; NULL: there are fewer. */
static const struct archive_prompt *data_row(const struct data_pane *o, const struct app *a, int64_t row)
{
    int64_t n, uncounted;
    const struct archive_prompt *first = prompts_of(a, &n, &uncounted), *p = data_next(o, a, 0);
    while (p && row-- > 0)
        p = data_next(o, a, p - first + 1);
    return p;
}

#define HEAD_H 9    // rows of the histogram with its border

static bool has_head(struct rect body)
{
    return body.h >= 20;
}

static int data_head(struct rect body)
{
    return (has_head(body) ? HEAD_H : 0) + 2;
}

static int data_page(UNUSED const struct app *a, struct rect body)
{
    return MAX(body.h - data_head(body) - 1, 1);
}

/* Bars of the prompts by pass rate. */
static void histogram_draw(const struct app *a, struct cells *c, struct rect r)
{
    static const char *const labels[BUCKETS] = { "0 %", "to 25 %", "to 50 %", "to 75 %", "to 100 %", "100 %", "unknown" };
    int64_t n, uncounted, count[BUCKETS] = { 0 }, most = 1, quarantined = 0, filtered = 0;
    const struct archive_prompt *p = prompts_of(a, &n, &uncounted);
    for (int64_t i = 0; i < n; i++) {
        double rate = pass_rate(&p[i]);
        int k = isnan(rate) ? 6 : rate == 0 ? 0 : rate >= 1 ? 5 : 1 + MIN((int)(rate * 4), 3);
        count[k]++;
        most = MAX(most, count[k]);
        quarantined += p[i].quarantined;
        filtered += p[i].n_filtered > 0;
    }
    char title[320], level[160];
    int len = snprintf(title, sizeof(title), "%" PRId64 " prompts by pass rate; %" PRId64 " filtered, %" PRId64 " in quarantine", n,
                       filtered, quarantined);
    if (uncounted > 0)
        len += snprintf(title + len, sizeof(title) - (size_t)len, "; %" PRId64 " groups to count", uncounted);
    if (level_view_say(&a->model->level, level, sizeof(level))[0])
        snprintf(title + len, sizeof(title) - (size_t)len, "; %s", level);
    struct rect in = cells_box(c, r, title, ROLE_BORDER, ROLE_TITLE);
    for (int k = 0; k < BUCKETS && k < in.h; k++) {
        cells_text_right(c, in.x, in.y + k, 9, labels[k], ROLE_TEXT);
        cells_fmt(c, in.x + 10, in.y + k, 8, ROLE_TEXT, "%7" PRId64, count[k]);
        if (count[k] > 0)
            gauge_draw(c, (struct rect){ in.x + 18, in.y + k, in.w - 19, 1 }, (double)count[k] / (double)most, a->glyphs);
    }
}

/* Has the prompt become easier or harder? By more than a tenth from its first group to its newest. */
static const char *trend_of(const struct archive_prompt *p)
{
    double d = p->last - p->first;
    return p->n_group < 2 || isnan(d) || fabs(d) < 0.1 ? " " : d > 0 ? "\u25b2" : "\u25bc";
}

static void prompts_draw(const struct data_pane *o, const struct app *a, struct cells *c, struct rect r)
{
    int64_t n = data_rows(&o->pane, a), all, uncounted;
    char title[128], rate[16], last[16];
    snprintf(title, sizeof(title), "%s: %" PRId64 "%s%s", classes[o->shown].name, n, classes[o->shown].help[0] ? "; " : "",
             classes[o->shown].help);
    struct rect in = cells_box(c, r, title, ROLE_FOCUS, ROLE_TITLE);
    if (in.h > 0)
        cells_text(c, in.x, in.y, in.w, "    line groups samples  pass  newest", ROLE_TITLE);
    const struct archive_prompt *first = prompts_of(a, &all, &uncounted), *p = data_row(o, a, o->pane.top);
    for (int i = 0; i + 1 < in.h && p; p = data_next(o, a, p - first + 1), i++) {
        int y = in.y + 1 + i;
        double v = pass_rate(p);
        enum role role = isnan(v) ? ROLE_STALE : v == 0 ? ROLE_CRIT : v >= 1 ? ROLE_OK : ROLE_TEXT;
        char place[24];
        snprintf(place, sizeof(place), p->line > 0 ? "%" PRId64 : "row %" PRId64, p->line > 0 ? p->line : p->row);
        int x = in.x + cells_fmt(c, in.x, y, in.w, ROLE_DIM, "%8s %6" PRId64 " %7" PRId64, place, p->n_group, p->n_sample);
        x += cells_fmt(c, x, y, in.x + in.w - x, role, " %5s", value_format(rate, v));
        x += cells_fmt(c, x, y, in.x + in.w - x, ROLE_TEXT, "  %5s %s", value_format(last, p->last), trend_of(p));
        if (p->quarantined)
            x += cells_text(c, x, y, in.x + in.w - x, " quarantine", ROLE_WARN);
        if (p->n_filtered > 0)
            cells_fmt(c, x, y, in.x + in.w - x, ROLE_DIM, " %" PRId64 " filtered", p->n_filtered);
        if (o->pane.top + i == o->pane.sel) {
            cells_select(c, (struct rect){ in.x, y, in.w, 1 });
            c->cursor_x = in.x;
            c->cursor_y = y;
        }
    }
    if (n > 0 || in.h < 2)
        return;
    const char *why = a->archive ? archive_why(a->archive) : "this run has no folder with groups";
    cells_text(c, in.x + 1, in.y + 1, in.w - 2, why[0] ? why : all ? "no prompt is like that" : "no group has been kept yet", ROLE_DIM);
}

/* The newest group of the chosen prompt: its question, the right answer, and the beginning of each sample. */
static void group_draw(const struct data_pane *o, const struct app *a, struct cells *c, struct rect r)
{
    const struct archive_prompt *p = data_row(o, a, o->pane.sel);
    const struct rollout_view *g = p && a->archive ? archive_shown(a->archive) : NULL;
    struct rect in = cells_box(c, r, "newest group of this prompt", ROLE_BORDER, ROLE_TITLE);
    char value[16];
    int y = in.y;
    if (!g || g->item != p->item)
        return;
    for (size_t len = strlen(g->prompt), at = 0, next; at < len && y < in.y + in.h / 2; at += next) {
        size_t n = text_wrap(g->prompt + at, len - at, MAX(in.w - 2, 1), &next);
        cells_textn(c, in.x + 1, y++, in.w - 2, g->prompt + at, n, ROLE_DIM);
    }
    if (g->gold[0] && y < in.y + in.h)
        cells_fmt(c, in.x + 1, y++, in.w - 2, ROLE_FOCUS, "right answer: %s", g->gold);
    for (int i = 0; i < g->n_sample && y < in.y + in.h; i++, y++) {
        const struct sample_view *s = &g->sample[i];
        cells_fmt(c, in.x + 1, y, 6, reward_role(s->reward), "%5s", isnan(s->reward) ? "n/a" : value_format(value, s->reward));
        cells_text(c, in.x + 7, y, in.w - 8, s->text, ROLE_TEXT);
    }
}

static void data_draw(const struct pane *pane, const struct app *a, struct cells *c, struct rect r, UNUSED int64_t now_ns)
{
    const struct data_pane *o = (const struct data_pane *)pane;
    int head = has_head(r) ? HEAD_H : 0, list_w = r.w >= 90 ? r.w / 2 : r.w;
    if (head)
        histogram_draw(a, c, (struct rect){ r.x, r.y, r.w, head });
    prompts_draw(o, a, c, (struct rect){ r.x, r.y + head, list_w, r.h - head });
    if (list_w < r.w)
        group_draw(o, a, c, (struct rect){ r.x + list_w, r.y + head, r.w - list_w, r.h - head });
}

static bool data_act(struct pane *pane, struct app *a, enum request req, int64_t now_ns)
{
    struct data_pane *o = (struct data_pane *)pane;
    const struct archive_prompt *p = data_row(o, a, pane->sel);
    char words[48];
    switch (req) {
    case REQ_CLASS:
        o->shown = (enum prompt_class)((o->shown + 1) % CLASS_N);
        pane->sel = pane->top = 0;
        return true;
    case REQ_ENTER:
        if (!p || p->n_group == 0)
            return true;
        snprintf(words, sizeof(words), p->line > 0 ? "line:%" PRId64 : "item:%" PRId64, p->line > 0 ? p->line : p->item);
        app_show(a, PANE_ROLLOUTS);
        snprintf(app_pane(a)->filter, INPUT_MAX, "%s", words);
        return true;
    case REQ_QUARANTINE:
        if (p)
            quarantine_ask(a, p->line, "", now_ns);
        return true;
    default: return false;
    }
}

int64_t data_wants(const struct app *a)
{
    const struct data_pane *o = (const struct data_pane *)a->pane[PANE_DATA];
    const struct archive_prompt *p = data_row(o, a, o->pane.sel);
    return p ? p->item : -1;
}

const struct pane_type pane_data = {
    .name = "Data",
    .size = sizeof(struct data_pane),
    .draw = data_draw,
    .act = data_act,
    .rows = data_rows,
    .page = data_page,
    .head = data_head,
};
