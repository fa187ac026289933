/* Waiting requests: those passed on to the controller or the gate, and those for a process that an operator has restarted. */
#include "workers/agent/agent_parts.h"
#include <stdio.h>
#include <string.h>
#include "protocol/base/clock.h"

#define ASK_MS 5000    // until a request passed on is sent again

struct pending *pending_new(struct agent *a, struct request *r, enum msg_type type, const void *data, size_t len, int64_t limit_ms)
{
    struct error err;
    for (int i = 0; i < PENDING_MAX; i++)
        if (!a->pending[i].request) {
            struct pending *x = &a->pending[i];
            struct buf b = x->msg;
            *x = (struct pending){ .request = r, .msg = b, .type = type, .to = a->controller, .limit_ms = clock_ms() + limit_ms };
            buf_clear(&x->msg);
            buf_add(&x->msg, data, len);
            return x;
        }
    error_set(&err, ERR_FULL, "%d requests are waiting already", PENDING_MAX);
    request_refuse(r, &err);
    return NULL;
}

void pending_ask(struct agent *a, struct pending *x)
{
    struct error err;
    struct msg_out m = { .buf = x->msg };
    int64_t left = x->limit_ms - clock_ms();
    /* In pieces: an answer may get lost, and asking again is safe (see pending_answered). */
    x->open = peer_ask(x->to, &m, MIN(MAX(left, 1), ASK_MS), (uint64_t)(x - a->pending), &err);
    x->again_ms = clock_ms() + 200;
}

static void pending_end(struct pending *x)
{
    x->request = NULL;
    x->open = false;
}

/* A command that has not taken effect in time is refused with the name of the late process, which only the agent knows. */
static bool refused_late(const struct agent *a, struct request *r, const struct net_event *ev)
{
    struct msg_in in;
    struct error err, named;
    char late[200];
    if (msg_read_answer(&in, MSG_COMMAND, ev->data, ev->len, &err)) {
        msg_in_release(&in);
        return false;
    }
    late_tell(a, late, sizeof late);
    if (err.code != ERR_TIMEOUT || !late[0])
        return false;
    error_set(&named, ERR_TIMEOUT, "%.700s; %s", err.text, late);
    request_refuse(r, &named);
    return true;
}

/* The control has been taken or given back: it holds here too from this answer on, not from the controller's next heartbeat. */
static void lock_learn(struct agent *a, const struct pending *x, const struct net_event *ev)
{
    struct msg_in in, answer;
    struct error err;
    char command[32];
    if (!msg_read_request(&in, x->msg.data, x->msg.len, &err))
        return;
    mval_text(in.root, "command", command, sizeof command);
    bool lock = strcmp(command, "lock") == 0;
    if ((lock || strcmp(command, "unlock") == 0) && msg_read_answer(&answer, MSG_COMMAND, ev->data, ev->len, &err)) {
        a->lock = (struct control_lock){ .since_s = clock_wall_s() };
        if (lock)
            mval_text(in.root, "who", a->lock.holder, sizeof a->lock.holder);
        msg_in_release(&answer);
    }
    msg_in_release(&in);
}

/* An answer is passed back unchanged. A lost one is requested again until the limit: commands carry ids, and all other requests
 * only read. */
void pending_answered(struct agent *a, struct net_event *ev)
{
    if (!a->pending[ev->tag].request)
        return;
    struct pending *x = &a->pending[ev->tag];
    x->open = false;
    if (ev->failed) {
        x->again_ms = clock_ms() + 100;
        return;
    }
    if (x->type == MSG_COMMAND && refused_late(a, x->request, ev)) {
        pending_end(x);
        return;
    }
    struct msg_in in;
    struct error err;
    if (x->type == MSG_STATUS && msg_read_answer(&in, MSG_STATUS, ev->data, ev->len, &err)) {
        status_answer(a, x->request, &x->page, in.root, 0);
        msg_in_release(&in);
    } else {
        struct msg_out m = MSG_OUT_INIT;
        if (x->type == MSG_COMMAND)
            lock_learn(a, x, ev);
        buf_add(&m.buf, ev->data, ev->len);
        request_answer(x->request, &m);
        msg_release(&m);
    }
    pending_end(x);
}

/* Has the process been heard from since the restart? One without heartbeat counts as alive when it has a process id. */
static bool child_lives_anew(const struct child *c, const struct restart *r)
{
    bool beats = c->command && !c->exporter;
    return c->pid && c->pid != r->pid && (!beats || (c->start && c->start != r->start));
}

int64_t pendings_due(const struct agent *a)
{
    int64_t due = INT64_MAX;
    for (int i = 0; i < PENDING_MAX; i++) {
        const struct pending *x = &a->pending[i];
        if (x->request && (x->restart || x->type == MSG_STATUS))
            due = MIN(due, x->limit_ms + 1);
        else if (x->request)
            due = MIN(due, x->limit_ms + 501);
        if (x->request && !x->restart && !x->open && x->again_ms < x->limit_ms)
            due = MIN(due, x->again_ms);
    }
    return due;
}

void pendings_tick(struct agent *a)
{
    struct error err;
    int64_t now = clock_ms();
    for (int i = 0; i < PENDING_MAX; i++) {
        struct pending *x = &a->pending[i];
        if (!x->request)
            continue;
        if (x->restart) {
            const struct child *c = &a->child[x->restart->child];
            if (child_lives_anew(c, x->restart)) {
                struct msg_out m = MSG_OUT_INIT;
                char text[128];
                snprintf(text, sizeof text, "'%s' is running again, pid %d", c->name, (int)c->pid);
                msg_begin(&m, MSG_OK);
                msg_str(&m, "effect", text);
                msg_i64(&m, "step", 0);
                if (msg_finish(&m, &err))
                    request_answer(x->request, &m);
                msg_release(&m);
                pending_end(x);
            } else if (now > x->limit_ms) {
                error_set(&err, ERR_TIMEOUT, "'%s' has not come back in time", c->name);
                request_refuse(x->request, &err);
                pending_end(x);
            }
            continue;
        }
        if (x->type == MSG_STATUS && (now > x->limit_ms || (!x->open && now >= x->again_ms))) {
            status_cached(a, x->request, &x->page);
            pending_end(x);
        } else if (now > x->limit_ms + 500) {
            error_set(&err, ERR_TIMEOUT, "the %s has not answered in time", peer_name(x->to));
            request_refuse(x->request, &err);
            pending_end(x);
        } else if (!x->open && now >= x->again_ms && now < x->limit_ms) {
            pending_ask(a, x);
        }
    }
}

/* Kill the process, unless the command with this id has already done so; the audit trail records who, when and what. */
static const struct restart *restart_do(struct agent *a, const struct msg_in *in, struct error *err)
{
    char name[64], id[128], who[128], text[256];
    mval_text(in->root, "id", id, sizeof id);
    mval_text(in->root, "who", who, sizeof who);
    for (int i = 0; i < RESTART_MAX; i++)
        if (id[0] && strcmp(a->restart[i].id, id) == 0)
            return &a->restart[i];
    struct child *c = child_find(a, mval_text(mval_get(in->root, "args"), "process", name, sizeof name));
    if (!c) {
        if (strcmp(name, "agent") == 0)
            error_set(err, ERR_UNSUPPORTED, "the agent cannot restart itself; kill its process, and the keeper starts it again");
        else
            error_set(err, ERR_NOT_FOUND, "no process is called '%s'; 'rollcall ctl status' lists them", name);
        return NULL;
    }
    struct restart *r = &a->restart[a->n_restart++ % RESTART_MAX];
    *r = (struct restart){ .child = (int)(c - a->child), .pid = c->pid, .start = c->start };
    snprintf(r->id, sizeof r->id, "%s", id);
    if (c->exporter && c->next_ms == INT64_MAX)    // it had ended on its own
        c->next_ms = 0;
    if (c->pid) {
        snprintf(text, sizeof text, "'%s' (pid %d) is killed and restarted", c->name, (int)c->pid);
        child_kill(c);
    } else {
        snprintf(text, sizeof text, "'%s', which is not running, is started again", c->name);
    }
    note_add(a, "command", who, text);
    return r;
}

bool command_allowed(const struct agent *a, const struct msg_in *in, bool of_node, struct error *err)
{
    char command[32], who[128];
    mval_text(in->root, "command", command, sizeof command);
    if (!of_node && strcmp(command, "restart") != 0)
        return true;
    return control_lock_lets(&a->lock, mval_text(in->root, "who", who, sizeof who), command, mval_bool(mval_get(in->root, "force"), false),
                             clock_wall_s(), err);
}

bool restart_asked(struct agent *a, struct request *r, const struct msg_in *in)
{
    char command[32];
    struct error err;
    mval_text(in->root, "command", command, sizeof command);
    if (strcmp(command, "restart") != 0)
        return false;
    const struct restart *restart = restart_do(a, in, &err);
    if (!restart) {
        request_refuse(r, &err);
        return true;
    }
    struct pending *x = pending_new(a, r, MSG_COMMAND, "", 0, command_limit_ms(in->root, 60));
    if (x)
        x->restart = restart;
    return true;
}
