#include "console/tools/sampling_options.h"
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "workers/engine/load/tool_model.h"
#include "workers/engine/model/model.h"
#include "workers/engine/text/tokenizer.h"

/* Models sample in single precision. */
static bool number_check(const char *option, double v, struct error *err)
{
    return v == 0 || fabs(v) >= FLT_MIN
           || error_set(err, ERR_USAGE, "--%s is %g; the least number other than 0 is %.2g", option, v, (double)FLT_MIN);
}

bool sampling_options_check(struct sampling_options *o, struct error *err)
{
    struct sampling s = { .temperature = (float)o->temperature,
                          .top_p = (float)o->top_p,
                          .min_p = (float)o->min_p,
                          .top_k = (int32_t)o->top_k,
                          .max_new_tok = o->max_new_tok,
                          .min_new_tok = o->min_new_tok };
    if (o->top_k < 0 || o->top_k > INT32_MAX)
        return error_set(err, ERR_USAGE, "--top-k is %" PRId64 "; it must be between 0 (off) and %d", o->top_k, INT32_MAX);
    if (!number_check("temperature", o->temperature, err) || !number_check("top-p", o->top_p, err) || !number_check("min-p", o->min_p, err))
        return false;
    if (o->stop && (!*o->stop || strlen(o->stop) > SAMPLING_STOP_STRING_MAX))
        return error_set(err, ERR_USAGE, "--stop must have between 1 and %d bytes", SAMPLING_STOP_STRING_MAX);
    if (o->batch < 1 || o->batch > 65536)
        return error_set(err, ERR_USAGE, "--batch is %" PRId64 "; it must be between 1 and 65536", o->batch);
    if (o->max_prompt_tok < 0)
        return error_set(err, ERR_USAGE, "--max-prompt-tokens is %" PRId64 "; it must be at least 1, or 0 for what the model allows",
                         o->max_prompt_tok);
    return long_prompt_parse(o->long_prompt_name, &o->long_prompt, err) && sampling_check(&s, err);
}

int64_t sampling_options_max_prompt(const struct sampling_options *o, const struct model *m)
{
    int64_t most = config_longest(model_config(m)) - 1;
    return o->max_prompt_tok > 0 ? MIN(o->max_prompt_tok, most) : most;
}

void prompt_notes_print(const struct prompt_maker *p)
{
    struct buf notes = BUF_INIT;
    prompt_maker_notes(p, &notes);
    fputs(buf_text(&notes), stderr);
    buf_release(&notes);
}

void sampling_options_for(const struct sampling_options *o, const struct tool_model *t, int64_t n_prompt, struct sampling *out)
{
    const struct model_config *mc = model_config(t->model);
    *out = (struct sampling){ .temperature = (float)o->temperature,
                              .top_p = (float)o->top_p,
                              .min_p = (float)o->min_p,
                              .top_k = (int32_t)o->top_k,
                              .ignore_eos = o->ignore_eos,
                              .max_new_tok = MIN(o->max_new_tok, config_longest(mc) - n_prompt) };
    out->min_new_tok = MIN(o->min_new_tok, out->max_new_tok);
    int n_eos = 0;
    const int32_t *eos = t->tokenizer ? tokenizer_eos(t->tokenizer, &n_eos) : NULL;
    for (int i = 0; i < n_eos; i++)
        sampling_add_stop(out, eos[i]);
    if (n_eos == 0)
        for (int i = 0; i < mc->n_eos; i++)
            sampling_add_stop(out, mc->eos[i]);
    if (o->stop)
        snprintf(out->stop_string, sizeof out->stop_string, "%s", o->stop);
}

struct generator *sampling_options_engine(const struct sampling_options *o, const struct tool_model *t, int64_t longest, int64_t max_item,
                                          struct error *err)
{
    int64_t most = config_longest(model_config(t->model));
    struct generator_config config = {
        .model = t->model,
        .tokenizer = t->tokenizer,
        .max_seq = o->batch,
        .max_item = max_item,
        .max_seq_tok = MAX(2, MIN(most, longest + MIN(o->max_new_tok, most))),
    };
    model_length_set(t->model, config.max_seq_tok);
    return generator_new(&config, err);
}
