/* parse.c - LaTeX and plain mathematics to a tree, by recursive descent on the text itself
 *
 * Precedence, low to high, as in latex2sympy2_extended where that is not plainly wrong: lists, relations, set
 * operations, ratios, sums, products and quotients, implicit products (1/2x is 1/(2x)), signs, powers and other
 * postfixes, atoms. */
#include "workers/engine/reward/math/parser.h"

static struct math_node *postfix_parse(struct parser *p, struct math_node *a);

static bool nest_deeper(struct parser *p)
{
    if (++p->nest <= MATH_DEPTH_MAX)
        return true;
    p->m->why = "too deep";
    parser_fail(p);
    return false;
}

static struct math_node *transpose(struct parser *p, const struct math_node *a)
{
    struct math_node *cell[CELLS_MAX];
    int rows = a->scale, cols = a->n / a->scale;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++)
            cell[j * rows + i] = a->child[i * cols + j];
    struct math_node *b = node_list(p->m, K_MATRIX, cell, a->n);
    if (b)
        b->scale = cols;
    return b;
}

/* The chain of powers and other postfixes a, with old at its bottom replaced by new. */
static struct math_node *bottom_replaced(struct parser *p, struct math_node *a, const struct math_node *old, struct math_node *new)
{
    if (a == old)
        return new;
    struct math_node *child[2] = { bottom_replaced(p, a->child[0], old, new), a->n > 1 ? a->child[1] : NULL };
    return child[0] ? node_like(p->m, a, (enum node_kind)a->kind, child) : NULL;
}

static bool is_one_number(const struct math_node *a)
{
    while (a->kind == K_NEG || a->kind == K_PCT || a->kind == K_DEG)
        a = a->child[0];
    return a->kind == K_NUM || a->kind == K_CONST || (a->kind == K_DIV && is_one_number(a->child[0]) && is_one_number(a->child[1]));
}

/* A letter and the parentheses right after it: a function's value or a product; readings.c decides. */
static struct math_node *applied_parse(struct parser *p, struct math_node *letter)
{
    struct math_node *group = bracket_parse(p, '(');
    if (!group)
        return parser_fail(p);
    bool tuple = group->kind == K_TUPLE;
    struct math_node *app = tuple ? node_list(p->m, K_APP, group->child, group->n) : node_new(p->m, K_APP, 1, group);
    if (!app)
        return parser_fail(p);
    app->s = letter->s;
    app->len = letter->len;
    if (tuple || (group->flags & (HAS_SET | HAS_TEXT)) || is_one_number(group))
        return postfix_parse(p, app);
    struct math_node *factor = postfix_parse(p, group), *product = node_new(p->m, K_MUL, 2, letter, factor);
    if (!product)
        return parser_fail(p);
    if (letter->len == 1 && memchr(p->index, letter->s[0], (size_t)p->n_index))
        return product;
    app = bottom_replaced(p, factor, group, app);
    struct math_node *a = app ? node_new(p->m, K_JUXT, 3, product, app, group) : NULL;
    if (!a)
        return parser_fail(p);
    a->s = letter->s;
    a->len = letter->len;
    return a;
}

/* May this be a function's name? A letter with its subscripts and primes, or a Greek one; not the points of a segment. */
static bool may_apply(const struct parser *p, const struct math_node *a)
{
    if (a->kind != K_SYM || !paren_follows(p) || binder_follows(p))
        return false;
    if (p->in_func && !(a->len == 1 && strchr(FUNCTION_LETTERS, a->s[0])))
        return false;
    return a->len == 1 || !(a->s[1] >= 'A' && a->s[1] <= 'Z');
}

/* A factor: an atom with its powers, factorials, percent and degree marks. */
struct math_node *factor_parse(struct parser *p)
{
    struct math_node *a = atom_parse(p);
    return a && may_apply(p, a) ? applied_parse(p, a) : postfix_parse(p, a);
}

/* After the brace of 3^{\text{rd}}: what follows the exponent; NULL: it is no ordinal's ending. */
static const char *ordinal_end(const char *q, const char *end)
{
    static const char *const fonts[] = { "\\text{", "\\mathrm{", "\\textrm{", "\\rm{", "" };
    static const char *const endings[] = { "st", "nd", "rd", "th" };
    for (size_t i = 0; q && i < ARRAY_SIZE(fonts); i++)
        for (size_t k = 0; starts(q, end, fonts[i]) && k < ARRAY_SIZE(endings); k++) {
            const char *r = space_skip(q + strlen(fonts[i]), end);
            const char *close = *fonts[i] ? "}}" : "}";
            if (starts(r, end, endings[k]) && starts(r + 2, end, close))
                return r + 2 + strlen(close);
        }
    return NULL;
}

static struct math_node *postfix_parse(struct parser *p, struct math_node *a)
{
    while (a && !p->failed) {
        if (is_char(p, '^')) {
            token_take(p);
            if (is_class(p, C_DEGREE)) {
                token_take(p);
                a = node_new(p->m, K_DEG, 1, a);
                continue;
            }
            const char *q = is_char(p, '{') ? space_skip(p->t.end, p->end) : NULL,
                       *ordinal = a->kind == K_NUM ? ordinal_end(q, p->end) : NULL;
            if (ordinal) {
                p->p = ordinal;
                token_next(p);
                continue;
            }
            if (q
                && (starts(q, p->end, "\\circ") || starts(q, p->end, "\\degree") || starts(q, p->end, "°")
                    || starts(q, p->end, "\\prime"))) {
                token_take(p);
                bool degree = is_class(p, C_DEGREE);
                token_take(p);
                if (!char_take(p, '}') || !degree)
                    return parser_fail(p);
                a = node_new(p->m, K_DEG, 1, a);
                continue;
            }
            if (a->kind == K_MATRIX && ((p->t.kind == T_WORD && *p->t.s == 'T') || (q && starts(q, p->end, "T}")))) {
                bool brace = is_char(p, '{');
                token_take(p);
                if (brace) {
                    token_take(p);
                    token_take(p);
                }
                a = transpose(p, a);
                continue;
            }
            struct math_node *e = NULL;
            if (is_char(p, '{')) {
                e = argument_parse(p, false);
            } else if (parser_deeper(p)) {
                bool minus = is_char(p, '-');
                if (minus || is_char(p, '+'))
                    token_take(p);
                e = p->t.kind == T_NUM ? number_node(p) : atom_parse(p);    // the 1 of x^2_1 is not a number's base
                if (e && is_char(p, '^') && !minus) {                       // 2^3^4 is 2^(3^4)
                    token_take(p);
                    struct math_node *e2 = is_char(p, '{') ? argument_parse(p, false) : factor_parse(p);
                    e = node_new(p->m, K_POW, 2, e, e2);
                }
                if (minus)
                    e = node_new(p->m, K_NEG, 1, e);
                p->depth--;
            }
            if (e && a->kind == K_SYM && is_char(p, '_'))    // x^2_i is x_i^2
                a = symbol_node(p, a->s, (size_t)a->len);
            a = e && a ? node_new(p->m, K_POW, 2, a, e) : parser_fail(p);
        } else if (is_char(p, '!')) {
            token_take(p);
            bool twice = is_char(p, '!') && !p->t.space;
            if (twice)
                token_take(p);
            a = node_op(node_new(p->m, K_FUNC, 1, a), twice ? FN_FACT2 : FN_FACT);
        } else if (is_char(p, '%')) {
            token_take(p);
            a = a->kind == K_PCT ? parser_fail(p) : node_new(p->m, K_PCT, 1, a);
        } else if (is_class(p, C_DEGREE)) {
            token_take(p);
            a = node_new(p->m, K_DEG, 1, a);
        } else {
            break;
        }
    }
    return a;
}

static bool is_natural(const struct math_node *a)
{
    return node_is(a, K_NUM) && a->scale == 0 && a->base == 0 && !(a->flags & HAS_DECIMAL);
}

/* s with before in front of it, in the scratch; an empty span: no room, and the parse fails. */
static struct span span_joined(struct math *m, struct span before, const char *s, size_t len)
{
    char *all = math_take(m, before.len + len + 1);
    if (!all)
        return (struct span){ "", 0 };
    if (before.len > 0)
        memcpy(all, before.s, before.len);
    memcpy(all + before.len, s, len);
    return (struct span){ all, before.len + len };
}

/* A word of a unit, or what stands between two, onto the unit of the element. */
static void unit_add(struct parser *p, const char *s, size_t len)
{
    if (p->unit.len > 0 && *s != '^' && *s != '/')
        p->unit = span_joined(p->m, p->unit, " ", 1);
    p->unit = span_joined(p->m, p->unit, s, len);
}

/* Words after an operand that are no unit may change its value: the check then cannot tell (math.c). */
static void words_doubt(struct parser *p, const char *s, size_t len)
{
    p->m->doubt = span_joined(p->m, span_joined(p->m, p->m->doubt, s, len), " ", 1);
}

/* A unit after an operand (number: it is one, so that a single letter may be a unit): text, or a word that is one.
 * Takes it with its power and what it is divided by. */
static bool unit_take(struct parser *p, bool number)
{
    bool any = false, per = false;
    while (p->t.kind == T_TEXT || p->t.kind == T_WORD) {
        if (p->t.kind == T_WORD) {
            const struct math_command *c = math_command_find(p->m, p->t.s, (size_t)p->t.len);
            bool known = p->t.len >= 2 && unit_word(p->t.s, (size_t)p->t.len);
            bool single = number && p->t.len == 1 && (p->t.space || per) && strchr("mgshtl", *p->t.s) && p->depth == 0;
            bool word = p->t.len >= 4 && p->t.space && !c;
            if (c && c->class == C_FUNC && !(known && p->t.space))
                break;
            if (single) {
                const char *q = space_skip(p->t.end, p->end);
                single = q >= p->end || *q == ',' || *q == '.';
            }
            if (!known && !single && !word && !(any && p->t.space && p->depth == 0))
                break;
        }
        any = true;
        per = false;
        unit_add(p, p->t.s, (size_t)p->t.len);
        token_take(p);
        if (is_char(p, '^')) {
            const char *q = space_skip(p->t.end, p->end);
            bool brace = q < p->end && *q == '{';
            q += brace;
            const char *power = q;
            q += q < p->end && *q == '-';
            if (q < p->end && is_digit(*q) && (!brace || (q + 1 < p->end && q[1] == '}'))) {
                unit_add(p, "^", 1);
                p->unit = span_joined(p->m, p->unit, power, (size_t)(q + 1 - power));
                p->p = q + 1 + brace;
                token_next(p);
            }
        }
        if (is_char(p, '/') || is_char(p, '*')) {
            const char *q = space_skip(p->t.end, p->end);
            if (starts(q, p->end, "\\text") || starts(q, p->end, "\\mathrm") || (q < p->end && is_letter(*q)) || chinese_len(q, p->end)) {
                per = is_char(p, '/');
                if (per)
                    unit_add(p, "/", 1);
                token_take(p);
            }
        }
    }
    if (any && !unit_plain(p->unit.s, p->unit.len))
        words_doubt(p, p->unit.s, p->unit.len);
    return any;
}

/* Take len bytes of the word or text that is next, and the spaces after them. */
static void words_take(struct parser *p, size_t len)
{
    const char *to = p->t.s + p->t.len, *q = space_skip(p->t.s + len, to);
    if (p->t.kind == T_TEXT && q < to) {
        p->t.len = (int32_t)(to - q);
        p->t.s = q;
    } else {
        token_take(p);
    }
}

/* What the words after a number do to it: 5 million, 5 squared, 5 and a half. They are taken.
 * from: where a begins; elsewhere than at the element's start they may mean the whole of it. */
static struct math_node *words_applied(struct parser *p, struct math_node *a, const char *from)
{
    while (a && (p->t.kind == T_TEXT || p->t.kind == T_WORD || p->t.join == 'a')) {
        if (p->t.join == 'a') {
            size_t half = half_words(p->t.s, p->end);
            if (half == 0)
                break;
            p->p = p->t.s + half;
            token_next(p);
            a = node_new(p->m, K_ADD, 2, a, node_new(p->m, K_DIV, 2, node_int(p->m, 1), node_int(p->m, 2)));
            continue;
        }
        size_t half = half_words(p->t.s, p->t.s + p->t.len), len = half;
        const struct multiplier *w = half ? NULL : multiplier_find(p->t.s, (size_t)p->t.len, &len);
        if (!half && !w)
            break;
        if (w && from != p->side)
            words_doubt(p, w->word, strlen(w->word));
        words_take(p, len);
        a = half       ? node_new(p->m, K_ADD, 2, a, node_new(p->m, K_DIV, 2, node_int(p->m, 1), node_int(p->m, 2)))
            : w->power ? node_new(p->m, K_POW, 2, a, node_int(p->m, w->power))
                       : node_new(p->m, K_MUL, 2, a, node_int(p->m, w->times));
    }
    return a;
}

/* Words before an operand that say nothing of its value ("Area:", "the answer is") or something that is understood. */
static struct math_node *words_before(struct parser *p, const struct math_node *words, struct math_node *a)
{
    enum lead lead = lead_of(words->s, (size_t)words->len);
    switch (lead) {
    case LEAD_EMPTY: return a;
    case LEAD_MINUS: return node_new(p->m, K_NEG, 1, a);
    case LEAD_HALF: return node_new(p->m, K_DIV, 2, a, node_int(p->m, 2));
    case LEAD_TWICE: return node_new(p->m, K_MUL, 2, a, node_int(p->m, 2));
    case LEAD_UNKNOWN: words_doubt(p, words->s, (size_t)words->len); return a;
    }
    return a;
}

/* Factors side by side: a product that binds more tightly than '/'; a natural number before a fraction is a mixed
 * number. */
static struct math_node *implicit_parse(struct parser *p)
{
    struct math_node *part[64];
    int n = 0;
    const struct math_node *before = NULL;
    while (n < 64) {
        bool space = p->t.space, frac = is_class(p, C_FRAC);
        if (n > 0 && unit_take(p, node_is(before, K_NUM))) {
            if (!starts_factor(p))
                break;
            return parser_fail(p);    // 3 hours 20 minutes
        }
        if (n > 0 && (!starts_factor(p) || binder_follows(p)))
            break;
        bool number = p->t.kind == T_NUM;
        const char *at = p->p;
        struct math_node *a = factor_parse(p);
        if (!a)
            return parser_fail(p);
        if ((number || p->t.kind == T_TEXT) && !(a = words_applied(p, a, at)))
            return parser_fail(p);
        if (n == 1 && part[0]->kind == K_TEXT && p->depth == 0) {    // \text{Area: } 5
            if (!(a = words_before(p, part[0], a)))
                return parser_fail(p);
            n = 0;
        }
        bool proper = n > 0 && is_natural(before) && part[n - 1] == before;
        if (proper && frac && (a->kind == K_PCT || a->kind == K_DEG) && a->child[0]->kind == K_DIV && is_natural(a->child[0]->child[0])
            && is_natural(a->child[0]->child[1])) {    // 33\frac{1}{3}\%
            part[n - 1] = node_new(p->m, (enum node_kind)a->kind, 1, node_new(p->m, K_ADD, 2, part[n - 1], a->child[0]));
            before = NULL;
            continue;
        }
        if (proper && frac && a->kind == K_DIV && is_natural(a->child[0]) && is_natural(a->child[1])) {
            part[n - 1] = node_new(p->m, K_ADD, 2, part[n - 1], a);
            before = NULL;
            continue;
        }
        if (n > 0 && number) {
            if (proper && space && is_natural(a) && is_char(p, '/')) {    // 3 1/2
                token_take(p);
                struct math_node *den = p->t.kind == T_NUM ? factor_parse(p) : NULL;
                if (!is_natural(den))
                    return parser_fail(p);
                part[n - 1] = node_new(p->m, K_ADD, 2, part[n - 1], node_new(p->m, K_DIV, 2, a, den));
                before = NULL;
                continue;
            }
            if (before && before->kind == K_NUM)
                return parser_fail(p);    // two numbers side by side
        }
        part[n++] = a;
        before = number ? a : NULL;
    }
    if (n == 64)
        return parser_fail(p);
    return n == 1 ? part[0] : node_list(p->m, K_MUL, part, n);
}

static struct math_node *signed_parse(struct parser *p)
{
    int pm = is_class(p, C_PM) ? p->t.cmd->arg : 0;
    if (!pm && !is_char(p, '-') && !is_char(p, '+'))
        return implicit_parse(p);
    bool minus = is_char(p, '-');
    if (!nest_deeper(p))
        return NULL;
    token_take(p);
    struct math_node *a = signed_parse(p);
    p->nest--;
    if (!a)
        return parser_fail(p);
    return pm ? node_op(node_new(p->m, K_PM, 1, a), pm) : minus ? node_new(p->m, K_NEG, 1, a) : a;
}

struct math_node *product_parse(struct parser *p)
{
    struct math_node *a = signed_parse(p);
    while (a && !p->failed) {
        if (is_char(p, '*') || is_char(p, '/') || is_char(p, 'm')) {
            char op = p->t.c;
            token_take(p);
            if (!nest_deeper(p))
                return NULL;
            struct math_node *b = signed_parse(p);
            p->nest--;
            if (!b)
                return parser_fail(p);
            a = op == '*'   ? node_new(p->m, K_MUL, 2, a, b)
                : op == '/' ? node_new(p->m, K_DIV, 2, a, b)
                            : node_op(node_new(p->m, K_FUNC, 2, a, b), FN_MOD);
        } else {
            break;
        }
    }
    return a;
}

#define TERMS_MAX 512
struct math_node *sum_parse(struct parser *p)
{
    struct math_node *term[TERMS_MAX], *a = product_parse(p);
    int n = 0;
    if (!a)
        return parser_fail(p);
    term[n++] = a;
    for (;;) {
        int pm = is_class(p, C_PM) ? p->t.cmd->arg : 0;
        bool minus = is_char(p, '-');
        if (!pm && !minus && !is_char(p, '+'))
            break;
        token_take(p);
        a = n < TERMS_MAX ? product_parse(p) : NULL;
        if (!a)
            return parser_fail(p);
        term[n++] = pm ? node_op(node_new(p->m, K_PM, 1, a), pm) : minus ? node_new(p->m, K_NEG, 1, a) : a;
    }
    a = n == 1 ? term[0] : node_list(p->m, K_ADD, term, n);
    if (is_class(p, C_OVER) || is_class(p, C_CHOOSE)) {    // {a \over b}
        bool over = is_class(p, C_OVER);
        if (!parser_deeper(p))
            return NULL;
        token_take(p);
        struct math_node *b = sum_parse(p);
        p->depth--;
        a = b ? over ? node_new(p->m, K_DIV, 2, a, b) : node_op(node_new(p->m, K_FUNC, 2, a, b), FN_BINOM) : parser_fail(p);
    }
    return a;
}

static struct math_node *ratio_parse(struct parser *p)
{
    struct math_node *part[16], *a = sum_parse(p);
    int n = 0;
    if (!a || !is_char(p, ':') || p->no_bar || p->depth > MATH_DEPTH_MAX)    // in a set's braces: "such that"
        return a;
    part[n++] = a;
    while (n < 16 && is_char(p, ':')) {
        token_take(p);
        part[n] = sum_parse(p);
        if (!part[n])
            return parser_fail(p);
        n++;
    }
    return node_list(p->m, K_RATIO, part, n);
}

struct math_node *set_parse(struct parser *p)
{
    struct math_node *a = ratio_parse(p);
    while (a && (is_class(p, C_CUP) || is_class(p, C_CAP) || is_class(p, C_SETMINUS))) {
        enum node_kind kind = is_class(p, C_CUP) ? K_UNION : is_class(p, C_CAP) ? K_INTER : K_MINUS;
        token_take(p);
        struct math_node *b = ratio_parse(p);
        a = b ? node_new(p->m, kind, 2, a, b) : parser_fail(p);
    }
    return a;
}

/* a with the unit that was read beside it. */
static struct math_node *unit_applied(struct parser *p, struct math_node *a)
{
    if (p->unit.len == 0 && p->currency && p->depth == 0)
        unit_add(p, p->currency, strlen(p->currency));
    p->currency = p->depth > 0 ? p->currency : NULL;
    if (p->unit.len == 0 || !a)
        return a;
    a = node_new(p->m, K_UNIT, 1, a);
    if (a) {
        a->s = p->unit.s;
        a->len = (int32_t)p->unit.len;
    }
    p->unit = (struct span){ 0 };
    return a;
}

#define RELS_MAX 24
static struct math_node *relation_parse(struct parser *p)
{
    struct math_node *side[RELS_MAX + 1];
    char rel[RELS_MAX];
    int n = 0;
    p->unit = (struct span){ 0 };
    if (p->t.kind == T_REL && (p->t.c == REL_EQ || p->t.c == REL_APPROX) && p->depth == 0)    // "= 5"
        token_take(p);
    p->side = p->p;
    struct math_node *a = side[0] = unit_applied(p, set_parse(p));
    if (!a)
        return parser_fail(p);
    while (p->t.kind == T_REL || is_class(p, C_PMOD)) {
        bool pmod = is_class(p, C_PMOD);
        if (n == RELS_MAX)
            return parser_fail(p);
        rel[n] = pmod ? REL_MOD : p->t.c;
        token_take(p);
        p->unit = (struct span){ 0 };
        p->side = p->p;
        side[n + 1] = unit_applied(p, pmod ? argument_parse(p, false) : set_parse(p));
        if (!side[n + 1])
            return parser_fail(p);
        n++;
        struct math_node *last = side[n];
        if (rel[n - 1] == REL_CONG && last->kind == K_FUNC && last->op == FN_MOD && n < RELS_MAX) {    // a = b mod n
            side[n] = last->child[0];
            side[n + 1] = last->child[1];
            rel[n++] = REL_MOD;
        }
    }
    if (n == 0)
        return a;
    a = node_list(p->m, K_REL, side, n + 1);
    char *s = math_take(p->m, (size_t)n);
    if (!a || !s)
        return parser_fail(p);
    memcpy(s, rel, (size_t)n);
    a->s = s;
    a->len = n;
    return a;
}

/* Arrows that only lead to an answer. */
static bool is_arrow(const struct parser *p)
{
    static const char *const arrows[] = { "Rightarrow", "implies", "rightarrow", "longrightarrow", "Longrightarrow", "to" };
    for (size_t i = 0; p->t.kind == T_CMD && i < ARRAY_SIZE(arrows); i++)
        if (word_is(p->t.s, (size_t)p->t.len, arrows[i]))
            return true;
    return false;
}

#define LIST_MAX 256
struct math_node *list_parse(struct parser *p)
{
    struct math_node *elem[LIST_MAX], *group[64];
    int n = 0, n_group = 0, from = 0;
    bool separated = false, lines = true;
    char join = 0;
    while (p->depth == 0 && is_arrow(p))    // \Rightarrow 7
        token_take(p);
    for (;;) {
        while (is_char(p, ',') || is_char(p, ';') || (is_char(p, '.') && p->depth == 0)) {
            bool semi = is_char(p, ';'), dot = is_char(p, '.');
            lines &= p->t.line || dot;
            if (semi && n > from && n_group < 63) {
                group[n_group++] = n - from == 1 ? elem[from] : node_list(p->m, K_LIST, elem + from, n - from);
                from = n;
            }
            separated |= !dot && n > 0;
            join = n > 0 && p->t.join ? (join && join != p->t.join ? 'm' : p->t.join) : join;
            if (p->depth == 0 && !dot && n > 0)
                p->comma_seen = true;
            token_take(p);
            if (dot && p->t.kind != T_END)
                return parser_fail(p);
        }
        if (is_class(p, C_DOTS)) {    // 1, 2, ..., 9
            token_take(p);
            if (n == LIST_MAX)
                return parser_fail(p);
            elem[n++] = node_named(p->m, K_TEXT, "...", 3);
            continue;
        }
        bool closing = p->t.kind == T_END || (p->t.kind == T_CHAR && strchr(n > 0 ? ")]}|&n:" : ")]}&n:", p->t.c)) || is_class(p, C_CLOSE)
                       || is_class(p, C_END);
        if (closing)
            break;
        if (n == LIST_MAX || (n > from && !separated))
            return parser_fail(p);
        struct math_node *a = relation_parse(p);
        if (!a)
            return parser_fail(p);
        elem[n++] = a;
        if (binder_follows(p) && n + 2 < LIST_MAX) {
            a = bracket_parse(p, '(');
            if (!a)
                return parser_fail(p);
            lines = false;
            for (int i = 0; i < (a->kind == K_TUPLE ? a->n : 1) && n < LIST_MAX; i++)
                elem[n++] = a->kind == K_TUPLE ? a->child[i] : a;
        }
        if (!is_char(p, ',') && !is_char(p, ';') && !is_char(p, '.') && !is_class(p, C_DOTS))
            break;
    }
    if (n == 0)
        return parser_fail(p);
    if (n_group > 0) {
        if (n > from)
            group[n_group++] = n - from == 1 ? elem[from] : node_list(p->m, K_LIST, elem + from, n - from);
        if (n_group > 1)
            return node_op(node_list(p->m, K_LIST, group, n_group), 1);
        return group[0];
    }
    if (n == 1)
        return elem[0];
    struct math_node *list = node_list(p->m, K_LIST, elem, n);
    if (list) {
        list->scale = lines;
        list->base = join;
    }
    return list;
}

struct math_node *math_parse(struct math *m, const char *s, size_t len, bool plain)
{
    bool lines;
    if (!(s = text_prepare(m, s, &len, &lines)))
        return NULL;
    struct parser p = { .m = m, .p = s, .start = s, .end = s + len, .plain = plain, .has_lines = lines };
    token_next(&p);
    struct math_node *a = list_parse(&p);
    while (a && is_char(&p, '.'))
        token_take(&p);
    return a && !p.failed && !m->out_of_memory && p.t.kind == T_END ? a : NULL;
}
