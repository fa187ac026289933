#include "workers/engine/text/regex_spell.h"
#include <string.h>

/* A class as Oniguruma (the engine the files are written for) defines it, in PCRE2's syntax, for use inside brackets. */
static const struct {
    char letter;
    const char *in_class;
} escapes[] = {
    { 's', "\\p{White_Space}" }, { 'd', "\\p{Nd}" }, { 'w', "\\p{L}\\p{M}\\p{Nd}\\p{Pc}" }, { 'S', "\\P{White_Space}" }, { 'D', "\\P{Nd}" },
};

#define WORD_CLASS "\\p{L}\\p{M}\\p{Nd}\\p{Pc}"

static bool class_translate(const char **at, const char *pattern, int depth, struct buf *out, struct error *err);

/* An escape whose backslash is at *at; *at is left at its last character. */
static bool escape_translate(const char **at, bool in_class, const char *pattern, struct buf *out, struct error *err)
{
    const char *p = ++*at;
    size_t i = 0;
    while (i < ARRAY_SIZE(escapes) && escapes[i].letter != *p)
        i++;
    if (i < ARRAY_SIZE(escapes)) {
        buf_fmt(out, in_class ? "%s" : "[%s]", escapes[i].in_class);
    } else if (*p == 'W' && !in_class) {
        buf_str(out, "[^" WORD_CLASS "]");
    } else if ((*p == 'b' || *p == 'B') && !in_class) {    // PCRE2 defines words differently
        bool both = *p == 'B';
        buf_fmt(out, "(?:(?<=[" WORD_CLASS "])(?%c[" WORD_CLASS "])|(?<![" WORD_CLASS "])(?%c[" WORD_CLASS "]))", both ? '=' : '!',
                both ? '!' : '=');
    } else if (*p
               && (strchr("rntfvpPx", *p)
                   || (*p > 0x20 && *p < 0x7F && !strchr("0123456789", *p) && !((*p | 0x20) >= 'a' && (*p | 0x20) <= 'z')))) {
        bool named = (*p == 'p' || *p == 'P' || *p == 'x') && p[1] == '{';
        buf_char(out, '\\');
        buf_char(out, *p);
        while (named && p[1] && *p != '}')
            buf_char(out, *++p);
    } else {
        return error_set(err, ERR_UNSUPPORTED, "the escape '\\%c' in the pattern '%.300s' is not supported", *p ? *p : ' ', pattern);
    }
    *at = p;
    return true;
}

/* One operand of "&&" inside a class: a union of characters and of classes within the class, as an expression that matches one
 * character. Ends before "&&" or ']'. */
static bool union_translate(const char **at, const char *pattern, int depth, struct buf *out, struct error *err)
{
    struct buf plain = { .max = 1 << 16 }, inner = { .max = 1 << 16 };
    const char *p = *at;
    bool ok = true;
    for (bool first = true; ok && *p && (*p != ']' || first) && !(p[0] == '&' && p[1] == '&'); p++, first = false) {
        if (*p == '[' && p[1] != ':') {
            buf_str(&inner, inner.len || plain.len ? "|" : "");
            ok = class_translate(&p, pattern, depth + 1, &inner, err);
        } else if (*p == '[') {    // [:name:]
            const char *end = strstr(p, ":]");
            ok = end != NULL || error_set(err, ERR_DATA, "a class does not end in the pattern '%.300s'", pattern);
            for (; ok && p < end + 1; p++)
                buf_char(&plain, *p);
            if (ok)
                buf_char(&plain, *p);
        } else if (*p == '\\') {
            ok = escape_translate(&p, true, pattern, &plain, err);
        } else {
            if (*p == ']')
                buf_char(&plain, '\\');
            buf_char(&plain, *p);
        }
    }
    if (ok && plain.len == 0 && inner.len == 0)
        ok = error_set(err, ERR_UNSUPPORTED, "an empty class in the pattern '%.300s'", pattern);
    const char *rest = buf_text(&inner);
    rest += plain.len == 0 && rest[0] == '|';
    if (ok && plain.len > 0)
        buf_fmt(out, inner.len ? "(?:[%s]%s%s)" : "[%s]", buf_text(&plain), rest[0] && rest[0] != '|' ? "|" : "", rest);
    else if (ok)
        buf_fmt(out, "(?:%s)", rest);
    ok = ok && (!(plain.failed || inner.failed) || error_set(err, ERR_NO_MEMORY, "no memory for a pattern"));
    buf_release(&plain);
    buf_release(&inner);
    *at = p;
    return ok;
}

/* A class whose '[' is at *at, as an expression that matches one character; *at is left at its ']'. PCRE2 has neither classes
 * within classes nor intersections: a union becomes an alternative, and an intersection turns all but its last part into
 * lookaheads. */
static bool class_translate(const char **at, const char *pattern, int depth, struct buf *out, struct error *err)
{
    const char *p = *at + 1;
    struct buf part = { .max = 1 << 16 }, all = { .max = 1 << 16 };
    bool negated = *p == '^', ok = depth < 8 || error_set(err, ERR_UNSUPPORTED, "classes nested too deep in the pattern '%.300s'", pattern);
    int n = 0;
    for (p += negated; ok; n++) {
        buf_clear(&part);
        ok = union_translate(&p, pattern, depth, &part, err);
        bool more = ok && *p == '&';
        if (ok && !more && *p != ']')
            ok = error_set(err, ERR_DATA, "a class does not end in the pattern '%.300s'", pattern);
        buf_fmt(&all, more ? "(?=%s)" : "%s", buf_text(&part));
        if (!more)
            break;
        p += 2;
    }
    bool plain = n == 0 && all.len > 0 && all.data[0] == '[';
    if (ok && plain)
        buf_fmt(out, negated ? "[^%s" : "[%s", all.data + 1);
    else if (ok && negated)
        buf_fmt(out, "(?:(?!%s)(?s:.))", buf_text(&all));
    else if (ok)
        buf_fmt(out, "(?:%s)", buf_text(&all));
    buf_release(&part);
    buf_release(&all);
    *at = p;
    return ok;
}

bool pattern_translate(const char *pattern, struct buf *out, struct error *err)
{
    for (const char *p = pattern; *p; p++) {
        if (*p == '[') {
            if (!class_translate(&p, pattern, 0, out, err))
                return false;
        } else if (*p == '\\') {
            if (!escape_translate(&p, false, pattern, out, err))
                return false;
        } else if (*p == '}' && p[1] == '+') {
            return error_set(err, ERR_UNSUPPORTED, "'}+' in the pattern '%.300s', which engines read differently", pattern);
        } else {
            buf_char(out, *p);
        }
    }
    return !out->failed || error_set(err, ERR_NO_MEMORY, "no memory for a pattern");
}
