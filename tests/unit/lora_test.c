/* Adapters against PEFT (tests/golden/make_lora.py): logits, gradients, ten optimizer steps, merging; and what an adapter leaves
 * alone, which files it takes, and that all forward passes agree to the bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/file.h"
#include "tests/unit/golden_model.h"
#include "workers/engine/model/lora.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/safetensors.h"
#include "workers/engine/trainer/checkpoint.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/trainer/state.h"
#include "workers/engine/trainer/supervised.h"
#include "workers/engine/pass/pass.h"

static const char *const names[] = { "two", "all", "root", "scaled", "fused" };
static const char *const devices[] = { "ref", "cpu:0" };
#define VOCAB_MAX 64

static const char *device_of(size_t k)
{
    const char *other = getenv("OPS_DEVICE");    // cuda:0
    return k && other ? other : devices[k];
}

/* The base of an adapter's fixture, without it. */
static struct model *base_open(const char *dir, struct device *dev, enum dtype dtype)
{
    struct error err = { 0 };
    struct lora_config c;
    char path[6000];
    if (!lora_config_load(&c, dir, &err))
        fail_msg("%s", err.text);
    snprintf(path, sizeof path, "%s/golden/models/%s", data_dir(), c.base);
    struct model *m = model_load(path, dev, dtype, &err);
    if (!m)
        fail_msg("%s", err.text);
    return m;
}

static void golden_open(struct golden *g, const char *name, const char *device, enum dtype dtype)
{
    struct error err = { 0 };
    *g = (struct golden){ 0 };
    snprintf(g->dir, sizeof g->dir, "%s/golden/lora/%s", data_dir(), name);
    if (!(g->dev = device_new(device, 2, &err)))
        fail_msg("%s", err.text);
    g->m = base_open(g->dir, g->dev, dtype);
    if (!model_lora_load(g->m, g->dir, true, &err))
        fail_msg("%s", err.text);
    golden_read(g);
}

static struct token_loss loss_of(const struct golden *g, float *logp)
{
    return (struct token_loss){ .target = g->target, .temperature = g->temperature, .coef = g->coef, .logp = logp };
}

static struct model_run *run_new(struct model *m, bool recompute)
{
    struct error err = { 0 };
    struct run_limits lim = { .max_tok = MAX_TOK,
                              .max_seq = 8,
                              .max_seq_tok = MAX_TOK,
                              .train = true,
                              .recompute_block = recompute,
                              .head_rows = recompute ? 7 : 0 };
    struct model_run *r = model_run_new(m, &lim, &err);
    if (!r)
        fail_msg("%s", err.text);
    return r;
}

/* Forward and backward of the fixture's batch into grad (host; model_n_flat); logits may be NULL. */
static void passes(struct golden *g, struct model_run *r, float *logits, float *grad)
{
    struct error err = { 0 };
    size_t bytes = (size_t)model_n_flat(g->m) * 4;
    float *sum = mem_new(g->dev, bytes, "gradient", &err), logp[MAX_TOK];
    struct model_batch b = batch(g);
    struct token_loss loss = loss_of(g, logp);
    if (!sum || !OP(g->dev, &err, mem_fill, .y = sum, .size_bytes = bytes) || !model_forward_train(r, &b, &err)
        || (logits && !model_logits(r, logits, &err)) || !model_backward(r, &loss, &(struct model_grad){ .flat = sum }, &err)
        || !mem_copy(g->dev, grad, sum, bytes, COPY_D2H, &err) || !device_sync(g->dev, &err))
        fail_msg("%s", err.text);
    mem_free(g->dev, sum);
}

static void logits_and_gradients_are_pefts(UNUSED void **state)
{
    for (size_t k = 0; k < ARRAY_SIZE(names) * ARRAY_SIZE(devices) * 2; k++) {
        const char *name = names[k / 4], *device = device_of(k / 2 % 2);
        struct golden g;
        golden_open(&g, name, device, DT_F32);
        struct model_run *r = run_new(g.m, k % 2);
        int64_t n_flat = model_n_flat(g.m), n_logit = g.n_tok * model_config(g.m)->vocab;
        float *logits = calloc((size_t)n_logit, 4), *want = calloc((size_t)MAX(n_logit, n_flat), 4), *grad = malloc((size_t)n_flat * 4);
        passes(&g, r, logits, grad);
        st_to_f32(want, find(g.g, "logits"));
        if (!(distance(logits, want, n_logit) < 1e-5))
            fail_msg("%s on %s: logits differ by %g of their norm", name, device, distance(logits, want, n_logit));
        for (int64_t i = 0; i < model_n_tensor(g.m); i++) {
            const struct tensor *t = model_tensor(g.m, i);
            char gname[128];
            snprintf(gname, sizeof gname, "grad.%s", t->name);
            const struct st_tensor *f = find(g.g, gname);
            assert_int_equal(f->n_elem, t->n_elem);
            st_to_f32(want, f);
            double d = distance(grad + t->offset, want, t->n_elem);
            if (!(d < 1e-4))
                fail_msg("%s on %s: gradient of %s differs by %g of its norm", name, device, t->name, d);
        }
        free(logits);
        free(want);
        free(grad);
        model_run_free(r);
        golden_close(&g);
    }
}

static void the_gradient_is_the_slope_of_the_loss(UNUSED void **state)
{
    for (size_t k = 0; k < ARRAY_SIZE(names); k++) {
        struct golden g;
        golden_open(&g, names[k], "ref", DT_F32);
        slope_check(&g, names[k]);
        golden_close(&g);
    }
}

/* The gradient of a whole batch does not depend on whether it is added to one flat buffer or requested piece by piece. */
struct pieces {
    float *flat;    // (model_n_flat)
    const struct model *m;
    float piece[1 << 16];
    int next;    // the piece expected
};
static float *piece_begin(void *ctx, int p, UNUSED bool *adds, UNUSED struct error *err)
{
    struct pieces *x = ctx;
    assert_int_equal(p, x->next--);
    memset(x->piece, 0xff, sizeof x->piece);    // whatever it holds: NaN
    return x->piece;
}
static bool piece_end(void *ctx, int p, UNUSED struct error *err)
{
    struct pieces *x = ctx;
    int64_t first, n = model_piece(x->m, p, &first);
    assert_true(n <= (int64_t)ARRAY_SIZE(x->piece));
    memcpy(x->flat + first, x->piece, (size_t)n * 4);
    return true;
}
static void pieces_are_the_flat_gradient(UNUSED void **state)
{
    for (size_t k = 0; k < ARRAY_SIZE(names); k++) {
        struct golden g;
        struct error err = { 0 };
        golden_open(&g, names[k], "cpu:0", DT_F32);
        struct model_run *r = run_new(g.m, false);
        size_t bytes = (size_t)model_n_flat(g.m) * 4;
        struct pieces *x = calloc(1, sizeof *x);
        float *grad = malloc(bytes), logp[MAX_TOK];
        x->flat = malloc(bytes);
        x->m = g.m;
        x->next = model_n_piece(g.m) - 1;
        passes(&g, r, NULL, grad);
        struct model_batch b = batch(&g);
        struct token_loss loss = loss_of(&g, logp);
        struct model_grad to = { .piece_begin = piece_begin, .piece_end = piece_end, .ctx = x };
        if (!model_forward_train(r, &b, &err) || !model_backward(r, &loss, &to, &err))
            fail_msg("%s", err.text);
        assert_int_equal(x->next, -1);
        assert_memory_equal(x->flat, grad, bytes);
        free(x->flat);
        free(x);
        free(grad);
        model_run_free(r);
        golden_close(&g);
    }
}

static uint64_t hash_of(const struct model *m)
{
    struct error err = { 0 };
    uint64_t h;
    if (!model_weights_hash(m, &h, &err))
        fail_msg("%s", err.text);
    return h;
}

/* Also: the base is not touched, and nothing is kept for it. */
static void ten_adamw_steps_are_pefts(UNUSED void **state)
{
    for (size_t k = 0; k < ARRAY_SIZE(names) * 2; k++) {
        struct golden g;
        struct error err = { 0 };
        golden_open(&g, names[k / 2], device_of(k % 2), DT_F32);
        struct model *base = model_view(g.m, &err);
        uint64_t before = hash_of(base), adapter = hash_of(g.m);
        struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
        struct trainer_memory mem;
        set.token_budget_max = 40;    // two micro-batches
        struct trainer *t = trainer_new(g.m, NULL, &set, &err);
        if (!t)
            fail_msg("%s", err.text);
        trainer_memory(g.m, &set, &mem);
        assert_int_equal(mem.gradient, model_n_flat(g.m) * 4);
        assert_int_equal(mem.state, model_n_flat(g.m) * 8);
        assert_true(model_n_flat(g.m) < model_n_flat(base));
        adamw_steps_check(&g, t, names[k / 2], "PEFT");
        assert_true(hash_of(base) == before && hash_of(g.m) != adapter);
        trainer_free(t);
        model_free(base);
        golden_close(&g);
    }
}

static void merging_gives_pefts_weights(UNUSED void **state)
{
    for (size_t k = 0; k < ARRAY_SIZE(names) * 2; k++) {
        struct golden g;
        struct error err = { 0 };
        golden_open(&g, names[k / 2], device_of(k % 2), DT_F32);
        struct model *base = base_open(g.dir, g.dev, DT_F32);
        size_t bytes;
        int64_t n_merged = 0, n_tensor = model_n_tensor(base);
        if (!model_lora_merge(g.m, &err))
            fail_msg("%s", err.text);
        assert_null(model_lora(g.m));
        assert_int_equal(model_n_tensor(g.m), n_tensor);
        char *before = malloc((size_t)model_n_flat(base) * 4), *now = malloc((size_t)model_n_flat(base) * 4);
        float want[64 * 64];
        const void *from = model_weights(base, &bytes), *to = model_weights(g.m, &bytes);
        assert_true(mem_copy(g.dev, before, from, bytes, COPY_D2H, &err) && mem_copy(g.dev, now, to, bytes, COPY_D2H, &err)
                    && device_sync(g.dev, &err));
        for (int64_t i = 0; i < n_tensor; i++) {
            const struct tensor *t = model_tensor(g.m, i);
            char name[128];
            snprintf(name, sizeof name, "merged.%s", t->name);
            const struct st_tensor *f = shards_find(g.g, name);
            const char *at = now + (size_t)t->offset * 4;
            if (!f) {
                assert_memory_equal(at, before + (size_t)t->offset * 4, (size_t)t->n_elem * 4);
                continue;
            }
            n_merged++;
            assert_true(f->n_elem == t->n_elem && t->n_elem <= (int64_t)ARRAY_SIZE(want));
            st_to_f32(want, f);
            double d = distance((const float *)(const void *)at, want, t->n_elem);
            if (!(d < 1e-6))    // a few roundings of fp32
                fail_msg("%s: %s differs by %g of its norm", names[k / 2], t->name, d);
        }
        assert_true(n_merged >= 4);
        free(before);
        free(now);
        model_free(base);
        golden_close(&g);
    }
}

/* Logits of every row by whole sequences, and by a prefill of the first tokens and decoding of the rest, all sequences together. */
static void sampling_and_scoring_have_equal_bits(UNUSED void **state)
{
    for (size_t k = 0; k < ARRAY_SIZE(names) * 4; k++) {
        enum dtype dtype = k % 2 ? DT_BF16 : DT_F32;
        struct golden g;
        struct error err = { 0 };
        golden_open(&g, names[k / 4], device_of(k / 2 % 2), dtype);
        struct model_run *r = run_new(g.m, false);
        int64_t vocab = model_config(g.m)->vocab, n_seq = 2, len = 7, head = 3;    // the first sequence, and the beginning of the third
        int32_t token[14], cu[3] = { 0, 7, 14 }, part[6], part_cu[3] = { 0, 3, 6 }, page[2] = { 1, 0 };
        assert_true(vocab <= VOCAB_MAX);
        for (int64_t i = 0; i < len; i++) {
            token[i] = g.token[i];
            token[len + i] = g.token[g.cu[2] + i];
        }
        for (int64_t i = 0; i < n_seq * head; i++)
            part[i] = token[i / head * len + i % head];
        float *want = malloc((size_t)(n_seq * len * vocab) * 4), got[2 * VOCAB_MAX];
        struct model_batch all = { .n_seq = n_seq, .n_tok = n_seq * len, .token = token, .cu_tok = cu };
        struct model_batch first = { .n_seq = n_seq, .n_tok = n_seq * head, .token = part, .cu_tok = part_cu };
        float *logits = mem_new(g.dev, (size_t)(n_seq * vocab) * 4, "logits", &err);
        int32_t *dev_i = mem_new(g.dev, 64 * 4, "indices", &err);
        struct kv_pool *kv = kv_pool_new(g.m, 2, NULL, &err);
        if (!kv || !model_forward_train(r, &all, &err) || !model_logits(r, want, &err)
            || !model_prefill(r, &first, kv, page, 1, logits, &err))
            fail_msg("%s", err.text);
        for (int64_t pos = head - 1; pos < len; pos++) {
            int32_t in[10], per = g.dev->kv_page_tok;
            for (int64_t s = 0; s < n_seq; s++) {
                in[s] = token[s * len + pos];
                in[2 + s] = (int32_t)pos;
                in[4 + s] = page[s] * per + (int32_t)pos;
                in[6 + s] = (int32_t)pos + 1;
                in[8 + s] = page[s];
            }
            struct decode_batch d = {
                .n = n_seq, .token = dev_i, .pos = dev_i + 2, .slot = dev_i + 4, .kv_len = dev_i + 6, .page = dev_i + 8, .max_page = 1
            };
            if (pos >= head && (!mem_copy(g.dev, dev_i, in, sizeof in, COPY_H2D, &err) || !model_decode(r, &d, kv, logits, &err)))
                fail_msg("%s", err.text);
            assert_true(mem_copy(g.dev, got, logits, (size_t)(n_seq * vocab) * 4, COPY_D2H, &err) && device_sync(g.dev, &err));
            for (int64_t s = 0; s < n_seq; s++)
                assert_memory_equal(got + s * vocab, want + (s * len + pos) * vocab, (size_t)vocab * 4);
        }
        free(want);
        mem_free(g.dev, logits);
        mem_free(g.dev, dev_i);
        kv_pool_free(kv);
        model_run_free(r);
        golden_close(&g);
    }
}

/* A new adapter has B = 0: the model is its base, to the bit. A view of the base is it too, whatever the adapter. */
static void a_new_adapter_and_a_view_are_the_base(UNUSED void **state)
{
    for (size_t k = 0; k < ARRAY_SIZE(names) * 2; k++) {
        struct golden g;
        struct error err = { 0 };
        enum dtype dtype = k % 2 ? DT_BF16 : DT_F32;
        golden_open(&g, names[k / 2], "cpu:0", dtype);
        struct model *base = base_open(g.dir, g.dev, dtype), *fresh = base_open(g.dir, g.dev, dtype), *view = model_view(g.m, &err);
        if (!model_lora_new(fresh, model_lora(g.m), 7, false, &err))
            fail_msg("%s", err.text);
        struct model *const model[] = { base, fresh, view, g.m };
        float logp[4][MAX_TOK];
        struct model_batch b = batch(&g);
        for (size_t i = 0; i < 4; i++) {
            struct run_limits lim = { .max_tok = MAX_TOK, .max_seq = 8, .max_seq_tok = MAX_TOK };
            struct model_run *r = model_run_new(model[i], &lim, &err);
            if (!r || !model_score(r, &b, g.target, g.temperature, logp[i], NULL, &err))
                fail_msg("%s", err.text);
            model_run_free(r);
        }
        assert_memory_equal(logp[0], logp[1], (size_t)g.n_tok * 4);
        assert_memory_equal(logp[0], logp[2], (size_t)g.n_tok * 4);
        assert_memory_not_equal(logp[0], logp[3], (size_t)g.n_tok * 4);
        model_free(view);
        model_free(fresh);
        model_free(base);
        golden_close(&g);
    }
}

/* As PEFT draws it: A uniform within 1 / sqrt(in), B zero; the seed decides, not the moment. */
static void a_new_adapter_is_drawn_from_its_seed(UNUSED void **state)
{
    struct golden g;
    struct error err = { 0 };
    golden_open(&g, "all", "ref", DT_F32);
    uint64_t hash[3];
    for (uint64_t i = 0; i < 3; i++) {
        struct model *m = base_open(g.dir, g.dev, DT_F32);
        size_t bytes;
        assert_true(model_lora_new(m, model_lora(g.m), i / 2, false, &err));
        hash[i] = hash_of(m);
        const float *w = model_weights(m, &bytes);
        for (int64_t k = 0; k < model_n_tensor(m); k++) {
            const struct tensor *t = model_tensor(m, k);
            double bound = strstr(t->name, "lora_A") ? 1 / sqrt((double)t->dim[1]) : 0, sum = 0, most = 0;
            for (int64_t e = 0; e < t->n_elem; e++) {
                double v = (double)w[t->offset + e];
                assert_true(fabs(v) <= bound);
                sum += v * v;
                most = fmax(most, fabs(v));
            }
            // a uniform number's variance is a third of its bound squared; 256 of them are within 15 % of it
            assert_true(bound == 0 || (fabs(sum / (double)t->n_elem / (bound * bound / 3) - 1) < 0.15 && most > 0.9 * bound));
        }
        model_free(m);
    }
    assert_true(hash[0] == hash[1] && hash[0] != hash[2]);
    golden_close(&g);
}

/* A second copy for sampling has its own adapter and no base; a saved adapter is the same when it is loaded. */
static void copies_and_files_hold_the_adapter_alone(UNUSED void **state)
{
    for (size_t k = 0; k < ARRAY_SIZE(names) * 2; k++) {
        struct golden g;
        struct error err = { 0 };
        enum dtype dtype = k % 2 ? DT_BF16 : DT_F32;
        char dir[] = "/tmp/lora-XXXXXX", path[64];
        golden_open(&g, names[k / 2], "ref", dtype);
        struct model *copy = model_new_like(g.m, &err), *again = base_open(g.dir, g.dev, dtype);
        if (!copy || !model_weights_copy(copy, g.m, &err))
            fail_msg("%s", err.text);
        assert_true(hash_of(copy) == hash_of(g.m));
        assert_int_equal(model_held_bytes(copy), model_n_flat(g.m) * (int64_t)dtype_size(dtype));
        assert_int_equal(model_held_bytes(g.m), model_held_bytes(copy) + model_held_bytes(again));
        if (!mkdtemp(dir) || !model_save(copy, dir, &err) || !lora_files_check(dir, model_config(again), &err)
            || !model_lora_load(again, dir, false, &err))
            fail_msg("%s", err.text);
        assert_true(lora_dir_is(dir) && hash_of(again) == hash_of(g.m));
        struct lora_config a = *model_lora(g.m), b = *model_lora(again);
        assert_true(a.rank == b.rank && a.alpha == b.alpha && a.rslora == b.rslora && a.targets == b.targets
                    && strcmp(a.base, b.base) == 0);
        snprintf(path, sizeof path, "%s/model.safetensors", dir);
        assert_false(path_exists(path));
        assert_true(dir_remove(dir, &err));
        model_free(copy);
        model_free(again);
        golden_close(&g);
    }
}

static struct trainer *trainer_of(struct model *m)
{
    struct error err = { 0 };
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    set.token_budget_max = 40;
    struct trainer *t = trainer_new(m, NULL, &set, &err);
    if (!t)
        fail_msg("%s", err.text);
    return t;
}

/* A step's checkpoint brings an adapter and its state back, and is refused where all weights are trained. */
static void a_checkpoint_of_an_adapter_restores_an_adapter(UNUSED void **state)
{
    for (int type = 0; type < 2; type++) {
        struct golden g;
        struct error err = { 0 };
        char dir[] = "/tmp/lora-XXXXXX", path[64];
        golden_open(&g, "all", "ref", type ? DT_BF16 : DT_F32);
        struct model *again = base_open(g.dir, g.dev, type ? DT_BF16 : DT_F32), *whole = base_open(g.dir, g.dev, type ? DT_BF16 : DT_F32);
        struct trainer *t = trainer_of(g.m), *other;
        float ones[MAX_TOK];
        for (int i = 0; i < MAX_TOK; i++)
            ones[i] = 1;
        struct sft_seq seq = { g.token + g.cu[2], ones, 30 };
        struct trainer_hyper h;
        double loss, n_tok, norm;
        int64_t step;
        trainer_hyper_init(&h);
        h.lr = 1e-2;
        struct checkpoint_writer *w = checkpoint_writer_new(&err);
        struct checkpoint_info info = { .step = 1 };
        if (!w || !mkdtemp(dir) || !trainer_sft_step(t, &seq, 1, &h, true, &loss, &n_tok, &norm, &err)
            || !checkpoint_start(w, t, dir, &info, &err) || !checkpoint_wait(w, &err))
            fail_msg("%s", err.text);
        snprintf(path, sizeof path, "%s/step-000001", dir);
        assert_true(checkpoint_verify(path, &step, &err) && step == 1 && lora_dir_is(path));
        assert_true(model_lora_new(again, model_lora(g.m), 99, true, &err));
        other = trainer_of(again);
        if (!checkpoint_restore(other, path, &err))
            fail_msg("%s", err.text);
        assert_true(hash_of(again) == hash_of(g.m) && trainer_version(other) == 1 && trainer_adam_step(other) == 1);
        for (int k = 0; k < 2; k++)    // and goes on alike
            assert_true(trainer_sft_step(k ? other : t, &seq, 1, &h, true, &loss, &n_tok, &norm, &err));
        assert_true(hash_of(again) == hash_of(g.m));
        trainer_free(other);
        other = trainer_of(whole);
        assert_false(checkpoint_restore(other, path, &err));
        assert_non_null(strstr(err.text, "is of a run that trains an adapter, and this one trains all weights"));
        trainer_free(other);
        trainer_free(t);
        checkpoint_writer_free(w);
        assert_true(dir_remove(dir, &err));
        model_free(again);
        model_free(whole);
        golden_close(&g);
    }
}

static void adapters_of_other_kinds_are_refused(UNUSED void **state)
{
    static const struct {
        const char *json, *says;
    } cases[] = {
        { "{\"peft_type\": \"IA3\"}", "'peft_type' is 'IA3'; only LORA" },
        { "{}", "'peft_type' is 'missing'" },
        { "[]", "is not a JSON object" },
        { "{\"peft_type\": \"LORA\", \"lora_alpha\": 8, \"target_modules\": [\"q_proj\"]}", "'r' is missing" },
        { "{\"peft_type\": \"LORA\", \"r\": 0, \"lora_alpha\": 8, \"target_modules\": [\"q_proj\"]}",
          "'r' is 0; it must be from 1 to 1024" },
        { "{\"peft_type\": \"LORA\", \"r\": 8, \"lora_alpha\": \"x\", \"target_modules\": [\"q_proj\"]}", "'lora_alpha' is not a number" },
        { "{\"peft_type\": \"LORA\", \"r\": 8, \"lora_alpha\": 8, \"target_modules\": [\"embed_tokens\"]}",
          "'embed_tokens' is not supported" },
        { "{\"peft_type\": \"LORA\", \"r\": 8, \"lora_alpha\": 8, \"target_modules\": \".*_proj\"}", "patterns are not supported" },
        { "{\"peft_type\": \"LORA\", \"r\": 8, \"lora_alpha\": 8, \"target_modules\": []}", "not a list of names" },
        { "{\"peft_type\": \"LORA\", \"bias\": \"all\"}", "'bias' is 'all'" },
        { "{\"peft_type\": \"LORA\", \"use_dora\": true}", "adapters with 'use_dora'" },
        { "{\"peft_type\": \"LORA\", \"rank_pattern\": {\"q_proj\": 4}}", "adapters with 'rank_pattern'" },
        { "{\"peft_type\": \"LORA\", \"modules_to_save\": [\"lm_head\"]}", "adapters with 'modules_to_save'" },
        { "{\"peft_type\": \"LORA\", \"layers_to_transform\": [0]}", "adapters with 'layers_to_transform'" },
        { "{\"peft_type\": \"LORA\", \"trainable_token_indices\": [1]}", "adapters with 'trainable_token_indices'" },
        { "{\"peft_type\": \"LORA\", \"init_lora_weights\": \"pissa\"}", "changes the base model" },
        { "{\"peft_type\": \"LORA\", \"r\": 8,", "not valid JSON" },
    };
    char dir[] = "/tmp/lora-XXXXXX", path[64];
    struct error err = { 0 };
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/" LORA_CONFIG_FILE, dir);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct lora_config c = { .rank = 77 };
        assert_true(file_write(path, cases[i].json, strlen(cases[i].json), &err));
        assert_false(lora_config_load(&c, dir, &err));
        if (!strstr(err.text, cases[i].says) || !strstr(err.text, path))
            fail_msg("%s: \"%s\" does not say \"%s\"", cases[i].json, err.text, cases[i].says);
        assert_int_equal(c.rank, 77);
    }
    assert_true(dir_remove(dir, &err));
}

/* An adapter for another shape, with another rank's tensors, or cut short. */
static void adapters_of_other_models_are_refused(UNUSED void **state)
{
    struct golden g;
    struct error err = { 0 };
    golden_open(&g, "two", "ref", DT_F32);
    struct model *other = model_new_random(config_shape("starter", &err), 1, g.dev, DT_F32, &err);
    assert_non_null(other);
    assert_false(model_lora_load(other, g.dir, false, &err));
    assert_non_null(strstr(err.text, "the adapter is of another model or rank"));
    assert_null(model_lora(other));    // as it was
    assert_false(lora_files_check(g.dir, model_config(other), &err));
    model_free(other);
    golden_close(&g);
}

/* A list in a file may name modules of other families, as in PEFT; one that a run is given may not. */
static void targets_are_the_modules_that_the_model_has(UNUSED void **state)
{
    static const struct {
        const char *base, *targets;
        bool loose;
        const char *says;    // NULL: it has an adapter then, of this many
        int64_t n_tensor;
    } cases[] = {
        { "phi3", "all-linear", false, NULL, 8 },
        { "llama-tied", "all-linear", false, NULL, 14 },
        { "phi3", "qkv_proj", false, NULL, 2 },
        { "phi3", "q_proj,o_proj", false, "no module 'q_proj' for an adapter; it has qkv_proj, o_proj, gate_up_proj, down_proj", 0 },
        { "phi3", "q_proj,o_proj", true, NULL, 2 },
        { "phi3", "q_proj", true, "no module 'q_proj'", 0 },
        { "llama-tied", "gate_up_proj", false, "no module 'gate_up_proj' for an adapter; it has q_proj, k_proj, v_proj, o_proj", 0 },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        char dir[6000];
        struct lora_config c = { .rank = 2, .alpha = 4 };
        snprintf(dir, sizeof dir, "%s/golden/models/%s", data_dir(), cases[i].base);
        struct device *dev = device_new("ref", 1, &err);
        struct model *m = model_load(dir, dev, DT_F32, &err);
        assert_true(m && lora_targets_parse(&c, cases[i].targets, &err));
        c.loose = c.loose || cases[i].loose;
        bool ok = model_lora_new(m, &c, 1, false, &err);
        if (ok != !cases[i].says || (!ok && !strstr(err.text, cases[i].says)))
            fail_msg("case %zu: %s", i, err.text);
        if (ok)
            assert_int_equal(model_n_tensor(m), cases[i].n_tensor * model_config(m)->n_layer);
        model_free(m);
        device_free(dev);
    }
}

static void target_modules_are_parsed_by_name(UNUSED void **state)
{
    static const struct {
        const char *text;
        unsigned targets;
        const char *says;
    } cases[] = {
        { "all-linear", 0x1ff, NULL },
        { "qkv_proj,mlp.gate_up_proj", 1u << LORA_QKV | 1u << LORA_GATE_UP, NULL },
        { "q_proj,v_proj", 1u << LORA_Q | 1u << LORA_V, NULL },
        { " q_proj  mlp.down_proj,", 1u << LORA_Q | 1u << LORA_DOWN, NULL },
        { "proj", 0, "'proj' is not a target module" },
        { "q_proj,lm_head", 0, "'lm_head' is not a target module" },
        { "", 0, "is empty" },
        { " , ", 0, "is empty" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct lora_config c = { .targets = 99 };
        bool ok = lora_targets_parse(&c, cases[i].text, &err);
        assert_int_equal(ok, !cases[i].says);
        assert_int_equal(c.targets, ok ? cases[i].targets : 99);
        if (!ok && !strstr(err.text, cases[i].says))
            fail_msg("\"%s\" does not say \"%s\"", err.text, cases[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_and_gradients_are_pefts),
        cmocka_unit_test(the_gradient_is_the_slope_of_the_loss),
        cmocka_unit_test(pieces_are_the_flat_gradient),
        cmocka_unit_test(ten_adamw_steps_are_pefts),
        cmocka_unit_test(merging_gives_pefts_weights),
        cmocka_unit_test(sampling_and_scoring_have_equal_bits),
        cmocka_unit_test(a_new_adapter_and_a_view_are_the_base),
        cmocka_unit_test(a_new_adapter_is_drawn_from_its_seed),
        cmocka_unit_test(copies_and_files_hold_the_adapter_alone),
        cmocka_unit_test(a_checkpoint_of_an_adapter_restores_an_adapter),
        cmocka_unit_test(adapters_of_other_kinds_are_refused),
        cmocka_unit_test(adapters_of_other_models_are_refused),
        cmocka_unit_test(targets_are_the_modules_that_the_model_has),
        cmocka_unit_test(target_modules_are_parsed_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
