/* added.h - added tokens: those matched literally in the text before anything else is split
 *
 * Filled at load, then read-only: any thread. Matching is leftmost, then longest, without overlaps. The tokens matched
 * in the raw text and those matched in the normalised text are two sets, as in Hugging Face tokenizers
 * (added_vocabulary). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "workers/engine/text/unicode.h"

#define ADDED_MAX 65536       // tokens
#define ADDED_LEN_MAX 1024    // bytes of one
struct added_token {
    char *content;    // owned, NUL-terminated
    size_t len;
    char *pattern;    // the text to match: content, or its normalised form; owned
    size_t pattern_len;
    int32_t id;
    bool special, lstrip, rstrip, single_word, normalized;
};
struct added_set {
    const struct added_token **sorted;    // (n) by pattern; owned, the tokens are borrowed
    int n;
    bool starts[256];    // some pattern begins with this byte
    int first;           // the one first byte, or -1 when there are several
};
struct added_match {
    size_t from, to;    // bytes of the text, including the white space it strips
    const struct added_token *token;
};
/* Make the set of tokens whose normalized flag is the one given. */
MUST_USE bool added_set_init(struct added_set *s, const struct added_token *token, int n, bool normalized, struct error *err);
void added_set_release(struct added_set *s);
/* Find the first token at or after *at in text; done is where the previous match ended. *at is moved past the match.
 * With skip_special, special tokens are left as text. */
bool added_next(const struct added_set *s, const struct unicode *u, const uint8_t *text, size_t len, size_t *at, size_t done,
                bool skip_special, struct added_match *m);
