/* tokenizer_parts.h - the internals of a tokenizer; only for tokenizer.c and tokenizer_load.c */
#pragma once
#include "workers/engine/text/added.h"
#include "workers/engine/text/bpe.h"
#include "workers/engine/text/pretok.h"
#include "workers/engine/text/tokenizer.h"
#include "workers/engine/text/unicode.h"

struct spelling {
    const uint8_t *bytes;    // what the id decodes to; NULL: no such id. In bpe.bytes or added_bytes
    uint32_t len;
    bool special;
};
struct tokenizer {
    struct unicode unicode;
    enum normal_form form;
    struct pretok pretok;
    pretok_next *next;    // the whole pre-tokenizer when it is one function, else NULL
    struct bpe bpe;
    struct added_token *added;    // (n_added) owned
    int n_added;
    struct added_set added_raw, added_normal;
    struct buf added_bytes;       // decoded spelling of added tokens outside the vocabulary
    struct spelling *spelling;    // (n_id) owned
    int32_t n_id;
    struct token_list before, after;    // what the post-processor puts around a text
    struct token_list eos;
};
/* Undo the printable alphabet of byte-level files (GPT-2's bytes_to_unicode): append the bytes that a token's text
 * encodes. *raw: some character is outside the alphabet; its UTF-8 is then appended as it is. text is valid UTF-8.
 * false: no memory. */
bool spelling_to_bytes(const char *text, size_t len, struct buf *out, bool *raw);
