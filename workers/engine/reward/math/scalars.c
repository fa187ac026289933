/* scalars.c - numbers and functions as they are written: with units, percent and degree marks, as ratios, in matrices */
#include "workers/engine/reward/math/compare.h"
#include <flint/ulong_extras.h>
#include <string.h>
#include <strings.h>
#include "workers/engine/reward/math/lexer.h"

struct math_node *node_minus(struct math *m, struct math_node *a, struct math_node *b)
{
    return node_new(m, K_ADD, 2, a, node_new(m, K_NEG, 1, b));
}

bool node_infinite(const struct math_node *a, int *sign)
{
    *sign = 1;
    while (a->kind == K_NEG || (a->kind == K_UNIT)) {
        *sign = a->kind == K_NEG ? -*sign : *sign;
        a = a->child[0];
    }
    return a->kind == K_CONST && a->op == CONST_INF;
}

enum dimension {
    DIM_NONE,
    DIM_LENGTH,
    DIM_TIME,
    DIM_MASS,
    DIM_MONEY,
    DIM_VOLUME,
    DIM_EURO,
    DIM_YUAN,
    DIM_MORNING,
    DIM_AFTERNOON,
    DIM_CELSIUS,
    DIM_FAHRENHEIT,
    DIM_KELVIN,
    DIM_N,
};
// clang-format off
static const struct unit {
    const char *name;
    enum dimension dim;
    int64_t num, den;    // of the dimension's base unit
} units[] = {
    { "unit", DIM_NONE, 1, 1 },
    { "mm", DIM_LENGTH, 1, 1000 }, { "cm", DIM_LENGTH, 1, 100 }, { "centimeter", DIM_LENGTH, 1, 100 },
    { "centimetre", DIM_LENGTH, 1, 100 }, { "millimeter", DIM_LENGTH, 1, 1000 }, { "dm", DIM_LENGTH, 1, 10 },
    { "m", DIM_LENGTH, 1, 1 }, { "meter", DIM_LENGTH, 1, 1 }, { "metre", DIM_LENGTH, 1, 1 },
    { "km", DIM_LENGTH, 1000, 1 }, { "kilometer", DIM_LENGTH, 1000, 1 }, { "kilometre", DIM_LENGTH, 1000, 1 },
    { "in", DIM_LENGTH, 127, 5000 }, { "inch", DIM_LENGTH, 127, 5000 }, { "ft", DIM_LENGTH, 381, 1250 },
    { "foot", DIM_LENGTH, 381, 1250 }, { "feet", DIM_LENGTH, 381, 1250 }, { "yard", DIM_LENGTH, 1143, 1250 },
    { "yd", DIM_LENGTH, 1143, 1250 }, { "mile", DIM_LENGTH, 201168, 125 },
    { "second", DIM_TIME, 1, 1 }, { "sec", DIM_TIME, 1, 1 }, { "s", DIM_TIME, 1, 1 }, { "minute", DIM_TIME, 60, 1 },
    { "min", DIM_TIME, 60, 1 }, { "hour", DIM_TIME, 3600, 1 }, { "hr", DIM_TIME, 3600, 1 }, { "h", DIM_TIME, 3600, 1 },
    { "day", DIM_TIME, 86400, 1 }, { "week", DIM_TIME, 604800, 1 },
    { "mg", DIM_MASS, 1, 1000000 }, { "g", DIM_MASS, 1, 1000 }, { "gram", DIM_MASS, 1, 1000 }, { "kg", DIM_MASS, 1, 1 },
    { "kilogram", DIM_MASS, 1, 1 },
    { "dollar", DIM_MONEY, 1, 1 }, { "usd", DIM_MONEY, 1, 1 }, { "cent", DIM_MONEY, 1, 100 },
    { "euro", DIM_EURO, 1, 1 }, { "yuan", DIM_YUAN, 1, 1 }, { "元", DIM_YUAN, 1, 1 },
    { "l", DIM_VOLUME, 1, 1 }, { "liter", DIM_VOLUME, 1, 1 }, { "litre", DIM_VOLUME, 1, 1 },
    { "ml", DIM_VOLUME, 1, 1000 }, { "milliliter", DIM_VOLUME, 1, 1000 },
    { "am", DIM_MORNING, 1, 1 }, { "a.m", DIM_MORNING, 1, 1 }, { "pm", DIM_AFTERNOON, 1, 1 }, { "p.m", DIM_AFTERNOON, 1, 1 },
    { "c", DIM_CELSIUS, 1, 1 }, { "celsius", DIM_CELSIUS, 1, 1 }, { "f", DIM_FAHRENHEIT, 1, 1 },
    { "fahrenheit", DIM_FAHRENHEIT, 1, 1 }, { "k", DIM_KELVIN, 1, 1 }, { "kelvin", DIM_KELVIN, 1, 1 },
    { "米", DIM_LENGTH, 1, 1 }, { "厘米", DIM_LENGTH, 1, 100 }, { "毫米", DIM_LENGTH, 1, 1000 }, { "千米", DIM_LENGTH, 1000, 1 },
    { "公里", DIM_LENGTH, 1000, 1 }, { "秒", DIM_TIME, 1, 1 }, { "分钟", DIM_TIME, 60, 1 }, { "小时", DIM_TIME, 3600, 1 },
    { "克", DIM_MASS, 1, 1000 }, { "千克", DIM_MASS, 1, 1 }, { "公斤", DIM_MASS, 1, 1 }, { "吨", DIM_MASS, 1000, 1 },
    { "分米", DIM_LENGTH, 1, 10 }, { "天", DIM_TIME, 86400, 1 }, { "周", DIM_TIME, 604800, 1 },
    { "升", DIM_VOLUME, 1, 1 }, { "毫升", DIM_VOLUME, 1, 1000 },
};
/* Units that are powers and quotients of others. */
static const struct { const char *name, *as; } compound_units[] = {
    { "平方米", "m^2" }, { "平方分米", "dm^2" }, { "平方厘米", "cm^2" }, { "平方毫米", "mm^2" }, { "平方千米", "km^2" }, { "平方公里", "km^2" },
    { "立方米", "m^3" }, { "立方分米", "dm^3" }, { "立方厘米", "cm^3" },
    { "mph", "mile/hour" }, { "kmh", "km/hour" }, { "kph", "km/hour" }, { "kmph", "km/hour" }, { "mps", "m/s" },
};
// clang-format on

/* What is measured: the powers of its dimensions, the factor to their base units, and a sum over the unknown words. */
struct measure {
    int power[DIM_N];
    struct math_node *factor;
    uint64_t other;
};

static const struct unit *unit_row(struct span w)
{
    for (size_t i = 0; i < ARRAY_SIZE(units); i++) {
        size_t len = strlen(units[i].name);
        if (w.len >= len && strncasecmp(w.s, units[i].name, len) == 0
            && (w.len == len || (w.len == len + 1 && w.s[len] == 's' && len > 1)
                || (w.len == len + 2 && w.s[len] == 'e' && w.s[len + 1] == 's')))
            return &units[i];
    }
    return NULL;
}

static uint64_t word_hash(struct span w)    // without case and the plural's s
{
    uint64_t h = 14695981039346656037u;
    w.len -= w.len > 3 && (w.s[w.len - 1] | 32) == 's';
    for (size_t i = 0; i < w.len; i++)
        h = (h ^ (unsigned char)(w.s[i] >= 'A' && w.s[i] <= 'Z' ? w.s[i] | 32 : w.s[i])) * 1099511628211u;
    return h;
}

/* Read a unit: words, each with ^n, "square" before it or "squared" after it; '/' and "per" divide by the next one. */
static bool measure_read(struct math *m, struct span s, int sign, struct measure *out)
{
    int next = 1, divide = 1;    // of the next word
    for (size_t i = 0; i < s.len;) {
        size_t n = i;
        while (n < s.len && !strchr(" ~/^*,\t\n", s.s[n]))
            n++;
        struct span w = { s.s + i, n - i };
        while (w.len > 1 && w.s[w.len - 1] == '.')
            w.len--;
        if (n == i) {
            divide = s.s[i++] == '/' ? -1 : divide;
            continue;
        }
        i = n;
        if (word_is(w.s, w.len, "per") || word_is(w.s, w.len, "square") || word_is(w.s, w.len, "sq") || word_is(w.s, w.len, "cubic")) {
            divide = word_is(w.s, w.len, "per") ? -1 : divide;
            next = word_is(w.s, w.len, "per") ? next : word_is(w.s, w.len, "cubic") ? 3 : 2;
            continue;
        }
        if (word_is(w.s, w.len, "of") || (w.len == 1 && *w.s == 'a') || word_is(w.s, w.len, "an"))    // A is an ampere
            continue;
        struct span rest = span_trim((struct span){ s.s + i, s.len - i });
        int power = sign * divide * next;
        if (rest.len > 1 && *rest.s == '^') {
            bool minus = rest.s[1] == '-';
            size_t k = (size_t)(rest.s - s.s) + 1 + minus;
            while (k < s.len && strchr("{ ", s.s[k]))
                k++;
            if (k == s.len || s.s[k] < '1' || s.s[k] > '9')
                return false;
            power *= (s.s[k] - '0') * (minus ? -1 : 1);
            i = k + 1;
        } else if ((rest.len >= 7 && strncasecmp(rest.s, "squared", 7) == 0) || (rest.len >= 5 && strncasecmp(rest.s, "cubed", 5) == 0)) {
            bool square = (*rest.s | 32) == 's';
            power *= square ? 2 : 3;
            i = (size_t)(rest.s - s.s) + (square ? 7 : 5);
        }
        next = divide = 1;
        const char *as = NULL;
        for (size_t k = 0; k < ARRAY_SIZE(compound_units) && !as; k++)
            as = word_is(w.s, w.len, compound_units[k].name) ? compound_units[k].as : NULL;
        const struct unit *u = as ? NULL : unit_row(w);
        if (as && !measure_read(m, (struct span){ as, strlen(as) }, power, out))
            return false;
        if (u && u->dim != DIM_NONE) {
            out->power[u->dim] += power;
            if (u->num != u->den)
                out->factor = node_new(
                    m, K_MUL, 2, out->factor,
                    node_new(m, K_POW, 2, node_new(m, K_DIV, 2, node_int(m, u->num), node_int(m, u->den)), node_int(m, power)));
        }
        if (!u && !as)
            out->other += word_hash(w) * (uint64_t)(int64_t)power;
    }
    return out->factor != NULL;
}

/* Two numbers with units: in the same dimensions they are converted; in others they are different. */
static enum tri units_compare(struct math *m, struct math_node *a, struct math_node *b, const char **rule, int depth)
{
    struct measure x = { .factor = node_int(m, 1) }, y = x;
    if (!measure_read(m, (struct span){ a->s, (size_t)a->len }, 1, &x) || !measure_read(m, (struct span){ b->s, (size_t)b->len }, 1, &y)) {
        m->why = "units that cannot be read";
        return TRI_UNKNOWN;
    }
    bool same = memcmp(x.power, y.power, sizeof x.power) == 0, none_x = true, none_y = true;
    for (int i = 0; i < DIM_N; i++) {
        none_x &= x.power[i] == 0;
        none_y &= y.power[i] == 0;
    }
    *rule = "units";
    if (!same && !(none_x && x.other == 0) && !(none_y && y.other == 0) && x.other == y.other)
        return TRI_NO;
    struct math_node *va = same ? node_new(m, K_MUL, 2, a->child[0], x.factor) : a->child[0];
    struct math_node *vb = same ? node_new(m, K_MUL, 2, b->child[0], y.factor) : b->child[0];
    bool plain = x.factor->kind == K_NUM && y.factor->kind == K_NUM;    // nothing to convert: marks and infinities stay as they are
    enum tri t = !va || !vb ? TRI_UNKNOWN : scalar_compare(m, plain ? a->child[0] : va, plain ? b->child[0] : vb, rule, depth + 1);
    if (t == TRI_YES && !((none_x && x.other == 0) || (none_y && y.other == 0)) && (!same || x.other != y.other)) {
        m->why = "units that may differ";
        return TRI_UNKNOWN;
    }
    return t;
}

static bool text_node_same(const struct math_node *a, const struct math_node *b)
{
    int32_t i = 0, j = 0;
    for (;;) {
        while (i < a->len && !((a->s[i] | 32) >= 'a' && (a->s[i] | 32) <= 'z') && !(a->s[i] >= '0' && a->s[i] <= '9') && !(a->s[i] & 0x80))
            i++;
        while (j < b->len && !((b->s[j] | 32) >= 'a' && (b->s[j] | 32) <= 'z') && !(b->s[j] >= '0' && b->s[j] <= '9') && !(b->s[j] & 0x80))
            j++;
        if (i == a->len || j == b->len)
            return i == a->len && j == b->len;
        char x = a->s[i++], y = b->s[j++];
        if ((x >= 'A' && x <= 'Z' ? x | 32 : x) != (y >= 'A' && y <= 'Z' ? y | 32 : y))
            return false;
    }
}

static enum tri ratio_compare(struct math *m, struct math_node *a, struct math_node *b, const char **rule)
{
    if (a->n != b->n)
        return TRI_NO;
    bool zero = false;
    for (int i = 1; i < a->n; i++)
        zero |= scalar_sign(m, a->child[i]) == 0 || scalar_sign(m, b->child[i]) == 0;
    enum tri all = TRI_YES;
    for (int i = zero ? 0 : 1; i < a->n; i++) {    // 12:00 is not a ratio: part by part
        enum tri t = zero ? scalar_equal(m, a->child[i], b->child[i], 0, rule)
                          : scalar_equal(m, node_new(m, K_MUL, 2, a->child[0], b->child[i]),
                                         node_new(m, K_MUL, 2, b->child[0], a->child[i]), 0, rule);
        if (t == TRI_NO)
            return TRI_NO;
        all = t == TRI_UNKNOWN ? t : all;
    }
    *rule = "ratio";
    return all;
}

static bool is_part(const struct math_node *a, int64_t most)    // of a time of day, as far as its digits go
{
    return node_is(a, K_NUM) && a->scale == 0 && a->len <= 2 && a->small <= most;
}

/* 12:30 is a ratio or a time of day. */
static bool is_clock(const struct math_node *a)
{
    return a->kind == K_RATIO && a->n == 2 && is_part(a->child[0], 24) && is_part(a->child[1], 59)
           && a->child[1]->len + a->child[1]->op == 2;
}

/* 3:05, 0:30 and 12:00 are no ratios. */
static bool is_time(const struct math_node *a)
{
    return is_clock(a) && (a->child[1]->op || a->child[0]->op || a->child[0]->small == 0 || a->child[1]->small == 0);
}

static bool is_reduced(const struct math_node *a)    // a clock, as a ratio
{
    return n_gcd((ulong)a->child[0]->small, (ulong)a->child[1]->small) == 1;
}

static bool clock_same(const struct math_node *a, const struct math_node *b)
{
    return a->child[0]->small == b->child[0]->small && a->child[1]->small == b->child[1]->small;
}

/* A degree or percent mark at the end of a quotient, product or sum marks the whole: 173/2^\circ, -5\%. */
static struct math_node *lift_mark(struct math *m, struct math_node *a)
{
    if (a->kind != K_NEG && a->kind != K_DIV && a->kind != K_MUL)
        return a;
    struct math_node *child[ELEMENTS_MAX], *last = a->child[a->n - 1];
    if (a->n > ELEMENTS_MAX || (last->kind != K_DEG && last->kind != K_PCT && last->kind != K_NEG && last->kind != K_DIV))
        return a;
    last = lift_mark(m, last);
    if (!last || (last->kind != K_DEG && last->kind != K_PCT) || (a->flags & HAS_SYM))
        return a;
    memcpy(child, a->child, (size_t)a->n * sizeof *child);
    child[a->n - 1] = last->child[0];
    return node_new(m, (enum node_kind)last->kind, 1, node_like(m, a, (enum node_kind)a->kind, child));
}

/* Is a, a product of numbers and symbols, written as rest begins? */
static bool spells(const struct math_node *a, struct span *rest)
{
    if (a->kind == K_MUL) {
        for (int i = 0; i < a->n; i++)
            if (!spells(a->child[i], rest))
                return false;
        return true;
    }
    bool same = (a->kind == K_NUM || a->kind == K_SYM) && a->scale == 0 && a->len > 0 && (size_t)a->len <= rest->len
                && strncasecmp(a->s, rest->s, (size_t)a->len) == 0;
    if (same)
        *rest = (struct span){ rest->s + a->len, rest->len - (size_t)a->len };
    return same;
}

static bool below_one(struct math *m, struct math_node *a)    // a number between -1 and 1, not 0
{
    struct math_node *up = !(a->flags & (HAS_SYM | HAS_OPAQUE | HAS_TEXT)) ? node_minus(m, a, node_int(m, 1)) : NULL,
                     *down = up ? node_new(m, K_ADD, 2, a, node_int(m, 1)) : NULL;
    return down && scalar_sign(m, up) == -1 && scalar_sign(m, down) == 1 && scalar_sign(m, a) != 0;
}

/* A number with a unit beside one with a degree or percent mark: degrees may be in radians, and no other unit is one of these. */
static enum tri mark_compare(struct math *m, struct math_node *unit, struct math_node *mark, const char **rule, int depth)
{
    static const char *const degrees[] = { "degree", "degrees", "deg", "度" }, *const radians[] = { "radian", "radians", "rad" };
    struct span w = span_trim((struct span){ unit->s, (size_t)unit->len });
    for (size_t i = 0; i < ARRAY_SIZE(degrees) && mark->kind == K_DEG; i++)
        if (word_is(w.s, w.len, degrees[i]))
            return scalar_compare(m, unit->child[0], mark->child[0], rule, depth + 1);
    for (size_t i = 0; i < ARRAY_SIZE(radians) && mark->kind == K_DEG; i++)
        if (word_is(w.s, w.len, radians[i]))
            return scalar_equal(m, unit->child[0], mark, m->config.decimals, rule);
    enum tri t = scalar_compare(m, unit->child[0], mark, rule, depth + 1);
    m->why = t == TRI_YES ? "units that may differ" : m->why;
    return t == TRI_YES ? TRI_UNKNOWN : t;
}

enum tri scalar_compare(struct math *m, struct math_node *a, struct math_node *b, const char **rule, int depth)
{
    int d = m->config.decimals, sa, sb;
    a = lift_mark(m, a);
    b = lift_mark(m, b);
    if (depth > 12 || !a || !b)
        return TRI_UNKNOWN;
    if (a->kind == K_TEXT || b->kind == K_TEXT) {
        *rule = "text";
        bool names = (a->kind == K_TEXT || a->kind == K_SYM) && (b->kind == K_TEXT || b->kind == K_SYM);
        if (names)
            return text_node_same(a, b) ? TRI_YES : TRI_NO;
        struct math_node *c = a->kind == K_CONST ? a : b->kind == K_CONST ? b : NULL, *t = c == a ? b : a;
        if (c && t->kind == K_TEXT && t->len == 1)
            return (c->op == CONST_E && t->s[0] == 'e') || (c->op == CONST_I && t->s[0] == 'i') ? TRI_YES : TRI_NO;
        return TRI_NO;
    }
    if (a->kind == K_UNIT && b->kind == K_UNIT)
        return units_compare(m, a, b, rule, depth);
    if (a->kind == K_UNIT || b->kind == K_UNIT) {
        struct math_node *u = a->kind == K_UNIT ? a : b, *o = u == a ? b : a;
        if ((o->kind == K_DEG || o->kind == K_PCT) && u->child[0]->kind != o->kind)
            return mark_compare(m, u, o, rule, depth);
        enum tri t = scalar_compare(m, u->child[0], o, rule, depth + 1);
        // the unit was a symbol
        if (t != TRI_YES && (o->flags & HAS_SYM) && u->len <= 2 && !(u->child[0]->flags & HAS_SYM)) {
            struct math_node *sym = node_new(m, K_SYM, 0);
            if (!sym)
                return TRI_UNKNOWN;
            sym->s = u->s;
            sym->len = u->len;
            t = tri_either(t, scalar_equal(m, node_new(m, K_MUL, 2, u->child[0], sym), o, d, rule));
        }
        return t;
    }
    bool clocks = is_clock(a) && is_clock(b), one = is_clock(a) || is_clock(b), times = is_time(a) || is_time(b);
    if (times && !(clocks && clock_same(a, b))) {
        *rule = "a time of day";
        return TRI_NO;
    }
    if ((clocks && !clock_same(a, b)) || (one && a->kind != b->kind)) {    // 12:30 may be a time, which is not 12/30
        enum tri t = clocks ? ratio_compare(m, a, b, rule) : scalar_equal(m, a, b, d, rule);
        // one in lowest terms and one not: two times of day are hardly ever the same ratio
        bool ratios = t == TRI_YES && clocks && is_reduced(a) != is_reduced(b);
        m->why = t == TRI_YES && !ratios ? "a ratio that may be a time" : m->why;
        return t == TRI_YES && !ratios ? TRI_UNKNOWN : t;
    }
    if (a->kind != b->kind && (node_is(a, K_RATIO) ? a->n : node_is(b, K_RATIO) ? b->n : 0) > 2) {
        *rule = "ratio";
        return TRI_NO;    // 1:1:1 is not a number
    }
    if (a->kind == K_PCT && b->kind == K_PCT)
        return scalar_compare(m, a->child[0], b->child[0], rule, depth + 1);
    if (a->kind == K_PCT || b->kind == K_PCT) {    // 10% is 0.1, and the 10 of a question that asks for percent
        struct math_node *p = a->kind == K_PCT ? a : b, *o = p == a ? b : a;
        enum tri t = scalar_equal(m, p, o, d, rule), same = t == TRI_YES ? t : scalar_compare(m, p->child[0], o, rule, depth + 1);
        if (same == TRI_YES && t != TRI_YES
            && below_one(m, o)) {    // 0.3% is more likely a slip for 0.3 than the answer to such a question
            m->why = "a percentage that may be a share";
            return TRI_UNKNOWN;
        }
        return tri_either(t, same);
    }
    if (a->kind == K_DEG && b->kind == K_DEG)
        return scalar_compare(m, a->child[0], b->child[0], rule, depth + 1);
    if (a->kind == K_DEG || b->kind == K_DEG) {
        struct math_node *g = a->kind == K_DEG ? a : b, *o = g == a ? b : a;
        return o->flags & HAS_PI ? scalar_equal(m, g, o, d, rule) : scalar_compare(m, g->child[0], o, rule, depth + 1);
    }
    if (a->kind == K_RATIO && b->kind == K_RATIO)
        return ratio_compare(m, a, b, rule);
    bool ia = node_infinite(a, &sa), ib = node_infinite(b, &sb);
    if (ia != ib && ((a->flags & HAS_CALC) || (b->flags & HAS_CALC) || scalar_unevaluated(a) || scalar_unevaluated(b))) {
        m->why = CALCULUS_LEFT;
        return TRI_UNKNOWN;
    }
    if ((ia && ib) || ((ia || ib) && !((a->flags & b->flags) & HAS_INF))) {
        *rule = "infinity";
        return ia && ib && sa == sb ? TRI_YES : TRI_NO;
    }
    bool ba = node_is(a, K_NUM) && a->base > 0, bb = node_is(b, K_NUM) && b->base > 0;
    const struct math_node *numeral = ba ? a : b, *other = ba ? b : a;
    struct span rest = { numeral->s, (size_t)numeral->len };
    bool spelt = ba != bb && spells(other, &rest) && rest.len == 0;
    if (spelt || (ba != bb && other->kind == K_NUM)) {    // the base left out: the same digits
        *rule = "numeral";
        return spelt ? TRI_YES : TRI_NO;
    }
    return scalar_equal(m, a, b, d, rule);
}

/* ---- matrices ---- */

struct math_node *matrix_value(struct math *m, struct math_node *a, int depth)
{
    if (a->kind == K_MATRIX || !(a->flags & HAS_MATRIX) || depth <= 0)
        return a;
    struct math_node *part[ELEMENTS_MAX], *cell[144];
    if (a->n == 0 || a->n > ELEMENTS_MAX)
        return NULL;
    for (int i = 0; i < a->n; i++)
        if (!(part[i] = matrix_value(m, a->child[i], depth - 1)))
            return NULL;
    struct math_node *x = part[0];
    if (a->kind == K_FUNC && a->op == FN_DET && node_is(x, K_MATRIX) && x->scale * x->scale == x->n && x->scale <= 3) {
        struct math_node **c = x->child;
        if (x->scale == 1)
            return c[0];
        if (x->scale == 2)
            return node_minus(m, node_new(m, K_MUL, 2, c[0], c[3]), node_new(m, K_MUL, 2, c[1], c[2]));
        struct math_node *t[6];
        static const int8_t perm[6][3] = { { 0, 4, 8 }, { 1, 5, 6 }, { 2, 3, 7 }, { 2, 4, 6 }, { 1, 3, 8 }, { 0, 5, 7 } };
        for (int i = 0; i < 6; i++) {
            t[i] = node_new(m, K_MUL, 3, c[perm[i][0]], c[perm[i][1]], c[perm[i][2]]);
            if (i >= 3)
                t[i] = node_new(m, K_NEG, 1, t[i]);
        }
        return node_list(m, K_ADD, t, 6);
    }
    if (a->kind != K_ADD && a->kind != K_MUL && a->kind != K_NEG && a->kind != K_DIV)
        return NULL;
    for (int i = a->kind == K_NEG ? 0 : 1; i < a->n; i++) {
        struct math_node *y = part[i];
        bool mx = x->kind == K_MATRIX, my = y->kind == K_MATRIX;
        if (!mx && !my) {    // the numbers of a sum before its matrix, -det(A)
            x = a->kind == K_NEG ? node_new(m, K_NEG, 1, y) : node_new(m, (enum node_kind)a->kind, 2, x, y);
            if (!x)
                return NULL;
            continue;
        }
        struct math_node *shape = mx ? x : y;
        int n = shape->n, cols = n / shape->scale, rows = shape->scale;
        if (a->kind == K_NEG || a->kind == K_DIV || (a->kind == K_MUL && mx != my)) {
            if (a->kind == K_DIV && my)
                return NULL;
            for (int k = 0; k < n; k++)
                cell[k] = a->kind == K_NEG   ? node_new(m, K_NEG, 1, y->child[k])
                          : a->kind == K_DIV ? node_new(m, K_DIV, 2, x->child[k], y)
                                             : node_new(m, K_MUL, 2, mx ? x->child[k] : x, my ? y->child[k] : y);
        } else if (a->kind == K_ADD) {
            if (!mx || !my || x->n != y->n || x->scale != y->scale)
                return NULL;
            for (int k = 0; k < n; k++)
                cell[k] = node_new(m, K_ADD, 2, x->child[k], y->child[k]);
        } else {
            int inner = cols;
            if (inner != y->scale || inner > 16)
                return NULL;
            cols = y->n / y->scale;
            n = rows * cols;
            if (n > (int)ARRAY_SIZE(cell))
                return NULL;
            for (int r = 0; r < rows; r++)
                for (int c = 0; c < cols; c++) {
                    struct math_node *term[16];
                    for (int k = 0; k < inner; k++)
                        term[k] = node_new(m, K_MUL, 2, x->child[r * inner + k], y->child[k * cols + c]);
                    cell[r * cols + c] = node_list(m, K_ADD, term, inner);
                }
        }
        struct math_node *z = node_list(m, K_MATRIX, cell, n);
        if (!z)
            return NULL;
        z->scale = rows;
        x = z;
    }
    return x;
}
