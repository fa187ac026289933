/* model.h - the weights of a decoder-only transformer of one of config.h's families (pass.h runs it)
 *
 * One struct model is one copy of the weights on one device, all in one arena described by one table of tensors. The table serves loading,
 * saving, publication, the optimizer's flat buffers and debugging.
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
struct shards;

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
