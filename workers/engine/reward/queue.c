#include "workers/engine/reward/queue.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/hold.h"
#include "protocol/base/log.h"
#include "protocol/base/thread.h"

#define N_THREAD_MAX 256
struct score_queue {
    struct reward_config config;
    void (*wake)(void *ctx);
    void *ctx;
    int64_t max_depth;
    int n_thread;
    pthread_t thread[N_THREAD_MAX];
    pthread_mutex_t lock;              // guards: all below; never held while scoring or waking
    pthread_cond_t work;               // a job was put, or closing
    pthread_cond_t ended;              // a thread has ended
    struct score_job *first, *last;    // jobs with samples not yet taken
    struct score_job *done_first, *done_last;
    struct score_stats stats;
    bool shares;    // a job may be spread over threads: one thread's reward has said so, and all are of one kind
    int n_ready, n_ended;
    bool closing, failed;
    struct error why;    // of failed
};

struct score_job *job_new(int64_t n, size_t text_bytes)
{
    struct score_job *job = calloc(1, sizeof *job);
    if (!job)
        return NULL;
    job->n = n;
    job->in = calloc((size_t)MAX(n, 1), sizeof *job->in);
    job->out = calloc((size_t)MAX(n, 1), sizeof *job->out);
    job->text = malloc(MAX(text_bytes, 1));
    if (!job->in || !job->out || !job->text) {
        job_free(job);
        return NULL;
    }
    return job;
}

void job_free(struct score_job *job)
{
    if (!job)
        return;
    json_decref(job->row);
    json_decref(job->evolved);
    free(job->in);
    free(job->out);
    free(job->text);
    free(job);
}

/* The next share of samples: all of a job, or so few that every thread gets some, at least one. The lock is held. */
static struct score_job *share_take(struct score_queue *q, int64_t *first, int64_t *n)
{
    struct score_job *job = q->first;
    if (!job)
        return NULL;
    *first = job->n_taken;
    *n = q->shares ? MIN(job->n - job->n_taken, (job->n + q->n_thread - 1) / q->n_thread) : job->n;
    job->n_taken += *n;
    if (job->n_taken == job->n) {
        q->first = job->next;
        if (!q->first)
            q->last = NULL;
        job->next = NULL;
    }
    return job;
}

/* Count what was scored; true: the job is complete. The lock is held. */
static bool share_done(struct score_queue *q, struct score_job *job, int64_t first, int64_t n, int64_t took_ns)
{
    struct score_stats *s = &q->stats;
    for (int64_t i = first; i < first + n; i++) {
        s->n_left_out += job->out[i].score != SCORE_OK;
        s->n_timeout += job->out[i].score == SCORE_TIMEOUT;
        s->n_error += job->out[i].score == SCORE_ERROR;
    }
    s->n_scored += n;
    s->depth -= n;
    s->busy_s += (double)took_ns / 1e9;
    job->n_done += n;
    return job->n_done == job->n;
}

/* Move a complete job to the done list. The lock is held. */
static void job_end(struct score_queue *q, struct score_job *job)
{
    struct score_stats *s = &q->stats;
    double ms = (double)(clock_ns() - job->put_ns) / 1e6;
    s->latency_ms = s->latency_ms > 0 ? 0.9 * s->latency_ms + 0.1 * ms : ms;
    s->latency_max_ms = MAX(s->latency_max_ms, ms);
    if (q->done_last)
        q->done_last->next = job;
    else
        q->done_first = job;
    q->done_last = job;
}

static void *scorer_thread(void *arg)
{
    struct score_queue *q = arg;
    struct error err = { 0 };
    struct reward_config eval_config = q->config;
    struct reward *train = reward_new(&q->config, &err), *eval = NULL;    // eval's is made when first needed
    eval_config.eval = true;
    pthread_mutex_lock(&q->lock);
    q->n_ready += train != NULL;
    if (!train && !q->failed) {
        q->failed = true;
        q->why = err;
    }
    while (train && !q->closing) {
        int64_t first, n;
        q->shares = q->shares || !reward_wants_groups(train);
        struct score_job *job = share_take(q, &first, &n);
        if (!job) {
            pthread_cond_wait(&q->work, &q->lock);
            continue;
        }
        q->stats.busy++;
        pthread_mutex_unlock(&q->lock);
        int64_t start = clock_ns();
        hold_point("scoring");
        if (job->eval && !eval && !(eval = reward_new(&eval_config, &err)))
            log_error("no reward for evaluation: %s", err.text);
        struct reward *r = job->eval ? eval : train;
        if (r)
            reward_score(r, job->in + first, job->out + first, n);
        for (int64_t i = first; i < first + n && !r; i++) {
            job->out[i] = (struct reward_output){ .score = SCORE_ERROR, .verdict = VERDICT_CANNOT_TELL };
            snprintf(job->out[i].rule, sizeof job->out[i].rule, "no reward");
        }
        pthread_mutex_lock(&q->lock);
        if (share_done(q, job, first, n, clock_ns() - start)) {
            if (r && !job->eval) {    // the others no longer look at it
                pthread_mutex_unlock(&q->lock);
                job->evolved = reward_evolve(r, job->in, job->out, job->n);
                pthread_mutex_lock(&q->lock);
            }
            job_end(q, job);
            pthread_mutex_unlock(&q->lock);
            q->wake(q->ctx);
            pthread_mutex_lock(&q->lock);
        }
        q->stats.busy--;
    }
    pthread_mutex_unlock(&q->lock);
    q->wake(q->ctx);
    reward_free(train);
    reward_free(eval);
    pthread_mutex_lock(&q->lock);
    q->n_ended++;
    pthread_cond_signal(&q->ended);
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

struct score_queue *queue_new(const struct reward_config *config, int n_thread, int64_t max_depth, void (*wake)(void *ctx), void *ctx,
                              struct error *err)
{
    struct score_queue *q = calloc(1, sizeof *q);
    if (!q) {
        error_set(err, ERR_NO_MEMORY, "no memory for the scorer's queue");
        return NULL;
    }
    q->config = *config;
    q->wake = wake;
    q->ctx = ctx;
    q->max_depth = max_depth;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->work, NULL);
    clock_cond_init(&q->ended);
    n_thread = MIN(MAX(n_thread, 1), N_THREAD_MAX);
    pthread_mutex_lock(&q->lock);    // so that no thread sees n_thread before it is final
    for (int i = 0; i < n_thread; i++)
        if (thread_start(&q->thread[q->n_thread], scorer_thread, q) == 0)
            q->n_thread++;
    pthread_mutex_unlock(&q->lock);
    if (q->n_thread == 0) {
        error_set(err, ERR_NO_MEMORY, "cannot start a scoring thread");
        queue_free(q, 0);
        return NULL;
    }
    return q;
}

bool queue_put(struct score_queue *q, struct score_job *job, struct error *err)
{
    bool ok = true;
    job->put_ns = clock_ns();
    job->n_taken = job->n_done = 0;
    job->next = NULL;
    pthread_mutex_lock(&q->lock);
    if (q->stats.depth + job->n > q->max_depth) {
        ok = error_set(err, ERR_FULL, "%" PRId64 " completions wait to be scored already", q->stats.depth);
        q->stats.n_refused++;
    } else if (job->n == 0) {    // nothing to score is done at once
        if (q->done_last)
            q->done_last->next = job;
        else
            q->done_first = job;
        q->done_last = job;
    } else {
        if (q->last)
            q->last->next = job;
        else
            q->first = job;
        q->last = job;
        q->stats.depth += job->n;
        pthread_cond_broadcast(&q->work);
    }
    pthread_mutex_unlock(&q->lock);
    return ok;
}

struct score_job *queue_done(struct score_queue *q)
{
    pthread_mutex_lock(&q->lock);
    struct score_job *job = q->done_first;
    if (job) {
        q->done_first = job->next;
        if (!q->done_first)
            q->done_last = NULL;
        job->next = NULL;
    }
    pthread_mutex_unlock(&q->lock);
    return job;
}

bool queue_is_ready(struct score_queue *q)
{
    pthread_mutex_lock(&q->lock);
    bool ready = q->n_ready == q->n_thread;
    pthread_mutex_unlock(&q->lock);
    return ready;
}

bool queue_has_failed(struct score_queue *q, struct error *err)
{
    pthread_mutex_lock(&q->lock);
    bool failed = q->failed;
    if (failed)
        *err = q->why;
    pthread_mutex_unlock(&q->lock);
    return failed;
}

void queue_stats(struct score_queue *q, struct score_stats *out)
{
    pthread_mutex_lock(&q->lock);
    *out = q->stats;
    pthread_mutex_unlock(&q->lock);
}

bool queue_free(struct score_queue *q, int64_t wait_ms)
{
    if (!q)
        return true;
    struct timespec end = clock_after(wait_ms);
    pthread_mutex_lock(&q->lock);
    q->closing = true;
    pthread_cond_broadcast(&q->work);
    while (q->n_ended < q->n_thread && pthread_cond_timedwait(&q->ended, &q->lock, &end) == 0) {
    }
    bool all = q->n_ended == q->n_thread;
    pthread_mutex_unlock(&q->lock);
    if (!all)
        return false;
    for (int i = 0; i < q->n_thread; i++)
        pthread_join(q->thread[i], NULL);
    for (struct score_job *job = q->first, *next; job; job = next) {
        next = job->next;
        job_free(job);
    }
    for (struct score_job *job = q->done_first, *next; job; job = next) {
        next = job->next;
        job_free(job);
    }
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->work);
    pthread_cond_destroy(&q->ended);
    free(q);
    return true;
}
