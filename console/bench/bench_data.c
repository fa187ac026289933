/* bench data: how long it takes to read a data set, which is what a run and each of its workers do before their first step. */
#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include "console/bench/bench.h"
#include "protocol/base/cli.h"
#include "workers/engine/data/dataset.h"

static double clock_s(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

bool bench_data(int argc, char **argv, struct error *err)
{
    const char *name = NULL;
    struct dataset_columns columns = { NULL };
    struct cli_option options[] = {
        { "dataset", "d", CLI_STR, &name, "NAME", "a file, a folder, a pattern, or ORG/NAME[:CONFIG][:SPLIT] in the hub's cache" },
        { "prompt-column", NULL, CLI_STR, &columns.prompt, "NAME", "as a run has it" },
        { "answer-column", NULL, CLI_STR, &columns.answer, "NAME", "as a run has it" },
    };
    struct cli cli = { "rollcall bench data",
                       "Reads and checks every row of a data set: rows per second, and the memory it takes.",
                       "",
                       options,
                       ARRAY_SIZE(options),
                       NULL,
                       0,
                       0,
                       false };
    struct buf said = BUF_INIT;
    struct rusage use;
    if (!cli_parse(&cli, argc, argv, err))
        return false;
    if (cli.help_wanted)
        return true;
    if (!name)
        return error_set(err, ERR_USAGE, "--dataset is needed");
    double began = clock_s(CLOCK_MONOTONIC), cpu = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    struct dataset *d = dataset_open(name, &columns, err);
    if (!d)
        return false;
    double took = clock_s(CLOCK_MONOTONIC) - began;
    cpu = clock_s(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    getrusage(RUSAGE_SELF, &use);
    dataset_describe(d, &said);
    printf("%s: %s\n%" PRId64 " rows in %.2f s (%.2f s of processor time), %.0f rows/s; at most %.0f MiB of memory\n", name,
           buf_text(&said), dataset_n_row(d), took, cpu, (double)dataset_n_row(d) / cpu, (double)use.ru_maxrss / 1024);
    buf_release(&said);
    dataset_free(d);
    return true;
}
