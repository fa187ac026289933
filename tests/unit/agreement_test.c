/* A token's log-prob is the same bits wherever it is computed: decoded over pages, scored, trained on, whatever else is in the
 * batch, however many threads work, and on every code path of the CPU back end. OPS_DEVICE (cuda:0) tests another device in the
 * same way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/trainer/supervised.h"
#include "workers/engine/model/model.h"
#include "workers/engine/pass/pass.h"

#define SEQS 4
#define NEW 20    // decoded tokens of each
static const int64_t prompt_len[SEQS] = { 5, 71, 50, 1 };
#define TOKS (5 + 71 + 50 + 1 + SEQS * NEW)
static const float temperature[SEQS] = { 1, 1, 0.7f, 1.3f };

struct text {
    int32_t token[SEQS][128];
    int64_t len[SEQS];
};
#define BASE .max_pos = 512, .initializer_range = 0.3
#define NARROW BASE, .d_model = 64, .n_head = 2, .n_kv_head = 1, .d_ff = 100, .vocab = 288
// clang-format off
static const struct model_config shapes[] = {
    {BASE,
     .family = FAMILY_QWEN2,
     .n_layer = 3,
     .d_model = 128,
     .n_head = 4,
     .n_kv_head = 2,
     .d_head = 32,
     .d_ff = 384,
     .vocab = 288,
     .rms_eps = 1e-6,
     .rope.theta = 1e4,
     .tied = true,
     .qkv_bias = true},
    // the traits of several families at once; the first layer does not rotate
    {BASE,
     .family = FAMILY_QWEN3,
     .n_layer = 2,
     .d_model = 96,
     .n_head = 3,
     .n_kv_head = 1,
     .d_head = 64,
     .d_ff = 200,
     .vocab = 333,
     .rms_eps = 1e-6,
     .rope = {.theta = 1e6, .type = ROPE_YARN, .factor = 4, .original_max_pos = 64, .beta_fast = 32, .beta_slow = 1,
              .attention_factor = 1.14},
     .qk_norm = true,
     .has_multipliers = true,
     .multiplier = {.embedding = 12, .residual = 0.22, .attention = 0.1, .logits = 8},
     .no_rope = {1},
     .qkv_bias = true,
     .o_bias = true,
     .mlp_bias = true},
    // Gemma's and Phi-3's: the first layer has a window and frequencies of its own
    {NARROW,
     .family = FAMILY_GEMMA2,
     .n_layer = 2,
     .d_head = 96,
     .rms_eps = 1e-6,
     .rope = {.theta = 1e4, .partial = 0.75},
     .has_rope_local = true,
     .rope_local = {.theta = 1e6, .partial = 0.75},
     .norm_place = NORM_AROUND,
     .norm_form = NORM_GEMMA,
     .act = ACT_GELU_TANH,
     .qk_norm = true,
     .window = 37,
     .slides = {1},
     .attn_cap = 5,
     .logit_cap = 9,
     .query_scalar = 24,
     .embed_root = true,
     .tied = true},
    // OLMo's
    {BASE,
     .family = FAMILY_OLMO2,
     .n_layer = 2,
     .d_model = 96,
     .n_head = 3,
     .n_kv_head = 3,
     .d_head = 32,
     .d_ff = 100,
     .vocab = 288,
     .rms_eps = 1e-6,
     .rope.theta = 1e4,
     .norm_place = NORM_AFTER,
     .norm_form = NORM_OLMO,
     .qk_norm = true,
     .qk_norm_wide = true},
    // Phi-3.5's: some sequences are longer than the original 64 positions, others are not
    {NARROW,
     .family = FAMILY_PHI3,
     .n_layer = 2,
     .d_head = 32,
     .rms_eps = 1e-5,
     .rope = {.theta = 1e4, .partial = 0.5, .type = ROPE_LONG, .factor = 8, .attention_factor = 1.2, .original_max_pos = 64, .n_ext = 8,
              .short_ext = {1, 1, 1, 1, 1, 1, 1, 1}, .long_ext = {2, 3, 4, 5, 6, 7, 8, 9}}},
    // experts: most of them have few rows, and the middle layer one MLP
    {NARROW,
     .family = FAMILY_QWEN3_MOE,
     .n_layer = 3,
     .d_head = 32,
     .rms_eps = 1e-6,
     .rope.theta = 1e4,
     .qk_norm = true,
     .experts = {.n = 24, .k = 3, .d_ff = 40, .normalise = true, .dense = {2}}},
    // a gated delta net in all layers but one, and the traits of Qwen3.5: gates, half of each head turns
    {NARROW,
     .family = FAMILY_QWEN3_5,
     .n_layer = 4,
     .d_head = 32,
     .rms_eps = 1e-6,
     .rope = {.theta = 1e4, .partial = 0.5},
     .norm_form = NORM_GEMMA,
     .qk_norm = true,
     .attn_gate = true,
     .delta = {.heads = {2, 4, 16, 24, false}, .layers = {11}}},
    // Qwen3.5's own heads, two value heads to a key head
    {BASE,
     .family = FAMILY_QWEN3_5,
     .n_layer = 2,
     .d_model = 128,
     .n_head = 2,
     .n_kv_head = 1,
     .d_head = 256,
     .d_ff = 128,
     .vocab = 288,
     .rms_eps = 1e-6,
     .rope = {.theta = 1e7, .partial = 0.25},
     .norm_form = NORM_GEMMA,
     .qk_norm = true,
     .attn_gate = true,
     .delta = {.heads = {1, 2, 128, 128, false}, .layers = {1}}},
    {BASE,
     .family = FAMILY_OLMOE,
     .n_layer = 2,
     .d_model = 96,
     .n_head = 3,
     .n_kv_head = 3,
     .d_head = 32,
     .d_ff = 52,
     .vocab = 288,
     .rms_eps = 1e-5,
     .rope.theta = 1e4,
     .qk_norm = true,
     .qk_norm_wide = true,
     .experts = {.n = 7, .k = 2, .d_ff = 52}},
};
// clang-format on

static void text_make(struct text *t, int64_t vocab)
{
    uint32_t x = 12345;
    for (int s = 0; s < SEQS; s++) {
        t->len[s] = prompt_len[s] + NEW;
        for (int64_t i = 0; i < t->len[s]; i++) {
            x = x * 1664525u + 1013904223u;
            t->token[s][i] = (int32_t)((x >> 8) % (uint32_t)vocab);
        }
    }
}

struct engine {
    struct device *dev;
    struct model *m;
};

static const char *device_name(void)
{
    return getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0";
}

/* False: this processor does not have the code path. */
static bool engine_open(struct engine *e, const struct model_config *c, enum dtype dtype, const char *path, int n_thread)
{
    struct error err = { 0 };
    if (path)
        setenv("RC_CPU", path, 1);
    else
        unsetenv("RC_CPU");
    e->m = NULL;
    if (!(e->dev = device_new(device_name(), n_thread, &err))) {
        if (path && strcmp(path, "scalar") != 0)
            return false;
        fail_msg("%s", err.text);
    }
    if (!(e->m = model_new_random(c, 3, e->dev, dtype, &err)))
        fail_msg("%s", err.text);
    model_length_set(e->m, 128);
    return true;
}

static void engine_close(struct engine *e)
{
    model_free(e->m);
    device_free(e->dev);
    unsetenv("RC_CPU");
}

static void copy(struct engine *e, void *dst, const void *src, size_t size_bytes, enum copy_dir dir)
{
    struct error err = { 0 };
    if (!mem_copy(e->dev, dst, src, size_bytes, dir, &err) || !device_sync(e->dev, &err))
        fail_msg("%s", err.text);
}

/* Log-probs of the new tokens of the sequences listed, by prefill and decode in one batch: out[s] has NEW. cut: the prompts, all of which
 * are longer, are run in two parts, of which the first has this many tokens; 0: in one. */
static void by_decoding(struct engine *e, const struct text *t, const int *list, int n, int32_t cut, float out[SEQS][NEW])
{
    struct error err = { 0 };
    int64_t vocab = model_config(e->m)->vocab, per = e->dev->kv_page_tok, max_page = 128 / per + 1;
    struct run_limits lim = { .max_tok = 256, .max_seq = SEQS, .max_seq_tok = 128 };
    struct model_run *r = model_run_new(e->m, &lim, &err);
    struct kv_pool *kv = kv_pool_new(e->m, SEQS * max_page, NULL, &err);
    int32_t token[256], cu[SEQS + 1] = { 0 }, page[SEQS * 8] = { 0 }, pos[SEQS] = { 0 }, slot[SEQS] = { 0 }, kv_len[SEQS] = { 0 };
    int32_t id[SEQS] = { 0 };
    float *logits = mem_new(e->dev, (size_t)(SEQS * vocab) * 4, "a test", &err), logp[SEQS];
    struct on_device {
        int32_t id[SEQS], pos[SEQS], slot[SEQS], kv_len[SEQS], page[SEQS * 8], state[SEQS], scratch[SEQS * 9];
        float logp[SEQS];
    } *d = mem_new(e->dev, sizeof *d, "a test", &err);
    assert_true(r && kv && logits && d && max_page <= 8);
    int32_t state[SEQS] = { 2, 0, 3, 1 }, start[SEQS] = { 0 };
    bool states = config_has_states(model_config(e->m));
    if (states && !kv_pool_states(kv, SEQS, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < n; i++) {
        for (int64_t p = 0; p < max_page; p++)    // pages in scattered order
            page[i * max_page + p] = (int32_t)((p * SEQS + i) * 7 % (SEQS * max_page));
    }
    if ((SEQS * max_page) % 7 == 0)
        fail_msg("the pages would collide");
    for (int part = cut ? 0 : 1; part < 2; part++) {
        for (int i = 0; i < n; i++) {
            int32_t from = part && cut ? cut : 0, to = part ? (int32_t)prompt_len[list[i]] : cut;
            start[i] = from;
            memcpy(token + cu[i], t->token[list[i]] + from, (size_t)(to - from) * 4);
            cu[i + 1] = cu[i] + to - from;
        }
        struct model_batch b = { .n_seq = n, .n_tok = cu[n], .token = token, .cu_tok = cu, .state = state };
        if (!model_prefill_after(r, &b, part && cut ? start : NULL, d->scratch, kv, page, max_page, logits, true, &err))
            fail_msg("%s", err.text);
    }
    copy(e, d->state, state, sizeof state, COPY_H2D);
    for (int k = 0; k < NEW; k++) {
        for (int i = 0; i < n; i++) {
            pos[i] = (int32_t)prompt_len[list[i]] + k;
            id[i] = t->token[list[i]][pos[i]];
            slot[i] = page[i * max_page + pos[i] / per] * (int32_t)per + pos[i] % (int32_t)per;
            kv_len[i] = pos[i] + 1;
        }
        copy(e, d->id, id, sizeof id, COPY_H2D);
        copy(e, d->pos, pos, sizeof pos, COPY_H2D);
        copy(e, d->slot, slot, sizeof slot, COPY_H2D);
        copy(e, d->kv_len, kv_len, sizeof kv_len, COPY_H2D);
        copy(e, d->page, page, sizeof page, COPY_H2D);
        for (int i = 0; i < n; i++)
            if (!OP(e->dev, &err, logprob_fwd, .logp = d->logp + i, .logits = logits + i * vocab, .id = d->id + i, .n = 1, .vocab = vocab,
                    .temperature = temperature[list[i]]))
                fail_msg("%s", err.text);
        copy(e, logp, d->logp, sizeof logp, COPY_D2H);
        for (int i = 0; i < n; i++)
            out[list[i]][k] = logp[i];
        struct decode_batch batch = {
            .n = n,
            .token = d->id,
            .pos = d->pos,
            .slot = d->slot,
            .kv_len = d->kv_len,
            .page = d->page,
            .max_page = max_page,
            .state = states ? d->state : NULL,
        };
        if (!model_decode(r, &batch, kv, logits, &err))
            fail_msg("%s", err.text);
    }
    mem_free(e->dev, logits);
    mem_free(e->dev, d);
    kv_pool_free(kv);
    model_run_free(r);
}

/* The log-probs by the trainer, in micro-batches of at most budget tokens. */
static void by_training(struct engine *e, const struct text *t, int64_t budget, float out[SEQS][NEW])
{
    struct error err = { 0 };
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    set.token_budget_max = budget;
    struct trainer *tr = trainer_new(e->m, NULL, &set, &err);
    int32_t token[TOKS];
    float logp[TOKS];
    int64_t n = 0, at = 0;
    for (int s = 0; s < SEQS; s++) {
        memcpy(token + n, t->token[s], (size_t)t->len[s] * 4);
        n += t->len[s];
    }
    if (!tr || !trainer_logprobs(tr, token, t->len, temperature, SEQS, logp, NULL, &err))
        fail_msg("%s", err.text);
    for (int s = 0; s < SEQS; s++) {
        memcpy(out[s], logp + at + prompt_len[s] - 1, NEW * 4);
        at += t->len[s] - 1;
    }
    trainer_free(tr);
}

static void decoding_and_training_agree_to_the_bit(UNUSED void **state)
{
    static const char *const paths[] = { NULL, "avx512", "avx2", "scalar" };
    static const int all[] = { 0, 1, 2, 3 }, some[] = { 3, 1 }, one[] = { 2 }, longer[] = { 2, 1 };
    static const int32_t cuts[] = { 1, 32, 47 };
    for (size_t c = 0; c < ARRAY_SIZE(shapes) * 2; c++) {
        float want[SEQS][NEW], got[SEQS][NEW];
        struct text t;
        struct engine e;
        enum dtype dtype = c % 2 ? DT_BF16 : DT_F32;
        text_make(&t, shapes[c / 2].vocab);
        bool cpu = strncmp(device_name(), "cpu", 3) == 0;
        for (size_t p = 0; p < (cpu ? ARRAY_SIZE(paths) : 1); p++) {
            for (int n_thread = 1; n_thread <= (cpu && p == 0 ? 3 : 1); n_thread += 2) {    // threads on the best path only
                if (!engine_open(&e, &shapes[c / 2], dtype, paths[p], n_thread))
                    continue;
                by_training(&e, &t, 4096, got);
                if (p == 0 && n_thread == 1)
                    memcpy(want, got, sizeof want);
                assert_memory_equal(want, got, sizeof want);
                memset(got, 0, sizeof got);
                by_decoding(&e, &t, all, 4, 0, got);
                assert_memory_equal(want, got, sizeof want);
                if (p == 0) {
                    memset(got, 0, sizeof got);
                    by_decoding(&e, &t, some, 2, 0, got);    // other neighbours, other rows
                    by_decoding(&e, &t, one, 1, 0, got);
                    for (int s = 1; s < SEQS; s++)
                        assert_memory_equal(want[s], got[s], sizeof want[s]);
                    for (size_t k = 0; k < ARRAY_SIZE(cuts); k++) {
                        memset(got, 0, sizeof got);
                        by_decoding(&e, &t, longer, 2, cuts[k], got);
                        for (int s = 1; s < 3; s++)
                            assert_memory_equal(want[s], got[s], sizeof want[s]);
                    }
                    by_training(&e, &t, 113, got);    // other micro-batches
                    assert_memory_equal(want, got, sizeof want);
                }
                engine_close(&e);
            }
        }
        double sum = 0;
        for (int s = 0; s < SEQS; s++)
            for (int k = 0; k < NEW; k++)
                sum += (double)want[s][k];
        assert_true(isfinite(sum) && sum / (SEQS * NEW) < -2);    // log-probs of random tokens, not zeros
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(decoding_and_training_agree_to_the_bit) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
