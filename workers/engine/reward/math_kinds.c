/* math_kinds.c - the rewards that compare a mathematical answer with gt_answer: boxed, think_answer_tags, math
 *
 * Scores as ColossalChat gives them (its distributed GRPO, reward functions): 10 for a right answer in a valid
 * format, 5 when only the text matches because the answer is not mathematics we can read, 0 otherwise; the soft
 * over-length punishment is added wherever an answer was found. One difference is on purpose: there an answer that
 * makes the verifier fail is wrong; here "cannot tell" leaves the sample out. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/json_text.h"
#include "protocol/base/utf8.h"
#include "workers/engine/reward/answer.h"
#include "workers/engine/reward/kind.h"
#include "workers/engine/reward/math/math.h"

#define SCORE_TEXT 5.0    // only the text matches

enum answer_form {
    FORM_BOXED,
    FORM_TAGS,
    FORM_WHOLE,
};

/* The row's gt_answer as text; a number is formatted into buf. NULL: there is none. */
static const char *gold_text(const json_t *row, size_t *len, char *buf, size_t size)
{
    const json_t *v = row ? json_object_get(row, "gt_answer") : NULL;
    if (json_odd_text(v)) {
        *len = strlen(json_odd_text(v));
        return json_odd_text(v);
    }
    if (json_is_string(v)) {
        *len = json_string_length(v);
        return *len > 0 ? json_string_value(v) : NULL;
    }
    if (json_is_integer(v))
        snprintf(buf, size, "%" PRId64, (int64_t)json_integer_value(v));
    else if (json_is_real(v))
        snprintf(buf, size, "%.15g", json_real_value(v));
    else
        return NULL;
    *len = strlen(buf);
    return buf;
}

static void one_score(struct math *m, enum answer_form form, const struct reward_config *config, const struct reward_input *in,
                      struct reward_output *out)
{
    struct math_result res = { .verdict = VERDICT_DIFFERENT };
    struct span pred;
    char num[64];
    size_t gold_len = 0;
    const char *gold = gold_text(in->row, &gold_len, num, sizeof num);
    if (!gold) {
        out->score = SCORE_ERROR;
        snprintf(out->rule, sizeof out->rule, "no gt_answer");
        return;
    }
    utf8_copy(out->gold, sizeof out->gold, gold, gold_len);
    const struct answer_tags *tags = config->tags ? config->tags : &answer_tags_default;
    bool found = true, format = true;
    switch (form) {
    case FORM_BOXED: format = found = answer_boxed(in->response, in->response_len, &pred); break;
    case FORM_TAGS:
        found = answer_tagged(in->response, in->response_len, tags, &pred);
        format = found && answer_tags_valid(in->response, in->response_len, tags);
        break;
    case FORM_WHOLE: math_response(m, in->response, in->response_len, gold, gold_len, &res); break;
    }
    out->format_acc = format;
    if (!found) {
        out->score = SCORE_OK;
        out->verdict = VERDICT_DIFFERENT;
        snprintf(out->rule, sizeof out->rule, "no answer found");
        return;
    }
    if (form != FORM_WHOLE)
        math_answer(m, pred.s, pred.len, gold, gold_len, &res);
    memcpy(out->pred, res.pred, sizeof out->pred);
    memcpy(out->gold, res.gold, sizeof out->gold);
    out->verdict = res.verdict;
    snprintf(out->rule, sizeof out->rule, "%s", res.rule ? res.rule : "");
    bool counts = format || config->eval;
    if (counts && res.verdict == VERDICT_CANNOT_TELL)
        return;    // left out, with its reason
    out->score = SCORE_OK;
    out->ans_acc = counts && res.verdict == VERDICT_EQUAL;
    out->reward = (out->ans_acc > 0 ? res.pred_parsed ? REWARD_ACC : SCORE_TEXT : 0) + reward_length_punishment(config, in);
}

static void all_score(struct math *m, enum answer_form form, const struct reward_config *config, const struct reward_input *in,
                      struct reward_output *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t start = clock_ns();
        one_score(m, form, config, &in[i], &out[i]);
        out[i].us = (double)(clock_ns() - start) * 1e-3;
    }
}

static bool gold_check(UNUSED void *self, const json_t *row, struct error *err)
{
    char number[64];
    size_t len;
    if (gold_text(row, &len, number, sizeof number))
        return true;
    if (json_object_get(row, "gt_answer"))
        return error_set(err, ERR_DATA, "'gt_answer' is %s; give the answer, or take the row out",
                         json_is_string(json_object_get(row, "gt_answer")) ? "empty" : "neither a text nor a number");
    return error_set(err, ERR_DATA, "'gt_answer' is missing; %s",
                     json_object_get(row, "test_cases") ? "the row has 'test_cases', for the reward types code and code_share"
                                                        : "name the column that holds it with answer_column, or use another reward_type");
}

static bool math_open(void **self, UNUSED const struct reward_config *config, UNUSED const char *arg, struct error *err)
{
    struct math_config mc = MATH_CONFIG_DEFAULT;
    return (*self = math_new(&mc, err)) != NULL;
}

static void math_close(void *self)
{
    math_free(self);
}

static void boxed_score(void *self, const struct reward_config *config, const struct reward_input *in, struct reward_output *out, int64_t n)
{
    all_score(self, FORM_BOXED, config, in, out, n);
}

static void think_score(void *self, const struct reward_config *config, const struct reward_input *in, struct reward_output *out, int64_t n)
{
    all_score(self, FORM_TAGS, config, in, out, n);
}

static void math_score(void *self, const struct reward_config *config, const struct reward_input *in, struct reward_output *out, int64_t n)
{
    all_score(self, FORM_WHOLE, config, in, out, n);
}

/* The prompts are ColossalChat's own, including the missing space between "and" and "<answer>" and the two line ends. */
const struct reward_kind reward_kind_boxed = {
    .name = "boxed",
    .system_prompt = "Please reason step by step, and put your final answer within \\boxed{}.",
    .open = math_open,
    .close = math_close,
    .row_check = gold_check,
    .score = boxed_score,
};
const struct reward_kind reward_kind_think = {
    .name = "think_answer_tags",
    .system_prompt = "You are a helpful assistant. The assistant first thinks about the reasoning process in the mind and then provides "
                     "the user with the answer. The reasoning process and answer are enclosed within <think> </think> and<answer> "
                     "</answer> tags, respectively, i.e., <think> reasoning process here </think><answer> answer here </answer>. Now the "
                     "user asks you to solve a math problem that involves reasoning. After thinking, when you finally reach a "
                     "conclusion, clearly output the final answer without explanation within the <answer> </answer> tags, i.e., "
                     "<answer> 123 </answer>.\n\n",
    .stop_string = "</answer>",
    .open = math_open,
    .close = math_close,
    .row_check = gold_check,
    .score = think_score,
};
const struct reward_kind reward_kind_math = {
    .name = "math",
    .open = math_open,
    .close = math_close,
    .row_check = gold_check,
    .score = math_score,
};
