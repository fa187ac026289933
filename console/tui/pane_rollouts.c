/* pane_rollouts.c - what the model writes: groups, their prompts, every sample's text, reward and tokens
 *
 * The list shows the newest first: all groups that the run has kept (archive.h), or where these cannot be read the newest that were
 * heard of. The text of the selected group is next to it, or alone when opened. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "console/fleet/rollout_filter.h"
#include "console/tui/app.h"
#include "console/tui/microscope.h"

struct rollouts {
    struct pane pane;
    bool open;        // show the text alone, in full
    int64_t group;    // that is shown: its item in the archive, or else its absolute number; -1: follow the newest
    int64_t top;      // the row that was drawn first when a key or a click came
    struct microscope text;
};

/* ---- the list: of all groups that were kept, or of the newest that were heard of ---- */

static bool has_archive(const struct app *a)
{
    int64_t tried, all = 0;
    if (a->archive)
        archive_tried(a->archive, &tried, &all);
    return all > 0;
}

/* The heard group in a row of the list; *number: its absolute number. */
static const struct rollout_view *heard_row(const struct rollouts *o, const struct app *a, int64_t row, int64_t *number)
{
    struct rollout_filter filter;
    const struct rollout_view *g;
    rollout_filter_parse(&filter, o->pane.filter);
    for (int64_t i = 0; (g = view_rollout_at(a->model, i)) != NULL; i++)
        if (rollout_filter_passes(&filter, g) && row-- == 0) {
            *number = a->model->n_rollout - 1 - i;
            return g;
        }
    return NULL;
}

static int64_t rollouts_rows(const struct rollouts *o, const struct app *a)
{
    int64_t n = 0, unused;
    if (has_archive(a))
        return archive_rows(a->archive);
    while (heard_row(o, a, n, &unused))
        n++;
    return n;
}

/* What identifies the group in a row; -1: there is none. */
static int64_t row_number(const struct rollouts *o, const struct app *a, int64_t row)
{
    int64_t number = -1;
    if (has_archive(a)) {
        const struct archive_group *g = archive_row(a->archive, row);
        return g ? g->item : -1;
    }
    heard_row(o, a, row, &number);
    return number;
}

static int rollouts_page(struct rect body)
{
    return MAX(body.h - 3, 1);
}

/* The row of the group that is shown: a selected group stays selected when new ones come above it. */
static int64_t selected_row(const struct rollouts *o, const struct app *a)
{
    int64_t n = rollouts_rows(o, a);
    if (o->group >= 0 && has_archive(a))
        return MAX(MIN(archive_find(a->archive, o->group), n - 1), 0);
    for (int64_t row = 0; o->group >= 0 && row < n; row++)
        if (row_number(o, a, row) <= o->group)
            return row;
    return has_archive(a) ? MIN(archive_back(a->archive), MAX(n - 1, (int64_t)0)) : 0;
}

/* The row of the list that is drawn first in a body, with row sel selected. */
static int64_t first_row(const struct rollouts *o, const struct app *a, struct rect body, int64_t sel)
{
    int64_t n = rollouts_rows(o, a);
    int page = rollouts_page(body);
    if (o->group < 0)    // there may be many that are not back, above the newest that is
        return MAX(MIN(sel - page / 3, n - page), (int64_t)0);
    return list_top(o->top, sel, n, page);
}

/* The item in a row that is not back yet; -1: it is back, or there is none. */
static int64_t row_out(const struct app *a, int64_t row)
{
    const struct archive_group *k = has_archive(a) ? archive_row(a->archive, row) : NULL;
    return k && k->offset < 0 ? k->item : -1;
}

/* The text of the group in a row; NULL: there is none, or it is still being read. */
static const struct rollout_view *row_text(const struct rollouts *o, const struct app *a, int64_t row)
{
    int64_t number;
    if (!has_archive(a))
        return heard_row(o, a, row, &number);
    const struct rollout_view *g = archive_shown(a->archive);
    return g && g->item == row_number(o, a, row) ? g : NULL;
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

/* One sign per sample, and what became of the group. */
static void signs_draw(const struct app *a, struct cells *c, struct rect r, const char *sign, int n, const char *fate)
{
    int x = r.x, end = r.x + r.w;
    for (int i = 0; i < n && sign[i] && x < end; i++, x++) {
        static const char kinds[] = "1+0?";
        static const uint32_t shape[] = { 0x25cf, 0x25d0, 0x25cb, '?' };
        static const enum role role[] = { ROLE_OK, ROLE_WARN, ROLE_CRIT, ROLE_STALE };
        size_t kind = (size_t)(strchr(kinds, sign[i]) - kinds);
        cells_put(c, x, r.y, a->glyphs == GLYPHS_ASCII ? (uint32_t)(unsigned char)sign[i] : shape[kind], role[kind]);
    }
    if (fate[0] && end - x > (int)strlen(fate))
        cells_text(c, x + 1, r.y, end - x - 1, fate, ROLE_DIM);
}

static const char *fate_word(const struct archive_group *g)
{
    static const char *const words[] = { [ITEM_FILTERED] = "filtered",
                                         [ITEM_STALE] = "too old",
                                         [ITEM_STOPPED] = "too late",
                                         [ITEM_RETURNED] = "waits",
                                         [ITEM_ISSUED] = "not back" };
    return g->fate < ARRAY_SIZE(words) && words[g->fate] ? words[g->fate] : "";
}

/* A row of the list: step, item, mean, then one sign per sample. */
static void row_draw(const struct rollouts *o, const struct app *a, struct cells *c, struct rect r, int64_t row)
{
    char value[16], sign[ARCHIVE_SIGNS + 1] = "";
    const struct archive_group *k = has_archive(a) ? archive_row(a->archive, row) : NULL;
    int64_t number;
    int n = 0, n_sample = 0;
    const struct rollout_view *g = k ? NULL : heard_row(o, a, row, &number);
    double mean = k ? (double)k->mean : g ? group_mean(g, &n) : NAN;
    if (k && k->read) {
        memcpy(sign, k->sign, ARCHIVE_SIGNS);
        n_sample = k->n_sample;
    }
    for (int i = 0; g && i < g->n_sample && i < ARCHIVE_SIGNS; i++, n_sample++)
        sign[i] = sample_sign(&g->sample[i]);
    int x = r.x
            + cells_fmt(c, r.x, r.y, MIN(14, r.w), ROLE_DIM, "%5" PRId64 " %7" PRId64 " ",
                        k   ? MAX(k->step, k->version)
                        : g ? g->step
                            : 0,
                        k   ? k->item
                        : g ? g->item
                            : 0);
    x += cells_fmt(c, x, r.y, MIN(6, r.x + r.w - x), reward_role(mean), "%5s ", value_format(value, mean));
    signs_draw(a, c, (struct rect){ x, r.y, r.x + r.w - x, 1 }, sign, n_sample, k ? fate_word(k) : "");
}

static struct rect text_rect(const struct rollouts *o, struct rect r)
{
    int list_w = o->open || r.w < 60 ? 0 : MIN(MAX(r.w / 3, 30), 46);
    return (struct rect){ r.x + list_w, r.y, r.w - list_w, r.h };
}

static void list_draw(const struct rollouts *o, const struct app *a, struct cells *c, struct rect r, int64_t sel)
{
    int64_t n = rollouts_rows(o, a), tried = 0, all = 0;
    char title[64];
    bool kept = has_archive(a);
    if (kept)
        archive_tried(a->archive, &tried, &all);
    if (tried < all)
        snprintf(title, sizeof(title), "%" PRId64 " found, %d %% searched", n, (int)(100 * tried / all));
    else
        snprintf(title, sizeof(title), "%s%s", kept ? "groups" : "newest groups", o->group < 0 ? ", following" : "");
    struct rect in = cells_box(c, r, title, ROLE_FOCUS, ROLE_TITLE);
    if (in.h > 0)
        cells_text(c, in.x, in.y, in.w, " step    item  mean samples", ROLE_TITLE);
    int page = rollouts_page(r);
    int64_t top = first_row(o, a, r, sel);
    for (int i = 0; i < page && i + 1 < in.h && top + i < n; i++) {
        struct rect row = { in.x, in.y + 1 + i, in.w, 1 };
        row_draw(o, a, c, row, top + i);
        if (top + i == sel) {
            cells_select(c, row);
            c->cursor_x = row.x;
            c->cursor_y = row.y;
        }
    }
    if (n > 0 && r.w > 24) {
        char at[48];
        snprintf(at, sizeof(at), " %" PRId64 "/%" PRId64 " ", sel + 1, n);
        cells_text_right(c, r.x + 2, r.y + r.h - 1, r.w - 4, at, ROLE_DIM);
    }
    if (n == 0 && in.h > 1)
        cells_text(c, in.x + 1, in.y + 1, in.w - 2, kept || a->model->n_rollout ? "none passes the filter" : "none yet", ROLE_DIM);
}

/* "item 12, sampled at step 30, trained at 31: 8 samples" */
static void title_make(const struct rollouts *o, const struct app *a, int64_t sel, const struct rollout_view *g, char *out, size_t size)
{
    const struct archive_group *k = has_archive(a) ? archive_row(a->archive, sel) : NULL;
    char trained[40] = "";
    if (row_out(a, sel) >= 0) {
        snprintf(out, size, "item %" PRId64 " is not back yet; X drops it", row_out(a, sel));
        return;
    }
    if (!g) {
        bool damaged = k && k->read && k->n_sample == 0;
        snprintf(out, size, "%s", !k ? "text" : damaged ? "the record of this group cannot be read" : "reading");
        return;
    }
    if (k && k->step >= 0)
        snprintf(trained, sizeof(trained), ", trained at %" PRId64, k->step);
    else if (k && fate_word(k)[0])
        snprintf(trained, sizeof(trained), ", %s", fate_word(k));
    snprintf(out, size, "item %" PRId64 ", %s %" PRId64 "%s: %d samples%s", g->item, g->version >= 0 ? "weights of step" : "step",
             g->version >= 0 ? g->version : g->step, trained, g->n_sample,
             o->text.paint == PAINT_LOGP      ? ", by log-prob"
             : o->text.paint == PAINT_ENTROPY ? ", by entropy"
             : o->text.paint == PAINT_VERSION ? ", by weights"
                                              : "");
}

static void rollouts_draw(const struct pane *p, const struct app *a, struct cells *c, struct rect r, UNUSED int64_t now_ns)
{
    const struct rollouts *o = (const struct rollouts *)p;
    struct rect text = text_rect(o, r), list = { r.x, r.y, text.x > r.x ? text.x - r.x : r.w, r.h };
    int64_t sel = selected_row(o, a);
    const struct rollout_view *g = row_text(o, a, sel);
    if (!o->open)
        list_draw(o, a, c, list, sel);
    if (!o->open && r.w < 60)
        return;
    char title[128];
    title_make(o, a, sel, g, title, sizeof(title));
    struct rect in = cells_box(c, text, title, o->open ? ROLE_FOCUS : ROLE_BORDER, ROLE_TITLE);
    struct rect inner = { in.x + 1, in.y, in.w - 2, in.h - (o->text.paint != PAINT_NONE) };
    if (!g || inner.w < 1 || inner.h < 1)
        return;
    int rows = microscope_draw(&o->text, c, inner, g);
    if (o->text.paint != PAINT_NONE)
        microscope_token_draw(&o->text, c, (struct rect){ inner.x, inner.y + inner.h, inner.w, 1 }, g);
    if (rows > inner.h && text.w > 24) {
        char at[32];
        snprintf(at, sizeof(at), " %d%% PgDn ", (int)(100.0 * MIN(o->text.top + inner.h, rows) / rows));
        cells_text_right(c, text.x + 2, text.y + text.h - 1, text.w - 4, at, ROLE_DIM);
    }
}

/* ---- keys ---- */

static struct rect inner_rect(const struct rollouts *o, const struct app *a)
{
    struct rect text = text_rect(o, app_body(a));
    return (struct rect){ 0, 0, text.w - 4, text.h - 2 - (o->text.paint != PAINT_NONE) };
}

/* The next paint that this group has the numbers for. */
static void paint_next(struct rollouts *o, struct app *a, const struct rollout_view *g, int64_t now_ns)
{
    bool plain = o->text.paint == PAINT_NONE;
    o->text.sample = MAX(MIN(o->text.sample, g->n_sample - 1), 0);
    do
        o->text.paint = (enum paint)((o->text.paint + 1) % PAINT_N);
    while (o->text.paint != PAINT_NONE && !microscope_has_tokens(&g->sample[o->text.sample], o->text.paint));
    if (plain && o->text.paint == PAINT_NONE)
        app_flash(a, ROLE_WARN, now_ns,
                  has_archive(a) ? "this group was kept without the texts of its tokens"
                                 : "tokens are read from the run's folder, which cannot be read from here");
}

void quarantine_ask(struct app *a, int64_t on_line, const char *prompt, int64_t now_ns)
{
    char line[160], command[INPUT_MAX];
    if (on_line < 0) {
        app_flash(a, ROLE_WARN, now_ns, "it is not known which line of the dataset this prompt is");
        return;
    }
    snprintf(line, sizeof(line), "Line %" PRId64 " of the dataset is not issued any more in this run:", on_line);
    snprintf(command, sizeof(command), "quarantine %" PRId64, on_line);
    app_confirm(a, true, "Quarantine this prompt?", line, prompt, command);
}

static void drop_ask(struct app *a, const struct rollout_view *g)
{
    char line[160], command[INPUT_MAX];
    snprintf(line, sizeof(line), "No sample of item %" PRId64 " counts: not in the mean, not in the loss.", g->item);
    snprintf(command, sizeof(command), "drop %" PRId64, g->item);
    app_confirm(a, true, "Leave this group out of training?", line, g->prompt, command);
}

static void drop_out_ask(struct app *a, int64_t item)
{
    char text[200], command[INPUT_MAX];
    snprintf(text, sizeof(text), "Item %" PRId64 " is not back yet. It is sampled no further, and its rollout step goes on without it.",
             item);
    snprintf(command, sizeof(command), "drop %" PRId64, item);
    app_confirm_text(a, true, "Drop this item?", text, command);
}

/* Does the group wait for training, as far as the run's folder tells? */
static bool group_waits(const struct app *a, const struct rollout_view *g)
{
    const struct archive_group *k = has_archive(a) ? archive_row(a->archive, archive_find(a->archive, g->item)) : NULL;
    return !k || k->item != g->item || k->fate == ITEM_RETURNED;
}

static void rescore_ask(struct app *a, const struct rollout_view *g, bool waits)
{
    char text[320], command[INPUT_MAX];
    snprintf(text, sizeof(text), "The reward as it is now judges the answers of item %" PRId64 " again. %s", g->item,
             waits ? "The group waits for training, so its rewards are replaced."
                   : "The group has gone into training or was left out: nothing is replaced, the new rewards are only shown.");
    snprintf(command, sizeof(command), "rescore %" PRId64, g->item);
    app_confirm_text(a, waits, "Score this group again?", text, command);
}

/* What concerns the text of the group; false: none of that. */
static bool text_act(struct rollouts *o, struct app *a, enum request req, const struct rollout_view *g, int64_t now_ns)
{
    bool painted = o->open && o->text.paint != PAINT_NONE && g->n_sample > 0;
    switch (req) {
    case REQ_LEFT:
    case REQ_RIGHT:
        if (!painted)
            return false;
        microscope_token_go(&o->text, inner_rect(o, a), g, req == REQ_RIGHT);
        return true;
    case REQ_MATCH_NEXT:
    case REQ_MATCH_PREV: microscope_sample_go(&o->text, inner_rect(o, a), g, req == REQ_MATCH_NEXT); return true;
    case REQ_TOKENS:
        if (g->n_sample > 0)
            paint_next(o, a, g, now_ns);
        o->open = o->open || o->text.paint != PAINT_NONE;
        o->group = selected_row(o, a) >= 0 ? row_number(o, a, selected_row(o, a)) : o->group;
        return true;
    case REQ_BESIDE:
        o->text.beside = !(o->open && o->text.beside);
        o->open = true;
        o->text.top = 0;
        o->group = row_number(o, a, selected_row(o, a));
        return true;
    case REQ_DROP: drop_ask(a, g); return true;
    case REQ_RESCORE: rescore_ask(a, g, group_waits(a, g)); return true;
    case REQ_QUARANTINE: quarantine_ask(a, g->line, g->prompt, now_ns); return true;
    default: return false;
    }
}

static void row_select(struct rollouts *o, const struct app *a, int64_t row)
{
    o->text.top = o->text.sample = 0;
    o->text.token = 0;
    o->group = row_number(o, a, row);
}

static bool rollouts_click(struct pane *p, struct app *a, struct rect body, int x, int y)
{
    struct rollouts *o = (struct rollouts *)p;
    struct rect text = text_rect(o, body);
    int line = y - body.y - 2;    // below the border and the heading
    if (o->open || (text.x > body.x && x >= text.x) || line < 0 || line >= rollouts_page(body))
        return true;
    o->top = first_row(o, a, body, selected_row(o, a));
    if (o->top + line < rollouts_rows(o, a))
        row_select(o, a, o->top + line);
    return true;
}

static bool rollouts_act(struct pane *p, struct app *a, enum request req, int64_t now_ns)
{
    struct rollouts *o = (struct rollouts *)p;
    int64_t sel = selected_row(o, a), n = rollouts_rows(o, a), next = -2;
    const struct rollout_view *g = row_text(o, a, sel);
    o->top = first_row(o, a, app_body(a), sel);
    if (g && text_act(o, a, req, g, now_ns))
        goto end;
    int list_page = rollouts_page(app_body(a)), page = MAX(inner_rect(o, a).h, 1);
    switch (req) {
    case REQ_UP:
    case REQ_DOWN:
        if (o->open)
            o->text.top += req == REQ_UP ? -1 : 1;
        else
            next = sel + (req == REQ_UP ? -1 : 1);
        break;
    case REQ_PAGE_UP:
    case REQ_PAGE_DOWN:
        if (!o->open && app_body(a).w < 60)    // there is no text to scroll
            next = sel + (req == REQ_PAGE_UP ? -list_page : list_page);
        else
            o->text.top += req == REQ_PAGE_UP ? -page : page;
        break;
    case REQ_TOP:
    case REQ_BOTTOM:
        if (o->open)
            o->text.top = req == REQ_TOP ? 0 : INT32_MAX / 2;
        else
            next = req == REQ_TOP ? 0 : n - 1;
        break;
    case REQ_LEFT:
    case REQ_RIGHT: next = sel + (req == REQ_LEFT ? -1 : 1); break;
    case REQ_FOLLOW: o->group = o->group < 0 ? row_number(o, a, sel) : -1; return true;
    case REQ_ENTER:
        o->open = !o->open;
        o->text.beside = false;
        o->text.paint = PAINT_NONE;
        o->group = row_number(o, a, sel);    // the text being read stays
        return true;
    case REQ_TOKENS:
    case REQ_BESIDE:
    case REQ_MATCH_NEXT:
    case REQ_MATCH_PREV:
    case REQ_RESCORE:
    case REQ_QUARANTINE: return true;    // there is no group yet
    case REQ_DROP:
        if (row_out(a, sel) >= 0)
            drop_out_ask(a, row_out(a, sel));
        return true;
    default: return false;
    }
    if (next >= -1 && n > 0) {
        next = MAX(MIN(next, n - 1), 0);
        row_select(o, a, next);
        o->group = next == 0 && req == REQ_TOP ? -1 : o->group;
    }
end:
    if ((g = row_text(o, a, selected_row(o, a))) != NULL) {
        struct rect r = inner_rect(o, a);
        o->text.sample = MAX(MIN(o->text.sample, g->n_sample - 1), 0);
        o->text.top = MIN(o->text.top, MAX(microscope_draw(&o->text, NULL, r, g) - r.h, 0));
    }
    o->text.top = MAX(o->text.top, 0);
    return true;
}

void rollouts_want(const struct app *a)
{
    const struct rollouts *o = (const struct rollouts *)a->pane[PANE_ROLLOUTS];
    archive_filter(a->archive, o->pane.filter);
    archive_want(a->archive, o->group < 0 ? -1 : row_number(o, a, selected_row(o, a)));
}

static bool rollouts_close(struct pane *p)
{
    struct rollouts *o = (struct rollouts *)p;
    bool was_open = o->open;
    o->open = o->text.beside = false;
    o->text.paint = PAINT_NONE;
    return was_open;
}

static void rollouts_init(struct pane *p)
{
    struct rollouts *o = (struct rollouts *)p;
    o->group = -1;
    o->text.filter = p->filter;
}

const struct pane_type pane_rollouts = {
    .name = "Rollouts",
    .size = sizeof(struct rollouts),
    .init = rollouts_init,
    .draw = rollouts_draw,
    .act = rollouts_act,
    .close = rollouts_close,
    .click = rollouts_click,
};
