/* command.c - LaTeX commands with their arguments: fractions, roots, matrices, sums and integrals, fonts, marks */
#include "workers/engine/reward/math/calculus.h"
#include "workers/engine/reward/math/parser.h"

#define OPAQUE_DERIVATIVE 16    // differs from the ops of the table's C_OPAQUE commands

/* ---- functions by cases ---- */

#define CASES_MAX 24

/* Is one of these words at p, as a whole word? Its length. */
static size_t word_at(const char *p, const char *end, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(words[i]);
        if ((size_t)(end - p) >= len && strncasecmp(p, words[i], len) == 0 && !(p + len < end && is_letter(p[len])))
            return len;
    }
    return 0;
}

/* A condition without the words that only say that it is one: x > 0 for \text{if } x > 0, "neven" for "n is even". NULL: no room. */
static struct math_node *condition_parse(struct parser *p, const char *s, const char *end)
{
    static const char *const fonts[] = { "\\text{", "\\textrm{", "\\mathrm{", "\\mbox{" };
    static const char *const fillers[] = { "if", "when", "for", "where", "is", "are", "an" };
    static const char *const rest[] = { "otherwise", "else", "elsewhere" };
    char *plain = math_take(p->m, (size_t)(end - s) + 1), *name = math_take(p->m, (size_t)(end - s) + 1);
    if (!plain || !name)
        return NULL;
    size_t n = 0, n_name = 0, len;
    int depth = 0;
    for (const char *q = s; q < end;) {
        size_t skip = 0;
        for (size_t i = 0; i < ARRAY_SIZE(fonts) && skip == 0; i++)
            skip = starts(q, end, fonts[i]) ? strlen(fonts[i]) : 0;
        depth += skip == 0 && *q == '{';
        if (skip == 0 && *q == '}' && depth-- == 0) {    // of a font
            depth = 0;
            skip = 1;
        }
        bool start = q == s || !is_letter(q[-1]);
        if (skip == 0 && start && (q == s || q[-1] != '\\'))
            skip = word_at(q, end, fillers, ARRAY_SIZE(fillers));
        if (skip == 0 && *q != '$') {
            plain[n++] = *q++;
            continue;
        }
        plain[n++] = ' ';
        q += MAX(skip, (size_t)1);
    }
    const char *from = plain, *to = plain + n;
    while (from < to && strchr(" ,\t\n", *from))
        from++;
    while (to > from && strchr(" ,.;\t\n", to[-1]))
        to--;
    len = word_at(from, to, rest, ARRAY_SIZE(rest));
    if (len > 0 && from + len == to)
        return node_named(p->m, K_TEXT, CASE_OTHERWISE, strlen(CASE_OTHERWISE));
    struct math_node *a = sub_parse(p, from, (size_t)(to - from));
    p->failed = false;
    if (a && (a->kind == K_REL || (a->kind == K_LIST && a->child[0]->kind == K_REL)))
        return a;
    for (const char *q = from; q < to; q++)
        if (*q != ' ')
            name[n_name++] = *q;
    return n_name >= 3 ? node_named(p->m, K_TEXT, name, n_name) : NULL;    // a letter is no condition
}

/* The next "\\\\", '&' or "\\end" from q on that is not inside a group or another environment. */
static const char *cell_end(const char *q, const char *end)
{
    int depth = 0;
    for (; q < end; q++) {
        if (*q == '{')
            depth++;
        else if (*q == '}')
            depth--;
        else if (starts(q, end, "\\begin{"))
            depth++;
        else if (starts(q, end, "\\end{") && depth-- == 0)
            return q;
        else if (depth == 0 && (*q == '&' || starts(q, end, "\\\\")))
            return q;
        else if (*q == '\\' && q + 1 < end)
            q++;
    }
    return NULL;
}

/* The rows of a function by cases, from q on: value & condition. */
static struct math_node *cases_parse(struct parser *p, const char *q)
{
    struct math_node *part[2 * CASES_MAX];
    int n = 0;
    bool more = true;
    if (!parser_deeper(p))
        return NULL;
    while (more) {
        const char *amp = cell_end(q, p->end), *stop = amp && *amp == '&' ? cell_end(amp + 1, p->end) : amp;
        if (!stop || *stop == '&')
            return parser_fail(p);
        const char *from = space_skip(q, p->end), *to = amp;
        while (to > from && strchr(" ,\n\t", to[-1]))
            to--;
        if (amp == stop && to > from)
            return parser_fail(p);    // a value without a condition
        if (amp != stop) {
            if (n == 2 * CASES_MAX || !(part[n] = sub_parse(p, from, (size_t)(to - from)))
                || !(part[n + 1] = condition_parse(p, amp + 1, stop)))
                return parser_fail(p);
            n += 2;
        }
        more = !starts(stop, p->end, "\\end{");
        q = stop + 2;
        const char *space = space_skip(q, p->end),
                   *close = more && space < p->end && *space == '[' ? memchr(space, ']', (size_t)(p->end - space)) : NULL;
        q = close ? close + 1 : q;    // \\[4pt]
    }
    const char *close = memchr(q, '}', (size_t)(p->end - q));
    p->depth--;
    if (n == 0 || !close)
        return parser_fail(p);
    p->p = close + 1;
    token_next(p);
    return node_list(p->m, K_CASES, part, n);
}

static struct math_node *environment_parse(struct parser *p)
{
    const char *q = space_skip(p->t.end, p->end), *from, *to;
    if (q >= p->end || *q != '{' || !group_find(q, p->end, &from, &to))
        return parser_fail(p);
    size_t len = (size_t)(to - from);
    p->p = to + 1;
    if (len >= 5 && memcmp(to - 5, "cases", 5) == 0)
        return cases_parse(p, to + 1);
    bool array = starts(from, to, "array"), det = starts(from, to, "vmatrix") || starts(from, to, "Vmatrix");
    if (!array && !memmem(from, len, "matrix", 6))
        return parser_fail(p);
    if (array) {
        const char *f2, *t2, *b = space_skip(p->p, p->end);
        if (b < p->end && *b == '{' && group_find(b, p->end, &f2, &t2))
            p->p = t2 + 1;
    }
    if (!parser_deeper(p))
        return NULL;
    bool was = p->in_matrix;
    p->in_matrix = true;
    struct math_node *cell[CELLS_MAX];
    int n = 0, row = 0, cols = 0, in_row = 0;
    token_next(p);
    for (;;) {
        bool end = is_class(p, C_END);
        if (!end && !is_char(p, '&') && !is_char(p, 'n')) {
            if (n == CELLS_MAX)
                return parser_fail(p);
            cell[n] = set_parse(p);
            if (!cell[n])
                return parser_fail(p);
            n++;
            in_row++;
        }
        if (is_char(p, '&')) {
            token_take(p);
            continue;
        }
        end = is_class(p, C_END);
        if (!end && !is_char(p, 'n'))
            return parser_fail(p);
        if (in_row > 0) {
            if (row > 0 && in_row != cols)
                return parser_fail(p);
            cols = in_row;
            in_row = 0;
            row++;
        }
        if (end)
            break;
        token_take(p);
    }
    q = space_skip(p->t.end, p->end);
    if (row == 0 || q >= p->end || *q != '{' || !group_find(q, p->end, &from, &to))
        return parser_fail(p);
    p->in_matrix = was;
    p->depth--;
    p->p = to + 1;
    token_next(p);
    struct math_node *a = node_list(p->m, K_MATRIX, cell, n);
    if (!a)
        return parser_fail(p);
    a->scale = row;
    return det ? node_op(node_new(p->m, K_FUNC, 1, a), FN_DET) : a;
}

/* Parse a body in which the letter of the symbol x is no function's name. */
static struct math_node *body_parse(struct parser *p, const struct math_node *x)
{
    bool named = x->len == 1 && p->n_index < MATH_BIND_MAX;
    if (!parser_deeper(p))
        return NULL;
    if (named)
        p->index[p->n_index++] = *x->s;
    struct math_node *body = product_parse(p);
    p->n_index -= named;
    p->depth--;
    return body ? body : parser_fail(p);
}

/* A variable as it is written: a letter or a Greek one. What follows it; NULL: there is none. */
static const char *variable_take(struct parser *p, const char *s, const char *end, struct math_node **x)
{
    const char *q = s;
    if (q < end && *q == '\\') {
        while (++q < end && is_letter(*q)) {
        }
        const struct math_command *c = math_command_find(p->m, s + 1, (size_t)(q - s - 1));
        *x = c && c->class == C_SYM ? node_named(p->m, K_SYM, c->name, strlen(c->name)) : NULL;
        return *x ? q : NULL;
    }
    *x = q < end && is_letter(*q) ? node_named(p->m, K_SYM, q, 1) : NULL;
    return *x ? q + 1 : NULL;
}

/* x \to 0^+, the text under a limit: the variable, where it goes and from which side; false: it is not of this form. */
static bool approach_take(struct parser *p, const struct math_node *text, struct math_node **x, struct math_node **to, int *side)
{
    static const char *const arrows[] = { "\\to", "\\rightarrow", "\\longrightarrow", "→", "->" };
    static const char *const sides[] = { "^{+}", "^+", "^{-}", "^-" };
    const char *end = text->s + text->len, *q = variable_take(p, space_skip(text->s, end), end, x);
    if (!q)
        return false;
    q = space_skip(q, end);
    for (size_t i = 0; i < ARRAY_SIZE(arrows); i++) {
        if (!starts(q, end, arrows[i]) || (arrows[i][0] == '\\' && q + strlen(arrows[i]) < end && is_letter(q[strlen(arrows[i])])))
            continue;
        q += strlen(arrows[i]);
        while (end > q && space_skip(end - 1, end) == end)
            end--;
        *side = 0;
        for (size_t k = 0; k < ARRAY_SIZE(sides) && *side == 0; k++) {
            size_t n = strlen(sides[k]);
            if ((size_t)(end - q) > n && memcmp(end - n, sides[k], n) == 0) {
                end -= n;
                *side = k < 2 ? 1 : -1;
            }
        }
        *to = sub_parse(p, q, (size_t)(end - q));
        p->failed = false;
        return *to != NULL;
    }
    return false;
}

/* Where the differential of an integral's body is: d and a variable, roman or not; those of the integrals inside come first. */
static bool differential_find(struct parser *p, const char *s, const char *end, const char **from, const char **after, struct math_node **x)
{
    static const char *const signs[] = { "\\mathrm{d}", "\\text{d}", "{\\rm d}", "\\rm d", "d" };
    int inside = 0;
    for (const char *q = s; q < end; q++) {
        inside += starts(q, end, "\\int") && !(q + 4 < end && is_letter(q[4]));
        if (*q == '\\' && !starts(q, end, "\\mathrm{d}") && !starts(q, end, "\\text{d}") && !starts(q, end, "\\rm d")) {
            while (q + 1 < end && is_letter(q[1]))
                q++;
            continue;
        }
        for (size_t i = 0; i < ARRAY_SIZE(signs); i++) {
            if (!starts(q, end, signs[i]))
                continue;
            *from = q;
            const char *v = space_skip(q + strlen(signs[i]), end);
            *after = variable_take(p, v, end, x);
            bool whole = *after && !(*after < end && is_letter(**after) && **after != 'd' && *v != '\\');
            if (!whole)
                break;
            if (inside-- == 0)
                return true;
            q = *after - 1;
            break;
        }
    }
    return false;
}

/* The body of an integral between bounds, up to its differential, which may stand in a numerator. NULL: it is not of this form, and
 * nothing is taken, or it cannot be parsed. */
static struct math_node *integral_parse(struct parser *p, struct math_node *from, struct math_node *to)
{
    const char *s = p->p, *at, *after, *q;
    struct math_node *x = NULL;
    int depth = 0;
    if (!differential_find(p, s, p->end, &at, &after, &x))
        return NULL;
    for (q = s; q < at; q++)
        depth += (*q == '{') - (*q == '}');
    const char *end = after;
    if (depth < 0 || depth > 1)
        return NULL;
    if (depth == 1) {    // \frac{dx}{1+x^2}
        const char *f, *t;
        while (end < p->end && *end != '}')
            end++;
        end = space_skip(end + (end < p->end), p->end);
        if (end == p->end || *end != '{' || !group_find(end, p->end, &f, &t))
            return NULL;
        end = t + 1;
    }
    size_t before = (size_t)(at - s), n_after = (size_t)(end - after);
    char *text = math_take(p->m, before + n_after + 2);
    if (!text)
        return NULL;
    memcpy(text, s, before);
    for (size_t was = 0; was != before;) {    // blanks, also as \,
        was = before;
        before -= before > 0 && text[before - 1] == ' ';
        before -= before > 1 && text[before - 2] == '\\' && strchr(",;!:", text[before - 1]) ? 2 : 0;
    }
    bool empty = before == 0 || text[before - 1] == '{';
    if (empty)
        text[before++] = '1';
    memcpy(text + before, after, n_after);
    bool named = x->len == 1 && p->n_index < MATH_BIND_MAX;
    if (named)
        p->index[p->n_index++] = *x->s;
    struct math_node *body = sub_parse(p, text, before + n_after);
    p->n_index -= named;
    struct math_node *a = body ? node_op(node_new(p->m, K_OPAQUE, 3, body, from, to), 1) : NULL;
    if (!a)
        return parser_fail(p);    // not once more in another way: nested integrals would double the work each time
    a->s = x->s;
    a->len = x->len;
    p->p = end;
    token_next(p);
    return integral_node(a);
}

static bool sum_goes_on(const struct parser *p)
{
    return is_char(p, '+') || is_char(p, '-') || is_class(p, C_PM);
}

static struct math_node *big_parse(struct parser *p, bool opaque, int op)
{
    struct math_node *from = NULL, *to = NULL, *body, *limit = NULL;
    const char *index = "";
    size_t index_len = 0;
    token_take(p);
    for (int i = 0; i < 2; i++) {
        if (is_char(p, '_')) {
            p->p = p->t.end;
            const char *q = space_skip(p->p, p->end), *a, *b;
            if (q < p->end && *q == '{' && group_find(q, p->end, &a, &b)) {
                const char *eq = memchr(a, '=', (size_t)(b - a));
                if (!opaque && eq) {
                    index = space_skip(a, eq);
                    index_len = 1;
                    if (index == eq || !is_letter(*index) || space_skip(index + 1, eq) != eq)
                        return parser_fail(p);
                    p->p = eq + 1;
                    if (!parser_deeper(p))
                        return NULL;
                    token_next(p);
                    from = sum_parse(p);
                    p->depth--;
                    if (!from || !char_take(p, '}'))
                        return parser_fail(p);
                } else if (opaque && op == 1) {
                    token_next(p);
                    from = argument_parse(p, true);
                } else {
                    limit = node_named(p->m, K_TEXT, a, (size_t)(b - a));
                    p->p = b + 1;
                    token_next(p);
                }
            } else {
                token_next(p);
                from = argument_parse(p, true);
            }
        } else if (is_char(p, '^')) {
            token_take(p);
            to = argument_parse(p, true);
        }
    }
    if (p->failed)
        return NULL;
    struct math_node *x, *target;
    int side;
    if (opaque && op == 1 && from && to) {
        struct math_node *integral = integral_parse(p, from, to);
        if (integral || p->failed)
            return integral;
    }
    if (opaque && op == 2 && limit && approach_take(p, limit, &x, &target, &side)) {
        if (!(body = body_parse(p, x)))
            return NULL;
        size_t used = p->m->used;
        struct math_node *value = sum_goes_on(p) ? NULL : limit_of(p->m, body, x, target, side);
        if (!value)
            math_give_back(p->m, used);
        return value ? value : node_op(node_new(p->m, K_OPAQUE, 2, body, limit), op);
    }
    if (!parser_deeper(p))
        return NULL;
    bool named = index_len && p->n_index < MATH_BIND_MAX;
    if (named)
        p->index[p->n_index++] = *index;
    body = product_parse(p);
    p->n_index -= named;
    p->depth--;
    if (!body)
        return parser_fail(p);
    if (!opaque && from && to && index_len) {
        struct math_node *a = node_new(p->m, (enum node_kind)op, 3, body, from, to);
        if (a) {
            a->s = index;
            a->len = (int32_t)index_len;
        }
        return a && node_is(to, K_CONST) && to->op == CONST_INF ? endless_node(p->m, a, eval_rational) : a;
    }
    struct math_node *child[4];
    int n = 0;
    child[n++] = body;
    if (from)
        child[n++] = from;
    if (to)
        child[n++] = to;
    if (limit)
        child[n++] = limit;
    return node_op(node_list(p->m, K_OPAQUE, child, n), opaque ? op : op + 32);
}

/* The content of a font command: digits with spaces between them are one number. */
static struct math_node *font_parse(struct parser *p)
{
    const char *q = space_skip(p->t.end, p->end), *from = NULL, *to = NULL;
    bool digits = q < p->end && *q == '{' && group_find(q, p->end, &from, &to) && to > from;
    for (const char *r = from; digits && r < to; r++)
        digits = is_digit(*r) || *r == ' ';
    char *joined = digits ? math_take(p->m, (size_t)(to - from)) : NULL;
    size_t n = 0;
    for (const char *r = from; joined && r < to; r++)
        if (*r != ' ')
            joined[n++] = *r;
    token_take(p);
    if (n == 0)
        return argument_parse(p, true);
    p->p = to + 1;
    token_next(p);
    struct math_node *a = sub_parse(p, joined, n);
    return a ? a : parser_fail(p);
}

/* The argument of a bar, dot or tilde: a letter becomes another symbol, several capitals are a segment's name, other
 * letters are a number's digits, and an expression is conjugated. */
static struct math_node *mark_parse(struct parser *p)
{
    const char *mark = p->t.cmd->name, *q = space_skip(p->t.end, p->end), *from = q, *to = q, *after;
    bool bar = starts(mark, mark + strlen(mark), "bar") || mark[0] == 'o';
    if (q < p->end && *q == '{' && group_find(q, p->end, &from, &to)) {
        after = to + 1;
        from = space_skip(from, to);
        while (to > from && to[-1] == ' ')
            to--;
    } else {
        from = q;
        to = q + (q < p->end);
        while (to > from && *q == '\\' && to < p->end && is_letter(*to))
            to++;
        after = to;
    }
    bool command = to - from > 1 && *from == '\\';
    const struct math_command *sym = command ? math_command_find(p->m, from + 1, (size_t)(to - from - 1)) : NULL;
    bool capitals = to > from, letters = to > from, digits = true;
    for (const char *r = from; r < to; r++) {
        capitals &= *r >= 'A' && *r <= 'Z';
        letters &= is_letter(*r) || is_digit(*r);
        digits &= is_digit(*r);
    }
    if ((letters && !digits && !(capitals && to - from > 1)) || (sym && sym->class == C_SYM)) {
        size_t n = (size_t)(to - from), k = bar ? 3 : strlen(mark);
        char *name = math_take(p->m, n + k + 1);
        if (!name)
            return parser_fail(p);
        memcpy(name, from, n);
        name[n] = '^';    // no name in a text contains one
        memcpy(name + n + 1, bar ? "bar" : mark, k);
        p->p = after;
        token_next(p);
        return symbol_node(p, name, n + k + 1);
    }
    token_take(p);
    struct math_node *a = argument_parse(p, true);
    return a && bar && !digits && !capitals ? node_op(node_new(p->m, K_FUNC, 1, a), FN_CONJ) : a;
}

/* What an accent marks: it says nothing beside a letter, but \\vec{AB} goes from A to B, and is neither BA nor the segment. */
static struct math_node *accent_parse(struct parser *p)
{
    bool arrow = p->t.cmd->arg == '>';
    const char *q = space_skip(p->t.end, p->end), *from, *to;
    if (arrow && q < p->end && *q == '{' && group_find(q, p->end, &from, &to)) {
        const char *a = space_skip(from, to), *end = to;
        while (end > a && end[-1] == ' ')
            end--;
        if (end - a == 2 && a[0] >= 'A' && a[0] <= 'Z' && a[1] >= 'A' && a[1] <= 'Z') {
            char *name = math_take(p->m, 6);
            if (!name)
                return parser_fail(p);
            memcpy(name, (char[]){ a[0], a[1], '^', 'v', 'e', 'c' }, 6);    // no name in a text contains ^
            p->p = to + 1;
            token_next(p);
            return symbol_node(p, name, 6);
        }
    }
    token_take(p);
    return argument_parse(p, true);
}

static bool is_d(const struct math_node *a)    // d or \partial
{
    return node_is(a, K_SYM) && ((a->len == 1 && a->s[0] == 'd') || (a->len == 7 && memcmp(a->s, "partial", 7) == 0));
}

static bool is_differential(const struct math_node *a)    // dx
{
    return node_is(a, K_MUL) && a->n == 2 && is_d(a->child[0]) && node_is(a->child[1], K_SYM);
}

/* d^2 over dx^2: how often to differentiate, and the variable; 0: it is not of this form. */
static int64_t derivative_order(const struct math_node *a, const struct math_node *b, const struct math_node **x)
{
    bool power = node_is(a, K_POW);
    const struct math_node *d = power ? a->child[0] : a, *dx = node_is(b, K_MUL) && b->n == 2 && is_d(b->child[0]) ? b->child[1] : NULL;
    if (!is_d(d) || !dx)
        return 0;
    const struct math_node *of = power && node_is(dx, K_POW) ? dx->child[0] : dx;
    *x = of;
    bool same = !power
                || (node_is(dx, K_POW) && node_is(dx->child[1], K_NUM) && node_is(a->child[1], K_NUM)
                    && dx->child[1]->small == a->child[1]->small);
    int64_t order = power && same ? a->child[1]->small : 1;
    return node_is(of, K_SYM) && same && order >= 1 && order <= 8 ? order : 0;
}

/* a over b; dy/dx is a name, and d/dx differentiates what follows: neither is a quotient. */
static struct math_node *fraction_node(struct parser *p, struct math_node *a, struct math_node *b)
{
    const struct math_node *x;
    int64_t order = derivative_order(a, b, &x);
    if (order > 0 && starts_factor(p)) {
        struct math_node *body = body_parse(p, x), *out = body;
        size_t used = p->m->used;
        if (!body)
            return NULL;
        for (int64_t i = 0; i < order && out; i++)
            out = sum_goes_on(p) ? NULL : derivative_of(p->m, out, x);
        if (!out)
            math_give_back(p->m, used);
        return out ? out : node_op(node_new(p->m, K_OPAQUE, 3, body, b->child[1], node_int(p->m, order)), OPAQUE_DERIVATIVE);
    }
    if (!is_differential(b) || !is_differential(a))
        return node_new(p->m, K_DIV, 2, a, b);
    size_t ny = (size_t)a->child[1]->len, nx = (size_t)b->child[1]->len;
    char *name = math_take(p->m, ny + nx + 3);
    if (!name)
        return parser_fail(p);
    name[0] = 'd';
    memcpy(name + 1, a->child[1]->s, ny);
    memcpy(name + 1 + ny, "/d", 2);
    memcpy(name + 3 + ny, b->child[1]->s, nx);
    return node_named(p->m, K_SYM, name, ny + nx + 3);
}

/* After the sign of whole or natural numbers: Z^+, N_{>0} and the like, taken, are the positive ones, N_0 those from 0 on. */
static int signed_set(struct parser *p, int set)
{
    static const struct {
        const char *mark;
        char set;
    } marks[] = { { "+", 'p' },        { "*", 'p' },         { "{+}", 'p' },     { "{*}", 'p' },      { "{>0}", 'p' },
                  { "{\\ge 0}", 'w' }, { "{\\geq 0}", 'w' }, { "{\\ast}", 'p' }, { "{\\ge 1}", 'p' }, { "{\\geq 1}", 'p' },
                  { "{\\ge0}", 'w' },  { "0", 'w' },         { "{0}", 'w' } };
    if ((set != 'Z' && set != 'N') || !(is_char(p, '^') || is_char(p, '_')))
        return set;
    for (size_t i = 0; i < ARRAY_SIZE(marks); i++)
        if (starts(p->t.end, p->end, marks[i].mark) && !(marks[i].mark[0] == '0' && (set == 'Z' || is_char(p, '^')))) {
            p->p = p->t.end + strlen(marks[i].mark);
            token_next(p);
            return marks[i].set;
        }
    return set;
}

/* \numeral{1A}{16}, as the lexer writes 1A_{16}. */
static struct math_node *numeral_parse(struct parser *p)
{
    const char *d0, *d1, *b0, *b1;
    if (!group_find(p->t.end, p->end, &d0, &d1) || !group_find(d1 + 1, p->end, &b0, &b1) || b1 - b0 > 2 || d1 == d0 || b1 == b0)
        return parser_fail(p);
    struct math_node *a = node_named(p->m, K_NUM, d0, (size_t)(d1 - d0));
    if (!a)
        return parser_fail(p);
    for (const char *q = b0; q < b1; q++)
        a->base = a->base * 10 + digit_value(*q);
    for (const char *q = d0; q < d1; q++)
        if (digit_value(*q) >= a->base || a->base > 36)
            return parser_fail(p);
    while (a->len > 1 && *a->s == '0')
        a->s++, a->len--;
    p->p = b1 + 1;
    token_next(p);
    return a;
}

struct math_node *math_command_parse(struct parser *p)
{
    struct math_token t = p->t;
    struct math_node *a, *b;
    if (!t.cmd) {    // an unknown command is a symbol of that name
        token_take(p);
        return symbol_node(p, t.s, (size_t)t.len);
    }
    switch ((enum cmd_class)t.cmd->class) {
    case C_SYM: token_take(p); return symbol_node(p, t.cmd->name, strlen(t.cmd->name));
    case C_CONST: token_take(p); return node_const(p->m, (enum math_const)t.cmd->arg);
    case C_FRAC:
        token_take(p);
        a = argument_parse(p, true);
        b = a ? argument_parse(p, true) : NULL;
        return b ? fraction_node(p, a, b) : parser_fail(p);
    case C_BINOM:
        token_take(p);
        a = argument_parse(p, true);
        b = a ? argument_parse(p, true) : NULL;
        return b ? node_op(node_new(p->m, K_FUNC, 2, a, b), FN_BINOM) : parser_fail(p);
    case C_SQRT: {
        struct math_node *index = NULL;
        token_take(p);
        if (is_char(p, '[')) {
            if (!parser_deeper(p))
                return NULL;
            token_take(p);
            index = sum_parse(p);
            p->depth--;
            if (!index || !char_take(p, ']'))
                return parser_fail(p);
        }
        a = argument_parse(p, true);
        return a ? node_new(p->m, K_ROOT, 2, a, index ? index : node_int(p->m, 2)) : parser_fail(p);
    }
    case C_NUMERAL: return numeral_parse(p);
    case C_FUNC: return func_parse(p, t.cmd->arg);
    case C_FONT: return font_parse(p);
    case C_ACCENT: return accent_parse(p);
    case C_BOX: token_take(p); return argument_parse(p, true);
    case C_MARK: return mark_parse(p);
    case C_BB: {
        int set = t.cmd->arg;
        token_take(p);
        if (!set) {
            const char *q = is_char(p, '{') ? space_skip(p->t.end, p->end) : p->t.s;
            if (q >= p->end || !strchr("RZNQCP", *q))
                return argument_parse(p, true);
            set = *q;
            bool brace = is_char(p, '{');
            p->p = q + 1;
            token_next(p);
            if (brace && !char_take(p, '}'))
                return parser_fail(p);
        }
        return node_op(node_new(p->m, K_NAMED_SET, 0), signed_set(p, set));
    }
    case C_EMPTYSET: token_take(p); return node_op(node_new(p->m, K_NAMED_SET, 0), '0');
    case C_OPEN: return bracket_parse(p, (char)t.cmd->arg);
    case C_BEGIN: return environment_parse(p);
    case C_SUM: return big_parse(p, false, t.cmd->arg);
    case C_OPAQUE: return big_parse(p, true, t.cmd->arg);
    default: return parser_fail(p);
    }
}
