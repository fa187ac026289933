/* ops_attn.c - causal attention of the CPU back end: gathering keys and values, and cutting the work
 *
 * Packed rows: keys and values are first laid out as in a KV page (tiles of PANEL tokens, keys in columns), then each piece takes
 * some queries of one sequence and KV head. Pages: in fp32 read in place, in bf16 converted to fp32 one sequence and head at a
 * time. Backward: one piece per sequence and KV head, so that its gradients have one owner and one order. */
#include <string.h>
#include "kernels/cpu/cpu.h"
#define Q_ROWS 60    // query rows per piece (times the heads of the group)

static int64_t tiles(int64_t n)
{
    return (n + PANEL - 1) / PANEL;
}

/* Transpose rows (n, hd) fp32, ld apart, into tiles (hd, PANEL); columns after the end are 0. */
static void tiles_turn(float *to, const float *rows, int64_t ld, int64_t n, int hd)
{
    for (int64_t t = 0; t < tiles(n); t++, to += PANEL * hd) {
        int64_t width = MIN(PANEL, n - t * PANEL);
        if (width < PANEL)
            memset(to, 0, (size_t)(PANEL * hd) * sizeof *to);
        for (int h = 0; h < hd; h += 16)
            for (int64_t j = 0; j < width; j++) {
                const float *row = rows + (t * PANEL + j) * ld + h;
                for (int i = 0; i < 16; i++)
                    to[(h + i) * PANEL + j] = row[i];
            }
    }
}

/* Where a sequence's tiles start when every sequence is rounded up to whole tiles: the sum over earlier ones is bounded by row /
 * PANEL + index, which needs no table. */
static int64_t tile_base(const int32_t *seq, int64_t s)
{
    return seq[s] / PANEL + s;
}

struct attn_job {
    const struct cpu_path *path;
    const struct attn_fwd *a;
    const int32_t *seq;
    int64_t n_tile;    // of all sequences
    int64_t max_len;
    int64_t n_block;    // query blocks of the longest sequence
    float *kt, *v;      // (n_kv)(n_tile)(PANEL hd)
    char *own;          // (n_thread) of own_bytes: tile pointers, then scores, then queries in fp32
    size_t own_bytes;
};
static void attn_gather_piece(void *arg, int64_t piece, int thread)
{
    const struct attn_job *job = arg;
    const struct attn_fwd *a = job->a;
    struct attn_heads h = a->heads;
    int64_t s = piece / h.n_kv, head = piece % h.n_kv, n = job->seq[s + 1] - job->seq[s], ld = (int64_t)(h.n_q + 2 * h.n_kv) * h.hd;
    int64_t from = job->seq[s] * ld + (h.n_q + head) * h.hd, to = (head * job->n_tile + tile_base(job->seq, s)) * PANEL * h.hd;
    const char *k = (const char *)a->qkv + (size_t)from * dtype_size(a->dtype);
    const char *v = k + (size_t)(h.n_kv * h.hd) * dtype_size(a->dtype);
    job->path->rows_load(job->v + to, v, a->dtype, ld, n, h.hd);
    if (a->dtype == DT_F32) {
        tiles_turn(job->kt + to, (const float *)k, ld, n, h.hd);
        return;
    }
    float *rows = (float *)(job->own + (size_t)thread * job->own_bytes);    // one tile at a time
    for (int64_t t = 0; t < tiles(n); t++) {
        int64_t width = MIN(PANEL, n - t * PANEL);
        job->path->rows_load(rows, k + (size_t)(t * PANEL * ld) * dtype_size(a->dtype), a->dtype, ld, width, h.hd);
        tiles_turn(job->kt + to + t * PANEL * h.hd, rows, h.hd, width, h.hd);
    }
}
static void attn_piece(void *arg, int64_t piece, int thread)
{
    const struct attn_job *job = arg;
    const struct attn_fwd *a = job->a;
    struct attn_heads h = a->heads;
    int64_t s = piece / job->n_block / h.n_kv, head = piece / job->n_block % h.n_kv, block = job->n_block - 1 - piece % job->n_block;
    int64_t row0 = job->seq[s], n = job->seq[s + 1] - row0, i0 = block * Q_ROWS, ld = (int64_t)(h.n_q + 2 * h.n_kv) * h.hd;
    int group = h.n_q / h.n_kv;
    if (i0 >= n)
        return;
    int64_t n_row = MIN(Q_ROWS, n - i0), n_tile = tiles(i0 + n_row), to = (head * job->n_tile + tile_base(job->seq, s)) * PANEL * h.hd;
    const float **tile = (const float **)(job->own + (size_t)thread * job->own_bytes);
    float *score = (float *)(tile + 2 * tiles(job->max_len)), *q32 = score + attend_scratch(job->max_len, h.hd);
    for (int64_t t = 0; t < n_tile; t++) {
        tile[t] = job->kt + to + t * PANEL * h.hd;
        tile[n_tile + t] = job->v + to + t * PANEL * h.hd;
    }
    for (int g = 0; g < group; g++) {
        int64_t q_head = head * group + g, q_at = (row0 + i0) * ld + q_head * h.hd;
        struct attend t = { .kv = { tile, tile + n_tile },
                            .q = (const float *)a->qkv + q_at,
                            .q_step = ld,
                            .out = (char *)a->out + (size_t)(((row0 + i0) * h.n_q + q_head) * h.hd) * dtype_size(a->dtype),
                            .out_step = (int64_t)h.n_q * h.hd,
                            .out_dtype = a->dtype,
                            .lse_step = h.n_q,
                            .lse = a->lse ? a->lse + (row0 + i0) * h.n_q + q_head : NULL,
                            .n_row = n_row,
                            .first_len = i0 + 1,
                            .len_step = 1,
                            .bounds = a->bounds,
                            .hd = h.hd,
                            .score = score };
        if (a->dtype == DT_BF16) {
            job->path->rows_load(q32, (const uint16_t *)a->qkv + q_at, DT_BF16, ld, n_row, h.hd);
            t.q = q32;
            t.q_step = h.hd;
        }
        job->path->attend(&t);
    }
}
bool attn_fwd_cpu(struct device *dev, const struct attn_fwd *a, struct error *err)
{
    struct cpu_device *cpu = cpu_of(dev);
    struct attn_heads h = a->heads;
    if (!attn_heads_check("attn_fwd", h, err) || !attn_seq_check("attn_fwd", a->seq_host, a->n_seq, a->n, err))
        return false;
    if (a->n == 0)
        return true;
    struct attn_job job = { .path = cpu->path, .a = a, .seq = a->seq_host, .n_tile = tile_base(a->seq_host, a->n_seq) + 1 };
    int64_t n_pair = 0;    // of a query and a key it sees
    for (int64_t s = 0; s < a->n_seq; s++) {
        int64_t len = a->seq_host[s + 1] - a->seq_host[s];
        job.max_len = MAX(job.max_len, len);
        n_pair += len * (len + 1) / 2;
    }
    job.n_block = (job.max_len + Q_ROWS - 1) / Q_ROWS;
    job.own_bytes = (size_t)(2 * tiles(job.max_len)) * sizeof(float *)
                    + scratch_floats(attend_scratch(job.max_len, h.hd) + Q_ROWS * h.hd + 16);
    job.own_bytes = (job.own_bytes + 63) / 64 * 64;
    size_t kv_bytes = scratch_floats((int64_t)h.n_kv * job.n_tile * PANEL * h.hd);
    char *scratch = cpu_scratch(cpu, 2 * kv_bytes + job.own_bytes * (size_t)cpu->base.n_thread, "attn_fwd", err);
    if (!scratch)
        return false;
    job.kt = (float *)scratch;
    job.v = (float *)(scratch + kv_bytes);
    job.own = scratch + 2 * kv_bytes;
    pool_run(cpu->pool, attn_gather_piece, &job, a->n_seq * h.n_kv, work_bytes(a->n * h.n_kv * h.hd * 16));
    pool_run(cpu->pool, attn_piece, &job, a->n_seq * h.n_kv * job.n_block, work_mul(n_pair * h.n_q * h.hd * 2));
    return true;
}

struct paged_job {
    const struct cpu_path *path;
    const struct attn_paged *a;
    int64_t max_tile;
    int64_t n_block;
    size_t page_elems;    // elements of a page
    char *own;            // (n_thread) of own_bytes: tile pointers, scores, queries, tiles in fp32
    size_t own_bytes;
};
static void paged_piece(void *arg, int64_t piece, int thread)
{
    const struct paged_job *job = arg;
    const struct attn_paged *a = job->a;
    struct attn_heads h = a->heads;
    int64_t s = piece / job->n_block / h.n_kv, head = piece / job->n_block % h.n_kv, block = piece % job->n_block;
    int64_t q0 = a->q_seq ? a->q_seq[s] : s, n_q = a->q_seq ? a->q_seq[s + 1] - q0 : 1, i0 = block * Q_ROWS;
    int64_t ld = (int64_t)(h.n_q + 2 * h.n_kv) * h.hd;
    int group = h.n_q / h.n_kv;
    if (a->kv_len[s] == 0 || i0 >= n_q)
        return;
    int64_t n_row = MIN(Q_ROWS, n_q - i0), first_len = a->kv_len[s] - n_q + i0 + 1, n_tile = tiles(first_len + n_row - 1);
    const float **tile = (const float **)(job->own + (size_t)thread * job->own_bytes);
    float *score = (float *)(tile + 2 * job->max_tile), *q32 = score + attend_scratch(job->max_tile * PANEL, h.hd);
    float *kv32 = q32 + MAX(Q_ROWS, group) * h.hd;
    int64_t tile_elems = PANEL * h.hd;
    for (int64_t t = 0; t < n_tile; t++) {
        size_t k_at = (size_t)a->page[s * a->max_page + t] * job->page_elems + (size_t)(head * tile_elems);
        size_t v_at = k_at + (size_t)(h.n_kv * tile_elems);
        if (a->dtype == DT_F32) {
            tile[t] = (const float *)a->kv + k_at;
            tile[n_tile + t] = (const float *)a->kv + v_at;
            continue;
        }
        float *k32 = kv32 + 2 * t * tile_elems, *v32 = k32 + tile_elems;
        job->path->rows_load(k32, (const uint16_t *)a->kv + k_at, DT_BF16, tile_elems, 1, tile_elems);
        job->path->rows_load(v32, (const uint16_t *)a->kv + v_at, DT_BF16, tile_elems, 1, tile_elems);
        tile[t] = k32;
        tile[n_tile + t] = v32;
    }
    /* one query: the heads of the group are the rows; several: the queries of a head are */
    int64_t n_call = n_q == 1 ? 1 : group;
    for (int64_t g = 0; g < n_call; g++) {
        int64_t q_head = head * group + g, q_at = (q0 + i0) * ld + q_head * h.hd;
        struct attend t = { .kv = { tile, tile + n_tile },
                            .q = (const float *)a->qkv + q_at,
                            .q_step = n_q == 1 ? h.hd : ld,
                            .out = (char *)a->out + (size_t)(((q0 + i0) * h.n_q + q_head) * h.hd) * dtype_size(a->dtype),
                            .out_step = n_q == 1 ? h.hd : (int64_t)h.n_q * h.hd,
                            .out_dtype = a->dtype,
                            .n_row = n_q == 1 ? group : n_row,
                            .first_len = first_len,
                            .len_step = n_q == 1 ? 0 : 1,
                            .bounds = a->bounds,
                            .hd = h.hd,
                            .score = score };
        if (a->dtype == DT_BF16) {
            job->path->rows_load(q32, (const uint16_t *)a->qkv + q_at, DT_BF16, t.q_step, t.n_row, h.hd);
            t.q = q32;
            t.q_step = h.hd;
        }
        job->path->attend(&t);
    }
}
bool attn_paged_cpu(struct device *dev, const struct attn_paged *a, struct error *err)
{
    struct cpu_device *cpu = cpu_of(dev);
    struct attn_heads h = a->heads;
    if (!attn_paged_check(a, PANEL, err))
        return false;
    struct paged_job job = { .path = cpu->path, .a = a, .page_elems = kv_page_bytes(dev, h, DT_F32) / sizeof(float) };
    int64_t max_q = 0, group = h.n_q / h.n_kv, n_pair = 0, n_key = 0;    // pairs of a query and a key; keys
    for (int64_t s = 0; s < a->n_seq; s++) {
        int64_t n_q = a->kv_len[s] == 0 ? 0 : a->q_seq ? a->q_seq[s + 1] - a->q_seq[s] : 1;
        job.max_tile = MAX(job.max_tile, tiles(a->kv_len[s]));
        max_q = MAX(max_q, n_q);
        n_pair += n_q * a->kv_len[s];
        n_key += a->kv_len[s];
    }
    job.n_block = (max_q + Q_ROWS - 1) / Q_ROWS;
    job.own_bytes = (size_t)(2 * job.max_tile) * sizeof(float *)
                    + scratch_floats(attend_scratch(job.max_tile * PANEL, h.hd) + MAX(Q_ROWS, group) * h.hd + 16)
                    + (a->dtype == DT_BF16 ? scratch_floats(2 * job.max_tile * PANEL * h.hd) : 0);
    job.own_bytes = (job.own_bytes + 63) / 64 * 64;
    job.own = cpu_scratch(cpu, job.own_bytes * (size_t)cpu->base.n_thread, "attn_paged", err);
    if (!job.own)
        return false;
    pool_run(cpu->pool, paged_piece, &job, a->n_seq * h.n_kv * job.n_block,
             work_mul(n_pair * h.n_q * h.hd * 2) + work_bytes(n_key * h.n_kv * h.hd * 8));
    return true;
}

struct attn_bwd_job {
    const struct cpu_path *path;
    const struct attn_bwd *a;
    const int32_t *seq;
    int64_t max_len;
    char *own;    // (n_thread) of own_bytes
    size_t own_bytes;
};
static void attn_bwd_piece(void *arg, int64_t piece, int thread)
{
    const struct attn_bwd_job *job = arg;
    const struct attn_bwd *a = job->a;
    const struct cpu_path *path = job->path;
    struct attn_heads h = a->heads;
    int hd = h.hd, group = h.n_q / h.n_kv;
    int64_t s = piece / h.n_kv, head = piece % h.n_kv, row0 = job->seq[s], n = job->seq[s + 1] - row0;
    int64_t ld = (int64_t)(h.n_q + 2 * h.n_kv) * hd, ldo = (int64_t)h.n_q * hd, wide = tiles(job->max_len) * PANEL, rows = wide * hd;
    size_t es = dtype_size(a->dtype);
    if (n == 0)
        return;
    float *kt = (float *)(job->own + (size_t)thread * job->own_bytes), *vt = kt + rows, *k = vt + rows, *q = k + rows;
    float *dout = q + rows, *dq = dout + rows, *dk = dq + rows, *dv = dk + rows, *dot = dv + rows, *prob = dot + wide;
    const char *k_in = (const char *)a->qkv + (size_t)(row0 * ld + (h.n_q + head) * hd) * es;
    path->rows_load(dv, k_in + (size_t)(h.n_kv * hd) * es, a->dtype, ld, n, hd);    // temporarily v
    tiles_turn(vt, dv, hd, n, hd);
    path->rows_load(k, k_in, a->dtype, ld, n, hd);
    tiles_turn(kt, k, hd, n, hd);
    memset(dk, 0, (size_t)(n * hd) * sizeof *dk);
    memset(dv, 0, (size_t)(n * hd) * sizeof *dv);
    for (int g = 0; g < group; g++) {
        int64_t q_head = head * group + g;
        size_t q_at = (size_t)(row0 * ld + q_head * hd), o_at = (size_t)(row0 * ldo + q_head * hd);
        struct attend_bwd t = { .n = n,
                                .hd = hd,
                                .bounds = a->bounds,
                                .kt = kt,
                                .vt = vt,
                                .k = k,
                                .q = (const float *)a->qkv + q_at,
                                .q_step = ld,
                                .dout = (const float *)a->dout + o_at,
                                .dout_step = ldo,
                                .lse = a->lse + row0 * h.n_q + q_head,
                                .lse_step = h.n_q,
                                .dot = dot,
                                .dq = (float *)a->dqkv + q_at,
                                .dk = dk,
                                .dv = dv,
                                .prob = prob,
                                .ds = prob + ATTEND_BWD_ROWS * wide };
        path->rows_dot(dot, (const char *)a->dout + o_at * es, (const char *)a->out + o_at * es, a->dtype, ldo, n, hd);
        if (a->dtype == DT_F32) {
            path->attend_bwd(&t);
            continue;
        }
        path->rows_load(q, (const uint16_t *)a->qkv + q_at, DT_BF16, ld, n, hd);
        path->rows_load(dout, (const uint16_t *)a->dout + o_at, DT_BF16, ldo, n, hd);
        t.q = q;
        t.dout = dout;
        t.dq = dq;
        t.q_step = t.dout_step = hd;
        path->attend_bwd(&t);
        path->rows_store((uint16_t *)a->dqkv + q_at, dq, DT_BF16, ld, n, hd);
    }
    char *dk_out = (char *)a->dqkv + (size_t)(row0 * ld + (h.n_q + head) * hd) * es;
    path->rows_store(dk_out, dk, a->dtype, ld, n, hd);
    path->rows_store(dk_out + (size_t)(h.n_kv * hd) * es, dv, a->dtype, ld, n, hd);
}
bool attn_bwd_cpu(struct device *dev, const struct attn_bwd *a, struct error *err)
{
    struct cpu_device *cpu = cpu_of(dev);
    struct attn_heads h = a->heads;
    if (!attn_heads_check("attn_bwd", h, err) || !attn_seq_check("attn_bwd", a->seq_host, a->n_seq, a->n, err))
        return false;
    struct attn_bwd_job job = { .path = cpu->path, .a = a, .seq = a->seq_host };
    int64_t n_pair = 0;
    for (int64_t s = 0; s < a->n_seq; s++) {
        int64_t len = a->seq_host[s + 1] - a->seq_host[s];
        job.max_len = MAX(job.max_len, len);
        n_pair += len * (len + 1) / 2;
    }
    int64_t wide = tiles(job.max_len) * PANEL;
    job.own_bytes = scratch_floats(8 * wide * h.hd + wide + 2 * ATTEND_BWD_ROWS * wide);
    job.own = cpu_scratch(cpu, job.own_bytes * (size_t)cpu->base.n_thread, "attn_bwd", err);
    if (!job.own)
        return false;
    pool_run(cpu->pool, attn_bwd_piece, &job, a->n_seq * h.n_kv, work_mul(n_pair * h.n_q * h.hd * 5));
    return true;
}
