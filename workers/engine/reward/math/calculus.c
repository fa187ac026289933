/* calculus.c - derivatives by the rules of the calculus; limits by continuity and by power series with rational coefficients */
#include "workers/engine/reward/math/calculus.h"
#include <flint/fmpq_poly.h>
#include "workers/engine/reward/math/compare.h"

#define SERIES_TERMS 24
#define CONSTANT_BITS_MAX 512
#define LIMIT_DEPTH_MAX 24    // of nested functions

static struct math_node *function(struct math *m, enum math_func fn, struct math_node *arg)
{
    struct math_node *a = node_op(node_new(m, K_FUNC, 1, arg), fn);
    if (a && fn != FN_ABS)
        a->flags |= HAS_TRANS;
    return a;
}

static struct math_node *one_over(struct math *m, struct math_node *a)
{
    return node_new(m, K_DIV, 2, node_int(m, 1), a);
}

static struct math_node *square(struct math *m, struct math_node *a)
{
    return node_new(m, K_POW, 2, a, node_int(m, 2));
}

static struct math_node *root_of(struct math *m, struct math_node *a)
{
    return node_new(m, K_ROOT, 2, a, node_int(m, 2));
}

static struct math_node *negative(struct math *m, struct math_node *a)
{
    return node_new(m, K_NEG, 1, a);
}

static struct math_node *product(struct math *m, struct math_node *a, struct math_node *b)
{
    return node_new(m, K_MUL, 2, a, b);
}

/* ---- derivatives ---- */

/* The derivative of a function of one argument at u; NULL: not known here. */
static struct math_node *function_derivative(struct math *m, enum math_func fn, struct math_node *u)
{
    struct math_node *one = node_int(m, 1);
    switch (fn) {
    case FN_SIN: return function(m, FN_COS, u);
    case FN_COS: return negative(m, function(m, FN_SIN, u));
    case FN_TAN: return one_over(m, square(m, function(m, FN_COS, u)));
    case FN_COT: return negative(m, one_over(m, square(m, function(m, FN_SIN, u))));
    case FN_SEC: return product(m, function(m, FN_SEC, u), function(m, FN_TAN, u));
    case FN_CSC: return negative(m, product(m, function(m, FN_CSC, u), function(m, FN_COT, u)));
    case FN_ASIN: return one_over(m, root_of(m, node_minus(m, one, square(m, u))));
    case FN_ACOS: return negative(m, one_over(m, root_of(m, node_minus(m, one, square(m, u)))));
    case FN_ATAN: return one_over(m, node_new(m, K_ADD, 2, one, square(m, u)));
    case FN_ACOT: return negative(m, one_over(m, node_new(m, K_ADD, 2, one, square(m, u))));
    case FN_SINH: return function(m, FN_COSH, u);
    case FN_COSH: return function(m, FN_SINH, u);
    case FN_TANH: return one_over(m, square(m, function(m, FN_COSH, u)));
    case FN_ASINH: return one_over(m, root_of(m, node_new(m, K_ADD, 2, one, square(m, u))));
    case FN_ATANH: return one_over(m, node_minus(m, one, square(m, u)));
    case FN_EXP: return function(m, FN_EXP, u);
    case FN_LN: return one_over(m, u);
    default: return NULL;
    }
}

/* b^e: e b^(e-1) b' + b^e ln(b) e'. */
static struct math_node *power_derivative(struct math *m, struct math_node *a, const struct math_node *x)
{
    struct math_node *b = a->child[0], *e = a->child[1], *term[2];
    int n = 0;
    if (node_occurs(b, x)) {
        struct math_node *less = node_new(m, K_POW, 2, b, node_minus(m, e, node_int(m, 1)));
        term[n++] = node_new(m, K_MUL, 3, e, less, derivative_of(m, b, x));
    }
    if (node_occurs(e, x)) {
        bool natural = node_is(b, K_CONST) && b->op == CONST_E;
        struct math_node *log = natural ? node_int(m, 1) : function(m, FN_LN, b);
        term[n++] = node_new(m, K_MUL, 3, a, log, derivative_of(m, e, x));
    }
    return n == 1 ? term[0] : node_list(m, K_ADD, term, n);
}

struct math_node *derivative_of(struct math *m, struct math_node *a, const struct math_node *x)
{
    struct math_node *part[64], *u = a->n > 0 ? a->child[0] : NULL;
    if (!math_spend(m, 4))
        return NULL;
    if (!node_occurs(a, x))
        return a->flags & (HAS_SET | HAS_TEXT | HAS_INF | HAS_PM | HAS_OPAQUE) ? NULL : node_int(m, 0);
    switch ((enum node_kind)a->kind) {
    case K_SYM: return node_int(m, 1);
    case K_NEG: return negative(m, derivative_of(m, u, x));
    case K_ADD:
        for (int i = 0; i < a->n && i < 64; i++)
            part[i] = derivative_of(m, a->child[i], x);
        return a->n <= 64 ? node_list(m, K_ADD, part, a->n) : NULL;
    case K_MUL: {
        int n = 0;
        for (int i = 0; i < a->n; i++) {
            struct math_node *factor[64];
            if (!node_occurs(a->child[i], x))
                continue;
            if (a->n > 64)
                return NULL;
            for (int k = 0; k < a->n; k++)
                factor[k] = k == i ? derivative_of(m, a->child[k], x) : a->child[k];
            part[n++] = node_list(m, K_MUL, factor, a->n);
        }
        return n == 1 ? part[0] : node_list(m, K_ADD, part, n);
    }
    case K_DIV: {
        struct math_node *v = a->child[1], *du = derivative_of(m, u, x), *dv = derivative_of(m, v, x);
        return node_new(m, K_DIV, 2, node_minus(m, product(m, du, v), product(m, u, dv)), square(m, v));
    }
    case K_POW: return power_derivative(m, a, x);
    case K_ROOT:    // of u: root / (index u) u'
        return node_occurs(a->child[1], x) ? NULL
                                           : product(m, node_new(m, K_DIV, 2, a, product(m, a->child[1], u)), derivative_of(m, u, x));
    case K_LOG:
        return node_occurs(a->child[1], x) ? NULL
                                           : node_new(m, K_DIV, 2, derivative_of(m, u, x), product(m, u, function(m, FN_LN, a->child[1])));
    case K_FUNC: return a->n == 1 ? product(m, function_derivative(m, (enum math_func)a->op, u), derivative_of(m, u, x)) : NULL;
    default: return NULL;
    }
}

/* ---- power series: t^order (p + O(t^terms)), t > 0 ---- */

struct series {
    fmpq_poly_t p;
    slong order, terms;
};
struct approach {
    struct math *m;
    const struct math_node *x;
    struct math_node *to;    // x is to + side t, or side / t
    int side;
    bool endless;    // to is an infinity
};

static void series_init(struct series *s)
{
    fmpq_poly_init(s->p);
    s->order = 0;
    s->terms = SERIES_TERMS;
}

/* Let p begin with a term that is not 0. False: all known terms are 0. */
static bool series_normal(struct series *s)
{
    fmpq_t c;
    slong zero = 0;
    fmpq_init(c);
    while (zero < s->terms && (fmpq_poly_get_coeff_fmpq(c, s->p, zero), fmpq_is_zero(c)))
        zero++;
    fmpq_clear(c);
    if (zero == s->terms)
        return false;
    fmpq_poly_shift_right(s->p, s->p, zero);
    s->order += zero;
    s->terms -= zero;
    return s->order > -1000 && s->order < 1000;
}

static bool series_of(struct approach *at, const struct math_node *a, struct series *s);

static bool series_constant(struct approach *at, const struct math_node *a, struct series *s)
{
    fmpq_t q;
    fmpq_init(q);
    bool ok = !(a->flags & HAS_INF) && eval_rational(at->m, a, q)
              && fmpz_bits(fmpq_numref(q)) + fmpz_bits(fmpq_denref(q)) < CONSTANT_BITS_MAX;
    if (ok)
        fmpq_poly_set_fmpq(s->p, q);
    fmpq_clear(q);
    return ok;
}

static bool series_variable(struct approach *at, struct series *s)
{
    if (at->endless) {
        fmpq_poly_set_si(s->p, at->side);
        s->order = -1;
        return true;
    }
    if (!series_constant(at, at->to, s))
        return false;
    fmpq_poly_set_coeff_si(s->p, 1, at->side);
    return true;
}

static void series_add(struct series *s, struct series *t)
{
    slong order = MIN(s->order, t->order), known = MIN(s->order + s->terms, t->order + t->terms);
    fmpq_poly_shift_left(s->p, s->p, s->order - order);
    fmpq_poly_shift_left(t->p, t->p, t->order - order);
    fmpq_poly_add(s->p, s->p, t->p);
    s->order = order;
    s->terms = MAX(known - order, 0);
    fmpq_poly_truncate(s->p, s->terms);
}

/* s times t, or divided by it. */
static bool series_multiply(struct series *s, struct series *t, bool divide)
{
    if (divide && !series_normal(t))
        return false;
    s->terms = MIN(s->terms, t->terms);
    if (s->terms <= 0)
        return false;
    if (divide)
        fmpq_poly_div_series(s->p, s->p, t->p, s->terms);
    else
        fmpq_poly_mullow(s->p, s->p, t->p, s->terms);
    s->order += divide ? -t->order : t->order;
    return true;
}

/* s to the power q, its real value for t > 0. */
static bool series_power(struct math *m, struct series *s, const fmpq_t q)
{
    fmpq_t head, order;
    int64_t up = 0;
    fmpq_init(head);
    fmpq_init(order);
    bool ok = series_normal(s);
    if (ok) {
        fmpq_set_si(order, s->order, 1);
        fmpq_mul(order, order, q);
        fmpq_poly_get_coeff_fmpq(head, s->p, 0);
        ok = int_get(order, -500, 500, &up) && fmpz_bits(fmpq_numref(q)) < 16 && fmpz_bits(fmpq_denref(q)) < 16;
    }
    if (ok) {
        fmpq_poly_scalar_div_fmpq(s->p, s->p, head);    // head times (1 + ...)
        fmpq_poly_log_series(s->p, s->p, s->terms);
        fmpq_poly_scalar_mul_fmpq(s->p, s->p, q);
        fmpq_poly_exp_series(s->p, s->p, s->terms);
        ok = power_exact(m, head, head, q);
        fmpq_poly_scalar_mul_fmpq(s->p, s->p, head);
        s->order = up;
    }
    fmpq_clear(head);
    fmpq_clear(order);
    return ok;
}

/* A function of s; those with a series at 0 only where s is 0 there, a logarithm where s is 1. */
static bool series_function(enum math_func fn, struct series *s)
{
    fmpq_t head;
    bool ok = series_normal(s) && s->order >= 0;
    fmpq_init(head);
    if (fn == FN_ABS) {
        fmpq_poly_get_coeff_fmpq(head, s->p, 0);
        if (fmpq_sgn(head) < 0)
            fmpq_poly_neg(s->p, s->p);
        fmpq_clear(head);
        return s->terms > 0 && !fmpq_poly_is_zero(s->p);
    }
    if (ok) {
        s->terms += s->order;
        fmpq_poly_shift_left(s->p, s->p, s->order);
        s->order = 0;
        fmpq_poly_get_coeff_fmpq(head, s->p, 0);
        ok = fn == FN_LN ? fmpq_is_one(head) : fmpq_is_zero(head);
    }
    fmpq_clear(head);
    if (!ok)
        return false;
    switch (fn) {
    case FN_SIN: fmpq_poly_sin_series(s->p, s->p, s->terms); return true;
    case FN_COS: fmpq_poly_cos_series(s->p, s->p, s->terms); return true;
    case FN_TAN: fmpq_poly_tan_series(s->p, s->p, s->terms); return true;
    case FN_SINH: fmpq_poly_sinh_series(s->p, s->p, s->terms); return true;
    case FN_COSH: fmpq_poly_cosh_series(s->p, s->p, s->terms); return true;
    case FN_TANH: fmpq_poly_tanh_series(s->p, s->p, s->terms); return true;
    case FN_ASIN: fmpq_poly_asin_series(s->p, s->p, s->terms); return true;
    case FN_ATAN: fmpq_poly_atan_series(s->p, s->p, s->terms); return true;
    case FN_EXP: fmpq_poly_exp_series(s->p, s->p, s->terms); return true;
    case FN_LN: fmpq_poly_log_series(s->p, s->p, s->terms); return true;
    default: return false;
    }
}

static bool series_of(struct approach *at, const struct math_node *a, struct series *s)
{
    if (!math_spend(at->m, 200))
        return false;
    if (!node_occurs(a, at->x))
        return series_constant(at, a, s);
    switch ((enum node_kind)a->kind) {
    case K_SYM: return series_variable(at, s);
    case K_NEG:
        if (!series_of(at, a->child[0], s))
            return false;
        fmpq_poly_neg(s->p, s->p);
        return true;
    case K_ADD:
    case K_MUL:
    case K_DIV: {
        bool ok = series_of(at, a->child[0], s);
        for (int i = 1; ok && i < a->n; i++) {
            struct series t;
            series_init(&t);
            ok = series_of(at, a->child[i], &t);
            if (ok && a->kind == K_ADD)
                series_add(s, &t);
            else if (ok)
                ok = series_multiply(s, &t, a->kind == K_DIV);
            fmpq_poly_clear(t.p);
        }
        return ok && s->terms > 0;
    }
    case K_POW:
    case K_ROOT: {
        fmpq_t q;
        fmpq_init(q);
        bool power = node_is(a, K_POW), e = power && node_is(a->child[0], K_CONST) && a->child[0]->op == CONST_E, ok;
        if (e) {
            ok = series_of(at, a->child[1], s) && series_function(FN_EXP, s);
        } else {
            ok = !node_occurs(a->child[1], at->x) && series_of(at, a->child[0], s) && eval_rational(at->m, a->child[1], q)
                 && !fmpq_is_zero(q);
            if (ok && !power)
                fmpq_inv(q, q);
            ok = ok && series_power(at->m, s, q);
        }
        fmpq_clear(q);
        return ok;
    }
    case K_FUNC: return a->n == 1 && series_of(at, a->child[0], s) && series_function((enum math_func)a->op, s);
    default: return false;
    }
}

/* ---- limits ---- */

static struct math_node *infinite(struct math *m, int sign)
{
    struct math_node *a = node_const(m, CONST_INF);
    return sign < 0 ? negative(m, a) : a;
}

static struct math_node *rational_node(struct math *m, const fmpq_t q)
{
    if (fmpz_bits(fmpq_numref(q)) > 59 || fmpz_bits(fmpq_denref(q)) > 59)
        return NULL;
    int64_t num = fmpz_get_si(fmpq_numref(q));
    struct math_node *a = node_new(m, K_DIV, 2, node_int(m, num < 0 ? -num : num), node_int(m, fmpz_get_si(fmpq_denref(q))));
    return num < 0 ? negative(m, a) : a;
}

static struct math_node *series_limit(struct approach *at, const struct math_node *a)
{
    struct series s;
    fmpq_t q;
    struct math_node *out = NULL;
    const char *why = at->m->why;
    series_init(&s);
    fmpq_init(q);
    if (series_of(at, a, &s) && series_normal(&s)) {
        fmpq_poly_get_coeff_fmpq(q, s.p, 0);
        out = s.order < 0 ? infinite(at->m, fmpq_sgn(q)) : s.order > 0 ? node_int(at->m, 0) : rational_node(at->m, q);
    }
    fmpq_clear(q);
    fmpq_poly_clear(s.p);
    at->m->why = why;
    return out;
}

static struct math_node *one_sided(struct approach *at, struct math_node *a, int depth);

/* base^exponent with x in the exponent: e^(exponent ln base). */
static struct math_node *exponential_limit(struct approach *at, struct math_node *a, int depth)
{
    struct math *m = at->m;
    struct math_node *base = a->child[0], *arg;
    int sign;
    if (node_is(base, K_CONST) && base->op == CONST_E) {
        arg = a->child[1];
    } else {
        struct math_node *to = one_sided(at, base, depth);
        if (!to || (to->flags & HAS_INF) || scalar_sign(m, to) != 1)
            return NULL;
        arg = product(m, a->child[1], function(m, FN_LN, base));
    }
    arg = arg ? one_sided(at, arg, depth) : NULL;
    if (!arg)
        return NULL;
    if (node_infinite(arg, &sign))
        return sign > 0 ? infinite(m, 1) : node_int(m, 0);
    return node_new(m, K_POW, 2, node_const(m, CONST_E), arg);
}

/* A function that is continuous where its argument goes. */
static struct math_node *function_limit(struct approach *at, struct math_node *a, int depth)
{
    struct math *m = at->m;
    struct math_node *to = a->n == 1 ? one_sided(at, a->child[0], depth) : NULL;
    int sign;
    if (!to)
        return NULL;
    if (node_infinite(to, &sign)) {
        if (a->op == FN_EXP)
            return sign > 0 ? infinite(m, 1) : node_int(m, 0);
        if (a->op == FN_LN && sign > 0)
            return infinite(m, 1);
        if (a->op != FN_ATAN)
            return NULL;
        struct math_node *half = node_new(m, K_DIV, 2, node_const(m, CONST_PI), node_int(m, 2));
        return sign > 0 ? half : negative(m, half);
    }
    switch ((enum math_func)a->op) {
    case FN_SIN:
    case FN_COS:
    case FN_EXP:
    case FN_ATAN:
    case FN_SINH:
    case FN_COSH:
    case FN_TANH:
    case FN_ASINH:
    case FN_ABS: return function(m, (enum math_func)a->op, to);
    case FN_LN: return scalar_sign(m, to) == 1 ? function(m, FN_LN, to) : NULL;
    default: return NULL;
    }
}

static struct math_node *one_sided(struct approach *at, struct math_node *a, int depth)
{
    struct math *m = at->m;
    if (depth > LIMIT_DEPTH_MAX || !math_spend(m, 20))
        return NULL;
    if (!node_occurs(a, at->x))
        return a->flags & (HAS_SET | HAS_TEXT | HAS_INF | HAS_PM | HAS_OPAQUE) ? NULL : a;
    struct math_node *out = series_limit(at, a), *part[16];
    if (out)
        return out;
    if (a->kind == K_SYM)
        return at->endless ? infinite(m, at->side) : at->to;
    if (a->kind == K_POW && node_occurs(a->child[1], at->x))
        return exponential_limit(at, a, depth + 1);
    if (a->kind == K_FUNC)
        return function_limit(at, a, depth + 1);
    bool keeps = a->kind == K_ADD || a->kind == K_MUL || a->kind == K_NEG || a->kind == K_DIV || a->kind == K_POW || a->kind == K_ROOT;
    if (!keeps || a->n > (int)ARRAY_SIZE(part))
        return NULL;
    int inf;
    for (int i = 0; i < a->n; i++) {
        part[i] = one_sided(at, a->child[i], depth + 1);
        bool last = a->kind == K_DIV && i == 1;
        if (last && part[1] && node_infinite(part[1], &inf))
            return node_int(m, 0);
        if (!part[i] || (part[i]->flags & HAS_INF))
            return NULL;
        if ((last && scalar_sign(m, part[1]) * scalar_sign(m, part[1]) != 1)
            || ((a->kind == K_POW || a->kind == K_ROOT) && i == 0 && scalar_sign(m, part[0]) != 1))
            return NULL;
    }
    return node_like(m, a, (enum node_kind)a->kind, part);
}

struct math_node *limit_of(struct math *m, struct math_node *a, const struct math_node *x, struct math_node *to, int side)
{
    int sign, sa, sb;
    const char *rule;
    struct approach at = { .m = m, .x = x, .to = to, .side = side };
    if (node_infinite(to, &sign)) {
        at.endless = true;
        at.side = sign;
        return one_sided(&at, a, 0);
    }
    if (to->flags & (HAS_SYM | HAS_INF | HAS_OPAQUE | HAS_PM | HAS_SET | HAS_I))
        return NULL;
    if (side != 0)
        return one_sided(&at, a, 0);
    at.side = 1;
    struct math_node *above = one_sided(&at, a, 0);
    at.side = -1;
    struct math_node *below = above ? one_sided(&at, a, 0) : NULL;
    if (!below)
        return NULL;
    bool ia = node_infinite(above, &sa), ib = node_infinite(below, &sb);
    bool same = ia || ib ? ia && ib && sa == sb : scalar_equal(m, above, below, 0, &rule) == TRI_YES;
    return same ? above : NULL;
}
