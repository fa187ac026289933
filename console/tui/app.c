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
#include <strings.h>
#include "console/fleet/doctor.h"
#include "console/tui/text.h"
#include "protocol/base/cli.h"
#include "protocol/wire/message.h"

#define FLASH_NS ((int64_t)8 * 1000000000)
#define LEAPS 20            // of a replay from its beginning to its end
#define PLAY_S 60           // seconds that a replay takes
#define DIALOG_TEXT_W 56    // columns of a dialog's text

static const struct pane_type *const pane_types[N_PANE] = {
    [PANE_OVERVIEW] = &pane_overview, [PANE_WORKERS] = &pane_workers, [PANE_ROLLOUTS] = &pane_rollouts,
    [PANE_KNOBS] = &pane_knobs,       [PANE_LOG] = &pane_log,         [PANE_EVENTS] = &pane_events,
    [PANE_SAVED] = &pane_saved,       [PANE_ALARMS] = &pane_alarms,   [PANE_METRICS] = &pane_metrics,
    [PANE_DATA] = &pane_data,         [PANE_DEVICES] = &pane_devices, [PANE_ENVIRONMENTS] = &pane_environments,
};

const char *pane_name(enum pane_id id)
{
    return pane_types[id]->name;
}

bool app_init(struct app *a, struct model *m, struct feed *feed, int w, int h, struct error *err)
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

/* ---- commands: what is typed after ':' ---- */

static bool local_pane(struct app *a, const char *rest, UNUSED int64_t now_ns)
{
    for (int i = 0; i < N_PANE; i++)
        if (strncasecmp(pane_name((enum pane_id)i), rest, strlen(rest)) == 0 && rest[0]) {
            app_show(a, (enum pane_id)i);
            return true;
        }
    return false;
}

static bool local_quit(struct app *a, UNUSED const char *rest, UNUSED int64_t now_ns)
{
    a->wish |= WISH_QUIT;
    return true;
}

static bool local_help(struct app *a, UNUSED const char *rest, UNUSED int64_t now_ns)
{
    a->help = true;
    a->help_top = 0;
    return true;
}

static bool local_theme(struct app *a, const char *rest, UNUSED int64_t now_ns)
{
    if (!rest[0])
        return false;
    snprintf(a->theme, sizeof(a->theme), "%s", rest);
    a->wish |= WISH_THEME;
    return true;
}

static bool local_save_screen(struct app *a, const char *rest, UNUSED int64_t now_ns)
{
    if (!rest[0])
        return false;
    snprintf(a->path, sizeof(a->path), "%s", rest);
    a->wish |= WISH_SAVE_SCREEN;
    return true;
}

static bool local_export(struct app *a, const char *rest, UNUSED int64_t now_ns)
{
    if (!rest[0])
        return false;
    snprintf(a->path, sizeof(a->path), "%s", rest);
    a->wish |= WISH_SAVE_SERIES;
    return true;
}

static bool local_filter(struct app *a, const char *rest, UNUSED int64_t now_ns)
{
    snprintf(app_pane(a)->filter, INPUT_MAX, "%s", rest);
    return true;
}

static bool local_mouse(struct app *a, UNUSED const char *rest, UNUSED int64_t now_ns)
{
    a->mouse = !a->mouse;
    a->wish |= WISH_MOUSE;
    return true;
}

static bool local_knob(struct app *a, const char *rest, UNUSED int64_t now_ns)
{
    if (!rest[0])
        return false;
    app_show(a, PANE_KNOBS);
    snprintf(app_pane(a)->filter, INPUT_MAX, "%s", rest);
    app_pane(a)->sel = app_pane(a)->top = 0;
    pane_fix(app_pane(a), a);
    return true;
}

static void align(struct app *a, bool by_time, int64_t now_ns)
{
    if (!a->compare.model) {
        app_flash(a, ROLE_WARN, now_ns, "there is no other run to align; rollcall console RUN --with OTHER_RUN shows two");
        return;
    }
    a->compare.by_time = by_time;
    compare_update(&a->compare, a->model);
    app_flash(a, ROLE_DIM, now_ns, "'%s' is shown by %s", a->compare.model->name, by_time ? "the time since its first step" : "its steps");
}

/* Show a run that is over as it was after a step. */
static void seek(struct app *a, int64_t step, int64_t now_ns)
{
    if (!a->feed || !a->feed->seek) {
        app_flash(a, ROLE_WARN, now_ns, "only a run that is over can be shown as it was earlier");
        return;
    }
    if (!a->replay)
        a->replay_end = a->model->step;
    step = MAX(MIN(step, a->replay_end), (int64_t)0);
    a->replay = a->feed->seek(a->feed, a->model, step, now_ns);
    a->playing = a->playing && a->replay;
    if (!a->replay && step < a->replay_end)
        app_flash(a, ROLE_CRIT, now_ns, "the run cannot be shown as it was: there is no memory, or its folder cannot be read any more");
    if (a->archive)
        archive_until(a->archive, a->replay ? a->model->step : INT64_MAX);
    for (int i = 0; i < N_PANE; i++)
        pane_fix(a->pane[i], a);
}

static bool local_at(struct app *a, const char *rest, int64_t now_ns)
{
    int64_t step = INT64_MAX;
    if (strcmp(rest, "end") != 0 && (!parse_i64(rest, &step) || step < 0))
        return false;
    seek(a, step, now_ns);
    return true;
}

static void play(struct app *a, int64_t now_ns)
{
    bool on = !a->playing;
    if (on && !a->replay)
        seek(a, 0, now_ns);    // from the beginning
    a->playing = on && a->replay;
}

void app_tick(struct app *a, int64_t now_ns)
{
    if (a->playing && !a->frozen)
        seek(a, a->model->step + MAX(a->replay_end / PLAY_S, (int64_t)1), now_ns);
}

static bool local_align(struct app *a, const char *rest, int64_t now_ns)
{
    bool time = strcmp(rest, "time") == 0;
    if (!time && strcmp(rest, "step") != 0)
        return false;
    align(a, time, now_ns);
    return true;
}

const struct local_command local_commands[] = {
    { "pane", "NAME", "go to a pane", local_pane },
    { "filter", "TEXT", "show only rows that contain TEXT", local_filter },
    { "theme", "NAME|FILE", "draw with another theme", local_theme },
    { "align", "step|time", "show the other run (--with) by its steps, or by time", local_align },
    { "at", "STEP|end", "show a run that is over as it was after that step", local_at },
    { "knob", "NAME", "go to a setting", local_knob },
    { "mouse", "", "mouse on or off", local_mouse },
    { "save-screen", "FILE", "write the screen to a file: as text, or as a picture (FILE.svg)", local_save_screen },
    { "export", "FILE", "write the metrics of the open chart, or all, as CSV", local_export },
    { "help", "", "keys and commands", local_help },
    { "quit", "", "close this console; training continues", local_quit },
    { "q", "", "the same", local_quit },
};
const int n_local_commands = ARRAY_SIZE(local_commands);

bool app_looks_only(const struct app *a)
{
    return a->feed && a->feed->read_only;
}

static void refuse_to_act(struct app *a, int64_t now_ns)
{
    app_flash(a, ROLE_CRIT, now_ns, "refused: this console is read-only; only the run's owner can change the run, without --read-only");
}

static void command_send(struct app *a, const char *line, int64_t now_ns)
{
    struct command c;
    struct error err = { 0 };
    if (app_looks_only(a)) {
        refuse_to_act(a, now_ns);
        return;
    }
    if (!command_parse(&c, line, &err)) {
        app_flash(a, ROLE_CRIT, now_ns, "%s", err.text);
        return;
    }
    if (!a->feed) {
        app_flash(a, ROLE_CRIT, now_ns, "there is no run to send this to");
        return;
    }
    if (a->feed->command(a->feed, a->model, &c, line, now_ns, &err))
        app_flash(a, ROLE_DIM, now_ns, "%s: sent, waiting for the answer", line);
    else
        app_flash(a, ROLE_CRIT, now_ns, "%s: %s", line, err.text);
}

/* The command, of the run or the console, that is nearest to a mistyped word of n bytes; NULL: none is near. */
static const char *command_nearest(const char *word, size_t n)
{
    const char *best = NULL;
    char verb[32];
    int best_d = MIN(3, (int)n);
    snprintf(verb, sizeof(verb), "%.*s", (int)MIN(n, sizeof(verb) - 1), word);
    for (int i = 0; i < n_command_specs + n_local_commands; i++) {
        const char *name = i < n_command_specs ? command_specs[i].name : local_commands[i - n_command_specs].name;
        int d = word_distance(name, verb);
        if (d < best_d) {
            best_d = d;
            best = name;
        }
    }
    return best;
}

void app_command(struct app *a, const char *line, int64_t now_ns)
{
    line += strspn(line, " ");
    size_t n = strcspn(line, " ");
    if (n == 0)
        return;
    const char *rest = line + n + strspn(line + n, " ");
    for (int i = 0; i < n_local_commands; i++)
        if (strlen(local_commands[i].name) == n && strncmp(local_commands[i].name, line, n) == 0) {
            if (!local_commands[i].run(a, rest, now_ns))
                app_flash(a, ROLE_CRIT, now_ns, "usage: %s %s", local_commands[i].name, local_commands[i].args);
            return;
        }
    for (int i = 0; i < n_command_specs; i++)
        if (strlen(command_specs[i].name) == n && strncmp(command_specs[i].name, line, n) == 0) {
            command_send(a, line, now_ns);
            return;
        }
    const char *nearest = command_nearest(line, n);
    if (nearest)
        app_flash(a, ROLE_CRIT, now_ns, "unknown command '%.*s'; did you mean '%s'?", (int)MIN(n, (size_t)40), line, nearest);
    else
        app_flash(a, ROLE_CRIT, now_ns, "unknown command '%.*s'; :help lists the commands", (int)MIN(n, (size_t)40), line);
}

void app_confirm(struct app *a, bool danger, const char *title, const char *line1, const char *line2, const char *command)
{
    a->dialog = (struct dialog){ .danger = danger, .n_choice = 2 };
    snprintf(a->dialog.title, sizeof(a->dialog.title), "%s", title);
    snprintf(a->dialog.line[0], sizeof(a->dialog.line[0]), "%s", line1);
    snprintf(a->dialog.line[1], sizeof(a->dialog.line[1]), "%s", line2);
    a->dialog.choice[0].key = 'y';
    snprintf(a->dialog.choice[0].label, sizeof(a->dialog.choice[0].label), "yes");
    snprintf(a->dialog.choice[0].command, sizeof(a->dialog.choice[0].command), "%s", command);
    a->dialog.choice[1].key = 'n';
    snprintf(a->dialog.choice[1].label, sizeof(a->dialog.choice[1].label), "no");
}

static void pause_ask(struct app *a)
{
    static const struct {
        uint32_t key;
        const char *label, *command;
    } depths[] = {
        { 'r', "issue no new rollouts", "pause rollouts" },
        { 's', "hold after this optimizer step", "pause step" },
        { 'd', "finish what is in flight, save, hold", "pause drain" },
    };
    a->dialog = (struct dialog){ .title = "Pause: how deep?" };
    snprintf(a->dialog.line[0], sizeof(a->dialog.line[0]), "Training waits until it is resumed; nothing is lost.");
    for (size_t i = 0; i < ARRAY_SIZE(depths); i++) {
        a->dialog.choice[i].key = depths[i].key;
        snprintf(a->dialog.choice[i].label, sizeof(a->dialog.choice[i].label), "%s", depths[i].label);
        snprintf(a->dialog.choice[i].command, sizeof(a->dialog.choice[i].command), "%s", depths[i].command);
    }
    a->dialog.n_choice = ARRAY_SIZE(depths);
}

static void stop_ask(struct app *a)
{
    char line[160];
    snprintf(line, sizeof(line), "'%.30s' finishes step %" PRId64 " of %" PRId64 ", saves, and ends.", a->model->name, a->model->step + 1,
             MAX(a->model->max_steps, a->model->step + 1));
    app_confirm(a, true, "Stop the run?", line, "It can be resumed later with: rollcall train --resume", "stop");
}

/* A text in lines of a dialog, from line `at` on; returns the first one free. */
static int dialog_text(struct dialog *d, int at, const char *text)
{
    for (size_t len = strlen(text), next; len > 0 && at < (int)ARRAY_SIZE(d->line); text += next, len -= next) {
        size_t n = text_wrap(text, len, DIALOG_TEXT_W, &next);
        snprintf(d->line[at++], sizeof(d->line[0]), "%.*s", (int)MIN(n, sizeof(d->line[0]) - 1), text);
    }
    return at;
}

static void revert_ask(struct app *a, int64_t now_ns)
{
    struct dialog *d = &a->dialog;
    if (!a->model->undo[0]) {
        app_flash(a, ROLE_WARN, now_ns, "no change of a knob is left to take back");
        return;
    }
    app_confirm(a, false, "Take back the last change of knobs?", "", "", "revert");
    dialog_text(d, 0, a->model->undo);
}

void rollback_ask(struct app *a, const struct saved_view *to)
{
    const struct model *m = a->model;
    struct dialog *d = &a->dialog;
    char line[160];
    int64_t n = MAX(m->step - to->step, (int64_t)0);
    *d = (struct dialog){ .danger = true, .n_choice = 2 };
    snprintf(d->title, sizeof(d->title), "Go back to step %" PRId64 "?", to->step);
    snprintf(line, sizeof(line), "Undone: %" PRId64 " step%s%s", n, n == 1 ? "" : "s", to->changes[0] ? ", and of the knobs:" : ".");
    int at = dialog_text(d, 0, line);
    at = dialog_text(d, at, to->changes);
    dialog_text(d, MIN(at, (int)ARRAY_SIZE(d->line) - 1), "Later checkpoints are moved aside.");
    d->choice[0].key = 'y';
    snprintf(d->choice[0].label, sizeof(d->choice[0].label), "yes");
    snprintf(d->choice[0].command, sizeof(d->choice[0].command), "rollback %" PRId64, to->step);
    d->choice[1].key = 'n';
    snprintf(d->choice[1].label, sizeof(d->choice[1].label), "no");
}

bool rollback_ask_to(struct app *a, const char *to)
{
    const struct model *m = a->model;
    int64_t step = -1;
    if (strcmp(to, "change") == 0)
        step = m->before_change;
    else if (!parse_i64(to, &step))
        step = -1;
    for (int i = 0; step >= 0 && i < m->n_saved; i++)
        if (m->saved[i].step == step) {
            rollback_ask(a, &m->saved[i]);
            return true;
        }
    return false;
}

static void doctor_show(struct app *a, int64_t now_ns)
{
    struct diagnosis says = doctor_say(a->model, now_ns);
    if (says.kind == DIAGNOSIS_NONE) {
        app_flash(a, ROLE_DIM, now_ns, "nothing can be said of the run yet");
        return;
    }
    struct dialog *d = &a->dialog;
    *d = (struct dialog){ .danger = says.kind == DIAGNOSIS_CRIT };
    snprintf(d->title, sizeof(d->title), says.kind == DIAGNOSIS_BOUND ? "What bounds the run" : "What is wrong");
    int at = dialog_text(d, 0, says.text);
    dialog_text(d, at, says.remedy);
    if (says.knob) {
        d->choice[0].key = 'k';
        snprintf(d->choice[0].label, sizeof(d->choice[0].label), "go to %.40s", says.knob);
        snprintf(d->choice[0].command, sizeof(d->choice[0].command), "knob %s", says.knob);
        d->n_choice = 1;
    }
}

/* ---- keys ---- */

static bool dialog_key(struct app *a, uint32_t key, int64_t now_ns)
{
    struct dialog *d = &a->dialog;
    if (!d->title[0])
        return false;
    for (int i = 0; i < d->n_choice; i++)
        if (d->choice[i].key == key) {
            char command[INPUT_MAX];
            memcpy(command, d->choice[i].command, sizeof(command));
            d->title[0] = 0;
            if (command[0])
                app_command(a, command, now_ns);
            return true;
        }
    if (key == KEY_ESCAPE || key == KEY_CTRL('c') || key == 'q' || key == 'n')
        d->title[0] = 0;
    return key != KEY_CTRL('l') && key != KEY_CTRL('z');    // everything else waits for the answer
}

static bool help_key(struct app *a, enum request req)
{
    if (!a->help)
        return false;
    int page = MAX(a->h - 4, 1), last = MAX(help_rows() - page, 0);
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

/* What a request means when the pane does not take it. */
static void common_act(struct app *a, enum request req, int64_t now_ns)
{
    struct pane *p = app_pane(a);
    int64_t n = p->type->rows ? p->type->rows(p, a) : 0;
    int page = p->type->rows ? p->type->page(a, app_body(a)) : 1;
    switch (req) {
    case REQ_HELP: local_help(a, "", now_ns); break;
    case REQ_QUIT:
        if (!pane_close(p))
            a->wish |= WISH_QUIT;
        break;
    case REQ_INTERRUPT: app_confirm(a, false, "Quit this console?", "Training continues.", "", "quit"); break;
    case REQ_BACK: step_back(a, now_ns); break;
    case REQ_PROMPT: prompt_open(a, PROMPT_COMMAND, ""); break;
    case REQ_FILTER: prompt_open(a, PROMPT_FILTER, p->filter); break;
    case REQ_PANE_1:
    case REQ_PANE_2:
    case REQ_PANE_3:
    case REQ_PANE_4:
    case REQ_PANE_5:
    case REQ_PANE_6:
    case REQ_PANE_7:
    case REQ_PANE_8:
    case REQ_PANE_9:
    case REQ_PANE_10:
    case REQ_PANE_11:
    case REQ_PANE_12: app_show(a, (enum pane_id)(req - REQ_PANE_1)); break;
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
    case REQ_SEEK_BACK: seek(a, a->model->step - 1, now_ns); break;
    case REQ_SEEK_ON: seek(a, a->model->step + 1, now_ns); break;
    case REQ_LEAP_BACK:
    case REQ_LEAP_ON: {
        int64_t by = MAX((a->replay ? a->replay_end : a->model->step) / LEAPS, (int64_t)1);
        seek(a, a->model->step + (req == REQ_LEAP_ON ? by : -by), now_ns);
        break;
    }
    case REQ_PLAY: play(a, now_ns); break;
    case REQ_ALIGN: align(a, !a->compare.by_time, now_ns); break;
    case REQ_MOUSE: local_mouse(a, "", now_ns); break;
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
            int w = tab_width(a, i);
            if (k->x >= x && k->x < x + w) {
                common_act(a, (enum request)(REQ_PANE_1 + i), now_ns);
                return;    // the tabs have moved
            }
            x += w;
        }
    } else if (k->y >= l.body.y && k->y < l.body.y + l.body.h && p->type->rows) {
        int first = l.body.h - p->type->page(a, l.body) - 1;    // heading rows above the list
        int64_t row = p->top + (k->y - l.body.y) - MAX(first, 1);
        if (row >= 0 && row < p->type->rows(p, a))
            p->sel = row;
        pane_fix(p, a);
    }
}

void app_key(struct app *a, const struct key_event *k, int64_t now_ns)
{
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
    if (request_acts(req) && app_looks_only(a)) {
        refuse_to_act(a, now_ns);
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
    const struct event_view *e = model_event_at(a->model, 0);
    int64_t newest = e ? e->id : 0;
    for (int64_t i = 0; a->heard > 0 && (e = model_event_at(a->model, i)) != NULL && e->id > a->heard; i++)
        if (e->rings)
            a->wish |= WISH_BELL;
    a->heard = MAX(newest, a->heard);
}

void app_news(struct app *a, int64_t now_ns)
{
    const struct model *m = a->model;
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
