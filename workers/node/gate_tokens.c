/* The doors and their tokens: who gets in, and how a token is replaced while nodes are there (join_rotation.h says what is on disk).
 *
 * For the time that an operator has named, both tokens are accepted. Nodes that are present are sent the new one in the answer to their
 * next sign of life, say its name in the one after, and connect with it. Then connections that the old one made are ended. With no
 * overlap nobody is sent anything: whoever had the token that fell into wrong hands is out, also when the next replacement comes before
 * the connections of that token have ended. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/digest.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "workers/node/gate_parts.h"

#define N_OPEN (4 * NODES_MAX)    // requests from nodes held open at once, at most
#define OVERLAP_S 600             // unless the operator names another time
#define OVERLAP_MAX_S (30 * 86400.0)
#define TELL_LIMIT_MS 10000    // for the nodes that are present to take the new token, until the operator is answered
#define CUT_MS 1000            // for the answer to reach an operator whose own connection ends

static const struct {
    const char *word, *file, *what, *setting;
} kinds[N_DOOR] = {
    [DOOR_NODES] = { "join", NODE_TOKEN_FILE, "join token", "listen" },
    [DOOR_LENT] = { "lent", NODE_LENT_TOKEN_FILE, "token for sampling only", "listen_lent" },
};

bool gate_lent(const struct gate *g, const struct request *r)
{
    return request_server(r) == g->door[DOOR_LENT].server;
}

static enum door_kind door_of(const struct node_seen *n)
{
    return n->lent ? DOOR_LENT : DOOR_NODES;
}

static bool identity_of(const char *token, const char *past, struct join_identity *out, struct error *err)
{
    return join_identity_make(out, token, past[0] ? past : NULL, err);
}

static void token_path(const struct gate *g, enum door_kind kind, char out[4300])
{
    snprintf(out, 4300, "%s/%s", g->process.run_dir, kinds[kind].file);
}

/* The time of the token before is over, also for a gate that starts again when the clock was set back. */
static void past_note(const char *path, const struct join_before *before)
{
    struct error err;
    struct join_before over = *before;
    over.until_s = 0;
    if (!join_before_write(path, &over, &err))
        log_warn("%s", err.text);
}

bool door_token(struct gate *g, enum door_kind kind, struct error *err)
{
    struct door *d = &g->door[kind];
    struct join_before before;
    struct error why;
    char path[4300];
    token_path(g, kind, path);
    if (!path_exists(path) && !join_before_forget(path, err))    // it was removed, so that nobody has one that is good
        return false;
    if (!join_token_make(path, err) || !join_token_read(d->token, path, err) || !join_token_id(d->id, d->token, err))
        return false;
    if (!join_before_read(&before, path, &why)) {
        log_warn("%s", why.text);
    } else if (before.token[0] && strcmp(before.token, d->token) == 0) {    // the replacement was cut short: the newest was not carried out
        const char *older = strchr(before.commands, ',');
        snprintf(d->commands, sizeof d->commands, "%s", older ? older + 1 : "");
    } else if (before.token[0]) {
        memcpy(d->commands, before.commands, sizeof d->commands);
        if (clock_wall_s() < before.until_s) {
            if (!join_token_id(d->past_id, before.token, err))
                return false;
            memcpy(d->past, before.token, sizeof d->past);
            d->until_s = before.until_s;
        } else if (before.until_s > 0) {
            past_note(path, &before);
        }
    }
    return true;
}

bool door_open(struct gate *g, enum door_kind kind, const char *text, struct error *err)
{
    struct door *d = &g->door[kind];
    struct join_identity id;
    char address[280];
    if (!node_address(text, kinds[kind].setting, address, err) || !identity_of(d->token, d->past, &id, err))
        return false;
    if (!(d->server = server_new_tls(g->process.transport, address, &id, N_OPEN, err)))
        return error_wrap(err, "no %s can join: choose another HOST:PORT for '%s', or end the process that uses it",
                          kind == DOOR_LENT ? "lent machine" : "node", kinds[kind].setting);
    server_bulk(d->server, bulk_server_connection, g->bulk);
    log_info("%s join at %s with the token RUN/%s", kind == DOOR_LENT ? "machines that may only sample" : "nodes", address,
             kinds[kind].file);
    return true;
}

/* ---- telling the nodes ---- */

const char *token_news(const struct gate *g, const struct node_seen *n)
{
    const struct door *d = &g->door[door_of(n)];
    if (d->wary && strcmp(n->token_id, d->past_id) != 0)
        return NULL;
    return d->past[0] && n->token_id[0] && strcmp(n->token_id, d->id) != 0 ? d->token : NULL;
}

/* Count the nodes of a door that are present, and those that have its token; names: of the others, those that are lost among them. */
static void nodes_count(const struct gate *g, enum door_kind kind, int *n, int *n_have, struct buf *names)
{
    *n = *n_have = 0;
    for (int i = 0; i < g->n_node; i++) {
        const struct node_seen *s = &g->node[i];
        bool has = strcmp(s->token_id, g->door[kind].id) == 0;
        if (door_of(s) != kind || s->dismissed[0] || s->heard_ms == 0)
            continue;
        *n += s->here;
        *n_have += s->here && has;
        if (!has && names->len < 300)
            buf_fmt(names, "%s'%s'", names->len ? ", " : "", s->node.name);
    }
}

static void time_say(double wall_s, char out[32])
{
    time_t t = (time_t)ceil(wall_s);
    struct tm tm;
    out[0] = 0;
    if (localtime_r(&t, &tm))
        strftime(out, 32, wall_s - clock_wall_s() < 43200 ? "%T" : "%F %T", &tm);
}

/* Tell the operator how things stand. */
static void asker_answer(struct gate *g, enum door_kind kind)
{
    struct error err;
    struct door *d = &g->door[kind];
    struct msg_out m = MSG_OUT_INIT;
    struct buf names = BUF_INIT, text = BUF_INIT;
    char until[32];
    int n, n_have;
    nodes_count(g, kind, &n, &n_have, &names);
    time_say(d->until_s, until);
    if (d->past[0])
        buf_fmt(&text, "the %s (RUN/%s) is a new one: %d of %d nodes have it%s%s; the old one is accepted until %s", kinds[kind].what,
                kinds[kind].file, n_have, n, names.len ? ", not yet " : "", buf_text(&names), until);
    else if (d->until_s > 0)
        buf_fmt(&text, "the %s (RUN/%s) is a new one, and the old one is no longer accepted: %d of %d nodes have the new one%s%s",
                kinds[kind].what, kinds[kind].file, n_have, n, names.len ? ", not yet " : "", buf_text(&names));
    else
        buf_fmt(
            &text,
            "the %s (RUN/%s) is a new one, and the old one is no longer accepted; nodes have not been told the new one: they come back with "
            "a copy of the file",
            kinds[kind].what, kinds[kind].file);
    msg_begin(&m, MSG_OK);
    msg_str(&m, "effect", buf_text(&text));
    msg_i64(&m, "step", g->step);
    if (msg_finish(&m, &err))
        request_answer(d->asker, &m);
    else
        request_refuse(d->asker, &err);
    d->asker = NULL;
    msg_release(&m);
    buf_release(&names);
    buf_release(&text);
}

/* ---- replacing ---- */

static bool rotation_read(const struct mval *root, enum door_kind *kind, double *overlap_s, struct error *err)
{
    char word[16], text[32];
    const struct mval *args = mval_get(root, "args");
    mval_text(args, "token", word, sizeof word);
    mval_text(args, "overlap", text, sizeof text);
    *overlap_s = OVERLAP_S;
    if (text[0] && (!parse_f64(text, overlap_s) || !(*overlap_s >= 0 && *overlap_s <= OVERLAP_MAX_S)))
        return error_set(err, ERR_USAGE, "the overlap '%s' is not a number of seconds from 0 to %.0f", text, OVERLAP_MAX_S);
    for (*kind = 0; *kind < N_DOOR; ++*kind)
        if (strcmp(word[0] ? word : kinds[0].word, kinds[*kind].word) == 0)
            return true;
    return error_set(err, ERR_USAGE, "there is no token '%s'; rotate-token takes join or lent", word);
}

/* What tells commands apart: their ids are of any length, and may have blanks in them. */
static void command_read(const struct mval *root, char out[JOIN_COMMAND_LEN + 1])
{
    struct digest d;
    size_t len = 0;
    const char *id = mval_str(mval_get(root, "id"), &len);
    digest_init(&d, true);
    digest_add(&d, id, len);
    digest_hex(&d, out);
}

static bool token_replace(struct gate *g, enum door_kind kind, double overlap_s, const char command[JOIN_COMMAND_LEN + 1],
                          struct error *err)
{
    struct door *d = &g->door[kind];
    struct join_identity id;
    struct error none;
    struct join_before before = { .until_s = overlap_s > 0 ? clock_wall_s() + overlap_s : 0 };
    char token[JOIN_TOKEN_LEN + 1], name[JOIN_TOKEN_ID_LEN + 1];
    const char *past = overlap_s > 0 ? before.token : "";
    char path[4300];
    token_path(g, kind, path);
    memcpy(before.token, d->token, sizeof before.token);
    snprintf(before.commands, sizeof before.commands, "%s%s%.*s", command, d->commands[0] ? "," : "",
             JOIN_COMMANDS_SIZE - JOIN_COMMAND_LEN - 2, d->commands);    // whole digests
    if (!join_token_new(token, err) || !join_token_id(name, token, err) || !identity_of(token, past, &id, err)
        || !server_identity(d->server, &id, err))
        return false;
    if (!join_token_replace(path, token, &before, err)) {
        if (!identity_of(d->token, d->past, &id, &none) || !server_identity(d->server, &id, &none))
            log_error("%s", none.text);
        return false;
    }
    if (d->past[0] || overlap_s == 0)
        d->cut_ms = clock_ms() + CUT_MS;    // connections that a token has made which is no longer good
    d->wary = d->wary || overlap_s == 0;
    memcpy(d->past_id, d->id, sizeof d->past_id);
    snprintf(d->past, sizeof d->past, "%s", past);
    d->until_s = before.until_s;
    memcpy(d->token, token, sizeof d->token);
    memcpy(d->id, name, sizeof d->id);
    memcpy(d->commands, before.commands, sizeof d->commands);
    d->told = false;
    return true;
}

void token_rotate(struct gate *g, struct request *r, const struct msg_in *in)
{
    struct error err;
    enum door_kind kind;
    double overlap_s;
    char command[JOIN_COMMAND_LEN + 1], who[120], text[200], until[32];
    if (!rotation_read(in->root, &kind, &overlap_s, &err)) {
        request_refuse(r, &err);
        return;
    }
    struct door *d = &g->door[kind];
    command_read(in->root, command);
    if (!d->server)
        error_set(&err, ERR_REFUSED, "this run has no %s; see the setting '%s'", kinds[kind].what, kinds[kind].setting);
    if (!d->server || (!strstr(d->commands, command) && !token_replace(g, kind, overlap_s, command, &err))) {    // asked twice: done once
        request_refuse(r, &err);
        return;
    }
    if (!d->told) {
        time_say(d->until_s, until);
        snprintf(text, sizeof text, "the %s is replaced; the old one is %s%s", kinds[kind].what,
                 d->past[0] ? "accepted until " : "no longer accepted", d->past[0] ? until : "");
        event_tell(g, "command", mval_text(in->root, "who", who, sizeof who), text);
        d->told = true;
    }
    if (d->asker)
        asker_answer(g, kind);    // the newer request waits; dropped, the older would come again
    d->asker = r;
    d->asker_limit_ms = d->past[0] ? clock_ms() + TELL_LIMIT_MS : 0;
}

static void connections_cut(struct door *d)
{
    server_cut(d->server);
    d->cut_ms = 0;
    d->wary = false;
}

/* The time of the old token is over. */
static void past_end(struct gate *g, enum door_kind kind)
{
    struct error err;
    struct door *d = &g->door[kind];
    struct join_identity id;
    struct join_before before = { 0 };
    struct buf names = BUF_INIT;
    char text[600], path[4300];
    int n, n_have;
    if (!identity_of(d->token, "", &id, &err) || !server_identity(d->server, &id, &err)) {
        log_error("%s", err.text);
        d->until_s = clock_wall_s() + 1;    // again
        return;
    }
    token_path(g, kind, path);
    memcpy(before.token, d->past, sizeof before.token);
    memcpy(before.commands, d->commands, sizeof before.commands);
    past_note(path, &before);
    d->past[0] = 0;
    connections_cut(d);
    nodes_count(g, kind, &n, &n_have, &names);
    snprintf(text, sizeof text, "the old %s is no longer accepted%s%s%s", kinds[kind].what,
             names.len ? "; without the new one, and in need of a copy of RUN/" : "", names.len ? kinds[kind].file : "",
             names.len ? ": " : "");
    snprintf(text + strlen(text), sizeof text - strlen(text), "%s", buf_text(&names));
    event_tell(g, "node", "gate", text);
    buf_release(&names);
}

/* Do all nodes that are present have the door's token? A gate that was killed meanwhile does not know at once which those are. */
static bool all_have(const struct gate *g, enum door_kind kind)
{
    struct buf names = BUF_INIT;
    int n, n_have;
    nodes_count(g, kind, &n, &n_have, &names);
    buf_release(&names);
    return n_have == n && clock_ms() >= nodes_known_ms(g);
}

void tokens_tick(struct gate *g)
{
    for (enum door_kind k = 0; k < N_DOOR; k++) {
        struct door *d = &g->door[k];
        if (d->past[0] && clock_wall_s() >= d->until_s)
            past_end(g, k);
        if (d->cut_ms && clock_ms() >= d->cut_ms)
            connections_cut(d);
        if (d->asker && (all_have(g, k) || clock_ms() >= d->asker_limit_ms))
            asker_answer(g, k);
    }
}

int64_t tokens_due(const struct gate *g)
{
    int64_t due = INT64_MAX, now = clock_ms();
    for (enum door_kind k = 0; k < N_DOOR; k++) {
        const struct door *d = &g->door[k];
        if (d->past[0])
            due = MIN(due, now + MAX((int64_t)(1000 * (d->until_s - clock_wall_s())) + 1, (int64_t)0));
        if (d->cut_ms)
            due = MIN(due, d->cut_ms);
        if (d->asker)
            due = MIN(due, now < nodes_known_ms(g) ? MIN(d->asker_limit_ms, nodes_known_ms(g)) : d->asker_limit_ms);
    }
    return due;
}
