/* rollcall settings, rollcall metrics: the two tables as Markdown */
#include <stdio.h>
#include "protocol/base/cli.h"
#include "protocol/base/subcommand.h"
#include "protocol/record/histogram.h"
#include "protocol/run/telemetry.h"
#include "protocol/settings/alarm_book.h"
#include "protocol/settings/knobs.h"
#include "protocol/settings/metrics.h"
#include "workers/engine/plan/peaks.h"

static bool printed(void (*print)(struct buf *), struct error *err)
{
    struct buf out = BUF_INIT;
    print(&out);
    bool ok = !out.failed || error_set(err, ERR_NO_MEMORY, "no memory for the table");
    fputs(buf_text(&out), stdout);
    buf_release(&out);
    return ok;
}

static bool table_print(const char *command, const char *about, void (*print)(struct buf *), int argc, char **argv, struct error *err)
{
    struct cli cli = { command, about, NULL, NULL, 0 };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    return printed(print, err);
}

static void book_print(struct buf *out)
{
    struct alarm_book book;
    alarm_book_init(&book);
    alarm_book_print(&book, out);
}

static bool settings_cmd(int argc, char **argv, struct error *err)
{
    bool alarms = false;
    struct cli_option options[] = {
        { "alarms", NULL, CLI_FLAG, &alarms, NULL, "the alarm book instead, as the file alarms.yaml" },
    };
    struct cli cli = { .command = "rollcall settings",
                       .about = "Prints every setting of a run: flag, default, bounds, when a change takes effect.",
                       .options = options,
                       .n_options = ARRAY_SIZE(options) };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    return printed(alarms ? book_print : knobs_print_docs, err);
}

static void metrics_all_print(struct buf *out)
{
    metrics_print_docs(out);
    buf_str(out, "\nHow samples are spread, for wandb and TensorBoard:\n\n");
    histograms_print_docs(out);
    buf_str(out, "\nPeaks of cards, of which perf/train_mfu, perf/rollout_mfu and perf/rollout_mbu are shares:\n\n");
    peaks_print_docs(out);
    buf_str(out, "\nSampled on each node every telemetry_s seconds:\n\n");
    telemetry_print_docs(out);
}

static bool metrics_cmd(int argc, char **argv, struct error *err)
{
    return table_print("rollcall metrics", "Prints every metric of a step and every figure of a node: name, unit, meaning.",
                       metrics_all_print, argc, argv, err);
}

const struct subcommand settings_subcommand = { "settings", settings_cmd, "print every setting of a run" };

const struct subcommand metrics_subcommand = { "metrics", metrics_cmd, "print every metric" };
