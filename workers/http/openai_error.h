/* openai_error.h - errors as OpenAI's and Anthropic's clients read them
 *
 * Any thread. */
#pragma once
#include "protocol/base/buf.h"

/* Append {"error": {...}} for an HTTP status. code: a word by which clients know it; NULL: the status, as in vLLM. A failure to append
 * sets out->failed. */
void openai_error_print(struct buf *out, int status, const char *code, const char *message);
/* Append {"type": "error", "error": {"type", "message"}}. */
void anthropic_error_print(struct buf *out, int status, const char *message);
