/* What a console reads from the journal of a run that has ended without it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "console/fleet/run_end.h"
#include "protocol/base/file.h"
#include "protocol/record/journal.h"

struct fixture {
    char *dir;
    struct journal *journal;
    struct run_view *model;
};

static int setup(void **state)
{
    struct error err;
    struct fixture *f = calloc(1, sizeof *f);
    f->dir = mkdtemp(strdup("/tmp/rc_run_end_XXXXXX"));
    f->journal = journal_open(f->dir, &err);
    f->model = view_new(&err);
    *state = f;
    return f->journal && f->model ? 0 : -1;
}

static int teardown(void **state)
{
    struct error err;
    struct fixture *f = *state;
    journal_close(f->journal);
    fleet_model_free(f->model);
    bool ok = dir_remove(f->dir, &err);
    free(f->dir);
    free(f);
    return ok ? 0 : -1;
}

/* Steps first to last, each with this reward. */
static void steps_put(struct fixture *f, int64_t incarnation, int64_t first, int64_t last, double reward)
{
    struct error err;
    assert_true(journal_begin(f->journal, &err));
    for (int64_t s = first; s <= last; s++)
        assert_true(journal_step_add(f->journal, incarnation, s, 1000.0 * (double)s,
                                     &(struct journal_metric){ metrics[M_REWARD].name, reward }, 1, &err));
    assert_true(journal_commit(f->journal, &err));
}

static void event_put(struct fixture *f, const char *kind, const char *text, const char *facts)
{
    struct error err;
    assert_true(journal_begin(f->journal, &err));
    assert_true(journal_event_add(f->journal, 1, 5, kind, "controller", text, facts, &err));
    assert_true(journal_commit(f->journal, &err));
}

static void what_was_missed_is_added_to_what_is_known(void **state)
{
    struct error err;
    struct fixture *f = *state;
    struct run_view *m = f->model;
    steps_put(f, 1, 1, 5, 0.5);
    event_put(f, "state", "running", "{\"state\":\"running\"}");
    event_put(f, "eval", "evaluated", "{\"set\":\"all\",\"step\":5,\"n\":4,\"mean\":0.25}");
    event_put(f, "state", "stopped", "{\"state\":\"stopped\",\"reason\":\"stopped by me\"}");
    m->incarnation = 1;
    m->state = RUN_RUNNING;
    for (int64_t s = 1; s <= 3; s++) {    // as telemetry has sent them
        view_step_begin(m, s);
        view_metric(m, s, metrics[M_REWARD].name, 0.75);
    }
    view_event(m, &(struct event_view){ .id = 1, .kind = "state", .text = "running" });
    assert_true(run_end_read(m, f->dir, &err));
    assert_int_equal(m->n_step, 6);
    assert_int_equal(m->step, 5);
    assert_float_equal(series_at(&m->metric[M_REWARD], 3), 0.75, 0);    // not counted twice
    assert_float_equal(series_at(&m->metric[M_REWARD], 4), 0.5, 0);
    assert_int_equal(m->n_event, 3);
    assert_string_equal(view_event_at(m, 1)->eval.set, "all");
    assert_float_equal(m->eval[0].mean, 0.25, 0);
    assert_int_equal(m->state, RUN_STOPPED);
    assert_string_equal(m->reason, "stopped by me");
    assert_true(run_end_read(m, f->dir, &err));    // again changes nothing
    assert_int_equal(m->n_event, 3);
    assert_int_equal(m->n_step, 6);
}

static void steps_that_were_gone_back_from_are_forgotten(void **state)
{
    struct error err;
    struct fixture *f = *state;
    struct run_view *m = f->model;
    assert_true(journal_begin(f->journal, &err));
    assert_int_equal(journal_incarnation_begin(f->journal, 0, &err), 1);
    assert_true(journal_commit(f->journal, &err));
    steps_put(f, 1, 1, 6, 0.5);
    m->incarnation = 1;
    for (int64_t s = 1; s <= 6; s++) {
        view_step_begin(m, s);
        view_metric(m, s, metrics[M_REWARD].name, 0.5);
    }
    assert_true(journal_begin(f->journal, &err));
    assert_int_equal(journal_incarnation_begin(f->journal, 4, &err), 2);
    assert_true(journal_commit(f->journal, &err));
    assert_true(run_end_read(m, f->dir, &err));
    assert_int_equal(m->n_step, 5);
    assert_int_equal(m->step, 4);
    steps_put(f, 2, 5, 5, 0.125);
    view_step_begin(m, 5);    // of the first life, as if its return had not been heard of
    view_metric(m, 5, metrics[M_REWARD].name, 0.5);
    assert_true(run_end_read(m, f->dir, &err));
    assert_int_equal(m->n_step, 6);
    assert_float_equal(series_at(&m->metric[M_REWARD], 5), 0.125, 0);
}

static void a_run_that_has_not_recorded_its_end_keeps_its_state_and_no_journal_is_a_failure(void **state)
{
    struct error err;
    struct fixture *f = *state;
    event_put(f, "state", "stopped", "{\"state\":\"stopped\",\"reason\":\"\"}");    // an earlier life of the run
    event_put(f, "state", "running", "{\"state\":\"running\"}");
    f->model->state = RUN_PAUSED;
    assert_true(run_end_read(f->model, f->dir, &err));
    assert_int_equal(f->model->state, RUN_PAUSED);
    assert_false(run_end_read(f->model, "/nonexistent/run", &err));
    assert_int_equal(f->model->n_event, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_missed_is_added_to_what_is_known, setup, teardown),
        cmocka_unit_test_setup_teardown(steps_that_were_gone_back_from_are_forgotten, setup, teardown),
        cmocka_unit_test_setup_teardown(a_run_that_has_not_recorded_its_end_keeps_its_state_and_no_journal_is_a_failure, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
