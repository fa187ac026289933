/* team_impl.h - shared by the files of this folder: the ranks of a team, and how they work on one call */
#pragma once
#include "workers/engine/model/run_impl.h"
#include "workers/engine/model/team.h"

struct team_rank {
    struct team *team;
    int index;
    struct device *dev;     // borrowed
    struct model *slice;    // a model of the slice's sizes, on dev
    struct mark *end;       // of what it was asked for in the last call
    struct error err;       // of its part of the call
    bool started;           // it has a thread
};
/* Do one rank's share of a call. */
typedef bool team_fn(void *ctx, int rank, struct error *err);
/* Call fn for each rank, each on its thread; what the devices were asked for before, by the caller, comes first. The error of the rank
 * that fails first counts: the others' are its consequences. */
MUST_USE bool team_call(struct team *t, team_fn *fn, void *ctx, struct error *err);
/* Inside a call: wait until all ranks have come here; false: one has failed and will not come, or idle has. idle(ctx) is called now and
 * then meanwhile; NULL: nothing. */
MUST_USE bool team_meet(struct team *t, bool (*idle)(void *ctx, struct error *err), void *ctx, struct error *err);
/* Also inside a call: this rank has done one more piece of work, and what its device was asked for is marked; wait until a rank has
 * done n of them since the call began. idle and false as for team_meet. */
void team_done(struct team *t, int rank);
MUST_USE bool team_await(struct team *t, int rank, int64_t n, bool (*idle)(void *ctx, struct error *err), void *ctx, struct error *err);
int team_size(const struct team *t);
struct team_rank *team_rank(struct team *t, int rank);
/* Slices = src's weights (m's own, or those of a model of m's shape on m's device, whole or in shards); and new handles on them. */
MUST_USE bool team_fill(struct model *m, const struct model *src, struct error *err);
MUST_USE bool team_room(struct model *m, struct error *err);       // memory for slices that have none
MUST_USE bool team_changed(struct model *m, struct error *err);    // slices have changed: their handles
/* into's weights, whole or slices, = m's slices; into has m's shape and m's first device. */
MUST_USE bool team_take(struct model *m, struct model *into, struct error *err);
/* What a slice of m has besides its sizes. */
void slice_mark(struct model *slice, const struct model *m, int n, int q);
void team_free(struct team *t);

/* ---- run_team.c: a run on a team. The run that callers have keeps inputs and logits on the first device; each rank has a run of its own
 * for its slice. */
struct team_run;
struct team_run *team_run_new(struct model_run *r, struct error *err);
void team_run_free(struct team_run *t);
size_t team_run_bytes(const struct model *m, const struct run_limits *lim);    // of the first device
MUST_USE bool team_forward(struct model_run *r, const struct pass *p, struct error *err);
MUST_USE bool team_logits(struct model_run *r, const void *x, int64_t n, float *logits, struct error *err);
void team_bind(struct model_run *r, struct model *m);
/* Of a stage's run: all ranks' runs work on set k, whose batch the stage's own run has; and fn for each rank's run, on its thread, until all
 * are done. */
void team_set_use(struct model_run *r, int k);
MUST_USE bool team_runs_call(struct model_run *r, bool (*fn)(void *ctx, struct model_run *run, struct error *err), void *ctx,
                             struct error *err);
struct model_run *team_run_of(struct team_run *t, int rank);
void team_idle(struct team_run *t, int rank, bool (*idle)(void *ctx, struct error *err), void *ctx);
/* The steps of a backward pass (run_impl.h), by all ranks. */
MUST_USE bool team_head_begin(struct model_run *r, int64_t n_head, const struct model_grad *g, struct error *err);
MUST_USE bool team_head_clear(struct model_run *r, struct error *err);
MUST_USE bool team_head_rows(struct model_run *r, const struct head_part *c, struct error *err);
MUST_USE bool team_head_end(struct model_run *r, const struct model_grad *g, struct error *err);
MUST_USE bool team_layers_bwd(struct model_run *r, const struct model_grad *g, struct error *err);
/* In a rank's run: the rows of the embedding, from all slices; and y (n, d_model) = the sum of all ranks' products of x, and the bias. */
MUST_USE bool team_embed(struct model_run *rank, void *y, const struct pass *p, struct error *err);
/* In a rank's run: memory for its part of the next sum, (max_tok, d_model) fp32; and the sum of all ranks' parts, which are its x. */
float *team_part(struct model_run *rank);
MUST_USE bool team_sum(struct model_run *rank, const struct tree_sum *of, struct error *err);
MUST_USE bool team_product(struct model_run *rank, const struct linear *l, void *y, const void *x, int64_t n, bool for_norm,
                           struct error *err);    // for_norm: linear_fwd's
