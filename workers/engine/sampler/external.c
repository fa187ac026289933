#include "workers/engine/sampler/external.h"
#include <inttypes.h>
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
#include "workers/engine/reward/line_program.h"

#define TRIES 5         // of an item whose answer is none
#define PAUSE_MS 250    // before the second try, doubled each time
#define PAUSE_MOST_MS 5000
#define AWAY_MS 2000     // without an answer, and it is away
#define PROBE_MS 1000    // between two questions whether it is back
#define ANSWER_BYTES ((size_t)256 << 20)
#define CONTROL_S 600.0    // a large model is read from a slow disk
#define MODEL_NAME_MAX 256

struct job {
    struct job *next;
    struct generator_item item;    // its prompt and seed are owned
    int32_t *prompt;
    uint64_t *seed;
    int n_try, n_wrong;
    int64_t due_ms, began_ns;
    struct group *group;    // when finished
};
struct external {
    struct external_config config;
    char url[280];
    pthread_t *thread;    // (n_thread)
    int n_thread;
    atomic_bool stop;
    pthread_mutex_t order;          // held while the engine reads weights, so that it does once; taken before lock. guards: helper
    struct line_program *helper;    // NULL: none
    pthread_mutex_t lock;           // guards: all that follows
    pthread_cond_t some;            // signals a waiting job, or stop
    struct job *waiting, **waiting_last, *done, **done_last;
    int64_t n_job;    // inside
    int64_t epoch;    // raised by external_clear: what was asked for before is dropped
    struct external_stats stats;
    bool synced, own;                                                  // the engine has read dir; it is rollcall's
    int64_t n_lost;                                                    // how often it may have lost what it had read
    char dir[4096], name[MODEL_NAME_MAX], old_name[MODEL_NAME_MAX];    // old_name: the adapter before, to be unloaded
    bool adapter;
    int64_t version;     // of dir; -1: none
    int64_t away_ms;     // since when it has not answered; 0: it has
    int64_t probe_ms;    // not to be asked before whether it is back
    bool probing;        // a thread asks
    char trouble[400];
    bool failed;
    struct error why;
};

/* ---- jobs */
static void job_free(struct job *j)
{
    if (!j)
        return;
    group_free(j->group);
    free(j->prompt);
    free(j->seed);
    free(j);
}

static void list_push(struct job ***last, struct job *j)
{
    j->next = NULL;
    **last = j;
    *last = &j->next;
}

static void lists_drop(struct external *x)
{
    for (struct job *j = x->waiting, *next; j; j = next) {
        next = j->next;
        job_free(j);
    }
    for (struct job *j = x->done, *next; j; j = next) {
        next = j->next;
        job_free(j);
    }
    x->waiting = x->done = NULL;
    x->waiting_last = &x->waiting;
    x->done_last = &x->done;
    x->n_job = 0;
    x->epoch++;
}

bool external_submit(struct external *x, const struct generator_item *it, struct error *err)
{
    struct job *j = calloc(1, sizeof *j);
    if (j) {
        j->item = *it;
        j->prompt = malloc((size_t)it->n_prompt * sizeof *j->prompt);
        j->seed = malloc((size_t)it->n_sample * sizeof *j->seed);
    }
    if (!j || !j->prompt || !j->seed) {
        job_free(j);
        return error_set(err, ERR_NO_MEMORY, "no memory for an item");
    }
    memcpy(j->prompt, it->prompt, (size_t)it->n_prompt * sizeof *j->prompt);
    memcpy(j->seed, it->seed, (size_t)it->n_sample * sizeof *j->seed);
    j->item.prompt = j->prompt;
    j->item.seed = j->seed;
    pthread_mutex_lock(&x->lock);
    list_push(&x->waiting_last, j);
    x->n_job++;
    pthread_cond_signal(&x->some);
    pthread_mutex_unlock(&x->lock);
    return true;
}

struct group *external_poll(struct external *x)
{
    struct group *g = NULL;
    pthread_mutex_lock(&x->lock);
    struct job *j = x->done;
    if (j) {
        x->done = j->next;
        if (!x->done)
            x->done_last = &x->done;
        x->n_job--;
        g = j->group;
        j->group = NULL;
    }
    pthread_mutex_unlock(&x->lock);
    job_free(j);
    return g;
}

bool external_ready(struct external *x)
{
    pthread_mutex_lock(&x->lock);
    bool ready = x->done || x->failed;
    pthread_mutex_unlock(&x->lock);
    return ready;
}

bool external_idle(struct external *x)
{
    pthread_mutex_lock(&x->lock);
    bool idle = x->n_job == 0 && !x->failed;
    pthread_mutex_unlock(&x->lock);
    return idle;
}

void external_clear(struct external *x)
{
    pthread_mutex_lock(&x->lock);
    lists_drop(x);
    x->failed = false;
    pthread_mutex_unlock(&x->lock);
}

bool external_failed(struct external *x, struct error *err)
{
    pthread_mutex_lock(&x->lock);
    bool failed = x->failed;
    if (failed) {
        *err = x->why;
        lists_drop(x);
        x->failed = false;
        x->away_ms = 0;
    }
    pthread_mutex_unlock(&x->lock);
    return failed;
}

/* With the lock. */
static bool is_away(const struct external *x)
{
    return x->away_ms && clock_ms() - x->away_ms >= AWAY_MS;
}

bool external_is_away(struct external *x)
{
    pthread_mutex_lock(&x->lock);
    bool away = is_away(x);
    pthread_mutex_unlock(&x->lock);
    return away;
}

void external_trouble(struct external *x, char *out, size_t size)
{
    pthread_mutex_lock(&x->lock);
    snprintf(out, size, "%s", x->trouble);
    pthread_mutex_unlock(&x->lock);
}

void external_stats(struct external *x, struct external_stats *out)
{
    pthread_mutex_lock(&x->lock);
    *out = x->stats;
    pthread_mutex_unlock(&x->lock);
}

/* ---- trouble */
/* It has answered. With the lock. */
static void well(struct external *x)
{
    if (x->trouble[0])
        log_info("the engine at %s answers", x->url);
    x->trouble[0] = 0;
    x->away_ms = 0;
}

/* Something is wrong, which is logged when it is new. away: the engine is not there, for so long that the sampler may have failed; its
 * weights may be gone, too. With the lock. */
static void ill(struct external *x, const struct error *why, bool away)
{
    int64_t now = clock_ms();
    if (strncmp(x->trouble, why->text, sizeof x->trouble - 1) != 0)
        log_warn("%s", why->text);
    snprintf(x->trouble, sizeof x->trouble, "%s", why->text);
    if (!away)
        return;
    if (why->code != ERR_FULL) {
        x->synced = false;
        x->n_lost++;
    }
    x->away_ms = x->away_ms ? x->away_ms : now;
    if ((double)(now - x->away_ms) / 1000 > x->config.patience_s && !x->failed) {
        x->failed = true;
        x->why = *why;
        error_wrap(&x->why, "the engine has been away for %.0f s ('engine_patience_s')", (double)(now - x->away_ms) / 1000);
    }
}

/* ---- requests */
static bool post(struct external *x, struct client *c, const char *path, const char *text, double limit_s, long *status, struct error *err)
{
    char url[400], what[480];
    snprintf(url, sizeof url, "%s%s", x->url, path);
    snprintf(what, sizeof what, "the engine at %s", url);
    if (text ? client_post(c, what, url, text, limit_s, status, err) : client_get(c, what, url, limit_s, status, err))
        return true;
    if (*status == 429 || *status == 503)
        err->code = ERR_FULL;    // it is there, with its weights
    else if (*status >= 400 && *status < 500 && *status != 408)
        err->code = ERR_REFUSED;    // and will say so again
    return false;
}

/* The name that the engine serves its model by, and whether it is rollcall's own server. */
static bool name_get(struct external *x, struct client *c, char *name, bool *own, struct error *err)
{
    long status;
    if (!post(x, c, "/v1/models", NULL, 30, &status, err))
        return false;
    json_t *root = json_text_read(buf_text(&c->answer), c->answer.len, 0, NULL);
    const json_t *first = json_array_get(json_object_get(root, "data"), 0);
    const char *id = json_string_value(json_object_get(first, "id")), *by = json_string_value(json_object_get(first, "owned_by"));
    bool ok = id && strlen(id) < MODEL_NAME_MAX;
    snprintf(name, MODEL_NAME_MAX, "%s", ok ? id : "");
    *own = by && strcmp(by, "rollcall") == 0;
    json_decref(root);
    return ok || error_set(err, ERR_DATA, "%s/v1/models names no model, so it is neither vLLM nor SGLang", x->url);
}

/* POST {first: dir, ...} to path. */
static bool order_post(struct external *x, struct client *c, const char *path, json_t *body, struct error *err)
{
    long status;
    char *text = body ? json_text_dump(body, JSON_COMPACT) : NULL;
    json_decref(body);
    bool ok = text ? post(x, c, path, text, CONTROL_S, &status, err) : error_set(err, ERR_NO_MEMORY, "no memory for a request");
    free(text);
    if (!ok)
        return false;
    json_t *root = json_text_read(buf_text(&c->answer), c->answer.len, 0, NULL);    // vLLM's adapter routes answer with a text
    if (json_is_false(json_object_get(root, "success")))
        ok = error_set(err, ERR_IO, "the engine at %s%s did not take the weights: %.200s", x->url, path, buf_text(&c->answer));
    json_decref(root);
    return ok;
}

/* Have the helper give the model in dir to the engine. A helper that reports an error is started again: what it shared with the engine
 * may be half done. With order. */
static bool helper_send(struct external *x, const char *dir, int64_t version, struct error *err)
{
    json_t *answer;
    struct buf *q = line_program_question(x->helper);
    buf_str(q, ",\"url\":");
    json_text_print(q, x->url, strlen(x->url), JSON_TEXT_UTF8);
    buf_str(q, ",\"dir\":");
    json_text_print(q, dir, strlen(dir), JSON_TEXT_UTF8);
    if (x->config.token_file) {
        buf_str(q, ",\"token_file\":");
        json_text_print(q, x->config.token_file, strlen(x->config.token_file), JSON_TEXT_UTF8);
    }
    buf_fmt(q, ",\"version\":%" PRId64, version);
    if (!line_program_ask(x->helper, &answer, err))
        return error_wrap(err, "'engine_helper', for the engine at %s", x->url);
    const char *why = json_string_value(json_object_get(answer, "error"));
    bool ok = json_is_true(json_object_get(answer, "ok")) && !why;
    if (!ok) {
        error_set(err, ERR_IO, "'engine_helper' did not give the weights to the engine at %s: %.300s", x->url,
                  why ? why : "its answer has neither \"ok\": true nor \"error\"");
        line_program_stop(x->helper, 0);
    }
    json_decref(answer);
    return ok;
}

static bool model_send(struct external *x, struct client *c, const char *dir, int64_t version, bool own, struct error *err)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, version);
    if (x->helper)
        return helper_send(x, dir, version, err);
    if (own || x->config.kind == EXTERNAL_SGLANG)
        return order_post(x, c, "/update_weights_from_disk",
                          json_pack("{s:s, s:s, s:b}", "model_path", dir, "weight_version", text, "flush_cache", 1), err);
    /* vLLM has no route of its own for a directory; with VLLM_SERVER_DEV_MODE=1 its workers' methods can be called */
    return order_post(x, c, "/collective_rpc", json_pack("{s:s, s:{s:s}}", "method", "reload_weights", "kwargs", "weights_path", dir), err)
           && order_post(x, c, "/reset_prefix_cache?reset_running_requests=true", json_object(), err);
}

/* An adapter gets a name of its own for each version, since an engine may keep what it has by name. */
static bool adapter_send(struct external *x, struct client *c, const char *dir, int64_t version, const char *old, char *name,
                         struct error *err)
{
    struct error none;
    bool vllm = x->config.kind == EXTERNAL_VLLM;
    const char *load = vllm ? "/v1/load_lora_adapter" : "/load_lora_adapter",
               *unload = vllm ? "/v1/unload_lora_adapter" : "/unload_lora_adapter";
    snprintf(name, MODEL_NAME_MAX, "rollcall-%" PRId64, version);
    if (!order_post(x, c, load, json_pack("{s:s, s:s}", "lora_name", name, "lora_path", dir), err))
        return false;
    if (old[0] && strcmp(old, name) != 0 && !order_post(x, c, unload, json_pack("{s:s}", "lora_name", old), &none))
        log_info("the adapter '%s' stays in the engine: %s", old, none.text);
    return true;
}

/* Tell the engine which weights to read, unless it has. */
static bool sync_weights(struct external *x, struct client *c, struct error *err)
{
    char dir[4096], name[MODEL_NAME_MAX], old[MODEL_NAME_MAX];
    bool own = false;
    pthread_mutex_lock(&x->order);
    pthread_mutex_lock(&x->lock);
    bool ok = x->synced, adapter = x->adapter, any = x->version >= 0;
    int64_t version = x->version, n_lost = x->n_lost;
    snprintf(dir, sizeof dir, "%s", x->dir);
    snprintf(old, sizeof old, "%s", x->old_name);
    pthread_mutex_unlock(&x->lock);
    if (!ok) {
        ok = name_get(x, c, name, &own, err)
             && (!any || (adapter && !own ? adapter_send(x, c, dir, version, old, name, err) : model_send(x, c, dir, version, own, err)));
        pthread_mutex_lock(&x->lock);
        if (ok && n_lost != x->n_lost) {    // what another thread saw: it may have been started again since it read them
            ok = error_set(err, ERR_IO, "the engine at %s went away while it was given weights", x->url);
        } else if (ok) {
            x->synced = true;
            x->own = own;
            snprintf(x->name, sizeof x->name, "%s", name);
            snprintf(x->old_name, sizeof x->old_name, "%s", adapter && !own ? name : "");
            log_info("the engine at %s has the weights of version %" PRId64, x->url, version);
        }
        pthread_mutex_unlock(&x->lock);
    }
    pthread_mutex_unlock(&x->order);
    return ok;
}

/* ---- a thread */
/* When it is to be asked whether it is back; INT64_MAX: not. With the lock. */
static int64_t probe_due(const struct external *x)
{
    return x->away_ms && x->n_job == 0 && !x->probing && x->version >= 0 ? x->probe_ms : INT64_MAX;
}

/* Wait for something to do: *j is the first waiting job that is due, or NULL: ask whether the engine is back. False: stop. */
static bool job_take(struct external *x, struct job **job, int64_t *epoch)
{
    struct job *j = NULL;
    bool probe = false;
    pthread_mutex_lock(&x->lock);
    while (!atomic_load(&x->stop) && !j && !probe) {
        int64_t now = clock_ms(), due = probe_due(x);
        struct job **at = &x->waiting;
        while (*at && (*at)->due_ms > now) {
            due = MIN(due, (*at)->due_ms);
            at = &(*at)->next;
        }
        j = x->failed ? NULL : *at;
        probe = !j && !x->failed && probe_due(x) <= now;
        if (probe) {
            x->probing = true;
        } else if (j) {
            *at = j->next;
            if (!*at)
                x->waiting_last = at;
        } else if (due == INT64_MAX || x->failed) {
            pthread_cond_wait(&x->some, &x->lock);    // without a limit: jobs and the end are signalled
        } else {
            struct timespec end = clock_after(due - now);
            pthread_cond_timedwait(&x->some, &x->lock, &end);
        }
    }
    *epoch = x->epoch;
    if (j)
        x->stats.n_running += j->item.n_sample;
    pthread_mutex_unlock(&x->lock);
    *job = j;
    return j || probe;
}

/* Ask for j's samples. away: the failure is the engine's, and will pass when it is back. */
static bool job_ask(struct external *x, struct client *c, struct job *j, bool *away, struct error *err)
{
    long status = 0;
    int64_t answered = -1, began, n_vocab;
    char name[MODEL_NAME_MAX];
    bool adapter;
    struct buf text = { .max = (size_t)64 << 20 };
    if (!sync_weights(x, c, err)) {
        *away = err->code != ERR_REFUSED;
        return false;
    }
    pthread_mutex_lock(&x->lock);
    began = x->version;
    adapter = x->adapter;
    n_vocab = x->own ? 0 : x->config.n_vocab;    // rollcall's draws no such id anyway
    snprintf(name, sizeof name, "%s", x->name);
    pthread_mutex_unlock(&x->lock);
    j->began_ns = clock_ns();
    external_request(&text, x->config.kind, &j->item, name, adapter, x->config.n_id, n_vocab);
    bool ok = text.failed ? error_set(err, ERR_NO_MEMORY, "no memory for a request")
                          : post(x, c, external_path(x->config.kind), buf_text(&text), x->config.request_s, &status, err);
    buf_release(&text);
    if (!ok) {
        *away = err->code != ERR_REFUSED;
        return false;
    }
    *away = false;
    j->group = external_answer(x->config.kind, &j->item, x->config.n_id, buf_text(&c->answer), c->answer.len, &answered, err);
    if (!j->group)
        return error_wrap(err, "the engine at %s%s", x->url, external_path(x->config.kind));
    pthread_mutex_lock(&x->lock);
    int64_t now = x->version;
    bool other = answered >= 0 && answered != began && answered != now;
    x->synced = x->synced && !other;
    pthread_mutex_unlock(&x->lock);
    if (other) {
        *away = true;
        return error_set(err, ERR_DATA,
                         "the engine at %s has weights of version %" PRId64 ", not %" PRId64
                         "; it was started again, or somebody else has given it others",
                         x->url, answered, began);
    }
    j->group->weight_version = answered >= 0 ? answered : began;
    j->group->gen_s = (double)(clock_ns() - j->began_ns) * 1e-9;
    return true;
}

/* What becomes of a job that was asked for. */
static void job_end(struct external *x, struct job *j, bool ok, bool away, int64_t epoch, const struct error *why)
{
    pthread_mutex_lock(&x->lock);
    x->stats.n_running -= j->item.n_sample;
    if (ok)
        well(x);
    else
        ill(x, why, away);
    if (epoch != x->epoch) {    // it was dropped meanwhile
        job_free(j);
    } else if (ok) {
        x->stats.n_tok += j->group->n_tok;
        list_push(&x->done_last, j);
    } else {
        group_free(j->group);
        j->group = NULL;
        j->due_ms = clock_ms() + MIN((int64_t)PAUSE_MS << MIN(j->n_try, 8), (int64_t)PAUSE_MOST_MS);
        j->n_try++;
        j->n_wrong += !away;
        if (j->n_wrong >= TRIES && !x->failed) {
            x->failed = true;
            x->why = *why;
        }
        list_push(&x->waiting_last, j);
        pthread_cond_signal(&x->some);
    }
    pthread_mutex_unlock(&x->lock);
    x->config.wake(x->config.ctx);
}

/* Ask whether it is back, and give it its weights then. */
static void probe_run(struct external *x, struct client *c)
{
    struct error err;
    bool ok = sync_weights(x, c, &err);
    pthread_mutex_lock(&x->lock);
    if (ok)
        well(x);
    else
        ill(x, &err, err.code != ERR_REFUSED);
    x->probing = false;
    x->probe_ms = clock_ms() + PROBE_MS;
    pthread_cond_broadcast(&x->some);    // the others wait until this time
    pthread_mutex_unlock(&x->lock);
    x->config.wake(x->config.ctx);
}

static void client_make_ready(struct external *x, struct client *c)
{
    c->answer.max = ANSWER_BYTES;
    client_stop_by(c, &x->stop, (long)x->config.request_s + 1);
}

static void *external_main(void *arg)
{
    struct external *x = arg;
    struct client c;
    struct error err;
    int64_t epoch;
    bool ready = false;
    for (struct job *j; job_take(x, &j, &epoch);) {
        bool away = false;
        if (!ready && (ready = client_init(&c, "an engine", x->config.token_file, &err)))
            client_make_ready(x, &c);
        if (!j && ready)
            probe_run(x, &c);
        if (!j)
            continue;
        bool ok = ready && job_ask(x, &c, j, &away, &err);
        job_end(x, j, ok, away, epoch, &err);
    }
    if (ready)
        client_release(&c);
    return NULL;
}

/* ---- weights, from the owner's thread */
bool external_weights_set(struct external *x, const char *dir, bool adapter, int64_t version, struct error *err)
{
    struct client c;
    int64_t began = clock_ms();
    if (strlen(dir) >= sizeof x->dir)
        return error_set(err, ERR_USAGE, "the path '%.100s' is too long", dir);
    if (!client_init(&c, "an engine", x->config.token_file, err))
        return false;
    client_make_ready(x, &c);
    pthread_mutex_lock(&x->order);    // nobody is telling it of the former ones now
    pthread_mutex_lock(&x->lock);
    snprintf(x->dir, sizeof x->dir, "%s", dir);
    x->adapter = adapter;
    x->version = version;
    x->synced = false;
    pthread_mutex_unlock(&x->lock);
    pthread_mutex_unlock(&x->order);
    bool ok;
    int n_refused = 0;
    for (int64_t pause_ms = PAUSE_MS; !(ok = sync_weights(x, &c, err)); pause_ms = MIN(2 * pause_ms, (int64_t)PAUSE_MOST_MS)) {
        pthread_mutex_lock(&x->lock);
        ill(x, err, x->config.spare && err->code != ERR_REFUSED);
        ok = x->config.spare && is_away(x);
        pthread_mutex_unlock(&x->lock);
        x->config.wake(x->config.ctx);
        if (ok)
            break;
        n_refused += err->code == ERR_REFUSED;
        if (atomic_load(&x->stop) || n_refused == TRIES || (double)(clock_ms() + pause_ms - began) / 1000 > x->config.patience_s)
            break;
        struct timespec end = clock_after(pause_ms);
        pthread_mutex_lock(&x->lock);
        pthread_cond_timedwait(&x->some, &x->lock, &end);
        pthread_mutex_unlock(&x->lock);
    }
    client_release(&c);
    pthread_mutex_lock(&x->lock);
    if (ok && x->synced)
        well(x);
    pthread_cond_broadcast(&x->some);    // when it is away, a thread looks after it
    pthread_mutex_unlock(&x->lock);
    x->config.wake(x->config.ctx);
    return ok;
}

/* ---- making and freeing */
struct external *external_new(const struct external_config *config, struct error *err)
{
    struct external *x = calloc(1, sizeof *x);
    if (!x || !(x->thread = calloc((size_t)config->n_request, sizeof *x->thread))) {
        free(x);
        error_set(err, ERR_NO_MEMORY, "no memory for an engine's client");
        return NULL;
    }
    x->config = *config;
    snprintf(x->url, sizeof x->url, "%s", config->url);
    x->version = -1;
    x->waiting_last = &x->waiting;
    x->done_last = &x->done;
    pthread_mutex_init(&x->order, NULL);
    pthread_mutex_init(&x->lock, NULL);
    clock_cond_init(&x->some);
    if (config->helper) {
        if (!(x->helper = line_program_new("engine's helper", config->helper, CONTROL_S, 0, err))) {
            external_free(x);
            return NULL;
        }
        line_program_stop_by(x->helper, &x->stop);
    }
    for (; x->n_thread < config->n_request; x->n_thread++)
        if (thread_start(&x->thread[x->n_thread], external_main, x) != 0) {
            error_set(err, ERR_IO, "cannot start thread %d of an engine's client", x->n_thread);
            external_free(x);
            return NULL;
        }
    return x;
}

void external_stop(struct external *x)
{
    atomic_store(&x->stop, true);
    pthread_mutex_lock(&x->lock);
    pthread_cond_broadcast(&x->some);
    pthread_mutex_unlock(&x->lock);
}

void external_free(struct external *x)
{
    if (!x)
        return;
    external_stop(x);
    for (int i = 0; i < x->n_thread; i++)
        pthread_join(x->thread[i], NULL);
    lists_drop(x);
    line_program_free(x->helper);
    pthread_mutex_destroy(&x->order);
    pthread_mutex_destroy(&x->lock);
    pthread_cond_destroy(&x->some);
    free(x->thread);
    free(x);
}
