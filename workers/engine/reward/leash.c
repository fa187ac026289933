#include "workers/engine/reward/leash.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/base/child.h"
#include "protocol/base/clock.h"
#include "protocol/base/macros.h"
#include "protocol/base/proc_stat.h"

#define NAME "rollcall-leash"
#define END_FD 3
#define ERRORS_MAX (1 << 20)    // bytes of a program's standard error that are passed on as they come
#define ERRORS_END 8192         // and bytes of its end, when there are more
#define KILLED_MS 5000          // for what has been killed to be gone; what hangs in the kernel is left
#define STUCK_MS 7000           // for a leash to end

/* ---- in the process that holds the program ---- */

static void children_kill(void)
{
    DIR *proc = opendir("/proc");
    for (struct dirent *e; proc && (e = readdir(proc));) {
        pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);
        struct proc_stat s;
        if (proc_stat_read(pid, &s) && s.parent == getpid())
            kill(pid, SIGKILL);
    }
    if (proc)
        closedir(proc);
}

/* The children of a child that dies are ours next. */
static void all_kill(void)
{
    for (int64_t end = clock_ms() + KILLED_MS;;) {
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0) {
        }
        if (pid < 0 || clock_ms() >= end)    // there is none
            return;
        children_kill();
        usleep(1000);
    }
}

/* Orphans that have ended are taken off the list of processes meanwhile. *how: the program's status when it has ended. */
static bool has_ended(pid_t program, int *how)
{
    bool ended = false;
    pid_t pid;
    int status;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        ended = ended || pid == program;
        if (pid == program)
            *how = child_exit(status);
    }
    return ended;
}

/* The program's standard error goes through here: what it says without end would fill the disk. */
struct errors {
    int from;                // our end of the program's pipe, non-blocking
    int64_t passed, held;    // bytes: those passed on, and those after them, of which `end` has the last in turn
    char end[ERRORS_END];
};

/* Is something there to be read? False also at its end. */
static bool errors_take(struct errors *e)
{
    char part[16384];
    ssize_t n = read(e->from, part, sizeof part);
    if (n <= 0)
        return n < 0 && errno == EINTR;
    ssize_t now = MIN(n, (ssize_t)(ERRORS_MAX - e->passed));
    e->passed += now;
    for (ssize_t done = 0, k = 1; done < now && k > 0; done += k)
        k = write(STDERR_FILENO, part + done, (size_t)(now - done));    // what nobody takes is lost, as it would be without us
    for (ssize_t i = now; i < n; i++)
        e->end[e->held++ % ERRORS_END] = part[i];
    return true;
}

/* All that is still there, and the end of what was held back. The loop has a bound, since a
 * process that we may not end could go on writing. */
static void errors_finish(struct errors *e)
{
    char end[ERRORS_END];
    for (int i = 0; i < 1024 && errors_take(e); i++) {
    }
    int64_t n = MIN(e->held, (int64_t)ERRORS_END);
    for (int64_t i = 0; i < n; i++)
        end[i] = e->end[(e->held - n + i) % ERRORS_END];
    if (e->held > n)
        dprintf(STDERR_FILENO, "\n[%" PRId64 " bytes of the program's standard error are left out here; its end follows]\n", e->held - n);
    if (n > 0)
        (void)!write(STDERR_FILENO, end, (size_t)n);
}

static void __attribute__((noreturn)) program_exec(const char *command, pid_t leash, int errors)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == leash && setpgid(0, 0) == 0 && dup2(errors, STDERR_FILENO) == STDERR_FILENO) {
        syscall(__NR_close_range, END_FD, ~0u, 0);    // the C library has it since 2.34
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    }
    _exit(127);
}

static int leash_run(const char *command)
{
    struct rlimit no_core = { 0, 0 };
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    setpgid(0, 0);    // a signal to our starter's group is not meant for it
    setrlimit(RLIMIT_CORE, &no_core);
    syscall(__NR_close_range, END_FD + 1, ~0u, 0);
    int change = sigprocmask(SIG_BLOCK, &child, NULL) == 0 ? signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK) : -1;
    int said[2];
    if (change < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 || pipe2(said, O_CLOEXEC) != 0)
        return 126;
    pid_t leash = getpid(), program = fork();
    if (program == 0)
        program_exec(command, leash, said[1]);
    signal(SIGPIPE, SIG_IGN);    // standard error may lead nowhere, or to a file that grows no more
    signal(SIGXFSZ, SIG_IGN);
    if (program < 0) {
        struct error err;
        child_unspawned(errno, "it", &err);
        dprintf(STDERR_FILENO, "%s\n", err.text);
        return 126;
    }
    close(STDIN_FILENO);    // so that the program's ends of the pipes are the only ones
    close(STDOUT_FILENO);
    close(said[1]);
    fcntl(said[0], F_SETFL, O_NONBLOCK);
    struct errors errors = { .from = said[0] };
    struct pollfd fds[3] = { { .fd = END_FD, .events = POLLIN }, { .fd = change, .events = POLLIN }, { .fd = said[0], .events = POLLIN } };
    struct signalfd_siginfo told;
    int how = 0;
    while (!has_ended(program, &how) && (poll(fds, 3, -1) > 0 || errno == EINTR) && fds[0].revents == 0) {
        (void)!read(change, &told, sizeof told);
        if (fds[2].revents && !errors_take(&errors) && (fds[2].revents & POLLHUP))
            fds[2].fd = -1;    // the program has closed it
    }
    all_kill();
    errors_finish(&errors);
    return how;
}

/* Every executable that holds programs can be the process that does. */
static void __attribute__((constructor)) leash_main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[0], NAME) == 0)
        _exit(leash_run(argv[1]));
}

/* ---- in the process that starts it ---- */

bool leash_start(struct leash *l, const char *command, int in, int out, int errors, char *const env[], const char *what, struct error *err)
{
    char *argv[] = { NAME, (char *)command, NULL };
    int pipe[2], given[4] = { in, out, errors > 0 ? errors : STDERR_FILENO, -1 }, n = 0;
    posix_spawn_file_actions_t actions;
    *l = (struct leash){ .end = -1 };
    if (pipe2(pipe, O_CLOEXEC) != 0)
        return error_errno(err, "cannot make a pipe for %s", what);
    given[END_FD] = pipe[0];
    posix_spawn_file_actions_init(&actions);
    for (; n < 4 && (given[n] = fcntl(given[n], F_DUPFD_CLOEXEC, 4)) >= 0; n++)    // above those that are replaced
        posix_spawn_file_actions_adddup2(&actions, given[n], n);
    int rv = n < 4 ? errno : child_spawn(&l->pid, "/proc/self/exe", &actions, 0, argv, env);
    posix_spawn_file_actions_destroy(&actions);
    while (n > 0)
        close(given[--n]);
    close(pipe[0]);
    l->end = pipe[1];
    if (rv == 0)
        return true;
    l->pid = 0;
    leash_end(l, 0);
    return child_unspawned(rv, what, err);
}

/* Wait at most wait_ms for the leash to end, which it does once the program and all its children are gone. True: it has. */
static bool leash_wait(struct leash *l, int64_t wait_ms)
{
    int status = 0;
    for (int64_t end = clock_ms() + wait_ms; l->pid > 0; usleep(1000)) {
        pid_t ended = waitpid(l->pid, &status, WNOHANG);
        if (ended > 0)
            l->status = child_exit(status);
        if (ended != 0)
            l->pid = 0;
        else if (clock_ms() >= end)
            return false;
    }
    return true;
}

void leash_end(struct leash *l, int64_t wait_ms)
{
    leash_wait(l, wait_ms);
    if (l->end >= 0)
        close(l->end);
    l->end = -1;
    if (leash_wait(l, STUCK_MS))
        return;
    kill(l->pid, SIGKILL);    // then the program dies with it, and what the program has left stays
    waitpid(l->pid, NULL, 0);
    l->pid = 0;
}
