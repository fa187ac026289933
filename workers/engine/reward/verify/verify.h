/* verify.h - the verifiers of open-instruct: one table of names, each a function from a response and a ground truth to a score
 *
 * A score is from 0 to 1 (max_length may go below). Rules and names are those of open-instruct's ground_truth_utils.py
 * (commit e6c3044), where a data set's row names its verifiers in 'dataset' and their ground truths in 'ground_truth';
 * verify_kind.c reads those. Where upstream turns a fault of the data or of a service into a score of 0, or ends the job,
 * the sample is left out here and says why. A struct verify_host is what one thread needs to verify. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "workers/engine/reward/math/math.h"
#include "workers/engine/reward/reward.h"
#include "workers/engine/reward/verify/regex.h"
#include "workers/engine/reward/verify/text.h"

#define VERIFY_TEXTS 6
struct verify_host {
    struct verify_options options;      // its strings belong to the host's owner
    struct regexes *regexes;            // owned
    struct math *math;                  // owned
    struct sandbox_host *sandboxes;     // owned; NULL until a program is run
    struct remote *remote;              // owned; the same for a service
    char *text[VERIFY_TEXTS];           // owned: the options' texts
    struct judge *judge;                // owned; NULL until it is asked
    const struct verifier *verifier;    // that runs
    struct pool pool;                   // of the call that runs
};
struct verify_input {
    struct span text;       // the response, valid UTF-8
    int64_t n_tok;          // its length in tokens; -1: not known
    const json_t *truth;    // the ground truth; borrowed
    const json_t *row;      // the whole row, for what else it says; borrowed
};
/* On entry SCORE_OK, 0 and empty texts. */
struct verify_result {
    enum score_state state;
    double score;
    char why[96];                 // what decided, or why there is no score
    char pred[256], gold[256];    // what was compared, cut when longer
    struct test_results tests;    // of programs
    int n_criterion;              // of the row's evolving criteria
    float criterion[CRITERIA_EVOLVING_MAX];
};
struct verifier {
    const char *name;     // as in a row's 'dataset', lower case
    const char *truth;    // what the ground truth is, for help and messages
    /* Is this a ground truth? ERR_DATA says why not. NULL: every text or number is. */
    bool (*check)(struct verify_host *h, const json_t *truth, struct error *err);
    void (*score)(struct verify_host *h, const struct verify_input *in, struct verify_result *out);
};
/* The table; *n of them. */
const struct verifier *verify_table(size_t *n);
/* By name, letters in either case; NULL: there is none. */
const struct verifier *verify_find(const char *name);
MUST_USE bool verify_host_init(struct verify_host *h, const struct verify_options *options, struct error *err);
void verify_host_release(struct verify_host *h);
/* Run v: clears out, empties the pool afterwards, and turns trouble with memory or a pattern into SCORE_ERROR. */
void verify_run(struct verify_host *h, const struct verifier *v, const struct verify_input *in, struct verify_result *out);
/* Is truth what v needs? */
MUST_USE bool verify_check(struct verify_host *h, const struct verifier *v, const json_t *truth, struct error *err);

/* For the verifiers' own files. */
/* The ground truth as text: a string as it is, a number as Python's str would write it, anything else as JSON. */
struct span verify_truth(struct verify_host *h, const json_t *truth);
/* Fill why, pred and gold. */
void verify_say(struct verify_result *out, const char *why, struct span pred, struct span gold);
/* No score: why says what is wrong with the data or the service. */
void verify_fail(struct verify_result *out, enum score_state state, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* answers.c */
bool verify_gsm8k_check(struct verify_host *h, const json_t *truth, struct error *err);
void verify_gsm8k(struct verify_host *h, const struct verify_input *in, struct verify_result *out);
void verify_flan(struct verify_host *h, const struct verify_input *in, struct verify_result *out);
void verify_string_matcher(struct verify_host *h, const struct verify_input *in, struct verify_result *out);
void verify_string_f1(struct verify_host *h, const struct verify_input *in, struct verify_result *out);
void verify_puzzle(struct verify_host *h, const struct verify_input *in, struct verify_result *out);
void verify_re_search(struct verify_host *h, const struct verify_input *in, struct verify_result *out);
void verify_re_search_f1(struct verify_host *h, const struct verify_input *in, struct verify_result *out);
void verify_max_length(struct verify_host *h, const struct verify_input *in, struct verify_result *out);
void verify_up_to_max_length(struct verify_host *h, const struct verify_input *in, struct verify_result *out);
void verify_passthrough(struct verify_host *h, const struct verify_input *in, struct verify_result *out);
bool verify_length_check(struct verify_host *h, const json_t *truth, struct error *err);
bool verify_labels_check(struct verify_host *h, const json_t *truth, struct error *err);
bool verify_any_check(struct verify_host *h, const json_t *truth, struct error *err);
/* ifeval.c */
bool verify_ifeval_check(struct verify_host *h, const json_t *truth, struct error *err);
void verify_ifeval(struct verify_host *h, const struct verify_input *in, struct verify_result *out);
bool verify_ifeval_old_check(struct verify_host *h, const json_t *truth, struct error *err);
void verify_ifeval_old(struct verify_host *h, const struct verify_input *in, struct verify_result *out);
/* code.c */
bool verify_code_check(struct verify_host *h, const json_t *truth, struct error *err);
void verify_code(struct verify_host *h, const struct verify_input *in, struct verify_result *out);
bool verify_code_stdio_check(struct verify_host *h, const json_t *truth, struct error *err);
void verify_code_stdio(struct verify_host *h, const struct verify_input *in, struct verify_result *out);
/* judged.c */
void verify_judged(struct verify_host *h, const struct verify_input *in, struct verify_result *out);
bool verify_rubric_check(struct verify_host *h, const json_t *truth, struct error *err);
void verify_rubric(struct verify_host *h, const struct verify_input *in, struct verify_result *out);
json_t *verify_rubric_read(const json_t *truth, struct error *err);    // as an object; a new reference, or NULL
const json_t *verify_criterion_text(const json_t *criterion);          // NULL: it has none
MUST_USE bool verify_judge_open(struct verify_host *h, struct error *err);
/* evolve.c: what the rubric of a prompt becomes after its n responses were scored; as reward_evolve */
json_t *verify_rubric_evolve(struct verify_host *h, const json_t *truth, const struct reward_input *in, const struct reward_output *out,
                             int64_t n);
/* minerva.c */
void verify_math(struct verify_host *h, const struct verify_input *in, struct verify_result *out);
void verify_strict_math(struct verify_host *h, const struct verify_input *in, struct verify_result *out);
