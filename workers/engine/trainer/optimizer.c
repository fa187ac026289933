/* optimizer.c - how each optimizer makes new weights of a run of the update (update_run)
 *
 * An optimizer is a row of the table at the end. What is not trained has no decay, nor with decay_matrices do norms and biases. */
#include <math.h>
#include "kernels/adam8.h"
#include "workers/engine/trainer/trainer_impl.h"

/* How many of n elements from flat on have the same weight decay, and which: none what is not trained, nor with decay_matrices norms and
 * biases. */
static int64_t decay_stretch(const struct trainer *t, const struct trainer_hyper *h, int64_t flat, int64_t n, double *decay)
{
    const struct tensor *next = NULL;    // one without decay at flat, or the first after it
    *decay = h->weight_decay;
    for (int64_t i = 0; (h->decay_matrices || t->frozen) && i < model_n_tensor(t->m); i++) {
        const struct tensor *x = model_tensor(t->m, i);
        bool none = (t->frozen && t->frozen[i]) || (h->decay_matrices && x->n_dim == 1);
        if (none && x->offset + x->n_elem > flat && (!next || x->offset < next->offset))
            next = x;
    }
    if (!next)
        return n;
    if (next->offset > flat)
        return MIN(n, next->offset - flat);
    *decay = 0;
    return MIN(n, next->offset + next->n_elem - flat);
}

/* AdamW of n elements of run r from its element `from` on, all of them on the device or all in host memory. */
static struct adamw adamw_of(const struct trainer *t, const struct trainer_hyper *h, const struct update_run *r, int64_t from, int64_t n,
                             double decay)
{
    int64_t at = r->at + from, far = at - t->n_dev;
    bool here = at < t->n_dev;
    char *weights = update_weights_at(t, r, from);
    return (struct adamw){ .weight = weights,
                           .master = !t->own_master ? (here ? (float *)(void *)weights : NULL)
                                     : here         ? t->state[STATE_MASTER] + at
                                                    : t->host_state[STATE_MASTER] + far,
                           .m = here ? t->state[STATE_MOMENT1] + at : t->host_state[STATE_MOMENT1] + far,
                           .v = here ? t->state[STATE_MOMENT2] + at : t->host_state[STATE_MOMENT2] + far,
                           .grad = r->grad + from,
                           .coef = t->clip + 1,
                           .n = n,
                           .step = t->adam_step + 1,
                           .lr = (float)h->lr,
                           .beta1 = (float)t->set.adam_beta1,
                           .beta2 = (float)t->set.adam_beta2,
                           .eps = (float)t->set.adam_eps,
                           .decay = (float)decay,
                           .dtype = model_dtype(t->m) };
}

static float *masters_at(const struct trainer *t, const struct update_run *r, int64_t from)
{
    return t->own_master ? t->state[STATE_MASTER] + r->at + from : (float *)(void *)update_weights_at(t, r, from);
}

/* Decay by stretches, in place; then all of the run at once, since blocks with one scale reach over tensors. */
static bool run_apply_8bit(struct trainer *t, const struct trainer_hyper *h, const struct update_run *r, struct error *err)
{
    struct moment8 m = update_moment8(t, STATE_MOMENT1), v = update_moment8(t, STATE_MOMENT2);
    double decay;
    for (int64_t at = 0, n; at < r->n && h->weight_decay > 0; at += n) {
        n = decay_stretch(t, h, r->flat + at, r->n - at, &decay);
        if (decay > 0
            && !OP(t->dev, err, cast, .y = masters_at(t, r, at), .x = masters_at(t, r, at), .n = n, .scale = (float)(1 - h->lr * decay),
                   .y_dtype = DT_F32, .x_dtype = DT_F32))
            return false;
    }
    return r->n == 0
           || OP(t->dev, err, adamw8, .weight = update_weights_at(t, r, 0), .master = masters_at(t, r, 0), .m = m.code + r->at,
                 .v = v.code + r->at, .m_scale = m.scale + r->at / ADAM8_BLOCK, .v_scale = v.scale + r->at / ADAM8_BLOCK, .grad = r->grad,
                 .coef = t->clip + 1, .n = r->n, .step = t->adam_step + 1, .lr = (float)h->lr, .beta1 = (float)t->set.adam_beta1,
                 .beta2 = (float)t->set.adam_beta2, .eps = (float)t->set.adam_eps, .dtype = model_dtype(t->m));
}

/* The sum of squares of n elements, at sum on the device. */
static bool sumsq_of(struct trainer *t, const float *x, int64_t n, double *sum, struct error *err)
{
    return OP(t->dev, err, sumsq, .part = t->p.norm_part, .x = x, .n = n)
           && OP(t->dev, err, sum_parts, .sum = sum, .part = t->p.norm_part, .n = (n + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK);
}

/* One tensor, whose row sums begin at row. The gradient becomes the update, in place. */
static bool tensor_apply_adafactor(struct trainer *t, const struct trainer_hyper *h, const struct tensor *x, bool decays, float *row,
                                   struct error *err)
{
    struct update_run all = update_run_of(t, 0);
    bool matrix = x->n_dim > 1;
    int64_t n_row = x->dim[0], n_col = matrix ? x->dim[1] : 1;
    float *grad = t->grad + x->offset, *master = masters_at(t, &all, x->offset), *col = matrix ? row + n_row : NULL;
    double k = (double)(t->adam_step + 1);
    return OP(t->dev, err, adafactor_moments, .row = row, .col = col, .row_mean = t->row_mean, .grad = grad, .coef = t->clip + 1,
              .n_row = n_row, .n_col = n_col, .share = (float)pow(k, -0.8))
           && OP(t->dev, err, adafactor_update, .grad = grad, .row = row, .col = col, .row_mean = t->row_mean, .coef = t->clip + 1,
                 .n_row = n_row, .n_col = n_col)
           && sumsq_of(t, master, x->n_elem, t->sumsq + 1, err) && sumsq_of(t, grad, x->n_elem, t->sumsq + 2, err)
           && OP(t->dev, err, adafactor_apply, .weight = update_weights_at(t, &all, x->offset), .master = master, .u = grad,
                 .sum_master = t->sumsq + 1, .sum_u = t->sumsq + 2, .n = x->n_elem, .lr = (float)h->lr,
                 .decay = decays ? (float)h->weight_decay : 0, .rho = (float)fmin(h->lr, 1 / sqrt(k)), .dtype = model_dtype(t->m));
}

static bool run_apply_adafactor(struct trainer *t, const struct trainer_hyper *h, UNUSED const struct update_run *all, struct error *err)
{
    float *row = t->state[STATE_MOMENT2];
    for (int64_t i = 0; i < model_n_tensor(t->m); i++) {
        const struct tensor *x = model_tensor(t->m, i);
        if (!(t->frozen && t->frozen[i]) && !tensor_apply_adafactor(t, h, x, x->n_dim > 1 || !h->decay_matrices, row, err))
            return false;
        row += x->n_dim == 1 ? x->n_elem : x->dim[0] + x->dim[1];
    }
    return true;
}

static bool run_apply_adamw(struct trainer *t, const struct trainer_hyper *h, const struct update_run *r, struct error *err)
{
    int64_t n_dev = update_run_n_dev(t, r), n;
    double decay;
    for (int64_t at = n_dev; at < r->n; at += n) {    // first, so that its last copies overlap with the part on the device
        n = decay_stretch(t, h, r->flat + at, r->n - at, &decay);
        struct adamw step = adamw_of(t, h, r, at, n, decay);
        if ((t->stage_used && !device_sync(t->dev, err))
            || !OP(t->dev, err, adamw_host, .step = step, .stage = t->stage, .stage_bytes = t->stage_bytes))
            return false;
        t->stage_used = true;
    }
    for (int64_t at = 0; at < n_dev; at += n) {
        n = decay_stretch(t, h, r->flat + at, n_dev - at, &decay);
        struct adamw step = adamw_of(t, h, r, at, n, decay);
        if (!t->dev->op->adamw(t->dev, &step, err))
            return false;
    }
    return true;
}

bool trainer_run_apply(struct trainer *t, const struct trainer_hyper *h, int run, struct error *err)
{
    static bool (*const apply[])(struct trainer * t, const struct trainer_hyper *h, const struct update_run *r, struct error *err) = {
        [OPTIMIZER_ADAMW] = run_apply_adamw,
        [OPTIMIZER_ADAMW_8BIT] = run_apply_8bit,
        [OPTIMIZER_ADAFACTOR] = run_apply_adafactor,
    };
    struct update_run r = update_run_of(t, run);
    return apply[t->set.optimizer](t, h, &r, err);
}
