/* trainer.h - rollout groups in, new weights out: one optimizer step of the algorithms of loss.h
 *
 * The trainer belongs to the thread that drives its device. A step is the same whether one rank
 * makes it or several do. ranks.h puts its parts together:
 *
 *   trainer_begin       advantages, and the cut of the whole batch into micro-batches
 *   trainer_references  log-probs of micro-batches under the reference, where there is one
 *   trainer_micros      forward and backward of micro-batches, added to the gradient (flat, fp32)
 *   trainer_apply       global clip, AdamW, new weights
 *
 * trainer_step does all four for one rank. trainer_begin gives every rank the same cut. Every scale
 * (samples, loss tokens, advantage moments) is that of the whole batch.
 *
 * The order of the gradient's sum is fixed. grad_group micro-batches in a row form a group. Each
 * micro-batch's gradient g is summed up from 0, a group's sum is s = (g0 + g1) + ..., and the
 * gradient is ((s0 + s1) + s2) + .... So its bytes depend on the batch, the token budget, the size
 * of a group and the kind of device, and not on the number of ranks.
 *
 * A step allocates only what grows with the largest batch so far. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/ops.h"    // SUM_PARTS_MAX
#include "protocol/base/error.h"
#include "protocol/record/group.h"
#include "protocol/record/histogram.h"
#include "workers/engine/trainer/loss.h"

struct device;
struct mem_handle;
struct model;
struct model_grad;
struct trainer;

#define ZERO_MAX 3    // highest zero_stage
/* In the order of the choices of the setting 'optimizer'. */
enum optimizer {
    OPTIMIZER_ADAMW,         // AdamW with fp32 moments
    OPTIMIZER_ADAMW_8BIT,    // AdamW with moments of one byte (ops.h, adamw8)
    OPTIMIZER_ADAFACTOR,     // Adafactor without a first moment (ops.h)
};
/* What is fixed for the life of a trainer. */
struct trainer_settings {
    // Most packed tokens of one micro-batch. Activations are sized by it. A longer sample is an
    // error when it arrives.
    int64_t token_budget_max;
    // Adafactor keeps sums over whole tensors and needs zero_stage 0. Only AdamW goes with offload.
    enum optimizer optimizer;
    double adam_beta1, adam_beta2, adam_eps;
    // Layers that are trained (layers_parse), without embedding, final norm and head; "":
    // everything.
    char layers[256];
    bool recompute_block;    // keep only block inputs: less memory, a third more work
    bool keep_more;          // keep what the backward pass else computes again: the same bits
    // Compute the prompt of samples of a group that run together once (model_batch.prefix). That is
    // less work, and the gradient's bits are others.
    bool share_prompts;
    bool offload;    // masters and moments that state_bytes has no room for are in host memory
    // With offload: memory for masters, moments and the stage that the others pass through. One
    // entry per device, in the order of team_slice. Ranks that keep only their shards have equal
    // entries.
    size_t state_bytes[SUM_PARTS_MAX];
    // (device, trainer_memory's activation bytes) room for activations, borrowed; others use it
    // between steps. NULL: the trainer takes its own.
    void *scratch;
    int n_rank, rank;    // ranks that share a step (ranks.h), and this one's number; n_rank 0: 1
    // Devices that slices cut this rank's model over (model_sliced_new); 0: 1. Each device has its
    // slice's weights, gradient, masters and moments. More than one device needs AdamW and takes no
    // scratch.
    int n_team;
    // Stages that layers cut this rank's model into (model_staged_new); 0: 1. With n_team each
    // stage is such a team. With one device per stage 8-bit AdamW is possible too.
    int n_stage;
    // What each of several ranks keeps only its shards of (ZeRO, arXiv 1910.02054): 0 nothing, 1
    // masters and moments, 2 the gradient too, 3 the weights too. The weights' bytes are the same.
    int zero_stage;
    // Micro-batches in a row whose gradients are added up before they join the sum; 0: 1. Above 1 a
    // rank keeps a whole gradient for them at any zero_stage, and a rank that is alone keeps two.
    int grad_group;
    int n_rank_host;    // ranks with equal rank / n_rank_host share a host (statistics); 0: all do
    // Run samples without a gradient too (advantage or weight 0), for their metrics. The gradient
    // is the same without them.
    bool run_all;
};
/* Adam as ColossalChat sets it: betas 0.9, 0.999, eps 1e-8; a budget of 4096 tokens. */
#define TRAINER_SETTINGS_DEFAULT                                                                                                           \
    ((struct trainer_settings){ .token_budget_max = 4096, .adam_beta1 = 0.9, .adam_beta2 = 0.999, .adam_eps = 1e-8, .share_prompts = true })
/* What a micro-batch's forward pass adds up: all doubles. Fields ending in _max merge by maximum,
 * the others by sum. Merged in the order of the micro-batches they are the same bytes for any
 * number of ranks. */
struct trainer_sums {
    double loss;                       // divided by the batch's counts: the sum is the loss
    double kl;                         // sum over tokens; 0 without a reference
    double entropy;                    // sum over tokens
    double n_sample;                   // samples run forward
    double n_tok;                      // their tokens
    double n_known_tok;                // tokens that came with a log-prob
    double n_clip_low, n_clip_high;    // tokens without gradient because clipped
    double ratio;                      // sum over tokens
    double ratio_max;
    // Largest |logp now - logp when sampled| among groups that the present weights sampled: 0.
    double logp_diff_max;
    struct rho_sums rho;    // of the off-policy correction; zeros without one
    double n_skipped;       // samples dropped by skip_threshold
    double age;             // sum over samples of optimizer steps since they were sampled
    double age_max;
    double n_packed_tok;    // prompt and completion tokens of the samples run
    double n_shared_tok;    // prompt tokens that were computed with another sample of the group
    double n_micro;         // micro-batches
    // Sums over micro-batches and layers with experts, of which there are n_expert_layer:
    double n_expert_layer;
    double expert_busiest;    // largest share of the rows that one expert has
    double expert_idle;       // share of the experts that have none
    double expert_entropy;    // of the rows over the experts, divided by the logarithm of their number
};
void trainer_sums_merge(struct trainer_sums *sum, const struct trainer_sums *part);

/* A step's numbers from the sums over all micro-batches and from all groups consumed since the last
 * step (those outside the filter too). Writes the trainer's own entries (BY_TRAINER of
 * protocol/settings/metrics.h's table) into metric (METRIC_N), except M_GRAD_NORM and times, and nothing
 * else. A mean over tokens is NAN when no token was run. */
void trainer_metrics_make(double *metric, const struct trainer_sums *sums, const struct group *const *groups, int64_t n_group,
                          const struct trainer_hyper *h);

/* How the samples of these groups are spread, into h (HISTOGRAM_N), as histogram.h's table names
 * it. A sample is right when its ans_acc is above a half. False: no memory. */
MUST_USE bool trainer_histograms_make(struct histogram *h, const struct group *const *groups, int64_t n_group,
                                      const struct trainer_hyper *hyper, struct error *err);

/* What a trainer takes, in bytes. */
struct trainer_memory {
    size_t weight;        // the trained weights; zero_stage 3: what stays of them
    size_t activation;    // taken from settings.scratch when that is given
    size_t gradient;      // several ranks: with the shards of the sum and the stage for the others'
    size_t state;         // masters and moments on the device, and their stage
    size_t host;          // masters and moments in pinned host memory
};
/* What a trainer of m with s will take of its device; if several, of the first one. */
void trainer_memory(const struct model *m, const struct trainer_settings *s, struct trainer_memory *out);
/* What it will take of device q of n_stage times n_team. All slices of a team count as its first
 * one, which is the largest. */
void trainer_memory_of_device(const struct model *m, const struct trainer_settings *s, int q, struct trainer_memory *out);
/* What it will take of the first device of stage q. */
void trainer_memory_of_stage(const struct model *m, const struct trainer_settings *s, int q, struct trainer_memory *out);
/* Devices that the model of such a trainer is cut over; 1: it is whole. */
static inline int trainer_devices(const struct trainer_settings *s)
{
    return (s->n_team > 1 ? s->n_team : 1) * (s->n_stage > 1 ? s->n_stage : 1);
}
/* Is the model of such a trainer cut over several devices? */
static inline bool trainer_is_cut(const struct trainer_settings *s)
{
    return trainer_devices(s) > 1;
}
/* Does a rank keep only its shards of the model's weights? It does with zero_stage 3, unless an
 * adapter is trained, which is small. */
bool trainer_keeps_shards(const struct model *m, const struct trainer_settings *s);
/* Put the model's weights where the zero_stage wants them, as trainer_new does first: move them,
 * keep shards of them, or bring the part that stays here, where the weights are elsewhere. For a
 * caller that takes other memory in between. */
MUST_USE bool trainer_weights_place(struct model *m, const struct trainer_settings *s, struct error *err);
/* Make a trainer of model. Takes all memory: masters, moments, gradient, activations;
 * trainer_memory says how much beforehand. NULL: see err.
 *
 * Borrows model and ref until trainer_free. It changes model's weights. ref NULL: there is no
 * reference, and beta must stay 0. ref changes only with ref_every.
 *
 * With zero_stage 1 and 2 the weights move to memory that other ranks may write (model_share). With
 * 3 the model keeps this rank's shards only (model_keep), and cannot run without the other
 * ranks. */
struct trainer *trainer_new(struct model *model, struct model *ref, const struct trainer_settings *s, struct error *err);
void trainer_free(struct trainer *t);    // NULL is fine
struct model *trainer_model(const struct trainer *t);
int64_t trainer_version(const struct trainer *t);    // optimizer steps done
void trainer_version_set(struct trainer *t, int64_t version);
/* The next update is number `update` (from 0) of the step that makes version + 1. */
void trainer_update_set(struct trainer *t, int64_t version, int64_t update);

/* All of one step on one rank. metric (METRIC_N; NULL: not wanted) is filled as by
 * trainer_metrics_make, with M_GRAD_NORM, M_TRAIN_TOK_PER_S and M_TRAIN_SHARED. Groups that no
 * finite gradient can be made of are left out (blame.h), and the weights are those of the step
 * without them. ERR_DATA: the weights themselves give no finite gradient. On failure the weights
 * are unchanged. */
MUST_USE bool trainer_step(struct trainer *t, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h,
                           double *metric, struct error *err);
/* A group that a step has left out, and why. */
struct left_out {
    const struct group *group;
    char why[256];
};
/* What the last step has left out, each group once. Returns how many. *left is the trainer's, until
 * the next step. */
int64_t trainer_left_out(const struct trainer *t, const struct left_out **left);
/* Begin a step. groups are the whole batch; they are borrowed until its gradient is made. ERR_DATA,
 * ERR_SHAPE: a sample is at fault, on every rank alike; err names its item. */
MUST_USE bool trainer_begin(struct trainer *t, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h,
                            struct error *err);
int64_t trainer_n_micro(const struct trainer *t);    // micro-batches of the batch that was begun
/* Micro-batches of the batch that are run under the reference; 0: there is no penalty. */
int64_t trainer_n_reference(const struct trainer *t);
/* The micro-batches of the batch that a rank runs: `run` in a row from `first` on, then `run` from
 * first + every, and so on, n of them. A model in stages works on several at once. */
struct micro_series {
    int64_t first, run, every, n;
    // Micro-batches of one token with a gradient of 0, run after the n others. A rank without a
    // micro-batch in the last round runs them. So it asks for the same pieces of kept weights as
    // the other ranks, which wait for its shards.
    int64_t n_none;
};
static inline int64_t micro_of(const struct micro_series *s, int64_t i)    // the i-th of them
{
    return s->first + i / s->run * s->every + i % s->run;
}
/* Run micro-batches under the reference, which trainer_micros needs on the same rank. part (n) gets
 * what the tokens of each micro-batch add to the batch's sums of token advantages (ADV_BATCH). The
 * caller then gives every rank the parts of all micro-batches, in their order
 * (trainer_norm_more). */
MUST_USE bool trainer_references(struct trainer *t, const struct trainer_hyper *h, const struct micro_series *of, struct trainer_norm *part,
                                 struct error *err);
void trainer_norm_more(struct trainer *t, const struct trainer_norm *part);
/* Run forward and backward of each micro-batch, in their order. Each one is added to the gradient
 * in one addition per element. part is (n). */
MUST_USE bool trainer_micros(struct trainer *t, const struct trainer_hyper *h, const struct micro_series *of, struct trainer_sums *part,
                             struct error *err);
/* Returns how many stages this rank's model has; 0: it is in none. *idle_s is the trainer's:
 * seconds that each stage stood still for the others, as last measured. */
int trainer_stages(const struct trainer *t, const double **idle_s);
/* Take the seconds that trainer_stages shows. Waits for the stages' devices, and begins to measure
 * again. */
MUST_USE bool trainer_stages_measure(struct trainer *t, struct error *err);
MUST_USE bool trainer_grad_clear(struct trainer *t, struct error *err);
/* Begin a gradient that n_micro micro-batches are added up in. The first one is written over what
 * is there; with none it is cleared. */
MUST_USE bool trainer_grad_begin(struct trainer *t, int64_t n_micro, struct error *err);
/* Run all micro-batches on this rank alone. Sets the gradient, and does not add to an earlier
 * one. */
MUST_USE bool trainer_grad(struct trainer *t, const struct trainer_hyper *h, struct trainer_sums *sums, struct error *err);
int64_t trainer_grad_n(const struct trainer *t);    // floats: model_n_flat
/* Devices that the trainer's model is cut over; 1: it is whole. Each slice has a trainer of its
 * own, which knows its parts and its runs; t itself is the whole's. Several ranks have equal teams,
 * and each device exchanges what its slice has with the same device of the other ranks. */
int trainer_n_device(const struct trainer *t);
/* The trainer of device q, t's. With a whole model device 0's is t. */
struct trainer *trainer_of_device(struct trainer *t, int q);
/* What the trainer of one device adds up. If it was made for several ranks, also what they
 * exchange.
 *
 * The flat order is cut into pieces (model_piece), and each piece into shards (collective_shard),
 * one for each rank. A rank that is alone has whole pieces as shards. Pointers are device memory
 * unless they say otherwise, and last until trainer_free. */
struct trainer_parts {
    int n_piece;
    const int64_t *piece_n;      // (n_piece) elements of each piece
    const int64_t *piece_at;     // (n_piece) where a piece begins in the flat order
    const int64_t *own_n;        // (n_piece) elements of this rank's shard of a piece
    const int64_t *own_first;    // (n_piece) where that shard begins in its piece
    const int64_t *own_at;       // (n_piece) where that shard begins among all shards of this rank
    float *sum;                  // (n_sum) this rank's shards of the sum
    int64_t n_sum;               // elements of sum: all own_n together
    int late;                    // micro-batches by which piece 0 is late (model_late_piece)
    // This rank's gradient of a group: in the flat order, or in n_slot slots. A rank that is alone
    // has it with grad_group above 1, else NULL.
    float *grad;
    int n_slot;        // slots of grad that hold a piece each; 0: grad is in the flat order
    int64_t slot_n;    // elements of a slot
    float *stage;      // (exchange_stage_n) for what others give
    // With zero_stage 3: this rank's shards of the weights, in memory of their own that the others
    // may touch; else NULL.
    void *weights;
    // Sums of squares of blocks of SUMSQ_BLOCK elements. A team's first device has those of the
    // whole flat order.
    double *norm_part;
    const int64_t *part_at;    // (n_piece) where the sums of a piece's blocks begin in norm_part
    // What the other ranks may touch: stage and norm_part; with zero_stage 0 grad, else masters and
    // moments; in a team also sum.
    void *share;
    size_t share_bytes;    // the same on all ranks
    const struct mem_handle *share_handle;
    // Host memory that the other ranks may touch (host_share_new): the masters and moments of this
    // rank's shards that are there; or NULL.
    void *host;
    size_t host_bytes;
    const struct mem_handle *host_handle;
};
struct trainer_parts trainer_parts(const struct trainer *t);
int trainer_zero(const struct trainer *t);          // zero_stage; 0 when alone
int trainer_grad_group(const struct trainer *t);    // 1 or more
int trainer_n_rank_host(const struct trainer *t);
/* Say where backward passes add the gradient of device q. The caller exchanges that gradient with
 * the other ranks. idle(to->ctx) is called while the device works; NULL: nothing. to is copied, its
 * ctx borrowed. */
void trainer_grad_goes(struct trainer *t, int q, const struct model_grad *to, bool (*idle)(void *ctx, struct error *err));
/* How this rank reaches the others' shares. Ranks that reach each other's memory have peer; ranks
 * that are apart have first and collect, which all of them call. */
struct trainer_reach {
    bool (*begin)(void *ctx, struct error *err);    // before the others' memory is read
    void (*end)(void *ctx);                         // after it
    // Where rank `rank` has what this rank has at `mine`.
    void *(*peer)(void *ctx, const void *mine, int rank);
    // Every rank q above 0 sends size_bytes[q] bytes from mine to the first rank. There they go to
    // place q - 1 of the stage, whose places are `each` bytes long. All of it is device memory.
    bool (*first)(void *ctx, const void *mine, const size_t *size_bytes, void *stage, size_t each, struct error *err);
    // Rank `at` gets a whole piece of the sum, from the shards of all.
    bool (*collect)(void *ctx, int piece, int at, float *to, struct error *err);
    void *ctx;
};
/* Let the trainer of a device reach the other ranks. reach is copied; NULL: the other ranks are not
 * there any more. trainer_state_get with a zero_stage above 0 needs it, and so does the norm of a
 * team's gradient. */
void trainer_reaches(struct trainer *t, const struct trainer_reach *reach);
struct device *trainer_device(const struct trainer *t);
/* Copy the gradient out to host memory of trainer_grad_n floats. */
MUST_USE bool trainer_grad_get(const struct trainer *t, float *out, struct error *err);
/* Call changes(ctx) in each update, when all of its gradient is there and before a weight changes.
 * NULL: nothing. */
void trainer_changes_set(struct trainer *t, void (*changes)(void *ctx), void *ctx);
/* Make that call now. A caller of trainer_apply or of its parts makes it. */
void trainer_changes(const struct trainer *t);
/* Clip, AdamW, new weights, and version + 1, for a rank that is alone. *grad_norm is the norm
 * before clipping. A norm that is not finite is ERR_DATA and changes nothing. The device may still
 * be at the new weights on return. What it is asked for next comes after them, and others may read
 * them after a device_sync. A whole step (trainer_step, trainer_sft_step) ends with one. */
MUST_USE bool trainer_apply(struct trainer *t, const struct trainer_hyper *h, double *grad_norm, struct error *err);
/* The first half of trainer_apply: the gradient's norm. */
MUST_USE bool trainer_norm_alone(struct trainer *t, const struct trainer_hyper *h, double *grad_norm, struct error *err);
/* The second half: the update, by a gradient whose norm is known. */
MUST_USE bool trainer_apply_alone(struct trainer *t, const struct trainer_hyper *h, struct error *err);
/* trainer_apply in parts, for several ranks. In this order:
 *
 *  1. trainer_norm_own makes the sums of squares of this rank's shards, which the caller spreads.
 *     In a team every device of every rank makes trainer_freeze first, and then trainer_norm_team
 *     makes the sums of this rank's pieces.
 *  2. trainer_norm_all makes the norm of all sums.
 *  3. trainer_apply_begin, and trainer_run_apply for each run, on each device's trainer. The caller
 *     spreads the new weights of a run that has not all of them (trainer_run_weights).
 *  4. trainer_apply_end. */
MUST_USE bool trainer_norm_own(struct trainer *t, struct error *err);
MUST_USE bool trainer_norm_team(struct trainer *t, struct error *err);
int trainer_norm_rank(const struct trainer *t, int piece);    // the rank that makes a piece's sums
/* Clear the gradient of what is not trained, on the trainer of a device. trainer_norm_own does it
 * itself. */
MUST_USE bool trainer_freeze(struct trainer *t, struct error *err);
/* In place of step 1, where every rank has the whole gradient: the sums of squares of all of it. */
MUST_USE bool trainer_norm_whole(struct trainer *t, struct error *err);
/* ERR_DATA with a *grad_norm that is not finite: the gradient is at fault, on every rank alike. */
MUST_USE bool trainer_norm_all(struct trainer *t, const struct trainer_hyper *h, double *grad_norm, struct error *err);
/* Call it before device q's first run, on the thread that drives the device. t is the whole's
 * trainer. */
MUST_USE bool trainer_apply_begin(struct trainer *t, int q, struct error *err);
int trainer_n_run(const struct trainer *t);    // runs of a device's trainer
/* Returns the weights (device) that a run sets. */
void *trainer_run_weights(const struct trainer *t, int run, size_t *size_bytes);
MUST_USE bool trainer_run_apply(struct trainer *t, const struct trainer_hyper *h, int run, struct error *err);
MUST_USE bool trainer_apply_end(struct trainer *t, struct error *err);

/* Log-probs of token[1..n) of one or more sequences under the model, by the training path. logp is
 * (n_tok - n_seq): for each sequence its tokens from the second on. temperature is (n_seq). entropy
 * has logp's shape, and may be NULL. */
MUST_USE bool trainer_logprobs(struct trainer *t, const int32_t *token, const int64_t *seq_len, const float *temperature, int64_t n_seq,
                               float *logp, float *entropy, struct error *err);

/* A sequence of a supervised step. */
struct sft_seq {
    const int32_t *token;    // (n_tok)
    const float *weight;     // (n_tok) weight of a token's loss given those before; 0: prompt
    int64_t n_tok;
};
/* Supervised step on packed sequences. The loss is sum(weight * -logp) / sum(weight). A sequence's
 * first token has none. apply false: only measure the loss. */
MUST_USE bool trainer_sft_step(struct trainer *t, const struct sft_seq *seq, int64_t n_seq, const struct trainer_hyper *h, bool apply,
                               double *loss, double *n_loss_tok, double *grad_norm, struct error *err);

/* Move the reference at the end of a step, after the trainer's version is set. Every ref_every
 * steps the reference becomes (1 - ref_share) times itself plus ref_share times the policy, in the
 * weights' type (fp32 inside, rounded once). These are open-instruct's ref_policy_update_freq and
 * alpha; ref_share 1 is TRL's sync of the reference. All ranks call it. Without a reference nothing
 * happens. */
MUST_USE bool trainer_reference_step(struct trainer *t, const struct trainer_hyper *h, struct error *err);
/* Has the reference changed since it was loaded? Then a checkpoint keeps it. */
bool trainer_reference_moved(const struct trainer *t);
/* Copy the reference out to, or in from, host memory of model_weight_bytes. Setting it without a
 * reference does nothing. */
MUST_USE bool trainer_reference_get(const struct trainer *t, void *out, struct error *err);
MUST_USE bool trainer_reference_set(struct trainer *t, const void *in, struct error *err);

/* Parse which of n layers a text like "20-31" or "0-3,28" names, into in (n); "" names all.
 * Atropos' --train-layer-indices. */
MUST_USE bool layers_parse(const char *text, int64_t n, bool *in, struct error *err);

/* State for checkpoints (checkpoint.h): the fp32 masters and both moments, in the order of the
 * table of tensors, whatever the ranks and the zero_stage. 8-bit moments are given as the floats
 * that they stand for; set from these floats they are the same bytes again. Adafactor's second
 * moment is each tensor's rows, then its columns. */
enum trainer_state_kind {
    STATE_MASTER,
    STATE_MOMENT1,
    STATE_MOMENT2,
    STATE_N,
};
/* Floats of a kind of state; 0: the optimizer has none. */
int64_t trainer_state_n(const struct trainer *t, enum trainer_state_kind kind);
/* Copy state out to host memory of trainer_state_n floats. Where trainer_gives_first, all ranks
 * call it, and only the first one gets the state; the others pass out NULL. ERR_CLOSED: the other
 * ranks, which have the other shards, are gone. */
MUST_USE bool trainer_state_get(const struct trainer *t, enum trainer_state_kind kind, float *out, struct error *err);
/* Are the ranks apart (trainer_reach), with shards that only the first rank gets? */
bool trainer_gives_first(const struct trainer *t);
/* Setting the masters also sets the weights. Moments of what is not trained are taken as 0. */
MUST_USE bool trainer_state_set(struct trainer *t, enum trainer_state_kind kind, const float *in, struct error *err);
/* Updates that masters and moments have seen, which Adam's bias correction counts. */
int64_t trainer_adam_step(const struct trainer *t);
void trainer_adam_step_set(struct trainer *t, int64_t n);
/* Forget the moments and start Adam from step 0 (a new stage of supervised training). */
MUST_USE bool trainer_adam_reset(struct trainer *t, struct error *err);
/* Copy the weights out to host memory of model_weight_bytes. With zero_stage 3 they come from all
 * ranks, as in trainer_state_get. */
MUST_USE bool trainer_weights_get(const struct trainer *t, void *out, struct error *err);
/* A hash of the weights, which ranks compare. With zero_stage 3 it is that of this rank's shards,
 * and the sum over the ranks is the hash of the whole. */
MUST_USE bool trainer_hash(const struct trainer *t, uint64_t *hash, struct error *err);
