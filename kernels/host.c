/* host.c - memory, copies and checks for the back ends on host memory */
#include "kernels/host.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/machine.h"
#include "protocol/base/mix64.h"

void *host_mem_new(UNUSED struct device *dev, size_t size_bytes, const char *what, struct error *err)
{
    size_t rounded = (size_bytes + 255) & ~(size_t)255;
    void *p = rounded < size_bytes ? NULL : aligned_alloc(256, rounded ? rounded : 256);
    if (!p)
        error_set(err, ERR_NO_MEMORY, "no memory for %s: %zu bytes", what, size_bytes);
    return p;
}

void host_mem_free(UNUSED struct device *dev, void *p)
{
    free(p);
}

bool host_mem_info(UNUSED struct device *dev, size_t *free_bytes, size_t *total_bytes, struct error *err)
{
    struct machine_memory m = machine_memory();
    if (m.total == SIZE_MAX || m.available == SIZE_MAX)
        return error_set(err, ERR_IO, "cannot determine the size of memory: /proc/meminfo does not say");
    *free_bytes = m.available;
    *total_bytes = m.total;
    return true;
}

bool host_mem_copy(UNUSED struct device *dev, void *dst, const void *src, size_t size_bytes, UNUSED enum copy_dir dir,
                   UNUSED struct error *err)
{
    memmove(dst, src, size_bytes);
    return true;
}

bool host_sync(UNUSED struct device *dev, UNUSED struct error *err)
{
    return true;
}

struct mark {
    int64_t set_ns;    // clock_ns
};
struct mark *host_mark_new(UNUSED struct device *dev, struct error *err)
{
    struct mark *m = calloc(1, sizeof *m);
    if (!m)
        error_set(err, ERR_NO_MEMORY, "no memory for a mark");
    return m;
}

void host_mark_free(UNUSED struct device *dev, struct mark *m)
{
    free(m);
}

bool host_mark_set(UNUSED struct device *dev, struct mark *m, UNUSED struct error *err)
{
    m->set_ns = clock_ns();
    return true;
}

bool host_mark_passed(UNUSED struct device *dev, UNUSED struct mark *m, UNUSED struct error *err)
{
    return true;
}

bool host_lane_passed(UNUSED struct device *dev, UNUSED int lane, UNUSED struct mark *m, UNUSED struct error *err)
{
    return true;
}

bool host_mark_done(UNUSED struct device *dev, UNUSED struct mark *m, bool *done, UNUSED struct error *err)
{
    return *done = true;
}

bool host_marks_apart(UNUSED struct device *dev, struct mark *from, struct mark *to, double *s, UNUSED struct error *err)
{
    *s = (double)(to->set_ns - from->set_ns) * 1e-9;
    return true;
}

bool host_lane_copy(UNUSED struct device *dev, UNUSED int lane, void *dst, const void *src, size_t size_bytes, UNUSED struct error *err)
{
    memcpy(dst, src, size_bytes);
    return true;
}

/* y += x, in blocks that the compiler makes vectors of. */
static void add(float *restrict y, const float *restrict x, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 16; k++)
            y[i + k] += x[i + k];
    for (; i < n; i++)
        y[i] += x[i];
}

bool host_lane_sum(UNUSED struct device *dev, UNUSED int lane, const struct lane_sum *s, UNUSED struct error *err)
{
    const int64_t block = 4096;    // stays in the cache while all of x pass by
    for (int64_t at = 0; at < s->n; at += block)
        for (int q = 0; q < s->n_x; q++)
            add(s->y + at, s->x[q] + at, MIN(block, s->n - at));
    return true;
}

bool host_lane_mark(struct device *dev, UNUSED int lane, struct mark *m, struct error *err)
{
    return host_mark_set(dev, m, err);
}

bool norm_parts_check(struct attn_heads heads, int parts, struct error *err)
{
    return (heads.n_q % parts == 0 && heads.n_kv % parts == 0)
           || error_set(err, ERR_SHAPE, "rope_bwd: %d heads of queries and %d of keys in %d parts", heads.n_q, heads.n_kv, parts);
}

bool row_ids_check(const char *op, const int32_t *row, int64_t n, int64_t n_row, struct error *err)
{
    for (int64_t i = 0; i < n; i++)
        if (row[i] < 0 || row[i] >= n_row)
            return error_set(err, ERR_SHAPE, "%s: id %d of row %" PRId64 " is not in a table of %" PRId64, op, row[i], i, n_row);
    return true;
}

bool group_first_check(const char *op, const int32_t *first, int64_t n_group, int64_t n, struct error *err)
{
    bool ok = first[0] == 0 && first[n_group] == n;
    for (int64_t g = 0; g < n_group; g++)
        ok = ok && first[g] <= first[g + 1];
    return ok || error_set(err, ERR_SHAPE, "%s: the groups do not begin at row 0 and end at row %" PRId64 " in order", op, n);
}

bool route_check(const char *op, int64_t n_expert, int64_t k, struct error *err)
{
    return (n_expert >= 1 && n_expert <= ROUTE_EXPERTS_MAX && k >= 1 && k <= n_expert)
           || error_set(err, ERR_SHAPE, "%s: %" PRId64 " of %" PRId64 " experts; up to %d are possible", op, k, n_expert,
                        ROUTE_EXPERTS_MAX);
}

/* Copy each head's part of `both` and its gate from or to where they belong; join: to. */
static void gates_move(char *both, char *qkv, char *gate, int64_t n, struct attn_heads h, enum dtype t, bool join)
{
    size_t head = (size_t)h.hd * dtype_size(t), kv = (size_t)(2 * h.n_kv) * head;
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < h.n_q; k++, both += 2 * head, qkv += head, gate += head) {
            memcpy(join ? both : qkv, join ? qkv : both, head);
            memcpy(join ? both + head : gate, join ? gate : both + head, head);
        }
        memcpy(join ? both : qkv, join ? qkv : both, kv);
        both += kv;
        qkv += kv;
    }
}
bool host_gate_split(UNUSED struct device *dev, const struct gate_split *a, UNUSED struct error *err)
{
    gates_move((char *)(uintptr_t)a->both, a->qkv, a->gate, a->n, a->heads, a->dtype, false);
    return true;
}
bool host_gate_join(UNUSED struct device *dev, const struct gate_join *a, UNUSED struct error *err)
{
    gates_move(a->both, (char *)(uintptr_t)a->qkv, (char *)(uintptr_t)a->gate, a->n, a->heads, a->dtype, true);
    return true;
}

bool delta_heads_check(const char *op, struct delta_heads h, struct error *err)
{
    bool fits = h.n_k >= 1 && h.n_v >= 1 && h.n_v % h.n_k == 0 && h.d_k >= 1 && h.d_v >= 1 && h.d_k <= DELTA_WIDTH_MAX
                && h.d_v <= DELTA_WIDTH_MAX;
    return fits
           || error_set(err, ERR_SHAPE, "%s: %d key heads of %d and %d value heads of %d; widths go up to %d", op, h.n_k, h.d_k, h.n_v,
                        h.d_v, DELTA_WIDTH_MAX);
}

bool delta_check(const char *op, const struct delta_seqs *of, struct delta_heads h, struct error *err)
{
    if (!delta_heads_check(op, h, err))
        return false;
    return of->seq ? attn_seq_check(op, of->seq, of->n_seq, of->n, err)
                   : of->n == of->n_seq || error_set(err, ERR_SHAPE, "%s: %" PRId64 " rows of %" PRId64 " sequences", op, of->n, of->n_seq);
}

bool host_group_rows(UNUSED struct device *dev, const struct group_rows *a, struct error *err)
{
    int32_t next[ROUTE_EXPERTS_MAX] = { 0 };
    if (!route_check("group_rows", a->n_expert, a->k, err) || !row_ids_check("group_rows", a->expert, a->n * a->k, a->n_expert, err))
        return false;
    for (int64_t p = 0; p < a->n * a->k; p++)
        next[a->expert[p]]++;
    a->first[0] = 0;
    for (int64_t e = 0; e < a->n_expert; e++) {
        if (a->load)
            a->load[e] += next[e];
        a->first[e + 1] = a->first[e] + next[e];
        next[e] = a->first[e];
    }
    for (int64_t p = 0; p < a->n * a->k; p++) {
        a->place[p] = next[a->expert[p]]++;
        a->row[a->place[p]] = (int32_t)(p / a->k);
    }
    return true;
}

bool host_rows_gather(UNUSED struct device *dev, const struct rows_gather *a, struct error *err)
{
    size_t row_bytes = (size_t)a->d * dtype_size(a->dtype);
    for (int64_t i = 0; i < a->n; i++) {
        int64_t row = a->row[i] - a->first;
        if (row >= 0 && row < a->n_row)
            memcpy((char *)a->y + (size_t)i * row_bytes, (const char *)a->table + (size_t)row * row_bytes, row_bytes);
        else if (!a->slice)
            return error_set(err, ERR_SHAPE, "rows_gather: id %d of row %" PRId64 " is not in a table of %" PRId64, a->row[i], i, a->n_row);
    }
    return true;
}

bool host_rows_copy(UNUSED struct device *dev, const struct rows_copy *a, UNUSED struct error *err)
{
    for (int64_t i = 0; i < a->n; i++)
        memcpy((char *)a->y + (size_t)i * a->ldy_bytes, (const char *)a->x + (size_t)i * a->ldx_bytes, a->row_bytes);
    return true;
}

bool host_rows_scatter(UNUSED struct device *dev, const struct rows_scatter *a, struct error *err)
{
    size_t row_bytes = (size_t)a->d * dtype_size(a->dtype);
    if (!row_ids_check("rows_scatter", a->row, a->n, a->n_row, err))
        return false;
    for (int64_t i = 0; i < a->n; i++)
        memcpy((char *)a->y + (size_t)a->row[i] * row_bytes, (const char *)a->x + (size_t)i * row_bytes, row_bytes);
    return true;
}

bool host_kv_copy(struct device *dev, const struct kv_copy *a, struct error *err)
{
    size_t size_bytes = kv_page_bytes(dev, a->heads, a->dtype);
    for (int64_t i = 0; i < a->n; i++) {
        if (a->src[i] < 0 || a->dst[i] < 0)
            return error_set(err, ERR_SHAPE, "kv_copy: page %d to page %d", a->src[i], a->dst[i]);
        memmove((char *)a->kv + (size_t)a->dst[i] * size_bytes, (char *)a->kv + (size_t)a->src[i] * size_bytes, size_bytes);
    }
    return true;
}

bool host_mem_fill(UNUSED struct device *dev, const struct mem_fill *a, UNUSED struct error *err)
{
    memset(a->y, a->byte, a->size_bytes);
    return true;
}

bool host_mem_hash(UNUSED struct device *dev, const struct mem_hash *a, UNUSED struct error *err)
{
    uint64_t sum = 0;
    size_t n_word = (a->size_bytes + 7) / 8;
    for (size_t i = 0; i < n_word; i++) {
        uint64_t word = 0;
        memcpy(&word, (const char *)a->x + i * 8, MIN(8, a->size_bytes - i * 8));
        uint64_t n = a->row_words > 0 ? i / (uint64_t)a->row_words * (uint64_t)a->ld_words + i % (uint64_t)a->row_words : i;
        sum += mix64(word + ((uint64_t)a->first + n + 1) * MIX64_STEP);
    }
    *a->hash = sum;
    return true;
}

bool attn_heads_check(const char *op, struct attn_heads h, struct error *err)
{
    if (h.n_q < 1 || h.n_kv < 1 || h.n_q % h.n_kv || h.hd < 16 || h.hd > 256 || h.hd % 16)
        return error_set(err, ERR_SHAPE,
                         "%s: %d query heads, %d key heads of size %d; the first must be a multiple of the second, "
                         "the size a multiple of 16 up to 256",
                         op, h.n_q, h.n_kv, h.hd);
    return true;
}

bool attn_seq_check(const char *op, const int32_t *seq, int64_t n_seq, int64_t n, struct error *err)
{
    for (int64_t s = 0; s < n_seq; s++)
        if (seq[s] < 0 || seq[s + 1] < seq[s])
            return error_set(err, ERR_SHAPE, "%s: sequence %" PRId64 " goes from row %d to row %d", op, s, seq[s], seq[s + 1]);
    if (seq[0] != 0 || seq[n_seq] != n)
        return error_set(err, ERR_SHAPE, "%s: sequences cover rows %d to %d of %" PRId64, op, seq[0], seq[n_seq], n);
    return true;
}

bool attn_paged_check(const struct attn_paged *a, int page_tok, struct error *err)
{
    if (!attn_heads_check("attn_paged", a->heads, err))
        return false;
    for (int64_t s = 0; s < a->n_seq; s++) {
        int64_t q0 = a->q_seq ? a->q_seq[s] : s, n_q = a->q_seq ? a->q_seq[s + 1] - q0 : 1;
        if (a->kv_len[s] == 0)
            continue;
        if (n_q < 0 || q0 < 0 || q0 + n_q > a->n || a->kv_len[s] < n_q || a->kv_len[s] > a->max_page * page_tok)
            return error_set(err, ERR_SHAPE,
                             "attn_paged: sequence %" PRId64 " has %" PRId64 " queries from row %" PRId64 " of %" PRId64
                             " and %d keys in %" PRId64 " "
                             "pages of %d",
                             s, n_q, q0, a->n, a->kv_len[s], a->max_page, page_tok);
        for (int64_t p = 0; p * page_tok < a->kv_len[s]; p++)
            if (a->page[s * a->max_page + p] < 0)
                return error_set(err, ERR_SHAPE, "attn_paged: page %" PRId64 " of sequence %" PRId64 " is %d", p, s,
                                 a->page[s * a->max_page + p]);
    }
    return true;
}

bool rope_check(const char *op, const int32_t *pos, int64_t n, int64_t n_pos, struct attn_heads h, int rot, struct error *err)
{
    if (!attn_heads_check(op, h, err))
        return false;
    if (rot < 0 || rot % 2 || rot > h.hd)
        return error_set(err, ERR_SHAPE, "%s: %d dimensions of heads of size %d turn; an even number up to it can", op, rot, h.hd);
    for (int64_t i = 0; i < n; i++)
        if (pos[i] < 0 || pos[i] >= n_pos)
            return error_set(err, ERR_SHAPE, "%s: position %d of row %" PRId64 " is not below %" PRId64, op, pos[i], i, n_pos);
    return true;
}

bool logits_check(const char *op, int64_t n, int64_t vocab, int64_t n_live, int64_t ld, struct error *err)
{
    if (n < 0 || vocab < 1 || n_live < 0 || n_live > vocab || (ld && ld < vocab))
        return error_set(err, ERR_SHAPE, "%s: %" PRId64 " rows of %" PRId64 " logits, %" PRId64 " live, %" PRId64 " apart", op, n, vocab,
                         n_live, ld);
    return true;
}
