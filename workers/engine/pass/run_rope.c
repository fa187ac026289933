/* run_rope.c - the tables of cos and sin of a run, and which of them a layer takes */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include "workers/engine/model/model_impl.h"
#include "workers/engine/pass/run_impl.h"

struct rotation rotation_of(const struct model_run *r, int64_t l, const int32_t *pos)
{
    if (!config_rotates(&r->m->c, l))
        return (struct rotation){ r->cos_still, r->sin_still, r->pos_still, 1 };
    if (r->m->c.has_rope_local && config_slides(&r->m->c, l))
        return (struct rotation){ r->cos_local, r->sin_local, pos, r->lim.max_seq_tok };
    return (struct rotation){ r->cos, r->sin, pos, r->lim.max_seq_tok };
}

/* What cos and sin are multiplied by, on each side of q k, when scores are not divided by the root of d_head: attention does that. */
static double score_scale(const struct model_config *c)
{
    double root = sqrt((double)c->d_head);
    if (c->query_scalar > 0)
        return c->query_scalar == c->d_head ? 1 : sqrt(root / sqrt((double)c->query_scalar));
    return c->has_multipliers ? sqrt(c->multiplier.attention * root) : 1;
}

/* cos and sin as transformers computes them: frequency, angle and result each rounded to fp32. */
static bool rope_table(struct model_run *r, const struct rope *rope, float *cos_at, float *sin_at, struct error *err)
{
    bool ok = false;
    const struct model_config *c = &r->m->c;
    int64_t rot = rope_dims(rope, c->d_head), half = rot / 2, n = r->lim.max_seq_tok * half;
    double *freq = malloc((size_t)half * sizeof *freq);
    float *t = malloc((size_t)n * 2 * sizeof *t);
    if (!freq || !t) {
        error_set(err, ERR_NO_MEMORY, "no memory for RoPE tables of %" PRId64 " positions", r->lim.max_seq_tok);
        goto out;
    }
    double scale = rope_inv_freq(rope, rot, freq) * score_scale(c);
    for (int64_t p = 0; p < r->lim.max_seq_tok; p++)
        for (int64_t i = 0; i < half; i++) {
            float angle = (float)p * (float)freq[i];
            t[p * half + i] = (float)(cos((double)angle) * scale);
            t[n + p * half + i] = (float)(sin((double)angle) * scale);
        }
    TRY(mem_copy(r->m->dev, cos_at, t, (size_t)n * 4, COPY_H2D, err));
    TRY(mem_copy(r->m->dev, sin_at, t + n, (size_t)n * 4, COPY_H2D, err));
    ok = true;
out:
    free(freq);
    free(t);
    return ok;
}

bool rope_tables(struct model_run *r, struct error *err)
{
    bool ok = false;
    const struct model_config *c = &r->m->c;
    int64_t half = rope_dims(&c->rope, c->d_head) / 2;
    float still[ROPE_PAIRS_MAX * 4];
    BUG_IF(half > (int64_t)ARRAY_SIZE(still), "heads of %" PRId64, c->d_head);
    for (int64_t i = 0; i < half; i++)
        still[i] = (float)score_scale(c);
    TRY(rope_table(r, &c->rope, r->cos, r->sin, err));
    TRY(!c->has_rope_local || rope_table(r, &c->rope_local, r->cos_local, r->sin_local, err));
    TRY(mem_copy(r->m->dev, r->cos_still, still, (size_t)half * 4, COPY_H2D, err));
    TRY(OP(r->m->dev, err, mem_fill, .y = r->sin_still, .size_bytes = (size_t)half * 4));
    TRY(OP(r->m->dev, err, mem_fill, .y = r->pos_still, .size_bytes = (size_t)r->lim.max_tok * 4));
    ok = true;
out:
    return ok;
}
