/* trainer.h - rollout groups in, new weights out: one optimizer step of the algorithms of loss.h
 *
 * Owned by the consumer's device thread. A step is the same whether one rank makes it or several do; ranks.h puts its parts
 * together:
 *
 *   trainer_begin       advantages, and the cut of the whole batch into micro-batches: the same on every rank
 *   trainer_references  log-probs of micro-batches under the reference, where there is one
 *   trainer_micros      forward and backward of micro-batches, added to the gradient (flat, fp32)
 *   trainer_apply       global clip, AdamW, new weights
 *
 * trainer_step does all four for one rank. Every scale (samples, loss tokens, advantage moments) is of the whole batch, and
 * the gradient is the sum over groups of grad_group micro-batches in their order, ((s0 + s1) + s2) + ..., each s the same sum over its
 * group's micro-batches, (g0 + g1) + ..., and each g summed up from 0: its bytes depend on the batch, the token budget, the size of a
 * group and the kind of device, not on the number of ranks. Nothing is allocated inside a step but what grows with the batch on the first
 * use. */
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
/* AdamW with fp32 moments; with moments of one byte (ops.h, adamw8); Adafactor without a first moment (ops.h). */
enum optimizer {    // in the order of the choices of 'optimizer'
    OPTIMIZER_ADAMW,
    OPTIMIZER_ADAMW_8BIT,
    OPTIMIZER_ADAFACTOR,
};
/* Fixed for the life of a trainer. */
struct trainer_settings {
    int64_t token_budget_max;    // most packed tokens of one micro-batch; activations are sized by it. A longer sample is
                                 // an error when it arrives
    enum optimizer optimizer;    // Adafactor keeps sums over whole tensors: it needs zero_stage 0; and only AdamW goes with offload
    double adam_beta1, adam_beta2, adam_eps;
    char layers[256];        // "": everything is trained, else only these layers (layers_parse), without embedding, final norm and head
    bool recompute_block;    // keep only block inputs and run each block's forward again: less memory, a third more work
    bool keep_more;          // keep what is else computed again in the backward pass from what is kept: more memory, the same bits
    bool share_prompts;      // where samples of a group are run together, its prompt is computed once (model_batch.prefix): less work, and
                             // gradients of other bits
    bool offload;            // masters and moments in host memory, but for what state_bytes have room for; the same bits
    size_t state_bytes[SUM_PARTS_MAX];    // with offload: memory of each of its devices, in the order of team_slice, for masters, moments
                                          // and the stage the others pass through; the same on all ranks that keep their shards only
    void *scratch;       // (device) for activations, of trainer_memory's size, borrowed: others use it between steps. NULL:
                         // its own
    int n_rank, rank;    // ranks that share a step (ranks.h), and which one this is; n_rank 0: 1
    int n_team;     // devices that this rank's model is cut over (model_sliced_new), each with its slice's weights, gradient, masters and
                    // moments; 0: 1. With more only AdamW, and without scratch
    int n_stage;    // devices that this rank's model is cut over by its layers (model_staged_new), likewise; 0: 1. With
                    // n_team each stage is such a team
    int zero_stage;     // what of a step each of several ranks keeps of its shards only (ZeRO, arXiv 1910.02054): 0 nothing,
                        // 1 masters and moments, 2 the gradient too, 3 the weights too. Their bytes are the same
    int grad_group;     // so many micro-batches in a row are added up by themselves; the gradient is the sum of these. Above 1 a rank
                        // keeps a whole gradient for it at any zero_stage, and one that is alone keeps two; 0: 1
    int n_rank_host;    // ranks r with the same r / n_rank_host are on one host, for what is told of bytes; 0: all of them
    bool run_all;       // also run samples whose every token has no gradient (advantage or weight 0), for their
                        // metrics; the gradient is the same without
};
/* Adam as ColossalChat sets it: betas 0.9, 0.999, eps 1e-8; a budget of 4096 tokens. */
#define TRAINER_SETTINGS_DEFAULT                                                                                                           \
    ((struct trainer_settings){ .token_budget_max = 4096, .adam_beta1 = 0.9, .adam_beta2 = 0.999, .adam_eps = 1e-8, .share_prompts = true })
/* What a micro-batch's forward pass adds up: all doubles; fields ending in _max merge by maximum, the others by sum. Merged in
 * the order of the micro-batches they are the same bytes for any number of ranks. */
struct trainer_sums {
    double loss;                       // already divided by the counts of the batch: the sum over micro-batches is the loss
    double kl, entropy;                // sums over tokens; kl 0 without a reference
    double n_sample;                   // samples run forward
    double n_tok;                      // their tokens
    double n_known_tok;                // of these, the ones that came with a log-prob
    double n_clip_low, n_clip_high;    // tokens without gradient because clipped
    double ratio;                      // sum over tokens
    double ratio_max;
    double logp_diff_max;    // largest |logp now - logp when sampled| of groups sampled by the present weights: 0
    struct rho_sums rho;     // of the off-policy correction; zeros without one
    double n_skipped;        // samples dropped by skip_threshold
    double age;              // sum over samples of optimizer steps since they were sampled
    double age_max;
    double n_packed_tok;    // prompt and completion tokens of the samples run
    double n_shared_tok;    // of these, prompt tokens that were computed with another sample of the group
    double n_micro;         // micro-batches
};
void trainer_sums_merge(struct trainer_sums *sum, const struct trainer_sums *part);

/* A step's numbers from what was summed over all micro-batches, and from all the groups consumed since the last step (those
 * outside the filter too): writes the trainer's own of protocol/settings/metrics.h's table (BY_TRAINER) into metric (METRIC_N),
 * but M_GRAD_NORM and times, and nothing else. Without a token run, what is a mean over tokens becomes NAN. */
void trainer_metrics_make(double *metric, const struct trainer_sums *sums, const struct group *const *groups, int64_t n_group,
                          const struct trainer_hyper *h);

/* How the samples of these groups are spread, into h (HISTOGRAM_N): what histogram.h's table names. A sample is right when its ans_acc is
 * above a half. False: no memory. */
MUST_USE bool trainer_histograms_make(struct histogram *h, const struct group *const *groups, int64_t n_group,
                                      const struct trainer_hyper *hyper, struct error *err);

/* What a trainer takes, in bytes. */
struct trainer_memory {
    size_t weight;        // the weights that are trained: the model's own memory, or with zero_stage 3 what is left of it
    size_t activation;    // taken from settings.scratch when that is given
    size_t gradient;      // where ranks share a step with the shards of the sum, and the stage for what the others give
    size_t state;         // masters and moments on the device, and the stage
    size_t host;          // masters and moments in pinned host memory
};
void trainer_memory(const struct model *m, const struct trainer_settings *s,
                    struct trainer_memory *out);    // of several devices: the first
/* The same of device q of n_stage times n_team; of the first of stage q. Of a team's slices the first is the largest, and counts for all. */
void trainer_memory_of_device(const struct model *m, const struct trainer_settings *s, int q, struct trainer_memory *out);
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
/* Does a rank keep only its shards of the model's weights? With zero_stage 3, but where an adapter is trained, which is small. */
bool trainer_keeps_shards(const struct model *m, const struct trainer_settings *s);
/* What trainer_new does to the model's weights first, by the zero_stage: move or cut them, or bring what of them it keeps, where they are
 * elsewhere. For a caller that takes other memory in between. */
MUST_USE bool trainer_weights_place(struct model *m, const struct trainer_settings *s, struct error *err);
/* Borrows model (whose weights it changes) and ref (NULL: none; then beta must stay 0; changed with ref_every) until trainer_free; takes
 * all memory: masters, moments, gradient, activations. trainer_memory tells how much beforehand. With zero_stage 1 and 2 the weights move
 * to memory that other ranks may write (model_share); with 3 the model keeps this rank's shards only (model_keep), and without the others
 * it cannot run. */
struct trainer *trainer_new(struct model *model, struct model *ref, const struct trainer_settings *s, struct error *err);
void trainer_free(struct trainer *t);
struct model *trainer_model(const struct trainer *t);
int64_t trainer_version(const struct trainer *t);    // optimizer steps done
void trainer_version_set(struct trainer *t, int64_t version);
/* The next update is number `update` (from 0) of the step that makes version + 1. */
void trainer_update_set(struct trainer *t, int64_t version, int64_t update);

/* All of one step on one rank; metric (METRIC_N; NULL: not wanted) as trainer_metrics_make, with M_GRAD_NORM,
 * M_TRAIN_TOK_PER_S and M_TRAIN_SHARED. Groups that no finite gradient can be made of are left out of it (blame.h), and the weights are
 * those of the step without them. ERR_DATA: the weights themselves give none. On failure the weights are unchanged. */
MUST_USE bool trainer_step(struct trainer *t, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h,
                           double *metric, struct error *err);
/* What the last step has left out, each group once: n of the groups it was given, and why. Valid until the next step. */
struct left_out {
    const struct group *group;
    char why[256];
};
int64_t trainer_left_out(const struct trainer *t, const struct left_out **left);
/* The parts. groups are the whole batch, and borrowed until its gradient is made. ERR_DATA, ERR_SHAPE: a sample is at fault, on every rank
 * alike; err names its item. */
MUST_USE bool trainer_begin(struct trainer *t, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h,
                            struct error *err);
int64_t trainer_n_micro(const struct trainer *t);        // micro-batches of the batch that was begun
int64_t trainer_n_reference(const struct trainer *t);    // those to be run under the reference: 0 without a penalty
/* Micro-batches of the batch that a rank runs: `run` in a row from first on, then from first + every, ..., n of them. A model in stages
 * works on several at once. */
struct micro_series {
    int64_t first, run, every, n;
    int64_t n_none;    // of a rank without a micro-batch in the last round: after these so many of one token, with a gradient of 0. So it
                       // asks for the same pieces of kept weights as the others, who wait for its shards
};
static inline int64_t micro_of(const struct micro_series *s, int64_t i)    // the i-th of them
{
    return s->first + i / s->run * s->every + i % s->run;
}
/* Run them under the reference, which trainer_micros needs on the same rank. part (n): what the tokens of each add to the batch's sums of
 * token advantages (ADV_BATCH); those of all micro-batches, in their order, are then given to every rank by trainer_norm_more. */
MUST_USE bool trainer_references(struct trainer *t, const struct trainer_hyper *h, const struct micro_series *of, struct trainer_norm *part,
                                 struct error *err);
void trainer_norm_more(struct trainer *t, const struct trainer_norm *part);
/* Forward and backward of each, in their order: added to the gradient in one addition an element. part: (n). */
MUST_USE bool trainer_micros(struct trainer *t, const struct trainer_hyper *h, const struct micro_series *of, struct trainer_sums *part,
                             struct error *err);
/* How many stages this rank's model has (0: it is in none); idle_s: how many seconds each of them stood still for the others, as last
 * measured; the trainer's. Measuring waits for their devices and begins again. */
int trainer_stages(const struct trainer *t, const double **idle_s);
MUST_USE bool trainer_stages_measure(struct trainer *t, struct error *err);
MUST_USE bool trainer_grad_clear(struct trainer *t, struct error *err);
/* Begin a gradient that n_micro micro-batches are added up in: the first is written over what is there, or with none it is cleared. */
MUST_USE bool trainer_grad_begin(struct trainer *t, int64_t n_micro, struct error *err);
/* All micro-batches by this rank alone: sets the gradient (does not add to an earlier one). */
MUST_USE bool trainer_grad(struct trainer *t, const struct trainer_hyper *h, struct trainer_sums *sums, struct error *err);
int64_t trainer_grad_n(const struct trainer *t);    // fp32 elements of the flat gradient: model_n_flat
/* Devices that the trainer's model is cut over; 1: it is whole. Several ranks have equal teams, and each device exchanges what its slice
 * has with the same device of the other ranks: there is a trainer of each slice, which knows its parts and runs, and t itself is the
 * whole's. Device 0 of a whole model: t. */
int trainer_n_device(const struct trainer *t);
struct trainer *trainer_of_device(struct trainer *t, int q);
/* Of a trainer of a device: what it adds up, and of one that was made for several ranks what they exchange. The flat order is cut into
 * pieces (model_piece) and each of them into shards (collective_shard), one a rank. Pointers are device memory and last until
 * trainer_free. */
struct trainer_parts {
    int n_piece;
    const int64_t *piece_n, *piece_at;    // (n_piece) elements; where it begins in the flat order
    const int64_t *own_n, *own_first;     // (n_piece) of this rank's shard; where it begins in its piece
    const int64_t *own_at;                // (n_piece) where it begins among all that are this rank's
    float *sum;                           // (the sum of own_n) this rank's shards of the sum; alone, all of it
    int64_t n_sum;                        // elements of sum
    int late;                             // the gradient of piece 0 comes so many micro-batches late (model_late_piece)
    float *grad;                          // this rank's gradient of a group: the flat one, or of zero_stage 2; alone, NULL without groups
    int n_slot;                           // so many places for a piece each, slot_n elements apart; 0: flat
    int64_t slot_n;
    float *stage;         // (exchange_stage_n) for what others give
    void *weights;        // of zero_stage 3: this rank's shards of the weights, in memory of their own that the others may touch; else NULL
    double *norm_part;    // sums of squares of blocks of SUMSQ_BLOCK elements; of a team the first device's, of the whole flat order,
    const int64_t *part_at;    // (n_piece) piece by piece
    void *share;               // what the others may touch: stage, norm_part, with zero_stage 0 grad, else masters and moments; of a team
                               // sum, too
    size_t share_bytes;        // the same on all ranks
    const struct mem_handle *share_handle;
    void *host;    // the same in host memory (host_share_new): masters and moments of this rank's shards that are there; or NULL
    size_t host_bytes;
    const struct mem_handle *host_handle;
};
struct trainer_parts trainer_parts(const struct trainer *t);
int trainer_zero(const struct trainer *t);          // zero_stage; 0 when alone
int trainer_grad_group(const struct trainer *t);    // 1 or more
int trainer_n_rank_host(const struct trainer *t);
/* Where backward passes add the gradient of device q, of several ranks: given by who exchanges it. ctx is borrowed. */
void trainer_grad_goes(struct trainer *t, int q, const struct model_grad *to, bool (*idle)(void *ctx, struct error *err));
/* How this rank reaches the others' shares, between begin and end. peer: where on another rank lies what lies at `mine` here. Where ranks
 * do not reach each other's memory there is `first` instead, which all of them call: the first rank gets what every other rank q has at
 * mine, size_bytes[q] bytes, at stage + (q - 1) * each; all of it on the devices. And `collect`: rank `at` gets a whole piece of the sum
 * from the shards of all. */
struct trainer_reach {
    bool (*begin)(void *ctx, struct error *err);
    void (*end)(void *ctx);
    void *(*peer)(void *ctx, const void *mine, int rank);
    bool (*first)(void *ctx, const void *mine, const size_t *size_bytes, void *stage, size_t each, struct error *err);
    bool (*collect)(void *ctx, int piece, int at, float *to, struct error *err);
    void *ctx;
};
/* Needed for trainer_state_get with a zero_stage above 0, and for the norm of a team's gradient; of a trainer of a device; copied. NULL:
 * they are not there any more. */
void trainer_reaches(struct trainer *t, const struct trainer_reach *reach);
struct device *trainer_device(const struct trainer *t);
/* Copy the gradient out to host memory of trainer_grad_n floats. */
MUST_USE bool trainer_grad_get(const struct trainer *t, float *out, struct error *err);
/* Call changes(ctx) in each update, when all of its gradient is there and before a weight changes. NULL: nothing. */
void trainer_changes_set(struct trainer *t, void (*changes)(void *ctx), void *ctx);
void trainer_changes(const struct trainer *t);    // the time has come; of those who call trainer_apply or its parts
/* Clip, AdamW, new weights; version + 1, of one rank alone. *grad_norm is the norm before clipping. A norm that is not finite is
 * ERR_DATA and changes nothing. The device may still be at the new weights on return: what it is asked for next comes after them, and
 * others may read them after a device_sync. A whole step (trainer_step, trainer_sft_step) ends with one. */
MUST_USE bool trainer_apply(struct trainer *t, const struct trainer_hyper *h, double *grad_norm, struct error *err);
/* trainer_apply in two steps: the gradient's norm, then the update with a gradient whose norm is known. */
MUST_USE bool trainer_norm_alone(struct trainer *t, const struct trainer_hyper *h, double *grad_norm, struct error *err);
MUST_USE bool trainer_apply_alone(struct trainer *t, const struct trainer_hyper *h, struct error *err);
/* The same in parts, for several ranks: the sums of squares of this rank's shards, to be spread; the norm of all; of each device's trainer
 * AdamW run by run, whose new weights are to be spread where a run is not all of them; and the end. A team's sums are of its pieces
 * (trainer_norm_team), after all ranks have made trainer_freeze and their sums. */
MUST_USE bool trainer_norm_own(struct trainer *t, struct error *err);
MUST_USE bool trainer_norm_team(struct trainer *t, struct error *err);
int trainer_norm_rank(const struct trainer *t, int piece);    // which rank of teams makes that piece's
/* What is not trained has no gradient (trainer_norm_own sees to that itself), before the sums are exchanged; of a trainer of a device. */
MUST_USE bool trainer_freeze(struct trainer *t, struct error *err);
/* Where ranks do not reach each other's memory: the sums of squares of the whole gradient, which each rank has then. */
MUST_USE bool trainer_norm_whole(struct trainer *t, struct error *err);
/* ERR_DATA with a *grad_norm that is not finite: the gradient is at fault, on every rank alike. */
MUST_USE bool trainer_norm_all(struct trainer *t, const struct trainer_hyper *h, double *grad_norm, struct error *err);
/* Before the first run, on the thread that drives device q. */
MUST_USE bool trainer_apply_begin(struct trainer *t, int q, struct error *err);
int trainer_n_run(const struct trainer *t);                                         // of a trainer of a device, and so on
void *trainer_run_weights(const struct trainer *t, int run, size_t *size_bytes);    // what it sets
MUST_USE bool trainer_run_apply(struct trainer *t, const struct trainer_hyper *h, int run, struct error *err);
MUST_USE bool trainer_apply_end(struct trainer *t, struct error *err);

/* Log-probs of token[1..n) of one or more sequences under the model, by the training path. logp is (n_tok - n_seq): for
 * each sequence its tokens from the second on. temperature (n_seq). entropy (same shape) may be NULL. */
MUST_USE bool trainer_logprobs(struct trainer *t, const int32_t *token, const int64_t *seq_len, const float *temperature, int64_t n_seq,
                               float *logp, float *entropy, struct error *err);

/* Supervised step on packed sequences: token, and weight of the loss of each token given those before (0: prompt; the
 * first token of a sequence has none). Loss is sum(weight * -logp) / sum(weight). apply false: only measure it. */
struct sft_seq {
    const int32_t *token;    // (n_tok)
    const float *weight;     // (n_tok)
    int64_t n_tok;
};
MUST_USE bool trainer_sft_step(struct trainer *t, const struct sft_seq *seq, int64_t n_seq, const struct trainer_hyper *h, bool apply,
                               double *loss, double *n_loss_tok, double *grad_norm, struct error *err);

/* The end of a step under h, for which the trainer's version is set: every ref_every steps the reference becomes (1 - ref_share) times
 * itself and ref_share times the policy, in the weights' type (fp32 inside, rounded once). open-instruct's ref_policy_update_freq and
 * alpha; with ref_share 1 it is TRL's sync of the reference. All ranks call it; without a reference nothing happens. */
MUST_USE bool trainer_reference_step(struct trainer *t, const struct trainer_hyper *h, struct error *err);
/* Is the reference no longer what it was loaded as? Then a checkpoint keeps it, as host memory of model_weight_bytes. Setting it without
 * a reference does nothing. */
bool trainer_reference_moved(const struct trainer *t);
MUST_USE bool trainer_reference_get(const struct trainer *t, void *out, struct error *err);
MUST_USE bool trainer_reference_set(struct trainer *t, const void *in, struct error *err);

/* Which of n layers a text like "20-31" or "0-3,28" names, into in (n); "" is all of them. Atropos' --train-layer-indices. */
MUST_USE bool layers_parse(const char *text, int64_t n, bool *in, struct error *err);

/* State for checkpoints (checkpoint.h): the fp32 masters and both moments, in tensor-table order whatever the ranks and the stage, and
 * how many updates they have seen (Adam's bias correction counts them). 8-bit moments are given as the floats that they stand for, and
 * set from these they are the same bytes again. Adafactor's second moment is each tensor's rows, then its columns. */
enum trainer_state_kind {
    STATE_MASTER,
    STATE_MOMENT1,
    STATE_MOMENT2,
    STATE_N,
};
int64_t trainer_state_n(const struct trainer *t, enum trainer_state_kind kind);    // floats; 0: the optimizer has none
MUST_USE bool trainer_state_get(const struct trainer *t, enum trainer_state_kind kind, float *out, struct error *err);
/* Where ranks are apart (trainer_reach) only the first one gets these, and the others call it with out NULL; trainer_weights_get too. */
bool trainer_gives_first(const struct trainer *t);    // are they to?
/* Setting the masters also sets the weights; moments of what is not trained are taken as 0. */
MUST_USE bool trainer_state_set(struct trainer *t, enum trainer_state_kind kind, const float *in, struct error *err);
int64_t trainer_adam_step(const struct trainer *t);
void trainer_adam_step_set(struct trainer *t, int64_t n);
/* Forget the moments and start Adam anew (a new stage of supervised training). */
MUST_USE bool trainer_adam_reset(struct trainer *t, struct error *err);
/* Copy the weights out to host memory of model_weight_bytes. Of zero_stage 3 from all ranks, as trainer_state_get. */
MUST_USE bool trainer_weights_get(const struct trainer *t, void *out, struct error *err);
/* A hash of the weights; what ranks compare. Of zero_stage 3 of this rank's shards: the sum over the ranks is the hash of the whole. */
MUST_USE bool trainer_hash(const struct trainer *t, uint64_t *hash, struct error *err);
