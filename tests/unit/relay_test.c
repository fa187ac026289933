/* tags: tsan valgrind
 * Relays: askers, a process that passes their requests on, and the one that answers, all in one process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "protocol/base/file.h"
#include "workers/node/relay.h"

#define LONG_MS 60000

struct fixture {
    char dir[64];
    struct transport *head, *between, *asker;
    struct peer *to_head;
    struct relays relays;
    struct net_event held[4];    // requests that the head has not answered yet
    int n_held;
};

static int setup(void **state)
{
    struct error err = { 0 };
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    snprintf(f->dir, sizeof f->dir, "/tmp/rc-relay-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    assert_non_null(f->head = transport_new(f->dir, false, &err));
    assert_non_null(f->between = transport_new(f->dir, false, &err));
    assert_non_null(f->asker = transport_new(f->dir, false, &err));
    assert_non_null(server_new(f->head, "head", 4, &err));
    assert_non_null(server_new(f->between, "between", 4, &err));
    assert_non_null(f->to_head = peer_new(f->between, "head", &err));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct error err;
    struct fixture *f = *state;
    transport_free(f->asker);
    transport_free(f->between);
    transport_free(f->head);
    relays_release(&f->relays);
    assert_true(dir_remove(f->dir, &err));
    free(f);
    return 0;
}

static void message_make(struct msg_out *m, enum msg_type type)
{
    struct error err;
    msg_begin(m, type);
    assert_true(msg_finish(m, &err));
}

static void ask(struct peer *p, uint64_t tag)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    message_make(&m, MSG_STATUS);
    assert_true(peer_ask(p, &m, LONG_MS, tag, &err));
    msg_release(&m);
}

/* The next request is passed on. */
static void pass_on(struct fixture *f)
{
    struct error err;
    struct net_event ev;
    struct msg_out m = MSG_OUT_INIT;
    assert_true(transport_wait(f->between, &ev, LONG_MS));
    assert_int_equal(ev.kind, NET_REQUEST);
    assert_true(buf_add(&m.buf, ev.data, ev.len));
    assert_true(relay_add(&f->relays, f->to_head, ev.request, MSG_STATUS, &m, LONG_MS, "", &err));
    relays_tick(&f->relays);
    msg_release(&m);
    net_event_release(&ev);
}

static void arrive(struct fixture *f)
{
    assert_true(transport_wait(f->head, &f->held[f->n_held], LONG_MS));
    assert_int_equal(f->held[f->n_held++].kind, NET_REQUEST);
}

/* The head answers all; returns the sum of the tags of what the askers have an answer to. */
static uint64_t answer(struct fixture *f)
{
    struct net_event ev;
    uint64_t tags = 0;
    int n = f->n_held;
    while (f->n_held > 0) {
        struct msg_out m = MSG_OUT_INIT;
        message_make(&m, MSG_OK);
        request_answer(f->held[--f->n_held].request, &m);
        net_event_release(&f->held[f->n_held]);
        msg_release(&m);
    }
    for (int i = 0; i < n; i++) {
        assert_true(transport_wait(f->between, &ev, LONG_MS));
        struct relay *x = relay_answered(&f->relays, &ev);
        assert_non_null(x);
        relay_end(x, &ev);
        net_event_release(&ev);
        assert_true(transport_wait(f->asker, &ev, LONG_MS));
        assert_int_equal(ev.kind, NET_ANSWER);
        assert_false(ev.failed);
        tags += ev.tag;
        net_event_release(&ev);
    }
    return tags;
}

static void who_asks_again_gets_the_answer_to_what_is_on_its_way(void **state)
{
    struct fixture *f = *state;
    struct error err;
    struct peer *p = peer_new(f->asker, "between", &err);
    ask(p, 1);
    pass_on(f);
    arrive(f);
    ask(p, 2);
    pass_on(f);
    assert_int_equal(answer(f), 2);    // to the later one
    struct net_event ev;
    assert_false(transport_next(f->head, &ev));    // nothing was sent twice
    ask(p, 4);                                     // and what is asked afterwards has an answer of its own
    pass_on(f);
    arrive(f);
    assert_int_equal(answer(f), 4);
}

static void two_that_ask_in_the_same_words_are_both_answered(void **state)
{
    struct fixture *f = *state;
    struct error err;
    struct peer *one = peer_new(f->asker, "between", &err), *other = peer_new(f->asker, "between", &err);
    ask(one, 1);
    pass_on(f);
    arrive(f);
    ask(other, 2);
    pass_on(f);
    arrive(f);
    assert_int_equal(answer(f), 1 + 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(who_asks_again_gets_the_answer_to_what_is_on_its_way, setup, teardown),
        cmocka_unit_test_setup_teardown(two_that_ask_in_the_same_words_are_both_answered, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
