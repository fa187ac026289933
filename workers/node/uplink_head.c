#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/run/run_failure.h"
#include "protocol/run/run_state.h"
#include "protocol/settings/knobs.h"
#include "protocol/wire/join_rotation.h"
#include "workers/host/node_watch.h"
#include "workers/node/uplink_parts.h"
#include "workers/node/weights_fetch.h"

#define BEAT_LIMIT_MS 3000
#define TOKEN_LOOK_MS 2000    // while the head does not answer
#define SLEPT_MS 3000         // between two looks, which come each second at least
#define MOVE_MS 4000          // for the head to answer at one of its addresses
#define FAR_MS 1000           // an answer that takes longer is worth a word, and so is
#define ANSWERS_MIN 8         // before they are judged
#define LOST_MS 60000         // one that has not come, for so long
#define WARN_MS 60000         // between two warnings of a bad link

void node_end(struct uplink *u, const char *state, const char *reason)
{
    struct error err;
    char path[4200];
    if (u->ends)
        return;
    u->ends = true;
    snprintf(u->state, sizeof u->state, "%s", state);
    snprintf(u->reason, sizeof u->reason, "%s", reason);
    log_info("the node ends: %s: %s", state, reason);
    snprintf(path, sizeof path, "%s/" NODE_END_FILE, u->process.run_dir);
    if (!(run_state_find(state) == RUN_FAILED ? run_failure_write(u->process.run_dir, reason, &err)
                                              : file_write(path, reason, strlen(reason), &err)))
        log_error("%s", err.text);
    process_phase(&u->process, state, "");
}

bool uplink_token_read(struct uplink *u, struct error *err)
{
    char path[4300], token[JOIN_TOKEN_LEN + 1];
    snprintf(path, sizeof path, "%s/" NODE_TOKEN_FILE, u->process.run_dir);
    if (!join_token_read(token, path, err))
        return false;
    if (strcmp(token, u->token) == 0)
        return true;
    memcpy(u->token, token, sizeof u->token);
    u->token_new = true;
    return join_token_id(u->token_id, token, err);
}

/* The head has sent the token that replaces ours. */
static void token_follow(struct uplink *u, const char *token)
{
    struct error err;
    char path[4300];
    snprintf(path, sizeof path, "%s/" NODE_TOKEN_FILE, u->process.run_dir);
    if (join_token_follow(path, token, u->token, &err) && uplink_token_read(u, &err))
        log_info("the head has replaced the join token; this node has the new one");
    else
        log_error("the join token cannot be replaced, and the old one will be refused soon: %s", err.text);
}

/* Connect with a token that is new here. */
static void token_use(struct uplink *u)
{
    struct error err;
    struct join_identity id;
    u->token_new = u->strange = false;
    bool ok = join_identity_make(&id, u->token, NULL, &err) && peer_identity(u->head, &id, &err) && peer_identity(u->pulse, &id, &err);
    for (int i = 0; i < N_STREAM && ok; i++)
        ok = peer_identity(u->stream[i], &id, &err);
    if (!ok)
        log_error("%s", err.text);
}

static void status_ask(struct uplink *u)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_STATUS);
    msg_bool(&m, "fresh", false);
    u->status_open = msg_finish(&m, &err) && peer_ask(u->process.agent, &m, BEAT_LIMIT_MS, TAG_STATUS, &err);
    msg_release(&m);
}

void beat_send(struct uplink *u, bool leaving)
{
    struct error err;
    struct msg_in in = { 0 };
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_NODE);
    msg_str(&m, "node", u->node.name);
    msg_str(&m, "id", u->node.id);
    msg_str(&m, "host", u->node.host);
    msg_i64(&m, "start", u->process.start);
    msg_str(&m, "hash", u->node.hash);
    msg_i64(&m, "first_trainer", u->node.first_trainer);
    msg_i64(&m, "devices", u->node.n_device);
    msg_str(&m, "token", u->token_id);
    if (leaving) {
        msg_bool(&m, "leaving", true);
        msg_str(&m, "reason", u->reason);
    }
    if (u->processes.len && msg_read_answer(&in, MSG_STATUS, u->processes.data, u->processes.len, &err)) {
        msg_copy(&m, "processes", mval_get(in.root, "processes"));
        msg_map(&m, "figures");
        node_figures_copy(&m, in.root, NULL);
        msg_end(&m);
        msg_in_release(&in);
    } else {
        msg_list(&m, "processes");
        msg_end(&m);
    }
    /* Until the gate knows head, and after a sign of life that was lost, the two connections in turn: on head, long requests may be before
     * it; on pulse, TCP may wait long before it sends again what was lost. */
    bool lost = u->lost_ms && u->lost_ms >= u->asked_ms;
    struct peer *way = (u->introduce || lost) && u->way != u->head ? u->head : u->pulse;
    u->way = way;
    u->asked_ms = clock_ms();
    u->beat_open = msg_finish(&m, &err) && peer_ask(way, &m, BEAT_LIMIT_MS, TAG_BEAT, &err);
    msg_release(&m);
}

/* The first answers say more of how connections are made. */
static bool is_far(const struct uplink *u)
{
    return u->n_answer >= ANSWERS_MIN && u->answer_ms > FAR_MS;
}

/* What the link to the head is like, in words; "": there is nothing to say. */
static void link_words(const struct uplink *u, int64_t now, char out[160])
{
    size_t n = 0;
    out[0] = 0;
    if (is_far(u))
        n = (size_t)snprintf(out, 160, "a slow link to the head: it answers after %.1f s", u->answer_ms / 1000);
    if (u->lost_ms && now - u->lost_ms < LOST_MS)
        snprintf(out + n, 160 - n, "%ssigns of life without an answer in %d s: %" PRId64 ", the last one %.0f s ago",
                 n ? "; " : "a bad link to the head: ", BEAT_LIMIT_MS / 1000, u->n_beat_lost, (double)(now - u->lost_ms) / 1000);
}

/* Count an answer, or that none has come in time. */
static void beat_count(struct uplink *u, bool lost)
{
    char words[160];
    int64_t now = clock_ms();
    double ms = (double)(now - u->asked_ms);
    if (lost) {
        u->n_beat_lost++;
        u->lost_ms = now;
    } else {
        u->n_answer++;
        u->answer_ms = isnan(u->answer_ms) ? ms : u->answer_ms + (ms - u->answer_ms) / 8;    // as TCP does, RFC 6298, 2.3
    }
    link_words(u, now, words);
    if (words[0] && now - u->warned_ms >= WARN_MS && (u->n_beat_lost > u->n_lost_before || is_far(u))) {
        u->warned_ms = now;
        u->n_lost_before = u->n_beat_lost;
        log_warn("%s", words);
    }
}

static void restart_ask(struct uplink *u, const char *name, int64_t pid)
{
    struct error err;
    char id[160];
    struct msg_out m = MSG_OUT_INIT;
    snprintf(id, sizeof id, "head-%s-%" PRId64, name, pid);    // told again every beat until it has been done
    msg_begin(&m, MSG_COMMAND);
    msg_str(&m, "id", id);
    msg_str(&m, "command", "restart");
    msg_map(&m, "args");
    msg_str(&m, "process", name);
    msg_end(&m);
    msg_str(&m, "who", "the head");
    if (msg_finish(&m, &err) && !peer_ask(u->process.agent, &m, 60000, TAG_RESTART, &err))
        log_warn("%s", err.text);
    msg_release(&m);
}

void beat_came(struct uplink *u, const struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    char order[16], reason[300], restart[64], path[4200], token[JOIN_TOKEN_LEN + 1], state[sizeof u->state];
    u->beat_open = false;
    beat_count(u, ev->failed);
    if (ev->failed)
        return;
    if (!msg_read_answer(&in, MSG_NODE, ev->data, ev->len, &err)) {
        node_end(u, run_state_name(RUN_FAILED), err.text);
        return;
    }
    u->heard_ms = clock_ms();
    u->strange = false;
    u->introduce = u->introduce && ev->peer != u->head;
    if (u->moved && !node_write(&u->node, u->process.run_dir, &err))    // processes that start from now on need it
        log_error("%s", err.text);
    u->moved = false;
    if (join_token_check(mval_text(in.root, "token", token, sizeof token), &err))
        token_follow(u, token);
    mval_text(in.root, "order", order, sizeof order);
    mval_text(in.root, "reason", reason, sizeof reason);
    mval_text(in.root, "state", state, sizeof state);
    if (!u->ends) {
        memcpy(u->state, state, sizeof u->state);
        u->step = mval_i64(mval_get(in.root, "step"), 0);
        knobs_watch_take(&u->config, mval_get(in.root, "knobs"));
    }
    if (strcmp(order, "join") == 0) {
        snprintf(path, sizeof path, "%s/" NODE_REJOIN_FILE, u->process.run_dir);
        if (!file_write(path, reason, strlen(reason), &err))
            log_error("%s", err.text);
        node_end(u, run_state_name(RUN_STOPPED), reason);
    } else if (strcmp(order, "stop") == 0) {
        u->over = u->over || run_state_is_over(run_state_find(state));
        node_end(u, run_state_name(run_state_find(u->state) == RUN_FINISHED ? RUN_FINISHED : RUN_STOPPED), reason);
    } else if (mval_text(in.root, "restart", restart, sizeof restart)[0]) {
        restart_ask(u, restart, mval_i64(mval_get(in.root, "restart_pid"), 0));
    }
    msg_in_release(&in);
}

void status_came(struct uplink *u, const struct net_event *ev)
{
    u->status_open = false;
    buf_clear(&u->processes);
    if (!ev->failed && ev->len < (size_t)1 << 20)
        buf_add(&u->processes, ev->data, ev->len);
}

/* The head does not answer: it may go on at the next address of the list. */
static void head_move(struct uplink *u, int64_t now)
{
    if (now - u->moved_ms < MOVE_MS || !node_head_next(&u->node))
        return;
    u->moved_ms = now;
    u->moved = true;
    log_info("looking for the head at %s", u->node.head);
    peer_move(u->head, u->node.head);
    peer_move(u->pulse, u->node.head);
    for (int i = 0; i < N_STREAM; i++)
        peer_move(u->stream[i], u->node.head);
}

/* The head does not answer: has it another token by now, and has an operator brought that here? */
static void token_look(struct uplink *u, int64_t now)
{
    struct error err;
    bool strange = u->strange;
    if (now - u->token_ms < TOKEN_LOOK_MS)
        return;
    u->token_ms = now;
    u->strange = strange || peer_is_strange(u->head) || peer_is_strange(u->pulse);
    if (u->strange && !strange)
        log_warn("the head %s " NODE_STRANGE, u->node.head);
    if (u->strange && !uplink_token_read(u, &err))
        log_warn("%s", err.text);
}

/* What the uplink does now, and whether the head has been silent for too long. Time in which this process did not run is no silence of the
 * head's: it looks for the head again first, and says why it is turned away. */
static void silence_look(struct uplink *u, int64_t now)
{
    if (u->looked_ms > 0 && now - u->looked_ms > SLEPT_MS)
        u->heard_ms += now - u->looked_ms;
    u->looked_ms = now;
    double silent_s = (double)(now - u->heard_ms) / 1000;
    char text[400];
    snprintf(text, sizeof text, "head %s", u->node.head);
    if (silent_s > MAX(u->config.slow_s, 3 * u->config.heartbeat_s))
        token_look(u, now);
    if (silent_s > u->node.wait_s) {
        snprintf(text, sizeof text, u->strange ? "the head %s " NODE_STRANGE : "no sign of life of the head %s for %.0f s", u->node.head,
                 silent_s);
        node_end(u, run_state_name(RUN_FAILED), text);
    } else if (silent_s > MAX(u->config.slow_s, 3 * u->config.heartbeat_s)) {
        if (u->strange)
            snprintf(text, sizeof text, "head %s, which " NODE_STRANGE, u->node.head);
        process_phase(&u->process, "waiting", text);
        head_move(u, now);
    } else if (u->fetch) {
        struct weights_fetch_look look;
        weights_fetch_look(u->fetch, &look);
        snprintf(text, sizeof text, "weights of version %" PRId64, u->fetch_version);
        process_phase(&u->process, "fetching", text);
        u->process.progress = MAX(u->process.progress, (double)look.done_bytes);
    } else {
        link_words(u, now, text);
        process_phase(&u->process, "passing on", text);
    }
}

void head_tick(struct uplink *u)
{
    int64_t now = clock_ms();
    if (u->token_new)
        token_use(u);    // before the sign of life that says its name
    if (now >= head_due(u)) {
        u->beat_ms = now;
        if (!u->beat_open)
            beat_send(u, false);
        if (!u->status_open)
            status_ask(u);    // for the next one
    }
    if (!u->ends)
        silence_look(u, now);
}

int64_t head_due(const struct uplink *u)
{
    return u->beat_ms + (int64_t)(1000 * u->config.heartbeat_s);
}
