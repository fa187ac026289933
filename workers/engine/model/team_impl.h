/* team_impl.h - shared by the files of model/ and pass/: the ranks of a team, and how they work on one call */
#pragma once
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
MUST_USE bool team_take(const struct model *m, struct model *into, struct error *err);
/* What a slice of m has besides its sizes. */
void slice_mark(struct model *slice, const struct model *m, int n, int q);
void team_free(struct team *t);
