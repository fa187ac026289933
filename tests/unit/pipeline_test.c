/* Schedules of a pipeline: every one for up to 8 stages is complete, in order, comes to its end and keeps within its memory; and the
 * checker, which says so, finds what is wrong with others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <string.h>
#include "protocol/base/macros.h"
#include "workers/engine/model/pipeline.h"

#define MICROS 21    // more than twice the stages

static void made(struct pipeline *p, int n_stage, int64_t n_micro, bool backward, bool shared)
{
    struct error err;
    if (!pipeline_make(p, n_stage, n_micro, backward, shared, &err))
        fail_msg("%s", err.text);
}

static void every_schedule_is_right(UNUSED void **state)
{
    struct pipeline p = { 0 };
    struct error err;
    for (int n = 1; n <= PIPELINE_STAGES_MAX; n++)
        for (int64_t m = 0; m < MICROS; m++)
            for (int kind = 0; kind < 4; kind++) {
                made(&p, n, m, kind & 1, kind & 2);
                if (!pipeline_check(&p, &err))
                    fail_msg("%d stages, %d micro-batches, kind %d: %s", n, (int)m, kind, err.text);
            }
    pipeline_release(&p);
}

/* Counted from the lists alone: micro-batches between their forward and their backward step. */
static void a_stage_keeps_no_more_micro_batches_than_stages_follow_it(UNUSED void **state)
{
    struct pipeline p = { 0 };
    for (int n = 1; n <= PIPELINE_STAGES_MAX; n++)
        for (int64_t m = 1; m < MICROS; m++) {
            made(&p, n, m, true, true);
            for (int q = 0; q < n; q++) {
                int64_t now = 0, most = 0;
                for (int64_t i = 0; i < p.stage[q].n_step; i++) {
                    now += p.stage[q].step[i].kind == STAGE_FORWARD ? 1 : p.stage[q].step[i].kind == STAGE_BACKWARD ? -1 : 0;
                    most = MAX(most, now);
                }
                assert_int_equal(now, 0);
                assert_int_equal(most, MIN(m, n - q));
                assert_int_equal(p.stage[q].n_set, n - q);
            }
        }
    pipeline_release(&p);
}

/* When the last stage is done, with steps of these lengths and nothing between them. */
static int64_t end_of(const struct pipeline *p, const int64_t length[STAGE_STEP_KINDS])
{
    int64_t end[PIPELINE_STAGES_MAX][3 * MICROS], at[PIPELINE_STAGES_MAX] = { 0 }, clock[PIPELINE_STAGES_MAX] = { 0 }, last = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int q = 0; q < p->n_stage; q++)
            while (at[q] < p->stage[q].n_step) {
                const struct stage_step *s = &p->stage[q].step[at[q]];
                int64_t from = clock[q];
                bool ready = true;
                for (int w = 0; w < 2; w++) {
                    if (s->wait[w].stage < 0)
                        continue;
                    ready = ready && s->wait[w].step < at[s->wait[w].stage];
                    from = ready ? MAX(from, end[s->wait[w].stage][s->wait[w].step]) : from;
                }
                if (!ready)
                    break;
                end[q][at[q]++] = clock[q] = from + length[s->kind];
                last = MAX(last, clock[q]);
                moved = true;
            }
    }
    return last;
}

/* Idle turns of 1F1B: stages - 1, whatever the lengths of forward and backward (arXiv 2104.04473, section 2.2.1). */
static void idle_turns_are_one_less_than_stages(UNUSED void **state)
{
    const int64_t lengths[][STAGE_STEP_KINDS] = { { 1, 1, 0 }, { 1, 2, 0 }, { 2, 3, 0 } };
    struct pipeline p = { 0 };
    for (size_t i = 0; i < ARRAY_SIZE(lengths); i++)
        for (int n = 1; n <= PIPELINE_STAGES_MAX; n++)
            for (int64_t m = n; m < MICROS; m++)
                for (int shared = 0; shared < 2; shared++) {
                    int64_t turn = lengths[i][STAGE_FORWARD] + lengths[i][STAGE_BACKWARD];
                    made(&p, n, m, true, shared);
                    if (shared && lengths[i][STAGE_BACKWARD] < 2 * lengths[i][STAGE_FORWARD])
                        continue;    // the embedding's step is placed for backward steps twice as long
                    assert_int_equal(end_of(&p, lengths[i]), (m + n - 1) * turn);
                }
    pipeline_release(&p);
}

static void swap(struct stage_step *a, struct stage_step *b)
{
    struct stage_step t = *a;
    *a = *b;
    *b = t;
}

/* Each of these is one change of a right table. */
static void wrong_order(struct pipeline *p)
{
    swap(&p->stage[0].step[0], &p->stage[0].step[1]);
}
static void twice(struct pipeline *p)
{
    p->stage[1].step[1] = p->stage[1].step[0];
}
static void one_left_out(struct pipeline *p)
{
    p->stage[2].n_step--;
}
static void backward_first(struct pipeline *p)
{
    swap(&p->stage[2].step[0], &p->stage[2].step[1]);
}
static void not_awaited(struct pipeline *p)
{
    p->stage[1].step[0].wait[0].stage = -1;
}
static void another_awaited(struct pipeline *p)
{
    p->stage[1].step[0].wait[0].step++;
}
static void awaits_nothing_there(struct pipeline *p)
{
    p->stage[1].step[0].wait[1] = (struct stage_wait){ 2, 1000 };
}
static void all_wait(struct pipeline *p)
{
    p->stage[0].step[0].wait[1] = (struct stage_wait){ 2, 0 };
}
static void too_few_sets(struct pipeline *p)
{
    p->stage[0].n_set--;
}
static void too_few_sums(struct pipeline *p)
{
    p->n_shared--;
}
static void read_set_not_awaited(struct pipeline *p)
{
    for (int64_t i = 0; i < p->stage[0].n_step; i++)
        p->stage[0].step[i].wait[1].stage = -1;
}

static void the_checker_finds_what_is_wrong(UNUSED void **state)
{
    static const struct {
        void (*change)(struct pipeline *p);
        bool backward;
        const char *says;
    } all[] = {
        { wrong_order, true, "not in the order" },
        { twice, true, "not in the order" },
        { one_left_out, true, "for 6 micro-batches" },
        { backward_first, true, "comes before what it needs" },
        { not_awaited, true, "does not wait" },
        { another_awaited, true, "does not wait" },
        { awaits_nothing_there, true, "waits for a step that there is not" },
        { all_wait, true, "is never reached" },
        { too_few_sets, true, "a set that is in use" },
        { too_few_sums, true, "a shared sum that is in use" },
        { read_set_not_awaited, false, "a set that is in use" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        struct pipeline p = { 0 };
        struct error err = { 0 };
        made(&p, 3, 6, all[i].backward, true);
        assert_true(pipeline_check(&p, &err));
        all[i].change(&p);
        assert_false(pipeline_check(&p, &err));
        assert_int_equal(err.code, ERR_INTERNAL);
        if (!strstr(err.text, all[i].says))
            fail_msg("change %zu: '%s' does not say '%s'", i, err.text, all[i].says);
        pipeline_release(&p);
    }
}

static void sizes_that_cannot_be_are_refused(UNUSED void **state)
{
    struct pipeline p = { 0 };
    struct error err;
    assert_false(pipeline_make(&p, 0, 1, true, false, &err));
    assert_false(pipeline_make(&p, PIPELINE_STAGES_MAX + 1, 1, true, false, &err));
    assert_false(pipeline_make(&p, 2, -1, true, false, &err));
    pipeline_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_is_right),
        cmocka_unit_test(a_stage_keeps_no_more_micro_batches_than_stages_follow_it),
        cmocka_unit_test(idle_turns_are_one_less_than_stages),
        cmocka_unit_test(the_checker_finds_what_is_wrong),
        cmocka_unit_test(sizes_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
