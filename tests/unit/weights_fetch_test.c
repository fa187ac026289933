/* A version of the weights from a gate: whatever it answers, the node gets the file, or knows why not. The test plays the gate. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/tcp.h"
#include "protocol/run/node.h"
#include "protocol/wire/front.h"
#include "workers/node/bulk/bulk_server.h"
#include "workers/engine/publish/publication.h"
#include "workers/node/weights_fetch.h"

#define LONG_MS 60000
#define SIZE ((int64_t)5 << 20)    // bytes of weights: two pieces, 20 blocks
#define TAG 1000

enum answer {    // to a request for an offer
    OFFER,
    OFFER_OF_A_GATE_THAT_IS_GONE,
    OFFER_OF_A_HEAD_THAT_MOVES,    // before the node connects
    FULL,
    UNKNOWN,
    GONE,
    SHORT_KEY,
};
struct fixture {
    char root[64], sock[128], head_file[128], node_file[128], address[32];
    char address_said[32];    // where the node believes that the head is
    struct transport *head, *node;
    struct server *server;
    struct peer *peer;
    struct front *front;
    struct bulk_server *bulk;
    struct weights_fetch *fetch;
    const enum answer *answer;    // the next ones; the last holds for all that follow
    int n_answer, n_asked, n_piece;
    const char *name;    // a checkpoint's file is fetched; NULL: weights
};

/* Listen at a free port, instead of where the front listened before. */
static void front_begin(struct fixture *f)
{
    struct error err;
    front_free(f->front);
    int fd = tcp_listen("127.0.0.1:0", &err);
    assert_true(fd >= 0);
    snprintf(f->address, sizeof f->address, "127.0.0.1:%u", tcp_port(fd));
    close(fd);
    if (!(f->front = front_new(f->address, 10000, &err)))
        fail_msg("%s", err.text);
    assert_true(front_start(f->front, &err));    // nobody speaks TLS here
}

static void bulk_begin(struct fixture *f)
{
    struct error err;
    assert_non_null(f->bulk = bulk_server_new(&err));
    front_bulk(f->front, bulk_server_connection, f->bulk);
}

static int setup(void **state)
{
    struct error err = { 0 };
    struct fixture *f = calloc(1, sizeof *f);
    uint8_t *data = malloc((size_t)SIZE);
    assert_true(f && data);
    snprintf(f->root, sizeof f->root, "/tmp/rc-weights-XXXXXX");
    assert_non_null(mkdtemp(f->root));
    snprintf(f->sock, sizeof f->sock, "%s/sock", f->root);
    snprintf(f->head_file, sizeof f->head_file, "%s/head", f->root);
    snprintf(f->node_file, sizeof f->node_file, "%s/node", f->root);
    for (int64_t i = 0; i < SIZE; i++)
        data[i] = (uint8_t)(i * 31 + i / 4096);
    FILE *file = fopen(f->head_file, "we");
    const uint64_t hash = 7;
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, (size_t)SIZE, file), SIZE);
    assert_true(weights_file_end(file, &hash, 1, (size_t)SIZE));
    assert_int_equal(fclose(file), 0);
    free(data);
    assert_non_null(f->head = transport_new(f->sock, true, &err));
    assert_non_null(f->node = transport_new(f->sock, false, &err));
    assert_non_null(f->server = server_new(f->head, "head", 16, &err));
    assert_non_null(f->peer = peer_new(f->node, "head", &err));
    front_begin(f);
    bulk_begin(f);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct error err = { 0 };
    struct fixture *f = *state;
    weights_fetch_free(f->fetch);
    transport_free(f->node);
    transport_free(f->head);
    front_free(f->front);
    bulk_server_free(f->bulk);
    assert_true(dir_remove(f->root, &err));
    free(f);
    return 0;
}

/* ---- the gate */

static void offer_answer(struct fixture *f, struct request *r)
{
    struct error err;
    struct bulk_offer o;
    struct msg_out m = MSG_OUT_INIT;
    enum answer a = f->answer[MIN(f->n_asked, f->n_answer - 1)];
    f->n_asked++;
    if (a == FULL || a == UNKNOWN || a == GONE) {
        error_set(&err, a == FULL ? ERR_FULL : a == UNKNOWN ? ERR_UNSUPPORTED : ERR_NOT_FOUND, "no");
        request_refuse(r, &err);
        return;
    }
    if (!(f->name ? bulk_server_offer_file(f->bulk, f->head_file, &o, &err)
                  : bulk_server_offer(f->bulk, f->head_file, NULL, 0, true, &o, &err)))
        fail_msg("%s", err.text);
    if (a == OFFER_OF_A_GATE_THAT_IS_GONE) {
        front_bulk(f->front, NULL, NULL);
        bulk_server_free(f->bulk);
        bulk_begin(f);
    }
    if (a == OFFER_OF_A_HEAD_THAT_MOVES) {
        front_begin(f);
        front_bulk(f->front, bulk_server_connection, f->bulk);
        snprintf(f->address_said, sizeof f->address_said, "127.0.0.1:1");    // until it knows better
    } else {
        snprintf(f->address_said, sizeof f->address_said, "%s", f->address);
    }
    msg_begin(&m, MSG_OK);
    msg_bin(&m, "name", o.ticket.name, sizeof o.ticket.name);
    msg_bin(&m, "key", o.ticket.key, sizeof o.ticket.key - (a == SHORT_KEY));
    msg_i64(&m, "size_bytes", o.size_bytes);
    msg_i64(&m, "file_key", (int64_t)o.key);
    msg_bool(&m, "has_base", o.has_base);
    assert_true(msg_finish(&m, &err));
    request_answer(r, &m);
    msg_release(&m);
}

static void piece_answer(struct fixture *f, struct request *r, int64_t offset)
{
    struct error err;
    struct file_map map;
    struct msg_out m = MSG_OUT_INIT;
    assert_true(file_map_open(&map, f->head_file, &err));
    int64_t size = (int64_t)map.size_bytes;
    assert_in_range(offset, 0, size - 1);
    f->n_piece++;
    msg_begin(&m, MSG_OK);
    msg_i64(&m, "size_bytes", size);
    msg_i64(&m, "stamp", 1);
    msg_bin(&m, "data", map.data + offset, (size_t)MIN(NODE_PIECE_BYTES, size - offset));
    assert_true(msg_finish(&m, &err));
    request_answer(r, &m);
    msg_release(&m);
    file_map_close(&map);
}

static void request_take(struct fixture *f, struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    assert_true(msg_read_request(&in, ev->data, ev->len, &err));
    char name[64];
    assert_string_equal(mval_text(in.root, "name", name, sizeof name), f->name ? f->name : "");
    if (in.type == MSG_WEIGHTS)
        offer_answer(f, ev->request);
    else
        piece_answer(f, ev->request, mval_i64(mval_get(in.root, "offset"), -1));
    ev->request = NULL;
    msg_in_release(&in);
}

/* ---- the node */

static void on_wake(void *ctx)
{
    transport_wake(ctx);
}

/* Fetch, with the gate answering so; returns how it ended. */
static enum fetch_state fetched(struct fixture *f, const enum answer *answer, int n, struct error *err)
{
    struct net_event ev;
    struct weights_fetch_config c = { .head = f->peer,
                                      .stream = &f->peer,
                                      .n_stream = 1,
                                      .address = f->address_said,
                                      .path = f->node_file,
                                      .name = f->name,
                                      .version = 3,
                                      .made = 1,
                                      .tag = TAG,
                                      .wake = on_wake,
                                      .ctx = f->node };
    f->answer = answer;
    f->n_answer = n;
    assert_non_null(f->fetch = weights_fetch_new(&c, err));
    for (int64_t end = clock_ms() + LONG_MS; weights_fetch_state(f->fetch, err) == FETCH_GOES && clock_ms() < end;) {
        weights_fetch_tick(f->fetch);
        if (transport_wait(f->head, &ev, 5)) {
            request_take(f, &ev);
            net_event_release(&ev);
        }
        while (transport_next(f->node, &ev)) {
            assert_true(weights_fetch_answered(f->fetch, &ev));
            net_event_release(&ev);
        }
    }
    return weights_fetch_state(f->fetch, err);
}

static void file_is_whole(const struct fixture *f)
{
    struct error err = { 0 };
    struct file_map a, b;
    if (!file_map_open(&a, f->head_file, &err) || !file_map_open(&b, f->node_file, &err))
        fail_msg("%s", err.text);
    assert_int_equal(a.size_bytes, b.size_bytes);
    assert_memory_equal(a.data, b.data, a.size_bytes);
    file_map_close(&a);
    file_map_close(&b);
}

static void an_offer_brings_the_file(void **state)
{
    static const enum answer answer[] = { OFFER };
    struct fixture *f = *state;
    struct error err;
    struct weights_fetch_look look;
    assert_int_equal(fetched(f, answer, 1, &err), FETCH_DONE);
    weights_fetch_look(f->fetch, &look);
    assert_int_equal(look.done_bytes, look.size_bytes);
    assert_true(look.wire_bytes > SIZE);
    assert_int_equal(f->n_asked, 1);
    file_is_whole(f);
}

static void a_gate_that_is_replaced_or_busy_is_asked_again(void **state)
{
    static const enum answer answer[] = { FULL, OFFER_OF_A_GATE_THAT_IS_GONE, FULL, OFFER };
    struct fixture *f = *state;
    struct error err;
    assert_int_equal(fetched(f, answer, 4, &err), FETCH_DONE);
    assert_true(f->n_asked >= 4);
    assert_int_equal(f->n_piece, 0);
    file_is_whole(f);
}

static void a_head_that_moves_is_followed(void **state)
{
    static const enum answer answer[] = { OFFER_OF_A_HEAD_THAT_MOVES, OFFER };
    struct fixture *f = *state;
    struct error err;
    assert_int_equal(fetched(f, answer, 2, &err), FETCH_DONE);
    assert_true(f->n_asked >= 2);
    assert_int_equal(f->n_piece, 0);
    file_is_whole(f);
}

static void a_gate_that_does_not_know_offers_sends_pieces(void **state)
{
    static const enum answer answer[] = { UNKNOWN };
    struct fixture *f = *state;
    struct error err;
    assert_int_equal(fetched(f, answer, 1, &err), FETCH_DONE);
    assert_int_equal(f->n_asked, 1);
    assert_int_equal(f->n_piece, 2);
    file_is_whole(f);
}

static void weights_that_the_head_no_longer_has_are_not_waited_for(void **state)
{
    static const enum answer answer[] = { GONE };
    struct fixture *f = *state;
    struct error err;
    assert_int_equal(fetched(f, answer, 1, &err), FETCH_FAILED);
    assert_int_equal(err.code, ERR_NOT_FOUND);
    assert_false(path_exists(f->node_file));
}

static void a_ticket_of_another_size_is_refused(void **state)
{
    static const enum answer answer[] = { SHORT_KEY };
    struct fixture *f = *state;
    struct error err;
    assert_int_equal(fetched(f, answer, 1, &err), FETCH_FAILED);
    assert_int_equal(err.code, ERR_DATA);
    assert_non_null(strstr(err.text, "a key of 31 bytes"));
}

static void a_file_of_a_checkpoint_comes_whatever_it_holds(void **state)
{
    static const enum answer answer[] = { FULL, OFFER };
    struct fixture *f = *state;
    struct error err;
    f->name = "checkpoint/step-000004/model.safetensors";
    assert_true(file_write(f->head_file, "no weights", 10, &err));
    assert_int_equal(fetched(f, answer, 2, &err), FETCH_DONE);
    assert_int_equal(f->n_piece, 0);
    file_is_whole(f);
}

/* It says that there are no weights of such a version. */
static void a_gate_that_does_not_offer_checkpoints_sends_pieces(void **state)
{
    static const enum answer answer[] = { GONE };
    struct fixture *f = *state;
    struct error err;
    f->name = "checkpoint/step-000004/model.safetensors";
    assert_int_equal(fetched(f, answer, 1, &err), FETCH_DONE);
    assert_int_equal(f->n_piece, 2);
    file_is_whole(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_offer_brings_the_file, setup, teardown),
        cmocka_unit_test_setup_teardown(a_gate_that_is_replaced_or_busy_is_asked_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_head_that_moves_is_followed, setup, teardown),
        cmocka_unit_test_setup_teardown(a_gate_that_does_not_know_offers_sends_pieces, setup, teardown),
        cmocka_unit_test_setup_teardown(weights_that_the_head_no_longer_has_are_not_waited_for, setup, teardown),
        cmocka_unit_test_setup_teardown(a_ticket_of_another_size_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_of_a_checkpoint_comes_whatever_it_holds, setup, teardown),
        cmocka_unit_test_setup_teardown(a_gate_that_does_not_offer_checkpoints_sends_pieces, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
