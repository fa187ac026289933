/* source.c - weights that are elsewhere: in files (model_files.c), in a seed (model_random.c), in another model
 *
 * A model of such weights is a shape until somebody decides what its devices get of them: the whole (model_weights_take, model_share), this
 * rank's shards (model_keep), or slices (model_team, model_sliced_open). The whole comes straight to where it stays. Everything else is
 * taken out of pieces of the flat order, which come one at a time into room for the longest on the first device. So no device ever has more
 * than its part; the first one has a piece besides. */
#include <stdlib.h>
#include "workers/engine/model/choose_ahead.h"
#include "workers/engine/model/model_impl.h"
#include "workers/engine/model/team_impl.h"

bool source_set(struct model *m, const struct source *from, struct error *err)
{
    BUG_IF(m->form != &weights_none, "weights that are elsewhere, of a model that has some");
    if (!(m->source = malloc(sizeof *m->source))) {
        if (from->close)
            from->close(from->ctx);
        return error_set(err, ERR_NO_MEMORY, "no memory for a source of weights");
    }
    *m->source = *from;
    m->source->mem = NULL;
    m->source->piece = -1;
    weights_form_set(m);
    return true;
}

void source_free(struct model *m)
{
    struct source *s = m->source;
    if (!s)
        return;
    mem_free(m->dev, s->mem);
    if (s->close)
        s->close(s->ctx);
    free(s);
    m->source = NULL;
    weights_form_set(m);
}

bool model_is_elsewhere(const struct model *m)
{
    return m->source != NULL;
}

/* ---- pieces */
void piece_tensors(const struct model *m, int p, int end, int64_t *first, int64_t *last)
{
    int64_t from, to, n, t = 0;
    (void)model_piece(m, p, &from);
    n = model_piece(m, end - 1, &to);
    to += n;
    while (t < m->flat.n_tensor && m->flat.tensor[t].offset < from)
        t++;
    *first = t;
    while (t < m->flat.n_tensor && m->flat.tensor[t].offset < to)
        t++;
    *last = t;
}

/* Set what lies between the tensors of piece p to 0, where the piece is at mem: other pieces have tensors there. */
static bool gaps_clear(const struct model *m, int p, char *mem, struct error *err)
{
    size_t e = dtype_size(m->dtype);
    int64_t begin, at, t, last, n = model_piece(m, p, &begin);
    piece_tensors(m, p, p + 1, &t, &last);
    for (at = begin; t <= last; t++) {
        int64_t to = t < last ? m->flat.tensor[t].offset : begin + n;
        if (to > at && !OP(m->dev, err, mem_fill, .y = mem + (size_t)(at - begin) * e, .size_bytes = (size_t)(to - at) * e))
            return false;
        at = t < last ? to + m->flat.tensor[t].n_elem : to;
    }
    return true;
}

/* Elements of the longest piece. */
static int64_t longest_n(const struct model *m)
{
    int64_t most = 0, first;
    for (int p = 0; p < model_n_piece(m); p++)
        most = MAX(most, model_piece(m, p, &first));
    return most;
}

static size_t source_held(const struct model *m)
{
    return m->source->mem ? (size_t)longest_n(m) * dtype_size(m->dtype) : 0;
}

/* In a team's slices nothing of it is held twice. */
static size_t uncut_held(const struct model *m)
{
    return source_held(m) + model_held_bytes(team_slice(m, 0));
}

static bool source_piece(struct model *m, int p, struct error *err)
{
    struct source *s = m->source;
    if (s->piece == p)
        return true;
    s->piece = -1;
    if ((!s->mem && !(s->mem = mem_new(m->dev, (size_t)longest_n(m) * dtype_size(m->dtype), "a piece of the weights", err)))
        || !gaps_clear(m, p, s->mem, err) || !s->bring(s->ctx, m, p, p + 1, s->mem, err))
        return false;
    s->piece = p;
    return true;
}

static const void *source_at(const struct model *m, int64_t at)
{
    return piece_at(m, m->source->piece, m->source->mem, at);
}

/* ---- what a model takes */
bool source_take(struct model *m, bool shared, struct error *err)
{
    if (!weights_room(m, shared, err))
        return false;
    if (!m->source)
        return true;
    struct choose_ahead *ahead = choose_ahead_begin(m);
    bool ok = m->source->bring(m->source->ctx, m, 0, model_n_piece(m), m->weights, err);
    choose_ahead_end(ahead);
    source_free(m);
    return ok && model_handles_new(m, err);
}

static bool whole_take(struct model *m, struct error *err)
{
    return source_take(m, false, err);
}

static bool source_bring(const struct model *m, void *to, struct error *err)
{
    return m->source->bring(m->source->ctx, m, 0, model_n_piece(m), to, err);
}

static struct model *source_pass(struct model *m, struct error *err)
{
    struct model *s = model_shape_like(m, err);
    if (s) {
        s->source = m->source;
        m->source = NULL;
        weights_form_set(s);
        weights_form_set(m);
    }
    return s;
}

const struct weights_form weights_elsewhere = { WEIGHTS_AS_WHOLE,    .plain = true,       .bind = source_piece,    .at = source_at,
                                                .take = whole_take,  .share = none_share, .changed = weights_stay, .bring = source_bring,
                                                .pass = source_pass, .held = source_held };

static bool slices_take(struct model *m, struct error *err)
{
    bool ok = team_room(m, err) && team_fill(m, m, err) && device_sync(m->dev, err);
    source_free(m);
    return ok;
}

const struct weights_form weights_uncut = { WEIGHTS_AS_WHOLE,  .sliced = true,      .bind = source_piece,
                                            .at = source_at,   .take = slices_take, .changed = team_changed,
                                            .give = team_take, .fill = team_fill,   .held = uncut_held };

struct model *model_source_pass(struct model *m, struct error *err)
{
    BUG_IF(!m->form->pass, "the whole of weights in shards or slices, of an adapter or of a view");
    return m->form->pass(m, err);
}

struct model *model_taken(struct model *m, struct error *err)
{
    if (m && model_weights_take(m, err))
        return m;
    model_free(m);
    return NULL;
}

/* ---- another model */
static bool like_bring(void *ctx, const struct model *m, int p, int end, char *to, struct error *err)
{
    const struct model *of = ctx;
    int64_t first, n = 0, unused;
    size_t e = dtype_size(m->dtype);
    (void)model_piece(m, p, &first);
    for (; p < end; p++)
        n += model_piece(m, p, &unused);
    return mem_copy(m->dev, to, of->weights + (size_t)first * e, (size_t)n * e, COPY_D2D, err);
}

struct model *model_like_open(const struct model *of, struct error *err)
{
    BUG_IF(!of->weights, "the whole of weights in shards or slices, or elsewhere");
    struct model *m = model_shape_like(of, err);
    if (m && source_set(m, &(struct source){ .bring = like_bring, .ctx = (void *)of }, err))
        return m;
    model_free(m);
    return NULL;
}
