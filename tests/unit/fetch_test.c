/* A file fetched from the head in pieces: what waits for an answer, and what for the clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/run/node.h"
#include "workers/node/fetch.h"

#define LONG_MS 60000
#define SIZE (2 * NODE_PIECE_BYTES + 1)    // three pieces
#define TAG 7

struct fixture {
    char root[64], sock[128], path[128];
    struct transport *head, *node;
    struct server *server;
    struct peer *peer;
    char *data;    // (SIZE) the file at the head
};

static int setup(void **state)
{
    struct error err = { 0 };
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    snprintf(f->root, sizeof f->root, "/tmp/rc-fetch-XXXXXX");
    assert_non_null(mkdtemp(f->root));
    snprintf(f->sock, sizeof f->sock, "%s/sock", f->root);
    snprintf(f->path, sizeof f->path, "%s/weights", f->root);
    assert_non_null(f->data = malloc((size_t)SIZE));
    for (int64_t i = 0; i < SIZE; i++)
        f->data[i] = (char)(i * 31 + i / 4096);
    assert_non_null(f->head = transport_new(f->sock, true, &err));
    assert_non_null(f->node = transport_new(f->sock, false, &err));
    assert_non_null(f->server = server_new(f->head, "head", 16, &err));
    assert_non_null(f->peer = peer_new(f->node, "head", &err));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct error err = { 0 };
    struct fixture *f = *state;
    transport_free(f->node);
    transport_free(f->head);
    assert_true(dir_remove(f->root, &err));
    free(f->data);
    free(f);
    return 0;
}

/* The head gets one request for a piece; returns its offset. */
static int64_t asked(struct fixture *f, struct request **r)
{
    struct net_event ev;
    struct msg_in in;
    struct error err;
    assert_true(transport_wait(f->head, &ev, LONG_MS));
    assert_int_equal(ev.kind, NET_REQUEST);
    assert_true(msg_read_request(&in, ev.data, ev.len, &err));
    int64_t offset = mval_i64(mval_get(in.root, "offset"), -1);
    *r = ev.request;
    ev.request = NULL;
    msg_in_release(&in);
    net_event_release(&ev);
    return offset;
}

static void answer(struct fixture *f, struct request *r, int64_t offset)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_OK);
    msg_i64(&m, "size_bytes", SIZE);
    msg_i64(&m, "stamp", 1);
    msg_bin(&m, "data", f->data + offset, (size_t)MIN(NODE_PIECE_BYTES, SIZE - offset));
    assert_true(msg_finish(&m, &err));
    request_answer(r, &m);
    msg_release(&m);
}

/* The next answer reaches the fetch; returns whether it had failed. */
static bool taken(struct fixture *f, struct fetch *fetch)
{
    struct net_event ev;
    assert_true(transport_wait(f->node, &ev, LONG_MS));
    assert_true(fetch_answered(fetch, &ev));
    bool failed = ev.failed;
    net_event_release(&ev);
    return failed;
}

static void between_answers_only_a_piece_that_was_lost_is_due(void **state)
{
    struct fixture *f = *state;
    struct error err = { 0 };
    struct request *r[2];
    int64_t offset[2];
    struct net_event ev;
    struct fetch *fetch = fetch_new(NULL, 1, 3, f->path, SIZE, &f->peer, 1, TAG, &err);
    assert_non_null(fetch);
    assert_true(fetch_due(fetch) <= clock_ms());    // a new one asks at once
    fetch_tick(fetch);
    assert_true(fetch_due(fetch) == INT64_MAX);    // the first piece goes alone: it brings the size
    assert_int_equal(asked(f, &r[0]), 0);
    assert_false(transport_next(f->head, &ev));

    answer(f, r[0], 0);
    assert_false(taken(f, fetch));
    assert_true(fetch_due(fetch) <= clock_ms());
    fetch_tick(fetch);
    assert_true(fetch_due(fetch) == INT64_MAX);    // all the others are asked for
    for (int i = 0; i < 2; i++)
        offset[i] = asked(f, &r[i]);
    assert_int_equal(offset[0] + offset[1], 3 * NODE_PIECE_BYTES);

    answer(f, r[0], offset[0]);
    assert_false(taken(f, fetch));
    assert_true(fetch_due(fetch) == INT64_MAX);    // one is still on its way
    request_drop(r[1]);
    server_free(f->server);
    assert_true(taken(f, fetch));
    int64_t due = fetch_due(fetch), now = clock_ms();
    assert_true(due < INT64_MAX && due <= now + 1000);    // lost: asked again after a moment, by the clock alone

    assert_non_null(f->server = server_new(f->head, "head", 16, &err));
    int64_t end = now + LONG_MS;
    while (fetch_state(fetch, &err) == FETCH_GOES && clock_ms() < end) {
        fetch_tick(fetch);
        if (transport_wait(f->head, &ev, 20)) {
            answer(f, ev.request, offset[1]);
            ev.request = NULL;
            net_event_release(&ev);
        }
        while (transport_next(f->node, &ev)) {    // the piece, or that it could not be sent to the new server yet
            fetch_answered(fetch, &ev);
            net_event_release(&ev);
        }
    }
    assert_int_equal(fetch_state(fetch, &err), FETCH_DONE);
    struct file_map map;
    assert_true(file_map_open(&map, f->path, &err));
    assert_int_equal(map.size_bytes, SIZE);
    assert_memory_equal(map.data, f->data, (size_t)SIZE);
    file_map_close(&map);
    fetch_free(fetch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(between_answers_only_a_piece_that_was_lost_is_due, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
