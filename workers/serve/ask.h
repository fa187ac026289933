/* ask.h - what a request wants generated, in whichever of the seven forms it came
 *
 * The forms are those of OpenAI's completions, chat and responses, of Anthropic's messages, of vLLM's /inference/v1/generate and /generate, and
 * of SGLang's /generate. Messages and responses are read as the chat that they ask for (dialect.h). A table in ask.c defines the meaning of each field of each form. Unknown fields are ignored, as in all
 * these servers; known ones that would change the result and are not supported (penalties, grammars, calls that must be made)
 * are refused unless they are neutral. Made and read by the thread that serves HTTP; the policy's thread only reads it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "protocol/base/error.h"
#include "workers/engine/sampler/sampling.h"
#include "workers/engine/text/tokenizer.h"

#define ASK_PROMPTS_MAX 1024
#define ASK_SAMPLES_MAX 4096    // of all prompts of a request together
#define ASK_STOPS_MAX 16
#define ASK_STOP_BYTES_MAX 256
#define ASK_TOP_MAX 20                     // likeliest tokens in addition to the sampled one
#define ASK_READ_MAX ((int64_t)1 << 22)    // log-probs of a request's prompts

enum ask_form {
    ASK_COMPLETION,    // /v1/completions
    ASK_CHAT,          // /v1/chat/completions
    ASK_TOKENS,        // /inference/v1/generate
    ASK_VLLM,          // /generate with "prompt"
    ASK_SGLANG,        // /generate with "text" or "input_ids"
    ASK_MESSAGES,      // /v1/messages
    ASK_RESPONSES,     // /v1/responses
};
#define ASK_FORMS (ASK_RESPONSES + 1)
/* Is it a conversation, which the chat template renders? */
static inline bool ask_is_chat(enum ask_form form)
{
    return form == ASK_CHAT || form == ASK_MESSAGES || form == ASK_RESPONSES;
}
struct ask_prompt {
    char *text;    // owned; NULL: ids were given, or a chat
    size_t len;
    struct token_list token;    // ids as given, or from ask_encode
};
struct ask {
    enum ask_form form;
    char *model, *request_id;      // owned; NULL: not given
    struct ask_prompt *prompt;     // (n_prompt) owned
    int64_t n_prompt;              // 1 for a chat
    bool is_list;                  // prompts came as a list, even if of only one
    json_t *messages, *tools;      // owned; chat only
    json_t *template_more;         // owned; more variables for the chat template
    bool add_generation_prompt;    // chat
    bool no_calls;                 // tool_choice is "none"
    bool parse_tools;              // return tool calls in the text as tool calls: there are tools, and calls are wanted
    bool parallel_tools;           // ... all of them; else the first
    bool opens_thinking;           // the rendered chat ends with <think>, so the sample begins inside
    int64_t n;                     // samples of each prompt
    int64_t max_tok;               // -1: not given; 0: only the prompt is read
    int64_t min_tok;               // no end token and no stop string ends a sample before it has this many
    double temperature, top_p, min_p;
    int64_t top_k;    // 0: off
    bool has_seed, ignore_eos;
    uint64_t seed;
    char *stop[ASK_STOPS_MAX];    // owned
    int n_stop, n_stop_token;
    int32_t stop_token[SAMPLING_STOP_TOKENS_MAX];
    bool include_stop, skip_special, add_special;
    bool logprobs;          // of the sampled tokens
    int64_t n_top;          // likeliest tokens wanted in addition
    bool tokens_as_ids;     // token texts are "token_id:ID"
    bool return_ids;        // ids of prompt and samples
    bool return_text;       // SGLang: token texts in log-probs
    uint64_t cache_salt;    // hash of the text; prompts of different ones share no cached work
    int64_t n_read;         // likeliest tokens wanted in addition to each of the prompt's; -1: no log-probs of the prompt
    int64_t read_from;      // SGLang: the first token of the prompt whose log-prob is wanted; -1: none
    bool stream, include_usage;
    bool echo;         // completions: the prompt comes before the text, and its log-probs before those of the sample
    bool tell_read;    // the prompt's log-probs have a field of their own
};
/* Read a request's body (an object). On failure (ERR_DATA names the field) a holds nothing. */
MUST_USE bool ask_parse(struct ask *a, enum ask_form form, const json_t *body, struct error *err);
void ask_release(struct ask *a);

/* The parts of a model that ask_encode needs. */
struct ask_text {
    struct encoder *encoder;              // borrowed
    const struct tokenizer *tokenizer;    // borrowed
    const struct template *template;      // borrowed; NULL: chats are refused
    int64_t max_seq_tok;                  // longest prompt and completion
    int64_t n_id;                         // ids are below
};
/* Encode all prompts to ids, rendering chats first; afterwards every prompt has at least one token and room for one more. ERR_CONTEXT:
 * it has no such room. */
MUST_USE bool ask_encode(struct ask *a, const struct ask_text *text, struct error *err);
/* The sampling settings for a prompt of n_prompt tokens, with the model's end tokens (n_eos) and no more new tokens than the
 * context has room for. ERR_CONTEXT: it has no room for those asked for. */
MUST_USE bool ask_sampling(const struct ask *a, int64_t n_prompt, const struct ask_text *text, const int32_t *eos, int n_eos,
                           struct sampling *out, struct error *err);
/* Render messages (a list) for this template; text is appended to out. Content that is a list of text parts is joined, null becomes
 * an empty text, and tool calls' arguments become objects, as templates expect. */
MUST_USE bool ask_render(const struct ask *a, const struct ask_text *text, struct buf *out, struct error *err);
