/* sets.c - sets of real numbers as pieces of the line: intervals, unions, inequalities in one unknown */
#include "workers/engine/reward/math/compare.h"
#include <string.h>

/* -1, 0, 1; -2: not known. inf: the infinity that a NULL means. */
static int order(struct math *m, struct math_node *a, int a_inf, struct math_node *b, int b_inf)
{
    if (!a || !b)
        return (a ? 0 : a_inf) < (b ? 0 : b_inf) ? -1 : (a ? 0 : a_inf) > (b ? 0 : b_inf) ? 1 : 0;
    struct math_node *d = node_minus(m, a, b);
    return d ? scalar_sign(m, d) : -2;
}

static bool pieces_sort(struct math *m, struct pieces *s)
{
    for (int i = 1; i < s->n; i++)
        for (int j = i; j > 0; j--) {
            int o = order(m, s->p[j - 1].lo, -1, s->p[j].lo, -1);
            if (o == -2)
                return false;
            if (o < 0 || (o == 0 && s->p[j - 1].lo_open <= s->p[j].lo_open))
                break;
            struct line_piece t = s->p[j];
            s->p[j] = s->p[j - 1];
            s->p[j - 1] = t;
        }
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        struct line_piece q = s->p[i];
        int o = order(m, q.lo, -1, q.hi, 1);
        if (o == -2)
            return false;
        if (o > 0 || (o == 0 && q.lo && (q.lo_open || q.hi_open)))
            continue;    // empty
        if (n > 0) {
            struct line_piece *l = &s->p[n - 1];
            o = order(m, q.lo, -1, l->hi, 1);
            if (o == -2)
                return false;
            if (o < 0 || (o == 0 && !(q.lo_open && l->hi_open))) {    // they touch: one piece
                o = order(m, q.hi, 1, l->hi, 1);
                if (o == -2)
                    return false;
                if (o > 0) {
                    l->hi = q.hi;
                    l->hi_open = q.hi_open;
                } else if (o == 0) {
                    l->hi_open &= q.hi_open;
                }
                continue;
            }
        }
        s->p[n++] = q;
    }
    s->n = n;
    return true;
}

static bool complement(struct pieces *s)
{
    struct pieces c = { 0 };
    struct line_piece gap = { 0 };
    bool open_end = true;    // up to plus infinity
    gap.lo_open = true;
    for (int i = 0; i < s->n; i++) {
        gap.hi = s->p[i].lo;
        gap.hi_open = !s->p[i].lo_open;
        if (s->p[i].lo) {
            if (c.n == PIECES_MAX)
                return false;
            c.p[c.n++] = gap;
        }
        gap = (struct line_piece){ .lo = s->p[i].hi, .lo_open = !s->p[i].hi_open };
        open_end = s->p[i].hi != NULL;
    }
    if (open_end) {
        if (c.n == PIECES_MAX)
            return false;
        gap.hi = NULL;
        gap.hi_open = true;
        c.p[c.n++] = gap;
    }
    *s = c;
    return true;
}

bool relation_inequality(const struct math_node *a)
{
    return a->kind == K_REL && a->s[0] != REL_EQ && a->s[0] != REL_APPROX && a->s[0] != REL_CONG && a->s[0] != REL_MOD;
}

bool unknown_same(const struct math_node *a, const struct math_node *b)
{
    a = a->kind == K_FUNC ? a->child[0] : a;
    b = b->kind == K_FUNC ? b->child[0] : b;
    return a->kind == b->kind && name_same(a, b);
}

bool pieces_join(struct math *m, struct pieces *s, const struct pieces *t, enum node_kind how)
{
    struct pieces u = *t;
    bool meet = how != K_UNION;    // a and b = not (not a or not b); a minus b = not (not a or b)
    if (meet && !complement(s))
        return false;
    if (how == K_INTER && !complement(&u))
        return false;
    if (s->n + u.n > PIECES_MAX)
        return false;
    memcpy(s->p + s->n, u.p, (size_t)u.n * sizeof u.p[0]);
    s->n += u.n;
    return pieces_sort(m, s) && (!meet || complement(s));
}

const struct math_node *unknown_find(const struct math_node *a, const struct math_node *found, bool *many)
{
    if (!(a->flags & (HAS_SYM | HAS_OPAQUE)))
        return found;
    bool absolute = a->kind == K_FUNC && a->op == FN_ABS && a->child[0]->kind == K_SYM;
    if (a->kind == K_SYM || a->kind == K_APP || absolute) {
        if (found && (found->kind != a->kind || (absolute ? !name_same(found->child[0], a->child[0]) : !name_same(found, a))))
            *many = true;
        return a;
    }
    for (int i = 0; i < a->n; i++)
        found = unknown_find(a->child[i], found, many);
    return found;
}

static struct math_node *put(struct math *m, struct math_node *a, const struct math_node *unknown, struct math_node *value)
{
    if (!(a->flags & (HAS_SYM | HAS_OPAQUE)))
        return a;
    bool hit = a->kind == unknown->kind
               && (a->kind == K_FUNC ? a->op == FN_ABS && a->child[0]->kind == K_SYM && name_same(a->child[0], unknown->child[0])
                                     : (a->kind == K_SYM || a->kind == K_APP) && name_same(a, unknown));
    if (hit)
        return value;
    struct math_node *child[ELEMENTS_MAX];
    if (a->n == 0 || a->n > ELEMENTS_MAX)
        return NULL;
    for (int i = 0; i < a->n; i++)
        if (!(child[i] = put(m, a->child[i], unknown, value)))
            return NULL;
    struct math_node *c = node_like(m, a, (enum node_kind)a->kind, child);
    return c;
}

/* The solutions of left op right, linear in its one unknown, as pieces. */
static bool relation_solve(struct math *m, struct math_node *left, struct math_node *right, int op, const struct math_node *unknown,
                           struct pieces *s)
{
    int inf;
    const char *rule;
    bool left_inf = node_infinite(left, &inf);
    if (left_inf || node_infinite(right, &inf)) {    // -infinity < x holds always, x > infinity never
        bool less = op == REL_LT || op == REL_LE;
        if (!less && op != REL_GT && op != REL_GE)
            return false;
        *s = (struct pieces){ .n = (less == left_inf) == (inf < 0), .p = { { .lo_open = true, .hi_open = true } } };
        return true;
    }
    struct math_node *d = node_minus(m, left, right);    // d = A u + B
    if (!d)
        return false;
    struct math_node *at0 = put(m, d, unknown, node_int(m, 0)), *at1 = put(m, d, unknown, node_int(m, 1)),
                     *at7 = put(m, d, unknown, node_int(m, 7));
    if (!at0 || !at1 || !at7)
        return false;
    struct math_node *slope = node_minus(m, at1, at0);
    struct math_node *line = slope ? node_new(m, K_ADD, 2, at0, node_new(m, K_MUL, 2, node_int(m, 7), slope)) : NULL;
    if (!line || scalar_equal(m, line, at7, 0, &rule) != TRI_YES)
        return false;
    struct math_node *at19 = put(m, d, unknown, node_new(m, K_DIV, 2, node_int(m, 19), node_int(m, 8)));
    line = node_new(m, K_ADD, 2, at0, node_new(m, K_MUL, 2, node_new(m, K_DIV, 2, node_int(m, 19), node_int(m, 8)), slope));
    if (!line || !at19 || scalar_equal(m, line, at19, 0, &rule) != TRI_YES)
        return false;
    int sign = scalar_sign(m, slope);
    if (sign == 0 || sign == -2)
        return false;
    struct math_node *zero = node_new(m, K_NEG, 1, node_new(m, K_DIV, 2, at0, slope));
    if (!zero)
        return false;
    bool less = op == REL_LT || op == REL_LE, open = op == REL_LT || op == REL_GT;
    if (op == REL_NE) {
        *s = (struct pieces){ .n = 2,
                              .p = { { .hi = zero, .lo_open = true, .hi_open = true }, { .lo = zero, .lo_open = true, .hi_open = true } } };
        return true;
    }
    if (op == REL_EQ) {
        *s = (struct pieces){ .n = 1, .p = { { .lo = zero, .hi = zero } } };
        return true;
    }
    if (op != REL_LT && op != REL_LE && op != REL_GT && op != REL_GE)
        return false;
    s->n = 1;
    s->p[0] = less == (sign > 0) ? (struct line_piece){ .hi = zero, .lo_open = true, .hi_open = open }
                                 : (struct line_piece){ .lo = zero, .lo_open = open, .hi_open = true };
    return true;
}

bool relation_pieces(struct math *m, struct math_node *a, struct pieces *s, const struct math_node **unknown)
{
    bool many = false;
    const struct math_node *u = NULL;
    for (int i = 0; i < a->n; i++) {
        if (a->child[i]->flags & HAS_SET && !(a->len == 1 && (a->s[0] == REL_IN || a->s[0] == REL_NOTIN)))
            return false;
        u = unknown_find(a->child[i], u, &many);
    }
    if (!u || many)
        return false;
    *unknown = u;
    if (a->len == 1 && (a->s[0] == REL_IN || a->s[0] == REL_NOTIN))
        return node_names(a->child[0]) && pieces_of(m, a->child[1], s, 8) && (a->s[0] == REL_IN || complement(s));
    *s = (struct pieces){ .n = 1, .p = { { .lo_open = true, .hi_open = true } } };
    for (int i = 0; i < a->len; i++) {
        struct pieces one;
        if (!relation_solve(m, a->child[i], a->child[i + 1], a->s[i], u, &one) || !pieces_join(m, s, &one, K_INTER))
            return false;
    }
    if (u->kind == K_FUNC) {    // |x| in s: x in s or -x in s, and s at least 0
        struct pieces zero = { .n = 1, .p = { { .lo = node_int(m, 0), .hi_open = true } } }, mirror;
        if (!zero.p[0].lo || !pieces_join(m, s, &zero, K_INTER))
            return false;
        mirror.n = s->n;
        for (int i = 0; i < s->n; i++)
            mirror.p[i] = (struct line_piece){ .lo = s->p[i].hi ? node_new(m, K_NEG, 1, s->p[i].hi) : NULL,
                                               .hi = s->p[i].lo ? node_new(m, K_NEG, 1, s->p[i].lo) : NULL,
                                               .lo_open = s->p[i].hi_open,
                                               .hi_open = s->p[i].lo_open };
        return pieces_sort(m, &mirror) && pieces_join(m, s, &mirror, K_UNION);
    }
    return true;
}

/* { x | x > 2 }, { x in S | x > 2 }: only the unknown itself may be before the bar. */
static bool builder_pieces(struct math *m, struct math_node *a, struct pieces *s, int depth)
{
    struct math_node *head = a->child[0], *name = head->kind == K_REL && head->len == 1 && head->s[0] == REL_IN ? head->child[0] : head;
    bool many = false;
    const struct math_node *u = unknown_find(a->child[1], NULL, &many);
    struct pieces in;
    if (name->kind != K_SYM || !u || many || !name_same(u->kind == K_FUNC ? u->child[0] : u, name) || u->kind == K_APP)
        return false;
    return pieces_of(m, a->child[1], s, depth - 1)
           && (head == name || (pieces_of(m, head->child[1], &in, depth - 1) && pieces_join(m, s, &in, K_INTER)));
}

bool pieces_of(struct math *m, struct math_node *a, struct pieces *s, int depth)
{
    struct pieces t;
    const struct math_node *u, *u2;
    int inf;
    if (depth <= 0 || m->steps < 0)
        return false;
    s->n = 0;
    switch ((enum node_kind)a->kind) {
    case K_NAMED_SET:
        if (a->op == 'R')
            *s = (struct pieces){ .n = 1, .p = { { .lo_open = true, .hi_open = true } } };
        return a->op == 'R' || a->op == '0';
    case K_TUPLE:
        if (a->n != 2 || (a->child[0]->flags | a->child[1]->flags) & HAS_SET)
            return false;
        s->n = 1;
        s->p[0] = (struct line_piece){ .lo = a->child[0], .hi = a->child[1], .lo_open = !(a->op & 1), .hi_open = !(a->op & 2) };
        if (node_infinite(a->child[0], &inf)) {
            if (inf > 0)
                return false;
            s->p[0].lo = NULL;
            s->p[0].lo_open = true;
        }
        if (node_infinite(a->child[1], &inf)) {
            if (inf < 0)
                return false;
            s->p[0].hi = NULL;
            s->p[0].hi_open = true;
        }
        return order(m, s->p[0].lo, -1, s->p[0].hi, 1) <= 0 && order(m, s->p[0].lo, -1, s->p[0].hi, 1) != -2;
    case K_UNION:
    case K_INTER:
    case K_MINUS:
        return pieces_of(m, a->child[0], s, depth - 1) && pieces_of(m, a->child[1], &t, depth - 1)
               && pieces_join(m, s, &t, (enum node_kind)a->kind);
    case K_BUILDER: return builder_pieces(m, a, s, depth);
    case K_REL: return relation_pieces(m, a, s, &u);
    case K_LIST: {             // x < 1 or x > 3; x > 1, x < 3: with a comma the union when disjoint, otherwise the intersection
        if (a->base == 'm')    // x > 1 and y < 2 or z < 3: which comes first?
            return false;
        if (a->n < 2 || !relation_inequality(a->child[0]) || !relation_pieces(m, a->child[0], s, &u))
            return false;
        for (int i = 1; i < a->n; i++) {
            if (!relation_inequality(a->child[i]) || !relation_pieces(m, a->child[i], &t, &u2) || !unknown_same(u, u2))
                return false;
            struct pieces common = *s;
            if (!pieces_join(m, &common, &t, K_INTER))
                return false;
            if (a->base == 'a' || (a->base == 0 && common.n > 0))
                *s = common;
            else if (!pieces_join(m, s, &t, K_UNION))
                return false;
        }
        return true;
    }
    case K_SET:
        for (int i = 0; i < a->n; i++) {
            if (s->n == PIECES_MAX || (a->child[i]->flags & (HAS_SET | HAS_MATRIX)))
                return false;
            s->p[s->n++] = (struct line_piece){ .lo = a->child[i], .hi = a->child[i] };
        }
        return pieces_sort(m, s);
    case K_NUM:
    case K_CONST:
    case K_SYM:
    case K_TEXT:
    case K_ADD:
    case K_MUL:
    case K_DIV:
    case K_POW:
    case K_NEG:
    case K_ROOT:
    case K_LOG:
    case K_FUNC:
    case K_APP:
    case K_SUM:
    case K_PROD:
    case K_OPAQUE:
    case K_DEG:
    case K_PCT:
    case K_PM:
    case K_RATIO:
    case K_JUXT:
    case K_UNIT:
    case K_CASES:
    case K_MATRIX: break;
    }
    return false;
}

static enum tri end_equal(struct math *m, struct math_node *a, struct math_node *b, const char **rule)
{
    if (!a || !b)
        return a == b ? TRI_YES : TRI_NO;
    return scalar_equal(m, a, b, m->config.decimals, rule);
}

enum tri pieces_equal(struct math *m, const struct pieces *a, const struct pieces *b, const char **rule)
{
    enum tri all = TRI_YES;
    *rule = "set";
    if (a->n != b->n)
        return TRI_NO;
    for (int i = 0; i < a->n && all != TRI_NO; i++) {
        if (a->p[i].lo_open != b->p[i].lo_open || a->p[i].hi_open != b->p[i].hi_open)
            return TRI_NO;
        enum tri lo = end_equal(m, a->p[i].lo, b->p[i].lo, rule);
        enum tri hi = lo == TRI_NO ? TRI_NO : end_equal(m, a->p[i].hi, b->p[i].hi, rule);
        if (lo == TRI_NO || hi == TRI_NO)
            all = TRI_NO;
        else if (lo == TRI_UNKNOWN || hi == TRI_UNKNOWN)
            all = TRI_UNKNOWN;
    }
    *rule = "set";
    return all;
}
