#include "protocol/base/tcp.h"
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/thread.h"

#define BACKLOG 128
#define LONG_US 5000    // round trip from which a way is long: not within a data centre

const char *tcp_host(const char *address, char *host, size_t size)
{
    const char *colon = strrchr(address, ':');
    bool brackets = colon && address[0] == '[' && colon > address && colon[-1] == ']';
    if (!colon || (size_t)(colon - address) >= size)
        return NULL;
    snprintf(host, size, "%.*s", (int)(colon - address) - 2 * brackets, address + brackets);
    return colon + 1;
}

/* getaddrinfo takes a port modulo 65536. */
static bool port_check(const char *port, struct error *err)
{
    size_t n = strspn(port, "0123456789");
    if (!port[n] && (n > 10 || strtoull(port, NULL, 10) > 65535))
        return error_set(err, ERR_USAGE, "'%.40s' is not a port: the largest is 65535", port);
    if (!port[0] || strchr("-+ .", port[0]) || (n > 0 && port[n]))    // what begins with a letter may be a service's name
        return error_set(err, ERR_USAGE, "'%.40s' is not a port: it is a number from 0 to 65535", port);
    return true;
}

int tcp_listen(const char *address, struct error *err)
{
    char host[280];
    struct addrinfo *list = NULL, hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE };
    const char *port = tcp_host(address, host, sizeof host);
    int one = 1, fd = -1;
    if (!port) {
        error_set(err, ERR_USAGE, "'%.300s' is not HOST:PORT", address);
        return -1;
    }
    if (!port_check(port, err))
        return -1;
    int rv = getaddrinfo(host[0] && strcmp(host, "*") != 0 ? host : NULL, port, &hints, &list);
    if (rv != 0) {
        error_set(err, ERR_USAGE, "cannot listen on '%s': %s", address, gai_strerror(rv));
        return -1;
    }
    int why = EADDRNOTAVAIL;
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        int made = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (made < 0) {
            why = errno;
            continue;
        }
        setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(made, a->ai_addr, a->ai_addrlen) == 0 && listen(made, BACKLOG) == 0) {
            fd = made;
        } else {
            why = errno;
            close(made);
        }
    }
    freeaddrinfo(list);
    if (fd < 0)
        error_set(err, why == EADDRINUSE ? ERR_EXISTS : ERR_IO, "cannot listen on '%s': %s", address,
                  why == EADDRINUSE ? "another process listens there already" : strerror(why));
    return fd;
}

/* Connect fd; 0, or the number of what went wrong. */
static int connect_wait(int fd, const struct addrinfo *a, int64_t limit_ms)
{
    int why = 0;
    socklen_t len = sizeof why;
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0)
        return 0;
    if (errno != EINPROGRESS)
        return errno;
    int64_t end_ms = clock_ms() + limit_ms;
    int n = -1;
    for (int64_t left = limit_ms; n < 0 && left >= 0; left = end_ms - clock_ms())    // again after a signal
        if ((n = poll(&p, 1, (int)MIN(left, (int64_t)INT32_MAX))) < 0 && errno != EINTR)
            return errno;
    if (n != 1)
        return ETIMEDOUT;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &len) == 0 ? why : errno;
}

/* A look-up on a thread of its own, since getaddrinfo has no limit. The last one frees it: the thread, or the one that asked. */
struct lookup {
    pthread_mutex_t lock;    // guards: done, given_up
    pthread_cond_t some;     // signals done
    bool done, given_up;
    char host[256], port[32];
    int rv;
    struct addrinfo *list;
};

static void lookup_free(struct lookup *l)
{
    pthread_cond_destroy(&l->some);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static void *lookup_run(void *arg)
{
    struct lookup *l = arg;
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_CANONNAME }, *list = NULL;
    int rv = getaddrinfo(l->host, l->port, &hints, &list);
    pthread_mutex_lock(&l->lock);
    l->rv = rv;
    l->list = list;
    l->done = true;
    bool given_up = l->given_up;
    pthread_cond_signal(&l->some);
    pthread_mutex_unlock(&l->lock);
    if (given_up) {
        if (rv == 0)
            freeaddrinfo(list);
        lookup_free(l);
    }
    return NULL;
}

/* The result of a look-up that was begun; frees it, or leaves that to its thread. False: not in time. */
static bool lookup_end(struct lookup *l, int64_t limit_ms, int *rv, struct addrinfo **list)
{
    struct timespec end = clock_after(limit_ms);
    pthread_mutex_lock(&l->lock);
    while (!l->done && pthread_cond_timedwait(&l->some, &l->lock, &end) == 0)
        ;
    bool done = l->done;
    l->given_up = !done;
    *rv = l->rv;
    *list = l->list;
    pthread_mutex_unlock(&l->lock);
    if (done)
        lookup_free(l);
    return done;
}

struct addrinfo *tcp_lookup(const char *host, const char *port, const char *what, int64_t limit_ms, struct error *err)
{
    if (!port_check(port, err))
        return NULL;
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV }, *list = NULL;
    pthread_t thread;
    int rv = getaddrinfo(host, port, &hints, &list);    // a number needs nobody's answer
    if (rv == 0)
        return list;
    struct lookup *l = calloc(1, sizeof *l);
    if (!l) {
        error_set(err, ERR_NO_MEMORY, "no memory to look '%s' up", host);
        return NULL;
    }
    pthread_mutex_init(&l->lock, NULL);
    clock_cond_init(&l->some);
    snprintf(l->host, sizeof l->host, "%s", host);
    snprintf(l->port, sizeof l->port, "%s", port);
    if ((rv = thread_start(&thread, lookup_run, l)) != 0) {
        lookup_free(l);
        error_set(err, ERR_NO_MEMORY, "no thread to look '%s' up: %s", host, strerror(rv));
        return NULL;
    }
    pthread_detach(thread);
    if (!lookup_end(l, limit_ms, &rv, &list)) {
        error_set(err, ERR_CLOSED, "%s's host '%s' cannot be resolved: no name server has answered in %g s", what, host,
                  (double)limit_ms / 1000);
        return NULL;
    }
    if (rv == 0)
        return list;
    error_set(err, ERR_CLOSED, "%s's host '%s' cannot be resolved: %s", what, host, gai_strerror(rv));
    return NULL;
}

int tcp_connect(const char *address, const char *what, int64_t limit_ms, struct error *err)
{
    char host[280];
    const char *port = tcp_host(address, host, sizeof host);
    int fd = -1, why = EADDRNOTAVAIL;
    if (!port) {
        error_set(err, ERR_USAGE, "'%.300s' is not HOST:PORT", address);
        return -1;
    }
    struct addrinfo *list = tcp_lookup(host, port, what, limit_ms, err);
    if (!list)
        return -1;
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        int made = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        why = made < 0 ? errno : connect_wait(made, a, limit_ms);
        if (why == 0)
            fd = made;
        else if (made >= 0)
            close(made);
    }
    freeaddrinfo(list);
    errno = why;
    if (fd < 0) {
        error_errno(err, "%s '%s' cannot be reached", what, address);
        err->code = ERR_CLOSED;
    }
    return fd;
}

bool tcp_is_loopback(const char *address)
{
    char host[32];
    struct in_addr number;
    size_t n = strcspn(address, ":");
    if (strncmp(address, "[::1]", 5) == 0)
        return address[5] == 0 || address[5] == ':';
    if (n >= sizeof host)
        return false;
    snprintf(host, sizeof host, "%.*s", (int)n, address);
    return strcmp(host, "localhost") == 0 || (inet_pton(AF_INET, host, &number) == 1 && ntohl(number.s_addr) >> 24 == 127);
}

bool tcp_own_address(const char *address, const char *what, int64_t limit_ms, char *out, size_t size, struct error *err)
{
    char host[280];
    struct sockaddr_storage own = { 0 };
    socklen_t len = sizeof own;
    const char *port = tcp_host(address, host, sizeof host);
    if (!port)
        return error_set(err, ERR_USAGE, "'%.300s' is not HOST:PORT", address);
    struct addrinfo *list = tcp_lookup(host, port, what, limit_ms, err);
    if (!list)
        return error_wrap(err, "cannot tell from which address of this host '%s' is reached", address);
    int fd = socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);    // a datagram's socket is given its address by connecting
    bool ok = (fd >= 0 && connect(fd, list->ai_addr, list->ai_addrlen) == 0 && getsockname(fd, (struct sockaddr *)&own, &len) == 0)
              || error_errno(err, "cannot tell from which address of this host '%s' is reached", address);
    ok = ok
         && (getnameinfo((struct sockaddr *)&own, len, out, (socklen_t)size, NULL, 0, NI_NUMERICHOST) == 0
             || error_set(err, ERR_INTERNAL, "this host's own address has no name"));
    if (fd >= 0)
        close(fd);
    freeaddrinfo(list);
    return ok;
}

bool tcp_interface(const char *host, int64_t limit_ms, char *out, size_t size)
{
    struct error ignored;
    struct ifaddrs *all = NULL;
    bool found = false;
    struct addrinfo *list = tcp_lookup(host, "0", "the interface", limit_ms, &ignored);
    if (!list)
        return false;
    if (getifaddrs(&all) != 0)
        all = NULL;
    for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
        struct sockaddr_storage a = { 0 }, b = { 0 };
        if (!i->ifa_addr || i->ifa_addr->sa_family != list->ai_family)
            continue;
        memcpy(&a, list->ai_addr, list->ai_addrlen);
        memcpy(&b, i->ifa_addr, list->ai_addrlen);
        found = tcp_same_host(&a, &b);
        if (found)
            snprintf(out, size, "%s", i->ifa_name);
    }
    if (all)
        freeifaddrs(all);
    freeaddrinfo(list);
    return found;
}

/* Round trip 80 ms, of 100 packets one is lost: 9 MB of weights over two connections take 22.7 s with reno and 3.4 s with bbr, which asks how
 * much arrives instead of what is lost (tests/net/weights.sh). */
void tcp_suit(int fd)
{
    static const char way[] = "bbr";
    struct tcp_info info;
    socklen_t len = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_rtt >= LONG_US)
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, way, sizeof way - 1);
}

uint16_t tcp_port(int fd)
{
    struct sockaddr_storage a = { 0 };
    socklen_t len = sizeof a;
    const void *at = &a;
    if (getsockname(fd, (struct sockaddr *)&a, &len) != 0)
        return 0;
    return a.ss_family == AF_INET    ? ntohs(((const struct sockaddr_in *)at)->sin_port)
           : a.ss_family == AF_INET6 ? ntohs(((const struct sockaddr_in6 *)at)->sin6_port)
                                     : 0;
}

bool tcp_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family)
        return false;
    const void *x = a, *y = b;
    if (a->ss_family == AF_INET)
        return ((const struct sockaddr_in *)x)->sin_addr.s_addr == ((const struct sockaddr_in *)y)->sin_addr.s_addr;
    return memcmp(&((const struct sockaddr_in6 *)x)->sin6_addr, &((const struct sockaddr_in6 *)y)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

void tcp_print(char *out, size_t size, const struct sockaddr_storage *from)
{
    char host[64] = "?", port[8] = "?";
    getnameinfo((const struct sockaddr *)from, sizeof *from, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(out, size, "%s:%s", host, port);
}
