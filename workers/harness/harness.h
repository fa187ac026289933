/* harness.h - sessions: the user's program plays a sample by asking an OpenAI endpoint, and knows nothing of training
 *
 * `environment: "harness:CMD"`. To the worker that samples, a session is an environment (environment.h) whose observations are the
 * requests of its program: a turn asks how the conversation goes on, and the answer is
 *     {"request": {"path": "/v1/chat/completions", "body": "...", "ask": "HASH"}}    draw for this; the next turn's last text is the reply
 *     {"done": true, "reward": 1.5, "ans_acc": 1}                                    the session has ended; without a reward: others score it
 *     {"restart": true}                                                              start over, without a text
 * A text is what answers a request: {"ask": its hash, "drawn": hash of all tokens so far, "status": 200, "stream": false, "body": "..."}.
 *
 * As with an environment, a turn carries all texts, so nothing is lost with this process. When a session's program has ended too early, or
 * this process was killed, the program begins again, and what it asks is answered with the texts there are as long as it asks the same; when
 * it asks otherwise the session starts over. A session that has ended is on the disk before its reward is acknowledged (record.h). A sample
 * may have two sessions at once, when a controller was killed and gives items again that are still inside a worker. With the same replies,
 * the end that is written first counts for both.
 *
 * A session ends when its program posts a reward (POST /v1/reward {"reward": 1.5, "ans_acc": 1}), or has ended with status 0. Then the
 * last line of its standard output may be {"reward": 1.5}, or {"error": "why the sample is to be left out"}.
 *
 * A thread owns sessions and programs, another one reads requests (door.h). As environment_pool.h: jobs are put in and finished ones taken
 * out, and neither call waits. A turn that has no answer after some seconds is answered with `later`. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "workers/engine/reward/environment_pool.h"

struct harness_config {    // texts are borrowed as long as the harness lives
    const char *command, *model;
    const char *dir;         // RUN/harness, for records and the sessions' own folders; "": nothing is kept
    int64_t max_sessions;    // programs at once
    double timeout_s;        // of a session, without the time that its requests take
    int64_t max_restarts;    // of a program that has failed, in a session
    int64_t max_turns;       // requests that are drawn for, in a session
    bool wants_reward;       // a session that ends without one is left out
    int errors;              // for the programs' standard error, borrowed; 0: ours
    void (*wake)(void *ctx);
    void *ctx;
};
/* Counted since the start, except the first two. */
struct harness_stats {
    int64_t running, waiting;    // sessions with a program, and without one yet
    int64_t n_turn, n_timeout, n_error;
    int64_t n_restart;     // programs started again after a failure
    int64_t n_fresh;       // sessions started over since the program asked otherwise
    int64_t n_recorded;    // sessions played again from their record
};
struct harness;
/* Start the threads. NULL: see err. */
struct harness *harness_new(const struct harness_config *config, struct error *err);
/* Take job; on failure (ERR_FULL) it stays the caller's. */
MUST_USE bool harness_put(struct harness *h, struct turn_job *job, struct error *err);
struct turn_job *harness_done(struct harness *h);    // the caller's again; NULL: none
void harness_stats(struct harness *h, struct harness_stats *out);
void harness_free(struct harness *h);    // ends all programs; NULL is fine

/* Begin one session, as its first turn t asks (t->from is not needed), and end it: what its program asks first, or how it fails. Waits for
 * that, at most timeout_s of the program's time for each of its starts. config's wake is not used. ERR_USAGE: the shell knows no program
 * of the command's first word. False: see err; else *out is the answer. */
MUST_USE bool harness_try(const struct harness_config *config, const struct turn *t, struct turn_answer *out, struct error *err);
