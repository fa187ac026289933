/* group.h - a rollout group: one prompt, its G sampled completions, and what is known about each
 *
 * Made by the producer, scored by the scorer, kept by the controller, trained on by the consumer. One block of memory holds
 * the struct and all its arrays (group_new), so that a group has one owner and one free. Nothing here locks. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/settings/batch_filter.h"

enum finish_reason {
    FINISH_STOP,      // ended by an end token or a stop string
    FINISH_LENGTH,    // cut at max_new_tokens without having ended
};
enum score_state {
    SCORE_NONE,    // not scored yet
    SCORE_OK,
    /* left out of mean, spread and loss because the verifier */
    SCORE_LEFT_OUT,    // cannot tell
    SCORE_TIMEOUT,     // ran out of its time
    SCORE_ERROR,       // failed, or the row does not hold what it needs
};
#define EVAL_ITEM_BASE ((int64_t)1 << 40)    // evaluations number their items from here, out of the range of training items
#define GROUP_PARTS_MAX 8                    // most named parts of a reward

struct sample {
    int64_t first_tok;    // where its tokens start in group.token / group.logp
    int64_t n_tok;        // tokens after the prompt, with the end token when there was one
    uint64_t seed;        // of its random numbers; with (item, sample, position) it fixes the draw
    enum finish_reason finish;
    enum score_state score;
    double reward;                   // only when score is SCORE_OK, as the two below
    float format_acc;                // 0 or 1; NAN: the reward does not say
    float ans_acc;                   // 0 or 1; NAN likewise
    double part[GROUP_PARTS_MAX];    // rewards by part, in the order of the run's reward table; NAN where not given
    float temperature;               // it was drawn at; 0: the group's
    bool adv_zero;                   // its advantage is 0, though its reward counts in the group's mean and spread
    bool again;                      // another path of the session that the sample before it is of (workers/worker/session.h)
    char reason[48];                 // short rule or failure, e.g. "boxed: equal", "code: time-out"
};
struct group {
    int64_t item;              // the controller's number for this prompt in this run
    int64_t prompt_row;        // number of the prompt, from 0, among the usable ones (prompt_lines.h has their lines)
    int64_t rollout_step;      // when it was sampled, in logical time
    int64_t weight_version;    // optimizer steps of the weights that sampled it; free-running: of those that began it
    float temperature;         // the sampling settings it was made with
    float top_p;
    int32_t top_k;    // 0: off
    int64_t max_new_tok;
    int64_t n_prompt;    // prompt tokens
    int32_t *prompt;     // (n_prompt)
    int32_t n_sample;
    struct sample *sample;    // (n_sample)
    int64_t n_tok;            // tokens of all samples
    int32_t *token;           // (n_tok) sample after sample
    float *logp;              // (n_tok) log-prob when sampled, natural log, at the sampling temperature; 0 where mask is 0
    float *entropy;           // (n_tok) of the distribution it was drawn from, nat, at the sampling temperature; only when has_entropy
    int32_t *newer;           // (n_tok) how many optimizer steps newer the weights that drew it are; 0 except in free-running
    uint8_t *mask;            // (n_tok) 1: sampled, and in the loss; 0: given by an environment, only read by what follows
    float *adv;               // (n_tok) advantages that came with the group, in place of those from rewards; only when has_adv
    bool has_adv;
    bool no_logp;    // it came without log-probs: logp is 0, and the trainer takes those of its own weights
    bool has_entropy;
    char gold[128];     // the right answer: the row's, or what the verifier read, cut when longer; "": neither names one
    double gen_s;       // seconds from prefill to last token
    double score_s;     // seconds from requesting its scores to getting them
    double verify_s;    // total seconds that verifiers worked on its samples
};
/* Tokens of sample i that were sampled: those whose mask is 1; all of them in a group without a mask. */
int64_t sample_n_own(const struct group *g, int32_t i);
/* A group with room for exactly these sizes, zeroed, first_tok not set, every token's mask 1. Returns it for group_free; NULL: out of
 * memory. */
struct group *group_new(int64_t n_prompt, int32_t n_sample, int64_t n_tok, struct error *err);
void group_free(struct group *g);
/* What the controller keeps of a returned group, for filters and the metrics of its batch. */
struct group_summary {
    int64_t n_sample, n_scored, n_truncated, n_tok, n_tok_max;
    int64_t n_again;                           // further paths of sessions
    int64_t n_left_out, n_timeout, n_error;    // n_sample - n_scored; of these by the verifier's time-out, its failure
    double reward_sum, reward_sum2;            // over scored samples
    int64_t n_format, n_ans;                   // scored samples of which format_acc, ans_acc is known,
    double format_sum, ans_sum;                // and its sum over these
    double reward_low, reward_high;            // the smallest and largest of them; both 0 without one
    double gen_s, score_s, verify_s;
    int64_t file_offset, file_bytes;    // where the group lies in the rollout file
    int64_t arrived;                    // an operator has changed it: where its first record ends there; 0: this is the first
};
/* Orders groups by when they came: the rollout file is written in that order. */
static inline int64_t group_arrival(const struct group_summary *s)
{
    return s->arrived ? s->arrived : s->file_offset + s->file_bytes;
}

bool batch_filter_passes(const struct batch_filter *f, const struct group_summary *s);
