/* ranks_impl.h - what ranks.c shares with the files of its parts */
#pragma once
#include "kernels/collective/collective.h"
#include "kernels/collective/exchange.h"
#include "kernels/ops.h"
#include "workers/engine/model/extent.h"
#include "workers/engine/trainer/ranks.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/trainer/trainer_metrics.h"

#define RANK_MAX COLLECTIVE_RANK_MAX

/* A device of a rank, which exchanges with the same device of the other ranks. */
struct end {
    struct rank *k;
    int index;                // among the rank's devices
    struct trainer *t;        // the device's trainer (trainer_of_device)
    struct collective *c;     // with the other ranks; NULL: all are here
    struct exchange *x;       // of gradients; NULL: all ranks are here, or there is one
    int64_t n_given;          // pieces given, where all ranks are here: says which slot is next
    int64_t n_micro;          // micro-batches that this rank runs in the step
    int64_t *n_made;          // (n_piece) micro-batches whose gradient of a piece has been made
    bool *made;               // (n_piece) a group's sum of a piece is made, and is not given yet
    struct mark **updated;    // (runs of the update) the device is done with a run
    bool held;                // the other ranks' shards are held for readers of all weights
    // (n_rank) where the first device sees the shards of this device's weights. Owned; NULL on the
    // first device itself.
    const void **seen;
};
/* A rank that this process plays. */
struct rank {
    struct ranks *r;
    struct trainer *t;
    int index, n_end;
    struct end end[SUM_PARTS_MAX];
    struct trainer_sums *part;    // (n_part) sums of its micro-batches
    struct trainer_norm *norm;    // (n_part) what they add to the token advantages' sums
};
struct ranks {
    int n_rank;
    int first, n_here;                   // this process plays ranks first .. first + n_here - 1
    struct rank here[RANK_MAX];          // (n_here)
    int64_t n_group;                     // micro-batches of a group (grad_group)
    int64_t n_part;                      // micro-batches that a rank's part and norm have room for
    struct ranks_cost cost[RANK_MAX];    // (n_rank) of the last step
    struct extent_table shards;          // where all ranks' shards are; empty before the first hold
    struct extents held;                 // the same while others may read them; else n is 0
};

/* A function that each device of a rank runs, on the thread that drives the device. */
typedef bool end_fn(struct end *e, void *ctx, struct error *err);
MUST_USE bool ranks_ends_do(struct rank *k, end_fn *fn, void *ctx, struct error *err);
/* Gather what every rank gives, in rank order: mine is (n_here x size_bytes), all is (n_rank x
 * size_bytes). */
MUST_USE bool ranks_gather(struct ranks *r, const void *mine, size_t size_bytes, void *all, struct error *err);

/* ---- ranks_end.c: a device and its counterparts at the other ranks */
/* Let the others reach what they must, and say where backward passes add and weights come from. */
MUST_USE bool end_open(struct end *e, void *ctx, struct error *err);
/* Add to t where the ranks' shards of this device's weights are, as the first device sees them: a
 * part for each rank. The first device's thread calls it. The entries are valid until end_unsee. */
MUST_USE bool end_shards_add(struct end *e, struct extent_table *t, struct error *err);
void end_unsee(struct end *e);    // on the first device's thread
/* From now on the other ranks' shards stay until end_let_go. A second call is fine, and says
 * whether they are still there. */
MUST_USE bool end_hold(struct end *e, void *ctx, struct error *err);
/* Fine without end_hold, too. */
MUST_USE bool end_let_go(struct end *e, void *ctx, struct error *err);
/* Begin a step's sum of n_micro micro-batches, in groups. This rank runs as many of them as
 * ranks_n_micro says. */
MUST_USE bool end_begin(struct end *e, int64_t n_micro, struct error *err);
void end_close(struct end *e);
/* Are the ranks apart, so that they do not reach each other's memory? Ranks that this process plays
 * are not. */
bool end_is_apart(const struct end *e);
/* Does a rank without a micro-batch in the last round run and give all the same? It does where the
 * other ranks wait for its shards of the weights. */
bool end_gives_always(const struct end *e);
/* Ask for a whole piece of the weights, of which each rank keeps its shard (model_fetch). ctx is
 * the end. */
MUST_USE bool end_fetch(void *ctx, int p, void *to, struct error *err);
/* Wait until the piece is on a lane or there. */
MUST_USE bool end_fetched(void *ctx, int p, struct error *err);
/* Call these before and after others' shards are read. */
MUST_USE bool end_reach_begin(void *ctx, struct error *err);
void end_reach_end(void *ctx);
/* Spread this rank's part of a device's memory that is laid out alike on all ranks, once the device
 * is past mark; NULL: it is. */
MUST_USE bool end_spread(struct end *e, const struct exchange_parts *p, struct mark *mark, struct error *err);
/* Spread what each rank has for its shard of piece q. At base there is room for the whole piece:
 * entry_bytes for every n_elem elements. */
MUST_USE bool end_shards_spread(struct end *e, int q, void *base, int64_t n_elem, size_t entry_bytes, struct mark *mark, struct error *err);
/* Wait until everything that was spread has come, on all ranks. */
MUST_USE bool end_spread_end(struct end *e, void *ctx, struct error *err);

/* How many of n micro-batches a rank runs. */
int64_t ranks_n_micro(const struct rank *k, int64_t n);

/* ---- ranks_costs.c: what a step costs the ranks */
/* Costs of all devices of the rank since the last such call: the sum of what they sent, and the
 * longest of their times. */
MUST_USE bool ranks_stats_join(struct rank *k, struct exchange_stats *s, struct error *err);
/* Note as metrics, and in r->cost, how the ranks and the stages of their pipelines have waited for
 * each other. */
MUST_USE bool ranks_costs_note(struct ranks *r, double *metric, struct error *err);
MUST_USE bool ranks_stages_note(struct ranks *r, double *metric, struct error *err);
