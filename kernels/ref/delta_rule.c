/* delta_rule.c - the gated delta net: convolution, recurrence, gated norm and gates, as plain as their formulas */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/ref/ref.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}
static double silu_slope(double x)
{
    return sigmoid(x) * (1 + x * (1 - sigmoid(x)));
}

/* The column of the input projection that channel c is. */
static int64_t column_of(struct delta_heads h, int64_t c)
{
    int64_t qk = (int64_t)h.n_k * h.d_k;
    return c < qk       ? delta_at(h, DELTA_Q, c / h.d_k) + c % h.d_k
           : c < 2 * qk ? delta_at(h, DELTA_K, (c - qk) / h.d_k) + c % h.d_k
                        : delta_at(h, DELTA_V, (c - 2 * qk) / h.d_v) + (c - 2 * qk) % h.d_v;
}

/* c_t of rows i0 .. of one sequence, where i is t; before it are zeros, or what tail (3, C) holds. */
static double conv_at(const void *x, const void *w, const float *tail, struct delta_heads h, enum dtype t, int64_t i0, int64_t i, int64_t c)
{
    int64_t ld = delta_columns(h), n_c = delta_channels(h), col = column_of(h, c);
    double sum = 0;
    for (int64_t j = 0; j < 4; j++) {
        int64_t at = i - 3 + j;
        double in = at >= i0 ? elem_get(x, at * ld + col, t) : tail ? tail[(3 + at - i0) * n_c + c] : 0;
        sum += elem_get(w, c * 4 + j, t) * in;
    }
    return sum;
}

bool conv4_fwd_ref(UNUSED struct device *dev, const struct conv4_fwd *a, struct error *err)
{
    struct delta_heads h = a->heads;
    int64_t n_c = delta_channels(h), ld = delta_columns(h);
    if (!delta_check("conv4_fwd", &a->of, h, err))
        return false;
    for (int64_t s = 0; s < a->of.n_seq; s++) {
        struct delta_span p = delta_span_of(&a->of, h, s);
        float *tail = p.state ? p.state + (int64_t)h.n_v * h.d_k * h.d_v : NULL;
        for (int64_t i = p.first; i < p.end; i++)
            for (int64_t c = 0; c < n_c; c++) {
                double x = p.absent ? 0 : conv_at(a->x, a->w, p.fresh ? NULL : tail, h, a->dtype, p.first, i, c);
                elem_put(a->y, i * n_c + c, a->dtype, x * sigmoid(x));
            }
        for (int64_t c = 0; c < n_c && tail; c++) {
            float last[3];
            for (int64_t j = 0; j < 3; j++) {
                int64_t at = p.end - 3 + j, before = 3 + at - p.first;
                last[j] = at >= p.first ? (float)elem_get(a->x, at * ld + column_of(h, c), a->dtype) : p.fresh ? 0 : tail[before * n_c + c];
            }
            for (int64_t j = 0; j < 3; j++)
                tail[j * n_c + c] = last[j];
        }
    }
    return true;
}

bool conv4_bwd_ref(UNUSED struct device *dev, const struct conv4_bwd *a, struct error *err)
{
    struct delta_heads h = a->heads;
    int64_t n_c = delta_channels(h), ld = delta_columns(h);
    if (!delta_check("conv4_bwd", &a->of, h, err))
        return false;
    for (int64_t c = 0; c < n_c; c++) {
        double dw[4] = { 0 };
        for (int64_t s = 0; s < a->of.n_seq; s++) {
            struct delta_span p = delta_span_of(&a->of, h, s);
            for (int64_t i = p.first; i < p.end; i++) {
                double dx = 0;
                for (int64_t j = 0; j < 4; j++) {
                    int64_t to = i + 3 - j;    // the output that takes row i times w[j]
                    if (to >= p.end)
                        continue;
                    double dc = elem_get(a->dy, to * n_c + c, a->dtype)
                                * silu_slope(conv_at(a->x, a->w, NULL, h, a->dtype, p.first, to, c));
                    dx += dc * elem_get(a->w, c * 4 + j, a->dtype);
                    dw[j] += dc * elem_get(a->x, i * ld + column_of(h, c), a->dtype);
                }
                elem_put(a->dx, i * ld + column_of(h, c), a->dtype, dx);
            }
        }
        for (int64_t j = 0; j < 4 && a->dw; j++)
            a->dw[c * 4 + j] += (float)dw[j];
    }
    return true;
}

/* What one token gives a value head: q, k (d_k), v (d_v), beta and g. */
struct token {
    double q[DELTA_WIDTH_MAX], k[DELTA_WIDTH_MAX], v[DELTA_WIDTH_MAX], beta, g, a;
    double q_root, k_root;    // what q and k were divided by
};
static void token_get(struct token *t, const void *x, const void *row, const void *a_log, const void *dt_bias, struct delta_heads h,
                      enum dtype type, int64_t i, int64_t head)
{
    int64_t n_c = delta_channels(h), ld = delta_columns(h), key = head / (h.n_v / h.n_k), qk = (int64_t)h.n_k * h.d_k;
    double q2 = 1e-6, k2 = 1e-6;
    for (int64_t c = 0; c < h.d_k; c++) {
        t->q[c] = elem_get(x, i * n_c + key * h.d_k + c, type);
        t->k[c] = elem_get(x, i * n_c + qk + key * h.d_k + c, type);
        q2 += t->q[c] * t->q[c];
        k2 += t->k[c] * t->k[c];
    }
    t->q_root = sqrt(q2);
    t->k_root = sqrt(k2);
    for (int64_t c = 0; c < h.d_k; c++) {
        t->q[c] /= t->q_root * sqrt(h.d_k);
        t->k[c] /= t->k_root;
    }
    for (int64_t c = 0; c < h.d_v; c++)
        t->v[c] = elem_get(x, i * n_c + 2 * qk + head * h.d_v + c, type);
    t->beta = sigmoid(elem_get(row, i * ld + delta_at(h, DELTA_B, head), type));
    t->a = elem_get(row, i * ld + delta_at(h, DELTA_A, head), type) + elem_get(dt_bias, head, type);
    t->g = -exp(elem_get(a_log, head, type)) * log1p(exp(t->a));
}

/* One token: s (d_k, d_v) becomes the state after it; before the token's own part is added it is copied to decayed, unless NULL. */
static void state_step(double *s, double *decayed, double *u, const struct token *t, struct delta_heads h)
{
    for (int64_t c = 0; c < (int64_t)h.d_k * h.d_v; c++)
        s[c] *= exp(t->g);
    if (decayed)
        memcpy(decayed, s, (size_t)h.d_k * (size_t)h.d_v * sizeof *s);
    for (int64_t j = 0; j < h.d_v; j++) {
        double sum = 0;
        for (int64_t c = 0; c < h.d_k; c++)
            sum += s[c * h.d_v + j] * t->k[c];
        u[j] = t->beta * (t->v[j] - sum);
    }
    for (int64_t c = 0; c < h.d_k; c++)
        for (int64_t j = 0; j < h.d_v; j++)
            s[c * h.d_v + j] += t->k[c] * u[j];
}

bool delta_rule_fwd_ref(UNUSED struct device *dev, const struct delta_rule_fwd *a, struct error *err)
{
    struct delta_heads h = a->heads;
    int64_t n_s = (int64_t)h.d_k * h.d_v;
    double u[DELTA_WIDTH_MAX];
    struct token t;
    if (!delta_check("delta_rule_fwd", &a->of, h, err))
        return false;
    double *s = malloc((size_t)n_s * sizeof *s);
    if (!s)
        return error_set(err, ERR_NO_MEMORY, "delta_rule_fwd: no memory for a state");
    for (int64_t q = 0; q < a->of.n_seq; q++) {
        struct delta_span p = delta_span_of(&a->of, h, q);
        for (int64_t head = 0; head < h.n_v; head++) {
            float *kept = p.state ? p.state + head * n_s : NULL;
            for (int64_t c = 0; c < n_s; c++)
                s[c] = kept && !p.fresh ? kept[c] : 0;
            for (int64_t i = p.first; i < p.end; i++) {
                if (!p.absent) {
                    token_get(&t, a->x, a->row, a->a_log, a->dt_bias, h, a->dtype, i, head);
                    state_step(s, NULL, u, &t, h);
                }
                for (int64_t j = 0; j < h.d_v; j++) {
                    double o = 0;
                    for (int64_t c = 0; c < h.d_k && !p.absent; c++)
                        o += s[c * h.d_v + j] * t.q[c];
                    elem_put(a->o, (i * h.n_v + head) * h.d_v + j, a->dtype, o);
                }
            }
            for (int64_t c = 0; c < n_s && kept; c++)
                kept[c] = (float)s[c];
        }
    }
    free(s);
    return true;
}

/* One token backward: ds, the gradient by the state after it, becomes that by the state before. s is the state after the token without
 * the token's own part, e^g S. The token's gradients go into d, where beta, g and a are those by b, g and a. */
static void state_step_bwd(double *ds, const double *s, const double *u, const double *dout, const struct token *t, struct token *d,
                           struct delta_heads h, double exp_a_log)
{
    double du[DELTA_WIDTH_MAX], dbeta = 0, dg = 0;
    for (int64_t c = 0; c < h.d_k; c++) {
        d->q[c] = 0;
        for (int64_t j = 0; j < h.d_v; j++) {
            ds[c * h.d_v + j] += t->q[c] * dout[j];
            d->q[c] += (s[c * h.d_v + j] + t->k[c] * u[j]) * dout[j];
        }
    }
    for (int64_t j = 0; j < h.d_v; j++) {
        du[j] = 0;
        for (int64_t c = 0; c < h.d_k; c++)
            du[j] += ds[c * h.d_v + j] * t->k[c];
        d->v[j] = t->beta * du[j];
    }
    for (int64_t j = 0; j < h.d_v; j++) {
        double kept = 0;
        for (int64_t c = 0; c < h.d_k; c++)
            kept += s[c * h.d_v + j] * t->k[c];
        dbeta += du[j] * (t->v[j] - kept);
    }
    for (int64_t c = 0; c < h.d_k; c++) {
        d->k[c] = 0;
        for (int64_t j = 0; j < h.d_v; j++) {
            d->k[c] += ds[c * h.d_v + j] * u[j] - s[c * h.d_v + j] * d->v[j];
            ds[c * h.d_v + j] -= t->k[c] * d->v[j];
            dg += ds[c * h.d_v + j] * s[c * h.d_v + j];
            ds[c * h.d_v + j] *= exp(t->g);
        }
    }
    d->beta = dbeta * t->beta * (1 - t->beta);
    d->g = dg;
    d->a = dg * -exp_a_log * sigmoid(t->a);
}

/* The gradient by x, of that by x / root times scale, added to sum. */
static void unit_bwd(double *sum, const double *unit, const double *dunit, int64_t n, double root, double scale)
{
    double dot = 0;
    for (int64_t c = 0; c < n; c++)
        dot += unit[c] / scale * dunit[c];
    for (int64_t c = 0; c < n; c++)
        sum[c] += scale * (dunit[c] - unit[c] / scale * dot) / root;
}

/* Memory for a sequence of n tokens: the state without each token's own part, what it added, and sums of the gradients by q and k. */
struct ref_scratch {
    double *s, *u, *state, *dstate, *dqk;
};
static void head_bwd(const struct delta_rule_bwd *a, struct delta_span p, int64_t head, const struct ref_scratch *m, double sums[2])
{
    struct delta_heads h = a->heads;
    struct token t, d;
    int64_t n_s = (int64_t)h.d_k * h.d_v, n_c = delta_channels(h), ld = delta_columns(h), n = p.end - p.first;
    double dout[DELTA_WIDTH_MAX], scale = 1 / sqrt(h.d_k), exp_a_log = exp(elem_get(a->a_log, head, a->dtype));
    memset(m->state, 0, (size_t)n_s * sizeof(double));
    memset(m->dstate, 0, (size_t)n_s * sizeof(double));
    for (int64_t i = 0; i < n; i++) {
        token_get(&t, a->x, a->row, a->a_log, a->dt_bias, h, a->dtype, p.first + i, head);
        state_step(m->state, m->s + i * n_s, m->u + i * h.d_v, &t, h);
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        int64_t row = p.first + i;
        token_get(&t, a->x, a->row, a->a_log, a->dt_bias, h, a->dtype, row, head);
        for (int64_t j = 0; j < h.d_v; j++)
            dout[j] = elem_get(a->dout, (row * h.n_v + head) * h.d_v + j, a->dtype);
        state_step_bwd(m->dstate, m->s + i * n_s, m->u + i * h.d_v, dout, &t, &d, h, exp_a_log);
        unit_bwd(m->dqk + i * 2 * h.d_k, t.q, d.q, h.d_k, t.q_root, scale);
        unit_bwd(m->dqk + (i * 2 + 1) * h.d_k, t.k, d.k, h.d_k, t.k_root, 1);
        for (int64_t j = 0; j < h.d_v; j++)
            elem_put(a->dx, row * n_c + (int64_t)2 * h.n_k * h.d_k + head * h.d_v + j, a->dtype, d.v[j]);
        elem_put(a->drow, row * ld + delta_at(h, DELTA_B, head), a->dtype, d.beta);
        elem_put(a->drow, row * ld + delta_at(h, DELTA_A, head), a->dtype, d.a);
        sums[0] += d.g * t.g;
        sums[1] += d.a;
    }
}

bool delta_rule_bwd_ref(UNUSED struct device *dev, const struct delta_rule_bwd *a, struct error *err)
{
    struct delta_heads h = a->heads;
    int64_t n_s = (int64_t)h.d_k * h.d_v, n_c = delta_channels(h), n = a->of.n, r = h.n_v / MAX(h.n_k, 1);
    if (!delta_check("delta_rule_bwd", &a->of, h, err))
        return false;
    size_t size = (size_t)(n * (n_s + h.d_v + 2 * h.d_k) + 2 * n_s) * sizeof(double);
    double *mem = malloc(MAX(size, (size_t)1));
    if (!mem)
        return error_set(err, ERR_NO_MEMORY, "delta_rule_bwd: no memory for the states of %" PRId64 " tokens", n);
    struct ref_scratch m = { .state = mem, .dstate = mem + n_s, .s = mem + 2 * n_s };
    m.u = m.s + n * n_s;
    m.dqk = m.u + n * h.d_v;
    for (int64_t key = 0; key < h.n_k; key++)
        for (int64_t head = key * r; head < (key + 1) * r; head++) {
            double sums[2] = { 0 };
            for (int64_t q = 0; q < a->of.n_seq; q++) {
                struct delta_span p = delta_span_of(&a->of, h, q);
                struct ref_scratch of = m;
                of.dqk += p.first * 2 * h.d_k;
                if (head == key * r)
                    memset(of.dqk, 0, (size_t)(p.end - p.first) * 2 * (size_t)h.d_k * sizeof(double));
                head_bwd(a, p, head, &of, sums);
            }
            for (int64_t i = 0; i < n && head == key * r + r - 1; i++)
                for (int64_t c = 0; c < h.d_k; c++) {
                    elem_put(a->dx, i * n_c + key * h.d_k + c, a->dtype, m.dqk[i * 2 * h.d_k + c]);
                    elem_put(a->dx, i * n_c + (h.n_k + key) * h.d_k + c, a->dtype, m.dqk[(i * 2 + 1) * h.d_k + c]);
                }
            if (a->da_log)
                a->da_log[head] += (float)sums[0];
            if (a->ddt_bias)
                a->ddt_bias[head] += (float)sums[1];
        }
    free(mem);
    return true;
}

static double o_rstd(const void *o, int64_t at, int64_t d, float eps, enum dtype t)
{
    double square = 0;
    for (int64_t j = 0; j < d; j++)
        square += elem_get(o, at + j, t) * elem_get(o, at + j, t);
    return 1 / sqrt(square / (double)d + eps);
}

bool gated_norm_fwd_ref(UNUSED struct device *dev, const struct gated_norm_fwd *a, struct error *err)
{
    struct delta_heads h = a->heads;
    if (!delta_heads_check("gated_norm_fwd", h, err))
        return false;
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t head = 0; head < h.n_v; head++) {
            int64_t at = (i * h.n_v + head) * h.d_v, z_at = i * delta_columns(h) + delta_at(h, DELTA_Z, head);
            double rstd = o_rstd(a->o, at, h.d_v, a->eps, a->dtype);
            for (int64_t j = 0; j < h.d_v; j++) {
                double x = elem_get(a->o, at + j, a->dtype) * rstd, z = elem_get(a->row, z_at + j, a->dtype);
                if (a->dtype == DT_BF16)
                    x = bf16_to_f32(bf16_from_f32((float)x));
                elem_put(a->y, at + j, a->dtype, elem_get(a->w, j, a->dtype) * x * z * sigmoid(z));
            }
        }
    return true;
}

bool gated_norm_bwd_ref(UNUSED struct device *dev, const struct gated_norm_bwd *a, struct error *err)
{
    struct delta_heads h = a->heads;
    double dw[DELTA_WIDTH_MAX] = { 0 }, dx[DELTA_WIDTH_MAX];
    if (!delta_heads_check("gated_norm_bwd", h, err))
        return false;
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t head = 0; head < h.n_v; head++) {
            int64_t at = (i * h.n_v + head) * h.d_v, z_at = i * delta_columns(h) + delta_at(h, DELTA_Z, head);
            double rstd = o_rstd(a->o, at, h.d_v, a->eps, a->dtype), dot = 0;
            for (int64_t j = 0; j < h.d_v; j++) {
                double x = elem_get(a->o, at + j, a->dtype) * rstd, z = elem_get(a->row, z_at + j, a->dtype);
                double w = elem_get(a->w, j, a->dtype), dy = elem_get(a->dy, at + j, a->dtype), gate = z * sigmoid(z);
                elem_put(a->drow, z_at + j, a->dtype, dy * w * x * silu_slope(z));
                dw[j] += dy * gate * x;
                dx[j] = dy * gate * w;
                dot += dx[j] * x;
            }
            for (int64_t j = 0; j < h.d_v; j++) {
                double x = elem_get(a->o, at + j, a->dtype) * rstd;
                elem_put(a->dout, at + j, a->dtype, rstd * (dx[j] - x * dot / h.d_v));
            }
        }
    for (int64_t j = 0; j < h.d_v && a->dw; j++)
        a->dw[j] += (float)dw[j];
    return true;
}

bool gate_split_ref(struct device *dev, const struct gate_split *a, struct error *err)
{
    return host_gate_split(dev, a, err);
}

bool gate_join_ref(struct device *dev, const struct gate_join *a, struct error *err)
{
    return host_gate_join(dev, a, err);
}

bool gate_fwd_ref(UNUSED struct device *dev, const struct gate_fwd *a, UNUSED struct error *err)
{
    for (int64_t i = 0; i < a->n; i++)
        elem_put(a->y, i, a->dtype, elem_get(a->x, i, a->dtype) * sigmoid(elem_get(a->gate, i, a->dtype)));
    return true;
}

bool gate_bwd_ref(UNUSED struct device *dev, const struct gate_bwd *a, UNUSED struct error *err)
{
    for (int64_t i = 0; i < a->n; i++) {
        double dy = elem_get(a->dy, i, a->dtype), s = sigmoid(elem_get(a->gate, i, a->dtype)), x = elem_get(a->x, i, a->dtype);
        elem_put(a->dgate, i, a->dtype, dy * x * s * (1 - s));
        elem_put(a->dx, i, a->dtype, dy * s);
    }
    return true;
}
