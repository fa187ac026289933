/* items.h - the tasks items and cancel: prompts go into the sampler, finished groups come out; evaluations sample the same way
 * */
#pragma once
#include "workers/engine/sampler/sampling.h"
#include "workers/worker/engine_state.h"

/* Give t's items to the sampler. Takes t: its groups are reported one by one. */
MUST_USE bool items_run(struct engine *e, struct task *t, struct report *r, struct error *err);
/* Drop the items being sampled. Takes t; nothing is reported. */
MUST_USE bool cancel_run(struct engine *e, struct task *t, struct report *r, struct error *err);
/* One round of the sampler; reports the groups it finishes. */
MUST_USE bool items_step(struct engine *e, struct error *err);
/* Drop the items inside the sampler, if there is one. */
void items_drop(struct engine *e);
/* The sampler's figures for engine_look. */
void items_look(struct engine *e);

/* How completions are sampled under c: its knobs, the tokenizer's end tokens and the reward's stop string. */
void sampling_make(const struct engine *e, const struct run_config *c, double temperature, struct sampling *s);
/* A prompt for the sampler: row data_row of data, which the group calls prompt_row. */
struct prompt_order {
    struct dataset *data;    // borrowed
    int64_t data_row, prompt_row;
    int64_t item, rollout_step, n_sample;
    int64_t level;    // for the environment; -1: the run has none, or it is evaluated
};
/* *dropped: the prompt is too long, and nothing was submitted. ERR_FULL: as generator_submit. */
MUST_USE bool prompt_submit(struct engine *e, const struct prompt_order *o, const struct sampling *s, bool *dropped, struct error *err);
/* A finished group with everything that the scorer needs; made: the incarnation that made its weights. Takes g. Returns it for
 * engine_report or report_free. */
struct report *group_report(struct engine *e, struct group *g, int64_t made, struct dataset *data, int64_t data_row, struct error *err);
