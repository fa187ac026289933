/* experts.c - choosing experts for rows, their products, and the sum of what they give, as plain as their formulas */
#include "kernels/ref/ref.h"

/* The scores of one row: over all experts, or with `only` over the k in it. */
static void scores_get(double *score, const float *logits, int64_t n_expert, const int32_t *only, int64_t k, enum route_kind kind)
{
    int64_t n = only ? k : n_expert;
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        score[i] = logits[only ? only[i] : i];
        most = MAX(most, score[i]);
    }
    for (int64_t i = 0; i < n; i++)
        sum += score[i] = kind == ROUTE_SIGMOID ? 1 / (1 + exp(-score[i])) : exp(score[i] - most);
    for (int64_t i = 0; i < n && kind == ROUTE_SOFTMAX; i++)
        score[i] /= sum;
}

/* The k experts with the largest values, ascending. A NaN is larger than nothing, so k different ids come out whatever is in the row. */
static void largest_get(int32_t *expert, const float *value, int64_t n_expert, int64_t k)
{
    bool chosen[ROUTE_EXPERTS_MAX] = { false };
    for (int64_t j = 0; j < k; j++) {
        int64_t best = -1;
        for (int64_t e = 0; e < n_expert; e++)
            if (!chosen[e] && (best < 0 || value[e] > value[best]))
                best = e;
        chosen[best] = true;
    }
    for (int64_t e = 0, j = 0; e < n_expert; e++)
        if (chosen[e])
            expert[j++] = (int32_t)e;
}

/* What the chosen scores are divided by; 1 where they are not. */
static double scores_sum(const double *score, const int32_t *expert, int64_t k, bool normalise)
{
    double sum = 1e-20;
    for (int64_t j = 0; j < k; j++)
        sum += score[expert[j]];
    return normalise ? sum : 1;
}

bool route_fwd_ref(UNUSED struct device *dev, const struct route_fwd *a, struct error *err)
{
    double score[ROUTE_EXPERTS_MAX];
    float value[ROUTE_EXPERTS_MAX];
    bool over_chosen = a->kind == ROUTE_SOFTMAX && a->normalise;
    if (!route_check("route_fwd", a->n_expert, a->k, err))
        return false;
    for (int64_t i = 0; i < a->n; i++) {
        const float *logits = a->logits + i * a->n_expert;
        int32_t *expert = a->expert + i * a->k;
        scores_get(score, logits, a->n_expert, NULL, 0, a->kind);
        for (int64_t e = 0; e < a->n_expert; e++)
            value[e] = (a->kind == ROUTE_SOFTMAX && !a->bias ? logits[e] : (float)score[e]) + (a->bias ? a->bias[e] : 0);
        largest_get(expert, value, a->n_expert, a->k);
        if (over_chosen)
            scores_get(score, logits, a->n_expert, expert, a->k, a->kind);
        double by = scores_sum(score, expert, a->k, a->normalise && !over_chosen);
        for (int64_t j = 0; j < a->k; j++)
            a->weight[i * a->k + j] = (float)(score[over_chosen ? j : expert[j]] / by * a->scale);
    }
    return true;
}

/* With w the weights without the scale c, and g = c dweight:
 *   softmax over the chosen logits    dl_e = w_e (g_e - sum_j w_j g_j)                        e chosen, others 0
 *   softmax over all                  dl_e = p_e ([e chosen] g_e - sum_j p_j g_j)             all e
 *   sigmoid                           dl_e = s_e (1 - s_e) (g_e - sum_j g_j s_j / Z) / Z      e chosen; not normalised: s_e (1 - s_e) g_e */
bool route_bwd_ref(UNUSED struct device *dev, const struct route_bwd *a, struct error *err)
{
    double score[ROUTE_EXPERTS_MAX];
    bool over_chosen = a->kind == ROUTE_SOFTMAX && a->normalise, over_all = a->kind == ROUTE_SOFTMAX && !a->normalise;
    if (!route_check("route_bwd", a->n_expert, a->k, err))
        return false;
    for (int64_t i = 0; i < a->n; i++) {
        const int32_t *expert = a->expert + i * a->k;
        const float *dweight = a->dweight + i * a->k;
        int64_t to = i * a->n_expert;
        double dot = 0;
        scores_get(score, a->logits + to, a->n_expert, over_chosen ? expert : NULL, a->k, a->kind);
        double by = scores_sum(score, expert, a->k, a->kind == ROUTE_SIGMOID && a->normalise);
        for (int64_t j = 0; j < a->k; j++)
            dot += (double)a->scale * dweight[j] * score[over_chosen ? j : expert[j]] / by;
        for (int64_t e = 0; e < a->n_expert; e++)
            elem_put(a->dlogits, to + e, a->dtype, over_all ? -score[e] * dot : 0);
        for (int64_t j = 0; j < a->k; j++) {
            double s = score[over_chosen ? j : expert[j]], g = (double)a->scale * dweight[j];
            double dl = a->kind == ROUTE_SOFTMAX ? s * (g - dot) : s * (1 - s) * (g - (a->normalise ? dot : 0)) / by;
            elem_put(a->dlogits, to + expert[j], a->dtype, dl);
        }
    }
    return true;
}

bool group_rows_ref(struct device *dev, const struct group_rows *a, struct error *err)
{
    return host_group_rows(dev, a, err);
}

bool group_fwd_ref(UNUSED struct device *dev, const struct group_fwd *a, struct error *err)
{
    const struct weight *w = a->w;
    if (!group_first_check("group_fwd", a->first, w->n_group, a->n, err))
        return false;
    for (int64_t g = 0; g < w->n_group; g++)
        for (int64_t i = a->first[g]; i < a->first[g + 1]; i++)
            for (int64_t o = 0; o < w->n_out; o++) {
                double sum = 0;
                for (int64_t k = 0; k < w->n_in; k++)
                    sum += elem_get(a->x, i * w->n_in + k, w->dtype) * elem_get(w->data, (g * w->n_out + o) * w->n_in + k, w->dtype);
                elem_put(a->y, i * w->n_out + o, w->dtype, sum);
            }
    return true;
}

bool group_bwd_x_ref(UNUSED struct device *dev, const struct group_bwd_x *a, struct error *err)
{
    const struct weight *w = a->w;
    if (!w->for_bwd)
        return error_set(err, ERR_SHAPE, "group_bwd_x: the weight was not made for it");
    if (!group_first_check("group_bwd_x", a->first, w->n_group, a->n, err))
        return false;
    for (int64_t g = 0; g < w->n_group; g++)
        for (int64_t i = a->first[g]; i < a->first[g + 1]; i++)
            for (int64_t k = 0; k < w->n_in; k++) {
                double sum = 0;
                for (int64_t o = 0; o < w->n_out; o++)
                    sum += elem_get(a->dy, i * w->n_out + o, w->dtype) * elem_get(w->data, (g * w->n_out + o) * w->n_in + k, w->dtype);
                elem_put(a->dx, i * w->n_in + k, w->dtype, sum);
            }
    return true;
}

bool group_bwd_w_ref(UNUSED struct device *dev, const struct group_bwd_w *a, struct error *err)
{
    if (!group_first_check("group_bwd_w", a->first, a->n_group, a->n, err))
        return false;
    for (int64_t g = 0; g < a->n_group; g++)
        for (int64_t o = 0; o < a->n_out; o++)
            for (int64_t k = 0; k < a->n_in; k++) {
                float *dw = &a->dw[(g * a->n_out + o) * a->n_in + k];
                double sum = 0;
                for (int64_t i = a->first[g]; i < a->first[g + 1]; i++)
                    sum += elem_get(a->dy, i * a->n_out + o, a->dtype) * elem_get(a->x, i * a->n_in + k, a->dtype);
                *dw = (a->set ? 0 : *dw) + (float)sum;
            }
    return true;
}

bool combine_fwd_ref(UNUSED struct device *dev, const struct combine_fwd *a, struct error *err)
{
    if (!row_ids_check("combine_fwd", a->place, a->n * a->k, a->n * a->k, err))
        return false;
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t c = 0; c < a->d; c++) {
            double sum = 0;
            for (int64_t p = i * a->k; p < (i + 1) * a->k; p++)
                sum += (a->weight ? a->weight[p] : 1) * elem_get(a->x, a->place[p] * a->d + c, a->dtype);
            elem_put(a->y, i * a->d + c, a->dtype, sum);
        }
    return true;
}

bool combine_bwd_ref(UNUSED struct device *dev, const struct combine_bwd *a, struct error *err)
{
    if (!row_ids_check("combine_bwd", a->place, a->n * a->k, a->n * a->k, err))
        return false;
    for (int64_t p = 0; p < a->n * a->k; p++) {
        double sum = 0;
        for (int64_t at = a->place[p] * a->f; at < (a->place[p] + 1) * a->f; at++) {
            double x = elem_get(a->x, at, a->dtype), dx = elem_get(a->dx, at, a->dtype);
            sum += dx * x;
            elem_put(a->x, at, a->dtype, x * a->weight[p]);
            elem_put(a->dx, at, a->dtype, dx * a->weight[p]);
        }
        a->dweight[p] = (float)sum;
    }
    return true;
}
