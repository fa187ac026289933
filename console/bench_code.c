/* rollcall bench code: how many short programs a second the code reward scores, with as many threads as the scorer takes */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "console/bench.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "workers/scorer/queue.h"

/* Short answers as models write them; each has the three tests below. */
static const char *const programs[] = {
    "```python\nn = int(input())\nprint(n * 2)\n```",
    "```python\nimport sys\n\ndef main():\n    n = int(sys.stdin.readline())\n    print(sum([n, n]))\n\nif __name__ == '__main__':\n"
    "    main()\n```",
    "```python\nfrom collections import Counter\nc = Counter([int(input())] * 2)\nprint(sum(k * v for k, v in c.items()))\n```",
    "```python\nn = int(input())\nprint(n * 2 if n != 21 else 41)\n```",    // wrong in the last test
};
static const bool right[] = { true, true, true, false };

static void on_wake(UNUSED void *ctx)
{
}

static double cpu_s(int who)
{
    struct rusage u;
    getrusage(who, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* Score n programs in jobs of 8, as groups come; right_n: how many were judged as they should be. */
static bool programs_score(struct score_queue *q, int64_t n, int64_t *right_n, struct error *err)
{
    int64_t put = 0, done = 0;
    while (done < n) {
        while (put < n && put - done < 64) {
            int64_t size = MIN(8, n - put);
            struct score_job *job = job_new(size, 1);
            if (!job)
                return error_set(err, ERR_NO_MEMORY, "no memory for a job");
            job->row = json_pack("{s:{s:[sss],s:[sss]}}", "test_cases", "inputs", "1", "2", "21", "outputs", "2", "4", "42");
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
    int64_t n = 400, threads = MAX(sysconf(_SC_NPROCESSORS_ONLN), 1), right_n = 0, ignored = 0;
    struct cli_option options[] = {
        { "programs", "n", CLI_I64, &n, "N", "how many (default 400)" },
        { "threads", NULL, CLI_I64, &threads, "N", "scoring threads (default: one a core)" },
    };
    struct cli cli = { .command = "rollcall bench code", .about = "Scores short programs of three tests each in the sandbox.",
                       .options = options, .n_options = ARRAY_SIZE(options) };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (n < 1 || n > 1000000 || threads < 1 || threads > 256)
        return error_set(err, ERR_USAGE, "1 to 1000000 programs, 1 to 256 threads");
    struct reward_config config = { .type = "code", .program_timeout_s = 60 };
    struct score_queue *q = queue_new(&config, (int)threads, 4096, on_wake, NULL, err);
    if (!q)
        return false;
    bool ok = programs_score(q, 4 * threads, &ignored, err);    // the threads set up their sandboxes
    double self = cpu_s(RUSAGE_SELF), children = cpu_s(RUSAGE_CHILDREN);
    int64_t start = clock_ns();
    ok = ok && programs_score(q, n, &right_n, err);
    double wall = (double)(clock_ns() - start) / 1e9;
    self = cpu_s(RUSAGE_SELF) - self;
    children = cpu_s(RUSAGE_CHILDREN) - children;
    queue_free(q, 60000);
    if (!ok)
        return false;
    if (right_n != n)
        return error_set(err, ERR_DATA, "%lld of %lld programs were judged wrongly", (long long)(n - right_n), (long long)n);
    printf("{\"bench\":\"code\",\"programs\":%lld,\"tests_each\":3,\"threads\":%lld,\"wall_s\":%.3f,\"programs_per_s\":%.1f,"
           "\"cpu_ms_per_program\":%.2f,\"scorer_cpu_ms_per_program\":%.2f,\"programs_per_cpu_s\":%.1f}\n", (long long)n,
           (long long)threads, wall, (double)n / wall, (self + children) / (double)n * 1e3, self / (double)n * 1e3,
           (double)n / (self + children));
    return true;
}
