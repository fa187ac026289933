#include "workers/engine/plan/memory_plan.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "kernels/ops.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/stages.h"
#include "workers/engine/model/team.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/pass/pass.h"

#define ATTEMPTS_MAX 24

/* What is left of `have` after `take`; 0 when it is too little. */
static size_t left(size_t have, size_t take)
{
    return have > take ? have - take : 0;
}

size_t memory_plan_host(const struct memory_plan *p)
{
    size_t sum = 0;
    for (int q = 0; q < SUM_PARTS_MAX; q++)
        sum += p->host[q];
    return sum;
}

void memory_plan_text(const struct memory_plan *p, char *out, size_t size)
{
    char states[64] = "";
    if (p->states)
        snprintf(states, sizeof states, "sequence_states_gb=%.3f ", (double)p->states * 1e-9);
    snprintf(
        out, size,
        "zero_stage=%d weights_gb=%.3f gradient_gb=%.3f optimizer_gb=%.3f optimizer_host_gb=%.3f sampler_gb=%.3f %sactivations_gb=%.3f "
        "keys_values_gb=%.3f by_turns=%s total_gb=%.3f",
        p->zero_stage, (double)p->weights * 1e-9, (double)p->gradient * 1e-9, (double)p->state * 1e-9, (double)memory_plan_host(p) * 1e-9,
        (double)p->sampler * 1e-9, states, (double)p->activation * 1e-9, (double)p->kv * 1e-9, p->turns ? "yes" : "no",
        (double)p->total * 1e-9);
}

/* Keep more of the activations where that takes no room from anything else: neither keys and values nor state on the device. Other devices
 * of a model that is cut may have less room than this one. */
static void keep_more(struct memory_plan *p, const struct model *m, struct trainer_settings *s, size_t room, size_t host)
{
    struct trainer_memory t;
    s->keep_more = !s->recompute_block && !trainer_is_cut(s);
    trainer_memory(m, s, &t);
    size_t region = p->turns ? MAX(t.activation, p->kv) : t.activation + p->kv;
    s->keep_more = s->keep_more && region + host <= room;
    if (s->keep_more) {
        p->activation = t.activation;
        p->region = region;
    }
}

void memory_plan_holdings(struct holdings *out, const struct plan_ask *a, const struct trainer_settings *s)
{
    struct holder h = s ? holder_with(&a->holder, s) : a->holder;
    holdings_of(out, &h);
    holdings_measure(out, a->model, s);
}

bool memory_plan_in(struct memory_plan *p, const struct plan_ask *a, struct trainer_settings *s)
{
    struct trainer_memory t = { 0 };
    struct holdings holdings;
    const struct model *m = a->model;
    const struct generator_config *g = a->g;
    bool cuda = model_device(m)->kind == DEVICE_CUDA, samples = g->model;
    size_t n_lane = samples ? (size_t)a->holder.n_lane : 0, have = a->have;
    memory_plan_holdings(&holdings, a, s);
    *p = (struct memory_plan){ .weights = holdings_bytes(&holdings, 0),
                               .sampler = samples ? n_lane * generator_bytes(g) : 0,
                               .states = samples ? n_lane * generator_state_bytes(g) : 0,
                               .reserve = cuda ? RESERVE_CUDA : 0,
                               .turns = !a->holder.ahead && samples && s && !trainer_is_cut(s) };
    p->zero_stage = s && s->n_rank > 1 ? s->zero_stage : 0;
    size_t kv_full = samples ? n_lane * generator_kv_bytes(g->model, g->max_seq, g->max_seq_tok) : 0,
           page = samples ? n_lane * kv_pool_page_bytes(g->model) : 0;
    if (s) {
        s->state_bytes[0] = 0;
        s->keep_more = false;
        trainer_memory(m, s, &t);    // with offload: only the stage is on the device
    }
    size_t room = left(have, p->weights + p->reserve + p->sampler + t.gradient + t.state);
    // a GPU is ours alone, of a machine's memory half is enough
    size_t kv_room = !cuda ? left(have, a->loaded) / 2 : p->turns ? room : left(room, t.activation);
    p->activation = t.activation;
    p->kv = MIN(kv_full, kv_room);
    if (p->turns)    // what activations need anyway
        p->kv = MIN(kv_full, MAX(p->kv, p->activation));
    p->region = p->turns ? MAX(p->activation, p->kv) : p->activation + p->kv;
    if (s && cuda)
        keep_more(p, m, s, room, t.host);
    if (s && s->offload) {
        s->state_bytes[0] = t.state + left(room, p->region);
        trainer_memory(m, s, &t);
    }
    p->gradient = t.gradient;
    p->state = t.state;
    p->host[0] = t.host;
    p->total = p->weights + p->gradient + p->state + p->sampler + p->region;
    return p->kv >= page && (!cuda || p->region <= room);
}

/* The sampler's devices have pools of keys and values of one size: a smaller one when one of them lacks so much, if a page is left. What it
 * leaves of the first device is for the optimizer's state. */
static void kv_lessen(struct memory_plan *p, size_t lacks, const struct model *m, struct trainer_settings *s,
                      const struct generator_config *g)
{
    struct trainer_memory t;
    if (lacks == 0 || p->kv < lacks + kv_pool_page_bytes(g->model))
        return;
    p->kv -= lacks;
    p->region -= lacks;    // nothing is by turns where the trainer has several devices
    s->state_bytes[0] += s->offload ? lacks : 0;
    trainer_memory(m, s, &t);
    p->total -= lacks + p->state - t.state;
    p->state = t.state;
    p->host[0] = t.host;
}

bool memory_plan_devices(struct memory_plan *p, const size_t have[], const struct plan_ask *a, struct trainer_settings *s,
                         struct plan_short *out)
{
    const struct model *m = a->model;
    const struct generator_config *g = a->g;
    struct holdings holdings;
    size_t need[SUM_PARTS_MAX], lacks = 0;    // without keys and values
    int n = model_device(m)->kind == DEVICE_CUDA ? trainer_devices(s) : 1, n_sampler = g->model ? a->holder.n_sampler : 1;
    memory_plan_holdings(&holdings, a, s);
    for (int q = 1; q < n; q++) {
        struct trainer_memory t;
        s->state_bytes[q] = 0;
        trainer_memory_of_device(m, s, q, &t);    // with offload: only the stage is on the device
        need[q] = holdings_bytes(&holdings, q) + (q < n_sampler ? p->sampler : 0) + t.gradient + t.state + t.activation + RESERVE_CUDA;
        lacks = q < n_sampler ? MAX(lacks, left(need[q] + p->kv, have[q])) : lacks;
    }
    kv_lessen(p, lacks, m, s, g);
    for (int q = 1; q < n; q++) {
        struct trainer_memory t;
        need[q] += q < n_sampler ? p->kv : 0;
        if (need[q] > have[q]) {
            *out = (struct plan_short){ .device = q, .need = need[q] };
            return false;
        }
        trainer_memory_of_device(m, s, q, &t);
        if (s->offload) {
            s->state_bytes[q] = t.state + have[q] - need[q];
            trainer_memory_of_device(m, s, q, &t);
        }
        p->host[q] = t.host;
    }
    return true;
}

/* Do the further devices have room if each can use as much as the first one? */
static bool devices_fit(struct memory_plan *p, const struct plan_ask *a, struct trainer_settings *s)
{
    size_t each[SUM_PARTS_MAX];
    struct plan_short ignored;
    for (int q = 0; q < SUM_PARTS_MAX; q++)
        each[q] = a->have;
    return memory_plan_devices(p, each, a, s, &ignored);
}

int memory_plan_zero(const struct plan_ask *a, const struct trainer_settings *s)
{
    struct trainer_settings one = *s;
    struct memory_plan p;
    size_t least = SIZE_MAX;
    int best = 1;
    one.offload = false;    // shards first: what is on the device needs no way over the bus
    for (one.zero_stage = 1; one.zero_stage <= ZERO_MAX; one.zero_stage++) {
        if (memory_plan_in(&p, a, &one) && devices_fit(&p, a, &one))
            return one.zero_stage;
        if (p.total < least)
            best = one.zero_stage;
        least = MIN(least, p.total);
    }
    return best;
}

/* A layout that is tried where the wanted one has no room. */
struct attempt {
    struct trainer_settings s;
    char text[128];
};

/* Add to the attempt's text, as a list. */
static void attempt_say(struct attempt *a, const char *fmt, int64_t n)
{
    size_t at = strlen(a->text);
    at += (size_t)snprintf(a->text + at, sizeof a->text - at, "%s", at ? " and " : "");
    snprintf(a->text + at, sizeof a->text - at, fmt, n);
}

static bool can_be_cut(const struct model *m, const struct trainer_settings *s)
{
    struct error ignored;
    int n_team = MAX(s->n_team, 1), n_stage = MAX(s->n_stage, 1);
    return n_team * n_stage <= TEAM_MAX && team_train_check(model_config(m), n_team, n_team > 1 ? MAX(n_team, 4) : 0, &ignored)
           && stages_check(model_config(m), n_stage, &ignored);
}

/* Try more devices for a trainer whose model is cut over several, as far as it can be cut. */
static int devices_make(struct attempt *out, const struct attempt *least, const struct trainer_settings *wanted, const struct model *m)
{
    int n = 0;
    for (int k = 0; k <= 1; k++)    // with the same micro-batches, else with the smallest
        for (int staged = 0; staged <= 1; staged++)
            for (int factor = 2; factor <= TEAM_MAX; factor *= 2) {
                struct attempt more = { .s = k ? least->s : *wanted };
                int *size = staged ? &more.s.n_stage : &more.s.n_team;
                if (*size <= 1)
                    continue;
                *size *= factor;
                if (!can_be_cut(m, &more.s))
                    continue;
                attempt_say(&more, staged ? "pipeline_parallel_size %" PRId64 : "tensor_parallel_size %" PRId64, *size);
                if (k && least->text[0]) {
                    size_t at = strlen(more.text);
                    snprintf(more.text + at, sizeof more.text - at, " and %s", least->text);
                }
                out[n++] = more;
            }
    return n;
}

/* Settings that need less, the nearest first: no gradient of groups, the gradient and weights in shards, block inputs only, smaller
 * micro-batches, state in host memory, more trainers. Each builds on those before it, but for host memory, which is for the whole state.
 * Returns how many. */
static int attempts_make(struct attempt out[ATTEMPTS_MAX], const struct trainer_settings *wanted, const struct model *m,
                         const struct generator_config *g)
{
    struct attempt a = { .s = *wanted };
    int n = 0;
    bool many = wanted->n_rank > 1;
    if (wanted->grad_group > 1) {
        a.s.grad_group = 1;
        attempt_say(&a, "grad_group %" PRId64, 1);
        out[n++] = a;
    }
    if (many && wanted->zero_stage < ZERO_MAX) {
        while (++a.s.zero_stage < ZERO_MAX) {
            out[n] = a;
            attempt_say(&out[n++], "zero_stage %" PRId64, a.s.zero_stage);
        }
        attempt_say(&a, "zero_stage %" PRId64, a.s.zero_stage);    // and what follows
        out[n++] = a;
    }
    if (!wanted->recompute_block) {
        a.s.recompute_block = true;
        attempt_say(&a, "recompute_full", 0);
        out[n++] = a;
    }
    while (a.s.token_budget_max / 2 >= g->max_seq_tok && n < ATTEMPTS_MAX - 7) {    // the longest sample must fit
        a.s.token_budget_max /= 2;
        out[n] = a;
        attempt_say(&out[n++], "a token_budget of %" PRId64, a.s.token_budget_max);
    }
    if (!wanted->offload && wanted->optimizer == OPTIMIZER_ADAMW) {
        out[n] = a;
        out[n].s.offload = true;
        attempt_say(&out[n++], "offload_optimizer", 0);
    }
    if (trainer_is_cut(wanted))
        return n + devices_make(out + n, &a, wanted, m);
    for (int least = 0; least <= 1; least++)    // with the same micro-batches, else with the smallest
        for (int ranks = MAX(2, 2 * wanted->n_rank); ranks <= 8; ranks *= 2) {
            struct attempt more = { .s = least ? a.s : *wanted };
            more.s.offload = false;
            more.s.n_rank = ranks;
            more.s.rank = 0;
            more.s.zero_stage = ZERO_MAX;
            attempt_say(&more, "num_trainers %" PRId64, ranks);
            attempt_say(&more, "zero_stage %" PRId64, ZERO_MAX);
            if (least && wanted->grad_group > 1)
                attempt_say(&more, "grad_group %" PRId64, 1);
            if (least && !wanted->recompute_block)
                attempt_say(&more, "recompute_full", 0);
            if (least && a.s.token_budget_max < wanted->token_budget_max)
                attempt_say(&more, "a token_budget of %" PRId64, a.s.token_budget_max);
            out[n++] = more;
        }
    return n;
}

void memory_plan_nearest(const struct plan_ask *a, const struct trainer_settings *s, char *out, size_t size)
{
    struct attempt all[ATTEMPTS_MAX];
    struct memory_plan p;
    int n = s ? attempts_make(all, s, a->model, a->g) : 0;
    snprintf(out, size, "%s", s ? "no layout of up to 8 such devices has room for it" : "fewer samples at a time need less");
    for (int i = 0; i < n; i++)
        if (memory_plan_in(&p, a, &all[i].s) && devices_fit(&p, a, &all[i].s)) {
            snprintf(out, size, "it would fit with %s", all[i].text);
            return;
        }
}

bool memory_plan_make(struct memory_plan *p, const struct plan_ask *ask, struct trainer_settings *s, struct error *err)
{
    struct device *dev = model_device(ask->model);
    struct plan_ask a = *ask;
    size_t free_bytes, total_bytes;
    char text[512], other[160];
    if (!mem_info(dev, &free_bytes, &total_bytes, err))
        return false;
    a.have = free_bytes + a.loaded;
    if (memory_plan_in(p, &a, s))
        return true;
    memory_plan_text(p, text, sizeof text);
    memory_plan_nearest(&a, s, other, sizeof other);
    return error_set(err, ERR_NO_MEMORY, "%s has %.3f GB for a run, too little for: %s; %s", dev->name, (double)a.have * 1e-9, text, other);
}
