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
 * model_sliced_new takes them. n n_slice is at most TEAM_MAX. Its runs score, and train by model_stages_run alone. Returns it for
 * model_free; NULL: see err. */
struct model *model_staged_new(struct model *m, struct device *const *dev, int n, int n_slice, struct error *err);
/* The same without memory yet, as model_sliced_open. */
struct model *model_staged_open(struct model *m, struct device *const *dev, int n, int n_slice, struct error *err);
bool model_is_staged(const struct model *m);
int model_n_stage(const struct model *m);    // 0: it is not in stages
/* For questions about sizes and for model_free: stage q of n of m's shape on n_slice devices, without weights and with sums in at least as
 * many parts. NULL: see err. */
struct model *model_stage_shape(const struct model *m, int n, int q, int n_slice, struct error *err);
/* How many micro-batches later than its other pieces a stage finishes the first one's gradient, that of a shared tensor; else 0. */
int model_late_piece(const struct model *m);
/* What of its device's memory the run of such a stage takes, under the limits of the whole run. */
size_t model_stage_run_bytes(const struct model *stage, const struct run_limits *limits);

/* Micro-batches to be run by a run of a staged model. The functions are called on the threads that drive the stages: for one stage
 * never two at a time, for different stages at once. */
struct stage_work {
    int64_t n_micro;
    const struct model_grad *grad;    // `slice` is used, of each device; NULL: forward only
    void *ctx;
    /* Micro-batch k for this stage, borrowed until the next call for it. All stages get the same. */
    bool (*batch)(void *ctx, int stage, int64_t k, struct model_batch *b, struct error *err);
    /* The last stage has run k forward, and `last` is its run: model_backward into grad; or, where grad is NULL, model_head. In the order
     * of k. */
    bool (*finish)(void *ctx, int64_t k, struct model_run *last, const struct model_grad *grad, struct error *err);
};
MUST_USE bool model_stages_run(struct model_run *r, const struct stage_work *w, struct error *err);
/* Seconds that each stage's device (model_n_device) stood still for the others in such work since the last such call, by its own clock. */
MUST_USE bool model_stages_idle(struct model_run *r, double *idle_s, struct error *err);
