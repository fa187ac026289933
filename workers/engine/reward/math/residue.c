/* residue.c - values modulo the prime 2^61 - 1 at a random point
 *
 * Polynomials and rational functions have true residues: different ones prove two trees different, equal ones at two
 * points leave a chance of at most (degree / 2^61)^2 (Schwartz 1980, Zippel 1979). Roots, logarithms and unknown
 * functions are treated as unknowns named by their arguments' residues, so for them only equality can be proved this
 * way. */
#include "workers/engine/reward/math/eval.h"
#include "protocol/base/mix64.h"

uint64_t mul61(uint64_t a, uint64_t b)
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

uint64_t mix(uint64_t h, uint64_t v)    // splitmix64's finaliser
{
    return mix64(h + v + MIX64_STEP);
}

uint64_t mix_text(uint64_t h, const char *s, int32_t len)
{
    for (int32_t i = 0; i < len; i++)
        h = mix(h, (unsigned char)s[i]);
    return h;
}

static bool commutes(const struct math_node *a)
{
    return a->kind == K_FUNC && (a->op == FN_GCD || a->op == FN_LCM || a->op == FN_MAX || a->op == FN_MIN);
}

/* A bound of a sum, a product or an integral may be infinite; as an operand infinity has no residue, or it would cancel
 * like a number. */
static bool infinite_bound(const struct math_node *a, int i, uint64_t seed, uint64_t *out)
{
    if (i == 0 || (a->kind != K_SUM && a->kind != K_PROD && a->kind != K_OPAQUE))
        return false;
    const struct math_node *bound = a->child[i];
    bool minus = bound->kind == K_NEG;
    if (minus)
        bound = bound->child[0];
    *out = mix(seed, minus ? 81 : 80);
    return node_is(bound, K_CONST) && bound->op == CONST_INF;
}

/* The residue of an unknown that is named by its kind and its children. */
static bool unknown_eval(struct residue *r, const struct math_node *a, uint64_t *out)
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
        bool ok = infinite_bound(a, i, r->seed, &v) || residue_eval(r, a->child[i], &v);
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

/* A number: its digits, and the power of ten that its decimal point stands for. */
static bool number_residue(struct residue *r, const struct math_node *a, uint64_t *out)
{
    uint64_t v = 0;
    if (a->base > 1) {
        for (int i = 0; i < a->len; i++)
            v = add61(mul61(v, (uint64_t)a->base), (uint64_t)digit_value(a->s[i]));
        *out = v;
        return true;
    }
    if (a->len <= 18) {
        *out = (uint64_t)a->small % P61;
    } else {
        for (int i = 0; i < a->len; i++)
            v = add61(mul61(v, 10), (uint64_t)(a->s[i] - '0'));
        *out = v;
        if (!math_spend(r->m, a->len / 4))
            return false;
    }
    if (a->scale > 0)
        *out = mul61(*out, pow61(pow61(10, P61 - 2), (uint64_t)a->scale));
    else if (a->scale < 0)
        *out = mul61(*out, pow61(10, (uint64_t) - (int64_t)a->scale));
    return true;
}

/* A text in words, whatever its spaces and capitals. */
static uint64_t text_residue(const struct residue *r, const struct math_node *a)
{
    uint64_t h = mix(r->seed, 78);
    for (int i = 0; i < a->len; i++)
        if (a->s[i] != ' ')
            h = mix(h, (unsigned char)(a->s[i] >= 'A' && a->s[i] <= 'Z' ? a->s[i] | 32 : a->s[i]));
    return h % P61;
}

static bool quotient_residue(struct residue *r, const struct math_node *a, uint64_t *out)
{
    uint64_t w;
    if (!residue_eval(r, a->child[0], out))
        return false;
    for (int i = 1; i < a->n; i++) {
        if (!residue_eval(r, a->child[i], &w))
            return false;
        if (w == 0) {
            r->m->why = "division by zero";
            return false;
        }
        *out = mul61(*out, pow61(w, P61 - 2));
    }
    return true;
}

/* Is the exponent e a whole number? Then *exp is its absolute value modulo p - 1 (Fermat), and *minus its sign. */
static bool exponent_whole(struct residue *r, const struct math_node *e, uint64_t *exp, bool *minus)
{
    *minus = e->kind == K_NEG;
    e = *minus ? e->child[0] : e;
    *exp = 0;
    if (e->kind == K_NUM && e->scale == 0 && e->len <= 18 && e->base == 0) {
        *exp = (uint64_t)e->small;
        return true;
    }
    if (e->flags & (HAS_SYM | HAS_OPAQUE | HAS_TRANS | HAS_I | HAS_INF | HAS_DECIMAL | HAS_PM | HAS_TEXT))
        return false;
    fmpq_t q;
    fmpq_init(q);
    bool whole = eval_rational(r->m, e, q) && fmpz_is_one(fmpq_denref(q));
    if (whole) {
        *minus ^= fmpz_sgn(fmpq_numref(q)) < 0;
        fmpz_abs(fmpq_numref(q), fmpq_numref(q));
        *exp = fmpz_fdiv_ui(fmpq_numref(q), P61 - 1);
        if (*exp == 0 && !fmpz_is_zero(fmpq_numref(q)))
            *exp = P61 - 1;
    }
    fmpq_clear(q);
    return whole;
}

static bool power_residue(struct residue *r, const struct math_node *a, uint64_t *out)
{
    uint64_t v, exp;
    bool minus;
    if (!exponent_whole(r, a->child[1], &exp, &minus))
        return unknown_eval(r, a, out);
    if (!residue_eval(r, a->child[0], &v))
        return false;
    if (v == 0 && (minus || exp == 0))
        return false;
    v = pow61(v, exp);
    *out = minus ? pow61(v, P61 - 2) : v;
    return true;
}

/* A function, a sum or a product: its exact value where it has one, else an unknown. */
static bool function_residue(struct residue *r, const struct math_node *a, uint64_t *out)
{
    if (!(a->flags & (HAS_SYM | HAS_OPAQUE | HAS_TRANS | HAS_I | HAS_INF | HAS_PM)) || a->kind != K_FUNC) {
        fmpq_t q;
        fmpq_init(q);
        bool ok = eval_rational(r->m, a, q);
        if (ok)
            *out = mul61(fmpz_fdiv_ui(fmpq_numref(q), P61), pow61(fmpz_fdiv_ui(fmpq_denref(q), P61), P61 - 2));
        fmpq_clear(q);
        if (ok)
            return true;
    }
    return unknown_eval(r, a, out);
}

bool residue_eval(struct residue *r, const struct math_node *a, uint64_t *out)
{
    uint64_t v;
    int64_t bound;
    if (!math_spend(r->m, 1))
        return false;
    switch ((enum node_kind)a->kind) {
    case K_NUM: return number_residue(r, a, out);
    case K_SYM:
        if (bound_value(r->m, a, &bound))
            *out = bound < 0 ? P61 - (uint64_t)-bound % P61 : (uint64_t)bound % P61;
        else
            *out = mix_text(mix(r->seed, 77), a->s, a->len) % P61;
        return true;
    case K_TEXT: *out = text_residue(r, a); return true;
    case K_NEG:
        if (!residue_eval(r, a->child[0], &v))
            return false;
        *out = v ? P61 - v : 0;
        return true;
    case K_ADD:
    case K_MUL:
        *out = a->kind == K_MUL;
        for (int i = 0; i < a->n; i++) {
            if (!residue_eval(r, a->child[i], &v))
                return false;
            *out = a->kind == K_MUL ? mul61(*out, v) : add61(*out, v);
        }
        return true;
    case K_RATIO:
    case K_DIV: return quotient_residue(r, a, out);
    case K_PCT:
        if (!residue_eval(r, a->child[0], &v))
            return false;
        *out = mul61(v, pow61(100, P61 - 2));
        return true;
    case K_UNIT: return residue_eval(r, a->child[0], out);
    case K_POW: return power_residue(r, a, out);
    case K_FUNC:
    case K_SUM:
    case K_PROD: return function_residue(r, a, out);
    case K_CONST:
        if (a->op == CONST_INF)
            return false;
        r->opaque = true;    // numbers, not unknowns
        *out = mix(mix(r->seed, 79), (uint64_t)a->op) % P61;
        return true;
    case K_ROOT:
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
    case K_MATRIX: return unknown_eval(r, a, out);
    }
    return false;
}
