#include "workers/engine/sampler/external_wire.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include "protocol/base/json_text.h"
#include "protocol/record/bounds.h"

#define DEAD_IDS_MAX 4096    // more are no padding of the vocabulary

bool external_kind_parse(const char *name, enum external_kind *out)
{
    *out = strcmp(name, "sglang") == 0 ? EXTERNAL_SGLANG : EXTERNAL_VLLM;
    return strcmp(name, "sglang") == 0 || strcmp(name, "vllm") == 0;
}

const char *external_path(enum external_kind kind)
{
    return kind == EXTERNAL_VLLM ? "/v1/completions" : "/generate";
}

/* ---- requests */
static void ids_print(struct buf *out, const char *name, const int32_t *id, int64_t n)
{
    buf_fmt(out, "\"%s\":[", name);
    for (int64_t i = 0; i < n; i++)
        buf_fmt(out, i ? ",%d" : "%d", id[i]);
    buf_str(out, "]");
}

static void text_print(struct buf *out, const char *text)
{
    json_text_print(out, text, strlen(text), JSON_TEXT_UTF8);
}

/* The settings that both know, nearly all by the same names. Each with a default that may come from generation_config.json is sent. */
static void sampling_print(struct buf *out, enum external_kind kind, const struct generator_item *it)
{
    const struct sampling *s = &it->sampling;
    buf_fmt(out, "\"n\":%d,\"temperature\":%.9g,\"top_p\":%.9g,\"top_k\":%d,\"min_p\":%.9g,\"ignore_eos\":%s,\"skip_special_tokens\":false",
            it->n_sample, (double)s->temperature, (double)s->top_p, s->top_k > 0 ? s->top_k : -1, (double)s->min_p,
            s->ignore_eos ? "true" : "false");
    if (s->min_new_tok > 0)
        buf_fmt(out, ",\"%s\":%" PRId64, kind == EXTERNAL_VLLM ? "min_tokens" : "min_new_tokens", s->min_new_tok);
    if (s->n_stop_token > 0 && !s->ignore_eos) {
        buf_str(out, ",");
        ids_print(out, "stop_token_ids", s->stop_token, s->n_stop_token);
    }
    if (s->stop_string[0]) {
        buf_str(out, ",\"stop\":[");
        text_print(out, s->stop_string);
        buf_str(out, "]");
    }
}

/* Both allow -100 at most, which leaves such an id e^-100 of what it had. */
static void dead_ids_print(struct buf *out, int64_t n_id, int64_t n_vocab)
{
    if (n_vocab <= n_id || n_vocab - n_id > DEAD_IDS_MAX)
        return;
    buf_str(out, "\"logit_bias\":{");
    for (int64_t id = n_id; id < n_vocab; id++)
        buf_fmt(out, id > n_id ? ",\"%" PRId64 "\":-100" : "\"%" PRId64 "\":-100", id);
    buf_str(out, "},");
}

void external_request(struct buf *out, enum external_kind kind, const struct generator_item *it, const char *model, bool adapter,
                      int64_t n_id, int64_t n_vocab)
{
    /* one seed per request, of which an engine makes one for each sample */
    uint64_t seed = (it->seed[0] * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)it->item * UINT64_C(0xbf58476d1ce4e5b9)) >> 33;
    buf_str(out, "{");
    if (kind == EXTERNAL_VLLM) {
        buf_str(out, "\"model\":");
        text_print(out, model);
        buf_str(out, ",");
        ids_print(out, "prompt", it->prompt, it->n_prompt);
        buf_fmt(out, ",\"max_tokens\":%" PRId64 ",\"seed\":%" PRIu64 ",\"logprobs\":0,\"return_token_ids\":true,", it->sampling.max_new_tok,
                seed);
        buf_str(out, "\"include_stop_str_in_output\":true,\"stream\":false,");
        dead_ids_print(out, n_id, n_vocab);
        sampling_print(out, kind, it);
        buf_str(out, "}");
    } else {
        ids_print(out, "input_ids", it->prompt, it->n_prompt);
        buf_str(out, ",\"return_logprob\":true,\"logprob_start_len\":-1,\"return_text_in_logprobs\":false,\"stream\":false,");
        if (adapter) {
            buf_str(out, "\"lora_path\":");
            text_print(out, model);
            buf_str(out, ",");
        }
        buf_fmt(out, "\"sampling_params\":{\"max_new_tokens\":%" PRId64 ",\"no_stop_trim\":true,", it->sampling.max_new_tok);
        dead_ids_print(out, n_id, n_vocab);
        sampling_print(out, kind, it);
        buf_str(out, "}}");
    }
}

/* ---- answers */
/* One sample in an answer; all borrowed from it. */
struct reply_sample {
    const json_t *ids, *logps;    // vLLM's: lists of numbers; SGLang's: logps is a list of [log-prob, id, text], ids is NULL
    const char *finish;
    int64_t n;
};

static int64_t version_read(const json_t *v)
{
    char *end;
    int64_t n = json_is_integer(v) ? json_integer_value(v) : -1;
    const char *text = json_string_value(v);
    if (text && text[0] >= '0' && text[0] <= '9') {
        n = strtoll(text, &end, 10);
        n = *end ? -1 : n;    // SGLang's first is "default"
    }
    return n;
}

/* Sample i of an answer; *version as in external_answer. */
static bool sample_find(enum external_kind kind, const json_t *root, int64_t i, struct reply_sample *s, int64_t *version, struct error *err)
{
    if (kind == EXTERNAL_VLLM) {
        const json_t *c = json_array_get(json_object_get(root, "choices"), (size_t)i);
        s->ids = json_object_get(c, "token_ids");
        s->logps = json_object_get(json_object_get(c, "logprobs"), "token_logprobs");
        s->finish = json_string_value(json_object_get(c, "finish_reason"));
        s->n = (int64_t)json_array_size(s->ids);
        *version = version_read(json_object_get(root, "weight_version"));
        if (!json_is_array(s->ids))
            return error_set(err, ERR_DATA, "choice %" PRId64 " has no 'token_ids' (return_token_ids, which vLLM knows since 0.10)", i);
        if ((int64_t)json_array_size(s->logps) != s->n)
            return error_set(err, ERR_DATA, "choice %" PRId64 " has %" PRId64 " token_ids and %zu token_logprobs", i, s->n,
                             json_array_size(s->logps));
        return true;
    }
    const json_t *meta = json_object_get(json_is_array(root) ? json_array_get(root, (size_t)i) : root, "meta_info");
    const json_t *finish = json_object_get(meta, "finish_reason");
    s->ids = NULL;
    s->logps = json_object_get(meta, "output_token_logprobs");
    s->finish = json_string_value(json_is_object(finish) ? json_object_get(finish, "type") : finish);
    s->n = (int64_t)json_array_size(s->logps);
    *version = version_read(json_object_get(meta, "weight_version"));
    return json_is_array(s->logps) || error_set(err, ERR_DATA, "sample %" PRId64 " has no 'output_token_logprobs' (return_logprob)", i);
}

static bool samples_count(enum external_kind kind, const json_t *root, int64_t want, struct error *err)
{
    const json_t *list = kind == EXTERNAL_VLLM ? json_object_get(root, "choices") : root;
    int64_t n = json_is_array(list) ? (int64_t)json_array_size(list) : kind == EXTERNAL_SGLANG && json_is_object(root) ? 1 : -1;
    if (n < 0)
        return error_set(err, ERR_DATA, "the answer has no '%s'", kind == EXTERNAL_VLLM ? "choices" : "meta_info");
    return n == want || error_set(err, ERR_DATA, "the answer has %" PRId64 " samples instead of %" PRId64, n, want);
}

static bool sample_check(const struct reply_sample *s, int64_t i, const struct generator_item *it, struct error *err)
{
    bool stop = s->finish && strcmp(s->finish, "stop") == 0, length = s->finish && strcmp(s->finish, "length") == 0;
    if (!stop && !length)
        return error_set(err, ERR_DATA, "sample %" PRId64 " ended with '%.40s', neither stop nor length", i,
                         s->finish ? s->finish : "null");
    if (s->n < 1 || s->n > it->sampling.max_new_tok)
        return error_set(err, ERR_DATA, "sample %" PRId64 " has %" PRId64 " tokens; asked for were 1 to %" PRId64, i, s->n,
                         it->sampling.max_new_tok);
    return true;
}

/* Sample i into g, whose tokens up to `at` are set. */
static bool sample_put(struct group *g, int64_t at, const struct reply_sample *s, int64_t i, const struct generator_item *it, int64_t n_id,
                       struct error *err)
{
    g->sample[i] = (struct sample){
        .first_tok = at, .n_tok = s->n, .seed = it->seed[i], .finish = strcmp(s->finish, "stop") == 0 ? FINISH_STOP : FINISH_LENGTH
    };
    for (size_t k = 0; k < GROUP_PARTS_MAX; k++)
        g->sample[i].part[k] = NAN;
    for (int64_t t = 0; t < s->n; t++) {
        const json_t *pair = json_array_get(s->logps, (size_t)t), *lp = s->ids ? pair : json_array_get(pair, 0);
        const json_t *id = s->ids ? json_array_get(s->ids, (size_t)t) : json_array_get(pair, 1);
        double logp = json_number_value(lp);
        bool fits = (json_is_integer(id) || error_set(err, ERR_DATA, "it has no id"))
                    && (json_is_number(lp) || error_set(err, ERR_DATA, "it has no log-prob"))
                    && bound_id_check(json_integer_value(id), n_id, err) && bound_check(BOUND_LOGP, logp, err);
        if (!fits)
            return error_wrap(err, "token %" PRId64 " of sample %" PRId64, t, i);
        g->token[at + t] = (int32_t)json_integer_value(id);
        g->logp[at + t] = (float)logp;
    }
    return true;
}

static struct group *group_from(enum external_kind kind, const json_t *root, const struct generator_item *it, int64_t n_id,
                                int64_t *version, struct error *err)
{
    struct reply_sample s;
    int64_t n_tok = 0, at = 0;
    for (int32_t i = 0; i < it->n_sample; i++) {
        if (!sample_find(kind, root, i, &s, version, err) || !sample_check(&s, i, it, err))
            return NULL;
        n_tok += s.n;
    }
    struct group *g = group_new(it->n_prompt, it->n_sample, n_tok, err);
    if (!g)
        return NULL;
    g->item = it->item;
    g->prompt_row = it->prompt_row;
    g->rollout_step = it->rollout_step;
    g->temperature = it->sampling.temperature;
    g->top_p = it->sampling.top_p;
    g->top_k = it->sampling.top_k;
    g->max_new_tok = it->sampling.max_new_tok;
    memcpy(g->prompt, it->prompt, (size_t)it->n_prompt * sizeof *g->prompt);
    for (int32_t i = 0; i < it->n_sample; i++, at += s.n)
        if (!sample_find(kind, root, i, &s, version, err) || !sample_put(g, at, &s, i, it, n_id, err)) {
            group_free(g);
            return NULL;
        }
    return g;
}

struct group *external_answer(enum external_kind kind, const struct generator_item *it, int64_t n_id, const char *text, size_t len,
                              int64_t *version, struct error *err)
{
    json_error_t why;
    json_t *root = json_text_read(text, len, JSON_ALLOW_NUL, &why);    // a model may draw it
    struct group *g = NULL;
    if (!root)
        error_set(err, ERR_DATA, "the answer is not JSON (%.60s): %.20s", why.text, text);
    else if (samples_count(kind, root, it->n_sample, err))
        g = group_from(kind, root, it, n_id, version, err);
    json_decref(root);
    return g;
}
