/* host.h - what the two back ends on host memory (ref, cpu) have in common
 *
 * Plain functions with the signatures of struct ops; no state. */
#pragma once
#include <math.h>
#include "kernels/delta_span.h"

/* A page of the KV pool as ref and cpu's checks see it. */
#define HOST_PAGE_TOK 32

void *host_mem_new(struct device *dev, size_t size_bytes, const char *what, struct error *err);
void host_mem_free(struct device *dev, void *p);
bool host_mem_info(struct device *dev, size_t *free_bytes, size_t *total_bytes, struct error *err);
bool host_mem_copy(struct device *dev, void *dst, const void *src, size_t size_bytes, enum copy_dir dir, struct error *err);
void *host_mem_share_new(struct device *dev, size_t size_bytes, const char *what, struct mem_handle *h, struct error *err);
void host_mem_share_free(struct device *dev, void *p, size_t size_bytes, const struct mem_handle *h);
void *host_mem_share_open(struct device *dev, const struct mem_handle *h, size_t size_bytes, struct error *err);
void host_mem_share_close(struct device *dev, const void *p, size_t size_bytes);
extern const struct comm_ops host_comm_ops;    // collective/host.c
bool host_sync(struct device *dev, struct error *err);
struct mark *host_mark_new(struct device *dev, struct error *err);
void host_mark_free(struct device *dev, struct mark *m);
bool host_mark_set(struct device *dev, struct mark *m, struct error *err);
bool host_mark_passed(struct device *dev, struct mark *m, struct error *err);    // at once: all work is done when a call returns
bool host_lane_passed(struct device *dev, int lane, struct mark *m, struct error *err);
bool host_mark_done(struct device *dev, struct mark *m, bool *done, struct error *err);
bool host_marks_apart(struct device *dev, struct mark *from, struct mark *to, double *s, struct error *err);
bool host_lane_copy(struct device *dev, int lane, void *dst, const void *src, size_t size_bytes, struct error *err);
bool host_lane_sum(struct device *dev, int lane, const struct lane_sum *s, struct error *err);
bool host_lane_mark(struct device *dev, int lane, struct mark *m, struct error *err);
bool host_rows_gather(struct device *dev, const struct rows_gather *a, struct error *err);
bool host_rows_copy(struct device *dev, const struct rows_copy *a, struct error *err);
bool host_rows_scatter(struct device *dev, const struct rows_scatter *a, struct error *err);
bool host_kv_copy(struct device *dev, const struct kv_copy *a, struct error *err);
bool host_mem_fill(struct device *dev, const struct mem_fill *a, struct error *err);
bool host_group_rows(struct device *dev, const struct group_rows *a, struct error *err);
bool host_gate_split(struct device *dev, const struct gate_split *a, struct error *err);
bool host_gate_join(struct device *dev, const struct gate_join *a, struct error *err);
bool host_mem_hash(struct device *dev, const struct mem_hash *a, struct error *err);
/* The rows of struct ops that ref and cpu share, for their tables. */
#define HOST_OPS                                                                                                                           \
    .device_sync = host_sync, .mem_new = host_mem_new, .mem_free = host_mem_free, .host_new = host_mem_new, .host_free = host_mem_free,    \
    .mem_info = host_mem_info, .mem_copy = host_mem_copy, .mark_new = host_mark_new, .mark_free = host_mark_free,                          \
    .mark_set = host_mark_set, .mark_wait = host_mark_passed, .mark_done = host_mark_done, .mark_new_timed = host_mark_new,                \
    .marks_apart = host_marks_apart, .lane_copy = host_lane_copy, .lane_sum = host_lane_sum, .lane_mark = host_lane_mark,                  \
    .lanes_sync = host_sync, .lane_after = host_lane_passed, .device_after = host_mark_passed, .mem_share_new = host_mem_share_new,        \
    .mem_share_free = host_mem_share_free, .mem_share_open = host_mem_share_open, .mem_share_close = host_mem_share_close,                 \
    .comm = &host_comm_ops

/* Here all state is in host memory, so adamw_host is the ordinary step. */
static inline struct adamw host_adamw(const struct adamw_host *a)
{
    struct adamw step = a->step;
    step.master = step.master ? step.master : step.weight;
    return step;
}

/* Argument checks; each error names the operation and the wrong value. */
bool attn_heads_check(const char *op, struct attn_heads h, struct error *err);
bool attn_seq_check(const char *op, const int32_t *seq, int64_t n_seq, int64_t n, struct error *err);
bool attn_paged_check(const struct attn_paged *a, int page_tok, struct error *err);
bool rope_check(const char *op, const int32_t *pos, int64_t n, int64_t n_pos, struct attn_heads h, int rot, struct error *err);
bool norm_parts_check(struct attn_heads heads, int parts, struct error *err);
bool row_ids_check(const char *op, const int32_t *row, int64_t n, int64_t n_row, struct error *err);
bool group_first_check(const char *op, const int32_t *first, int64_t n_group, int64_t n, struct error *err);
bool route_check(const char *op, int64_t n_expert, int64_t k, struct error *err);
bool delta_heads_check(const char *op, struct delta_heads h, struct error *err);
bool delta_check(const char *op, const struct delta_seqs *of, struct delta_heads h, struct error *err);
bool logits_check(const char *op, int64_t n, int64_t vocab, int64_t n_live, int64_t ld, struct error *err);

/* Element i of a matrix of either dtype, as a double, and back with one rounding (double to fp32, fp32 to bf16). */
static inline double elem_get(const void *p, int64_t i, enum dtype t)
{
    return t == DT_BF16 ? bf16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}
static inline void elem_put(void *p, int64_t i, enum dtype t, double x)
{
    if (t == DT_BF16)
        ((uint16_t *)p)[i] = bf16_from_f32((float)x);
    else
        ((float *)p)[i] = (float)x;
}
