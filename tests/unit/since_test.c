/* since_test.c - what a person is told who comes back to a run, and where their looks are kept
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/fleet/since.h"
#include "tests/unit/folder.h"

static struct run_view *view_of(const char *dir, int64_t n_step)
{
    struct error err;
    struct run_view *m = view_new(&err);
    assert_non_null(m);
    snprintf(m->dir, sizeof m->dir, "%s", dir);
    snprintf(m->name, sizeof m->name, "run-1");
    for (int64_t s = 1; s <= n_step; s++)
        view_step_begin(m, s);
    return m;
}

static void event(struct run_view *m, int64_t id, int64_t step, const char *kind, const char *who, const char *text, const char *facts)
{
    struct event_view e = { .id = id, .step = step };
    snprintf(e.kind, sizeof e.kind, "%s", kind);
    snprintf(e.who, sizeof e.who, "%s", who);
    snprintf(e.text, sizeof e.text, "%s", text);
    view_event_facts(m, &e, facts, strlen(facts));
}

static void eval(struct run_view *m, int64_t id, int64_t step, double mean)
{
    char facts[96];
    snprintf(facts, sizeof facts, "{\"set\":\"easy\",\"step\":%" PRId64 ",\"n\":8,\"mean\":%g}", step, mean);
    event(m, id, step, "eval", "controller", "easy", facts);
}

static void what_happened_is_told_by_kind_and_what_was_seen_is_not(void **state)
{
    (void)state;
    struct run_view *m = view_of("/runs/run-1", 25);
    struct last_look look = { .wall_s = 1000, .step = 10, .event = 3 };
    struct buf out = BUF_INIT;
    event(m, 1, 0, "state", "controller", "running", "");
    eval(m, 2, 5, 0.25);
    event(m, 3, 9, "command", "ada", "seen", "{\"note\":\"seen\"}");
    eval(m, 4, 15, 0.5);
    event(m, 5, 12, "command", "bob", "note: try more", "{\"note\":\"try more\"}");
    event(m, 6, 13, "alarm", "controller", "KL is 9", "{\"alarm\":\"kl\",\"state\":\"firing\"}");
    event(m, 7, 14, "alarm", "controller", "KL is well", "{\"alarm\":\"kl\",\"state\":\"quiet\"}");
    event(m, 8, 14, "command", "bob", "learning_rate: 2 -> 1",
          "{\"changes\":[{\"name\":\"learning_rate\",\"from\":\"optimizer step 15\"}]}");
    event(m, 9, 16, "process", "agent", "'worker cpu:0' was killed", "");
    eval(m, 10, 20, 0.75);
    since_print(m, &look, 1000 + 3 * 3600 + 61, &out);
    assert_string_equal(buf_text(&out), "You last looked 3:01:01 ago, at step 10.\n\n"
                                        "15 steps, to step 25\n"
                                        "evaluation of easy: 25.0 % -> 75.0 % at step 20\n"
                                        "\n1 note:\n  step 12: try more (bob)\n"
                                        "\n1 alarm or alert:\n  step 13: KL is 9\n"
                                        "\n1 change by an operator or return to a checkpoint:\n  step 14: learning_rate: 2 -> 1 (bob)\n"
                                        "\n1 death of a process, or coming and going of a node:\n  step 16: 'worker cpu:0' was killed\n");
    buf_clear(&out);
    since_print(m, &(struct last_look){ .wall_s = 1000, .step = 25, .event = 10 }, 5000, &out);
    assert_int_equal(out.len, 0);
    buf_release(&out);
    fleet_model_free(m);
}

static void many_are_counted_and_the_newest_listed(void **state)
{
    (void)state;
    struct run_view *m = view_of("/runs/run-1", 3);
    struct buf out = BUF_INIT;
    for (int64_t i = 1; i <= MODEL_EVENTS + 100; i++) {
        char text[32];
        snprintf(text, sizeof text, "alert %" PRId64, i);
        event(m, i, 2, "alert", "controller", text, "");
    }
    since_print(m, &(struct last_look){ .wall_s = 1000, .step = 3, .event = 50 }, 1030, &out);
    assert_non_null(strstr(buf_text(&out), "You last looked 30s ago"));
    assert_non_null(strstr(buf_text(&out), "\n1024 alarms and alerts, the newest 8:\n  step 2: alert 1117\n"));
    assert_non_null(strstr(buf_text(&out), "alert 1124\n\nMore has happened than is kept here"));
    buf_release(&out);
    fleet_model_free(m);
}

static void looks_are_kept_by_run_and_bounded(void **state)
{
    const struct folder *f = *state;
    char dir[64], path[128];
    struct last_look look;
    struct buf text = BUF_INIT;
    struct error err;
    setenv("XDG_STATE_HOME", f->path, 1);
    struct run_view *m = view_of("/runs/first", 4);
    event(m, 7, 4, "alert", "controller", "x", "");
    assert_false(last_look_read(m, &look));    // nobody has looked
    last_look_keep(m, 1234.5);
    assert_true(last_look_read(m, &look));
    assert_true(look.wall_s == 1234.5 && look.step == 4 && look.event == 7);
    for (int i = 0; i < LOOKS_MAX - 1; i++) {
        snprintf(dir, sizeof dir, "/runs/%d", i);
        struct run_view *other = view_of(dir, 1);
        last_look_keep(other, 2000 + i);
        fleet_model_free(other);
    }
    assert_true(last_look_read(m, &look));
    struct run_view *other = view_of("/runs/one-more", 1);
    last_look_keep(other, 9000);
    assert_false(last_look_read(m, &look));    // the oldest has made room
    assert_true(last_look_read(other, &look));
    snprintf(path, sizeof path, "%s/rollcall/looks", f->path);
    assert_true(file_write(path, "what\n\n0123 is this", 17, &err));
    assert_false(last_look_read(other, &look));
    last_look_keep(other, 9001);
    assert_true(last_look_read(other, &look) && look.wall_s == 9001);
    assert_true(file_read(&text, path, 4096, &err));
    buf_release(&text);
    fleet_model_free(other);
    fleet_model_free(m);

    m = view_of("/runs/one-more", 1);    // another run of the same name: its events are numbered from 1 again
    struct run_view *before = view_of("/runs/one-more", 9);
    event(before, 40, 9, "alert", "controller", "x", "");
    last_look_keep(before, 9002);
    event(m, 1, 0, "state", "controller", "running", "");
    assert_false(last_look_read(m, &look));
    fleet_model_free(before);
    fleet_model_free(m);
    setenv("XDG_STATE_HOME", "relative", 1);    // the specification says to ignore it
    unsetenv("HOME");
    m = view_of("/runs/nowhere", 1);
    last_look_keep(m, 1);
    assert_false(last_look_read(m, &look));
    fleet_model_free(m);
}

int main(void)
{
    const struct CMUnitTest test[] = {
        cmocka_unit_test(what_happened_is_told_by_kind_and_what_was_seen_is_not),
        cmocka_unit_test(many_are_counted_and_the_newest_listed),
        cmocka_unit_test_setup_teardown(looks_are_kept_by_run_and_bounded, folder_make, folder_remove),
    };
    return cmocka_run_group_tests_name("since", test, NULL, NULL);
}
