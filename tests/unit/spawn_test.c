#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "protocol/run/spawn.h"

static void a_killed_process_is_named_by_the_c_librarys_word_for_its_signal(UNUSED void **state)
{
    char text[64], want[64];
    for (int sig = 1; sig <= 64; sig++) {    // the status of a process that a signal has ended is the signal's number
        const char *word = sigabbrev_np(sig);
        process_end_words(sig, text, sizeof text);
        snprintf(want, sizeof want, "was killed by signal %d (SIG%s)", sig, word ? word : "?");
        assert_string_equal(text, want);
    }
    process_end_words(3 << 8, text, sizeof text);
    assert_string_equal(text, "ended with status 3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_process_is_named_by_the_c_librarys_word_for_its_signal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
