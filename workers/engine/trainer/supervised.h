/* supervised.h - scoring of given texts, and steps that imitate them
 *
 * Called by the thread that drives the trainer's device. sft.h has whole runs of such steps. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "workers/engine/trainer/loss.h"
#include "workers/engine/trainer/trainer.h"

/* Log-probs of token[1..n) of one or more sequences under the model, by the training path. logp is
 * (n_tok - n_seq): for each sequence its tokens from the second on. temperature is (n_seq). entropy
 * has logp's shape, and may be NULL. */
MUST_USE bool trainer_logprobs(struct trainer *t, const int32_t *token, const int64_t *seq_len, const float *temperature, int64_t n_seq,
                               float *logp, float *entropy, struct error *err);

/* A sequence of a supervised step. */
struct sft_seq {
    const int32_t *token;    // (n_tok)
    const float *weight;     // (n_tok) weight of a token's loss given those before; 0: prompt
    int64_t n_tok;
};
/* Supervised step on packed sequences. The loss is sum(weight * -logp) / sum(weight). A sequence's
 * first token has none. apply false: only measure the loss. */
MUST_USE bool trainer_sft_step(struct trainer *t, const struct sft_seq *seq, int64_t n_seq, const struct trainer_hyper *h, bool apply,
                               double *loss, double *n_loss_tok, double *grad_norm, struct error *err);
