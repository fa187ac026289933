/* pane_saved.c - checkpoints: what is kept, why, how the run stood there, and going back to one */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "console/tui/app.h"

/* What the selected one's line shows of its step, as far as it was measured. */
static const enum metric_id shown_metrics[] = { M_REWARD, M_ANS_ACC, M_RESPONSE_LENGTH, M_ENTROPY, M_KL };

static bool saved_shown(const struct pane *p, const struct saved_view *s)
{
    char row[256];
    snprintf(row, sizeof(row), "%" PRId64 " %s %s%s", s->step, s->state, s->why, s->pinned ? " pinned" : "");
    return filter_matches(p->filter, row);
}

static const struct saved_view *saved_row(const struct pane *p, const struct app *a, int64_t row)
{
    for (int i = 0; i < a->model->n_saved; i++)
        if (saved_shown(p, &a->model->saved[i]) && row-- == 0)
            return &a->model->saved[i];
    return NULL;
}

static int64_t saved_rows(const struct pane *p, const struct app *a)
{
    int64_t n = 0;
    for (int i = 0; i < a->model->n_saved; i++)
        n += saved_shown(p, &a->model->saved[i]);
    return n;
}

static int detail_height(struct rect body)
{
    return body.h >= 12 ? 3 : 0;
}

static int saved_page(UNUSED const struct app *a, struct rect body)
{
    return MAX(body.h - 3 - detail_height(body), 1);
}

static void detail_draw(const struct app *a, struct cells *c, struct rect r, const struct saved_view *s)
{
    char when[32] = "", value[16];
    time_t t = (time_t)s->time_s;
    struct tm tm;
    if (s->time_s > 0 && localtime_r(&t, &tm))
        strftime(when, sizeof(when), "%F %T, ", &tm);
    int x = r.x + cells_fmt(c, r.x, r.y, r.w, ROLE_TITLE, "step %" PRId64 "  ", s->step);
    for (size_t i = 0; i < ARRAY_SIZE(shown_metrics); i++) {
        double v = series_at(&a->model->metric[shown_metrics[i]], s->step);
        if (!isnan(v))
            x += cells_fmt(c, x, r.y, r.x + r.w - x, ROLE_TEXT, "%s %s  ", metrics[shown_metrics[i]].label, value_format(value, v));
    }
    cells_fmt(c, r.x, r.y + 1, r.w, ROLE_DIM, "%s%s%s%s", when, s->why, s->path[0] ? ", " : "", s->path);
    int64_t undone = MAX(a->model->step - s->step, (int64_t)0);
    cells_fmt(c, r.x, r.y + 2, r.w, ROLE_CHANGED, "back to it: %" PRId64 " step%s undone%s%s", undone, undone == 1 ? " is" : "s are",
              s->changes[0] ? ", and " : "", s->changes);
}

static void row_draw(const struct app *a, struct cells *c, struct rect r, const struct saved_view *s)
{
    char bytes[16], value[16], step[24];
    bool broken = strcmp(s->state, "broken") == 0;
    int x = r.x, end = r.x + r.w;
    snprintf(step, sizeof(step), "%" PRId64, s->step);
    cells_text_right(c, x, r.y, 8, step, ROLE_TEXT);
    x += 9;
    x += cells_fmt(c, x, r.y, end - x, broken ? ROLE_CRIT : ROLE_OK, "%-7s", s->state);
    x += cells_fmt(c, x, r.y, end - x, ROLE_TEXT, "%9s ", s->size_bytes >= 0 ? bytes_format(bytes, (double)s->size_bytes) : "-");
    x += cells_fmt(c, x, r.y, end - x, ROLE_TEXT, "%8s ", value_format(value, series_at(&a->model->metric[M_REWARD], s->step)));
    if (r.w >= 76)
        x += cells_fmt(c, x, r.y, end - x, ROLE_TEXT, "%8s ", value_format(value, series_at(&a->model->metric[M_ANS_ACC], s->step)));
    x += cells_fmt(c, x, r.y, end - x, ROLE_CHANGED, "%-7s", s->pinned ? "pinned" : "");
    cells_text(c, x, r.y, end - x, s->why, ROLE_DIM);
}

static void saved_draw(const struct pane *p, const struct app *a, struct cells *c, struct rect r, UNUSED int64_t now_ns)
{
    struct rect in = cells_box(c, r, "checkpoints: newest first", ROLE_FOCUS, ROLE_TITLE);
    int page = saved_page(a, r);
    if (in.h < 1)
        return;
    cells_fmt(c, in.x + 1, in.y, in.w - 2, ROLE_TITLE, "%8s %-7s%9s %8s %s%-7s%s", "step", "state", "size", "reward",
              in.w - 2 >= 76 ? "accuracy " : "", "", "made for");
    for (int i = 0; i < page && i + 1 < in.h; i++) {
        const struct saved_view *s = saved_row(p, a, p->top + i);
        struct rect row = { in.x + 1, in.y + 1 + i, in.w - 2, 1 };
        if (!s)
            break;
        row_draw(a, c, row, s);
        if (p->top + i != p->sel)
            continue;
        cells_select(c, (struct rect){ in.x, row.y, in.w, 1 });
        c->cursor_x = row.x;
        c->cursor_y = row.y;
        if (detail_height(r))
            detail_draw(a, c, (struct rect){ in.x + 1, in.y + in.h - 3, in.w - 2, 3 }, s);
    }
    if (saved_rows(p, a) == 0 && in.h > 1)
        cells_text(c, in.x + 1, in.y + 1, in.w - 2, a->model->n_saved ? "none contains the filter's text" : "none yet: c saves one",
                   ROLE_DIM);
}

static bool saved_act(struct pane *p, struct app *a, enum request req, int64_t now_ns)
{
    const struct saved_view *s = saved_row(p, a, p->sel);
    char command[64];
    if (req == REQ_ENTER && s) {
        char text[1024];
        snprintf(text, sizeof(text), "step %" PRId64 ", %s%s\nmade for: %s\n%s\n%s%s", s->step, s->state, s->pinned ? ", pinned" : "",
                 s->why, s->path, s->changes[0] ? "changed since: " : "", s->changes);
        whole_open(a, "a checkpoint", text);
        return true;
    }
    if ((req != REQ_ROLLBACK && req != REQ_PIN) || !s)
        return false;
    if (req == REQ_ROLLBACK) {
        rollback_ask(a, s);
        return true;
    }
    snprintf(command, sizeof(command), "%s %" PRId64, s->pinned ? "unpin" : "pin", s->step);
    app_command(a, command, now_ns);
    return true;
}

const struct pane_type pane_saved = {
    .name = "Checkpoints",
    .size = sizeof(struct pane),
    .draw = saved_draw,
    .act = saved_act,
    .rows = saved_rows,
    .page = saved_page,
};
