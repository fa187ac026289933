/* ops_delta.c - the gated delta net: convolution, recurrence, gated norm and gates */
#include "kernels/cpu/cpu.h"

#define NORM_ROWS 64    // rows of one part of gated_norm_bwd's sums

/* Blocks of up to 16 channels, see channels_of. */
static int64_t blocks_of(struct delta_heads h)
{
    return 2 * h.n_k * (int64_t)((h.d_k + 15) / 16) + h.n_v * (int64_t)((h.d_v + 15) / 16);
}

static void conv4_fwd_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    const struct conv4_fwd *a = args;
    path->conv4_fwd(a, i0, i1, blocks_of(a->heads));
}
bool conv4_fwd_cpu(struct device *dev, const struct conv4_fwd *a, struct error *err)
{
    if (!delta_check("conv4_fwd", &a->of, a->heads, err))
        return false;
    int64_t per_seq = a->of.n_seq ? (a->of.n + a->of.n_seq - 1) / a->of.n_seq : 1;
    cpu_rows(cpu_of(dev), conv4_fwd_range, a, a->of.n_seq * blocks_of(a->heads), per_seq * 16 * 32);
    return true;
}

static void conv4_bwd_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    path->conv4_bwd(args, i0, i1);
}
bool conv4_bwd_cpu(struct device *dev, const struct conv4_bwd *a, struct error *err)
{
    if (!delta_check("conv4_bwd", &a->of, a->heads, err))
        return false;
    cpu_rows(cpu_of(dev), conv4_bwd_range, a, blocks_of(a->heads), a->of.n * 16 * 48);
    return true;
}

/* A piece is a value head of a sequence forward, a key head of all sequences backward. */
struct delta_job {
    const struct cpu_path *path;
    const struct delta_rule_fwd *fwd;
    const struct delta_rule_bwd *bwd;
    float *scratch;    // of each thread
    int64_t step;      // floats of one thread's
};
static void delta_piece(void *arg, int64_t piece, int thread)
{
    const struct delta_job *job = arg;
    float *scratch = job->scratch + thread * job->step;
    if (job->fwd)
        job->path->delta_rule_fwd(job->fwd, piece, piece + 1, scratch);
    else
        job->path->delta_rule_bwd(job->bwd, piece, scratch);
}
static bool delta_run(struct cpu_device *cpu, struct delta_job *job, int64_t n_piece, int64_t floats, int64_t muls, const char *op,
                      struct error *err)
{
    size_t size = scratch_floats(floats);
    job->path = cpu->path;
    job->step = (int64_t)(size / sizeof(float));
    job->scratch = cpu_scratch(cpu, size * (size_t)cpu->base.n_thread, op, err);
    if (job->scratch)
        pool_run(cpu->pool, delta_piece, job, n_piece, work_mul(muls));
    return job->scratch != NULL;
}

bool delta_rule_fwd_cpu(struct device *dev, const struct delta_rule_fwd *a, struct error *err)
{
    struct delta_heads h = a->heads;
    int64_t state = (int64_t)h.d_k * h.d_v;
    struct delta_job job = { .fwd = a };
    return delta_check("delta_rule_fwd", &a->of, h, err)
           && delta_run(cpu_of(dev), &job, a->of.n_seq * h.n_v, state, a->of.n * h.n_v * state * 4, "delta_rule_fwd", err);
}

bool delta_rule_bwd_cpu(struct device *dev, const struct delta_rule_bwd *a, struct error *err)
{
    struct delta_heads h = a->heads;
    int64_t state = (int64_t)h.d_k * h.d_v, longest = 0;
    struct delta_job job = { .bwd = a };
    if (!delta_check("delta_rule_bwd", &a->of, h, err))
        return false;
    if (h.n_v / h.n_k > DELTA_WIDTH_MAX)
        return error_set(err, ERR_SHAPE, "delta_rule_bwd: %d value heads of each key head; %d are possible", h.n_v / h.n_k,
                         DELTA_WIDTH_MAX);
    for (int64_t s = 0; s < a->of.n_seq; s++) {
        struct delta_span p = delta_span_of(&a->of, h, s);
        longest = MAX(longest, p.end - p.first);
    }
    int64_t floats = (2 + DELTA_KEEP + (longest + DELTA_KEEP - 1) / DELTA_KEEP) * state + DELTA_KEEP * h.d_v + longest * 2 * h.d_k;
    return delta_run(cpu_of(dev), &job, h.n_k, floats, a->of.n * h.n_v * state * 16, "delta_rule_bwd", err);
}

static void gated_norm_fwd_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    path->gated_norm_fwd(args, i0, i1);
}
bool gated_norm_fwd_cpu(struct device *dev, const struct gated_norm_fwd *a, struct error *err)
{
    if (!delta_heads_check("gated_norm_fwd", a->heads, err))
        return false;
    cpu_rows(cpu_of(dev), gated_norm_fwd_range, a, a->n, (int64_t)a->heads.n_v * a->heads.d_v * 12);
    return true;
}

struct gated_norm_job {
    const struct cpu_path *path;
    const struct gated_norm_bwd *a;
    float *part;     // (pieces)(d_v)
    int64_t step;    // floats of a part
};
static void gated_norm_piece(void *arg, int64_t piece, UNUSED int thread)
{
    const struct gated_norm_job *job = arg;
    job->path->gated_norm_bwd(job->a, piece * NORM_ROWS, MIN(job->a->n, (piece + 1) * NORM_ROWS), job->part + piece * job->step);
}
bool gated_norm_bwd_cpu(struct device *dev, const struct gated_norm_bwd *a, struct error *err)
{
    if (!delta_heads_check("gated_norm_bwd", a->heads, err))
        return false;
    struct cpu_device *cpu = cpu_of(dev);
    int64_t n_piece = (a->n + NORM_ROWS - 1) / NORM_ROWS, d = a->heads.d_v;
    struct gated_norm_job job = { .path = cpu->path, .a = a, .step = (int64_t)(scratch_floats(d) / sizeof(float)) };
    job.part = cpu_scratch(cpu, scratch_floats(d) * (size_t)n_piece, "gated_norm_bwd", err);
    if (!job.part && n_piece)
        return false;
    pool_run(cpu->pool, gated_norm_piece, &job, n_piece, work_bytes(a->n * a->heads.n_v * d * 24));
    if (a->dw)
        cpu->path->rows_sum(a->dw, job.part, DT_F32, job.step, d, 0, n_piece, true);
    return true;
}

bool gate_split_cpu(struct device *dev, const struct gate_split *a, struct error *err)
{
    return host_gate_split(dev, a, err);
}

bool gate_join_cpu(struct device *dev, const struct gate_join *a, struct error *err)
{
    return host_gate_join(dev, a, err);
}

static void gate_fwd_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    path->gate_fwd(args, i0, i1);
}
bool gate_fwd_cpu(struct device *dev, const struct gate_fwd *a, UNUSED struct error *err)
{
    cpu_ranges(cpu_of(dev), gate_fwd_range, a, a->n, 16384);
    return true;
}

static void gate_bwd_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    path->gate_bwd(args, i0, i1);
}
bool gate_bwd_cpu(struct device *dev, const struct gate_bwd *a, UNUSED struct error *err)
{
    cpu_ranges(cpu_of(dev), gate_bwd_range, a, a->n, 8192);
    return true;
}
