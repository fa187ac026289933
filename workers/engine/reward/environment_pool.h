/* environment_pool.h - several copies of the environment, a thread each, and the turns that wait for them
 *
 * As queue.h: the loop thread puts jobs in and takes finished ones out, and neither call waits. An episode always goes to the same
 * copy, which has it in memory. */
#pragma once
#include "workers/engine/reward/environment.h"

struct turn_job {
    void *ctx;            // the putter's own
    struct turn turn;     // points into text
    char *row, **text;    // owned; text (turn.n_text)
    char *from;           // owned; NULL: no harness
    struct turn_answer answer;
    struct turn_job *next;    // of whoever has it
};
/* A job for a turn of n_text texts, with room for their pointers. Returns it for turn_job_free; NULL: no memory. */
struct turn_job *turn_job_new(int64_t n_text);
void turn_job_free(struct turn_job *job);    // NULL is fine
/* A list of jobs, from *first to *last, both NULL without any: put one at its end, or take its first; NULL: there is none. */
void turn_job_push(struct turn_job **first, struct turn_job **last, struct turn_job *job);
struct turn_job *turn_job_pop(struct turn_job **first, struct turn_job **last);

/* Counted since the start, except waiting. */
struct environment_stats {
    int64_t waiting;      // turns put and not yet done
    int64_t n_turn;       // done
    int64_t n_timeout;    // of these, the program ran out of its time
    int64_t n_error;      // of these, it failed
    double latency_ms;    // mean time from put to done of the last turns (decay 0.9)
};
struct environment_pool;
/* Start n copies. A thread calls wake(ctx) when a turn is done, or its copy could not be started. NULL: see err. */
struct environment_pool *environment_pool_new(const char *command, double timeout_s, int n, void (*wake)(void *ctx), void *ctx,
                                              struct error *err);
/* Take job; on failure (ERR_FULL) it stays the caller's. */
MUST_USE bool environment_pool_put(struct environment_pool *p, struct turn_job *job, struct error *err);
struct turn_job *environment_pool_done(struct environment_pool *p);             // the caller's again; NULL: none
bool environment_pool_ready(struct environment_pool *p);                        // all copies have started
bool environment_pool_failed(struct environment_pool *p, struct error *err);    // one could not be started: err says why
void environment_pool_stats(struct environment_pool *p, struct environment_stats *out);
/* End the threads once they have finished their turns, within wait_ms. False: one is still at work; then nothing may be freed. */
bool environment_pool_free(struct environment_pool *p, int64_t wait_ms);
