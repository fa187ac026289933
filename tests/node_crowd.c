/* node_crowd.c - many nodes that join a run over TLS and say that they are there, as far as its gate can tell
 *
 *   node_crowd HOST:PORT TOKEN_FILE NODES
 * Each has a connection of its own. Prints "all are in" when every one has been told to go, and goes on until its input ends. Exit 1
 * and a sentence when one is refused, or not all are in after LIMIT_S. */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/wire/join_token.h"
#include "protocol/wire/transport.h"

#define LIMIT_S 240
#define BEAT_MS 1000
#define ASK_MS 20000
#define CONNECT_AT_ONCE 16

struct crowd {
    struct transport *transport;
    struct peer **peer;    // (n)
    bool *in;              // (n) has been told to go
    const char *address;
    const struct join_identity *id;
    int64_t n, n_peer, n_in;    // n_peer: connections begun
    char hash[65];              // of the run's settings, from the answer to join
    struct error why;
};

static void who_write(struct msg_out *m, int64_t i)
{
    char text[40];
    snprintf(text, sizeof text, "crowd-%04" PRId64, i);
    msg_str(m, "node", text);
    snprintf(text, sizeof text, "%032" PRIx64, (uint64_t)i + 1);
    msg_str(m, "id", text);
    msg_str(m, "host", "here");
}

/* Begin connections, few at a time: all come from one address, and a front closes those of one that has many in its hall. */
static bool more_connect(struct crowd *c)
{
    int64_t waiting = 0;
    for (int64_t i = 0; i < c->n_peer; i++)
        waiting += !peer_is_connected(c->peer[i]);
    for (; waiting < CONNECT_AT_ONCE && c->n_peer < c->n; waiting++, c->n_peer++)
        if (!(c->peer[c->n_peer] = peer_new_tls(c->transport, c->address, c->id, &c->why)))
            return false;
    return true;
}

static bool join(struct crowd *c)
{
    struct msg_out m = MSG_OUT_INIT;
    struct msg_in answer;
    struct net_event ev;
    msg_begin(&m, MSG_JOIN);
    who_write(&m, 0);
    msg_str(&m, "device", "cpu");
    msg_i64(&m, "producers", 1);
    bool ok = msg_finish(&m, &c->why) && peer_call(c->peer[0], MSG_JOIN, &m, ASK_MS, &answer, &ev, &c->why);
    if (ok) {
        mval_text(answer.root, "hash", c->hash, sizeof c->hash);
        msg_in_release(&answer);
        net_event_release(&ev);
    }
    msg_release(&m);
    return ok;
}

/* Node i says what it does. */
static bool beat(struct crowd *c, int64_t i)
{
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_NODE);
    who_write(&m, i);
    msg_i64(&m, "start", 1);
    msg_str(&m, "hash", c->hash);
    msg_list(&m, "processes");
    msg_map(&m, NULL);
    msg_str(&m, "name", "agent");
    msg_str(&m, "kind", "agent");
    msg_i64(&m, "pid", 1000 + i);
    msg_str(&m, "phase", "running");
    msg_f64(&m, "phase_s", 1);
    msg_str(&m, "verdict", "ok");
    msg_end(&m);
    msg_end(&m);
    bool ok = msg_finish(&m, &c->why) && peer_ask(c->peer[i], &m, ASK_MS, (uint64_t)i, &c->why);
    msg_release(&m);
    return ok;
}

static bool answer_take(struct crowd *c, const struct net_event *ev)
{
    struct msg_in in;
    char order[16];
    if (ev->kind != NET_ANSWER || ev->failed)
        return true;    // the next beat asks again
    if (!msg_read_answer(&in, MSG_NODE, ev->data, ev->len, &c->why))
        return false;
    if (strcmp(mval_text(in.root, "order", order, sizeof order), "go") == 0 && !c->in[ev->tag]) {
        c->in[ev->tag] = true;
        if (++c->n_in == c->n) {
            printf("all are in\n");
            fflush(stdout);
        }
    }
    msg_in_release(&in);
    return true;
}

static bool go_on(struct crowd *c)
{
    int64_t begin = clock_ms();
    for (;;) {
        int64_t round = clock_ms();
        for (int64_t i = 0; i < c->n_peer; i++)
            if (peer_n_open(c->peer[i]) == 0 && !beat(c, i))
                return false;
        while (clock_ms() < round + BEAT_MS) {
            int64_t before = c->n_peer;
            if (!more_connect(c))
                return false;
            for (int64_t i = before; i < c->n_peer; i++)
                if (!beat(c, i))
                    return false;
            struct pollfd fds[2] = { { .fd = transport_fd(c->transport), .events = POLLIN }, { .fd = STDIN_FILENO, .events = POLLIN } };
            struct net_event ev;
            char byte;
            poll(fds, 2, 50);
            if (fds[1].revents && read(STDIN_FILENO, &byte, 1) <= 0)
                return true;
            while (transport_next(c->transport, &ev)) {
                bool ok = answer_take(c, &ev);
                net_event_release(&ev);
                if (!ok)
                    return false;
            }
        }
        if (c->n_in < c->n && clock_ms() > begin + (int64_t)LIMIT_S * 1000)
            return error_set(&c->why, ERR_TIMEOUT, "%" PRId64 " of %" PRId64 " nodes are in", c->n_in, c->n);
    }
}

int main(int argc, char **argv)
{
    static struct join_identity id;
    struct crowd c = { .n = argc == 4 ? strtoll(argv[3], NULL, 10) : 0 };
    char token[JOIN_TOKEN_LEN + 1], dir[] = "/tmp/rollcall-crowd-XXXXXX";
    if (c.n < 1 || c.n > 2000) {
        fprintf(stderr, "usage: node_crowd HOST:PORT TOKEN_FILE NODES\n");
        return 2;
    }
    c.peer = calloc((size_t)c.n, sizeof(struct peer *));
    c.in = calloc((size_t)c.n, sizeof *c.in);
    bool ok = c.peer && c.in && mkdtemp(dir) && join_token_read(token, argv[2], &c.why) && join_identity_make(&id, token, NULL, &c.why)
              && (c.transport = transport_new(dir, false, &c.why));
    c.address = argv[1];
    c.id = &id;
    ok = ok && more_connect(&c) && join(&c) && go_on(&c);
    if (!ok)
        fprintf(stderr, "node_crowd: %s\n", c.why.text);
    rmdir(dir);
    _exit(!ok);    // closing thousands of connections one by one is of no use
}
