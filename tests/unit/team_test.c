/* Tensor parallelism changes no bit: log-probs of a team of 1, 2, 4 and 8 devices, sampled (prefill, decode over pages, with and
 * without a prefix cache) and scored, are those of the trainer, which has the whole model on one device; and a model that is cut over a
 * team is trained to the bytes of a whole one. OPS_DEVICE names another first device, such as cuda:0; the others follow it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "kernels/collective/collective.h"
#include "protocol/base/clock.h"
#include "protocol/record/group.h"
#include "protocol/settings/metrics.h"
#include "workers/engine/model/extent.h"
#include "workers/engine/model/lora.h"
#include "workers/engine/model/model_impl.h"
#include "workers/engine/model/slice.h"
#include "workers/engine/model/stages.h"
#include "workers/engine/model/team_impl.h"
#include "workers/engine/pass/pass.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/trainer/ranks.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/trainer/reference.h"
#include "workers/engine/trainer/state.h"
#include "workers/engine/trainer/supervised.h"
#include "workers/engine/trainer/update.h"

#define TEMPERATURE 2.0f
#define BASE .family = FAMILY_QWEN2, .n_layer = 2, .max_pos = 512, .rms_eps = 1e-6, .rope.theta = 1e4, .initializer_range = 0.3
/* The bytes are compared by the plain run; the one that watches memory takes a third of the cases, both types among them, unless
 * LONG is set. */
static size_t case_step(void)
{
#ifdef __SANITIZE_ADDRESS__
    const char *whole = getenv("LONG");
    return whole && whole[0] ? 1 : 3;
#else
    return 1;
#endif
}

// clang-format off
static const struct shape {
    struct model_config c;
    int parts, sizes[4];    // teams; 0: no more
    const char *why;
} shapes[] = {
    { { BASE, .d_model = 64, .n_head = 8, .n_kv_head = 8, .d_head = 16, .d_ff = 192, .vocab = 288, .tied = true, .qkv_bias = true },
      8, { 1, 2, 4, 8 }, "a head of keys and values, or several, for each" },
    { { BASE, .d_model = 96, .n_head = 8, .n_kv_head = 4, .d_head = 32, .d_ff = 384, .vocab = 333 },
      4, { 1, 2, 4 }, "an odd vocabulary, a head of its own" },
    { { BASE, .d_model = 64, .n_head = 4, .n_kv_head = 2, .d_head = 32, .d_ff = 128, .vocab = 288, .tied = true, .fused_names = true },
      4, { 1, 2, 4 }, "two ranks share a head of keys and values; fused tensors" },
    { { BASE, .d_model = 64, .n_head = 4, .n_kv_head = 1, .d_head = 64, .d_ff = 208, .vocab = 100, .qk_norm = true, .qkv_bias = true, .o_bias = true,
        .mlp_bias = true, .has_multipliers = true, .multiplier = { .embedding = 12, .residual = 0.22, .attention = 0.1, .logits = 8 } },
      4, { 1, 2, 4 }, "all ranks share it; biases, which are added once, and norms of each head" },
    { { BASE, .d_model = 64, .n_head = 2, .n_kv_head = 1, .d_head = 96, .d_ff = 104, .vocab = 288, .norm_place = NORM_AROUND,
        .norm_form = NORM_GEMMA, .act = ACT_GELU_TANH, .qk_norm = true, .logit_cap = 9, .query_scalar = 24, .embed_root = true, .tied = true },
      2, { 1, 2 }, "Gemma's norms around each half, its scale of the embedding and its cap of logits" },
};
// clang-format on

static struct device *devices[TEAM_MAX];

/* OPS_DEVICE and those after it. */
static void devices_open(int n)
{
    const char *first = getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0";
    struct error err;
    for (int i = 0; i < n; i++) {
        char name[32];
        const char *colon = strchr(first, ':');
        snprintf(name, sizeof name, "%.*s:%d", (int)(colon - first), first, atoi(colon + 1) + i);
        if (!(devices[i] = device_new(name, 1, &err)))
            fail_msg("%s", err.text);
    }
}

static void devices_close(int n)
{
    for (int i = 0; i < n; i++) {
        device_free(devices[i]);
        devices[i] = NULL;
    }
}

static bool on_gpus(void)
{
    return getenv("OPS_DEVICE") && strncmp(getenv("OPS_DEVICE"), "cuda", 4) == 0;
}

/* As many devices as a test may open: on GPUs there are not always more. */
static int devices_most(void)
{
    static int most;
    struct error err;
    for (int n = 1; most == 0; n++) {
        char name[32];
        struct device *dev = NULL;
        snprintf(name, sizeof name, "cuda:%d", n);
        if (on_gpus() && n < TEAM_MAX && (dev = device_new(name, 1, &err))) {
            device_free(dev);
            continue;
        }
        most = on_gpus() ? n : TEAM_MAX;
    }
    return most;
}

static struct model *model_make(const struct shape *s, enum dtype t, int n_device)
{
    struct error err;
    struct model *m = model_new_random(&s->c, 3, devices[0], t, &err);
    if (!m || !model_parts_set(m, s->parts, &err) || !model_team(m, devices, n_device, &err))
        fail_msg("%s, %d devices: %s", s->why, n_device, err.text);
    assert_int_equal(model_n_device(m), n_device);
    return m;
}

enum {
    PROMPT = 70,    // more than a page of any device, so that the cache has some
    NEW = 12,
};
/* One group of n_sample, and a second one whose prompt the cache may have in part. */
static struct group *group_sample(struct model *m, int n_sample, bool cached)
{
    struct error err;
    struct generator_config gc = {
        .model = m, .max_seq = 64, .max_item = 2, .max_seq_tok = 128, .prefill_tok = 100, .prefix_cache = cached, .version = 1
    };
    struct generator *g = generator_new(&gc, &err);
    struct group *group = NULL;
    uint64_t seeds[64];
    int32_t prompt[PROMPT];
    for (int i = 0; i < 64; i++)
        seeds[i] = 1000 + (uint64_t)i;
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = (i * 37 + 5) % (int)model_config(m)->vocab;
    if (!g)
        fail_msg("%s", err.text);
    for (int round = cached ? 0 : 1; round < 2; round++) {
        struct generator_item item = {
            .item = round, .prompt = prompt, .n_prompt = PROMPT, .n_sample = n_sample, .seed = seeds, .sampling = SAMPLING_DEFAULT
        };
        item.sampling.max_new_tok = NEW;
        item.sampling.temperature = TEMPERATURE;
        if (!generator_submit(g, &item, &err))
            fail_msg("%s", err.text);
        while (!generator_idle(g))
            if (!generator_step(g, &err))
                fail_msg("%s", err.text);
        group_free(group);
        assert_non_null(group = generator_poll(g));
    }
    struct generator_stats stats;
    generator_stats(g, &stats);
    assert_true(cached == (stats.n_cached_tok > 0));
    generator_free(g);
    return group;
}

/* The group's sequences, prompt and sample, end to end. */
struct text {
    int64_t n_seq, n_tok, len[64];
    int32_t *token, *cu, *target;
    float *temperature, *logp;
};
static void text_make(struct text *t, const struct group *g, int64_t vocab)
{
    size_t max = (size_t)g->n_sample * (PROMPT + NEW);
    *t = (struct text){ .token = malloc(max * 4),
                        .cu = calloc((size_t)g->n_sample + 1, 4),
                        .target = malloc(max * 4),
                        .temperature = malloc(max * 4),
                        .logp = malloc(max * 4) };
    for (int s = 0; s < g->n_sample; s++) {
        for (int i = 0; i < PROMPT; i++)
            t->token[t->n_tok++] = (i * 37 + 5) % (int)vocab;
        for (int64_t i = 0; i < g->sample[s].n_tok; i++)
            t->token[t->n_tok++] = g->token[g->sample[s].first_tok + i];
        t->len[t->n_seq++] = PROMPT + g->sample[s].n_tok;
        t->cu[t->n_seq] = (int32_t)t->n_tok;
    }
    for (int64_t i = 0; i < t->n_tok; i++) {
        t->target[i] = i + 1 < t->n_tok ? t->token[i + 1] : -1;
        t->temperature[i] = TEMPERATURE;
    }
    for (int64_t s = 0; s < t->n_seq; s++)
        t->target[t->cu[s + 1] - 1] = -1;
}
static void text_release(struct text *t)
{
    free(t->token);
    free(t->cu);
    free(t->target);
    free(t->temperature);
    free(t->logp);
}

/* Log-probs of the samples' tokens, as the group has them, out of those of all rows. */
static void logp_compare(const struct group *g, const struct text *t, int64_t row_less, const char *what)
{
    int64_t at = 0;
    for (int s = 0; s < g->n_sample; s++) {
        if (memcmp(t->logp + at + PROMPT - 1, g->logp + g->sample[s].first_tok, (size_t)g->sample[s].n_tok * 4) != 0)
            fail_msg("%s: sample %d of %d has other log-probs than it was drawn with", what, s, g->n_sample);
        at += t->len[s] - row_less;
    }
}

/* One device's trainer and every team's scorer give the log-probs that one device drew. */
static void scores_compare(const struct shape *s, enum dtype dtype, const struct group *g, int most)
{
    struct error err;
    struct text t;
    text_make(&t, g, s->c.vocab);
    struct model *whole = model_make(s, dtype, 1);
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    set.token_budget_max = 512;
    struct trainer *tr = trainer_new(whole, NULL, &set, &err);
    if (!tr || !trainer_logprobs(tr, t.token, t.len, t.temperature, t.n_seq, t.logp, NULL, &err))
        fail_msg("%s", err.text);
    logp_compare(g, &t, 1, "trainer");
    trainer_free(tr);
    model_free(whole);
    for (int k = 0; k < 4 && s->sizes[k] && s->sizes[k] <= most; k++) {
        struct model *m = model_make(s, dtype, s->sizes[k]);
        struct run_limits lim = { .max_tok = t.n_tok, .max_seq = t.n_seq, .max_seq_tok = 128, .head_rows = 33 };
        struct model_run *r = model_run_new(m, &lim, &err);
        struct model_batch b = { .n_seq = t.n_seq, .n_tok = t.n_tok, .token = t.token, .cu_tok = t.cu };
        memset(t.logp, 0xff, (size_t)t.n_tok * 4);
        if (!r || !model_score(r, &b, t.target, t.temperature, t.logp, NULL, &err))
            fail_msg("%s", err.text);
        logp_compare(g, &t, 0, "scorer");
        model_run_free(r);
        model_free(m);
    }
    text_release(&t);
}

static void a_team_of_any_size_gives_the_bits_of_one_device(UNUSED void **state)
{
    static const int batches[] = { 1, 3, 64 };
    for (size_t c = 0; c < ARRAY_SIZE(shapes) * 2; c += case_step()) {
        const struct shape *s = &shapes[c / 2];
        enum dtype dtype = c % 2 ? DT_BF16 : DT_F32;
        size_t n_batch = (c + c / 2) % 2 ? ARRAY_SIZE(batches) : ARRAY_SIZE(batches) - 1;    // the large one of either type, by turns
        int most = 1;
        for (int k = 0; k < 4; k++)
            most = MAX(most, s->sizes[k]);
        most = MIN(most, devices_most());
        devices_open(most);
        for (size_t b = 0; b < n_batch; b++) {
            struct group *want = NULL;
            for (int k = 0; k < 4 && s->sizes[k] && s->sizes[k] <= most; k++)
                for (int cached = 0; cached < (batches[b] == 3 ? 2 : 1); cached++) {    // a group's one prompt, whatever its samples
                    struct model *m = model_make(s, dtype, s->sizes[k]);
                    struct group *got = group_sample(m, batches[b], cached);
                    want = want ? want : got;
                    assert_int_equal(want->n_tok, got->n_tok);
                    if (memcmp(want->token, got->token, (size_t)want->n_tok * 4) != 0
                        || memcmp(want->logp, got->logp, (size_t)want->n_tok * 4) != 0)
                        fail_msg("%s: %d devices%s, %d samples: other bits than one device's", s->why, s->sizes[k],
                                 cached ? ", prefix cache" : "", batches[b]);
                    if (got != want)
                        group_free(got);
                    model_free(m);
                }
            double sum = 0;
            for (int64_t i = 0; i < want->n_tok; i++)
                sum += (double)want->logp[i];
            assert_true(isfinite(sum) && sum / (double)want->n_tok < -0.1);    // of tokens that were not certain
            scores_compare(s, dtype, want, most);
            group_free(want);
        }
        devices_close(most);
    }
}

static void slices_follow_new_weights(UNUSED void **state)
{
    struct error err;
    const struct shape *s = &shapes[1];
    struct group *g[2];
    devices_open(2);
    for (int n = 1; n <= 2; n++) {
        struct model *m = model_make(s, DT_F32, n), *other = model_new_random(&s->c, 99, devices[0], DT_F32, &err);
        assert_non_null(other);
        if (!model_weights_copy(m, other, &err))
            fail_msg("%s", err.text);
        g[n - 1] = group_sample(m, 3, false);
        model_free(other);
        model_free(m);
    }
    assert_memory_equal(g[0]->logp, g[1]->logp, (size_t)g[0]->n_tok * 4);
    group_free(g[0]);
    group_free(g[1]);
    devices_close(2);
}

/* A team of s that has slices only, of the weights of src. */
static struct model *sliced_make(const struct shape *s, const struct model *src, int n)
{
    struct error err;
    struct model *m = model_new_shape(&s->c, devices[0], model_dtype(src), &err);
    if (!m || !model_parts_set(m, s->parts, &err) || !model_team(m, devices, n, &err) || !model_weights_copy(m, src, &err)
        || !device_sync(devices[0], &err))
        fail_msg("%s, %d devices: %s", s->why, n, err.text);
    return m;
}

static void slices_compare(const struct model *a, const struct model *b, int n, const char *what)
{
    struct error err;
    for (int q = 0; q < n; q++) {
        uint64_t x, y;
        assert_true(device_enter(devices[q], &err) && model_weights_hash(team_slice(a, q), &x, &err)
                    && model_weights_hash(team_slice(b, q), &y, &err) && device_enter(devices[0], &err));
        if (x != y)
            fail_msg("%s: slice %d of %d differs", what, q, n);
    }
}

/* The first device then has no more than the others. */
static void a_team_without_whole_weights_gives_the_same_bits(UNUSED void **state)
{
    for (size_t c = 0; c < ARRAY_SIZE(shapes); c++) {
        const struct shape *s = &shapes[c];
        for (int k = 0; k < 4 && s->sizes[k]; k++) {
            int n = s->sizes[k];
            if (n == 1 || n > devices_most())
                continue;
            devices_open(n);
            struct model *whole = model_make(s, DT_BF16, n), *sliced = sliced_make(s, whole, n);
            assert_true(model_is_sliced(sliced) && !model_is_sliced(whole));
            assert_int_equal(model_held_bytes(sliced), model_slice_bytes(sliced, n));
            assert_int_equal(model_held_bytes(whole), model_weight_bytes(whole) + model_slice_bytes(whole, n));
            slices_compare(whole, sliced, n, s->why);
            struct group *a = group_sample(whole, 3, false), *b = group_sample(sliced, 3, false);
            assert_int_equal(a->n_tok, b->n_tok);
            assert_memory_equal(a->logp, b->logp, (size_t)a->n_tok * 4);
            group_free(a);
            group_free(b);
            model_free(sliced);
            model_free(whole);
            devices_close(n);
        }
    }
}

/* Every element of every tensor is some rank's, once or, where ranks share heads or have all of a tensor, in equal blocks. */
static void slices_hold_every_element(UNUSED void **state)
{
    struct error err;
    devices_open(1);
    for (size_t c = 0; c < ARRAY_SIZE(shapes); c++)
        for (int k = 0; k < 4 && shapes[c].sizes[k]; k++) {
            int n = shapes[c].sizes[k];
            struct model *m = model_new_shape(&shapes[c].c, devices[0], DT_F32, &err);
            uint8_t *seen = calloc((size_t)model_n_flat(m), 1);
            int64_t n_elem = 0, n_seen = 0;
            for (int q = 0; q < n; q++) {
                struct model_config own = slice_config(&shapes[c].c, n, q);
                struct model *slice = model_new_shape(&own, devices[0], DT_F32, &err);
                struct slice_block block[SLICE_BLOCK_MAX];
                assert_int_equal(model_n_tensor(slice), model_n_tensor(m));
                for (int64_t t = 0; t < model_n_tensor(m); t++) {
                    const struct tensor *x = model_tensor(m, t), *y = model_tensor(slice, t);
                    int64_t held = 0;
                    int n_block = slice_blocks(m, slice, t, n, q, block);
                    for (int b = 0; b < n_block; b++) {
                        assert_int_equal(block[b].to, y->offset + held);
                        held += block[b].n_row * block[b].n_col;
                        assert_true(block[b].row >= 0 && block[b].row + block[b].n_row <= x->dim[0]
                                    && block[b].col + block[b].n_col <= block[b].ld);
                        for (int64_t r = 0; r < block[b].n_row; r++)
                            memset(seen + block[b].from + r * block[b].ld, 1, (size_t)block[b].n_col);
                    }
                    assert_int_equal(held, y->n_elem);
                }
                model_free(slice);
            }
            for (int64_t t = 0; t < model_n_tensor(m); t++)
                n_elem += model_tensor(m, t)->n_elem;
            for (int64_t i = 0; i < model_n_flat(m); i++)
                n_seen += seen[i];
            assert_int_equal(n_seen, n_elem);
            free(seen);
            model_free(m);
        }
    devices_close(1);
}

static bool shard_piece(void *ctx, int p, void *to, struct error *err)
{
    const struct model *m = ctx;
    const struct mem_handle *h;
    size_t bytes;
    int64_t first, n = model_piece(m, p, &first);
    const char *from = model_kept(m, &bytes, &h);
    return lane_copy(model_device(m), 0, to, from + (size_t)first * dtype_size(model_dtype(m)), (size_t)n * dtype_size(model_dtype(m)),
                     err);
}

/* As with zero_stage 3: whole pieces come one at a time. */
static void slices_are_filled_from_shards(UNUSED void **state)
{
    struct error err;
    const struct shape *s = &shapes[2];
    devices_open(2);
    struct model *whole = model_make(s, DT_BF16, 2), *kept = model_new_random(&s->c, 3, devices[0], DT_BF16, &err);
    int64_t n[8], at[8], none[8] = { 0 };
    int n_piece = model_n_piece(kept);
    assert_in_range(n_piece, 1, 8);
    for (int p = 0; p < n_piece; p++)
        n[p] = model_piece(kept, p, &at[p]);
    struct model_cut cut = { .n = n, .first = none, .at = at, .n_kept = model_n_flat(kept) };
    if (!model_keep(kept, &cut, &err))
        fail_msg("%s", err.text);
    model_fetches(kept, &(struct model_fetch){ shard_piece, 0, kept });
    struct model *sliced = sliced_make(s, kept, 2);
    slices_compare(whole, sliced, 2, "from shards");
    model_free(sliced);
    model_free(kept);
    model_free(whole);
    devices_close(2);
}

struct failing {
    struct team *team;
    int fails;    // this rank, before the meetings
    enum error_code code;
    bool idles;    // the others have other work while they wait
    atomic_int idled;
    int met[TEAM_MAX];
    int n_told, told;    // how often model_team_tell's function was called, and last for which device
};
static void failure_note(void *ctx, int device, UNUSED const struct error *why)
{
    struct failing *f = ctx;
    f->n_told++;
    f->told = device;
}
static bool idle_count(void *ctx, UNUSED struct error *err)
{
    atomic_fetch_add(&((struct failing *)ctx)->idled, 1);
    return true;
}
static bool meet_or_fail(void *ctx, int rank, struct error *err)
{
    struct failing *f = ctx;
    for (int i = 0; i < 100; i++, f->met[rank]++) {
        if (rank == f->fails && i == 50)
            return error_set(err, f->code, "rank %d is out of memory", rank);
        for (int before = atomic_load(&f->idled); f->idles && rank == 0 && i == 20 && atomic_load(&f->idled) == before;)
            sched_yield();    // the last one lets the others wait until one of them has looked at its other work
        if (!team_meet(f->team, f->idles ? idle_count : NULL, f, err))
            return false;
    }
    return true;
}
static void a_rank_that_fails_makes_the_others_return_with_its_error(UNUSED void **state)
{
    struct error err = { 0 };
    int n = on_gpus() ? 2 : 4;
    devices_open(n);
    struct model *m = model_make(&shapes[0], DT_F32, n);
    for (int k = -2; k < 4 * n; k++) {
        int fails = k < 0 ? -1 : k % n;
        struct failing f = {
            .team = m->team, .fails = fails, .code = k / n % 2 ? ERR_CLOSED : ERR_NO_MEMORY, .idles = k == -2 || k >= 2 * n
        };
        char want[64];
        snprintf(want, sizeof want, "rank %d is out of memory", fails);
        model_team_tell(m, failure_note, &f);
        assert_int_equal(team_call(m->team, meet_or_fail, &f, &err), fails < 0);
        for (int q = 0; q < n; q++)    // one may see the failure while it leaves the last meeting
            assert_in_range(f.met[q], fails < 0 ? 100 : 49, fails < 0 ? 100 : 50);
        if (fails >= 0)
            assert_string_equal(err.text, want);
        assert_int_equal(f.n_told, fails >= 0);
        assert_true(fails < 0 || f.told == fails);
        for (int q = 0; q < n && fails >= 0; q++)
            if (q != fails && team_rank(m->team, q)->err.code)
                assert_string_equal(team_rank(m->team, q)->err.text, "another device of the team has failed");
    }
    model_team_tell(m, NULL, NULL);
    struct group *g = group_sample(m, 3, false);    // and it goes on
    group_free(g);
    model_free(m);
    devices_close(n);
}

/* Two processes with a team of two devices each, whose devices meet those of the other process, and now and then each other: where a device of
 * process 1 fails, its other one waits for process 0, whose devices wait for each other, and one of these for the device that failed. */
#define PROCESSES_MS 60000    // a wait that takes longer never ends
struct process {
    struct team *team;
    struct collective *c[2];
    int number;
};
static void process_gives_up(void *ctx, int device, const struct error *why)
{
    struct process *p = ctx;
    collective_abandon(&p->c[device], 1, why->text);
}
static bool meet_both_or_fail(void *ctx, int rank, struct error *err)
{
    struct process *p = ctx;
    for (int i = 0; i < 100; i++) {
        int all[2];
        if (p->number == 1 && rank == 1 && i == 50)
            return error_set(err, ERR_IO, "its device has melted");
        if (!collective_gather(p->c[rank], &i, sizeof i, all, err)
            || (i % (p->number == 1 ? 90 : 7) == 0 && !team_meet(p->team, NULL, NULL, err)))
            return false;
    }
    return true;
}
/* In a process of its own: does what ends its team's call say why the other's device failed? */
static bool process_run(const void *ctx, int number, struct error *err)
{
    const char *dir = ctx;
    char name[16];
    devices_open(2);
    struct model *m = model_make(&shapes[0], DT_F32, 2);
    struct process p = { .team = m->team, .number = number };
    for (int q = 0; q < 2; q++) {
        snprintf(name, sizeof name, "meeting-%d", q);
        struct collective_config c = {
            .kind = "local", .dir = dir, .name = name, .rank = number, .n_rank = 2, .join_ms = PROCESSES_MS, .wait_ms = PROCESSES_MS
        };
        if (!(p.c[q] = collective_join(&c, err)))
            return false;
    }
    model_team_tell(m, process_gives_up, &p);
    int64_t began = clock_ms();
    bool failed = !team_call(m->team, meet_both_or_fail, &p, err) && clock_ms() - began < PROCESSES_MS / 2;
    collective_abandon(p.c, 2, err->text);
    for (int q = 0; q < 2; q++)
        collective_leave(p.c[q]);
    model_free(m);
    devices_close(2);
    return failed && strcmp(err->text, number == 1 ? "its device has melted" : "rank 1 gave up: its device has melted") == 0;
}
/* Call fn in two processes of their own, 0 and 1; it succeeds in both. */
static void two_processes(bool (*fn)(const void *ctx, int number, struct error *err), const void *ctx)
{
    struct error err = { 0 };
    pid_t pid[2];
    for (int k = 0; k < 2; k++)
        if ((pid[k] = fork()) == 0) {
            bool ok = fn(ctx, k, &err);
            if (!ok)
                fprintf(stderr, "process %d: %s\n", k, err.text);
            _exit(ok ? 0 : 1);
        }
    for (int k = 0; k < 2; k++) {
        int status;
        assert_int_equal(waitpid(pid[k], &status, 0), pid[k]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}
static void a_device_that_fails_ends_the_teams_of_other_processes_that_wait_for_it(UNUSED void **state)
{
    char dir[] = "/tmp/rc-team-XXXXXX";
    struct error err = { 0 };
    if (on_gpus())    // they do not survive a fork
        skip();
    assert_non_null(mkdtemp(dir));
    assert_true(collective_call(dir, "meeting-0", &err) && collective_call(dir, "meeting-1", &err));
    two_processes(process_run, dir);
    assert_int_equal(rmdir(dir), 0);
}

/* Without parts one device keeps its own order, and other parts are other sums. */
static void parts_are_part_of_the_result(UNUSED void **state)
{
    struct group *g[3];
    struct shape s = shapes[0];
    devices_open(1);
    for (int k = 0; k < 3; k++) {
        s.parts = (int[]){ 0, 1, 4 }[k];
        struct model *m = model_make(&s, DT_F32, 1);
        g[k] = group_sample(m, 3, false);
        model_free(m);
    }
    if (!on_gpus())
        assert_memory_equal(g[0]->logp, g[1]->logp, (size_t)g[0]->n_tok * 4);    // a CPU's own order is one chain
    assert_memory_not_equal(g[0]->logp, g[2]->logp, (size_t)MIN(g[0]->n_tok, g[2]->n_tok) * 4);
    for (int k = 0; k < 3; k++)
        group_free(g[k]);
    devices_close(1);
}

static void teams_that_cannot_be_are_refused_with_the_nearest(UNUSED void **state)
{
    static const struct {
        int64_t n_head, n_kv_head, d_ff, vocab;
        bool wide;
        int parts, n;
        const char *says;
    } cases[] = {
        { 14, 2, 4864, 1000, false, 4, 4,
          "14 attention heads, 2 heads of keys and values, 4864 columns of the MLP, and sums in 4 parts cannot be "
          "cut over 4 devices; 2 devices are possible" },
        { 14, 2, 4864, 1000, false, 4, 3, "over 3 devices; 2 devices are possible" },
        { 3, 3, 100, 1000, false, 4, 2, "over 2 devices; 1 device is possible" },
        { 16, 8, 4864, 1000, false, 4, 8, "sums in 4 parts cannot be cut over 8 devices; 4 devices are possible" },
        { 16, 8, 102, 1000, false, 4, 2, "sums over 256 columns of heads and 102 of the MLP cannot be cut in 4 equal parts" },
        { 16, 8, 104, 33, false, 4, 4, "over 4 devices; 2 devices are possible" },
        { 4, 4, 66, 1000, false, 2, 2, "66 columns of the MLP, and sums in 2 parts cannot be cut over 2 devices; 1 device is possible" },
        { 4, 4, 64, 1000, true, 4, 2,
          "norms over all heads need all of them on one device: a tensor-parallel size of 2 is not possible, 1 is" },
        { 16, 8, 4864, 1000, false, 8, 8, NULL },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct model_config c = { .n_head = cases[i].n_head,
                                  .n_kv_head = cases[i].n_kv_head,
                                  .d_head = 16,
                                  .d_ff = cases[i].d_ff,
                                  .vocab = cases[i].vocab,
                                  .qk_norm_wide = cases[i].wide };
        struct error err = { 0 };
        bool ok = team_check(&c, cases[i].n, cases[i].parts, &err);
        assert_int_equal(ok, cases[i].says == NULL);
        if (cases[i].says && !strstr(err.text, cases[i].says))
            fail_msg("'%s' does not say '%s'", err.text, cases[i].says);
    }
}

static bool reaches_nobody(UNUSED struct device *dev, UNUSED struct device *other, bool *reach, UNUSED struct error *err)
{
    *reach = false;
    return true;
}

static void a_team_that_cannot_be_made_says_why(UNUSED void **state)
{
    struct error err = { 0 };
    struct lora_config lora = { .rank = 4, .alpha = 8 };
    const struct shape *s = &shapes[0];
    devices_open(2);
    struct model *m = model_new_random(&s->c, 3, devices[0], DT_F32, &err);
    assert_true(m && lora_targets_parse(&lora, "q_proj", &err) && model_lora_new(m, &lora, 1, false, &err));
    assert_false(model_team(m, devices, 2, &err));
    assert_string_equal(err.text, "a model with an adapter cannot be cut over 2 devices; 1 device is possible");
    model_free(m);
    struct ops alone = *devices[1]->op;
    const struct ops *op = devices[1]->op;
    alone.device_reach = reaches_nobody;
    devices[1]->op = &alone;
    m = model_new_random(&s->c, 3, devices[0], DT_F32, &err);
    assert_true(m && model_parts_set(m, s->parts, &err));
    assert_false(model_team(m, devices, 2, &err));
    assert_non_null(strstr(err.text, "cannot reach the memory of"));
    model_free(m);
    devices[1]->op = op;
    devices_close(2);
}

static void teams_that_cannot_train_are_refused_with_the_nearest(UNUSED void **state)
{
    static const struct {
        int64_t n_head, n_kv_head, d_ff;
        bool qk_norm;
        int parts, n;
        const char *says;
    } cases[] = {
        { 14, 2, 4864, false, 4, 2, NULL },
        { 16, 8, 4864, true, 0, 1, NULL },
        { 16, 2, 4864, false, 4, 4, "2 heads of keys and values" },    // which sampling shares
        { 16, 2, 4864, false, 4, 4, "over 4 devices to be trained; 2 devices are possible" },
        { 16, 4, 4880, false, 4, 4, "4880 columns of the MLP, and sums in 4 parts of a multiple of 8 columns cannot be cut" },
        { 16, 4, 4880, false, 4, 4, "1 device is possible" },
        { 16, 8, 4864, true, 4, 2, NULL },
        { 16, 2, 4864, true, 4, 2, "16 attention heads and 2 heads of keys and values, which 4 parts of sums cut through" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct model_config c = { .n_head = cases[i].n_head,
                                  .n_kv_head = cases[i].n_kv_head,
                                  .d_head = 64,
                                  .d_ff = cases[i].d_ff,
                                  .vocab = 1000,
                                  .qk_norm = cases[i].qk_norm };
        struct error err = { 0 };
        bool ok = team_train_check(&c, cases[i].n, cases[i].parts, &err);
        assert_int_equal(ok, cases[i].says == NULL);
        if (cases[i].says && !strstr(err.text, cases[i].says))
            fail_msg("'%s' does not say '%s'", err.text, cases[i].says);
    }
}

/* ---- training */
// clang-format off
static const struct shape trained[] = {
    { { BASE, .d_model = 64, .n_head = 8, .n_kv_head = 8, .d_head = 16, .d_ff = 192, .vocab = 288, .tied = true, .qkv_bias = true },
      8, { 1, 2, 4, 8 }, "a tied head, biases of queries" },
    { { BASE, .d_model = 96, .n_head = 8, .n_kv_head = 4, .d_head = 32, .d_ff = 384, .vocab = 333 },
      4, { 1, 2, 4 }, "an odd vocabulary, a head of its own" },
    { { BASE, .d_model = 64, .n_head = 4, .n_kv_head = 2, .d_head = 32, .d_ff = 128, .vocab = 288, .tied = true, .fused_names = true },
      4, { 1, 2 }, "more parts than devices; fused tensors" },
    { { BASE, .d_model = 64, .n_head = 4, .n_kv_head = 2, .d_head = 64, .d_ff = 256, .vocab = 104, .qkv_bias = true, .o_bias = true,
        .mlp_bias = true, .has_multipliers = true, .norm_place = NORM_AFTER,
        .multiplier = { .embedding = 12, .residual = 0.22, .attention = 0.1, .logits = 8 } },
      2, { 1, 2 }, "all biases; norms after the halves, whose products add to the stream's gradient" },
    { { BASE, .d_model = 64, .n_head = 2, .n_kv_head = 2, .d_head = 96, .d_ff = 144, .vocab = 288, .norm_place = NORM_AROUND,
        .norm_form = NORM_GEMMA, .act = ACT_GELU_TANH, .logit_cap = 9, .query_scalar = 24, .embed_root = true, .tied = true },
      2, { 1, 2 }, "Gemma's norms around each half, its scale of the embedding and its cap of logits" },
    { { BASE, .d_model = 64, .n_head = 8, .n_kv_head = 4, .d_head = 32, .d_ff = 160, .vocab = 288, .qk_norm = true, .norm_form = NORM_GEMMA },
      4, { 1, 2, 4 }, "a norm of each head" },
};
// clang-format on

enum {
    TRAIN_GROUPS = 3,
    TRAIN_SAMPLES = 4,
    TRAIN_STEPS = 3,
};
/* Groups of samples of unlike lengths and rewards. */
static struct group *group_invent(int item, int64_t vocab)
{
    struct error err;
    int64_t n_tok = 0;
    for (int k = 0; k < TRAIN_SAMPLES; k++)
        n_tok += 5 + 3 * k + item;
    struct group *g = group_new(6 + item, TRAIN_SAMPLES, n_tok, &err);
    assert_non_null(g);
    g->item = item;
    g->temperature = 1;
    g->max_new_tok = 32;
    for (int64_t i = 0; i < g->n_prompt; i++)
        g->prompt[i] = (int32_t)((i * 31 + item * 7) % vocab);
    for (int64_t i = 0; i < n_tok; i++) {
        g->token[i] = (int32_t)((i * 53 + item * 11 + 3) % vocab);
        g->logp[i] = -5 - (float)(i % 7) / 4;
    }
    for (int64_t k = 0, first = 0; k < TRAIN_SAMPLES; first += g->sample[k].n_tok, k++)
        g->sample[k] = (struct sample){
            .first_tok = first, .n_tok = 5 + 3 * k + item, .score = SCORE_OK, .reward = (double)((k * 3 + item) % 4), .finish = FINISH_STOP
        };
    return g;
}

struct outcome {
    float *grad, *state[STATE_N];    // (n) of the first step; at the end
    void *weights, *reference;
    uint64_t hash;
    double loss, norm;
    int64_t n;
    size_t weight_bytes;
};
static void outcome_free(struct outcome *o)
{
    free(o->grad);
    free(o->weights);
    free(o->reference);
    for (int k = 0; k < STATE_N; k++)
        free(o->state[k]);
}

/* How a model is trained: on several devices in slices, or in stages. */
struct layout {
    int n_device;
    bool staged;
    enum optimizer optimizer;
    int n_rank, zero;    // ranks that this process plays, each of this many devices; 0: 1
    int n_slice;         // devices of a stage, each with its slice of it; 0: 1
    int group;           // micro-batches of a group; 0: 1
    enum {
        STATE_ON_DEVICES,
        STATE_HAS_ROOM,    // it could be in host memory, and fits on the devices
        STATE_PARTLY,      // in host memory, on each device another part
        STATE_ON_HOST,
    } where;
};
static int slices_of(struct layout on)
{
    return on.n_slice > 0 ? on.n_slice : 1;
}
static struct model *trained_new(const struct shape *s, enum dtype t, int parts, struct layout on, uint64_t seed)
{
    struct error err;
    struct model *m = model_new_random(&s->c, seed, devices[0], t, &err), *cut = NULL;
    if (!m || !model_parts_set(m, parts, &err)
        || (on.n_device > 1
            && !(cut = on.staged ? model_staged_new(m, devices, on.n_device / slices_of(on), slices_of(on), &err)
                                 : model_sliced_new(m, devices, on.n_device, &err))))
        fail_msg("%s, %d devices: %s", s->why, on.n_device, err.text);
    if (!cut)
        return m;
    model_free(m);
    assert_true(model_is_sliced(cut));
    return cut;
}

enum {
    RANKS_MAX = 3,
};

/* A sampler in slices gets from the trainers, however these are cut, what it would get from whole weights. */
static void samplers_compare(struct ranks *ranks, struct model *whole, int parts, const char *what)
{
    struct error err = { 0 };
    for (int n = 2; n <= 4; n *= 2) {
        struct model *m[2];
        if (!devices[n - 1] || !team_check(model_config(whole), n, parts, &err))
            continue;
        for (int k = 0; k < 2; k++) {
            m[k] = model_new_shape(model_config(whole), devices[0], model_dtype(whole), &err);
            if (!m[k] || !model_parts_set(m[k], parts, &err) || !model_team(m[k], devices, n, &err)
                || !(k ? model_weights_copy(m[k], whole, &err) : ranks_weights_get(ranks, m[k], &err)) || !device_sync(devices[0], &err))
                fail_msg("%s: %s", what, err.text);
        }
        slices_compare(m[0], m[1], n, what);
        model_free(m[0]);
        model_free(m[1]);
    }
}

/* Room for masters and moments on each of m's devices, as `on` says. */
static void room_set(struct trainer_settings *set, const struct model *m, struct layout on)
{
    set->offload = on.where != STATE_ON_DEVICES;
    for (int q = 0; q < on.n_device && set->offload; q++) {
        struct trainer_memory none, now;
        set->state_bytes[q] = 0;
        trainer_memory_of_device(m, set, q, &none);    // its state is the stage
        if (on.where != STATE_ON_HOST)
            set->state_bytes[q] = on.where == STATE_HAS_ROOM ? none.host : none.state + none.host * (size_t)(2 + q) / 7;
        trainer_memory_of_device(m, set, q, &now);
        assert_true(none.host > 0 && now.host + now.state <= none.host + none.state);
        assert_true(on.where == STATE_HAS_ROOM ? now.host == 0 : on.where == STATE_ON_HOST || (now.host > 0 && now.host < none.host));
    }
}

/* Is there as much in host memory as the memory plan has? A team's later devices may have fewer rows of the vocabulary. */
static void host_compare(struct trainer *t, const struct trainer_settings *set, int n_device, const char *why)
{
    for (int q = 0; q < n_device && trainer_zero(t) > 0; q++) {
        struct trainer_memory planned;
        size_t held = trainer_parts(trainer_of_device(t, q)).host_bytes;
        trainer_memory_of_device(trainer_model(t), set, q, &planned);
        if (held > planned.host || (q == 0 && held != planned.host))
            fail_msg("%s: device %d has %zu bytes in host memory, and %zu are planned", why, q, held, planned.host);
    }
}

/* The places have each byte of the tensors once, and these are o's weights, as the first device reads them. */
static void places_compare(const struct outcome *o, const struct extents *x, const struct model *m, const char *why)
{
    struct error err;
    size_t e = dtype_size(model_dtype(m)), n_want = 0, last = 0;
    char *seen = calloc(o->weight_bytes, 1), *got = malloc(o->weight_bytes);
    assert_true(seen && got);
    for (int64_t i = 0; i < x->n; i++) {
        const struct area *a = &x->at[i].of;
        assert_true(a->from >= last && area_end(a) <= o->weight_bytes);
        assert_in_range(x->at[i].at + area_bytes(a), 1, x->part[x->at[i].part].size_bytes);
        last = a->from;
        assert_true(mem_copy(devices[0], got, extent_mem(x, i), area_bytes(a), COPY_D2H, &err) && device_sync(devices[0], &err));
        for (int64_t r = 0; r < a->n_row; r++) {
            size_t at = a->from + (size_t)r * a->ld;
            if (memcmp(got + (size_t)r * a->row_bytes, (const char *)o->weights + at, a->row_bytes) != 0)
                fail_msg("%s: another row at byte %zu", why, at);
            for (size_t k = 0; k < a->row_bytes; k++)
                if (seen[at + k]++)
                    fail_msg("%s: byte %zu is in two places", why, at + k);
        }
    }
    for (int64_t t = 0; t < model_n_tensor(m); t++) {
        const struct tensor *of = model_tensor(m, t);
        n_want += (size_t)of->n_elem * e;
        if (of->n_elem > 0 && memchr(seen + (size_t)of->offset * e, 0, (size_t)of->n_elem * e))
            fail_msg("%s: a part of '%s' is in no place", why, of->name);
    }
    assert_true(n_want > 0);
    free(seen);
    free(got);
}

/* Where others find the weights that some trainers have: in all ranks' shards, or in the first one's slices and stages. */
static void places_look(const struct outcome *o, struct ranks *ranks, const struct model *m, struct layout on, const char *why)
{
    struct error err;
    struct extent_table t = { 0 };
    if (on.n_rank > 1 && on.zero == ZERO_MAX) {
        const struct extents *from;
        for (int k = 0; k < 2; k++) {    // once more is fine
            if (!ranks_weights_hold(ranks, &from, &err))
                fail_msg("%s: %s", why, err.text);
            assert_true(ranks_weights_are_held(ranks) && from->n_part == on.n_rank * on.n_device);
            places_compare(o, from, m, why);
        }
        ranks_weights_let_go(ranks);
        assert_false(ranks_weights_are_held(ranks));
    } else if (on.n_device > 1) {
        assert_true(extent_table_of_model(&t, m, &err) && t.n_part == on.n_device);
        const struct extents from = extent_table_all(&t);
        places_compare(o, &from, m, why);
        extent_table_release(&t);
    }
}

/* Some steps with a reference that follows, through checkpoints' state and back after the first. */
static void outcome_make(struct outcome *o, const struct shape *s, enum dtype t, int parts, struct layout on, bool recompute)
{
    struct error err = { 0 };
    struct group *g[TRAIN_STEPS * TRAIN_GROUPS];
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    struct trainer_hyper h;
    struct model *m[RANKS_MAX], *ref[RANKS_MAX];
    struct trainer *tr[RANKS_MAX];
    int n_rank = on.n_rank > 0 ? on.n_rank : 1;
    int64_t head_rows = devices[0]->head_rows;
    trainer_hyper_init(&h);
    h.lr = 1e-2;
    h.form.beta = 0.05f;
    h.weight_decay = 0.1;
    h.decay_matrices = true;
    h.max_norm = 0.5;
    h.skip_threshold = 1000;
    h.ref_every = 2;
    h.ref_share = 0.5;
    h.has_filter = false;
    set.token_budget_max = 64;    // several micro-batches
    set.recompute_block = recompute;
    set.n_team = on.staged ? slices_of(on) : on.n_device;
    set.n_stage = on.staged ? on.n_device / slices_of(on) : 0;
    set.optimizer = on.optimizer;
    strcpy(set.layers, recompute ? "1" : "");
    devices[0]->head_rows = 9 * s->c.vocab;    // several chunks of the head's rows
    for (int i = 0; i < TRAIN_STEPS * TRAIN_GROUPS; i++)
        g[i] = group_invent(i, s->c.vocab);
    g[TRAIN_STEPS * TRAIN_GROUPS - 1]->logp[0] -= 20;    // its first sample is beyond the threshold, known when its ratios are
    set.n_rank = n_rank;
    set.zero_stage = on.zero;
    set.grad_group = on.group;
    for (set.rank = 0; set.rank < n_rank; set.rank++) {
        m[set.rank] = trained_new(s, t, parts, on, 3);
        ref[set.rank] = trained_new(s, t, parts, on, 4);
        if (set.rank == 0)
            room_set(&set, m[0], on);
        if (!(tr[set.rank] = trainer_new(m[set.rank], ref[set.rank], &set, &err)))
            fail_msg("%s, %d devices: %s", s->why, on.n_device, err.text);
    }
    struct trainer_memory planned;
    trainer_memory(m[0], &set, &planned);
    assert_int_equal(planned.weight, model_held_bytes(on.n_device > 1 ? team_slice(m[0], 0) : m[0]));
    host_compare(tr[n_rank - 1], &set, on.n_device, s->why);
    struct ranks *ranks = ranks_new_here(tr, n_rank, &err);
    if (!ranks)
        fail_msg("%s, %d devices: %s", s->why, on.n_device, err.text);
    *o = (struct outcome){ .n = trainer_grad_n(tr[0]), .weight_bytes = model_weight_bytes(m[0]) };
    o->grad = calloc((size_t)o->n, 4);
    for (int i = 0; i < TRAIN_STEPS; i++) {
        double metric[METRIC_N];
        int n_group = i == 1 ? 1 : TRAIN_GROUPS;    // fewer micro-batches than ranks among them
        if (!ranks_step(ranks, (const struct group *const *)g + i * TRAIN_GROUPS, n_group, &h, metric, &err))
            fail_msg("%s, %d ranks of %d devices: %s", s->why, n_rank, on.n_device, err.text);
        o->loss = metric[M_LOSS];
        assert_true((metric[M_SKIPPED] > 0) == (i == TRAIN_STEPS - 1));
        assert_true(metric[M_TRAIN_SHARED] > 0.05 && metric[M_TRAIN_SHARED] < 0.5);
        o->norm = metric[M_GRAD_NORM];
        if (on.staged)    // the first stage has nothing to do while the last one begins
            assert_true(metric[M_STAGES_N] == set.n_stage && metric[M_STAGES_IDLE_S] > 0 && metric[M_STAGES_IDLE_S] < 60);
        if (i == 0 && n_rank == 1)    // several have their shards of it
            assert_true(trainer_grad_get(tr[0], o->grad, &err));
        for (int k = 0; i == 0 && k < STATE_N; k++) {
            float *copy = malloc((size_t)o->n * 4);
            assert_true(copy && trainer_state_get(tr[n_rank - 1], (enum trainer_state_kind)k, copy, &err));
            for (int r = 0; r < n_rank; r++)
                assert_true(trainer_state_set(tr[r], (enum trainer_state_kind)k, copy, &err));
            free(copy);
        }
    }
    for (int k = 0; k < STATE_N; k++) {
        o->state[k] = malloc((size_t)o->n * 4);
        assert_true(trainer_state_get(tr[0], (enum trainer_state_kind)k, o->state[k], &err));
    }
    o->weights = malloc(o->weight_bytes);
    o->reference = malloc(o->weight_bytes);
    assert_true(trainer_weights_get(tr[0], o->weights, &err) && ranks_hash(ranks, &o->hash, &err));
    assert_true(trainer_reference_moved(tr[0]) && trainer_reference_get(tr[0], o->reference, &err)
                && trainer_reference_set(tr[0], o->reference, &err));
    struct model *whole = model_new_empty(model_config(m[0]), devices[0], t, &err);    // as a sampler gets them
    void *got = malloc(o->weight_bytes);
    size_t bytes;
    assert_true(whole && ranks_weights_get(ranks, whole, &err));
    assert_true(mem_copy(devices[0], got, model_weights(whole, &bytes), o->weight_bytes, COPY_D2H, &err) && device_sync(devices[0], &err));
    assert_memory_equal(got, o->weights, o->weight_bytes);
    free(got);
    places_look(o, ranks, m[0], on, s->why);
    samplers_compare(ranks, whole, parts, s->why);
    model_free(whole);
    ranks_free(ranks);
    for (int r = 0; r < n_rank; r++) {
        trainer_free(tr[r]);
        model_free(m[r]);
        model_free(ref[r]);
    }
    for (int i = 0; i < TRAIN_STEPS * TRAIN_GROUPS; i++)
        group_free(g[i]);
    devices[0]->head_rows = head_rows;
}

static void outcomes_compare(const struct outcome *want, const struct outcome *got, const char *why, int n_device, int n_rank)
{
    if (n_rank == 1 && memcmp(want->grad, got->grad, (size_t)want->n * 4) != 0)
        fail_msg("%s: %d devices have another gradient", why, n_device);
    for (int k = 0; k < STATE_N; k++)
        if (memcmp(want->state[k], got->state[k], (size_t)want->n * 4) != 0)
            fail_msg("%s: %d devices leave another state %d", why, n_device, k);
    if (memcmp(want->weights, got->weights, want->weight_bytes) != 0 || want->hash != got->hash)
        fail_msg("%s: %d devices leave other weights", why, n_device);
    if (memcmp(want->reference, got->reference, want->weight_bytes) != 0)
        fail_msg("%s: %d devices leave another reference", why, n_device);
    if (memcmp(&want->loss, &got->loss, sizeof want->loss) != 0 || memcmp(&want->norm, &got->norm, sizeof want->norm) != 0)
        fail_msg("%s: loss and norm are %.17g and %.17g on %d devices, %.17g and %.17g on one", why, got->loss, got->norm, n_device,
                 want->loss, want->norm);
}

/* Sums in parts are the sums: the gradient is that of the device's own order, within rounding. */
static void gradient_compare(const struct outcome *a, const struct outcome *b, enum dtype t, const char *why)
{
    double diff = 0, size = 0,
           most = t == DT_F32 ? 1e-4 : 5e-2;    // roundings of 2^-24 and of 2^-9, a thousandfold where no norm holds the stream
    for (int64_t i = 0; i < a->n; i++) {
        diff += pow((double)a->grad[i] - (double)b->grad[i], 2);
        size += pow((double)b->grad[i], 2);
    }
    if (!(size > 0) || !(sqrt(diff / size) < most))
        fail_msg("%s: the gradient in parts differs by %.3g of its norm", why, sqrt(diff / size));
}

static void a_team_of_any_size_trains_to_the_bytes_of_one_device(UNUSED void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(trained) * 2; i += case_step()) {
        const struct shape *s = &trained[i / 2];
        enum dtype t = i % 2 ? DT_BF16 : DT_F32;
        bool recompute = (i + i / 2) % 2;    // with either type, by turns
        struct outcome one, own;
        int most = 1;
        while (most < 4 && s->sizes[most] > 0)
            most++;
        while (s->sizes[most - 1] > devices_most())
            most--;
        devices_open(s->sizes[most - 1]);
        outcome_make(&one, s, t, s->parts, (struct layout){ 1 }, recompute);
        outcome_make(&own, s, t, 0, (struct layout){ 1 }, recompute);
        gradient_compare(&one, &own, t, s->why);
        outcome_free(&own);
        for (int k = 1; k < most; k++) {
            struct outcome o;
            outcome_make(&o, s, t, s->parts, (struct layout){ s->sizes[k] }, recompute);
            outcomes_compare(&one, &o, s->why, s->sizes[k], 1);
            outcome_free(&o);
        }
        outcome_free(&one);
        devices_close(s->sizes[most - 1]);
    }
}

/* Layers of several kinds would be cut anywhere: 5 of them into 2, 3 and 5 stages, with sums in one part and in several, and with moments of
 * a byte. */
static void a_pipeline_of_any_size_trains_to_the_bytes_of_one_device(UNUSED void **state)
{
    static const int sizes[] = { 2, 3, 5 };
    for (size_t i = 0; i < ARRAY_SIZE(trained) * 2; i += case_step()) {
        struct shape s = trained[i / 2];
        bool recompute = i % 2;
        enum dtype t = i / 2 % 2 ? DT_BF16 : DT_F32;
        enum optimizer optimizer = i % 3 ? OPTIMIZER_ADAMW : OPTIMIZER_ADAMW_8BIT;
        int parts = recompute ? 0 : s.parts, most = (int)ARRAY_SIZE(sizes);
        while (most > 1 && sizes[most - 1] > devices_most())
            most--;
        struct outcome one;
        s.c.n_layer = 5;
        devices_open(sizes[most - 1]);
        outcome_make(&one, &s, t, parts, (struct layout){ .n_device = 1, .optimizer = optimizer }, recompute);
        for (int k = 0; k < most; k++) {
            struct outcome o;
            if (recompute && k != (int)(i / 2) % most)    // of each shape in one size, and in each size of some
                continue;
            outcome_make(&o, &s, t, parts, (struct layout){ sizes[k], true, optimizer }, recompute);
            outcomes_compare(&one, &o, s.why, sizes[k], 1);
            outcome_free(&o);
        }
        outcome_free(&one);
        devices_close(sizes[most - 1]);
    }
}

static void ranks_of_teams_train_to_the_bytes_of_one_device(UNUSED void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(trained) * 2; i += case_step()) {
        const struct shape *s = &trained[i / 2];
        enum dtype t = i % 2 ? DT_BF16 : DT_F32;
        bool recompute = i / 2 % 2;
        int n_device = s->sizes[2] > 0 && devices_most() >= s->sizes[2] && i % 2 ? s->sizes[2] : s->sizes[1];
        struct outcome one;
        devices_open(n_device);
        int group = 1 + i % 3 / 2;
        outcome_make(&one, s, t, s->parts, (struct layout){ 1, .group = group }, recompute);
        for (int zero = (int)(i + i / 2) % 2; zero <= ZERO_MAX; zero += 2) {    // every one of each shape, with either type by turns
            struct outcome o;
            int n_rank = 2 + (int)(i / 2 + (size_t)zero / 2) % 2;
            outcome_make(&o, s, t, s->parts, (struct layout){ n_device, .n_rank = n_rank, .zero = zero, .group = group }, recompute);
            outcomes_compare(&one, &o, s->why, n_device, n_rank);
            outcome_free(&o);
        }
        outcome_free(&one);
        devices_close(n_device);
    }
}

/* Stages with a shared tensor and without, at every zero_stage, with moments of a byte too. Ranks of one process take turns micro-batch by
 * micro-batch; that several are under way at once in ranks that are processes is integration/ranks_test's. */
static void ranks_of_pipelines_train_to_the_bytes_of_one_device(UNUSED void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(trained); i++) {
        struct shape s = trained[i];
        enum dtype t = i / 3 % 2 ? DT_BF16 : DT_F32;
        enum optimizer optimizer = i % 3 == 2 ? OPTIMIZER_ADAMW_8BIT : OPTIMIZER_ADAMW;
        bool recompute = i % 3 == 1 || i == 2;    // the second with an odd zero_stage
        int n_device = MIN(2 + (int)((i + 1) / 2) % 2, devices_most());
        struct outcome one;
        s.c.n_layer = 3;
        devices_open(n_device);
        int group = 1 + (i + 1) % 2;
        outcome_make(&one, &s, t, 0, (struct layout){ .n_device = 1, .optimizer = optimizer, .group = group }, recompute);
        for (int zero = (int)(i / 2) % 2; zero <= ZERO_MAX; zero += 2) {
            struct outcome o;
            int n_rank = 2 + (int)(i + (size_t)zero) % 2;
            outcome_make(&o, &s, t, 0, (struct layout){ n_device, true, optimizer, n_rank, zero, .group = group }, recompute);
            outcomes_compare(&one, &o, s.why, n_device, n_rank);
            outcome_free(&o);
        }
        outcome_free(&one);
        devices_close(n_device);
    }
}

/* Each stage a team of two; with one rank and with several. */
static void pipelines_of_teams_train_to_the_bytes_of_one_device(UNUSED void **state)
{
    if (devices_most() < 4)
        return;
    for (size_t i = 0; i < ARRAY_SIZE(trained); i++) {
        struct shape s = trained[i];
        enum dtype t = i % 2 ? DT_BF16 : DT_F32;
        bool recompute = i % 3 == 1;
        int n_stage = MIN(i == 2 ? 3 : 2, devices_most() / 2), group = 1 + i % 2;
        struct outcome one;
        s.c.n_layer = 3;
        devices_open(2 * n_stage);
        outcome_make(&one, &s, t, s.parts, (struct layout){ .n_device = 1, .group = group }, recompute);
        for (int n_rank = 1; n_rank <= 2; n_rank++) {
            struct outcome o;
            outcome_make(
                &o, &s, t, s.parts,
                (struct layout){ 2 * n_stage, true, .n_rank = n_rank, .zero = ZERO_MAX - (int)i % 3, .n_slice = 2, .group = group },
                recompute);
            outcomes_compare(&one, &o, s.why, 2 * n_stage, n_rank);
            outcome_free(&o);
        }
        outcome_free(&one);
        devices_close(2 * n_stage);
    }
}

/* On teams, in stages, and in stages that are teams, of one rank and of several at every zero_stage; moments set to 0 on the way. */
static void state_in_host_memory_leaves_the_bytes_of_one_device(UNUSED void **state)
{
    static const struct {
        struct layout on;
        const char *why;
    } cases[] = {
        { { .n_device = 2 }, "a team" },
        { { .n_device = 4 }, "a team of four" },
        { { .n_device = 2, .staged = true }, "two stages" },
        { { .n_device = 4, .staged = true, .n_slice = 2 }, "two stages of two slices" },
        { { .n_device = 2, .n_rank = 2, .zero = 0 }, "ranks that keep everything" },
        { { .n_device = 4, .n_rank = 2, .zero = 1 }, "shards of masters and moments" },
        { { .n_device = 2, .n_rank = 3, .zero = 2 }, "and of the gradient" },
        { { .n_device = 2, .n_rank = 2, .zero = 3, .group = 2 }, "and of the weights" },
        { { .n_device = 2, .staged = true, .n_rank = 2, .zero = 0, .group = 2 }, "stages of ranks that keep everything" },
        { { .n_device = 2, .staged = true, .n_rank = 3, .zero = 1 }, "shards of a stage's masters and moments" },
        { { .n_device = 2, .staged = true, .n_rank = 2, .zero = 2 }, "and of its gradient" },
        { { .n_device = 2, .staged = true, .n_rank = 2, .zero = 3 }, "and of its weights" },
        { { .n_device = 4, .staged = true, .n_slice = 2, .n_rank = 2, .zero = 3 }, "shards of slices of stages" },
    };
    const struct shape *s = &trained[1];
    if (devices_most() < 4)
        return;
    devices_open(4);
    for (int group = 1; group <= 2; group++)
        for (int k = 0; k < 2; k++) {    // also with layers that are not trained; with masters, and where these are the weights
            struct outcome one;
            enum dtype t = k ? DT_F32 : DT_BF16;
            outcome_make(&one, s, t, s->parts, (struct layout){ .n_device = 1, .group = group }, k);
            for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
                for (int where = STATE_HAS_ROOM; where <= STATE_ON_HOST; where++) {
                    struct layout on = cases[i].on;
                    struct outcome o;
                    if (MAX(on.group, 1) != group)
                        continue;
                    on.where = where;
                    outcome_make(&o, s, t, s->parts, on, k);
                    outcomes_compare(&one, &o, cases[i].why, on.n_device, MAX(on.n_rank, 1));
                    outcome_free(&o);
                }
            outcome_free(&one);
        }
    devices_close(4);
}

/* What a trainer has after two steps: masters and moments, with the hash of the weights. */
struct trained_state {
    float *state[STATE_N];    // (n)
    int64_t n;
    uint64_t hash;
};
/* Train as rank `number` of a run whose devices meet at c, which it leaves; NULL: alone. */
static bool steps_make(struct trained_state *o, const struct shape *s, struct layout on, int number, struct collective *const *c,
                       struct error *err)
{
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    struct trainer_hyper h;
    struct group *g[TRAIN_GROUPS];
    struct model *m = trained_new(s, DT_BF16, s->parts, on, 3);
    bool ok = true;
    trainer_hyper_init(&h);
    h.lr = 1e-2;
    h.form.beta = 0;
    h.max_norm = 0.5;
    set.token_budget_max = 64;
    set.n_team = on.n_device;
    set.n_rank = c ? on.n_rank : 1;
    set.rank = number;
    set.zero_stage = c ? on.zero : 0;
    room_set(&set, m, on);
    for (int i = 0; i < TRAIN_GROUPS; i++)
        g[i] = group_invent(i, s->c.vocab);
    struct trainer *t = trainer_new(m, NULL, &set, err);
    struct ranks *ranks = !t ? NULL : c ? ranks_new(t, c, err) : ranks_new_here(&t, 1, err);
    *o = (struct trained_state){ .n = model_n_flat(m) };
    for (int i = 0; i < 2 && ranks && ok; i++)
        ok = ranks_step(ranks, (const struct group *const *)g, TRAIN_GROUPS, &h, NULL, err);
    ok = ok && ranks && ranks_hash(ranks, &o->hash, err);
    for (int k = 0; k < STATE_N && ok; k++) {
        if (number == 0 || !trainer_gives_first(t))
            o->state[k] = calloc((size_t)o->n, 4);
        ok = trainer_state_get(t, (enum trainer_state_kind)k, o->state[k], err);
    }
    int met[RANKS_MAX];
    ok = ok && (!c || collective_gather(c[0], &number, sizeof number, met, err));    // then nobody reads this one's shards any more
    ranks_free(ranks);
    for (int q = 0; q < on.n_device && c; q++)
        collective_leave(c[q]);
    trainer_free(t);
    model_free(m);
    for (int i = 0; i < TRAIN_GROUPS; i++)
        group_free(g[i]);
    return ok;
}

/* In a process of its own: is what it leaves what one device leaves? */
struct rank_of_two {
    const char *dir, *kind;
    struct layout on;
    const struct trained_state *want;
};
static bool rank_process(const void *ctx, int number, struct error *err)
{
    const struct rank_of_two *r = ctx;
    const struct trained_state *want = r->want;
    struct layout on = r->on;
    struct collective *c[2];
    struct trained_state got;
    devices_open(on.n_device);
    for (int q = 0; q < on.n_device; q++) {
        char name[32];
        snprintf(name, sizeof name, "%s-%d-%d", r->kind, on.zero, q);
        struct collective_config f = { .kind = r->kind,
                                       .dir = r->dir,
                                       .name = name,
                                       .rank = number,
                                       .n_rank = on.n_rank,
                                       .dev = devices[q],
                                       .join_ms = PROCESSES_MS,
                                       .wait_ms = PROCESSES_MS };
        if (!(c[q] = collective_join(&f, err)))
            return false;
    }
    if (!steps_make(&got, &trained[1], on, number, c, err))
        return false;
    bool same = got.hash == want->hash;
    for (int k = 0; k < STATE_N; k++)
        same = same && (!got.state[k] || memcmp(got.state[k], want->state[k], (size_t)want->n * 4) == 0);
    return same || error_set(err, ERR_DATA, "%s, zero_stage %d: it leaves something else than one device", r->kind, on.zero);
}

/* Ranks that reach each other's host memory, and ranks that send what is in it. */
static void processes_with_state_in_host_memory_leave_the_bytes_of_one_device(UNUSED void **state)
{
    static const char *const kinds[] = { "ipc", "tcp", "local" };
    char dir[] = "/tmp/rc-team-XXXXXX", name[32];
    struct trained_state want;
    struct error err = { 0 };
    if (on_gpus())    // they do not survive a fork
        skip();
    devices_open(1);
    assert_true(steps_make(&want, &trained[1], (struct layout){ .n_device = 1 }, 0, NULL, &err));
    devices_close(1);
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < ARRAY_SIZE(kinds) * (ZERO_MAX + 1); i++) {
        struct layout on = { .n_device = 2, .n_rank = 2, .zero = (int)i % (ZERO_MAX + 1), .where = STATE_PARTLY };
        const char *kind = kinds[i / (ZERO_MAX + 1)];
        for (int q = 0; q < on.n_device; q++) {
            snprintf(name, sizeof name, "%s-%d-%d", kind, on.zero, q);
            assert_true(collective_call(dir, name, &err));
        }
        two_processes(rank_process, &(struct rank_of_two){ dir, kind, on, &want });
    }
    assert_int_equal(rmdir(dir), 0);
    for (int k = 0; k < STATE_N; k++)
        free(want.state[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pipeline_of_any_size_trains_to_the_bytes_of_one_device),
        cmocka_unit_test(a_team_of_any_size_gives_the_bits_of_one_device),
        cmocka_unit_test(slices_follow_new_weights),
        cmocka_unit_test(a_rank_that_fails_makes_the_others_return_with_its_error),
        cmocka_unit_test(a_device_that_fails_ends_the_teams_of_other_processes_that_wait_for_it),
        cmocka_unit_test(parts_are_part_of_the_result),
        cmocka_unit_test(teams_that_cannot_be_are_refused_with_the_nearest),
        cmocka_unit_test(a_team_without_whole_weights_gives_the_same_bits),
        cmocka_unit_test(slices_hold_every_element),
        cmocka_unit_test(slices_are_filled_from_shards),
        cmocka_unit_test(a_team_that_cannot_be_made_says_why),
        cmocka_unit_test(teams_that_cannot_train_are_refused_with_the_nearest),
        cmocka_unit_test(a_team_of_any_size_trains_to_the_bytes_of_one_device),
        cmocka_unit_test(ranks_of_teams_train_to_the_bytes_of_one_device),
        cmocka_unit_test(ranks_of_pipelines_train_to_the_bytes_of_one_device),
        cmocka_unit_test(pipelines_of_teams_train_to_the_bytes_of_one_device),
        cmocka_unit_test(state_in_host_memory_leaves_the_bytes_of_one_device),
        cmocka_unit_test(processes_with_state_in_host_memory_leave_the_bytes_of_one_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
