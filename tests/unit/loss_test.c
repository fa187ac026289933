/* Advantages, masks, weights and schedules against vectors (worked by hand from the formulas). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include "tests/unit/hyper_of.h"
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

static void advantages_follow_each_form(UNUSED void **state)
{
    // clang-format off
    static const struct { enum advantage_form form; double reward[G], want[G]; double tol; const char *why;
    } cases[] = {
        {ADV_DEVIATION, {10, 0, 0, 0}, {1.49997, -0.49999, -0.49999, -0.49999}, 1e-5, "one of four, unbiased deviation 5"},
        {ADV_DEVIATION, {10, 0, 0, 10}, {0.866010, -0.866010, -0.866010, 0.866010}, 1e-6, "two of four"},
        {ADV_LEAVE_ONE_OUT, {10, 0, 0, 0}, {10, -10.0 / 3, -10.0 / 3, -10.0 / 3}, 1e-12, "against the mean of the others"},
        {ADV_BATCH, {10, 0, 0, 0}, {7.5, -2.5, -2.5, -2.5}, 1e-12, "against the mean; scaled later"},
        {ADV_CENTERED, {10, 0, 0, 0}, {7.5, -2.5, -2.5, -2.5}, 1e-12, "against the mean, as it is"},
        {ADV_POPULATION, {10, 0, 0, 0}, {1.7320508, -0.5773503, -0.5773503, -0.5773503}, 1e-7, "deviation of n: 4.330127"},
        {ADV_DEVIATION_BATCH, {10, 0, 0, 0}, {7.5, -2.5, -2.5, -2.5}, 1e-12, "against the mean; scaled later"},
        {ADV_LENGTH_WEIGHTED, {10, 0, 0, 0}, {9, -1, -1, -1}, 1e-12, "against 10 x 1 / 10: its length is 1 of 1, 2, 3, 4"},
        {ADV_LENGTH_WEIGHTED, {0, 0, 0, 10}, {-4, -4, -4, 6}, 1e-12, "against 10 x 4 / 10"},
        {ADV_OVER_MEAN, {10, 0, 0, 0}, {3, -1, -1, -1}, 1e-12, "one of four: 1 / 0.25 - 1"},
        {ADV_OVER_MEAN, {10, 0, 0, 10}, {1, -1, -1, 1}, 1e-12, "two of four"},
        {ADV_OVER_MEAN, {-1, 0, 0, 0}, {0, 0, 0, 0}, 0, "a mean below 0 is no pass rate"},
        {ADV_BEST, {10, 0, 4, 0}, {1.269622, 0, 0, 0}, 1e-6, "6 above the next, unbiased deviation 4.7258156"},
        {ADV_BEST, {10, 0, 10, 0}, {0, 0, 0, 0}, 0, "two are the best: neither is above the other"},
        {ADV_WHITENED, {10, 0, 0, 0}, {10, 0, 0, 0}, 0, "the reward; whitened later"},
        {ADV_WHITENED, {0.1, 0.1, 0.1, 0.1}, {0.1, 0.1, 0.1, 0.1}, 0, "also without spread: other groups are what it is compared with"},
        {ADV_POPULATION, {0.1, 0.1, 0.1, 0.1}, {0, 0, 0, 0}, 0, "no spread"},
        {ADV_DEVIATION, {0.1, 0.1, 0.1, 0.1}, {0, 0, 0, 0}, 0, "no spread: nothing, to the bit"},
        {ADV_LEAVE_ONE_OUT, {0.1, 0.1, 0.1, 0.1}, {0, 0, 0, 0}, 0, "no spread"},
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct group *g = group_of(cases[i].reward, (int64_t[]){ 1, 2, 3, 4 }, G);
        double adv[G];
        advantage_group(adv, cases[i].form, g);
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
        hyper_of(&h, "REINFORCE_PPB");
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

/* The two stages by hand: rewards 10, 0, 0, 0 of 1, 2, 3, 4 tokens. */
static void other_forms_are_normalised_over_the_batch(UNUSED void **state)
{
    struct trainer_hyper h;
    trainer_hyper_init(&h);
    struct trainer_norm norm = { .n_sample = 4, .n_tok = 10, .sum_a = 10, .sum_a2 = 100 };
    h.advantages = ADV_WHITENED;    // mean 1, variance 90 / 9
    assert_true(fabs(advantage_normalise(10, &h, &norm) - 9 / sqrt(10)) < 1e-8
                && fabs(advantage_normalise(0, &h, &norm) + 1 / sqrt(10)) < 1e-8);
    h.advantages = ADV_DEVIATION_BATCH;    // deviation 5 of four rewards
    assert_true(fabs(advantage_normalise(7.5, &h, &norm) - 7.5 / 5.0001) < 1e-12);
    norm = (struct trainer_norm){ .n_sample = 3, .n_tok = 3, .sum_a = 0.3, .sum_a2 = 3 * 0.1 * 0.1 };
    assert_true(advantage_normalise(0, &h, &norm) == 0);
    norm = (struct trainer_norm){ .n_sample = 1, .n_tok = 1, .sum_a = 3, .sum_a2 = 9 };
    h.advantages = ADV_WHITENED;
    assert_true(advantage_normalise(3, &h, &norm) == 0);
}

static void a_sample_its_verifier_left_out_counts_nowhere(UNUSED void **state)
{
    struct group *g = group_of((double[]){ 10, 0, 777, 10, 0 }, NULL, 5);
    g->sample[2].score = SCORE_LEFT_OUT;
    double adv[5];
    struct trainer_hyper h;
    trainer_hyper_init(&h);
    advantage_group(adv, ADV_DEVIATION, g);
    assert_true(fabs(adv[0] - 0.866010) < 1e-6 && fabs(adv[1] + 0.866010) < 1e-6);    // those of [10, 0, 10, 0]
    assert_true(adv[2] == 0 && !sample_in_loss(g, 2, &h) && sample_in_loss(g, 0, &h));
    for (int i = 0; i < 4; i++)
        g->sample[i].score = SCORE_LEFT_OUT;
    advantage_group(adv, ADV_LEAVE_ONE_OUT, g);
    for (int i = 0; i < 5; i++)
        assert_true(adv[i] == 0);    // one that counts has nothing to compare with
    assert_false(group_has_spread(g));
    group_free(g);
}

/* Sessions worth 10, 0 and 4, of which the second has three paths: as if it had one. */
static void the_paths_of_a_session_count_as_one_sample(UNUSED void **state)
{
    static const enum advantage_form forms[] = { ADV_DEVIATION, ADV_POPULATION, ADV_CENTERED, ADV_LEAVE_ONE_OUT };
    struct group *whole = group_of((double[]){ 10, 0, 4 }, NULL, 3), *paths = group_of((double[]){ 10, 0, 0, 0, 4 }, NULL, 5);
    double want[3], got[5];
    paths->sample[2].again = paths->sample[3].again = true;
    for (size_t i = 0; i < ARRAY_SIZE(forms); i++) {
        advantage_group(want, forms[i], whole);
        advantage_group(got, forms[i], paths);
        for (int k = 0; k < 5; k++)    // sums of thirds
            assert_true(fabs(got[k] - want[(int[]){ 0, 1, 1, 1, 2 }[k]]) < 1e-14 * 10);
    }
    paths->sample[1].reward = 1, paths->sample[2].reward = 2, paths->sample[3].reward = 3;    // each path scored by itself: 2 on average
    advantage_group(got, ADV_CENTERED, paths);
    for (int i = 0; i < 5; i++)
        assert_true(fabs(got[i] - (paths->sample[i].reward - 16.0 / 3)) < 1e-12);
    advantage_group(got, ADV_BEST, paths);    // 10 against 4, not against itself; sessions 10, (1, 2, 3), 4
    assert_true(got[0] > 0 && got[1] == 0 && got[4] == 0);
    paths->sample[1].reward = paths->sample[2].reward = 20;
    advantage_group(got, ADV_BEST, paths);    // both of one session, 10 above the next: as each other
    assert_true(got[1] > 0 && got[2] == got[1] && got[0] == 0 && got[3] == 0);
    for (int i = 0; i < 5; i++)
        paths->sample[i].again = i > 0;
    advantage_group(got, ADV_CENTERED, paths);
    for (int i = 0; i < 5; i++)
        assert_true(got[i] == 0);    // one session has nothing to compare with
    group_free(whole);
    group_free(paths);
}

static void masks_and_filters_decide_about_whole_samples(UNUSED void **state)
{
    struct group *g = group_of((double[]){ 10, 0, 0, 0 }, (int64_t[]){ 3, 3, 0, 3 }, G);
    struct trainer_hyper h;
    hyper_of(&h, "DAPO");
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
    h.has_filter = false;
    h.filter_no_spread = true;
    assert_true(sample_in_loss(g, 0, &h));
    g->sample[0].reward = 0;
    assert_false(sample_in_loss(g, 0, &h));    // all rewards are 0
    group_free(g);
}

static void token_weights_follow_each_divisor(UNUSED void **state)
{
    struct trainer_hyper h;
    trainer_hyper_init(&h);
    struct trainer_norm norm = { .n_sample = 3, .n_loss_tok = 20, .n_tok = 25 };
    // sample level: each sample is worth 1/3 however long it is; one of the three may be masked and still counts
    assert_true(fabs(7 * token_weight(&h, &norm, 7) - 1.0 / 3) < 1e-15);
    h.loss = LOSS_TOKEN_LEVEL;
    assert_true(fabs(20 * token_weight(&h, &norm, 7) - 1) < 1e-15);
    h.loss = LOSS_CONSTANT;
    h.loss_constant = 12;    // a sample of 12 tokens is worth 1/3, shorter ones less
    assert_true(fabs(12 * token_weight(&h, &norm, 7) - 1.0 / 3) < 1e-15);
}

/* log-probs whose differences are ln 2, ln 2 and -ln 4: ratios 2, 2, 1/4; product 1, geometric mean 1, mean of |r - 1| 2.75 / 3. */
static void rho_is_bounded_by_token_and_by_sample(UNUSED void **state)
{
    const double none = NAN;
    const struct {
        struct rho_rule clamp, mask;
        double want[3], n_clamped, n_masked;
        const char *why;
        enum old_logprobs old;
    } cases[] = {
        { { none, none, RHO_TOKEN }, { none, none, RHO_TOKEN }, { 1, 1, 1 }, 0, 0, "no rule" },
        { { 0, 1.5, RHO_TOKEN }, { none, none, RHO_TOKEN }, { 1.5, 1.5, 0.25 }, 2, 0, "truncated from above only" },
        { { 0.5, 3, RHO_TOKEN }, { none, none, RHO_TOKEN }, { 2, 2, 0.5 }, 1, 0, "from below" },
        { { 0, 0.5, RHO_SEQUENCE }, { none, none, RHO_TOKEN }, { 0.5, 0.5, 0.5 }, 3, 0, "the product 1 is above" },
        { { 1.25, 3, RHO_GEOMETRIC }, { none, none, RHO_TOKEN }, { 1.25, 1.25, 1.25 }, 3, 0, "the mean 1 is below" },
        { { none, none, RHO_TOKEN }, { 0.5, 1.5, RHO_TOKEN }, { 0, 0, 0 }, 0, 3, "each token is outside" },
        { { 0, 3, RHO_TOKEN }, { 0.5, 3, RHO_TOKEN }, { 2, 2, 0 }, 0, 1, "IcePop: weighed inside, left out outside" },
        { { none, none, RHO_TOKEN }, { 0.9, 1.1, RHO_SEQUENCE }, { 1, 1, 1 }, 0, 0, "the product is inside" },
        { { none, none, RHO_TOKEN }, { 1.1, 2, RHO_GEOMETRIC }, { 0, 0, 0 }, 0, 3, "the mean is outside: all of the sample" },
        { { none, none, RHO_TOKEN },
          { 0, 0.5, RHO_TV },
          { 0, 1, 0 },
          0,
          2,
          "d A above 0: the first and the last have moved where they should" },
        { { none, none, RHO_TOKEN }, { 0, 0.95, RHO_TV }, { 1, 1, 1 }, 0, 0, "2.75 / 3 is below" },
        { { none, none, RHO_TOKEN }, { 0, 0.1, RHO_KL }, { 1, 1, 1 }, 0, 0, "the mean of -d, 0, is below" },
        { { none, none, RHO_TOKEN }, { 0, -0.1, RHO_KL }, { 1, 0, 0 }, 0, 2, "above: bad tokens are left out" },
        { { none, none, RHO_TOKEN }, { 0, -0.1, RHO_KL }, { 1, 0, 0 }, 0, 2, "and the others have no weight by it", OLD_CURRENT },
        { { none, none, RHO_TOKEN }, { 0.5, 5, RHO_TOKEN }, { 2, 2, 0 }, 0, 1, "IcePop alone weighs by rho inside", OLD_CURRENT },
        { { none, none, RHO_TOKEN }, { 0.5, 5, RHO_TOKEN }, { 1, 1, 0 }, 0, 1, "the ratio has rho in it already", OLD_SAMPLED },
        { { none, none, RHO_TOKEN }, { 0.9, 1.1, RHO_SEQUENCE }, { 1, 1, 1 }, 0, 0, "the product, 1, is the weight", OLD_CURRENT },
        { { none, none, RHO_TOKEN }, { 0.9, 1.1, RHO_GEOMETRIC }, { 2, 2, 0.25 }, 0, 0, "the mean masks, tokens weigh", OLD_CURRENT },
        { { none, none, RHO_TOKEN }, { 1.1, 2, RHO_GEOMETRIC }, { 0, 0, 0 }, 0, 3, "and outside nothing is left", OLD_CURRENT },
        { { none, none, RHO_TOKEN }, { 0, 0.95, RHO_TV }, { 1, 1, 1 }, 0, 0, "total variation only leaves out", OLD_CURRENT },
        { { 1, 1, RHO_TOKEN }, { 0.5, 5, RHO_TOKEN }, { 1, 1, 0 }, 3, 1, "a clamp of [1, 1] weighs nothing", OLD_CURRENT },
    };
    const float two = logf(2), now[3] = { -1, -2, -3 }, was[3] = { -1 - two, -2 - two, -3 + 2 * two }, adv[3] = { 1, -1, -1 };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct trainer_hyper h;
        struct rho_sums s = { 0 };
        float got[3];
        trainer_hyper_init(&h);
        h.old = cases[i].old;
        h.rho_clamp = cases[i].clamp;
        h.rho_mask = cases[i].mask;
        static const uint8_t all[3] = { 1, 1, 1 }, some[6] = { 0, 1, 0, 1, 1, 0 };
        rho_make(got, now, was, adv, all, 3, &h, &s);
        for (int k = 0; k < 3; k++)
            if (!(fabs((double)got[k] - cases[i].want[k]) < 2e-6))    // logf and three fp32 numbers
                fail_msg("%s: token %d has %.9g, not %.9g", cases[i].why, k, (double)got[k], cases[i].want[k]);
        if (s.n_clamped != cases[i].n_clamped || s.n_masked != cases[i].n_masked || s.n_tok != 3 || fabs(s.rho - 4.25) > 1e-5)
            fail_msg("%s: %g clamped, %g masked, rho %g", cases[i].why, s.n_clamped, s.n_masked, s.rho);
        /* the same tokens between others that an environment gave, whose numbers must not matter */
        struct rho_sums apart = { 0 };
        float now6[6] = { -9, now[0], 9, now[1], now[2], -9 }, was6[6] = { 7, was[0], -7, was[1], was[2], 7 };
        float adv6[6] = { 5, adv[0], 5, adv[1], adv[2], 5 }, got6[6];
        rho_make(got6, now6, was6, adv6, some, 6, &h, &apart);
        assert_memory_equal(&apart, &s, sizeof s);
        assert_true(got6[1] == got[0] && got6[3] == got[1] && got6[4] == got[2]);
        assert_true(got6[0] == 1 && got6[2] == 1 && got6[5] == 1);
        assert_true(sequence_log_ratio(&h.form, now6, was6, adv6, some, 6) == sequence_log_ratio(&h.form, now, was, adv, all, 3));
        assert_true(fabs(sequence_log_ratio(&h.form, now, was, adv, all, 3)) < 1e-6);
        assert_true(fabs(sequence_log_ratio(&h.form, now, was, adv, all, 2) - (double)two) < 1e-6);
    }
}

static void each_clip_counts_its_own_tokens(UNUSED void **state)
{
    static const struct {
        enum clip_form clip;
        double adv, ratio;
        int want;
    } cases[] = {
        { CLIP_PPO, 1, 1.5, 1 },     { CLIP_PPO, -1, 1.5, 0 },     { CLIP_PPO, -1, 0.5, -1 },     { CLIP_PPO, 1, 0.5, 0 },
        { CLIP_ATROPOS, 1, 1.5, 1 }, { CLIP_ATROPOS, -1, 1.5, 1 }, { CLIP_ATROPOS, -1, 0.5, 0 },  { CLIP_ATROPOS, 0, 1.5, 0 },
        { CLIP_CISPO, -1, 1.5, 1 },  { CLIP_CISPO, 1, 0.5, -1 },   { CLIP_CISPO, 0, 1.5, 0 },     { CLIP_CISPO, 1, 1.1, 0 },
        { CLIP_SAPO, -1, 1.5, 0 },   { CLIP_GPG, 1, 0.1, 0 },      { CLIP_GMPO, 1, 1.3, 1 },      { CLIP_GMPO, 1, 1.2, 0 },
        { CLIP_GMPO, -1, 1.3, 0 },   { CLIP_GMPO, -1, 0.8, -1 },   { CLIP_GMPO, 1, 0.8, 0 },      { CLIP_VESPO, 1, 9, 0 },
        { CLIP_DPPO_TV, 1, 2.3, 1 }, { CLIP_DPPO_TV, 1, 1.9, 0 },  { CLIP_DPPO_TV, 1, 0.1, 0 },   { CLIP_DPPO_TV, -1, 0.1, 0 },
        { CLIP_DPPO_KL, 1, 3.6, 1 }, { CLIP_DPPO_KL, 1, 2.3, 0 },  { CLIP_DPPO_KL, -1, 0.1, -1 }, { CLIP_DPPO_KL, -1, 3.6, 0 },
    };
    struct trainer_hyper h;
    const double was = log(0.16);
    trainer_hyper_init(&h);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        h.form.clip = cases[i].clip;
        int side = policy_side(&h.form, &(struct token_point){ was + log(cases[i].ratio), was, cases[i].ratio, cases[i].adv });
        if (side != cases[i].want)
            fail_msg("case %zu: %d", i, side);
        struct token_term t = policy_term(&h.form,
                                          &(struct token_point){ 800, 0, INFINITY, 0 });    // a log-prob has risen by more than 710
        if (h.form.clip != CLIP_PPO && !(t.loss == 0 && t.coef == 0))
            fail_msg("case %zu: a token without an advantage has the term %g, %g", i, t.loss, t.coef);
    }
}

static void a_teacher_moves_an_advantage_by_what_it_holds_likelier(UNUSED void **state)
{
    struct trainer_hyper h;
    trainer_hyper_init(&h);
    assert_true(advantage_teach(1.5, -1, -3, &h) == 1.5 && !loss_needs_sampled(&h));    // there is none
    h.teacher = 0.5, h.reward_share = 2, h.form.beta = 0;
    assert_true(advantage_teach(1.5, -1, -3, &h) == 4 && advantage_teach(1.5, -4, -3, &h) == 2.5);
    h.reward_share = 0;
    assert_true(advantage_teach(1.5, -1, -3, &h) == 1);
    assert_string_equal(loss_needs_sampled(&h), "what a teacher says of a token");
    assert_true(loss_needs_reference(&h));
}

/* Dual clip: beyond its bound a token of A < 0 is worth a constant; below it, and with A > 0, everything is PPO's. */
static void a_bad_token_far_beyond_the_range_is_let_go_by_the_dual_clip(UNUSED void **state)
{
    static const struct {
        double adv, ratio;
        int side;
        double loss, coef;
    } cases[] = {
        { -2, 5, 1, 6, 0 }, { -2, 2.5, 0, 5, 5 }, { -2, 0.5, -1, 1.6, 0 }, { 2, 5, 1, -2.4, 0 }, { 0, 5, 0, 0, 0 },
    };
    struct trainer_hyper h;
    trainer_hyper_init(&h);
    h.form.clip_dual = 3;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct token_point p = { -1, -1 - log(cases[i].ratio), cases[i].ratio, cases[i].adv };
        struct token_term t = policy_term(&h.form, &p);
        assert_int_equal(policy_side(&h.form, &p), cases[i].side);
        assert_true(fabs(t.loss - cases[i].loss) < 1e-6 && fabs(t.coef - cases[i].coef) < 1e-6);    // 0.2 in fp32
    }
}

/* Each word of a setting selects the choice of the same meaning: the lists of knobs.c and the enums have the same order. */
static void words_mean_what_they_say(UNUSED void **state)
{
    struct run_config c;
    struct error err = { 0 };
    struct trainer_hyper h;
    run_config_init(&c);
#define MEANS(name, text, field, value)                                                                                                    \
    assert_true(run_config_set(&c, name, text, FROM_FLAG, NULL, &err));                                                                    \
    trainer_hyper_of(&h, &c, 0, 1);                                                                                                        \
    assert_int_equal(h.field, value)
    MEANS("advantages", "deviation", advantages, ADV_DEVIATION);
    MEANS("advantages", "deviation_population", advantages, ADV_POPULATION);
    MEANS("advantages", "centered", advantages, ADV_CENTERED);
    MEANS("advantages", "leave_one_out", advantages, ADV_LEAVE_ONE_OUT);
    MEANS("advantages", "batch", advantages, ADV_BATCH);
    MEANS("advantages", "deviation_batch", advantages, ADV_DEVIATION_BATCH);
    MEANS("advantages", "length_weighted", advantages, ADV_LENGTH_WEIGHTED);
    MEANS("advantages", "over_mean", advantages, ADV_OVER_MEAN);
    MEANS("advantages", "best", advantages, ADV_BEST);
    MEANS("advantages", "whitened", advantages, ADV_WHITENED);
    MEANS("loss_variation", "sample_level", loss, LOSS_SAMPLE_LEVEL);
    MEANS("loss_variation", "token_level", loss, LOSS_TOKEN_LEVEL);
    MEANS("loss_variation", "constant", loss, LOSS_CONSTANT);
    MEANS("ratio_level", "token", ratio, RATIO_TOKEN);
    MEANS("ratio_level", "sequence", ratio, RATIO_SEQUENCE);
    MEANS("clip_form", "ppo", form.clip, CLIP_PPO);
    MEANS("clip_form", "cispo", form.clip, CLIP_CISPO);
    MEANS("clip_form", "atropos", form.clip, CLIP_ATROPOS);
    MEANS("clip_form", "sapo", form.clip, CLIP_SAPO);
    MEANS("clip_form", "gpg", form.clip, CLIP_GPG);
    MEANS("clip_form", "gmpo", form.clip, CLIP_GMPO);
    MEANS("clip_form", "vespo", form.clip, CLIP_VESPO);
    MEANS("clip_form", "dppo_tv", form.clip, CLIP_DPPO_TV);
    MEANS("clip_form", "dppo_kl", form.clip, CLIP_DPPO_KL);
    MEANS("clip_form", "dro", form.clip, CLIP_DRO);
    MEANS("kl_estimator", "k1", form.kl, KL_K1);
    MEANS("kl_estimator", "k2", form.kl, KL_K2);
    MEANS("kl_estimator", "k3", form.kl, KL_K3);
    MEANS("kl_estimator", "k1_ratio", form.kl, KL_K1_RATIO);
    MEANS("kl_estimator", "k3_ratio", form.kl, KL_K3_RATIO);
    MEANS("kl_estimator", "abs", form.kl, KL_ABS);
    MEANS("kl_estimator", "k3+", form.kl, KL_K3_THROUGH);
    MEANS("old_logprobs", "sampled", old, OLD_SAMPLED);
    MEANS("old_logprobs", "current", old, OLD_CURRENT);
    MEANS("rho_clamp_level", "token", rho_clamp.level, RHO_TOKEN);
    MEANS("rho_clamp_level", "sequence", rho_clamp.level, RHO_SEQUENCE);
    MEANS("rho_clamp_level", "geometric", rho_clamp.level, RHO_GEOMETRIC);
    MEANS("rho_mask_level", "token", rho_mask.level, RHO_TOKEN);
    MEANS("rho_mask_level", "sequence", rho_mask.level, RHO_SEQUENCE);
    MEANS("rho_mask_level", "geometric", rho_mask.level, RHO_GEOMETRIC);
    MEANS("rho_mask_level", "tv", rho_mask.level, RHO_TV);
    MEANS("rho_mask_level", "kl", rho_mask.level, RHO_KL);
    MEANS("weight_decay_on", "all", decay_matrices, false);
    MEANS("weight_decay_on", "matrices", decay_matrices, true);
#undef MEANS
    c.max_new_tokens = 77;
    trainer_hyper_of(&h, &c, 0, 1);
    assert_true(h.loss_constant == 77);    // 0: the longest response
    assert_true(h.form.clip_dual == 0 && h.form.sapo_pos == 1 && h.form.sapo_neg == 1.05f && h.form.dro_beta == 0.05f);
    assert_true(h.form.vespo_k[0] == 2 && h.form.vespo_l[0] == 3 && h.form.vespo_k[1] == 3 && h.form.vespo_l[1] == 2);    // TRL's
}

static void presets_are_colossalchats(UNUSED void **state)
{
    struct trainer_hyper h;
    struct error err;
    trainer_hyper_init(&h);
    assert_true(h.form.clip_low == 0.2f && h.form.clip_high == 0.2f && h.form.beta == 0.01f && h.loss == LOSS_SAMPLE_LEVEL && h.lr == 1e-6);
    hyper_of(&h, "DAPO");
    assert_true(h.form.clip_low == 0.2f && h.form.clip_high == 0.28f && h.form.beta == 0 && h.loss == LOSS_TOKEN_LEVEL && h.mask_truncated);
    assert_true(h.skip_threshold == 20 && h.filter_low == 0.01 && h.filter_high == 0.99);
    assert_false(trainer_hyper_init_algo(&h, "PPO", &err));
    assert_non_null(strstr(err.text, "'PPO'"));
}

static void schedules_end_at_their_floor_and_stay(UNUSED void **state)
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
    // warm-up 4, stable until the last quarter of 8 steps, half way down in its middle, at the floor after that
    s = (struct schedule){ .kind = SCHEDULE_WSD, .min_ratio = 0.1, .n_step = 8, .n_warmup = 4, .decay_share = 0.25 };
    static const double wsd[] = { 0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 1, 1, 1, 0.55, 0.1, 0.1 };
    for (int k = 0; k < (int)ARRAY_SIZE(wsd); k++)
        assert_true(fabs(schedule_lr(&s, 1, k) - wsd[k]) < 1e-12);
    s.kind = SCHEDULE_CONSTANT;
    assert_true(schedule_lr(&s, 1, 3) == 0.8 && schedule_lr(&s, 1, 4) == 1 && schedule_lr(&s, 1, 1000) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(advantages_follow_each_form),
        cmocka_unit_test(ppb_is_normalised_over_the_batch),
        cmocka_unit_test(other_forms_are_normalised_over_the_batch),
        cmocka_unit_test(a_sample_its_verifier_left_out_counts_nowhere),
        cmocka_unit_test(the_paths_of_a_session_count_as_one_sample),
        cmocka_unit_test(masks_and_filters_decide_about_whole_samples),
        cmocka_unit_test(token_weights_follow_each_divisor),
        cmocka_unit_test(rho_is_bounded_by_token_and_by_sample),
        cmocka_unit_test(each_clip_counts_its_own_tokens),
        cmocka_unit_test(a_teacher_moves_an_advantage_by_what_it_holds_likelier),
        cmocka_unit_test(a_bad_token_far_beyond_the_range_is_let_go_by_the_dual_clip),
        cmocka_unit_test(words_mean_what_they_say),
        cmocka_unit_test(presets_are_colossalchats),
        cmocka_unit_test(schedules_end_at_their_floor_and_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
