/* simulate_cmd.c - rollcall simulate: the console on a made-up run, in this process or behind the sockets of a made-up fleet; or made-up
 * nodes for a real run */
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "console/fleet/link.h"
#include "console/simulate/crowd.h"
#include "console/simulate/crowd_join.h"
#include "console/simulate/simulate.h"
#include "console/tui/console.h"
#include "console/tui/screen.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/subcommand.h"
#include "protocol/run/node.h"
#include "protocol/run/run_far.h"

#define READY_MS 60000    // for all agents of a fleet to be started

static bool feed_show(struct feed *feed, struct run_view *m, const struct console_options *o, struct error *err)
{
    bool ok = feed && console_run(feed, m, o, err);
    if (feed)
        feed->free(feed);
    return ok;
}

/* Without a screen: until a signal comes. */
static bool fleet_wait(const char *run_dir, const sigset_t *set, struct error *err)
{
    sigset_t end = *set;
    int signal;
    sigdelset(&end, SIGWINCH);
    sigdelset(&end, SIGCONT);
    printf("a simulated run is live: rollcall console %s\n", run_dir);
    fflush(stdout);
    return sigwait(&end, &signal) == 0 || error_set(err, ERR_IO, "cannot wait for a signal");
}

/* The fleet lives in a process of its own, which ends when stop is closed: the console's cost is then its own alone. */
static bool fleet_serve(const struct crowd_options *fleet, const char *run_dir, const int stop[2], const int ready[2])
{
    struct error err = { 0 };
    close(stop[1]);
    close(ready[0]);
    bool ok = crowd_serve(fleet, run_dir, stop[0], ready[1], &err);
    if (!ok)
        fprintf(stderr, "rollcall simulate: %s\n", err.text);
    return ok;
}

static bool fleet_show(const char *run_dir, const struct console_options *o, const sigset_t *set, int ready_fd, struct error *err)
{
    char byte;
    struct pollfd fd = { .fd = ready_fd, .events = POLLIN };
    if (poll(&fd, 1, READY_MS) != 1)
        return error_set(err, ERR_TIMEOUT, "the simulated run has not come up in %d s", READY_MS / 1000);
    if (read(ready_fd, &byte, 1) != 1)
        return error_set(err, ERR_CLOSED, "%s", "");    // it has said why
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return fleet_wait(run_dir, set, err);
    struct run_view *m = view_new(err);
    bool ok = m && feed_show(link_new(run_dir, false, m, clock_ns(), err), m, o, err);
    fleet_model_free(m);
    return ok;
}

static bool fleet_run(const struct crowd_options *fleet, const char *given, const struct console_options *o, struct error *err)
{
    char made[] = "/tmp/rollcall-simulate-XXXXXX";
    const char *run_dir = given ? given : mkdtemp(made);
    int stop[2] = { -1, -1 }, ready[2] = { -1, -1 };
    struct error ignored;
    sigset_t set;
    bool ok = false;
    if (!run_dir)
        return error_errno(err, "cannot make a folder like '%s'", made);
    screen_signals_block(&set, NULL);
    pid_t pid = pipe(stop) == 0 && pipe(ready) == 0 ? fork() : -1;
    if (pid == 0)
        _exit(fleet_serve(fleet, run_dir, stop, ready) ? 0 : 1);
    if (pid < 0) {
        error_errno(err, "cannot start the simulated run");
        goto out;
    }
    close(stop[0]);
    close(ready[1]);
    stop[0] = ready[1] = -1;
    ok = fleet_show(run_dir, o, &set, ready[0], err);
    close(stop[1]);
    stop[1] = -1;
    waitpid(pid, NULL, 0);    // it ends within the transport's three seconds
out:
    for (int i = 0; i < 2; i++) {
        if (stop[i] >= 0)
            close(stop[i]);
        if (ready[i] >= 0)
            close(ready[i]);
    }
    if (!given && !dir_remove(run_dir, &ignored))
        fprintf(stderr, "rollcall simulate: '%s' remains: %s\n", run_dir, ignored.text);
    return ok;
}

/* Nodes for a real run. */
static bool nodes_join(struct crowd_join_options *j, const char *head, const char *token_file, struct error *err)
{
    char address[280], token[JOIN_TOKEN_LEN + 1];
    if (!node_address(head, "--join", address, err) || !run_far_token(token, token_file, err))
        return false;
    j->address = address;
    j->token = token;
    return crowd_join(j, err);
}

static bool simulate_cmd(int argc, char **argv, struct error *err)
{
    struct crowd_options fleet = { .gpus = 8, .rate = 1 };
    struct simulate_options s = { .steps = 400, .done = 150, .step_s = 1, .workers = 2, .seed = 1 };
    struct console_options o = { .terminal = { .mouse = true, .escape_ms = 25 } };
    const char *color = "auto", *glyphs = "auto", *run_dir = NULL, *head = NULL, *token_file = NULL;
    struct crowd_join_options join = { .nodes = 1000, .measure_s = 30 };
    double beats = 2;
    bool ascii = false, no_mouse = false;
    int64_t seed = 1;
    struct cli_option options[] = {
        { "steps", NULL, CLI_I64, &s.steps, "N", "optimizer steps of the made-up run" },
        { "done", NULL, CLI_I64, &s.done, "N", "how many of them are done at the start" },
        { "step-seconds", NULL, CLI_F64, &s.step_s, "S", "seconds per step" },
        { "workers", NULL, CLI_I64, &s.workers, "N", "devices" },
        { "stall-after", NULL, CLI_I64, &s.stall_after_s, "S", "the last worker hangs after S seconds" },
        { "seed", NULL, CLI_I64, &seed, "N", "another story" },
        { NULL, NULL, CLI_HEADING, NULL, NULL, "a fleet, through real sockets" },
        { "agents", NULL, CLI_I64, &fleet.agents, "N", "nodes, each with an agent that reports over its own connection; 0: no sockets" },
        { "gpus", NULL, CLI_I64, &fleet.gpus, "M", "GPUs of each node" },
        { "rate", NULL, CLI_F64, &fleet.rate, "R", "reports per second and agent" },
        { "run", NULL, CLI_STR, &run_dir, "DIR",
          "folder to serve the run in, for other consoles and ctl; made when missing. Without a terminal it is served until a signal" },
        { NULL, NULL, CLI_HEADING, NULL, NULL, "nodes for a real run: what they cost its head" },
        { "join", NULL, CLI_STR, &head, "tcp://HOST:PORT",
          "the run's setting 'listen'; no screen is shown, and the run is not held up: no trainer is placed on them" },
        { "token-file", NULL, CLI_STR, &token_file, "FILE",
          "the run's token, a copy of its sock/join; default: the variable ROLLCALL_JOIN_TOKEN" },
        { "nodes", NULL, CLI_I64, &join.nodes, "N", "nodes that join (1000)" },
        { "beats", NULL, CLI_F64, &beats, "R", "signs of life per second and node (2, as heartbeat_s has it)" },
        { "seconds", NULL, CLI_F64, &join.measure_s, "S", "how long to measure (30)" },
        { NULL, NULL, CLI_HEADING, NULL, NULL, "the screen" },
        { "theme", NULL, CLI_STR, &o.theme, "NAME|FILE", "colours: dark, light or a theme file" },
        { "color", NULL, CLI_STR, &color, "WHEN", "auto, never, 8, 256 or true" },
        { "glyphs", NULL, CLI_STR, &glyphs, "KIND", "characters for charts: braille, block or ascii; auto" },
        { "ascii", NULL, CLI_FLAG, &ascii, NULL, "draw with ASCII only" },
        { "no-mouse", NULL, CLI_FLAG, &no_mouse, NULL, "leave the mouse to the terminal" },
    };
    struct cli cli = {
        .command = "rollcall simulate",
        .about = "Shows the console on a made-up run, or on a made-up fleet of nodes (--agents): every number is invented.\n"
                 "With --join, many made-up nodes join a real run, and what its head does for them is measured: exit 1 when\n"
                 "it uses more than one core, or is late with work.",
        .options = options,
        .n_options = ARRAY_SIZE(options)
    };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (!console_look_parse(&o, color, glyphs, ascii, err))
        return false;
    const struct {
        const char *option;
        double value, min, max;
    } bounds[] = {
        { "steps", (double)s.steps, 1, 2000000 },
        { "done", (double)s.done, 0, (double)s.steps },
        { "step-seconds", s.step_s, 0.01, 3600 },
        { "workers", (double)s.workers, 1, 200 },
        { "stall-after", (double)s.stall_after_s, 0, 1e9 },
        { "agents", (double)fleet.agents, 0, CROWD_AGENTS },
        { "gpus", (double)fleet.gpus, 1, CROWD_GPUS },
        { "rate", fleet.rate, 0.1, 20 },
        { "nodes", (double)join.nodes, 1, CROWD_NODES },
        { "beats", beats, 0.1, 20 },
        { "seconds", join.measure_s, 1, 1e6 },
    };
    for (size_t i = 0; i < ARRAY_SIZE(bounds); i++)
        if (!(bounds[i].value >= bounds[i].min && bounds[i].value <= bounds[i].max))
            return error_set(err, ERR_USAGE, "--%s is %.10g; it must be %.10g to %.10g", bounds[i].option, bounds[i].value, bounds[i].min,
                             bounds[i].max);
    if (head) {
        join.period_s = 1 / beats;
        return nodes_join(&join, head, token_file, err);
    }
    s.seed = (uint64_t)seed;
    o.terminal.mouse = !no_mouse;
    if (run_dir && fleet.agents == 0)
        return error_set(err, ERR_USAGE, "--run needs --agents: without a fleet there are no sockets");
    if (fleet.agents > 0) {
        fleet.run = s;
        return fleet_run(&fleet, run_dir, &o, err);
    }
    struct run_view *m = view_new(err);
    if (!m)
        return false;
    bool ok = feed_show(simulate_new(&s, m, clock_ns(), err), m, &o, err);
    fleet_model_free(m);
    return ok;
}

const struct subcommand simulate_subcommand = { "simulate", simulate_cmd, "show the console on a made-up run" };
