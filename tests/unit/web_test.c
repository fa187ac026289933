/* tags: asan valgrind
 * The HTTP server: what it answers, what silent, slow and many clients cost, and its own clock: what it waited for itself is not held
 * against a client. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/http_head.h"
#include "protocol/base/tcp.h"
#include "workers/http/web.h"

#define SLOW_MS 210    // longer than the server's interval of checks for time limits

#define NEVER_MS 600000
#define LONG_MS 60000
#define N_STRANGER 150
#define CONNECTIONS 16

static int slow_ms = SLOW_MS;
static size_t page_bytes;    // of the page: 'x' repeated; 0: it says what Authorization was
static atomic_int n_page;

/* Takes its time, as a write to a busy disk does. */
static void take(void *ctx, const struct web_request *q, struct web_answer *a)
{
    (void)ctx;
    nanosleep(&(struct timespec){ .tv_sec = slow_ms / 1000, .tv_nsec = slow_ms % 1000 * 1000000L }, NULL);
    buf_fmt(&a->body, "%zu", q->len);
}

static void page(void *ctx, const struct web_request *q, struct web_answer *a)
{
    (void)ctx;
    const char *told = http_header(q->head, "Authorization");
    atomic_fetch_add(&n_page, 1);
    if (page_bytes == 0) {
        buf_fmt(&a->body, "you are <%s>", told ? told : "nobody");
        return;
    }
    char *room = buf_reserve(&a->body, page_bytes);
    assert_non_null(room);
    memset(room, 'x', page_bytes);
    a->body.len += page_bytes;
}

static void refuse(struct web_answer *a, int status, const char *message)
{
    a->status = status;
    buf_str(&a->body, message);
}

static const struct web_route ROUTE[] = { { "POST", "/take", take }, { "GET", "/metrics", page } };

static struct web *web_of(struct sockaddr_in *at, struct web_config c)
{
    struct error err = { 0 };
    socklen_t len = sizeof *at;
    c.listen_fd = tcp_listen("127.0.0.1:0", &err);
    assert_true(c.listen_fd >= 0);
    assert_int_equal(getsockname(c.listen_fd, (struct sockaddr *)at, &len), 0);
    c.address = "127.0.0.1:0";
    c.route = ROUTE;
    c.n_route = sizeof ROUTE / sizeof *ROUTE;
    c.max_connections = CONNECTIONS;
    c.max_body_bytes = 1 << 16;
    c.body_ms = 60000;
    c.fail = refuse;
    struct web *h = web_new(&c, &err);
    if (!h)
        fail_msg("%s", err.text);
    return h;
}

/* head_ms: for a request's header. */
static struct web *web_start(struct sockaddr_in *at, int64_t head_ms)
{
    return web_of(at, (struct web_config){ .max_bodies_bytes = 1 << 20, .head_ms = head_ms, .idle_ms = 60000 });
}

/* As the metrics page is served; limit_ms: for a request to come, and for an answer to be taken. */
static struct web *page_start(struct sockaddr_in *at, int64_t limit_ms)
{
    n_page = 0;
    page_bytes = 0;
    return web_of(at, (struct web_config){ .max_bodies_bytes = 128 << 20, .head_ms = limit_ms, .idle_ms = limit_ms, .brief = true });
}

static int connected(const struct sockaddr_in *at)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)at, sizeof *at), 0);
    return fd;
}

/* Send a POST whose body comes in n chunks of a byte. Returns the connection. */
static int chunks_send(const struct sockaddr_in *at, int n)
{
    struct buf ask = BUF_INIT;
    int fd = connected(at);
    buf_str(&ask, "POST /take HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < n; i++)
        buf_str(&ask, "1\r\nx\r\n");
    buf_str(&ask, "0\r\n\r\n");
    assert_int_equal(send(fd, ask.data, ask.len, MSG_NOSIGNAL), ask.len);
    buf_release(&ask);
    return fd;
}

/* The first line of the answer; closes the connection. */
static void line_take(int fd, char *line, size_t size)
{
    ssize_t got = recv(fd, line, size - 1, 0);
    line[got > 0 ? got : 0] = 0;
    line[strcspn(line, "\r")] = 0;
    close(fd);
}

/* A turn of a connection has a bounded number of steps. With one of these bodies they end when the answer is made and not yet sent. */
static void an_answer_that_was_slow_to_make_is_sent(void **state)
{
    (void)state;
    struct sockaddr_in at;
    struct web *h = web_start(&at, 60000);
    char line[64];
    for (int n = 56; n <= 64; n++) {
        line_take(chunks_send(&at, n), line, sizeof line);
        if (strcmp(line, "HTTP/1.1 200 OK") != 0)
            fail_msg("%d chunks: '%s'", n, line);
    }
    web_close(h);
    assert_true(web_wait(h, 10000));
    web_free(h);
}

/* While the server is held up by one request, another one comes that it cannot read: longer than any client may take for a header. */
static void a_request_that_the_server_kept_waiting_is_answered(void **state)
{
    (void)state;
    struct sockaddr_in at;
    struct web *h = web_start(&at, 500);
    char line[64];
    slow_ms = 1500;
    int first = chunks_send(&at, 1), second = connected(&at);
    nanosleep(&(struct timespec){ .tv_nsec = 100 * 1000000L },
              NULL);    // the first one's turn has come; were it not so, the test would pass
    const char *head = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    assert_int_equal(send(second, head, strlen(head), MSG_NOSIGNAL), strlen(head));
    line_take(first, line, sizeof line);
    assert_string_equal(line, "HTTP/1.1 200 OK");
    line_take(second, line, sizeof line);
    assert_string_equal(line, "HTTP/1.1 404 Not Found");
    slow_ms = SLOW_MS;
    web_free(h);
}

static void say(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* What comes until the server ends the connection, or the head's Content-Length has come: the first bytes of it, as a text. Returns how
 * many there were; -1: the connection was reset. */
static int64_t hear(int fd, char *text, size_t size)
{
    static char piece[65536];
    int64_t n = 0, whole = -1;
    while (whole < 0 || n < whole) {
        assert_int_equal(poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, LONG_MS), 1);
        ssize_t got = recv(fd, piece, sizeof piece, 0);
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        for (ssize_t i = 0; i < got && n + i < (int64_t)size - 1; i++)
            text[n + i] = piece[i];
        n += got;
        text[MIN(n, (int64_t)size - 1)] = 0;
        const char *end = strstr(text, "\r\n\r\n"), *length = strstr(text, "\r\nContent-Length: ");
        if (whole < 0 && end && length && length < end)
            whole = end + 4 - text + strtoll(length + 18, NULL, 10);
    }
    return n;
}

static void each_request_has_its_answer(void **state)
{
    (void)state;
    static char longest[40000];
    memset(longest, 'a', sizeof longest - 1);
    memcpy(longest, "GET /metrics HTTP/1.1\r\nX: ", 26);
    static const struct {
        const char *request, *status, *holds;
    } cases[] = {
        { "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 OK\r\n", "\r\n\r\nyou are <nobody>" },
        { "GET /metrics HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK\r\n", "Connection: close\r\n" },
        { "GET /metrics HTTP/1.1\nHost: a\n\n", "HTTP/1.1 400 Bad Request\r\n", "" },
        { "GET /metrics?a=b HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 OK\r\n", "" },
        { "GET http://localhost:1/metrics HTTP/1.1\r\nHost: localhost:1\r\n\r\n", "HTTP/1.1 200 OK\r\n", "" },
        { "GET /metrics HTTP/1.1\r\nHost: a\r\nX: Authorization: no\r\nAUTHORIZATION: \t Bearer s \r\n\r\n", "HTTP/1.1 200 OK\r\n",
          "<Bearer s>" },
        { "GET /metrics HTTP/1.1\r\nHost: evil.example:9\r\nAuthorization: Bearer s\r\n\r\n", "HTTP/1.1 403 Forbidden\r\n", "Host" },
        { "GET /metrics HTTP/1.1\r\nhost:127.0.0.1:9\r\nAuthorization: Bearer s\r\n\r\n", "HTTP/1.1 200 OK\r\n", "<Bearer s>" },
        { "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 404 Not Found\r\n", "" },
        { "GET http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 404 Not Found\r\n", "" },
        { "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 405 Method Not Allowed\r\n",
          "\r\nAllow: GET, HEAD\r\n" },
        { "GET /take HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 405 Method Not Allowed\r\n", "\r\nAllow: POST\r\n" },
        { "GET /metrics HTTP/2.0\r\n\r\n", "HTTP/1.1 505 HTTP Version Not Supported\r\n", "HTTP/1.1" },
        { "GET /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n", "" },    // no Host
        { "GET /metrics HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n", "" },
        { "GET /metrics HTTP/1.1\r\nHost: a\r\n folded: b\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n", "" },
        { "GET /metrics HTTP/1.1\r\nHost: a\r\nX : b\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n", "" },
        { "GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n",
          "" },
        { "GET /metrics HTTP/1.1\r\nHost: a\r\nExpect: tea\r\n\r\n", "HTTP/1.1 417 Expectation Failed\r\n", "" },
        { "GET /metric%73 HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 OK\r\n", "" },
        { "GET /metrics HTTP/1.1\r\nHost: a\r\nOrigin: http://evil.example\r\n\r\n", "HTTP/1.1 403 Forbidden\r\n", "other sites' pages" },
        { "GET /metrics HTTP/1.1\r\nHost: a\r\nReferer: http://evil.example/x\r\n\r\n", "HTTP/1.1 403 Forbidden\r\n",
          "other sites' pages" },
        { "GET /metrics HTTP/1.1\r\nHost: a\r\nSec-Fetch-Site: cross-site\r\n\r\n", "HTTP/1.1 403 Forbidden\r\n", "other sites' pages" },
        { "GET /metrics HTTP/1.1\r\nHost: a\r\nOrigin: http://a\r\nSec-Fetch-Site: same-origin\r\n\r\n", "HTTP/1.1 200 OK\r\n", "" },
        { "GET  \r\n\r\n", "HTTP/1.1 400 Bad Request\r\n", "" },
        { "a b c d\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n", "" },
        { longest, "HTTP/1.1 431 Request Header Fields Too Large\r\n", "" },
    };
    struct sockaddr_in at;
    char heard[8192];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct web *h = page_start(&at, NEVER_MS);
        int fd = connected(&at);
        say(fd, cases[i].request);
        assert_true(hear(fd, heard, sizeof heard) > 0);
        if (strncmp(heard, cases[i].status, strlen(cases[i].status)) != 0 || !strstr(heard, cases[i].holds))
            fail_msg("%.60s: %s", cases[i].request, heard);
        close(fd);
        web_free(h);
    }
}

static void head_has_no_body(void **state)
{
    (void)state;
    struct sockaddr_in at;
    char heard[4096];
    struct web *h = page_start(&at, NEVER_MS);
    int fd = connected(&at);
    say(fd, "HEAD /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    ssize_t n = recv(fd, heard, sizeof heard - 1, MSG_WAITALL);
    assert_true(n > 0);
    heard[n] = 0;
    assert_non_null(strstr(heard, "Content-Length: 16\r\n"));
    assert_string_equal(strstr(heard, "\r\n\r\n"), "\r\n\r\n");
    close(fd);
    web_free(h);
}

static void a_request_may_come_byte_by_byte(void **state)
{
    (void)state;
    struct sockaddr_in at;
    char heard[4096];
    struct web *h = page_start(&at, NEVER_MS);
    int fd = connected(&at);
    for (const char *c = "GET /metrics HTTP/1.1\r\nHost: a\r\nA: b\r\n\r\n"; *c; c++) {
        assert_int_equal(n_page, 0);
        assert_int_equal(send(fd, c, 1, MSG_NOSIGNAL), 1);
    }
    assert_true(hear(fd, heard, sizeof heard) > 0);
    assert_memory_equal(heard, "HTTP/1.1 200 ", 13);
    assert_int_equal(n_page, 1);
    close(fd);
    web_free(h);
}

static void a_nul_in_a_request_is_refused(void **state)
{
    (void)state;
    static const char request[] = "GET /metrics\0 HTTP/1.1\r\n\r\n";
    struct sockaddr_in at;
    char heard[4096];
    struct web *h = page_start(&at, NEVER_MS);
    int fd = connected(&at);
    assert_int_equal(send(fd, request, sizeof request - 1, MSG_NOSIGNAL), sizeof request - 1);
    assert_true(hear(fd, heard, sizeof heard) > 0);
    assert_memory_equal(heard, "HTTP/1.1 400 ", 13);
    close(fd);
    web_free(h);
}

/* The first ones leave for the last ones, and twice the limit are there at most. */
static void strangers_push_out_strangers_and_a_scrape_goes_through(void **state)
{
    (void)state;
    struct sockaddr_in at;
    char heard[4096];
    int fd[N_STRANGER], n_open = 0;
    struct web *h = page_start(&at, NEVER_MS);
    for (int i = 0; i < N_STRANGER; i++) {
        fd[i] = connected(&at);
        if (i % 2)
            say(fd[i], "GET /metrics HTTP/1.1\r\nX: ");    // and no more
    }
    int scrape = connected(&at);
    say(scrape, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_true(hear(scrape, heard, sizeof heard) > 0);
    assert_memory_equal(heard, "HTTP/1.1 200 ", 13);
    close(scrape);
    for (int i = 0; i < N_STRANGER; i++) {
        char c;
        bool open = recv(fd[i], &c, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
        n_open += open;
        if (i < N_STRANGER - 2 * CONNECTIONS)
            assert_false(open);    // the oldest leave first
        close(fd[i]);
    }
    assert_in_range(n_open, CONNECTIONS - 1, 2 * CONNECTIONS);
    web_free(h);
}

static void a_silent_connection_ends_after_the_limit(void **state)
{
    (void)state;
    struct sockaddr_in at;
    char heard[4096];
    struct web *h = page_start(&at, 300);
    int silent = connected(&at), begun = connected(&at);
    int64_t start = clock_ms();
    say(begun, "GET /met");
    assert_int_equal(hear(silent, heard, sizeof heard), 0);
    assert_true(clock_ms() >= start + 250);    // the server's clock began when it accepted
    hear(begun, heard, sizeof heard);
    assert_int_equal(n_page, 0);
    close(silent);
    close(begun);
    web_free(h);
}

static void a_client_that_does_not_take_the_answer_is_disconnected(void **state)
{
    (void)state;
    struct sockaddr_in at;
    static char piece[1 << 20];
    size_t n = 0;
    ssize_t got;
    struct web *h = page_start(&at, 300);
    page_bytes = 64 << 20;    // more than the kernel keeps for both ends
    int fd = connected(&at);
    say(fd, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_int_equal(poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, LONG_MS), 1);    // the request is under way
    assert_true(web_wait(h, LONG_MS));                                                        // and over, though nothing was taken
    while ((got = recv(fd, piece, sizeof piece, 0)) > 0)    // what the kernel holds; then the end, though the page goes on
        n += (size_t)got;
    assert_in_range(n, 1, page_bytes - 1);
    close(fd);
    web_free(h);
}

static void a_large_page_comes_whole(void **state)
{
    (void)state;
    struct sockaddr_in at;
    char heard[4096];
    struct web *h = page_start(&at, NEVER_MS);
    page_bytes = 8 << 20;
    int fd = connected(&at);
    say(fd, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    int64_t n = hear(fd, heard, sizeof heard);
    assert_in_range(n, page_bytes + 50, page_bytes + 300);
    close(fd);
    web_free(h);
}

int main(void)
{
    const struct CMUnitTest test[] = {
        cmocka_unit_test(an_answer_that_was_slow_to_make_is_sent),
        cmocka_unit_test(a_request_that_the_server_kept_waiting_is_answered),
        cmocka_unit_test(each_request_has_its_answer),
        cmocka_unit_test(head_has_no_body),
        cmocka_unit_test(a_request_may_come_byte_by_byte),
        cmocka_unit_test(a_nul_in_a_request_is_refused),
        cmocka_unit_test(strangers_push_out_strangers_and_a_scrape_goes_through),
        cmocka_unit_test(a_silent_connection_ends_after_the_limit),
        cmocka_unit_test(a_client_that_does_not_take_the_answer_is_disconnected),
        cmocka_unit_test(a_large_page_comes_whole),
    };
    return cmocka_run_group_tests_name("web", test, NULL, NULL);
}
