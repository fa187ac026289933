/* tags: valgrind
 * What agents have measured becomes curves over the whole run, of each host and GPU, and the devices' pane shows them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "console/fleet/device_log.h"
#include "console/tui/app.h"
#include "protocol/record/journal.h"
#include "tests/unit/app_screen.h"
#include "tests/unit/folder.h"

#define S ((int64_t)1000000000)

static struct run_view *model_make(const char *telemetry_s)
{
    struct error err;
    struct run_view *m = view_new(&err);
    assert_non_null(m);
    view_knob(m, "telemetry_s", telemetry_s, S);
    m->told_ns = S;
    return m;
}

static void sample_put(struct journal *j, const char *node, double at_s, double cpu, double gpu0, double gpu1)
{
    struct error err;
    struct journal_metric f[] = { { "host/cpu_percent", cpu },
                                  { "gpu/1/util_percent", gpu1 },
                                  { "gpu/0/util_percent", gpu0 },
                                  { "gpu/0/power_watts", 10 * gpu0 },
                                  { "gpu/0/fan_percent", 3 },    // has no curve
                                  { "nonsense", 1 } };
    assert_true(journal_begin(j, &err));
    assert_true(journal_sample_add(j, node, 1e9 + at_s, f, ARRAY_SIZE(f), &err));
    assert_true(journal_commit(j, &err));
}

static void pump(struct device_log *d, struct run_view *m, int64_t *now)
{
    *now += S;
    for (int i = 0; device_log_pump(d, m, 1, *now); i++)
        assert_true(i < 10000);
}

static void samples_become_curves_of_every_host_and_gpu(void **state)
{
    const struct folder *f = *state;
    struct error err;
    int64_t now = S;
    struct journal *j = journal_open(f->path, &err);
    struct run_view *m = model_make("10");
    struct device_log *d = device_log_new(f->path);
    assert_non_null(j);
    pump(d, m, &now);
    assert_null(device_log_at(d, 0));
    assert_string_equal(device_log_why(d), "");
    for (int i = 0; i < 1200; i++) {    // more than one slice; the times jitter by up to a second
        sample_put(j, "b", 10 * i + i % 2, 50, i % 100, NAN);
        if (i < 3)
            sample_put(j, "a", 10 * i + 1, 20, 0, 7);
    }
    pump(d, m, &now);
    assert_true(device_log_tick_s(d) == 10);
    assert_int_equal(device_log_ticks(d), 1200);
    static const struct {
        const char *node;
        int gpu;
    } want[] = { { "a", -1 }, { "a", 0 }, { "a", 1 }, { "b", -1 }, { "b", 0 }, { "b", 1 } };
    for (int i = 0; i < (int)ARRAY_SIZE(want); i++) {
        const struct device_curves *c = device_log_at(d, i);
        assert_non_null(c);
        assert_string_equal(c->node, want[i].node);
        assert_int_equal(c->gpu, want[i].gpu);
    }
    assert_null(device_log_at(d, 6));
    const struct device_curves *gpu = device_log_at(d, 4);
    assert_string_equal(device_curve(0, 0)->name, "util_percent");
    assert_string_equal(device_curve(0, 2)->name, "power_watts");
    assert_null(device_curve(-1, 6));
    for (int i = 0; i < 1200; i++) {
        assert_true(series_at(&gpu->curve[0], i) == i % 100);
        assert_true(series_at(&gpu->curve[2], i) == 10 * (i % 100));
        assert_true(isnan(series_at(&device_log_at(d, 5)->curve[0], i)));
    }
    sample_put(j, "b", 12000, 99, 1, 1);    // it goes on
    pump(d, m, &now);
    assert_true(device_log_at(d, 3)->curve[0].last == 99);
    device_log_free(d);
    fleet_model_free(m);
    journal_close(j);
}

static void a_sample_that_is_late_leaves_no_hole_and_a_pause_does(void **state)
{
    const struct folder *f = *state;
    struct error err;
    int64_t now = S;
    struct journal *j = journal_open(f->path, &err);
    struct run_view *m = model_make("10");
    struct device_log *d = device_log_new(f->path);
    static const double at[] = { 0, 10, 30, 90 };
    for (size_t i = 0; i < ARRAY_SIZE(at); i++)
        sample_put(j, "a", at[i], (double)i, 0, 0);
    pump(d, m, &now);
    const struct series *cpu = &device_log_at(d, 0)->curve[0];
    static const double want[] = { 0, 1, 2, 2, NAN, NAN, NAN, NAN, NAN, 3 };
    for (size_t i = 0; i < ARRAY_SIZE(want); i++)
        assert_true(isnan(want[i]) ? isnan(series_at(cpu, (int64_t)i)) : series_at(cpu, (int64_t)i) == want[i]);
    device_log_free(d);
    fleet_model_free(m);
    journal_close(j);
}

static void type(struct app *app, const char *keys)
{
    for (; *keys; keys++)
        app_key(app, &(struct key_event){ .key = (unsigned char)*keys }, S);
}

static void the_pane_shows_the_curves_of_what_is_chosen(void **state)
{
    const struct folder *f = *state;
    struct error err;
    int64_t now = S;
    struct cells c = { 0 };
    struct app app;
    struct journal *j = journal_open(f->path, &err);
    struct run_view *m = model_make("15");
    struct device_log *d = device_log_new(f->path);
    assert_true(app_init(&app, m, NULL, 120, 36, &err));
    app.devices = d;
    type(&app, "V");
    app_must_show(&app, &c, S, "no figures are kept yet");
    for (int i = 0; i < 100; i++)
        sample_put(j, "node1", 15 * i, i, 70, 93);
    pump(d, m, &now);
    app_must_show(&app, &c, S, "99 percent: processor time in use, of all cores");
    app_must_show(&app, &c, S, "24:45");    // of 100 samples, 15 seconds each
    type(&app, "j");
    app_must_show(&app, &c, S, "70 percent: share of time in which a kernel ran");
    app_must_show(&app, &c, S, "700 watts: power drawn");
    type(&app, "/gpu 1\r");
    app_must_show(&app, &c, S, "93 percent: share of time");
    app_key(&app, &(struct key_event){ .key = KEY_ESCAPE }, S);
    type(&app, "gh");    // the cursor goes back from the end
    app_must_show(&app, &c, S, "percent at 24:");
    type(&app, "0\r");
    assert_null(strstr(app_screen(&app, &c, S), "hosts and GPUs"));    // the curves alone
    for (int w = 40; w <= 200; w += 20)
        for (int h = 10; h <= 60; h += 5)
            for (const char *view = "\rys+[0\r"; *view; view++) {
                app_resize(&app, w, h);
                type(&app, (const char[]){ *view, 0 });
                app_screen(&app, &c, S);
                assert_true(c.cursor_x < w && c.cursor_y < h);
            }
    app_release(&app);
    cells_release(&c);
    device_log_free(d);
    fleet_model_free(m);
    journal_close(j);
}

static void hosts_without_room_are_counted_and_no_others(void **state)
{
    const struct folder *f = *state;
    struct error err;
    int64_t now = S;
    char node[16];
    struct journal *j = journal_open(f->path, &err);
    struct run_view *m = model_make("10");
    struct device_log *d = device_log_new(f->path);
    struct journal_metric cpu = { "host/cpu_percent", 1 };
    for (int i = 0; i <= DEVICE_LOG_MAX; i++) {
        pump(d, m, &now);
        assert_int_equal(device_log_left_out(d), 0);
        snprintf(node, sizeof node, "n%03d", i);
        assert_true(journal_begin(j, &err));
        assert_true(journal_sample_add(j, node, 1e9 + i, &cpu, 1, &err));
        assert_true(journal_commit(j, &err));
    }
    m->n_host = DEVICE_LOG_MAX + 1;
    pump(d, m, &now);
    assert_int_equal(device_log_left_out(d), 1);
    device_log_free(d);
    fleet_model_free(m);
    journal_close(j);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(samples_become_curves_of_every_host_and_gpu, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(a_sample_that_is_late_leaves_no_hole_and_a_pause_does, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(hosts_without_room_are_counted_and_no_others, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(the_pane_shows_the_curves_of_what_is_chosen, folder_make, folder_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
