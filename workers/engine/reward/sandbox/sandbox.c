/* Structure: one bubblewrap per host, which hides the machine and contains a zygote (driver.py) that never runs untrusted code; for
 * each completion the zygote clones itself into separate namespaces. Starting bubblewrap and an interpreter for each completion
 * instead costs about 11 ms of processor time (bubblewrap 0.8, Python 3.11). Invariants:
 *  1. Neither an expected output nor a byte of another completion is ever inside: a sandbox gets one program, then its inputs.
 *  2. What comes out is data: the bytes of the output file and a wait status. The program may forge both only in ways
 *     that equal printing something else or failing in another way; it cannot know what to forge.
 *  3. Only this side has a clock. A sandbox that overruns is killed as a whole: with pid 1 of its namespace the kernel
 *     kills everything inside. When the scorer dies, bubblewrap dies with it, and so all sandboxes.
 *  4. Until the program is loaded, and when the zygote itself has died, a failure is the sandbox's (CASE_SANDBOX); otherwise it
 *     is the program's.
 *  5. The driver is pid 1 inside: the program cannot end or stop it with a signal, and has no /proc, ptrace or process_vm_* to
 *     reach into it.
 *  6. All memory of a sandbox is limited. Where we may make cgroups the kernel does it (cgroup.h). Elsewhere the filter refuses
 *     memory that can exist without being mapped, and what is mapped is summed up every TICK_MS (memory.h). If the machine
 *     still runs out, the kernel kills sandboxes first.
 * States: asked for (sandbox_start) -> ready (sandbox_ready) -> loaded (sandbox_load) -> dead (sandbox_kill). */
#include "workers/engine/reward/sandbox/sandbox.h"
#include <inttypes.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "workers/engine/reward/sandbox/cgroup.h"
#include "workers/engine/reward/sandbox/filter.h"
#include "workers/engine/reward/sandbox/memory.h"
#include "workers/engine/reward/sandbox/userns.h"
#include "asserts_py.h"    // made by sandbox.cmake: the files' texts
#include "crossing_py.h"
#include "driver_py.h"
#include "program_end_py.h"
#include "test_end_py.h"

#define BWRAP "/usr/bin/bwrap"
#define PYTHON "/usr/bin/python3"
/* Started by root, the sandbox runs under a separate uid, since no process limit binds root: the last one that Debian's
 * policy (section 9.2.2) reserves without assigning it. An ordinary user's sandboxes run as that user, mapped to the
 * same number. */
#define SANDBOX_UID 65533
#define N_SPARE 2                  // sandboxes started ahead
#define START_MS 60000             // for bwrap and the interpreter to come up; milliseconds on an idle machine
#define PING_MS 10000              // for the interpreter's answer while nothing but its clones holds it up
#define KILLED "exit 9"            // the driver's word for a program ended by SIGKILL
#define KERNEL_BYTES (64 << 20)    // memory that the kernel may take for a sandbox: buffers, page tables, in- and output
#define TICK_MS 10                 // interval of the checks of a running sandbox's memory

const struct sandbox_limits sandbox_limits_default = {
    .case_s = 10,
    .mem_bytes = 1 << 30,
    .out_bytes = 4 << 20,
    .tmp_bytes = 16 << 20,
    .n_task = 32,
};

const char sandbox_asserts[] = "assertions";

struct sandbox {
    struct sandbox_host *host;
    pid_t driver;                 // pid 1 inside, by its number outside; 0: not known yet, or killed
    int pidfd;                    // of it
    int control;                  // packets to and from the driver
    int input, output, errors;    // memory files; errors is what the driver writes to descriptor 2
    bool ready, loaded, dead;
    int cgroup;    // which of the host's groups; -1: none
};
struct sandbox_host {
    struct sandbox_limits limits;
    struct cgroup_set *cgroups;    // NULL: we cannot make any on this machine; no_cgroups says why
    char no_cgroups[512];
    char lacks[64];                    // modules that many programs import and this machine's Python does not have
    int filter;                        // memory file: the compiled seccomp filter
    int driver;                        // memory file: driver.py and asserts.py as marshalled code
    pid_t bwrap;                       // our child, the outer box with the zygote in it; 0: none
    int zygote;                        // packets to the zygote
    int errors;                        // memory file: what bwrap and the zygote write to descriptor 2
    struct sandbox *spare[N_SPARE];    // made, waiting for a program; NULL: none
};

const char *case_status_name(enum case_status status)
{
    static const char *const names[] = {
        [CASE_OK] = "ok",
        [CASE_ANSWER] = "wrong answer",
        [CASE_TIMEOUT] = "time-out",
        [CASE_MEMORY] = "memory limit",
        [CASE_OUTPUT] = "output limit",
        [CASE_CRASH] = "crash",
        [CASE_COMPILE] = "compile error",
        [CASE_MISSING] = "missing function",
        [CASE_SANDBOX] = "sandbox error",
    };
    return names[status];
}

struct limit {
    __rlimit_resource_t what;
    struct rlimit limit;
};
#define N_LIMIT 6
#define N_FD 7

/* Have the kernel kill this process and its children before all others when the machine runs out of memory. */
static bool oom_first(void)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY);
    bool ok = fd >= 0 && write(fd, "1000", 4) == 4;    // proc(5): the maximum; any process may raise its own
    if (fd >= 0)
        close(fd);
    return ok;
}

/* The forked child's half of zygote_start: only system calls. fds become descriptors 2, 3 and so on; -1: none there. */
static void __attribute__((noreturn)) bwrap_exec(char *const *argv, const int fds[N_FD], const struct limit limits[N_LIMIT])
{
    int high[N_FD];
    for (int i = 0; i < N_FD; i++) {
        high[i] = fds[i] < 0 ? -1 : fcntl(fds[i], F_DUPFD, 64);
        if (fds[i] >= 0 && high[i] < 0)
            _exit(126);
    }
    int null = open("/dev/null", O_RDWR);
    if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0)
        _exit(126);
    for (int i = 0; i < N_FD; i++)
        if (dup2(high[i] < 0 ? null : high[i], 2 + i) < 0)
            _exit(126);
    syscall(__NR_close_range, 2 + N_FD, ~0u, 0);    // the C library has it since 2.34
    for (int i = 0; i < N_LIMIT; i++)
        if (setrlimit(limits[i].what, &limits[i].limit) != 0)
            _exit(126);
    sigset_t empty;
    sigemptyset(&empty);
    sigprocmask(SIG_SETMASK, &empty, NULL);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    if (chdir("/") != 0 || !oom_first())
        _exit(126);
    if (geteuid() == 0
        && (setgroups(0, NULL) != 0 || setresgid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID) != 0
            || setresuid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID) != 0)) {
        static const char text[] = "cannot change to an unprivileged uid";
        ssize_t n = write(2, text, sizeof text - 1);
        _exit(n > 0 ? 125 : 126);
    }
    execv(argv[0], argv);
    _exit(127);
}

/* Wait for a packet for at most wait_ms. Returns its length (NUL-terminated in text), 0: the other side is gone, -1:
 * nothing came. pid, unless NULL, is set to the sender's, by its number outside. */
static ssize_t packet_wait(int fd, char *text, size_t size, int64_t wait_ms, pid_t *pid)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(struct ucred))];
    } extra;
    struct iovec part = { text, size - 1 };
    struct msghdr msg = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = extra.space, .msg_controllen = sizeof extra };
    if (poll(&p, 1, (int)MAX(wait_ms, 0)) <= 0)
        return -1;
    ssize_t n = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? -1 : 0;
    text[n] = 0;
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    if (pid && c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS) {
        struct ucred who;
        memcpy(&who, CMSG_DATA(c), sizeof who);
        *pid = who.pid;
    }
    return n;
}

/* The text written to descriptor 2 inside, on one line. */
static void errors_text(int fd, char *text, size_t size)
{
    ssize_t n = pread(fd, text, size - 1, 0);
    text[n > 0 ? n : 0] = 0;
    for (char *p = text; *p; p++)
        if (*p == '\n')
            *p = p[1] ? ';' : 0;
}

static void zygote_stop(struct sandbox_host *h)
{
    for (int i = 0; i < N_SPARE; i++) {
        sandbox_free(h->spare[i]);
        h->spare[i] = NULL;
    }
    fd_close(&h->zygote);
    fd_close(&h->errors);
    if (h->bwrap > 0) {
        kill(h->bwrap, SIGKILL);    // its child dies with it, and all namespaces with that
        while (waitpid(h->bwrap, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    h->bwrap = 0;
}

/* Start bwrap with the zygote inside and wait until it is up. */
static bool zygote_start(struct sandbox_host *h, struct error *err)
{
    char boot[200], text[600];
    int pair[2] = { -1, -1 };
    bool ok = false;
    h->errors = memfd_create("sandbox-errors", MFD_CLOEXEC);
    if (h->errors < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        error_errno(err, "cannot make the descriptors of a sandbox");
        goto out;
    }
    snprintf(boot, sizeof boot,
             "import marshal,posix;N_TASK=%" PRId64 ";TMP_BYTES=%" PRId64
             ";CPU_S=%d;c,ASSERTS=marshal.loads(posix.pread(6,1<<20,0));exec(c)",
             h->limits.n_task, h->limits.tmp_bytes, (int)ceil(h->limits.case_s) + 1);
    rlim_t mem = (rlim_t)h->limits.mem_bytes, out_max = (rlim_t)h->limits.out_bytes;
    const struct limit limits[N_LIMIT] = {
        // of tasks and processor time: see driver.py
        { RLIMIT_CORE, { 0, 0 } },    { RLIMIT_NOFILE, { 128, 128 } }, { RLIMIT_AS, { mem, mem } }, { RLIMIT_FSIZE, { out_max, out_max } },
        { RLIMIT_MEMLOCK, { 0, 0 } }, { RLIMIT_MSGQUEUE, { 0, 0 } },
    };
    // clang-format off
    char *argv[] = {
        BWRAP, "--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534", "--die-with-parent",
        "--new-session", "--as-pid-1", "--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN", "--clearenv", "--setenv",
        "PATH", "/usr/bin", "--setenv", "HOME", "/tmp", "--setenv", "LANG", "C.UTF-8", "--setenv", "PYTHONHASHSEED",
        "0", "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
        "--symlink", "usr/bin", "/bin", "--dev-bind", "/dev/null", "/dev/null", "--dev-bind", "/dev/urandom",
        "/dev/urandom", "--dir", "/tmp", "--symlink", "/tmp", "/dev/shm", "--remount-ro", "/", PYTHON, "-I", "-S", "-B", "-X", "utf8", "-X",
        "int_max_str_digits=0", "-c", boot, NULL,
    };
    // clang-format on
    pid_t pid = fork();
    if (pid < 0) {
        error_errno(err, "cannot start a process for a sandbox");
        goto out;
    }
    if (pid == 0)
        bwrap_exec(argv, (const int[N_FD]){ h->errors, pair[1], -1, -1, h->driver, -1, h->filter }, limits);
    h->bwrap = pid;
    h->zygote = pair[0];
    pair[0] = -1;
    fd_close(&pair[1]);
    ssize_t n = packet_wait(h->zygote, text, sizeof text, START_MS, NULL);
    if (n <= 0 || strcmp(text, "ready") != 0) {
        errors_text(h->errors, text, sizeof text);
        error_set(err, ERR_UNSUPPORTED, "the sandbox did not start%s: %s", n < 0 ? " in time" : "",
                  text[0] ? text : "bubblewrap ended without a word");
        goto out;
    }
    ok = true;
out:
    fd_close(&pair[0]);
    fd_close(&pair[1]);
    if (!ok)
        zygote_stop(h);
    return ok;
}

/* Have the zygote make a sandbox; does not wait. NULL: see err. */
static struct sandbox *sandbox_start(struct sandbox_host *h, struct error *err)
{
    struct sandbox *s = calloc(1, sizeof *s);
    int pair[2] = { -1, -1 }, yes = 1;
    bool ok = false;
    if (!s) {
        error_set(err, ERR_NO_MEMORY, "no memory for a sandbox");
        return NULL;
    }
    *s = (struct sandbox){ .host = h, .control = -1, .pidfd = -1, .cgroup = -1 };
    /* without MFD_ALLOW_SEALING: the program cannot seal a file against us */
    s->input = memfd_create("sandbox-input", MFD_CLOEXEC);
    s->output = memfd_create("sandbox-output", MFD_CLOEXEC);
    s->errors = memfd_create("sandbox-errors", MFD_CLOEXEC);
    if (s->input < 0 || s->output < 0 || s->errors < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0
        || setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) != 0) {
        error_errno(err, "cannot make the descriptors of a sandbox");
        goto out;
    }
    int fds[4] = { pair[1], s->input, s->output, s->errors };
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof fds)];
    } extra = { .space = { 0 } };
    struct iovec part = { "new", 3 };
    struct msghdr msg = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = extra.space, .msg_controllen = sizeof extra };
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(c), fds, sizeof fds);
    if (h->bwrap == 0 || sendmsg(h->zygote, &msg, MSG_NOSIGNAL) < 0) {
        error_errno(err, "the sandboxes' interpreter is gone");
        goto out;
    }
    s->control = pair[0];
    pair[0] = -1;
    ok = true;
out:
    fd_close(&pair[0]);
    fd_close(&pair[1]);
    if (!ok) {
        sandbox_free(s);
        s = NULL;
    }
    return s;
}

/* Kill everything inside. With wait, also wait for it to end: pid 1 of a namespace ends after all others there. A dying
 * fork bomb would count against the next sandbox's process limit. */
static void sandbox_kill(struct sandbox *s, bool wait)
{
    s->dead = true;
    if (s->driver <= 0)
        return;
    s->driver = 0;
    syscall(SYS_pidfd_send_signal, s->pidfd, SIGKILL, NULL, 0);
    struct pollfd gone = { .fd = s->pidfd, .events = POLLIN };
    if (wait)
        poll(&gone, 1, START_MS);
}

void sandbox_free(struct sandbox *s)
{
    if (!s)
        return;
    sandbox_kill(s, false);
    if (s->cgroup >= 0)
        cgroup_give(s->host->cgroups, s->cgroup);
    fd_close(&s->pidfd);
    fd_close(&s->control);    // a driver that has not come up yet ends by itself
    fd_close(&s->input);
    fd_close(&s->output);
    fd_close(&s->errors);
    free(s);
}

bool sandbox_is_dead(const struct sandbox *s)
{
    return s->dead;
}

/* Wait until the driver is up. */
static bool sandbox_ready(struct sandbox *s, struct error *err)
{
    char text[600];
    if (s->ready)
        return true;
    ssize_t n = packet_wait(s->control, text, sizeof text, START_MS, &s->driver);
    if (n <= 0 || strcmp(text, "ready") != 0 || s->driver <= 0) {
        errors_text(s->errors, text, sizeof text);
        return error_set(err, ERR_UNSUPPORTED, "the sandbox did not start%s: %s", n < 0 ? " in time" : "",
                         text[0] ? text : "it ended without a word");
    }
    s->pidfd = (int)syscall(SYS_pidfd_open, s->driver, 0);    // it waits for us, so the number is still its own
    if (s->pidfd < 0)
        return error_errno(err, "cannot hold on to a sandbox");
    if (s->host->cgroups && (s->cgroup = cgroup_take(s->host->cgroups, s->driver, err)) < 0)
        return false;
    s->ready = true;
    return true;
}

struct sandbox *sandbox_take(struct sandbox_host *h, struct error *err)
{
    struct error why = { 0 };
    for (int attempt = 0; attempt < 3; attempt++) {
        struct sandbox *s = h->spare[0];
        memmove(&h->spare[0], &h->spare[1], sizeof h->spare - sizeof h->spare[0]);
        h->spare[N_SPARE - 1] = NULL;
        if (!s)
            s = sandbox_start(h, &why);
        for (int i = 0; i < N_SPARE && s; i++)
            if (!h->spare[i])
                h->spare[i] = sandbox_start(h, &why);    // a failure here is reported when it is needed
        if (s && sandbox_ready(s, &why))
            return s;
        sandbox_free(s);
        zygote_stop(h);    // killed from outside, or along with the thread that started it: make a new one
        if (!zygote_start(h, &why))
            break;
    }
    *err = why;
    return NULL;
}

static bool input_fill(struct sandbox *s, const char *data, size_t len, struct error *err)
{
    if (ftruncate(s->input, 0) != 0 || ftruncate(s->output, 0) != 0)
        return error_errno(err, "cannot empty a sandbox's files");
    for (size_t at = 0; at < len;) {
        ssize_t n = pwrite(s->input, data + at, len - at, (off_t)at);
        if (n <= 0)
            return error_errno(err, "cannot write a sandbox's input");
        at += (size_t)n;
    }
    return true;
}

/* Was the zygote killed from outside? No program can reach it. Its own end of its socket closes before the kernel kills what is in
 * its namespace, so this shows why a driver has died; but a clone that is just starting may hold that end for a moment longer, so
 * where a driver has died (doubt) the zygote is asked. One that has gone or does not answer is stopped, so that no spare sandbox of it
 * is taken: what it has said before would still be there to read. */
static bool zygote_has_gone(struct sandbox_host *h, bool doubt)
{
    struct pollfd p = { .fd = h->zygote };
    char text[64];
    if (h->bwrap == 0)
        return true;
    bool gone = poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLERR));
    if (!gone && doubt)
        gone = send(h->zygote, "ping", 4, MSG_NOSIGNAL | MSG_DONTWAIT) != 4
               || packet_wait(h->zygote, text, sizeof text, PING_MS, NULL) <= 0;
    if (!gone)
        return false;
    zygote_stop(h);
    return true;
}

/* Do the processes inside together hold more memory than they may, or were they killed for that? */
static bool sandbox_is_over(const struct sandbox *s)
{
    const struct sandbox_host *h = s->host;
    return h->cgroups ? cgroup_is_over(h->cgroups, s->cgroup) : memory_is_over(s->driver, h->limits.mem_bytes);
}

/* Send a command and wait for its answer, watching clock and memory. CASE_OK: text is the answer. */
static enum case_status command_run(struct sandbox *s, const char *command, double wall_s, char *text, size_t size)
{
    size_t len = strlen(command);
    if (send(s->control, command, len, MSG_NOSIGNAL) != (ssize_t)len) {
        zygote_has_gone(s->host, true);
        sandbox_kill(s, true);    // it was gone before it received the command
        return CASE_SANDBOX;
    }
    int64_t end = clock_ms() + (int64_t)(wall_s * 1000);
    for (;;) {
        int64_t left = end - clock_ms();
        ssize_t n = packet_wait(s->control, text, size, MIN(left, TICK_MS), NULL);
        // while the kernel kills them all, a driver may outlive its program for a moment and report a crash
        bool gone = n >= 0 && zygote_has_gone(s->host, n == 0 || strcmp(text, KILLED) == 0);
        if (n > 0 && !gone)
            return CASE_OK;
        enum case_status status = CASE_OK;
        if (n >= 0)
            status = gone ? CASE_SANDBOX : s->host->cgroups && sandbox_is_over(s) ? CASE_MEMORY : CASE_CRASH;
        else if (left <= 0)
            status = CASE_TIMEOUT;
        else if (sandbox_is_over(s))
            status = CASE_MEMORY;
        if (status != CASE_OK) {
            sandbox_kill(s, true);
            return status;
        }
    }
}

enum case_status sandbox_load(struct sandbox *s, const char *code, size_t len, const char *function, struct error *err)
{
    char command[512] = "S", text[256];
    if (function == sandbox_asserts)
        command[0] = 'A';
    BUG_IF(s->loaded || s->dead, "a sandbox holds one program");
    if (function && function != sandbox_asserts && (size_t)snprintf(command, sizeof command, "F %s", function) >= sizeof command) {
        error_set(err, ERR_DATA, "the name of the function to call is longer than %zu bytes", sizeof command - 3);
        return CASE_SANDBOX;
    }
    if (!input_fill(s, code, len, err))
        return CASE_SANDBOX;
    s->loaded = true;
    enum case_status status = command_run(s, command, s->host->limits.case_s, text, sizeof text);
    if (status == CASE_SANDBOX)
        error_set(err, ERR_CLOSED, "the sandbox ended before it had its program");
    if (status == CASE_CRASH)
        return CASE_COMPILE;    // source that crashes the compiler
    if (status != CASE_OK)
        return status;
    return strcmp(text, "ok") == 0 ? CASE_OK : CASE_COMPILE;
}

/* The meaning of a wait status of the case's process; the numbers are driver.py's. */
static enum case_status status_read(const char *text)
{
    static const enum case_status exits[] = {
        CASE_CRASH, CASE_MEMORY, CASE_OUTPUT, CASE_ANSWER, CASE_MISSING, CASE_CRASH,
    };
    char *end;
    if (strncmp(text, "exit ", 5) != 0)
        return CASE_CRASH;
    long status = strtol(text + 5, &end, 10);
    if (*end || status < 0)
        return CASE_CRASH;
    if (WIFSIGNALED(status))
        return WTERMSIG(status) == SIGXCPU ? CASE_TIMEOUT : WTERMSIG(status) == SIGXFSZ ? CASE_OUTPUT : CASE_CRASH;
    int code = WEXITSTATUS(status);
    if (code == 0)
        return CASE_OK;
    return code >= 80 && code < 80 + (int)ARRAY_SIZE(exits) ? exits[code - 80] : CASE_CRASH;
}

enum case_status sandbox_run(struct sandbox *s, const char *input, size_t len, double wall_s, struct buf *out, struct error *err)
{
    char text[256];
    struct stat st;
    buf_clear(out);
    BUG_IF(!s->loaded || s->dead, "a case without a program");
    if (!input_fill(s, input, len, err))
        return CASE_SANDBOX;
    enum case_status status = command_run(s, "R", MIN(wall_s, s->host->limits.case_s), text, sizeof text);
    if (status == CASE_SANDBOX && !zygote_has_gone(s->host, true))
        status = CASE_CRASH;    // the program is running by now, so it is to blame
    if (status == CASE_SANDBOX)
        error_set(err, ERR_CLOSED, "the sandbox was killed from outside");
    if (status != CASE_OK)
        return status;
    status = status_read(text);
    if (status == CASE_CRASH && s->host->cgroups && sandbox_is_over(s)) {    // the kernel is about to kill the rest
        sandbox_kill(s, true);
        return CASE_MEMORY;
    }
    if (fstat(s->output, &st) != 0) {
        error_errno(err, "cannot look at a sandbox's output");
        return CASE_SANDBOX;
    }
    if (st.st_size >= s->host->limits.out_bytes)
        return CASE_OUTPUT;
    if (status != CASE_OK)
        return status;
    char *data = buf_reserve(out, (size_t)st.st_size);
    if (!data) {
        error_set(err, ERR_NO_MEMORY, "no memory for a program's output");
        return CASE_SANDBOX;
    }
    for (off_t at = 0; at < st.st_size;) {
        ssize_t n = pread(s->output, data + at, (size_t)(st.st_size - at), at);
        if (n <= 0)
            break;
        at += n;
        out->len += (size_t)n;
    }
    data[out->len - (size_t)(data - out->data)] = 0;
    return CASE_OK;
}

/* driver.py and asserts.py, which comes after its parts, as marshalled code, compiled once by the interpreter that will run them. */
static int driver_compile(struct error *err)
{
    int in = memfd_create("driver-source", MFD_CLOEXEC), out = memfd_create("rollcall-driver", MFD_CLOEXEC), status = 0;
    bool ok = false;
    bool written = in >= 0 && dprintf(in, "%s%c%s%s%s%s", driver_py, 0, crossing_py, program_end_py, test_end_py, asserts_py) > 0
                   && lseek(in, 0, SEEK_SET) == 0;
    if (!written || out < 0) {
        error_errno(err, "cannot write the sandbox's driver");
        goto out;
    }
    pid_t pid = fork();
    if (pid < 0) {
        error_errno(err, "cannot start a process");
        goto out;
    }
    if (pid == 0) {
        static char compile[] = "import marshal,posix;d,a=posix.read(0,1<<20).split(b'\\0');"
                                "posix.write(1,marshal.dumps((compile(d,'driver.py','exec'),compile(a,'asserts.py','exec'))))";
        char *argv[] = { PYTHON, "-I", "-S", "-c", compile, NULL };
        if (dup2(in, 0) < 0 || dup2(out, 1) < 0)
            _exit(126);
        execv(PYTHON, argv);
        _exit(127);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (status != 0) {
        error_set(err, ERR_UNSUPPORTED,
                  "code rewards need a Python 3 with its standard library at %s, and it could not compile "
                  "the sandbox's driver (status %d)",
                  PYTHON, status);
        goto out;
    }
    ok = true;
out:
    fd_close(&in);
    if (!ok)
        fd_close(&out);
    return out;
}

/* The canary: a harmless program that computes, and that reports anything it can reach and should not. */
static bool canary_run(struct sandbox_host *h, struct error *err)
{
    static const char code[] = "import os, socket\n"
                               "found = []\n"
                               "for path in ('/etc', '/home', '/root', '/proc', '/sys', '/var', '/run'):\n"
                               "    if os.path.exists(path): found.append(path)\n"
                               "for path in ('/usr/x', '/x', '/dev/x'):\n"
                               "    try: open(path, 'w'); found.append('writing ' + path)\n"
                               "    except OSError: pass\n"
                               "try: socket.socket(); found.append('sockets')\n"
                               "except OSError: pass\n"
                               "if os.getpid() == 1 or os.getuid() == 0: found.append('privileges')\n"
                               "print(input(), *found)\n"
                               "import importlib.util\n"
                               "print(*(m for m in ('numpy',) if importlib.util.find_spec(m) is None))\n";
    static const char input[] = "canary";
    struct buf out = BUF_INIT;
    bool ok = false;
    struct sandbox *s = sandbox_take(h, err);
    if (!s)
        return false;
    enum case_status status = sandbox_load(s, code, sizeof code - 1, NULL, err);
    if (status == CASE_OK)
        status = sandbox_run(s, input, sizeof input - 1, h->limits.case_s, &out, err);
    if (status == CASE_SANDBOX)
        goto out;
    if (status != CASE_OK) {
        char text[300];
        errors_text(s->errors, text, sizeof text);
        error_set(err, ERR_UNSUPPORTED, "a harmless program did not run in the sandbox: %s; %s", case_status_name(status), text);
        goto out;
    }
    static const char contained[] = "canary\n";
    if (strncmp(buf_text(&out), contained, sizeof contained - 1) != 0) {
        error_set(err, ERR_UNSUPPORTED, "the sandbox does not contain: a program could reach '%.200s'", buf_text(&out));
        goto out;
    }
    snprintf(h->lacks, sizeof h->lacks, "%.*s", (int)strcspn(buf_text(&out) + sizeof contained - 1, "\n"),
             buf_text(&out) + sizeof contained - 1);
    ok = true;
out:
    buf_release(&out);
    sandbox_free(s);
    return ok;
}

struct sandbox_host *sandbox_host_new(const struct sandbox_limits *limits, struct error *err)
{
    bool ok = false;
    struct sandbox_host *h = calloc(1, sizeof *h);
    if (!h) {
        error_set(err, ERR_NO_MEMORY, "no memory for sandboxes");
        return NULL;
    }
    *h = (struct sandbox_host){ .limits = *limits, .filter = -1, .driver = -1, .zygote = -1, .errors = -1 };
    const struct {
        const char *path, *package;
    } needed[] = { { BWRAP, "bubblewrap" }, { PYTHON, "python3" } };
    for (size_t i = 0; i < ARRAY_SIZE(needed); i++)
        if (access(needed[i].path, X_OK) != 0) {
            error_set(err, ERR_UNSUPPORTED, "code rewards need '%s', which is not there; install the package %s", needed[i].path,
                      needed[i].package);
            goto out;
        }
    /* The limit of one process is reached first, with an ordinary MemoryError: files and the kernel's own share come on top. */
    struct error no_cgroups = { 0 };
    h->cgroups = cgroup_set_here(limits->mem_bytes + limits->tmp_bytes + KERNEL_BYTES, &no_cgroups);
    if (!h->cgroups)
        snprintf(h->no_cgroups, sizeof h->no_cgroups, "%s", no_cgroups.text);
    h->filter = filter_make(h->cgroups != NULL, err);
    if (h->filter < 0)
        goto out;
    h->driver = driver_compile(err);
    if (h->driver < 0)
        goto out;
    if (!zygote_start(h, err)) {
        char remedy[600], failed[400];
        snprintf(failed, sizeof failed, "%s", err->text);
        userns_remedy(remedy, sizeof remedy, "/proc/sys", geteuid() == 0);
        error_set(err, err->code, "code rewards need user namespaces for bubblewrap: %s; %s", failed, remedy);
        goto out;
    }
    ok = canary_run(h, err);
out:
    if (!ok) {
        sandbox_host_free(h);
        h = NULL;
    }
    return h;
}

const char *sandbox_host_no_cgroups(const struct sandbox_host *h)
{
    return h->cgroups ? NULL : h->no_cgroups;
}

const char *sandbox_host_lacks(const struct sandbox_host *h)
{
    return h->lacks[0] ? h->lacks : NULL;
}

void sandbox_host_free(struct sandbox_host *h)
{
    if (!h)
        return;
    zygote_stop(h);
    cgroup_set_free(h->cgroups);
    fd_close(&h->filter);
    fd_close(&h->driver);
    free(h);
}
