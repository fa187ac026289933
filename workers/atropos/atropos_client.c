#include "workers/atropos/atropos_client.h"
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include "protocol/base/client.h"
#include "protocol/base/clock.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "protocol/base/thread.h"

#define SHORT_S 10.0                       // time limit of a request that changes or looks up little, as the example trainer's
#define BATCH_S 600.0                      // of a batch; it may be large,
#define STALL_S 60                         // but bytes must come
#define BATCH_BYTES ((size_t)256 << 20)    // of an answer
#define POLL_MS 1000                       // after "no batch yet", as the example trainer's
#define AGAIN_MS 2000                      // after a failure
#define SAID_MAX 400

struct atropos_client {
    struct atropos_client_config config;
    char url[280];
    pthread_t thread;
    pthread_mutex_t lock;    // guards: woken
    pthread_cond_t some;     // signals woken, or stop
    bool woken;
    atomic_bool stop;
    /* used only by the thread */
    struct client http;
    bool registered;
    char said[SAID_MAX];    // the last thing that stood in the way; "": nothing does
};

/* ---- what is said and waited for */
static void says(struct atropos_client *c, const char *text)
{
    if (strcmp(c->said, text) == 0)
        return;
    snprintf(c->said, sizeof c->said, "%s", text);
    if (text[0])
        log_warn("%s", text);
    else
        log_info("the Atropos API at %s answers", c->url);
    c->config.says(c->config.ctx, text);
}

/* Wait for ms, or until woken (when that matters) or stopped. */
static void rest(struct atropos_client *c, int64_t ms, bool until_woken)
{
    struct timespec end = clock_after(ms);
    pthread_mutex_lock(&c->lock);
    while (!atomic_load(&c->stop) && !(until_woken && c->woken))
        if (pthread_cond_timedwait(&c->some, &c->lock, &end) != 0)
            break;
    c->woken = false;
    pthread_mutex_unlock(&c->lock);
}

void atropos_client_wake(struct atropos_client *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->woken = true;
    pthread_cond_signal(&c->some);
    pthread_mutex_unlock(&c->lock);
}

/* ---- requests. Each is about the server at url + path; what it is called in messages says so. */
static bool ask(struct atropos_client *c, const char *path, const char *body, double limit_s, struct error *err)
{
    char url[320], what[360];
    long status;
    snprintf(url, sizeof url, "%s%s", c->url, path);
    snprintf(what, sizeof what, "the Atropos API at %s", url);
    return body ? client_post(&c->http, what, url, body, limit_s, &status, err) : client_get(&c->http, what, url, limit_s, &status, err);
}

/* Numbers as reals: Python's server answers /register with a number of 128 bits. */
static bool answer_parse(struct atropos_client *c, const char *path, json_t **root, struct error *err)
{
    *root = json_text_read(buf_text(&c->http.answer), c->http.answer.len, JSON_DECODE_INT_AS_REAL, NULL);
    if (json_is_object(*root))
        return true;
    json_decref(*root);
    *root = NULL;
    return error_set(err, ERR_DATA, "%s%s answers with something that no Atropos API does: %.100s", c->url, path,
                     buf_text(&c->http.answer));
}

/* The batch size that the server goes by; -1: it knows no trainer. */
static bool batch_size_get(struct atropos_client *c, int64_t *size, struct error *err)
{
    json_t *root;
    if (!ask(c, "/info", NULL, SHORT_S, err) || !answer_parse(c, "/info", &root, err))
        return false;
    const json_t *v = json_object_get(root, "batch_size");
    double n = json_is_number(v) ? json_number_value(v) : NAN;
    bool ok = (n >= -1 && n < 1e15) || error_set(err, ERR_DATA, "%s/info has no 'batch_size', so it is no Atropos API", c->url);
    *size = ok ? (int64_t)n : -1;
    json_decref(root);
    return ok;
}

static bool registration_post(struct atropos_client *c, int64_t step, struct error *err)
{
    const struct atropos_trainer *t = &c->config.trainer;
    json_t *root = NULL, *o = json_pack("{s:s, s:s, s:I, s:I, s:s, s:I, s:I, s:I}", "wandb_group", t->group, "wandb_project", t->project,
                                        "batch_size", (json_int_t)t->batch_size, "max_token_len", (json_int_t)t->max_token_len,
                                        "checkpoint_dir", t->checkpoint_dir, "save_checkpoint_interval", (json_int_t)t->save_interval,
                                        "starting_step", (json_int_t)step, "num_steps", (json_int_t)t->num_steps);
    char *text = o ? json_text_dump(o, JSON_COMPACT) : NULL;
    json_decref(o);
    bool ok = text ? ask(c, "/register", text, SHORT_S, err) : error_set(err, ERR_NO_MEMORY, "no memory for a request");
    free(text);
    ok = ok && answer_parse(c, "/register", &root, err)
         && (json_object_get(root, "uuid") || error_set(err, ERR_DATA, "%s/register answers without 'uuid'", c->url));
    json_decref(root);
    return ok;
}

/* Register; a server that has a trainer already keeps that one's settings, and hands its batches to anybody. */
static bool trainer_register(struct atropos_client *c, int64_t step, struct error *err)
{
    int64_t before, after;
    if (!batch_size_get(c, &before, err) || !registration_post(c, step, err) || !batch_size_get(c, &after, err))
        return false;
    if (after != c->config.trainer.batch_size)
        log_warn("the Atropos API at %s forms batches of %" PRId64 " sequences, as an earlier trainer has registered, and not of %" PRId64
                 "; GET %s/reset_data makes it forget that trainer, its environments and their groups",
                 c->url, after, c->config.trainer.batch_size, c->url);
    log_info("registered with the Atropos API at %s, in batches of %" PRId64 " sequences", c->url, after);
    c->registered = true;
    return true;
}

/* ---- batches */
/* The list in an answer of the usual form {"batch":[...]}, so that megabytes need not be parsed twice; NULL: parse it. */
static const char *list_find(const char *text, size_t len, size_t *n)
{
    static const char begin[] = "{\"batch\":[";
    while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == ' '))
        len--;
    if (len < sizeof begin + 1 || strncmp(text, begin, sizeof begin - 1) != 0 || strncmp(text + len - 2, "]}", 2) != 0)
        return NULL;
    *n = len - (sizeof begin - 2) - 1;
    return text + sizeof begin - 2;
}

static bool list_read(const char *text, size_t len, struct scored ***group, int64_t *n, struct error *err)
{
    struct scored_fault fault;
    struct scored **g = calloc(SCORED_LIST_MAX, sizeof *g);
    if (!g)
        return error_set(err, ERR_NO_MEMORY, "no memory for a batch");
    if (!scored_read_list(text, len, g, SCORED_LIST_MAX, n, &fault)) {
        free(g);
        return error_set(err, fault.no_memory ? ERR_NO_MEMORY : ERR_DATA, "a batch cannot be read, and is lost: %s: %s", fault.loc,
                         fault.msg);
    }
    if (*n == 0) {
        free(g);
        g = NULL;
    }
    *group = g;
    return true;
}

bool atropos_batch_read(const char *text, size_t len, struct scored ***group, int64_t *n, bool *registered, struct error *err)
{
    size_t n_list = 0;
    const char *list = list_find(text, len, &n_list);
    *group = NULL;
    *n = 0;
    *registered = true;
    if (list)
        return list_read(list, n_list, group, n, err);
    json_t *root = json_text_read(text, len, 0, NULL), *batch = json_object_get(root, "batch");
    const char *status = json_string_value(json_object_get(root, "status"));
    bool ok = false;
    if (status && strcmp(status, "error") == 0) {
        *registered = false;
        ok = true;
    } else if (json_is_null(batch)) {
        ok = true;
    } else if (json_is_array(batch)) {
        char *again = json_text_dump(batch, JSON_COMPACT | JSON_REAL_PRECISION(17));
        ok = again ? list_read(again, strlen(again), group, n, err) : error_set(err, ERR_NO_MEMORY, "no memory for a batch");
        free(again);
    } else {
        error_set(err, ERR_DATA, "the answer to GET /batch has no 'batch': %.100s", text);
    }
    json_decref(root);
    return ok;
}

/* Hand over a batch, however long that takes: the server has forgotten it. */
static void batch_give(struct atropos_client *c, struct scored **g, int64_t n)
{
    struct error err;
    while (!c->config.take(c->config.ctx, g, &n, &err)) {
        says(c, err.text);
        if (atomic_load(&c->stop)) {
            for (int64_t i = 0; i < n; i++)
                scored_drop(g[i]);
            return;
        }
        rest(c, AGAIN_MS, false);
    }
}

/* Ask for a batch. *rest_ms: how long to wait until the next try. */
static bool batch_fetch(struct atropos_client *c, int64_t step, int64_t *rest_ms, struct error *err)
{
    struct scored **g = NULL;
    int64_t n = 0;
    bool known;
    *rest_ms = POLL_MS;
    if (!c->registered && !trainer_register(c, step, err))
        return false;
    if (!ask(c, "/batch", NULL, BATCH_S, err) || !atropos_batch_read(buf_text(&c->http.answer), c->http.answer.len, &g, &n, &known, err))
        return false;
    if (!known) {    // it was started again, or
        int64_t size;
        c->registered = false;
        *rest_ms = AGAIN_MS;
        if (trainer_register(c, step, err) && batch_size_get(c, &size, err) && size < 1)
            return error_set(err, ERR_REFUSED,
                             "the Atropos API at %s took groups before a trainer had registered, and takes no trainer since; GET "
                             "%s/reset_data makes it forget them, and its environments must be started again then",
                             c->url, c->url);
        return c->registered;
    }
    says(c, "");
    if (n > 0) {
        batch_give(c, g, n);
        *rest_ms = 0;
    }
    free(g);
    return true;
}

static void *client_main(void *arg)
{
    struct atropos_client *c = arg;
    while (!atomic_load(&c->stop)) {
        struct error err = { 0 };
        int64_t step = 0, rest_ms = 0;
        if (!c->config.wants(c->config.ctx, &step)) {
            rest(c, POLL_MS, true);
        } else if (!batch_fetch(c, step, &rest_ms, &err)) {
            if (!atomic_load(&c->stop))
                says(c, err.text);
            rest(c, AGAIN_MS, false);
        } else if (rest_ms > 0) {
            rest(c, rest_ms, false);
        }
    }
    return NULL;
}

struct atropos_client *atropos_client_new(const struct atropos_client_config *config, struct error *err)
{
    struct atropos_client *c = calloc(1, sizeof *c);
    if (!c) {
        error_set(err, ERR_NO_MEMORY, "no memory for the client of an Atropos API");
        return NULL;
    }
    c->config = *config;
    snprintf(c->url, sizeof c->url, "%s", config->url);
    if (!client_init(&c->http, "the Atropos API", config->token_file, err)) {
        free(c);
        return NULL;
    }
    c->http.answer.max = BATCH_BYTES;
    client_stop_by(&c->http, &c->stop, STALL_S);
    pthread_mutex_init(&c->lock, NULL);
    clock_cond_init(&c->some);
    if (thread_start(&c->thread, client_main, c) != 0) {
        error_set(err, ERR_IO, "cannot start the thread of the Atropos API's client");
        client_release(&c->http);
        free(c);
        return NULL;
    }
    return c;
}

void atropos_client_free(struct atropos_client *c)
{
    if (!c)
        return;
    atomic_store(&c->stop, true);
    atropos_client_wake(c);
    pthread_join(c->thread, NULL);
    client_release(&c->http);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->some);
    free(c);
}
