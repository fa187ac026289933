#include "workers/engine/trainer/frozen.h"
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/trainer/trainer_impl.h"

bool layers_parse(const char *text, int64_t n, bool *in, struct error *err)
{
    memset(in, !text[0], (size_t)n * sizeof *in);
    for (const char *at = text; *at;) {
        char *end;
        bool digits = isdigit((unsigned char)*at);
        long long first = strtoll(at, &end, 10), last = first;
        if (digits && *end == '-') {
            at = end + 1;
            digits = isdigit((unsigned char)*at);
            last = strtoll(at, &end, 10);
        }
        if (!digits || (*end && (*end != ',' || !end[1])) || last < first)
            return error_set(err, ERR_USAGE, "'train_layer_indices' is '%s'; it is a list of layers and ranges: 0-3,28", text);
        if (last >= n)
            return error_set(err, ERR_USAGE, "'train_layer_indices' is '%s', and the model's layers are 0 to %" PRId64, text, n - 1);
        for (; first <= last; first++)
            in[first] = true;
        at = end + (*end == ',');
    }
    return true;
}

/* The layer that a tensor of this name belongs to; -1: to none. */
static int64_t layer_of(const char *name)
{
    const char *at = strstr(name, "layers.");
    return at ? strtoll(at + strlen("layers."), NULL, 10) : -1;
}

bool frozen_make(struct trainer *t, struct error *err)
{
    int64_t n_layer = model_config(t->m)->n_layer, n = model_n_tensor(t->m);
    if (!t->set.layers[0])
        return true;
    bool *in = calloc((size_t)n_layer, sizeof *in);
    t->frozen = calloc((size_t)n, sizeof *t->frozen);
    bool ok = in && t->frozen ? layers_parse(t->set.layers, n_layer, in, err)
                              : error_set(err, ERR_NO_MEMORY, "no memory for a table of %" PRId64 " tensors", n);
    for (int64_t i = 0; i < n && ok; i++) {
        int64_t layer = layer_of(model_tensor(t->m, i)->name);
        t->frozen[i] = layer < 0 || layer >= n_layer || !in[layer];
    }
    free(in);
    return ok;
}

bool trainer_freeze(struct trainer *t, struct error *err)
{
    const struct trainer_parts *p = &t->p;
    bool shards = t->set.n_rank > 1;
    for (int64_t i = 0; t->frozen && i < model_n_tensor(t->m); i++) {
        const struct tensor *x = model_tensor(t->m, i);
        for (int q = 0; q < p->n_piece && t->frozen[i]; q++) {
            int64_t first = p->piece_at[q] + p->own_first[q], from = MAX(x->offset, first),
                    to = MIN(x->offset + x->n_elem, first + p->own_n[q]);
            float *at = shards ? p->sum + p->own_at[q] + (from - first) : t->grad + from;
            if (from < to && !OP(t->dev, err, mem_fill, .y = at, .size_bytes = (size_t)(to - from) * 4))
                return false;
        }
    }
    return true;
}
