/* trainer_impl.h - what the files of this folder share about a trainer; for no other folder */
#pragma once
#include "kernels/ops.h"
#include "workers/engine/model/lora.h"
#include "workers/engine/model/model.h"
#include "workers/engine/trainer/reference.h"
#include "workers/engine/trainer/state.h"
#include "workers/engine/trainer/step.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/trainer/update.h"
#include "workers/engine/pass/pass.h"

/* A sample on its way through a step. */
struct item {
    const struct group *g;
    const struct sample *s;
    double adv;             // before ADV_BATCH's normalisation and penalty
    bool in_loss;           // it counts in the loss (lambda)
    int64_t n_own;          // tokens that were sampled (mask 1); only these count anywhere
    const uint8_t *mask;    // (s->n_tok) borrowed from g
    int64_t ref_at;         // where its reference log-probs start in trainer.ref_logp
    bool active;            // some token of it may have a gradient, or it is run all the same
};
/* Host arrays of one micro-batch. Each is (token_budget_max) unless it says otherwise. */
struct micro {
    int32_t *token, *target;
    int32_t *cu;                     // (token_budget_max + 1) bounds of the sequences
    struct shared_prefix *prefix;    // of each sequence
    bool shares;                     // sequences may share a prompt's rows
    const struct group *group;       // the group of the last sample
    int64_t root;                    // the sequence whose prompt that group's samples share
    float *temperature, *adv, *weight, *old, *ref, *log_ratio, *rho, *coef, *logp, *entropy, *loss;
    int64_t n_tok, n_seq;
};
struct trainer {
    struct model *m, *ref;    // borrowed
    bool ref_moved;           // ref has changed since it was loaded
    struct trainer_settings set;
    struct device *dev;
    struct model_run *run;
    struct model_run *ref_run;    // the teacher's own; NULL: the reference runs in `run`
    int64_t n_flat, version, adam_step;
    // Updates that the present step has made. After the first one no sample is of the present
    // weights.
    int64_t update;
    struct trainer_parts p;
    int64_t *piece_mem;    // one piece of memory for the arrays of p
    void *owned[8];        // (n_owned) device memory of its own among what follows
    size_t n_owned;
    float *grad;             // device: (n_flat), or from zero_stage 2 on (n_slot, slot_n)
    struct model_grad to;    // where backward passes add
    struct mem_handle share_handle, host_handle;
    struct trainer_reach reach;    // all NULL: there is none
    void (*changes)(void *ctx);    // called before the weights change; NULL: nothing
    void *changes_ctx;
    const struct keep_form *keep;    // what of them this rank keeps
    int64_t n_state;                 // elements with masters and moments here: n_flat, or the longest shards
    int64_t n_dev;                   // the first n_dev of these elements have them on the device
    // (n_dev) device. Without own_master the master is the weights, (n_flat). 8-bit moments:
    // moment8. Adafactor: no first moment, and update_n_factor floats for the second.
    float *state[STATE_N];
    // (n_state - n_dev) of host_new, or with shards parts of p.host. Without own_master no
    // master.
    float *host_state[STATE_N];
    bool stage_used;    // an AdamW that may be under way uses the stage
    void *stage;        // (stage_bytes) device; NULL without host_state
    size_t stage_bytes;
    bool own_master;    // the weights are not fp32, so that masters are apart from them
    bool of_team;       // this is the trainer of one device of a team (slices.c)
    const struct state_form *form;
    // The trainers of the devices that the model is cut over (slices.c), which make no steps of
    // their own; this one alone where it is whole.
    int n_device;
    struct trainer *device[SUM_PARTS_MAX];
    struct model_grad *device_to[SUM_PARTS_MAX];    // where backward passes add a device's gradient
    struct model_grad slice_to[SUM_PARTS_MAX];      // of a cut model it is one of these
    void *slice_stage[SUM_PARTS_MAX];               // (slices_stage_n floats) on that device
    // Several ranks: the sum of one piece of each slice, while the norm is made.
    const float *slice_piece[SUM_PARTS_MAX];
    bool *frozen;    // (model_n_tensor) tensors that are not trained; NULL: all are
    // (3) device: sum of squares of the gradient; of a tensor's masters and of its update
    // (Adafactor)
    double *sumsq;
    float *row_mean;    // (1) device: Adafactor's
    int64_t n_sumsq;    // blocks of p.norm_part
    uint64_t *hash;     // (1) device
    float *clip;        // (2) device: norm, coefficient
    struct micro mb;
    void *mb_mem;
    // The micro-batch that each stage runs forward; a model that is in no stages counts as one.
    struct micro stage_mb[SUM_PARTS_MAX];
    void *stage_mb_mem[SUM_PARTS_MAX];
    double stage_idle_s[SUM_PARTS_MAX];    // as last measured
    // The batch of the step that is under way.
    const struct group *const *groups;
    int64_t n_group;
    struct item *item;           // (cap_item)
    int64_t n_item, cap_item;    // cap_item grows with the largest batch seen
    int64_t *order;              // (cap_item) the active items, then the others, by item
    // (cap_item + 2) micro-batch k is order[first[k]] .. order[first[k + 1] - 1]
    int64_t *first;
    int64_t n_micro;               // micro-batches with active items
    int64_t n_reference;           // the first n_reference run under the reference
    int64_t *rows;                 // (cap_item) for the cut
    int64_t *load;                 // (n_layer, experts) rows of each expert in a micro-batch; NULL: the model has none
    const struct item **packed;    // (cap_item) the items of the micro-batch, by sequence
    double *adv;                   // (cap_item) advantages of one group
    // The last micro-batch whose log-probs were looked at had samples beyond skip_threshold. It
    // changes no bit.
    bool skipped;
    struct trainer_norm norm;    // counts and sums of the whole batch
    float *ref_logp;             // (n_ref) host; filled where this rank has run
    int64_t n_ref, cap_ref;
    struct left_out *left;    // (cap_left) what the step has left out
    int64_t n_left, cap_left;
};

/* update.c: the masters, moments and gradients of a trainer, and its new weights */
MUST_USE bool pieces_make(struct trainer *t, struct error *err);
size_t trainer_weight_bytes(const struct model *m, const struct trainer_settings *s);
/* Elements of state kept here. */
int64_t trainer_n_state(const struct model *m, const struct trainer_settings *s);
/* Elements of state on m's device, where state_bytes[0] has room for them. *stage_bytes is the size
 * of the stage; 0: all elements are on the device. */
int64_t trainer_state_dev(const struct model *m, const struct trainer_settings *s, size_t *stage_bytes);
size_t trainer_grad_bytes(const struct model *m, const struct trainer_settings *s);
size_t trainer_moments_bytes(const struct model *m, const struct trainer_settings *s, int64_t n_dev, enum trainer_state_kind kind);
/* A moment of one byte. Its scales follow its codes in memory. */
struct moment8 {
    uint8_t *code;    // (n_state)
    float *scale;     // (n_state / ADAM8_BLOCK, rounded up)
};
struct moment8 update_moment8(const struct trainer *t, enum trainer_state_kind kind);
int64_t update_n_factor(const struct model *m);
MUST_USE bool state_new(struct trainer *t, struct error *err);
MUST_USE bool grad_new(struct trainer *t, struct error *err);
void update_release(struct trainer *t);
/* Where the trainer has all of its model: the steps of state_here. */
MUST_USE bool here_place(struct model *m, const struct trainer_settings *s, struct error *err);
MUST_USE bool here_grad_clear(struct trainer *t, struct error *err);
MUST_USE bool here_norm(struct trainer *t, struct error *err);
MUST_USE bool here_run(struct trainer *t, const struct trainer_hyper *h, struct error *err);
/* A run of the update. */
struct update_run {
    int64_t flat;         // its first element in the flat order
    int64_t n;            // its elements
    int64_t at;           // its first element among the state that is kept here
    const float *grad;    // (n) device
};
struct update_run update_run_of(const struct trainer *t, int i);
/* Elements of a run whose state is on the device. */
int64_t update_run_n_dev(const struct trainer *t, const struct update_run *r);
/* Where the weights of a run are (device), from its element `from` on. */
char *update_weights_at(const struct trainer *t, const struct update_run *r, int64_t from);
/* Elements of this rank's gradient: the whole flat order, or its slots. */
int64_t update_grad_n(const struct model *m, const struct trainer_settings *s);

/* Where gradient, masters and moments are, and what goes by the whole flat order: all of it here
 * (state_here, state.c), or each device of a cut model has those of its slice (state_sliced,
 * slices.c). */
struct state_form {
    bool (*place)(struct model *m, const struct trainer_settings *s, struct error *err);    // trainer_weights_place
    bool (*open)(struct trainer *t, struct error *err);
    void (*close)(struct trainer *t);    // fine after a failed open
    bool (*grad_clear)(struct trainer *t, struct error *err);
    bool (*grad_get)(const struct trainer *t, float *out, struct error *err);
    // The steps of an update: what is not trained gets no gradient; sums of squares of the whole
    // gradient; a device learns the clipping; all runs of all devices; the weights are new.
    bool (*freeze)(struct trainer *t, struct error *err);
    bool (*norm)(struct trainer *t, struct error *err);
    bool (*clip_take)(struct trainer *t, int q, struct error *err);
    bool (*run)(struct trainer *t, const struct trainer_hyper *h, struct error *err);
    bool (*changed)(struct trainer *t, struct error *err);
    // As their namesakes of state.h.
    bool (*get)(const struct trainer *t, enum trainer_state_kind kind, float *out, struct error *err);
    bool (*set)(struct trainer *t, enum trainer_state_kind kind, const float *in, struct error *err);
    bool (*adam_reset)(struct trainer *t, struct error *err);
    bool (*hash)(const struct trainer *t, uint64_t *hash, struct error *err);
    // m is t's model or its reference. Its weights go out to, or in from, host memory of
    // model_weight_bytes.
    bool (*weights_get)(const struct trainer *t, struct model *m, void *out, struct error *err);
    bool (*weights_set)(const struct trainer *t, struct model *m, const void *in, struct error *err);
    // The reference becomes (1 - share) times itself plus share times the weights.
    bool (*blend)(struct trainer *t, double share, struct error *err);
};
extern const struct state_form state_here, state_sliced;
const struct state_form *state_form_of(const struct model *m);

/* keep.c */
/* Does a rank keep only its shards of the model's weights? It does with zero_stage 3, unless an
 * adapter is trained, which is small. */
bool trainer_keeps_shards(const struct model *m, const struct trainer_settings *s);
/* Elements of all of rank 0's shards, which are the longest. */
int64_t keep_most(const struct model *m, int n_rank);
/* Memory of a kind of state, on the ranks laid out alike: the first n_dev elements on the device, the
 * others in the host's. */
struct shards_at {
    const void *dev, *host;    // this rank's
    int64_t n_dev;
    size_t e;       // bytes of an entry
    int64_t per;    // elements that one entry is of: 1, or ADAM8_BLOCK, at whose multiples shards begin
};
/* What one of several ranks keeps of masters, moments and weights. Each form is one table in keep.c:
 * everything; its shards of masters and moments; its shards of the weights too. */
struct keep_form {
    bool shards;                        // the others may touch masters and moments; without, the gradient
    const struct keep_form *weights;    // how the weights are kept: by this form, or everything
    // Elements of state, bytes of the weights, and trainer_weights_place, before there is a trainer.
    int64_t (*n_state)(const struct model *m, const struct trainer_settings *s);
    size_t (*weight_bytes)(const struct model *m, const struct trainer_settings *s);
    bool (*place)(struct model *m, const struct trainer_settings *s, struct error *err);
    int (*n_run)(const struct trainer *t);                       // trainer_n_run
    struct update_run (*run)(const struct trainer *t, int i);    // update_run_of
    // Memory of the host for each kind of state, `each` bytes.
    bool (*host_new)(struct trainer *t, size_t each, const char *const what[STATE_N], struct error *err);
    // Bring together what all ranks have at s, to out, in the flat order. out NULL: this rank only gives.
    bool (*gather)(const struct trainer *t, const struct shards_at *s, void *out, struct error *err);
};
extern const struct keep_form keep_all, keep_shards, keep_weights;
const struct keep_form *keep_form_of(const struct model *m, const struct trainer_settings *s);

/* slices.c */
int64_t slices_stage_n(const struct model *m);
/* Sums of squares. own: of the pieces that this rank makes among several, else of all pieces. */
MUST_USE bool slices_norm(struct trainer *t, bool own, struct error *err);

/* reference.c: ref, on t's device, becomes (1 - share) times itself plus share times t's
 * weights. */
MUST_USE bool reference_blend(const struct trainer *t, struct model *ref, double share, struct error *err);

/* step.c: run micro-batches. A gradient that trainer_grad_begin has set is written over by the first
 * of them alone. */
MUST_USE bool trainer_work(struct trainer *t, const struct model_work *w, struct error *err);
/* Begin to pack sequences, which every kind of step does in this way. */
void micro_clear(struct micro *mb);
/* Append a sequence: the tokens a (n_a), then b (n_b). No row of it has a target yet. Returns its
 * first row. */
int64_t micro_seq(struct micro *mb, const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b, float temperature);
struct model_batch micro_batch(const struct micro *mb);

/* step_begin.c: rows that a sample takes in a micro-batch where it shares none. */
int64_t item_rows(const struct item *it);
/* Packed tokens that a micro-batch of this step may have. */
int64_t micro_budget(const struct trainer *t, const struct trainer_hyper *h);
/* The advantage of a sample's token k in the loss: the one that came with the group as it is, or the
 * one made of rewards. */
double token_advantage(const struct trainer *t, const struct item *it, int64_t k, const struct trainer_hyper *h);
/* The advantage of its token k with ADV_BATCH before normalisation. The penalty uses the recorded
 * log-probs, so it has no gradient. */
double ppb_advantage(const struct trainer *t, const struct item *it, int64_t k, const struct trainer_hyper *h);

/* frozen.c: make t's table of what is not trained, if its settings name layers. */
MUST_USE bool frozen_make(struct trainer *t, struct error *err);
