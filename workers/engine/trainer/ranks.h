/* ranks.h - one optimizer step shared by several ranks: data parallel, with the bytes of one rank
 *
 * Every rank has the whole batch's prompts and all the weights, or, of zero_stage 3, its shards of them and for a while the layers it
 * computes with. The batch is cut into micro-batches without regard to the ranks (cut.h), G = grad_group of them in a row are a group,
 * and of R ranks, rank i mod R runs group i, in round i div R. A rank adds the gradients of a group's micro-batches up where they are
 * made. Every rank adds the groups' sums of each round to its shards of the whole sum, in rank order and piece by piece as backward passes
 * finish them (exchange.h), so that the sum is ((s0 + s1) + s2) + ... over the groups in their order, each s (g0 + g1) + ... over its
 * micro-batches: the same bytes for any R, and for one rank, which adds in place, up to G - 1 times in a second place. With G > 1 each rank
 * has a place for the whole gradient at any zero_stage, and a Gth of the bytes travels, over links in a host and between hosts alike: no
 * dealing by hosts is needed, nor must G suit their sizes. Its price is that a round has R G micro-batches.
 * A rank without a group in the last round gives nothing. Then each makes the new weights of its shards and sends them to
 * the others (zero_stage 1 and 2), or keeps them for all (3), or all get the whole sum and make the same update (0); weights of which
 * every rank has all are compared by hash.
 * Groups without a finite gradient are found and left out by every rank alike (blame.h), since all look at the whole batch and at the same
 * sums.
 * Sums of metrics go the same way. Other bytes come from another batch, another token budget, or another kind of device.
 *
 * A rank may be a team of several devices (team.h). Then each device exchanges the gradient and the weights of its slice with the same
 * device of the other ranks, by a meeting of its own and beside the others; only the norm is of the whole flat order, whose pieces are put
 * together from all slices' shards, by each rank some of them.
 *
 * The team may also be the stages of a pipeline, whose layers' gradients come in the pipeline's order; of a tensor that the embedding and the
 * head share the sum comes some micro-batches late, on every rank alike; what a group that the batch's end cuts short has made too early is
 * held back until its turn.
 *
 * The ranks are processes that have met (ranks_new), or one process plays all of them in turn (ranks_new_here): the step is the
 * same code, but for gathering and adding, and that a process's rounds may overlap. What holds for the one, tests show with the other. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/record/group.h"
#include "workers/engine/trainer/loss.h"

struct collective;    // kernels/collective/collective.h
struct extents;       // workers/engine/model/extent.h
struct model;
struct ranks;
struct trainer;

/* The name of a meeting of the trainers (collective_call, collective_join): of a round that the controller has numbered, and of one of
 * the devices that each of them has. */
void ranks_name(int64_t round, int device, char *out, size_t size);
/* This process is one rank: c (trainer_n_device) are its ends of the meetings, a device's each, and t was made for so many ranks
 * (settings.n_rank). Borrows all until ranks_free. All ranks call it. NULL: see err, as of ranks_step. */
struct ranks *ranks_new(struct trainer *t, struct collective *const *c, struct error *err);
/* This process plays all n ranks: t[r] is rank r's trainer, made for n ranks; borrowed until ranks_free. */
struct ranks *ranks_new_here(struct trainer *const *t, int n, struct error *err);
void ranks_free(struct ranks *r);    // NULL is fine
/* Fill a whole model (same shape, device) with the weights as they are now, after the trainers' last step: of zero_stage 3 from all
 * ranks. */
MUST_USE bool ranks_weights_get(struct ranks *r, struct model *into, struct error *err);
/* Where the same weights are, in all ranks' shards (zero_stage 3, ranks that reach each other's memory, of at most EXTENT_PART_MAX devices in
 * all), for this process's first device and, by the parts' handles, for others. Without the other ranks: between two steps of this one. They
 * stay until ranks_weights_let_go, which must come before the next step, or ranks_free: a rank that leaves before waits for it, but not long.
 * *from is r's. Once more is fine; it says whether the others are there still (ERR_CLOSED). */
MUST_USE bool ranks_weights_hold(struct ranks *r, const struct extents **from, struct error *err);
void ranks_weights_let_go(struct ranks *r);    // nobody reads them, or begins to; this process's device is idle on return
bool ranks_weights_are_held(const struct ranks *r);
/* A hash of all weights; all ranks call it. */
MUST_USE bool ranks_hash(struct ranks *r, uint64_t *hash, struct error *err);
/* As trainer_step, with the same arguments on every rank. ERR_CLOSED, ERR_TIMEOUT: another rank has gone, or does not come. After
 * any failure the caller leaves the collective, which lets the others go, and its weights are not to be used. Other weights than
 * another rank's are ERR_INTERNAL. */
MUST_USE bool ranks_step(struct ranks *r, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h, double *metric,
                         struct error *err);
/* What the last step of ranks_step, with metrics, has cost each rank. */
struct ranks_cost {
    double idle_s;       // it stood still for ranks that had not computed their part
    double exposed_s;    // and for gradients and weights on their way
};
int ranks_costs(const struct ranks *r, const struct ranks_cost **cost);    // returns how many; of one rank's process there are none: 0 s
