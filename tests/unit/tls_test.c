/* Join tokens, and who gets in with them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <poll.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <nng/supplemental/tls/tls.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/tcp.h"
#include "protocol/base/thread.h"
#include "protocol/wire/join_rotation.h"
#include "protocol/wire/tls_link.h"
#include "protocol/wire/transport.h"

/* Older nodes look here whether a certificate holds: this clock runs ahead. */
static _Atomic time_t ahead_s;

time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    now.tv_sec += ahead_s;
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

#define LONG_MS 60000    // nothing here takes so long, except on a starved machine
#define ASK_MS 15000
#define SLOW_MS 9000    // longer than a connection may be without a sign of life

struct fixture {
    char dir[64], path[128], address[32];
    int port;
    struct transport *head, *node;
};

/* A port that is free now. */
static int port_find(void)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    close(fd);
    return ntohs(a.sin_port);
}

static int setup(void **state)
{
    struct error err;
    struct fixture *f = calloc(1, sizeof *f);
    snprintf(f->dir, sizeof f->dir, "/tmp/rc-tls-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->path, sizeof f->path, "%s/join", f->dir);
    f->port = port_find();
    snprintf(f->address, sizeof f->address, "127.0.0.1:%d", f->port);
    f->head = transport_new(f->dir, false, &err);
    f->node = transport_new(f->dir, false, &err);
    assert_non_null(f->head);
    assert_non_null(f->node);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    struct error err;
    transport_free(f->node);
    transport_free(f->head);
    assert_true(dir_remove(f->dir, &err));
    free(f);
    return 0;
}

static void identity_of(const char *path, struct join_identity *id)
{
    struct error err;
    char token[JOIN_TOKEN_LEN + 1];
    assert_true(join_token_make(path, &err));
    assert_true(join_token_read(token, path, &err));
    assert_true(join_identity_make(id, token, NULL, &err));
}

static void a_token_is_made_once_and_only_for_its_owner(void **state)
{
    struct fixture *f = *state;
    struct error err;
    struct stat st;
    char first[JOIN_TOKEN_LEN + 1], again[JOIN_TOKEN_LEN + 1];
    assert_true(join_token_make(f->path, &err));
    assert_int_equal(stat(f->path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_true(join_token_read(first, f->path, &err));
    assert_true(join_token_make(f->path, &err));
    assert_true(join_token_read(again, f->path, &err));
    assert_string_equal(first, again);
    assert_int_equal(chmod(f->path, 0640), 0);
    assert_false(join_token_read(again, f->path, &err));
    assert_int_equal(err.code, ERR_REFUSED);
    assert_non_null(strstr(err.text, f->path));
}

static void what_is_not_a_token_is_named(void **state)
{
    static const struct {
        const char *text;
        bool ok;
        const char *why;
    } cases[] = {
        { "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", true, "64 digits" },
        { " \n0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\r\n", true, "as pasted" },
        { "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde", false, "one digit short" },
        { "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0", false, "one too many" },
        { "0123456789abcdef0123456789abcdef 0123456789abcdef0123456789abcdef", false, "a blank inside" },
        { "0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef", false, "capitals: another token" },
        { "g123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", false, "not hexadecimal" },
        { "", false, "nothing" },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err;
        char text[128];
        snprintf(text, sizeof text, "%s", cases[i].text);
        if (join_token_check(text, &err) != cases[i].ok)
            fail_msg("%s", cases[i].why);
    }
}

/* The first key was worked out apart, by RFC 5869 and affine point addition in Python; all are those of the versions that derived them with
 * mbedTLS 2. The form is RFC 5915's. */
static void every_host_derives_this_key_from_this_token(void **state)
{
    static const struct {
        const char *token, *id, *key;
    } cases[] = {
        { "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "05c59ba326bec778",
          "-----BEGIN EC PRIVATE KEY-----\n"
          "MHcCAQEEIDxiOuIZXp8QwNb2RH3Usikpdi8rYoRRGFLiD8mnPNc3oAoGCCqGSM49\n"
          "AwEHoUQDQgAEjhr/8df1tWI/76zVYbHGmpwkq/angX0l9VF/HgRmkrClCvD8We+T\n"
          "zHIGxJpn/VwRI6B6myG/lJ9fVA907DsgLw==\n"
          "-----END EC PRIVATE KEY-----\n" },
        { "0000000000000000000000000000000000000000000000000000000000000000", "10e70531ad84a15d",
          "-----BEGIN EC PRIVATE KEY-----\n"
          "MHcCAQEEIOYGnY+k/+crl7rvCrF44Ge/Zb2YRTMr3me2rTRMQXFqoAoGCCqGSM49\n"
          "AwEHoUQDQgAE9E1z1zKVhM6clzbsZ3FoweRwZadaPOejZMrWwarb0Wdn55z6WNHs\n"
          "8K792xUZqZPu0PkjYbT4yBossMRQOk4W2Q==\n"
          "-----END EC PRIVATE KEY-----\n" },
        { "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff", "7f1c8f08f960ce51",
          "-----BEGIN EC PRIVATE KEY-----\n"
          "MHcCAQEEII83kEA79aZn0SgEiCfEVVT2DUAXChOW261oYNuOiQx7oAoGCCqGSM49\n"
          "AwEHoUQDQgAEwcd3MNKzyNEootoQSTBqR2jaFdfihw/TbvS2dQdLksBVWxUWNdnH\n"
          "2laQcvOK2cjfeFJjo7jV7THALXrr5igISw==\n"
          "-----END EC PRIVATE KEY-----\n" },
        { "5be4a1c09d7f3e2286b1d4c7f8a90e3312cd56ab78ef90123456789abcdef012", "4bf1a119ba83d0d1",
          "-----BEGIN EC PRIVATE KEY-----\n"
          "MHcCAQEEIDe2gNYe0aiWIoizPZmBXzHpoMD4N6Yj9a1g4CiOWelloAoGCCqGSM49\n"
          "AwEHoUQDQgAE9bxSHa8DrKVqIeUKdQcjCLoapNfKzMY6k2yb7vET5cEAln5q6P/n\n"
          "xFANxFAZz3FpJJDRAkxcXG0mJcSyprke+g==\n"
          "-----END EC PRIVATE KEY-----\n" },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err;
        static struct join_identity a;
        char id[JOIN_TOKEN_ID_LEN + 1];
        assert_true(join_identity_make(&a, cases[i].token, NULL, &err));
        assert_string_equal(a.key, cases[i].key);
        assert_true(join_token_id(id, cases[i].token, &err));
        assert_string_equal(id, cases[i].id);
    }
}

static void a_node_knows_every_token_that_was_replaced_and_a_head_the_last(void **state)
{
    struct fixture *f = *state;
    struct error err;
    struct join_before b;
    char token[70][JOIN_TOKEN_LEN + 1], now[JOIN_TOKEN_LEN + 1], file[200];
    for (int i = 0; i < 70; i++)
        assert_true(join_token_new(token[i], &err));
    assert_true(join_token_write(f->path, token[0], &err));
    assert_false(join_token_was_replaced(f->path, token[0]));
    for (int i = 1; i < 70; i++)
        assert_true(join_token_follow(f->path, token[i], token[i - 1], &err));
    assert_true(join_token_read(now, f->path, &err));    // and its mode is one that is accepted
    assert_string_equal(now, token[69]);
    assert_false(join_token_was_replaced(f->path, token[69]));
    assert_true(join_token_was_replaced(f->path, token[68]));
    assert_true(join_token_was_replaced(f->path, token[5]));
    assert_false(join_token_was_replaced(f->path, token[4]));    // the newest 64 are kept

    assert_true(join_before_read(&b, f->path, &err));
    assert_string_equal(b.token, "");
    struct join_before last = { .until_s = 1e9 + 0.5 };
    for (size_t i = 0; i < JOIN_COMMANDS_SIZE - 1; i++)    // as many as there may be
        last.commands[i] = i % (JOIN_COMMAND_LEN + 1) == JOIN_COMMAND_LEN ? ',' : "0123456789abcdef"[i % 16];
    memcpy(last.token, token[69], sizeof last.token);
    assert_true(join_token_replace(f->path, token[0], &last, &err));
    assert_true(join_token_read(now, f->path, &err));
    assert_string_equal(now, token[0]);
    assert_true(join_before_read(&b, f->path, &err));
    assert_memory_equal(&b, &last, sizeof b);
    snprintf(file, sizeof file, "%s.before", f->path);
    struct stat st;
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    last.until_s = 0;
    assert_true(join_before_write(f->path, &last, &err));
    assert_true(join_before_read(&b, f->path, &err));
    assert_memory_equal(&b, &last, sizeof b);
    char never[128];    // a time that never comes is none
    int n = snprintf(never, sizeof never, "%s inf the-id\n", token[69]);
    assert_true(file_write_secret(file, never, (size_t)n, &err));
    assert_false(join_before_read(&b, f->path, &err));
    assert_true(join_before_forget(f->path, &err));
    assert_true(join_before_forget(f->path, &err));
    assert_true(join_before_read(&b, f->path, &err));
    assert_string_equal(b.token, "");
    assert_true(file_write_secret(file, "not this\n", 9, &err));
    assert_false(join_before_read(&b, f->path, &err));
    assert_non_null(strstr(err.text, ".before' does not say which join token was replaced"));
    assert_string_equal(b.token, "");
}

static void a_key_belongs_to_its_token(void **state)
{
    struct error err;
    static struct join_identity a, same, other;
    char token[JOIN_TOKEN_LEN + 1] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    (void)state;
    assert_true(join_identity_make(&a, token, NULL, &err));
    assert_true(join_identity_make(&same, token, NULL, &err));
    token[63] = 'e';
    assert_true(join_identity_make(&other, token, NULL, &err));
    assert_string_equal(a.key, same.key);
    assert_string_not_equal(a.key, other.key);
}

static void ask(struct peer *p, int64_t limit_ms)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_STATUS);
    assert_true(msg_finish(&m, &err));
    assert_true(peer_ask(p, &m, limit_ms, 7, &err));
    msg_release(&m);
}

/* Move both sides until the node has an answer or its limit has passed. */
static bool answer_comes(struct fixture *f, int *n_seen)
{
    struct error err;
    struct net_event ev;
    struct msg_out m = MSG_OUT_INIT;
    for (;;) {
        if (transport_wait(f->head, &ev, 5)) {
            assert_int_equal(ev.kind, NET_REQUEST);
            ++*n_seen;
            msg_begin(&m, MSG_OK);
            assert_true(msg_finish(&m, &err));
            request_answer(ev.request, &m);
            net_event_release(&ev);
        }
        if (transport_wait(f->node, &ev, 5)) {
            bool ok = ev.kind == NET_ANSWER && !ev.failed;
            net_event_release(&ev);
            msg_release(&m);
            return ok;
        }
    }
}

static bool asked(struct fixture *f, struct peer *p, int64_t limit_ms, int *n_seen)
{
    ask(p, limit_ms);
    return answer_comes(f, n_seen);
}

/* A connection lost on a busy machine is made again once a request has passed its limit, so ask more than once. */
static bool answered(struct fixture *f, struct peer *p, int *n_seen)
{
    for (int i = 0; i < LONG_MS / ASK_MS; i++)
        if (asked(f, p, ASK_MS, n_seen))
            return true;
    return false;
}

static void a_node_with_the_token_is_answered_and_a_stranger_is_not(void **state)
{
    struct fixture *f = *state;
    struct error err;
    static struct join_identity id, strange;
    char path[128];
    int n_seen = 0;
    identity_of(f->path, &id);
    snprintf(path, sizeof path, "%s/other", f->dir);
    identity_of(path, &strange);
    struct server *s = server_new_tls(f->head, f->address, &id, 4, &err);
    assert_non_null(s);
    struct peer *stranger = peer_new_tls(f->node, f->address, &strange, &err), *friend = peer_new_tls(f->node, f->address, &id, &err);
    assert_non_null(stranger);
    assert_non_null(friend);
    assert_true(answered(f, friend, &n_seen));
    assert_true(peer_is_connected(friend));
    assert_true(n_seen >= 1);
    int of_friend = n_seen;
    assert_false(asked(f, stranger, 1000, &n_seen));
    assert_false(peer_is_connected(stranger));
    assert_int_equal(n_seen, of_friend);
    assert_true(answered(f, friend, &n_seen));    // the stranger did no harm
}

static void a_head_with_another_token_is_not_told_anything(void **state)
{
    struct fixture *f = *state;
    struct error err;
    static struct join_identity id, strange;
    char path[128];
    int n_seen = 0;
    identity_of(f->path, &id);
    snprintf(path, sizeof path, "%s/other", f->dir);
    identity_of(path, &strange);
    assert_non_null(server_new_tls(f->head, f->address, &strange, 4, &err));    // it would let everybody in
    struct peer *p = peer_new_tls(f->node, f->address, &id, &err);
    assert_false(asked(f, p, 1000, &n_seen));
    assert_int_equal(n_seen, 0);
}

/* Wait until the peer knows that it and the other side have different tokens. */
static bool found_strange(struct fixture *f, const struct peer *p)
{
    struct net_event ev;
    for (int i = 0; i < LONG_MS / 10 && !peer_is_strange(p); i++)
        if (transport_wait(f->node, &ev, 10))
            net_event_release(&ev);
    return peer_is_strange(p);
}

/* A head with another token, which counts those that call. */
struct counter {
    struct tls_side *side;
    int listen_fd;
    atomic_int n_called;
    atomic_bool over;
    pthread_t thread;
};

static void *counter_run(void *arg)
{
    struct counter *c = arg;
    struct pollfd comes = { .fd = c->listen_fd, .events = POLLIN };
    while (!atomic_load(&c->over)) {
        struct error err;
        char bytes[4096];
        int fd = poll(&comes, 1, 20) > 0 ? accept(c->listen_fd, NULL, NULL) : -1;
        if (fd < 0)
            continue;
        atomic_fetch_add(&c->n_called, 1);
        struct tls_link *l = tls_link_new(c->side);
        for (ssize_t n = 1; n > 0;) {    // until it refuses us
            struct pollfd says = { .fd = fd, .events = POLLIN };
            n = poll(&says, 1, LONG_MS) > 0 ? recv(fd, bytes, sizeof bytes, 0) : 0;
            if (n > 0 && (!tls_link_take(l, bytes, (size_t)n, &err) || !tls_link_send(l, fd)))
                n = 0;
        }
        tls_link_free(l);
        close(fd);
    }
    return NULL;
}

static void node_moves(struct fixture *f, int64_t ms)
{
    struct net_event ev;
    for (int64_t end = clock_ms() + ms; clock_ms() < end;)
        if (transport_wait(f->node, &ev, 10))
            net_event_release(&ev);
}

/* The head's request to answer, which comes; the node's events meanwhile are dropped. */
static struct request *request_comes(struct fixture *f)
{
    struct net_event ev;
    for (int i = 0; i < LONG_MS / 10; i++) {
        if (transport_wait(f->node, &ev, 5))
            net_event_release(&ev);
        if (transport_wait(f->head, &ev, 5))
            return ev.request;
    }
    fail_msg("no request has come");
    return NULL;
}

static void a_node_with_an_old_token_does_not_storm_the_head(void **state)
{
    struct fixture *f = *state;
    struct error err;
    static struct join_identity id, strange;
    static struct counter c;
    char path[128];
    identity_of(f->path, &id);
    snprintf(path, sizeof path, "%s/other", f->dir);
    identity_of(path, &strange);
    c = (struct counter){ .side = tls_side_new(&strange, TLS_ANSWERS, &err), .listen_fd = tcp_listen(f->address, &err) };
    assert_true(c.side && c.listen_fd >= 0);
    assert_int_equal(thread_start(&c.thread, counter_run, &c), 0);
    struct peer *p = peer_new_tls(f->node, f->address, &id, &err);
    ask(p, LONG_MS);
    assert_true(found_strange(f, p));
    node_moves(f, 4000);
    assert_in_range(atomic_load(&c.n_called), 1, 6);    // dozens, at the pace for a head that was lost
    atomic_store(&c.over, true);
    pthread_join(c.thread, NULL);
    close(c.listen_fd);
    tls_side_free(c.side);
    assert_non_null(server_new_tls(f->head, f->address, &id, 4, &err));
    assert_true(peer_identity(p, &id, &err));
    int n_seen = 0;
    assert_true(answer_comes(f, &n_seen));    // what was asked meanwhile goes there, and is not waited with
}

static void what_is_asked_before_the_head_is_there_is_asked_once_when_it_comes(void **state)
{
    struct fixture *f = *state;
    struct error err;
    struct net_event ev;
    static struct join_identity id;
    int n_seen = 0;
    identity_of(f->path, &id);
    struct peer *p = peer_new_tls(f->node, f->address, &id, &err);
    ask(p, 300);
    assert_true(transport_wait(f->node, &ev, LONG_MS));
    assert_true(ev.failed && ev.err.code == ERR_TIMEOUT);
    assert_non_null(strstr(ev.err.text, "Connection refused"));    // what it waits for, and why
    net_event_release(&ev);
    ask(p, LONG_MS);
    node_moves(f, 300);
    assert_non_null(server_new_tls(f->head, f->address, &id, 4, &err));
    assert_true(answer_comes(f, &n_seen));
    assert_int_equal(n_seen, 1);    // the first one was not sent late
    assert_false(transport_wait(f->head, &ev, 300));
}

static void a_request_whose_connection_ends_has_failed_and_is_not_repeated(void **state)
{
    struct fixture *f = *state;
    struct error err;
    struct net_event ev;
    static struct join_identity id;
    int n_seen = 0;
    identity_of(f->path, &id);
    struct server *s = server_new_tls(f->head, f->address, &id, 4, &err);
    struct peer *p = peer_new_tls(f->node, f->address, &id, &err);
    ask(p, LONG_MS);
    struct request *r = request_comes(f);
    assert_true(server_identity(s, &id, &err));
    server_cut(s);
    assert_true(transport_wait(f->node, &ev, LONG_MS));
    assert_true(ev.kind == NET_ANSWER && ev.failed && ev.err.code == ERR_CLOSED);
    net_event_release(&ev);
    request_drop(r);
    assert_true(answered(f, p, &n_seen));    // on the next connection
    assert_int_equal(n_seen, 1);
}

/* What versions dialed with whose TLS was nng's, over mbedTLS, which looks at the clock. */
static bool older_node_is_answered(struct fixture *f, const struct join_identity *id)
{
    nng_tls_config *c;
    nng_socket s;
    nng_dialer d;
    char url[64], *answer = NULL;
    size_t len = 0;
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    struct net_event ev;
    snprintf(url, sizeof url, "tls+tcp://%s", f->address);
    msg_begin(&m, MSG_STATUS);
    assert_true(msg_finish(&m, &err));
    assert_int_equal(nng_req0_open(&s), 0);
    assert_int_equal(nng_tls_config_alloc(&c, NNG_TLS_MODE_CLIENT), 0);
    assert_int_equal(nng_tls_config_server_name(c, JOIN_SERVER_NAME), 0);
    assert_int_equal(nng_tls_config_auth_mode(c, NNG_TLS_AUTH_MODE_REQUIRED), 0);
    assert_int_equal(nng_tls_config_version(c, NNG_TLS_1_2, NNG_TLS_1_2), 0);
    assert_int_equal(nng_tls_config_ca_chain(c, id->trusted, NULL), 0);
    assert_int_equal(nng_tls_config_own_cert(c, id->cert, id->key, NULL), 0);
    assert_int_equal(nng_dialer_create(&d, s, url), 0);
    assert_int_equal(nng_dialer_set_ptr(d, NNG_OPT_TLS_CONFIG, c), 0);
    bool ok = nng_dialer_start(d, 0) == 0 && nng_send(s, m.buf.data, m.buf.len, 0) == 0;
    if (ok) {
        assert_true(transport_wait(f->head, &ev, LONG_MS));
        error_set(&err, ERR_REFUSED, "an answer all the same");
        request_refuse(ev.request, &err);
        net_event_release(&ev);
        nng_socket_set_ms(s, NNG_OPT_RECVTIMEO, LONG_MS);
        ok = nng_recv(s, &answer, &len, NNG_FLAG_ALLOC) == 0;
        if (ok)
            nng_free(answer, len);
    }
    nng_close(s);
    nng_tls_config_free(c);
    msg_release(&m);
    return ok;
}

static void while_a_token_replaces_another_both_get_in_and_afterwards_the_new_one(void **state)
{
    struct fixture *f = *state;
    struct error err;
    static struct join_identity before, between, after;
    char token[JOIN_TOKEN_LEN + 1], fresh[JOIN_TOKEN_LEN + 1], id[JOIN_TOKEN_ID_LEN + 1], other[JOIN_TOKEN_ID_LEN + 1];
    int n_seen = 0;
    assert_true(join_token_new(token, &err) && join_token_new(fresh, &err));
    assert_true(join_token_id(id, token, &err) && join_token_id(other, fresh, &err));
    assert_string_not_equal(id, other);
    assert_true(join_identity_make(&before, token, NULL, &err));
    assert_true(join_identity_make(&between, fresh, token, &err));
    assert_true(join_identity_make(&after, fresh, NULL, &err));

    struct server *s = server_new_tls(f->head, f->address, &before, 4, &err);
    struct peer *old = peer_new_tls(f->node, f->address, &before, &err);
    assert_true(answered(f, old, &n_seen));
    struct peer *early = peer_new_tls(f->node, f->address, &after, &err);
    assert_false(asked(f, early, 300, &n_seen));
    assert_true(found_strange(f, early));
    assert_true(server_identity(s, &between, &err));
    assert_true(asked(f, old, ASK_MS, &n_seen));    // its connection goes on
    struct peer *late = peer_new_tls(f->node, f->address, &before, &err);
    assert_true(answered(f, late, &n_seen));
    assert_true(answered(f, early, &n_seen));
    assert_false(peer_is_strange(early));
    assert_true(peer_identity(old, &after, &err));
    assert_true(answered(f, old, &n_seen));

    assert_true(server_identity(s, &after, &err));
    assert_true(asked(f, late, ASK_MS, &n_seen));
    server_cut(s);
    assert_true(answered(f, old, &n_seen));
    assert_true(answered(f, early, &n_seen));
    assert_false(asked(f, late, 1000, &n_seen));
    assert_true(found_strange(f, late));
    assert_false(peer_is_strange(old));
}

static void what_was_asked_before_the_identity_changes_is_answered(void **state)
{
    struct fixture *f = *state;
    struct error err;
    static struct join_identity id;
    int n_seen = 0;
    identity_of(f->path, &id);
    assert_non_null(server_new_tls(f->head, f->address, &id, 4, &err));
    struct peer *p = peer_new_tls(f->node, f->address, &id, &err);
    assert_true(answered(f, p, &n_seen));
    for (int i = 0; i < 50; i++) {
        ask(p, LONG_MS);
        assert_true(peer_identity(p, &id, &err));
        assert_true(answer_comes(f, &n_seen));
        assert_true(answered(f, p, &n_seen));    // and on the new connection
    }
}

static void a_head_that_is_there_and_takes_long_keeps_its_connection(void **state)
{
    struct fixture *f = *state;
    struct error err;
    static struct join_identity id;
    struct net_event ev;
    identity_of(f->path, &id);
    assert_non_null(server_new_tls(f->head, f->address, &id, 4, &err));
    struct peer *p = peer_new_tls(f->node, f->address, &id, &err);
    ask(p, 500);
    struct request *r = request_comes(f);    // has been acknowledged, and nothing more is sent
    uint64_t connection = request_connection(r);
    for (int64_t end = clock_ms() + SLOW_MS; clock_ms() < end;)
        if (transport_wait(f->node, &ev, 10)) {
            assert_true(ev.failed);
            net_event_release(&ev);
        }
    request_drop(r);
    ask(p, LONG_MS);
    r = request_comes(f);
    assert_true(request_connection(r) == connection);
    request_drop(r);
}

static void no_certificate_runs_out_whatever_the_clock_says(void **state)
{
    struct fixture *f = *state;
    struct error err;
    static struct join_identity id;
    static const struct {
        time_t at;    // seconds since 1970
        const char *why;
    } clocks[] = {
        { 86400, "a machine that does not know the time" },
        { (time_t)1 << 31, "2038: 31 bits are not enough" },
        { 4102444800, "2100: later than two digits of a year can say" },
        { 95617584000, "5000" },
    };
    int n_seen = 0;
    identity_of(f->path, &id);
    assert_non_null(server_new_tls(f->head, f->address, &id, 4, &err));
    struct peer *old = peer_new_tls(f->node, f->address, &id, &err);
    assert_true(answered(f, old, &n_seen));
    for (size_t i = 0; i < ARRAY_SIZE(clocks); i++) {
        ahead_s = 0;
        ahead_s = clocks[i].at - time(NULL);
        struct peer *p = peer_new_tls(f->node, f->address, &id, &err);
        if (!answered(f, p, &n_seen) || !older_node_is_answered(f, &id))
            fail_msg("%s", clocks[i].why);
        peer_free(p);
    }
    ahead_s = 0;
    ahead_s = 253402300800 - time(NULL);    // the year 10000, for which no certificate can be made: older nodes look at this clock
    assert_false(older_node_is_answered(f, &id));
    struct peer *late = peer_new_tls(f->node, f->address, &id, &err);
    assert_true(answered(f, late, &n_seen));
    assert_true(asked(f, old, ASK_MS, &n_seen));
    peer_free(late);
    ahead_s = 0;
}

/* Connect and say what, then leave. */
static void stranger_at(int port, const void *what, size_t len)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    if (len)
        assert_int_equal(send(fd, what, len, MSG_NOSIGNAL), (ssize_t)len);
    close(fd);
}

static void strangers_that_come_and_go_leave_it_listening(void **state)
{
    struct fixture *f = *state;
    struct error err;
    static struct join_identity id;
    int n_seen = 0;
    static const char hello[] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", plain[] = "\0SP\0\0\x30\0\0",
                      http[] = "GET / HTTP/1.0\r\n\r\n";
    identity_of(f->path, &id);
    assert_non_null(server_new_tls(f->head, f->address, &id, 4, &err));
    for (int i = 0; i < 50; i++) {
        stranger_at(f->port, "", 0);
        stranger_at(f->port, hello, sizeof hello - 1);
        stranger_at(f->port, plain, sizeof plain - 1);
        stranger_at(f->port, http, sizeof http - 1);
    }
    struct peer *p = peer_new_tls(f->node, f->address, &id, &err);
    assert_true(answered(f, p, &n_seen));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_token_is_made_once_and_only_for_its_owner, setup, teardown),
        cmocka_unit_test(what_is_not_a_token_is_named),
        cmocka_unit_test(every_host_derives_this_key_from_this_token),
        cmocka_unit_test(a_key_belongs_to_its_token),
        cmocka_unit_test_setup_teardown(a_node_knows_every_token_that_was_replaced_and_a_head_the_last, setup, teardown),
        cmocka_unit_test_setup_teardown(a_node_with_the_token_is_answered_and_a_stranger_is_not, setup, teardown),
        cmocka_unit_test_setup_teardown(a_head_with_another_token_is_not_told_anything, setup, teardown),
        cmocka_unit_test_setup_teardown(a_node_with_an_old_token_does_not_storm_the_head, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_asked_before_the_head_is_there_is_asked_once_when_it_comes, setup, teardown),
        cmocka_unit_test_setup_teardown(a_request_whose_connection_ends_has_failed_and_is_not_repeated, setup, teardown),
        cmocka_unit_test_setup_teardown(while_a_token_replaces_another_both_get_in_and_afterwards_the_new_one, setup, teardown),
        cmocka_unit_test_setup_teardown(what_was_asked_before_the_identity_changes_is_answered, setup, teardown),
        cmocka_unit_test_setup_teardown(a_head_that_is_there_and_takes_long_keeps_its_connection, setup, teardown),
        cmocka_unit_test_setup_teardown(no_certificate_runs_out_whatever_the_clock_says, setup, teardown),
        cmocka_unit_test_setup_teardown(strangers_that_come_and_go_leave_it_listening, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
