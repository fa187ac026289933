/* web.c - connections, bounds and answers around libmicrohttpd
 *
 * Invariants:
 *  1. A connection is in the list `first` from libmicrohttpd's notice of its start until that of its end; its
 *     descriptor stays open that long. http.lock guards list, phases and times, so the watch can shut a descriptor down
 *     without hitting another connection's.
 *  2. An exchange is one request on a connection, made at its header (exchange_begin) and freed when libmicrohttpd says it is over
 *     (exchange_over). Only libmicrohttpd's thread touches it, except `suspended`, which the job's lock guards.
 *  3. A connection is suspended exactly while exchange.suspended is set. That happens with the job's lock held when there is no
 *     news; job_news clears it and resumes. So no news is lost between checking and suspending. */
#include "workers/serve/web.h"
#include <errno.h>
#include <microhttpd.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>
#include "protocol/base/bearer.h"
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/thread.h"
#include "workers/serve/serve_job.h"
#include "workers/serve/reply.h"

#define HEAD_BYTES (32 * 1024)    // request line and headers
#define SLACK 64                  // connections being pushed out, in addition to the limit
#define PUSH_MS 500               // a connection that has waited less is not pushed out
#define PUSH_BODY_MS 2000         // ... and whose body has been coming for less
#define LOOK_MS 200               // interval of the checks for time limits and clients that have gone
#define STREAM_PIECE 16384

enum phase {
    PHASE_NEW,     // no request yet
    PHASE_IDLE,    // between two requests
    PHASE_BODY,
    PHASE_ANSWER,
};
struct exchange;
struct connection {
    struct connection *next, *prev;
    int fd;    // libmicrohttpd's
    enum phase phase;
    int64_t since_ms;         // of the phase
    struct serve_job *job;    // the job whose answer it waits for; NULL: none
    bool is_shut;
};
struct exchange {
    struct web *http;
    struct connection *at;
    struct MHD_Connection *connection;
    const struct web_route *route;
    struct buf body;
    size_t n_came;    // bytes of the body as received
    int refused;      // status; the rest of the body is skipped
    char why[256];
    struct serve_job *job;    // one reference
    bool stream, suspended;
    bool is_last;       // close the connection after the answer
    int64_t receipt;    // of the answer; 0: none
    struct buf out;     // what a stream still has to send, from out_at on
    size_t out_at;
    bool stream_over;
};
struct web {
    struct web_config config;
    struct MHD_Daemon *daemon;
    pthread_t watch;
    bool has_watch;
    struct pollfd *polled;    // (max_connections + SLACK + 2) the watch's
    int wake_fd;
    pthread_mutex_t lock;    // guards: the next four
    pthread_cond_t over;     // an exchange has ended
    struct connection *first;
    int64_t n_exchange;
    bool stop;
    atomic_bool closed;
    atomic_long n_connection;
    atomic_size_t bodies_bytes;
};

static void ctx_lock(struct web *h)
{
    if (h->config.lock)
        pthread_mutex_lock(h->config.lock);
}

static void ctx_unlock(struct web *h)
{
    if (h->config.lock)
        pthread_mutex_unlock(h->config.lock);
}

void web_fail(struct web_answer *a, int status, const char *message)
{
    a->status = status;
    buf_clear(&a->body);
    reply_error(&a->body, status, message);
    if (status == 503)
        a->retry_after_s = 1;
}

const char *web_query(const struct web_request *q, const char *name)
{
    return MHD_lookup_connection_value(q->connection, MHD_GET_ARGUMENT_KIND, name);
}

/* ---- connections */
static void phase_set(struct web *h, struct connection *c, enum phase phase)
{
    pthread_mutex_lock(&h->lock);
    c->phase = phase;
    c->since_ms = clock_ms();
    pthread_mutex_unlock(&h->lock);
}

static void connection_notice(void *cls, struct MHD_Connection *connection, void **context, enum MHD_ConnectionNotificationCode code)
{
    struct web *h = cls;
    struct connection *c = *context;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        *context = c = calloc(1, sizeof *c);
        if (!c)
            return;    // its requests are refused
        *c = (struct connection){ .fd = info ? info->connect_fd : -1, .since_ms = clock_ms() };
        pthread_mutex_lock(&h->lock);
        c->next = h->first;
        if (c->next)
            c->next->prev = c;
        h->first = c;
        pthread_mutex_unlock(&h->lock);
        return;
    }
    atomic_fetch_sub(&h->n_connection, 1);
    if (!c)
        return;
    pthread_mutex_lock(&h->lock);
    if (c->prev)
        c->prev->next = c->next;
    else
        h->first = c->next;
    if (c->next)
        c->next->prev = c->prev;
    pthread_mutex_unlock(&h->lock);
    free(c);
    *context = NULL;
}

/* End a connection from outside libmicrohttpd's thread, which notices at once. Lock held. */
static void connection_shut(struct connection *c)
{
    if (!c->is_shut && c->fd >= 0)
        shutdown(c->fd, SHUT_RDWR);
    c->is_shut = true;
}

/* Push out the oldest connection that has no request, or else the oldest that is slow with its body. */
static void connection_push_out(struct web *h)
{
    static const int64_t patience_ms[] = { [PHASE_NEW] = PUSH_MS, [PHASE_IDLE] = PUSH_MS, [PHASE_BODY] = PUSH_BODY_MS };
    struct connection *oldest = NULL;
    int64_t now = clock_ms();
    pthread_mutex_lock(&h->lock);
    for (struct connection *c = h->first; c; c = c->next) {
        if (c->is_shut || c->phase == PHASE_ANSWER || now - c->since_ms < patience_ms[c->phase])
            continue;
        bool reads = c->phase == PHASE_BODY, best_reads = oldest && oldest->phase == PHASE_BODY;
        if (!oldest || reads < best_reads || (reads == best_reads && c->since_ms < oldest->since_ms))
            oldest = c;
    }
    if (oldest)
        connection_shut(oldest);
    pthread_mutex_unlock(&h->lock);
}

static void connection_refuse(struct web *h, int fd)
{
    static const char sentence[] = "{\"error\":{\"message\":\"too many connections are open\",\"type\":\"overloaded_error\","
                                   "\"param\":null,\"code\":503}}";
    char answer[512], dump[4096];
    int n = snprintf(answer, sizeof answer,
                     "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nRetry-After: 1\r\n"
                     "Connection: close\r\n\r\n%s",
                     sizeof sentence - 1, sentence);
    if (!h->config.cert_pem && send(fd, answer, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT) > 0) {
        shutdown(fd, SHUT_WR);
        while (recv(fd, dump, sizeof dump, MSG_DONTWAIT) > 0)    // unread bytes would make close discard the answer
            ;
    }
    close(fd);
}

static void connections_accept(struct web *h)
{
    struct sockaddr_storage from;
    for (;;) {
        socklen_t len = sizeof from;
        int fd = accept4(h->config.listen_fd, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE)
                connection_push_out(h);
            return;
        }
        long n = atomic_load(&h->n_connection);
        if (n >= h->config.max_connections)
            connection_push_out(h);
        if (n >= h->config.max_connections + SLACK) {
            connection_refuse(h, fd);
            continue;
        }
        atomic_fetch_add(&h->n_connection, 1);
        if (MHD_add_connection(h->daemon, fd, (struct sockaddr *)&from, len) != MHD_YES)    // closes fd itself
            atomic_fetch_sub(&h->n_connection, 1);
    }
}

/* ---- the watch: accepts connections, and ends those that take too long or whose client has gone */
/* Descriptors to poll: the listener, the wake, and those whose clients may go away while a job runs. */
static nfds_t polled_collect(struct web *h, struct pollfd *polled, nfds_t max)
{
    nfds_t n = 0;
    polled[n++] = (struct pollfd){ .fd = h->wake_fd, .events = POLLIN };
    polled[n++] = (struct pollfd){ .fd = atomic_load(&h->closed) ? -1 : h->config.listen_fd, .events = POLLIN };
    pthread_mutex_lock(&h->lock);
    for (struct connection *c = h->first; c && n < max; c = c->next)
        if (c->phase == PHASE_ANSWER && c->job && !atomic_load(&c->job->gone))
            polled[n++] = (struct pollfd){ .fd = c->fd, .events = POLLRDHUP };
    pthread_mutex_unlock(&h->lock);
    return n;
}

static void gone_leave(struct web *h, const struct pollfd *polled, nfds_t n)
{
    for (nfds_t i = 2; i < n; i++) {
        struct serve_job *left = NULL;
        if (!(polled[i].revents & (POLLRDHUP | POLLHUP | POLLERR)))
            continue;
        pthread_mutex_lock(&h->lock);
        for (struct connection *c = h->first; c && !left; c = c->next)
            if (c->fd == polled[i].fd && c->phase == PHASE_ANSWER && c->job && !atomic_load(&c->job->gone)) {
                left = c->job;
                serve_job_hold(left);
            }
        pthread_mutex_unlock(&h->lock);
        if (left)
            h->config.leave(h->config.ctx, left);
        serve_job_drop(left);
    }
}

static void late_shut(struct web *h)
{
    int64_t now = clock_ms();
    const int64_t limit_ms[] = { [PHASE_NEW] = h->config.head_ms, [PHASE_IDLE] = h->config.idle_ms, [PHASE_BODY] = h->config.body_ms };
    pthread_mutex_lock(&h->lock);
    for (struct connection *c = h->first; c; c = c->next)
        if (c->phase != PHASE_ANSWER && now - c->since_ms > limit_ms[c->phase])
            connection_shut(c);
    pthread_mutex_unlock(&h->lock);
}

static void *watch_main(void *arg)
{
    struct web *h = arg;
    nfds_t max = (nfds_t)(h->config.max_connections + SLACK + 2);
    struct pollfd *polled = h->polled;
    int64_t looked = 0;
    bool stop = false;
    while (!stop) {
        nfds_t n = polled_collect(h, polled, max);
        if (poll(polled, n, LOOK_MS) < 0 && errno != EINTR)
            log_warn("connections cannot be watched: %s", strerror(errno));
        if (polled[1].revents & POLLIN)
            connections_accept(h);
        gone_leave(h, polled, n);
        if (clock_ms() - looked >= LOOK_MS) {
            late_shut(h);
            looked = clock_ms();
        }
        pthread_mutex_lock(&h->lock);
        stop = h->stop;
        pthread_mutex_unlock(&h->lock);
    }
    return NULL;
}

/* ---- a request's header */
static void refuse(struct exchange *x, int status, const char *why)
{
    if (!x->refused) {
        x->refused = status;
        snprintf(x->why, sizeof x->why, "%s", why);
    }
}

struct framing {
    int n_length, n_coding;
    const char *length;
    bool differs;
};

static enum MHD_Result header_see(void *cls, UNUSED enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct framing *f = cls;
    f->differs |= key[0] == 0 || strpbrk(key, " \t\r\n") != NULL;    // no blank stands before the colon (RFC 9112, 5.1)
    f->differs |= value && strpbrk(value, "\r\n") != NULL;
    f->differs |= value && strcasecmp(key, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0 && strcasecmp(value, "chunked") != 0;
    if (strcasecmp(key, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0) {
        f->differs |= f->length && value && strcmp(f->length, value) != 0;
        f->length = value;
        f->n_length++;
    }
    f->n_coding += strcasecmp(key, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0;
    return MHD_YES;
}

static const char *header_of(const struct exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

/* Does a URL, if there is one, lead to host? */
static bool leads_to(const char *url, const char *host)
{
    const char *at = url ? strstr(url, "://") : NULL;
    return !url || (at && host && strcspn(at + 3, "/?#") == strlen(host) && strncmp(at + 3, host, strlen(host)) == 0);
}

/* A browser names the site whose page sends the request; only our own is allowed. An image or a link comes without Origin, but with
 * Sec-Fetch-Site (Fetch Metadata Request Headers, section 2.3) or Referer. */
static bool is_foreign_page(const struct exchange *x)
{
    const char *host = header_of(x, "Host"), *site = header_of(x, "Sec-Fetch-Site");
    bool own = !site || strcasecmp(site, "same-origin") == 0 || strcasecmp(site, "none") == 0;
    return !own || !leads_to(header_of(x, "Origin"), host) || !leads_to(header_of(x, "Referer"), host);
}

static void route_find(struct exchange *x, const char *method, const char *path)
{
    const struct web_config *c = &x->http->config;
    size_t len = strlen(path);
    bool known = false;
    len -= len > 1 && path[len - 1] == '/';    // TRL's clients end their paths with a slash
    if (strcmp(method, "HEAD") == 0)
        method = "GET";
    for (size_t i = 0; i < c->n_route && !x->route; i++) {
        if (strlen(c->route[i].path) != len || memcmp(c->route[i].path, path, len) != 0)
            continue;
        known = true;
        if (strcmp(c->route[i].method, method) == 0)
            x->route = &c->route[i];
    }
    if (!x->route && known)
        refuse(x, 405, "this path takes another method");
    else if (!x->route)
        refuse(x, 404, "there is no such path");
}

static void exchange_begin(struct exchange *x, const char *method, const char *path, const char *version)
{
    const struct web_config *c = &x->http->config;
    struct framing f = { 0 };
    int64_t length = 0;
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, header_see, &f);
    if (f.differs || (f.n_length > 0 && f.n_coding > 0) || f.n_coding > 1 || (strcmp(version, "HTTP/1.1") == 0 && !header_of(x, "Host"))) {
        refuse(x, 400, "the request's length or host is ambiguous");
        x->is_last = true;
    }
    if (is_foreign_page(x))
        refuse(x, 403, "requests from other sites' pages are not answered");
    route_find(x, method, path);
    if (c->token && !(x->route && x->route->open) && !bearer_matches(c->token, header_of(x, "Authorization"))) {
        x->refused = 0;    // clients without the token do not learn which paths exist
        refuse(x, 401, "this server needs 'Authorization: Bearer TOKEN'");
    }
    if (c->no_orders && x->route && x->route->order)
        refuse(x, 403, c->no_orders);
    if (f.length)
        length = strtoll(f.length, NULL, 10);
    if (length < 0 || (size_t)length > c->max_body_bytes) {
        x->refused = 0;
        refuse(x, 413, "the body is longer than this server takes");
        x->is_last = true;
    }
}

/* ---- a request's body */
static void body_add(struct exchange *x, const char *data, size_t len)
{
    struct web *h = x->http;
    x->n_came += len;
    if (x->refused)
        return;
    if (x->n_came > h->config.max_body_bytes) {
        refuse(x, 413, "the body is longer than this server takes");
        x->is_last = true;
    } else if (atomic_fetch_add(&h->bodies_bytes, len) + len > h->config.max_bodies_bytes) {
        atomic_fetch_sub(&h->bodies_bytes, len);
        refuse(x, 503, "too many bytes of requests are being read");
    } else if (!buf_add(&x->body, data, len)) {
        atomic_fetch_sub(&h->bodies_bytes, len);
        refuse(x, 503, "no memory for the body");
    } else {
        return;
    }
    atomic_fetch_sub(&h->bodies_bytes, x->body.len);
    buf_release(&x->body);
}

/* Inflate a gzip or zlib body in place, to at most the size allowed for a plain one. */
static void body_inflate(struct exchange *x)
{
    struct buf plain = { .max = x->http->config.max_body_bytes + 1 };
    z_stream z = { .next_in = (Bytef *)x->body.data, .avail_in = (uInt)x->body.len };
    int rv = inflateInit2(&z, 15 + 32);    // either header
    while (rv == Z_OK) {
        char *to = buf_reserve(&plain, MIN((size_t)65536, plain.max - plain.len));
        size_t room = MIN((size_t)65536, plain.max - plain.len);
        if (!to || room == 0)
            break;
        z.next_out = (Bytef *)to;
        z.avail_out = (uInt)room;
        rv = inflate(&z, Z_NO_FLUSH);
        plain.len += room - z.avail_out;
    }
    inflateEnd(&z);
    if (rv != Z_STREAM_END) {
        const char *bad = x->http->config.bad_gzip ? x->http->config.bad_gzip : "the body is not what its Content-Encoding says";
        refuse(x, rv == Z_OK ? 413 : 400, rv == Z_OK ? "the inflated body is longer than this server takes" : bad);
        buf_release(&plain);
        return;
    }
    atomic_fetch_sub(&x->http->bodies_bytes, x->body.len);
    atomic_fetch_add(&x->http->bodies_bytes, plain.len);
    buf_release(&x->body);
    plain.max = 0;
    x->body = plain;
    buf_str(&x->body, "");    // with its NUL
}

static void body_decode(struct exchange *x)
{
    const char *coding = header_of(x, "Content-Encoding");
    if (x->refused || !coding || strcasecmp(coding, "identity") == 0 || x->body.len == 0)
        return;
    if (strcasestr(coding, "gzip") || strcasecmp(coding, "deflate") == 0)
        body_inflate(x);
    else
        refuse(x, 415, "the body's Content-Encoding is not gzip, deflate or identity");
}

/* ---- answers */
/* Does the client take gzip? A weight of 0 says no (RFC 9110, 12.5.3). */
static bool accepts_gzip(const struct exchange *x)
{
    const char *accepted = header_of(x, "Accept-Encoding"), *at = accepted ? strcasestr(accepted, "gzip") : NULL;
    if (!at)
        return false;
    at += strlen("gzip");
    at += strspn(at, " \t");
    return *at != ';' || !strcasestr(at, "q=0") || strtod(strcasestr(at, "q=") + 2, NULL) > 0;
}

/* Compress an answer in place, quickly; without memory, or when it does not get shorter, it stays as it is. Returns whether it did. */
static bool answer_deflate(struct buf *body)
{
    z_stream z = { .next_in = (Bytef *)body->data, .avail_in = (uInt)body->len };
    struct buf small = { .max = body->len };
    if (deflateInit2(&z, Z_BEST_SPEED, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return false;
    z.next_out = (Bytef *)buf_reserve(&small, body->len - 1);
    z.avail_out = (uInt)(body->len - 1);
    bool ok = z.next_out && deflate(&z, Z_FINISH) == Z_STREAM_END;
    small.len = z.total_out;
    deflateEnd(&z);
    buf_release(ok ? body : &small);
    if (ok)
        *body = small;
    return ok;
}

static enum MHD_Result answer_send(struct exchange *x, struct web_answer *a)
{
    enum MHD_ResponseMemoryMode mode = a->body.data ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT;
    const struct web_config *c = &x->http->config;
    struct MHD_Response *r = NULL;
    enum MHD_Result rv = MHD_NO;
    char number[16];
    bool is_small = c->gzip_from > 0 && !a->body.failed && a->body.len >= c->gzip_from && a->body.len <= c->gzip_to && accepts_gzip(x)
                    && answer_deflate(&a->body);
    if (!a->body.failed)
        r = MHD_create_response_from_buffer(a->body.len, a->body.data ? a->body.data : (void *)(uintptr_t) "", mode);
    if (!r) {
        buf_release(&a->body);
        return MHD_NO;    // no memory: the connection closes
    }
    MHD_add_response_header(r, "Content-Type", a->type ? a->type : "application/json");
    snprintf(number, sizeof number, "%d", a->retry_after_s);
    if (a->retry_after_s > 0)
        MHD_add_response_header(r, "Retry-After", number);
    if (is_small)
        MHD_add_response_header(r, "Content-Encoding", "gzip");
    if (c->gzip_from > 0)
        MHD_add_response_header(r, "Vary", "Accept-Encoding");
    if (a->status == 401)
        MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (x->job)
        MHD_add_response_header(r, "X-Request-Id", x->job->id);
    if (x->is_last || atomic_load(&x->http->closed))
        MHD_add_response_header(r, "Connection", "close");
    rv = MHD_queue_response(x->connection, (unsigned)a->status, r);
    MHD_destroy_response(r);
    return rv;
}

static enum MHD_Result refusal_send(struct exchange *x)
{
    struct web_answer a = { 0 };
    void (*fail)(struct web_answer *, int, const char *) = x->http->config.fail;
    (fail ? fail : web_fail)(&a, x->refused, x->why);
    return answer_send(x, &a);
}

/* job.wake; the job's lock is held. */
static void job_news(void *arg)
{
    struct exchange *x = arg;
    if (x->suspended) {
        x->suspended = false;
        MHD_resume_connection(x->connection);
    }
}

/* Send more of a stream, or wait for it. */
static ssize_t stream_read(void *cls, UNUSED uint64_t pos, char *to, size_t max)
{
    struct exchange *x = cls;
    struct web *h = x->http;
    if (x->out_at == x->out.len && !x->stream_over) {
        buf_clear(&x->out);
        x->out_at = 0;
        pthread_mutex_lock(&x->job->lock);
        x->stream_over = h->config.stream(h->config.ctx, x->job, &x->out);
        if (!x->stream_over && x->out.len == 0 && !x->out.failed) {
            x->suspended = true;
            MHD_suspend_connection(x->connection);
        }
        pthread_mutex_unlock(&x->job->lock);
    }
    if (x->out.failed)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (x->out_at == x->out.len)
        return x->stream_over ? MHD_CONTENT_READER_END_OF_STREAM : 0;
    size_t n = MIN(max, x->out.len - x->out_at);
    memcpy(to, x->out.data + x->out_at, n);
    x->out_at += n;
    return (ssize_t)n;
}

static enum MHD_Result stream_begin(struct exchange *x, const char *type)
{
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_PIECE, stream_read, x, NULL);
    if (!r)
        return MHD_NO;
    MHD_add_response_header(r, "Content-Type", type ? type : "text/event-stream; charset=utf-8");
    MHD_add_response_header(r, "Cache-Control", "no-cache");
    MHD_add_response_header(r, "X-Request-Id", x->job->id);
    enum MHD_Result rv = MHD_queue_response(x->connection, 200, r);
    MHD_destroy_response(r);
    return rv;
}

/* Send the whole answer of a job when it is done; otherwise wait. */
static enum MHD_Result job_answer(struct exchange *x)
{
    struct web_answer a = { .status = 200 };
    struct web *h = x->http;
    pthread_mutex_lock(&x->job->lock);
    bool done = x->job->done;
    if (done) {
        h->config.print(h->config.ctx, x->job, &a);
    } else {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&x->job->lock);
    return done ? answer_send(x, &a) : MHD_YES;
}

/* The request is complete: answer it, or start its job. */
static enum MHD_Result exchange_run(struct exchange *x, const char *method, const char *path)
{
    struct web_answer a = { .status = 200 };
    struct web *h = x->http;
    phase_set(h, x->at, PHASE_ANSWER);
    body_decode(x);
    if (x->refused)
        return refusal_send(x);
    struct web_request q = { .method = method, .path = path, .body = buf_text(&x->body), .len = x->body.len, .connection = x->connection };
    ctx_lock(h);
    x->route->run(h->config.ctx, &q, &a);
    ctx_unlock(h);
    x->receipt = a.receipt;
    atomic_fetch_sub(&h->bodies_bytes, x->body.len);
    buf_release(&x->body);
    if (!a.job)
        return answer_send(x, &a);
    x->job = a.job;
    x->stream = a.stream;
    pthread_mutex_lock(&h->lock);
    x->at->job = a.job;
    pthread_mutex_unlock(&h->lock);
    pthread_mutex_lock(&x->job->lock);
    x->job->wake = job_news;
    x->job->wake_arg = x;
    pthread_mutex_unlock(&x->job->lock);
    return a.stream ? stream_begin(x, a.type) : job_answer(x);
}

/* MHD_AccessHandlerCallback: once for the header, then for pieces of the body, then with none, and again after each resumption. */
static enum MHD_Result exchange_came(void *cls, struct MHD_Connection *connection, const char *path, const char *method,
                                     const char *version, const char *data, size_t *n_data, void **context)
{
    struct web *h = cls;
    struct exchange *x = *context;
    if (!x) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
        struct connection *at = info ? info->socket_context : NULL;
        *context = x = at ? calloc(1, sizeof *x) : NULL;
        if (!x)
            return MHD_NO;
        *x = (struct exchange){ .http = h, .at = at, .connection = connection };
        pthread_mutex_lock(&h->lock);
        h->n_exchange++;
        pthread_mutex_unlock(&h->lock);
        phase_set(h, at, PHASE_BODY);
        exchange_begin(x, method, path, version);
        return x->refused && x->is_last ? refusal_send(x) : MHD_YES;
    }
    if (*n_data > 0) {
        body_add(x, data, *n_data);
        *n_data = 0;
        return x->n_came > 4 * h->config.max_body_bytes ? MHD_NO : MHD_YES;
    }
    return x->job ? job_answer(x) : exchange_run(x, method, path);
}

/* MHD_RequestCompletedCallback */
static void exchange_over(void *cls, UNUSED struct MHD_Connection *connection, void **context, enum MHD_RequestTerminationCode code)
{
    struct web *h = cls;
    struct exchange *x = *context;
    if (!x)
        return;
    *context = NULL;
    pthread_mutex_lock(&h->lock);
    x->at->job = NULL;
    x->at->phase = PHASE_IDLE;
    x->at->since_ms = clock_ms();
    pthread_mutex_unlock(&h->lock);
    if (x->job) {
        pthread_mutex_lock(&x->job->lock);
        x->job->wake = NULL;
        bool done = x->job->done;
        pthread_mutex_unlock(&x->job->lock);
        if (!done)
            h->config.leave(h->config.ctx, x->job);
        serve_job_drop(x->job);
    }
    if (x->receipt != 0) {
        ctx_lock(h);
        h->config.sent(h->config.ctx, x->receipt, code == MHD_REQUEST_TERMINATED_COMPLETED_OK);
        ctx_unlock(h);
    }
    atomic_fetch_sub(&h->bodies_bytes, x->body.len);
    buf_release(&x->body);
    buf_release(&x->out);
    free(x);
    pthread_mutex_lock(&h->lock);
    h->n_exchange--;
    pthread_cond_broadcast(&h->over);
    pthread_mutex_unlock(&h->lock);
}

/* ---- starting and stopping */
struct web *web_new(const struct web_config *config, struct error *err)
{
    bool ok = false;
    struct web *h = calloc(1, sizeof *h);
    if (!h) {
        close(config->listen_fd);
        error_set(err, ERR_NO_MEMORY, "no memory for a server");
        return NULL;
    }
    h->config = *config;
    pthread_mutex_init(&h->lock, NULL);
    clock_cond_init(&h->over);
    h->polled = calloc((size_t)config->max_connections + SLACK + 2, sizeof *h->polled);
    h->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->wake_fd < 0) {
        error_errno(err, "no descriptor to wake the server with");
        goto out;
    }
    if (!h->polled) {
        error_set(err, ERR_NO_MEMORY, "no memory to watch connections");
        goto out;
    }
    if (config->cert_pem && MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES) {
        error_set(err, ERR_UNSUPPORTED, "this libmicrohttpd was built without TLS");
        goto out;
    }
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_NO_LISTEN_SOCKET
                     | (config->cert_pem ? MHD_USE_TLS : 0);
    struct MHD_OptionItem tls[] = {
        { config->cert_pem ? MHD_OPTION_HTTPS_MEM_CERT : MHD_OPTION_END, 0, (void *)(uintptr_t)config->cert_pem },
        { MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t) "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2" },
        { MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)config->key_pem },
        { MHD_OPTION_END, 0, NULL },
    };
    h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, exchange_came, h, MHD_OPTION_NOTIFY_COMPLETED, exchange_over, h,
                                 MHD_OPTION_NOTIFY_CONNECTION, connection_notice, h, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEAD_BYTES,
                                 MHD_OPTION_CONNECTION_LIMIT, (unsigned)(config->max_connections + 2 * SLACK),
                                 MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)((config->idle_ms + 999) / 1000), MHD_OPTION_ARRAY, tls,
                                 MHD_OPTION_END);
    if (!h->daemon) {
        error_set(err, ERR_IO,
                  config->cert_pem ? "the server cannot be started; are certificate and key a pair in PEM?"
                                   : "the server cannot be started");
        goto out;
    }
    int rv = thread_start(&h->watch, watch_main, h);
    h->has_watch = rv == 0;
    if (rv != 0) {
        error_set(err, ERR_IO, "the server's thread cannot be started: %s", strerror(rv));
        goto out;
    }
    ok = true;
out:
    if (!ok) {
        web_free(h);
        h = NULL;
    }
    return h;
}

static void watch_wake(struct web *h)
{
    uint64_t one = 1;
    if (write(h->wake_fd, &one, sizeof one) < 0)
        log_warn("the server's thread could not be woken: %s", strerror(errno));    // it checks again after LOOK_MS
}

void web_close(struct web *h)
{
    atomic_store(&h->closed, true);
    shutdown(h->config.listen_fd, SHUT_RDWR);
    watch_wake(h);
}

bool web_wait(struct web *h, int64_t limit_ms)
{
    struct timespec end = clock_after(limit_ms);
    int rv = 0;
    pthread_mutex_lock(&h->lock);
    while (h->n_exchange > 0 && rv == 0)
        rv = pthread_cond_timedwait(&h->over, &h->lock, &end);
    bool over = h->n_exchange == 0;
    pthread_mutex_unlock(&h->lock);
    return over;
}

void web_free(struct web *h)
{
    if (!h)
        return;
    if (h->has_watch) {
        pthread_mutex_lock(&h->lock);
        h->stop = true;
        pthread_mutex_unlock(&h->lock);
        watch_wake(h);
        pthread_join(h->watch, NULL);
    }
    if (h->daemon)
        MHD_stop_daemon(h->daemon);
    if (h->wake_fd >= 0)
        close(h->wake_fd);
    close(h->config.listen_fd);
    pthread_cond_destroy(&h->over);
    pthread_mutex_destroy(&h->lock);
    free(h->polled);
    free(h);
}
