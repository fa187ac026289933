/* math.h - are two mathematical answers equal? Proven equal, proven different, or cannot tell
 *
 * Values are exact (GMP rationals); where that does not decide, ball arithmetic does, never floating point alone. Work
 * is bounded by a budget counted in steps and bits, not by time: the same pair always gets the same verdict. A struct
 * math is scratch of a fixed size for one thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "protocol/base/error.h"
#include "workers/engine/reward/reward.h"

struct math_config {
    /* 0 to 15: an answer that is one decimal number matches all values within half a unit of that decimal (Math-Verify's
     * float_rounding), and within 10^-(decimals*2/3) of its value; 0: decimals are exact */
    int decimals;
};
#define MATH_CONFIG_DEFAULT ((struct math_config){ .decimals = 6 })

struct math_result {
    enum verdict verdict;
    bool pred_parsed;    // false: the prediction is not mathematics we know; it can only be equal as text
    bool gold_parsed;
    const char *rule;             // static text: what decided, or why it cannot be decided
    char pred[256], gold[256];    // what was compared, cut when longer
};
struct math;
/* Scratch for one thread; returns it for math_free, which the thread that used it must call. */
struct math *math_new(const struct math_config *config, struct error *err);
void math_free(struct math *m);
/* Compare two bare answers, as found in a box or in a dataset's gt_answer. */
void math_answer(struct math *m, const char *pred, size_t pred_len, const char *gold, size_t gold_len, struct math_result *out);
/* Find the answer in a whole response and compare it. */
void math_response(struct math *m, const char *response, size_t response_len, const char *gold, size_t gold_len, struct math_result *out);
/* Does the rule treat the two sides differently? An answer without a value, or one that says 3 + 2 = 4, is wrong; a gt_answer
 * like that, or an identity, cannot be judged by; "f(2) = 5" gives the value 5, but 5 does not give the equation. */
bool math_rule_one_sided(const char *rule);
