/* compare.h - functions shared by the parts of the comparison; math_compare (node.h) is the only entry
 *
 * compare.c has lists, tuples and set expressions, relations.c equations and inequalities, sets.c the real line, scalars.c
 * units, percentages and matrices. All are symmetric in their two sides. New nodes are in the scratch of the check; a
 * function that returns a node returns NULL when that is full. *rule is set to what decided. */
#pragma once
#include "workers/engine/reward/math/node.h"

#define ELEMENTS_MAX 256    // of a list

/* compare.c; depth: of the enclosing comparisons */
enum tri tree_compare(struct math *m, struct math_node *a, struct math_node *b, const char **rule, int depth);
/* Are a[i] and b[i] equal, for all n? */
enum tri ordered_compare(struct math *m, struct math_node **a, struct math_node **b, int n, const char **rule, int depth);
/* The tree with every symbol of that name replaced by another tree. */
struct math_node *node_substitute(struct math *m, struct math_node *a, const struct math_node *name, struct math_node *with);
static inline enum tri tri_either(enum tri a, enum tri b)
{
    return a == TRI_YES || b == TRI_YES ? TRI_YES : a == TRI_UNKNOWN || b == TRI_UNKNOWN ? TRI_UNKNOWN : TRI_NO;
}

/* relations.c */
enum tri cases_compare(struct math *m, struct math_node *a, struct math_node *b, const char **rule, int depth);    // two K_CASES
enum tri relation_compare(struct math *m, struct math_node *a, struct math_node *b, const char **rule, int depth);
/* A left side that only names what is on the right: a symbol, a product or ratio of symbols, f(x), |AB|, a tuple of names. */
bool node_names(const struct math_node *a);
bool node_closed(const struct math_node *a);    // a number, whatever it looks like
/* A chain of equalities that gives two different numbers: 3 + 2 = 4, \sqrt{2} \approx 1.7, x = 3 + 2 = 4, 1 = x = 4. */
bool relation_chain_false(struct math *m, struct math_node *a);
/* A chain of equalities in its shortest form: first = last, what follows an approximation sign is dropped. Others unchanged. */
struct math_node *relation_shorten(struct math *m, struct math_node *a);
/* What an assignment (name = value, 1 = ... = value, x in S) gives; NULL: the relation is not an assignment. */
struct math_node *relation_assigned(struct math_node *a);

/* sets.c: sets of real numbers as pieces of the line */
#define PIECES_MAX 32
struct line_piece {
    struct math_node *lo, *hi;    // NULL: minus, plus infinity
    bool lo_open, hi_open;
};
struct pieces {
    int n;
    struct line_piece p[PIECES_MAX];    // ascending and disjoint after pieces_sort
};
/* A tree as pieces of the real line, at most depth levels deep; false: it is not such a set. */
bool pieces_of(struct math *m, struct math_node *a, struct pieces *s, int depth);
bool relation_pieces(struct math *m, struct math_node *a, struct pieces *s, const struct math_node **unknown);    // its solutions
/* s becomes what how (K_UNION, K_INTER, K_MINUS) makes of s and t; false: their order is not known, or there are too many. */
bool pieces_join(struct math *m, struct pieces *s, const struct pieces *t, enum node_kind how);
enum tri pieces_equal(struct math *m, const struct pieces *a, const struct pieces *b, const char **rule);
bool relation_inequality(const struct math_node *a);
/* The one unknown of a relation: a symbol, f(x), or the absolute value of one; found: the unknown of what was searched before.
 * */
const struct math_node *unknown_find(const struct math_node *a, const struct math_node *found, bool *many);
bool unknown_same(const struct math_node *a, const struct math_node *b);

/* scalars.c */
enum tri scalar_compare(struct math *m, struct math_node *a, struct math_node *b, const char **rule, int depth);
struct math_node *matrix_value(struct math *m, struct math_node *a, int depth);            // sums and products carried out
struct math_node *node_minus(struct math *m, struct math_node *a, struct math_node *b);    // a - b
bool node_infinite(const struct math_node *a, int *sign);                                  // infinity itself, with that sign
