/* reference.c - a reference model that follows the policy, and its way to checkpoints and back */
#include "workers/engine/trainer/reference.h"
#include <inttypes.h>
#include <string.h>
#include "workers/engine/trainer/trainer_impl.h"

static bool blend_at(struct model *ref, int64_t flat, const void *x, int64_t n, double share, struct error *err)
{
    size_t bytes, e = dtype_size(model_dtype(ref));
    char *y = model_weights(ref, &bytes);
    return OP(model_device(ref), err, blend, .y = y + (size_t)flat * e, .x = x, .n = n, .share = (float)share, .dtype = model_dtype(ref));
}

/* From the shards of all ranks: none of them changes before all ranks have made the next gradient. */
static bool blend_shards(const struct trainer *t, struct model *ref, double share, struct error *err)
{
    const struct trainer_parts *p = &t->p;
    bool ok = true;
    if (!t->reach.begin)
        return error_set(err, ERR_CLOSED, "the trainers have parted, and each has its shard only");
    if (!t->reach.begin(t->reach.ctx, err))
        return false;
    for (int i = 0; i < p->n_piece && ok; i++) {
        const void *whole = model_piece_whole(t->m, i, err);
        ok = whole && blend_at(ref, p->piece_at[i], whole, p->piece_n[i], share, err);
    }
    ok = ok && device_sync(t->dev, err);
    t->reach.end(t->reach.ctx);
    return ok;
}

bool reference_blend(const struct trainer *t, struct model *ref, double share, struct error *err)
{
    size_t bytes;
    return (t->p.weights ? blend_shards(t, ref, share, err) : blend_at(ref, 0, model_weights(t->m, &bytes), t->n_flat, share, err))
           && model_weights_changed(ref, err);
}

bool trainer_reference_step(struct trainer *t, const struct trainer_hyper *h, struct error *err)
{
    if (!t->ref || h->ref_every < 1 || t->version % h->ref_every != 0)
        return true;
    BUG_IF(model_lora(t->m), "an adapter's reference is its base, and stays");
    t->ref_moved = true;
    return t->form->blend(t, h->ref_share, err) && device_sync(t->dev, err);
}

bool trainer_reference_moved(const struct trainer *t)
{
    return t->ref_moved;
}

bool trainer_reference_get(const struct trainer *t, void *out, struct error *err)
{
    return t->form->weights_get(t, t->ref, out, err);
}

bool trainer_reference_set(struct trainer *t, const void *in, struct error *err)
{
    if (!t->ref || t->set.teacher)
        return true;
    t->ref_moved = true;
    return t->form->weights_set(t, t->ref, in, err);
}
