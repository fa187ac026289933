/* about_routes.c - routes that tell about the server and its model: OpenAI's, vLLM's and SGLang's */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "workers/serve/policy.h"
#include "workers/serve/routes_parts.h"

static void text_print(struct buf *out, const char *s)
{
    json_text_print(out, s, strlen(s), JSON_TEXT_UTF8);
}

void health_get(void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    struct serve *s = ctx;
    struct policy_state state;
    char why[ERROR_TEXT_BYTES];
    policy_state(s->policy, &state);
    error_tell(&state.err, why);
    if (state.failed)
        serve_refuse(a, 503, why);
    else
        buf_fmt(&a->body,
                "{\"status\":\"ok\",\"prompts\":%" PRId64 ",\"weight_version\":%" PRId64 ",\"running\":%" PRId64 ",\"waiting\":%" PRId64
                ",\"pages_used\":%" PRId64 ",\"pages\":%" PRId64 ",\"put_back\":%" PRId64 "}",
                state.n_prompt, state.version, state.n_running, state.n_waiting, state.n_page_used, state.n_page, state.n_put_back);
}

/* ---- models: the one that is served and, while one is loaded, the adapter */
static void base_print(const struct serve *s, struct buf *out)
{
    struct policy_state state;
    policy_state(s->policy, &state);
    buf_str(out, "{\"id\":");
    text_print(out, s->reply.model);
    buf_fmt(out, ",\"object\":\"model\",\"created\":%.0f,\"owned_by\":\"rollcall\",\"root\":", floor(s->started_s));
    text_print(out, s->dir);
    buf_fmt(out, ",\"parent\":null,\"max_model_len\":%" PRId64 ",\"weight_version\":%" PRId64 ",\"permission\":[]}", s->text.max_seq_tok,
            state.version);
}

static void adapter_print(const struct serve *s, const struct adapter_look *now, struct buf *out)
{
    buf_str(out, "{\"id\":");
    text_print(out, now->name);
    buf_fmt(out, ",\"object\":\"model\",\"created\":%.0f,\"owned_by\":\"rollcall\",\"root\":", floor(s->started_s));
    text_print(out, now->dir);
    buf_str(out, ",\"parent\":");
    text_print(out, s->reply.model);
    buf_str(out, ",\"permission\":[]}");
}

void models_get(void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    struct serve *s = ctx;
    struct adapter_look now;
    buf_str(&a->body, "{\"object\":\"list\",\"data\":[");
    base_print(s, &a->body);
    if (policy_adapter(s->policy, &now) && now.name[0]) {
        buf_char(&a->body, ',');
        adapter_print(s, &now, &a->body);
    }
    buf_str(&a->body, "]}");
}

void model_get(void *ctx, const struct web_request *q, struct web_answer *a)
{
    struct serve *s = ctx;
    struct adapter_look now;
    struct error err;
    const char *id = q->path + strlen("/v1/models/");
    if (strcmp(id, s->reply.model) == 0)
        base_print(s, &a->body);
    else if (policy_adapter(s->policy, &now) && now.name[0] && strcmp(id, now.name) == 0)
        adapter_print(s, &now, &a->body);
    else if (!serve_model_unknown(s, id, &err))
        serve_fail(a, &err);
}

/* ---- the server */
void version_get(UNUSED void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    buf_str(&a->body, "{\"version\":\"" RC_VERSION "\"}");
}

/* Prometheus' text format, under the names by which dashboards and load clients know vLLM's figures. */
void metrics_get(void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    struct serve *s = ctx;
    struct policy_state state;
    policy_state(s->policy, &state);
    // clang-format off
    const struct { const char *name, *type, *help; double value; } rows[] = {
        { "vllm:num_requests_running", "gauge", "Samples being decoded.", (double)state.n_running },
        { "vllm:num_requests_waiting", "gauge", "Samples that wait for room.", (double)state.n_waiting },
        { "vllm:kv_cache_usage_perc", "gauge", "Pages of keys and values in use; 1 is all.",
          state.n_page > 0 ? (double)state.n_page_used / (double)state.n_page : 0 },
        { "vllm:num_preemptions_total", "counter", "How often a sample was put back because pages had run out.", (double)state.n_put_back },
        { "vllm:generation_tokens_total", "counter", "Tokens drawn for requests.", (double)state.n_decode_tok },
        { "rollcall:prompts", "gauge", "Prompts inside, waiting and running.", (double)state.n_prompt },
        { "rollcall:weight_version", "gauge", "Version of the weights.", (double)state.version },
    };
    // clang-format on
    struct buf label = BUF_INIT;
    text_print(&label, s->reply.model);    // JSON escapes what Prometheus' labels escape
    a->type = "text/plain; version=0.0.4; charset=utf-8";
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        buf_fmt(&a->body, "# HELP %s %s\n# TYPE %s %s\n%s{model_name=%s} %.17g\n", rows[i].name, rows[i].help, rows[i].name, rows[i].type,
                rows[i].name, buf_text(&label), rows[i].value);
    a->body.failed |= label.failed;
    buf_release(&label);
}

/* SGLang's; clients read the version here. */
void model_info_get(void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    struct serve *s = ctx;
    struct policy_state state;
    policy_state(s->policy, &state);
    buf_str(&a->body, "{\"model_path\":");
    text_print(&a->body, s->dir);
    buf_fmt(&a->body, ",\"is_generation\":true,\"weight_version\":\"%" PRId64 "\"}", state.version);
}

void is_paused_get(void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    struct serve *s = ctx;
    struct policy_state state;
    policy_state(s->policy, &state);
    buf_fmt(&a->body, "{\"is_paused\":%s}", state.paused ? "true" : "false");
}

void is_sleeping_get(UNUSED void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    buf_str(&a->body, "{\"is_sleeping\":false}");    // memory is never released while serving
}

/* SGLang's: what the server was started with, as far as clients ask for it. */
void server_info_get(void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    struct serve *s = ctx;
    struct policy_state state;
    policy_state(s->policy, &state);
    buf_str(&a->body, "{\"model_path\":");
    text_print(&a->body, s->dir);
    buf_str(&a->body, ",\"tokenizer_path\":");
    text_print(&a->body, s->dir);
    buf_str(&a->body, ",\"served_model_name\":");
    text_print(&a->body, s->reply.model);
    buf_fmt(&a->body,
            ",\"context_length\":%" PRId64 ",\"tp_size\":1,\"dp_size\":1,\"version\":\"rollcall " RC_VERSION
            "\",\"weight_version\":\"%" PRId64 "\"}",
            s->text.max_seq_tok, state.version);
}
