/* eval_sets.h - the answers of one evaluation, set by set, as they come: counts, and the records for the run's eval/
 *
 * A prompt's answers count once, however often they come. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/settings/run_config.h"
#include "workers/engine/sampler/eval.h"

#define EVAL_PROMPT_MAX ((int64_t)1 << 24)    // of a set

struct mval;
struct eval_results {
    struct eval_set set;
    bool known;                 // how many prompts it has
    struct eval_tally tally;    // once known
    bool *come;                 // (tally.n_prompt) whose answers are here
    char **record;              // (tally.n_prompt) lines of JSON; NULL: none
    int64_t n_come;
};
struct eval_sets {
    struct run_config config;    // the settings it has begun with
    struct eval_results *set;    // (n)
    int n;
    int64_t n_part;
    size_t n_byte;    // of all records
};
/* config is copied. Returns it for eval_sets_free. */
struct eval_sets *eval_sets_new(const struct run_config *config, int64_t n_part, struct error *err);
void eval_sets_free(struct eval_sets *s);    // NULL is fine
/* told: as message evaluated. ERR_DATA: no such set, row or count of prompts. */
MUST_USE bool eval_sets_take(struct eval_sets *s, const struct mval *told, struct error *err);
/* told: SET -> {n, dropped} of message done: how many prompts each set has, and which are too long to be sampled. */
MUST_USE bool eval_sets_told(struct eval_sets *s, const struct mval *told, struct error *err);
bool eval_sets_complete(const struct eval_sets *s);             // all answers to all prompts are here
bool eval_sets_has(const struct eval_sets *s, int64_t part);    // all to those of a part that has been sampled
/* Write the records of each set into run_dir/eval, or into eval_save_dir; what cannot be written is logged. */
void eval_sets_write(const struct eval_sets *s, const char *run_dir, int64_t step);
