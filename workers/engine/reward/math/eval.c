/* eval.c - what a tree is worth: exactly, as a polynomial's residue, or within a ball
 *
 * Three ways, cheapest first. Rational trees are computed exactly. Polynomials and rational functions are evaluated
 * modulo the prime 2^61 - 1 at two random points: different residues prove them different, equal ones leave a chance of
 * at most (degree / 2^61)^2 (Schwartz 1980, Zippel 1979); roots, logarithms and unknown functions take part as unknowns
 * named by their arguments' residues, so that only equality can be told of them this way. Then Arb balls (Johansson
 * 2017, doi 10.1109/TC.2017.2690633): balls that do not meet prove trees different; balls that meet when they are
 * smaller than 2^-400 of the value (2^-100 at each of 8 points with free symbols) are taken for equal. */
#include <string.h>
#include "workers/engine/reward/math/node.h"
#include <arb.h>
#include <acb.h>
#include <arb_hypgeom.h>
#include <acb_hypgeom.h>

#define P61 ((UINT64_C(1) << 61) - 1)
#define N_POINT 8           // points at which trees with free symbols are compared
#define SUM_TERMS_MAX 5000

static bool spend(struct math *m, int64_t steps)
{
    m->steps -= steps;
    if (m->steps >= 0)
        return true;
    m->why = "budget spent";
    return false;
}

static bool bound_value(const struct math *m, const struct node *a, int64_t *v)
{
    for (int i = m->n_bind; i-- > 0;)
        if (m->bind[i].len == a->len && memcmp(m->bind[i].s, a->s, (size_t)a->len) == 0) {
            *v = m->bind[i].value;
            return true;
        }
    return false;
}

/* ---- exact rationals ---- */

static bool number_value(struct math *m, const struct node *a, fmpq_t out)
{
    if (a->scale > 20000 || a->scale < -20000 || a->len > 20000) {
        m->why = "number too long";
        return false;
    }
    if (a->base > 1 && a->scale == 0) {
        fmpz_zero(fmpq_numref(out));
        fmpz_one(fmpq_denref(out));
        for (int i = 0; i < a->len; i++) {
            if (a->s[i] - '0' >= a->base)
                return false;
            fmpz_mul_ui(fmpq_numref(out), fmpq_numref(out), (ulong)a->base);
            fmpz_add_ui(fmpq_numref(out), fmpq_numref(out), (ulong)(a->s[i] - '0'));
        }
        return true;
    }
    if (a->len <= 18) {
        fmpz_set_si(fmpq_numref(out), a->small);
    } else {
        char *copy = math_take(m, (size_t)a->len + 1);
        if (!copy || !spend(m, a->len))
            return false;
        memcpy(copy, a->s, (size_t)a->len);
        copy[a->len] = 0;
        fmpz_set_str(fmpq_numref(out), copy, 10);
    }
    fmpz_one(fmpq_denref(out));
    if (a->scale) {
        fmpz_t ten;
        fmpz_init_set_ui(ten, 10);
        fmpz_pow_ui(ten, ten, (ulong)(a->scale < 0 ? -a->scale : a->scale));
        if (a->scale < 0)
            fmpz_mul(fmpq_numref(out), fmpq_numref(out), ten);
        else
            fmpz_set(fmpq_denref(out), ten);
        fmpz_clear(ten);
        fmpq_canonicalise(out);
    }
    return true;
}

static bool root_exact(fmpz_t out, const fmpz_t a, ulong n)
{
    if (fmpz_sgn(a) < 0 && n % 2 == 0)
        return false;
    fmpz_t back, abs;
    fmpz_init(back);
    fmpz_init(abs);
    fmpz_abs(abs, a);
    fmpz_root(out, abs, (slong)n);
    fmpz_pow_ui(back, out, n);
    bool ok = fmpz_equal(back, abs);
    if (fmpz_sgn(a) < 0)
        fmpz_neg(out, out);
    fmpz_clear(back);
    fmpz_clear(abs);
    return ok;
}

/* base^exp when that is rational and not too long. */
static bool power_exact(struct math *m, fmpq_t out, const fmpq_t base, const fmpq_t exp)
{
    if (fmpz_is_zero(fmpq_numref(exp))) {
        if (fmpq_is_zero(base))
            return false;
        fmpq_one(out);
        return true;
    }
    if (fmpq_is_zero(base)) {
        fmpq_zero(out);
        return fmpq_sgn(exp) > 0;
    }
    bool ok = true;
    fmpq_t root;
    fmpq_init(root);
    fmpq_set(root, base);
    if (!fmpz_is_one(fmpq_denref(exp))) {
        ok = fmpz_cmp_ui(fmpq_denref(exp), 64) <= 0 && spend(m, 20 + (int64_t)fmpz_bits(fmpq_numref(base)) / 8);
        ulong n = ok ? fmpz_get_ui(fmpq_denref(exp)) : 1;
        ok = ok && root_exact(fmpq_numref(root), fmpq_numref(base), n) &&
            root_exact(fmpq_denref(root), fmpq_denref(base), n);
    }
    int64_t bits = (int64_t)(fmpz_bits(fmpq_numref(root)) + fmpz_bits(fmpq_denref(root)));
    if (ok && fmpz_is_pm1(fmpq_numref(root)) && fmpz_is_one(fmpq_denref(root))) {    // (-1)^n at any size
        if (fmpz_is_odd(fmpq_numref(exp)))
            fmpq_set(out, root);
        else
            fmpq_one(out);
    } else if (ok) {
        ok = fmpz_bits(fmpq_numref(exp)) <= 30 && bits * (fmpz_get_si(fmpq_numref(exp)) < 0
                                                          ? -fmpz_get_si(fmpq_numref(exp))
             : fmpz_get_si(fmpq_numref(exp))) <= MATH_BITS_MAX;
        if (ok) {
            slong e = fmpz_get_si(fmpq_numref(exp));
            ok = spend(m, bits * (e < 0 ? -e : e) / 64);
            if (ok)
                fmpq_pow_si(out, root, e);
        }
    }
    fmpq_clear(root);
    return ok;
}

static bool ball_floor(struct math *m, const struct node *a, bool up, fmpq_t out);

static bool int_get(const fmpq_t q, int64_t lo, int64_t hi, int64_t *v)
{
    if (!fmpz_is_one(fmpq_denref(q)) || !fmpz_fits_si(fmpq_numref(q)))
        return false;
    *v = fmpz_get_si(fmpq_numref(q));
    return *v >= lo && *v <= hi;
}

static bool func_exact(struct math *m, const struct node *a, fmpq_t out)
{
    fmpq_t x;
    int64_t v, k;
    bool ok = false;
    fmpq_init(x);
    switch ((enum math_func)a->op) {
    case FN_ABS:
        ok = eval_rational(m, a->child[0], out);
        fmpq_abs(out, out);
        break;
    case FN_FLOOR: case FN_CEIL:
        if (eval_rational(m, a->child[0], x)) {
            if (a->op == FN_FLOOR)
                fmpz_fdiv_q(fmpq_numref(out), fmpq_numref(x), fmpq_denref(x));
            else
                fmpz_cdiv_q(fmpq_numref(out), fmpq_numref(x), fmpq_denref(x));
            fmpz_one(fmpq_denref(out));
            ok = true;
        } else {
            ok = !(a->flags & (HAS_SYM | HAS_OPAQUE | HAS_I | HAS_INF)) &&
                ball_floor(m, a->child[0], a->op == FN_CEIL, out);
        }
        break;
    case FN_FACT: case FN_FACT2:
        ok = eval_rational(m, a->child[0], x) && int_get(x, 0, 6000, &v) && spend(m, v * 4);
        if (ok && a->op == FN_FACT) {
            fmpz_fac_ui(fmpq_numref(out), (ulong)v);
            fmpz_one(fmpq_denref(out));
        } else if (ok) {
            fmpq_one(out);
            for (; v > 1; v -= 2)
                fmpz_mul_ui(fmpq_numref(out), fmpq_numref(out), (ulong)v);
        }
        break;
    case FN_BINOM:
        ok = eval_rational(m, a->child[0], x) && int_get(x, 0, 20000, &v) && eval_rational(m, a->child[1], x) &&
             int_get(x, 0, 20000, &k) && spend(m, v);
        if (ok) {
            fmpz_bin_uiui(fmpq_numref(out), (ulong)v, (ulong)k);
            fmpz_one(fmpq_denref(out));
        }
        break;
    case FN_GCD: case FN_LCM: case FN_MAX: case FN_MIN:
        ok = a->n > 0 && eval_rational(m, a->child[0], out);
        for (int i = 1; ok && i < a->n; i++) {
            ok = eval_rational(m, a->child[i], x);
            if (!ok)
                break;
            if (a->op == FN_MAX || a->op == FN_MIN) {
                if ((fmpq_cmp(x, out) > 0) == (a->op == FN_MAX))
                    fmpq_set(out, x);
                continue;
            }
            ok = fmpz_is_one(fmpq_denref(x)) && fmpz_is_one(fmpq_denref(out));
            if (ok && a->op == FN_GCD)
                fmpz_gcd(fmpq_numref(out), fmpq_numref(out), fmpq_numref(x));
            else if (ok)
                fmpz_lcm(fmpq_numref(out), fmpq_numref(out), fmpq_numref(x));
        }
        break;
    case FN_MOD:
        ok = eval_rational(m, a->child[0], out) && eval_rational(m, a->child[1], x) && !fmpq_is_zero(x) &&
             fmpz_is_one(fmpq_denref(x)) && fmpz_is_one(fmpq_denref(out));
        if (ok)
            fmpz_fdiv_r(fmpq_numref(out), fmpq_numref(out), fmpq_numref(x));
        break;
    case FN_SIGN:
        ok = eval_rational(m, a->child[0], x);
        fmpq_set_si(out, fmpq_sgn(x), 1);
        break;
    case FN_RE: case FN_CONJ:
        ok = eval_rational(m, a->child[0], out);
        break;
    default:
        break;
    }
    fmpq_clear(x);
    return ok;
}

bool eval_rational(struct math *m, const struct node *a, fmpq_t out)
{
    fmpq_t x;
    int64_t v, last;
    bool ok = false;
    if (!spend(m, 1))
        return false;
    switch ((enum node_kind)a->kind) {
    case K_NUM:
        return number_value(m, a, out);
    case K_SYM:
        if (!bound_value(m, a, &v))
            return false;
        fmpq_set_si(out, v, 1);
        return true;
    case K_NEG:
        ok = eval_rational(m, a->child[0], out);
        fmpq_neg(out, out);
        return ok;
    case K_PCT:
        ok = eval_rational(m, a->child[0], out);
        if (ok) {
            fmpz_mul_ui(fmpq_denref(out), fmpq_denref(out), 100);
            fmpq_canonicalise(out);
        }
        return ok;
    case K_UNIT:
        return eval_rational(m, a->child[0], out);
    case K_FUNC:
        return func_exact(m, a, out);
    case K_ADD: case K_MUL: case K_DIV: case K_POW: case K_ROOT: case K_RATIO: case K_SUM: case K_PROD:
        break;
    case K_CONST: case K_TEXT: case K_LOG: case K_APP: case K_JUXT: case K_OPAQUE: case K_DEG: case K_PM: case K_LIST: case K_SET:
    case K_TUPLE:
    case K_REL: case K_UNION: case K_INTER: case K_MINUS: case K_NAMED_SET: case K_BUILDER: case K_MATRIX:
        return false;
    }
    fmpq_init(x);
    if (a->kind == K_SUM || a->kind == K_PROD) {
        ok = m->n_bind < MATH_BIND_MAX && eval_rational(m, a->child[1], x) && int_get(x, -1000000000, 1000000000, &v) &&
             eval_rational(m, a->child[2], x) && int_get(x, -1000000000, 1000000000, &last) && last - v < SUM_TERMS_MAX;
        if (!ok)
            goto out;
        int b = m->n_bind++;
        m->bind[b].s = a->s;
        m->bind[b].len = a->len;
        fmpq_set_si(out, a->kind == K_PROD, 1);
        for (; ok && v <= last; v++) {
            m->bind[b].value = v;
            ok = eval_rational(m, a->child[0], x) && fmpz_bits(fmpq_denref(out)) < MATH_BITS_MAX &&
                 fmpz_bits(fmpq_numref(out)) < MATH_BITS_MAX && spend(m, 4 + (int64_t)fmpz_bits(fmpq_denref(out)) / 16);
            if (ok && a->kind == K_SUM)
                fmpq_add(out, out, x);
            else if (ok)
                fmpq_mul(out, out, x);
        }
        m->n_bind--;
        goto out;
    }
    ok = eval_rational(m, a->child[0], out);
    for (int i = 1; ok && i < a->n; i++) {
        ok = eval_rational(m, a->child[i], x) &&
             fmpz_bits(fmpq_numref(out)) + fmpz_bits(fmpq_denref(out)) + fmpz_bits(fmpq_numref(x)) + fmpz_bits(fmpq_denref(x))
                 < 2 * MATH_BITS_MAX &&
             spend(m, 1 + (int64_t)(fmpz_bits(fmpq_numref(out)) + fmpz_bits(fmpq_numref(x))) / 512);
        if (!ok)
            break;
        if (a->kind == K_ADD) {
            fmpq_add(out, out, x);
        } else if (a->kind == K_MUL) {
            fmpq_mul(out, out, x);
        } else if (a->kind == K_POW) {
            fmpq_t base;
            fmpq_init(base);
            fmpq_swap(base, out);
            ok = power_exact(m, out, base, x);
            fmpq_clear(base);
        } else if (fmpq_is_zero(x)) {    // K_DIV, K_RATIO, K_ROOT
            m->why = "division by zero";
            ok = false;
        } else if (a->kind == K_ROOT) {
            fmpq_t base;
            fmpq_init(base);
            fmpq_swap(base, out);
            fmpq_inv(x, x);
            ok = power_exact(m, out, base, x);
            fmpq_clear(base);
        } else {
            fmpq_div(out, out, x);
        }
    }
out:
    fmpq_clear(x);
    return ok;
}

/* ---- residues ---- */

static uint64_t mul61(uint64_t a, uint64_t b)
{
    unsigned __int128 t = (unsigned __int128)a * b;
    uint64_t r = (uint64_t)(t & P61) + (uint64_t)(t >> 61);
    return r >= P61 ? r - P61 : r;
}

static uint64_t add61(uint64_t a, uint64_t b)
{
    uint64_t r = a + b;
    return r >= P61 ? r - P61 : r;
}

static uint64_t pow61(uint64_t a, uint64_t e)
{
    uint64_t r = 1;
    for (; e; e >>= 1, a = mul61(a, a))
        if (e & 1)
            r = mul61(r, a);
    return r;
}

static uint64_t mix(uint64_t h, uint64_t v)    // splitmix64's finaliser
{
    h += v + UINT64_C(0x9e3779b97f4a7c15);
    h = (h ^ (h >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    h = (h ^ (h >> 27)) * UINT64_C(0x94d049bb133111eb);
    return h ^ (h >> 31);
}

static uint64_t mix_text(uint64_t h, const char *s, int32_t len)
{
    for (int32_t i = 0; i < len; i++)
        h = mix(h, (unsigned char)s[i]);
    return h;
}

struct residue {
    struct math *m;
    uint64_t seed;
    bool opaque;    // something took part as an unknown that is none: only equality can be told
};

static bool residue(struct residue *r, const struct node *a, uint64_t *out);

static bool commutes(const struct node *a)
{
    return a->kind == K_FUNC && (a->op == FN_GCD || a->op == FN_LCM || a->op == FN_MAX || a->op == FN_MIN);
}

/* A bound of a sum, a product or an integral may be infinite; as an operand infinity has no residue, or it would cancel
 * like a number. */
static bool infinite_bound(const struct node *a, int i, uint64_t seed, uint64_t *out)
{
    if (i == 0 || (a->kind != K_SUM && a->kind != K_PROD && a->kind != K_OPAQUE))
        return false;
    const struct node *bound = a->child[i];
    bool minus = bound->kind == K_NEG;
    if (minus)
        bound = bound->child[0];
    *out = mix(seed, minus ? 81 : 80);
    return node_is(bound, K_CONST) && bound->op == CONST_INF;
}

/* The residue of an unknown that is named by its kind and its children. */
static bool unknown(struct residue *r, const struct node *a, uint64_t *out)
{
    uint64_t h = mix(mix(mix(r->seed, a->kind), (uint64_t)(uint8_t)a->op), (uint64_t)a->n), v, all = 0;
    bool index = (a->kind == K_SUM || a->kind == K_PROD) && r->m->n_bind < MATH_BIND_MAX;
    if (a->kind == K_APP || a->kind == K_REL)
        h = mix_text(h, a->s, a->len);
    if (a->kind == K_MATRIX)
        h = mix(h, (uint64_t)a->scale);
    for (int i = 0; i < a->n; i++) {
        bool bound = index && i == 0;    // the index by its place, not by its name
        if (bound) {
            int k = r->m->n_bind++;
            r->m->bind[k].s = a->s;
            r->m->bind[k].len = a->len;
            r->m->bind[k].value = (int64_t)(mix(r->seed, (uint64_t)k) >> 4);
        }
        bool ok = infinite_bound(a, i, r->seed, &v) || residue(r, a->child[i], &v);
        r->m->n_bind -= bound;
        if (!ok)
            return false;
        if (commutes(a))
            all += mix(r->seed + 7, v);
        else
            h = mix(h, v);
    }
    h = mix(h, all);
    r->opaque |= a->kind != K_APP;
    *out = h % P61;
    return true;
}

static bool residue(struct residue *r, const struct node *a, uint64_t *out)
{
    uint64_t v, w;
    int64_t bound;
    if (!spend(r->m, 1))
        return false;
    switch ((enum node_kind)a->kind) {
    case K_NUM: {
        if (a->base > 1) {
            v = 0;
            for (int i = 0; i < a->len; i++)
                v = add61(mul61(v, (uint64_t)a->base), (uint64_t)(a->s[i] - '0'));
            *out = v;
            return true;
        }
        if (a->len <= 18) {
            *out = (uint64_t)a->small % P61;
        } else {
            v = 0;
            for (int i = 0; i < a->len; i++)
                v = add61(mul61(v, 10), (uint64_t)(a->s[i] - '0'));
            *out = v;
            if (!spend(r->m, a->len / 4))
                return false;
        }
        if (a->scale > 0)
            *out = mul61(*out, pow61(pow61(10, P61 - 2), (uint64_t)a->scale));
        else if (a->scale < 0)
            *out = mul61(*out, pow61(10, (uint64_t)-(int64_t)a->scale));
        return true;
    }
    case K_SYM:
        if (bound_value(r->m, a, &bound))
            *out = bound < 0 ? P61 - (uint64_t)-bound % P61 : (uint64_t)bound % P61;
        else
            *out = mix_text(mix(r->seed, 77), a->s, a->len) % P61;
        return true;
    case K_TEXT:
        *out = mix(r->seed, 78);
        for (int i = 0; i < a->len; i++)
            if (a->s[i] != ' ')
                *out = mix(*out, (unsigned char)(a->s[i] >= 'A' && a->s[i] <= 'Z' ? a->s[i] | 32 : a->s[i]));
        *out %= P61;
        return true;
    case K_NEG:
        if (!residue(r, a->child[0], &v))
            return false;
        *out = v ? P61 - v : 0;
        return true;
    case K_ADD: case K_MUL:
        *out = a->kind == K_MUL;
        for (int i = 0; i < a->n; i++) {
            if (!residue(r, a->child[i], &v))
                return false;
            *out = a->kind == K_MUL ? mul61(*out, v) : add61(*out, v);
        }
        return true;
    case K_RATIO: case K_DIV:
        if (!residue(r, a->child[0], out))
            return false;
        for (int i = 1; i < a->n; i++) {
            if (!residue(r, a->child[i], &w))
                return false;
            if (w == 0) {
                r->m->why = "division by zero";
                return false;
            }
            *out = mul61(*out, pow61(w, P61 - 2));
        }
        return true;
    case K_PCT:
        if (!residue(r, a->child[0], &v))
            return false;
        *out = mul61(v, pow61(100, P61 - 2));
        return true;
    case K_UNIT:
        return residue(r, a->child[0], out);
    case K_POW: {
        const struct node *e = a->child[1];
        bool minus = e->kind == K_NEG;
        e = minus ? e->child[0] : e;
        uint64_t exp = 0;
        bool whole = e->kind == K_NUM && e->scale == 0 && e->len <= 18 && e->base == 0;
        if (whole) {
            exp = (uint64_t)e->small;
        } else if (!(e->flags & (HAS_SYM | HAS_OPAQUE | HAS_TRANS | HAS_I | HAS_INF | HAS_DECIMAL | HAS_PM | HAS_TEXT))) {
            fmpq_t q;
            fmpq_init(q);
            whole = eval_rational(r->m, e, q) && fmpz_is_one(fmpq_denref(q));
            if (whole) {
                minus ^= fmpz_sgn(fmpq_numref(q)) < 0;
                fmpz_abs(fmpq_numref(q), fmpq_numref(q));
                exp = fmpz_fdiv_ui(fmpq_numref(q), P61 - 1);    // Fermat: exponents count modulo p - 1
                if (exp == 0 && !fmpz_is_zero(fmpq_numref(q)))
                    exp = P61 - 1;
            }
            fmpq_clear(q);
        }
        if (!whole)
            return unknown(r, a, out);
        if (!residue(r, a->child[0], &v))
            return false;
        if (v == 0 && (minus || exp == 0))
            return false;
        v = pow61(v, exp);
        *out = minus ? pow61(v, P61 - 2) : v;
        return true;
    }
    case K_FUNC: case K_SUM: case K_PROD:
        if (!(a->flags & (HAS_SYM | HAS_OPAQUE | HAS_TRANS | HAS_I | HAS_INF | HAS_PM)) || a->kind != K_FUNC) {
            fmpq_t q;
            fmpq_init(q);
            bool ok = eval_rational(r->m, a, q);
            if (ok) {
                *out = mul61(fmpz_fdiv_ui(fmpq_numref(q), P61), pow61(fmpz_fdiv_ui(fmpq_denref(q), P61), P61 - 2));
            }
            fmpq_clear(q);
            if (ok)
                return true;
        }
        return unknown(r, a, out);
    case K_CONST:
        if (a->op == CONST_INF)
            return false;
        r->opaque = true;    // numbers, not unknowns
        *out = mix(mix(r->seed, 79), (uint64_t)a->op) % P61;
        return true;
    case K_ROOT: case K_LOG: case K_APP: case K_JUXT: case K_OPAQUE: case K_DEG: case K_PM: case K_LIST: case K_SET: case K_TUPLE:
    case K_REL:
    case K_UNION: case K_INTER: case K_MINUS: case K_NAMED_SET: case K_BUILDER: case K_MATRIX:
        return unknown(r, a, out);
    }
    return false;
}

/* ---- balls ---- */

struct ball {
    struct math *m;
    slong prec;
    int point;          // where free symbols are put
    bool whole;         // free symbols are positive integers: gcd, lcm and mod ask for them
    bool lenient;       // what cannot be computed here counts as some number; what has no value still fails
};

static bool ball(struct ball *b, const struct node *a, acb_t z);

/* A value between 1/4 and 3 for the unknown with this hash; negative at every other of the later points. At three
 * points it is 64 times that, of either sign, so that |x+5| and x+5 do not agree everywhere. */
static void unknown_value(const struct ball *b, uint64_t h, acb_t z)
{
    uint64_t name = h;
    h = mix(h, (uint64_t)b->point + 1000);
    if (b->whole) {    // with common factors at every other point
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

/* Some number in the place of what cannot be computed. */
static bool stand_in(const struct ball *b, const struct node *a, acb_t z)
{
    struct residue r = { .m = b->m, .seed = 5 };
    uint64_t h;
    if (!residue(&r, a, &h))
        return false;
    unknown_value(b, h, z);
    return true;
}

static bool too_big(const acb_t z, slong bits)
{
    return arf_cmpabs_2exp_si(arb_midref(acb_realref(z)), bits) > 0 ||
        arf_cmpabs_2exp_si(arb_midref(acb_imagref(z)), bits) > 0;
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

static bool ball_power(struct ball *b, const struct node *exp, bool inverse, const acb_t x, acb_t z)
{
    fmpq_t q;
    bool ok = false, rational;
    fmpq_init(q);
    rational = !(exp->flags & (HAS_TRANS | HAS_I | HAS_INF | HAS_OPAQUE)) && eval_rational(b->m, exp, q) &&
               !(inverse && fmpq_is_zero(q));
    if (rational) {
        if (inverse)
            fmpq_inv(q, q);
        if (fmpz_is_one(fmpq_denref(q)) && fmpz_bits(fmpq_numref(q)) <= 62) {
            ok = fmpz_sgn(fmpq_numref(q)) > 0 || !acb_contains_zero(x);    // 0^0 has no value
            if (ok)
                acb_pow_fmpz(z, x, fmpq_numref(q), b->prec);
        } else if (fmpz_bits(fmpq_numref(q)) <= 62 && fmpz_bits(fmpq_denref(q)) <= 62) {
            ok = real_root(z, x, q, b->prec);
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
    } else if (!inverse && !acb_contains_zero(x)) {
        acb_t e;
        acb_init(e);
        ok = ball(b, exp, e);
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
static bool whole_func(struct ball *b, const struct node *a, const acb_t x, acb_t z)
{
    fmpz_t u, v;
    acb_t y;
    fmpz_init(u);
    fmpz_init(v);
    acb_init(y);
    bool ok = acb_is_real(x) && arb_get_unique_fmpz(u, acb_realref(x)) && arb_is_int(acb_realref(x));
    for (int i = 1; ok && i < a->n; i++) {
        ok = ball(b, a->child[i], y) && acb_is_real(y) && arb_is_int(acb_realref(y)) &&
             arb_get_unique_fmpz(v, acb_realref(y)) && !(a->op == FN_MOD && fmpz_is_zero(v));
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

static bool ball_func(struct ball *b, const struct node *a, acb_t z)
{
    acb_t x;
    bool ok;
    slong prec = b->prec;
    fmpq_t q;
    if (!(a->flags & (HAS_SYM | HAS_OPAQUE | HAS_I | HAS_INF)) || b->m->n_bind > 0) {
        fmpq_init(q);
        ok = func_exact(b->m, a, q);
        if (ok)
            acb_set_fmpq(z, q, prec);
        fmpq_clear(q);
        if (ok)
            return true;
    }
    if (!spend(b->m, 20 + prec / 8))
        return false;
    acb_init(x);
    ok = a->n > 0 && ball(b, a->child[0], x);
    if (!ok) {
        acb_clear(x);
        return false;
    }
    bool real = acb_is_real(x);
    switch ((enum math_func)a->op) {
    case FN_SIN: case FN_COS: case FN_TAN: case FN_COT: case FN_SEC: case FN_CSC:
        ok = !too_big(x, 4096);
        if (!ok)
            break;
        switch (a->op) {
        case FN_SIN: acb_sin(z, x, prec); break;
        case FN_COS: acb_cos(z, x, prec); break;
        case FN_TAN: acb_tan(z, x, prec); break;
        case FN_COT: acb_cot(z, x, prec); break;
        case FN_SEC: acb_sec(z, x, prec); break;
        case FN_CSC: acb_csc(z, x, prec); break;
        default: break;
        }
        break;
    case FN_ASIN: acb_asin(z, x, prec); break;
    case FN_ACOS: acb_acos(z, x, prec); break;
    case FN_ATAN: acb_atan(z, x, prec); break;
    case FN_ACOT: case FN_ASEC: case FN_ACSC:
        ok = !acb_contains_zero(x);
        if (ok) {
            acb_inv(x, x, prec);
            if (a->op == FN_ACOT)
                acb_atan(z, x, prec);
            else if (a->op == FN_ASEC)
                acb_acos(z, x, prec);
            else
                acb_asin(z, x, prec);
        }
        break;
    case FN_SINH: case FN_COSH: case FN_TANH: case FN_COTH: case FN_SECH: case FN_CSCH: case FN_EXP:
        ok = !too_big(x, 60);
        if (!ok) {
            b->m->why = "power too large";
            break;
        }
        switch (a->op) {
        case FN_SINH: acb_sinh(z, x, prec); break;
        case FN_COSH: acb_cosh(z, x, prec); break;
        case FN_TANH: acb_tanh(z, x, prec); break;
        case FN_COTH: acb_coth(z, x, prec); break;
        case FN_SECH: acb_sech(z, x, prec); break;
        case FN_CSCH: acb_csch(z, x, prec); break;
        case FN_EXP: acb_exp(z, x, prec); break;
        default: break;
        }
        break;
    case FN_ASINH: acb_asinh(z, x, prec); break;
    case FN_ACOSH: acb_acosh(z, x, prec); break;
    case FN_ATANH: acb_atanh(z, x, prec); break;
    case FN_LN:
        ok = !acb_contains_zero(x);
        if (ok)
            acb_log(z, x, prec);
        break;
    case FN_ABS:
        acb_zero(z);
        acb_abs(acb_realref(z), x, prec);
        break;
    case FN_FLOOR: case FN_CEIL: {
        fmpz_t n;
        fmpz_init(n);
        acb_zero(z);
        if (a->op == FN_FLOOR)
            arb_floor(acb_realref(z), acb_realref(x), prec);
        else
            arb_ceil(acb_realref(z), acb_realref(x), prec);
        ok = real && !too_big(z, 512) && arb_get_unique_fmpz(n, acb_realref(z));    // never a number of 2^60 bits
        fmpz_clear(n);
        break;
    }
    case FN_FACT: case FN_GAMMA:
        ok = !too_big(x, 24);
        if (ok) {
            if (a->op == FN_FACT)
                acb_add_ui(x, x, 1, prec);
            acb_gamma(z, x, prec);
            ok = spend(b->m, 200 + prec);
        }
        break;
    case FN_BINOM: {    // Gamma(n+1) / (Gamma(k+1) Gamma(n-k+1))
        acb_t k;
        acb_init(k);
        ok = a->n == 2 && ball(b, a->child[1], k) && !too_big(x, 24) && !too_big(k, 24) && spend(b->m, 600 + 3 * prec);
        if (ok) {
            acb_t t;
            acb_init(t);
            acb_sub(t, x, k, prec);
            acb_add_ui(t, t, 1, prec);
            acb_rgamma(t, t, prec);
            acb_add_ui(k, k, 1, prec);
            acb_rgamma(k, k, prec);
            acb_add_ui(x, x, 1, prec);
            acb_gamma(z, x, prec);
            acb_mul(z, z, k, prec);
            acb_mul(z, z, t, prec);
            acb_clear(t);
        }
        acb_clear(k);
        break;
    }
    case FN_MAX: case FN_MIN: {
        acb_t y;
        acb_init(y);
        acb_set(z, x);
        ok = real;
        for (int i = 1; ok && i < a->n; i++) {
            ok = ball(b, a->child[i], y) && acb_is_real(y);
            if (ok && a->op == FN_MAX)
                arb_max(acb_realref(z), acb_realref(z), acb_realref(y), prec);
            else if (ok)
                arb_min(acb_realref(z), acb_realref(z), acb_realref(y), prec);
        }
        acb_clear(y);
        break;
    }
    case FN_RE: case FN_IM: case FN_ARG: case FN_CONJ: case FN_SIGN:
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
            acb_arg(acb_realref(z), x, prec);
        break;
    case FN_GCD: case FN_LCM: case FN_MOD:
        ok = whole_func(b, a, x, z) || (b->lenient && stand_in(b, a, z));
        break;
    default:
        ok = b->lenient && stand_in(b, a, z);
        break;
    }
    acb_clear(x);
    return ok && acb_is_finite(z);
}

static bool ball(struct ball *b, const struct node *a, acb_t z)
{
    struct math *m = b->m;
    acb_t x;
    int64_t v;
    bool ok = true;
    if (!spend(m, 2 + b->prec / 128))
        return false;
    switch ((enum node_kind)a->kind) {
    case K_NUM: {
        fmpq_t q;
        fmpq_init(q);
        ok = number_value(m, a, q);
        acb_set_fmpq(z, q, b->prec);
        fmpq_clear(q);
        return ok;
    }
    case K_CONST:
        switch ((enum math_const)a->op) {
        case CONST_PI: acb_const_pi(z, b->prec); return true;
        case CONST_E: acb_zero(z); arb_const_e(acb_realref(z), b->prec); return true;
        case CONST_I: acb_onei(z); return true;
        case CONST_GAMMA: acb_zero(z); arb_const_euler(acb_realref(z), b->prec); return true;
        case CONST_INF: return false;
        }
        return false;
    case K_SYM:
        if (bound_value(m, a, &v))
            acb_set_si(z, v);
        else
            unknown_value(b, mix_text(77, a->s, a->len), z);
        return true;
    case K_TEXT: case K_APP: case K_OPAQUE:
        return stand_in(b, a, z);
    case K_NEG:
        ok = ball(b, a->child[0], z);
        acb_neg(z, z);
        return ok;
    case K_UNIT:
        return ball(b, a->child[0], z);
    case K_PCT:
        ok = ball(b, a->child[0], z);
        acb_div_ui(z, z, 100, b->prec);
        return ok;
    case K_DEG:
        acb_init(x);
        ok = ball(b, a->child[0], x);
        acb_const_pi(z, b->prec);
        acb_mul(z, z, x, b->prec);
        acb_div_ui(z, z, 180, b->prec);
        acb_clear(x);
        return ok;
    case K_FUNC:
        return ball_func(b, a, z);
    case K_ADD: case K_MUL: case K_DIV: case K_RATIO:
        acb_init(x);
        ok = ball(b, a->child[0], z);
        for (int i = 1; ok && i < a->n; i++) {
            ok = ball(b, a->child[i], x);
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
    case K_POW: case K_ROOT:
        acb_init(x);
        ok = ball(b, a->child[0], x) && spend(m, 10 + b->prec / 16) &&
            ball_power(b, a->child[1], a->kind == K_ROOT, x, z);
        acb_clear(x);
        return ok;
    case K_LOG:
        acb_init(x);
        ok = ball(b, a->child[0], z) && ball(b, a->child[1], x) && !acb_contains_zero(z) && !acb_contains_zero(x) &&
             spend(m, 10 + b->prec / 16);
        if (ok) {
            acb_log(z, z, b->prec);
            acb_log(x, x, b->prec);
            ok = !acb_contains_zero(x);
            if (ok)
                acb_div(z, z, x, b->prec);
        }
        acb_clear(x);
        return ok && acb_is_finite(z);
    case K_SUM: case K_PROD: {
        fmpq_t q;
        int64_t last;
        fmpq_init(q);
        ok = m->n_bind < MATH_BIND_MAX && eval_rational(m, a->child[1], q) && int_get(q, -1000000000, 1000000000, &v) &&
             eval_rational(m, a->child[2], q) && int_get(q, -1000000000, 1000000000, &last) && last - v < SUM_TERMS_MAX;
        fmpq_clear(q);
        if (!ok)
            return b->lenient && stand_in(b, a, z);
        int k = m->n_bind++;
        m->bind[k].s = a->s;
        m->bind[k].len = a->len;
        acb_init(x);
        acb_set_si(z, a->kind == K_PROD);
        for (; ok && v <= last; v++) {
            m->bind[k].value = v;
            ok = ball(b, a->child[0], x);
            if (ok && a->kind == K_SUM)
                acb_add(z, z, x, b->prec);
            else if (ok)
                acb_mul(z, z, x, b->prec);
        }
        m->n_bind--;
        acb_clear(x);
        return ok && acb_is_finite(z);
    }
    case K_PM: case K_LIST: case K_SET: case K_TUPLE: case K_REL: case K_UNION: case K_INTER: case K_MINUS:
    case K_NAMED_SET: case K_JUXT:
    case K_BUILDER: case K_MATRIX:
        return false;
    }
    return false;
}

static bool ball_floor(struct math *m, const struct node *a, bool up, fmpq_t out)
{
    bool ok = false;
    acb_t z;
    acb_init(z);
    for (slong prec = 64; !ok && prec <= 1024; prec *= 4) {
        struct ball b = { .m = m, .prec = prec };
        if (!ball(&b, a, z) || !acb_is_real(z))
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

/* ---- decisions ---- */

/* Is this one decimal number as written, with sign, percent mark or power of ten at most? */
static bool decimal_atom(const struct node *a)
{
    while (a->kind == K_NEG || a->kind == K_PCT || a->kind == K_UNIT)
        a = a->child[0];
    if (a->kind == K_NUM)
        return a->flags & HAS_DECIMAL;
    return a->kind == K_MUL && a->n == 2 && (a->flags & HAS_DECIMAL) && node_is(a->child[0], K_NUM) &&
        node_is(a->child[1], K_POW) &&
           node_is(a->child[1]->child[0], K_NUM) && a->child[1]->child[0]->small == 10;
}

/* The tolerance for decimals: half a unit of the last decimal, but never more than the smaller value times
 * 10^-(decimals * 2 / 3), a ten-thousandth at 6, so that small numbers do not all become equal. */
static void tolerance_set(arb_t tol, const acb_t x, const acb_t y, int decimals, slong prec)
{
    arb_t rel, other;
    arb_init(rel);
    arb_init(other);
    arb_set_ui(tol, 10);
    arb_pow_ui(tol, tol, (ulong)decimals, prec);
    arb_mul_2exp_si(tol, tol, 1);
    arb_inv(tol, tol, prec);
    arb_mul_ui(tol, tol, 1000001, prec);    // 0.5 units and a millionth, so that a half itself counts
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

static enum tri constants_equal(struct math *m, const struct node *a, const struct node *b, int decimals,
                                const char **rule)
{
    static const slong precs[] = { 64, 512, 2048 };
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
    for (size_t i = 0; i < ARRAY_SIZE(precs) && answer == TRI_UNKNOWN; i++) {
        struct ball ba = { .m = m, .prec = precs[i] };
        if (!ball(&ba, a, x) || !ball(&ba, b, y)) {
            if (m->steps < 0)
                break;
            continue;
        }
        acb_sub(d, x, y, precs[i]);
        if (rounded) {
            tolerance_set(tol, x, y, decimals, precs[i]);
            acb_abs(abs, d, precs[i]);
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
        else if (precs[i] >= 512 && tiny(d, x, y, 400))
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

/* Is there a function of whole numbers of something that is not known? */
static bool asks_whole(struct math *m, const struct node *a)
{
    if (!(a->flags & (HAS_SYM | HAS_OPAQUE)) || !spend(m, 1))
        return false;
    if (a->kind == K_FUNC && (a->op == FN_GCD || a->op == FN_LCM || a->op == FN_MOD))
        return true;
    for (int i = 0; i < a->n; i++)
        if (asks_whole(m, a->child[i]))
            return true;
    return false;
}

/* Compare at N_POINT points. Real values only, at first: where one side is not real, nothing is asked. */
static enum tri functions_equal(struct math *m, const struct node *a, const struct node *b, const char **rule)
{
    enum tri answer = TRI_UNKNOWN;
    acb_t x, y, d;
    acb_init(x);
    acb_init(y);
    acb_init(d);
    *rule = "interval";
    bool complex = ((a->flags | b->flags) & HAS_I) != 0, whole = asks_whole(m, a) || asks_whole(m, b);
    int wanted = whole ? 3 * N_POINT : N_POINT;    // gcds agree by chance more often
    for (int pass = complex; pass < 2 && answer == TRI_UNKNOWN; pass++) {
        int agree = 0;
        for (int point = 0; point < 2 * wanted && agree < wanted && answer == TRI_UNKNOWN; point++)
            for (slong prec = 160; prec <= 640; prec *= 4) {
                struct ball ba = { .m = m, .prec = prec, .point = point, .whole = whole };
                if (!ball(&ba, a, x) || !ball(&ba, b, y))
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
    if (answer == TRI_UNKNOWN && !m->why)
        m->why = "neither proved nor refuted";
    acb_clear(x);
    acb_clear(y);
    acb_clear(d);
    return answer;
}

static bool has_kind(const struct node *a, enum node_kind kind)
{
    if (a->kind == kind)
        return true;
    for (int i = 0; i < a->n; i++)
        if ((a->flags & HAS_OPAQUE) && has_kind(a->child[i], kind))
            return true;
    return false;
}

/* Has the tree a value at some point at least? ln(0) - ln(0) has a residue, but none. What is only too large to be
 * computed has one. */
static bool has_value(struct math *m, const struct node *a)
{
    const char *why = m->why;
    acb_t z;
    acb_init(z);
    m->why = NULL;
    bool ok = false, closed = !(a->flags & (HAS_SYM | HAS_OPAQUE));
    for (int point = 0; point < (closed ? 1 : N_POINT) && !ok; point++)
        for (slong prec = 128; prec <= 512 && !ok; prec *= 4) {
            struct ball b = { .m = m, .prec = prec, .point = point, .lenient = true };
            ok = ball(&b, a, z) || (m->why && strcmp(m->why, "division by zero") != 0);
        }
    acb_clear(z);
    m->why = why;
    return ok;
}

/* ---- infinity ---- */

enum extent { EXT_UNKNOWN, EXT_UNDEFINED, EXT_MINUS_INF, EXT_NEGATIVE, EXT_ZERO, EXT_POSITIVE, EXT_PLUS_INF };

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

static enum extent extent_of(struct math *m, const struct node *a);

static enum extent extent_power(struct math *m, const struct node *base, enum extent b, enum extent e)
{
    if (e == EXT_MINUS_INF || e == EXT_NEGATIVE) {
        enum extent up = extent_power(m, base, b, e == EXT_NEGATIVE ? EXT_POSITIVE : EXT_PLUS_INF);
        return up == EXT_UNKNOWN || up == EXT_UNDEFINED ? up : extent_inverse(up);
    }
    if (e == EXT_PLUS_INF && (b == EXT_POSITIVE || b == EXT_PLUS_INF)) {
        struct node *d = b == EXT_PLUS_INF ? NULL : node_new(m, K_ADD, 2, base, node_new(m, K_NEG, 1, node_int(m, 1)));
        int above = b == EXT_PLUS_INF ? 1 : d ? scalar_sign(m, d) : -2;
        return above == -2 ? EXT_UNKNOWN : above > 0 ? EXT_PLUS_INF : above < 0 ? EXT_ZERO : EXT_UNDEFINED;
    }
    if (b == EXT_PLUS_INF)
        return e == EXT_ZERO ? EXT_UNDEFINED : EXT_PLUS_INF;
    return EXT_UNKNOWN;
}

/* Where a tree without free symbols lies on the real line with its two ends; EXT_UNDEFINED: nowhere, as with
 * infinity - infinity, 0 * infinity, infinity / infinity, 1^infinity. */
static enum extent extent_of(struct math *m, const struct node *a)
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
                  : e == EXT_ZERO ? EXT_UNDEFINED : extent_product(all, extent_inverse(e));
        else if (a->kind == K_POW)
            all = extent_power(m, a->child[0], all, e);
        else if (!(a->kind == K_ROOT && all == EXT_PLUS_INF && e == EXT_POSITIVE))
            return EXT_UNKNOWN;
        if (all == EXT_UNKNOWN || all == EXT_UNDEFINED)
            return all;
    }
    switch ((enum node_kind)a->kind) {
    case K_ADD: case K_MUL: case K_DIV: case K_POW: case K_ROOT: case K_UNIT:
        return all;
    case K_NEG:
        return all == EXT_PLUS_INF ? EXT_MINUS_INF : all == EXT_MINUS_INF ? EXT_PLUS_INF
               : all == EXT_POSITIVE ? EXT_NEGATIVE : all == EXT_NEGATIVE ? EXT_POSITIVE : all;
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

static enum tri extents_equal(struct math *m, const struct node *a, const struct node *b, const char **rule)
{
    enum extent x = extent_of(m, a), y = extent_of(m, b);
    *rule = "infinity";
    m->why = x == EXT_UNDEFINED || y == EXT_UNDEFINED ? "undefined form" : "infinity in an expression";
    if (x == EXT_UNKNOWN || y == EXT_UNKNOWN || x == EXT_UNDEFINED || y == EXT_UNDEFINED)
        return TRI_UNKNOWN;
    if (extent_infinite(x) || extent_infinite(y) || x == EXT_ZERO || y == EXT_ZERO)
        return x == y ? TRI_YES : TRI_NO;
    return x == y ? TRI_UNKNOWN : TRI_NO;    // two numbers of one sign may be one
}

/* The unit of the last digit of a number as written; false: a is no such number. */
static bool last_unit(const struct node *a, arb_t unit, slong prec)
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
    const struct node *n = a->kind == K_MUL && decimal_atom(a) ? a->child[0] : a;
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

bool scalar_near(struct math *m, const struct node *a, const struct node *b)
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
    if (!((a->flags | b->flags) & (HAS_SYM | HAS_OPAQUE | HAS_INF)) && ball(&ba, a, x) && ball(&ba, b, y)) {
        bool wa = last_unit(a, ua, prec), wb = last_unit(b, ub, prec);
        if (wa && wb)    // the finer one is rounded to the coarser one; two as fine as each other are two numbers
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

bool scalar_undefined(struct math *m, const struct node *a)
{
    if (a->flags & (HAS_SYM | HAS_OPAQUE | HAS_TEXT | HAS_PM | HAS_SET | HAS_MATRIX))
        return false;
    return a->flags & HAS_INF ? extent_of(m, a) == EXT_UNDEFINED : !has_value(m, a);
}

enum tri scalar_equal(struct math *m, const struct node *a, const struct node *b, int decimals, const char **rule)
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
        defined = residue(&ra, a, &va) && residue(&rb, b, &vb);
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
    enum tri answer = flags & (HAS_SYM | HAS_OPAQUE | HAS_TEXT) ? functions_equal(m, a, b, rule)
                                                                : constants_equal(m, a, b, decimals, rule);
    if (answer == TRI_NO && (flags & HAS_OPAQUE) && (has_kind(a, K_OPAQUE) || has_kind(b, K_OPAQUE))) {
        m->why = "an integral, limit or the like is not evaluated";
        return TRI_UNKNOWN;
    }
    return answer;
}

int scalar_sign(struct math *m, const struct node *a)
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
        if (!ball(&b, a, z) || !acb_is_real(z))
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

enum tri scalar_proportional(struct math *m, const struct node *a, const struct node *b, int *sign)
{
    uint64_t va[3], vb[3];
    bool opaque = false, defined = true;
    *sign = 0;
    for (int i = 0; i < 3 && defined; i++) {
        struct residue ra = { .m = m, .seed = (uint64_t)(i + 1) * 777767777 }, rb = ra;
        defined = residue(&ra, a, &va[i]) && residue(&rb, b, &vb[i]);
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
        if (!ball(&ba, a, x) || !ball(&ba, b, y))
            continue;
        bool nx = !acb_contains_zero(x), ny = !acb_contains_zero(y);
        if ((za && ny) || (zb && nx))
            answer = TRI_NO;
        if (!nx || !ny)    // proves nothing of the factor
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
