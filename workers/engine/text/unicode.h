/* unicode.h - what the tokenizer needs to know about characters: class, NFC, and bytes that may not be UTF-8
 *
 * The class table is built once from utf8proc (Unicode 14) and then only read: any thread. Pre-tokenizer patterns use
 * four classes (letter, number, White_Space, line end), so one byte per character is enough. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "protocol/base/utf8.h"

enum char_class {
    CHAR_LETTER = 1,           // \p{L}
    CHAR_NUMBER = 2,           // \p{N}: Nd, Nl, No
    CHAR_SPACE = 4,            // White_Space, which is what \s means in tokenizer files (not U+200B, not U+001C..1F)
    CHAR_NEWLINE = 8,          // CR or LF; also CHAR_SPACE
    CHAR_WORD = 16,            // \w of Rust's regex crate: Alphabetic, marks, decimal numbers, connectors, joiners
    CHAR_NFC_STABLE = 32,      // a starter that NFC leaves alone whatever surrounds it
    CHAR_PUNCTUATION = 128,    // ASCII's, and P* as the library knows it (see unicode.c)
    CHAR_UNKNOWN = 64,         // normalisation treats it as a plain starter: it is newer than Unicode 9 (see unicode.c)
};
struct unicode {
    uint16_t block_of[0x1100];    // (cp >> 8) -> block
    uint8_t *block;               // (n_block, 256) classes; owned
    int n_block;
    uint8_t ascii[256];    // class of a byte below 0x80; 0 above
};
MUST_USE bool unicode_init(struct unicode *u, struct error *err);
void unicode_release(struct unicode *u);
static inline unsigned unicode_class(const struct unicode *u, uint32_t cp)
{
    return u->block[(size_t)u->block_of[cp >> 8] * 256 + (cp & 255)];
}
/* The character at p, which must be valid UTF-8; *len is set to its bytes. */
static inline uint32_t utf8_at(const uint8_t *p, int *len)
{
    if (p[0] < 0x80)
        return *len = 1, p[0];
    if (p[0] < 0xE0)
        return *len = 2, (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
    if (p[0] < 0xF0)
        return *len = 3, (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    return *len = 4, (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
}
/* Where the character that ends before p begins; p must be after at least one character of valid UTF-8. */
static inline const uint8_t *utf8_before(const uint8_t *p)
{
    do
        p--;
    while ((*p & 0xC0) == 0x80);
    return p;
}
/* Bytes of cp written to out (room for 4). */
int utf8_put(uint8_t *out, uint32_t cp);

enum normal_form {
    FORM_NONE,
    FORM_NFC,
    FORM_NFD,
    FORM_NFKC,
    FORM_NFKD,
};
/* Append the text (valid UTF-8) in a normal form (UAX 15). Linear but for sorting runs of marks (n log n). */
MUST_USE bool unicode_normalize(const struct unicode *u, enum normal_form form, const uint8_t *p, size_t len, struct buf *out,
                                struct error *err);

/* Bytes to text, as a stream: whole characters are passed on, up to 3 bytes of an unfinished one are held back, and
 * each maximal invalid part becomes U+FFFD (Unicode 14, section 3.9, as Python, Rust and WHATWG do). Zero to start. */
struct utf8_stream {
    uint8_t held[4];
    int n_held;
};
bool utf8_stream_push(struct utf8_stream *s, const uint8_t *p, size_t len, struct buf *out);
/* The text ends here: what is held back becomes one U+FFFD. */
bool utf8_stream_end(struct utf8_stream *s, struct buf *out);
