/* ask.c - one table defines the meaning of each field of each form of request */
#include "workers/serve/ask.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "protocol/base/digest.h"
#include "protocol/base/json_text.h"
#include "workers/engine/template/messages.h"
#include "workers/engine/template/template.h"
#include "workers/engine/template/tool_calls.h"
#include "workers/serve/answer.h"
#include "workers/serve/dialect.h"

#define OPENAI (1u << ASK_COMPLETION | 1u << ASK_CHAT)
#define ALL (OPENAI | 1u << ASK_TOKENS | 1u << ASK_VLLM | 1u << ASK_SGLANG)
#define COMPLETION (1u << ASK_COMPLETION)
#define CHAT (1u << ASK_CHAT)
#define TOKENS (1u << ASK_TOKENS)
#define VLLM (1u << ASK_VLLM)
#define SGLANG (1u << ASK_SGLANG)

enum field_kind {
    FIELD_I64,
    FIELD_F64,
    FIELD_BOOL,
    FIELD_STR,       // char *
    FIELD_OWN,       // parsed by a function
    FIELD_MUST,      // a number that is not supported: refused unless it is `low`
    FIELD_CANNOT,    // not supported: refused unless null, false, {}, [] or ""
};
struct field {
    const char *name;
    unsigned forms;
    enum field_kind kind;
    double low, high;
    size_t at;    // in struct ask
    bool (*own)(struct ask *a, const struct field *f, const json_t *v, struct error *err);
};

static bool wrong(struct error *err, const struct field *f, const char *what)
{
    return error_set(err, ERR_DATA, "'%s' must be %s", f->name, what);
}

/* A number that jansson cannot hold is a string to it, and no text (json_text.h). */
static bool is_text(const json_t *v)
{
    return json_is_string(v) && !json_odd_text(v);
}

/* ---- fields parsed by a function */
static bool stop_add(struct ask *a, const struct field *f, const json_t *v, struct error *err)
{
    size_t len = json_string_length(v);
    if (!is_text(v) || strlen(json_string_value(v)) != len)
        return wrong(err, f, "a string or a list of strings");
    if (len == 0)
        return true;
    if (len > ASK_STOP_BYTES_MAX)
        return error_set(err, ERR_DATA, "'%s' has a string of %zu bytes; at most %d are possible", f->name, len, ASK_STOP_BYTES_MAX);
    if (a->n_stop == ASK_STOPS_MAX)
        return error_set(err, ERR_DATA, "'%s' has more than %d strings", f->name, ASK_STOPS_MAX);
    return (a->stop[a->n_stop++] = strdup(json_string_value(v))) || error_set(err, ERR_NO_MEMORY, "no memory for a stop string");
}

static bool stop_read(struct ask *a, const struct field *f, const json_t *v, struct error *err)
{
    if (!json_is_array(v))
        return stop_add(a, f, v, err);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!stop_add(a, f, json_array_get(v, i), err))
            return false;
    return true;
}

/* A token id into *out. */
static bool id_read(const json_t *v, int32_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX)
        return false;
    *out = (int32_t)json_integer_value(v);
    return true;
}

static bool stop_ids_read(struct ask *a, const struct field *f, const json_t *v, struct error *err)
{
    if (!json_is_array(v))
        return wrong(err, f, "a list of token ids");
    if (json_array_size(v) > SAMPLING_STOP_TOKENS_MAX)
        return error_set(err, ERR_DATA, "'%s' has %zu ids; at most %d are possible", f->name, json_array_size(v), SAMPLING_STOP_TOKENS_MAX);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!id_read(json_array_get(v, i), &a->stop_token[a->n_stop_token++]))
            return wrong(err, f, "a list of token ids");
    return true;
}

/* completions: the number of likeliest tokens; chat: a switch, with top_logprobs as a second field. */
static bool logprobs_read(struct ask *a, const struct field *f, const json_t *v, struct error *err)
{
    if (json_is_boolean(v)) {
        a->logprobs = json_is_true(v);
        return true;
    }
    json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < 0 || n > ASK_TOP_MAX)
        return error_set(err, ERR_DATA, "'%s' must be true, false or a number between 0 and %d", f->name, ASK_TOP_MAX);
    a->logprobs = true;
    a->n_top = n;
    return true;
}

/* A number of likeliest tokens; false and null are off. */
static bool prompt_logprobs_read(struct ask *a, const struct field *f, const json_t *v, struct error *err)
{
    json_int_t n = json_integer_value(v);
    if (json_is_false(v))
        return true;
    if (!json_is_integer(v) || n < 0 || n > ASK_TOP_MAX)
        return error_set(err, ERR_DATA, "'%s' must be a number between 0 and %d", f->name, ASK_TOP_MAX);
    a->n_read = n;
    a->tell_read = true;
    return true;
}

static bool seed_read(struct ask *a, const struct field *f, const json_t *v, struct error *err)
{
    if (!json_is_integer(v))
        return wrong(err, f, "a whole number");
    a->has_seed = true;
    a->seed = (uint64_t)json_integer_value(v);
    return true;
}

static bool top_k_read(struct ask *a, const struct field *f, const json_t *v, struct error *err)
{
    json_int_t k = json_integer_value(v);
    if (!json_is_integer(v) || k < -1 || k > INT32_MAX)
        return wrong(err, f, "a whole number; 0 and -1 are off");
    a->top_k = MAX(k, 0);
    return true;
}

static bool ids_add(struct token_list *out, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        int32_t id;
        if (!id_read(json_array_get(list, i), &id) || !token_list_add(out, &id, 1))
            return false;
    }
    return true;
}

/* One prompt: a text, or a list of ids. */
static bool prompt_add(struct ask *a, const struct field *f, const json_t *v, struct error *err)
{
    if (a->n_prompt == ASK_PROMPTS_MAX)
        return error_set(err, ERR_DATA, "'%s' has more than %d prompts", f->name, ASK_PROMPTS_MAX);
    struct ask_prompt *grown = realloc(a->prompt, (size_t)(a->n_prompt + 1) * sizeof *grown);
    if (!grown)
        return error_set(err, ERR_NO_MEMORY, "no memory for a prompt");
    a->prompt = grown;
    struct ask_prompt *p = &a->prompt[a->n_prompt++];
    *p = (struct ask_prompt){ .text = NULL };
    if (is_text(v)) {
        p->len = json_string_length(v);
        p->text = malloc(p->len + 1);
        if (!p->text)
            return error_set(err, ERR_NO_MEMORY, "no memory for a prompt of %zu bytes", p->len);
        memcpy(p->text, json_string_value(v), p->len + 1);
        return true;
    }
    if (!json_is_array(v) || !ids_add(&p->token, v))
        return wrong(err, f, "a string, a list of strings, a list of token ids, or a list of such lists");
    return true;
}

static bool prompt_read(struct ask *a, const struct field *f, const json_t *v, struct error *err)
{
    const json_t *first = json_array_get(v, 0);
    if (a->n_prompt > 0)
        return error_set(err, ERR_DATA, "'%s' is a second prompt beside another field's", f->name);
    if (json_is_object(v)) {    // vLLM's {"prompt_token_ids": [...]} or {"prompt": TEXT}
        const json_t *ids = json_object_get(v, "prompt_token_ids");
        return prompt_add(a, f, ids ? ids : json_object_get(v, "prompt"), err);
    }
    if (!json_is_array(v) || json_is_integer(first))
        return prompt_add(a, f, v, err);
    a->is_list = true;
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!prompt_add(a, f, json_array_get(v, i), err))
            return false;
    return true;
}

static bool object_keep(struct ask *a, const struct field *f, const json_t *v, struct error *err)
{
    if (!json_is_object(v))
        return wrong(err, f, "an object");
    if (!a->template_more && !(a->template_more = json_object()))
        return error_set(err, ERR_NO_MEMORY, "no memory for '%s'", f->name);
    return json_object_update(a->template_more, (json_t *)(uintptr_t)v) == 0
           || error_set(err, ERR_NO_MEMORY, "no memory for '%s'", f->name);
}

static bool list_keep(struct ask *a, const struct field *f, const json_t *v, struct error *err)
{
    if (!json_is_array(v))
        return wrong(err, f, "a list");
    json_t **to = (json_t **)((char *)a + f->at);
    *to = json_incref((json_t *)(uintptr_t)v);
    return true;
}

static bool tools_read(struct ask *a, const struct field *f, const json_t *v, struct error *err)
{
    return list_keep(a, f, v, err) && tools_strict_check(v, err);
}

/* "auto" or "none": templates may use it. Nothing here can make the model call a tool, as "required" and a function by name ask for. */
static bool tool_choice_read(struct ask *a, const struct field *f, const json_t *v, struct error *err)
{
    const char *word = json_string_value(v);
    if (!word || (strcmp(word, "auto") != 0 && strcmp(word, "none") != 0))
        return wrong(err, f, "\"auto\" or \"none\"; no model is forced to call a tool here");
    a->no_calls = strcmp(word, "none") == 0;
    if (!a->template_more && !(a->template_more = json_object()))
        return error_set(err, ERR_NO_MEMORY, "no memory for '%s'", f->name);
    return json_object_set(a->template_more, "tool_choice", (json_t *)(uintptr_t)v) == 0
           || error_set(err, ERR_NO_MEMORY, "no memory for '%s'", f->name);
}

static bool stream_options_read(struct ask *a, const struct field *f, const json_t *v, struct error *err)
{
    const json_t *usage = json_object_get(v, "include_usage");
    if (!json_is_object(v) || (usage && !json_is_boolean(usage) && !json_is_null(usage)))
        return wrong(err, f, "an object with 'include_usage'");
    if (!a->stream)
        return error_set(err, ERR_DATA, "'%s' is for streams; set 'stream' to true", f->name);
    a->include_usage = json_is_true(usage);
    return true;
}

static bool response_format_read(UNUSED struct ask *a, const struct field *f, const json_t *v, struct error *err)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    return (type && strcmp(type, "text") == 0) || wrong(err, f, "{\"type\": \"text\"}; grammars are not supported");
}

/* What is wanted back: only text can be. */
static bool modalities_read(UNUSED struct ask *a, const struct field *f, const json_t *v, struct error *err)
{
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *word = json_string_value(json_array_get(v, i));
        if (!word || strcmp(word, "text") != 0)
            return wrong(err, f, "[\"text\"]");
    }
    return json_is_array(v) || wrong(err, f, "[\"text\"]");
}

/* 'best_of' draws more samples than are answered; only 'n' itself, all of them, is done. */
static bool best_of_read(struct ask *a, const struct field *f, const json_t *v, struct error *err)
{
    return (json_is_integer(v) && json_integer_value(v) == a->n)
           || error_set(err, ERR_DATA, "'%s' other than 'n' is not supported", f->name);
}

static bool cache_salt_read(struct ask *a, const struct field *f, const json_t *v, struct error *err)
{
    struct digest d;
    char hex[65];
    if (!is_text(v) || json_string_length(v) == 0)
        return wrong(err, f, "a string that is not empty");
    digest_init(&d, true);
    digest_add(&d, json_string_value(v), json_string_length(v));
    digest_hex(&d, hex);
    hex[15] = 0;
    a->cache_salt = strtoull(hex, NULL, 16);
    return true;
}

/* In the order they are read: 'stream' and 'n' come before what needs them. Sampling fields may be in 'sampling_params', where
 * the form has it, or at the top level. */
#define AT(member) .at = offsetof(struct ask, member)
// clang-format off
static const struct field fields[] = {
    { "model",                         ALL,                 FIELD_STR,  AT(model) },
    { "request_id",                    ALL,                 FIELD_STR,  AT(request_id) },
    { "rid",                           SGLANG,              FIELD_STR,  AT(request_id) },
    { "lora_path",                     SGLANG,              FIELD_STR,  AT(model) },
    { "prompt",                        COMPLETION | VLLM,   FIELD_OWN,  .own = prompt_read },
    { "token_ids",                     TOKENS,              FIELD_OWN,  .own = prompt_read },
    { "text",                          SGLANG,              FIELD_OWN,  .own = prompt_read },
    { "input_ids",                     SGLANG,              FIELD_OWN,  .own = prompt_read },
    { "messages",                      CHAT,                FIELD_OWN,  AT(messages), .own = list_keep },
    { "tools",                         CHAT,                FIELD_OWN,  AT(tools), .own = tools_read },
    { "tool_choice",                   CHAT,                FIELD_OWN,  .own = tool_choice_read },
    { "parallel_tool_calls",           CHAT,                FIELD_BOOL, AT(parallel_tools) },
    { "chat_template_kwargs",          CHAT,                FIELD_OWN,  .own = object_keep },
    { "add_generation_prompt",         CHAT,                FIELD_BOOL, AT(add_generation_prompt) },
    { "n",                             ALL,                 FIELD_I64,  1, ASK_SAMPLES_MAX, AT(n) },
    { "best_of",                       ALL,                 FIELD_OWN,  .own = best_of_read },
    { "max_tokens",                    ALL & ~SGLANG,       FIELD_I64,  0, INT32_MAX, AT(max_tok) },
    { "max_completion_tokens",         CHAT,                FIELD_I64,  0, INT32_MAX, AT(max_tok) },
    { "max_new_tokens",                SGLANG,              FIELD_I64,  0, INT32_MAX, AT(max_tok) },
    { "min_tokens",                    ALL,                 FIELD_I64,  0, INT32_MAX, AT(min_tok) },
    { "min_new_tokens",                SGLANG,              FIELD_I64,  0, INT32_MAX, AT(min_tok) },
    { "temperature",                   ALL,                 FIELD_F64,  0, 100, AT(temperature) },
    { "top_p",                         ALL,                 FIELD_F64,  0, 1, AT(top_p) },
    { "min_p",                         ALL,                 FIELD_F64,  0, 1, AT(min_p) },
    { "top_k",                         ALL,                 FIELD_OWN,  .own = top_k_read },
    { "seed",                          ALL,                 FIELD_OWN,  .own = seed_read },
    { "sampling_seed",                 SGLANG,              FIELD_OWN,  .own = seed_read },
    { "stop",                          ALL,                 FIELD_OWN,  .own = stop_read },
    { "stop_token_ids",                ALL,                 FIELD_OWN,  .own = stop_ids_read },
    { "ignore_eos",                    ALL,                 FIELD_BOOL, AT(ignore_eos) },
    { "include_stop_str_in_output",    ALL,                 FIELD_BOOL, AT(include_stop) },
    { "no_stop_trim",                  SGLANG,              FIELD_BOOL, AT(include_stop) },
    { "skip_special_tokens",           ALL,                 FIELD_BOOL, AT(skip_special) },
    { "add_special_tokens",            ALL,                 FIELD_BOOL, AT(add_special) },
    { "logprobs",                      ALL & ~SGLANG,       FIELD_OWN,  .own = logprobs_read },
    { "top_logprobs",                  CHAT,                FIELD_I64,  0, ASK_TOP_MAX, AT(n_top) },
    { "return_logprob",                SGLANG,              FIELD_BOOL, AT(logprobs) },
    { "top_logprobs_num",              SGLANG,              FIELD_I64,  0, ASK_TOP_MAX, AT(n_top) },
    { "return_text_in_logprobs",       SGLANG,              FIELD_BOOL, AT(return_text) },
    { "return_tokens_as_token_ids",    OPENAI,              FIELD_BOOL, AT(tokens_as_ids) },
    { "return_token_ids",              OPENAI,              FIELD_BOOL, AT(return_ids) },
    { "stream",                        ALL,                 FIELD_BOOL, AT(stream) },
    { "stream_options",                OPENAI | TOKENS,     FIELD_OWN,  .own = stream_options_read },
    { "cache_salt",                    ALL,                 FIELD_OWN,  .own = cache_salt_read },
    { "response_format",               ALL,                 FIELD_OWN,  .own = response_format_read },
    { "modalities",                    ALL,                 FIELD_OWN,  .own = modalities_read },
    { "presence_penalty",              ALL,                 FIELD_MUST, 0 },
    { "frequency_penalty",             ALL,                 FIELD_MUST, 0 },
    { "repetition_penalty",            ALL,                 FIELD_MUST, 1 },
    { "length_penalty",                ALL,                 FIELD_MUST, 1 },
    { "use_beam_search",               ALL,                 FIELD_CANNOT },
    { "logit_bias",                    ALL,                 FIELD_CANNOT },
    { "logits_processors",             ALL,                 FIELD_CANNOT },
    { "custom_logit_processor",        SGLANG,              FIELD_CANNOT },
    { "echo",                          COMPLETION,          FIELD_BOOL, AT(echo) },
    { "echo",                          ALL & ~COMPLETION,   FIELD_CANNOT },
    { "suffix",                        COMPLETION,          FIELD_CANNOT },
    { "prompt_logprobs",               ALL & ~SGLANG,       FIELD_OWN,  .own = prompt_logprobs_read },
    { "logprob_start_len",             SGLANG,              FIELD_I64,  -1, INT32_MAX, AT(read_from) },
    { "continue_final_message",        CHAT,                FIELD_CANNOT },
    { "chat_template",                 CHAT,                FIELD_CANNOT },
    { "documents",                     CHAT,                FIELD_CANNOT },
    { "functions",                     CHAT,                FIELD_CANNOT },
    { "web_search_options",            CHAT,                FIELD_CANNOT },
    { "audio",                         CHAT,                FIELD_CANNOT },
    { "truncate_prompt_tokens",        ALL,                 FIELD_CANNOT },
    { "prompt_embeds",                 ALL,                 FIELD_CANNOT },
    { "input_embeds",                  SGLANG,              FIELD_CANNOT },
    { "image_data",                    SGLANG,              FIELD_CANNOT },
    { "audio_data",                    SGLANG,              FIELD_CANNOT },
    { "video_data",                    SGLANG,              FIELD_CANNOT },
    { "return_hidden_states",          ALL,                 FIELD_CANNOT },
    { "allowed_token_ids",             ALL,                 FIELD_CANNOT },
    { "bad_words",                     ALL,                 FIELD_CANNOT },
    { "logprob_token_ids",             ALL,                 FIELD_CANNOT },
    { "token_ids_logprob",             SGLANG,              FIELD_CANNOT },
    { "structured_outputs",            ALL,                 FIELD_CANNOT },
    { "guided_json",                   ALL,                 FIELD_CANNOT },
    { "guided_regex",                  ALL,                 FIELD_CANNOT },
    { "guided_choice",                 ALL,                 FIELD_CANNOT },
    { "guided_grammar",                ALL,                 FIELD_CANNOT },
    { "structural_tag",                ALL,                 FIELD_CANNOT },
    { "json_schema",                   ALL,                 FIELD_CANNOT },
    { "regex",                         ALL,                 FIELD_CANNOT },
    { "grammar",                       ALL,                 FIELD_CANNOT },
    { "ebnf",                          ALL,                 FIELD_CANNOT },
    { "stop_regex",                    ALL,                 FIELD_CANNOT },
};
// clang-format on

static bool is_empty(const json_t *v)
{
    return json_is_false(v) || (json_is_object(v) && json_object_size(v) == 0) || (json_is_array(v) && json_array_size(v) == 0)
           || (json_is_string(v) && json_string_length(v) == 0);
}

static bool field_read(struct ask *a, const struct field *f, const json_t *v, struct error *err)
{
    void *at = (char *)a + f->at;
    double number = json_number_value(v);
    switch (f->kind) {
    case FIELD_I64:
        if (!json_is_integer(v) || number < f->low || number > f->high)
            return error_set(err, ERR_DATA, "'%s' must be a whole number between %.0f and %.0f", f->name, f->low, f->high);
        *(int64_t *)at = json_integer_value(v);
        return true;
    case FIELD_F64:
        if (!json_is_number(v) || !(number >= f->low) || number > f->high)
            return error_set(err, ERR_DATA, "'%s' must be a number between %g and %g", f->name, f->low, f->high);
        *(double *)at = number;
        return true;
    case FIELD_BOOL:
        if (!json_is_boolean(v))
            return wrong(err, f, "true or false");
        *(bool *)at = json_is_true(v);
        return true;
    case FIELD_STR:
        if (!is_text(v) || json_string_length(v) > 1024 || strlen(json_string_value(v)) != json_string_length(v))
            return wrong(err, f, "a string of at most 1024 bytes");
        free(*(char **)at);
        return (*(char **)at = strdup(json_string_value(v))) || error_set(err, ERR_NO_MEMORY, "no memory for '%s'", f->name);
    case FIELD_OWN: return f->own(a, f, v, err);
    case FIELD_MUST:
        return (json_is_number(v) && number == f->low) || error_set(err, ERR_DATA, "'%s' other than %g is not supported", f->name, f->low);
    case FIELD_CANNOT: return is_empty(v) || error_set(err, ERR_DATA, "'%s' is not supported", f->name);
    }
    BUG_IF(true, "field '%s' is of kind %d", f->name, (int)f->kind);
}

/* Checks that concern several fields. */
static bool ask_check(struct ask *a, struct error *err)
{
    static const char *const prompt_name[ASK_FORMS] = { "prompt",   "messages", "token_ids", "prompt", "text' or 'input_ids",
                                                        "messages", "input" };
    if (ask_is_chat(a->form) && a->form != ASK_CHAT && a->n != 1)
        return error_set(err, ERR_DATA, "'n' other than 1 is not supported here");
    if (ask_is_chat(a->form) ? json_array_size(a->messages) == 0 : a->n_prompt == 0)
        return error_set(err, ERR_DATA, "'%s' is missing or empty", prompt_name[a->form]);
    if (!(a->top_p > 0))
        return error_set(err, ERR_DATA, "'top_p' must be above 0 and at most 1");
    if (a->n * MAX(a->n_prompt, 1) > ASK_SAMPLES_MAX)
        return error_set(err, ERR_DATA, "%" PRId64 " prompts with 'n' %" PRId64 " are more than the %d samples of a request", a->n_prompt,
                         a->n, ASK_SAMPLES_MAX);
    if (a->n_top > 0 && !a->logprobs)
        return error_set(err, ERR_DATA, "'top_logprobs' needs 'logprobs' to be true");
    if (a->form == ASK_SGLANG && a->logprobs && a->read_from >= 0)
        a->n_read = a->n_top;
    if (a->stream && a->echo)
        return error_set(err, ERR_DATA, "'echo' is not streamed; leave 'stream' out");
    if (a->echo && a->logprobs)
        a->n_read = MAX(a->n_read, a->n_top);
    if (a->max_tok == 0 && !a->echo && a->n_read < 0 && a->form != ASK_SGLANG)
        return error_set(err, ERR_DATA, "'max_tokens' is 0, which needs 'echo' or 'prompt_logprobs'; there would be nothing to answer");
    if (a->stream && a->n_read >= 0)
        return error_set(err, ERR_DATA, "log-probs of the prompt are not streamed; leave 'stream' out");
    return true;
}

bool ask_parse(struct ask *a, enum ask_form form, const json_t *body, struct error *err)
{
    *a = (struct ask){ .form = form,
                       .n = 1,
                       .max_tok = -1,
                       .n_read = -1,
                       .read_from = -1,
                       .temperature = 1,
                       .top_p = 1,
                       .skip_special = true,
                       .add_generation_prompt = true,
                       .add_special = !ask_is_chat(form),    // chat templates write their own
                       .parallel_tools = true };
    const json_t *params = form == ASK_TOKENS || form == ASK_SGLANG ? json_object_get(body, "sampling_params") : NULL;
    const unsigned bit = ask_is_chat(form) ? CHAT : 1u << form;
    json_t *chat = NULL;
    bool ok = false;
    if (!json_is_object(body)) {
        error_set(err, ERR_DATA, "the body must be an object");
        goto out;
    }
    if (form == ASK_MESSAGES || form == ASK_RESPONSES) {
        TRY(chat = form == ASK_MESSAGES ? dialect_of_messages(body, err) : dialect_of_responses(body, err));
        body = chat;
    }
    if (params && !json_is_object(params) && !json_is_null(params)) {
        error_set(err, ERR_DATA, "'sampling_params' must be an object");
        goto out;
    }
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
        const json_t *v = json_object_get(params, fields[i].name);
        if (!v)
            v = json_object_get(body, fields[i].name);
        if (v && !json_is_null(v) && fields[i].forms & bit)
            TRY(field_read(a, &fields[i], v, err));
    }
    a->parse_tools = !a->no_calls && json_array_size(a->tools) > 0;
    TRY(ask_check(a, err));
    ok = true;
out:
    json_decref(chat);
    if (!ok)
        ask_release(a);
    return ok;
}

void ask_release(struct ask *a)
{
    free(a->model);
    free(a->request_id);
    for (int64_t i = 0; i < a->n_prompt; i++) {
        free(a->prompt[i].text);
        token_list_release(&a->prompt[i].token);
    }
    free(a->prompt);
    for (int i = 0; i < a->n_stop; i++)
        free(a->stop[i]);
    json_decref(a->messages);
    json_decref(a->tools);
    json_decref(a->template_more);
    *a = (struct ask){ .n = 0 };
}

/* ---- text to ids */
bool ask_render(const struct ask *a, const struct ask_text *text, struct buf *out, struct error *err)
{
    struct chat_options options = { .add_generation_prompt = a->add_generation_prompt,
                                    .tools = json_array_size(a->tools) ? a->tools : NULL,
                                    .more = a->template_more };
    if (!text->template)
        return error_set(err, ERR_DATA, "the model has no chat template; use /v1/completions");
    json_t *messages = messages_flatten(a->messages, err);
    bool ok = messages && template_chat(text->template, messages, &options, out, err);
    json_decref(messages);
    return ok;
}

static bool chat_encode(struct ask *a, const struct ask_text *text, struct error *err)
{
    struct buf rendered = BUF_INIT;
    bool ok = false;
    TRY(ask_render(a, text, &rendered, err));
    if (!(a->prompt = calloc(1, sizeof *a->prompt))) {
        error_set(err, ERR_NO_MEMORY, "no memory for a prompt");
        goto out;
    }
    a->n_prompt = 1;
    TRY(encoder_encode(text->encoder, buf_text(&rendered), rendered.len, a->add_special ? ENCODE_ADD_SPECIAL : 0, &a->prompt[0].token,
                       err));
    a->opens_thinking = answer_opens_thinking(buf_text(&rendered), rendered.len);
    ok = true;
out:
    buf_release(&rendered);
    return ok;
}

/* Clients know by these words of OpenAI's that a prompt must be cut: litellm and verifiers look for them. */
#define CONTEXT_WORDS "this model's maximum context length is %" PRId64 " tokens"

bool ask_encode(struct ask *a, const struct ask_text *text, struct error *err)
{
    int64_t n_read = 0;
    if (ask_is_chat(a->form) && !chat_encode(a, text, err))
        return false;
    for (int64_t i = 0; i < a->n_prompt; i++) {
        struct ask_prompt *p = &a->prompt[i];
        if (p->text && !encoder_encode(text->encoder, p->text, p->len, a->add_special ? ENCODE_ADD_SPECIAL : 0, &p->token, err))
            return false;
        if (p->token.n == 0)
            return error_set(err, ERR_DATA, "prompt %" PRId64 " has no token", i);
        if (p->token.n >= text->max_seq_tok)
            return error_set(err, ERR_CONTEXT, CONTEXT_WORDS "; prompt %" PRId64 " has %" PRId64 ", and a new one must fit, too",
                             text->max_seq_tok, i, p->token.n);
        for (int64_t k = 0; k < p->token.n; k++)
            if (p->token.id[k] >= text->n_id)
                return error_set(err, ERR_DATA, "prompt %" PRId64 " has token id %d; the model knows 0 to %" PRId64, i, p->token.id[k],
                                 text->n_id - 1);
        n_read += a->n_read >= 0 ? p->token.n * (1 + a->n_read) : 0;
        if (n_read > ASK_READ_MAX)
            return error_set(err, ERR_DATA, "the prompts' log-probs are more than the %" PRId64 " of a request", ASK_READ_MAX);
    }
    return true;
}

/* Default numbers of new tokens: those of the servers these forms come from. */
static int64_t max_tok_default(enum ask_form form)
{
    return form == ASK_COMPLETION || form == ASK_VLLM ? 16 : form == ASK_SGLANG ? 128 : INT32_MAX;
}

bool ask_sampling(const struct ask *a, int64_t n_prompt, const struct ask_text *text, const int32_t *eos, int n_eos, struct sampling *out,
                  struct error *err)
{
    int64_t room = text->max_seq_tok - n_prompt;
    int64_t most = a->max_tok >= 0 ? a->max_tok : MIN(max_tok_default(a->form), room);
    if (most > room)
        return error_set(err, ERR_CONTEXT, CONTEXT_WORDS "; the prompt has %" PRId64 ", and %" PRId64 " new ones are asked for",
                         text->max_seq_tok, n_prompt, most);
    *out = (struct sampling){ .temperature = a->temperature < 1e-5 ? 0 : (float)a->temperature,    // greedy below this, as in vLLM
                              .top_p = (float)a->top_p,
                              .min_p = (float)a->min_p,
                              .top_k = (int32_t)a->top_k,
                              .max_new_tok = MAX(most, (int64_t)1),    // 0: one is drawn and left out, since that reads the prompt
                              .ignore_eos = a->ignore_eos && a->n_stop_token == 0 };
    if (a->min_tok > most)
        return error_set(err, ERR_DATA, "%" PRId64 " new tokens are asked for at least, and %" PRId64 " at most", a->min_tok, most);
    out->min_new_tok = a->min_tok;
    for (int i = 0; i < n_eos && (!a->ignore_eos || (out->ignore_eos && a->min_tok > 0)); i++)    // ignored, but not drawn, as in vLLM
        sampling_add_stop(out, eos[i]);
    for (int i = 0; i < a->n_stop_token; i++) {
        sampling_add_stop(out, a->stop_token[i]);
        if (out->n_stop_token == SAMPLING_STOP_TOKENS_MAX && i + 1 < a->n_stop_token)
            return error_set(err, ERR_DATA, "'stop_token_ids' and the model's end tokens are more than %d", SAMPLING_STOP_TOKENS_MAX);
    }
    return sampling_check(out, err);
}
