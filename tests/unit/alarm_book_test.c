/* tags: valgrind
 * The alarm book: what each rule says, and the file that changes it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "protocol/base/file.h"
#include "protocol/settings/alarm_book.h"
#include "protocol/settings/metrics.h"

static struct alarm_book book;

static const struct alarm_rule *rule(const char *name)
{
    const struct alarm_rule *r = alarm_rule_find(&book, name);
    if (!r)
        fail_msg("the book has no alarm '%s'", name);
    return r;
}

static void each_rule_holds_where_it_says(UNUSED void **state)
{
    static const struct {
        const char *name;
        double value[12];
        int n;
        bool holds;
        const char *why;
    } cases[] = {
        { "reward_zero", { 0.2, 0, 0 }, 3, false, "two steps of exactly 0 are not three" },
        { "reward_zero", { 0.2, 0, 0, 0 }, 4, true, "three are" },
        { "reward_zero", { 0, 0, 1e-9 }, 3, false, "nearly 0 is not 0" },
        { "reward_zero", { 0, 0 }, 2, false, "the run is younger than that" },
        { "sampler_trainer_diff", { 1e-7 }, 1, true, "any difference is a bug" },
        { "sampler_trainer_diff", { NAN }, 1, false, "not known is not wrong" },
        { "truncated", { 0.06, 0.05, 0.06 }, 3, false, "one of the three steps was at the bound" },
        { "truncated", { 0.06, 0.051, 0.06 }, 3, true, "AReaL: above 0.05" },
        { "grad_norm_jump", { 1, 1, 1, 1, 1, 1, 1, 6 }, 8, false, "seven values have no median" },
        { "grad_norm_jump", { 1, 1, 1, 1, 9, 9, 9, 1, 5.1 }, 9, true, "median 1 of eight" },
        { "grad_norm_jump", { 1, 1, 1, 1, 9, 9, 9, 1, 5 }, 9, false, "five times is the bound" },
        { "rollout_slow", { 10, 10, 10, 10, 10, 10, 10, 10, 4, 4, 4 }, 11, true, "below half for three steps" },
        { "rollout_slow", { 10, 10, 10, 10, 10, 10, 10, 10, 4, 4, 6 }, 11, false, "it has come back" },
        { "score_timeouts", { 3 }, 1, true, "counters begin at 0" },
        { "score_timeouts", { 3, 3 }, 2, false, "a step without" },
        { "score_timeouts", { 3, 4 }, 2, true, "one more" },
    };
    alarm_book_init(&book);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        if (alarm_holds(rule(cases[i].name), cases[i].value, cases[i].n) != cases[i].holds)
            fail_msg("%s: %s", cases[i].name, cases[i].why);
}

static void an_alarm_says_its_value(UNUSED void **state)
{
    char text[200];
    alarm_book_init(&book);
    alarm_say(rule("no_spread"), 0.954, text, sizeof text);
    assert_string_equal(text, "95 % of the groups have no spread, so no gradient");
    alarm_say(rule("score_timeouts"), 123456, text, sizeof text);
    assert_string_equal(text, "verifier time-outs, 123456 so far");
    alarm_say(rule("entropy_collapse"), 0.00123, text, sizeof text);
    assert_string_equal(text, "entropy collapsed to 0.00123");
    for (int i = 0; i < book.n; i++)
        assert_true(metric_find(book.rule[i].metric) >= 0 && book.rule[i].remedy[0]);
}

/* What reading this text does to the defaults: err's text, or "". */
static const char *read_text(const char *text)
{
    static struct error err;
    char path[] = "/tmp/alarm-book-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    alarm_book_init(&book);
    err.text[0] = 0;
    bool ok = alarm_book_read(&book, path, &err);
    unlink(path);
    assert_int_equal(ok, err.text[0] == 0);
    return err.text;
}

static void a_file_changes_what_it_names_and_adds_its_own(UNUSED void **state)
{
    assert_string_equal(read_text("# ours\ntruncated:\n  above: 0.3\n  actions: [bell, pause]\nkl_jump: { on: false }\n"
                                  "kl_high:\n  metric: train/kl\n  above: 0.1\n  severity: critical\n  command: \"mail -s 'KL' me\"\n"),
                        "");
    assert_float_equal(rule("truncated")->limit, 0.3, 0);
    assert_int_equal(rule("truncated")->steps, 3);    // what is left out stays
    assert_int_equal(rule("truncated")->actions, ALARM_BELL | ALARM_PAUSE);
    assert_false(rule("kl_jump")->on);
    assert_true(rule("kl_high")->critical);
    assert_string_equal(rule("kl_high")->text, "kl_high is {}");
    assert_string_equal(read_text(""), "");
    assert_string_equal(read_text("truncated: {above: null, steps: ~, text: , command: NULL}\n"), "");
    assert_float_equal(rule("truncated")->limit, 0.05, 0);
    assert_string_equal(rule("truncated")->command, "");
}

static void a_book_that_is_printed_reads_back_the_same(UNUSED void **state)
{
    struct buf text = BUF_INIT, again = BUF_INIT;
    assert_string_equal(read_text("mine:\n  metric: reward/style\n  below: -1.5\n  text: \"a \\\"quoted\\\" {}\"\n  command: \"x \\\\ y\"\n"
                                  "\"a: # {b}\":\n  metric: \"eval/my set: #1/mean\"\n  below: 0\n  command: |\n    one\n    two\tthree\n"
                                  "truncated: {on: false}\n"),
                        "");
    alarm_book_print(&book, &text);
    assert_string_equal(read_text(buf_text(&text)), "");
    assert_string_equal(rule("a: # {b}")->metric, "eval/my set: #1/mean");
    assert_string_equal(rule("a: # {b}")->command, "one\ntwo\tthree\n");
    alarm_book_print(&book, &again);
    assert_string_equal(buf_text(&again), buf_text(&text));
    buf_release(&text);
    buf_release(&again);
}

static void a_file_that_is_wrong_is_refused_with_its_line(UNUSED void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        { "truncated:\n  above: lots\n", ":2: 'above' of alarm 'truncated' is 'lots', which is not a number" },
        { "truncated:\n  abve: 1\n", ":2: 'abve' of alarm 'truncated' is not known" },
        { "truncated:\n  steps: 0\n", "it must be 1 to 16" },
        { "truncated:\n  severity: bad\n", "it must be critical or warning" },
        { "truncated:\n  actions: [sing]\n", "does not know 'sing'" },
        { "truncated: 3\n", ":1: 'truncated' is not a name with the fields of an alarm" },
        { "mine:\n  above: 1\n", ":1: alarm 'mine' needs a metric and a condition" },
        { "mine:\n  metric: train/kl\n", "needs a metric and a condition" },
        { "mine:\n  metric: train/kk\n  above: 1\n", "watches 'train/kk', which is not a metric" },
        { "mine:\n  metric: train/kl\n  above: .inf\n", "not a number" },
        { "a: {b\n", ":" },
        { "- a\n", "an alarm book is" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const char *says = read_text(cases[i].text);
        if (!strstr(says, cases[i].says))
            fail_msg("%s\ngives '%s'\nnot    '%s'", cases[i].text, says, cases[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rule_holds_where_it_says),
        cmocka_unit_test(an_alarm_says_its_value),
        cmocka_unit_test(a_file_changes_what_it_names_and_adds_its_own),
        cmocka_unit_test(a_book_that_is_printed_reads_back_the_same),
        cmocka_unit_test(a_file_that_is_wrong_is_refused_with_its_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
