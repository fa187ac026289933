/* pane_log.c - two lists of what happened: the processes' log lines, and the run's events with this console's commands */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "console/tui/app.h"

/* ---- log: newest at the bottom ---- */

struct log_pane {
    struct pane pane;
    int64_t end;              // absolute number after the last line shown; -1: follow
    int left;                 // columns scrolled
    enum line_level level;    // highest level shown: lines with a higher level are hidden
};

static bool line_shown(const struct log_pane *lp, const struct log_view *l)
{
    static const int rank[] = { [LINE_ERROR] = 0, [LINE_WARN] = 1, [LINE_INFO] = 2, [LINE_DEBUG] = 3, [LINE_OTHER] = 3 };
    if (lp->level != LINE_OTHER && rank[l->level] > rank[lp->level])
        return false;
    return filter_matches(lp->pane.filter, l->text) || (lp->pane.filter[0] != '!' && filter_matches(lp->pane.filter, l->proc));
}

/* By absolute number, 0 is the very first; NULL when it has left the ring or does not exist yet. */
static const struct log_view *line_at(const struct run_view *m, int64_t number)
{
    return view_log_at(m, m->n_log - 1 - number);
}

static int64_t log_end(const struct log_pane *lp, const struct run_view *m)
{
    return lp->end < 0 ? m->n_log : MAX(MIN(lp->end, m->n_log), m->n_log - MODEL_LOG + 1);
}

static void log_draw(const struct pane *p, const struct app *a, struct cells *c, struct rect r, UNUSED int64_t now_ns)
{
    const struct log_pane *lp = (const struct log_pane *)p;
    static const char *const level_names[] = {
        [LINE_ERROR] = "errors", [LINE_WARN] = "warnings", [LINE_INFO] = "info", [LINE_DEBUG] = "debug", [LINE_OTHER] = ""
    };
    const struct run_view *m = a->model;
    char title[160];
    int64_t end = log_end(lp, m), below = m->n_log - end, lost = m->n_log - MODEL_LOG;
    int n = snprintf(title, sizeof(title), "log%s%s", lp->level == LINE_OTHER ? "" : ": ", level_names[lp->level]);
    if (below > 0)
        n += snprintf(title + n, sizeof(title) - (size_t)n, ", %" PRId64 " newer below: f follows", below);
    if (lost > 0)
        snprintf(title + n, sizeof(title) - (size_t)n, ", %" PRId64 " older only in the files", lost);
    struct rect in = cells_box(c, r, title, ROLE_FOCUS, ROLE_TITLE);
    int proc_w = MIN(14, in.w / 4), y = in.y + in.h - 1;
    const struct log_view *l;
    for (int64_t i = end - 1; y >= in.y && (l = line_at(m, i)) != NULL; i--) {
        if (!line_shown(lp, l))
            continue;
        int x = in.x + 1;
        x += cells_fmt(c, x, y, MIN(9, in.w), ROLE_DIM, "%-8s ", l->clock);
        cells_text(c, x, y, proc_w, l->proc, ROLE_TITLE);
        x += proc_w + 1;
        size_t len = strlen(l->text), skip = MIN((size_t)lp->left, len);
        while (skip < len && ((unsigned char)l->text[skip] & 0xc0) == 0x80)
            skip++;
        cells_text(c, x, y, in.x + in.w - x, l->text + skip, level_role(l->level));
        if (y == in.y + in.h - 1) {
            c->cursor_x = in.x + 1;
            c->cursor_y = y;
        }
        y--;
    }
    const char *none = app_pane(a)->filter[0] ? "no line contains the filter's text" : "no line is that grave: L shows more";
    if (y == in.y + in.h - 1)
        cells_text(c, in.x + 1, in.y, in.w - 2, m->n_log ? none : "no lines yet", ROLE_DIM);
}

static void log_move(struct log_pane *lp, const struct run_view *m, int64_t delta)
{
    const struct log_view *l;
    int64_t end = log_end(lp, m), at = end;
    while (delta < 0 && (l = line_at(m, at - 2)) != NULL) {    // at least one line stays
        at--;
        delta += line_shown(lp, l);
    }
    while (delta > 0 && (l = line_at(m, at)) != NULL) {
        at++;
        delta -= line_shown(lp, l);
    }
    lp->end = at >= m->n_log ? -1 : at;
}

/* The lowest line shown, in full. */
static void line_open(const struct log_pane *lp, struct app *a)
{
    static const char *const names[] = { "ERROR", "WARN", "INFO", "DEBUG", "" };
    const struct log_view *l;
    char text[2200];
    for (int64_t i = log_end(lp, a->model) - 1; (l = line_at(a->model, i)) != NULL; i--)
        if (line_shown(lp, l)) {
            snprintf(text, sizeof(text), "%s %s %s\n%s", l->clock, l->proc, names[l->level], l->text);
            whole_open(a, "a line of the log", text);
            return;
        }
}

static bool log_act(struct pane *p, struct app *a, enum request req, int64_t now_ns)
{
    struct log_pane *lp = (struct log_pane *)p;
    static const char *const names[] = { "errors only", "errors and warnings", "errors, warnings and info", "errors to debug",
                                         "all lines" };
    int page = MAX(app_body(a).h - 2, 1);
    switch (req) {
    case REQ_ENTER: line_open(lp, a); return true;
    case REQ_UP: log_move(lp, a->model, -1); return true;
    case REQ_DOWN: log_move(lp, a->model, 1); return true;
    case REQ_PAGE_UP: log_move(lp, a->model, -page); return true;
    case REQ_PAGE_DOWN: log_move(lp, a->model, page); return true;
    case REQ_TOP:
        log_move(lp, a->model, -MODEL_LOG);
        log_move(lp, a->model, page - 1);
        return true;
    case REQ_BOTTOM: lp->end = -1; return true;
    case REQ_LEFT: lp->left = MAX(lp->left - 20, 0); return true;
    case REQ_RIGHT: lp->left = MIN(lp->left + 20, 2000); return true;
    case REQ_FOLLOW: lp->end = lp->end < 0 ? a->model->n_log : -1; return true;
    case REQ_LEVEL:
        lp->level = (enum line_level)((lp->level + LINE_OTHER) % (LINE_OTHER + 1));
        if (lp->level == LINE_DEBUG)
            lp->level = LINE_INFO;
        app_flash(a, ROLE_DIM, now_ns, "log: %s", names[lp->level]);
        return true;
    default: return false;
    }
}

static void log_init(struct pane *p)
{
    struct log_pane *lp = (struct log_pane *)p;
    lp->end = -1;
    lp->level = LINE_OTHER;
}

const struct pane_type pane_log = {
    .name = "Log",
    .size = sizeof(struct log_pane),
    .init = log_init,
    .draw = log_draw,
    .act = log_act,
};

/* ---- events: newest first ---- */

static const struct event_view *event_row(const struct pane *p, const struct app *a, int64_t row)
{
    const struct event_view *e;
    char text[400];
    for (int64_t i = 0; (e = view_event_at(a->model, i)) != NULL; i++) {
        snprintf(text, sizeof(text), "%s %s %s", e->kind, e->who, e->text);
        if (filter_matches(p->filter, text) && row-- == 0)
            return e;
    }
    return NULL;
}

static int64_t events_rows(const struct pane *p, const struct app *a)
{
    int64_t n = 0;
    while (p->filter[0] && event_row(p, a, n))
        n++;
    return p->filter[0] ? n : MIN(a->model->n_event, MODEL_EVENTS);
}

static int events_page(UNUSED const struct app *a, struct rect body)
{
    return MAX(body.h - 3, 1);
}

static void events_draw(const struct pane *p, const struct app *a, struct cells *c, struct rect r, UNUSED int64_t now_ns)
{
    struct rect in = cells_box(c, r, "events: what happened, and who asked for it", ROLE_FOCUS, ROLE_TITLE);
    if (in.h < 1)
        return;
    bool wide = in.w >= 76;
    cells_text(c, in.x + 1, in.y, in.w - 2, wide ? "time       step  kind        what" : "time       step  what", ROLE_TITLE);
    for (int i = 0; i < events_page(a, r) && i + 1 < in.h; i++) {
        int64_t row = p->top + i;
        const struct event_view *e = event_row(p, a, row);
        int y = in.y + 1 + i, x = in.x + 1;
        if (!e)
            break;
        char clock[16], step[24] = "-";
        time_t t = (time_t)e->time_s;
        struct tm tm;
        localtime_r(&t, &tm);
        strftime(clock, sizeof(clock), "%H:%M:%S", &tm);
        if (e->step >= 0)
            snprintf(step, sizeof(step), "%" PRId64, e->step);
        x += cells_fmt(c, x, y, 17, ROLE_DIM, "%s %6s  ", clock, step);
        if (wide)
            x += cells_fmt(c, x, y, 12, ROLE_TITLE, "%-11.11s ", e->kind);
        x += cells_text(c, x, y, in.x + in.w - x - 1, e->text, strcmp(e->kind, "error") == 0 ? ROLE_CRIT : ROLE_TEXT);
        if (e->who[0] && strcmp(e->who, "controller") != 0)    // no name when it is the run itself
            cells_fmt(c, x + 2, y, in.x + in.w - x - 3, ROLE_DIM, "by %s", e->who);
        if (row == p->sel) {
            cells_select(c, (struct rect){ in.x, y, in.w, 1 });
            c->cursor_x = in.x + 1;
            c->cursor_y = y;
        }
    }
    if (events_rows(p, a) == 0 && in.h > 1)
        cells_text(c, in.x + 1, in.y + 1, in.w - 2, a->model->n_event ? "none contains the filter's text" : "none yet", ROLE_DIM);
}

static bool events_act(struct pane *p, struct app *a, enum request req, UNUSED int64_t now_ns)
{
    const struct event_view *e = event_row(p, a, p->sel);
    char text[sizeof(e->detail) + 512], clock[32];
    if (req != REQ_ENTER || !e)
        return req == REQ_ENTER;
    time_t t = (time_t)e->time_s;
    struct tm tm;
    localtime_r(&t, &tm);
    strftime(clock, sizeof(clock), "%Y-%m-%d %H:%M:%S", &tm);
    snprintf(text, sizeof(text), "%s, step %" PRId64 ", %s%s%s\n%s\n%s", clock, e->step, e->kind, e->who[0] ? " by " : "", e->who, e->text,
             e->detail);
    whole_open(a, "an event", text);
    return true;
}

const struct pane_type pane_events = {
    .name = "Events",
    .size = sizeof(struct pane),
    .draw = events_draw,
    .act = events_act,
    .rows = events_rows,
    .page = events_page,
};
