/* model_impl.h - shared by the files of model/ and pass/: the layout of a model in memory */
#pragma once
#include "workers/engine/model/model.h"

#define AT_NONE (-1)
/* Where a layer's parts begin in the arena and in flat buffers, in elements. AT_NONE: the family
 * has no such part. A fused part begins where its first tensor does. A tensor that the files hold
 * fused is one part. */
struct layer_at {
    int64_t first;    // where the layer begins
    int64_t ln1, qkv, qkv_bias, q_norm, k_norm, o, o_bias, ln2, gate_up, gate_up_bias, down, down_bias;
    int64_t post1, post2;    // norms of what the attention half and the MLP half add
    // A gated delta net's, whose qkv is [q | k | v | z | b | a], rows of its input projections:
    int64_t conv, a_log, dt_bias, gate_norm;
    // AT_NONE: the layer has one MLP. Else gate_up is (experts, 2 I, d) and down (experts, d, I).
    int64_t router;
};
/* Handles of the device on a layer's matrices. */
struct layer_w {
    struct weight *qkv, *o, *gate_up, *down, *router;    // owned by the model; router NULL: one MLP
};
/* Memory that holds one piece of the weights at a time (bound.c). */
struct piece_place {
    char *mem;
    int piece;               // the piece that is there or on its way; -1: none that counts
    bool coming;             // the device has not been told to wait for it
    struct layer_w layer;    // handles on the piece as a layer; else NULL
    struct weight *head;     // a handle on it as the head; else NULL
    struct mark *used;       // the device is done with what was there before
    struct mark *came;       // a lane has brought the piece
};
/* Which layers of a whole model this one has. Tensors of other layers have no elements. A tensor
 * that embedding and head share is on the last stage alone. */
struct stage_part {
    int64_t first, end;    // layers
    bool embed;            // it has the embedding's tensor
    bool head;             // it has the final norm and the head
};
#define BOUND_N 3
/* Weights of which a rank keeps only its shards. */
struct kept {
    char *shards;    // (shard_bytes) device; piece after piece
    size_t shard_bytes;
    struct mem_handle handle;    // of the shards
    int64_t *cut;                // (3, model_n_piece) model_cut's n, first and at; owned
    char *mem;                   // memory of all places
    struct piece_place place[BOUND_N];
    struct model_fetch fetch;
};
/* Weights that are elsewhere (source.c). */
struct source {
    // Bring the tensors of pieces [p, end) of m to `to`, where piece p begins, before what m's
    // device is asked for next. The gaps between tensors are left as they are.
    bool (*bring)(void *ctx, const struct model *m, int p, int end, char *to, struct error *err);
    void (*close)(void *ctx);    // NULL: another module owns ctx
    void *ctx;
    char *mem;    // (device) room for the longest piece; NULL: none has been needed
    int piece;    // the piece in mem; -1: none
};
/* The tensors of a flat order, and where its pieces begin. */
struct flat_order {
    struct tensor *tensor;    // (n_tensor)
    int64_t n_tensor;
    int64_t n_flat;       // elements
    int64_t *piece_at;    // (n_piece + 1) the last one is n_flat
    int n_piece;
};
void flat_release(struct flat_order *t);
/* Where a model's weights are. Each form is one table in the file that is named; a model has the
 * one that weights_form_set finds for it. NULL: the form cannot do this, and whoever asks for it has
 * a bug. What is not said is as for the namesake in model.h. */
struct weights_form {
    // It has no team, keeps no shards, has no adapter and is no view. So it may still be given any of
    // these.
    bool plain;
    bool sliced;    // model_is_sliced
    // In a run: piece p is needed soon; it is needed now, by what the device is asked for next. at:
    // where an element of a bound piece is; NULL: nowhere. The others are as their namesakes below.
    bool (*ahead)(struct model *m, int p, struct error *err);
    bool (*bind)(struct model *m, int p, struct error *err);
    const void *(*at)(const struct model *m, int64_t at);
    const struct layer_w *(*layer)(const struct model *m, int64_t l);
    const struct weight *(*head)(const struct model *m);
    const void *(*embedding)(const struct model *m);
    // piece_room, piece_filled
    char *(*room)(const struct model *m, int p, int64_t *first);
    bool (*filled)(struct model *m, int p, struct error *err);
    // model_weights, model_weights_take, model_share, model_weights_changed, model_held_bytes
    void *(*memory)(const struct model *m);
    bool (*take)(struct model *m, struct error *err);
    const struct mem_handle *(*share)(struct model *m, struct error *err);
    bool (*changed)(struct model *m, struct error *err);
    size_t (*held)(const struct model *m);
    // model_source_pass. NULL where there are no weights to pass on.
    struct model *(*pass)(struct model *m, struct error *err);
    // model_weights_copy: give, where there is one, fills `into` from m; else fill fills m from src,
    // and where m is whole, by bring, which copies all of src to `to`.
    bool (*give)(const struct model *m, struct model *into, struct error *err);
    bool (*fill)(struct model *m, const struct model *src, struct error *err);
    bool (*bring)(const struct model *m, void *to, struct error *err);
};
// whole.c: nowhere; whole; whole, and in slices for a sampler; those of a base
extern const struct weights_form weights_none, weights_whole, weights_both, weights_view;
extern const struct weights_form weights_shards;                      // bound.c
extern const struct weights_form weights_elsewhere, weights_uncut;    // source.c; of a team's slices
extern const struct weights_form weights_cut, weights_cut_shape;      // team.c: in slices or stages; its sizes
extern const struct weights_form weights_adapter;                     // lora.c
/* What of a model is trained, and so saved and copied. Each form is one table: all weights
 * (trained_all, model.c), or those of an adapter (trained_adapter, lora.c). */
struct trained_form {
    // May the model sample on n devices? The error says how many are possible.
    bool (*cut_check)(const struct model *m, int n, struct error *err);
    // Make the handles on what is trained beside the model's own weights.
    bool (*handles)(struct model *m, struct error *err);
    struct model *(*like)(const struct model *m, struct error *err);                                 // model_new_like
    bool (*save)(const struct model *m, const void *weights, const char *dir, struct error *err);    // model_save_copy
    struct shards *(*shards)(const char *dir, struct error *err);                                    // model_shards
};
extern const struct trained_form trained_all, trained_adapter;
/* model_save.c: trained_all's save. */
MUST_USE bool whole_save(const struct model *m, const void *weights, const char *dir, struct error *err);
/* Call it after each change of where m's weights are: of lora, base, kept, team, source, weights or
 * cut_shape. */
void weights_form_set(struct model *m);
struct model {
    struct model_config c;
    const struct weights_form *form;
    struct device *dev;    // borrowed
    enum dtype dtype;
    int64_t n_live;
    struct flat_order flat;               // of the arena
    const struct flat_order *trained;     // of what is trained: the same, or the adapter's
    const struct trained_form *trains;    // what that is
    // (n_flat) of dtype; device. NULL: the weights are in shards, in slices or elsewhere, or this
    // is a shape.
    char *weights;
    struct kept *kept;            // weights in shards; NULL: they are not
    struct source *source;        // where the weights are until they are taken; NULL: not elsewhere
    struct mem_handle handle;     // of weights; read with shared
    bool shared;                  // weights is memory that other processes may open (model_share)
    bool attached;                // weights is another process's memory (model_attach)
    struct layer_at *at;          // (n_layer)
    int64_t embed_at, norm_at;    // where the embedding and the final norm begin
    int64_t head_at;              // where the head begins; embed_at when they are tied
    struct layer_w *layer;        // (n_layer) handles on whole weights; NULL at first
    struct weight *head;
    bool for_bwd;    // the handles support linear_bwd_x
    int parts;       // parts of sums over heads and columns of the MLP; 0: the device's own order
    int n_slice;     // slices of the team that this is a slice of; 0: it is none
    // The first id of a slice's vocabulary, and how many ids the whole vocabulary has.
    int64_t vocab_first, vocab_all;
    struct stage_part own;    // the layers that it has; all, unless it is a stage of a pipeline
    int n_stage;              // stages of the pipeline that this is a stage of; 0: it is none
    int stage;                // its number among them
    int n_shared;             // sums of a shared tensor's gradient that it needs (pipeline_shared)
    // A first stage: the stage whose memory holds the embedding. NULL: this model's does.
    const struct model *table;
    int n_device;                // devices that compute it; those that a shape's model would have
    bool cut_shape;              // a shape of a model in slices on n_device devices
    struct team *team;           // devices that it works on (team.h); owned. NULL: its own only
    const struct model *base;    // a view: the model whose memory and handles these are; else NULL
    struct wrapper *wrapper;     // what its files hold beside it (wrapper.h); owned, NULL: nothing is kept
    struct lora *lora;           // the adapter, which alone is trained (lora_impl.h); NULL: none
    int64_t lora_rank;           // the adapter's; 0: there is none
};
static inline struct attn_heads model_heads(const struct model *m)
{
    return (struct attn_heads){ (int)m->c.n_head, (int)m->c.n_kv_head, (int)m->c.d_head };
}
/* Where element `at` of the flat order is (device), in a piece that is bound. For weights in shards
 * or elsewhere. */
const void *bound_at(const struct model *m, int64_t at);
/* Where element `at` is, for any weights that are here. NULL for AT_NONE. */
static inline const void *model_at(const struct model *m, int64_t at)
{
    return at == AT_NONE ? NULL : m->weights ? m->weights + (size_t)at * dtype_size(m->dtype) : bound_at(m, at);
}
/* Can the device compute experts, and attention heads of this size? See struct attn_heads. */
MUST_USE bool model_device_check(const struct model_config *c, const struct device *dev, struct error *err);
/* Where a part that follows n elements of the flat order begins. Parts are aligned to 256 bytes in
 * bf16 too, for vector loads and cuBLASLt. */
static inline int64_t part_aligned(int64_t n)
{
    return (n + 127) / 128 * 128;
}
static inline bool model_has_layer(const struct model *m, int64_t l)
{
    return l >= m->own.first && l < m->own.end;
}
/* Make a table of tensors only, without a device. Returns it for model_free; NULL: see err. */
struct model *model_shape_new(const struct model_config *c, struct error *err);
/* Make stage q of n of m's shape on dev, without weights. */
struct model *model_stage_table(const struct model *m, struct device *dev, int n, int q, struct error *err);
/* Make a shape on dev that has m's layers, with sizes c. */
struct model *model_part_table(const struct model *m, const struct model_config *c, struct device *dev, struct error *err);
/* Give a shape its weights, all 0, but no handles yet. Takes s, and frees it on failure. Returns s;
 * NULL, or s NULL: see err. */
struct model *model_weights_alloc(struct model *s, struct error *err);
/* Give a shape its weights likewise; m stays the caller's. shared: in memory that other processes
 * may open. */
MUST_USE bool weights_room(struct model *m, bool shared, struct error *err);
/* Rows in one part of the vocabulary. Sums over the vocabulary are cut like those over heads. */
int64_t model_vocab_part(const struct model *m);
/* Make a model with weights 0, but no handles yet: the caller sets values first. Returns it for
 * model_free; NULL: see err. */
struct model *model_alloc(const struct model_config *c, struct device *dev, enum dtype dtype, struct error *err);
/* model_new_shape, if the device can compute with it. NULL: see err. */
struct model *model_shape_checked(const struct model_config *c, struct device *dev, enum dtype dtype, struct error *err);
/* Copy what is trained (model_weights) to memory that other processes may open. Returns it for
 * mem_share_free, with handle *h; NULL: see err. `what` names it in messages. */
char *model_shared_copy(const struct model *m, const char *what, struct mem_handle *h, struct error *err);
/* Make the handles on whole weights, after their values are set. */
MUST_USE bool model_handles_new(struct model *m, struct error *err);
bool model_has_handles(const struct model *m);
void model_handles_free(struct model *m);
MUST_USE bool model_handles_refresh(struct model *m, struct error *err);    // after whole weights have changed
/* Remake the handles if they do not support backward products yet. */
MUST_USE bool model_want_bwd(struct model *m, struct error *err);
/* Make handles on a layer's matrices. at says how the layer is laid out; element `first` of the
 * flat order is at mem. */
MUST_USE bool layer_handles_new(struct model *m, struct layer_w *w, const char *mem, int64_t first, const struct layer_at *at,
                                struct error *err);
/* Make the handle on the head likewise, where the model has a head. */
MUST_USE bool head_handle_new(const struct model *m, struct weight **head, const char *mem, int64_t first, struct error *err);
MUST_USE bool layer_handles_refresh(struct model *m, const struct layer_w *w, struct error *err);
void layer_handles_free(struct model *m, struct layer_w *w);
/* whole.c: free whole weights, and the handles on them. */
void weights_free(struct model *m);
/* For the tables of several forms: nothing has to be done, since every piece is there or nothing is
 * to be taken; and what whole weights have. */
MUST_USE bool piece_stays(struct model *m, int p, struct error *err);
MUST_USE bool weights_stay(struct model *m, struct error *err);
const struct layer_w *whole_layer(const struct model *m, int64_t l);
const struct weight *whole_head(const struct model *m);
const void *whole_embedding(const struct model *m);
char *whole_room(const struct model *m, int p, int64_t *first);
const struct mem_handle *none_share(struct model *m, struct error *err);
MUST_USE bool whole_fill(struct model *m, const struct model *src, struct error *err);
MUST_USE bool whole_bring(const struct model *m, void *to, struct error *err);
const void *none_at(const struct model *m, int64_t at);
/* Rows of a table: layers, head and embedding are those of whole weights; and, besides, no piece has
 * to be brought. */
#define WEIGHTS_AS_WHOLE                                                                                                                   \
    .ahead = piece_stays, .layer = whole_layer, .head = whole_head, .embedding = whole_embedding, .room = whole_room, .filled = piece_stays
#define WEIGHTS_IN_PLACE WEIGHTS_AS_WHOLE, .bind = piece_stays, .at = none_at, .take = weights_stay
/* bound.c: element `at`, if piece p, which is at mem, has it; else NULL. */
const void *piece_at(const struct model *m, int p, const char *mem, int64_t at);
/* What a run asks of its model's weights, whatever their form. Weights that are here in whole have
 * all their pieces at any time.
 *
 * Piece p is needed soon. Nothing happens if the model has no such piece. */
static inline bool model_ahead(struct model *m, int p, struct error *err)
{
    return m->form->ahead(m, p, err);
}
/* Piece p is needed now, by what the device is asked for next. */
static inline bool model_bind(struct model *m, int p, struct error *err)
{
    return m->form->bind(m, p, err);
}
/* Handles on layer l and on the head. With weights in shards they are valid while the piece is
 * bound. */
static inline const struct layer_w *model_layer(const struct model *m, int64_t l)
{
    return m->form->layer(m, l);
}
static inline const struct weight *model_head_weight(const struct model *m)
{
    return m->form->head(m);
}
/* The embedding's table (device). With weights in shards it is valid while piece 0 is bound. */
static inline const void *model_embedding(const struct model *m)
{
    return m->form->embedding(m);
}
void bound_free(struct model *m);
/* Returns memory of the model's device into which a caller fills piece p of the weights. Element
 * *first of the flat order goes to its beginning. Afterwards the caller calls piece_filled, which
 * takes this rank's shard out of the piece where the model keeps shards. */
static inline char *piece_room(const struct model *m, int p, int64_t *first)
{
    return m->form->room(m, p, first);
}
static inline bool piece_filled(struct model *m, int p, struct error *err)
{
    return m->form->filled(m, p, err);
}
/* source.c: from now on m's weights are where `from` says. Takes what `from` holds, also on
 * failure. */
MUST_USE bool source_set(struct model *m, const struct source *from, struct error *err);
/* Take memory for the whole, as weights_room does, and bring the weights and make the handles. A
 * model whose weights are nowhere, such as a slice that is filled later, gets the memory only. */
MUST_USE bool source_take(struct model *m, bool shared, struct error *err);
/* model_weights_take. Takes m, and frees it on failure. Returns m; NULL, or m NULL: see err. */
struct model *model_taken(struct model *m, struct error *err);
void source_free(struct model *m);
/* The tensors of pieces [p, end) are [*first, *last). */
void piece_tensors(const struct model *m, int p, int end, int64_t *first, int64_t *last);
