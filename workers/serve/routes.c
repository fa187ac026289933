#include "workers/serve/routes.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "workers/http/openai_error.h"
#include "workers/serve/policy.h"
#include "workers/serve/routes_parts.h"
#include "workers/serve/serve_job.h"

/* ---- shared by several routes */
static int status_of(const struct error *err)
{
    switch (err->code) {
    case ERR_FULL:
    case ERR_CLOSED: return 503;
    case ERR_NOT_FOUND: return 404;
    case ERR_USAGE:
    case ERR_DATA:
    case ERR_SHAPE:
    case ERR_REFUSED:
    case ERR_CONTEXT:
    case ERR_UNSUPPORTED: return 400;
    default: return 500;
    }
}

static void serve_refuse_code(struct web_answer *a, int status, const char *code, const char *message)
{
    a->status = status;
    buf_clear(&a->body);
    openai_error_print(&a->body, status, code, message);
    if (status == 503)
        a->retry_after_s = 1;
}

void serve_refuse(struct web_answer *a, int status, const char *message)
{
    serve_refuse_code(a, status, NULL, message);
}

void serve_fail(struct web_answer *a, const struct error *err)
{
    char text[ERROR_TEXT_BYTES];
    error_tell(err, text);
    serve_refuse_code(a, status_of(err), err->code == ERR_CONTEXT ? "context_length_exceeded" : NULL, text);
}

json_t *serve_body_read(const struct web_request *q, bool may_be_empty, struct web_answer *a)
{
    json_error_t at;
    char why[400];
    if (q->len == 0 && may_be_empty)
        return json_object();
    json_t *body = json_text_read(q->body, q->len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &at);
    if (!body) {
        snprintf(why, sizeof why, "the body is not JSON: line %d, column %d: %s", at.line, at.column, at.text);
        serve_refuse(a, 400, why);
    } else if (!json_is_object(body)) {
        serve_refuse(a, 400, "the body must be a JSON object");
        json_decref(body);
        body = NULL;
    }
    return body;
}

/* Hand a job to the policy; a is its answer from here on. Takes j. */
static void job_start(struct serve *s, struct serve_job *j, bool stream, struct web_answer *a)
{
    struct error err;
    if (!policy_submit(s->policy, j, &err)) {
        serve_fail(a, &err);
        serve_job_drop(j);
        return;
    }
    a->job = &j->http;
    a->stream = stream;
}

/* ---- generating */
/* Can every prompt be sampled this way? Errors are found here, before the policy sees the job. */
static bool ask_fits(const struct serve *s, const struct ask *ask, struct error *err)
{
    struct sampling unused;
    for (int64_t i = 0; i < ask->n_prompt; i++)
        if (!ask_sampling(ask, ask->prompt[i].token.n, &s->text, s->eos, s->n_eos, &unused, err))
            return false;
    return true;
}

bool serve_model_unknown(const struct serve *s, const char *model, struct error *err)
{
    return error_set(err, ERR_NOT_FOUND, "the model '%.200s' is not served here; '%.200s' is", model, s->reply.model);
}

/* The model's name or, while an adapter is loaded, the adapter's: it applies to all requests, whichever they name. */
static bool model_check(const struct serve *s, const struct ask *ask, struct error *err)
{
    struct adapter_look now;
    if (ask->model && strcmp(ask->model, s->reply.model) != 0 && policy_adapter(s->policy, &now) && strcmp(ask->model, now.name) == 0)
        return true;
    return !ask->model || strcmp(ask->model, s->reply.model) == 0 || serve_model_unknown(s, ask->model, err);
}

/* A request of this form failed: the answer in the shape that its clients know. */
static void ask_fail(enum ask_form form, struct web_answer *a, const struct error *err)
{
    char text[ERROR_TEXT_BYTES];
    serve_fail(a, err);
    if (form != ASK_MESSAGES)
        return;
    error_tell(err, text);
    buf_clear(&a->body);
    anthropic_error_print(&a->body, a->status, text);
}

static void generate(struct serve *s, enum ask_form form, const struct web_request *q, struct web_answer *a)
{
    static const char *const prefix[ASK_FORMS] = {
        [ASK_COMPLETION] = "cmpl", [ASK_CHAT] = "chatcmpl", [ASK_TOKENS] = "gen",     [ASK_VLLM] = "gen",
        [ASK_SGLANG] = "gen",      [ASK_MESSAGES] = "msg",  [ASK_RESPONSES] = "resp",
    };
    struct error err;
    struct ask ask = { .n = 0 };
    struct serve_job *j = NULL;
    bool ok = false, stream = false;
    json_t *body = serve_body_read(q, false, a);
    if (!body)
        return;
    if (form == ASK_VLLM && (json_object_get(body, "text") || json_object_get(body, "input_ids")))
        form = ASK_SGLANG;
    TRY(ask_parse(&ask, form, body, &err));
    TRY(model_check(s, &ask, &err));
    TRY(ask_encode(&ask, &s->text, &err));
    TRY(ask_fits(s, &ask, &err));
    TRY((j = serve_job_new(JOB_GENERATE, &err)) != NULL);
    stream = ask.stream;
    TRY(serve_job_ask(j, &ask, s->text.tokenizer, &err));
    snprintf(j->http.id, sizeof j->http.id, "%s-%08" PRIx64 "-%" PRIu64, prefix[form], s->run & 0xffffffffu, ++s->n_request);
    ok = true;
out:
    json_decref(body);
    ask_release(&ask);
    if (ok) {
        a->type = stream && form == ASK_VLLM ? "application/x-ndjson" : NULL;
        job_start(s, j, stream, a);
    } else {
        serve_job_drop(j);
        ask_fail(form, a, &err);
    }
}

static void completions_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    generate(ctx, ASK_COMPLETION, q, a);
}

static void chat_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    generate(ctx, ASK_CHAT, q, a);
}

static void messages_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    generate(ctx, ASK_MESSAGES, q, a);
}

static void responses_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    generate(ctx, ASK_RESPONSES, q, a);
}

static void tokens_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    generate(ctx, ASK_TOKENS, q, a);
}

static void generate_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    generate(ctx, ASK_VLLM, q, a);
}

/* ---- text and tokens */
static void ids_print(struct buf *out, const struct token_list *t)
{
    buf_char(out, '[');
    for (int64_t i = 0; i < t->n; i++)
        buf_fmt(out, i ? ",%d" : "%d", t->id[i]);
    buf_char(out, ']');
}

static void tokenize_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    struct serve *s = ctx;
    struct error err;
    struct ask ask = { .n = 0 };
    bool ok = false;
    json_t *body = serve_body_read(q, false, a);
    if (!body)
        return;
    const json_t *strs = json_object_get(body, "return_token_strs");
    TRY(ask_parse(&ask, json_object_get(body, "messages") ? ASK_CHAT : ASK_COMPLETION, body, &err));
    TRY(model_check(s, &ask, &err));
    TRY(ask_encode(&ask, &s->text, &err));
    if (ask.n_prompt != 1) {
        error_set(&err, ERR_DATA, "'prompt' must be one text");
        goto out;
    }
    const struct token_list *t = &ask.prompt[0].token;
    buf_fmt(&a->body, "{\"count\":%" PRId64 ",\"max_model_len\":%" PRId64 ",\"tokens\":", t->n, s->text.max_seq_tok);
    ids_print(&a->body, t);
    buf_str(&a->body, json_is_true(strs) ? ",\"token_strs\":[" : ",\"token_strs\":null}");
    for (int64_t i = 0; i < t->n && json_is_true(strs); i++) {
        struct buf text = BUF_INIT;
        a->body.failed |= !tokenizer_decode(s->text.tokenizer, &t->id[i], 1, false, &text);
        buf_str(&a->body, i ? "," : "");
        json_text_print(&a->body, buf_text(&text), text.len, JSON_TEXT_UTF8);
        buf_release(&text);
    }
    buf_str(&a->body, json_is_true(strs) ? "]}" : "");
    ok = true;
out:
    json_decref(body);
    ask_release(&ask);
    if (!ok)
        serve_fail(a, &err);
}

/* How many tokens the model would read for a request of /v1/messages. */
static void count_tokens_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    struct serve *s = ctx;
    struct error err;
    struct ask ask = { .n = 0 };
    struct ask_text text = s->text;
    json_t *body = serve_body_read(q, false, a);
    if (!body)
        return;
    text.max_seq_tok = INT32_MAX;    // whoever counts wants to know by how much it is too long
    if (ask_parse(&ask, ASK_MESSAGES, body, &err) && model_check(s, &ask, &err) && ask_encode(&ask, &text, &err))
        buf_fmt(&a->body, "{\"input_tokens\":%" PRId64 "}", ask.prompt[0].token.n);
    else
        ask_fail(ASK_MESSAGES, a, &err);
    ask_release(&ask);
    json_decref(body);
}

static void detokenize_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    struct serve *s = ctx;
    struct error err;
    struct token_list ids = { .n = 0 };
    struct buf text = BUF_INIT;
    json_t *body = serve_body_read(q, false, a);
    if (!body)
        return;
    const json_t *tokens = json_object_get(body, "tokens");
    bool ok = json_is_array(tokens) || error_set(&err, ERR_DATA, "'tokens' must be a list of token ids");
    for (size_t i = 0; ok && i < json_array_size(tokens); i++) {
        const json_t *v = json_array_get(tokens, i);
        json_int_t n = json_integer_value(v);
        int32_t id = (int32_t)n;
        if (!json_is_integer(v) || n < 0 || n >= s->text.n_id)
            ok = error_set(&err, ERR_DATA, "'tokens'[%zu] is not a token id; the model knows 0 to %" PRId64, i, s->text.n_id - 1);
        else if (!token_list_add(&ids, &id, 1))
            ok = error_set(&err, ERR_NO_MEMORY, "no memory for %zu tokens", json_array_size(tokens));
    }
    if (ok && !tokenizer_decode(s->text.tokenizer, ids.id, ids.n, false, &text))
        ok = error_set(&err, ERR_NO_MEMORY, "no memory for the text");
    if (ok) {
        buf_str(&a->body, "{\"prompt\":");
        json_text_print(&a->body, buf_text(&text), text.len, JSON_TEXT_UTF8);
        buf_char(&a->body, '}');
    } else {
        serve_fail(a, &err);
    }
    buf_release(&text);
    token_list_release(&ids);
    json_decref(body);
}

/* ---- about the server: more in about_routes.c */
/* Draws one token, so that the answer proves that the engine works. */
static void health_generate_get(void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    static const char body[] = "{\"prompt\":[0],\"max_tokens\":1,\"temperature\":0}";
    struct web_request one = { .method = "POST", .path = "/v1/completions", .body = body, .len = sizeof body - 1 };
    generate(ctx, ASK_COMPLETION, &one, a);
}

/* ---- orders */
void serve_order(struct serve *s, struct serve_job *j, struct web_answer *a)
{
    snprintf(j->http.id, sizeof j->http.id, "order-%08" PRIx64 "-%" PRIu64, s->run & 0xffffffffu, ++s->n_request);
    job_start(s, j, false, a);
}

static void pause_with(struct serve *s, const char *mode, struct web_answer *a)
{
    // clang-format off
    static const struct { const char *name; enum pause_mode mode; } modes[] = {
        { "abort", PAUSE_ABORT }, { "wait", PAUSE_WAIT }, { "keep", PAUSE_KEEP }, { "in_place", PAUSE_KEEP },
    };
    // clang-format on
    struct error err;
    for (size_t i = 0; i < ARRAY_SIZE(modes); i++)
        if (strcmp(modes[i].name, mode) == 0) {
            struct serve_job *j = serve_job_new(JOB_PAUSE, &err);
            if (!j) {
                serve_fail(a, &err);
                return;
            }
            j->pause = modes[i].mode;
            serve_order(s, j, a);
            return;
        }
    serve_refuse(a, 400, "'mode' must be abort, wait or keep (in_place)");
}

static void pause_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    const char *mode = web_query(q, "mode");
    pause_with(ctx, mode ? mode : "abort", a);
}

static void pause_generation_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    json_t *body = serve_body_read(q, true, a);
    const char *mode = json_string_value(json_object_get(body, "mode"));
    if (body)
        pause_with(ctx, mode ? mode : "abort", a);
    json_decref(body);
}

static void plain_order(struct serve *s, enum job_kind kind, struct web_answer *a)
{
    struct error err;
    struct serve_job *j = serve_job_new(kind, &err);
    if (j)
        serve_order(s, j, a);
    else
        serve_fail(a, &err);
}

static void resume_post(void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    plain_order(ctx, JOB_RESUME, a);
}

static void forget_post(void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    plain_order(ctx, JOB_FORGET, a);
}

/* New weights from a directory on the server's machine. vLLM's routes of this name take tensors over NCCL, which is refused. */
static void update_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    static const char *const names[] = { "path", "model_path", "weights_path" };
    struct error err;
    json_t *body = serve_body_read(q, false, a);
    const char *dir = NULL;
    if (!body)
        return;
    for (size_t i = 0; i < ARRAY_SIZE(names) && !dir; i++)
        dir = json_string_value(json_object_get(body, names[i]));
    const json_t *v = json_object_get(body, "version") ? json_object_get(body, "version") : json_object_get(body, "weight_version");
    char *end = NULL;
    int64_t version = json_is_integer(v) ? json_integer_value(v) : json_is_string(v) ? strtoll(json_string_value(v), &end, 10) : -1;
    bool bad_version = v && !json_is_null(v) && (version < 0 || version > INT32_MAX || (end && *end));
    struct serve_job *j = NULL;
    if (json_object_get(body, "update_info"))
        serve_refuse(a, 501, "weights cannot come over NCCL or IPC here; save them and send {\"path\": DIRECTORY}");
    else if (!dir || strlen(dir) >= sizeof j->dir)
        serve_refuse(a, 400, "'path' must be the directory of a model");
    else if (!path_is_dir(dir))
        serve_refuse(a, 400, "'path' is no directory of this machine");
    else if (bad_version)
        serve_refuse(a, 400, "'version' must be a whole number from 0 on");
    else if (!(j = lora_dir_is(dir) ? adapter_load_job(dir, "", version, &err) : serve_job_new(JOB_UPDATE, &err)))
        serve_fail(a, &err);
    if (j) {
        snprintf(j->dir, sizeof j->dir, "%s", dir);
        j->version = version;
        serve_order(ctx, j, a);
    }
    json_decref(body);
}

/* ---- answers of jobs */
static void order_print(const struct serve_job *j, struct web_answer *a)
{
    static const char *const words[] = {
        [JOB_PAUSE] = "paused", [JOB_RESUME] = "resumed", [JOB_UPDATE] = "updated", [JOB_FORGET] = "emptied"
    };
    buf_fmt(&a->body, "{\"status\":\"%s\",\"success\":true,\"message\":\"%s\",\"weight_version\":%" PRId64 "}", words[j->kind],
            words[j->kind], j->done_version);
}

static void job_print(void *ctx, struct http_job *job, struct web_answer *a)
{
    struct serve *s = ctx;
    const struct serve_job *j = serve_job_of(job);
    if (j->failed)
        ask_fail(j->ask.form, a, &j->err);
    else if (j->kind == JOB_GENERATE)
        reply_print(&a->body, &s->reply, j);
    else if (j->kind == JOB_ADAPTER_LOAD || j->kind == JOB_ADAPTER_UNLOAD)
        adapter_job_print(j, a);
    else
        order_print(j, a);
}

static bool job_stream(void *ctx, struct http_job *job, struct buf *out)
{
    struct serve *s = ctx;
    return reply_stream(out, &s->reply, serve_job_of(job));
}

static void job_leave(void *ctx, struct http_job *job)
{
    struct serve *s = ctx;
    policy_leave(s->policy, serve_job_of(job));
}

// clang-format off
static const struct web_route routes[] = {
    { "GET",  "/health",                   health_get, .open = true },
    { "GET",  "/ping",                     health_get, .open = true },
    { "GET",  "/health_generate",          health_generate_get },
    { "GET",  "/v1/models",                models_get },
    { "GET",  "/v1/models/",               model_get, .rest = true },
    { "POST", "/v1/completions",           completions_post },
    { "POST", "/v1/chat/completions",      chat_post },
    { "POST", "/v1/responses",             responses_post },
    { "POST", "/v1/messages",              messages_post },
    { "POST", "/v1/messages/count_tokens", count_tokens_post },
    { "POST", "/inference/v1/generate",    tokens_post },
    { "POST", "/generate",                 generate_post },
    { "POST", "/tokenize",                 tokenize_post },
    { "POST", "/v1/tokenize",              tokenize_post },
    { "POST", "/detokenize",               detokenize_post },
    { "POST", "/v1/detokenize",            detokenize_post },
    { "GET",  "/version",                  version_get },
    { "GET",  "/metrics",                  metrics_get },
    { "GET",  "/model_info",               model_info_get },
    { "GET",  "/get_model_info",           model_info_get },
    { "GET",  "/server_info",              server_info_get },
    { "GET",  "/get_server_info",          server_info_get },
    { "GET",  "/is_paused",                is_paused_get },
    { "GET",  "/is_sleeping",              is_sleeping_get },
    { "POST", "/pause",                    pause_post, .order = true },
    { "POST", "/resume",                   resume_post, .order = true },
    { "POST", "/pause_generation",         pause_generation_post, .order = true },
    { "POST", "/continue_generation",      resume_post, .order = true },
    { "POST", "/reset_prefix_cache",       forget_post, .order = true },
    { "POST", "/flush_cache",              forget_post, .order = true },
    { "GET",  "/lora/status",              adapter_status_get },
    { "POST", "/lora/load",                adapter_load_post, .order = true },
    { "POST", "/lora/unload",              adapter_unload_post, .order = true },
    { "POST", "/v1/load_lora_adapter",     adapter_load_named_post, .order = true },
    { "POST", "/v1/unload_lora_adapter",   adapter_unload_named_post, .order = true },
    { "POST", "/load_lora_adapter",        adapter_load_named_post, .order = true },
    { "POST", "/unload_lora_adapter",      adapter_unload_named_post, .order = true },
    { "POST", "/update_weights",           update_post, .order = true },
    { "POST", "/update_weights_from_disk", update_post, .order = true },
};
// clang-format on

void serve_routes_set(struct web_config *c, struct serve *s)
{
    c->route = routes;
    c->n_route = ARRAY_SIZE(routes);
    c->ctx = s;
    c->print = job_print;
    c->stream = job_stream;
    c->leave = job_leave;
    c->fail = serve_refuse;
}
