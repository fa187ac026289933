#include "console/fleet/since.h"
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/digest.h"
#include "protocol/base/file.h"

#define LISTED 8          // most lines of one kind
#define LINE_BYTES 128    // of a look in the file

/* ---- where looks are kept */
static bool looks_path(char *out, size_t size, bool folder)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    bool own = state && state[0] == '/';
    if (!own && (!home || home[0] != '/'))
        return false;
    int n = snprintf(out, size, "%s%s/rollcall%s", own ? state : home, own ? "" : "/.local/state", folder ? "" : "/looks");
    return n >= 0 && (size_t)n < size;
}

/* A run is known by its folder's path, and one on another machine by its name as well: 16 digits. */
static void run_key(const struct run_view *m, char out[17])
{
    struct digest d;
    char hex[65];
    digest_init(&d, true);
    digest_add(&d, m->dir, strlen(m->dir) + 1);
    digest_add(&d, m->name, strlen(m->name));
    digest_hex(&d, hex);
    snprintf(out, 17, "%.16s", hex);
}

static bool looks_read(struct buf *text)
{
    char path[PATH_MAX];
    struct error none;
    return looks_path(path, sizeof path, false) && path_exists(path) && file_read(text, path, LOOKS_MAX * LINE_BYTES, &none);
}

bool last_look_read(const struct run_view *m, struct last_look *out)
{
    struct buf text = BUF_INIT;
    char key[17], of[17];
    bool found = false;
    run_key(m, key);
    looks_read(&text);
    for (const char *line = buf_text(&text); *line && !found; line += strcspn(line, "\n"), line += *line == '\n')
        found = sscanf(line, "%16[0-9a-f] %lf %" SCNd64 " %" SCNd64, of, &out->wall_s, &out->step, &out->event) == 4
                && strcmp(of, key) == 0;
    buf_release(&text);
    const struct event_view *newest = view_event_at(m, 0);
    return found && isfinite(out->wall_s) && out->event <= (newest ? newest->id : 0);
}

void last_look_keep(const struct run_view *m, double wall_s)
{
    struct buf old = BUF_INIT, text = BUF_INIT;
    struct error none;
    char folder[PATH_MAX], path[PATH_MAX], key[17];
    const struct event_view *newest = view_event_at(m, 0);
    if (!looks_path(folder, sizeof folder, true) || !looks_path(path, sizeof path, false) || !dir_make(folder, 0700, &none))
        return;
    run_key(m, key);
    looks_read(&old);
    buf_fmt(&text, "%s %.3f %" PRId64 " %" PRId64 "\n", key, wall_s, MAX(m->n_step - 1, (int64_t)0), newest ? newest->id : (int64_t)0);
    int n = 1;
    for (const char *line = buf_text(&old); *line && n < LOOKS_MAX;) {
        size_t len = strcspn(line, "\n");
        if (len > 17 && len < LINE_BYTES && memcmp(line, key, 16) != 0) {
            buf_fmt(&text, "%.*s\n", (int)len, line);
            n++;
        }
        line += len + (line[len] == '\n');
    }
    if (!text.failed && !file_write(path, text.data, text.len, &none))
        buf_clear(&text);    // nothing is told the next time
    buf_release(&old);
    buf_release(&text);
}

/* ---- what has happened */
struct teller {
    const struct run_view *m;
    const struct last_look *look;
    struct buf *out;
};

/* The i-th newest event, if it is newer than the look. */
static const struct event_view *event_since(const struct teller *t, int64_t i)
{
    const struct event_view *e = view_event_at(t->m, i);
    return e && e->id > t->look->event ? e : NULL;
}

static bool is_alarm(const struct event_view *e)
{
    return strcmp(e->kind, "alert") == 0 || (strcmp(e->kind, "alarm") == 0 && strstr(e->detail, "\"firing\""));
}

static bool is_change(const struct event_view *e)
{
    return (strcmp(e->kind, "command") == 0 && e->change.kind != CHANGE_NOTE) || strcmp(e->kind, "return") == 0;
}

static bool is_death(const struct event_view *e)
{
    return strcmp(e->kind, "process") == 0 || strcmp(e->kind, "node") == 0;
}

static bool is_note(const struct event_view *e)
{
    return e->change.kind == CHANGE_NOTE;
}

/* A heading and the newest events of a kind, oldest first. */
static void kind_tell(const struct teller *t, const char *one, const char *several, bool (*is)(const struct event_view *e))
{
    const struct event_view *e, *listed[LISTED];
    int64_t n = 0;
    for (int64_t i = 0; (e = event_since(t, i)) != NULL; i++)
        if (is(e) && n++ < LISTED)
            listed[n - 1] = e;
    if (n == 0)
        return;
    buf_fmt(t->out, "\n%" PRId64 " %s", n, n == 1 ? one : several);
    buf_fmt(t->out, n > LISTED ? ", the newest %d:\n" : ":\n", LISTED);
    for (int64_t i = MIN(n, (int64_t)LISTED) - 1; i >= 0; i--) {
        e = listed[i];
        const char *text = is_note(e) && strncmp(e->text, "note: ", 6) == 0 ? e->text + 6 : e->text;
        buf_fmt(t->out, "  step %" PRId64 ": %s", MAX(e->step, (int64_t)0), text);
        buf_fmt(t->out, strcmp(e->who, "controller") == 0 || strcmp(e->who, "agent") == 0 ? "\n" : " (%s)\n", e->who);
    }
}

/* Each set's newest result, and the one before the look. */
static void evals_tell(const struct teller *t)
{
    for (int k = 0; k < t->m->n_eval; k++) {
        const struct event_view *e, *newest = NULL, *before = NULL;
        const char *set = t->m->eval[k].set;
        int64_t n = 0;
        for (int64_t i = 0; !before && (e = view_event_at(t->m, i)) != NULL; i++) {
            if (strcmp(e->eval.set, set) != 0)
                continue;
            newest = newest ? newest : e;
            n += e->id > t->look->event;
            before = e->id <= t->look->event ? e : NULL;
        }
        if (n == 0)
            continue;
        buf_fmt(t->out, "evaluation of %s: ", set);
        if (before)
            buf_fmt(t->out, "%.1f %% -> ", 100 * before->eval.mean);
        buf_fmt(t->out, "%.1f %% at step %" PRId64 "\n", 100 * newest->eval.mean, newest->eval.step);
    }
}

/* "stopped by ada": the reason often begins with the state's word. */
static void state_tell(const struct teller *t)
{
    const char *word = run_state_name(t->m->state), *reason = t->m->reason;
    bool has_word = strncmp(reason, word, strlen(word)) == 0;
    buf_fmt(t->out, "the run is %s%s%s\n", has_word ? reason : word, reason[0] && !has_word ? ": " : "", has_word ? "" : reason);
}

void since_print(const struct run_view *m, const struct last_look *l, double now_s, struct buf *out)
{
    struct teller t = { m, l, out };
    const struct event_view *newest = view_event_at(m, 0), *oldest = view_event_at(m, MIN(m->n_event, MODEL_EVENTS) - 1);
    int64_t step = MAX(m->n_step - 1, (int64_t)0);
    char ago[16];
    if (step == l->step && (!newest || newest->id <= l->event))
        return;
    buf_fmt(out, "You last looked %s ago, at step %" PRId64 ".\n\n", duration_format(ago, MAX(now_s - l->wall_s, 0)), l->step);
    if (step > l->step)
        buf_fmt(out, "%" PRId64 " step%s, to step %" PRId64 "\n", step - l->step, step - l->step == 1 ? "" : "s", step);
    else if (step < l->step)
        buf_fmt(out, "the run has gone back, to step %" PRId64 "\n", step);
    if (run_state_is_over(m->state) || m->state == RUN_PAUSED)
        state_tell(&t);
    evals_tell(&t);
    kind_tell(&t, "note", "notes", is_note);
    kind_tell(&t, "alarm or alert", "alarms and alerts", is_alarm);
    kind_tell(&t, "change by an operator or return to a checkpoint", "changes by operators and returns to checkpoints", is_change);
    kind_tell(&t, "death of a process, or coming and going of a node", "deaths of processes, comings and goings of nodes", is_death);
    if (oldest && oldest->id > l->event + 1)
        buf_str(out, "\nMore has happened than is kept here; 'rollcall ctl events' has all.\n");
}
