/* external_wire.h - what is said to somebody else's inference engine, and what it answers: vLLM's and SGLang's requests as texts
 *
 * Prompts go out as token ids, and ids with their log-probs come back, so nothing is tokenised twice. Fields as of vLLM 0.26
 * (/v1/completions) and SGLang 0.5 (/generate); 'rollcall serve' answers both. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "protocol/record/group.h"
#include "workers/engine/sampler/generator.h"

enum external_kind {
    EXTERNAL_VLLM,
    EXTERNAL_SGLANG,
};
/* "vllm" or "sglang". */
MUST_USE bool external_kind_parse(const char *name, enum external_kind *out);

/* The path of requests for samples, after the address. */
const char *external_path(enum external_kind kind);
/* The request for it's samples, as JSON appended to out. model: the name by which the engine serves them, a model's or (adapter) an
 * adapter's. The ids from n_id up to n_vocab, rows of the model that stand for no token, are not to be drawn; there may be none. */
void external_request(struct buf *out, enum external_kind kind, const struct generator_item *it, const char *model, bool adapter,
                      int64_t n_id, int64_t n_vocab);
/* The group that an answer of len bytes is; *version: what it says of its weights, -1: nothing. Its weight_version and gen_s are
 * the caller's to set. n_id: ids are below. Returns it for group_free; NULL, ERR_DATA: it is no such answer (too few samples, no ids, a
 * log-prob that is none), and err says what is wrong. */
struct group *external_answer(enum external_kind kind, const struct generator_item *it, int64_t n_id, const char *text, size_t len,
                              int64_t *version, struct error *err);
