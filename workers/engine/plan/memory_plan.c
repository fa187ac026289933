#include "workers/engine/plan/memory_plan.h"
#include <stdio.h>
#include "kernels/ops.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/model/model.h"
#include "workers/engine/sampler/generator.h"

/* Scratch of operations grows on first use: partial sums of split products, attention's backward pass; 0.6 GB on an H200 for
 * 16k tokens of 1.5B. */
#define RESERVE_CUDA ((size_t)2 << 30)

/* What is left of `have` after `take`; 0 when it is too little. */
static size_t left(size_t have, size_t take)
{
    return have > take ? have - take : 0;
}

void memory_plan_text(const struct memory_plan *p, char *out, size_t size)
{
    snprintf(out, size,
             "zero_stage=%d weights_gb=%.3f gradient_gb=%.3f optimizer_gb=%.3f optimizer_host_gb=%.3f sampler_gb=%.3f activations_gb=%.3f "
             "keys_values_gb=%.3f by_turns=%s total_gb=%.3f",
             p->zero_stage, (double)p->weights * 1e-9, (double)p->gradient * 1e-9, (double)p->state * 1e-9, (double)p->host * 1e-9,
             (double)p->sampler * 1e-9, (double)p->activation * 1e-9, (double)p->kv * 1e-9, p->turns ? "yes" : "no",
             (double)p->total * 1e-9);
}

bool memory_plan_make(struct memory_plan *p, const struct model *m, const struct plan_weights *w, struct trainer_settings *s, bool turns,
                      const struct generator_config *g, struct error *err)
{
    struct device *dev = model_device(m);
    struct trainer_memory t = { 0 };
    size_t free_bytes, total_bytes;
    bool cuda = dev->kind == DEVICE_CUDA;
    if (!mem_info(dev, &free_bytes, &total_bytes, err))
        return false;
    *p = (struct memory_plan){
        .weights = w->besides, .sampler = generator_bytes(g), .reserve = cuda ? RESERVE_CUDA : 0, .turns = turns && s
    };
    p->zero_stage = s && s->n_rank > 1 ? s->zero_stage : 0;
    size_t kv_full = generator_kv_bytes(m, g->max_seq, g->max_seq_tok), page = kv_pool_page_bytes(m);
    if (s) {
        s->state_bytes = 0;
        trainer_memory(m, s, &t);    // with offload: only the stage is on the device
        p->weights += t.weight + (trainer_keeps_shards(m, s) && w->whole ? model_weight_bytes(m) : 0);
    }
    size_t room = left(free_bytes + w->loaded, p->weights + p->reserve + p->sampler + t.gradient + t.state);
    // a GPU is ours alone, of a machine's memory half is enough
    size_t kv_room = !cuda ? free_bytes / 2 : p->turns ? room : left(room, t.activation);
    p->activation = t.activation;
    p->kv = MIN(kv_full, kv_room);
    if (p->turns)    // what activations need anyway
        p->kv = MIN(kv_full, MAX(p->kv, p->activation));
    p->region = p->turns ? MAX(p->activation, p->kv) : p->activation + p->kv;
    if (s && s->offload) {
        s->state_bytes = t.state + left(room, p->region);
        trainer_memory(m, s, &t);
    }
    p->gradient = t.gradient;
    p->state = t.state;
    p->host = t.host;
    p->total = p->weights + p->gradient + p->state + p->sampler + p->region;
    if (p->kv >= page && (!cuda || p->region <= room))
        return true;
    char text[512];
    memory_plan_text(p, text, sizeof text);
    return error_set(err, ERR_NO_MEMORY,
                     "%s has %.3f GB for a run, too little for: %s; a smaller token_budget, recompute_full "
                     "or offload_optimizer need less",
                     dev->name, (double)(free_bytes + w->loaded) * 1e-9, text);
}
