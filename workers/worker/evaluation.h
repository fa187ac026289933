/* evaluation.h - the task eval: the first trainer samples the evaluation sets with its weights and has them scored
 *
 * The sets are opened each time. Each adds a mean to the report and its records to the run's eval/, or to eval_save_dir. */
#pragma once
#include "workers/worker/engine_state.h"

/* Evaluate all sets of t's settings. After a failure the caller drops the sampler's items. */
MUST_USE bool evaluation_run(struct engine *e, struct task *t, struct report *r, struct error *err);
