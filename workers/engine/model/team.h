/* team.h - one model on several devices: tensor parallelism for sampling, scoring and training
 *
 * Each device is a rank of the team and has a slice of every product: some attention heads with
 * their keys and values, some columns of the MLP, some rows of the embedding and of the head. Norms
 * are on all devices.
 *
 * In a layer, the products by heads and by columns of the MLP (q, k, v; gate, up) give whole
 * outputs of some rows of their matrix. The two products that read these outputs (o_proj,
 * down_proj) give each rank a part of every sum, and the parts are added as one fixed tree (ops.h,
 * weight.parts). In training, the gradients by what the first products read are sums over rows of a
 * matrix; they are cut in the same parts and added likewise (pass/run_sums.c).
 *
 * So log-probs and gradients have the same bits on one device and on any team, if the model's sums
 * have the same parts (model_parts_set). Scheme: Megatron-LM, arXiv 1909.08053, section 3; the
 * tree: arXiv 2511.17826.
 *
 * A team is threads of one process, one for each device; the caller's thread drives the first.
 * Nothing outlives a call but work on the devices. If a rank fails, the others return too. */
#pragma once
#include "workers/engine/model/model.h"

#define TEAM_MAX SUM_PARTS_MAX
struct team;
/* Can a model of these sizes be cut over n devices, with sums in `parts`? The error names the sizes
 * and the next smaller team that can. */
MUST_USE bool team_check(const struct model_config *c, int n, int parts, struct error *err);
/* Can it also be trained there (model_sliced_new)? */
MUST_USE bool team_train_check(const struct model_config *c, int n, int parts, struct error *err);
/* From now on sample from m and score with it on dev[0], which is m's own device, and dev[1] to
 * dev[n - 1]. The devices are borrowed for m's life; nobody else drives them during a call. They
 * must reach each other's memory. Call it before another run or pool of m is made. m must not have
 * an adapter. After a failure m can only be freed.
 *
 * If m has its whole weights it keeps them. model_weights_changed fills the slices from them, and
 * runs that train use m's own device alone.
 *
 * Any other m is slices only from then on. Weights that were elsewhere (model_files_open) are
 * brought into the slices. The slices of a shape (model_new_shape, model_shape_like) are 0;
 * model_weights_copy fills them, or a caller that writes into them (team_slice) and then calls
 * model_weights_changed. */
MUST_USE bool model_team(struct model *m, struct device *const *dev, int n, struct error *err);
int model_n_device(const struct model *m);      // 1 without a team
bool model_is_sliced(const struct model *m);    // slices are all that it has
/* Device q's slice, a model of its sizes on its device (slice.h says what it has of each tensor).
 * The team owns it. */
struct model *team_slice(const struct model *m, int q);
/* Bytes that the first of n slices of the weights takes. */
size_t model_slice_bytes(const struct model *m, int n);

/* ---- models that are trained on a team */
/* Make a model of m's weights in slices only, on dev[0] (m's) to dev[n - 1], which are as for
 * model_team. All its runs work on the team, also those that train. A whole m is only read. Weights
 * of m that are elsewhere become the new model's. Returns it for model_free; NULL: see err. */
struct model *model_sliced_new(struct model *m, struct device *const *dev, int n, struct error *err);
/* As model_sliced_new, but the slices have no memory yet. They get it from model_weights_take, or
 * one by one from model_keep and model_share before that. A whole m must stay as it is until then.
 * If m's weights are elsewhere, they become the new model's, and m is a shape. */
struct model *model_sliced_open(struct model *m, struct device *const *dev, int n, struct error *err);
/* Give all slices of such a model memory that other processes of this host may open (model_share),
 * before model_weights_take fills them. */
MUST_USE bool model_slices_share(struct model *m, struct error *err);
/* A shape of such a model, with sums in at least n parts, for questions about sizes. Returns it for
 * model_free; NULL: see err. */
struct model *model_sliced_shape(const struct model *m, int n, struct error *err);
/* A shape of the first of its n slices, likewise. */
struct model *model_slice_shape(const struct model *m, int n, struct error *err);
/* Call fn once for each device of m, on the thread that drives it. Afterwards the first device
 * waits for what the others were asked for. *err is that of the device that failed first. */
MUST_USE bool model_team_call(struct model *m, bool (*fn)(void *ctx, int rank, struct error *err), void *ctx, struct error *err);
/* Set a function that is told when a device of m fails, in whatever call. Only the first one to
 * fail in a call is told. fn runs on the thread that drives that device, while other devices may
 * still be at work or wait for another process. NULL: nothing is told any more. */
typedef void model_failed_fn(void *ctx, int device, const struct error *why);
void model_team_tell(struct model *m, model_failed_fn *fn, void *ctx);
