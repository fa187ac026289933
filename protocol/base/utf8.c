#include "protocol/base/utf8.h"
#include <stdlib.h>
#include <inttypes.h>
#include <string.h>
#include "protocol/base/macros.h"

int utf8_look(const uint8_t *p, size_t len)
{
    uint8_t c = p[0], lo = 0x80, hi = 0xBF;
    int n;
    if (c < 0x80)
        return 1;
    if (c >= 0xC2 && c <= 0xDF) {
        n = 2;
    } else if (c >= 0xE0 && c <= 0xEF) {
        n = 3;
        lo = c == 0xE0 ? 0xA0 : 0x80;
        hi = c == 0xED ? 0x9F : 0xBF;
    } else if (c >= 0xF0 && c <= 0xF4) {
        n = 4;
        lo = c == 0xF0 ? 0x90 : 0x80;
        hi = c == 0xF4 ? 0x8F : 0xBF;
    } else {
        return -1;
    }
    for (int i = 1; i < n; i++) {
        if ((size_t)i >= len)
            return 0;
        if (p[i] < lo || p[i] > hi)
            return -i;
        lo = 0x80;
        hi = 0xBF;
    }
    return n;
}

uint32_t utf8_character(const uint8_t *p, int len)
{
    uint32_t c = len == 1 ? p[0] : p[0] & (0x7fu >> len);
    for (int i = 1; i < len; i++)
        c = c << 6 | (p[i] & 0x3f);
    return c;
}

size_t utf8_valid_len(const uint8_t *p, size_t len, bool *is_ascii, bool *may_change)
{
    size_t i = 0;
    bool ascii = true, high = false;
    while (i < len) {
        if (p[i] < 0x80) {
            uint64_t a, b;
            while (i + 16 <= len) {
                memcpy(&a, p + i, 8);
                memcpy(&b, p + i + 8, 8);
                if ((a | b) & 0x8080808080808080u)
                    break;
                i += 16;
            }
            while (i < len && p[i] < 0x80)
                i++;
            continue;
        }
        ascii = false;
        high |= p[i] >= 0xCC;
        int n = utf8_look(p + i, len - i);
        if (n <= 0)
            break;
        i += (size_t)n;
    }
    if (is_ascii)
        *is_ascii = ascii;
    if (may_change)
        *may_change = high;
    return i;
}

size_t utf8_cut(const char *text, size_t len, size_t most)
{
    size_t n = len < most ? len : most;
    while (n > 0 && n < len && ((unsigned char)text[n] & 0xC0) == 0x80)
        n--;
    return n;
}

void utf8_copy(char *to, size_t size, const char *text, size_t len)
{
    size_t n = utf8_cut(text, len, size - 1);
    if (n > 0)
        memcpy(to, text, n);
    to[n] = 0;
}

bool utf8_check(const char *text, size_t len, const char *path, struct error *err)
{
    const char *nul = memchr(text, 0, len);
    size_t good = utf8_valid_len((const uint8_t *)text, nul ? (size_t)(nul - text) : len, NULL, NULL);
    if (good == len)
        return true;
    int64_t line = 1;
    for (size_t i = 0; i < good; i++)
        line += text[i] == '\n';
    if (nul && text + good == nul)
        return error_set(err, ERR_DATA, "%s:%" PRId64 ": a NUL byte in a text; remove it", path, line);
    return error_set(err, ERR_DATA, "%s:%" PRId64 ": the byte 0x%02x is not UTF-8; save the file as UTF-8", path, line,
                     (unsigned)(unsigned char)text[good]);
}

char *text_keep(const char *text, size_t len, size_t most)
{
    len = MIN(len, most);
    char *copy = malloc(len + 1);
    if (copy) {
        memcpy(copy, text, len);
        copy[len] = 0;
        for (size_t i = 0; i < len; i++)
            if (copy[i] == 0)
                copy[i] = ' ';
    }
    return copy;
}
