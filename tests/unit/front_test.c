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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>
#include "protocol/base/clock.h"
#include "protocol/wire/front.h"

#define LONG_MS 60000
#define NEVER_MS 600000
#define N_STRANGER 150
#define STRANGERS_MAX 64    // with room for the most files

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

#define BULK ((size_t)8 << 20)
struct bulk {
    int fd;
    uint8_t *data;
};
static void *bulk_send(void *arg)
{
    struct bulk *b = arg;
    for (size_t at = 0; at < BULK;) {
        ssize_t n = send(b->fd, b->data + at, BULK - at, MSG_NOSIGNAL);
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    shutdown(b->fd, SHUT_WR);
    return NULL;
}

static void bulk_check(int fd, const uint8_t *want)
{
    static uint8_t piece[1 << 16];
    size_t at = 0;
    for (ssize_t n; (n = hear(fd, piece, sizeof piece)) > 0; at += (size_t)n)
        assert_memory_equal(piece, want + at, (size_t)n);
    assert_int_equal(at, BULK);
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
    uint8_t *data = malloc(2 * BULK);
    assert_non_null(data);
    for (size_t i = 0; i < 2 * BULK; i++)
        data[i] = (uint8_t)(i * 2654435761u >> 13);
    struct bulk there = { caller, data }, back = { nng, data + BULK };
    assert_int_equal(pthread_create(&thread[0], NULL, bulk_send, &there), 0);
    bulk_check(nng, data);
    assert_int_equal(pthread_create(&thread[1], NULL, bulk_send, &back), 0);
    bulk_check(caller, data + BULK);
    pthread_join(thread[0], NULL);
    pthread_join(thread[1], NULL);
    free(data);
    close(silent);
    close(caller);
    close(nng);
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
        cmocka_unit_test(a_client_with_the_token_stays_past_the_limit_and_its_bytes_go_both_ways),
        cmocka_unit_test(crowds_of_strangers_take_bounded_descriptors_and_leave_room_for_a_node),
        cmocka_unit_test(a_listener_that_answers_no_hello_is_deaf_until_there_is_another),
        cmocka_unit_test(a_connection_past_the_front_is_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
