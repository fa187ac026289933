#include "console/train/program.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/base/child.h"
#include "protocol/base/clock.h"

struct stream {
    int end[2];    // of a pipe; -1: closed
    struct buf *to;
};

/* Start it with the pipes' write ends as its output. */
static bool program_start(char *const argv[], struct stream stream[2], pid_t *pid, struct error *err)
{
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    for (int i = 0; i < 2; i++)
        if (stream[i].to)
            posix_spawn_file_actions_adddup2(&actions, stream[i].end[1], i + 1);
    int rv = child_spawn(pid, argv[0], &actions, 0, argv, NULL);
    posix_spawn_file_actions_destroy(&actions);
    if (rv == ENOENT)
        return error_set(err, ERR_NOT_FOUND, "there is no program '%s' on the PATH", argv[0]);
    errno = rv;
    return rv == 0 || error_errno(err, "cannot run '%s'", argv[0]);
}

static void stream_close(struct stream *s, int which)
{
    if (s->end[which] >= 0)
        close(s->end[which]);
    s->end[which] = -1;
}

/* Read until both pipes are at their ends, or until_ms. */
static bool streams_read(struct stream stream[2], int64_t until_ms)
{
    char piece[4096];
    while (stream[0].end[0] >= 0 || stream[1].end[0] >= 0) {
        struct pollfd fd[2] = { { .fd = stream[0].end[0], .events = POLLIN }, { .fd = stream[1].end[0], .events = POLLIN } };
        int64_t left = until_ms - clock_ms();
        if (left <= 0)
            return false;
        if (poll(fd, 2, (int)left) <= 0)
            continue;
        for (int i = 0; i < 2; i++) {
            if (!fd[i].revents)
                continue;
            ssize_t n = read(fd[i].fd, piece, sizeof piece);
            if (n > 0)
                buf_add(stream[i].to, piece, (size_t)n);    // past its bound the rest is dropped
            else if (n == 0 || errno != EINTR)
                stream_close(&stream[i], 0);
        }
    }
    return true;
}

/* Wait for its end until until_ms; what has closed its output ends soon. */
static bool end_wait(pid_t pid, int64_t until_ms, int *status)
{
    pid_t got;
    while ((got = waitpid(pid, status, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
        if (clock_ms() >= until_ms)
            return false;
        poll(NULL, 0, 10);
    }
    return true;
}

bool program_run(char *const argv[], int limit_ms, struct buf *out, struct buf *errors, int *status, struct error *err)
{
    struct stream stream[2] = { { { -1, -1 }, out }, { { -1, -1 }, errors } };
    int64_t until_ms = clock_ms() + limit_ms;
    int raw = 0;
    pid_t pid;
    bool ok = true;
    for (int i = 0; i < 2 && ok; i++)
        ok = !stream[i].to || pipe2(stream[i].end, O_CLOEXEC) == 0 || error_errno(err, "cannot make a pipe");
    ok = ok && program_start(argv, stream, &pid, err);
    for (int i = 0; i < 2; i++)
        stream_close(&stream[i], 1);
    if (ok && (!streams_read(stream, until_ms) || !end_wait(pid, until_ms, &raw))) {
        kill(pid, SIGKILL);
        waitpid(pid, &raw, 0);
        ok = error_set(err, ERR_TIMEOUT, "'%s' has not ended within %d s", argv[0], limit_ms / 1000);
    }
    for (int i = 0; i < 2; i++)
        stream_close(&stream[i], 0);
    *status = child_exit(raw);
    return ok;
}
