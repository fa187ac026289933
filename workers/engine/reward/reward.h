/* reward.h - how a response is scored: one table of reward functions, one way to call them
 *
 * Runs in the scorer process (and in rollcall score); a struct reward may be used by one thread at a time. A verifier
 * that fails, exceeds its budget or cannot tell says so: the sample is left out, never silently scored 0. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "protocol/base/error.h"
#include "protocol/record/group.h"

struct answer_tags;
enum verdict {
    VERDICT_DIFFERENT,
    VERDICT_EQUAL,
    VERDICT_CANNOT_TELL,
};
/* How each test that was run ended, in order; ColossalChat's codes. */
enum test_code {
    TEST_PASSED = 1,
    TEST_WRONG = 0,
    TEST_FAILED = -1,
    TEST_NO_PROGRAM = -2,
};                            // -1: crash, time-out, limit
#define TESTS_KEPT_MAX 256    // of one program; further tests are not kept
struct test_results {
    int16_t n;                      // 0: no test was run
    int8_t code[TESTS_KEPT_MAX];    // (n) enum test_code
};
#define CRITERIA_EVOLVING_MAX 16           // evolving criteria of a prompt
#define EVOLVING_KEY "evolving_rubrics"    // where a row has them: [{"description", "weight"}]
struct reward_input {
    const char *response;    // the completion's text, UTF-8, response_len bytes, followed by a NUL; without the end token
    size_t response_len;
    const char *transcript;    // of a run with an environment: all that the model read and drew, as its template writes it, UTF-8,
    size_t transcript_len;     // transcript_len bytes; NULL: there is none
    const json_t *row;         // the dataset's line: gt_answer, test_cases, ...; borrowed
    bool has_length;           // finish is known, and n_tok unless it is -1: length rules apply
    int64_t n_tok;
    enum finish_reason finish;
    int64_t max_new_tok;          // limit it was sampled with; 0: reward_config's
    bool tool_ok;                 // a tool was called, and no call failed or ran out of time
    bool has_environment;         // an environment has judged it:
    double environment_reward;    // the rewards of its turns, put together
    float environment_acc;        // 0 or 1
    int64_t group;                // neighbours with the same number are responses to one prompt
};
struct reward_output {
    enum score_state score;    // SCORE_OK, or why it is left out (rule says it in words)
    double reward;
    float format_acc, ans_acc;    // 0 or 1; NAN: the reward does not say
    enum verdict verdict;
    double part[GROUP_PARTS_MAX];    // filled by combined rewards, NAN elsewhere
    char rule[96];                   // which rule decided: "rational", "interval", "text", "code: wrong answer", ...
    char pred[256], gold[256];       // what was compared, cut when longer
    struct test_results tests;       // of code rewards
    int8_t n_criterion;              // of the row's evolving criteria, judged: their scores from 0 to 1
    float criterion[CRITERIA_EVOLVING_MAX];
    double us;    // microseconds it took
};
/* What verifiers and their combination take from a run's settings of the same names; open-instruct's names and defaults, but for
 * math_symbolic (minerva.c). Strings are borrowed until reward_new returns. */
struct verify_options {
    double verification_reward;     // of a verifier's score of 1
    const char *remap_verifier;     // "OLD=NEW": rows that name OLD are verified by NEW; NULL: none
    double format_reward;           // of "... </think> <answer>...</answer>"; 0: the format does not matter
    bool additive_format_reward;    // added to the verifiers' reward; else a response without the format gets none of it
    bool non_stop_penalty;          // a response that did not end by itself gets non_stop_penalty_value, whatever it says
    double non_stop_penalty_value;
    bool only_reward_good_outputs;                  // only responses with a tool call, and without a failed one, get the verifiers' reward
    bool math_symbolic;                             // math and strict_math: equal as mathematics is equal
    const char *code_api_url;                       // services for code and code_stdio, as in code_verifier_api_url; NULL: sandboxes
    const char *code_key_file;                      // the services' bearer token is in this file; NULL: none
    double code_max_execution_time;                 // seconds of one test
    double code_pass_rate_reward_threshold;         // a smaller share of passed tests counts as 0
    bool code_apply_perf_penalty;                   // a passed test counts for the share of its time that it left
    const char *llm_judge_url, *llm_judge_model;    // an OpenAI-compatible server; NULL: there is none
    const char *llm_judge_key_file;                 // its bearer token is in this file; NULL: none
    const char *llm_judge_template;                 // text of the verifier judge's prompt; NULL: its own
    int64_t llm_judge_max_tokens, llm_judge_max_context_length;
    double llm_judge_temperature, llm_judge_timeout;    // timeout: seconds
    _Atomic int64_t *llm_judge_left;                    // requests that may still be made, shared by all threads; borrowed, NULL: no bound
    int64_t max_active_rubrics;                         // evolving criteria of a prompt; 0: rubrics stay as they are
    double max_length_verifier_max_length;              // tokens over which the score of max_length falls by 1
};
#define VERIFY_OPTIONS_DEFAULT                                                                                                             \
    ((struct verify_options){ .verification_reward = 10,                                                                                   \
                              .math_symbolic = true,                                                                                       \
                              .max_length_verifier_max_length = 32768,                                                                     \
                              .code_max_execution_time = 1,                                                                                \
                              .llm_judge_max_tokens = 2048,                                                                                \
                              .llm_judge_max_context_length = 8192,                                                                        \
                              .llm_judge_temperature = 1,                                                                                  \
                              .llm_judge_timeout = 60 })
/* What a run says about its reward; borrowed by reward_new until it returns. */
struct reward_config {
    const char *type;                      // "boxed", "think_answer_tags", "math", "code", "program:CMD", "environment", or a weighted list
                                           // "0.8*boxed + 0.2*program:./len.py"
    int64_t max_new_tok;                   // for the length rules
    bool soft_over_length_punishment;      // DAPO eq. 13, with
    int64_t cache_len;                     // its L_cache in tokens; 0: the smaller of 1024 and max_new_tok / 4
    bool eval;                             // evaluation: an answer counts without a valid format too
    const char *code_verifier_api_url;     // NULL: the local sandbox
    const char *code_verifier_key_file;    // its bearer token; NULL: none
    const char *response_format_tags;      // of think_answer_tags, as answer_tags_read takes them; NULL: the default
    const struct answer_tags *tags;        // reward_new's own
    const struct verify_options *verify;    // NULL: VERIFY_OPTIONS_DEFAULT; borrowed until reward_new returns
    int program_errors;                     // a descriptor for the standard error of the user's programs; 0: this process's own
    double program_timeout_s;               // for an answer of the user's reward program, or one test of a code reward; 0: 10
};
struct run_config;
/* The reward of a run's settings; its strings, and verify, point into c and options. */
struct reward_config reward_config_of(const struct run_config *c, struct verify_options *options);
struct reward;
/* Parse the type and set everything up (sandbox, programs); ERR_USAGE names what is unknown, ERR_UNSUPPORTED what is
 * missing. */
struct reward *reward_new(const struct reward_config *config, struct error *err);
void reward_free(struct reward *r);
/* Must all responses of a prompt be given to one call of reward_score? True as long as a program has not said what it
 * wants, which it does when it is first asked. */
bool reward_wants_groups(const struct reward *r);
/* Score n responses; rows of out are filled whatever happens. */
void reward_score(struct reward *r, const struct reward_input *in, struct reward_output *out, int64_t n);
/* After all n responses to a prompt have been scored: what its rubric becomes, as JSON {"active": criteria for its later responses,
 * "judged": how many there were, "written", "failed", "why"}. A new reference; NULL: nothing evolves here. */
json_t *reward_evolve(struct reward *r, const struct reward_input *in, const struct reward_output *out, int64_t n);
/* Does a dataset's row hold what each part of the reward needs? ERR_DATA names the part, the field and what to do, but
 * not the line. The verifier may still fail to judge a row that passes. */
MUST_USE bool reward_row_check(const struct reward *r, const json_t *row, struct error *err);
int reward_n_part(const struct reward *r);    // 0: a single reward
const char *reward_part_name(const struct reward *r, int i);
/* The default system prompt of a reward type (ColossalChat's README), NULL: none. */
const char *reward_system_prompt(const char *type);
/* The stop string the type generates to ("</answer>" for think_answer_tags), or NULL. The end token ends a response too:
 * ColossalChat ignores it for this type, so that a response without the tag runs to the limit; either has the wrong format. */
const char *reward_stop_string(const char *type);
void test_results_add(struct test_results *t, enum test_code code);
/* [1, 0, ...]; a new reference. NULL: out of memory. */
json_t *test_results_json(const struct test_results *t);
