/* Weight files and config.json: what is written reads back, and hostile or broken files are refused in one sentence that names
 * the fault. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "kernels/ops.h"
#include "protocol/base/file.h"
#include "workers/engine/model/config.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/safetensors.h"

static char root[] = "/tmp/safetensors_test.XXXXXX";

static const char *file_put(const char *name, const char *header, uint64_t header_len, size_t data_len)
{
    static char path[512];
    struct error err;
    struct buf b = BUF_INIT;
    for (int i = 0; i < 8; i++)
        buf_char(&b, (char)(header_len >> 8 * i));
    buf_str(&b, header);
    for (size_t i = 0; i < data_len; i++)
        buf_char(&b, (char)i);
    snprintf(path, sizeof path, "%s/%s", root, name);
    if (!file_write(path, b.data, b.len, &err))
        fail_msg("%s", err.text);
    buf_release(&b);
    return path;
}

static void hostile_files_are_refused_and_named(UNUSED void **state)
{
    // clang-format off
    static const struct { const char *header; int64_t len; size_t data; const char *want;
    } cases[] = {
        {"{}", -1, 0, NULL}, // an empty file is well-formed
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", -1, 8, NULL},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", -1, 7, "truncated"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", -1, 8, "its shape says 3"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", -1, 8, "impossible shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,8]}}", -1, 8,
         "impossible shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", -1, 8, "its shape says"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", -1, 8, "outside of the file"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,99999999999]}}", -1, 8, "outside of the file"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],"
         "\"data_offsets\":[4,12]}}",
         -1, 12, "overlap"},
        {"{\"a\":{\"shape\":[2]}}", -1, 8, "no dtype"},
        {"[1]", -1, 0, "not an object"},
        {"{\"a\":", -1, 0, "not valid JSON"},
        {"{}", 1000, 0, "does not fit"},
        {"{}", INT64_MAX, 0, "does not fit"},
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        const char *h = cases[i].header;
        const char *path = file_put("hostile", h, cases[i].len < 0 ? strlen(h) : (uint64_t)cases[i].len, cases[i].data);
        struct shards *s = shards_open_file(path, &err);
        if (!cases[i].want && !s)
            fail_msg("case %zu: %s", i, err.text);
        if (cases[i].want && (s || !strstr(err.text, cases[i].want) || !strstr(err.text, path)))
            fail_msg("case %zu: \"%s\" does not say '%s' of '%s'", i, s ? "(opened)" : err.text, cases[i].want, path);
        shards_close(s);
    }
}

static void every_truncation_is_refused(UNUSED void **state)
{
    char path[600], cut[600];
    struct error err = { 0 };
    struct buf b = BUF_INIT;
    snprintf(path, sizeof path, "%s/golden/models/qwen2-tied/model.safetensors", TEST_DATA_DIR);
    snprintf(cut, sizeof cut, "%s/cut", root);
    assert_true(file_read(&b, path, 1 << 24, &err));
    for (size_t len = 0; len < b.len; len += len < 3000 ? 61 : 9973) {
        assert_true(file_write(cut, b.data, len, &err));
        struct shards *s = shards_open_file(cut, &err);
        assert_null(s);
    }
    buf_release(&b);
}

static void sixteen_bit_floats_convert_exactly(UNUSED void **state)
{
    static const struct {
        uint16_t half;
        float want;
    } cases[] = {
        { 0x3c00, 1 },     { 0xc000, -2 },       { 0x0001, 0x1p-24f },    { 0x8000, -0.0f },
        { 0x7bff, 65504 }, { 0x7c00, INFINITY }, { 0x3555, 0x1.554p-2f }, { 0x0400, 0x1p-14f },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct st_tensor t = { .name = "h", .dtype = ST_F16, .n_elem = 1, .data = (const uint8_t *)&cases[i].half, .size_bytes = 2 };
        float f;
        st_to_f32(&f, &t);
        assert_memory_equal(&f, &cases[i].want, 4);
    }
    static const struct {
        float f;
        uint16_t want;
    } round[] = {
        { 1, 0x3f80 }, { 0x1.01p0f, 0x3f80 }, { 0x1.03p0f, 0x3f82 }, { 0x1.010002p0f, 0x3f81 }, { -0.0f, 0x8000 },
    };    // halves go to the even neighbour
    for (size_t i = 0; i < ARRAY_SIZE(round); i++) {
        struct st_tensor t = { .name = "f", .dtype = ST_F32, .n_elem = 1, .data = (const uint8_t *)&round[i].f, .size_bytes = 4 };
        uint16_t h;
        st_to_bf16(&h, &t);
        assert_int_equal(h, round[i].want);
    }
}

static bool same_rope(const struct rope *p, const struct rope *q)
{
    return p->type == q->type && p->theta == q->theta && p->partial == q->partial && p->factor == q->factor
           && p->original_max_pos == q->original_max_pos && p->low_freq_factor == q->low_freq_factor
           && p->high_freq_factor == q->high_freq_factor && p->beta_fast == q->beta_fast && p->beta_slow == q->beta_slow
           && p->n_ext == q->n_ext && memcmp(p->short_ext, q->short_ext, sizeof p->short_ext) == 0
           && memcmp(p->long_ext, q->long_ext, sizeof p->long_ext) == 0;
}

static bool same_config(const struct model_config *x, const struct model_config *y)
{
    bool rope = same_rope(&x->rope, &y->rope) && x->has_rope_local == y->has_rope_local && same_rope(&x->rope_local, &y->rope_local);
    return rope && x->family == y->family && x->n_layer == y->n_layer && x->d_model == y->d_model && x->n_head == y->n_head
           && x->n_kv_head == y->n_kv_head && x->d_head == y->d_head && x->d_ff == y->d_ff && x->vocab == y->vocab
           && x->max_pos == y->max_pos && x->norm_place == y->norm_place && x->norm_form == y->norm_form && x->act == y->act
           && x->fused_names == y->fused_names && x->qk_norm_wide == y->qk_norm_wide && memcmp(x->slides, y->slides, sizeof x->slides) == 0
           && x->attn_cap == y->attn_cap && x->logit_cap == y->logit_cap && x->query_scalar == y->query_scalar
           && x->embed_root == y->embed_root && x->rms_eps == y->rms_eps && x->tied == y->tied && x->qkv_bias == y->qkv_bias
           && x->o_bias == y->o_bias && x->mlp_bias == y->mlp_bias && x->qk_norm == y->qk_norm && x->window == y->window
           && memcmp(x->no_rope, y->no_rope, sizeof x->no_rope) == 0 && x->has_multipliers == y->has_multipliers
           && memcmp(&x->multiplier, &y->multiplier, sizeof x->multiplier) == 0 && x->bos == y->bos && x->n_eos == y->n_eos
           && x->eos[0] == y->eos[0];
}

/* Every family, in both types: the weights' bytes, and all that config.json says. */
static void a_saved_model_loads_and_is_the_same(UNUSED void **state)
{
    static const char *const names[] = { "qwen2-tied",     "qwen3-untied", "llama-scaled", "qwen2-yarn",     "mistral-linear", "granite",
                                         "smollm3",        "llama-biased", "olmo2",        "olmo3",          "phi3",           "phi3-long",
                                         "llama-longrope", "gemma2",       "gemma3",       "mistral-window", "qwen2-window" };
    for (size_t k = 0; k < 2 * ARRAY_SIZE(names); k++) {
        struct error err = { 0 };
        enum dtype type = k % 2 ? DT_BF16 : DT_F32;
        char dir[512], from[600];
        uint64_t a, b;
        struct device *dev = device_new("ref", 1, &err);
        snprintf(from, sizeof from, "%s/golden/models/%s", TEST_DATA_DIR, names[k / 2]);
        snprintf(dir, sizeof dir, "%s/saved-%zu", root, k);
        struct model *m = model_load(from, dev, type, &err);
        if (!m || !dir_make(dir, 0755, &err) || !model_save(m, dir, &err))
            fail_msg("%s", err.text);
        struct model *n = model_load(dir, dev, type, &err);
        if (!n)
            fail_msg("%s", err.text);
        assert_true(model_weights_hash(m, &a, &err) && model_weights_hash(n, &b, &err) && a == b);
        if (!same_config(model_config(m), model_config(n)))
            fail_msg("%s: its config.json says something else after saving", names[k / 2]);
        model_free(m);
        model_free(n);
        device_free(dev);
    }
}

/* A tensor of more than one piece (weights_load.c), from fp32 files into both types: straight into memory that the host can write, and by
 * way of buffers where it cannot. */
static void large_tensors_load_piece_by_piece(UNUSED void **state)
{
    static const struct model_config config = {
        .family = FAMILY_QWEN2,
        .n_layer = 1,
        .d_model = 64,
        .n_head = 2,
        .n_kv_head = 1,
        .d_head = 32,
        .d_ff = 64,
        .vocab = 280001,    // two pieces and a rest
        .max_pos = 64,
        .rms_eps = 1e-6f,
        .rope.theta = 1e4,
        .tied = true,
        .qkv_bias = true,
        .bos = -1,
        .initializer_range = 0.02,
    };
    struct error err = { 0 };
    char dir[512];
    struct device *dev = device_new("cpu:0", 3, &err);
    snprintf(dir, sizeof dir, "%s/large", root);
    struct model *m = dev ? model_new_random(&config, 9, dev, DT_F32, &err) : NULL;
    if (!m || !dir_make(dir, 0755, &err) || !model_save(m, dir, &err))
        fail_msg("%s", err.text);
    size_t size, got;
    const float *want = model_weights(m, &size);
    for (int way = 0; way < 4; way++) {
        enum dtype type = way & 1 ? DT_BF16 : DT_F32;
        dev->host_memory = !(way & 2);
        struct model *n = model_load(dir, dev, type, &err);
        dev->host_memory = true;
        if (!n)
            fail_msg("%s", err.text);
        const void *read = model_weights(n, &got);
        assert_true(got == (type == DT_F32 ? size : size / 2));
        if (type == DT_F32)
            assert_memory_equal(read, want, size);
        for (size_t i = 0; type == DT_BF16 && i < size / sizeof *want; i += 997)
            assert_true(((const uint16_t *)read)[i] == bf16_from_f32(want[i]));
        model_free(n);
    }
    model_free(m);
    device_free(dev);
}

/* The traits that only some families have, read as transformers reads them. */
static void traits_follow_the_family(UNUSED void **state)
{
#define SIZES                                                                                                                              \
    "\"num_hidden_layers\":8,\"hidden_size\":256,\"num_attention_heads\":16,\"intermediate_size\":128,\"vocab_size\":100,"                 \
    "\"rms_norm_eps\":1e-6,\"max_position_embeddings\":4096"
    struct error err = { 0 };
    struct model_config c;
    assert_true(config_parse(&c, "{\"model_type\":\"smollm3\"," SIZES "}", "config.json", &err));
    assert_true(c.tied && c.n_kv_head == 4 && c.rope.theta == 2e6 && c.no_rope[0] == 0x88);    // every fourth does not rotate
    assert_true(config_parse(&c, "{\"model_type\":\"smollm3\",\"no_rope_layer_interval\":3," SIZES "}", "config.json", &err));
    assert_true(c.no_rope[0] == 0x24);
    assert_true(config_parse(&c, "{\"model_type\":\"smollm3\",\"no_rope_layers\":[0,1,1,1,1,1,1,0]," SIZES "}", "config.json", &err));
    assert_true(c.no_rope[0] == 0x81);
    assert_true(config_parse(&c, "{\"model_type\":\"mistral\",\"num_key_value_heads\":null," SIZES "}", "config.json", &err));
    assert_true(!c.tied && c.n_kv_head == 16 && c.window == 4096 && !c.has_multipliers && config_rotates(&c, 3));
    assert_true(config_parse(&c, "{\"model_type\":\"mistral\",\"sliding_window\":null," SIZES "}", "config.json", &err));
    assert_true(c.n_kv_head == 8 && c.window == 0);
    assert_true(config_parse(&c, "{\"model_type\":\"granite\",\"logits_scaling\":8," SIZES "}", "config.json", &err));
    assert_true(c.has_multipliers && c.multiplier.logits == 8 && c.multiplier.attention == 1);
    assert_true(config_parse(&c, "{\"model_type\":\"llama\",\"logits_scaling\":8,\"no_rope_layers\":7," SIZES "}", "config.json", &err));
    assert_true(!c.has_multipliers && c.no_rope[0] == 0);    // keys that its class does not read
    assert_true(config_parse(&c, "{\"model_type\":\"qwen3\",\"attention_bias\":true,\"mlp_bias\":true," SIZES "}", "config.json", &err));
    assert_true(c.qkv_bias && c.o_bias && !c.mlp_bias);
    assert_true(config_parse(&c, "{\"model_type\":\"qwen2\",\"attention_bias\":true," SIZES "}", "config.json", &err));
    assert_true(c.qkv_bias && !c.o_bias);
#define SLIDE                                                                                                                                   \
    "[\"full_attention\",\"sliding_attention\",\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\"," \
    "\"full_attention\"]"
    assert_true(config_parse(&c, "{\"model_type\":\"mistral\",\"layer_types\":" SLIDE "," SIZES "}", "config.json", &err));
    assert_true(c.window == 4096 && c.slides[0] == 2);    // the list goes before the family's rule
    assert_true(config_parse(&c, "{\"model_type\":\"mistral\",\"sliding_window\":9," SIZES "}", "config.json", &err));
    assert_true(c.window == 9 && c.slides[0] == 0xff);
    assert_true(config_parse(&c, "{\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"max_window_layers\":5," SIZES "}", "c", &err));
    assert_true(c.window == 4096 && c.slides[0] == 0xe0);
    assert_true(config_parse(&c, "{\"model_type\":\"qwen2\",\"sliding_window\":9,\"max_window_layers\":5," SIZES "}", "c", &err));
    assert_true(c.window == 0 && c.slides[0] == 0);
    assert_true(config_parse(&c, "{\"model_type\":\"smollm3\",\"use_sliding_window\":true,\"sliding_window\":7," SIZES "}", "c", &err));
    assert_true(c.window == 7 && c.slides[0] == 0x88);
    assert_true(config_parse(&c, "{\"model_type\":\"gemma2\",\"final_logit_softcapping\":null," SIZES "}", "config.json", &err));
    assert_true(c.tied && c.d_head == 256 && c.n_kv_head == 4 && c.attn_cap == 50 && c.logit_cap == 0 && c.query_scalar == 256
                && c.window == 4096 && c.slides[0] == 0x55 && c.act == ACT_GELU_TANH && c.norm_place == NORM_AROUND && !c.has_rope_local);
    assert_true(
        config_parse(&c, "{\"model_type\":\"gemma3_text\",\"attn_logit_softcapping\":50,\"hidden_act\":\"gelu\"," SIZES "}", "c", &err));
    assert_true(c.attn_cap == 0 && c.slides[0] == 0xdf && c.rope.theta == 1e6 && c.has_rope_local && c.rope_local.theta == 1e4);
    assert_true(config_parse(&c,
                             "{\"model_type\":\"gemma3_text\",\"sliding_window_pattern\":2,\"rope_local_base_freq\":5000,"
                             "\"rope_theta\":7000,\"rope_scaling\":{\"type\":\"linear\",\"factor\":8}," SIZES "}",
                             "c", &err));
    assert_true(c.slides[0] == 0x55 && c.rope.theta == 7000 && c.rope.type == ROPE_LINEAR && c.rope_local.theta == 5000
                && c.rope_local.type == ROPE_DEFAULT);
    assert_true(config_parse(&c, "{\"model_type\":\"olmo3\",\"rope_theta\":7000," SIZES "}", "config.json", &err));
    assert_true(c.slides[0] == 0x77 && c.rope.theta == 7000 && c.rope_local.theta == 5e5 && c.qk_norm_wide);
    /* only the objects inside count there, and what stands outside the object */
    assert_true(config_parse(&c,
                             "{\"model_type\":\"olmo3\",\"rope_theta\":7000,\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4,"
                             "\"rope_theta\":9}," SIZES "}",
                             "config.json", &err));
    assert_true(c.rope.theta == 7000 && c.rope.type == ROPE_DEFAULT && c.rope_local.theta == 5e5);
    assert_true(config_parse(&c, "{\"model_type\":\"gemma3_text\",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4}," SIZES "}",
                             "c", &err));
    assert_true(c.rope.theta == 1e6 && c.rope.type == ROPE_DEFAULT && c.rope_local.theta == 10000);
    assert_true(config_parse(&c, "{\"model_type\":\"olmo3\",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}," SIZES "}", "c", &err));
    assert_true(c.rope.type == ROPE_YARN && c.rope.theta == 5e5);
    assert_true(config_parse(&c,
                             "{\"model_type\":\"qwen2\",\"rope_scaling\":{\"type\":\"longrope\","
                             "\"long_factor\":[1,1,1,1,1,1,1,1],\"short_factor\":[1,1,1,1,1,1,1,2]}," SIZES "}",
                             "c", &err));
    assert_true(c.rope.type == ROPE_LONG && c.rope.factor == 1 && c.rope.original_max_pos == c.max_pos);
    assert_true(config_parse(&c,
                             "{\"model_type\":\"phi3\",\"original_max_position_embeddings\":1024,\"rope_scaling\":{\"type\":\"su\","
                             "\"long_factor\":[1,1,1,1,1,1,1,1],\"short_factor\":[1,1,1,1,1,1,1,2]}," SIZES "}",
                             "c", &err));
    assert_true(c.fused_names && c.window == 0 && c.rope.type == ROPE_LONG && c.rope.short_ext[7] == 2 && c.rope.factor == 4
                && c.max_pos == 4096 && c.rope.original_max_pos == 1024 && config_longest(&c) == 4096);
    assert_true(config_parse(&c,
                             "{\"model_type\":\"qwen2\",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
                             "\"original_max_position_embeddings\":4096}," SIZES "}",
                             "c", &err));
    assert_true(c.max_pos == 4096 && config_longest(&c) == 16384);
    static const struct {
        const char *text, *want;
    } cases[] = {
        { "{\"model_type\":\"mistral\",\"layer_types\":[\"sliding_attention\"]," SIZES "}", "'layer_types' is not a list of 8 kinds" },
        { "{\"model_type\":\"gemma2\",\"layer_types\":[\"chunked_attention\",1,1,1,1,1,1,1]," SIZES "}", "'layer_types' has an entry 0" },
        { "{\"model_type\":\"olmo3\",\"sliding_window\":null,\"layer_types\":" SLIDE "," SIZES "}", "there is no 'sliding_window'" },
        { "{\"model_type\":\"gemma2\",\"hidden_activation\":\"gelu\"," SIZES "}", "'hidden_activation' is gelu; silu and gelu_py" },
        { "{\"model_type\":\"gemma2\",\"attn_logit_softcapping\":\"x\"," SIZES "}", "'attn_logit_softcapping' is not a number" },
        { "{\"model_type\":\"gemma3_text\",\"use_bidirectional_attention\":true," SIZES "}", "'use_bidirectional_attention' is true" },
        { "{\"model_type\":\"phi3\",\"partial_rotary_factor\":0.2," SIZES "}", "turns 3 of 'head_dim' 16" },
        { "{\"model_type\":\"llama\",\"partial_rotary_factor\":0.5," SIZES "}", "'partial_rotary_factor' is 0.5; heads of this family" },
        { "{\"model_type\":\"phi3\",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}," SIZES "}", "known are default and longrope" },
        { "{\"model_type\":\"olmo3\",\"rope_scaling\":{\"type\":\"longrope\"}," SIZES "}",
          "known are default, linear, dynamic, yarn and llama3" },
        { "{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"su\"}," SIZES "}", "llama3 and longrope" },
        { "{\"model_type\":\"phi3\",\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1]}," SIZES "}",
          "'rope_scaling.short_factor' is not a list of 8" },
        { "{\"model_type\":\"phi3\",\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,1,1,1,1,1,1,0]}," SIZES "}",
          "'rope_scaling.short_factor' has an entry 7" },
        { "{\"model_type\":\"llama\",\"rope_parameters\":{\"full_attention\":{}}," SIZES "}", "do not differ between layers" },
        { "{\"model_type\":\"granite\",\"residual_multiplier\":0," SIZES "}", "'residual_multiplier' is 0" },
        { "{\"model_type\":\"llama\",\"mlp_bias\":1," SIZES "}", "'mlp_bias' is not true or false" },
        { "{\"model_type\":\"smollm3\",\"no_rope_layers\":[1,1]," SIZES "}", "'no_rope_layers' is not a list of 8 numbers" },
        { "{\"model_type\":\"smollm3\",\"no_rope_layers\":[1,1,1,2,1,1,1,1]," SIZES "}", "'no_rope_layers' has an entry 3" },
        { "{\"model_type\":\"gemma\"," SIZES "}",
          "'gemma'; known are qwen2, qwen3, llama, mistral, granite, smollm3, olmo2, olmo3, phi3, gemma2, gemma3_text, qwen3_moe, olmoe, "
          "mixtral, granitemoe and qwen3_5_text" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        if (config_parse(&c, cases[i].text, "config.json", &err) || !strstr(err.text, cases[i].want))
            fail_msg("case %zu: \"%s\" does not say '%s'", i, err.text, cases[i].want);
}

/* Heads that attention cannot do are refused before any weight is read. */
static void head_sizes_are_checked_at_load(UNUSED void **state)
{
    static const int64_t sizes[] = { 8, 40, 272 };
    struct device *dev;
    struct error err = { 0 };
    assert_non_null(dev = device_new("cpu:0", 1, &err));
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct model_config c = *config_shape("starter", &err);
        char want[64];
        c.d_head = sizes[i];
        snprintf(want, sizeof want, "'head_dim' is %" PRId64 "; ", sizes[i]);
        assert_null(model_new_random(&c, 1, dev, DT_F32, &err));
        if (!strstr(err.text, want))
            fail_msg("\"%s\" does not say \"%s\"", err.text, want);
    }
    device_free(dev);
}

/* Half of a model's tensors in fp16, half in bf16, in two files with an index, as large models come. */
static void shards_put(const char *from, const char *dir, const char *second)
{
    struct error err = { 0 };
    char path[700];
    struct buf index = BUF_INIT, config = BUF_INIT;
    snprintf(path, sizeof path, "%s/model.safetensors", from);
    struct shards *s = shards_open_file(path, &err);
    assert_non_null(s);
    int64_t n = shards_n(s);
    struct st_out *out = calloc((size_t)n, sizeof *out);
    buf_str(&index, "{\"weight_map\":{");
    for (int64_t i = 0; i < n; i++) {
        const struct st_tensor *t = shards_at(s, i);
        uint16_t *h = malloc((size_t)t->n_elem * 2);
        st_to_bf16(h, t);
        if (i < n / 2)    // 1.0 in fp16; the values do not matter, their type does
            for (int64_t k = 0; k < t->n_elem; k++)
                h[k] = 0x3c00;
        out[i] = (struct st_out){
            .name = t->name, .dtype = i < n / 2 ? ST_F16 : ST_BF16, .n_dim = t->n_dim, .dim = { t->dim[0], t->dim[1] }, .data = h
        };
        buf_fmt(&index, "%s\"%s\":\"%s\"", i ? "," : "", t->name, i < n / 2 ? "a.safetensors" : second);
    }
    buf_str(&index, "}}");
    assert_true(dir_make(dir, 0755, &err));
    snprintf(path, sizeof path, "%s/a.safetensors", dir);
    assert_true(st_write(path, out, n / 2, &err));
    snprintf(path, sizeof path, "%s/b.safetensors", dir);
    assert_true(st_write(path, out + n / 2, n - n / 2, &err));
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    assert_true(file_write(path, index.data, index.len, &err));
    snprintf(path, sizeof path, "%s/config.json", from);
    assert_true(file_read(&config, path, 1 << 20, &err));
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_true(file_write(path, config.data, config.len, &err));
    for (int64_t i = 0; i < n; i++)
        free((void *)out[i].data);
    free(out);
    shards_close(s);
    buf_release(&index);
    buf_release(&config);
}

/* The tied model in dir, with a head besides its tensors; of one or two files. */
static void head_put(const char *dir, bool sharded, struct st_out head)
{
    struct error err = { 0 };
    char path[700];
    struct buf config = BUF_INIT, index = BUF_INIT;
    snprintf(path, sizeof path, "%s/golden/models/qwen3-tied/model.safetensors", TEST_DATA_DIR);
    struct shards *s = shards_open_file(path, &err);
    assert_non_null(s);
    int64_t n = shards_n(s);
    struct st_out *out = calloc((size_t)n + 1, sizeof *out);
    buf_str(&index, "{\"weight_map\":{\"lm_head.weight\":\"b.safetensors\"");
    for (int64_t i = 0; i < n; i++) {
        const struct st_tensor *t = shards_at(s, i);
        out[i] = (struct st_out){ .name = t->name, .dtype = t->dtype, .n_dim = t->n_dim, .dim = { t->dim[0], t->dim[1] }, .data = t->data };
        buf_fmt(&index, ",\"%s\":\"a.safetensors\"", t->name);
    }
    buf_str(&index, "}}");
    out[n] = head;
    assert_true(dir_make(dir, 0755, &err));
    snprintf(path, sizeof path, "%s/%s", dir, sharded ? "a.safetensors" : "model.safetensors");
    assert_true(st_write(path, out, sharded ? n : n + 1, &err));
    snprintf(path, sizeof path, "%s/b.safetensors", dir);
    assert_true(!sharded || st_write(path, out + n, 1, &err));
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    assert_true(!sharded || file_write(path, index.data, index.len, &err));
    snprintf(path, sizeof path, "%s/golden/models/qwen3-tied/config.json", TEST_DATA_DIR);
    assert_true(file_read(&config, path, 1 << 20, &err));
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_true(file_write(path, config.data, config.len, &err));
    free(out);
    shards_close(s);
    buf_release(&index);
    buf_release(&config);
}

static const struct tensor *tensor_named(const struct model *m, const char *name)
{
    for (int64_t i = 0; i < model_n_tensor(m); i++)
        if (strcmp(model_tensor(m, i)->name, name) == 0)
            return model_tensor(m, i);
    return NULL;
}

/* transformers 5 and vLLM tie head and embedding only when the files hold no other head, whatever config.json says. */
static void a_tied_model_with_another_head_in_its_files_is_not_tied(UNUSED void **state)
{
    struct error err = { 0 };
    char dir[600], again[600], from[600];
    size_t bytes;
    struct device *dev = device_new("ref", 1, &err);
    struct model_config c, saved;
    snprintf(from, sizeof from, "%s/golden/models/qwen3-tied", TEST_DATA_DIR);
    assert_true(config_load(&c, from, &err) && c.tied && !c.head_differs);
    struct model *tied = model_load(from, dev, DT_F32, &err);
    assert_non_null(tied);
    int64_t n = c.vocab * c.d_model;
    const float *embed = (const float *)model_weights(tied, &bytes) + tensor_named(tied, "model.embed_tokens.weight")->offset;
    float *head = malloc((size_t)n * sizeof *head);
    uint16_t *rounded = malloc((size_t)n * sizeof *rounded);
    for (int64_t i = 0; i < n; i++)
        rounded[i] = 0x3f80;         // 1, whatever the embedding is
    for (int i = 0; i < 6; i++) {    // one file or two, and a head that is the embedding, differs in its last value, or is of another type
        memcpy(head, embed, (size_t)n * sizeof *head);
        head[n - 1] += i / 2 == 1;
        bool differs = i / 2 > 0;
        struct st_out out = { .name = "lm_head.weight", .dtype = ST_F32, .n_dim = 2, .dim = { c.vocab, c.d_model }, .data = head };
        if (i / 2 == 2)
            out.dtype = ST_BF16, out.data = rounded;
        snprintf(dir, sizeof dir, "%s/head-%d", root, i);
        head_put(dir, i % 2, out);
        struct model *m = model_load(dir, dev, DT_F32, &err);
        if (!m || !config_load(&c, dir, &err))
            fail_msg("%s", err.text);
        assert_true(c.tied == !differs && c.head_differs == differs);
        const struct tensor *t = tensor_named(m, "lm_head.weight");
        assert_int_equal(t != NULL, differs);
        const float *w = model_weights(m, &bytes);
        for (int64_t k = 0; t && k < n; k++)
            assert_true(w[t->offset + k] == (i / 2 == 2 ? 1 : head[k]));
        snprintf(again, sizeof again, "%s/head-saved-%d", root, i);
        assert_true(dir_make(again, 0755, &err) && model_save(m, again, &err) && config_load(&saved, again, &err));
        assert_true(saved.tied == !differs && !saved.head_differs);    // what is saved says what it is
        model_free(m);
    }
    snprintf(dir, sizeof dir, "%s/head-short", root);
    head_put(dir, false,
             (struct st_out){ .name = "lm_head.weight", .dtype = ST_F32, .n_dim = 2, .dim = { c.vocab - 1, c.d_model }, .data = head });
    assert_null(model_load(dir, dev, DT_F32, &err));
    assert_non_null(strstr(err.text, "'lm_head.weight' must be float of"));
    free(head);
    free(rounded);
    model_free(tied);
    device_free(dev);
}

/* The files of a model of images and text: the text part under either prefix, and parts for images, which are left out. */
static void the_text_part_of_a_model_of_images_loads(UNUSED void **state)
{
    static const char *const prefixes[] = { "language_model.model.", "model.language_model." };
    struct error err = { 0 };
    char from[600], dir[512], path[700], name[64][128];
    uint64_t want, got;
    struct device *dev = device_new("ref", 1, &err);
    snprintf(from, sizeof from, "%s/golden/models/gemma3", TEST_DATA_DIR);
    struct model *plain = model_load(from, dev, DT_F32, &err);
    assert_true(plain && model_weights_hash(plain, &want, &err));
    for (size_t p = 0; p < ARRAY_SIZE(prefixes) * 2; p++) {
        bool unknown = p % 2;    // a tensor that belongs to neither part
        struct buf config = BUF_INIT, whole = BUF_INIT;
        struct st_out out[65];
        float image[2] = { 1, 2 };
        snprintf(path, sizeof path, "%s/model.safetensors", from);
        struct shards *s = shards_open_file(path, &err);
        int64_t n = s ? shards_n(s) : 0;
        assert_true(n > 0 && n <= 64);
        for (int64_t i = 0; i < n; i++) {
            const struct st_tensor *t = shards_at(s, i);
            assert_true(strncmp(t->name, "model.", 6) == 0);
            snprintf(name[i], sizeof name[i], "%s%s", prefixes[p / 2], t->name + 6);
            out[i] = (struct st_out){ name[i], ST_F32, t->n_dim, { t->dim[0], t->dim[1] }, t->data };
        }
        out[n] = (struct st_out){ unknown ? "audio_tower.weight"
                                  : p / 2 ? "model.vision_tower.weight"
                                          : "vision_tower.weight",
                                  ST_F32,
                                  1,
                                  { 2 },
                                  image };
        snprintf(dir, sizeof dir, "%s/wrapped-%zu", root, p);
        snprintf(path, sizeof path, "%s/config.json", from);
        assert_true(dir_make(dir, 0755, &err) && file_read(&config, path, 1 << 20, &err));
        buf_fmt(&whole, "{\"model_type\":\"gemma3\",\"eos_token_id\":[1,6],\"vision_config\":{},\"text_config\":%s}", buf_text(&config));
        snprintf(path, sizeof path, "%s/config.json", dir);
        assert_true(file_write(path, whole.data, whole.len, &err));
        snprintf(path, sizeof path, "%s/model.safetensors", dir);
        assert_true(st_write(path, out, n + 1, &err));
        struct model *m = model_load(dir, dev, DT_F32, &err);
        if (unknown != !m || (unknown && !strstr(err.text, "'audio_tower.weight' does not belong")))
            fail_msg("%zu: %s", p, m ? "loaded" : err.text);
        if (m)
            assert_true(model_weights_hash(m, &got, &err) && got == want && model_config(m)->n_eos == 2 && model_config(m)->eos[1] == 6);
        model_free(m);
        shards_close(s);
        buf_release(&config);
        buf_release(&whole);
    }
    struct model_config c;
    assert_true(config_parse(&c,
                             "{\"model_type\":\"gemma3\",\"text_config\":{\"model_type\":\"gemma3_text\",\"hidden_size\":2560,"
                             "\"intermediate_size\":10240,\"num_hidden_layers\":34,\"sliding_window\":1024}}",
                             "c", &err));
    assert_true(c.n_head == 8 && c.n_kv_head == 4 && c.d_head == 256 && c.vocab == 262208 && c.rms_eps == 1e-6 && c.max_pos == 131072);
    assert_false(config_parse(&c, "{\"model_type\":\"gemma3\"}", "config.json", &err));
    model_free(plain);
    device_free(dev);
}

static void sharded_models_of_any_float_type_load(UNUSED void **state)
{
    struct error err = { 0 };
    char from[600], dir[512];
    size_t bytes;
    struct device *dev = device_new("ref", 1, &err);
    snprintf(from, sizeof from, "%s/golden/models/qwen3-untied", TEST_DATA_DIR);
    snprintf(dir, sizeof dir, "%s/sharded", root);
    shards_put(from, dir, "b.safetensors");
    struct model *m = model_load(dir, dev, DT_F32, &err), *whole = model_load(from, dev, DT_F32, &err);
    if (!m || !whole)
        fail_msg("%s", err.text);
    const float *w = model_weights(m, &bytes), *v = model_weights(whole, &bytes);
    int64_t ones = 0, near = 0;
    for (int64_t i = 0; i < model_n_flat(m); i++) {
        ones += w[i] == 1;
        near += w[i] != 1 && fabsf(w[i] - v[i]) <= fabsf(v[i]) * 0x1p-8f;
    }
    assert_true(ones > model_n_flat(m) / 4 && near > model_n_flat(m) / 4 && ones + near == model_n_flat(m));
    model_free(m);
    model_free(whole);
    static const struct {
        const char *second, *want;
    } cases[] = {
        { "a.safetensors", "' is not in 'a.safetensors'" },
        { "c.safetensors", "c.safetensors" },
        { "../b", "not a plain file name" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        shards_put(from, dir, cases[i].second);
        assert_null(model_load(dir, dev, DT_F32, &err));
        if (!strstr(err.text, cases[i].want))
            fail_msg("\"%s\" does not say '%s'", err.text, cases[i].want);
    }
    device_free(dev);
}

static void configs_say_which_key_is_wrong(UNUSED void **state)
{
#define BASE                                                                                                                               \
    "\"model_type\":\"qwen2\",\"num_hidden_layers\":2,\"hidden_size\":64,\"num_attention_heads\":4,"                                       \
    "\"intermediate_size\":128,\"vocab_size\":100,\"rms_norm_eps\":1e-6"
    static const struct {
        const char *text, *want;
    } cases[] = {
        { "{" BASE "}", NULL },
        { "{" BASE ",\"num_key_value_heads\":2,\"head_dim\":null,\"eos_token_id\":[1,2]}", NULL },
        { "{" BASE ",\"num_key_value_heads\":3}", "'num_key_value_heads' 3 does not divide" },
        { "{\"model_type\":\"qwen2\"}", "'num_hidden_layers' is missing" },
        { "{\"model_type\":\"mamba\"}", "'model_type' is 'mamba'" },
        { "{\"hidden_size\":1}", "'model_type' is missing" },
        { "{" BASE ",\"head_dim\":\"x\"}", "'head_dim' is not a whole number" },
        { "{" BASE ",\"head_dim\":33}", "odd" },
        { "{" BASE ",\"eos_token_id\":100}", "'eos_token_id'" },
        { "{" BASE ",\"hidden_act\":\"gelu\"}", "'hidden_act'" },
        { "{" BASE ",\"rope_scaling\":{\"rope_type\":\"longrope\"}}", "'rope_scaling.short_factor' is not a list of 8 numbers" },
        { "{" BASE ",\"rope_scaling\":{\"rope_type\":\"su\"}}", "'su'; known are default, linear, dynamic, yarn, llama3 and longrope" },
        { "{" BASE ",\"rope_scaling\":{\"type\":7}}", "'rope_scaling.type' is not a string" },
        { "{" BASE ",\"rope_scaling\":{\"type\":\"linear\"}}", "'rope_scaling.factor' is missing" },
        { "{" BASE ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}}", "'rope_scaling.factor' is 0.5" },
        { "{" BASE ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"beta_fast\":null}}", NULL },
        { "{" BASE ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"truncate\":1}}", "'rope_scaling.truncate' is not true" },
        { "{" BASE ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}", "differ between layers" },
        { "{" BASE ",\"partial_rotary_factor\":0.75}", "'partial_rotary_factor' is 0.75" },
        { "{" BASE ",\"rope_parameters\":{\"partial_rotary_factor\":0.5}}", "'rope_parameters.partial_rotary_factor'" },
        { "{" BASE ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}", "'rope_scaling.low_freq_factor' is missing" },
        { "{" BASE ",\"use_sliding_window\":true}", NULL },
        { "{" BASE ",\"use_sliding_window\":true,\"max_window_layers\":-1}", "'max_window_layers' is -1" },
        { "{" BASE ",\"vocab_size\":7}", "not valid JSON" },    // given twice
        { "{" BASE, "not valid JSON" },
        { "[]", "not a JSON object" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct model_config c;
        bool ok = config_parse(&c, cases[i].text, "dir/config.json", &err);
        if (ok != !cases[i].want || (!ok && (!strstr(err.text, cases[i].want) || !strstr(err.text, "dir/config.json"))))
            fail_msg("case %zu: \"%s\" does not say '%s'", i, ok ? "(accepted)" : err.text, cases[i].want ? cases[i].want : "nothing");
    }
}

static void shapes_have_the_published_sizes(UNUSED void **state)
{
    static const struct {
        const char *name;
        double billion;
    } cases[] = {
        { "Qwen2.5-0.5B", 0.494 }, { "Qwen2.5-1.5B", 1.544 }, { "Qwen2.5-3B", 3.086 },   { "Qwen2.5-7B", 7.616 },
        { "Qwen2.5-14B", 14.770 }, { "Qwen2.5-32B", 32.764 }, { "Qwen3-0.6B", 0.596 },   { "Qwen3-1.7B", 1.721 },
        { "Qwen3-4B", 4.022 },     { "Qwen3-8B", 8.191 },     { "Llama-3.1-8B", 8.030 },
    };
    struct error err = { 0 };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const struct model_config *c = config_shape(cases[i].name, &err);
        assert_non_null(c);
        assert_true(fabs((double)config_n_param(c) * 1e-9 - cases[i].billion) < 0.0006);
    }
    assert_null(config_shape("GPT-5", &err));
    assert_non_null(strstr(err.text, "Qwen3-0.6B"));
}

static int setup(UNUSED void **state)
{
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(UNUSED void **state)
{
    struct error err;
    return dir_remove(root, &err) ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_files_are_refused_and_named),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(sixteen_bit_floats_convert_exactly),
        cmocka_unit_test(a_saved_model_loads_and_is_the_same),
        cmocka_unit_test(large_tensors_load_piece_by_piece),
        cmocka_unit_test(sharded_models_of_any_float_type_load),
        cmocka_unit_test(a_tied_model_with_another_head_in_its_files_is_not_tied),
        cmocka_unit_test(the_text_part_of_a_model_of_images_loads),
        cmocka_unit_test(head_sizes_are_checked_at_load),
        cmocka_unit_test(configs_say_which_key_is_wrong),
        cmocka_unit_test(traits_follow_the_family),
        cmocka_unit_test(shapes_have_the_published_sizes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
