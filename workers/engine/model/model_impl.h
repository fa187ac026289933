/* model_impl.h - shared by the files of model/ and pass/: the layout of a model in memory */
#pragma once
#include "workers/engine/model/model.h"

#define AT_NONE (-1)
/* Offsets (elements) of a layer's parts in the arena and in flat buffers; AT_NONE: the family has none. A fused part
 * starts where its first tensor does; a tensor that the files hold fused is one. */
struct layer_at {
    int64_t first;    // of the layer's parts
    int64_t ln1, qkv, qkv_bias, q_norm, k_norm, o, o_bias, ln2, gate_up, gate_up_bias, down, down_bias;
    int64_t post1, post2;    // norms of what the halves add
};
struct layer_w {
    struct weight *qkv, *o, *gate_up, *down;    // handles of the device, owned by the model
};
/* Memory that holds one piece of the weights at a time (bound.c). */
struct bound {
    char *mem;
    int piece;                   // what it holds, or what is on its way; -1: nothing that counts
    bool coming;                 // the device has not been told to wait for it
    struct layer_w layer;        // handles on it as a layer,
    struct weight *head;         // or as the head; the others NULL
    struct mark *used, *came;    // the device is done with what it held before; a lane has brought the piece
};
/* What of a whole model this one has: its layers, as all tensors of the others have no elements; and the tensors before and after them.
 * Of a shared tensor of embedding and head the last stage has the only copy. */
struct stage_part {
    int64_t first, end;    // layers
    bool embed, head;      // head: and the last norm
};
#define BOUND_N 3
/* Weights of which a rank keeps its shards only. */
struct kept {
    char *shards;    // (shard_bytes) piece after piece
    size_t shard_bytes;
    struct mem_handle handle;    // of the shards
    int64_t *cut;                // (3, model_n_piece) model_cut's n, first and at; owned
    char *mem;                   // of all places
    struct bound place[BOUND_N];
    struct model_fetch fetch;
};
/* Weights that are elsewhere (source.c). */
struct source {
    /* Bring the tensors of pieces [p, end) of m to `to`, where piece p begins, before what m's device is asked for next. The gaps between
     * them are left as they are. */
    bool (*bring)(void *ctx, const struct model *m, int p, int end, char *to, struct error *err);
    void (*close)(void *ctx);    // NULL: ctx is somebody else's
    void *ctx;
    char *mem;    // (device) room for the longest piece; NULL: none has been needed
    int piece;    // what it holds; -1: nothing
};
struct model {
    struct model_config c;
    struct device *dev;    // borrowed
    enum dtype dtype;
    int64_t n_live;
    struct tensor *tensor;    // (n_tensor)
    int64_t n_tensor;
    int64_t n_flat;                        // elements of the arena
    char *weights;                         // (n_flat) of dtype; device. NULL: kept, elsewhere, or none
    struct kept *kept;                     // instead of weights, layer's handles and head
    struct source *source;                 // where the weights are until they are taken; NULL: not elsewhere
    struct mem_handle handle;              // of the weights, when shared
    bool shared;                           // of model_share
    bool attached;                         // the weights are another process's (model_attach)
    struct layer_at *at;                   // (n_layer)
    int64_t embed_at, norm_at, head_at;    // head_at is embed_at when tied
    struct layer_w *layer;                 // (n_layer); NULL until the handles are made
    struct weight *head;
    bool for_bwd;                       // the handles support linear_bwd_x
    int parts;                          // of sums over heads and over columns of the MLP; 0: as the device likes (weight_new)
    int n_slice;                        // of a team's slice: how many there are; 0: this is a whole model
    int64_t vocab_first, vocab_part;    // of a slice: its first id, and rows of a part of the whole vocabulary (model_vocab_part)
    bool odd_vocab;                     // of a slice: the whole vocabulary is not a multiple of 8
    struct stage_part own;              // of a stage of a pipeline; a whole model or a slice has everything
    int n_stage, stage;                 // of a stage: how many there are, and which one this is; n_stage 0: it is none
    const struct model *table;          // of a first stage: the model whose memory holds the embedding; NULL: this one
    int n_sliced;                       // of a shape, for questions about sizes: devices that it would have slices on; else 0
    struct team *team;                  // that it works on (team.h), owned; NULL: none
    const struct model *base;           // of a view: whose memory and handles these are; NULL: its own
    struct lora *lora;                  // the adapter (lora_impl.h), without which nothing is trained; NULL: none, all weights are
};
static inline struct attn_heads model_heads(const struct model *m)
{
    return (struct attn_heads){ (int)m->c.n_head, (int)m->c.n_kv_head, (int)m->c.d_head };
}
/* Of kept weights, or of those that are elsewhere: an element of a piece that is bound. */
const void *bound_at(const struct model *m, int64_t at);
static inline const void *model_at(const struct model *m, int64_t at)
{
    return at == AT_NONE ? NULL : m->weights ? m->weights + (size_t)at * dtype_size(m->dtype) : bound_at(m, at);
}
/* Where a part that follows n elements of the flat order starts: on 256 bytes in bf16 too, for vector loads and cuBLASLt. */
static inline int64_t part_aligned(int64_t n)
{
    return (n + 127) / 128 * 128;
}
static inline bool model_has_layer(const struct model *m, int64_t l)
{
    return l >= m->own.first && l < m->own.end;
}
/* Only a model's table of tensors, for model_free. NULL: see err. */
struct model *model_shape_new(const struct model_config *c, struct error *err);
/* Stage q of n of m's shape, and the same layers of m with sizes c, on dev, without weights. */
struct model *model_stage_table(const struct model *m, struct device *dev, int n, int q, struct error *err);
struct model *model_part_table(const struct model *m, const struct model_config *c, struct device *dev, struct error *err);
/* Give a shape its weights, all 0, but no handles yet; frees it on failure. NULL, or s NULL: see err. */
struct model *model_weights_alloc(struct model *s, struct error *err);
/* The same, if it is shared in memory that other processes may open; m stays the caller's. */
MUST_USE bool weights_room(struct model *m, bool shared, struct error *err);
/* Rows of a part of the vocabulary, the sums over which are cut like those over heads. */
int64_t model_vocab_part(const struct model *m);
/* With zeroed weights, but no handles yet: values are set first. NULL: see err. */
struct model *model_alloc(const struct model_config *c, struct device *dev, enum dtype dtype, struct error *err);
/* A shape that the device can compute with. NULL: see err. */
struct model *model_shape_checked(const struct model_config *c, struct device *dev, enum dtype dtype, struct error *err);
/* A copy of what is trained (model_weights), in memory that other processes may open. NULL: see err. */
char *model_shared_copy(const struct model *m, const char *what, struct mem_handle *h, struct error *err);
/* Handles on whole weights, after their values are set. */
MUST_USE bool model_handles_new(struct model *m, struct error *err);
bool model_has_handles(const struct model *m);
void model_handles_free(struct model *m);
/* Remake the handles if they do not support backward products yet. */
MUST_USE bool model_want_bwd(struct model *m, struct error *err);
/* Handles on a layer's matrices, the layer laid out as at says, with element `first` of the flat order at mem. */
MUST_USE bool layer_handles_new(struct model *m, struct layer_w *w, const char *mem, int64_t first, const struct layer_at *at,
                                struct error *err);
MUST_USE bool layer_handles_refresh(struct model *m, const struct layer_w *w, struct error *err);
void layer_handles_free(struct model *m, struct layer_w *w);
void weights_free(struct model *m);    // the whole ones, and the handles on them
/* bound.c: for weights that are whole these do nothing, or are about the whole. */
MUST_USE bool model_ahead(struct model *m, int p, struct error *err);    // piece p is needed soon; none of that number: nothing
MUST_USE bool model_bind(struct model *m, int p, struct error *err);     // and now, by what the device is asked for next
const struct layer_w *model_layer(const struct model *m, int64_t l);     // handles; kept weights: while the piece is bound
const struct weight *model_head_weight(const struct model *m);
const void *model_embedding(const struct model *m);    // its table (device); kept weights: while piece 0 is bound
void bound_free(struct model *m);
/* Whoever fills a model's weights writes piece p to what this gives, where element *first of the flat order goes, on the model's device, and
 * calls piece_filled. Of kept weights that is a place for the piece, out of which the shard is taken then. */
char *piece_room(struct model *m, int p, int64_t *first);
MUST_USE bool piece_filled(struct model *m, int p, struct error *err);
/* source.c: from now on m's weights are there, and what `from` holds is m's; also after a failure. */
MUST_USE bool source_set(struct model *m, const struct source *from, struct error *err);
MUST_USE bool source_piece(struct model *m, int p, struct error *err);    // piece p is at source->mem
/* Memory for the whole, as weights_room, and the weights and their handles in it. Of a model whose weights are nowhere, such as a slice that
 * is filled later, the memory only. */
MUST_USE bool source_take(struct model *m, bool shared, struct error *err);
struct model *model_taken(struct model *m, struct error *err);    // model_weights_take; frees m on failure. NULL, or m NULL: see err
size_t source_bytes(const struct model *m);                       // of the device's memory
void source_free(struct model *m);
/* The tensors of pieces [p, end): [*first, *last). */
void piece_tensors(const struct model *m, int p, int end, int64_t *first, int64_t *last);
