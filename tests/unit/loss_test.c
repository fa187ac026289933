/* Advantages, masks, weights and schedules against vectors (worked by hand from the formulas). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include "workers/engine/trainer/loss.h"
#include "workers/engine/trainer/schedule.h"

#define G 4
static struct group *group_of(const double *reward, const int64_t *len, int n)
{
    struct error err;
    int64_t total = 0;
    for (int i = 0; i < n; i++)
        total += len ? len[i] : 1;
    struct group *g = group_new(2, n, total, &err);
    assert_non_null(g);
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        g->sample[i] = (struct sample){
            .first_tok = at, .n_tok = len ? len[i] : 1, .score = SCORE_OK, .reward = reward[i], .ans_acc = reward[i] > 0
        };
        at += g->sample[i].n_tok;
    }
    return g;
}

static void advantages_follow_each_algorithm(UNUSED void **state)
{
    // clang-format off
    static const struct { enum algo algo; double reward[G], want[G]; double tol; const char *why;
    } cases[] = {
        {ALGO_GRPO, {10, 0, 0, 0}, {1.49997, -0.49999, -0.49999, -0.49999}, 1e-5, "one of four, unbiased deviation 5"},
        {ALGO_GRPO, {10, 0, 0, 10}, {0.866010, -0.866010, -0.866010, 0.866010}, 1e-6, "two of four"},
        {ALGO_DAPO, {10, 0, 0, 0}, {1.49997, -0.49999, -0.49999, -0.49999}, 1e-5, "as GRPO"},
        {ALGO_RLOO, {10, 0, 0, 0}, {10, -10.0 / 3, -10.0 / 3, -10.0 / 3}, 1e-12, "against the mean of the others"},
        {ALGO_REINFORCE_PPB, {10, 0, 0, 0}, {7.5, -2.5, -2.5, -2.5}, 1e-12, "against the mean; scaled later"},
        {ALGO_GRPO, {0.1, 0.1, 0.1, 0.1}, {0, 0, 0, 0}, 0, "no spread: nothing, to the bit"},
        {ALGO_RLOO, {0.1, 0.1, 0.1, 0.1}, {0, 0, 0, 0}, 0, "no spread"},
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct group *g = group_of(cases[i].reward, NULL, G);
        double adv[G];
        advantage_group(adv, cases[i].algo, g);
        for (int k = 0; k < G; k++)
            if (!(fabs(adv[k] - cases[i].want[k]) <= cases[i].tol))
                fail_msg("case %zu (%s): sample %d has %.9g, not %.9g", i, cases[i].why, k, adv[k], cases[i].want[k]);
        group_free(g);
    }
}

static void ppb_is_normalised_over_the_batch(UNUSED void **state)
{
    static const struct {
        int64_t len[G];
        bool as_coded;
        double want[G];
    } cases[] = {
        { { 2, 1, 3, 2 }, false, { 1.732062, -0.577354, -0.577354, -0.577354 } },
        { { 2, 1, 3, 2 }, true, { 32.47575, -10.82525, -10.82525, -10.82525 } },
        { { 1, 2, 3, 4 }, false, { 3.000010, -0.333340, -0.333340, -0.333340 } },
        { { 1, 2, 3, 4 }, true, { 26.99982, -3.00003, -3.00003, -3.00003 } },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct trainer_hyper h;
        trainer_hyper_init(&h, ALGO_REINFORCE_PPB);
        h.ppb_as_coded = cases[i].as_coded;
        double a[G] = { 7.5, -2.5, -2.5, -2.5 };
        struct trainer_norm norm = { 0 };
        for (int k = 0; k < G; k++) {
            struct trainer_norm part = { .n_sample = 1,
                                         .n_tok = (double)cases[i].len[k],
                                         .sum_a = a[k] * (double)cases[i].len[k],
                                         .sum_a2 = a[k] * a[k] * (double)cases[i].len[k] };
            trainer_norm_add(&norm, &part);    // as ranks would
        }
        for (int k = 0; k < G; k++)
            if (!(fabs(advantage_normalise(a[k], &h, &norm) - cases[i].want[k]) <= 1e-6 * fabs(cases[i].want[k]) * 2))
                fail_msg("case %zu: sample %d has %.9g, not %.9g", i, k, advantage_normalise(a[k], &h, &norm), cases[i].want[k]);
    }
}

static void a_sample_its_verifier_left_out_counts_nowhere(UNUSED void **state)
{
    struct group *g = group_of((double[]){ 10, 0, 777, 10, 0 }, NULL, 5);
    g->sample[2].score = SCORE_LEFT_OUT;
    double adv[5];
    struct trainer_hyper h;
    trainer_hyper_init(&h, ALGO_GRPO);
    advantage_group(adv, ALGO_GRPO, g);
    assert_true(fabs(adv[0] - 0.866010) < 1e-6 && fabs(adv[1] + 0.866010) < 1e-6);    // those of [10, 0, 10, 0]
    assert_true(adv[2] == 0 && !sample_in_loss(g, 2, &h) && sample_in_loss(g, 0, &h));
    for (int i = 0; i < 4; i++)
        g->sample[i].score = SCORE_LEFT_OUT;
    advantage_group(adv, ALGO_RLOO, g);
    for (int i = 0; i < 5; i++)
        assert_true(adv[i] == 0);    // one that counts has nothing to compare with
    assert_false(group_has_spread(g));
    group_free(g);
}

static void masks_and_filters_decide_about_whole_samples(UNUSED void **state)
{
    struct group *g = group_of((double[]){ 10, 0, 0, 0 }, (int64_t[]){ 3, 3, 0, 3 }, G);
    struct trainer_hyper h;
    trainer_hyper_init(&h, ALGO_DAPO);
    g->sample[1].finish = FINISH_LENGTH;
    assert_true(sample_in_loss(g, 0, &h));
    assert_false(sample_in_loss(g, 1, &h));    // cut
    assert_false(sample_in_loss(g, 2, &h));    // empty
    h.mask_truncated = false;
    assert_true(sample_in_loss(g, 1, &h));
    h.filter_low = 0.25;    // mean accuracy is exactly that: the range is open
    assert_false(sample_in_loss(g, 0, &h));
    h.filter_low = 0.24;
    assert_true(sample_in_loss(g, 0, &h));
    h.filter_high = 0.25;
    assert_false(sample_in_loss(g, 0, &h));
    group_free(g);
}

static void token_weights_add_up_to_one(UNUSED void **state)
{
    struct trainer_hyper h;
    trainer_hyper_init(&h, ALGO_GRPO);
    struct trainer_norm norm = { .n_sample = 3, .n_loss_tok = 20, .n_tok = 25 };
    // sample level: each sample is worth 1/3 however long it is; one of the three may be masked and still counts
    assert_true(fabs(7 * token_weight(&h, &norm, 7) - 1.0 / 3) < 1e-15);
    h.loss = LOSS_TOKEN_LEVEL;
    assert_true(fabs(20 * token_weight(&h, &norm, 7) - 1) < 1e-15);
}

static void presets_are_colossalchats(UNUSED void **state)
{
    struct trainer_hyper h;
    struct error err;
    enum algo a;
    trainer_hyper_init(&h, ALGO_GRPO);
    assert_true(h.clip_low == 0.2 && h.clip_high == 0.2 && h.beta == 0.01 && h.loss == LOSS_SAMPLE_LEVEL && h.lr == 1e-6);
    trainer_hyper_init(&h, ALGO_DAPO);
    assert_true(h.clip_low == 0.2 && h.clip_high == 0.28 && h.beta == 0 && h.loss == LOSS_TOKEN_LEVEL && h.mask_truncated);
    assert_true(h.skip_threshold == 20 && h.filter_low == 0.01 && h.filter_high == 0.99);
    assert_true(algo_parse(&a, "reinforce_ppb", &err) && a == ALGO_REINFORCE_PPB);
    assert_false(algo_parse(&a, "PPO", &err));
    assert_non_null(strstr(err.text, "'PPO'"));
}

static void the_cosine_ends_at_its_floor_and_stays(UNUSED void **state)
{
    struct schedule s = { .kind = SCHEDULE_COSINE, .min_ratio = 0.1, .n_step = 100 };
    static const struct {
        int64_t k;
        double want;
    } cases[] = {
        { 0, 1e-6 }, { 25, 8.682e-7 }, { 50, 5.5e-7 }, { 100, 1e-7 }, { 150, 1e-7 },    // upstream: 5.5e-7 at 150
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_true(fabs(schedule_lr(&s, 1e-6, cases[i].k) - cases[i].want) < 1e-10);
    s = (struct schedule){ .kind = SCHEDULE_LINEAR, .min_ratio = 0.1, .n_step = 10, .n_warmup = 4 };
    assert_true(fabs(schedule_lr(&s, 1, 0) - 0.2) < 1e-12 && fabs(schedule_lr(&s, 1, 3) - 0.8) < 1e-12);
    assert_true(schedule_lr(&s, 1, 4) == 1 && fabs(schedule_lr(&s, 1, 9) - 0.55) < 1e-12);
    assert_true(fabs(schedule_lr(&s, 1, 1000) - 0.1) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(advantages_follow_each_algorithm),
        cmocka_unit_test(ppb_is_normalised_over_the_batch),
        cmocka_unit_test(a_sample_its_verifier_left_out_counts_nowhere),
        cmocka_unit_test(masks_and_filters_decide_about_whole_samples),
        cmocka_unit_test(token_weights_add_up_to_one),
        cmocka_unit_test(presets_are_colossalchats),
        cmocka_unit_test(the_cosine_ends_at_its_floor_and_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
