/* compare.c - what it means for two answers to be the same: lists, tuples, sets, relations, matrices, and scalars at
 * the end
 *
 * The relation is symmetric. Sets are compared without order; so are lists, but each element counts as often as it
 * stands there; a tuple or a list of named values against a bare list in written order. "x = 5" is 5 for a side that
 * names nothing; an equation between two numbers is either of them when it is true and nothing when it is false; an
 * inequality in one unknown is its set of solutions; letters bound to a set count by their places; a percentage stands
 * for its number and for a hundredth of it; a unit counts only when both sides have known ones. */
#include <string.h>
#include "workers/engine/reward/math/node.h"

#define ELEMENTS_MAX 256

static enum tri compare(struct math *m, struct node *a, struct node *b, const char **rule, int depth);
static enum tri ordered(struct math *m, struct node **a, struct node **b, int n, const char **rule, int depth);

/* The tree with every plus-minus decided: sign +1 takes the upper signs. */
static struct node *decide_sign(struct math *m, struct node *a, int sign)
{
    if (!(a->flags & HAS_PM))
        return a;
    struct node *child[ELEMENTS_MAX * 2];
    if (a->n > (int)ARRAY_SIZE(child))
        return NULL;
    for (int i = 0; i < a->n; i++)
        if (!(child[i] = decide_sign(m, a->child[i], sign)))
            return NULL;
    if (a->kind == K_PM)
        return a->op * sign > 0 ? child[0] : node_new(m, K_NEG, 1, child[0]);
    struct node *c = node_like(m, a, (enum node_kind)a->kind, child);
    if (c)
        c->flags &= (uint16_t)~HAS_PM;
    return c;
}

static struct node *substitute(struct math *m, struct node *a, const struct node *name, struct node *with)
{
    if (a->kind == K_SYM && name_same(a, name))
        return with;
    struct node *child[ELEMENTS_MAX * 2];
    if (a->n == 0 || !(a->flags & HAS_SYM))
        return a;
    if (a->n > (int)ARRAY_SIZE(child))
        return NULL;
    bool same = true;
    for (int i = 0; i < a->n; i++) {
        if (!(child[i] = substitute(m, a->child[i], name, with)))
            return NULL;
        same &= child[i] == a->child[i];
    }
    return same ? a : node_like(m, a, (enum node_kind)a->kind, child);
}

static bool is_list(const struct node *a)
{
    return a->kind == K_LIST || a->kind == K_SET;
}

/* A left side that only names what is on the right: a symbol, a product or ratio of such, f(x), |AB|, a tuple of
 * names. */
static bool is_name(const struct node *a)
{
    switch ((enum node_kind)a->kind) {
    case K_SYM: case K_TEXT: case K_APP:
        return true;
    case K_CONST:
        return a->op == CONST_E || a->op == CONST_I;    // E, I and the like as names
    case K_MUL: case K_DIV: case K_RATIO: case K_TUPLE:
        for (int i = 0; i < a->n; i++)
            if (!is_name(a->child[i]))
                return false;
        return true;
    case K_FUNC:
        return (a->op == FN_ABS || a->op == FN_MAX || a->op == FN_MIN || a->op == FN_ARG) && is_name(a->child[0]);
    case K_UNIT:
        return is_name(a->child[0]);
    case K_DEG: case K_NUM: case K_ADD: case K_POW: case K_NEG: case K_ROOT: case K_LOG: case K_SUM: case K_PROD:
    case K_OPAQUE:
    case K_PCT: case K_PM: case K_LIST: case K_SET: case K_REL: case K_UNION: case K_INTER: case K_MINUS:
    case K_NAMED_SET: case K_JUXT:
    case K_BUILDER: case K_MATRIX:
        break;
    }
    return false;
}

static bool is_closed(const struct node *a)    // a number, whatever it looks like
{
    return !(a->flags & (HAS_SYM | HAS_OPAQUE | HAS_TEXT | HAS_SET));
}

static enum tri scalar_compare(struct math *m, struct node *a, struct node *b, const char **rule, int depth);

static struct node *named_part(struct node *a)    // what is said to be equal
{
    return a->kind == K_UNIT ? a->child[0] : a;
}

/* A chain of equalities that two of its neighbours, both numbers, refute: 3 + 2 = 4, \sqrt{2} \approx 1.7. Not one that
 * begins with a name: x = 3 + 2 = 4 gives x the value 4, as Math-Verify has it. */
static bool chain_false(struct math *m, struct node *a)
{
    if (is_name(named_part(a->child[0])))
        return false;
    for (int i = 0; i < a->len; i++) {
        struct node *l = a->child[i], *r = a->child[i + 1];
        const char *rule;
        if ((a->s[i] != REL_EQ && a->s[i] != REL_APPROX) || !is_closed(l) || !is_closed(r) ||
            ((l->flags | r->flags) & (HAS_MATRIX | HAS_PM)))
            continue;
        if (scalar_compare(m, l, r, &rule, 0) == TRI_NO && !scalar_near(m, l, r))
            return true;
    }
    return false;
}

bool relation_false(struct math *m, struct node *a)
{
    if (a->kind == K_REL)
        return chain_false(m, a);
    bool any = false;
    if (a->kind == K_LIST || a->kind == K_SET)
        for (int i = 0; i < a->n && !any; i++)
            any = relation_false(m, a->child[i]);
    return any;
}

/* A chain of equalities in its shortest form: first = last, what follows an approximation sign dropped. Others
 * unchanged. */
static struct node *shorten(struct math *m, struct node *a)
{
    int last = 0;
    for (int i = 0; i < a->len; i++) {
        if (a->s[i] == REL_APPROX && i > 0)
            break;
        if (a->s[i] != REL_EQ && a->s[i] != REL_APPROX)
            return a;
        last = i + 1;
    }
    if (a->len == 1 && a->s[0] == REL_EQ)
        return a;
    if (last == 1 && a->s[0] == REL_APPROX && !is_name(a->child[0]))
        return a->child[0];
    struct node *b = node_new(m, K_REL, 2, a->child[0], a->child[last]);
    if (b) {
        static const char eq = REL_EQ;
        b->s = &eq;
        b->len = 1;
    }
    return b;
}

bool relation_identity(struct math *m, struct node *a)
{
    const char *rule;
    if (a->kind != K_REL || !(a = shorten(m, a)) || a->kind != K_REL || a->len != 1 || a->s[0] != REL_EQ)
        return false;
    struct node *l = a->child[0], *r = a->child[1];
    return !((l->flags | r->flags) & (HAS_SET | HAS_MATRIX | HAS_TEXT | HAS_PM)) && !(is_closed(l) && is_closed(r)) &&
           scalar_equal(m, l, r, 0, &rule) == TRI_YES;
}

static bool occurs(const struct node *a, const struct node *name)    // name: a symbol, or a function's value
{
    if (a->kind == name->kind && (a->kind == K_SYM || a->kind == K_APP) && name_same(a, name))
        return true;
    for (int i = 0; i < a->n; i++)
        if ((a->flags & HAS_SYM) && occurs(a->child[i], name))
            return true;
    return false;
}

/* What an assignment (name = value, 1 = ... = value, x in S) gives; NULL: the relation is none. */
static struct node *assigned(struct node *a)
{
    if (a->kind != K_REL || a->len != 1)
        return NULL;
    if (a->s[0] == REL_IN && is_name(a->child[0]))
        return a->child[1];
    if (a->s[0] != REL_EQ)
        return NULL;
    if (occurs(a->child[1], a->child[0]))    // x = x + 1 gives x no value
        return NULL;
    if (is_name(a->child[0]))
        return a->child[1];
    if (is_closed(a->child[0]) && a->child[1]->kind == K_SYM)    // 5 = x
        return a->child[0];
    return is_closed(a->child[0]) && is_closed(a->child[1]) ? a->child[1] : NULL;
}

static bool has_function(const struct node *a)
{
    if (a->kind == K_APP || a->kind == K_FUNC || a->kind == K_LOG || a->kind == K_OPAQUE || a->kind == K_SUM ||
        a->kind == K_PROD)
        return true;
    for (int i = 0; i < a->n; i++)
        if (has_function(a->child[i]))
            return true;
    return false;
}

/* What f(9) - f(3) = 210 gives to a question for that difference. A polynomial that is 0 is an equation to be solved. */
struct node *relation_value(struct math *m, struct node *a)
{
    const unsigned open = HAS_SYM | HAS_OPAQUE | HAS_TEXT;
    if (a->kind != K_REL || !(a = shorten(m, a)) || a->kind != K_REL || a->len != 1 || a->s[0] != REL_EQ)
        return NULL;
    struct node *l = a->child[0], *r = a->child[1];
    if (!(l->flags & open) || (r->flags & open) || (scalar_sign(m, r) == 0 && !has_function(l)))
        return NULL;
    return r;
}

/* ---- sets of real numbers ---- */

#define PIECES_MAX 32
struct piece {
    struct node *lo, *hi;         // NULL: minus, plus infinity
    bool lo_open, hi_open;
};
struct pieces {
    int n;
    struct piece p[PIECES_MAX];   // ascending and apart, once pieces_sort was there
};

static struct node *minus(struct math *m, struct node *a, struct node *b)
{
    return node_new(m, K_ADD, 2, a, node_new(m, K_NEG, 1, b));
}

/* -1, 0, 1; -2: not known. inf: what a NULL stands for. */
static int order(struct math *m, struct node *a, int a_inf, struct node *b, int b_inf)
{
    if (!a || !b)
        return (a ? 0 : a_inf) < (b ? 0 : b_inf) ? -1 : (a ? 0 : a_inf) > (b ? 0 : b_inf) ? 1 : 0;
    struct node *d = minus(m, a, b);
    return d ? scalar_sign(m, d) : -2;
}

static bool is_infinite(const struct node *a, int *sign)
{
    *sign = 1;
    while (a->kind == K_NEG || (a->kind == K_UNIT)) {
        *sign = a->kind == K_NEG ? -*sign : *sign;
        a = a->child[0];
    }
    return a->kind == K_CONST && a->op == CONST_INF;
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
            struct piece t = s->p[j];
            s->p[j] = s->p[j - 1];
            s->p[j - 1] = t;
        }
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        struct piece q = s->p[i];
        int o = order(m, q.lo, -1, q.hi, 1);
        if (o == -2)
            return false;
        if (o > 0 || (o == 0 && q.lo && (q.lo_open || q.hi_open)))
            continue;    // empty
        if (n > 0) {
            struct piece *l = &s->p[n - 1];
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

static bool pieces_of(struct math *m, struct node *a, struct pieces *s, int depth);

static bool is_inequality(const struct node *a)
{
    return a->kind == K_REL && a->s[0] != REL_EQ && a->s[0] != REL_APPROX && a->s[0] != REL_CONG && a->s[0] != REL_MOD;
}

static bool same_unknown(const struct node *a, const struct node *b)
{
    a = a->kind == K_FUNC ? a->child[0] : a;
    b = b->kind == K_FUNC ? b->child[0] : b;
    return a->kind == b->kind && name_same(a, b);
}

static bool complement(struct pieces *s)
{
    struct pieces c = { 0 };
    struct piece gap = { 0 };
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
        gap = (struct piece){ .lo = s->p[i].hi, .lo_open = !s->p[i].hi_open };
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

static bool pieces_join(struct math *m, struct pieces *s, const struct pieces *t, enum node_kind how)
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

/* The one unknown of a relation: a symbol, f(x), or the absolute value of one. NULL: none or several. */
static const struct node *unknown_find(const struct node *a, const struct node *found, bool *many)
{
    if (!(a->flags & (HAS_SYM | HAS_OPAQUE)))
        return found;
    bool absolute = a->kind == K_FUNC && a->op == FN_ABS && a->child[0]->kind == K_SYM;
    if (a->kind == K_SYM || a->kind == K_APP || absolute) {
        if (found && (found->kind != a->kind || (absolute ? !name_same(found->child[0], a->child[0])
                                                 : !name_same(found, a))))
            *many = true;
        return a;
    }
    for (int i = 0; i < a->n; i++)
        found = unknown_find(a->child[i], found, many);
    return found;
}

static struct node *put(struct math *m, struct node *a, const struct node *unknown, struct node *value)
{
    if (!(a->flags & (HAS_SYM | HAS_OPAQUE)))
        return a;
    bool hit = a->kind == unknown->kind &&
               (a->kind == K_FUNC ? a->op == FN_ABS && a->child[0]->kind == K_SYM &&
                name_same(a->child[0], unknown->child[0])
                                  : (a->kind == K_SYM || a->kind == K_APP) && name_same(a, unknown));
    if (hit)
        return value;
    struct node *child[ELEMENTS_MAX];
    if (a->n == 0 || a->n > ELEMENTS_MAX)
        return NULL;
    for (int i = 0; i < a->n; i++)
        if (!(child[i] = put(m, a->child[i], unknown, value)))
            return NULL;
    struct node *c = node_like(m, a, (enum node_kind)a->kind, child);
    return c;
}

/* The solutions of left op right, linear in its one unknown, as pieces. */
static bool relation_solve(struct math *m, struct node *left, struct node *right, int op, const struct node *unknown,
                           struct pieces *s)
{
    int inf;
    const char *rule;
    bool left_inf = is_infinite(left, &inf);
    if (left_inf || is_infinite(right, &inf)) {    // -infinity < x holds always, x > infinity never
        bool less = op == REL_LT || op == REL_LE;
        if (!less && op != REL_GT && op != REL_GE)
            return false;
        *s = (struct pieces){ .n = (less == left_inf) == (inf < 0), .p = { { .lo_open = true, .hi_open = true } } };
        return true;
    }
    struct node *d = minus(m, left, right);    // d = A u + B
    if (!d)
        return false;
    struct node *at0 = put(m, d, unknown, node_int(m, 0)), *at1 = put(m, d, unknown, node_int(m, 1)),
                *at7 = put(m, d, unknown, node_int(m, 7));
    if (!at0 || !at1 || !at7)
        return false;
    struct node *slope = minus(m, at1, at0);
    struct node *line = slope ? node_new(m, K_ADD, 2, at0, node_new(m, K_MUL, 2, node_int(m, 7), slope)) : NULL;
    if (!line || scalar_equal(m, line, at7, 0, &rule) != TRI_YES)
        return false;
    struct node *at19 = put(m, d, unknown, node_new(m, K_DIV, 2, node_int(m, 19), node_int(m, 8)));
    line = node_new(m, K_ADD, 2, at0, node_new(m, K_MUL, 2, node_new(m, K_DIV, 2, node_int(m, 19), node_int(m, 8)),
                                               slope));
    if (!line || !at19 || scalar_equal(m, line, at19, 0, &rule) != TRI_YES)
        return false;
    int sign = scalar_sign(m, slope);
    if (sign == 0 || sign == -2)
        return false;
    struct node *zero = node_new(m, K_NEG, 1, node_new(m, K_DIV, 2, at0, slope));
    if (!zero)
        return false;
    bool less = op == REL_LT || op == REL_LE, open = op == REL_LT || op == REL_GT;
    if (op == REL_NE) {
        *s = (struct pieces){ .n = 2, .p = { { .hi = zero, .lo_open = true, .hi_open = true },
                                             { .lo = zero, .lo_open = true, .hi_open = true } } };
        return true;
    }
    if (op == REL_EQ) {
        *s = (struct pieces){ .n = 1, .p = { { .lo = zero, .hi = zero } } };
        return true;
    }
    if (op != REL_LT && op != REL_LE && op != REL_GT && op != REL_GE)
        return false;
    s->n = 1;
    s->p[0] = less == (sign > 0) ? (struct piece){ .hi = zero, .lo_open = true, .hi_open = open }
                                 : (struct piece){ .lo = zero, .lo_open = open, .hi_open = true };
    return true;
}

static bool relation_pieces(struct math *m, struct node *a, struct pieces *s, const struct node **unknown)
{
    bool many = false;
    const struct node *u = NULL;
    for (int i = 0; i < a->n; i++) {
        if (a->child[i]->flags & HAS_SET && !(a->len == 1 && (a->s[0] == REL_IN || a->s[0] == REL_NOTIN)))
            return false;
        u = unknown_find(a->child[i], u, &many);
    }
    if (!u || many)
        return false;
    *unknown = u;
    if (a->len == 1 && (a->s[0] == REL_IN || a->s[0] == REL_NOTIN))
        return is_name(a->child[0]) && pieces_of(m, a->child[1], s, 8) && (a->s[0] == REL_IN || complement(s));
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
            mirror.p[i] = (struct piece){ .lo = s->p[i].hi ? node_new(m, K_NEG, 1, s->p[i].hi) : NULL,
                                          .hi = s->p[i].lo ? node_new(m, K_NEG, 1, s->p[i].lo) : NULL,
                                          .lo_open = s->p[i].hi_open, .hi_open = s->p[i].lo_open };
        return pieces_sort(m, &mirror) && pieces_join(m, s, &mirror, K_UNION);
    }
    return true;
}

/* { x | x > 2 }, { x in S | x > 2 }: what stands before the bar must be the unknown itself. */
static bool builder_pieces(struct math *m, struct node *a, struct pieces *s, int depth)
{
    struct node *head = a->child[0], *name = head->kind == K_REL && head->len == 1 && head->s[0] == REL_IN
        ? head->child[0] : head;
    bool many = false;
    const struct node *u = unknown_find(a->child[1], NULL, &many);
    struct pieces in;
    if (name->kind != K_SYM || !u || many || !name_same(u->kind == K_FUNC ? u->child[0] : u, name) || u->kind == K_APP)
        return false;
    return pieces_of(m, a->child[1], s, depth - 1) &&
           (head == name || (pieces_of(m, head->child[1], &in, depth - 1) && pieces_join(m, s, &in, K_INTER)));
}

/* A tree as pieces of the real line; false: it is none. */
static bool pieces_of(struct math *m, struct node *a, struct pieces *s, int depth)
{
    struct pieces t;
    const struct node *u, *u2;
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
        s->p[0] = (struct piece){ .lo = a->child[0], .hi = a->child[1], .lo_open = !(a->op & 1),
                                  .hi_open = !(a->op & 2) };
        if (is_infinite(a->child[0], &inf)) {
            if (inf > 0)
                return false;
            s->p[0].lo = NULL;
            s->p[0].lo_open = true;
        }
        if (is_infinite(a->child[1], &inf)) {
            if (inf < 0)
                return false;
            s->p[0].hi = NULL;
            s->p[0].hi_open = true;
        }
        return order(m, s->p[0].lo, -1, s->p[0].hi, 1) <= 0 && order(m, s->p[0].lo, -1, s->p[0].hi, 1) != -2;
    case K_UNION: case K_INTER: case K_MINUS:
        return pieces_of(m, a->child[0], s, depth - 1) && pieces_of(m, a->child[1], &t, depth - 1) &&
               pieces_join(m, s, &t, (enum node_kind)a->kind);
    case K_BUILDER:
        return builder_pieces(m, a, s, depth);
    case K_REL:
        return relation_pieces(m, a, s, &u);
    case K_LIST: {    // x < 1 or x > 3; x > 1, x < 3: a union of what is apart, else what they have in common
        if (a->n < 2 || !is_inequality(a->child[0]) || !relation_pieces(m, a->child[0], s, &u))
            return false;
        for (int i = 1; i < a->n; i++) {
            if (!is_inequality(a->child[i]) || !relation_pieces(m, a->child[i], &t, &u2) || !same_unknown(u, u2))
                return false;
            struct pieces common = *s;
            if (!pieces_join(m, &common, &t, K_INTER))
                return false;
            if (common.n > 0)
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
            s->p[s->n++] = (struct piece){ .lo = a->child[i], .hi = a->child[i] };
        }
        return pieces_sort(m, s);
    case K_NUM: case K_CONST: case K_SYM: case K_TEXT: case K_ADD: case K_MUL: case K_DIV: case K_POW: case K_NEG:
    case K_ROOT:
    case K_LOG: case K_FUNC: case K_APP: case K_SUM: case K_PROD: case K_OPAQUE: case K_DEG: case K_PCT: case K_PM:
    case K_RATIO: case K_JUXT:
    case K_UNIT: case K_MATRIX:
        break;
    }
    return false;
}

static enum tri end_equal(struct math *m, struct node *a, struct node *b, const char **rule)
{
    if (!a || !b)
        return a == b ? TRI_YES : TRI_NO;
    return scalar_equal(m, a, b, m->config.decimals, rule);
}

static enum tri pieces_equal(struct math *m, const struct pieces *a, const struct pieces *b, const char **rule)
{
    enum tri all = TRI_YES;
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

/* ---- scalars ---- */

static const struct unit {
    const char *name;
    char dim;
    int64_t num, den;    // of the dimension's base unit
} units[] = {
    { "mm", 'l', 1, 1000 }, { "cm", 'l', 1, 100 }, { "centimeter", 'l', 1, 100 }, { "dm", 'l', 1, 10 },
    { "m", 'l', 1, 1 },
    { "meter", 'l', 1, 1 }, { "metre", 'l', 1, 1 }, { "km", 'l', 1000, 1 }, { "kilometer", 'l', 1000, 1 },
    { "in", 'l', 127, 5000 }, { "inch", 'l', 127, 5000 }, { "ft", 'l', 381, 1250 }, { "foot", 'l', 381, 1250 },
    { "feet", 'l', 381, 1250 }, { "yard", 'l', 1143, 1250 }, { "yd", 'l', 1143, 1250 }, { "mile", 'l', 201168, 125 },
    { "second", 't', 1, 1 }, { "sec", 't', 1, 1 }, { "s", 't', 1, 1 }, { "minute", 't', 60, 1 }, { "min", 't', 60, 1 },
    { "hour", 't', 3600, 1 }, { "hr", 't', 3600, 1 }, { "h", 't', 3600, 1 }, { "day", 't', 86400, 1 },
    { "week", 't', 604800, 1 },
    { "mg", 'm', 1, 1000000 }, { "g", 'm', 1, 1000 }, { "gram", 'm', 1, 1000 }, { "kg", 'm', 1, 1 },
    { "kilogram", 'm', 1, 1 },
    { "dollar", '$', 1, 1 }, { "cent", '$', 1, 100 },
};

/* The unit's row and power; NULL: not a known one. */
static const struct unit *unit_find(const struct node *a, int *power)
{
    const char *s = a->s;
    int32_t n = a->len;
    *power = 1;
    while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '.'))
        n--;
    while (n > 0 && *s == ' ')
        s++, n--;
    const char *caret = memchr(s, '^', (size_t)n);
    if (caret) {
        for (const char *q = caret; q < s + n; q++)
            if (*q >= '0' && *q <= '9')
                *power = *q - '0';
        n = (int32_t)(caret - s);
        while (n > 0 && (s[n - 1] == '}' || s[n - 1] == ' '))
            n--;
    }
    for (size_t i = 0; i < ARRAY_SIZE(units); i++) {
        int32_t len = (int32_t)strlen(units[i].name);
        if (n >= len && strncasecmp(s, units[i].name, (size_t)len) == 0 &&
            (n == len || (n == len + 1 && s[len] == 's' && len > 1) ||
             (n == len + 2 && s[len] == 'e' && s[len + 1] == 's')))
            return &units[i];
    }
    return NULL;
}

static struct node *in_base_unit(struct math *m, struct node *a, const struct unit *u, int power)
{
    struct node *f = node_new(m, K_DIV, 2, node_int(m, u->num), node_int(m, u->den));
    return node_new(m, K_MUL, 2, a, node_new(m, K_POW, 2, f, node_int(m, power)));
}

static enum tri either(enum tri a, enum tri b)
{
    return a == TRI_YES || b == TRI_YES ? TRI_YES : a == TRI_UNKNOWN || b == TRI_UNKNOWN ? TRI_UNKNOWN : TRI_NO;
}

static bool text_node_same(const struct node *a, const struct node *b)
{
    int32_t i = 0, j = 0;
    for (;;) {
        while (i < a->len && !((a->s[i] | 32) >= 'a' && (a->s[i] | 32) <= 'z') && !(a->s[i] >= '0' && a->s[i] <= '9') &&
               !(a->s[i] & 0x80))
            i++;
        while (j < b->len && !((b->s[j] | 32) >= 'a' && (b->s[j] | 32) <= 'z') && !(b->s[j] >= '0' && b->s[j] <= '9') &&
               !(b->s[j] & 0x80))
            j++;
        if (i == a->len || j == b->len)
            return i == a->len && j == b->len;
        char x = a->s[i++], y = b->s[j++];
        if ((x >= 'A' && x <= 'Z' ? x | 32 : x) != (y >= 'A' && y <= 'Z' ? y | 32 : y))
            return false;
    }
}

static enum tri ratio_compare(struct math *m, struct node *a, struct node *b, const char **rule)
{
    if (a->n != b->n)
        return TRI_NO;
    bool zero = false;
    for (int i = 1; i < a->n; i++)
        zero |= scalar_sign(m, a->child[i]) == 0 || scalar_sign(m, b->child[i]) == 0;
    enum tri all = TRI_YES;
    for (int i = zero ? 0 : 1; i < a->n; i++) {    // 12:00 is no ratio: part by part
        enum tri t = zero ? scalar_equal(m, a->child[i], b->child[i], 0, rule)
                          : scalar_equal(m, node_new(m, K_MUL, 2, a->child[0], b->child[i]),
                                         node_new(m, K_MUL, 2, b->child[0], a->child[i]), 0, rule);
        if (t == TRI_NO)
            return TRI_NO;
        all = t == TRI_UNKNOWN ? t : all;
    }
    *rule = "ratio";
    return all;
}

/* A degree or percent mark at the end of a quotient, product or sum marks the whole: 173/2^\circ, -5\%. */
static struct node *lift_mark(struct math *m, struct node *a)
{
    if (a->kind != K_NEG && a->kind != K_DIV && a->kind != K_MUL)
        return a;
    struct node *child[ELEMENTS_MAX], *last = a->child[a->n - 1];
    if (a->n > ELEMENTS_MAX || (last->kind != K_DEG && last->kind != K_PCT && last->kind != K_NEG &&
                                last->kind != K_DIV))
        return a;
    last = lift_mark(m, last);
    if (!last || (last->kind != K_DEG && last->kind != K_PCT) || (a->flags & HAS_SYM))
        return a;
    memcpy(child, a->child, (size_t)a->n * sizeof *child);
    child[a->n - 1] = last->child[0];
    return node_new(m, (enum node_kind)last->kind, 1, node_like(m, a, (enum node_kind)a->kind, child));
}

static enum tri scalar_compare(struct math *m, struct node *a, struct node *b, const char **rule, int depth)
{
    int d = m->config.decimals, sa, sb;
    a = lift_mark(m, a);
    b = lift_mark(m, b);
    if (depth > 12 || !a || !b)
        return TRI_UNKNOWN;
    if (a->kind == K_TEXT || b->kind == K_TEXT) {
        *rule = "text";
        bool names = (a->kind == K_TEXT || a->kind == K_SYM) && (b->kind == K_TEXT || b->kind == K_SYM);
        if (names)
            return text_node_same(a, b) ? TRI_YES : TRI_NO;
        struct node *c = a->kind == K_CONST ? a : b->kind == K_CONST ? b : NULL, *t = c == a ? b : a;
        if (c && t->kind == K_TEXT && t->len == 1)
            return (c->op == CONST_E && t->s[0] == 'e') || (c->op == CONST_I && t->s[0] == 'i') ? TRI_YES : TRI_NO;
        return TRI_NO;
    }
    if (a->kind == K_UNIT && b->kind == K_UNIT) {
        int pa, pb;
        const struct unit *ua = unit_find(a, &pa), *ub = unit_find(b, &pb);
        if (ua && ub && (ua->dim != ub->dim || pa != pb)) {
            *rule = "units";
            return TRI_NO;
        }
        if (ua && ub && (ua->num != ub->num || ua->den != ub->den)) {
            struct node *va = in_base_unit(m, a->child[0], ua, pa), *vb = in_base_unit(m, b->child[0], ub, pb);
            return va && vb ? scalar_compare(m, va, vb, rule, depth + 1) : TRI_UNKNOWN;
        }
        return scalar_compare(m, a->child[0], b->child[0], rule, depth + 1);
    }
    if (a->kind == K_UNIT || b->kind == K_UNIT) {
        struct node *u = a->kind == K_UNIT ? a : b, *o = u == a ? b : a;
        enum tri t = scalar_compare(m, u->child[0], o, rule, depth + 1);
        // the unit was a symbol
        if (t != TRI_YES && (o->flags & HAS_SYM) && u->len <= 2 && !(u->child[0]->flags & HAS_SYM)) {
            struct node *sym = node_new(m, K_SYM, 0);
            if (!sym)
                return TRI_UNKNOWN;
            sym->s = u->s;
            sym->len = u->len;
            t = either(t, scalar_equal(m, node_new(m, K_MUL, 2, u->child[0], sym), o, d, rule));
        }
        return t;
    }
    if (a->kind != b->kind && (node_is(a, K_RATIO) ? a->n : node_is(b, K_RATIO) ? b->n : 0) > 2) {
        *rule = "ratio";
        return TRI_NO;    // 1:1:1 is no number
    }
    if (a->kind == K_PCT && b->kind == K_PCT)
        return scalar_compare(m, a->child[0], b->child[0], rule, depth + 1);
    if (a->kind == K_PCT || b->kind == K_PCT) {    // 10% is 0.1, and the 10 of a question that asks for percent
        struct node *p = a->kind == K_PCT ? a : b, *o = p == a ? b : a;
        enum tri t = scalar_equal(m, p, o, d, rule);
        return t == TRI_YES ? t : either(t, scalar_compare(m, p->child[0], o, rule, depth + 1));
    }
    if (a->kind == K_DEG && b->kind == K_DEG)
        return scalar_compare(m, a->child[0], b->child[0], rule, depth + 1);
    if (a->kind == K_DEG || b->kind == K_DEG) {
        struct node *g = a->kind == K_DEG ? a : b, *o = g == a ? b : a;
        return o->flags & HAS_PI ? scalar_equal(m, g, o, d, rule) : scalar_compare(m, g->child[0], o, rule, depth + 1);
    }
    if (a->kind == K_RATIO && b->kind == K_RATIO)
        return ratio_compare(m, a, b, rule);
    bool ia = is_infinite(a, &sa), ib = is_infinite(b, &sb);
    if ((ia && ib) || ((ia || ib) && !((a->flags & b->flags) & HAS_INF))) {
        *rule = "infinity";
        return ia && ib && sa == sb ? TRI_YES : TRI_NO;
    }
    // the base left out: the same digits
    if (a->kind == K_NUM && b->kind == K_NUM && (a->base > 0) != (b->base > 0)) {
        struct node *na = node_new(m, K_NUM, 0), *nb = node_new(m, K_NUM, 0);
        if (!na || !nb)
            return TRI_UNKNOWN;
        *na = *a;
        *nb = *b;
        na->base = nb->base = 0;
        return scalar_equal(m, na, nb, d, rule);
    }
    return scalar_equal(m, a, b, d, rule);
}

/* ---- matrices ---- */

static struct node *matrix_value(struct math *m, struct node *a, int depth)
{
    if (a->kind == K_MATRIX || !(a->flags & HAS_MATRIX) || depth <= 0)
        return a;
    struct node *part[ELEMENTS_MAX], *cell[144];
    if (a->n == 0 || a->n > ELEMENTS_MAX)
        return NULL;
    for (int i = 0; i < a->n; i++)
        if (!(part[i] = matrix_value(m, a->child[i], depth - 1)))
            return NULL;
    struct node *x = part[0];
    if (a->kind == K_FUNC && a->op == FN_DET && node_is(x, K_MATRIX) && x->scale * x->scale == x->n && x->scale <= 3) {
        struct node **c = x->child;
        if (x->scale == 1)
            return c[0];
        if (x->scale == 2)
            return minus(m, node_new(m, K_MUL, 2, c[0], c[3]), node_new(m, K_MUL, 2, c[1], c[2]));
        struct node *t[6];
        static const int8_t perm[6][3] = { { 0, 4, 8 }, { 1, 5, 6 }, { 2, 3, 7 }, { 2, 4, 6 }, { 1, 3, 8 },
                                           { 0, 5, 7 } };
        for (int i = 0; i < 6; i++) {
            t[i] = node_new(m, K_MUL, 3, c[perm[i][0]], c[perm[i][1]], c[perm[i][2]]);
            if (i >= 3)
                t[i] = node_new(m, K_NEG, 1, t[i]);
        }
        return node_list(m, K_ADD, t, 6);
    }
    if (a->kind != K_ADD && a->kind != K_MUL && a->kind != K_NEG && a->kind != K_DIV)
        return NULL;
    for (int i = a->kind == K_NEG ? 0 : 1; i < a->n; i++) {
        struct node *y = part[i];
        bool mx = x->kind == K_MATRIX, my = y->kind == K_MATRIX;
        if (!mx && !my) {    // the numbers of a sum before its matrix, -det(A)
            x = a->kind == K_NEG ? node_new(m, K_NEG, 1, y) : node_new(m, (enum node_kind)a->kind, 2, x, y);
            if (!x)
                return NULL;
            continue;
        }
        struct node *shape = mx ? x : y;
        int n = shape->n, cols = n / shape->scale, rows = shape->scale;
        if (a->kind == K_NEG || a->kind == K_DIV || (a->kind == K_MUL && mx != my)) {
            if (a->kind == K_DIV && my)
                return NULL;
            for (int k = 0; k < n; k++)
                cell[k] = a->kind == K_NEG ? node_new(m, K_NEG, 1, y->child[k])
                          : a->kind == K_DIV ? node_new(m, K_DIV, 2, x->child[k], y)
                          : node_new(m, K_MUL, 2, mx ? x->child[k] : x, my ? y->child[k] : y);
        } else if (a->kind == K_ADD) {
            if (!mx || !my || x->n != y->n || x->scale != y->scale)
                return NULL;
            for (int k = 0; k < n; k++)
                cell[k] = node_new(m, K_ADD, 2, x->child[k], y->child[k]);
        } else {
            int inner = cols;
            if (inner != y->scale || inner > 16)
                return NULL;
            cols = y->n / y->scale;
            n = rows * cols;
            if (n > (int)ARRAY_SIZE(cell))
                return NULL;
            for (int r = 0; r < rows; r++)
                for (int c = 0; c < cols; c++) {
                    struct node *term[16];
                    for (int k = 0; k < inner; k++)
                        term[k] = node_new(m, K_MUL, 2, x->child[r * inner + k], y->child[k * cols + c]);
                    cell[r * cols + c] = node_list(m, K_ADD, term, inner);
                }
        }
        struct node *z = node_list(m, K_MATRIX, cell, n);
        if (!z)
            return NULL;
        z->scale = rows;
        x = z;
    }
    return x;
}

/* ---- relations ---- */

static bool ordering(char op)
{
    return op == REL_LT || op == REL_LE || op == REL_GT || op == REL_GE;
}

static char turned(char op)
{
    return op == REL_LT ? REL_GT : op == REL_GT ? REL_LT : op == REL_LE ? REL_GE : op == REL_GE ? REL_LE : op;
}

static enum tri step_compare(struct math *m, struct node *al, struct node *ar, char ao, struct node *bl,
                             struct node *br, char bo,
                             const char **rule)
{
    int sign;
    if ((al->flags | ar->flags | bl->flags | br->flags) & (HAS_SET | HAS_MATRIX)) {
        if (ao != bo)
            return TRI_NO;
        enum tri l = compare(m, al, bl, rule, 4), r = l == TRI_NO ? TRI_NO : compare(m, ar, br, rule, 4);
        return l == TRI_NO || r == TRI_NO ? TRI_NO : l == TRI_YES && r == TRI_YES ? TRI_YES : TRI_UNKNOWN;
    }
    int inf;
    if (is_infinite(al, &inf) || is_infinite(ar, &inf) || is_infinite(bl, &inf) || is_infinite(br, &inf)) {
        if (ao != bo)
            return TRI_NO;
        enum tri l = scalar_compare(m, al, bl, rule, 0), r = scalar_compare(m, ar, br, rule, 0);
        return l == TRI_NO || r == TRI_NO ? TRI_NO : l == TRI_YES && r == TRI_YES ? TRI_YES : TRI_UNKNOWN;
    }
    bool flip = ao != bo;
    if (flip && !(ordering(ao) && turned(ao) == bo))
        return TRI_NO;
    struct node *x = minus(m, al, ar), *y = minus(m, bl, br);
    if (!x || !y)
        return TRI_UNKNOWN;
    *rule = "relation";
    enum tri t = scalar_proportional(m, x, y, &sign);
    if (t == TRI_YES && ordering(ao)) {
        if (sign == 0)
            return TRI_UNKNOWN;
        return (sign < 0) == flip ? TRI_YES : TRI_NO;
    }
    return t;
}

/* f(x) = ... and f(t) = ... define the same function: */
static bool defines_function(const struct node *f)
{
    for (int i = 0; i < f->n; i++)
        if (f->child[i]->kind != K_SYM)
            return false;
    return f->kind == K_APP;
}

/* What f(x, y) is, its parameters named by their places: names that cannot be written, so that none is captured. */
static struct node *parameters_placed(struct math *m, struct node *value, const struct node *f)
{
    static const char place[] = "\1\2\3\4\5\6\7\10";
    for (int i = 0; i < f->n && value; i++) {
        struct node *name = i + 1 < (int)sizeof place ? node_new(m, K_SYM, 0) : NULL;
        if (!name)
            return NULL;
        name->s = place + i;
        name->len = 1;
        value = substitute(m, value, f->child[i], name);
    }
    return value;
}

struct congruence {
    struct node *left;    // NULL: only "3 (mod 5)"
    struct node *right, *modulus;
};

static bool congruence_of(const struct node *a, struct congruence *c)
{
    bool whole = a->len == 2 && (a->s[0] == REL_CONG || a->s[0] == REL_EQ) && a->s[1] == REL_MOD;
    if (!whole && !(a->len == 1 && a->s[0] == REL_MOD))
        return false;
    *c = (struct congruence){ whole ? a->child[0] : NULL, a->child[whole], a->child[whole + 1] };
    return true;
}

/* The same left side, the same modulus, and right sides that are apart by a multiple of it. */
static enum tri congruence_compare(struct math *m, struct node *a, struct node *b, const char **rule, int depth)
{
    struct congruence x, y;
    *rule = "congruence";
    if (!congruence_of(a, &x) || !congruence_of(b, &y))
        return a->len == b->len && memcmp(a->s, b->s, (size_t)a->len) == 0
               ? ordered(m, a->child, b->child, a->n, rule, depth) : TRI_NO;
    enum tri mod = compare(m, x.modulus, y.modulus, rule, depth + 1), left = TRI_YES;
    if (x.left && y.left && mod != TRI_NO)
        left = compare(m, x.left, y.left, rule, depth + 1);
    else if (x.left || y.left)
        left = is_name(x.left ? x.left : y.left) ? TRI_YES : TRI_NO;
    if (mod == TRI_NO || left == TRI_NO)
        return TRI_NO;
    enum tri right = compare(m, x.right, y.right, rule, depth + 1);
    if (right != TRI_YES) {
        struct node *rest = node_new(m, K_FUNC, 2, minus(m, x.right, y.right), x.modulus);
        if (!rest)
            return TRI_UNKNOWN;
        rest->op = FN_MOD;
        enum tri multiple = scalar_equal(m, rest, node_int(m, 0), 0, rule);
        right = either(right, multiple);
    }
    *rule = "congruence";
    return right == TRI_YES && mod == TRI_YES && left == TRI_YES ? TRI_YES : right == TRI_NO ? TRI_NO : TRI_UNKNOWN;
}

static bool has_modulus(const struct node *a)
{
    return memchr(a->s, REL_MOD, (size_t)a->len) != NULL;
}

static enum tri relation_compare(struct math *m, struct node *a, struct node *b, const char **rule, int depth)
{
    if (has_modulus(a) || has_modulus(b))
        return congruence_compare(m, a, b, rule, depth);
    struct node *va = assigned(a), *vb = assigned(b);
    if (va && vb) {
        const struct node *fa = a->child[0], *fb = b->child[0];
        if (a->s[0] == REL_EQ && b->s[0] == REL_EQ && defines_function(fa) && defines_function(fb) &&
            name_same(fa, fb) && fa->n == fb->n) {
            va = parameters_placed(m, va, fa);
            vb = parameters_placed(m, vb, fb);
            return va && vb ? compare(m, va, vb, rule, depth + 1) : TRI_UNKNOWN;
        }
        enum tri name = TRI_NO;
        if (a->s[0] == b->s[0]) {
            const char *r2;
            name = is_closed(a->child[0]) && is_closed(b->child[0]) && !is_name(a->child[0])
                           && !is_name(b->child[0]) ? TRI_YES
                   : compare(m, a->child[0], b->child[0], &r2, depth + 1);
            if (name == TRI_YES)
                return compare(m, va, vb, rule, depth + 1);
        }
        if ((va->flags | vb->flags) & (HAS_SET | HAS_TEXT)) {
            *rule = "relation";
            return name;    // not YES here
        }
    }
    enum tri t = TRI_NO;
    *rule = "relation";
    if (a->len == b->len) {
        for (int way = 0; way < 2 && t != TRI_YES; way++) {    // 1 < x < 2 is 2 > x > 1
            enum tri all = TRI_YES;
            for (int i = 0; i < a->len && all != TRI_NO; i++) {
                int k = way ? b->len - 1 - i : i;
                enum tri s = way ? step_compare(m, a->child[i], a->child[i + 1], a->s[i], b->child[k + 1], b->child[k],
                                                turned(b->s[k]), rule)
                                 : step_compare(m, a->child[i], a->child[i + 1], a->s[i], b->child[k], b->child[k + 1],
                                                b->s[k], rule);
                all = s == TRI_NO ? TRI_NO : s == TRI_UNKNOWN ? TRI_UNKNOWN : all;
            }
            t = either(t, all);
            if (a->len == 1)
                break;    // one relation turned round is a factor of -1, which was tried
        }
    }
    if (t != TRI_YES) {
        struct pieces pa, pb;
        const struct node *ua, *ub;
        if (relation_pieces(m, a, &pa, &ua) && relation_pieces(m, b, &pb, &ub)) {
            return same_unknown(ua, ub) ? pieces_equal(m, &pa, &pb, rule) : TRI_NO;
        }
    }
    return t;
}

/* ---- lists ---- */

static enum tri unordered(struct math *m, struct node **a, int na, struct node **b, int nb, const char **rule,
                          int depth)
{
    bool unknown = false;
    for (int way = 0; way < 2; way++)
        for (int i = 0; i < (way ? nb : na); i++) {
            enum tri best = TRI_NO;
            for (int j = 0; j < (way ? na : nb) && best != TRI_YES; j++) {
                int k = (i + j) % (way ? na : nb);    // written in the same order, most often
                best = either(best, way ? compare(m, a[k], b[i], rule, depth + 1)
                              : compare(m, a[i], b[k], rule, depth + 1));
            }
            if (best == TRI_NO)
                return TRI_NO;
            unknown |= best == TRI_UNKNOWN;
        }
    return unknown ? TRI_UNKNOWN : TRI_YES;
}

struct matching {
    struct math *m;
    struct node **a, **b;
    int n, depth;
    const char **rule;
    int8_t *known;      // (n, n) enum tri + 1 of a[i] and b[j]; 0: not compared yet
    int16_t *partner;   // (n) of b[j], -1: none
    bool *seen;         // (n) b[j] in this search
};

static bool partner_find(struct matching *s, int i, bool unknown)
{
    for (int k = 0; k < s->n; k++) {
        int j = (i + k) % s->n;    // written in the same order, most often
        if (s->seen[j])
            continue;
        int8_t *t = &s->known[i * s->n + j];
        if (*t == 0)
            *t = (int8_t)(compare(s->m, s->a[i], s->b[j], s->rule, s->depth + 1) + 1);
        if (*t != TRI_YES + 1 && !(unknown && *t == TRI_UNKNOWN + 1))
            continue;
        s->seen[j] = true;
        if (s->partner[j] < 0 || partner_find(s, s->partner[j], unknown)) {
            s->partner[j] = (int16_t)i;
            return true;
        }
    }
    return false;
}

/* Has each element of a one of b for itself? 1, 1, 2 is not 1, 2, 2. A largest matching (Kuhn's), so that the order does
 * not count where two numbers both equal a third but not each other. */
static enum tri matched(struct math *m, struct node **a, struct node **b, int n, const char **rule, int depth)
{
    struct matching s = { .m = m, .a = a, .b = b, .n = n, .depth = depth, .rule = rule };
    s.known = math_take(m, (size_t)n * (size_t)n + 1);
    s.partner = math_take(m, (size_t)n * sizeof *s.partner + 1);
    s.seen = math_take(m, (size_t)n * sizeof *s.seen + 1);
    if (!s.known || !s.partner || !s.seen)
        return TRI_UNKNOWN;
    memset(s.known, 0, (size_t)n * (size_t)n);
    for (int unknown = 0; unknown < 2; unknown++) {
        bool all = true;
        for (int j = 0; j < n; j++)
            s.partner[j] = -1;
        for (int i = 0; i < n && all; i++) {
            memset(s.seen, 0, (size_t)n * sizeof *s.seen);
            all = partner_find(&s, i, unknown);
        }
        if (all)
            return unknown ? TRI_UNKNOWN : TRI_YES;
    }
    return TRI_NO;
}

static enum tri ordered(struct math *m, struct node **a, struct node **b, int n, const char **rule, int depth)
{
    bool unknown = false;
    for (int i = 0; i < n; i++) {
        enum tri t = compare(m, a[i], b[i], rule, depth + 1);
        if (t == TRI_NO)
            return TRI_NO;
        unknown |= t == TRI_UNKNOWN;
    }
    return unknown ? TRI_UNKNOWN : TRI_YES;
}

/* The elements of a list or set, with plus-minus written out and lists in lists made flat. */
static int elements(struct math *m, struct node *a, struct node **out, int max)
{
    if (a->kind == K_LIST && a->op == 0) {
        int n = 0;
        for (int i = 0; i < a->n; i++) {
            int k = elements(m, a->child[i], out + n, max - n);
            if (k < 0)
                return -1;
            n += k;
        }
        return n;
    }
    if (a->kind == K_LIST || a->kind == K_SET) {
        int n = 0;
        for (int i = 0; i < a->n; i++) {
            if (a->child[i]->kind == K_LIST || a->child[i]->kind == K_SET) {
                if (n == max)
                    return -1;
                out[n++] = a->child[i];
                continue;
            }
            int k = elements(m, a->child[i], out + n, max - n);
            if (k < 0)
                return -1;
            n += k;
        }
        return n;
    }
    /* x = {1, 2} and x = 1, 2 */
    if (a->flags & HAS_PM) {
        if (max < 2 || !(out[0] = decide_sign(m, a, 1)) || !(out[1] = decide_sign(m, a, -1)))
            return -1;
        return 2;
    }
    if (max < 1)
        return -1;
    out[0] = a;
    return 1;
}

/* ---- letters that stand for any element of a set ---- */

#define BOUND_MAX 8
struct bound {
    int n;
    struct node *set[BOUND_MAX];
};

/* The letter that an element of a list binds: "k in Z", "k is an integer". NULL: it binds none. */
static struct node *binder(struct math *m, struct node *a, struct node **set)
{
    if (a->kind == K_REL && a->len == 1 && a->s[0] == REL_IN && a->child[0]->kind == K_SYM) {
        *set = a->child[1];
        return a->child[0];
    }
    static const char *const integer[] = { "is an integer", "is any integer", "is an arbitrary integer" };
    for (size_t i = 0; i < ARRAY_SIZE(integer) && a->kind == K_UNIT && a->child[0]->kind == K_SYM; i++)
        if ((size_t)a->len == strlen(integer[i]) && memcmp(a->s, integer[i], (size_t)a->len) == 0) {
            *set = node_new(m, K_NAMED_SET, 0);
            if (*set)
                (*set)->op = 'Z';
            return *set ? a->child[0] : NULL;
        }
    return NULL;
}

static struct node *place_name(struct math *m, int i)    // a name that cannot be written
{
    static const char place[BOUND_MAX] = "\16\17\20\21\22\23\24\25";
    struct node *a = node_new(m, K_SYM, 0);
    if (a) {
        a->s = place + i;
        a->len = 1;
    }
    return a;
}

/* Take what binds a letter out of e[0..n) and give the letter the name of its place in the rest, so that "k\pi, k in Z"
 * and "n\pi, n in Z" have the same elements. Returns how many are left; -1: no room. */
static int bound_take(struct math *m, struct node **e, int n, struct bound *out)
{
    out->n = 0;
    for (int i = 0; i < n; i++) {
        struct node *set, *name = binder(m, e[i], &set);
        bool used = false;
        for (int k = 0; k < n && name; k++)
            used |= k != i && occurs(e[k], name);
        if (!used || out->n == BOUND_MAX)
            continue;
        struct node *place = place_name(m, out->n);
        out->set[out->n++] = set;
        memmove(e + i, e + i + 1, (size_t)(--n - i) * sizeof *e);
        i--;
        /* "k, n in Z": letters alone right before it are bound to the same set */
        for (int k = 0; k < n; k++)
            if (!place || !(e[k] = substitute(m, e[k], name, place)))
                return -1;
        while (i >= 0 && e[i]->kind == K_SYM && (unsigned char)e[i]->s[0] >= ' ' && out->n < BOUND_MAX) {
            struct node *also = e[i];
            used = false;
            for (int k = 0; k < i; k++)
                used |= occurs(e[k], also);
            if (!used || !(place = place_name(m, out->n)))
                break;
            out->set[out->n++] = set;
            memmove(e + i, e + i + 1, (size_t)(--n - i) * sizeof *e);
            i--;
            for (int k = 0; k < n; k++)
                if (!(e[k] = substitute(m, e[k], also, place)))
                    return -1;
        }
    }
    return n;
}

static bool bound_same(struct math *m, const struct bound *a, const struct bound *b, int depth)
{
    const char *rule;
    if (a->n != b->n)
        return false;
    for (int i = 0; i < a->n; i++)
        if (compare(m, a->set[i], b->set[i], &rule, depth + 1) != TRI_YES)
            return false;
    return true;
}

/* ---- lists as a whole ---- */

/* x = 1, y = 2: names for the places. */
static bool all_named(struct node **e, int n)
{
    for (int i = 0; i < n; i++) {
        if (e[i]->kind != K_REL || e[i]->len != 1 || e[i]->s[0] != REL_EQ || e[i]->child[0]->kind != K_SYM)
            return false;
        for (int k = 0; k < i; k++)
            if (name_same(e[k]->child[0], e[i]->child[0]))
                return false;
    }
    return n > 1;
}

static bool all_tuples(struct node **e, int n)
{
    for (int i = 0; i < n; i++)
        if (e[i]->kind != K_TUPLE)
            return false;
    return true;
}

static bool none_named(struct node **e, int n)
{
    for (int i = 0; i < n; i++)
        if (e[i]->kind == K_REL)
            return false;
    return true;
}

static enum tri list_compare(struct math *m, struct node *a, struct node *b, const char **rule, int depth)
{
    struct node **ea = math_take(m, sizeof *ea * ELEMENTS_MAX), **eb = math_take(m, sizeof *eb * ELEMENTS_MAX);
    if (!ea || !eb)
        return TRI_UNKNOWN;
    int na = elements(m, a, ea, ELEMENTS_MAX), nb = elements(m, b, eb, ELEMENTS_MAX);
    if (na < 0 || nb < 0) {
        m->why = "too many elements";
        return TRI_UNKNOWN;
    }
    *rule = "set";
    struct node **fa = math_take(m, sizeof *fa * (size_t)na + 8), **fb = math_take(m, sizeof *fb * (size_t)nb + 8);
    if (!fa || !fb)
        return TRI_UNKNOWN;
    memcpy(fa, ea, sizeof *fa * (size_t)na);
    memcpy(fb, eb, sizeof *fb * (size_t)nb);
    struct bound ba, bb;
    int ra = bound_take(m, fa, na, &ba), rb = bound_take(m, fb, nb, &bb);
    if (ra < 0 || rb < 0)
        return TRI_UNKNOWN;
    if (ba.n > 0 && bound_same(m, &ba, &bb, depth)) {
        ea = fa;
        eb = fb;
        na = ra;
        nb = rb;
    }
    if (na == nb && ((all_named(ea, na) && none_named(eb, nb)) || (all_named(eb, nb) && none_named(ea, na))))
        return ordered(m, ea, eb, na, rule, depth);
    bool points = all_tuples(ea, na) && all_tuples(eb, nb);    // a set, as what plus-minus gives
    if (a->kind == K_SET || b->kind == K_SET || points || ((a->flags | b->flags) & HAS_PM))
        return unordered(m, ea, na, eb, nb, rule, depth);
    return na == nb ? matched(m, ea, eb, na, rule, depth) : TRI_NO;
}

static bool is_set_tree(const struct node *a)
{
    return a->kind == K_UNION || a->kind == K_INTER || a->kind == K_MINUS || a->kind == K_NAMED_SET ||
        a->kind == K_BUILDER;
}

static int union_flat(struct node *a, struct node **out, int max)
{
    if (a->kind == K_UNION) {
        int n = union_flat(a->child[0], out, max), k = n < 0 ? -1 : union_flat(a->child[1], out + n, max - n);
        return k < 0 ? -1 : n + k;
    }
    if (max < 1)
        return -1;
    out[0] = a;
    return 1;
}

/* What stands before the bar, what binds its letters, and the conditions: all with the letters named by their places. */
static int builder_parts(struct math *m, struct node *a, struct node **part, struct bound *bound)
{
    struct node *head = a->child[0];
    int n = 0;
    part[n++] = head;
    if (head->kind == K_REL && head->len == 1 && head->s[0] == REL_IN) {    // { x in R | x > 2 }
        part[0] = head->child[0];
        part[n++] = head;
    }
    int k = elements(m, a->child[1], part + n, ELEMENTS_MAX - n);
    if (k < 0)
        return -1;
    n = bound_take(m, part, n + k, bound);
    if (n < 1 || part[0]->kind != K_SYM || bound->n == BOUND_MAX || (unsigned char)part[0]->s[0] < ' ')
        return n;
    struct node *name = part[0], *place = place_name(m, BOUND_MAX - 1);
    for (int i = 0; i < n; i++)
        if (!place || !(part[i] = substitute(m, part[i], name, place)))
            return -1;
    return n;
}

static enum tri builder_compare(struct math *m, struct node *a, struct node *b, const char **rule, int depth)
{
    struct node **pa = math_take(m, sizeof *pa * ELEMENTS_MAX), **pb = math_take(m, sizeof *pb * ELEMENTS_MAX);
    struct bound ba, bb;
    int na = pa ? builder_parts(m, a, pa, &ba) : -1, nb = pb ? builder_parts(m, b, pb, &bb) : -1;
    m->why = "sets that could not be compared";
    if (na < 1 || nb < 1)
        return TRI_UNKNOWN;
    enum tri head = compare(m, pa[0], pb[0], rule, depth + 1);
    if (head == TRI_YES && na == nb && bound_same(m, &ba, &bb, depth) &&
        matched(m, pa + 1, pb + 1, na - 1, rule, depth) == TRI_YES)
        return TRI_YES;
    *rule = "set";
    return TRI_UNKNOWN;    // { 2k | k in Z } is { 2k + 2 | k in Z }
}

static enum tri set_compare(struct math *m, struct node *a, struct node *b, const char **rule, int depth)
{
    struct pieces pa, pb;
    *rule = "set";
    if (a->kind == K_NAMED_SET && b->kind == K_NAMED_SET)
        return a->op == b->op ? TRI_YES : TRI_NO;
    if (pieces_of(m, a, &pa, 24) && pieces_of(m, b, &pb, 24))
        return pieces_equal(m, &pa, &pb, rule);
    if (a->kind == K_BUILDER && b->kind == K_BUILDER)
        return builder_compare(m, a, b, rule, depth);
    struct node *fa[PIECES_MAX], *fb[PIECES_MAX];
    int na = union_flat(a, fa, PIECES_MAX), nb = union_flat(b, fb, PIECES_MAX);
    enum tri t = TRI_NO;
    if (na >= 1 && nb >= 1 && (na > 1 || nb > 1) && (a->kind == K_UNION || b->kind == K_UNION))
        t = unordered(m, fa, na, fb, nb, rule, depth);
    else if (a->kind == b->kind && a->n == b->n)
        t = ordered(m, a->child, b->child, a->n, rule, depth);
    if (t != TRI_NO)
        return t;
    bool symbols = ((a->flags | b->flags) & HAS_SYM) || a->kind == K_NAMED_SET || b->kind == K_NAMED_SET;
    if (!symbols)
        return TRI_NO;
    if (!is_set_tree(a) || !is_set_tree(b) || a->kind == K_NAMED_SET || b->kind == K_NAMED_SET)
        return TRI_NO;
    m->why = "sets that could not be compared";
    return TRI_UNKNOWN;
}

static enum tri tuple_compare(struct math *m, struct node *a, struct node *b, const char **rule, int depth)
{
    *rule = "tuple";
    if (a->n != b->n)
        return TRI_NO;
    if (a->n == 2 && a->op != b->op) {    // brackets count, but not at an infinite end
        int ia, ib, open = 0;
        for (int i = 0; i < 2; i++)
            open |= is_infinite(a->child[i], &ia) && is_infinite(b->child[i], &ib) ? 1 << i : 0;
        if ((a->op | open) != (b->op | open))
            return TRI_NO;
    }
    return ordered(m, a->child, b->child, a->n, rule, depth);
}

/* Two numbers said to be the same: each is what is meant. */
static bool two_values(const struct node *a)
{
    return a->len == 1 && (a->s[0] == REL_EQ || a->s[0] == REL_APPROX) && is_closed(a->child[0]) &&
           is_closed(a->child[1]) && !is_name(a->child[0]) && !((a->child[0]->flags | a->child[1]->flags) & HAS_PM);
}

/* Lines of a derivation that end in the answer: the last says what a name is, all before are about that name and none
 * gives it another value. Others unchanged. */
static struct node *derived(struct node *a)
{
    if (a->kind != K_LIST || a->scale != 1 || a->op != 0)
        return a;
    struct node *last = a->child[a->n - 1];
    if (last->kind != K_REL || last->s[0] != REL_EQ || last->child[0]->kind != K_SYM)
        return a;
    for (int i = 0; i + 1 < a->n; i++) {
        struct node *line = a->child[i];
        if (line->kind != K_REL || !occurs(line, last->child[0]) ||
            (node_is(line->child[0], K_SYM) && is_closed(line->child[line->n - 1])))
            return a;
    }
    return last;
}

static enum tri compare(struct math *m, struct node *a, struct node *b, const char **rule, int depth)
{
    if (!a || !b || depth > 24 || m->steps < 0)
        return TRI_UNKNOWN;
    m->steps -= 4;
    if (!is_list(a) || !is_list(b)) {
        a = derived(a);
        b = derived(b);
    }
    if ((a->kind == K_REL && chain_false(m, a)) || (b->kind == K_REL && chain_false(m, b))) {
        m->why = "a false equation";
        return TRI_UNKNOWN;
    }
    while (a->kind == K_SET && a->n == 1 && !is_list(b))
        a = a->child[0];
    while (b->kind == K_SET && b->n == 1 && !is_list(a))
        b = b->child[0];
    if ((a->kind == K_REL) != (b->kind == K_REL) && two_values(a->kind == K_REL ? a : b)) {    // 1/3 = 0.33
        struct node *r = a->kind == K_REL ? a : b, *o = r == a ? b : a;
        enum tri t = compare(m, r->child[1], o, rule, depth + 1);
        return t == TRI_YES ? t : either(t, compare(m, r->child[0], o, rule, depth + 1));
    }
    if (a->kind == K_REL)
        a = shorten(m, a);
    if (b->kind == K_REL)
        b = shorten(m, b);
    if (!a || !b)
        return TRI_UNKNOWN;
    if ((a->flags | b->flags) & HAS_PM && !is_list(a) && !is_list(b))
        return list_compare(m, a, b, rule, depth);
    if (a->kind == K_REL && b->kind == K_REL)
        return relation_compare(m, a, b, rule, depth);
    if (a->kind == K_REL || b->kind == K_REL) {
        struct node *r = a->kind == K_REL ? a : b, *o = r == a ? b : a, *v = assigned(r);
        struct pieces pr, po;
        if (v && relation_identity(m, r))
            return TRI_NO;
        if (v)
            return r == a ? compare(m, v, b, rule, depth + 1) : compare(m, a, v, rule, depth + 1);
        *rule = "relation";
        if (is_set_tree(o) || o->kind == K_TUPLE || o->kind == K_LIST || o->kind == K_SET)
            if (pieces_of(m, r, &pr, 24) && pieces_of(m, o, &po, 24))
                return pieces_equal(m, &pr, &po, rule);
        return TRI_NO;
    }
    if (is_set_tree(a) || is_set_tree(b))
        return set_compare(m, a, b, rule, depth);
    if (a->kind == K_TUPLE && b->kind == K_TUPLE)
        return tuple_compare(m, a, b, rule, depth);
    if (a->kind == K_TUPLE || b->kind == K_TUPLE) {
        struct node *t = a->kind == K_TUPLE ? a : b, *o = t == a ? b : a;
        if (t->n == 2 && o->kind == K_LIST && is_inequality(o->child[0])) {    // x > 1, x < 3
            struct pieces pt, po;
            if (pieces_of(m, o, &po, 24) && pieces_of(m, t, &pt, 24))
                return pieces_equal(m, &pt, &po, rule);
        }
        *rule = "tuple";
        if (is_list(o) && o->n == t->n && (t->op == 0 || t->n > 2))
            return t == a ? ordered(m, t->child, o->child, t->n, rule, depth)
                : ordered(m, o->child, t->child, t->n, rule, depth);
        if (is_list(o) && o->n == 1)
            return t == a ? compare(m, a, o->child[0], rule, depth + 1) : compare(m, o->child[0], b, rule, depth + 1);
        if (node_is(o, K_MATRIX) && t->op == 0 && o->n == t->n && (o->scale == 1 || o->scale == o->n))
            return t == a ? ordered(m, t->child, o->child, t->n, rule, depth)
                : ordered(m, o->child, t->child, t->n, rule, depth);
        return TRI_NO;
    }
    if (is_list(a) || is_list(b)) {
        struct pieces pa, pb;
        bool inequalities = a->kind == K_LIST && b->kind == K_LIST && is_inequality(a->child[0]) &&
            is_inequality(b->child[0]);
        if (inequalities && pieces_of(m, a, &pa, 24) && pieces_of(m, b, &pb, 24)) {
            bool many = false;
            const struct node *ua = unknown_find(a, NULL, &many), *ub = unknown_find(b, NULL, &many);
            if (ua && ub && same_unknown(ua, ub))
                return pieces_equal(m, &pa, &pb, rule);
        }
        return list_compare(m, a, b, rule, depth);
    }
    if ((a->flags | b->flags) & HAS_MATRIX) {
        struct node *x = matrix_value(m, a, 16), *y = matrix_value(m, b, 16);
        if (!x || !y) {
            m->why = "matrices that could not be computed";
            return TRI_UNKNOWN;
        }
        *rule = "matrix";
        if (x->kind != K_MATRIX || y->kind != K_MATRIX)
            return x->kind != K_MATRIX && y->kind != K_MATRIX ? scalar_compare(m, x, y, rule, 0) : TRI_NO;
        if (x->n != y->n || x->scale != y->scale)
            return TRI_NO;
        enum tri t = ordered(m, x->child, y->child, x->n, rule, depth);
        *rule = "matrix";
        return t;
    }
    if ((a->flags | b->flags) & HAS_SET) {
        if (a->kind == b->kind && a->n == b->n && a->op == b->op && a->n > 0)
            return ordered(m, a->child, b->child, a->n, rule, depth);
        return TRI_UNKNOWN;
    }
    return scalar_compare(m, a, b, rule, 0);
}

enum tri math_compare(struct math *m, struct node *gold, struct node *pred, const char **rule)
{
    *rule = "";
    enum tri t = readings_decide(m, &gold, &pred) ? compare(m, gold, pred, rule, 0) : TRI_UNKNOWN;
    if (t == TRI_NO && (m->steps < 0 || m->out_of_memory))
        t = TRI_UNKNOWN;    // another rule may have been passed over for want of either
    if (t == TRI_UNKNOWN && !m->why)
        m->why = "neither proved nor refuted";
    return t;
}
