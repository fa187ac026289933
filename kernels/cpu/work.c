/* work.c - what every operation works with: scratch, and rows shared out to threads */
#include <stdlib.h>
#include "kernels/cpu/cpu.h"

void *cpu_scratch(struct cpu_device *cpu, size_t size_bytes, const char *op, struct error *err)
{
    if (size_bytes <= cpu->scratch_bytes)
        return cpu->scratch;
    size_t rounded = (size_bytes + size_bytes / 4 + 4095) / 4096 * 4096;
    free(cpu->scratch);
    cpu->scratch = aligned_alloc(4096, rounded);
    cpu->scratch_bytes = cpu->scratch ? rounded : 0;
    if (!cpu->scratch)
        error_set(err, ERR_NO_MEMORY, "%s: no memory for %zu bytes of scratch", op, rounded);
    return cpu->scratch;
}

struct range_job {
    range_fn *fn;
    const struct cpu_path *path;
    const void *args;
    int64_t n, step;
};
static void range_piece(void *arg, int64_t piece, UNUSED int thread)
{
    const struct range_job *job = arg;
    job->fn(job->path, job->args, piece * job->step, MIN(job->n, (piece + 1) * job->step));
}
static void ranges_run(struct cpu_device *cpu, struct range_job *job, int64_t work_ns)
{
    pool_run(cpu->pool, range_piece, job, (job->n + job->step - 1) / job->step, work_ns);
}
void cpu_ranges(struct cpu_device *cpu, range_fn *fn, const void *args, int64_t n, int64_t step)
{
    ranges_run(cpu, &(struct range_job){ fn, cpu->path, args, n, step }, work_bytes((n + step - 1) / step * RANGE_BYTES));
}
void cpu_rows(struct cpu_device *cpu, range_fn *fn, const void *args, int64_t n, int64_t row_bytes)
{
    ranges_run(cpu, &(struct range_job){ fn, cpu->path, args, n, rows_per_piece(row_bytes) }, work_bytes(n * row_bytes));
}
