/* main.c - the table of subcommands; the one file that knows every folder
 *
 * A command returns true for exit 0; otherwise its error is printed here, in one line, and picks the exit status. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "console/commands.h"
#include "protocol/base/error.h"
#include "protocol/base/secret.h"

struct command {
    const char *name;
    bool (*run)(int argc, char **argv, struct error *err);    // argv[0] is the command's name
    const char *help;    // one line; NULL: internal, not listed
};
static bool version_cmd(int argc, char **argv, struct error *err);

static const struct command commands[] = {
    { "train", train_cmd, "train a model; on a terminal, with the console open" },
    { "ctl", ctl_cmd, "ask a run how it stands, or tell it what to do" },
    { "score", score_cmd, "score responses in a JSON lines file" },
    { "pull", pull_cmd, "download a model from the hub" },
    { "template", template_cmd, "chat messages to prompts, as JSON lines" },
    { "tokenize", tokenize_cmd, "text to token ids and back, as JSON lines" },
    { "bench", bench_cmd, "measure, as ratios to a roofline or a peer" },
    { "doctor", doctor_cmd, "tell what this machine has of what rollcall uses" },
    { "settings", settings_cmd, "print every setting of a run" },
    { "metrics", metrics_cmd, "print every metric" },
    { "sft", sft_cmd, "teach a model from conversations" },
    { "random-model", random_model_cmd, "write a model directory with random weights" },
    { "export", export_cmd, "carry a run's metrics elsewhere: CSV, JSON lines, TensorBoard, OpenMetrics" },
    { "agent", agent_cmd, "join a run on another host: sample for it here" },
    { "gate", gate_cmd, NULL },
    { "uplink", uplink_cmd, NULL },
    { "controller", controller_cmd, NULL },
    { "worker", worker_cmd, NULL },
    { "scorer", scorer_cmd, NULL },
    { "exporter", exporter_cmd, NULL },
    { "console", console_cmd, "show a live run and steer it" },
    { "simulate", simulate_cmd, "show the console on a made-up run" },
    { "generate", generate_cmd, "continue prompts with a model" },
    { "eval", eval_cmd, "sample answers to a dataset and score them" },
    { "rollouts", rollouts_cmd, "print what a run has sampled" },
    { "logprobs", logprobs_cmd, "log-probs of given ids, by the trainer's path" },
    { "version", version_cmd, "print the version" },
};

static bool version_cmd(UNUSED int argc, UNUSED char **argv, UNUSED struct error *err)
{
    printf("rollcall %s\n", RC_VERSION);
    return true;
}

static void usage_print(FILE *out)
{
    fprintf(out, "usage: rollcall COMMAND [options]\n\n"
                 "Trains language models by reinforcement learning and lets you steer the run from one terminal.\n\n");
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        if (commands[i].help)
            fprintf(out, "  %-14s %s\n", commands[i].name, commands[i].help);
    fprintf(out, "\n'rollcall COMMAND --help' tells a command's options.\n");
}

int main(int argc, char **argv)
{
    struct error err = { 0 };
    signal(SIGPIPE, SIG_IGN);
    secret_env_hide();
    if (argc < 2) {
        usage_print(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        usage_print(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0)
        argv[1] = "version";
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
        if (strcmp(argv[1], commands[i].name) != 0)
            continue;
        bool ok = commands[i].run(argc - 1, argv + 1, &err);
        if (fflush(stdout) != 0 && ok)
            ok = error_errno(&err, "cannot write the output");
        if (ok)
            return 0;
        if (err.text[0])
            fprintf(stderr, "rollcall %s: %s\n", argv[1], err.text);
        return error_exit_status(err.code);
    }
    fprintf(stderr, "rollcall: unknown command '%s'; see 'rollcall --help'\n", argv[1]);
    return 2;
}
