#include "workers/engine/publish/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#define WIRE_MAGIC 0x72637734u    // "rcw4": both sides are the same executable
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

/* n entries of this many bytes, at most `most` a packet. */
static bool list_send(int fd, enum wire_kind kind, const void *list, size_t entry_bytes, int64_t n, int64_t most)
{
    for (int64_t first = 0; first < n; first += most) {
        struct wire m = { .magic = WIRE_MAGIC, .kind = kind, .first = first, .n = MIN(n - first, most) };
        struct iovec part[2] = { { &m, sizeof m }, { (char *)list + (size_t)first * entry_bytes, (size_t)m.n * entry_bytes } };
        struct msghdr all = { .msg_iov = part, .msg_iovlen = 2 };
        if (sendmsg(fd, &all, MSG_NOSIGNAL) != (ssize_t)(part[0].iov_len + part[1].iov_len))
            return false;
    }
    return true;
}

bool wire_send_hashes(int fd, const uint64_t *hash, int64_t n)
{
    return list_send(fd, WIRE_HASHES, hash, sizeof *hash, n, WIRE_HASH_MAX);
}

bool wire_send_extents(int fd, const struct extents *x)
{
    for (int i = 0; i < x->n_part; i++)
        if (!wire_send(fd,
                       (struct wire){ .kind = WIRE_PART, .first = i, .size_bytes = x->part[i].size_bytes, .handle = x->part[i].handle }))
            return false;
    return list_send(fd, WIRE_PLACES, x->at, sizeof *x->at, x->n, WIRE_PLACE_MAX);
}

void wire_make_room(int fd)
{
    int size = 4 << 20;    // the kernel gives what it allows
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
}

/* What follows the message, in bytes; -1: it cannot be. */
static ssize_t list_bytes(const struct wire *m)
{
    if (m->kind != WIRE_HASHES && m->kind != WIRE_PLACES)
        return 0;
    bool hashes = m->kind == WIRE_HASHES;
    if (m->n < 1 || m->n > (hashes ? WIRE_HASH_MAX : WIRE_PLACE_MAX) || m->first < 0)
        return -1;
    return (ssize_t)((size_t)m->n * (hashes ? sizeof(uint64_t) : sizeof(struct extent)));
}

int wire_receive(int fd, struct wire *m, union wire_list *list)
{
    struct iovec part[2] = { { m, sizeof *m }, { list, list ? sizeof *list : 0 } };
    struct msghdr all = { .msg_iov = part, .msg_iovlen = list ? 2 : 1 };
    ssize_t n = recvmsg(fd, &all, 0);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    if (n < (ssize_t)sizeof *m || m->magic != WIRE_MAGIC || (all.msg_flags & MSG_TRUNC))
        return -1;
    ssize_t after = list_bytes(m);
    if (after < 0 || n != (ssize_t)sizeof *m + after)
        return -1;
    if (m->kind == WIRE_HELLO)
        m->name[sizeof m->name - 1] = 0;
    return 1;
}
