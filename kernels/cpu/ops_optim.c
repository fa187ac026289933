/* ops_optim.c - optimizers other than AdamW, of the CPU back end
 *
 * Plain loops that every instruction set runs alike, split among threads at fixed places; sums are added in order. */
#include <inttypes.h>
#include <math.h>
#include "kernels/adam8.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

static const float signed_table[256] = { ADAM8_SIGNED }, unsigned_table[256] = { ADAM8_UNSIGNED };

static void block_store(uint8_t *code, float *scale, const float *x, int64_t n, const float *table)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(x[i]));
    *scale = most;
    for (int64_t i = 0; i < n; i++) {
        float part = most > 0 ? x[i] / most : 0;
        code[i] = table == unsigned_table ? adam8_second_code(table, part, x[i] > 0) : adam8_code(table, part);
    }
}

/* Blocks b0 .. b1 - 1. */
static void adamw8_range(UNUSED const struct cpu_path *path, const void *args, int64_t b0, int64_t b1)
{
    const struct adamw8 *a = args;
    float fix1 = (float)(1 / (1 - pow(a->beta1, (double)a->step))), fix2 = (float)(1 / (1 - pow(a->beta2, (double)a->step)));
    float coef = a->coef ? *a->coef : 1, c1 = (float)(1 - (double)a->beta1), c2 = (float)(1 - (double)a->beta2);
    for (int64_t b = b0; b < b1; b++) {
        float m[ADAM8_BLOCK], v[ADAM8_BLOCK];
        int64_t at = b * ADAM8_BLOCK, n = MIN(a->n - at, (int64_t)ADAM8_BLOCK);
        for (int64_t i = 0; i < n; i++) {
            float g = a->grad[at + i] * coef;
            m[i] = a->beta1 * (a->m_scale[b] * signed_table[a->m[at + i]]) + c1 * g;
            v[i] = a->beta2 * (a->v_scale[b] * unsigned_table[a->v[at + i]]) + c2 * (g * g);
            a->master[at + i] -= a->lr * (m[i] * fix1 / (sqrtf(v[i] * fix2) + a->eps));
            if (a->weight)
                elem_put(a->weight, at + i, a->dtype, a->master[at + i]);
        }
        block_store(a->m + at, a->m_scale + b, m, n, signed_table);
        block_store(a->v + at, a->v_scale + b, v, n, unsigned_table);
    }
}
bool adamw8_cpu(struct device *dev, const struct adamw8 *a, struct error *err)
{
    if (a->step < 1)
        return error_set(err, ERR_SHAPE, "adamw8: step %" PRId64 "; the first is 1", a->step);
    cpu_ranges(cpu_of(dev), adamw8_range, a, (a->n + ADAM8_BLOCK - 1) / ADAM8_BLOCK, 64);
    return true;
}

static void rows_range(UNUSED const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    const struct adafactor_moments *a = args;
    float coef = a->coef ? *a->coef : 1;
    for (int64_t i = i0; i < i1; i++) {
        double sum = 0;
        for (int64_t j = 0; j < a->n_col; j++) {
            float g = a->grad[i * a->n_col + j] * coef;
            sum += (double)g * g;
        }
        a->row[i] += a->share * ((float)(sum / (double)a->n_col) - a->row[i]);
    }
}
#define COLS_WIDE 64    // columns whose sums stay in the cache while their rows pass
static void cols_range(UNUSED const struct cpu_path *path, const void *args, int64_t j0, int64_t j1)
{
    const struct adafactor_moments *a = args;
    float coef = a->coef ? *a->coef : 1;
    for (int64_t j = j0; j < j1; j += COLS_WIDE) {
        double sum[COLS_WIDE] = { 0 };
        int64_t n = MIN(j1 - j, (int64_t)COLS_WIDE);
        for (int64_t i = 0; i < a->n_row; i++)
            for (int64_t k = 0; k < n; k++) {
                float g = a->grad[i * a->n_col + j + k] * coef;
                sum[k] += (double)g * g;
            }
        for (int64_t k = 0; k < n; k++)
            a->col[j + k] += a->share * ((float)(sum[k] / (double)a->n_row) - a->col[j + k]);
    }
}
bool adafactor_moments_cpu(struct device *dev, const struct adafactor_moments *a, UNUSED struct error *err)
{
    double mean = 0;
    cpu_rows(cpu_of(dev), rows_range, a, a->n_row, a->n_col * 8);
    if (a->col)
        cpu_ranges(cpu_of(dev), cols_range, a, a->n_col, COLS_WIDE);
    for (int64_t i = 0; i < a->n_row; i++)
        mean += (double)a->row[i];
    *a->row_mean = (float)(mean / (double)a->n_row);
    return true;
}

static void update_range(UNUSED const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    const struct adafactor_update *a = args;
    float coef = a->coef ? *a->coef : 1, mean = fmaxf(*a->row_mean, ADAFACTOR_EPS1), least = ADAFACTOR_EPS1 * ADAFACTOR_EPS1;
    for (int64_t i = i0; i < i1; i++)
        for (int64_t j = 0; j < a->n_col; j++) {
            float *g = a->grad + i * a->n_col + j, var = a->col ? a->row[i] * a->col[j] / mean : a->row[i];
            *g = *g * coef / sqrtf(fmaxf(var, least));
        }
}
bool adafactor_update_cpu(struct device *dev, const struct adafactor_update *a, UNUSED struct error *err)
{
    cpu_rows(cpu_of(dev), update_range, a, a->n_row, a->n_col * 8);
    return true;
}

static void apply_range(UNUSED const struct cpu_path *path, const void *args, int64_t i0, int64_t i1)
{
    const struct adafactor_apply *a = args;
    double alpha = fmax((double)ADAFACTOR_EPS2, sqrt(*a->sum_master / (double)a->n)) * (double)a->rho,
           most = fmax(1, sqrt(*a->sum_u / (double)a->n));
    float keep = (float)(1 - (double)a->lr * (double)a->decay), by = (float)(alpha / most);
    for (int64_t i = i0; i < i1; i++) {
        a->master[i] = a->master[i] * keep - by * a->u[i];
        if (a->weight)
            elem_put(a->weight, i, a->dtype, a->master[i]);
    }
}
bool adafactor_apply_cpu(struct device *dev, const struct adafactor_apply *a, UNUSED struct error *err)
{
    cpu_ranges(cpu_of(dev), apply_range, a, a->n, 16384);
    return true;
}
