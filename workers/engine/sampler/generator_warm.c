/* generator_warm.c - what a GPU does once, done before the first client waits for it
 *
 * A decode step of a size is first run as it is, then recorded; a product's algorithm and a kernel are loaded when they are first used, and
 * which these are depends on the number of rows. */
#include <inttypes.h>
#include <stdlib.h>
#include "workers/engine/sampler/generator_parts.h"

#define PROMPT_ROWS_LEAST 16    // shorter prefills use what decode steps do

/* Decode steps of n_row rows, none of which is a sequence: one that is not recorded, then one that is. */
static bool decode_warm(struct generator *g, int64_t n_row, struct error *err)
{
    for (int times = 0; times < 2; times++) {
        rows_blank(g, 0, n_row);
        if (!step_send(g, err))
            return false;
        struct decode_batch batch = step_batch(g, n_row, 0);
        if (!step_launch(g, &batch, err) || !device_sync(g->dev, err))    // the next step's inputs are written over this one's
            return false;
    }
    return true;
}

/* Run prompts of n_tok tokens in all, no two of which begin alike, and draw a token after each. */
static bool prompts_warm(struct generator *g, int64_t n_tok, struct error *err)
{
    static const uint64_t seed = 1;
    int64_t longest = MIN(g->config.max_seq_tok - 1, g->pages.n_page * g->pages.page_tok / 2);
    int64_t len = MIN(n_tok, longest), n = MIN(n_tok / MAX(len, (int64_t)1), MIN(g->config.max_item, g->vocab));
    int32_t *prompt = len > 0 ? calloc((size_t)len, sizeof *prompt) : NULL;
    if (!prompt)
        return len <= 0 || error_set(err, ERR_NO_MEMORY, "no memory for a prompt of %" PRId64 " tokens", len);
    struct generator_item item = {
        .item = -1, .prompt = prompt, .n_prompt = len, .n_sample = 1, .seed = &seed, .sampling = SAMPLING_DEFAULT
    };
    item.sampling.max_new_tok = 1;
    bool ok = true;
    for (int64_t i = 0; ok && i < n; i++) {
        prompt[0] = (int32_t)i;
        ok = generator_submit(g, &item, err);
    }
    free(prompt);
    while (ok && !generator_idle(g))
        ok = generator_step(g, err);
    for (struct group *group; (group = generator_poll(g));)
        group_free(group);
    if (!ok)
        generator_clear(g);
    return ok;
}

bool generator_warm(struct generator *g, struct error *err)
{
    BUG_IF(!generator_idle(g), "a generator is warmed while items are inside");
    if (!g->dev->can_capture)
        return true;
    bool ok = true;
    struct generator_stats stats = g->stats;    // what is run here counts nowhere
    double n_tok_seen = g->n_tok_seen, n_end_seen = g->n_end_seen;
    generator_watch *watch = g->config.watch;
    g->config.watch = NULL;
    for (int64_t n_row = 0; ok && n_row < g->config.max_seq;)
        ok = decode_warm(g, n_row = MIN(graph_rows(n_row + 1), g->config.max_seq), err);
    for (int64_t n_tok = PROMPT_ROWS_LEAST; ok && n_tok <= g->config.prefill_tok; n_tok *= 2)
        ok = prompts_warm(g, n_tok, err);
    generator_cache_clear(g);
    g->config.watch = watch;
    g->stats = stats;
    g->n_tok_seen = n_tok_seen;
    g->n_end_seen = n_end_seen;
    return ok;
}
