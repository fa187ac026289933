/* Reading a template, after jinja2 3.1's lexer.py and parser.py: where these two are quirky, so are we. Newlines are
 * made one kind and a last one is dropped; a block tag first on its line takes the blanks before it (lstrip_blocks) and
 * a newline behind it (trim_blocks); "-" takes all white space on its side, "+" keeps it. */
#include <stdlib.h>
#include <string.h>
#include <stdarg.h>
#include <stdio.h>
#include "workers/engine/template/template_parts.h"
#include "workers/engine/text/unicode.h"

/* ---- pool and failure ---- */

struct chunk {
    struct chunk *next;
    size_t size, used;
    _Alignas(16) char data[];
};

void *jinja_pool_take(struct fail *f, size_t bytes)
{
    struct pool *p = f->pool;
    bytes = (bytes + 15) & ~(size_t)15;
    if (bytes > p->max - MIN(p->max, p->used))
        jinja_fail_set(f, ERR_FULL, "more than %zu MiB of memory are needed", p->max >> 20);
    if (!p->chunk || p->chunk->size - p->chunk->used < bytes) {
        size_t size = MAX(bytes, (size_t)16 << 10);
        if (p->chunk && size < p->chunk->size * 2 && p->chunk->size < (size_t)1 << 20)
            size = p->chunk->size * 2;
        struct chunk *c = malloc(sizeof *c + size);
        if (!c)
            jinja_fail_set(f, ERR_NO_MEMORY, "no memory");
        *c = (struct chunk){ .next = p->chunk, .size = size };
        p->chunk = c;
    }
    char *at = p->chunk->data + p->chunk->used;
    p->chunk->used += bytes;
    p->used += bytes;
    return memset(at, 0, bytes);
}

void jinja_pool_release(struct pool *p)
{
    while (p->chunk) {
        struct chunk *next = p->chunk->next;
        free(p->chunk);
        p->chunk = next;
    }
}

void jinja_fail_set(struct fail *f, enum error_code code, const char *fmt, ...)
{
    char why[800];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    error_set(f->err, code, "%s:%d: %s", f->name, f->line, why);
    longjmp(f->at, 1);
}

/* ---- tokens ---- */

enum token_kind {
    T_END,
    T_TEXT,
    T_VAR_BEGIN,
    T_VAR_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_OP,
};
struct token {
    enum token_kind kind;
    int line;
    struct str text;       // name, string's value, text, operator
    struct value value;    // numbers
};
struct parse {
    struct fail fail;
    const char *src, *end, *at;
    int line;    // at `at`
    bool in_tag, tag_is_var;
    int brackets;    // open within the tag: closing signs do not end it
    char stack[64];
    struct token now, ahead;
    bool has_ahead;
    int depth;
    int loops;    // for statements around this place
    int macro;    // inside a macro: loops outside do not count
};

static void lines_count(struct parse *p, const char *from, const char *to)
{
    for (; from < to; from++)
        p->line += *from == '\n';
}

static bool is_space_at(const char *at, const char *end, int *n)
{
    return at < end && jinja_char_is_space(utf8_at((const uint8_t *)at, n));
}

static const char *spaces_end(const char *at, const char *end)
{
    int n;
    while (is_space_at(at, end, &n))
        at += n;
    return at;
}

static const char *spaces_begin(const char *from, const char *end)
{
    while (end > from) {
        const char *before = (const char *)utf8_before((const uint8_t *)end);
        int n;
        if (!jinja_char_is_space(utf8_at((const uint8_t *)before, &n)))
            break;
        end = before;
    }
    return end;
}

/* What stays of the text [from, to) before a tag that begins with sign ('-', '+' or 0). */
static const char *text_end(const struct parse *p, const char *from, const char *to, char sign, bool var)
{
    if (sign == '-')
        return spaces_begin(from, to);
    if (sign == '+' || var)
        return to;
    const char *line = to;
    while (line > from && line[-1] != '\n')
        line--;
    bool starts = line > from || from == p->src || from[-1] == '\n';
    return starts && line < to && spaces_end(line, to) == to ? line : to;
}

/* Behind the end of a comment or block tag: which signs it had, and what it takes with it. at stands on [-+]?CLOSE. */
static const char *close_end(const char *at, const char *end, const char *close, bool trim)
{
    char sign = *at == '-' || *at == '+' ? *at++ : 0;
    at += strlen(close);
    if (sign == '-')
        return spaces_end(at, end);
    return trim && sign != '+' && at < end && *at == '\n' ? at + 1 : at;
}

/* {% raw %} at `at` (behind "{%"): the text up to {% endraw %}. False when it is another tag. */
static bool raw_read(struct parse *p, const char *at, struct token *t)
{
    if (at < p->end && (*at == '-' || *at == '+'))
        at++;
    at = spaces_end(at, p->end);
    if (p->end - at < 3 || memcmp(at, "raw", 3) != 0)
        return false;
    at = spaces_end(at + 3, p->end);
    bool minus = at < p->end && *at == '-';
    if (p->end - at < 2 + minus || memcmp(at + minus, "%}", 2) != 0)
        return false;
    at += 2 + minus;
    const char *from = minus ? spaces_end(at, p->end) : at;
    for (const char *e = from; (e = memmem(e, (size_t)(p->end - e), "{%", 2)); e += 2) {
        const char *q = e + 2;
        char sign = q < p->end && (*q == '-' || *q == '+') ? *q++ : 0;
        q = spaces_end(q, p->end);
        if (p->end - q < 6 || memcmp(q, "endraw", 6) != 0)
            continue;
        q = spaces_end(q + 6, p->end);
        bool signed_end = q < p->end && (*q == '-' || *q == '+');
        if (p->end - q < 2 + signed_end || memcmp(q + signed_end, "%}", 2) != 0)
            continue;
        *t = (struct token){ .kind = T_TEXT, .line = p->line, .text = { from, (size_t)(text_end(p, from, e, sign, false) - from) } };
        const char *next = close_end(q, p->end, "%}", true);
        lines_count(p, p->at, next);
        p->at = next;
        return true;
    }
    jinja_fail_set(&p->fail, ERR_DATA, "{%% raw %%} has no {%% endraw %%}");
}

/* The next token outside of tags. */
static struct token root_next(struct parse *p)
{
    for (;;) {
        const char *from = p->at, *tag = from;
        while ((tag = memchr(tag, '{', (size_t)(p->end - tag))) && !(p->end - tag >= 2 && strchr("{%#", tag[1]) && tag[1]))
            tag++;
        if (from >= p->end)
            return (struct token){ .kind = T_END, .line = p->line };
        if (!tag) {
            p->at = p->end;
            return (struct token){ .kind = T_TEXT, .line = p->line, .text = { from, (size_t)(p->end - from) } };
        }
        bool var = tag[1] == '{';
        char sign = tag + 2 < p->end && (tag[2] == '-' || tag[2] == '+') ? tag[2] : 0;
        if (tag > from) {    // what stands before the tag first; then this place again, with nothing before it
            const char *stays = text_end(p, from, tag, sign, var);
            struct token t = { .kind = T_TEXT, .line = p->line, .text = { from, (size_t)(stays - from) } };
            lines_count(p, from, tag);
            p->at = tag;
            if (stays > from)
                return t;
            continue;
        }
        if (tag[1] == '#') {
            const char *close = memmem(tag + 2, (size_t)(p->end - tag - 2), "#}", 2);
            if (!close)
                jinja_fail_set(&p->fail, ERR_DATA, "a comment that does not end");
            if (close > tag + 2 && (close[-1] == '-' || close[-1] == '+'))
                close--;
            const char *next = close_end(close, p->end, "#}", true);
            lines_count(p, p->at, next);
            p->at = next;
            continue;
        }
        struct token t;
        if (!var && raw_read(p, tag + 2, &t))
            return t;
        p->at = tag + 2 + (sign != 0);
        p->in_tag = true;
        p->tag_is_var = var;
        p->brackets = 0;
        return (struct token){ .kind = var ? T_VAR_BEGIN : T_BLOCK_BEGIN, .line = p->line };
    }
}

static bool name_char(const char *at, const char *end, bool first, int *n)
{
    *n = 1;
    if (at >= end)
        return false;
    uint8_t c = (uint8_t)*at;
    if (c >= 0x80)
        return false;    // names in other scripts are refused as an unexpected character
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (!first && c >= '0' && c <= '9');
}

/* Escapes of a string as Python's unicode-escape reads them. */
static struct token string_read(struct parse *p)
{
    char quote = *p->at;
    const char *from = p->at + 1, *at = from;
    while (at < p->end && *at != quote)
        at += *at == '\\' && at + 1 < p->end ? 2 : 1;
    if (at >= p->end)
        jinja_fail_set(&p->fail, ERR_DATA, "a string that does not end");
    char *out = jinja_pool_take(&p->fail, (size_t)(at - from) + 1);
    size_t n = 0;
    for (const char *q = from; q < at;) {
        if (*q != '\\') {
            out[n++] = *q++;
            continue;
        }
        static const char from_c[] = "\\'\"abfnrtv", to_c[] = "\\'\"\a\b\f\n\r\t\v";
        char c = q[1];
        const char *simple = strchr(from_c, c);
        if (c == '\n') {
            q += 2;
        } else if (simple && c) {
            out[n++] = to_c[simple - from_c];
            q += 2;
        } else if (c >= '0' && c <= '7') {
            uint32_t v = 0;
            int d = 0;
            for (q++; d < 3 && q < at && *q >= '0' && *q <= '7'; d++)
                v = v * 8 + (uint32_t)(*q++ - '0');
            n += (size_t)utf8_put((uint8_t *)out + n, v);
        } else if (c == 'x' || c == 'u' || c == 'U') {
            int want = c == 'x' ? 2 : c == 'u' ? 4 : 8, d = 0;
            uint32_t v = 0;
            for (q += 2; d < want && q < at; d++, q++) {
                int h = *q >= '0' && *q <= '9' ? *q - '0' : (*q | 32) >= 'a' && (*q | 32) <= 'f' ? (*q | 32) - 'a' + 10 : -1;
                if (h < 0)
                    break;
                v = v * 16 + (uint32_t)h;
            }
            if (d < want || v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF))
                jinja_fail_set(&p->fail, ERR_DATA, "a wrong \\%c escape in a string", c);
            n += (size_t)utf8_put((uint8_t *)out + n, v);
        } else if (c == 'N') {
            jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "characters by name (\\N) are not supported");
        } else {    // unknown: both characters stay
            out[n++] = '\\';
            q++;
        }
    }
    struct token t = { .kind = T_STRING, .line = p->line, .text = { out, n } };
    lines_count(p, from, at);
    p->at = at + 1;
    return t;
}

static struct token number_read(struct parse *p)
{
    char text[64];
    const char *q = p->at;
    size_t n = 0;
    bool real = false, member = q > p->src && q[-1] == '.';    // in a.0.1 both are whole numbers
    if (*q == '0' && q + 1 < p->end && strchr("xXoObB", q[1]))
        jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "numbers in hexadecimal, octal or binary are not supported");
    while (q < p->end && n < sizeof text - 1) {
        bool digit = *q >= '0' && *q <= '9';
        bool next_digit = q + 1 < p->end && q[1] >= '0' && q[1] <= '9';
        if (digit) {
            text[n++] = *q++;
        } else if (*q == '_' && next_digit) {
            q++;
        } else if (*q == '.' && next_digit && !real && !member) {
            real = true;
            text[n++] = *q++;
        } else if ((*q | 32) == 'e' && (next_digit || (q + 2 < p->end && (q[1] == '-' || q[1] == '+') && q[2] >= '0' && q[2] <= '9'))) {
            real = true;
            text[n++] = *q++;
            if (*q == '-' || *q == '+')
                text[n++] = *q++;
            while (q < p->end && ((*q >= '0' && *q <= '9') || *q == '_') && n < sizeof text - 1) {
                if (*q != '_')
                    text[n++] = *q;
                q++;
            }
            break;
        } else {
            break;
        }
    }
    text[n] = 0;
    if (n > 18 && !real)
        jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "the number %.40s is too large", text);
    if (!real && n > 1 && text[0] == '0' && strspn(text, "0") != n)
        jinja_fail_set(&p->fail, ERR_DATA, "the number %.40s begins with 0", text);
    struct token t = { .kind = real ? T_FLOAT : T_INT, .line = p->line, .text = { p->at, (size_t)(q - p->at) } };
    t.value = real ? jinja_float(strtod(text, NULL)) : jinja_int(strtoll(text, NULL, 10));
    p->at = q;
    return t;
}

/* The next token of a tag. */
static struct token tag_next(struct parse *p)
{
    static const char *const ops[] = { "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                       "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";" };
    const char *space = spaces_end(p->at, p->end);
    lines_count(p, p->at, space);
    p->at = space;
    if (p->at >= p->end)
        jinja_fail_set(&p->fail, ERR_DATA, "a tag that does not end");
    const char *close = p->tag_is_var ? "}}" : "%}";
    bool sign = *p->at == '-' || (*p->at == '+' && !p->tag_is_var);
    if (p->brackets == 0 && p->end - p->at >= 2 + sign && memcmp(p->at + sign, close, 2) == 0) {
        struct token t = { .kind = p->tag_is_var ? T_VAR_END : T_BLOCK_END, .line = p->line, .text = { close, 2 } };
        const char *next = close_end(p->at, p->end, close, !p->tag_is_var);
        lines_count(p, p->at, next);
        p->at = next;
        p->in_tag = false;
        return t;
    }
    int n;
    if (name_char(p->at, p->end, true, &n)) {
        const char *from = p->at;
        while (name_char(p->at, p->end, false, &n))
            p->at++;
        return (struct token){ .kind = T_NAME, .line = p->line, .text = { from, (size_t)(p->at - from) } };
    }
    if (*p->at == '\'' || *p->at == '"')
        return string_read(p);
    if (*p->at >= '0' && *p->at <= '9')
        return number_read(p);
    for (size_t i = 0; i < ARRAY_SIZE(ops); i++) {
        size_t len = strlen(ops[i]);
        if ((size_t)(p->end - p->at) < len || memcmp(p->at, ops[i], len) != 0)
            continue;
        char c = ops[i][0];
        if (c == '(' || c == '[' || c == '{') {
            if (p->brackets >= (int)sizeof p->stack)
                jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "more than %zu open brackets", sizeof p->stack);
            p->stack[p->brackets++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        } else if (c == ')' || c == ']' || c == '}') {
            if (p->brackets == 0 || p->stack[p->brackets - 1] != c)
                jinja_fail_set(&p->fail, ERR_DATA, "unexpected '%c'", c);
            p->brackets--;
        }
        p->at += len;
        return (struct token){ .kind = T_OP, .line = p->line, .text = { ops[i], len } };
    }
    jinja_fail_set(&p->fail, ERR_DATA, "unexpected character '%c' in a tag", (uint8_t)*p->at < 0x80 ? *p->at : '?');
}

static struct token token_read(struct parse *p)
{
    return p->in_tag ? tag_next(p) : root_next(p);
}

static void advance(struct parse *p)
{
    p->now = p->has_ahead ? p->ahead : token_read(p);
    p->has_ahead = false;
    p->fail.line = p->now.line;
}

static const struct token *peek(struct parse *p)
{
    if (!p->has_ahead) {
        p->ahead = token_read(p);
        p->has_ahead = true;
    }
    return &p->ahead;
}

static bool is_op(const struct parse *p, const char *op)
{
    return p->now.kind == T_OP && jinja_str_is(p->now.text, op);
}

static bool is_name(const struct parse *p, const char *name)
{
    return p->now.kind == T_NAME && jinja_str_is(p->now.text, name);
}

static bool skip_op(struct parse *p, const char *op)
{
    if (!is_op(p, op))
        return false;
    advance(p);
    return true;
}

static bool skip_name(struct parse *p, const char *name)
{
    if (!is_name(p, name))
        return false;
    advance(p);
    return true;
}

static void unexpected(struct parse *p, const char *wanted) __attribute__((noreturn));
static void unexpected(struct parse *p, const char *wanted)
{
    if (p->now.kind == T_END)
        jinja_fail_set(&p->fail, ERR_DATA, "the template ends where %s is expected", wanted);
    jinja_fail_set(&p->fail, ERR_DATA, "'%.*s' where %s is expected", (int)MIN(p->now.text.len, (size_t)40),
                   p->now.text.p ? p->now.text.p : "", wanted);
}

static void expect_op(struct parse *p, const char *op)
{
    if (!skip_op(p, op))
        unexpected(p, op);
}

static struct str expect_name(struct parse *p)
{
    if (p->now.kind != T_NAME)
        unexpected(p, "a name");
    struct str s = p->now.text;
    advance(p);
    return s;
}

static void deeper(struct parse *p)
{
    if (++p->depth > TEMPLATE_DEPTH_MAX)
        jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "nested deeper than %d", TEMPLATE_DEPTH_MAX);
}

/* ---- expressions ---- */

static struct expr *expr_cond(struct parse *p);
static struct expr *expr_or(struct parse *p);
static struct expr *expr_unary(struct parse *p, bool with_filter);

static struct expr *expr_new(struct parse *p, enum expr_kind kind)
{
    struct expr *e = jinja_pool_take(&p->fail, sizeof *e);
    e->kind = kind;
    e->line = p->now.line;
    return e;
}

static void arg_push(struct parse *p, struct expr *e, struct expr *arg)
{
    if ((e->n_arg & (e->n_arg - 1)) == 0) {    // at powers of two
        struct expr **more = jinja_pool_take(&p->fail, sizeof *more * (size_t)MAX(2 * e->n_arg, 1));
        if (e->n_arg)
            memcpy(more, e->arg, sizeof *more * (size_t)e->n_arg);
        e->arg = more;
    }
    e->arg[e->n_arg++] = arg;
}

static bool is_tuple_end(const struct parse *p, const char *end_name)
{
    return p->now.kind == T_VAR_END || p->now.kind == T_BLOCK_END || is_op(p, ")") || (end_name && is_name(p, end_name));
}

enum tuple_mode {
    TUPLE_FULL,
    TUPLE_NO_COND,
    TUPLE_TARGET,
};

static struct expr *expr_primary(struct parse *p, bool with_namespace);

static struct expr *expr_tuple(struct parse *p, enum tuple_mode mode, const char *end_name, bool in_brackets)
{
    struct expr *t = expr_new(p, E_TUPLE);
    bool tuple = false;
    for (;;) {
        if (t->n_arg)
            expect_op(p, ",");
        if (is_tuple_end(p, end_name))
            break;
        arg_push(p, t, mode == TUPLE_TARGET ? expr_primary(p, true) : mode == TUPLE_FULL ? expr_cond(p) : expr_or(p));
        if (!is_op(p, ","))
            break;
        tuple = true;
    }
    if (!tuple && t->n_arg == 1)
        return t->arg[0];
    if (!tuple && !in_brackets)
        unexpected(p, "an expression");
    return t;
}

static struct expr *expr_dict(struct parse *p)
{
    struct expr *e = expr_new(p, E_DICT);
    expect_op(p, "{");
    while (!is_op(p, "}")) {
        if (e->n_arg) {
            expect_op(p, ",");
            if (is_op(p, "}"))
                break;
        }
        arg_push(p, e, expr_cond(p));
        expect_op(p, ":");
        arg_push(p, e, expr_cond(p));
    }
    expect_op(p, "}");
    return e;
}

static struct expr *expr_string(struct parse *p)
{
    struct expr *e = expr_new(p, E_CONST);
    e->value = jinja_str(p->now.text.p, p->now.text.len);
    advance(p);
    while (p->now.kind == T_STRING) {    // strings side by side are one
        char *both = jinja_pool_take(&p->fail, e->value.s.len + p->now.text.len + 1);
        memcpy(both, e->value.s.p, e->value.s.len);
        memcpy(both + e->value.s.len, p->now.text.p, p->now.text.len);
        e->value = jinja_str(both, e->value.s.len + p->now.text.len);
        advance(p);
    }
    return e;
}

static struct expr *expr_primary(struct parse *p, bool with_namespace)
{
    static const struct {
        const char *name;
        enum value_kind kind;
        bool b;
    } consts[] = {
        { "true", V_BOOL, true },   { "True", V_BOOL, true },  { "false", V_BOOL, false },
        { "False", V_BOOL, false }, { "none", V_NONE, false }, { "None", V_NONE, false },
    };
    struct expr *e;
    deeper(p);
    if (p->now.kind == T_NAME) {
        e = expr_new(p, E_NAME);
        e->name = expect_name(p);
        for (size_t i = 0; i < ARRAY_SIZE(consts); i++)
            if (jinja_str_is(e->name, consts[i].name)) {
                e->kind = E_CONST;
                e->value = (struct value){ .kind = consts[i].kind, .b = consts[i].b };
            }
        if (e->kind == E_NAME && with_namespace && skip_op(p, ".")) {
            e->kind = E_NSREF;
            e->attr = expect_name(p);
        }
    } else if (p->now.kind == T_STRING) {
        e = expr_string(p);
    } else if (p->now.kind == T_INT || p->now.kind == T_FLOAT) {
        e = expr_new(p, E_CONST);
        e->value = p->now.value;
        advance(p);
    } else if (skip_op(p, "(")) {
        e = expr_tuple(p, TUPLE_FULL, NULL, true);
        expect_op(p, ")");
    } else if (is_op(p, "[")) {
        e = expr_new(p, E_LIST);
        advance(p);
        while (!is_op(p, "]")) {
            if (e->n_arg) {
                expect_op(p, ",");
                if (is_op(p, "]"))
                    break;
            }
            arg_push(p, e, expr_cond(p));
        }
        expect_op(p, "]");
    } else if (is_op(p, "{")) {
        e = expr_dict(p);
    } else {
        unexpected(p, "an expression");
    }
    p->depth--;
    return e;
}

static void call_args(struct parse *p, struct expr *e)
{
    bool comma = false;
    struct str names[64];
    struct expr *values[64];
    expect_op(p, "(");
    while (!is_op(p, ")")) {
        if (comma) {
            expect_op(p, ",");
            if (is_op(p, ")"))
                break;
        }
        comma = true;
        if (is_op(p, "*") || is_op(p, "**"))
            jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "'*' in the arguments of a call is not supported");
        if (p->now.kind == T_NAME && peek(p)->kind == T_OP && jinja_str_is(peek(p)->text, "=")) {
            if (e->n_kw >= (int)ARRAY_SIZE(names))
                jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "more than %zu keyword arguments", ARRAY_SIZE(names));
            names[e->n_kw] = expect_name(p);
            advance(p);
            values[e->n_kw] = expr_cond(p);
            e->n_kw++;
        } else if (e->n_kw) {
            jinja_fail_set(&p->fail, ERR_DATA, "an argument without a name behind one with a name");
        } else {
            arg_push(p, e, expr_cond(p));
        }
    }
    expect_op(p, ")");
    if (e->n_kw) {
        e->kw_name = jinja_pool_take(&p->fail, sizeof names[0] * (size_t)e->n_kw);
        e->kw = jinja_pool_take(&p->fail, sizeof values[0] * (size_t)e->n_kw);
        memcpy(e->kw_name, names, sizeof names[0] * (size_t)e->n_kw);
        memcpy(e->kw, values, sizeof values[0] * (size_t)e->n_kw);
    }
}

static struct expr *expr_subscribed(struct parse *p)
{
    struct expr *from = NULL;
    if (!is_op(p, ":")) {
        from = expr_cond(p);
        if (!is_op(p, ":"))
            return from;
    }
    struct expr *e = expr_new(p, E_SLICE);
    advance(p);
    e->a = from;
    if (!is_op(p, ":") && !is_op(p, "]") && !is_op(p, ","))
        e->b = expr_cond(p);
    if (skip_op(p, ":") && !is_op(p, "]") && !is_op(p, ","))
        e->c = expr_cond(p);
    return e;
}

static struct expr *expr_subscript(struct parse *p, struct expr *subject)
{
    struct expr *e = expr_new(p, E_ATTR);
    e->a = subject;
    if (skip_op(p, ".")) {
        if (p->now.kind == T_NAME) {
            e->name = expect_name(p);
            return e;
        }
        if (p->now.kind != T_INT)
            unexpected(p, "a name or a number");
        e->kind = E_ITEM;
        e->b = expr_new(p, E_CONST);
        e->b->value = p->now.value;
        advance(p);
        return e;
    }
    expect_op(p, "[");
    e->kind = E_ITEM;
    struct expr *t = expr_new(p, E_TUPLE);
    while (!is_op(p, "]")) {
        if (t->n_arg)
            expect_op(p, ",");
        arg_push(p, t, expr_subscribed(p));
    }
    expect_op(p, "]");
    e->b = t->n_arg == 1 ? t->arg[0] : t;
    for (int i = 0; t->n_arg != 1 && i < t->n_arg; i++)
        if (t->arg[i]->kind == E_SLICE)
            jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "a slice among several subscripts is not supported");
    return e;
}

static struct expr *call_new(struct parse *p, struct expr *callee)
{
    struct expr *e = expr_new(p, E_CALL);
    e->a = callee;
    call_args(p, e);
    return e;
}

static struct expr *expr_postfix(struct parse *p, struct expr *e)
{
    for (;;) {
        if (is_op(p, ".") || is_op(p, "["))
            e = expr_subscript(p, e);
        else if (is_op(p, "("))
            e = call_new(p, e);
        else
            return e;
    }
}

static struct expr *expr_filter(struct parse *p, struct expr *subject)
{
    struct expr *e = expr_new(p, E_FILTER);
    e->a = subject;
    e->name = expect_name(p);
    e->function = jinja_filter_find(e->name);
    if (!e->function)
        jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "the filter '%.*s' is not supported", (int)e->name.len, e->name.p);
    if (is_op(p, "("))
        call_args(p, e);
    return e;
}

static struct expr *expr_test(struct parse *p, struct expr *subject)
{
    bool negated = skip_name(p, "not");
    struct expr *e = expr_new(p, E_TEST);
    e->a = subject;
    e->name = expect_name(p);
    e->function = jinja_test_find(e->name);
    if (!e->function)
        jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "the test '%.*s' is not supported", (int)e->name.len, e->name.p);
    bool arg = p->now.kind == T_STRING || p->now.kind == T_INT || p->now.kind == T_FLOAT || is_op(p, "[") || is_op(p, "{")
               || (p->now.kind == T_NAME && !is_name(p, "else") && !is_name(p, "or") && !is_name(p, "and"));
    if (is_op(p, "(")) {
        call_args(p, e);
    } else if (arg) {
        if (is_name(p, "is"))
            jinja_fail_set(&p->fail, ERR_DATA, "tests cannot be chained with 'is'");
        struct expr *a = expr_primary(p, false);
        arg_push(p, e, expr_postfix(p, a));
    }
    if (!negated)
        return e;
    struct expr *n = expr_new(p, E_NOT);
    n->a = e;
    return n;
}

static struct expr *expr_unary(struct parse *p, bool with_filter)
{
    struct expr *e;
    deeper(p);
    if (is_op(p, "-") || is_op(p, "+")) {
        e = expr_new(p, is_op(p, "-") ? E_NEG : E_POS);
        advance(p);
        e->a = expr_unary(p, false);
    } else {
        e = expr_primary(p, false);
    }
    e = expr_postfix(p, e);
    while (with_filter) {
        if (skip_op(p, "|"))
            e = expr_filter(p, e);
        else if (skip_name(p, "is"))
            e = expr_test(p, e);
        else if (is_op(p, "("))
            e = call_new(p, e);
        else
            break;
    }
    p->depth--;
    return e;
}

/* Left-associative operators, by level from the tightest. */
static const struct {
    const char *sign;
    int op;
    int level;
} binaries[] = {
    { "**", OP_POW, 0 }, { "*", OP_MUL, 1 }, { "/", OP_DIV, 1 }, { "//", OP_FLOORDIV, 1 },
    { "%", OP_MOD, 1 },  { "+", OP_ADD, 3 }, { "-", OP_SUB, 3 },
};

static struct expr *expr_binary(struct parse *p, int level)
{
    if (level < 0)
        return expr_unary(p, true);
    if (level == 2) {    // ~ joins any number
        struct expr *first = expr_binary(p, 1);
        if (!is_op(p, "~"))
            return first;
        struct expr *e = expr_new(p, E_CONCAT);
        arg_push(p, e, first);
        while (skip_op(p, "~"))
            arg_push(p, e, expr_binary(p, 1));
        return e;
    }
    struct expr *left = expr_binary(p, level - 1);
    for (int n = 0;; n++) {
        size_t i = 0;
        while (i < ARRAY_SIZE(binaries) && !(binaries[i].level == level && is_op(p, binaries[i].sign)))
            i++;
        if (i == ARRAY_SIZE(binaries))
            return left;
        if (n > 2000)    // the tree leans left, and is walked by recursion
            jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "more than 2000 operators in a row");
        struct expr *e = expr_new(p, E_BINARY);
        advance(p);
        e->op = binaries[i].op;
        e->a = left;
        e->b = expr_binary(p, level - 1);
        left = e;
    }
}

static struct expr *expr_compare(struct parse *p)
{
    static const struct {
        const char *sign;
        int op;
    } signs[] = {
        { "==", OP_EQ }, { "!=", OP_NE }, { "<", OP_LT }, { "<=", OP_LE }, { ">", OP_GT }, { ">=", OP_GE },
    };
    struct expr *left = expr_binary(p, 3), *e = NULL;
    int ops[64];
    for (;;) {
        int op = 0;
        for (size_t i = 0; i < ARRAY_SIZE(signs); i++)
            if (is_op(p, signs[i].sign))
                op = signs[i].op;
        if (!op && is_name(p, "in"))
            op = OP_IN;
        if (!op && is_name(p, "not") && peek(p)->kind == T_NAME && jinja_str_is(peek(p)->text, "in")) {
            op = OP_NOT_IN;
            advance(p);
        }
        if (!op)
            break;
        if (!e)
            e = expr_new(p, E_COMPARE);
        if (e->n_arg >= (int)ARRAY_SIZE(ops))
            jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "more than %zu comparisons in a row", ARRAY_SIZE(ops));
        advance(p);
        ops[e->n_arg] = op;
        arg_push(p, e, expr_binary(p, 3));
    }
    if (!e)
        return left;
    e->a = left;
    e->ops = jinja_pool_take(&p->fail, sizeof ops[0] * (size_t)e->n_arg);
    memcpy(e->ops, ops, sizeof ops[0] * (size_t)e->n_arg);
    return e;
}

static struct expr *expr_not(struct parse *p)
{
    if (!is_name(p, "not"))
        return expr_compare(p);
    deeper(p);
    struct expr *e = expr_new(p, E_NOT);
    advance(p);
    e->a = expr_not(p);
    p->depth--;
    return e;
}

static struct expr *expr_and(struct parse *p)
{
    struct expr *left = expr_not(p);
    for (int n = 0; is_name(p, "and"); n++) {
        if (n > 2000)
            jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "more than 2000 operators in a row");
        struct expr *e = expr_new(p, E_AND);
        advance(p);
        e->a = left;
        e->b = expr_not(p);
        left = e;
    }
    return left;
}

static struct expr *expr_or(struct parse *p)
{
    struct expr *left = expr_and(p);
    for (int n = 0; is_name(p, "or"); n++) {
        if (n > 2000)
            jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "more than 2000 operators in a row");
        struct expr *e = expr_new(p, E_OR);
        advance(p);
        e->a = left;
        e->b = expr_and(p);
        left = e;
    }
    return left;
}

static struct expr *expr_cond(struct parse *p)
{
    deeper(p);
    struct expr *value = expr_or(p);
    while (is_name(p, "if")) {
        struct expr *e = expr_new(p, E_COND);
        advance(p);
        deeper(p);
        e->a = value;
        e->b = expr_or(p);
        e->c = skip_name(p, "else") ? expr_cond(p) : NULL;
        p->depth--;
        value = e;
    }
    p->depth--;
    return value;
}

/* ---- statements ---- */

static struct stmt *stmts_read(struct parse *p, const char *const *ends);

static struct stmt *stmt_new(struct parse *p, enum stmt_kind kind)
{
    struct stmt *s = jinja_pool_take(&p->fail, sizeof *s);
    s->kind = kind;
    s->line = p->now.line;
    return s;
}

static void block_end(struct parse *p)
{
    if (p->now.kind != T_BLOCK_END)
        unexpected(p, "%}");
    advance(p);
}

static void target_check(struct parse *p, const struct expr *e, bool nsref)
{
    bool ok = e->kind == E_NAME || (e->kind == E_NSREF && nsref) || e->kind == E_TUPLE;
    for (int i = 0; ok && e->kind == E_TUPLE && i < e->n_arg; i++)
        target_check(p, e->arg[i], nsref);
    if (!ok)
        jinja_fail_set(&p->fail, ERR_DATA, "cannot assign to this");
}

/* The tag's inside has been read up to its end: read the body up to one of the ends, and stand behind that name. */
static struct stmt *body_read(struct parse *p, const char *const *ends)
{
    if (p->now.kind != T_BLOCK_END)
        unexpected(p, "%}");
    advance(p);
    return stmts_read(p, ends);
}

static struct stmt *if_read(struct parse *p)
{
    static const char *const ends[] = { "elif", "else", "endif", NULL };
    struct stmt *s = stmt_new(p, S_IF), *first = s;
    for (;;) {
        s->expr = expr_tuple(p, TUPLE_NO_COND, NULL, false);
        s->body = body_read(p, ends);
        if (!skip_name(p, "elif"))
            break;
        s = s->other = stmt_new(p, S_IF);
    }
    if (skip_name(p, "else"))
        s->other = body_read(p, ends + 2);
    advance(p);
    return first;
}

static struct stmt *for_read(struct parse *p)
{
    static const char *const ends[] = { "else", "endfor", NULL };
    struct stmt *s = stmt_new(p, S_FOR);
    s->target = expr_tuple(p, TUPLE_TARGET, "in", false);
    target_check(p, s->target, false);
    if (!skip_name(p, "in"))
        unexpected(p, "'in'");
    s->expr = expr_tuple(p, TUPLE_NO_COND, "recursive", false);
    if (skip_name(p, "if"))
        s->filter = expr_cond(p);
    if (is_name(p, "recursive"))
        jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "recursive loops are not supported");
    p->loops++;
    s->body = body_read(p, ends);
    p->loops--;
    if (skip_name(p, "else"))
        s->other = body_read(p, ends + 1);
    advance(p);
    return s;
}

static struct stmt *set_read(struct parse *p)
{
    static const char *const ends[] = { "endset", NULL };
    struct stmt *s = stmt_new(p, S_SET);
    s->target = expr_tuple(p, TUPLE_TARGET, NULL, false);
    target_check(p, s->target, true);
    if (skip_op(p, "=")) {
        s->expr = expr_tuple(p, TUPLE_FULL, NULL, false);
        return s;
    }
    s->kind = S_SET_BLOCK;
    while (skip_op(p, "|"))
        s->expr = expr_filter(p, s->expr);
    s->body = body_read(p, ends);
    advance(p);
    return s;
}

static struct stmt *macro_read(struct parse *p)
{
    static const char *const ends[] = { "endmacro", NULL };
    struct stmt *s = stmt_new(p, S_MACRO);
    struct str names[32];
    struct expr *defaults[32];
    s->text = expect_name(p);
    expect_op(p, "(");
    while (!is_op(p, ")")) {
        if (s->n_param)
            expect_op(p, ",");
        if (s->n_param >= (int)ARRAY_SIZE(names))
            jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "a macro with more than %zu parameters", ARRAY_SIZE(names));
        names[s->n_param] = expect_name(p);
        defaults[s->n_param] = NULL;
        if (skip_op(p, "="))
            defaults[s->n_param] = expr_cond(p);
        else if (s->n_param && defaults[s->n_param - 1])
            jinja_fail_set(&p->fail, ERR_DATA, "a parameter without a default behind one with a default");
        s->n_param++;
    }
    expect_op(p, ")");
    s->param = jinja_pool_take(&p->fail, sizeof names[0] * (size_t)(s->n_param + 1));
    s->param_default = jinja_pool_take(&p->fail, sizeof defaults[0] * (size_t)(s->n_param + 1));
    memcpy(s->param, names, sizeof names[0] * (size_t)s->n_param);
    memcpy(s->param_default, defaults, sizeof defaults[0] * (size_t)s->n_param);
    int loops = p->loops;
    p->loops = 0;
    s->body = body_read(p, ends);
    p->loops = loops;
    advance(p);
    return s;
}

/* {% generation %}: marks what an assistant said; renders as its body, in a scope of its own. */
static struct stmt *generation_read(struct parse *p)
{
    static const char *const ends[] = { "endgeneration", NULL };
    struct stmt *s = stmt_new(p, S_SCOPE);
    int loops = p->loops;
    p->loops = 0;
    s->body = body_read(p, ends);
    p->loops = loops;
    advance(p);
    return s;
}

static struct stmt *jump_read(struct parse *p, enum stmt_kind kind, const char *name)
{
    if (p->loops == 0)
        jinja_fail_set(&p->fail, ERR_DATA, "'%s' outside of a loop", name);
    return stmt_new(p, kind);
}

static struct stmt *break_read(struct parse *p)
{
    return jump_read(p, S_BREAK, "break");
}

static struct stmt *continue_read(struct parse *p)
{
    return jump_read(p, S_CONTINUE, "continue");
}

static const struct {
    const char *name;
    struct stmt *(*read)(struct parse *p);
} statements[] = {
    { "if", if_read },       { "for", for_read },           { "set", set_read }, { "macro", macro_read }, { "generation", generation_read },
    { "break", break_read }, { "continue", continue_read },
};

static struct stmt *tag_read(struct parse *p)
{
    if (p->now.kind != T_NAME)
        unexpected(p, "a statement");
    for (size_t i = 0; i < ARRAY_SIZE(statements); i++)
        if (is_name(p, statements[i].name)) {
            advance(p);
            return statements[i].read(p);
        }
    jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "the statement '%.*s' is not supported here", (int)MIN(p->now.text.len, (size_t)40),
                   p->now.text.p);
}

/* Statements up to {% NAME where NAME is one of ends (then standing on NAME), or with ends NULL up to the end of the
 * template. */
static struct stmt *stmts_read(struct parse *p, const char *const *ends)
{
    struct stmt *first = NULL, **last = &first;
    deeper(p);
    for (;;) {
        struct stmt *s;
        if (p->now.kind == T_END) {
            if (ends)
                jinja_fail_set(&p->fail, ERR_DATA, "the template ends where {%% %s %%} is expected", ends[0]);
            break;
        }
        if (p->now.kind == T_TEXT) {
            s = stmt_new(p, S_TEXT);
            s->text = p->now.text;
            advance(p);
        } else if (p->now.kind == T_VAR_BEGIN) {
            s = stmt_new(p, S_OUTPUT);
            advance(p);
            s->expr = expr_tuple(p, TUPLE_FULL, NULL, false);
            if (p->now.kind != T_VAR_END)
                unexpected(p, "}}");
            advance(p);
        } else {
            advance(p);    // behind {%
            bool ended = false;
            for (int i = 0; ends && ends[i]; i++)
                ended |= is_name(p, ends[i]);
            if (ended)
                break;
            s = tag_read(p);
            block_end(p);
        }
        *last = s;
        last = &s->next;
    }
    p->depth--;
    return first;
}

/* One kind of newline, none at the end. */
static size_t newlines_unify(char *out, const char *source, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (source[i] == '\r') {
            out[n++] = '\n';
            i += i + 1 < len && source[i + 1] == '\n';
        } else {
            out[n++] = source[i];
        }
    }
    return n > 0 && out[n - 1] == '\n' ? n - 1 : n;
}

bool template_parse(struct template *t, const char *source, size_t len, struct error *err)
{
    if (len > TEMPLATE_BYTES_MAX)
        return error_set(err, ERR_DATA, "%s: the template has %zu bytes, more than %zu", t->name, len, TEMPLATE_BYTES_MAX);
    if (utf8_valid_len((const uint8_t *)source, len, NULL, NULL) != len)
        return error_set(err, ERR_DATA, "%s: the template is not UTF-8", t->name);
    t->pool.max = (size_t)256 << 20;
    struct parse p = { .fail = { .err = err, .name = t->name, .line = 1, .pool = &t->pool }, .line = 1 };
    if (setjmp(p.fail.at))
        return false;
    char *src = jinja_pool_take(&p.fail, len + 1);
    p.src = p.at = src;
    p.end = src + newlines_unify(src, source, len);
    advance(&p);
    t->body = stmts_read(&p, NULL);
    return true;
}
