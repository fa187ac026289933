/* scorer_test.c - the scorer's queue, and the scorer as a process asked over its socket
 * tags: tsan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/base/subcommand.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/wire/transport.h"
#include "workers/engine/reward/queue.h"

SUBCOMMAND_DECLARE(scorer)

static void on_wake(void *ctx)
{
    __atomic_add_fetch((int *)ctx, 1, __ATOMIC_RELAXED);
}

static struct score_job *boxed_job(int n, int n_right)
{
    struct score_job *job = job_new(n, (size_t)n * 16);
    assert_non_null(job);
    job->row = json_pack("{s:s}", "gt_answer", "7");
    for (int i = 0; i < n; i++) {
        char *text = job->text + 16 * i;
        job->in[i] = (struct reward_input){ .response = text, .row = job->row };
        job->in[i].response_len = (size_t)sprintf(text, "\\boxed{%d}", i < n_right ? 7 : 8);
    }
    return job;
}

static struct score_job *done_wait(struct score_queue *q)
{
    int64_t end = clock_ms() + 60000;
    struct score_job *job;
    while (!(job = queue_done(q)) && clock_ms() < end)
        usleep(1000);
    assert_non_null(job);
    return job;
}

static void every_job_comes_back_once_and_complete(UNUSED void **state)
{
    struct error err = { 0 };
    int n_wake = 0;
    struct reward_config config = { .type = "boxed" };
    struct score_queue *q = queue_new(&config, 3, 1000, on_wake, &n_wake, &err);
    assert_non_null(q);
    for (int i = 0; i < 20; i++) {
        struct score_job *job = boxed_job(7, i % 8);
        job->ctx = &config;
        assert_true(queue_put(q, job, &err));
    }
    struct score_job *none = job_new(0, 0);
    assert_true(queue_put(q, none, &err));    // nothing to score is an answer, too
    int n_right = 0, n_empty = 0;
    for (int i = 0; i < 21; i++) {
        struct score_job *job = done_wait(q);
        n_empty += job->n == 0;
        for (int64_t k = 0; k < job->n; k++) {
            assert_int_equal(job->out[k].score, SCORE_OK);
            n_right += job->out[k].ans_acc > 0;
        }
        job_free(job);
    }
    assert_null(queue_done(q));
    assert_int_equal(n_empty, 1);
    assert_int_equal(n_right, 2 * 28 + 6);    // i % 8 right ones of 7: twice 0..7, once 0..3
    struct score_stats stats;
    queue_stats(q, &stats);
    assert_int_equal(stats.depth, 0);
    assert_int_equal(stats.n_scored, 140);
    assert_int_equal(stats.n_left_out, 0);
    assert_true(queue_free(q, 60000));
    assert_true(n_wake >= 20);
}

static void a_full_queue_refuses_and_keeps_nothing(UNUSED void **state)
{
    struct error err = { 0 };
    int n_wake = 0;
    struct reward_config config = { .type = "boxed" };
    struct score_queue *q = queue_new(&config, 1, 5, on_wake, &n_wake, &err);
    struct score_job *job = boxed_job(6, 1);
    assert_false(queue_put(q, job, &err));
    assert_int_equal(err.code, ERR_FULL);
    job_free(job);
    struct score_stats stats;
    queue_stats(q, &stats);
    assert_int_equal(stats.n_refused, 1);
    assert_true(queue_free(q, 60000));
}

static void responses_that_are_compared_stay_together(UNUSED void **state)
{
    char type[512];
    struct error err = { 0 };
    int n_wake = 0;
    /* the reward of each is how many it was compared with */
    snprintf(type, sizeof type,
             "program:while read -r line; do id=${line#*\\\"id\\\":}; id=${id%%%%,*}; case $line in *'\"responses\":['*) "
             "n=$(printf %%s \"$line\" | grep -o '\"response\":' | wc -l); "
             "echo \"{\\\"id\\\":$id,\\\"rewards\\\":[$n$(yes ,$n | head -n $((n-1)) | tr -d '\\n')]}\";; "
             "*) echo \"{\\\"id\\\":$id,\\\"scope\\\":\\\"group\\\"}\";; esac; done");
    struct reward_config config = { .type = type, .program_timeout_s = 60 };
    struct score_queue *q = queue_new(&config, 3, 1000, on_wake, &n_wake, &err);
    assert_non_null(q);
    for (int i = 0; i < 6; i++)
        assert_true(queue_put(q, boxed_job(7, 0), &err));
    for (int i = 0; i < 6; i++) {
        struct score_job *job = done_wait(q);
        for (int64_t k = 0; k < job->n; k++) {
            assert_string_equal(job->out[k].rule, "program");
            assert_true(job->out[k].reward == 7);
        }
        job_free(job);
    }
    assert_true(queue_free(q, 60000));
}

static void a_reward_that_cannot_be_set_up_is_reported(UNUSED void **state)
{
    struct error err = { 0 };
    int n_wake = 0;
    struct reward_config config = { .type = "boxd" };
    struct score_queue *q = queue_new(&config, 2, 5, on_wake, &n_wake, &err);
    int64_t end = clock_ms() + 60000;
    while (!queue_has_failed(q, &err) && clock_ms() < end)
        usleep(1000);
    assert_int_equal(err.code, ERR_USAGE);
    assert_non_null(strstr(err.text, "boxed"));
    assert_true(queue_free(q, 60000));
}

/* The agent's side: answer heartbeats, so that the scorer lives, until the answer to tag comes. */
static bool answer_wait(struct transport *t, uint64_t tag, struct net_event *ev)
{
    int64_t end = clock_ms() + 60000;
    while (clock_ms() < end) {
        if (!transport_wait(t, ev, 100))
            continue;
        if (ev->kind == NET_ANSWER && ev->tag == tag)
            return true;
        if (ev->kind == NET_REQUEST) {
            struct error err;
            struct msg_out m = MSG_OUT_INIT;
            msg_begin(&m, MSG_OK);
            msg_str(&m, "order", "go");
            assert_true(msg_finish(&m, &err));
            request_answer(ev->request, &m);
            msg_release(&m);
        }
        net_event_release(ev);
    }
    return false;
}

static void the_process_answers_over_its_socket(UNUSED void **state)
{
    char dir[] = "/tmp/scorer_test_XXXXXX", path[256];
    struct error err = { 0 };
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/run.yaml", dir);
    static const char yaml[] = "reward_type: '0.5*boxed + 0.5*math'\nmax_new_tokens: 10\n"
                               "soft_over_length_punishment: true\nscorer_threads: 2\n";
    assert_true(file_write(path, yaml, sizeof yaml - 1, &err));
    snprintf(path, sizeof path, "%s/sock", dir);
    assert_true(dir_make(path, 0700, &err));
    pid_t pid = fork();    // before nng has started any thread
    if (pid == 0) {
        char *argv[] = { "scorer", "--run", dir, "--name", "scorer", NULL };
        bool ok = scorer_subcommand.run(5, argv, &err);
        if (!ok)
            fprintf(stderr, "%s\n", err.text);
        _exit(ok ? 0 : 1);
    }
    struct transport *t = transport_new(path, true, &err);
    assert_non_null(t);
    struct server *agent = server_new(t, "agent", 4, &err);
    assert_non_null(agent);
    struct peer *scorer = peer_new(t, "scorer", &err);
    assert_non_null(scorer);
    static const struct {
        const char *text;
        int64_t n_tok, finish;
        bool right;
        double reward;
    } samples[] = {
        { "so \\boxed{12}", 5, 0, true, 10 },
        { "so \\boxed{13}", 5, 0, false, 0 },
        { "so \\boxed{12}", 10, 1, true, 0 },
        { "so \\boxed{12}", 18, 0, true, 4 },    // DAPO eq. 13 at the request's M = 20, L_cache = 5: -0.6 x 10
    };
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_SCORE);
    msg_str(&m, "row", "{\"gt_answer\":\"12\"}");
    msg_i64(&m, "max_new_tokens", 20);    // changed since the scorer began
    msg_list(&m, "samples");
    for (size_t i = 0; i < ARRAY_SIZE(samples); i++) {
        msg_map(&m, NULL);
        msg_str(&m, "text", samples[i].text);
        msg_i64(&m, "n_tok", samples[i].n_tok);
        msg_i64(&m, "finish", samples[i].finish);
        msg_end(&m);
    }
    msg_end(&m);
    assert_true(msg_finish(&m, &err));
    struct net_event ev;
    struct msg_in in;
    assert_true(peer_ask(scorer, &m, 60000, 1, &err));
    assert_true(answer_wait(t, 1, &ev));
    assert_false(ev.failed);
    assert_true(msg_read_answer(&in, MSG_SCORE, ev.data, ev.len, &err));
    const struct mval *results = mval_get(in.root, "results");
    assert_int_equal(mval_n(results), ARRAY_SIZE(samples));
    for (size_t i = 0; i < ARRAY_SIZE(samples); i++) {
        const struct mval *r = mval_at(results, (int64_t)i);
        assert_int_equal(mval_i64(mval_get(r, "score"), -1), SCORE_OK);
        assert_int_equal(mval_f64(mval_get(r, "ans_acc"), -1), samples[i].right);
        assert_true(mval_f64(mval_get(r, "reward"), -1) == samples[i].reward);
        assert_int_equal(mval_n(mval_get(r, "parts")), 2);
    }
    msg_in_release(&in);
    net_event_release(&ev);
    msg_begin(&m, MSG_SCORE);    // a row that is not JSON is refused with its reason
    msg_str(&m, "row", "{");
    msg_list(&m, "samples");
    msg_end(&m);
    assert_true(msg_finish(&m, &err));
    assert_true(peer_ask(scorer, &m, 60000, 2, &err));
    assert_true(answer_wait(t, 2, &ev));
    assert_false(msg_read_answer(&in, MSG_SCORE, ev.data, ev.len, &err));
    assert_non_null(strstr(err.text, "'row' is not a JSON object"));
    net_event_release(&ev);
    msg_release(&m);
    kill(pid, SIGTERM);
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    transport_free(t);
    assert_true(dir_remove(dir, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_process_answers_over_its_socket),    // first: it forks
        cmocka_unit_test(every_job_comes_back_once_and_complete),    cmocka_unit_test(a_full_queue_refuses_and_keeps_nothing),
        cmocka_unit_test(responses_that_are_compared_stay_together), cmocka_unit_test(a_reward_that_cannot_be_set_up_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
