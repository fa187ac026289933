/* layers.c - embedding, RMSNorm, linear layers, SwiGLU and elementwise operations, as plain as their formulas */
#include <stdlib.h>
#include "kernels/ref/ref.h"
#include "kernels/tree_steps.h"

/* Does the id of row i occur in an earlier row? */
static bool id_seen(const int32_t *row, int64_t i)
{
    for (int64_t k = 0; k < i; k++)
        if (row[k] == row[i])
            return true;
    return false;
}

bool embed_bwd_ref(UNUSED struct device *dev, const struct embed_bwd *a, struct error *err)
{
    if (!a->slice && !row_ids_check("embed_bwd", a->row, a->n, a->n_row, err))
        return false;
    for (int64_t i = 0; i < a->n; i++) {
        if (id_seen(a->row, i) || a->row[i] < a->first || a->row[i] >= a->first + a->n_row)
            continue;
        for (int64_t j = 0; j < a->d; j++) {
            double sum = 0;
            for (int64_t k = i; k < a->n; k++)
                if (a->row[k] == a->row[i])
                    sum += elem_get(a->dy, k * a->d + j, a->dtype);
            a->dtable[(a->row[i] - a->first) * a->d + j] += (float)sum;
        }
    }
    return true;
}

/* What a norm multiplies element j by. */
static double norm_weight(const void *w, int64_t j, enum norm_form form, enum dtype t)
{
    return elem_get(w, j, t) + (form == NORM_GEMMA);
}

bool rmsnorm_fwd_ref(UNUSED struct device *dev, const struct rmsnorm_fwd *a, struct error *err)
{
    int64_t ld = a->ld ? a->ld : a->d;
    if (a->add && !a->sum)
        return error_set(err, ERR_SHAPE, "rmsnorm_fwd: something to add but no place for the sum");
    for (int64_t i = 0; i < a->n; i++) {
        double square = 0;
        for (int64_t j = i * ld; j < i * ld + a->d; j++) {
            double x = elem_get(a->x, j, a->dtype) + (a->add ? elem_get(a->add, j, a->dtype) : 0);
            if (a->sum) {
                elem_put(a->sum, j, a->dtype, x);
                x = elem_get(a->sum, j, a->dtype);
            }
            square += x * x;
        }
        double rstd = 1 / sqrt(square / (double)a->d + a->eps);
        if (a->rstd)
            a->rstd[i] = (float)rstd;
        for (int64_t j = 0; j < a->d; j++) {
            double x = elem_get(a->sum ? a->sum : a->x, i * ld + j, a->dtype) * rstd;
            if (a->dtype == DT_BF16 && a->form == NORM_LLAMA)
                x = bf16_to_f32(bf16_from_f32((float)x));
            elem_put(a->y, i * ld + j, a->dtype, x * norm_weight(a->w, j, a->form, a->dtype));
        }
    }
    return true;
}

/* xhat = x rstd; dx = rstd (g - xhat mean(g xhat)) with g = dy w; dw = sum dy xhat. */
bool rmsnorm_bwd_ref(UNUSED struct device *dev, const struct rmsnorm_bwd *a, UNUSED struct error *err)
{
    int64_t ld = a->ld ? a->ld : a->d;
    for (int64_t j = 0; a->dw && j < a->d; j++) {
        double sum = 0;
        for (int64_t i = 0; i < a->n; i++)
            sum += elem_get(a->dy, i * ld + j, a->dtype) * elem_get(a->x, i * ld + j, a->dtype) * a->rstd[i];
        a->dw[j] += (float)sum;
    }
    for (int64_t i = 0; i < a->n; i++) {
        double dot = 0;
        for (int64_t j = 0; j < a->d; j++)
            dot += elem_get(a->dy, i * ld + j, a->dtype) * norm_weight(a->w, j, a->form, a->dtype) * elem_get(a->x, i * ld + j, a->dtype)
                   * a->rstd[i];
        for (int64_t j = 0; j < a->d; j++) {
            int64_t at = i * ld + j;
            double g = elem_get(a->dy, at, a->dtype) * norm_weight(a->w, j, a->form, a->dtype);
            double xhat = elem_get(a->x, at, a->dtype) * a->rstd[i];
            double dx = a->rstd[i] * (g - xhat * dot / (double)a->d);
            elem_put(a->dx, at, a->dtype, dx + (a->dadd ? elem_get(a->dadd, at, a->dtype) : 0));
        }
    }
    return true;
}

/* Columns [k0, k1) of a row of x times those of output o. */
static double dot_part(const struct linear_fwd *a, int64_t ldx, int64_t i, int64_t o, int64_t k0, int64_t k1)
{
    const struct weight *w = a->w;
    double sum = 0;
    for (int64_t k = k0; k < k1; k++)
        sum += elem_get(a->x, i * ldx + k, w->dtype) * elem_get(w->data, o * w->n_in + k, w->dtype);
    return sum;
}

/* ((x0 + x1) + (x2 + x3)) + ..., each sum rounded to fp32; n is a power of two. */
static float tree(const float *x, int n)
{
    return n == 1 ? x[0] : tree(x, n / 2) + tree(x + n / 2, n / 2);
}

bool linear_fwd_ref(UNUSED struct device *dev, const struct linear_fwd *a, UNUSED struct error *err)
{
    const struct weight *w = a->w;
    int64_t ldx = a->ldx ? a->ldx : w->n_in, ldy = a->ldy ? a->ldy : w->n_out;
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t o = 0; o < w->n_out; o++) {
            double bias = a->bias ? elem_get(a->bias, o, w->dtype) : 0;
            if (w->parts > 1) {
                float part[SUM_PARTS_MAX];
                int64_t k = w->n_in / w->parts;
                for (int p = 0; p < w->parts; p++)
                    part[p] = (float)dot_part(a, ldx, i, o, p * k, (p + 1) * k);
                elem_put(a->y, i * ldy + o, a->y_dtype, tree(part, w->parts) + (float)bias);
            } else {
                elem_put(a->y, i * ldy + o, a->y_dtype, bias + dot_part(a, ldx, i, o, 0, w->n_in));
            }
        }
    return true;
}

bool tree_sum_ref(UNUSED struct device *dev, const struct tree_sum *a, struct error *err)
{
    int64_t ldx = a->ldx ? a->ldx : a->d, ldy = a->ldy ? a->ldy : a->d;
    if (!tree_sum_check(a, err))
        return false;
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t j = 0; j < a->d; j++) {
            float x[SUM_PARTS_MAX];
            for (int p = 0; p < a->n_x; p++)
                x[p] = a->x[p][i * ldx + j];
            elem_put(a->y, i * ldy + j, a->y_dtype, tree(x, a->n_x) + (a->bias ? (float)elem_get(a->bias, j, a->dtype) : 0));
        }
    return true;
}

bool rows_join_ref(UNUSED struct device *dev, const struct rows_join *a, struct error *err)
{
    if (a->n > 0 && !row_ids_check("rows_join", a->row, a->first[a->n], a->n_row, err))
        return false;
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t j = 0; j < a->d; j++) {
            float sum = 0;
            for (int32_t k = a->first[i]; k < a->first[i + 1]; k++)
                sum += (float)elem_get(a->x, a->row[k] * a->d + j, a->dtype);
            elem_put(a->y, i * a->d + j, a->dtype, sum);
        }
    return true;
}

bool linear_bwd_x_ref(UNUSED struct device *dev, const struct linear_bwd_x *a, struct error *err)
{
    const struct weight *w = a->w;
    int64_t n_k = a->n_k ? a->n_k : w->n_out, ldx = a->ldx ? a->ldx : w->n_in, lddy = a->lddy ? a->lddy : n_k;
    enum dtype t = a->f32 ? DT_F32 : w->dtype;
    if (!w->for_bwd)
        return error_set(err, ERR_SHAPE, "linear_bwd_x: the weight was not made for it");
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t k = 0; k < w->n_in; k++) {
            double sum = 0;
            for (int64_t o = 0; o < n_k; o++)
                sum += elem_get(a->dy, i * lddy + o, w->dtype) * elem_get(w->data, (a->first + o) * w->n_in + k, w->dtype);
            elem_put(a->dx, i * ldx + k, t, a->accumulate ? elem_get(a->dx, i * ldx + k, t) + (float)sum : sum);
        }
    return true;
}

bool linear_bwd_tree_ref(struct device *dev, const struct linear_bwd_tree *a, struct error *err)
{
    static const struct tree_ways ways = { linear_bwd_x_ref, tree_sum_ref, mem_fill_ref };
    return linear_bwd_tree_steps(dev, a, &ways, err);
}

bool linear_bwd_w_ref(UNUSED struct device *dev, const struct linear_bwd_w *a, UNUSED struct error *err)
{
    int64_t ldx = a->ldx ? a->ldx : a->n_in, lddy = a->lddy ? a->lddy : a->n_out;
    for (int64_t o = 0; o < a->n_out; o++) {
        for (int64_t k = 0; k < a->n_in; k++) {
            double sum = 0;
            for (int64_t i = 0; i < a->n; i++)
                sum += elem_get(a->dy, i * lddy + o, a->dtype) * elem_get(a->x, i * ldx + k, a->dtype);
            a->dw[o * a->n_in + k] = (a->set ? 0 : a->dw[o * a->n_in + k]) + (float)sum;
        }
        double sum = 0;
        for (int64_t i = 0; a->dbias && i < a->n; i++)
            sum += elem_get(a->dy, i * lddy + o, a->dtype);
        if (a->dbias)
            a->dbias[o] += (float)sum;
    }
    return true;
}

/* The sigmoid in act(x) = x sigmoid(u), and du / dx. */
static double gate_sigmoid(double x, enum gate_act act, double *slope)
{
    *slope = act == ACT_SILU ? 1 : GELU_IN * (1 + 3 * GELU_CUBE * x * x);
    return 1 / (1 + exp(act == ACT_SILU ? -x : -GELU_IN * (x + GELU_CUBE * x * x * x)));
}

bool swiglu_fwd_ref(UNUSED struct device *dev, const struct swiglu_fwd *a, UNUSED struct error *err)
{
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t j = 0; j < a->f; j++) {
            double gate = elem_get(a->gu, i * 2 * a->f + j, a->dtype), up = elem_get(a->gu, (i * 2 + 1) * a->f + j, a->dtype);
            double slope, sig = gate_sigmoid(gate, a->act, &slope);
            elem_put(a->y, i * a->f + j, a->dtype, gate * sig * up);
        }
    return true;
}

bool swiglu_bwd_ref(UNUSED struct device *dev, const struct swiglu_bwd *a, UNUSED struct error *err)
{
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t j = 0; j < a->f; j++) {
            int64_t g = i * 2 * a->f + j, u = g + a->f;
            double gate = elem_get(a->gu, g, a->dtype), up = elem_get(a->gu, u, a->dtype);
            double dy = elem_get(a->dy, i * a->f + j, a->dtype), slope, sig = gate_sigmoid(gate, a->act, &slope);
            if (a->y)
                elem_put(a->y, i * a->f + j, a->dtype, gate * sig * up);
            elem_put(a->dgu, g, a->dtype, dy * up * sig * (1 + gate * slope * (1 - sig)));
            elem_put(a->dgu, u, a->dtype, dy * gate * sig);
        }
    return true;
}

bool add_fwd_ref(UNUSED struct device *dev, const struct add_fwd *a, UNUSED struct error *err)
{
    for (int64_t i = 0; i < a->n; i++)
        elem_put(a->y, i, a->dtype, elem_get(a->a, i, a->dtype) + elem_get(a->b, i, a->dtype));
    return true;
}

bool cast_ref(UNUSED struct device *dev, const struct cast *a, UNUSED struct error *err)
{
    for (int64_t i = 0; i < a->n; i++)
        elem_put(a->y, i, a->y_dtype, (float)elem_get(a->x, i, a->x_dtype) * a->scale);
    return true;
}

bool blend_ref(UNUSED struct device *dev, const struct blend *a, UNUSED struct error *err)
{
    double keep = (double)(1 - a->share);
    for (int64_t i = 0; i < a->n; i++)
        elem_put(a->y, i, a->dtype, keep * elem_get(a->y, i, a->dtype) + (double)a->share * elem_get(a->x, i, a->dtype));
    return true;
}

bool softcap_ref(UNUSED struct device *dev, const struct softcap *a, UNUSED struct error *err)
{
    for (int64_t i = 0; i < a->n; i++)
        a->x[i] = (float)(a->cap * tanh((double)a->x[i] / a->cap));
    return true;
}

bool axpy_ref(UNUSED struct device *dev, const struct axpy *a, UNUSED struct error *err)
{
    for (int64_t i = 0; i < a->n; i++)
        a->y[i] = (float)(a->y[i] + (double)a->x[i] * a->scale);
    return true;
}
