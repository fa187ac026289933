/* ops_head.c - statistics of logits and sampling of the CPU back end: checks, and rows shared among threads */
#include "kernels/cpu/cpu.h"

static void logprob_fwd_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    path->logprob_fwd(args, i0, i1);
}
bool logprob_fwd_cpu(struct device *dev, const struct logprob_fwd *a, struct error *err)
{
    if (!logits_check("logprob_fwd", a->n, a->vocab, a->n_live, a->ld, err))
        return false;
    cpu_rows(cpu_of(dev), logprob_fwd_range, a, a->n, a->vocab * 4);
    return true;
}

static void logprob_bwd_range(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    path->logprob_bwd(args, i0, i1);
}
bool logprob_bwd_cpu(struct device *dev, const struct logprob_bwd *a, struct error *err)
{
    if (!logits_check("logprob_bwd", a->n, a->vocab, a->n_live, a->ld, err))
        return false;
    cpu_rows(cpu_of(dev), logprob_bwd_range, a, a->n, a->vocab * 4);
    return true;
}

struct sample_job {
    const struct cpu_path *path;
    const struct sample_fwd *a;
    int64_t step;            // rows of a piece
    char *scratch;           // (n_thread)
    size_t scratch_bytes;    // of one
};
static void sample_piece(void *arg, int64_t piece, int thread)
{
    const struct sample_job *job = arg;
    job->path->sample_fwd(job->a, piece * job->step, MIN(job->a->n, (piece + 1) * job->step),
                          (float *)(job->scratch + (size_t)thread * job->scratch_bytes));
}
bool sample_fwd_cpu(struct device *dev, const struct sample_fwd *a, struct error *err)
{
    struct cpu_device *cpu = cpu_of(dev);
    if (!logits_check("sample_fwd", a->n, a->vocab, a->n_live, a->ld, err))
        return false;
    struct sample_job job = {
        .path = cpu->path, .a = a, .step = rows_per_piece(a->vocab * 16), .scratch_bytes = scratch_floats(2 * (a->vocab + 16))
    };
    job.scratch = cpu_scratch(cpu, job.scratch_bytes * (size_t)cpu->base.n_thread, "sample_fwd", err);
    if (!job.scratch)
        return false;
    pool_run(cpu->pool, sample_piece, &job, (a->n + job.step - 1) / job.step, work_bytes(a->n * a->vocab * 16));
    return true;
}
