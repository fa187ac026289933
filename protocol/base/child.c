#include "protocol/base/child.h"
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int child_spawn(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions, int flags, char *const argv[], char *const env[])
{
    posix_spawnattr_t attr;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    if (flags & CHILD_OURS) {
        sigdelset(&all, SIGPIPE);
        sigdelset(&all, SIGXFSZ);
    }
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setflags(&attr,
                             (short)(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | (flags & CHILD_SESSION ? POSIX_SPAWN_SETSID : 0)));
    int rv = posix_spawnp(pid, file, actions, &attr, argv, env ? env : environ);
    posix_spawnattr_destroy(&attr);
    return rv;
}

int child_exit(int wait_status)
{
    return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

bool child_unspawned(int code, const char *what, struct error *err)
{
    if (code == EAGAIN)
        return error_set(err, ERR_NO_MEMORY, "cannot start %s: %s; raise the limit of processes ('ulimit -u', pids.max)", what,
                         strerror(code));
    errno = code;
    return error_errno(err, "cannot start %s", what);
}
