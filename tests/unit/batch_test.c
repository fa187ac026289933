/* batch_test.c - what a run without a screen prints */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include "console/batch/batch.h"

struct sink {
    FILE *file;
    char *text;
    size_t len;
};

static struct batch *batch_make(struct sink *s, enum batch_format format, double interval_s)
{
    struct error err = { 0 };
    s->file = open_memstream(&s->text, &s->len);
    struct batch *b = batch_new(&(struct batch_config){ .format = format, .interval_s = interval_s, .out = s->file, .run = "demo" }, &err);
    assert_non_null(b);
    return b;
}

static void sink_release(struct sink *s)
{
    fclose(s->file);
    free(s->text);
}

static void jsonl_holds_json_lines_only_and_ends_with_the_outcome(UNUSED void **state)
{
    struct sink s;
    struct error err = { 0 };
    struct batch *b = batch_make(&s, BATCH_JSONL, 0);
    batch_eval(b, 0, "sampled", 500, 0.25);
    batch_step(b, 1, 2, (struct batch_metric[]){ { "metrics/reward", 0.5 }, { "kl", NAN }, { "grad_norm", INFINITY } }, 3);
    batch_note(b, "this is for people");
    batch_step(b, 2, 2, (struct batch_metric[]){ { "metrics/reward", 0.75 } }, 1);
    batch_eval(b, 2, "sampled", 500, 0.84);
    assert_true(batch_end(b, RUN_FINISHED, 2, NULL, &err));
    static const char *const want[] = { "eval", "step", "step", "eval", "finished" };
    size_t n = 0;
    json_t *last = NULL;
    for (char *save = NULL, *line = strtok_r(s.text, "\n", &save); line; line = strtok_r(NULL, "\n", &save), n++) {
        json_decref(last);
        last = json_loads(line, 0, NULL);
        assert_non_null(last);
        assert_true(n < ARRAY_SIZE(want));
        assert_string_equal(json_string_value(json_object_get(last, "event")), want[n]);
        if (n == 1) {
            assert_int_equal(json_object_size(json_object_get(last, "metrics")), 1);    // unknown is left out, not 0
        }
    }
    assert_int_equal(n, ARRAY_SIZE(want));
    assert_int_equal(json_integer_value(json_object_get(last, "step")), 2);
    json_t *set = json_object_get(json_object_get(last, "eval"), "sampled");
    assert_int_equal(json_integer_value(json_object_get(set, "n")), 500);
    assert_float_equal(json_real_value(json_object_get(set, "mean")), 0.84, 1e-9);
    json_decref(last);
    batch_free(b);
    sink_release(&s);
}

static void events_are_printed_as_they_come_in_both_formats(UNUSED void **state)
{
    // clang-format off
    static const struct {
        struct batch_event event;
        const char *json, *text;    // NULL: not printed
    } cases[] = {
        { { 3, "alert", "controller", "the last 16 samples were all left out", "" },
          "{\"event\":\"alert\",\"step\":3,\"who\":\"controller\",\"text\":\"the last 16 samples were all left out\"}",
          "            ALERT: the last 16 samples were all left out\n" },
        { { 4, "command", "ann@host, ctl", "lr: 1 -> 2 from now on", "{\"changes\":[{\"name\":\"lr\",\"before\":\"1\",\"value\":\"2\",\"from\":\"now\"}]}" },
          "{\"event\":\"knob\",\"step\":4,\"who\":\"ann@host, ctl\",\"text\":\"lr: 1 -> 2 from now on\",\"changes\":[{\"name\":\"lr\",\"before\":\"1\","
          "\"value\":\"2\",\"from\":\"now\"}]}", "            lr: 1 -> 2 from now on, by ann@host, ctl\n" },
        { { 4, "command", "ann", "paused", "" }, "{\"event\":\"command\",\"step\":4,\"who\":\"ann\",\"text\":\"paused\"}", "            paused, by ann\n" },
        { { 5, "checkpoint", "controller", "step 5 saved", "{\"path\":\"/r/step-000005\"}" },
          "{\"event\":\"checkpoint\",\"step\":5,\"text\":\"step 5 saved\",\"path\":\"/r/step-000005\"}",
          "            checkpoint: step 5 saved\n" },
        { { 5, "state", "controller", "stopping: stopped by ann", "{\"state\":\"stopping\",\"reason\":\"stopped by ann\"}" },
          "{\"event\":\"state\",\"step\":5,\"state\":\"stopping\",\"reason\":\"stopped by ann\"}", "            state: stopping: stopped by ann\n" },
        { { 5, "state", "controller", "stopped: stopped by ann", "{\"state\":\"stopped\",\"reason\":\"stopped by ann\"}" }, NULL, NULL },    // shown in the last line
        { { 6, "return", "controller", "back from step 6 to 5", "" },
          "{\"event\":\"return\",\"step\":6,\"who\":\"controller\",\"text\":\"back from step 6 to 5\"}", "            back from step 6 to 5\n" },
        { { 6, "alert", "a\xff", "no \xfe text", "{\"half\":" },
          "{\"event\":\"alert\",\"step\":6,\"who\":\"a?\",\"text\":\"no ? text\"}", "            ALERT: no \xfe text, by a\xff\n" },
    };
    // clang-format on
    for (int format = BATCH_TEXT; format <= BATCH_JSONL; format++)
        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
            struct sink s;
            char want[1024] = "";
            const char *line = format == BATCH_JSONL ? cases[i].json : cases[i].text;
            struct batch *b = batch_make(&s, format, 0);
            batch_event(b, &cases[i].event);
            fflush(s.file);
            if (line)
                snprintf(want, sizeof want, "%s%s", line, format == BATCH_JSONL ? "\n" : "");
            assert_string_equal(s.text, want);
            batch_free(b);
            sink_release(&s);
        }
}

static void who_leaves_says_that_the_run_goes_on(UNUSED void **state)
{
    struct sink s;
    struct error err = { 0 };
    struct batch *b = batch_make(&s, BATCH_JSONL, 0);
    assert_true(batch_end(b, RUN_RUNNING, 7, "the run goes on", &err));
    assert_string_equal(s.text, "{\"event\":\"left\",\"step\":7,\"eval\":{},\"reason\":\"the run goes on\"}\n");
    batch_free(b);
    sink_release(&s);
}

static void an_evaluation_printed_before_counts_only_for_the_table(UNUSED void **state)
{
    struct sink s;
    struct error err = { 0 };
    struct batch *b = batch_make(&s, BATCH_TEXT, 0);
    batch_eval_known(b, "greedy", 500, 0.25);
    batch_eval(b, 9, "greedy", 500, 0.75);
    assert_true(batch_end(b, RUN_FINISHED, 9, "", &err));
    assert_null(strstr(s.text, "evaluated 'greedy' after step 0"));
    assert_non_null(strstr(s.text, "evaluated 'greedy' after step 9: 75.0 % of 500"));
    assert_non_null(strstr(s.text, "     25.0      75.0     +50.0      500"));
    batch_eval_began(b, "greedy", 0.125);    // as an older event says that came later
    assert_true(batch_end(b, RUN_FINISHED, 9, "", &err));
    assert_non_null(strstr(s.text, "     12.5      75.0     +62.5      500"));
    batch_free(b);
    sink_release(&s);
}

static void the_time_left_is_what_steps_take_however_late_the_watching_began(UNUSED void **state)
{
    struct sink s;
    struct error err = { 0 };
    struct batch *b = batch_make(&s, BATCH_TEXT, 0);
    batch_joins(b, 3600, 10);    // an hour old, 10 s a step
    batch_step(b, 11, 100, NULL, 0);
    assert_non_null(strstr(s.text, " 14:50\n"));    // 89 steps; this one came at once after the attaching
    batch_step(b, 12, 100, (struct batch_metric[]){ { "time/step_s", 20 } }, 1);
    assert_non_null(strstr(s.text, " 17:36\n"));    // 88 steps of 0.8 * 10 + 0.2 * 20 s, as status has it
    batch_step(b, 13, 100, (struct batch_metric[]){ { "time/step_s", NAN } }, 1);
    assert_non_null(strstr(s.text, " 17:24\n"));
    batch_ends_in(b, 75);
    batch_step(b, 13, 100, NULL, 0);
    assert_non_null(strstr(s.text, "  1:15\n"));    // max_hours are over before that
    batch_ends_in(b, NAN);
    assert_true(batch_end(b, RUN_RUNNING, 13, "", &err));
    assert_non_null(strstr(s.text, "left after step 13 in 1:00:0"));    // the run's time, not ours
    batch_free(b);
    sink_release(&s);
}

static void the_interval_holds_lines_back_but_never_the_last_step(UNUSED void **state)
{
    struct sink s;
    struct error err = { 0 };
    struct batch *b = batch_make(&s, BATCH_JSONL, 3600);
    for (int i = 1; i <= 50; i++)
        batch_step(b, i, 50, NULL, 0);
    assert_false(batch_end(b, RUN_STOPPED, 50, "signal", &err));
    assert_int_equal(err.code, ERR_STOPPED);
    assert_int_equal(error_exit_status(err.code), 3);
    assert_non_null(strstr(s.text, "\"step\":1,"));
    assert_null(strstr(s.text, "\"step\":2,"));
    assert_non_null(strstr(s.text, "{\"event\":\"step\",\"step\":50,"));
    assert_non_null(strstr(s.text, "{\"event\":\"stopped\",\"step\":50,"));
    batch_free(b);
    sink_release(&s);
}

static void text_ends_with_a_table_of_start_and_end(UNUSED void **state)
{
    struct sink s;
    struct error err = { 0 };
    struct batch *b = batch_make(&s, BATCH_TEXT, 0);
    batch_eval(b, 0, "greedy", 500, 0.412);
    batch_step(b, 1, 1, (struct batch_metric[]){ { "metrics/reward", 0.5 } }, 1);
    batch_eval(b, 1, "greedy", 500, 0.9);
    assert_false(batch_end(b, RUN_FAILED, 1, "disk is full", &err));
    assert_int_equal(error_exit_status(err.code), 1);
    assert_non_null(strstr(err.text, "disk is full"));
    assert_non_null(strstr(s.text, "1/1"));
    assert_non_null(strstr(s.text, "0.500"));
    assert_non_null(strstr(s.text, "     41.2      90.0     +48.8      500"));
    batch_free(b);
    sink_release(&s);
}

static void a_full_disk_is_reported_at_the_end_and_stops_nothing(UNUSED void **state)
{
    struct error err = { 0 };
    FILE *full = fopen("/dev/full", "w");
    if (!full)
        skip();
    struct batch *b = batch_new(&(struct batch_config){ .format = BATCH_TEXT, .out = full }, &err);
    assert_non_null(b);
    for (int i = 1; i <= 3; i++)
        batch_step(b, i, 3, NULL, 0);
    assert_true(batch_broken(b));
    assert_false(batch_end(b, RUN_FINISHED, 3, NULL, &err));
    assert_int_equal(err.code, ERR_IO);
    assert_false(batch_end(b, RUN_STOPPED, 3, "", &err));    // stopped as by a signal, since there is no reader any more
    assert_int_equal(err.code, ERR_STOPPED);
    assert_non_null(strstr(err.text, "its progress could not be written: No space left"));
    batch_free(b);
    fclose(full);
}

static void an_unknown_format_names_the_known_ones(UNUSED void **state)
{
    struct error err = { 0 };
    enum batch_format format;
    assert_true(batch_format_parse("jsonl", &format, &err));
    assert_int_equal(format, BATCH_JSONL);
    assert_false(batch_format_parse("json", &format, &err));
    assert_non_null(strstr(err.text, "text or jsonl"));
    assert_int_equal(error_exit_status(err.code), 2);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(jsonl_holds_json_lines_only_and_ends_with_the_outcome),
        cmocka_unit_test(events_are_printed_as_they_come_in_both_formats),
        cmocka_unit_test(who_leaves_says_that_the_run_goes_on),
        cmocka_unit_test(an_evaluation_printed_before_counts_only_for_the_table),
        cmocka_unit_test(the_time_left_is_what_steps_take_however_late_the_watching_began),
        cmocka_unit_test(the_interval_holds_lines_back_but_never_the_last_step),
        cmocka_unit_test(text_ends_with_a_table_of_start_and_end),
        cmocka_unit_test(a_full_disk_is_reported_at_the_end_and_stops_nothing),
        cmocka_unit_test(an_unknown_format_names_the_known_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
