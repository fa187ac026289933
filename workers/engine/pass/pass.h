/* pass.h - a model at work: forward for every use, and backward
 *
 * The forward pass is written once against kernels/ops.h. Prefill, decode, scoring and training run
 * the same operations with the same order of every sum, so that a token's log-prob has the same
 * bits wherever it is computed.
 *
 * Everything here is called by the one thread that drives the device. Pointers marked (device)
 * point into the device's memory, which on a CPU is the host's; work on them is asynchronous on
 * CUDA (device_sync). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/ops.h"
#include "protocol/base/error.h"
#include "workers/engine/model/model.h"

struct model_run;
struct kv_pool;

/* ---- paged keys and values (a page holds device.kv_page_tok tokens of all layers) */
/* A pool of n_page pages, in mem (device; n_page kv_pool_page_bytes; borrowed) or, with NULL,
 * memory of its own. Others may use mem while no page holds anything. NULL: see err. */
struct kv_pool *kv_pool_new(const struct model *m, int64_t n_page, void *mem, struct error *err);
void kv_pool_free(struct kv_pool *kv);               // NULL is fine
size_t kv_pool_page_bytes(const struct model *m);    // one page, keys and values of all layers
/* Copy page src[i] to dst[i] in every layer; src, dst (device; n). A group shares its prompt's full
 * pages and copies the last, partly filled one. */
MUST_USE bool kv_pool_copy(struct kv_pool *kv, const int32_t *dst, const int32_t *src, int64_t n, struct error *err);

/* ---- states of sequences, of models with layers that keep one (config_has_states) */
/* Bytes of a sequence's state in all layers; 0: the model has none. */
size_t kv_pool_state_bytes(const struct model *m);
/* Give the pool n slots of states besides. A slot holds anything until a sequence begins in it. */
MUST_USE bool kv_pool_states(struct kv_pool *kv, int64_t n, struct error *err);
/* Copy slot src[i] to dst[i] in every layer; src, dst: host. A group's samples begin with the state that their prompt has left. */
MUST_USE bool kv_pool_states_copy(struct kv_pool *kv, const int32_t *dst, const int32_t *src, int64_t n, struct error *err);

/* ---- running */
/* Upper bounds on what a run is asked for; its memory is allocated once according to them. */
struct run_limits {
    // Packed tokens of one prefill, scoring or training call, or sequences of one decode
    int64_t max_tok;
    int64_t max_seq;        // sequences of one call
    int64_t max_seq_tok;    // longest sequence, prompt and completion
    bool train;             // keep what the backward pass needs
    // With train: keep only each block's input and run the block's forward again
    bool recompute_block;
    // With train: keep what norms and SwiGLU give, too, rather than compute it again
    bool keep_more;
    // With train: gradients are requested piece by piece (model_grad without flat); less memory
    bool by_piece;
    // Highest rank of an adapter that a model bound later may have (model_run_bind)
    int64_t lora_rank;
    // Batches may have prefixes; then max_tok counts all tokens of all sequences.
    bool shares;
    // Rows of logits computed at once in scoring and training; 0: what suits the device
    int64_t head_rows;
    int n_set, n_shared;    // of a stage of a pipeline, set by the run that it belongs to; else 0
    // (device, model_run_bytes) memory to work in, borrowed; others may use it between calls.
    // Forward, head and backward of a training step count as one call. NULL: the run takes its own.
    void *mem;
};
/* Scratch for calls on m, which it borrows. NULL: see err. model_run_bytes says beforehand how much
 * memory; RoPE's tables come on top. */
struct model_run *model_run_new(struct model *m, const struct run_limits *limits, struct error *err);
void model_run_free(struct model_run *r);    // NULL is fine
size_t model_run_bytes(const struct model *m, const struct run_limits *limits);
/* Likewise for a stage of a pipeline (model_stage_shape), under the limits of the whole run. */
size_t model_stage_run_bytes(const struct model *stage, const struct run_limits *limits);
/* Between layers, and while it waits for the device, a run calls idle(ctx), so that other work can
 * go on; NULL: none. */
void model_run_idle(struct model_run *r, bool (*idle)(void *ctx, struct error *err), void *ctx);
/* On a team (team.h), a run calls idle(ctx) for device q on the thread that drives it, also while
 * it waits for the team's other devices. */
void model_run_idle_of(struct model_run *r, int q, bool (*idle)(void *ctx, struct error *err), void *ctx);
/* For training a model with experts: load (n_layer, experts; host) is how many rows each expert has
 * had in model_forward_train since the last clearing. It is there after device_sync. Neither does
 * anything for other models. */
MUST_USE bool model_run_load_get(struct model_run *r, int64_t *load, struct error *err);
MUST_USE bool model_run_load_clear(struct model_run *r, struct error *err);
/* Use another model of the same shape from now on (two copies of the weights, a frozen reference,
 * another adapter). */
void model_run_bind(struct model_run *r, struct model *m);

/* Sequences laid end to end; host memory, borrowed for the call. */
struct model_batch {
    int64_t n_seq;
    int64_t n_tok;
    const int32_t *token;    // (n_tok)
    // (n_seq + 1): sequence s is token[cu_tok[s] .. cu_tok[s + 1]), from position 0; none is empty
    const int32_t *cu_tok;
    // (n_seq) for prefills of a model with states: the slot in which each sequence leaves its own, and in which it finds it where it
    // does not begin at position 0
    const int32_t *state;
    // (n_seq) for scoring and training with run_limits.shares; NULL: they share nothing
    const struct shared_prefix *prefix;
};
/* What a sequence shares. Its first n_tok tokens are those of an earlier sequence, seq, which shares
 * none itself. They are computed once, and the batch has only the sequence's other tokens, from
 * position n_tok on. Rows give the bits that they give without sharing; a gradient's sums have
 * another order. */
struct shared_prefix {
    int32_t n_tok;    // 0: the batch has all of the sequence's tokens
    int32_t seq;
};
/* Run whole prompts and keep their keys and values: page (host; n_seq, max_page) names each
 * sequence's pages in order. logits (device; n_seq, vocab) gets the row after each sequence's last
 * token; NULL: not wanted. */
MUST_USE bool model_prefill(struct model_run *r, const struct model_batch *b, struct kv_pool *kv, const int32_t *page, int64_t max_page,
                            float *logits, struct error *err);
/* As model_prefill, where the pages hold the beginning of some sequences already. Sequence s of the
 * batch begins at position start[s] (host; n_seq). scratch (device) has n_seq (max_page + 1) ids.
 * The bits are those of one prefill of the whole sequence. only_last: model_head_look will not ask
 * for rows of this batch, so the last layer finishes only the rows of the logits. */
MUST_USE bool model_prefill_after(struct model_run *r, const struct model_batch *b, const int32_t *start, int32_t *scratch,
                                  struct kv_pool *kv, const int32_t *page, int64_t max_page, float *logits, bool only_last,
                                  struct error *err);
/* One more token of each of n sequences; all pointers (device), so that the call can be part of a
 * graph. */
struct decode_batch {
    int64_t n;
    const int32_t *token;     // (n)
    const int32_t *pos;       // (n) its position in the sequence
    const int32_t *slot;      // (n) page * kv_page_tok + place of that position; -1: not a sequence
    const int32_t *kv_len;    // (n) pos + 1; 0: not a sequence (its logits mean nothing)
    const int32_t *page;      // (n, max_page)
    const int32_t *state;     // (n) of a model with states: the sequence's slot; -1: not a sequence. NULL: the model has none
    int64_t max_page;
    int64_t max_kv;    // upper bound of kv_len; 0: max_page * kv_page_tok
    // rows may be tokens of one sequence, each of which sees the keys of those before it
    bool in_runs;
};
/* logits (device; n, vocab): the row after each token. */
MUST_USE bool model_decode(struct model_run *r, const struct decode_batch *b, struct kv_pool *kv, float *logits, struct error *err);
/* Log-prob of target[i] after row i, at temperature[i], for the rows whose target is not -1 (the
 * others give 0). All arrays (n_tok) in host memory; entropy may be NULL. */
MUST_USE bool model_score(struct model_run *r, const struct model_batch *b, const int32_t *target, const float *temperature, float *logp,
                          float *entropy, struct error *err);

/* ---- training (run_limits.train): forward, perhaps head, backward */
MUST_USE bool model_forward_train(struct model_run *r, const struct model_batch *b, struct error *err);
/* The loss of the tokens just run forward, row by row: row i predicts target[i] (-1: no loss). All
 * host arrays (n_tok).
 */
struct token_loss {
    const int32_t *target;
    const float *temperature;
    // dLoss/dlogp given outright (supervised); NULL: the clipped policy loss of the rest
    const float *coef;
    const float *adv;
    const float *weight;    // its share of the loss; 0: none
    const float *logp_old;
    const float *logp_ref;    // NULL: form.beta is not used
    // NULL: logp - logp_old; else the logarithm of the ratio, one for a whole sequence
    const float *log_ratio;
    const float *rho;    // factor of the policy term; NULL: 1
    struct policy_form form;
    float *logp;       // out: log-prob now; 0 where there is no target
    float *entropy;    // out, or NULL
    float *loss;       // out, or NULL: the token's term, weight included (policy loss only)
    /* For decisions about whole samples: called once in a backward pass, when logp and entropy are
     * known; may change what the pointers above point to, targets and temperatures excepted, and
     * says whether it did. NULL: nothing depends on them. The gradient's bits are those of the loss
     * after it, whatever revise_likely says. */
    bool (*revise)(void *ctx);
    void *revise_ctx;
    // wait for all log-probs first: where they do not fit head_rows, their logits are computed
    // twice
    bool revise_likely;
};
/* Only logp and entropy, after any forward. */
MUST_USE bool model_head(struct model_run *r, const struct token_loss *loss, struct error *err);
/* After any forward, row by row: look(ctx, i, logits) with the logits (vocab) of each row i that
 * has a target, on the host until it returns; line (host; vocab) is used where the host does not
 * read the device's memory. loss->logp is filled in before. */
MUST_USE bool model_head_look(struct model_run *r, const struct token_loss *loss, float *line,
                              void (*look)(void *ctx, int64_t i, const float *logits), void *ctx, struct error *err);
/* Where a backward pass adds the gradient (device; fp32). */
struct model_grad {
    // (model_n_flat) memory for all of it. NULL: memory is requested piece by piece, from the last
    // piece to the first.
    float *flat;
    bool set;    // what flat holds is written over rather than added to
    // Returns memory for the gradient of piece p; NULL: see err. It sets *adds, which is false, if
    // the gradient is to be added to what the memory holds rather than written over it.
    float *(*piece_begin)(void *ctx, int p, bool *adds, struct error *err);
    // All work for the gradient of piece p has been launched.
    bool (*piece_end)(void *ctx, int p, struct error *err);
    void *ctx;
    // (model_n_device) In place of all that, where the model is in slices: where each slice's
    // gradient goes. Its functions are about the slice's pieces, and run on the thread that drives
    // the slice's device. `set` is the whole's.
    const struct model_grad *slice;
};
/* Head, gradient of the loss and the whole backward pass. Each element's own sum begins at 0 and is
 * added to the gradient once. So micro-batches run one after the other into one gradient give the
 * same bits as micro-batches run separately and summed in the same order. */
MUST_USE bool model_backward(struct model_run *r, const struct token_loss *loss, const struct model_grad *grad, struct error *err);
/* Micro-batches to be run, whatever the form of the run: one after the other, or through the stages
 * of a pipeline (stages.h), several at once. Then the functions are called on the threads that
 * drive the stages: for one stage never two at a time, for different stages at once. */
struct model_work {
    int64_t n_micro;
    const struct model_grad *grad;    // NULL: forward only
    void *ctx;
    // Micro-batch k for this stage, borrowed until the next call for it. All stages get the same;
    // a run without stages asks for stage 0's.
    bool (*batch)(void *ctx, int stage, int64_t k, struct model_batch *b, struct error *err);
    // `last`, the run that has the head, has run micro-batch k forward: model_backward into grad; or,
    // where that is NULL, model_head. In the order of k.
    bool (*finish)(void *ctx, int64_t k, struct model_run *last, const struct model_grad *grad, struct error *err);
};
/* With grad->set, which model_run_sets must allow, only the first micro-batch is written over what
 * is there. */
MUST_USE bool model_work_run(struct model_run *r, const struct model_work *w, struct error *err);
/* Can the gradient of a work be set, rather than added to? Stages run several micro-batches at
 * once and only add. */
bool model_run_sets(const struct model_run *r);
/* Fill idle_s (model_n_stage) with the seconds that each stage's device stood still for the others
 * since the last such call, by its own clock. Nothing happens where there are no stages. */
MUST_USE bool model_run_idle_take(struct model_run *r, double *idle_s, struct error *err);
/* Logits (host; n_tok, vocab) of the last forward, for tests on small models. */
MUST_USE bool model_logits(struct model_run *r, float *out, struct error *err);
