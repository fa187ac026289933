/* team_impl.h - shared by the files of this folder: the ranks of a team, and how they work on one call */
#pragma once
#include "workers/engine/model/run_impl.h"
#include "workers/engine/model/team.h"

struct team_rank {
    struct team *team;
    int index;
    struct device *dev;     // borrowed
    struct model *slice;    // a model of the slice's sizes, on dev
    int64_t first_id;       // of its rows of the embedding and of the head
    struct mark *end;       // of what it was asked for in the last call
    struct error err;       // of its part of the call
    bool started;           // it has a thread
};
/* Do one rank's share of a call. */
typedef bool team_fn(void *ctx, int rank, struct error *err);
/* Call fn for each rank, each on its thread; what the devices were asked for before, by the caller, comes first. The first rank's error
 * counts that is not a consequence of another's. */
MUST_USE bool team_call(struct team *t, team_fn *fn, void *ctx, struct error *err);
/* Inside a call: wait until all ranks have come here; false: one has failed and will not come. */
MUST_USE bool team_meet(struct team *t, struct error *err);
int team_size(const struct team *t);
struct team_rank *team_rank(struct team *t, int rank);
/* Slices = src's weights (m's own, or those of a model of m's shape on m's device, whole or in shards); and new handles on them. */
MUST_USE bool team_fill(struct model *m, const struct model *src, struct error *err);
MUST_USE bool team_changed(struct model *m, struct error *err);    // slices have changed: their handles
void team_free(struct team *t);

/* ---- run_team.c: a run on a team. The run that callers have keeps inputs and logits on the first device; each rank has a run of its own
 * for its slice. */
struct team_run;
struct team_run *team_run_new(struct model_run *r, struct error *err);
void team_run_free(struct team_run *t);
size_t team_run_bytes(const struct model *m, const struct run_limits *lim);    // of the first device
MUST_USE bool team_forward(struct model_run *r, const struct pass *p, struct error *err);
MUST_USE bool team_logits(struct model_run *r, const void *x, int64_t n, float *logits, struct error *err);
/* In a rank's run: the rows of the embedding, from all slices; and y (n, d_model) = the sum of all ranks' products of x, and the bias. */
MUST_USE bool team_embed(struct model_run *rank, void *y, const struct pass *p, struct error *err);
MUST_USE bool team_product(struct model_run *rank, const struct linear *l, void *y, const void *x, int64_t n, struct error *err);
