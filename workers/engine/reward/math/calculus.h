/* calculus.h - derivatives, limits, integrals, and sums and products without end
 *
 * A derivative or a limit becomes a plain tree while it is parsed, where the rules used are exact. Integrals and sums
 * without end stay in the tree and are evaluated within balls, with proven bounds of what is left out. What none of
 * this can do stays opaque: the check cannot tell. */
#pragma once
#include <flint/fmpq_poly.h>
#include "workers/engine/reward/math/eval.h"

/* calculus.c. NULL: no rule of ours gives it, or there is no room. */
struct math_node *derivative_of(struct math *m, struct math_node *a, const struct math_node *x);
/* As the symbol x goes to to, from below (side -1), above (1) or both (0). */
struct math_node *limit_of(struct math *m, struct math_node *a, const struct math_node *x, struct math_node *to, int side);

#define INTEGRAL_EVALS 20000    // of a function, for one integral

/* series.c: evaluates no tree itself, but with the functions it is given, those of eval.h. */
typedef bool rational_fn(struct math *m, const struct math_node *a, fmpq_t out);
typedef bool ball_fn(struct ball *b, const struct math_node *a, acb_t z);
/* A K_SUM or K_PROD that ends at infinity: as ball_eval computes it, or an infinity. */
struct math_node *endless_node(struct math *m, struct math_node *a, rational_fn *rational);
bool endless_ball(struct ball *b, const struct math_node *a, rational_fn *rational, acb_t z);
/* a as the quotient of two polynomials in x; false: it is none, or not a small one. */
bool quotient_of(struct math *m, rational_fn *rational, const struct math_node *x, const struct math_node *a, fmpq_poly_t num,
                 fmpq_poly_t den);
/* A K_OPAQUE with the body, both bounds and in s the variable: marked (scale 1; 2: a bound is infinite) when ball_eval may compute it. */
struct math_node *integral_node(struct math_node *a);
bool integral_ball(struct ball *b, const struct math_node *a, ball_fn *eval, acb_t z);
bool ball_analytic(enum math_func fn);    // is it analytic where it has no pole and no cut, or, as |x|, on each side of 0?

/* improper.c: an integral with scale 2, of a rational function, or of a polynomial times e^(-c x) or e^(-c x^2) */
bool improper_ball(struct ball *b, const struct math_node *a, rational_fn *rational, acb_t z);
