#include "protocol/wire/run_head.h"
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/buf.h"
#include "protocol/base/file.h"
#include "protocol/base/tcp.h"

#define HEAD_BYTES_MAX 8192
#define LOOKUP_MS 20000    // for a name server to answer

static void address_add(struct run_head *h, const char *host, int port)
{
    char text[sizeof h->address[0]];
    snprintf(text, sizeof text, strchr(host, ':') ? "[%.260s]:%d" : "%.260s:%d", host, port);
    for (int i = 0; i < h->n_address; i++)
        if (strcmp(h->address[i], text) == 0)
            return;
    if (h->n_address < HEAD_ADDRESSES_MAX)
        memcpy(h->address[h->n_address++], text, sizeof text);
}

static bool resolves(const char *name)
{
    struct error ignored;
    struct addrinfo *list = tcp_lookup(name, "0", "the run", LOOKUP_MS, &ignored);
    bool ok = list != NULL;
    if (list)
        freeaddrinfo(list);
    return ok;
}

void run_head_here(struct run_head *h, const char *name, int port)
{
    struct ifaddrs *list = NULL;
    char text[INET6_ADDRSTRLEN];
    *h = (struct run_head){ 0 };
    gethostname(h->host, sizeof h->host - 1);
    if (name && resolves(name))
        address_add(h, name, port);
    if (resolves(h->host))
        address_add(h, h->host, port);
    if (getifaddrs(&list) != 0)
        return;
    for (const struct ifaddrs *a = list; a; a = a->ifa_next) {
        if (!a->ifa_addr || (a->ifa_flags & IFF_LOOPBACK) || !(a->ifa_flags & IFF_UP))
            continue;
        if (a->ifa_addr->sa_family == AF_INET
            && inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)a->ifa_addr)->sin_addr, text, sizeof text))
            address_add(h, text, port);
    }
    freeifaddrs(list);
}

bool run_head_write(const struct run_head *h, const char *run_dir, struct error *err)
{
    char path[PATH_MAX];
    struct buf b = BUF_INIT;
    buf_fmt(&b, "host %s\nstart %s\n", h->host, h->start);
    for (int i = 0; i < h->n_address; i++)
        buf_fmt(&b, "address %s\n", h->address[i]);
    bool ok = path_join(path, sizeof path, run_dir, HEAD_FILE) && !b.failed;
    ok = ok ? file_write(path, b.data, b.len, err) : error_set(err, ERR_USAGE, "the path '%s' is too long", run_dir);
    buf_release(&b);
    return ok;
}

bool run_head_read(struct run_head *h, const char *run_dir, struct error *err)
{
    char path[PATH_MAX];
    struct buf b = BUF_INIT;
    *h = (struct run_head){ 0 };
    if (!path_join(path, sizeof path, run_dir, HEAD_FILE))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", run_dir);
    if (!path_exists(path))
        return error_set(err, ERR_NOT_FOUND, "'%s' does not exist: the run's head has not started yet, or the run has ended", path);
    bool ok = file_read_text(&b, path, HEAD_BYTES_MAX, err);
    char *rest = b.data, *line;
    while (ok && (line = strsep(&rest, "\n"))) {
        if (strncmp(line, "host ", 5) == 0)
            snprintf(h->host, sizeof h->host, "%.255s", line + 5);
        else if (strncmp(line, "start ", 6) == 0)
            snprintf(h->start, sizeof h->start, "%.63s", line + 6);
        else if (strncmp(line, "address ", 8) == 0 && h->n_address < HEAD_ADDRESSES_MAX)
            snprintf(h->address[h->n_address++], sizeof h->address[0], "%.279s", line + 8);
    }
    buf_release(&b);
    return ok && (h->n_address > 0 || error_set(err, ERR_DATA, "'%s' names no address of the run's head", path));
}

bool run_head_is_elsewhere(const char *run_dir)
{
    struct run_head h;
    struct error err;
    char here[256] = "";
    gethostname(here, sizeof here - 1);
    return run_head_read(&h, run_dir, &err) && strcmp(h.host, here) != 0;
}

const char *run_head_reach(const struct run_head *h, int limit_ms, struct error *err)
{
    for (int i = 0; i < h->n_address; i++) {
        int fd = tcp_connect(h->address[i], "the head", limit_ms, err);
        if (fd < 0)
            continue;
        close(fd);
        return h->address[i];
    }
    return NULL;
}
