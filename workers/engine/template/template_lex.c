/* template_lex.c - the tokens of a template, after jinja2 3.1's lexer.py: where it is quirky, so is this
 *
 * A block tag first on its line takes the blanks before it (lstrip_blocks) and a newline after it (trim_blocks); "-" takes all
 * white space on its side, "+" keeps it. */
#include <stdlib.h>
#include <string.h>
#include "workers/engine/template/template_lex.h"
#include "workers/engine/text/unicode.h"

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

/* What remains of the text [from, to) before a tag that begins with sign ('-', '+' or 0). */
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

/* Where the text after a comment or block tag begins: its sign may take what follows. at is at [-+]?CLOSE. */
static const char *close_end(const char *at, const char *end, const char *close, bool trim)
{
    char sign = *at == '-' || *at == '+' ? *at++ : 0;
    at += strlen(close);
    if (sign == '-')
        return spaces_end(at, end);
    return trim && sign != '+' && at < end && *at == '\n' ? at + 1 : at;
}

/* {% raw %} at `at` (after "{%"): the text up to {% endraw %}. False when it is another tag. */
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
        if (tag > from) {    // first the text before the tag; then this place again, with nothing before it
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

static struct token lex_read(struct parse *p)
{
    return p->in_tag ? tag_next(p) : root_next(p);
}

void lex_advance(struct parse *p)
{
    p->now = p->has_ahead ? p->ahead : lex_read(p);
    p->has_ahead = false;
    p->fail.line = p->now.line;
}

const struct token *lex_peek(struct parse *p)
{
    if (!p->has_ahead) {
        p->ahead = lex_read(p);
        p->has_ahead = true;
    }
    return &p->ahead;
}

bool lex_is_op(const struct parse *p, const char *op)
{
    return p->now.kind == T_OP && jinja_str_is(p->now.text, op);
}

bool lex_is_name(const struct parse *p, const char *name)
{
    return p->now.kind == T_NAME && jinja_str_is(p->now.text, name);
}

bool lex_skip_op(struct parse *p, const char *op)
{
    if (!lex_is_op(p, op))
        return false;
    lex_advance(p);
    return true;
}

bool lex_skip_name(struct parse *p, const char *name)
{
    if (!lex_is_name(p, name))
        return false;
    lex_advance(p);
    return true;
}

void lex_unexpected(struct parse *p, const char *wanted)
{
    if (p->now.kind == T_END)
        jinja_fail_set(&p->fail, ERR_DATA, "the template ends where %s is expected", wanted);
    jinja_fail_set(&p->fail, ERR_DATA, "'%.*s' where %s is expected", (int)MIN(p->now.text.len, (size_t)40),
                   p->now.text.p ? p->now.text.p : "", wanted);
}

void lex_expect_op(struct parse *p, const char *op)
{
    if (!lex_skip_op(p, op))
        lex_unexpected(p, op);
}

struct str lex_expect_name(struct parse *p)
{
    if (p->now.kind != T_NAME)
        lex_unexpected(p, "a name");
    struct str s = p->now.text;
    lex_advance(p);
    return s;
}

void lex_deeper(struct parse *p)
{
    if (++p->depth > TEMPLATE_DEPTH_MAX)
        jinja_fail_set(&p->fail, ERR_UNSUPPORTED, "nested deeper than %d", TEMPLATE_DEPTH_MAX);
}
