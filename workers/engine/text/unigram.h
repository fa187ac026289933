/* unigram.h - the Unigram model: the cut of a piece into tokens with the largest sum of scores
 *
 * Kudo, arXiv 1804.10959, section 3.1, as Hugging Face tokenizers computes it: scores in double, ties to the token that begins
 * first. The tokens are a struct bpe's. Read-only once made: any thread, each with a scratch of its own. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "workers/engine/text/bpe.h"

struct unigram {
    double *score;     // (bpe.n_id) owned
    double unknown;    // score of a character that is not a token
    size_t longest;    // bytes of the longest token
};
/* Encode one piece (valid UTF-8) into out, room for len ids. Returns the ids written, -1: no memory, -2: a character is not a token and
 * there is no unknown token. */
int64_t unigram_encode(const struct unigram *u, const struct bpe *b, const uint8_t *piece, size_t len, int32_t *out, struct bpe_scratch *s);
