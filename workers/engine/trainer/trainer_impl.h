/* trainer_impl.h - what trainer.c and step.c share; for nobody else */
#pragma once
#include "kernels/ops.h"
#include "workers/engine/model/model.h"
#include "workers/engine/trainer/trainer.h"

/* A sample on its way through a step. */
struct item {
    const struct group *g;
    const struct sample *s;
    double adv;        // before REINFORCE_PPB's normalisation and penalty
    bool in_loss;      // lambda
    int64_t ref_at;    // where its reference log-probs start in trainer.ref_logp
    bool active;       // some token of it may have a gradient, or it is run all the same
};
/* Host arrays of one micro-batch, (token_budget_max) each. */
struct micro {
    int32_t *token, *target, *cu;    // cu (token_budget_max + 1)
    float *temperature, *adv, *weight, *old, *ref, *coef, *logp, *entropy, *loss;
    int64_t n_tok, n_seq;
};
struct trainer {
    struct model *m, *ref;    // borrowed
    struct trainer_settings set;
    struct device *dev;
    struct model_run *run;
    int64_t n_flat, version, adam_step;
    float *grad;    // (n_flat) device; with several ranks what they let each other read
    struct mem_handle grad_handle;
    float *sum;    // (n_sum) device: this rank's shard of the sum over micro-batches; NULL when alone
    struct mem_handle sum_handle;
    int64_t n_sum;
    int64_t n_dev;                 // elements whose masters and moments are on the device
    float *state[STATE_N];         // (n_dev) device; the master is the weights themselves, (n_flat), in fp32
    float *host_state[STATE_N];    // (n_flat - n_dev) host_new; no master in fp32
    void *stage;                   // (stage_bytes) device; NULL without host state
    size_t stage_bytes;
    bool own_master;
    double *sumsq;    // (1 + n_sumsq) device: of the whole gradient, then of its blocks
    int64_t n_sumsq;
    uint64_t *hash;    // (1) device
    float *clip;       // (2) device: norm, coefficient
    struct micro mb;
    void *mb_mem;
    /* the batch of the step that is under way */
    const struct group *const *groups;
    int64_t n_group;
    struct item *item;             // (cap_item)
    int64_t n_item, cap_item;      // grows with the largest batch seen
    int64_t *order;                // (cap_item) items as they are run: the active ones, then the others; each in item order
    int64_t *first;                // (cap_item + 2) micro-batch k is order[first[k]] .. order[first[k + 1] - 1]
    int64_t n_micro;               // with active items
    int64_t n_reference;           // of these and those that follow: run under the reference first
    int64_t *rows;                 // (cap_item) for the cut
    const struct item **packed;    // (cap_item) those of the micro-batch, by sequence
    double *adv;                   // (cap_item) of one group
    struct trainer_norm norm;      // of the whole batch
    float *ref_logp;               // (n_ref) host; only of the micro-batches that this rank has run
    int64_t n_ref, cap_ref;
};

/* step.c: packed sequences, as every kind of step runs them. */
void micro_clear(struct micro *mb);
/* Append a sequence's tokens, a then b, no row of it with a target yet; returns its first row. */
int64_t micro_seq(struct micro *mb, const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b, float temperature);
struct model_batch micro_batch(const struct micro *mb);
/* Packed tokens that a micro-batch of this step may have. */
int64_t micro_budget(const struct trainer *t, const struct trainer_hyper *h);
