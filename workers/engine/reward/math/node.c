/* node.c - nodes allocated from the block of one check */
#include "workers/engine/reward/math/node.h"
#include <stdarg.h>
#include <string.h>

void *math_take(struct math *m, size_t size)
{
    size = (size + 7) & ~(size_t)7;
    if (m->out_of_memory || size > MATH_MEM_BYTES - m->used) {
        m->out_of_memory = true;
        m->why = "too large";
        return NULL;
    }
    void *p = m->mem + m->used;
    m->used += size;
    return p;
}

bool node_is(const struct math_node *a, enum node_kind kind)
{
    return a && a->kind == kind;
}

bool name_same(const struct math_node *a, const struct math_node *b)
{
    return a->len == b->len && memcmp(a->s, b->s, (size_t)a->len) == 0;
}

static uint16_t own_flags(enum node_kind kind)
{
    switch (kind) {
    case K_SYM: return HAS_SYM;
    case K_APP: return HAS_SYM | HAS_OPAQUE;
    case K_OPAQUE: return HAS_OPAQUE;
    case K_PM: return HAS_PM;
    case K_MATRIX: return HAS_MATRIX;
    case K_JUXT: return HAS_JUXT;
    case K_TEXT: return HAS_TEXT | HAS_SYM;
    case K_LIST:
    case K_SET:
    case K_TUPLE:
    case K_REL:
    case K_UNION:
    case K_INTER:
    case K_MINUS:
    case K_NAMED_SET:
    case K_CASES:
    case K_BUILDER: return HAS_SET;
    case K_ROOT:
    case K_LOG: return HAS_TRANS;
    case K_NUM:
    case K_CONST:
    case K_ADD:
    case K_MUL:
    case K_DIV:
    case K_POW:
    case K_NEG:
    case K_FUNC:
    case K_SUM:
    case K_PROD:
    case K_DEG:
    case K_PCT:
    case K_RATIO:
    case K_UNIT: break;
    }
    return 0;
}

void math_give_back(struct math *m, size_t used)
{
    m->used = used;
    m->out_of_memory = false;
}

struct math_node *node_list(struct math *m, enum node_kind kind, struct math_node **child, int n)
{
    struct math_node *a = math_take(m, sizeof *a + (size_t)n * sizeof *child);
    if (!a)
        return NULL;
    *a = (struct math_node){ .kind = (uint8_t)kind, .n = n, .child = (struct math_node **)(a + 1), .flags = own_flags(kind) };
    for (int i = 0; i < n; i++) {
        if (!child[i])
            return NULL;
        a->child[i] = child[i];
        a->flags |= child[i]->flags;
        a->depth = MAX(a->depth, (uint16_t)(child[i]->depth + 1));
    }
    if (a->depth > MATH_TREE_DEPTH_MAX) {
        m->why = "too deep";
        return NULL;
    }
    return a;
}

struct math_node *node_new(struct math *m, enum node_kind kind, int n, ...)
{
    struct math_node *child[4];
    va_list ap;
    va_start(ap, n);
    for (int i = 0; i < n; i++)
        child[i] = va_arg(ap, struct math_node *);
    va_end(ap);
    return node_list(m, kind, child, n);
}

struct math_node *node_int(struct math *m, int64_t v)
{
    struct math_node *a = node_new(m, K_NUM, 0);
    if (a) {
        a->small = v;    // the digits are not needed below 10^18
        a->len = 1;
        a->s = "";
    }
    return a;
}

struct math_node *node_const(struct math *m, enum math_const which)
{
    struct math_node *a = node_op(node_new(m, K_CONST, 0), which);
    if (a)
        a->flags |= which == CONST_I ? HAS_I : which == CONST_PI ? HAS_PI | HAS_TRANS : which == CONST_INF ? HAS_INF : HAS_TRANS;
    return a;
}

struct math_node *node_like(struct math *m, const struct math_node *a, enum node_kind kind, struct math_node **child)
{
    struct math_node *c = node_list(m, kind, child, a->n);
    if (c) {
        c->op = a->op;
        c->s = a->s;
        c->len = a->len;
        c->scale = a->scale;
        c->base = a->base;
        c->small = a->small;
        c->flags |= a->flags & (HAS_DECIMAL | HAS_TRANS | HAS_I | HAS_PI | HAS_INF | HAS_CALC);
        if ((a->op == 1 && (a->kind == K_SUM || a->kind == K_PROD)) || (a->kind == K_OPAQUE && a->scale == 2))    // ends at infinity
            c->flags &= (uint16_t)~HAS_INF;
    }
    return c;
}

struct math_node *node_named(struct math *m, enum node_kind kind, const char *s, size_t len)
{
    struct math_node *a = node_new(m, kind, 0);
    if (a) {
        a->s = s;
        a->len = (int32_t)len;
    }
    return a;
}

struct math_node *node_op(struct math_node *a, int op)
{
    if (a)
        a->op = (int8_t)op;
    return a;
}

bool math_spend(struct math *m, int64_t steps)
{
    m->steps -= steps;
    if (m->steps >= 0)
        return true;
    m->why = "budget spent";
    return false;
}

bool int_get(const fmpq_t q, int64_t lo, int64_t hi, int64_t *v)
{
    if (!fmpz_is_one(fmpq_denref(q)) || !fmpz_fits_si(fmpq_numref(q)))
        return false;
    *v = fmpz_get_si(fmpq_numref(q));
    return *v >= lo && *v <= hi;
}

bool node_occurs(const struct math_node *a, const struct math_node *name)    // name: a symbol, or a function's value
{
    if (a->kind == name->kind && (a->kind == K_SYM || a->kind == K_APP) && name_same(a, name))
        return true;
    for (int i = 0; i < a->n; i++)
        if ((a->flags & HAS_SYM) && node_occurs(a->child[i], name))
            return true;
    return false;
}

int digit_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : c >= 'A' && c <= 'Z' ? c - 'A' + 10 : 99;
}
