/* prompts.h - the training prompts of a run: its data set, what renders and tokenises a row, and which rows fit
 *
 * One per engine. Loaded once and then only read, so the loop may look at it after the first load (engine_lines). */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/settings/run_config.h"
#include "workers/engine/sampler/prompt.h"

struct dataset;
struct tokenizer;
struct prompts {    // all owned
    struct tokenizer *tokenizer;
    struct encoder *encoder;
    struct template *template;
    struct dataset *data;    // NULL when the run trains on what environments post; then n_row is 1, and usable NULL
    struct prompt_maker maker;
    int64_t *usable;    // (n_row) rows of data whose prompts are at most max_prompt_tokens long
    int64_t n_row;      // 0: not loaded
    uint8_t *level;     // (n_row) of these rows (row_level.h); NULL: they have none, or the run has no curriculum
};
/* Load the tokenizer, the template and the data of c (borrowed until prompts_release), and find the rows that fit; nothing when that has
 * been done. tick(ctx) is called every 1000 rows. ERR_DATA names the line, or says how long the prompts are when none fits. On failure p
 * holds nothing. */
MUST_USE bool prompts_load(struct prompts *p, const struct run_config *c, void (*tick)(void *ctx), void *ctx, struct error *err);
void prompts_release(struct prompts *p);
