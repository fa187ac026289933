/* checkpoints.h - the run's checkpoints: which are on disk, which is being written, whether one is wanted
 *
 * Owned by the controller's loop thread. A checkpoint is written by the first trainer; the journal keeps what became of it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/record/journal.h"

struct mval;
struct checkpoint_row {
    int64_t step;
    char path[4096];
    bool complete;    // else it is broken, could not be written, or is undone
    bool undone;      // a rollback has gone back beyond it; path is where it is moved to
    double wall_s;    // when it was written, since 1970
    char why[JOURNAL_WHY];
};
struct checkpoints {
    char dir[4200];                                    // they go here
    int64_t wanted, saving;                            // optimizer step; -1: none
    char why[JOURNAL_WHY], saving_why[JOURNAL_WHY];    // of the one that is wanted, of the one that is being written
    bool to_move;                                      // some that are undone may still have their old place
    double stall_s, write_s;                           // of the last one; 0: there was none yet
    struct checkpoint_row *row;                        // (n) owned; as they were written, the last at the end
    int n;
};
MUST_USE bool checkpoints_init(struct checkpoints *k, struct error *err);
void checkpoints_release(struct checkpoints *k);
MUST_USE bool checkpoints_load(struct checkpoints *k, struct journal *j, struct error *err);    // what the journal has

/* Asking for one, in the order in which it happens. */
/* why: "every 20 steps", or who asked; one that is wanted already keeps its first reason. */
void checkpoints_want(struct checkpoints *k, int64_t step, const char *why);
bool checkpoints_due(const struct checkpoints *k);              // one is wanted, and none is under way
void checkpoints_begin(struct checkpoints *k, int64_t step);    // the first trainer writes it
/* It has been written, or could not be (ok). told: the metrics in its writer's report. */
MUST_USE bool checkpoints_end(struct checkpoints *k, struct journal *j, int64_t step, bool ok, const struct mval *told, struct error *err);
void checkpoints_interrupted(struct checkpoints *k);    // its writer died or gave up: it is wanted again
void checkpoints_undone(struct checkpoints *k);         // the run returns to an earlier step: it will not be finished
void checkpoints_forgo(struct checkpoints *k);          // none is wanted any more
bool checkpoints_idle(const struct checkpoints *k);     // none is wanted, none under way
/* The run goes back to step on an operator's word: those of later steps are not used any more, and will be moved to step-N.undone-TAG
 * once the journal has that (checkpoints_move, after a commit). Returns how many in *n. */
MUST_USE bool checkpoints_undo(struct checkpoints *k, struct journal *j, int64_t step, int64_t tag, int *n, struct error *err);
void checkpoints_move(struct checkpoints *k);

/* What is there. */
bool checkpoints_reach(const struct checkpoints *k, int64_t step);          // a complete one of step or later
bool checkpoints_tried(const struct checkpoints *k, int64_t step);          // one of step was written, or could not be
bool checkpoints_have(const struct checkpoints *k, int64_t step);           // a complete one of step, and its folder is there
int64_t checkpoints_last(const struct checkpoints *k);                      // step of the one written last, complete or not; 0: none
int64_t checkpoints_newest(const struct checkpoints *k);                    // step of the last complete one; -1: none
const char *checkpoints_path(const struct checkpoints *k, int64_t step);    // where the one of step is; "": it is not known
/* Step of the complete one that was written before the last and is of an earlier step; -1: none. */
int64_t checkpoints_before(const struct checkpoints *k, int64_t step);
/* The complete ones whose folder is there, newest first: the one after row (NULL: the first); NULL: no more. */
const struct checkpoint_row *checkpoints_next(const struct checkpoints *k, const struct checkpoint_row *row);
/* The complete one of step turns out to be broken; *had: there was one. */
MUST_USE bool checkpoints_break(struct checkpoints *k, struct journal *j, int64_t step, bool *had, struct error *err);
