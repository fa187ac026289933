#include "workers/engine/publish/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#define WIRE_MAGIC 0x72637732u    // "rcw2": both sides are the same executable
#define SOCKET_NAME "weights"

static const char *const way_names[] = { [WAY_FILES] = "files", [WAY_COPY] = "copy", [WAY_NCCL] = "nccl" };

bool weights_way_parse(const char *text, enum weights_way *way)
{
    for (size_t i = 0; text && i < ARRAY_SIZE(way_names); i++)
        if (strcmp(way_names[i], text) == 0) {
            *way = (enum weights_way)i;
            return true;
        }
    return false;
}

const char *weights_way_name(enum weights_way way)
{
    return way_names[way];
}

/* A socket and its address below dir, however long dir's path is. */
static int socket_in(const char *dir, struct sockaddr_un *address, int *dir_fd)
{
    *dir_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (*dir_fd < 0)
        return -1;
    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    snprintf(address->sun_path, sizeof address->sun_path, "/proc/self/fd/%d/" SOCKET_NAME, *dir_fd);
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

int wire_listen(const char *dir, struct error *err)
{
    struct sockaddr_un address;
    int dir_fd, fd = socket_in(dir, &address, &dir_fd);
    if (fd >= 0) {
        unlinkat(dir_fd, SOCKET_NAME, 0);
        if (bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, COMM_RANK_MAX) == 0) {
            close(dir_fd);
            return fd;
        }
    }
    error_errno(err, "cannot listen in '%s' for producers that want weights", dir);
    if (fd >= 0)
        close(fd);
    if (dir_fd >= 0)
        close(dir_fd);
    return -1;
}

int wire_connect(const char *dir)
{
    struct sockaddr_un address;
    int dir_fd, fd = socket_in(dir, &address, &dir_fd);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        fd = -1;
    }
    if (dir_fd >= 0)
        close(dir_fd);
    return fd;
}

bool wire_send(int fd, struct wire m)
{
    m.magic = WIRE_MAGIC;
    return send(fd, &m, sizeof m, MSG_NOSIGNAL) == (ssize_t)sizeof m;
}

bool wire_send_hashes(int fd, const uint64_t *hash, int64_t n)
{
    for (int64_t first = 0; first < n; first += WIRE_HASH_MAX) {
        struct wire m = { .magic = WIRE_MAGIC, .kind = WIRE_HASHES, .first = first, .n = MIN(n - first, (int64_t)WIRE_HASH_MAX) };
        struct iovec part[2] = { { &m, sizeof m }, { (void *)(hash + first), (size_t)m.n * sizeof *hash } };
        struct msghdr all = { .msg_iov = part, .msg_iovlen = 2 };
        if (sendmsg(fd, &all, MSG_NOSIGNAL) != (ssize_t)(part[0].iov_len + part[1].iov_len))
            return false;
    }
    return true;
}

void wire_make_room(int fd)
{
    int size = 4 << 20;    // the kernel gives what it allows
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
}

int wire_receive(int fd, struct wire *m, uint64_t *hash)
{
    struct iovec part[2] = { { m, sizeof *m }, { hash, hash ? WIRE_HASH_MAX * sizeof *hash : 0 } };
    struct msghdr all = { .msg_iov = part, .msg_iovlen = hash ? 2 : 1 };
    ssize_t n = recvmsg(fd, &all, 0);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    if (n < (ssize_t)sizeof *m || m->magic != WIRE_MAGIC || (all.msg_flags & MSG_TRUNC))
        return -1;
    bool hashes = m->kind == WIRE_HASHES && m->n >= 1 && m->n <= WIRE_HASH_MAX && m->first >= 0;
    if ((m->kind == WIRE_HASHES) != hashes || n != (ssize_t)(sizeof *m + (hashes ? (size_t)m->n * sizeof *hash : 0)))
        return -1;
    if (m->kind == WIRE_HELLO)
        m->name[sizeof m->name - 1] = 0;
    return 1;
}
