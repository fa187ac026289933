/* tui_app_test.c - the whole console without a terminal: keys in, cells out, at every size */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <inttypes.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "console/fleet/alarm.h"
#include "console/fleet/news.h"
#include "console/simulate/simulate.h"
#include "console/tui/app.h"
#include "console/tui/save.h"
#include "protocol/base/mix64.h"
#include "protocol/wire/message.h"
#include "tests/unit/app_screen.h"

#define S ((int64_t)1000000000)
#define T0 (100 * S)

struct stage {
    struct run_view *m;
    struct feed *feed;
    struct app app;
    struct cells cells;
    int64_t now;
};

static void stage_make(struct stage *s, const struct simulate_options *o, int w, int h)
{
    struct error err = { 0 };
    *s = (struct stage){ .now = T0 };
    s->m = view_new(&err);
    assert_non_null(s->m);
    s->feed = simulate_new(o, s->m, s->now, &err);
    assert_non_null(s->feed);
    assert_true(app_init(&s->app, s->m, s->feed, w, h, &err));
}

static void stage_release(struct stage *s)
{
    app_release(&s->app);
    s->feed->free(s->feed);
    fleet_model_free(s->m);
    cells_release(&s->cells);
}

static const struct simulate_options usual = { .steps = 400, .done = 150, .step_s = 1, .workers = 2, .seed = 1 };

static void pass(struct stage *s, double seconds)
{
    for (double t = 0; t < seconds; t += 0.25) {
        s->now += S / 4;
        s->feed->pump(s->feed, s->m, s->now);
        app_news(&s->app, s->now);
    }
}

static void press(struct stage *s, uint32_t key)
{
    app_key(&s->app, &(struct key_event){ .key = key }, s->now);
}

static void type(struct stage *s, const char *text)
{
    for (; *text; text++)
        press(s, (unsigned char)*text);
}

/* The whole screen as text; overwritten by the next call. */
static const char *screen(struct stage *s)
{
    return app_screen(&s->app, &s->cells, s->now);
}

static bool shows(struct stage *s, const char *what)
{
    return strstr(screen(s), what) != NULL;
}

/* Processes keep their place in the Workers pane at every height. */
static void controller_stays(struct stage *s)
{
    for (int h = 1; h <= 50; h++) {
        app_resize(&s->app, 120, h);
        if (h >= 12)
            assert_true(shows(s, "controller"));
    }
}

static bool inside(struct rect r, int w, int h)
{
    return r.w <= 0 || r.h <= 0 || (r.x >= 0 && r.y >= 0 && r.x + r.w <= w && r.y + r.h <= h);
}

static bool apart(struct rect a, struct rect b)
{
    return a.w <= 0 || a.h <= 0 || b.w <= 0 || b.h <= 0 || a.x + a.w <= b.x || b.x + b.w <= a.x || a.y + a.h <= b.y || b.y + b.h <= a.y;
}

static void rectangles_never_overlap_nor_leave_the_screen(UNUSED void **state)
{
    for (int w = 1; w <= 260; w++)
        for (int h = 1; h <= 90; h++) {
            struct layout l = layout_make(w, h);
            const struct rect r[] = { l.bar, l.tabs, l.body, l.line, l.footer };
            assert_int_equal(l.tiny, w < 40 || h < 10);
            for (size_t i = 0; i < ARRAY_SIZE(r); i++) {
                assert_true(inside(r[i], w, h));
                for (size_t k = i + 1; k < ARRAY_SIZE(r); k++)
                    assert_true(apart(r[i], r[k]));
            }
            for (int n = 0; n < 20; n += 3) {
                struct overview_layout o = layout_overview(l.body, n);
                assert_true(o.n_chart <= LAYOUT_CHARTS && inside(o.procs, w, h) && inside(o.side, w, h) && apart(o.procs, o.side));
                for (int i = 0; i < o.n_chart; i++) {
                    assert_true(inside(o.chart[i], w, h) && apart(o.chart[i], o.procs) && apart(o.chart[i], o.side));
                    for (int k = i + 1; k < o.n_chart; k++)
                        assert_true(apart(o.chart[i], o.chart[k]));
                }
            }
        }
    assert_true(layout_overview(layout_make(80, 24).body, 5).n_chart >= 6);    // 80x24 is fully usable
}

static void every_pane_is_drawn_at_every_size(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 80, 24);
    pass(&s, 3);
    static const int widths[] = { 1, 2, 3, 5, 8, 13, 21, 39, 40, 41, 60, 71, 72, 80, 100, 133, 200 };
    static const int heights[] = { 1, 2, 3, 4, 6, 9, 10, 11, 14, 18, 24, 50 };
    for (size_t i = 0; i < ARRAY_SIZE(widths); i++)
        for (size_t k = 0; k < ARRAY_SIZE(heights); k++)
            for (int pane = 0; pane < N_PANE; pane++)
                for (int extra = 0; extra < 4; extra++) {
                    app_resize(&s.app, 80, 24);
                    app_show(&s.app, (enum pane_id)pane);
                    if (extra == 1 && (pane == PANE_OVERVIEW || pane == PANE_ROLLOUTS || pane == PANE_METRICS))
                        press(&s, KEY_RETURN);    // a chart, a group in full
                    app_resize(&s.app, widths[i], heights[k]);
                    s.app.help = extra == 2;
                    s.app.glyphs = (enum chart_glyphs)(extra % 3);
                    if (extra == 3)
                        press(&s, 'S');
                    screen(&s);
                    assert_true(s.cells.cursor_x < s.cells.w && s.cells.cursor_y < s.cells.h);
                    s.app.dialog.title[0] = 0;
                }
    stage_release(&s);
}

static void any_keys_in_any_order_at_any_size_do_no_harm(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 80, 24);
    srand(11);
    for (int round = 0; round < 6000; round++) {
        int what = rand() % 20;
        if (what == 0)
            app_resize(&s.app, 1 + rand() % 150, 1 + rand() % 50);
        else if (what == 1)
            pass(&s, 0.5);
        else if (what < 12)
            press(&s, key_table[rand() % n_key_rows].key[0]);
        else if (what < 14)
            press(&s, KEY_ARROW_UP + (uint32_t)(rand() % 12));
        else if (what == 14)
            app_key(&s.app, &(struct key_event){ .key = KEY_CLICK + (uint32_t)(rand() % 3), .x = rand() % 200, .y = rand() % 60 }, s.now);
        else
            press(&s, (uint32_t)(rand() % 7 ? rand() % 128 : rand() % 0x2ffff));
        if (round % 8 == 0)
            screen(&s);
    }
    stage_release(&s);
}

static void the_overview_shows_what_matters_in_80x24(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 80, 24);
    pass(&s, 1.25);
    static const char *const wanted[] = { "simulated", "RUNNING", "step 151/400", "left",       "reward", "KL",      "entropy",
                                          "length",    "tok/s",   "worker cpu:1", "generating", "? help", "p pause", "S stop" };
    for (size_t i = 0; i < ARRAY_SIZE(wanted); i++)
        app_must_show(&s.app, &s.cells, s.now, wanted[i]);
    app_resize(&s.app, 30, 5);    // too small for panes: one line tells the state
    assert_memory_equal(screen(&s), "RUNNING 151/400", 15);
    assert_memory_equal(strchr(screen(&s), '\n'), "\n\n\n\n\n", 5);
    stage_release(&s);
}

static void the_worst_process_is_in_view_on_the_overview(UNUSED void **state)
{
    static const struct simulate_options many = { .steps = 400, .done = 150, .step_s = 1, .workers = 12, .seed = 1 };
    struct stage s;
    stage_make(&s, &many, 80, 24);
    pass(&s, 1);
    assert_true(shows(&s, "more: 2 lists them") && !shows(&s, "\u2717"));
    for (int i = 0; i < s.m->n_proc; i++)
        if (strcmp(s.m->proc[i].name, "worker cpu:11") == 0)
            s.m->proc[i].verdict = PROC_STUCK;
    assert_true(shows(&s, "\u2717 worker cpu"));    // its name is cut here
    assert_true(shows(&s, "more: 2 lists them"));
    stage_release(&s);
}

static void a_run_that_is_over_offers_and_asks_nothing_that_would_change_it(UNUSED void **state)
{
    static const uint32_t keys[] = { 'p', 'c', 'S', 'x', 'K' };
    struct stage s;
    stage_make(&s, &usual, 160, 24);
    pass(&s, 1);
    assert_true(shows(&s, "p pause"));
    for (int replay = 0; replay < 2; replay++) {
        s.m->state = replay ? RUN_RUNNING : RUN_FINISHED;
        s.app.replay = replay;    // as it was while it ran
        assert_false(shows(&s, "p pause") || shows(&s, "S stop") || shows(&s, "c checkpoint"));
        for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
            press(&s, keys[i]);
            assert_int_equal(s.app.dialog.title[0], 0);
        }
        press(&s, 'p');
        assert_non_null(strstr(s.app.flash, "the run is over; 'rollcall train --resume"));
        assert_int_equal(s.m->n_command, 0);
    }
    stage_release(&s);
}

static void the_help_page_lists_every_key_and_command(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 120, 200);
    press(&s, '?');
    const char *text = screen(&s);
    for (int i = 0; i < n_key_rows; i++)
        assert_non_null(strstr(text, key_table[i].help));
    assert_non_null(strstr(text, "checkpoint"));
    press(&s, KEY_ESCAPE);
    assert_false(s.app.help);
    stage_release(&s);
}

static void no_key_has_two_meanings_on_a_pane(UNUSED void **state)
{
    for (int pane = 0; pane < N_PANE; pane++)
        for (int i = 0; i < n_key_rows; i++)
            for (int k = 0; k < 3; k++)
                if (key_table[i].key[k] && (key_table[i].panes & ON(pane)))
                    assert_int_equal(key_request(key_table[i].key[k], (enum pane_id)pane), key_table[i].request);
}

static void pausing_is_asked_shouted_and_undone(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 80, 24);
    press(&s, 'p');
    assert_true(shows(&s, "Pause: how deep?"));
    press(&s, 's');
    pass(&s, 1);
    assert_true(shows(&s, "PAUSED (step)"));
    assert_true(shows(&s, "r resume"));
    assert_int_equal(s.cells.cell[40].role, ROLE_PAUSED);    // the whole bar
    press(&s, 'r');
    pass(&s, 1);
    assert_true(shows(&s, "RUNNING"));
    stage_release(&s);
}

static void costly_commands_are_confirmed_even_when_typed(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 80, 24);
    press(&s, 'S');
    assert_true(shows(&s, "Stop the run?"));
    press(&s, KEY_ESCAPE);
    pass(&s, 1);
    assert_int_equal(s.m->n_command, 0);
    type(&s, ":stop\r");
    assert_true(shows(&s, "Are you sure?"));
    press(&s, 'n');
    assert_int_equal(s.m->n_command, 0);
    type(&s, ":stop\ry");
    assert_int_equal(s.m->n_command, 1);
    pass(&s, 3);
    assert_int_equal(s.m->state, RUN_STOPPED);
    assert_true(shows(&s, "STOPPED"));
    stage_release(&s);
}

static void a_number_that_jumps_is_asked_about(UNUSED void **state)
{
    static const struct {
        const char *line, *want;
    } cases[] = {
        { "set learning_rate=0.5", "learning_rate goes from 1e-05 to 0.5, 5e+04 times as much" },
        { "set learning_rate=1e-7", "learning_rate goes from 1e-05 to 1e-7, 100 times as little" },
        { "set temperature=1.1 learning_rate=0", "learning_rate goes from 1e-05 to 0" },
        { "set learning_rate=4e-5", NULL },    // exactly four times
        { "set temperature=0.9", NULL },
        { "set lr_schedule=cosine", NULL },
        { "resume", NULL },
        { "checkpoint", NULL },
    };
    struct stage s;
    stage_make(&s, &usual, 160, 24);
    const struct error none = { 0 };
    struct error err = none;
    snprintf(s.m->knob[knob_find("learning_rate", &err) - knobs].text, sizeof(s.m->knob[0].text), "1e-05");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        int64_t sent = s.m->n_command;
        type(&s, ":");
        type(&s, cases[i].line);
        press(&s, KEY_RETURN);
        if (!cases[i].want) {
            assert_int_equal(s.m->n_command, sent + 1);
            continue;
        }
        assert_int_equal(s.m->n_command, sent);
        assert_true(shows(&s, "Are you sure?"));
        assert_true(shows(&s, cases[i].want));
        press(&s, 'n');
        assert_int_equal(s.m->n_command, sent);
    }
    stage_release(&s);
}

static void going_back_says_what_it_undoes_and_is_asked_about(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 80, 24);
    pass(&s, 1);
    press(&s, '7');
    static const char *const wanted[] = { "140 whole", "6.0 GiB", "every 20 steps", "pinned", "start", "back to it:" };
    for (size_t i = 0; i < ARRAY_SIZE(wanted); i++)
        app_must_show(&s.app, &s.cells, s.now, wanted[i]);
    press(&s, KEY_ARROW_DOWN);
    press(&s, KEY_ARROW_DOWN);
    press(&s, 'b');
    assert_true(shows(&s, "Go back to step 100?"));
    assert_true(shows(&s, "Undone: 51 steps, and of the knobs:"));
    assert_true(shows(&s, "learning_rate 6e-4 -> 4e-4 (step 100)"));
    press(&s, 'n');
    assert_int_equal(s.m->n_command, 0);
    press(&s, 'U');    // one key: before the last change
    assert_true(shows(&s, "Go back to step 100?"));
    press(&s, 'y');
    assert_int_equal(s.m->n_command, 1);
    assert_string_equal(s.m->command[0].text, "rollback 100");
    type(&s, ":rollback 120\r");    // typed, it asks too
    assert_true(shows(&s, "Undone: 31 steps."));
    press(&s, 'y');
    assert_string_equal(s.m->command[1].text, "rollback 120");
    type(&s, ":rollback 77\r");    // one that is not known is asked about too; the run says what it has
    assert_true(shows(&s, "Are you sure?"));
    press(&s, 'n');
    press(&s, 'g');
    press(&s, 'P');
    assert_string_equal(s.m->command[2].text, "pin 140");
    press(&s, '1');
    press(&s, 'b');    // it means nothing on other panes
    assert_int_equal(s.m->n_command, 3);
    stage_release(&s);
}

static void a_pasted_text_is_never_a_key(UNUSED void **state)
{
    static const char prose[] = "Sorry, the server pauses.\ny:stop\ry\n";
    struct stage s;
    stage_make(&s, &usual, 120, 24);
    for (const char *pane = "123456789DV"; *pane; pane++) {
        press(&s, (uint32_t)*pane);
        app_paste(&s.app, prose, 2048, s.now);
        assert_string_equal(s.app.flash, "pasted text (2048 bytes) was dropped; press : or / first to paste into a line");
        assert_int_equal(s.app.prompt.kind, PROMPT_NONE);
        assert_int_equal(s.app.wish, 0);
    }
    press(&s, 'S');    // a question is not answered by it either
    app_paste(&s.app, "y", 1, s.now);
    assert_true(shows(&s, "Stop the run?"));
    press(&s, 'n');
    type(&s, ":");    // a line takes the text's first line, and is not sent
    app_paste(&s.app, "pause step\ny\n", 13, s.now);
    assert_string_equal(s.app.prompt.text, "pause step");
    assert_non_null(strstr(s.app.flash, "10 of 13 pasted bytes were taken"));
    assert_int_equal(s.m->n_command, 0);
    press(&s, KEY_ESCAPE);
    stage_release(&s);
}

static void a_change_says_who_made_it_and_what_came_of_it(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 150, 40);
    pass(&s, 2);
    press(&s, KEY_RETURN);
    press(&s, 'N');    // the newest change: the story has one of the learning rate
    assert_true(shows(&s, "learning_rate: 6e-4 -> 4e-4"));
    assert_true(shows(&s, "20 steps before: "));
    struct event_view alarm = { .id = 1000, .step = s.m->event[(s.m->n_event - 1) % MODEL_EVENTS].step, .kind = "alarm" };
    for (int64_t i = 0; view_event_at(s.m, i); i++)
        if (view_event_at(s.m, i)->change.kind == CHANGE_SETTINGS)
            alarm.step = view_event_at(s.m, i)->step + 3;    // the change acts from the step after its command on
    snprintf(alarm.text, sizeof alarm.text, "entropy jumped to 2");
    snprintf(alarm.detail, sizeof alarm.detail, "{\"state\":\"firing\"}");
    view_event(s.m, &alarm);
    char next[80];
    snprintf(next, sizeof next, "the next alarm, in step %" PRId64 ": entropy jumped to 2", alarm.step);
    assert_true(shows(&s, next));    // that it came after the change does not say that it came from it
    press(&s, 'n');
    assert_non_null(strstr(s.app.flash, "no change of a knob lies further on"));
    stage_release(&s);
}

static void a_change_is_marked_where_it_acts(UNUSED void **state)
{
    static const struct {
        const char *facts, *kind;
        int64_t step;    // -1: it has no place yet
    } cases[] = {
        { "{\"changes\":[{\"name\":\"learning_rate\",\"from\":\"optimizer step 103\"}]}", "command", 103 },    // 102 was under way
        { "{\"changes\":[{\"name\":\"reward_path\",\"from\":\"now\"}]}", "command", 102 },
        { "{\"changes\":[{\"name\":\"temperature\",\"from\":\"rollout step 53\"}]}", "command", 105 },    // two optimizer steps each
        { "{\"changes\":[{\"name\":\"temperature\",\"from\":\"rollout step 99\"}]}", "command", -1 },
        { "{\"changes\":[{\"from\":\"rollout step 53\"},{\"from\":\"optimizer step 104\"}]}", "command", 104 },
        { "{\"step\":90,\"incarnation\":2}", "return", 91 },
        { "{\"path\":\"step-90\"}", "checkpoint", -1 },
    };
    struct stage s;
    char want[64];
    stage_make(&s, &usual, 150, 40);
    for (int64_t step = s.m->n_step; step < 140; step++) {
        view_step_begin(s.m, step);
        view_metric(s.m, step, metrics[M_REWARD].name, step < 103 ? 0.25 : 0.75);
    }
    for (int64_t step = 1; step < s.m->n_step; step++)
        view_metric(s.m, step, metrics[M_ROLLOUT_STEP].name, (double)((step - 1) / 2));
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct event_view e = { .id = 2000 + (int64_t)i, .step = 101 };
        snprintf(e.kind, sizeof e.kind, "%s", cases[i].kind);
        view_event_facts(s.m, &e, cases[i].facts, strlen(cases[i].facts));
        assert_int_equal(view_change_step(s.m, view_event_at(s.m, 0)), cases[i].step);
    }
    s.m->n_event = 0;
    for (int64_t step = 60; step < 140; step++)
        series_set(&s.m->metric[M_REWARD], step, step < 103 ? 0.25 : 0.75);
    view_event_facts(s.m, &(struct event_view){ .id = 1, .step = 101, .kind = "command", .text = "learning_rate" }, cases[0].facts,
                     strlen(cases[0].facts));
    metrics_open(&s.app, M_REWARD);
    press(&s, 'N');
    snprintf(want, sizeof want, "step 103: 0.750   20 steps before: 0.250, from here: 0.750");
    assert_true(shows(&s, want));    // nothing of the old value on the new side, nor the other way round
    stage_release(&s);
}

static void the_overview_is_searched_by_metric(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 120, 40);
    assert_true(shows(&s, "reward"));
    type(&s, "/pause entropy");    // no letter of a filter is a key
    press(&s, KEY_CTRL('u'));
    type(&s, "entropy\r");
    assert_int_equal(s.app.dialog.title[0], 0);
    assert_true(shows(&s, "entropy"));
    assert_false(shows(&s, "gradient norm"));
    press(&s, KEY_RETURN);
    assert_true(shows(&s, "train/entropy"));
    press(&s, KEY_ESCAPE);
    type(&s, "/nosuchmetric\r");
    assert_true(shows(&s, "no metric contains the filter's text"));
    press(&s, KEY_ESCAPE);
    assert_true(shows(&s, "reward"));
    assert_int_equal(s.m->n_command, 0);
    stage_release(&s);
}

static const char *row_with(struct stage *s, const char *what)
{
    static char row[1000];
    const char *text = screen(s), *at = strstr(text, what);
    if (!at)
        fail_msg("'%s' is not on the screen:\n%s", what, text);
    while (at > text && at[-1] != '\n')
        at--;
    snprintf(row, sizeof(row), "%.*s", (int)strcspn(at, "\n"), at);
    return row;
}

static void every_metric_is_listed_and_several_share_a_chart(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 120, 36);
    view_metric(s.m, s.m->n_step - 1, "reward/boxed", 0.25);    // one of the run's own
    press(&s, '9');
    for (int id = 0; id < METRIC_N; id++)
        if (s.m->metric[id].n > 0) {
            type(&s, "/");
            press(&s, KEY_CTRL('u'));
            type(&s, metrics[id].name);
            press(&s, KEY_RETURN);
            row_with(&s, metrics[id].label);
        }
    type(&s, "/");
    press(&s, KEY_CTRL('u'));
    type(&s, "boxed\r");
    row_with(&s, "reward/boxed");
    press(&s, KEY_ESCAPE);
    type(&s, "/response_length\ro");    // marked: it stays in the chart of the next one
    press(&s, KEY_ESCAPE);
    type(&s, "/grad_norm\r");
    assert_non_null(strstr(row_with(&s, "b metrics/response_length"), "own scale: "));
    assert_true(shows(&s, "a train/grad_norm"));
    press(&s, 'y');
    row_with(&s, "logarithmic");
    press(&s, 's');
    row_with(&s, "single values, logarithmic");
    press(&s, KEY_ESCAPE);
    type(&s, "/response_length\ro");
    assert_false(shows(&s, "a metrics/response_length"));    // alone again
    assert_int_equal(s.m->n_command, 0);
    stage_release(&s);
}

static void a_chart_is_zoomed_panned_and_scrubbed_over_the_whole_history(UNUSED void **state)
{
    struct stage s;
    char at[64];
    stage_make(&s, &usual, 100, 30);
    type(&s, "9/metrics/reward\r+++");    // 150 steps, then 100, 66, 44
    assert_true(shows(&s, "107"));        // 151 - 44
    press(&s, '[');
    assert_true(shows(&s, "85") && shows(&s, "128"));    // 22 steps earlier
    for (int i = 0; i < 10; i++)
        press(&s, '[');
    for (int i = 0; i < 300; i++)
        press(&s, KEY_ARROW_LEFT);
    assert_true(shows(&s, "step 0: - "));    // before the first step nothing is known
    for (int64_t step = 1; step <= 150; step++) {
        press(&s, KEY_ARROW_RIGHT);
        snprintf(at, sizeof(at), "step %" PRId64 ": ", step);
        assert_true(shows(&s, at));
    }
    press(&s, '0');
    assert_true(shows(&s, "now "));
    stage_release(&s);
}

/* The step of the chart's cursor is in view, and its value is told. */
static void cursor_is_at(struct stage *s, int64_t step)
{
    char text[64];
    snprintf(text, sizeof text, "step %" PRId64 ": ", step);
    if (!shows(s, text))
        fail_msg("'%s' is not on the screen:\n%s", text, screen(s));
    assert_int_equal(s->cells.w, 100);
    bool line = false;    // the time cursor itself
    for (int k = 0; k < s->cells.w * s->cells.h; k++)
        line |= s->cells.cell[k].ch == 0x2502 && s->cells.cell[k].role == ROLE_FOCUS && k % s->cells.w > 0 && k % s->cells.w < 99;
    if (!line)
        fail_msg("the cursor of step %" PRId64 " is not in view:\n%s", step, screen(s));
}

static void a_step_of_a_long_live_history_is_found_at_once(UNUSED void **state)
{
    static const struct simulate_options hour = { .steps = 200000, .done = 150000, .step_s = 1, .workers = 2, .seed = 1 };
    struct stage s;
    stage_make(&s, &hour, 100, 30);
    type(&s, ":at 52345\r");
    cursor_is_at(&s, 52345);
    press(&s, KEY_TO_HOME);
    cursor_is_at(&s, 1);
    press(&s, 'G');
    cursor_is_at(&s, s.m->n_step - 1);
    for (int i = 0; i < 12; i++)    // as close as it goes
        press(&s, '+');
    cursor_is_at(&s, s.m->n_step - 1);
    type(&s, ":at 52345\r");
    cursor_is_at(&s, 52345);
    for (int i = 0; i < 3; i++) {    // the cursor comes along, and an arrow goes on from there
        int64_t before = 0, at = 0;
        press(&s, '[');
        assert_int_equal(sscanf(strstr(screen(&s), "step 5"), "step %" SCNd64, &before), 1);
        cursor_is_at(&s, before);
        press(&s, KEY_ARROW_LEFT);
        assert_int_equal(sscanf(strstr(screen(&s), "step 5"), "step %" SCNd64, &at), 1);
        assert_int_equal(before - at, MAX((before - at) % 60, 1));    // by a sixtieth of what is shown, not by a view
    }
    press(&s, KEY_TO_END);
    int64_t last = s.m->n_step - 1;
    pass(&s, 30);    // the run goes on, and what is looked at stays
    assert_true(s.m->n_step > last + 20);
    cursor_is_at(&s, last);
    type(&s, ":at end\r");
    pass(&s, 30);
    assert_true(shows(&s, "now "));
    type(&s, ":at 999999\r");
    assert_non_null(strstr(s.app.flash, "step 999999 has not been made yet"));
    stage_release(&s);
}

static void what_bounds_the_run_is_said_on_every_pane_at_every_size(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 60, 15);
    pass(&s, 2);
    for (const char *pane = "123456789DV"; *pane; pane++) {
        press(&s, (uint32_t)*pane);
        assert_true(shows(&s, "generation bounds the run: "));
    }
    app_resize(&s.app, 110, 10);    // no row of its own: among the tabs
    assert_true(shows(&s, "generation bounds"));
    app_resize(&s.app, 80, 24);
    press(&s, 'd');
    assert_true(shows(&s, "What bounds the run"));
    press(&s, 'k');
    assert_true(shows(&s, "inference_microbatch_size"));
    assert_int_equal(s.app.shown, PANE_KNOBS);
    assert_int_equal(s.m->n_command, 0);
    snprintf(s.m->alert, sizeof(s.m->alert), "0 of 512 answers have the right format: all of the last 64 groups were filtered");
    app_resize(&s.app, 60, 15);
    assert_true(shows(&s, "! 0 of 512 answers have the right format: all of"));
    stage_release(&s);
}

static void a_knob_is_edited_inside_its_bounds_and_reverted(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 80, 24);
    type(&s, "4/temperature\r");
    assert_true(shows(&s, "temperature"));
    assert_false(shows(&s, "kl_coeff"));
    press(&s, KEY_RETURN);
    press(&s, KEY_CTRL('u'));
    type(&s, "-3\r");    // out of bounds: told, and the prompt stays
    assert_non_null(strstr(s.app.flash, "above 0"));
    assert_int_equal(s.app.prompt.kind, PROMPT_KNOB);
    press(&s, KEY_CTRL('u'));
    type(&s, "0.9\r");
    assert_true(shows(&s, "temperature: 1.0 \u2192 0.9"));
    press(&s, 'y');
    pass(&s, 1);
    assert_non_null(strstr(s.app.flash, "takes effect at step"));
    assert_true(shows(&s, "0.9"));
    press(&s, 'u');
    assert_true(shows(&s, "temperature 0.9 -> 1.0"));
    press(&s, 'n');
    press(&s, KEY_ESCAPE);
    stage_release(&s);
}

static void commands_are_checked_before_they_are_sent(UNUSED void **state)
{
    static const struct {
        const char *line, *want;
    } cases[] = {
        { "set lr=2", "'learning_rate' cannot be '2'; it must be 0 to 1" },
        { "set model=x", "'model' is fixed once a run has begun" },
        { "set temperature", "'temperature' is not of the form NAME=VALUE" },
        { "set lr_schedule=square", "it must be one of constant, linear, cosine" },
        { "set", "'set' needs NAME=VALUE" },
        { "pause deeply", "'pause' does not know the depth 'deeply'" },
        { "resume now", "'resume' takes no 'now'" },
        { "restart", "'restart' needs the name of a process" },
        { "explode", "unknown command 'explode'" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct command c;
        struct error err = { 0 };
        assert_false(command_parse(&c, cases[i].line, &err));
        assert_int_equal(err.code, strncmp(cases[i].line, "set model", 9) == 0 ? ERR_REFUSED : ERR_USAGE);
        assert_non_null(strstr(err.text, cases[i].want));
    }
    struct command c;
    struct error err = { 0 };
    assert_true(command_parse(&c, " set lr=1e-4  temperature=0.7 ", &err));
    assert_int_equal(c.n_arg, 2);
    assert_string_equal(c.arg[0].key, "learning_rate");
    assert_true(command_parse(&c, "restart worker cpu:0", &err));
    assert_string_equal(c.arg[0].value, "worker cpu:0");
    assert_true(command_parse(&c, "pause", &err));
    assert_string_equal(c.arg[0].value, "step");
}

static void colon_q_quits_and_a_mistyped_command_gets_the_nearest(UNUSED void **state)
{
    static const struct {
        const char *line, *want;
    } cases[] = {
        { ":foo\r", "unknown command 'foo'; :help lists the commands" },
        { ":qiut\r", "unknown command 'qiut'; did you mean 'quit'?" },
        { ":stpo\r", "unknown command 'stpo'; did you mean 'stop'?" },
        { ":theme\r", "usage: theme NAME|FILE" },
        { ":save-screen\r", "usage: save-screen FILE" },
    };
    struct stage s;
    stage_make(&s, &usual, 100, 24);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        type(&s, cases[i].line);
        assert_string_equal(s.app.flash, cases[i].want);
        assert_true(shows(&s, cases[i].want));
        assert_int_equal(s.app.wish, 0);
    }
    assert_int_equal(s.m->n_command, 0);
    type(&s, ":q\r");
    assert_int_equal(s.app.wish, WISH_QUIT);
    s.app.wish = 0;
    type(&s, ":quit\r");
    assert_int_equal(s.app.wish, WISH_QUIT);
    stage_release(&s);
}

static const char *footer(struct stage *s)
{
    static char row[2000];
    (void)screen(s);
    cells_row(&s->cells, s->cells.h - 1, row, sizeof(row));
    return row;
}

static void an_onlooker_is_offered_nothing_else_and_refused_at_once(UNUSED void **state)
{
    static const char *const acts[] = { "pause", "resume", "checkpoint", "stop", "change", "restart" };
    static const char *const typed[] = { ":stop\r", ":set temperature=0.9\r", ":pause\r", ":quarantine 3\r", ":restart scorer\r" };
    struct stage s;
    stage_make(&s, &usual, 160, 24);
    for (char pane = '1'; pane <= '8'; pane++) {
        press(&s, (uint32_t)pane);
        s.feed->read_only = false;
        assert_non_null(strstr(footer(&s), "pause"));
        assert_false(shows(&s, " READ-ONLY "));
        s.feed->read_only = true;
        assert_true(shows(&s, " READ-ONLY "));
        for (size_t i = 0; i < ARRAY_SIZE(acts); i++)
            assert_null(strstr(footer(&s), acts[i]));
        for (const char *const *word = (const char *[]){ "command", "quit", "help", NULL }; *word; word++)
            assert_non_null(strstr(footer(&s), *word));
        for (int i = 0; i < n_key_rows; i++) {
            if (!request_acts(key_table[i].request) || key_request(key_table[i].key[0], s.app.shown) != key_table[i].request)
                continue;
            s.app.flash[0] = 0;
            press(&s, key_table[i].key[0]);
            assert_non_null(strstr(s.app.flash, "read-only"));
            assert_string_equal(s.app.dialog.title, "");
            assert_int_equal(s.app.prompt.kind, PROMPT_NONE);
        }
    }
    for (size_t i = 0; i < ARRAY_SIZE(typed); i++) {
        s.app.flash[0] = 0;
        type(&s, typed[i]);
        assert_non_null(strstr(s.app.flash, "read-only"));
        assert_string_equal(s.app.dialog.title, "");
    }
    assert_int_equal(s.m->n_command, 0);
    type(&s, ":pa\t");
    assert_string_equal(s.app.prompt.text, "pane ");    // the run's 'pause' is not offered
    type(&s, "log\r");
    assert_int_equal(s.app.shown, PANE_LOG);
    stage_release(&s);
}

static void who_has_the_control_is_in_the_top_line(UNUSED void **state)
{
    static const int sizes[][2] = { { 60, 15 }, { 80, 24 }, { 200, 60 } };
    struct stage s;
    stage_make(&s, &usual, 80, 24);
    pass(&s, 1);
    assert_false(shows(&s, "LOCK"));
    type(&s, ":lock\r");
    assert_true(shows(&s, " LOCK you "));
    snprintf(s.m->lock.holder, sizeof s.m->lock.holder, "maria@head, console on pts/3");
    s.m->lock.since_s = 1700000000 - 125;    // the screen's clock says 1700000000
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        app_resize(&s.app, sizes[i][0], sizes[i][1]);
        const char *found = strstr(screen(&s), " LOCK maria");
        assert_true(found && found < strchr(screen(&s), '\n'));
        assert_true(shows(&s, " 2:05 "));
    }
    assert_true(shows(&s, "maria@head, console on pts/3"));    // in full where there is room
    type(&s, ":unlock\r");
    assert_false(shows(&s, "LOCK"));
    stage_release(&s);
}

static void completion_finds_commands_and_knobs(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 80, 24);
    type(&s, ":pa\t");
    assert_true(shows(&s, "pause") && shows(&s, "go to a pane"));    // both are listed, with their help
    type(&s, "u\t");
    assert_string_equal(s.app.prompt.text, "pause ");
    press(&s, KEY_CTRL('u'));
    type(&s, "set temp\t");
    assert_string_equal(s.app.prompt.text, "set temperature=");
    press(&s, KEY_CTRL('w'));
    assert_string_equal(s.app.prompt.text, "set ");
    press(&s, KEY_CTRL('c'));
    assert_int_equal(s.app.prompt.kind, PROMPT_NONE);
    stage_release(&s);
}

static void a_stuck_worker_is_named_everywhere_within_five_seconds(UNUSED void **state)
{
    struct stage s;
    struct simulate_options o = usual;
    o.stall_after_s = 2;
    stage_make(&s, &o, 80, 24);
    pass(&s, 2);
    pass(&s, 5);
    assert_true(shows(&s, "s in training"));
    assert_true(shows(&s, "worker cpu:1 stuck"));
    app_resize(&s.app, 40, 10);    // in place of the panes that are not shown
    assert_true(shows(&s, "worker cpu:1 stuck"));
    assert_true(shows(&s, "1 Overview") && !shows(&s, "1 Overview 2"));
    app_resize(&s.app, 39, 4);
    assert_true(shows(&s, "worker cpu:1 stuck"));
    stage_release(&s);
}

static void a_click_on_a_tab_goes_there_at_any_width(UNUSED void **state)
{
    static const int widths[] = { 50, 69, 70, 80, 89, 90, 140 };
    for (size_t i = 0; i < ARRAY_SIZE(widths); i++) {
        struct stage s;
        stage_make(&s, &usual, widths[i], 24);
        for (int pane = 0; pane < N_PANE; pane++) {
            int x = -1;    // where the pane's number stands in the row of tabs
            screen(&s);
            for (int k = 0; k < s.cells.w && x < 0; k++)
                if (s.cells.cell[s.cells.w + k].ch == (uint32_t)pane_key((enum pane_id)pane))
                    x = k;
            app_key(&s.app, &(struct key_event){ .key = KEY_CLICK, .x = x, .y = 1 }, s.now);
            assert_int_equal(s.app.shown, pane);
        }
        stage_release(&s);
    }
}

static void a_click_on_a_row_selects_that_row_in_every_list(UNUSED void **state)
{
    static const int heights[] = { 10, 14, 24, 40 };
    struct stage s;
    stage_make(&s, &usual, 80, 24);
    pass(&s, 3);
    for (size_t i = 0; i < ARRAY_SIZE(heights); i++)
        for (int pane = 0; pane < N_PANE; pane++) {
            app_resize(&s.app, 80, heights[i]);
            app_show(&s.app, (enum pane_id)pane);
            struct pane *p = app_pane(&s.app);
            if (!p->type->rows)
                continue;
            struct rect body = layout_make(80, heights[i]).body;
            int64_t n_hit = 0, n = MIN(p->type->rows(p, &s.app), (int64_t)p->type->page(&s.app, body));
            for (int y = body.y; y < body.y + body.h; y++) {
                p->sel = p->top;
                app_key(&s.app, &(struct key_event){ .key = KEY_CLICK, .x = 2, .y = y }, s.now);
                screen(&s);
                n_hit += s.cells.cursor_y == y;
                assert_true(s.cells.cursor_y == y || p->sel == p->top);
            }
            assert_int_equal(n_hit, n);
        }
    stage_release(&s);
}

static void a_click_on_a_group_selects_it_where_it_stands(UNUSED void **state)
{
    static const int sizes[][2] = { { 50, 24 }, { 80, 10 }, { 80, 24 }, { 200, 60 } };
    struct stage s;
    stage_make(&s, &usual, 80, 24);
    pass(&s, 30);
    press(&s, '3');
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        app_resize(&s.app, sizes[i][0], sizes[i][1]);
        press(&s, KEY_TO_END);    // where there are more than fit, the first ones are above
        struct rect body = app_body(&s.app);
        int n_hit = 0, n = 0;
        while (view_rollout_at(s.m, n))
            n++;
        for (int y = body.y; y < body.y + body.h; y++) {
            screen(&s);
            int before = s.cells.cursor_y;
            app_key(&s.app, &(struct key_event){ .key = KEY_CLICK, .x = 2, .y = y }, s.now);
            screen(&s);
            n_hit += s.cells.cursor_y == y;
            assert_true(s.cells.cursor_y == y || s.cells.cursor_y == before);
        }
        assert_int_equal(n_hit, MIN(body.h - 3, n));
        int at = s.cells.cursor_y;
        press(&s, KEY_ARROW_UP);    // the list stays where it was
        screen(&s);
        assert_int_equal(s.cells.cursor_y, at - 1);
        if (sizes[i][0] >= 60)
            app_key(&s.app, &(struct key_event){ .key = KEY_CLICK, .x = sizes[i][0] - 3, .y = body.y + 3 }, s.now);    // on the text
        screen(&s);
        assert_int_equal(s.cells.cursor_y, at - 1);
    }
    stage_release(&s);
}

static void silence_of_an_agent_is_noticed_by_the_console_itself(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 80, 24);
    pass(&s, 1);
    enum proc_verdict verdict;
    assert_null(view_worst(s.m, s.now, &verdict));
    assert_non_null(view_worst(s.m, s.now + 5 * S, &verdict));    // no news for 5 s
    assert_int_equal(verdict, PROC_SILENT);
    stage_release(&s);
}

/* An alarm of the book that holds since step 140. */
static void alarm_set(struct run_view *m, const char *name, enum alarm_state state, const char *text)
{
    for (int i = 0; i < m->n_alarm; i++)
        if (strcmp(m->alarm[i].name, name) == 0) {
            m->alarm[i].state = state;
            m->alarm[i].step = 140;
            snprintf(m->alarm[i].text, sizeof m->alarm[i].text, "%s", text);
        }
}

static void alarms_say_what_is_wrong_and_what_to_try(UNUSED void **state)
{
    struct stage s;
    struct alarm a[8];
    stage_make(&s, &usual, 80, 24);
    pass(&s, 1);
    assert_int_equal(alarms_check(s.m, s.now, a, 8), 0);
    alarm_set(s.m, "truncated", ALARM_FIRING, "12 % of the responses are cut, 3 steps after max_new_tokens 512 -> 64");
    assert_int_equal(alarms_check(s.m, s.now, a, 8), 1);
    assert_string_equal(a[0].remedy, "raise max_new_tokens");
    assert_true(shows(&s, "12 % of the responses are cut"));
    alarm_set(s.m, "reward_zero", ALARM_FIRING, "reward exactly 0 for 3 steps");
    alarm_set(s.m, "entropy_collapse", ALARM_ACKNOWLEDGED, "entropy collapsed to 0.001");    // seen: not shouted any more
    alarm_set(s.m, "kl_jump", ALARM_MUTED, "");
    assert_int_equal(alarms_check(s.m, s.now, a, 8), 2);
    assert_true(a[0].crit);    // the worst first
    assert_string_equal(a[0].text, "reward exactly 0 for 3 steps");
    assert_int_equal(alarms_check(s.m, s.now, a, 1), 2);    // all are counted, and the worst of them has the room
    assert_true(a[0].crit);
    assert_true(shows(&s, "reward exactly 0 for 3 steps (+1 more: 8)"));
    snprintf(s.m->alert, sizeof s.m->alert, "the last 512 samples were all left out");
    snprintf(s.m->alert_remedy, sizeof s.m->alert_remedy, "look at logs/scorer.log");
    assert_int_equal(alarms_check(s.m, s.now, a, 8), 3);    // what the controller says comes before what the steps show
    assert_string_equal(a[0].text, s.m->alert);
    assert_string_equal(a[0].remedy, s.m->alert_remedy);
    s.m->state = RUN_FINISHED;
    assert_int_equal(alarms_check(s.m, s.now, a, 8), 0);
    stage_release(&s);
}

static void more_alarms_than_there_is_room_for_are_counted(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 80, 24);
    pass(&s, 1);
    for (int i = 0; i < s.m->n_alarm; i++)
        alarm_set(s.m, s.m->alarm[i].name, ALARM_FIRING, "it holds");
    char more[48];
    bool found = false;
    for (int n = 1; n < s.m->n_alarm && !found; n++) {
        snprintf(more, sizeof more, "+%d more: 8 lists them", n);
        found = shows(&s, more);
    }
    assert_true(found);
    stage_release(&s);
}

static void an_alarm_is_acknowledged_and_muted_by_keys(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 80, 24);
    pass(&s, 1);
    alarm_set(s.m, "sampler_trainer_diff", ALARM_FIRING, "sampler and trainer disagree by 0.5 nat");
    press(&s, 'A');
    assert_string_equal(s.m->command[0].text, "ack all");
    press(&s, '8');
    static const char *const wanted[] = { "firing",           "sampler_trainer_diff", "140",   "above 0",
                                          "above 3 x median", "below 0.0050, 3 st",   "rises", "quiet",
                                          "since step 140:" };
    for (size_t i = 0; i < ARRAY_SIZE(wanted); i++)
        app_must_show(&s.app, &s.cells, s.now, wanted[i]);
    press(&s, 'A');
    assert_string_equal(s.m->command[1].text, "ack sampler_trainer_diff");
    press(&s, 'j');
    press(&s, 'M');
    assert_string_equal(s.m->command[2].text, "mute reward_zero");
    type(&s, ":unmute tr\t\r");
    assert_string_equal(s.m->command[3].text, "unmute truncated ");
    stage_release(&s);
}

static void alarm_comes(struct stage *s, int64_t id, const char *facts)
{
    struct event_view e = { .id = id, .step = 150, .kind = "alarm", .text = "reward exactly 0 for 3 steps" };
    view_event_facts(s->m, &e, facts, strlen(facts));
    app_news(&s->app, s->now);
}

static void an_alarm_that_wants_it_rings_once(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 80, 24);
    pass(&s, 1);
    alarm_comes(&s, 1000, "{\"alarm\":\"bell_curve\",\"state\":\"firing\",\"remedy\":\"ring a bell\",\"actions\":\"pause\"}");
    assert_int_equal(s.app.wish, 0);    // it only speaks of one
    alarm_comes(&s, 1001, "{\"alarm\":\"reward_zero\",\"state\":\"firing\",\"actions\":\"bell, pause\"}");
    assert_int_equal(s.app.wish & WISH_BELL, WISH_BELL);
    s.app.wish = 0;
    app_news(&s.app, s.now);
    assert_int_equal(s.app.wish, 0);
    alarm_comes(&s, 1002, "{\"alarm\":\"reward_zero\",\"state\":\"quiet\",\"actions\":\"bell, pause\"}");
    assert_int_equal(s.app.wish, 0);
    stage_release(&s);
}

static void esc_undoes_one_layer_at_a_time(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 100, 30);
    type(&s, "3/box\r");
    press(&s, KEY_RETURN);
    press(&s, '?');
    press(&s, KEY_ESCAPE);
    assert_true(!s.app.help && !shows(&s, "newest groups") && shows(&s, "filter: box"));
    press(&s, KEY_ESCAPE);
    assert_true(shows(&s, "newest groups") && shows(&s, "filter: box"));
    press(&s, KEY_ESCAPE);
    assert_true(shows(&s, "newest groups") && !shows(&s, "filter: box"));
    assert_int_equal(s.app.wish & WISH_QUIT, 0);
    press(&s, KEY_CTRL('c'));    // never quits at once
    assert_int_equal(s.app.wish & WISH_QUIT, 0);
    assert_true(shows(&s, "Training continues."));
    press(&s, 'y');
    assert_true(s.app.wish & WISH_QUIT);
    stage_release(&s);
}

static void what_one_pane_has_opened_filtered_or_chosen_changes_no_other(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 100, 30);
    type(&s, "2/or\rj");
    int64_t sel = app_pane(&s.app)->sel;
    type(&s, "1\r");
    assert_true(shows(&s, "mean"));    // a chart in full
    type(&s, ":pane rollouts\r");
    assert_true(shows(&s, "newest groups") && !shows(&s, "filter:"));
    type(&s, "1");
    assert_true(shows(&s, "processes"));    // closed when another pane was shown
    type(&s, "2");
    assert_true(shows(&s, "filter: or"));
    assert_int_equal(app_pane(&s.app)->sel, sel);
    stage_release(&s);
}

static void a_chosen_rollout_stays_while_new_ones_come(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 120, 30);
    type(&s, "3jj");
    char title[64];
    snprintf(title, sizeof(title), "item %" PRId64 ",", view_rollout_at(s.m, 2)->item);
    assert_true(shows(&s, title));
    pass(&s, 5);
    assert_true(shows(&s, title));
    press(&s, 'f');    // follow again
    snprintf(title, sizeof(title), "item %" PRId64 ",", view_rollout_at(s.m, 0)->item);
    assert_true(shows(&s, title));
    stage_release(&s);
}

static void hostile_text_reaches_the_screen_only_as_signs(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 100, 30);
    static const char evil[] = "\x1b]0;owned\x07\x1b[2J\xc2\x9b"
                               "31m\xe2\x80\xae"
                               "abc\xff\x00tail";
    struct rollout_view *g = view_rollout(s.m);
    assert_true(rollout_view_begin(g, 9999999, 1, evil, sizeof(evil) - 1));
    assert_non_null(g);
    rollout_sample(g, evil, sizeof(evil) - 1, NAN, 3, true, evil);
    view_log(s.m, "x\x1b[1m", evil, sizeof(evil) - 1);
    for (int pane = 0; pane < N_PANE; pane++) {
        app_show(&s.app, (enum pane_id)pane);
        screen(&s);
        for (int i = 0; i < s.cells.w * s.cells.h; i++) {
            uint32_t ch = s.cells.cell[i].ch;
            assert_true(ch == 0 || (ch >= 0x20 && ch != 0x7f && !(ch >= 0x80 && ch < 0xa0) && ch != 0x202e));
        }
    }
    stage_release(&s);
}

static void rings_keep_the_newest_and_forget_the_oldest(UNUSED void **state)
{
    struct error err;
    struct run_view *m = view_new(&err);
    assert_non_null(m);
    for (int i = 0; i < 3 * MODEL_LOG; i++) {
        char line[64];
        int n = snprintf(line, sizeof(line), "2026-11-21T22:33:50.123 WARN  agent: line %d", i);
        view_log(m, "agent", line, (size_t)n);
        view_event(m, &(struct event_view){ .id = i + 1 });
        assert_true(rollout_view_begin(view_rollout(m), i, i, "p", 1));
    }
    assert_string_equal(view_log_at(m, 0)->text, "line 12287");
    assert_string_equal(view_log_at(m, 0)->clock, "22:33:50");
    assert_int_equal(view_log_at(m, 0)->level, LINE_WARN);
    assert_null(view_log_at(m, MODEL_LOG));
    assert_null(view_event_at(m, MODEL_EVENTS));
    assert_int_equal(view_event_at(m, 0)->id, 3 * MODEL_LOG);
    assert_int_equal(view_rollout_at(m, MODEL_ROLLOUTS - 1)->item, 3 * MODEL_LOG - MODEL_ROLLOUTS);
    for (int i = 0; i < 2 * MODEL_PROCS; i++) {
        char name[32];
        snprintf(name, sizeof(name), "worker cpu:%d", i);
        view_proc(m, name);
    }
    assert_int_equal(m->n_proc, MODEL_PROCS);
    assert_string_equal(m->proc[2].name, "worker cpu:2");    // in the order people count
    fleet_model_free(m);
}

/* n steps of `took` seconds, with a reward of step * slope. */
static struct run_view *run_make(int64_t n, double took, double slope)
{
    struct error err;
    struct run_view *m = view_new(&err);
    assert_non_null(m);
    snprintf(m->name, sizeof(m->name), "other");
    for (int64_t step = 1; step <= n; step++) {
        view_step_begin(m, step);
        view_metric(m, step, "metrics/reward", (double)step * slope);
        view_metric(m, step, "time/step_s", took);
    }
    return m;
}

static void another_run_is_in_the_charts_by_step_and_by_time(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 120, 36);
    struct run_view *here = run_make(100, 1, 0.001), *there = run_make(60, 2, 0.01);
    struct compare c = { .model = there };
    struct chart_line line;
    compare_update(&c, here);
    assert_true(compare_line(&c, "metrics/reward", &line));
    assert_null(line.step_of);
    assert_float_equal(compare_value(&c, "metrics/reward", 40), 0.4, 1e-6);
    c.by_time = true;    // its steps take twice as long: when this run had made 40 steps, it had made 20
    assert_true(compare_line(&c, "metrics/reward", &line));
    assert_int_equal(line.step_of(line.arg, 40), 20);
    assert_float_equal(compare_value(&c, "metrics/reward", 40), 0.2, 1e-6);
    assert_int_equal(line.step_of(line.arg, 1), 0);    // nothing was done yet
    assert_int_equal(compare_steps(&c, 100), 100);
    c.by_time = false;
    assert_int_equal(compare_steps(&c, 30), 61);    // the longer of the two
    compare_release(&c);

    press(&s, 'w');
    assert_true(shows(&s, "rollcall console RUN --with OTHER_RUN shows two"));
    s.app.compare.model = there;
    pass(&s, 1);
    assert_true(shows(&s, "with other"));
    press(&s, '9');
    press(&s, 'g');
    assert_true(shows(&s, "w other  "));
    assert_true(shows(&s, " at the same step"));
    press(&s, 'w');
    assert_true(shows(&s, " at the same time"));
    stage_release(&s);
    fleet_model_free(here);
    fleet_model_free(there);
}

static void the_prompt_lists_what_may_be_typed_with_its_help(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 100, 30);
    type(&s, ":");
    assert_true(shows(&s, ": Tab completes"));    // more than fit
    type(&s, "pau");
    assert_true(shows(&s, "pause"));
    assert_false(shows(&s, "quarantine"));
    type(&s, "se ");
    assert_true(shows(&s, "rollouts") && shows(&s, "drain"));
    press(&s, KEY_CTRL('u'));
    type(&s, "set learning_r");
    assert_true(shows(&s, "learning_rate"));
    press(&s, KEY_TABULATOR);
    type(&s, "1e-4");
    assert_false(shows(&s, "Tab completes"));    // a value is typed
    press(&s, KEY_ESCAPE);
    type(&s, ":rate");    // where nothing begins with it, what contains it
    press(&s, KEY_ESCAPE);
    assert_false(shows(&s, "Tab completes"));
    stage_release(&s);
}

static void enter_shows_a_cut_line_in_full(UNUSED void **state)
{
    struct stage s;
    char line[600] = "2026-11-21T22:33:50.123 WARN  agent: begin ";
    stage_make(&s, &usual, 60, 20);
    while (strlen(line) < 400)
        strcat(line, "words ");
    strcat(line, "the-end");
    view_log(s.m, "agent", line, strlen(line));
    press(&s, '5');
    assert_false(shows(&s, "the-end"));
    press(&s, KEY_RETURN);
    assert_true(shows(&s, "the-end") && shows(&s, "a line of the log"));
    press(&s, KEY_ESCAPE);
    assert_false(shows(&s, "the-end"));
    for (const char *pane = "678"; *pane; pane++) {
        press(&s, (uint32_t)*pane);
        press(&s, KEY_RETURN);
        assert_true(shows(&s, "(Esc closes)"));
        press(&s, KEY_RETURN);
        assert_false(shows(&s, "(Esc closes)"));
    }
    stage_release(&s);
}

static void a_setting_and_a_message_that_are_cut_are_shown_in_full(UNUSED void **state)
{
    struct stage s;
    char message[300] = "begin";
    stage_make(&s, &usual, 60, 20);
    while (strlen(message) < 200)
        strcat(message, " words");
    strcat(message, " the-end");
    app_flash(&s.app, ROLE_WARN, s.now, "%s", message);
    assert_true(shows(&s, "begin words") && !shows(&s, "the-end") && shows(&s, "i: in full"));
    pass(&s, 20);    // it can be read after it has left its line, too
    press(&s, 'i');
    assert_true(shows(&s, "the newest message") && shows(&s, "the-end"));
    press(&s, KEY_ESCAPE);
    const struct event_view *before = view_event_at(s.m, 0);
    view_event(s.m, &(struct event_view){ .id = before ? before->id + 1 : 1, .who = "controller", .text = "back from step 9 to 8" });
    press(&s, 'i');    // the console's own message is not the newest any more
    assert_true(shows(&s, "the newest message") && shows(&s, "back from step 9 to 8") && shows(&s, "before it, this console said: begin"));
    press(&s, KEY_ESCAPE);
    press(&s, '4');
    type(&s, "/max_norm");
    press(&s, KEY_RETURN);
    press(&s, 'i');
    app_resize(&s.app, 60, 30);
    const struct knob *k = NULL;
    struct error err;
    assert_non_null(k = knob_find("max_norm", &err));
    assert_true(shows(&s, "a setting (Esc closes)") && shows(&s, "max_norm = ") && shows(&s, "a change takes effect"));
    char words[400];
    snprintf(words, sizeof(words), "%s", k->help);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " "))    // wrapped, but all there
        assert_true(shows(&s, word));
    press(&s, KEY_RETURN);
    assert_false(shows(&s, "a setting (Esc closes)"));
    press(&s, 'a');
    press(&s, '/');
    press(&s, KEY_CTRL('u'));
    type(&s, "rollout_save_dir");
    press(&s, KEY_RETURN);
    press(&s, KEY_RETURN);    // Enter: there is nothing to change
    assert_true(shows(&s, "rollout_save_dir = ") && shows(&s, "It is fixed since the run began"));
    stage_release(&s);
}

static void the_help_page_shows_all_of_every_line_at_any_width(UNUSED void **state)
{
    static const int widths[] = { 40, 60, 80, 200 };
    for (size_t i = 0; i < ARRAY_SIZE(widths); i++) {
        struct stage s;
        stage_make(&s, &usual, widths[i], 600);
        press(&s, '?');
        const char *text = screen(&s);
        const char *cut = strstr(strstr(text, "everywhere"), "\u2026");    // the title above may be cut, and the message below
        assert_true(!cut || cut > strstr(text, "\u2570"));
        assert_true(help_rows(&s.app) < 598);
        for (int k = 0; k < n_key_rows; k++) {
            const char *last = strrchr(key_table[k].help, ' ');
            assert_non_null(strstr(text, last ? last + 1 : key_table[k].help));
        }
        assert_true(strstr(footer(&s), "Esc close") && !strstr(footer(&s), "pause"));    // what does nothing here is not offered
        stage_release(&s);
    }
}

/* With colours on, too: each phase of a lane begins with its letter. */
static void lanes_differ_by_more_than_colour(UNUSED void **state)
{
    static const struct simulate_options slow = { .steps = 400, .done = 150, .step_s = 30, .workers = 2, .seed = 1 };
    struct stage s;
    stage_make(&s, &slow, 120, 30);
    for (int i = 0; i < 40; i++) {
        pass(&s, 1);
        for (int k = 0; k < s.m->n_proc; k++)
            view_lane(s.m, &s.m->proc[k], s.now);
    }
    press(&s, '2');
    s.app.glyphs = GLYPHS_BLOCK;
    const char *row = row_with(&s, "worker cpu:0");
    assert_non_null(row);
    assert_non_null(strstr(row, "g\u2588"));
    assert_non_null(strstr(row, "t"));
    const char *legend = screen(&s);
    assert_non_null(strstr(legend, "g generating"));
    assert_non_null(strstr(legend, "t training"));
    stage_release(&s);
}

static char *file_text(const char *path, char out[65536])
{
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    out[fread(out, 1, 65535, f)] = 0;
    fclose(f);
    return out;
}

static void what_is_shown_can_be_written_to_files(UNUSED void **state)
{
    static char text[65536];
    struct stage s;
    struct error err;
    struct theme theme;
    struct save_column column[METRIC_N + MODEL_EXTRA];
    char csv[] = "/tmp/rollcall-csv-XXXXXX", svg[64];
    int64_t from, to;
    int fd = mkstemp(csv);
    assert_true(fd >= 0 && close(fd) == 0 && unlink(csv) == 0);
    stage_make(&s, &usual, 100, 30);
    assert_true(metrics_chosen(&s.app, column, ARRAY_SIZE(column), &from, &to) > 20);    // all of them
    press(&s, '9');
    press(&s, 'g');
    press(&s, 'o');    // the first stays in the chart
    press(&s, 'j');
    int n = metrics_chosen(&s.app, column, ARRAY_SIZE(column), &from, &to);
    assert_int_equal(n, 2);
    assert_string_equal(column[1].name, "metrics/reward");
    assert_true(save_series(column, n, 149, to, csv, &err));
    char want[200];
    snprintf(want, sizeof(want), "step,%s,metrics/reward\n149,%.9g,%.9g\n150,%.9g,%.9g\n", column[0].name, series_at(column[0].series, 149),
             series_at(column[1].series, 149), series_at(column[0].series, 150), series_at(column[1].series, 150));
    assert_string_equal(file_text(csv, text), want);
    assert_false(save_series(column, n, 0, to, csv, &err));    // nothing is replaced
    assert_non_null(strstr(err.text, "exists already"));
    assert_int_equal(unlink(csv), 0);
    theme_init(&theme);
    screen(&s);
    snprintf(svg, sizeof(svg), "%s.svg", csv);
    assert_true(save_screen(&s.cells, &theme, svg, &err));
    assert_non_null(strstr(file_text(svg, text), "<svg xmlns="));
    assert_non_null(strstr(text, "RUNNING"));
    assert_int_equal(unlink(svg), 0);
    assert_true(save_screen(&s.cells, &theme, csv, &err));
    assert_non_null(strstr(file_text(csv, text), "RUNNING"));
    assert_int_equal(unlink(csv), 0);
    stage_release(&s);
}

/* A status as an agent answers it: nodes from..to-1 of n, with two GPUs and a worker each. GPU 1 of node `lost` is lost. */
static void fleet_tell(struct stage *s, int64_t from, int64_t to, int64_t n, int64_t lost)
{
    struct msg_out m = MSG_OUT_INIT;
    struct msg_in in;
    struct error err;
    char name[64];
    msg_begin(&m, MSG_OK);
    msg_str(&m, "name", "fleet");
    msg_str(&m, "dir", "/runs/fleet");
    msg_str(&m, "state", "running");
    msg_i64(&m, "step", 1);
    msg_i64(&m, "from", from);
    msg_i64(&m, "to", to);
    msg_i64(&m, "n_nodes", n);
    for (int pass = 0; pass < 2; pass++) {
        msg_list(&m, pass == 0 ? "processes" : "nodes");
        for (int64_t i = from; i < to; i++) {
            msg_map(&m, NULL);
            snprintf(name, sizeof(name), pass == 0 ? "n%04" PRId64 "/worker cuda:0" : "n%04" PRId64, i);
            msg_str(&m, pass == 0 ? "name" : "node", name);
            msg_str(&m, "phase", "training");
            msg_str(&m, "verdict", i == lost + 1 ? "stuck" : "ok");
            if (pass == 1) {
                msg_map(&m, "host");
                msg_f64(&m, "cpu_percent", 20);
                msg_end(&m);
                msg_list(&m, "devices");
                for (int64_t k = 0; k < 2; k++) {
                    msg_map(&m, NULL);
                    msg_str(&m, "name", k == 0 ? "gpu 0" : "gpu 1");
                    msg_str(&m, "state", i == lost && k == 1 ? "lost" : "ok");
                    msg_map(&m, "figures");
                    msg_f64(&m, "util_percent", (double)(i % 10 * 10));
                    msg_end(&m);
                    msg_end(&m);
                }
                msg_end(&m);
            }
            msg_end(&m);
        }
        msg_end(&m);
    }
    assert_true(msg_finish(&m, &err));
    assert_true(msg_read_answer(&in, MSG_STATUS, m.buf.data, m.buf.len, &err));
    news_status(s->m, in.root, s->now);
    msg_in_release(&in);
    msg_release(&m);
}

static void the_data_pane_says_how_difficult_prompts_are(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 160, 40);
    pass(&s, 1);
    app_show(&s.app, PANE_DATA);
    assert_null(strstr(screen(&s), "level"));    // the run has no curriculum
    s.m->level = (struct level_view){
        .level = 2, .n_level = 5, .n_group = 12, .n_group_needed = 64, .share = 0.708, .harder = 0.8, .easier = 0.25
    };
    assert_non_null(strstr(screen(&s), "level 2 of 0 to 4: 12 of 64 groups, 71 % right; harder from 80 %, easier at 25 %"));
    stage_release(&s);
}

/* One broken thing after the other in messages that were whole: the model stays within its bounds, and everything can be drawn. */
static void broken_telemetry_harms_nothing(UNUSED void **state)
{
    struct stage s;
    struct msg_out m = MSG_OUT_INIT;
    struct error err;
    uint64_t random = 11;
    int64_t taken = 0;
    stage_make(&s, &usual, 100, 30);
    msg_begin(&m, MSG_OK);
    for (int pass = 0; pass < 2; pass++) {
        static const char *const texts[] = { "name", "dir", "state", "phase", "node", "kind", "text", "who", "prompt_text", "verdict" };
        static const char *const numbers[] = { "step",  "max_steps", "from", "to",      "n_nodes", "item",        "id",      "time",
                                               "limit", "mean",      "n",    "phase_s", "line",    "incarnation", "progress" };
        static const char *const lists[] = { "processes", "nodes",       "alarms",  "groups", "samples",
                                             "events",    "checkpoints", "devices", "names" };
        static const char *const bytes[] = { "step", "time", "value" };
        for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
            msg_str(&m, texts[i], i % 2 ? "running" : "node-0001/worker cuda:0");
        for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
            msg_i64(&m, numbers[i], (int64_t)i - 2);
        for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
            msg_list(&m, lists[i]);
            for (int k = 0; k < 2; k++) {
                msg_map(&m, NULL);
                msg_str(&m, "name", k ? "gpu 0" : "worker cpu:0");
                msg_str(&m, "node", k ? "a" : "b");
                msg_str(&m, "prompt_text", "p");
                msg_i64(&m, "step", k);
                msg_f64(&m, "util_percent", 50);
                msg_map(&m, "host");
                msg_f64(&m, "cpu_percent", 1);
                msg_end(&m);
                msg_list(&m, "samples");
                msg_map(&m, NULL);
                msg_str(&m, "text", "t");
                msg_end(&m);
                msg_end(&m);
                msg_end(&m);
            }
            msg_end(&m);
        }
        static const double zeros[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
        for (size_t i = 0; i < ARRAY_SIZE(bytes); i++)
            msg_bin(&m, bytes[i], zeros, sizeof(zeros));
    }
    assert_true(msg_finish(&m, &err));
    unsigned char *broken = malloc(m.buf.len);
    assert_non_null(broken);
    for (int round = 0; round < 20000; round++) {
        struct msg_in in;
        size_t len = m.buf.len;
        memcpy(broken, m.buf.data, len);
        for (uint64_t k = mix64_next(&random) % 6; k > 0; k--)
            broken[mix64_next(&random) % len] = (unsigned char)(mix64_next(&random) >> 56);
        if (!msg_read_answer(&in, MSG_OK, broken, len, &err))
            continue;
        taken++;
        news_status(s.m, in.root, s.now);
        (void)news_steps(s.m, in.root);
        (void)news_step(s.m, in.root);
        news_events(s.m, in.root);
        news_rollout(s.m, in.root);
        news_rollouts(s.m, in.root);
        news_checkpoints(s.m, in.root);
        news_process(s.m, in.root, false, s.now);
        msg_in_release(&in);
        if (taken % 64 == 0) {
            app_news(&s.app, s.now);
            app_show(&s.app, (enum pane_id)(taken / 64 % N_PANE));
            screen(&s);
        }
    }
    assert_true(taken > 2000);    // most of what is broken is a message still
    assert_true(s.m->n_proc <= MODEL_PROCS && s.m->n_host <= MODEL_HOSTS && s.m->n_device <= MODEL_DEVICES);
    free(broken);
    msg_release(&m);
    stage_release(&s);
}

static void a_large_fleet_comes_in_pieces_and_what_is_gone_leaves_after_a_sweep(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 80, 24);
    for (int64_t from = 0; from < 1000; from += 64)
        fleet_tell(&s, from, MIN(from + 64, (int64_t)1000), 1000, 700);
    assert_int_equal(s.m->n_host, 1000);
    assert_int_equal(s.m->n_device, 2000);
    assert_int_equal(s.m->n_proc, 1000);
    assert_int_equal(s.m->n_left_out, 0);
    assert_string_equal(s.m->device[1401].state, "lost");
    fleet_tell(&s, 0, 64, 100, 3);    // a smaller fleet: the others stay until the sweep is over
    assert_int_equal(s.m->n_host, 1000);
    fleet_tell(&s, 64, 100, 100, 3);
    assert_int_equal(s.m->n_host, 100);
    assert_int_equal(s.m->n_device, 200);
    assert_int_equal(s.m->n_proc, 100);
    assert_string_equal(s.m->device[7].state, "lost");
    for (int64_t from = 0; from < 3000; from += 1000)    // more nodes than there is room for
        fleet_tell(&s, from, from + 1000, 3000, 3);
    assert_int_equal(s.m->n_host, MODEL_HOSTS);
    assert_int_equal(s.m->n_left_out, 3 * (3000 - MODEL_HOSTS));    // each with its two GPUs
    press(&s, '2');
    assert_true(shows(&s, "2853 more have no room here"));
    stage_release(&s);
}

static void the_fleet_shows_the_worst_node_first_and_opens_its_processes(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 80, 24);
    for (int64_t from = 0; from < 1000; from += 100)
        fleet_tell(&s, from, from + 100, 1000, 700);
    press(&s, '2');
    assert_true(shows(&s, "fleet: use of 2000 GPUs, worst first, 1000 nodes"));
    assert_true(shows(&s, " *n0700 0X  !n0701 11 "));    // the lost GPU, then the stuck process, then by name
    assert_true(shows(&s, " n0000 00"));
    assert_true(shows(&s, "1 lost  1 stuck"));
    assert_true(shows(&s, "n0700  gpu 1 is lost"));
    int x = 0, y = 0;    // a click selects the node that it hits
    screen(&s);
    for (int k = 0; k < s.cells.w * s.cells.h; k++)
        if (s.cells.cell[k].ch == '!' && s.cells.cell[k + 1].ch == 'n') {
            x = k % s.cells.w;
            y = k / s.cells.w;
        }
    app_key(&s.app, &(struct key_event){ .key = KEY_CLICK, .x = x + 2, .y = y }, s.now);
    assert_true(shows(&s, "n0701  1 stuck, 0 slow"));
    app_key(&s.app, &(struct key_event){ .key = KEY_CLICK, .x = x + 2, .y = y - 1 }, s.now);    // the summary is no node
    assert_true(shows(&s, "n0701  1 stuck, 0 slow"));
    press(&s, KEY_ARROW_LEFT);
    press(&s, 'G');    // the rows scroll, and a click on one in view leaves them where they are
    assert_true(shows(&s, "n0999") && !shows(&s, "n0700"));
    for (int at = y; at < y + 8; at += 7) {
        char before[8][400], row[400];
        screen(&s);
        for (int k = 0; k < 8; k++)
            cells_row(&s.cells, y + k, before[k], sizeof before[k]);
        app_key(&s.app, &(struct key_event){ .key = KEY_CLICK, .x = 4, .y = at }, s.now);
        screen(&s);
        for (int k = 0; k < 8; k++) {
            cells_row(&s.cells, y + k, row, sizeof row);
            assert_string_equal(row, before[k]);
        }
        assert_int_equal(s.cells.cursor_y, at);
    }
    press(&s, 'g');
    press(&s, 's');
    assert_true(shows(&s, "idle first"));
    press(&s, 's');
    press(&s, 's');
    press(&s, 's');
    assert_true(shows(&s, "by name"));
    press(&s, 's');
    press(&s, 'v');
    assert_true(shows(&s, "fleet: memory"));
    press(&s, KEY_ARROW_RIGHT);
    press(&s, KEY_RETURN);
    assert_true(shows(&s, "n0701/worker cuda:0"));
    assert_false(shows(&s, "n0702"));
    press(&s, 'f');
    assert_true(shows(&s, "worst first, 1000 nodes"));
    press(&s, '/');
    type(&s, "stuck");
    press(&s, KEY_RETURN);
    assert_true(shows(&s, "1 of 1000 nodes"));
    stage_release(&s);
}

static void workers_of_nodes_can_be_told_apart_on_a_small_screen(UNUSED void **state)
{
    static const char *const names[] = { "controller", "a-node-with-name/worker cuda:0", "a-node-with-name/worker cuda:1",
                                         "b-node-with-name/worker cuda:1" };
    struct stage s;
    stage_make(&s, &usual, 80, 24);
    pass(&s, 1);
    s.m->n_proc = ARRAY_SIZE(names);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        snprintf(s.m->proc[i].name, sizeof(s.m->proc[i].name), "%s", names[i]);
    press(&s, '2');
    assert_true(shows(&s, "a-node-with-n\u2026ker cuda:0 "));
    assert_true(shows(&s, "a-node-with-n\u2026ker cuda:1 "));
    assert_true(shows(&s, "b-node-with-n\u2026ker cuda:1 "));
    stage_release(&s);
}

static void devices_are_below_the_processes_and_unknown_values_are_dashes(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 120, 40);
    press(&s, '2');
    assert_false(shows(&s, "NVIDIA"));
    s.m->n_host = 2;
    s.m->host[0] = (struct host_view){ "rack7", true, 43, 0x1p34, 0x1p35, NAN, 3 };
    s.m->host[1] = (struct host_view){ "rack8", false, 7, 0x1p34, 0x1p35, 90, 2 };
    s.m->n_device = 5;
    for (int i = 0; i < 5; i++)
        s.m->device[i] = (struct device_view){ .what = "NVIDIA H200",
                                               .state = "ok",
                                               .util_percent = NAN,
                                               .mem_used_bytes = NAN,
                                               .mem_total_bytes = NAN,
                                               .temp_celsius = NAN,
                                               .power_watts = NAN,
                                               .power_limit_watts = NAN,
                                               .sm_clock_mhz = NAN,
                                               .ecc_uncorrected = NAN };
    snprintf(s.m->device[0].name, sizeof(s.m->device[0].name), "gpu 0");
    snprintf(s.m->device[1].name, sizeof(s.m->device[1].name), "gpu 1");
    snprintf(s.m->device[2].name, sizeof(s.m->device[2].name), "gpu 2");
    snprintf(s.m->device[3].name, sizeof(s.m->device[3].name), "gpu 7");
    s.m->device[0].util_percent = 87;
    s.m->device[0].power_watts = 512;
    snprintf(s.m->device[0].throttle, sizeof(s.m->device[0].throttle), "power limit");
    snprintf(s.m->device[1].state, sizeof(s.m->device[1].state), "lost");
    s.m->device[2].ecc_uncorrected = 4;
    assert_true(shows(&s, "host    43 %  16.0 GiB of 32.0 GiB  disk - % full  rack7"));
    assert_true(shows(&s, "gpu 0   87 %         - of        -    - C   512 of    - W      - MHz  NVIDIA H200  clocks: power limit"));
    assert_true(shows(&s, "gpu 1  NVIDIA H200 lost"));
    assert_true(shows(&s, "gpu 2    - %         - of        -    - C     - of    - W      - MHz  NVIDIA H200  4 memory errors"));
    assert_true(shows(&s, "host     7 %  16.0 GiB of 32.0 GiB  disk 90 % full  rack8"));
    assert_true(shows(&s, "gpu 7    - %"));
    assert_true(shows(&s, "worker cpu:1"));
    controller_stays(&s);
    app_resize(&s.app, 120, 20);    // too few lines for words: a cell for each GPU, the worst node first, then as many words as fit
    assert_true(shows(&s, "*rack7 8XE   rack8 ??"));
    assert_true(shows(&s, "disk - % full  rack7"));
    assert_false(shows(&s, "disk 90 % full  rack8"));
    app_resize(&s.app, 120, 22);    // lines that no process needs are theirs
    assert_true(shows(&s, "disk 90 % full  rack8"));
    stage_release(&s);
}

/* Eight nodes of eight GPUs: node n2 has one that is lost, n5 one with memory errors, n7 a hot one, and all others run at their limit. */
static void eight_nodes(struct stage *s)
{
    s->m->n_host = 8;
    s->m->n_device = 64;
    s->m->n_proc = 0;
    for (int h = 0; h < 8; h++) {
        char name[64];
        struct host_view *host = &s->m->host[h];
        *host = (struct host_view){
            .own = h == 0, .cpu_percent = 10 + h, .mem_used_bytes = 0x1p34, .mem_total_bytes = 0x1p35, .n_device = 8
        };
        snprintf(host->node, sizeof host->node, h == 6 ? "an%d" : "n%d", h == 6 ? 2 : h);
        for (int i = 0; i < 8; i++) {
            struct device_view *d = &s->m->device[8 * h + i];
            *d = (struct device_view){
                .what = "H100", .state = "ok", .throttle = "power limit", .util_percent = 10 * h, .ecc_uncorrected = NAN
            };
            snprintf(d->name, sizeof d->name, "gpu %d", i);
            snprintf(name, sizeof name, "%s%sworker cuda:%d", h == 0 ? "" : host->node, h == 0 ? "" : "/", i);
            struct proc *p = view_proc(s->m, name);
            snprintf(p->phase, sizeof p->phase, "training");
            p->heard_ns = s->now;
        }
    }
    snprintf(s->m->device[8 * 2 + 6].state, sizeof s->m->device[0].state, "lost");
    s->m->device[8 * 2 + 6].util_percent = NAN;
    s->m->device[8 * 5].ecc_uncorrected = 2;
    snprintf(s->m->device[8 * 7 + 1].throttle, sizeof s->m->device[0].throttle, "power limit, heat");
}

static void the_hosts_below_the_processes_are_theirs(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 80, 24);
    pass(&s, 1);
    eight_nodes(&s);
    press(&s, '2');
    for (int h = 0; h < 8; h++)    // all are in view, and their GPUs
        assert_true(shows(&s, (const char *[]){ "n0   00000000", "n1   11111111", "n2   222222X2", "n3   33333333", "n4   44444444",
                                                "n5   E5555555", "an2  66666666", "n7   7T777777" }[h]));
    press(&s, 'f');
    assert_true(shows(&s, "1 lost  1 with memory errors  1 slowed  55 work  8 idle"));
    press(&s, '/');
    type(&s, "lost\r");
    assert_true(shows(&s, "7 work  0 idle"));    // of what is shown
    press(&s, KEY_RETURN);
    assert_true(shows(&s, "n2/worker cuda:7") && !shows(&s, "an2/worker"));
    assert_true(shows(&s, "n2   222222X2") && !shows(&s, "n0   00000000") && !shows(&s, "an2  66666666"));
    app_resize(&s.app, 100, 60);
    assert_true(shows(&s, "disk 0 % full  n2") && shows(&s, "gpu 6  H100 lost") && !shows(&s, "full  n0") && !shows(&s, "full  an2"));
    press(&s, KEY_ESCAPE);    // back to the map it came from
    assert_true(shows(&s, "fleet: use of 64 GPUs"));
    press(&s, '/');
    type(&s, "^n0\r");    // this console's own node, whose processes have no node in their names
    press(&s, KEY_RETURN);
    assert_true(shows(&s, " worker cuda:0") && !shows(&s, "n1/worker") && shows(&s, "disk 0 % full  n0") && !shows(&s, "full  n1"));
    stage_release(&s);
}

static void a_gpu_that_is_lost_fails_or_is_slowed_is_an_alarm_on_every_pane(UNUSED void **state)
{
    struct stage s;
    struct alarm a[8];
    stage_make(&s, &usual, 120, 24);
    pass(&s, 1);
    eight_nodes(&s);
    assert_int_equal(alarms_check(s.m, s.now, a, 8), 3);    // a power limit is none: every busy GPU meets it
    assert_true(a[0].crit && a[1].crit && !a[2].crit);
    assert_string_equal(a[0].text, "gpu 6 of n2 is lost");
    assert_string_equal(a[1].text, "gpu 0 of n5 has 2 memory errors");
    assert_string_equal(a[2].text, "gpu 1 of n7 is slowed by power limit, heat");
    for (int pane = 0; pane < N_PANE; pane++) {
        app_show(&s.app, (enum pane_id)pane);
        assert_true(shows(&s, "gpu 6 of n2 is lost (+2 more: 8)"));
    }
    press(&s, '8');
    assert_true(shows(&s, "critical     gpu 0 of n5 has 2 memory errors"));
    assert_true(shows(&s, "warning      gpu 1 of n7 is slowed"));
    assert_true(shows(&s, "the node must be restarted"));
    press(&s, 'A');
    assert_true(shows(&s, "it goes when its cause does"));
    s.m->device[8 * 2 + 6] = s.m->device[0];
    assert_int_equal(alarms_check(s.m, s.now, a, 8), 2);
    s.m->state = RUN_FINISHED;
    assert_int_equal(alarms_check(s.m, s.now, a, 8), 0);
    stage_release(&s);
}

static void how_long_stages_of_a_pipeline_stand_still_is_below_the_processes(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 120, 40);
    press(&s, '2');
    assert_false(shows(&s, "stages"));
    view_step_begin(s.m, 151);
    view_metric(s.m, 151, "train/stages", 2);
    view_metric(s.m, 151, "time/stages_idle_s", 0.5);
    assert_true(shows(&s, "trainer in 2 stages  idle, s: at most 0.500"));
    view_metric(s.m, 151, "time/stages_idle_s/0", 0.125);
    view_metric(s.m, 151, "time/stages_idle_s/1", 0.5);
    assert_true(shows(&s, "trainer in 2 stages  idle, s: 0.125 0.500"));
    controller_stays(&s);
    stage_release(&s);
}

static void what_trainers_exchange_and_who_is_late_is_below_the_processes(UNUSED void **state)
{
    struct stage s;
    stage_make(&s, &usual, 120, 40);
    press(&s, '2');
    assert_false(shows(&s, "zero_stage"));
    const struct {
        const char *name;
        double value;
    } told[] = { { "train/ranks", 2 },
                 { "train/zero_stage", 2 },
                 { "time/ranks_idle_s", 0.5 },
                 { "time/ranks_idle_s/0", 0.5 },
                 { "time/ranks_idle_s/1", 0.125 },
                 { "time/ranks_exposed_s", 0.25 },
                 { "train/late_rank", 1 },
                 { "time/late_rank_s", 0.5 },
                 { "time/ranks_reduce_s", 0.0625 },
                 { "perf/ranks_reduce_gb", 2 },
                 { "time/ranks_gather_s", 0.03125 },
                 { "perf/ranks_gather_gb", 1 },
                 { "time/step_s", 2 } };
    view_step_begin(s.m, 151);
    for (size_t i = 0; i < ARRAY_SIZE(told); i++)
        view_metric(s.m, 151, told[i].name, told[i].value);
    view_knob(s.m, "producer_tensor_parallel_size", "4", s.now);
    struct proc *p = view_proc(s.m, "worker cpu:1");
    assert_non_null(p);
    snprintf(p->plays, sizeof(p->plays), "trainer 1, producer 1");
    assert_true(shows(&s, "2 trainers, zero_stage 2, producers on 4 devices each  reduce 1.9 GiB in 0.0625 s, gather 954 MiB in 0.0312 s"));
    assert_true(shows(&s, "exposed 12.5 % of a step  idle, s: 0.500 0.125  late: trainer 1 (worker cpu:1) by 0.500 s"));
    view_knob(s.m, "tensor_parallel_size", "2", s.now);
    assert_true(shows(&s, "2 trainers on 2 devices each, zero_stage 2, producers on 4  reduce 1.9 GiB in 0.0625 s"));
    view_knob(s.m, "tensor_parallel_size", "1", s.now);
    view_knob(s.m, "producer_tensor_parallel_size", "1", s.now);
    view_metric(s.m, 151, "perf/hosts_reduce_gb", 3);
    view_metric(s.m, 151, "perf/hosts_gather_gb", 1.5);
    assert_true(
        shows(&s, "2 trainers, zero_stage 2  reduce 1.9 GiB in 0.0625 s, gather 954 MiB in 0.0312 s; between hosts 2.8 GiB + 1.4 GiB"));
    view_knob(s.m, "producer_tensor_parallel_size", "4", s.now);
    view_metric(s.m, 151, "train/stages", 2);
    view_knob(s.m, "tensor_parallel_size", "2", s.now);
    assert_true(shows(&s, "2 trainers in 2 stages of 2 devices each, zero_stage 2, producers on 4  reduce 1.9 GiB in 0.0625 s"));
    view_knob(s.m, "tensor_parallel_size", "1", s.now);
    assert_true(shows(&s, "2 trainers in 2 stages each, zero_stage 2, producers on 4  reduce 1.9 GiB in 0.0625 s"));
    controller_stays(&s);
    app_resize(&s.app, 120, 40);
    view_step_begin(s.m, 152);    // a step in which nobody waited has no late one
    view_metric(s.m, 152, "train/ranks", 2);
    assert_false(shows(&s, "late: "));
    app_show(&s.app, PANE_DEVICES);
    assert_true(shows(&s, "2 trainers in 2 stages each, zero_stage 2"));
    stage_release(&s);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(rectangles_never_overlap_nor_leave_the_screen),
        cmocka_unit_test(every_pane_is_drawn_at_every_size),
        cmocka_unit_test(any_keys_in_any_order_at_any_size_do_no_harm),
        cmocka_unit_test(the_overview_shows_what_matters_in_80x24),
        cmocka_unit_test(the_worst_process_is_in_view_on_the_overview),
        cmocka_unit_test(a_run_that_is_over_offers_and_asks_nothing_that_would_change_it),
        cmocka_unit_test(the_help_page_lists_every_key_and_command),
        cmocka_unit_test(no_key_has_two_meanings_on_a_pane),
        cmocka_unit_test(pausing_is_asked_shouted_and_undone),
        cmocka_unit_test(costly_commands_are_confirmed_even_when_typed),
        cmocka_unit_test(a_number_that_jumps_is_asked_about),
        cmocka_unit_test(every_metric_is_listed_and_several_share_a_chart),
        cmocka_unit_test(a_chart_is_zoomed_panned_and_scrubbed_over_the_whole_history),
        cmocka_unit_test(a_step_of_a_long_live_history_is_found_at_once),
        cmocka_unit_test(what_bounds_the_run_is_said_on_every_pane_at_every_size),
        cmocka_unit_test(going_back_says_what_it_undoes_and_is_asked_about),
        cmocka_unit_test(a_pasted_text_is_never_a_key),
        cmocka_unit_test(a_change_says_who_made_it_and_what_came_of_it),
        cmocka_unit_test(a_change_is_marked_where_it_acts),
        cmocka_unit_test(the_overview_is_searched_by_metric),
        cmocka_unit_test(a_knob_is_edited_inside_its_bounds_and_reverted),
        cmocka_unit_test(commands_are_checked_before_they_are_sent),
        cmocka_unit_test(colon_q_quits_and_a_mistyped_command_gets_the_nearest),
        cmocka_unit_test(an_onlooker_is_offered_nothing_else_and_refused_at_once),
        cmocka_unit_test(who_has_the_control_is_in_the_top_line),
        cmocka_unit_test(completion_finds_commands_and_knobs),
        cmocka_unit_test(a_stuck_worker_is_named_everywhere_within_five_seconds),
        cmocka_unit_test(a_click_on_a_tab_goes_there_at_any_width),
        cmocka_unit_test(a_click_on_a_row_selects_that_row_in_every_list),
        cmocka_unit_test(a_click_on_a_group_selects_it_where_it_stands),
        cmocka_unit_test(silence_of_an_agent_is_noticed_by_the_console_itself),
        cmocka_unit_test(alarms_say_what_is_wrong_and_what_to_try),
        cmocka_unit_test(more_alarms_than_there_is_room_for_are_counted),
        cmocka_unit_test(an_alarm_is_acknowledged_and_muted_by_keys),
        cmocka_unit_test(an_alarm_that_wants_it_rings_once),
        cmocka_unit_test(esc_undoes_one_layer_at_a_time),
        cmocka_unit_test(what_one_pane_has_opened_filtered_or_chosen_changes_no_other),
        cmocka_unit_test(a_chosen_rollout_stays_while_new_ones_come),
        cmocka_unit_test(hostile_text_reaches_the_screen_only_as_signs),
        cmocka_unit_test(rings_keep_the_newest_and_forget_the_oldest),
        cmocka_unit_test(another_run_is_in_the_charts_by_step_and_by_time),
        cmocka_unit_test(the_data_pane_says_how_difficult_prompts_are),
        cmocka_unit_test(broken_telemetry_harms_nothing),
        cmocka_unit_test(the_prompt_lists_what_may_be_typed_with_its_help),
        cmocka_unit_test(enter_shows_a_cut_line_in_full),
        cmocka_unit_test(a_setting_and_a_message_that_are_cut_are_shown_in_full),
        cmocka_unit_test(the_help_page_shows_all_of_every_line_at_any_width),
        cmocka_unit_test(lanes_differ_by_more_than_colour),
        cmocka_unit_test(what_is_shown_can_be_written_to_files),
        cmocka_unit_test(a_large_fleet_comes_in_pieces_and_what_is_gone_leaves_after_a_sweep),
        cmocka_unit_test(the_fleet_shows_the_worst_node_first_and_opens_its_processes),
        cmocka_unit_test(workers_of_nodes_can_be_told_apart_on_a_small_screen),
        cmocka_unit_test(devices_are_below_the_processes_and_unknown_values_are_dashes),
        cmocka_unit_test(the_hosts_below_the_processes_are_theirs),
        cmocka_unit_test(a_gpu_that_is_lost_fails_or_is_slowed_is_an_alarm_on_every_pane),
        cmocka_unit_test(how_long_stages_of_a_pipeline_stand_still_is_below_the_processes),
        cmocka_unit_test(what_trainers_exchange_and_who_is_late_is_below_the_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
