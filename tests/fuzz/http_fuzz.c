/* A hostile stream of requests, heads and chunked bodies in turn: what is read does not depend on the pieces in which it comes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/http_head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void text_check(const char *text)
{
    if (text && strpbrk(text, "\r\n"))
        abort();
}

static void head_check(const struct http_head *h)
{
    if (!h->method || !h->path || h->n_header > HTTP_HEADERS_MAX || h->n_query > HTTP_QUERY_MAX || (h->chunked && h->length >= 0)
        || h->length < -1)
        abort();
    text_check(h->method);
    text_check(h->host);
    for (int i = 0; i < h->n_header; i++) {
        text_check(h->header[i].name);
        text_check(h->header[i].value);
        if (strpbrk(h->header[i].name, " \t:") || h->header[i].name[0] == 0)
            abort();
    }
    for (int i = 0; i < h->n_query; i++)
        if (!http_query(h, h->query[i].name))
            abort();
}

/* The bytes of a body in chunks, into out; *used of them. */
static enum http_found chunks_read(const char *data, size_t len, size_t step, char *out, size_t *n_out, size_t *used)
{
    struct http_chunks c = { 0 };
    enum http_found found = HTTP_MORE;
    *n_out = *used = 0;
    while (*used < len && found == HTTP_MORE) {
        size_t n, n_piece;
        const char *piece;
        found = http_chunks_take(&c, data + *used, len - *used < step ? len - *used : step, &n, &piece, &n_piece);
        memcpy(out + *n_out, piece, n_piece);
        *n_out += n_piece;
        *used += n;
    }
    return found;
}

static size_t body_try(const char *data, size_t len)
{
    char *whole = malloc(len + 1), *bytes = malloc(len + 1);
    size_t n_whole, n_bytes, used, used_bytes;
    enum http_found found = chunks_read(data, len, len, whole, &n_whole, &used);
    if (found != chunks_read(data, len, 1, bytes, &n_bytes, &used_bytes) || n_whole != n_bytes || memcmp(whole, bytes, n_whole) != 0
        || used != used_bytes)
        abort();
    free(whole);
    free(bytes);
    return found == HTTP_WHOLE ? used : len;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *at = (const char *)data, *end = at + size;
    while (at < end) {
        struct http_head h;
        const char *why = NULL;
        size_t seen = 0, len = 0, seen_late = 0, len_late = 0;
        enum http_found late = HTTP_MORE, found = http_head_find(at, (size_t)(end - at), &seen, &len);
        for (size_t n = 1; at + n <= end && late == HTTP_MORE; n++)
            late = http_head_find(at, n, &seen_late, &len_late);
        if (late != found || len != len_late)
            abort();
        if (found != HTTP_WHOLE)
            break;
        char *text = strndup(at, len);
        int status = http_head_read(&h, text, &why);
        at += len;
        if (status == 0)
            head_check(&h);
        else if (!why)
            abort();
        at += status == 0 && h.chunked ? body_try(at, (size_t)(end - at)) : 0;
        free(text);
        if (status != 0)
            break;
    }
    return 0;
}
