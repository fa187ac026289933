/* app.c - see app.h
 *
 * A key is offered, in this order, to the dialog, the prompt, the help page, the pane, and then to what all panes share, until one
 * takes it. Esc closes one of these layers at a time. */
#include "console/tui/app.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define FLASH_NS ((int64_t)8 * 1000000000)
#define LEAPS 20    // of a replay from its beginning to its end

#define PANE_OF(id, type, key, keys, help) [PANE_##id] = &pane_##type,
static const struct pane_type *const pane_types[N_PANE] = { PANES(PANE_OF) };

const char *pane_name(enum pane_id id)
{
    return pane_types[id]->name;
}

bool app_init(struct app *a, struct run_view *m, struct feed *feed, int w, int h, struct error *err)
{
    *a = (struct app){ .model = m, .feed = feed, .w = w, .h = h, .color = true, .mouse = true };
    for (int i = 0; i < N_PANE; i++)
        if (!(a->pane[i] = pane_new(pane_types[i]))) {
            app_release(a);
            return error_set(err, ERR_NO_MEMORY, "no memory for the console's panes");
        }
    return true;
}

void app_release(struct app *a)
{
    compare_release(&a->compare);
    for (int i = 0; i < N_PANE; i++) {
        pane_free(a->pane[i]);
        a->pane[i] = NULL;
    }
}

void app_show(struct app *a, enum pane_id id)
{
    pane_close(app_pane(a));
    a->whole.text[0] = 0;
    a->shown = id;
    pane_fix(app_pane(a), a);
}

struct rect app_body(const struct app *a)
{
    return layout_make(a->w, a->h).body;
}

void app_flash(struct app *a, enum role role, int64_t now_ns, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(a->flash, sizeof(a->flash), fmt, args);
    va_end(args);
    a->flash_role = role;
    a->flash_ns = now_ns;
}

enum role verdict_role(enum proc_verdict v)
{
    switch (v) {
    case PROC_OK: return ROLE_OK;
    case PROC_SLOW: return ROLE_WARN;
    case PROC_STUCK: return ROLE_CRIT;
    case PROC_SILENT: return ROLE_STALE;
    }
    return ROLE_TEXT;
}

enum role level_role(enum line_level l)
{
    switch (l) {
    case LINE_ERROR: return ROLE_CRIT;
    case LINE_WARN: return ROLE_WARN;
    case LINE_DEBUG: return ROLE_DIM;
    case LINE_INFO:
    case LINE_OTHER: break;
    }
    return ROLE_TEXT;
}

enum role reward_role(double reward)
{
    return isnan(reward) ? ROLE_STALE : reward > 0.5 ? ROLE_OK : reward > 0 ? ROLE_WARN : ROLE_CRIT;
}

void app_resize(struct app *a, int w, int h)
{
    a->w = w;
    a->h = h;
    pane_fix(app_pane(a), a);
}
/* ---- keys ---- */

static bool help_key(struct app *a, enum request req)
{
    if (!a->help)
        return false;
    int page = MAX(a->h - 4, 1), last = MAX(help_rows(a) - page, 0);
    switch (req) {
    case REQ_UP: a->help_top--; break;
    case REQ_DOWN: a->help_top++; break;
    case REQ_PAGE_UP: a->help_top -= page; break;
    case REQ_PAGE_DOWN: a->help_top += page; break;
    case REQ_TOP: a->help_top = 0; break;
    case REQ_BOTTOM: a->help_top = last; break;
    case REQ_HELP:
    case REQ_BACK:
    case REQ_QUIT:
    case REQ_INTERRUPT: a->help = false; break;
    default: return req != REQ_REDRAW && req != REQ_SUSPEND;
    }
    a->help_top = MAX(MIN(a->help_top, last), 0);
    return true;
}

static void list_move(struct app *a, int64_t delta)
{
    app_pane(a)->sel += delta;
    pane_fix(app_pane(a), a);
}

static void step_back(struct app *a, int64_t now_ns)
{
    struct pane *p = app_pane(a);
    if (!pane_close(p)) {
        if (p->filter[0])
            p->filter[0] = 0;
        else if (a->frozen)
            a->frozen = false;
        else if (now_ns - a->flash_ns < FLASH_NS)
            a->flash[0] = 0;
    }
    pane_fix(p, a);
}

static void message_show(struct app *a, int64_t now_ns)
{
    char text[MESSAGE_MAX + sizeof(a->flash) + 64];
    message_line(a, now_ns, text, MESSAGE_MAX);
    if (a->flash[0] && strcmp(text, a->flash) != 0) {    // it has left its line: it is older than what stands there
        size_t len = strlen(text);
        snprintf(text + len, sizeof(text) - len, "%s%s", len ? "\n\nbefore it, this console said: " : "", a->flash);
    }
    whole_open(a, "the newest message", text[0] ? text : "there was none yet");
}

/* What a request means when the pane does not take it. */
static void common_act(struct app *a, enum request req, int64_t now_ns)
{
    struct pane *p = app_pane(a);
    int64_t n = p->type->rows ? p->type->rows(p, a) : 0;
    int page = p->type->rows ? p->type->page(a, app_body(a)) : 1;
    switch (req) {
    case REQ_HELP: app_command(a, "help", now_ns); break;
    case REQ_QUIT:
        if (!pane_close(p))
            a->wish |= WISH_QUIT;
        break;
    case REQ_INTERRUPT: app_confirm(a, false, "Quit this console?", "Training continues.", "", "quit"); break;
    case REQ_BACK: step_back(a, now_ns); break;
    case REQ_PROMPT: prompt_open(a, PROMPT_COMMAND, ""); break;
    case REQ_FILTER: prompt_open(a, PROMPT_FILTER, p->filter); break;
#define PANE_CASE(id, type, key, keys, help)                                                                                               \
    case REQ_PANE_##id: app_show(a, PANE_##id); break;
        PANES(PANE_CASE)
    case REQ_PANE_NEXT:
    case REQ_PANE_PREV: app_show(a, (enum pane_id)((a->shown + (req == REQ_PANE_NEXT ? 1 : N_PANE - 1)) % N_PANE)); break;
    case REQ_UP: list_move(a, -1); break;
    case REQ_DOWN: list_move(a, 1); break;
    case REQ_PAGE_UP: list_move(a, -page); break;
    case REQ_PAGE_DOWN: list_move(a, page); break;
    case REQ_TOP: list_move(a, -n); break;
    case REQ_BOTTOM: list_move(a, n); break;
    case REQ_PAUSE: pause_ask(a); break;
    case REQ_RESUME: app_command(a, "resume", now_ns); break;
    case REQ_CHECKPOINT: app_command(a, "checkpoint", now_ns); break;
    case REQ_EVAL: app_command(a, "eval", now_ns); break;
    case REQ_STOP: stop_ask(a); break;
    case REQ_REVERT: revert_ask(a, now_ns); break;
    case REQ_ACK: app_command(a, "ack all", now_ns); break;
    case REQ_REWIND:
        if (!rollback_ask_to(a, "change"))
            app_flash(a, ROLE_WARN, now_ns, "no checkpoint is known from before a change of knobs");
        break;
    case REQ_FREEZE: a->frozen = !a->frozen; break;
    case REQ_DOCTOR: doctor_show(a, now_ns); break;
    case REQ_INFO: message_show(a, now_ns); break;
    case REQ_SEEK_BACK: app_seek(a, a->model->step - 1, now_ns); break;
    case REQ_SEEK_ON: app_seek(a, a->model->step + 1, now_ns); break;
    case REQ_LEAP_BACK:
    case REQ_LEAP_ON: {
        int64_t by = MAX((a->replay ? a->replay_end : a->model->step) / LEAPS, (int64_t)1);
        app_seek(a, a->model->step + (req == REQ_LEAP_ON ? by : -by), now_ns);
        break;
    }
    case REQ_PLAY: app_play(a, now_ns); break;
    case REQ_ALIGN: app_align(a, !a->compare.by_time, now_ns); break;
    case REQ_MOUSE: app_command(a, "mouse", now_ns); break;
    case REQ_THEME:
        a->theme[0] = 0;    // switch to the other one
        a->wish |= WISH_THEME;
        break;
    case REQ_REDRAW: a->wish |= WISH_REDRAW; break;
    case REQ_SUSPEND: a->wish |= WISH_SUSPEND; break;
    default: break;
    }
    pane_fix(app_pane(a), a);
}

/* A click on a tab opens it, a click on a row of a list selects it; the wheel moves like the arrows. */
static void mouse_act(struct app *a, const struct key_event *k, int64_t now_ns)
{
    struct layout l = layout_make(a->w, a->h);
    struct pane *p = app_pane(a);
    if (k->key == KEY_WHEEL_UP || k->key == KEY_WHEEL_DOWN) {
        enum request req = k->key == KEY_WHEEL_UP ? REQ_UP : REQ_DOWN;
        for (int i = 0; i < 3; i++)
            if (!help_key(a, req) && !pane_act(app_pane(a), a, req, now_ns))
                common_act(a, req, now_ns);
        return;
    }
    if (l.tiny || a->help)
        return;
    if (k->y == l.tabs.y) {
        for (int i = 0, x = l.tabs.x + 1; i < N_PANE; i++) {
            int w = tab_width(a, i, now_ns);
            if (k->x >= x && k->x < x + w) {
                app_show(a, (enum pane_id)i);
                return;    // the tabs have moved
            }
            x += w;
        }
    } else if (k->y < l.body.y || k->y >= l.body.y + l.body.h || k->x < l.body.x || k->x >= l.body.x + l.body.w) {
        return;
    } else if (!(p->type->click && p->type->click(p, a, l.body, k->x, k->y)) && p->type->rows) {
        int at = k->y - l.body.y - (p->type->head ? p->type->head(l.body) : 2);
        if (at >= 0 && at < p->type->page(a, l.body) && p->top + at < p->type->rows(p, a))
            p->sel = p->top + at;
    }
    pane_fix(p, a);
}

void app_key(struct app *a, const struct key_event *k, int64_t now_ns)
{
    a->now_ns = now_ns;
    if (k->key == KEY_CLICK || k->key == KEY_WHEEL_UP || k->key == KEY_WHEEL_DOWN) {
        if (!a->dialog.title[0] && a->prompt.kind == PROMPT_NONE)
            mouse_act(a, k, now_ns);
        return;
    }
    if (dialog_key(a, k->key, now_ns) || prompt_key(a, k->key, now_ns))
        return;
    enum request req = key_request(k->key, a->shown);
    if (req == REQ_NONE)
        return;
    if (help_key(a, req) || whole_key(a, req))
        return;
    if (request_acts(req) && (app_looks_only(a) || app_shows_the_past(a))) {
        app_refuse_to_act(a, now_ns);
        return;
    }
    if (!pane_act(app_pane(a), a, req, now_ns))
        common_act(a, req, now_ns);
    pane_fix(app_pane(a), a);
}

void app_paste(struct app *a, const char *text, int64_t size_bytes, int64_t now_ns)
{
    if (a->prompt.kind != PROMPT_NONE && !a->dialog.title[0])
        prompt_paste(a, text, size_bytes, now_ns);
    else
        app_flash(a, ROLE_WARN, now_ns, "pasted text (%" PRId64 " bytes) was dropped; press : or / first to paste into a line", size_bytes);
}

/* Alarms that have begun since the console was opened, and want the bell. */
static void alarms_ring(struct app *a)
{
    const struct event_view *e = view_event_at(a->model, 0);
    int64_t newest = e ? e->id : 0;
    for (int64_t i = 0; a->heard > 0 && (e = view_event_at(a->model, i)) != NULL && e->id > a->heard; i++)
        if (e->rings)
            a->wish |= WISH_BELL;
    a->heard = MAX(newest, a->heard);
}

void app_news(struct app *a, int64_t now_ns)
{
    a->now_ns = now_ns;
    const struct run_view *m = a->model;
    for (int64_t i = MAX(m->n_command - MODEL_COMMANDS, 0); i < m->n_command; i++) {
        const struct command_view *c = &m->command[i % MODEL_COMMANDS];
        if (c->answered_ns <= a->answered)
            continue;
        a->answered = c->answered_ns;
        bool refused = c->state == COMMAND_REFUSED && strncmp(c->answer, "refused: ", 9) != 0;
        app_flash(a, c->state == COMMAND_DONE ? ROLE_OK : ROLE_CRIT, now_ns, "%s%s: %s", refused ? "refused: " : "", c->text, c->answer);
    }
    alarms_ring(a);
    compare_update(&a->compare, m);
    pane_fix(app_pane(a), a);
}

void app_archive_wants(const struct app *a)
{
    rollouts_want(a);
    if (a->shown == PANE_DATA)
        archive_want(a->archive, data_wants(a));
}

void app_draw(const struct app *a, struct cells *c, int64_t now_ns, double wall_s)
{
    struct layout l = layout_make(c->w, c->h);
    cells_clear(c);
    if (!l.tiny && !a->help)
        app_pane(a)->type->draw(app_pane(a), a, c, l.body, now_ns);
    if (!l.tiny && !a->help)
        whole_draw(a, c);
    if (!l.tiny && !a->help)
        palette_draw(a, c, l.body);
    frame_draw(a, c, &l, now_ns, wall_s);
    if (a->help && !l.tiny)
        help_draw(a, c);
    if (a->dialog.title[0])
        dialog_draw(a, c);
}
