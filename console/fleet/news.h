/* news.h - what a run's messages say, into a model
 *
 * v is a message's map, as the answer to a question or as the body of what is heard on telemetry; what it lacks or has of the
 * wrong kind is left as it was, or unknown. Pure but for the model; the thread that owns the model. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "console/fleet/model.h"

struct mval;
/* The answer to a status: the run's state, knobs, evaluations, hosts and processes. */
void news_status(struct model *m, const struct mval *v, int64_t now_ns);
/* One process; from_status: with all that only a status has. */
void news_process(struct model *m, const struct mval *v, bool from_status, int64_t now_ns);
/* Rows of steps, those that the model has not yet. Returns whether there are more to ask for. */
bool news_steps(struct model *m, const struct mval *v);
/* One step that was heard. False: steps before it are missing, and it was not taken. */
bool news_step(struct model *m, const struct mval *v);
/* The newest events, oldest first. */
void news_events(struct model *m, const struct mval *v);
/* A rollout group, as messages and the run's rollout file hold it; one that is among the newest already is left out. */
void news_rollout(struct model *m, const struct mval *v);
void news_rollouts(struct model *m, const struct mval *v);    // some of them, newest first
