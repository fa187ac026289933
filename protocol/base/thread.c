#include "protocol/base/thread.h"
#include <errno.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include "protocol/base/macros.h"

int thread_start(pthread_t *thread, void *(*body)(void *), void *arg)
{
    static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS };    // a handler may have to see them
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < ARRAY_SIZE(faults); i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    int rv = pthread_create(thread, NULL, body, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rv;
}

int stop_fd_open(bool poll, struct error *err)
{
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigaddset(&stop, SIGINT);
    pthread_sigmask(SIG_BLOCK, &stop, NULL);
    int fd = signalfd(-1, &stop, poll ? SFD_CLOEXEC | SFD_NONBLOCK : SFD_CLOEXEC);
    if (fd < 0)
        error_errno(err, "signals cannot be received");
    return fd;
}

void stop_fd_wait(int fd)
{
    struct signalfd_siginfo got;
    while (read(fd, &got, sizeof got) < 0 && errno == EINTR) {
    }
}

bool stop_fd_take(int fd)
{
    struct signalfd_siginfo got;
    bool came = false;
    while (read(fd, &got, sizeof got) == (ssize_t)sizeof got)
        came = true;
    return came;
}
