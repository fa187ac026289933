#include "workers/engine/reward/verify/verify.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "protocol/base/json_text.h"
#include "protocol/base/utf8.h"
#include "workers/engine/reward/remote.h"
#include "workers/engine/reward/sandbox/sandbox.h"
#include "workers/engine/reward/verify/judge.h"

// clang-format off
static const struct verifier verifiers[] = {
    { "gsm8k", "a number", verify_gsm8k_check, verify_gsm8k },
    { "math", "a LaTeX answer", NULL, verify_math },
    { "strict_math", "a LaTeX answer", NULL, verify_strict_math },
    { "ifeval", "instructions with their arguments", verify_ifeval_check, verify_ifeval },
    { "ifeval_old", "a function with its arguments", verify_ifeval_old_check, verify_ifeval_old },
    { "flan", "a text", NULL, verify_flan },
    { "string_matcher", "a text", NULL, verify_string_matcher },
    { "string_f1", "a text or a list of texts", verify_labels_check, verify_string_f1 },
    { "puzzle", "a text", NULL, verify_puzzle },
    { "re_search", "a text or a list of texts, also as JSON", verify_labels_check, verify_re_search },
    { "re_search_f1", "a text or a list of texts, also as JSON", verify_labels_check, verify_re_search_f1 },
    { "max_length", "a number of tokens", verify_length_check, verify_max_length },
    { "up_to_max_length", "a number of tokens", verify_length_check, verify_up_to_max_length },
    { "code", "a list of assertions", verify_code_check, verify_code },
    { "code_stdio", "a list of {input, output}", verify_code_stdio_check, verify_code_stdio },
    { "rubric", "an object with query and rubrics", verify_rubric_check, verify_rubric },
    { "general-quality", "anything", verify_any_check, verify_judged },
    { "general-quality_ref", "a reference answer", NULL, verify_judged },
    { "general-quality_rubric", "criteria", NULL, verify_judged },
    { "general-safety", "what is expected", verify_any_check, verify_judged },
    { "general-factuality", "a reference answer", NULL, verify_judged },
    { "general-creative_writing", "a reference", NULL, verify_judged },
    { "general-refusal", "a reference answer", NULL, verify_judged },
    { "general-web_instruct_general_verifier", "the right answer", NULL, verify_judged },
    { "judge", "what is expected", verify_any_check, verify_judged },
    { "passthrough", "anything", verify_any_check, verify_passthrough },
};
// clang-format on

const struct verifier *verify_table(size_t *n)
{
    *n = ARRAY_SIZE(verifiers);
    return verifiers;
}

const struct verifier *verify_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(verifiers); i++)
        if (strcasecmp(verifiers[i].name, name) == 0)
            return &verifiers[i];
    return NULL;
}

bool verify_host_init(struct verify_host *h, const struct verify_options *options, struct error *err)
{
    struct math_config exact = MATH_CONFIG_DEFAULT;
    *h = (struct verify_host){ .options = *options };
    const char **texts[] = { &h->options.code_api_url,    &h->options.code_key_file,      &h->options.llm_judge_url,
                             &h->options.llm_judge_model, &h->options.llm_judge_key_file, &h->options.llm_judge_template };
    h->options.remap_verifier = NULL;    // borrowed until we return; the others are copied
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        if (*texts[i] && !(*texts[i] = h->text[i] = strdup(*texts[i]))) {
            verify_host_release(h);
            return error_set(err, ERR_NO_MEMORY, "no memory for a verifier");
        }
    h->regexes = regexes_new(err);
    h->math = h->regexes ? math_new(&exact, err) : NULL;
    if (!h->math)
        verify_host_release(h);
    return h->math != NULL;
}

void verify_host_release(struct verify_host *h)
{
    regexes_free(h->regexes);
    math_free(h->math);
    sandbox_host_free(h->sandboxes);
    remote_free(h->remote);
    judge_free(h->judge);
    for (size_t i = 0; i < VERIFY_TEXTS; i++)
        free(h->text[i]);
    pool_release(&h->pool);
    *h = (struct verify_host){ 0 };
}

static bool plain_check(const struct verifier *v, const json_t *truth, struct error *err)
{
    if (json_is_string(truth) || json_is_number(truth))
        return true;
    return error_set(err, ERR_DATA, "the ground truth must be %s", v->truth);
}

bool verify_check(struct verify_host *h, const struct verifier *v, const json_t *truth, struct error *err)
{
    bool ok = v->check ? v->check(h, truth, err) : plain_check(v, truth, err);
    pool_release(&h->pool);
    return ok || error_wrap(err, "verifier '%s'", v->name);
}

void verify_run(struct verify_host *h, const struct verifier *v, const struct verify_input *in, struct verify_result *out)
{
    struct error err = { 0 };
    struct verify_input valid = *in;
    *out = (struct verify_result){ .state = SCORE_OK };
    h->verifier = v;
    valid.text = text_valid(&h->pool, in->text);
    if (v->check ? !v->check(h, in->truth, &err) : !plain_check(v, in->truth, &err))
        verify_fail(out, SCORE_ERROR, "%s", err.text);
    else
        v->score(h, &valid, out);
    if (h->pool.failed)
        verify_fail(out, SCORE_ERROR, "no memory");
    if (regexes_failed(h->regexes, &err))
        verify_fail(out, SCORE_ERROR, "%s", err.text);
    if (!isfinite(out->score))
        out->score = 0;
    pool_release(&h->pool);
}

struct span verify_truth(struct verify_host *h, const json_t *truth)
{
    char number[64];
    if (json_odd_text(truth))
        return span_str(pool_str(&h->pool, span_str(json_odd_text(truth))));
    if (json_is_string(truth))
        return span_of(json_string_value(truth), json_string_length(truth));
    if (json_is_integer(truth))
        snprintf(number, sizeof number, "%" PRId64, (int64_t)json_integer_value(truth));
    else if (json_is_real(truth))    // the fewest digits that read back; a whole number keeps its ".0"
        for (int digits = 1; digits <= 17; digits++) {
            snprintf(number, sizeof number, "%.*g", digits, json_real_value(truth));
            if (strtod(number, NULL) == json_real_value(truth)) {
                if (!strpbrk(number, ".en"))
                    strcat(number, ".0");
                break;
            }
        }
    if (json_is_number(truth))
        return span_str(pool_str(&h->pool, span_str(number)));
    char *text = json_text_dump(truth, JSON_ENCODE_ANY | JSON_COMPACT);
    struct span copy = span_str(text ? pool_str(&h->pool, span_str(text)) : "");
    free(text);
    return copy;
}

void verify_say(struct verify_result *out, const char *why, struct span pred, struct span gold)
{
    snprintf(out->why, sizeof out->why, "%s", why);
    utf8_copy(out->pred, sizeof out->pred, pred.s, pred.len);
    utf8_copy(out->gold, sizeof out->gold, gold.s, gold.len);
}

void verify_fail(struct verify_result *out, enum score_state state, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(out->why, sizeof out->why, fmt, args);
    va_end(args);
    out->state = state;
    out->score = 0;
}
