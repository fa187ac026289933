/* buf.h - a growing string of bytes with a bound
 *
 * Owned by whoever declares it; buf_release frees. Once an append fails (no memory, or the bound reached) the buffer keeps
 * what it had, failed is set, and later appends do nothing: check once at the end. Always NUL-terminated. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "protocol/base/macros.h"
struct buf {
    char *data;    // NUL-terminated; "" before the first append
    size_t len;    // bytes, without the NUL
    size_t cap;    // bytes allocated
    size_t max;    // most bytes it may hold; 0: 1 GiB
    bool failed;
};
#define BUF_INIT ((struct buf){ .data = NULL })
void buf_release(struct buf *b);
void buf_clear(struct buf *b);    // empty it, keep the memory, forget a failure
bool buf_add(struct buf *b, const void *data, size_t len);
bool buf_str(struct buf *b, const char *s);
bool buf_char(struct buf *b, char c);
bool buf_fmt(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
bool buf_shell(struct buf *b, const char *text);    // as one word of a POSIX shell, between quotes where it needs them
/* Make room for len more bytes and return where they go (then add len to b->len); NULL on failure. */
char *buf_reserve(struct buf *b, size_t len);
/* Write U+FFFD for each byte of 0 from byte `from` on: as a C string, the text would end there. */
bool buf_nul_replace(struct buf *b, size_t from);
/* The text, never NULL; borrowed until the next change. */
static inline const char *buf_text(const struct buf *b)
{
    return b->data ? b->data : "";
}
