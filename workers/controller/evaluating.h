/* evaluating.h - an evaluation among the run's other work: which worker takes its parts, what waits for it, and what becomes of its answers
 *
 * Producers take parts when no items of their version wait. Where they have weights of their own, training goes on meanwhile: then the
 * version that is evaluated is kept for them. Otherwise the next step waits until all parts are sampled. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct controller;
struct msg_in;
struct mval;
struct request;
struct worker;
/* About the parts of an evaluation that wait (evals_step is not -1): */
bool evaluating_can(const struct controller *c, const struct worker *w);      // w can sample one now
bool evaluating_reach(const struct controller *c, const struct worker *w);    // w can take the weights for it, or they are coming
bool evaluating_shares(const struct controller *c, int64_t version);          // producers could take this version for one
bool evaluating_holds_step(const struct controller *c);    // would the next optimizer step change the weights that they need?
/* Begin the evaluation that is wanted, unless one has begun. */
MUST_USE bool evaluating_begin(struct controller *c, struct error *err);

void evaluated_came(struct controller *c, struct request *r, const struct msg_in *in);    // answers to a prompt
/* A part has been sampled; told: the report. False: its end cannot be noted. */
MUST_USE bool part_done(struct controller *c, int64_t task, const struct mval *told, struct error *err);
MUST_USE bool evaluating_load(struct controller *c, struct error *err);    // what the journal says is still to be evaluated
/* Each turn of the loop: when nobody has the version any more, and nobody can get it, the present one is evaluated instead. */
void evaluating_tick(struct controller *c);
