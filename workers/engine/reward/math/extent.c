/* extent.c - where trees that contain infinity lie on the real line with its two ends */
#include "workers/engine/reward/math/eval.h"

enum extent {
    EXT_UNKNOWN,
    EXT_UNDEFINED,
    EXT_MINUS_INF,
    EXT_NEGATIVE,
    EXT_ZERO,
    EXT_POSITIVE,
    EXT_PLUS_INF,
};

static bool extent_infinite(enum extent e)
{
    return e == EXT_MINUS_INF || e == EXT_PLUS_INF;
}

static int extent_sign(enum extent e)
{
    return e == EXT_MINUS_INF || e == EXT_NEGATIVE ? -1 : e == EXT_ZERO ? 0 : 1;
}

static enum extent extent_sum(enum extent a, enum extent b)
{
    if (extent_infinite(a) && extent_infinite(b))
        return a == b ? a : EXT_UNDEFINED;
    if (extent_infinite(a) || extent_infinite(b))
        return extent_infinite(a) ? a : b;
    return a == EXT_ZERO ? b : b == EXT_ZERO || a == b ? a : EXT_UNKNOWN;
}

static enum extent extent_product(enum extent a, enum extent b)
{
    int sign = extent_sign(a) * extent_sign(b);
    if (extent_infinite(a) || extent_infinite(b))
        return sign > 0 ? EXT_PLUS_INF : sign < 0 ? EXT_MINUS_INF : EXT_UNDEFINED;
    return sign > 0 ? EXT_POSITIVE : sign < 0 ? EXT_NEGATIVE : EXT_ZERO;
}

static enum extent extent_inverse(enum extent a)
{
    return extent_infinite(a) ? EXT_ZERO : a == EXT_ZERO ? EXT_UNDEFINED : a;
}

static enum extent extent_of(struct math *m, const struct math_node *a);

static enum extent extent_power(struct math *m, const struct math_node *base, enum extent b, enum extent e)
{
    if (e == EXT_MINUS_INF || e == EXT_NEGATIVE) {
        enum extent up = extent_power(m, base, b, e == EXT_NEGATIVE ? EXT_POSITIVE : EXT_PLUS_INF);
        return up == EXT_UNKNOWN || up == EXT_UNDEFINED ? up : extent_inverse(up);
    }
    if (e == EXT_PLUS_INF && (b == EXT_POSITIVE || b == EXT_PLUS_INF)) {
        struct math_node *d = b == EXT_PLUS_INF ? NULL : node_new(m, K_ADD, 2, base, node_new(m, K_NEG, 1, node_int(m, 1)));
        int above = b == EXT_PLUS_INF ? 1 : d ? scalar_sign(m, d) : -2;
        return above == -2 ? EXT_UNKNOWN : above > 0 ? EXT_PLUS_INF : above < 0 ? EXT_ZERO : EXT_UNDEFINED;
    }
    if (b == EXT_PLUS_INF)
        return e == EXT_ZERO ? EXT_UNDEFINED : EXT_PLUS_INF;
    return EXT_UNKNOWN;
}

/* Where a tree without free symbols lies on the real line with its two ends; EXT_UNDEFINED: nowhere, as with
 * infinity - infinity, 0 * infinity, infinity / infinity, 1^infinity. */
static enum extent extent_of(struct math *m, const struct math_node *a)
{
    if (!(a->flags & HAS_INF)) {
        int sign = scalar_sign(m, a);
        return sign == -2 ? EXT_UNKNOWN : sign < 0 ? EXT_NEGATIVE : sign > 0 ? EXT_POSITIVE : EXT_ZERO;
    }
    if (a->kind == K_CONST)
        return EXT_PLUS_INF;
    enum extent all = EXT_UNKNOWN, e;
    for (int i = 0; i < a->n; i++) {
        e = extent_of(m, a->child[i]);
        if (e == EXT_UNKNOWN || e == EXT_UNDEFINED)
            return e;
        if (i == 0)
            all = e;
        else if (a->kind == K_ADD)
            all = extent_sum(all, e);
        else if (a->kind == K_MUL)
            all = extent_product(all, e);
        else if (a->kind == K_DIV)
            all = extent_infinite(all) && extent_infinite(e) ? EXT_UNDEFINED
                  : e == EXT_ZERO                            ? EXT_UNDEFINED
                                                             : extent_product(all, extent_inverse(e));
        else if (a->kind == K_POW)
            all = extent_power(m, a->child[0], all, e);
        else if (!(a->kind == K_ROOT && all == EXT_PLUS_INF && e == EXT_POSITIVE))
            return EXT_UNKNOWN;
        if (all == EXT_UNKNOWN || all == EXT_UNDEFINED)
            return all;
    }
    switch ((enum node_kind)a->kind) {
    case K_ADD:
    case K_MUL:
    case K_DIV:
    case K_POW:
    case K_ROOT:
    case K_UNIT: return all;
    case K_NEG:
        return all == EXT_PLUS_INF    ? EXT_MINUS_INF
               : all == EXT_MINUS_INF ? EXT_PLUS_INF
               : all == EXT_POSITIVE  ? EXT_NEGATIVE
               : all == EXT_NEGATIVE  ? EXT_POSITIVE
                                      : all;
    case K_FUNC:
        if (a->op == FN_ABS)
            return extent_infinite(all) ? EXT_PLUS_INF : all == EXT_NEGATIVE ? EXT_POSITIVE : all;
        if (a->op == FN_EXP && extent_infinite(all))
            return all == EXT_PLUS_INF ? EXT_PLUS_INF : EXT_ZERO;
        return a->op == FN_LN && all == EXT_PLUS_INF ? EXT_PLUS_INF : EXT_UNKNOWN;
    default:    // no operation on the line
        return EXT_UNKNOWN;
    }
}

enum tri extents_equal(struct math *m, const struct math_node *a, const struct math_node *b, const char **rule)
{
    enum extent x = extent_of(m, a), y = extent_of(m, b);
    *rule = "infinity";
    m->why = x == EXT_UNDEFINED || y == EXT_UNDEFINED ? "undefined form" : "infinity in an expression";
    if (x == EXT_UNKNOWN || y == EXT_UNKNOWN || x == EXT_UNDEFINED || y == EXT_UNDEFINED)
        return TRI_UNKNOWN;
    if (extent_infinite(x) || extent_infinite(y) || x == EXT_ZERO || y == EXT_ZERO)
        return x == y ? TRI_YES : TRI_NO;
    return x == y ? TRI_UNKNOWN : TRI_NO;    // two numbers of the same sign may be equal
}

bool extent_undefined(struct math *m, const struct math_node *a)
{
    return extent_of(m, a) == EXT_UNDEFINED;
}
