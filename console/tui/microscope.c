#include "console/tui/microscope.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "console/fleet/rollout_filter.h"
#include "console/tui/app.h"
#include "console/tui/text.h"

struct text_view {      // counts rows, and draws the visible ones
    struct cells *c;    // NULL: only count
    struct rect r;
    int top;          // first visible row
    int row;          // rows so far
    int token_row;    // where the token under the cursor is; -1: not met yet
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

/* How a token looks: likely ones plain, unlikely ones underlined, very unlikely ones reversed, whatever colours there are. */
static enum role token_role(const struct sample_view *s, enum paint paint, int64_t t, unsigned *attr)
{
    *attr = 0;
    if (s->mask && !s->mask[t]) {
        *attr = ATTR_DIM;
        return ROLE_DIM;    // an environment said it
    }
    if (paint == PAINT_VERSION) {
        int32_t newer = s->newer ? s->newer[t] : 0;
        *attr = newer % 2 ? ATTR_UNDERLINE : 0;
        return newer <= 0 ? ROLE_TEXT : (enum role)(ROLE_SERIES1 + (newer - 1) % 8);
    }
    if (paint == PAINT_ENTROPY) {
        double nat = s->entropy ? (double)s->entropy[t] : 0;
        *attr = nat < 0.1 ? ATTR_DIM : nat < 0.5 ? 0 : nat < 1.5 ? ATTR_UNDERLINE : ATTR_REVERSE;
        return nat < 0.1 ? ROLE_DIM : nat < 0.5 ? ROLE_TEXT : nat < 1.5 ? ROLE_WARN : ROLE_CRIT;
    }
    double p = s->logp ? exp((double)s->logp[t]) : 1;
    *attr = p < 0.1 ? ATTR_REVERSE : p < 0.5 ? ATTR_UNDERLINE : 0;
    return p < 0.1 ? ROLE_CRIT : p < 0.5 ? ROLE_WARN : ROLE_TEXT;
}

/* A wrapped text, token by token. cursor: the token under the cursor; -1: none of this sample. */
static void painted_out(struct text_view *v, int indent, const struct sample_view *s, enum paint paint, int64_t cursor)
{
    size_t len = strlen(s->text), next = 0, token_end = s->n_tok > 0 ? s->piece[0] : 0;
    int64_t t = 0;
    for (size_t at = 0; at < len; at += next) {
        size_t n = text_wrap(s->text + at, len - at, MAX(v->r.w - indent, 1), &next);
        int y = v->row++ - v->top, x = v->r.x + indent;
        for (size_t from = at; from < at + next;) {    // up to the next line, so that a token of its end is met too
            while (t + 1 < s->n_tok && token_end <= from)
                token_end += s->piece[++t];
            size_t to = MIN(t + 1 < s->n_tok ? token_end : len, at + next), seen = MIN(to, at + n);
            if (t == cursor && v->token_row < 0)
                v->token_row = v->row - 1;
            if (v->c && y >= 0 && y < v->r.h && seen > from) {
                unsigned attr;
                enum role role = token_role(s, paint, t, &attr);
                int w = cells_textn(v->c, x, v->r.y + y, v->r.x + v->r.w - x, s->text + from, seen - from, role);
                struct rect r = { x, v->r.y + y, w, 1 };
                cells_attr(v->c, r, t == cursor ? attr | ATTR_BOLD : attr);
                if (t == cursor) {
                    cells_select(v->c, r);
                    v->c->cursor_x = x;
                    v->c->cursor_y = r.y;
                }
                x += w;
            }
            from = MAX(to, from + 1);
        }
    }
}

bool microscope_has_tokens(const struct sample_view *s, enum paint paint)
{
    return s->n_tok > 0 && s->piece && (paint != PAINT_LOGP || s->logp) && (paint != PAINT_ENTROPY || s->entropy);
}

/* "#2* reward 1 (0.8 + 0.2)  advantage +0.71  34 tok, cut  boxed: equal"; the star: it is what the filter looks for. */
static void sample_head(const struct microscope *o, const struct rollout_view *g, int i, char *out, size_t size)
{
    const struct sample_view *s = &g->sample[i];
    struct rollout_filter filter;
    char value[16];
    rollout_filter_parse(&filter, o->filter);
    bool found = o->filter[0] && rollout_filter_sample(&filter, g, i);
    int n = snprintf(out, size, "#%d%s  reward %s", i + 1, found ? "*" : "",
                     isnan(s->reward) ? "left out" : value_format(value, s->reward));
    int n_part = 0;
    for (int k = 0; k < GROUP_PARTS_MAX; k++)
        if (!isnan(s->part[k]) && n < (int)size)
            n += snprintf(out + n, size - (size_t)n, "%s%s", n_part++ ? " + " : " (", value_format(value, s->part[k]));
    if (n < (int)size)
        n += snprintf(out + n, size - (size_t)n, "%s", n_part ? ")" : "");
    if (!isnan(s->adv) && n < (int)size)
        n += snprintf(out + n, size - (size_t)n, "  advantage %s%s", s->adv > 0 ? "+" : "", value_format(value, s->adv));
    if (n < (int)size)
        snprintf(out + n, size - (size_t)n, "  %" PRId64 " tok%s%s%s", s->n_tok, s->cut ? ", cut" : "", s->reason[0] ? "  " : "",
                 s->reason);
}

static void sample_draw(const struct microscope *o, struct text_view *v, const struct rollout_view *g, int i, int indent)
{
    const struct sample_view *s = &g->sample[i];
    char head[320];
    sample_head(o, g, i, head, sizeof(head));
    wrapped_out(v, 0, head, reward_role(s->reward));
    if (o->paint != PAINT_NONE && microscope_has_tokens(s, o->paint))
        painted_out(v, indent, s, o->paint, i == o->sample ? o->token : -1);
    else
        wrapped_out(v, indent, s->text, ROLE_TEXT);
}

static void gold_out(struct text_view *v, const struct rollout_view *g)
{
    char line[160];
    snprintf(line, sizeof(line), "right answer: %s", g->gold);
    if (g->gold[0])
        wrapped_out(v, 0, line, ROLE_FOCUS);
}

/* The whole text of a group; returns its rows. first_row[i]: where sample i begins; token_row: where the token under the cursor is.
 * Both may be NULL. */
static int group_draw(const struct microscope *o, struct cells *c, struct rect r, const struct rollout_view *g, int *first_row,
                      int *token_row)
{
    struct text_view v = { .c = c, .r = r, .top = o->top, .token_row = -1 };
    wrapped_out(&v, 0, g->prompt, ROLE_DIM);
    gold_out(&v, g);
    for (int i = 0; i < g->n_sample; i++) {
        line_out(&v, 0, "", 0, ROLE_TEXT);
        if (first_row)
            first_row[i] = v.row;
        sample_draw(o, &v, g, i, 2);
    }
    if (token_row)
        *token_row = v.token_row;
    return v.row;
}

#define BESIDE_W 34    // least columns of a sample that stands beside others

/* Samples side by side, from the chosen one on; returns the rows of the longest. */
static int beside_draw(const struct microscope *o, struct cells *c, struct rect r, const struct rollout_view *g)
{
    int n = MAX(MIN(r.w / BESIDE_W, g->n_sample), 1), first = MAX(MIN(o->sample, g->n_sample - n), 0), rows = 0;
    struct text_view head = { .c = c, .r = { r.x, r.y, r.w, MIN(2, r.h) } };
    wrapped_out(&head, 0, g->prompt, ROLE_DIM);
    struct text_view gold = { .c = c, .r = { r.x, r.y + MIN(head.row, 2), r.w, 1 } };
    gold_out(&gold, g);
    int y = r.y + MIN(head.row, 2) + gold.row;
    for (int k = 0; k < n && first + k < g->n_sample; k++) {
        int x = r.x + r.w * k / n, w = r.x + r.w * (k + 1) / n - x - (k + 1 < n ? 2 : 0);
        struct text_view v = { .c = c, .r = { x, y, w, MAX(r.y + r.h - y, 0) }, .top = o->top, .token_row = -1 };
        sample_draw(o, &v, g, first + k, 0);
        for (int line = y; c && k + 1 < n && line < r.y + r.h; line++)
            cells_put(c, x + w, line, 0x2502, ROLE_BORDER);
        rows = MAX(rows, v.row + y - r.y);
    }
    return rows;
}

/* The number of the token under the cursor, in the last row of the text. */
void microscope_token_draw(const struct microscope *o, struct cells *c, struct rect r, const struct rollout_view *g)
{
    const struct sample_view *s = o->sample < g->n_sample ? &g->sample[o->sample] : NULL;
    char text[64] = "";
    cells_fill(c, r, ' ', ROLE_TEXT);
    if (!s || !microscope_has_tokens(s, o->paint)) {
        cells_text(c, r.x, r.y, r.w, "this group was kept without the texts of its tokens", ROLE_WARN);
        return;
    }
    int64_t t = MIN(o->token, s->n_tok - 1);
    size_t at = 0, len = strlen(s->text);
    for (int64_t i = 0; i < t; i++)
        at += s->piece[i];
    if (at < len)
        snprintf(text, sizeof(text), " '%.*s'", (int)MIN(MIN((size_t)s->piece[t], len - at), (size_t)40), s->text + at);
    bool wide = r.w >= 90;
    int x = r.x
            + cells_fmt(c, r.x, r.y, r.w, ROLE_FOCUS, "#%d %s%" PRId64 "/%" PRId64 "%s", o->sample + 1, wide ? "token " : "", t + 1,
                        s->n_tok, text);
    if (s->logp && !(s->mask && !s->mask[t]))
        x += cells_fmt(c, x, r.y, r.x + r.w - x, ROLE_FOCUS, "  log-prob %.3f (%.3g %%)", (double)s->logp[t],
                       100 * exp((double)s->logp[t]));
    if (s->entropy && !(s->mask && !s->mask[t]))
        x += cells_fmt(c, x, r.y, r.x + r.w - x, ROLE_FOCUS, "  entropy %.3f", (double)s->entropy[t]);
    if (g->version >= 0)
        x += cells_fmt(c, x, r.y, r.x + r.w - x, ROLE_FOCUS, "  weights %s%" PRId64, wide ? "of step " : "",
                       g->version + (s->newer ? s->newer[t] : 0));
    static const char *const scale[PAINT_N] = { [PAINT_LOGP] = "   (underlined: below 50 %, reversed: below 10 %)",
                                                [PAINT_ENTROPY] = "   (dim: below 0.1 nat, underlined: from 0.5, reversed: from 1.5)",
                                                [PAINT_VERSION] = "   (underlined: an odd number of steps newer)" };
    if (wide && scale[o->paint])
        cells_text(c, x, r.y, r.x + r.w - x, scale[o->paint], ROLE_DIM);
}

int microscope_draw(const struct microscope *o, struct cells *c, struct rect r, const struct rollout_view *g)
{
    return o->beside ? beside_draw(o, c, r, g) : group_draw(o, c, r, g, NULL, NULL);
}

/* Scroll so that the token under the cursor is in sight. */
static void token_follow(struct microscope *o, struct rect r, const struct rollout_view *g)
{
    int row = -1;
    if (o->beside)
        return;
    group_draw(o, NULL, r, g, NULL, &row);
    if (row >= 0 && row < o->top)
        o->top = row;
    if (row >= 0 && row >= o->top + r.h)
        o->top = row - r.h + 1;
}

/* Choose the next sample, or the one before. */
void microscope_sample_go(struct microscope *o, struct rect r, const struct rollout_view *g, bool forward)
{
    int first_row[ROLLOUT_SAMPLES] = { 0 };
    int next = o->sample + (forward ? 1 : -1);
    if (!o->beside && o->paint == PAINT_NONE) {    // by what is at the top of the text
        group_draw(o, NULL, r, g, first_row, NULL);
        next = 0;
        while (next < g->n_sample && (forward ? first_row[next] <= o->top : first_row[next] < o->top))
            next++;
        next -= !forward;
    }
    if (next < 0)
        o->top = 0;
    o->sample = MAX(MIN(next, g->n_sample - 1), 0);
    o->token = 0;
    if (o->beside)
        return;
    group_draw(o, NULL, r, g, first_row, NULL);
    if (next >= 0)
        o->top = first_row[o->sample];
}

/* Move the cursor among the tokens of the group. */
void microscope_token_go(struct microscope *o, struct rect r, const struct rollout_view *g, bool forward)
{
    o->token += forward ? 1 : -1;
    if (o->token >= g->sample[o->sample].n_tok && o->sample + 1 < g->n_sample) {
        o->sample++;
        o->token = 0;
    } else if (o->token < 0 && o->sample > 0) {
        o->sample--;
        o->token = g->sample[o->sample].n_tok - 1;
    }
    o->token = MAX(MIN(o->token, g->sample[o->sample].n_tok - 1), (int64_t)0);
    token_follow(o, r, g);
}
