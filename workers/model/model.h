/* model.h - a decoder-only transformer (Qwen2, Qwen3, Llama-3): weights, forward for every use, backward
 *
 * One struct model is one copy of the weights on one device, all in one arena described by one table of tensors; the table
 * serves loading, saving, publication, the optimizer's flat gradient and debugging. The forward pass is written once against
 * kernels/ops.h: prefill, decode, scoring and training run the same operations with the same order of every sum, so that a
 * token's log-prob has the same bits wherever it is computed (DESIGN section 4).
 *
 * Everything here is called by the one thread that drives the device. Pointers marked (device) lie in the memory of the ops'
 * device, which on a CPU is the host's. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "workers/model/config.h"

struct ops;            // kernels/ops.h
struct model;
struct model_run;
struct kv_pool;
enum model_dtype { MODEL_F32, MODEL_BF16 };    // of weights and activations

/* ---- weights */
/* Load a Hugging Face directory (config.json, model*.safetensors); every tensor must be there with its shape, extra ones are
 * refused except known buffers. ops is borrowed for the model's life. Returns it for model_free; NULL: see err. */
struct model *model_load(const char *dir, const struct ops *ops, enum model_dtype dtype, struct error *err);
/* A model with weights drawn from seed: normal(0, initializer_range), residual outputs smaller by sqrt(2 n_layer); the same
 * bytes for the same shape, seed and dtype everywhere. */
struct model *model_new_random(const struct model_config *c, uint64_t seed, const struct ops *ops, enum model_dtype dtype,
                               struct error *err);
/* A model of the same shape with weights not set (for a second copy, or to receive published ones). */
struct model *model_new_like(const struct model *m, struct error *err);
void model_free(struct model *m);
const struct model_config *model_config(const struct model *m);
enum model_dtype model_dtype(const struct model *m);
const struct ops *model_ops(const struct model *m);
/* The whole weight arena (device): what is published. Bytes are the same for equal weights. After writing into it call
 * model_weights_changed, which rebuilds what the kernels derive from it (packed panels). */
void *model_weights(struct model *m, size_t *size_bytes);
MUST_USE bool model_weights_changed(struct model *m, struct error *err);
/* Copy src's weights (same shape, same device). */
MUST_USE bool model_weights_copy(struct model *dst, const struct model *src, struct error *err);
/* A 64-bit hash of the weights, to compare copies. */
uint64_t model_weights_hash(const struct model *m);
/* Write model.safetensors (or 5 GB shards with an index) and config.json into dir, which exists; transformers loads it. */
MUST_USE bool model_save(const struct model *m, const char *dir, struct error *err);
/* The same from a host copy of the arena, so that a snapshot can be written later by another thread. */
MUST_USE bool model_save_copy(const struct model *m, const void *weights, const char *dir, struct error *err);

/* One named tensor. Fused products ([q|k|v], [gate|up]) are neighbours in the arena, one row after the other. */
struct tensor {
    char name[96];           // Hugging Face name
    int n_dim;
    int64_t dim[2];
    int64_t n_elem;
    size_t offset_bytes;     // into the weight arena
    int64_t offset_elem;     // into flat fp32 buffers (gradient, masters, moments): the arena's order without padding
};
int64_t model_n_tensor(const struct model *m);
const struct tensor *model_tensor(const struct model *m, int64_t i);
int64_t model_n_param(const struct model *m);      // elements of the flat buffers: all tensors, the tied head once

/* ---- paged keys and values */
#define KV_BLOCK_TOK 64      // tokens a block
/* A pool of n_block blocks for all layers; NULL: see err. kv_pool_bytes tells the size beforehand. */
struct kv_pool *kv_pool_new(const struct model *m, int64_t n_block, struct error *err);
void kv_pool_free(struct kv_pool *kv);
size_t kv_block_bytes(const struct model *m);      // one block, keys and values of all layers
int64_t kv_pool_n_block(const struct kv_pool *kv);
/* Copy block src to dst in every layer: a group shares its prompt's full blocks and copies the last, partly filled one. */
void kv_block_copy(struct kv_pool *kv, int32_t dst, int32_t src);

/* ---- running it */
/* What a run may be asked for; memory is taken once from this. */
struct run_limits {
    int64_t max_tok;         // packed tokens of one prefill, scoring or training call, or sequences of one decode
    int64_t max_seq;         // sequences of one call
    int64_t max_seq_tok;     // longest sequence, prompt and completion
    bool train;              // keep what the backward pass needs
    bool recompute_block;    // with train: keep only block inputs
    int64_t head_chunk;      // rows of logits computed at once in scoring and training; 0: 1024
};
/* Scratch for calls on m, which it borrows. NULL: see err. model_run_bytes tells the memory beforehand. */
struct model_run *model_run_new(struct model *m, const struct run_limits *limits, struct error *err);
void model_run_free(struct model_run *r);
size_t model_run_bytes(const struct model *m, const struct run_limits *limits);
/* Use another model of the same shape from now on (two copies of the weights). */
void model_run_bind(struct model_run *r, struct model *m);

/* Sequences laid end to end; host memory, borrowed for the call. */
struct model_batch {
    int64_t n_seq;
    int64_t n_tok;
    const int32_t *token;        // (n_tok)
    const int32_t *cu_tok;       // (n_seq + 1): sequence s is token[cu_tok[s] .. cu_tok[s + 1]), from position 0
};
/* Run whole prompts and keep their keys and values: block_table (n_seq, max_block) names each sequence's blocks in order.
 * logits (device; n_seq, vocab) fp32 gets the row after each sequence's last token; NULL: not wanted. */
MUST_USE bool model_prefill(struct model_run *r, const struct model_batch *b, struct kv_pool *kv, const int32_t *block_table,
                            int64_t max_block, float *logits, struct error *err);
/* One token more for each of n_seq sequences: token[s] stands at position pos[s]; its block is in the table already. */
MUST_USE bool model_decode(struct model_run *r, int64_t n_seq, const int32_t *token, const int32_t *pos, struct kv_pool *kv,
                           const int32_t *block_table, int64_t max_block, float *logits, struct error *err);
/* Log-prob of target[i] after row i, at temperature[i], for the rows whose target is not -1 (others give 0). All arrays (n_tok)
 * in host memory; entropy may be NULL. */
MUST_USE bool model_score(struct model_run *r, const struct model_batch *b, const int32_t *target, const float *temperature,
                          float *logp, float *entropy, struct error *err);

/* ---- training (run_limits.train) */
/* Forward that keeps activations. Then any number of model_logits_rows, then model_loss_backward. */
MUST_USE bool model_forward_train(struct model_run *r, const struct model_batch *b, struct error *err);
/* The policy loss of one micro-batch, token by token: how dLoss/dlogp comes from the log-prob just computed. */
struct token_loss {
    const int32_t *target;       // (n_tok) host: the next token; -1: this row has no loss
    const float *temperature;    // (n_tok)
    /* Called for each chunk of rows with their log-probs, entropies (host): fills coef = dLoss/dlogp. Must depend on nothing
     * but its rows. */
    void (*coef)(void *arg, int64_t row0, int64_t n, const float *logp, const float *entropy, float *coef);
    void *arg;
};
/* Head forward, loss gradient and the whole backward pass; adds to grad. grad (device): (model_n_param) fp32. */
MUST_USE bool model_backward(struct model_run *r, const struct token_loss *loss, float *grad, struct error *err);
/* Logits (host, fp32; n_tok, vocab) of the last model_forward_train, for tests on small models. */
MUST_USE bool model_logits(struct model_run *r, float *out, struct error *err);
