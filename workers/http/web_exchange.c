/* web_exchange.c - one request and its answer: who may ask, the body, what the route says, a job's news */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zlib.h>
#include "protocol/base/bearer.h"
#include "workers/http/http_job.h"
#include "workers/http/web_parts.h"

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

const char *web_query(const struct web_request *q, const char *name)
{
    return q->head ? http_query(q->head, name) : NULL;
}

void held_set(struct connection *c, size_t bytes)
{
    struct web *h = c->web;
    h->answers_bytes += bytes - c->held;
    h->answers_at[c->place] += bytes - c->held;
    c->held = bytes;
}

static void body_forget(struct connection *c)
{
    c->web->bodies_bytes -= c->body.len;
    buf_release(&c->body);
}

void exchange_forget(struct connection *c, bool arrived)
{
    struct web *h = c->web;
    if (!c->text)
        return;
    if (c->job) {
        pthread_mutex_lock(&c->job->lock);
        c->job->wake = NULL;
        bool done = c->job->done;
        pthread_mutex_unlock(&c->job->lock);
        if (!done && !c->left)
            h->config.leave(h->config.ctx, c->job);
        http_job_drop(c->job);
    }
    if (c->receipt != 0) {
        ctx_lock(h);
        h->config.sent(h->config.ctx, c->receipt, arrived);
        ctx_unlock(h);
    }
    body_forget(c);
    buf_release(&c->out);
    buf_release(&c->answer);
    held_set(c, 0);
    free(c->text);
    c->text = NULL;
    c->job = NULL;
    c->route = NULL;
    c->chunks = (struct http_chunks){ 0 };
    c->n_came = c->out_at = c->answer_at = 0;
    c->refused = 0;
    c->receipt = 0;
    c->is_last = c->stream = c->over = c->left = false;
    pthread_mutex_lock(&h->lock);
    h->n_exchange--;
    pthread_cond_broadcast(&h->over);
    pthread_mutex_unlock(&h->lock);
}

/* ---- a request's head */
static void refuse(struct connection *c, int status, const char *why)
{
    if (!c->refused) {
        c->refused = status;
        snprintf(c->why, sizeof c->why, "%s", why);
    }
}

/* Does a route's path take this one, of len bytes? */
static bool path_is(const struct web_route *r, const char *path, size_t len)
{
    size_t n = strlen(r->path);
    return (r->rest ? n < len : n == len) && memcmp(r->path, path, n) == 0;
}

/* The length of a path without the slash at its end: TRL's clients send one. */
static size_t path_length(const char *path)
{
    size_t len = strlen(path);
    return len - (len > 1 && path[len - 1] == '/');
}

static void route_find(struct connection *c)
{
    const struct web_config *config = &c->web->config;
    const char *method = c->head.method, *path = c->head.path;
    size_t len = path_length(path);
    bool known = false;
    if (strcmp(method, "HEAD") == 0)
        method = "GET";
    for (size_t i = 0; i < config->n_route && !c->route; i++) {
        if (!path_is(&config->route[i], path, len))
            continue;
        known = true;
        if (strcmp(config->route[i].method, method) == 0)
            c->route = &config->route[i];
    }
    if (!c->route && known)
        refuse(c, 405, "this path takes another method");
    else if (!c->route)
        refuse(c, 404, "there is no such path");
}

/* Who may ask what. */
static void request_admit(struct connection *c)
{
    const struct web_config *config = &c->web->config;
    if (http_is_foreign(&c->head))
        refuse(c, 403, HTTP_FOREIGN_WHY);
    if (!config->token && !own_hosts_have(&c->web->hosts, c->head.host))
        refuse(c, 403, "this server is not known by the name in Host; ask it by its address, or let its operator allow the name");
    route_find(c);
    if (config->token && !(c->route && c->route->open) && !bearer_matches(config->token, http_header(&c->head, "Authorization"))
        && !bearer_is_key(config->token, http_header(&c->head, "X-Api-Key"))) {
        c->refused = 0;    // clients without the token do not learn which paths exist
        refuse(c, 401, "this server needs 'Authorization: Bearer TOKEN'");
    }
    if (config->no_orders && c->route && c->route->order)
        refuse(c, 403, config->no_orders);
}

static void refusal_send(struct connection *c);

/* A request has begun, and is counted, whatever is wrong with it. text: owned by the connection from now on. */
static void exchange_open(struct connection *c, char *text)
{
    c->text = text;
    c->head.method = NULL;
    phase_set(c, PHASE_BODY);
    pthread_mutex_lock(&c->web->lock);
    c->web->n_exchange++;
    pthread_mutex_unlock(&c->web->lock);
}

/* Refuse what is no request and close: what comes after it cannot be told from it. */
static void head_refuse(struct connection *c, int status, const char *why)
{
    char *text = calloc(1, 1);
    if (!text) {
        connection_drop(c);
        return;
    }
    exchange_open(c, text);
    c->head = (struct http_head){ .close = true };
    c->is_last = true;
    refuse(c, status, why);
    refusal_send(c);
}

/* The head of a request is the first len bytes of what has come. */
static void exchange_begin(struct connection *c, size_t len)
{
    const struct web_config *config = &c->web->config;
    const char *why = NULL;
    char *text = strndup(c->in.data + c->in_at, len);
    if (!text) {
        connection_drop(c);
        return;
    }
    c->in_at += len;
    exchange_open(c, text);
    int status = http_head_read(&c->head, text, &why);
    c->is_last = c->head.close;
    if (status != 0) {
        c->is_last = true;
        refuse(c, status, why);
        refusal_send(c);
        return;
    }
    request_admit(c);
    bool has_body = c->head.chunked || c->head.length > 0;
    if (c->head.length > 0 && (uint64_t)c->head.length > config->max_body_bytes) {
        c->refused = 0;
        refuse(c, 413, "the body is longer than this server takes");
    }
    if (has_body && c->refused && (c->refused == 413 || c->head.expects)) {
        c->is_last = true;    // the body is not waited for
        refusal_send(c);
    } else if (has_body && c->head.expects) {
        buf_str(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
    }
}

bool head_step(struct connection *c)
{
    size_t len = 0;
    while (c->in.len - c->in_at >= 2 && memcmp(c->in.data + c->in_at, "\r\n", 2) == 0 && c->seen == 0)
        c->in_at += 2;    // empty lines before a request are left out (RFC 9112, 2.2)
    if (c->in.len > c->in_at && c->phase != PHASE_HEAD)
        phase_set(c, PHASE_HEAD);
    switch (http_head_find(buf_text(&c->in) + c->in_at, c->in.len - c->in_at, &c->seen, &len)) {
    case HTTP_BAD: head_refuse(c, 400, "the request's lines do not all end in CRLF, or hold a byte of 0"); break;
    case HTTP_WHOLE:
        if (len > HTTP_HEAD_MAX)
            head_refuse(c, 431, "the request's head is longer than 32 KiB");
        else
            exchange_begin(c, len);
        break;
    case HTTP_MORE:
        if (c->in.len - c->in_at <= HTTP_HEAD_MAX)
            return false;
        head_refuse(c, 431, "the request's head is longer than 32 KiB");
    }
    c->seen = 0;
    return true;
}

/* ---- a request's body */
static void body_add(struct connection *c, const char *data, size_t len)
{
    struct web *h = c->web;
    c->n_came += len;
    if (c->refused)
        return;
    if (c->n_came > h->config.max_body_bytes)
        refuse(c, 413, "the body is longer than this server takes");
    else if (h->bodies_bytes + len > h->config.max_bodies_bytes)
        refuse(c, 503, "too many bytes of requests are being read");
    else if (!buf_add(&c->body, data, len))
        refuse(c, 503, "no memory for the body");
    else
        h->bodies_bytes += len;
    if (c->refused)
        body_forget(c);
}

/* Inflate a gzip or zlib body in place, to at most the size allowed for a plain one. */
static void body_inflate(struct connection *c)
{
    struct buf plain = { .max = c->web->config.max_body_bytes + 1 };
    z_stream z = { .next_in = (Bytef *)c->body.data, .avail_in = (uInt)c->body.len };
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
        const char *bad = c->web->config.bad_gzip ? c->web->config.bad_gzip : "the body is not what its Content-Encoding says";
        refuse(c, rv == Z_OK ? 413 : 400, rv == Z_OK ? "the inflated body is longer than this server takes" : bad);
        buf_release(&plain);
        return;
    }
    c->web->bodies_bytes += plain.len - c->body.len;
    buf_release(&c->body);
    plain.max = 0;
    c->body = plain;
    buf_str(&c->body, "");    // with its NUL
}

static void body_decode(struct connection *c)
{
    const char *coding = http_header(&c->head, "Content-Encoding");
    if (c->refused || !coding || strcasecmp(coding, "identity") == 0 || c->body.len == 0)
        return;
    if (strcasestr(coding, "gzip") || strcasecmp(coding, "deflate") == 0)
        body_inflate(c);
    else
        refuse(c, 415, "the body's Content-Encoding is not gzip, deflate or identity");
}

/* ---- answers */
/* Does the client take gzip? A weight of 0 says no (RFC 9110, 12.5.3). */
static bool accepts_gzip(const struct connection *c)
{
    const char *accepted = http_header(&c->head, "Accept-Encoding"), *at = accepted ? strcasestr(accepted, "gzip") : NULL;
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

/* The head of an answer up to what belongs to its kind of body. */
static void answer_head(struct connection *c, int status, const char *type)
{
    char date[64];
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &utc);
    buf_fmt(&c->out, "HTTP/1.1 %d %s\r\nDate: %s\r\nContent-Type: %s\r\n", status, http_status_words(status), date, type);
    if (c->job && c->job->id[0])
        buf_fmt(&c->out, "X-Request-Id: %s\r\n", c->job->id);
    c->is_last |= atomic_load(&c->web->closed);
    if (c->is_last)
        buf_str(&c->out, "Connection: close\r\n");
}

/* Are there too many bytes of answers that clients have not taken, of all or of this one's address? Those that do not read them make
 * room first. */
static bool answers_full(struct connection *c, size_t more)
{
    struct web *h = c->web;
    int64_t now = clock_ms();
    for (struct connection *o = h->first; o; o = o->next) {
        if (h->answers_bytes + more <= h->answers_max && h->answers_at[c->place] + more <= h->answers_max / 2)
            return false;
        if (o != c && o->held > 0 && o->phase == PHASE_ANSWER && late_taking(o, now, PUSH_BYTES_PER_MS) > PUSH_ANSWER_MS)
            connection_drop(o);
    }
    return h->answers_bytes + more > h->answers_max || h->answers_at[c->place] + more > h->answers_max / 2;
}

/* The methods that the path of a request takes (RFC 9110, 15.5.6). */
static void allow_add(struct connection *c)
{
    const struct web_config *config = &c->web->config;
    const char *between = "Allow: ", *path = c->head.path;
    for (size_t i = 0; i < config->n_route; i++)
        if (path_is(&config->route[i], path, path_length(path))) {
            buf_fmt(&c->out, "%s%s%s", between, config->route[i].method, strcmp(config->route[i].method, "GET") == 0 ? ", HEAD" : "");
            between = ", ";
        }
    buf_str(&c->out, "\r\n");
}

/* Queue a whole answer; takes its body. */
static void answer_send(struct connection *c, struct web_answer *a)
{
    const struct web_config *config = &c->web->config;
    bool is_small = config->gzip_from > 0 && !a->body.failed && a->body.len >= config->gzip_from && a->body.len <= config->gzip_to
                    && accepts_gzip(c) && answer_deflate(&a->body);
    if (a->body.failed || (a->body.len > READ_BYTES && answers_full(c, a->body.len))) {
        bool failed = a->body.failed;
        buf_release(&a->body);
        a->body = BUF_INIT;
        is_small = false;
        config->fail(a, 503,
                     failed ? "the answer is longer than this server sends, or there is no memory for it"
                            : "too many bytes of answers wait for clients to take them");
    }
    answer_head(c, a->status, a->type ? a->type : "application/json");
    buf_fmt(&c->out, "Content-Length: %zu\r\n", a->body.len);
    if (a->retry_after_s > 0)
        buf_fmt(&c->out, "Retry-After: %d\r\n", a->retry_after_s);
    if (is_small)
        buf_str(&c->out, "Content-Encoding: gzip\r\n");
    if (config->gzip_from > 0)
        buf_str(&c->out, "Vary: Accept-Encoding\r\n");
    if (a->status == 401)
        buf_str(&c->out, "WWW-Authenticate: Bearer\r\n");
    if (a->status == 405 && c->refused == 405)
        allow_add(c);
    buf_str(&c->out, "\r\n");
    c->over = true;
    if (c->head.method && strcmp(c->head.method, "HEAD") == 0) {
        buf_release(&a->body);
        return;
    }
    c->answer = a->body;
    held_set(c, c->answer.len);
}

static void refusal_send(struct connection *c)
{
    struct web_answer a = { 0 };
    phase_set(c, PHASE_ANSWER);
    c->web->config.fail(&a, c->refused, c->why);
    answer_send(c, &a);
}

/* job.wake; the job's lock is held. */
static void job_news(void *arg)
{
    struct connection *c = arg;
    atomic_store(&c->news, true);
    if (!atomic_exchange(&c->web->has_news, true))
        server_wake(c->web);
}

static void stream_begin(struct connection *c, const char *type)
{
    answer_head(c, 200, type ? type : "text/event-stream; charset=utf-8");
    buf_str(&c->out, "Cache-Control: no-cache\r\n");
    buf_str(&c->out, c->head.minor > 0 ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");    // an old client reads to the end
}

/* Add what is new to a stream; lock of the job held. */
static void stream_add(struct connection *c)
{
    struct buf piece = BUF_INIT;
    c->over = c->web->config.stream(c->web->config.ctx, c->job, &piece);
    bool chunked = c->head.minor > 0;
    if (piece.len > 0 && chunked)
        buf_fmt(&c->out, "%zx\r\n", piece.len);
    buf_add(&c->out, piece.data, piece.len);
    if (piece.len > 0 && chunked)
        buf_str(&c->out, "\r\n");
    if (c->over && chunked)
        buf_str(&c->out, "0\r\n\r\n");
    c->out.failed |= piece.failed;
    buf_release(&piece);
}

void job_look(struct connection *c)
{
    struct web_answer a = { .status = 200, .body.max = c->web->answers_max / 2 };
    bool whole = false;
    atomic_store(&c->news, false);
    pthread_mutex_lock(&c->job->lock);
    if (c->stream) {
        stream_add(c);
    } else if (c->job->done) {
        c->web->config.print(c->web->config.ctx, c->job, &a);
        whole = true;
    }
    pthread_mutex_unlock(&c->job->lock);
    if (whole)
        answer_send(c, &a);
}

/* The request is complete: answer it, or start its job. */
static void exchange_run(struct connection *c)
{
    struct web *h = c->web;
    struct web_answer a = { .status = 200, .body.max = h->answers_max / 2 };
    body_decode(c);
    if (c->refused) {
        refusal_send(c);
        return;
    }
    phase_set(c, PHASE_ANSWER);
    struct web_request q = {
        .method = c->head.method, .path = c->head.path, .body = buf_text(&c->body), .len = c->body.len, .head = &c->head
    };
    ctx_lock(h);
    c->route->run(h->config.ctx, &q, &a);
    ctx_unlock(h);
    c->receipt = a.receipt;
    body_forget(c);
    if (!a.job) {
        answer_send(c, &a);
        return;
    }
    c->job = a.job;
    c->stream = a.stream;
    pthread_mutex_lock(&c->job->lock);
    c->job->wake = job_news;
    c->job->wake_arg = c;
    pthread_mutex_unlock(&c->job->lock);
    atomic_store(&c->news, true);    // it may be done already
    if (c->stream)
        stream_begin(c, a.type);
}

bool body_step(struct connection *c)
{
    size_t there = c->in.len - c->in_at, used = 0, n = 0;
    const char *data = buf_text(&c->in) + c->in_at, *piece = data;
    enum http_found found;
    if (c->head.chunked) {
        found = http_chunks_take(&c->chunks, data, there, &used, &piece, &n);
    } else {
        used = n = (size_t)MIN(MAX(c->head.length, (int64_t)0) - (int64_t)c->n_came, (int64_t)there);
        found = c->n_came + n >= (size_t)MAX(c->head.length, (int64_t)0) ? HTTP_WHOLE : HTTP_MORE;
    }
    c->in_at += used;
    body_add(c, piece, n);
    bool too_long = c->refused && c->n_came > c->web->config.max_body_bytes;
    if (found == HTTP_BAD || (too_long && found == HTTP_MORE)) {
        c->refused = found == HTTP_BAD ? 0 : c->refused;
        refuse(c, 400, "the body's chunks are not well-formed");
        c->is_last = true;
        refusal_send(c);
    } else if (found == HTTP_WHOLE) {
        exchange_run(c);
    } else {
        return used > 0 && c->in_at < c->in.len;
    }
    return true;
}
