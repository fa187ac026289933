/* The list from which a run is chosen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/tui/picker.h"

#define NOW 1700000000.0

static struct picker usual(void)
{
    static const struct run_row rows[] = {
        { .name = "live", .live = true, .state = RUN_PAUSED, .step = 12, .changed_ns = (int64_t)(NOW - 3) * 1000000000 },
        { .name = "good", .state = RUN_FINISHED, .step = 60, .changed_ns = (int64_t)(NOW - 7200) * 1000000000 },
        { .name = "bad",
          .state = RUN_FAILED,
          .step = 4,
          .changed_ns = (int64_t)(NOW - 90000) * 1000000000,
          .reason = "loss is not finite" },
        { .name = "killed", .state = RUN_FAILED, .step = 7, .changed_ns = 1, .reason = "all its processes have ended" },
        { .name = "odd", .step = -1, .changed_ns = 1, .reason = "'journal.db' is not a database" },
    };
    struct picker p = { .list = { .n = ARRAY_SIZE(rows), .dir = "runs" } };
    p.list.row = malloc(sizeof(rows));
    memcpy(p.list.row, rows, sizeof(rows));
    return p;
}

static void type(struct picker *p, const char *keys)
{
    for (; *keys; keys++)
        assert_int_equal(picker_key(p, (unsigned char)*keys, 10), PICK_NOTHING);
}

static bool shows(const struct picker *p, int w, int h, const char *what)
{
    struct cells c = { 0 };
    struct error err;
    bool found = false;
    char row[4000];
    assert_true(cells_resize(&c, w, h, &err));
    picker_draw(p, &c, NOW);
    for (int y = 0; y < h && !found; y++) {
        cells_row(&c, y, row, sizeof(row));
        found = strstr(row, what) != NULL;
    }
    cells_release(&c);
    return found;
}

static void each_run_shows_its_state(UNUSED void **state)
{
    struct picker p = usual();
    static const char *const wants[] = {
        "runs under runs: 5, 1 live", "PAUSED      live", "FINISHED    good",  "FAILED      bad", "2:00:00 ago",
        "FAILED      killed",         "UNREADABLE  odd",  "loss is not finite"
    };
    for (size_t i = 0; i < ARRAY_SIZE(wants); i++)
        if (!shows(&p, 110, 20, wants[i]))
            fail_msg("'%s' is not on the screen", wants[i]);
    run_list_release(&p.list);
}

static void a_filter_takes_letters_that_are_keys_elsewhere(UNUSED void **state)
{
    struct picker p = usual();
    type(&p, "/qood");    // q quits, outside of a filter
    assert_null(picker_selected(&p));
    assert_true(shows(&p, 80, 20, "none contains the filter's text"));
    assert_int_equal(picker_key(&p, KEY_ESCAPE, 10), PICK_NOTHING);
    type(&p, "/FAILED\r");
    assert_string_equal(picker_selected(&p)->name, "bad");
    assert_int_equal(picker_key(&p, KEY_RETURN, 10), PICK_OPEN);
    assert_int_equal(picker_key(&p, KEY_ESCAPE, 10), PICK_NOTHING);    // first the filter goes
    assert_int_equal(picker_key(&p, KEY_ESCAPE, 10), PICK_QUIT);
    run_list_release(&p.list);
}

static void the_selection_never_leaves_the_list(UNUSED void **state)
{
    struct picker p = usual();
    type(&p, "kkkk");
    assert_string_equal(picker_selected(&p)->name, "live");
    type(&p, "jjjjjjjjjj");
    assert_string_equal(picker_selected(&p)->name, "odd");
    type(&p, "gG");
    assert_string_equal(picker_selected(&p)->name, "odd");
    assert_int_equal(picker_key(&p, KEY_PASTE, 10), PICK_NOTHING);    // pasted text is not a key
    p.list.n = 0;
    type(&p, "j");
    assert_null(picker_selected(&p));
    assert_int_equal(picker_key(&p, KEY_RETURN, 10), PICK_NOTHING);
    assert_true(shows(&p, 80, 20, "there are no runs yet"));
    run_list_release(&p.list);
}

static void it_is_drawn_at_every_size(UNUSED void **state)
{
    struct picker p = usual();
    for (int w = 1; w < 200; w += 3)
        for (int h = 1; h < 60; h += 2)
            shows(&p, w, h, "no such text");
    run_list_release(&p.list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_run_shows_its_state),
        cmocka_unit_test(a_filter_takes_letters_that_are_keys_elsewhere),
        cmocka_unit_test(the_selection_never_leaves_the_list),
        cmocka_unit_test(it_is_drawn_at_every_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
