#include "protocol/base/buf.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_release(struct buf *b)
{
    free(b->data);
    *b = (struct buf){ .max = b->max };
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = 0;
}

char *buf_reserve(struct buf *b, size_t len)
{
    size_t max = b->max ? b->max : (size_t)1 << 30;
    if (b->failed || len > max - MIN(max, b->len)) {
        b->failed = true;
        return NULL;
    }
    if (b->len + len + 1 > b->cap) {
        size_t cap = MAX(b->cap + b->cap / 2, b->len + len + 1);
        cap = MAX(cap, (size_t)64);
        char *data = realloc(b->data, cap);
        if (!data) {
            b->failed = true;
            return NULL;
        }
        b->data = data;
        b->cap = cap;
    }
    b->data[b->len + len] = 0;
    return b->data + b->len;
}

bool buf_add(struct buf *b, const void *data, size_t len)
{
    char *at = buf_reserve(b, len);
    if (!at)
        return false;
    if (len)
        memcpy(at, data, len);
    b->len += len;
    return true;
}

bool buf_str(struct buf *b, const char *s)
{
    return buf_add(b, s, strlen(s));
}

bool buf_char(struct buf *b, char c)
{
    return buf_add(b, &c, 1);
}

bool buf_fmt(struct buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *at = n < 0 ? NULL : buf_reserve(b, (size_t)n);
    if (at) {
        vsnprintf(at, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    } else {
        b->failed = true;
    }
    va_end(again);
    return at != NULL;
}

bool buf_shell(struct buf *b, const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:@%+=,-";
    if (text[0] && strspn(text, plain) == strlen(text))
        return buf_str(b, text);
    buf_char(b, '\'');
    for (const char *p = text; *p; p++) {
        if (*p == '\'')
            buf_str(b, "'\\''");
        else
            buf_char(b, *p);
    }
    return buf_char(b, '\'');
}

bool buf_nul_replace(struct buf *b, size_t from)
{
    size_t n = b->len - from;
    if (b->failed || n == 0 || !memchr(b->data + from, 0, n))
        return !b->failed;
    char *was = malloc(n);
    if (!was) {
        b->failed = true;
        return false;
    }
    memcpy(was, b->data + from, n);
    b->len = from;
    for (size_t i = 0; i < n; i++)
        was[i] ? buf_char(b, was[i]) : buf_str(b, "\xEF\xBF\xBD");
    free(was);
    return !b->failed;
}
