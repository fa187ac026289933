#include "workers/engine/plan/step_probe.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "workers/engine/model/lora.h"
#include "workers/engine/model/model.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/pass/pass.h"

#define DECODE_STEPS 8       // timed ones of a round
#define FIRST_STEPS 2        // of the first round, which says whether there is time for others
#define ROUNDS_MAX 8         // the fastest of the timed ones counts: what is slower was disturbed
#define PASS_TOK 32          // of the first pass, which says how many the timed ones can have
#define PASS_SHARE 0.25      // of the time for a model that one pass may take
#define PROMPT_TOK_CPU 64    // on a processor attention is a small share, and long prompts take long,
#define ROWS_CPU 16          // and what takes the time are products, whose time grows with the rows

static double seconds_since(int64_t start_ns)
{
    return (double)(clock_ns() - start_ns) * 1e-9;
}

/* The rounds so far, the fastest first. */
struct timing {
    double s[ROUNDS_MAX];
    int n;
};

static void timing_add(struct timing *t, double s)
{
    int at = t->n++;
    for (; at > 0 && t->s[at - 1] > s; at--)
        t->s[at] = t->s[at - 1];
    t->s[at] = s;
}

/* What of the time is left is enough for one more round like the last one. */
static bool has_time(int64_t start_ns, double limit_s, double last_s)
{
    return seconds_since(start_ns) + last_s <= limit_s;
}

static void spread_note(struct step_cost *cost, const struct timing *t)
{
    if (t->n > 1 && t->s[0] > 0)
        cost->spread = MAX(cost->spread, t->s[t->n / 2] / t->s[0] - 1);
}

/* Generate n_step tokens for n_seq samples; *decode_s: of one step, *prefill_s: of a prompt's token. */
static bool round_run(struct generator *g, const struct step_load *load, int64_t n_seq, int64_t n_prompt, int n_step, double *decode_s,
                      double *prefill_s, struct error *err)
{
    struct generator_stats before, after;
    int32_t *prompt = malloc((size_t)n_prompt * sizeof *prompt);
    uint64_t *seed = calloc((size_t)load->group, sizeof *seed);
    bool ok = false;
    if (!prompt || !seed) {
        error_set(err, ERR_NO_MEMORY, "no memory for a prompt");
        goto out;
    }
    generator_stats(g, &before);
    for (int64_t i = 0; i < n_seq; i += load->group) {
        struct generator_item item = { .item = i,
                                       .prompt = prompt,
                                       .n_prompt = n_prompt,
                                       .n_sample = (int32_t)MIN(load->group, n_seq - i),
                                       .seed = seed,
                                       .sampling = SAMPLING_DEFAULT };
        item.sampling.max_new_tok = n_step + 1;    // the first token comes with the prompt
        for (int64_t k = 0; k < n_prompt; k++)
            prompt[k] = (int32_t)((i * 31 + k * 7) % 97);
        TRY(generator_submit(g, &item, err));
    }
    while (!generator_idle(g))
        TRY(generator_step(g, err));
    generator_stats(g, &after);
    for (struct group *group; (group = generator_poll(g));)
        group_free(group);
    *decode_s = (after.decode_s - before.decode_s) / n_step;
    *prefill_s = (after.prefill_s - before.prefill_s) / (double)((n_seq + load->group - 1) / load->group * n_prompt);
    ok = true;
out:
    free(prompt);
    free(seed);
    return ok;
}

static bool sampling_probe(struct model *m, const struct step_load *load, double limit_s, struct step_cost *cost, struct error *err)
{
    bool cpu = model_device(m)->kind == DEVICE_CPU;
    int64_t longest = config_longest(model_config(m)) - DECODE_STEPS - 1, mean = load->n_prompt_tok + load->n_new_tok / 2;
    int64_t n_prompt = MAX(MIN(cpu ? MIN(mean, PROMPT_TOK_CPU) : mean, longest), 1), start_ns = clock_ns();
    int64_t n_seq = cpu ? MIN(load->n_seq, (int64_t)ROWS_CPU) : load->n_seq;
    struct generator_config config = { .model = m, .max_seq = n_seq, .max_item = n_seq, .max_seq_tok = n_prompt + DECODE_STEPS + 1 };
    struct generator *g = generator_new(&config, err);
    bool ok = g != NULL;
    struct timing decode = { 0 }, prefill = { 0 };
    int n_warm = cpu ? 0 : 2;    // in which a GPU's graphs are recorded
    double last_s = 0;
    for (int i = -n_warm; ok && i < ROUNDS_MAX && (i <= 0 || has_time(start_ns, limit_s, last_s)); i++) {
        double decode_s = 0, prefill_s = 0;
        int64_t round_ns = clock_ns();
        ok = round_run(g, load, n_seq, n_prompt, cpu && i == 0 ? FIRST_STEPS : DECODE_STEPS, &decode_s, &prefill_s, err);
        last_s = seconds_since(round_ns) * (cpu && i == 0 ? (double)DECODE_STEPS / FIRST_STEPS : 1);
        if (cpu && i == 1)    // the first one also touched the memory for the first time
            decode = prefill = (struct timing){ 0 };
        if (ok && i >= 0) {
            timing_add(&decode, decode_s);
            timing_add(&prefill, prefill_s);
        }
    }
    cost->decode_s = decode.s[0] * (double)load->n_seq / (double)n_seq;
    cost->prefill_s = prefill.s[0];
    spread_note(cost, &decode);
    generator_free(g);
    return ok;
}

struct pass {
    struct model_run *run;
    struct model *m;
    int64_t n_tok, seq_tok;
    int32_t *token, *cu, *target;
    float *temperature, *weight;    // temperature: 1 everywhere, weight: also the advantage and the coefficient
    float *logp, *grad;             // grad (device; model_n_flat)
};

static void pass_release(struct pass *p)
{
    struct device *dev = model_device(p->m);
    model_run_free(p->run);
    mem_free(dev, p->grad);
    free(p->token);
    free(p->cu);
    free(p->target);
    free(p->temperature);
    free(p->weight);
    free(p->logp);
}

static bool pass_init(struct pass *p, const struct step_load *load, int64_t n_tok, struct error *err)
{
    size_t n = (size_t)n_tok;
    p->n_tok = n_tok;
    p->seq_tok = MIN(n_tok, MIN(load->n_prompt_tok + load->n_new_tok, config_longest(model_config(p->m))));
    struct run_limits limits = { .max_tok = n_tok,
                                 .max_seq = (n_tok + p->seq_tok - 1) / p->seq_tok,
                                 .max_seq_tok = p->seq_tok,
                                 .train = true,
                                 .recompute_block = load->recompute_block };
    p->token = malloc(n * 4);
    p->target = malloc(n * 4);
    p->cu = malloc((size_t)(limits.max_seq + 1) * 4);
    p->temperature = malloc(n * 4);
    p->weight = malloc(n * 4);
    p->logp = calloc(n, 4);
    if (!p->token || !p->target || !p->cu || !p->temperature || !p->weight || !p->logp)
        return error_set(err, ERR_NO_MEMORY, "no memory for a pass of %" PRId64 " tokens", n_tok);
    for (int64_t i = 0; i < n_tok; i++) {
        p->token[i] = (int32_t)(i % 97);
        p->target[i] = (i + 1) % p->seq_tok && i + 1 < n_tok ? (int32_t)((i + 1) % 97) : -1;
        p->temperature[i] = 1;
        p->weight[i] = 1e-3F;
    }
    for (int64_t s = 0; s <= limits.max_seq; s++)
        p->cu[s] = (int32_t)MIN(s * p->seq_tok, n_tok);
    size_t bytes = (size_t)model_n_flat(p->m) * sizeof(float);
    return (p->run = model_run_new(p->m, &limits, err)) && (p->grad = mem_new(model_device(p->m), bytes, "the probe's gradient", err))
           && OP(model_device(p->m), err, mem_fill, .y = p->grad, .size_bytes = bytes, .byte = 0);
}

static bool pass_run(struct pass *p, double *took_s, struct error *err)
{
    struct device *dev = model_device(p->m);
    struct model_batch batch = { .n_seq = (p->n_tok + p->seq_tok - 1) / p->seq_tok, .n_tok = p->n_tok, .token = p->token, .cu_tok = p->cu };
    struct token_loss loss = {
        .target = p->target, .temperature = p->temperature, .coef = p->weight, .weight = p->weight, .logp = p->logp
    };
    struct model_grad grad = { .flat = p->grad };
    int64_t start_ns = clock_ns();
    if (!model_forward_train(p->run, &batch, err) || !model_backward(p->run, &loss, &grad, err) || !device_sync(dev, err))
        return false;
    *took_s = seconds_since(start_ns);
    return true;
}

/* Time passes of n_tok tokens, forward and backward. */
static bool pass_time(struct model *m, const struct step_load *load, int64_t n_tok, double limit_s, struct timing *t, struct error *err)
{
    struct pass p = { .m = m };
    int64_t start_ns = clock_ns();
    bool ok = pass_init(&p, load, n_tok, err);
    double one_s = 0;
    *t = (struct timing){ 0 };
    for (int i = 0; ok && i < ROUNDS_MAX && (i == 0 || has_time(start_ns, limit_s, one_s)); i++) {
        ok = pass_run(&p, &one_s, err);
        if (i == 1)    // the first one also touched the memory for the first time
            *t = (struct timing){ 0 };
        if (ok)
            timing_add(t, one_s);
    }
    pass_release(&p);
    return ok;
}

static bool training_probe(struct model *m, const struct step_load *load, double limit_s, struct step_cost *cost, struct error *err)
{
    int64_t budget = load->token_budget, n = MIN(PASS_TOK, budget);
    struct timing t;
    if (!pass_time(m, load, n, limit_s * PASS_SHARE, &t, err))
        return false;
    int64_t fits = (int64_t)MIN(limit_s * PASS_SHARE / MAX(t.s[0] / (double)n, 1e-9), (double)budget);
    if (fits > n && !pass_time(m, load, n = fits, limit_s, &t, err))
        return false;
    cost->train_s = t.s[0] / (double)n;
    spread_note(cost, &t);
    return true;
}

static bool model_probe(const struct model_config *c, struct device *dev, enum dtype dtype, const struct step_load *load, double limit_s,
                        struct step_cost *cost, struct error *err)
{
    struct model *m = model_new_empty(c, dev, dtype, err);
    *cost = (struct step_cost){ 0 };
    if (m)
        model_length_set(m, config_longest(c));    // which frequencies does not matter here
    bool ok = m && (!load->lora || model_lora_new(m, load->lora, 1, true, err)) && sampling_probe(m, load, limit_s / 2, cost, err)
              && training_probe(m, load, limit_s / 2, cost, err);
    model_free(m);
    return ok;
}

/* What all layers take: that of two layers, and of the others the difference between two and one. On a busy machine the difference of
 * two times is mostly noise, so it is kept near what the weights say: weights: those of the model over those of two layers. */
static double all_layers(double one, double two, int64_t n_layer, double weights)
{
    double by_weights = two * weights;
    return MIN(MAX(two + (two - one) * (double)(n_layer - 2), by_weights / 2), 2 * by_weights);
}

bool step_probe(struct step_cost *out, const struct model_config *c, struct device *dev, enum dtype dtype, const struct step_load *load,
                double limit_s, struct error *err)
{
    struct model_config small = *c;
    struct step_cost one, two;
    bool cpu = dev->kind == DEVICE_CPU;
    small.n_layer = 2;
    if (config_has_states(c)) {    // one layer of each kind, since neither may be all that there is
        memset(small.delta.layers, 0, sizeof small.delta.layers);
        small.delta.layers[0] = 1;
    }
    if (!model_probe(&small, dev, dtype, load, cpu ? limit_s : limit_s / 2, &two, err))
        return false;
    double weights = (double)config_n_active(c) / (double)config_n_active(&small);
    if (cpu) {    // time goes by products there, so the weights in them say more than a difference of two times
        *out = (struct step_cost){ two.decode_s * weights, two.prefill_s * weights, two.train_s * weights, two.spread };
        return true;
    }
    small.n_layer = 1;
    small.delta.layers[0] = 0;
    if (!model_probe(&small, dev, dtype, load, limit_s / 2, &one, err))
        return false;
    *out = (struct step_cost){ .decode_s = all_layers(one.decode_s, two.decode_s, c->n_layer, weights),
                               .prefill_s = all_layers(one.prefill_s, two.prefill_s, c->n_layer, weights),
                               .train_s = all_layers(one.train_s, two.train_s, c->n_layer, weights),
                               .spread = one.spread > 0 && two.spread > 0 ? MAX(one.spread, two.spread) : 0 };
    return true;
}
