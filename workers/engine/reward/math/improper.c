/* improper.c - integrals up to infinity, within balls
 *
 * A rational function is turned inside out: from 1 to infinity R(x) dx is from 0 to 1 R(1/t)/t^2 dt, again a rational function.
 * Polynomials times e^(-c x) and e^(-c x^2) have their known values. */
#include "workers/engine/reward/math/calculus.h"
#include <acb_calc.h>
#include <acb_poly.h>
#include "workers/engine/reward/math/compare.h"

/* num(x) / den(x) e^exponent(x) */
struct integrand {
    struct math *m;
    rational_fn *rational;
    const struct math_node *x;
    fmpq_poly_t num, den, exponent;
};

static void integrand_init(struct integrand *f, struct math *m, rational_fn *rational, const struct math_node *x)
{
    *f = (struct integrand){ .m = m, .rational = rational, .x = x };
    fmpq_poly_init(f->num);
    fmpq_poly_init(f->den);
    fmpq_poly_init(f->exponent);
    fmpq_poly_set_ui(f->num, 1);
    fmpq_poly_set_ui(f->den, 1);
}

static void integrand_clear(struct integrand *f)
{
    fmpq_poly_clear(f->num);
    fmpq_poly_clear(f->den);
    fmpq_poly_clear(f->exponent);
}

/* Multiply f by a, or divide it by it. */
static bool integrand_take(struct integrand *f, const struct math_node *a, bool below)
{
    if (!math_spend(f->m, 10))
        return false;
    if (a->kind == K_NEG) {
        fmpq_poly_neg(f->num, f->num);
        return integrand_take(f, a->child[0], below);
    }
    if (a->kind == K_MUL || a->kind == K_DIV) {
        bool ok = true;
        for (int i = 0; ok && i < a->n; i++)
            ok = integrand_take(f, a->child[i], below != (a->kind == K_DIV && i > 0));
        return ok;
    }
    bool power = a->kind == K_POW && node_is(a->child[0], K_CONST) && a->child[0]->op == CONST_E;
    bool grows = power || (a->kind == K_FUNC && a->op == FN_EXP);
    fmpq_poly_t x, y;
    fmpq_poly_init(x);
    fmpq_poly_init(y);
    bool ok = quotient_of(f->m, f->rational, f->x, grows ? a->child[power] : a, x, y);
    if (ok && grows) {
        ok = fmpq_poly_degree(y) == 0;
        if (ok)
            fmpq_poly_div(x, x, y);
        if (below)
            fmpq_poly_sub(f->exponent, f->exponent, x);
        else
            fmpq_poly_add(f->exponent, f->exponent, x);
    } else if (ok) {
        ok = !(below && fmpq_poly_is_zero(x));
        fmpq_poly_mul(f->num, f->num, below ? y : x);
        fmpq_poly_mul(f->den, f->den, below ? x : y);
    }
    fmpq_poly_clear(x);
    fmpq_poly_clear(y);
    return ok && fmpq_poly_degree(f->num) <= 40 && fmpq_poly_degree(f->den) <= 40;
}

/* x becomes scale x + shift. */
static void poly_move(fmpq_poly_t p, slong scale, const fmpq_t shift)
{
    fmpq_poly_t line;
    fmpq_poly_init(line);
    fmpq_poly_set_coeff_si(line, 1, scale);
    fmpq_poly_set_coeff_fmpq(line, 0, shift);
    fmpq_poly_compose(p, p, line);
    fmpq_poly_clear(line);
}

/* ---- rational functions ---- */

struct quotient {
    acb_poly_t num, den;
    struct math *m;
};

static int quotient_at(acb_ptr out, const acb_t x, void *ctx, slong order, slong prec)
{
    struct quotient *f = ctx;
    acb_t den;
    acb_init(den);
    acb_poly_evaluate(out, f->num, x, prec);
    acb_poly_evaluate(den, f->den, x, prec);
    if (f->m->steps < 0)
        acb_zero(out);    // quotient_add fails then: let Arb end at once
    else if (order > 1 || acb_contains_zero(den) || !math_spend(f->m, 20))
        acb_indeterminate(out);
    else
        acb_div(out, out, den, prec);
    acb_clear(den);
    return 0;
}

/* Add to z what num / den gives from lo to hi. */
static bool quotient_add(struct math *m, acb_t z, const fmpq_poly_t num, const fmpq_poly_t den, const fmpq_t lo, const fmpq_t hi,
                         slong prec)
{
    struct quotient f = { .m = m };
    acb_calc_integrate_opt_t options;
    acb_t from, to, part;
    mag_t tolerance;
    acb_poly_init(f.num);
    acb_poly_init(f.den);
    acb_init(from);
    acb_init(to);
    acb_init(part);
    mag_init(tolerance);
    acb_poly_set_fmpq_poly(f.num, num, prec + 20);
    acb_poly_set_fmpq_poly(f.den, den, prec + 20);
    acb_set_fmpq(from, lo, prec + 20);
    acb_set_fmpq(to, hi, prec + 20);
    mag_set_ui_2exp_si(tolerance, 1, -prec);
    acb_calc_integrate_opt_init(options);
    options->eval_limit = INTEGRAL_EVALS;
    acb_calc_integrate(part, quotient_at, &f, from, to, prec, tolerance, options, prec + 20);
    acb_add(z, z, part, prec + 20);
    bool ok = acb_is_finite(part) && m->steps >= 0;
    acb_poly_clear(f.num);
    acb_poly_clear(f.den);
    acb_clear(from);
    acb_clear(to);
    acb_clear(part);
    mag_clear(tolerance);
    return ok;
}

/* From lo to infinity. */
static bool rational_tail(struct integrand *f, const fmpq_t lo, acb_t z, slong prec)
{
    slong gap = fmpq_poly_degree(f->den) - fmpq_poly_degree(f->num);
    fmpq_poly_t num, den;
    fmpq_t cut, zero;
    if (gap < 2)
        return false;
    fmpq_poly_init(num);
    fmpq_poly_init(den);
    fmpq_init(cut);
    fmpq_init(zero);
    fmpq_one(cut);
    bool late = fmpq_cmp(lo, cut) >= 0, ok = true;
    if (late)
        fmpq_set(cut, lo);
    else
        ok = quotient_add(f->m, z, f->num, f->den, lo, cut, prec);
    fmpq_poly_reverse(num, f->num, fmpq_poly_length(f->num));
    fmpq_poly_reverse(den, f->den, fmpq_poly_length(f->den));
    fmpq_poly_shift_left(num, num, gap - 2);
    fmpq_inv(cut, cut);
    ok = ok && quotient_add(f->m, z, num, den, zero, cut, prec);
    fmpq_poly_clear(num);
    fmpq_poly_clear(den);
    fmpq_clear(cut);
    fmpq_clear(zero);
    return ok;
}

/* ---- polynomials times exponentials ---- */

/* From lo to infinity, times e^(-c x + d): e^(-c lo + d) times the sum of P^(k)(lo) / c^(k+1). */
static bool exponential_tail(struct integrand *f, const fmpq_t lo, acb_t z, slong prec)
{
    fmpq_t c, sum, power, at;
    fmpq_poly_t p;
    fmpq_init(c);
    fmpq_init(sum);
    fmpq_init(power);
    fmpq_init(at);
    fmpq_poly_init(p);
    fmpq_poly_get_coeff_fmpq(c, f->exponent, 1);
    fmpq_neg(c, c);
    bool ok = fmpq_sgn(c) > 0;
    if (ok) {
        fmpq_poly_scalar_div_fmpq(p, f->num, (fmpq_poly_get_coeff_fmpq(at, f->den, 0), at));
        fmpq_inv(power, c);
        for (; !fmpq_poly_is_zero(p); fmpq_poly_derivative(p, p)) {
            fmpq_poly_evaluate_fmpq(at, p, lo);
            fmpq_addmul(sum, at, power);
            fmpq_div(power, power, c);
        }
        fmpq_poly_evaluate_fmpq(at, f->exponent, lo);
        acb_set_fmpq(z, at, prec + 40);
        acb_exp(z, z, prec + 40);
        acb_t s;
        acb_init(s);
        acb_set_fmpq(s, sum, prec + 40);
        acb_mul(z, z, s, prec + 20);
        acb_clear(s);
    }
    fmpq_clear(c);
    fmpq_clear(sum);
    fmpq_clear(power);
    fmpq_clear(at);
    fmpq_poly_clear(p);
    return ok;
}

/* Over the whole line, or its half from 0 on, times e^(-c x^2 + b x + d). The moments of each half are Gamma((k+1)/2) / (2 c^((k+1)/2)). */
static bool gaussian(struct integrand *f, bool half, acb_t z, slong prec)
{
    fmpq_t c, shift, at;
    arb_t power, moment, sum;
    fmpq_init(c);
    fmpq_init(shift);
    fmpq_init(at);
    arb_init(power);
    arb_init(moment);
    arb_init(sum);
    fmpq_poly_get_coeff_fmpq(c, f->exponent, 2);
    fmpq_neg(c, c);
    fmpq_poly_get_coeff_fmpq(shift, f->exponent, 1);
    bool ok = fmpq_sgn(c) > 0 && !(half && !fmpq_is_zero(shift));
    if (ok) {
        fmpq_div(shift, shift, c);
        fmpq_div_2exp(shift, shift, 1);
        poly_move(f->num, 1, shift);
        poly_move(f->exponent, 1, shift);
        for (slong k = 0; k < fmpq_poly_length(f->num); k++) {
            if (!half && k % 2 == 1)
                continue;
            fmpq_set_si(at, k + 1, 2);
            arb_gamma_fmpq(moment, at, prec + 40);
            arb_set_fmpq(power, c, prec + 40);
            arb_pow_fmpq(power, power, at, prec + 40);
            arb_div(moment, moment, power, prec + 40);
            if (half)
                arb_mul_2exp_si(moment, moment, -1);
            fmpq_poly_get_coeff_fmpq(at, f->num, k);
            arb_set_fmpq(power, at, prec + 40);
            arb_addmul(sum, moment, power, prec + 40);
        }
        fmpq_poly_get_coeff_fmpq(at, f->exponent, 0);
        arb_set_fmpq(power, at, prec + 40);
        arb_exp(power, power, prec + 40);
        arb_mul(sum, sum, power, prec + 40);
        fmpq_poly_get_coeff_fmpq(at, f->den, 0);
        arb_set_fmpq(power, at, prec + 40);
        arb_div(sum, sum, power, prec + 40);
        acb_set_arb(z, sum);
    }
    fmpq_clear(c);
    fmpq_clear(shift);
    fmpq_clear(at);
    arb_clear(power);
    arb_clear(moment);
    arb_clear(sum);
    return ok;
}

/* ---- all of them ---- */

/* From lo to infinity. */
static bool tail_ball(struct integrand *f, const fmpq_t lo, acb_t z, slong prec)
{
    acb_zero(z);
    if (fmpq_poly_is_zero(f->exponent))
        return rational_tail(f, lo, z, prec);
    if (fmpq_poly_degree(f->den) != 0)
        return false;
    return fmpq_poly_degree(f->exponent) == 1                       ? exponential_tail(f, lo, z, prec)
           : fmpq_poly_degree(f->exponent) == 2 && fmpq_is_zero(lo) ? gaussian(f, true, z, prec)
                                                                    : false;
}

static void mirror(struct integrand *f)    // f(-x)
{
    fmpq_t zero;
    fmpq_init(zero);
    poly_move(f->num, -1, zero);
    poly_move(f->den, -1, zero);
    poly_move(f->exponent, -1, zero);
    fmpq_clear(zero);
}

bool improper_ball(struct ball *b, const struct math_node *a, rational_fn *rational, acb_t z)
{
    struct math_node x = { .kind = K_SYM, .s = a->s, .len = a->len };
    const struct math_node *from = a->child[1], *to = a->child[2];
    int sign;
    bool minus = node_infinite(from, &sign) && sign < 0, plus = node_infinite(to, &sign) && sign > 0;
    struct integrand f;
    fmpq_t lo;
    acb_t other;
    fmpq_init(lo);
    acb_init(other);
    integrand_init(&f, b->m, rational, &x);
    slong prec = b->prec;
    bool ok = (minus || plus) && integrand_take(&f, a->child[0], false) && math_spend(b->m, 500 + 10 * prec);
    if (ok && minus && plus) {
        ok = fmpq_poly_degree(f.exponent) == 2 && fmpq_poly_degree(f.den) == 0 ? gaussian(&f, false, z, prec) : tail_ball(&f, lo, z, prec);
        if (ok && fmpq_poly_degree(f.exponent) != 2) {
            mirror(&f);
            ok = tail_ball(&f, lo, other, prec);
            acb_add(z, z, other, prec + 20);
        }
    } else if (ok) {
        const struct math_node *end = minus ? to : from;
        ok = !(end->flags & (HAS_SYM | HAS_OPAQUE | HAS_INF)) && rational(b->m, end, lo) && fmpz_bits(fmpq_numref(lo)) < 32
             && fmpz_bits(fmpq_denref(lo)) < 32;
        if (ok && minus) {
            mirror(&f);
            fmpq_neg(lo, lo);
        }
        ok = ok && tail_ball(&f, lo, z, prec);
    }
    integrand_clear(&f);
    fmpq_clear(lo);
    acb_clear(other);
    if (!(ok && acb_is_finite(z)) && !b->m->why)
        b->m->why = CALCULUS_LEFT;
    return ok && acb_is_finite(z);
}
