/* kind.h - one row of the table of reward functions; a new kind of reward is one row in reward.c and one struct here
 *
 * A kind scores a batch, so that a sandbox or a program may work on many completions at once. It fills in what it knows
 * of each output (on entry zeroed, parts NAN, score SCORE_LEFT_OUT) and ignores lengths unless it says so: reward.c
 * applies the length rules according to the flags below. */
#pragma once
#include "workers/engine/reward/reward.h"

struct reward_kind {
    const char *name;             // "boxed"; a name that ends in ':' takes the rest of the type as its argument
    const char *system_prompt;    // default one; NULL: none
    const char *stop_string;      // NULL: none
    /* Set up one of this kind; arg is what follows the ':', or "". *self is passed to the other functions. NULL: nothing to do.
     * */
    bool (*open)(void **self, const struct reward_config *config, const char *arg, struct error *err);
    void (*close)(void *self);
    /* Does a dataset's row hold what this kind compares with? ERR_DATA names the field and what to do. NULL: the row is not
     * needed. */
    bool (*row_check)(void *self, const json_t *row, struct error *err);
    void (*score)(void *self, const struct reward_config *config, const struct reward_input *in, struct reward_output *out, int64_t n);
    /* Must the responses of a prompt come in one call? NULL: no, their scores do not depend on each other. */
    bool (*wants_groups)(void *self);
    /* As reward_evolve. NULL: nothing evolves. */
    json_t *(*evolve)(void *self, const struct reward_input *in, const struct reward_output *out, int64_t n);
    bool keeps_cut;    // a response that was cut off may still have a reward; otherwise it is 0
};
// ColossalChat's score of a right answer; also the scale of the soft over-length punishment
#define REWARD_ACC 10.0
/* The soft over-length punishment p of a response (0 or negative), DAPO, arXiv 2503.14476, eq. 13 in ColossalChat's scale:
 * ((M - c) - L) / c * 10 for M - c < L < M; 0 where length rules do not apply or the option is off. A kind adds it to the
 * rewards it applies to (math: an answer was found; code: all tests pass). */
double reward_length_punishment(const struct reward_config *config, const struct reward_input *in);

extern const struct reward_kind reward_kind_boxed, reward_kind_think, reward_kind_math, reward_kind_code, reward_kind_code_share,
    reward_kind_program, reward_kind_environment, reward_kind_verify, reward_kind_verify_named, reward_kind_judge;
