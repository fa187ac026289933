/* text.c - see text.h */
#include "console/tui/text.h"
#include <stdbool.h>
#include <utf8proc.h>

size_t text_decode(const char *s, size_t len, uint32_t *cp)
{
    utf8proc_int32_t c = -1;
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)len, &c);
    if (n <= 0 || c < 0) {
        *cp = 0xFFFD;
        return 1;
    }
    *cp = (uint32_t)c;
    return (size_t)n;
}

size_t text_encode(uint32_t cp, char *out)
{
    utf8proc_ssize_t n = utf8proc_encode_char((utf8proc_int32_t)cp, (utf8proc_uint8_t *)out);
    return n > 0 ? (size_t)n : 0;
}

uint32_t text_visible(uint32_t cp)
{
    if (cp >= 0x20 && cp < 0x7f)
        return cp;
    if (cp == '\t')
        return ' ';
    if (cp == '\n')
        return 0x21b5;    // return arrow
    if (cp < 0x20)
        return 0x2400 + cp;    // control pictures: ESC is shown as one sign
    if (cp == 0x7f)
        return 0x2421;
    if (cp == 0x200d || (cp >= 0xfe00 && cp <= 0xfe0f))
        return 0;    // joiner and variation selectors: terminals disagree on them, so they are never sent
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return 0xfffd;    // direction overrides, zero-width and private characters
    default: return cp;
    }
}

int text_width(uint32_t cp)
{
    if (cp >= 0x20 && cp < 0x7f)
        return 1;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME: return 0;
    default: break;
    }
    int w = utf8proc_charwidth((utf8proc_int32_t)cp);
    return w < 1 ? 1 : w;
}

int text_columns(const char *s, size_t len)
{
    int columns = 0;
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        i += text_decode(s + i, len - i, &cp);
        cp = text_visible(cp);
        columns += cp ? text_width(cp) : 0;
    }
    return columns;
}

size_t text_wrap(const char *s, size_t len, int w, size_t *next)
{
    int columns = 0;
    size_t blank = 0, i = 0;    // blank: where the last blank that fits ends
    bool has_blank = false;
    while (i < len) {
        uint32_t cp;
        size_t n = text_decode(s + i, len - i, &cp);
        if (cp == '\n') {
            *next = i + 1;
            return i > 0 && s[i - 1] == '\r' ? i - 1 : i;
        }
        if (cp == '\r' && i + 1 < len && s[i + 1] == '\n') {
            i++;
            continue;
        }
        uint32_t shown = text_visible(cp);
        int cw = shown ? text_width(shown) : 0;
        if (columns + cw > w && cw > 0) {
            if (cp == ' ') {    // the blank at the end of the line is dropped
                *next = i + n;
                return i;
            }
            if (has_blank) {
                *next = blank;
                return blank - 1;
            }
            if (i == 0)
                i = n;    // narrower than one character: continue anyway
            *next = i;
            return i;
        }
        columns += cw;
        i += n;
        if (cp == ' ') {
            has_blank = true;
            blank = i;
        }
    }
    *next = len;
    return len;
}
