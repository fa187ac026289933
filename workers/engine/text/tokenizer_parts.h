/* tokenizer_parts.h - the internals of a tokenizer; only for tokenizer.c, tokenizer_load.c and text_decode.c */
#pragma once
#include <jansson.h>
#include "workers/engine/text/added.h"
#include "workers/engine/text/bpe.h"
#include "workers/engine/text/normalizer.h"
#include "workers/engine/text/pretok.h"
#include "workers/engine/text/tokenizer.h"
#include "workers/engine/text/unicode.h"
#include "workers/engine/text/unigram.h"

struct spelling {
    const uint8_t *bytes;    // what the id decodes to; NULL: no such id. In bpe.bytes or added_bytes
    uint32_t len;
    bool special;
    bool shown;            // though special, it is decoded even with skip_special
    const uint8_t *own;    // where tokens are text: its spelling in the file
    uint32_t own_len;
    bool byte;    // a byte fallback's: neighbours of this kind are decoded together
};
/* What the decoder does where tokens are text. */
struct decode_rules {
    struct buf from, to;    // in each token, mostly the mark for a space; from empty: nothing
    bool bytes;             // tokens <0x00> ... <0xFF> are bytes
    int strip;              // this many spaces are taken off the beginning of the whole text
    bool bare_first;        // from is taken off the first token, not replaced (Metaspace)
    bool joined;            // a space goes between tokens: the file has no decoder
};
struct tokenizer {
    struct unicode unicode;
    struct normalizer normalizer;
    struct pretok pretok;
    pretok_next *next;    // the whole pre-tokenizer when it is one function, else NULL
    struct bpe bpe;       // the tokens of every model
    bool is_unigram;
    struct unigram unigram;
    struct decode_rules rules;    // where bpe.text
    struct buf text;              // the tokens' decoded text there, owned
    struct added_token *added;    // (n_added) owned
    int n_added;
    struct added_set added_raw, added_normal;
    struct buf added_bytes;       // decoded spelling of added tokens outside the vocabulary
    struct spelling *spelling;    // (n_id) owned
    int32_t n_id;
    struct token_list before, after;    // what the post-processor puts around a text
    struct token_list eos;
};
/* In text_decode.c: append the text of a token where tokens are text, and of what was held back at its end. False: no memory. */
bool text_decoder_push(struct decoder *d, int32_t id, struct buf *out);
bool text_decoder_end(struct decoder *d, struct buf *out);
/* Read the decoder of a tokenizer.json whose tokens are text. */
MUST_USE bool decode_rules_read(struct decode_rules *r, const json_t *spec, const char *name, struct error *err);
/* The byte that a token's spelling <0xHH> stands for, -1: it is none. lower: small hexadecimal digits count too. */
int byte_spelt(const char *text, size_t len, bool lower);
/* Undo the printable alphabet of byte-level files (GPT-2's bytes_to_unicode): append the bytes that a token's text
 * encodes. *raw: some character is outside the alphabet; its UTF-8 is then appended as it is. text is valid UTF-8.
 * false: no memory. */
bool spelling_to_bytes(const char *text, size_t len, struct buf *out, bool *raw);
