/* rows_body.h - operations on rows and elements: norm, rotation, SwiGLU, sums, casts, optimizer
 *
 * Each loop is written once for a dtype known at compile time (VEC_FN) and called for both. */
#define BOTH_TYPES(t, fn, ...)                                                                                                             \
    do {                                                                                                                                   \
        if ((t) == DT_BF16)                                                                                                                \
            fn(__VA_ARGS__, DT_BF16);                                                                                                      \
        else                                                                                                                               \
            fn(__VA_ARGS__, DT_F32);                                                                                                       \
    } while (0)

/* What a norm multiplies n elements from j on by. */
VEC_FN v16 norm_weight(const void *w, int64_t j, int n, enum norm_form form, const enum dtype t)
{
    v16 x = v_get(w, j, n, t);
    return form == NORM_GEMMA ? v_add(v_set1(1), x) : x;
}
VEC_FN void rmsnorm_fwd_rows(const struct rmsnorm_fwd *a, int64_t i0, int64_t i1, const enum dtype t)
{
    for (int64_t i = i0; i < i1; i++) {
        int64_t at = i * (a->ld ? a->ld : a->d);
        const void *from = a->x;
        v16 square = v_set1(0);
        for (int64_t j = 0; j < a->d; j += 16) {
            int n = (int)MIN(16, a->d - j);
            v16 x = v_get(a->x, at + j, n, t);
            if (a->add)
                x = v_round(v_add(x, v_get(a->add, at + j, n, t)), t);
            if (a->sum)
                v_put(a->sum, at + j, n, t, x);
            square = v_fma(x, x, square);
        }
        if (a->sum)
            from = a->sum;
        float rstd = 1 / sqrtf(v_sum(square) / (float)a->d + a->eps);
        if (a->rstd)
            a->rstd[i] = rstd;
        for (int64_t j = 0; j < a->d; j += 16) {
            int n = (int)MIN(16, a->d - j);
            v16 x = v_mul(v_get(from, at + j, n, t), v_set1(rstd));
            if (a->form == NORM_LLAMA)
                x = v_round(x, t);
            v_put(a->y, at + j, n, t, v_mul(x, norm_weight(a->w, j, n, a->form, t)));
        }
    }
}
static void path_rmsnorm_fwd(const struct rmsnorm_fwd *a, int64_t i0, int64_t i1)
{
    BOTH_TYPES(a->dtype, rmsnorm_fwd_rows, a, i0, i1);
}

VEC_FN void rmsnorm_bwd_rows(const struct rmsnorm_bwd *a, int64_t i0, int64_t i1, float *dw, const enum dtype t)
{
    if (a->dw)
        memset(dw, 0, (size_t)a->d * sizeof *dw);
    for (int64_t i = i0; i < i1; i++) {
        int64_t at = i * (a->ld ? a->ld : a->d);
        v16 rstd = v_set1(a->rstd[i]), dot = v_set1(0);
        for (int64_t j = 0; j < a->d; j += 16) {
            int n = (int)MIN(16, a->d - j);
            v16 dy = v_get(a->dy, at + j, n, t), xhat = v_mul(v_get(a->x, at + j, n, t), rstd);
            dot = v_fma(v_mul(dy, norm_weight(a->w, j, n, a->form, t)), xhat, dot);
            if (a->dw)
                v_put(dw, j, n, DT_F32, v_fma(dy, xhat, v_get(dw, j, n, DT_F32)));
        }
        v16 mean = v_set1(-v_sum(dot) / (float)a->d);
        for (int64_t j = 0; j < a->d; j += 16) {
            int n = (int)MIN(16, a->d - j);
            v16 g = v_mul(v_get(a->dy, at + j, n, t), norm_weight(a->w, j, n, a->form, t)), xhat = v_mul(v_get(a->x, at + j, n, t), rstd);
            v16 dx = v_mul(rstd, v_fma(xhat, mean, g));
            if (a->dadd)
                dx = v_add(dx, v_get(a->dadd, at + j, n, t));
            v_put(a->dx, at + j, n, t, dx);
        }
    }
}
static void path_rmsnorm_bwd(const struct rmsnorm_bwd *a, int64_t i0, int64_t i1, float *dw)
{
    BOTH_TYPES(a->dtype, rmsnorm_bwd_rows, a, i0, i1, dw);
}

VEC_FN float head_rstd(const void *x, int64_t at, int hd, float eps, const enum dtype t)
{
    v16 square = v_set1(0);
    for (int j = 0; j < hd; j += 16) {
        v16 h = v_get(x, at + j, 16, t);
        square = v_fma(h, h, square);
    }
    return 1 / sqrtf(v_sum(square) / (float)hd + eps);
}

/* A pool page: K of each head (hd, PANEL) with tokens in columns, then V of each head (PANEL, hd). */
VEC_FN void kv_write(const struct rope_fwd *a, int64_t i, const enum dtype t)
{
    int hd = a->heads.hd, n_kv = a->heads.n_kv;
    int64_t half = (int64_t)n_kv * PANEL * hd, at = a->slot[i] / PANEL * 2 * half, tok = a->slot[i] % PANEL;
    int64_t from = (i * (a->heads.n_q + 2 * n_kv) + a->heads.n_q) * hd;
    for (int h = 0; h < n_kv; h++) {
        for (int j = 0; j < hd; j++)
            if (t == DT_F32)
                ((float *)a->kv)[at + ((int64_t)h * hd + j) * PANEL + tok] = ((const float *)a->out)[from + h * hd + j];
            else
                ((uint16_t *)a->kv)[at + ((int64_t)h * hd + j) * PANEL + tok] = ((const uint16_t *)a->out)[from + h * hd + j];
        for (int j = 0; j < hd; j += 16)
            v_put(a->kv, at + half + ((int64_t)h * PANEL + tok) * hd + j, 16, t, v_get(a->out, from + (int64_t)(n_kv + h) * hd + j, 16, t));
    }
}

VEC_FN void rope_fwd_rows(const struct rope_fwd *a, int64_t i0, int64_t i1, const enum dtype t)
{
    int hd = a->heads.hd, rot = a->rot ? a->rot : hd, half = rot / 2, n_q = a->heads.n_q, n_kv = a->heads.n_kv, n_head = n_q + 2 * n_kv;
    for (int64_t i = i0; i < i1; i++) {
        const float *cosine = a->cos + (int64_t)a->pos[i] * half, *sine = a->sin + (int64_t)a->pos[i] * half;
        for (int h = 0; h < n_q + n_kv; h++) {
            const void *norm = h < n_q ? a->q_norm : a->k_norm;
            int64_t at = (i * n_head + h) * hd;
            v16 rstd = v_set1(norm ? head_rstd(a->qkv, at, hd, a->eps, t) : 1);
            for (int j = 0; j < half; j += 16) {
                int n = MIN(16, half - j);
                v16 lo = v_get(a->qkv, at + j, n, t), hi = v_get(a->qkv, at + half + j, n, t);
                v16 c = v_get(cosine, j, n, DT_F32), s = v_get(sine, j, n, DT_F32);
                if (norm) {
                    lo = v_mul(v_mul(lo, rstd), norm_weight(norm, j, n, a->form, t));
                    hi = v_mul(v_mul(hi, rstd), norm_weight(norm, half + j, n, a->form, t));
                }
                v_put(a->out, at + j, n, t, v_sub(v_mul(lo, c), v_mul(hi, s)));
                v_put(a->out, at + half + j, n, t, v_add(v_mul(hi, c), v_mul(lo, s)));
            }
            for (int j = rot; j < hd; j += 16) {
                int n = MIN(16, hd - j);
                v16 x = v_get(a->qkv, at + j, n, t);
                v_put(a->out, at + j, n, t, norm ? v_mul(v_mul(x, rstd), norm_weight(norm, j, n, a->form, t)) : x);
            }
        }
        if (a->out != a->qkv)
            memcpy((char *)a->out + (size_t)((i * n_head + n_q + n_kv) * hd) * dtype_size(t),
                   (const char *)a->qkv + (size_t)((i * n_head + n_q + n_kv) * hd) * dtype_size(t), (size_t)(n_kv * hd) * dtype_size(t));
        if (a->kv && a->slot[i] >= 0)
            kv_write(a, i, t);
    }
}
static void path_rope_fwd(const struct rope_fwd *a, int64_t i0, int64_t i1)
{
    BOTH_TYPES(a->dtype, rope_fwd_rows, a, i0, i1);
}

VEC_FN void rope_bwd_rows(const struct rope_bwd *a, int64_t i0, int64_t i1, float *dnorm, const enum dtype t)
{
    int hd = a->heads.hd, rot = a->rot ? a->rot : hd, half = rot / 2, n_q = a->heads.n_q, n_kv = a->heads.n_kv, n_head = n_q + 2 * n_kv;
    int parts = MAX(a->parts, 1), each_q = MAX(n_q / parts, 1), each_k = MAX(n_kv / parts, 1);
    float g[256];
    memset(dnorm, 0, 2 * (size_t)(parts * hd) * sizeof *dnorm);
    for (int64_t i = i0; i < i1; i++) {
        const float *cosine = a->cos + (int64_t)a->pos[i] * half, *sine = a->sin + (int64_t)a->pos[i] * half;
        for (int h = 0; h < n_q + n_kv; h++) {
            const void *norm = h < n_q ? a->q_norm : a->k_norm;
            float *dw = dnorm + (h < n_q ? h / each_q : parts + (h - n_q) / each_k) * hd;
            int64_t at = (i * n_head + h) * hd;
            for (int j = 0; j < half; j += 16) {
                int n = MIN(16, half - j);
                v16 lo = v_get(a->dqkv, at + j, n, t), hi = v_get(a->dqkv, at + half + j, n, t);
                v16 c = v_get(cosine, j, n, DT_F32), s = v_get(sine, j, n, DT_F32);
                v16 glo = v_add(v_mul(lo, c), v_mul(hi, s)), ghi = v_sub(v_mul(hi, c), v_mul(lo, s));
                v_put(norm ? g : a->dqkv, norm ? j : at + j, n, norm ? DT_F32 : t, glo);
                v_put(norm ? g : a->dqkv, norm ? half + j : at + half + j, n, norm ? DT_F32 : t, ghi);
            }
            if (!norm)
                continue;
            for (int j = rot; j < hd; j += 16) {
                int n = MIN(16, hd - j);
                v_put(g, j, n, DT_F32, v_get(a->dqkv, at + j, n, t));
            }
            v16 rstd = v_set1(head_rstd(a->qkv, at, hd, a->eps, t)), dot = v_set1(0);
            for (int j = 0; j < hd; j += 16) {
                v16 xhat = v_mul(v_get(a->qkv, at + j, 16, t), rstd), dy = v_load(g + j);
                v_store(dw + j, v_fma(dy, xhat, v_load(dw + j)));
                dy = v_mul(dy, norm_weight(norm, j, 16, a->form, t));
                v_store(g + j, dy);
                dot = v_fma(dy, xhat, dot);
            }
            v16 mean = v_set1(-v_sum(dot) / (float)hd);
            for (int j = 0; j < hd; j += 16) {
                v16 xhat = v_mul(v_get(a->qkv, at + j, 16, t), rstd);
                v_put(a->dqkv, at + j, 16, t, v_mul(rstd, v_fma(xhat, mean, v_load(g + j))));
            }
        }
    }
}
static void path_rope_bwd(const struct rope_bwd *a, int64_t i0, int64_t i1, float *dnorm)
{
    BOTH_TYPES(a->dtype, rope_bwd_rows, a, i0, i1, dnorm);
}

VEC_FN v16 v_sigmoid(v16 x)
{
    return v_div(v_set1(1), v_add(v_set1(1), v_exp(v_sub(v_set1(0), x))));
}
/* The sigmoid in act(x) = x sigmoid(u), and du / dx. */
VEC_FN v16 gate_sigmoid(v16 x, enum gate_act act, v16 *slope)
{
    v16 one = v_set1(1), square = v_mul(x, x), cube = v_set1((float)GELU_CUBE), in = v_set1((float)GELU_IN);
    *slope = act == ACT_SILU ? one : v_mul(in, v_fma(v_mul(v_set1(3), cube), square, one));
    return v_sigmoid(act == ACT_SILU ? x : v_mul(v_mul(in, x), v_fma(cube, square, one)));
}
VEC_FN void swiglu_fwd_rows(const struct swiglu_fwd *a, int64_t i0, int64_t i1, const enum dtype t)
{
    for (int64_t i = i0; i < i1; i++)
        for (int64_t j = 0; j < a->f; j += 16) {
            int n = (int)MIN(16, a->f - j);
            v16 gate = v_get(a->gu, i * 2 * a->f + j, n, t), up = v_get(a->gu, (i * 2 + 1) * a->f + j, n, t);
            v16 slope, sig = gate_sigmoid(gate, a->act, &slope);
            v_put(a->y, i * a->f + j, n, t, v_mul(v_mul(gate, sig), up));
        }
}
static void path_swiglu_fwd(const struct swiglu_fwd *a, int64_t i0, int64_t i1)
{
    BOTH_TYPES(a->dtype, swiglu_fwd_rows, a, i0, i1);
}
VEC_FN void swiglu_bwd_rows(const struct swiglu_bwd *a, int64_t i0, int64_t i1, const enum dtype t)
{
    v16 one = v_set1(1);
    for (int64_t i = i0; i < i1; i++)
        for (int64_t j = 0; j < a->f; j += 16) {
            int n = (int)MIN(16, a->f - j);
            int64_t g = i * 2 * a->f + j, u = g + a->f;
            v16 gate = v_get(a->gu, g, n, t), up = v_get(a->gu, u, n, t), dy = v_get(a->dy, i * a->f + j, n, t);
            v16 inner, sig = gate_sigmoid(gate, a->act, &inner), slope = v_mul(sig, v_fma(v_mul(gate, inner), v_sub(one, sig), one));
            if (a->y)
                v_put(a->y, i * a->f + j, n, t, v_mul(v_mul(gate, sig), up));
            v_put(a->dgu, g, n, t, v_mul(v_mul(dy, up), slope));
            v_put(a->dgu, u, n, t, v_mul(dy, v_mul(gate, sig)));
        }
}
static void path_swiglu_bwd(const struct swiglu_bwd *a, int64_t i0, int64_t i1)
{
    BOTH_TYPES(a->dtype, swiglu_bwd_rows, a, i0, i1);
}

static void path_add(const struct add_fwd *a, int64_t i0, int64_t i1)
{
    for (int64_t i = i0; i < i1; i += 16) {
        int n = (int)MIN(16, i1 - i);
        v_put(a->y, i, n, a->dtype, v_add(v_get(a->a, i, n, a->dtype), v_get(a->b, i, n, a->dtype)));
    }
}
/* The x of row i, columns [j, j + n), as a tree; n_x is a constant where it is inlined. */
VEC_FN v16 tree_of(const float *const *x, const int n_x, int64_t at, int n)
{
    v16 v[SUM_PARTS_MAX];
    for (int p = 0; p < n_x; p++)
        v[p] = v_loadn(x[p] + at, n);
    for (int m = n_x / 2; m > 0; m /= 2)
        for (int p = 0; p < m; p++)
            v[p] = v_add(v[2 * p], v[2 * p + 1]);
    return v[0];
}
static void path_tree_sum(const struct tree_sum *a, int64_t i0, int64_t i1)
{
    int64_t ldx = a->ldx ? a->ldx : a->d, ldy = a->ldy ? a->ldy : a->d;
    for (int64_t i = i0; i < i1; i++)
        for (int64_t j = 0; j < a->d; j += 16) {
            int n = (int)MIN(16, a->d - j);
            int64_t at = i * ldx + j;
            v16 sum = a->n_x == 4   ? tree_of(a->x, 4, at, n)
                      : a->n_x == 2 ? tree_of(a->x, 2, at, n)
                      : a->n_x == 8 ? tree_of(a->x, 8, at, n)
                                    : tree_of(a->x, 1, at, n);
            v_put(a->y, i * ldy + j, n, a->y_dtype, a->bias ? v_add(sum, v_get(a->bias, j, n, a->dtype)) : sum);
        }
}
VEC_FN void rows_join_rows(const struct rows_join *a, int64_t i0, int64_t i1, const enum dtype t)
{
    for (int64_t i = i0; i < i1; i++)
        for (int64_t j = 0; j < a->d; j += 16) {
            int n = (int)MIN(16, a->d - j);
            int32_t k = a->first[i], end = a->first[i + 1];
            v16 sum = k < end ? v_get(a->x, a->row[k] * a->d + j, n, t) : v_set1(0);
            for (k++; k < end; k++)
                sum = v_add(sum, v_get(a->x, a->row[k] * a->d + j, n, t));
            v_put(a->y, i * a->d + j, n, t, sum);
        }
}
static void path_rows_join(const struct rows_join *a, int64_t i0, int64_t i1)
{
    BOTH_TYPES(a->dtype, rows_join_rows, a, i0, i1);
}
VEC_FN void combine_fwd_rows(const struct combine_fwd *a, int64_t i0, int64_t i1, const enum dtype t)
{
    for (int64_t i = i0; i < i1; i++)
        for (int64_t j = 0; j < a->d; j += 16) {
            int n = (int)MIN(16, a->d - j);
            v16 sum = v_set1(0);
            for (int64_t p = i * a->k; p < (i + 1) * a->k; p++)
                sum = v_fma(v_set1(a->weight ? a->weight[p] : 1), v_get(a->x, a->place[p] * a->d + j, n, t), sum);
            v_put(a->y, i * a->d + j, n, t, sum);
        }
}
static void path_combine_fwd(const struct combine_fwd *a, int64_t i0, int64_t i1)
{
    BOTH_TYPES(a->dtype, combine_fwd_rows, a, i0, i1);
}
VEC_FN void combine_bwd_rows(const struct combine_bwd *a, int64_t i0, int64_t i1, const enum dtype t)
{
    for (int64_t p = i0 * a->k; p < i1 * a->k; p++) {
        v16 sum = v_set1(0), w = v_set1(a->weight[p]);
        for (int64_t j = 0; j < a->f; j += 16) {
            int n = (int)MIN(16, a->f - j);
            int64_t at = a->place[p] * a->f + j;
            v16 x = v_get(a->x, at, n, t), dx = v_get(a->dx, at, n, t);
            sum = v_fma(dx, x, sum);
            v_put(a->x, at, n, t, v_mul(x, w));
            v_put(a->dx, at, n, t, v_mul(dx, w));
        }
        a->dweight[p] = v_sum(sum);
    }
}
static void path_combine_bwd(const struct combine_bwd *a, int64_t i0, int64_t i1)
{
    BOTH_TYPES(a->dtype, combine_bwd_rows, a, i0, i1);
}
static void path_cast(const struct cast *a, int64_t i0, int64_t i1)
{
    v16 scale = v_set1(a->scale);
    for (int64_t i = i0; i < i1; i += 16) {
        int n = (int)MIN(16, i1 - i);
        v_put(a->y, i, n, a->y_dtype, v_mul(v_get(a->x, i, n, a->x_dtype), scale));
    }
}
static void path_blend(const struct blend *a, int64_t i0, int64_t i1)
{
    v16 share = v_set1(a->share), keep = v_set1(1 - a->share);
    for (int64_t i = i0; i < i1; i += 16) {
        int n = (int)MIN(16, i1 - i);
        v_put(a->y, i, n, a->dtype, v_fma(share, v_get(a->x, i, n, a->dtype), v_mul(keep, v_get(a->y, i, n, a->dtype))));
    }
}
static void path_softcap(const struct softcap *a, int64_t i0, int64_t i1)
{
    v16 cap = v_set1(a->cap);
    for (int64_t i = i0; i < i1; i += 16) {
        int n = (int)MIN(16, i1 - i);
        v_put(a->x, i, n, DT_F32, v_mul(cap, v_tanh(v_div(v_get(a->x, i, n, DT_F32), cap))));
    }
}
static void path_axpy(const struct axpy *a, int64_t i0, int64_t i1)
{
    v16 scale = v_set1(a->scale);
    for (int64_t i = i0; i < i1; i += 16) {
        int n = (int)MIN(16, i1 - i);
        v_put(a->y, i, n, DT_F32, v_fma(v_get(a->x, i, n, DT_F32), scale, v_get(a->y, i, n, DT_F32)));
    }
}

#define SUM_WIDE 4
static void path_rows_sum(float *y, const void *x, enum dtype t, int64_t ld, int64_t n, int64_t i0, int64_t i1, bool accumulate)
{
    for (int64_t j0 = 0; j0 < n; j0 += 16 * SUM_WIDE) {    // a few columns at a time, so that their sums stay in registers
        v16 sum[SUM_WIDE];
        int n_v = (int)MIN(SUM_WIDE, (n - j0 + 15) / 16), last = (int)MIN(16, n - j0 - 16 * (n_v - 1));
        for (int k = 0; k < SUM_WIDE; k++)
            sum[k] = v_set1(0);
        if (n_v == SUM_WIDE && last == 16)
            for (int64_t i = i0; i < i1; i++)
                for (int k = 0; k < SUM_WIDE; k++)
                    sum[k] = v_add(sum[k], v_get(x, i * ld + j0 + 16 * k, 16, t));
        else
            for (int64_t i = i0; i < i1; i++)
                for (int k = 0; k < n_v; k++)
                    sum[k] = v_add(sum[k], v_get(x, i * ld + j0 + 16 * k, k + 1 < n_v ? 16 : last, t));
        for (int k = 0; k < n_v; k++) {
            int64_t j = j0 + 16 * k;
            int w = k + 1 < n_v ? 16 : last;
            v_put(y, j, w, DT_F32, accumulate ? v_add(v_get(y, j, w, DT_F32), sum[k]) : sum[k]);
        }
    }
}
static void path_rows_load(float *dst, const void *x, enum dtype t, int64_t ld, int64_t n, int64_t d)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < d; j += 16) {
            int w = (int)MIN(16, d - j);
            v_put(dst, i * d + j, w, DT_F32, v_get(x, i * ld + j, w, t));
        }
}
/* Tiles narrower than a store overlap: what is written after a row is overwritten by the next row. */
VEC_FN void tiles_load_rows(float *dst, int64_t step, const void *x, int64_t ld, int64_t n, int64_t d, const int width, const enum dtype t)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < d; j += width)
            for (int64_t l = 0; l < MIN(width, d - j); l += 16)
                v_store(dst + j / width * step + i * width + l, v_get(x, i * ld + j + l, (int)MIN(16, d - j - l), t));
}
static void path_tiles_load(float *dst, int width, int64_t step, const void *x, enum dtype t, int64_t ld, int64_t n, int64_t d)
{
    if (width == PANEL)
        BOTH_TYPES(t, tiles_load_rows, dst, step, x, ld, n, d, PANEL);
    else
        BOTH_TYPES(t, tiles_load_rows, dst, step, x, ld, n, d, GRAD_TILE);
}
static void path_rows_store(void *y, const float *src, enum dtype t, int64_t ld, int64_t n, int64_t d)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < d; j += 16) {
            int w = (int)MIN(16, d - j);
            v_put(y, i * ld + j, w, t, v_get(src, i * d + j, w, DT_F32));
        }
}
static void path_rows_dot(float *dot, const void *x, const void *y, enum dtype t, int64_t ld, int64_t n, int64_t d)
{
    for (int64_t i = 0; i < n; i++) {
        v16 sum = v_set1(0);
        for (int64_t j = 0; j < d; j += 16) {
            int w = (int)MIN(16, d - j);
            sum = v_fma(v_get(x, i * ld + j, w, t), v_get(y, i * ld + j, w, t), sum);
        }
        dot[i] = v_sum(sum);
    }
}

VEC_FN void adamw_rows(const struct adamw *a, int64_t i0, int64_t i1, const enum dtype t)
{
    float fix1 = (float)(1 / (1 - pow(a->beta1, (double)a->step))), fix2 = (float)(1 / (1 - pow(a->beta2, (double)a->step)));
    v16 coef = v_set1(a->coef ? *a->coef : 1), b1 = v_set1(a->beta1), b2 = v_set1(a->beta2);
    v16 c1 = v_set1((float)(1 - (double)a->beta1)), c2 = v_set1((float)(1 - (double)a->beta2));
    v16 keep = v_set1((float)(1 - (double)a->lr * a->decay)), lr = v_set1(-a->lr);
    for (int64_t i = i0; i < i1; i += 16) {
        int n = (int)MIN(16, i1 - i);
        v16 g = v_mul(v_get(a->grad, i, n, DT_F32), coef);
        v16 m = v_fma(b1, v_get(a->m, i, n, DT_F32), v_mul(c1, g)), v = v_fma(b2, v_get(a->v, i, n, DT_F32), v_mul(c2, v_mul(g, g)));
        v16 step = v_div(v_mul(m, v_set1(fix1)), v_add(v_sqrt(v_mul(v, v_set1(fix2))), v_set1(a->eps)));
        v16 x = v_fma(lr, step, v_mul(v_get(a->master, i, n, DT_F32), keep));
        v_put(a->m, i, n, DT_F32, m);
        v_put(a->v, i, n, DT_F32, v);
        v_put(a->master, i, n, DT_F32, x);
        if (a->weight)
            v_put(a->weight, i, n, t, x);
    }
}
static void path_adamw(const struct adamw *a, int64_t i0, int64_t i1)
{
    BOTH_TYPES(a->dtype, adamw_rows, a, i0, i1);
}

static double path_sumsq(const float *x, int64_t n)
{
    v16 sum = v_set1(0);
    for (int64_t i = 0; i < n; i += 16) {
        v16 y = v_get(x, i, (int)MIN(16, n - i), DT_F32);
        sum = v_fma(y, y, sum);
    }
    return v_sum(sum);
}
