/* own_reward_test.c - the user's reward programs: asked over a pipe, killed when late, restarted when gone
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <inttypes.h>
#include <signal.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "tests/unit/folder.h"
#include "workers/engine/reward/reward.h"

/* A reward whose program is this shell script. */
static struct reward *script_reward(const struct folder *f, const char *text, double timeout_s)
{
    char path[128], type[256];
    struct error err = { 0 };
    snprintf(path, sizeof path, "%s/reward.sh", f->path);
    assert_true(file_write(path, text, strlen(text), &err));
    snprintf(type, sizeof type, "program:cd %s && exec sh reward.sh", f->path);
    struct reward *r = reward_new(&(struct reward_config){ .type = type, .program_timeout_s = timeout_s }, &err);
    if (!r)
        fail_msg("%s", err.text);
    return r;
}

static struct reward_output score(struct reward *r, const char *response)
{
    json_t *row = json_pack("{s:s}", "gt_answer", "7");
    struct reward_input in = { .response = response, .response_len = strlen(response), .row = row };
    struct reward_output out;
    reward_score(r, &in, &out, 1);
    json_decref(row);
    return out;
}

#define GET_ID "id=${line#*\\\"id\\\":}; id=${id%%,*}; "

static void an_answer_is_taken_as_it_stands(void **state)
{
    struct reward *r = script_reward(*state,
                                     "while read -r line; do " GET_ID
                                     "case $line in *good*) echo \"{\\\"id\\\":$id,\\\"reward\\\":2.5,\\\"ans_acc\\\":true,"
                                     "\\\"format_acc\\\":1,\\\"rule\\\":\\\"length\\\",\\\"x\\\":[NaN,18446744073709551616,"
                                     "\\\"\\\\u0000\\\\ud800\\\"]}\";; *) printf '%s\\n' "
                                     "\"{\\\"id\\\":$id,\\\"reward\\\":-1}\";; esac; done\n",
                                     60);
    struct reward_output out = score(r, "a good one");
    assert_int_equal(out.score, SCORE_OK);
    assert_true(out.reward == 2.5 && out.ans_acc == 1 && out.format_acc == 1);
    assert_string_equal(out.rule, "length");
    out = score(r, "a bad one");
    assert_true(out.score == SCORE_OK && out.reward == -1 && isnan(out.ans_acc) && isnan(out.format_acc));    // it does not say
    reward_free(r);
}

static void what_a_program_says_without_end_is_bounded_and_its_end_kept(void **state)
{
    const struct folder *f = *state;
    static const int64_t sizes[] = { 0, 100, 1 << 20, (1 << 20) + 8192, 9000000 };    // bytes before the last line
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        char type[512], said[64];
        struct buf text = BUF_INIT;
        struct error err = { 0 };
        FILE *errors = tmpfile();
        snprintf(type, sizeof type,
                 "program:cd %s && while read -r line; do head -c %" PRId64 " /dev/zero | tr '\\0' x >&2; echo the end >&2; "
                 "id=${line#*\\\"id\\\":}; echo \"{\\\"id\\\":${id%%%%,*},\\\"reward\\\":1}\"; done",
                 f->path, sizes[i]);
        struct reward *r = reward_new(&(struct reward_config){ .type = type, .program_timeout_s = 60, .program_errors = fileno(errors) },
                                      &err);
        assert_non_null(r);
        assert_int_equal(score(r, "a").score, SCORE_OK);
        reward_free(r);
        rewind(errors);
        for (size_t n; buf_reserve(&text, 65536) && (n = fread(text.data + text.len, 1, 65536, errors)) > 0;)
            text.len += n;
        fclose(errors);
        int64_t all = sizes[i] + 8, left = all - (1 << 20) - 8192;    // with "the end\n"
        const char *words = strstr(buf_text(&text), "\n[");
        snprintf(said, sizeof said, "\n[%" PRId64 " bytes of the program's", left);
        if ((left > 0) != (words != NULL) || (words && strncmp(words, said, strlen(said)) != 0))
            fail_msg("of %" PRId64 " bytes: '%.80s', not '%s'", all, words ? words : "", left > 0 ? said : "");
        assert_true(left > 0 ? text.len < (1 << 20) + 8192 + 200 : (int64_t)text.len == all);
        assert_memory_equal(text.data + text.len - 8, "the end\n", 8);
        buf_release(&text);
    }
}

static void what_is_not_an_answer_leaves_the_sample_out(void **state)
{
    // clang-format off
    static const struct { const char *script, *rule; enum score_state score;
    } cases[] = {
        {"while read -r line; do echo nonsense; done", "program: time-out after stray lines", SCORE_TIMEOUT},
        {"exec yes", "program: not an answer", SCORE_ERROR},
        {"while read -r line; do echo '{\"id\":99,\"reward\":1}'; done", "program: not an answer", SCORE_ERROR},
        {"while read -r line; do echo '{\"id\":0,\"reward\":1}'; done", "program: not an answer", SCORE_ERROR},
        {"while read -r line; do echo '{\"id\":\"1\",\"reward\":1}'; done", "program: not an answer", SCORE_ERROR},
        {"while read -r line; do echo '{\"reward\":1}'; done", "program: not an answer", SCORE_ERROR},
        {"while read -r line; do " GET_ID "echo \"{\\\"id\\\":$id}\"; done", "program: no reward", SCORE_ERROR},
        {"while read -r line; do " GET_ID "echo \"{\\\"id\\\":$id,\\\"reward\\\":\\\"1\\\"}\"; done",
         "program: no reward", SCORE_ERROR},
        {"while read -r line; do " GET_ID "echo \"{\\\"id\\\":$id,\\\"error\\\":\\\"no data\\\"}\"; done",
         "program: error: no data", SCORE_ERROR},
        {"while read -r line; do " GET_ID "echo \"{\\\"id\\\":$id,\\\"reward\\\":NaN}\"; done", "program: no finite reward", SCORE_ERROR},
        {"while read -r line; do " GET_ID "echo \"{\\\"id\\\":$id,\\\"reward\\\":-Infinity}\"; done",
         "program: no finite reward", SCORE_ERROR},
        {"while read -r line; do " GET_ID "echo \"{\\\"id\\\":$id,\\\"reward\\\":1e999}\"; done", "program: no finite reward", SCORE_ERROR},
        {"exit 3", "program: it ended", SCORE_ERROR},
        {"read -r line; exec sleep 1000", "program: time-out", SCORE_TIMEOUT},
        {"exec yes | tr -d '\\n'", "program: error", SCORE_ERROR}, // a line without end
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct reward *r = script_reward(*state, cases[i].script, cases[i].score == SCORE_TIMEOUT ? 0.2 : 60);
        struct reward_output out = score(r, "x");
        assert_int_equal(out.score, cases[i].score);
        assert_string_equal(out.rule, cases[i].rule);
        reward_free(r);
    }
}

static void a_program_that_ends_is_started_again_and_asked_once_more(void **state)
{
    /* each process answers one request, except the second, which answers none */
    struct reward *r = script_reward(*state,
                                     "echo life >> lives; n=$(wc -l < lives); read -r line; " GET_ID
                                     "[ $n = 2 ] && exit 1; echo \"{\\\"id\\\":$id,\\\"reward\\\":$n}\"\n",
                                     60);
    assert_true(score(r, "x").reward == 1);
    assert_true(score(r, "x").reward == 3);    // the second process ended without an answer: the third was asked the same
    assert_true(score(r, "x").reward == 4);
    reward_free(r);
}

static void a_line_too_many_costs_no_sample_its_score(void **state)
{
    static const struct {
        const char *extra, *why;
    } cases[] = {
        { "echo stray", "a print that was forgotten" },
        { "echo; echo 3; echo '{\"loss\":1}'", "lines that JSON has, too" },
        { "echo \"{\\\"id\\\":$id,\\\"reward\\\":-1}\"", "a second answer to the same id" },
        { "[ $id = 2 ] && echo '{\"id\":77,\"reward\":-1}'", "an answer to an id to come" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char script[600];
        snprintf(script, sizeof script, "while read -r line; do %s echo \"{\\\"id\\\":$id,\\\"reward\\\":$id}\"; %s; done\n", GET_ID,
                 cases[i].extra);
        struct reward *r = script_reward(*state, script, 60);
        for (int k = 1; k <= 5; k++) {
            struct reward_output out = score(r, "x");
            if (out.score != SCORE_OK || out.reward != k)
                fail_msg("%s: sample %d has %g, %s", cases[i].why, k, out.reward, out.rule);
        }
        reward_free(r);
    }
}

/* Is this process gone, or does it wait for somebody to collect it? */
static bool is_gone(int pid)
{
    char path[64];
    struct error err = { 0 };
    struct buf stat = BUF_INIT;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    bool gone = !file_read(&stat, path, 4096, &err) || strstr(buf_text(&stat), ") Z ");
    buf_release(&stat);
    return gone;
}

/* Wait until those whose ids are in the file child are gone; returns how many there were. */
static int children_gone(const struct folder *f)
{
    struct buf b = BUF_INIT;
    struct error err = { 0 };
    char path[128], *rest = NULL;
    int n = 0;
    snprintf(path, sizeof path, "%s/child", f->path);
    assert_true(file_read(&b, path, 1000, &err));
    for (char *line = strtok_r(b.data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest), n++) {
        bool gone = false;
        for (int i = 0; i < 6000 && !(gone = is_gone(atoi(line))); i++)
            usleep(10000);
        if (!gone)
            fail_msg("child %d lives", n);
    }
    buf_release(&b);
    return n;
}

static void a_late_program_is_killed_with_its_children_and_works_again(void **state)
{
    const struct folder *f = *state;
    struct reward *r = script_reward(f,
                                     "read -r line; [ -e late ] || { echo > late; sleep 1000 & echo $! > child; sleep 1000; }\n" GET_ID
                                     "echo \"{\\\"id\\\":$id,\\\"reward\\\":1}\"; read -r line\n",
                                     2);
    assert_string_equal(score(r, "x").rule, "program: time-out");
    assert_int_equal(children_gone(f), 1);
    assert_true(score(r, "x").reward == 1);
    reward_free(r);
}

/* In its group, in a session of their own, without its environment, and as orphans. */
#define LEAVE_CHILDREN                                                                                                                     \
    "child='echo $$ >> child; exec sleep 1000'\n"                                                                                          \
    "sh -c \"$child\" & setsid sh -c \"$child\" & env -i PATH=\"$PATH\" setsid sh -c \"$child\" &\n"                                       \
    "sh -c \"sh -c '$child' & setsid sh -c '$child' &\"\n"                                                                                 \
    "while [ \"$(wc -l < child)\" -lt 5 ]; do sleep 0.01; done 2> /dev/null\n"

static void nothing_that_a_program_has_started_outlives_it(void **state)
{
    const struct folder *f = *state;
    static const struct {
        const char *rest, *why;
        bool killed;
    } cases[] = {
        { "while read -r line; do " GET_ID "echo \"{\\\"id\\\":$id,\\\"reward\\\":1}\"; done\n", "it ends when it is asked to", false },
        { "trap '' TERM; exec 2> /dev/null; read -r line; " GET_ID "echo \"{\\\"id\\\":$id,\\\"reward\\\":1}\"; sleep 1000",
          "it must be killed", false },
        { "while read -r line; do " GET_ID "echo \"{\\\"id\\\":$id,\\\"reward\\\":1}\"; done\n", "the process that asks it is killed",
          true },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char script[2000], path[128];
        print_message("%s\n", cases[i].why);
        snprintf(path, sizeof path, "%s/child", f->path);
        unlink(path);
        snprintf(script, sizeof script, "%s%s", LEAVE_CHILDREN, cases[i].rest);
        pid_t pid = cases[i].killed ? fork() : 0;
        if (pid == 0) {
            struct reward *r = script_reward(f, script, 60);
            assert_true(score(r, "x").reward == 1);
            if (cases[i].killed)
                raise(SIGKILL);
            reward_free(r);
        } else {
            int status = 0;
            assert_int_equal(waitpid(pid, &status, 0), pid);
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);    // its own assertion held
        }
        assert_int_equal(children_gone(f), 5);
    }
}

static void parts_are_weighed_and_named(void **state)
{
    const struct folder *f = *state;
    char type[256];
    struct error err = { 0 };
    struct reward *own = script_reward(f, "while read -r line; do " GET_ID "echo \"{\\\"id\\\":$id,\\\"reward\\\":4}\"; done\n", 60);
    reward_free(own);
    snprintf(type, sizeof type, "0.5*boxed + 0.25*program:cd %s && sh reward.sh", f->path);
    struct reward *r = reward_new(&(struct reward_config){ .type = type, .program_timeout_s = 60 }, &err);
    assert_non_null(r);
    assert_int_equal(reward_n_part(r), 2);
    assert_string_equal(reward_part_name(r, 0), "boxed");
    struct reward_output out = score(r, "so \\boxed{7}");
    assert_int_equal(out.score, SCORE_OK);
    assert_true(out.part[0] == 10 && out.part[1] == 4 && out.reward == 6);
    assert_true(out.ans_acc == 1);    // of the part that knows what an answer is
    reward_free(r);
    reward_free(script_reward(f, "exit 1", 60));
    r = reward_new(&(struct reward_config){ .type = type, .program_timeout_s = 60 }, &err);
    assert_non_null(r);
    assert_int_equal(score(r, "so \\boxed{7}").score, SCORE_ERROR);    // one part's failure is the whole's
    reward_free(r);
}

/* Score n responses as one group. */
static void scores(struct reward *r, const char *const *response, struct reward_output *out, int64_t n)
{
    struct reward_input in[8];
    json_t *row = json_pack("{s:s}", "gt_answer", "7");
    assert_true(n <= 8);
    for (int64_t i = 0; i < n; i++)
        in[i] = (struct reward_input){ .response = response[i], .response_len = strlen(response[i]), .row = row };
    reward_score(r, in, out, n);
    json_decref(row);
}

/* A program that asks for groups, writes each question to the file asked, and answers one about a group by the shell
 * command answer. */
static struct reward *group_reward(const struct folder *f, const char *answer, double timeout_s)
{
    char script[1000];
    snprintf(script, sizeof script,
             "while read -r line; do %secho \"$line\" >> asked; case $line in *'\"responses\":['*) %s;; "
             "*) echo \"{\\\"id\\\":$id,\\\"scope\\\":\\\"group\\\"}\";; esac; done\n",
             GET_ID, answer);
    return script_reward(f, script, timeout_s);
}

static void a_program_that_asks_for_groups_gets_all_responses_at_once(void **state)
{
    const struct folder *f = *state;
    static const char *const text[] = { "a", "b \"", "c" };
    struct reward *r = group_reward(f,
                                    "echo \"{\\\"id\\\":$id,\\\"rewards\\\":[0.5,{\\\"reward\\\":2,\\\"ans_acc\\\":1,"
                                    "\\\"rule\\\":\\\"best\\\"},{\\\"error\\\":\\\"unsure\\\"}]}\"",
                                    60);
    struct reward_output out[3];
    assert_true(reward_wants_groups(r));    // it may
    for (int k = 0; k < 2; k++) {
        scores(r, text, out, 3);
        assert_true(out[0].score == SCORE_OK && out[0].reward == 0.5 && isnan(out[0].ans_acc));
        assert_true(out[1].score == SCORE_OK && out[1].reward == 2 && out[1].ans_acc == 1);
        assert_string_equal(out[1].rule, "best");
        assert_int_equal(out[2].score, SCORE_ERROR);
        assert_string_equal(out[2].rule, "program: error: unsure");
    }
    assert_true(reward_wants_groups(r));
    reward_free(r);
    struct buf b = BUF_INIT;
    struct error err = { 0 };
    char path[128];
    snprintf(path, sizeof path, "%s/asked", f->path);
    assert_true(file_read(&b, path, 10000, &err));
    assert_string_equal(buf_text(&b), "{\"id\":1,\"response\":\"a\",\"row\":{\"gt_answer\":\"7\"}}\n"
                                      "{\"id\":2,\"responses\":[{\"response\":\"a\"},{\"response\":\"b \\\"\"},{\"response\":\"c\"}],"
                                      "\"row\":{\"gt_answer\":\"7\"}}\n"
                                      "{\"id\":3,\"responses\":[{\"response\":\"a\"},{\"response\":\"b \\\"\"},{\"response\":\"c\"}],"
                                      "\"row\":{\"gt_answer\":\"7\"}}\n");
    buf_release(&b);
}

static void an_answer_that_does_not_fit_the_group_leaves_it_out(void **state)
{
    static const char *const text[] = { "a", "b" };
    // clang-format off
    static const struct { const char *answer, *rule; enum score_state score;
    } cases[] = {
        {"echo \"{\\\"id\\\":$id,\\\"rewards\\\":[1,2,3]}\"", "program: 3 rewards for 2 responses", SCORE_ERROR},
        {"echo \"{\\\"id\\\":$id,\\\"rewards\\\":[]}\"", "program: 0 rewards for 2 responses", SCORE_ERROR},
        {"echo \"{\\\"id\\\":$id,\\\"reward\\\":1}\"", "program: no rewards", SCORE_ERROR},
        {"echo \"{\\\"id\\\":$id,\\\"rewards\\\":[null,\\\"1\\\"]}\"", "program: no reward", SCORE_ERROR},
        {"echo \"{\\\"id\\\":$id,\\\"rewards\\\":[NaN,Infinity]}\"", "program: no finite reward", SCORE_ERROR},
        {"echo \"{\\\"id\\\":$id,\\\"error\\\":\\\"no data\\\"}\"", "program: error: no data", SCORE_ERROR},
        {"echo '{\"rewards\":[1,2]}'", "program: not an answer", SCORE_ERROR},
        {"exit 0", "program: it ended", SCORE_ERROR},
        {"sleep 1000", "program: time-out", SCORE_TIMEOUT},
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct reward_output out[2];
        struct reward *r = group_reward(*state, cases[i].answer, cases[i].score == SCORE_TIMEOUT ? 0.5 : 60);
        scores(r, text, out, 2);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(out[k].score, cases[i].score);
            assert_string_equal(out[k].rule, cases[i].rule);
        }
        reward_free(r);
    }
}

static void a_restarted_program_is_asked_about_groups_at_once(void **state)
{
    static const char *const text[] = { "a", "b" };
    struct reward_output out[2];
    /* each process answers one question about a group and ends */
    struct reward *r = group_reward(*state, "echo \"{\\\"id\\\":$id,\\\"rewards\\\":[$id,1]}\"; exit 0", 60);
    for (int k = 0; k < 3; k++) {
        scores(r, text, out, 2);
        assert_true(out[0].score == SCORE_OK && out[0].reward == k + 2 && out[1].reward == 1);
    }
    reward_free(r);
}

static void what_the_environment_gave_is_part_of_the_question(void **state)
{
    const struct folder *f = *state;
    struct reward *r = group_reward(f, "echo \"{\\\"id\\\":$id,\\\"rewards\\\":[1,2]}\"", 60);
    struct reward_input in[2] = {
        { .response = "a", .response_len = 1, .has_environment = true, .environment_reward = 4.5, .environment_acc = 1 },
        { .response = "b", .response_len = 1, .has_environment = true },
    };
    struct reward_output out[2];
    reward_score(r, in, out, 2);
    assert_true(out[0].reward == 1 && out[1].reward == 2);
    reward_free(r);
    struct buf b = BUF_INIT;
    struct error err = { 0 };
    char path[128];
    snprintf(path, sizeof path, "%s/asked", f->path);
    assert_true(file_read(&b, path, 10000, &err));
    assert_non_null(strstr(buf_text(&b), "\"responses\":[{\"response\":\"a\",\"environment\":{\"reward\":4.5,\"ans_acc\":1}},"
                                         "{\"response\":\"b\",\"environment\":{\"reward\":0,\"ans_acc\":0}}]"));
    buf_release(&b);
}

static void responses_of_other_prompts_are_asked_about_apart(void **state)
{
    struct reward *r = group_reward(
        *state,
        "n=$(echo \"$line\" | grep -o '\"response\":' | wc -l); echo \"{\\\"id\\\":$id,\\\"rewards\\\":[$n$([ $n = 2 ] && echo ,0)]}\"",
        60);
    struct reward_input in[3] = { { .response = "a", .response_len = 1, .group = 4 },
                                  { .response = "b", .response_len = 1, .group = 4 },
                                  { .response = "c", .response_len = 1, .group = 5 } };
    struct reward_output out[3];
    reward_score(r, in, out, 3);
    assert_true(out[0].reward == 2 && out[1].reward == 0 && out[2].reward == 1);
    assert_true(out[0].score == SCORE_OK && out[2].score == SCORE_OK);
    reward_free(r);
}

static void a_program_needs_a_command(UNUSED void **state)
{
    struct error err = { 0 };
    assert_null(reward_new(&(struct reward_config){ .type = "program:" }, &err));
    assert_int_equal(err.code, ERR_USAGE);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);    // like console/main.c
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_answer_is_taken_as_it_stands, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(what_a_program_says_without_end_is_bounded_and_its_end_kept, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(what_is_not_an_answer_leaves_the_sample_out, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(a_program_that_ends_is_started_again_and_asked_once_more, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(a_line_too_many_costs_no_sample_its_score, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(a_late_program_is_killed_with_its_children_and_works_again, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(nothing_that_a_program_has_started_outlives_it, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(parts_are_weighed_and_named, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(a_program_that_asks_for_groups_gets_all_responses_at_once, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(an_answer_that_does_not_fit_the_group_leaves_it_out, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(a_restarted_program_is_asked_about_groups_at_once, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(what_the_environment_gave_is_part_of_the_question, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(responses_of_other_prompts_are_asked_about_apart, folder_make, folder_remove),
        cmocka_unit_test(a_program_needs_a_command),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
