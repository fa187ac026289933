/* fetch.c - how long a new version of the weights takes to another machine, whole and as differences
 *
 * This process is the head: the front, and the server of weights behind it. A child is the node, in another network namespace when one is
 * named; what lies between them (tests/net/weights.sh limits the rate) is not this measurement's business. Tickets pass through a pipe, as
 * over TLS in a run. The node's base is the head's file by another name, as if it had come before. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "console/bench/bench_step.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/wire/front.h"
#include "tests/bench/bench.h"
#include "workers/engine/publish/publication.h"
#include "workers/node/bulk/bulk_fetch.h"
#include "workers/node/bulk/delta.h"

#define LIMIT_MS 600000
#define UNIT ((size_t)32 << 20)    // bytes of weights that are drawn; a file repeats them, which blocks do not notice
#define BYTES_7B 15.23e9           // Qwen2.5-7B in bf16
#define NETNS "/run/netns"

struct order {    // to the node
    struct bulk_offer offer;
    bool base, end;
};
struct done {    // from the node
    bool ok;
    double s, cpu_s;    // cpu_s: of all its threads
    int64_t wire_bytes;
    char error[300];
};

static double cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* ---- the node */

struct fetch_node {
    int fd, wake_fd;
    const char *address, *dir;
};

static void on_wake(void *ctx)
{
    uint64_t one = 1;
    ssize_t n = write(((const struct fetch_node *)ctx)->wake_fd, &one, sizeof one);
    (void)n;
}

static bool fetch_run(struct fetch_node *n, const struct order *o, struct done *out, struct error *err)
{
    char path[300], base[300], spare[300];
    struct bulk_fetch_look look;
    snprintf(path, sizeof path, "%s/node-2", n->dir);
    snprintf(spare, sizeof spare, "%s/node-0", n->dir);
    snprintf(base, sizeof base, "%s/node-1", n->dir);
    struct bulk_fetch_config c = {
        .address = n->address,
        .path = path,
        .base_path = o->base ? base : NULL,
        .spare_path = spare,
        .size_max = INT64_MAX,
        .wake = on_wake,
        .ctx = n,
    };
    double cpu = cpu_s();
    int64_t began = clock_ns(), end_ms = clock_ms() + LIMIT_MS;
    struct bulk_fetch *f = bulk_fetch_new(&c, &o->offer, err);
    if (!f)
        return false;
    enum bulk_fetch_state state;
    struct pollfd p = { .fd = n->wake_fd, .events = POLLIN };
    while ((state = bulk_fetch_state(f, err)) == BULK_FETCH_GOES && clock_ms() < end_ms) {
        uint64_t count;
        poll(&p, 1, 1000);
        ssize_t got = read(n->wake_fd, &count, sizeof count);
        (void)got;
    }
    out->s = (double)(clock_ns() - began) * 1e-9;
    out->cpu_s = cpu_s() - cpu;
    bulk_fetch_look(f, &look);
    out->wire_bytes = look.wire_bytes;
    bulk_fetch_free(f);
    if (state == BULK_FETCH_GOES)
        return error_set(err, ERR_TIMEOUT, "the version has not arrived in %d s", LIMIT_MS / 1000);
    return state == BULK_FETCH_DONE;
}

static void node_main(struct fetch_node *n, const char *netns)
{
    char path[300];
    struct order o;
    struct error err = { 0 };
    bool ok = true;
    if (netns) {
        snprintf(path, sizeof path, "%s%s", strchr(netns, '/') ? "" : NETNS "/", netns);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ok = (fd >= 0 && setns(fd, CLONE_NEWNET) == 0) || error_errno(&err, "cannot enter the network namespace '%s'", netns);
    }
    n->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    while (recv(n->fd, &o, sizeof o, 0) == (ssize_t)sizeof o && !o.end) {
        struct done d = { 0 };
        d.ok = ok && fetch_run(n, &o, &d, &err);
        snprintf(d.error, sizeof d.error, "%.299s", err.text);
        if (send(n->fd, &d, sizeof d, MSG_NOSIGNAL) != (ssize_t)sizeof d)
            break;
    }
    _exit(0);
}

/* ---- the head */

struct fetch_head {
    struct bulk_server *server;
    struct front *front;
    int fd;
    const char *dir;
    double cpu_s;    // of the last fetch
};

/* A file of weights with one tensor: size bytes made of unit, its hash, and the mark. */
static bool version_write(const char *dir, const char *name, const uint8_t *unit, size_t size, struct error *err)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "we");
    bool ok = f != NULL;
    for (size_t at = 0; at < size && ok; at += UNIT)
        ok = fwrite(unit, 1, MIN(UNIT, size - at), f) == MIN(UNIT, size - at);
    uint64_t hash = delta_hash(unit, UNIT);
    ok = ok && weights_file_end(f, &hash, 1, size);
    if (f)
        ok = fclose(f) == 0 && ok;
    return ok || error_errno(err, "cannot write '%s'", path);
}

static bool versions_make(const char *dir, size_t size, double lr, struct error *err)
{
    char from[300], to[300];
    uint8_t *before = calloc(UNIT, 1), *after = calloc(UNIT, 1);
    bool ok = before && after ? adam_steps_take(before, after, UNIT, DT_BF16, 10, lr, err)
                                    && version_write(dir, "head-1", before, size, err) && version_write(dir, "head-2", after, size, err)
                              : error_set(err, ERR_NO_MEMORY, "no memory for weights");
    snprintf(from, sizeof from, "%s/head-1", dir);
    snprintf(to, sizeof to, "%s/node-1", dir);
    if (ok && link(from, to) != 0)
        ok = error_errno(err, "cannot make '%s'", to);
    free(before);
    free(after);
    return ok;
}

/* Have the node fetch version 2, as differences or whole. */
static bool version_send(struct fetch_head *h, bool base, struct done *out, struct error *err)
{
    char path[300], base_path[300];
    struct bulk_offer first;
    struct order o = { .base = base };
    struct pollfd p = { .fd = h->fd, .events = POLLIN };
    snprintf(path, sizeof path, "%s/head-2", h->dir);
    snprintf(base_path, sizeof base_path, "%s/head-1", h->dir);
    double cpu = cpu_s();
    if (!bulk_server_offer(h->server, base_path, NULL, 0, true, &first, err)
        || !bulk_server_offer(h->server, path, base ? base_path : NULL, first.key, true, &o.offer, err))
        return false;
    if (send(h->fd, &o, sizeof o, MSG_NOSIGNAL) != (ssize_t)sizeof o || poll(&p, 1, LIMIT_MS) != 1
        || recv(h->fd, out, sizeof *out, 0) != (ssize_t)sizeof *out)
        return error_set(err, ERR_CLOSED, "the node's process has ended");
    h->cpu_s = cpu_s() - cpu;
    bulk_server_tick(h->server);
    return out->ok || error_set(err, ERR_IO, "the node: %s", out->error);
}

static bool equal_check(const char *dir, struct error *err)
{
    char a[300], b[300];
    struct file_map x, y;
    snprintf(a, sizeof a, "%s/head-2", dir);
    snprintf(b, sizeof b, "%s/node-2", dir);
    if (!file_map_open(&x, a, err))
        return false;
    bool ok = file_map_open(&y, b, err);
    if (ok) {
        ok = (x.size_bytes == y.size_bytes && memcmp(x.data, y.data, x.size_bytes) == 0)
             || error_set(err, ERR_DATA, "'%s' is not '%s'", b, a);
        file_map_close(&y);
    }
    file_map_close(&x);
    return ok;
}

/* What the node has fetched becomes the version that it needs no longer. */
static bool version_give_up(const char *dir, struct error *err)
{
    char from[300], to[300];
    snprintf(from, sizeof from, "%s/node-2", dir);
    snprintf(to, sizeof to, "%s/node-0", dir);
    bool ok = rename(from, to) == 0;
    FILE *f = ok ? fopen(to, "r+e") : NULL;
    ok = f && fseek(f, 0, SEEK_END) == 0;
    int64_t size = ok ? ftell(f) : 0;
    for (int64_t at = 0; at < size && ok; at += 4096)
        ok = fseek(f, at, SEEK_SET) == 0 && fputc((int)(at >> 12) & 255, f) != EOF;
    if (f)
        ok = fclose(f) == 0 && ok;
    return ok || error_errno(err, "cannot change '%s'", to);
}

static bool fetches_time(struct fetch_head *h, double size, bool whole, struct error *err)
{
    static const struct {
        const char *name;
        bool base;
    } how[] = { { "whole", false }, { "delta", true }, { "delta to another node", true } };
    for (size_t i = 0; i < ARRAY_SIZE(how); i++) {
        struct done d;
        if (!how[i].base && !whole)
            continue;
        if (!version_send(h, how[i].base, &d, err) || !equal_check(h->dir, err) || !version_give_up(h->dir, err))
            return false;
        printf("{\"bench\":\"fetch\",\"how\":\"%s\",\"bytes\":%.0f,\"wire_bytes\":%" PRId64
               ",\"ratio\":%.1f,\"s\":%.3f,\"gb_per_s\":%.2f,\"head_cpu_s\":%.3f,\"node_cpu_s\":%.3f,\"cores\":%ld,\"scaled_to_7b_s\":%.2f,"
               "\"bar_7b_s\":2,\"check\":\"bytes equal\"}\n",
               how[i].name, size, d.wire_bytes, size / (double)d.wire_bytes, d.s, size / d.s * 1e-9, h->cpu_s, d.cpu_s,
               sysconf(_SC_NPROCESSORS_ONLN), d.s * BYTES_7B / size);
        fflush(stdout);
    }
    return true;
}

static bool head_run(struct fetch_head *h, const char *address, size_t size, double lr, bool whole, struct error *err)
{
    struct order end = { .end = true };
    if (!versions_make(h->dir, size, lr, err) || !(h->server = bulk_server_new(err)) || !(h->front = front_new(address, 10000, err)))
        return false;
    front_bulk(h->front, bulk_server_connection, h->server);
    bool ok = front_start(h->front, err) && fetches_time(h, (double)size, whole, err);    // nobody speaks TLS here
    ssize_t n = send(h->fd, &end, sizeof end, MSG_NOSIGNAL);
    (void)n;
    return ok;
}

bool bench_fetch(int argc, char **argv, struct error *err)
{
    const char *listen = "127.0.0.1:29517", *netns = NULL, *in = "/tmp";
    int64_t mib = 1024;
    double lr = 1e-6;
    bool deltas = false;
    struct cli_option options[] = {
        { "mib", NULL, CLI_I64, &mib, "MIB", "weights (1024); three times as much is written to --dir" },
        { "listen", NULL, CLI_STR, &listen, "HOST:PORT", "where the head listens, as seen from the node (127.0.0.1:29517)" },
        { "netns", NULL, CLI_STR, &netns, "NAME", "network namespace of the node, or its file (this one)" },
        { "dir", NULL, CLI_STR, &in, "DIR", "where files are made (/tmp)" },
        { "lr", NULL, CLI_F64, &lr, "LR", "learning rate of the step between the versions (1e-6)" },
        { "deltas", NULL, CLI_FLAG, &deltas, NULL, "leave out the whole version, which takes long on a slow link" },
    };
    struct cli cli = { "bench fetch", "Brings a new version of bf16 weights to another process as to another machine.", NULL, options,
                       ARRAY_SIZE(options) };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (mib < 1 || mib > 1 << 20)
        return error_set(err, ERR_USAGE, "--mib must be 1 to %d", 1 << 20);
    char dir[240];
    int pair[2];
    if (snprintf(dir, sizeof dir, "%s/rollcall-fetch-XXXXXX", in) >= (int)sizeof dir)
        return error_set(err, ERR_USAGE, "--dir is too long");
    if (!mkdtemp(dir) || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return error_errno(err, "cannot prepare two processes in '%s'", dir);
    pid_t pid = fork();    // before there are threads
    if (pid == 0) {
        close(pair[0]);
        node_main(&(struct fetch_node){ .fd = pair[1], .address = listen, .dir = dir }, netns);
    }
    close(pair[1]);
    struct fetch_head h = { .fd = pair[0], .dir = dir };
    struct error none;
    bool ok = pid > 0 ? head_run(&h, listen, (size_t)mib << 20, lr, !deltas, err) : error_errno(err, "cannot start the node's process");
    close(pair[0]);
    if (pid > 0)
        waitpid(pid, NULL, 0);
    front_free(h.front);
    bulk_server_free(h.server);
    return dir_remove(dir, ok ? err : &none) && ok;
}
