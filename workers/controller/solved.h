/* solved.h - prompts that a group has solved, which are sampled no more (no_resampling_pass_rate)
 *
 * A prompt counts as solved from the cut of the rollout step whose group solved it, which is a moment of logical time, so which prompts
 * later steps have repeats to the byte. The journal holds them by rollout step; an operator's rollback takes back those of steps that
 * are cut again. Owned by the controller's loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

struct controller;
struct ledger;
struct solved {
    int64_t n;           // prompts so far
    int64_t chunk;       // what added holds: the rollout steps chunk SOLVED_STEPS and after
    struct buf added;    // "STEP ROW\n" for each
};
#define SOLVED_STEPS 64    // rollout steps of a value in the journal
void solved_release(struct solved *s);
/* A rollout step has been cut, and this row is solved; solved_save writes what was added. */
MUST_USE bool solved_add(struct controller *c, int64_t rollout_step, int64_t row, struct error *err);
MUST_USE bool solved_save(struct controller *c, struct error *err);
/* How many prompts were solved by rollout step last, it included: unlike n it does not depend on how far sampling is ahead. -1: the journal
 * cannot be read. */
int64_t solved_until(struct controller *c, int64_t last);
/* Forbid the rows of rollout steps before n_cut, and forget the others. */
MUST_USE bool solved_load(struct controller *c, struct ledger *l, int64_t n_cut, struct error *err);
