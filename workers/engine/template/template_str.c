/* template_str.c - strings by characters, with the behaviour of Python's str methods */
#include <string.h>
#include <utf8proc.h>
#include "workers/engine/template/template_args.h"
#include "workers/engine/text/unicode.h"

int64_t jinja_str_chars(struct str s)
{
    int64_t n = 0;
    for (size_t i = 0; i < s.len; i++)
        n += (s.p[i] & 0xC0) != 0x80;
    return n;
}

bool jinja_char_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A)
           || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

static bool char_among(uint32_t cp, const struct str *chars)
{
    if (!chars)
        return jinja_char_is_space(cp);
    for (size_t i = 0; i < chars->len;) {
        int n;
        if (utf8_at((const uint8_t *)chars->p + i, &n) == cp)
            return true;
        i += (size_t)n;
    }
    return false;
}

struct str jinja_str_trim(struct str s, const struct str *chars, bool left, bool right)
{
    int n;
    while (left && s.len && char_among(utf8_at((const uint8_t *)s.p, &n), chars)) {
        s.p += n;
        s.len -= (size_t)n;
    }
    while (right && s.len) {
        const uint8_t *last = utf8_before((const uint8_t *)s.p + s.len);
        if (!char_among(utf8_at(last, &n), chars))
            break;
        s.len -= (size_t)n;
    }
    return s;
}

int64_t jinja_str_find(struct str s, struct str what, size_t from)
{
    if (from > s.len)
        return -1;
    if (what.len == 0)
        return (int64_t)from;
    const char *at = s.len - from ? memmem(s.p + from, s.len - from, what.p, what.len) : NULL;
    return at ? at - s.p : -1;
}

int64_t jinja_str_find_last(struct str s, struct str what)
{
    for (size_t i = s.len >= what.len ? s.len - what.len + 1 : 0; i-- > 0;)
        if (what.len == 0 || memcmp(s.p + i, what.p, what.len) == 0)
            return (int64_t)i;
    return -1;
}

/* Characters whose upper or lower case is not one character, or depends on the characters around it (Unicode's SpecialCasing).
 * */
static bool case_is_special(uint32_t c, bool upper)
{
    if (!upper)
        return c == 0x130 || c == 0x3A3;
    return c == 0xDF || c == 0x149 || c == 0x1F0 || c == 0x390 || c == 0x3B0 || c == 0x587 || (c >= 0x1E96 && c <= 0x1E9A)
           || (c >= 0x1F50 && c <= 0x1F56) || (c >= 0x1F80 && c <= 0x1FFC) || (c >= 0xFB00 && c <= 0xFB17);
}

void jinja_char_case(struct render *r, struct buf *b, uint32_t c, bool upper)
{
    uint8_t out[4];
    if (case_is_special(c, upper))
        jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "the %s case of U+%04X is not supported", upper ? "upper" : "lower", c);
    uint32_t to = (uint32_t)(upper ? utf8proc_toupper((utf8proc_int32_t)c) : utf8proc_tolower((utf8proc_int32_t)c));
    buf_add(b, out, (size_t)utf8_put(out, to));
}

struct value jinja_str_case(struct render *r, struct str s, bool upper)
{
    struct buf *b = jinja_temp_new(r);
    for (size_t i = 0; i < s.len;) {
        int n;
        jinja_char_case(r, b, utf8_at((const uint8_t *)s.p + i, &n), upper);
        i += (size_t)n;
    }
    return jinja_from_buf(r, b);
}

struct value jinja_str_lines(struct render *r, struct str s)
{
    struct value l = jinja_list_new(r, V_LIST, 0);
    size_t from = 0;
    for (size_t i = 0; i < s.len;) {
        int n;
        uint32_t c = utf8_at((const uint8_t *)s.p + i, &n);
        bool end = (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
        size_t next = i + (size_t)n;
        if (end) {
            jinja_list_push(r, l.list, jinja_str(s.p + from, i - from));
            if (c == '\r' && next < s.len && s.p[next] == '\n')
                next++;
            from = next;
        }
        i = next;
    }
    if (from < s.len)
        jinja_list_push(r, l.list, jinja_str(s.p + from, s.len - from));
    return l;
}

static void list_turn(struct list *l)
{
    for (int64_t i = 0, k = l->n - 1; i < k; i++, k--) {
        struct value v = l->v[i];
        l->v[i] = l->v[k];
        l->v[k] = v;
    }
}

/* str.split and str.rsplit; sep NULL: runs of white space. */
struct value jinja_str_split(struct render *r, struct str s, const struct value *sep, int64_t max, bool from_right)
{
    struct value l = jinja_list_new(r, V_LIST, 0);
    int64_t left = max < 0 ? INT64_MAX : max;
    render_step(r, (int64_t)(s.len / 64));
    if (sep) {
        struct str by = str_arg(r, *sep);
        if (by.len == 0)
            jinja_fail_set(&r->fail, ERR_DATA, "an empty separator");
        for (int64_t at; left > 0 && (at = from_right ? jinja_str_find_last(s, by) : jinja_str_find(s, by, 0)) >= 0; left--) {
            struct str part = from_right ? (struct str){ s.p + at + by.len, s.len - (size_t)at - by.len } : (struct str){ s.p, (size_t)at };
            jinja_list_push(r, l.list, str_value(part));
            s = from_right ? (struct str){ s.p, (size_t)at } : (struct str){ s.p + at + by.len, s.len - (size_t)at - by.len };
            if (from_right)
                render_step(r, (int64_t)(part.len / 64));
        }
        jinja_list_push(r, l.list, str_value(s));
    } else {
        for (;;) {
            s = jinja_str_trim(s, NULL, !from_right, from_right);
            if (s.len == 0)
                break;
            if (left-- == 0) {
                jinja_list_push(r, l.list, str_value(jinja_str_trim(s, NULL, from_right, !from_right)));
                break;
            }
            size_t at = from_right ? s.len : 0;
            int n;
            if (from_right) {
                while (at > 0) {
                    const uint8_t *b = utf8_before((const uint8_t *)s.p + at);
                    if (jinja_char_is_space(utf8_at(b, &n)))
                        break;
                    at = (size_t)((const char *)b - s.p);
                }
                jinja_list_push(r, l.list, jinja_str(s.p + at, s.len - at));
                s.len = at;
            } else {
                while (at < s.len && !jinja_char_is_space(utf8_at((const uint8_t *)s.p + at, &n)))
                    at += (size_t)n;
                jinja_list_push(r, l.list, jinja_str(s.p, at));
                s = (struct str){ s.p + at, s.len - at };
            }
        }
    }
    if (from_right)
        list_turn(l.list);
    return l;
}

struct value jinja_str_replace(struct render *r, struct str s, struct str from, struct str to, int64_t max)
{
    struct buf *b = jinja_temp_new(r);
    size_t at = 0;
    if (max < 0)
        max = INT64_MAX;
    render_step(r, (int64_t)(s.len / 64));
    if (from.len == 0) {    // between all characters
        for (int n; max > 0; max--) {
            buf_add(b, to.p, to.len);
            if (at >= s.len)
                break;
            utf8_at((const uint8_t *)s.p + at, &n);
            buf_add(b, s.p + at, (size_t)n);
            at += (size_t)n;
            render_step(r, 1);
        }
    } else {
        for (int64_t hit; max > 0 && (hit = jinja_str_find(s, from, at)) >= 0; max--) {
            buf_add(b, s.p + at, (size_t)hit - at);
            buf_add(b, to.p, to.len);
            at = (size_t)hit + from.len;
        }
    }
    buf_add(b, s.p + at, s.len - at);
    return jinja_from_buf(r, b);
}

struct value jinja_str_capitalize(struct render *r, struct str s)
{
    struct buf *b = jinja_temp_new(r);
    for (size_t i = 0; i < s.len;) {
        int n;
        uint32_t c = utf8_at((const uint8_t *)s.p + i, &n);
        if (i == 0 && c >= 0x80)
            jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "capitalizing U+%04X is not supported", c);
        jinja_char_case(r, b, c, i == 0);
        i += (size_t)n;
    }
    return jinja_from_buf(r, b);
}

/* islower and isupper: some letter has a case, and none the other. */
bool jinja_str_all_case(struct render *r, struct str s, bool upper)
{
    bool some = false;
    for (size_t i = 0; i < s.len;) {
        int n;
        utf8proc_int32_t c = (utf8proc_int32_t)utf8_at((const uint8_t *)s.p + i, &n);
        bool is_upper = utf8proc_category(c) == UTF8PROC_CATEGORY_LU, is_lower = utf8proc_category(c) == UTF8PROC_CATEGORY_LL;
        if (c >= 0x80 && !is_upper && !is_lower && utf8proc_category(c) != UTF8PROC_CATEGORY_LO)
            jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "the case of U+%04X is not supported", (unsigned)c);
        if (upper ? is_lower : is_upper)
            return false;
        some |= upper ? is_upper : is_lower;
        i += (size_t)n;
    }
    return some;
}
