/* rollcall bench code: how many short programs per second the code reward scores, with as many threads as the scorer uses */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "console/bench/bench.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "workers/engine/reward/queue.h"

/* Short answers as models write them; the last is wrong in the first test. */
static const char *const programs[] = {
    "```python\nn = int(input())\nprint(n * 2)\n```",
    "```python\nimport sys\n\ndef main():\n    n = int(sys.stdin.readline())\n    print(sum([n, n]))\n\nif __name__ == "
    "'__main__':\n"
    "    main()\n```",
    ("```python\nfrom collections import Counter\nc = Counter([int(input())] * 2)\nprint(sum(k * v for k, v in "
     "c.items()))\n```"),
    "```python\nn = int(input())\nprint(n * 3)\n```",
};
static const bool right[] = { true, true, true, false };

static void on_wake(UNUSED void *ctx)
{
}

/* Score n programs in jobs of 8, as groups come; right_n: how many were judged correctly. */
static bool programs_score(struct score_queue *q, int64_t n, int64_t n_test, int64_t *right_n, struct error *err)
{
    int64_t put = 0, done = 0;
    while (done < n) {
        while (put < n && put - done < 64) {
            int64_t size = MIN(8, n - put);
            struct score_job *job = job_new(size, 1);
            if (!job)
                return error_set(err, ERR_NO_MEMORY, "no memory for a job");
            json_t *inputs = json_array(), *outputs = json_array();
            for (int64_t k = 1; k <= n_test; k++) {
                json_array_append_new(inputs, json_sprintf("%" PRId64 "\n", k));
                json_array_append_new(outputs, json_sprintf("%" PRId64 "\n", (2 * k)));
            }
            job->row = json_pack("{s:{s:o,s:o}}", "test_cases", "inputs", inputs, "outputs", outputs);
            for (int64_t i = 0; i < size; i++) {
                const char *text = programs[(put + i) % (int64_t)ARRAY_SIZE(programs)];
                job->in[i] = (struct reward_input){ .response = text, .response_len = strlen(text), .row = job->row };
            }
            if (!queue_put(q, job, err)) {
                job_free(job);
                return false;
            }
            put += size;
        }
        struct score_job *job = queue_done(q);
        if (!job) {
            if (queue_has_failed(q, err))
                return false;
            usleep(200);
            continue;
        }
        for (int64_t i = 0; i < job->n; i++)
            for (size_t k = 0; k < ARRAY_SIZE(programs); k++)
                if (job->in[i].response == programs[k])
                    *right_n += job->out[i].score == SCORE_OK && (job->out[i].ans_acc > 0) == right[k];
        done += job->n;
        job_free(job);
    }
    return true;
}

bool bench_code(int argc, char **argv, struct error *err)
{
    int64_t n = 400, n_test = 1, threads = MAX(sysconf(_SC_NPROCESSORS_ONLN), 1), right_n = 0, ignored = 0;
    struct cli_option options[] = {
        { "programs", "n", CLI_I64, &n, "N", "number of programs (default 400)" },
        { "tests", NULL, CLI_I64, &n_test, "N", "tests per program (default 1)" },
        { "threads", NULL, CLI_I64, &threads, "N", "scoring threads (default: one per core)" },
    };
    struct cli cli = { .command = "rollcall bench code",
                       .about = "Scores short programs in the sandbox, a quarter of them wrong.",
                       .options = options,
                       .n_options = ARRAY_SIZE(options) };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (n < 1 || n > 1000000 || threads < 1 || threads > 256 || n_test < 1 || n_test > 1000)
        return error_set(err, ERR_USAGE, "1 to 1000000 programs, 1 to 256 threads, 1 to 1000 tests");
    struct reward_config config = { .type = "code", .program_timeout_s = 60 };
    struct score_queue *q = queue_new(&config, (int)threads, 4096, on_wake, NULL, err);
    if (!q)
        return false;
    bool ok = programs_score(q, 4 * threads, n_test, &ignored, err);    // the threads set up their sandboxes
    int64_t start = clock_ns();
    ok = ok && programs_score(q, n, n_test, &right_n, err);
    double wall = (double)(clock_ns() - start) / 1e9;
    queue_free(q, 60000);
    if (!ok)
        return false;
    if (right_n != n)
        return error_set(err, ERR_DATA, "%" PRId64 " of %" PRId64 " programs were judged wrongly", (n - right_n), n);
    printf("{\"bench\":\"code\",\"programs\":%" PRId64 ",\"tests_each\":%" PRId64 ",\"threads\":%" PRId64 ",\"wall_s\":%.3f,\"programs_per_"
           "s\":%.1f}\n",
           n, n_test, threads, wall, (double)n / wall);
    return true;
}
