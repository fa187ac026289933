/* rational.c - exact values: GMP rationals through FLINT, with their size in bits bounded before they are computed */
#include "workers/engine/reward/math/eval.h"
#include <string.h>

bool bound_value(const struct math *m, const struct math_node *a, int64_t *v)
{
    for (int i = m->n_bind; i-- > 0;)
        if (m->bind[i].len == a->len && memcmp(m->bind[i].s, a->s, (size_t)a->len) == 0) {
            *v = m->bind[i].value;
            return true;
        }
    return false;
}

bool number_value(struct math *m, const struct math_node *a, fmpq_t out)
{
    if (a->scale > 20000 || a->scale < -20000 || a->len > 20000) {
        m->why = "number too long";
        return false;
    }
    if (a->base > 1 && a->scale == 0) {
        fmpz_zero(fmpq_numref(out));
        fmpz_one(fmpq_denref(out));
        for (int i = 0; i < a->len; i++) {
            if (digit_value(a->s[i]) >= a->base)
                return false;
            fmpz_mul_ui(fmpq_numref(out), fmpq_numref(out), (ulong)a->base);
            fmpz_add_ui(fmpq_numref(out), fmpq_numref(out), (ulong)digit_value(a->s[i]));
        }
        return true;
    }
    if (a->len <= 18) {
        fmpz_set_si(fmpq_numref(out), a->small);
    } else {
        char *copy = math_take(m, (size_t)a->len + 1);
        if (!copy || !math_spend(m, a->len))
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

bool power_exact(struct math *m, fmpq_t out, const fmpq_t base, const fmpq_t exp)
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
        ok = fmpz_cmp_ui(fmpq_denref(exp), 64) <= 0 && math_spend(m, 20 + (int64_t)fmpz_bits(fmpq_numref(base)) / 8);
        ulong n = ok ? fmpz_get_ui(fmpq_denref(exp)) : 1;
        ok = ok && root_exact(fmpq_numref(root), fmpq_numref(base), n) && root_exact(fmpq_denref(root), fmpq_denref(base), n);
    }
    int64_t bits = (int64_t)(fmpz_bits(fmpq_numref(root)) + fmpz_bits(fmpq_denref(root)));
    if (ok && fmpz_is_pm1(fmpq_numref(root)) && fmpz_is_one(fmpq_denref(root))) {    // (-1)^n at any size
        if (fmpz_is_odd(fmpq_numref(exp)))
            fmpq_set(out, root);
        else
            fmpq_one(out);
    } else if (ok) {
        ok = fmpz_bits(fmpq_numref(exp)) <= 30
             && bits * (fmpz_get_si(fmpq_numref(exp)) < 0 ? -fmpz_get_si(fmpq_numref(exp)) : fmpz_get_si(fmpq_numref(exp)))
                    <= MATH_BITS_MAX;
        if (ok) {
            slong e = fmpz_get_si(fmpq_numref(exp));
            ok = math_spend(m, bits * (e < 0 ? -e : e) / 64);
            if (ok)
                fmpq_pow_si(out, root, e);
        }
    }
    fmpq_clear(root);
    return ok;
}

bool func_exact(struct math *m, const struct math_node *a, fmpq_t out)
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
    case FN_FLOOR:
    case FN_CEIL:
        if (eval_rational(m, a->child[0], x)) {
            if (a->op == FN_FLOOR)
                fmpz_fdiv_q(fmpq_numref(out), fmpq_numref(x), fmpq_denref(x));
            else
                fmpz_cdiv_q(fmpq_numref(out), fmpq_numref(x), fmpq_denref(x));
            fmpz_one(fmpq_denref(out));
            ok = true;
        } else {
            ok = !(a->flags & (HAS_SYM | HAS_OPAQUE | HAS_I | HAS_INF)) && ball_floor(m, a->child[0], a->op == FN_CEIL, out);
        }
        break;
    case FN_FACT:
    case FN_FACT2:
        ok = eval_rational(m, a->child[0], x) && int_get(x, 0, 6000, &v) && math_spend(m, v * 4);
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
        ok = eval_rational(m, a->child[0], x) && int_get(x, 0, 20000, &v) && eval_rational(m, a->child[1], x) && int_get(x, 0, 20000, &k)
             && math_spend(m, v);
        if (ok) {
            fmpz_bin_uiui(fmpq_numref(out), (ulong)v, (ulong)k);
            fmpz_one(fmpq_denref(out));
        }
        break;
    case FN_GCD:
    case FN_LCM:
    case FN_MAX:
    case FN_MIN:
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
        ok = eval_rational(m, a->child[0], out) && eval_rational(m, a->child[1], x) && !fmpq_is_zero(x) && fmpz_is_one(fmpq_denref(x))
             && fmpz_is_one(fmpq_denref(out));
        if (ok)
            fmpz_fdiv_r(fmpq_numref(out), fmpq_numref(out), fmpq_numref(x));
        break;
    case FN_SIGN:
        ok = eval_rational(m, a->child[0], x);
        fmpq_set_si(out, fmpq_sgn(x), 1);
        break;
    case FN_RE:
    case FN_CONJ: ok = eval_rational(m, a->child[0], out); break;
    default: break;
    }
    fmpq_clear(x);
    return ok;
}

/* A sum or a product with whole bounds, term by term. */
static bool terms_exact(struct math *m, const struct math_node *a, fmpq_t out)
{
    fmpq_t x;
    int64_t v, last;
    fmpq_init(x);
    bool ok = m->n_bind < MATH_BIND_MAX && eval_rational(m, a->child[1], x) && int_get(x, -1000000000, 1000000000, &v)
              && eval_rational(m, a->child[2], x) && int_get(x, -1000000000, 1000000000, &last) && last - v < SUM_TERMS_MAX;
    if (!ok)
        goto out;
    int b = m->n_bind++;
    m->bind[b].s = a->s;
    m->bind[b].len = a->len;
    fmpq_set_si(out, a->kind == K_PROD, 1);
    for (; ok && v <= last; v++) {
        m->bind[b].value = v;
        ok = eval_rational(m, a->child[0], x) && fmpz_bits(fmpq_denref(out)) < MATH_BITS_MAX && fmpz_bits(fmpq_numref(out)) < MATH_BITS_MAX
             && math_spend(m, 4 + (int64_t)fmpz_bits(fmpq_denref(out)) / 16);
        if (ok && a->kind == K_SUM)
            fmpq_add(out, out, x);
        else if (ok)
            fmpq_mul(out, out, x);
    }
    m->n_bind--;
out:
    fmpq_clear(x);
    return ok;
}

/* out = out to the power x. */
static bool power_in_place(struct math *m, fmpq_t out, const fmpq_t x)
{
    fmpq_t base;
    fmpq_init(base);
    fmpq_swap(base, out);
    bool ok = power_exact(m, out, base, x);
    fmpq_clear(base);
    return ok;
}

/* One operand more of a chain: out = out with x. x is changed. */
static bool operand_exact(struct math *m, enum node_kind kind, fmpq_t out, fmpq_t x)
{
    if (kind == K_ADD) {
        fmpq_add(out, out, x);
        return true;
    }
    if (kind == K_MUL) {
        fmpq_mul(out, out, x);
        return true;
    }
    if (kind == K_POW)
        return power_in_place(m, out, x);
    if (fmpq_is_zero(x)) {    // K_DIV, K_RATIO, K_ROOT
        m->why = "division by zero";
        return false;
    }
    if (kind == K_ROOT) {
        fmpq_inv(x, x);
        return power_in_place(m, out, x);
    }
    fmpq_div(out, out, x);
    return true;
}

/* Operands one after the other, each within the bound of bits. */
static bool operands_exact(struct math *m, const struct math_node *a, fmpq_t out)
{
    fmpq_t x;
    fmpq_init(x);
    bool ok = eval_rational(m, a->child[0], out);
    for (int i = 1; ok && i < a->n; i++)
        ok = eval_rational(m, a->child[i], x)
             && fmpz_bits(fmpq_numref(out)) + fmpz_bits(fmpq_denref(out)) + fmpz_bits(fmpq_numref(x)) + fmpz_bits(fmpq_denref(x))
                    < 2 * MATH_BITS_MAX
             && math_spend(m, 1 + (int64_t)(fmpz_bits(fmpq_numref(out)) + fmpz_bits(fmpq_numref(x))) / 512)
             && operand_exact(m, (enum node_kind)a->kind, out, x);
    fmpq_clear(x);
    return ok;
}

bool eval_rational(struct math *m, const struct math_node *a, fmpq_t out)
{
    int64_t v;
    bool ok = false;
    if (!math_spend(m, 1))
        return false;
    switch ((enum node_kind)a->kind) {
    case K_NUM: return number_value(m, a, out);
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
    case K_UNIT: return eval_rational(m, a->child[0], out);
    case K_FUNC: return func_exact(m, a, out);
    case K_ADD:
    case K_MUL:
    case K_DIV:
    case K_POW:
    case K_ROOT:
    case K_RATIO: return operands_exact(m, a, out);
    case K_SUM:
    case K_PROD: return terms_exact(m, a, out);
    case K_CONST:
    case K_TEXT:
    case K_LOG:
    case K_APP:
    case K_JUXT:
    case K_OPAQUE:
    case K_DEG:
    case K_PM:
    case K_LIST:
    case K_SET:
    case K_TUPLE:
    case K_REL:
    case K_UNION:
    case K_INTER:
    case K_MINUS:
    case K_NAMED_SET:
    case K_BUILDER:
    case K_CASES:
    case K_MATRIX: return false;
    }
    return false;
}
