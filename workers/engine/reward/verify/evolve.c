/* evolve.c - rubrics that grow: criteria which the judge finds missing when it compares the responses to a prompt
 *
 * As open-instruct's evolving rubrics: after a prompt's responses have been scored, its active criteria that all of them meet alike are
 * retired, the rest are kept by how far they spread the responses, and where there is room the judge writes new ones, for what makes
 * responses good (weight 1) or bad (weight -1). The prompt's responses in later episodes are scored by the row's own rubric and these. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/utf8.h"
#include "workers/engine/reward/verify/judge.h"
#include "workers/engine/reward/verify/verify.h"

#define CRITERION_BYTES_MAX 600
#define SYSTEM                                                                                                                               \
    "You get a question, several responses to it, and the criteria by which they are judged already. Compare the responses. Say what "       \
    "makes some of them good, or bad, that no criterion covers yet: general enough for other responses to the same question, and such that " \
    "one can tell from a response alone whether it holds. Answer with JSON only: {\"positive\": [\"a good response ...\"], \"negative\": "   \
    "[\"a bad response ...\"]}, with empty lists when nothing is missing."

/* Standard deviation of criterion k over the responses that were scored by it. */
static double spread_of(const struct reward_output *out, int64_t n, int k)
{
    double m = 0, sum = 0, sum2 = 0;
    for (int64_t i = 0; i < n; i++)
        if (out[i].score == SCORE_OK && k < out[i].n_criterion) {
            m++;
            sum += (double)out[i].criterion[k];
            sum2 += (double)(out[i].criterion[k] * out[i].criterion[k]);
        }
    return m > 0 ? sqrt(fmax(sum2 / m - sum / m * (sum / m), 0)) : 0;
}

/* The active criteria that spread the responses, widest first, of equal ones the older first. */
static json_t *survivors(const json_t *active, const struct reward_output *out, int64_t n, int64_t most)
{
    json_t *kept = json_array();
    bool taken[CRITERIA_EVOLVING_MAX] = { false };
    int n_active = (int)MIN(json_array_size(active), (size_t)CRITERIA_EVOLVING_MAX);
    while ((int64_t)json_array_size(kept) < most) {
        int best = -1;
        double widest = 0;
        for (int k = 0; k < n_active; k++) {
            double spread = taken[k] ? 0 : spread_of(out, n, k);
            if (spread > widest + 1e-9)
                best = k, widest = spread;
        }
        if (best < 0)
            break;
        taken[best] = true;
        json_array_append(kept, json_array_get(active, (size_t)best));
    }
    return kept;
}

static void text_add(struct buf *out, const char *text, size_t len, size_t most)
{
    size_t n = utf8_cut(text, len, most);
    buf_add(out, text, n);
    buf_str(out, n < len ? "[...]\n" : "\n");
}

static void prompt_make(struct verify_host *h, const json_t *truth, const json_t *kept, const struct reward_input *in, int64_t n,
                        struct buf *out)
{
    const json_t *query = json_object_get(truth, "query"), *one;
    const struct verify_options *o = &h->options;
    size_t i, room = (size_t)MAX(o->llm_judge_max_context_length - o->llm_judge_max_tokens - 400, 512) / (size_t)(n + 1) * 2;    // bytes
    query = query ? query : json_object_get(truth, "Question");
    buf_str(out, "<question>\n");
    if (json_is_string(query))
        text_add(out, json_string_value(query), json_string_length(query), room);
    buf_str(out, "</question>\n<criteria>\n");
    const json_t *lists[] = { json_object_get(truth, "rubrics"), kept };
    for (size_t k = 0; k < ARRAY_SIZE(lists); k++)
        json_array_foreach(lists[k], i, one)
        {
            const json_t *text = verify_criterion_text(one);
            if (text)
                text_add(out, json_string_value(text), json_string_length(text), CRITERION_BYTES_MAX);
        }
    buf_str(out, "</criteria>\n");
    for (int64_t k = 0; k < n; k++) {
        buf_str(out, "<response>\n");
        text_add(out, in[k].response, in[k].response_len, room);
        buf_str(out, "</response>\n");
    }
}

/* Add the judge's criteria of one list to kept, as far as there is room. Returns how many. */
static int criteria_add(json_t *kept, const json_t *list, double weight, int64_t most)
{
    int n = 0;
    size_t i;
    const json_t *one;
    json_array_foreach(list, i, one)
    {
        const char *text = json_string_value(one);
        if (!text || !*text || (int64_t)json_array_size(kept) >= most)
            continue;
        size_t len = utf8_cut(text, json_string_length(one), CRITERION_BYTES_MAX);
        json_array_append_new(kept, json_pack("{s:o, s:f}", "description", json_stringn(text, len), "weight", weight));
        n++;
    }
    return n;
}

json_t *verify_rubric_evolve(struct verify_host *h, const json_t *truth, const struct reward_input *in, const struct reward_output *out,
                             int64_t n)
{
    struct error err = { 0 };
    struct buf prompt = BUF_INIT, answer = BUF_INIT;
    const json_t *active = json_object_get(in[0].row, EVOLVING_KEY);
    int64_t most = h->options.max_active_rubrics;
    json_t *kept = survivors(active, out, n, most), *said = NULL;
    int written = 0;
    bool asked = (int64_t)json_array_size(kept) < most, ok = true;
    if (asked) {
        prompt_make(h, truth, kept, in, n, &prompt);
        ok = verify_judge_open(h, &err)
             && judge_ask(h->judge, SYSTEM, buf_text(&prompt), prompt.len, h->options.llm_judge_temperature, &answer, &err)
             && ((said = judge_json_object(buf_text(&answer), answer.len)) || error_set(&err, ERR_DATA, "the judge wrote no criteria"));
        written += criteria_add(kept, json_object_get(said, "positive"), 1, most);
        written += criteria_add(kept, json_object_get(said, "negative"), -1, most);
    }
    json_decref(said);
    buf_release(&prompt);
    buf_release(&answer);
    return json_pack("{s:o, s:I, s:i, s:b, s:s}", "active", kept, "judged", (json_int_t)json_array_size(active), "written", written,
                     "failed", !ok, "why", ok ? "" : err.text);
}
