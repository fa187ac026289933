/* attend_body.h - attention of some queries over the keys of one sequence and KV head, and its backward
 *
 * Forward, per query: scores by key in ascending order (each one fmaf chain over hd), maximum, exponentials, their sum in
 * lanes, then values added in ascending order of keys, and one division. Keys after a query's own position get probability 0, which
 * adds exactly nothing; so neither the set of rows handled together nor the place of the keys (packed or in pages) changes a bit.
 * Keys before a window add nothing likewise; tiles that no row of a call sees are left out. */

/* Like block_mul, for any number of rows. */
static void rows_mul(int64_t m, int n, bool cols, int64_t n_k, const float *a, int64_t lda, const float *b, int64_t ldb, const float *init,
                     int64_t ldi, float *c, int64_t ldc)
{
    int64_t n_tile = (m + TILE_MR - 1) / TILE_MR;
    for (int64_t t = 0; t < n_tile; t++) {
        int64_t i = m * t / n_tile;
        block_mul((int)(m * (t + 1) / n_tile - i), n, cols, n_k, a + i * (cols ? 1 : lda), lda, b, ldb, init + i * ldi, ldi, c + i * ldc,
                  ldc, false, (const char *)a, 0);
    }
}

/* The first of a query's len keys that it sees. */
static int64_t first_key(struct attn_bounds b, int64_t len)
{
    return b.window && len > b.window ? len - b.window : 0;
}
/* Scaled scores as the softmax takes them, and t with 1 - t^2 their derivative. */
VEC_FN v16 capped(struct attn_bounds b, v16 s, v16 *t)
{
    *t = v_set1(0);
    if (!(b.cap > 0))
        return s;
    v16 cap = v_set1(b.cap);
    *t = v_tanh(v_div(s, cap));
    return v_mul(cap, *t);
}

static void path_attend(const struct attend *a)
{
    static const float zero[256];
    v16 scale = v_set1(1 / sqrtf((float)a->hd));
    int hd = a->hd;
    for (int64_t i0 = 0; i0 < a->n_row; i0 += ATTEND_ROWS) {
        int64_t m = MIN(ATTEND_ROWS, a->n_row - i0), len0 = a->first_len + i0 * a->len_step;
        int64_t max_len = len0 + (m - 1) * a->len_step, n_tile = (max_len + PANEL - 1) / PANEL, wide = n_tile * PANEL;
        int64_t t0 = first_key(a->bounds, len0) / PANEL;
        float *score = a->score, *sum = a->score + m * wide, inv[ATTEND_ROWS];
        const float *q = a->q + i0 * a->q_step;
        for (int64_t t = t0; t < n_tile; t++)
            rows_mul(m, PANEL, false, hd, q, a->q_step, a->kv.k[t], PANEL, zero, 0, score + t * PANEL, wide);
        for (int64_t i = 0; i < m; i++) {
            float *s = score + i * wide;
            int64_t len = len0 + i * a->len_step, first = first_key(a->bounds, len);
            v16 max = v_set1(-INFINITY), total = v_set1(0), slope;
            for (int64_t j = t0 * PANEL; j < len; j += 16) {
                v16 z = capped(a->bounds, v_mul(v_load(s + j), scale), &slope);
                if (len - j < 16)
                    z = v_first(z, v_set1(-INFINITY), (int)(len - j));
                if (j < first)
                    z = v_first(v_set1(-INFINITY), z, (int)MIN(16, first - j));
                v_store(s + j, z);
                max = v_max(max, z);
            }
            float top = v_hmax(max);
            for (int64_t j = t0 * PANEL; j < len; j += 16) {
                v16 p = v_exp(v_sub(v_load(s + j), v_set1(top)));
                v_store(s + j, p);
                total = v_add(total, p);
            }
            for (int64_t j = (len + 15) / 16 * 16; j < wide; j += 16)
                v_store(s + j, v_set1(0));
            float l = v_sum(total);
            inv[i] = 1 / l;
            if (a->lse)
                a->lse[(i0 + i) * a->lse_step] = top + (float)log(l);
        }
        for (int64_t t = t0; t < n_tile; t++)
            rows_mul(m, hd > PANEL ? PANEL : hd, false, MIN(PANEL, max_len - t * PANEL), score + t * PANEL, wide, a->kv.v[t], hd,
                     t > t0 ? sum : zero, t > t0 ? hd : 0, sum, hd);
        for (int h = PANEL; h < hd; h += PANEL)
            for (int64_t t = t0; t < n_tile; t++)
                rows_mul(m, MIN(PANEL, hd - h), false, MIN(PANEL, max_len - t * PANEL), score + t * PANEL, wide, a->kv.v[t] + h, hd,
                         t > t0 ? sum + h : zero, t > t0 ? hd : 0, sum + h, hd);
        for (int64_t i = 0; i < m; i++)
            for (int j = 0; j < hd; j += 16)
                v_put(a->out, (i0 + i) * a->out_step + j, 16, a->out_dtype, v_mul(v_load(sum + i * hd + j), v_set1(inv[i])));
    }
}

/* dv += p^T dout, dk += ds^T q, dq = ds k, with ds = p (dout v^T - dot) scale, times the cap's slope; arXiv 2205.14135, algorithm 4. */
static void path_attend_bwd(const struct attend_bwd *a)
{
    static const float zero[256];
    int hd = a->hd;
    v16 scale = v_set1(1 / sqrtf((float)hd));
    for (int64_t i0 = 0; i0 < a->n; i0 += ATTEND_BWD_ROWS) {
        int64_t m = MIN(ATTEND_BWD_ROWS, a->n - i0), keys = i0 + m, n_tile = (keys + PANEL - 1) / PANEL, wide = n_tile * PANEL;
        int64_t t0 = first_key(a->bounds, i0 + 1) / PANEL, k0 = t0 * PANEL;
        const float *q = a->q + i0 * a->q_step, *dout = a->dout + i0 * a->dout_step;
        for (int64_t t = t0; t < n_tile; t++) {
            rows_mul(m, PANEL, false, hd, q, a->q_step, a->kt + t * PANEL * hd, PANEL, zero, 0, a->prob + t * PANEL, wide);
            rows_mul(m, PANEL, false, hd, dout, a->dout_step, a->vt + t * PANEL * hd, PANEL, zero, 0, a->ds + t * PANEL, wide);
        }
        for (int64_t i = 0; i < m; i++) {
            float *p = a->prob + i * wide, *ds = a->ds + i * wide;
            int64_t len = i0 + i + 1, first = first_key(a->bounds, len);
            v16 lse = v_set1(a->lse[(i0 + i) * a->lse_step]), dot = v_set1(a->dot[i0 + i]), one = v_set1(1), slope;
            for (int64_t j = k0; j < wide; j += 16) {
                if (j >= len || j + 16 <= first) {
                    v_store(p + j, v_set1(0));
                    v_store(ds + j, v_set1(0));
                    continue;
                }
                v16 x = v_exp(v_sub(capped(a->bounds, v_mul(v_load(p + j), scale), &slope), lse));
                if (len - j < 16)
                    x = v_first(x, v_set1(0), (int)(len - j));
                if (j < first)
                    x = v_first(v_set1(0), x, (int)(first - j));
                v_store(p + j, x);
                x = v_mul(v_mul(x, v_sub(v_load(ds + j), dot)), scale);
                v_store(ds + j, a->bounds.cap > 0 ? v_mul(x, v_sub(one, v_mul(slope, slope))) : x);
            }
        }
        for (int h = 0; h < hd; h += PANEL) {
            int w = MIN(PANEL, hd - h);
            float *dv = a->dv + k0 * hd + h, *dk = a->dk + k0 * hd + h;
            rows_mul(m, w, false, keys - k0, a->ds + k0, wide, a->k + k0 * hd + h, hd, zero, 0, a->dq + i0 * a->q_step + h, a->q_step);
            rows_mul(keys - k0, w, true, m, a->prob + k0, wide, dout + h, a->dout_step, dv, hd, dv, hd);
            rows_mul(keys - k0, w, true, m, a->ds + k0, wide, q + h, a->q_step, dk, hd, dk, hd);
        }
    }
}
