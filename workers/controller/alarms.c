#include "workers/controller/alarms.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include "protocol/base/child.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "protocol/run/spawn.h"
#include "workers/controller/controller.h"
#include "workers/controller/rollback.h"
#include "workers/engine/reward/reward.h"

#define VALUE "alarms"    // the journal's name of the states

/* ---- what has been ---- */

static void past_add(struct alarm_now *a, double value)
{
    if (a->n == ALARM_HELD)
        memmove(a->past, a->past + 1, (size_t)--a->n * sizeof *a->past);
    a->past[a->n++] = value;
}

static bool past_step(void *arg, const struct journal_step *s)
{
    struct controller *c = arg;
    struct alarms *all = &c->alarms;
    doctor_past(&c->doctor, s);    // the same steps
    for (int i = 0; i < all->book.n; i++) {
        double value = NAN;
        for (int k = 0; k < s->n; k++)
            if (strcmp(s->metric[k].name, all->book.rule[i].metric) == 0)
                value = s->metric[k].value;
        past_add(&all->now[i], value);
    }
    return true;
}

static bool past_load(struct controller *c, struct error *err)
{
    int64_t last;
    c->doctor.n = c->doctor.at = 0;
    for (int i = 0; i < c->alarms.book.n; i++)
        c->alarms.now[i].n = 0;
    /* superseded rows have numbers too, so some more are read than are held */
    return journal_last_seq(c->journal, &last, err)
           && journal_steps_read(c->journal, MAX(last - 8 * ALARM_HELD, (int64_t)0), past_step, c, err);
}

/* ---- the journal ---- */

static bool states_save(struct controller *c, struct error *err)
{
    json_t *all = json_object();
    for (int i = 0; i < c->alarms.book.n; i++) {
        const struct alarm_now *a = &c->alarms.now[i];
        if (a->state != ALARM_QUIET)
            json_object_set_new(
                all, c->alarms.book.rule[i].name,
                json_pack("{s:s, s:I, s:s}", "state", alarm_state_name(a->state), "step", (json_int_t)a->step, "text", a->text));
    }
    char *text = json_text_dump(all, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(all);
    bool ok = text ? transaction(c, err) && journal_value_put(c->journal, VALUE, text, strlen(text), err)
                   : error_set(err, ERR_NO_MEMORY, "no memory for the alarms");
    free(text);
    return ok;
}

static bool states_load(struct controller *c, struct error *err)
{
    struct buf text = BUF_INIT;
    bool found;
    if (!journal_value_get(c->journal, VALUE, &text, &found, err))
        return false;
    json_error_t je;
    json_t *all = found ? json_text_read(text.data, text.len, 0, &je) : NULL;
    for (int i = 0; i < c->alarms.book.n; i++) {
        struct alarm_now *a = &c->alarms.now[i];
        const json_t *o = json_object_get(all, c->alarms.book.rule[i].name);
        const char *state = json_string_value(json_object_get(o, "state")), *says = json_string_value(json_object_get(o, "text"));
        a->state = state ? alarm_state_find(state, strlen(state)) : ALARM_QUIET;
        a->step = json_integer_value(json_object_get(o, "step"));
        snprintf(a->text, sizeof a->text, "%s", says ? says : "");
    }
    json_decref(all);
    buf_release(&text);
    return true;
}

/* Where the reward type's own system prompt is in force, which nobody may have thought of, the alarms that it can cause say so. */
static void system_prompt_say(struct controller *c)
{
    static const char *const caused[] = { "reward_zero", "no_spread", "truncated" };
    static const char says[] = "; prompts have the reward_type's own system prompt: compare with 'rollcall eval --system-prompt none'";
    if (c->config.system_prompt[0] || run_config_posted(&c->config) || !reward_system_prompt(c->config.reward_type))
        return;
    for (size_t i = 0; i < ARRAY_SIZE(caused); i++)
        for (int k = 0; k < c->alarms.book.n; k++) {
            struct alarm_rule *r = &c->alarms.book.rule[k];
            size_t n = strlen(r->remedy);
            if (strcmp(r->name, caused[i]) == 0 && n + strlen(says) < sizeof r->remedy)
                snprintf(r->remedy + n, sizeof r->remedy - n, "%s", says);
        }
}

bool alarms_open(struct controller *c, struct error *err)
{
    char path[4200];
    alarm_book_init(&c->alarms.book);
    snprintf(path, sizeof path, "%s/alarms.yaml", c->process.run_dir);
    if (path_exists(path) && !alarm_book_read(&c->alarms.book, path, err))
        return false;
    system_prompt_say(c);
    return states_load(c, err) && past_load(c, err);
}

/* ---- what follows ---- */

/* Run a rule's command in the background, on its own: nobody waits for it, and it does not keep the run's lock. */
static void command_run(const struct controller *c, const struct alarm_rule *r, const char *text)
{
    char name[80], says[560], step[64], run[4200];
    char *const argv[] = { "sh", "-c", "timeout 60 sh -c \"$0\" </dev/null >/dev/null 2>&1 &", (char *)r->command, NULL };
    extern char **environ;
    posix_spawn_file_actions_t files;
    pid_t pid;
    int n = 0, n_env = 0;
    while (environ[n_env])
        n_env++;
    char **env = calloc((size_t)n_env + 5, sizeof *env);
    if (!env)
        return;
    snprintf(name, sizeof name, "ROLLCALL_ALARM=%s", r->name);
    snprintf(says, sizeof says, "ROLLCALL_TEXT=%s", text);
    snprintf(step, sizeof step, "ROLLCALL_STEP=%" PRId64, c->step);
    snprintf(run, sizeof run, "ROLLCALL_RUN=%s", c->process.run_dir);
    for (; n < n_env; n++)
        env[n] = environ[n];
    env[n++] = name;
    env[n++] = says;
    env[n++] = step;
    env[n++] = run;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addclose(&files, RUN_LOCK_FD);
    if (child_spawn(&pid, "/bin/sh", &files, 0, argv, env) == 0)
        waitpid(pid, NULL, 0);    // the shell leaves at once
    else
        log_warn("the command of alarm '%s' cannot be started", r->name);
    posix_spawn_file_actions_destroy(&files);
    free(env);
}

static void actions_take(struct controller *c, const struct alarm_rule *r, const char *text, bool after_change)
{
    char who[JOURNAL_WHY];
    snprintf(who, sizeof who, "alarm %s", r->name);
    if (r->command[0])
        command_run(c, r, text);
    if (r->actions & ALARM_CHECKPOINT)
        checkpoints_want(&c->checkpoints, c->step, who);
    if ((r->actions & ALARM_ROLLBACK) && !rollback_want(c, after_change, who))
        log_warn("%s: there is nothing to go back to", who);
    if ((r->actions & ALARM_PAUSE) || ((r->actions & ALARM_ROLLBACK) && !after_change))    // else it would only happen again
        orders_pause(c, PAUSE_STEP, who);
}

/* ", 3 steps after learning_rate 0.0001 -> 0.1"; false: no change was so near. */
static bool after_say(const struct controller *c, struct buf *out)
{
    struct buf change = { .max = 256 };
    int64_t made = changes_made_last(&c->changes);
    bool near = made >= 0 && made <= c->step && c->step - made <= ALARM_AFTER;    // after a return it may lie ahead
    if (near) {
        changes_last_say(&c->changes, &change);
        buf_fmt(out, ", %" PRId64 " step%s after %s", c->step - made, c->step - made == 1 ? "" : "s", buf_text(&change));
    }
    buf_release(&change);
    return near;
}

static json_t *facts_of(const struct alarm_rule *r, enum alarm_state state, double value)
{
    char list[64];
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "alarm", r->name, "state", alarm_state_name(state), "severity",
                          r->critical ? "critical" : "warning", "metric", r->metric, "remedy", r->remedy, "actions",
                          alarm_actions_text(r->actions, list));
    if (isfinite(value))
        json_object_set_new(o, "value", json_real(value));
    return o;
}

static void begins(struct controller *c, const struct alarm_rule *r, struct alarm_now *a, double value)
{
    struct buf text = { .max = sizeof a->text - 1 };
    char says[200];
    alarm_say(r, value, says, sizeof says);
    buf_str(&text, says);
    bool after = after_say(c, &text);
    a->state = ALARM_FIRING;
    a->step = c->step;
    snprintf(a->text, sizeof a->text, "%s", text.failed ? says : buf_text(&text));
    buf_release(&text);
    json_t *facts = facts_of(r, ALARM_FIRING, value);
    if (after)
        json_object_set_new(facts, "after_change", json_integer(changes_made_last(&c->changes)));
    event_add_facts(c, "alarm", "controller", a->text, facts);
    actions_take(c, r, a->text, after);
}

static void ends(struct controller *c, const struct alarm_rule *r, struct alarm_now *a)
{
    char text[128];
    int64_t n = c->step - a->step;
    snprintf(text, sizeof text, "%s is over after %" PRId64 " step%s", r->name, n, n == 1 ? "" : "s");
    *a->text = 0;
    a->state = ALARM_QUIET;
    event_add_facts(c, "alarm", "controller", text, facts_of(r, ALARM_QUIET, NAN));
}

/* An external engine, or the server that environments ask, rounds otherwise than the trainer, so that they agree to the bit is not to be
 * expected. A bound of the user's is. */
static bool is_moot(const struct controller *c, const struct alarm_rule *r)
{
    return (run_config_external(&c->config) || run_config_posted(&c->config))
           && strcmp(r->metric, metrics[M_SAMPLER_TRAINER_DIFF].name) == 0 && r->limit == 0;
}

void alarms_step(struct controller *c)
{
    struct error err;
    bool moved = false;
    for (int i = 0; i < c->alarms.book.n; i++) {
        const struct alarm_rule *r = &c->alarms.book.rule[i];
        struct alarm_now *a = &c->alarms.now[i];
        double value = step_metric(&c->metrics, r->metric);
        past_add(a, value);
        bool holds = r->on && !is_moot(c, r) && a->state != ALARM_MUTED && alarm_holds(r, a->past, a->n),
             held = a->state == ALARM_FIRING || a->state == ALARM_ACKNOWLEDGED;
        if (holds == held)
            continue;
        moved = true;
        if (holds)
            begins(c, r, a, value);
        else
            ends(c, r, a);
    }
    if (moved && !states_save(c, &err))
        log_error("%s", err.text);
}

void alarms_back(struct controller *c)
{
    struct error err;
    for (int i = 0; i < c->alarms.book.n; i++)
        if (c->alarms.now[i].state != ALARM_MUTED && c->alarms.now[i].step > c->step) {
            c->alarms.now[i].state = ALARM_QUIET;
            *c->alarms.now[i].text = 0;
        }
    if (!states_save(c, &err) || !past_load(c, &err))
        log_error("%s", err.text);
}

void alarms_write(const struct controller *c, struct msg_out *m)
{
    char list[64];
    msg_list(m, "alarms");
    for (int i = 0; i < c->alarms.book.n; i++) {
        const struct alarm_rule *r = &c->alarms.book.rule[i];
        const struct alarm_now *a = &c->alarms.now[i];
        if (!r->on)
            continue;
        msg_map(m, NULL);
        msg_str(m, "name", r->name);
        msg_str(m, "state", alarm_state_name(a->state));
        msg_bool(m, "critical", r->critical);
        msg_str(m, "metric", r->metric);
        msg_str(m, "when", alarm_when_name(r->when));
        msg_f64(m, "limit", r->limit);
        msg_i64(m, "steps", r->steps);
        msg_str(m, "text", a->text);
        msg_str(m, "remedy", r->remedy);
        msg_str(m, "actions", alarm_actions_text(r->actions, list));
        msg_i64(m, "step", a->step);
        msg_end(m);
    }
    msg_end(m);
}

/* ---- commands ---- */

/* Set the state of the alarm that is named, or with "all" of each that may have it. */
static bool state_order(struct controller *c, const struct mval *args, const char *verb, bool (*may)(enum alarm_state), enum alarm_state to,
                        struct effect *effect, struct error *err)
{
    char name[64];
    bool all = strcmp(mval_text(args, "alarm", name, sizeof name), "all") == 0, known = all;
    int n = 0;
    for (int i = 0; i < c->alarms.book.n; i++) {
        const struct alarm_rule *r = &c->alarms.book.rule[i];
        struct alarm_now *a = &c->alarms.now[i];
        bool meant = all || strcmp(r->name, name) == 0;
        known = known || meant;
        if (!meant || !may(a->state))
            continue;
        a->state = to;
        if (to == ALARM_MUTED || to == ALARM_QUIET)
            *a->text = 0;
        buf_fmt(&effect->text, "%s%s", n++ ? ", " : "", r->name);
    }
    if (!known)
        return error_set(err, ERR_NOT_FOUND, "there is no alarm '%s'; 'rollcall ctl status' lists those that fire", name);
    if (n == 0)
        return all ? error_set(err, ERR_REFUSED, "no alarm can be %s now", verb)
                   : error_set(err, ERR_REFUSED, "alarm '%s' cannot be %s now", name, verb);
    buf_fmt(&effect->text, " %s %s", n == 1 ? "is" : "are", verb);
    return states_save(c, err);
}

static bool fires(enum alarm_state s)
{
    return s == ALARM_FIRING;
}

static bool is_heard(enum alarm_state s)
{
    return s != ALARM_MUTED;
}

static bool is_muted(enum alarm_state s)
{
    return s == ALARM_MUTED;
}

bool ack_begin(struct controller *c, UNUSED struct order *o, const struct mval *args, struct effect *effect, struct error *err)
{
    return state_order(c, args, "acknowledged", fires, ALARM_ACKNOWLEDGED, effect, err);
}

bool mute_begin(struct controller *c, UNUSED struct order *o, const struct mval *args, struct effect *effect, struct error *err)
{
    return state_order(c, args, "muted", is_heard, ALARM_MUTED, effect, err);
}

bool unmute_begin(struct controller *c, UNUSED struct order *o, const struct mval *args, struct effect *effect, struct error *err)
{
    return state_order(c, args, "heard again", is_muted, ALARM_QUIET, effect, err);
}
