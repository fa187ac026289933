/* bounds.h - the numbers that a step can compute with, for everything that comes from outside the run's own engine
 *
 * Posted groups, lent machines, external engines, reward programs, judges and environments all give numbers. A gradient is an advantage
 * times a ratio of probabilities times what the model makes of it, and its norm is a sum of squares in fp32: above 1.8e19 a square is no
 * fp32 number. So an advantage over the probability that its token was drawn with, which is the most that the two can be together, has
 * BOUND_GRADIENT; that leaves three digits to the model. Pure; any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct group;
#define BOUND_GRADIENT 1e16

enum bound {
    BOUND_LOGP,           // of a token that was sampled; all of 150,000 ids with less are drawn once in 10^12 tokens
    BOUND_REWARD,         // of a sample
    BOUND_ADVANTAGE,      // of a token, in place of what rewards would give
    BOUND_TEMPERATURE,    // that a sample was drawn at
    BOUND_SHARE,          // how much of a form or an answer is right
};
bool bound_holds(enum bound b, double v);    // not of a NaN
/* ERR_DATA: v is beyond its bound; err names it, its value and the bound. */
MUST_USE bool bound_check(enum bound b, double v, struct error *err);
/* A token's id is one of the tokenizer's n_id. A model's table may have more rows than that: their ids are never drawn, and have no
 * log-prob. */
MUST_USE bool bound_id_check(int64_t id, int64_t n_id, struct error *err);
/* All of a group's ids, log-probs, advantages and scores. ERR_DATA names the first that cannot be. */
MUST_USE bool group_bounds_check(const struct group *g, int64_t n_id, struct error *err);
