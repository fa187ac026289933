#include "workers/engine/reward/sandbox/filter.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

// clang-format off
static const char *const allowed[] = {
    /* files */
    "read", "write", "readv", "writev", "pread64", "pwrite64", "open", "openat", "close", "close_range", "stat",
    "fstat", "lstat", "newfstatat", "statx", "statfs", "fstatfs", "lseek", "access", "faccessat", "faccessat2",
    "getdents64", "getcwd", "chdir", "fchdir", "rename", "renameat", "renameat2", "mkdir", "mkdirat", "rmdir",
    "unlink", "unlinkat", "link", "linkat", "symlink", "symlinkat", "readlink", "readlinkat", "chmod", "fchmod",
    "fchmodat", "umask", "truncate", "ftruncate", "fallocate", "fsync", "fdatasync", "flock", "utimensat",
    "dup", "dup2", "dup3", "pipe", "pipe2", "sendfile", "copy_file_range", "fadvise64",
    /* memory */
    "mprotect", "munmap", "mremap", "madvise", "brk", "membarrier",
    /* processes and threads */
    "fork", "vfork", "execve", "exit", "exit_group", "wait4", "waitid", "kill", "tgkill", "getpid", "getppid",
    "gettid", "getuid", "geteuid", "getgid", "getegid", "getresuid", "getresgid", "getgroups", "getpgrp", "getpgid",
    "setpgid", "getsid", "setsid", "set_tid_address", "set_robust_list", "get_robust_list", "rseq", "futex",
    "sched_yield", "sched_getaffinity", "getpriority", "getrlimit", "setrlimit", "getrusage", "arch_prctl", "uname",
    "sysinfo", "times",
    /* signals and time */
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigpending", "rt_sigtimedwait", "rt_sigsuspend",
    "sigaltstack", "restart_syscall", "pause", "alarm", "setitimer", "getitimer", "nanosleep", "clock_nanosleep",
    "clock_gettime", "clock_getres", "gettimeofday", "time", "getrandom",
    /* waiting, and communication inside the sandbox over socket pairs */
    "poll", "ppoll", "select", "pselect6", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "eventfd2",
    "sendto", "recvfrom", "sendmsg", "recvmsg", "shutdown", "getsockopt", "getsockname", "getpeername",
};
// clang-format on

/* Calls allowed only with some arguments. */
static bool filter_partly(scmp_filter_ctx f, bool shared_memory)
{
    /* no range locks, leases or signals: each takes kernel memory that no limit counts */
    static const int commands[] = { F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL, F_SETFL };
    static const unsigned long requests[] = { TCGETS, TIOCGWINSZ, FIOCLEX, FIONCLEX, FIONBIO, FIONREAD };
    static const int options[] = { PR_SET_NAME, PR_GET_NAME, PR_GET_DUMPABLE, 0x53564d41 /* PR_SET_VMA, of malloc */ };
    int bad = 0;
    if (shared_memory) {
        bad |= seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 0);
    } else {
        bad |= seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1, SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS, 0));
        bad |= seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1,
                                SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS | MAP_TYPE, MAP_ANONYMOUS | MAP_PRIVATE));
        bad |= seccomp_rule_add(f, SCMP_ACT_ERRNO(ENOMEM), SCMP_SYS(mmap), 1,
                                SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS | MAP_SHARED, MAP_ANONYMOUS | MAP_SHARED));
    }
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        bad |= seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(fcntl), 1, SCMP_A1(SCMP_CMP_EQ, (scmp_datum_t)commands[i]));
    for (size_t i = 0; i < ARRAY_SIZE(requests); i++)
        bad |= seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1, SCMP_A1(SCMP_CMP_EQ, requests[i]));
    for (size_t i = 0; i < ARRAY_SIZE(options); i++)
        bad |= seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(prctl), 1, SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)options[i]));
    bad |= seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(socketpair), 1, SCMP_A0(SCMP_CMP_EQ, AF_UNIX));
    /* the limits of another process, such as the driver's, are out of reach */
    bad |= seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(prlimit64), 1, SCMP_A0(SCMP_CMP_EQ, 0));
    /* threads and children, but no namespace; clone3's flags lie in memory where no filter sees them: absent */
    unsigned long spaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
                           | CLONE_PTRACE;
    bad |= seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1, SCMP_A0(SCMP_CMP_MASKED_EQ, spaces, 0));
    bad |= seccomp_rule_add(f, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
    return bad == 0;
}

int filter_make(bool shared_memory, struct error *err)
{
    int fd = -1;
    bool ok = false;
    scmp_filter_ctx f = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    if (!f) {
        error_set(err, ERR_NO_MEMORY, "no memory for the system call filter");
        return -1;
    }
    for (size_t i = 0; i < ARRAY_SIZE(allowed); i++) {
        int call = seccomp_syscall_resolve_name(allowed[i]);
        if (call == __NR_SCMP_ERROR)
            continue;    // this architecture or library does not know it, so it stays forbidden
        int rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, call, 0);
        if (rc != 0 && rc != -EDOM) {
            error_set(err, ERR_UNSUPPORTED, "libseccomp refuses to allow '%s' (%d)", allowed[i], rc);
            goto out;
        }
    }
    if (!filter_partly(f, shared_memory)) {
        error_set(err, ERR_UNSUPPORTED, "libseccomp refuses a rule of the sandbox");
        goto out;
    }
    fd = memfd_create("rollcall-filter", MFD_CLOEXEC);
    if (fd < 0 || seccomp_export_bpf(f, fd) != 0) {
        error_errno(err, "cannot write the system call filter");
        goto out;
    }
    ok = true;
out:
    seccomp_release(f);
    if (!ok && fd >= 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}
