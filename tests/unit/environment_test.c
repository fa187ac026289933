/* environment_test.c - an environment's episodes: played turn by turn, and again from the reset when the program has gone
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/buf.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "tests/unit/folder.h"
#include "workers/engine/reward/environment_pool.h"

/* A program that keeps what it was told since the reset and says it back. Each question is noted in the file asked as its op and
 * text; `more` is run before a step is answered, and may use $text and $id. */
static void script_write(const struct folder *f, const char *more, char *command, size_t size)
{
    char path[128], text[1500];
    struct error err = { 0 };
    snprintf(path, sizeof path, "%s/play.sh", f->path);
    snprintf(text, sizeof text,
             "while read -r line; do\n"
             "  id=${line#*\\\"id\\\":}; id=${id%%%%,*}; text=${line#*\\\"text\\\":\\\"}; text=${text%%%%\\\"*}\n"
             "  case $line in\n"
             "  *'\"op\":\"reset\"'*) said=; echo reset >> asked; echo \"{\\\"id\\\":$id,\\\"observation\\\":\\\"go\\\"}\" ;;\n"
             "  *'\"op\":\"end\"'*) echo \"end $line\" >> asked; echo \"{\\\"id\\\":$id}\" ;;\n"
             "  *) said=$said$text; echo \"step $text\" >> asked; %s\n"
             "     echo \"{\\\"id\\\":$id,\\\"observation\\\":\\\"$said\\\",\\\"reward\\\":0.5}\" ;;\n"
             "  esac\n"
             "done\n",
             more);
    assert_true(file_write(path, text, strlen(text), &err));
    snprintf(command, size, "cd %s && exec sh play.sh", f->path);
}

static struct environment *script_environment(const struct folder *f, const char *more, double timeout_s)
{
    char command[256];
    struct error err = { 0 };
    script_write(f, more, command, sizeof command);
    struct environment *e = environment_new(command, timeout_s, 0, &err);
    if (!e)
        fail_msg("%s", err.text);
    return e;
}

static struct turn turn_of(int64_t item, const char *const *text, int64_t n_text)
{
    return (struct turn){ .item = item, .sample = 2, .seed = 11, .row = "{\"most\":15}", .n_text = n_text, .text = text };
}

/* What the environment says to this conversation. */
static void expect(struct environment *e, int64_t item, const char *const *text, int64_t n_text, const char *said)
{
    struct turn t = turn_of(item, text, n_text);
    struct turn_answer a;
    char want[64];
    environment_turn(e, &t, &a);
    if (a.state != SCORE_OK)
        fail_msg("%s", a.reason);
    snprintf(want, sizeof want, "\"observation\":\"%s\"", said);
    if (!strstr(a.json, want))
        fail_msg("%s instead of %s", a.json, said);
    free(a.json);
}

static void expect_asked(const struct folder *f, const char *want)
{
    char path[128];
    struct buf b = BUF_INIT;
    struct error err = { 0 };
    snprintf(path, sizeof path, "%s/asked", f->path);
    assert_true(file_read(&b, path, 1 << 20, &err));
    assert_string_equal(buf_text(&b), want);
    buf_release(&b);
    unlink(path);
}

static const char *const abc[] = { "a", "b", "c" }, *const abx[] = { "a", "x" };

static void turns_are_played_once_each(void **state)
{
    struct environment *e = script_environment(*state, ":", 60);
    expect(e, 7, NULL, 0, "go");
    expect(e, 7, abc, 1, "a");
    expect(e, 7, abc, 2, "ab");
    expect(e, 7, abc, 2, "ab");    // asked again, as after an answer that was lost
    expect(e, 7, abc, 3, "abc");
    expect_asked(*state, "reset\nstep a\nstep b\nstep c\n");
    environment_free(e);
}

static void another_conversation_begins_with_a_reset(void **state)
{
    struct environment *e = script_environment(*state, ":", 60);
    expect(e, 7, abc, 2, "ab");    // never begun here
    expect_asked(*state, "reset\nstep a\nstep b\n");
    expect(e, 7, abx, 2, "ax");
    expect_asked(*state, "reset\nstep a\nstep x\n");
    expect(e, 7, abx, 0, "go");    // sampled again
    expect_asked(*state, "reset\n");
    environment_free(e);
}

static void a_program_that_died_plays_the_episode_again(void **state)
{
    struct environment *e = script_environment(*state, "[ $text != b ] || [ -e died ] || { echo > died; kill -9 $$; };", 60);
    expect(e, 7, NULL, 0, "go");
    expect(e, 7, abc, 1, "a");
    expect(e, 7, abc, 2, "ab");
    expect_asked(*state, "reset\nstep a\nstep b\nreset\nstep a\nstep b\n");
    environment_free(e);
}

static void what_is_not_an_answer_leaves_the_sample_out(void **state)
{
    // clang-format off
    static const struct { const char *more, *reason; enum score_state state;
    } cases[] = {
        {"sleep 1000;", "environment: time-out", SCORE_TIMEOUT},
        {"exit 1;", "environment: it ended", SCORE_ERROR},
        {"echo \"{\\\"id\\\":$id,\\\"error\\\":\\\"no such tool\\\"}\"; continue;", "environment: no such tool", SCORE_ERROR},
        {"echo '{\"observation\":\"x\"}';", "environment: not an answer", SCORE_ERROR},
        {"echo \"{\\\"id\\\":$id,\\\"reward\\\":NaN}\"; continue;", "environment: no finite reward", SCORE_ERROR},
        {"echo \"{\\\"id\\\":$id,\\\"reward\\\":-1e400}\"; continue;", "environment: no finite reward", SCORE_ERROR},
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct environment *e = script_environment(*state, cases[i].more, cases[i].state == SCORE_TIMEOUT ? 0.5 : 60);
        struct turn t = turn_of(7, abc, 1);
        struct turn_answer a;
        environment_turn(e, &t, &a);
        assert_int_equal(a.state, cases[i].state);
        assert_string_equal(a.reason, cases[i].reason);
        assert_null(a.json);
        expect(e, 8, NULL, 0, "go");    // others can be played
        environment_free(e);
    }
}

static void a_turns_tool_calls_are_found(void **state)
{
    const struct folder *f = *state;
    static const char *const text[] = { "let me see <tool_call>{\"name\":\"sum\",\"arguments\":{\"a\":1}}</tool_call>" };
    char command[256], path[128];
    struct error err = { 0 };
    snprintf(command, sizeof command,
             "cd %s; while read -r line; do echo \"$line\" >> line; id=${line#*\\\"id\\\":}; echo \"{\\\"id\\\":${id%%%%,*}}\"; done",
             f->path);
    struct environment *e = environment_new(command, 60, 0, &err);
    struct turn t = turn_of(7, text, 1);
    struct turn_answer a;
    assert_non_null(e);
    environment_turn(e, &t, &a);
    assert_int_equal(a.state, SCORE_OK);
    free(a.json);
    environment_free(e);
    struct buf b = BUF_INIT;
    snprintf(path, sizeof path, "%s/line", f->path);
    assert_true(file_read(&b, path, 10000, &err));
    assert_string_equal(buf_text(&b),
                        "{\"id\":1,\"op\":\"reset\",\"episode\":\"7.2\",\"item\":7,\"sample\":2,\"seed\":11,\"row\":{\"most\":15}}\n"
                        "{\"id\":2,\"op\":\"step\",\"episode\":\"7.2\",\"text\":\"let me see "
                        "<tool_call>{\\\"name\\\":\\\"sum\\\",\\\"arguments\\\":{\\\"a\\\":1}}</tool_call>\","
                        "\"content\":\"let me see\",\"tool_calls\":[{\"name\":\"sum\",\"arguments\":{\"a\":1}}]}\n");
    buf_release(&b);
}

static void the_longest_unused_episode_is_ended_for_a_new_one(void **state)
{
    struct environment *e = script_environment(*state, ":", 60);
    for (int64_t item = 0; item < 1024; item++)
        expect(e, item, NULL, 0, "go");
    expect(e, 0, NULL, 0, "go");    // used again: item 1 is the one that goes
    char path[128];
    snprintf(path, sizeof path, "%s/asked", ((struct folder *)*state)->path);
    unlink(path);
    expect(e, 5000, NULL, 0, "go");
    expect_asked(*state, "end {\"id\":1026,\"op\":\"end\",\"episode\":\"1.2\"}\nreset\n");
    environment_free(e);
}

static void on_wake(void *ctx)
{
    __atomic_add_fetch((int *)ctx, 1, __ATOMIC_RELAXED);
}

static void every_turn_comes_back_from_the_copy_that_has_its_episode(void **state)
{
    char command[256];
    struct error err = { 0 };
    int n_wake = 0;
    script_write(*state, ":", command, sizeof command);
    struct environment_pool *p = environment_pool_new(command, 60, 3, on_wake, &n_wake, &err);
    assert_non_null(p);
    for (int64_t round = 0; round <= 2; round++) {
        for (int64_t item = 0; item < 20; item++) {
            struct turn_job *job = turn_job_new(round);
            assert_non_null(job);
            job->row = strdup("{}");
            for (int64_t k = 0; k < round; k++)
                job->text[k] = strdup(abc[k]);
            job->turn = turn_of(item, (const char *const *)job->text, round);
            job->turn.row = job->row;
            assert_true(environment_pool_put(p, job, &err));
        }
        int64_t end = clock_ms() + 60000, seen = 0;
        for (int n = 0; n < 20 && clock_ms() < end;) {
            struct turn_job *job = environment_pool_done(p);
            if (!job) {
                usleep(1000);
                continue;
            }
            assert_int_equal(job->answer.state, SCORE_OK);
            seen |= (int64_t)1 << job->turn.item;
            turn_job_free(job);
            n++;
        }
        assert_int_equal(seen, (1 << 20) - 1);
    }
    struct environment_stats stats;
    environment_pool_stats(p, &stats);
    assert_int_equal(stats.n_turn, 60);
    assert_int_equal(stats.waiting, 0);
    assert_int_equal(stats.n_error, 0);
    assert_true(environment_pool_free(p, 60000));
    char path[128];
    struct buf b = BUF_INIT;
    snprintf(path, sizeof path, "%s/asked", ((struct folder *)*state)->path);
    assert_true(file_read(&b, path, 10000, &err));
    int n_line = 0;
    for (const char *c = buf_text(&b); *c; c++)
        n_line += *c == '\n';
    assert_int_equal(n_line, 60);    // nothing was played twice
    buf_release(&b);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);    // like console/main.c
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(turns_are_played_once_each, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(another_conversation_begins_with_a_reset, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(a_program_that_died_plays_the_episode_again, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(what_is_not_an_answer_leaves_the_sample_out, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(a_turns_tool_calls_are_found, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(the_longest_unused_episode_is_ended_for_a_new_one, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(every_turn_comes_back_from_the_copy_that_has_its_episode, folder_make, folder_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
