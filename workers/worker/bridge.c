#include "workers/worker/bridge.h"
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/base/thread.h"
#include "protocol/record/drawn_book.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/model_dir.h"
#include "workers/engine/sampler/external.h"
#include "workers/engine/text/tokenizer.h"

#define PATIENCE_S 20.0    // for one version at one server; a trainer waits no longer
#define AGAIN_MS 2000      // before a server that did not get the weights is given them once more

/* A server, and the thread that has it read versions. It always takes the newest, so one that was away misses those between. */
struct bridge_server {
    struct bridge *bridge;
    struct external *external;    // owned
    pthread_t thread;
    bool running;    // thread has been started
    /* under bridge.lock */
    int64_t wanted, has;    // version; -1: none
    int64_t since_ms;       // while it has not got the newest: clock_ms when that began, or when it last got an older one
    char trouble[200];      // why it has not got the last one; "": it has, or nothing is known
    int64_t dir;            // number of the directory that is being read; -1: none
    bool late;              // it did not get a version in time, so trainers do not wait for it until it has one again
};
struct bridge {
    struct bridge_server *server;    // (n_server) owned
    int n_server;
    bool adapter;
    struct drawn_book *book;    // owned; NULL: the versions that servers have are not noted
    char base[4160];
    double patience_s;          // PATIENCE_S, or half of engine_patience_s if that is less
    pthread_mutex_t lock;       // guards: all that follows, and what is said above
    pthread_cond_t some;        // a version is wanted, or was read, or failed; or stop
    int64_t version, number;    // the newest version, and the number of its directory; -1: none
    int64_t unwritten_ms;       // clock_ms when a version could not be written for the first time; 0: the last one could
    char trouble[200];          // why
    bool stop;
};

/* Something is new with a server. When it is trouble, trainers wait no longer: it is asked again without them. */
static void woken(void *ctx)
{
    struct bridge_server *s = ctx;
    char trouble[400] = "";
    if (s->external)
        external_trouble(s->external, trouble, sizeof trouble);
    pthread_mutex_lock(&s->bridge->lock);
    s->late = s->late || trouble[0];
    snprintf(s->trouble, sizeof s->trouble, "%.190s", trouble);
    pthread_cond_broadcast(&s->bridge->some);
    pthread_mutex_unlock(&s->bridge->lock);
}

static void dir_of(const struct engine *e, char *out, size_t size)
{
    snprintf(out, size, "%s/engine/bridge", e->run_dir);
}

static void version_dir(const struct bridge *b, int64_t number, int64_t version, char *out, size_t size)
{
    snprintf(out, size, "%s/%" PRId64 "-%" PRId64, b->base, number, version);
}

/* Note for the run's door the oldest weights that a server has; one that is away draws nothing. With the lock. */
static void given_note(struct bridge *b)
{
    int64_t oldest = -1;
    for (int i = 0; i < b->n_server; i++)
        if (b->server[i].has >= 0 && !b->server[i].late)
            oldest = oldest < 0 ? b->server[i].has : MIN(oldest, b->server[i].has);
    drawn_book_given_set(b->book, oldest);
}

/* ---- a server's thread */
static void *server_main(void *arg)
{
    struct bridge_server *s = arg;
    struct bridge *b = s->bridge;
    struct error err;
    char dir[4300];
    pthread_mutex_lock(&b->lock);
    while (!b->stop) {
        struct timespec again = clock_after(AGAIN_MS);
        if (s->wanted < 0 && s->has == b->version) {
            pthread_cond_wait(&b->some, &b->lock);    // without a limit: versions and the end are signalled
            continue;
        }
        while (s->wanted < 0 && !b->stop && pthread_cond_timedwait(&b->some, &b->lock, &again) == 0)
            ;    // a run that waits for groups makes no version that would be given next
        if (b->stop)
            break;
        int64_t version = b->version, before = clock_ms();
        s->dir = b->number;
        s->wanted = -1;
        version_dir(b, b->number, version, dir, sizeof dir);
        pthread_mutex_unlock(&b->lock);
        bool ok = external_weights_set(s->external, dir, b->adapter, version, &err);
        if (ok)
            log_info("a server has the weights of step %" PRId64 " took_s=%.2f", version, (double)(clock_ms() - before) / 1000);
        else
            log_warn("a server has not got the weights of step %" PRId64 ": %s", version, err.text);
        pthread_mutex_lock(&b->lock);
        s->has = ok ? version : s->has;
        s->since_ms = ok ? clock_ms() : s->since_ms;
        s->late = !ok;
        snprintf(s->trouble, sizeof s->trouble, "%.190s", ok ? "" : err.text);
        s->dir = -1;
        given_note(b);
        pthread_cond_broadcast(&b->some);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* ---- a version */
/* Is the directory that has this name being read, or the newest? With the lock. */
static bool dir_is_used(const struct bridge *b, int64_t number)
{
    bool used = number == b->number;
    for (int i = 0; i < b->n_server; i++)
        used = used || b->server[i].dir == number;
    return used;
}

/* Remove the directories that nobody reads any more. */
static void dirs_sweep(struct bridge *b)
{
    struct error err;
    char path[4400];
    DIR *d = opendir(b->base);
    for (struct dirent *f; d && (f = readdir(d));) {
        char *end;
        int64_t number = strtoll(f->d_name, &end, 10);
        if (end == f->d_name)
            continue;
        pthread_mutex_lock(&b->lock);
        bool used = dir_is_used(b, number);
        pthread_mutex_unlock(&b->lock);
        snprintf(path, sizeof path, "%s/%s", b->base, f->d_name);
        if (!used && !dir_remove(path, &err))
            log_warn("%s", err.text);
    }
    if (d)
        closedir(d);
}

/* Wait until every server has read the newest version or has failed to; only with last for those, too, that are late already. */
static void servers_wait(struct bridge *b, bool last)
{
    struct timespec end = clock_after((int64_t)(b->patience_s * 1000));
    pthread_mutex_lock(&b->lock);
    for (;;) {
        bool busy = false;
        for (int i = 0; i < b->n_server; i++)
            busy = busy || ((last || !b->server[i].late) && (b->server[i].wanted >= 0 || b->server[i].dir >= 0));
        if (!busy || pthread_cond_timedwait(&b->some, &b->lock, &end) != 0)
            break;
    }
    for (int i = 0; i < b->n_server; i++)
        b->server[i].late = b->server[i].late || b->server[i].wanted >= 0 || b->server[i].dir >= 0;
    pthread_mutex_unlock(&b->lock);
}

/* Have every server read the present weights; last: no others follow. */
static void push(struct engine *e, bool last)
{
    struct bridge *b = e->bridge;
    char dir[4300];
    struct error err;
    int n_has = 0;
    int64_t before = clock_ms(), number = b->number + 1;
    version_dir(b, number, e->step, dir, sizeof dir);
    if (!dir_make(dir, 0755, &err) || (!b->adapter && !model_dir_copy_tokenizer(run_config_tokenizer(&e->config), dir, &err))
        || !model_save(e->model, dir, &err)) {
        log_warn("the weights of step %" PRId64 " are not given to other servers: %s", e->step, err.text);
        pthread_mutex_lock(&b->lock);
        b->unwritten_ms = b->unwritten_ms ? b->unwritten_ms : before;
        snprintf(b->trouble, sizeof b->trouble, "%.190s", err.text);
        pthread_mutex_unlock(&b->lock);
        return;
    }
    pthread_mutex_lock(&b->lock);
    b->unwritten_ms = 0;
    for (int i = 0; i < b->n_server; i++) {
        struct bridge_server *s = &b->server[i];
        s->since_ms = s->has == b->version ? before : s->since_ms;
        s->wanted = e->step;
    }
    b->number = number;
    b->version = e->step;
    pthread_cond_broadcast(&b->some);
    pthread_mutex_unlock(&b->lock);
    engine_waits_for(e, "inference servers to read weights");
    servers_wait(b, last);
    engine_waits_for(e, "");
    pthread_mutex_lock(&b->lock);
    for (int i = 0; i < b->n_server; i++)
        n_has += b->server[i].has == e->step;
    pthread_mutex_unlock(&b->lock);
    log_info("%d of %d servers have the weights of step %" PRId64 " took_s=%.2f", n_has, b->n_server, e->step,
             (double)(clock_ms() - before) / 1000);
    dirs_sweep(b);
}

static bool servers_open(struct engine *e, struct bridge *b, struct error *err)
{
    const struct run_config *c = &e->config;
    int64_t n = run_config_n_engine(c);
    if (!(b->server = calloc((size_t)n, sizeof *b->server)))
        return error_set(err, ERR_NO_MEMORY, "no memory for the servers' clients");
    for (int64_t i = 0; i < n; i++) {
        struct bridge_server *s = &b->server[i];
        char url[280], name[32];
        struct external_config config = { .kind = EXTERNAL_VLLM,
                                          .url = url,
                                          .token_file = c->engine_token_file[0] ? c->engine_token_file : NULL,
                                          .helper = c->engine_helper[0] ? c->engine_helper : NULL,
                                          .request_s = c->engine_timeout_s,
                                          .patience_s = b->patience_s,
                                          .n_request = 1,
                                          .n_id = tokenizer_n_id(e->prompts.tokenizer),
                                          .n_vocab = model_config(e->model)->vocab,
                                          .wake = woken,
                                          .ctx = s };
        snprintf(name, sizeof name, "engine:%" PRId64, i);
        if (!run_config_engine(c, name, url, sizeof url))
            return error_set(err, ERR_USAGE, "'engine_url' has no address %" PRId64, i);
        *s = (struct bridge_server){ .bridge = b, .wanted = -1, .has = -1, .dir = -1 };
        if (!(s->external = external_new(&config, err)))
            return false;
        b->n_server++;
        if (thread_start(&s->thread, server_main, s) != 0)
            return error_set(err, ERR_IO, "cannot start a thread of the weight bridge");
        s->running = true;
    }
    return true;
}

bool bridge_open(struct engine *e, struct error *err)
{
    if (e->rank != 0 || !run_config_posted(&e->config) || !e->config.engine_url[0])
        return true;
    if (!e->bridge) {
        char book[4200];
        struct error why;
        struct bridge *b = calloc(1, sizeof *b);
        if (!b)
            return error_set(err, ERR_NO_MEMORY, "no memory for the weight bridge");
        b->adapter = e->config.lora_rank > 0 || e->config.lora_adapter[0];
        b->version = b->number = -1;
        b->patience_s = fmin(PATIENCE_S, e->config.engine_patience_s / 2);
        pthread_mutex_init(&b->lock, NULL);
        clock_cond_init(&b->some);
        dir_of(e, b->base, sizeof b->base);
        if (drawn_book_path(&e->config, e->run_dir, book, sizeof book) && !(b->book = drawn_book_open(book, &why)))
            log_warn("the versions that servers have are not noted: %s", why.text);
        if ((path_exists(b->base) && !dir_remove(b->base, err))    // an earlier life's
            || !servers_open(e, b, err)) {
            bridge_free(b);
            return false;
        }
        pthread_mutex_lock(&e->lock);
        e->bridge = b;
        pthread_mutex_unlock(&e->lock);
    }
    push(e, false);
    return true;
}

void bridge_step(struct engine *e, int64_t max_steps)
{
    if (e->bridge && (e->step % e->config.bridge_interval == 0 || e->step >= max_steps))
        push(e, e->step >= max_steps);
}

int bridge_behind(const struct run_config *c, struct bridge *b, struct engine_server *out, int max)
{
    int n = 0;
    int64_t now = clock_ms();
    pthread_mutex_lock(&b->lock);
    for (int i = 0; i < b->n_server && n < max; i++) {
        const struct bridge_server *s = &b->server[i];
        char device[32], url[280] = "";
        bool late = s->has != b->version && s->late;
        if (!late && !b->unwritten_ms)
            continue;
        const char *why = !late ? b->trouble : s->trouble[0] ? s->trouble : "it does not answer";
        snprintf(device, sizeof device, "engine:%d", i);
        if (!run_config_engine(c, device, url, sizeof url))
            continue;    // servers_open has read it
        snprintf(out[n].name, sizeof out[n].name, "the server at %s", url);
        snprintf(out[n].trouble, sizeof out[n].trouble, "%s", why);
        out[n++].behind_s = (double)(now - (late ? s->since_ms : b->unwritten_ms)) / 1000;
    }
    pthread_mutex_unlock(&b->lock);
    return n;
}

void bridge_free(struct bridge *b)
{
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    b->stop = true;
    pthread_cond_broadcast(&b->some);
    pthread_mutex_unlock(&b->lock);
    for (int i = 0; i < b->n_server; i++)
        external_stop(b->server[i].external);    // all at once, so that they end together
    for (int i = 0; i < b->n_server; i++) {
        if (b->server[i].running)
            pthread_join(b->server[i].thread, NULL);
        external_free(b->server[i].external);
    }
    drawn_book_close(b->book);
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->some);
    free(b->server);
    free(b);
}
