#include "workers/worker/prompts.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include "protocol/base/log.h"
#include "workers/engine/data/dataset.h"
#include "workers/engine/reward/reward.h"
#include "workers/engine/template/template.h"
#include "workers/engine/text/tokenizer.h"

/* None of the prompts fits: say how long they are, and how much of that is the system prompt. */
static bool prompts_too_long(const struct prompts *p, const struct run_config *c, struct error *err)
{
    struct prompt_maker with = p->maker, without = p->maker;
    struct token_list ids = { 0 };
    struct error none;
    bool dropped;
    json_t *row = dataset_row(p->data, 0, err);
    with.shortest = without.shortest = 0;
    with.max_tok = without.max_tok = 0;    // no limit: nothing is dropped
    without.system_prompt = NULL;
    bool known = row && prompt_make(&with, row, &ids, &dropped, &none) && prompt_make(&without, row, &ids, &dropped, &none);
    int64_t system = known ? MAX(with.shortest - without.shortest, (int64_t)0) : 0;
    json_decref(row);
    token_list_release(&ids);
    error_set(err, ERR_DATA,
              "no prompt of '%s' fits into max_prompt_tokens %" PRId64 ": the shortest has %" PRId64 " tokens, %" PRId64
              " of them the system prompt%s; raise max_prompt_tokens%s",
              c->dataset, c->max_prompt_tokens, p->maker.shortest, system, c->system_prompt[0] || system == 0 ? "" : " of the reward_type",
              system > 0 ? " or give a shorter system_prompt ('none' for none)" : "");
    return false;
}

static void maker_init(struct prompts *p, const struct run_config *c)
{
    const char *system = c->system_prompt[0] ? c->system_prompt : reward_system_prompt(c->reward_type);
    p->maker = (struct prompt_maker){ .encoder = p->encoder,
                                      .template = p->template,
                                      .max_tok = c->max_prompt_tokens,
                                      .system_prompt = strcmp(c->system_prompt, "none") == 0 ? NULL : system,
                                      .long_prompt = strcmp(c->long_prompt, "drop") == 0 ? LONG_DROP : LONG_CUT_LEFT };
}

/* Make every prompt once, to learn which rows fit. */
static bool usable_find(struct prompts *p, const struct run_config *c, void (*tick)(void *ctx), void *ctx, struct error *err)
{
    struct token_list ids = { 0 };
    char where[512];
    bool ok = true;
    int64_t n = dataset_n_row(p->data);
    if (!(p->usable = calloc((size_t)n, sizeof *p->usable)))
        return error_set(err, ERR_NO_MEMORY, "no memory for the index of %" PRId64 " prompts", n);
    for (int64_t i = 0; ok && i < n; i++) {
        bool dropped = false;
        json_t *row = dataset_row(p->data, i, err);
        ok = row && prompt_make(&p->maker, row, &ids, &dropped, err);
        json_decref(row);
        if (!ok)
            error_wrap(err, "%s", dataset_where(p->data, i, where, sizeof where));
        else if (!dropped)
            p->usable[p->n_row++] = i;
        if (i % 1000 == 0)
            tick(ctx);
    }
    token_list_release(&ids);
    if (!ok || (p->n_row == 0 && !prompts_too_long(p, c, err)))
        return false;
    log_info("%" PRId64 " prompts, %" PRId64 " left out for their length", p->n_row, n - p->n_row);
    return true;
}

bool prompts_load(struct prompts *p, const struct run_config *c, void (*tick)(void *ctx), void *ctx, struct error *err)
{
    bool ok = false;
    struct dataset_columns columns = { c->prompt_column, c->answer_column, c->prompt_template };
    if (p->n_row > 0)
        return true;
    TRY(p->tokenizer = tokenizer_load(run_config_tokenizer(c), err));
    TRY(p->encoder = encoder_new(p->tokenizer, true, err));
    TRY(template_find(run_config_tokenizer(c), &p->template, err));
    maker_init(p, c);
    if (run_config_posted(c)) {    // all prompts are posted; the schedule counts them as one
        p->n_row = 1;
        return true;
    }
    TRY(p->data = dataset_open(c->dataset, &columns, err));
    TRY(usable_find(p, c, tick, ctx, err));
    ok = true;
out:
    if (!ok)
        prompts_release(p);
    return ok;
}

void prompts_release(struct prompts *p)
{
    free(p->usable);
    dataset_free(p->data);
    template_free(p->template);
    encoder_free(p->encoder);
    tokenizer_free(p->tokenizer);
    *p = (struct prompts){ 0 };
}
