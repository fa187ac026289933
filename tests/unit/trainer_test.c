/* The optimizer step: 20 steps of each algorithm against PyTorch, and what does not depend on how a batch is cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "protocol/run/metrics.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/safetensors.h"

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

/* The groups of a fixture, in order; each freed by the caller. */
static void groups_read(const struct shards *s, struct group **out)
{
    struct error err;
    float *token = array(s, "token"), *n_prompt = array(s, "n_prompt"), *n_tok = array(s, "n_tok"),
          *old = array(s, "logp_old");
    float *reward = array(s, "reward"), *cut = array(s, "cut");
    int64_t at_tok = 0, at_old = 0;
    for (int64_t i = 0; i < STEPS * GROUPS; i++) {
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
            g->sample[k] = (struct sample){.first_tok = first,
                                           .n_tok = (int64_t)n_tok[q],
                                           .score = SCORE_OK,
                                           .reward = (double)reward[q],
                                           .finish = cut[q] != 0 ? FINISH_LENGTH : FINISH_STOP};
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

struct fixture {
    struct device *dev;
    struct model *m, *ref;
    struct shards *s;
    struct group *g[STEPS * GROUPS];
    struct trainer_hyper h;
};

static void fixture_open(struct fixture *f, enum algo algo, const char *device, enum dtype dtype)
{
    struct error err = { 0 };
    char dir[1024], path[1024];
    snprintf(dir, sizeof dir, "%s/golden/models/qwen2-tied", TEST_DATA_DIR);
    snprintf(path, sizeof path, "%s/golden/rl/%s.safetensors", TEST_DATA_DIR, algo_name(algo));
    *f = (struct fixture){ 0 };
    if (!(f->dev = device_new(device, 2, &err)) || !(f->m = model_load(dir, f->dev, dtype, &err))
        || !(f->ref = model_load(dir, f->dev, dtype, &err)) || !(f->s = shards_open_file(path, &err)))
        fail_msg("%s", err.text);
    groups_read(f->s, f->g);
    trainer_hyper_init(&f->h, algo);
    f->h.lr = 3e-3;
    f->h.beta = algo == ALGO_DAPO ? 0 : 0.05;
    f->h.has_filter = false;
    f->h.skip_threshold = 0;
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

static struct trainer *trainer_open_as(struct fixture *f, int64_t token_budget, bool recompute_block)
{
    struct error err = { 0 };
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    set.token_budget_max = token_budget;
    set.recompute_block = recompute_block;
    struct trainer *t = trainer_new(f->m, f->ref, &set, &err);
    if (!t)
        fail_msg("%s", err.text);
    return t;
}

static struct trainer *trainer_open(struct fixture *f, int64_t token_budget)
{
    return trainer_open_as(f, token_budget, false);
}

static void twenty_steps_are_pytorchs(UNUSED void **state)
{
    for (enum algo a = ALGO_GRPO; a <= ALGO_REINFORCE_PPB; a++) {
        struct fixture f;
        struct error err = { 0 };
        fixture_open(&f, a, DEVICE, DT_F32);
        struct trainer *t = trainer_open(&f, 64);    // several micro-batches a step
        float *loss = array(f.s, "loss"), *norm = array(f.s, "norm");
        for (int i = 0; i < STEPS; i++) {
            double metric[METRIC_N];
            if (!trainer_step(t, (const struct group *const *)f.g + i * GROUPS, GROUPS, &f.h, metric, &err))
                fail_msg("%s", err.text);
            // fp32 sums in another order, twenty updates deep
            if (!(fabs(metric[M_LOSS] - (double)loss[i]) < 1e-4 * fmax(fabs((double)loss[i]), 0.1))
                || !(fabs(metric[M_GRAD_NORM] - (double)norm[i]) < 1e-3 * (double)norm[i]))
                fail_msg("%s, step %d: loss %.7g, norm %.7g; PyTorch has %.7g, %.7g", algo_name(a), i, metric[M_LOSS],
                         metric[M_GRAD_NORM], (double)loss[i], (double)norm[i]);
        }
        free(loss);
        free(norm);
        trainer_free(t);
        fixture_close(&f);
    }
}

/* The gradient of the first step's groups, split over ranks that each hold some of them; returned for free. */
static float *gradient(struct fixture *f, int64_t token_budget, int n_rank)
{
    struct error err = { 0 };
    const struct group *const *groups = (const struct group *const *)f->g;
    struct trainer *t = trainer_open(f, token_budget);
    int64_t n = trainer_grad_n(t);
    float *part[GROUPS], *sum = malloc((size_t)n * 4);
    struct trainer_norm norm, global = { 0 };
    struct trainer_sums sums;
    for (int r = 0; r < n_rank; r++) {    // what each rank would say
        if (!trainer_begin(t, groups + r * GROUPS / n_rank, (r + 1) * GROUPS / n_rank - r * GROUPS / n_rank, &f->h,
                           &norm, &err))
            fail_msg("%s", err.text);
        trainer_norm_add(&global, &norm);
    }
    for (int r = 0; r < n_rank; r++) {
        part[r] = malloc((size_t)n * 4);
        if (!trainer_begin(t, groups + r * GROUPS / n_rank, (r + 1) * GROUPS / n_rank - r * GROUPS / n_rank, &f->h,
                           &norm, &err) ||
            !trainer_grad(t, &f->h, &global, &sums, &err) || !trainer_grad_get(t, part[r], &err))
            fail_msg("%s", err.text);
    }
    for (int64_t i = 0; i < n; i++) {    // in rank order, as collective_sum does
        sum[i] = part[0][i];
        for (int r = 1; r < n_rank; r++)
            sum[i] += part[r][i];
    }
    for (int r = 0; r < n_rank; r++)
        free(part[r]);
    trainer_free(t);
    return sum;
}

static void the_gradient_does_not_depend_on_the_cut(UNUSED void **state)
{
    for (enum algo a = ALGO_GRPO; a <= ALGO_REINFORCE_PPB; a++) {
        struct fixture f;
        fixture_open(&f, a, DEVICE, DT_F32);
        int64_t n = model_n_flat(f.m);
        float *whole = gradient(&f, 4096, 1), *again = gradient(&f, 4096, 1);
        assert_memory_equal(whole, again, (size_t)n * 4);    // the same cut: the same bits
        static const struct { int64_t budget; int n_rank; } cuts[] = { { 13, 1 }, { 40, 1 }, { 4096, 3 }, { 13, 2 } };
        for (size_t i = 0; i < ARRAY_SIZE(cuts); i++) {
            float *g = gradient(&f, cuts[i].budget, cuts[i].n_rank);
            double d = 0, s = 0;
            for (int64_t k = 0; k < n; k++) {
                d += ((double)g[k] - (double)whole[k]) * ((double)g[k] - (double)whole[k]);
                s += (double)whole[k] * (double)whole[k];
            }
            if (!(sqrt(d / s) < 1e-6))
                fail_msg("%s: micro-batches of %lld tokens on %d ranks move the gradient by %g", algo_name(a),
                         (long long)cuts[i].budget, cuts[i].n_rank, sqrt(d / s));
            free(g);
        }
        free(whole);
        free(again);
        fixture_close(&f);
    }
}

static void log_probs_are_the_same_bits_in_any_packing(UNUSED void **state)
{
    for (int type = 0; type < 2; type++) {
        struct fixture f;
        struct error err = { 0 };
        fixture_open(&f, ALGO_GRPO, DEVICE, type ? DT_BF16 : DT_F32);
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

static void running_blocks_again_changes_no_bit(UNUSED void **state)
{
    for (int type = 0; type < 2; type++) {
        struct fixture f;
        struct error err = { 0 };
        fixture_open(&f, ALGO_GRPO, DEVICE, type ? DT_BF16 : DT_F32);
        int64_t n = model_n_flat(f.m);
        float *g[2];
        for (int again = 0; again < 2; again++) {
            struct trainer *t = trainer_open_as(&f, 64, again);
            struct trainer_norm norm;
            struct trainer_sums sums;
            g[again] = malloc((size_t)n * 4);
            if (!trainer_begin(t, (const struct group *const *)f.g, GROUPS, &f.h, &norm, &err)
                || !trainer_grad(t, &f.h, &norm, &sums, &err) || !trainer_grad_get(t, g[again], &err))
                fail_msg("%s", err.text);
            trainer_free(t);
        }
        assert_memory_equal(g[0], g[1], (size_t)n * 4);
        free(g[0]);
        free(g[1]);
        fixture_close(&f);
    }
}

static struct trainer *trainer_open_set(struct fixture *f, const struct trainer_settings *set)
{
    struct error err = { 0 };
    struct trainer *t = trainer_new(f->m, f->ref, set, &err);
    if (!t)
        fail_msg("%s", err.text);
    return t;
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
            fixture_open(&f, ALGO_GRPO, DEVICE, type ? DT_BF16 : DT_F32);
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
                set.state_bytes = stage + all.state / 3;
            if (way == 3)
                set.scratch = malloc(all.activation);
            trainer_memory(f.m, &set, &now);
            assert_true(way != 2 || (now.host > 0 && now.host < all.state && now.state <= set.state_bytes));
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
    fixture_open(&f, ALGO_GRPO, DEVICE, DT_BF16);
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

static void a_ratio_beyond_the_threshold_leaves_its_sample_out(UNUSED void **state)
{
    struct fixture f;
    struct error err = { 0 };
    double metric[METRIC_N];
    fixture_open(&f, ALGO_DAPO, DEVICE, DT_F32);
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

static void a_gradient_that_is_not_finite_changes_nothing(UNUSED void **state)
{
    struct fixture f;
    struct error err = { 0 };
    uint64_t before, after;
    double metric[METRIC_N];
    fixture_open(&f, ALGO_GRPO, DEVICE, DT_F32);
    struct trainer *t = trainer_open(&f, 64);
    f.g[0]->logp[0] = NAN;
    assert_true(model_weights_hash(f.m, &before, &err));
    assert_false(trainer_step(t, (const struct group *const *)f.g, GROUPS, &f.h, metric, &err));
    assert_int_equal(err.code, ERR_DATA);
    assert_true(model_weights_hash(f.m, &after, &err));
    assert_true(before == after && trainer_version(t) == 0);
    f.h.beta = 0.1;
    trainer_free(t);
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    t = trainer_new(f.m, NULL, &set, &err);    // no reference
    assert_non_null(t);
    assert_false(trainer_step(t, (const struct group *const *)f.g, GROUPS, &f.h, metric, &err));
    assert_int_equal(err.code, ERR_USAGE);
    trainer_free(t);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(twenty_steps_are_pytorchs), cmocka_unit_test(the_gradient_does_not_depend_on_the_cut),
        cmocka_unit_test(log_probs_are_the_same_bits_in_any_packing),
        cmocka_unit_test(running_blocks_again_changes_no_bit), cmocka_unit_test(where_the_state_lies_changes_no_bit),
        cmocka_unit_test(masters_collect_what_bf16_weights_cannot_show),
        cmocka_unit_test(a_ratio_beyond_the_threshold_leaves_its_sample_out),
        cmocka_unit_test(a_gradient_that_is_not_finite_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
