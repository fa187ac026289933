/* reply.h - jobs as JSON, in the shape that belongs to the form of request
 *
 * The shapes are OpenAI's, Anthropic's messages, with vLLM's additions (token ids, stop_reason), vLLM's and SGLang's /generate. Every answer has the weights'
 * version. Numbers have nine digits, so that a log-prob reads back to the same float; a value that is not finite becomes -9999,
 * as in vLLM. Called by the thread that serves HTTP, with the job's lock held. */
#pragma once
#include <stdbool.h>
#include "protocol/base/buf.h"
#include "workers/serve/answer.h"
#include "workers/serve/serve_job.h"

struct reply_context {
    const char *model;    // its name for clients
    const struct tokenizer *tokenizer;
};
/* The whole answer of a job that is done. A failure to append sets out->failed. */
void reply_print(struct buf *out, const struct reply_context *x, const struct serve_job *j);
/* What is new since the last call, as server-sent events; when the job is done, "data: [DONE]" follows. vLLM's /generate has lines of JSON
 * instead. Returns true when nothing will follow. */
bool reply_stream(struct buf *out, const struct reply_context *x, struct serve_job *j);
/* The parts of a sample's text as far as they are known, for answer_release. False: no memory. */
MUST_USE bool reply_answer(struct answer_parts *a, const struct serve_job *j, const struct job_choice *c);
void reply_call_id(struct buf *out, const struct serve_job *j, int64_t choice, int call);    // the name of a tool call for clients
