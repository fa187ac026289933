#include "workers/engine/reward/environment_pool.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/hold.h"
#include "protocol/base/thread.h"

#define COPIES_MAX 256
#define WAITING_MAX 65536    // turns

struct copy {
    struct environment_pool *pool;
    pthread_t thread;
    struct turn_job *first, *last;    // guarded by the pool's lock
};
struct environment_pool {
    char *command;
    double timeout_s;
    void (*wake)(void *ctx);
    void *ctx;
    int n;
    struct copy copy[COPIES_MAX];
    pthread_mutex_t lock;    // guards: all below, and the copies' lists; never held while playing or waking
    pthread_cond_t work;     // a job was put, or closing
    pthread_cond_t ended;    // a thread has ended
    struct turn_job *done_first, *done_last;
    struct environment_stats stats;
    int n_ready, n_ended;
    bool closing, failed;
    struct error why;    // of failed
};

struct turn_job *turn_job_new(int64_t n_text)
{
    struct turn_job *job = calloc(1, sizeof *job);
    if (job && !(job->text = calloc((size_t)MAX(n_text, (int64_t)1), sizeof *job->text))) {
        free(job);
        return NULL;
    }
    if (job)
        job->turn.n_text = n_text;
    return job;
}

void turn_job_free(struct turn_job *job)
{
    if (!job)
        return;
    for (int64_t i = 0; i < job->turn.n_text; i++)
        free(job->text[i]);
    free(job->text);
    free(job->row);
    free(job->from);
    free(job->answer.json);
    free(job);
}

void turn_job_push(struct turn_job **first, struct turn_job **last, struct turn_job *job)
{
    job->next = NULL;
    if (*last)
        (*last)->next = job;
    else
        *first = job;
    *last = job;
}

struct turn_job *turn_job_pop(struct turn_job **first, struct turn_job **last)
{
    struct turn_job *job = *first;
    if (job && !(*first = job->next))
        *last = NULL;
    return job;
}

/* Count a finished job and move it to the done list. The lock is held. */
static void job_done(struct environment_pool *p, struct turn_job *job, int64_t start_ns)
{
    struct environment_stats *s = &p->stats;
    double ms = (double)(clock_ns() - start_ns) / 1e6;
    s->waiting--;
    s->n_turn++;
    s->n_timeout += job->answer.state == SCORE_TIMEOUT;
    s->n_error += job->answer.state == SCORE_ERROR;
    s->latency_ms = s->latency_ms > 0 ? 0.9 * s->latency_ms + 0.1 * ms : ms;
    turn_job_push(&p->done_first, &p->done_last, job);
}

static void *copy_main(void *arg)
{
    struct copy *c = arg;
    struct environment_pool *p = c->pool;
    struct error err = { 0 };
    struct environment *e = environment_new(p->command, p->timeout_s, 0, &err);
    pthread_mutex_lock(&p->lock);
    p->n_ready += e != NULL;
    if (!e && !p->failed) {
        p->failed = true;
        p->why = err;
    }
    while (e && !p->closing) {
        struct turn_job *job = turn_job_pop(&c->first, &c->last);
        if (!job) {
            pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        int64_t start = clock_ns();
        hold_point("playing");
        environment_turn(e, &job->turn, &job->answer);
        pthread_mutex_lock(&p->lock);
        job_done(p, job, start);
        pthread_mutex_unlock(&p->lock);
        p->wake(p->ctx);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    p->wake(p->ctx);
    environment_free(e);
    pthread_mutex_lock(&p->lock);
    p->n_ended++;
    pthread_cond_signal(&p->ended);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

struct environment_pool *environment_pool_new(const char *command, double timeout_s, int n, void (*wake)(void *ctx), void *ctx,
                                              struct error *err)
{
    struct environment_pool *p = calloc(1, sizeof *p);
    if (!p || !(p->command = strdup(command))) {
        free(p);
        error_set(err, ERR_NO_MEMORY, "no memory for environments");
        return NULL;
    }
    p->timeout_s = timeout_s;
    p->wake = wake;
    p->ctx = ctx;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    clock_cond_init(&p->ended);
    n = MIN(MAX(n, 1), COPIES_MAX);
    pthread_mutex_lock(&p->lock);    // so that no thread sees n before it is final
    for (int i = 0; i < n; i++) {
        p->copy[p->n].pool = p;
        if (thread_start(&p->copy[p->n].thread, copy_main, &p->copy[p->n]) == 0)
            p->n++;
    }
    pthread_mutex_unlock(&p->lock);
    if (p->n == 0) {
        error_set(err, ERR_NO_MEMORY, "cannot start an environment's thread");
        environment_pool_free(p, 0);
        return NULL;
    }
    return p;
}

bool environment_pool_put(struct environment_pool *p, struct turn_job *job, struct error *err)
{
    bool ok = true;
    uint64_t key = (uint64_t)job->turn.item * 0x9e3779b97f4a7c15u + (uint64_t)job->turn.sample;
    pthread_mutex_lock(&p->lock);
    if (p->stats.waiting >= WAITING_MAX) {
        ok = error_set(err, ERR_FULL, "%d turns wait for an environment already", WAITING_MAX);
    } else {
        struct copy *c = &p->copy[key % (uint64_t)p->n];
        turn_job_push(&c->first, &c->last, job);
        p->stats.waiting++;
        pthread_cond_broadcast(&p->work);
    }
    pthread_mutex_unlock(&p->lock);
    return ok;
}

struct turn_job *environment_pool_done(struct environment_pool *p)
{
    pthread_mutex_lock(&p->lock);
    struct turn_job *job = turn_job_pop(&p->done_first, &p->done_last);
    pthread_mutex_unlock(&p->lock);
    return job;
}

bool environment_pool_ready(struct environment_pool *p)
{
    pthread_mutex_lock(&p->lock);
    bool ready = p->n_ready == p->n;
    pthread_mutex_unlock(&p->lock);
    return ready;
}

bool environment_pool_failed(struct environment_pool *p, struct error *err)
{
    pthread_mutex_lock(&p->lock);
    bool failed = p->failed;
    if (failed)
        *err = p->why;
    pthread_mutex_unlock(&p->lock);
    return failed;
}

void environment_pool_stats(struct environment_pool *p, struct environment_stats *out)
{
    pthread_mutex_lock(&p->lock);
    *out = p->stats;
    pthread_mutex_unlock(&p->lock);
}

bool environment_pool_free(struct environment_pool *p, int64_t wait_ms)
{
    if (!p)
        return true;
    struct timespec end = clock_after(wait_ms);
    struct turn_job *job;
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_cond_broadcast(&p->work);
    while (p->n_ended < p->n && pthread_cond_timedwait(&p->ended, &p->lock, &end) == 0) {
    }
    bool all = p->n_ended == p->n;
    pthread_mutex_unlock(&p->lock);
    if (!all)
        return false;
    for (int i = 0; i < p->n; i++) {
        pthread_join(p->copy[i].thread, NULL);
        while ((job = turn_job_pop(&p->copy[i].first, &p->copy[i].last)))
            turn_job_free(job);
    }
    while ((job = turn_job_pop(&p->done_first, &p->done_last)))
        turn_job_free(job);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->ended);
    free(p->command);
    free(p);
    return true;
}
