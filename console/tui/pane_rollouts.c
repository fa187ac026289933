/* pane_rollouts.c - what the model writes: the newest groups, their prompts, every sample's text and reward
 *
 * The list shows the newest first; the text of the selected group is next to it, or alone when opened. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "console/tui/app.h"
#include "console/tui/text.h"

struct rollouts {
    struct pane pane;
    bool open;        // show the text alone, in full
    int64_t group;    // absolute number of the group shown; -1: follow the newest
    int top;          // its first text row drawn
};

static bool group_shown(const struct rollouts *o, const struct rollout_view *g)
{
    const char *filter = o->pane.filter;
    if (!filter[0])
        return true;
    bool found = filter[0] == '!' ? filter_matches(filter, g->prompt) : filter_matches(filter, g->prompt);
    for (int i = 0; i < g->n_sample && (filter[0] == '!' ? found : !found); i++)
        found = filter_matches(filter, g->sample[i].text);
    return found;
}

/* The group in a row of the list; *number: its absolute number. */
static const struct rollout_view *group_row(const struct rollouts *o, const struct app *a, int64_t row, int64_t *number)
{
    const struct rollout_view *g;
    for (int64_t i = 0; (g = model_rollout_at(a->model, i)) != NULL; i++)
        if (group_shown(o, g) && row-- == 0) {
            *number = a->model->n_rollout - 1 - i;
            return g;
        }
    return NULL;
}

static int64_t rollouts_rows(const struct rollouts *o, const struct app *a)
{
    const struct rollout_view *g;
    int64_t n = 0;
    for (int64_t i = 0; (g = model_rollout_at(a->model, i)) != NULL; i++)
        n += group_shown(o, g);
    return n;
}

static int rollouts_page(struct rect body)
{
    return MAX(body.h - 3, 1);
}

/* The row of the group that is shown: a selected group stays selected when new ones come above it. */
static int64_t selected_row(const struct rollouts *o, const struct app *a)
{
    int64_t n = rollouts_rows(o, a), number;
    for (int64_t row = 0; o->group >= 0 && row < n; row++)
        if (group_row(o, a, row, &number) && number <= o->group)
            return row;
    return 0;
}

static enum role reward_role(double reward)
{
    return isnan(reward) ? ROLE_STALE : reward > 0.5 ? ROLE_OK : reward > 0 ? ROLE_WARN : ROLE_CRIT;
}

static double group_mean(const struct rollout_view *g, int *n)
{
    double sum = 0;
    *n = 0;
    for (int i = 0; i < g->n_sample; i++)
        if (!isnan(g->sample[i].reward)) {
            sum += g->sample[i].reward;
            (*n)++;
        }
    return *n ? sum / *n : NAN;
}

/* A row of the list: step, item, mean, then one sign per sample. */
static void row_draw(const struct app *a, struct cells *c, struct rect r, const struct rollout_view *g)
{
    char value[16];
    int n, x = r.x;
    double mean = group_mean(g, &n);
    x += cells_fmt(c, x, r.y, MIN(14, r.w), ROLE_DIM, "%5" PRId64 " %7" PRId64 " ", g->step, g->item);
    x += cells_fmt(c, x, r.y, MIN(6, r.x + r.w - x), reward_role(mean), "%5s ", value_format(value, mean));
    for (int i = 0; i < g->n_sample && x < r.x + r.w; i++, x++) {
        double v = g->sample[i].reward;
        uint32_t sign = isnan(v) ? '?' : v > 0.5 ? 0x25cf : v > 0 ? 0x25d0 : 0x25cb;
        if (a->glyphs == GLYPHS_ASCII)
            sign = isnan(v) ? '?' : v > 0.5 ? '1' : v > 0 ? '+' : '0';
        cells_put(c, x, r.y, sign, reward_role(v));
    }
}

struct text_view {      // counts rows, and draws the visible ones
    struct cells *c;    // NULL: only count
    struct rect r;
    int top;    // first visible row
    int row;    // rows so far
};

static void line_out(struct text_view *v, int indent, const char *text, size_t len, enum role role)
{
    int y = v->row++ - v->top;
    if (v->c && y >= 0 && y < v->r.h)
        cells_textn(v->c, v->r.x + indent, v->r.y + y, v->r.w - indent, text, len, role);
}

static void wrapped_out(struct text_view *v, int indent, const char *text, enum role role)
{
    size_t len = strlen(text), next = 0;
    for (size_t at = 0; at < len; at += next) {
        size_t n = text_wrap(text + at, len - at, MAX(v->r.w - indent, 1), &next);
        line_out(v, indent, text + at, n, role);
    }
}

/* The whole text of a group; returns its rows. first_row[i]: where sample i begins (may be NULL). */
static int group_draw(struct cells *c, struct rect r, const struct rollout_view *g, int top, int *first_row)
{
    struct text_view v = { .c = c, .r = r, .top = top };
    char head[200], value[16];
    wrapped_out(&v, 0, g->prompt, ROLE_DIM);
    for (int i = 0; i < g->n_sample; i++) {
        const struct sample_view *s = &g->sample[i];
        line_out(&v, 0, "", 0, ROLE_TEXT);
        if (first_row)
            first_row[i] = v.row;
        snprintf(head, sizeof(head), "#%d  reward %s  %" PRId64 " tok%s%s%s", i + 1,
                 isnan(s->reward) ? "left out" : value_format(value, s->reward), s->n_tok, s->cut ? ", cut" : "", s->reason[0] ? "  " : "",
                 s->reason);
        line_out(&v, 0, head, strlen(head), reward_role(s->reward));
        wrapped_out(&v, 2, s->text, ROLE_TEXT);
    }
    return v.row;
}

static struct rect text_rect(const struct rollouts *o, struct rect r)
{
    int list_w = o->open || r.w < 60 ? 0 : MIN(MAX(r.w / 3, 30), 46);
    return (struct rect){ r.x + list_w, r.y, r.w - list_w, r.h };
}

static void rollouts_draw(const struct pane *p, const struct app *a, struct cells *c, struct rect r, UNUSED int64_t now_ns)
{
    const struct rollouts *o = (const struct rollouts *)p;
    struct rect text = text_rect(o, r), list = { r.x, r.y, text.x > r.x ? text.x - r.x : r.w, r.h };
    int64_t number = 0, sel = selected_row(o, a);
    const struct rollout_view *g = group_row(o, a, sel, &number);
    bool show_list = !o->open, show_text = o->open || r.w >= 60;
    if (show_list) {
        struct rect in = cells_box(c, list, o->group < 0 ? "newest groups, following" : "newest groups", ROLE_FOCUS, ROLE_TITLE);
        if (in.h > 0)
            cells_text(c, in.x, in.y, in.w, " step    item  mean samples", ROLE_TITLE);
        int page = rollouts_page(r);
        int64_t n = rollouts_rows(o, a), top = list_top(0, sel, n, page), unused;
        for (int i = 0; i < page && i + 1 < in.h; i++) {
            const struct rollout_view *row = group_row(o, a, top + i, &unused);
            if (!row)
                break;
            row_draw(a, c, (struct rect){ in.x, in.y + 1 + i, in.w, 1 }, row);
            if (top + i == sel) {
                cells_select(c, (struct rect){ in.x, in.y + 1 + i, in.w, 1 });
                c->cursor_x = in.x;
                c->cursor_y = in.y + 1 + i;
            }
        }
        if (n == 0 && in.h > 1)
            cells_text(c, in.x + 1, in.y + 1, in.w - 2, a->model->n_rollout ? "none contains the filter's text" : "none yet", ROLE_DIM);
    }
    if (!show_text)
        return;
    char title[96];
    if (g)
        snprintf(title, sizeof(title), "item %" PRId64 ", step %" PRId64 ": %d samples", g->item, g->step, g->n_sample);
    else
        snprintf(title, sizeof(title), "text");
    struct rect in = cells_box(c, text, title, o->open ? ROLE_FOCUS : ROLE_BORDER, ROLE_TITLE);
    struct rect inner = { in.x + 1, in.y, in.w - 2, in.h };
    if (!g || inner.w < 1 || inner.h < 1)
        return;
    int rows = group_draw(c, inner, g, o->top, NULL);
    if (rows > inner.h && text.w > 24) {
        char at[32];
        snprintf(at, sizeof(at), " %d%% PgDn ", (int)(100.0 * MIN(o->top + inner.h, rows) / rows));
        cells_text_right(c, text.x + 2, text.y + text.h - 1, text.w - 4, at, ROLE_DIM);
    }
}

static bool rollouts_act(struct pane *p, struct app *a, enum request req, int64_t now_ns)
{
    struct rollouts *o = (struct rollouts *)p;
    struct rect text = text_rect(o, app_body(a));
    int64_t number = 0, sel = selected_row(o, a), n = rollouts_rows(o, a);
    const struct rollout_view *g = group_row(o, a, sel, &number);
    int rows = g ? group_draw(NULL, (struct rect){ 0, 0, text.w - 4, 0 }, g, 0, NULL) : 0;
    int page = MAX(text.h - 2, 1), last = MAX(rows - page, 0), first_row[MODEL_SAMPLES];
    int64_t next = -2;
    switch (req) {
    case REQ_UP:
    case REQ_DOWN:
        if (o->open)
            o->top += req == REQ_UP ? -1 : 1;
        else
            next = sel + (req == REQ_UP ? -1 : 1);
        break;
    case REQ_PAGE_UP: o->top -= page; break;
    case REQ_PAGE_DOWN: o->top += page; break;
    case REQ_TOP:
        if (o->open)
            o->top = 0;
        else
            next = 0;
        break;
    case REQ_BOTTOM:
        if (o->open)
            o->top = last;
        else
            next = n - 1;
        break;
    case REQ_LEFT:
    case REQ_RIGHT: next = sel + (req == REQ_LEFT ? -1 : 1); break;
    case REQ_FOLLOW: o->group = o->group < 0 ? number : -1; return true;
    case REQ_ENTER:
        o->open = !o->open;
        o->group = number;    // the text being read stays
        return true;
    case REQ_MATCH_NEXT:
    case REQ_MATCH_PREV:
        if (!g)
            return true;
        group_draw(NULL, (struct rect){ 0, 0, text.w - 4, 0 }, g, 0, first_row);
        int to = req == REQ_MATCH_NEXT ? o->top : 0;
        for (int i = 0; i < g->n_sample; i++) {
            if (req == REQ_MATCH_NEXT && first_row[i] > o->top) {
                to = first_row[i];
                break;
            }
            if (req == REQ_MATCH_PREV && first_row[i] < o->top)
                to = first_row[i];
        }
        o->top = to;
        break;
    case REQ_QUARANTINE: {
        char line[160], command[INPUT_MAX];
        if (!g)
            return true;
        if (g->line < 0) {
            app_flash(a, ROLE_WARN, now_ns, "it is not known which line of the dataset this prompt is");
            return true;
        }
        snprintf(line, sizeof(line), "Line %" PRId64 " of the dataset is not issued any more in this run:", g->line);
        snprintf(command, sizeof(command), "quarantine %" PRId64, g->line);
        app_confirm(a, true, "Quarantine this prompt?", line, g->prompt, command);
        return true;
    }
    default: return false;
    }
    if (next >= -1 && n > 0) {
        next = MAX(MIN(next, n - 1), 0);
        o->top = 0;
        if (group_row(o, a, next, &number))
            o->group = next == 0 && req == REQ_TOP ? -1 : number;
    }
    o->top = MAX(MIN(o->top, last), 0);
    return true;
}

static bool rollouts_close(struct pane *p)
{
    struct rollouts *o = (struct rollouts *)p;
    bool was_open = o->open;
    o->open = false;
    return was_open;
}

static void rollouts_init(struct pane *p)
{
    ((struct rollouts *)p)->group = -1;
}

const struct pane_type pane_rollouts = {
    .name = "Rollouts",
    .size = sizeof(struct rollouts),
    .init = rollouts_init,
    .draw = rollouts_draw,
    .act = rollouts_act,
    .close = rollouts_close,
};
