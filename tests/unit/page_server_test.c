/* tags: asan valgrind
 * The HTTP server of the metrics page: what it answers, and what silent, slow and many readers cost. */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>
#include "protocol/base/clock.h"
#include "workers/export/page_server.h"

#define LONG_MS 60000
#define NEVER_MS 600000
#define N_STRANGER 150
#define PLACES 32

struct fixture {
    struct page_server *server;
    struct own_hosts hosts;
    size_t body_size;    // of the page: 'x' repeated; 0: it says what Authorization was
    int n_made;          // pages
    char heard[8192];    // the last answer
};

static void page(void *arg, const struct page_request *request, struct page_answer *a)
{
    struct fixture *f = arg;
    f->n_made++;
    if (f->body_size) {
        char *room = buf_reserve(&a->body, f->body_size);
        assert_non_null(room);
        memset(room, 'x', f->body_size);
        a->body.len += f->body_size;
        return;
    }
    buf_fmt(&a->body, "you are <%s>", request->authorization ? request->authorization : "nobody");
    if (request->authorization && strcmp(request->authorization, "wrong") == 0) {
        a->status = 401;
        a->header = "WWW-Authenticate: Bearer\r\n";
    }
}

static const char *const paths[] = { "/metrics", "/api/status", NULL };

static void setup(struct fixture *f, int64_t limit_ms)
{
    struct error err = { 0 };
    *f = (struct fixture){ 0 };
    own_hosts_set(&f->hosts, "127.0.0.1:0", "");
    f->server = page_server_new("127.0.0.1:0", &f->hosts, paths, limit_ms, page, f, &err);
    if (!f->server)
        fail_msg("%s", err.text);
}

static int dial(const struct fixture *f)
{
    struct sockaddr_in to = { .sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                              .sin_port = htons(page_server_port(f->server)) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void say(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

/* All that comes until the server ends the connection, as a text. False: it was reset. */
static bool hear(struct fixture *f, int fd)
{
    size_t n = 0;
    int64_t until = clock_ms() + LONG_MS;
    for (;;) {
        page_server_turn(f->server, fd, 50);
        char piece[65536];
        ssize_t got = recv(fd, piece, sizeof piece, MSG_DONTWAIT);
        if (got == 0)
            break;
        if (got < 0 && errno != EAGAIN)
            return false;
        for (ssize_t i = 0; i < got && n < sizeof f->heard - 1; i++)
            f->heard[n++] = piece[i];
        assert_true(clock_ms() < until);
    }
    f->heard[n] = 0;
    return true;
}

static void each_request_has_its_answer(void **state)
{
    (void)state;
    static char longest[20000];
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
        { "GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: wrong\r\n\r\n", "HTTP/1.1 401 Unauthorized\r\n",
          "WWW-Authenticate: Bearer\r\n" },
        { "GET /metrics HTTP/1.1\r\nHost: evil.example:9\r\nAuthorization: Bearer s\r\n\r\n", "HTTP/1.1 403 Forbidden\r\n",
          "allowed_hosts" },
        { "GET /metrics HTTP/1.1\r\nhost:127.0.0.1:9\r\nAuthorization: Bearer s\r\n\r\n", "HTTP/1.1 200 OK\r\n", "<Bearer s>" },
        { "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 404 Not Found\r\n", "" },
        { "GET http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 404 Not Found\r\n", "" },
        { "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 405 Method Not Allowed\r\n",
          "Allow: GET, HEAD\r\n" },
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
        { "\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n", "" },
        { "a b c d\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n", "" },
        { longest, "HTTP/1.1 431 Request Header Fields Too Large\r\n", "" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct fixture f;
        setup(&f, NEVER_MS);
        int fd = dial(&f);
        say(fd, cases[i].request);
        assert_true(hear(&f, fd));
        if (strncmp(f.heard, cases[i].status, strlen(cases[i].status)) != 0 || !strstr(f.heard, cases[i].holds))
            fail_msg("%.60s: %s", cases[i].request, f.heard);
        close(fd);
        page_server_free(f.server);
    }
}

static void head_has_no_body(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f, NEVER_MS);
    int fd = dial(&f);
    say(fd, "HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_true(hear(&f, fd));
    assert_non_null(strstr(f.heard, "Content-Length: 16\r\n"));
    assert_string_equal(strstr(f.heard, "\r\n\r\n"), "\r\n\r\n");
    close(fd);
    page_server_free(f.server);
}

static void a_request_may_come_byte_by_byte(void **state)
{
    (void)state;
    const char request[] = "GET /metrics HTTP/1.1\r\nHost: a\r\nA: b\r\n\r\n";
    struct fixture f;
    setup(&f, NEVER_MS);
    int fd = dial(&f);
    for (const char *c = request; *c; c++) {
        assert_int_equal(f.n_made, 0);
        assert_int_equal(send(fd, c, 1, MSG_NOSIGNAL), 1);
        page_server_turn(f.server, -1, 50);
    }
    assert_true(hear(&f, fd));
    assert_int_equal(f.n_made, 1);
    close(fd);
    page_server_free(f.server);
}

static void a_nul_in_a_request_is_refused(void **state)
{
    (void)state;
    static const char request[] = "GET /metrics\0 HTTP/1.1\r\n\r\n";
    struct fixture f;
    setup(&f, NEVER_MS);
    int fd = dial(&f);
    assert_int_equal(send(fd, request, sizeof request - 1, MSG_NOSIGNAL), (ssize_t)sizeof request - 1);
    assert_true(hear(&f, fd));
    assert_memory_equal(f.heard, "HTTP/1.1 400 ", 13);
    close(fd);
    page_server_free(f.server);
}

static void strangers_push_out_strangers_and_a_scrape_goes_through(void **state)
{
    (void)state;
    struct fixture f;
    int fd[N_STRANGER], n_open = 0;
    setup(&f, NEVER_MS);
    for (int i = 0; i < N_STRANGER; i++) {
        fd[i] = dial(&f);
        if (i % 2)
            say(fd[i], "GET /metrics HTTP/1.1\r\nX: ");    // and no more
        if (i % 8 == 7)                                    // as they are accepted in one turn
            page_server_turn(f.server, -1, 50);
    }
    int scrape = dial(&f);
    say(scrape, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_true(hear(&f, scrape));
    assert_memory_equal(f.heard, "HTTP/1.1 200 ", 13);
    close(scrape);
    for (int i = 0; i < N_STRANGER; i++) {
        char c;
        bool open = recv(fd[i], &c, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
        n_open += open;
        if (i < N_STRANGER - PLACES)
            assert_false(open);    // the oldest leave first
        close(fd[i]);
    }
    assert_in_range(n_open, PLACES - 1, PLACES);
    page_server_free(f.server);
}

static void a_silent_connection_ends_after_the_limit(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f, 200);
    int silent = dial(&f), begun = dial(&f);
    int64_t start = clock_ms();
    say(begun, "GET /met");
    assert_true(hear(&f, silent));
    assert_true(clock_ms() >= start + 150);    // the server's clock began when it accepted
    assert_true(hear(&f, begun));
    assert_int_equal(f.n_made, 0);
    close(silent);
    close(begun);
    page_server_free(f.server);
}

static void a_client_that_does_not_take_the_answer_is_disconnected(void **state)
{
    (void)state;
    struct fixture f;
    size_t n = 0;
    ssize_t got;
    static char piece[1 << 20];
    setup(&f, 200);
    f.body_size = 64 << 20;    // more than the kernel keeps for both ends
    int fd = dial(&f);
    say(fd, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    while (f.n_made == 0)
        page_server_turn(f.server, -1, 50);
    for (int64_t made = clock_ms(); clock_ms() < made + 1000;)    // it is late many times over
        page_server_turn(f.server, -1, 50);
    while ((got = recv(fd, piece, sizeof piece, 0)) > 0)    // what the kernel holds; then the end, though the page goes on
        n += (size_t)got;
    assert_in_range(n, 1, f.body_size - 1);
    close(fd);
    page_server_free(f.server);
}

static void a_large_page_comes_whole(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f, NEVER_MS);
    f.body_size = 8 << 20;
    int fd = dial(&f);
    size_t n = 0;
    static char piece[1 << 20];
    say(fd, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    for (int64_t until = clock_ms() + LONG_MS;;) {
        page_server_turn(f.server, fd, 50);
        ssize_t got = recv(fd, piece, sizeof piece, MSG_DONTWAIT);
        assert_true(got >= 0 || errno == EAGAIN);
        if (got == 0)
            break;
        n += got > 0 ? (size_t)got : 0;
        assert_true(clock_ms() < until);
    }
    assert_in_range(n, f.body_size + 50, f.body_size + 300);
    close(fd);
    page_server_free(f.server);
}

static void an_address_in_use_is_named(void **state)
{
    (void)state;
    struct fixture f;
    struct error err = { 0 };
    char address[64];
    setup(&f, NEVER_MS);
    snprintf(address, sizeof address, "127.0.0.1:%u", page_server_port(f.server));
    assert_null(page_server_new(address, NULL, paths, NEVER_MS, page, &f, &err));
    assert_int_equal(err.code, ERR_EXISTS);
    assert_non_null(strstr(err.text, address));
    page_server_free(f.server);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_request_has_its_answer),
        cmocka_unit_test(head_has_no_body),
        cmocka_unit_test(a_request_may_come_byte_by_byte),
        cmocka_unit_test(a_nul_in_a_request_is_refused),
        cmocka_unit_test(strangers_push_out_strangers_and_a_scrape_goes_through),
        cmocka_unit_test(a_silent_connection_ends_after_the_limit),
        cmocka_unit_test(a_client_that_does_not_take_the_answer_is_disconnected),
        cmocka_unit_test(a_large_page_comes_whole),
        cmocka_unit_test(an_address_in_use_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
