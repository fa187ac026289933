/* readings.c - what a letter before a parenthesis means: f(x+1) is a function's value, a(b+c) a product
 *
 * The parser keeps both readings (K_JUXT), because one answer alone does not decide. A letter is a function unless the
 * answers say otherwise: it is a factor where it also occurs alone, in either of the two answers, or where both answers
 * have it before a sum and it is not a usual name of a function. Before a single number it is always a function: v(0)
 * is not 0, N(3) not 3N. */
#include <string.h>
#include "workers/engine/reward/math/node.h"

/* Does the letter occur alone in a? */
static bool stands_alone(struct math *m, const struct math_node *a, const struct math_node *letter)
{
    if (--m->steps < 0 || !(a->flags & HAS_SYM))
        return false;
    if (a->kind == K_SYM)
        return name_same(a, letter);
    if (a->kind == K_JUXT)    // the product's second factor: the parentheses with their content and postfixes
        return stands_alone(m, a->child[0]->child[1], letter);
    for (int i = 0; i < a->n; i++)
        if (stands_alone(m, a->child[i], letter))
            return true;
    return false;
}

static bool stands_before_parenthesis(struct math *m, const struct math_node *a, const struct math_node *letter)
{
    if (--m->steps < 0 || !(a->flags & HAS_JUXT))
        return false;
    if (a->kind == K_JUXT)
        return name_same(a, letter) || stands_before_parenthesis(m, a->child[0]->child[1], letter);
    for (int i = 0; i < a->n; i++)
        if (stands_before_parenthesis(m, a->child[i], letter))
            return true;
    return false;
}

static bool is_product(struct math *m, const struct math_node *a, const struct math_node *own, const struct math_node *other)
{
    bool usual = a->len == 1 && strchr(FUNCTION_LETTERS, a->s[0]);
    return stands_alone(m, own, a) || stands_alone(m, other, a)
           || (!usual && a->child[2]->kind == K_ADD && stands_before_parenthesis(m, other, a));
}

/* The tree with every K_JUXT decided; NULL: no room. own: the answer that a is part of. */
static struct math_node *decided(struct math *m, struct math_node *a, const struct math_node *own, const struct math_node *other)
{
    if (!(a->flags & HAS_JUXT))
        return a;
    if (a->kind == K_JUXT)
        return decided(m, a->child[is_product(m, a, own, other) ? 0 : 1], own, other);
    struct math_node **child = math_take(m, (size_t)a->n * sizeof *child);
    if (!child)
        return NULL;
    for (int i = 0; i < a->n; i++)
        if (!(child[i] = decided(m, a->child[i], own, other)))
            return NULL;
    return node_like(m, a, (enum node_kind)a->kind, child);
}

bool readings_decide(struct math *m, struct math_node **a, struct math_node **b)
{
    struct math_node *x = decided(m, *a, *a, *b), *y = x ? decided(m, *b, *b, *a) : NULL;
    if (!x || !y)
        return false;
    *a = x;
    *b = y;
    return true;
}
