/* bulk.c - large data over one encrypted connection on the loopback, beside a plain one and a copy in memory
 *
 * A thread gives and a thread takes. What a core can do is counted by each thread's own time, so that other work on the machine does not
 * count; the kernel's copies into and out of the sockets are in it on both sides. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/mix64.h"
#include "protocol/base/tcp.h"
#include "protocol/base/thread.h"
#include "protocol/wire/bulk.h"
#include "tests/bench/bench.h"

#define RECORD ((size_t)256 << 10)
#define LIMIT_MS 20000
#define DATA_BYTES ((size_t)64 << 20)    // sent over and over: more than most caches hold

struct side {
    double cpu_s;
    bool ok;
    struct error err;
};
struct bulk_pass {
    bool sealed;    // else TCP as it is
    int listen_fd;
    struct bulk_ticket ticket;
    const uint8_t *data;    // (DATA_BYTES) borrowed
    int64_t n_byte;
    struct side give, take;
};

static double thread_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool ready_wait(int fd, short events)
{
    struct pollfd p = { .fd = fd, .events = events };
    return poll(&p, 1, LIMIT_MS) == 1;
}

static bool plain_receive(int fd, uint8_t *out, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = recv(fd, out + at, len - at, MSG_DONTWAIT);
        if (n > 0)
            at += (size_t)n;
        else if (n == 0 || errno != EAGAIN || !ready_wait(fd, POLLIN))
            return false;
    }
    return true;
}

static bool plain_send(int fd, const uint8_t *data, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = send(fd, data + at, len - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            at += (size_t)n;
        else if (errno != EAGAIN || !ready_wait(fd, POLLOUT))
            return false;
    }
    return true;
}

static bool give_plain(struct bulk_pass *p, int fd)
{
    double t = thread_s();
    bool ok = true;
    for (int64_t at = 0; at < p->n_byte && ok; at += (int64_t)RECORD)
        ok = plain_send(fd, p->data + (size_t)at % DATA_BYTES, RECORD);
    p->give.cpu_s = thread_s() - t;
    close(fd);
    return ok || error_set(&p->give.err, ERR_IO, "a plain connection has broken");
}

static bool give_sealed(struct bulk_pass *p, int fd)
{
    uint8_t hello[BULK_HELLO_BYTES];
    struct error *err = &p->give.err;
    if (!plain_receive(fd, hello, sizeof hello)) {
        close(fd);
        return error_set(err, ERR_CLOSED, "no hello has arrived");
    }
    struct bulk *b = bulk_accept(fd, hello, &p->ticket, LIMIT_MS, err);
    if (!b)
        close(fd);
    double t = thread_s();
    bool ok = b != NULL;
    for (int64_t at = 0; at < p->n_byte && ok; at += (int64_t)RECORD)
        ok = bulk_send(b, 1, NULL, 0, p->data + (size_t)at % DATA_BYTES, RECORD, err);
    ok = ok && bulk_flush(b, err);
    p->give.cpu_s = thread_s() - t;
    bulk_free(b);
    return ok;
}

static void *give_main(void *arg)
{
    struct bulk_pass *p = arg;
    int fd = ready_wait(p->listen_fd, POLLIN) ? accept(p->listen_fd, NULL, NULL) : -1;
    if (fd < 0)
        p->give.ok = error_set(&p->give.err, ERR_TIMEOUT, "nobody has connected");
    else
        p->give.ok = p->sealed ? give_sealed(p, fd) : give_plain(p, fd);
    return NULL;
}

static bool take_plain(struct bulk_pass *p, const char *address, uint8_t *into)
{
    int fd = tcp_connect(address, "the loopback", LIMIT_MS, &p->take.err);
    if (fd < 0)
        return false;
    double t = thread_s();
    bool ok = true;
    for (int64_t at = 0; at < p->n_byte && ok; at += (int64_t)RECORD)
        ok = plain_receive(fd, into, RECORD);
    p->take.cpu_s = thread_s() - t;
    close(fd);
    return ok || error_set(&p->take.err, ERR_IO, "a plain connection has broken");
}

static bool take_sealed(struct bulk_pass *p, const char *address)
{
    uint8_t type;
    const void *data;
    size_t len;
    struct error *err = &p->take.err;
    struct bulk *b = bulk_connect(address, &p->ticket, LIMIT_MS, err);
    double t = thread_s();
    bool ok = b != NULL;
    for (int64_t at = 0; at < p->n_byte && ok; at += (int64_t)RECORD)
        ok = bulk_receive(b, &type, &data, &len, err)
             && ((len == RECORD && memcmp(data, p->data + (size_t)at % DATA_BYTES, 64) == 0)
                 || error_set(err, ERR_DATA, "other bytes have arrived than were sent"));
    p->take.cpu_s = thread_s() - t;
    bulk_free(b);
    return ok;
}

/* Send p's bytes over one connection; *s is the time that it took. */
static bool pass_run(struct bulk_pass *p, uint8_t *into, double *s, struct error *err)
{
    char address[32];
    pthread_t giver;
    if ((p->listen_fd = tcp_listen("127.0.0.1:0", err)) < 0)
        return false;
    snprintf(address, sizeof address, "127.0.0.1:%u", tcp_port(p->listen_fd));
    int64_t began = clock_ns();
    bool runs = thread_start(&giver, give_main, p) == 0;
    if (runs) {
        p->take.ok = p->sealed ? take_sealed(p, address) : take_plain(p, address, into);
        pthread_join(giver, NULL);
    }
    *s = (double)(clock_ns() - began) * 1e-9;
    close(p->listen_fd);
    if (!runs)
        return error_set(err, ERR_IO, "cannot make a thread");
    if (p->give.ok && p->take.ok)
        return true;
    *err = p->give.ok ? p->take.err : p->give.err;
    return false;
}

static double copy_gb_per_s(const uint8_t *data, uint8_t *into)
{
    int64_t best = INT64_MAX;
    for (int k = 0; k < 3; k++) {
        int64_t t = clock_ns();
        memcpy(into, data, DATA_BYTES);
        best = MIN(best, clock_ns() - t);
    }
    return (double)DATA_BYTES / (double)MAX(best, (int64_t)1);
}

bool bench_bulk(int argc, char **argv, struct error *err)
{
    int64_t mib = 2048;
    struct cli_option options[] = { { "mib", NULL, CLI_I64, &mib, "MIB", "data to send (2048)" } };
    struct cli cli = { "bench bulk", "Sends data over one encrypted connection as to another machine, and over a plain one.", NULL, options,
                       ARRAY_SIZE(options) };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (mib < 1 || mib > 1 << 20)
        return error_set(err, ERR_USAGE, "--mib must be 1 to %d", 1 << 20);
    uint8_t *data = malloc(DATA_BYTES), *into = malloc(DATA_BYTES);
    struct bulk_pass sealed = { .sealed = true, .data = data, .n_byte = mib << 20 }, plain = { .data = data, .n_byte = mib << 20 };
    double sealed_s, plain_s, gb = (double)(mib << 20) * 1e-9;
    uint64_t seed = 1;
    bool ok = false;
    if (!data || !into) {
        error_set(err, ERR_NO_MEMORY, "no memory for the data");
        goto out;
    }
    for (size_t i = 0; i < DATA_BYTES; i += 8) {
        uint64_t r = mix64_next(&seed);
        memcpy(data + i, &r, 8);
    }
    memset(into, 0, DATA_BYTES);
    TRY(bulk_ticket_make(&sealed.ticket, err) && pass_run(&plain, into, &plain_s, err) && pass_run(&sealed, into, &sealed_s, err));
    double copy = copy_gb_per_s(data, into);
    printf("{\"bench\":\"bulk\",\"bytes\":%" PRId64 ",\"gb_per_s\":%.2f,\"give_gb_per_core_s\":%.2f,\"take_gb_per_core_s\":%.2f,"
           "\"plain_gb_per_s\":%.2f,\"plain_give_gb_per_core_s\":%.2f,\"plain_take_gb_per_core_s\":%.2f,\"memcpy_gb_per_s\":%.2f,"
           "\"per_plain\":%.3f,\"bar_gb_per_core_s\":1}\n",
           mib << 20, gb / sealed_s, gb / sealed.give.cpu_s, gb / sealed.take.cpu_s, gb / plain_s, gb / plain.give.cpu_s,
           gb / plain.take.cpu_s, copy, plain_s / sealed_s);
    ok = true;
out:
    free(data);
    free(into);
    return ok;
}
