/* team.h - one model on several devices: tensor parallelism for sampling, scoring and training
 *
 * Each device, a rank of the team, has a slice of every product: some attention heads with their keys and values, some columns of the
 * MLP, some rows of the embedding and of the head; norms are on all. A layer's products by heads and by columns of the MLP give whole
 * outputs of some rows of their matrix; the two that read these (o_proj, down_proj) give each rank a part of every sum, and the parts are
 * added as one fixed tree (ops.h, weight.parts). In training the sums over rows of a matrix, gradients by what those products read, are
 * cut in the same parts and added likewise (pass/run_sums.c). So log-probs and gradients have the same bits on one device and on any team,
 * when the model's sums have the same parts (model_parts_set). Scheme: Megatron-LM, arXiv 1909.08053, section 3; the tree: arXiv
 * 2511.17826.
 *
 * A team is threads of one process, one for each rank and device, the caller's for the first. Nothing outlives a call but work on the
 * devices, and a rank that fails makes the others return. */
#pragma once
#include "workers/engine/model/model.h"

#define TEAM_MAX SUM_PARTS_MAX
struct team;
/* Can a model of these sizes be cut over n devices, with sums in `parts`? The error names the sizes and the next smaller team that can. */
MUST_USE bool team_check(const struct model_config *c, int n, int parts, struct error *err);
MUST_USE bool team_train_check(const struct model_config *c, int n, int parts, struct error *err);    // the same for model_sliced_new
/* From now on m is sampled from and scored with on dev[0], which is its own, and dev[1] to dev[n - 1]; all are borrowed for its life and
 * driven by nobody else during a call. They must reach each other's memory. An m that has its whole weights keeps them, and
 * model_weights_changed fills the slices from them; runs that train use m's own device alone. Any other is from then on slices only: filled,
 * if its weights were elsewhere (model_files_open); 0 at first, if it had none (model_new_shape, model_shape_like): model_weights_copy fills
 * them, or whoever writes into them (team_slice) and calls model_weights_changed. Before any other run or pool of m's. Not with an adapter.
 * After a failure m can only be freed. */
MUST_USE bool model_team(struct model *m, struct device *const *dev, int n, struct error *err);
int model_n_device(const struct model *m);      // 1 without a team
bool model_is_sliced(const struct model *m);    // slices are all that it has
/* Device q's slice: a model of its sizes on its device (slice.h says what it has of each tensor). Owned by the team. */
struct model *team_slice(const struct model *m, int q);
/* Bytes of one more device's memory that its slice of the weights takes. */
size_t model_slice_bytes(const struct model *m, int n);

/* ---- models that are trained on a team */
/* A model of m's weights in slices only, on dev[0] (m's) to dev[n - 1], as model_team takes them: all its runs work on the team, those that
 * train too. m, which is whole, is only read; but weights that are elsewhere are the new model's. Returns it for model_free; NULL: see
 * err. */
struct model *model_sliced_new(struct model *m, struct device *const *dev, int n, struct error *err);
/* The same, but its slices have no memory yet: they get it from model_weights_take, or one by one from model_keep and model_share before
 * that. If m's weights are elsewhere, they are the new model's from now on, and m is a shape; else m must stay as it is until then. */
struct model *model_sliced_open(struct model *m, struct device *const *dev, int n, struct error *err);
/* Give all slices of such a model memory that other processes of this host may open (model_share), before model_weights_take fills them. */
MUST_USE bool model_slices_share(struct model *m, struct error *err);
/* For questions about sizes and for model_free, without weights and devices: such a model, whose sums have at least n parts, and its first
 * slice. NULL: see err. */
struct model *model_sliced_shape(const struct model *m, int n, struct error *err);
struct model *model_slice_shape(const struct model *m, int n, struct error *err);
/* Call fn once for each device of m, on the thread that drives it; afterwards the first device waits for what the others were asked for.
 * The first error counts. */
MUST_USE bool model_team_call(struct model *m, bool (*fn)(void *ctx, int rank, struct error *err), void *ctx, struct error *err);
/* When a device of m fails in whatever call, and none has before it, fn is called on the thread that drives it, while others may still be at
 * work, or wait for another process. NULL: nothing is told any more. */
typedef void model_failed_fn(void *ctx, int device, const struct error *why);
void model_team_tell(struct model *m, model_failed_fn *fn, void *ctx);
