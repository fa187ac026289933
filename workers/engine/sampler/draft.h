/* draft.h - guesses at a sample's next tokens, from what has followed the same few tokens before
 *
 * A table from the last tokens of a text to the token that came after them, the newest time they were seen. It is a guess and nothing
 * more: slots are overwritten when it is full, and a wrong guess costs time only (generator_draft.c). Prompt lookup decoding
 * (https://github.com/apoorvumang/prompt-lookup-decoding) with all samples of a prompt as the text to look in. Owned by the generator, one
 * thread. */
#pragma once
#include <stdint.h>
#include "protocol/base/error.h"

/* Contexts of these many tokens are kept; the longest that is found decides. */
#define DRAFT_ORDERS 2
#define DRAFT_CONTEXT 4    // the longest of them, tokens
struct draft_slot {
    uint32_t check;    // other bits of the context's hash
    int32_t next;      // -1: empty
};
struct draft_table {
    struct draft_slot *slot;    // (n_slot) owned; NULL: nothing is kept
    uint64_t n_slot;            // a power of two
};
struct draft_token {
    int32_t id;
    int order;    // which of the contexts was found: 0 is the longest
};
/* For about n_tok tokens, within bounds. On failure t holds nothing. */
MUST_USE bool draft_table_init(struct draft_table *t, int64_t n_tok, struct error *err);
void draft_table_release(struct draft_table *t);
/* After the n_before tokens (all there are; the last DRAFT_CONTEXT are read) came next. Texts of different scopes know nothing of each
 * other. */
void draft_learn(struct draft_table *t, uint64_t scope, const int32_t *before, int64_t n_before, int32_t next);
/* Guess up to max tokens after these into out; returns how many. */
int64_t draft_guess(const struct draft_table *t, uint64_t scope, const int32_t *before, int64_t n_before, struct draft_token *out,
                    int64_t max);
