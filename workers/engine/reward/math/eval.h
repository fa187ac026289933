/* eval.h - the value of a tree: exactly, as a residue, within a ball, or on the line with its two ends
 *
 * Four ways to compute with a tree, one file each; eval.c uses them to decide whether two trees are equal (node.h). All
 * spend steps from the budget of their check and fail when it is used up; m->why then says so. Nothing is kept between
 * calls but the indices of the enclosing sums (m->bind). */
#pragma once
#include <acb.h>
#include <arb.h>
#include "workers/engine/reward/math/node.h"

#define N_POINT 8            // points at which trees with free symbols are compared
#define N_POINT_JUMP 1000    // the first of the points where functions with jumps and corners have them: 0 and halves
#define N_JUMP 48            // of those points
#define SUM_TERMS_MAX 5000

/* rational.c: exact values */
bool bound_value(const struct math *m, const struct math_node *a, int64_t *v);        // of an index of the enclosing sums
bool number_value(struct math *m, const struct math_node *a, fmpq_t out);             // a K_NUM; false: too long
bool func_exact(struct math *m, const struct math_node *a, fmpq_t out);               // a K_FUNC; false: as eval_rational
bool power_exact(struct math *m, fmpq_t out, const fmpq_t base, const fmpq_t exp);    // false: base^exp is not rational, or too long

/* residue.c: values modulo 2^61 - 1 */
#define P61 ((UINT64_C(1) << 61) - 1)
struct residue {
    struct math *m;
    uint64_t seed;
    bool opaque;    // something was treated as an unknown that is not one: only equality can be proved
};
/* The residue of a at the point that r->seed selects; false: it has none, or m->steps are spent. */
bool residue_eval(struct residue *r, const struct math_node *a, uint64_t *out);
uint64_t mul61(uint64_t a, uint64_t b);    // a b mod P61
uint64_t mix(uint64_t h, uint64_t v);      // a hash of h and v
uint64_t mix_text(uint64_t h, const char *s, int32_t len);

/* ball.c: values within a ball */
struct bound_ball {    // the variable of an integral
    const char *s;
    int32_t len;
    acb_srcptr value;
    const struct bound_ball *outer;    // of the integral around it; NULL: none
};
enum unknowns {
    UNKNOWN_REAL,
    UNKNOWN_WHOLE,    // positive integers, as gcd, lcm and mod need
    UNKNOWN_COUNT,    // small positive integers, as the bounds of sums are
};
struct ball {
    struct math *m;
    slong prec;
    int point;                         // the point at which free symbols are evaluated
    enum unknowns unknowns;            // what free symbols are
    bool lenient;                      // what cannot be computed here counts as some number; what has no value still fails
    bool analytic;                     // fail where the function is not analytic in the whole ball
    const struct bound_ball *bound;    // innermost first; NULL: none
};
/* z: a ball of b->prec bits around the value of a; false: it has none here, or none that can be computed. */
bool ball_eval(struct ball *b, const struct math_node *a, acb_t z);
/* The largest integer not above the value of a (up: the smallest not below); false: it is not certain. */
bool ball_floor(struct math *m, const struct math_node *a, bool up, fmpq_t out);

/* extent.c: infinity */
/* Are two trees equal when one of them contains an infinity? TRI_UNKNOWN with m->why for undefined forms. */
enum tri extents_equal(struct math *m, const struct math_node *a, const struct math_node *b, const char **rule);
bool extent_undefined(struct math *m, const struct math_node *a);    // infinity - infinity and the like
