/* pane_alarms.c - what is wrong: what is seen from outside, then the run's alarm book: what holds, what is watched for, and what an
 * operator has said to it */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "console/fleet/alarm.h"
#include "console/tui/app.h"

#define SEEN_MAX 256    // alarms from outside that are listed; more are counted

/* The alarms that are not of the book and pass the filter. */
struct seen {
    int n;
    int n_more;    // without room here
    struct alarm alarm[SEEN_MAX];
};

static void seen_make(struct seen *s, const struct pane *p, const struct app *a, int64_t now_ns)
{
    int all = alarms_check(a->model, now_ns, s->alarm, SEEN_MAX), n = MIN(all, SEEN_MAX);
    s->n = 0;
    s->n_more = all - n;
    for (int i = 0; i < n; i++)
        if (!s->alarm[i].rule && filter_matches(p->filter, s->alarm[i].text))
            s->alarm[s->n++] = s->alarm[i];
}

/* The rule in a row below those that are seen from outside. */
static const struct alarm_view *rule_at(const struct pane *p, const struct app *a, int64_t row)
{
    for (int i = 0; i < a->model->n_alarm; i++) {
        const struct alarm_view *v = &a->model->alarm[i];
        char text[320];
        snprintf(text, sizeof(text), "%s %s %s", v->name, v->metric, alarm_state_name(v->state));
        if (filter_matches(p->filter, text) && row-- == 0)
            return v;
    }
    return NULL;
}

static int64_t alarms_rows(const struct pane *p, const struct app *a)
{
    struct seen s;
    seen_make(&s, p, a, a->now_ns);
    int64_t n = 0;
    while (rule_at(p, a, n))
        n++;
    return s.n + n;
}

static int detail_height(struct rect body)
{
    return body.h >= 12 ? 3 : 0;
}

static int alarms_page(UNUSED const struct app *a, struct rect body)
{
    return MAX(body.h - 3 - detail_height(body), 1);
}

static enum role state_role(const struct alarm_view *v)
{
    switch (v->state) {
    case ALARM_FIRING: return v->critical ? ROLE_CRIT : ROLE_WARN;
    case ALARM_ACKNOWLEDGED: return ROLE_CHANGED;
    case ALARM_QUIET: return ROLE_OK;
    case ALARM_MUTED: break;
    }
    return ROLE_STALE;
}

/* "above 0.2, 3 steps in a row". */
static void condition_say(const struct alarm_view *v, char *out, size_t size)
{
    static const char *const words[ALARM_WHEN_N + 1] = {
        [ALARM_ABOVE] = "above",        [ALARM_BELOW] = "below", [ALARM_EQUALS] = "exactly", [ALARM_TIMES_MEDIAN] = "above",
        [ALARM_BELOW_MEDIAN] = "below", [ALARM_RISES] = "rises", [ALARM_WHEN_N] = "?",
    };
    char limit[24] = "", value[16];
    if (v->when != ALARM_RISES)
        snprintf(limit, sizeof(limit), " %s", value_format(value, v->limit));
    bool median = v->when == ALARM_TIMES_MEDIAN || v->when == ALARM_BELOW_MEDIAN;
    snprintf(out, size, "%s%s%s", words[v->when], limit, median ? " x median" : "");
    if (v->steps > 1) {
        size_t at = strlen(out);
        snprintf(out + at, size - at, ", %" PRId64 " steps", v->steps);
    }
}

static void seen_draw(struct cells *c, struct rect r, const struct alarm *v)
{
    enum role role = v->crit ? ROLE_CRIT : ROLE_WARN;
    int x = r.x + cells_fmt(c, r.x, r.y, r.w, role, "%-13s", v->crit ? "critical" : "warning");
    cells_text(c, x, r.y, r.x + r.w - x, v->text, role);
}

static void seen_detail_draw(struct cells *c, struct rect r, const struct alarm *v)
{
    cells_text(c, r.x, r.y, r.w, v->text, v->crit ? ROLE_CRIT : ROLE_WARN);
    cells_fmt(c, r.x, r.y + 1, r.w, ROLE_TEXT, "\u2192 %s", v->remedy);
    cells_text(c, r.x, r.y + 2, r.w, "seen from outside: it goes when its cause does", ROLE_DIM);
}

static void detail_draw(struct cells *c, struct rect r, const struct alarm_view *v)
{
    if (v->text[0])
        cells_fmt(c, r.x, r.y, r.w, state_role(v), "since step %" PRId64 ": %s", v->step, v->text);
    else
        cells_fmt(c, r.x, r.y, r.w, ROLE_DIM, "%s", v->state == ALARM_MUTED ? "not looked at: M looks at it again" : "all is well");
    cells_fmt(c, r.x, r.y + 1, r.w, ROLE_TEXT, "\u2192 %s", v->remedy);
    cells_fmt(c, r.x, r.y + 2, r.w, ROLE_DIM, "%s%s", v->actions[0] ? "when it begins: " : "", v->actions);
}

static void row_draw(struct cells *c, struct rect r, const struct alarm_view *v)
{
    char condition[64], since[24] = "";
    int x = r.x, end = r.x + r.w;
    condition_say(v, condition, sizeof(condition));
    if (v->state == ALARM_FIRING || v->state == ALARM_ACKNOWLEDGED)
        snprintf(since, sizeof(since), "%" PRId64, v->step);
    x += cells_fmt(c, x, r.y, end - x, state_role(v), "%-13s", alarm_state_name(v->state));
    x += cells_fmt(c, x, r.y, end - x, ROLE_TEXT, "%-21.20s", v->name);
    x += cells_fmt(c, x, r.y, end - x, ROLE_TEXT, "%7s ", since);
    if (r.w >= 100)
        x += cells_fmt(c, x, r.y, end - x, ROLE_DIM, "%-30.29s", v->metric);
    cells_text(c, x, r.y, end - x, condition, ROLE_DIM);
}

static void alarms_draw(const struct pane *p, const struct app *a, struct cells *c, struct rect r, int64_t now_ns)
{
    struct seen seen;
    char title[96] = "alarms: what the run is watched for";
    seen_make(&seen, p, a, now_ns);
    if (seen.n_more > 0)
        snprintf(title, sizeof title, "alarms (%d more have no room here)", seen.n_more);
    struct rect in = cells_box(c, r, title, ROLE_FOCUS, ROLE_TITLE);
    int page = alarms_page(a, r);
    if (in.h < 1)
        return;
    cells_fmt(c, in.x + 1, in.y, in.w - 2, ROLE_TITLE, "%-13s%-21s%7s %-*s%s", "state", "alarm", "since", in.w - 2 >= 100 ? 30 : 0,
              in.w - 2 >= 100 ? "metric" : "", "when");
    for (int i = 0; i < page && i + 1 < in.h; i++) {
        int64_t at = p->top + i;
        const struct alarm *outside = at < seen.n ? &seen.alarm[at] : NULL;
        const struct alarm_view *v = outside ? NULL : rule_at(p, a, at - seen.n);
        struct rect row = { in.x + 1, in.y + 1 + i, in.w - 2, 1 }, detail = { in.x + 1, in.y + in.h - 3, in.w - 2, 3 };
        if (outside)
            seen_draw(c, row, outside);
        else if (v)
            row_draw(c, row, v);
        else
            break;
        if (p->top + i != p->sel)
            continue;
        cells_select(c, (struct rect){ in.x, row.y, in.w, 1 });
        c->cursor_x = row.x;
        c->cursor_y = row.y;
        if (detail_height(r) && outside)
            seen_detail_draw(c, detail, outside);
        else if (detail_height(r))
            detail_draw(c, detail, v);
    }
    if (alarms_rows(p, a) == 0 && in.h > 1)
        cells_text(c, in.x + 1, in.y + 1, in.w - 2,
                   a->model->n_alarm ? "none contains the filter's text" : "the run's alarm book is not known", ROLE_DIM);
}

static bool alarms_act(struct pane *p, struct app *a, enum request req, int64_t now_ns)
{
    struct seen seen;
    char command[80], outside[512];
    seen_make(&seen, p, a, now_ns);
    if (p->sel < seen.n) {
        const struct alarm *o = &seen.alarm[p->sel];
        snprintf(outside, sizeof(outside), "%s\n%s", o->text, o->remedy);
        if (req == REQ_ENTER)
            whole_open(a, "an alarm", outside);
        else if (req == REQ_ACK || req == REQ_MUTE)
            app_flash(a, ROLE_WARN, now_ns, "this alarm is not of the run's book: it goes when its cause does");
        return req == REQ_ENTER || req == REQ_ACK || req == REQ_MUTE;
    }
    const struct alarm_view *v = rule_at(p, a, p->sel - seen.n);
    if (req == REQ_ENTER && v) {
        char text[1024], condition[64];
        condition_say(v, condition, sizeof(condition));
        snprintf(text, sizeof(text), "%s: %s\n%s: %s\n%s%s%s\n%s%s", v->name, alarm_state_name(v->state), v->metric, condition, v->text,
                 v->text[0] ? "\n" : "", v->remedy, v->actions[0] ? "when it begins: " : "", v->actions);
        whole_open(a, "an alarm", text);
        return true;
    }
    if ((req != REQ_ACK && req != REQ_MUTE) || !v)
        return false;
    snprintf(command, sizeof(command), "%s %s", req == REQ_ACK ? "ack" : v->state == ALARM_MUTED ? "unmute" : "mute", v->name);
    app_command(a, command, now_ns);
    return true;
}

const struct pane_type pane_alarms = {
    .name = "Alarms",
    .size = sizeof(struct pane),
    .draw = alarms_draw,
    .act = alarms_act,
    .rows = alarms_rows,
    .page = alarms_page,
};
