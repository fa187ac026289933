/* run_team.h - a run on a team; only for pass/
 *
 * The run that callers have keeps inputs and logits on the first device. Each rank has a run of its own for its slice. */
#pragma once
#include "workers/engine/model/team_impl.h"
#include "workers/engine/pass/run_impl.h"

struct team_run;
struct team_run *team_run_new(struct model_run *r, struct error *err);
void team_run_free(struct team_run *t);
size_t team_run_bytes(const struct model *m, const struct run_limits *lim);    // of the first device
MUST_USE bool team_forward(struct model_run *r, const struct pass *p, struct error *err);
MUST_USE bool team_logits(struct model_run *r, const void *x, int64_t n, float *logits, struct error *err);
void team_bind(struct model_run *r, struct model *m);
/* Let the runs of all ranks work on set k from now on. r is the run of a stage and has that set's batch. */
void team_set_use(struct model_run *r, int k);
/* Call fn for each rank's run, on the rank's thread. Returns when all are done. */
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
