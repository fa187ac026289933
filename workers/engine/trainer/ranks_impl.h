/* ranks_impl.h - what ranks.c shares with the files of its parts; for nobody else */
#pragma once
#include "kernels/collective/collective.h"
#include "kernels/collective/exchange.h"
#include "kernels/ops.h"
#include "workers/engine/model/extent.h"
#include "workers/engine/trainer/ranks.h"
#include "workers/engine/trainer/trainer.h"

#define RANK_MAX COLLECTIVE_RANK_MAX

/* A device of a rank, which exchanges with the same device of the other ranks. */
struct end {
    struct rank *k;
    int index;                // among the rank's devices
    struct trainer *t;        // k's, or of its device (trainer_of_device)
    struct collective *c;     // with the others; NULL: all are here
    struct exchange *x;       // of gradients; NULL likewise, or one rank
    int64_t n_given;          // pieces of gradients, all ranks here: how far the places have been used in turn
    int64_t n_micro;          // micro-batches that this rank runs in the step,
    int64_t *n_made;          // (n_piece) and of how many of them a piece's gradient has been made;
    bool *made;               // (n_piece) the sum of a group is made, and is not given yet
    struct mark **updated;    // (runs of the update)
    bool held;                // the others' shards are, for readers of all weights
    const void **seen;        // (n_rank) where the first device sees them, if this is another one of its own process; owned
};
/* A rank that this process plays. */
struct rank {
    struct ranks *r;
    struct trainer *t;
    int index, n_end;
    struct end end[SUM_PARTS_MAX];
    struct trainer_sums *part;    // (n_part) of its micro-batches, one a round
    struct trainer_norm *norm;    // (n_part) likewise, under the reference
};
struct ranks {
    int n_rank;
    int first, n_here;             // this process plays ranks first .. first + n_here - 1
    struct rank here[RANK_MAX];    // (n_here)
    int64_t n_group;               // micro-batches of a group, whose gradients a rank adds up before it gives them
    int64_t n_part;
    struct ranks_cost cost[RANK_MAX];    // (n_rank) of the last step
    struct extent_table shards;          // where all ranks' are; empty before they are held for the first time
    struct extents held;                 // the same, while others may read them; n 0: nobody does
};

/* What is asked of each device of a rank, on the thread that drives it. */
typedef bool end_fn(struct end *e, void *ctx, struct error *err);
MUST_USE bool ranks_ends_do(struct rank *k, end_fn *fn, void *ctx, struct error *err);
/* all (n_rank x size_bytes) = what the ranks here (mine: n_here x size_bytes) and elsewhere give, in rank order. */
MUST_USE bool ranks_gather(struct ranks *r, const void *mine, size_t size_bytes, void *all, struct error *err);

/* ---- ranks_end.c: a device and its counterparts at the other ranks */
/* Let the others reach what they must, and say where backward passes add and weights come from. */
MUST_USE bool end_open(struct end *e, void *ctx, struct error *err);
/* Where the weights of this device are of which each rank keeps its shards, as the first device sees them: a part for each rank. On the first
 * device's thread. Valid until end_unsee. */
MUST_USE bool end_shards_add(struct end *e, struct extent_table *t, struct error *err);
void end_unsee(struct end *e);    // likewise
/* The others stay where they are until end_let_go, which is also fine without; once more says whether they are there still. */
MUST_USE bool end_hold(struct end *e, void *ctx, struct error *err);
MUST_USE bool end_let_go(struct end *e, void *ctx, struct error *err);
/* A step's sum begins: of n_micro micro-batches, in groups; of them this rank runs its own, as ranks_n_micro says. */
MUST_USE bool end_begin(struct end *e, int64_t n_micro, struct error *err);
void end_close(struct end *e);
/* Do the ranks not reach each other's memory? Those that this process plays do. */
bool end_is_apart(const struct end *e);
/* Does a rank without a micro-batch in the last round run and give all the same, since the others need its shards of the weights? */
bool end_gives_always(const struct end *e);
/* Ask for a whole piece of the weights, of which each rank keeps its shard (model_fetch; ctx is the end); and until it is on a lane or there.
 * Around that: others' shards are reached. */
MUST_USE bool end_fetch(void *ctx, int p, void *to, struct error *err);
MUST_USE bool end_fetched(void *ctx, int p, struct error *err);
MUST_USE bool end_reach_begin(void *ctx, struct error *err);
void end_reach_end(void *ctx);
/* Spread what each rank has of a device's memory that is laid out alike on all, once the device is past mark (NULL: it is). */
MUST_USE bool end_spread(struct end *e, const struct exchange_parts *p, struct mark *mark, struct error *err);
/* Of piece q each rank has its shard. What is spread begins at base for the whole piece, and has entry_bytes for every n_elem elements. */
MUST_USE bool end_shards_spread(struct end *e, int q, void *base, int64_t n_elem, size_t entry_bytes, struct mark *mark, struct error *err);
/* Until everything that was spread has come, everywhere. */
MUST_USE bool end_spread_end(struct end *e, void *ctx, struct error *err);

/* Micro-batches that a rank runs of n. */
int64_t ranks_n_micro(const struct rank *k, int64_t n);

/* ---- ranks_costs.c: what a step costs the ranks */
/* Of all devices of the rank since the last such call: what they sent together, and the longest of their times. */
MUST_USE bool ranks_stats_join(struct rank *k, struct exchange_stats *s, struct error *err);
/* How the ranks, and the stages of their pipelines, have waited for each other: metrics, and r->cost. */
MUST_USE bool ranks_costs_note(struct ranks *r, double *metric, struct error *err);
MUST_USE bool ranks_stages_note(struct ranks *r, double *metric, struct error *err);
