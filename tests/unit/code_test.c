/* code_test.c - reading test cases, finding the program, and comparing outputs and values; no sandbox needed */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "workers/engine/reward/sandbox/cgroup.h"
#include "workers/engine/reward/sandbox/output.h"
#include "workers/engine/reward/sandbox/sandbox.h"
#include "workers/engine/reward/sandbox/userns.h"
#include "workers/engine/reward/sandbox/value.h"
#include "workers/engine/reward/tests.h"

/* Expected by hand from PRIME's steps (the comparison in stdin mode). */
static void outputs_compare_as_primes_runner_does(UNUSED void **state)
{
    static const struct {
        const char *out, *expected;
        bool ok;
        const char *why;
    } cases[] = {
        { "1\n2\n", "1\n2\n", true, "the same" },
        { "1\n2", "1\n2\n", true, "1: both ends are trimmed" },
        { "  \n1\n2\n\n", "1\n2", true, "1: white space of any kind at the ends" },
        { "1 \n 2\n", "1\n2\n", true, "2: each output line is trimmed" },
        { "1\n\n2\n", "1\n2\n", true, "4: empty output lines are dropped" },
        { "1\n2\n", "1\n\n2\n", true, "4: empty expected lines are dropped" },
        { "1\n2\n", " 1\n2 \n", true, "4: expected lines are trimmed" },
        { "a b\n", "a  b\n", false, "white space inside a line of words counts" },
        { "1 2\n", "1  2\n", true, "5: between numbers it does not" },
        { "1 2", "1\n2", false, "lines are not words" },
        { "2\n1\n", "1\n2\n", false, "order counts" },
        { "3.1415926\n", "3.14159\n", true, "5: one number a line, within 1e-5 of it" },
        { "3.1417\n", "3.1415\n", false, "5: 6e-5 of it away" },
        { "1.0\n2\n", "1\n2\n", true, "5: 1.0 is exactly 1" },
        { "100001\n", "100000\n", false, "5: digit strings on both sides are exact" },
        { "-100001\n", "-100000\n", false, "5: whole numbers are exact with a sign, too" },
        { "1000000009\n-1", "1000000007\n-1", false, "5: whatever the other lines are" },
        { "250000\n0.5", "250001\n0.5", false, "5: a float beside it gives a whole number no tolerance" },
        { "250000 0.5", "250001 0.5", false, "5: nor on its line" },
        { "1e9", "1000000007", false, "5: nor does the program's exponent" },
        { "100001.0", "100000", false, "5: nor its point" },
        { "9007199254740993.0", "9007199254740992", false, "5: beyond 2^53, too" },
        { "9007199254740993.00", "9007199254740993", true, "5: exactly, where a double is not" },
        { "1e5", "100000", true, "5: exactly that value" },
        { "1.25e2", "125", true, "5: exactly that value" },
        { "-1.0", "1", false, "5: the sign counts" },
        { "-0.0", "0", true, "5: but not of zero" },
        { "11", "0011", false, "5: digits may be a name" },
        { "5.0000001", "5", false, "5: almost a whole number" },
        { "1e99999999999", "1", false, "5: an exponent without end" },
        { "1.0 2.0\n", "1 2\n", true, "5: several on a line" },
        { "0.333333 0.666667", "0.333333333333 0.666666666667", true, "5: several on a line, each close" },
        { "0.333333 0.66", "0.333333333333 0.666666666667", false, "5: one of them is not" },
        { "0.333333", "0.333333333333 0.666666666667", false, "5: one is missing" },
        { "Case #1: 0.333333", "Case #1: 0.3333333333", true, "5: after words" },
        { "Case #2: 0.333333", "Case #1: 0.3333333333", false, "5: after other words" },
        { "Case  #1: 0.333333", "Case #1: 0.3333333333", false, "5: words with other white space" },
        { "[0.333333, 0.142857]", "[0.3333333333, 0.1428571428]", true, "5: within brackets" },
        { "(0.333333,1)", "(0.3333333333,2)", false, "5: within brackets, one whole and wrong" },
        { "x=0.5", "x=0.500", true, "5: after a sign of equality" },
        { "1e400", "inf", false, "5: a number too large for a double is not infinity" },
        { "1e400", "1e401", false, "5: nor are two such equal" },
        { "-1e400", "-Infinity", false, "5: with a sign" },
        { "1e400", "1.5e300", false, "5: beside a float" },
        { "inf", "1e308", false, "5: infinity is close to nothing" },
        { "-inf 1.0", "-Infinity 1", true, "5: two names of it" },
        { "0", "0.0", true, "5: a whole number for a float" },
        { "1_0.0", "10.0", false, "no underscores" },
        { "1.10.1", "1.1.1", false, "a version is not a number" },
        { "1e5\n", "100000.0\n", true, "5: exponents" },
        { "inf\n", "inf.\n", false, "no number at all" },
        { "nan\n", "nan \n", true, "1: as text" },
        { "+5", "5", false, "5: texts of whole numbers" },
        { "nan\nx", "nan\ny", false, "as numbers nan equals nothing, and x is none" },
        { "Inf\n1.0\n", "inf\n1\n", true, "5: infinities are equal" },
        { "0x10\n1.0\n", "16\n1\n", false, "hexadecimal is not a number in python's float" },
        { "1\r\n2\r\n", "1\n2\n", true, "2: \\r\\n ends a line" },
        { "\xc2\xa0"
          "1\xe3\x80\x80",
          "1", true, "1: unicode white space" },
        { "", "", true, "nothing where nothing is expected" },
        { "", "1", false, "nothing" },
        { "1\n2\n3\n", "1\n2\n", false, "too much" },
        { "YES", "yes", false, "case counts" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        bool ok = !cases[i].ok;
        assert_true(output_compare(cases[i].out, strlen(cases[i].out), cases[i].expected, strlen(cases[i].expected), &ok, &err));
        if (ok != cases[i].ok)
            fail_msg("'%s' against '%s': %s", cases[i].out, cases[i].expected, cases[i].why);
    }
}

static void values_compare_as_python_compares_them(UNUSED void **state)
{
    static const struct {
        const char *a, *b;    // what came and what was expected
        bool equal;
        const char *why;
    } cases[] = {
        { "1", "1.0", true, "a whole float" },
        { "true", "1", true, "True == 1" },
        { "false", "0.0", true, "False == 0.0" },
        { "null", "0", false, "None is not a number" },
        { "9007199254740992.0", "9007199254740993", false, "2**53 + 1 is exact" },
        { "9007199254740992", "9007199254740992.0", true, "2**53" },
        { "123456789012345678901234567890", "123456789012345678901234567890", true, "beyond 64 bits" },
        { "123456789012345678901234567890", "123456789012345678901234567891", false, "beyond 64 bits" },
        { "-0", "0", true, "-0 == 0" },
        { "-0.0", "0", true, "-0.0 == 0" },
        { "1e2", "100", true, "exponents make floats" },
        { "0.1", "0.10000000000000001", true, "the same double" },
        { "NaN", "NaN", false, "nan != nan" },
        { "Infinity", "Infinity", true, "inf == inf" },
        { "\"a\\u00e9\\ud83d\\ude00\\n\"", "\"a\xc3\xa9\xf0\x9f\x98\x80\\n\"", true, "escapes" },
        { "\"1\"", "1", false, "a text is not a number" },
        { "[1, [2, \"x\"]]", " [1,[2.0,\"x\"] ] ", true, "nested, white space" },
        { "[1,2]", "[2,1]", false, "order of a list" },
        { "[1]", "[1,1]", false, "length" },
        { "{\"a\":1,\"b\":[2]}", "{\"b\":[2],\"a\":1}", true, "order of an object does not count" },
        { "{\"a\":1}", "{\"a\":2}", false, "" },
        { "{\"a\":1}", "{\"b\":1}", false, "" },
        { "[]", "{}", false, "" },
        { "{}", "{}", true, "" },
        { "{\"a\":1,\"b\":2}", "{\"a\":1}", false, "fewer keys" },
        { "{\"b\":1,\"a\":2}", "{\"a\":1,\"b\":2}", false, "values go with their keys" },
        { "{\"a\":1,\"aa\":2}", "{\"a\":1,\"ab\":2}", false, "keys of one length" },
        { "{\"\":1,\"\\u0000\":2}", "{\"\\u0000\":2,\"\":1}", true, "a NUL is a character of a key" },
        { "{\"x\":{\"b\":1,\"a\":[]}}", "{\"x\":{\"a\":[],\"b\":1.0}}", true, "nested" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct json_value *a = value_read(cases[i].a, strlen(cases[i].a), &err), *b = value_read(cases[i].b, strlen(cases[i].b), &err);
        if (!a || !b || value_accepted(a, b) != cases[i].equal)
            fail_msg("%s against %s: %s %s", cases[i].a, cases[i].b, cases[i].why, err.text);
        value_free(a);
        value_free(b);
    }
}

static void what_is_not_json_is_refused_at_its_byte(UNUSED void **state)
{
    // clang-format off
    static const char *const bad[] = {
        "",         " ",         "[",       "]",        "[1",         "[1,",        "[1,]",  "[1 2]",
        "{",        "{1:2}",     "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{\"a\" 1}",  "\"",    "\"\\",
        "\"\\x\"",  "\"\\u12\"", "\"\n\"",  "1 2",      "-",          "1e",         "1.2.3", "+1",
        "1e400",    "[-1e400]",  "--1",     "tru",       "nul",     "'a'",      "[1]]",       "{\"a\":1}}", "1,",    "\"\\ud83d\\u12",
        "{\"a\":1",  "{\"1\":1,\"1\":1}",     "[{\"a\":1,\"b\":2,\"\\u0061\":1}]",
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct error err = { 0 };
        struct json_value *v = value_read(bad[i], strlen(bad[i]), &err);
        if (v || err.code != ERR_DATA || !strstr(err.text, "at byte"))
            fail_msg("'%s' was read: %s", bad[i], err.text);
    }
    char deep[2002];
    struct error err = { 0 };
    memset(deep, '[', 1000);
    memset(deep + 1000, ']', 1000);
    assert_null(value_read(deep, 2000, &err));    // and no stack is used up
}

static void the_last_python_fence_holds_the_program(UNUSED void **state)
{
    static const struct {
        const char *text, *code;
        bool fence;
    } cases[] = {
        { "a\n```python\nx=1\n```\nb", "\nx=1\n", true },
        { "```python\nold\n```\nthen\n```python\nnew\n```", "\nnew\n", true },
        { "```python\nno end", "\nno end", true },
        { "x = 1", "x = 1", false },
        { "```\nx = 1\n```", "```\nx = 1\n```", false },
        { "```python```", "", true },
        { "", "", false },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const char *code;
        size_t len;
        assert_int_equal(program_find(cases[i].text, strlen(cases[i].text), &code, &len), cases[i].fence);
        assert_int_equal(len, strlen(cases[i].code));
        assert_memory_equal(code, cases[i].code, len);
    }
}

static json_t *cases_json(const char *text)
{
    json_error_t je;
    json_t *v = json_loads(text, JSON_DECODE_ANY, &je);
    if (!v)
        fail_msg("%s: %s", text, je.text);
    return v;
}

static void test_cases_are_read_in_all_their_spellings(UNUSED void **state)
{
    static const struct {
        const char *json, *input, *output;
    } cases[] = {
        { "{\"inputs\":[\"3\\n1 2\\n\"],\"outputs\":[\"1\\n\"]}", "3\n1 2\n", "1\n" },
        { "\"{\\\"inputs\\\":[\\\"3\\\"],\\\"outputs\\\":[\\\"1\\\"]}\"", "3", "1" },
        { "{\"inputs\":[[\"3\",\"4\"]],\"outputs\":[[\"1\",\"2\"]]}", "3\n4\n", "1\n2\n" },
        { "{\"inputs\":[\"[1, 2]\\n\\\"x\\\"\\n\"],\"outputs\":[\"5\"],\"fn_name\":\"f\"}", "[1, 2]\n\"x\"", "5" },
        { "{\"inputs\":[[[1,2],\"x\"]],\"outputs\":[[5]],\"fn_name\":\"f\"}", "[1,2]\n\"x\"", "[5]" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct tests t;
        json_t *v = cases_json(cases[i].json);
        if (!tests_read(&t, v, &err))
            fail_msg("%s: %s", cases[i].json, err.text);
        json_decref(v);
        assert_int_equal(t.n, 1);
        assert_int_equal(t.test[0].input_len, strlen(cases[i].input));
        assert_string_equal(t.test[0].input, cases[i].input);
        assert_string_equal(t.test[0].output, cases[i].output);
        tests_release(&t);
    }
}

static void test_cases_that_cannot_be_used_are_an_error_of_the_data(UNUSED void **state)
{
    static const struct {
        const char *json, *says;
    } cases[] = {
        { "null", "must have lists" },
        { "\"{\"", "not JSON" },
        { "{\"inputs\":[],\"outputs\":[]}", "0 inputs" },
        { "{\"inputs\":[\"1\"],\"outputs\":[]}", "1 inputs and 0 outputs" },
        { "{\"inputs\":[1],\"outputs\":[\"1\"]}", "'inputs' 0" },
        { "{\"inputs\":[\"1\"],\"outputs\":[{}]}", "'outputs' 0" },
        { "{\"inputs\":[\"1\"],\"outputs\":[\"1\"],\"fn_name\":7}", "fn_name" },
        { "{\"inputs\":[\"x\"],\"outputs\":[\"1\"],\"fn_name\":\"f\"}", "'inputs' 0" },
        { "{\"inputs\":[\"1\"],\"outputs\":[\"x\"],\"fn_name\":\"f\"}", "'outputs' 0" },
        { "{\"inputs\":[\"1\"],\"outputs\":[\"1\"],\"assert_case\":[\"assert 1\"]}", "assert_case" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct tests t;
        json_t *v = cases_json(cases[i].json);
        if (tests_read(&t, v, &err) || !strstr(err.text, cases[i].says))
            fail_msg("%s: %s", cases[i].json, err.text);
        assert_null(t.test);
        json_decref(v);
    }
    struct error err = { 0 };
    struct tests t;
    assert_false(tests_read(&t, NULL, &err));
    assert_non_null(strstr(err.text, "no test_cases"));
}

static void a_call_may_return_the_first_member_of_an_expected_list(UNUSED void **state)
{
    // clang-format off
    static const struct { const char *expected, *out; bool ok;
    } cases[] = {
        {"[5]", "5", true},         {"[5]", "[5]", true}, {"5", "[5]", false}, {"[5,6]", "5", true}, {"[]", "[]", true},
        {"[[1,2]]", "[1,2]", true}, {"5", "", false},     {"5", "5 5", false}, {"5", "5.0\n", true},
        {"0.33333", "0.3333333333333333", true}, {"0.33333", "0.33335", false}, {"[0.333333,[2,0.142857]]", "[0.3333333333,[2,0.1428571428]]", true},
        {"[0.333333,[2,0.142857]]", "[0.3333333333,[2.0000001,0.1428571428]]", false}, {"2.0", "2", true}, {"2.5", "2", false},
        {"{\"a\":0.333333}", "{\"a\":0.33333333}", true}, {"100000", "100001", false}, {"100000", "100000.5", false}, {"0.5", "\"0.5\"", false},
        {"\"0.333333\"", "\"0.3333333\"", false}, {"0.5", "NaN", false}, {"0.5", "null", false}, {"[0.5]", "0.500001", true}, {"1e5", "100001", true},
        {"{\"1\":1,\"2\":2}", "{\"1\":1,\"1\":1}", false},    // of {1: 1, "1": 1}
        {"{\"1\":1,\"2\":2}", "{\"2\":2,\"1\":1}", true},     // of {2: 2, 1: 1}
        {"[{\"1\":1,\"2\":2}]", "{\"1\":1,\"1\":1}", false},
        {"{\"1\":1}", "{\"1\":1,\"1\":1}", false},
        {"[[1,1],[2,2]]", "[[1,1],[1,1]]", false},
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct tests t;
        bool ok = !cases[i].ok;
        json_t *v = json_pack("{s:[s],s:[s],s:s}", "inputs", "1", "outputs", cases[i].expected, "fn_name", "f");
        assert_true(tests_read(&t, v, &err));
        assert_true(test_compare(&t, 0, cases[i].out, strlen(cases[i].out), &ok, &err));
        if (ok != cases[i].ok)
            fail_msg("%s for %s", cases[i].out, cases[i].expected);
        tests_release(&t);
        json_decref(v);
    }
}

static pid_t first_child(pid_t pid)
{
    char path[64], text[64];
    int child = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, pid);
    FILE *f = fopen(path, "r");
    if (f && fgets(text, sizeof text, f))
        child = atoi(text);
    if (f)
        fclose(f);
    return child;
}

struct late_socket {
    int socket;    // the zygote's end of its socket, held as a clone that is just starting holds it
    atomic_bool over;
};

/* Let go of it when the other side asks whether the zygote lives, or when there is nothing to wait for. */
static void *late_socket_hold(void *arg)
{
    struct late_socket *l = arg;
    struct pollfd p = { .fd = l->socket, .events = POLLIN };
    while (!atomic_load(&l->over) && poll(&p, 1, 20) == 0) {
    }
    close(l->socket);
    return NULL;
}

static void a_sandbox_killed_from_outside_is_not_the_programs_fault(UNUSED void **state)
{
    static const char code[] = "import time\ntime.sleep(60)";
    struct error err = { 0 };
    struct buf out = BUF_INIT;
    struct late_socket late = { 0 };
    pthread_t thread;
    struct sandbox_host *h = sandbox_host_new(&sandbox_limits_default, &err);
    if (!h) {
        print_message("no sandbox on this machine: %s\n", err.text);
        skip();
    }
    struct sandbox *s = sandbox_take(h, &err);
    assert_non_null(s);
    assert_int_equal(sandbox_load(s, code, sizeof code - 1, NULL, &err), CASE_OK);
    pid_t zygote = first_child(first_child(getpid()));
    int pidfd = (int)syscall(SYS_pidfd_open, zygote, 0);
    late.socket = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, 3, 0);
    if (late.socket < 0) {
        print_message("this kernel gives no descriptor of another process\n");
    } else {
        assert_int_equal(kill(zygote, SIGKILL), 0);
        assert_int_equal(pthread_create(&thread, NULL, late_socket_hold, &late), 0);
        assert_int_equal(sandbox_run(s, "", 0, 30, &out, &err), CASE_SANDBOX);
        atomic_store(&late.over, true);
        pthread_join(thread, NULL);
    }
    close(pidfd);
    sandbox_free(s);
    s = late.socket < 0 ? NULL : sandbox_take(h, &err);    // a new interpreter makes it
    if (late.socket >= 0) {
        assert_non_null(s);
        assert_int_equal(sandbox_load(s, "print(7)", 8, NULL, &err), CASE_OK);
        assert_int_equal(sandbox_run(s, "", 0, 30, &out, &err), CASE_OK);
        assert_string_equal(buf_text(&out), "7\n");
    }
    buf_release(&out);
    sandbox_free(s);
    sandbox_host_free(h);
}

/* On a folder with a cgroup's files; a real one needs a machine that delegates a cgroup (hostile_test.py on such a machine). */
static void where_no_cgroup_can_be_made_the_reason_is_said_and_nothing_is_left(UNUSED void **state)
{
    static const struct {
        const char *own, *controllers, *subtree, *says;
    } cases[] = {
        { "/../x", "memory", "memory", "is not below" },
        { "/none", "memory", "memory", "cannot make a cgroup" },
        { "/own", "cpu pids", "", "has no memory controller" },
        { "/own", "cpu memory2", "", "has no memory controller" },
        { "/own", "cpu memory", "memory", "cannot have groups with a memory limit" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char mount[] = "/tmp/code_test_XXXXXX", path[64], listing[128] = "";
        struct error err = { 0 };
        assert_non_null(mkdtemp(mount));
        snprintf(path, sizeof path, "%s/own", mount);
        assert_true(dir_make(path, 0700, &err));
        snprintf(path, sizeof path, "%s/own/cgroup.controllers", mount);
        assert_true(file_write(path, cases[i].controllers, strlen(cases[i].controllers), &err));
        snprintf(path, sizeof path, "%s/own/cgroup.subtree_control", mount);
        assert_true(file_write(path, cases[i].subtree, strlen(cases[i].subtree), &err));
        assert_null(cgroup_set_new(mount, cases[i].own, 1 << 20, &err));
        if (!strstr(err.text, cases[i].says))
            fail_msg("%s: %s", cases[i].own, err.text);
        snprintf(path, sizeof path, "%s/own", mount);
        DIR *d = opendir(path);
        for (struct dirent *e; (e = readdir(d));)
            if (strncmp(e->d_name, "rollcall", 8) == 0)
                snprintf(listing, sizeof listing, "%s", e->d_name);
        closedir(d);
        assert_string_equal(listing, "");
        assert_true(dir_remove(mount, &err));
    }
}

static void a_host_without_user_namespaces_gets_the_command_that_allows_them(UNUSED void **state)
{
    static const struct {
        const char *file, *value;
        bool root;
        const char *want, *why;
    } cases[] = {
        { "kernel/apparmor_restrict_unprivileged_userns", "1\n", false, "/etc/apparmor.d/bwrap", "Ubuntu 24.04" },
        { "kernel/apparmor_restrict_unprivileged_userns", "0\n", false, "no setting", "lifted" },
        { "kernel/apparmor_restrict_unprivileged_userns", "1\n", true, "no setting", "it is not root's trouble" },
        { "kernel/unprivileged_userns_clone", "0\n", false, "kernel.unprivileged_userns_clone=1", "hardened Debian" },
        { "kernel/unprivileged_userns_clone", "1\n", false, "no setting", "Debian as it comes" },
        { "user/max_user_namespaces", "0\n", true, "user.max_user_namespaces=", "for root, too" },
        { "user/max_user_namespaces", "", false, "no setting", "unreadable" },
        { NULL, NULL, false, "bwrap --unshare-all", "a kernel that knows none of them" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char dir[] = "/tmp/userns-XXXXXX", path[128], said[600];
        assert_non_null(mkdtemp(dir));
        for (const char *const *d = (const char *const[]){ "kernel", "user", NULL }; *d; d++) {
            snprintf(path, sizeof path, "%s/%s", dir, *d);
            assert_int_equal(mkdir(path, 0700), 0);
        }
        if (cases[i].file) {
            snprintf(path, sizeof path, "%s/%s", dir, cases[i].file);
            FILE *f = fopen(path, "w");
            assert_true(f && fputs(cases[i].value, f) >= 0 && fclose(f) == 0);
        }
        userns_remedy(said, sizeof said, dir, cases[i].root);
        if (!strstr(said, cases[i].want))
            fail_msg("%s: '%s'", cases[i].why, said);
        if (cases[i].file)
            assert_int_equal(unlink(path), 0);
        for (const char *const *d = (const char *const[]){ "kernel", "user", "", NULL }; *d; d++) {
            snprintf(path, sizeof path, "%s/%s", dir, *d);
            assert_int_equal(rmdir(path), 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_without_user_namespaces_gets_the_command_that_allows_them),
        cmocka_unit_test(outputs_compare_as_primes_runner_does),
        cmocka_unit_test(values_compare_as_python_compares_them),
        cmocka_unit_test(what_is_not_json_is_refused_at_its_byte),
        cmocka_unit_test(the_last_python_fence_holds_the_program),
        cmocka_unit_test(test_cases_are_read_in_all_their_spellings),
        cmocka_unit_test(test_cases_that_cannot_be_used_are_an_error_of_the_data),
        cmocka_unit_test(where_no_cgroup_can_be_made_the_reason_is_said_and_nothing_is_left),
        cmocka_unit_test(a_sandbox_killed_from_outside_is_not_the_programs_fault),
        cmocka_unit_test(a_call_may_return_the_first_member_of_an_expected_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
