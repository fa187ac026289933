/* ctl_cmd.c - rollcall ctl: send a query or command to a run, and print its answer
 *
 * Exit 0 when it has taken effect, 1 refused or late, 2 usage. */
#include <ctype.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>
#include "console/fleet/command.h"
#include "protocol/base/clean_out.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/proc_stat.h"
#include "protocol/base/json_text.h"
#include "protocol/base/subcommand.h"
#include "protocol/record/journal.h"
#include "protocol/run/control_lock.h"
#include "protocol/run/level_view.h"
#include "protocol/run/node.h"
#include "protocol/run/run_far.h"
#include "protocol/run/run_find.h"
#include "protocol/run/run_last.h"
#include "protocol/run/run_lock.h"
#include "protocol/run/run_state.h"
#include "protocol/run/spawn.h"
#include "protocol/settings/knobs.h"
#include "protocol/wire/run_door.h"
#include "protocol/wire/run_head.h"
#include "workers/engine/trainer/checkpoint.h"

#define ASK_AGAIN_MS 4000    // then after 8 s, 16 s, ...
#define FAR_AGAIN_MS 1500    // ... of another machine, which may not accept our token
#define QUESTION_LIMIT_MS 12000

struct ctl {
    const char *run, *runs_dir, *depth, *overlap;
    const char *connect, *token_file;    // a run on another machine
    struct run_far far;
    bool json, verify, yes, force;
    double limit_s;
    char run_dir[PATH_MAX];
    bool read_only;
    const char *id;
    struct run_door door;
};

/* A message's value as JSON; values without a JSON form (NaN, bytes) become null. New reference. */
static json_t *json_of(const struct mval *v)
{
    size_t len;
    if (mval_is(v, KIND_I64))
        return json_integer(mval_i64(v, 0));
    if (mval_is(v, KIND_F64))
        return isfinite(mval_f64(v, 0)) ? json_real(mval_f64(v, 0)) : json_null();
    if (mval_is(v, KIND_BOOL))
        return json_boolean(mval_bool(v, false));
    if (mval_is(v, KIND_STR)) {
        const char *s = mval_str(v, &len);
        json_t *text = json_stringn(s, len);
        return text ? text : json_null();
    }
    if (mval_is(v, KIND_LIST)) {
        json_t *list = json_array();
        for (int64_t i = 0; i < mval_n(v); i++)
            json_array_append_new(list, json_of(mval_at(v, i)));
        return list;
    }
    if (mval_is(v, KIND_MAP)) {
        json_t *o = json_object();
        for (int64_t i = 0; i < mval_n(v); i++) {
            char key[128];
            const char *k = mval_key(v, i, &len);
            if (!k || len >= sizeof key)
                continue;
            memcpy(key, k, len);
            key[len] = 0;
            json_object_set_new(o, key, json_of(mval_at(v, i)));
        }
        return o;
    }
    return json_null();
}

static void json_print(json_t *o)
{
    char *text = json_text_dump(o, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    if (text)
        puts(text);
    free(text);
    json_decref(o);
}

/* T: stopped (by SIGSTOP, or a debugger); 0: there is no such process. */
static char process_state(pid_t pid)
{
    struct proc_stat s;
    return proc_stat_read(pid, &s) ? s.state : 0;
}

/* Check that an agent is there to answer, or will be: not when it is stopped, or has ended and its keeper is stopped. */
static bool agent_awaited(const char *run_dir, struct error *err)
{
    pid_t agent = process_find(run_dir, "agent"), keeper = process_find(run_dir, "keeper");
    if (agent > 0 && process_state(agent) == 'T')
        return error_set(err, ERR_TIMEOUT, "the run's agent (pid %d) is stopped; 'kill -CONT %d' continues it", (int)agent, (int)agent);
    if (agent <= 0 && process_state(keeper) == 'T')
        return error_set(err, ERR_TIMEOUT,
                         "the run's agent has ended, and its keeper (pid %d), which restarts it, is stopped; "
                         "'kill -CONT %d' continues it",
                         (int)keeper, (int)keeper);
    return true;
}

/* Ask the agent until the limit, in pieces: a request or its answer may get lost (a process restarts, a listener opens again), and
 * the same id is carried out only once. */
static bool agent_ask(struct ctl *c, enum msg_type type, const struct msg_out *m, int64_t limit_ms, struct msg_in *in, struct net_event *ev,
                      struct error *err)
{
    int64_t began = clock_ms(), until = began + limit_ms, first = run_head_is_elsewhere(c->run_dir) ? FAR_AGAIN_MS : ASK_AGAIN_MS;
    if (!agent_awaited(c->run_dir, err) || !run_door_open(&c->door, c->run_dir, c->read_only, err))
        return false;
    for (;;) {
        int64_t left = MAX(until - clock_ms(), (int64_t)1), again = MAX(clock_ms() - began, first);
        if (peer_call(c->door.agent, type, m, MIN(left, again), in, ev, err))
            return true;
        if (ev->failed && c->door.far && peer_is_strange(c->door.agent))
            return error_set(err, ERR_REFUSED, "'%s' " NODE_STRANGE, peer_name(c->door.agent));
        if (!ev->failed || (err->code != ERR_TIMEOUT && err->code != ERR_CLOSED) || clock_ms() >= until || !run_is_live(c->run_dir))
            return false;    // a refusal is an answer, even one that says that something was too late
    }
}

/* ---- a run that has ended ---- */

static bool ended_status(struct ctl *c, struct error *err)
{
    struct run_last last;
    struct journal *j = journal_open_reader(c->run_dir, err);
    if (!j)
        return error_wrap(err, "the run '%s' is not alive", c->run_dir);
    bool ok = run_last_read(j, c->run_dir, false, &last, err);
    journal_close(j);
    if (!ok)
        return false;
    const char *state = last.killed ? "dead" : run_state_name(last.state), *reason = last.killed ? "" : last.reason;
    if (c->json)
        json_print(
            json_pack("{s:s,s:s,s:I,s:{},s:[]}", "state", state, "reason", reason, "step", (json_int_t)last.step, "knobs", "processes"));
    else
        line_print(stdout, "%s: %s at step %" PRId64 "%s%s; no process of it is alive", c->run_dir, state, last.step, reason[0] ? ": " : "",
                   reason);
    return true;
}

/* ---- queries ---- */

/* A figure with its unit, "?" when it is unknown. */
static const char *figure(const struct mval *figures, const char *name, double scale, const char *unit, char out[32])
{
    double v = mval_f64(mval_get(figures, name), NAN);
    snprintf(out, 32, isnan(v) ? "?" : "%.0f%s", v * scale, unit);
    return out;
}

/* Host and devices of a node; before: a prefix for their names. */
static void devices_print(const struct mval *node, const char *before)
{
    const struct mval *list = mval_get(node, "devices"), *host = mval_get(node, "host");
    char a[32], b[32], c[32], d[32], e[32], f[32], name[32], what[96], state[32], throttle[160];
    if (host)
        line_print(stdout, "%shost: processors %s, memory %s of %s, disk %s full", before, figure(host, "cpu_percent", 1, " %", a),
                   figure(host, "mem_used_bytes", 0x1p-30, " GiB", b), figure(host, "mem_total_bytes", 0x1p-30, " GiB", c),
                   figure(host, "disk_percent", 1, " %", d));
    for (int64_t i = 0; i < mval_n(list); i++) {
        const struct mval *g = mval_at(list, i), *v = mval_get(g, "figures");
        mval_text(g, "state", state, sizeof state);
        mval_text(g, "throttle", throttle, sizeof throttle);
        printf("%s%s %s: ", before, mval_text(g, "name", name, sizeof name), mval_text(g, "what", what, sizeof what));
        if (strcmp(state, "ok") != 0)
            printf("%s; ", state);
        line_print(stdout, "busy %s, memory %s of %s, %s, %s, %s%s%s", figure(v, "util_percent", 1, " %", a),
                   figure(v, "mem_used_bytes", 0x1p-30, " GiB", b), figure(v, "mem_total_bytes", 0x1p-30, " GiB", c),
                   figure(v, "temp_celsius", 1, " C", d), figure(v, "power_watts", 1, " W", e), figure(v, "sm_clock_mhz", 1, " MHz", f),
                   throttle[0] ? ", clocks: " : "", throttle);
    }
}

/* Those that hold. */
static void alarms_print(const struct mval *list)
{
    char name[64], state[16], text[480], remedy[240];
    for (int64_t i = 0; i < mval_n(list); i++) {
        const struct mval *v = mval_at(list, i);
        if (strcmp(mval_text(v, "state", state, sizeof state), "firing") == 0 || strcmp(state, "acknowledged") == 0)
            line_print(stdout, "alarm %s, %s%s since step %" PRId64 ": %s; %s", mval_text(v, "name", name, sizeof name),
                       mval_bool(mval_get(v, "critical"), false) ? "critical, " : "", state, mval_i64(mval_get(v, "step"), 0),
                       mval_text(v, "text", text, sizeof text), mval_text(v, "remedy", remedy, sizeof remedy));
    }
}

static void status_print(const struct msg_in *in)
{
    char name[64], state[32], reason[256], depth[32], alert[480], remedy[320];
    const struct mval *root = in->root, *list = mval_get(root, "processes"), *metrics_map = mval_get(root, "metrics");
    mval_text(root, "name", name, sizeof name);
    mval_text(root, "state", state, sizeof state);
    mval_text(root, "reason", reason, sizeof reason);
    mval_text(root, "pause_depth", depth, sizeof depth);
    char of[32] = "", pausing[64] = "", left[48] = "";
    if (mval_i64(mval_get(root, "max_steps"), 0) > 0)
        snprintf(of, sizeof of, " of %" PRId64, mval_i64(mval_get(root, "max_steps"), 0));
    if (depth[0] && run_state_find(state) != RUN_PAUSED)
        snprintf(pausing, sizeof pausing, ", pausing (%s)", depth);
    if (mval_get(root, "left_s"))
        snprintf(left, sizeof left, ", %.0f s left", mval_f64(mval_get(root, "left_s"), 0));
    line_print(stdout, "run %s: %s%s%s, step %" PRId64 "%s%s%s", name, state, reason[0] ? ": " : "", reason,
               mval_i64(mval_get(root, "step"), 0), of, pausing, left);
    if (mval_text(root, "alert", alert, sizeof alert)[0])
        line_print(stdout, "alert: %s", alert);
    struct control_lock lock;
    control_lock_read(&lock, mval_get(root, "lock"));
    if (lock.holder[0])
        line_print(stdout, "lock: %s has control, since %.0f s", lock.holder, fmax(clock_wall_s() - lock.since_s, 0));
    const struct mval *doctor = mval_get(root, "doctor");
    if (doctor)
        line_print(stdout, "doctor: %s%s%s", mval_text(doctor, "text", alert, sizeof alert),
                   mval_text(doctor, "remedy", remedy, sizeof remedy)[0] ? ": " : "", remedy);
    alarms_print(mval_get(root, "alarms"));
    struct level_view level;
    level_view_read(&level, mval_get(root, "level"));
    if (level.n_level > 0)
        line_print(stdout, "%s", level_view_say(&level, alert, sizeof alert));
    if (mval_get(metrics_map, "metrics/reward"))
        printf("reward %.4f, length %.1f tok\n", mval_f64(mval_get(metrics_map, "metrics/reward"), NAN),
               mval_f64(mval_get(metrics_map, "metrics/response_length"), NAN));
    line_print(stdout, "%-16s %8s %-12s %9s %-8s %-22s %s", "process", "pid", "phase", "for s", "verdict", "part", "waits for");
    for (int64_t i = 0; i < mval_n(list); i++) {
        const struct mval *p = mval_at(list, i);
        char pname[64], phase[32], verdict[16], waits[200], plays[64];
        line_print(stdout, "%-16s %8" PRId64 " %-12s %9.1f %-8s %-22s %s", mval_text(p, "name", pname, sizeof pname),
                   mval_i64(mval_get(p, "pid"), 0), mval_text(p, "phase", phase, sizeof phase), mval_f64(mval_get(p, "phase_s"), 0),
                   mval_text(p, "verdict", verdict, sizeof verdict), mval_text(p, "plays", plays, sizeof plays),
                   mval_text(p, "waits_for", waits, sizeof waits));
    }
    devices_print(root, "");
    list = mval_get(root, "nodes");
    for (int64_t i = 0; i < mval_n(list); i++) {
        char node[64], before[72];
        snprintf(before, sizeof before, "%s/", mval_text(mval_at(list, i), "node", node, sizeof node));
        devices_print(mval_at(list, i), before);
    }
}

static bool status_ask(struct ctl *c, struct error *err)
{
    struct msg_out m = MSG_OUT_INIT;
    struct msg_in in;
    struct net_event ev;
    msg_begin(&m, MSG_STATUS);
    msg_bool(&m, "fresh", true);
    bool ok = msg_finish(&m, err) && agent_ask(c, MSG_STATUS, &m, QUESTION_LIMIT_MS, &in, &ev, err);
    msg_release(&m);
    if (!ok) {
        if (!run_is_live(c->run_dir))    // it has ended meanwhile
            return ended_status(c, err);
        return false;
    }
    if (c->json)
        json_print(json_of(in.root));
    else
        status_print(&in);
    msg_in_release(&in);
    net_event_release(&ev);
    return true;
}

struct listing {
    struct ctl *ctl;
    struct journal *journal;
};

/* Checkpoints are on disk, so this also works for a run that has ended. */
static bool checkpoint_print(void *arg, const struct journal_checkpoint *k)
{
    const struct listing *l = arg;
    const struct ctl *c = l->ctl;
    struct error err;
    char when[32] = "", state[600], why[JOURNAL_WHY];
    int64_t step;
    time_t t = (time_t)k->wall_s;
    struct tm tm;
    if (localtime_r(&t, &tm))
        strftime(when, sizeof when, "%F %T", &tm);
    snprintf(state, sizeof state, "%s", k->state);
    if (strcmp(k->state, "complete") == 0 && !path_is_dir(k->path))
        snprintf(state, sizeof state, "removed");
    else if (strcmp(k->state, "broken") == 0 && !path_is_dir(k->path))
        snprintf(state, sizeof state, "not written");
    else if (c->verify && strcmp(k->state, "complete") == 0)
        snprintf(state, sizeof state, checkpoint_verify(k->path, &step, &err) ? "verified" : "broken: %.500s", err.text);
    if (!journal_why_get(l->journal, k->step, why, &err))
        why[0] = 0;    // the list is good without it
    bool pinned = checkpoint_is_pinned(k->path);
    if (c->json)
        json_print(json_pack("{s:I,s:s,s:s,s:b,s:s,s:f,s:f,s:f}", "step", (json_int_t)k->step, "path", k->path, "state", state, "pinned",
                             pinned, "why", why, "time", k->wall_s, "stall_s", isfinite(k->stall_s) ? k->stall_s : 0, "write_s",
                             isfinite(k->write_s) ? k->write_s : 0));
    else
        line_print(stdout, "step %-8" PRId64 " %-19s %-10s %-6s %-20s stall %.3f s, write %.3f s  %s", k->step, when, state,
                   pinned ? "pinned" : "", why, isfinite(k->stall_s) ? k->stall_s : 0, isfinite(k->write_s) ? k->write_s : 0, k->path);
    return true;
}

/* Ask the run for the list `name` with m, which is begun, and have every entry printed. */
static bool list_ask(struct ctl *c, enum msg_type type, struct msg_out *m, const char *name,
                     void (*print)(struct ctl *c, const struct mval *v), struct error *err)
{
    struct msg_in in;
    struct net_event ev;
    bool ok = msg_finish(m, err) && agent_ask(c, type, m, QUESTION_LIMIT_MS, &in, &ev, err);
    msg_release(m);
    if (!ok)
        return false;
    const struct mval *list = mval_get(in.root, name);
    for (int64_t i = 0; i < mval_n(list); i++)
        print(c, mval_at(list, i));
    msg_in_release(&in);
    net_event_release(&ev);
    return true;
}

static void checkpoint_answer_print(struct ctl *c, const struct mval *v)
{
    char state[32], why[JOURNAL_WHY], path[1024];
    if (c->json)
        json_print(json_of(v));
    else
        line_print(stdout, "step %-8" PRId64 " %-10s %-6s %-20s %s", mval_i64(mval_get(v, "step"), 0),
                   mval_text(v, "state", state, sizeof state), mval_bool(mval_get(v, "pinned"), false) ? "pinned" : "",
                   mval_text(v, "why", why, sizeof why), mval_text(v, "path", path, sizeof path));
}

/* The checkpoints of a run on another machine, from the run itself. */
static bool checkpoints_ask(struct ctl *c, struct error *err)
{
    struct msg_out m = MSG_OUT_INIT;
    if (c->verify)
        return error_set(err, ERR_UNSUPPORTED, "--verify reads the files, so it must be given on a machine that has them");
    msg_begin(&m, MSG_CHECKPOINTS);
    return list_ask(c, MSG_CHECKPOINTS, &m, "checkpoints", checkpoint_answer_print, err);
}

static bool checkpoints_list(struct ctl *c, struct error *err)
{
    if (run_head_is_elsewhere(c->run_dir))
        return checkpoints_ask(c, err);
    struct journal *j = journal_open_reader(c->run_dir, err);
    struct listing l = { c, j };
    bool ok = j && journal_checkpoints_read(j, checkpoint_print, &l, err);
    journal_close(j);
    return ok;
}

static bool event_print(UNUSED void *arg, const struct journal_event *e)
{
    char when[32] = "";
    time_t t = (time_t)e->wall_s;
    struct tm tm;
    if (localtime_r(&t, &tm))
        strftime(when, sizeof when, "%F %T", &tm);
    line_print(stdout, "%s step %-6" PRId64 " %-10s %-16s %s", when, e->step, e->kind, e->who, e->text);
    return true;
}

static void event_answer_print(UNUSED struct ctl *c, const struct mval *v)
{
    char kind[32], who[128], text[1024];
    struct journal_event e = { .step = mval_i64(mval_get(v, "step"), 0),
                               .wall_s = mval_f64(mval_get(v, "time"), 0),
                               .kind = mval_text(v, "kind", kind, sizeof kind),
                               .who = mval_text(v, "who", who, sizeof who),
                               .text = mval_text(v, "text", text, sizeof text),
                               .detail = "" };
    event_print(NULL, &e);
}

/* The newest events from the run itself, for users who cannot read its journal. */
static bool events_ask(struct ctl *c, struct error *err)
{
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_EVENTS);
    msg_i64(&m, "after", 0);
    return list_ask(c, MSG_EVENTS, &m, "events", event_answer_print, err);
}

static bool events_list(struct ctl *c, struct error *err)
{
    if (run_head_is_elsewhere(c->run_dir) || (c->read_only && run_is_live(c->run_dir)))
        return events_ask(c, err);
    struct journal *j = journal_open_reader(c->run_dir, err);
    if (!j && run_is_live(c->run_dir))
        return events_ask(c, err);
    bool ok = j && journal_events_read(j, 0, NULL, event_print, NULL, err);
    journal_close(j);
    return ok;
}

/* ---- commands ---- */

/* The command from the operands and --depth, which is another form of pause DEPTH. */
static bool command_read(const struct ctl *c, struct command *out, const char **operand, int n, struct error *err)
{
    const char *words[2] = { operand[0], c->depth };
    if (c->depth && strcmp(operand[0], "pause") == 0) {
        if (n > 2 || (n == 2 && strcmp(c->depth, operand[1]) != 0))
            return error_set(err, ERR_USAGE, "'pause' takes one depth: rollouts, step or drain");
        operand = words;
        n = 2;
    }
    if (!command_words_parse(out, operand[0], operand + 1, n - 1, err))
        return false;
    if (!c->overlap)
        return true;
    double s;
    if (strcmp(out->name, "rotate-token") != 0)
        return error_set(err, ERR_USAGE, "--overlap is for rotate-token");
    if (!parse_f64(c->overlap, &s) || s < 0)
        return error_set(err, ERR_USAGE, "--overlap '%s' is not a number of seconds from 0", c->overlap);
    return command_arg_add(out, "overlap", c->overlap, err);
}

static bool command_send(struct ctl *c, const struct command *command, struct error *err)
{
    uint64_t id[2];
    char text[64], who[OPERATOR_NAME];
    struct msg_out m = MSG_OUT_INIT;
    struct msg_in in;
    struct net_event ev;
    const struct command_spec *spec = command_find(command->name, err);
    if (!spec)
        return false;
    if (getrandom(id, sizeof id, 0) != sizeof id)
        return error_errno(err, "cannot get a random number");
    snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, id[0], id[1]);
    if (c->id)
        snprintf(text, sizeof text, "%s", c->id);
    operator_name(who, "ctl");
    double limit_s = c->limit_s > 0 ? c->limit_s : spec->limit_s;
    msg_begin(&m, MSG_COMMAND);
    msg_str(&m, "id", text);
    msg_str(&m, "command", spec->name);
    msg_str(&m, "who", who);
    msg_f64(&m, "limit_s", limit_s);
    msg_bool(&m, "force", c->force);
    command_args_write(command, &m);
    bool ok = msg_finish(&m, err) && agent_ask(c, MSG_COMMAND, &m, (int64_t)(1000 * limit_s) + 10000, &in, &ev, err);
    msg_release(&m);
    if (!ok) {
        if (strcmp(command->name, "stop") == 0 && !run_is_live(c->run_dir)) {    // it ended before the answer came
            printf("the run has ended\n");
            return true;
        }
        if (err->code == ERR_STOPPED)
            err->code = ERR_REFUSED;    // exit 3 is for a run that was stopped
        if (err->code == ERR_REFUSED)
            error_wrap(err, "refused");
        return false;
    }
    size_t len;
    const char *effect = mval_str(mval_get(in.root, "effect"), &len);
    line_print(stdout, "%.*s", (int)len, effect);
    msg_in_release(&in);
    net_event_release(&ev);
    return true;
}

struct knob_answer {
    const struct mval *knobs;    // the map of status
    char text[64];               // text of the setting asked for last
};

/* A setting's current text, from the answer to status. */
static const char *knob_now(void *arg, const struct knob *k)
{
    struct knob_answer *now = arg;
    const struct mval *v = mval_get(now->knobs, k->name);
    if (mval_is(v, KIND_I64))
        snprintf(now->text, sizeof now->text, "%" PRId64, mval_i64(v, 0));
    else if (mval_is(v, KIND_F64))
        snprintf(now->text, sizeof now->text, "%.9g", mval_f64(v, 0));
    else
        return NULL;
    return now->text;
}

/* What a rollback would undo. */
static bool undoes_ask(struct ctl *c, const char *to, char *why, size_t size, struct error *err)
{
    struct msg_out m = MSG_OUT_INIT;
    struct msg_in in;
    struct net_event ev;
    char changes[160];
    msg_begin(&m, MSG_CHECKPOINTS);
    bool ok = msg_finish(&m, err) && agent_ask(c, MSG_CHECKPOINTS, &m, QUESTION_LIMIT_MS, &in, &ev, err);
    msg_release(&m);
    if (!ok)
        return false;
    const struct mval *list = mval_get(in.root, "checkpoints");
    int64_t step = strcmp(to, "change") == 0 ? mval_i64(mval_get(in.root, "before_change"), -1) : strtoll(to, NULL, 10);
    for (int64_t i = 0; i < mval_n(list); i++)
        if (mval_i64(mval_get(mval_at(list, i), "step"), -1) == step)
            snprintf(why, size, "to step %" PRId64 ", undoing %" PRId64 " steps%s%s", step,    // not in the list: the run says why
                     MAX(mval_i64(mval_get(in.root, "step"), 0) - step, (int64_t)0),
                     mval_text(mval_at(list, i), "changes", changes, sizeof changes)[0] ? ", " : "", changes);
    msg_in_release(&in);
    net_event_release(&ev);
    return true;
}

/* On a terminal, ask before commands with consequences; elsewhere, and with --yes, no confirmation is needed. */
static bool question_put(struct ctl *c, const struct command *command, struct error *err)
{
    char why[200], line[16];
    struct knob_answer now = { .knobs = NULL };
    struct msg_out m = MSG_OUT_INIT;
    struct msg_in in;
    struct net_event ev;
    if (c->yes || !isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))
        return true;
    msg_begin(&m, MSG_STATUS);
    msg_bool(&m, "fresh", true);
    bool told = msg_finish(&m, err) && agent_ask(c, MSG_STATUS, &m, QUESTION_LIMIT_MS, &in, &ev, err);
    msg_release(&m);
    if (!told)
        return false;
    now.knobs = mval_get(in.root, "knobs");
    bool asks = command_asks(command, knob_now, &now, why, sizeof why);
    msg_in_release(&in);
    net_event_release(&ev);
    if (!asks)
        return true;
    if (strcmp(command->name, "rollback") == 0 && !undoes_ask(c, command->arg[0].value, why, sizeof why, err))
        return false;
    fprintf(stderr, "%s: %s. Are you sure? [y/N] ", command->name, why);
    if (fgets(line, sizeof line, stdin) && (line[0] == 'y' || line[0] == 'Y'))
        return true;
    return error_set(err, ERR_REFUSED, "not confirmed, so nothing was sent; --yes sends it without asking");
}

/* "  pause [DEPTH]          hold the run: ..." */
static void command_describe(struct buf *out, const struct command_spec *s)
{
    char usage[64], operand[32] = "";
    for (size_t i = 0; s->args[i] && i + 1 < sizeof operand; i++) {
        operand[i] = (char)toupper((unsigned char)s->args[i]);
        operand[i + 1] = 0;
    }
    if (s->arg == ARG_NONE)
        snprintf(usage, sizeof usage, "%s", s->name);
    else
        snprintf(usage, sizeof usage, s->arg == ARG_CHOICE ? "%s [%s]" : "%s %s", s->name,
                 s->arg == ARG_VALUES ? "NAME=VALUE..." : operand);
    buf_fmt(out, "  %-22s %s\n", usage, s->help);
}

static bool ctl_cmd(int argc, char **argv, struct error *err)
{
    struct ctl c = { 0 };
    struct command command;
    const char *operand[COMMAND_ARGS + 1];
    bool ok = false;
    struct cli_option options[] = {
        { "run", NULL, CLI_STR, &c.run, "DIR", "the run's directory; default: the only live run" },
        { "runs-dir", NULL, CLI_STR, &c.runs_dir, "DIR", "folder in which to look for runs (runs)" },
        { "connect", NULL, CLI_STR, &c.connect, "HOST:PORT", "a run on another machine, by the address at which nodes join it" },
        { "token-file", NULL, CLI_STR, &c.token_file, "FILE",
          "--connect: the run's token, a copy of its sock/join; default: the variable ROLLCALL_JOIN_TOKEN" },
        { "json", NULL, CLI_FLAG, &c.json, NULL, "status, checkpoints: print JSON" },
        { "depth", NULL, CLI_STR, &c.depth, "DEPTH", "pause: the same as pause DEPTH" },
        { "overlap", NULL, CLI_STR, &c.overlap, "SECONDS",
          "rotate-token: how long the old token is good for (600; at most 2592000, 30 days); 0: not at all, and nobody is told the new one" },
        { "verify", NULL, CLI_FLAG, &c.verify, NULL, "checkpoints: read every file and compare its hash" },
        { "id", NULL, CLI_STR, &c.id, "ID", "commands: carry out once under this id; a repeated id gets the first outcome" },
        { "read-only", NULL, CLI_FLAG, &c.read_only, NULL,
          "use the socket that only shows the run; always on for users other than its owner" },
        { "yes", "y", CLI_FLAG, &c.yes, NULL,
          "commands: do not ask for confirmation (asked on a terminal, for commands with consequences)" },
        { "force", NULL, CLI_FLAG, &c.force, NULL, "commands: in spite of another operator's lock" },
        { "limit", NULL, CLI_F64, &c.limit_s, "SECONDS",
          "commands: give up after this long (0.1 to 86400) and name the process that is late" },
    };
    struct buf about = BUF_INIT;
    buf_str(&about, "Queries a run, or sends it a command and waits until that has taken effect.\n\n"
                    "  status                 state, step and processes\n  checkpoints            those on disk\n"
                    "  events                 what happened, and who asked for what\n");
    for (int i = 0; i < n_command_specs; i++)
        command_describe(&about, &command_specs[i]);
    struct cli cli = { .command = "rollcall ctl",
                       .about = buf_text(&about),
                       .operands = "COMMAND [...]",
                       .options = options,
                       .n_options = ARRAY_SIZE(options),
                       .operand = operand,
                       .max_operands = ARRAY_SIZE(operand) };
    TRY(cli_parse(&cli, argc, argv, err));
    if (cli.help_wanted) {
        ok = true;
        goto out;
    }
    if (cli.n_operands == 0) {
        error_set(err, ERR_USAGE, "a query or command is needed; see 'rollcall ctl --help'");
        goto out;
    }
    bool question = strcmp(operand[0], "status") == 0 || strcmp(operand[0], "checkpoints") == 0 || strcmp(operand[0], "events") == 0;
    if (!question && !command_read(&c, &command, operand, cli.n_operands, err))
        goto out;
    if (c.id && (!c.id[0] || strlen(c.id) > 60)) {
        error_set(err, ERR_USAGE, "--id must be 1 to 60 bytes");
        goto out;
    }
    if (c.limit_s != 0 && !(c.limit_s >= COMMAND_LIMIT_MIN_S && c.limit_s <= COMMAND_LIMIT_MAX_S)) {
        error_set(err, ERR_USAGE, "--limit %g is not a number of seconds from %g to %g", c.limit_s, COMMAND_LIMIT_MIN_S,
                  COMMAND_LIMIT_MAX_S);
        goto out;
    }
    if (c.connect && c.run) {
        error_set(err, ERR_USAGE, "give --connect or --run, not both");
        goto out;
    }
    if (c.connect) {
        TRY(run_far_open(&c.far, c.connect, c.token_file, err));
        snprintf(c.run_dir, sizeof c.run_dir, "%s", c.far.dir);
    } else {
        TRY(run_find(c.run, c.runs_dir, c.run_dir, sizeof c.run_dir, err));
    }
    TRY(run_door_may_look(c.run_dir, err));
    if (strcmp(operand[0], "checkpoints") == 0) {
        ok = checkpoints_list(&c, err);
        goto out;
    }
    if (strcmp(operand[0], "events") == 0) {
        ok = events_list(&c, err);
        goto out;
    }
    if (!run_is_live(c.run_dir)) {
        ok = question ? ended_status(&c, err) : error_set(err, ERR_CLOSED, "the run '%s' is not alive", c.run_dir);
        goto out;
    }
    ok = question ? status_ask(&c, err) : question_put(&c, &command, err) && command_send(&c, &command, err);
out:
    run_door_close(&c.door);
    run_far_close(&c.far);
    buf_release(&about);
    return ok;
}

const struct subcommand ctl_subcommand = { "ctl", ctl_cmd, "query or command a run" };
