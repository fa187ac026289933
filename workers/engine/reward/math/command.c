/* command.c - LaTeX commands with their arguments: fractions, roots, matrices, sums and integrals, fonts, marks */
#include "workers/engine/reward/math/parser.h"

#define OPAQUE_DERIVATIVE 16    // differs from the ops of the table's C_OPAQUE commands

static struct node *environment_parse(struct parser *p)
{
    const char *q = space_skip(p->t.end, p->end), *from, *to;
    if (q >= p->end || *q != '{' || !group_find(q, p->end, &from, &to))
        return parser_fail(p);
    size_t len = (size_t)(to - from);
    p->p = to + 1;
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
    struct node *cell[CELLS_MAX];
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
    struct node *a = node_list(p->m, K_MATRIX, cell, n);
    if (!a)
        return parser_fail(p);
    a->scale = row;
    return det ? node_op(node_new(p->m, K_FUNC, 1, a), FN_DET) : a;
}

static struct node *big_parse(struct parser *p, bool opaque, int op)
{
    struct node *from = NULL, *to = NULL, *body, *limit = NULL;
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
    if (p->failed || !parser_deeper(p))
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
        struct node *a = node_new(p->m, (enum node_kind)op, 3, body, from, to);
        if (a) {
            a->s = index;
            a->len = (int32_t)index_len;
        }
        return a;
    }
    struct node *child[4];
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
static struct node *font_parse(struct parser *p)
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
    struct node *a = sub_parse(p, joined, n);
    return a ? a : parser_fail(p);
}

/* The argument of a bar, dot or tilde: a letter becomes another symbol, several capitals are a segment's name, other
 * letters are a number's digits, and an expression is conjugated. */
static struct node *mark_parse(struct parser *p)
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
    const struct command *sym = command ? math_command_find(p->m, from + 1, (size_t)(to - from - 1)) : NULL;
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
    struct node *a = argument_parse(p, true);
    return a && bar && !digits && !capitals ? node_op(node_new(p->m, K_FUNC, 1, a), FN_CONJ) : a;
}

static bool is_differential(const struct node *a)    // dx
{
    return node_is(a, K_MUL) && a->n == 2 && node_is(a->child[0], K_SYM) && a->child[0]->len == 1 && a->child[0]->s[0] == 'd'
           && node_is(a->child[1], K_SYM);
}

/* a over b; dy/dx is a name, and d/dx of what follows is not evaluated: neither is a quotient. */
static struct node *fraction_node(struct parser *p, struct node *a, struct node *b)
{
    bool d = node_is(a, K_SYM) && a->len == 1 && a->s[0] == 'd', dy = is_differential(a);
    if (!is_differential(b) || !(d || dy))
        return node_new(p->m, K_DIV, 2, a, b);
    if (d) {
        if (!starts_factor(p))
            return node_new(p->m, K_DIV, 2, a, b);
        struct node *body = parser_deeper(p) ? product_parse(p) : NULL;
        p->depth -= body != NULL;
        return body ? node_op(node_new(p->m, K_OPAQUE, 2, body, b->child[1]), OPAQUE_DERIVATIVE) : parser_fail(p);
    }
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

struct node *math_command_parse(struct parser *p)
{
    struct token t = p->t;
    struct node *a, *b;
    if (!t.cmd) {    // an unknown command is a symbol of that name
        token_take(p);
        return symbol_node(p, t.s, (size_t)t.len);
    }
    switch ((enum cmd_class)t.cmd->class) {
    case C_SYM: token_take(p); return symbol_node(p, t.cmd->name, strlen(t.cmd->name));
    case C_CONST: token_take(p); return const_node(p, (enum math_const)t.cmd->arg);
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
        struct node *index = NULL;
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
    case C_FUNC: return func_parse(p, t.cmd->arg);
    case C_FONT: return font_parse(p);
    case C_ACCENT:
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
        return node_op(node_new(p->m, K_NAMED_SET, 0), set);
    }
    case C_EMPTYSET: token_take(p); return node_op(node_new(p->m, K_NAMED_SET, 0), '0');
    case C_OPEN: return bracket_parse(p, (char)t.cmd->arg);
    case C_BEGIN: return environment_parse(p);
    case C_SUM: return big_parse(p, false, t.cmd->arg);
    case C_OPAQUE: return big_parse(p, true, t.cmd->arg);
    default: return parser_fail(p);
    }
}
