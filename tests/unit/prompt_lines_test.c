/* The lines of usable prompts in the data's file: prompts and lines are found from each other, and nothing else is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "protocol/record/prompt_lines.h"

static void prompts_and_lines_are_found_from_each_other(void **state)
{
    (void)state;
    /* Lines 1 and 4 are blank, 7 and 8 too long: prompts 0, 1 on 2, 3; 2, 3 on 5, 6; 4 on 9. */
    static const int64_t pairs[] = { 0, 2, 2, 5, 4, 9 }, line[] = { 2, 3, 5, 6, 9 };
    struct buf b = BUF_INIT;
    assert_true(buf_add(&b, pairs, sizeof pairs));
    for (int64_t i = 0; i < 5; i++) {
        assert_int_equal(prompt_line(&b, i), line[i]);
        assert_int_equal(prompt_on_line(&b, 5, line[i]), i);
    }
    static const int64_t none[] = { -1, 0, 1, 4, 7, 8, 10, 11, INT64_MAX };
    for (size_t i = 0; i < ARRAY_SIZE(none); i++)
        assert_int_equal(prompt_on_line(&b, 5, none[i]), -1);
    assert_int_equal(prompt_line(&b, -1), -1);
    buf_release(&b);
}

static void without_places_nothing_is_found(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    assert_int_equal(prompt_line(&b, 0), -1);
    assert_int_equal(prompt_on_line(&b, 5, 1), -1);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_and_lines_are_found_from_each_other),
        cmocka_unit_test(without_places_nothing_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
