/* head_body.h - statistics of rows of logits, their gradient, and the draw of a token
 *
 * A row is summed in blocks of HEAD_BLOCK ids: 16 lanes within a block, blocks in order in double. logprob_fwd and
 * sample_fwd share row_stat, so a sampled token's log-prob has the same bits as the trainer's. */
#include "kernels/philox.h"
#define HEAD_BLOCK 256

struct row_stats {
    float top;          // largest z = logit inv_t
    double sum;         // of e^(z - top)
    double weighted;    // of e^(z - top) (z - top), when wanted
};
static float row_top(const float *z, int64_t n)
{
    v16 max = v_set1(-INFINITY);
    for (int64_t j = 0; j < n; j += 16) {
        v16 x = n - j < 16 ? v_first(v_loadn(z + j, (int)(n - j)), v_set1(-INFINITY), (int)(n - j)) : v_load(z + j);
        max = v_max(x, max);
    }
    return v_hmax(max);
}
static struct row_stats row_stat(const float *logits, int64_t n, float inv_t, bool want_weighted)
{
    struct row_stats r = { .top = row_top(logits, n) * inv_t };
    v16 scale = v_set1(inv_t), top = v_set1(r.top), least = v_set1(-87.0f);
    for (int64_t b = 0; b < n; b += HEAD_BLOCK) {
        v16 sum = v_set1(0), weighted = v_set1(0);
        int64_t end = MIN(n, b + HEAD_BLOCK);
        for (int64_t j = b; j < end; j += 16) {
            v16 x = v_sub(v_mul(v_get(logits, j, (int)MIN(16, end - j), DT_F32), scale), top), e = v_exp(x);
            if (end - j < 16)
                e = v_first(e, v_set1(0), (int)(end - j));
            sum = v_add(sum, e);
            if (want_weighted)
                weighted = v_fma(e, v_max(least, x), weighted);    // avoids 0 times -inf
        }
        r.sum += v_sum(sum);
        r.weighted += want_weighted ? v_sum(weighted) : 0;
    }
    return r;
}
static float stat_lse(const struct row_stats *r)
{
    return r->top + (float)log(r->sum);
}
static float stat_entropy(const struct row_stats *r)
{
    return (float)(log(r->sum) - r->weighted / r->sum);
}
static float stat_logp(const struct row_stats *r, const float *logits, int64_t id, int64_t n_live, float inv_t)
{
    return id < 0 || id >= n_live ? -INFINITY : logits[id] * inv_t - stat_lse(r);
}
static int32_t row_argmax(const float *logits, int64_t n)
{
    float top = row_top(logits, n);
    for (int64_t j = 0; j < n; j++)
        if (logits[j] == top)
            return (int32_t)j;
    return 0;    // all NaN
}

static void path_logprob_fwd(const struct logprob_fwd *a, int64_t i0, int64_t i1)
{
    int64_t n_live = a->n_live ? a->n_live : a->vocab, ld = a->ld ? a->ld : a->vocab;
    float inv_t = 1 / a->temperature;
    for (int64_t i = i0; i < i1; i++) {
        const float *logits = a->logits + i * ld;
        struct row_stats r = row_stat(logits, n_live, inv_t, a->entropy != NULL);
        if (a->logp)
            a->logp[i] = stat_logp(&r, logits, a->id[i], n_live, inv_t);
        if (a->entropy)
            a->entropy[i] = stat_entropy(&r);
        if (a->lse)
            a->lse[i] = stat_lse(&r);
        if (a->argmax)
            a->argmax[i] = row_argmax(logits, n_live);
    }
}

static void path_logprob_bwd(const struct logprob_bwd *a, int64_t i0, int64_t i1)
{
    int64_t n_live = a->n_live ? a->n_live : a->vocab, ld = a->ld ? a->ld : a->vocab, ldd = a->ldd ? a->ldd : a->vocab;
    float inv_t = 1 / a->temperature;
    for (int64_t i = i0; i < i1; i++) {
        float coef = a->coef[i] * inv_t;
        v16 scale = v_set1(inv_t), lse = v_set1(a->lse[i]), minus = v_set1(-coef);
        int32_t id = a->id[i];
        v16 one = v_set1(1), cap = v_set1(a->cap > 0 ? a->cap : 1);
        float own = 0, z = id >= 0 && id < a->vocab && a->cap > 0 ? a->logits[i * ld + id] / a->cap : 0;    // before it is overwritten
        for (int64_t j = 0; j < a->vocab; j += 16) {
            int n = (int)MIN(16, a->vocab - j);
            v16 x = v_get(a->logits, i * ld + j, n, DT_F32), p = v_exp(v_sub(v_mul(x, scale), lse));
            if (j + n > n_live)
                p = v_first(p, v_set1(0), (int)MAX(0, n_live - j));
            if (id >= j && id < j + n) {
                float lane[16];
                v_store(lane, p);
                own = lane[id - j];
            }
            v16 d = v_mul(p, minus), t = v_div(x, cap);
            if (a->cap > 0)
                d = v_mul(d, v_sub(one, v_mul(t, t)));
            v_put(a->dlogits, i * ldd + j, n, a->dtype, d);
        }
        if (id >= 0 && id < a->vocab) {
            float d = coef * (1 - own) * (1 - z * z);    // not coef - coef p: keeps its digits when p is near 1
            if (a->dtype == DT_BF16)
                ((uint16_t *)a->dlogits)[i * ldd + id] = bf16_from_f32(d);
            else
                ((float *)a->dlogits)[i * ldd + id] = d;
        }
    }
}

/* Floats as integers in the same order, and back. */
static uint32_t order_key(float x)
{
    union {
        float f;
        uint32_t u;
    } v = { x };
    return v.u >> 31 ? ~v.u : v.u | 0x80000000u;
}
static float order_float(uint32_t key)
{
    union {
        uint32_t u;
        float f;
    } v = { key >> 31 ? key & 0x7fffffffu : ~key };
    return v.f;
}

/* Sum of weight[j] where logits[j] >= least (or the count, weight NULL), blocks in order. */
static double mass_from(const float *logits, const float *weight, int64_t n, float least)
{
    double total = 0;
    v16 t = v_set1(least);
    for (int64_t b = 0; b < n; b += HEAD_BLOCK) {
        v16 sum = v_set1(0);
        int64_t end = MIN(n, b + HEAD_BLOCK), count = 0;
        for (int64_t j = b; j < end; j += 16) {
            int w = (int)MIN(16, end - j);
            v16 x = w < 16 ? v_first(v_loadn(logits + j, w), v_set1(-INFINITY), w) : v_load(logits + j);
            if (weight)
                sum = v_add(sum, v_keep_nlt(x, t, v_get(weight, j, w, DT_F32)));
            else
                count += v_count_ge(x, t);
        }
        total += weight ? v_sum(sum) : (double)count;
    }
    return total;
}
/* The largest threshold whose mass reaches `want`: bisection over the floats from low to high. */
static float mass_threshold(const float *logits, const float *weight, int64_t n, float low, float high, double want)
{
    uint32_t a = order_key(low), b = order_key(high);    // mass_from(a) reaches want
    while (a < b) {
        uint32_t mid = a + (b - a + 1) / 2;
        if (mass_from(logits, weight, n, order_float(mid)) >= want)
            a = mid;
        else
            b = mid - 1;
    }
    return order_float(a);
}

/* Draw from a row of logits at a temperature above 0. sum: of e^(z - top), when it is known, else 0; e: scratch of (n + 16). */
static int32_t row_draw(const struct sample_row *row, const float *logits, int64_t n, float highest, double sum, float *e)
{
    float inv_t = 1 / row->temperature, least = -INFINITY;
    int32_t id = row_argmax(logits, n);
    v16 scale = v_set1(inv_t), top = v_set1(highest * inv_t);
    for (int64_t j = 0; j < n; j += 16)    // the last lanes may be anything: they are not read
        v_store(e + j, v_exp(v_sub(v_mul(v_get(logits, j, (int)MIN(16, n - j), DT_F32), scale), top)));
    if (row->top_k > 0 && row->top_k < n)
        least = mass_threshold(logits, NULL, n, -INFINITY, highest, row->top_k);
    if (row->top_p < 1)
        least = mass_threshold(logits, e, n, least, highest, (double)row->top_p * mass_from(logits, e, n, least));
    if (row->min_p > 0)    // p >= min_p p_top, in logits
        least = MAX(least, MIN(highest, highest + (float)log(row->min_p) / inv_t));
    double total = least > -INFINITY || sum == 0 ? mass_from(logits, e, n, least) : sum, cum = 0;
    double target = philox_uniform(row->seed, row->item, row->sample, row->pos) * total;
    for (int64_t b = 0; b < n; b += HEAD_BLOCK) {
        int64_t end = MIN(n, b + HEAD_BLOCK);
        double block = mass_from(logits + b, e + b, end - b, least);
        if (cum + block <= target && end < n) {
            cum += block;
            continue;
        }
        for (int64_t j = b; j < end && cum <= target; j++)
            if (!(logits[j] < least) && e[j] > 0) {
                cum += e[j];
                id = (int32_t)j;
            }
        if (cum > target)
            break;
    }
    return id;
}

/* The logits without the banned ids, in `out`. */
static const float *row_without(float *out, const float *logits, int64_t n, const int32_t *ban, int32_t n_ban)
{
    memcpy(out, logits, (size_t)n * sizeof *out);
    for (int32_t k = 0; k < n_ban; k++)
        if (ban[k] >= 0 && ban[k] < n)
            out[ban[k]] = -INFINITY;
    return out;
}

/* scratch: room for two rows of (vocab + 16). */
static void path_sample_fwd(const struct sample_fwd *a, int64_t i0, int64_t i1, float *scratch)
{
    int64_t n = a->n_live ? a->n_live : a->vocab, ld = a->ld ? a->ld : a->vocab;
    for (int64_t i = i0; i < i1; i++) {
        const struct sample_row *row = &a->row[i];
        const float *logits = a->logits + i * ld, *from = logits;
        float inv_t = row->temperature > 0 ? 1 / row->temperature : 1;
        struct row_stats r = row_stat(logits, n, inv_t, a->entropy != NULL);
        if (row->n_ban > 0)
            from = row_without(scratch + a->vocab + 16, logits, n, a->ban + i * SAMPLE_BAN_MAX, row->n_ban);
        int32_t id = row->temperature > 0 ? row_draw(row, from, n, row_top(from, n), from == logits ? r.sum : 0, scratch)
                                          : row_argmax(from, n);
        a->id[i] = id;
        if (a->logp)
            a->logp[i] = stat_logp(&r, logits, id, n, inv_t);
        if (a->entropy)
            a->entropy[i] = stat_entropy(&r);
    }
}
