/* link.c - see link.h
 *
 * Open requests at any time: at most one each for status, steps, events, rollouts and checkpoints, and one for each command. Their tags
 * distinguish the answers. Missing data is requested when the status (every second) shows that it is missing, so a lost answer
 * costs only a second. */
#include "console/fleet/link.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include "console/fleet/far_folder.h"
#include "console/fleet/logtail.h"
#include "console/fleet/news.h"
#include "console/fleet/run_end.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/run/run_failure.h"
#include "protocol/run/run_lock.h"
#include "protocol/wire/run_door.h"

#define STATUS_NS ((int64_t)1000 * 1000000)
#define NODES_A_TIME 64                       // in an answer to a status
#define FLEET_NS ((int64_t)2000 * 1000000)    // in which a larger fleet is asked for once
#define LOG_NS ((int64_t)500 * 1000000)
#define ASK_MS 5000
#define STEPS_A_TIME 5000
#define COMMANDS_OPEN 16
#define LOST_NS ((int64_t)3500 * 1000000)             // time without an answer to a status
#define LAST_ANSWERS_NS ((int64_t)12000 * 1000000)    // after the run's end; longer than its agent stays

enum {
    TAG_STATUS = 1,
    TAG_STEPS,
    TAG_EVENTS,
    TAG_ROLLOUTS,
    TAG_CHECKPOINTS,
    TAG_KEPT,
    TAG_COMMAND,
};    // TAG_COMMAND and above: commands
struct open_command {
    uint64_t tag;    // 0: free
    struct command command;
    char id[64];
    int64_t until_ns;    // its deadline
    bool asked;          // an answer is pending; else ask again
};
struct link {
    struct feed feed;
    char run_dir[4096];
    char who[OPERATOR_NAME];
    struct run_door door;
    struct subscriber *telemetry;
    struct logtail *log;
    struct far_folder *far;    // of a run on another machine; NULL: its folder is here
    bool open[TAG_COMMAND];    // indexed by tag
    bool events_stale, rollouts_stale, checkpoints_stale;
    int64_t checkpoint, incarnation;    // as they were when the checkpoints were asked for
    bool over, last;                    // the run is over, according to a status, so that what is requested now is the last of it
    int64_t over_ns;                    // when we learned that; 0: it is not over
    int64_t status_ns, log_ns;          // when next
    bool whole;                         // the whole fleet has been heard of
    int64_t answered_ns;                // when the agent last answered
    struct open_command command[COMMANDS_OPEN];
    uint64_t next_tag, random;
};

static void ask(struct link *l, uint64_t tag, struct msg_out *m)
{
    struct error err;
    if (msg_finish(m, &err) && peer_ask(l->door.agent, m, ASK_MS, tag, &err))
        l->open[tag] = true;
    msg_release(m);
}

static void status_ask(struct link *l, const struct run_view *model, int64_t now_ns)
{
    struct msg_out m = MSG_OUT_INIT;
    l->status_ns = now_ns + STATUS_NS;
    if (l->open[TAG_STATUS])
        return;
    msg_begin(&m, MSG_STATUS);
    msg_i64(&m, "from", model->sweep.next);
    msg_i64(&m, "limit", NODES_A_TIME);
    ask(l, TAG_STATUS, &m);
}

static void steps_ask(struct link *l, const struct run_view *model)
{
    struct msg_out m = MSG_OUT_INIT;
    if (l->open[TAG_STEPS])
        return;
    msg_begin(&m, MSG_STEPS);
    msg_i64(&m, "from", model->n_step);
    msg_i64(&m, "limit", STEPS_A_TIME);
    ask(l, TAG_STEPS, &m);
}

static void events_ask(struct link *l, const struct run_view *model)
{
    struct msg_out m = MSG_OUT_INIT;
    const struct event_view *last = view_event_at(model, 0);
    if (l->open[TAG_EVENTS]) {    // its answer may have been written before what is requested now
        l->events_stale = true;
        return;
    }
    l->events_stale = false;
    msg_begin(&m, MSG_EVENTS);
    msg_i64(&m, "after", last ? last->id : 0);
    msg_i64(&m, "limit", last ? MODEL_EVENTS : 500);    // fetch everything that came meanwhile
    ask(l, TAG_EVENTS, &m);
}

static void checkpoints_ask(struct link *l, const struct run_view *m)
{
    struct msg_out out = MSG_OUT_INIT;
    if (l->open[TAG_CHECKPOINTS])
        return;
    l->checkpoints_stale = false;
    l->checkpoint = m->checkpoint;
    l->incarnation = m->incarnation;
    msg_begin(&out, MSG_CHECKPOINTS);
    ask(l, TAG_CHECKPOINTS, &out);
}

static void rollouts_ask(struct link *l)
{
    struct msg_out m = MSG_OUT_INIT;
    if (l->open[TAG_ROLLOUTS])
        return;
    l->rollouts_stale = false;
    msg_begin(&m, MSG_ROLLOUTS);
    msg_i64(&m, "limit", 24);
    ask(l, TAG_ROLLOUTS, &m);
}

/* ---- what arrives ---- */

/* The run's state may have changed: at its end ask for the last of everything, and start again when it is resumed. */
static void over_look(struct link *l, const struct run_view *m, int64_t now_ns)
{
    l->over = run_state_is_over(m->state);
    if (!l->over)
        l->last = false;
    l->over_ns = !l->over ? 0 : l->over_ns ? l->over_ns : now_ns;
}

/* A finished run has been resumed: listen again. */
static void resumed_look(struct link *l, struct run_view *m)
{
    struct error err;
    if (l->over || (l->telemetry && !m->ended))
        return;
    m->ended = false;
    l->events_stale = l->rollouts_stale = true;
    if (!l->telemetry)
        l->telemetry = run_door_listen(&l->door, &err);    // NULL: with the next status
}

/* A large fleet comes in pieces: the first time one after the other, later spread over FLEET_NS. */
static void fleet_next(struct link *l, const struct run_view *m, int64_t now_ns)
{
    l->whole |= m->sweep.next == 0;
    if (m->n_node > NODES_A_TIME)
        l->status_ns = MIN(l->status_ns, l->whole ? now_ns + FLEET_NS * NODES_A_TIME / m->n_node : now_ns);
}

static void status_came(struct link *l, struct run_view *m, const struct mval *v, int64_t now_ns)
{
    news_status(m, v, now_ns);
    fleet_next(l, m, now_ns);
    if (m->step >= m->n_step)
        steps_ask(l, m);
    over_look(l, m, now_ns);
    resumed_look(l, m);
    if (l->over && !l->last)
        l->last = l->events_stale = l->rollouts_stale = true;
    if (l->events_stale)
        events_ask(l, m);
    if (l->rollouts_stale)
        rollouts_ask(l);
    if (l->checkpoints_stale || l->checkpoint != m->checkpoint || l->incarnation != m->incarnation)
        checkpoints_ask(l, m);
    view_link(m, LINK_LIVE, "", now_ns);
    view_changed(m);
}

static void step_heard(struct link *l, struct run_view *m, const struct mval *v)
{
    if (!news_step(m, v))
        steps_ask(l, m);
}

/* A published event has no number, so the list is requested; a change of state is applied at once. */
static void event_heard(struct link *l, struct run_view *m, const struct mval *v, int64_t now_ns)
{
    char kind[24], reason[sizeof(m->reason)];
    size_t len;
    events_ask(l, m);
    l->status_ns = now_ns;
    l->checkpoints_stale = true;    // one was made, or a change that going back to one would undo
    if (strcmp(mval_text(v, "kind", kind, sizeof(kind)), "state") != 0)
        return;
    const char *detail = mval_str(mval_get(v, "detail"), &len);
    enum run_state state = detail ? run_state_read(detail, len, reason, sizeof(reason)) : RUN_UNKNOWN;
    if (state == RUN_UNKNOWN)
        return;
    m->state = state;
    snprintf(m->reason, sizeof(m->reason), "%s", reason);
    over_look(l, m, now_ns);
    view_changed(m);
}

static void heard(struct link *l, struct run_view *m, const struct net_event *ev, int64_t now_ns)
{
    char topic[32];
    const void *data;
    size_t len;
    struct msg_in in;
    struct error err;
    if (!heard_split(ev, topic, sizeof(topic), &data, &len) || !msg_read_request(&in, data, len, &err))
        return;    // telemetry: what cannot be read counts as lost
    const struct mval *body = mval_get(in.root, "body");
    if (strcmp(topic, "step") == 0)
        step_heard(l, m, body);
    else if (strcmp(topic, "rollout") == 0)
        news_rollout(m, body);
    else if (strcmp(topic, "process") == 0)
        news_process(m, body, false, now_ns);
    else if (strcmp(topic, "event") == 0)
        event_heard(l, m, body, now_ns);
    msg_in_release(&in);
}

/* ---- commands ---- */

static bool command_ask(struct link *l, struct open_command *o, int64_t now_ns, struct error *err)
{
    struct msg_out m = MSG_OUT_INIT;
    const struct command *c = &o->command;
    double limit_s = (double)(o->until_ns - now_ns) * 1e-9;
    msg_begin(&m, MSG_COMMAND);
    msg_str(&m, "id", o->id);
    msg_str(&m, "command", c->name);
    command_args_write(c, &m);
    msg_str(&m, "who", l->who);
    msg_f64(&m, "limit_s", limit_s);
    bool ok = msg_finish(&m, err) && peer_ask(l->door.agent, &m, (int64_t)(1000 * limit_s) + 2000, o->tag, err);
    o->asked = ok;
    msg_release(&m);
    return ok;
}

static bool link_command(struct feed *f, struct run_view *m, const struct command *c, const char *text, int64_t now_ns, struct error *err)
{
    struct link *l = (struct link *)f;
    const struct command_spec *spec = command_find(c->name, err);
    if (!spec)
        return false;
    for (int i = 0; i < COMMANDS_OPEN; i++) {
        struct open_command *o = &l->command[i];
        if (o->tag != 0)
            continue;
        *o = (struct open_command){ .tag = l->next_tag++, .command = *c, .until_ns = now_ns + (int64_t)(spec->limit_s * 1e9) };
        snprintf(o->id, sizeof(o->id), "console-%d-%" PRIx64 "-%" PRIu64, (int)getpid(), l->random, o->tag);
        if (!command_ask(l, o, now_ns, err)) {
            o->tag = 0;
            return false;
        }
        view_command_sent(m, o->tag, text);
        return true;
    }
    return error_set(err, ERR_FULL, "%d commands are already waiting for their answers", COMMANDS_OPEN);
}

static void command_answered(struct link *l, struct run_view *m, const struct net_event *ev, int64_t now_ns)
{
    struct msg_in in;
    struct error err;
    char effect[320];
    for (int i = 0; i < COMMANDS_OPEN; i++) {
        struct open_command *o = &l->command[i];
        if (o->tag != ev->tag || o->tag == 0)
            continue;
        if (ev->failed && ev->err.code == ERR_CLOSED && now_ns < o->until_ns) {
            o->asked = false;    // the outcome is unknown: ask again, under the same id, when the agent is back
            return;
        }
        if (ev->failed) {
            view_command_answer(m, o->tag, COMMAND_LOST, ev->err.text, now_ns);
        } else if (!msg_read_answer(&in, MSG_COMMAND, ev->data, ev->len, &err)) {
            view_command_answer(m, o->tag, COMMAND_REFUSED, err.text, now_ns);
        } else {
            view_command_answer(m, o->tag, COMMAND_DONE, mval_text(in.root, "effect", effect, sizeof(effect)), now_ns);
            msg_in_release(&in);
        }
        o->tag = 0;
        l->status_ns = now_ns;    // fetch what it has changed
        return;
    }
}

/* A far run's folder is asked for piece by piece. */
static void kept_ask(struct link *l, const struct run_view *m, int64_t now_ns)
{
    struct msg_out out = MSG_OUT_INIT;
    if (l->far && !l->open[TAG_KEPT] && m->link == LINK_LIVE && far_folder_ask(l->far, &out, m->incarnation, now_ns))
        ask(l, TAG_KEPT, &out);
    else
        msg_release(&out);
}

static void kept_came(struct link *l, struct run_view *m, const struct mval *v, int64_t now_ns)
{
    struct error err;
    if (far_folder_take(l->far, v, now_ns, &err)) {
        kept_ask(l, m, now_ns);
        return;
    }
    char note[300];    // once: the disk here is full, or cannot be written
    int n = snprintf(note, sizeof note, "what the run keeps is shown no further: %.200s", err.text);
    view_log(m, "console", note, (size_t)n);
    far_folder_free(l->far);
    l->far = NULL;
}

static void answered(struct link *l, struct run_view *m, const struct net_event *ev, int64_t now_ns)
{
    static const enum msg_type asked[TAG_COMMAND] = {
        [TAG_STATUS] = MSG_STATUS,           [TAG_STEPS] = MSG_STEPS, [TAG_EVENTS] = MSG_EVENTS, [TAG_ROLLOUTS] = MSG_ROLLOUTS,
        [TAG_CHECKPOINTS] = MSG_CHECKPOINTS, [TAG_KEPT] = MSG_KEPT,
    };
    struct msg_in in;
    struct error err;
    if (ev->tag >= TAG_COMMAND) {
        command_answered(l, m, ev, now_ns);
        return;
    }
    l->open[ev->tag] = false;
    if (ev->failed) {
        l->events_stale |= ev->tag == TAG_EVENTS;
        l->rollouts_stale |= ev->tag == TAG_ROLLOUTS;
        l->checkpoints_stale |= ev->tag == TAG_CHECKPOINTS;
        return;
    }
    l->answered_ns = now_ns;
    if (!msg_read_answer(&in, asked[ev->tag], ev->data, ev->len, &err)) {
        l->events_stale |= ev->tag == TAG_EVENTS;    // the controller is starting: ask again with the next status
        l->rollouts_stale |= ev->tag == TAG_ROLLOUTS;
        l->checkpoints_stale |= ev->tag == TAG_CHECKPOINTS;
        return;
    }
    switch (ev->tag) {
    case TAG_STATUS: status_came(l, m, in.root, now_ns); break;
    case TAG_STEPS:
        if (news_steps(m, in.root))
            steps_ask(l, m);
        break;
    case TAG_EVENTS:
        news_events(m, in.root);
        if (l->events_stale)
            events_ask(l, m);
        break;
    case TAG_ROLLOUTS: news_rollouts(m, in.root); break;
    case TAG_CHECKPOINTS: news_checkpoints(m, in.root); break;
    case TAG_KEPT: kept_came(l, m, in.root, now_ns); break;
    default: break;
    }
    msg_in_release(&in);
}

/* ---- the feed ---- */

/* Nothing more will come: disconnect, so that the run's agent need not wait for us. */
static void end_take(struct link *l, struct run_view *m)
{
    m->ended = true;
    subscriber_free(l->telemetry);
    l->telemetry = NULL;
    view_changed(m);
}

/* Have the requests sent at the run's end been answered? */
static bool last_answers_had(const struct link *l, const struct run_view *m)
{
    return l->last && !l->open[TAG_STEPS] && !l->open[TAG_EVENTS] && !l->open[TAG_ROLLOUTS] && !l->events_stale && !l->rollouts_stale
           && view_steps_whole(m);
}

/* The run has ended and its agent has not answered everything: the rest is in the journal, if we may read it. */
static void end_judge(struct link *l, struct run_view *m, int64_t now_ns)
{
    struct error err;
    if (!l->over || m->ended || (run_is_live(l->run_dir) && now_ns - l->over_ns < LAST_ANSWERS_NS))
        return;
    if (l->door.far || !run_end_read(m, l->run_dir, &err))
        view_link(m, LINK_LOST, "the run's processes have ended, and its journal cannot be read from here", now_ns);
    end_take(l, m);
}

/* The run is over and so are its processes: nothing of them may stand there as if they went on. */
static void gone_judge(struct link *l, struct run_view *m, int64_t now_ns)
{
    if (m->ended && (!run_is_live(l->run_dir) || now_ns - l->answered_ns >= LOST_NS))
        view_fleet_forget(m);
}

static void silence_judge(struct link *l, struct run_view *m, int64_t now_ns)
{
    struct error err;
    if (l->over || now_ns - l->answered_ns < LOST_NS)
        return;
    if (run_is_live(l->run_dir)) {
        view_link(m, m->told_ns ? LINK_LOST : LINK_CONNECTING,
                  m->told_ns ? "the run's agent does not answer; still trying" : "waiting for the run's agent", now_ns);
        return;
    }
    view_link(m, LINK_LOST, "the run's processes have ended", now_ns);
    bool read = !l->door.far && run_end_read(m, l->run_dir, &err);
    if (!run_state_is_over(m->state)) {
        if (!run_failure_read(l->run_dir, m->reason, sizeof(m->reason)))
            snprintf(m->reason, sizeof(m->reason),
                     read ? "all its processes have ended; 'rollcall train --resume' continues from the last checkpoint"
                          : "all its processes have ended; its journal says how, but cannot be read from here");
        m->state = RUN_FAILED;
    }
    over_look(l, m, now_ns);
    end_take(l, m);
}

static void link_pump(struct feed *f, struct run_view *m, int64_t now_ns)
{
    struct link *l = (struct link *)f;
    struct net_event ev;
    for (int i = 0; i < 1000 && transport_next(l->door.transport, &ev); i++) {    // limited, so that keys are handled in between
        switch (ev.kind) {
        case NET_ANSWER: answered(l, m, &ev, now_ns); break;
        case NET_HEARD: heard(l, m, &ev, now_ns); break;
        case NET_REQUEST: request_drop(ev.request); break;
        }
        net_event_release(&ev);
    }
    if (!m->ended && last_answers_had(l, m))
        end_take(l, m);
    if (now_ns >= l->status_ns) {
        struct error err;
        status_ask(l, m, now_ns);
        silence_judge(l, m, now_ns);
        end_judge(l, m, now_ns);
        gone_judge(l, m, now_ns);
        for (int i = 0; i < COMMANDS_OPEN && m->link == LINK_LIVE; i++)
            if (l->command[i].tag && !l->command[i].asked && !command_ask(l, &l->command[i], now_ns, &err)) {
                view_command_answer(m, l->command[i].tag, COMMAND_LOST, err.text, now_ns);
                l->command[i].tag = 0;
            }
    }
    kept_ask(l, m, now_ns);
    if (now_ns >= l->log_ns) {
        logtail_pump(l->log, m);
        l->log_ns = now_ns + LOG_NS;
    }
}

static int64_t link_due(const struct feed *f)
{
    const struct link *l = (const struct link *)f;
    return MIN(l->status_ns, l->log_ns);
}

static void link_free(struct feed *f)
{
    struct link *l = (struct link *)f;
    logtail_free(l->log);
    far_folder_free(l->far);
    subscriber_free(l->telemetry);
    run_door_close(&l->door);
    free(l);
}

struct feed *link_new(const char *run_dir, bool read_only, struct run_view *m, int64_t now_ns, struct error *err)
{
    char path[4200];
    struct link *l = calloc(1, sizeof(*l));
    if (!l) {
        error_set(err, ERR_NO_MEMORY, "no memory for the connection to the run");
        return NULL;
    }
    l->feed = (struct feed){ .pump = link_pump, .due_ns = link_due, .command = link_command, .free = link_free };
    snprintf(l->run_dir, sizeof(l->run_dir), "%s", run_dir);
    operator_name(l->who, "console");
    snprintf(m->me, sizeof(m->me), "%s", l->who);
    if (getrandom(&l->random, sizeof(l->random), 0) < 0)
        l->random = (uint64_t)now_ns;
    l->next_tag = TAG_COMMAND;
    l->events_stale = l->rollouts_stale = l->checkpoints_stale = true;
    l->answered_ns = now_ns;
    l->feed.fd = -1;
    if (!run_door_may_look(run_dir, err))
        goto fail;
    if (!run_is_live(run_dir)) {
        error_set(err, ERR_CLOSED, "the run in '%.300s' is not live; 'rollcall train --resume %.300s' continues it", run_dir, run_dir);
        goto fail;
    }
    if (!run_door_open(&l->door, run_dir, read_only, err) || (!(l->telemetry = run_door_listen(&l->door, err)) && !l->door.far))
        goto fail;
    if (!path_join(path, sizeof(path), run_dir, "logs")) {
        error_set(err, ERR_USAGE, "the run's path is too long");
        goto fail;
    }
    if (!(l->log = logtail_new(path, err)) || (l->door.far && !(l->far = far_folder_new(run_dir, err))))
        goto fail;
    m->far = l->door.far;
    l->feed.fd = transport_fd(l->door.transport);
    l->feed.read_only = l->door.read_only;
    const char *base = strrchr(run_dir, '/');
    snprintf(m->name, sizeof(m->name), "%s", base ? base + 1 : run_dir);
    view_link(m, LINK_CONNECTING, "waiting for the run's agent", now_ns);
    status_ask(l, m, now_ns);
    return &l->feed;
fail:
    link_free(&l->feed);
    return NULL;
}
