/* relations.c - equations and inequalities: which are equivalent, and which give a value */
#include "workers/engine/reward/math/compare.h"
#include <string.h>

bool node_names(const struct math_node *a)
{
    switch ((enum node_kind)a->kind) {
    case K_SYM:
    case K_TEXT:
    case K_APP: return true;
    case K_CONST: return a->op == CONST_E || a->op == CONST_I;    // E, I and the like as names
    case K_MUL:
    case K_DIV:
    case K_RATIO:
    case K_TUPLE:
        for (int i = 0; i < a->n; i++)
            if (!node_names(a->child[i]))
                return false;
        return true;
    case K_FUNC: return (a->op == FN_ABS || a->op == FN_MAX || a->op == FN_MIN || a->op == FN_ARG) && node_names(a->child[0]);
    case K_UNIT: return node_names(a->child[0]);
    case K_DEG:
    case K_NUM:
    case K_ADD:
    case K_POW:
    case K_NEG:
    case K_ROOT:
    case K_LOG:
    case K_SUM:
    case K_PROD:
    case K_OPAQUE:
    case K_PCT:
    case K_PM:
    case K_LIST:
    case K_SET:
    case K_REL:
    case K_UNION:
    case K_INTER:
    case K_MINUS:
    case K_NAMED_SET:
    case K_JUXT:
    case K_BUILDER:
    case K_CASES:
    case K_MATRIX: break;
    }
    return false;
}

bool node_closed(const struct math_node *a)    // a number, whatever it looks like
{
    return !(a->flags & (HAS_SYM | HAS_OPAQUE | HAS_TEXT | HAS_SET));
}

static struct math_node *named_part(struct math_node *a)    // the part that is named
{
    return a->kind == K_UNIT ? a->child[0] : a;
}

bool relation_chain_false(struct math *m, struct math_node *a)
{
    struct math_node *number = NULL;    // the last one that the chain has given
    for (int i = 0; i <= a->len; i++) {
        struct math_node *side = named_part(a->child[i]);
        const char *rule;
        if (i > 1 && a->s[i - 1] == REL_APPROX && node_names(named_part(a->child[0])))
            break;    // x = 1/3 \approx 0.3: what follows is no part of the answer
        if (i > 0 && a->s[i - 1] != REL_EQ && a->s[i - 1] != REL_APPROX)
            number = NULL;
        if (!node_closed(side) || (side->flags & (HAS_MATRIX | HAS_PM)) || (i == 0 && node_names(side)))
            continue;
        side = a->child[i];
        if (number && scalar_compare(m, number, side, &rule, 0) == TRI_NO && !scalar_near(m, number, side))
            return true;
        number = side;
    }
    return false;
}

bool relation_false(struct math *m, struct math_node *a)
{
    if (a->kind == K_REL)
        return relation_chain_false(m, a);
    bool any = false;
    if (a->kind == K_LIST || a->kind == K_SET)
        for (int i = 0; i < a->n && !any; i++)
            any = relation_false(m, a->child[i]);
    return any;
}

struct math_node *relation_shorten(struct math *m, struct math_node *a)
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
    if (last == 1 && a->s[0] == REL_APPROX && !node_names(a->child[0]))
        return a->child[0];
    struct math_node *b = node_new(m, K_REL, 2, a->child[0], a->child[last]);
    if (b) {
        static const char eq = REL_EQ;
        b->s = &eq;
        b->len = 1;
    }
    return b;
}

bool relation_identity(struct math *m, struct math_node *a)
{
    const char *rule;
    if (a->kind != K_REL || !(a = relation_shorten(m, a)) || a->kind != K_REL || a->len != 1 || a->s[0] != REL_EQ)
        return false;
    struct math_node *l = a->child[0], *r = a->child[1];
    return !((l->flags | r->flags) & (HAS_SET | HAS_MATRIX | HAS_TEXT | HAS_PM)) && !(node_closed(l) && node_closed(r))
           && scalar_equal(m, l, r, 0, &rule) == TRI_YES;
}

struct math_node *relation_assigned(struct math_node *a)
{
    if (a->kind != K_REL || a->len != 1)
        return NULL;
    if (a->s[0] == REL_IN && node_names(a->child[0]))
        return a->child[1];
    if (a->s[0] != REL_EQ)
        return NULL;
    if (node_occurs(a->child[1], a->child[0]))    // x = x + 1 gives x no value
        return NULL;
    if (node_names(a->child[0]))
        return a->child[1];
    if (node_closed(a->child[0]) && a->child[1]->kind == K_SYM)    // 5 = x
        return a->child[0];
    return node_closed(a->child[0]) && node_closed(a->child[1]) ? a->child[1] : NULL;
}

static bool has_function(const struct math_node *a)
{
    if (a->kind == K_APP || a->kind == K_FUNC || a->kind == K_LOG || a->kind == K_OPAQUE || a->kind == K_SUM || a->kind == K_PROD)
        return true;
    for (int i = 0; i < a->n; i++)
        if (has_function(a->child[i]))
            return true;
    return false;
}

/* The value that f(9) - f(3) = 210 gives when the question asks for that difference. A polynomial equal to 0 is an equation to
 * be solved. */
struct math_node *relation_value(struct math *m, struct math_node *a)
{
    const unsigned open = HAS_SYM | HAS_OPAQUE | HAS_TEXT;
    if (a->kind != K_REL || !(a = relation_shorten(m, a)) || a->kind != K_REL || a->len != 1 || a->s[0] != REL_EQ)
        return NULL;
    struct math_node *l = a->child[0], *r = a->child[1];
    if (!(l->flags & open) || (r->flags & open) || (scalar_sign(m, r) == 0 && !has_function(l)))
        return NULL;
    return r;
}

/* ---- two relations ---- */

static bool ordering(char op)
{
    return op == REL_LT || op == REL_LE || op == REL_GT || op == REL_GE;
}

static char turned(char op)
{
    return op == REL_LT ? REL_GT : op == REL_GT ? REL_LT : op == REL_LE ? REL_GE : op == REL_GE ? REL_LE : op;
}

static enum tri step_compare(struct math *m, struct math_node *al, struct math_node *ar, char ao, struct math_node *bl,
                             struct math_node *br, char bo, const char **rule)
{
    int sign;
    if ((al->flags | ar->flags | bl->flags | br->flags) & (HAS_SET | HAS_MATRIX)) {
        if (ao != bo)
            return TRI_NO;
        enum tri l = tree_compare(m, al, bl, rule, 4), r = l == TRI_NO ? TRI_NO : tree_compare(m, ar, br, rule, 4);
        return l == TRI_NO || r == TRI_NO ? TRI_NO : l == TRI_YES && r == TRI_YES ? TRI_YES : TRI_UNKNOWN;
    }
    int inf;
    if (node_infinite(al, &inf) || node_infinite(ar, &inf) || node_infinite(bl, &inf) || node_infinite(br, &inf)) {
        if (ao != bo)
            return TRI_NO;
        enum tri l = scalar_compare(m, al, bl, rule, 0), r = scalar_compare(m, ar, br, rule, 0);
        return l == TRI_NO || r == TRI_NO ? TRI_NO : l == TRI_YES && r == TRI_YES ? TRI_YES : TRI_UNKNOWN;
    }
    bool flip = ao != bo;
    if (flip && !(ordering(ao) && turned(ao) == bo))
        return TRI_NO;
    struct math_node *x = node_minus(m, al, ar), *y = node_minus(m, bl, br);
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
static bool defines_function(const struct math_node *f)
{
    for (int i = 0; i < f->n; i++)
        if (f->child[i]->kind != K_SYM)
            return false;
    return f->kind == K_APP;
}

/* What f(x, y) is, with its parameters named by their places: no text can contain these names, so none is captured. */
static struct math_node *parameters_placed(struct math *m, struct math_node *value, const struct math_node *f)
{
    static const char place[] = "\1\2\3\4\5\6\7\10";
    for (int i = 0; i < f->n && value; i++) {
        struct math_node *name = i + 1 < (int)sizeof place ? node_new(m, K_SYM, 0) : NULL;
        if (!name)
            return NULL;
        name->s = place + i;
        name->len = 1;
        value = node_substitute(m, value, f->child[i], name);
    }
    return value;
}

struct congruence {
    struct math_node *left;    // NULL: only "3 (mod 5)"
    struct math_node *right, *modulus;
};

static bool congruence_of(const struct math_node *a, struct congruence *c)
{
    bool whole = a->len == 2 && (a->s[0] == REL_CONG || a->s[0] == REL_EQ) && a->s[1] == REL_MOD;
    if (!whole && !(a->len == 1 && a->s[0] == REL_MOD))
        return false;
    *c = (struct congruence){ whole ? a->child[0] : NULL, a->child[whole], a->child[whole + 1] };
    return true;
}

/* Equal left sides, equal moduli, and right sides that are apart by a multiple of it. */
static enum tri congruence_compare(struct math *m, struct math_node *a, struct math_node *b, const char **rule, int depth)
{
    struct congruence x, y;
    *rule = "congruence";
    if (!congruence_of(a, &x) || !congruence_of(b, &y))
        return a->len == b->len && memcmp(a->s, b->s, (size_t)a->len) == 0 ? ordered_compare(m, a->child, b->child, a->n, rule, depth)
                                                                           : TRI_NO;
    enum tri mod = tree_compare(m, x.modulus, y.modulus, rule, depth + 1), left = TRI_YES;
    if (x.left && y.left && mod != TRI_NO)
        left = tree_compare(m, x.left, y.left, rule, depth + 1);
    else if (x.left || y.left)
        left = node_names(x.left ? x.left : y.left) ? TRI_YES : TRI_NO;
    if (mod == TRI_NO || left == TRI_NO)
        return TRI_NO;
    enum tri right = tree_compare(m, x.right, y.right, rule, depth + 1);
    if (right != TRI_YES) {
        struct math_node *rest = node_new(m, K_FUNC, 2, node_minus(m, x.right, y.right), x.modulus);
        if (!rest)
            return TRI_UNKNOWN;
        rest->op = FN_MOD;
        enum tri multiple = scalar_equal(m, rest, node_int(m, 0), 0, rule);
        right = tri_either(right, multiple);
    }
    *rule = "congruence";
    return right == TRI_YES && mod == TRI_YES && left == TRI_YES ? TRI_YES : right == TRI_NO ? TRI_NO : TRI_UNKNOWN;
}

static bool has_modulus(const struct math_node *a)
{
    return memchr(a->s, REL_MOD, (size_t)a->len) != NULL;
}

enum tri relation_compare(struct math *m, struct math_node *a, struct math_node *b, const char **rule, int depth)
{
    if (has_modulus(a) || has_modulus(b))
        return congruence_compare(m, a, b, rule, depth);
    struct math_node *va = relation_assigned(a), *vb = relation_assigned(b);
    if (va && vb) {
        const struct math_node *fa = a->child[0], *fb = b->child[0];
        if (a->s[0] == REL_EQ && b->s[0] == REL_EQ && defines_function(fa) && defines_function(fb) && name_same(fa, fb) && fa->n == fb->n) {
            va = parameters_placed(m, va, fa);
            vb = parameters_placed(m, vb, fb);
            return va && vb ? tree_compare(m, va, vb, rule, depth + 1) : TRI_UNKNOWN;
        }
        enum tri name = TRI_NO;
        if (a->s[0] == b->s[0]) {
            const char *r2;
            name = node_closed(a->child[0]) && node_closed(b->child[0]) && !node_names(a->child[0]) && !node_names(b->child[0])
                       ? TRI_YES
                       : tree_compare(m, a->child[0], b->child[0], &r2, depth + 1);
            if (name == TRI_YES)
                return tree_compare(m, va, vb, rule, depth + 1);
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
                enum tri s = way ? step_compare(m, a->child[i], a->child[i + 1], a->s[i], b->child[k + 1], b->child[k], turned(b->s[k]),
                                                rule)
                                 : step_compare(m, a->child[i], a->child[i + 1], a->s[i], b->child[k], b->child[k + 1], b->s[k], rule);
                all = s == TRI_NO ? TRI_NO : s == TRI_UNKNOWN ? TRI_UNKNOWN : all;
            }
            t = tri_either(t, all);
            if (a->len == 1)
                break;    // a single relation turned round is a factor of -1, already tried
        }
    }
    if (t != TRI_YES) {
        struct pieces pa, pb;
        const struct math_node *ua, *ub;
        if (relation_pieces(m, a, &pa, &ua) && relation_pieces(m, b, &pb, &ub)) {
            return unknown_same(ua, ub) ? pieces_equal(m, &pa, &pb, rule) : TRI_NO;
        }
    }
    return t;
}

/* ---- functions by cases ---- */

static bool has_corners(const struct math_node *a)
{
    bool any = a->kind == K_FUNC
               && (a->op == FN_ABS || a->op == FN_FLOOR || a->op == FN_CEIL || a->op == FN_SIGN || a->op == FN_MAX || a->op == FN_MIN);
    for (int i = 0; !any && i < a->n; i++)
        any = has_corners(a->child[i]);
    return any;
}

/* Where each case applies, all in the one unknown u; "otherwise" is where no other does. False: not so simple. */
static bool cases_pieces(struct math *m, struct math_node *a, struct pieces *out, const struct math_node **u)
{
    struct pieces any = { 0 };
    *u = NULL;
    for (int i = 0; i < a->n / 2; i++) {
        struct math_node *when = a->child[2 * i + 1];
        const struct math_node *one = NULL;
        bool many = false;
        if (when->kind == K_TEXT) {
            out[i] = (struct pieces){ .n = 1, .p = { { .lo_open = true, .hi_open = true } } };
            if (!(when->len == (int32_t)strlen(CASE_OTHERWISE) && memcmp(when->s, CASE_OTHERWISE, (size_t)when->len) == 0)
                || i + 1 < a->n / 2 || !pieces_join(m, &out[i], &any, K_MINUS))
                return false;
            continue;
        }
        one = unknown_find(when, NULL, &many);
        one = one && one->kind == K_FUNC ? one->child[0] : one;
        if (!one || many || one->kind != K_SYM || (*u && !name_same(*u, one)) || !pieces_of(m, when, &out[i], 8)
            || !pieces_join(m, &any, &out[i], K_UNION))
            return false;
        *u = one;
    }
    return *u != NULL;
}

/* Compare two values on the pieces of the line where both apply. */
static enum tri cases_on(struct math *m, struct math_node *x, struct math_node *y, const struct pieces *on, const struct math_node *u,
                         const char **rule, int depth)
{
    enum tri all = TRI_YES;
    for (int i = 0; i < on->n && all != TRI_NO; i++) {
        struct math_node *lo = on->p[i].lo, *hi = on->p[i].hi;
        const char *r;
        bool point = lo && hi && scalar_equal(m, lo, hi, 0, &r) == TRI_YES;
        enum tri t = point ? tree_compare(m, node_substitute(m, x, u, lo), node_substitute(m, y, u, lo), rule, depth + 1)
                           : tree_compare(m, x, y, rule, depth + 1);
        if (t == TRI_NO && !point && (has_corners(x) || has_corners(y)))    // |x| is x for positive x
            t = TRI_UNKNOWN;
        all = t == TRI_YES ? all : t;
    }
    return all;
}

/* Do two cases of a apply at once, and give different values? */
static bool cases_clash(struct math *m, struct math_node *a, const struct pieces *when, const struct math_node *u, int depth)
{
    const char *rule;
    for (int i = 0; i < a->n / 2; i++)
        for (int k = 0; k < i; k++) {
            struct pieces both = when[i];
            if (!pieces_join(m, &both, &when[k], K_INTER)
                || cases_on(m, a->child[2 * i], a->child[2 * k], &both, u, &rule, depth) != TRI_YES)
                return true;
        }
    return false;
}

/* The cases of a and b paired by their conditions. */
static enum tri cases_paired(struct math *m, struct math_node *a, struct math_node *b, const char **rule, int depth)
{
    enum tri all = a->n == b->n ? TRI_YES : TRI_UNKNOWN;
    for (int i = 0; i < a->n && all == TRI_YES; i += 2) {
        enum tri value = TRI_NO;
        bool found = false;
        for (int k = 0; k < b->n && value != TRI_YES; k += 2) {
            struct math_node *x = a->child[i + 1], *y = b->child[k + 1];
            bool words = x->kind == K_TEXT || y->kind == K_TEXT;
            if (words ? x->kind == y->kind && name_same(x, y) : tree_compare(m, x, y, rule, depth + 1) == TRI_YES) {
                value = tri_either(value, tree_compare(m, a->child[i], b->child[k], rule, depth + 1));
                found = true;
            }
        }
        all = found ? value : TRI_UNKNOWN;
    }
    return all;
}

enum tri cases_compare(struct math *m, struct math_node *a, struct math_node *b, const char **rule, int depth)
{
    int na = a->n / 2, nb = b->n / 2;
    struct pieces *pa = math_take(m, sizeof *pa * (size_t)na), *pb = math_take(m, sizeof *pb * (size_t)nb);
    const struct math_node *u, *v;
    enum tri all = TRI_YES;
    if (!pa || !pb)
        return TRI_UNKNOWN;
    if (!cases_pieces(m, a, pa, &u) || !cases_pieces(m, b, pb, &v) || !name_same(u, v) || cases_clash(m, a, pa, u, depth)
        || cases_clash(m, b, pb, v, depth)) {
        all = cases_paired(m, a, b, rule, depth);
        if (all != cases_paired(m, b, a, rule, depth))    // one of them has two values in one case
            all = TRI_UNKNOWN;
    } else {
        struct pieces da = { 0 }, db = { 0 };    // all of them
        for (int i = 0; i < na && all != TRI_NO; i++)
            for (int k = 0; k < nb && all != TRI_NO; k++) {
                struct pieces both = pa[i];
                enum tri t = pieces_join(m, &both, &pb[k], K_INTER) ? cases_on(m, a->child[2 * i], b->child[2 * k], &both, u, rule, depth)
                                                                    : TRI_UNKNOWN;
                all = t == TRI_YES ? all : t;
            }
        bool joined = true;
        for (int i = 0; i < na; i++)
            joined = joined && pieces_join(m, &da, &pa[i], K_UNION);
        for (int i = 0; i < nb; i++)
            joined = joined && pieces_join(m, &db, &pb[i], K_UNION);
        enum tri domain = joined ? pieces_equal(m, &da, &db, rule) : TRI_UNKNOWN;
        all = all == TRI_YES || domain == TRI_NO ? domain : all;
    }
    *rule = "cases";
    m->why = all == TRI_UNKNOWN ? "functions by cases that could not be compared" : m->why;
    return all;
}
