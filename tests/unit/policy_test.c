/* Requests in a run: guests of a generator that has items of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/ops.h"
#include "tests/unit/ascii_tokenizer.h"
#include "workers/engine/model/model.h"
#include "workers/engine/sampler/generator.h"
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
    static const struct model_config config = {
        .family = FAMILY_QWEN2,
        .n_layer = 2,
        .d_model = 32,
        .n_head = 4,
        .n_kv_head = 2,
        .d_head = 16,
        .d_ff = 64,
        .vocab = 256,
        .max_pos = 512,
        .rms_eps = 1e-6f,
        .rope.theta = 1e4,
        .tied = true,
        .qkv_bias = true,
        .bos = -1,
        .initializer_range = 0.3,
    };
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
        const struct choice *x = &a->choice[i], *y = &b->choice[i];
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
        for (int round = 1; !j->done; round++) {
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
        *n_guest_prompt += 40 * job[i]->done;
    for (round++; n_done < n_job; round++) {    // the others have their turn when the run pauses
        assert_true(round < 2000);
        step(p, g);
        n_done = 0;
        for (int i = 0; i < n_job; i++)
            n_done += job[i]->done;
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
    assert_true(failed->done && failed->failed);
    assert_string_equal(failed->err.text, "no memory");

    assert_true(policy_submit(p, left, &err));
    step(p, g);
    policy_lift(p);
    policy_leave(p, left);
    assert_true(policy_wants(p));
    policy_feed(p);
    assert_true(left->done && generator_idle(g));

    assert_non_null(order = serve_job_new(JOB_UPDATE, &err));
    assert_true(policy_submit(p, order, &err));
    assert_true(policy_submit(p, ended, &err));
    step(p, g);
    assert_true(order->done && order->failed && !ended->done);
    policy_end(p);
    assert_true(ended->done && ended->choice[0].end == CHOICE_ABORT && ended->choice[0].n_tok > 0);
    struct serve_job *late = job_make(5, 1, 1);
    assert_false(policy_submit(p, late, &err));
    assert_int_equal(err.code, ERR_CLOSED);
    struct serve_job *all[] = { failed, left, ended, order, late };
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        serve_job_drop(all[i]);
    policy_free(p);
    generator_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_guest_that_was_lifted_out_draws_what_it_would_have_drawn),
        cmocka_unit_test(guests_change_no_token_of_the_run_and_run_few_prompts_beside_it),
        cmocka_unit_test(a_request_that_cannot_go_on_is_told_why),
    };
    return cmocka_run_group_tests(tests, model_setup, model_teardown);
}
