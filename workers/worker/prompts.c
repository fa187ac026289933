#include "workers/worker/prompts.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include "protocol/base/log.h"
#include "workers/engine/data/dataset.h"
#include "workers/engine/data/row_level.h"
#include "workers/engine/sampler/completion.h"
#include "workers/engine/template/template.h"
#include "workers/engine/text/tokenizer.h"

/* Make every prompt once, to learn which rows fit. */
static bool usable_find(struct prompts *p, const struct run_config *c, void (*tick)(void *ctx), void *ctx, struct error *err)
{
    struct token_list ids = { 0 };
    struct row_levels levels = { 0 };
    char where[512];
    bool ok = true, leveled = c->curriculum_levels > 1;
    int64_t n = dataset_n_row(p->data);
    if (!(p->usable = calloc((size_t)n, sizeof *p->usable)) || (leveled && !(p->level = calloc((size_t)n, 1))))
        return error_set(err, ERR_NO_MEMORY, "no memory for the index of %" PRId64 " prompts", n);
    for (int64_t i = 0; ok && i < n; i++) {
        bool dropped = false;
        json_t *row = dataset_row(p->data, i, err);
        ok = row && prompt_make(&p->maker, row, &ids, &dropped, err)
             && (!leveled || dropped || row_level(row, c, &p->level[p->n_row], &levels, err));
        json_decref(row);
        if (!ok)
            error_wrap(err, "%s", dataset_where(p->data, i, where, sizeof where));
        else if (!dropped)
            p->usable[p->n_row++] = i;
        if (i % 1000 == 0)
            tick(ctx);
    }
    token_list_release(&ids);
    if (ok && p->n_row == 0) {
        json_t *row = dataset_row(p->data, 0, err);
        if (row)
            prompt_none_fits(&p->maker, c->dataset, row, err);
        json_decref(row);
        ok = false;
    }
    if (!ok || (leveled && !row_levels_check(&levels, c, err)))
        return false;
    if (!row_levels_any(&levels)) {
        free(p->level);
        p->level = NULL;
    }
    log_info("%" PRId64 " prompts, %" PRId64 " left out for their length", p->n_row, n - p->n_row);
    return true;
}

bool prompts_load(struct prompts *p, const struct run_config *c, void (*tick)(void *ctx), void *ctx, struct error *err)
{
    bool ok = false;
    struct dataset_columns columns = { c->prompt_column, c->answer_column, c->prompt_template };
    if (p->n_row > 0)
        return true;
    TRY((p->tokenizer = tokenizer_load(run_config_tokenizer(c), err)) && completion_tags_show(p->tokenizer, c->response_format_tags, err));
    TRY(p->encoder = encoder_new(p->tokenizer, true, err));
    TRY(template_find(run_config_tokenizer(c), &p->template, err));
    p->maker = prompt_maker_of(c, p->encoder, p->template);
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
    free(p->level);
    dataset_free(p->data);
    template_free(p->template);
    encoder_free(p->encoder);
    tokenizer_free(p->tokenizer);
    *p = (struct prompts){ 0 };
}
