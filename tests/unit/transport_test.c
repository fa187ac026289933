/* tags: tsan valgrind
 * Transport: two ends in one process, through real sockets in a folder with a long name. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/wire/transport.h"

#define LONG_MS 60000

struct fixture {
    char root[64], dir[256];
    struct transport *a, *b;
};

static int setup(void **state)
{
    struct error err = { 0 };
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    snprintf(f->root, sizeof f->root, "/tmp/rc-transport-XXXXXX");
    assert_non_null(mkdtemp(f->root));
    snprintf(f->dir, sizeof f->dir, "%s/%0150d", f->root, 7);    // far beyond the 107 bytes of sun_path
    f->a = transport_new(f->dir, true, &err);
    f->b = transport_new(f->dir, false, &err);
    assert_non_null(f->a);
    assert_non_null(f->b);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct error err = { 0 };
    struct fixture *f = *state;
    transport_free(f->b);
    transport_free(f->a);
    assert_true(dir_remove(f->root, &err));
    free(f);
    return 0;
}

static void status_make(struct msg_out *m)
{
    struct error err;
    msg_begin(m, MSG_STEPS);
    msg_i64(m, "from", 3);
    assert_true(msg_finish(m, &err));
}

static void ok_make(struct msg_out *m)
{
    struct error err;
    msg_begin(m, MSG_OK);
    assert_true(msg_finish(m, &err));
}

static void a_request_is_answered_even_when_it_was_made_before_the_server(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    struct net_event ev;
    struct msg_out m = MSG_OUT_INIT;
    struct peer *p = peer_new(f->b, "controller", &err);
    assert_non_null(p);
    status_make(&m);
    assert_true(peer_ask(p, &m, LONG_MS, 42, &err));
    assert_int_equal(peer_n_open(p), 1);
    struct server *s = server_new(f->a, "controller", 4, &err);
    assert_non_null(s);
    assert_true(server_is_ours(s));
    assert_true(transport_wait(f->a, &ev, LONG_MS));
    assert_int_equal(ev.kind, NET_REQUEST);
    struct msg_in in;
    assert_true(msg_read_request(&in, ev.data, ev.len, &err));
    assert_int_equal(mval_i64(mval_get(in.root, "from"), 0), 3);
    msg_in_release(&in);
    ok_make(&m);
    request_answer(ev.request, &m);
    net_event_release(&ev);
    assert_true(transport_wait(f->b, &ev, LONG_MS));
    assert_int_equal(ev.kind, NET_ANSWER);
    assert_false(ev.failed);
    assert_int_equal(ev.tag, 42);
    assert_int_equal(peer_n_open(p), 0);
    net_event_release(&ev);
    msg_release(&m);
}

static void answers_may_come_in_another_order_and_a_refusal_carries_its_reason(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    struct net_event ev, first, second;
    struct msg_out m = MSG_OUT_INIT;
    assert_non_null(server_new(f->a, "agent", 2, &err));
    struct peer *p = peer_new(f->b, "agent", &err);
    status_make(&m);
    assert_true(peer_ask(p, &m, LONG_MS, 1, &err));
    assert_true(transport_wait(f->a, &first, LONG_MS));
    assert_true(peer_ask(p, &m, LONG_MS, 2, &err));
    assert_true(transport_wait(f->a, &second, LONG_MS));
    error_set(&err, ERR_REFUSED, "second is not allowed");
    request_refuse(second.request, &err);
    assert_true(transport_wait(f->b, &ev, LONG_MS));
    assert_int_equal(ev.tag, 2);
    struct msg_in in;
    err = (struct error){ 0 };
    assert_false(msg_read_answer(&in, MSG_STEPS, ev.data, ev.len, &err));
    assert_string_equal(err.text, "second is not allowed");
    net_event_release(&ev);
    ok_make(&m);
    request_answer(first.request, &m);
    assert_true(transport_wait(f->b, &ev, LONG_MS));
    assert_int_equal(ev.tag, 1);
    net_event_release(&ev);
    msg_release(&m);
}

static void a_server_makes_room_for_as_many_requests_as_are_held(void **state)
{
    enum { N = 1000 };
    static struct request *held[N];
    struct fixture *f = *state;
    struct error err = { 0 };
    struct net_event ev;
    struct msg_out m = MSG_OUT_INIT;
    assert_non_null(server_new(f->a, "gate", N, &err));
    struct peer *p = peer_new(f->b, "gate", &err);
    status_make(&m);
    for (int i = 0; i < N; i++)
        assert_true(peer_ask(p, &m, LONG_MS, (uint64_t)i, &err));
    for (int i = 0; i < N; i++) {    // all of them, before one is answered
        assert_true(transport_wait(f->a, &ev, LONG_MS));
        assert_int_equal(ev.kind, NET_REQUEST);
        held[i] = ev.request;
        net_event_release(&ev);
    }
    ok_make(&m);
    for (int i = 0; i < N; i++)
        request_answer(held[i], &m);
    for (int i = 0; i < N; i++) {
        assert_true(transport_wait(f->b, &ev, LONG_MS));
        assert_false(ev.failed);
        net_event_release(&ev);
    }
    msg_release(&m);
}

static void a_time_limit_is_kept_and_names_the_late_side(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    struct net_event ev;
    struct msg_out m = MSG_OUT_INIT;
    assert_non_null(server_new(f->a, "controller", 1, &err));
    struct peer *p = peer_new(f->b, "controller", &err);
    status_make(&m);
    assert_true(peer_ask(p, &m, 50, 9, &err));
    assert_true(transport_wait(f->b, &ev, LONG_MS));
    assert_true(ev.failed);
    assert_int_equal(ev.err.code, ERR_TIMEOUT);
    assert_non_null(strstr(ev.err.text, "controller"));
    net_event_release(&ev);
    msg_release(&m);
}

static void a_request_to_a_server_that_goes_ends_as_closed_and_the_next_finds_its_successor(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    struct net_event ev;
    struct msg_out m = MSG_OUT_INIT;
    struct server *s = server_new(f->a, "controller", 1, &err);
    struct peer *p = peer_new(f->b, "controller", &err);
    status_make(&m);
    assert_true(peer_ask(p, &m, LONG_MS, 1, &err));
    assert_true(transport_wait(f->a, &ev, LONG_MS));
    net_event_release(&ev);
    server_free(s);
    assert_true(transport_wait(f->b, &ev, LONG_MS));
    assert_true(ev.failed);
    assert_int_equal(ev.err.code, ERR_CLOSED);
    net_event_release(&ev);
    assert_non_null(server_new(f->a, "controller", 1, &err));
    assert_true(peer_ask(p, &m, LONG_MS, 2, &err));
    assert_true(transport_wait(f->a, &ev, LONG_MS));
    ok_make(&m);
    request_answer(ev.request, &m);
    assert_true(transport_wait(f->b, &ev, LONG_MS));
    assert_false(ev.failed);
    assert_int_equal(ev.tag, 2);
    net_event_release(&ev);
    msg_release(&m);
}

static void a_second_server_on_a_live_name_is_refused_and_a_folder_open_to_others_too(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    assert_non_null(server_new(f->a, "agent", 1, &err));
    assert_null(server_new(f->b, "agent", 1, &err));
    assert_int_equal(err.code, ERR_EXISTS);
    assert_int_equal(chmod(f->dir, 0755), 0);
    assert_null(transport_new(f->dir, false, &err));
    assert_int_equal(err.code, ERR_REFUSED);
    assert_int_equal(chmod(f->dir, 0700), 0);
}

static void a_publication_reaches_its_listeners_with_its_topic(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    struct net_event ev;
    struct msg_out m = MSG_OUT_INIT;
    struct publisher *p = publisher_new(f->a, "telemetry", &err);
    struct subscriber *s = subscriber_new(f->b, "telemetry", &err);
    assert_non_null(p);
    assert_non_null(s);
    ok_make(&m);
    bool heard = false;
    for (int i = 0; i < 600 && !heard; i++) {    // what is sent before the listener is there is lost by design
        publisher_send(p, "step", m.buf.data, m.buf.len);
        heard = transport_wait(f->b, &ev, 100);
    }
    assert_true(heard);
    char topic[16];
    const void *data;
    size_t len;
    assert_int_equal(ev.kind, NET_HEARD);
    assert_true(heard_split(&ev, topic, sizeof topic, &data, &len));
    assert_string_equal(topic, "step");
    assert_int_equal(len, m.buf.len);
    assert_memory_equal(data, m.buf.data, len);
    net_event_release(&ev);
    assert_true(publisher_n_listener(p) >= 1);
    subscriber_free(s);
    for (int i = 0; i < 600 && publisher_n_listener(p) > 0; i++)
        (void)transport_wait(f->a, &ev, 100);    // turns the publisher, too, which may have been looking at itself
    assert_int_equal(publisher_n_listener(p), 0);
    publisher_free(p);
    msg_release(&m);
}

/* It dials itself when nobody else does (listen.h), and stays connected until its loop turns again. */
static void a_publisher_is_not_its_own_listener(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    struct net_event ev;
    struct publisher *p = publisher_new(f->a, "telemetry", &err);
    assert_non_null(p);
    for (int i = 0; i < 3; i++) {
        while (clock_ms() < transport_due(f->a))
            usleep(10000);
        assert_false(transport_next(f->a, &ev));    // begins a probe, or ends one
        usleep(100000);                             // time for nng's threads to accept it
        assert_int_equal(publisher_n_listener(p), 0);
    }
    publisher_free(p);
}

/* Memory is taken when a message's length has come: with long ones, who may only look could make the agent take any amount. */
static void a_server_for_onlookers_takes_short_requests_only(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    struct server *s = server_new(f->a, "view", 4, &err);
    assert_non_null(s);
    const uint8_t greeting[8] = { 0, 'S', 'P', 0, 0, 0x30, 0, 0 }, frame[9] = { 1, 0, 0, 0, 0, 0, 1, 0, 0 };    // 64 KiB follow
    uint8_t answer[8];
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    int dir = open(f->dir, O_PATH | O_DIRECTORY), fd = socket(AF_UNIX, SOCK_STREAM, 0);
    struct timeval limit = { .tv_sec = 30 };
    assert_true(dir >= 0 && fd >= 0);
    snprintf(to.sun_path, sizeof to.sun_path, "/proc/self/fd/%d/view", dir);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(write(fd, greeting, sizeof greeting), (ssize_t)sizeof greeting);
    assert_int_equal(recv(fd, answer, sizeof answer, MSG_WAITALL), (ssize_t)sizeof answer);
    assert_int_equal(write(fd, frame, sizeof frame), (ssize_t)sizeof frame);
    ssize_t n = recv(fd, answer, 1, 0);
    assert_true(n == 0 || (n < 0 && errno == ECONNRESET));    // it hangs up, and does not wait for the rest
    close(fd);
    close(dir);
    server_free(s);
}

/* What a killed process or a tool that ends at once looks like from the other side: nng 1.5.2's listener goes deaf after a few
 * dozen. */
static void peers_come_and_leave(const struct fixture *f, const char *name)
{
    char path[64];
    int dir = open(f->dir, O_PATH | O_DIRECTORY);
    assert_true(dir >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d/%s", dir, name);
    for (int i = 0; i < 300; i++) {
        struct sockaddr_un to = { .sun_family = AF_UNIX };
        memcpy(to.sun_path, path, strlen(path) + 1);
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        assert_true(fd >= 0);
        int rv;
        do
            rv = connect(fd, (const struct sockaddr *)&to, sizeof to);
        while (rv != 0 && errno == EAGAIN);    // more wait already than it accepts at once
        assert_int_equal(rv, 0);
        close(fd);
    }
    close(dir);
}

static void a_server_hears_again_after_peers_left_while_they_connected(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    struct net_event ev;
    struct msg_out m = MSG_OUT_INIT;
    struct server *s = server_new(f->a, "agent", 1, &err);
    assert_non_null(s);
    peers_come_and_leave(f, "agent");
    struct peer *p = peer_new(f->b, "agent", &err);
    bool answered = false;
    status_make(&m);
    for (int i = 0; i < 600 && !answered; i++) {    // each at most 100 ms
        if (peer_n_open(p) == 0)
            assert_true(peer_ask(p, &m, LONG_MS, 1, &err));
        if (transport_wait(f->a, &ev, 50)) {
            ok_make(&m);
            request_answer(ev.request, &m);
            status_make(&m);
            net_event_release(&ev);
        }
        if (transport_wait(f->b, &ev, 50)) {
            answered = !ev.failed;    // reset: the listener has been opened again meanwhile
            net_event_release(&ev);
        }
    }
    assert_true(answered);
    assert_true(server_is_ours(s));
    msg_release(&m);
}

static void a_publisher_hears_again_after_listeners_left_while_they_connected(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    struct net_event ev;
    struct msg_out m = MSG_OUT_INIT;
    struct publisher *p = publisher_new(f->a, "telemetry", &err);
    assert_non_null(p);
    peers_come_and_leave(f, "telemetry");
    struct subscriber *s = subscriber_new(f->b, "telemetry", &err);
    assert_non_null(s);
    ok_make(&m);
    bool heard = false;
    for (int i = 0; i < 600 && !heard; i++) {
        publisher_send(p, "step", m.buf.data, m.buf.len);
        assert_false(transport_wait(f->a, &ev, 50));    // its loop turns
        heard = transport_wait(f->b, &ev, 50);
    }
    assert_true(heard);
    net_event_release(&ev);
    subscriber_free(s);
    publisher_free(p);
    msg_release(&m);
}

static void a_transport_sleeps_until_a_limit_passes_and_forever_without_one(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    struct net_event ev;
    struct msg_out m = MSG_OUT_INIT;
    assert_false(transport_next(f->b, &ev));
    assert_true(transport_due(f->b) == INT64_MAX);
    struct peer *p = peer_new(f->b, "nobody", &err);
    assert_non_null(p);
    assert_true(transport_due(f->b) == INT64_MAX);
    status_make(&m);
    int64_t before_ms = clock_ms();
    assert_true(peer_ask(p, &m, 300, 1, &err));
    assert_in_range(transport_due(f->b) - before_ms, 300, LONG_MS);
    assert_true(transport_due(f->b) <= clock_ms() + 300);
    assert_true(transport_wait(f->b, &ev, LONG_MS));
    assert_true(ev.failed && clock_ms() >= before_ms + 300);
    net_event_release(&ev);
    assert_true(transport_due(f->b) == INT64_MAX);
    struct server *s = server_new(f->b, "here", 1, &err);    // whether it still hears is looked at
    assert_non_null(s);
    assert_true(transport_due(f->b) < clock_ms() + LONG_MS);
    server_free(s);
    peer_free(p);
    msg_release(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_request_is_answered_even_when_it_was_made_before_the_server, setup, teardown),
        cmocka_unit_test_setup_teardown(answers_may_come_in_another_order_and_a_refusal_carries_its_reason, setup, teardown),
        cmocka_unit_test_setup_teardown(a_server_for_onlookers_takes_short_requests_only, setup, teardown),
        cmocka_unit_test_setup_teardown(a_server_makes_room_for_as_many_requests_as_are_held, setup, teardown),
        cmocka_unit_test_setup_teardown(a_time_limit_is_kept_and_names_the_late_side, setup, teardown),
        cmocka_unit_test_setup_teardown(a_request_to_a_server_that_goes_ends_as_closed_and_the_next_finds_its_successor, setup, teardown),
        cmocka_unit_test_setup_teardown(a_second_server_on_a_live_name_is_refused_and_a_folder_open_to_others_too, setup, teardown),
        cmocka_unit_test_setup_teardown(a_publication_reaches_its_listeners_with_its_topic, setup, teardown),
        cmocka_unit_test_setup_teardown(a_publisher_is_not_its_own_listener, setup, teardown),
        cmocka_unit_test_setup_teardown(a_server_hears_again_after_peers_left_while_they_connected, setup, teardown),
        cmocka_unit_test_setup_teardown(a_transport_sleeps_until_a_limit_passes_and_forever_without_one, setup, teardown),
        cmocka_unit_test_setup_teardown(a_publisher_hears_again_after_listeners_left_while_they_connected, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
