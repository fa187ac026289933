/* optim.c - the reference's optimizers other than AdamW */
#include <inttypes.h>
#include <math.h>
#include "kernels/adam8.h"
#include "kernels/ref/ref.h"

static const float signed_table[256] = { ADAM8_SIGNED }, unsigned_table[256] = { ADAM8_UNSIGNED };

static void block_store(uint8_t *code, float *scale, const double *x, int64_t n, const float *table)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)(float)x[i]));
    *scale = (float)most;
    for (int64_t i = 0; i < n; i++) {
        float part = most > 0 ? (float)x[i] / (float)most : 0;
        code[i] = table == unsigned_table ? adam8_second_code(table, part, x[i] > 0) : adam8_code(table, part);
    }
}

bool adamw8_ref(UNUSED struct device *dev, const struct adamw8 *a, struct error *err)
{
    if (a->step < 1)
        return error_set(err, ERR_SHAPE, "adamw8: step %" PRId64 "; the first is 1", a->step);
    double fix1 = 1 - pow(a->beta1, (double)a->step), fix2 = 1 - pow(a->beta2, (double)a->step);
    for (int64_t at = 0; at < a->n; at += ADAM8_BLOCK) {
        double m[ADAM8_BLOCK], v[ADAM8_BLOCK];
        int64_t n = MIN(a->n - at, (int64_t)ADAM8_BLOCK), b = at / ADAM8_BLOCK;
        for (int64_t i = 0; i < n; i++) {
            double g = a->grad[at + i] * (double)(a->coef ? *a->coef : 1);
            m[i] = a->beta1 * (double)(a->m_scale[b] * signed_table[a->m[at + i]]) + (1 - (double)a->beta1) * g;
            v[i] = a->beta2 * (double)(a->v_scale[b] * unsigned_table[a->v[at + i]]) + (1 - (double)a->beta2) * g * g;
            a->master[at + i] = (float)(a->master[at + i] - a->lr * (m[i] / fix1) / (sqrt(v[i] / fix2) + a->eps));
            if (a->weight)
                elem_put(a->weight, at + i, a->dtype, a->master[at + i]);
        }
        block_store(a->m + at, a->m_scale + b, m, n, signed_table);
        block_store(a->v + at, a->v_scale + b, v, n, unsigned_table);
    }
    return true;
}

bool adafactor_moments_ref(UNUSED struct device *dev, const struct adafactor_moments *a, UNUSED struct error *err)
{
    double coef = a->coef ? *a->coef : 1, mean = 0;
    for (int64_t i = 0; i < a->n_row; i++) {
        double sum = 0;
        for (int64_t j = 0; j < a->n_col; j++)
            sum += pow(a->grad[i * a->n_col + j] * coef, 2);
        a->row[i] += (float)(a->share * (sum / (double)a->n_col - a->row[i]));
        mean += a->row[i];
    }
    for (int64_t j = 0; j < a->n_col && a->col; j++) {
        double sum = 0;
        for (int64_t i = 0; i < a->n_row; i++)
            sum += pow(a->grad[i * a->n_col + j] * coef, 2);
        a->col[j] += (float)(a->share * (sum / (double)a->n_row - a->col[j]));
    }
    *a->row_mean = (float)(mean / (double)a->n_row);
    return true;
}

bool adafactor_update_ref(UNUSED struct device *dev, const struct adafactor_update *a, UNUSED struct error *err)
{
    double mean = fmax((double)*a->row_mean, ADAFACTOR_EPS1), least = (double)ADAFACTOR_EPS1 * ADAFACTOR_EPS1;
    for (int64_t i = 0; i < a->n_row; i++)
        for (int64_t j = 0; j < a->n_col; j++) {
            double var = a->col ? (double)a->row[i] * a->col[j] / mean : a->row[i];
            float *g = a->grad + i * a->n_col + j;
            *g = (float)(*g * (double)(a->coef ? *a->coef : 1) / sqrt(fmax(var, least)));
        }
    return true;
}

bool adafactor_apply_ref(UNUSED struct device *dev, const struct adafactor_apply *a, UNUSED struct error *err)
{
    double alpha = fmax((double)ADAFACTOR_EPS2, sqrt(*a->sum_master / (double)a->n)) * a->rho,
           most = fmax(1, sqrt(*a->sum_u / (double)a->n)), keep = 1 - (double)a->lr * a->decay;
    for (int64_t i = 0; i < a->n; i++) {
        a->master[i] = (float)(a->master[i] * keep - alpha / most * a->u[i]);
        if (a->weight)
            elem_put(a->weight, i, a->dtype, a->master[i]);
    }
    return true;
}
