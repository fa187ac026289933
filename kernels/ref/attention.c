/* attention.c - rotation, the KV pool and causal attention, as plain as their formulas */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/ref/ref.h"

/* 1 / root mean square of one head's values, or 1 without a norm. */
static double head_rstd(const void *qkv, int64_t at, struct attn_heads h, const void *norm, float eps, enum dtype t)
{
    double square = 0;
    for (int j = 0; j < h.hd; j++)
        square += elem_get(qkv, at + j, t) * elem_get(qkv, at + j, t);
    return norm ? 1 / sqrt(square / h.hd + eps) : 1;
}

/* Place of element (slot, head, j) of K in the pool; V is page_half after it. */
static int64_t kv_at(struct attn_heads h, int64_t slot, int head, int j)
{
    int64_t page_half = (int64_t)h.n_kv * HOST_PAGE_TOK * h.hd;
    return slot / HOST_PAGE_TOK * 2 * page_half + ((int64_t)head * HOST_PAGE_TOK + slot % HOST_PAGE_TOK) * h.hd + j;
}

/* The two dimensions of pair j, of hd / 2: those that turn together, or two of those that stay. */
struct pair {
    int lo, hi;
    bool turns;
};
static struct pair pair_of(int j, int hd, int rot)
{
    if (j < rot / 2)
        return (struct pair){ j, rot / 2 + j, true };
    return (struct pair){ rot / 2 + j, hd / 2 + j, false };
}

bool rope_fwd_ref(UNUSED struct device *dev, const struct rope_fwd *a, struct error *err)
{
    struct attn_heads h = a->heads;
    int n_head = h.n_q + 2 * h.n_kv, rot = a->rot ? a->rot : h.hd, one = a->form == NORM_GEMMA;
    if (!rope_check("rope_fwd", a->pos, a->n, a->n_pos, h, a->rot, err))
        return false;
    for (int64_t i = 0; i < a->n; i++) {
        const float *cosine = a->cos + a->pos[i] * (rot / 2), *sine = a->sin + a->pos[i] * (rot / 2);
        for (int head = 0; head < n_head; head++) {
            int64_t at = (i * n_head + head) * h.hd;
            const void *norm = head < h.n_q ? a->q_norm : head < h.n_q + h.n_kv ? a->k_norm : NULL;
            double rstd = head_rstd(a->qkv, at, h, norm, a->eps, a->dtype);
            for (int j = 0; j < h.hd / 2; j++) {
                struct pair p = pair_of(j, h.hd, rot);
                double lo = elem_get(a->qkv, at + p.lo, a->dtype), hi = elem_get(a->qkv, at + p.hi, a->dtype);
                if (norm) {
                    lo *= rstd * (elem_get(norm, p.lo, a->dtype) + one);
                    hi *= rstd * (elem_get(norm, p.hi, a->dtype) + one);
                }
                bool turn = head < h.n_q + h.n_kv && p.turns;
                elem_put(a->out, at + p.lo, a->dtype, turn ? lo * cosine[j] - hi * sine[j] : lo);
                elem_put(a->out, at + p.hi, a->dtype, turn ? hi * cosine[j] + lo * sine[j] : hi);
            }
        }
        if (!a->kv || a->slot[i] < 0)
            continue;
        for (int head = 0; head < 2 * h.n_kv; head++)
            for (int j = 0; j < h.hd; j++) {
                int64_t to = kv_at(h, a->slot[i], head % h.n_kv, j);
                if (head >= h.n_kv)
                    to += (int64_t)h.n_kv * HOST_PAGE_TOK * h.hd;
                elem_put(a->kv, to, a->dtype, elem_get(a->out, (i * n_head + h.n_q + head) * h.hd + j, a->dtype));
            }
    }
    return true;
}

bool rope_bwd_ref(UNUSED struct device *dev, const struct rope_bwd *a, struct error *err)
{
    struct attn_heads h = a->heads;
    int n_head = h.n_q + 2 * h.n_kv, rot = a->rot ? a->rot : h.hd, one = a->form == NORM_GEMMA;
    int parts = MAX(a->parts, 1), each_q = MAX(h.n_q / parts, 1), each_k = MAX(h.n_kv / parts, 1);
    double *dnorm = calloc(2 * (size_t)(parts * h.hd), sizeof *dnorm);    // sums for q, then for k
    if (!dnorm)
        return error_set(err, ERR_NO_MEMORY, "rope_bwd: no memory for sums");
    if (!rope_check("rope_bwd", a->pos, a->n, a->n_pos, h, a->rot, err) || !norm_parts_check(h, parts, err)) {
        free(dnorm);
        return false;
    }
    for (int64_t i = 0; i < a->n; i++) {
        const float *cosine = a->cos + a->pos[i] * (rot / 2), *sine = a->sin + a->pos[i] * (rot / 2);
        for (int head = 0; head < h.n_q + h.n_kv; head++) {
            int64_t at = (i * n_head + head) * h.hd;
            const void *norm = head < h.n_q ? a->q_norm : a->k_norm;
            double g[256], dot = 0, *dw = dnorm + (head < h.n_q ? head / each_q : parts + (head - h.n_q) / each_k) * h.hd;
            for (int j = 0; j < h.hd / 2; j++) {
                struct pair p = pair_of(j, h.hd, rot);
                double lo = elem_get(a->dqkv, at + p.lo, a->dtype), hi = elem_get(a->dqkv, at + p.hi, a->dtype);
                g[p.lo] = p.turns ? lo * cosine[j] + hi * sine[j] : lo;
                g[p.hi] = p.turns ? hi * cosine[j] - lo * sine[j] : hi;
            }
            double rstd = norm ? head_rstd(a->qkv, at, h, norm, a->eps, a->dtype) : 1;
            for (int j = 0; norm && j < h.hd; j++) {
                double xhat = elem_get(a->qkv, at + j, a->dtype) * rstd;
                dw[j] += g[j] * xhat;
                g[j] *= elem_get(norm, j, a->dtype) + one;
                dot += g[j] * xhat;
            }
            for (int j = 0; j < h.hd; j++)
                elem_put(a->dqkv, at + j, a->dtype, norm ? rstd * (g[j] - elem_get(a->qkv, at + j, a->dtype) * rstd * dot / h.hd) : g[j]);
        }
    }
    for (int j = 0; j < parts * h.hd; j++) {
        if (a->q_norm && a->dq_norm)
            a->dq_norm[j] += (float)dnorm[j];
        if (a->k_norm && a->dk_norm)
            a->dk_norm[j] += (float)dnorm[parts * h.hd + j];
    }
    free(dnorm);
    return true;
}

/* Where key or value j of position p of a sequence is: in the packed rows, or in the pool. */
struct kv_view {
    struct attn_heads h;
    int64_t row0;           // first row, packed
    const int32_t *page;    // pages of this sequence, or NULL when packed
};
static int64_t kv_index(const struct kv_view *v, int64_t p, int head, int j, bool value)
{
    if (v->page)
        return kv_at(v->h, (int64_t)v->page[p / HOST_PAGE_TOK] * HOST_PAGE_TOK + p % HOST_PAGE_TOK, head, j)
               + (value ? (int64_t)v->h.n_kv * HOST_PAGE_TOK * v->h.hd : 0);
    return ((v->row0 + p) * (v->h.n_q + 2 * v->h.n_kv) + v->h.n_q + (value ? v->h.n_kv : 0) + head) * v->h.hd + j;
}

/* The first key that a query sees, the one at its own position being the last. */
static int64_t first_key(struct attn_bounds b, int64_t last)
{
    return b.window ? MAX(0, last + 1 - b.window) : 0;
}

/* A scaled score as the softmax takes it, and its derivative. */
static double capped(struct attn_bounds b, double s, double *slope)
{
    double t = b.cap > 0 ? tanh(s / (double)b.cap) : 0;
    *slope = 1 - t * t;
    return b.cap > 0 ? (double)b.cap * t : s;
}

/* One query row and head against the keys that it sees of 0 .. n_key - 1; prob has room for n_key doubles. Returns the lse. */
static double query_attend(void *out, int64_t out_at, const void *q, int64_t q_at, const void *kv, const struct kv_view *v, int head,
                           int64_t n_key, struct attn_bounds b, double *prob, enum dtype t)
{
    struct attn_heads h = v->h;
    double max = -INFINITY, sum = 0, slope;
    int64_t first = first_key(b, n_key - 1);
    for (int64_t p = first; p < n_key; p++) {
        double s = 0;
        for (int j = 0; j < h.hd; j++)
            s += elem_get(q, q_at + j, t) * elem_get(kv, kv_index(v, p, head, j, false), t);
        prob[p] = capped(b, s / sqrt(h.hd), &slope);
        max = MAX(max, prob[p]);
    }
    for (int64_t p = first; p < n_key; p++)
        sum += prob[p] = exp(prob[p] - max);
    for (int j = 0; j < h.hd; j++) {
        double o = 0;
        for (int64_t p = first; p < n_key; p++)
            o += prob[p] * elem_get(kv, kv_index(v, p, head, j, true), t);
        elem_put(out, out_at + j, t, o / sum);
    }
    return max + log(sum);
}

bool attn_fwd_ref(UNUSED struct device *dev, const struct attn_fwd *a, struct error *err)
{
    struct attn_heads h = a->heads;
    int n_head = h.n_q + 2 * h.n_kv;
    if (!attn_heads_check("attn_fwd", h, err) || !attn_seq_check("attn_fwd", a->seq_host, a->n_seq, a->n, err))
        return false;
    double *prob = malloc((size_t)(a->n + 1) * sizeof *prob);
    if (!prob)
        return error_set(err, ERR_NO_MEMORY, "attn_fwd: no memory for %" PRId64 " scores", a->n);
    for (int64_t s = 0; s < a->n_seq; s++)
        for (int64_t i = a->seq_host[s]; i < a->seq_host[s + 1]; i++)
            for (int head = 0; head < h.n_q; head++) {
                struct kv_view v = { h, a->seq_host[s], NULL };
                double lse = query_attend(a->out, (i * h.n_q + head) * h.hd, a->qkv, (i * n_head + head) * h.hd, a->qkv, &v,
                                          head / (h.n_q / h.n_kv), i - a->seq_host[s] + 1, a->bounds, prob, a->dtype);
                if (a->lse)
                    a->lse[i * h.n_q + head] = (float)lse;
            }
    free(prob);
    return true;
}

bool attn_paged_ref(UNUSED struct device *dev, const struct attn_paged *a, struct error *err)
{
    struct attn_heads h = a->heads;
    int n_head = h.n_q + 2 * h.n_kv;
    if (!attn_paged_check(a, HOST_PAGE_TOK, err))
        return false;
    double *prob = malloc((size_t)(a->max_page * HOST_PAGE_TOK + 1) * sizeof *prob);
    if (!prob)
        return error_set(err, ERR_NO_MEMORY, "attn_paged: no memory for scores");
    for (int64_t s = 0; s < a->n_seq; s++) {
        int64_t q0 = a->q_seq ? a->q_seq[s] : s, n_q = a->q_seq ? a->q_seq[s + 1] - q0 : 1;
        for (int64_t i = 0; a->kv_len[s] > 0 && i < n_q; i++)
            for (int head = 0; head < h.n_q; head++) {
                struct kv_view v = { h, 0, a->page + s * a->max_page };
                query_attend(a->out, ((q0 + i) * h.n_q + head) * h.hd, a->qkv, ((q0 + i) * n_head + head) * h.hd, a->kv, &v,
                             head / (h.n_q / h.n_kv), a->kv_len[s] - n_q + i + 1, a->bounds, prob, a->dtype);
            }
    }
    free(prob);
    return true;
}

/* P = exp(S - lse); dV = P^T dO; dP = dO V^T; dS = P (dP - sum(dO O)) scale, times the cap's slope; dQ = dS K; dK = dS^T Q. */
bool attn_bwd_ref(UNUSED struct device *dev, const struct attn_bwd *a, struct error *err)
{
    struct attn_heads h = a->heads;
    int n_head = h.n_q + 2 * h.n_kv, group = h.n_q / MAX(h.n_kv, 1);
    if (!attn_heads_check("attn_bwd", h, err) || !attn_seq_check("attn_bwd", a->seq_host, a->n_seq, a->n, err))
        return false;
    double *d = calloc((size_t)(a->n * n_head * h.hd + 1), sizeof *d), scale = 1 / sqrt(h.hd);
    if (!d)
        return error_set(err, ERR_NO_MEMORY, "attn_bwd: no memory for gradients");
    for (int64_t s = 0; s < a->n_seq; s++)
        for (int64_t i = a->seq_host[s]; i < a->seq_host[s + 1]; i++)
            for (int head = 0; head < h.n_q; head++) {
                int64_t q = (i * n_head + head) * h.hd, o = (i * h.n_q + head) * h.hd;
                double dot = 0;
                for (int j = 0; j < h.hd; j++)
                    dot += elem_get(a->dout, o + j, a->dtype) * elem_get(a->out, o + j, a->dtype);
                for (int64_t p = a->seq_host[s] + first_key(a->bounds, i - a->seq_host[s]); p <= i; p++) {
                    int64_t k = (p * n_head + h.n_q + head / group) * h.hd, v = k + (int64_t)h.n_kv * h.hd;
                    double score = 0, dprob = 0;
                    for (int j = 0; j < h.hd; j++) {
                        score += elem_get(a->qkv, q + j, a->dtype) * elem_get(a->qkv, k + j, a->dtype);
                        dprob += elem_get(a->dout, o + j, a->dtype) * elem_get(a->qkv, v + j, a->dtype);
                    }
                    double slope, prob = exp(capped(a->bounds, score * scale, &slope) - a->lse[i * h.n_q + head]);
                    double ds = prob * (dprob - dot) * scale * slope;
                    for (int j = 0; j < h.hd; j++) {
                        d[v + j] += prob * elem_get(a->dout, o + j, a->dtype);
                        d[q + j] += ds * elem_get(a->qkv, k + j, a->dtype);
                        d[k + j] += ds * elem_get(a->qkv, q + j, a->dtype);
                    }
                }
            }
    for (int64_t i = 0; i < a->n * n_head * h.hd; i++)
        elem_put(a->dqkv, i, a->dtype, d[i]);
    free(d);
    return true;
}
