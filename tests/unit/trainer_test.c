/* The optimizer step: 20 steps of each algorithm against PyTorch, and what does not depend on how a batch is cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <inttypes.h>
#include <stdlib.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "kernels/adam8.h"
#include "kernels/ops.h"
#include "protocol/settings/knobs.h"
#include "protocol/settings/metrics.h"
#include "tests/unit/hyper_of.h"
#include "workers/engine/model/extent.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/safetensors.h"
#include "workers/engine/trainer/blame.h"
#include "workers/engine/trainer/cut.h"
#include "workers/engine/trainer/frozen.h"
#include "workers/engine/trainer/ranks.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/trainer/reference.h"
#include "workers/engine/trainer/state.h"
#include "workers/engine/trainer/step.h"
#include "workers/engine/trainer/supervised.h"
#include "workers/engine/trainer/trainer_metrics.h"
#include "workers/engine/trainer/update.h"

#define DEVICE "cpu:0"
#define STEPS 20
#define GROUPS 3
#define SAMPLES 4

/* One array of a fixture as floats; owned. */
static float *array(const struct shards *s, const char *name)
{
    const struct st_tensor *t = shards_find(s, name);
    if (!t)
        fail_msg("the fixture has no '%s'", name);
    float *f = malloc((size_t)t->n_elem * 4);
    st_to_f32(f, t);
    return f;
}

/* The first n groups of a fixture, in order; each freed by the caller. */
static void groups_read(const struct shards *s, struct group **out, int64_t n)
{
    struct error err;
    float *token = array(s, "token"), *n_prompt = array(s, "n_prompt"), *n_tok = array(s, "n_tok"), *old = array(s, "logp_old");
    float *reward = array(s, "reward"), *cut = array(s, "cut");
    int64_t at_tok = 0, at_old = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t total = 0;
        for (int k = 0; k < SAMPLES; k++)
            total += (int64_t)n_tok[i * SAMPLES + k];
        struct group *g = group_new((int64_t)n_prompt[i], SAMPLES, total, &err);
        assert_non_null(g);
        g->item = i;
        g->temperature = 1;
        g->max_new_tok = 8;
        for (int64_t k = 0; k < g->n_prompt; k++)
            g->prompt[k] = (int32_t)token[at_tok++];
        for (int64_t k = 0, first = 0; k < SAMPLES; k++) {
            int64_t q = i * SAMPLES + k;
            g->sample[k] = (struct sample){ .first_tok = first,
                                            .n_tok = (int64_t)n_tok[q],
                                            .score = SCORE_OK,
                                            .reward = (double)reward[q],
                                            .finish = cut[q] != 0 ? FINISH_LENGTH : FINISH_STOP };
            first += g->sample[k].n_tok;
        }
        for (int64_t k = 0; k < total; k++) {
            g->token[k] = (int32_t)token[at_tok++];
            g->logp[k] = old[at_old++];
        }
        out[i] = g;
    }
    float *all[] = { token, n_prompt, n_tok, old, reward, cut };
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        free(all[i]);
}

static double value_at(const uint8_t *values, size_t i, enum dtype t)
{
    uint32_t bits = t == DT_F32 ? ((const uint32_t *)(const void *)values)[i] : (uint32_t)((const uint16_t *)(const void *)values)[i] << 16;
    float x;
    memcpy(&x, &bits, 4);
    return (double)x;
}

struct fixture {
    struct device *dev;
    struct model *m, *ref;
    struct shards *s;
    struct group *g[STEPS * GROUPS];
    struct trainer_hyper h;
    bool apart;    // each sample's prompt is computed by itself
};

static void fixture_open_file(struct fixture *f, const char *file, int64_t n_group, const char *device, enum dtype dtype, const char *model)
{
    struct error err = { 0 };
    char dir[1024], path[1024];
    snprintf(dir, sizeof dir, "%s/golden/models/%s", TEST_DATA_DIR, model);
    snprintf(path, sizeof path, "%s/golden/rl/%s.safetensors", TEST_DATA_DIR, file);
    *f = (struct fixture){ 0 };
    if (!(f->dev = device_new(device, 1, &err)) || !(f->m = model_load(dir, f->dev, dtype, &err))
        || !(f->ref = model_load(dir, f->dev, dtype, &err)) || !(f->s = shards_open_file(path, &err)))
        fail_msg("%s", err.text);
    groups_read(f->s, f->g, n_group);
}

/* All of them; PyTorch's rollouts are of the first N_GOLDEN. */
#define N_GOLDEN 4
static const char *const algos[] = { "GRPO", "DAPO", "RLOO", "REINFORCE_PPB", "DR_GRPO", "GSPO", "CISPO" };

static void fixture_open_model(struct fixture *f, const char *algo, const char *device, enum dtype dtype, const char *model)
{
    bool own = false;    // the others have no rollouts of their own
    for (int i = 0; i < N_GOLDEN; i++)
        own = own || strcmp(algo, algos[i]) == 0;
    fixture_open_file(f, own ? algo : "GRPO", (int64_t)STEPS * GROUPS, device, dtype, model);
    hyper_of(&f->h, algo);
    f->h.lr = 3e-3;
    f->h.form.beta = strcmp(algo, "DAPO") == 0 ? 0 : 0.05f;
    f->h.loss_constant = 8;
    f->h.has_filter = false;
    f->h.skip_threshold = 0;
}

/* Models of this shape, but wide enough for every piece of their flat order to be cut into shards, and of more layers than have a
 * place of their own where only shards are kept. */
static void fixture_widen(struct fixture *f)
{
    struct error err = { 0 };
    struct model_config c = *model_config(f->m);
    c.n_layer = 3;
    c.d_ff = 1024;
    c.vocab = 600;
    struct model *m = model_new_random(&c, 5, f->dev, model_dtype(f->m), &err),
                 *ref = model_new_random(&c, 6, f->dev, model_dtype(f->m), &err);
    if (!m || !ref)
        fail_msg("%s", err.text);
    model_free(f->m);
    model_free(f->ref);
    f->m = m;
    f->ref = ref;
}

static void fixture_open(struct fixture *f, const char *algo, const char *device, enum dtype dtype)
{
    fixture_open_model(f, algo, device, dtype, "qwen2-tied");
}

static void fixture_close(struct fixture *f)
{
    for (int i = 0; i < STEPS * GROUPS; i++)
        group_free(f->g[i]);
    model_free(f->m);
    model_free(f->ref);
    shards_close(f->s);
    device_free(f->dev);
}

static struct trainer *trainer_open(struct fixture *f, int64_t token_budget)
{
    struct error err = { 0 };
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    set.token_budget_max = token_budget;
    set.share_prompts = !f->apart;
    struct trainer *t = trainer_new(f->m, f->ref, &set, &err);
    if (!t)
        fail_msg("%s", err.text);
    return t;
}

/* The reference becomes a teacher, tests/golden/models/NAME. */
static void fixture_teach(struct fixture *f, struct trainer_settings *set, const char *name)
{
    struct error err = { 0 };
    char dir[1024];
    snprintf(dir, sizeof dir, "%s/golden/models/%s", TEST_DATA_DIR, name);
    model_free(f->ref);
    if (!(f->ref = model_load(dir, f->dev, model_dtype(f->m), &err)))
        fail_msg("%s", err.text);
    set->teacher = f->ref;
}

static struct trainer *trainer_open_set(struct fixture *f, const struct trainer_settings *set)
{
    struct error err = { 0 };
    struct trainer *t = trainer_new(f->m, f->ref, set, &err);
    if (!t)
        fail_msg("%s", err.text);
    return t;
}

static void sums_are_added_and_of_maxima_the_larger_counts(UNUSED void **state)
{
    struct trainer_sums sum, part;
    double *to = (double *)&sum, *from = (double *)&part;
    const size_t n = sizeof sum / sizeof *to;
    for (size_t i = 0; i < n; i++) {
        to[i] = 1;
        from[i] = 2;
    }
    trainer_sums_merge(&sum, &part);
    assert_true(sum.ratio_max == 2 && sum.logp_diff_max == 2 && sum.age_max == 2);
    sum.ratio_max = sum.logp_diff_max = sum.age_max = 3;
    for (size_t i = 0; i < n; i++)
        assert_true(to[i] == 3);
}

static void twenty_steps_are_pytorchs(UNUSED void **state)
{
    for (int a = 0; a < N_GOLDEN; a++) {
        struct fixture f;
        struct error err = { 0 };
        fixture_open(&f, algos[a], DEVICE, DT_F32);
        struct trainer *t = trainer_open(&f, 64);    // several micro-batches a step
        float *loss = array(f.s, "loss"), *norm = array(f.s, "norm");
        for (int i = 0; i < STEPS; i++) {
            double metric[METRIC_N];
            if (!trainer_step(t, (const struct group *const *)f.g + i * GROUPS, GROUPS, &f.h, metric, &err))
                fail_msg("%s", err.text);
            // fp32 sums in another order, twenty updates deep
            if (!(fabs(metric[M_LOSS] - (double)loss[i]) < 1e-4 * fmax(fabs((double)loss[i]), 0.1))
                || !(fabs(metric[M_GRAD_NORM] - (double)norm[i]) < 1e-3 * (double)norm[i]))
                fail_msg("%s, step %d: loss %.7g, norm %.7g; PyTorch has %.7g, %.7g", algos[a], i, metric[M_LOSS], metric[M_GRAD_NORM],
                         (double)loss[i], (double)norm[i]);
        }
        free(loss);
        free(norm);
        trainer_free(t);
        fixture_close(&f);
    }
}

/* The cases of tests/golden/make_losses.py as settings; what is not named is GRPO's without a penalty. */
static void every_form_of_the_loss_is_pytorchs(UNUSED void **state)
{
    enum {
        N_STEP = 8,
    };
    static const struct {
        const char *name, *set[8][2];
    } cases[] = {
        { "DR_GRPO", { { "algo", "DR_GRPO" } } },
        { "GSPO", { { "algo", "GSPO" }, { "clip_eps_low", "0.05" }, { "clip_eps_high", "0.06" } } },
        { "GSPO-token",
          { { "algo", "GSPO" }, { "clip_eps_low", "0.05" }, { "clip_eps_high", "0.06" }, { "loss_variation", "token_level" } } },
        { "CISPO", { { "algo", "CISPO" }, { "clip_eps_high", "0.3" } } },
        { "atropos", { { "preset", "atropos" } } },
        { "k1", { { "kl_coeff", "0.5" }, { "kl_estimator", "k1" } } },
        { "k2", { { "kl_coeff", "0.5" }, { "kl_estimator", "k2" } } },
        { "k1_ratio", { { "kl_coeff", "0.5" }, { "kl_estimator", "k1_ratio" } } },
        { "k3_ratio", { { "kl_coeff", "0.5" }, { "kl_estimator", "k3_ratio" } } },
        { "abs", { { "kl_coeff", "0.5" }, { "kl_estimator", "abs" } } },
        { "k3+", { { "kl_coeff", "0.5" }, { "kl_estimator", "k3+" } } },
        { "dual-clip", { { "clip_dual", "1.25" } } },
        { "SAPO", { { "algo", "SAPO" } } },
        { "GPG", { { "advantages", "centered" }, { "clip_form", "gpg" }, { "loss_variation", "token_level" } } },
        { "LUSPO", { { "algo", "LUSPO" }, { "clip_eps_low", "0.05" }, { "clip_eps_high", "0.06" } } },
        { "GMPO", { { "algo", "GMPO" }, { "clip_eps_low", "0.1" }, { "clip_eps_high", "0.12" } } },
        { "VESPO", { { "algo", "VESPO" } } },
        { "DPPO_TV", { { "algo", "DPPO_TV" }, { "clip_eps_low", "5e-4" }, { "clip_eps_high", "4e-4" }, { "clip_dual", "1.2" } } },
        { "DPPO_KL", { { "algo", "DPPO_KL" }, { "clip_eps_low", "4e-5" }, { "clip_eps_high", "3e-5" }, { "clip_dual", "1.2" } } },
        { "DRO", { { "clip_form", "dro" }, { "dro_beta", "0.5" } } },
        { "DEVIATION_BATCH", { { "advantages", "deviation_batch" } } },
        { "OPO", { { "algo", "OPO" } } },
        { "MAXRL", { { "algo", "MAXRL" } } },
        { "GRPO_PASSK", { { "algo", "GRPO_PASSK" } } },
        { "REINFORCE_PP", { { "algo", "REINFORCE_PP" } } },
        { "mask-kl", { { "rho_mask", "[0, 0.05]" }, { "rho_mask_level", "kl" } } },
        { "teacher", { { "teacher", "qwen3-untied" }, { "teacher_coeff", "0.5" } } },
        { "teacher-alone",
          { { "teacher", "qwen3-untied" }, { "teacher_coeff", "2" }, { "reward_coeff", "0" }, { "loss_variation", "token_level" } } },
        { "open_instruct", { { "preset", "open_instruct" }, { "rho_clamp", "[0, 1.2]" } } },
        { "clamp-sequence", { { "rho_clamp", "[0.5, 1.3]" }, { "rho_clamp_level", "sequence" } } },
        { "clamp-geometric", { { "rho_clamp", "[0.9, 1.05]" }, { "rho_clamp_level", "geometric" } } },
        { "icepop", { { "rho_clamp", "[0, 2]" }, { "rho_mask", "[0.8, 1.25]" } } },
        { "mask-sequence", { { "rho_mask", "[0.5, 2]" }, { "rho_mask_level", "sequence" } } },
        { "mask-geometric", { { "rho_mask", "[0.9, 1.1]" }, { "rho_mask_level", "geometric" } } },
        { "updates", { { "update_epochs", "2" }, { "update_minibatches", "2" } } },
        { "adafactor", { { "optimizer", "adafactor" } } },
        { "layers", { { "train_layer_indices", "1" } } },
        { "polyak", { { "kl_coeff", "0.5" }, { "ref_update_steps", "2" } } },
        { "copied", { { "kl_coeff", "0.5" }, { "ref_update_steps", "3" }, { "ref_update_alpha", "1" } } },
        { "mask-tv", { { "rho_mask", "[0, 0.15]" }, { "rho_mask_level", "tv" } } },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct fixture f;
        struct run_config c;
        struct buf notes = BUF_INIT;
        struct error err = { 0 };
        char name[64];
        fixture_open_file(&f, "losses", (int64_t)N_STEP * GROUPS, DEVICE, DT_F32, "qwen2-tied");
        run_config_init(&c);
        bool ok = run_config_set(&c, "kl_coeff", "0", FROM_PRESET, NULL, &err)
                  && run_config_set(&c, "weight_decay", "0.01", FROM_FLAG, NULL, &err);
        for (int k = 0; ok && k < 8 && cases[i].set[k][0]; k++)
            ok = run_config_set(&c, cases[i].set[k][0], cases[i].set[k][1], FROM_FLAG, NULL, &err);
        if (!ok || !run_config_finish(&c, &notes, &err))
            fail_msg("%s: %s", cases[i].name, err.text);
        buf_release(&notes);
        trainer_hyper_of(&f.h, &c, 0, 1);
        f.h.lr = 3e-3;
        f.h.loss_constant = c.loss_constant ? f.h.loss_constant : 8;    // the fixture's longest
        f.h.skip_threshold = 0;
        struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
        set.token_budget_max = 64;
        set.optimizer = (enum optimizer)knob_choice("optimizer", c.optimizer);
        snprintf(set.layers, sizeof set.layers, "%s", c.train_layer_indices);
        if (c.teacher[0])
            fixture_teach(&f, &set, c.teacher);
        struct trainer *t = trainer_open_set(&f, &set);
        snprintf(name, sizeof name, "loss.%s", cases[i].name);
        float *loss = array(f.s, name);
        snprintf(name, sizeof name, "norm.%s", cases[i].name);
        float *norm = array(f.s, name);
        for (int k = 0; k < N_STEP; k++) {
            double metric[METRIC_N];
            if (!trainer_step(t, (const struct group *const *)f.g + k * GROUPS, GROUPS, &f.h, metric, &err))
                fail_msg("%s: %s", cases[i].name, err.text);
            // fp32 sums in another order, eight updates deep
            if (!(fabs(metric[M_LOSS] - (double)loss[k]) < 1e-4 * fmax(fabs((double)loss[k]), 0.1))
                || !(fabs(metric[M_GRAD_NORM] - (double)norm[k]) <= 1e-3 * (double)norm[k]))
                fail_msg("%s, step %d: loss %.7g, norm %.7g; PyTorch has %.7g, %.7g", cases[i].name, k, metric[M_LOSS], metric[M_GRAD_NORM],
                         (double)loss[k], (double)norm[k]);
        }
        free(loss);
        free(norm);
        trainer_free(t);
        fixture_close(&f);
    }
}

/* The gradient of the first step's groups, and what its samples add up to; returned for free. */
static float *gradient_and_sums(struct fixture *f, int64_t token_budget, struct trainer_sums *sums)
{
    struct error err = { 0 };
    struct trainer *t = trainer_open(f, token_budget);
    float *g = malloc((size_t)trainer_grad_n(t) * 4);
    if (!trainer_begin(t, (const struct group *const *)f->g, GROUPS, &f->h, &err) || !trainer_grad(t, &f->h, sums, &err)
        || !trainer_grad_get(t, g, &err))
        fail_msg("%s", err.text);
    trainer_free(t);
    return g;
}

static float *gradient(struct fixture *f, int64_t token_budget)
{
    struct trainer_sums sums;
    return gradient_and_sums(f, token_budget, &sums);
}

/* Log-probs have the same bits, so everything that follows from them has; sums over rows have another order. */
static void a_prompt_computed_once_gives_what_one_for_each_sample_gives(UNUSED void **state)
{
    static const char *const models[] = { "qwen2-tied", "qwen3-untied", "gemma3", "gemma2", "olmo3", "mistral-window", "granite", "phi3" };
    static const int64_t budgets[] = { 4096, 40 };    // a micro-batch, and several that cut groups
    for (size_t i = 0; i < ARRAY_SIZE(models); i++)
        for (size_t b = 0; b < ARRAY_SIZE(budgets); b++) {
            float *g[2];
            struct trainer_sums sums[2];
            int64_t n = 0;
            double d = 0, s = 0;
            for (int apart = 0; apart < 2; apart++) {
                struct fixture f;
                fixture_open_model(&f, "GRPO", DEVICE, DT_F32, models[i]);
                f.apart = apart;
                g[apart] = gradient_and_sums(&f, budgets[b], &sums[apart]);
                n = model_n_flat(f.m);
                fixture_close(&f);
            }
            assert_true(sums[0].n_shared_tok * 8 > sums[0].n_packed_tok && sums[1].n_shared_tok == 0);
            sums[0].n_shared_tok = 0;
            if (memcmp(&sums[0], &sums[1], sizeof sums[0]) != 0)
                fail_msg("%s, %" PRId64 " tokens: loss %.9g with shared prompts, %.9g without", models[i], budgets[b], sums[0].loss,
                         sums[1].loss);
            for (int64_t k = 0; k < n; k++) {
                d += ((double)g[0][k] - (double)g[1][k]) * ((double)g[0][k] - (double)g[1][k]);
                s += (double)g[1][k] * (double)g[1][k];
            }
            if (!(s > 0 && d > 0 && sqrt(d / s) < 1e-6))
                fail_msg("%s, %" PRId64 " tokens: shared prompts move the gradient by %g", models[i], budgets[b], sqrt(d / s));
            free(g[0]);
            free(g[1]);
        }
}

static void the_gradient_does_not_depend_on_the_cut(UNUSED void **state)
{
    for (size_t a = 0; a < ARRAY_SIZE(algos); a++) {
        struct fixture f;
        fixture_open(&f, algos[a], DEVICE, DT_F32);
        int64_t n = model_n_flat(f.m);
        float *whole = gradient(&f, 4096), *again = gradient(&f, 4096);
        assert_memory_equal(whole, again, (size_t)n * 4);    // the same cut: the same bits
        static const int64_t budgets[] = { 13, 40, 64 };
        for (size_t i = 0; i < ARRAY_SIZE(budgets); i++) {
            float *g = gradient(&f, budgets[i]);
            double d = 0, s = 0;
            for (int64_t k = 0; k < n; k++) {
                d += ((double)g[k] - (double)whole[k]) * ((double)g[k] - (double)whole[k]);
                s += (double)whole[k] * (double)whole[k];
            }
            if (!(sqrt(d / s) < 1e-6))
                fail_msg("%s: micro-batches of %" PRId64 " tokens move the gradient by %g", algos[a], budgets[i], sqrt(d / s));
            free(g);
        }
        free(whole);
        free(again);
        fixture_close(&f);
    }
}

/* g with n_said tokens between its prompt and each completion: as the end of the prompt, or as the beginning of each sample, given
 * by an environment with whatever log-probs. Takes g. */
static struct group *group_said(struct group *g, int64_t n_said, bool in_prompt)
{
    struct error err;
    int64_t own = in_prompt ? 0 : n_said;
    struct group *to = group_new(g->n_prompt + n_said - own, g->n_sample, g->n_tok + own * g->n_sample, &err);
    assert_non_null(to);
    to->item = g->item;
    to->temperature = g->temperature;
    to->max_new_tok = g->max_new_tok;
    for (int64_t k = 0; k < to->n_prompt; k++)
        to->prompt[k] = k < g->n_prompt ? g->prompt[k] : 3 + (int32_t)(k - g->n_prompt);
    for (int64_t i = 0, at = 0; i < g->n_sample; i++) {
        to->sample[i] = g->sample[i];
        to->sample[i].first_tok = at;
        to->sample[i].n_tok += own;
        for (int64_t k = 0; k < to->sample[i].n_tok; k++, at++) {
            int64_t from = g->sample[i].first_tok + k - own;
            to->mask[at] = k >= own;
            to->token[at] = k < own ? 3 + (int32_t)k : g->token[from];
            to->logp[at] = k < own ? -7 : g->logp[from];
        }
    }
    group_free(g);
    return to;
}

static void what_an_environment_said_is_read_and_not_learnt(UNUSED void **state)
{
    for (size_t a = 0; a < ARRAY_SIZE(algos); a++) {
        float *g[2];
        int64_t n = 0;
        for (int in_prompt = 0; in_prompt < 2; in_prompt++) {
            struct fixture f;
            fixture_open(&f, algos[a], DEVICE, DT_F32);
            f.apart = true;    // only what is in the prompt would be shared
            for (int i = 0; i < GROUPS; i++)
                f.g[i] = group_said(f.g[i], 3, in_prompt);
            g[in_prompt] = gradient(&f, 4096);
            n = model_n_flat(f.m);
            fixture_close(&f);
        }
        if (memcmp(g[0], g[1], (size_t)n * 4) != 0)
            fail_msg("%s: the gradient is not that of a longer prompt", algos[a]);
        free(g[0]);
        free(g[1]);
    }
}

static void tokens_between_given_ones_learn_alone(UNUSED void **state)
{
    /* with a divisor of the number of samples the loss is a sum over tokens: the gradients of even and odd tokens add up to
     * that of all. A sample without a token of its own does not count. */
    float *g[3];
    double n_sample[3] = { 0 };
    int64_t n = 0;
    double d = 0, s = 0;
    for (int part = 0; part < 3; part++) {
        struct fixture f;
        fixture_open(&f, "DR_GRPO", DEVICE, DT_F32);
        for (int i = 0; i < GROUPS; i++)
            for (int64_t k = 0; k < f.g[i]->n_tok; k++)
                f.g[i]->mask[k] = part == 2 || k % 2 == part;
        for (int i = 0; i < GROUPS * SAMPLES; i++)
            n_sample[part] += sample_n_own(f.g[i / SAMPLES], i % SAMPLES) > 0;
        g[part] = gradient(&f, 4096);
        n = model_n_flat(f.m);
        fixture_close(&f);
    }
    for (int64_t k = 0; k < n; k++) {
        double sum = (double)g[0][k] * n_sample[0] + (double)g[1][k] * n_sample[1], whole = (double)g[2][k] * n_sample[2];
        d += (sum - whole) * (sum - whole);
        s += whole * whole;
    }
    assert_true(s > 0 && sqrt(d / s) < 1e-5);    // sums of fp32 in another order
    for (int part = 0; part < 3; part++)
        free(g[part]);
}

/* The advantages that rewards give, as if they had come with the groups. */
static void advantages_give(struct fixture *f)
{
    double adv[SAMPLES];
    for (int i = 0; i < GROUPS; i++) {
        struct group *g = f->g[i];
        advantage_group(adv, f->h.advantages, g);
        g->has_adv = true;
        for (int k = 0; k < SAMPLES; k++) {
            for (int64_t q = 0; q < g->sample[k].n_tok; q++)
                g->adv[g->sample[k].first_tok + q] = (float)adv[k];
            g->sample[k].reward = 7;    // is not looked at
        }
    }
}

static void what_came_with_a_group_takes_the_place_of_what_its_rewards_give(UNUSED void **state)
{
    enum { REWARDS, ADVANTAGES, ONE_ZERO, ONE_GIVEN_ZERO, OF_GROUP, OF_SAMPLES, CASES };
    float *g[CASES];
    int64_t n = 0;
    for (int c = 0; c < CASES; c++) {
        struct fixture f;
        fixture_open(&f, "GRPO", DEVICE, DT_F32);
        if (c == ADVANTAGES || c == ONE_GIVEN_ZERO)
            advantages_give(&f);
        if (c == ONE_ZERO)
            f.g[1]->sample[2].adv_zero = true;
        for (int64_t q = 0; c == ONE_GIVEN_ZERO && q < f.g[1]->sample[2].n_tok; q++)
            f.g[1]->adv[f.g[1]->sample[2].first_tok + q] = 0;
        for (int i = 0; c >= OF_GROUP && i < GROUPS; i++) {
            f.g[i]->temperature = c == OF_GROUP ? 0.5f : 2;
            for (int k = 0; c == OF_SAMPLES && k < SAMPLES; k++)
                f.g[i]->sample[k].temperature = 0.5f;
        }
        g[c] = gradient(&f, 4096);
        n = model_n_flat(f.m);
        fixture_close(&f);
    }
    assert_memory_equal(g[REWARDS], g[ADVANTAGES], (size_t)n * 4);
    assert_memory_equal(g[ONE_ZERO], g[ONE_GIVEN_ZERO], (size_t)n * 4);
    assert_true(memcmp(g[REWARDS], g[ONE_ZERO], (size_t)n * 4) != 0);
    assert_memory_equal(g[OF_GROUP], g[OF_SAMPLES], (size_t)n * 4);
    assert_true(memcmp(g[REWARDS], g[OF_GROUP], (size_t)n * 4) != 0);
    for (int c = 0; c < CASES; c++)
        free(g[c]);
}

/* The gradient of a batch whose groups came without log-probs, or of one that takes those of its own weights for all. */
static float *gradient_of_unknown(const char *a, enum ratio_level ratio, bool unknown, int64_t *n, struct trainer_sums *sums)
{
    struct fixture f;
    fixture_open(&f, a, DEVICE, DT_F32);
    f.h.ratio = ratio;
    f.h.old = unknown ? OLD_SAMPLED : OLD_CURRENT;
    for (int i = 0; i < GROUPS && unknown; i++) {
        f.g[i]->no_logp = true;
        f.g[i]->weight_version = -3;    // old, so that nothing is taken for fresh
        memset(f.g[i]->logp, 0, (size_t)f.g[i]->n_tok * sizeof *f.g[i]->logp);
    }
    if (unknown) {
        f.h.rho_clamp = (struct rho_rule){ 0, 2, RHO_TOKEN };
        f.h.skip_threshold = 1.5;
    }
    float *g = gradient_and_sums(&f, 64, sums);
    *n = model_n_flat(f.m);
    fixture_close(&f);
    return g;
}

static void a_group_without_logprobs_has_the_gradient_of_current_ones(UNUSED void **state)
{
    static const struct {
        const char *algo;
        enum ratio_level ratio;
    } cases[] = { { "GRPO", RATIO_TOKEN }, { "DAPO", RATIO_TOKEN }, { "GRPO", RATIO_SEQUENCE } };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct trainer_sums sums[2];
        float *g[2];
        int64_t n;
        for (int unknown = 0; unknown < 2; unknown++)
            g[unknown] = gradient_of_unknown(cases[i].algo, cases[i].ratio, unknown, &n, &sums[unknown]);
        if (memcmp(g[0], g[1], (size_t)n * 4) != 0)
            fail_msg("case %zu: the gradient is another one", i);
        assert_true(sums[1].n_skipped == 0 && sums[1].rho.n_tok == 0 && sums[1].n_known_tok == 0 && sums[1].n_tok == sums[0].n_tok);
        assert_true(sums[1].ratio == sums[1].n_tok && sums[1].logp_diff_max == 0 && sums[0].n_known_tok == sums[0].n_tok);
        free(g[0]);
        free(g[1]);
    }
    struct fixture f;
    struct error err = { 0 };
    fixture_open(&f, "REINFORCE_PPB", DEVICE, DT_F32);
    assert_true(f.h.form.beta > 0);
    f.g[1]->no_logp = true;
    struct trainer *t = trainer_open(&f, 64);
    assert_false(trainer_begin(t, (const struct group *const *)f.g, GROUPS, &f.h, &err));
    assert_true(err.code == ERR_DATA && strstr(err.text, "has no log-probs"));
    trainer_free(t);
    fixture_close(&f);
}

/* What some steps by this many ranks leave behind; all of it must be the same bytes for any number. */
struct outcome {
    size_t weight_bytes;
    void *weights;    // of rank 0; every other rank's were compared with them
    uint64_t hash;
    float *state[STATE_N];
    int64_t n_state[STATE_N];
    double metric[3][METRIC_N];
};

/* The shards of all ranks are o's weights, in their order. */
static void extents_compare(const struct outcome *o, const struct extents *from)
{
    size_t at = 0;
    for (int64_t i = 0; i < from->n; at += area_bytes(&from->at[i++].of)) {
        assert_true(from->at[i].of.from == at && from->at[i].of.n_row == 1);
        assert_memory_equal(extent_mem(from, i), (const char *)o->weights + at, area_bytes(&from->at[i].of));
    }
    assert_int_equal(at, o->weight_bytes);
}

/* Three steps by n_rank ranks that this process plays in turn, each with weights of its own. */
static void outcome_make(struct outcome *o, const char *algo, enum dtype dtype, const char *model, int n_rank, int zero, bool offload,
                         int64_t budget, enum optimizer optimizer, int group)
{
    struct error err = { 0 };
    struct fixture f[4];
    struct trainer *t[4];
    for (int r = 0; r < n_rank; r++) {
        struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
        fixture_open_model(&f[r], algo, DEVICE, dtype, model);
        fixture_widen(&f[r]);
        f[r].dev->head_rows = 7 * 600;    // the head's gradient in several parts, of 7 rows with 600 ids each
        f[r].h.mask_truncated = true;     // some samples are only in the batch's moments
        f[r].h.skip_threshold = 1000;
        f[r].g[2 * GROUPS + 1]->logp[0] -= 20;    // a sample of the last step is beyond it
        if (strcmp(algo, "GSPO") == 0) {          // whose form looks at whole samples, as corrections do
            f[r].h.old = OLD_CURRENT;
            f[r].h.n_epoch = f[r].h.n_mini = 2;
            f[r].h.decay_matrices = true;
            f[r].h.ref_every = 2;
            f[r].h.ref_share = 0.6;
            f[r].h.rho_clamp = (struct rho_rule){ 0, 1.2, RHO_TOKEN };
            f[r].h.rho_mask = (struct rho_rule){ 0.8, 1.2, RHO_GEOMETRIC };
        }
        set.token_budget_max = budget;
        set.n_rank = n_rank;
        set.rank = r;
        set.zero_stage = zero;
        set.optimizer = optimizer;
        set.grad_group = group;
        if (strcmp(algo, "RLOO") == 0)
            strcpy(set.layers, "1-2");
        if ((set.offload = offload)) {    // a third of masters and moments on the device
            struct trainer_memory all;
            trainer_memory(f[r].m, &set, &all);
            set.state_bytes[0] = all.state + all.host / 3;
            trainer_memory(f[r].m, &set, &all);
            assert_true(all.host > 0 && all.state > 0);
        }
        if (!(t[r] = trainer_new(f[r].m, f[r].ref, &set, &err)))
            fail_msg("%s", err.text);
    }
    struct ranks *ranks = ranks_new_here(t, n_rank, &err);
    assert_non_null(ranks);
    for (int i = 0; i < 3; i++) {
        int64_t n_group = i == 1 ? 1 : GROUPS;    // a batch with fewer micro-batches than ranks among them
        for (int m = 0; m < METRIC_N; m++)
            o->metric[i][m] = NAN;
        if (!ranks_step(ranks, (const struct group *const *)f[0].g + i * GROUPS, n_group, &f[0].h, o->metric[i], &err))
            fail_msg("%d ranks: %s", n_rank, err.text);
        for (int m = 0; m < METRIC_N; m++)
            if (!isnan(o->metric[i][m]) && metrics[m].by != BY_TRAINER)
                fail_msg("the trainer computes '%s', which is another's", metrics[m].name);
        for (int k = 0; i == 0 && k < STATE_N; k++) {    // out and in again, as a checkpoint does
            float *copy = malloc((size_t)trainer_grad_n(t[0]) * 4);
            assert_true(copy && trainer_state_get(t[n_rank - 1], (enum trainer_state_kind)k, copy, &err));
            for (int r = 0; r < n_rank; r++)
                assert_true(trainer_state_set(t[r], (enum trainer_state_kind)k, copy, &err));
            free(copy);
        }
        assert_true((o->metric[i][M_SKIPPED] > 0) == (i == 2));
        static const int of_several[] = { M_TRAIN_TOK_PER_S, M_RANKS_N, M_ZERO_STAGE };
        for (size_t m = 0; m < ARRAY_SIZE(of_several); m++)    // times, and what one rank does not have
            o->metric[i][of_several[m]] = NAN;
    }
    o->weight_bytes = model_weight_bytes(f[0].m);
    assert_non_null(o->weights = malloc(o->weight_bytes));
    assert_true(trainer_weights_get(t[0], o->weights, &err));
    assert_true(ranks_hash(ranks, &o->hash, &err));
    if (zero == 3) {    // and as a sampler gets them
        struct model *whole = model_new_empty(model_config(f[0].m), f[0].dev, dtype, &err);
        assert_true(whole && ranks_weights_get(ranks, whole, &err));
        assert_memory_equal(model_weights(whole, &o->weight_bytes), o->weights, o->weight_bytes);
        model_free(whole);
        const struct extents *from;
        for (int k = 0; k < 2 && n_rank > 1; k++) {    // once more is fine
            assert_true(ranks_weights_hold(ranks, &from, &err) && ranks_weights_are_held(ranks));
            assert_int_equal(from->n_part, n_rank);
            extents_compare(o, from);
        }
        ranks_weights_let_go(ranks);
        assert_false(ranks_weights_are_held(ranks));
    }
    for (int k = 0; k < STATE_N; k++) {
        o->n_state[k] = trainer_state_n(t[0], (enum trainer_state_kind)k);
        o->state[k] = malloc((size_t)trainer_grad_n(t[0]) * 4);
        assert_true(trainer_state_get(t[0], (enum trainer_state_kind)k, o->state[k], &err));
    }
    for (int r = 1; r < n_rank; r++) {
        void *other = malloc(o->weight_bytes);
        assert_true(other && trainer_weights_get(t[r], other, &err));
        assert_memory_equal(other, o->weights, o->weight_bytes);
        free(other);
    }
    ranks_free(ranks);
    for (int r = 0; r < n_rank; r++) {
        trainer_free(t[r]);
        fixture_close(&f[r]);
    }
}

static void outcome_free(struct outcome *o)
{
    free(o->weights);
    for (int k = 0; k < STATE_N; k++)
        free(o->state[k]);
}

static bool outcomes_are_same(const struct outcome *a, const struct outcome *b)
{
    bool same = memcmp(a->weights, b->weights, a->weight_bytes) == 0 && a->hash == b->hash;
    for (int s = 0; s < STATE_N; s++)
        same = same && a->n_state[s] == b->n_state[s] && memcmp(a->state[s], b->state[s], (size_t)a->n_state[s] * 4) == 0;
    return same;
}

static void any_number_of_ranks_leaves_the_same_bytes(UNUSED void **state)
{
    static const char *const models[] = { "qwen2-tied", "qwen3-untied" };
    static const char *const cut[] = { "GRPO", "DAPO", "REINFORCE_PPB", "GSPO", "RLOO" };
    static const enum optimizer optimizers[] = { OPTIMIZER_ADAMW, OPTIMIZER_ADAMW_8BIT, OPTIMIZER_ADAMW, OPTIMIZER_ADAMW,
                                                 OPTIMIZER_ADAFACTOR };    // in the order of cut
    static const int64_t budgets[] = { 13, 30 };                           // micro-batches of one sample, and of two or three
    const char *long_run = getenv("LONG");
    for (size_t k = 0; k < ARRAY_SIZE(models) * ARRAY_SIZE(cut) * ARRAY_SIZE(budgets) * 2; k++) {
        // half of them have every two of model, type and budget with every algorithm, and every stage with every model and type
        if (!(long_run && *long_run) && ((k ^ k >> 1 ^ k >> 2 ^ k >> 3) & 1))
            continue;
        const char *model = models[k % 2];
        enum dtype dtype = k / 2 % 2 ? DT_BF16 : DT_F32;
        int64_t budget = budgets[k / 4 % 2];
        const char *algo = cut[k / 8];
        enum optimizer optimizer = optimizers[k / 8];
        bool offload = optimizer == OPTIMIZER_ADAMW;
        struct outcome one, several;
        outcome_make(&one, algo, dtype, model, 1, 0, false, budget, optimizer, 1);
        for (int n_rank = 2; n_rank <= 4; n_rank++) {
            // so each stage meets each model and type
            int zero = optimizer == OPTIMIZER_ADAFACTOR ? 0 : (n_rank + (int)(k + k / 4)) % 4;
            outcome_make(&several, algo, dtype, model, n_rank, zero, offload && (k / 8 + (size_t)n_rank) % 2, budget, optimizer, 1);
            if (!outcomes_are_same(&one, &several))
                fail_msg("%s, %s, %s, micro-batches of %d: %d ranks leave other weights than one", model, algo,
                         dtype == DT_F32 ? "fp32" : "bf16", (int)budget, n_rank);
            assert_memory_equal(one.metric, several.metric, sizeof one.metric);
            outcome_free(&several);
        }
        outcome_free(&one);
    }
}

/* Groups of several micro-batches too, the last of which may have fewer. The bytes depend on the size of a group. */
static void any_number_of_ranks_leaves_the_same_bytes_with_the_same_groups(UNUSED void **state)
{
    static const int groups[] = { 2, 4 };
    for (size_t k = 0; k < 8; k++) {
        const char *model = k % 2 ? "qwen3-untied" : "qwen2-tied";
        enum dtype dtype = k / 2 % 2 ? DT_BF16 : DT_F32;
        int group = groups[(k ^ k / 4) % 2];
        int64_t budget = k / 4 ? 30 : 13;
        const char *algo = k % 3 ? "GRPO" : "REINFORCE_PPB";    // whose advantages are of sums over the micro-batches
        struct outcome one, several, plain;
        outcome_make(&one, algo, dtype, model, 1, 0, false, budget, OPTIMIZER_ADAMW, group);
        for (int n_rank = 2; n_rank <= 4; n_rank++) {
            int zero = (n_rank + (int)k) % 4;
            outcome_make(&several, algo, dtype, model, n_rank, zero, false, budget, OPTIMIZER_ADAMW, group);
            if (!outcomes_are_same(&one, &several))
                fail_msg("%s, %s, groups of %d: %d ranks with zero_stage %d leave other weights than one", model,
                         dtype == DT_F32 ? "fp32" : "bf16", group, n_rank, zero);
            assert_memory_equal(one.metric, several.metric, sizeof one.metric);
            outcome_free(&several);
        }
        outcome_make(&plain, algo, dtype, model, 1, 0, false, budget, OPTIMIZER_ADAMW, 1);
        assert_false(outcomes_are_same(&one, &plain));
        outcome_free(&plain);
        outcome_free(&one);
    }
}

static struct trainer *trainer_of_group(struct fixture *f, int group)
{
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    set.token_budget_max = 80;
    set.grad_group = group;
    return trainer_open_set(f, &set);
}
static int64_t micros_of(struct trainer *t, struct fixture *f, int64_t budget)
{
    struct error err = { 0 };
    f->h.token_budget = budget;
    if (!trainer_begin(t, (const struct group *const *)f->g, GROUPS, &f->h, &err))
        fail_msg("%s", err.text);
    return trainer_n_micro(t);
}

/* By hand, of gradients of single micro-batches, with a budget that makes eight of them whatever the groups are. */
static void a_groups_gradients_are_added_up_before_the_groups(UNUSED void **state)
{
    enum {
        N_MICRO = 8,
    };
    struct fixture f;
    struct error err = { 0 };
    struct trainer_sums sums;
    fixture_open(&f, "GRPO", DEVICE, DT_F32);
    f.h.form.beta = 0;
    int64_t n = model_n_flat(f.m), budget = 13;
    struct trainer *t = trainer_of_group(&f, 1), *by_five = trainer_of_group(&f, 5);
    while (budget < 80 && (micros_of(by_five, &f, budget) != N_MICRO || micros_of(t, &f, budget) != N_MICRO))
        budget++;
    float *each = calloc((size_t)(N_MICRO * n), 4), *want = calloc((size_t)n, 4), *sum = calloc((size_t)n, 4), *got = calloc((size_t)n, 4);
    for (int64_t k = 0; k < N_MICRO; k++)
        if (!trainer_grad_begin(t, 0, &err) || !trainer_micros(t, &f.h, &(struct micro_series){ k, 1, 1, 1 }, &sums, &err)
            || !trainer_grad_get(t, each + k * n, &err))
            fail_msg("%s", err.text);
    trainer_free(t);
    trainer_free(by_five);
    static const int sizes[] = { 1, 2, 4, 5, 8 };
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        t = trainer_of_group(&f, sizes[i]);
        assert_int_equal(micros_of(t, &f, budget), N_MICRO);
        for (int again = 0; again < 2; again++)    // it is set, not added to
            if (!trainer_grad(t, &f.h, &sums, &err) || !trainer_grad_get(t, got, &err))
                fail_msg("%s", err.text);
        trainer_free(t);
        memset(want, 0, (size_t)n * 4);
        for (int64_t from = 0; from < N_MICRO; from += sizes[i]) {
            memset(sum, 0, (size_t)n * 4);
            for (int64_t k = from; k < MIN(from + sizes[i], N_MICRO); k++)
                for (int64_t e = 0; e < n; e++)
                    sum[e] += each[k * n + e];
            for (int64_t e = 0; e < n; e++)
                want[e] += sum[e];
        }
        assert_memory_equal(got, want, (size_t)n * 4);
    }
    free(each);
    free(want);
    free(sum);
    free(got);
    fixture_close(&f);
}

/* By hand: elements of both models before, and of the reference after a second step; it does not move in the first. */
static void the_reference_moves_by_its_share_every_so_many_steps(UNUSED void **state)
{
    static const struct {
        enum dtype dtype;
        double share;
    } cases[] = { { DT_F32, 0.6 }, { DT_F32, 1 }, { DT_BF16, 0.25 }, { DT_BF16, 1 } };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct fixture f;
        struct error err = { 0 };
        fixture_open(&f, "GRPO", DEVICE, cases[i].dtype);
        size_t bytes = model_weight_bytes(f.m), e = dtype_size(cases[i].dtype);
        f.h.ref_every = 2;
        f.h.ref_share = cases[i].share;
        struct trainer *t = trainer_open(&f, 64);
        uint8_t *began = malloc(bytes), *policy = malloc(bytes), *ref = malloc(bytes);
        assert_true(began && policy && ref && trainer_reference_get(t, began, &err));
        assert_true(trainer_step(t, (const struct group *const *)f.g, GROUPS, &f.h, NULL, &err) && !trainer_reference_moved(t));
        assert_true(trainer_reference_get(t, ref, &err));
        assert_memory_equal(ref, began, bytes);
        assert_true(trainer_step(t, (const struct group *const *)f.g + GROUPS, GROUPS, &f.h, NULL, &err) && trainer_reference_moved(t));
        assert_true(trainer_reference_get(t, ref, &err) && trainer_weights_get(t, policy, &err));
        for (size_t k = 0; k < bytes / e; k++) {
            double keep = (1 - cases[i].share) * value_at(began, k, cases[i].dtype),
                   take = cases[i].share * value_at(policy, k, cases[i].dtype), want = keep + take;
            // fp32: 1 - share, a product and the sum, each within 2^-24; then one rounding to 8 bits
            assert_true(fabs(value_at(ref, k, cases[i].dtype) - want)
                        <= (fabs(keep) + fabs(take)) * 3 * 0x1p-24 + (e == 2 ? fabs(want) * 0x1p-8 : 0));
        }
        if (cases[i].share == 1)
            assert_memory_equal(ref, policy, bytes);
        free(began);
        free(policy);
        free(ref);
        trainer_free(t);
        fixture_close(&f);
    }
}

static float *on_device(struct device *dev, const float *x, int64_t n)
{
    struct error err = { 0 };
    float *p = mem_new(dev, (size_t)n * 4, "a test", &err);
    bool ok = p && (x ? mem_copy(dev, p, x, (size_t)n * 4, COPY_H2D, &err) : OP(dev, &err, mem_fill, .y = p, .size_bytes = (size_t)n * 4));
    if (!ok || !device_sync(dev, &err))
        fail_msg("%s", err.text);
    return p;
}

/* tests/golden/make_adam8.py: masters, and the moments as they are read back. */
static void adamw_of_bytes_is_pytorchs(UNUSED void **state)
{
    enum {
        N = 1000,
        N_STEP = 6,
        N_BLOCK = (N + ADAM8_BLOCK - 1) / ADAM8_BLOCK,
    };
    static const char *const devices[] = { "ref", "cpu:0" };
    static const float table[2][256] = { { ADAM8_SIGNED }, { ADAM8_UNSIGNED } };
    char path[1024];
    struct error err = { 0 };
    snprintf(path, sizeof path, "%s/golden/rl/adam8.safetensors", TEST_DATA_DIR);
    struct shards *s = shards_open_file(path, &err);
    if (!s)
        fail_msg("%s", err.text);
    float *start = array(s, "start"), *grad = array(s, "grad"), *master = array(s, "master");
    float *moment[2] = { array(s, "moment1"), array(s, "moment2") };
    for (size_t d = 0; d < ARRAY_SIZE(devices); d++) {
        struct device *dev = device_new(devices[d], 2, &err);
        if (!dev)
            fail_msg("%s", err.text);
        float *x = on_device(dev, start, N), *scale[2] = { on_device(dev, NULL, N_BLOCK), on_device(dev, NULL, N_BLOCK) };
        uint8_t *code[2] = { (uint8_t *)on_device(dev, NULL, N), (uint8_t *)on_device(dev, NULL, N) };
        for (int k = 0; k < N_STEP; k++) {
            float *g = on_device(dev, grad + k * N, N), now[N];
            if (!OP(dev, &err, cast, .y = x, .x = x, .n = N, .scale = 1 - 1e-2f * 0.1f, .y_dtype = DT_F32, .x_dtype = DT_F32)
                || !OP(dev, &err, adamw8, .weight = x, .master = x, .m = code[0], .v = code[1], .m_scale = scale[0], .v_scale = scale[1],
                       .grad = g, .n = N, .step = k + 1, .lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .dtype = DT_F32)
                || !mem_copy(dev, now, x, sizeof now, COPY_D2H, &err) || !device_sync(dev, &err))
                fail_msg("%s", err.text);
            for (int i = 0; i < N; i++)    // a step is at most some 0.1, of fp32 sums and quotients
                if (!(fabsf(now[i] - master[k * N + i]) <= 2e-6f))
                    fail_msg("%s, step %d: element %d is %.9g; PyTorch has %.9g", devices[d], k, i, (double)now[i],
                             (double)master[k * N + i]);
            for (int m = 0; m < 2; m++)
                for (int i = 0; i < N; i++) {
                    float read = scale[m][i / ADAM8_BLOCK] * table[m][code[m][i]], want = moment[m][k * N + i];
                    if (!(fabsf(read - want) <= 1e-5f * fabsf(want)))
                        fail_msg("%s, step %d: moment %d of element %d is %.9g; PyTorch has %.9g", devices[d], k, m + 1, i, (double)read,
                                 (double)want);
                }
            mem_free(dev, g);
        }
        void *mem[] = { x, scale[0], scale[1], code[0], code[1] };
        for (size_t i = 0; i < ARRAY_SIZE(mem); i++)
            mem_free(dev, mem[i]);
        device_free(dev);
    }
    free(start);
    free(grad);
    free(master);
    free(moment[0]);
    free(moment[1]);
    shards_close(s);
}

/* By hand: what a block becomes, and that what is read back becomes the same again. */
static void a_block_keeps_its_largest_value_and_small_ones_roughly(UNUSED void **state)
{
    static const float table[2][256] = { { ADAM8_SIGNED }, { ADAM8_UNSIGNED } };
    static const struct {
        float x, want;
        int table;
        const char *why;
    } cases[] = {
        { 1, 1, 0, "the largest" },
        { -1, -1, 0, "the largest below 0" },
        { 0, 0, 0, "nothing" },
        { 0, 0, 1, "nothing" },
        { 0.5f, 0.50078125f, 0, "between 0.1 and 1 there are 64: 0.1 + 28.5 * 0.9 / 64" },
        { 0.5f, 0.497265625f, 1, "and 128 without a sign: 0.1 + 56.5 * 0.9 / 128" },
        { 5.5e-7f, 5.5e-7f, 0, "the smallest above 0" },
        { -5.5e-7f, 0, 0, "whose negative gave its place to -1" },
        { 3.25e-7f, 3.25e-7f, 1, "the smallest above 0 without a sign" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const float *t = table[cases[i].table];
        float got = t[adam8_code(t, cases[i].x)];
        if (!(fabsf(got - cases[i].want) <= 1e-6f * fabsf(cases[i].want)))
            fail_msg("%s: %.9g becomes %.9g", cases[i].why, (double)cases[i].x, (double)got);
        assert_true(t[adam8_code(t, got)] == got);
    }
    for (int m = 0; m < 2; m++)
        for (int c = 0; c < 256; c++)
            assert_true(adam8_code(table[m], table[m][c]) == c && (c == 0 || table[m][c] > table[m][c - 1]));
}

/* Layers 1 of 3 are named: nothing else moves, whatever the optimizer and its decay, and the chosen ones do. */
static void layers_that_are_not_named_keep_their_bytes(UNUSED void **state)
{
    static const enum optimizer optimizers[] = { OPTIMIZER_ADAMW, OPTIMIZER_ADAMW_8BIT, OPTIMIZER_ADAFACTOR };
    for (size_t o = 0; o < ARRAY_SIZE(optimizers); o++) {
        struct fixture f;
        struct error err = { 0 };
        fixture_open(&f, "GRPO", DEVICE, DT_F32);
        fixture_widen(&f);
        struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
        set.token_budget_max = 64;
        set.optimizer = optimizers[o];
        strcpy(set.layers, "1");
        f.h.weight_decay = 0.5;
        struct trainer *t = trainer_open_set(&f, &set);
        size_t bytes = model_weight_bytes(f.m);
        float *before = malloc(bytes), *after = malloc(bytes);
        assert_true(before && after && trainer_weights_get(t, before, &err));
        for (int i = 0; i < 2; i++)
            if (!trainer_step(t, (const struct group *const *)f.g + i * GROUPS, GROUPS, &f.h, NULL, &err))
                fail_msg("%s", err.text);
        assert_true(trainer_weights_get(t, after, &err));
        for (int64_t i = 0; i < model_n_tensor(f.m); i++) {
            const struct tensor *x = model_tensor(f.m, i);
            bool same = memcmp(before + x->offset, after + x->offset, (size_t)x->n_elem * 4) == 0;
            if (same == (strstr(x->name, "layers.1.") != NULL))
                fail_msg("'%s' %s with optimizer %d", x->name, same ? "stays" : "moves", (int)optimizers[o]);
        }
        free(before);
        free(after);
        trainer_free(t);
        fixture_close(&f);
    }
}

static void a_list_of_layers_is_read_or_refused(UNUSED void **state)
{
    static const struct {
        const char *text, *want;    // a sign per layer, + where it is named; NULL: refused
    } cases[] = { { "", "++++++" },    { "0", "+....." },
                  { "2-4", "..+++." }, { "0-1,5", "++...+" },
                  { "5,0", "+....+" }, { "6", NULL },
                  { "3-2", NULL },     { "1,", NULL },
                  { "a", NULL },       { "-1", NULL },
                  { "1-", NULL },      { "1 2", NULL },
                  { "0-1,,3", NULL },  { "99999999999999999999", NULL } };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        bool in[6];
        struct error err = { 0 };
        bool ok = layers_parse(cases[i].text, 6, in, &err);
        if (ok != (cases[i].want != NULL))
            fail_msg("'%s' is %s", cases[i].text, ok ? "taken" : err.text);
        for (int k = 0; k < 6 && ok; k++)
            assert_true(in[k] == (cases[i].want[k] == '+'));
    }
}

/* The smallest possible size of the largest of n_micro pieces, by trying every last border. */
static int64_t smallest_largest(const int64_t *rows, int64_t n, int64_t n_micro)
{
    int64_t best = INT64_MAX, piece = 0;
    for (int64_t i = n; i > 0 && (n_micro > 1 || i == n); i--) {
        int64_t last = 0;
        for (int64_t k = n_micro > 1 ? i - 1 : 0; k < n; k++)
            last += rows[k];
        piece = n_micro > 1 && i > 1 ? smallest_largest(rows, i - 1, n_micro - 1) : 0;
        best = MIN(best, MAX(last, piece));
    }
    return best;
}

static void a_batch_is_cut_in_order_and_as_evenly_as_can_be(UNUSED void **state)
{
    uint64_t rng = 3;
    for (int round = 0; round < 300; round++) {
        int64_t rows[10], first[11], n = round % 11, total = 0, largest = 0, budget = 20 + round % 37, least = n ? 1 : 0, room = budget,
                                     group = 1 + round % 3 / 2 * (1 + round % 2);    // 1, 2 or 3
        for (int64_t i = 0; i < n; i++) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            rows[i] = 1 + (int64_t)((rng >> 33) % 20);
            total += rows[i];
            if (rows[i] > room) {
                least++;
                room = budget;
            }
            room -= rows[i];
        }
        int64_t k = batch_cut(rows, n, budget, group, first), n_group = (least + group - 1) / group;
        int64_t allowed = n_group > 2 ? (n_group + 3) / 4 * 4 * group : least;
        assert_true(first[0] == 0 && first[k] == n && k >= least && k <= allowed);
        for (int64_t m = 0; m < k; m++) {
            int64_t size = 0;
            assert_true(first[m + 1] > first[m]);
            for (int64_t i = first[m]; i < first[m + 1]; i++)
                size += rows[i];
            assert_true(size <= budget);
            largest = MAX(largest, size);
            total -= size;
        }
        assert_true(total == 0);
        assert_true(n == 0 || largest == smallest_largest(rows, n, MIN(allowed, n)));
    }
}

static void log_probs_are_the_same_bits_in_any_packing(UNUSED void **state)
{
    for (int type = 0; type < 2; type++) {
        struct fixture f;
        struct error err = { 0 };
        fixture_open(&f, "GRPO", DEVICE, type ? DT_BF16 : DT_F32);
        float temperature[SAMPLES] = { 1, 0.7f, 1, 1.3f };
        int32_t token[SAMPLES * 16];
        int64_t len[SAMPLES], n = 0, n_logp = 0;
        for (int k = 0; k < SAMPLES; k++) {
            const struct group *g = f.g[k];
            len[k] = g->n_prompt + g->sample[0].n_tok;
            memcpy(token + n, g->prompt, (size_t)g->n_prompt * 4);
            memcpy(token + n + g->n_prompt, g->token, (size_t)g->sample[0].n_tok * 4);
            n += len[k];
            n_logp += len[k] - 1;
        }
        float together[SAMPLES * 16], alone[SAMPLES * 16], entropy[SAMPLES * 16];
        struct trainer *t = trainer_open(&f, 4096), *small = trainer_open(&f, 13);
        if (!trainer_logprobs(t, token, len, temperature, SAMPLES, together, entropy, &err)
            || !trainer_logprobs(small, token, len, temperature, SAMPLES, alone, NULL, &err))
            fail_msg("%s", err.text);
        assert_memory_equal(together, alone, (size_t)n_logp * 4);
        for (int64_t i = 0; i < n_logp; i++)
            assert_true(together[i] < 0 && entropy[i] > 0 && entropy[i] < 3.69f);    // ln 40
        trainer_free(t);
        trainer_free(small);
        fixture_close(&f);
    }
}

static void what_is_kept_and_what_is_computed_again_changes_no_bit(UNUSED void **state)
{
    for (int type = 0; type < 2; type++) {
        struct fixture f;
        struct error err = { 0 };
        fixture_open(&f, "GRPO", DEVICE, type ? DT_BF16 : DT_F32);
        int64_t n = model_n_flat(f.m);
        float *g[3];    // norms and SwiGLU again, whole blocks again, nothing again
        size_t bytes[3];
        for (int way = 0; way < 3; way++) {
            struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
            struct trainer_memory need;
            struct trainer_sums sums;
            set.token_budget_max = 64;
            set.recompute_block = way == 1;
            set.keep_more = way == 2;
            trainer_memory(f.m, &set, &need);
            bytes[way] = need.activation;
            struct trainer *t = trainer_open_set(&f, &set);
            g[way] = malloc((size_t)n * 4);
            if (!trainer_begin(t, (const struct group *const *)f.g, GROUPS, &f.h, &err) || !trainer_grad(t, &f.h, &sums, &err)
                || !trainer_grad_get(t, g[way], &err))
                fail_msg("%s", err.text);
            trainer_free(t);
        }
        assert_memory_equal(g[0], g[1], (size_t)n * 4);
        assert_memory_equal(g[0], g[2], (size_t)n * 4);
        assert_true(bytes[1] < bytes[0] && bytes[0] < bytes[2]);
        for (int way = 0; way < 3; way++)
            free(g[way]);
        fixture_close(&f);
    }
}

/* Three steps with the state on the device, partly and wholly in host memory; and with activations in borrowed memory
 * that others write between steps. */
static void where_the_state_lies_changes_no_bit(UNUSED void **state)
{
    for (int type = 0; type < 2; type++) {
        float *first[STATE_N] = { NULL };
        void *first_weights = NULL;
        for (int way = 0; way < 4; way++) {
            struct fixture f;
            struct error err = { 0 };
            size_t bytes;
            fixture_open(&f, "GRPO", DEVICE, type ? DT_BF16 : DT_F32);
            int64_t n = model_n_flat(f.m);
            struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
            struct trainer_memory all, now;
            set.token_budget_max = 64;
            trainer_memory(f.m, &set, &all);
            assert_true(all.host == 0);
            set.offload = way > 0;
            trainer_memory(f.m, &set, &now);    // everything in host memory; what state counts then is the stage
            assert_true(way == 0 || now.host == all.state);
            size_t stage = now.state;
            if (way == 2)
                set.state_bytes[0] = stage + all.state / 3;
            if (way == 3)
                set.scratch = malloc(all.activation);
            trainer_memory(f.m, &set, &now);
            assert_true(way != 2 || (now.host > 0 && now.host < all.state && now.state <= set.state_bytes[0]));
            assert_true(now.activation == all.activation);
            struct trainer *t = trainer_open_set(&f, &set);
            for (int i = 0; i < 3; i++) {
                if (!trainer_step(t, (const struct group *const *)f.g + i * GROUPS, GROUPS, &f.h, NULL, &err))
                    fail_msg("%s", err.text);
                if (set.scratch)
                    memset(set.scratch, 0xff, all.activation);
                if (i == 1) {    // out and in again, as a checkpoint does
                    for (int k = 0; k < STATE_N; k++) {
                        float *copy = malloc((size_t)n * 4);
                        assert_true(trainer_state_get(t, (enum trainer_state_kind)k, copy, &err));
                        assert_true(trainer_state_set(t, (enum trainer_state_kind)k, copy, &err));
                        free(copy);
                    }
                }
            }
            void *weights = model_weights(f.m, &bytes);
            for (int k = 0; k < STATE_N; k++) {
                float *got = malloc((size_t)n * 4);
                assert_true(trainer_state_get(t, (enum trainer_state_kind)k, got, &err));
                if (way == 0)
                    first[k] = got;
                else {
                    assert_memory_equal(got, first[k], (size_t)n * 4);
                    free(got);
                }
            }
            if (way == 0) {
                first_weights = malloc(bytes);
                memcpy(first_weights, weights, bytes);
            }
            assert_memory_equal(weights, first_weights, bytes);
            trainer_free(t);
            free(set.scratch);
            fixture_close(&f);
        }
        for (int k = 0; k < STATE_N; k++)
            free(first[k]);
        free(first_weights);
    }
}

/* Twenty steps so small that a bf16 weight moves only once its master has come half way to the next value. */
static void masters_collect_what_bf16_weights_cannot_show(UNUSED void **state)
{
    struct fixture f;
    struct error err = { 0 };
    double metric[METRIC_N];
    fixture_open(&f, "GRPO", DEVICE, DT_BF16);
    struct trainer *t = trainer_open(&f, 64);
    int64_t n = model_n_flat(f.m), moved = 0, still = 0;
    float *before = malloc((size_t)n * 4), *after = malloc((size_t)n * 4);
    size_t bytes;
    uint16_t *old = malloc((size_t)n * 2);
    const uint16_t *w = model_weights(f.m, &bytes);
    memcpy(old, w, (size_t)n * 2);
    f.h.lr = 1e-5;
    assert_true(trainer_state_get(t, STATE_MASTER, before, &err));
    for (int i = 0; i < STEPS; i++)
        if (!trainer_step(t, (const struct group *const *)f.g + i * GROUPS, GROUPS, &f.h, metric, &err))
            fail_msg("%s", err.text);
    assert_true(trainer_state_get(t, STATE_MASTER, after, &err));
    for (int64_t i = 0; i < n; i++) {
        assert_int_equal(w[i], bf16_from_f32(after[i]));    // never anything but the master rounded
        moved += after[i] != before[i];
        still += after[i] != before[i] && w[i] == old[i];
    }
    assert_true(moved > n / 2 && still > moved / 2);
    free(before);
    free(after);
    free(old);
    trainer_free(t);
    fixture_close(&f);
}

/* One update without decay, with it on all, and on matrices alone: norms and biases are the first's bits, the rest the second's; on the
 * device, and with the state in host memory. */
static void norms_and_biases_decay_only_when_asked(UNUSED void **state)
{
    for (int offload = 0; offload < 2; offload++) {
        float *after[3];
        int64_t n_same = 0, n_apart = 0;
        struct fixture f;
        for (int way = 0; way < 3; way++) {
            struct error err = { 0 };
            struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
            fixture_open(&f, "GRPO", DEVICE, DT_F32);
            set.token_budget_max = 64;
            set.offload = offload;
            f.h.weight_decay = way ? 0.5 : 0;
            f.h.decay_matrices = way == 2;
            struct trainer *t = trainer_open_set(&f, &set);
            after[way] = malloc((size_t)trainer_grad_n(t) * 4);
            if (!trainer_step(t, (const struct group *const *)f.g, GROUPS, &f.h, NULL, &err)
                || !trainer_state_get(t, STATE_MASTER, after[way], &err))
                fail_msg("%s", err.text);
            trainer_free(t);
            if (way < 2)
                fixture_close(&f);
        }
        for (int64_t i = 0; i < model_n_tensor(f.m); i++) {
            const struct tensor *x = model_tensor(f.m, i);
            const float *want = after[x->n_dim == 1 ? 0 : 1] + x->offset, *other = after[x->n_dim == 1 ? 1 : 0] + x->offset;
            if (memcmp(after[2] + x->offset, want, (size_t)x->n_elem * 4) != 0)
                fail_msg("'%s' has another decay (offload %d)", x->name, offload);
            n_same += x->n_dim == 1;
            n_apart += memcmp(want, other, (size_t)x->n_elem * 4) != 0;
        }
        assert_true(n_same > 0 && n_same < model_n_tensor(f.m) && n_apart == model_n_tensor(f.m));    // each could have been the other
        for (int way = 0; way < 3; way++)
            free(after[way]);
        fixture_close(&f);
    }
}

static void a_ratio_beyond_the_threshold_leaves_its_sample_out(UNUSED void **state)
{
    struct fixture f;
    struct error err = { 0 };
    double metric[METRIC_N];
    fixture_open(&f, "DAPO", DEVICE, DT_F32);
    f.h.mask_truncated = false;
    f.h.skip_threshold = 20;
    f.g[0]->logp[f.g[0]->sample[1].first_tok] -= 10;    // ratio e^10 on one token
    struct trainer *t = trainer_open(&f, 64);
    trainer_version_set(t, 3);    // groups carry version 0: three steps old
    if (!trainer_step(t, (const struct group *const *)f.g, GROUPS, &f.h, metric, &err))
        fail_msg("%s", err.text);
    assert_true(fabs(metric[M_SKIPPED] - 1.0 / (GROUPS * SAMPLES)) < 1e-12);
    assert_true(metric[M_AGE_MEAN] == 3 && metric[M_AGE_MAX] == 3 && metric[M_RATIO_MAX] > 20);
    trainer_free(t);
    fixture_close(&f);
}

/* A device's logprob_fwd that counts rows of logits. */
struct counted_rows {
    struct ops op;
    const struct ops *real;
    int64_t n;
};
static bool logprob_fwd_counted(struct device *dev, const struct logprob_fwd *a, struct error *err)
{
    struct counted_rows *c = (struct counted_rows *)dev->op;
    c->n += a->n;
    return c->real->logprob_fwd(dev, a, err);
}

/* A sample that is left out has the bits of one without an advantage, which needs no log-prob to be known: whether all logits fit the
 * head's chunk or are looked at while their gradient is made, or first because the micro-batch before had such a sample. */
static void a_sample_left_out_has_the_gradient_of_one_without_an_advantage(UNUSED void **state)
{
    static const struct {
        const char *model;
        enum dtype dtype;
        int64_t rows, budget;       // of the head at a time; of a micro-batch
        int n_left_out, n_times;    // samples; how often logits are computed
    } cases[] = {
        { "qwen2-tied", DT_F32, 4096, 4096, 1, 1 }, { "qwen2-tied", DT_F32, 3, 4096, 1, 2 },   { "qwen2-tied", DT_BF16, 3, 64, 3, 2 },
        { "qwen2-tied", DT_F32, 3, 64, 0, 1 },      { "qwen3-untied", DT_F32, 3, 4096, 1, 2 }, { "qwen3-untied", DT_F32, 4096, 64, 1, 1 },
        { "qwen3-untied", DT_F32, 3, 64, 3, 2 },    { "qwen3-untied", DT_BF16, 3, 64, 0, 1 },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        float *grad[2];
        int64_t n_row[2];
        struct fixture f;
        for (int known = 0; known < 2; known++) {
            struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
            struct trainer_sums sums;
            struct error err = { 0 };
            fixture_open_model(&f, "DAPO", DEVICE, cases[i].dtype, cases[i].model);
            f.dev->head_rows = cases[i].rows * model_config(f.m)->vocab;
            f.h.mask_truncated = false;
            f.h.skip_threshold = known ? 0 : 1000;    // the log-probs were recorded of one of the models
            for (int g = 0; g < cases[i].n_left_out; g++) {
                f.g[g]->logp[f.g[g]->sample[1].first_tok] -= 20;    // ratio e^20 on one token
                f.g[g]->sample[1].adv_zero = known;
            }
            set.token_budget_max = cases[i].budget;
            set.run_all = true;
            struct trainer *t = trainer_open_set(&f, &set);
            struct counted_rows count = { .op = *f.dev->op, .real = f.dev->op };
            count.op.logprob_fwd = logprob_fwd_counted;
            f.dev->op = &count.op;
            trainer_version_set(t, 3);
            grad[known] = malloc((size_t)trainer_grad_n(t) * 4);
            if (!trainer_begin(t, (const struct group *const *)f.g, GROUPS, &f.h, &err) || !trainer_grad(t, &f.h, &sums, &err)
                || !trainer_grad_get(t, grad[known], &err))
                fail_msg("%s", err.text);
            assert_true(sums.n_skipped == (known ? 0 : cases[i].n_left_out) && (cases[i].budget > 64 || sums.n_micro > 1));
            f.dev->op = count.real;
            n_row[known] = count.n;
            if (known && memcmp(grad[0], grad[1], (size_t)trainer_grad_n(t) * 4) != 0)
                fail_msg("case %zu: %d samples left out give another gradient", i, cases[i].n_left_out);
            trainer_free(t);
            fixture_close(&f);
        }
        if (n_row[0] != cases[i].n_times * n_row[1])
            fail_msg("case %zu: %d rows of logits were computed for %d", i, (int)n_row[0], (int)n_row[1]);
        free(grad[0]);
        free(grad[1]);
    }
}

static void entropy_and_kl_are_means_over_tokens(UNUSED void **state)
{
    struct fixture f;
    struct error err = { 0 };
    double metric[METRIC_N], sum = 0, kl = 0, n = 0;
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    fixture_open(&f, "GRPO", DEVICE, DT_F32);
    set.token_budget_max = 64;
    set.run_all = true;
    f.h.form.beta = 0.05f;
    struct model *other = model_new_random(model_config(f.m), 7, f.dev, DT_F32, &err);    // a reference that is not the policy
    assert_non_null(other);
    struct trainer *t = trainer_new(f.m, other, &set, &err), *ref = trainer_new(other, NULL, &set, &err);
    assert_true(t && ref);
    for (int i = 0; i < GROUPS; i++)
        for (int k = 0; k < SAMPLES; k++) {    // each sample by itself, whose lengths differ
            const struct group *g = f.g[i];
            const struct sample *s = &g->sample[k];
            int32_t token[64];
            float logp[64], logp_ref[64], entropy[64], temperature = 1;
            int64_t len = g->n_prompt + s->n_tok, first = g->n_prompt - 1;
            assert_in_range(len, 2, 64);
            memcpy(token, g->prompt, (size_t)g->n_prompt * 4);
            memcpy(token + g->n_prompt, g->token + s->first_tok, (size_t)s->n_tok * 4);
            assert_true(trainer_logprobs(t, token, &len, &temperature, 1, logp, entropy, &err)
                        && trainer_logprobs(ref, token, &len, &temperature, 1, logp_ref, NULL, &err));
            for (int64_t q = first; q < first + s->n_tok; q++) {
                double d = (double)logp_ref[q] - (double)logp[q];
                sum += (double)entropy[q];
                kl += exp(d) - d - 1;    // k3
                n++;
            }
        }
    assert_true(trainer_step(t, (const struct group *const *)f.g, GROUPS, &f.h, metric, &err));
    assert_true(fabs(metric[M_ENTROPY] - sum / n) < 1e-12 * fabs(sum / n));    // the same bits, summed in another order
    assert_true(fabs(metric[M_KL] - kl / n) < 1e-12 * fabs(kl / n));
    trainer_free(ref);
    trainer_free(t);
    model_free(other);
    fixture_close(&f);
}

/* ---- groups that nothing can be computed with */
static void logp_is_nan(struct group *g)
{
    g->logp[0] = NAN;
}
static void logp_overflows(struct group *g)
{
    for (int64_t i = 0; i < g->n_tok; i++)    // some of them have a negative advantage, whose ratio is not clipped
        g->logp[i] = -3000;
}
static void advantage_overflows(struct group *g)
{
    g->has_adv = true;
    for (int64_t i = 0; i < g->n_tok; i++)
        g->adv[i] = 3e38F;
}
static void reward_is_infinite(struct group *g)
{
    g->sample[0].reward = INFINITY;
}
static void id_is_no_row(struct group *g)
{
    g->token[0] = 1 << 20;
}
static void prompt_id_is_negative(struct group *g)
{
    g->prompt[0] = -1;
}
static void sample_is_elsewhere(struct group *g)
{
    g->sample[1].first_tok = g->n_tok;
}
static const struct {
    void (*spoil)(struct group *g);
    const char *why;    // some of what is said of it
} poisons[] = {
    { logp_is_nan, "not finite" },
    { logp_overflows, "not finite" },
    { advantage_overflows, "not finite" },
    { reward_is_infinite, "not finite" },
    { id_is_no_row, "has the token 1048576" },
    { prompt_id_is_negative, "has the token -1" },
    { sample_is_elsewhere, "points outside of its group's tokens" },
};

/* Two steps of n_rank ranks on the fixture's groups; of the first, those in `without` (bits) are not given, and those in `spoilt` are
 * spoilt by poison p and must be left out. */
static void poisoned_make(void **weights, size_t *bytes, int n_rank, int zero, unsigned without, unsigned spoilt, size_t p, int64_t n_epoch)
{
    struct error err = { 0 };
    struct fixture f[3];
    struct trainer *t[3];
    double metric[METRIC_N];
    for (int r = 0; r < n_rank; r++) {
        struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
        fixture_open(&f[r], "GRPO", DEVICE, DT_F32);
        fixture_widen(&f[r]);
        f[r].h.n_epoch = n_epoch;
        set.token_budget_max = 30;
        set.n_rank = n_rank;
        set.rank = r;
        set.zero_stage = zero;
        if (!(t[r] = trainer_new(f[r].m, f[r].ref, &set, &err)))
            fail_msg("%s", err.text);
    }
    const struct group *given[GROUPS];
    int64_t n = 0, n_spoilt = 0;
    for (unsigned i = 0; i < GROUPS; i++)
        if (!(without >> i & 1)) {
            n_spoilt += spoilt >> i & 1;
            if (spoilt >> i & 1)
                poisons[p].spoil(f[0].g[i]);
            given[n++] = f[0].g[i];
        }
    struct ranks *ranks = ranks_new_here(t, n_rank, &err);
    assert_non_null(ranks);
    if (!ranks_step(ranks, given, n, &f[0].h, metric, &err))
        fail_msg("poison %zu, %d ranks: %s", p, n_rank, err.text);
    const struct left_out *left;
    if (trainer_left_out(t[0], &left) != n_spoilt)
        fail_msg("poison %zu of %u: %d groups are left out", p, spoilt, (int)trainer_left_out(t[0], &left));
    for (int64_t i = 0; i < n_spoilt; i++) {
        assert_true(spoilt >> left[i].group->item & 1);
        if (!strstr(left[i].why, poisons[p].why))
            fail_msg("poison %zu: %s", p, left[i].why);
    }
    if (!ranks_step(ranks, (const struct group *const *)f[0].g + GROUPS, GROUPS, &f[0].h, metric, &err))
        fail_msg("%s", err.text);
    assert_int_equal(trainer_left_out(t[0], &left), 0);
    *bytes = model_weight_bytes(f[0].m);
    assert_non_null(*weights = malloc(*bytes));
    assert_true(trainer_weights_get(t[0], *weights, &err));
    ranks_free(ranks);
    for (int r = 0; r < n_rank; r++) {
        trainer_free(t[r]);
        fixture_close(&f[r]);
    }
}

static void a_step_leaves_out_what_it_cannot_compute_with_and_has_the_bytes_of_one_without(UNUSED void **state)
{
    static const struct {
        int n_rank, zero;
        unsigned spoilt;
        int64_t n_epoch;
    } cases[] = { { 1, 0, 1, 1 }, { 1, 0, 5, 2 }, { 2, 0, 2, 1 }, { 3, 3, 4, 1 }, { 2, 1, 7, 1 } };    // the last: nothing is left
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        for (size_t p = 0; p < ARRAY_SIZE(poisons); p++) {
            void *with, *without;
            size_t bytes;
            poisoned_make(&with, &bytes, cases[i].n_rank, cases[i].zero, 0, cases[i].spoilt, p, cases[i].n_epoch);
            poisoned_make(&without, &bytes, cases[i].n_rank, cases[i].zero, cases[i].spoilt, 0, p, cases[i].n_epoch);
            if (memcmp(with, without, bytes) != 0)
                fail_msg("case %zu, poison %zu: other weights than without the group", i, p);
            free(with);
            free(without);
        }
}

static void weights_that_are_not_finite_fail_the_step_and_blame_no_group(UNUSED void **state)
{
    struct fixture f;
    struct error err = { 0 };
    uint64_t before, after;
    double metric[METRIC_N];
    size_t bytes;
    const struct left_out *left;
    fixture_open(&f, "GRPO", DEVICE, DT_F32);
    float *weight = model_weights(f.m, &bytes);
    for (size_t i = 0; i < bytes / 4; i += 5)
        weight[i] = NAN;
    struct trainer *t = trainer_open(&f, 64);
    assert_true(model_weights_hash(f.m, &before, &err));
    assert_false(trainer_step(t, (const struct group *const *)f.g, GROUPS, &f.h, metric, &err));
    assert_int_equal(err.code, ERR_DATA);
    assert_non_null(strstr(err.text, "rollback"));
    assert_int_equal(trainer_left_out(t, &left), 0);
    assert_true(model_weights_hash(f.m, &after, &err));
    assert_true(before == after && trainer_version(t) == 0);
    f.h.form.beta = 0.1f;
    trainer_free(t);
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    t = trainer_new(f.m, NULL, &set, &err);    // no reference
    assert_non_null(t);
    assert_false(trainer_step(t, (const struct group *const *)f.g, GROUPS, &f.h, metric, &err));
    assert_int_equal(err.code, ERR_USAGE);
    trainer_free(t);
    fixture_close(&f);
}

/* Groups whose items add up to more than `limit` fail together, and one that has more alone. */
struct adder {
    int64_t limit, n_attempt, broken_at;
    int64_t out[8], n_out;
};
static enum attempt adder_try(void *ctx, const struct group *const *group, int64_t n, struct error *err)
{
    struct adder *a = ctx;
    int64_t sum = 0;
    if (++a->n_attempt == a->broken_at) {
        error_set(err, ERR_CLOSED, "another rank has gone");
        return ATTEMPT_FAILED;
    }
    for (int64_t i = 0; i < n; i++)
        sum += group[i]->item;
    if (sum > a->limit)
        error_set(err, ERR_DATA, "%d is too much", (int)sum);
    return sum > a->limit ? ATTEMPT_FAULT : ATTEMPT_OK;
}
static bool adder_take_out(void *ctx, const struct group *g, UNUSED const struct error *why, UNUSED struct error *err)
{
    struct adder *a = ctx;
    a->out[a->n_out++] = g->item;
    return true;
}
static void groups_that_fail_only_together_are_taken_out_one_by_one(UNUSED void **state)
{
    static const struct {
        int64_t limit, item[6], n, out[6], n_out;
    } cases[] = {
        { 10, { 11, 1, 2 }, 3, { 11 }, 1 },  { 10, { 3, 3, 3, 3, 1 }, 5, { 3 }, 1 },
        { 10, { 6, 6, 6 }, 3, { 6, 6 }, 2 }, { 10, { 20, 9, 12, 2, 1 }, 5, { 20, 12, 2 }, 3 },
        { 0, { 1 }, 1, { 1 }, 1 },           { -1, { 1, 2 }, 2, { 1, 2 }, 2 },    // even none at all fails
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct group g[6] = { { 0 } };
        const struct group *group[6];
        struct adder a = { .limit = cases[i].limit };
        int64_t n = cases[i].n;
        for (int64_t k = 0; k < n; k++) {
            g[k].item = cases[i].item[k];
            group[k] = &g[k];
        }
        assert_int_equal(blame_find(&(struct blame){ adder_try, adder_take_out, &a }, group, &n, &err), cases[i].limit >= 0);
        assert_int_equal(a.n_out, cases[i].n_out);
        assert_memory_equal(a.out, cases[i].out, (size_t)a.n_out * sizeof a.out[0]);
        assert_int_equal(n, cases[i].n - a.n_out);
        for (int64_t at = 1, last = a.n_attempt; at <= last; at++) {    // any attempt that fails otherwise ends it
            a = (struct adder){ .limit = cases[i].limit, .broken_at = at };
            n = cases[i].n;
            for (int64_t k = 0; k < n; k++)
                group[k] = &g[k];
            assert_false(blame_find(&(struct blame){ adder_try, adder_take_out, &a }, group, &n, &err));
            assert_int_equal(err.code, ERR_CLOSED);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_added_and_of_maxima_the_larger_counts),
        cmocka_unit_test(twenty_steps_are_pytorchs),
        cmocka_unit_test(every_form_of_the_loss_is_pytorchs),
        cmocka_unit_test(the_gradient_does_not_depend_on_the_cut),
        cmocka_unit_test(a_prompt_computed_once_gives_what_one_for_each_sample_gives),
        cmocka_unit_test(what_an_environment_said_is_read_and_not_learnt),
        cmocka_unit_test(tokens_between_given_ones_learn_alone),
        cmocka_unit_test(what_came_with_a_group_takes_the_place_of_what_its_rewards_give),
        cmocka_unit_test(a_group_without_logprobs_has_the_gradient_of_current_ones),
        cmocka_unit_test(the_reference_moves_by_its_share_every_so_many_steps),
        cmocka_unit_test(adamw_of_bytes_is_pytorchs),
        cmocka_unit_test(a_block_keeps_its_largest_value_and_small_ones_roughly),
        cmocka_unit_test(layers_that_are_not_named_keep_their_bytes),
        cmocka_unit_test(a_list_of_layers_is_read_or_refused),
        cmocka_unit_test(any_number_of_ranks_leaves_the_same_bytes),
        cmocka_unit_test(any_number_of_ranks_leaves_the_same_bytes_with_the_same_groups),
        cmocka_unit_test(a_groups_gradients_are_added_up_before_the_groups),
        cmocka_unit_test(a_batch_is_cut_in_order_and_as_evenly_as_can_be),
        cmocka_unit_test(log_probs_are_the_same_bits_in_any_packing),
        cmocka_unit_test(what_is_kept_and_what_is_computed_again_changes_no_bit),
        cmocka_unit_test(where_the_state_lies_changes_no_bit),
        cmocka_unit_test(masters_collect_what_bf16_weights_cannot_show),
        cmocka_unit_test(norms_and_biases_decay_only_when_asked),
        cmocka_unit_test(a_ratio_beyond_the_threshold_leaves_its_sample_out),
        cmocka_unit_test(a_sample_left_out_has_the_gradient_of_one_without_an_advantage),
        cmocka_unit_test(entropy_and_kl_are_means_over_tokens),
        cmocka_unit_test(a_step_leaves_out_what_it_cannot_compute_with_and_has_the_bytes_of_one_without),
        cmocka_unit_test(weights_that_are_not_finite_fail_the_step_and_blame_no_group),
        cmocka_unit_test(groups_that_fail_only_together_are_taken_out_one_by_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
