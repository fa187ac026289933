/* actions.c - what is typed after ':': commands of the console itself, and those that are sent to the run */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "console/tui/app.h"
#include "protocol/base/cli.h"
#include "protocol/wire/message.h"

#define PLAY_S 60    // seconds that a replay takes

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

void app_align(struct app *a, bool by_time, int64_t now_ns)
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
void app_seek(struct app *a, int64_t step, int64_t now_ns)
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
    if (a->feed && a->feed->seek) {
        app_seek(a, step, now_ns);
        return true;
    }
    if (step != INT64_MAX && step >= a->model->n_step)
        app_flash(a, ROLE_WARN, now_ns, "step %" PRId64 " has not been made yet; the last one is %" PRId64, step, a->model->n_step - 1);
    metrics_go(a, step);
    return true;
}

void app_play(struct app *a, int64_t now_ns)
{
    bool on = !a->playing;
    if (on && !a->replay)
        app_seek(a, 0, now_ns);    // from the beginning
    a->playing = on && a->replay;
}

void app_tick(struct app *a, int64_t now_ns)
{
    if (a->playing && !a->frozen)
        app_seek(a, a->model->step + MAX(a->replay_end / PLAY_S, (int64_t)1), now_ns);
}

static bool local_align(struct app *a, const char *rest, int64_t now_ns)
{
    bool time = strcmp(rest, "time") == 0;
    if (!time && strcmp(rest, "step") != 0)
        return false;
    app_align(a, time, now_ns);
    return true;
}

bool since_show(struct app *a, double now_s)
{
    struct buf text = { .max = sizeof a->whole.text - 1 };    // what does not fit is older
    if (a->has_look)
        since_print(a->model, &a->look, now_s, &text);
    bool any = text.len > 0;
    if (any)
        whole_open(a, "Since you last looked", buf_text(&text));
    buf_release(&text);
    return any;
}

static bool local_since(struct app *a, const char *rest, UNUSED int64_t now_ns)
{
    a->wish |= WISH_SINCE;
    return !rest[0];
}

const struct local_command local_commands[] = {
    { "pane", "NAME", "go to a pane", local_pane },
    { "filter", "TEXT", "show only rows that contain TEXT", local_filter },
    { "theme", "NAME|FILE", "draw with another theme", local_theme },
    { "align", "step|time", "show the other run (--with) by its steps, or by time", local_align },
    { "at", "STEP|end", "a live run: its charts at that step; one that is over: as it was after it", local_at },
    { "since", "", "what has happened since you last looked at this run", local_since },
    { "knob", "NAME", "go to a setting", local_knob },
    { "mouse", "", "mouse on or off", local_mouse },
    { "save-screen", "FILE", "write the screen to a file: as text, or as a picture (FILE.svg)", local_save_screen },
    { "export", "FILE", "write the metrics of the open chart, or all, as CSV", local_export },
    { "help", "", "keys and commands", local_help },
    { "quit", "", "close this console; training continues", local_quit },
    { "q", "", "the same", local_quit },
};
const int n_local_commands = ARRAY_SIZE(local_commands);

bool app_shows_the_past(const struct app *a)
{
    return a->replay || run_state_is_over(a->model->state);
}

bool app_looks_only(const struct app *a)
{
    return a->feed && a->feed->read_only;
}

void app_refuse_to_act(struct app *a, int64_t now_ns)
{
    if (app_shows_the_past(a)) {
        app_flash(a, ROLE_WARN, now_ns, "the run is over; 'rollcall train --resume %.200s' continues it", a->model->dir);
        return;
    }
    app_flash(a, ROLE_CRIT, now_ns, "refused: this console is read-only; only the run's owner can change the run, without --read-only");
}

static void command_send(struct app *a, const char *line, int64_t now_ns)
{
    struct command c;
    struct error err = { 0 };
    if (app_looks_only(a)) {
        app_refuse_to_act(a, now_ns);
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
