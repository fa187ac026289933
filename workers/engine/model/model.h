/* model.h - a decoder-only transformer of one of config.h's families: weights, forward for every use, backward
 *
 * One struct model is one copy of the weights on one device, all in one arena described by one table of tensors; the
 * table serves loading, saving, publication, the optimizer's flat buffers and debugging. The forward pass is written
 * once against kernels/ops.h: prefill, decode, scoring and training run the same operations with the same order of
 * every sum, so that a token's log-prob has the same bits wherever it is computed.
 *
 * Everything here is called by the one thread that drives the device. Pointers marked (device) point into the device's
 * memory, which on a CPU is the host's; work on them is asynchronous on CUDA (device_sync). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/ops.h"
#include "protocol/base/error.h"
#include "workers/engine/model/config.h"

struct model;
struct model_run;
struct kv_pool;
struct shards;

/* ---- weights */
/* Load a Hugging Face directory (config.json, model*.safetensors) as dtype; every tensor must be there with its shape,
 * and none that the model does not have. dev is borrowed for the model's life. Returns it for model_free; NULL: see
 * err. */
struct model *model_load(const char *dir, struct device *dev, enum dtype dtype, struct error *err);
/* Would model_load find all of that in the directory? Reads only the files' headers, no weights, so it is quick for
 * every size. c: the parsed config.json. */
MUST_USE bool model_files_check(const char *dir, struct model_config *c, struct error *err);
/* A model with weights drawn from seed: matrices normal(0, 1 / sqrt(n_in)), embedding normal(0, initializer_range),
 * outputs into the residual stream divided by sqrt(2 n_layer), norms 1, biases 0; the same bytes for the same shape,
 * seed and dtype. */
struct model *model_new_random(const struct model_config *c, uint64_t seed, struct device *dev, enum dtype dtype, struct error *err);
/* The same models with their weights still where they are, in the files or in the seed: shapes, until memory is taken for the whole
 * (model_weights_take, model_share), for shards (model_keep) or for slices (model_team, team.h), and filled. Files that are open for that
 * belong to the model. No device ever has more than its part; the first one has a piece of the flat order besides. */
struct model *model_files_open(const char *dir, struct device *dev, enum dtype dtype, struct error *err);
struct model *model_random_open(const struct model_config *c, uint64_t seed, struct device *dev, enum dtype dtype, struct error *err);
/* A model of the shape of `of` whose weights are `of`'s, which is whole and must stay as it is until they are taken. */
struct model *model_like_open(const struct model *of, struct error *err);
bool model_is_elsewhere(const struct model *m);    // such a model, whose weights have not been taken
/* Take memory for such a model's weights and bring them there: the whole, or slices where it has a team. Others have theirs already. After a
 * failure m can only be freed. */
MUST_USE bool model_weights_take(struct model *m, struct error *err);
/* A model of this shape with all weights 0, to receive published ones. */
struct model *model_new_empty(const struct model_config *c, struct device *dev, enum dtype dtype, struct error *err);
/* A model of this shape without weights or handles, for questions about sizes, for a team whose devices have slices of the weights only
 * (team.h), and for model_free. */
struct model *model_new_shape(const struct model_config *c, struct device *dev, enum dtype dtype, struct error *err);
/* The same of m's shape, ids and sums, for a team (team.h) that takes m's weights. Not of a model with an adapter. */
struct model *model_shape_like(const struct model *m, struct error *err);
/* A model of the same shape with all weights 0 (for a second copy, or to receive published ones). With an adapter: the same base,
 * which must outlive it, with an adapter of its own. */
struct model *model_new_like(const struct model *m, struct error *err);
void model_free(struct model *m);    // NULL is fine
const struct model_config *model_config(const struct model *m);
enum dtype model_dtype(const struct model *m);
struct device *model_device(const struct model *m);
/* Ids that can be sampled: [0, n_live); those above (rows that only pad the embedding) have probability 0 in sampler
 * and trainer alike. The config's vocab unless set. */
int64_t model_n_live(const struct model *m);
void model_n_live_set(struct model *m, int64_t n_live);
/* Sum over heads (o_proj) and over columns of the MLP (down_proj) in this many parts, added as a tree (ops.h, weight_new); 0, as the
 * model is made: in the device's own order. Other parts give other bits; sampler and trainer must have the same. Models with the same
 * parts have the same bits on any team (team.h). Before an adapter, a team or a run is made. */
MUST_USE bool model_parts_set(struct model *m, int parts, struct error *err);
/* No sequence will have more than n_tok tokens, prompt and completion. longrope takes its long frequencies for all sequences if that is
 * more than original_max_position_embeddings, else its short ones, which stand until this is called. The choice is one for sampler, trainer
 * and reference: call it before a run, a copy or an adapter is made of the model. transformers chooses in each call by its longest
 * sequence; then a token's log-prob would depend on what comes after it, and pages of a prompt could not be kept. vLLM chooses like
 * this, by max_model_len. */
void model_length_set(struct model *m, int64_t n_tok);
/* The whole weight arena (device), which is what is published; of a model with an adapter the adapter's (lora.h), and so for
 * everything below that is about weights, tensors, the flat order and its pieces. Equal weights are equal bytes. After writing into it
 * call model_weights_changed, which makes the back end repack its matrices. */
void *model_weights(const struct model *m, size_t *size_bytes);
size_t model_weight_bytes(const struct model *m);    // of all of them, also where only shards are kept
bool model_is_whole(const struct model *m);          // it has that arena, not shards, slices or a shape only
/* Free the arena, or let go of what is elsewhere. From then on m is a shape, as of model_new_shape, or, with a team, slices only
 * (team.h). Before a run, a trainer or a publication is made with it. Not of a model with an adapter. */
void model_weights_drop(struct model *m);
MUST_USE bool model_weights_changed(struct model *m, struct error *err);
/* Copy src's weights (same shape and dtype, same first device): from whole ones or slices, and for slices from shards, too. */
MUST_USE bool model_weights_copy(struct model *dst, const struct model *src, struct error *err);
/* A 64-bit hash of the weights, to compare copies; waits for the device. */
MUST_USE bool model_weights_hash(const struct model *m, uint64_t *hash, struct error *err);
/* Write model.safetensors (or shards of about 5 GB with an index) and config.json into dir, which exists; of a model with an
 * adapter adapter_model.safetensors and adapter_config.json. */
MUST_USE bool model_save(const struct model *m, const char *dir, struct error *err);
/* The same from a host copy of the arena, so that a snapshot can be written later; reads only constant parts of m, so any
 * thread may call it. */
MUST_USE bool model_save_copy(const struct model *m, const void *weights, const char *dir, struct error *err);

/* Open the files that model_save has written into dir. Returns them for shards_close. */
struct shards *model_shards(const struct model *m, const char *dir, struct error *err);

/* One named tensor. The parts of fused products (q, k, v; gate, up) are neighbours in the arena, row after row. */
struct tensor {
    char name[96];    // Hugging Face name
    int n_dim;
    int64_t dim[2];
    int64_t n_elem;
    int64_t offset;    // elements, into the weight arena and into every flat fp32 buffer (gradient, masters, moments)
};
int64_t model_n_tensor(const struct model *m);
const struct tensor *model_tensor(const struct model *m, int64_t i);
/* Elements of the arena and of a flat buffer: all tensors (the tied head once) and the gaps between them, which hold 0. */
int64_t model_n_flat(const struct model *m);
/* The flat order in pieces; a backward pass finishes the gradient from the last piece to the first. Piece 0 is the embedding,
 * piece 1 + l is layer l (the last layer's includes the final norm), and an untied head is the last piece. Of an adapter piece l is
 * layer l, and there are no others. */
int model_n_piece(const struct model *m);
int64_t model_piece(const struct model *m, int p, int64_t *first);    // its elements; *first: where it begins
/* Weights of which this rank keeps its shards only: of piece p the elements first[p] .. first[p] + n[p] - 1, at at[p] in memory of n_kept
 * elements (n_kept the same on all ranks). */
struct model_cut {
    const int64_t *n, *first, *at;    // (model_n_piece)
    int64_t n_kept;
};
/* Keep only those from now on, in memory that other processes of this host may open; whole pieces come as a run needs them. Before a
 * run is made. Of whole weights there must be room for both; those that are elsewhere come a piece at a time. A slice that has no memory
 * yet is filled with the others (model_weights_take of the team's model). After a failure the model can only be freed. */
MUST_USE bool model_keep(struct model *m, const struct model_cut *cut, struct error *err);
size_t model_kept_bytes(const struct model *m, int64_t n_kept);    // what such a model takes: shards, and places for pieces in use
bool model_keeps_shards(const struct model *m);
size_t model_held_bytes(const struct model *m);    // of the device's memory, for the weights as they are kept now
void *model_kept(const struct model *m, size_t *size_bytes, const struct mem_handle **h);    // (device) and their handle
/* How whole pieces come: piece asks for piece p, from all ranks' shards, to be copied to `to` by a lane, or by others who are waited for
 * then (await). Needed before the first run. */
struct model_fetch {
    bool (*piece)(void *ctx, int p, void *to, struct error *err);
    int lane;
    void *ctx;
    bool (*stall)(void *ctx, bool begins, struct error *err);    // called before and after the device is made to wait for a piece; or NULL
    bool (*await)(void *ctx, int p, struct error *err);          // called first: piece p is there when the lane has done its part; or NULL
};
void model_fetches(struct model *m, const struct model_fetch *fetch);
/* Piece p of weights of which only shards are kept, whole on the device, until the next but one is asked for. NULL: see err. */
const void *model_piece_whole(struct model *m, int p, struct error *err);
/* Whole pieces that are there are not used again. Ranks that wait for each other in each fetch must ask for the same ones. */
void model_pieces_forget(struct model *m);
/* Move the weights, or bring those that are elsewhere, into memory that other processes of this host may open, of model_weights's size; h
 * stays the model's. A slice that has no memory yet is filled later, as with model_keep. Call it before a run, a trainer or a publication
 * is made with them. NULL: see err. */
const struct mem_handle *model_share(struct model *m, struct error *err);
const struct mem_handle *model_shared_handle(const struct model *m);    // the same h; NULL: the weights are not in such memory
/* The other side: compute with the memory that another process's model_share has, of this shape and type, in place of weights of its own
 * or of those attached before. m comes from model_new_shape; its weights are only read. A run that was made with it is bound again
 * (model_run_bind). model_weights_changed after each change. After a failure, and after model_detach, it has no weights. */
MUST_USE bool model_attach(struct model *m, const struct mem_handle *h, struct error *err);
void model_detach(struct model *m);

/* ---- paged keys and values (a page holds device.kv_page_tok tokens of all layers) */
/* A pool of n_page pages, in mem (device; n_page kv_pool_page_bytes; borrowed) or, with NULL, memory of its own. Others may
 * use mem while no page holds anything. NULL: see err. */
struct kv_pool *kv_pool_new(const struct model *m, int64_t n_page, void *mem, struct error *err);
void kv_pool_free(struct kv_pool *kv);               // NULL is fine
size_t kv_pool_page_bytes(const struct model *m);    // one page, keys and values of all layers
/* Copy page src[i] to dst[i] in every layer; src, dst (device; n). A group shares its prompt's full pages and copies
 * the last, partly filled one. */
MUST_USE bool kv_pool_copy(struct kv_pool *kv, const int32_t *dst, const int32_t *src, int64_t n, struct error *err);

/* ---- running */
/* Upper bounds on what a run is asked for; its memory is allocated once according to them. */
struct run_limits {
    int64_t max_tok;         // packed tokens of one prefill, scoring or training call, or sequences of one decode
    int64_t max_seq;         // sequences of one call
    int64_t max_seq_tok;     // longest sequence, prompt and completion
    bool train;              // keep what the backward pass needs
    bool recompute_block;    // with train: keep only each block's input and run the block's forward again
    bool keep_more;          // with train: keep what norms and SwiGLU give, too, rather than compute it again
    bool by_piece;           // with train: gradients are requested piece by piece (model_grad without flat); less memory
    int64_t lora_rank;       // highest rank of an adapter that a model bound later may have (model_run_bind)
    bool shares;             // batches may have prefixes; max_tok is of all tokens of all sequences then
    int64_t head_rows;       // rows of logits computed at once in scoring and training; 0: what suits the device
    int n_set, n_shared;     // of a stage of a pipeline, set by the run that it belongs to; else 0
    void *mem;               // (device) of model_run_bytes to work in, borrowed; others may use it between calls (forward, head
                             // and backward of a training step count as one call). NULL: its own
};
/* Scratch for calls on m, which it borrows. NULL: see err. model_run_bytes says beforehand how much memory; RoPE's tables come
 * on top. */
struct model_run *model_run_new(struct model *m, const struct run_limits *limits, struct error *err);
void model_run_free(struct model_run *r);    // NULL is fine
size_t model_run_bytes(const struct model *m, const struct run_limits *limits);
/* Between layers, and while it waits for the device, a run calls idle(ctx), so that other work can go on; NULL: none. */
void model_run_idle(struct model_run *r, bool (*idle)(void *ctx, struct error *err), void *ctx);
/* The same of device q of a run on a team (team.h), on the thread that drives it; also while it waits for the team's other devices. */
void model_run_idle_of(struct model_run *r, int q, bool (*idle)(void *ctx, struct error *err), void *ctx);
/* Use another model of the same shape from now on (two copies of the weights, a frozen reference, another adapter). */
void model_run_bind(struct model_run *r, struct model *m);

/* Sequences laid end to end; host memory, borrowed for the call. */
struct model_batch {
    int64_t n_seq;
    int64_t n_tok;
    const int32_t *token;                  // (n_tok)
    const int32_t *cu_tok;                 // (n_seq + 1): sequence s is token[cu_tok[s] .. cu_tok[s + 1]), from position 0; none is empty
    const struct shared_prefix *prefix;    // (n_seq) of scoring and training with run_limits.shares; NULL: they share nothing
};
/* The first n_tok tokens of a sequence are those of an earlier one, seq, which shares none itself: they are computed once, and the batch has
 * only the others of it, from position n_tok. The bits of what rows give are those without sharing; a gradient's sums have another order. */
struct shared_prefix {
    int32_t n_tok, seq;    // 0: it has all of its tokens
};
/* Run whole prompts and keep their keys and values: page (host; n_seq, max_page) names each sequence's pages in order.
 * logits (device; n_seq, vocab) gets the row after each sequence's last token; NULL: not wanted. */
MUST_USE bool model_prefill(struct model_run *r, const struct model_batch *b, struct kv_pool *kv, const int32_t *page, int64_t max_page,
                            float *logits, struct error *err);
/* The same where the pages hold the beginning of some sequences already: sequence s of the batch begins at position start[s] (host;
 * n_seq). scratch (device): n_seq (max_page + 1) ids. The bits are those of one prefill of the
 * whole sequence. only_last: model_head_look will not ask for rows of this batch, so the last layer finishes only those of the logits. */
MUST_USE bool model_prefill_after(struct model_run *r, const struct model_batch *b, const int32_t *start, int32_t *scratch,
                                  struct kv_pool *kv, const int32_t *page, int64_t max_page, float *logits, bool only_last,
                                  struct error *err);
/* One more token of each of n sequences; all pointers (device), so that the call can be part of a graph. */
struct decode_batch {
    int64_t n;
    const int32_t *token;     // (n)
    const int32_t *pos;       // (n) its position in the sequence
    const int32_t *slot;      // (n) page * kv_page_tok + place of that position; -1: not a sequence
    const int32_t *kv_len;    // (n) pos + 1; 0: not a sequence (its logits mean nothing)
    const int32_t *page;      // (n, max_page)
    int64_t max_page;
    int64_t max_kv;    // upper bound of kv_len; 0: max_page * kv_page_tok
    bool in_runs;      // rows may be tokens of one sequence, each of which sees the keys of those before it
};
/* logits (device; n, vocab): the row after each token. */
MUST_USE bool model_decode(struct model_run *r, const struct decode_batch *b, struct kv_pool *kv, float *logits, struct error *err);
/* Log-prob of target[i] after row i, at temperature[i], for the rows whose target is not -1 (the others give 0). All
 * arrays (n_tok) in host memory; entropy may be NULL. */
MUST_USE bool model_score(struct model_run *r, const struct model_batch *b, const int32_t *target, const float *temperature, float *logp,
                          float *entropy, struct error *err);

/* ---- training (run_limits.train): forward, perhaps head, backward */
MUST_USE bool model_forward_train(struct model_run *r, const struct model_batch *b, struct error *err);
/* The loss of the tokens just run forward, row by row: row i predicts target[i] (-1: no loss). All host arrays (n_tok).
 */
struct token_loss {
    const int32_t *target;
    const float *temperature;
    const float *coef;    // dLoss/dlogp given outright (supervised); NULL: the clipped policy loss of the rest
    const float *adv;
    const float *weight;    // its share of the loss; 0: none
    const float *logp_old;
    const float *logp_ref;     // NULL: beta is not used
    const float *log_ratio;    // NULL: logp - logp_old; else the logarithm of the ratio, one for a whole sequence
    const float *rho;          // factor of the policy term; NULL: 1
    enum clip_form clip;
    enum kl_form kl;
    float clip_low, clip_high, beta;
    float *logp;       // out: log-prob now; 0 where there is no target
    float *entropy;    // out, or NULL
    float *loss;       // out, or NULL: the token's term, weight included (policy loss only)
    /* For decisions about whole samples: called once in a backward pass, when logp and entropy are known; may change what the pointers
     * above point to, targets and temperatures excepted, and says whether it did. NULL: nothing depends on them. The gradient's bits are
     * those of the loss after it, whatever revise_likely says. */
    bool (*revise)(void *ctx);
    void *revise_ctx;
    bool revise_likely;    // wait for all log-probs first: where they do not fit head_rows, their logits are computed twice
};
/* Only logp and entropy, after any forward. */
MUST_USE bool model_head(struct model_run *r, const struct token_loss *loss, struct error *err);
/* After any forward, row by row: look(ctx, i, logits) with the logits (vocab) of each row i that has a target, on the host until it
 * returns; line (host; vocab) is used where the host does not read the device's memory. loss->logp is filled in before. */
MUST_USE bool model_head_look(struct model_run *r, const struct token_loss *loss, float *line,
                              void (*look)(void *ctx, int64_t i, const float *logits), void *ctx, struct error *err);
/* Where a backward pass adds the gradient (device; fp32). */
struct model_grad {
    float *flat;    // (model_n_flat) all of it; NULL: requested piece by piece, from the last to the first
    bool set;       // of flat: what it holds is written over rather than added to
    /* Memory for piece p; NULL: see err. *adds, false before: the gradient is added to what it holds, else that is written over. */
    float *(*piece_begin)(void *ctx, int p, bool *adds, struct error *err);
    bool (*piece_end)(void *ctx, int p, struct error *err);    // all its work has been launched
    void *ctx;
    /* (model_n_device) instead, where the model is in slices: of each its own, on its device, by the slice's pieces; called on the thread
     * that drives the device */
    const struct model_grad *slice;
};
/* Head, loss gradient and the whole backward pass; adds to the flat gradient, or sets the pieces or adds to them: each element's own
 * sum begins at 0 and is added once, so micro-batches run one after the other into one gradient give the same bits as
 * micro-batches run separately and summed in the same order. */
MUST_USE bool model_backward(struct model_run *r, const struct token_loss *loss, const struct model_grad *grad, struct error *err);
/* Logits (host; n_tok, vocab) of the last forward, for tests on small models. */
MUST_USE bool model_logits(struct model_run *r, float *out, struct error *err);
