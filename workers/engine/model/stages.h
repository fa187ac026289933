/* stages.h - one model on several devices by its layers: pipeline parallelism for training
 *
 * Each device, a stage, has some layers in a row: their weights, gradient, masters and moments; the first one also the embedding, the last
 * one the last norm and the head. No product and no sum is cut, and each stage takes micro-batches in their order, so log-probs and
 * gradients have the same bits as on one device. In which order the stages work is pipeline.h's table.
 *
 * Embedding and head that are one tensor are on the last stage alone, from whose memory the first one reads the rows of its tokens. A
 * micro-batch's sum of that tensor's gradient begins at the head and ends at the embedding, as on one device; what crosses between the
 * devices for it is a row per token, not a row per id.
 *
 * The stages are ranks of a team (team.h): its threads drive them, and whoever goes through slices (slice.h) goes through stages. A stage
 * may be a team of slices itself: then what goes from stage to stage goes from each of its devices to the one with the same number. */
#pragma once
#include "workers/engine/model/model.h"

/* Can a model of these sizes be cut into n stages? The error names the sizes and the nearest number that can. */
MUST_USE bool stages_check(const struct model_config *c, int n, struct error *err);
/* The layers [first, end) of stage q of n: as even as can be when the head counts as many layers as its matrix has weights of. */
void stage_layers(const struct model_config *c, int n, int q, int64_t *first, int64_t *end);
/* A model of m's weights in stages only, each on n_slice devices, the first one on dev[0] (m's) to dev[n_slice - 1] and so on, as
 * model_sliced_new takes them. n n_slice is at most TEAM_MAX. Its runs score, and train by model_stages_run (run_stages.h) alone.
 * Returns it for model_free; NULL: see err. */
struct model *model_staged_new(struct model *m, struct device *const *dev, int n, int n_slice, struct error *err);
/* As model_staged_new, but its stages have no memory yet, as with model_sliced_open. */
struct model *model_staged_open(struct model *m, struct device *const *dev, int n, int n_slice, struct error *err);
bool model_is_staged(const struct model *m);
int model_n_stage(const struct model *m);    // 0: it is not in stages
/* For questions about sizes and for model_free: stage q of n of m's shape on n_slice devices, without weights and with sums in at least as
 * many parts. NULL: see err. */
struct model *model_stage_shape(const struct model *m, int n, int q, int n_slice, struct error *err);
/* How many micro-batches later than its other pieces a stage finishes the first one's gradient, that of a shared tensor; else 0. */
int model_late_piece(const struct model *m);
