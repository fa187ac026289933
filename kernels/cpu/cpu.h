/* cpu.h - the CPU back end's device and what its operations share */
#pragma once
#include "kernels/cpu/path.h"
#include "kernels/cpu/pool.h"
#include "kernels/host.h"

struct cpu_device {
    struct device base;    // first: struct device * is cast to this
    const struct cpu_path *path;
    struct pool *pool;
    char *scratch;    // of the running operation; grows when a larger operation comes, so not in a steady step
    size_t scratch_bytes;
};
static inline struct cpu_device *cpu_of(struct device *dev)
{
    return (struct cpu_device *)dev;
}
/* Get size_bytes of scratch for this operation; earlier pointers become invalid. NULL: out of memory, err names the operation. */
void *cpu_scratch(struct cpu_device *cpu, size_t size_bytes, const char *op, struct error *err);
/* Sizes of pieces of scratch are rounded so that each piece has its own cache lines. */
static inline size_t scratch_floats(int64_t n)
{
    return ((size_t)n * sizeof(float) + 63) / 64 * 64;
}
/* About how long one thread takes, in ns: for multiplications in products, and for bytes read and written. Half of what a core of this
 * decade does, so that nothing large is kept on one thread. */
static inline int64_t work_mul(int64_t n)
{
    return n / 16;
}
static inline int64_t work_bytes(int64_t n)
{
    return n / 8;
}
#define RANGE_BYTES 65536    // of a piece worth handing to a thread
/* Run fn over [0, n) in pieces of `step` rows, each about RANGE_BYTES. */
typedef void range_fn(const struct cpu_path *path, const void *args, int64_t i0, int64_t i1);
void cpu_ranges(struct cpu_device *cpu, range_fn *fn, const void *args, int64_t n, int64_t step);
/* How many rows of about this many bytes make a piece; one, if it is longer. */
static inline int64_t rows_per_piece(int64_t row_bytes)
{
    return MAX(1, RANGE_BYTES / MAX(1, row_bytes));
}
/* Run fn over n rows of about row_bytes each in such pieces. */
void cpu_rows(struct cpu_device *cpu, range_fn *fn, const void *args, int64_t n, int64_t row_bytes);
#define CPU_ROW(name) bool name##_cpu(struct device *dev, const struct name *a, struct error *err);
OPS_TABLE(CPU_ROW)
#undef CPU_ROW
bool cpu_weight_init(struct device *dev, struct weight *w, struct error *err);
void cpu_weight_release(struct device *dev, struct weight *w);
bool cpu_weight_refresh(struct device *dev, struct weight *w, struct error *err);
