/* trainer_impl.h - what trainer.c and step.c share; for nobody else */
#pragma once
#include "kernels/ops.h"
#include "workers/engine/model/lora.h"
#include "workers/engine/model/model.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/pass/pass.h"

/* A sample on its way through a step. */
struct item {
    const struct group *g;
    const struct sample *s;
    double adv;             // before ADV_BATCH's normalisation and penalty
    bool in_loss;           // lambda
    int64_t n_own;          // tokens that were sampled (mask 1); only these count anywhere
    const uint8_t *mask;    // (s->n_tok) borrowed from g
    int64_t ref_at;         // where its reference log-probs start in trainer.ref_logp
    bool active;            // some token of it may have a gradient, or it is run all the same
};
/* Host arrays of one micro-batch, (token_budget_max) each. */
struct micro {
    int32_t *token, *target, *cu;    // cu (token_budget_max + 1)
    struct shared_prefix *prefix;    // of each sequence
    bool shares;                     // samples may have one,
    const struct group *group;       // that of the last,
    int64_t root;                    // whose prompt this sequence has
    float *temperature, *adv, *weight, *old, *ref, *log_ratio, *rho, *coef, *logp, *entropy, *loss;
    int64_t n_tok, n_seq;
};
struct trainer {
    struct model *m, *ref;    // borrowed
    bool ref_moved;           // ref is no longer what it was loaded as
    struct trainer_settings set;
    struct device *dev;
    struct model_run *run;
    int64_t n_flat, version, adam_step;
    int64_t update;            // updates of the present step that have been made: with one, no sample is of the present weights
    struct trainer_parts p;    // its arrays are one piece of memory, piece_mem; of one rank, shards are whole pieces
    int64_t *piece_mem;
    float *grad;             // device: (n_flat), or with zero_stage 2 (n_slot, slot_n)
    struct model_grad to;    // where backward passes add
    struct mem_handle share_handle, host_handle;
    struct trainer_reach reach;    // all NULL: there is none
    void (*changes)(void *ctx);    // before the weights change; NULL: nothing
    void *changes_ctx;
    bool own_only;                 // masters and moments of this rank's shards only
    int64_t n_state;               // elements whose masters and moments are kept here: n_flat, or the largest sum of shards
    int64_t n_dev;                 // of them on the device
    float *state[STATE_N];         // (n_dev) device; the master is the weights themselves, (n_flat), in fp32; else moments8, factors
    int64_t n_factor;              // of Adafactor: floats of state[STATE_MOMENT2]
    float *host_state[STATE_N];    // (n_state - n_dev) host_new, or of own shards parts of p.host; no master in fp32
    bool stage_used;               // by an AdamW that may be under way
    void *stage;                   // (stage_bytes) device; NULL without host state
    size_t stage_bytes;
    bool own_master;
    bool of_team;    // of a device of a team (slices.c)
    /* where the model is cut over a team (slices.c): instead of own gradient, masters and moments */
    int n_slice;                                  // devices; 0: it is whole
    struct trainer *slice[SUM_PARTS_MAX];         // a trainer of each slice, which makes no steps of its own
    struct model_grad slice_to[SUM_PARTS_MAX];    // where backward passes add theirs
    void *slice_stage[SUM_PARTS_MAX];             // (slices_stage_n floats) on their devices: pieces of the flat order
    const float *slice_piece[SUM_PARTS_MAX];      // of several ranks: the sums of a piece of each slice, for the norm
    bool *frozen;                                 // (model_n_tensor) is not trained; NULL: all are
    double *sumsq;                                // (3) device: of the whole gradient; of a tensor's masters, and of its update (Adafactor)
    float *row_mean;                              // (1) device: Adafactor's
    int64_t n_sumsq;                              // blocks of p.norm_part
    uint64_t *hash;                               // (1) device
    float *clip;                                  // (2) device: norm, coefficient
    struct micro mb;
    void *mb_mem;
    int n_stage;                             // of a model in stages: how many (pipelined.c); else 0
    struct micro stage_mb[SUM_PARTS_MAX];    // what each stage runs forward
    void *stage_mb_mem[SUM_PARTS_MAX];
    double stage_idle_s[SUM_PARTS_MAX];    // as last measured
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
    bool skipped;                  // the last micro-batch of which this was known had samples beyond skip_threshold; changes no bit
    struct trainer_norm norm;      // of the whole batch
    float *ref_logp;               // (n_ref) host; only of the micro-batches that this rank has run
    int64_t n_ref, cap_ref;
    struct left_out *left;    // (cap_left) of the step; grows by what is left out
    int64_t n_left, cap_left;
};

/* update.c: the masters, moments and gradients of a trainer, and its new weights */
MUST_USE bool pieces_make(struct trainer *t, struct error *err);
size_t trainer_weight_bytes(const struct model *m, const struct trainer_settings *s);
int64_t trainer_n_state(const struct model *m, const struct trainer_settings *s);    // elements of state kept here
/* Elements of state on the device that m is of, for which state_bytes[0] is; *stage_bytes: of the stage, 0 when all are there. */
int64_t trainer_state_dev(const struct model *m, const struct trainer_settings *s, size_t *stage_bytes);
size_t trainer_grad_bytes(const struct model *m, const struct trainer_settings *s);
size_t trainer_moments_bytes(const struct model *m, const struct trainer_settings *s, int64_t n_dev, enum trainer_state_kind kind);
/* A moment of one byte: its codes, and behind them its scales. */
struct moment8 {
    uint8_t *code;    // (n_state)
    float *scale;     // (n_state / ADAM8_BLOCK, rounded up)
};
struct moment8 update_moment8(const struct trainer *t, enum trainer_state_kind kind);
int64_t update_n_factor(const struct model *m);
MUST_USE bool frozen_make(struct trainer *t, struct error *err);
MUST_USE bool state_new(struct trainer *t, struct error *err);
MUST_USE bool grad_new(struct trainer *t, struct error *err);
void trainer_grad_more(struct trainer *t);    // the gradient holds a micro-batch's: the next one is added
void update_release(struct trainer *t);
/* A run of the update: n elements of the flat order from `flat`, whose state is kept from `at`. */
struct update_run {
    int64_t flat, n, at;
    const float *grad;
};
struct update_run update_run_of(const struct trainer *t, int i);
int64_t update_run_n_dev(const struct trainer *t, const struct update_run *r);    // of its elements, how many are kept on the device
char *update_weights_at(const struct trainer *t, const struct update_run *r, int64_t from);    // the weights from its element `from` on
int64_t update_grad_n(const struct model *m, const struct trainer_settings *s);    // of this rank's gradient: all, or so many places

/* slices.c: the same of a model that is cut over a team. */
MUST_USE bool slices_new(struct trainer *t, struct error *err);
void slices_free(struct trainer *t);
int64_t slices_stage_n(const struct model *m);
MUST_USE bool slices_grad_clear(struct trainer *t, struct error *err);
MUST_USE bool slices_grad_get(const struct trainer *t, float *out, struct error *err);
MUST_USE bool slices_weights_place(struct model *m, const struct trainer_settings *s, struct error *err);
MUST_USE bool slices_freeze(struct trainer *t, struct error *err);
MUST_USE bool slices_norm(struct trainer *t, bool own, struct error *err);    // own: of several ranks this one's pieces, else of the whole
MUST_USE bool slices_run(struct trainer *t, const struct trainer_hyper *h, struct error *err);
MUST_USE bool slices_clip_take(struct trainer *t, int q, struct error *err);
MUST_USE bool slices_changed(struct trainer *t, struct error *err);
MUST_USE bool slices_state_get(const struct trainer *t, enum trainer_state_kind kind, float *out, struct error *err);
MUST_USE bool slices_state_set(struct trainer *t, enum trainer_state_kind kind, const float *in, struct error *err);
MUST_USE bool slices_adam_reset(struct trainer *t, struct error *err);
MUST_USE bool slices_hash(const struct trainer *t, uint64_t *hash, struct error *err);
/* Weights of t's model or of its reference, out to and in from host memory of model_weight_bytes. */
MUST_USE bool slices_weights_get(const struct trainer *t, struct model *m, void *out, struct error *err);
MUST_USE bool slices_weights_set(const struct trainer *t, struct model *m, const void *in, struct error *err);
MUST_USE bool slices_blend(struct trainer *t, double share, struct error *err);

/* reference.c: ref, on t's device, takes this share of t's weights. */
MUST_USE bool reference_blend(const struct trainer *t, struct model *ref, double share, struct error *err);

/* trainer.c: host arrays of a micro-batch of the largest budget, in *mem, for free. */
MUST_USE bool micro_new(struct micro *mb, void **mem, int64_t n_tok, struct error *err);

/* pipelined.c: a trainer whose model is in stages. */
MUST_USE bool pipelined_new(struct trainer *t, struct error *err);
void pipelined_free(struct trainer *t);
MUST_USE bool pipelined_references(struct trainer *t, const struct trainer_hyper *h, const struct micro_series *of,
                                   struct trainer_norm *part, struct error *err);
MUST_USE bool pipelined_micros(struct trainer *t, const struct trainer_hyper *h, const struct micro_series *of, struct trainer_sums *part,
                               struct error *err);

/* step.c: what a micro-batch k of the batch is: its sequences; and into t->mb also what its loss takes. */
void micro_pack(const struct trainer *t, struct micro *mb, int64_t k);
void micro_pack_loss(struct trainer *t, const struct trainer_hyper *h, int64_t k);
/* Of micro-batch k, which t->mb holds with log-probs under the reference: keep them. part: as trainer_references. */
void reference_take(struct trainer *t, const struct trainer_hyper *h, int64_t k, struct trainer_norm *part);
/* The one token of a micro-batch that adds nothing: into mb; and of t->mb, which holds it, the backward pass of `run`. */
void micro_pack_none(struct micro *mb);
MUST_USE bool micro_none_finish(struct trainer *t, struct model_run *run, const struct model_grad *to, struct error *err);
/* What t->mb holds, which `run` has run forward: loss, backward pass and sums. */
MUST_USE bool micro_finish(struct trainer *t, struct model_run *run, const struct model_grad *to, const struct trainer_hyper *h,
                           struct trainer_sums *s, struct error *err);
/* packed sequences, as every kind of step runs them. */
void micro_clear(struct micro *mb);
/* Append a sequence's tokens, a then b, no row of it with a target yet; returns its first row. */
int64_t micro_seq(struct micro *mb, const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b, float temperature);
struct model_batch micro_batch(const struct micro *mb);
/* Packed tokens that a micro-batch of this step may have. */
int64_t micro_budget(const struct trainer *t, const struct trainer_hyper *h);
