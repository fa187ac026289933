/* queue.h - waiting score requests, and the threads that score them
 *
 * The loop thread puts jobs in and takes finished ones out; neither call ever waits for a thread. Each thread has its
 * own struct reward (sandboxes and reward programs included), made in the thread, and takes a share of a job's samples
 * at a time, so that one big group is spread over all of them; or whole jobs only, when its reward compares the responses
 * of a prompt with each other. Bounded: a full queue refuses. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "workers/engine/reward/reward.h"

struct score_job {
    void *ctx;                    // the putter's own
    json_t *row;                  // the dataset's line; owned
    struct reward_input *in;      // (n) responses; the texts lie in text
    struct reward_output *out;    // (n) filled when done
    int64_t n;
    bool eval;          // score as evaluation does: no length rules
    char *text;         // all responses, each followed by a NUL
    json_t *evolved;    // reward_evolve's, of a job that is not of an evaluation; owned; NULL: none
    int64_t put_ns;     // when it was put, monotonic
    /* the queue's own */
    int64_t n_taken, n_done;
    struct score_job *next;
};
/* A job with room for n responses of text_bytes in total, including their NULs. Returns it for job_free. NULL: no memory.
 */
struct score_job *job_new(int64_t n, size_t text_bytes);
void job_free(struct score_job *job);    // NULL is fine

/* Counted since the start, except depth and busy. */
struct score_stats {
    int64_t depth;            // samples put and not yet done
    int64_t busy;             // threads at work
    int64_t n_scored;         // samples
    int64_t n_left_out;       // of these, left without a score for any reason
    int64_t n_timeout;        // of these, the verifier ran out of its time
    int64_t n_error;          // of these, the verifier failed
    int64_t n_refused;        // requests for which the queue had no room
    double latency_ms;        // mean time from put to done of the last jobs (decay 0.9)
    double latency_max_ms;    // longest of all
    double busy_s;            // thread seconds at work
};
struct score_queue;
/* Start n_thread threads that score with config (copied, its strings borrowed until queue_free). A thread calls
 * wake(ctx) when a job is done or a reward could not be set up. max_depth: most samples waiting. NULL: see err. */
struct score_queue *queue_new(const struct reward_config *config, int n_thread, int64_t max_depth, void (*wake)(void *ctx), void *ctx,
                              struct error *err);
/* Take job; on failure (ERR_FULL) it stays the caller's. */
MUST_USE bool queue_put(struct score_queue *q, struct score_job *job, struct error *err);
/* A finished job, the caller's again; NULL: none. */
struct score_job *queue_done(struct score_queue *q);
/* All threads have set up their reward. */
bool queue_is_ready(struct score_queue *q);
/* A thread could not set up its reward: err says why. The process cannot continue. */
bool queue_has_failed(struct score_queue *q, struct error *err);
void queue_stats(struct score_queue *q, struct score_stats *out);
/* End the threads once they have finished the samples they are at, within wait_ms. False: some are still working; then
 * nothing may be freed and the process should exit. */
bool queue_free(struct score_queue *q, int64_t wait_ms);
