/* update.h - a trainer's gradient, and the update that makes new weights of it
 *
 * For ranks.h, which exchanges with other ranks what is here, and for measurements. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "workers/engine/pass/pass.h"
#include "workers/engine/trainer/loss.h"
#include "workers/engine/trainer/trainer.h"

struct mem_handle;

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
/* Copy the gradient out to host memory of trainer_grad_n floats. */
MUST_USE bool trainer_grad_get(const struct trainer *t, float *out, struct error *err);
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
