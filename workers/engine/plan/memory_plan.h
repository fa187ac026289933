/* memory_plan.h - how a worker's device memory is divided, decided before it is allocated
 *
 * First come weights as they will be kept (perhaps loaded already, and in another way), gradient, the sampler's scratch, optimizer state. Then comes one
 * region that alternates between the pool of keys and values during sampling and activations during training; or, when sampling and
 * training overlap, one region for each. Where there is room, training keeps more, so that less is computed twice. With offload, the part
 * of the optimizer's state that does not fit goes to host memory; of a trainer on several devices each one's own part (memory_plan_devices). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "protocol/base/error.h"
#include "workers/engine/trainer/trainer.h"    // ZERO_MAX

/* Scratch of operations grows on first use: partial sums of split products, attention's backward pass; 0.6 GB on an H200 for
 * 16k tokens of 1.5B. */
#define RESERVE_CUDA ((size_t)2 << 30)

struct model;
struct trainer_settings;
struct generator_config;
struct memory_plan {
    size_t weights;                // all copies, as they are kept
    size_t gradient, state;        // state: masters and moments on the device, and the stage
    size_t host[SUM_PARTS_MAX];    // masters and moments in pinned host memory, of each of the trainer's devices
    size_t sampler;                // scratch and logits, of all generators
    size_t activation, kv;         // what training and sampling work in; kv: the pools of all generators, of one size
    size_t region;                 // the larger of both when they take turns, else their sum
    size_t reserve;                // for scratch of operations, graphs and libraries; not part of the total
    size_t total;                  // weights, gradient, state, sampler and region
    bool turns;
    int zero_stage;    // of the trainer's settings
};
/* The weights of a worker. */
struct plan_weights {
    size_t loaded;     // bytes that the device has given for weights already
    size_t besides;    // of copies that stay beside the model that is trained, or all where none is: reference, sampler, publication
    bool reference;    // besides has one of what is trained; the further stages of a pipeline have theirs
    bool whole, whole_shards;    // a whole copy stays beside slices or stages that are trained; and beside shards (run_needs_whole)
    int n_further;               // generators beside the one, each with weights of its own, which besides has (run_lanes)
};
/* Of all of the trainer's devices. */
size_t memory_plan_host(const struct memory_plan *p);
/* Plan for m's shape on its device, of which `have` bytes can be used, those of w.loaded among them. False: they are too few. Sets
 * s->state_bytes[0] and keep_more; s NULL when it does not train here, g->model NULL when nobody samples. */
MUST_USE bool memory_plan_in(struct memory_plan *p, size_t have, const struct model *m, const struct plan_weights *w,
                             struct trainer_settings *s, bool turns, const struct generator_config *g);
/* A device that has too little. */
struct plan_short {
    int device;     // the trainer's, in the order of team_slice
    size_t need;    // bytes, with the reserve
};
/* And of the trainer's further devices, when p is the first one's plan and device q can use have[q] bytes, those of weights that are there
 * among them: each has its part of what is trained, of a reference and, as far as the sampler's devices go, of what samples. Sets
 * s->state_bytes[q] and p->host[q], and a smaller p->kv where one of them has less room for it. False: see out. Those of CPUs share a
 * machine's memory, and always have room. */
MUST_USE bool memory_plan_devices(struct memory_plan *p, const size_t have[], const struct model *m, const struct plan_weights *w,
                                  struct trainer_settings *s, const struct generator_config *g, struct plan_short *out);
/* The zero_stage that auto takes for these settings of several ranks: the lowest from 1 on that has room without host memory, or the
 * one that needs least: beside a whole copy, shards of the weights are more, not less. The trainer's further devices count as if each
 * had as much memory as this one. */
int memory_plan_zero(size_t have, const struct model *m, const struct plan_weights *w, const struct trainer_settings *s, bool turns,
                     const struct generator_config *g);
/* What does not fit: which settings nearest to those would, as a clause. */
void memory_plan_nearest(size_t have, const struct model *m, const struct plan_weights *w, const struct trainer_settings *s, bool turns,
                         const struct generator_config *g, char *out, size_t size);
/* Plan for m's shape; s: of the trainer, NULL when it does not train here. Sets s->state_bytes[0] and keep_more. ERR_NO_MEMORY names every
 * part when they do not fit, and what would. */
MUST_USE bool memory_plan_make(struct memory_plan *p, const struct model *m, const struct plan_weights *w, struct trainer_settings *s,
                               bool turns, const struct generator_config *g, struct error *err);
/* The parts in one line of text. */
void memory_plan_text(const struct memory_plan *p, char *out, size_t size);
