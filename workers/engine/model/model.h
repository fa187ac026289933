/* model.h - the weights of a decoder-only transformer of one of config.h's families (pass.h runs
 * it)
 *
 * One struct model is one copy of the weights. Where they are depends on how the model was made:
 *
 *   whole       in one arena of the model's device
 *   shards      this rank's shards only; whole pieces come while a run needs them (model_keep)
 *   slices      cut by rows and columns over the devices of a team (team.h)
 *   stages      cut by layers over several devices (stages.h)
 *   elsewhere   still in files, in a seed or in another model, until memory is taken for them
 *   a shape     nowhere: the table of tensors only, for questions about sizes
 *
 * One table of tensors describes the arena. It serves loading, saving, publication, the optimizer's
 * flat buffers and debugging.
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
#include "workers/engine/model/config.h"

struct model;
struct shards;

/* ---- making a model. Each function returns it for model_free; NULL: see err. dev is borrowed for
 * the model's life. */
/* Load a Hugging Face directory (config.json, model*.safetensors) as dtype. Every tensor of the
 * model must be there with its shape, and no other. */
struct model *model_load(const char *dir, struct device *dev, enum dtype dtype, struct error *err);
/* Would model_load find all of that in the directory? Reads only the files' headers, so it is quick
 * for every size. *c gets the parsed config.json. */
MUST_USE bool model_files_check(const char *dir, struct model_config *c, struct error *err);
/* Make a model with weights drawn from seed: matrices normal(0, 1 / sqrt(n_in)), embedding
 * normal(0, initializer_range), outputs into the residual stream divided by sqrt(2 n_layer), norms
 * 1, biases 0. Equal shape, seed and dtype give
 * the same bytes. */
struct model *model_new_random(const struct model_config *c, uint64_t seed, struct device *dev, enum dtype dtype, struct error *err);
/* As model_load and model_new_random, but the weights stay elsewhere: in the files, which remain
 * open, or in the seed. The model is a shape until memory is taken and filled for the whole
 * (model_weights_take, model_share), for shards (model_keep) or for slices (model_team, team.h). No
 * device ever has more than its part; the first one has room for a piece of the flat order
 * besides. */
struct model *model_files_open(const char *dir, struct device *dev, enum dtype dtype, struct error *err);
struct model *model_random_open(const struct model_config *c, uint64_t seed, struct device *dev, enum dtype dtype, struct error *err);
/* Make a model of the shape of `of` whose weights are elsewhere, in `of`. `of` is whole, and must
 * stay as it is until the weights are taken. */
struct model *model_like_open(const struct model *of, struct error *err);
/* Make a model of m's shape that takes m's weights later. Where these are elsewhere, they become the
 * new model's, and m is a shape; else m must stay as it is, as with model_like_open. Returns it for
 * model_free; NULL: see err. */
struct model *model_source_pass(struct model *m, struct error *err);
bool model_is_elsewhere(const struct model *m);    // its weights have not been taken yet
/* Take memory for weights that are elsewhere and bring them there: the whole, or slices where the
 * model has a team. A model whose weights are not elsewhere stays as it is. After a failure m can
 * only be freed. */
MUST_USE bool model_weights_take(struct model *m, struct error *err);
/* Make a model of this shape with all weights 0, to receive published ones. */
struct model *model_new_empty(const struct model_config *c, struct device *dev, enum dtype dtype, struct error *err);
/* Make a shape. It answers questions about sizes, and can become the model of a team whose devices
 * have slices (team.h). */
struct model *model_new_shape(const struct model_config *c, struct device *dev, enum dtype dtype, struct error *err);
/* Make a shape like m, with m's n_live and parts, for a team (team.h) that takes m's weights. m
 * must not have an adapter. */
struct model *model_shape_like(const struct model *m, struct error *err);
/* Make a model of m's shape with all weights 0: a second copy, or one to receive published weights.
 * If m has an adapter, the new model has an adapter of its own on m's base, which must outlive
 * it. */
struct model *model_new_like(const struct model *m, struct error *err);
void model_free(struct model *m);    // NULL is fine

/* ---- what a model is */
const struct model_config *model_config(const struct model *m);
enum dtype model_dtype(const struct model *m);
struct device *model_device(const struct model *m);
/* Ids that can be sampled are [0, n_live). Those above only pad the embedding; they have
 * probability 0 in sampler and trainer alike. Unless set, n_live is the config's vocab. */
int64_t model_n_live(const struct model *m);
void model_n_live_set(struct model *m, int64_t n_live);
/* Cut the sums over heads (o_proj) and over columns of the MLP (down_proj) in this many parts,
 * which are added as a tree (ops.h, weight_new). 0, as the model is made: the sums are in the
 * device's own order.
 *
 * Another number of parts gives other bits, so sampler and trainer must have the same. Models with
 * the same parts have the same bits on any team (team.h). Call it before an adapter, a team or a
 * run is made. */
MUST_USE bool model_parts_set(struct model *m, int parts, struct error *err);
/* Promise that no sequence will have more than n_tok tokens, prompt and completion. If that is more
 * than original_max_position_embeddings, longrope takes its long frequencies for all sequences,
 * else its short ones. Until the call it takes the short ones.
 *
 * The choice is one for sampler, trainer and reference: call it before a run, a copy or an adapter
 * is made of the model. vLLM chooses in this way, by max_model_len. transformers chooses in each
 * call by its longest sequence; then a token's log-prob would depend on what comes after it, and
 * pages of a prompt could not be kept. */
void model_length_set(struct model *m, int64_t n_tok);

/* ---- the weights. For a model with an adapter (lora.h) all of this is about the adapter. */
/* The whole arena (device), which is what is published; the model's. Equal weights are equal bytes.
 * After writing into it call model_weights_changed. */
void *model_weights(const struct model *m, size_t *size_bytes);
size_t model_weight_bytes(const struct model *m);    // of the whole, wherever it is
bool model_is_whole(const struct model *m);          // it has that arena
/* The weights have been written: the back end repacks its matrices, and a team's slices are
 * filled. */
MUST_USE bool model_weights_changed(struct model *m, struct error *err);
/* Copy src's weights to dst, of the same shape, dtype and first device. src may be whole, in slices
 * or elsewhere. If dst is in slices, src may also keep shards. */
MUST_USE bool model_weights_copy(struct model *dst, const struct model *src, struct error *err);
/* A 64-bit hash of the whole weights, to compare copies. Waits for the device. */
MUST_USE bool model_weights_hash(const struct model *m, uint64_t *hash, struct error *err);
/* Write model.safetensors (or shards of about 5 GB with an index) and config.json into dir, which
 * exists. An adapter is written as adapter_model.safetensors and adapter_config.json. */
MUST_USE bool model_save(const struct model *m, const char *dir, struct error *err);
/* As model_save, from `weights`, a host copy of the arena, so that a snapshot can be written later.
 * Reads only constant parts of m, so any thread may call it. */
MUST_USE bool model_save_copy(const struct model *m, const void *weights, const char *dir, struct error *err);
/* Open the files that model_save has written into dir. Returns them for shards_close; NULL: see
 * err. */
struct shards *model_shards(const struct model *m, const char *dir, struct error *err);

/* One named tensor. The parts of fused products (q, k, v; gate, up) are neighbours in the arena,
 * row after row. */
struct tensor {
    char name[96];    // Hugging Face name
    int n_dim;        // 1 to 3
    int64_t dim[3];
    int64_t n_elem;
    // Where it begins, in elements, in the arena and in every flat fp32 buffer (gradient, masters,
    // moments).
    int64_t offset;
};
/* Columns of a matrix, or of each of several; 1 of a vector. */
static inline int64_t tensor_cols(const struct tensor *t)
{
    return t->n_dim > 1 ? MAX(t->dim[t->n_dim - 1], (int64_t)1) : 1;
}
int64_t model_n_tensor(const struct model *m);
const struct tensor *model_tensor(const struct model *m, int64_t i);
/* Elements of the arena and of a flat buffer: all tensors (a tied head once) and the gaps between
 * them, which hold 0. */
int64_t model_n_flat(const struct model *m);
/* The flat order is cut into pieces. A backward pass finishes the gradient from the last piece to
 * the first. Piece 0 is the embedding, piece 1 + l is layer l (the last layer's includes the final
 * norm), and an untied head is the last piece. An adapter has only layers: its piece l is layer
 * l. */
int model_n_piece(const struct model *m);
/* Returns the elements of piece p; *first is where it begins. */
int64_t model_piece(const struct model *m, int p, int64_t *first);

/* ---- weights in shards */
/* Which shards this rank keeps: of each piece p the elements first[p] .. first[p] + n[p] - 1. */
struct model_cut {
    const int64_t *n, *first;    // (model_n_piece)
    const int64_t *at;           // (model_n_piece) where a shard begins in the memory of all
    int64_t n_kept;              // elements of that memory; the same on all ranks
};
/* Keep only these shards from now on, in memory that other processes of this host may open. Whole
 * pieces come as a run needs them. Call it before a run is made.
 *
 * For whole weights there must be room for both. Weights that are elsewhere come a piece at a time.
 * A slice that has no memory yet is filled later, with the other slices (model_weights_take of the
 * team's model). After a failure the model can only be freed. */
MUST_USE bool model_keep(struct model *m, const struct model_cut *cut, struct error *err);
/* Bytes of a model that keeps n_kept elements: shards, and places for pieces in use. */
size_t model_kept_bytes(const struct model *m, int64_t n_kept);
bool model_keeps_shards(const struct model *m);
/* Bytes of the first device's memory that the weights take as they are held now. */
size_t model_held_bytes(const struct model *m);
/* Returns the shards (device), the model's; *h is their handle. */
void *model_kept(const struct model *m, size_t *size_bytes, const struct mem_handle **h);
/* How whole pieces come. */
struct model_fetch {
    // Ask for piece p, from all ranks' shards, to be copied to `to`: by the lane, or by other
    // means, which await waits for.
    bool (*piece)(void *ctx, int p, void *to, struct error *err);
    int lane;
    void *ctx;
    // Called before and after the device is made to wait for a piece. NULL: nothing.
    bool (*stall)(void *ctx, bool begins, struct error *err);
    // Called before that: returns when piece p is there or on the lane. NULL: it is on the lane at
    // once.
    bool (*await)(void *ctx, int p, struct error *err);
};
/* Say how whole pieces come, before the first run. fetch is copied. */
void model_fetches(struct model *m, const struct model_fetch *fetch);
/* Returns piece p of kept weights, whole, on the device. It stays until the next but one is asked
 * for. NULL: see err. */
const void *model_piece_whole(struct model *m, int p, struct error *err);
/* Forget which whole pieces are there, so that they are not used again. Ranks that wait for each
 * other in each fetch must ask for the same pieces. */
void model_pieces_forget(struct model *m);

/* ---- weights that other processes see */
/* Put the weights into memory that other processes of this host may open, of model_weights's size:
 * move them, or bring those that are elsewhere. A slice that has no memory yet gets it, and is
 * filled later, as with model_keep. Call it before a run, a trainer or a publication is made with
 * them. Returns the memory's handle, m's; NULL: see err. */
const struct mem_handle *model_share(struct model *m, struct error *err);
/* Returns that handle again; NULL: the weights are not shared. */
const struct mem_handle *model_shared_handle(const struct model *m);
/* The other side: compute with the memory that h opens, in which another process's model_share has
 * put weights of this shape and dtype. It takes the place of the weights that m has or has attached
 * before. m comes from model_new_shape, and its weights are only read.
 *
 * Bind a run that was made with m again (model_run_bind), and call model_weights_changed after each
 * change. After a failure, and after model_detach, m has no weights. */
MUST_USE bool model_attach(struct model *m, const struct mem_handle *h, struct error *err);
void model_detach(struct model *m);
