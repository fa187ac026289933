/* eval.c - are two scalar trees equal? Exactly, by residues, or within balls; cheapest first
 *
 * Rational trees are computed exactly. Residues prove polynomials and rational functions equal or different, and other
 * trees equal. Then balls: those that do not meet prove trees different; those that meet when they are smaller than 2^-400
 * of the value (2^-100 at each of 8 points with free symbols) count as equal. */
#include "workers/engine/reward/math/eval.h"
#include <string.h>

/* Is this one decimal number as written, with nothing but a sign, percent mark or power of ten? */
static bool decimal_atom(const struct math_node *a)
{
    while (a->kind == K_NEG || a->kind == K_PCT || a->kind == K_UNIT)
        a = a->child[0];
    if (a->kind == K_NUM)
        return a->flags & HAS_DECIMAL;
    return a->kind == K_MUL && a->n == 2 && (a->flags & HAS_DECIMAL) && node_is(a->child[0], K_NUM) && node_is(a->child[1], K_POW)
           && node_is(a->child[1]->child[0], K_NUM) && a->child[1]->child[0]->small == 10;
}

/* The tolerance for decimals: half a unit of the last decimal, but never more than the smaller value times
 * 10^-(decimals * 2 / 3), a ten-thousandth for 6 decimals, so that small numbers do not all become equal. */
static void tolerance_set(arb_t tol, const acb_t x, const acb_t y, int decimals, slong prec)
{
    arb_t rel, other;
    arb_init(rel);
    arb_init(other);
    arb_set_ui(tol, 10);
    arb_pow_ui(tol, tol, (ulong)decimals, prec);
    arb_mul_2exp_si(tol, tol, 1);
    arb_inv(tol, tol, prec);
    arb_mul_ui(tol, tol, 1000001, prec);    // 0.5 units plus a millionth of that, so that exactly a half counts
    arb_div_ui(tol, tol, 1000000, prec);
    acb_abs(rel, x, prec);
    acb_abs(other, y, prec);
    arb_min(rel, rel, other, prec);
    for (int i = 0; i < decimals * 2 / 3; i++)
        arb_div_ui(rel, rel, 10, prec);
    arb_min(tol, tol, rel, prec);
    arb_clear(rel);
    arb_clear(other);
}

static bool tiny(const acb_t diff, const acb_t x, const acb_t y, slong bits)
{
    /* is the ball of diff smaller than 2^-bits of max(x, y, 2^-64)? */
    mag_t size, all;
    bool ok;
    mag_init(size);
    mag_init(all);
    acb_get_mag_lower(size, x);
    acb_get_mag_lower(all, y);
    mag_max(size, size, all);
    mag_set_ui_2exp_si(all, 1, -64);
    mag_max(size, size, all);
    acb_get_mag(all, diff);
    mag_mul_2exp_si(all, all, bits);
    ok = mag_cmp(all, size) < 0;
    mag_clear(size);
    mag_clear(all);
    return ok;
}

static enum tri constants_equal(struct math *m, const struct math_node *a, const struct math_node *b, int decimals, const char **rule)
{
    bool calculus = ((a->flags | b->flags) & HAS_CALC) != 0;    // each digit costs more there, and no two answers are that close
    static const slong precs[2][3] = { { 64, 512, 2048 }, { 64, 128, 256 } };
    slong sure = calculus ? 128 : 512, bits = calculus ? 90 : 400;
    enum tri answer = TRI_UNKNOWN;
    bool rounded = decimals > 0 && (decimal_atom(a) || decimal_atom(b));
    acb_t x, y, d;
    arb_t tol, abs;
    acb_init(x);
    acb_init(y);
    acb_init(d);
    arb_init(tol);
    arb_init(abs);
    *rule = "interval";
    for (size_t i = 0; i < ARRAY_SIZE(precs[0]) && answer == TRI_UNKNOWN; i++) {
        slong prec = precs[calculus][i];
        struct ball ba = { .m = m, .prec = prec };
        if (!ball_eval(&ba, a, x) || !ball_eval(&ba, b, y)) {
            if (m->steps < 0)
                break;
            continue;
        }
        acb_sub(d, x, y, prec);
        if (rounded) {
            tolerance_set(tol, x, y, decimals, prec);
            acb_abs(abs, d, prec);
            if (arb_le(abs, tol)) {
                answer = TRI_YES;
                *rule = "decimal";
                break;
            }
            if (arb_gt(abs, tol))
                answer = TRI_NO;
            continue;
        }
        if (!acb_contains_zero(d))
            answer = TRI_NO;
        else if (prec >= sure && tiny(d, x, y, bits))
            answer = TRI_YES;
    }
    if (answer == TRI_UNKNOWN && !m->why)
        m->why = "neither proved nor refuted";
    acb_clear(x);
    acb_clear(y);
    acb_clear(d);
    arb_clear(tol);
    arb_clear(abs);
    return answer;
}

static bool real_ball(const acb_t z)
{
    return arb_contains_zero(acb_imagref(z)) && mag_cmp_2exp_si(arb_radref(acb_imagref(z)), -40) < 0;
}

/* Is there a whole-number function with an unknown argument, or a sum with an unknown bound? */
static enum unknowns unknowns_of(struct math *m, const struct math_node *a)
{
    if (!(a->flags & (HAS_SYM | HAS_OPAQUE)) || !math_spend(m, 1))
        return UNKNOWN_REAL;
    enum unknowns most = UNKNOWN_REAL;
    if (a->kind == K_FUNC && (a->op == FN_GCD || a->op == FN_LCM || a->op == FN_MOD))
        most = UNKNOWN_WHOLE;
    if ((a->kind == K_SUM || a->kind == K_PROD) && a->op != 1 && ((a->child[1]->flags | a->child[2]->flags) & HAS_SYM))
        most = UNKNOWN_COUNT;
    for (int i = 0; i < a->n; i++)
        most = MAX(most, unknowns_of(m, a->child[i]));
    return most;
}

/* What a function of the unknowns is made of that no points prove: jumps (2) and corners (1); 0: neither. */
static int corners_of(struct math *m, const struct math_node *a)
{
    if (!(a->flags & (HAS_SYM | HAS_OPAQUE)) || !math_spend(m, 1))
        return 0;
    int most = 0;
    if (a->kind == K_FUNC)
        most = a->op == FN_FLOOR || a->op == FN_CEIL || a->op == FN_SIGN || a->op == FN_ARG ? 2
               : a->op == FN_ABS || a->op == FN_MAX || a->op == FN_MIN                      ? 1
                                                                                            : 0;
    for (int i = 0; i < a->n; i++)
        most = MAX(most, corners_of(m, a->child[i]));
    return most;
}

/* Do a and b differ at one of the points where jumps and corners usually are? */
static bool corners_differ(struct math *m, const struct math_node *a, const struct math_node *b)
{
    acb_t x, y;
    acb_init(x);
    acb_init(y);
    bool differ = false;
    for (int k = 0; k < N_JUMP && !differ && m->steps > 0; k++) {
        struct ball at = { .m = m, .prec = 160, .point = N_POINT_JUMP + k };
        if (ball_eval(&at, a, x) && ball_eval(&at, b, y) && real_ball(x) && real_ball(y)) {
            acb_sub(x, x, y, 160);
            differ = !acb_contains_zero(x);
        }
    }
    acb_clear(x);
    acb_clear(y);
    return differ;
}

/* Compare at N_POINT points. Real values only, at first: points where one side is not real are skipped. */
static enum tri functions_equal(struct math *m, const struct math_node *a, const struct math_node *b, const char **rule)
{
    enum tri answer = TRI_UNKNOWN;
    acb_t x, y, d;
    acb_init(x);
    acb_init(y);
    acb_init(d);
    *rule = "interval";
    bool complex = ((a->flags | b->flags) & HAS_I) != 0;
    enum unknowns unknowns = MAX(unknowns_of(m, a), unknowns_of(m, b));
    int wanted = unknowns == UNKNOWN_REAL ? N_POINT : 3 * N_POINT;    // whole numbers agree by chance more often
    for (int pass = complex; pass < 2 && answer == TRI_UNKNOWN; pass++) {
        int agree = 0;
        for (int point = 0; point < 2 * wanted && agree < wanted && answer == TRI_UNKNOWN; point++)
            for (slong prec = 160; prec <= 640; prec *= 4) {
                struct ball ba = { .m = m, .prec = prec, .point = point, .unknowns = unknowns };
                if (!ball_eval(&ba, a, x) || !ball_eval(&ba, b, y))
                    break;
                bool ra = real_ball(x), rb = real_ball(y);
                if (pass == 0 && (!ra || !rb))
                    break;
                acb_sub(d, x, y, prec);
                if (!acb_contains_zero(d)) {
                    answer = TRI_NO;
                    break;
                }
                if (tiny(d, x, y, 100)) {
                    agree++;
                    break;
                }
            }
        if (answer == TRI_UNKNOWN && agree >= wanted / 2)
            answer = TRI_YES;
        if (m->steps < 0)
            break;
    }
    int corners = answer == TRI_YES ? MAX(corners_of(m, a), corners_of(m, b)) : 0;
    if (corners > 0 && corners_differ(m, a, b)) {
        answer = TRI_NO;
    } else if (corners == 2) {    // a jump may be between any two points
        answer = TRI_UNKNOWN;
        m->why = "a function with jumps agrees at the points tried";
    }
    if (answer == TRI_UNKNOWN && !m->why)
        m->why = "neither proved nor refuted";
    acb_clear(x);
    acb_clear(y);
    acb_clear(d);
    return answer;
}

static bool has_application(const struct math_node *a)    // of an unknown function
{
    bool any = a->kind == K_APP;
    for (int i = 0; !any && (a->flags & HAS_OPAQUE) && i < a->n; i++)
        any = has_application(a->child[i]);
    return any;
}

bool scalar_unevaluated(const struct math_node *a)
{
    bool any = a->kind == K_OPAQUE && a->scale == 0;
    for (int i = 0; !any && (a->flags & HAS_OPAQUE) && i < a->n; i++)
        any = scalar_unevaluated(a->child[i]);
    return any;
}

/* Does the tree have a value at one point at least? ln(0) - ln(0) has a residue but no value. A value too large to compute is
 * one. */
static bool has_value(struct math *m, const struct math_node *a)
{
    const char *why = m->why;
    acb_t z;
    acb_init(z);
    m->why = NULL;
    bool ok = false, closed = !(a->flags & (HAS_SYM | HAS_OPAQUE));
    for (int point = 0; point < (closed ? 1 : N_POINT) && !ok; point++)
        for (slong prec = 128; prec <= 512 && !ok; prec *= 4) {
            struct ball b = { .m = m, .prec = prec, .point = point, .lenient = true };
            ok = ball_eval(&b, a, z) || (m->why && strcmp(m->why, "division by zero") != 0);
        }
    acb_clear(z);
    m->why = why;
    return ok;
}

/* The unit of the last digit of a number as written; false: a is no such number. */
static bool last_unit(const struct math_node *a, arb_t unit, slong prec)
{
    slong power = 0;
    while (a->kind == K_NEG || a->kind == K_UNIT || a->kind == K_PCT) {
        power -= a->kind == K_PCT ? 2 : 0;
        a = a->child[0];
    }
    if (a->kind == K_MUL && decimal_atom(a) && node_is(a->child[1]->child[1], K_NUM))
        power += (slong)a->child[1]->child[1]->small;
    else if (a->kind == K_MUL && decimal_atom(a) && node_is(a->child[1]->child[1], K_NEG))
        power -= (slong)a->child[1]->child[1]->child[0]->small;
    const struct math_node *n = a->kind == K_MUL && decimal_atom(a) ? a->child[0] : a;
    if (!node_is(n, K_NUM) || n->base > 0)
        return false;
    power -= n->scale;
    if (power > 1000 || power < -1000)
        return false;
    arb_set_ui(unit, 10);
    arb_pow_ui(unit, unit, (ulong)(power < 0 ? -power : power), prec);
    if (power < 0)
        arb_inv(unit, unit, prec);
    return true;
}

bool scalar_near(struct math *m, const struct math_node *a, const struct math_node *b)
{
    const slong prec = 256;
    struct ball ba = { .m = m, .prec = prec };
    acb_t x, y;
    arb_t ua, ub, tol;
    acb_init(x);
    acb_init(y);
    arb_init(ua);
    arb_init(ub);
    arb_init(tol);
    bool near = false;
    if (!((a->flags | b->flags) & (HAS_SYM | HAS_OPAQUE | HAS_INF)) && ball_eval(&ba, a, x) && ball_eval(&ba, b, y)) {
        bool wa = last_unit(a, ua, prec), wb = last_unit(b, ub, prec);
        if (wa && wb)    // the finer one is rounded to the coarser one; two equally fine ones are different numbers
            near = !arb_overlaps(ua, ub);
        else
            near = wa || wb;
        arb_max(tol, wa ? ua : ub, wb ? ub : ua, prec);
        bool integer = (wa && arb_is_int(acb_realref(x))) || (wb && arb_is_int(acb_realref(y)));
        if ((wa && wb) || integer)
            arb_mul_2exp_si(tol, tol, -1);
        acb_sub(y, x, y, prec);
        acb_abs(ua, y, prec);
        near = near && arb_le(ua, tol);
        acb_abs(ub, x, prec);
        arb_div_ui(ub, ub, 20, prec);    // 1/3 is not 0.3, and 0.5 not 1
        near = near && arb_le(ua, ub);
    }
    acb_clear(x);
    acb_clear(y);
    arb_clear(ua);
    arb_clear(ub);
    arb_clear(tol);
    return near;
}

bool scalar_undefined(struct math *m, const struct math_node *a)
{
    if (a->flags & (HAS_SYM | HAS_OPAQUE | HAS_TEXT | HAS_PM | HAS_SET | HAS_MATRIX))
        return false;
    return a->flags & HAS_INF ? extent_undefined(m, a) : !has_value(m, a);
}

enum tri scalar_equal(struct math *m, const struct math_node *a, const struct math_node *b, int decimals, const char **rule)
{
    unsigned flags = a->flags | b->flags;
    *rule = "rational";
    if (!(flags & (HAS_SYM | HAS_OPAQUE | HAS_I | HAS_INF | HAS_TEXT | HAS_PM))) {
        fmpq_t x, y;
        fmpq_init(x);
        fmpq_init(y);
        bool rational = eval_rational(m, a, x) && eval_rational(m, b, y);
        bool same = rational && fmpq_equal(x, y);
        fmpq_clear(x);
        fmpq_clear(y);
        if (same)
            return TRI_YES;
        if (rational && !(decimals > 0 && (decimal_atom(a) || decimal_atom(b))))
            return TRI_NO;
        if (m->steps < 0)
            return TRI_UNKNOWN;
    }
    uint64_t va, vb;
    bool all = true, opaque = false, defined = true;
    for (uint64_t seed = 1; seed <= 2 && all && defined; seed++) {
        struct residue ra = { .m = m, .seed = seed * 1000003 }, rb = ra;
        defined = residue_eval(&ra, a, &va) && residue_eval(&rb, b, &vb);
        all = defined && va == vb;
        opaque |= ra.opaque || rb.opaque;
    }
    *rule = "polynomial";
    if (defined && all && opaque && !(has_value(m, a) && has_value(m, b))) {
        m->why = "undefined form";
        return TRI_UNKNOWN;
    }
    if (defined && all)
        return TRI_YES;
    if (defined && !opaque && (flags & (HAS_SYM | HAS_OPAQUE)))
        return TRI_NO;
    if (m->steps < 0)
        return TRI_UNKNOWN;
    if (flags & HAS_INF)
        return extents_equal(m, a, b, rule);
    m->why = NULL;
    enum tri answer = flags & (HAS_SYM | HAS_OPAQUE | HAS_TEXT) ? functions_equal(m, a, b, rule) : constants_equal(m, a, b, decimals, rule);
    // a named value beside an integral, such as \zeta(3), is not evaluated either
    bool named = (flags & HAS_CALC) && (has_application(a) || has_application(b));
    bool left = (flags & HAS_OPAQUE) && (named || scalar_unevaluated(a) || scalar_unevaluated(b));
    if (answer == TRI_NO && left) {
        m->why = CALCULUS_LEFT;
        return TRI_UNKNOWN;
    }
    return answer;
}

int scalar_sign(struct math *m, const struct math_node *a)
{
    fmpq_t q;
    int sign = -2;
    if (a->kind == K_CONST && a->op == CONST_INF)
        return 1;
    if (a->kind == K_NEG && node_is(a->child[0], K_CONST) && a->child[0]->op == CONST_INF)
        return -1;
    if (a->flags & (HAS_SYM | HAS_OPAQUE | HAS_I | HAS_INF | HAS_TEXT | HAS_PM | HAS_SET | HAS_MATRIX))
        return -2;
    fmpq_init(q);
    if (eval_rational(m, a, q))
        sign = fmpq_sgn(q);
    fmpq_clear(q);
    if (sign != -2)
        return sign;
    acb_t z;
    acb_init(z);
    for (slong prec = 64; prec <= 512 && sign == -2; prec *= 8) {
        struct ball b = { .m = m, .prec = prec };
        if (!ball_eval(&b, a, z) || !acb_is_real(z))
            continue;
        if (arb_is_positive(acb_realref(z)))
            sign = 1;
        else if (arb_is_negative(acb_realref(z)))
            sign = -1;
        else if (prec == 512)
            sign = 0;
    }
    acb_clear(z);
    return sign;
}

enum tri scalar_proportional(struct math *m, const struct math_node *a, const struct math_node *b, int *sign)
{
    uint64_t va[3], vb[3];
    bool opaque = false, defined = true;
    *sign = 0;
    for (int i = 0; i < 3 && defined; i++) {
        struct residue ra = { .m = m, .seed = (uint64_t)(i + 1) * 777767777 }, rb = ra;
        defined = residue_eval(&ra, a, &va[i]) && residue_eval(&rb, b, &vb[i]);
        opaque |= ra.opaque || rb.opaque;
    }
    if (!defined)
        return TRI_UNKNOWN;
    /* zero is proportional to zero only: 0 = 0 is no condition, and x = 5 is one */
    bool za = !(va[0] | va[1] | va[2]), zb = !(vb[0] | vb[1] | vb[2]);
    bool ca = va[0] == va[1] && va[1] == va[2], cb = vb[0] == vb[1] && vb[1] == vb[2];
    unsigned open = HAS_SYM | HAS_OPAQUE | HAS_TEXT;
    if ((ca || !(a->flags & open)) && (cb || !(b->flags & open))) {    // neither depends on anything
        m->why = "a relation that is no condition";
        return TRI_UNKNOWN;
    }
    bool same = za == zb && mul61(va[0], vb[1]) == mul61(va[1], vb[0]) && mul61(va[0], vb[2]) == mul61(va[2], vb[0]);
    if (!same && !opaque)
        return TRI_NO;
    acb_t x, y, d, x0, y0;
    acb_init(x);
    acb_init(y);
    acb_init(d);
    acb_init(x0);
    acb_init(y0);
    enum tri answer = same ? TRI_YES : TRI_UNKNOWN;
    int agree = 0;
    bool first = false;
    for (int point = 0; point < N_POINT && answer != TRI_NO; point++) {
        struct ball ba = { .m = m, .prec = 256, .point = point };
        if (!ball_eval(&ba, a, x) || !ball_eval(&ba, b, y))
            continue;
        bool nx = !acb_contains_zero(x), ny = !acb_contains_zero(y);
        if ((za && ny) || (zb && nx))
            answer = TRI_NO;
        if (!nx || !ny)    // proves nothing about the factor
            continue;
        if (!first) {
            acb_set(x0, x);
            acb_set(y0, y);
            first = true;
            acb_conj(y, y);
            acb_mul(x, x, y, 256);    // x y* has the sign of x / y and of y / x
            if (arb_contains_zero(acb_imagref(x)))
                *sign = arb_is_positive(acb_realref(x)) ? 1 : arb_is_negative(acb_realref(x)) ? -1 : 0;
            if (same)
                break;
            continue;
        }
        acb_mul(x, x, y0, 256);
        acb_mul(y, y, x0, 256);
        acb_sub(d, x, y, 256);
        if (!acb_contains_zero(d))
            answer = TRI_NO;
        else if (tiny(d, x, y, 100))
            agree++;
    }
    if (answer == TRI_UNKNOWN && agree >= N_POINT / 2)
        answer = TRI_YES;
    acb_clear(x);
    acb_clear(y);
    acb_clear(d);
    acb_clear(x0);
    acb_clear(y0);
    return answer;
}
