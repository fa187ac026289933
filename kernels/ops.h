/* ops.h - the operations of a transformer, and the devices that run them
 *
 * A device is one ordered stream of work over its own memory: operations take effect in the order of the calls, return before they
 * are done (cuda) or after (cpu, ref), and are only certain to be done after device_sync. One thread at a time drives a device.
 * Back ends: "ref" (plain C, double accumulators: the reference), "cpu:N" (our AVX-512, AVX2 or portable code), "cuda:N". The model
 * code is written once, against this table.
 *
 * Promises of every back end:
 *  1. A row's result (a token's activations, its log-prob, its sample) has the same bits whatever other rows are in the call,
 *    wherever it is in the batch, and however many threads work. attn_fwd over packed rows and attn_paged
 *     over pages give the same bits for the same query and keys.
 *  2. Gradients have the same bits for the same sequence of calls (no order is left to chance).
 *  3. cpu: the three code paths give the same bits.
 *
 * Conventions: all pointers are memory of that device unless marked "host"; matrices are row-major; sizes are
 * elements; n = 0 rows is allowed and does nothing. `dtype` is the type of weights and activations (and of gradients of
 * activations) in the call; internal sums are always fp32. Statistics, logits, log-probs, gradients of weights, masters and moments
 * are always fp32. "+=" means: the call's own sum begins at 0, and is then added to the existing value in one fp32 addition. So a
 * call that adds to y leaves the same bits as the same call on zeros followed by axpy, and gradients may be summed in place or
 * separately. Clear y first where needed. After a call that fails (sizes, memory, launch) the contents of its outputs are
 * undefined. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/both.h"
#include "kernels/policy_form.h"
#include "protocol/base/error.h"

enum dtype {
    DT_F32,
    DT_BF16,
};
static inline size_t dtype_size(enum dtype t)
{
    return t == DT_BF16 ? 2 : 4;
}
static inline uint16_t bf16_from_f32(float x)    // round to nearest even; a NaN stays a NaN
{
    union {
        float f;
        uint32_t u;
    } v = { x };
    if ((v.u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(v.u >> 16 | 0x40);
    return (uint16_t)((v.u + 0x7fffu + (v.u >> 16 & 1)) >> 16);
}
static inline float bf16_to_f32(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v = { (uint32_t)h << 16 };
    return v.f;
}

struct choice;
struct choices;
struct comm_ops;
struct ops;
struct product_kind;
enum device_kind {
    DEVICE_REF,
    DEVICE_CPU,
    DEVICE_CUDA,
};
/* What every device has; a back end's own struct starts with it. Read-only for users. */
struct device {
    const struct ops *op;
    enum device_kind kind;
    int index;                  // the N of cpu:N and cuda:N
    int n_thread;               // cpu: threads that work on it, including the caller's
    char name[32];              // "cpu:0"
    char what[96];              // "AMD EPYC, avx512, 2 threads", for logs
    int kv_page_tok;            // tokens in a KV page (a multiple of 32); the back end decides the layout inside a page
    int64_t head_rows;          // rows of logits worth processing at a time, times vocab: rows = head_rows / vocab, at least 1
    bool can_capture;           // graph_begin and its family work (cuda)
    bool recording;             // between graph_begin and graph_end, its own or another device's
    bool can_meet;              // tree_sum.meet works while recording (cuda)
    char software[96];          // versions of driver and libraries; "" where there are none
    bool host_memory;           // the host may read this device's pointers after device_sync (ref, cpu)
    struct choices *choices;    // of choices.h (cuda), owned; NULL: products need none
    struct trace *trace;        // of trace.h, or NULL
};

/* Open "ref", "cpu:N" or "cuda:N". n_thread: cpu threads, 0 for all cores this process may use. RC_CPU=avx512|avx2|scalar
 * picks a cpu code path (an unsupported one is an error). NULL: see err; ERR_UNSUPPORTED: there is no such GPU, or nothing here can drive
 * one. */
struct device *device_new(const char *name, int n_thread, struct error *err);
void device_free(struct device *dev);    // memory still held on it is lost; NULL is fine
/* The calling thread drives dev from now on; before each change where one thread drives several. */
MUST_USE bool device_enter(struct device *dev, struct error *err);
/* Can dev's operations use memory of other, a device of the same process? They may, once this has said so. */
MUST_USE bool device_reach(struct device *dev, struct device *other, bool *reach, struct error *err);
/* Wait until all requested work is done; reports an error of an earlier asynchronous operation. */
MUST_USE bool device_sync(struct device *dev, struct error *err);

/* --- memory: not to be used inside a step ------------------------------------------------------------------------- */
struct mem_handle;
/* size_bytes of device memory, aligned to 256 bytes, contents undefined; NULL: err says what it was for. */
void *mem_new(struct device *dev, size_t size_bytes, const char *what, struct error *err);
void mem_free(struct device *dev, void *p);
/* Host memory that the device copies from and to at full speed (pinned for cuda). */
void *host_new(struct device *dev, size_t size_bytes, const char *what, struct error *err);
void host_free(struct device *dev, void *p);
/* Host memory, as of host_new, that other processes of this host may open too. It is freed after they have closed it. *h says how to
 * find it. */
void *host_share_new(struct device *dev, size_t size_bytes, const char *what, struct mem_handle *h, struct error *err);
void host_share_free(struct device *dev, void *p, size_t size_bytes, const struct mem_handle *h);
void *host_share_open(struct device *dev, const struct mem_handle *h, size_t size_bytes, struct error *err);    // plain host memory here
void host_share_close(struct device *dev, const void *p, size_t size_bytes);
/* Free and total device memory in bytes; for cpu and ref the machine's. */
MUST_USE bool mem_info(struct device *dev, size_t *free_bytes, size_t *total_bytes, struct error *err);
enum copy_dir {
    COPY_H2D,
    COPY_D2H,
    COPY_D2D,
};
/* Copy in stream order. H2D: ordinary host memory may be reused on return, host_new memory only after the copy is done. D2H: the
 * bytes have arrived after device_sync. */
MUST_USE bool mem_copy(struct device *dev, void *dst, const void *src, size_t size_bytes, enum copy_dir dir, struct error *err);

/* A point in the stream of work, so that the host can wait for one call's results while later calls run. Waiting for a mark that
 * was never set returns at once. */
struct mark;
struct mark *mark_new(struct device *dev, struct error *err);
void mark_free(struct device *dev, struct mark *m);                                // NULL is fine
MUST_USE bool mark_set(struct device *dev, struct mark *m, struct error *err);     // after all work requested so far
MUST_USE bool mark_wait(struct device *dev, struct mark *m, struct error *err);    // until all work requested before the mark is done

/* Is what was asked for before it done? Does not wait. */
MUST_USE bool mark_done(struct device *dev, struct mark *m, bool *done, struct error *err);
/* A mark that notes when the device was past it, and the seconds between two such marks that are done. */
struct mark *mark_new_timed(struct device *dev, struct error *err);
MUST_USE bool marks_apart(struct device *dev, struct mark *from, struct mark *to, double *s, struct error *err);

/* --- lanes: work beside the device's own ---------------------------------------------------------------------------- */
/* A lane keeps its own order and knows neither the other lanes nor the device's stream: a caller that needs an order between them waits for
 * marks. cuda: streams; copies go by copy engines and take no multiprocessor. cpu, ref: done when the call returns. */
#define LANE_N 5
#define LANE_SUM_MAX 64
/* Copy between this device's memory and what mem_share_open gave. */
MUST_USE bool lane_copy(struct device *dev, int lane, void *dst, const void *src, size_t size_bytes, struct error *err);
/* y = ((y + x[0]) + x[1]) + ...: one fp32 addition for each, in this order. */
struct lane_sum {
    float *y;                        // (n)
    const float *x[LANE_SUM_MAX];    // (n_x) of (n) each
    int n_x;
    int64_t n;
};
MUST_USE bool lane_sum(struct device *dev, int lane, const struct lane_sum *s, struct error *err);
MUST_USE bool lane_mark(struct device *dev, int lane, struct mark *m, struct error *err);    // after all that the lane was asked for
MUST_USE bool lanes_sync(struct device *dev, struct error *err);                             // until all lanes are idle
/* An order between a lane and the device's stream of work, without the host: what is asked of the lane (of the device) from now on
 * begins when all that was before the mark is done. A mark that was never set holds nothing up. */
MUST_USE bool lane_after(struct device *dev, int lane, struct mark *m, struct error *err);
MUST_USE bool device_after(struct device *dev, struct mark *m, struct error *err);

/* --- memory that another process on this host opens: weights in transit (workers/engine/publish) --------------------------- */
/* How to find it: a CUDA IPC handle, or the maker's process and descriptor. A plain value that may be sent in a message. */
struct mem_handle {
    uint8_t bytes[96];
};
/* Like mem_new, and fills h; freed with mem_share_free, but only after the others have closed it. */
void *mem_share_new(struct device *dev, size_t size_bytes, const char *what, struct mem_handle *h, struct error *err);
void mem_share_free(struct device *dev, void *p, size_t size_bytes, const struct mem_handle *h);
/* Another process's memory, on this device or another one of the host, as this device reads and writes it. NULL: see err. */
void *mem_share_open(struct device *dev, const struct mem_handle *h, size_t size_bytes, struct error *err);
void mem_share_close(struct device *dev, const void *p, size_t size_bytes);

/* --- weights ------------------------------------------------------------------------------------------------------- */
/* A matrix (n_out, n_in) row-major as in Hugging Face (y = x W^T), in the form from which the back end computes best: a packed copy
 * on cpu, the K split and chosen algorithms on cuda. data is borrowed until weight_free. */
struct weight {
    const void *data;    // (n_out, n_in) of dtype
    enum dtype dtype;
    int64_t n_out, n_in;
    int64_t n_group;    // of group_fwd: data is (n_group, n_out, n_in), a matrix each; 0: one matrix
    int parts;          // how linear_fwd sums; see weight_new
    bool for_bwd;       // linear_bwd_x will be called, or group_bwd_x
    void *pack;         // the back end's own data
};
/* The parts of a sum that linear_fwd may be asked for. */
#define SUM_PARTS_MAX 8
/* Make the handle. It packs at once, so data must already hold its values (or call weight_refresh later). NULL: see err.
 * parts: how linear_fwd sums over n_in. 0: in the back end's own order for this shape. Else n_in is cut into this many equal parts (a power
 * of two up to SUM_PARTS_MAX), each is one chain from 0 in fp32, and they are added as tree_sum does, the bias last. Then a device that
 * has only some neighbouring parts of the columns (half, a quarter) and gives fp32 without bias has a branch of the same tree. With
 * parts 1, a device that has only some of the rows gives the same bits for them. */
struct weight *weight_new(struct device *dev, const void *data, enum dtype dtype, int64_t n_out, int64_t n_in, int parts, bool for_bwd,
                          struct error *err);
/* As weight_new, for n_group matrices, one for each expert of a layer, which group_fwd and group_bwd_x take; each sum is one chain. */
struct weight *weight_new_grouped(struct device *dev, const void *data, enum dtype dtype, int64_t n_group, int64_t n_out, int64_t n_in,
                                  bool for_bwd, struct error *err);
void weight_free(struct device *dev, struct weight *w);
/* Call when data has changed (loading, optimizer step, publication): packs again, in stream order. */
MUST_USE bool weight_refresh(struct device *dev, struct weight *w, struct error *err);

/* Choose how products of this kind are computed, unless that is known, and call them `name` in the device's table; *out: its entry there,
 * NULL without one. What nobody asked for is chosen by its first use. Fails where there is nothing to choose (device.choices NULL). */
MUST_USE bool product_choose(struct device *dev, const char *name, const struct product_kind *kind, const struct choice **out,
                             struct error *err);

/* Measure what promise 1 costs in one product y (n, n_out) = x W^T + bias, on random data with weights in no cache, timed in a
 * recorded run. It allocates its own memory; cuda only, elsewhere the table has NULL. */
struct linear_cost {
    int64_t n, n_out, n_in;
    bool bias;
    enum dtype y_dtype;
    double rule_us;    // out: linear_fwd
    double best_us;    // out: the best of eight algorithms that may sum in any order
};

/* --- graphs (cuda; device.can_capture) ------------------------------------------------------------------------------ */
struct graph;
/* Between begin and end operations are recorded, not run, and so are those of other devices that are asked, by one thread at a time, to
 * begin after a mark that was set in between, up to one that dev waits for before the end; run each kind of call once before, so that its
 * scratch exists. */
MUST_USE bool graph_begin(struct device *dev, struct error *err);
void graph_join(struct device *dev, bool joins);    // dev takes part in another's recording from now on, or no longer
struct graph *graph_end(struct device *dev, struct error *err);
MUST_USE bool graph_launch(struct device *dev, struct graph *g, struct error *err);
void graph_free(struct device *dev, struct graph *g);

/* --- the operations: each takes a struct of its own name ------------------------------------------------------------ */

/* y[i] = table[row[i] - first]: token embedding, or selecting rows of activations. Rows outside [first, first + n_row) are an error on
 * cpu and ref, and give a row of zeros on cuda; with `slice` they leave y[i] as it is, since another slice of the table has them. */
struct rows_gather {
    void *y;               // (n, d) dtype
    const void *table;     // (n_row, d) dtype
    const int32_t *row;    // (n)
    int64_t n, first, n_row, d;
    bool slice;
    enum dtype dtype;
};
/* Copy rows of bytes, also between devices that reach each other's memory: blocks of a matrix. */
struct rows_copy {
    void *y;
    const void *x;
    int64_t n;
    size_t row_bytes, ldy_bytes, ldx_bytes;    // the latter: distances of rows
};
/* y[row[i]] = x[i]; each row occurs at most once, other rows are untouched. */
struct rows_scatter {
    void *y;               // (n_row, d) dtype
    const void *x;         // (n, d) dtype
    const int32_t *row;    // (n)
    int64_t n, n_row, d;
    enum dtype dtype;
};
/* y[i] = ((x[row[first[i]]] + x[row[first[i] + 1]]) + ...) up to row[first[i + 1] - 1], in fp32 and rounded once; no row: zeros. The gradient
 * by rows that several read: each is a row of x. */
struct rows_join {
    void *y;                 // (n, d) dtype
    const void *x;           // (n_row, d) dtype
    const int32_t *row;      // (first[n]) below n_row
    const int32_t *first;    // (n + 1)
    int64_t n, n_row, d;
    enum dtype dtype;
};
/* dtable[r - first] += sum of dy[i] over the i with row[i] == r, in order of i: gradient of the embedding. Rows outside [first, first +
 * n_row) are an error on cpu and ref, and nothing on cuda; with `slice` they are another slice's everywhere. */
struct embed_bwd {
    float *dtable;         // (n_row, d) +=
    const void *dy;        // (n, d) dtype
    const int32_t *row;    // (n)
    int64_t n, first, n_row, d;
    bool slice;
    enum dtype dtype;
};

/* Where a norm multiplies by its weight and where it rounds to dtype, with xhat the normalised value; in fp32 the first two are one.
 * transformers' classes of the families differ so. */
enum norm_form {
    NORM_LLAMA,    // w round(xhat)
    NORM_OLMO,     // round(w xhat)
    NORM_GEMMA,    // round((1 + w) xhat)
};
/* sum = x + add (or x when add is NULL); y = w * sum / sqrt(mean(sum^2) + eps), in one of those forms. RMSNorm, arXiv 1910.07467,
 * eq. 4. */
struct rmsnorm_fwd {
    void *y;             // (n, d) dtype
    void *sum;           // (n, d) dtype: receives x + add; may be x; needed with add
    const void *x;       // (n, d) dtype
    const void *add;     // (n, d) dtype, or NULL
    const void *w;       // (d) dtype
    float *rstd;         // (n) 1 / root of the mean square, for the backward; NULL: not wanted
    int64_t n, d, ld;    // ld: distance of the rows of y, sum, x and add; 0: d
    float eps;
    enum norm_form form;
    enum dtype dtype;
};
/* dx = dadd + gradient through the norm; dw += ... . x is the forward's sum. dx may be dadd or dy. */
struct rmsnorm_bwd {
    void *dx;             // (n, d) dtype
    float *dw;            // (d) +=; NULL: not wanted
    const void *dy;       // (n, d) dtype
    const void *dadd;     // (n, d) dtype gradient that reaches sum past the norm, or NULL
    const void *x;        // (n, d) dtype
    const void *w;        // (d) dtype
    const float *rstd;    // (n)
    int64_t n, d, ld;     // ld: distance of the rows of dx, dy, dadd and x; 0: d
    enum norm_form form;
    enum dtype dtype;
};

/* y = x W^T + bias. */
struct linear_fwd {
    void *y;          // (n, n_out) y_dtype, rows ldy apart
    const void *x;    // (n, n_in) of the weight's dtype, rows ldx apart
    const struct weight *w;
    const void *bias;       // (n_out) of the weight's dtype, or NULL
    int64_t n, ldx, ldy;    // ldx, ldy 0: dense
    enum dtype y_dtype;     // DT_F32 for logits
    bool for_norm;          // the next operation is a rmsnorm_fwd with add = y, and nothing else reads y: a back end may leave the last
                            // sums to that one, and not write y
    bool in_parts;          // with w->parts above 1, while recording on a device that can_meet: y is (parts, n, n_out) fp32, the parts, not
                            // their sum, and no bias; y_dtype DT_F32, dense
    bool for_gate;          // the next operation is a swiglu_fwd with gu = y, and nothing else reads y: a back end may compute both at
                            // once, and not write y
};
/* Where devices meet inside a recorded step: words of each, 0 but while it is waited for, which the others write. Two meetings in a row
 * need words of their own, and so does each sum's x: a device is past a meeting before it comes to the next, so those of the meeting
 * before are free again. */
#define MEET_ROWS 512    // of a norm that meets by itself
struct step_meeting {
    uint32_t *word[SUM_PARTS_MAX];    // (n) of each device (n, MEET_ROWS): by which device, and which row or 0
    int n, rank;
};
/* y = the sum of the x as a balanced binary tree, ((x0 + x1) + (x2 + x3)) + ..., in fp32, + bias, rounded once: what weight.parts
 * promises. x may be memory of other devices that this one reaches. */
struct tree_sum {
    void *y;                          // (n, d) y_dtype, rows ldy apart
    const float *x[SUM_PARTS_MAX];    // (n_x) of (n, d), rows ldx apart; n_x: a power of two
    const void *bias;                 // (d) dtype, or NULL
    int n_x;
    int64_t n, d, ldx, ldy;    // ldx, ldy 0: dense
    enum dtype y_dtype, dtype;
    /* While recording: x[q] is what device q was asked for before its own tree_sum of this meeting, which the devices wait for as the step
     * runs; copied. NULL: x is there. */
    const struct step_meeting *meet;
    bool for_norm;    // as linear_fwd's
};
/* dx = dy W, or dx += dy W with `accumulate`; or of some rows of W and as many columns of dy a part of that sum. The bits of an element
 * depend on no other columns of W when the weight was made with parts. */
struct linear_bwd_x {
    void *dx;                  // (n, n_in) of the weight's dtype, or fp32 with `f32`
    const void *dy;            // (n, n_out) of the weight's dtype, or (n, n_k)
    const struct weight *w;    // made with for_bwd
    int64_t n, ldx, lddy;      // row distance of dx and of dy; 0: dense
    int64_t first, n_k;        // only rows [first, first + n_k) of W, dy's columns being theirs; n_k 0: all rows
    bool accumulate, f32;
};
/* y = dy W as a sum over rows of W in parts, which tree_sum would add: part p has of each of n_seg groups of rows `each`, those from
 * at + p each on, as far as `end`. The rows of a group are one chain from 0 in fp32, and a part is the sum of its chains in order. */
struct linear_bwd_tree {
    void *y;                   // (n, n_in) y_dtype, dense
    const void *dy;            // (n, lddy) of the weight's dtype
    const struct weight *w;    // made with for_bwd and parts
    float *part;               // (n_part, n, n_in) memory to work in; n_part 1 and y fp32: NULL will do
    int64_t n, lddy;
    int n_part, n_seg;    // n_part: a power of two up to SUM_PARTS_MAX
    struct {
        int64_t at, each, end;
    } seg[3];
    enum dtype y_dtype;
};
/* dw += dy^T x, or dw = dy^T x with `set`; dbias += sum of dy over rows. With `any_cut` an element's bits do not depend on n_out and n_in,
 * so that a device that has some rows or columns of dw gives the same ones. */
struct linear_bwd_w {
    float *dw;                            // (n_out, n_in) +=, dense
    float *dbias;                         // (n_out) +=, or NULL
    const void *dy;                       // (n, n_out) dtype
    const void *x;                        // (n, n_in) dtype
    int64_t n, n_out, n_in, lddy, ldx;    // row distances; 0: dense
    enum dtype dtype;
    bool set, any_cut;
};

/* Heads of one projection row are [q: n_q heads | k: n_kv | v: n_kv], each hd wide. */
struct attn_heads {
    int n_q, n_kv, hd;    // hd: a multiple of 16, at most 256 (cuda: 16, 32, 64, 96, 128 or 256)
};
/* A KV pool of one layer: pages of kv_page_bytes each, K and V of kv_page_tok tokens of all KV heads; the back end decides the
 * layout inside, so only whole pages are copied (kv_copy). */
static inline size_t kv_page_bytes(const struct device *dev, struct attn_heads h, enum dtype t)
{
    return (size_t)2 * (size_t)h.n_kv * (size_t)dev->kv_page_tok * (size_t)h.hd * dtype_size(t);
}
/* q and k of each row: optional RMSNorm over hd (Qwen3), then rotation by the row's position, half-split as in Hugging
 * Face: (a, b) -> (a cos - b sin, b cos + a sin) for a in the first half of the rot dimensions that turn, b in the second; those
 * from rot on stay. v is copied when out is not qkv. K and V are also written to the KV pool where slot says so. RoPE, arXiv
 * 2104.09864. */
struct rope_fwd {
    void *out;                 // (n, (n_q + 2 n_kv) hd) dtype; may be qkv (then nothing is left for a q/k norm's backward)
    const void *qkv;           // same shape, dtype
    const float *cos, *sin;    // (n_pos, rot / 2)
    const int32_t *pos;        // (n) position of the row in its sequence
    const void *q_norm;        // (hd) dtype, or NULL
    const void *k_norm;        // (hd) dtype, or NULL
    void *kv;                  // pool, or NULL
    const int32_t *slot;       // (n) page * kv_page_tok + place in the page, or -1: do not write; NULL without a pool
    int64_t n, n_pos;
    struct attn_heads heads;
    int rot;                // dimensions of a head that turn, an even number; 0: hd
    float eps;              // of the q/k norm
    enum norm_form form;    // of the q/k norm: NORM_GEMMA adds 1 to its weights, the others are alike
    enum dtype dtype;
    bool for_decode;    // the next operation is an attn_paged with qkv = out and one query per sequence, the last of its tokens, no two of
                        // one sequence, and nothing else reads out: a back end may compute both at once, and not write out
};
/* dqkv (gradient with respect to out) becomes the gradient with respect to qkv, in place. */
struct rope_bwd {
    void *dqkv;         // (n, (n_q + 2 n_kv) hd) dtype, in and out
    const void *qkv;    // the forward's input; needed with q/k norm
    const float *cos, *sin;
    const int32_t *pos;
    const void *q_norm, *k_norm;    // (hd) dtype or NULL
    float *dq_norm, *dk_norm;       // (parts, hd) +=: each part of the heads, which are neighbours, has its own sum
    int64_t n, n_pos;
    struct attn_heads heads;
    int parts;    // of the query heads and of the key heads, which they divide; 0: 1
    int rot;
    float eps;
    enum norm_form form;
    enum dtype dtype;
};
/* Copy whole pages inside a pool: page[dst[i]] = page[src[i]]; for the unfinished last page of a shared prompt. */
struct kv_copy {
    void *kv;                    // pool of one layer
    const int32_t *src, *dst;    // (n) page numbers
    int64_t n;
    struct attn_heads heads;
    enum dtype dtype;
};

/* What some models do to the scores of attention. */
struct attn_bounds {
    int64_t window;    // a query sees this many keys, the one of its own position the last; 0: all before it
    float cap;         // a score s becomes cap tanh(s / cap); 0: it stays. Gemma 2, arXiv 2408.00118, section 2
};
/* Causal attention over sequences packed end to end: out = softmax(q k^T scale) v, scale 1 / sqrt(hd).
 * One pass over keys in ascending order with running maximum, arXiv 2205.14135 algorithm 1 (cpu: two passes). */
struct attn_fwd {
    void *out;                  // (n, n_q hd) dtype
    float *lse;                 // (n, n_q) natural log of the softmax's sum, scaled scores; NULL: not wanted
    const void *qkv;            // (n, (n_q + 2 n_kv) hd) dtype, after rope_fwd
    const int32_t *seq;         // (n_seq + 1) first row of each sequence; seq[n_seq] == n
    const int32_t *seq_host;    // the same on the host
    int64_t n, n_seq;
    struct attn_heads heads;
    struct attn_bounds bounds;
    enum dtype dtype;
};
/* dqkv from dout; arXiv 2205.14135 algorithm 4. Deterministic. */
struct attn_bwd {
    void *dqkv;          // (n, (n_q + 2 n_kv) hd) dtype
    const void *dout;    // (n, n_q hd) dtype
    const void *out;     // (n, n_q hd) dtype, of the forward
    const float *lse;    // (n, n_q)
    const void *qkv;     // as in the forward
    const int32_t *seq, *seq_host;
    int64_t n, n_seq;
    struct attn_heads heads;
    struct attn_bounds bounds;    // of the forward
    enum dtype dtype;
};
/* Attention of queries over KV pages (decode: one query per sequence; prefill: several). Query rows of sequence s are
 * q_seq[s] .. q_seq[s + 1] - 1, the last of them at position kv_len[s] - 1; K and V of all its positions are in the pool
 * already (rope_fwd writes them). */
struct attn_paged {
    void *out;                // (n, n_q hd) dtype
    const void *qkv;          // (n, (n_q + 2 n_kv) hd) dtype, after rope_fwd: its k and v are not read
    const void *kv;           // pool of this layer
    const int32_t *page;      // (n_seq, max_page) page numbers in order
    const int32_t *kv_len;    // (n_seq) tokens in the pool, including this call's; 0: the sequence is absent, out untouched
    const int32_t *q_seq;     // (n_seq + 1); NULL: one query each, row s for sequence s
    int64_t n, n_seq, max_page;
    int64_t max_q;     // upper bound on queries of a sequence (1 for decode)
    int64_t max_kv;    // upper bound on kv_len in this call; 0: max_page * kv_page_tok
    struct attn_heads heads;
    struct attn_bounds bounds;
    enum dtype dtype;
};

enum gate_act {
    ACT_SILU,         // x sigmoid(x)
    ACT_GELU_TANH,    // x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), torch's gelu(approximate="tanh")
};
#define GELU_IN 1.5957691216057308    // 2 sqrt(2 / pi)
#define GELU_CUBE 0.044715
/* y = act(gate) * up; gu rows are [gate: f | up: f]. arXiv 2002.05202, eq. 6. */
struct swiglu_fwd {
    void *y;           // (n, f) dtype
    const void *gu;    // (n, 2 f) dtype
    int64_t n, f;
    enum gate_act act;
    enum dtype dtype;
};
struct swiglu_bwd {
    void *dgu;         // (n, 2 f) dtype; may be gu
    void *y;           // (n, f) dtype: what swiglu_fwd gave, to the bit, for a caller that has not kept it; or NULL
    const void *dy;    // (n, f) dtype
    const void *gu;    // (n, 2 f) dtype
    int64_t n, f;
    enum gate_act act;
    enum dtype dtype;
};

/* --- experts: a row of activations goes through k of n_expert small MLPs, and gets the weighted sum of what they give. No expert has a
 * limit of rows, and none is left out, so what a row gets depends on no other row (promise 1). */
#define ROUTE_EXPERTS_MAX 1024
enum route_kind {
    ROUTE_SOFTMAX,    // score: the softmax over all logits; normalised over the chosen ones it is the softmax over their logits
    ROUTE_SIGMOID,    // score: 1 / (1 + e^-logit)
};
/* The k experts of each row, those with the largest score + bias, among equals the lower id first, and their weights: the scores, divided by
 * the sum of the k scores (sigmoid: + 1e-20) if `normalise`, times scale. The bias takes part in the choice only. By softmax the logits are
 * compared, whose order is the scores' own. Formulas: transformers' Qwen3-MoE, GraniteMoE (softmax over the chosen logits) and DeepSeek-V3. */
struct route_fwd {
    int32_t *expert;        // (n, k) ids, ascending
    float *weight;          // (n, k)
    const float *logits;    // (n, n_expert)
    const float *bias;      // (n_expert), or NULL
    int64_t n, n_expert, k;
    enum route_kind kind;
    bool normalise;
    float scale;
};
/* The gradient by the logits, of that by the weights; `logits` and `expert` are the forward's. */
struct route_bwd {
    void *dlogits;           // (n, n_expert) dtype
    const float *dweight;    // (n, k)
    const float *logits;
    const int32_t *expert;
    int64_t n, n_expert, k;
    enum route_kind kind;
    bool normalise;
    float scale;
    enum dtype dtype;
};
/* The list of (expert, row) pairs, sorted by expert and then by row: places first[e] .. first[e + 1] - 1 are expert e's. */
struct group_rows {
    int32_t *first;           // (n_expert + 1)
    int32_t *row;             // (n k) the row at each place
    int32_t *place;           // (n, k) the place of each pair
    int64_t *load;            // (n_expert) += rows of each expert; NULL: not wanted
    const int32_t *expert;    // (n, k) of route_fwd
    int64_t n, n_expert, k;
};
/* Rows first[g] .. first[g + 1] - 1 of y are those of x times matrix g: y = x W_g^T, every element one chain over n_in from 0, whatever
 * the number of rows. */
struct group_fwd {
    void *y;                   // (n, n_out) dtype
    const void *x;             // (n, n_in) dtype, the weight's
    const struct weight *w;    // of weight_new_grouped
    const int32_t *first;      // (n_group + 1), first[n_group] == n
    int64_t n;
};
/* dx = dy W_g for those rows, every element one chain over n_out. */
struct group_bwd_x {
    void *dx;                  // (n, n_in) dtype, the weight's
    const void *dy;            // (n, n_out) dtype
    const struct weight *w;    // made with for_bwd
    const int32_t *first;
    int64_t n;
};
/* dw_g += dy^T x over those rows, in their order, or dw_g = that with `set`: of a matrix without rows 0. */
struct group_bwd_w {
    float *dw;         // (n_group, n_out, n_in) +=
    const void *dy;    // (n, n_out) dtype
    const void *x;     // (n, n_in) dtype
    const int32_t *first;
    int64_t n, n_group, n_out, n_in;
    enum dtype dtype;
    bool set;
};
/* y[i] = ((w0 x[place[i, 0]] + w1 x[place[i, 1]]) + ...) in fp32 and rounded once; in order of the experts, as route_fwd lists them. */
struct combine_fwd {
    void *y;                 // (n, d) dtype
    const void *x;           // (n k, d) dtype
    const float *weight;     // (n, k); NULL: 1 each, the gradient by rows that several experts read
    const int32_t *place;    // (n, k)
    int64_t n, k, d;
    enum dtype dtype;
};
/* The gradient by the weights, and through them, where rows are narrow: before an expert's last product, of which x is the input and dx
 * is dy W with the gradient dy by the sum. dweight = <dx, x>, then both are multiplied by the pair's weight: dx is the gradient by x, and
 * dy^T x that by W. */
struct combine_bwd {
    float *dweight;          // (n, k)
    void *x, *dx;            // (n k, f) dtype, in and out
    const float *weight;     // (n, k)
    const int32_t *place;    // (n, k)
    int64_t n, k, f;
    enum dtype dtype;
};

/* --- gated delta net: a layer whose memory of the past is one matrix per head, of a fixed size (Qwen3-Next, Qwen3.5; arXiv 2412.06464).
 * Everything is computed token by token in the order of the sequence, in one way for any number of tokens. So a sequence gets the same
 * bits in one call, in several, or with one call for each token. */
#define DELTA_WIDTH_MAX 256    // of d_k and d_v
/* A key head j serves the value heads j r .. j r + r - 1, r = n_v / n_k. A row of the layer's input projection has C = 2 n_k d_k + n_v d_v
 * channels of q, k and v, which are convolved, and z, b and a: [q | k | v | z | b | a], each by heads; or with by_key, for each key head
 * its [q | k | v | z], and after them for each its [b | a] (Qwen3-Next). */
struct delta_heads {
    int n_k, n_v, d_k, d_v;
    bool by_key;
};
static inline BOTH_SIDES int64_t delta_channels(struct delta_heads h)
{
    return (int64_t)2 * h.n_k * h.d_k + (int64_t)h.n_v * h.d_v;
}
/* Columns of a row of the input projection. */
static inline BOTH_SIDES int64_t delta_columns(struct delta_heads h)
{
    return delta_channels(h) + (int64_t)h.n_v * h.d_v + 2 * h.n_v;
}
enum delta_part {
    DELTA_Q,
    DELTA_K,
    DELTA_V,
    DELTA_Z,
    DELTA_B,
    DELTA_A,
};
/* Where a part of head i, a key head for q and k, begins in such a row. */
static inline BOTH_SIDES int64_t delta_at(struct delta_heads h, enum delta_part part, int64_t i)
{
    int64_t r = h.n_v / h.n_k, j = part <= DELTA_K ? i : i / r, own = part <= DELTA_K ? 0 : i % r;
    int64_t qk = (int64_t)h.n_k * h.d_k, v = (int64_t)h.n_v * h.d_v, group = 2 * h.d_k + 2 * r * h.d_v;
    const int64_t flat[] = { i * h.d_k,          qk + i * h.d_k,
                             2 * qk + i * h.d_v, 2 * qk + v + i * h.d_v,
                             2 * qk + 2 * v + i, 2 * qk + 2 * v + h.n_v + i };
    const int64_t keyed[] = { 0, h.d_k, 2 * h.d_k + own * h.d_v, 2 * h.d_k + (r + own) * h.d_v, own, r + own };
    return !h.by_key ? flat[part] : keyed[part] + (part < DELTA_B ? j * group : h.n_k * group + j * 2 * r);
}
/* What a sequence keeps in a slot of a layer: the matrices (n_v, d_k, d_v), then the last 3 inputs of each channel (3, C). */
static inline BOTH_SIDES int64_t delta_state_floats(struct delta_heads h)
{
    return (int64_t)h.n_v * h.d_k * h.d_v + 3 * delta_channels(h);
}
/* Which rows belong to which sequence, and where its state is. Rows seq[s] .. seq[s + 1] - 1 are sequence s; seq NULL: row s. A sequence
 * begins with the state that its slot holds, or with zeros where its first row has position 0, and leaves its state there. */
struct delta_seqs {
    const int32_t *seq;     // (n_seq + 1), or NULL
    const int32_t *slot;    // (n_seq) -1: no sequence, its rows give 0. NULL: all begin with zeros, and none leaves anything
    const int32_t *pos;     // (n) of the rows; read with slot
    float *state;           // (slots, delta_state_floats) of the layer, with slot
    int64_t n, n_seq;
};
/* y = silu(c), c_t = sum over j of w[:, j] x_(t - 3 + j), for each channel of q, k and v; x: those columns of the input projection. */
struct conv4_fwd {
    void *y;          // (n, C) dtype, [q | k | v]
    const void *x;    // (n, delta_columns) dtype
    const void *w;    // (C, 4) dtype
    struct delta_seqs of;
    struct delta_heads heads;
    enum dtype dtype;
};
/* Each sequence begins with zeros. */
struct conv4_bwd {
    void *dx;          // (n, delta_columns) dtype: its columns of q, k and v are written
    float *dw;         // (C, 4) +=; NULL: not wanted
    const void *dy;    // (n, C) dtype
    const void *x, *w;
    struct delta_seqs of;
    struct delta_heads heads;
    enum dtype dtype;
};
/* For each value head, with q and k divided by their norms (1e-6 under the root), q by the root of d_k, too, S (d_k, d_v) in fp32:
 *   beta = sigmoid(b)   g = -exp(a_log) softplus(a + dt_bias)   S <- e^g S   u = beta (v - S'k)   S <- S + k u'   o = S'q
 * arXiv 2412.06464, eq. 10. */
struct delta_rule_fwd {
    void *o;                // (n, n_v d_v) dtype
    const void *x;          // (n, C) dtype, conv4_fwd's y
    const void *row;        // (n, delta_columns) dtype, for b and a
    const void *a_log;      // (n_v) dtype
    const void *dt_bias;    // (n_v) dtype
    struct delta_seqs of;
    struct delta_heads heads;
    enum dtype dtype;
};
/* Each sequence begins with zeros. The states are computed again from the beginning: one is kept for each DELTA_KEEP tokens, and those
 * between are made of it when they are needed. */
#define DELTA_KEEP 64
/* The bytes that it works in for n rows, on a GPU: the states that are kept, and parts of the gradients by q and k over DELTA_BACK_COLS
 * columns of a state each. */
#define DELTA_BACK_COLS 64
static inline int64_t delta_back_parts(struct delta_heads h)
{
    return (h.d_v + DELTA_BACK_COLS - 1) / DELTA_BACK_COLS;
}
static inline size_t delta_bwd_bytes(const struct device *dev, struct delta_heads h, int64_t n)
{
    int64_t states = n / DELTA_KEEP * h.n_v * h.d_k * h.d_v, parts = n * h.n_v * delta_back_parts(h) * 2 * h.d_k;
    return dev->kind == DEVICE_CUDA ? (size_t)(states + parts) * sizeof(float) : 0;
}
struct delta_rule_bwd {
    void *dx;                    // (n, C) dtype
    void *drow;                  // (n, delta_columns) dtype: its columns of b and a are written
    float *da_log, *ddt_bias;    // (n_v) +=; NULL: not wanted
    void *room;                  // of delta_bwd_bytes, on the device; NULL where it takes none
    const void *dout;            // (n, n_v d_v) dtype
    const void *x, *row, *a_log, *dt_bias;
    struct delta_seqs of;
    struct delta_heads heads;
    enum dtype dtype;
};
/* y = w round(o / rms(o)) silu(z) for each value head; z: columns of the input projection. */
struct gated_norm_fwd {
    void *y;            // (n, n_v d_v) dtype
    const void *o;      // (n, n_v d_v) dtype
    const void *row;    // (n, delta_columns) dtype
    const void *w;      // (d_v) dtype
    int64_t n;
    float eps;
    struct delta_heads heads;
    enum dtype dtype;
};
struct gated_norm_bwd {
    void *dout;        // (n, n_v d_v) dtype; may be dy
    void *drow;        // (n, delta_columns) dtype: its columns of z are written
    float *dw;         // (d_v) +=; NULL: not wanted
    const void *dy;    // (n, n_v d_v) dtype
    const void *o, *row, *w;
    int64_t n;
    float eps;
    struct delta_heads heads;
    enum dtype dtype;
};
/* Rows in which each query head is followed by its gate, [q0 | g0 | q1 | g1 | ... | k | v], to rows of attn_heads and rows of gates. */
struct gate_split {
    void *qkv;           // (n, (n_q + 2 n_kv) hd) dtype
    void *gate;          // (n, n_q hd) dtype
    const void *both;    // (n, (2 n_q + 2 n_kv) hd) dtype
    int64_t n;
    struct attn_heads heads;
    enum dtype dtype;
};
struct gate_join {
    void *both;
    const void *qkv, *gate;
    int64_t n;
    struct attn_heads heads;
    enum dtype dtype;
};
/* y = x sigmoid(gate); and its gradients. */
struct gate_fwd {
    void *y;                 // (n) dtype; may be x
    const void *x, *gate;    // (n) dtype
    int64_t n;
    enum dtype dtype;
};
struct gate_bwd {
    void *dx, *dgate;             // (n) dtype; dx may be dy
    const void *dy, *x, *gate;    // (n) dtype
    int64_t n;
    enum dtype dtype;
};

/* y = a + b. */
struct add_fwd {
    void *y;              // (n) dtype; may be a or b
    const void *a, *b;    // (n) dtype
    int64_t n;
    enum dtype dtype;
};
/* y = x * scale, between any two dtypes (cast: scale 1). */
struct cast {
    void *y;          // (n) y_dtype; may be x when the types are the same
    const void *x;    // (n) x_dtype
    int64_t n;
    float scale;
    enum dtype y_dtype, x_dtype;
};
/* x = cap tanh(x / cap), fp32, in place: the logits of Gemma 2, arXiv 2408.00118, section 2. */
struct softcap {
    float *x;    // (n)
    int64_t n;
    float cap;    // above 0
};
/* y += x * scale, fp32: sums of gradients. */
struct axpy {
    float *y;          // (n)
    const float *x;    // (n)
    int64_t n;
    float scale;
};
/* y = (1 - share) y + share x, in fp32 and rounded once; share 1 copies: a reference that follows the policy. */
struct blend {
    void *y;          // (n) dtype
    const void *x;    // (n) dtype
    int64_t n;
    float share;
    enum dtype dtype;
};
/* Set every byte to `byte`. */
struct mem_fill {
    void *y;
    size_t size_bytes;
    uint8_t byte;
};

/* Statistics of rows of logits at temperature T (z = logits / T): log-prob of the given id z_id - lse, entropy
 * -sum p ln p. Ids at or above n_live get probability 0. sample_fwd's log-prob comes from this code too. */
struct logprob_fwd {
    float *logp;                     // (n), or NULL
    float *entropy;                  // (n) nat, or NULL
    float *lse;                      // (n) of z, for logprob_bwd; or NULL
    int32_t *argmax;                 // (n) lowest index of the largest logit, or NULL
    const float *logits;             // (n, vocab), rows ld apart
    const int32_t *id;               // (n); an id outside [0, n_live) gives logp -INFINITY
    int64_t n, vocab, n_live, ld;    // n_live 0: vocab; ld 0: vocab
    float temperature;               // above 0
};
/* dlogits[j] = coef (1{j = id} - p_j) / T: gradient of sum coef_i logp_i; with a cap times 1 - (logits[j] / cap)^2, the gradient by
 * what softcap was given. */
struct logprob_bwd {
    void *dlogits;                        // (n, vocab) dtype, rows ldd apart; fp32 may be logits themselves, in place
    const float *logits;                  // (n, vocab), rows ld apart
    const float *lse;                     // (n)
    const float *coef;                    // (n) dL/dlogp
    const int32_t *id;                    // (n)
    int64_t n, vocab, n_live, ld, ldd;    // 0: as above
    float temperature;
    float cap;    // 0: none
    enum dtype dtype;
};
/* Policy loss with a penalty, and its gradient with respect to each token's log-prob:
 *   loss = weight (rho term(r, A) + beta kl),   r = exp(log_ratio), or exp(logp - logp_old);   coef = dloss/dlogp.
 * policy_form.h has the terms.
 * log_ratio is for ratios of whole sequences, s = exp(mean of logp - logp_old): GSPO, arXiv 2507.18071, sec. 4.1. A token's derivative is
 * that of GSPO-token (sec. 4.3), s times the derivative of its own log-prob; where all tokens of a sequence have the same weight and
 * advantage the sum over them is the gradient of the sequence's own term. */
struct policy_loss {
    float *coef;                     // (n)
    float *loss;                     // (n), or NULL
    float *ratio;                    // (n) r, or NULL
    const float *logp, *logp_old;    // (n)
    const float *log_ratio;          // (n), or NULL
    const float *rho;                // (n) correction of the policy term, without gradient; NULL: 1
    const float *logp_ref;           // (n), or NULL: beta is not used
    const float *adv;                // (n) advantage of the token
    const float *weight;             // (n) its share of the loss; 0 masks it out whatever the other values are
    int64_t n;
    struct policy_form form;
};

/* How a row is sampled; its token depends only on these values and the row's logits. */
struct sample_row {
    uint64_t seed;
    int64_t item;
    int32_t sample;
    int32_t pos;          // position of the drawn token in its sequence
    float temperature;    // 0: the largest logit, the lowest id among equals; its logp is then at temperature 1
    float top_p;          // keep the likeliest tokens whose probabilities reach top_p (of those left by top_k); 1: off
    float min_p;          // keep those with at least min_p times the largest probability; 0: off
    int32_t top_k;        // keep those not below the k-th largest logit; 0: off
    int32_t n_ban;        // ids of its row of `ban` that are not drawn: as if their logits were -inf, before all else
};
#define SAMPLE_BAN_MAX 16    // of a row
/* Draw one token per row. logp is that of the whole tempered distribution, before top-k, top-p and min-p and with the banned ids, with the
 * same bits that logprob_fwd gives for these logits, id and temperature. Noise: Philox-4x32-10 (Salmon et al., SC11) at counter (item, sample,
 * pos), key seed; one uniform number, inverted through the cumulative distribution in id order. */
struct sample_fwd {
    int32_t *id;                     // (n)
    float *logp;                     // (n), or NULL
    float *entropy;                  // (n) nat at the row's temperature (1 when greedy), or NULL
    const float *logits;             // (n, vocab), rows ld apart
    const struct sample_row *row;    // (n)
    const int32_t *ban;              // (n, SAMPLE_BAN_MAX) read only where n_ban is above 0; NULL: it is nowhere
    int64_t n, vocab, n_live, ld;    // n_live 0: vocab; ld 0: vocab
};

/* part[b] = sum of x^2 over the block of elements from b SUMSQ_BLOCK on, in a fixed order. For the global gradient norm: the parts
 * of a shard that begins at a multiple of SUMSQ_BLOCK equal those of the whole, so the norm does not depend on which rank has which
 * shard. */
#define SUMSQ_BLOCK 8192
struct sumsq {
    double *part;      // (n / SUMSQ_BLOCK, rounded up)
    const float *x;    // (n)
    int64_t n;
};
/* sum = sum of the parts, in an order that depends only on n. */
struct sum_parts {
    double *sum;           // (1)
    const double *part;    // (n)
    int64_t n;
};
/* norm = sqrt(sum) grad_scale; coef = grad_scale min(1, max_norm / (norm + 1e-6)) as torch's clip_grad_norm_ does;
 * max_norm 0: no clipping. */
struct clip_coef {
    float *norm;          // (1)
    float *coef;          // (1) for adamw
    const double *sum;    // (1) from sum_parts
    float max_norm, grad_scale;
};
/* One AdamW step over a flat shard: g = grad coef[0]; master -= lr (mhat / (sqrt(vhat) + eps) + decay master), as torch's
 * AdamW (arXiv 1711.05101, algorithm 2: decay first, times lr); weight = master rounded to dtype. */
struct adamw {
    void *weight;             // (n) dtype, or NULL; in fp32 it may be master
    float *master, *m, *v;    // (n)
    const float *grad;        // (n)
    const float *coef;        // (1), or NULL: 1
    int64_t n, step;          // step: number of this step, from 1
    float lr, beta1, beta2, eps, decay;
    enum dtype dtype;
};
/* adamw's step, with its bits, for master, m and v in host_new memory: they move to the device and back piece by piece. The next
 * operation sees the new weights; master, m, v and the stage are in use until device_sync. */
struct adamw_host {
    struct adamw step;     // master NULL: the fp32 weight is the master, and stays on the device
    void *stage;           // device memory through which the pieces pass
    size_t stage_bytes;    // some 100 MB keep a bus busy; at least 64 KiB
};
/* adamw's step with moments of one byte each and a scale per ADAM8_BLOCK elements (adam8.h), and without decay: torch's AdamW decays
 * first, which cast does in place. The step itself takes the new moments before they are rounded. A scale of 0 makes any codes zeros. */
struct adamw8 {
    void *weight;                // (n) dtype, or NULL; in fp32 it may be master
    float *master;               // (n)
    uint8_t *m, *v;              // (n) codes
    float *m_scale, *v_scale;    // (n / ADAM8_BLOCK, rounded up)
    const float *grad, *coef;    // (n); (1), or NULL: 1
    int64_t n, step;
    float lr, beta1, beta2, eps;
    enum dtype dtype;
};
/* Adafactor, arXiv 1804.04235, algorithms 4 and 5, with the defaults and in the order of torch.optim.Adafactor, for one tensor in three
 * steps; G = grad coef, eps1 2^-23. A vector has n_col 1 and col NULL: its second moment is not factored.
 *   moments  row_i += share (mean_j G_ij^2 - row_i), col_j likewise over i; share = step^beta2_decay. row_mean is that of the new row
 *   update   grad becomes U_ij = G_ij / sqrt(max(row_i col_j / max(row_mean, eps1), eps1^2)), of a vector G_i / sqrt(max(row_i, eps1^2))
 *   apply    master = master (1 - lr decay) - rho max(eps2, RMS(master)) / max(1, RMS(U) / d) U,   rho = min(lr, 1 / sqrt(step)),
 *            eps2 1e-3, d 1; the sums of squares are sum_parts' */
struct adafactor_moments {
    float *row, *col, *row_mean;    // (n_row), (n_col), (1)
    const float *grad, *coef;       // (n_row, n_col), (1)
    int64_t n_row, n_col;
    float share;
};
struct adafactor_update {
    float *grad;    // (n_row, n_col)
    const float *row, *col, *row_mean, *coef;
    int64_t n_row, n_col;
};
struct adafactor_apply {
    void *weight;                        // (n) dtype, or NULL; in fp32 it may be master
    float *master;                       // (n)
    const float *u;                      // (n)
    const double *sum_master, *sum_u;    // (1) sums of squares
    int64_t n;
    float lr, decay, rho;
    enum dtype dtype;
};
#define ADAFACTOR_EPS1 0x1p-23f
#define ADAFACTOR_EPS2 1e-3f
/* A 64-bit hash of memory, for comparing weights between processes and back ends (the same everywhere):
 * sum over words i of mix(word_i + (i + 1) * 0x9e3779b97f4a7c15), mix: splitmix64's; an incomplete last word is zero-filled. So the
 * sum of the hashes of parts, each with its first, is that of the whole, also of parts that are some of a matrix's columns. */
struct mem_hash {
    uint64_t *hash;    // (1)
    const void *x;
    size_t size_bytes;
    int64_t first;                  // number of x's first word
    int64_t row_words, ld_words;    // 0: words are numbered on. Else x is rows of row_words; to the next one's first it is ld_words numbers
};

// clang-format off
#define OPS_DENSE(X) \
    X(rows_gather) X(rows_scatter) X(rows_join) X(rows_copy) X(embed_bwd) X(rmsnorm_fwd) X(rmsnorm_bwd) X(linear_fwd) X(tree_sum) X(linear_bwd_x) \
    X(linear_bwd_tree) X(linear_bwd_w) X(rope_fwd) X(rope_bwd) X(kv_copy) X(attn_fwd) X(attn_bwd) X(attn_paged) X(swiglu_fwd) X(swiglu_bwd) \
    X(add_fwd) X(cast) X(softcap) X(axpy) X(blend) X(mem_fill) X(logprob_fwd) X(logprob_bwd) X(policy_loss) X(sample_fwd) X(sumsq) X(sum_parts) X(clip_coef) \
    X(adamw) X(adamw_host) X(adamw8) X(adafactor_moments) X(adafactor_update) X(adafactor_apply) X(mem_hash)
#define OPS_EXPERTS(X) \
    X(route_fwd) X(route_bwd) X(group_rows) X(group_fwd) X(group_bwd_x) X(group_bwd_w) X(combine_fwd) X(combine_bwd)
#define OPS_DELTA(X) \
    X(conv4_fwd) X(conv4_bwd) X(delta_rule_fwd) X(delta_rule_bwd) X(gated_norm_fwd) X(gated_norm_bwd) X(gate_split) X(gate_join) X(gate_fwd) \
    X(gate_bwd)
#define OPS_TABLE(X) OPS_DENSE(X) OPS_EXPERTS(X) OPS_DELTA(X)
// clang-format on
/* A back end: its life cycle and one function per operation. */
struct ops {
    void (*device_free)(struct device *);
    bool (*device_enter)(struct device *, struct error *);                             // these two NULL: nothing to do; always,
    bool (*device_reach)(struct device *, struct device *, bool *, struct error *);    // among devices of one kind
    bool (*device_sync)(struct device *, struct error *);
    void *(*mem_new)(struct device *, size_t, const char *, struct error *);
    void (*mem_free)(struct device *, void *);
    void *(*host_new)(struct device *, size_t, const char *, struct error *);
    void (*host_free)(struct device *, void *);
    bool (*host_pin)(struct device *, void *, size_t, const char *, struct error *);    // these two NULL: nothing to do
    void (*host_unpin)(struct device *, void *);
    bool (*mem_info)(struct device *, size_t *, size_t *, struct error *);
    bool (*mem_copy)(struct device *, void *, const void *, size_t, enum copy_dir, struct error *);
    struct mark *(*mark_new)(struct device *, struct error *);
    void (*mark_free)(struct device *, struct mark *);
    bool (*mark_set)(struct device *, struct mark *, struct error *);
    bool (*mark_wait)(struct device *, struct mark *, struct error *);
    bool (*mark_done)(struct device *, struct mark *, bool *, struct error *);
    struct mark *(*mark_new_timed)(struct device *, struct error *);
    bool (*marks_apart)(struct device *, struct mark *, struct mark *, double *, struct error *);
    bool (*lane_copy)(struct device *, int, void *, const void *, size_t, struct error *);
    bool (*lane_sum)(struct device *, int, const struct lane_sum *, struct error *);
    bool (*lane_mark)(struct device *, int, struct mark *, struct error *);
    bool (*lanes_sync)(struct device *, struct error *);
    bool (*lane_after)(struct device *, int, struct mark *, struct error *);
    bool (*device_after)(struct device *, struct mark *, struct error *);
    void *(*mem_share_new)(struct device *, size_t, const char *, struct mem_handle *, struct error *);
    void (*mem_share_free)(struct device *, void *, size_t, const struct mem_handle *);
    void *(*mem_share_open)(struct device *, const struct mem_handle *, size_t, struct error *);
    void (*mem_share_close)(struct device *, const void *, size_t);
    const struct comm_ops *comm;                                              // kernels/collective/comm.h
    bool (*weight_init)(struct device *, struct weight *, struct error *);    // fills pack
    void (*weight_release)(struct device *, struct weight *);
    bool (*weight_refresh)(struct device *, struct weight *, struct error *);
    bool (*product_choose)(struct device *, const struct product_kind *, struct choice **, struct error *);    // NULL: nothing to choose
    bool (*linear_cost)(struct device *, struct linear_cost *, struct error *);                                // NULL: not offered
    bool (*graph_begin)(struct device *, struct error *);                                                      // NULL without can_capture
    struct graph *(*graph_end)(struct device *, struct error *);
    bool (*graph_launch)(struct device *, struct graph *, struct error *);
    void (*graph_free)(struct device *, struct graph *);
#define OPS_ROW(name) bool (*name)(struct device *, const struct name *, struct error *);
    OPS_TABLE(OPS_ROW)
#undef OPS_ROW
};
/* Call one: OP(dev, err, rmsnorm_fwd, .y = y, .x = x, ...). Omitted fields are 0. Returns bool. */
#define OP(dev, err, name, ...) ((dev)->op->name((dev), &(struct name){ __VA_ARGS__ }, (err)))

/* The uniform number in (0, 1) that sample_fwd draws for a row; the same everywhere. */
float sample_uniform(const struct sample_row *row);

/* Each back end's entry point, called by device_new. librollcall_cuda.so exports rc_ops_cuda. */
struct device *device_new_ref(struct error *err);
struct device *device_new_cpu(int index, int n_thread, struct error *err);
typedef struct device *rc_ops_cuda_fn(int index, struct error *err);
