/* Requests in a run: guests of a generator that has items of its own; and requests on weights that a trainer lends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "kernels/ops.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "tests/unit/ascii_tokenizer.h"
#include "tests/unit/small_model.h"
#include "workers/engine/model/model.h"
#include "workers/engine/publish/board.h"
#include "workers/engine/sampler/generator.h"
#include "workers/serve/lent.h"
#include "workers/serve/policy.h"

enum {
    SEQ_TOK = 128,
    GUESTS = 4,
    OWN = 6,
    OWN_SAMPLES = 2,
};
static struct error err;
static struct device *dev;
static struct model *model;
static struct tokenizer *tokenizer;

static int model_setup(UNUSED void **state)
{
    const struct model_config config = small_model(256);
    dev = device_new("cpu:0", 1, &err);
    model = dev ? model_new_random(&config, 5, dev, DT_F32, &err) : NULL;
    tokenizer = ascii_tokenizer_new(true, &err);
    if (!model || !tokenizer)
        print_error("%s\n", err.text);
    return !model || !tokenizer;
}

static int model_teardown(UNUSED void **state)
{
    tokenizer_free(tokenizer);
    model_free(model);
    device_free(dev);
    return 0;
}

static bool token_came(void *ctx, const struct drawn *d)
{
    return d->prompt_row < 0 && policy_watch(ctx, d);
}

static struct generator *generator_make(struct policy *p)
{
    struct generator_config c = { .model = model,
                                  .max_seq = OWN * OWN_SAMPLES + GUESTS,
                                  .max_item = OWN + GUESTS,
                                  .max_seq_tok = SEQ_TOK,
                                  .watch = token_came,
                                  .watch_ctx = p };
    struct generator *g = generator_new(&c, &err);
    if (!g)
        fail_msg("%s", err.text);
    return g;
}

static void woken(void *ctx)
{
    (*(int *)ctx)++;
}

static struct policy *policy_make(int *n_wake)
{
    struct policy_config c = {
        .n_id = 256, .wake = woken, .wake_ctx = n_wake, .tokenizer = tokenizer, .max_seq = GUESTS, .max_seq_tok = SEQ_TOK, .max_queue = 64
    };
    struct policy *p = policy_new(&c, &err);
    if (!p)
        fail_msg("%s", err.text);
    return p;
}

/* A job that continues n samples of a prompt of n_prompt tokens. */
static struct serve_job *job_make(int n_prompt, int n, int n_new)
{
    char text[1024] = "{\"prompt\":[7";
    for (int i = 1; i < n_prompt; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), ",%d", 7 + i * 13 % 200);
    snprintf(text + strlen(text), sizeof text - strlen(text), "],\"n\":%d,\"max_tokens\":%d,\"seed\":5,\"logprobs\":2}", n, n_new);
    json_t *body = json_loads(text, 0, NULL);
    struct ask ask;
    assert_true(body && ask_parse(&ask, ASK_COMPLETION, body, &err));
    json_decref(body);
    struct serve_job *j = serve_job_new(JOB_GENERATE, &err);
    assert_true(j && serve_job_ask(j, &ask, tokenizer, &err));
    return j;
}

static void own_submit(struct generator *g, int i)
{
    static const uint64_t seed[OWN_SAMPLES] = { 1, 2 };
    static const int32_t prompt[3] = { 9, 8, 7 };
    struct generator_item item = {
        .item = i, .prompt_row = i, .prompt = prompt, .n_prompt = 3, .n_sample = OWN_SAMPLES, .seed = seed, .sampling = SAMPLING_DEFAULT
    };
    item.sampling.max_new_tok = 60;
    if (!generator_submit(g, &item, &err))
        fail_msg("%s", err.text);
}

static void step(struct policy *p, struct generator *g)
{
    policy_feed(p);
    if (!generator_step(g, &err))
        fail_msg("%s", err.text);
    policy_stepped(p, NULL);
}

static void samples_equal(const struct serve_job *a, const struct serve_job *b)
{
    assert_int_equal(a->n_choice, b->n_choice);
    for (int64_t i = 0; i < a->n_choice; i++) {
        const struct job_choice *x = &a->choice[i], *y = &b->choice[i];
        assert_int_equal(x->n_tok, y->n_tok);
        assert_int_equal(x->end, y->end);
        assert_memory_equal(x->token, y->token, (size_t)x->n_tok * sizeof *x->token);
        assert_memory_equal(x->logp, y->logp, (size_t)x->n_tok * sizeof *x->logp);
        assert_memory_equal(x->top, y->top, (size_t)(x->n_tok * a->ask.n_top) * sizeof *x->top);
    }
}

static void a_guest_that_was_lifted_out_draws_what_it_would_have_drawn(UNUSED void **state)
{
    static const int lift_every[] = { 0, 1, 3, 7 };
    struct serve_job *first = NULL;
    for (size_t k = 0; k < ARRAY_SIZE(lift_every); k++) {
        int n_wake = 0;
        struct policy *p = policy_make(&n_wake);
        struct generator *g = generator_make(p);
        struct serve_job *j = job_make(21, 7, 30);    // more samples than guests at once
        assert_true(policy_submit(p, j, &err));
        assert_int_equal(n_wake, 1);
        assert_true(policy_wants(p));
        policy_attach(p, g);
        for (int round = 1; !j->http.done; round++) {
            assert_true(round < 2000);
            step(p, g);
            if (lift_every[k] && round % lift_every[k] == 0) {
                policy_lift(p);
                assert_true(generator_idle(g));
            }
            if (round == 20) {    // another generator, as after a restart of the run
                policy_detach(p);
                generator_free(g);
                policy_attach(p, g = generator_make(p));
            }
        }
        assert_false(j->failed);
        if (first)
            samples_equal(first, j);
        policy_end(p);
        policy_free(p);
        generator_free(g);
        if (first)
            serve_job_drop(j);
        first = first ? first : j;
    }
    serve_job_drop(first);
}

/* The groups of the run's items while n_job requests wait for their turn, and the tokens of the prompts that were run meanwhile. */
static void own_run(int n_job, struct group *out[OWN], int64_t *n_guest_prompt)
{
    int n_wake = 0, n_done = 0, round;
    struct policy *p = policy_make(&n_wake);
    struct generator *g = generator_make(p);
    struct serve_job *job[64];
    policy_attach(p, g);
    for (int i = 0; i < OWN; i++)
        own_submit(g, i);
    for (int i = 0; i < n_job; i++)
        assert_true((job[i] = job_make(40, 1, 1)) && policy_submit(p, job[i], &err));
    for (round = 0; !generator_own_idle(g); round++) {
        assert_true(round < 2000);
        step(p, g);
        for (struct group *group; (group = generator_poll(g));)
            out[group->item] = group;
    }
    *n_guest_prompt = 0;
    for (int i = 0; i < n_job; i++)
        *n_guest_prompt += 40 * job[i]->http.done;
    for (round++; n_done < n_job; round++) {    // the others have their turn when the run pauses
        assert_true(round < 2000);
        step(p, g);
        n_done = 0;
        for (int i = 0; i < n_job; i++)
            n_done += job[i]->http.done;
    }
    assert_null(generator_poll(g));    // no group is made of a guest
    for (int i = 0; i < n_job; i++)
        serve_job_drop(job[i]);
    policy_end(p);
    policy_free(p);
    generator_free(g);
}

static void guests_change_no_token_of_the_run_and_run_few_prompts_beside_it(UNUSED void **state)
{
    struct group *alone[OWN] = { NULL }, *visited[OWN] = { NULL };
    int64_t n_none, n_prompt, n_own = 0;
    own_run(0, alone, &n_none);
    own_run(60, visited, &n_prompt);
    for (int i = 0; i < OWN; i++) {
        assert_true(alone[i] && visited[i]);
        assert_int_equal(alone[i]->n_tok, visited[i]->n_tok);
        assert_memory_equal(alone[i]->token, visited[i]->token, (size_t)alone[i]->n_tok * sizeof(int32_t));
        assert_memory_equal(alone[i]->logp, visited[i]->logp, (size_t)alone[i]->n_tok * sizeof(float));
        n_own += alone[i]->n_tok;
        group_free(alone[i]);
        group_free(visited[i]);
    }
    assert_true(n_prompt > 0);
    assert_true(4 * n_prompt <= n_own);    // policy.h
}

static void a_request_that_cannot_go_on_is_told_why(UNUSED void **state)
{
    int n_wake = 0;
    struct error why;
    struct policy_state look;
    struct policy *p = policy_make(&n_wake);
    struct generator *g = generator_make(p);
    struct serve_job *failed = job_make(5, 2, 20), *left = job_make(5, 2, 20), *ended = job_make(5, 2, 20), *order;
    policy_state(p, &look);
    assert_true(look.failed);    // there is no generator
    policy_attach(p, g);
    assert_true(policy_submit(p, failed, &err));
    step(p, g);
    error_set(&why, ERR_NO_MEMORY, "no memory");
    policy_feed(p);
    generator_clear(g);    // as a failed step leaves it
    policy_stepped(p, &why);
    assert_true(failed->http.done && failed->failed);
    assert_string_equal(failed->err.text, "no memory");

    assert_true(policy_submit(p, left, &err));
    step(p, g);
    policy_lift(p);
    policy_leave(p, left);
    assert_true(policy_wants(p));
    policy_feed(p);
    assert_true(left->http.done && generator_idle(g));

    assert_non_null(order = serve_job_new(JOB_UPDATE, &err));
    assert_true(policy_submit(p, order, &err));
    assert_true(policy_submit(p, ended, &err));
    step(p, g);
    assert_true(order->http.done && order->failed && !ended->http.done);
    policy_end(p);
    assert_true(ended->http.done && ended->choice[0].end == CHOICE_ABORT && ended->choice[0].n_tok > 0);
    struct serve_job *late = job_make(5, 1, 1);
    assert_false(policy_submit(p, late, &err));
    assert_int_equal(err.code, ERR_CLOSED);
    struct serve_job *all[] = { failed, left, ended, order, late };
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        serve_job_drop(all[i]);
    policy_free(p);
    generator_free(g);
}

/* ---- lent weights: the trainer is this thread, the policy has its own */
#define LIMIT_MS 60000
static char lent_dir[] = "/tmp/lent-XXXXXX", lent_path[64], board_path[64];

struct lender {
    struct model *weights;    // the trainer's
    struct board *board;
};

/* A trainer whose file readers cannot see yet. */
static struct lender lender_start(int64_t version)
{
    struct lender l = { .weights = model_new_like(model, &err) };
    if (!l.weights || !model_weights_copy(l.weights, model, &err) || !(l.board = board_new(board_path, version, &err)))
        fail_msg("%s", err.text);
    return l;
}

static void lender_tell(const struct lender *l)
{
    const struct mem_handle *h = model_share(l->weights, &err);
    if (!h)
        fail_msg("%s", err.text);
    struct lent_file f = { .model = "/m", .tokenizer = "/m", .device = "cpu:0", .dtype = DT_F32, .max_seq_tok = SEQ_TOK, .handle = *h };
    snprintf(f.board, sizeof f.board, "%s", board_path);
    assert_true(lent_file_write(&f, l->weights, lent_path, &err));
}

static struct lender lender_make(int64_t version)
{
    struct lender l = lender_start(version);
    lender_tell(&l);
    return l;
}

static void lender_end(struct lender *l)
{
    board_free(l->board);
    model_free(l->weights);
}

static void weights_change(const struct lender *l)
{
    size_t size_bytes;
    float *w = model_weights(l->weights, &size_bytes);
    for (size_t i = 0; i < size_bytes / sizeof *w; i++)
        w[i] *= 0.5f;
}

struct borrower {
    struct device *dev;    // the policy's thread drives it
    struct model *model;
    struct lent *lent;
    struct policy *policy;
};

static struct borrower borrower_make(void)
{
    struct borrower b = { .dev = device_new("cpu:0", 1, &err) };
    if (!(b.lent = lent_open(lent_path, &err)) || !(b.model = model_new_shape(model_config(model), b.dev, DT_F32, &err))
        || !model_attach(b.model, &lent_about(b.lent)->handle, &err))
        fail_msg("%s", err.text);
    struct policy_config c = {
        .lent = b.lent, .model = b.model, .tokenizer = tokenizer, .max_seq = GUESTS, .max_seq_tok = SEQ_TOK, .max_queue = 64
    };
    if (!(b.policy = policy_new(&c, &err)))
        fail_msg("%s", err.text);
    return b;
}

static void borrower_end(struct borrower *b)
{
    policy_free(b->policy);
    lent_free(b->lent);
    model_free(b->model);
    device_free(b->dev);
}

/* Is it done, or has its first sample, if it has one, this many tokens? */
static bool job_has(struct serve_job *j, int64_t n_tok)
{
    pthread_mutex_lock(&j->http.lock);
    bool has = j->http.done || (j->choice && j->choice[0].n_tok >= n_tok);
    pthread_mutex_unlock(&j->http.lock);
    return has;
}

static void job_wait(struct serve_job *j, int64_t n_tok)
{
    int64_t end = clock_ms() + LIMIT_MS;
    for (bool come = false; !come;) {
        assert_true(clock_ms() < end);
        come = job_has(j, n_tok);
        if (!come)
            usleep(200);
    }
}

/* Wait until its first sample has this many tokens; returns with its lock, without which the policy's thread cannot go on. */
static void job_stop(struct serve_job *j, int64_t n_tok)
{
    int64_t end = clock_ms() + LIMIT_MS;
    for (;;) {
        pthread_mutex_lock(&j->http.lock);
        if (j->choice && j->choice[0].n_tok >= n_tok)
            break;
        pthread_mutex_unlock(&j->http.lock);
        assert_true(clock_ms() < end);
        usleep(200);
    }
    assert_false(j->http.done);
}

static struct serve_job *job_run(struct borrower *b, int n, int n_new)
{
    struct serve_job *j = job_make(21, n, n_new);
    assert_true(policy_submit(b->policy, j, &err));
    job_wait(j, INT64_MAX);
    return j;
}

static void versions_are(const struct serve_job *j, int32_t version)
{
    if (j->failed)
        fail_msg("%s", j->err.text);
    for (int64_t i = 0; i < j->n_choice; i++)
        for (int64_t t = 0; t < j->choice[i].n_tok; t++)
            assert_int_equal(j->choice[i].version[t], version);
}

static void what_is_under_way_is_finished_before_lent_weights_change(UNUSED void **state)
{
    struct lender l = lender_make(0);
    struct borrower b = borrower_make();
    struct serve_job *want = job_run(&b, 3 * GUESTS, 60), *j = job_make(21, 3 * GUESTS, 60), *late = job_make(21, 3 * GUESTS, 60);
    assert_true(policy_submit(b.policy, j, &err));
    job_wait(j, 5);    // a part of its samples is inside, and the others wait
    assert_int_equal(board_change(l.board, LIMIT_MS), 0);
    assert_true(job_has(j, INT64_MAX));
    assert_true(policy_submit(b.policy, late, &err));    // while they change
    weights_change(&l);
    board_changed(l.board, 1);
    job_wait(late, INT64_MAX);
    versions_are(want, 0);
    versions_are(j, 0);
    versions_are(late, 1);
    samples_equal(want, j);
    assert_true(memcmp(want->choice[0].logp, late->choice[0].logp, 5 * sizeof(float)) != 0);    // it is others that it has computed with
    struct serve_job *order = serve_job_new(JOB_UPDATE, &err);
    assert_true(order && policy_submit(b.policy, order, &err));
    job_wait(order, INT64_MAX);
    assert_true(order->failed && strstr(order->err.text, "trainer"));
    borrower_end(&b);
    struct serve_job *all[] = { want, j, late, order };
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        serve_job_drop(all[i]);
    lender_end(&l);
}

static void a_request_that_the_trainer_does_not_wait_for_fails(UNUSED void **state)
{
    struct lender l = lender_make(0);
    struct borrower b = borrower_make();
    struct serve_job *j = job_make(21, 3 * GUESTS, 100);
    assert_true(policy_submit(b.policy, j, &err));
    job_stop(j, 5);
    assert_int_equal(board_change(l.board, 0), 1);
    weights_change(&l);
    board_changed(l.board, 1);
    pthread_mutex_unlock(&j->http.lock);
    job_wait(j, INT64_MAX);
    assert_true(j->failed && j->err.code == ERR_CLOSED);
    assert_non_null(strstr(j->err.text, "ask again"));
    for (int64_t i = 0; i < j->n_choice; i++)    // what it has was drawn before
        for (int64_t t = 0; t < j->choice[i].n_tok; t++)
            assert_int_equal(j->choice[i].version[t], 0);
    struct serve_job *again = job_run(&b, 2, 20);
    versions_are(again, 1);
    borrower_end(&b);
    serve_job_drop(j);
    serve_job_drop(again);
    lender_end(&l);
}

/* Until the policy's trainer is lost with these words, or, without any, there again. */
static void lender_wait(const struct borrower *b, const char *lost)
{
    struct policy_state look = { 0 };
    int64_t end = clock_ms() + LIMIT_MS;
    do {
        assert_true(clock_ms() < end);
        usleep(200);
        policy_state(b->policy, &look);
    } while (look.failed != (lost != NULL) || (lost && !strstr(look.err.text, lost)));
}

static void a_trainer_that_has_gone_is_said_and_its_successor_found(UNUSED void **state)
{
    struct lender l = lender_make(0);
    struct borrower b = borrower_make();
    struct serve_job *before = job_run(&b, 2, 20), *j = job_make(21, 3 * GUESTS, 100);
    struct policy_state look = { 0 };
    assert_true(policy_submit(b.policy, j, &err));
    job_stop(j, 5);
    lender_end(&l);
    pthread_mutex_unlock(&j->http.lock);
    job_wait(j, INT64_MAX);
    assert_true(j->failed && strstr(j->err.text, "has gone"));
    lender_wait(&b, "has gone");
    struct serve_job *refused = job_run(&b, 1, 1);
    assert_true(refused->failed && strstr(refused->err.text, "has gone"));
    l = lender_make(7);
    lender_wait(&b, NULL);
    policy_state(b.policy, &look);
    assert_int_equal(look.version, 7);
    struct serve_job *after = job_run(&b, 2, 20);
    versions_are(after, 7);
    samples_equal(before, after);
    borrower_end(&b);
    struct serve_job *all[] = { before, j, refused, after };
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        serve_job_drop(all[i]);
    lender_end(&l);
}

static void a_board_without_room_is_joined_when_another_server_has_left(UNUSED void **state)
{
    struct lender l = lender_make(0);
    struct borrower b = borrower_make();
    struct board *others[BOARD_READERS];
    lender_end(&l);
    lender_wait(&b, "has gone");
    l = lender_start(7);
    for (int i = 0; i < BOARD_READERS; i++)
        assert_non_null(others[i] = board_join(board_path, &err));
    lender_tell(&l);
    lender_wait(&b, "64 servers compute with the weights");
    struct serve_job *refused = job_run(&b, 1, 1);
    assert_true(refused->failed && strstr(refused->err.text, "answered again when one of them ends"));
    board_free(others[5]);
    lender_wait(&b, NULL);
    struct serve_job *after = job_run(&b, 2, 20);
    versions_are(after, 7);
    borrower_end(&b);
    serve_job_drop(refused);
    serve_job_drop(after);
    for (int i = 0; i < BOARD_READERS; i++)
        if (i != 5)
            board_free(others[i]);
    lender_end(&l);
}

static int lent_setup(void **state)
{
    if (!mkdtemp(lent_dir))
        return 1;
    snprintf(lent_path, sizeof lent_path, "%s/lent.json", lent_dir);
    snprintf(board_path, sizeof board_path, "%s/lent.json.board", lent_dir);
    return model_setup(state);
}

static int lent_teardown(void **state)
{
    return (int)!dir_remove(lent_dir, &err) + model_teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_guest_that_was_lifted_out_draws_what_it_would_have_drawn),
        cmocka_unit_test(guests_change_no_token_of_the_run_and_run_few_prompts_beside_it),
        cmocka_unit_test(a_request_that_cannot_go_on_is_told_why),
    };
    const struct CMUnitTest lent[] = {
        cmocka_unit_test(what_is_under_way_is_finished_before_lent_weights_change),
        cmocka_unit_test(a_request_that_the_trainer_does_not_wait_for_fails),
        cmocka_unit_test(a_trainer_that_has_gone_is_said_and_its_successor_found),
        cmocka_unit_test(a_board_without_room_is_joined_when_another_server_has_left),
    };
    return cmocka_run_group_tests(tests, model_setup, model_teardown) + cmocka_run_group_tests(lent, lent_setup, lent_teardown);
}
