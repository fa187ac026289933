/* memory_plan.h - how a worker's device memory is divided, decided before it is allocated
 *
 * First come the weights of holdings.h's table, the gradient, the sampler's scratch and the optimizer's state. The weights may be loaded
 * already, and in another way. Then comes one region that alternates between the pool of keys and values during sampling and activations
 * during training. When sampling and training overlap, each has a region. Where there is room, training keeps more, and computes less twice.
 * With offload, the part of the optimizer's state that does not fit goes to host memory. Each of a trainer's devices has its own such part
 * (memory_plan_devices). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "protocol/base/error.h"
#include "workers/engine/plan/holdings.h"
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
    size_t sampler;                // scratch and logits, of all generators,
    size_t states;                 // and the states of sequences, which are part of it
    size_t activation, kv;         // what training and sampling work in; kv: the pools of all generators, of one size
    size_t region;                 // the larger of both when they take turns, else their sum
    size_t reserve;                // for scratch of operations, graphs and libraries; not part of the total
    size_t total;                  // weights, gradient, state, sampler and region
    bool turns;
    int zero_stage;    // of the trainer's settings
};
/* What is planned for. */
struct plan_ask {
    size_t have;                         // bytes of the device that can be used, those of `loaded` among them
    size_t loaded;                       // bytes that the device has given for weights already
    const struct model *model;           // the shape, on its device
    struct holder holder;                // whose trainers are as the settings of each function say
    const struct generator_config *g;    // of its sampler; model NULL: nobody samples
};
/* The weights of a part whose trainer has these settings, with their bytes; s as below. */
void memory_plan_holdings(struct holdings *out, const struct plan_ask *a, const struct trainer_settings *s);
/* Bytes of host memory that all of the trainer's devices need together. */
size_t memory_plan_host(const struct memory_plan *p);
/* Plan the model's device. False: it has too few bytes. Sets s->state_bytes[0] and keep_more; s: of the trainer, NULL when it does not train
 * here. */
MUST_USE bool memory_plan_in(struct memory_plan *p, const struct plan_ask *a, struct trainer_settings *s);
/* A device that has too little. */
struct plan_short {
    int device;     // the trainer's, in the order of team_slice
    size_t need;    // bytes, with the reserve
};
/* Plan the trainer's further devices, when p is the first one's plan and device q can use have[q] bytes, those of weights that are there
 * among them. Sets s->state_bytes[q] and p->host[q], and a smaller p->kv where one of them has less room for it. False: see out. The devices
 * of CPUs share a machine's memory, and always have room. */
MUST_USE bool memory_plan_devices(struct memory_plan *p, const size_t have[], const struct plan_ask *a, struct trainer_settings *s,
                                  struct plan_short *out);
/* The zero_stage that auto takes for these settings of several ranks: the lowest from 1 on that has room without host memory, or the
 * one that needs least: beside a whole copy, shards of the weights are more, not less. The trainer's further devices count as if each
 * had as much memory as this one. */
int memory_plan_zero(const struct plan_ask *a, const struct trainer_settings *s);
/* What does not fit: which settings nearest to those would, as a clause. */
void memory_plan_nearest(const struct plan_ask *a, const struct trainer_settings *s, char *out, size_t size);
/* memory_plan_in with what the device has free and has given already in place of a->have. ERR_NO_MEMORY names every part when they do not
 * fit, and what would. */
MUST_USE bool memory_plan_make(struct memory_plan *p, const struct plan_ask *a, struct trainer_settings *s, struct error *err);
/* The parts in one line of text. */
void memory_plan_text(const struct memory_plan *p, char *out, size_t size);
