/* Turns at weights between processes, some of which die or do not let go in time. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "tests/unit/small_model.h"
#include "workers/engine/model/model.h"
#include "workers/engine/publish/board.h"
#include "workers/engine/publish/lent_file.h"

#define LIMIT_MS 60000
static struct error err;
static char path[300];

/* Another process that does what it is told: 'h' holds, 'r' lets go, 'c' says whether it is clean, 'v' the version; it answers with a byte. */
struct other {
    pid_t pid;
    int fd;
};

static char obey(struct board *b, char order)
{
    switch (order) {
    case 'h': return board_hold(b, LIMIT_MS) == BOARD_HELD;
    case 't': return (char)('0' + board_hold(b, 0));
    case 'r': board_release(b); return 1;
    case 'c': return board_clean(b);
    case 'w': return board_wanted(b);
    case 'v': return (char)board_version(b);
    }
    return 0;
}

static struct other reader(void)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    struct other o = { .pid = fork(), .fd = pair[0] };
    if (o.pid == 0) {
        char order, answer;
        dup2(pair[1], 3);    // and nothing that it has inherited: neither other readers' ends nor the trainer's lock
        close_range(4, ~0u, 0);
        pair[1] = 3;
        struct board *b = board_join(path, &err);
        if (!b)
            _exit(1);
        while (read(pair[1], &order, 1) == 1 && (answer = obey(b, order), write(pair[1], &answer, 1) == 1))
            ;
        board_free(b);
        _exit(0);
    }
    close(pair[1]);
    return o;
}

static void order(const struct other *o, char what)
{
    assert_int_equal(write(o->fd, &what, 1), 1);
}

static char answer(const struct other *o)
{
    char got;
    assert_int_equal(read(o->fd, &got, 1), 1);
    return got;
}

static char tell(const struct other *o, char what)
{
    order(o, what);
    return answer(o);
}

static void end(struct other *o, bool by_force)
{
    int status;
    if (by_force)
        kill(o->pid, SIGKILL);
    close(o->fd);
    assert_int_equal(waitpid(o->pid, &status, 0), o->pid);
    assert_true(by_force || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

static struct board *trainer(int64_t version)
{
    struct board *b = board_new(path, version, &err);
    if (!b)
        fail_msg("%s", err.text);
    return b;
}

static void a_reader_sees_each_version_whole(UNUSED void **state)
{
    struct board *b = trainer(3);
    struct other o[2] = { reader(), reader() };
    assert_int_equal(tell(&o[0], 'h'), 1);
    assert_int_equal(tell(&o[0], 'v'), 3);
    assert_int_equal(tell(&o[0], 'w'), 0);
    assert_int_equal(tell(&o[0], 'r'), 1);
    assert_int_equal(board_change(b, LIMIT_MS), 0);    // nobody holds them
    assert_int_equal(tell(&o[0], 't'), '0' + BOARD_LATER);
    order(&o[0], 'h');
    order(&o[1], 'h');
    board_changed(b, 4);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(answer(&o[i]), 1);
        assert_int_equal(tell(&o[i], 'v'), 4);
        assert_int_equal(tell(&o[i], 'c'), 1);
        assert_int_equal(tell(&o[i], 'r'), 1);
    }
    end(&o[0], false);
    end(&o[1], false);
    board_free(b);
    assert_false(path_exists(path));
}

static void the_trainer_waits_for_a_reader_that_lives(UNUSED void **state)
{
    struct board *b = trainer(0);
    struct other o = reader();
    assert_int_equal(tell(&o, 'h'), 1);
    pid_t helper = fork();    // lets go for the reader, once the trainer has asked
    if (helper == 0) {
        while (!tell(&o, 'w'))
            usleep(1000);
        tell(&o, 'r');
        _exit(0);
    }
    assert_int_equal(board_change(b, LIMIT_MS), 0);
    assert_int_equal(waitpid(helper, NULL, 0), helper);
    board_changed(b, 1);
    end(&o, false);
    board_free(b);
}

static void a_reader_that_does_not_let_go_finds_out(UNUSED void **state)
{
    struct board *b = trainer(0);
    struct other o = reader();
    assert_int_equal(tell(&o, 'h'), 1);
    assert_int_equal(tell(&o, 'c'), 1);
    assert_int_equal(board_change(b, 1), 1);
    assert_int_equal(tell(&o, 'c'), 0);
    board_changed(b, 1);
    assert_int_equal(tell(&o, 'c'), 0);    // also when the change is over
    assert_int_equal(tell(&o, 'r'), 1);
    assert_int_equal(tell(&o, 'h'), 1);
    assert_int_equal(tell(&o, 'c'), 1);
    end(&o, false);
    board_free(b);
}

static void nobody_waits_for_the_dead(UNUSED void **state)
{
    struct board *b = trainer(0);
    struct other o = reader(), next;
    assert_int_equal(tell(&o, 'h'), 1);
    end(&o, true);
    assert_int_equal(board_change(b, LIMIT_MS), 0);
    board_changed(b, 1);
    next = reader();    // in its place
    assert_int_equal(tell(&next, 'h'), 1);
    assert_int_equal(tell(&next, 'c'), 1);
    end(&next, false);
    board_free(b);
    assert_null(board_join(path, &err));    // and there is no trainer
}

static void a_trainer_that_dies_is_gone_and_its_successor_is_another(UNUSED void **state)
{
    int pair[2];
    char byte = 0;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct board *b = board_new(path, 5, &err);
        byte = b && board_change(b, 0) == 0;    // it dies in the middle of a change
        if (write(pair[1], &byte, 1) == 1)
            pause();
        _exit(1);
    }
    assert_true(read(pair[0], &byte, 1) == 1 && byte == 1);
    struct board *mine = board_join(path, &err);
    assert_non_null(mine);
    assert_int_equal(board_hold(mine, 0), BOARD_LATER);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(board_hold(mine, LIMIT_MS), BOARD_GONE);
    struct board *again = trainer(6);
    assert_int_equal(board_hold(mine, 0), BOARD_GONE);    // the old one stays gone
    struct board *other = board_join(path, &err);
    assert_non_null(other);
    assert_int_equal(board_hold(other, 0), BOARD_HELD);
    assert_int_equal(board_version(other), 6);
    board_free(mine);
    board_free(other);
    board_free(again);
    close(pair[0]);
    close(pair[1]);
}

static void what_is_no_board_is_refused(UNUSED void **state)
{
    assert_null(board_join(path, &err));
    assert_true(file_write(path, "x", 1, &err));
    assert_null(board_join(path, &err));
    assert_int_equal(err.code, ERR_DATA);
}

/* ---- the file */
static struct model *model_make(struct device *dev, int64_t d_ff)
{
    struct model_config c = small_model(97);
    c.d_ff = d_ff;
    struct model *m = model_new_random(&c, 5, dev, DT_F32, &err);
    if (!m)
        fail_msg("%s", err.text);
    return m;
}

static void a_model_computes_with_the_memory_that_the_file_names(UNUSED void **state)
{
    struct device *dev = device_new("ref", 0, &err);
    struct model *m = model_make(dev, 64), *other = model_make(dev, 80);
    const struct mem_handle *h = model_share(m, &err);
    struct lent_file f = { .model = "/m",
                           .tokenizer = "/t",
                           .board = "/b",
                           .device = "ref",
                           .dtype = DT_F32,
                           .sum_parts = 2,
                           .max_seq_tok = 77,
                           .handle = *h },
                     got;
    uint64_t want, is;
    assert_true(lent_file_write(&f, m, path, &err));
    if (!lent_file_read(&got, path, &err))
        fail_msg("%s", err.text);
    assert_string_equal(got.model, "/m");
    assert_string_equal(got.board, "/b");
    assert_true(got.sum_parts == 2 && got.max_seq_tok == 77 && got.dtype == DT_F32);
    assert_memory_equal(&got.handle, h, sizeof *h);
    assert_false(lent_file_fits(&got, other, path, &err));
    assert_true(err.code == ERR_DATA && strstr(err.text, "tensor"));
    struct model *mine = model_new_shape(model_config(m), dev, DT_F32, &err);
    assert_true(lent_file_fits(&got, mine, path, &err) && model_attach(mine, &got.handle, &err));
    size_t n_bytes;
    ((float *)model_weights(m, &n_bytes))[3] += 1;    // one copy: it shows there at once
    assert_true(model_weights_hash(m, &want, &err) && model_weights_hash(mine, &is, &err));
    assert_true(want == is);
    model_detach(mine);
    assert_true(model_attach(mine, &got.handle, &err));
    static const json_int_t parts[] = { -1, SUM_PARTS_MAX + 1, (json_int_t)1 << 32 | 2 };    // the last is 2 in 32 bits
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
        struct lent_file bad;
        json_object_set_new(json_object_get(got.root, "rollcall"), "sum_parts", json_integer(parts[i]));
        assert_int_equal(json_dump_file(got.root, path, 0), 0);
        assert_false(lent_file_read(&bad, path, &err));
        assert_int_equal(err.code, ERR_DATA);
    }
    model_free(mine);
    model_free(other);
    model_free(m);
    lent_file_release(&got);
    device_free(dev);
}

static void a_file_that_is_damaged_is_named(UNUSED void **state)
{
    static const char *const cases[] = {
        "",
        "{",
        "[]",
        "{}",
        "{\"rollcall\":{\"form\":2}}",
        "{\"rollcall\":{\"form\":1}}",
        "{\"model\":\"a\",\"rollcall\":{\"form\":1,\"device\":\"d\",\"tokenizer\":\"t\",\"board\":\"b\",\"handle_b64\":\"AA\"}}"
    };
    struct lent_file f;
    assert_false(lent_file_read(&f, path, &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        assert_true(file_write(path, cases[i], strlen(cases[i]), &err));
        assert_false(lent_file_read(&f, path, &err));
        if (err.code != ERR_DATA || !strstr(err.text, path))
            fail_msg("%s: %s", cases[i], err.text);
    }
}

static int clear(UNUSED void **state)
{
    unlink(path);
    return 0;
}

int main(void)
{
    char dir[] = "/tmp/board-XXXXXX";
    signal(SIGPIPE, SIG_IGN);
    if (!mkdtemp(dir))
        return 1;
    snprintf(path, sizeof path, "%s/board", dir);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_reader_sees_each_version_whole, clear),
        cmocka_unit_test_teardown(the_trainer_waits_for_a_reader_that_lives, clear),
        cmocka_unit_test_teardown(a_reader_that_does_not_let_go_finds_out, clear),
        cmocka_unit_test_teardown(nobody_waits_for_the_dead, clear),
        cmocka_unit_test_teardown(a_trainer_that_dies_is_gone_and_its_successor_is_another, clear),
        cmocka_unit_test_teardown(what_is_no_board_is_refused, clear),
        cmocka_unit_test_teardown(a_model_computes_with_the_memory_that_the_file_names, clear),
        cmocka_unit_test_teardown(a_file_that_is_damaged_is_named, clear),
    };
    int rv = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(dir);
    return rv;
}
