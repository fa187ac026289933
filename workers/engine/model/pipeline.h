/* pipeline.h - in which order the stages of a pipeline work, as data
 *
 * A model that is cut by its layers over several devices (stages.h) runs a batch of micro-batches as a table: for each stage the steps that
 * it takes, one after the other, and for each step what of other stages must be done before. Whoever runs a table needs to know nothing
 * else, and pipeline_check proves one before it is run: another schedule is another function that fills the table.
 *
 * A set is the memory that a stage keeps of one micro-batch from its forward to its backward step: what the layers keep, what the stage
 * hands on, and the gradient that comes back for it. Micro-batch k has set k % n_set of each stage.
 *
 * Where the head and the embedding are one tensor, its gradient in a micro-batch begins with the head's sum, to which the embedding's is
 * added when the first stage is done with it (STAGE_EMBED). The last stage has the tensor, and n_shared such sums: micro-batch k has
 * sum k % n_shared. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

#define PIPELINE_STAGES_MAX 8
enum stage_step_kind {
    STAGE_FORWARD,     // the stage's layers, and of the last one in a run without backward steps the head
    STAGE_BACKWARD,    // of the last one: the head and the loss, then its layers; of the others their layers
    STAGE_EMBED,       // of the last stage: the embedding's gradient, and with it that of the shared tensor
    STAGE_STEP_KINDS
};
/* Another stage's step that must be done before. */
struct stage_wait {
    int stage;       // -1: none
    int64_t step;    // its place in that stage's list
};
struct stage_step {
    enum stage_step_kind kind;
    int64_t micro;
    struct stage_wait wait[2];    // for what is handed over; for memory that is used again, where that does not follow
};
struct stage_list {
    struct stage_step *step;    // (n_step) owned by the pipeline
    int64_t n_step;
    int n_set;
};
struct pipeline {
    int n_stage;
    int64_t n_micro;
    bool backward;    // else forward steps only: scoring
    int n_shared;     // 0: head and embedding are two tensors, or there is one stage
    struct stage_list stage[PIPELINE_STAGES_MAX];
    struct stage_step *mem;    // of all lists
    int64_t cap;               // steps that it has room for
};
/* Sets of stage q of n, and sums of a shared tensor's gradient, that the tables below need at most. One stage alone shares nothing and
 * has no such sum. */
int pipeline_sets(int n_stage, int q);
int pipeline_shared(int n_stage);
/* One forward, one backward (1F1B: PipeDream-Flush, arXiv 2006.09503, figure 5): stage q runs n - 1 - q micro-batches ahead, then takes turns.
 * So at most n - q micro-batches are between their steps, however many there are; with steps of equal cost n - 1 of n_micro + n - 1 turns
 * are idle. With `backward` false only the forward steps. p is zeroed or an earlier table, whose memory is used again. */
MUST_USE bool pipeline_make(struct pipeline *p, int n_stage, int64_t n_micro, bool backward, bool shared, struct error *err);
void pipeline_release(struct pipeline *p);
/* Is the table right, whatever made it? Each stage has each step of each micro-batch once and each kind in the order of the micro-batches,
 * which is the order of the gradient's sums; a step waits for what is handed to it; all stages come to their end; no set and no sum is
 * written before its last reader of the micro-batch before is done, by order and waits alone. ERR_INTERNAL names the first step that
 * is wrong. */
MUST_USE bool pipeline_check(const struct pipeline *p, struct error *err);
