/* series.c - integrals, and sums and products without end, within balls
 *
 * A sum is taken term by term when its terms are R(n) r^n times factorials and fall like a geometric series: what is left
 * out is bounded by one. A sum of a rational function is one over its poles (digamma, Hurwitz zeta), a product of one is
 * made of gamma functions. Integrals are Arb's (Johansson 2018, arXiv 1802.07942), whose errors are proven. */
#include "workers/engine/reward/math/calculus.h"
#include <acb_calc.h>
#include <acb_hypgeom.h>
#include <acb_poly.h>
#include <arb_fmpz_poly.h>
#include <flint/fmpq_poly.h>
#include <flint/fmpz_poly_factor.h>

#define DEGREE_MAX 12
#define FACTORIALS_MAX 4
#define HEIGHT_BITS_MAX 256    // of a coefficient
#define TERMS_MAX 4000
#define START_MAX 100000    // first index of a sum

/* A term: num(n) / den(n) ratio^n times factorials (step n + add)!, to the power 1 or -1. */
struct term {
    struct math *m;
    rational_fn *rational;
    const struct math_node *index;
    fmpq_poly_t num, den;
    fmpq_t ratio;
    int n_factorial;
    struct {
        int64_t step, add;
        bool below;
    } factorial[FACTORIALS_MAX];
};

static void term_init(struct term *t, struct math *m, rational_fn *rational, const struct math_node *index)
{
    *t = (struct term){ .m = m, .rational = rational, .index = index };
    fmpq_poly_init(t->num);
    fmpq_poly_init(t->den);
    fmpq_poly_set_ui(t->num, 1);
    fmpq_poly_set_ui(t->den, 1);
    fmpq_init(t->ratio);
    fmpq_one(t->ratio);
}

static void term_clear(struct term *t)
{
    fmpq_poly_clear(t->num);
    fmpq_poly_clear(t->den);
    fmpq_clear(t->ratio);
}

static bool small(const fmpq_poly_t p)
{
    return fmpq_poly_degree(p) <= DEGREE_MAX && fmpz_bits(fmpq_poly_denref(p)) <= HEIGHT_BITS_MAX
           && FLINT_ABS(_fmpz_vec_max_bits(fmpq_poly_numref(p), fmpq_poly_length(p))) <= HEIGHT_BITS_MAX;
}

bool quotient_of(struct math *m, rational_fn *rational, const struct math_node *x_name, const struct math_node *a, fmpq_poly_t num,
                 fmpq_poly_t den)
{
    fmpq_poly_t x, y;
    fmpq_t q;
    int64_t e;
    bool ok = math_spend(m, 20);
    fmpq_poly_init(x);
    fmpq_poly_init(y);
    fmpq_init(q);
    fmpq_poly_set_ui(den, 1);
    if (ok && a->kind == K_SYM) {
        ok = name_same(a, x_name);
        fmpq_poly_zero(num);
        fmpq_poly_set_coeff_ui(num, 1, 1);
    } else if (ok && !(a->flags & (HAS_SYM | HAS_OPAQUE | HAS_INF))) {
        ok = rational(m, a, q);
        fmpq_poly_set_fmpq(num, q);
    } else if (ok && a->kind == K_NEG) {
        ok = quotient_of(m, rational, x_name, a->child[0], num, den);
        fmpq_poly_neg(num, num);
    } else if (ok && (a->kind == K_ADD || a->kind == K_MUL || a->kind == K_DIV)) {
        ok = quotient_of(m, rational, x_name, a->child[0], num, den);
        for (int i = 1; ok && i < a->n; i++) {
            ok = quotient_of(m, rational, x_name, a->child[i], x, y);
            if (a->kind == K_ADD) {
                fmpq_poly_mul(num, num, y);
                fmpq_poly_mul(x, x, den);
                fmpq_poly_add(num, num, x);
                fmpq_poly_mul(den, den, y);
            } else {
                fmpq_poly_mul(num, num, a->kind == K_MUL ? x : y);
                fmpq_poly_mul(den, den, a->kind == K_MUL ? y : x);
            }
            ok = ok && small(num) && small(den) && !fmpq_poly_is_zero(den);
        }
    } else if (ok && a->kind == K_POW) {
        ok = !(a->child[1]->flags & (HAS_SYM | HAS_OPAQUE | HAS_INF)) && rational(m, a->child[1], q)
             && int_get(q, -DEGREE_MAX, DEGREE_MAX, &e) && quotient_of(m, rational, x_name, a->child[0], x, y)
             && !(e < 0 && fmpq_poly_is_zero(x)) && e != 0;
        if (ok) {
            fmpq_poly_pow(num, e < 0 ? y : x, (ulong)(e < 0 ? -e : e));
            fmpq_poly_pow(den, e < 0 ? x : y, (ulong)(e < 0 ? -e : e));
        }
    } else {
        ok = false;
    }
    ok = ok && small(num) && small(den);
    fmpq_poly_clear(x);
    fmpq_poly_clear(y);
    fmpq_clear(q);
    return ok;
}

/* a as step n + add with whole numbers. */
static bool linear_of(struct term *t, const struct math_node *a, int64_t *step, int64_t *add)
{
    fmpq_poly_t x, y;
    fmpq_t q;
    fmpq_poly_init(x);
    fmpq_poly_init(y);
    fmpq_init(q);
    bool ok = quotient_of(t->m, t->rational, t->index, a, x, y) && fmpq_poly_is_one(y) && fmpq_poly_degree(x) <= 1;
    fmpq_poly_get_coeff_fmpq(q, x, 1);
    ok = ok && int_get(q, -8, 8, step);
    fmpq_poly_get_coeff_fmpq(q, x, 0);
    ok = ok && int_get(q, -1000, 1000, add);
    fmpq_poly_clear(x);
    fmpq_poly_clear(y);
    fmpq_clear(q);
    return ok;
}

/* Multiply the term by a, or divide it by it. */
static bool term_take(struct term *t, const struct math_node *a, bool below)
{
    fmpq_poly_t x, y;
    int64_t step, add;
    bool ok = true;
    if (!math_spend(t->m, 10))
        return false;
    if (a->kind == K_NEG) {
        fmpq_poly_neg(t->num, t->num);
        return term_take(t, a->child[0], below);
    }
    if (a->kind == K_MUL || a->kind == K_DIV) {
        for (int i = 0; ok && i < a->n; i++)
            ok = term_take(t, a->child[i], below != (a->kind == K_DIV && i > 0));
        return ok;
    }
    if (a->kind == K_FUNC && a->op == FN_FACT && (a->flags & HAS_SYM)) {
        if (t->n_factorial == FACTORIALS_MAX || !linear_of(t, a->child[0], &step, &add) || step < 1)
            return false;
        t->factorial[t->n_factorial].step = step;
        t->factorial[t->n_factorial].add = add;
        t->factorial[t->n_factorial++].below = below;
        return true;
    }
    if (a->kind == K_POW && (a->child[1]->flags & HAS_SYM)) {    // base^(step n + add)
        fmpq_t base, part;
        fmpq_init(base);
        fmpq_init(part);
        ok = !(a->child[0]->flags & (HAS_SYM | HAS_OPAQUE | HAS_INF)) && t->rational(t->m, a->child[0], base) && !fmpq_is_zero(base)
             && fmpz_bits(fmpq_numref(base)) < 32 && fmpz_bits(fmpq_denref(base)) < 32 && linear_of(t, a->child[1], &step, &add)
             && add > -64 && add < 64;
        if (ok) {
            fmpq_pow_si(part, base, below ? -step : step);
            fmpq_mul(t->ratio, t->ratio, part);
            fmpq_pow_si(part, base, below ? -add : add);
            fmpq_poly_scalar_mul_fmpq(t->num, t->num, part);
        }
        fmpq_clear(base);
        fmpq_clear(part);
        return ok && fmpz_bits(fmpq_numref(t->ratio)) < HEIGHT_BITS_MAX && fmpz_bits(fmpq_denref(t->ratio)) < HEIGHT_BITS_MAX;
    }
    fmpq_poly_init(x);
    fmpq_poly_init(y);
    ok = quotient_of(t->m, t->rational, t->index, a, x, y) && !(below && fmpq_poly_is_zero(x));
    if (ok) {
        fmpq_poly_mul(t->num, t->num, below ? y : x);
        fmpq_poly_mul(t->den, t->den, below ? x : y);
        ok = small(t->num) && small(t->den);
    }
    fmpq_poly_clear(x);
    fmpq_poly_clear(y);
    return ok;
}

/* The term of a sum or product, with the index counted from its first value. */
static bool term_of(struct term *t, const struct math_node *a)
{
    int64_t first;
    fmpq_t q;
    fmpq_poly_t shift;
    fmpq_init(q);
    fmpq_poly_init(shift);
    bool ok = term_take(t, a->child[0], false) && !(a->child[1]->flags & (HAS_SYM | HAS_OPAQUE | HAS_INF))
              && t->rational(t->m, a->child[1], q) && int_get(q, -START_MAX, START_MAX, &first);
    if (ok) {
        fmpq_poly_set_coeff_si(shift, 0, first);
        fmpq_poly_set_coeff_ui(shift, 1, 1);
        fmpq_poly_compose(t->num, t->num, shift);
        fmpq_poly_compose(t->den, t->den, shift);
        fmpq_poly_gcd(shift, t->num, t->den);
        fmpq_poly_div(t->num, t->num, shift);
        fmpq_poly_div(t->den, t->den, shift);
        for (int i = 0; ok && i < t->n_factorial; i++)
            ok = (t->factorial[i].add += t->factorial[i].step * first) >= 0 && t->factorial[i].add < 1000;
        ok = ok && ((first > -64 && first < 64) || fmpq_is_one(t->ratio));
        if (ok && !fmpq_is_one(t->ratio)) {
            fmpq_pow_si(q, t->ratio, first);
            fmpq_poly_scalar_mul_fmpq(t->num, t->num, q);
        }
    }
    fmpq_clear(q);
    fmpq_poly_clear(shift);
    return ok;
}

/* ---- rational functions ---- */

/* Add what the poles at the roots of one factor of the denominator give to the sum over n = 0, 1, ... */
static bool poles_add(acb_t sum, const struct term *t, const fmpz_poly_t factor, slong times, slong prec)
{
    slong n = fmpz_poly_degree(factor);
    acb_ptr root = _acb_vec_init(n);
    acb_poly_t num, den;
    acb_t a, s;
    bool ok = true;
    acb_poly_init(num);
    acb_poly_init(den);
    acb_init(a);
    acb_init(s);
    arb_fmpz_poly_complex_roots(root, factor, 0, prec);
    for (slong i = 0; ok && i < n; i++) {
        /* around the root: num / den = sum of c_j / x^j, from the series of num x^times / den */
        acb_poly_set_fmpq_poly(num, t->num, prec);
        acb_poly_taylor_shift(num, num, root + i, prec);
        acb_poly_set_fmpq_poly(den, t->den, prec);
        acb_poly_taylor_shift(den, den, root + i, prec);
        acb_poly_shift_right(den, den, times);    // the coefficients below are 0
        acb_poly_div_series(num, num, den, times, prec);
        acb_neg(a, root + i);
        for (slong j = 1; ok && j <= times; j++) {    // sum over n of 1 / (n + a)^j; for j = 1 as -psi(a), the rest cancels
            acb_t c;
            acb_init(c);
            acb_poly_get_coeff_acb(c, num, times - j);
            if (j == 1) {
                acb_digamma(s, a, prec);
                acb_neg(s, s);
            } else {
                acb_t power;
                acb_init(power);
                acb_set_si(power, j);
                acb_hurwitz_zeta(s, power, a, prec);
                acb_clear(power);
            }
            acb_addmul(sum, c, s, prec);
            ok = acb_is_finite(sum);
            acb_clear(c);
        }
    }
    _acb_vec_clear(root, n);
    acb_poly_clear(num);
    acb_poly_clear(den);
    acb_clear(a);
    acb_clear(s);
    return ok;
}

/* Is p(n) = 0 for some n = 0, 1, ...? */
static bool has_natural_root(const fmpz_poly_factor_t f)
{
    fmpz_t c;
    bool found = false;
    fmpz_init(c);
    for (slong i = 0; i < f->num; i++)
        if (fmpz_poly_degree(f->p + i) == 1) {
            fmpz_poly_get_coeff_fmpz(c, f->p + i, 1);
            bool whole = fmpz_is_pm1(c);
            int sign = fmpz_sgn(c);
            fmpz_poly_get_coeff_fmpz(c, f->p + i, 0);
            found |= whole && fmpz_sgn(c) * sign <= 0;
        }
    fmpz_clear(c);
    return found;
}

static void factors_of(fmpz_poly_factor_t f, const fmpq_poly_t p)
{
    fmpz_poly_t whole;
    fmpz_poly_init(whole);
    fmpq_poly_get_numerator(whole, p);
    fmpz_poly_factor(f, whole);
    fmpz_poly_clear(whole);
}

/* The sum of num(n) / den(n), whose degrees differ by 2 at least. */
static bool rational_sum(struct term *t, acb_t z, slong prec)
{
    fmpz_poly_factor_t f;
    bool ok = math_spend(t->m, 2000 + 100 * fmpq_poly_degree(t->den) * (1 + prec / 64));
    fmpz_poly_factor_init(f);
    acb_zero(z);
    if (ok)
        factors_of(f, t->den);
    ok = ok && !has_natural_root(f);
    for (slong i = 0; ok && i < f->num; i++)
        ok = f->exp[i] <= 8 && poles_add(z, t, f->p + i, f->exp[i], prec + 40);
    fmpz_poly_factor_clear(f);
    return ok && acb_is_finite(z);
}

/* t with each two neighbours of an alternating sum put together: R(2n) - R(2n + 1). */
static void pairs_join(struct term *t)
{
    fmpq_poly_t even, odd, even_den, odd_den;
    fmpq_poly_init(even);
    fmpq_poly_init(odd);
    fmpq_poly_init(even_den);
    fmpq_poly_init(odd_den);
    fmpq_poly_set_coeff_ui(even, 1, 2);
    fmpq_poly_set_coeff_ui(odd, 1, 2);
    fmpq_poly_set_coeff_ui(odd, 0, 1);
    fmpq_poly_compose(even_den, t->den, even);
    fmpq_poly_compose(odd_den, t->den, odd);
    fmpq_poly_compose(even, t->num, even);
    fmpq_poly_compose(odd, t->num, odd);
    fmpq_poly_mul(even, even, odd_den);
    fmpq_poly_mul(odd, odd, even_den);
    fmpq_poly_sub(t->num, even, odd);
    fmpq_poly_mul(t->den, even_den, odd_den);
    fmpq_poly_gcd(even, t->num, t->den);
    fmpq_poly_div(t->num, t->num, even);
    fmpq_poly_div(t->den, t->den, even);
    fmpq_poly_clear(even);
    fmpq_poly_clear(odd);
    fmpq_poly_clear(even_den);
    fmpq_poly_clear(odd_den);
    fmpq_one(t->ratio);
}

/* ---- sums that fall like a geometric series ---- */

/* A bound of |above(n) / below(n)| for all n from k on: the sum of the coefficients' sizes at k over the first of below less the
 * others; false: there is none yet. */
static bool ratio_bound(arb_t out, const fmpz_poly_t above, const fmpz_poly_t below, slong k)
{
    slong da = fmpz_poly_degree(above), db = fmpz_poly_degree(below);
    arb_t a, b, x, c;
    arb_init(a);
    arb_init(b);
    arb_init(x);
    arb_init(c);
    for (int part = 0; part < 2; part++)
        for (slong i = 0; i <= (part ? db : da); i++) {
            arb_set_si(x, k);
            arb_pow_ui(x, x, (ulong)(db - i), 64);    // i <= da <= db
            arb_set_fmpz(c, (part ? below : above)->coeffs + i);
            arb_abs(c, c);
            arb_div(c, c, x, 64);
            if (part && i < db)
                arb_sub(b, b, c, 64);
            else
                arb_add(part ? b : a, part ? b : a, c, 64);
        }
    bool ok = arb_is_positive(b);
    if (ok)
        arb_div(out, a, b, 64);
    arb_clear(a);
    arb_clear(b);
    arb_clear(x);
    arb_clear(c);
    return ok;
}

/* The quotient of neighbours of the part that never is 0: ratio and factorials, as polynomials in n, for n to n + 1. */
static void growth_of(const struct term *t, fmpz_poly_t above, fmpz_poly_t below)
{
    fmpz_poly_t line;
    fmpz_poly_init(line);
    fmpz_poly_set_fmpz(above, fmpq_numref(t->ratio));
    fmpz_poly_set_fmpz(below, fmpq_denref(t->ratio));
    for (int i = 0; i < t->n_factorial; i++)
        for (int64_t k = 1; k <= t->factorial[i].step; k++) {    // (step n + add + k)
            fmpz_poly_set_coeff_si(line, 1, t->factorial[i].step);
            fmpz_poly_set_coeff_si(line, 0, t->factorial[i].add + k);
            if (t->factorial[i].below)
                fmpz_poly_mul(below, below, line);
            else
                fmpz_poly_mul(above, above, line);
        }
    fmpz_poly_clear(line);
}

static bool falling_sum(struct term *t, acb_t z, slong prec)
{
    fmpz_poly_t up, down, num, den, above, below, next;
    fmpz_t x, u, v;
    arb_t g, s, one, tail;
    fmpz_poly_factor_t f;
    fmpz_poly_init(up);
    fmpz_poly_init(down);
    fmpz_poly_init(num);
    fmpz_poly_init(den);
    fmpz_poly_init(above);
    fmpz_poly_init(below);
    fmpz_poly_init(next);
    fmpz_init(x);
    fmpz_init(u);
    fmpz_init(v);
    arb_init(g);
    arb_init(s);
    arb_init(one);
    arb_init(tail);
    fmpz_poly_factor_init(f);
    growth_of(t, up, down);
    factors_of(f, t->den);
    fmpq_poly_get_numerator(num, t->num);
    fmpz_poly_scalar_mul_fmpz(num, num, fmpq_poly_denref(t->den));
    fmpq_poly_get_numerator(den, t->den);
    fmpz_poly_scalar_mul_fmpz(den, den, fmpq_poly_denref(t->num));
    fmpz_poly_set_coeff_si(next, 0, 1);
    fmpz_poly_set_coeff_si(next, 1, 1);
    fmpz_poly_compose(above, num, next);    // num(n + 1) den(n) up(n) over num(n) den(n + 1) down(n)
    fmpz_poly_mul(above, above, den);
    fmpz_poly_mul(above, above, up);
    fmpz_poly_compose(below, den, next);
    fmpz_poly_mul(below, below, num);
    fmpz_poly_mul(below, below, down);
    bool done = false, ok = !fmpz_poly_is_zero(num) && !has_natural_root(f) && fmpz_poly_degree(above) <= fmpz_poly_degree(below);
    prec += 60;
    arb_one(g);    // the part that never is 0, at n
    for (int i = 0; i < t->n_factorial; i++) {
        arb_fac_ui(one, (ulong)t->factorial[i].add, prec);
        if (t->factorial[i].below)
            arb_div(g, g, one, prec);
        else
            arb_mul(g, g, one, prec);
    }
    for (slong n = 0; ok && n < TERMS_MAX; n++) {
        ok = math_spend(t->m, 12 + prec / 32);
        fmpz_set_si(x, n);
        fmpz_poly_evaluate_fmpz(u, num, x);
        fmpz_poly_evaluate_fmpz(v, den, x);
        arb_mul_fmpz(one, g, u, prec);
        arb_div_fmpz(one, one, v, prec);
        if (n >= 2 && n % 8 == 0 && ratio_bound(tail, above, below, n)) {    // |this term| / (1 - bound) is left
            arb_t room;
            arb_init(room);
            arb_sub_ui(room, tail, 1, 64);
            arb_neg(room, room);
            if (arb_is_positive(room)) {
                arb_div(tail, one, room, 64);
                arb_abs(tail, tail);
                mag_t size;
                mag_init(size);
                arb_get_mag(size, tail);
                done = mag_cmp_2exp_si(size, -prec) < 0 && fmpz_sgn(u) != 0;
                if (done)
                    arb_add_error_mag(s, size);
                mag_clear(size);
            }
            arb_clear(room);
        }
        if (done)
            break;
        arb_add(s, s, one, prec);
        fmpz_poly_evaluate_fmpz(u, up, x);
        fmpz_poly_evaluate_fmpz(v, down, x);
        arb_mul_fmpz(g, g, u, prec);
        arb_div_fmpz(g, g, v, prec);
    }
    acb_set_arb(z, s);
    fmpz_poly_clear(up);
    fmpz_poly_clear(down);
    fmpz_poly_clear(num);
    fmpz_poly_clear(den);
    fmpz_poly_clear(above);
    fmpz_poly_clear(below);
    fmpz_poly_clear(next);
    fmpz_clear(x);
    fmpz_clear(u);
    fmpz_clear(v);
    arb_clear(g);
    arb_clear(s);
    arb_clear(one);
    arb_clear(tail);
    fmpz_poly_factor_clear(f);
    return ok && done && acb_is_finite(z);
}

/* ---- products ---- */

static bool gammas_multiply(acb_t z, const fmpq_poly_t p, bool below, slong prec)
{
    fmpz_poly_factor_t f;
    bool ok = true;
    acb_t g;
    acb_init(g);
    fmpz_poly_factor_init(f);
    factors_of(f, p);
    for (slong i = 0; ok && i < f->num; i++) {
        slong n = fmpz_poly_degree(f->p + i);
        acb_ptr root = _acb_vec_init(n);
        arb_fmpz_poly_complex_roots(root, f->p + i, 0, prec);
        for (slong k = 0; k < n; k++)
            for (slong times = 0; times < f->exp[i]; times++) {    // the product of (n - root) goes with 1 / gamma(-root)
                acb_neg(g, root + k);
                acb_rgamma(g, g, prec);
                if (below)
                    acb_div(z, z, g, prec);
                else
                    acb_mul(z, z, g, prec);
            }
        _acb_vec_clear(root, n);
    }
    ok = ok && !(below && has_natural_root(f));
    fmpz_poly_factor_clear(f);
    acb_clear(g);
    return ok;
}

/* The product of num(n) / den(n) for n = 0, 1, ...: it converges when the first two coefficients are the same. */
static bool rational_product(struct term *t, acb_t z, slong prec)
{
    slong n = fmpq_poly_degree(t->num);
    fmpq_t a, b;
    bool ok = n >= 1 && n == fmpq_poly_degree(t->den);
    fmpq_init(a);
    fmpq_init(b);
    for (slong i = n - 1; ok && i <= n; i++) {
        fmpq_poly_get_coeff_fmpq(a, t->num, i);
        fmpq_poly_get_coeff_fmpq(b, t->den, i);
        ok = fmpq_equal(a, b);
    }
    fmpq_clear(a);
    fmpq_clear(b);
    ok = ok && math_spend(t->m, 2000 + 200 * n * (1 + prec / 64));
    acb_one(z);
    return ok && gammas_multiply(z, t->num, false, prec + 40) && gammas_multiply(z, t->den, true, prec + 40) && acb_is_finite(z);
}

/* ---- sums and products as a whole ---- */

enum fall {
    FALL_UNKNOWN,
    FALL_RATIONAL,       // a rational function, the sum of which converges
    FALL_ALTERNATES,     // ... with signs in turn
    FALL_FAST,           // like a geometric series, or faster
    FALL_TO_INFINITY,    // the sum does not converge
};

static enum fall fall_of(const struct term *t)
{
    slong gap = fmpq_poly_degree(t->den) - fmpq_poly_degree(t->num);
    fmpz_poly_t up, down;
    fmpq_t minus_one;
    if (fmpq_poly_is_zero(t->num))
        return FALL_UNKNOWN;
    if (t->n_factorial == 0 && fmpq_is_one(t->ratio))
        return gap >= 2 ? FALL_RATIONAL : FALL_TO_INFINITY;
    fmpq_init(minus_one);
    fmpq_set_si(minus_one, -1, 1);
    bool alternates = t->n_factorial == 0 && fmpq_equal(t->ratio, minus_one);
    fmpq_clear(minus_one);
    if (alternates)
        return gap >= 1 ? FALL_ALTERNATES : FALL_UNKNOWN;
    fmpz_poly_init(up);
    fmpz_poly_init(down);
    growth_of(t, up, down);
    slong a = fmpz_poly_degree(up), b = fmpz_poly_degree(down);
    bool fast = a < b || (a == b && fmpz_cmpabs(fmpz_poly_lead(up), fmpz_poly_lead(down)) < 0);
    fmpz_poly_clear(up);
    fmpz_poly_clear(down);
    return fast ? FALL_FAST : FALL_UNKNOWN;
}

/* Has a itself a value that nothing computes? */
static bool has_no_value(const struct math_node *a)
{
    return a->kind == K_APP || a->kind == K_TEXT || a->kind == K_JUXT || (a->kind == K_OPAQUE && a->scale == 0);
}

/* Is there an unknown in a, besides the bound one? */
static bool has_free(const struct math_node *a, const struct math_node *bound)
{
    if (a->kind == K_SYM)
        return !name_same(a, bound);
    bool free = has_no_value(a);
    for (int i = 0; !free && (a->flags & (HAS_SYM | HAS_OPAQUE)) && i < a->n; i++)
        free = has_free(a->child[i], bound);
    return free;
}

struct math_node *endless_node(struct math *m, struct math_node *a, rational_fn *rational)
{
    struct term t;
    int sign = 0;
    const char *why = m->why;
    if (!a)
        return NULL;
    struct math_node index = { .kind = K_SYM, .s = a->s, .len = a->len };
    term_init(&t, m, rational, &index);
    if (a->kind == K_SUM && term_of(&t, a) && fall_of(&t) == FALL_TO_INFINITY) {
        fmpz_poly_factor_t f;
        fmpz_poly_factor_init(f);
        factors_of(f, t.den);
        if (!has_natural_root(f))
            sign = fmpz_sgn(fmpq_poly_numref(t.num) + fmpq_poly_degree(t.num))
                   * fmpz_sgn(fmpq_poly_numref(t.den) + fmpq_poly_degree(t.den));
        fmpz_poly_factor_clear(f);
    }
    term_clear(&t);
    m->why = why;
    if (sign != 0)
        return sign > 0 ? a->child[2] : node_new(m, K_NEG, 1, a->child[2]);
    a->op = 1;
    a->flags &= (uint16_t)~HAS_INF;
    a->flags |= HAS_TRANS | HAS_CALC;
    if (!has_free(a->child[0], &index) && !has_free(a->child[1], &index))
        a->flags &= (uint16_t) ~(HAS_SYM | HAS_OPAQUE);
    return a;
}

static bool sum_ball(struct ball *b, const struct math_node *whole, const struct math_node *a, const struct math_node *index,
                     rational_fn *rational, acb_t z)
{
    struct term t;
    struct math_node *child[3] = { (struct math_node *)a, whole->child[1], whole->child[2] };
    struct math_node part = { .kind = whole->kind, .n = 3, .child = child };
    if (whole->kind == K_SUM && a->kind == K_ADD) {    // each of its terms, where each sum converges
        acb_t x;
        acb_init(x);
        bool each = true;
        acb_zero(z);
        for (int i = 0; each && i < a->n; i++) {
            each = sum_ball(b, whole, a->child[i], index, rational, x);
            acb_add(z, z, x, b->prec);
        }
        acb_clear(x);
        if (each)
            return true;
    }
    term_init(&t, b->m, rational, index);
    bool ok = term_of(&t, &part);
    if (ok && whole->kind == K_PROD) {
        ok = t.n_factorial == 0 && fmpq_is_one(t.ratio) && rational_product(&t, z, b->prec);
    } else if (ok) {
        switch (fall_of(&t)) {
        case FALL_RATIONAL: ok = rational_sum(&t, z, b->prec); break;
        case FALL_ALTERNATES:
            pairs_join(&t);
            ok = fall_of(&t) == FALL_RATIONAL && rational_sum(&t, z, b->prec);
            break;
        case FALL_FAST: ok = falling_sum(&t, z, b->prec); break;
        case FALL_TO_INFINITY:
        case FALL_UNKNOWN: ok = false; break;
        }
    }
    term_clear(&t);
    return ok;
}

bool endless_ball(struct ball *b, const struct math_node *a, rational_fn *rational, acb_t z)
{
    struct math_node index = { .kind = K_SYM, .s = a->s, .len = a->len };
    if (sum_ball(b, a, a->child[0], &index, rational, z))
        return true;
    if (!b->m->why)
        b->m->why = CALCULUS_LEFT;
    return false;
}

/* ---- integrals ---- */

struct integrand {
    struct ball *ball;
    ball_fn *eval;
    const struct math_node *body;
    struct bound_ball bound;
};

static int integrand_at(acb_ptr out, const acb_t x, void *ctx, slong order, slong prec)
{
    struct integrand *f = ctx;
    struct ball at = *f->ball;
    f->bound.value = x;
    at.bound = &f->bound;
    at.prec = prec;
    at.analytic = order > 0;
    if (order > 1 || !f->eval(&at, f->body, out))
        acb_indeterminate(out);
    if (at.m->steps < 0)
        acb_zero(out);    // integral_ball fails then: let Arb end at once
    return 0;
}

bool ball_analytic(enum math_func fn)
{
    return fn <= FN_CSC || fn == FN_ASIN || fn == FN_ACOS || fn == FN_ATAN || (fn >= FN_SINH && fn <= FN_CSCH) || fn == FN_ASINH
           || fn == FN_ATANH || fn == FN_EXP || fn == FN_LN || fn == FN_ABS || fn == FN_FACT || fn == FN_GAMMA;
}

/* Is a made of functions of x that are analytic but for poles and cuts? */
static bool integrable(const struct math_node *a, const struct math_node *x)
{
    bool known = !has_no_value(a) && !((a->kind == K_SUM || a->kind == K_PROD) && a->op == 1 && node_occurs(a, x));
    known = known && !(a->kind == K_FUNC && !ball_analytic((enum math_func)a->op) && node_occurs(a, x));
    for (int i = 0; known && i < a->n; i++)
        known = integrable(a->child[i], x);
    return known;
}

struct math_node *integral_node(struct math_node *a)
{
    struct math_node bound = { .kind = K_SYM, .s = a->s, .len = a->len };
    bool plain = !((a->flags & (HAS_SET | HAS_PM | HAS_MATRIX | HAS_I)) || (a->child[0]->flags & HAS_INF))
                 && integrable(a->child[0], &bound);
    bool endless = (a->flags & HAS_INF) != 0;
    for (int i = 1; plain && i < a->n; i++)
        plain = !node_occurs(a->child[i], &bound);
    if (!plain)
        return a;
    a->scale = endless ? 2 : 1;
    a->flags &= (uint16_t)~HAS_INF;
    a->flags |= HAS_TRANS | HAS_CALC;
    if (!has_free(a->child[0], &bound) && !has_free(a->child[1], &bound) && !has_free(a->child[2], &bound))
        a->flags &= (uint16_t) ~(HAS_SYM | HAS_OPAQUE);
    return a;
}

bool integral_ball(struct ball *b, const struct math_node *a, ball_fn *eval, acb_t z)
{
    struct integrand f = { .ball = b, .eval = eval, .body = a->child[0], .bound = { .s = a->s, .len = a->len, .outer = b->bound } };
    acb_calc_integrate_opt_t options;
    acb_t from, to;
    mag_t tolerance;
    const char *why = b->m->why;
    acb_init(from);
    acb_init(to);
    mag_init(tolerance);
    mag_set_ui_2exp_si(tolerance, 1, -b->prec);
    acb_calc_integrate_opt_init(options);
    options->eval_limit = INTEGRAL_EVALS;
    options->depth_limit = 4 * b->prec;
    bool ok = eval(b, a->child[1], from) && eval(b, a->child[2], to) && acb_is_real(from) && acb_is_real(to);
    if (ok)
        acb_calc_integrate(z, integrand_at, &f, from, to, b->prec, tolerance, options, b->prec + 20);
    ok = ok && acb_is_finite(z) && b->m->steps >= 0;
    acb_clear(from);
    acb_clear(to);
    mag_clear(tolerance);
    b->m->why = ok ? why : b->m->steps < 0 ? b->m->why : CALCULUS_LEFT;
    return ok;
}
