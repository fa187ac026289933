#include "workers/worker/utilisation.h"
#include <math.h>
#include "kernels/ops.h"
#include "protocol/record/group.h"
#include "protocol/settings/metrics.h"
#include "workers/engine/model/model.h"
#include "workers/engine/plan/peaks.h"
#include "workers/worker/engine_state.h"

/* What one device does: operations and bytes per second; NAN: not known. The table is of bf16. */
static void peak_of(const struct engine *e, double *flop_per_s, double *byte_per_s)
{
    const struct device_peak *p = e->dev->kind == DEVICE_CUDA ? peak_find(e->dev->what) : NULL;
    bool bf16 = model_dtype(e->model) == DT_BF16;
    *flop_per_s = e->config.peak_tflops > 0 ? e->config.peak_tflops * 1e12 : p && bf16 ? p->tflops * 1e12 : NAN;
    *byte_per_s = e->config.peak_gb_per_s > 0 ? e->config.peak_gb_per_s * 1e9 : p ? p->gb_per_s * 1e9 : NAN;
}

/* Tokens that a token of these groups sees before it on average, times two: the mean over tokens of their sequence's length. */
static double length_mean(const struct group *const *groups, int64_t n_group)
{
    double n = 0, squares = 0;
    for (int64_t i = 0; i < n_group; i++)
        for (int32_t k = 0; k < groups[i]->n_sample; k++) {
            double len = (double)(groups[i]->n_prompt + groups[i]->sample[k].n_tok);
            n += len;
            squares += len * len;
        }
    return squares / n;    // 0 / 0: there is none
}

void sampled_make(const struct engine *e, struct sampled *out)
{
    double flop_per_s, byte_per_s;
    const struct sampler_work *w = &e->work;
    *out = (struct sampled){ .generate_s = w->generate_s,
                             .tail_s = w->tail_s,
                             .gap_s = e->ending.generator ? w->gap_s : NAN,
                             .n_tok = w->n_tok,
                             .n_draft = w->n_draft,
                             .n_accepted = w->n_accepted,
                             .n_put_back = e->generator ? w->n_put_back : -1,
                             .flops = NAN,
                             .flops_most = NAN,
                             .bytes = NAN,
                             .bytes_most = NAN };
    if (!e->generator)
        return;
    const struct model_config *c = model_config(e->model);
    double elem = (double)dtype_size(model_dtype(e->model)), s = w->generate_s * (double)e->config.producer_tensor_parallel_size;
    peak_of(e, &flop_per_s, &byte_per_s);
    out->flops = w->n_run_tok > 0 ? (double)w->n_run_tok * config_flops(c, (double)w->n_seen_tok / (double)w->n_run_tok) : 0;
    out->flops_most = s * flop_per_s;
    out->bytes = elem * ((double)w->n_decode * (double)config_n_product(c) + (double)w->n_kv_tok * (double)config_n_kv(c));
    out->bytes_most = s * byte_per_s;
}

void utilisation_make(const struct engine *e, const struct group *const *groups, int64_t n_group, double *metric)
{
    double flop_per_s, byte_per_s;
    struct sampled s;
    const struct model_config *c = model_config(e->model);
    sampled_make(e, &s);
    peak_of(e, &flop_per_s, &byte_per_s);
    double forward = config_flops(c, length_mean(groups, n_group) / 2);
    /* backward takes twice as much; of frozen matrices only the half that leads to earlier layers */
    double backward = e->config.lora_rank > 0 || e->config.lora_adapter[0] ? 2 * forward - 2 * (double)config_n_active(c) : 2 * forward;
    metric[M_TRAIN_MFU] = metric[M_TRAIN_TOK_PER_S] * (1 - metric[M_TRAIN_SHARED]) * (forward + backward)
                          / ((double)(e->config.num_trainers * run_config_trainer_devices(&e->config)) * flop_per_s);
    metric[M_ROLLOUT_MFU] = s.flops / s.flops_most;
    metric[M_ROLLOUT_MBU] = s.bytes / s.bytes_most;
}
