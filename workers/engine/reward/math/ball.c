/* ball.c - values within Arb balls (Johansson 2017, doi 10.1109/TC.2017.2690633) */
#include "workers/engine/reward/math/calculus.h"
#include <acb_hypgeom.h>
#include <arb_hypgeom.h>
#include <string.h>

/* A value between 1/4 and 3 for the unknown with this hash; negative at every second one of the later points. At three
 * points it is 64 times as large, of either sign, so that |x+5| and x+5 do not agree everywhere. */
static void unknown_value(const struct ball *b, uint64_t h, acb_t z)
{
    uint64_t name = h;
    h = mix(h, (uint64_t)b->point + 1000);
    if (b->point >= N_POINT_JUMP) {    // halves of small whole numbers, 0 first, and each a step of its own apart
        slong k = b->point - N_POINT_JUMP;
        slong step = 1 + (slong)(name % 3);
        acb_set_si(z, (k % 2 ? -1 : 1) * (k + 1) / 2 * step);
        acb_mul_2exp_si(z, z, -1);
        return;
    }
    if (b->unknowns == UNKNOWN_COUNT) {    // one number after the other, in another order for each name
        acb_set_si(z, 1 + (slong)(((uint64_t)b->point + name) % 41));
        return;
    }
    if (b->unknowns == UNKNOWN_WHOLE) {    // with common factors at every other point
        static const uint8_t prime[] = { 2, 2, 2, 3, 3, 5, 7 };
        slong v = 1;
        for (size_t i = 0; i < ARRAY_SIZE(prime); i++)
            v *= h >> i & 1 ? prime[i] : 1;
        acb_set_si(z, b->point % 2 ? (slong)(h % 997) + 1 : v);
        return;
    }
    slong v = (slong)(h % 2816) + 256;
    bool far = b->point == 3 || b->point == 5 || b->point == 7;
    bool minus = far ? (mix(name, 3) & 1) == (b->point == 7) : mix(h, 3) & 1;
    if (b->point >= N_POINT / 2 && minus)
        v = -v;
    acb_set_si(z, v);
    acb_mul_2exp_si(z, z, far ? -4 : -10);
}

/* An arbitrary number in place of what cannot be computed. */
static bool stand_in(const struct ball *b, const struct math_node *a, acb_t z)
{
    struct residue r = { .m = b->m, .seed = 5 };
    uint64_t h;
    if (!residue_eval(&r, a, &h))
        return false;
    unknown_value(b, h, z);
    return true;
}

/* Not inlined: gcc 12 would take the first 32 bytes of z for all of it, and warn. */
__attribute__((noinline)) static bool too_big(const acb_t z, slong bits)
{
    return arf_cmpabs_2exp_si(arb_midref(acb_realref(z)), bits) > 0 || arf_cmpabs_2exp_si(arb_midref(acb_imagref(z)), bits) > 0;
}

static bool real_root(acb_t z, const acb_t x, const fmpq_t q, slong prec)
{
    /* x^(p/q) for real x: the real root of a negative number when q is odd, as in school */
    arb_t r;
    bool negative = arb_is_negative(acb_realref(x));
    if (!acb_is_real(x) || (negative && fmpz_is_even(fmpq_denref(q))))
        return false;
    if (arb_contains_zero(acb_realref(x)) && (!arb_is_zero(acb_realref(x)) || fmpq_sgn(q) <= 0))
        return false;
    arb_init(r);
    arb_abs(r, acb_realref(x));
    if (arb_is_zero(r)) {
        acb_zero(z);
    } else {
        arb_pow_fmpq(r, r, q, prec);
        if (negative && fmpz_is_odd(fmpq_numref(q)))
            arb_neg(r, r);
        acb_set_arb(z, r);
    }
    arb_clear(r);
    return true;
}

/* x^q for a real ball x around 0 and positive q: no larger than the largest of x to that power. */
static bool root_near_zero(acb_t z, const acb_t x, const fmpq_t q)
{
    if (!acb_is_real(x) || fmpq_sgn(q) <= 0 || !arb_contains_zero(acb_realref(x)))
        return false;
    mag_t size;
    arb_t most;
    mag_init(size);
    arb_init(most);
    arb_get_mag(size, acb_realref(x));
    arb_set_interval_mag(most, size, size, 64);
    arb_pow_fmpq(most, most, q, 64);
    arb_get_mag(size, most);
    acb_zero(z);
    arb_add_error_mag(acb_realref(z), size);
    mag_clear(size);
    arb_clear(most);
    return true;
}

/* Does the ball keep off the line from 0 to minus infinity, where logarithms and roots jump? */
static bool off_cut(const acb_t x)
{
    return arb_is_positive(acb_realref(x)) || !arb_contains_zero(acb_imagref(x));
}

static bool ball_power(struct ball *b, const struct math_node *exp, bool inverse, const acb_t x, acb_t z)
{
    fmpq_t q;
    bool ok = false, rational;
    fmpq_init(q);
    rational = !(exp->flags & (HAS_TRANS | HAS_I | HAS_INF | HAS_OPAQUE)) && eval_rational(b->m, exp, q) && !(inverse && fmpq_is_zero(q));
    if (rational) {
        if (inverse)
            fmpq_inv(q, q);
        if (fmpz_is_one(fmpq_denref(q)) && fmpz_bits(fmpq_numref(q)) <= 62) {
            ok = fmpz_sgn(fmpq_numref(q)) > 0 || !acb_contains_zero(x);    // 0^0 has no value
            if (ok)
                acb_pow_fmpz(z, x, fmpq_numref(q), b->prec);
        } else if (b->analytic && !off_cut(x)) {
            ok = false;
        } else if (fmpz_bits(fmpq_numref(q)) <= 62 && fmpz_bits(fmpq_denref(q)) <= 62) {
            ok = real_root(z, x, q, b->prec) || (b->bound && root_near_zero(z, x, q));
            if (!ok && !acb_contains_zero(x)) {
                acb_t e;
                acb_init(e);
                acb_set_fmpq(e, q, b->prec + 30);
                acb_pow(z, x, e, b->prec);
                acb_clear(e);
                ok = true;
            }
        } else {
            b->m->why = "power too large";
        }
    } else if (!inverse && !acb_contains_zero(x) && (!b->analytic || off_cut(x))) {
        acb_t e;
        acb_init(e);
        ok = ball_eval(b, exp, e);
        if (ok && too_big(e, 60)) {
            b->m->why = "power too large";
            ok = false;
        }
        if (ok)
            acb_pow(z, x, e, b->prec);
        acb_clear(e);
    }
    fmpq_clear(q);
    return ok && acb_is_finite(z);
}

/* gcd, lcm or remainder of whole numbers, the first of which is x. */
static bool whole_func(struct ball *b, const struct math_node *a, const acb_t x, acb_t z)
{
    fmpz_t u, v;
    acb_t y;
    fmpz_init(u);
    fmpz_init(v);
    acb_init(y);
    bool ok = acb_is_real(x) && arb_get_unique_fmpz(u, acb_realref(x)) && arb_is_int(acb_realref(x));
    for (int i = 1; ok && i < a->n; i++) {
        ok = ball_eval(b, a->child[i], y) && acb_is_real(y) && arb_is_int(acb_realref(y)) && arb_get_unique_fmpz(v, acb_realref(y))
             && !(a->op == FN_MOD && fmpz_is_zero(v));
        if (ok && a->op == FN_GCD)
            fmpz_gcd(u, u, v);
        else if (ok && a->op == FN_LCM)
            fmpz_lcm(u, u, v);
        else if (ok)
            fmpz_fdiv_r(u, u, v);
    }
    if (ok)
        acb_set_fmpz(z, u);
    fmpz_clear(u);
    fmpz_clear(v);
    acb_clear(y);
    return ok;
}

/* ---- functions ---- */

typedef bool argument_fn(struct ball *b, const struct math_node *a, acb_ptr x, acb_ptr z);    // x: the first argument's value

static bool abs_ball(struct ball *b, UNUSED const struct math_node *a, acb_ptr x, acb_ptr z)
{
    acb_zero(z);
    if (b->analytic)
        acb_real_abs(z, x, 1, b->prec);    // the same on the line, and analytic on each side of 0
    else
        acb_abs(acb_realref(z), x, b->prec);
    return true;
}

static bool floor_ball(struct ball *b, const struct math_node *a, acb_ptr x, acb_ptr z)
{
    fmpz_t n;
    fmpz_init(n);
    bool real = acb_is_real(x);
    acb_zero(z);
    if (a->op == FN_FLOOR)
        arb_floor(acb_realref(z), acb_realref(x), b->prec);
    else
        arb_ceil(acb_realref(z), acb_realref(x), b->prec);
    bool ok = real && !too_big(z, 512) && arb_get_unique_fmpz(n, acb_realref(z));    // never a number of 2^60 bits
    if (real && !ok && !b->m->why)
        b->m->why = "a number that may be whole";
    fmpz_clear(n);
    return ok;
}

static bool gamma_ball(struct ball *b, const struct math_node *a, acb_ptr x, acb_ptr z)
{
    if (too_big(x, 24))
        return false;
    if (a->op == FN_FACT)
        acb_add_ui(x, x, 1, b->prec);
    acb_gamma(z, x, b->prec);
    return math_spend(b->m, 200 + b->prec);
}

/* Gamma(n+1) / (Gamma(k+1) Gamma(n-k+1)) */
static bool binom_ball(struct ball *b, const struct math_node *a, acb_ptr x, acb_ptr z)
{
    slong prec = b->prec;
    acb_t k, t;
    acb_init(k);
    acb_init(t);
    bool ok = a->n == 2 && ball_eval(b, a->child[1], k) && !too_big(x, 24) && !too_big(k, 24) && math_spend(b->m, 600 + 3 * prec);
    if (ok) {
        acb_sub(t, x, k, prec);
        acb_add_ui(t, t, 1, prec);
        acb_rgamma(t, t, prec);
        acb_add_ui(k, k, 1, prec);
        acb_rgamma(k, k, prec);
        acb_add_ui(x, x, 1, prec);
        acb_gamma(z, x, prec);
        acb_mul(z, z, k, prec);
        acb_mul(z, z, t, prec);
    }
    acb_clear(t);
    acb_clear(k);
    return ok;
}

static bool extreme_ball(struct ball *b, const struct math_node *a, acb_ptr x, acb_ptr z)
{
    acb_t y;
    acb_init(y);
    acb_set(z, x);
    bool ok = acb_is_real(x);
    for (int i = 1; ok && i < a->n; i++) {
        ok = ball_eval(b, a->child[i], y) && acb_is_real(y);
        if (ok && a->op == FN_MAX)
            arb_max(acb_realref(z), acb_realref(z), acb_realref(y), b->prec);
        else if (ok)
            arb_min(acb_realref(z), acb_realref(z), acb_realref(y), b->prec);
    }
    acb_clear(y);
    return ok;
}

static bool part_ball(struct ball *b, const struct math_node *a, acb_ptr x, acb_ptr z)
{
    acb_zero(z);
    if (a->op == FN_RE)
        arb_set(acb_realref(z), acb_realref(x));
    else if (a->op == FN_IM)
        arb_set(acb_realref(z), acb_imagref(x));
    else if (a->op == FN_CONJ)
        acb_conj(z, x);
    else if (a->op == FN_SIGN)
        arb_sgn(acb_realref(z), acb_realref(x));
    else
        acb_arg(acb_realref(z), x, b->prec);
    return true;
}

static bool whole_ball(struct ball *b, const struct math_node *a, acb_ptr x, acb_ptr z)
{
    return whole_func(b, a, x, z) || (b->lenient && stand_in(b, a, z));
}

/* What an argument must satisfy for its function to be computed. */
enum guard {
    ANY,
    PERIODIC,
    GROWING,
    NOT_ZERO,
};
// clang-format off
static const struct func {
    void (*simple)(acb_t z, const acb_t x, slong prec);    // or
    argument_fn *special;
    uint8_t guard;       // enum guard
    bool inverse;        // of one over the argument
} funcs[] = {
    [FN_SIN] = { acb_sin, .guard = PERIODIC }, [FN_COS] = { acb_cos, .guard = PERIODIC },
    [FN_TAN] = { acb_tan, .guard = PERIODIC }, [FN_COT] = { acb_cot, .guard = PERIODIC },
    [FN_SEC] = { acb_sec, .guard = PERIODIC }, [FN_CSC] = { acb_csc, .guard = PERIODIC },
    [FN_ASIN] = { acb_asin }, [FN_ACOS] = { acb_acos }, [FN_ATAN] = { acb_atan },
    [FN_ACOT] = { acb_atan, .guard = NOT_ZERO, .inverse = true },
    [FN_ASEC] = { acb_acos, .guard = NOT_ZERO, .inverse = true },
    [FN_ACSC] = { acb_asin, .guard = NOT_ZERO, .inverse = true },
    [FN_SINH] = { acb_sinh, .guard = GROWING }, [FN_COSH] = { acb_cosh, .guard = GROWING },
    [FN_TANH] = { acb_tanh, .guard = GROWING }, [FN_COTH] = { acb_coth, .guard = GROWING },
    [FN_SECH] = { acb_sech, .guard = GROWING }, [FN_CSCH] = { acb_csch, .guard = GROWING },
    [FN_EXP] = { acb_exp, .guard = GROWING }, [FN_LN] = { acb_log, .guard = NOT_ZERO },
    [FN_ASINH] = { acb_asinh }, [FN_ACOSH] = { acb_acosh }, [FN_ATANH] = { acb_atanh },
    [FN_ABS] = { .special = abs_ball }, [FN_FLOOR] = { .special = floor_ball }, [FN_CEIL] = { .special = floor_ball },
    [FN_FACT] = { .special = gamma_ball }, [FN_GAMMA] = { .special = gamma_ball }, [FN_BINOM] = { .special = binom_ball },
    [FN_MAX] = { .special = extreme_ball }, [FN_MIN] = { .special = extreme_ball }, [FN_RE] = { .special = part_ball },
    [FN_IM] = { .special = part_ball }, [FN_ARG] = { .special = part_ball }, [FN_CONJ] = { .special = part_ball },
    [FN_SIGN] = { .special = part_ball }, [FN_GCD] = { .special = whole_ball }, [FN_LCM] = { .special = whole_ball },
    [FN_MOD] = { .special = whole_ball }, [FN_NUM] = { 0 },
};
// clang-format on

/* Is the function analytic in the ball x, as far as cuts go? Poles show by themselves. */
static bool analytic_at(enum math_func fn, const acb_t x)
{
    arb_t one;
    arb_init(one);
    arb_one(one);
    arb_t size;
    arb_init(size);
    bool imaginary = fn == FN_ATAN || fn == FN_ASINH;    // the cut is on the imaginary line
    arb_abs(size, imaginary ? acb_imagref(x) : acb_realref(x));
    bool inside = arb_lt(size, one) || !arb_contains_zero(imaginary ? acb_realref(x) : acb_imagref(x));
    arb_clear(one);
    arb_clear(size);
    switch (fn) {
    case FN_ASIN:
    case FN_ACOS:
    case FN_ATANH:
    case FN_ATAN:
    case FN_ASINH: return inside;
    case FN_LN: return off_cut(x);
    default: return ball_analytic(fn);
    }
}

static bool guard_passed(struct ball *b, enum guard guard, const acb_t x)
{
    switch (guard) {
    case ANY: return true;
    case PERIODIC: return !too_big(x, 4096);
    case GROWING:
        if (too_big(x, 60))
            b->m->why = "power too large";
        return !too_big(x, 60);
    case NOT_ZERO: return !acb_contains_zero(x);
    }
    return false;
}

static const struct bound_ball *bound_find(const struct ball *b, const struct math_node *a)
{
    for (const struct bound_ball *v = b->bound; v; v = v->outer)
        if (v->len == a->len && memcmp(v->s, a->s, (size_t)a->len) == 0)
            return v;
    return NULL;
}

/* Does an integral's variable occur in a? */
static bool depends_on_bound(const struct ball *b, const struct math_node *a)
{
    if (a->kind == K_SYM)
        return bound_find(b, a) != NULL;
    bool any = false;
    for (int i = 0; !any && i < a->n; i++)
        any = depends_on_bound(b, a->child[i]);
    return any;
}

static bool ball_func(struct ball *b, const struct math_node *a, acb_t z)
{
    acb_t x;
    bool ok;
    fmpq_t q;
    if (!(a->flags & (HAS_SYM | HAS_OPAQUE | HAS_I | HAS_INF)) || b->m->n_bind > 0) {
        fmpq_init(q);
        ok = func_exact(b->m, a, q);
        if (ok)
            acb_set_fmpq(z, q, b->prec);
        fmpq_clear(q);
        if (ok)
            return true;
    }
    if (!math_spend(b->m, 20 + b->prec / 8))
        return false;
    acb_init(x);
    const struct func *f = &funcs[a->op];
    ok = a->n > 0 && ball_eval(b, a->child[0], x) && (!b->analytic || !depends_on_bound(b, a) || analytic_at((enum math_func)a->op, x));
    if (ok && f->simple) {
        ok = guard_passed(b, (enum guard)f->guard, x);
        if (ok && f->inverse)
            acb_inv(x, x, b->prec);
        if (ok)
            f->simple(z, x, b->prec);
    } else if (ok) {
        ok = f->special ? f->special(b, a, x, z) : b->lenient && stand_in(b, a, z);
    }
    acb_clear(x);
    return ok && acb_is_finite(z);
}

/* A bound of a sum: a whole number, and when unknowns are counts, one at this point. */
static bool bound_of_sum(struct ball *b, const struct math_node *a, int64_t *v)
{
    fmpq_t q;
    acb_t z;
    fmpq_init(q);
    acb_init(z);
    bool ok = eval_rational(b->m, a, q);
    if (!ok && b->unknowns == UNKNOWN_COUNT)
        ok = ball_eval(b, a, z) && acb_is_real(z) && arb_is_exact(acb_realref(z)) && arb_is_int(acb_realref(z))
             && arb_get_unique_fmpz(fmpq_numref(q), acb_realref(z));
    ok = ok && int_get(q, -1000000000, 1000000000, v);
    fmpq_clear(q);
    acb_clear(z);
    return ok;
}

/* ---- trees ---- */

static bool number_ball(struct ball *b, const struct math_node *a, acb_t z)
{
    fmpq_t q;
    fmpq_init(q);
    bool ok = number_value(b->m, a, q);
    acb_set_fmpq(z, q, b->prec);
    fmpq_clear(q);
    return ok;
}

static bool const_ball(struct ball *b, const struct math_node *a, acb_t z)
{
    switch ((enum math_const)a->op) {
    case CONST_PI: acb_const_pi(z, b->prec); return true;
    case CONST_E:
        acb_zero(z);
        arb_const_e(acb_realref(z), b->prec);
        return true;
    case CONST_I: acb_onei(z); return true;
    case CONST_GAMMA:
        acb_zero(z);
        arb_const_euler(acb_realref(z), b->prec);
        return true;
    case CONST_INF: return false;
    }
    return false;
}

/* Operands of a sum, a product or a quotient, one after the other. */
static bool operands_ball(struct ball *b, const struct math_node *a, acb_t z)
{
    acb_t x;
    acb_init(x);
    bool ok = ball_eval(b, a->child[0], z);
    for (int i = 1; ok && i < a->n; i++) {
        ok = ball_eval(b, a->child[i], x);
        if (!ok)
            break;
        if (a->kind == K_ADD)
            acb_add(z, z, x, b->prec);
        else if (a->kind == K_MUL)
            acb_mul(z, z, x, b->prec);
        else if ((ok = !acb_contains_zero(x)))
            acb_div(z, z, x, b->prec);
    }
    acb_clear(x);
    return ok && acb_is_finite(z);
}

static bool log_ball(struct ball *b, const struct math_node *a, acb_t z)
{
    acb_t x;
    acb_init(x);
    bool ok = ball_eval(b, a->child[0], z) && ball_eval(b, a->child[1], x) && !acb_contains_zero(z) && !acb_contains_zero(x)
              && (!b->analytic || (off_cut(z) && off_cut(x))) && math_spend(b->m, 10 + b->prec / 16);
    if (ok) {
        acb_log(z, z, b->prec);
        acb_log(x, x, b->prec);
        ok = !acb_contains_zero(x);
        if (ok)
            acb_div(z, z, x, b->prec);
    }
    acb_clear(x);
    return ok && acb_is_finite(z);
}

/* A sum or a product with whole bounds, term by term; one without end is endless_ball's. */
static bool terms_ball(struct ball *b, const struct math_node *a, acb_t z)
{
    struct math *m = b->m;
    acb_t x;
    int64_t v, last;
    if (a->op == 1)
        return endless_ball(b, a, eval_rational, z) || (b->lenient && stand_in(b, a, z));
    bool ok = m->n_bind < MATH_BIND_MAX && bound_of_sum(b, a->child[1], &v) && bound_of_sum(b, a->child[2], &last)
              && last - v < SUM_TERMS_MAX;
    if (!ok)
        return b->lenient && stand_in(b, a, z);
    int k = m->n_bind++;
    m->bind[k].s = a->s;
    m->bind[k].len = a->len;
    acb_init(x);
    acb_set_si(z, a->kind == K_PROD);
    for (; ok && v <= last; v++) {
        m->bind[k].value = v;
        ok = ball_eval(b, a->child[0], x);
        if (ok && a->kind == K_SUM)
            acb_add(z, z, x, b->prec);
        else if (ok)
            acb_mul(z, z, x, b->prec);
    }
    m->n_bind--;
    acb_clear(x);
    return ok && acb_is_finite(z);
}

bool ball_eval(struct ball *b, const struct math_node *a, acb_t z)
{
    struct math *m = b->m;
    acb_t x;
    int64_t v;
    bool ok = true;
    if (!math_spend(m, 2 + b->prec / 128))
        return false;
    switch ((enum node_kind)a->kind) {
    case K_NUM: return number_ball(b, a, z);
    case K_CONST: return const_ball(b, a, z);
    case K_SYM:
        if (bound_find(b, a))
            acb_set(z, bound_find(b, a)->value);
        else if (bound_value(m, a, &v))
            acb_set_si(z, v);
        else
            unknown_value(b, mix_text(77, a->s, a->len), z);
        return true;
    case K_OPAQUE:
        if (a->scale == 2)
            return improper_ball(b, a, eval_rational, z) || (b->lenient && stand_in(b, a, z));
        if (a->scale == 1)
            return integral_ball(b, a, ball_eval, z) || (b->lenient && stand_in(b, a, z));
        return !b->bound && stand_in(b, a, z);
    case K_TEXT:
    case K_APP: return !b->bound && stand_in(b, a, z);
    case K_NEG:
        ok = ball_eval(b, a->child[0], z);
        acb_neg(z, z);
        return ok;
    case K_UNIT: return ball_eval(b, a->child[0], z);
    case K_PCT:
        ok = ball_eval(b, a->child[0], z);
        acb_div_ui(z, z, 100, b->prec);
        return ok;
    case K_DEG:
        acb_init(x);
        ok = ball_eval(b, a->child[0], x);
        acb_const_pi(z, b->prec);
        acb_mul(z, z, x, b->prec);
        acb_div_ui(z, z, 180, b->prec);
        acb_clear(x);
        return ok;
    case K_FUNC: return ball_func(b, a, z);
    case K_ADD:
    case K_MUL:
    case K_DIV:
    case K_RATIO: return operands_ball(b, a, z);
    case K_POW:
    case K_ROOT:
        acb_init(x);
        ok = ball_eval(b, a->child[0], x) && math_spend(m, 10 + b->prec / 16) && ball_power(b, a->child[1], a->kind == K_ROOT, x, z);
        acb_clear(x);
        return ok;
    case K_LOG: return log_ball(b, a, z);
    case K_SUM:
    case K_PROD: return terms_ball(b, a, z);
    case K_PM:
    case K_LIST:
    case K_SET:
    case K_TUPLE:
    case K_REL:
    case K_UNION:
    case K_INTER:
    case K_MINUS:
    case K_NAMED_SET:
    case K_JUXT:
    case K_BUILDER:
    case K_CASES:
    case K_MATRIX: return false;
    }
    return false;
}

bool ball_floor(struct math *m, const struct math_node *a, bool up, fmpq_t out)
{
    bool ok = false;
    acb_t z;
    acb_init(z);
    for (slong prec = 64; !ok && prec <= 1024; prec *= 4) {
        struct ball b = { .m = m, .prec = prec };
        if (!ball_eval(&b, a, z) || !acb_is_real(z))
            break;
        if (up)
            arb_ceil(acb_realref(z), acb_realref(z), prec);
        else
            arb_floor(acb_realref(z), acb_realref(z), prec);
        ok = !too_big(z, 512) && arb_get_unique_fmpz(fmpq_numref(out), acb_realref(z));
    }
    fmpz_one(fmpq_denref(out));
    acb_clear(z);
    return ok;
}
