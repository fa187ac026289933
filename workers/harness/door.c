#include "workers/harness/door.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "protocol/base/digest.h"
#include "protocol/base/http_head.h"
#include "protocol/base/json_text.h"
#include "protocol/base/tcp.h"
#include "workers/http/openai_error.h"
#include "workers/http/web.h"

#define WAITING_MAX 1024                // requests that the harness has not taken
#define BODY_BYTES ((size_t)4 << 20)    // of one request
#define BODIES_BYTES ((size_t)64 << 20)
#define IDLE_MS 600000    // a program may think as long as this between two requests on a connection
#define ANSWERS_MS 500    // for the last answers to be sent

struct door {
    struct web *web;
    char address[64], url[96];
    const char *model;
    void (*wake)(void *ctx);
    void *ctx;
    pthread_mutex_t lock;    // guards: all below
    struct door_request *first, *last;
    int64_t n_waiting;
};

/* ---- answers ---- */

static void request_free(struct http_job *job)
{
    struct door_request *q = (struct door_request *)job;
    free(q->path);
    free(q->body);
    buf_release(&q->answer);
    free(q);
}

bool request_gone(struct door_request *q)
{
    return atomic_load(&q->http.gone);
}

static void request_done(struct door_request *q)
{
    pthread_mutex_lock(&q->http.lock);
    q->http.done = true;
    http_job_tell(&q->http);
    pthread_mutex_unlock(&q->http.lock);
    http_job_drop(&q->http);
}

void door_answer(struct door_request *q, int status, bool stream, const char *body, size_t len)
{
    q->status = status;
    q->stream = stream;
    buf_add(&q->answer, body, len);
    request_done(q);
}

void door_refuse(struct door_request *q, int status, const char *code, const char *message)
{
    q->status = status;
    openai_error_print(&q->answer, status, code, message);
    request_done(q);
}

/* ---- routes, called by the server's thread ---- */

static void refuse(struct web_answer *a, int status, const char *message)
{
    a->status = status;
    buf_clear(&a->body);
    openai_error_print(&a->body, status, NULL, message);
    if (status == 503)
        a->retry_after_s = 1;
}

/* The key that a request shows, as OpenAI's clients do or as Anthropic's; "": none. */
static void key_copy(const struct web_request *q, char out[DOOR_KEY_MAX])
{
    const char *bearer = q->head ? http_header(q->head, "authorization") : NULL, *key = q->head ? http_header(q->head, "x-api-key") : NULL;
    const char *shown = bearer && strncasecmp(bearer, "Bearer ", 7) == 0 ? bearer + 7 : key ? key : "";
    snprintf(out, DOOR_KEY_MAX, "%s", strlen(shown) < DOOR_KEY_MAX ? shown : "");
}

static struct door_request *request_new(const struct web_request *w, enum door_request_kind kind)
{
    struct digest d;
    struct door_request *q = calloc(1, sizeof *q);
    if (!q)
        return NULL;
    http_job_init(&q->http, request_free);
    q->kind = kind;
    key_copy(w, q->key);
    q->path = strdup(w->path);
    q->body = malloc(w->len + 1);
    q->len = w->len;
    if (!q->path || !q->body) {
        http_job_drop(&q->http);
        return NULL;
    }
    if (w->len > 0)
        memcpy(q->body, w->body, w->len);
    q->body[w->len] = 0;
    digest_init(&d, true);
    digest_add(&d, w->path, strlen(w->path) + 1);
    digest_add(&d, q->body, w->len);
    digest_hex(&d, q->ask);
    return q;
}

static void request_put(struct door *d, const struct web_request *w, struct web_answer *a, enum door_request_kind kind)
{
    struct door_request *q = request_new(w, kind);
    if (!q) {
        refuse(a, 500, "no memory");
        return;
    }
    pthread_mutex_lock(&d->lock);
    bool full = d->n_waiting >= WAITING_MAX;
    if (!full) {
        http_job_hold(&q->http);
        if (d->last)
            d->last->next = q;
        else
            d->first = q;
        d->last = q;
        d->n_waiting++;
    }
    pthread_mutex_unlock(&d->lock);
    if (full) {
        http_job_drop(&q->http);
        refuse(a, 503, "too many requests are waiting");
        return;
    }
    a->job = &q->http;
    d->wake(d->ctx);
}

static void draw_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    request_put(ctx, q, a, REQUEST_DRAW);
}

static void reward_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    request_put(ctx, q, a, REQUEST_REWARD);
}

static void health_get(UNUSED void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    buf_str(&a->body, "{\"status\":\"ok\"}");
}

static void models_get(void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    const struct door *d = ctx;
    buf_str(&a->body, "{\"object\":\"list\",\"data\":[{\"id\":");
    json_text_print(&a->body, d->model, strlen(d->model), JSON_TEXT_UTF8);
    buf_str(&a->body, ",\"object\":\"model\",\"owned_by\":\"rollcall\"}]}");
}

// clang-format off
static const struct web_route routes[] = {
    { "GET",  "/health",                   health_get },
    { "GET",  "/v1/models",                models_get },
    { "POST", "/v1/chat/completions",      draw_post },
    { "POST", "/v1/completions",           draw_post },
    { "POST", "/v1/responses",             draw_post },
    { "POST", "/v1/messages",              draw_post },
    { "POST", "/v1/messages/count_tokens", draw_post },
    { "POST", "/inference/v1/generate",    draw_post },
    { "POST", "/v1/reward",                reward_post },
};
// clang-format on

static void print(UNUSED void *ctx, struct http_job *j, struct web_answer *a)
{
    const struct door_request *q = (const struct door_request *)j;
    a->status = q->status ? q->status : 500;
    if (q->stream)
        a->type = "text/event-stream; charset=utf-8";
    if (q->status == 429 || q->status == 503)
        a->retry_after_s = 1;
    buf_add(&a->body, buf_text(&q->answer), q->answer.len);
}

/* Its session may have other requests: the harness sees to it. */
static void leave(void *ctx, struct http_job *j)
{
    struct door *d = ctx;
    atomic_store(&j->gone, true);
    d->wake(d->ctx);
}

struct door_request *door_take(struct door *d)
{
    pthread_mutex_lock(&d->lock);
    struct door_request *q = d->first;
    if (q) {
        d->first = q->next;
        d->last = d->first ? d->last : NULL;
        d->n_waiting--;
        q->next = NULL;
    }
    pthread_mutex_unlock(&d->lock);
    return q;
}

const char *door_url(const struct door *d)
{
    return d->url;
}

void door_free(struct door *d)
{
    if (!d)
        return;
    if (d->web) {
        web_close(d->web);
        for (struct door_request *q; (q = door_take(d));)
            door_refuse(q, 503, NULL, "the run is stopping");
        web_wait(d->web, ANSWERS_MS);
        web_free(d->web);
    }
    pthread_mutex_destroy(&d->lock);
    free(d);
}

struct door *door_new(int64_t n_session, const char *model, void (*wake)(void *ctx), void *ctx, struct error *err)
{
    struct door *d = calloc(1, sizeof *d);
    int fd = -1;
    if (!d) {
        error_set(err, ERR_NO_MEMORY, "no memory for the harness");
        return NULL;
    }
    pthread_mutex_init(&d->lock, NULL);
    d->model = model;
    d->wake = wake;
    d->ctx = ctx;
    if ((fd = tcp_listen("127.0.0.1:0", err)) >= 0) {
        snprintf(d->address, sizeof d->address, "127.0.0.1:%u", tcp_port(fd));
        snprintf(d->url, sizeof d->url, "http://%s/v1", d->address);
        struct web_config c = { .listen_fd = fd,
                                .address = d->address,
                                .route = routes,
                                .n_route = ARRAY_SIZE(routes),
                                .ctx = d,
                                .max_connections = 64 + 8 * n_session,
                                .max_body_bytes = BODY_BYTES,
                                .max_bodies_bytes = BODIES_BYTES,
                                .head_ms = 15000,
                                .body_ms = 60000,
                                .idle_ms = IDLE_MS,
                                .print = print,
                                .leave = leave,
                                .fail = refuse };
        d->web = web_new(&c, err);
    }
    if (!d->web) {
        door_free(d);
        return NULL;
    }
    return d;
}
