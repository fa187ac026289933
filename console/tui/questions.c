/* questions.c - the dialogs: what is asked before a command, and the key that answers */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "console/fleet/doctor.h"
#include "console/tui/app.h"
#include "console/tui/text.h"
#include "protocol/base/cli.h"

#define DIALOG_TEXT_W 56    // columns of a dialog's text

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

void pause_ask(struct app *a)
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

void stop_ask(struct app *a)
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

void revert_ask(struct app *a, int64_t now_ns)
{
    struct dialog *d = &a->dialog;
    if (!a->model->undo[0]) {
        app_flash(a, ROLE_WARN, now_ns, "no change of a knob is left to take back");
        return;
    }
    app_confirm(a, false, "Take back the last change of knobs?", "", "", "revert");
    dialog_text(d, 0, a->model->undo);
}

void app_confirm_text(struct app *a, bool danger, const char *title, const char *text, const char *command)
{
    app_confirm(a, danger, title, "", "", command);
    dialog_text(&a->dialog, 0, text);
}

void rollback_ask(struct app *a, const struct saved_view *to)
{
    const struct run_view *m = a->model;
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
    const struct run_view *m = a->model;
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

void doctor_show(struct app *a, int64_t now_ns)
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

bool dialog_key(struct app *a, uint32_t key, int64_t now_ns)
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
