/* trainer.h - what trains a model: its memory, its life, and where it stands
 *
 * The trainer belongs to the thread that drives its device. A step, from rollout groups to new
 * weights by the algorithms of loss.h, is the same whether one rank makes it or several do. ranks.h
 * puts its parts together:
 *
 *   step.h       trainer_begin       advantages, and the cut of the whole batch into micro-batches
 *                trainer_references  log-probs of micro-batches under the reference, if there is one
 *                trainer_micros      forward and backward, added to the gradient (flat, fp32)
 *   update.h     trainer_apply       global clip, AdamW, new weights
 *   reference.h  trainer_reference_step
 *
 * trainer_begin gives every rank the same cut. Every scale (samples, loss tokens, advantage moments)
 * is that of the whole batch. supervised.h has steps on given texts, state.h what checkpoints hold.
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

struct device;
struct model;
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
    // Layers that are trained (frozen.h), without embedding, final norm and head; "":
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
    // The reference, when it is a teacher, which may have another shape (borrowed; its weights may be elsewhere where this is for
    // trainer_memory): it gets a run of its own, that keeps block inputs only. Not with n_team or n_stage. NULL: the reference has the
    // model's shape.
    const struct model *teacher;
    int n_rank_host;    // ranks with equal rank / n_rank_host share a host (statistics); 0: all do
    // Run samples without a gradient too (advantage or weight 0), for their metrics. The gradient
    // is the same without them.
    bool run_all;
};
/* Adam as ColossalChat sets it: betas 0.9, 0.999, eps 1e-8; a budget of 4096 tokens. */
#define TRAINER_SETTINGS_DEFAULT                                                                                                           \
    ((struct trainer_settings){ .token_budget_max = 4096, .adam_beta1 = 0.9, .adam_beta2 = 0.999, .adam_eps = 1e-8, .share_prompts = true })
/* What a trainer takes, in bytes. */
struct trainer_memory {
    size_t weight;        // the trained weights; zero_stage 3: what stays of them
    size_t activation;    // of the teacher's run too; taken from settings.scratch when that is given
    size_t gradient;      // several ranks: with the shards of the sum and the stage for the others'
    size_t state;         // masters and moments on the device, and their stage
    size_t host;          // masters and moments in pinned host memory
};
/* What a trainer of m with s will take of its device; if several, of the first one. */
void trainer_memory(const struct model *m, const struct trainer_settings *s, struct trainer_memory *out);
/* What it will take of device q of n_stage times n_team. All slices of a team count as its first
 * one, which is the largest. */
void trainer_memory_of_device(const struct model *m, const struct trainer_settings *s, int q, struct trainer_memory *out);
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
/* Put the model's weights where the zero_stage wants them, as trainer_new does first: move them,
 * keep shards of them, or bring the part that stays here, where the weights are elsewhere. For a
 * caller that takes other memory in between. */
MUST_USE bool trainer_weights_place(struct model *m, const struct trainer_settings *s, struct error *err);
/* Make a trainer of model. Takes all memory: masters, moments, gradient, activations;
 * trainer_memory says how much beforehand. NULL: see err.
 *
 * Borrows model and ref until trainer_free. It changes model's weights. ref NULL: there is no
 * reference, and beta and teacher must stay 0. ref changes only with ref_every.
 *
 * With zero_stage 1 and 2 the weights move to memory that other ranks may write (model_share). With
 * 3 the model keeps this rank's shards only (model_keep), and cannot run without the other
 * ranks. */
struct trainer *trainer_new(struct model *model, struct model *ref, const struct trainer_settings *s, struct error *err);
void trainer_free(struct trainer *t);    // NULL is fine
struct model *trainer_model(const struct trainer *t);
int64_t trainer_version(const struct trainer *t);    // optimizer steps done
void trainer_version_set(struct trainer *t, int64_t version);
struct device *trainer_device(const struct trainer *t);
/* Call changes(ctx) in each update, when all of its gradient is there and before a weight changes.
 * NULL: nothing. */
void trainer_changes_set(struct trainer *t, void (*changes)(void *ctx), void *ctx);
/* Make that call now. A caller of trainer_apply or of its parts makes it. */
void trainer_changes(const struct trainer *t);
/* Returns how many stages this rank's model has; 0: it is in none. *idle_s is the trainer's:
 * seconds that each stage stood still for the others, as last measured. */
int trainer_stages(const struct trainer *t, const double **idle_s);
