/* json_read.c - JSON as Python writes it, for jansson: a pass over the text replaces what jansson cannot hold by what it can (json_text.h) */
#include "protocol/base/json_text.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* jansson does not hear of it everywhere when malloc fails: its lexer leaves out a character and goes on, or calls the text wrong. So its
 * allocator, which a program has one of, keeps in mind that it failed; for each thread, since each reads its own text. */
static _Thread_local bool was_short;

static void *malloc_noted(size_t size)
{
    void *p = malloc(size);
    was_short = was_short || !p;
    return p;
}

/* Before main: a change while other threads use jansson would race with them. */
__attribute__((constructor)) static void allocator_install(void)
{
    json_set_alloc_funcs(malloc_noted, free);
}

/* ---- before jansson ---- */

struct pass {
    const char *at, *end;
    const char *copied;    // up to here the text is in out; NULL: nothing has been replaced yet
    const char *begin;
    struct buf out;
    size_t flags;
};

/* The text from `from` to p->at becomes text. */
static void replace(struct pass *p, const char *from, const char *text, size_t len)
{
    const char *since = p->copied ? p->copied : p->begin;
    buf_add(&p->out, since, (size_t)(from - since));
    buf_add(&p->out, text, len);
    p->copied = p->at;
}

static void odd_put(struct pass *p, const char *from, const char *spelled, size_t len)
{
    replace(p, from, "\"" JSON_ODD, 1 + strlen(JSON_ODD));
    buf_add(&p->out, spelled, len);
    buf_char(&p->out, '"');
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The value of an escape \uXXXX at s, or -1. */
static int escape_value(const char *s, const char *end)
{
    int v = 0;
    if (end - s < 6 || s[0] != '\\' || s[1] != 'u')
        return -1;
    for (int i = 2; i < 6; i++) {
        if (hex_digit(s[i]) < 0)
            return -1;
        v = v * 16 + hex_digit(s[i]);
    }
    return v;
}

static bool is_name(const char *after, const char *end)
{
    while (after < end && strchr(" \t\r\n", *after) && *after)
        after++;
    return after < end && *after == ':';
}

/* The end of the string that begins at p->at, after its quote; *special: it has a \u0000 or a surrogate. */
static const char *string_end(const struct pass *p, bool *special)
{
    const char *s = p->at + 1;
    *special = false;
    for (; s < p->end && *s != '"'; s++) {
        if (*s != '\\')
            continue;
        int v = escape_value(s, p->end);
        *special = *special || v == 0 || (v >= 0xD800 && v <= 0xDFFF);
        s += p->end - s > 1;
    }
    return s < p->end ? s + 1 : s;
}

/* A text from outside that begins with our mark is no number: U+FFFD stands in the mark's place. */
static void mark_pass(struct pass *p, const char *end)
{
    const char *from = ++p->at;    // after the quote
    bool bare = (size_t)(end - from) > strlen(JSON_ODD) && memcmp(from, JSON_ODD, strlen(JSON_ODD)) == 0;
    if (!bare && escape_value(from, end) != 0xFDD0)
        return;
    p->at += bare ? strlen(JSON_ODD) : 6;
    replace(p, from, "\\ufffd", 6);
}

static void string_pass(struct pass *p)
{
    bool special;
    const char *end = string_end(p, &special);
    bool nul_goes = !(p->flags & JSON_ALLOW_NUL) || is_name(end, p->end);    // jansson has no NUL in names
    mark_pass(p, end);
    while (special && p->at < end) {
        const char *from = p->at;
        int v = escape_value(from, end), low;
        if (v < 0) {
            p->at += *from == '\\' && end - from > 1 ? 2 : 1;
            continue;
        }
        p->at += 6;
        if (v >= 0xD800 && v <= 0xDBFF && (low = escape_value(p->at, end)) >= 0xDC00 && low <= 0xDFFF)
            p->at += 6;
        else if ((v >= 0xD800 && v <= 0xDFFF) || (v == 0 && nul_goes))
            replace(p, from, "\\ufffd", 6);
    }
    p->at = end;
}

static size_t digits_pass(const char **s, const char *end)
{
    const char *from = *s;
    while (*s < end && **s >= '0' && **s <= '9')
        ++*s;
    return (size_t)(*s - from);
}

/* A number of JSON's grammar that is all of s; *real: it has a point or an exponent. */
static bool number_check(const char *s, const char *end, bool *real)
{
    s += s < end && *s == '-';
    bool zero = s < end && *s == '0';
    size_t n = digits_pass(&s, end);
    if (n == 0 || (zero && n > 1))
        return false;
    *real = s < end;
    if (s < end && *s == '.' && (s++, digits_pass(&s, end) == 0))
        return false;
    if (s < end && (*s == 'e' || *s == 'E')) {
        s++;
        s += s < end && (*s == '+' || *s == '-');
        if (digits_pass(&s, end) == 0)
            return false;
    }
    return s == end;
}

#define PLAIN_LEN 18    // no number of this many characters without an exponent is too large

/* Is it an integer beyond 64 bits, or a real beyond a double? */
static bool is_too_large(const char *s, size_t len, bool real)
{
    char *copy = strndup(s, len);
    errno = 0;
    bool large;
    if (!copy)
        return false;    // malloc_noted has no part in this: jansson says what it thinks of the number
    if (real)
        large = isinf(strtod(copy, NULL));
    else
        large = (strtoll(copy, NULL, 10), errno == ERANGE);
    free(copy);
    return large;
}

/* Pass a number or a word. */
static void scalar_pass(struct pass *p)
{
    static const struct {
        const char *word;
        size_t len;
    } words[] = { { "NaN", 3 }, { "Infinity", 8 }, { "-Infinity", 9 } };
    const char *from = p->at;
    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if ((size_t)(p->end - from) >= words[i].len && memcmp(from, words[i].word, words[i].len) == 0) {
            p->at += words[i].len;
            odd_put(p, from, words[i].word, words[i].len);
            return;
        }
    bool exponent = false, real = (p->flags & JSON_DECODE_INT_AS_REAL) != 0, point;
    for (char c; p->at < p->end && ((c = *p->at, (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E'));
         p->at++)
        exponent = exponent || c == 'e' || c == 'E';
    size_t len = (size_t)(p->at - from);
    if (len == 0) {    // true, false, null, or what jansson will refuse
        while (p->at < p->end && *p->at >= 'a' && *p->at <= 'z')
            p->at++;
        p->at += p->at == from;
        return;
    }
    if ((len <= PLAIN_LEN && !exponent) || !number_check(from, p->at, &point) || !is_too_large(from, len, real || point))
        return;
    if (real || point)
        odd_put(p, from, *from == '-' ? "-Infinity" : "Infinity", *from == '-' ? 9 : 8);
    else
        odd_put(p, from, from, len);
}

/* Pass the first value, as far as jansson could read it: p->at is its end, or where jansson stops too. */
static void value_pass(struct pass *p)
{
    int64_t depth = 0;
    bool begun = false;    // a value at the top has been seen
    while (p->at < p->end && !(begun && depth <= 0)) {
        char c = *p->at;
        if (c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == ',' || c == ':') {
            p->at++;
            continue;
        }
        begun = true;
        if (c == '"')
            string_pass(p);
        else if (c == '{' || c == '[' || c == '}' || c == ']')
            p->at++, depth += c == '{' || c == '[' ? 1 : -1;
        else if (c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == 'N' || c == 'I')
            scalar_pass(p);
        else
            return;
    }
}

json_t *json_text_read(const char *text, size_t len, size_t flags, json_error_t *why)
{
    json_error_t own;
    why = why ? why : &own;
    if (!text)
        return json_loadb(NULL, 0, flags, why);
    size_t mark = len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    struct pass p = { .at = text + mark, .begin = text + mark, .end = text + len, .flags = flags, .out = BUF_INIT };
    was_short = false;
    if (flags & JSON_STANDARD)
        flags &= ~JSON_STANDARD;
    else
        value_pass(&p);
    const char *read = p.begin;
    size_t read_len = len - mark, end = (size_t)(p.at - text);
    if (p.copied) {
        buf_add(&p.out, p.copied, (size_t)(p.end - p.copied));
        read = buf_text(&p.out);
        read_len = p.out.len;
    }
    json_t *v = p.out.failed ? NULL : json_loadb(read, read_len, flags, why);
    if (was_short || p.out.failed) {
        json_decref(v);
        v = NULL;
        *why = (json_error_t){ .line = 1, .column = 1 };
        snprintf(why->text, sizeof why->text, "not enough memory to read it");
        why->text[JSON_ERROR_TEXT_LENGTH - 1] = json_error_out_of_memory;    // where json_error_code looks
    } else if (v && (flags & JSON_DISABLE_EOF_CHECK) && p.at > p.begin) {
        why->position = (int)end;
    }
    buf_release(&p.out);
    return v;
}

json_t *json_str_read(const char *text, size_t flags, json_error_t *why)
{
    return json_text_read(text, text ? strlen(text) : 0, flags, why);
}

/* ---- numbers that jansson cannot hold ---- */

const char *json_odd_text(const json_t *v)
{
    static const char *const words[] = { "NaN", "Infinity", "-Infinity" };
    const char *s = json_string_value(v);
    bool real;
    if (!s || strncmp(s, JSON_ODD, strlen(JSON_ODD)) != 0)
        return NULL;
    const char *spelled = s + strlen(JSON_ODD), *end = s + json_string_length(v);
    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (strcmp(spelled, words[i]) == 0 && (size_t)(end - spelled) == strlen(words[i]))
            return spelled;
    return number_check(spelled, end, &real) && !real ? spelled : NULL;
}

bool json_double_get(const json_t *v, double *out)
{
    const char *odd = json_odd_text(v);
    if (!odd && !json_is_number(v))
        return false;
    *out = odd ? strtod(odd, NULL) : json_number_value(v);    // strtod reads Python's words, too
    return true;
}

/* The bytes of the odd number whose opening quote is at s, its closing quote included; *from and *len: its spelling. 0: it is none. */
static size_t odd_printed(const char *s, const char **from, size_t *len)
{
    static const char *const marks[] = { JSON_ODD, "\\uFDD0", "\\ufdd0" };
    for (size_t i = 0; i < ARRAY_SIZE(marks); i++) {
        size_t n = strlen(marks[i]);
        if (strncmp(s + 1, marks[i], n) != 0)
            continue;
        *from = s + 1 + n;
        *len = strcspn(*from, "\"\\");
        bool real, word = (*len == 3 && memcmp(*from, "NaN", 3) == 0) || (*len == 8 && memcmp(*from, "Infinity", 8) == 0)
                          || (*len == 9 && memcmp(*from, "-Infinity", 9) == 0);
        if ((*from)[*len] == '"' && (word || (number_check(*from, *from + *len, &real) && !real)))
            return 1 + n + *len + 1;
    }
    return 0;
}

char *json_text_dump(const json_t *v, size_t flags)
{
    was_short = false;
    char *text = json_dumps(v, flags), *to = text;
    if (was_short) {    // jansson leaves out what it has no memory for, and goes on
        free(text);
        return NULL;
    }
    for (const char *s = text; s && *s;) {
        const char *from;
        size_t len, n;
        if (*s != '"') {
            *to++ = *s++;
            continue;
        }
        if ((n = odd_printed(s, &from, &len)) && s[n] != ':') {    // a name stays a name
            memmove(to, from, len);
            to += len;
            s += n;
            continue;
        }
        do {
            if (*s == '\\')
                *to++ = *s++;
            *to++ = *s++;
        } while (*s != '"');
        *to++ = *s++;
    }
    if (to)
        *to = 0;
    return text;
}

/* ---- files ---- */

enum error_code json_text_code(const json_error_t *why)
{
    return json_error_code(why) == json_error_out_of_memory ? ERR_NO_MEMORY : ERR_DATA;
}

json_t *json_text_parse(const char *text, size_t len, size_t flags, const char *path, struct error *err)
{
    json_error_t why;
    json_t *v = json_text_read(text, len, flags, &why);
    if (!v && json_text_code(&why) == ERR_NO_MEMORY)
        error_set(err, ERR_NO_MEMORY, "no memory to read '%s'", path);
    else if (!v)
        error_set(err, ERR_DATA, "'%s':%d: not valid JSON: %s", path, why.line, why.text);
    return v;
}
