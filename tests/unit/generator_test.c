#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/ops.h"
#include "tests/unit/small_model.h"
#include "workers/engine/model/model.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/text/tokenizer.h"
#include "workers/engine/pass/pass.h"

/* Everything on cpu:0, or on OPS_DEVICE the tests that do not read the device's memory. */
enum {
    VOCAB = 97,
    N_ITEM = 9,
    SAMPLES = 4,
};
static struct error err;
static struct device *dev;
static struct model *model;
static int32_t prompt[N_ITEM][200];
static const int prompt_len[N_ITEM] = { 1, 5, 31, 32, 33, 64, 150, 2, 17 };
static const uint64_t seeds[SAMPLES] = { 11, 12, 13, 1000000007 };
static bool behind;      // of the engines made next
static int speculate;    // likewise
static struct watched {
    int32_t token[N_ITEM][SAMPLES][80];
    int n_tok[N_ITEM][SAMPLES];
    int end_after[N_ITEM];    // tokens; 0: as the item says
    int n_logits;             // tokens that came with logits
    int64_t n_cached;         // largest value reported with a token
} * watched;                  // NULL: no watch on the engines made next
static bool cached;           // the engines made next have a prefix cache

static int model_make(const struct model_config *config)
{
    uint32_t x = 7;
    for (int i = 0; i < N_ITEM; i++)
        for (int k = 0; k < prompt_len[i]; k++)
            prompt[i][k] = (int32_t)((x = x * 1664525 + 1013904223) >> 8) % VOCAB;
    dev = device_new(getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0", 1, &err);
    model = dev ? model_new_random(config, 5, dev, DT_F32, &err) : NULL;
    if (!model)
        print_error("%s\n", err.text);
    return model == NULL;
}

static int model_setup(UNUSED void **state)
{
    const struct model_config config = small_model(VOCAB);
    return model_make(&config);
}

/* One that keeps a state of each sequence beside the pages. */
static int hybrid_setup(UNUSED void **state)
{
    struct model_config config = small_model(VOCAB);
    config.family = FAMILY_QWEN3_5;
    config.attn_gate = true;
    config.delta.heads = (struct delta_heads){ 1, 2, 16, 16, false };
    config.delta.layers[0] = 1;
    return model_make(&config);
}

static int model_teardown(UNUSED void **state)
{
    model_free(model);
    device_free(dev);
    return 0;
}

static bool watch_token(void *ctx, const struct drawn *d);

static struct generator *engine(int64_t max_seq, int64_t n_page, const struct tokenizer *tokenizer)
{
    struct generator_config c = { .model = model,
                                  .tokenizer = tokenizer,
                                  .max_seq = max_seq,
                                  .max_item = N_ITEM,
                                  .max_seq_tok = 256,
                                  .prefill_tok = 64,
                                  .version = 3,
                                  .behind = behind ? BEHIND_ALWAYS : BEHIND_NEVER,
                                  .speculate = speculate,
                                  .prefix_cache = cached,
                                  .watch = watched ? watch_token : NULL,
                                  .watch_ctx = watched,
                                  .kv_bytes = n_page ? (size_t)n_page * kv_pool_page_bytes(model) : 0 };
    struct generator *g = generator_new(&c, &err);
    if (!g)
        fail_msg("%s", err.text);
    return g;
}

/* One that draws a token per sample and round, neither more nor fewer. */
static struct generator *plain_engine(int64_t max_seq, int64_t n_page, const struct tokenizer *tokenizer)
{
    int was = speculate;
    speculate = SPECULATE_NEVER;
    struct generator *g = engine(max_seq, n_page, tokenizer);
    speculate = was;
    return g;
}

static struct generator_item item_of(int i)
{
    struct generator_item item = { .item = 100 + i,
                                   .prompt_row = i,
                                   .prompt = prompt[i],
                                   .n_prompt = prompt_len[i],
                                   .n_sample = SAMPLES,
                                   .seed = seeds,
                                   .sampling = SAMPLING_DEFAULT };
    item.sampling.temperature = 0.7f + 0.1f * (float)(i % 5);
    item.sampling.max_new_tok = 3 + 7 * i;
    sampling_add_stop(&item.sampling, 5);
    return item;
}

static void submit(struct generator *g, const struct generator_item *item)
{
    if (!generator_submit(g, item, &err))
        fail_msg("%s", err.text);
}

static void pages_all_free(const struct generator *g)
{
    struct generator_stats s;
    generator_stats(g, &s);
    assert_int_equal(s.n_free_page, s.n_page);
    assert_int_equal(s.n_running_seq, 0);
}

/* Run until idle; groups by item - 100. */
static void run_all(struct generator *g, struct group *out[N_ITEM])
{
    for (int round = 0; !generator_idle(g); round++) {
        assert_true(round < 10000);
        if (!generator_step(g, &err))
            fail_msg("%s", err.text);
        for (struct group *group; (group = generator_poll(g));) {
            assert_in_range(group->item, 100, 100 + N_ITEM - 1);
            assert_null(out[group->item - 100]);
            out[group->item - 100] = group;
        }
    }
    pages_all_free(g);
}

static void groups_same(const struct group *a, const struct group *b)
{
    assert_non_null(a);
    assert_non_null(b);
    assert_int_equal(a->n_tok, b->n_tok);
    assert_memory_equal(a->token, b->token, (size_t)a->n_tok * sizeof *a->token);
    assert_memory_equal(a->logp, b->logp, (size_t)a->n_tok * sizeof *a->logp);
    assert_int_equal(a->n_sample, b->n_sample);
    for (int i = 0; i < a->n_sample; i++) {
        assert_int_equal(a->sample[i].n_tok, b->sample[i].n_tok);
        assert_int_equal(a->sample[i].first_tok, b->sample[i].first_tok);
        assert_int_equal(a->sample[i].finish, b->sample[i].finish);
    }
}

static void groups_free(struct group *g[N_ITEM])
{
    for (int i = 0; i < N_ITEM; i++)
        group_free(g[i]);
}

/* Check a token and its log-prob: log softmax of the logits at the item's temperature, summed in double. */
static bool watch_token(void *ctx, const struct drawn *d)
{
    struct watched *w = ctx;
    int64_t i = d->prompt_row;
    int *n = &w->n_tok[i][d->sample];
    w->n_cached = MAX(w->n_cached, d->n_cached);
    w->token[i][d->sample][(*n)++] = d->id;
    if (d->logits) {
        double sum = 0, t = item_of((int)i).sampling.temperature;
        for (int k = 0; k < VOCAB; k++)
            sum += exp((d->logits[k] - d->logits[d->id]) / t);
        assert_float_equal(d->logp, -log(sum), 1e-5);    // fp32 logits of about 10, and their sum
        w->n_logits++;
    }
    return *n == w->end_after[i];
}

/* Every item alone, one sample at a time, the host never behind: what all other arrangements must equal. */
static void reference(struct group *out[N_ITEM])
{
    bool was = behind;
    behind = false;
    struct generator *g = plain_engine(1, 0, NULL);
    behind = was;
    memset(out, 0, N_ITEM * sizeof *out);
    for (int i = 0; i < N_ITEM; i++) {
        struct generator_item item = item_of(i);
        submit(g, &item);
        run_all(g, out);
    }
    generator_free(g);
}

static void a_rollout_does_not_depend_on_its_neighbours(UNUSED void **state)
{
    static const struct {
        int64_t max_seq, n_page;
        bool backwards;
        const char *why;
        bool warm;
    } cases[] = {
        { 1, 0, false, "one sample at a time" },
        { 3, 0, false, "groups never fit at once" },
        { 32, 0, false, "all together" },
        { 32, 0, true, "another order" },
        { 32, 9, false, "pages run out: samples of a started group wait" },
        { 5, 12, true, "both run out" },
        { 32, 9, false, "steps of every size have run before", .warm = true },
    };
    struct group *want[N_ITEM];
    reference(want);
    int n_stop = 0, n_length = 0;
    for (int i = 0; i < N_ITEM; i++)
        for (int k = 0; k < SAMPLES; k++)
            *(want[i]->sample[k].finish == FINISH_STOP ? &n_stop : &n_length) += 1;
    assert_true(n_stop > 0 && n_length > 0);    // otherwise the test would see only one kind of end
    for (size_t c = 0; c < ARRAY_SIZE(cases); c++) {
        struct generator *g = engine(cases[c].max_seq, cases[c].n_page, NULL);
        struct group *got[N_ITEM] = { NULL };
        if (cases[c].warm && !generator_warm(g, &err))
            fail_msg("%s", err.text);
        for (int i = 0; i < N_ITEM; i++) {
            struct generator_item item = item_of(cases[c].backwards ? N_ITEM - 1 - i : i);
            submit(g, &item);
        }
        run_all(g, got);
        for (int i = 0; i < N_ITEM; i++)
            groups_same(got[i], want[i]);
        groups_free(got);
        generator_free(g);
    }
    groups_free(want);
}

static void items_may_arrive_while_others_run(UNUSED void **state)
{
    struct group *want[N_ITEM], *got[N_ITEM] = { NULL };
    reference(want);
    struct generator *g = engine(7, 0, NULL);
    for (int i = 0; i < N_ITEM; i++) {
        struct generator_item item = item_of(N_ITEM - 1 - i);
        submit(g, &item);
        for (int k = 0; k < 5; k++)
            assert_true(generator_step(g, &err));
    }
    run_all(g, got);
    for (int i = 0; i < N_ITEM; i++)
        groups_same(got[i], want[i]);
    groups_free(got);
    groups_free(want);
    generator_free(g);
}

/* Prompt and completion of a group's samples end to end, with targets for the completions. */
struct packed {
    int32_t token[4096], target[4096], cu[SAMPLES + 1];
    float temperature[4096], logp[4096];
};

static struct model_batch group_pack(struct packed *p, const struct group *g)
{
    int32_t n = 0;
    for (int k = 0; k < SAMPLES; k++) {
        const struct sample *s = &g->sample[k];
        int32_t len = (int32_t)(g->n_prompt + s->n_tok);
        p->cu[k] = n;
        memcpy(p->token + n, g->prompt, (size_t)g->n_prompt * sizeof *p->token);
        memcpy(p->token + n + g->n_prompt, g->token + s->first_tok, (size_t)s->n_tok * sizeof *p->token);
        for (int32_t t = 0; t < len; t++) {
            p->target[n + t] = t >= g->n_prompt - 1 && t < len - 1 ? p->token[n + t + 1] : -1;
            p->temperature[n + t] = g->temperature;
        }
        n += len;
    }
    p->cu[SAMPLES] = n;
    return (struct model_batch){ .n_seq = SAMPLES, .n_tok = n, .token = p->token, .cu_tok = p->cu };
}

static void packed_logp_is_recorded(const struct packed *p, const struct group *g)
{
    for (int k = 0; k < SAMPLES; k++) {
        const struct sample *s = &g->sample[k];
        assert_memory_equal(p->logp + p->cu[k] + g->n_prompt - 1, g->logp + s->first_tok, (size_t)s->n_tok * sizeof *p->logp);
    }
}

/* The agreement that importance ratios rest on: scoring and training over packed prompts and completions give the bytes
 * recorded while sampling. */
static void recorded_log_probs_are_those_of_scoring_and_training_to_the_bit(UNUSED void **state)
{
    static struct packed p;
    struct group *g[N_ITEM];
    reference(g);
    struct run_limits limits = { .max_tok = 4096, .max_seq = SAMPLES, .max_seq_tok = 512 };
    struct model_run *score = model_run_new(model, &limits, &err);
    limits.train = true;
    struct model_run *train = model_run_new(model, &limits, &err);
    assert_non_null(score);
    assert_non_null(train);
    for (int i = 0; i < N_ITEM; i++) {
        struct model_batch batch = group_pack(&p, g[i]);
        assert_true(model_score(score, &batch, p.target, p.temperature, p.logp, NULL, &err));
        packed_logp_is_recorded(&p, g[i]);
        memset(p.logp, 0, sizeof p.logp);
        struct token_loss loss = { .target = p.target, .temperature = p.temperature, .logp = p.logp };
        assert_true(model_forward_train(train, &batch, &err));
        assert_true(model_head(train, &loss, &err));
        packed_logp_is_recorded(&p, g[i]);
    }
    model_run_free(score);
    model_run_free(train);
    groups_free(g);
}

/* One buffer of weights in a process: what the optimizer writes there is what the next item is sampled with. */
static void weights_replaced_in_place_are_those_of_the_next_item(UNUSED void **state)
{
    struct group *before[N_ITEM] = { NULL }, *after[N_ITEM] = { NULL }, *want[N_ITEM] = { NULL };
    struct model *keep = model_new_like(model, &err);
    assert_non_null(keep);
    assert_true(model_weights_copy(keep, model, &err));
    struct generator *g = engine(8, 0, NULL);
    struct generator_item item = item_of(5);
    submit(g, &item);
    run_all(g, before);
    size_t size;
    float *weight = model_weights(model, &size);
    for (size_t i = 0; i < size / sizeof *weight; i++)
        weight[i] *= 1.25f;
    assert_true(model_weights_changed(model, &err));
    assert_true(generator_version_set(g, 4, &err));
    submit(g, &item);
    run_all(g, after);
    generator_free(g);
    g = engine(1, 0, NULL);    // one that has never seen the old weights
    submit(g, &item);
    run_all(g, want);
    groups_same(after[5], want[5]);
    assert_int_equal(after[5]->weight_version, 4);
    assert_true(before[5]->n_tok != after[5]->n_tok
                || memcmp(before[5]->logp, after[5]->logp, (size_t)after[5]->n_tok * sizeof(float)) != 0);
    assert_true(model_weights_copy(model, keep, &err));
    groups_free(before);
    groups_free(after);
    groups_free(want);
    generator_free(g);
    model_free(keep);
}

static void weights_that_come_in_flight_are_recorded_token_by_token(UNUSED void **state)
{
    struct group *before[N_ITEM] = { NULL }, *got[N_ITEM] = { NULL };
    struct model *keep = model_new_like(model, &err);
    assert_non_null(keep);
    assert_true(model_weights_copy(keep, model, &err));
    struct generator *g = engine(8, 0, NULL);
    struct generator_item item = item_of(5), late = item_of(2);
    item.sampling.ignore_eos = late.sampling.ignore_eos = true;
    submit(g, &item);
    submit(g, &late);
    run_all(g, before);
    generator_free(g);
    g = plain_engine(SAMPLES, 0, NULL);    // no room for the second item meanwhile
    submit(g, &item);
    submit(g, &late);
    for (int round = 0; round < 9; round++)
        assert_true(generator_step(g, &err));
    size_t size;
    float *weight = model_weights(model, &size);
    for (size_t i = 0; i < size / sizeof *weight; i++)
        weight[i] *= 1.25f;
    assert_true(model_weights_changed(model, &err));
    generator_version_update(g, 5);    // was 3
    run_all(g, got);
    assert_int_equal(got[5]->weight_version, 3);
    assert_int_equal(got[2]->weight_version, 5);
    for (int64_t k = 0; k < got[2]->n_tok; k++)
        assert_int_equal(got[2]->newer[k], 0);
    for (int i = 0; i < SAMPLES; i++) {
        const struct sample *s = &got[5]->sample[i];
        const int32_t *newer = got[5]->newer + s->first_tok;
        int64_t n_old = 0, at = s->first_tok, was = before[5]->sample[i].first_tok;
        while (n_old < s->n_tok && newer[n_old] == 0)
            n_old++;
        assert_in_range(n_old, 9, 10);    // the prompt's token, and one a round; one step behind, the last was on its way
        for (int64_t k = n_old; k < s->n_tok; k++)
            assert_int_equal(newer[k], 2);
        assert_int_equal(s->n_tok, item.sampling.max_new_tok);
        assert_memory_equal(got[5]->token + at, before[5]->token + was, (size_t)n_old * 4);
        assert_memory_equal(got[5]->logp + at, before[5]->logp + was, (size_t)n_old * 4);
        assert_memory_not_equal(got[5]->logp + at + n_old, before[5]->logp + was + n_old, 4);
    }
    assert_true(model_weights_copy(model, keep, &err));
    groups_free(before);
    groups_free(got);
    generator_free(g);
    model_free(keep);
}

static void greedy_samples_are_all_the_same(UNUSED void **state)
{
    struct generator *g = engine(8, 0, NULL);
    struct group *out[N_ITEM] = { NULL };
    struct generator_item item = item_of(4);
    item.sampling.temperature = 0;
    submit(g, &item);
    run_all(g, out);
    const struct group *group = out[4];
    for (int k = 1; k < SAMPLES; k++) {
        assert_int_equal(group->sample[k].n_tok, group->sample[0].n_tok);
        assert_memory_equal(group->token + group->sample[k].first_tok, group->token, (size_t)group->sample[0].n_tok * 4);
    }
    groups_free(out);
    generator_free(g);
}

static void a_group_says_how_it_was_made(UNUSED void **state)
{
    struct generator *g = engine(8, 0, NULL);
    struct group *out[N_ITEM] = { NULL };
    struct generator_item item = item_of(2);
    item.rollout_step = 9;
    submit(g, &item);
    run_all(g, out);
    assert_int_equal(out[2]->item, 102);
    assert_int_equal(out[2]->prompt_row, 2);
    assert_int_equal(out[2]->rollout_step, 9);
    assert_int_equal(out[2]->weight_version, 3);
    assert_int_equal(out[2]->n_prompt, prompt_len[2]);
    assert_memory_equal(out[2]->prompt, prompt[2], (size_t)prompt_len[2] * 4);
    assert_true(out[2]->temperature == item.sampling.temperature);
    for (int k = 0; k < SAMPLES; k++) {
        const struct sample *s = &out[2]->sample[k];
        assert_int_equal(s->seed, seeds[k]);
        assert_int_equal(s->score, SCORE_NONE);
        bool ended = out[2]->token[s->first_tok + s->n_tok - 1] == 5;
        assert_int_equal(s->finish, ended ? FINISH_STOP : FINISH_LENGTH);
        assert_true(ended || s->n_tok == item.sampling.max_new_tok);
    }
    groups_free(out);
    generator_free(g);
}

static void what_the_model_was_run_for_is_counted(UNUSED void **state)
{
    struct generator *g = plain_engine(8, 0, NULL);
    struct group *out[N_ITEM] = { NULL };
    struct generator_item item = item_of(1);    // 5 prompt tokens
    struct generator_stats s;
    item.n_sample = 2;
    item.sampling.max_new_tok = 4;
    item.sampling.ignore_eos = true;
    submit(g, &item);
    run_all(g, out);
    generator_stats(g, &s);
    /* the first token comes from the prompt's own run, the last one is never run: 3 decode steps of 2 rows, which see 6, 7 and 8 tokens */
    assert_int_equal(s.n_decode, 3);
    assert_int_equal(s.n_kv_tok, 2 * (6 + 7 + 8));
    assert_int_equal(s.n_run_tok, 5 + 2 * 3);
    assert_int_equal(s.n_seen_tok, 1 + 2 + 3 + 4 + 5 + 2 * (6 + 7 + 8));
    groups_free(out);
    generator_free(g);
}

static void a_sample_that_is_too_long_stops_its_item_alone(UNUSED void **state)
{
    struct group *want[N_ITEM], *out[N_ITEM] = { NULL };
    struct generator *g = engine(4, 0, NULL);    // fewer rows than samples: some wait
    struct stopped_item stopped[N_ITEM];
    int n = 0;
    reference(want);
    for (int i = 0; i < N_ITEM; i++) {
        struct generator_item item = item_of(i);
        item.rollout_step = i % 2;
        submit(g, &item);
    }
    for (int round = 0; !generator_idle(g); round++) {
        assert_true(round < 10000);
        assert_true(generator_step(g, &err));
        while (generator_stop(g, 1, 12, &stopped[n])) {
            assert_true(stopped[n].n_tok > 12 && stopped[n].n_tok <= (speculate == SPECULATE_ALWAYS ? 28 : 13));
            assert_true(stopped[n].n_drawn >= stopped[n].n_tok && stopped[n].version == 3);
            n++;
        }
        for (struct group *group; (group = generator_poll(g));)
            out[group->item - 100] = group;
    }
    pages_all_free(g);
    for (int i = 0; i < N_ITEM; i++) {
        bool too_long = false, is_stopped = false;
        for (int k = 0; k < SAMPLES; k++)
            too_long = too_long || (i % 2 && want[i]->sample[k].n_tok > 12);
        for (int k = 0; k < n; k++)
            is_stopped = is_stopped || stopped[k].item == 100 + i;
        if (is_stopped)
            assert_true(too_long && !out[i]);
        else
            groups_same(out[i], want[i]);
    }
    assert_true(n > 0);
    groups_free(want);
    groups_free(out);
    generator_free(g);
}

static void an_item_that_is_dropped_leaves_the_others_as_they_are(UNUSED void **state)
{
    struct group *want[N_ITEM], *out[N_ITEM] = { NULL };
    struct generator *g = engine(4, 0, NULL);    // the first runs, the last waits
    struct stopped_item dropped;
    reference(want);
    for (int i = 0; i < N_ITEM; i++) {
        struct generator_item item = item_of(i);
        submit(g, &item);
    }
    assert_true(generator_step(g, &err));
    for (int i = 0; i < N_ITEM; i += N_ITEM - 1) {
        assert_true(generator_drop_item(g, 100 + i, &dropped));
        assert_int_equal(dropped.item, 100 + i);
        assert_int_equal(dropped.n_drawn > 0, i == 0);
        assert_false(generator_drop_item(g, 100 + i, &dropped));
    }
    run_all(g, out);
    for (int i = 0; i < N_ITEM; i++) {
        if (i == 0 || i == N_ITEM - 1)
            assert_null(out[i]);
        else
            groups_same(out[i], want[i]);
    }
    pages_all_free(g);
    groups_free(want);
    groups_free(out);
    generator_free(g);
}

static void an_end_token_at_the_limit_is_a_stop_and_ignored_ones_go_on(UNUSED void **state)
{
    struct generator *g = engine(8, 0, NULL);
    struct group *out[N_ITEM] = { NULL };
    struct generator_item item = item_of(1);
    item.sampling.max_new_tok = 1;
    item.sampling.n_stop_token = 0;
    submit(g, &item);
    run_all(g, out);
    assert_int_equal(out[1]->sample[0].finish, FINISH_LENGTH);
    int32_t first = out[1]->token[0];
    group_free(out[1]);
    out[1] = NULL;
    sampling_add_stop(&item.sampling, first);
    submit(g, &item);
    run_all(g, out);
    assert_int_equal(out[1]->sample[0].finish, FINISH_STOP);    // not cut: it ended exactly there
    group_free(out[1]);
    out[1] = NULL;
    item.sampling.ignore_eos = true;
    item.sampling.max_new_tok = 12;
    submit(g, &item);
    run_all(g, out);
    for (int k = 0; k < SAMPLES; k++)
        assert_int_equal(out[1]->sample[k].n_tok, 12);
    assert_int_equal(out[1]->token[0], first);
    groups_free(out);
    generator_free(g);
}

static void no_end_is_drawn_before_the_fewest_tokens(UNUSED void **state)
{
    struct group *want[N_ITEM] = { NULL }, *got[N_ITEM] = { NULL };
    struct generator *g = engine(32, 9, NULL), *plain = engine(32, 0, NULL);
    int n_later = 0;
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < N_ITEM; i++) {
            struct generator_item item = item_of(i);
            for (int32_t id = 30; id < 45; id++)    // otherwise ends would be rare
                sampling_add_stop(&item.sampling, id);
            item.sampling.min_new_tok = round && i % 3 ? item.sampling.max_new_tok * (i % 3) / 2 : 0;    // in the same batch as others
            submit(round ? g : plain, &item);
        }
    run_all(plain, want);
    run_all(g, got);
    for (int i = 0; i < N_ITEM; i++) {
        int32_t most = (int32_t)item_of(i).sampling.max_new_tok, fewest = i % 3 ? most * (i % 3) / 2 : 0;
        if (fewest == 0)
            groups_same(want[i], got[i]);    // a neighbour's rule changes nothing
        for (int k = 0; k < SAMPLES; k++) {
            const struct sample *s = &got[i]->sample[k], *w = &want[i]->sample[k];
            const int32_t *token = got[i]->token + s->first_tok;
            assert_true(s->n_tok >= MIN(fewest + 1, most) || fewest == 0);
            for (int64_t t = 0; t < fewest; t++)
                assert_true(token[t] != 5 && (token[t] < 30 || token[t] >= 45));
            n_later += s->n_tok > w->n_tok;
        }
    }
    assert_true(n_later > 0);
    groups_free(want);
    groups_free(got);
    generator_free(g);
    generator_free(plain);
}

static void log_probs_stay_those_of_all_tokens_where_ends_are_not_drawn(UNUSED void **state)
{
    struct watched seen = { .n_logits = 0 };
    struct group *out[N_ITEM] = { NULL };
    watched = &seen;
    struct generator *g = engine(8, 0, NULL);
    watched = NULL;
    struct generator_item item = item_of(4);
    for (int32_t id = 30; id < 45; id++)
        sampling_add_stop(&item.sampling, id);
    item.sampling.min_new_tok = item.sampling.max_new_tok;
    item.sampling.ignore_eos = true;
    item.keep_logits = true;    // watch_token checks each log-prob against the whole row
    submit(g, &item);
    run_all(g, out);
    assert_int_equal(seen.n_logits, SAMPLES * item.sampling.max_new_tok);
    for (int64_t t = 0; t < out[4]->n_tok; t++)    // ignored as ends, but not drawn
        assert_true(out[4]->token[t] != 5 && (out[4]->token[t] < 30 || out[4]->token[t] >= 45));
    groups_free(out);
    item.sampling.min_new_tok++;
    assert_false(generator_submit(g, &item, &err));
    assert_int_equal(err.code, ERR_USAGE);
    generator_free(g);
}

static void samples_of_a_prompt_may_be_split_over_items(UNUSED void **state)
{
    struct generator *g = engine(8, 0, NULL);
    struct group *whole[N_ITEM] = { NULL }, *part[N_ITEM] = { NULL };
    struct generator_item item = item_of(6);
    submit(g, &item);
    run_all(g, whole);
    item.n_sample = 1;
    item.first_sample = 2;
    item.seed = seeds + 2;
    submit(g, &item);
    run_all(g, part);
    const struct sample *s = &whole[6]->sample[2];
    assert_int_equal(part[6]->n_tok, s->n_tok);
    assert_memory_equal(part[6]->token, whole[6]->token + s->first_tok, (size_t)s->n_tok * 4);
    assert_memory_equal(part[6]->logp, whole[6]->logp + s->first_tok, (size_t)s->n_tok * 4);
    groups_free(whole);
    groups_free(part);
    generator_free(g);
}

static void what_can_never_run_is_refused_with_its_sizes(UNUSED void **state)
{
    struct generator *g = engine(4, 4, NULL);
    struct generator_item item = item_of(6);
    item.sampling.max_new_tok = 107;    // 150 + 107 > 256
    assert_false(generator_submit(g, &item, &err));
    assert_int_equal(err.code, ERR_SHAPE);
    assert_non_null(strstr(err.text, "107"));
    item.sampling.max_new_tok = 100;           // fits a sequence, not the pool of 4 pages
    if (generator_submit(g, &item, &err)) {    // pages larger than this test thinks
        struct generator_stats s;
        generator_stats(g, &s);
        assert_true(s.page_tok * s.n_page >= 250);
    } else {
        assert_non_null(strstr(err.text, "pages"));
    }
    generator_clear(g);
    item = item_of(0);
    int32_t bad = VOCAB;
    item.prompt = &bad;
    assert_false(generator_submit(g, &item, &err));
    assert_int_equal(err.code, ERR_DATA);
    item = item_of(0);
    item.sampling.top_p = 0;
    assert_false(generator_submit(g, &item, &err));
    assert_int_equal(err.code, ERR_USAGE);
    item = item_of(0);
    strcpy(item.sampling.stop_string, "x");
    assert_false(generator_submit(g, &item, &err));
    item = item_of(0);
    for (int i = 0; i < N_ITEM; i++)
        submit(g, &item);
    assert_false(generator_submit(g, &item, &err));
    assert_int_equal(err.code, ERR_FULL);
    assert_int_equal(generator_clear(g), N_ITEM);
    pages_all_free(g);
    generator_free(g);
}

static void clearing_in_the_middle_frees_all_pages(UNUSED void **state)
{
    struct generator *g = engine(6, 14, NULL);
    for (int i = 0; i < N_ITEM; i++) {
        struct generator_item item = item_of(i);
        submit(g, &item);
    }
    for (int k = 0; k < 4; k++)
        assert_true(generator_step(g, &err));
    assert_int_equal(generator_clear(g), N_ITEM);
    pages_all_free(g);
    assert_true(generator_idle(g));
    generator_free(g);
}

static void a_watch_sees_every_token_and_may_end_a_sample(UNUSED void **state)
{
    struct group *want[N_ITEM] = { NULL }, *got[N_ITEM] = { NULL };
    reference(want);
    watched = calloc(1, sizeof *watched);
    assert_non_null(watched);
    watched->end_after[4] = 2;
    struct generator *g = engine(6, 0, NULL);
    for (int i = 0; i < N_ITEM; i++) {
        struct generator_item item = item_of(i);
        item.keep_logits = i % 3 == 0;
        submit(g, &item);
    }
    run_all(g, got);
    int64_t n_logits = 0;
    for (int i = 0; i < N_ITEM; i++) {
        for (int k = 0; k < SAMPLES; k++) {
            const struct sample *a = &want[i]->sample[k], *b = &got[i]->sample[k];
            int64_t n = i == 4 ? MIN(a->n_tok, 2) : a->n_tok;
            assert_int_equal(b->n_tok, n);
            assert_int_equal(watched->n_tok[i][k], n);
            assert_memory_equal(got[i]->token + b->first_tok, want[i]->token + a->first_tok, (size_t)n * 4);
            assert_memory_equal(watched->token[i][k], want[i]->token + a->first_tok, (size_t)n * 4);
            assert_int_equal(b->finish, n < a->n_tok ? FINISH_STOP : a->finish);
            n_logits += i % 3 == 0 ? n : 0;
        }
    }
    assert_int_equal(watched->n_logits, n_logits);
    groups_free(want);
    groups_free(got);
    generator_free(g);
    free(watched);
    watched = NULL;
}

static void dropping_an_item_leaves_the_others_as_they_are(UNUSED void **state)
{
    struct group *want[N_ITEM] = { NULL };
    reference(want);
    for (int step = 0; step < 6; step++) {
        struct group *got[N_ITEM] = { NULL };
        struct generator *g = engine(6, 14, NULL);
        for (int i = 0; i < N_ITEM; i++) {
            struct generator_item item = item_of(i);
            submit(g, &item);
        }
        for (int k = 0; k < step; k++)
            assert_true(generator_step(g, &err));
        assert_int_equal(generator_drop(g, 6), 1);
        assert_int_equal(generator_drop(g, 8), 1);    // still waiting
        assert_int_equal(generator_drop(g, 8), 0);
        run_all(g, got);
        for (int i = 0; i < N_ITEM; i++) {
            if (i == 6 || i == 8)
                assert_null(got[i]);
            else
                groups_same(got[i], want[i]);
        }
        groups_free(got);
        generator_free(g);
    }
    groups_free(want);
}

static void every_item_submit(struct generator *g)
{
    for (int i = 0; i < N_ITEM; i++) {
        struct generator_item item = item_of(i);
        submit(g, &item);
    }
}

/* Run until idle; every group must be as in want. */
static void run_same(struct generator *g, struct group *want[N_ITEM])
{
    struct group *got[N_ITEM] = { NULL };
    for (int round = 0; !generator_idle(g); round++) {
        assert_true(round < 10000);
        if (!generator_step(g, &err))
            fail_msg("%s", err.text);
        for (struct group *group; (group = generator_poll(g));)
            got[group->prompt_row] = group;
    }
    for (int i = 0; i < N_ITEM; i++)
        groups_same(got[i], want[i]);
    groups_free(got);
}

/* Tokens of a prompt that a later one like it need not run: whole pages, without the last token, whose logits are wanted. */
static int64_t whole_pages(int64_t n_tok)
{
    return (n_tok - 1) / dev->kv_page_tok * dev->kv_page_tok;
}

static void prompts_that_begin_alike_run_only_what_is_new_to_the_same_bits(UNUSED void **state)
{
    struct group *want[N_ITEM] = { NULL };
    struct generator_stats s;
    reference(want);
    for (int64_t n_page = 0; n_page <= 14; n_page += 14) {    // enough, and so few that pages must be given up
        cached = true;
        struct generator *g = engine(6, n_page, NULL);
        cached = false;
        for (int again = 0; again < 3; again++) {
            every_item_submit(g);
            run_same(g, want);
        }
        generator_stats(g, &s);
        if (n_page == 0)
            assert_int_equal(s.n_cached_tok, 2 * (whole_pages(33) + whole_pages(64) + whole_pages(150)));
        assert_int_equal(generator_clear(g), 0);
        pages_all_free(g);    // the cache held the rest
        generator_free(g);
    }
    groups_free(want);
}

/* Samples of one item, alone in an engine. */
static struct group *item_run(struct generator *g, const struct generator_item *item)
{
    submit(g, item);
    while (!generator_idle(g))
        assert_true(generator_step(g, &err));
    struct group *out = generator_poll(g);
    assert_non_null(out);
    return out;
}

static void a_turn_finds_the_answer_of_the_one_before(UNUSED void **state)
{
    struct group *first[N_ITEM] = { NULL }, *out[3] = { NULL };
    int32_t turn[256];
    reference(first);
    const struct group *was = first[6];
    const struct sample *answer = &was->sample[1];
    int64_t n = was->n_prompt + answer->n_tok;
    memcpy(turn, was->prompt, (size_t)was->n_prompt * 4);
    memcpy(turn + was->n_prompt, was->token + answer->first_tok, (size_t)answer->n_tok * 4);
    turn[n++] = 11;
    turn[n++] = 12;
    struct generator_item begin = item_of(6), next = item_of(6);
    next.prompt = turn;
    next.n_prompt = n;
    next.sampling.max_new_tok = 20;
    for (int with = 0; with < 3; with++) {    // without a cache; with one; with one, and another salt
        struct generator_stats s;
        cached = with > 0;
        struct generator *g = engine(6, 0, NULL);
        cached = false;
        next.cache_salt = with == 2 ? 5 : 0;
        group_free(item_run(g, &begin));
        out[with] = item_run(g, &next);
        generator_stats(g, &s);
        assert_int_equal(s.n_cached_tok, with == 1 ? (n - 3) / 32 * 32 : 0);    // the answer's last token was drawn, not run
        generator_free(g);
    }
    groups_same(out[1], out[0]);
    groups_same(out[2], out[0]);
    for (int i = 0; i < 3; i++)
        group_free(out[i]);
    groups_free(first);
}

static void nothing_cached_survives_new_weights(UNUSED void **state)
{
    struct generator_stats s;
    cached = true;
    struct generator *g = engine(6, 0, NULL);
    cached = false;
    struct generator_item item = item_of(6);
    group_free(item_run(g, &item));
    group_free(item_run(g, &item));
    generator_stats(g, &s);
    assert_int_equal(s.n_cached_tok, 128);
    assert_true(generator_version_set(g, 9, &err));
    submit(g, &item);
    assert_true(generator_step(g, &err));
    generator_version_update(g, 9);    // while it runs, and by the same number: what it leaves is of two weights
    while (!generator_idle(g))
        assert_true(generator_step(g, &err));
    group_free(generator_poll(g));
    generator_stats(g, &s);
    assert_int_equal(s.n_cached_tok, 128);
    assert_int_equal(s.n_free_page, s.n_page);
    generator_free(g);
}

/* Items that go on to 80 tokens, which is more than what a generator expects that has seen only short ones. */
static struct generator_item long_item(int i)
{
    struct generator_item item = item_of(i);
    item.sampling.max_new_tok = 80;
    item.sampling.ignore_eos = i % 2 == 0;
    return item;
}

/* Teach g that samples are short: a group that ends after 3 tokens, several times. */
static void short_ones_run(struct generator *g)
{
    for (int k = 0; k < 4; k++) {
        struct generator_item item = item_of(0);
        submit(g, &item);
        while (!generator_idle(g))
            assert_true(generator_step(g, &err));
        group_free(generator_poll(g));
    }
}

/* With pages for everything at once, no sample is put back. */
static void long_reference(struct group *want[N_ITEM])
{
    struct generator_stats s;
    struct generator *g = plain_engine(36, 36 * 8, NULL);
    memset(want, 0, N_ITEM * sizeof *want);
    for (int i = 0; i < N_ITEM; i++) {
        struct generator_item item = long_item(i);
        submit(g, &item);
    }
    run_all(g, want);
    generator_stats(g, &s);
    assert_int_equal(s.n_put_back, 0);
    assert_int_equal(s.n_again_tok, 0);
    generator_free(g);
}

/* As many pages as n of 32 tokens. */
static int64_t pages_of_32(int64_t n)
{
    return (n * 32 + dev->kv_page_tok - 1) / dev->kv_page_tok;
}

/* A generator that has long items, too few pages, and takes them for short. */
static struct generator *crowded(int64_t max_seq, int64_t n_page)
{
    struct generator *g = engine(max_seq, pages_of_32(n_page), NULL);
    short_ones_run(g);
    for (int i = 0; i < N_ITEM; i++) {
        struct generator_item item = long_item(i);
        submit(g, &item);
    }
    return g;
}

static void samples_that_are_put_back_go_on_to_the_same_bits(UNUSED void **state)
{
    static const struct {
        int64_t max_seq, n_page;
        bool cached;
        const char *why;
    } cases[] = {
        { 36, 9, false, "hardly more than one sample of the longest prompt" },
        { 36, 14, false, "prompts lose their pages before their last sample starts" },
        { 36, 30, false, "several samples return in one pass" },
        { 7, 14, false, "rows run out, too" },
        { 36, 14, true, "what the cache still has is not run again" },
        { 36, 30, true, "so here" },
    };
    struct group *want[N_ITEM];
    long_reference(want);
    for (size_t c = 0; c < ARRAY_SIZE(cases); c++) {
        struct generator_stats s;
        cached = cases[c].cached;
        struct generator *g = crowded(cases[c].max_seq, cases[c].n_page);
        cached = false;
        run_same(g, want);
        generator_stats(g, &s);
        assert_true(s.n_put_back > 0);
        assert_true(s.n_again_tok > 0);
        assert_int_equal(generator_clear(g), 0);
        pages_all_free(g);
        generator_free(g);
    }
    groups_free(want);
}

static void samples_that_are_put_back_may_be_dropped(UNUSED void **state)
{
    struct group *want[N_ITEM];
    long_reference(want);
    int64_t n_dropped = 0, n_back = 1;
    for (int64_t after = 1; after <= n_back; after++) {    // times that a sample was put back
        struct generator_stats s = { 0 };
        struct generator *g = crowded(36, 9);
        for (int round = 0; s.n_put_back < after && !generator_idle(g); round++) {
            assert_true(round < 10000);
            assert_true(generator_step(g, &err));
            generator_stats(g, &s);
        }
        struct group *got[N_ITEM] = { NULL };
        n_back += s.n_put_back >= after;
        n_dropped += generator_drop(g, 6) + generator_drop(g, 3) + generator_drop(g, 7);
        run_all(g, got);
        for (int i = 0; i < N_ITEM; i++)
            if (got[i])
                groups_same(got[i], want[i]);
        groups_free(got);
        generator_free(g);
    }
    assert_true(n_back > 3);
    assert_true(n_dropped > 3);
    groups_free(want);
}

static void samples_go_on_with_new_weights_after_they_were_put_back(UNUSED void **state)
{
    struct group *want[N_ITEM], *got[N_ITEM] = { NULL };
    struct generator_stats s;
    long_reference(want);
    int was = speculate;
    speculate = SPECULATE_NEVER;
    struct generator *g = crowded(36, 14);
    speculate = was;
    for (int64_t version = 4; !generator_idle(g); version++) {
        assert_true(version < 10000);
        assert_true(generator_step(g, &err));
        generator_version_update(g, version);    // the same weights by another number, so the tokens are the same
        for (struct group *group; (group = generator_poll(g));)
            got[group->prompt_row] = group;
    }
    generator_stats(g, &s);
    assert_true(s.n_put_back > 0);
    for (int i = 0; i < N_ITEM; i++) {
        groups_same(got[i], want[i]);
        for (int k = 0; k < SAMPLES; k++)
            for (int64_t t = 2; t < got[i]->sample[k].n_tok; t++) {
                const int32_t *newer = got[i]->newer + got[i]->sample[k].first_tok;
                assert_true(newer[t] >= newer[t - 1] && newer[t] > newer[t - 2]);    // a round draws once, or twice where a sample starts
            }
    }
    pages_all_free(g);
    groups_free(got);
    groups_free(want);
    generator_free(g);
}

/* An item whose samples repeat themselves, each in its own way: it is cold, but not greedy. */
static struct generator_item dull_item(int i)
{
    struct generator_item item = item_of(i);
    item.sampling.temperature = 0.5f;
    item.sampling.max_new_tok = 60 + 5 * i;
    item.sampling.ignore_eos = i % 2;
    item.keep_logits = i == 4;
    return item;
}

static void guesses_that_come_true_or_not_change_no_bit(UNUSED void **state)
{
    static const struct {
        int64_t max_seq, n_page;
        int n_item;
        const char *why;
    } cases[] = {
        { 1, 0, 3, "one sample at a time, with up to 16 rows" },
        { 4, 0, 5, "a group at a time" },
        { 36, 0, N_ITEM, "more than are guessed for, until some have ended" },
        { 36, 12, N_ITEM, "pages run out, and guesses get none" },
    };
    struct group *want[N_ITEM] = { NULL };
    struct generator *g = plain_engine(36, 0, NULL);
    int was = speculate;
    for (int i = 0; i < N_ITEM; i++) {
        struct generator_item item = dull_item(i);
        item.keep_logits = false;
        submit(g, &item);
    }
    run_all(g, want);
    generator_free(g);
    speculate = SPECULATE_ALWAYS;
    for (size_t c = 0; c < ARRAY_SIZE(cases); c++) {
        struct group *got[N_ITEM] = { NULL };
        struct generator_stats s;
        g = engine(cases[c].max_seq, pages_of_32(cases[c].n_page), NULL);
        for (int i = 0; i < cases[c].n_item; i++) {
            struct generator_item item = dull_item(i);
            submit(g, &item);
        }
        run_all(g, got);
        for (int i = 0; i < cases[c].n_item; i++)
            groups_same(got[i], want[i]);
        generator_stats(g, &s);
        assert_true(s.n_accepted > 100 && s.n_draft > s.n_accepted);    // both happen; how often depends on how far ahead the device is
        assert_true(cases[c].max_seq > 1 || s.n_step < s.n_decode_tok * 2 / 3);    // several tokens in a step
        groups_free(got);
        generator_free(g);
    }
    speculate = was;
    groups_free(want);
}

static void short_samples_run_together_whatever_length_they_may_have(UNUSED void **state)
{
    static const int short_prompt[] = { 0, 1, 2, 3, 7, 8 };
    struct generator_stats s;
    int64_t most = 0;
    watched = calloc(1, sizeof *watched);
    assert_non_null(watched);
    struct generator *g = engine(36, pages_of_32(32), NULL);
    short_ones_run(g);
    memset(watched, 0, sizeof *watched);
    for (size_t i = 0; i < ARRAY_SIZE(short_prompt); i++) {
        struct generator_item item = item_of(short_prompt[i]);
        item.sampling.max_new_tok = 220;
        item.sampling.ignore_eos = true;
        watched->end_after[short_prompt[i]] = 5;
        submit(g, &item);
    }
    for (int round = 0; !generator_idle(g); round++) {
        assert_true(round < 1000);
        assert_true(generator_step(g, &err));
        generator_stats(g, &s);
        most = MAX(most, s.n_running_seq);
        for (struct group *group; (group = generator_poll(g));)
            group_free(group);
    }
    assert_true(most >= 4 * (s.n_page / (219 / s.page_tok + 1)));    // of the shortest prompt
    generator_free(g);
    free(watched);
    watched = NULL;
}

/* Prompts of whole pages need no copy of their last one, so as many samples start as there are pages for: all, in the four prefills of a
 * round. */
static void samples_that_fill_all_pages_start_in_one_round(UNUSED void **state)
{
    enum {
        N = 8,
        EACH = 3,    // pages of a sample
    };
    int64_t page_tok = dev->kv_page_tok;
    struct generator_config c = { .model = model,
                                  .max_seq = N,
                                  .max_item = N,
                                  .max_seq_tok = EACH * page_tok,
                                  .prefill_tok = N / 4 * page_tok,
                                  .kv_bytes = N * EACH * kv_pool_page_bytes(model) };
    struct generator_stats s;
    struct generator *g = generator_new(&c, &err);
    int32_t *tokens = calloc((size_t)page_tok, sizeof *tokens);
    assert_non_null(g);
    assert_non_null(tokens);
    for (int i = 0; i < N; i++) {
        struct generator_item item = item_of(i);
        item.prompt = tokens;
        item.n_prompt = (int32_t)page_tok;
        item.n_sample = 1;
        item.sampling.max_new_tok = (int32_t)((EACH - 1) * page_tok);
        item.sampling.ignore_eos = true;
        submit(g, &item);
    }
    assert_true(generator_step(g, &err));
    generator_stats(g, &s);
    assert_int_equal(s.n_page, N * EACH);
    assert_int_equal(s.n_running_seq, N);
    generator_free(g);
    free(tokens);
}

static void weights_may_only_change_between_items(UNUSED void **state)
{
    struct generator *g = engine(4, 0, NULL);
    struct group *out[N_ITEM] = { NULL };
    struct generator_item item = item_of(3);
    submit(g, &item);
    assert_true(generator_version_set(g, 4, &err));    // not started yet
    assert_true(generator_step(g, &err));
    assert_false(generator_version_set(g, 5, &err));
    assert_int_equal(err.code, ERR_REFUSED);
    run_all(g, out);
    assert_true(generator_version_set(g, 5, &err));
    assert_int_equal(out[3]->weight_version, 4);
    groups_free(out);
    generator_free(g);
}

static void a_stop_string_ends_after_the_token_that_completes_it(UNUSED void **state)
{
    // a byte-level vocabulary of 64 characters, so that any text of these can come up; ids above have no token
    struct buf json = BUF_INIT;
    buf_str(&json, "{\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (int i = 0; i < 64; i++)
        buf_fmt(&json, "%s\"%s%c\":%d", i ? "," : "", '#' + i == '\\' ? "\\" : "", '#' + i, i);
    buf_str(&json, "},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
                   "\"decoder\":{\"type\":\"ByteLevel\"}}");
    struct tokenizer *tokenizer = tokenizer_parse(json.data, json.len, "test", &err);
    if (!tokenizer)
        fail_msg("%s", err.text);
    struct generator *g = engine(8, 0, tokenizer);
    struct group *out[N_ITEM] = { NULL };
    struct generator_item item = item_of(8);
    item.sampling.n_stop_token = 0;
    item.sampling.max_new_tok = 60;
    submit(g, &item);
    run_all(g, out);
    // three neighbouring tokens with text become the stop string; not alike, so that it cannot come again with the next token
    int32_t at = -1;
    for (int32_t i = 10; i + 2 < 60 && at < 0; i++)
        if (out[8]->token[i] < 64 && out[8]->token[i + 1] < 64 && out[8]->token[i + 2] < 64 && out[8]->token[i] != out[8]->token[i + 1])
            at = i;
    assert_true(at > 0);
    for (int k = 0; k < 3; k++)
        item.sampling.stop_string[k] = (char)('#' + out[8]->token[at + k]);
    struct group *got[N_ITEM] = { NULL };
    submit(g, &item);
    run_all(g, got);
    const struct sample *s = &got[8]->sample[0];
    assert_int_equal(s->finish, FINISH_STOP);
    assert_true(s->n_tok <= at + 3);
    assert_memory_equal(got[8]->token, out[8]->token, (size_t)s->n_tok * 4);
    struct buf text = BUF_INIT;
    assert_true(tokenizer_decode(tokenizer, got[8]->token, s->n_tok, false, &text));
    const char *found = strstr(text.data, item.sampling.stop_string);
    assert_non_null(found);
    assert_int_equal(strlen(found), 3);    // nothing after it
    buf_release(&text);
    buf_release(&json);
    // with as many tokens as it took, it does not end there, nor at the next token, whose text has the string before it
    struct group *longer[N_ITEM] = { NULL };
    item.sampling.min_new_tok = s->n_tok;
    submit(g, &item);
    run_all(g, longer);
    assert_true(longer[8]->sample[0].n_tok > s->n_tok + 1);
    assert_memory_equal(longer[8]->token, out[8]->token, (size_t)longer[8]->sample[0].n_tok * 4);
    groups_free(longer);
    groups_free(out);
    groups_free(got);
    generator_free(g);
    tokenizer_free(tokenizer);
}

static void running_samples_can_be_looked_at(UNUSED void **state)
{
    struct generator *g = engine(8, 0, NULL);
    struct generator_item item = item_of(7);
    struct generator_live live[16];
    submit(g, &item);
    assert_int_equal(generator_live(g, live, 16), 0);
    for (int k = 0; k < 2; k++)
        assert_true(generator_step(g, &err));
    int64_t n = generator_live(g, live, 16);
    assert_in_range(n, 1, SAMPLES);
    assert_int_equal(generator_live(g, live, 1), 1);
    assert_int_equal(live[0].item, 107);
    assert_int_equal(live[0].n_tok, behind ? 2 : 3);    // the first round draws from the prompt and decodes once
    assert_int_equal(live[0].n_prompt, prompt_len[7]);
    generator_free(g);
}

int main(void)
{
    const struct CMUnitTest on_any_device[] = {
        cmocka_unit_test(a_rollout_does_not_depend_on_its_neighbours),
        cmocka_unit_test(items_may_arrive_while_others_run),
        cmocka_unit_test(recorded_log_probs_are_those_of_scoring_and_training_to_the_bit),
        cmocka_unit_test(greedy_samples_are_all_the_same),
        cmocka_unit_test(a_group_says_how_it_was_made),
        cmocka_unit_test(what_the_model_was_run_for_is_counted),
        cmocka_unit_test(a_sample_that_is_too_long_stops_its_item_alone),
        cmocka_unit_test(an_item_that_is_dropped_leaves_the_others_as_they_are),
        cmocka_unit_test(an_end_token_at_the_limit_is_a_stop_and_ignored_ones_go_on),
        cmocka_unit_test(no_end_is_drawn_before_the_fewest_tokens),
        cmocka_unit_test(log_probs_stay_those_of_all_tokens_where_ends_are_not_drawn),
        cmocka_unit_test(samples_of_a_prompt_may_be_split_over_items),
        cmocka_unit_test(what_can_never_run_is_refused_with_its_sizes),
        cmocka_unit_test(clearing_in_the_middle_frees_all_pages),
        cmocka_unit_test(a_watch_sees_every_token_and_may_end_a_sample),
        cmocka_unit_test(dropping_an_item_leaves_the_others_as_they_are),
        cmocka_unit_test(prompts_that_begin_alike_run_only_what_is_new_to_the_same_bits),
        cmocka_unit_test(a_turn_finds_the_answer_of_the_one_before),
        cmocka_unit_test(nothing_cached_survives_new_weights),
        cmocka_unit_test(samples_that_are_put_back_go_on_to_the_same_bits),
        cmocka_unit_test(samples_that_are_put_back_may_be_dropped),
        cmocka_unit_test(samples_go_on_with_new_weights_after_they_were_put_back),
        cmocka_unit_test(guesses_that_come_true_or_not_change_no_bit),
        cmocka_unit_test(short_samples_run_together_whatever_length_they_may_have),
        cmocka_unit_test(samples_that_fill_all_pages_start_in_one_round),
        cmocka_unit_test(weights_may_only_change_between_items),
        cmocka_unit_test(running_samples_can_be_looked_at),
    };
    const struct CMUnitTest on_a_cpu[] = {
        cmocka_unit_test(weights_replaced_in_place_are_those_of_the_next_item),       // writes into its memory
        cmocka_unit_test(weights_that_come_in_flight_are_recorded_token_by_token),    // so does this
        cmocka_unit_test(a_stop_string_ends_after_the_token_that_completes_it),
    };
    // but for what is said of pages that are found again, and of guesses, of which there are none
    const struct CMUnitTest with_states[] = {
        cmocka_unit_test(a_rollout_does_not_depend_on_its_neighbours),
        cmocka_unit_test(items_may_arrive_while_others_run),
        cmocka_unit_test(recorded_log_probs_are_those_of_scoring_and_training_to_the_bit),
        cmocka_unit_test(a_sample_that_is_too_long_stops_its_item_alone),
        cmocka_unit_test(an_item_that_is_dropped_leaves_the_others_as_they_are),
        cmocka_unit_test(samples_of_a_prompt_may_be_split_over_items),
        cmocka_unit_test(clearing_in_the_middle_frees_all_pages),
        cmocka_unit_test(a_watch_sees_every_token_and_may_end_a_sample),
        cmocka_unit_test(dropping_an_item_leaves_the_others_as_they_are),
        cmocka_unit_test(samples_that_are_put_back_go_on_to_the_same_bits),
        cmocka_unit_test(samples_that_are_put_back_may_be_dropped),
        cmocka_unit_test(samples_that_fill_all_pages_start_in_one_round),
    };
    int failed = 0;
    for (int late = 0; late < 2; late++) {
        behind = late;
        speculate = late ? SPECULATE_ALWAYS : SPECULATE_NEVER;
        print_message("%s, guessing %s\n", behind ? "one step behind" : "waiting for each step",
                      speculate == SPECULATE_ALWAYS ? "always" : "never");
        failed += cmocka_run_group_tests(on_any_device, model_setup, model_teardown);
        if (!getenv("OPS_DEVICE"))
            failed += cmocka_run_group_tests(on_a_cpu, model_setup, model_teardown);
        if (!getenv("OPS_DEVICE"))
            failed += cmocka_run_group_tests(with_states, hybrid_setup, model_teardown);
    }
    return failed;
}
