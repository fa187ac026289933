/* template_format.c - Python's two ways to format a string: "{}".format(...) and "%s" % ...
 *
 * Python 3's string.Formatter with the format specification mini-language, and printf-style formatting. Forms that no template has
 * been seen with (#, n, a precision without a type) are refused rather than guessed. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/template/template_args.h"
#include "workers/engine/text/unicode.h"

#define WIDTH_MAX 100000

/* A format specification: [[fill]align][sign][0][width][,][.precision][type] */
struct spec {
    struct str fill;    // one character; empty: a space
    char align;         // '<', '>', '^', '='; 0: as the type has it
    char sign;          // '-', '+' or ' '
    char group;         // ',' or '_' between thousands; 0: none
    char type;          // 0: none
    int64_t width;
    int64_t precision;    // -1: none
};

static void format_fail(struct render *r, const char *what) __attribute__((noreturn));
static void format_fail(struct render *r, const char *what)
{
    jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "formatting with %s is not supported", what);
}

static bool digit_at(struct str s, size_t i)
{
    return i < s.len && s.p[i] >= '0' && s.p[i] <= '9';
}

static int64_t number_read(struct render *r, struct str s, size_t *at)
{
    int64_t n = 0;
    while (digit_at(s, *at)) {
        n = n * 10 + (s.p[(*at)++] - '0');
        if (n > WIDTH_MAX)
            format_fail(r, "a width or precision above 100000");
    }
    return n;
}

static struct spec spec_read(struct render *r, struct str s)
{
    struct spec f = { .sign = '-', .precision = -1 };
    size_t at = 0;
    int size = 0;
    if (s.len > 0)
        utf8_at((const uint8_t *)s.p, &size);
    if ((size_t)size < s.len && strchr("<>^=", s.p[size])) {
        f.fill = (struct str){ s.p, (size_t)size };
        at = (size_t)size;
    }
    if (at < s.len && strchr("<>^=", s.p[at]))
        f.align = s.p[at++];
    if (at < s.len && strchr("+- ", s.p[at]))
        f.sign = s.p[at++];
    if (at < s.len && s.p[at] == '0' && !f.align) {
        f.align = '=';
        f.fill = (struct str){ "0", 1 };
    }
    f.width = number_read(r, s, &at);
    if (at < s.len && strchr(",_", s.p[at]))
        f.group = s.p[at++];
    if (at < s.len && s.p[at] == '.') {
        at++;
        if (!digit_at(s, at))
            jinja_fail_set(&r->fail, ERR_DATA, "a format specification without a precision after its point");
        f.precision = number_read(r, s, &at);
    }
    if (at < s.len)
        f.type = s.p[at++];
    if (at < s.len)
        format_fail(r, "such a specification");
    return f;
}

/* Append text in its width: sign_len bytes at its beginning stay before a fill with '='. */
static void pad(struct render *r, struct buf *b, const struct spec *f, char fallback, struct str text, size_t sign_len)
{
    int64_t missing = f->width - jinja_str_chars(text);
    char align = f->align ? f->align : fallback;
    struct str fill = f->fill.len ? f->fill : (struct str){ " ", 1 };
    missing = missing > 0 ? missing : 0;
    int64_t before = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
    render_step(r, missing / 16);
    if (align == '=')
        buf_add(b, text.p, sign_len);
    for (int64_t i = 0; i < before; i++)
        buf_add(b, fill.p, fill.len);
    buf_add(b, text.p + (align == '=' ? sign_len : 0), text.len - (align == '=' ? sign_len : 0));
    for (int64_t i = before; i < missing; i++)
        buf_add(b, fill.p, fill.len);
}

/* Append the digits of a number with its sign, thousands grouped, in its width. */
static void number_pad(struct render *r, struct buf *b, const struct spec *f, bool negative, const char *digits)
{
    struct buf *t = jinja_temp_new(r);
    size_t whole = strspn(digits, "0123456789abcdefABCDEF");
    if (f->group && f->fill.len == 1 && f->fill.p[0] == '0' && f->align == '=')
        format_fail(r, "zeros before grouped thousands");
    if (negative || f->sign != '-')
        buf_char(t, negative ? '-' : f->sign);
    size_t sign_len = t->len;
    for (size_t i = 0; digits[i]; i++) {
        if (f->group && i > 0 && i < whole && (whole - i) % 3 == 0)
            buf_char(t, f->group);
        buf_char(t, digits[i]);
    }
    pad(r, b, f, '>', (struct str){ buf_text(t), t->len }, sign_len);
}

static void int_format(struct render *r, struct buf *b, const struct spec *f, int64_t n)
{
    char digits[72];
    uint64_t size = n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
    if (f->precision >= 0)
        jinja_fail_set(&r->fail, ERR_DATA, "a precision for a whole number");
    if (f->group && f->type && f->type != 'd')
        format_fail(r, "grouped digits that are not decimal");
    switch (f->type) {
    case 0:
    case 'd': snprintf(digits, sizeof digits, "%" PRIu64, size); break;
    case 'x': snprintf(digits, sizeof digits, "%" PRIx64, size); break;
    case 'X': snprintf(digits, sizeof digits, "%" PRIX64, size); break;
    case 'o': snprintf(digits, sizeof digits, "%" PRIo64, size); break;
    case 'b': {
        int bits = 1;
        while (bits < 64 && size >> bits)
            bits++;
        for (int i = 0; i < bits; i++)
            digits[i] = (char)('0' + (size >> (bits - 1 - i) & 1));
        digits[bits] = 0;
        break;
    }
    default: format_fail(r, "such a type of a whole number");
    }
    number_pad(r, b, f, n < 0, digits);
}

static void float_format(struct render *r, struct buf *b, const struct spec *f, double x)
{
    char digits[512];
    bool percent = f->type == '%', negative = signbit(x) && !isnan(x);
    double size = fabs(percent ? x * 100 : x);
    if (!isfinite(x) || size > 1e300 || f->precision > 100)
        format_fail(r, "such a number");
    if (!f->type) {
        if (f->precision >= 0)
            format_fail(r, "a precision without a type");
        struct str text = jinja_text(r, jinja_float(size));
        snprintf(digits, sizeof digits, "%.*s", (int)text.len, text.p);
    } else {
        char how[8] = { '%', '.', '*', percent ? 'f' : f->type, percent ? '%' : 0, percent ? '%' : 0 };
        if (!strchr("fFeEgG%", f->type))
            format_fail(r, "such a type of a number");
            // the format has one of the seven types just checked, and takes an int and a double
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(digits, sizeof digits, how, f->precision < 0 ? 6 : (int)f->precision, size);
#pragma GCC diagnostic pop
    }
    number_pad(r, b, f, negative, digits);
}

static void str_format(struct render *r, struct buf *b, const struct spec *f, struct str s)
{
    size_t len = s.len;
    int size;
    if ((f->type && f->type != 's') || f->align == '=' || f->sign != '-' || f->group)
        jinja_fail_set(&r->fail, ERR_DATA, "a format specification that strings do not have");
    if (f->precision >= 0) {
        len = 0;
        for (int64_t i = 0; i < f->precision && len < s.len; i++, len += (size_t)size)
            utf8_at((const uint8_t *)s.p + len, &size);
    }
    pad(r, b, f, '<', (struct str){ s.p, len }, 0);
}

/* format(v, spec) */
static void value_format(struct render *r, struct buf *b, struct value v, struct str text)
{
    if (text.len == 0) {
        jinja_print(r, b, v);
        return;
    }
    struct spec f = spec_read(r, text);
    bool as_float = f.type && strchr("eEfFgG%", f.type);
    if (v.kind == V_STR) {
        if (f.fill.len == 1 && f.fill.p[0] == '0' && f.align == '=' && !strchr(text.p, '='))
            format_fail(r, "a string filled up with zeros");
        str_format(r, b, &f, v.s);
    } else if (v.kind == V_FLOAT || (as_float && jinja_is_number(v))) {
        float_format(r, b, &f, jinja_number(v));
    } else if (v.kind == V_INT || v.kind == V_BOOL) {
        int_format(r, b, &f, jinja_whole(v));
    } else {
        jinja_fail_set(&r->fail, ERR_DATA, "a format specification for a %s", jinja_type(&v));
    }
}

/* ---- "{}".format ---- */
struct fields {
    const struct args *a;
    int64_t next;     // of the fields without a number
    bool numbered;    // one had a number
};

/* The argument that a field begins with. alone: nothing follows its name; Python asks only then whether fields are all numbered. */
static struct value *field_argument(struct render *r, struct fields *f, struct str name, bool alone)
{
    bool digits = name.len > 0, next = name.len == 0 && alone;
    size_t at = 0;
    for (size_t i = 0; i < name.len; i++)
        digits &= digit_at(name, i);
    for (int i = 0; i < f->a->n_kw && !digits && !next; i++)
        if (jinja_str_equal(f->a->kw[i].name, name))
            return &f->a->kw[i].value;
    if (!digits && !next)
        jinja_fail_set(&r->fail, ERR_DATA, "format: there is no argument '%.*s'", (int)MIN(name.len, (size_t)80), name.p);
    if (alone && (digits ? f->next > 0 : f->numbered))
        jinja_fail_set(&r->fail, ERR_DATA, "format: fields with and without numbers");
    f->numbered |= digits && alone;
    int64_t n = digits ? number_read(r, name, &at) : f->next++;
    if (n >= f->a->n)
        jinja_fail_set(&r->fail, ERR_DATA, "format: there is no argument %" PRId64, n);
    return &f->a->v[n];
}

/* The value of a field: an argument, then .name and [key] in turn. */
static struct value field_value(struct render *r, struct fields *f, struct str path)
{
    size_t at = 0;
    while (at < path.len && path.p[at] != '.' && path.p[at] != '[')
        at++;
    struct value v = *field_argument(r, f, (struct str){ path.p, at }, at == path.len);
    while (at < path.len) {
        bool item = path.p[at++] == '[';
        size_t from = at;
        while (at < path.len && (item ? path.p[at] != ']' : path.p[at] != '.' && path.p[at] != '['))
            at++;
        struct str name = { path.p + from, at - from };
        if (name.len == 0 || (item && at >= path.len))
            jinja_fail_set(&r->fail, ERR_DATA, "format: an empty name in a field");
        size_t end = 0;
        int64_t n = item && digit_at(name, 0) ? number_read(r, name, &end) : 0;
        v = !item ? jinja_attr(r, v, name) : jinja_item(r, v, end == name.len ? jinja_int(n) : str_value(name));
        at += item;
        if (item && at < path.len && path.p[at] != '.' && path.p[at] != '[')
            jinja_fail_set(&r->fail, ERR_DATA, "format: something after a bracket in a field");
    }
    return v;
}

static void fields_format(struct render *r, struct buf *b, struct str s, struct fields *f, int depth);

/* One field, the text between its braces. */
static void field_format(struct render *r, struct buf *b, struct str s, struct fields *f, int depth)
{
    size_t end = 0;
    bool bracket = false;
    while (end < s.len && (bracket || (s.p[end] != '!' && s.p[end] != ':'))) {
        bracket = s.p[end] == '[' || (bracket && s.p[end] != ']');
        end++;
    }
    struct value v = field_value(r, f, (struct str){ s.p, end });
    if (end < s.len && s.p[end] == '!') {
        char how = end + 1 < s.len ? s.p[end + 1] : 0;
        if ((how != 's' && how != 'r') || (end + 2 < s.len && s.p[end + 2] != ':'))
            format_fail(r, "such a conversion");
        struct buf *t = jinja_temp_new(r);
        if (how == 's')
            jinja_print(r, t, v);
        else
            jinja_repr(r, t, v, 0);
        v = jinja_from_buf(r, t);
        end += 2;
    }
    struct buf *spec = jinja_temp_new(r);    // which may have fields of its own
    if (end < s.len)
        fields_format(r, spec, (struct str){ s.p + end + 1, s.len - end - 1 }, f, depth + 1);
    value_format(r, b, v, (struct str){ buf_text(spec), spec->len });
}

static void fields_format(struct render *r, struct buf *b, struct str s, struct fields *f, int depth)
{
    if (depth > 1)
        jinja_fail_set(&r->fail, ERR_DATA, "format: fields nested too deep");
    for (size_t i = 0; i < s.len;) {
        char c = s.p[i];
        if (c != '{' && c != '}') {
            buf_char(b, c);
            i++;
            continue;
        }
        if (i + 1 < s.len && s.p[i + 1] == c) {
            buf_char(b, c);
            i += 2;
            continue;
        }
        size_t from = ++i;
        int open = 1;
        while (c == '{' && i < s.len && open > 0)
            open += s.p[i] == '{' ? 1 : s.p[i] == '}' ? -1 : 0, i++;
        if (c == '}' || open > 0)
            jinja_fail_set(&r->fail, ERR_DATA, "format: a single '%c'", c);
        field_format(r, b, (struct str){ s.p + from, i - 1 - from }, f, depth);
        render_step(r, 1);
        if (b->len > RENDER_OUTPUT_MAX)
            jinja_fail_set(&r->fail, ERR_FULL, "more than %zu MiB of text", RENDER_OUTPUT_MAX >> 20);
    }
}

struct value jinja_format(struct render *r, struct value subject, const struct args *a)
{
    struct fields f = { .a = a };
    struct buf *b = jinja_temp_new(r);
    if (subject.markup)
        format_fail(r, "text marked as safe");
    fields_format(r, b, subject.s, &f, 0);
    return jinja_from_buf(r, b);
}

/* ---- "%s" % ---- */
struct percents {
    struct value args;    // what stands after the sign
    int64_t next, n;      // of a tuple; n 1: a single value
};

static struct value percent_next(struct render *r, struct percents *p)
{
    if (p->next >= p->n)
        jinja_fail_set(&r->fail, ERR_DATA, "not enough arguments for a format string");
    return p->args.kind == V_TUPLE ? p->args.list->v[p->next++] : (p->next++, p->args);
}

static void percent_one(struct render *r, struct buf *b, struct spec *f, struct value v)
{
    if (f->type == 's' || f->type == 'r') {
        struct buf *t = jinja_temp_new(r);
        if (f->type == 's')
            jinja_print(r, t, v);
        else
            jinja_repr(r, t, v, 0);
        f->type = 's';
        f->align = f->align == '<' ? '<' : '>';
        f->fill = (struct str){ NULL, 0 };
        f->sign = '-';
        str_format(r, b, f, (struct str){ buf_text(t), t->len });
        return;
    }
    if (!jinja_is_number(v))
        jinja_fail_set(&r->fail, ERR_DATA, "%%%c of a %s", f->type, jinja_type(&v));
    if (strchr("eEfFgG", f->type)) {
        float_format(r, b, f, jinja_number(v));
        return;
    }
    if (v.kind == V_FLOAT && isfinite(v.f) && fabs(v.f) >= 9e18)
        format_fail(r, "a whole number beyond 64 bits");
    if (v.kind == V_FLOAT && (!strchr("diu", f->type) || !isfinite(v.f)))
        jinja_fail_set(&r->fail, ERR_DATA, "%%%c of a float", f->type);
    f->type = strchr("iu", f->type) ? 'd' : f->type;
    if (f->precision >= 0)
        format_fail(r, "a precision of a whole number");
    int_format(r, b, f, v.kind == V_FLOAT ? (int64_t)v.f : jinja_whole(v));
}

struct value jinja_percent(struct render *r, struct value subject, struct value args)
{
    struct percents p = { .args = args, .n = args.kind == V_TUPLE ? args.list->n : 1 };
    struct str s = subject.s;
    struct buf *b = jinja_temp_new(r);
    // these have __getitem__, and need not be used up
    bool mapping = args.kind == V_DICT || args.kind == V_LIST || args.kind == V_RANGE || args.kind == V_UNDEFINED;
    if (subject.markup)
        format_fail(r, "text marked as safe");
    for (size_t i = 0; i < s.len;) {
        if (s.p[i] != '%') {
            buf_char(b, s.p[i++]);
            continue;
        }
        struct spec f = { .sign = '-', .precision = -1 };
        struct value v = jinja_of(V_MISSING);
        if (++i < s.len && s.p[i] == '(') {
            const char *end = memchr(s.p + i, ')', s.len - i);
            if (args.kind != V_DICT || !end)
                jinja_fail_set(&r->fail, ERR_DATA, "a named field in a format string without a dict");
            struct str key = { s.p + i + 1, (size_t)(end - s.p) - i - 1 };
            struct value *found = jinja_dict_get_str(args.dict, key);
            if (!found)
                jinja_fail_set(&r->fail, ERR_DATA, "a format string names '%.*s', which is not there", (int)MIN(key.len, (size_t)80),
                               key.p);
            v = *found;
            p.next = p.n;    // a field without a name finds nothing after one with
            i = (size_t)(end - s.p) + 1;
        }
        for (; i < s.len && s.p[i] && strchr("-+ 0#", s.p[i]); i++) {
            if (s.p[i] == '#')
                format_fail(r, "'#'");
            if (s.p[i] == '-')
                f.align = '<';
            else if (s.p[i] == '0' && f.align != '<')
                f.align = '=', f.fill = (struct str){ "0", 1 };
            else if (s.p[i] == '+' || (s.p[i] == ' ' && f.sign != '+'))
                f.sign = s.p[i];
        }
        if (f.align == '<')
            f.fill = (struct str){ NULL, 0 };
        f.width = number_read(r, s, &i);
        if (i < s.len && s.p[i] == '.') {
            i++;
            f.precision = number_read(r, s, &i);
        }
        f.type = i < s.len ? s.p[i++] : 0;
        if (f.type == '%') {
            buf_char(b, '%');
            continue;
        }
        if (!f.type || !strchr("srdiuxXoeEfFgG", f.type))
            format_fail(r, "such a field after '%'");
        percent_one(r, b, &f, v.kind == V_MISSING ? percent_next(r, &p) : v);
        render_step(r, 1);
        if (b->len > RENDER_OUTPUT_MAX)
            jinja_fail_set(&r->fail, ERR_FULL, "more than %zu MiB of text", RENDER_OUTPUT_MAX >> 20);
    }
    if (p.next < p.n && !mapping)
        jinja_fail_set(&r->fail, ERR_DATA, "more arguments than a format string takes");
    return jinja_from_buf(r, b);
}
