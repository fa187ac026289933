/* tags: asan
 *
 * The level of a run's prompts follows from the right answers of the groups that were sampled at it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "protocol/base/macros.h"
#include "workers/schedule/curriculum.h"

/* A group of 4 samples: n_ans are judged, and right of these are right. */
static struct group_summary group_of(int64_t n_ans, double right)
{
    return (struct group_summary){ .n_sample = 4, .n_scored = n_ans, .n_ans = n_ans, .ans_sum = right };
}

static void add(struct curriculum *c, int64_t level, int n, int64_t n_ans, double right)
{
    struct group_summary g = group_of(n_ans, right);
    for (int i = 0; i < n; i++)
        curriculum_add(c, level, &g);
}

static void the_share_of_right_answers_moves_the_level_at_its_bounds(UNUSED void **state)
{
    static const struct {
        double easier, right;    // of 4 samples, in each of 2 groups
        int64_t level, n_level;
        int by;
        const char *why;
    } cases[] = {
        { 0, 3, 0, 4, 1, "3 of 4 is the bound, which is enough" },
        { 0, 4, 0, 4, 1, "all right" },
        { 0, 2, 0, 4, 0, "half is below the bound" },
        { 0, 4, 3, 4, 0, "there is no harder level" },
        { 0, 4, 0, 1, 0, "nor with a single one" },
        { 0, 0, 2, 4, 0, "without a lower bound it is never easier" },
        { 0.25, 1, 2, 4, -1, "1 of 4 is the lower bound" },
        { 0.25, 2, 2, 4, 0, "between the bounds it stays" },
        { 0.25, 0, 0, 4, 0, "there is no easier level" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct curriculum c = { .level = cases[i].level };
        struct curriculum_rule rule = { .harder = 0.75, .easier = cases[i].easier, .n_group = 2, .n_level = cases[i].n_level };
        double share;
        add(&c, cases[i].level, 2, 4, cases[i].right);
        assert_int_equal(curriculum_decide(&c, &rule, &share), cases[i].by);
        assert_true(share == cases[i].right / 4);
        assert_int_equal(c.level, cases[i].level + cases[i].by);
        assert_int_equal(c.n_group, 0);    // counting begins again
        assert_true(isnan(curriculum_share(&c)));
    }
}

static void too_few_groups_decide_nothing_and_are_kept(UNUSED void **state)
{
    struct curriculum c = { 0 };
    struct curriculum_rule rule = { .harder = 0.75, .n_group = 3, .n_level = 4 };
    double share;
    add(&c, 0, 2, 4, 4);
    assert_int_equal(curriculum_decide(&c, &rule, &share), 0);
    assert_true(isnan(share));
    assert_int_equal(c.n_group, 2);
    add(&c, 0, 1, 4, 1);
    assert_int_equal(curriculum_decide(&c, &rule, &share), 1);
    assert_true(share == 9.0 / 12);
}

static void groups_of_another_level_and_without_answers_do_not_count(UNUSED void **state)
{
    struct curriculum c = { .level = 1 };
    struct curriculum_rule rule = { .harder = 0.5, .n_group = 1, .n_level = 4 };
    double share;
    add(&c, 0, 8, 4, 4);    // opened before the level went up
    add(&c, 2, 8, 4, 4);
    add(&c, 1, 8, 0, 0);    // no verifier said whether they are right
    assert_int_equal(c.n_group, 0);
    assert_int_equal(curriculum_decide(&c, &rule, &share), 0);
    add(&c, 1, 1, 2, 1);    // 2 of 4 samples were left out of the group
    assert_int_equal(curriculum_decide(&c, &rule, &share), 1);
    assert_true(share == 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_share_of_right_answers_moves_the_level_at_its_bounds),
        cmocka_unit_test(too_few_groups_decide_nothing_and_are_kept),
        cmocka_unit_test(groups_of_another_level_and_without_answers_do_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
