/* web.h - an HTTP server for one table of routes, by libmicrohttpd, with bounds on everything a client may send
 *
 * Bounded are connections, the header (32 KiB), the body (also after gzip), all bodies together, the time for header and body, and idle
 * time. One connection too many pushes out the oldest one that waits for a request, or is refused with 503. Requests whose framing is
 * ambiguous (two lengths, a length beside chunks, no Host) are refused with 400 and closed, since a proxy may read them otherwise;
 * requests that a browser makes for another site's page are refused with 403.
 *
 * Two threads: libmicrohttpd's reads requests, calls the routes' functions (which must be short) and sends answers; ours accepts and
 * watches time limits and clients that go away. A route answers at once or with a job, whose answer is sent when it is done, or as it
 * comes. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

struct serve_job;
struct web;
struct web_request {
    const char *method, *path;
    const char *body;    // (len) NUL-terminated; whole, and inflated
    size_t len;
    void *connection;    // for web_query
};
/* The value of ?NAME=; NULL: not there. */
const char *web_query(const struct web_request *q, const char *name);

struct web_answer {
    int status;               // 200 unless set
    struct buf body;          // taken by the server
    const char *type;         // "application/json" unless set; outlives the server
    int retry_after_s;        // 0: not said
    struct serve_job *job;    // the answer is this job's; the reference passes to the server. NULL: the answer is here
    bool stream;              // ... as it comes
};
struct web_route {
    const char *method, *path;
    void (*run)(void *ctx, const struct web_request *q, struct web_answer *a);
    bool open;    // needs no token
};
struct web_config {
    int listen_fd;                    // listens already; closed by web_free
    const struct web_route *route;    // (n_route)
    size_t n_route;
    void *ctx;                         // for all these
    const char *token;                 // clients must show it; NULL: none
    const char *cert_pem, *key_pem;    // TLS; NULL: plain
    int64_t max_connections;
    size_t max_body_bytes;       // of one request
    size_t max_bodies_bytes;     // of all requests that are being read
    int64_t head_ms, body_ms;    // to send a request's header after connecting, and its body
    int64_t idle_ms;             // between two requests, and in which something of an answer must be taken
    void (*print)(void *ctx, struct serve_job *j, struct web_answer *a);    // a job that is done; lock held
    bool (*stream)(void *ctx, struct serve_job *j, struct buf *out);        // what has come; lock held; true: that was all
    void (*leave)(void *ctx, struct serve_job *j);                          // its client has gone
};
/* Begin to serve. NULL: see err; listen_fd is closed. Strings are borrowed until web_free. */
struct web *web_new(const struct web_config *config, struct error *err);
/* Accept no more connections, and close each after its request. */
void web_close(struct web *h);
/* Wait until no request is under way, at most limit_ms. */
bool web_wait(struct web *h, int64_t limit_ms);
/* All jobs must be done: their answers are cut off. NULL is fine. */
void web_free(struct web *h);
/* An answer that says what is wrong, in OpenAI's shape. */
void web_fail(struct web_answer *a, int status, const char *message);
