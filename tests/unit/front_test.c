/* tags: tsan valgrind
 * The front: what strangers cost, and what clients with the token may do. */
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
#include <sys/eventfd.h>
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
#define HEARD_MAX 4096
#define CROWD 40    // strangers that epoll can name together
#define TOKEN "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define OTHER "1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static int dial(uint16_t port)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static uint16_t port_find(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    close(fd);
    return ntohs(at.sin_port);
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

/* Does the other side end it within this time, whatever it says before? */
static bool closed(int fd, int ms)
{
    char any[4096];
    int64_t end = clock_ms() + ms;
    while (readable(fd, (int)MAX(end - clock_ms(), (int64_t)0)))
        if (recv(fd, any, sizeof any, 0) <= 0)
            return true;
    return false;
}

/* ---- the front ---- */

struct request {
    uint64_t connection;
    struct tls_trace trace;
    size_t len;
    uint8_t *data;
};
struct fixture {
    struct front *front;
    uint16_t port;
    struct join_identity id, strange;
    int event_fd;            // counts requests
    pthread_mutex_t lock;    // guards: heard, n_heard
    struct request heard[HEARD_MAX];
    atomic_int n_heard;
    /* for the test whose requests hold the front's thread */
    atomic_bool holds;
    int go_fd;            // the front's thread goes on when this has been written
    int crowd[CROWD];     // connections
    atomic_int n_told;    // of the crowd, those to whom the front had said something when the last request was heard
};

static bool keep(void *ctx, uint64_t connection, const struct tls_message *m)
{
    struct fixture *f = ctx;
    const uint64_t one = 1;
    struct request r = { connection, m->trace, m->len, malloc(m->len + 1) };
    memcpy(r.data, m->data, m->len);
    pthread_mutex_lock(&f->lock);
    f->heard[f->n_heard++] = r;
    pthread_mutex_unlock(&f->lock);
    bool holds = atomic_load(&f->holds);
    int n_told = 0;
    for (int i = 0; holds && i < CROWD; i++)
        n_told += readable(f->crowd[i], 0);
    atomic_store(&f->n_told, n_told);
    uint64_t go = 1;
    return write(f->event_fd, &one, sizeof one) == sizeof one && (!holds || read(f->go_fd, &go, sizeof go) == sizeof go);
}

static void open_front(struct fixture *f, int64_t limit_ms, int held_max)
{
    struct error err = { 0 };
    char address[64];
    *f = (struct fixture){ .port = port_find(), .event_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE), .go_fd = eventfd(0, EFD_CLOEXEC) };
    pthread_mutex_init(&f->lock, NULL);
    assert_true(join_identity_make(&f->id, TOKEN, NULL, &err) && join_identity_make(&f->strange, OTHER, NULL, &err));
    snprintf(address, sizeof address, "127.0.0.1:%d", f->port);
    f->front = front_new(address, limit_ms, &err);
    if (!f->front)
        fail_msg("%s", err.text);
    front_requests(f->front, held_max, keep, f);
    assert_true(front_identity(f->front, &f->id, &err));
    assert_true(front_start(f->front, &err));
}

static void close_front(struct fixture *f)
{
    front_free(f->front);
    close(f->event_fd);
    close(f->go_fd);
    for (int i = 0; i < f->n_heard; i++)
        free(f->heard[i].data);
    pthread_mutex_destroy(&f->lock);
}

/* The next request, which has come or comes. */
static struct request next_heard(struct fixture *f, int n)
{
    uint64_t one;
    assert_true(readable(f->event_fd, LONG_MS));
    assert_int_equal(read(f->event_fd, &one, sizeof one), sizeof one);
    pthread_mutex_lock(&f->lock);
    struct request r = f->heard[n];
    pthread_mutex_unlock(&f->lock);
    return r;
}

/* ---- a client ---- */

struct client {
    int fd;
    struct tls_link *link;
};

static void client_send(struct client *c)
{
    size_t len;
    for (const uint8_t *b; (b = tls_link_bytes(c->link, &len)) != NULL;) {
        ssize_t n = send(c->fd, b, len, MSG_NOSIGNAL);
        assert_true(n > 0);
        tls_link_sent(c->link, (size_t)n);
    }
}

static struct client client_open(struct fixture *f, const struct join_identity *id)
{
    struct error err;
    struct client c = { .fd = dial(f->port) };
    struct tls_side *side = tls_side_new(id, TLS_ASKS, &err);
    assert_non_null(side);
    c.link = tls_link_new(side);
    tls_side_free(side);
    assert_non_null(c.link);
    return c;
}

/* Take what comes. False: the front has ended it, or what it says is refused. */
static bool client_take(struct client *c)
{
    struct error err;
    static _Thread_local uint8_t any[1 << 16];
    client_send(c);
    ssize_t n = hear(c->fd, any, sizeof any);
    bool ok = n > 0 && tls_link_take(c->link, any, (size_t)n, &err);
    if (ok)
        client_send(c);
    return ok;
}

static struct client client_in(struct fixture *f)
{
    struct client c = client_open(f, &f->id);
    while (!tls_link_is_in(c.link))
        assert_true(client_take(&c));
    return c;
}

static void client_ask(struct client *c, uint8_t number, const void *data, size_t len)
{
    const struct tls_trace trace = { { 0x80, 0, 0, number }, 4 };
    assert_true(tls_link_say(c->link, &trace, data, len));
    client_send(c);
}

/* Its next answer. */
static void client_hear(struct client *c, struct tls_message *m)
{
    struct error err;
    for (bool came = false; !came;) {
        assert_true(tls_link_next(c->link, m, &came, &err));
        if (!came)
            assert_true(client_take(c));
    }
}

static void client_close(struct client *c)
{
    tls_link_free(c->link);
    close(c->fd);
}

/* A client's first bytes. */
static size_t hello_make(struct fixture *f, uint8_t out[4096])
{
    size_t len;
    struct client c = client_open(f, &f->id);
    const uint8_t *b = tls_link_bytes(c.link, &len);
    assert_true(b && len < 4096);
    memcpy(out, b, len);
    client_close(&c);
    return len;
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

static void a_client_without_a_token_is_closed_in_time(void **state)
{
    (void)state;
    uint8_t hello[4096];
    struct fixture f;
    open_front(&f, 300, 8);
    size_t n_hello = hello_make(&f, hello);
    int64_t began_ms = clock_ms();
    int silent = dial(f.port), half = dial(f.port), part = dial(f.port);
    assert_int_equal(send(half, hello, n_hello, 0), n_hello);
    assert_int_equal(send(part, hello, n_hello - 1, 0), n_hello - 1);
    struct client other = client_open(&f, &f.strange);
    assert_false(client_take(&other));    // it does not trust the front, either
    assert_true(closed(silent, LONG_MS));
    assert_true(closed(half, LONG_MS));
    assert_true(closed(part, LONG_MS));
    assert_true(clock_ms() >= began_ms + 300);
    assert_int_equal(f.n_heard, 0);
    client_close(&other);
    close(silent);
    close(half);
    close(part);
    close_front(&f);
}

static void what_is_not_a_client_hello_is_closed_at_once(void **state)
{
    (void)state;
    static const struct {
        const char *said;
        size_t len;
    } cases[] = {
        { "GET / HTTP/1.1\r\n\r\n", 18 },
        { "\x16\x03\x01\xff\xff\x01", 6 },
        { "\x16\x03\x01\x00\x08\x02", 6 },
        { "\x15", 1 },
        { "\x16\x02", 2 },
        { "\x16\x03\x01\x00\x08\x01\x00\x00\x04\x09\x09\x09\x09", 13 },    // as long as it says, and rubbish
    };
    struct fixture f;
    open_front(&f, NEVER_MS, 8);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        int fd = dial(f.port);
        assert_int_equal(send(fd, cases[i].said, cases[i].len, 0), cases[i].len);
        assert_true(closed(fd, LONG_MS));
        close(fd);
    }
    assert_int_equal(f.n_heard, 0);
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

static void what_was_answered_last_arrives_when_the_front_ends_at_once(void **state)
{
    (void)state;
    char said[BULK_HELLO_BYTES] = BULK_MAGIC, got[64];
    int busy[2];
    struct tls_message m;
    struct fixture f;
    open_front(&f, LONG_MS, 8);
    struct client c = client_in(&f);
    client_ask(&c, 1, "work", 4);
    struct request r = next_heard(&f, 0);
    assert_int_equal(pipe(busy), 0);
    front_bulk(f.front, slow_take, &busy[1]);
    int other = dial(f.port);
    assert_int_equal(send(other, said, sizeof said, 0), sizeof said);
    assert_int_equal(read(busy[0], got, 1), 1);
    front_answer(f.front, r.connection, &r.trace, "stop", 4);
    close_front(&f);
    client_hear(&c, &m);
    assert_int_equal(m.len, 4);
    assert_memory_equal(m.data, "stop", 4);
    assert_int_equal(hear(c.fd, got, sizeof got), 0);
    client_close(&c);
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
    struct fixture f;
    open_front(&f, 300, 8);
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
    assert_int_equal(f.n_heard, 0);
    close(silent);
    close(early);
    close(taken);
    close(fd);
    close_front(&f);
}

#define LOAD ((size_t)8 << 20)

static void *load_ask(void *arg)
{
    uint8_t *data = malloc(LOAD);
    for (size_t i = 0; i < LOAD; i++)
        data[i] = (uint8_t)(i * 2654435761u >> 13);
    client_ask(arg, 1, data, LOAD);
    free(data);
    return NULL;
}

static void a_client_with_the_token_stays_past_the_limit_and_large_messages_go_both_ways(void **state)
{
    (void)state;
    pthread_t thread;
    struct tls_message m;
    struct fixture f;
    open_front(&f, 3000, 8);    // which its handshake takes on a starved machine
    struct client c = client_in(&f);
    int silent = dial(f.port);    // the limit has passed for one that came later
    assert_true(closed(silent, LONG_MS));
    assert_int_equal(pthread_create(&thread, NULL, load_ask, &c), 0);
    struct request r = next_heard(&f, 0);
    pthread_join(thread, NULL);
    assert_int_equal(r.len, LOAD);
    for (size_t i = 0; i < LOAD; i++)
        if (r.data[i] != (uint8_t)(i * 2654435761u >> 13))
            fail_msg("byte %zu", i);
    front_answer(f.front, r.connection, &r.trace, r.data, r.len);
    client_hear(&c, &m);
    assert_int_equal(m.len, LOAD);
    assert_memory_equal(m.data, r.data, LOAD);
    assert_memory_equal(m.trace.byte, ((uint8_t[]){ 0x80, 0, 0, 1 }), 4);
    close(silent);
    client_close(&c);
    close_front(&f);
}

/* When something is next heard of a connection, other than at this time. */
static int64_t heard_after(const struct fixture *f, uint64_t connection, int64_t before_ms)
{
    int64_t ms = before_ms;
    for (int64_t end = clock_ms() + LONG_MS; ms == before_ms && clock_ms() < end;) {
        poll(NULL, 0, 1);
        ms = front_heard_ms(f->front, connection);
    }
    return ms;
}

static void bytes_of_a_request_that_is_not_whole_yet_are_a_sign_of_life(void **state)
{
    (void)state;
    enum { PARTS = 3 };
    static uint8_t data[60000];
    const struct tls_trace trace = { { 0x80, 0, 0, 2 }, 4 };
    size_t len;
    struct fixture f;
    open_front(&f, NEVER_MS, 2);
    struct client c = client_in(&f), other = client_in(&f);
    client_ask(&other, 1, "other", 5);
    uint64_t others = next_heard(&f, 0).connection;
    client_ask(&c, 1, "first", 5);
    uint64_t mine = next_heard(&f, 1).connection;
    front_drop(f.front);
    front_drop(f.front);
    int64_t since = front_heard_ms(f.front, mine), others_ms = front_heard_ms(f.front, others);
    assert_in_range(clock_ms() - since, 0, LONG_MS);
    assert_true(tls_link_say(c.link, &trace, data, sizeof data));
    for (int i = 0; i < PARTS; i++) {
        const uint8_t *b = tls_link_bytes(c.link, &len);
        assert_true(b && len > 1000);
        poll(NULL, 0, 5);    // the clock moves
        assert_int_equal(send(c.fd, b, 1000, MSG_NOSIGNAL), 1000);
        tls_link_sent(c.link, 1000);
        int64_t heard = heard_after(&f, mine, since);
        assert_true(heard > since && heard <= clock_ms());
        since = heard;
    }
    assert_int_equal(atomic_load(&f.n_heard), 2);    // the request is not whole
    assert_true(front_heard_ms(f.front, others) == others_ms);
    assert_int_equal(front_heard_ms(f.front, mine + 1), 0);
    client_close(&c);
    assert_int_equal(heard_after(&f, mine, since), 0);
    client_close(&other);
    close_front(&f);
}

static void requests_are_answered_in_any_order_and_as_many_are_held_as_may_be(void **state)
{
    (void)state;
    struct tls_message m;
    struct fixture f;
    open_front(&f, NEVER_MS, 2);
    struct client c = client_in(&f), other = client_in(&f);
    for (uint8_t i = 0; i < 5; i++)
        client_ask(&c, i, &i, 1);
    struct request first = next_heard(&f, 0), second = next_heard(&f, 1);
    assert_false(readable(f.event_fd, 200));    // no third, until one has its answer
    front_answer(f.front, second.connection, &second.trace, "b", 1);
    client_hear(&c, &m);
    assert_int_equal(m.trace.byte[3], 1);
    struct request third = next_heard(&f, 2);
    assert_int_equal(third.data[0], 2);
    front_drop(f.front);    // of the third
    struct request fourth = next_heard(&f, 3);
    assert_int_equal(fourth.data[0], 3);
    front_answer(f.front, first.connection, &first.trace, "a", 1);
    client_hear(&c, &m);
    assert_int_equal(m.trace.byte[3], 0);
    struct request fifth = next_heard(&f, 4);
    client_close(&c);
    front_answer(f.front, fourth.connection, &fourth.trace, "d", 1);    // to whom has gone
    front_answer(f.front, fifth.connection, &fifth.trace, "e", 1);
    client_ask(&other, 9, "still", 5);
    struct request r = next_heard(&f, 5);
    assert_int_not_equal(r.connection, first.connection);
    front_answer(f.front, r.connection, &r.trace, "here", 4);
    client_hear(&other, &m);
    assert_memory_equal(m.data, "here", 4);
    client_close(&other);
    close_front(&f);
}

static void who_does_not_read_the_answers_is_not_heard_any_more(void **state)
{
    (void)state;
    enum { N = 100, ANSWER = 1 << 20 };
    uint8_t *answer = calloc(1, ANSWER);
    struct tls_message m;
    struct fixture f;
    open_front(&f, NEVER_MS, HEARD_MAX);
    struct client c = client_in(&f);
    int n = 0;
    for (; n < N; n++) {
        client_ask(&c, (uint8_t)n, "x", 1);
        if (!readable(f.event_fd, n == 0 ? LONG_MS : 500))
            break;
        struct request r = next_heard(&f, n);
        front_answer(f.front, r.connection, &r.trace, answer, ANSWER);
    }
    assert_true(n < N);
    bool heard = false;
    for (int i = 0; i <= n; i++) {    // it reads, and all goes on: how soon depends on the kernel's buffers, which grow
        client_hear(&c, &m);
        assert_int_equal(m.len, ANSWER);
        assert_int_equal(m.trace.byte[3], i);
        if (!heard && (i == n - 1 || readable(f.event_fd, 0))) {
            struct request r = next_heard(&f, n);
            front_answer(f.front, r.connection, &r.trace, answer, ANSWER);
            heard = true;
        }
    }
    free(answer);
    client_close(&c);
    close_front(&f);
}

static void many_nodes_of_one_address_do_not_push_each_other_out_of_their_handshakes(void **state)
{
    (void)state;
    uint8_t hello[4096], got[64];
    int fd[STRANGERS_MAX];
    struct fixture f;
    open_front(&f, NEVER_MS, 8);
    size_t n_hello = hello_make(&f, hello);
    int64_t began_ms = clock_ms();
    for (int i = 0; i < STRANGERS_MAX; i++) {
        fd[i] = dial(f.port);
        assert_int_equal(send(fd[i], hello, n_hello, 0), n_hello);
        assert_true(hear(fd[i], got, sizeof got) > 0);
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
    for (int i = 0; i < STRANGERS_MAX; i++)
        close(fd[i]);
    close_front(&f);
}

static void crowds_of_strangers_take_bounded_descriptors_and_leave_room_for_a_node(void **state)
{
    (void)state;
    int fd[N_STRANGER];
    struct tls_message m;
    struct fixture f;
    open_front(&f, NEVER_MS, 8);
    struct client admitted = client_in(&f);
    int n_before = n_fd();
    for (int i = 0; i < N_STRANGER; i++) {
        fd[i] = dial(f.port);
        assert_true(fd[i] >= 0);
    }
    /* All but the last that may be strangers are closed, oldest first. */
    for (int i = 0; i < N_STRANGER - STRANGERS_MAX; i++)
        assert_true(closed(fd[i], LONG_MS));
    assert_false(closed(fd[N_STRANGER - 1], 0));
    assert_true(n_fd() <= n_before + N_STRANGER + STRANGERS_MAX);
    struct client node = client_in(&f);    // it comes among them
    client_ask(&admitted, 1, "still", 5);
    struct request r = next_heard(&f, 0);
    front_answer(f.front, r.connection, &r.trace, "here", 4);
    client_hear(&admitted, &m);
    for (int i = 0; i < N_STRANGER; i++)
        close(fd[i]);
    client_close(&node);
    client_close(&admitted);
    close_front(&f);
}

static void a_node_is_heard_before_the_handshakes_of_those_that_came_first(void **state)
{
    (void)state;
    const uint64_t one = 1;
    uint8_t got[1 << 14];
    struct error err;
    struct client crowd[CROWD];
    struct fixture f;
    size_t len;
    open_front(&f, NEVER_MS, 8);
    struct client holder = client_in(&f), node = client_in(&f);
    for (int i = 0; i < CROWD; i++) {
        crowd[i] = client_open(&f, &f.id);
        f.crowd[i] = crowd[i].fd;
        client_send(&crowd[i]);
        while (!tls_link_bytes(crowd[i].link, &len)) {    // until its certificate can be sent, which is most of the front's work
            ssize_t n = hear(crowd[i].fd, got, sizeof got);
            assert_true(n > 0 && tls_link_take(crowd[i].link, got, (size_t)n, &err));
        }
    }
    atomic_store(&f.holds, true);
    client_ask(&holder, 1, "wait", 4);
    next_heard(&f, 0);
    for (int i = 0; i < CROWD; i++)
        client_send(&crowd[i]);
    client_ask(&node, 1, "last", 4);
    assert_int_equal(write(f.go_fd, &one, sizeof one), sizeof one);
    next_heard(&f, 1);
    assert_int_equal(f.n_told, 0);
    atomic_store(&f.holds, false);
    assert_int_equal(write(f.go_fd, &one, sizeof one), sizeof one);
    for (int i = 0; i < CROWD; i++) {
        while (!tls_link_is_in(crowd[i].link))
            assert_true(client_take(&crowd[i]));
        client_close(&crowd[i]);
    }
    client_close(&node);
    client_close(&holder);
    close_front(&f);
}

static void connections_of_an_earlier_identity_end_when_they_are_cut(void **state)
{
    (void)state;
    struct error err;
    struct tls_message m;
    struct fixture f;
    open_front(&f, NEVER_MS, 8);
    struct client before = client_in(&f);
    assert_true(front_identity(f.front, &f.strange, &err));
    struct client late = client_open(&f, &f.id), after = client_open(&f, &f.strange);
    assert_false(client_take(&late));
    while (!tls_link_is_in(after.link))
        assert_true(client_take(&after));
    client_ask(&before, 1, "still", 5);
    struct request r = next_heard(&f, 0);
    front_answer(f.front, r.connection, &r.trace, "here", 4);
    front_cut(f.front);
    client_hear(&before, &m);    // what it was answered before arrives
    assert_true(closed(before.fd, LONG_MS));
    client_ask(&after, 1, "still", 5);
    r = next_heard(&f, 1);
    front_answer(f.front, r.connection, &r.trace, "here", 4);
    client_hear(&after, &m);
    client_close(&before);
    client_close(&late);
    client_close(&after);
    close_front(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_without_a_token_is_closed_in_time),
        cmocka_unit_test(what_is_not_a_client_hello_is_closed_at_once),
        cmocka_unit_test(what_was_answered_last_arrives_when_the_front_ends_at_once),
        cmocka_unit_test(a_caller_with_large_data_is_handed_over_when_its_hello_is_whole),
        cmocka_unit_test(a_client_with_the_token_stays_past_the_limit_and_large_messages_go_both_ways),
        cmocka_unit_test(bytes_of_a_request_that_is_not_whole_yet_are_a_sign_of_life),
        cmocka_unit_test(requests_are_answered_in_any_order_and_as_many_are_held_as_may_be),
        cmocka_unit_test(who_does_not_read_the_answers_is_not_heard_any_more),
        cmocka_unit_test(many_nodes_of_one_address_do_not_push_each_other_out_of_their_handshakes),
        cmocka_unit_test(crowds_of_strangers_take_bounded_descriptors_and_leave_room_for_a_node),
        cmocka_unit_test(a_node_is_heard_before_the_handshakes_of_those_that_came_first),
        cmocka_unit_test(connections_of_an_earlier_identity_end_when_they_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
