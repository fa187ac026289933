/* gguf_merges.h - the merges of a SentencePiece vocabulary
 *
 * SentencePiece joins neighbours into the token of the best score; as BPE, that is a list of merges: every way to make a token out of two
 * others, best tokens first. Any thread. */
#pragma once
#include <stdint.h>
#include "workers/engine/load/gguf.h"

struct gguf_merge {
    int32_t left, right, both;    // ids
    int32_t n_left, n_right;      // characters
    float score;
};
struct gguf_merges {
    struct gguf_merge *merge;    // (n) in order, owned
    int64_t n, cap;
};
/* The merges of the n tokens, by score (n); NULL: tokens are in the order of their scores. Equal ones are in the order that transformers'
 * generate_merges has: longer left parts first, then longer right parts, then the order of the tokens. m is zero to start, and is to be
 * released either way. */
MUST_USE bool gguf_merges_make(struct gguf_merges *m, const struct gguf_text *token, const float *score, int64_t n, struct error *err);
void gguf_merges_release(struct gguf_merges *m);
