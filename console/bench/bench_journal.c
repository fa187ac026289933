/* bench journal: the cost of appending a step's metrics in the training path (target: 50 us at the 99th percentile), and the time
 * that a console needs to read a 100,000-step run when it attaches late (target: 1 s). The writer's work between the appends, when
 * nobody waits for it (journal_rest), is measured separately. On a real file, in a temporary directory. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "console/bench/bench.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/record/journal.h"
#include "protocol/settings/metrics.h"

static int ns_compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

struct read_sum {
    int64_t rows, values;
    double sum;    // so that reading leaves nothing out
};

static bool row_count(void *arg, const struct journal_step *row)
{
    struct read_sum *s = arg;
    s->rows++;
    s->values += row->n;
    for (int i = 0; i < row->n; i++)
        s->sum += isnan(row->metric[i].value) ? 0 : row->metric[i].value;
    return true;
}

static bool step_append(struct journal *j, int64_t step, struct error *err)
{
    struct journal_metric m[METRIC_N];
    for (int i = 0; i < METRIC_N; i++)
        m[i] = (struct journal_metric){ metrics[i].name, sin((double)(step * METRIC_N + i)) };
    return journal_begin(j, err) && journal_step_add(j, 1, step, clock_wall_s(), m, METRIC_N, err) && journal_commit(j, err);
}

bool bench_journal(int argc, char **argv, struct error *err)
{
    int64_t n_step = 100000;
    struct cli_option options[] = { { "steps", NULL, CLI_I64, &n_step, "N", "steps to append and to read back (100000)" } };
    struct cli cli = { "rollcall bench journal", "Appends a step's metrics repeatedly, then reads the run back.", NULL, options,
                       ARRAY_SIZE(options) };
    if (!cli_parse(&cli, argc, argv, err))
        return false;
    if (cli.help_wanted)
        return true;
    if (n_step < 100 || n_step > 10000000)
        return error_set(err, ERR_USAGE, "'--steps' is %" PRId64 "; it must be 100 to 10000000", n_step);
    bool ok = false;
    char dir[] = "/tmp/rollcall-bench-XXXXXX";
    struct error ignored;
    struct journal *j = NULL, *r = NULL;
    int64_t rest_ns = 0, rest_max_ns = 0, *took = malloc((size_t)n_step * sizeof *took);
    if (!took || !mkdtemp(dir)) {
        free(took);
        return error_errno(err, "cannot start the measurement");
    }
    TRY(j = journal_open(dir, err));
    for (int64_t s = 0; s < n_step; s++) {
        int64_t t = clock_ns();
        TRY(step_append(j, s + 1, err));
        took[s] = clock_ns() - t;
        journal_rest(j);
        int64_t rest = clock_ns() - t - took[s];
        rest_ns += rest;
        rest_max_ns = MAX(rest_max_ns, rest);
    }
    qsort(took, (size_t)n_step, sizeof *took, ns_compare);
    printf("{\"bench\":\"journal append\",\"metrics\":%d,\"steps\":%" PRId64 ",\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f,"
           "\"rest_s\":%.3f,\"rest_max_us\":%.1f,\"bar_p99_us\":50}\n",
           METRIC_N, n_step, (double)took[n_step / 2] / 1e3, (double)took[n_step * 99 / 100] / 1e3, (double)took[n_step - 1] / 1e3,
           (double)rest_ns / 1e9, (double)rest_max_ns / 1e3);
    TRY(r = journal_open_reader(dir, err));
    struct read_sum sum = { 0 };
    int64_t t = clock_ns();
    TRY(journal_steps_read(r, 0, row_count, &sum, err));
    printf("{\"bench\":\"journal read\",\"steps\":%" PRId64 ",\"values\":%" PRId64 ",\"s\":%.3f,\"bar_s\":1,\"check\":%s}\n", sum.rows,
           sum.values, (double)(clock_ns() - t) / 1e9, sum.rows == n_step ? "true" : "false");
    ok = true;
out:
    journal_close(r);
    journal_close(j);
    free(took);
    return dir_remove(dir, ok ? err : &ignored) && ok;
}
