/* evals.h - evaluations: the last of each set, whether one is wanted or under way
 *
 * Owned by the controller's loop thread. The first trainer evaluates; the journal keeps each result. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/run/run_config.h"

struct journal;
struct msg_out;
struct eval_row {
    char set[64];
    int64_t step, n;
    double mean;
};
struct evals {
    int64_t wanted, running;              // optimizer step; -1: none
    struct eval_row row[EVAL_ROW_MAX];    // (n) the last of each set, and of its pass@k as SET/pass_at_K
    int n;
};
void evals_init(struct evals *e);
MUST_USE bool evals_load(struct evals *e, struct journal *j, struct error *err);    // what the journal has

/* Asking for one, in the order in which it happens. */
void evals_want(struct evals *e, int64_t step);
bool evals_due(const struct evals *e);              // one is wanted, and none is under way
void evals_begin(struct evals *e, int64_t step);    // the first trainer evaluates
bool evals_running(const struct evals *e);
void evals_end(struct evals *e);            // it has ended; evals_put takes the results
void evals_interrupted(struct evals *e);    // the evaluating worker died or gave up: it is wanted again
void evals_forgo(struct evals *e);          // none is wanted any more
bool evals_idle(const struct evals *e);     // none is wanted, none under way

/* The last result of a set; beyond EVAL_ROW_MAX results it is not remembered. */
void evals_put(struct evals *e, const char *set, int64_t step, int64_t n, double mean);
bool evals_any(const struct evals *e);                                    // has anything ever been evaluated?
bool evals_have(const struct evals *e, const char *set, int64_t step);    // is the last result of this set of this step?
void evals_write(const struct evals *e, struct msg_out *m);               // the map eval, as status has it
