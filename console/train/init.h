/* init.h - a run file from a model, a data set, devices and hours: what 'rollcall init' finds out, chooses and writes */
#pragma once
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "protocol/settings/run_config.h"
#include "workers/engine/model/config.h"

/* How the model answers with a system prompt, by 'rollcall eval'. */
struct init_trial {
    int64_t n, n_each;      // prompts, and samples of each
    double right, cut;      // shares of the samples
    double spread;          // share of the prompts with right and wrong samples
    double tok, longest;    // tokens of a sample: mean, and of the longest
};
struct init {
    char model[RUN_TEXT_MAX], dataset[RUN_TEXT_MAX], eval[RUN_TEXT_MAX];    // as the run file has them; eval "": none
    char devices[256];
    double hours;
    int64_t max_new_tok;    // 0: what suits the model
    /* of a few prompts sampled with the reward type's own system prompt and without one; n 0: not sampled */
    struct init_trial own, none;
    /* found */
    char model_dir[PATH_MAX];
    struct model_config shape;
    int64_t n_row, n_prompt_tok;    // n_prompt_tok: room for 99.5 % of the prompts, as a multiple of 64
    double prompt_mean;             // tokens of a prompt
    const char *reward;             // reward_type
    bool no_system;                 // chosen: system_prompt none, not the reward type's own
    int n_device;
    bool cuda;
    size_t mem;    // bytes of the smallest device that are free
    /* chosen */
    int64_t prompts, token_budget;    // prompts: per device and step
    double learning_rate;
    bool offload;
    double step_s;     // expected, with prompts and responses as long as those sampled; nothing sampled: at most
    int64_t n_step;    // about as many fit into the hours
};
/* Find the model (in the cache, or a directory) and read its shape. ERR_NOT_FOUND: it is not here. */
MUST_USE bool init_model(struct init *i, const char *name, struct error *err);
/* Read the data set, choose the reward from its columns, measure its prompts with the model's tokenizer, and take the data set's split
 * 'test' for evaluation if it is here. After init_model. */
MUST_USE bool init_data(struct init *i, const char *name, struct error *err);
/* "auto" (all GPUs, else the processor) or a list. */
MUST_USE bool init_devices(struct init *i, const char *list, struct error *err);
bool init_is_tiny(const struct init *i);    // a model that is trained from random weights in minutes
/* Choose the rest. After the three above. */
MUST_USE bool init_settle(struct init *i, struct error *err);
/* Sample a few prompts with the reward type's own system prompt and without one, choose between the two, and measure the prompts that this
 * makes again. After init_settle. A trial that does not work leaves the reward type's own in force; why says so, else it is "". */
MUST_USE bool init_system(struct init *i, char *why, size_t size, struct error *err);
/* Which of the two is better to begin with. */
bool init_none_is_better(const struct init_trial *own, const struct init_trial *none);
/* Check the run file at path as 'train --dry-run' does, plan the memory, measure a step, and set step_s and n_step. *again, when it
 * fails: offload_optimizer has been chosen, since the GPU has no room; write the file again, and come back. */
MUST_USE bool init_measure(struct init *i, const char *path, bool *again, struct error *err);
MUST_USE bool init_prompts_again(struct init *i, struct error *err);    // with the system prompt chosen since
/* The run file. */
void init_text(const struct init *i, struct buf *out);
