/* Weights from one process to others through outlet and inlet, with processes that die; on CPUs (both ways work there), or on
 * the GPUs that PUBLISH_DEVICES names, one per process: cuda:0,cuda:1. publish_test [PATTERN]: only tests of such names.
 * tags: asan limit=120 */
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "protocol/base/clock.h"
#include "workers/engine/publish/inlet.h"
#include "workers/engine/publish/outlet.h"

#define SIZE ((size_t)9 << 20 | 1234)    // several buckets and pieces, and a rest
#define TENSORS 5000                     // their hashes take more than one packet
#define LIMIT_MS 60000

static char dir[64] = "/tmp/publish-XXXXXX";
static char device[3][32] = { "ref", "ref", "ref" };    // the trainer's and the producers'
static int n_producer = 2;
static bool lean;    // the trainer shares its weights themselves, and producers stage nothing

/* What version v's byte i is. */
static uint8_t byte_of(int64_t v, size_t i)
{
    v = version_step(v) + (v >> 40) * 5;
    return (uint8_t)(v * 31 + (int64_t)i * 7 + (int64_t)(i >> 12) + (int64_t)(i >> 20) * v);
}

static void weights_fill(struct device *dev, void *w, int64_t v)
{
    struct error err;
    uint8_t *host = malloc(SIZE);
    for (size_t i = 0; i < SIZE; i++)
        host[i] = byte_of(v, i);
    BUG_IF(!mem_copy(dev, w, host, SIZE, COPY_H2D, &err) || !device_sync(dev, &err), "%s", err.text);
    free(host);
}

static bool weights_are(struct device *dev, const void *w, int64_t v)
{
    struct error err;
    uint8_t *host = malloc(SIZE);
    BUG_IF(!mem_copy(dev, host, w, SIZE, COPY_D2H, &err) || !device_sync(dev, &err), "%s", err.text);
    bool same = true;
    for (size_t i = 0; i < SIZE && same; i++)
        same = host[i] == byte_of(v, i);
    free(host);
    return same;
}

static void weights_poison(struct device *dev, void *w)
{
    struct error err;
    BUG_IF(!OP(dev, &err, mem_fill, .y = w, .size_bytes = SIZE, .byte = 0xee) || !device_sync(dev, &err), "%s", err.text);
}

/* ---- a producer in a separate process: it takes the versions it is sent and answers with the result ---- */

struct producer {
    pid_t pid;
    int to, from;
};
struct answer {
    int64_t version;
    int code;      // enum error_code
    bool right;    // the bytes are the version's
    char text[200];
};

/* publish_test --producer WAY NAME DEVICE DIR staged|lean, which reads versions from descriptor 3 and writes answers to 4. */
static int producer_main(char **argv)
{
    struct error err = { 0 };
    int64_t v;
    enum weights_way way;
    struct bundle bundle = { 0 };
    struct places places;
    struct device *dev = device_new(argv[4], 1, &err);
    void *w = dev && bundle_of_size(&bundle, SIZE, TENSORS, &err) ? mem_new(dev, SIZE, "weights", &err) : NULL;
    struct inlet_config c = { .dev = &dev, .n_device = 1, .dir = argv[5], .name = argv[3], .staged = *argv[6] == 's', .bundle = &bundle };
    places_of_whole(&places, dev, w, &bundle);
    struct inlet *in = w && weights_way_parse(argv[2], &way) && (c.way = way, true) ? inlet_new(&c, &err) : NULL;
    if (!in)
        fprintf(stderr, "%s\n", err.text);
    while (in && read(3, &v, sizeof v) == (ssize_t)sizeof v) {
        uint64_t hash;
        struct answer a = { .version = v };
        weights_poison(dev, w);
        a.code = inlet_take(in, &places, v, LIMIT_MS, &hash, &err) ? ERR_NONE : (int)err.code;
        a.right = weights_are(dev, w, v);
        snprintf(a.text, sizeof a.text, "%s", a.code ? err.text : "");
        if (write(4, &a, sizeof a) != (ssize_t)sizeof a)
            break;
    }
    inlet_free(in);
    bundle_release(&bundle);
    if (dev)
        mem_free(dev, w);
    device_free(dev);
    return in ? 0 : 1;
}

/* A new program, since a forked one could not use its GPU. */
static struct producer process_start(char **argv)
{
    int to[2], from[2];
    assert_int_equal(pipe2(to, O_CLOEXEC), 0);
    assert_int_equal(pipe2(from, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        int in = fcntl(to[0], F_DUPFD, 16), out = fcntl(from[1], F_DUPFD, 16);
        if (dup2(in, 3) == 3 && dup2(out, 4) == 4 && close(in) == 0 && close(out) == 0)
            execv("/proc/self/exe", argv);
        _exit(1);
    }
    close(to[0]);
    close(from[1]);
    return (struct producer){ pid, to[1], from[0] };
}

/* index: 0 or 1, which of the producers' devices. */
static struct producer producer_start(enum weights_way way, int index, const char *name)
{
    char *argv[] = { "publish_test",    "--producer", (char *)weights_way_name(way), (char *)name,
                     device[1 + index], dir,          lean ? "lean" : "staged",      NULL };
    return process_start(argv);
}

static void ask(const struct producer *p, int64_t version)
{
    assert_int_equal(write(p->to, &version, sizeof version), sizeof version);
}

static void expect_text(const struct producer *p, int64_t version, int code, const char *text)
{
    struct answer a;
    assert_int_equal(read(p->from, &a, sizeof a), sizeof a);
    assert_int_equal(a.version, version);
    assert_int_equal(a.code, code);
    assert_true(a.right || code != ERR_NONE);
    if (!strstr(a.text, text))
        fail_msg("'%s' does not say '%s'", a.text, text);
}

static void expect(const struct producer *p, int64_t version, int code)
{
    expect_text(p, version, code, "");
}

static void producer_end(struct producer *p, int signal_no)
{
    int status;
    if (signal_no)
        kill(p->pid, signal_no);
    close(p->to);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    if (!signal_no && status != 0)
        fail_msg("the producer ended with wait status 0x%x", (unsigned)status);
    close(p->from);
}

/* ---- the trainer: this process ---- */

struct trainer_side {
    struct device *dev;
    struct bundle bundle;
    void *w;
    struct mem_handle handle;
    struct outlet *o;
};

static void trainer_open(struct trainer_side *t, enum weights_way way, int n_slot, int64_t limit_ms)
{
    struct error err = { 0 };
    t->dev = device_new(device[0], 1, &err);
    assert_non_null(t->dev);
    t->w = mem_share_new(t->dev, SIZE, "weights", &t->handle, &err);
    assert_true(t->w && bundle_of_size(&t->bundle, SIZE, TENSORS, &err));
    struct outlet_config c = {
        .dev = t->dev, .dir = dir, .way = way, .bundle = &t->bundle, .bucket_bytes = 1 << 20, .n_slot = n_slot, .limit_ms = limit_ms
    };
    t->o = outlet_new(&c, &err);
    if (!t->o)
        fail_msg("%s", err.text);
}

static void share(struct trainer_side *t, int64_t v)
{
    struct error err = { 0 };
    weights_fill(t->dev, t->w, v);
    if (!outlet_share(t->o, t->w, &t->handle, v, &err))
        fail_msg("%s", err.text);
    weights_poison(t->dev, t->w);    // the trainer goes on at once
}

static void trainer_close(struct trainer_side *t)
{
    outlet_free(t->o);
    mem_share_free(t->dev, t->w, SIZE, &t->handle);
    bundle_release(&t->bundle);
    device_free(t->dev);
}

/* Wait until n producers are there and n_waiting of them wait for a version to be shared. */
static void members_wait(struct trainer_side *t, int n, int n_waiting)
{
    struct outlet_look look;
    int64_t end = clock_ms() + LIMIT_MS;
    do {
        outlet_look(t->o, &look);
        usleep(1000);
    } while ((look.n_member != n || look.n_waiting != n_waiting) && clock_ms() < end);
    assert_int_equal(look.n_member, n);
    assert_int_equal(look.n_waiting, n_waiting);
}

static void every_version_arrives_with_its_bytes(void **state)
{
    enum weights_way way = (enum weights_way)(intptr_t)*state;
    struct producer p[2];
    struct trainer_side t;
    trainer_open(&t, way, 1, LIMIT_MS);
    share(&t, 0);    // gone before anybody comes, so that no producer can have it
    share(&t, 1);
    for (int k = 0; k < n_producer; k++)
        p[k] = producer_start(way, k, k ? "two" : "one");
    share(&t, 2);    // perhaps before anybody is there
    for (int64_t v = 2; v < 6; v++) {
        if (v == 4)
            for (int k = 0; k < n_producer; k++)
                ask(&p[k], v);    // wanted before it is shared: received straight into the weights
        if (v == 4)
            members_wait(&t, n_producer, n_producer);
        if (v > 2)
            share(&t, v);
        if (v != 4)
            for (int k = 0; k < n_producer; k++)
                ask(&p[k], v);
        for (int k = 0; k < n_producer; k++)
            expect(&p[k], v, ERR_NONE);
    }
    ask(&p[0], 5);    // once more, as after its weights were lost
    expect(&p[0], 5, ERR_NONE);
    ask(&p[n_producer - 1], 0);
    expect(&p[n_producer - 1], 0, ERR_NOT_FOUND);
    for (int k = 0; k < n_producer; k++)
        producer_end(&p[k], 0);
    trainer_close(&t);
}

static void older_versions_stay_while_there_are_slots(void **state)
{
    enum weights_way way = (enum weights_way)(intptr_t)*state;
    struct producer p = producer_start(way, 0, "one");
    struct trainer_side t;
    int64_t kept[OUTLET_SLOT_MAX];
    trainer_open(&t, way, 2, LIMIT_MS);
    for (int64_t v = 0; v < 3; v++)
        share(&t, v);
    assert_int_equal(outlet_versions(t.o, kept), 2);
    assert_int_equal(kept[0] + kept[1], 1 + 2);
    for (int64_t v = 2; v >= 1; v--) {
        ask(&p, v);
        expect(&p, v, ERR_NONE);
    }
    struct error err = { 0 };
    struct places places;
    places_of_whole(&places, t.dev, t.w, &t.bundle);
    assert_true(outlet_copy(t.o, &places, 1, &err));
    assert_true(weights_are(t.dev, t.w, 1));
    assert_false(outlet_copy(t.o, &places, 0, &err));
    producer_end(&p, 0);
    trainer_close(&t);
}

static void a_killed_producer_is_left_out_and_its_successor_let_in(void **state)
{
    enum weights_way way = (enum weights_way)(intptr_t)*state;
    bool other = n_producer > 1;    // one that lives on
    struct producer one = other ? producer_start(way, 0, "one") : (struct producer){ 0 }, two = producer_start(way, n_producer - 1, "two");
    struct trainer_side t;
    trainer_open(&t, way, 1, LIMIT_MS);
    members_wait(&t, n_producer, 0);
    share(&t, 0);
    if (other) {
        ask(&one, 0);
        expect(&one, 0, ERR_NONE);
    }
    for (int64_t v = 1; v < 4; v++) {
        pid_t killer = 0;
        ask(&two, v);    // it dies while it waits, or while it receives
        members_wait(&t, n_producer, 1);
        if (v == 2) {
            kill(two.pid, SIGSTOP);    // so that a broadcast to it cannot end
            if ((killer = fork()) == 0) {
                usleep(100000);    // whenever it comes: the result is the same
                kill(two.pid, SIGKILL);
                _exit(0);
            }
        } else {
            kill(two.pid, SIGKILL);
        }
        share(&t, v);
        if (other) {
            ask(&one, v);
            expect(&one, v, ERR_NONE);
        }
        if (killer)
            waitpid(killer, NULL, 0);
        producer_end(&two, SIGKILL);
        two = producer_start(way, n_producer - 1, "two again");
        ask(&two, v);
        expect(&two, v, ERR_NONE);
    }
    if (other)
        producer_end(&one, 0);
    producer_end(&two, 0);
    trainer_close(&t);
}

static void a_trainer_that_goes_fails_the_wait_and_its_successor_is_found(void **state)
{
    enum weights_way way = (enum weights_way)(intptr_t)*state;
    struct producer p = producer_start(way, 0, "one");
    struct trainer_side t;
    trainer_open(&t, way, 1, LIMIT_MS);
    share(&t, 7);
    ask(&p, 7);
    expect(&p, 7, ERR_NONE);
    ask(&p, 8);
    members_wait(&t, 1, 1);
    trainer_close(&t);
    expect(&p, 8, ERR_CLOSED);
    trainer_open(&t, way, 1, LIMIT_MS);
    ask(&p, 5);
    share(&t, 5);    // its life begins at an earlier step
    expect(&p, 5, ERR_NONE);
    producer_end(&p, 0);
    trainer_close(&t);
}

static void what_was_shared_before_going_back_does_not_count(void **state)
{
    enum weights_way way = (enum weights_way)(intptr_t)*state;
    struct producer p = producer_start(way, 0, "one");
    struct trainer_side t;
    int64_t kept[OUTLET_SLOT_MAX];
    trainer_open(&t, way, 1, LIMIT_MS);
    members_wait(&t, 1, 0);
    share(&t, 9);
    ask(&p, 9);
    expect(&p, 9, ERR_NONE);
    outlet_forget(t.o);
    assert_int_equal(outlet_versions(t.o, kept), 0);
    ask(&p, 4);
    share(&t, 4);
    expect(&p, 4, ERR_NONE);
    producer_end(&p, 0);
    trainer_close(&t);
}

/* ... even before the producer knows, while its copy waits in its staging buffer. */
static void a_repeated_step_is_another_version(void **state)
{
    enum weights_way way = (enum weights_way)(intptr_t)*state;
    struct producer p = producer_start(way, 0, "one");
    struct trainer_side t;
    trainer_open(&t, way, 2, LIMIT_MS);
    members_wait(&t, 1, 0);
    share(&t, version_key(1, 5));
    ask(&p, version_key(1, 5));
    expect(&p, version_key(1, 5), ERR_NONE);
    ask(&p, version_key(2, 5));
    members_wait(&t, 1, 1);    // it waits: what is there is not what it wants
    share(&t, version_key(2, 5));
    expect(&p, version_key(2, 5), ERR_NONE);
    share(&t, version_key(2, 4));    // between the two, though its step is the smallest
    ask(&p, version_key(2, 4));
    expect(&p, version_key(2, 4), ERR_NONE);
    ask(&p, version_key(1, 7));    // undone, and its like will not come
    expect(&p, version_key(1, 7), ERR_NOT_FOUND);
    producer_end(&p, 0);
    trainer_close(&t);
}

/* A version is wanted while it arrives, and the newest one is sent again right after it: what waits in the staging buffer is copied
 * out before anything else comes into it. */
static void what_has_arrived_is_copied_before_the_next_comes(void **state)
{
    enum weights_way way = (enum weights_way)(intptr_t)*state;
    struct producer p = producer_start(way, 0, "one");
    struct trainer_side t;
    trainer_open(&t, way, 2, LIMIT_MS);
    members_wait(&t, 1, 0);
    share(&t, version_key(2, 0));
    for (int64_t v = 1; v <= 20; v++) {
        share(&t, version_key(1, v));
        ask(&p, version_key(1, v));
        expect(&p, version_key(1, v), ERR_NONE);
    }
    producer_end(&p, 0);
    trainer_close(&t);
}

/* ---- without slots: the trainer's weights themselves are shared, until they are withdrawn */

static void withdraw(struct trainer_side *t)
{
    struct error err = { 0 };
    if (!outlet_withdraw(t->o, &err))
        fail_msg("%s", err.text);
}

static void share_in_place(struct trainer_side *t, int64_t v)
{
    struct error err = { 0 };
    withdraw(t);
    weights_poison(t->dev, t->w);    // who reads now would see it
    weights_fill(t->dev, t->w, v);
    if (!outlet_share(t->o, t->w, &t->handle, v, &err))
        fail_msg("%s", err.text);
}

static void what_is_shared_in_place_arrives_and_is_withdrawn(void **state)
{
    enum weights_way way = (enum weights_way)(intptr_t)*state;
    struct producer p[2];
    struct trainer_side t;
    int64_t kept[OUTLET_SLOT_MAX];
    lean = true;
    trainer_open(&t, way, 0, LIMIT_MS);
    for (int k = 0; k < n_producer; k++)
        p[k] = producer_start(way, k, k ? "two" : "one");
    for (int64_t v = 1; v < 6; v++) {
        if (v % 2)
            share_in_place(&t, v);
        for (int k = 0; k < n_producer; k++)
            ask(&p[k], v);
        if (v % 2 == 0) {    // it is wanted before
            members_wait(&t, n_producer, n_producer);
            share_in_place(&t, v);
        }
        for (int k = 0; k < n_producer; k++)
            expect(&p[k], v, ERR_NONE);
    }
    ask(&p[0], 5);    // alone, as after its weights were lost: nobody else takes part
    expect(&p[0], 5, ERR_NONE);
    withdraw(&t);
    assert_int_equal(outlet_versions(t.o, kept), 0);
    ask(&p[0], 5);    // it is told at once
    expect_text(&p[0], 5, ERR_NOT_FOUND, "the trainer has no version 5 any more");
    ask(&p[0], 6);
    members_wait(&t, n_producer, 1);
    share_in_place(&t, 6);
    expect(&p[0], 6, ERR_NONE);
    for (int k = 0; k < n_producer; k++)
        producer_end(&p[k], 0);
    trainer_close(&t);
    lean = false;
}

/* In the middle of a copy or a broadcast: the others get the version, the trainer goes on, and nobody holds a mixture. */
static void whoever_is_killed_in_the_middle_of_what_is_shared_in_place(void **state)
{
    enum weights_way way = (enum weights_way)(intptr_t)*state;
    bool other = n_producer > 1;
    lean = true;
    struct producer one = other ? producer_start(way, 0, "one") : (struct producer){ 0 }, two = producer_start(way, n_producer - 1, "two");
    struct trainer_side t;
    trainer_open(&t, way, 0, LIMIT_MS);
    members_wait(&t, n_producer, 0);
    for (int64_t v = 1; v < 4; v++) {
        if (other)
            ask(&one, v);
        ask(&two, v);
        members_wait(&t, n_producer, n_producer);
        kill(two.pid, SIGSTOP);    // it takes part, and does not end
        pid_t killer = fork();
        if (killer == 0) {
            usleep(100000);    // whenever it comes: the result is the same
            kill(two.pid, SIGKILL);
            _exit(0);
        }
        share_in_place(&t, v);
        if (other)
            expect(&one, v, ERR_NONE);
        waitpid(killer, NULL, 0);
        producer_end(&two, SIGKILL);
        two = producer_start(way, n_producer - 1, "two again");
        ask(&two, v);
        expect(&two, v, ERR_NONE);
        withdraw(&t);
    }
    ask(&two, 9);
    members_wait(&t, n_producer, 1);
    trainer_close(&t);    // as a killed one's descriptors are closed
    expect(&two, 9, ERR_CLOSED);
    if (other)
        producer_end(&one, 0);
    producer_end(&two, 0);
    lean = false;
}

/* ---- weights in parts, the second half of them in another process's memory: a keeper's */
#define FIRST_HALF ((size_t)4 << 20 | 4096)

/* publish_test --keeper DEVICE, which fills its part with the versions that it reads from descriptor 3, and answers with its handle on 4. */
static int keeper_main(char **argv)
{
    struct error err = { 0 };
    struct mem_handle h;
    int64_t v;
    struct device *dev = device_new(argv[2], 1, &err);
    void *w = dev ? mem_new(dev, SIZE, "weights", &err) : NULL,
         *part = w ? mem_share_new(dev, SIZE - FIRST_HALF, "a part", &h, &err) : NULL;
    while (part && read(3, &v, sizeof v) == (ssize_t)sizeof v) {
        weights_fill(dev, w, v);
        if (!mem_copy(dev, part, (char *)w + FIRST_HALF, SIZE - FIRST_HALF, COPY_D2D, &err) || !device_sync(dev, &err)
            || write(4, &h, sizeof h) != (ssize_t)sizeof h)
            break;
    }
    if (part)
        mem_share_free(dev, part, SIZE - FIRST_HALF, &h);
    if (w)
        mem_free(dev, w);
    device_free(dev);
    return part ? 0 : 1;
}

static struct producer keeper_start(void)
{
    char *argv[] = { "publish_test", "--keeper", device[0], NULL };
    return process_start(argv);
}

/* Version v is shared in place: its first half is the trainer's, its second the keeper's. */
static bool halves_share(struct trainer_side *t, const struct producer *keeper, int64_t v, struct error *err)
{
    struct mem_handle h;
    struct error ignored;
    withdraw(t);
    weights_fill(t->dev, t->w, v);
    ask(keeper, v);
    assert_int_equal(read(keeper->from, &h, sizeof h), sizeof h);
    const void *seen = mem_share_open(t->dev, &h, SIZE - FIRST_HALF, err);
    if (!seen)
        fail_msg("%s", err->text);
    static struct extent_part part[2];    // until it is withdrawn
    static struct extent at[2];
    at[0] = (struct extent){ .of = area_run(0, FIRST_HALF), .part = 0 };
    at[1] = (struct extent){ .of = area_run(FIRST_HALF, SIZE - FIRST_HALF), .part = 1 };
    part[0] = (struct extent_part){ t->w, SIZE, t->handle };
    part[1] = (struct extent_part){ seen, SIZE - FIRST_HALF, h };
    bool ok = outlet_share_extents(t->o, &(struct extents){ 2, at, 2, part }, v, err);
    (void)!device_sync(t->dev, &ignored);
    mem_share_close(t->dev, seen, SIZE - FIRST_HALF);    // others open it by themselves
    return ok;
}

static void parts_of_several_processes_arrive_while_all_live(UNUSED void **state)
{
    struct error err = { 0 };
    struct trainer_side t;
    int64_t kept[OUTLET_SLOT_MAX];
    struct producer keeper = keeper_start(), p[2];
    lean = true;
    trainer_open(&t, WAY_COPY, 0, LIMIT_MS);
    for (int k = 0; k < n_producer; k++)
        p[k] = producer_start(WAY_COPY, k, k ? "two" : "one");
    for (int64_t v = 1; v < 5; v++) {
        if (v == 4) {    // whose memory it is has died before anybody opens it
            if (!halves_share(&t, &keeper, 3, &err))
                fail_msg("%s", err.text);
            producer_end(&keeper, SIGKILL);
            ask(&p[0], 3);
            expect(&p[0], 3, ERR_CLOSED);
            int64_t end = clock_ms() + LIMIT_MS;
            while (outlet_versions(t.o, kept) > 0 && clock_ms() < end)    // nobody else is given it
                usleep(1000);
            assert_int_equal(outlet_versions(t.o, kept), 0);
            keeper = keeper_start();
        }
        if (!halves_share(&t, &keeper, v, &err))
            fail_msg("%s", err.text);
        for (int k = 0; k < n_producer; k++)
            ask(&p[k], v);
        for (int k = 0; k < n_producer; k++)
            expect(&p[k], v, ERR_NONE);
    }
    withdraw(&t);
    for (int k = 0; k < n_producer; k++)
        producer_end(&p[k], 0);
    producer_end(&keeper, 0);
    trainer_close(&t);
    lean = false;
}

/* Until a slot is offered, of one part. */
static void slot_await(int fd, struct wire *w, struct mem_handle *h)
{
    static union wire_list list;
    int64_t end = clock_ms() + LIMIT_MS, n = 0, n_part = 0, n_place = 0;
    int got = 0;
    while (got >= 0 && clock_ms() < end) {
        got = wire_receive(fd, w, &list);
        if (got > 0 && w->kind == WIRE_SLOT)
            break;
        if (got > 0 && w->kind == WIRE_PART) {
            assert_int_equal(w->size_bytes, SIZE);
            *h = w->handle;
            n_part++;
        } else if (got > 0 && w->kind == WIRE_PLACES) {
            assert_int_equal(area_bytes(&list.place[0].of), SIZE);
            n_place += w->n;
        } else if (got > 0) {
            assert_int_equal(w->kind, WIRE_HASHES);
            assert_int_equal(w->first, n);
            n += w->n;
        } else {
            usleep(1000);
        }
    }
    assert_int_equal(w->kind, WIRE_SLOT);
    assert_int_equal(n, TENSORS);
    assert_true(n_part == 1 && n_place == 1);
}

/* A producer of the test's own, at the socket. */
static void a_slot_that_is_read_is_not_written(UNUSED void **state)
{
    struct trainer_side t;
    struct error err = { 0 };
    struct mem_handle h;
    struct wire w = { .kind = WIRE_HELLO, .size_bytes = SIZE, .n = TENSORS, .name = "a slow one" };
    trainer_open(&t, WAY_COPY, 1, 50);
    share(&t, 1);
    int fd = wire_connect(dir);
    assert_true(fd >= 0);
    assert_true(wire_send(fd, w));
    assert_true(wire_send(fd, (struct wire){ .kind = WIRE_WANT, .version = 1 }));
    slot_await(fd, &w, &h);
    assert_false(w.once);
    assert_false(outlet_share(t.o, t.w, NULL, 2, &err));
    assert_int_equal(err.code, ERR_TIMEOUT);
    assert_non_null(strstr(err.text, "a slow one has been taking version 1 for 0 s"));
    if (t.dev->host_memory) {    // a GPU's memory is not opened by the process that made it
        const void *seen = mem_share_open(t.dev, &h, SIZE, &err);
        assert_non_null(seen);
        assert_true(weights_are(t.dev, seen, 1));
        mem_share_close(t.dev, seen, SIZE);
    }
    assert_true(wire_send(fd, (struct wire){ .kind = WIRE_TOOK, .version = 1 }));
    int64_t end = clock_ms() + LIMIT_MS;
    while (!outlet_share(t.o, t.w, NULL, 2, &err) && clock_ms() < end)
        assert_int_equal(err.code, ERR_TIMEOUT);    // until TOOK has been read
    int64_t kept[OUTLET_SLOT_MAX];
    assert_int_equal(outlet_versions(t.o, kept), 1);
    assert_int_equal(kept[0], 2);
    close(fd);
    trainer_close(&t);
}

static void weights_that_are_read_are_not_changed(UNUSED void **state)
{
    struct trainer_side t;
    struct error err = { 0 };
    struct mem_handle h;
    struct wire w = { .kind = WIRE_HELLO, .size_bytes = SIZE, .n = TENSORS, .name = "a slow one" };
    int64_t end = clock_ms() + LIMIT_MS;
    trainer_open(&t, WAY_COPY, 0, 50);
    share_in_place(&t, 1);
    int fd = wire_connect(dir);
    assert_true(wire_send(fd, w) && wire_send(fd, (struct wire){ .kind = WIRE_WANT, .version = 1 }));
    slot_await(fd, &w, &h);
    assert_true(w.once);
    assert_false(outlet_withdraw(t.o, &err));
    assert_string_equal(err.text, "a slow one has been taking version 1 for 0 s");
    close(fd);    // as when it is killed
    while (!outlet_withdraw(t.o, &err) && clock_ms() < end)
        ;
    assert_true(clock_ms() < end);
    trainer_close(&t);
}

/* An outlet of the test's own: one tensor's hash is not that of its bytes. */
static void a_tensor_with_another_hash_is_named(UNUSED void **state)
{
    struct error err = { 0 };
    struct producer p = producer_start(WAY_COPY, 0, "one");
    struct trainer_side t;
    struct wire w = { 0 };
    uint64_t hash[TENSORS];
    struct extent whole;
    struct extent_part part;
    trainer_open(&t, WAY_COPY, 0, LIMIT_MS);
    outlet_free(t.o);    // its place is taken
    t.o = NULL;
    struct hasher *h = hasher_new(&t.bundle, &t.dev, 1, &err);
    int listener = wire_listen(dir, &err), fd = -1;
    int64_t end = clock_ms() + LIMIT_MS;
    assert_true(h && listener >= 0);
    weights_fill(t.dev, t.w, 3);
    assert_true(bundle_hash(h, t.w, hash, &err));
    while (fd < 0 && clock_ms() < end) {
        fd = accept(listener, NULL, NULL);
        usleep(1000);
    }
    assert_true(fd >= 0);
    for (int wrong = -1; wrong < TENSORS; wrong += 4500) {
        char text[64] = "";
        uint64_t keep = wrong < 0 ? 0 : hash[wrong];
        ask(&p, 3);
        w.kind = WIRE_HELLO;
        while (w.kind != WIRE_WANT && clock_ms() < end)
            if (wire_receive(fd, &w, NULL) <= 0)
                usleep(1000);
        if (wrong >= 0) {
            hash[wrong] ^= 42;
            snprintf(text, sizeof text, "'tensor.%d' of version 3 has arrived with hash %016" PRIx64, wrong, keep);
        }
        struct extents from = extents_whole(&whole, &part, t.w, SIZE);
        part.handle = t.handle;
        assert_true(wire_send_hashes(fd, hash, TENSORS) && wire_send_extents(fd, &from));
        assert_true(wire_send(fd, (struct wire){ .kind = WIRE_SLOT, .version = 3, .once = true }));
        expect_text(&p, 3, wrong < 0 ? ERR_NONE : ERR_DATA, text);
        if (wrong >= 0)
            hash[wrong] = keep;
    }
    producer_end(&p, 0);
    close(fd);
    close(listener);
    hasher_free(h);
    trainer_close(&t);
}

static void nonsense_at_the_socket_is_sent_away(UNUSED void **state)
{
    struct trainer_side t;
    struct wire w;
    int64_t end = clock_ms() + LIMIT_MS;
    trainer_open(&t, WAY_COPY, 1, LIMIT_MS);
    int fd = wire_connect(dir), got = 0;
    assert_int_equal(write(fd, "hello", 5), 5);
    while ((got = wire_receive(fd, &w, NULL)) == 0 && clock_ms() < end)
        usleep(1000);
    assert_int_equal(got, -1);
    close(fd);
    fd = wire_connect(dir);    // of another model
    assert_true(wire_send(fd, (struct wire){ .kind = WIRE_HELLO, .size_bytes = SIZE + 1, .name = "another" }));
    while ((got = wire_receive(fd, &w, NULL)) == 0 && clock_ms() < end)
        usleep(1000);
    assert_int_equal(got, -1);
    close(fd);
    trainer_close(&t);
}

int main(int argc, char **argv)
{
    if (argc == 7 && strcmp(argv[1], "--producer") == 0)
        return producer_main(argv);
    if (argc == 3 && strcmp(argv[1], "--keeper") == 0)
        return keeper_main(argv);
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    const char *devices = getenv("PUBLISH_DEVICES");
    if (devices) {
        n_producer = sscanf(devices, "%31[^,],%31[^,],%31[^,]", device[0], device[1], device[2]) - 1;
        if (n_producer < 1) {
            fprintf(stderr, "PUBLISH_DEVICES names the trainer's device and one or two producers'\n");
            return 2;
        }
    }
    const struct CMUnitTest tests[] = {
#define BOTH(f) { #f ", copy", f, NULL, NULL, (void *)(intptr_t)WAY_COPY }, { #f ", nccl", f, NULL, NULL, (void *)(intptr_t)WAY_NCCL }
        BOTH(every_version_arrives_with_its_bytes),
        BOTH(older_versions_stay_while_there_are_slots),
        BOTH(a_killed_producer_is_left_out_and_its_successor_let_in),
        BOTH(a_trainer_that_goes_fails_the_wait_and_its_successor_is_found),
        BOTH(what_was_shared_before_going_back_does_not_count),
        BOTH(a_repeated_step_is_another_version),
        BOTH(what_has_arrived_is_copied_before_the_next_comes),
        cmocka_unit_test(a_slot_that_is_read_is_not_written),
        BOTH(what_is_shared_in_place_arrives_and_is_withdrawn),
        BOTH(whoever_is_killed_in_the_middle_of_what_is_shared_in_place),
        cmocka_unit_test(weights_that_are_read_are_not_changed),
        cmocka_unit_test(parts_of_several_processes_arrive_while_all_live),
        cmocka_unit_test(a_tensor_with_another_hash_is_named),
        cmocka_unit_test(nonsense_at_the_socket_is_sent_away),
    };
    char command[96];
    signal(SIGPIPE, SIG_IGN);
    if (!mkdtemp(dir))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(command, sizeof command, "rm -r '%s'", dir);
    return system(command) != 0 || failed ? 1 : 0;
}
