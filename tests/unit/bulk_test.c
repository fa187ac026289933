/* Weights for another machine: what arrives is what was there, whole or as differences, whatever connections and bases do; and what strangers
 * and hostile partners can do. A listener of this test stands for the front. tags: asan tsan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/mix64.h"
#include "protocol/base/tcp.h"
#include "workers/node/bulk/bulk_fetch.h"
#include "workers/node/bulk/delta.h"

#define WAIT_MS 60000
#define N_WEIGHT (9 * (int64_t)DELTA_BLOCK + 1000)    // bytes of weights in a file: its last block is short
#define MAGIC 0x3173746867696577u                     // of a file of weights

struct fixture {
    char root[64], address[32];
    const char *spare;    // of the next fetch; NULL: none
    struct bulk_server *server;
    int listen_fd, wake_fd;
    pthread_t thread;
    atomic_bool over;
    atomic_int cut_after;    // bytes that each connection brings to the node before it is cut; 0: it is not
};

/* ---- the front, which can cut connections */

static bool hello_read(int fd, uint8_t *hello)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    size_t at = 0;
    while (at < BULK_HELLO_BYTES && poll(&p, 1, WAIT_MS) == 1) {
        ssize_t n = recv(fd, hello + at, BULK_HELLO_BYTES - at, 0);
        if (n <= 0)
            return false;
        at += (size_t)n;
    }
    return at == BULK_HELLO_BYTES;
}

/* Pass on what comes from one socket to the other; how many bytes, or -1: it has ended. */
static ssize_t pass_on(int from, int to)
{
    uint8_t data[4096];
    ssize_t n = recv(from, data, sizeof data, 0);
    return n > 0 && send(to, data, (size_t)n, MSG_NOSIGNAL) == n ? n : -1;
}

/* Stand between node and server until limit bytes have gone to the node. */
static void connection_cut(struct fixture *f, int node, const uint8_t *hello, ssize_t limit)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    if (!bulk_server_connection(f->server, pair[1], hello))
        close(pair[1]);
    struct pollfd p[2] = { { .fd = node, .events = POLLIN }, { .fd = pair[0], .events = POLLIN } };
    bool open = true;
    while (open && limit > 0 && poll(p, 2, WAIT_MS) > 0) {
        if (p[0].revents)
            open = pass_on(node, pair[0]) > 0;
        ssize_t n = open && p[1].revents ? pass_on(pair[0], node) : 0;
        open = open && n >= 0;
        limit -= n;
    }
    close(node);
    close(pair[0]);
}

static void *front_main(void *arg)
{
    struct fixture *f = arg;
    uint8_t hello[BULK_HELLO_BYTES];
    struct pollfd p = { .fd = f->listen_fd, .events = POLLIN };
    while (!atomic_load(&f->over)) {
        int fd = poll(&p, 1, 20) == 1 ? accept(f->listen_fd, NULL, NULL) : -1, cut = atomic_load(&f->cut_after);
        if (fd < 0)
            continue;
        if (!hello_read(fd, hello))
            close(fd);
        else if (cut > 0)
            connection_cut(f, fd, hello, cut);
        else if (!bulk_server_connection(f->server, fd, hello))
            close(fd);
    }
    return NULL;
}

static int setup(void **state)
{
    struct error err = { 0 };
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    snprintf(f->root, sizeof f->root, "%s/rc-bulk-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");    // where nodes keep them
    assert_non_null(mkdtemp(f->root));
    assert_non_null(f->server = bulk_server_new(&err));
    assert_true((f->listen_fd = tcp_listen("127.0.0.1:0", &err)) >= 0);
    assert_true((f->wake_fd = eventfd(0, EFD_NONBLOCK)) >= 0);
    snprintf(f->address, sizeof f->address, "127.0.0.1:%u", tcp_port(f->listen_fd));
    assert_int_equal(pthread_create(&f->thread, NULL, front_main, f), 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct error err = { 0 };
    struct fixture *f = *state;
    atomic_store(&f->over, true);
    pthread_join(f->thread, NULL);
    bulk_server_free(f->server);
    close(f->listen_fd);
    close(f->wake_fd);
    assert_true(dir_remove(f->root, &err));
    free(f);
    return 0;
}

/* ---- files of weights */

static const char *path_of(const struct fixture *f, const char *name)
{
    static char path[4][128];
    static int next;
    char *out = path[next++ % 4];
    snprintf(out, 128, "%s/%s", f->root, name);
    return out;
}

/* Write a file of weights: those of seed, with every k-th word moved by one place (0: none). Its last numbers are as those of a version: a
 * tensor's hash, how many there are, bytes of weights, and the mark. */
static void weights_write(const struct fixture *f, const char *name, uint64_t seed, size_t every)
{
    struct error err = { 0 };
    uint8_t *data = calloc(N_WEIGHT + 32, 1);
    assert_non_null(data);
    for (int64_t i = 0; i < N_WEIGHT; i += 8) {
        uint64_t r = mix64_next(&seed);
        memcpy(data + i, &r, 8);
    }
    for (size_t i = every; every && i < (size_t)N_WEIGHT / 2; i += every)
        data[2 * i]++;
    uint64_t end[4] = { delta_hash(data, N_WEIGHT), 1, N_WEIGHT, MAGIC };
    memcpy(data + N_WEIGHT, end, sizeof end);
    assert_true(file_write(path_of(f, name), data, N_WEIGHT + 32, &err));
    free(data);
}

static void files_equal(const struct fixture *f, const char *a, const char *b)
{
    struct error err = { 0 };
    struct file_map x, y;
    if (!file_map_open(&x, path_of(f, a), &err) || !file_map_open(&y, path_of(f, b), &err))
        fail_msg("%s", err.text);
    assert_int_equal(x.size_bytes, y.size_bytes);
    assert_memory_equal(x.data, y.data, x.size_bytes);
    file_map_close(&x);
    file_map_close(&y);
}

static struct bulk_offer offer_get(struct fixture *f, const char *name, const char *base, uint64_t base_key)
{
    struct error err = { 0 };
    struct bulk_offer o = { 0 };
    if (!bulk_server_offer(f->server, path_of(f, name), base ? path_of(f, base) : NULL, base_key, true, &o, &err))
        fail_msg("%s", err.text);
    return o;
}

static void on_wake(void *ctx)
{
    struct fixture *f = ctx;
    uint64_t one = 1;
    assert_int_equal(write(f->wake_fd, &one, sizeof one), sizeof one);
}

static struct bulk_fetch *fetch_begin(struct fixture *f, const char *to, const char *base, const struct bulk_offer *o)
{
    struct error err = { 0 };
    struct bulk_fetch_config c = { .address = f->address,
                                   .path = path_of(f, to),
                                   .base_path = base ? path_of(f, base) : NULL,
                                   .spare_path = f->spare ? path_of(f, f->spare) : NULL,
                                   .size_max = 1 << 30,
                                   .wake = on_wake,
                                   .ctx = f };
    struct bulk_fetch *x = bulk_fetch_new(&c, o, &err);
    if (!x)
        fail_msg("%s", err.text);
    return x;
}

/* Wait until it no longer goes; each wait is ended by the fetch itself. */
static enum bulk_fetch_state fetch_wait(struct fixture *f, struct bulk_fetch *x, struct error *err)
{
    struct pollfd p = { .fd = f->wake_fd, .events = POLLIN };
    uint64_t n;
    enum bulk_fetch_state s;
    while ((s = bulk_fetch_state(x, err)) == BULK_FETCH_GOES) {
        if (poll(&p, 1, WAIT_MS) != 1)
            fail_msg("the fetch has not ended");
        assert_int_equal(read(f->wake_fd, &n, sizeof n), sizeof n);
    }
    return s;
}

/* ---- the tests */

static void a_version_arrives_whole_and_then_as_differences(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    struct bulk_fetch_look look;
    weights_write(f, "v1", 1, 0);
    weights_write(f, "v2", 1, 60);
    struct bulk_offer o = offer_get(f, "v1", NULL, 0);
    assert_false(o.has_base);
    struct bulk_fetch *x = fetch_begin(f, "n1", NULL, &o);
    assert_int_equal(fetch_wait(f, x, &err), BULK_FETCH_DONE);
    bulk_fetch_look(x, &look);
    assert_int_equal(look.done_bytes, N_WEIGHT + 32);
    assert_true(look.wire_bytes >= look.size_bytes);
    assert_int_equal(look.delta_bytes, 0);
    bulk_fetch_free(x);
    files_equal(f, "v1", "n1");
    assert_int_equal(unlink(path_of(f, "v1")), 0);    // the trainer needs it no more; the head still has it in memory
    o = offer_get(f, "v2", "v1", o.key);
    assert_true(o.has_base);
    x = fetch_begin(f, "n2", "n1", &o);
    assert_int_equal(fetch_wait(f, x, &err), BULK_FETCH_DONE);
    bulk_fetch_look(x, &look);
    assert_true(look.wire_bytes < look.size_bytes / 20);
    assert_int_equal(look.delta_bytes, look.size_bytes);
    bulk_fetch_free(x);
    files_equal(f, "v2", "n2");
}

static void a_version_takes_the_place_of_one_that_nobody_needs(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    struct stat before, after;
    weights_write(f, "v1", 1, 0);
    weights_write(f, "v2", 1, 60);
    weights_write(f, "n0", 3, 0);
    struct bulk_offer first = offer_get(f, "v1", NULL, 0);
    for (int with_base = 0; with_base < 2; with_base++) {
        struct bulk_offer o = offer_get(f, "v2", with_base ? "v1" : NULL, first.key);
        assert_int_equal(stat(path_of(f, "n0"), &before), 0);
        f->spare = "n0";
        struct bulk_fetch *x = fetch_begin(f, "n2", with_base ? "v1" : NULL, &o);
        assert_int_equal(fetch_wait(f, x, &err), BULK_FETCH_DONE);
        bulk_fetch_free(x);
        files_equal(f, "v2", "n2");
        assert_false(path_exists(path_of(f, "n0")));
        assert_int_equal(stat(path_of(f, "n2"), &after), 0);
        assert_true(after.st_ino == before.st_ino || !path_in_memory(f->root));
        weights_write(f, "n2", 4, 0);
        assert_int_equal(rename(path_of(f, "n2"), path_of(f, "n0")), 0);
    }
}

static void another_node_gets_the_same_differences(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    weights_write(f, "v1", 1, 0);
    weights_write(f, "v2", 1, 60);
    struct bulk_offer first = offer_get(f, "v1", NULL, 0);
    struct bulk_offer a = offer_get(f, "v2", "v1", first.key), b = offer_get(f, "v2", "v1", first.key);
    struct bulk_fetch *x = fetch_begin(f, "n1", "v1", &a), *y = fetch_begin(f, "n2", "v1", &b);
    assert_int_equal(fetch_wait(f, x, &err), BULK_FETCH_DONE);
    assert_int_equal(fetch_wait(f, y, &err), BULK_FETCH_DONE);
    bulk_fetch_free(x);
    bulk_fetch_free(y);
    files_equal(f, "v2", "n1");
    files_equal(f, "v2", "n2");
}

static void another_base_than_the_head_has_means_the_whole(void **state)
{
    struct fixture *f = *state;
    weights_write(f, "v1", 1, 0);
    weights_write(f, "v2", 1, 60);
    struct bulk_offer o = offer_get(f, "v1", NULL, 0);
    assert_false(offer_get(f, "v2", "v1", o.key + 1).has_base);
    assert_true(offer_get(f, "v2", "v1", o.key).has_base);
    assert_true(offer_get(f, "v2", "v0", o.key).has_base);    // what it holds is what counts
}

/* Fetch version n as differences from version n - 1, of contents key, which then goes from the head's disk. Returns n's key. */
static uint64_t version_follow(struct fixture *f, int n, uint64_t key)
{
    struct error err = { 0 };
    char name[3][16];
    for (int k = 0; k < 3; k++)
        snprintf(name[k], sizeof name[k], "%c%d", k == 2 ? 'n' : 'v', n - (k == 1));
    struct bulk_offer o = offer_get(f, name[0], n > 1 ? name[1] : NULL, key);
    struct bulk_fetch *x = fetch_begin(f, name[2], n > 1 ? name[1] : NULL, &o);
    assert_int_equal(o.has_base, n > 1);
    assert_int_equal(fetch_wait(f, x, &err), BULK_FETCH_DONE);
    bulk_fetch_free(x);
    files_equal(f, name[0], name[2]);
    if (n > 1)
        assert_int_equal(unlink(path_of(f, name[1])), 0);
    struct bulk_server_look look;
    for (int64_t end = clock_ms() + WAIT_MS; bulk_server_look(f->server, &look), look.n_connection > 0;) {
        assert_true(clock_ms() < end);
        poll(NULL, 0, 1);    // its threads end by themselves, and with the last one the offer
    }
    return o.key;
}

/* A node follows the head from version 1 to n; version odd has other weights altogether. Returns version 1's key. */
static uint64_t versions_follow(struct fixture *f, int n, int odd)
{
    uint64_t first = 0, key = 0;
    for (int k = 1; k <= n; k++) {
        char name[16];
        snprintf(name, sizeof name, "v%d", k);
        weights_write(f, name, k == odd ? 9 : 1, k == 1 ? 0 : 60 + (size_t)k);
        key = version_follow(f, k, key);
        first = k == 1 ? key : first;
    }
    return first;
}

/* One node has followed each version; another has been away since the first one, of which the head has nothing any more. */
static void a_node_that_is_late_gets_a_chain_of_differences(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    struct bulk_fetch_look look;
    struct bulk_offer o;
    uint64_t key = versions_follow(f, 5, 0);
    weights_write(f, "late", 1, 0);
    assert_true(bulk_server_offer(f->server, path_of(f, "v5"), path_of(f, "v1"), key, false, &o, &err));
    assert_false(o.has_base);    // a node that does not know links
    assert_false(offer_get(f, "v5", "v1", key + 1).has_base);
    o = offer_get(f, "v5", "v1", key);
    assert_true(o.has_base);
    struct bulk_fetch *x = fetch_begin(f, "late5", "late", &o);
    assert_int_equal(fetch_wait(f, x, &err), BULK_FETCH_DONE);
    bulk_fetch_look(x, &look);
    bulk_fetch_free(x);
    files_equal(f, "v5", "late5");
    assert_int_equal(look.delta_bytes, look.size_bytes);
    assert_true(look.wire_bytes < look.size_bytes / 4);    // four links, each less than a twentieth

    FILE *n = fopen(path_of(f, "late"), "r+");
    assert_non_null(n);
    assert_int_equal(fseek(n, 5 * (long)DELTA_BLOCK + 7, SEEK_SET), 0);
    assert_int_equal(fputc('x', n), 'x');
    assert_int_equal(fclose(n), 0);
    o = offer_get(f, "v5", "v1", key);
    x = fetch_begin(f, "late6", "late", &o);
    assert_int_equal(fetch_wait(f, x, &err), BULK_FETCH_NO_BASE);    // the first link's hash has found it
    o = offer_get(f, "v5", NULL, 0);
    assert_true(bulk_fetch_again(x, f->address, &o, &err));
    assert_int_equal(fetch_wait(f, x, &err), BULK_FETCH_DONE);
    bulk_fetch_free(x);
    files_equal(f, "v5", "late6");
}

/* Version 3 has other weights altogether, so the way over it is longer than the whole. */
static void a_chain_that_is_not_smaller_is_not_sent(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    struct bulk_fetch_look look;
    uint64_t key = versions_follow(f, 5, 3);
    weights_write(f, "late", 1, 0);
    struct bulk_offer o = offer_get(f, "v5", "v1", key);
    struct bulk_fetch *x = fetch_begin(f, "late5", "late", &o);
    assert_int_equal(fetch_wait(f, x, &err), BULK_FETCH_DONE);
    bulk_fetch_look(x, &look);
    bulk_fetch_free(x);
    files_equal(f, "v5", "late5");
    assert_true(look.wire_bytes < look.size_bytes + 4096);
    assert_true(look.delta_bytes < (int64_t)DELTA_BLOCK);    // but for the last numbers of the file
}

/* The head still has the three newest versions in memory, and one link too many leads to the oldest of them. */
static void a_node_that_is_very_late_gets_the_whole(void **state)
{
    struct fixture *f = *state;
    uint64_t key = versions_follow(f, BULK_LINKS_MAX + 4, 0);
    assert_false(offer_get(f, "v12", "v1", key).has_base);
}

/* Version 2 is sent as differences afterwards, too: a file of another kind does not take the place of a version in memory. */
static void any_file_arrives_and_takes_no_place_of_a_version(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    struct bulk_offer o;
    weights_write(f, "v2", 1, 60);
    weights_write(f, "v1", 1, 0);
    uint64_t key = version_follow(f, 1, 0);
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "file%d", i);
        assert_true(file_write(path_of(f, name), name, strlen(name), &err));
        assert_false(bulk_server_offer(f->server, path_of(f, name), NULL, 0, true, &o, &err));
        assert_true(bulk_server_offer_file(f->server, path_of(f, name), &o, &err));
        assert_false(o.has_base);
        struct bulk_fetch_config c = {
            .address = f->address, .path = path_of(f, "here"), .plain = true, .size_max = 100, .wake = on_wake, .ctx = f
        };
        struct bulk_fetch *x = bulk_fetch_new(&c, &o, &err);
        assert_non_null(x);
        assert_int_equal(fetch_wait(f, x, &err), BULK_FETCH_DONE);
        bulk_fetch_free(x);
        files_equal(f, name, "here");
    }
    assert_true(file_write(path_of(f, "empty"), "", 0, &err));
    assert_false(bulk_server_offer_file(f->server, path_of(f, "empty"), &o, &err));
    assert_int_equal(err.code, ERR_DATA);
    assert_int_equal(unlink(path_of(f, "v1")), 0);
    assert_true(offer_get(f, "v2", "v1", key).has_base);
}

/* The node's file says that it is version 1, but one of its bytes is not: found by a block's hash, and the rest comes whole. */
static void a_base_whose_bytes_have_changed_is_found(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    weights_write(f, "v1", 1, 0);
    weights_write(f, "v2", 1, 60);
    weights_write(f, "n1", 1, 0);
    FILE *n = fopen(path_of(f, "n1"), "r+");
    assert_non_null(n);
    assert_int_equal(fseek(n, 5 * (long)DELTA_BLOCK + 7, SEEK_SET), 0);
    assert_int_equal(fputc('x', n), 'x');
    assert_int_equal(fclose(n), 0);
    struct bulk_offer o = offer_get(f, "v2", "v1", offer_get(f, "v1", NULL, 0).key);
    struct bulk_fetch *x = fetch_begin(f, "n2", "n1", &o);
    assert_int_equal(fetch_wait(f, x, &err), BULK_FETCH_NO_BASE);
    assert_non_null(strstr(err.text, "another hash"));
    o = offer_get(f, "v2", NULL, 0);
    assert_true(bulk_fetch_again(x, f->address, &o, &err));
    assert_int_equal(fetch_wait(f, x, &err), BULK_FETCH_DONE);
    bulk_fetch_free(x);
    files_equal(f, "v2", "n2");
}

/* Each connection brings two blocks and is cut: what has arrived counts, no block is counted twice, and the last offer brings the rest. */
static void a_cut_costs_only_what_was_on_its_way(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    struct bulk_fetch_look look = { 0 };
    weights_write(f, "v1", 1, 0);
    struct bulk_offer o = offer_get(f, "v1", NULL, 0);
    atomic_store(&f->cut_after, 5 * (int)DELTA_BLOCK / 2);
    struct bulk_fetch *x = fetch_begin(f, "n1", NULL, &o);
    assert_int_equal(fetch_wait(f, x, &err), BULK_FETCH_CUT);
    bulk_fetch_look(x, &look);
    int64_t first = look.done_bytes, wire = look.wire_bytes;
    assert_true(first >= 2 * (int64_t)DELTA_BLOCK);
    assert_true(first < N_WEIGHT);
    atomic_store(&f->cut_after, 0);
    o = offer_get(f, "v1", NULL, 0);
    assert_true(bulk_fetch_again(x, f->address, &o, &err));
    assert_int_equal(fetch_wait(f, x, &err), BULK_FETCH_DONE);
    bulk_fetch_look(x, &look);
    assert_int_equal(look.done_bytes, N_WEIGHT + 32);
    assert_true(look.wire_bytes - wire < N_WEIGHT - first + 4096);    // of each block 40 bytes more
    bulk_fetch_free(x);
    files_equal(f, "v1", "n1");
}

static void a_version_that_was_replaced_is_not_continued(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    weights_write(f, "v1", 1, 0);
    struct bulk_offer o = offer_get(f, "v1", NULL, 0);
    struct bulk_fetch *x = fetch_begin(f, "n1", NULL, &o);
    weights_write(f, "v1", 2, 0);
    struct bulk_offer other = offer_get(f, "v1", NULL, 0);
    assert_true(other.key != o.key);
    assert_false(bulk_fetch_again(x, f->address, &other, &err));
    assert_int_equal(err.code, ERR_DATA);
    bulk_fetch_free(x);
    assert_false(path_exists(path_of(f, "n1.new")));
}

static void offers_are_bounded_and_end(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    struct bulk_offer o;
    weights_write(f, "v1", 1, 0);
    for (int i = 0; i < BULK_OFFERS_MAX; i++)
        offer_get(f, "v1", NULL, 0);
    assert_false(bulk_server_offer(f->server, path_of(f, "v1"), NULL, 0, true, &o, &err));
    assert_int_equal(err.code, ERR_FULL);
    assert_true(bulk_server_due(f->server) > clock_ms());
    assert_true(bulk_server_due(f->server) <= clock_ms() + 20000);
    assert_false(bulk_server_offer(f->server, path_of(f, "v0"), NULL, 0, true, &o, &err));
}

static void what_is_no_file_of_weights_is_not_offered(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    struct bulk_offer o;
    assert_false(bulk_server_offer(f->server, path_of(f, "v1"), NULL, 0, true, &o, &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
    assert_true(file_write(path_of(f, "v1"), "something", 9, &err));
    assert_false(bulk_server_offer(f->server, path_of(f, "v1"), NULL, 0, true, &o, &err));
    assert_int_equal(err.code, ERR_DATA);
}

/* Who knows a ticket's name but not its key, or neither, gets nothing. */
static void a_wrong_ticket_gets_nothing(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    uint8_t type;
    const void *data;
    size_t len;
    struct bulk_want want = { 0, 1 };
    weights_write(f, "v1", 1, 0);
    struct bulk_ticket t = offer_get(f, "v1", NULL, 0).ticket;
    t.key[0] ^= 1;
    struct bulk *b = bulk_connect(f->address, &t, WAIT_MS, &err);
    assert_non_null(b);
    assert_true(bulk_send(b, BULK_WANT, &want, sizeof want, NULL, 0, &err) && bulk_flush(b, &err));
    assert_false(bulk_receive(b, &type, &data, &len, &err));
    assert_int_equal(err.code, ERR_CLOSED);
    bulk_free(b);
    t.name[0] ^= 1;
    assert_null(bulk_connect(f->address, &t, WAIT_MS, &err));
}

/* Known callers that ask for what is not there, or send something else, are closed. */
static void a_hostile_node_is_closed(void **state)
{
    static const struct {
        uint8_t type;
        struct bulk_want want;
        size_t len;
    } cases[] = {
        { BULK_WANT, { 0, 0 }, 8 },          { BULK_WANT, { 10, 1 }, 8 }, { BULK_WANT, { 9, 2 }, 8 },
        { BULK_WANT, { 1, UINT32_MAX }, 8 }, { BULK_WANT, { 0, 1 }, 7 },  { 77, { 0, 1 }, 8 },
    };
    struct fixture *f = *state;
    weights_write(f, "v1", 1, 0);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        uint8_t type;
        const void *data;
        size_t len;
        struct bulk_offer o = offer_get(f, "v1", NULL, 0);
        struct bulk *b = bulk_connect(f->address, &o.ticket, WAIT_MS, &err);
        assert_non_null(b);
        assert_true(bulk_send(b, cases[i].type, &cases[i].want, cases[i].len, NULL, 0, &err) && bulk_flush(b, &err));
        assert_false(bulk_receive(b, &type, &data, &len, &err));
        assert_int_equal(err.code, ERR_CLOSED);
        bulk_free(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_version_arrives_whole_and_then_as_differences, setup, teardown),
        cmocka_unit_test_setup_teardown(a_version_takes_the_place_of_one_that_nobody_needs, setup, teardown),
        cmocka_unit_test_setup_teardown(another_node_gets_the_same_differences, setup, teardown),
        cmocka_unit_test_setup_teardown(another_base_than_the_head_has_means_the_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(a_node_that_is_late_gets_a_chain_of_differences, setup, teardown),
        cmocka_unit_test_setup_teardown(a_chain_that_is_not_smaller_is_not_sent, setup, teardown),
        cmocka_unit_test_setup_teardown(a_node_that_is_very_late_gets_the_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(any_file_arrives_and_takes_no_place_of_a_version, setup, teardown),
        cmocka_unit_test_setup_teardown(a_base_whose_bytes_have_changed_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(a_cut_costs_only_what_was_on_its_way, setup, teardown),
        cmocka_unit_test_setup_teardown(a_version_that_was_replaced_is_not_continued, setup, teardown),
        cmocka_unit_test_setup_teardown(offers_are_bounded_and_end, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_no_file_of_weights_is_not_offered, setup, teardown),
        cmocka_unit_test_setup_teardown(a_wrong_ticket_gets_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_hostile_node_is_closed, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
