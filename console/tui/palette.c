/* palette.c - what can be typed at the ':' prompt next, with its help: for completion, and listed above the prompt as it is typed */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "console/tui/app.h"
#include "protocol/wire/message.h"

#define ROWS_MAX 10
#define WORD_W 24

static bool step_candidate(const struct app *a, const char *verb, int i, struct candidate *out)
{
    const struct run_view *m = a->model;
    if (i < m->n_saved) {
        snprintf(out->word, sizeof(out->word), "%" PRId64, m->saved[i].step);
        out->help = m->saved[i].why;
        return true;
    }
    if (i > m->n_saved || strcmp(verb, "rollback") != 0)
        return false;
    *out = (struct candidate){ .word = "change", .help = "to before the last change of knobs" };
    return true;
}

static bool alarm_candidate(const struct app *a, int i, struct candidate *out)
{
    if (i > a->model->n_alarm)
        return false;
    snprintf(out->word, sizeof(out->word), "%s", i == 0 ? "all" : a->model->alarm[i - 1].name);
    out->help = i == 0 ? "" : a->model->alarm[i - 1].metric;
    return true;
}

static bool word_candidate(const char *const *word, int n, int i, struct candidate *out)
{
    if (i < n)
        snprintf(out->word, sizeof(out->word), "%s", word[i]);
    return i < n;
}

static bool command_candidate(const struct app *a, int i, struct candidate *out)
{
    int n = app_looks_only(a) ? 0 : n_command_specs;
    if (i >= n + n_local_commands)
        return false;
    const struct local_command *l = i < n ? NULL : &local_commands[i - n];
    snprintf(out->word, sizeof(out->word), "%s", l ? l->name : command_specs[i].name);
    out->args = l ? l->args : command_specs[i].args;
    out->help = l ? l->help : command_specs[i].help;
    return true;
}

bool palette_candidate(const struct app *a, const char *verb, int i, struct candidate *out)
{
    static const char *const depths[] = { "rollouts", "step", "drain" }, *const aligned[] = { "step", "time" };
    *out = (struct candidate){ .args = "", .help = "" };
    if (!verb[0])
        return command_candidate(a, i, out);
    if (strcmp(verb, "set") == 0 || strcmp(verb, "knob") == 0) {
        if (i >= n_knobs)
            return false;
        if (strcmp(verb, "knob") == 0 || knob_is_live(&knobs[i]))    // else an empty word: it is none
            snprintf(out->word, sizeof(out->word), "%s", knobs[i].name);
        out->args = a->model->knob[i].text;
        out->help = knobs[i].help;
        return true;
    }
    if (strcmp(verb, "pause") == 0)
        return word_candidate(depths, ARRAY_SIZE(depths), i, out);
    if (strcmp(verb, "align") == 0)
        return word_candidate(aligned, ARRAY_SIZE(aligned), i, out);
    if (strcmp(verb, "pane") == 0) {
        if (i < N_PANE)
            snprintf(out->word, sizeof(out->word), "%s", pane_name((enum pane_id)i));
        return i < N_PANE;
    }
    if (strcmp(verb, "rollback") == 0 || strcmp(verb, "pin") == 0 || strcmp(verb, "unpin") == 0)
        return step_candidate(a, verb, i, out);
    if (strcmp(verb, "ack") == 0 || strcmp(verb, "mute") == 0 || strcmp(verb, "unmute") == 0)
        return alarm_candidate(a, i, out);
    if (strcmp(verb, "restart") == 0 && i < a->model->n_proc) {
        snprintf(out->word, sizeof(out->word), "%s", a->model->proc[i].name);
        out->help = a->model->proc[i].phase;
        return true;
    }
    return false;
}

void palette_split(const struct prompt *p, char verb[32], char prefix[INPUT_MAX], int *from)
{
    *from = p->at;
    while (*from > 0 && p->text[*from - 1] != ' ')
        (*from)--;
    snprintf(prefix, INPUT_MAX, "%.*s", p->at - *from, p->text + *from);
    snprintf(verb, 32, "%.*s", *from == 0 ? 0 : (int)MIN(strcspn(p->text, " "), (size_t)31), p->text);
}

/* The candidates that begin with what has been typed, or where none does those that contain it; returns how many, of which the first
 * max are in out. */
static int matches_find(const struct app *a, const char *verb, const char *prefix, struct candidate *out, int max)
{
    for (int anywhere = 0; anywhere < 2; anywhere++) {
        struct candidate k;
        int n = 0;
        for (int i = 0; palette_candidate(a, verb, i, &k); i++) {
            bool fits = anywhere ? strcasestr(k.word, prefix) != NULL : strncmp(k.word, prefix, strlen(prefix)) == 0;
            if (k.word[0] && fits && n++ < max)
                out[n - 1] = k;
        }
        if (n > 0)
            return n;
    }
    return 0;
}

void palette_draw(const struct app *a, struct cells *c, struct rect body)
{
    struct candidate k[ROWS_MAX];
    char verb[32], prefix[INPUT_MAX], title[48] = "";
    int from, most = MIN(ROWS_MAX, body.h - 3);
    if (a->prompt.kind != PROMPT_COMMAND || a->prompt.recall > 0 || most < 1)
        return;
    palette_split(&a->prompt, verb, prefix, &from);
    if (strchr(prefix, '='))
        return;    // a value is being typed
    int all = matches_find(a, verb, prefix, k, most), n = MIN(all, most);
    if (n == 0)
        return;
    if (all > n)
        snprintf(title, sizeof(title), "%d of %d: Tab completes", n, all);
    struct rect r = { body.x, body.y + body.h - n - 2, MIN(body.w, 100), n + 2 };
    cells_fill(c, r, ' ', ROLE_TEXT);
    struct rect in = cells_box(c, r, title[0] ? title : "Tab completes", ROLE_FOCUS, ROLE_TITLE);
    for (int i = 0; i < n; i++) {
        int x = in.x + 1, y = in.y + i, end = in.x + in.w - 1;
        int w = cells_text(c, x, y, MIN(WORD_W, end - x), k[i].word, ROLE_KEY);
        cells_text(c, x + w + 1, y, MIN(MAX(WORD_W - w, 12), end - x - w - 1), k[i].args ? k[i].args : "", ROLE_DIM);
        x += MAX(WORD_W, w) + 14;
        if (x < end)
            cells_text(c, x, y, end - x, k[i].help ? k[i].help : "", ROLE_TEXT);
    }
}
