/* sft.h - supervised training: conversations in, a model that answers like them out
 *
 * Rows are conversations; only assistant turns carry loss, from their first token to the end token that closes them.
 * Text is tokenised in the pieces a rollout would have (prompt, answer), so that the ids are those that sampling
 * produces. One device thread; all rows are held tokenised in memory. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "workers/engine/trainer/schedule.h"

struct trainer;
struct tokenizer;    // workers/engine/text/tokenizer.h
struct template;     // workers/engine/template/template.h

struct sft_data;
/* Read and tokenise a data set (workers/engine/data/dataset.h): a row's conversation is `messages`; when its last turn is not
 * the assistant's, a text member `answer` is that turn. chat NULL: the model has no template. A row is then the tokenizer's begin token, the
 * texts of its system message and of its one question as rollouts have them, the answer, and the end token. Rows longer than max_tok are
 * left out and counted. NULL: err names file and line. */
struct sft_data *sft_data_open(const char *path, const struct tokenizer *tok, const struct template *chat, int64_t max_tok,
                               struct error *err);
void sft_data_free(struct sft_data *d);
int64_t sft_data_n(const struct sft_data *d);    // rows
int64_t sft_data_n_too_long(const struct sft_data *d);
/* Tokens of row i and which of them carry loss (1 or 0); borrowed. */
int64_t sft_data_row(const struct sft_data *d, int64_t i, const int32_t **token, const float **weight);

/* One stage: this many steps over the data at a schedule, with a fresh optimizer. */
struct sft_stage {
    const struct sft_data *data;
    int64_t n_step, batch_rows;
    double lr, weight_decay, max_norm;
    struct schedule schedule;
    uint64_t seed;    // of the order; every epoch has its own
};
struct sft_progress {
    int64_t step, n_step;    // of the stage, from 1
    double loss;             // mean over loss tokens of this step
    double lr, grad_norm;
    double tok_per_s;    // packed tokens, since the stage began
};
/* Run a stage; told (may be NULL) hears of every step and stops it by returning false (ERR_STOPPED). */
MUST_USE bool sft_run(struct trainer *t, const struct sft_stage *stage, bool (*told)(void *arg, const struct sft_progress *p), void *arg,
                      struct error *err);
/* Mean loss per loss token over all rows. */
MUST_USE bool sft_evaluate(struct trainer *t, const struct sft_data *d, double *loss, double *n_loss_tok, struct error *err);
