/* What a node takes from its head and its operator. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/file.h"
#include "protocol/run/node.h"
#include "protocol/settings/run_config.h"

static void only_plain_files_under_model_and_data_are_taken(UNUSED void **state)
{
    static const struct {
        const char *name;
        bool ok;
    } cases[] = {
        { "model/config.json", true },
        { "data/train.jsonl", true },
        { "data/a b.jsonl", true },
        { "model/additional_chat_templates/tool_use.jinja", true },
        { "model/additional_chat_templates/../x", false },
        { "model/other/tool_use.jinja", false },
        { "model/", false },
        { "model/../run.yaml", false },
        { "model/.hidden", false },
        { "data/..", false },
        { "sock/join", false },
        { "/etc/passwd", false },
        { "model//etc/passwd", false },
        { "", false },
        { "models/x", false },
        { "run.yaml", false },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        if (node_file_name_ok(cases[i].name) != cases[i].ok)
            fail_msg("'%s'", cases[i].name);
    char longer[200];
    memset(longer, 'a', sizeof longer);
    memcpy(longer, "model/", 6);
    longer[160] = 0;
    assert_false(node_file_name_ok(longer));
}

static void names_and_addresses_are_checked(UNUSED void **state)
{
    struct error err;
    char out[280];
    assert_true(node_name_check("gpu-7.rack_2", &err));
    static const char *const bad_names[] = { "", "a/b", "a b", ".x", "-x", "123456789012345678901234567890123", "\xc3\xa4" };
    for (size_t i = 0; i < ARRAY_SIZE(bad_names); i++) {
        if (node_name_check(bad_names[i], &err))
            fail_msg("'%s'", bad_names[i]);
        assert_int_equal(err.code, ERR_USAGE);
    }
    assert_true(node_address("tcp://10.0.0.1:29506", "--join", out, &err));
    assert_string_equal(out, "10.0.0.1:29506");
    struct node n = { 0 };
    assert_true(node_heads_read(&n, "tcp://a:1,b:2,[::1]:3", "--join", &err));
    assert_string_equal(n.heads, "a:1,b:2,[::1]:3");
    static const char *const turn[] = { "a:1", "b:2", "[::1]:3", "a:1" };
    for (size_t i = 0; i < ARRAY_SIZE(turn); i++) {
        assert_string_equal(n.head, turn[i]);
        assert_true(node_head_next(&n));
    }
    assert_true(node_heads_read(&n, "a:1", "--join", &err));
    assert_false(node_head_next(&n));    // there is no other
    assert_false(node_heads_read(&n, "a:1,b", "--join", &err));
    assert_false(node_heads_read(&n, "", "--join", &err));
    assert_true(node_address("[::1]:29506", "--join", out, &err));
    assert_string_equal(out, "[::1]:29506");
    static const char *const bad[] = {
        "", "host", "host:", ":29506", "host:0", "host:65536", "host:x", "http://host:80", "tcp://host:80/x"
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        if (node_address(bad[i], "--join", out, &err))
            fail_msg("'%s'", bad[i]);
}

static int n_tick;
static void tick(UNUSED void *ctx)
{
    n_tick++;
}

static void a_file_is_hashed_in_pieces_and_who_it_is_survives_being_written(UNUSED void **state)
{
    struct error err;
    char dir[] = "/tmp/rc-node-XXXXXX", path[64], hex[65];
    int64_t size;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/file", dir);
    size_t n = (size_t)NODE_PIECE_BYTES + 3;
    char *data = calloc(1, n);
    assert_true(file_write(path, data, n, &err));
    assert_true(node_file_hash(path, hex, &size, tick, NULL, &err));
    assert_int_equal(size, n);
    assert_int_equal(n_tick, 2);
    assert_string_equal(hex,
                        "6ec7ee1f9dd1ff7ca5eac3e2c6abcf0250620ab9727a58d1a5c303f192f6b607");    // head -c 4194307 /dev/zero | sha256sum
    free(data);
    assert_false(node_file_hash("/nowhere", hex, &size, NULL, NULL, &err));
    struct node a = { .name = "b",
                      .id = "00112233445566778899aabbccddeeff",
                      .head = "10.0.0.1:29506",
                      .hash = "abc",
                      .wait_s = 12.5,
                      .n_device = 3,
                      .first_trainer = 2 },
                b;
    assert_false(node_here(dir));
    assert_true(node_write(&a, dir, &err));
    assert_true(node_here(dir));
    assert_true(node_read(&b, dir, &err));
    assert_string_equal(a.id, b.id);
    assert_string_equal(a.head, b.head);
    assert_string_equal(a.hash, b.hash);
    assert_true(a.wait_s == b.wait_s);
    assert_int_equal(b.n_device, 3);
    struct run_config c;
    run_config_init(&c);
    assert_true(node_config(&c, dir, &err));
    assert_true(c.node_only);
    assert_int_equal(c.first_trainer, 2);
    node_head_host(&b, hex, sizeof hex);
    assert_string_equal(hex, "10.0.0.1");
    node_head_host(&(struct node){ .head = "[fe80::1]:29506" }, hex, sizeof hex);
    assert_string_equal(hex, "fe80::1");
    snprintf(path, sizeof path, "%s/node", dir);
    assert_true(file_write(path, "{\"name\": 7}", 11, &err));
    assert_false(node_read(&b, dir, &err));
    assert_int_equal(err.code, ERR_DATA);
    assert_false(node_config(&c, dir, &err));
    const char *old = "{\"name\": \"b\", \"id\": \"00112233445566778899aabbccddeeff\", \"head\": \"h:1\", \"hash\": \"\"}";
    assert_true(file_write(path, old, strlen(old), &err));
    assert_true(node_config(&c, dir, &err));
    assert_int_equal(c.first_trainer, -1);    // written by a rollcall whose nodes did not train
    assert_true(dir_remove(dir, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_plain_files_under_model_and_data_are_taken),
        cmocka_unit_test(names_and_addresses_are_checked),
        cmocka_unit_test(a_file_is_hashed_in_pieces_and_who_it_is_survives_being_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
