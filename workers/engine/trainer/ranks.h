/* ranks.h - one optimizer step shared by several ranks: data parallel, with the bytes of one rank
 *
 * Every rank has the prompts of the whole batch and all the weights. With zero_stage 3 it has its
 * shards of the weights and, for a while, the layers it computes with.
 *
 * Which rank runs what. The batch is cut into micro-batches without regard to the ranks (cut.h). G
 * = grad_group of them in a row form a group. With R ranks, rank i mod R runs group i, in round i
 * div R. A rank without a group in the last round gives nothing.
 *
 * The order of the sum. A rank adds up the gradients of a group's micro-batches where they are
 * made. In each round every rank adds the groups' sums to its shards of the whole sum, in rank
 * order and piece by piece, as backward passes finish the pieces (exchange.h). So the sum is ((s0 +
 * s1) + s2) + ... over the groups in their order, and each s is (g0 + g1) + ... over its
 * micro-batches. These are the same bytes for any R. A rank that is alone adds in place, and with G
 * above 1 makes a group's sum in a second place.
 *
 * With G above 1 each rank has room for the whole gradient at any zero_stage. A Gth of the bytes
 * travels, over links in a host and between hosts alike, and G need not suit the hosts' sizes. The
 * price is that a round has R G micro-batches.
 *
 * New weights. With zero_stage 1 and 2 each rank makes the new weights of its shards and sends them
 * to the others. With 3 it keeps them for all. With 0 all ranks get the whole sum and make the same
 * update. Weights that every rank has in whole are compared by hash.
 *
 * Groups without a finite gradient are found and left out by every rank alike (blame.h), since all
 * ranks look at the whole batch and at the same sums. Sums of metrics are merged in the order of
 * the gradients.
 *
 * Other bytes come from another batch, another token budget, another G or another kind of device.
 *
 * A rank may be a team of several devices (team.h). Then each device exchanges the gradient and the
 * weights of its slice with the same device of the other ranks, by a meeting of its own, beside the
 * others. Only the norm is over the whole flat order: each rank puts some of its pieces together,
 * from all slices' shards.
 *
 * The team may also be the stages of a pipeline. Then the gradients of layers come in the
 * pipeline's order. A tensor that embedding and head share has its sum some micro-batches late, on
 * every rank alike. If the end of the batch cuts a group short, pieces of it can be made before
 * their turn; they are held back until then.
 *
 * The ranks are processes that have met (ranks_new), or one process plays all of them in turn
 * (ranks_new_here). The step is the same code, except for gathering and adding; a process's rounds
 * may overlap. So tests show with the one what holds for the other. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/record/group.h"
#include "workers/engine/trainer/loss.h"

struct trainer_sums;
struct collective;    // kernels/collective/collective.h
struct extents;       // workers/engine/model/extent.h
struct model;
struct ranks;
struct trainer;

/* The name of a meeting of the trainers (collective_call, collective_join). round is the
 * controller's number of the meeting, and device the number that the meeting devices have in their
 * ranks. */
void ranks_name(int64_t round, int device, char *out, size_t size);
/* This process is one rank. c (trainer_n_device) has its end of each device's meeting, and t was
 * made for that number of ranks (settings.n_rank). Borrows all until ranks_free. All ranks call it.
 * NULL: see err, which is as of ranks_step. */
struct ranks *ranks_new(struct trainer *t, struct collective *const *c, struct error *err);
/* This process plays all n ranks. t[r] is rank r's trainer, made for n ranks; borrowed until
 * ranks_free. NULL: see err. */
struct ranks *ranks_new_here(struct trainer *const *t, int n, struct error *err);
void ranks_free(struct ranks *r);    // NULL is fine
/* Fill `into`, a whole model of the same shape and device, with the weights after the trainers'
 * last step. With zero_stage 3 they come from all ranks. Where these are apart all of them call it;
 * a rank that wants no weights passes NULL. */
MUST_USE bool ranks_weights_get(struct ranks *r, struct model *into, struct error *err);
/* Say where all weights lie in the ranks' shards, for zero_stage 3 and ranks that reach each
 * other's memory, with at most EXTENT_PART_MAX devices in all. *from is r's. This process's first
 * device can read there; other devices open the parts' handles.
 *
 * The other ranks take no part in the call, which comes between two steps of this one. The weights
 * stay until ranks_weights_let_go, which must come before the next step, or until ranks_free. A
 * rank that leaves before waits for that, but not long.
 *
 * A second call is fine, and says whether the other ranks are still there (ERR_CLOSED). */
MUST_USE bool ranks_weights_hold(struct ranks *r, const struct extents **from, struct error *err);
/* Nobody reads the weights that are held, or begins to. This process's device is idle on return. */
void ranks_weights_let_go(struct ranks *r);
bool ranks_weights_are_held(const struct ranks *r);
/* A hash of all weights; all ranks call it. */
MUST_USE bool ranks_hash(struct ranks *r, uint64_t *hash, struct error *err);
/* As trainer_step, with the same arguments on every rank. ERR_CLOSED, ERR_TIMEOUT: another rank has
 * gone, or does not come. ERR_INTERNAL: this rank has other weights than another one. After any
 * failure the weights are not to be used, and the caller leaves the collective, which lets the
 * other ranks go. */
MUST_USE bool ranks_step(struct ranks *r, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h, double *metric,
                         struct error *err);
/* What the last ranks_step with metrics has cost a rank. */
struct ranks_cost {
    double idle_s;       // its device stood still for ranks that had not computed their part
    double exposed_s;    // its device stood still for gradients and weights on their way
};
/* Returns how many costs there are: one per rank; 0 where one process plays all. *cost is r's. */
int ranks_costs(const struct ranks *r, const struct ranks_cost **cost);

/* ---- one rank that is alone */
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
/* Run all micro-batches on this rank alone. Sets the gradient, and does not add to an earlier
 * one. */
MUST_USE bool trainer_grad(struct trainer *t, const struct trainer_hyper *h, struct trainer_sums *sums, struct error *err);
