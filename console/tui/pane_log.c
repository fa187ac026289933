/* pane_log.c - two lists of what happened: the processes' log lines, and the run's events with this console's commands */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "console/tui/app.h"

/* ---- log: newest at the bottom ---- */

static bool line_shown(const struct app *a, const struct log_view *l)
{
    static const int rank[] = { [LINE_ERROR] = 0, [LINE_WARN] = 1, [LINE_INFO] = 2, [LINE_DEBUG] = 3, [LINE_OTHER] = 3 };
    if (a->log_level != LINE_OTHER && rank[l->level] > rank[a->log_level])
        return false;
    return filter_matches(a->filter[PANE_LOG], l->text) || (a->filter[PANE_LOG][0] != '!' && filter_matches(a->filter[PANE_LOG], l->proc));
}

/* By absolute number, 0 the first ever; NULL when it has left the ring or is not there yet. */
static const struct log_view *line_at(const struct model *m, int64_t number)
{
    return model_log_at(m, m->n_log - 1 - number);
}

static int64_t log_end(const struct app *a)
{
    return a->log_end < 0 ? a->model->n_log : MAX(MIN(a->log_end, a->model->n_log), a->model->n_log - MODEL_LOG + 1);
}

static void log_draw(const struct app *a, struct cells *c, struct rect r, UNUSED int64_t now_ns)
{
    static const char *const level_names[] = { [LINE_ERROR] = "errors", [LINE_WARN] = "warnings", [LINE_INFO] = "info", [LINE_DEBUG] = "debug", [LINE_OTHER] = "" };
    const struct model *m = a->model;
    char title[160];
    int64_t end = log_end(a), below = m->n_log - end, lost = m->n_log - MODEL_LOG;
    int n = snprintf(title, sizeof(title), "log%s%s", a->log_level == LINE_OTHER ? "" : ", up to ", level_names[a->log_level]);
    if (below > 0)
        n += snprintf(title + n, sizeof(title) - (size_t)n, ", %lld newer below: f follows", (long long)below);
    if (lost > 0)
        snprintf(title + n, sizeof(title) - (size_t)n, ", %lld older only in the files", (long long)lost);
    struct rect in = cells_box(c, r, title, ROLE_FOCUS, ROLE_TITLE);
    int proc_w = MIN(14, in.w / 4), y = in.y + in.h - 1;
    const struct log_view *l;
    for (int64_t i = end - 1; y >= in.y && (l = line_at(m, i)) != NULL; i--) {
        if (!line_shown(a, l))
            continue;
        int x = in.x + 1;
        x += cells_fmt(c, x, y, MIN(9, in.w), ROLE_DIM, "%-8s ", l->clock);
        cells_text(c, x, y, proc_w, l->proc, ROLE_TITLE);
        x += proc_w + 1;
        size_t len = strlen(l->text), skip = MIN((size_t)a->log_left, len);
        while (skip < len && ((unsigned char)l->text[skip] & 0xc0) == 0x80)
            skip++;
        cells_text(c, x, y, in.x + in.w - x, l->text + skip, level_role(l->level));
        if (y == in.y + in.h - 1) {
            c->cursor_x = in.x + 1;
            c->cursor_y = y;
        }
        y--;
    }
    if (y == in.y + in.h - 1)
        cells_text(c, in.x + 1, in.y, in.w - 2, m->n_log ? "no line holds the filter's text" : "no lines yet", ROLE_DIM);
}

static void log_move(struct app *a, int64_t delta)
{
    const struct model *m = a->model;
    const struct log_view *l;
    int64_t end = log_end(a), at = end;
    while (delta < 0 && (l = line_at(m, at - 2)) != NULL) {    // at least one line stays
        at--;
        delta += line_shown(a, l);
    }
    while (delta > 0 && (l = line_at(m, at)) != NULL) {
        at++;
        delta -= line_shown(a, l);
    }
    a->log_end = at >= m->n_log ? -1 : at;
}

static bool log_act(struct app *a, enum request req, int64_t now_ns)
{
    static const char *const names[] = { "errors only", "errors and warnings", "errors, warnings and info", "errors to debug", "all lines" };
    int page = MAX(app_body(a).h - 2, 1);
    switch (req) {
    case REQ_UP: log_move(a, -1); return true;
    case REQ_DOWN: log_move(a, 1); return true;
    case REQ_PAGE_UP: log_move(a, -page); return true;
    case REQ_PAGE_DOWN: log_move(a, page); return true;
    case REQ_TOP: log_move(a, -MODEL_LOG); log_move(a, page - 1); return true;
    case REQ_BOTTOM: a->log_end = -1; return true;
    case REQ_LEFT: a->log_left = MAX(a->log_left - 20, 0); return true;
    case REQ_RIGHT: a->log_left = MIN(a->log_left + 20, 2000); return true;
    case REQ_FOLLOW: a->log_end = a->log_end < 0 ? a->model->n_log : -1; return true;
    case REQ_LEVEL:
        a->log_level = (enum line_level)((a->log_level + LINE_OTHER) % (LINE_OTHER + 1));
        if (a->log_level == LINE_DEBUG)
            a->log_level = LINE_INFO;
        app_flash(a, ROLE_DIM, now_ns, "log: %s", names[a->log_level]);
        return true;
    default: return false;
    }
}

const struct pane pane_log = { "Log", log_draw, log_act, NULL, NULL };

/* ---- events: newest first ---- */

static const struct event_view *event_row(const struct app *a, int64_t row)
{
    const struct event_view *e;
    char text[400];
    for (int64_t i = 0; (e = model_event_at(a->model, i)) != NULL; i++) {
        snprintf(text, sizeof(text), "%s %s %s", e->kind, e->who, e->text);
        if (filter_matches(a->filter[PANE_EVENTS], text) && row-- == 0)
            return e;
    }
    return NULL;
}

static int64_t events_rows(const struct app *a)
{
    int64_t n = 0;
    while (a->filter[PANE_EVENTS][0] && event_row(a, n))
        n++;
    return a->filter[PANE_EVENTS][0] ? n : MIN(a->model->n_event, MODEL_EVENTS);
}

static int events_page(UNUSED const struct app *a, struct rect body)
{
    return MAX(body.h - 3, 1);
}

static void events_draw(const struct app *a, struct cells *c, struct rect r, UNUSED int64_t now_ns)
{
    struct rect in = cells_box(c, r, "events: what happened, and who asked for it", ROLE_FOCUS, ROLE_TITLE);
    if (in.h < 1)
        return;
    bool wide = in.w >= 76;
    cells_text(c, in.x + 1, in.y, in.w - 2, wide ? "time       step  kind        what" : "time       step  what", ROLE_TITLE);
    for (int i = 0; i < events_page(a, r) && i + 1 < in.h; i++) {
        int64_t row = a->top[PANE_EVENTS] + i;
        const struct event_view *e = event_row(a, row);
        int y = in.y + 1 + i, x = in.x + 1;
        if (!e)
            break;
        char clock[16], step[24] = "-";
        time_t t = (time_t)e->time_s;
        struct tm tm;
        localtime_r(&t, &tm);
        strftime(clock, sizeof(clock), "%H:%M:%S", &tm);
        if (e->step >= 0)
            snprintf(step, sizeof(step), "%lld", (long long)e->step);
        x += cells_fmt(c, x, y, 17, ROLE_DIM, "%s %6s  ", clock, step);
        if (wide)
            x += cells_fmt(c, x, y, 12, ROLE_TITLE, "%-11.11s ", e->kind);
        x += cells_text(c, x, y, in.x + in.w - x - 1, e->text, strcmp(e->kind, "error") == 0 ? ROLE_CRIT : ROLE_TEXT);
        if (e->who[0] && strcmp(e->who, "controller") != 0)    // who is the run itself needs no name
            cells_fmt(c, x + 2, y, in.x + in.w - x - 3, ROLE_DIM, "by %s", e->who);
        if (row == a->sel[PANE_EVENTS]) {
            cells_select(c, (struct rect){ in.x, y, in.w, 1 });
            c->cursor_x = in.x + 1;
            c->cursor_y = y;
        }
    }
    if (events_rows(a) == 0 && in.h > 1)
        cells_text(c, in.x + 1, in.y + 1, in.w - 2, a->model->n_event ? "none holds the filter's text" : "none yet", ROLE_DIM);
}

static bool events_act(UNUSED struct app *a, UNUSED enum request req, UNUSED int64_t now_ns)
{
    return false;
}

const struct pane pane_events = { "Events", events_draw, events_act, events_rows, events_page };
