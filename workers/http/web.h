/* web.h - an HTTP server for one table of routes, with bounds on everything a client may send, or may not read
 *
 * Bounded are connections, the header (32 KiB), the body (also after gzip), all bodies together, the answers that have not been taken (of
 * all clients, and of one address), the time for header and body, for taking an answer, and idle time. A connection beyond the limit
 * replaces one that waits for a request, or one whose client does not read its answer, of the address with most of them; or it is
 * refused with 503. Connections that are sent away without an answer are counted and logged, at most once in ten seconds. A request with
 * ambiguous framing (http_head.h) is refused with 400 and its connection closed, since a proxy may read it differently; requests that a browser makes for another site's page, or for a host that is not ours (protocol/base/own_hosts.h), are
 * refused with 403.
 *
 * One thread reads requests, calls the routes' functions (which must be short) and sends answers. A route answers at once or with a
 * job, whose answer is sent when it is done, or as a stream. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

struct http_head;
struct http_job;
struct web;
struct web_request {
    const char *method, *path;
    const char *body;    // (len) NUL-terminated; whole, and inflated
    size_t len;
    const struct http_head *head;    // for web_query; NULL: none
};
/* The value of ?NAME=; NULL: absent. */
const char *web_query(const struct web_request *q, const char *name);

struct web_answer {
    int status;              // 200 unless set
    struct buf body;         // taken by the server
    const char *type;        // "application/json" unless set; outlives the server
    int retry_after_s;       // 0: no such header
    struct http_job *job;    // the answer is this job's; the reference passes to the server. NULL: the answer is in body
    bool stream;             // ... sent as a stream, of server-sent events unless type is set
    int64_t receipt;         // not 0: web_config.sent is called with this number
};
struct web_route {
    const char *method, *path;
    void (*run)(void *ctx, const struct web_request *q, struct web_answer *a);
    bool rest;     // path is the beginning, which more follows (q->path has all of it)
    bool open;     // needs no token
    bool order;    // changes what the server does for others
};
struct web_config {
    int listen_fd;                    // already listening; closed by web_free
    const char *address;              // HOST:PORT where it listens
    const char *allowed_hosts;        // more names for this server (own_hosts_check); NULL or "": none
    const struct web_route *route;    // (n_route)
    size_t n_route;
    pthread_mutex_t *lock;             // held while a route's function or sent is called, for what others use too; NULL: none
    void *ctx;                         // for all the functions here
    const char *token;                 // clients must send it; NULL: none
    const char *no_orders;             // orders are refused (403) with this sentence; NULL: they are not
    const char *cert_pem, *key_pem;    // TLS; NULL: plain
    int64_t max_connections;           // and as many, at most 64, while some of them are pushed out
    bool brief;               // requests take milliseconds: a connection without one gives its place to the next at once, not after a while
    size_t max_body_bytes;    // of one request
    size_t max_bodies_bytes;     // of all requests that are being read
    int64_t head_ms, body_ms;    // to send a request's header after connecting, and its body
    int64_t idle_ms;             // longest time between two requests, and without the client taking any of an answer
    void (*print)(void *ctx, struct http_job *j, struct web_answer *a);    // writes the answer of a job that is done; lock held
    bool (*stream)(void *ctx, struct http_job *j, struct buf *out);        // writes what is new; lock held; true: that was all
    void (*leave)(void *ctx, struct http_job *j);                          // called when the job's client has gone
    /* The answer with this receipt has been sent (arrived: as far as this host can know), or its client went away. NULL: not used. */
    void (*sent)(void *ctx, int64_t receipt, bool arrived);
    void (*fail)(struct web_answer *a, int status, const char *message);    // writes a refusal, in the shape that its clients know
    const char *bad_gzip;         // the refusal of a body that is not gzip; NULL: our own sentence
    size_t gzip_from, gzip_to;    // answers of this many bytes are compressed for clients that accept it; 0: none
};
/* Begin to serve. NULL: see err; listen_fd is closed. Strings are borrowed until web_free. */
struct web *web_new(const struct web_config *config, struct error *err);
/* Accept no more connections, and close each after its request. */
void web_close(struct web *h);
/* Wait until no request is under way, at most limit_ms. */
bool web_wait(struct web *h, int64_t limit_ms);
/* All jobs must be done: unfinished answers are cut off. NULL is fine. */
void web_free(struct web *h);
