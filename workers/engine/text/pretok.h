/* pretok.h - cutting a text into the pieces that are encoded one by one
 *
 * A tokenizer's pre_tokenizer is a chain of stages, each cutting the pieces of the previous one. The published patterns
 * have handwritten matchers; any other goes to PCRE2 with JIT, with \s, \w and \d spelt out as Oniguruma defines them.
 * The chain is read-only once made; matching needs a struct pretok_scratch of the thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "workers/engine/text/unicode.h"

#define PRETOK_STAGES_MAX 16
struct pretok_stage;
struct pretok {
    struct pretok_stage *stage;    // (n_stage) owned
    int n_stage;
    bool byte_level;                  // it ends with ByteLevel: tokens are bytes, not text
    bool add_prefix_space;            // ByteLevel puts a space before a piece that begins with none,
    int prefix_stage;                 // before this stage
    const struct unicode *unicode;    // borrowed
};
struct pretok_scratch {
    void *match_data;    // of PCRE2
    void *match_context;
    void *jit_stack;
};
/* A piece of the text; false stops the walk (the taker has set its error). */
typedef bool pretok_take(void *arg, const uint8_t *piece, size_t len);

/* Read the pre_tokenizer of a tokenizer.json. ERR_UNSUPPORTED names a kind or pattern that is not supported. use_pcre2 forces
 * the general path even for published patterns (for tests and measurements). */
MUST_USE bool pretok_init(struct pretok *p, const json_t *spec, const struct unicode *u, bool use_pcre2, struct error *err);
void pretok_release(struct pretok *p);
/* Call take for each piece of text (valid UTF-8) in order. first: it is where the whole text begins. */
MUST_USE bool pretok_walk(const struct pretok *p, const uint8_t *text, size_t len, bool first, struct pretok_scratch *s, pretok_take *take,
                          void *arg, struct error *err);
void pretok_scratch_release(struct pretok_scratch *s);
/* For a chain of one stage whose pieces do not depend on their neighbours: the function that returns the length of the piece at
 * p, for the caller's own loop. NULL for any other chain. */
typedef size_t pretok_next(const struct unicode *u, const uint8_t *p, const uint8_t *end);
pretok_next *pretok_fast(const struct pretok *p);
