#include "workers/worker/guests.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>
#include "protocol/base/bearer.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/base/secret.h"
#include "protocol/base/tcp.h"
#include "protocol/base/thread.h"
#include "protocol/record/drawn_book.h"
#include "workers/engine/model/model.h"
#include "workers/engine/text/tokenizer.h"
#include "workers/http/web.h"
#include "workers/serve/policy.h"
#include "workers/serve/routes.h"

#define CONNECTIONS 128
#define QUEUE 256                       // prompts inside, waiting ones too; more are answered with 503
#define BODY_BYTES ((size_t)4 << 20)    // of one request
#define BODIES_BYTES ((size_t)16 << 20)
#define AGAIN_MS 10000    // before the address is tried again
#define WEB_NICE 10       // more than the run's computation
#define ANSWERS_MS 500    // for the last answers to be sent, when the worker ends

#define PEM_BYTES_MAX 65536    // of a certificate, or a key

struct guests {
    struct serve serve;
    struct encoder *encoder;    // of the thread that reads requests; owned
    struct policy *policy;      // owned
    struct web *web;            // owned; NULL: it does not listen yet
    int64_t again_ms;
    int32_t *eos;               // (serve.n_eos) owned
    struct drawn_book *book;    // owned; NULL: nobody posts what is drawn
    char name[RUN_TEXT_MAX];    // of the run, which is the model's for clients
    char token[BEARER_MAX];
    struct buf cert, key;    // PEM; empty: plain HTTP
    char no_orders[256];
};

/* Nothing computes for it any more. */
static void free_parts(struct guests *g)
{
    web_free(g->web);
    policy_free(g->policy);
    drawn_book_close(g->book);
    encoder_free(g->encoder);
    free(g->eos);
    buf_release(&g->cert);
    buf_release(&g->key);
    free(g);
}

static void come(void *ctx)
{
    struct engine *e = ctx;
    pthread_mutex_lock(&e->lock);
    e->visited = true;
    pthread_cond_signal(&e->some);
    pthread_mutex_unlock(&e->lock);
}

/* Does this worker serve? */
static bool serves(const struct engine *e)
{
    return e->config.serve[0] && (run_config_posted(&e->config) || run_config_external(&e->config) ? e->rank == 0 : e->producer == 0);
}

/* The end tokens, and what requests need of tokenizer and template: as a server of the model alone has it. */
static bool text_make(const struct engine *e, struct guests *g, struct error *err)
{
    const struct model_config *mc = model_config(e->model);
    struct serve *s = &g->serve;
    const int32_t *eos = tokenizer_eos(e->prompts.tokenizer, &s->n_eos);
    if (s->n_eos == 0) {
        eos = mc->eos;
        s->n_eos = mc->n_eos;
    }
    g->eos = calloc((size_t)MAX(s->n_eos, 1), sizeof *g->eos);    // kept when the model is loaded again
    if (!g->eos)
        return error_set(err, ERR_NO_MEMORY, "no memory for end tokens");
    for (int i = 0; i < s->n_eos; i++)
        g->eos[i] = eos[i];
    s->eos = g->eos;
    s->text = (struct ask_text){ .encoder = g->encoder,
                                 .tokenizer = e->prompts.tokenizer,
                                 .template = e->prompts.template,
                                 .max_seq_tok = e->config.max_prompt_tokens + e->config.max_new_tokens,
                                 .n_id = model_n_live(e->model) };
    return true;
}

/* Note what is drawn where it may be posted to the run. */
static void book_open(const struct engine *e, struct guests *g)
{
    struct error err;
    char path[4200];
    if (!run_config_posted(&e->config) || !drawn_book_path(&e->config, e->run_dir, path, sizeof path))
        return;
    if (!(g->book = drawn_book_open(path, &err)))
        log_warn("what is drawn for environments is not noted: %s", err.text);
}

bool guests_prepare(struct engine *e, struct error *err)
{
    bool ok = false;
    struct guests *g = NULL;
    if (e->guests || !serves(e))
        return true;
    if (!(g = calloc(1, sizeof *g)))
        return error_set(err, ERR_NO_MEMORY, "no memory for the server of '%s'", e->config.serve);
    struct serve *s = &g->serve;
    snprintf(g->name, sizeof g->name, "%s", e->config.name);
    snprintf(g->no_orders, sizeof g->no_orders, "the weights belong to the run '%s', which trains them; it takes no orders here", g->name);
    s->dir = e->config.model;
    s->started_s = clock_wall_s();
    s->reply = (struct reply_context){ .model = g->name, .tokenizer = e->prompts.tokenizer };
    TRY(g->encoder = encoder_new(e->prompts.tokenizer, true, err));
    TRY(text_make(e, g, err));
    TRY(getrandom(&s->run, sizeof s->run, 0) == (ssize_t)sizeof s->run || error_errno(err, "the system gives no random numbers"));
    book_open(e, g);
    struct policy_config config = { .book = g->book,
                                    .n_id = s->text.n_id,
                                    .wake = come,
                                    .wake_ctx = e,
                                    .tokenizer = e->prompts.tokenizer,
                                    .max_seq = run_config_serve_samples(&e->config),
                                    .max_seq_tok = s->text.max_seq_tok,
                                    .max_queue = QUEUE,
                                    .eos = s->eos,
                                    .n_eos = s->n_eos };
    TRY(g->policy = s->policy = policy_new(&config, err));
    if (e->config.serve_token_file[0]) {
        secret_process();
        TRY(bearer_read(g->token, e->config.serve_token_file, err));
    }
    if (e->config.serve_tls_cert[0]) {
        secret_process();
        TRY(file_read_text(&g->cert, e->config.serve_tls_cert, PEM_BYTES_MAX, err)
            && file_read_text(&g->key, e->config.serve_tls_key, PEM_BYTES_MAX, err));
    }
    e->guests = g;
    ok = true;
out:
    if (!ok)
        free_parts(g);
    return ok;
}

struct opening {
    struct web_config config;
    struct web *web;
    struct error err;
};

/* The threads that serve HTTP are made by this one, and so have its priority: what strangers send is read with what the run's
 * computation leaves of the processors. */
static void *web_open(void *arg)
{
    struct opening *o = arg;
    if (setpriority(PRIO_PROCESS, (id_t)gettid(), getpriority(PRIO_PROCESS, 0) + WEB_NICE) != 0)    // 19 at most
        log_debug("requests are read at the run's own priority");
    o->web = web_new(&o->config, &o->err);
    return NULL;
}

static struct web *web_start(const struct web_config *c, struct error *err)
{
    struct opening o = { .config = *c };
    pthread_t thread;
    if (thread_start(&thread, web_open, &o) != 0) {
        close(c->listen_fd);
        error_set(err, ERR_IO, "no thread can be started");
        return NULL;
    }
    pthread_join(thread, NULL);    // web_new takes milliseconds
    if (!o.web)
        *err = o.err;
    return o.web;
}

/* Listen, unless it does already. */
static void door_open(struct engine *e)
{
    struct guests *g = e->guests;
    struct error err;
    struct web_config c = { .address = e->config.serve,
                            .allowed_hosts = e->config.allowed_hosts,
                            .token = g->token[0] ? g->token : NULL,
                            .cert_pem = e->config.serve_tls_cert[0] ? buf_text(&g->cert) : NULL,
                            .key_pem = e->config.serve_tls_cert[0] ? buf_text(&g->key) : NULL,
                            .no_orders = g->no_orders,
                            .max_connections = CONNECTIONS,
                            .max_body_bytes = BODY_BYTES,
                            .max_bodies_bytes = BODIES_BYTES,
                            .head_ms = 15000,
                            .body_ms = 60000,
                            .idle_ms = 75000 };
    serve_routes_set(&c, &g->serve);
    if (g->web || clock_ms() < g->again_ms)
        return;
    g->again_ms = clock_ms() + AGAIN_MS;
    if ((c.listen_fd = tcp_listen(e->config.serve, &err)) < 0 || !(g->web = web_start(&c, &err)))
        log_warn("the policy is not served: 'serve': %s", err.text);
    else
        log_info("the policy is served at %s://%s", e->config.serve_tls_cert[0] ? "https" : "http", e->config.serve);
}

void guests_look(struct engine *e)
{
    if (!e->guests || !e->generator)
        return;
    if (e->version >= 0)
        policy_version_set(e->guests->policy, e->version);
    door_open(e);
}

void guests_attach(struct engine *e)
{
    if (!e->guests)
        return;
    policy_attach(e->guests->policy, e->generator);
    guests_look(e);
}

void guests_detach(struct engine *e)
{
    if (e->guests)
        policy_detach(e->guests->policy);
}

void guests_lift(struct engine *e)
{
    if (e->guests)
        policy_lift(e->guests->policy);
}

/* May they be sampled? Not while the weights are being replaced. */
static bool can_sample(const struct engine *e)
{
    return e->guests && e->generator && e->version >= 0;
}

bool guests_want(struct engine *e)
{
    return can_sample(e) && policy_wants(e->guests->policy);
}

void guests_feed(struct engine *e)
{
    if (!can_sample(e))
        return;
    pthread_mutex_lock(&e->lock);
    e->visited = false;
    pthread_mutex_unlock(&e->lock);
    policy_feed(e->guests->policy);
}

void guests_stepped(struct engine *e, const struct error *why)
{
    struct policy_state state;
    if (!can_sample(e))
        return;
    policy_stepped(e->guests->policy, why);
    policy_state(e->guests->policy, &state);
    pthread_mutex_lock(&e->lock);
    e->look.n_guest = state.n_prompt;
    e->look.guest_tok = state.n_decode_tok;
    pthread_mutex_unlock(&e->lock);
}

bool guests_watch(struct engine *e, const struct drawn *d)
{
    return policy_watch(e->guests->policy, d);
}

void guests_read_watch(void *engine, const struct read_token *t)
{
    const struct engine *e = engine;
    policy_read_watch(e->guests->policy, t);
}

void guests_free(struct engine *e)
{
    struct guests *g = e->guests;
    if (!g)
        return;
    e->guests = NULL;
    if (g->web)
        web_close(g->web);
    policy_end(g->policy);
    if (g->web && !web_wait(g->web, ANSWERS_MS))
        log_info("some clients have not taken their answers");
    free_parts(g);
}
