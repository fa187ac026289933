/* evaluation.h - the task eval: the first trainer samples the evaluation sets with its weights and has them scored
 *
 * The sets are opened each time. Each leaves a mean in the report and its records in the run's eval/, or in eval_save_dir. */
#pragma once
#include "workers/worker/engine_state.h"

/* Evaluate all sets of t's settings. After a failure the caller drops what the sampler holds. */
MUST_USE bool evaluation_run(struct engine *e, struct task *t, struct report *r, struct error *err);
