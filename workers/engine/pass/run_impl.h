/* run_impl.h - shared by the files of a model_run (run.c says what they compute): its memory, and the steps of one pass that
 * another calls. Pointers are the device's unless a comment says host; n is a number of rows. */
#pragma once
#include "workers/engine/pass/lora_product.h"
#include "workers/engine/pass/pass.h"

/* Where the gradient of the current piece goes. */
struct place {
    bool set;     // it may hold anything and is overwritten; otherwise it is added to
    float *at;    // address of element `first` of the flat order
    int64_t first;
    int piece;
};
/* Where the gradient of the head's weight goes, from one chunk of rows to the next. */
struct head_grad {
    struct place to;
    bool frozen, own;      // there is none; it is a piece of its own
    bool none;             // no row has a target
    float *sum;            // what the chunks add to: its place in the gradient, or dhead
    bool fresh, empty;     // at first, and now: sum may hold anything and is overwritten
    int64_t clear_from;    // of its piece, in the flat order: what is added to
};
/* Activations that one layer keeps; device. */
struct acts {
    void *res1;      // (max_tok, d) residual stream before the block
    float *rstd1;    // (max_tok) of its norm
    void *qkv_in;    // (max_tok, qkv) before q/k norm and RoPE; the same memory as qkv when it is not needed
    void *qkv;       // (max_tok, qkv)
    void *ao;        // (max_tok, q) attention output
    float *lse;      // (max_tok, n_head)
    void *res2;      // (max_tok, d) residual stream between the two halves
    float *rstd2;
    void *gu;    // (max_tok, 2 ff)
    void *h1, *h2,
        *act;    // (max_tok, d) what the halves' norms give, (max_tok, ff) SwiGLU's product; the run's own where they are not kept
    void *half1, *half2;    // (max_tok, d) what the halves give to the norms after them; NULL: there are none, or not kept
    float *rstd_post1, *rstd_post2;
    float *rstd_q, *rstd_k;    // (max_tok) of norms over all heads; NULL: there are none
};
/* The rows that predict something, packed: the input of the head. Device arrays (max_tok). */
struct head_rows {
    int32_t *row, *target;
    float *coef, *adv, *weight, *old, *ref, *log_ratio, *rho, *logp, *entropy, *lse, *loss;
};
/* A batch's rows as attention sees them where sequences share some (model_batch.prefix): each sequence with all of its own, one after the
 * other. Device arrays; run_shared.c. */
struct seen_rows {
    int64_t n;                // 0: none are shared, and attention sees the batch's rows
    int32_t *row, *own;       // (max_tok) the batch's row of each; the same where it is the sequence's own, else -1
    int32_t *at;              // (max_tok) of each of the batch's rows, where its own sequence is seen to have it
    int32_t *copy, *first;    // (max_tok), (max_tok + 1) the batch's row i is seen at copy[first[i]] .. copy[first[i + 1] - 1], in order
};
/* What a stage of a pipeline keeps of one micro-batch; while it works on that one, the same fields of model_run are these. */
struct run_set {
    int32_t *token, *pos, *seq;
    struct acts *layer;    // (n_layer) host array
    void *edge, *dedge;    // (max_tok, d) residual stream for the next stage, and the gradient by it; the last one has none
    int32_t *cu;           // (max_seq + 1) host
    int64_t n_tok, n_seq;
    struct seen_rows seen;
    void *resf, *hf;    // of the last stage
    float *rstdf;
};
struct model_run {
    struct model *m;    // borrowed
    struct run_limits lim;
    int64_t head_max;                // rows of logits at a time
    float *cos, *sin;                // (max_seq_tok, rope_dims / 2) each
    float *cos_local, *sin_local;    // the same, of layers with a window, when config.has_rope_local
    float *cos_still, *sin_still;    // (rope_dims / 2) each, angle 0: of layers that do not rotate
    int32_t *pos_still;              // (max_tok) zeros
    char *tables;                    // those seven, one piece of device memory
    char *mem;                       // everything below, one piece of device memory; owned unless it is lim.mem
    int32_t *token, *pos, *slot;     // (max_tok)
    int32_t *seq;                    // (max_seq + 1) bounds of the sequences that attention sees, cu on the device
    struct seen_rows seen;
    void *seen_qkv, *seen_ao, *seen_dqkv, *seen_dao;    // (max_tok, qkv / q) of seen rows, with lim.shares; in act and dact if they fit
    struct acts *layer;                                 // (n_layer) host array
    void *h;                                            // (max_tok, d)
    void *out;                                          // (max_tok, d) to be added to the residual stream next
    void *act;                                          // (max_tok, ff)
    void *resf, *hf;                                    // (max_tok, d) last residual stream and its norm
    float *rstdf;
    void *dres, *dh;            // (max_tok, d) gradients by residual stream and norm output
    void *dao, *dqkv, *dact;    // (max_tok, q / qkv / ff)
    struct head_rows head;
    void *hrow, *dhrow;    // (head_max, d)
    float *logits;         // (head_max, vocab)
    void *dlogits;         // (head_max, vocab) of dtype; logits themselves in fp32
    struct lora_scratch lora;
    float *dhead;    // (vocab, d) gradient of the head's weight, where it is computed in several parts; or NULL
    float *leaf;     // (own parts of a sum)(max_tok, d) of a backward sum in parts; or NULL
    float *dnorm;    // (own parts + 1)(2)(d_head) of norms of queries and keys, likewise
    struct head_grad head_grad;
    void *edge, *dedge;       // of the set in use
    const void *input;        // of a stage but the first: what the one before has left, (n_tok, d)
    void *dinput;             // and where the gradient by it goes; of a first one without embedding it goes, with its tokens,
    int32_t *dinput_token;    // here; the backward pass writes them
    float *dheads;            // (lim.n_shared)(vocab, d) of which dhead is one
    void *dembed;             // (lim.n_shared)(max_tok, d) gradients by the first stage's stream, and its tokens
    int32_t *dembed_token;    // (lim.n_shared)(max_tok)
    struct run_set *set;      // (lim.n_set) of a stage; else NULL
    // host side of the current call
    int32_t *host_i;           // (2 max_tok), with lim.shares (5 max_tok + 1)
    float *host_f;             // (4 max_tok)
    float *host_back;          // (3 max_tok) pinned: log-probs, entropies and losses on their way back
    int64_t *row_index;        // (max_tok) index of each head row
    int32_t *cu;               // (max_seq + 1) bounds of the last forward's sequences, as attention sees them
    struct acts *layer_mem;    // what layer and cu point into: those of all sets
    int32_t *cu_mem;
    int64_t n_tok, n_seq;                          // of the last forward
    int64_t logits_row0, logits_n;                 // head rows whose logits are in the buffer; n 0: none
    bool (*idle)(void *ctx, struct error *err);    // or NULL
    void *idle_ctx;
    struct mark *done;            // end of the call's launched work; with idle
    struct team_run *team;        // it works on a team (run_team.c); NULL: on the model's device
    struct stage_runs *stages;    // on stages of a pipeline (run_stages.c), and only passes their work on; NULL: on none
    struct team_run *peers;       // it is a rank's of that team; NULL: of none
    int rank;
};
/* What differs between the uses of the forward pass. */
struct pass {
    int64_t n;                     // rows
    const int32_t *token, *pos;    // (n) device
    struct kv_pool *kv;            // keys and values are written here at slot; NULL: nowhere
    const int32_t *slot;
    const struct decode_batch *decode;    // attention over pages; NULL: over the packed sequences r->seq
    const struct decode_batch *past;      // ... over pages, the queries those of r->seq; of it kv_len, page and their sizes
    int64_t max_q;                        // with past: most queries of a sequence
    const int32_t *wanted;                // (n_wanted) device: the only rows that go on after the last attention, to r->hf; NULL: all n
    int64_t n_wanted;
};

/* ---- run.c */
int64_t run_head_rows(const struct model *m, const struct run_limits *lim);    // rows of logits at a time
/* Run the caller's other work, if there is any. */
MUST_USE bool run_idle(struct model_run *r, struct error *err);
/* Like device_sync, and run the caller's other work meanwhile. */
MUST_USE bool run_sync(struct model_run *r, struct error *err);

/* ---- run_stages.c */
struct stage_runs;
struct stage_runs *stage_runs_new(struct model_run *r, struct error *err);
void stage_runs_free(struct stage_runs *s);
void stage_runs_bind(struct stage_runs *s, struct model *m);
void stage_idle(struct stage_runs *s, int q, bool (*idle)(void *ctx, struct error *err), void *ctx);
MUST_USE bool stages_score(struct model_run *r, const struct model_batch *b, const struct token_loss *loss, struct error *err);
/* r, the run of a stage, works on the micro-batch of this set from now on. */
void run_set_use(struct model_run *r, const struct run_set *set);
/* All devices of the stage work on set k from now on. */
void run_micro_use(struct model_run *r, int k);

/* ---- run_batch.c */
/* Check a packed batch and put its tokens, positions and bounds on the device. */
MUST_USE bool run_batch_put(struct model_run *r, const struct model_batch *b, struct error *err);

/* ---- run_shared.c */
/* The tables of b's seen rows onto the device, and their bounds into r->cu. Uses r->host_i. */
MUST_USE bool seen_put(struct model_run *r, const struct model_batch *b, struct error *err);
/* Attention of layer l over the batch's sequences, a->ao and a->lse of a->qkv; and backward, r->dqkv of r->dao. */
MUST_USE bool attn_packed(struct model_run *r, const struct acts *a, int64_t l, int64_t n, struct error *err);
MUST_USE bool attn_packed_bwd(struct model_run *r, const struct acts *a, int64_t l, struct error *err);

/* ---- run_rope.c */
/* What a layer's rotation takes: tables, a row for each position, and positions. */
struct rotation {
    const float *cos, *sin;
    const int32_t *pos;
    int64_t n_pos;
};
/* The rotation of layer l at positions pos; layers that do not rotate take r's zeros instead. */
struct rotation rotation_of(const struct model_run *r, int64_t l, const int32_t *pos);
/* Fill the tables whose memory r has. */
MUST_USE bool rope_tables(struct model_run *r, struct error *err);

/* ---- run_blocks.c */
/* eps of the norms that read the residual stream, and the factors of the embedding and of the last norm's output. */
float stream_eps(const struct model_config *c);
double embed_scale(const struct model *m);
double head_scale(const struct model_config *c);
/* Multiply n rows of the model's width. */
MUST_USE bool rows_scale(struct model_run *r, void *x, int64_t n, double scale, struct error *err);
/* The window and the cap of scores of layer l's attention. */
struct attn_bounds bounds_of(const struct model *m, int64_t l);
/* The stream after an addition (none: add NULL), and its norm in h where the family has one there. */
MUST_USE bool stream_add(struct model_run *r, void *h, void *sum, const void *x, const void *add, int64_t ln, float *rstd, int64_t n,
                         struct error *err);
/* The columns of a tensor of projections that a norm over all heads covers: the queries' first, then the keys'. */
struct wide_norm {
    int64_t first, d, w;    // columns, and the norm's place in the arena
};
void wide_norms(const struct model *m, int64_t l, struct wide_norm out[2]);
/* A product of a layer: its matrix, its bias and its place in flat buffers. */
struct linear {
    struct weight *w;
    int64_t at, bias_at, n_out, n_in;
};
struct linear linear_of(const struct model *m, int64_t l, enum product which);
/* One block from a->res1 on (its sum is done); leaves in r->out the next addend of the residual stream. */
MUST_USE bool block_fwd(struct model_run *r, const struct acts *a, int64_t l, const struct pass *p, struct error *err);
/* The whole stack up to the last norm, r->hf. */
MUST_USE bool run_forward(struct model_run *r, const struct pass *p, struct error *err);

/* ---- run_sums.c */
/* Are backward sums of this model cut in parts? Else the device adds in its own order. */
static inline bool sums_in_parts(const struct model *m, enum product which)
{
    return m->parts > 1 && (which == PRODUCT_QKV || which == PRODUCT_GATE_UP);
}
int sums_own(const struct model *m);    // parts that a model's device has
/* The sum of a layer's product, and of the head. */
MUST_USE bool product_sum(struct model_run *r, int64_t l, enum product which, void *dx, const void *dy, bool accumulate, struct error *err);
/* The parts of a device in which the gradient of the norm of each head is summed; 0: in the device's own order, or there is none. */
int norm_parts(const struct model *m);
/* Add the sum of r->dnorm's parts, (2, norm_parts, d_head), to dq and dk (d_head each; NULL: not wanted). */
MUST_USE bool norm_sum(struct model_run *r, float *dq, float *dk, struct error *err);
MUST_USE bool head_sum(struct model_run *r, void *dx, const void *dlogits, int64_t n, int64_t ld, struct error *err);

/* ---- run_backward.c: what each rank of a team does of a backward pass */
/* The head's weight: begin, and clear what is added to, again where all is done again; n rows of dlogits (n, vocab; ld apart), made of
 * x (n, d), that belong to rows `row` (n) of the stream; end. */
struct head_part {
    const void *dlogits, *x;
    const int32_t *row;
    int64_t n, ld;
};
MUST_USE bool head_bwd_begin(struct model_run *r, int64_t n_head, const struct model_grad *g, struct error *err);
MUST_USE bool head_bwd_clear(struct model_run *r, struct error *err);
MUST_USE bool head_bwd_rows(struct model_run *r, const struct head_part *c, struct error *err);
MUST_USE bool head_bwd_end(struct model_run *r, const struct model_grad *g, struct error *err);
/* From the gradient by the last norm's output, in dh, to the embedding. A stage without a head begins with the gradient
 * by what it hands on, in dedge. A stage without an embedding ends with the gradient by what its first layer reads, at dinput. */
MUST_USE bool layers_bwd(struct model_run *r, const struct model_grad *g, struct error *err);
/* The embedding's part, of dres, the gradient by the stream at its beginning; and the same of dy (n, d), which is scaled, and token (n). */
MUST_USE bool embedding_bwd(struct model_run *r, const struct model_grad *g, struct error *err);
MUST_USE bool embed_grad(struct model_run *r, const struct model_grad *g, const void *dy, const int32_t *token, int64_t n,
                         struct error *err);

/* ---- run_head.c */
/* The piece that holds the head's weight. */
int head_piece(const struct model *m);
/* The logits (n, vocab) of x (n, d), rows of the last norm's output. */
MUST_USE bool head_fwd(struct model_run *r, const void *x, int64_t n, float *logits, struct error *err);
/* Gather the rows with a target: fills row_index and the device's row and target. target is (r->n_tok) of the host, -1: none. */
MUST_USE bool head_select(struct model_run *r, const int32_t *target, int64_t *n_head, struct error *err);
/* Copy src[row_index[k]] (host) for all n head rows to the device. */
MUST_USE bool head_upload(struct model_run *r, float *dst, const float *src, int64_t n, struct error *err);
/* How many head rows from row0 on, at most max, share a temperature; temperature is (r->n_tok) of the host. */
int64_t same_temperature(const struct model_run *r, const float *temperature, int64_t row0, int64_t max);
/* Logits of head rows [row0, row0 + n) into the buffer, unless they are there, and their statistics. */
MUST_USE bool head_chunk(struct model_run *r, int64_t row0, int64_t n, const float *temperature, struct error *err);
/* head_chunk for all n_head rows, chunk by chunk, then loss->logp and entropy. */
MUST_USE bool head_all(struct model_run *r, const struct token_loss *loss, int64_t n_head, struct error *err);
/* Bring logp, entropy and loss of n head rows back to the host, each to its row of (r->n_tok), the others 0; NULL: not wanted. The first
 * asks for it, the second waits, and not for what was asked of the device in between, unless there is other work to run. */
MUST_USE bool head_download_begin(struct model_run *r, int64_t n, struct error *err);
MUST_USE bool head_download_end(struct model_run *r, int64_t n, float *logp, float *entropy, float *loss, struct error *err);
