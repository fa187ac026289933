/* ops_rows.c - operations on rows and elements of the CPU back end: how they are split among threads
 *
 * Sums over rows (gradients of norms, of the embedding, the gradient norm) are split at fixed places, whatever the number of
 * threads, and their parts are added in order. */
#include <inttypes.h>
#include <string.h>
#include "kernels/cpu/cpu.h"
#include "kernels/tree_steps.h"
#include "kernels/ref/ref.h"
#define SUM_ROWS 64       // rows summed into one part
#define SUMSQ_F32 4096    // elements summed in fp32 before they join the double

bool rows_gather_cpu(struct device *dev, const struct rows_gather *a, struct error *err)
{
    return host_rows_gather(dev, a, err);
}

bool rows_scatter_cpu(struct device *dev, const struct rows_scatter *a, struct error *err)
{
    return host_rows_scatter(dev, a, err);
}

bool rows_copy_cpu(struct device *dev, const struct rows_copy *a, struct error *err)
{
    return host_rows_copy(dev, a, err);
}

static void rows_join_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    path->rows_join(args, i0, i1);
}
bool rows_join_cpu(struct device *dev, const struct rows_join *a, struct error *err)
{
    if (a->n == 0)
        return true;
    if (!row_ids_check("rows_join", a->row, a->first[a->n], a->n_row, err))
        return false;
    cpu_rows(cpu_of(dev), rows_join_range, a, a->n, a->d * 4);
    return true;
}

static void tree_sum_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    path->tree_sum(args, i0, i1);
}
bool tree_sum_cpu(struct device *dev, const struct tree_sum *a, struct error *err)
{
    if (!tree_sum_check(a, err))
        return false;
    cpu_rows(cpu_of(dev), tree_sum_range, a, a->n, a->d * 4 * (a->n_x + 1));
    return true;
}

/* A few exponentials a row beside megabytes of products: the reference's, with rows cut among threads. */
static void route_fwd_range(UNUSED const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    struct route_fwd a = *(const struct route_fwd *)args;
    struct error ignored;    // the caller has checked
    a.expert += i0 * a.k;
    a.weight += i0 * a.k;
    a.logits += i0 * a.n_expert;
    a.n = i1 - i0;
    (void)!route_fwd_ref(NULL, &a, &ignored);
}
bool route_fwd_cpu(struct device *dev, const struct route_fwd *a, struct error *err)
{
    if (!route_check("route_fwd", a->n_expert, a->k, err))
        return false;
    cpu_rows(cpu_of(dev), route_fwd_range, a, a->n, a->n_expert * (64 + 8 * a->k));
    return true;
}

static void route_bwd_range(UNUSED const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    struct route_bwd a = *(const struct route_bwd *)args;
    struct error ignored;
    a.dlogits = (char *)a.dlogits + (size_t)(i0 * a.n_expert) * dtype_size(a.dtype);
    a.dweight += i0 * a.k;
    a.logits += i0 * a.n_expert;
    a.expert += i0 * a.k;
    a.n = i1 - i0;
    (void)!route_bwd_ref(NULL, &a, &ignored);
}
bool route_bwd_cpu(struct device *dev, const struct route_bwd *a, struct error *err)
{
    if (!route_check("route_bwd", a->n_expert, a->k, err) || !row_ids_check("route_bwd", a->expert, a->n * a->k, a->n_expert, err))
        return false;
    cpu_rows(cpu_of(dev), route_bwd_range, a, a->n, a->n_expert * 64);
    return true;
}

bool group_rows_cpu(struct device *dev, const struct group_rows *a, struct error *err)
{
    return host_group_rows(dev, a, err);
}

static void combine_fwd_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    path->combine_fwd(args, i0, i1);
}
bool combine_fwd_cpu(struct device *dev, const struct combine_fwd *a, struct error *err)
{
    if (!row_ids_check("combine_fwd", a->place, a->n * a->k, a->n * a->k, err))
        return false;
    cpu_rows(cpu_of(dev), combine_fwd_range, a, a->n, a->d * 4 * (a->k + 1));
    return true;
}

static void combine_bwd_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    path->combine_bwd(args, i0, i1);
}
bool combine_bwd_cpu(struct device *dev, const struct combine_bwd *a, struct error *err)
{
    if (!row_ids_check("combine_bwd", a->place, a->n * a->k, a->n * a->k, err))
        return false;
    cpu_rows(cpu_of(dev), combine_bwd_range, a, a->n, a->f * 16 * a->k);
    return true;
}

bool kv_copy_cpu(struct device *dev, const struct kv_copy *a, struct error *err)
{
    return host_kv_copy(dev, a, err);
}

bool mem_fill_cpu(struct device *dev, const struct mem_fill *a, struct error *err)
{
    return host_mem_fill(dev, a, err);
}

bool mem_hash_cpu(struct device *dev, const struct mem_hash *a, struct error *err)
{
    return host_mem_hash(dev, a, err);
}

bool policy_loss_cpu(struct device *dev, const struct policy_loss *a, struct error *err)
{
    return policy_loss_ref(dev, a, err);    // three exponentials per token: nothing to gain
}

bool clip_coef_cpu(struct device *dev, const struct clip_coef *a, struct error *err)
{
    return clip_coef_ref(dev, a, err);
}

/* Lists of the tokens with the same id, in order, so that an id's rows are summed from 0 and added to the table once. */
#define EMBED_COLS 64
#define EMBED_NONE (-1)    // as bytes: all bits set
struct embed_job {
    const struct embed_bwd *a;
    int32_t *first;    // (n_id) the first token of each id
    int32_t *next;     // (n) the id's next token, or EMBED_NONE
    int64_t n_id;
};
/* last (n): the last token of a list so far, indexed by its first token; slot (n_slot, a power of two above n): first tokens by
 * their id's hash. */
static void embed_lists_make(struct embed_job *job, int32_t *last, int32_t *slot, size_t n_slot)
{
    const struct embed_bwd *a = job->a;
    memset(slot, 0xff, n_slot * sizeof *slot);
    for (int64_t i = 0; i < a->n; i++) {
        size_t at = (uint32_t)a->row[i] * 2654435761u & (n_slot - 1);    // Knuth's multiplicative hash
        while (slot[at] != EMBED_NONE && a->row[slot[at]] != a->row[i])
            at = (at + 1) & (n_slot - 1);
        job->next[i] = EMBED_NONE;
        if (slot[at] == EMBED_NONE) {
            job->first[job->n_id++] = slot[at] = (int32_t)i;
        } else {
            job->next[last[slot[at]]] = (int32_t)i;
        }
        last[slot[at]] = (int32_t)i;
    }
}
/* Columns i0 .. i1 - 1 of all rows; at most EMBED_COLS. */
static void embed_columns(const struct cpu_path *path, const struct embed_job *job, int64_t i0, int64_t i1)
{
    const struct embed_bwd *a = job->a;
    const char *dy = (const char *)a->dy + (size_t)i0 * dtype_size(a->dtype);
    size_t row_bytes = (size_t)a->d * dtype_size(a->dtype);
    float sum[EMBED_COLS];
    for (int64_t k = 0; k < job->n_id; k++) {
        int32_t i = job->first[k];
        float *out = a->dtable + (a->row[i] - a->first) * a->d + i0;
        if (a->row[i] < a->first || a->row[i] >= a->first + a->n_row)
            continue;    // another slice's
        if (job->next[i] == EMBED_NONE) {
            path->rows_sum(out, dy + (size_t)i * row_bytes, a->dtype, a->d, i1 - i0, 0, 1, true);
            continue;
        }
        path->rows_sum(sum, dy + (size_t)i * row_bytes, a->dtype, a->d, i1 - i0, 0, 1, false);
        while ((i = job->next[i]) != EMBED_NONE)
            path->rows_sum(sum, dy + (size_t)i * row_bytes, a->dtype, a->d, i1 - i0, 0, 1, true);
        path->rows_sum(out, sum, DT_F32, EMBED_COLS, i1 - i0, 0, 1, true);
    }
}
/* Blocks i0 .. i1 - 1 of EMBED_COLS columns. */
static void embed_bwd_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    const struct embed_job *job = args;
    for (int64_t i = i0; i < i1; i++)
        embed_columns(path, job, i * EMBED_COLS, MIN((i + 1) * EMBED_COLS, job->a->d));
}
bool embed_bwd_cpu(struct device *dev, const struct embed_bwd *a, struct error *err)
{
    struct cpu_device *cpu = cpu_of(dev);
    if (a->n == 0)
        return true;
    if (!a->slice && !row_ids_check("embed_bwd", a->row, a->n, a->n_row, err))
        return false;
    size_t n = (size_t)a->n, n_slot = 1;
    while (n_slot <= n)
        n_slot *= 2;
    int32_t *mem = cpu_scratch(cpu, (3 * n + n_slot) * sizeof *mem, "embed_bwd", err);
    if (!mem)
        return false;
    struct embed_job job = { .a = a, .first = mem, .next = mem + n };
    embed_lists_make(&job, mem + 2 * n, mem + 3 * n, n_slot);
    cpu_rows(cpu, embed_bwd_range, &job, (a->d + EMBED_COLS - 1) / EMBED_COLS, a->n * EMBED_COLS * 12);
    return true;
}

static void rmsnorm_fwd_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    path->rmsnorm_fwd(args, i0, i1);
}
bool rmsnorm_fwd_cpu(struct device *dev, const struct rmsnorm_fwd *a, struct error *err)
{
    if (a->add && !a->sum)
        return error_set(err, ERR_SHAPE, "rmsnorm_fwd: something to add but no place for the sum");
    cpu_rows(cpu_of(dev), rmsnorm_fwd_range, a, a->n, a->d * 12);
    return true;
}

struct norm_bwd_job {
    const struct cpu_path *path;
    const struct rmsnorm_bwd *a;
    float *part;     // (pieces)(d)
    int64_t step;    // floats of a part
};
static void rmsnorm_bwd_piece(void *arg, int64_t piece, UNUSED int thread)
{
    const struct norm_bwd_job *job = arg;
    job->path->rmsnorm_bwd(job->a, piece * SUM_ROWS, MIN(job->a->n, (piece + 1) * SUM_ROWS), job->part + piece * job->step);
}
bool rmsnorm_bwd_cpu(struct device *dev, const struct rmsnorm_bwd *a, struct error *err)
{
    struct cpu_device *cpu = cpu_of(dev);
    struct norm_bwd_job job = { .path = cpu->path, .a = a, .step = (int64_t)(scratch_floats(a->d) / sizeof(float)) };
    int64_t n_piece = (a->n + SUM_ROWS - 1) / SUM_ROWS;
    job.part = cpu_scratch(cpu, scratch_floats(a->d) * (size_t)n_piece, "rmsnorm_bwd", err);
    if (!job.part && n_piece)
        return false;
    pool_run(cpu->pool, rmsnorm_bwd_piece, &job, n_piece, work_bytes(a->n * a->d * 16));
    if (a->dw)
        cpu->path->rows_sum(a->dw, job.part, DT_F32, job.step, a->d, 0, n_piece, true);
    return true;
}

static void rope_fwd_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    path->rope_fwd(args, i0, i1);
}
bool rope_fwd_cpu(struct device *dev, const struct rope_fwd *a, struct error *err)
{
    if (!rope_check("rope_fwd", a->pos, a->n, a->n_pos, a->heads, a->rot, err))
        return false;
    int64_t row_bytes = (int64_t)(a->heads.n_q + 2 * a->heads.n_kv) * a->heads.hd * 8;
    cpu_rows(cpu_of(dev), rope_fwd_range, a, a->n, row_bytes);
    return true;
}

struct rope_bwd_job {
    const struct cpu_path *path;
    const struct rope_bwd *a;
    float *part;     // (pieces)(2, parts, hd)
    int64_t wide;    // parts hd
};
static void rope_bwd_piece(void *arg, int64_t piece, UNUSED int thread)
{
    const struct rope_bwd_job *job = arg;
    job->path->rope_bwd(job->a, piece * SUM_ROWS, MIN(job->a->n, (piece + 1) * SUM_ROWS), job->part + piece * 2 * job->wide);
}
bool rope_bwd_cpu(struct device *dev, const struct rope_bwd *a, struct error *err)
{
    struct cpu_device *cpu = cpu_of(dev);
    int64_t n_piece = (a->n + SUM_ROWS - 1) / SUM_ROWS, wide = MAX(a->parts, 1) * a->heads.hd;
    if (!rope_check("rope_bwd", a->pos, a->n, a->n_pos, a->heads, a->rot, err) || !norm_parts_check(a->heads, MAX(a->parts, 1), err))
        return false;
    struct rope_bwd_job job = { .path = cpu->path, .a = a, .wide = wide };
    job.part = cpu_scratch(cpu, scratch_floats(2 * wide * n_piece), "rope_bwd", err);
    if (!job.part && n_piece)
        return false;
    pool_run(cpu->pool, rope_bwd_piece, &job, n_piece, work_bytes(a->n * (a->heads.n_q + 2 * a->heads.n_kv) * a->heads.hd * 12));
    if (a->q_norm && a->dq_norm)
        cpu->path->rows_sum(a->dq_norm, job.part, DT_F32, 2 * wide, wide, 0, n_piece, true);
    if (a->k_norm && a->dk_norm)
        cpu->path->rows_sum(a->dk_norm, job.part + wide, DT_F32, 2 * wide, wide, 0, n_piece, true);
    return true;
}

static void swiglu_fwd_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    path->swiglu_fwd(args, i0, i1);
}
bool swiglu_fwd_cpu(struct device *dev, const struct swiglu_fwd *a, UNUSED struct error *err)
{
    cpu_rows(cpu_of(dev), swiglu_fwd_range, a, a->n, a->f * 12);
    return true;
}

static void swiglu_bwd_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    path->swiglu_bwd(args, i0, i1);
}
bool swiglu_bwd_cpu(struct device *dev, const struct swiglu_bwd *a, UNUSED struct error *err)
{
    cpu_rows(cpu_of(dev), swiglu_bwd_range, a, a->n, a->f * 20);
    return true;
}

static void add_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    path->add(args, i0, i1);
}
bool add_fwd_cpu(struct device *dev, const struct add_fwd *a, UNUSED struct error *err)
{
    cpu_ranges(cpu_of(dev), add_range, a, a->n, 8192);
    return true;
}

static void cast_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    path->cast(args, i0, i1);
}
bool cast_cpu(struct device *dev, const struct cast *a, UNUSED struct error *err)
{
    cpu_ranges(cpu_of(dev), cast_range, a, a->n, 8192);
    return true;
}

static void blend_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    path->blend(args, i0, i1);
}
bool blend_cpu(struct device *dev, const struct blend *a, UNUSED struct error *err)
{
    cpu_ranges(cpu_of(dev), blend_range, a, a->n, 8192);
    return true;
}

static void softcap_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    path->softcap(args, i0, i1);
}
bool softcap_cpu(struct device *dev, const struct softcap *a, UNUSED struct error *err)
{
    cpu_ranges(cpu_of(dev), softcap_range, a, a->n, 8192);
    return true;
}

static void axpy_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    path->axpy(args, i0, i1);
}
bool axpy_cpu(struct device *dev, const struct axpy *a, UNUSED struct error *err)
{
    cpu_ranges(cpu_of(dev), axpy_range, a, a->n, 8192);
    return true;
}

static void adamw_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    path->adamw(args, i0, i1);
}
bool adamw_cpu(struct device *dev, const struct adamw *a, struct error *err)
{
    if (a->step < 1)
        return error_set(err, ERR_SHAPE, "adamw: step %" PRId64 "; the first is 1", a->step);
    cpu_ranges(cpu_of(dev), adamw_range, a, a->n, 16384);
    return true;
}

bool adamw_host_cpu(struct device *dev, const struct adamw_host *a, struct error *err)
{
    struct adamw step = host_adamw(a);
    return adamw_cpu(dev, &step, err);
}

struct sumsq_job {
    const struct cpu_path *path;
    const struct sumsq *a;
};
static void sumsq_piece(void *arg, int64_t piece, UNUSED int thread)
{
    const struct sumsq_job *job = arg;
    const struct sumsq *a = job->a;
    int64_t end = MIN(a->n, (piece + 1) * SUMSQ_BLOCK);
    double sum = 0;
    for (int64_t i = piece * SUMSQ_BLOCK; i < end; i += SUMSQ_F32)
        sum += job->path->sumsq(a->x + i, MIN(SUMSQ_F32, end - i));
    a->part[piece] = sum;
}
bool sumsq_cpu(struct device *dev, const struct sumsq *a, UNUSED struct error *err)
{
    struct cpu_device *cpu = cpu_of(dev);
    struct sumsq_job job = { .path = cpu->path, .a = a };
    pool_run(cpu->pool, sumsq_piece, &job, (a->n + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK, work_bytes(a->n * 4));
    return true;
}

bool sum_parts_cpu(struct device *dev, const struct sum_parts *a, struct error *err)
{
    return sum_parts_ref(dev, a, err);    // one addition for thousands of elements
}
