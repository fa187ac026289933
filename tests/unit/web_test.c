/* web_test.c - the HTTP server's own clock: what it waited for itself is not held against a client */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "protocol/base/tcp.h"
#include "workers/http/web.h"

#define SLOW_MS 210    // longer than the server's interval of checks for time limits

static int slow_ms = SLOW_MS;

/* Takes its time, as a write to a busy disk does. */
static void take(void *ctx, const struct web_request *q, struct web_answer *a)
{
    (void)ctx;
    nanosleep(&(struct timespec){ .tv_sec = slow_ms / 1000, .tv_nsec = slow_ms % 1000 * 1000000L }, NULL);
    buf_fmt(&a->body, "%zu", q->len);
}

static void refuse(struct web_answer *a, int status, const char *message)
{
    a->status = status;
    buf_str(&a->body, message);
}

static const struct web_route ROUTE[] = { { "POST", "/take", take, false, false, false } };

/* head_ms: for a request's header. */
static struct web *web_start(struct sockaddr_in *at, int64_t head_ms)
{
    struct error err = { 0 };
    socklen_t len = sizeof *at;
    int fd = tcp_listen("127.0.0.1:0", &err);
    assert_true(fd >= 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)at, &len), 0);
    struct web *h = web_new(&(struct web_config){ .listen_fd = fd,
                                                  .address = "127.0.0.1:0",
                                                  .route = ROUTE,
                                                  .n_route = 1,
                                                  .max_connections = 16,
                                                  .max_body_bytes = 1 << 16,
                                                  .max_bodies_bytes = 1 << 20,
                                                  .head_ms = head_ms,
                                                  .body_ms = 60000,
                                                  .idle_ms = 60000,
                                                  .fail = refuse },
                            &err);
    if (!h)
        fail_msg("%s", err.text);
    return h;
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

int main(void)
{
    const struct CMUnitTest test[] = {
        cmocka_unit_test(an_answer_that_was_slow_to_make_is_sent),
        cmocka_unit_test(a_request_that_the_server_kept_waiting_is_answered),
    };
    return cmocka_run_group_tests_name("web", test, NULL, NULL);
}
