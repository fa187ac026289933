#include "protocol/run/spawn.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/base/buf.h"
#include "protocol/base/child.h"
#include "protocol/base/cli.h"
#include "protocol/base/file.h"
#include "protocol/base/secret.h"

extern char **environ;

/* The environment for a process of the run: only exporters get keys, and agent and keeper, which pass them on. The caller frees the
 * list, not its texts. */
static char **environment_for(const char *command)
{
    bool keys = strcmp(command, "exporter") == 0 || strcmp(command, "agent") == 0;
    size_t n = 0, k = 0;
    while (environ[n])
        n++;
    char **list = calloc(n + 1, sizeof *list);
    for (size_t i = 0; list && i < n; i++)
        if (keys || !secret_env_is(environ[i]))
            list[k++] = environ[i];
    return list;
}

pid_t process_spawn(const char *command, const char *run_dir, const char *name, int lock_fd, bool session, struct error *err)
{
    char file[64], path[4300];
    pid_t pid = -1;
    posix_spawn_file_actions_t actions;
    process_file_name(name, file, sizeof file);
    snprintf(path, sizeof path, "%s/logs/%s.log", run_dir, file);
    char *argv[] = { "rollcall", (char *)command, "--run", (char *)run_dir, "--name", (char *)name, NULL };
    int log = file_create(path, O_WRONLY | O_APPEND, 0644, err);
    if (log < 0)
        return -1;
    int parked = fcntl(lock_fd, F_DUPFD_CLOEXEC, RUN_LOCK_FD + 1);    // above the descriptors that the child is given
    if (parked < 0) {
        error_errno(err, "cannot pass the run's lock on");
        close(log);
        return -1;
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, log, 1);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, parked, RUN_LOCK_FD);
    char **env = environment_for(command);
    int rv = env ? child_spawn(&pid, "/proc/self/exe", &actions, CHILD_OURS | (session ? CHILD_SESSION : 0), argv, env) : ENOMEM;
    free(env);
    if (rv != 0) {
        char what[160];
        snprintf(what, sizeof what, "'%s'", name);
        child_unspawned(rv, what, err);
        pid = -1;
    }
    posix_spawn_file_actions_destroy(&actions);
    close(parked);
    close(log);
    return pid;
}

/* What sigabbrev_np gives, which the C library has since 2.32; the package for pip is built with 2.31. */
static const char *const signal_words[] = {
    [SIGHUP] = "HUP",   [SIGINT] = "INT",       [SIGQUIT] = "QUIT",     [SIGILL] = "ILL",     [SIGTRAP] = "TRAP", [SIGABRT] = "ABRT",
    [SIGBUS] = "BUS",   [SIGFPE] = "FPE",       [SIGKILL] = "KILL",     [SIGUSR1] = "USR1",   [SIGSEGV] = "SEGV", [SIGUSR2] = "USR2",
    [SIGPIPE] = "PIPE", [SIGALRM] = "ALRM",     [SIGSTKFLT] = "STKFLT", [SIGTERM] = "TERM",   [SIGCHLD] = "CHLD", [SIGCONT] = "CONT",
    [SIGSTOP] = "STOP", [SIGTSTP] = "TSTP",     [SIGTTIN] = "TTIN",     [SIGTTOU] = "TTOU",   [SIGURG] = "URG",   [SIGXCPU] = "XCPU",
    [SIGXFSZ] = "XFSZ", [SIGVTALRM] = "VTALRM", [SIGPROF] = "PROF",     [SIGWINCH] = "WINCH", [SIGPOLL] = "POLL", [SIGPWR] = "PWR",
    [SIGSYS] = "SYS",
};

void process_end_words(int status, char *out, size_t size)
{
    if (!WIFSIGNALED(status)) {
        snprintf(out, size, "ended with status %d", WEXITSTATUS(status));
        return;
    }
    const char *word = WTERMSIG(status) < (int)ARRAY_SIZE(signal_words) ? signal_words[WTERMSIG(status)] : NULL;
    snprintf(out, size, "was killed by signal %d (SIG%s)", WTERMSIG(status), word ? word : "?");
}

void process_file_name(const char *name, char *out, size_t size)
{
    snprintf(out, size, "%s", name);
    for (char *c = out; *c; c++)
        if (*c == ' ' || *c == ':' || *c == '/')
            *c = '-';
}

static void pid_path(const char *run_dir, const char *name, char *out, size_t size)
{
    char file[64];
    process_file_name(name, file, sizeof file);
    snprintf(out, size, "%s/sock/%s.pid", run_dir, file);
}

bool process_note(const char *run_dir, const char *name, struct error *err)
{
    char path[4300], temp[4320], text[32];
    pid_path(run_dir, name, path, sizeof path);
    snprintf(temp, sizeof temp, "%s.%d", path, (int)getpid());
    int fd = file_create(temp, O_WRONLY | O_TRUNC, 0600, err);
    if (fd < 0)
        return false;
    int n = snprintf(text, sizeof text, "%d\n", (int)getpid());
    bool ok = write(fd, text, (size_t)n) == n;
    ok = close(fd) == 0 && ok;
    ok = ok && rename(temp, path) == 0;
    return ok || error_errno(err, "cannot write '%s'", path);
}

/* The arguments of a process, each ended by a NUL; empty when it is gone. */
static void cmdline_read(pid_t pid, struct buf *b)
{
    char path[64], chunk[1024];
    ssize_t n;
    buf_clear(b);
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    while ((n = read(fd, chunk, sizeof chunk)) > 0 && b->len < 65536)
        buf_add(b, chunk, (size_t)n);
    close(fd);
}

/* The argument after word, or "" when word is the last; NULL: word is not an argument. */
static const char *cmdline_after(const struct buf *b, const char *word)
{
    for (size_t at = 0; at < b->len; at += strlen(b->data + at) + 1)
        if (strcmp(b->data + at, word) == 0)
            return at + strlen(word) + 1 < b->len ? b->data + at + strlen(word) + 1 : "";
    return NULL;
}

/* Does /proc/PID/cmdline hold these two as whole arguments? */
static bool cmdline_has(pid_t pid, const char *first, const char *second)
{
    struct buf b = BUF_INIT;
    cmdline_read(pid, &b);
    bool has = cmdline_after(&b, first) && cmdline_after(&b, second);
    buf_release(&b);
    return has;
}

pid_t process_find(const char *run_dir, const char *name)
{
    char path[4300];
    struct error err;
    struct buf text = BUF_INIT;
    int64_t pid = 0;
    pid_path(run_dir, name, path, sizeof path);
    if (path_exists(path) && file_read(&text, path, 64, &err)) {
        if (text.len && text.data[text.len - 1] == '\n')
            text.data[--text.len] = 0;
        if (!parse_i64(buf_text(&text), &pid) || pid <= 1 || !cmdline_has((pid_t)pid, run_dir, name))
            pid = 0;
    }
    buf_release(&text);
    return (pid_t)pid;
}

int run_processes(const char *run_dir, struct run_process *out, int max)
{
    struct buf b = BUF_INIT;
    const struct dirent *e;
    int n = 0;
    DIR *d = opendir("/proc");
    while (d && n < max && (e = readdir(d))) {
        int64_t pid;
        if (!parse_i64(e->d_name, &pid) || pid == getpid())
            continue;
        cmdline_read((pid_t)pid, &b);
        const char *name = cmdline_after(&b, run_dir) ? cmdline_after(&b, "--name") : NULL;
        if (name) {
            out[n].pid = (pid_t)pid;
            snprintf(out[n++].name, sizeof out->name, "%s", name);
        }
    }
    if (d)
        closedir(d);
    buf_release(&b);
    return n;
}

void run_kill(const char *run_dir)
{
    static const char *const first[] = { "keeper", "agent" };
    struct run_process found[RUN_PROCESSES_MAX];
    for (int round = 0; round < 3; round++) {    // a process that a dying parent has just started is found in the next round
        for (size_t i = 0; i < ARRAY_SIZE(first); i++) {
            pid_t pid = process_find(run_dir, first[i]);
            if (pid > 0)
                kill(pid, SIGKILL);
        }
        for (int n = run_processes(run_dir, found, RUN_PROCESSES_MAX); n > 0; n--)
            kill(found[n - 1].pid, SIGKILL);
    }
}

void run_weights_remove(const char *run_dir)
{
    char path[4300];
    snprintf(path, sizeof path, "%s/sock", run_dir);
    DIR *d = opendir(path);
    const struct dirent *e;
    while (d && (e = readdir(d)))
        if (strncmp(e->d_name, "weights-", 8) == 0)
            unlinkat(dirfd(d), e->d_name, 0);    // a file that cannot be removed now is tried again at the next start
    if (d)
        closedir(d);
}

void log_last_line(const char *run_dir, const char *name, char *out, size_t size)
{
    char file[64], path[4300], tail[2048];
    process_file_name(name, file, sizeof file);
    snprintf(path, sizeof path, "%s/logs/%s.log", run_dir, file);
    out[0] = 0;
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    if (fseek(f, -(long)(sizeof tail - 1), SEEK_END) != 0)
        rewind(f);
    size_t n = fread(tail, 1, sizeof tail - 1, f);
    fclose(f);
    while (n > 0 && tail[n - 1] == '\n')
        n--;
    tail[n] = 0;
    const char *line = strrchr(tail, '\n');
    snprintf(out, size, "%s", line ? line + 1 : tail);
}
