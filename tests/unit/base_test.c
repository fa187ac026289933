/* tags: valgrind */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <netdb.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/base/buf.h"
#include "protocol/base/child.h"
#include "protocol/base/clean_out.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/error.h"
#include "protocol/base/file.h"
#include "protocol/base/machine.h"
#include "protocol/base/macros.h"
#include "protocol/base/mix64.h"
#include "protocol/base/own_hosts.h"
#include "protocol/base/parallel.h"
#include "protocol/base/proc_stat.h"
#include "protocol/base/utf8.h"
#include "protocol/base/tcp.h"

static void an_error_that_does_not_fit_ends_in_dots(UNUSED void **state)
{
    struct error err = { 0 };
    char big[3000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    assert_false(error_set(&err, ERR_DATA, "%s", big));
    assert_string_equal(err.text + strlen(err.text) - 3, "...");
    error_set(&err, ERR_DATA, "inner");
    error_wrap(&err, "while reading '%s'", "f");
    assert_string_equal(err.text, "while reading 'f': inner");
}

static void a_path_is_told_without_its_folders(UNUSED void **state)
{
    static const struct {
        const char *text, *told;
    } cases[] = {
        { "/srv/a/model/tokenizer_config.json: chat_template:1: no", "tokenizer_config.json: chat_template:1: no" },
        { "cannot read '/srv/my models/x.json': No such file", "cannot read 'x.json': No such file" },
        { "'/a/b', \"/c/d e\" and (/f/g/)", "'b', \"d e\" and (g/)" },
        { "use /v1/chat/completions; 1/2 of 3/4/5 tokens/s, a // b", "use /v1/chat/completions; 1/2 of 3/4/5 tokens/s, a // b" },
        { "state '/x' is '/'", "state '/x' is '/'" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err;
        char told[ERROR_TEXT_BYTES];
        error_set(&err, ERR_IO, "%s", cases[i].text);
        error_tell(&err, told);
        assert_string_equal(told, cases[i].told);
    }
}

static void a_buffer_stops_at_its_bound_and_keeps_what_it_had(UNUSED void **state)
{
    struct buf b = { .max = 10 };
    assert_true(buf_str(&b, "12345678"));
    assert_false(buf_str(&b, "abc"));
    assert_string_equal(buf_text(&b), "12345678");
    assert_false(buf_char(&b, 'x'));    // once failed it stays so
    buf_clear(&b);
    assert_true(buf_fmt(&b, "%d-%d", 12, 34));
    assert_string_equal(buf_text(&b), "12-34");
    buf_release(&b);
}

static void bytes_of_0_are_spelt_and_nothing_else_changes(UNUSED void **state)
{
    struct buf b = BUF_INIT;
    assert_true(buf_add(&b, "a\0b", 3) && buf_add(&b, "\0\0c", 3));
    assert_true(buf_nul_replace(&b, 3));    // from there on
    assert_int_equal(b.len, 10);
    assert_memory_equal(buf_text(&b),
                        "a\0b\xEF\xBF\xBD\xEF\xBF\xBD"
                        "c",
                        11);
    assert_true(buf_nul_replace(&b, 0));
    assert_string_equal(buf_text(&b), "a\xEF\xBF\xBD"
                                      "b\xEF\xBF\xBD\xEF\xBF\xBD"
                                      "c");
    assert_true(buf_nul_replace(&b, b.len));
    buf_release(&b);
    struct buf small = { .max = 4 };
    assert_true(buf_add(&small, "\0\0", 2));
    assert_false(buf_nul_replace(&small, 0));    // it has no room for them
    buf_release(&small);
}

static void a_shell_reads_a_word_as_it_was(UNUSED void **state)
{
    static const struct {
        const char *text, *word;
    } cases[] = {
        { "/usr/bin/rollcall", "/usr/bin/rollcall" },       { "me@host:2", "me@host:2" }, { "", "''" },   { "a b", "'a b'" },
        { "$(reboot) `x` \\ \"", "'$(reboot) `x` \\ \"'" }, { "it's", "'it'\\''s'" },     { "~", "'~'" }, { "h\u00e9", "'h\u00e9'" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct buf b = BUF_INIT;
        assert_true(buf_shell(&b, cases[i].text));
        assert_string_equal(buf_text(&b), cases[i].word);
        buf_release(&b);
    }
}

static void numbers_are_read_whole_or_not_at_all(UNUSED void **state)
{
    static const struct {
        const char *text;
        bool ok;
    } cases[] = {
        { "1", true },   { "-1e-3", true }, { "1e-6", true }, { "", false },    { "1x", false },
        { " 1", false }, { "0x10", false }, { "nan", false }, { "inf", false }, { "1e400", false },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        double v;
        assert_int_equal(parse_f64(cases[i].text, &v), cases[i].ok);
    }
    int64_t n;
    assert_false(parse_i64("99999999999999999999", &n));
    assert_true(parse_i64("-7", &n) && n == -7);
}

static void options_come_from_the_table_and_wrong_ones_name_the_nearest(UNUSED void **state)
{
    int64_t n = 0;
    bool flag = false;
    const char *operand[1];
    struct cli_option options[] = {
        { "train-batch-size", "tbs", CLI_I64, &n, "N", "prompts" },
        { "dry-run", NULL, CLI_FLAG, &flag, NULL, "only plan" },
    };
    struct cli cli = { "rollcall x", "about", "[F]", options, 2, operand, 1 };
    struct error err = { 0 };
    char *good[] = { "x", "-tbs", "4", "--dry_run", "f" }, *bad[] = { "x", "--train-batch-sise", "4" };
    assert_true(cli_parse(&cli, 5, good, &err));
    assert_int_equal(n, 4);
    assert_true(flag);
    assert_int_equal(cli.n_operands, 1);
    assert_false(cli_parse(&cli, 3, bad, &err));
    assert_int_equal(err.code, ERR_USAGE);
    assert_non_null(strstr(err.text, "did you mean '--train-batch-size'"));
}

static void only_a_regular_file_is_read_and_a_text_only_in_utf8(UNUSED void **state)
{
    struct error err = { 0 };
    struct buf b = BUF_INIT;
    struct file_map map;
    char dir[] = "/tmp/rollcall-base-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/f", dir);
    assert_int_equal(mkfifo(path, 0600), 0);    // without a writer, opening it the usual way would wait forever
    assert_false(file_read(&b, path, 100, &err));
    assert_non_null(strstr(err.text, "is a FIFO, not a file"));
    assert_false(file_map_open(&map, path, &err));
    assert_non_null(strstr(err.text, "is a FIFO, not a file"));
    assert_false(file_read(&b, dir, 100, &err));
    assert_non_null(strstr(err.text, "is a folder, not a file"));
    assert_false(file_read(&b, "/dev/zero", 100, &err));
    unlink(path);
    assert_true(file_write(path, "one\ntw\0o\n", 9, &err));
    assert_true(file_read(&b, path, 100, &err));
    assert_int_equal(b.len, 9);
    assert_false(file_read_text(&b, path, 100, &err));
    assert_non_null(strstr(err.text, "/f:2: a NUL byte"));
    assert_true(file_write(path, "one\ntwo\n\xc3(", 10, &err));
    buf_clear(&b);
    assert_false(file_read_text(&b, path, 100, &err));
    assert_non_null(strstr(err.text, "/f:3: the byte 0xc3 is not UTF-8"));
    buf_release(&b);
    unlink(path);
    rmdir(dir);
}

static void a_text_is_cut_between_characters(UNUSED void **state)
{
    static const struct {
        const char *text;
        size_t size;
        const char *want, *why;
    } cases[] = {
        { "abc", 4, "abc", "it fits" },
        { "abcd", 4, "abc", "one byte each" },
        { "a\xE2\x82\xAC", 5, "a\xE2\x82\xAC", "a last character that fits" },
        { "a\xE2\x82\xAC", 4, "a", "without its last byte" },
        { "a\xE2\x82\xAC", 3, "a", "without its last two" },
        { "ab\xF0\x9F\x98\x80z", 6, "ab", "four bytes, three of which fit" },
        { "\xE2\x82\xAC", 2, "", "none fits" },
        { "", 1, "", "nothing to copy" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char to[8];
        memset(to, 'x', sizeof to);
        print_message("%s\n", cases[i].why);
        utf8_copy(to, cases[i].size, cases[i].text, strlen(cases[i].text));
        assert_string_equal(to, cases[i].want);
        for (size_t k = cases[i].size; k < sizeof to; k++)
            assert_int_equal(to[k], 'x');
    }
}

static void a_written_file_reads_back_and_a_limit_is_kept(UNUSED void **state)
{
    struct error err = { 0 };
    char dir[] = "/tmp/rc_base_XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/a/b", dir);
    assert_true(dir_make(path, 0755, &err));
    snprintf(path, sizeof path, "%s/a/b/f", dir);
    assert_true(file_write(path, "hello", 5, &err));
    struct buf b = BUF_INIT;
    assert_true(file_read(&b, path, 5, &err));
    assert_string_equal(buf_text(&b), "hello");
    assert_false(file_read(&b, path, 4, &err));
    buf_release(&b);
    assert_true(dir_remove(dir, &err));
    assert_false(path_exists(dir));
}

/* Where a link leads, nothing is removed and nothing is written. */
static void no_link_is_followed_to_remove_or_to_create(UNUSED void **state)
{
    static const struct {
        const char *target, *at, *why;
    } gone[] = {
        { "victim", "link", "a link at the top" },      { "victim", "link/", "... named with a slash, which makes the system follow it" },
        { "victim", "link///", "... or with several" }, { "victim", "deep/in/link", "a link inside" },
        { "victim/f", "link", "a link to a file" },     { "nowhere", "link", "a link to nothing" },
    };
    static const struct {
        int flags;
        bool made;
    } create[] = { { O_WRONLY, false }, { O_RDWR | O_APPEND, false }, { O_WRONLY | O_EXCL, false }, { O_WRONLY | O_TRUNC, true } };
    struct error err = { 0 };
    char dir[] = "/tmp/rc_base_XXXXXX", victim[64], file[64], at[64], target[64];
    struct buf b = BUF_INIT;
    assert_non_null(mkdtemp(dir));
    snprintf(victim, sizeof victim, "%s/victim", dir);
    snprintf(file, sizeof file, "%s/victim/f", dir);
    assert_true(dir_make(victim, 0755, &err) && file_write(file, "kept", 4, &err));
    for (size_t i = 0; i < ARRAY_SIZE(gone); i++) {
        bool deep = strncmp(gone[i].at, "deep", 4) == 0;
        print_message("%s\n", gone[i].why);
        snprintf(at, sizeof at, "%s/deep/in", dir);
        assert_true(dir_make(at, 0755, &err));
        snprintf(target, sizeof target, "%s/%s", dir, gone[i].target);
        snprintf(at, sizeof at, "%s/%s", dir, deep ? gone[i].at : "link");
        assert_int_equal(symlink(target, at), 0);
        snprintf(at, sizeof at, "%s/%s", dir, deep ? "deep" : gone[i].at);
        assert_true(dir_remove(at, &err));
        assert_true(file_read(&b, file, 4, &err) && b.len == 4);
        buf_clear(&b);
        snprintf(at, sizeof at, "%s/%s", dir, deep ? "deep" : "link");
        assert_false(path_is_link(at) || path_exists(at));
    }
    for (int hard = 0; hard < 2; hard++)
        for (size_t i = 0; i < ARRAY_SIZE(create); i++) {
            snprintf(at, sizeof at, "%s/link", dir);
            assert_int_equal(hard ? link(file, at) : symlink(file, at), 0);
            int fd = !hard || create[i].made ? file_create(at, create[i].flags, 0600, &err) : -1;    // a hard link is a file of its own
            assert_int_equal(fd >= 0, create[i].made);
            assert_true(fd < 0 || (write(fd, "mine", 4) == 4 && close(fd) == 0));
            assert_true(file_read(&b, file, 4, &err) && strcmp(buf_text(&b), "kept") == 0);
            buf_clear(&b);
            assert_int_equal(unlink(at), 0);
        }
    snprintf(at, sizeof at, "%s/fifo", dir);
    assert_int_equal(mkfifo(at, 0600), 0);
    assert_true(file_create(at, O_WRONLY, 0600, &err) < 0 && file_create(at, O_RDWR, 0600, &err) < 0);    // neither waits for a reader
    buf_release(&b);
    assert_true(dir_remove(dir, &err));
}

/* The first numbers of splitmix64 from 0, as the vectors of other implementations (Java's SplittableRandom, Rust's rand) have them. */
static void the_mix_is_splitmix64(UNUSED void **state)
{
    static const uint64_t want[] = { 0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f, 0xf88bb8a8724c81ec };
    uint64_t x = 0;
    for (size_t i = 0; i < ARRAY_SIZE(want); i++)
        assert_int_equal(mix64_next(&x), want[i]);
}

static void round_count(void *ctx, int64_t i)
{
    _Atomic int *count = ctx;
    atomic_fetch_add(&count[i], 1);
}

static void each_round_of_a_loop_runs_once_whatever_the_threads(UNUSED void **state)
{
    static const int threads[] = { 0, 1, 3, 1000 };
    static const int64_t rounds[] = { 0, 1, 2, 777 };
    for (size_t t = 0; t < ARRAY_SIZE(threads); t++)
        for (size_t r = 0; r < ARRAY_SIZE(rounds); r++) {
            _Atomic int count[778] = { 0 };
            parallel_run(rounds[r], threads[t], round_count, count);
            for (int64_t i = 0; i < 778; i++)
                assert_int_equal(count[i], i < rounds[r]);
        }
}

/* What a stream that cleans makes of text, printed in pieces of `piece` bytes. */
static const char *cleaned(const char *text, size_t len, size_t piece)
{
    static char out[1024];
    int fd = memfd_create("cleaned", MFD_CLOEXEC);
    FILE *f = clean_stream(fd);
    assert_true(fd >= 0 && f);
    setvbuf(f, NULL, _IONBF, 0);    // as stderr is
    for (size_t at = 0; at < len; at += piece)
        assert_int_equal(fwrite(text + at, 1, MIN(piece, len - at), f), MIN(piece, len - at));
    assert_int_equal(fclose(f), 0);
    ssize_t n = pread(fd, out, sizeof out - 1, 0);
    assert_true(n >= 0);
    out[n] = 0;
    close(fd);
    return out;
}

static void what_a_terminal_would_obey_is_printed_as_signs(UNUSED void **state)
{
    static const struct {
        const char *text, *out;
    } cases[] = {
        { "reward 0.5\n\tall well\n", "reward 0.5\n\tall well\n" },
        { "\033]0;owned\007\033[2J", "\\u001b]0;owned\\u0007\\u001b[2J" },    // window title, clear screen
        { "\033]52;c;ZWNobw==\033\\", "\\u001b]52;c;ZWNobw==\\u001b\\" },     // clipboard
        { "75 %\rfake", "75 %\\u000dfake" },
        { "a\bb\x7f", "a\\u0008b\\u007f" },
        { "\xc2\x9b"
          "31m",
          "\\u009b31m" },    // C1: CSI in one character
        { "\x9b"
          "31m",
          "\xef\xbf\xbd"
          "31m" },    // and as a byte that is not UTF-8
        { "\xe2\x80\xae"
          "live\xe2\x81\xa6",
          "\\u202elive\\u2066" },    // turned text
        { "\xe7\xad\x94 \xc3\xa9 \xf0\x9f\x99\x82 \xd7\xa9", "\xe7\xad\x94 \xc3\xa9 \xf0\x9f\x99\x82 \xd7\xa9" },
        { "\xf0\x9f\x99", "\xef\xbf\xbd" },    // ends inside a character
        { "\xe2\x80"
          "x",
          "\xef\xbf\xbd"
          "x" },
        { "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },    // a surrogate
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        for (size_t piece = 1; piece <= 7; piece += 2)
            assert_string_equal(cleaned(cases[i].text, strlen(cases[i].text), piece), cases[i].out);
    assert_string_equal(cleaned("a\0b", 3, 8), "a\\u0000b");
    char line[64];
    FILE *f = fmemopen(line, sizeof line, "w");
    assert_true(f && line_print(f, "%s is %s", "a\nb", "well\n"));    // no text begins a line of its own
    fclose(f);
    assert_string_equal(line, "a\\u000ab is well\\u000a\n");
}

static int told(int *n_told, int v)
{
    (*n_told)++;
    return v;
}

static void the_smaller_and_the_larger_evaluate_each_argument_once(UNUSED void **state)
{
    int n_told = 0;
    int64_t count = 6;
    assert_int_equal(MAX(count, told(&n_told, 7)), 7);
    assert_int_equal(MIN(told(&n_told, 7), count), 6);
    assert_int_equal(MAX(MIN(told(&n_told, 1), 5), told(&n_told, -1)), 1);
    assert_int_equal(n_told, 4);
    /* in the type of both together, as C has it */
    assert_int_equal(MAX((int64_t)1 << 40, 3), (int64_t)1 << 40);
    assert_true(MIN(SIZE_MAX, (size_t)5) == 5 && MAX(SIZE_MAX, 5u) == SIZE_MAX);
    assert_true(MIN(0.25, 1) == 0.25 && MAX(0.25f, 0) == 0.25f && sizeof(MAX(0.25f, 0)) == sizeof(float));
    assert_int_equal(MIN((uint8_t)200, (int8_t)-3), -3);
}

static void only_this_machine_is_loopback(UNUSED void **state)
{
    static const char *const own[] = { "127.0.0.1", "127.0.0.1:80", "127.9.8.7:1", "localhost", "localhost:9001", "[::1]", "[::1]:80" };
    static const char *const others[] = { "",          ":80",           "*:80",     "0.0.0.0:80",        "128.0.0.1:80",    "[::]:80",
                                          "[::1].x:8", "localhost.x:8", "127.x:80", "127.0.0.1.x.com:8", "localhostile:80", "example.com" };
    for (size_t i = 0; i < ARRAY_SIZE(own); i++)
        if (!tcp_is_loopback(own[i]))
            fail_msg("'%s' is taken for another host", own[i]);
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        if (tcp_is_loopback(others[i]))
            fail_msg("'%s' is taken for this host", others[i]);
}

static void only_names_that_cannot_be_another_sites_are_ours(UNUSED void **state)
{
    static const struct {
        const char *host;
        bool ours;
    } cases[] = {
        { NULL, true },    // no browser
        { "127.0.0.1:8000", true },
        { "10.1.2.3", true },
        { "[::1]:8000", true },
        { "[fe80::1]", true },
        { "localhost:8000", true },
        { "head", true },    // of this network: no public site's name has no dot
        { "a.localhost", true },
        { "HEAD.cluster.example:1", true },    // where it listens
        { "llm.example.org", true },
        { "LLM.Example.org.:443", true },
        { "a.proxy.example", true },
        { "a.b.proxy.example", true },
        { "proxy.example", false },
        { "evil.example", false },
        { "evil.example:8000", false },
        { "xllm.example.org", false },
        { "llm.example.org.evil.example", false },
        { "127.0.0.1.evil.example", false },
        { "localhost.evil.example", false },
        { "xlocalhost.x", false },
        { "evilproxy.example", false },
        { "127.0.0.1:8000:evil", false },
        { "127.0.0.1@evil.example", false },
        { "[::1", false },
        { "[evil.example]", false },
        { "[::1]evil.example", false },
        { "evil.example,localhost", false },
        { "a b", false },
        { "", false },
        { ":80", false },
    };
    struct own_hosts o;
    struct error err;
    assert_true(own_hosts_check("llm.example.org, *.proxy.example", "'x'", &err));
    own_hosts_set(&o, "head.cluster.example:8000", "llm.example.org, *.proxy.example");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        if (own_hosts_have(&o, cases[i].host) != cases[i].ours)
            fail_msg("'%s' is %sours", cases[i].host, cases[i].ours ? "not " : "");
    own_hosts_set(&o, "127.0.0.1:8000", "*");
    assert_true(own_hosts_have(&o, "evil.example"));
    static const char *const bad[] = { "a.example:80", "http://a", "*a", "a b*", "*.", "a,*.b/" };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        if (own_hosts_check(bad[i], "'allowed_hosts'", &err))
            fail_msg("'%s' was taken", bad[i]);
}

static void a_port_above_65535_is_not_another_one(UNUSED void **state)
{
    static const char *const wrong[] = { "127.0.0.1:65536", "127.0.0.1:99999", "127.0.0.1:4294967296", "[::1]:18446744073709551617" };
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        struct error err = { 0 };
        assert_int_equal(tcp_listen(wrong[i], &err), -1);
        assert_non_null(strstr(err.text, "the largest is 65535"));
        assert_int_equal(tcp_connect(wrong[i], "a server", 1000, &err), -1);
        assert_non_null(strstr(err.text, "the largest is 65535"));
    }
}

/* ---- names that no server resolves */
static sem_t server_answers;

int __real_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **list);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **list);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **list)
{
    if (!host || strcmp(host, "silent.example") != 0 || (hints->ai_flags & AI_NUMERICHOST))
        return __real_getaddrinfo(host, port, hints, list);
    while (sem_wait(&server_answers) != 0)
        ;
    return EAI_AGAIN;
}

static int threads_count(void)
{
    DIR *d = opendir("/proc/self/task");
    int n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void a_name_server_that_does_not_answer_is_not_waited_for(UNUSED void **state)
{
    struct error err = { 0 };
    char out[64];
    int n_thread = threads_count();
    assert_int_equal(sem_init(&server_answers, 0, 0), 0);
    assert_false(tcp_own_address("silent.example:29506", "the head", 10, out, sizeof out, &err));
    assert_int_equal(err.code, ERR_CLOSED);
    assert_string_equal(err.text, "cannot tell from which address of this host 'silent.example:29506' is reached: the head's host "
                                  "'silent.example' cannot be resolved: no name server has answered in 0.01 s");
    assert_false(tcp_interface("silent.example", 10, out, sizeof out));
    for (int i = 0; i < 2; i++)
        assert_int_equal(sem_post(&server_answers), 0);
    for (int64_t end = clock_ms() + 60000; threads_count() > n_thread;)    // what was given up is freed by those that looked it up
        assert_true(clock_ms() < end);
    assert_true(tcp_own_address("127.0.0.1:29506", "the head", 10, out, sizeof out, &err));
    assert_string_equal(out, "127.0.0.1");
    assert_true(tcp_interface("127.0.0.1", 10, out, sizeof out));
    assert_string_equal(out, "lo");
    assert_false(tcp_own_address("nowhere", "the head", 10, out, sizeof out, &err));
    assert_int_equal(err.code, ERR_USAGE);
    assert_int_equal(sem_destroy(&server_answers), 0);
}

/* Whatever this process blocks and ignores, which a loop does: a program that inherited it would not end by Ctrl-C or 'timeout'. */
static void a_program_that_is_started_takes_all_signals(UNUSED void **state)
{
    static const struct {
        int flags;
        unsigned long long kept;    // of those below, what it ignores: bit N-1 is signal N
    } cases[] = { { 0, 0 }, { CHILD_OURS, 1ull << (SIGPIPE - 1) | 1ull << (SIGXFSZ - 1) } };
    char *argv[] = { "sed", "-n", "s/^Sig\\(Blk\\|Ign\\):.//p", "/proc/self/status", NULL };
    sigset_t all, before;
    struct sigaction ignore = { .sa_handler = SIG_IGN }, was[3];
    static const int ignored[] = { SIGHUP, SIGPIPE, SIGXFSZ };
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    for (size_t i = 0; i < ARRAY_SIZE(ignored); i++)
        sigaction(ignored[i], &ignore, &was[i]);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char said[128] = "";
        unsigned long long blocked, deaf;
        int end[2], status;
        pid_t pid;
        posix_spawn_file_actions_t actions;
        assert_int_equal(pipe2(end, O_CLOEXEC), 0);
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, end[1], 1);
        assert_int_equal(child_spawn(&pid, "sed", &actions, cases[i].flags, argv, NULL), 0);
        posix_spawn_file_actions_destroy(&actions);
        close(end[1]);
        for (ssize_t n, at = 0; (n = read(end[0], said + at, sizeof said - 1 - (size_t)at)) > 0;)
            at += n;
        close(end[0]);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(sscanf(said, "%llx %llx", &blocked, &deaf), 2);
        assert_int_equal(blocked, 0);
        for (size_t k = 0; k < ARRAY_SIZE(ignored); k++)
            assert_int_equal(deaf >> (ignored[k] - 1) & 1, cases[i].kept >> (ignored[k] - 1) & 1);
    }
    for (size_t i = 0; i < ARRAY_SIZE(ignored); i++)
        sigaction(ignored[i], &was[i], NULL);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

/* A container, a Slurm job and a service manager all bound a process so; MemFree leaves out what only caches files. */
static void memory_is_what_the_machine_and_its_control_groups_can_give(UNUSED void **state)
{
    static const char meminfo[] = "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 800 kB\n";
    static const struct {
        const char *cgroup;
        struct {
            const char *path, *text;
        } file[8];
        size_t total, available;
    } cases[] = {
        { "", { { NULL, NULL } }, 1024000, 819200 },
        { "0::/a/b\n", { { "a/b/memory.max", "max\n" }, { "a/b/memory.current", "5\n" } }, 1024000, 819200 },
        { "0::/a/b\n", { { "a/b/memory.max", "600000\n" }, { "a/b/memory.current", "100000\n" } }, 600000, 500000 },
        { "0::/a/b\n",
          { { "a/b/memory.max", "600000\n" },
            { "a/b/memory.current", "500000\n" },
            { "a/b/memory.stat", "anon 1\nfile 450000\ninactive_file 400000\n" } },
          600000,
          500000 },
        { "0::/a/b\n",    // the one above is narrower
          { { "a/b/memory.max", "600000\n" },
            { "a/b/memory.current", "100000\n" },
            { "a/memory.max", "300000\n" },
            { "a/memory.current", "290000\n" } },
          300000,
          10000 },
        { "0::/not/seen\n", { { "memory.max", "700000\n" }, { "memory.current", "700001\n" } }, 700000, 0 },
        { "0::/\n", { { "memory.max", "5000000\n" }, { "memory.current", "1\n" } }, 1024000, 819200 },
        { "5:cpu:/x\n4:hugetlb,memory:/x\n0::/\n",
          { { "memory/x/memory.limit_in_bytes", "400000\n" },
            { "memory/x/memory.usage_in_bytes", "300000\n" },
            { "memory/x/memory.stat", "inactive_file 1\ntotal_inactive_file 50000\n" },
            { "memory/memory.limit_in_bytes", "9223372036854771712\n" },
            { "memory/memory.usage_in_bytes", "1\n" } },
          400000,
          150000 },
        { "0:/\nnonsense\n:::\n", { { "memory.max", "lots\n" }, { "memory.current", "1\n" } }, 1024000, 819200 },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        char root[] = "/tmp/machine_test.XXXXXX", path[400], folder[300], command[100];
        assert_non_null(mkdtemp(root));
        snprintf(folder, sizeof folder, "%s/proc/self", root);
        assert_true(dir_make(folder, 0755, &err));
        snprintf(path, sizeof path, "%s/proc/meminfo", root);
        assert_true(file_write(path, meminfo, strlen(meminfo), &err));
        snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
        assert_true(file_write(path, cases[i].cgroup, strlen(cases[i].cgroup), &err));
        for (size_t k = 0; k < ARRAY_SIZE(cases[i].file) && cases[i].file[k].path; k++) {
            snprintf(folder, sizeof folder, "%s/sys/fs/cgroup/%s", root, cases[i].file[k].path);
            snprintf(path, sizeof path, "%s", folder);
            *strrchr(folder, '/') = 0;
            assert_true(dir_make(folder, 0755, &err));
            assert_true(file_write(path, cases[i].file[k].text, strlen(cases[i].file[k].text), &err));
        }
        struct machine_memory m = machine_memory_in(root);
        if (m.total != cases[i].total || m.available != cases[i].available)
            fail_msg("case %zu: %zu of %zu", i, m.available, m.total);
        snprintf(command, sizeof command, "rm -r %s", root);
        assert_int_equal(system(command), 0);
    }
    struct machine_memory none = machine_memory_in("/nowhere"), here = machine_memory();
    assert_true(none.total == SIZE_MAX && none.available == SIZE_MAX);
    assert_true(here.available > 0 && here.available <= here.total && here.total < SIZE_MAX);
}

static void the_kernel_says_what_a_process_does(UNUSED void **state)
{
    struct proc_stat s;
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_NAME, "a) T 1 (b");    // the name stands in the line, between parentheses
        raise(SIGSTOP);
        _exit(0);
    }
    assert_true(pid > 0 && waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
    assert_true(proc_stat_read(pid, &s));
    assert_true(s.state == 'T' && s.parent == getpid() && s.n_thread == 1 && s.resident_pages > 0);
    kill(pid, SIGKILL);
    assert_true(waitpid(pid, &status, 0) == pid);
    assert_false(proc_stat_read(pid, &s));
    assert_true(s.state == 0 && s.parent == 0);
    assert_false(proc_stat_read(0, &s) || proc_stat_read(-1, &s));
}

static void the_cache_is_where_the_specification_says(UNUSED void **state)
{
    static const struct {
        const char *cache, *home, *want;
    } cases[] = {
        { "/c", "/h", "/c/x/y" },
        { "", "/h", "/h/.cache/x/y" },
        { "relative", "/h", "/h/.cache/x/y" },    // "All paths set in these environment variables must be absolute"
        { "relative", "", NULL },
        { "", "relative", NULL },
    };
    char out[64], was[1024];
    snprintf(was, sizeof was, "%s", getenv("HOME") ? getenv("HOME") : "");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        setenv("XDG_CACHE_HOME", cases[i].cache, 1);
        setenv("HOME", cases[i].home, 1);
        bool ok = cache_path(out, sizeof out, "x/y");
        assert_int_equal(ok, cases[i].want != NULL);
        if (ok)
            assert_string_equal(out, cases[i].want);
    }
    setenv("XDG_CACHE_HOME", "/c", 1);
    assert_false(cache_path(out, 6, "x/y"));
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", was, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_of_0_are_spelt_and_nothing_else_changes),
        cmocka_unit_test(an_error_that_does_not_fit_ends_in_dots),
        cmocka_unit_test(a_path_is_told_without_its_folders),
        cmocka_unit_test(a_buffer_stops_at_its_bound_and_keeps_what_it_had),
        cmocka_unit_test(a_shell_reads_a_word_as_it_was),
        cmocka_unit_test(numbers_are_read_whole_or_not_at_all),
        cmocka_unit_test(options_come_from_the_table_and_wrong_ones_name_the_nearest),
        cmocka_unit_test(only_a_regular_file_is_read_and_a_text_only_in_utf8),
        cmocka_unit_test(a_text_is_cut_between_characters),
        cmocka_unit_test(a_written_file_reads_back_and_a_limit_is_kept),
        cmocka_unit_test(each_round_of_a_loop_runs_once_whatever_the_threads),
        cmocka_unit_test(what_a_terminal_would_obey_is_printed_as_signs),
        cmocka_unit_test(the_smaller_and_the_larger_evaluate_each_argument_once),
        cmocka_unit_test(only_this_machine_is_loopback),
        cmocka_unit_test(only_names_that_cannot_be_another_sites_are_ours),
        cmocka_unit_test(a_port_above_65535_is_not_another_one),
        cmocka_unit_test(a_name_server_that_does_not_answer_is_not_waited_for),
        cmocka_unit_test(no_link_is_followed_to_remove_or_to_create),
        cmocka_unit_test(the_mix_is_splitmix64),
        cmocka_unit_test(a_program_that_is_started_takes_all_signals),
        cmocka_unit_test(the_kernel_says_what_a_process_does),
        cmocka_unit_test(the_cache_is_where_the_specification_says),
        cmocka_unit_test(memory_is_what_the_machine_and_its_control_groups_can_give),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
