/* The words of states and tasks: on the wire, in the journal and on the screen. tags: valgrind */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/macros.h"
#include "protocol/run/run_state.h"

static void a_state_is_found_by_its_word_alone(UNUSED void **state)
{
    static const struct {
        const char *text;
        enum run_state want;
        const char *why;
    } cases[] = {
        { "finished", RUN_FINISHED, "the word" },
        { "failed: the disk is full: write", RUN_FAILED, "an event of the journal: the reason does not matter" },
        { "stopped:", RUN_STOPPED, "an empty reason" },
        { "", RUN_UNKNOWN, "nothing" },
        { "finish", RUN_UNKNOWN, "a beginning is not the word" },
        { "finishedly", RUN_UNKNOWN, "nor is a longer one" },
        { "Running", RUN_UNKNOWN, "words are in small letters" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_int_equal(run_state_find(cases[i].text), cases[i].want);
    for (int s = 0; s < N_RUN_STATE; s++)
        assert_int_equal(run_state_find(run_state_name((enum run_state)s)), s);
}

static void the_facts_of_a_change_of_state_are_read_back(UNUSED void **state)
{
    static const struct {
        const char *reason, *want;
    } cases[] = {
        { "", "" },
        { "stopped by ann: \"enough\"", "stopped by ann: \"enough\"" },
        { "no UTF-8: \xff", "no UTF-8: ?" },
    };
    char reason[64];
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        for (int s = 1; s < N_RUN_STATE; s++) {
            json_t *facts = run_state_facts((enum run_state)s, cases[i].reason);
            char *text = json_dumps(facts, JSON_COMPACT);
            assert_int_equal(run_state_read(text, strlen(text), reason, sizeof reason), s);
            assert_string_equal(reason, cases[i].want);
            free(text);
            json_decref(facts);
        }
    assert_int_equal(run_state_read("", 0, reason, sizeof reason), RUN_UNKNOWN);
    assert_int_equal(run_state_read("{\"state\":7}", 11, reason, sizeof reason), RUN_UNKNOWN);
}

static void only_an_ended_run_has_an_exit_code(UNUSED void **state)
{
    static const int code[N_RUN_STATE] = { -1, -1, -1, -1, -1, 0, 1, 3 };    // as README says: finished, failed, stopped
    for (int s = 0; s < N_RUN_STATE; s++) {
        assert_int_equal(run_state_exit_code((enum run_state)s), code[s]);
        assert_int_equal(run_state_is_over((enum run_state)s), code[s] >= 0);
    }
}

static void a_kind_of_work_is_found_by_its_word(UNUSED void **state)
{
    enum task_kind k;
    for (int i = 0; i < N_TASK_KIND; i++) {
        assert_true(task_kind_find(task_kind_name((enum task_kind)i), &k));
        assert_int_equal(k, i);
    }
    k = TASK_SAVE;
    assert_false(task_kind_find("dance", &k));
    assert_int_equal(k, TASK_SAVE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_state_is_found_by_its_word_alone),
        cmocka_unit_test(the_facts_of_a_change_of_state_are_read_back),
        cmocka_unit_test(only_an_ended_run_has_an_exit_code),
        cmocka_unit_test(a_kind_of_work_is_found_by_its_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
