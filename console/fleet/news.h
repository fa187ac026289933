/* news.h - put the contents of a run's messages into a model
 *
 * v is a message's map, from an answer or from the body of a telemetry message. A field that is missing or of the wrong
 * kind leaves the model's value as it was, or unknown. Pure except for the model; called on the thread that owns the
 * model. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "console/fleet/run_view.h"

struct mval;
/* The answer to a status: the run's state, knobs, evaluations, hosts and processes. */
void news_status(struct run_view *m, const struct mval *v, int64_t now_ns);
/* One process; from_status: including the fields that only a status has. */
void news_process(struct run_view *m, const struct mval *v, bool from_status, int64_t now_ns);
/* Add the rows of steps that the model lacks. Returns whether there are more to ask for. */
bool news_steps(struct run_view *m, const struct mval *v);
/* One step from telemetry. False: steps before it are missing, so it was not added. */
bool news_step(struct run_view *m, const struct mval *v);
/* The newest events, oldest first. */
void news_events(struct run_view *m, const struct mval *v);
/* A rollout group, in the form of messages and the run's rollout file; one already among the newest is skipped. */
void news_rollout(struct run_view *m, const struct mval *v);
void news_checkpoints(struct run_view *m, const struct mval *v);    // all of them, in place of those that were known
void news_rollouts(struct run_view *m, const struct mval *v);       // several groups, newest first
