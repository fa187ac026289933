/* How long a step takes, for --dry-run: from a probe of the first device. */
#include <stdio.h>
#include <string.h>
#include "console/train/train_parts.h"
#include "kernels/ops.h"
#include "workers/engine/model/config.h"
#include "workers/engine/model/lora.h"
#include "workers/engine/plan/run_room.h"
#include "workers/engine/plan/step_probe.h"

#define PROBE_S 3.0
#define SPREAD_LEAST 0.1           // rounds may agree by chance; extrapolating from two layers to all is not better than this
#define FORWARD_SHARE (1.0 / 3)    // of forward and backward, which have three times the products

struct step_estimate step_estimate_of(const struct run_config *c, const struct run_plan *p, const struct step_cost *cost,
                                      const struct step_lengths *l)
{
    struct step_estimate e = { 0 };
    struct step_lengths allowed = { .prompt = (double)c->max_prompt_tokens,
                                    .response = (double)c->max_new_tokens,
                                    .longest = (double)c->max_new_tokens };
    int64_t held = MIN(c->inference_microbatch_size, c->inference_batch_size);
    l = l ? l : &allowed;
    double waves = (double)((c->inference_batch_size + held - 1) / held), prompts = (double)c->inference_batch_size;
    double trained = (double)(c->train_batch_size * c->num_generations);
    double passes = (double)c->update_epochs + FORWARD_SHARE * (c->beta > 0 ? 1 : cost->teacher);    // the reference runs once a batch
    bool turns = strcmp(c->placement, "apart") != 0 && c->n_behind == 0;
    if (!run_config_posted(c) && !run_config_external(c))    // else others sample
        e.generate_s = (waves * l->longest * cost->decode_s + prompts * l->prompt * cost->prefill_s) / (double)p->k;
    e.train_s = passes * trained * (l->prompt + l->response) * cost->train_s;
    e.spread = cost->spread;
    e.step_s = turns ? e.generate_s + e.train_s : MAX(e.generate_s, e.train_s);
    return e;
}

bool train_estimate(const struct train *t, const struct step_lengths *l, struct step_estimate *e, struct error *err)
{
    const struct run_config *c = &t->config;
    struct model_config shape, teacher;
    struct step_cost cost;
    struct lora_config lora;
    char first[64];
    snprintf(first, sizeof first, "%.*s", (int)MIN(strcspn(c->devices, ","), sizeof first - 1), c->devices);
    struct device *dev = config_load(&shape, c->model, err) && run_adapter(c, &lora, err) ? device_new(first, (int)c->threads, err) : NULL;
    if (!dev)
        return false;
    int64_t held = MIN(c->inference_microbatch_size, c->inference_batch_size);
    struct step_load load = { .n_seq = held * c->num_generations,
                              .group = c->num_generations,
                              .n_prompt_tok = c->max_prompt_tokens,
                              .n_new_tok = c->max_new_tokens,
                              .token_budget = run_config_micro_tok(c),
                              .recompute_block = c->recompute_full,
                              .lora = lora.rank > 0 ? &lora : NULL };
    bool ok = step_probe(&cost, &shape, dev, run_dtype(c, dev->kind), &load, PROBE_S, err);
    device_free(dev);
    if (ok && c->teacher[0] && (ok = config_load(&teacher, c->teacher, err)))
        cost.teacher = (double)config_n_active(&teacher) / (double)config_n_active(&shape);
    if (ok)
        *e = step_estimate_of(c, &t->plan, &cost, l);
    return ok;
}

void train_estimate_print(const struct train *t)
{
    struct step_estimate e;
    struct error err;
    if (!train_estimate(t, NULL, &e, &err)) {
        printf("time:           not measured: %s\n", err.text);
        return;
    }
    char generating[48] = "";
    if (e.generate_s > 0)
        snprintf(generating, sizeof generating, "generating %.3g s, ", e.generate_s);
    static const struct {
        double s;
        const char *name;
    } units[] = { { 1, "seconds" }, { 60, "minutes" }, { 3600, "hours" } };
    double all_s = e.step_s * (double)run_steps(t);
    int unit = all_s < 90 ? 0 : all_s < 90 * 60 ? 1 : 2;
    printf("time:           at most about %.3g s a step (%straining %.3g s), %.3g %s in all: a probe of the first\n"
           "                device, as if every prompt and response were as long as allowed; ",
           e.step_s, generating, e.train_s, all_s / units[unit].s, units[unit].name);
    if (e.spread > 1)
        printf("a guess: the probe's\n                rounds differ more than twofold, so something else uses the device\n");
    else if (e.spread > 0)
        printf("uncertain by %.0f %%,\n                as the rounds of the probe were\n", 100 * MAX(e.spread, SPREAD_LEAST));
    else
        printf("there was time for\n                one round only, so it may be half or twice as much\n");
}
