/* tags: tsan valgrind
 * The front of a TLS listener: what strangers cost, and what clients with the token may do. A plain listener stands in for nng
 * here, so that the test sees how connections end on that side. */
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>
#include "protocol/base/clock.h"
#include "protocol/wire/bulk.h"
#include "protocol/wire/front.h"

#define LONG_MS 60000
#define NEVER_MS 600000
#define N_STRANGER 150
#define STRANGERS_MAX 64    // with room for the most files
#define SHAKE_MS 1000       // that a handshake is left alone

/* A record of type handshake with a client_hello of 4 bytes of rubbish: the front does not look further. */
static const uint8_t hello[] = { 22, 3, 1, 0, 8, 1, 0, 0, 4, 9, 9, 9, 9 };

static int socket_listen(uint16_t *port)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 128), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    *port = ntohs(at.sin_port);
    return fd;
}

static int dial(uint16_t port)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static bool readable(int fd, int ms)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    return poll(&p, 1, ms) > 0;
}

/* What recv says when something comes: bytes, 0 for the end, -1 for a reset. */
static ssize_t hear(int fd, void *out, size_t size)
{
    assert_true(readable(fd, LONG_MS));
    return recv(fd, out, size, 0);
}

static bool closed(int fd, int ms)
{
    char c;
    return readable(fd, ms) && recv(fd, &c, 1, 0) <= 0;
}

struct fixture {
    struct front *front;
    uint16_t port, nng_port;
    int nng_fd;
};

static void open_front(struct fixture *f, int64_t limit_ms)
{
    struct error err = { 0 };
    char address[64];
    close(socket_listen(&f->port));    // a free one
    f->nng_fd = socket_listen(&f->nng_port);
    snprintf(address, sizeof address, "127.0.0.1:%d", f->port);
    f->front = front_new(address, limit_ms, &err);
    if (!f->front)
        fail_msg("%s", err.text);
    assert_true(front_start(f->front, f->nng_port, &err));
}

static void close_front(struct fixture *f)
{
    front_free(f->front);
    close(f->nng_fd);
}

/* nng's end of the connection that came next, and the port by which it knows the front. */
static int nng_accept(struct fixture *f, uint16_t *port)
{
    struct sockaddr_in from;
    socklen_t len = sizeof from;
    assert_true(readable(f->nng_fd, LONG_MS));
    int fd = accept(f->nng_fd, (struct sockaddr *)&from, &len);
    assert_true(fd >= 0);
    *port = ntohs(from.sin_port);
    return fd;
}

static int n_fd(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void a_client_without_a_token_is_closed_in_time_and_nng_sees_an_end_and_no_reset(void **state)
{
    (void)state;
    char got[64];
    uint16_t port;
    struct fixture f = { 0 };
    open_front(&f, 300);
    int64_t began_ms = clock_ms();
    int silent = dial(f.port), half = dial(f.port), part = dial(f.port);
    assert_int_equal(send(half, hello, sizeof hello, 0), sizeof hello);
    assert_int_equal(send(part, hello, sizeof hello - 1, 0), sizeof hello - 1);
    int nng = nng_accept(&f, &port);
    assert_int_equal(hear(nng, got, sizeof got), sizeof hello);
    assert_memory_equal(got, hello, sizeof hello);
    assert_int_equal(send(nng, "server hello", 12, 0), 12);
    assert_int_equal(hear(half, got, sizeof got), 12);
    assert_true(closed(silent, LONG_MS));
    assert_true(closed(half, LONG_MS));
    assert_true(closed(part, LONG_MS));
    assert_true(clock_ms() >= began_ms + 300);
    assert_int_equal(hear(nng, got, sizeof got), 0);
    assert_false(readable(f.nng_fd, 0));    // it never knew of the other two
    assert_false(front_is_deaf(f.front));
    close(nng);
    close(silent);
    close(half);
    close(part);
    close_front(&f);
}

static void what_is_not_a_client_hello_is_closed_at_once(void **state)
{
    (void)state;
    static const char *const said[] = { "GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\xff\xff\x01", "\x16\x03\x01\x00\x08\x02", "\x15",
                                        "\x16\x02" };
    static const size_t len[] = { 18, 6, 6, 1, 2 };
    struct fixture f = { 0 };
    open_front(&f, NEVER_MS);
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        int fd = dial(f.port);
        assert_int_equal(send(fd, said[i], len[i], 0), len[i]);
        assert_true(closed(fd, LONG_MS));
        close(fd);
    }
    assert_false(readable(f.nng_fd, 0));
    close_front(&f);
}

/* Who is known by the last byte of its hello. */
static bool bulk_take(void *ctx, int fd, const uint8_t *said)
{
    atomic_int *taken = ctx;
    if (said[BULK_HELLO_BYTES - 1] != 'k')
        return false;
    assert_memory_equal(said, BULK_MAGIC, 4);
    *taken = fd;    // before the test hears of it
    assert_int_equal(send(fd, "taken", 5, 0), 5);
    return true;
}

/* Keep the front's thread busy, and say so. */
static bool slow_take(void *ctx, int fd, const uint8_t *said)
{
    (void)fd, (void)said;
    bool ok = write(*(const int *)ctx, "x", 1) == 1;
    poll(NULL, 0, 300);
    return !ok;
}

static void what_nng_said_last_arrives_when_the_front_ends_at_once(void **state)
{
    (void)state;
    char said[BULK_HELLO_BYTES] = BULK_MAGIC, got[64];
    int busy[2];
    uint16_t port;
    struct fixture f = { 0 };
    open_front(&f, LONG_MS);
    int fd = dial(f.port);
    assert_int_equal(send(fd, hello, sizeof hello, 0), sizeof hello);
    int nng = nng_accept(&f, &port);
    assert_int_equal(hear(nng, got, sizeof got), sizeof hello);
    assert_int_equal(pipe(busy), 0);
    front_bulk(f.front, slow_take, &busy[1]);
    int other = dial(f.port);
    assert_int_equal(send(other, said, sizeof said, 0), sizeof said);
    assert_int_equal(read(busy[0], got, 1), 1);
    assert_int_equal(send(nng, "stop", 4, 0), 4);
    close(nng);
    close_front(&f);
    assert_int_equal(hear(fd, got, sizeof got), 4);
    assert_memory_equal(got, "stop", 4);
    assert_int_equal(hear(fd, got, sizeof got), 0);
    close(fd);
    close(other);
    close(busy[0]);
    close(busy[1]);
}

static void a_caller_with_large_data_is_handed_over_when_its_hello_is_whole(void **state)
{
    (void)state;
    static const struct {
        const char *begin;
        size_t len;
        char last;
        const char *why;
    } strangers[] = {
        { BULK_MAGIC, BULK_HELLO_BYTES, 'x', "nobody knows it" },
        { BULK_MAGIC, BULK_HELLO_BYTES + 1, 'k', "it says more than a hello" },
        { "RCB2", BULK_HELLO_BYTES, 'k', "another version" },
        { "RC\n", 3, '\n', "something else that begins alike" },
        { BULK_MAGIC, BULK_HELLO_BYTES - 1, 'k', "a hello that does not come to its end" },
    };
    char said[BULK_HELLO_BYTES + 1], got[16];
    atomic_int taken = -1;
    struct fixture f = { 0 };
    open_front(&f, 300);
    int early = dial(f.port);
    memset(said, 'h', sizeof said);
    memcpy(said, BULK_MAGIC, 4);
    assert_int_equal(send(early, said, BULK_HELLO_BYTES, 0), BULK_HELLO_BYTES);
    assert_true(closed(early, LONG_MS));    // nobody takes them yet
    front_bulk(f.front, bulk_take, &taken);
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) {
        int fd = dial(f.port);
        memset(said, 'h', sizeof said);
        memcpy(said, strangers[i].begin, MIN(strangers[i].len, (size_t)4));
        said[strangers[i].len - 1] = strangers[i].last;
        assert_int_equal(send(fd, said, strangers[i].len, 0), strangers[i].len);
        if (!closed(fd, LONG_MS))
            fail_msg("%s", strangers[i].why);
        close(fd);
    }
    assert_int_equal(taken, -1);
    int fd = dial(f.port);
    memset(said, 'h', sizeof said);
    memcpy(said, BULK_MAGIC, 4);
    said[BULK_HELLO_BYTES - 1] = 'k';
    assert_int_equal(send(fd, said, 10, 0), 10);
    assert_int_equal(send(fd, said + 10, BULK_HELLO_BYTES - 10, 0), BULK_HELLO_BYTES - 10);
    assert_int_equal(hear(fd, got, sizeof got), 5);
    int silent = dial(f.port);    // the limit has passed for one that came later
    assert_true(closed(silent, LONG_MS));
    assert_int_equal(send(fd, "more", 4, 0), 4);
    assert_int_equal(hear(taken, got, sizeof got), 4);    // not the front's any more
    assert_false(readable(f.nng_fd, 0));
    close(silent);
    close(early);
    close(taken);
    close(fd);
    close_front(&f);
}

#define LOAD ((size_t)8 << 20)
struct load {
    int fd;
    uint8_t *data;
};
static void *load_send(void *arg)
{
    struct load *b = arg;
    for (size_t at = 0; at < LOAD;) {
        ssize_t n = send(b->fd, b->data + at, LOAD - at, MSG_NOSIGNAL);
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    shutdown(b->fd, SHUT_WR);
    return NULL;
}

static void load_check(int fd, const uint8_t *want)
{
    static uint8_t piece[1 << 16];
    size_t at = 0;
    for (ssize_t n; (n = hear(fd, piece, sizeof piece)) > 0; at += (size_t)n)
        assert_memory_equal(piece, want + at, (size_t)n);
    assert_int_equal(at, LOAD);
}

static void a_client_with_the_token_stays_past_the_limit_and_its_bytes_go_both_ways(void **state)
{
    (void)state;
    char got[64];
    uint16_t port;
    pthread_t thread[2];
    struct fixture f = { 0 };
    open_front(&f, 200);
    int caller = dial(f.port);
    assert_int_equal(send(caller, hello, sizeof hello, 0), sizeof hello);
    int nng = nng_accept(&f, &port);
    assert_int_equal(hear(nng, got, sizeof got), sizeof hello);
    front_admit(f.front, port);
    int silent = dial(f.port);    // the limit has passed for one that came later
    assert_true(closed(silent, LONG_MS));
    uint8_t *data = malloc(2 * LOAD);
    assert_non_null(data);
    for (size_t i = 0; i < 2 * LOAD; i++)
        data[i] = (uint8_t)(i * 2654435761u >> 13);
    struct load there = { caller, data }, back = { nng, data + LOAD };
    assert_int_equal(pthread_create(&thread[0], NULL, load_send, &there), 0);
    load_check(nng, data);
    assert_int_equal(pthread_create(&thread[1], NULL, load_send, &back), 0);
    load_check(caller, data + LOAD);
    pthread_join(thread[0], NULL);
    pthread_join(thread[1], NULL);
    free(data);
    close(silent);
    close(caller);
    close(nng);
    close_front(&f);
}

static void many_nodes_of_one_address_do_not_push_each_other_out_of_their_handshakes(void **state)
{
    (void)state;
    char got[64];
    uint16_t port;
    int fd[STRANGERS_MAX], its[STRANGERS_MAX];
    struct fixture f = { 0 };
    open_front(&f, NEVER_MS);
    int64_t began_ms = clock_ms();
    for (int i = 0; i < STRANGERS_MAX; i++) {
        fd[i] = dial(f.port);
        assert_int_equal(send(fd[i], hello, sizeof hello, 0), sizeof hello);
        its[i] = nng_accept(&f, &port);
        assert_int_equal(hear(its[i], got, sizeof got), sizeof hello);
    }
    while (!closed(fd[0], 0)) {    // it says no more, so it gives way in the end
        int more = dial(f.port);
        struct pollfd ends[] = { { .fd = more, .events = POLLIN }, { .fd = fd[0], .events = POLLIN } };
        assert_true(poll(ends, ARRAY_SIZE(ends), LONG_MS) > 0);
        close(more);
    }
    assert_true(clock_ms() >= began_ms + SHAKE_MS);
    for (int i = 1; i < STRANGERS_MAX; i++)
        assert_false(closed(fd[i], 0));
    for (int i = 0; i < STRANGERS_MAX; i++) {
        close(fd[i]);
        close(its[i]);
    }
    close_front(&f);
}

static void crowds_of_strangers_take_bounded_descriptors_and_leave_room_for_a_node(void **state)
{
    (void)state;
    char got[64];
    uint16_t port;
    int fd[N_STRANGER];
    struct fixture f = { 0 };
    open_front(&f, NEVER_MS);
    int admitted = dial(f.port), n_before;
    assert_int_equal(send(admitted, hello, sizeof hello, 0), sizeof hello);
    int nng = nng_accept(&f, &port);
    assert_int_equal(hear(nng, got, sizeof got), sizeof hello);
    front_admit(f.front, port);
    n_before = n_fd();
    for (int i = 0; i < N_STRANGER; i++) {
        fd[i] = dial(f.port);
        assert_true(fd[i] >= 0);
    }
    /* All but the last that may be strangers are closed, oldest first. */
    for (int i = 0; i < N_STRANGER - STRANGERS_MAX; i++)
        assert_true(closed(fd[i], LONG_MS));
    assert_false(closed(fd[N_STRANGER - 1], 0));
    assert_true(n_fd() <= n_before + N_STRANGER + STRANGERS_MAX);
    int node = dial(f.port);    // it comes among them
    assert_int_equal(send(node, hello, sizeof hello, 0), sizeof hello);
    int its = nng_accept(&f, &port);
    assert_int_equal(hear(its, got, sizeof got), sizeof hello);
    front_admit(f.front, port);
    assert_int_equal(send(nng, "still", 5, 0), 5);
    assert_int_equal(hear(admitted, got, sizeof got), 5);
    for (int i = 0; i < N_STRANGER; i++)
        close(fd[i]);
    close(node);
    close(its);
    close(nng);
    close(admitted);
    close_front(&f);
}

static void a_listener_that_answers_no_hello_is_deaf_until_there_is_another(void **state)
{
    (void)state;
    struct fixture f = { 0 };
    open_front(&f, NEVER_MS);
    int caller = dial(f.port);
    assert_int_equal(send(caller, hello, sizeof hello, 0), sizeof hello);
    for (int64_t end = clock_ms() + LONG_MS; !front_is_deaf(f.front) && clock_ms() < end;)
        readable(caller, 20);
    assert_true(front_is_deaf(f.front));
    front_target(f.front, f.nng_port);
    assert_false(front_is_deaf(f.front));
    close(caller);
    close_front(&f);
}

static void a_connection_past_the_front_is_closed(void **state)
{
    (void)state;
    char got[8];
    struct sockaddr_in from;
    socklen_t len = sizeof from;
    uint16_t port;
    struct fixture f = { 0 };
    open_front(&f, NEVER_MS);
    int past = dial(f.nng_port);
    int past_nng = accept(f.nng_fd, (struct sockaddr *)&from, &len);
    int caller = dial(f.port);
    assert_int_equal(send(caller, hello, sizeof hello, 0), sizeof hello);
    int nng = nng_accept(&f, &port);
    front_check(f.front);
    assert_false(readable(past_nng, 0));    // it may be one that the front is making just now
    front_check(f.front);
    assert_int_equal(hear(past_nng, got, sizeof got), 0);
    assert_int_equal(send(nng, "x", 1, 0), 1);
    assert_int_equal(hear(caller, got, sizeof got), 1);
    close(past);
    close(past_nng);
    close(caller);
    close(nng);
    close_front(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_without_a_token_is_closed_in_time_and_nng_sees_an_end_and_no_reset),
        cmocka_unit_test(what_is_not_a_client_hello_is_closed_at_once),
        cmocka_unit_test(what_nng_said_last_arrives_when_the_front_ends_at_once),
        cmocka_unit_test(a_caller_with_large_data_is_handed_over_when_its_hello_is_whole),
        cmocka_unit_test(a_client_with_the_token_stays_past_the_limit_and_its_bytes_go_both_ways),
        cmocka_unit_test(many_nodes_of_one_address_do_not_push_each_other_out_of_their_handshakes),
        cmocka_unit_test(crowds_of_strangers_take_bounded_descriptors_and_leave_room_for_a_node),
        cmocka_unit_test(a_listener_that_answers_no_hello_is_deaf_until_there_is_another),
        cmocka_unit_test(a_connection_past_the_front_is_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
