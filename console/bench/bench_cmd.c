/* rollcall bench: measurements that print one JSON line each, as ratios to a roofline or to a peer in the same run. They never
 * decide a test, since machines are shared and noisy. One row per measurement. */
#include <string.h>
#include "console/bench/bench.h"
#include "protocol/base/buf.h"
#include "protocol/base/cli.h"
#include "protocol/base/subcommand.h"

static const struct {
    const char *name;
    bool (*run)(int argc, char **argv, struct error *err);    // argv[0] is the measurement's name
    const char *help;
} benches[] = {
    { "decode", bench_decode, "tokens per second of the rollout engine" },
    { "journal", bench_journal, "append a step's metrics; read back a long run" },
    { "export", bench_export, "export a fast run to wandb while the server refuses half of the requests" },
    { "gemm", bench_gemm, "matrix products: on a CPU against OpenBLAS, on a GPU what equal bits cost" },
    { "attention", bench_attention, "causal attention: packed forward and backward, decode over pages" },
    { "train", bench_train, "training steps of any shape on any device" },
    { "ranks", bench_ranks, "training steps shared by several devices, and the hash of the weights they leave" },
    { "publish", bench_publish, "new weights from one device to another" },
    { "cpu", bench_cpu, "training steps and decoding on the CPU" },
    { "code", bench_code, "programs per second in the sandbox" },
    { "tokenize", bench_tokenize, "megabytes of text per second, into tokens and back" },
    { "data", bench_data, "rows per second of a data set, and the memory it takes" },
    { "verify", bench_verify, "compare mathematical answers, against Math-Verify" },
};

/* --help, in any of the forms that cli_parse knows. */
static bool help_print(int argc, char **argv, struct error *err)
{
    struct buf about = BUF_INIT;
    buf_str(&about, "Prints a line of JSON for each measurement; tokenize and data print text.\n\n");
    for (size_t i = 0; i < ARRAY_SIZE(benches); i++)
        buf_fmt(&about, "  %-12s %s\n", benches[i].name, benches[i].help);
    struct cli cli = { .command = "rollcall bench", .about = buf_text(&about), .operands = "NAME ..." };
    bool ok = cli_parse(&cli, argc, argv, err);
    buf_release(&about);
    return ok;
}

static bool bench_cmd(int argc, char **argv, struct error *err)
{
    static char *only_help[] = { "bench", "--help" };
    for (size_t i = 0; argc > 1 && i < ARRAY_SIZE(benches); i++)
        if (strcmp(benches[i].name, argv[1]) == 0)
            return benches[i].run(argc - 1, argv + 1, err);
    if (argc > 1 && argv[1][0] != '-')
        return error_set(err, ERR_USAGE, "unknown measurement '%s'; see 'rollcall bench --help'", argv[1]);
    return argc > 1 ? help_print(argc, argv, err) : help_print(2, only_help, err);
}

const struct subcommand bench_subcommand = { "bench", bench_cmd, "measure, as ratios to a roofline or a peer" };
