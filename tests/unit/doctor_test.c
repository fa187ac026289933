/* One sentence on what limits a run, from its metrics. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "console/fleet/doctor.h"

#define NOW ((int64_t)1000 * 1000000000)

static struct run_view *running(int64_t n_step)
{
    struct error err;
    struct run_view *m = view_new(&err);
    assert_non_null(m);
    m->state = RUN_RUNNING;
    m->told_ns = NOW;
    m->step = n_step;
    view_link(m, LINK_LIVE, "", NOW);
    return m;
}

static void the_largest_share_of_a_step_is_named(UNUSED void **state)
{
    static const struct {
        double generate, score, train, publish, ranks, idle, stall, filtered, longest, median, tail;    // shares of 2 s
        const char *text, *knob;
        double stages;
    } cases[] = {
        { .7, .0, .2, .0, 0, 0, 0, 0, 100, 80, NAN, "generation bounds the run: 70 % of a step of 2 s", "inference_microbatch_size" },
        { .7, .0, .2, .0, 0, 0, 0, 0, 900, 80, NAN, "generation takes 70 % of a step of 2 s, by its long tail", "n_behind" },
        { .7, .0, .2, .0, 0, 0, 0, 0, 100, 80, .4, "generation takes 70 % of a step of 2 s, by its long tail", "n_behind" },
        { .7, .0, .2, .0, 0, 0, 0, 0, 900, 80, .2, "generation bounds the run: 70 %", "inference_microbatch_size" },    // few have to wait
        { .2, .0, .7, .0, 0, 0, 0, 0, 100, 80, NAN, "training bounds the run: 70 % of a step of 2 s", "token_budget" },
        { .9, .0, .9, .0, 0, 0, 0, 0, 100, 80, NAN, "training bounds the run: 90 %", "token_budget" },                    // devices apart
        { .9, .0, .5, .0, 0, .4, 0, 0, 100, 80, NAN, "generation bounds the run: 90 %", "inference_microbatch_size" },    // and idle
        { .3, .5, .2, .0, 0, 0, 0, 0, 100, 80, NAN, "scoring: groups wait for their scores for 50 % of a step", "n_behind" },
        { .3, .5, .2, NAN, 0, 0, 0, 0, 100, 80, NAN, "scoring: groups wait for their scores for 50 % of a step",
          "n_behind" },    // nothing to publish
        { .3, .0, .3, .3, 0, 0, 0, 0, 100, 80, NAN, "publishing the weights takes 30 %", "weights" },
        { .3, .0, .6, .0, .3, 0, 0, 0, 100, 80, NAN, "trainers wait for each other for 30 %", "token_budget" },
        { .3, .0, .6, .0, 0, 0, 0, 0, 100, 80, NAN, "a stage of the trainer's pipeline waits for the others for 40 %", "token_budget", .4 },
        { .3, .0, .6, .0, 0, 0, 0, 0, 100, 80, NAN, "training bounds the run", "token_budget", .1 },
        { .3, .0, .4, .0, 0, 0, .3, 0, 100, 80, NAN, "checkpoints hold training up for 30 %", "save_interval" },
        { .7, .0, .2, .0, 0, 0, 0, .8, 100, 80, NAN, "filtering: 80 % of the groups give no gradient", "filter_range" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct run_view *m = running(20);
        for (int64_t step = 1; step <= 20; step++) {
            const double values[][2] = {
                { M_STEP_S, 2 },
                { M_GENERATE_S, 2 * cases[i].generate },
                { M_SCORE_S, 2 * cases[i].score },
                { M_TRAIN_S, 2 * cases[i].train },
                { M_PUBLISH_S, 2 * cases[i].publish },
                { M_RANKS_IDLE_S, 2 * cases[i].ranks },
                { M_STAGES_IDLE_S, 2 * cases[i].stages },
                { M_IDLE_S, 2 * cases[i].idle },
                { M_CHECKPOINT_STALL_S, 2 * cases[i].stall },
                { M_FILTERED, cases[i].filtered },
                { M_LENGTH_MAX, cases[i].longest },
                { M_LENGTH_P50, cases[i].median },
                { M_IDLE_SHARE, cases[i].tail },
            };
            view_step_begin(m, step);
            for (size_t k = 0; k < ARRAY_SIZE(values); k++)
                view_metric(m, step, metrics[(int)values[k][0]].name, values[k][1]);
        }
        struct diagnosis d = doctor_say(m, NOW);
        if (d.kind != DIAGNOSIS_BOUND || !strstr(d.text, cases[i].text) || !d.remedy[0] || strcmp(d.knob, cases[i].knob) != 0)
            fail_msg("case %zu: %s (%s)", i, d.text, d.knob ? d.knob : "");
        fleet_model_free(m);
    }
}

static void a_trainer_that_is_always_late_is_named(UNUSED void **state)
{
    static const struct {
        double late[6], idle_s, exposed_s;    // of steps of 2 s
        const char *text;
        const char *why;
    } cases[] = {
        { { 1, 1, 1, 1, 1, 1 }, 0.6, 0, "the other trainers wait for 30 % of a step of 2 s, and always for trainer 1", "the same in all" },
        { { 0, 0, 0, 0, 0, 0 },
          0.6,
          0,
          "the other trainers wait for 30 % of a step of 2 s, and always for trainer 0",
          "the first one itself" },
        { { 1, 1, 2, 1, 1, 1 }, 0.6, 0, "trainers wait for each other for 30 %", "another one once" },
        { { 1, 1, NAN, 1, 1, 1 }, 0.6, 0, "trainers wait for each other for 30 %", "a step in which nobody was waited for" },
        { { 1, 1, 1, 1, 1, 1 }, 0.2, 0, "training bounds the run", "always late, but little" },
        { { 1, 1, 1, 1, 1, 1 }, 0.2, 0.6, "gradients and weights are on their way for 30 % of a step of 2 s", "not late, but far" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct run_view *m = running(6);
        for (int64_t step = 1; step <= 6; step++) {
            view_step_begin(m, step);
            view_metric(m, step, "time/step_s", 2);
            view_metric(m, step, "time/train_s", 1.8);
            view_metric(m, step, "time/ranks_idle_s", cases[i].idle_s);
            view_metric(m, step, "time/ranks_exposed_s", cases[i].exposed_s);
            if (!isnan(cases[i].late[step - 1]))
                view_metric(m, step, "train/late_rank", cases[i].late[step - 1]);
        }
        struct diagnosis d = doctor_say(m, NOW);
        if (!strstr(d.text, cases[i].text))
            fail_msg("%s: %s", cases[i].why, d.text);
        fleet_model_free(m);
    }
}

static void before_the_first_step_it_says_what_that_waits_for(UNUSED void **state)
{
    struct run_view *m = running(0);
    struct proc *p = view_proc(m, "worker cpu:0");
    snprintf(p->phase, sizeof p->phase, "loading");
    p->phase_s = 12;
    p->heard_ns = NOW;
    assert_string_equal(doctor_say(m, NOW).text, "no step yet: worker cpu:0 has been loading for 12 s");
    snprintf(p->phase, sizeof p->phase, "generating");
    assert_int_equal(doctor_say(m, NOW).kind, DIAGNOSIS_NONE);
    m->n_buffer = 3;
    m->buffer[0] = (struct gauge){ "returned", 3 };
    m->buffer[1] = (struct gauge){ "filtered", 40 };
    m->buffer[2] = (struct gauge){ "generating", 8 };
    assert_string_equal(doctor_say(m, NOW).text, "no step yet: 43 groups are back, 40 of them filtered; 8 are being sampled");
    fleet_model_free(m);
}

static void what_is_broken_comes_before_what_is_slow(UNUSED void **state)
{
    struct run_view *m = running(0);
    snprintf(m->alert, sizeof m->alert, "all of the last 64 groups were filtered");
    snprintf(m->alert_remedy, sizeof m->alert_remedy, "check the prompt");
    struct diagnosis d = doctor_say(m, NOW);
    assert_int_equal(d.kind, DIAGNOSIS_CRIT);
    assert_string_equal(d.text, "all of the last 64 groups were filtered");
    assert_string_equal(d.remedy, "check the prompt");
    m->alert[0] = 0;
    m->state = RUN_PAUSED;
    assert_string_equal(doctor_say(m, NOW).text, "paused: training waits for an operator");
    m->state = RUN_FINISHED;
    assert_int_equal(doctor_say(m, NOW).kind, DIAGNOSIS_NONE);
    fleet_model_free(m);
}

static void a_process_waits_for_things_and_not_for_states(UNUSED void **state)
{
    static const struct {
        const char *waits, *join;
    } cases[] = {
        { "", "" },
        { "scorer: scores", ", waits for " },
        { "an operator: it has failed; see its log", ", waits for " },
        { "no sign of life for 12 s", ", " },
        { "being restarted", ", " },
        { "ended; see its log", ", " },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct proc p = { .pid = 1 };
        snprintf(p.waits_for, sizeof p.waits_for, "%s", cases[i].waits);
        assert_string_equal(proc_waits_join(&p), cases[i].join);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_share_of_a_step_is_named),
        cmocka_unit_test(a_trainer_that_is_always_late_is_named),
        cmocka_unit_test(before_the_first_step_it_says_what_that_waits_for),
        cmocka_unit_test(what_is_broken_comes_before_what_is_slow),
        cmocka_unit_test(a_process_waits_for_things_and_not_for_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
