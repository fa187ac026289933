/* saving.h - the task save: the engine copies the state to host memory and goes on; the writer's thread writes it */
#pragma once
#include "workers/worker/engine_state.h"

/* Make the writer, unless it exists. */
MUST_USE bool saving_prepare(struct engine *e, struct error *err);
/* Copy the state and start writing it; a trainer that is not the first only brings its shards, where all must. Takes t, which saving_look
 * reports and frees once the checkpoint is on disk. After a failure, where the others wait for this trainer's shards, or it for theirs, this
 * one has left them. */
MUST_USE bool saving_run(struct engine *e, struct task *t, struct report *r, struct error *err);
/* Report a checkpoint that has been written; wait: wait for the one in progress. */
void saving_look(struct engine *e, bool wait);
/* Wait for the checkpoint in progress and free the writer, without a report. */
void saving_end(struct engine *e);
