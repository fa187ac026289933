/* run_stages.h - micro-batches through the stages of a pipeline (stages.h) */
#pragma once
#include "workers/engine/model/stages.h"
#include "workers/engine/pass/pass.h"

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
