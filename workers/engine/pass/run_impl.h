/* run_impl.h - shared by the files of a model_run (run.c says what they compute): its memory, and
 * functions of one file that another calls
 *
 * Pointers are device memory unless a comment says host; n is a number of rows. */
#pragma once
#include "workers/engine/model/model_impl.h"
#include "workers/engine/pass/lora_product.h"
#include "workers/engine/pass/pass.h"

/* Where the gradient of the current piece goes. */
struct grad_place {
    bool set;     // it may hold anything and is written over; otherwise it is added to
    float *at;    // address of element `first` of the flat order
    int64_t first;
    int piece;
};
static inline float *place_of(const struct grad_place *p, int64_t at)
{
    return p->at + (at - p->first);
}
/* Where the gradient of the head's weight goes, from one chunk of rows to the next. */
struct head_grad {
    struct grad_place to;    // the head's piece; used with own
    bool frozen;             // the head's weight has no gradient
    bool own;                // the head is a piece of its own, not tied to the embedding
    bool none;               // no row has a target
    float *sum;              // what the chunks add to: the weight's place in the gradient, or dhead
    bool fresh;              // at first sum may hold anything and is written over
    bool empty;              // sum may hold anything now and is written over
    int64_t clear_from;      // where in the flat order the part of the piece begins that is added to
};
/* Where the rows of a layer with experts go: what the router says, and the list of (row, expert) pairs. */
struct routes {
    float *logits, *weight;                   // (max_tok, experts), (max_tok, k)
    int32_t *expert, *first, *row, *place;    // (max_tok, k), (experts + 1), (max_tok k), (max_tok, k): of group_rows
};
/* Activations that one layer keeps; device. */
struct acts {
    void *res1;      // (max_tok, d) residual stream before the block
    float *rstd1;    // (max_tok) of its norm
    // (max_tok, qkv) before q/k norm and RoPE; the same memory as qkv if not needed. A gated delta net has (max_tok, delta_columns)
    void *qkv_in;
    void *qkv;           // (max_tok, qkv); of a gated delta net (max_tok, delta_channels), what the convolution gave
    void *ao;            // (max_tok, q) attention output; of a gated delta net, of the recurrence
    void *gate;          // (max_tok, q) gates of heads; NULL: there are none
    float *lse;          // (max_tok, n_head)
    void *res2;          // (max_tok, d) residual stream between the two halves
    float *rstd2;        // (max_tok) of its norm
    void *gu;            // (max_tok, 2 ff); in a layer with experts a row for each pair
    struct routes to;    // of a layer with experts; else NULL
    void *h1, *h2;       // (max_tok, d) output of the halves' norms; the run's h where it is not kept
    void *act;           // (max_tok, ff) SwiGLU's product; the run's act where it is not kept
    // (max_tok, d) input of the norms after the halves; NULL: there are none, or it is not kept.
    void *half1, *half2;
    float *rstd_post1, *rstd_post2;    // (max_tok) of those norms
    float *rstd_q, *rstd_k;            // (max_tok) of norms over all heads; NULL: there are none
};
/* The rows that predict something, packed: the input of the head. Device arrays (max_tok). */
struct head_rows {
    int32_t *row, *target;
    float *coef, *adv, *weight, *old, *ref, *log_ratio, *rho, *logp, *entropy, *lse, *loss;
};
/* A batch's rows as attention sees them where sequences share rows (model_batch.prefix). Attention
 * sees each sequence with all of its rows, one sequence after the other. So it sees a copy of a
 * shared row in each sequence that has it. Device arrays; run_shared.c. */
struct seen_rows {
    int64_t n;       // rows that attention sees; 0: none are shared, and it sees the batch's rows
    int32_t *row;    // (max_tok) the batch's row that a seen row is a copy of
    int32_t *own;    // (max_tok) the same where the batch has the row in this sequence, else -1
    int32_t *at;     // (max_tok) where a row of the batch is seen in its own sequence
    // (max_tok) The batch's row i is seen at copy[first[i]] .. copy[first[i + 1] - 1], in order.
    int32_t *copy;
    int32_t *first;    // (max_tok + 1)
};
/* What a stage of a pipeline keeps of one micro-batch. While the stage works on that micro-batch,
 * the fields of model_run with these names are these. */
struct run_set {
    int32_t *token, *pos, *seq;
    struct acts *layer;    // (n_layer) host array
    void *edge;            // (max_tok, d) residual stream for the next stage; NULL on the last one
    void *dedge;           // (max_tok, d) the gradient by edge; NULL on the last stage
    int32_t *cu;           // (max_seq + 1) host
    int64_t n_tok, n_seq;
    struct seen_rows seen;
    void *resf, *hf;    // the last stage's
    float *rstdf;
};
struct run_end;
struct model_run {
    struct model *m;                   // borrowed
    const struct run_form *form;       // who does its work
    const struct grads_form *grads;    // what its backward pass makes gradients of
    const struct run_end *end;         // what follows its last layer
    struct run_limits lim;
    int64_t head_max;    // rows of logits at a time
    float *cos, *sin;    // (max_seq_tok, rope_dims / 2) each
    // the same, for layers with a window; with config.has_rope_local
    float *cos_local, *sin_local;
    float *cos_still, *sin_still;    // (rope_dims / 2) each, angle 0: for layers that do not rotate
    int32_t *pos_still;              // (max_tok) zeros
    char *tables;                    // those seven, one piece of device memory
    // all that follows, in one piece of device memory; owned unless lim.mem
    char *mem;
    int32_t *token, *pos, *slot;    // (max_tok)
    int32_t *seq;                   // (max_seq + 1) cu on the device
    struct seen_rows seen;
    // With lim.shares: (max_tok, qkv) or (max_tok, q) of seen rows; in the memory of act and dact
    // if they fit.
    void *seen_qkv, *seen_ao, *seen_dqkv, *seen_dao;
    struct acts *layer;    // (n_layer) host array
    void *h;               // (max_tok, d)
    void *out;             // (max_tok, d) what is added to the residual stream next
    void *act;             // (max_tok, ff)
    // Only of a model with gates (attn_gate, as have all with states):
    void *both, *dboth;    // (max_tok, 2 q + 2 kv) heads and gates as the product gives them, and the gradient by them
    void *mixed;           // (max_tok, q or n_v d_v) what the first half's last product takes
    void *dgate;           // (max_tok, q) gradient by gates
    // Only of a model with states:
    void *dconv;                // (max_tok, delta_channels) gradient by a convolution's output
    void *delta_room;           // delta_bwd_bytes of max_tok rows
    int32_t *state;             // (max_seq) the sequences' slots
    void *resf, *hf;            // (max_tok, d) last residual stream and its norm
    float *rstdf;               // (max_tok) of that norm
    void *dres;                 // (max_tok, d) gradient by the residual stream
    void *dh;                   // (max_tok, d) gradient by a norm's output
    void *dao, *dqkv, *dact;    // (max_tok, q / qkv / ff)
    struct head_rows head;
    void *hrow, *dhrow;    // (head_max, d)
    float *logits;         // (head_max, vocab)
    void *dlogits;         // (head_max, vocab) of dtype; in fp32 the memory of logits
    struct lora_scratch lora;
    // Only of a model with experts:
    void *pairs;       // (max_tok k, d) rows for their experts, and what these give
    float *dweight;    // (max_tok, k) gradients by the weights of what they give
    void *droute;      // (max_tok, experts) gradients by the router's logits
    int64_t *load;     // (n_layer, experts) rows of each in forward passes that were trained on; NULL: not counted
    // (vocab, d) gradient of the head's weight if it comes in several parts; or NULL
    float *dhead;
    float *leaf;     // (own parts of a sum)(max_tok, d) of a backward sum in parts; or NULL
    float *dnorm;    // (own parts + 1)(2)(d_head) likewise, of norms of queries and keys
    struct head_grad head_grad;
    void *edge, *dedge;    // of the set in use
    // The ends of a stage, which the backward pass reads and writes.
    const void *input;        // (n_tok, d) what the stage before has left; not on the first stage
    void *dinput;             // (n_tok, d) where the gradient by the stage's input goes
    int32_t *dinput_token;    // (n_tok) where the tokens go, on a first stage without the embedding
    // A last stage with a tensor that embedding and head share: one of each per micro-batch under
    // way.
    float *dheads;            // (lim.n_shared)(vocab, d) of which dhead is one
    void *dembed;             // (lim.n_shared)(max_tok, d) gradients by the first stage's stream
    int32_t *dembed_token;    // (lim.n_shared)(max_tok) the tokens of dembed's rows
    struct run_set *set;      // (lim.n_set) of a stage; else NULL
    // The host's side of the current call.
    int32_t *host_i;    // (2 max_tok), with lim.shares (5 max_tok + 1)
    float *host_f;      // (4 max_tok)
    // (3 max_tok) pinned: log-probs, entropies and losses on their way back
    float *host_back;
    int64_t *row_index;    // (max_tok) index of each head row
    // (max_seq + 1) bounds of the last forward's sequences, as attention sees them
    int32_t *cu;
    struct acts *layer_mem;    // the memory of layer: those of all sets
    int32_t *cu_mem;           // the memory of cu: those of all sets
    int64_t n_tok, n_seq;      // of the last forward
    // the first head row whose logits are in the buffer
    int64_t logits_row0;
    int64_t logits_n;                              // head rows whose logits are in the buffer
    bool (*idle)(void *ctx, struct error *err);    // or NULL
    void *idle_ctx;
    struct mark *done;    // end of the call's launched work; used with idle
    // What a form has: the runs of a team's devices (run_team.c) or of stages (run_stages.c); and in
    // a rank's run the team that it belongs to, and its number there.
    struct team_run *team, *peers;
    struct stage_runs *stages;
    int rank;
};
/* What differs between the uses of the forward pass. */
struct pass {
    int64_t n;                     // rows
    const int32_t *token, *pos;    // (n) device
    struct kv_pool *kv;            // keys and values are written here at slot; NULL: nowhere
    const int32_t *slot;
    // (sequences) device: slots of their states; NULL: they begin with none and leave none
    const int32_t *state;
    // attention over pages; NULL: over the packed sequences r->seq
    const struct decode_batch *decode;
    // Attention over pages too, with the queries of r->seq. Only kv_len, page and their sizes are
    // read.
    const struct decode_batch *past;
    int64_t max_q;    // with past: most queries of a sequence
    // (n_wanted) device: the only rows that go on after the last attention, to r->hf. NULL: all n
    // do.
    const int32_t *wanted;
    int64_t n_wanted;
    bool counts;    // rows of each expert are added to r->load
};

struct linear;
struct head_part;
/* Who alone reads a product's output: a norm that adds it to the stream, or swiglu_fwd. With neither
 * set others may read it, too. */
struct product_use {
    bool for_norm, for_gate;
};
/* Who does a run's work. Each form is one table: its model's own device (run_one, run.c), that
 * device as a rank of a team (run_team.c), all devices of a team (run_team, run_team.c) and the
 * stages of a pipeline (run_stages, run_stages.c). run.c chooses the form when a run is made. */
struct run_form {
    // The devices' runs have the memory of the layers; the run itself has inputs and logits.
    bool spread;
    // Make what the run has, and free what is the form's alone. close is fine after a failed open.
    bool (*open)(struct model_run *r, struct error *err);
    void (*close)(struct model_run *r);
    // What the first device's own run takes; NULL: nothing beside the run's memory.
    size_t (*bytes)(const struct model *m, const struct run_limits *lim);
    void (*bind)(struct model_run *r, struct model *m);    // the devices' runs bind their parts of m
    // The run of device q (model_n_device).
    struct model_run *(*device)(struct model_run *r, int q);
    // Call fn for the run of each device, on the thread that drives it. Returns when all are done.
    bool (*each)(struct model_run *r, bool (*fn)(void *ctx, struct model_run *run, struct error *err), void *ctx, struct error *err);
    void (*set_use)(struct model_run *r, int k);                                  // all devices of a stage work on set k now
    bool sets;                                                                    // model_run_sets
    bool (*idle_take)(struct model_run *r, double *idle_s, struct error *err);    // NULL: nothing
    // What callers ask for. work is model_work_run, logits is head_fwd without the cap. The others
    // are the steps of a backward pass, as their namesakes below.
    bool (*work)(struct model_run *r, const struct model_work *w, struct error *err);
    bool (*forward)(struct model_run *r, const struct pass *p, struct error *err);
    bool (*logits)(struct model_run *r, const void *x, int64_t n, float *logits, struct error *err);
    bool (*head_begin)(struct model_run *r, int64_t n_head, const struct model_grad *g, struct error *err);
    bool (*head_clear)(struct model_run *r, struct error *err);
    bool (*head_rows)(struct model_run *r, const struct head_part *c, struct error *err);
    bool (*head_end)(struct model_run *r, const struct model_grad *g, struct error *err);
    bool (*layers_bwd)(struct model_run *r, const struct model_grad *g, struct error *err);
    // What a pass on one device asks for; NULL where the form passes its work on. embed: y (n, d) =
    // the embedding of the pass's tokens. product: y = W x + b and the adapter's share. part: where
    // the device's part of a sum goes that belongs at y, and of which type it is; sum: y from all
    // devices' parts, described by `of` but for its x.
    bool (*embed)(struct model_run *r, void *y, const struct pass *p, struct error *err);
    bool (*product)(struct model_run *r, int64_t l, enum product which, const struct linear *w, void *y, const void *x,
                    const struct pass *p, struct product_use use, struct error *err);
    void *(*part)(struct model_run *r, void *y, enum dtype *dtype);
    bool (*sum)(struct model_run *r, const struct tree_sum *of, struct error *err);
};
extern const struct run_form run_one, run_team, run_stages;

/* The memory of a run: the same walk measures and assigns it. */
struct walk {
    char *base;    // NULL: only measure
    size_t used;
};
/* Returns memory for n elements, NULL where it is only measured. */
static inline void *walk_take(struct walk *w, int64_t n, size_t elem)
{
    void *p = w->base ? w->base + w->used : NULL;
    w->used += ((size_t)n * elem + 255) / 256 * 256;
    return p;
}
/* What follows the last layer that a run's model has. Each kind is one table in run_ends.c: the last
 * norm and the head (end_head), or, of a stage that has neither, the edge to the next one
 * (end_edge). */
struct run_end {
    // The memory that a run takes for it: for all of it; for each set, with the next edge's gradient
    // at *dedge; and for a backward pass, in which the head's gradient is summed in parts or not.
    void (*layout)(struct walk *w, struct model_run *r, const struct model *m, const struct run_limits *lim);
    void (*layout_kept)(struct walk *w, struct model_run *r, const struct model *m, const struct run_limits *lim, void **dedge);
    void (*layout_bwd)(struct walk *w, struct model_run *r, const struct model *m, const struct run_limits *lim, bool in_parts);
    // From the last layer's stream of n rows; and to r->dres, the gradient by it, where *begun says
    // whether the last layer's place `to` has been begun.
    bool (*fwd)(struct model_run *r, int64_t n, struct error *err);
    bool (*bwd)(struct model_run *r, const struct model_grad *g, struct grad_place *to, bool *begun, struct error *err);
};
extern const struct run_end end_head, end_edge;
/* Rows of logits that a run computes at a time. */
int64_t run_head_rows(const struct model *m, const struct run_limits *lim);

/* ---- run.c */
/* Take the memory of a run's inputs, activations and logits, unless it borrows some. */
MUST_USE bool run_mem_take(struct model_run *r, const char *what, struct error *err);
/* Run the caller's other work, if there is any. */
MUST_USE bool run_idle(struct model_run *r, struct error *err);
/* Like device_sync, and run the caller's other work meanwhile. */
MUST_USE bool run_sync(struct model_run *r, struct error *err);

/* From now on r, the run of a stage's device, works on the micro-batch of this set. */
void run_set_use(struct model_run *r, const struct run_set *set);

/* A run on one device, as the functions of its form do it. */
MUST_USE bool one_open(struct model_run *r, struct error *err);
void one_close(struct model_run *r);
void one_bind(struct model_run *r, struct model *m);
struct model_run *one_device(struct model_run *r, int q);
MUST_USE bool one_each(struct model_run *r, bool (*fn)(void *ctx, struct model_run *run, struct error *err), void *ctx, struct error *err);
void one_set_use(struct model_run *r, int k);
/* Rows of a table: all of a pass on one device but its embedding and its sums, of which a rank of a
 * team has parts. */
#define RUN_ON_DEVICE                                                                                                                      \
    .open = one_open, .close = one_close, .bind = one_bind, .device = one_device, .each = one_each, .set_use = one_set_use, .sets = true,  \
    .work = one_work, .forward = one_forward, .logits = one_logits, .head_begin = head_bwd_begin, .head_clear = head_bwd_clear,            \
    .head_rows = head_bwd_rows, .head_end = head_bwd_end, .layers_bwd = layers_bwd

/* ---- run_batch.c */
/* Micro-batches one after the other. */
MUST_USE bool one_work(struct model_run *r, const struct model_work *w, struct error *err);
/* Check a packed batch and put its tokens, positions and bounds on the device. */
MUST_USE bool run_batch_put(struct model_run *r, const struct model_batch *b, struct error *err);

/* ---- run_shared.c */
/* Put the tables of b's seen rows onto the device, and the bounds of its sequences into r->cu. Uses
 * r->host_i. */
MUST_USE bool seen_put(struct model_run *r, const struct model_batch *b, struct error *err);
/* Attention of layer l over the batch's sequences: makes a->ao and a->lse from a->qkv. */
MUST_USE bool attn_packed(struct model_run *r, const struct acts *a, int64_t l, int64_t n, struct error *err);
/* Its backward: makes r->dqkv from r->dao. */
MUST_USE bool attn_packed_bwd(struct model_run *r, const struct acts *a, int64_t l, struct error *err);

/* ---- run_rope.c */
/* What a layer's rotation takes: tables with a row for each position, and positions. */
struct rotation {
    const float *cos, *sin;
    const int32_t *pos;
    int64_t n_pos;
};
/* The rotation of layer l at positions pos; layers that do not rotate take r's zeros instead. */
struct rotation rotation_of(const struct model_run *r, int64_t l, const int32_t *pos);
/* Fill the tables whose memory r has. */
MUST_USE bool rope_tables(struct model_run *r, struct error *err);

/* ---- run_attn.c */
/* The window and the cap of scores of layer l's attention. */
struct attn_bounds bounds_of(const struct model *m, int64_t l);

/* ---- run_stream.c */
/* eps of the norms that read the residual stream, and the factors of the embedding and of the last
 * norm's output. */
float stream_eps(const struct model_config *c);
double embed_scale(const struct model *m);
double head_scale(const struct model_config *c);
/* Multiply n rows of the model's width. */
MUST_USE bool rows_scale(struct model_run *r, void *x, int64_t n, double scale, struct error *err);
/* sum = x + add, the stream after an addition; add NULL: nothing is added. h gets its norm where
 * the family has one there. */
MUST_USE bool stream_add(struct model_run *r, void *h, void *sum, const void *x, const void *add, int64_t ln, float *rstd, int64_t n,
                         struct error *err);

/* ---- run_blocks.c */
/* Run one block from a->res1, which is summed up. Leaves in r->out what is added to the residual
 * stream next. */
MUST_USE bool block_fwd(struct model_run *r, const struct acts *a, int64_t l, const struct pass *p, struct error *err);
/* Run the whole stack up to the last norm, r->hf. */
MUST_USE bool run_forward(struct model_run *r, const struct pass *p, struct error *err);
/* run_one's functions: on the model's own device. */
MUST_USE bool one_forward(struct model_run *r, const struct pass *p, struct error *err);
MUST_USE bool one_embed(struct model_run *r, void *y, const struct pass *p, struct error *err);
MUST_USE bool one_product(struct model_run *r, int64_t l, enum product which, const struct linear *w, void *y, const void *x,
                          const struct pass *p, struct product_use use, struct error *err);

/* ---- kinds of the first half of a block: each is one table in a file of its own. A half begins and ends with a product; the table is
 * about what is in between, where tokens see each other. */
struct mix_kind {
    // Where the first product's output goes.
    void *(*into)(struct model_run *r, const struct acts *a);
    // From there to *mixed, the rows that the last product takes. What the backward pass needs stays in a, keys, values and states
    // where p says.
    bool (*fwd)(struct model_run *r, const struct acts *a, int64_t l, const struct pass *p, const void **mixed, struct error *err);
    // Those rows again, from what stays in a.
    bool (*again)(struct model_run *r, const struct acts *a, int64_t l, const void **mixed, struct error *err);
    // From r->dao, the gradient by those rows, to *dy, that by the first product's output; and the gradients of the weights in between.
    bool (*bwd)(struct model_run *r, const struct acts *a, int64_t l, const struct grad_place *grad, const void **dy, struct error *err);
};
extern const struct mix_kind mix_attn, mix_gated, mix_delta;    // run_attn.c, with and without gates; run_delta.c
static inline const struct mix_kind *mix_of(const struct model_config *c, int64_t l)
{
    return config_is_delta(c, l) ? &mix_delta : c->attn_gate ? &mix_gated : &mix_attn;
}

/* ---- kinds of the second half of a block, what its norms are around: each is one table in a file of its own. A half works on each row
 * by itself. */
struct mlp_kind {
    // From x (n, d) to y (n, d). What the backward pass needs stays in a.
    bool (*fwd)(struct model_run *r, const struct acts *a, int64_t l, const struct pass *p, void *y, const void *x, struct error *err);
    // From dy (n, d), the gradient by y, to that by what the first products gave, in a->gu; and the gradients of the weights after them.
    bool (*bwd)(struct model_run *r, const struct acts *a, int64_t l, const struct grad_place *grad, const void *dy, struct error *err);
    // The rest: dx (n, d), or dx += with accumulate; and the gradients of the weights that read x.
    bool (*input_bwd)(struct model_run *r, const struct acts *a, int64_t l, const struct grad_place *grad, void *dx, const void *x,
                      bool accumulate, struct error *err);
};
extern const struct mlp_kind mlp_dense, mlp_experts;    // run_mlp.c, run_experts.c
static inline const struct mlp_kind *mlp_of(const struct model_config *c, int64_t l)
{
    return config_is_sparse(c, l) ? &mlp_experts : &mlp_dense;
}

/* ---- run_sums.c */
/* y = W x + b, and the adapter's share: a row per token of the pass. */
MUST_USE bool product_fwd(struct model_run *r, int64_t l, enum product which, void *y, const void *x, const struct pass *pass,
                          struct error *err);
/* Backward of product_fwd by its input: into dx, or added to it. */
MUST_USE bool product_bwd_x(struct model_run *r, int64_t l, enum product which, void *dx, const void *dy, bool accumulate,
                            struct error *err);
/* Its whole backward: by its input, by its matrix and bias, and an adapter's. */
MUST_USE bool product_bwd(struct model_run *r, int64_t l, enum product which, const struct grad_place *grad, void *dx, const void *dy,
                          const void *x, bool accumulate, struct error *err);
/* A product of a layer: its matrix, its bias and its place in flat buffers. */
struct linear {
    struct weight *w;
    int64_t at, bias_at, n_out, n_in;
};
struct linear linear_of(const struct model *m, int64_t l, enum product which);
/* Are backward sums of this product cut in parts? Otherwise the device adds in its own order, as where a model has states: no team
 * shares it. */
static inline bool sums_in_parts(const struct model *m, enum product which)
{
    return m->parts > 1 && ((which == PRODUCT_QKV && !config_has_states(&m->c)) || which == PRODUCT_GATE_UP);
}
int sums_own(const struct model *m);    // parts that the model's device has
/* dx (n, d) = the sum over the rows of a layer's product, or += with accumulate. */
MUST_USE bool product_sum(struct model_run *r, int64_t l, enum product which, void *dx, const void *dy, bool accumulate, struct error *err);
/* In how many parts this device sums the gradient of the norm of each head. 0: in the device's own
 * order, or there is no such norm. */
int norm_parts(const struct model *m);
/* Add the sum of r->dnorm's parts, (2, norm_parts, d_head), to dq and dk (d_head each; NULL: not
 * wanted). */
MUST_USE bool norm_sum(struct model_run *r, float *dq, float *dk, struct error *err);
/* dx (n, d) = the sum over the rows of the head, from dlogits (n, vocab; ld apart). */
MUST_USE bool head_sum(struct model_run *r, void *dx, const void *dlogits, int64_t n, int64_t ld, struct error *err);

/* ---- run_grads.c, run_adapter.c */
/* What a backward pass makes gradients of, and what products compute for it. Each form is one table:
 * all weights (grads_all, run_grads.c), or those of an adapter, while the model's own are frozen
 * (grads_adapter, run_adapter.c). run.c chooses it (grads_of). */
struct grads_form {
    bool frozen;    // the model's own weights
    // Does the head's gradient, computed in parts, need memory to be summed in before it is added to
    // the gradient?
    bool (*head_in_parts)(const struct model *m, const struct run_limits *lim);
    // Who alone reads this product of a pass.
    struct product_use (*use)(const struct model *m, int64_t l, enum product which, const struct pass *p);
    // After a product of n rows, y from x, and after its backward, dx from dy, which gradients
    // product_w has made: the adapter's share.
    bool (*add)(struct model_run *r, int64_t l, enum product which, void *y, const void *x, int64_t n, struct error *err);
    bool (*add_bwd)(struct model_run *r, int64_t l, enum product which, const struct grad_place *grad, void *dx, const void *dy,
                    const void *x, struct error *err);
    // embedding_bwd, or nothing.
    bool (*embedding)(struct model_run *r, const struct model_grad *g, struct error *err);
    int (*piece)(int64_t l);    // the piece that layer l's gradient belongs to
    // Where the gradient of a norm or a bias goes; NULL: it is frozen.
    float *(*place)(const struct grad_place *p, int64_t at);
    // place_clear for a layer: everything that is added to.
    bool (*layer_clear)(const struct model *m, const struct grad_place *p, int64_t l, struct error *err);
    // Backward of product_fwd by its matrix and bias, of the gradient dy by its output and its input
    // x, into grad.
    bool (*product_w)(struct model_run *r, int64_t l, enum product which, const struct grad_place *grad, const void *dy, const void *x,
                      struct error *err);
    // The gradient by gate and up into a->gu, of dy by the MLP's output; and that by the last
    // product's matrix.
    bool (*down)(struct model_run *r, const struct acts *a, int64_t l, const struct grad_place *grad, const void *dy, struct error *err);
};
extern const struct grads_form grads_all, grads_adapter;
/* Where the gradient of a norm or a bias goes. NULL: the model has no such part, or it is frozen. */
static inline float *place_or_null(const struct model_run *r, const struct grad_place *p, int64_t at)
{
    return at == AT_NONE ? NULL : r->grads->place(p, at);
}

/* ---- run_places.c */
/* Clear the part of an overwritten place that the backward pass adds to, from one element of the
 * flat order to another. */
MUST_USE bool place_clear(const struct model *m, const struct grad_place *p, int64_t from, int64_t to, struct error *err);
/* Begin layer l's place in the gradient. */
MUST_USE bool layer_begin(struct model_run *r, const struct model_grad *g, int64_t l, struct grad_place *out, struct error *err);
/* The place's gradient is whole. */
MUST_USE bool place_end(const struct model_grad *g, const struct grad_place *p, struct error *err);
/* Add the embedding's gradient, from dres, the gradient by the stream at its beginning. */
MUST_USE bool embedding_bwd(struct model_run *r, const struct model_grad *g, struct error *err);
/* Likewise from dy (n, d), the gradient by the rows of token (n), which is scaled already. */
MUST_USE bool embed_grad(struct model_run *r, const struct model_grad *g, const void *dy, const int32_t *token, int64_t n,
                         struct error *err);
/* A chunk of the head's rows. */
struct head_part {
    const void *dlogits;    // (n, vocab), rows ld apart
    const void *x;          // (n, d) input of the head
    const int32_t *row;     // (n) rows of the stream that they belong to
    int64_t n, ld;
};
/* The gradient of the head's weight: begin, with n_head rows in all; add a chunk's rows; end.
 * head_bwd_clear begins the sum again where all rows are done again. */
MUST_USE bool head_bwd_begin(struct model_run *r, int64_t n_head, const struct model_grad *g, struct error *err);
MUST_USE bool head_bwd_clear(struct model_run *r, struct error *err);
MUST_USE bool head_bwd_rows(struct model_run *r, const struct head_part *c, struct error *err);
MUST_USE bool head_bwd_end(struct model_run *r, const struct model_grad *g, struct error *err);

/* ---- run_backward.c: a backward pass on one device */
/* Backward from the gradient by the last norm's output, in dh, to the embedding. A stage without a
 * head begins with the gradient by what it hands on, in dedge. A stage without an embedding ends
 * with the gradient by what its first layer reads, at dinput. */
MUST_USE bool layers_bwd(struct model_run *r, const struct model_grad *g, struct error *err);

/* ---- run_head.c */
/* The piece that holds the head's weight. */
int head_piece(const struct model *m);
/* The logits (n, vocab) of x (n, d), rows of the last norm's output. */
MUST_USE bool head_fwd(struct model_run *r, const void *x, int64_t n, float *logits, struct error *err);
MUST_USE bool one_logits(struct model_run *r, const void *x, int64_t n, float *logits, struct error *err);
/* Gather the rows with a target: fills row_index and the device's row and target. target is
 * (r->n_tok), host; -1: none. */
MUST_USE bool head_select(struct model_run *r, const int32_t *target, int64_t *n_head, struct error *err);
/* Copy src[row_index[k]] (host) for all n head rows to the device. */
MUST_USE bool head_upload(struct model_run *r, float *dst, const float *src, int64_t n, struct error *err);
/* How many head rows from row0 on, at most max, share a temperature. temperature is (r->n_tok),
 * host. */
int64_t same_temperature(const struct model_run *r, const float *temperature, int64_t row0, int64_t max);
/* Compute the logits of head rows [row0, row0 + n) into the buffer, unless they are there, and
 * their statistics. */
MUST_USE bool head_chunk(struct model_run *r, int64_t row0, int64_t n, const float *temperature, struct error *err);
/* head_chunk for all n_head rows, chunk by chunk; then fill loss->logp and loss->entropy. */
MUST_USE bool head_all(struct model_run *r, const struct token_loss *loss, int64_t n_head, struct error *err);
/* Ask for logp, entropy and loss of n head rows, to be brought back to the host. */
MUST_USE bool head_download_begin(struct model_run *r, int64_t n, struct error *err);
/* Wait for them. logp, entropy and loss are (r->n_tok), host: each value goes to its row, and the
 * other rows get 0. NULL: not wanted. The call waits for what was asked of the device in between
 * only if the run has other work (idle). */
MUST_USE bool head_download_end(struct model_run *r, int64_t n, float *logp, float *entropy, float *loss, struct error *err);
