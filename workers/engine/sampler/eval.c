#include "workers/engine/sampler/eval.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"

bool eval_tally_init(struct eval_tally *t, int64_t n_prompt, int64_t n_per_prompt, struct error *err)
{
    *t = (struct eval_tally){ .n_prompt = n_prompt, .n_per_prompt = n_per_prompt };
    if (n_prompt < 0 || n_per_prompt < 1)
        return error_set(err, ERR_SHAPE, "an evaluation of %" PRId64 " prompts with %" PRId64 " samples each is not possible", n_prompt,
                         n_per_prompt);
    t->judged = calloc((size_t)n_prompt + 1, sizeof *t->judged);
    t->correct = calloc((size_t)n_prompt + 1, sizeof *t->correct);
    if (!t->judged || !t->correct) {
        eval_tally_release(t);
        return error_set(err, ERR_NO_MEMORY, "no memory to evaluate %" PRId64 " prompts", n_prompt);
    }
    return true;
}

void eval_tally_release(struct eval_tally *t)
{
    free(t->judged);
    free(t->correct);
    *t = (struct eval_tally){ 0 };
}

bool eval_correct(const struct reward_output *out)
{
    return out->score == SCORE_OK && (out->ans_acc > 0.5f || out->verdict == VERDICT_EQUAL);
}

bool eval_judged(const struct reward_output *out)
{
    return out->score == SCORE_OK && (!isnan(out->ans_acc) || out->verdict == VERDICT_EQUAL);
}

void eval_tally_add(struct eval_tally *t, int64_t i, const struct reward_output *out, int64_t n_tok, enum finish_reason finish)
{
    BUG_IF(i < 0 || i >= t->n_prompt, "prompt %" PRId64 " of %" PRId64, i, t->n_prompt);
    t->n_sample++;
    t->n_tok += n_tok;
    t->n_tok_max = MAX(t->n_tok_max, n_tok);
    t->n_truncated += finish == FINISH_LENGTH;
    if (out->score != SCORE_OK) {
        t->n_left_out++;
        return;
    }
    bool correct = eval_correct(out), judged = eval_judged(out);
    t->n_scored++;
    t->n_judged += judged;
    t->n_correct += correct;
    t->n_format_known += !isnan(out->format_acc);
    t->n_format += out->format_acc > 0.5f;
    t->reward_sum += out->reward;
    t->judged[i] += judged;
    t->correct[i] += correct;
}

double eval_mean(const struct eval_tally *t)
{
    return t->n_judged ? (double)t->n_correct / (double)t->n_judged : NAN;
}

double eval_spread(const struct eval_tally *t)
{
    int64_t n = 0, mixed = 0;
    for (int64_t i = 0; i < t->n_prompt; i++) {
        n += t->judged[i] > 1;
        mixed += t->judged[i] > 1 && t->correct[i] > 0 && t->correct[i] < t->judged[i];
    }
    return n ? (double)mixed / (double)n : NAN;
}

double eval_reward_mean(const struct eval_tally *t)
{
    return t->n_scored ? t->reward_sum / (double)t->n_scored : NAN;
}

double pass_at_k(int64_t n, int64_t c, int64_t k)
{
    if (n - c < k)
        return 1;
    // the product form of the paper's numerically stable implementation: 1 - prod over i in (n-c, n] of (1 - k / i)
    double miss = 1;
    for (int64_t i = n - c + 1; i <= n; i++)
        miss *= 1 - (double)k / (double)i;
    return 1 - miss;
}

double eval_pass_at(const struct eval_tally *t, int64_t k)
{
    double sum = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < t->n_prompt; i++) {
        if (t->judged[i] < k)
            continue;
        sum += pass_at_k(t->judged[i], t->correct[i], k);
        n++;
    }
    return n ? sum / (double)n : NAN;
}

static json_t *json_number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

json_t *eval_tally_json(const struct eval_tally *t)
{
    json_t *pass_at = json_object();
    int64_t k[EVAL_K_MAX];
    int n_k = eval_ks(t->n_per_prompt, k);
    for (int i = 0; i < n_k; i++) {
        char name[24];
        snprintf(name, sizeof name, "%" PRId64, k[i]);
        json_object_set_new(pass_at, name, json_number(eval_pass_at(t, k[i])));
    }
    return json_pack("{s:I, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:I, s:I}", "n", (json_int_t)t->n_prompt, "mean",
                     json_number(eval_mean(t)), "pass_at", pass_at, "spread", json_number(eval_spread(t)), "n_sample",
                     (json_int_t)t->n_sample, "n_scored", (json_int_t)t->n_scored, "n_correct", (json_int_t)t->n_correct, "n_left_out",
                     (json_int_t)t->n_left_out, "n_truncated", (json_int_t)t->n_truncated, "format",
                     json_number(t->n_format_known ? (double)t->n_format / (double)t->n_format_known : NAN), "reward",
                     json_number(eval_reward_mean(t)), "tokens", (json_int_t)t->n_tok, "longest", (json_int_t)t->n_tok_max);
}

json_t *json_text(const char *text, size_t len)
{
    json_t *whole = json_stringn(text, len);
    if (whole)
        return whole;
    struct buf fixed = BUF_INIT;
    for (size_t i = 0; i < len;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(len - i), &c);
        if (n > 0)
            buf_add(&fixed, text + i, (size_t)n);
        else
            buf_str(&fixed, "\xef\xbf\xbd");
        i += n > 0 ? (size_t)n : 1;
    }
    json_t *json = fixed.failed ? NULL : json_stringn(buf_text(&fixed), fixed.len);
    buf_release(&fixed);
    return json;
}

/* Append json as a line; takes it. */
static bool json_line(struct buf *line, json_t *json, struct error *err)
{
    char *text = json ? json_text_dump(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    bool ok = text && buf_str(line, text) && buf_char(line, '\n');
    free(text);
    json_decref(json);
    return ok || error_set(err, ERR_NO_MEMORY, "no memory for a line of JSON");
}

/* The results of a program's tests. The metadata are those of the first test that did not pass, the only one whose
 * texts are kept; none when all passed. */
static void tests_record(json_t *json, const struct reward_output *out)
{
    json_t *metadata = json_array();
    int i = 0;
    while (i < out->tests.n && out->tests.code[i] == TEST_PASSED)
        i++;
    if (out->score != SCORE_OK || out->verdict != VERDICT_EQUAL) {
        json_t *one = json_object();
        json_object_set_new(one, "test", i < out->tests.n ? json_integer(i) : json_null());
        json_object_set_new(one, "error_message", json_text(out->rule, strlen(out->rule)));
        json_object_set_new(one, "output", json_text(out->pred, strlen(out->pred)));
        json_object_set_new(one, "expected", json_text(out->gold, strlen(out->gold)));
        json_array_append_new(metadata, one);
    }
    json_object_set_new(json, "test_results", test_results_json(&out->tests));
    json_object_set_new(json, "test_metadata", metadata);
}

bool eval_record_line(struct buf *line, const struct eval_record *r, struct error *err)
{
    const struct reward_output *out = r->out;
    json_t *json = json_object();
    json_t *gold = json_object_get(r->row, "gt_answer"), *cases = json_object_get(r->row, "test_cases");
    json_object_set_new(json, "prompt", json_text(r->prompt, strlen(r->prompt)));
    json_object_set_new(json, "prediction", json_text(r->prediction, (size_t)r->prediction_len));
    if (gold || !cases)    // gt_answer wins when both are present
        json_object_set_new(json, "gold", gold ? json_deep_copy(gold) : json_null());
    else
        json_object_set_new(json, "test_cases", json_deep_copy(cases));
    if (!gold && cases)
        tests_record(json, out);
    json_object_set_new(json, "parsed", out->pred[0] ? json_text(out->pred, strlen(out->pred)) : json_null());
    json_object_set_new(json, "format_valid", isnan(out->format_acc) ? json_null() : json_integer(out->format_acc > 0.5f));
    json_object_set_new(json, "ans_valid", out->score == SCORE_OK && !eval_judged(out) ? json_null() : json_integer(eval_correct(out)));
    json_object_set_new(json, "response_length", json_integer(r->n_tok));
    json_object_set_new(json, "reward", out->score == SCORE_OK ? json_number(out->reward) : json_null());
    json_object_set_new(json, "row", json_integer(r->prompt_row));
    json_object_set_new(json, "sample", json_integer(r->sample));
    json_object_set_new(json, "finish_reason", json_string(r->finish == FINISH_STOP ? "stop" : "length"));
    json_object_set_new(json, "rule", json_text(out->rule, strlen(out->rule)));
    json_object_set_new(json, "scored", json_boolean(out->score == SCORE_OK));
    if (r->run && r->run[0])
        json_object_set_new(json, "run", json_string(r->run));
    return json_line(line, json, err);
}

static void name_add(struct buf *out, const char *s)
{
    for (const char *p = s; *p; p++)
        buf_char(out, path_plain(*p, p == s));
}

bool eval_file_path(char *out, size_t size, const char *dir, const char *project, const char *task, int64_t step, struct error *err)
{
    struct buf path = { .max = size ? size - 1 : 1 };
    buf_fmt(&path, "%s/", dir);
    if (project) {
        name_add(&path, project);
        buf_char(&path, '/');
    }
    name_add(&path, task);
    buf_fmt(&path, "_training_step_%" PRId64 ".jsonl", step);
    bool ok = !path.failed || error_set(err, ERR_USAGE, "the path of evaluation '%s' under '%s' is too long", task, dir);
    if (ok)
        memcpy(out, path.data, path.len + 1);
    buf_release(&path);
    return ok;
}

bool rollout_log_line(struct buf *line, int64_t train_step, const char *const *text, int64_t n, struct error *err)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++)
        json_array_append_new(list, json_text(text[i], strlen(text[i])));
    return json_line(line, json_pack("{s:I, s:o}", "train_step", (json_int_t)train_step, "rollout", list), err);
}
