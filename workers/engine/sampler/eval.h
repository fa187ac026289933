/* eval.h - the figures of an evaluation and the files it writes: exact counts, mean, pass@k, records
 *
 * Used by rollcall eval and by the evaluations of a run. Pure: no device, no socket; only eval_file_* touch the
 * disk. An evaluation set is named (several may run side by side); each of its prompts is counted once, whichever process generated
 * it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "protocol/settings/run_config.h"
#include "workers/engine/reward/reward.h"

/* Counts of one set. A sample that the verifier left out counts in n_left_out and nowhere else. */
struct eval_tally {
    int64_t n_prompt;          // in the set
    int64_t n_per_prompt;      // samples wanted for each
    int64_t n_sample;          // seen so far
    int64_t n_scored;          // of these, scored
    int64_t n_left_out;        // of these, the verifier could not score
    int64_t n_judged;          // of the scored: the reward says whether they are right
    int64_t n_correct;         // of the judged
    int64_t n_format_known;    // of the scored: the reward says whether their format is valid
    int64_t n_format;          // of these: it is
    int64_t n_truncated;       // of the seen: cut at max_new_tok
    int64_t n_tok;             // sampled tokens
    int64_t n_tok_max;         // of the longest sample
    double reward_sum;         // over the scored
    int32_t *judged;           // (n_prompt) judged samples of each prompt; owned
    int32_t *correct;          // (n_prompt) correct ones; owned
};
/* n_prompt may be 0 (an empty set has no mean). On failure t holds nothing. */
MUST_USE bool eval_tally_init(struct eval_tally *t, int64_t n_prompt, int64_t n_per_prompt, struct error *err);
void eval_tally_release(struct eval_tally *t);
/* Was the answer right? In an evaluation this does not depend on the format (as in upstream's evaluation mode): a
 * verifier's VERDICT_EQUAL counts even when the format is wrong. */
bool eval_correct(const struct reward_output *out);
/* Does the reward say whether it was right? */
bool eval_judged(const struct reward_output *out);
/* One sample of prompt i (0 .. n_prompt - 1) was seen; n_tok tokens. */
void eval_tally_add(struct eval_tally *t, int64_t i, const struct reward_output *out, int64_t n_tok, enum finish_reason finish);
/* Correct answers over judged samples; NAN when none was judged. */
double eval_mean(const struct eval_tally *t);
/* Share of the prompts with two judged samples or more whose samples are neither all right nor all wrong: those that a group's advantage
 * can learn from. NAN: there is no such prompt. */
double eval_spread(const struct eval_tally *t);
double eval_reward_mean(const struct eval_tally *t);    // NAN when none was scored
/* Unbiased estimate of the chance that one of k samples is right: mean over prompts of 1 - C(n-c, k) / C(n, k) with
 * n judged and c correct samples (Chen et al., arXiv 2107.03374, eq. 1). Prompts with fewer than k judged samples are
 * not in the mean; NAN when no prompt is. */
double eval_pass_at(const struct eval_tally *t, int64_t k);
/* pass@k of one prompt with n samples, c of them right; 0 < k <= n. */
double pass_at_k(int64_t n, int64_t c, int64_t k);
/* {"n","mean","pass_at":{"1":...},"spread","n_sample","n_scored","n_correct","n_left_out","n_truncated","format","reward","tokens",
 * "longest"};
 * unknown values are null. n counts prompts. Returns a new reference; NULL: out of memory. */
json_t *eval_tally_json(const struct eval_tally *t);

/* One line of an evaluation file: upstream's fields (prompt, prediction, gold or, for code, test_cases, test_results
 * and test_metadata, parsed, format_valid, ans_valid, response_length, reward) and then ours (sample, finish_reason,
 * rule, scored). */
struct eval_record {
    const char *prompt;        // the text the model saw
    const char *prediction;    // the response, without the end token
    int64_t prediction_len;    // bytes
    const json_t *row;         // the dataset's line
    int64_t prompt_row;        // its number, from 0
    int64_t sample;            // 0 .. n_per_prompt - 1
    int64_t n_tok;
    enum finish_reason finish;
    const struct reward_output *out;
    const char *run;    // id of the run that evaluates; NULL or "": no run
};
/* Append the record as one line of JSON. False: out of memory (bytes that are not UTF-8 are replaced by U+FFFD). */
MUST_USE bool eval_record_line(struct buf *line, const struct eval_record *record, struct error *err);
/* dir/project/task_training_step_N.jsonl, or dir/task_training_step_N.jsonl when project is NULL (dir is the run's
 * own). Characters of task that do not belong in a file name become '_'. */
MUST_USE bool eval_file_path(char *out, size_t size, const char *dir, const char *project, const char *task, int64_t step,
                             struct error *err);

/* One line of the rollout log, {"train_step":n,"rollout":[text...]}: whole texts (prompt and response, special
 * tokens removed) of sample 0 of each prompt. */
MUST_USE bool rollout_log_line(struct buf *line, int64_t train_step, const char *const *text, int64_t n, struct error *err);
/* A string as JSON, invalid UTF-8 replaced by U+FFFD; the tools print text with it. NULL: out of memory. */
json_t *json_text(const char *text, size_t len);
