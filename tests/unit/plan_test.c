/* What the memory plan gives to the parts of a run, and what it proposes where there is no room. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "kernels/ops.h"
#include "protocol/settings/run_config.h"
#include "workers/engine/model/config.h"
#include "workers/engine/model/lora.h"
#include "workers/engine/model/model.h"
#include "workers/engine/plan/memory_plan.h"
#include "workers/engine/plan/run_room.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/trainer/trainer.h"

#define H200 ((size_t)150000000000)

/* A device that is planned like a GPU; nothing is allocated on it. */
static struct device *gpu_new(void)
{
    struct error err = { 0 };
    struct device *dev = device_new("cpu:0", 1, &err);
    if (!dev)
        fail_msg("%s", err.text);
    dev->kind = DEVICE_CUDA;
    dev->host_memory = false;
    dev->head_rows = (int64_t)400 << 20;
    return dev;
}

static struct model *shape_new(struct device *dev, const char *name)
{
    struct error err = { 0 };
    const struct model_config *c = config_shape(name, &err);
    struct model *m = c ? model_new_shape(c, dev, DT_BF16, &err) : NULL;
    if (!m)
        fail_msg("%s", err.text);
    return m;
}

/* A trainer's device, with g's sampler. whole: which reads whole weights of the last step. */
static struct plan_ask ask_of(size_t have, const struct model *m, bool whole, const struct generator_config *g)
{
    return (struct plan_ask){
        .have = have, .model = m, .holder = { .trains = true, .first = true, .samples = whole, .n_sampler = 1, .n_lane = 1 }, .g = g
    };
}

static struct trainer_settings settings_of(int n_rank, int zero, int64_t budget, bool recompute)
{
    struct trainer_settings s = TRAINER_SETTINGS_DEFAULT;
    s.n_rank = n_rank;
    s.zero_stage = zero;
    s.token_budget_max = budget;
    s.recompute_block = recompute;
    return s;
}

static void auto_takes_the_lowest_stage_that_has_room(UNUSED void **state)
{
    static const struct {
        int64_t gib;
        bool whole;
        int zero, n_team, n_stage;
    } cases[] = {
        { 140, false, 1, 0, 0 },    // 7B on two devices
        { 125, false, 2, 0, 0 },    //
        { 104, false, 3, 0, 0 },    //
        { 20, false, 3, 0, 0 },     // none has room: the one that lacks least
        { 20, true, 2, 0, 0 },      //
        { 100, true, 1, 2, 0 },     // on two teams of two
        { 82, true, 2, 2, 0 },      //
        { 73, true, 3, 2, 0 },      //
        { 110, true, 1, 0, 2 },     // in two pipelines of two
        { 95, true, 2, 0, 2 },      //
        { 86, true, 3, 0, 2 },      //
    };
    struct device *dev = gpu_new();
    struct model *m = shape_new(dev, "Qwen2.5-7B");
    struct generator_config g = { .model = m, .max_seq = 64, .max_item = 64, .max_seq_tok = 1024 };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct trainer_settings s = settings_of(2, 0, 8192, false);
        struct plan_ask a = ask_of((size_t)cases[i].gib << 30, m, cases[i].whole, &g);
        s.n_team = cases[i].n_team;
        s.n_stage = cases[i].n_stage;
        int zero = memory_plan_zero(&a, &s);
        if (zero != cases[i].zero)
            fail_msg("case %zu, %d GiB: zero_stage %d, not %d", i, (int)cases[i].gib, zero, cases[i].zero);
        struct memory_plan p;
        s.zero_stage = zero;
        assert_true(memory_plan_in(&p, &a, &s) == (cases[i].gib > 20));
    }
    model_free(m);
    device_free(dev);
}

/* What a layer keeps on top, per token and in bf16: two norms' outputs, d wide, and SwiGLU's product, f wide. */
static void what_has_room_is_not_computed_again(UNUSED void **state)
{
    static const struct {
        const char *model;
        int64_t gib, budget, kept_bytes;    // 0: there is no room for it, or it is not wanted
        bool recompute, offload, turns;
        int n_team;
        const char *why;
    } cases[] = {
        { "Qwen2.5-0.5B", 139, 16384, (2 * 896 + 4864) * 2 * 24, false, false, true, 0, "most of the device is free" },
        { "Qwen2.5-0.5B", 139, 16384, (2 * 896 + 4864) * 2 * 24, false, false, false, 0, "the same with a region for each" },
        { "Qwen2.5-0.5B", 139, 16384, (2 * 896 + 4864) * 2 * 24, false, true, true, 0, "and all of the state stays on the device" },
        { "Qwen2.5-0.5B", 139, 16384, 0, true, false, true, 0, "block inputs only were asked for" },
        { "Qwen2.5-0.5B", 139, 16384, 0, false, false, true, 2, "the other device of a team may have less room" },
        { "Qwen2.5-0.5B", 26, 16384, 0, false, false, true, 0, "22 GiB are needed, and 4.9 more would be" },
        { "Qwen2.5-7B", 139, 4096, 0, false, true, true, 0, "it would send state to the host" },
    };
    struct device *dev = gpu_new();
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct model *m = shape_new(dev, cases[i].model);
        struct generator_config g = { .model = m, .max_seq = 64, .max_item = 64, .max_seq_tok = 1024 };
        struct trainer_settings s = settings_of(1, 0, cases[i].budget, cases[i].recompute);
        struct trainer_memory t;
        struct memory_plan p;
        s.offload = cases[i].offload;
        s.n_team = cases[i].n_team;
        trainer_memory(m, &s, &t);
        struct plan_ask a = ask_of((size_t)cases[i].gib << 30, m, true, &g);
        a.holder.ahead = !cases[i].turns;
        if (!memory_plan_in(&p, &a, &s))
            fail_msg("case %zu does not fit at all", i);
        if (s.keep_more != (cases[i].kept_bytes > 0) || p.activation != t.activation + (size_t)(cases[i].kept_bytes * cases[i].budget))
            fail_msg("case %zu, %s: %zu bytes of activations instead of %zu", i, cases[i].why, p.activation, t.activation);
        assert_true(p.region >= p.activation && p.total + p.reserve <= (size_t)cases[i].gib << 30);
        model_free(m);
    }
    device_free(dev);
}

/* Bytes per parameter of what does not depend on the batch, as section 3 of ZeRO (arXiv 1910.02054) counts them but with an fp32 gradient:
 * 2 + 4 + 12, and its shares; the plan has two layers' gradients, what comes of others and pieces in use on top. */
static void each_stage_keeps_its_share(UNUSED void **state)
{
    static const double weight[] = { 2, 2, 2, 1 }, gradient[] = { 4 + 2, 4 + 2, 2, 2 }, moments[] = { 12, 6, 6, 6 };    // of 2 ranks
    struct device *dev = gpu_new();
    struct model *m = shape_new(dev, "Qwen2.5-14B");
    double n = (double)model_n_flat(m), layer = 275.3e6, embed = 778.6e6;    // 48 layers; 152,064 x 5,120
    for (int z = 0; z <= 3; z++) {
        struct trainer_settings s = settings_of(2, z, 4096, true);
        struct trainer_memory t;
        double two = z == 3 ? embed : 2 * embed;    // places for gradients: the embedding takes both, or one of two
        double more = z < 2 ? two / 2 : two + two / 2, used = z == 3 ? 2 * layer + embed : 0;
        struct trainer_memory half;
        trainer_memory(m, &s, &t);
        s.n_team = 2;
        trainer_memory(m, &s, &half);    // but for norms and biases, of which each device has all
        assert_float_equal((double)half.weight, (double)t.weight / 2, 0.002 * n);
        assert_float_equal((double)half.state, (double)t.state / 2, 0.002 * n);
        assert_float_equal((double)t.weight, weight[z] * n + 2 * used, 0.002 * n);
        assert_float_equal((double)t.gradient, gradient[z] * n + 4 * more, 0.01 * n);
        assert_float_equal((double)t.state, moments[z] * n, 0.002 * n);
    }
    model_free(m);
    device_free(dev);
}

/* Bytes per parameter beside bf16 weights: an fp32 master and two fp32 moments; two codes and their scales; next to nothing. */
static void each_optimizer_takes_what_its_moments_take(UNUSED void **state)
{
    static const double bytes[] = { 4 + 8, 4 + 2 + 2 * 4.0 / 128, 4 };    // in the order of enum optimizer
    struct device *dev = gpu_new();
    struct model *m = shape_new(dev, "Qwen2.5-7B");
    for (int o = 0; o < 3; o++)
        for (int n_rank = 1; n_rank <= 2; n_rank++) {
            struct trainer_settings s = settings_of(n_rank, o < 2 && n_rank == 2, 4096, false);
            struct trainer_memory t;
            s.optimizer = (enum optimizer)o;
            trainer_memory(m, &s, &t);
            double n = (double)model_n_flat(m) / (s.zero_stage ? 2 : 1);
            assert_float_equal((double)t.state, bytes[o] * n, 0.002 * n);
        }
    model_free(m);
    device_free(dev);
}

/* The stages have each parameter once, and their runs as many micro-batches' activations as stages follow. */
static void each_stage_of_a_pipeline_keeps_its_layers(UNUSED void **state)
{
    struct device *dev = gpu_new();
    static const char *const shapes[] = { "Qwen2.5-7B", "Qwen2.5-0.5B" };    // with a head of its own, and without
    for (int i = 0; i < 2; i++) {
        struct model *m = shape_new(dev, shapes[i]);
        struct trainer_settings s = settings_of(1, 0, 4096, false);
        struct trainer_memory one, t[4];
        double weight = 0, gradient = 0, activation = 0;
        trainer_memory(m, &s, &one);
        s.n_stage = 4;
        for (int q = 0; q < 4; q++) {
            trainer_memory_of_device(m, &s, q, &t[q]);
            assert_int_equal(t[q].state, 6 * t[q].weight);
            weight += (double)t[q].weight;
            gradient += (double)t[q].gradient - (1 << 25);    // pieces of the flat order, for its norm
            activation += (double)t[q].activation / (4 - q);
        }
        s.n_rank = 4;    // of four ranks a quarter of the state
        s.zero_stage = 2;
        for (int q = 0; q < 4; q++) {
            struct trainer_memory of_rank;
            trainer_memory_of_device(m, &s, q, &of_rank);
            assert_true(of_rank.weight == t[q].weight);
            assert_float_equal((double)of_rank.state, (double)t[q].state / 4, 0.01 * (double)t[q].state);
        }
        s.n_rank = 1;
        s.n_team = 2;    // each stage on two devices
        for (int q = 0; q < 4; q++) {
            struct trainer_memory half;
            trainer_memory_of_device(m, &s, 2 * q, &half);
            assert_float_equal((double)half.weight, (double)t[q].weight / 2, 0.01 * (double)t[q].weight);
            assert_float_equal((double)half.state, (double)t[q].state / 2, 0.01 * (double)t[q].state);
        }
        s.n_team = 0;
        assert_float_equal(weight, (double)model_weight_bytes(m), 1e-4 * weight);
        assert_float_equal(gradient, 2 * weight, 1e-4 * weight);
        assert_in_range((uintmax_t)activation, 3 * one.activation / 4, 5 * one.activation / 4);    // scratch on each, the head on one
        trainer_memory(m, &s, &one);
        assert_memory_equal(&one, &t[0], sizeof one);
        model_free(m);
    }
    device_free(dev);
}

/* 2 bytes of weights, 4 of gradient and 12 of state for each parameter of a slice; and the whole weights, to publish. */
static void each_device_of_a_team_keeps_its_share(UNUSED void **state)
{
    struct device *dev = gpu_new();
    struct model *m = shape_new(dev, "Qwen2.5-7B");
    struct generator_config g = { .model = m, .max_seq = 64, .max_item = 64, .max_seq_tok = 1024 };
    for (int n_team = 2; n_team <= 4; n_team *= 2) {
        struct trainer_settings s = settings_of(1, 0, 4096, false);
        struct plan_ask a = ask_of(H200, m, true, &g);
        struct trainer_memory t;
        struct memory_plan p;
        s.n_team = n_team;
        trainer_memory(m, &s, &t);
        double n = (double)model_n_flat(m) / n_team;
        assert_float_equal((double)t.weight, 2 * n, 0.002 * n);
        assert_float_equal((double)t.gradient, 4 * n + 33554432, 0.004 * n);    // and the stage of 8 Mi elements
        assert_float_equal((double)t.state, 12 * n, 0.012 * n);
        assert_true(memory_plan_in(&p, &a, &s));
        assert_int_equal(p.weights, t.weight + model_weight_bytes(m));
        assert_false(p.turns);
    }
    model_free(m);
    device_free(dev);
}

/* The last one has the shared tensor, of whose gradient it keeps several sums. */
static void a_layout_fits_when_all_its_stages_do(UNUSED void **state)
{
    struct device *dev = gpu_new();
    struct model *m = shape_new(dev, "Qwen2.5-0.5B");
    struct generator_config g = { .model = m, .max_seq = 64, .max_item = 64, .max_seq_tok = 1024 };
    struct trainer_settings s = settings_of(1, 0, 1024, true), four;
    struct trainer_memory last;
    struct memory_plan p;
    char text[160];
    s.optimizer = OPTIMIZER_ADAMW_8BIT;    // whose state has to be on the devices
    four = s;
    s.n_stage = 2;
    four.n_stage = 4;
    trainer_memory_of_device(m, &four, 3, &last);
    size_t have = last.weight + last.gradient + last.state + last.activation + RESERVE_CUDA;
    struct plan_ask enough = ask_of(have, m, false, &g), less = ask_of(have - 1, m, false, &g);
    assert_true(memory_plan_in(&p, &less, &four));    // the first one
    memory_plan_nearest(&less, &s, text, sizeof text);
    assert_string_equal(text, "no layout of up to 8 such devices has room for it");    // with 8 there are more such sums
    memory_plan_nearest(&enough, &s, text, sizeof text);
    assert_string_equal(text, "it would fit with pipeline_parallel_size 4");
    model_free(m);
    device_free(dev);
}

static bool card_of_80_gb(UNUSED struct device *dev, size_t *free_bytes, size_t *total_bytes, UNUSED struct error *err)
{
    *free_bytes = *total_bytes = (size_t)80 * 1000 * 1000 * 1000;
    return true;
}

/* 32.8e9 parameters with 2 bytes of weights and 4 of gradient take 49 GB of each of four cards, and slices to sample with 16 GB; of 12 bytes of
 * masters and moments, 98 GB a card, most is in host memory. */
static void four_cards_of_80_gb_train_32b_with_state_in_host_memory(UNUSED void **state)
{
    const size_t gb = 1000 * 1000 * 1000;
    struct error err = { 0 };
    char dir[] = "/tmp/rc-plan-XXXXXX", file[64];
    struct device *dev = gpu_new();
    struct model *m = shape_new(dev, "Qwen2.5-32B");
    struct run_config *c = malloc(sizeof *c);
    struct run_part part = { .rank = 0, .producer = 0, .helps = -1 };
    struct run_room room, even, without;
    struct ops card = *dev->op;
    card.mem_info = card_of_80_gb;
    dev->op = &card;
    size_t have[SUM_PARTS_MAX] = { 0, 80 * gb, 80 * gb, 78 * gb };
    assert_true(mkdtemp(dir) && config_save(model_config(m), dir, "bfloat16", &err));
    run_config_init(c);
    snprintf(c->model, sizeof c->model, "%s", dir);
    c->beta = 0;
    c->tensor_parallel_size = c->producer_tensor_parallel_size = 4;
    c->recompute_full = true;
    c->token_budget = 2048;
    c->max_prompt_tokens = c->max_new_tokens = 512;
    assert_true(run_room_plan(&without, c, &part, dev, NULL, &err) && !without.fits);
    assert_non_null(strstr(without.nearest, "it would fit with offload_optimizer"));
    c->offload_optimizer = true;
    assert_true(run_devices_differ(c, dev));
    if (!run_room_plan(&room, c, &part, dev, have, &err) || !room.fits)
        fail_msg("it has no room: %s, %s", err.text, room.nearest);
    const struct memory_plan *p = &room.plan;
    double n = (double)model_n_flat(m) / 4, all = 0;
    assert_float_equal((double)(p->weights + p->gradient), 2 * (2 * n) + 4 * n, 0.1e9);    // what is trained, and what samples
    assert_true(p->total + p->reserve <= 80 * gb && p->total + p->reserve > 79.9 * gb);
    for (int q = 0; q < 4; q++) {
        struct trainer_memory t;
        struct trainer_settings s = run_trainer_settings(c, 0, dev);
        memcpy(s.state_bytes, room.state_bytes, sizeof s.state_bytes);
        trainer_memory_of_device(m, &s, q, &t);
        all += (double)p->host[q];
        assert_int_equal(t.host, p->host[q]);
        assert_in_range(t.host, (size_t)(12 * n) - 12 * gb, (size_t)(12 * n) + gb / 10);
        assert_float_equal((double)(t.host + t.state), 12 * n, 0.6e9);    // with the stage, and what every device has of norms
    }
    assert_true(p->host[1] <= p->host[0] && p->host[2] == p->host[1]);    // the first one has as much else, or more
    assert_float_equal((double)(p->host[3] - p->host[2]), 2e9, 2e4);      // which this one has less
    assert_true(run_room_plan(&even, c, &part, dev, (const size_t[]){ 0, 80 * gb, 80 * gb, 80 * gb }, &err) && even.fits);
    assert_true(p->kv < even.plan.kv && even.plan.host[3] == even.plan.host[1] && even.plan.host[0] > p->host[0]);    // as all have to
    assert_int_equal(memory_plan_host(p), all);
    assert_float_equal((double)room.copy, 4 * (2 * n + 12 * n), 0.1e9);    // bf16 weights, and fp32 masters and two moments
    assert_true(run_host_fits(memory_plan_host(p), 1, 512 * gb, &err));
    assert_false(run_host_fits(memory_plan_host(p), 1, 256 * gb, &err));
    snprintf(file, sizeof file, "keeps %.1f GB of masters", all * 1e-9);
    assert_non_null(strstr(err.text, file));
    snprintf(file, sizeof file, "256.0 GB are available, %.1f GB too little", all * 1e-9 - 256);
    assert_non_null(strstr(err.text, file));
    assert_false(run_host_fits(memory_plan_host(p), 2, 512 * gb, &err));
    have[2] = 60 * gb;    // 65 GB have to be there
    assert_true(run_room_plan(&room, c, &part, dev, have, &err) && !room.fits);
    assert_int_equal(room.lacks.device, 2);
    assert_in_range(room.lacks.need, 65 * gb, 80 * gb);
    snprintf(file, sizeof file, "%s/config.json", dir);
    assert_true(unlink(file) == 0 && rmdir(dir) == 0);
    free(c);
    model_free(m);
    device_free(dev);
}

static void a_whole_copy_beside_shards_is_counted(UNUSED void **state)
{
    struct device *dev = gpu_new();
    struct model *m = shape_new(dev, "Qwen2.5-1.5B");
    struct generator_config g = { .model = m, .max_seq = 64, .max_item = 64, .max_seq_tok = 1024 };
    struct memory_plan with, without;
    for (int z = 2; z <= 3; z++) {
        struct trainer_settings s = settings_of(2, z, 4096, false);
        struct plan_ask a = ask_of(H200, m, true, &g), none = ask_of(H200, m, false, &g);
        assert_true(memory_plan_in(&with, &a, &s) && memory_plan_in(&without, &none, &s));
        assert_true(with.weights - without.weights == (z == 3 ? model_weight_bytes(m) : 0));
        assert_true(with.zero_stage == z && with.total <= H200);
    }
    model_free(m);
    device_free(dev);
}

/* What the first device of a part has of a 14B's weights. Shards need places for pieces in use, too, less
 * than another tenth; and with stages the embedding is on the first one. */
static void whole_weights_are_only_where_somebody_reads_them(UNUSED void **state)
{
    static const struct {
        int64_t t, i, tp, pp, ptp, n_behind, rank, producer;
        const char *zero, *placement;
        double want;    // whole weights
        const char *why;
        const char *weights;       // NULL: auto, which is by files
        const char *collective;    // NULL: auto
        bool evaluates, free_running;
    } cases[] = {
        { 4, 4, 1, 1, 1, 0, 1, 1, "3", "shared", 1.25, "shards, and what it samples with" },
        { 4, 4, 1, 1, 4, 0, 1, 1, "3", "shared", 0.5, "shards, and slices to sample with" },
        { 4, 4, 1, 1, 4, 0, 0, 0, "3", "shared", 0.5, "the first trainer, too, where all sample with their own" },
        { 4, 4, 1, 1, 4, 1, 1, 1, "3", "shared", 0.5, "a copy in slices comes from all shards" },
        { 4, 1, 1, 1, 1, 0, 1, -1, "3", "apart", 0.25, "shards" },
        { 4, 1, 1, 1, 1, 0, 0, -1, "3", "apart", 0.25, "a file for others is made of all shards" },
        { 4, 1, 1, 1, 1, 1, 0, -1, "3", "apart", 0.25, "a version that is kept for others, too", .weights = "copy" },
        { 4, 1, 1, 1, 1, 1, 0, -1, "3", "apart", 0.25, "or to be broadcast", .weights = "nccl" },
        { 4, 1, 1, 1, 1, 0, 0, -1, "3", "apart", 0.25, "others read the shards where they are", .weights = "copy" },
        { 4, 1, 1, 1, 1, 0, 0, -1, "3", "apart", 0.25, "whatever the way", .weights = "nccl" },
        { 4, 1, 1, 1, 1, 0, 0, -1, "3", "apart", 0.25, "those that sample evaluate", .evaluates = true },
        { 4, 1, 1, 1, 1, 2, 0, -1, "3", "apart", 1.25, "and what the first trainer evaluates with", .evaluates = true,
          .free_running = true },
        { 4, 4, 1, 1, 1, 1, 0, 0, "3", "shared", 1.25, "and a sampler's copy", .weights = "copy" },
        { 4, 1, 1, 1, 1, 0, 0, -1, "2", "apart", 1, "the weights, which it trains" },
        { 1, 1, 4, 1, 1, 0, 0, 0, "0", "shared", 1.25, "a slice, and what it samples with" },
        { 1, 1, 4, 1, 4, 0, 0, 0, "0", "shared", 0.5, "two slices" },
        { 1, 1, 4, 1, 4, 1, 0, 0, "0", "shared", 0.5, "a copy in slices comes from slices" },
        { 1, 1, 4, 1, 1, 1, 0, 0, "0", "shared", 1.25, "a whole copy does, too" },
        { 2, 1, 4, 1, 1, 0, 0, -1, "0", "apart", 0.25, "a slice, and a file for others is made of all slices" },
        { 1, 1, 4, 1, 1, 0, 0, -1, "0", "apart", 0.25, "or they read the slices where they are", .weights = "copy" },
        { 1, 1, 4, 1, 1, 0, 0, -1, "0", "apart", 0.25, "or would have been sent them", .weights = "nccl" },
        { 1, 1, 4, 1, 1, 1, 0, -1, "0", "apart", 0.25, "or a version is kept for them", .weights = "nccl" },
        { 1, 2, 4, 1, 4, 0, 0, 0, "0", "shared", 0.5, "a slice, and one that it samples with, beside another sampler", .weights = "copy" },
        { 1, 1, 1, 4, 1, 0, 0, -1, "0", "apart", 0.25, "a stage", .weights = "copy" },
        { 1, 1, 2, 2, 2, 1, 0, -1, "0", "apart", 0.25, "a slice of a stage", .weights = "copy" },
        { 2, 1, 4, 1, 1, 0, 0, -1, "3", "apart", 0.125, "a shard of a slice" },
        { 2, 1, 4, 1, 1, 0, 0, -1, "3", "apart", 1.125, "and what it gives, where it does not reach the others'", .collective = "tcp" },
        { 2, 1, 4, 1, 1, 0, 0, -1, "1", "apart", 0.25, "but it has all slices itself", .collective = "tcp" },
        { 2, 2, 4, 1, 1, 1, 1, 1, "1", "shared", 1.25, "and copies them for its sampler", .collective = "tcp" },
        { 2, 1, 4, 1, 1, 0, 0, -1, "auto", "apart", 0.25, "whatever others need with shards", .collective = "tcp" },
        { 2, 1, 4, 1, 1, 0, 1, -1, "0", "apart", 0.25, "a slice" },
        { 2, 1, 4, 1, 1, 0, 1, -1, "3", "apart", 0.125, "a shard of a slice" },
        { 2, 1, 1, 4, 1, 0, 1, -1, "0", "apart", 0.25, "a stage" },
        { 2, 2, 1, 4, 4, 0, 1, 1, "0", "shared", 0.5, "a stage and a slice" },
    };
    struct error err = { 0 };
    char dir[] = "/tmp/rc-plan-XXXXXX", file[64];
    struct device *dev = gpu_new();
    struct model *m = shape_new(dev, "Qwen2.5-14B");
    struct run_config *c = malloc(sizeof *c);
    assert_true(mkdtemp(dir) && config_save(model_config(m), dir, "bfloat16", &err));
    for (size_t k = 0; k < ARRAY_SIZE(cases); k++) {
        struct run_room room;
        struct run_part part = { .rank = cases[k].rank, .producer = cases[k].producer, .helps = -1 };
        run_config_init(c);
        snprintf(c->model, sizeof c->model, "%s", dir);
        snprintf(c->placement, sizeof c->placement, "%s", cases[k].placement);
        snprintf(c->zero_stage, sizeof c->zero_stage, "%s", cases[k].zero);
        c->beta = 0;
        c->num_trainers = cases[k].t;
        c->num_inferencer = cases[k].i;
        c->tensor_parallel_size = cases[k].tp;
        c->pipeline_parallel_size = cases[k].pp;
        c->producer_tensor_parallel_size = cases[k].ptp;
        c->n_behind = cases[k].n_behind;
        c->free_running = cases[k].free_running;
        snprintf(c->collective, sizeof c->collective, "%s", cases[k].collective ? cases[k].collective : "auto");
        snprintf(c->weights, sizeof c->weights, "%s", cases[k].weights ? cases[k].weights : "auto");
        snprintf(c->eval_dataset, sizeof c->eval_dataset, "%s", cases[k].evaluates ? "{\"all\": \"test.jsonl\"}" : "");
        if (!run_room_plan(&room, c, &part, dev, NULL, &err))
            fail_msg("%s: %s", cases[k].why, err.text);
        assert_true((room.plan.sampler > 0) == (part.producer >= 0 || cases[k].free_running));
        bool gives = part.rank == 0 && run_config_travels(c);
        double whole = (double)model_weight_bytes(m), got = (double)(room.plan.weights
                                                                     - (gives                ? room.publication.kept
                                                                        : part.producer >= 0 ? room.publication.staged
                                                                                             : 0))
                                                            / whole;
        if (got < cases[k].want - 0.01 || got > cases[k].want + 0.1)
            fail_msg("case %zu, %s: %.3f of the whole weights, not %.3f", k, cases[k].why, got, cases[k].want);
    }
    snprintf(file, sizeof file, "%s/config.json", dir);
    assert_true(unlink(file) == 0 && rmdir(dir) == 0);
    free(c);
    model_free(m);
    device_free(dev);
}

static size_t card_bytes;

static bool card_of_some_bytes(UNUSED struct device *dev, size_t *free_bytes, size_t *total_bytes, UNUSED struct error *err)
{
    *free_bytes = *total_bytes = card_bytes;
    return true;
}

/* A producer that does not train needs a second copy of the weights and a second generator to fill the gap, the first trainer a place for one
 * more version. With auto it is filled as soon as there is room for that beside all else, not a byte earlier. */
static void auto_fills_the_gap_where_all_else_stays_as_it_is(UNUSED void **state)
{
    static const struct {
        int rank, producer, n_behind, ptp;
        const char *environment;
        bool possible;
        const char *why;
    } cases[] = {
        { -1, 0, 2, 1, "", true, "a producer" },
        { 0, -1, 2, 1, "", true, "the first trainer" },
        { -1, 0, 1, 1, "", false, "the trainer waits for the samples that would be slowed down" },
        { -1, 0, 0, 1, "", false, "the next version is not there before all is back" },
        { -1, 0, 2, 2, "", false, "slices" },
        { -1, 0, 2, 1, "turns.py", false, "turns that wait for an environment" },
    };
    struct error err = { 0 };
    char dir[] = "/tmp/rc-plan-XXXXXX", file[64];
    struct device *dev = gpu_new();
    struct model *m = shape_new(dev, "Qwen2.5-1.5B");
    struct run_config *c = malloc(sizeof *c);
    struct ops card = *dev->op;
    card.mem_info = card_of_some_bytes;
    dev->op = &card;
    assert_true(mkdtemp(dir) && config_save(model_config(m), dir, "bfloat16", &err));
    for (size_t k = 0; k < ARRAY_SIZE(cases); k++) {
        struct run_room off, with;
        struct run_part part = { .rank = cases[k].rank, .producer = cases[k].producer, .helps = -1 };
        run_config_init(c);
        snprintf(c->model, sizeof c->model, "%s", dir);
        snprintf(c->placement, sizeof c->placement, "apart");
        snprintf(c->weights, sizeof c->weights, "copy");
        snprintf(c->environment, sizeof c->environment, "%s", cases[k].environment);
        c->beta = 0;
        c->recompute_full = true;
        c->n_behind = cases[k].n_behind;
        c->producer_tensor_parallel_size = cases[k].ptp;
        for (int roomy = 0; roomy <= 1; roomy++) {
            snprintf(c->fill_gap, sizeof c->fill_gap, "off");
            card_bytes = H200;
            assert_true(run_room_plan(&off, c, &part, dev, NULL, &err) && off.fits && !off.fills_gap);
            size_t more = model_weight_bytes(m) + (part.producer >= 0 ? off.plan.sampler + off.plan.kv : 0);
            card_bytes = off.plan.total + off.plan.reserve + more - !roomy;
            snprintf(c->fill_gap, sizeof c->fill_gap, "auto");
            assert_true(run_room_plan(&with, c, &part, dev, NULL, &err) && with.fits);
            if (with.fills_gap != (roomy && cases[k].possible))
                fail_msg("%s, with room %d: the gap is %sfilled", cases[k].why, roomy, with.fills_gap ? "" : "not ");
            assert_int_equal(with.plan.total, off.plan.total + (with.fills_gap ? more : 0));
        }
    }
    snprintf(file, sizeof file, "%s/config.json", dir);
    assert_true(unlink(file) == 0 && rmdir(dir) == 0);
    free(c);
    model_free(m);
    device_free(dev);
}

static void who_samples_nothing_has_no_memory_for_it(UNUSED void **state)
{
    struct device *dev = gpu_new();
    struct model *m = shape_new(dev, "Qwen2.5-7B");
    for (int samples = 0; samples <= 1; samples++) {
        struct generator_config g = { .model = samples ? m : NULL, .max_seq = 64, .max_item = 64, .max_seq_tok = 1024 };
        struct trainer_settings s = settings_of(4, 3, 4096, false);
        struct plan_ask a = ask_of(H200, m, false, &g);
        struct memory_plan p;
        assert_true(memory_plan_in(&p, &a, &s));
        assert_true((p.sampler > 0) == samples && (p.kv > 0) == samples && p.turns == samples);
        assert_true(samples || p.region == p.activation);
    }
    model_free(m);
    device_free(dev);
}

static void what_has_no_room_names_the_nearest_that_has(UNUSED void **state)
{
    struct error err;
    static const struct {
        const char *shape;
        struct trainer_settings s;
        bool whole;
        size_t have;
        const char *nearest;
    } cases[] = {
        { "Qwen2.5-7B", { .n_rank = 2, .zero_stage = 0, .token_budget_max = 8192 }, false, H200, "zero_stage 1" },
        { "Qwen2.5-7B", { .n_rank = 2, .zero_stage = 1, .token_budget_max = 8192 }, false, H200 / 10 * 9, "zero_stage 2" },
        { "Qwen2.5-7B",
          { .n_rank = 2, .zero_stage = 2, .grad_group = 4, .token_budget_max = 8192 },
          false,
          H200 / 10 * 9,
          "with grad_group 1" },
        { "Qwen2.5-14B", { .n_rank = 2, .zero_stage = 2, .token_budget_max = 4096 }, false, H200, "zero_stage 3 and recompute_full" },
        { "Qwen2.5-14B",
          { .n_rank = 2, .zero_stage = 3, .token_budget_max = 4096, .recompute_block = true },
          true,
          H200,
          "offload_optimizer" },
        { "Qwen2.5-14B",
          { .n_rank = 2, .zero_stage = 3, .token_budget_max = 4096, .recompute_block = true, .offload = true },
          true,
          H200 / 30 * 17,
          "num_trainers 8 and zero_stage 3" },
        { "Qwen2.5-14B",
          { .n_rank = 2, .zero_stage = 3, .grad_group = 4, .token_budget_max = 4096, .recompute_block = true, .offload = true },
          true,
          H200 / 30 * 17,
          "num_trainers 8 and zero_stage 3 and grad_group 1 and a token_budget of 2048" },
        { "Qwen2.5-14B", { .n_rank = 1, .token_budget_max = 4096 }, false, H200, "recompute_full and offload_optimizer" },
        { "Qwen2.5-14B",
          { .n_rank = 1, .n_team = 2, .token_budget_max = 4096, .recompute_block = true },
          true,
          H200,
          "it would fit with offload_optimizer" },
        { "Qwen2.5-14B",
          { .n_rank = 1, .n_team = 2, .token_budget_max = 4096, .recompute_block = true, .offload = true },
          true,
          H200 / 2,
          "it would fit with tensor_parallel_size 4" },
        { "Qwen2.5-14B",
          { .n_rank = 1, .n_stage = 2, .token_budget_max = 4096, .recompute_block = true, .optimizer = OPTIMIZER_ADAMW_8BIT },
          true,
          H200 * 3 / 4,
          "it would fit with pipeline_parallel_size 4" },
        { "Qwen2.5-14B",
          { .n_rank = 1, .token_budget_max = 4096, .optimizer = OPTIMIZER_ADAMW_8BIT },
          false,
          H200,
          "it would fit with num_trainers 2 and zero_stage 3" },
        { "Qwen2.5-0.5B", { .n_rank = 1, .n_team = 2, .token_budget_max = 4096 }, true, H200 / 50, "no layout of up to 8" },
        { "Qwen2.5-14B", { .n_rank = 1, .n_team = 4, .token_budget_max = 4096 }, false, H200 / 20, "no layout of up to 8" },
        { "Qwen2.5-14B", { .n_rank = 2, .zero_stage = 3, .token_budget_max = 4096 }, false, H200 / 5, "no layout of up to 8" },
        { "Qwen2.5-0.5B", { .n_rank = 1, .token_budget_max = 262144, .recompute_block = true }, false, H200 / 6, "with a token_budget of" },
    };
    struct device *dev = gpu_new();
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct model *m = shape_new(dev, cases[i].shape);
        struct generator_config g = { .model = m, .max_seq = 64, .max_item = 64, .max_seq_tok = 2048 };
        struct trainer_settings s = cases[i].s;
        struct plan_ask a = ask_of(cases[i].have, m, cases[i].whole, &g);
        struct memory_plan p;
        char text[160];
        if (s.n_team > 1)    // as such a run has; 8 devices, which may be proposed, need more
            assert_true(model_parts_set(m, 4, &err));
        if (memory_plan_in(&p, &a, &s))
            fail_msg("case %zu fits", i);
        memory_plan_nearest(&a, &s, text, sizeof text);
        if (!strstr(text, cases[i].nearest))
            fail_msg("case %zu: '%s' does not say '%s'", i, text, cases[i].nearest);
        model_free(m);
    }
    device_free(dev);
}

/* A 7B frozen in bf16, an adapter of rank 16 on all modules trained next to its sampler, which decodes 64 samples of up to 2048 tokens:
 * by turns, or with a copy of the adapter for a sampler that runs ahead. Whole weights do not in three times that. */
static void an_adapter_of_7b_trains_beside_its_sampler_in_40_gb(UNUSED void **state)
{
    const size_t have = (size_t)40 * 1000 * 1000 * 1000;
    struct device *dev = gpu_new();
    struct error err = { 0 };
    struct lora_config c = { .rank = 16, .alpha = 32 };
    struct model *whole = shape_new(dev, "Qwen2.5-7B"), *m = shape_new(dev, "Qwen2.5-7B");
    assert_true(lora_targets_parse(&c, "all-linear", &err) && model_lora_shape(m, &c, &err));
    // 28 layers of rank 16: 16 (in + out) for q, k, v, o, gate, up and down
    int64_t n = 28 * 16 * ((3584 + 3584) * 2 + (3584 + 512) * 2 + (3584 + 18944) * 3);
    assert_int_equal(lora_n_param(&c, model_config(m), &err), n);
    for (int ahead = 0; ahead <= 1; ahead++) {
        struct trainer_settings s = settings_of(1, 0, 8192, true);
        struct generator_config g = { .model = m, .max_seq = 64, .max_item = 64, .max_seq_tok = 2048 };
        struct plan_ask a = ask_of(have, m, true, &g);
        struct memory_plan p;
        a.holder.adapter = true;
        a.holder.ahead = ahead;
        assert_true(memory_plan_in(&p, &a, &s));
        assert_true(p.total + p.reserve <= have && p.kv == generator_kv_bytes(m, 64, 2048));    // a full batch never waits
        assert_float_equal((double)p.weights, 2 * (double)model_n_flat(whole) + (1 + ahead) * 2.0 * (double)n, 1e6);
        assert_float_equal((double)p.gradient, 4 * (double)n, 1e6);
        assert_float_equal((double)p.state, 12 * (double)n, 1e6);
    }
    struct trainer_settings s = settings_of(1, 0, 8192, true);
    struct generator_config g = { .model = whole, .max_seq = 64, .max_item = 64, .max_seq_tok = 2048 };
    struct memory_plan p;
    struct plan_ask a = ask_of(3 * have, whole, true, &g);
    assert_false(memory_plan_in(&p, &a, &s));
    model_free(whole);
    model_free(m);
    device_free(dev);
}

/* What their first lines say. */
static void the_examples_fit_the_gpus_they_name(UNUSED void **state)
{
    static const struct {
        const char *file, *shape;
        int64_t gb, host_gb;    // of a GPU; of the host, for all of the run's GPUs
        const char *teacher;    // its shape
    } cases[] = {
        { "gsm8k-0.5b", "Qwen2.5-0.5B", 24, 0 },
        { "gsm8k-1.5b", "Qwen2.5-1.5B", 48, 0 },
        { "gsm8k-7b", "Qwen2.5-7B", 141, 40 },
        { "gsm8k-7b-2gpu", "Qwen2.5-7B", 141, 0 },
        { "gsm8k-7b-lora", "Qwen2.5-7B", 40, 0 },
        { "gsm8k-14b-2gpu", "Qwen2.5-14B", 141, 160 },
        { "gsm8k-32b-4gpu", "Qwen2.5-32B", 141, 400 },
        { "gsm8k-30b-a3b-lora", "Qwen3-30B-A3B", 141, 0 },
        { "gsm8k-0.5b-teacher", "Qwen2.5-0.5B", 48, 0, "Qwen2.5-1.5B" },
    };
    struct run_config *c = malloc(sizeof *c);
    for (size_t k = 0; k < ARRAY_SIZE(cases); k++) {
        struct error err = { 0 };
        char path[512], says[64], line[256] = "";
        snprintf(path, sizeof path, "%s/../examples/runs/%s.yaml", TEST_DATA_DIR, cases[k].file);
        FILE *f = fopen(path, "r");
        snprintf(says, sizeof says, "of %" PRId64 " GB", cases[k].gb);
        assert_true(f && fgets(line, sizeof line, f) && strstr(line, says));
        snprintf(says, sizeof says, "%" PRId64 " GB of host memory", cases[k].host_gb);
        assert_true(cases[k].host_gb == 0 || strstr(line, says));
        fclose(f);
        run_config_init(c);
        if (!run_config_read(c, path, &err) || !run_config_finish(c, NULL, &err))
            fail_msg("%s: %s", cases[k].file, err.text);
        struct device *dev = gpu_new();
        struct model *m = shape_new(dev, cases[k].shape), *teacher = cases[k].teacher ? shape_new(dev, cases[k].teacher) : NULL;
        struct lora_config lora = { .rank = c->lora_rank, .alpha = 2 * (double)c->lora_rank };
        assert_true(c->lora_rank == 0 || (lora_targets_parse(&lora, c->lora_target_modules, &err) && model_lora_shape(m, &lora, &err)));
        assert_int_equal(c->teacher[0] != 0, teacher != NULL);
        struct trainer_settings s = run_trainer_settings(c, 0, dev);
        s.teacher = teacher;
        struct generator_config g = run_generator_config(c);
        struct plan_ask a = { .have = (size_t)cases[k].gb * 1000 * 1000 * 1000,
                              .model = m,
                              .holder = holder_of(c, &(struct run_part){ .rank = 0, .producer = 0, .helps = -1 }, false, 0),
                              .g = &g };
        struct memory_plan p;
        g.model = m;
        int set = run_config_zero(c);
        s.zero_stage = c->num_trainers == 1 ? 0 : set < 0 ? memory_plan_zero(&a, &s) : set;
        if (!memory_plan_in(&p, &a, &s))
            fail_msg("%s has no room in %" PRId64 " GB", cases[k].file, cases[k].gb);
        if (p.host[0] * (size_t)c->num_trainers > (size_t)cases[k].host_gb * 1000 * 1000 * 1000)
            fail_msg("%s has no room in %" PRId64 " GB of host memory", cases[k].file, cases[k].host_gb);
        model_free(teacher);
        model_free(m);
        device_free(dev);
    }
    free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_stage_keeps_its_share),
        cmocka_unit_test(auto_takes_the_lowest_stage_that_has_room),
        cmocka_unit_test(what_has_room_is_not_computed_again),
        cmocka_unit_test(each_optimizer_takes_what_its_moments_take),
        cmocka_unit_test(a_whole_copy_beside_shards_is_counted),
        cmocka_unit_test(auto_fills_the_gap_where_all_else_stays_as_it_is),
        cmocka_unit_test(who_samples_nothing_has_no_memory_for_it),
        cmocka_unit_test(whole_weights_are_only_where_somebody_reads_them),
        cmocka_unit_test(what_has_no_room_names_the_nearest_that_has),
        cmocka_unit_test(each_device_of_a_team_keeps_its_share),
        cmocka_unit_test(each_stage_of_a_pipeline_keeps_its_layers),
        cmocka_unit_test(a_layout_fits_when_all_its_stages_do),
        cmocka_unit_test(four_cards_of_80_gb_train_32b_with_state_in_host_memory),
        cmocka_unit_test(an_adapter_of_7b_trains_beside_its_sampler_in_40_gb),
        cmocka_unit_test(the_examples_fit_the_gpus_they_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
