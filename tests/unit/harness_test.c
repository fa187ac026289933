/* harness_test.c - a session's end: which reward counts when a sample has two sessions, and what is refused
 *
 * The test is the worker: it takes the harness's answers, and makes up the replies. The programs note what they got in a file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/buf.h"
#include "protocol/base/clock.h"
#include "protocol/base/json_text.h"
#include "tests/unit/folder.h"
#include "workers/harness/harness.h"

#define LIMIT_MS 60000

/* What every program begins with. */
static const char begin[] = "import http.client, json, os, sys, threading\n"
                            "sys.stdin.readline()\n"
                            "head = {'Authorization': 'Bearer ' + os.environ['OPENAI_API_KEY']}\n"
                            "def post(path, body):\n"
                            "    door = http.client.HTTPConnection(os.environ['OPENAI_BASE_URL'].split('/')[2])\n"
                            "    door.request('POST', path, json.dumps(body), head)\n"
                            "    a = door.getresponse()\n"
                            "    a.read()\n"
                            "    return a.status\n"
                            "def note(status):\n"
                            "    with open(sys.argv[1], 'a') as f:\n"
                            "        f.write(f'{status}\\n')\n";

/* Asks once and posts its process number as the reward, so no two programs give the same. */
static const char asks_once[] = "assert post('/v1/completions', {'prompt': 'go'}) == 200\n"
                                "note(post('/v1/reward', {'reward': os.getpid()}))\n";

struct bench {
    struct harness *harness;
    sem_t woken;
    char dir[128], command[400], notes[128];
};

static void woken(void *ctx)
{
    sem_post(ctx);
}

static void bench_open(struct bench *b, const struct folder *f, const char *program)
{
    char path[128], text[2048];
    struct error err = { 0 };
    snprintf(path, sizeof path, "%s/play.py", f->path);
    snprintf(text, sizeof text, "%s%s", begin, program);
    snprintf(b->notes, sizeof b->notes, "%s/notes", f->path);
    snprintf(b->dir, sizeof b->dir, "%s/harness", f->path);
    snprintf(b->command, sizeof b->command, "exec python3 -IS %s %s", path, b->notes);
    assert_true(file_write(path, text, strlen(text), &err));
    assert_int_equal(sem_init(&b->woken, 0, 0), 0);
    struct harness_config c = { .command = b->command,
                                .model = "m",
                                .dir = b->dir,
                                .max_sessions = 4,
                                .timeout_s = 60,
                                .max_turns = 8,
                                .wants_reward = true,
                                .wake = woken,
                                .ctx = &b->woken };
    if (!(b->harness = harness_new(&c, &err)))
        fail_msg("%s", err.text);
}

static void bench_close(struct bench *b)
{
    harness_free(b->harness);
    sem_destroy(&b->woken);
}

/* The harness's answer to how sample 0 of item 7 goes on after this reply (NULL: how does it begin?), for turn_job_free. */
static struct turn_job *ask(struct bench *b, const char *from, int64_t serial, const char *reply)
{
    struct error err = { 0 };
    struct turn_job *job;
    do {
        job = turn_job_new(reply != NULL);
        assert_non_null(job);
        job->row = strdup("{\"prompt\":\"go\"}");
        job->from = strdup(from);
        if (reply)
            job->text[0] = strdup(reply);
        job->turn = (struct turn){ .item = 7,
                                   .seed = 11,
                                   .row = job->row,
                                   .n_text = reply != NULL,
                                   .text = (const char *const *)job->text,
                                   .from = job->from,
                                   .serial = serial };
        assert_true(harness_put(b->harness, job, &err));
        while (!(job = harness_done(b->harness)))
            sem_wait(&b->woken);
    } while (job->answer.later && (turn_job_free(job), true));
    return job;
}

/* A reply of these tokens to the request that the harness has answered with. */
static void reply_to(struct turn_job *job, const char *drawn, char *out, size_t size)
{
    assert_int_equal(job->answer.state, SCORE_OK);
    json_t *o = json_str_read(job->answer.json, 0, NULL);
    const char *hash = json_string_value(json_object_get(json_object_get(o, "request"), "ask"));
    assert_non_null(hash);
    snprintf(out, size, "{\"ask\":\"%s\",\"drawn\":\"%s\",\"status\":200,\"stream\":false,\"body\":\"{}\"}", hash, drawn);
    json_decref(o);
    turn_job_free(job);
}

static double reward_of(struct turn_job *job)
{
    double reward = 0;
    if (job->answer.state != SCORE_OK)
        fail_msg("%s", job->answer.reason);
    json_t *o = json_str_read(job->answer.json, 0, NULL);
    assert_true(json_is_true(json_object_get(o, "done")));
    assert_true(json_double_get(json_object_get(o, "reward"), &reward));
    json_decref(o);
    turn_job_free(job);
    return reward;
}

/* How often the programs have noted this status, once none runs any more. */
static int noted(struct bench *b, const char *status)
{
    struct harness_stats stats;
    struct error err = { 0 };
    struct buf text = BUF_INIT;
    int n = 0;
    for (int64_t end = clock_ms() + LIMIT_MS; harness_stats(b->harness, &stats), stats.running > 0;) {
        assert_true(clock_ms() < end);
        usleep(1000);
    }
    assert_true(file_read(&text, b->notes, 1 << 20, &err));
    for (const char *at = buf_text(&text); (at = strstr(at, status)); at++)
        n++;
    buf_release(&text);
    return n;
}

/* Two sessions of a sample at once: worker a's, which ends first, and one of this worker and serial, whose tokens are these. */
static void two_at_once(const struct folder *f, const char *from, int64_t serial, const char *drawn, bool one_reward)
{
    struct bench b;
    char first[512], second[512];
    bench_open(&b, f, asks_once);
    reply_to(ask(&b, "a/1", 0, NULL), "drawn", first, sizeof first);
    reply_to(ask(&b, from, serial, NULL), drawn, second, sizeof second);
    double reward = reward_of(ask(&b, "a/1", 0, first));
    assert_int_equal(reward_of(ask(&b, from, serial, second)) == reward, one_reward);
    assert_int_equal(noted(&b, "200"), one_reward ? 1 : 2);
    assert_int_equal(noted(&b, "410"), one_reward ? 1 : 0);
    bench_close(&b);
}

/* As when a controller was killed, and gives the item again to its worker. */
static void an_item_that_its_worker_has_twice_has_the_reward_that_was_acknowledged_first(void **state)
{
    two_at_once(*state, "a/1", 1, "drawn", true);
}

static void an_item_that_two_workers_have_has_the_reward_that_was_acknowledged_first(void **state)
{
    two_at_once(*state, "b/1", 0, "drawn", true);
}

static void a_session_of_other_tokens_has_its_own_reward(void **state)
{
    two_at_once(*state, "b/1", 0, "by other weights", false);
}

static void a_reward_that_cannot_be_written_is_not_acknowledged(void **state)
{
    struct bench b;
    char path[160], reply[512];
    struct error err = { 0 };
    bench_open(&b, *state, asks_once);
    snprintf(path, sizeof path, "%s/7.0", b.dir);    // a folder where the record would be
    assert_true(dir_make(path, 0700, &err));
    reply_to(ask(&b, "a/1", 0, NULL), "same", reply, sizeof reply);
    struct turn_job *end = ask(&b, "a/1", 0, reply);
    assert_int_equal(end->answer.state, SCORE_ERROR);
    assert_string_equal(end->answer.reason, "harness: it gave no reward");
    turn_job_free(end);
    assert_int_equal(noted(&b, "503"), 1);
    bench_close(&b);
}

/* One request is drawn for, 16 wait, and 3 of 20 are refused. The program waits for those, and fails. */
static void a_session_has_at_most_16_requests_that_wait(void **state)
{
    struct bench b;
    bench_open(&b, *state,
               "ends, left = threading.Lock(), threading.Semaphore(0)\n"
               "def one(i):\n"
               "    status = post('/v1/completions', {'prompt': str(i)})\n"
               "    with ends:\n"
               "        note(status)\n"
               "    left.release()\n"
               "for i in range(20): threading.Thread(target=one, args=(i,), daemon=True).start()\n"
               "for i in range(3): left.acquire()\n"
               "os._exit(1)\n");
    turn_job_free(ask(&b, "a/1", 0, NULL));
    assert_int_equal(noted(&b, "429"), 3);
    assert_int_equal(noted(&b, "\n"), 3);
    bench_close(&b);
}

static void a_session_that_goes_on_after_64_refusals_is_left_out(void **state)
{
    struct bench b;
    bench_open(&b, *state, "while True: note(post('/v1/reward', {'reward': 'much'}))\n");
    struct turn_job *end = ask(&b, "a/1", 0, NULL);
    assert_int_equal(end->answer.state, SCORE_ERROR);
    assert_string_equal(end->answer.reason, "harness: asks on though it is refused");
    turn_job_free(end);
    assert_in_range(noted(&b, "400"), 64, 65);    // the program is ended with the last
    bench_close(&b);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {
        CASE(an_item_that_its_worker_has_twice_has_the_reward_that_was_acknowledged_first),
        CASE(an_item_that_two_workers_have_has_the_reward_that_was_acknowledged_first),
        CASE(a_session_of_other_tokens_has_its_own_reward),
        CASE(a_reward_that_cannot_be_written_is_not_acknowledged),
        CASE(a_session_has_at_most_16_requests_that_wait),
        CASE(a_session_that_goes_on_after_64_refusals_is_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
