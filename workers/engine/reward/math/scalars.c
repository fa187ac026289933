/* scalars.c - numbers and functions as they are written: with units, percent and degree marks, as ratios, in matrices */
#include "workers/engine/reward/math/compare.h"
#include <string.h>

struct node *node_minus(struct math *m, struct node *a, struct node *b)
{
    return node_new(m, K_ADD, 2, a, node_new(m, K_NEG, 1, b));
}

bool node_infinite(const struct node *a, int *sign)
{
    *sign = 1;
    while (a->kind == K_NEG || (a->kind == K_UNIT)) {
        *sign = a->kind == K_NEG ? -*sign : *sign;
        a = a->child[0];
    }
    return a->kind == K_CONST && a->op == CONST_INF;
}

// clang-format off
static const struct unit {
    const char *name;
    char dim;
    int64_t num, den;    // of the dimension's base unit
} units[] = {
    { "mm", 'l', 1, 1000 }, { "cm", 'l', 1, 100 }, { "centimeter", 'l', 1, 100 }, { "dm", 'l', 1, 10 },
    { "m", 'l', 1, 1 },
    { "meter", 'l', 1, 1 }, { "metre", 'l', 1, 1 }, { "km", 'l', 1000, 1 }, { "kilometer", 'l', 1000, 1 },
    { "in", 'l', 127, 5000 }, { "inch", 'l', 127, 5000 }, { "ft", 'l', 381, 1250 }, { "foot", 'l', 381, 1250 },
    { "feet", 'l', 381, 1250 }, { "yard", 'l', 1143, 1250 }, { "yd", 'l', 1143, 1250 }, { "mile", 'l', 201168, 125 },
    { "second", 't', 1, 1 }, { "sec", 't', 1, 1 }, { "s", 't', 1, 1 }, { "minute", 't', 60, 1 }, { "min", 't', 60, 1 },
    { "hour", 't', 3600, 1 }, { "hr", 't', 3600, 1 }, { "h", 't', 3600, 1 }, { "day", 't', 86400, 1 },
    { "week", 't', 604800, 1 },
    { "mg", 'm', 1, 1000000 }, { "g", 'm', 1, 1000 }, { "gram", 'm', 1, 1000 }, { "kg", 'm', 1, 1 },
    { "kilogram", 'm', 1, 1 },
    { "dollar", '$', 1, 1 }, { "cent", '$', 1, 100 },
};
// clang-format on

/* The unit's row and power; NULL: unknown unit. */
static const struct unit *unit_find(const struct node *a, int *power)
{
    const char *s = a->s;
    int32_t n = a->len;
    *power = 1;
    while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '.'))
        n--;
    while (n > 0 && *s == ' ')
        s++, n--;
    const char *caret = memchr(s, '^', (size_t)n);
    if (caret) {
        for (const char *q = caret; q < s + n; q++)
            if (*q >= '0' && *q <= '9')
                *power = *q - '0';
        n = (int32_t)(caret - s);
        while (n > 0 && (s[n - 1] == '}' || s[n - 1] == ' '))
            n--;
    }
    for (size_t i = 0; i < ARRAY_SIZE(units); i++) {
        int32_t len = (int32_t)strlen(units[i].name);
        if (n >= len && strncasecmp(s, units[i].name, (size_t)len) == 0
            && (n == len || (n == len + 1 && s[len] == 's' && len > 1) || (n == len + 2 && s[len] == 'e' && s[len + 1] == 's')))
            return &units[i];
    }
    return NULL;
}

static struct node *in_base_unit(struct math *m, struct node *a, const struct unit *u, int power)
{
    struct node *f = node_new(m, K_DIV, 2, node_int(m, u->num), node_int(m, u->den));
    return node_new(m, K_MUL, 2, a, node_new(m, K_POW, 2, f, node_int(m, power)));
}

static bool text_node_same(const struct node *a, const struct node *b)
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

static enum tri ratio_compare(struct math *m, struct node *a, struct node *b, const char **rule)
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

/* A degree or percent mark at the end of a quotient, product or sum marks the whole: 173/2^\circ, -5\%. */
static struct node *lift_mark(struct math *m, struct node *a)
{
    if (a->kind != K_NEG && a->kind != K_DIV && a->kind != K_MUL)
        return a;
    struct node *child[ELEMENTS_MAX], *last = a->child[a->n - 1];
    if (a->n > ELEMENTS_MAX || (last->kind != K_DEG && last->kind != K_PCT && last->kind != K_NEG && last->kind != K_DIV))
        return a;
    last = lift_mark(m, last);
    if (!last || (last->kind != K_DEG && last->kind != K_PCT) || (a->flags & HAS_SYM))
        return a;
    memcpy(child, a->child, (size_t)a->n * sizeof *child);
    child[a->n - 1] = last->child[0];
    return node_new(m, (enum node_kind)last->kind, 1, node_like(m, a, (enum node_kind)a->kind, child));
}

enum tri scalar_compare(struct math *m, struct node *a, struct node *b, const char **rule, int depth)
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
        struct node *c = a->kind == K_CONST ? a : b->kind == K_CONST ? b : NULL, *t = c == a ? b : a;
        if (c && t->kind == K_TEXT && t->len == 1)
            return (c->op == CONST_E && t->s[0] == 'e') || (c->op == CONST_I && t->s[0] == 'i') ? TRI_YES : TRI_NO;
        return TRI_NO;
    }
    if (a->kind == K_UNIT && b->kind == K_UNIT) {
        int pa, pb;
        const struct unit *ua = unit_find(a, &pa), *ub = unit_find(b, &pb);
        if (ua && ub && (ua->dim != ub->dim || pa != pb)) {
            *rule = "units";
            return TRI_NO;
        }
        if (ua && ub && (ua->num != ub->num || ua->den != ub->den)) {
            struct node *va = in_base_unit(m, a->child[0], ua, pa), *vb = in_base_unit(m, b->child[0], ub, pb);
            return va && vb ? scalar_compare(m, va, vb, rule, depth + 1) : TRI_UNKNOWN;
        }
        return scalar_compare(m, a->child[0], b->child[0], rule, depth + 1);
    }
    if (a->kind == K_UNIT || b->kind == K_UNIT) {
        struct node *u = a->kind == K_UNIT ? a : b, *o = u == a ? b : a;
        enum tri t = scalar_compare(m, u->child[0], o, rule, depth + 1);
        // the unit was a symbol
        if (t != TRI_YES && (o->flags & HAS_SYM) && u->len <= 2 && !(u->child[0]->flags & HAS_SYM)) {
            struct node *sym = node_new(m, K_SYM, 0);
            if (!sym)
                return TRI_UNKNOWN;
            sym->s = u->s;
            sym->len = u->len;
            t = tri_either(t, scalar_equal(m, node_new(m, K_MUL, 2, u->child[0], sym), o, d, rule));
        }
        return t;
    }
    if (a->kind != b->kind && (node_is(a, K_RATIO) ? a->n : node_is(b, K_RATIO) ? b->n : 0) > 2) {
        *rule = "ratio";
        return TRI_NO;    // 1:1:1 is not a number
    }
    if (a->kind == K_PCT && b->kind == K_PCT)
        return scalar_compare(m, a->child[0], b->child[0], rule, depth + 1);
    if (a->kind == K_PCT || b->kind == K_PCT) {    // 10% is 0.1, and the 10 of a question that asks for percent
        struct node *p = a->kind == K_PCT ? a : b, *o = p == a ? b : a;
        enum tri t = scalar_equal(m, p, o, d, rule);
        return t == TRI_YES ? t : tri_either(t, scalar_compare(m, p->child[0], o, rule, depth + 1));
    }
    if (a->kind == K_DEG && b->kind == K_DEG)
        return scalar_compare(m, a->child[0], b->child[0], rule, depth + 1);
    if (a->kind == K_DEG || b->kind == K_DEG) {
        struct node *g = a->kind == K_DEG ? a : b, *o = g == a ? b : a;
        return o->flags & HAS_PI ? scalar_equal(m, g, o, d, rule) : scalar_compare(m, g->child[0], o, rule, depth + 1);
    }
    if (a->kind == K_RATIO && b->kind == K_RATIO)
        return ratio_compare(m, a, b, rule);
    bool ia = node_infinite(a, &sa), ib = node_infinite(b, &sb);
    if ((ia && ib) || ((ia || ib) && !((a->flags & b->flags) & HAS_INF))) {
        *rule = "infinity";
        return ia && ib && sa == sb ? TRI_YES : TRI_NO;
    }
    // the base left out: the same digits
    if (a->kind == K_NUM && b->kind == K_NUM && (a->base > 0) != (b->base > 0)) {
        struct node *na = node_new(m, K_NUM, 0), *nb = node_new(m, K_NUM, 0);
        if (!na || !nb)
            return TRI_UNKNOWN;
        *na = *a;
        *nb = *b;
        na->base = nb->base = 0;
        return scalar_equal(m, na, nb, d, rule);
    }
    return scalar_equal(m, a, b, d, rule);
}

/* ---- matrices ---- */

struct node *matrix_value(struct math *m, struct node *a, int depth)
{
    if (a->kind == K_MATRIX || !(a->flags & HAS_MATRIX) || depth <= 0)
        return a;
    struct node *part[ELEMENTS_MAX], *cell[144];
    if (a->n == 0 || a->n > ELEMENTS_MAX)
        return NULL;
    for (int i = 0; i < a->n; i++)
        if (!(part[i] = matrix_value(m, a->child[i], depth - 1)))
            return NULL;
    struct node *x = part[0];
    if (a->kind == K_FUNC && a->op == FN_DET && node_is(x, K_MATRIX) && x->scale * x->scale == x->n && x->scale <= 3) {
        struct node **c = x->child;
        if (x->scale == 1)
            return c[0];
        if (x->scale == 2)
            return node_minus(m, node_new(m, K_MUL, 2, c[0], c[3]), node_new(m, K_MUL, 2, c[1], c[2]));
        struct node *t[6];
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
        struct node *y = part[i];
        bool mx = x->kind == K_MATRIX, my = y->kind == K_MATRIX;
        if (!mx && !my) {    // the numbers of a sum before its matrix, -det(A)
            x = a->kind == K_NEG ? node_new(m, K_NEG, 1, y) : node_new(m, (enum node_kind)a->kind, 2, x, y);
            if (!x)
                return NULL;
            continue;
        }
        struct node *shape = mx ? x : y;
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
                    struct node *term[16];
                    for (int k = 0; k < inner; k++)
                        term[k] = node_new(m, K_MUL, 2, x->child[r * inner + k], y->child[k * cols + c]);
                    cell[r * cols + c] = node_list(m, K_ADD, term, inner);
                }
        }
        struct node *z = node_list(m, K_MATRIX, cell, n);
        if (!z)
            return NULL;
        z->scale = rows;
        x = z;
    }
    return x;
}
