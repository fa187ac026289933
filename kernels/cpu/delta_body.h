/* delta_body.h - the gated delta net: convolution, recurrence, gated norm and gates
 *
 * A state's columns are lanes. So the sums over its rows need no order among lanes, and go row by row from 0. */
#define DELTA_BLOCKS_MAX (DELTA_WIDTH_MAX / 16)

/* Up to 16 neighbouring channels: the first one, its column of the input projection, and how many. */
struct channels {
    int64_t at, col;
    int n;
};
static inline struct channels channels_of(struct delta_heads h, int64_t b)
{
    int64_t per_k = (h.d_k + 15) / 16, per_v = (h.d_v + 15) / 16, of_q = h.n_k * per_k;
    enum delta_part part = b < of_q ? DELTA_Q : b < 2 * of_q ? DELTA_K : DELTA_V;
    int64_t in = b - part * of_q, per = part == DELTA_V ? per_v : per_k, d = part == DELTA_V ? h.d_v : h.d_k;
    int64_t head = in / per, j = in % per * 16;
    return (struct channels){ part * (int64_t)h.n_k * h.d_k + head * d + j, delta_at(h, part, head) + j, (int)MIN(16, d - j) };
}
/* w[:, j] of those channels. */
VEC_FN v16 conv_tap(const void *w, struct channels c, int j, const enum dtype t)
{
    float tap[16] = { 0 };
    for (int i = 0; i < c.n; i++)
        tap[i] = t == DT_BF16 ? bf16_to_f32(((const uint16_t *)w)[(c.at + i) * 4 + j]) : ((const float *)w)[(c.at + i) * 4 + j];
    return v_load(tap);
}
VEC_FN v16 conv_sum(const v16 in[4], const v16 w[4])
{
    v16 sum = v_mul(w[0], in[0]);
    for (int j = 1; j < 4; j++)
        sum = v_fma(w[j], in[j], sum);
    return sum;
}
VEC_FN void conv4_fwd_blocks(const struct conv4_fwd *a, int64_t i0, int64_t i1, int64_t n_block, const enum dtype t)
{
    struct delta_heads h = a->heads;
    int64_t n_c = delta_channels(h), ld = delta_columns(h);
    for (int64_t i = i0; i < i1; i++) {
        struct delta_span p = delta_span_of(&a->of, h, i / n_block);
        struct channels c = channels_of(h, i % n_block);
        float *tail = p.state ? p.state + (int64_t)h.n_v * h.d_k * h.d_v + c.at : NULL;
        v16 w[4], in[4];
        for (int j = 0; j < 4; j++)
            w[j] = conv_tap(a->w, c, j, t);
        for (int j = 0; j < 3; j++)
            in[j + 1] = p.fresh ? v_set1(0) : v_loadn(tail + j * n_c, c.n);
        for (int64_t row = p.first; row < p.end; row++) {
            for (int j = 0; j < 3; j++)
                in[j] = in[j + 1];
            in[3] = v_get(a->x, row * ld + c.col, c.n, t);
            v16 x = conv_sum(in, w);
            v_put(a->y, row * n_c + c.at, c.n, t, p.absent ? v_set1(0) : v_mul(x, v_sigmoid(x)));
        }
        for (int j = 0; j < 3 && tail; j++)
            v_storen(tail + j * n_c, in[j + 1], c.n);
    }
}
static void path_conv4_fwd(const struct conv4_fwd *a, int64_t i0, int64_t i1, int64_t n_block)
{
    BOTH_TYPES(a->dtype, conv4_fwd_blocks, a, i0, i1, n_block);
}

/* The gradient by c_t reaches x 3 tokens back, so x_t's is written when that of c_(t + 3) is known. */
VEC_FN void conv4_bwd_blocks(const struct conv4_bwd *a, int64_t i0, int64_t i1, const enum dtype t)
{
    struct delta_heads h = a->heads;
    int64_t n_c = delta_channels(h), ld = delta_columns(h);
    v16 zero = v_set1(0), one = v_set1(1);
    for (int64_t b = i0; b < i1; b++) {
        struct channels c = channels_of(h, b);
        v16 w[4], dw[4];
        for (int j = 0; j < 4; j++) {
            w[j] = conv_tap(a->w, c, j, t);
            dw[j] = zero;
        }
        for (int64_t s = 0; s < a->of.n_seq; s++) {
            struct delta_span p = delta_span_of(&a->of, h, s);
            v16 in[4] = { zero, zero, zero, zero }, dc[4] = { zero, zero, zero, zero };    // dc: of tokens row - 3 .. row
            for (int64_t row = p.first; row < p.end + 3; row++) {
                for (int j = 0; j < 3; j++) {
                    in[j] = in[j + 1];
                    dc[j] = dc[j + 1];
                }
                dc[3] = zero;
                if (row < p.end) {
                    in[3] = v_get(a->x, row * ld + c.col, c.n, t);
                    v16 x = conv_sum(in, w), sig = v_sigmoid(x);
                    dc[3] = v_mul(v_get(a->dy, row * n_c + c.at, c.n, t), v_mul(sig, v_fma(x, v_sub(one, sig), one)));
                    for (int j = 0; j < 4; j++)
                        dw[j] = v_fma(dc[3], in[j], dw[j]);
                }
                if (row - 3 >= p.first) {
                    v16 dx = v_mul(dc[0], w[3]);
                    for (int j = 1; j < 4; j++)
                        dx = v_fma(dc[j], w[3 - j], dx);
                    v_put(a->dx, (row - 3) * ld + c.col, c.n, t, dx);
                }
            }
        }
        for (int j = 0; j < 4 && a->dw; j++) {
            float sum[16];
            v_store(sum, dw[j]);
            for (int i = 0; i < c.n; i++)
                a->dw[(c.at + i) * 4 + j] += sum[i];
        }
    }
}
static void path_conv4_bwd(const struct conv4_bwd *a, int64_t i0, int64_t i1)
{
    BOTH_TYPES(a->dtype, conv4_bwd_blocks, a, i0, i1);
}

/* What a token gives a value head. */
struct delta_token {
    float q[DELTA_WIDTH_MAX], k[DELTA_WIDTH_MAX];    // of length 1; q divided by the root of d_k
    float q_by, k_by;                                // 1 / the roots
    float beta, a, g, decay;                         // decay: e^g
};
VEC_FN float delta_number(const void *p, int64_t i, const enum dtype t)
{
    return t == DT_BF16 ? bf16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}
/* out = x / sqrt(sum x^2 + 1e-6) times scale; returns 1 / that root. */
VEC_FN float delta_unit(float *out, const void *x, int64_t at, int d, float scale, const enum dtype t)
{
    v16 square = v_set1(0);
    for (int j = 0; j < d; j += 16) {
        v16 v = v_get(x, at + j, MIN(16, d - j), t);
        square = v_fma(v, v, square);
    }
    float by = 1 / sqrtf(v_sum(square) + 1e-6f);
    for (int j = 0; j < d; j += 16)
        v_storen(out + j, v_mul(v_get(x, at + j, MIN(16, d - j), t), v_set1(by * scale)), MIN(16, d - j));
    return by;
}
VEC_FN void delta_token_get(struct delta_token *o, const void *x, const void *row, const void *a_log, const void *dt_bias,
                            struct delta_heads h, int64_t i, int64_t head, const enum dtype t)
{
    int64_t n_c = delta_channels(h), ld = delta_columns(h), key = head / (h.n_v / h.n_k);
    o->q_by = delta_unit(o->q, x, i * n_c + key * h.d_k, h.d_k, 1 / sqrtf((float)h.d_k), t);
    o->k_by = delta_unit(o->k, x, i * n_c + (h.n_k + key) * h.d_k, h.d_k, 1, t);
    o->beta = 1 / (1 + expf(-delta_number(row, i * ld + delta_at(h, DELTA_B, head), t)));
    o->a = delta_number(row, i * ld + delta_at(h, DELTA_A, head), t) + delta_number(dt_bias, head, t);
    o->g = -expf(delta_number(a_log, head, t)) * (o->a > 20 ? o->a : log1pf(expf(o->a)));
    o->decay = expf(o->g);
}
/* 16 columns from j on of one token's step: s (d_k, d_v) becomes e^g s, which is copied to decayed unless NULL, and then, with the token's
 * own part, the state after it. Returns S'q; u (d_v) gets what the token has added. */
VEC_FN v16 delta_columns_step(float *s, float *decayed, float *u, const struct delta_token *t, v16 v, struct delta_heads h, int64_t j,
                              int n)
{
    v16 kept = v_set1(0), out = kept, decay = v_set1(t->decay);
    for (int64_t c = 0; c < h.d_k; c++) {
        v16 x = v_mul(decay, v_get(s, c * h.d_v + j, n, DT_F32));
        v_put(s, c * h.d_v + j, n, DT_F32, x);
        if (decayed)
            v_put(decayed, c * h.d_v + j, n, DT_F32, x);
        kept = v_fma(x, v_set1(t->k[c]), kept);
    }
    v16 add = v_mul(v_set1(t->beta), v_sub(v, kept));
    if (u)
        v_put(u, j, n, DT_F32, add);
    for (int64_t c = 0; c < h.d_k; c++) {
        v16 x = v_fma(v_set1(t->k[c]), add, v_get(s, c * h.d_v + j, n, DT_F32));
        v_put(s, c * h.d_v + j, n, DT_F32, x);
        out = v_fma(x, v_set1(t->q[c]), out);
    }
    return out;
}
VEC_FN void delta_fwd_heads(const struct delta_rule_fwd *a, int64_t i0, int64_t i1, float *scratch, const enum dtype t)
{
    struct delta_heads h = a->heads;
    int64_t n_s = (int64_t)h.d_k * h.d_v, n_c = delta_channels(h);
    struct delta_token token;
    for (int64_t i = i0; i < i1; i++) {
        struct delta_span p = delta_span_of(&a->of, h, i / h.n_v);
        int64_t head = i % h.n_v;
        float *s = p.state ? p.state + head * n_s : scratch;
        if (p.fresh)
            memset(s, 0, (size_t)n_s * sizeof *s);
        for (int64_t row = p.first; row < p.end; row++) {
            if (!p.absent)
                delta_token_get(&token, a->x, a->row, a->a_log, a->dt_bias, h, row, head, t);
            for (int64_t j = 0; j < h.d_v; j += 16) {
                int n = (int)MIN(16, h.d_v - j);
                v16 v = v_get(a->x, row * n_c + (int64_t)2 * h.n_k * h.d_k + head * h.d_v + j, n, t);
                v16 o = p.absent ? v_set1(0) : delta_columns_step(s, NULL, NULL, &token, v, h, j, n);
                v_put(a->o, (row * h.n_v + head) * h.d_v + j, n, t, o);
            }
        }
    }
}
static void path_delta_rule_fwd(const struct delta_rule_fwd *a, int64_t i0, int64_t i1, float *scratch)
{
    BOTH_TYPES(a->dtype, delta_fwd_heads, a, i0, i1, scratch);
}

/* A thread's memory, scratch of delta_rule_bwd (path.h). */
struct delta_room {
    float *state, *dstate;    // (d_k, d_v)
    float *kept;              // (tokens / DELTA_KEEP, rounded up)(d_k, d_v) states before every DELTA_KEEP-th token
    float *decayed, *u;       // (DELTA_KEEP)(d_k, d_v), (DELTA_KEEP)(d_v) of the tokens between
    float *dqk;               // (tokens)(2, d_k) gradients by q and k
};
/* One token backward, all columns: formulas in ref/delta_rule.c. dk and dq are added to; returns the gradient by g. */
VEC_FN float delta_token_bwd(const struct delta_room *m, const float *s, const float *u, const struct delta_token *t, const v16 *v,
                             const v16 *dout, v16 *dv, float *dq, float *dk, float *dbeta, struct delta_heads h)
{
    int n_block = (h.d_v + 15) / 16;
    v16 by_beta = v_set1(0), by_g = v_set1(0);
    for (int b = 0; b < n_block; b++) {
        int n = MIN(16, h.d_v - b * 16);
        v16 du = v_set1(0), kept = v_set1(0);
        for (int64_t c = 0; c < h.d_k; c++) {
            v16 ds = v_fma(v_set1(t->q[c]), dout[b], v_get(m->dstate, c * h.d_v + b * 16, n, DT_F32));
            v_put(m->dstate, c * h.d_v + b * 16, n, DT_F32, ds);
            du = v_fma(ds, v_set1(t->k[c]), du);
            kept = v_fma(v_get(s, c * h.d_v + b * 16, n, DT_F32), v_set1(t->k[c]), kept);
        }
        by_beta = v_fma(du, v_sub(v[b], kept), by_beta);
        dv[b] = v_mul(v_set1(t->beta), du);
    }
    for (int64_t c = 0; c < h.d_k; c++) {
        v16 by_q = v_set1(0), by_k = v_set1(0);
        for (int b = 0; b < n_block; b++) {
            int n = MIN(16, h.d_v - b * 16);
            v16 x = v_get(s, c * h.d_v + b * 16, n, DT_F32), ds = v_get(m->dstate, c * h.d_v + b * 16, n, DT_F32);
            v16 add = v_get(u, b * 16, n, DT_F32);
            by_q = v_fma(v_fma(v_set1(t->k[c]), add, x), dout[b], by_q);
            by_k = v_sub(v_fma(ds, add, by_k), v_mul(x, dv[b]));
            ds = v_sub(ds, v_mul(v_set1(t->k[c]), dv[b]));
            by_g = v_fma(ds, x, by_g);
            v_put(m->dstate, c * h.d_v + b * 16, n, DT_F32, v_mul(v_set1(t->decay), ds));
        }
        dq[c] = v_sum(by_q);
        dk[c] = v_sum(by_k);
    }
    *dbeta = v_sum(by_beta);
    return v_sum(by_g);
}
/* sum (d) += the gradient by x, of that by its unit times scale. */
VEC_FN void delta_unit_bwd(float *sum, const float *unit, const float *dunit, int d, float by, float scale)
{
    v16 dot = v_set1(0), inverse = v_set1(1 / scale);
    for (int j = 0; j < d; j += 16)
        dot = v_fma(v_mul(v_loadn(unit + j, MIN(16, d - j)), inverse), v_loadn(dunit + j, MIN(16, d - j)), dot);
    v16 all = v_set1(-v_sum(dot)), times = v_set1(by * scale);
    for (int j = 0; j < d; j += 16) {
        int n = MIN(16, d - j);
        v16 dx = v_fma(v_mul(v_loadn(unit + j, n), inverse), all, v_loadn(dunit + j, n));
        v_storen(sum + j, v_fma(times, dx, v_loadn(sum + j, n)), n);
    }
}
/* Rows `first` .. first + n - 1 forward from m->state: with keep_all each decayed state is kept and what its token adds, else the state
 * before every DELTA_KEEP-th. */
VEC_FN void delta_again(const struct delta_rule_bwd *a, const struct delta_room *m, int64_t head, int64_t first, int64_t n, bool keep_all,
                        const enum dtype t)
{
    struct delta_heads h = a->heads;
    struct delta_token token;
    int64_t n_s = (int64_t)h.d_k * h.d_v, n_c = delta_channels(h);
    for (int64_t i = 0; i < n; i++) {
        if (!keep_all && i % DELTA_KEEP == 0)
            memcpy(m->kept + i / DELTA_KEEP * n_s, m->state, (size_t)n_s * sizeof(float));
        delta_token_get(&token, a->x, a->row, a->a_log, a->dt_bias, h, first + i, head, t);
        for (int64_t j = 0; j < h.d_v; j += 16) {
            int w = (int)MIN(16, h.d_v - j);
            v16 v = v_get(a->x, (first + i) * n_c + (int64_t)2 * h.n_k * h.d_k + head * h.d_v + j, w, t);
            delta_columns_step(m->state, keep_all ? m->decayed + i * n_s : NULL, keep_all ? m->u + i * h.d_v : NULL, &token, v, h, j, w);
        }
    }
}
/* Sequence p of a value head, from its last token to its first; sums: gradients by A_log and dt_bias. */
VEC_FN void delta_head_bwd(const struct delta_rule_bwd *a, const struct delta_room *m, struct delta_span p, int64_t head, float sums[2],
                           const enum dtype t)
{
    struct delta_heads h = a->heads;
    struct delta_token token;
    int64_t n_s = (int64_t)h.d_k * h.d_v, n_c = delta_channels(h), ld = delta_columns(h), n_tok = p.end - p.first;
    int n_block = (h.d_v + 15) / 16;
    float dq[DELTA_WIDTH_MAX], dk[DELTA_WIDTH_MAX], dbeta, exp_a_log = expf(delta_number(a->a_log, head, t));
    memset(m->state, 0, (size_t)n_s * sizeof(float));
    memset(m->dstate, 0, (size_t)n_s * sizeof(float));
    delta_again(a, m, head, p.first, n_tok, false, t);
    for (int64_t from = (n_tok - 1) / DELTA_KEEP * DELTA_KEEP; from >= 0; from -= DELTA_KEEP) {
        int64_t n = MIN(n_tok - from, (int64_t)DELTA_KEEP);
        memcpy(m->state, m->kept + from / DELTA_KEEP * n_s, (size_t)n_s * sizeof(float));
        delta_again(a, m, head, p.first + from, n, true, t);
        for (int64_t i = n - 1; i >= 0; i--) {
            int64_t row = p.first + from + i, v_at = row * n_c + (int64_t)2 * h.n_k * h.d_k + head * h.d_v;
            v16 v[DELTA_BLOCKS_MAX], dout[DELTA_BLOCKS_MAX], dv[DELTA_BLOCKS_MAX];
            for (int b = 0; b < n_block; b++) {
                v[b] = v_get(a->x, v_at + b * 16, MIN(16, h.d_v - b * 16), t);
                dout[b] = v_get(a->dout, (row * h.n_v + head) * h.d_v + b * 16, MIN(16, h.d_v - b * 16), t);
            }
            delta_token_get(&token, a->x, a->row, a->a_log, a->dt_bias, h, row, head, t);
            float dg = delta_token_bwd(m, m->decayed + i * n_s, m->u + i * h.d_v, &token, v, dout, dv, dq, dk, &dbeta, h);
            float da = dg * -exp_a_log / (1 + expf(-token.a)), *dqk = m->dqk + (from + i) * 2 * h.d_k;
            for (int b = 0; b < n_block; b++)
                v_put(a->dx, v_at + b * 16, MIN(16, h.d_v - b * 16), t, dv[b]);
            delta_unit_bwd(dqk, token.q, dq, h.d_k, token.q_by, 1 / sqrtf((float)h.d_k));
            delta_unit_bwd(dqk + h.d_k, token.k, dk, h.d_k, token.k_by, 1);
            v_put(a->drow, row * ld + delta_at(h, DELTA_B, head), 1, t, v_set1(dbeta * token.beta * (1 - token.beta)));
            v_put(a->drow, row * ld + delta_at(h, DELTA_A, head), 1, t, v_set1(da));
            sums[0] += dg * token.g;
            sums[1] += da;
        }
    }
}
/* All value heads of a key head: their shares of the gradients by q and k are added in their order. */
VEC_FN void delta_key_bwd(const struct delta_rule_bwd *a, int64_t key, float *scratch, const enum dtype t)
{
    struct delta_heads h = a->heads;
    int64_t r = h.n_v / h.n_k, n_s = (int64_t)h.d_k * h.d_v, n_c = delta_channels(h);
    struct delta_room m = { .state = scratch, .dstate = scratch + n_s, .decayed = scratch + 2 * n_s };
    m.u = m.decayed + DELTA_KEEP * n_s;
    m.kept = m.u + DELTA_KEEP * h.d_v;
    float sums[DELTA_WIDTH_MAX][2] = { 0 };
    for (int64_t s = 0; s < a->of.n_seq; s++) {
        struct delta_span p = delta_span_of(&a->of, h, s);
        int64_t n = p.end - p.first;
        m.dqk = m.kept + (n + DELTA_KEEP - 1) / DELTA_KEEP * n_s;
        memset(m.dqk, 0, (size_t)(n * 2 * h.d_k) * sizeof(float));
        for (int64_t i = 0; i < r; i++)
            delta_head_bwd(a, &m, p, key * r + i, sums[i], t);
        for (int64_t i = 0; i < n; i++)
            for (int k = 0; k < 2; k++)
                for (int64_t j = 0; j < h.d_k; j += 16)
                    v_put(a->dx, (p.first + i) * n_c + (k * h.n_k + key) * h.d_k + j, (int)MIN(16, h.d_k - j), t,
                          v_loadn(m.dqk + (i * 2 + k) * h.d_k + j, (int)MIN(16, h.d_k - j)));
    }
    for (int64_t i = 0; i < r; i++) {
        if (a->da_log)
            a->da_log[key * r + i] += sums[i][0];
        if (a->ddt_bias)
            a->ddt_bias[key * r + i] += sums[i][1];
    }
}
static void path_delta_rule_bwd(const struct delta_rule_bwd *a, int64_t key, float *scratch)
{
    BOTH_TYPES(a->dtype, delta_key_bwd, a, key, scratch);
}

VEC_FN void gated_norm_fwd_rows(const struct gated_norm_fwd *a, int64_t i0, int64_t i1, const enum dtype t)
{
    struct delta_heads h = a->heads;
    for (int64_t i = i0; i < i1; i++)
        for (int64_t head = 0; head < h.n_v; head++) {
            int64_t at = (i * h.n_v + head) * h.d_v, z_at = i * delta_columns(h) + delta_at(h, DELTA_Z, head);
            v16 square = v_set1(0);
            for (int64_t j = 0; j < h.d_v; j += 16) {
                v16 o = v_get(a->o, at + j, (int)MIN(16, h.d_v - j), t);
                square = v_fma(o, o, square);
            }
            float rstd = 1 / sqrtf(v_sum(square) / (float)h.d_v + a->eps);
            for (int64_t j = 0; j < h.d_v; j += 16) {
                int n = (int)MIN(16, h.d_v - j);
                v16 x = v_round(v_mul(v_get(a->o, at + j, n, t), v_set1(rstd)), t), z = v_get(a->row, z_at + j, n, t);
                v_put(a->y, at + j, n, t, v_mul(v_mul(v_get(a->w, j, n, t), x), v_mul(z, v_sigmoid(z))));
            }
        }
}
static void path_gated_norm_fwd(const struct gated_norm_fwd *a, int64_t i0, int64_t i1)
{
    BOTH_TYPES(a->dtype, gated_norm_fwd_rows, a, i0, i1);
}
VEC_FN void gated_norm_bwd_rows(const struct gated_norm_bwd *a, int64_t i0, int64_t i1, float *dw, const enum dtype t)
{
    struct delta_heads h = a->heads;
    v16 one = v_set1(1);
    memset(dw, 0, (size_t)h.d_v * sizeof *dw);
    for (int64_t i = i0; i < i1; i++)
        for (int64_t head = 0; head < h.n_v; head++) {
            int64_t at = (i * h.n_v + head) * h.d_v, z_at = i * delta_columns(h) + delta_at(h, DELTA_Z, head);
            v16 square = v_set1(0), dot = square, dx[DELTA_BLOCKS_MAX];
            for (int64_t j = 0; j < h.d_v; j += 16) {
                v16 o = v_get(a->o, at + j, (int)MIN(16, h.d_v - j), t);
                square = v_fma(o, o, square);
            }
            v16 rstd = v_set1(1 / sqrtf(v_sum(square) / (float)h.d_v + a->eps));
            for (int64_t j = 0; j < h.d_v; j += 16) {
                int n = (int)MIN(16, h.d_v - j);
                v16 x = v_mul(v_get(a->o, at + j, n, t), rstd), z = v_get(a->row, z_at + j, n, t), w = v_get(a->w, j, n, t);
                v16 dy = v_get(a->dy, at + j, n, t), sig = v_sigmoid(z), by_gate = v_mul(dy, v_mul(z, sig));
                v_put(a->drow, z_at + j, n, t, v_mul(v_mul(dy, v_mul(w, x)), v_mul(sig, v_fma(z, v_sub(one, sig), one))));
                v_put(dw, j, n, DT_F32, v_fma(by_gate, x, v_get(dw, j, n, DT_F32)));
                dx[j / 16] = v_mul(by_gate, w);
                dot = v_fma(dx[j / 16], x, dot);
            }
            v16 mean = v_set1(-v_sum(dot) / (float)h.d_v);
            for (int64_t j = 0; j < h.d_v; j += 16) {
                int n = (int)MIN(16, h.d_v - j);
                v_put(a->dout, at + j, n, t, v_mul(rstd, v_fma(v_mul(v_get(a->o, at + j, n, t), rstd), mean, dx[j / 16])));
            }
        }
}
static void path_gated_norm_bwd(const struct gated_norm_bwd *a, int64_t i0, int64_t i1, float *dw)
{
    BOTH_TYPES(a->dtype, gated_norm_bwd_rows, a, i0, i1, dw);
}

VEC_FN void gate_fwd_elems(const struct gate_fwd *a, int64_t i0, int64_t i1, const enum dtype t)
{
    for (int64_t i = i0; i < i1; i += 16) {
        int n = (int)MIN(16, i1 - i);
        v_put(a->y, i, n, t, v_mul(v_get(a->x, i, n, t), v_sigmoid(v_get(a->gate, i, n, t))));
    }
}
static void path_gate_fwd(const struct gate_fwd *a, int64_t i0, int64_t i1)
{
    BOTH_TYPES(a->dtype, gate_fwd_elems, a, i0, i1);
}
VEC_FN void gate_bwd_elems(const struct gate_bwd *a, int64_t i0, int64_t i1, const enum dtype t)
{
    v16 one = v_set1(1);
    for (int64_t i = i0; i < i1; i += 16) {
        int n = (int)MIN(16, i1 - i);
        v16 dy = v_get(a->dy, i, n, t), x = v_get(a->x, i, n, t), sig = v_sigmoid(v_get(a->gate, i, n, t));
        v_put(a->dgate, i, n, t, v_mul(v_mul(dy, x), v_mul(sig, v_sub(one, sig))));
        v_put(a->dx, i, n, t, v_mul(dy, sig));
    }
}
static void path_gate_bwd(const struct gate_bwd *a, int64_t i0, int64_t i1)
{
    BOTH_TYPES(a->dtype, gate_bwd_elems, a, i0, i1);
}
