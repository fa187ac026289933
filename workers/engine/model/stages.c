#include "workers/engine/model/stages.h"
#include <inttypes.h>
#include "workers/engine/model/model_impl.h"
#include "workers/engine/model/pipeline.h"

bool stages_check(const struct model_config *c, int n, struct error *err)
{
    if (n > 1 && !config_stays_whole(c, "cut into stages (pipeline_parallel_size)", err))
        return false;
    int64_t most = MIN(c->n_layer, (int64_t)PIPELINE_STAGES_MAX);
    return (n >= 1 && n <= most)
           || error_set(err, ERR_UNSUPPORTED, "%" PRId64 " layers cannot be cut into %d stages%s; at most %" PRId64 " %s possible",
                        c->n_layer, n, n > c->n_layer ? " of at least one layer" : "", most, most == 1 ? "is" : "are");
}

/* Weights of a layer's matrices, which is what its products cost. */
static double layer_cost(const struct model_config *c)
{
    double q = (double)(c->n_head * c->d_head), kv = (double)(c->n_kv_head * c->d_head);
    return (double)c->d_model * (2 * q + 2 * kv + 3 * (double)c->d_ff);
}

/* Layers before stage q: each stage ends where its share of the whole is nearest, but leaves a layer for every one after it. */
static int64_t layers_before(const struct model_config *c, int n, int q)
{
    double head = (double)c->vocab * (double)c->d_model / layer_cost(c), share = ((double)c->n_layer + head) / n;
    int64_t at = (int64_t)((double)q * share + 0.5);
    return q == n ? c->n_layer : MIN(MAX(at, (int64_t)q), c->n_layer - (n - q));
}

void stage_layers(const struct model_config *c, int n, int q, int64_t *first, int64_t *end)
{
    *first = layers_before(c, n, q);
    *end = layers_before(c, n, q + 1);
}

int stage_of_embedding(const struct model_config *c, int n)
{
    return c->tied ? n - 1 : 0;
}

int model_late_piece(const struct model *m)
{
    return MAX(m->n_shared - 1, 0);
}
