/* whole.c - weights that are whole, here or in another process's memory, or nowhere; and the forms of a view and of both whole weights and
 * slices */
#include "workers/engine/model/model_impl.h"
#include "workers/engine/model/team_impl.h"

/* ---- memory */
void weights_free(struct model *m)
{
    model_handles_free(m);
    if (m->weights && m->attached)
        mem_share_close(m->dev, m->weights, (size_t)m->flat.n_flat * dtype_size(m->dtype));
    else if (m->weights && m->shared)
        mem_share_free(m->dev, m->weights, (size_t)m->flat.n_flat * dtype_size(m->dtype), &m->handle);
    else if (m->weights)
        mem_free(m->dev, m->weights);
    m->weights = NULL;
    m->shared = m->attached = false;
    weights_form_set(m);
}

bool weights_room(struct model *m, bool shared, struct error *err)
{
    size_t size = (size_t)m->flat.n_flat * dtype_size(m->dtype);
    if (!model_device_check(&m->c, m->dev, err))
        return false;
    m->weights = shared ? mem_share_new(m->dev, size, "weights", &m->handle, err) : mem_new(m->dev, size, "weights", err);
    m->shared = shared && m->weights;
    weights_form_set(m);
    return m->weights && OP(m->dev, err, mem_fill, .y = m->weights, .size_bytes = size, .byte = 0);
}

char *model_shared_copy(const struct model *m, const char *what, struct mem_handle *h, struct error *err)
{
    size_t size;
    const void *from = model_weights(m, &size);
    char *to = mem_share_new(m->dev, size, what, h, err);
    if (to && (!mem_copy(m->dev, to, from, size, COPY_D2D, err) || !device_sync(m->dev, err))) {
        mem_share_free(m->dev, to, size, h);
        return NULL;
    }
    return to;
}

static const struct mem_handle *whole_share(struct model *m, struct error *err)
{
    if (m->shared)
        return &m->handle;
    char *to = model_shared_copy(m, "weights", &m->handle, err);
    if (!to)
        return NULL;
    model_handles_free(m);
    mem_free(m->dev, m->weights);
    m->weights = to;
    m->shared = true;
    return model_handles_new(m, err) ? &m->handle : NULL;
}

/* Nothing has to move. */
const struct mem_handle *none_share(struct model *m, struct error *err)
{
    return source_take(m, true, err) ? &m->handle : NULL;
}

const struct mem_handle *model_shared_handle(const struct model *m)
{
    return m->shared ? &m->handle : NULL;
}

bool model_attach(struct model *m, const struct mem_handle *h, struct error *err)
{
    BUG_IF(!m->form->plain, "weights of another process for an adapter, a view, shards or a team");
    weights_free(m);
    if (!model_device_check(&m->c, m->dev, err)
        || !(m->weights = mem_share_open(m->dev, h, (size_t)m->flat.n_flat * dtype_size(m->dtype), err)))
        return false;
    m->attached = true;
    weights_form_set(m);
    if (model_handles_new(m, err))
        return true;
    weights_free(m);
    return false;
}

void model_detach(struct model *m)
{
    BUG_IF(!m->attached && m->weights, "weights of its own");
    weights_free(m);
}

/* ---- in a run: every piece is there */
bool piece_stays(UNUSED struct model *m, UNUSED int p, UNUSED struct error *err)
{
    return true;
}

const struct layer_w *whole_layer(const struct model *m, int64_t l)
{
    return &m->layer[l];
}

const struct weight *whole_head(const struct model *m)
{
    return m->head;
}

const void *whole_embedding(const struct model *m)
{
    return model_at(m, m->embed_at);
}

const void *none_at(UNUSED const struct model *m, UNUSED int64_t at)
{
    return NULL;
}

char *whole_room(const struct model *m, UNUSED int p, int64_t *first)
{
    *first = 0;
    return m->weights;
}

/* ---- all of them */
static void *whole_memory(const struct model *m)
{
    return m->weights;
}

bool weights_stay(UNUSED struct model *m, UNUSED struct error *err)
{
    return true;
}

/* At first there are no handles. */
static bool whole_changed(struct model *m, struct error *err)
{
    return model_has_handles(m) ? model_handles_refresh(m, err) : model_handles_new(m, err);
}

/* There are none for a sampler's whole weights, whose slices are what runs use. */
static bool both_changed(struct model *m, struct error *err)
{
    return (!model_has_handles(m) || model_handles_refresh(m, err)) && team_fill(m, m, err);
}

bool whole_bring(const struct model *m, void *to, struct error *err)
{
    size_t size;
    const void *from = model_weights(m, &size);
    return mem_copy(m->dev, to, from, size, COPY_D2D, err);
}

bool whole_fill(struct model *m, const struct model *src, struct error *err)
{
    size_t size;
    return src->form->bring(src, model_weights(m, &size), err) && model_weights_changed(m, err);
}

static struct model *whole_pass(struct model *m, struct error *err)
{
    return model_like_open(m, err);
}

static size_t whole_held(const struct model *m)
{
    return (size_t)m->flat.n_flat * dtype_size(m->dtype);
}

static size_t both_held(const struct model *m)
{
    return whole_held(m) + model_held_bytes(team_slice(m, 0));
}

static size_t view_held(UNUSED const struct model *m)
{
    return 0;    // they are the base's
}

const struct weights_form weights_none = { WEIGHTS_IN_PLACE, .plain = true, .share = none_share, .changed = weights_stay,
                                           .held = whole_held };
const struct weights_form weights_whole = { WEIGHTS_IN_PLACE,         .plain = true,        .memory = whole_memory, .share = whole_share,
                                            .changed = whole_changed, .bring = whole_bring, .fill = whole_fill,     .pass = whole_pass,
                                            .held = whole_held };
const struct weights_form weights_both = { WEIGHTS_IN_PLACE,     .memory = whole_memory, .share = whole_share, .changed = both_changed,
                                           .bring = whole_bring, .fill = whole_fill,     .pass = whole_pass,   .held = both_held };
const struct weights_form weights_view = { WEIGHTS_IN_PLACE,     .memory = whole_memory, .changed = whole_changed,
                                           .bring = whole_bring, .fill = whole_fill,     .held = view_held };

void weights_form_set(struct model *m)
{
    const struct weights_form *here = m->source      ? &weights_elsewhere
                                      : m->weights   ? &weights_whole
                                      : m->cut_shape ? &weights_cut_shape
                                                     : &weights_none,
                              *cut = m->source    ? &weights_uncut
                                     : m->weights ? &weights_both
                                                  : &weights_cut;
    m->form = m->lora ? &weights_adapter : m->base ? &weights_view : m->kept ? &weights_shards : m->team ? cut : here;
}
