/* stages.h - one model on several devices by its layers: pipeline parallelism for training
 *
 * Each device, a stage, has some layers in a row: their weights, gradient, masters and moments. The
 * first stage also has the embedding, and the last one the final norm and the head. No product and
 * no sum is cut, and each stage takes micro-batches in their order. So log-probs and gradients have
 * the same bits as on one device. pipeline.h's table says in which order the stages work.
 *
 * If embedding and head are one tensor, the last stage alone has it, and the first stage reads the
 * rows of its tokens from there. A micro-batch's sum of that tensor's gradient begins at the head
 * and ends at the embedding, as on one device. What crosses between the devices for it is a row per
 * token, not a row per id.
 *
 * The stages are ranks of a team (team.h), whose threads drive them, and code that goes through
 * slices (slice.h) goes through stages. A stage may be a team of slices itself. Then each of its
 * devices passes what it has to the device with the same number in the next stage. */
#pragma once
#include "workers/engine/model/model.h"

/* Can a model of these sizes be cut into n stages? The error names the sizes and the largest number
 * that is possible. */
MUST_USE bool stages_check(const struct model_config *c, int n, struct error *err);
/* The layers [first, end) of stage q of n. The cut is as even as it can be when the head counts as
 * the number of layers that have as many weights. */
void stage_layers(const struct model_config *c, int n, int q, int64_t *first, int64_t *end);
/* The stage of n that has the embedding's tensor: the last one where the head shares it. */
int stage_of_embedding(const struct model_config *c, int n);
/* Make a model of m's weights in n stages, each on n_slice devices: stage q is on dev[q * n_slice]
 * to dev[q * n_slice + n_slice - 1], and dev[0] is m's. Devices and m are as for model_sliced_new.
 * n n_slice is at most TEAM_MAX. The model's runs score, and train by model_work_run (pass.h)
 * alone. Returns it for model_free; NULL: see err. */
struct model *model_staged_new(struct model *m, struct device *const *dev, int n, int n_slice, struct error *err);
/* As model_staged_new, but the stages have no memory yet, as with model_sliced_open. */
struct model *model_staged_open(struct model *m, struct device *const *dev, int n, int n_slice, struct error *err);
bool model_is_staged(const struct model *m);
int model_n_stage(const struct model *m);    // 0: it is not in stages
/* A shape of stage q of n of m on n_slice devices, with sums in at least n_slice parts, for
 * questions about sizes. Returns it for model_free; NULL: see err. */
struct model *model_stage_shape(const struct model *m, int n, int q, int n_slice, struct error *err);
/* How many micro-batches later than its other pieces a stage finishes the gradient of its first
 * one. Above 0 only where that is a tensor that embedding and head share. */
int model_late_piece(const struct model *m);
