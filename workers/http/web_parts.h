/* web_parts.h - what the two halves of an HTTP server share: web.c moves bytes and time, web_exchange.c makes requests and answers of
 * them. Everything here is the server's thread's, unless it says otherwise; web.c has the invariants. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include "protocol/base/clock.h"
#include "protocol/base/http_head.h"
#include "protocol/base/own_hosts.h"
#include "protocol/wire/tls_door.h"
#include "workers/http/web.h"

#define READ_BYTES 65536
#define PUSH_ANSWER_MS 2000      // ... and whose client could have taken what was sent
#define PUSH_BYTES_PER_MS 256    // ... when others need its place: what it has not read may be megabytes, in its buffers and ours
#define PLACES 1024              // for counts by address

/* Why a connection was closed that has no answer. */
enum away {
    AWAY_SILENT,
    AWAY_SLOW,
    AWAY_MANY,
    AWAY_COUNT,
};
enum phase {
    PHASE_NEW,
    PHASE_IDLE,
    PHASE_HEAD,
    PHASE_BODY,
    PHASE_ANSWER,
    PHASE_LEAVING,
    PHASE_GONE,
};
struct connection {
    struct connection *next, *prev;
    struct web *web;
    int fd;
    struct tls_visit *tls;    // NULL: plain
    uint32_t asked;           // of epoll
    bool wants_out;           // TLS waits for room to write
    struct sockaddr_storage from;
    unsigned place;    // of its address
    enum phase phase;
    int64_t since_ms;    // of the phase
    struct buf in;       // what has come and is not used
    size_t in_at, seen;
    /* the request */
    char *text;    // its head; owned
    struct http_head head;
    const struct web_route *route;
    struct http_chunks chunks;
    struct buf body;
    size_t n_came;    // bytes of the body as received
    int refused;      // status; the rest of the body is skipped
    char why[256];
    bool is_last;    // close the connection after the answer
    /* the answer */
    struct http_job *job;    // one reference; NULL: none
    bool stream, over;       // over: nothing will be added to what is to be sent
    bool left;               // the client has gone, and the job was told
    bool again;              // it has more to do at once
    atomic_bool news;
    int64_t receipt;           // of the answer; 0: none
    struct buf out, answer;    // to be sent: heads and streams, then a body
    size_t out_at, answer_at;
    int64_t sent_ms;           // when some of it was taken
    int64_t sends_since_ms;    // since when there has been something to send, without a pause
    size_t n_sent;             // since then
    size_t held;               // bytes counted in answers_bytes
};
struct web {
    struct web_config config;
    struct own_hosts hosts;    // unused with a token, which no page knows
    struct tls_door *tls;      // NULL: plain HTTP
    pthread_t thread;
    bool has_thread;
    int wake_fd, epoll_fd;
    size_t answers_max;
    atomic_bool closed, has_news;
    pthread_mutex_t lock;    // guards: the next two
    pthread_cond_t over;     // an exchange has ended
    int64_t n_exchange;
    bool stop;
    /* the server's thread's */
    struct connection *first;
    int64_t n_connection, n_gone;    // all of them; those that the end of the turn closes
    bool listens;                    // epoll watches the listener
    size_t bodies_bytes, answers_bytes;
    uint32_t n_at[PLACES];         // connections by address
    size_t answers_at[PLACES];     // and bytes of answers
    char *scratch;                 // (READ_BYTES)
    int64_t n_away[AWAY_COUNT];    // since told_ms
    int64_t told_ms;               // the log, when connections were last sent away
    char last_away[80];            // the address of the last one
};

static inline void phase_set(struct connection *c, enum phase phase)
{
    c->phase = phase;
    c->since_ms = clock_ms();
}

static inline size_t to_send(const struct connection *c)
{
    return c->out.len - c->out_at + c->answer.len - c->answer_at;
}

/* How long its client has taken nothing of what is sent, or too little: a byte now and then is no excuse. -1: nothing was
 * given to it since it took all. */
int64_t late_taking(const struct connection *c, int64_t now, size_t bytes_per_ms);
/* Close it at the end of the turn: other events of this turn may name it. */
void connection_drop(struct connection *c);
/* Count this many bytes of its answer. */
void held_set(struct connection *c, size_t bytes);
/* Find the head of the next request in what has come, and refuse or begin it. False: more must come first. */
bool head_step(struct connection *c);
/* Use what has come of the body, and answer the request when it is whole. False: more must come first. */
bool body_step(struct connection *c);
/* Look whether the job has something to send. */
void job_look(struct connection *c);
/* The request is over, its answer sent or not; nothing of it is left. */
void exchange_forget(struct connection *c, bool arrived);
/* Wake the server's thread. Any thread. */
void server_wake(struct web *h);
