/* far_folder_test.c - what a console keeps of a run on another machine, whatever that machine sends */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "console/fleet/archive.h"
#include "console/fleet/far_folder.h"
#include "protocol/base/file.h"

#define S ((int64_t)1000000000)

struct place {
    char dir[128];
    struct far_folder *far;
    int64_t now;
};

static void place_make(struct place *p)
{
    struct error err;
    char path[256];
    *p = (struct place){ .dir = "/tmp/rollcall-far-XXXXXX", .now = 10 * S };
    assert_non_null(mkdtemp(p->dir));
    snprintf(path, sizeof path, "%s/logs", p->dir);
    assert_true(dir_make(path, 0700, &err));
    assert_non_null(p->far = far_folder_new(p->dir, &err));
}

static void place_release(struct place *p)
{
    struct error err;
    far_folder_free(p->far);
    assert_true(dir_remove(p->dir, &err));
}

/* The next question: its kind, and its field from. */
static const char *asked(struct place *p, int64_t *from, int64_t incarnation)
{
    static char what[16];
    struct msg_out m = MSG_OUT_INIT;
    struct msg_in in;
    struct error err;
    what[0] = 0;
    if (far_folder_ask(p->far, &m, incarnation, p->now)) {
        assert_true(msg_finish(&m, &err) && msg_read_request(&in, m.buf.data, m.buf.len, &err));
        mval_text(in.root, "what", what, sizeof what);
        *from = mval_i64(mval_get(in.root, "from"), -2);
        msg_in_release(&in);
    }
    msg_release(&m);
    return what;
}

static void answer(struct place *p, struct msg_out *m)
{
    struct msg_in in;
    struct error err;
    assert_true(msg_finish(m, &err) && msg_read_answer(&in, MSG_KEPT, m->buf.data, m->buf.len, &err));
    if (!far_folder_take(p->far, in.root, p->now, &err))
        fail_msg("%s", err.text);
    msg_in_release(&in);
    msg_release(m);
}

static int64_t file_size(const struct place *p, const char *name)
{
    char path[256];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", p->dir, name);
    return stat(path, &st) == 0 ? st.st_size : -1;
}

static void no_name_leaves_the_folder_of_logs_and_none_grows_without_bound(UNUSED void **state)
{
    static const char *const names[] = { "../evil.log", "/tmp/evil.log", ".hidden.log", "worker.txt", ".log", "worker-cpu-0.log" };
    static char text[300 << 10];
    struct place p;
    int64_t from;
    place_make(&p);
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\n';
    for (int round = 0; round < 8; round++) {
        struct msg_out m = MSG_OUT_INIT;
        assert_string_equal(asked(&p, &from, 1), "log");
        msg_begin(&m, MSG_OK);
        msg_list(&m, "files");
        for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
            msg_map(&m, NULL);
            msg_str(&m, "name", names[i]);
            msg_i64(&m, "at", 100);
            msg_i64(&m, "skipped", round == 0 ? 5 : 0);
            msg_strn(&m, "text", text, sizeof text);
            msg_end(&m);
        }
        msg_end(&m);
        answer(&p, &m);
        p.now += 2 * S;
    }
    assert_in_range(file_size(&p, "logs/worker-cpu-0.log"), sizeof text, (2u << 20));
    for (size_t i = 0; i + 1 < ARRAY_SIZE(names); i++) {
        char path[128];
        snprintf(path, sizeof path, "logs/%s", names[i]);
        assert_int_equal(file_size(&p, names[i][0] == '/' ? "x" : path), -1);
    }
    assert_false(path_exists("/tmp/evil.log"));
    place_release(&p);
}

static void items_answer(struct place *p, int64_t first, int64_t n, bool kept)
{
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_OK);
    msg_i64(&m, "last", first + n - 1);
    msg_list(&m, "items");
    for (int64_t i = first; i < first + n; i++) {
        msg_map(&m, NULL);
        msg_i64(&m, "item", i);
        msg_i64(&m, "row", i);
        msg_i64(&m, "fate", ITEM_TRAINED);
        msg_i64(&m, "step", 1);
        msg_bool(&m, "kept", kept);
        msg_end(&m);
    }
    msg_end(&m);
    answer(p, &m);
}

/* Go on until this is asked for; everything before gets an empty answer. */
static int64_t until(struct place *p, const char *what, int64_t incarnation)
{
    for (int i = 0; i < 20; i++) {
        int64_t from;
        const char *kind = asked(p, &from, incarnation);
        struct msg_out m = MSG_OUT_INIT;
        if (strcmp(kind, what) == 0)
            return from;
        if (!kind[0]) {
            p->now += 2 * S;
            continue;
        }
        msg_begin(&m, MSG_OK);
        answer(p, &m);
    }
    fail_msg("'%s' is never asked for", what);
    return -1;
}

static void items_are_asked_for_from_the_newest_ones_on_and_again_after_a_return(UNUSED void **state)
{
    struct place p;
    struct msg_out m = MSG_OUT_INIT;
    struct error err;
    place_make(&p);
    assert_int_equal(until(&p, "items", 1), -1);    // which is the newest?
    msg_begin(&m, MSG_OK);
    msg_i64(&m, "last", 50000);
    answer(&p, &m);
    assert_int_equal(until(&p, "items", 1), 48000);
    items_answer(&p, 48000, 3, true);
    assert_int_equal(until(&p, "records", 1), -2);
    msg_begin(&m, MSG_OK);    // of three that were wanted one comes, one nobody asked for, and one without bytes
    msg_list(&m, "records");
    for (int64_t i = 0; i < 3; i++) {
        msg_map(&m, NULL);
        msg_i64(&m, "item", i == 0 ? 48000 : i == 1 ? 7 : 48002);
        if (i < 2)
            msg_bin(&m, "record", "abc", 3);
        msg_end(&m);
    }
    msg_end(&m);
    answer(&p, &m);
    assert_true(file_size(&p, "rollouts/groups.zst") > 0);
    assert_int_equal(until(&p, "items", 1), 48003);    // all are settled: on from here
    items_answer(&p, 48003, 0, false);
    assert_int_equal(until(&p, "items", 2), -1);    // the run went back to a checkpoint: what was here may be another
    struct journal *j = journal_open_reader(p.dir, &err);
    assert_non_null(j);
    assert_int_equal(journal_last_item(j), 48002);
    journal_close(j);
    place_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_name_leaves_the_folder_of_logs_and_none_grows_without_bound),
        cmocka_unit_test(items_are_asked_for_from_the_newest_ones_on_and_again_after_a_return),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
