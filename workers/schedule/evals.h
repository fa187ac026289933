/* evals.h - evaluations: which is wanted, which is under way, and the last results of each set
 *
 * An evaluation is of one version of the weights. It is cut into parts (of each set every n-th prompt), which any worker that samples
 * with that version may take; its answers come prompt by prompt (eval_sets.h). Which worker has taken which part changes no result. The answers
 * are lost with the controller; the next one has them sampled again. Owned by the controller's loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/settings/run_config.h"
#include "workers/schedule/eval_sets.h"
#include "workers/schedule/ledger.h"

#define EVAL_PART_MAX (2 * WORKER_MAX)

struct journal;
struct msg_out;
struct mval;
struct eval_row {
    char set[64];
    int64_t step, n;
    double mean;
};
struct eval_part {
    int worker;      // worker_id of the worker that has it; 0: it waits
    int64_t task;    // given as
    bool sampled;    // all its answers have come, or are on their way
};
struct evals {
    int64_t running;                         // optimizer step of the one that has begun; -1: none
    int64_t wanted, next;                    // the same of those that are to begin after it, in this order
    int64_t noted[3];                        // what the journal has of these three
    int64_t id;                              // of the one that has begun
    struct eval_sets *sets;                  // its settings and results; owned, NULL: none has begun
    struct eval_part part[EVAL_PART_MAX];    // (n_part)
    int n_part;
    struct eval_row row[EVAL_ROW_MAX];    // (n) the last of each set, and of its pass@k as SET/pass_at_K
    int n;
};
void evals_init(struct evals *e);
void evals_release(struct evals *e);
MUST_USE bool evals_load(struct evals *e, struct journal *j, struct error *err);    // what the journal has

/* Asking for one, in the order in which it happens. */
void evals_want(struct evals *e, int64_t step);
bool evals_idle(const struct evals *e);       // none is wanted, none under way
int64_t evals_step(const struct evals *e);    // the version that parts wait for; -1: none does
bool evals_at_risk(const struct evals *e);    // has somebody a part that would be lost with it: not sampled, or answers are missing?
/* Begin the one that is wanted, with the settings `at`, in n_part parts. */
MUST_USE bool evals_begin(struct evals *e, const struct run_config *at, int n_part, struct error *err);
int evals_part_give(struct evals *e, int worker, int64_t task);    // the number of a part that waited
void evals_lost(struct evals *e, int worker);                      // what the worker had waits again
/* The part given as task has been sampled. told: eval of message done. ERR_DATA: it does not fit the sets. */
MUST_USE bool evals_sampled(struct evals *e, int64_t task, const struct mval *told, struct error *err);
/* Answers of message evaluated; of another evaluation than this one they are ignored. ERR_DATA as above. */
MUST_USE bool evals_came(struct evals *e, const struct mval *told, struct error *err);
bool evals_complete(const struct evals *e);    // the one that has begun has all its answers
void evals_end(struct evals *e);               // it has ended, its results are noted
/* The run goes back to step: evaluations of later ones are dropped. */
void evals_back(struct evals *e, int64_t step);
void evals_forgo(struct evals *e);    // none is wanted any more

/* The last result of a set; beyond EVAL_ROW_MAX results it is not remembered. */
void evals_put(struct evals *e, const char *set, int64_t step, int64_t n, double mean);
bool evals_have(const struct evals *e, const char *set, int64_t step);    // is the last result of this set of this step?
void evals_write(const struct evals *e, struct msg_out *m);               // the map eval, as status has it
