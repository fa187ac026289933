/* template.h - chat templates: the Jinja subset that model directories use, rendered exactly as transformers does
 *
 * transformers renders with jinja2's ImmutableSandboxedEnvironment, trim_blocks and lstrip_blocks on, loop controls, a
 * plain tojson, raise_exception and strftime_now; the pitfalls are listed at the top of template_eval.c. What is
 * outside the subset is refused with line and construct, when the template is read or, where it depends on a value,
 * when it is rendered. A struct template is read-only once made: any number of threads render it. Work, depth, memory
 * and output are bounded. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <jansson.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

struct template;
/* Read a template from memory (UTF-8); name is used in messages. NULL: see err, "name:line: ...". */
struct template *template_new(const char *source, size_t len, const char *name, struct error *err);
#define TEMPLATE_TOOL_USE_FILE "additional_chat_templates/tool_use.jinja"
/* The chat template of a model directory: chat_template.jinja, else tokenizer_config.json's chat_template (a string, or
 * named ones, of which "default" is taken); with the special tokens' texts (bos_token, eos_token, ...) that
 * tokenizer_config.json gives. Where the directory has one called "tool_use" (TEMPLATE_TOOL_USE_FILE, or a named one),
 * conversations with tools are rendered by it, as transformers does. ERR_NOT_FOUND when the directory has none. */
struct template *template_load(const char *dir, struct error *err);
/* As template_load, but having none is no error: *out is then NULL. */
MUST_USE bool template_find(const char *dir, struct template **out, struct error *err);
/* As template_load, from a file that holds only the template. */
struct template *template_load_file(const char *path, struct error *err);
void template_free(struct template *t);
/* Append the text for these variables (an object) to out. now_s: seconds since 1970 for strftime_now, in UTC.
 * ERR_REFUSED: the template called raise_exception; ERR_UNSUPPORTED: outside the subset; ERR_DATA: jinja2 would raise
 * an exception; on failure out is unchanged. */
MUST_USE bool template_render(const struct template *t, const json_t *variables, double now_s, struct buf *out, struct error *err);

struct chat_options {
    const char *system;            // a system message put first when there is none, or NULL
    bool add_generation_prompt;    // end with the beginning of an assistant's turn
    const json_t *tools;           // list of functions, or NULL
    const json_t *more;            // object of more variables (enable_thinking, date_string, ...), or NULL
    double now_s;                  // for strftime_now; 0: 26 Jul 2024, so that prompts do not change from day to day
};
/* Render messages (one message or a list) as a conversation; appended to out. Encode it without ENCODE_ADD_SPECIAL:
 * templates write their own begin token. */
MUST_USE bool template_chat(const struct template *t, const json_t *messages, const struct chat_options *options, struct buf *out,
                            struct error *err);
/* The text of the first n messages for a model without a chat template, appended to out (out->failed: no memory): that of the one question,
 * after that of its system message and an empty line, if there is one. False: they are something else. */
bool plain_chat(const json_t *messages, size_t n, struct buf *out);
