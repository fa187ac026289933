/* launch_step.c - rollcall launch: what a starter runs once on each node
 *
 * Task 0 is the head, the others are nodes; launch.h has the whole. The run itself is a child process, and this one only passes on what
 * Slurm says: SIGTERM makes the head stop the run, and a node leave it. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "console/train/launch.h"
#include "console/train/program.h"
#include "protocol/base/child.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/subcommand.h"
#include "protocol/base/tcp.h"
#include "protocol/run/node.h"
#include "protocol/wire/run_head.h"

#define PLAN_BYTES_MAX ((size_t)1 << 20)
#define PORTS_TRIED 100
#define REACH_MS 3000
#define LOOK_MS 200
#define STATUS_MS 30000
#define REACH_EVERY_MS 2000
#define FAREWELL_MS 10000    // for a node's agent to hear from the head that the run is over

struct step {
    char run_dir[PATH_MAX], start[64], node[NODE_NAME_MAX + 1];
    json_t *plan;    // owned
    int64_t rank, n_node;
};

static volatile sig_atomic_t n_signal;    // a signal handler has no argument to carry state

static void on_signal(UNUSED int sig)
{
    n_signal = n_signal + 1;
}

static int64_t plan_number(const struct step *s, const char *name)
{
    return json_integer_value(json_object_get(s->plan, name));
}

static const char *plan_text(const struct step *s, const char *name)
{
    const char *text = json_string_value(json_object_get(s->plan, name));
    return text ? text : "";
}

bool launch_awaits(const char *run_dir)
{
    char path[PATH_MAX];
    const char *mine = getenv(LAUNCH_VARIABLE);
    return mine && strcmp(mine, run_dir) == 0 && path_join(path, sizeof path, run_dir, LAUNCH_PLAN) && path_exists(path)
           && path_join(path, sizeof path, run_dir, "journal.db") && !path_exists(path);
}

/* ---- a child process ---- */

static bool child_start(char *const argv[], pid_t *pid, struct error *err)
{
    int rv = child_spawn(pid, "/proc/self/exe", NULL, CHILD_OURS, argv, NULL);
    errno = rv;
    return rv == 0 || error_errno(err, "cannot start 'rollcall %s'", argv[1]);
}

/* Its exit status once it has ended, 128 + N after signal N; -1: it goes on. */
static int child_look(pid_t pid)
{
    int raw;
    pid_t got = waitpid(pid, &raw, WNOHANG);
    if (got == 0 || (got < 0 && errno == EINTR))
        return -1;
    return got < 0 ? 1 : child_exit(raw);
}

/* ---- the head ---- */

/* The first free port from the plan's on. */
static int port_find(int64_t from, struct error *err)
{
    for (int64_t port = from; port < from + PORTS_TRIED; port++) {
        char text[32];
        snprintf(text, sizeof text, "0.0.0.0:%" PRId64, port);
        int fd = tcp_listen(text, err);
        if (fd >= 0) {
            close(fd);
            return (int)port;
        }
        if (err->code != ERR_EXISTS)
            return 0;
    }
    error_set(err, ERR_EXISTS, "no port from %" PRId64 " to %" PRId64 " is free on this node; give another one: --slurm port=N", from,
              from + PORTS_TRIED - 1);
    return 0;
}

/* Has the run begun? Then it is resumed, and what the command line sets has been set. */
static bool run_has_begun(const struct step *s)
{
    char path[PATH_MAX];
    return path_join(path, sizeof path, s->run_dir, "journal.db") && path_exists(path);
}

static bool train_begin(const struct step *s, int port, pid_t *pid, struct error *err)
{
    char marker[PATH_MAX], listen[40], parent[PATH_MAX];
    const char *argv[1024] = { "rollcall", "train", "--batch" };
    int n = 3;
    size_t i;
    const json_t *word;
    bool resumes = run_has_begun(s) || json_is_true(json_object_get(s->plan, "resume"));
    snprintf(parent, sizeof parent, "%s", s->run_dir);
    char *name = strrchr(parent, '/');
    if (!name || !path_join(marker, sizeof marker, s->run_dir, LAUNCH_FOLDER "/began"))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", s->run_dir);
    *name++ = 0;
    if (json_array_size(json_object_get(s->plan, "words")) > ARRAY_SIZE(argv) - 16)
        return error_set(err, ERR_USAGE, "the command line has too many words");
    bool again = path_exists(marker) && run_has_begun(s);
    if (!again) {    // a setting given to `train` counts once: later changes are the operator's
        json_array_foreach((json_t *)json_object_get(s->plan, "words"), i, word) argv[n++] = json_string_value(word);
        if (!file_write(marker, "", 0, err))
            return false;
    } else {
        argv[n++] = "--resume";
        argv[n++] = s->run_dir;
    }
    if (!resumes) {
        const char *more[] = { "--name", name, "--runs-dir", parent };
        for (i = 0; i < ARRAY_SIZE(more); i++)
            argv[n++] = more[i];
    }
    snprintf(listen, sizeof listen, "0.0.0.0:%d", port);
    argv[n++] = "--listen";
    argv[n++] = listen;
    argv[n] = NULL;
    if (setenv(LAUNCH_VARIABLE, s->run_dir, 1) != 0)
        return error_errno(err, "cannot set a variable");
    return child_start((char *const *)argv, pid, err);
}

/* Ask the run to stop, with a command, since Slurm may have sent its signal to `train` too, and a second signal there ends it at once. */
static void stop_ask(const struct step *s, pid_t train)
{
    char *argv[] = { "/proc/self/exe", "ctl", "--run", (char *)s->run_dir, "--yes", "--force", "stop", NULL };
    struct error err;
    int status = 1;
    if (!program_run(argv, STATUS_MS, NULL, NULL, &status, &err) || status != 0)
        kill(train, SIGTERM);
}

/* The names of this job's nodes, a line each. */
static bool names_find(struct buf *out, struct error *err)
{
    char *argv[] = { "scontrol", "show", "hostnames", NULL };
    int status;
    return program_run(argv, STATUS_MS, out, NULL, &status, err) && status == 0;
}

/* Is a process of this node in the answer to `ctl status --json`? */
static bool node_is_in(const json_t *status, const char *node)
{
    size_t i;
    const json_t *p;
    json_array_foreach(json_object_get(status, "processes"), i, p)
    {
        const char *name = json_string_value(json_object_get(p, "node")), *phase = json_string_value(json_object_get(p, "phase"));
        if (name && strcmp(name, node) == 0 && phase && strcmp(phase, "lost") != 0)
            return true;
    }
    return false;
}

/* Name the nodes that have not joined, once, on stderr. */
static void missing_tell(const struct step *s)
{
    char *argv[] = { "/proc/self/exe", "ctl", "--run", (char *)s->run_dir, "--json", "status", NULL };
    struct buf text = BUF_INIT, names = BUF_INIT, missing = BUF_INIT;
    struct error err;
    int status = 1, n = 0;
    json_t *o = program_run(argv, STATUS_MS, &text, NULL, &status, &err) && status == 0 ? json_text_read(buf_text(&text), text.len, 0, NULL)
                                                                                        : NULL;
    if (o && names_find(&names, &err)) {
        char *rest = names.data, *name;
        while ((name = strsep(&rest, "\n")))
            if (name[0] && strcmp(name, s->node) != 0 && !node_is_in(o, name)) {
                buf_fmt(&missing, "%s%s", n ? ", " : "", name);
                n++;
            }
        if (n > 0)
            fprintf(stderr,
                    "rollcall launch: %d of %" PRId64 " nodes have not joined within %" PRId64 " s: %s; the run goes on without them. "
                    "Look for their lines in this log; 'scontrol show node NAME' says whether Slurm has lost them\n",
                    n, s->n_node - 1, plan_number(s, "wait_s"), buf_text(&missing));
    }
    json_decref(o);
    buf_release(&text);
    buf_release(&names);
    buf_release(&missing);
}

static bool head_run(const struct step *s, int *code, struct error *err)
{
    char path[PATH_MAX], text[16];
    struct run_head head;
    pid_t train;
    int told = 0, port = port_find(plan_number(s, "port"), err);
    if (!port)
        return false;
    run_head_here(&head, getenv("SLURMD_NODENAME"), port);
    snprintf(head.start, sizeof head.start, "%s", s->start);
    if (!run_head_write(&head, s->run_dir, err) || !train_begin(s, port, &train, err))
        return false;
    int64_t began = clock_ms();
    bool counted = s->n_node < 2;
    while ((*code = child_look(train)) < 0) {
        if (n_signal > told) {
            told = n_signal;
            stop_ask(s, train);
        }
        if (!counted && clock_ms() - began > 1000 * plan_number(s, "wait_s")) {
            counted = true;
            missing_tell(s);
        }
        poll(NULL, 0, LOOK_MS);
    }
    if (path_join(path, sizeof path, s->run_dir, HEAD_FILE))
        unlink(path);
    snprintf(text, sizeof text, "%d\n", *code);
    return path_join(path, sizeof path, s->run_dir, LAUNCH_EXIT) && file_write(path, text, strlen(text), err);
}

/* ---- a node ---- */

/* Wait until the head of this start can be reached; the address at which it is. */
static bool head_find(const struct step *s, struct run_head *head, const char **address, struct error *err)
{
    char ended[PATH_MAX];
    int64_t wait_s = plan_number(s, "wait_s"), until = clock_ms() + 1000 * wait_s;
    if (!path_join(ended, sizeof ended, s->run_dir, LAUNCH_EXIT))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", s->run_dir);
    for (;;) {
        bool there = run_head_read(head, s->run_dir, err);
        if (there && strcmp(head->start, s->start) != 0)
            there = error_set(err, ERR_NOT_FOUND, "the head of this job has not started; '%s' is from an earlier one", head->host);
        if (there && (*address = run_head_reach(head, REACH_MS, err)))
            return true;
        if (path_exists(ended))
            return error_set(err, ERR_CLOSED, "the head has ended before node '%s' could join; this log says why", s->node);
        if (n_signal)
            return error_set(err, ERR_STOPPED, "stopped by a signal");
        if (clock_ms() > until)
            return error_wrap(err,
                              "node '%s' has waited %" PRId64 " s for its head (see 'wait='; --runs-dir must be a folder that all nodes "
                              "share, and 'port=' one that they can reach)",
                              s->node, wait_s);
        poll(NULL, 0, LOOK_MS);
    }
}

/* A folder of ours on the node's own disk, which nobody else can enter. */
static bool folder_find(const struct step *s, char out[PATH_MAX], struct error *err)
{
    struct stat st;
    char top[PATH_MAX], own[300];
    const char *tmp = plan_text(s, "dir"), *name = strrchr(s->run_dir, '/'), *job = getenv("SLURM_JOB_ID");
    if (!tmp[0])
        tmp = getenv("SLURM_TMPDIR");
    if (!tmp || !tmp[0])
        tmp = getenv("TMPDIR");
    if (!tmp || !tmp[0])
        tmp = "/tmp";
    snprintf(own, sizeof own, "rollcall-%u", (unsigned)geteuid());
    if (!path_join(top, sizeof top, tmp, own))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", tmp);
    if (!dir_make(top, 0700, err))
        return false;
    if (lstat(top, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077) != 0)
        return error_set(err, ERR_REFUSED, "'%s' is not a folder of ours that others cannot enter; remove it, or give another one: dir=DIR",
                         top);
    snprintf(own, sizeof own, "%.150s-%.40s/%s", name ? name + 1 : "run", job ? job : "0", s->node);
    return path_join(out, PATH_MAX, top, own) || error_set(err, ERR_USAGE, "the path '%s' is too long", top);
}

struct head_watch {
    int64_t seen_ms, next_ms;    // when the head was last reached, and when to try again; 0: not yet
    int64_t over_ms;             // when it was found to have ended by itself; 0: it has not
    int left;                    // signals sent to the agent since
    bool requeued;
};

/* The head's machine is gone. Slurm keeps the job of the other nodes (--no-kill), so one of them has it start over; when several ask, the
 * first counts. */
static void job_requeue(const struct step *s, double silent_s)
{
    char *argv[] = { "scontrol", "requeue", getenv("SLURM_JOB_ID"), NULL };
    struct buf none = BUF_INIT;
    struct error err;
    int status = 1;
    fprintf(stderr,
            "rollcall launch: node '%s' has not reached the head of the run for %.0f s; the job is requeued, and goes on from the "
            "last checkpoint\n",
            s->node, silent_s);
    if (argv[2] && !program_run(argv, STATUS_MS, NULL, &none, &status, &err))
        fprintf(stderr, "rollcall launch: %s\n", err.text);
    buf_release(&none);
}

/* Is the head still there? When it has ended by itself, an agent that has not heard of it leaves. */
static void head_watch_look(struct head_watch *w, const struct step *s, const struct run_head *head, pid_t agent)
{
    struct error err;
    char ended[PATH_MAX];
    int64_t now = clock_ms(), lost_s = plan_number(s, "lost_s");
    if (now < w->next_ms)
        return;
    if (path_join(ended, sizeof ended, s->run_dir, LAUNCH_EXIT) && path_exists(ended)) {
        w->over_ms = w->over_ms ? w->over_ms : now;
        if (now - w->over_ms > (w->left + 1) * (int64_t)FAREWELL_MS) {    // the second signal ends it at once
            w->left++;
            kill(agent, SIGTERM);
        }
        return;
    }
    if (!w->seen_ms || run_head_reach(head, REACH_MS, &err))
        w->seen_ms = clock_ms();
    w->next_ms = clock_ms() + REACH_EVERY_MS;
    if (!w->requeued && now - w->seen_ms > 1000 * lost_s) {
        w->requeued = true;
        job_requeue(s, (double)(now - w->seen_ms) / 1000);
    }
}

static bool node_run(const struct step *s, int *code, struct error *err)
{
    char dir[PATH_MAX], join[300], token[PATH_MAX], n_text[16], wait[24];
    struct run_head head;
    const char *address;
    pid_t agent;
    struct head_watch watch = { .seen_ms = 0 };
    int told = 0;
    if (!head_find(s, &head, &address, err) || !folder_find(s, dir, err))
        return false;
    if (!path_join(token, sizeof token, s->run_dir, NODE_TOKEN_FILE))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", s->run_dir);
    snprintf(join, sizeof join, "tcp://%s", address);
    snprintf(n_text, sizeof n_text, "%" PRId64, plan_number(s, "gpus"));
    snprintf(wait, sizeof wait, "%" PRId64, plan_number(s, "wait_s"));
    const char *argv[20] = { "rollcall", "agent", "--join", join, "--token-file", token, "--name", s->node, "--dir", dir, "--wait", wait };
    if (plan_number(s, "gpus") > 0) {
        argv[12] = "--inferencers";
        argv[13] = n_text;
    }
    if (!child_start((char *const *)argv, &agent, err))
        return false;
    while ((*code = child_look(agent)) < 0) {
        if (n_signal > told) {
            told = n_signal;
            kill(agent, SIGTERM);
        }
        head_watch_look(&watch, s, &head, agent);
        poll(NULL, 0, LOOK_MS);
    }
    struct error why;
    if (*code == 0 && !dir_remove(dir, &why))    // after a failure its logs are kept
        fprintf(stderr, "rollcall launch: %s\n", why.text);
    if (*code != 0)
        fprintf(stderr, "rollcall launch: node '%s' has failed; its logs are on it, in %s/logs\n", s->node, dir);
    return true;
}

/* ---- the command ---- */

static int64_t variable_number(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    int64_t n;
    return text && parse_i64(text, &n) ? n : otherwise;
}

static bool step_open(struct step *s, const char *run_dir, struct error *err)
{
    char path[PATH_MAX], host[256] = "";
    struct buf text = BUF_INIT;
    const char *name = getenv("SLURMD_NODENAME"), *job = getenv("SLURM_JOB_ID");
    gethostname(host, sizeof host - 1);
    snprintf(s->node, sizeof s->node, "%s", name ? name : host);
    s->node[strcspn(s->node, ".")] = 0;
    if (!realpath(run_dir, s->run_dir) || !path_join(path, sizeof path, s->run_dir, LAUNCH_PLAN) || !path_exists(path))
        return error_set(err, ERR_NOT_FOUND,
                         "node '%s' does not see '%s/" LAUNCH_PLAN "'; put the run on a file system that all nodes share, with --runs-dir",
                         s->node, run_dir);
    bool ok = file_read_text(&text, path, PLAN_BYTES_MAX, err)
              && ((s->plan = json_text_read(buf_text(&text), text.len, 0, NULL)) || error_set(err, ERR_DATA, "'%s' is damaged", path));
    buf_release(&text);
    if (!ok)
        return false;
    s->rank = variable_number("SLURM_PROCID", 0);
    s->n_node = variable_number("SLURM_NTASKS", plan_number(s, "nodes"));
    snprintf(s->start, sizeof s->start, "%.40s.%" PRId64, job ? job : "0", variable_number("SLURM_RESTART_COUNT", 0));
    return chdir(plan_text(s, "cwd")) == 0
           || error_errno(err, "node '%s' cannot enter '%s', the folder in which the job was submitted", s->node, plan_text(s, "cwd"));
}

static bool launch_cmd(int argc, char **argv, struct error *err)
{
    const char *run_dir = NULL;
    struct step s = { .rank = 0 };
    int code = 1;
    struct cli_option options[] = { { "run", NULL, CLI_STR, &run_dir, "DIR", "the run's directory" } };
    struct cli cli = {
        .command = "rollcall launch",
        .options = options,
        .n_options = ARRAY_SIZE(options),
        .about = "Runs on each node of a job that 'rollcall train --slurm' has submitted: the first is the head of the run."
    };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (!run_dir)
        return error_set(err, ERR_USAGE, "--run is needed");
    struct sigaction sa = { .sa_handler = on_signal };
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGHUP, &sa, NULL);
    bool ok = step_open(&s, run_dir, err) && (s.rank == 0 ? head_run(&s, &code, err) : node_run(&s, &code, err));
    json_decref(s.plan);
    if (ok && code != 0)
        exit(code);    // what the child has said stands in the log already
    return ok;
}

const struct subcommand launch_subcommand = { "launch", launch_cmd, NULL };
