/* tokenizer.h - text to token ids and back, exactly as Hugging Face tokenizers does
 *
 * A struct tokenizer is made from a tokenizer.json, or from the model directory that holds it, and then only read: any
 * number of threads share it. Encoding needs one struct encoder per thread (scratch and word cache), decoding nothing.
 * Models: byte-level BPE, BPE over characters with or without byte fallback, Unigram.
 * Intended differences from the library: truncation and padding written in the file are ignored (a prompt is never cut
 * silently), and a file whose ids disagree with themselves is refused. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "workers/engine/text/unicode.h"

struct tokenizer;
/* Load FILE (a tokenizer.json) or DIR/tokenizer.json. From the directory it also reads the end tokens, from
 * tokenizer_config.json, generation_config.json and config.json, if present. NULL: see err. */
struct tokenizer *tokenizer_load(const char *path, struct error *err);
/* As tokenizer_load, from memory; name is used in messages. */
struct tokenizer *tokenizer_parse(const char *json, size_t len, const char *name, struct error *err);
void tokenizer_free(struct tokenizer *t);

/* Largest id + 1. A model's embedding may have more rows, which belong to no token: a sampler masks them. */
int32_t tokenizer_n_id(const struct tokenizer *t);
/* Fails, naming dir, when a model of this vocabulary has no row for some id. */
MUST_USE bool tokenizer_fits(const struct tokenizer *t, int64_t vocab, const char *dir, struct error *err);
/* Have both the same tokens under the same ids? err names the first that differs; the names are for it. */
MUST_USE bool tokenizer_same(const struct tokenizer *a, const char *a_name, const struct tokenizer *b, const char *b_name,
                             struct error *err);
/* The id of a token by its text, e.g. "<|im_end|>" or "Ġthe" (the file's spelling): added tokens first. */
MUST_USE bool tokenizer_find(const struct tokenizer *t, const char *text, int32_t *id);
bool tokenizer_has_id(const struct tokenizer *t, int32_t id);
/* Ids that end a completion: eos_token_id of generation_config.json (else config.json) and tokenizer_config's
 * eos_token, without repeats; n_eos may be 0. Borrowed. */
const int32_t *tokenizer_eos(const struct tokenizer *t, int *n_eos);
bool tokenizer_is_eos(const struct tokenizer *t, int32_t id);
/* Keep the special tokens that occur in tag when skip_special decodes. Before t is shared. */
void tokenizer_show(struct tokenizer *t, const char *tag);
/* How many of a completion's n ids are its text: all of them but an end token at the end, unless that one is shown. */
int64_t tokenizer_n_text(const struct tokenizer *t, const int32_t *id, int64_t n);

struct token_list {
    int32_t *id;    // (n) owned: token_list_release
    int64_t n, cap;
};
void token_list_release(struct token_list *l);
/* Add n ids; false: no memory (l unchanged). */
MUST_USE bool token_list_add(struct token_list *l, const int32_t *id, int64_t n);

struct encoder;
enum encode_flags {
    ENCODE_ADD_SPECIAL = 1,        // what the post-processor adds around a text (Llama's begin token); templates write their own
    ENCODE_ADD_BEGIN = 4,          // only what it adds before a text, unless the text begins with that
    ENCODE_SPECIAL_AS_TEXT = 2,    // special tokens in the text are not recognised: text of unknown origin cannot forge them
};
/* An encoder of one thread; borrows t until encoder_free. cache: keep the ids of words seen (1.5 MiB); results are the
 * same. */
struct encoder *encoder_new(const struct tokenizer *t, bool cache, struct error *err);
void encoder_free(struct encoder *e);
/* Append the ids of text (len bytes, at most 1 GiB) to out. Added tokens in the text are recognised. Fails on text that
 * is not UTF-8 (ERR_DATA names the byte); out then holds what it held before. */
MUST_USE bool encoder_encode(struct encoder *e, const char *text, size_t len, unsigned flags, struct token_list *out, struct error *err);

/* Append the text of n ids to out: always valid UTF-8, with U+FFFD for what is not. Ids without a token are skipped.
 * false: out is full. */
MUST_USE bool tokenizer_decode(const struct tokenizer *t, const int32_t *id, int64_t n, bool skip_special, struct buf *out);
/* Decoding token by token: never half a character; joined, the pieces are what tokenizer_decode gives. */
struct decoder {
    const struct tokenizer *tokenizer;    // borrowed
    bool skip_special;
    struct utf8_stream stream;    // zero to start, as all that follows
    // where tokens are text:
    struct buf run;    // byte tokens that may yet become characters; decoder_end gives it back
    bool begun;        // a token has been decoded
    int stripped;      // spaces taken off the beginning
};
MUST_USE bool decoder_push(struct decoder *d, int32_t id, struct buf *out);    // append the text that is now complete
MUST_USE bool decoder_end(struct decoder *d, struct buf *out);                 // append what is left, then start over
void decoder_release(struct decoder *d);                                       // without an end
/* The bytes a token stands for (not always UTF-8), borrowed; NULL: no such id. */
const uint8_t *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *len);
