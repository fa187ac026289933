/* Messages: what is written is read back, and nothing hostile gets through the walk. */
/* tags: valgrind */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "protocol/base/file.h"
#include "protocol/wire/message.h"

static void what_is_written_is_read_back(UNUSED void **state)
{
    struct error err = { 0 };
    struct msg_out m = MSG_OUT_INIT;
    struct msg_in in;
    msg_begin(&m, MSG_COMMAND);
    msg_str(&m, "id", "17");
    msg_str(&m, "command", "set");
    msg_str(&m, "who", "ops");
    msg_map(&m, "args");
    msg_f64(&m, "nan", NAN);
    msg_i64(&m, "low", INT64_MIN);
    msg_list(&m, "list");
    msg_bool(&m, NULL, true);
    msg_bin(&m, NULL, "\0\1", 2);
    msg_end(&m);
    msg_end(&m);
    msg_str(&m, "a field of a later version", "is ignored");
    assert_true(msg_finish(&m, &err));
    assert_true(msg_read_request(&in, m.buf.data, m.buf.len, &err));
    assert_int_equal(in.type, MSG_COMMAND);
    char text[4];
    assert_string_equal(mval_text(in.root, "command", text, sizeof text), "set");
    assert_string_equal(mval_text(in.root, "absent", text, sizeof text), "");
    const struct mval *args = mval_get(in.root, "args");
    assert_true(isnan(mval_f64(mval_get(args, "nan"), 0)));
    assert_true(mval_i64(mval_get(args, "low"), 0) == INT64_MIN);
    const struct mval *list = mval_get(args, "list");
    assert_int_equal(mval_n(list), 2);
    assert_true(mval_bool(mval_at(list, 0), false));
    size_t len;
    assert_memory_equal(mval_bin(mval_at(list, 1), &len), "\0\1", 2);
    assert_int_equal(len, 2);
    assert_null(mval_at(list, 2));
    msg_in_release(&in);
    msg_release(&m);
}

static void values_made_apart_are_those_of_any_list(UNUSED void **state)
{
    struct msg_out m = MSG_OUT_INIT, some = MSG_OUT_INIT, none = MSG_OUT_INIT;
    struct msg_in in;
    struct error err;
    msg_values_begin(&none);
    for (int round = 0; round < 2; round++) {    // the second beginning empties it
        msg_values_begin(&some);
        msg_map(&some, NULL);
        msg_str(&some, "name", round ? "b" : "a");
        msg_end(&some);
        msg_i64(&some, NULL, 7);
    }
    msg_begin(&m, MSG_PUBLISH);
    msg_str(&m, "topic", "x");
    msg_map(&m, "body");
    msg_list(&m, "list");
    msg_i64(&m, NULL, 1);
    msg_values_add(&m, &some);
    msg_values_add(&m, &none);
    msg_values_add(&m, &some);
    msg_end(&m);
    msg_end(&m);
    assert_true(msg_finish(&m, &err));
    assert_true(msg_read_request(&in, m.buf.data, m.buf.len, &err));
    const struct mval *list = mval_get(mval_get(in.root, "body"), "list");
    assert_int_equal(mval_n(list), 5);
    for (int i = 1; i < 5; i += 2) {
        char text[4];
        assert_string_equal(mval_text(mval_at(list, i), "name", text, sizeof text), "b");
        assert_int_equal(mval_i64(mval_at(list, i + 1), 0), 7);
    }
    msg_in_release(&in);
    msg_release(&none);
    none.buf.max = 4;    // no room for the list itself
    msg_values_begin(&none);
    msg_begin(&m, MSG_PUBLISH);
    msg_str(&m, "topic", "x");
    msg_map(&m, "body");
    msg_list(&m, "list");
    msg_values_add(&m, &none);
    msg_end(&m);
    msg_end(&m);
    assert_false(msg_finish(&m, &err));
    msg_release(&m);
    msg_release(&some);
    msg_release(&none);
}

static void what_is_wrong_is_named(UNUSED void **state)
{
    struct msg_out m = MSG_OUT_INIT;
    struct msg_in in;
    struct error err = { 0 };
    msg_begin(&m, MSG_COMMAND);
    msg_str(&m, "id", "1");
    assert_true(msg_finish(&m, &err));
    assert_false(msg_read_request(&in, m.buf.data, m.buf.len, &err));
    assert_string_equal(err.text, "message 'command' lacks 'command'");
    msg_begin(&m, MSG_STEPS);
    msg_str(&m, "from", "one");
    assert_true(msg_finish(&m, &err));
    assert_false(msg_read_request(&in, m.buf.data, m.buf.len, &err));
    assert_string_equal(err.text, "'from' of message 'steps' is not an integer");
    assert_false(msg_read_request(&in,
                                  "\x82\xa1v\x01\xa1t\xa5"
                                  "dance",
                                  12, &err));
    assert_string_equal(err.text, "unknown message 'dance'");
    assert_false(msg_read_request(&in, "\x82\xa1v\x63\xa1t\xa5steps", 12, &err));
    assert_string_equal(err.text, "message 'steps' has protocol version 99; this is version 1");
    error_set(&err, ERR_REFUSED, "not now");
    msg_refuse(&m, &err);
    err = (struct error){ 0 };
    assert_false(msg_read_answer(&in, MSG_STEPS, m.buf.data, m.buf.len, &err));
    assert_int_equal(err.code, ERR_REFUSED);
    assert_string_equal(err.text, "not now");
    msg_release(&m);
}

static void hostile_bytes_are_refused_before_they_cost_memory(UNUSED void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
        const char *why;
    } cases[] = {
        { "", 0, "nothing" },
        { "\xdd\x08\x00\x00\x00", 5, "a list that claims 134 million members" },
        { "\xdf\xff\xff\xff\xff", 5, "a map that claims four thousand million pairs" },
        { "\xdb\xff\xff\xff\xff"
          "a",
          6, "text longer than the message" },
        { "\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\xc0", 17, "too deep" },
        { "\xc1", 1, "the byte that is never used" },
        { "\xc7\x01\x05"
          "a",
          4, "an extension type" },
        { "\xcf\x00", 2, "half an integer" },
        { "\xda\x00", 2, "half a length" },
        { "\xc0\xc0", 2, "a value past the end" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        if (msg_check(cases[i].bytes, cases[i].len, &err))
            fail_msg("accepted: %s", cases[i].why);
        assert_true(err.code == ERR_DATA);
    }
}

static void every_truncation_and_every_flipped_byte_is_survived(UNUSED void **state)
{
    struct error err = { 0 };
    struct msg_out m = MSG_OUT_INIT;
    struct msg_in in;
    msg_begin(&m, MSG_HEARTBEAT);
    msg_str(&m, "name", "worker cpu:0");
    msg_i64(&m, "pid", 4711);
    msg_i64(&m, "start", 1234567890123);
    msg_str(&m, "phase", "generating");
    msg_f64(&m, "phase_s", 1.5);
    msg_f64(&m, "progress", 12);
    msg_str(&m, "waits_for", "");
    assert_true(msg_finish(&m, &err));
    for (size_t len = 0; len < m.buf.len; len++)
        assert_false(msg_read_request(&in, m.buf.data, len, &err));
    char *copy = malloc(m.buf.len);
    assert_non_null(copy);
    for (size_t i = 0; i < m.buf.len; i++)
        for (int v = 0; v < 256; v++) {
            memcpy(copy, m.buf.data, m.buf.len);
            copy[i] = (char)v;
            if (msg_read_request(&in, copy, m.buf.len, &err))
                msg_in_release(&in);
        }
    free(copy);
    msg_release(&m);
}

static void a_message_that_grows_too_large_fails_when_finished(UNUSED void **state)
{
    struct error err = { 0 };
    struct msg_out m = { .buf = { .max = 100 } };
    char big[200] = { 0 };
    msg_begin(&m, MSG_PUBLISH);
    msg_bin(&m, "x", big, sizeof big);
    msg_i64(&m, "y", 1);
    assert_false(msg_finish(&m, &err));
    assert_int_equal(err.code, ERR_FULL);
    msg_release(&m);
}

static void a_commands_limit_is_from_a_tenth_of_a_second_to_a_day(UNUSED void **state)
{
    static const struct {
        double limit_s, otherwise_s;    // limit_s INFINITY: the message has none
        int64_t want_ms;
    } cases[] = {
        { 2.5, 60, 2500 }, { INFINITY, 60, 60000 }, { 0, 60, 100 },          { -1e300, 60, 100 },
        { NAN, 60, 100 },  { 86400, 60, 86400000 }, { 1e300, 60, 86400000 },    // as milliseconds it is in no integer
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct msg_out m = MSG_OUT_INIT;
        struct msg_in in;
        msg_begin(&m, MSG_COMMAND);
        msg_str(&m, "id", "1");
        msg_str(&m, "command", "restart");
        msg_str(&m, "who", "ops");
        if (!isinf(cases[i].limit_s))
            msg_f64(&m, "limit_s", cases[i].limit_s);
        assert_true(msg_finish(&m, &err));
        assert_true(msg_read_request(&in, m.buf.data, m.buf.len, &err));
        assert_true(command_limit_ms(in.root, cases[i].otherwise_s) == cases[i].want_ms);
        msg_in_release(&in);
        msg_release(&m);
    }
}

static void the_readme_holds_the_table(UNUSED void **state)
{
    struct error err = { 0 };
    struct buf docs = BUF_INIT, readme = BUF_INIT;
    msg_print_docs(&docs);
    if (getenv("UPDATE_DOCS")) {    // regenerate the tables in protocol/wire/README.md
        assert_true(file_read(&readme, TEST_DATA_DIR "/../protocol/wire/README.md", 1 << 20, &err));
        char *at = strstr(readme.data, "## Messages\n");
        readme.len = at ? (size_t)(at - readme.data) : readme.len;
        buf_str(&readme, buf_text(&docs));
        assert_true(file_write(TEST_DATA_DIR "/../protocol/wire/README.md", readme.data, readme.len, &err));
        buf_clear(&readme);
    }
    assert_true(file_read(&readme, TEST_DATA_DIR "/../protocol/wire/README.md", 1 << 20, &err));
    if (!strstr(buf_text(&readme), buf_text(&docs)))
        fail_msg("protocol/wire/README.md is not what the table says; run UPDATE_DOCS=1 message_test");
    buf_release(&docs);
    buf_release(&readme);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(values_made_apart_are_those_of_any_list),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(hostile_bytes_are_refused_before_they_cost_memory),
        cmocka_unit_test(every_truncation_and_every_flipped_byte_is_survived),
        cmocka_unit_test(a_message_that_grows_too_large_fails_when_finished),
        cmocka_unit_test(a_commands_limit_is_from_a_tenth_of_a_second_to_a_day),
        cmocka_unit_test(the_readme_holds_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
