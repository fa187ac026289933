/* main.c - the table of subcommands; the only file that knows every folder
 *
 * A command returns true for exit 0; otherwise its error is printed here, in one line, and decides the exit status. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "console/manual.h"
#include "protocol/base/clean_out.h"
#include "protocol/base/cli.h"
#include "protocol/base/error.h"
#include "protocol/base/secret.h"
#include "protocol/base/subcommand.h"

#define STACK_KIB 256    // train, score and the sandbox ran with it on glibc 2.36
#define TEXT_OF(number) #number
#define NUMBER_TEXT(number) TEXT_OF(number)

static bool version_cmd(int argc, char **argv, struct error *err);
static bool manual_cmd(int argc, char **argv, struct error *err);

static const struct subcommand version_subcommand = { "version", version_cmd, "print the version" };
static const struct subcommand manual_subcommand = { "manual", manual_cmd, "write man pages and shell completions into a folder" };
/* In the order of --help. */
// clang-format off
#define SUBCOMMANDS(X) \
    X(quickstart) X(init) X(train) X(ctl) X(score) X(pull) X(template) X(tokenize) X(bench) X(doctor) X(settings) X(metrics) X(sft) \
    X(random_model) X(convert) X(merge) X(export) X(agent) X(launch) X(starter) X(gate) X(uplink) X(controller) X(worker) X(scorer) X(exporter) X(console) \
    X(simulate) X(generate) X(eval) X(rollouts) X(profile) X(logprobs) X(serve) X(environments) X(sandbox)
// clang-format on
SUBCOMMANDS(SUBCOMMAND_DECLARE)

#define ROW(name_) &name_##_subcommand,
static const struct subcommand *const subcommands[] = { SUBCOMMANDS(ROW) & manual_subcommand, &version_subcommand };

static bool version_cmd(int argc, char **argv, struct error *err)
{
    struct cli cli = { .command = "rollcall version", .about = "Prints the version." };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    printf("rollcall %s\n", RC_VERSION);
    return true;
}

/* Here, since only this file knows all subcommands. */
static bool manual_cmd(int argc, char **argv, struct error *err)
{
    const char *dir;
    struct cli cli = {
        .command = "rollcall manual",
        .about = "Writes man pages (DIR/man1) and completions for bash, zsh and fish (DIR/completions). cmake --install does it.",
        .operands = "DIR",
        .operand = &dir,
        .max_operands = 1
    };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (cli.n_operands != 1)
        return error_set(err, ERR_USAGE, "give the folder to write into; see 'rollcall manual --help'");
    return manual_write(subcommands, ARRAY_SIZE(subcommands), dir, err);
}

static void usage_print(FILE *out)
{
    fprintf(out, "usage: rollcall COMMAND [options]\n\n"
                 "Trains language models by reinforcement learning and lets you steer the run from one terminal.\n\n");
    for (size_t i = 0; i < ARRAY_SIZE(subcommands); i++)
        if (subcommands[i]->help)
            fprintf(out, "  %-14s %s\n", subcommands[i]->name, subcommands[i]->help);
    fprintf(out, "\n'rollcall COMMAND --help' lists a command's options.\n");
}

/* The listed command nearest to a mistyped word; NULL: none is near. */
static const char *command_nearest(const char *word)
{
    const char *best = NULL;
    int best_d = 3;
    for (size_t i = 0; i < ARRAY_SIZE(subcommands); i++) {
        int d = subcommands[i]->help ? word_distance(subcommands[i]->name, word) : 64;
        if (d < best_d && d < (int)strlen(word)) {
            best_d = d;
            best = subcommands[i]->name;
        }
    }
    return best;
}

/* Has the reader of our output closed the pipe (`| head`)? Then they have seen what they wanted, and that it cannot be written is no error. */
static bool reader_has_left(void)
{
    struct pollfd out = { .fd = STDOUT_FILENO, .events = POLLOUT };
    return ferror(stdout) && poll(&out, 1, 0) == 1 && (out.revents & POLLERR);
}

static int command_run(int argc, char **argv)
{
    struct error err = { 0 };
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);    // past the file size limit ("ulimit -f") the write then fails with its reason instead
    secret_env_hide();
    if (!clean_out_begin(&err)) {
        fprintf(stderr, "rollcall: %s\n", err.text);
        return error_exit_status(err.code);
    }
    if (argc < 2) {
        usage_print(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        usage_print(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0)
        argv[1] = "version", argc = 2;
    for (size_t i = 0; i < ARRAY_SIZE(subcommands); i++) {
        if (strcmp(argv[1], subcommands[i]->name) != 0)
            continue;
        bool ok = subcommands[i]->run(argc - 1, argv + 1, &err);
        if (fflush(stdout) != 0 && ok)
            ok = error_errno(&err, "cannot write the output");
        if (ok || (err.code == ERR_IO && reader_has_left()))
            return 0;
        if (err.text[0])
            line_print(stderr, "rollcall %s: %s", argv[1], err.text);
        return error_exit_status(err.code);
    }
    const char *nearest = command_nearest(argv[1]);
    if (nearest)
        line_print(stderr, "rollcall: unknown command '%s'; did you mean '%s'?", argv[1], nearest);
    else
        line_print(stderr, "rollcall: unknown command '%s'; see 'rollcall --help'", argv[1]);
    return 2;
}

/* What every command needs, before its own frames need it: too small a stack ends a process without a word. Printf's own frames may
 * not fit either. */
static bool stack_is_enough(void)
{
    static const char words[] = "rollcall: the stack may have less than " NUMBER_TEXT(STACK_KIB) " KiB; raise the limit ('ulimit -s')\n";
    struct rlimit stack;
    if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= STACK_KIB << 10)
        return true;
    (void)!write(STDERR_FILENO, words, sizeof words - 1);
    return false;
}

int main(int argc, char **argv)
{
    return stack_is_enough() ? command_run(argc, argv) : 1;
}
