/* rounds.h - how several trainers stay together: the meeting they are in, and the step that one of them has begun
 *
 * A round is a meeting of all trainers (kernels/collective). It ends for all when one dies, leaves or starts again; then all load the
 * same checkpoint and meet in the next. A step that one of them has begun is given to all of them, whatever else is wanted
 * meanwhile, since they wait for each other in it; so is a checkpoint. All of this is in the journal, so that a controller that comes back
 * knows. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct controller;
struct rounds {
    int64_t round;     // the meeting they are in or are to be in; 0: none yet, or there is one trainer
    int64_t begun;     // the optimizer step that one of them has begun, so all of them make it; -1: none
    int64_t saves;     // checkpoints so far for which all of them bring their shards together,
    int64_t saving;    // and the optimizer step of the last one that was begun in this round; -1: none
    bool open;         // nobody has been seen in it
};
MUST_USE bool rounds_load(struct controller *c, struct error *err);
MUST_USE bool rounds_begin(struct controller *c, struct error *err);         // the one before is called off
void rounds_call_off(const struct controller *c);                            // trainers that wait in it stop waiting
void rounds_seen(struct controller *c);                                      // a trainer has come into it
MUST_USE bool rounds_step_begin(struct controller *c, struct error *err);    // a trainer begins the next step
bool rounds_step_begun(const struct controller *c);                          // one of several trainers has begun it
/* The first one begins a checkpoint of the present step, in which the others take part where none reads another's memory. */
MUST_USE bool rounds_save_begin(struct controller *c, struct error *err);
bool rounds_save_begun(const struct controller *c);
/* A trainer has begun the next step, and it is not done. */
bool step_is_open(const struct controller *c);
