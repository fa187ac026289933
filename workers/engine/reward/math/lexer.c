#include "workers/engine/reward/math/lexer.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>

static bool three_digits(const char *p, const char *end)
{
    return end - p >= 3 && is_digit(p[0]) && is_digit(p[1]) && is_digit(p[2]) && !(end - p > 3 && is_digit(p[3]));
}

/* A separator of thousands at q followed by three digits: where they are; NULL otherwise. */
static const char *thousands_at(const struct parser *p, const char *q)
{
    static const char *const sure[] = { "{,}", ",\\!", "{,\\!}", "{, }", "\\,", "\\!", "{\\,}" };
    const char *r = space_skip(q, p->end);
    for (size_t i = 0; i < ARRAY_SIZE(sure); i++)
        if (starts(r, p->end, sure[i])) {
            r = space_skip(r + strlen(sure[i]), p->end);
            return three_digits(r, p->end) ? r : NULL;
        }
    if (p->depth > 0 || p->comma_seen || p->in_matrix || q >= p->end)
        return NULL;
    if (*q == ',' || *q == ' ' || *q == '~')
        return three_digits(q + 1, p->end) && (*q != ' ' || p->plain) ? q + 1 : NULL;
    return NULL;
}

/* A digit under \dot at q: \dot{3}, \dot 3. What follows it; NULL: there is none. */
static const char *dotted_digit(const char *q, const char *end, char *digit)
{
    if (!starts(q, end, "\\dot"))
        return NULL;
    q = space_skip(q + 4, end);
    bool brace = q < end && *q == '{';
    q += brace;
    if (q == end || !is_digit(*q) || (brace && (q + 1 == end || q[1] != '}')))
        return NULL;
    *digit = *q;
    return q + 1 + brace;
}

/* Repeating digits with a dot above the first and the last: 0.\dot{1}4285\dot{7}. Copies them; what follows, or NULL. */
static const char *dotted_digits(const char *q, const char *end, char *digits, size_t *n)
{
    *n = 0;
    if (!(q = dotted_digit(q, end, &digits[0])))
        return NULL;
    *n = 1;
    const char *more = q, *last;
    size_t k = 1;
    while (more < end && is_digit(*more) && k < 17)
        digits[k++] = *more++;
    if ((last = dotted_digit(more, end, &digits[k]))) {
        *n = k + 1;
        return last;
    }
    return more == q ? q : NULL;    // a digit after the only dotted one
}

/* Digits in parentheses at q, which repeat when they stand right after the point: 0.(3). */
static bool bracketed(const char *q, const char *end)
{
    const char *d = q + (q < end && *q == '(');
    while (d < end && is_digit(*d))
        d++;
    return d > q + 1 && *q == '(' && d < end && *d == ')';
}

/* A number while it is read: its digits, without separators and point, and where reading goes on. */
struct digits {
    const char *s;
    size_t len;
    const char *end;
};

/* Digits in groups of three, the first of which ends at d->end and the second of which begins at group: go on while groups follow, all after
 * the same kind of separator. */
static void groups_lex(struct parser *p, const char *group, struct digits *d)
{
    char *copy = math_take(p->m, (size_t)(p->end - d->s) + 1);
    if (!copy)
        return;
    memcpy(copy, d->s, d->len);
    const char *r = group, *behind = d->end;
    size_t n = d->len;
    bool comma = d->end[0] == ',' && d->end[1] != '\\';
    while (r) {
        memcpy(copy + n, r, 3);
        n += 3;
        behind = r + 3;
        bool more_comma = behind < p->end && *behind == ',' && !(behind + 1 < p->end && behind[1] == '\\');
        r = thousands_at(p, behind);
        if (r && more_comma != comma)
            r = NULL;
    }
    const char *next = space_skip(behind, p->end);
    if (!(comma && next < p->end && *next == ','))    // "1,234, 5" is a list
        *d = (struct digits){ copy, n, behind };
}

/* The digits that repeat, at the end of a fraction whose other digits are f to fe: under a bar, or after none in brackets. Returns where they
 * begin, and *end; NULL: none do. */
static const char *repeat_find(const struct parser *p, const char *f, const char *fe, const char **end)
{
    const char *rep = NULL, *rep_end = NULL;
    for (int i = 0; i < 2; i++) {
        const char *mark = i ? "\\bar{" : "\\overline{";
        if (starts(fe, p->end, mark)) {
            rep = rep_end = fe + strlen(mark);
            while (rep_end < p->end && is_digit(*rep_end))
                rep_end++;
            if (rep_end == rep || rep_end == p->end || *rep_end != '}')
                rep = NULL;
        }
    }
    if (!rep && fe == f && bracketed(f, p->end)) {
        rep = rep_end = f + 1;
        while (*rep_end != ')')
            rep_end++;
    }
    *end = rep_end;
    return rep;
}

/* What follows the point, or the comma in its place, at d->end. False: it is not a number, since dots do not enclose what repeats. */
static bool fraction_lex(struct parser *p, bool point, struct digits *d)
{
    struct math_token *t = &p->t;
    const char *f = d->end + 1, *fe = f, *rep_end = NULL;
    while (fe < p->end && is_digit(*fe))
        fe++;
    const char *rep = point ? repeat_find(p, f, fe, &rep_end) : NULL;
    char dotted[18];
    size_t nf = (size_t)(fe - f), nr = rep ? (size_t)(rep_end - rep) : 0, n_dotted;
    const char *after = rep ? rep_end + 1 : fe, *dots = point && !rep ? dotted_digits(fe, p->end, dotted, &n_dotted) : NULL;
    if (!dots && !rep && starts(fe, p->end, "\\dot")) {
        t->kind = T_BAD;
        t->end = fe;
        return false;
    }
    if (dots) {
        rep = dotted;
        nr = n_dotted;
        after = dots;
    }
    char *copy = math_take(p->m, d->len + nf + nr + 1);
    if (!copy)
        return true;
    memcpy(copy, d->s, d->len);
    memcpy(copy + d->len, f, nf);
    if (rep)
        memcpy(copy + d->len + nf, rep, nr);
    *d = (struct digits){ copy, d->len + nf + nr, after };
    t->scale = (int32_t)(nf + nr);
    t->repeat = (int32_t)nr;
    t->decimal = true;
    return true;
}

/* The exponent of 1.5e-3, at d->end. */
static void exponent_lex(struct parser *p, struct digits *d)
{
    const char *x = d->end + 1;
    bool minus = x < p->end && *x == '-';
    x += x < p->end && (*x == '-' || *x == '+');
    const char *xs = x;
    int32_t e = 0;
    while (x < p->end && is_digit(*x) && x - xs < 4)
        e = e * 10 + (*x++ - '0');
    if (x > xs && !(x < p->end && (is_letter(*x) || is_digit(*x) || *x == '.' || *x == '^'))) {
        p->t.scale -= minus ? -e : e;
        p->t.decimal = true;
        d->end = x;
    }
}

static void number_lex(struct parser *p, const char *s)
{
    struct math_token *t = &p->t;
    const char *q = s;
    while (q < p->end && is_digit(*q))
        q++;
    struct digits d = { s, (size_t)(q - s), q };
    const char *group = d.len >= 1 && d.len <= 3 && *s != '0' ? thousands_at(p, q) : NULL;
    if (group)
        groups_lex(p, group, &d);
    t->scale = 0;
    t->repeat = 0;
    t->decimal = false;
    q = d.end;
    bool point = q < p->end && *q == '.' && q + 1 < p->end
                 && (is_digit(q[1]) || starts(q + 1, p->end, "\\overline{") || starts(q + 1, p->end, "\\bar{")
                     || starts(q + 1, p->end, "\\dot") || bracketed(q + 1, p->end));
    bool comma = p->plain && !group && q + 1 < p->end && *q == ',' && is_digit(q[1]) && d.len > 0;
    if ((point || comma) && !fraction_lex(p, point, &d))
        return;
    if (d.end < p->end && (*d.end == 'e' || *d.end == 'E') && t->repeat == 0)
        exponent_lex(p, &d);
    t->kind = T_NUM;
    t->s = d.s;
    t->len = (int32_t)d.len;
    t->end = d.end;
}

bool group_find(const char *p, const char *end, const char **from, const char **to)
{
    int64_t depth = 0;
    for (const char *q = p; q < end; q++) {
        if (*q == '\\' && q + 1 < end)
            q++;
        else if (*q == '{')
            depth++;
        else if (*q == '}' && --depth == 0) {
            *from = p + 1;
            *to = q;
            return true;
        }
    }
    return false;
}

static bool is_percent_word(const char *s, size_t len)
{
    return word_is(s, len, "percent") || word_is(s, len, "percentage") || word_is(s, len, "pct") || word_is(s, len, "\\%")
           || word_is(s, len, "%");
}

/* What a word between answers says of them: 'a' that all hold, 'o' that one does, 0: nothing. */
static char join_of(const char *s, size_t len)
{
    if (word_is(s, len, "and") || word_is(s, len, "land") || word_is(s, len, "wedge"))
        return 'a';
    return word_is(s, len, "or") || word_is(s, len, "lor") || word_is(s, len, "vee") ? 'o' : 0;
}

/* What lies before q says nothing: the token after it is as if it came after a blank. */
static void token_beyond(struct parser *p, const char *q)
{
    p->p = q;
    token_next(p);
    p->t.space = true;
}

static void text_token(struct parser *p, const char *from, const char *to, const char *behind)
{
    struct math_token *t = &p->t;
    while (from < to && (*from == ' ' || *from == '~' || *from == '\n' || *from == '\t'))
        from++;
    while (to > from && (to[-1] == ' ' || to[-1] == '\n' || to[-1] == '\t' || to[-1] == '~'))
        to--;
    const char *f = from, *e = to;
    while (f < e && (*f == ',' || *f == ' '))
        f++;
    while (e > f && (e[-1] == ',' || e[-1] == ' '))
        e--;
    size_t n = (size_t)(e - f);
    t->end = behind;
    t->s = from;
    t->len = (int32_t)(to - from);
    if (t->len == 0) {
        token_beyond(p, behind);
    } else if (n == 0 || word_is(f, n, "and") || word_is(f, n, "or") || word_is(f, n, ";") || word_is(f, n, "where") || word_is(f, n, "for")
               || word_is(f, n, "with")) {
        t->kind = T_CHAR;
        t->c = ',';
        t->join = join_of(f, n);
    } else if (is_percent_word(f, n)) {
        t->kind = T_CHAR;
        t->c = '%';
    } else if (word_is(f, n, "degrees") || word_is(f, n, "degree")) {
        t->kind = T_CMD;
        t->cmd = math_command_find(p->m, "circ", 4);
    } else {
        t->kind = T_TEXT;
    }
}

static void char_token(struct parser *p, char c, const char *behind)
{
    p->t.kind = T_CHAR;
    p->t.c = c;
    p->t.end = behind;
}

static void rel_token(struct parser *p, enum math_rel rel, const char *behind)
{
    p->t.kind = T_REL;
    p->t.c = (char)rel;
    p->t.end = behind;
}

/* Is there a number or a closed brace before s? */
static bool after_number(const struct parser *p, const char *s)
{
    while (s > p->start && (s[-1] == ' ' || s[-1] == '~' || (s[-1] == ',' && s - 1 > p->start && s[-2] == '\\')))
        s -= s[-1] == ',' ? 2 : 1;
    return s > p->start && (is_digit(s[-1]) || s[-1] == '}');
}

/* A new line: a new row, the next answer, or nothing where a chain of equations continues. */
static void line_token(struct parser *p, const char *behind)
{
    const char *q = space_skip(behind, p->end);
    if (!p->in_matrix && (starts(q, p->end, "=") || starts(q, p->end, "\\approx"))) {
        p->p = q;
        token_next(p);
        return;
    }
    char_token(p, p->in_matrix ? 'n' : ',', behind);
    p->t.line = !p->in_matrix;
}

/* After n groups at q and the square brackets among them: \framebox[3cm][c], \color[rgb]{1,0,0}. Where a group is missing, before it. */
static const char *arguments_skip(const char *q, const char *end, int n)
{
    const char *from, *to;
    for (const char *next = space_skip(q, end); next < end; next = space_skip(q, end)) {
        const char *close = *next == '[' ? memchr(next, ']', (size_t)(end - next)) : NULL,
                   *after = close ? space_skip(close + 1, end) : end;
        if (after < end && (*after == '{' || *after == '['))
            q = close + 1;
        else if (n-- > 0 && *next == '{' && group_find(next, end, &from, &to))
            q = to + 1;
        else
            break;
    }
    return q;
}

/* A backslash and a sign, at q: space, a delimiter or the like is passed over. False: the token is made. */
static bool sign_command(struct parser *p, const char *q)
{
    struct math_token *t = &p->t;
    t->end = q + 1;
    switch (*q) {
    case ' ':
    case '!':
    case ',':
    case ';':
    case ':':
    case '>':
    case '$':
    case '(':
    case ')':
    case '[':
    case ']':
    case '-':
    case '"':
    case '/':
    case '\n':
        if (*q == '$' && p->depth == 0)
            p->currency = "dollar";
        token_beyond(p, q + 1);
        return false;
    case '\\': line_token(p, q + 1); return false;
    case '{':
    case '}':
    case '%':
    case '&':
    case '|': break;
    default: t->kind = T_BAD; return false;
    }
    t->cmd = math_command_find(p->m, q, 1);
    t->s = q;
    t->len = 1;
    return true;
}

/* A backslash and a name, at q: the command of that name, or the longest one that it begins with. Returns where the command ends. */
static const char *name_command(struct parser *p, const char *q)
{
    struct math_token *t = &p->t;
    const char *name = q;
    while (q < p->end && is_letter(*q))
        q++;
    t->cmd = math_command_find(p->m, name, (size_t)(q - name));
    if (!t->cmd && starts(name, q, "quad")) {    // \quadx
        q = name + 4;
        t->cmd = math_command_find(p->m, "quad", 4);
    }
    if (!t->cmd)
        for (size_t n = (size_t)(q - name) - 1; n >= 2 && !t->cmd; n--) {    // \cdotx, \pir
            const struct math_command *c = math_command_find(p->m, name, n);
            if (c && (c->class == C_CHAR || c->class == C_REL || c->class == C_CONST)) {
                t->cmd = c;
                q = name + n;
            }
        }
    t->s = name;
    t->len = (int32_t)(q - name);
    return q;
}

/* A font or an operator's name, whose command (at s) ends at q: what its braces hold says what it is. */
static void font_token(struct parser *p, const char *s, const char *q)
{
    struct math_token *t = &p->t;
    const char *from, *to, *brace = space_skip(q, p->end);
    if (brace >= p->end || *brace != '{' || !group_find(brace, p->end, &from, &to)) {
        p->p = q;    // \mathrm e
        token_next(p);
        return;
    }
    from = space_skip(from, to);
    const struct math_command *fn = math_command_find(p->m, from, (size_t)(to - from));
    t->end = to + 1;
    if (fn && (fn->class == C_FUNC || fn->class == C_CONST || fn->class == C_SYM)) {
        t->cmd = fn;
        t->s = from;
        t->len = (int32_t)(to - from);
    } else if (to - from == 1 && after_number(p, s) && !strchr("ei", *from)) {    // 5 \mathrm{m}
        text_token(p, from, to, to + 1);
    } else if (to - from == 1) {    // \mathrm{e}
        t->kind = T_WORD;
        t->s = from;
        t->len = 1;
    } else if (to - from == 2 && starts(from, to, "th")) {
        p->p = t->end;
        token_next(p);
    } else if (to > from && (*from == '\\' || is_digit(*from))) {    // a font for something written out
        t->cmd = math_command_find(p->m, "mathbf", 6);
        t->end = q;
    } else {
        text_token(p, from, to, to + 1);
    }
}

static void command_token(struct parser *p, const char *s)    // s is at the backslash
{
    struct math_token *t = &p->t;
    const char *q = s + 1;
    if (q == p->end) {
        t->kind = T_END;
        t->end = q;
        return;
    }
    if (*q == '\\' && q + 1 < p->end && (is_letter(q[1]) || q[1] == '{') && !p->has_lines) {
        command_token(p, q);    // a doubled backslash before a command: escaped once too often
        return;
    }
    if (is_letter(*q))
        q = name_command(p, q);
    else if (sign_command(p, q))
        q++;
    else
        return;
    t->kind = T_CMD;
    t->end = q;
    if (!t->cmd)
        return;
    const char *from, *to, *brace = space_skip(q, p->end);
    switch ((enum cmd_class)t->cmd->class) {
    case C_SPACE:
        if ((strncmp(t->s, "left", 4) == 0 || strncmp(t->s, "right", 5) == 0) && brace < p->end && *brace == '.')
            q = brace + 1;    // \left. has no delimiter
        token_beyond(p, q);
        break;
    case C_SKIP_ARG: token_beyond(p, arguments_skip(q, p->end, t->cmd->arg)); break;
    case C_CHAR:
        t->join = join_of(t->cmd->name, strlen(t->cmd->name));
        char_token(p, (char)t->cmd->arg, q);
        break;
    case C_REL: rel_token(p, (enum math_rel)t->cmd->arg, q); break;
    case C_TEXT:
        if (brace < p->end && *brace == '{' && group_find(brace, p->end, &from, &to))
            text_token(p, from, to, to + 1);
        else
            t->kind = T_BAD;
        break;
    case C_OPNAME: font_token(p, s, q); break;
    default: break;
    }
}

/* A word, which may stand for a sign: "and", "percent", "degrees". */
static void word_token(struct parser *p, const char *s)
{
    struct math_token *t = &p->t;
    const char *q = s;
    while (q < p->end && is_letter(*q))
        q++;
    t->kind = T_WORD;
    t->len = (int32_t)(q - s);
    t->end = q;
    size_t n = (size_t)t->len;
    // 1orx, (1,2)or(2,1)
    bool glued = s > p->start && (is_digit(s[-1]) || s[-1] == ')' || s[-1] == ']' || s[-1] == '}');
    t->join = join_of(s, n);
    if (word_is(s, n, "and") || word_is(s, n, "or")) {
        char_token(p, ',', q);
    } else if (glued && (starts(s, q, "or") || starts(s, q, "and"))) {
        t->join = *s == 'o' ? 'o' : 'a';
        char_token(p, ',', s + (*s == 'o' ? 2 : 3));
    } else if (is_percent_word(s, n)) {
        char_token(p, '%', q);
    } else if (word_is(s, n, "degrees") || word_is(s, n, "degree")) {
        t->kind = T_CMD;
        t->cmd = math_command_find(p->m, "circ", 4);
    }
}

/* A character beyond ASCII: what a command says too, the sign of a currency, a Chinese unit. */
static void unicode_token(struct parser *p, const char *s)
{
    struct math_token *t = &p->t;
    size_t len;
    const char *name = unicode_command(s, p->end, &len);
    if (name) {
        const struct math_command *cmd = math_command_find(p->m, name, strlen(name));
        t->kind = T_CMD;
        t->cmd = cmd;
        t->s = cmd->name;
        t->len = (int32_t)strlen(cmd->name);
        t->end = s + len;
        if (cmd->class == C_CHAR) {
            t->join = join_of(cmd->name, strlen(cmd->name));
            char_token(p, (char)cmd->arg, t->end);
        } else if (cmd->class == C_REL)
            rel_token(p, (enum math_rel)cmd->arg, t->end);
        return;
    }
    const char *currency = currency_at(s, p->end, &len);
    if (currency) {
        p->currency = p->depth == 0 ? currency : p->currency;
        token_beyond(p, s + len);
        return;
    }
    size_t unit = chinese_len(s, p->end);
    t->kind = unit ? T_TEXT : T_BAD;
    t->len = unit ? (int32_t)unit : 1;
    t->end = s + t->len;
}

/* A sign of one or two characters; next is the one after it. */
static void sign_token(struct parser *p, const char *s, char next)
{
    struct math_token *t = &p->t;
    char c = *s;
    t->kind = T_CHAR;
    t->c = c;
    t->end = s + 1;
    switch (c) {
    case '=': rel_token(p, REL_EQ, s + 1 + (next == '=')); break;
    case '<':
    case '>': rel_token(p, c == '<' ? next == '=' ? REL_LE : REL_LT : next == '=' ? REL_GE : REL_GT, s + 1 + (next == '=')); break;
    case '!':
        if (next == '=' && !(s + 2 < p->end && s[2] == '='))
            rel_token(p, REL_NE, s + 2);
        break;
    case ':':
        if (next == '=')
            rel_token(p, REL_EQ, s + 2);
        break;
    case '*':
        if (next == '*')
            char_token(p, '^', s + 2);    // Python's power, and bold text, which the caller has taken off
        break;
    case '$':
    case '~':
    case '`': token_beyond(p, s + 1); break;
    case '?':
    case '@':
    case '#':
    case '"': t->kind = T_BAD; break;
    default: break;
    }
}

void token_next(struct parser *p)
{
    struct math_token *t = &p->t;
    const char *s = space_skip(p->p, p->end);
    t->space = s > p->p;
    t->line = false;
    t->join = 0;
    t->cmd = NULL;
    p->p = s;
    if (s >= p->end) {
        t->kind = T_END;
        t->end = p->end;
        t->s = p->end;
        t->len = 0;
        return;
    }
    t->s = s;
    t->len = 1;
    unsigned char c = (unsigned char)*s;
    char next = s + 1 < p->end ? s[1] : 0;
    if (is_digit((char)c) || (c == '.' && is_digit(next))) {
        number_lex(p, s);
        return;
    }
    if (is_letter((char)c))
        word_token(p, s);
    else if (c == '\\')
        command_token(p, s);
    else if (c >= 0x80)
        unicode_token(p, s);
    else
        sign_token(p, s, next);
}

void token_take(struct parser *p)
{
    p->p = p->t.end;
    token_next(p);
}

/* ---- rewriting the text before lexing ---- */

/* Replace characters that have a plain spelling (minus signs, exponents, fractions); NULL: no room. */
static const char *ascii_copy(struct math *m, const char *s, size_t *len)
{
    size_t room = *len * 3 + 1, n = 0;
    char raised = 0;    // '^' or '_' while what was copied last is such a character's
    char *out = math_take(m, room);
    if (!out)
        return NULL;
    for (size_t i = 0; i < *len;) {
        size_t from;
        const char *plain = (unsigned char)s[i] >= 0x80 ? unicode_plain(s + i, s + *len, &from) : NULL;
        if (!plain) {
            raised = 0;
            out[n++] = s[i++];
            continue;
        }
        size_t as = strlen(plain);
        if (as == 2 && (plain[0] == '^' || plain[0] == '_')) {    // several in a row are one exponent, one index
            if (raised == plain[0]) {
                out[n - 1] = plain[1];
            } else {
                out[n++] = raised = plain[0];
                out[n++] = '{';
                out[n++] = plain[1];
            }
            out[n++] = '}';
            i += from;
            continue;
        }
        raised = 0;
        memcpy(out + n, plain, as);
        if (plain[0] == '(' && as > 1 && n > 0 && is_digit(out[n - 1]))
            out[n] = out[n + as - 1] = ' ';    // 3 and a half as the mixed number 3 1/2
        n += as;
        i += from;
    }
    *len = n;
    return out;
}

/* An index after _ or ^: a digit, a letter, or a group of them; arg is without braces. Returns what follows it, or NULL. */
static const char *index_take(const char *p, const char *end, struct span *arg)
{
    const char *from = p < end && *p == '{' ? p + 1 : p, *to = from;
    while (to < end && isalnum((unsigned char)*to) && (from > p || to == from))
        to++;
    *arg = (struct span){ from, (size_t)(to - from) };
    if (to == from || (from > p && (to == end || *to != '}')))
        return NULL;
    return to + (from > p);
}

/* The ways to choose k of n, without or with order, as schools write them: {}_{n}C_{k}, ^{n}P_{k}. Returns what
 * follows, or NULL. Without the empty group, nothing before it may be something the index could belong to. */
static const char *choice_take(const char *s, const char *p, const char *end, struct span *n, char *sign, struct span *k)
{
    bool empty = starts(p, end, "{}");
    const char *before = p;
    while (before > s && before[-1] == ' ')
        before--;
    if (!empty && before > s && (isalnum((unsigned char)before[-1]) || strchr("})]|!'", before[-1])))
        return NULL;
    p += empty ? 2 : 0;
    if (p == end || (*p != '_' && *p != '^') || !(p = index_take(p + 1, end, n)))
        return NULL;
    p = space_skip(p, end);
    if (p == end || (*p != 'C' && *p != 'P'))
        return NULL;
    *sign = *p;
    p = space_skip(p + 1, end);
    return p < end && *p == '_' ? index_take(p + 1, end, k) : NULL;
}

/* Rewrite them in a form the parser knows; NULL: no room. */
static const char *choices_write(struct math *m, const char *s, size_t *len)
{
    const char *end = s + *len;
    size_t used = 0, room = *len * 8 + 64;    // "_1P_1" becomes "\frac{(1)!}{(1-1)!}"; longer indices grow less
    char *out = math_take(m, room);
    if (!out)
        return NULL;
    for (const char *p = s, *q; p < end; p = q) {
        struct span n, k;
        char sign;
        q = choice_take(s, p, end, &n, &sign, &k);
        int a = q ? (int)n.len : 0, b = q ? (int)k.len : 0;
        if (!q) {
            out[used++] = *p;
            q = p + 1;
        } else if (sign == 'C') {
            used += (size_t)snprintf(out + used, room - used, "\\binom{%.*s}{%.*s}", a, n.s, b, k.s);
        } else {
            used += (size_t)snprintf(out + used, room - used, "\\frac{(%.*s)!}{(%.*s-%.*s)!}", a, n.s, a, n.s, b, k.s);
        }
    }
    *len = used;
    return out;
}

/* The number that the base of a numeral is written as at p, 2 to 36: 16, {16}, {\text{two}}, {(8)}, \text{base } 3. What follows it, or
 * NULL. */
static const char *base_take(const char *p, const char *end, int *base)
{
    static const char *const words[] = { "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve" };
    static const char *const fonts[] = { "\\text{", "\\mathrm{", "\\textrm{", "\\mbox{", "(", "{" };
    int close = 0;
    const char *from = p;
    for (size_t i = 0; i < ARRAY_SIZE(fonts); i++)
        if (starts(p, end, fonts[i])) {
            p = space_skip(p + strlen(fonts[i]), end);
            close++;
            i = (size_t)-1;
        }
    if (close && starts(p, end, "base")) {
        p = space_skip(p + 4, end);
        bool font = close > 1 && p < end && *p == '}';    // \text{base }3
        close -= font;
        p = space_skip(p + font, end);
    }
    *base = 0;
    for (size_t i = 0; i < ARRAY_SIZE(words) && close; i++)
        if (starts(p, end, words[i]) && !(p + strlen(words[i]) < end && is_letter(p[strlen(words[i])]))) {
            *base = (int)i + 2;
            p += strlen(words[i]);
        }
    if (close && starts(p, end, "sixteen")) {
        *base = 16;
        p += 7;
    }
    bool word = *base > 0;
    for (int n = 0; !word && n < 2 && p < end && is_digit(*p); n++)
        *base = *base * 10 + (*p++ - '0');
    for (; close > 0; close--) {
        p = space_skip(p, end);
        if (p == end || (*p != '}' && *p != ')'))
            return NULL;
        p++;
    }
    bool more = p < end && is_digit(*p) && from[0] != '{';
    return *base >= 2 && *base <= 36 && !more ? p : NULL;
}

/* A numeral with its base at p: 1A_{16}, (101)_2, \text{FF}_{16}, 0xFF. What follows it, or NULL. Small
 * letters are digits only in base 16: 2a_{12} is twice a_{12}. One letter alone is a name, and so are small letters among capitals. */
static const char *numeral_take(const char *s, const char *p, const char *end, struct span *digits, int *base)
{
    static const struct {
        const char *mark;
        int base;
    } marks[] = { { "0x", 16 }, { "0X", 16 }, { "0b", 2 }, { "0o", 8 } };
    static const char *const wraps[] = { "(", "\\text{", "\\mathrm{", "\\mathtt{", "\\texttt{" };
    const char *from = p, *to;
    char close = 0;
    *base = 0;
    if (p > s && (isalnum((unsigned char)p[-1]) || strchr("\\_^.", p[-1]) || (p[-1] == '{' && p - 1 > s && strchr("_^", p[-2]))))
        return NULL;
    for (size_t i = 0; i < ARRAY_SIZE(marks) && *base == 0; i++)
        if (starts(p, end, marks[i].mark)) {
            from = p + 2;
            *base = marks[i].base;
        }
    for (size_t i = 0; i < ARRAY_SIZE(wraps) && *base == 0 && !close; i++)
        if (starts(p, end, wraps[i])) {
            from = p + strlen(wraps[i]);
            close = *wraps[i] == '(' ? ')' : '}';
        }
    for (to = from; to < end && isalnum((unsigned char)*to);)
        to++;
    *digits = (struct span){ from, (size_t)(to - from) };
    bool marked = *base > 0;
    if (digits->len == 0 || (close && (to == end || *to++ != close)))
        return NULL;
    to = marked ? to : space_skip(to, end);
    if (!marked && (to == end || *to != '_' || !(to = base_take(space_skip(to + 1, end), end, base))))
        return NULL;
    bool digit = false, small = false, big = false;
    for (size_t i = 0; i < digits->len; i++) {
        int value = digit_value(digits->s[i]);
        digit |= is_digit(digits->s[i]);
        small |= digits->s[i] >= 'a';
        big |= !is_digit(digits->s[i]) && digits->s[i] < 'a';
        if (value >= *base)
            return NULL;
    }
    bool letters = small || big;
    if (!letters || marked)
        return to;
    bool hexadecimal = *base == 16 && (digit || digits->len > 1);
    return !(small && big) && (small ? hexadecimal : digit || digits->len > 1) ? to : NULL;
}

/* Rewrite them as \numeral{DIGITS}{BASE}; NULL: no room. */
static const char *numerals_write(struct math *m, const char *s, size_t *len)
{
    const char *end = s + *len;
    size_t used = 0, room = *len * 6 + 64;    // "1_2" becomes "\numeral{1}{2}"
    char *out = math_take(m, room);
    if (!out)
        return NULL;
    for (const char *p = s, *q; p < end; p = q) {
        struct span digits;
        int base;
        q = numeral_take(s, p, end, &digits, &base);
        if (q) {
            used += (size_t)snprintf(out + used, room - used, "\\numeral{%.*s}{%d}", (int)digits.len, digits.s, base);
            continue;
        }
        out[used++] = *p;
        q = p + 1;
    }
    *len = used;
    return out;
}

static bool line_states(const char *from, const char *to);

/* Does each row of the one \begin{cases} ... \end{cases} state an equation, without a condition? Then it is a system
 * and the environment is only layout; otherwise it is a function by cases. */
static bool cases_are_system(const char *s, size_t len)
{
    const char *from = memmem(s, len, "\\begin{cases}", 13), *end = s + len;
    const char *to = from ? memmem(from, (size_t)(end - from), "\\end{cases}", 11) : NULL;
    if (!to || memmem(to + 11, (size_t)(end - to - 11), "{cases}", 7))
        return false;
    for (const char *row = from + 13, *stop; row < to; row = stop + 2) {
        stop = memmem(row, (size_t)(to - row), "\\\\", 2);
        stop = stop ? stop : to;
        if (memmem(row, (size_t)(stop - row), "\\text", 5) || memmem(row, (size_t)(stop - row), "if", 2))
            return false;
        const char *mark = memchr(row, '&', (size_t)(stop - row));
        if (mark && *space_skip(mark + 1, stop) != '=')
            return false;
        if (space_skip(row, stop) < stop && !line_states(row, stop))
            return false;
    }
    return true;
}

/* Drop \begin{aligned}, \end{aligned} and the like, which are only layout. */
static const char *layout_strip(struct math *m, const char *s, size_t *len)
{
    static const char *const env[] = { "aligned",   "align", "align*",  "gather",      "gathered", "equation",
                                       "equation*", "split", "gather*", "displaymath", "center",   "cases" };
    size_t n_env = ARRAY_SIZE(env) - !cases_are_system(s, *len);    // the last one only then
    char *out = math_take(m, *len + 1);
    size_t n = 0;
    if (!out)
        return NULL;
    for (size_t i = 0; i < *len;) {
        bool dropped = false;
        size_t skip = starts(s + i, s + *len, "\\begin{") ? 7 : starts(s + i, s + *len, "\\end{") ? 5 : 0;
        for (size_t k = 0; skip && k < n_env && !dropped; k++) {
            size_t el = strlen(env[k]);
            if (*len - i > skip + el && memcmp(s + i + skip, env[k], el) == 0 && s[i + skip + el] == '}') {
                i += skip + el + 1;
                dropped = true;
            }
        }
        if (dropped)
            continue;
        if (s[i] != '&')
            out[n++] = s[i];
        i++;
    }
    *len = n;
    return out;
}

/* Does the line state something by itself: a relation with something on both sides? */
static bool line_states(const char *from, const char *to)
{
    static const char *const rels[] = { "=", "<", ">", "\\le", "\\ge", "\\approx", "\\in " };
    from = space_skip(from, to);
    while (to > from && space_skip(to - 1, to) == to)
        to--;
    for (const char *p = from; p < to; p++)
        for (size_t i = 0; i < ARRAY_SIZE(rels); i++)
            if (starts(p, to, rels[i]))
                return p > from && p + strlen(rels[i]) < to;
    return false;
}

/* Lines that each state something are separate statements: x = 3 above y = 5 is not x = 3y = 5. NULL: no room. */
static const char *lines_separate(struct math *m, const char *s, size_t *len)
{
    const char *end = s + *len;
    int n = 0;
    for (const char *p = s, *q; p < end; p = q + 1) {
        q = memchr(p, '\n', (size_t)(end - p));
        q = q ? q : end;
        if (space_skip(p, q) == q)
            continue;
        if (!line_states(p, q))
            return s;
        n++;
    }
    char *out = n > 1 ? math_take(m, *len * 2 + 1) : NULL;
    if (n < 2 || !out)
        return n < 2 ? s : NULL;
    size_t k = 0;
    for (const char *p = s; p < end; p++) {
        bool line = *p == '\n' && k > 0 && space_skip(p, end) < end && space_skip(s, p) < p;
        if (line && !(k > 1 && out[k - 1] == '\\' && out[k - 2] == '\\')) {
            out[k++] = '\\';
            out[k++] = '\\';
        } else if (!line) {
            out[k++] = *p == '\n' ? ' ' : *p;
        }
    }
    *len = k;
    return out;
}

bool condition_follows(const char *p, const char *end)
{
    size_t len = (size_t)(end - p);
    return memchr(p, ':', len) || memchr(p, '|', len) || memmem(p, len, "\\mid", 4);
}

/* "x \in N: x < 5" is a set without its braces: x, a sign of membership, and a condition after a colon or a bar. NULL: no room. */
static const char *builder_write(struct math *m, const char *s, size_t *len)
{
    const char *end = s + *len, *p = space_skip(s, end), *in = p < end && is_letter(*p) ? space_skip(p + 1, end) : end;
    size_t sign = starts(in, end, "∈") ? strlen("∈") : starts(in, end, "\\in") && !(in + 3 < end && is_letter(in[3])) ? 3 : 0;
    const char *after = in + sign;
    if (sign == 0 || !condition_follows(after, end) || memchr(after, ',', (size_t)(end - after)))
        return s;
    char *out = math_take(m, *len + 4);
    if (!out)
        return NULL;
    memcpy(out, "\\{", 2);
    memcpy(out + 2, s, *len);
    memcpy(out + 2 + *len, "\\}", 2);
    *len += 4;
    return out;
}

const char *text_prepare(struct math *m, const char *s, size_t *len, bool *lines)
{
    bool high = false;
    for (size_t i = 0; i < *len; i++)
        high |= (unsigned char)s[i] >= 0x80;
    if (high && !(s = ascii_copy(m, s, len)))
        return NULL;
    if (!(s = builder_write(m, s, len)))
        return NULL;
    bool chosen = memmem(s, *len, "C_", 2) || memmem(s, *len, "P_", 2) || memmem(s, *len, "C _", 3) || memmem(s, *len, "P _", 3);
    if (chosen && !(s = choices_write(m, s, len)))
        return NULL;
    bool numeral = memchr(s, '_', *len) || memmem(s, *len, "0x", 2) || memmem(s, *len, "0X", 2) || memmem(s, *len, "0b", 2)
                   || memmem(s, *len, "0o", 2);
    if (numeral && !(s = numerals_write(m, s, len)))
        return NULL;
    bool cases = memmem(s, *len, "cases}", 6) && !cases_are_system(s, *len);
    bool matrix = cases || memmem(s, *len, "matrix", 6) || memmem(s, *len, "{array}", 7);
    *lines = matrix || memmem(s, *len, "\\begin", 6);
    if (!matrix && *lines && !(s = layout_strip(m, s, len)))
        return NULL;
    const char *whole = s;
    if (!matrix && memchr(s, '\n', *len) && !(s = lines_separate(m, s, len)))
        return NULL;
    *lines |= s != whole;
    return s;
}
