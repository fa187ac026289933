/* reply_parts.h - what the shapes of reply.h share; for reply*.c alone
 *
 * Messages and responses are made of blocks: thinking, text, and tool calls, in this order. blocks_print walks over those of an answer, whole or
 * as far as a stream has come, and calls the shape's functions; `struct block_shape` is such a shape. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "workers/serve/answer.h"
#include "workers/serve/reply.h"

/* ---- reply.c ---- */
int64_t reply_version(const struct serve_job *j);    // of the weights that drew the newest token; with none yet, the job's
struct reply_usage {
    int64_t n_prompt, n_tok, n_cached;    // tokens: of all prompts, of all samples, and of the prompts those that were not run
};
struct reply_usage reply_usage_of(const struct serve_job *j);
void reply_string_print(struct buf *out, const char *s);    // as JSON
void reply_ids_print(struct buf *out, const int32_t *id, int64_t n);
/* With return_token_ids: ',"prompt_token_ids":[...],"token_ids":[...]' of a job's one sample. */
void reply_all_ids_print(struct buf *out, const struct serve_job *j);

/* ---- reply_blocks.c ---- */
struct block_print {
    struct buf *out;
    const struct reply_context *x;
    const struct serve_job *j;
    struct job_choice *c;
    const struct answer_parts *answer;
};
struct block_shape {
    void (*begin)(struct block_print *p);                                                   // before all blocks
    void (*open)(struct block_print *p, enum block_kind kind);                              // a block of thinking or text begins
    void (*more)(struct block_print *p, enum block_kind kind, const char *s, size_t n);     // ... goes on
    void (*close)(struct block_print *p, enum block_kind kind, const char *s, size_t n);    // ... ends; s: all of it
    void (*call)(struct block_print *p, int i);                                             // a call, whole
    void (*end)(struct block_print *p);                                                     // after all blocks
};
/* What is new of the job's one sample. An answer without a block gets an empty text. False: no memory. */
MUST_USE bool blocks_print(struct buf *out, const struct reply_context *x, const struct serve_job *j, struct job_choice *c,
                           const struct block_shape *shape);
struct job_choice choice_unsent(const struct job_choice *c);    // as if no stream had sent of it; borrows what c has

/* ---- reply_messages.c, reply_responses.c: as reply_print and reply_stream ---- */
void messages_print(struct buf *out, const struct reply_context *x, const struct serve_job *j);
bool messages_stream(struct buf *out, const struct reply_context *x, struct serve_job *j);
void responses_print(struct buf *out, const struct reply_context *x, const struct serve_job *j);
bool responses_stream(struct buf *out, const struct reply_context *x, struct serve_job *j);
