#include "workers/engine/publish/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define WIRE_MAGIC 0x72637731u    // "rcw1": both sides are the same executable
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

int wire_receive(int fd, struct wire *m)
{
    ssize_t n = recv(fd, m, sizeof *m, 0);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    if (n != (ssize_t)sizeof *m || m->magic != WIRE_MAGIC)
        return -1;
    if (m->kind == WIRE_HELLO)
        m->name[sizeof m->name - 1] = 0;
    return 1;
}
