/* run_stream.c - the residual stream: its scale and its additions (run.c says what it is) */
#include <math.h>
#include "workers/engine/model/model_impl.h"
#include "workers/engine/pass/run_impl.h"

float stream_eps(const struct model_config *c)
{
    return (float)(c->has_multipliers ? c->rms_eps / (c->multiplier.residual * c->multiplier.residual) : c->rms_eps);
}

double embed_scale(const struct model *m)
{
    const struct model_config *c = &m->c;
    float root = sqrtf((float)c->d_model);
    if (c->embed_root)
        return m->dtype == DT_BF16 ? bf16_to_f32(bf16_from_f32(root)) : root;
    return c->has_multipliers ? c->multiplier.embedding / c->multiplier.residual : 1;
}

double head_scale(const struct model_config *c)
{
    return c->has_multipliers ? 1 / c->multiplier.logits : 1;
}

bool rows_scale(struct model_run *r, void *x, int64_t n, double scale, struct error *err)
{
    const struct model *m = r->m;
    return scale == 1
           || OP(m->dev, err, cast, .y = x, .x = x, .n = n * m->c.d_model, .scale = (float)scale, .y_dtype = m->dtype, .x_dtype = m->dtype);
}

bool stream_add(struct model_run *r, void *h, void *sum, const void *x, const void *add, int64_t ln, float *rstd, int64_t n,
                struct error *err)
{
    const struct model *m = r->m;
    if (ln != AT_NONE)
        return OP(m->dev, err, rmsnorm_fwd, .y = h, .sum = sum, .x = x, .add = add, .w = model_at(m, ln), .rstd = rstd, .n = n,
                  .d = m->c.d_model, .eps = stream_eps(&m->c), .form = m->c.norm_form, .dtype = m->dtype);
    return !add || OP(m->dev, err, add_fwd, .y = sum, .a = x, .b = add, .n = n * m->c.d_model, .dtype = m->dtype);
}
