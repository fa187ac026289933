/* sampling.h - the settings an item is sampled with, and their bounds */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

#define SAMPLING_STOP_TOKENS_MAX 16
#define SAMPLING_STOP_STRING_MAX 63    // bytes

/* How an item is sampled; plain values, so that it can travel and be compared. */
struct sampling {
    float temperature;      // 0: greedy (then log-probs are those at temperature 1)
    float top_p;            // 1: off
    int32_t top_k;          // 0: off
    float min_p;            // 0: off; else tokens below min_p times the likeliest one's probability are left out
    int64_t max_new_tok;    // at least 1
    // Before a sample has this many tokens, no end token is drawn, even with ignore_eos, and no stop string
    // ends it; 0: off.
    int64_t min_new_tok;
    bool ignore_eos;    // end tokens are sampled like any other and do not end the sample
    int32_t n_stop_token;
    int32_t stop_token[SAMPLING_STOP_TOKENS_MAX];      // end tokens; the one that ends a sample is its last token
    char stop_string[SAMPLING_STOP_STRING_MAX + 1];    // "": none; ends the sample after the token that completes it
};
#define SAMPLING_DEFAULT ((struct sampling){ .temperature = 1, .top_p = 1, .max_new_tok = 1024 })
/* Every field in its bounds, or ERR_USAGE naming the first that is not. */
MUST_USE bool sampling_check(const struct sampling *s, struct error *err);

/* Add an end token; duplicates, and tokens beyond the limit, are ignored. */
void sampling_add_stop(struct sampling *s, int32_t id);
