#include "workers/serve/reply_parts.h"
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "workers/engine/template/tool_calls.h"
#include "workers/http/openai_error.h"

static void text_print(struct buf *out, const char *s, size_t len)
{
    json_text_print(out, s, len, JSON_TEXT_UTF8);
}

void reply_string_print(struct buf *out, const char *s)
{
    text_print(out, s, strlen(s));
}

void reply_ids_print(struct buf *out, const int32_t *id, int64_t n)
{
    buf_char(out, '[');
    for (int64_t i = 0; i < n; i++)
        buf_fmt(out, i ? ",%d" : "%d", id[i]);
    buf_char(out, ']');
}

/* A token's text as shown in log-probs. */
static void token_print(struct buf *out, const struct reply_context *x, const struct serve_job *j, int32_t id)
{
    struct buf text = BUF_INIT;
    if (j->ask.tokens_as_ids || j->ask.form == ASK_TOKENS) {
        buf_fmt(out, "\"token_id:%d\"", id);
        return;
    }
    out->failed |= !tokenizer_decode(x->tokenizer, &id, 1, false, &text);
    text_print(out, buf_text(&text), text.len);
    buf_release(&text);
}

static const struct top_token *top_of(const struct serve_job *j, const struct job_choice *c, int64_t i)
{
    return c->top + i * j->ask.n_top;
}

/* ---- log-probs */
/* chat, and token in, token out: {"content": [{"token", "logprob", "bytes", "top_logprobs"}]} */
static void chat_token_print(struct buf *out, const struct reply_context *x, const struct serve_job *j, int32_t id, float logp)
{
    size_t n_bytes = 0;
    const uint8_t *bytes = tokenizer_bytes(x->tokenizer, id, &n_bytes);
    buf_str(out, "{\"token\":");
    token_print(out, x, j, id);
    buf_fmt(out, ",\"logprob\":%.9g,\"bytes\":", (double)logp);
    if (!bytes || j->ask.form == ASK_TOKENS) {
        buf_str(out, "null");
        return;
    }
    for (size_t i = 0; i < n_bytes; i++)
        buf_fmt(out, i ? ",%d" : "[%d", bytes[i]);
    buf_str(out, n_bytes ? "]" : "[]");
}

static void chat_logprobs_print(struct buf *out, const struct reply_context *x, const struct serve_job *j, const struct job_choice *c,
                                int64_t from, int64_t to)
{
    buf_str(out, "{\"content\":[");
    for (int64_t i = from; i < to; i++) {
        if (i > from)
            buf_char(out, ',');
        chat_token_print(out, x, j, c->token[i], c->logp[i]);
        buf_str(out, ",\"top_logprobs\":[");
        for (int64_t k = 0; k < j->ask.n_top; k++) {
            if (k > 0)
                buf_char(out, ',');
            chat_token_print(out, x, j, top_of(j, c, i)[k].id, top_of(j, c, i)[k].logp);
            buf_char(out, '}');
        }
        buf_str(out, "]}");
    }
    buf_str(out, "]}");
}

/* Characters of the token's text, for text_offset. */
static int64_t token_chars(const struct reply_context *x, int32_t id)
{
    size_t len = 0;
    int64_t n = 0;
    const uint8_t *bytes = tokenizer_bytes(x->tokenizer, id, &len);
    for (size_t i = 0; bytes && i < len; i++)
        n += (bytes[i] & 0xC0) != 0x80;
    return n;
}

/* A token in a completion's lists: one of the sample's, or with 'echo' of the prompt before it, at -n to -1. */
struct listed {
    int32_t id;
    double logp;                    // NAN: it has none, as a prompt's first
    const struct top_token *top;    // (n_top) some of a prompt's may have id -1: there were no more
    int64_t n_top;
};
static struct listed listed_at(const struct serve_job *j, const struct job_choice *c, int64_t i)
{
    if (i >= 0)
        return (struct listed){ c->token[i], (double)c->logp[i], j->ask.n_top > 0 ? top_of(j, c, i) : NULL, j->ask.n_top };
    int64_t prompt = (c - j->choice) / j->ask.n, at = j->ask.prompt[prompt].token.n + i;
    const struct prompt_logps *p = &j->read[prompt];
    struct listed l = { .id = j->ask.prompt[prompt].token.id[at], .logp = NAN };
    if (at == 0 || at > p->n)
        return l;
    l.logp = (double)p->logp[at - 1];
    l.n_top = MIN(j->ask.n_top, j->ask.n_read);
    l.top = l.n_top > 0 ? &p->top[(at - 1) * j->ask.n_read] : NULL;
    return l;
}

static void number_print(struct buf *out, double v)
{
    if (isnan(v))
        buf_str(out, "null");
    else
        buf_fmt(out, "%.9g", v);
}

/* {"text": logp, ...}: the likeliest and the token itself. */
static void top_print(struct buf *out, const struct reply_context *x, const struct serve_job *j, const struct listed *l)
{
    bool has_own = false;
    if (isnan(l->logp)) {
        buf_str(out, "null");
        return;
    }
    buf_char(out, '{');
    for (int64_t k = 0; k < l->n_top && l->top[k].id >= 0; k++) {
        has_own |= l->top[k].id == l->id;
        buf_str(out, k > 0 ? "," : "");
        token_print(out, x, j, l->top[k].id);
        buf_fmt(out, ":%.9g", (double)l->top[k].logp);
    }
    if (!has_own) {
        buf_str(out, l->n_top > 0 && l->top[0].id >= 0 ? "," : "");
        token_print(out, x, j, l->id);
        buf_fmt(out, ":%.9g", l->logp);
    }
    buf_char(out, '}');
}

/* completions: parallel lists. The likeliest tokens and the sampled one are keys of an object; a text that two tokens
 * share appears twice, since the ids tell them apart. from: below 0 with 'echo', see listed_at. */
static void completion_logprobs_print(struct buf *out, const struct reply_context *x, const struct serve_job *j, const struct job_choice *c,
                                      int64_t from, int64_t to)
{
    int64_t offset = 0;
    buf_str(out, "{\"tokens\":[");
    for (int64_t i = from; i < to; i++) {
        buf_str(out, i > from ? "," : "");
        token_print(out, x, j, listed_at(j, c, i).id);
    }
    buf_str(out, "],\"token_logprobs\":[");
    for (int64_t i = from; i < to; i++) {
        buf_str(out, i > from ? "," : "");
        number_print(out, listed_at(j, c, i).logp);
    }
    buf_str(out, j->ask.n_top == 0 ? "],\"top_logprobs\":null" : "],\"top_logprobs\":[");
    for (int64_t i = from; i < to && j->ask.n_top > 0; i++) {
        struct listed l = listed_at(j, c, i);
        buf_str(out, i > from ? "," : "");
        top_print(out, x, j, &l);
    }
    buf_str(out, j->ask.n_top == 0 ? ",\"text_offset\":[" : "],\"text_offset\":[");
    for (int64_t i = MIN(from, 0); i < to; i++) {
        if (i >= from)
            buf_fmt(out, i > from ? ",%" PRId64 : "%" PRId64, offset);
        offset += token_chars(x, listed_at(j, c, i).id);
    }
    buf_str(out, "]}");
}

static void logprobs_print(struct buf *out, const struct reply_context *x, const struct serve_job *j, const struct job_choice *c,
                           int64_t from, int64_t to)
{
    if (!j->ask.logprobs)
        buf_str(out, "null");
    else if (j->ask.form == ASK_COMPLETION)
        completion_logprobs_print(out, x, j, c, from, to);
    else
        chat_logprobs_print(out, x, j, c, from, to);
}

/* A prompt's: null, then for each token {"id": {"logprob", "rank", "decoded_token"}} of itself and the likeliest; plain: {"id": logprob}. */
static void prompt_entry_print(struct buf *out, const struct reply_context *x, int32_t id, float logp, int64_t rank, bool plain)
{
    struct buf text = BUF_INIT;
    if (plain) {
        buf_fmt(out, "\"%d\":%.9g", id, (double)logp);
        return;
    }
    buf_fmt(out, "\"%d\":{\"logprob\":%.9g,\"rank\":%" PRId64 ",\"decoded_token\":", id, (double)logp, rank);
    out->failed |= !tokenizer_decode(x->tokenizer, &id, 1, false, &text);
    text_print(out, buf_text(&text), text.len);
    buf_char(out, '}');
    buf_release(&text);
}

static void prompt_logprobs_print(struct buf *out, const struct reply_context *x, const struct serve_job *j, int64_t prompt)
{
    const struct prompt_logps *p = &j->read[prompt];
    const int32_t *id = j->ask.prompt[prompt].token.id;
    bool plain = j->ask.form == ASK_VLLM;
    buf_str(out, "[null");
    for (int64_t i = 0; i < p->n; i++) {
        buf_str(out, ",{");
        prompt_entry_print(out, x, id[i + 1], p->logp[i], p->rank[i], plain);
        for (int64_t k = 0; k < j->ask.n_read; k++) {
            const struct top_token *t = &p->top[i * j->ask.n_read + k];
            if (t->id != id[i + 1] && t->id >= 0) {
                buf_char(out, ',');
                prompt_entry_print(out, x, t->id, t->logp, k + 1, plain);
            }
        }
        buf_char(out, '}');
    }
    buf_char(out, ']');
}

/* ---- pieces shared by several shapes */
static void end_print(struct buf *out, const struct job_choice *c, bool has_calls)
{
    buf_fmt(out, "\"finish_reason\":\"%s\",\"stop_reason\":", has_calls && c->end == CHOICE_STOP ? "tool_calls" : choice_end_name(c->end));
    if (c->text.stopped_by >= 0)
        reply_string_print(out, c->text.stop[c->text.stopped_by]);
    else if (c->end == CHOICE_STOP && !tokenizer_is_eos(c->text.decoder.tokenizer, c->stop_token))
        buf_fmt(out, "%d", c->stop_token);
    else
        buf_str(out, "null");
}

struct reply_usage reply_usage_of(const struct serve_job *j)
{
    struct reply_usage u = { 0 };
    for (int64_t i = 0; i < j->ask.n_prompt; i++) {
        u.n_prompt += j->ask.prompt[i].token.n;
        u.n_cached += j->choice[i * j->ask.n].n_cached;
    }
    for (int64_t i = 0; i < j->n_choice; i++)
        u.n_tok += j->choice[i].n_tok;
    return u;
}

static void usage_print(struct buf *out, const struct serve_job *j)
{
    struct reply_usage u = reply_usage_of(j);
    buf_fmt(out,
            "\"usage\":{\"prompt_tokens\":%" PRId64 ",\"completion_tokens\":%" PRId64 ",\"total_tokens\":%" PRId64
            ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRId64 "}}",
            u.n_prompt, u.n_tok, u.n_prompt + u.n_tok, u.n_cached);
}

/* The version of the weights that drew the newest token; with none yet, 0. */
int64_t reply_version(const struct serve_job *j)
{
    int64_t version = j->done_version;
    for (int64_t i = 0; i < j->n_choice; i++)
        if (j->choice[i].n_tok > 0)
            version = MAX(version, j->choice[i].version[j->choice[i].n_tok - 1]);
    return version;
}

static const struct token_list *prompt_of(const struct serve_job *j, int64_t choice)
{
    return &j->ask.prompt[choice / j->ask.n].token;
}

void reply_call_id(struct buf *out, const struct serve_job *j, int64_t choice, int call)
{
    buf_fmt(out, "call_%s-%" PRId64 "-%d", j->http.id, choice, call);
}

void reply_all_ids_print(struct buf *out, const struct serve_job *j)
{
    if (!j->ask.return_ids)
        return;
    buf_str(out, ",\"prompt_token_ids\":");
    reply_ids_print(out, prompt_of(j, 0)->id, prompt_of(j, 0)->n);
    buf_str(out, ",\"token_ids\":");
    reply_ids_print(out, j->choice[0].token, j->choice[0].n_tok);
}

static void calls_print(struct buf *out, const struct serve_job *j, const struct tool_calls *calls, int64_t choice, bool indexed)
{
    buf_char(out, '[');
    for (int i = 0; i < calls->n; i++) {
        buf_str(out, i > 0 ? ",{" : "{");
        if (indexed)
            buf_fmt(out, "\"index\":%d,", i);
        buf_str(out, "\"id\":\"");
        reply_call_id(out, j, choice, i);
        buf_str(out, "\",\"type\":\"function\",\"function\":{\"name\":");
        reply_string_print(out, calls->call[i].name);
        buf_str(out, ",\"arguments\":");
        reply_string_print(out, calls->call[i].arguments);
        buf_str(out, "}}");
    }
    buf_char(out, ']');
}

/* ---- OpenAI's shapes, whole */
static void head_print(struct buf *out, const struct reply_context *x, const struct serve_job *j, const char *object)
{
    if (j->ask.form == ASK_TOKENS)
        buf_fmt(out, "{\"request_id\":\"%s\",", j->http.id);
    else
        buf_fmt(out, "{\"id\":\"%s\",\"object\":\"%s\",", j->http.id, object);
    buf_fmt(out, "\"created\":%.0f,\"model\":", floor(j->created_s));
    reply_string_print(out, x->model);
    buf_fmt(out, ",\"system_fingerprint\":\"weights-%" PRId64 "\",\"weight_version\":%" PRId64 ",", reply_version(j), reply_version(j));
}

/* The tool calls of an answer, as many as its request allows. False: no memory. */
static bool calls_find(struct tool_calls *calls, const struct serve_job *j, const struct job_choice *c)
{
    if (!tool_calls_find(calls, buf_text(&c->text.text), c->text.text.len, j->ask.tools))
        return false;
    if (!j->ask.parallel_tools)
        tool_calls_cut(calls, 1);
    return true;
}

/* {"role": "assistant", "content": ..., "tool_calls": ...}; *has_calls: there are some. */
static void message_print(struct buf *out, const struct serve_job *j, const struct job_choice *c, int64_t index, bool *has_calls)
{
    struct tool_calls calls = { .n = 0 };
    *has_calls = false;
    buf_str(out, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (!j->ask.parse_tools) {
        text_print(out, buf_text(&c->text.text), c->text.text.len);
    } else if (!calls_find(&calls, j, c)) {
        out->failed = true;
    } else if (calls.n > 0) {
        *has_calls = true;
        if (calls.content.len)
            text_print(out, buf_text(&calls.content), calls.content.len);
        else
            buf_str(out, "null");
        buf_str(out, ",\"tool_calls\":");
        calls_print(out, j, &calls, index, false);
    } else {
        text_print(out, buf_text(&c->text.text), c->text.text.len);
    }
    buf_str(out, "},");
    tool_calls_release(&calls);
}

/* A sample's text, with 'echo' after the prompt's: as it was given, or its ids in words. */
static void completion_text_print(struct buf *out, const struct reply_context *x, const struct serve_job *j, const struct job_choice *c,
                                  int64_t prompt)
{
    const struct ask_prompt *p = &j->ask.prompt[prompt];
    struct buf text = BUF_INIT;
    if (j->ask.echo && p->text)
        buf_add(&text, p->text, p->len);
    else if (j->ask.echo)
        out->failed |= !tokenizer_decode(x->tokenizer, p->token.id, p->token.n, j->ask.skip_special, &text);
    buf_add(&text, buf_text(&c->text.text), c->text.text.len);
    out->failed |= text.failed;
    text_print(out, buf_text(&text), text.len);
    buf_release(&text);
}

static void openai_print(struct buf *out, const struct reply_context *x, const struct serve_job *j)
{
    head_print(out, x, j, j->ask.form == ASK_CHAT ? "chat.completion" : "text_completion");
    buf_str(out, "\"choices\":[");
    for (int64_t i = 0; i < j->n_choice; i++) {
        const struct job_choice *c = &j->choice[i];
        bool has_calls = false;
        buf_fmt(out, i ? ",{\"index\":%" PRId64 "," : "{\"index\":%" PRId64 ",", i);
        if (j->ask.form == ASK_CHAT) {
            message_print(out, j, c, i, &has_calls);
        } else if (j->ask.form == ASK_COMPLETION) {
            buf_str(out, "\"text\":");
            completion_text_print(out, x, j, c, i / j->ask.n);
            buf_char(out, ',');
        }
        buf_str(out, "\"logprobs\":");
        logprobs_print(out, x, j, c, j->ask.echo ? -prompt_of(j, i)->n : 0, c->n_tok);
        buf_char(out, ',');
        end_print(out, c, has_calls);
        if (j->ask.return_ids || j->ask.form == ASK_TOKENS) {
            buf_str(out, ",\"token_ids\":");
            reply_ids_print(out, c->token, c->n_tok);
        }
        if (j->ask.return_ids && j->ask.form == ASK_COMPLETION) {
            buf_str(out, ",\"prompt_token_ids\":");
            reply_ids_print(out, prompt_of(j, i)->id, prompt_of(j, i)->n);
        }
        if (j->read && j->ask.tell_read && j->ask.form == ASK_COMPLETION) {
            buf_str(out, ",\"prompt_logprobs\":");
            prompt_logprobs_print(out, x, j, i / j->ask.n);
        }
        buf_char(out, '}');
    }
    buf_str(out, "],");
    if (j->read && j->ask.form != ASK_COMPLETION) {
        buf_str(out, "\"prompt_logprobs\":");
        prompt_logprobs_print(out, x, j, 0);
        buf_char(out, ',');
    }
    if (j->ask.return_ids && j->ask.form == ASK_CHAT) {
        buf_str(out, "\"prompt_token_ids\":");
        reply_ids_print(out, prompt_of(j, 0)->id, prompt_of(j, 0)->n);
        buf_char(out, ',');
    }
    usage_print(out, j);
    buf_char(out, '}');
}

/* ---- /generate */
/* vLLM: lists by sample; log-probs are objects {"<id>": logp} in a list for each token, the sampled one's key first. */
static void vllm_print(struct buf *out, const struct reply_context *x, const struct serve_job *j)
{
    buf_str(out, "{\"text\":[");
    for (int64_t i = 0; i < j->n_choice; i++) {
        buf_str(out, i ? "," : "");
        text_print(out, buf_text(&j->choice[i].text.text), j->choice[i].text.text.len);
    }
    buf_str(out, "],\"prompt\":");
    if (j->ask.prompt[0].text)
        text_print(out, j->ask.prompt[0].text, j->ask.prompt[0].len);
    else
        buf_str(out, "null");
    buf_str(out, ",\"finish_reasons\":[");
    for (int64_t i = 0; i < j->n_choice; i++)
        buf_fmt(out, i ? ",\"%s\"" : "\"%s\"", choice_end_name(j->choice[i].end));
    buf_str(out, "],\"logprobs\":");
    buf_str(out, j->ask.logprobs ? "[" : "null");
    for (int64_t i = 0; i < j->n_choice && j->ask.logprobs; i++) {
        const struct job_choice *c = &j->choice[i];
        buf_str(out, i ? ",[" : "[");
        for (int64_t t = 0; t < c->n_tok; t++) {
            buf_fmt(out, t ? ",[{\"%d\":%.9g" : "[{\"%d\":%.9g", c->token[t], (double)c->logp[t]);
            for (int64_t k = 0; k < j->ask.n_top; k++)
                if (top_of(j, c, t)[k].id != c->token[t])
                    buf_fmt(out, ",\"%d\":%.9g", top_of(j, c, t)[k].id, (double)top_of(j, c, t)[k].logp);
            buf_str(out, "}]");
        }
        buf_char(out, ']');
    }
    buf_str(out, j->ask.logprobs ? "],\"prompt_token_ids\":" : ",\"prompt_token_ids\":");
    reply_ids_print(out, j->ask.prompt[0].token.id, j->ask.prompt[0].token.n);
    buf_str(out, ",\"token_ids\":[");
    for (int64_t i = 0; i < j->n_choice; i++) {
        buf_str(out, i ? "," : "");
        reply_ids_print(out, j->choice[i].token, j->choice[i].n_tok);
    }
    buf_char(out, ']');
    for (int64_t i = 0; j->read && i < j->ask.n_prompt; i++) {
        buf_str(out, i > 0 ? "," : j->ask.is_list ? ",\"prompt_logprobs\":[" : ",\"prompt_logprobs\":");
        prompt_logprobs_print(out, x, j, i);
    }
    buf_fmt(out, j->read && j->ask.is_list ? "],\"weight_version\":%" PRId64 "}" : ",\"weight_version\":%" PRId64 "}", reply_version(j));
}

/* The weights that drew each range of tokens: [{"version", "start", "end"}]. */
static void versions_print(struct buf *out, const struct job_choice *c)
{
    buf_char(out, '[');
    for (int64_t from = 0, to; from < c->n_tok; from = to) {
        for (to = from + 1; to < c->n_tok && c->version[to] == c->version[from]; to++)
            ;
        buf_fmt(out, "%s{\"version\":\"%d\",\"start\":%" PRId64 ",\"end\":%" PRId64 "}", from ? "," : "", c->version[from], from, to);
    }
    buf_char(out, ']');
}

/* [logp, id, text or null] */
static void triple_print(struct buf *out, const struct reply_context *x, const struct serve_job *j, int32_t id, float logp)
{
    buf_fmt(out, "[%.9g,%d,", (double)logp, id);
    if (j->ask.return_text)
        token_print(out, x, j, id);
    else
        buf_str(out, "null");
    buf_char(out, ']');
}

/* [[logp, id, text or null], ...] of tokens or, under each, of the likeliest ones. */
static void sglang_logprobs_print(struct buf *out, const struct reply_context *x, const struct serve_job *j, const struct job_choice *c,
                                  bool top)
{
    buf_char(out, '[');
    for (int64_t i = 0; i < c->n_tok; i++) {
        buf_str(out, i ? "," : "");
        buf_str(out, top ? "[" : "");
        for (int64_t k = 0; k < (top ? j->ask.n_top : 1); k++) {
            buf_str(out, k ? "," : "");
            triple_print(out, x, j, top ? top_of(j, c, i)[k].id : c->token[i], top ? top_of(j, c, i)[k].logp : c->logp[i]);
        }
        buf_str(out, top ? "]" : "");
    }
    buf_char(out, ']');
}

/* As above for the prompt's tokens from read_from on; the first of all has null in place of what is not there. */
static void sglang_prompt_print(struct buf *out, const struct reply_context *x, const struct serve_job *j, int64_t prompt, bool top)
{
    const struct prompt_logps *p = &j->read[prompt];
    const int32_t *id = j->ask.prompt[prompt].token.id;
    buf_char(out, '[');
    for (int64_t i = j->ask.read_from; i <= p->n; i++) {
        buf_str(out, i > j->ask.read_from ? "," : "");
        if (i == 0) {
            buf_str(out, top ? "null" : "[null,");
            if (!top)
                buf_fmt(out, "%d,null]", id[0]);
            continue;
        }
        if (!top)
            triple_print(out, x, j, id[i], p->logp[i - 1]);
        for (int64_t k = 0; top && k < j->ask.n_read; k++) {
            buf_str(out, k ? "," : "[");
            triple_print(out, x, j, p->top[(i - 1) * j->ask.n_read + k].id, p->top[(i - 1) * j->ask.n_read + k].logp);
        }
        buf_str(out, top ? "]" : "");
    }
    buf_char(out, ']');
}

static void sglang_end_print(struct buf *out, const struct job_choice *c)
{
    if (c->end == CHOICE_OPEN) {
        buf_str(out, "null");
        return;
    }
    buf_fmt(out, "{\"type\":\"%s\"", choice_end_name(c->end));
    if (c->end == CHOICE_LENGTH)
        buf_fmt(out, ",\"length\":%" PRId64, c->n_tok);
    if (c->end == CHOICE_STOP && c->text.stopped_by >= 0) {
        buf_str(out, ",\"matched\":");
        reply_string_print(out, c->text.stop[c->text.stopped_by]);
    } else if (c->end == CHOICE_STOP) {
        buf_fmt(out, ",\"matched\":%d", c->stop_token);
    }
    buf_char(out, '}');
}

/* One sample, as far as it has come; `more` goes first in the object. */
static void sglang_choice_print(struct buf *out, const struct reply_context *x, const struct serve_job *j, int64_t i, size_t text_end,
                                const char *more)
{
    const struct job_choice *c = &j->choice[i];
    buf_fmt(out, "{%s\"text\":", more);
    text_print(out, buf_text(&c->text.text), text_end);
    buf_str(out, ",\"output_ids\":");
    reply_ids_print(out, c->token, c->n_tok);
    buf_fmt(out, ",\"meta_info\":{\"id\":\"%s\",\"finish_reason\":", j->http.id);
    sglang_end_print(out, c);
    buf_fmt(out,
            ",\"prompt_tokens\":%" PRId64 ",\"completion_tokens\":%" PRId64 ",\"cached_tokens\":%" PRId64 ",\"weight_version\":\"%" PRId64
            "\",\"weight_versions\":",
            prompt_of(j, i)->n, c->n_tok, c->n_cached, reply_version(j));
    versions_print(out, c);
    for (int top = 0; top < 2 && j->ask.logprobs && (!top || j->ask.n_top > 0); top++) {
        if (j->read) {
            buf_str(out, top ? ",\"input_top_logprobs\":" : ",\"input_token_logprobs\":");
            sglang_prompt_print(out, x, j, i / j->ask.n, top);
        }
        buf_str(out, top ? ",\"output_top_logprobs\":" : ",\"output_token_logprobs\":");
        sglang_logprobs_print(out, x, j, c, top);
    }
    buf_str(out, "}}");
}

static void sglang_print(struct buf *out, const struct reply_context *x, const struct serve_job *j)
{
    bool list = j->n_choice > 1 || j->ask.is_list;
    buf_str(out, list ? "[" : "");
    for (int64_t i = 0; i < j->n_choice; i++) {
        buf_str(out, i ? "," : "");
        sglang_choice_print(out, x, j, i, j->choice[i].text.text.len, "");
    }
    buf_str(out, list ? "]" : "");
}

void reply_print(struct buf *out, const struct reply_context *x, const struct serve_job *j)
{
    switch (j->ask.form) {
    case ASK_COMPLETION:
    case ASK_CHAT:
    case ASK_TOKENS: openai_print(out, x, j); return;
    case ASK_VLLM: vllm_print(out, x, j); return;
    case ASK_SGLANG: sglang_print(out, x, j); return;
    case ASK_MESSAGES: messages_print(out, x, j); return;
    case ASK_RESPONSES: responses_print(out, x, j); return;
    }
}

/* ---- streams */
/* One event with what has not been sent of choice i: its text up to `text_end`, tokens up to n_tok. calls: those found at the end, whose
 * content is the text then; what was sent is its beginning (choice_stream). */
static void event_print(struct buf *out, const struct reply_context *x, const struct serve_job *j, struct job_choice *c, int64_t i,
                        size_t text_end, const struct tool_calls *calls)
{
    bool chat = j->ask.form == ASK_CHAT, ends = c->end != CHOICE_OPEN;
    buf_str(out, "data: ");
    head_print(out, x, j, chat ? "chat.completion.chunk" : "text_completion");
    if (j->ask.return_ids && !c->began && i % j->ask.n == 0 && chat) {
        buf_str(out, "\"prompt_token_ids\":");
        reply_ids_print(out, prompt_of(j, i)->id, prompt_of(j, i)->n);
        buf_char(out, ',');
    }
    buf_fmt(out, "\"choices\":[{\"index\":%" PRId64 ",", i);
    const char *text = buf_text(calls->n > 0 ? &calls->content : &c->text.text) + c->sent_text;
    size_t len = text_end - c->sent_text;
    if (chat) {
        buf_str(out, "\"delta\":{");
        buf_str(out, c->began ? "\"content\":" : "\"role\":\"assistant\",\"content\":");
        text_print(out, text, len);
        if (calls->n > 0) {
            buf_str(out, ",\"tool_calls\":");
            calls_print(out, j, calls, i, true);
        }
        buf_str(out, "},");
    } else if (j->ask.form == ASK_COMPLETION) {
        buf_str(out, "\"text\":");
        text_print(out, text, len);
        buf_char(out, ',');
    }
    buf_str(out, "\"logprobs\":");
    logprobs_print(out, x, j, c, c->sent_tok, c->n_tok);
    buf_char(out, ',');
    if (ends)
        end_print(out, c, calls->n > 0);
    else
        buf_str(out, "\"finish_reason\":null");
    if (j->ask.return_ids || j->ask.form == ASK_TOKENS) {
        buf_str(out, ",\"token_ids\":");
        reply_ids_print(out, c->token + c->sent_tok, c->n_tok - c->sent_tok);
    }
    if (j->ask.return_ids && j->ask.form == ASK_COMPLETION && !c->began) {
        buf_str(out, ",\"prompt_token_ids\":");
        reply_ids_print(out, prompt_of(j, i)->id, prompt_of(j, i)->n);
    }
    buf_str(out, "}]}\n\n");
    c->sent_text = text_end;
    c->sent_tok = c->n_tok;
    c->began = true;
    c->ended = ends;
}

/* How much of an unfinished text is sure to be content as it stands: nothing that may become a call, and no blanks at the end, which
 * are left out if only calls follow. */
static size_t content_safe(const struct job_choice *c)
{
    const char *text = buf_text(&c->text.text);
    size_t end = MIN(c->text.safe, tool_calls_safe(text, c->text.text.len));
    while (end > 0 && isspace((unsigned char)text[end - 1]))
        end--;
    return end;
}

/* The events that choice i has now. */
static void choice_stream(struct buf *out, const struct reply_context *x, struct serve_job *j, int64_t i)
{
    struct job_choice *c = &j->choice[i];
    struct tool_calls calls = { .n = 0 };
    size_t end = c->text.safe;
    if (c->ended || (c->n_tok == 0 && c->end == CHOICE_OPEN))
        return;
    if (j->ask.parse_tools && c->end == CHOICE_OPEN)
        end = content_safe(c);
    if (j->ask.parse_tools && c->end != CHOICE_OPEN) {
        out->failed |= !calls_find(&calls, j, c);
        end = calls.n > 0 ? calls.content.len : end;
    }
    end = MAX(end, c->sent_text);
    bool wants_tokens = j->ask.return_ids || j->ask.logprobs || j->ask.form == ASK_TOKENS;
    if (c->end != CHOICE_OPEN || end > c->sent_text || (wants_tokens && c->n_tok > c->sent_tok))
        event_print(out, x, j, c, i, end, &calls);
    tool_calls_release(&calls);
}

/* vLLM's stream of /generate: a line for all samples with the text so far, after that of the prompt; the last one is the whole answer. */
static void vllm_stream(struct buf *out, const struct reply_context *x, struct serve_job *j)
{
    bool news = false;
    for (int64_t i = 0; i < j->n_choice; i++) {
        struct job_choice *c = &j->choice[i];
        news |= c->text.safe > c->sent_text;
        c->sent_text = c->text.safe;
    }
    if (j->http.done || !news) {
        if (j->http.done)
            vllm_print(out, x, j);
        buf_str(out, j->http.done ? "\n" : "");
        return;
    }
    buf_str(out, "{\"text\":[");
    for (int64_t i = 0; i < j->n_choice; i++) {
        const struct ask_prompt *p = &j->ask.prompt[i / j->ask.n];
        struct buf text = BUF_INIT;
        out->failed |= !buf_add(&text, p->text ? p->text : "", p->len)
                       || !buf_add(&text, buf_text(&j->choice[i].text.text), j->choice[i].sent_text);
        buf_str(out, i ? "," : "");
        text_print(out, buf_text(&text), text.len);
        buf_release(&text);
    }
    buf_str(out, "]}\n");
}

/* SGLang's: an event per sample with everything so far. */
static void sglang_stream(struct buf *out, const struct reply_context *x, struct serve_job *j)
{
    char more[64] = "";
    for (int64_t i = 0; i < j->n_choice; i++) {
        struct job_choice *c = &j->choice[i];
        bool ends = c->end != CHOICE_OPEN;
        if (c->ended || (!ends && c->n_tok == c->sent_tok))
            continue;
        if (j->n_choice > 1 || j->ask.is_list)
            snprintf(more, sizeof more, "\"index\":%" PRId64 ",", i);
        buf_str(out, "data: ");
        sglang_choice_print(out, x, j, i, ends ? c->text.text.len : c->text.safe, more);
        buf_str(out, "\n\n");
        c->sent_tok = c->n_tok;
        c->ended = ends;
    }
}

bool reply_stream(struct buf *out, const struct reply_context *x, struct serve_job *j)
{
    bool events = j->ask.form != ASK_VLLM;    // else lines
    if (j->ask.form == ASK_MESSAGES || j->ask.form == ASK_RESPONSES)
        return j->ask.form == ASK_MESSAGES ? messages_stream(out, x, j) : responses_stream(out, x, j);
    if (!j->failed && j->ask.form == ASK_VLLM)
        vllm_stream(out, x, j);
    else if (!j->failed && j->ask.form == ASK_SGLANG)
        sglang_stream(out, x, j);
    else
        for (int64_t i = 0; i < j->n_choice && !j->failed; i++)
            choice_stream(out, x, j, i);
    if (!j->http.done)
        return false;
    if (j->failed) {
        char text[ERROR_TEXT_BYTES];
        error_tell(&j->err, text);
        buf_str(out, events ? "data: " : "");
        openai_error_print(out, 500, NULL, text);
        buf_str(out, events ? "\n\n" : "\n");
    } else if (j->ask.include_usage) {
        buf_str(out, "data: ");
        head_print(out, x, j, j->ask.form == ASK_CHAT ? "chat.completion.chunk" : "text_completion");
        buf_str(out, "\"choices\":[],");
        usage_print(out, j);
        buf_str(out, "}\n\n");
    }
    buf_str(out, events ? "data: [DONE]\n\n" : "");
    return true;
}
