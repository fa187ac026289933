/* GGUF files: every type becomes the fp32 bits that gguf-py computes, and hostile or broken files are refused in one sentence that names
 * the fault. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "workers/engine/load/gguf.h"
#include "workers/engine/model/safetensors.h"

#define GOLDEN TEST_DATA_DIR "/golden/gguf/"
static char root[] = "/tmp/gguf_test.XXXXXX";

static void every_type_becomes_the_bits_of_gguf_py(UNUSED void **state)
{
    struct error err;
    struct gguf *g = gguf_open(GOLDEN "types.gguf", &err);
    struct shards *want = shards_open_file(GOLDEN "types.safetensors", &err);
    if (!g || !want)
        fail_msg("%s", err.text);
    assert_int_equal(gguf_n_tensor(g), 13);
    assert_int_equal(shards_n(want), 13);
    for (int64_t i = 0; i < gguf_n_tensor(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        const struct st_tensor *w = shards_find(want, t->name);
        float have[512];
        assert_non_null(w);
        assert_string_equal(t->type->name, t->name);
        assert_int_equal(t->n_dim, 2);
        assert_int_equal(t->dim[0], 2);
        assert_int_equal(t->dim[1], 256);
        gguf_part_to_f32(have, t, 0, 256);    // in two parts: a row begins where it should
        gguf_part_to_f32(have + 256, t, 256, 256);
        if (memcmp(have, w->data, sizeof have) != 0)
            fail_msg("the values of %s are not gguf-py's", t->name);
    }
    gguf_close(g);
    shards_close(want);
}

static void metadata_of_every_kind_is_read(UNUSED void **state)
{
    static const struct {
        const char *key;
        int64_t want;
    } whole[] = {
        { "test.u8", 200 },  { "test.u16", 60000 },  { "test.u32", 4000000000 },  { "test.u64", (int64_t)1 << 40 },
        { "test.i8", -100 }, { "test.i16", -30000 }, { "test.i32", -2000000000 }, { "test.i64", -((int64_t)1 << 40) },
    };
    struct error err;
    struct gguf *g = gguf_open(GOLDEN "types.gguf", &err);
    struct gguf_text text, *texts;
    int64_t n;
    int32_t *ints;
    float *floats;
    double real;
    bool on = false;
    if (!g)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < ARRAY_SIZE(whole); i++) {
        assert_true(gguf_int(g, whole[i].key, INT64_MIN, INT64_MAX, &n, &err));
        assert_int_equal(n, whole[i].want);
    }
    assert_true(gguf_real(g, "test.f32", &real, &err) && real == 1e-5);
    assert_true(gguf_real(g, "test.f64", &real, &err) && real == 1e-5);
    assert_true(gguf_real(g, "test.u8", &real, &err) && real == 200);
    assert_true(gguf_bool(g, "test.bool", &on, &err) && on);
    assert_true(gguf_text(g, "test.text", &text, &err) && gguf_text_is(text, "naïve"));
    assert_true(gguf_texts(g, "test.texts", &texts, &n, &err));
    assert_int_equal(n, 3);
    assert_true(gguf_text_is(texts[0], "a") && gguf_text_is(texts[1], "") && gguf_text_is(texts[2], "bc"));
    assert_true(gguf_ints(g, "test.ints", 3, &ints, &err) && ints[0] == 3 && ints[1] == -1 && ints[2] == 4);
    assert_true(gguf_floats(g, "test.floats", 2, &floats, &err) && floats[0] == 0.5f && floats[1] == -2);
    free(texts);
    free(ints);
    free(floats);

    assert_false(gguf_int(g, "test.none", 0, 1, &n, &err));
    assert_non_null(strstr(err.text, "'test.none' is missing"));
    assert_false(gguf_int(g, "test.f32", 0, 1, &n, &err));
    assert_non_null(strstr(err.text, "'test.f32' is of the kind float32; it must be a whole number"));
    assert_false(gguf_int(g, "test.u8", 0, 100, &n, &err));
    assert_non_null(strstr(err.text, "'test.u8' is 200; it must be between 0 and 100"));
    assert_false(gguf_ints(g, "test.ints", 4, &ints, &err));
    assert_non_null(strstr(err.text, "'test.ints' has 3 items; it must have 4"));
    assert_false(gguf_floats(g, "test.ints", 3, &floats, &err));
    assert_non_null(strstr(err.text, "'test.ints' is of the kind list of int32"));
    assert_false(gguf_text(g, "test.texts", &text, &err));
    gguf_close(g);
}

/* ---- hostile files ---- */

/* A file that is written field by field. */
static void put(struct buf *b, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        buf_char(b, (char)(v >> 8 * i));
}

static void put_text(struct buf *b, const char *text)
{
    put(b, strlen(text), 8);
    buf_str(b, text);
}

/* What is wrong with it, if anything: one field that is not as it was. */
struct spoilt {
    const char *what;    // field
    uint64_t value;
    const char *want;    // of the message; NULL: the file is read
};

static uint64_t field(const struct spoilt *s, const char *what, uint64_t value)
{
    return strcmp(s->what, what) == 0 ? s->value : value;
}

/* A file of two values and two tensors of F32, Q8_0. */
static void file_make(struct buf *b, const struct spoilt *s)
{
    put(b, field(s, "magic", 0x46554747), 4);
    put(b, field(s, "version", 3), 4);
    put(b, field(s, "n_tensor", 2), 8);
    put(b, field(s, "n_value", 2), 8);
    put_text(b, "general.alignment");
    put(b, field(s, "alignment kind", 4), 4);
    put(b, field(s, "alignment", 64), 4);
    put(b, field(s, "same key", 0) ? 17 : field(s, "key length", 5), 8);
    buf_str(b, field(s, "same key", 0) ? "general.alignment" : "texts");
    put(b, field(s, "kind", 9), 4);
    put(b, field(s, "item kind", 8), 4);
    put(b, field(s, "items", 2), 8);
    put(b, field(s, "text length", 2), 8);
    put(b, field(s, "text", 0xA9C3), 2);
    put_text(b, "b");
    for (int i = 0; i < 2; i++) {
        put_text(b, i && !field(s, "same name", 0) ? "second" : "first!");
        put(b, field(s, "n_dim", 2), 4);
        put(b, field(s, "row", 32), 8);
        put(b, field(s, "rows", 2), 8);
        for (uint64_t d = 2; d < MIN(field(s, "n_dim", 2), (uint64_t)8); d++)
            put(b, 1, 8);
        put(b, i ? field(s, "type", 8) : 0, 4);
        put(b, i ? field(s, "offset", 256) : 0, 8);
    }
    while (field(s, "alignment", 64) != 1 && b->len % 64)
        buf_char(b, 0);
    for (int i = 0; i < 256 + 2 * 34; i++)
        buf_char(b, (char)i);
}

static const char *file_put(const struct buf *b, size_t len)
{
    static char path[512];
    struct error err;
    snprintf(path, sizeof path, "%s/x.gguf", root);
    if (!file_write(path, buf_text(b), len, &err))
        fail_msg("%s", err.text);
    return path;
}

static void hostile_files_are_refused_and_named(UNUSED void **state)
{
    static const struct spoilt cases[] = {
        { "nothing", 0, NULL },
        { "version", 2, NULL },
        { "alignment", 1, NULL },
        { "n_dim", 4, NULL },
        { "magic", 0x46554746, "not a GGUF file" },
        { "version", 1, "its version is another" },
        { "version", 4, "its version is another" },
        { "version", 0x03000000, "it is big endian" },
        { "n_tensor", UINT64_MAX, "at most 65536" },
        { "n_tensor", 65537, "at most 65536" },
        { "n_tensor", 9, "a tensor's name of 0 bytes" },
        { "n_value", INT64_MAX, "at most 65536" },
        { "n_value", 3, "truncated" },
        { "alignment", 0, "'general.alignment' is 0" },
        { "alignment", 1u << 31, "'general.alignment' is 2147483648" },
        { "alignment kind", 6, "'general.alignment' is of the kind float32" },
        { "key length", 0, "a key of 0 bytes" },
        { "key length", UINT64_MAX, "truncated" },
        { "key length", 70, "a key of 70 bytes" },
        { "same key", 1, "'general.alignment' is there twice" },
        { "kind", 13, "has the kind 13" },
        { "kind", UINT32_MAX, "has the kind 4294967295" },
        { "item kind", 9, "items of the kind 9" },
        { "item kind", 13, "items of the kind 13" },
        { "items", UINT64_MAX, "truncated" },
        { "items", (uint64_t)1 << 61, "truncated" },
        { "text length", UINT64_MAX, "truncated" },
        { "text", 0xFFC3, "is not UTF-8, or holds a NUL" },
        { "text", 0x0041, "is not UTF-8, or holds a NUL" },
        { "same name", 1, "'first!' is there twice" },
        { "n_dim", 0, "has 0 dimensions" },
        { "n_dim", 5, "has 5 dimensions" },
        { "row", 0, "impossible shape" },
        { "row", 33, "'second' has rows of 33 values; Q8_0 has blocks of 32" },
        { "row", UINT64_MAX, "impossible shape" },
        { "rows", (uint64_t)1 << 62, "impossible shape" },
        { "rows", (uint64_t)1 << 57, "lies outside of the file" },
        { "rows", 3, "lies outside of the file" },
        { "type", 4, "ggml's type 4" },
        { "type", 16, "ggml's type 16" },
        { "type", UINT32_MAX, "ggml's type 4294967295" },
        { "offset", 255, "overlap" },
        { "offset", 0, "overlap" },
        { "offset", 257, "lies outside of the file" },
        { "offset", UINT64_MAX, "lies outside of the file" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct buf b = BUF_INIT;
        file_make(&b, &cases[i]);
        struct gguf *g = gguf_open(file_put(&b, b.len), &err);
        if (!g != !!cases[i].want || (!g && (!strstr(err.text, cases[i].want) || !strstr(err.text, "x.gguf"))))
            fail_msg("%s %" PRIu64 ": %s", cases[i].what, cases[i].value, g ? "it was read" : err.text);
        gguf_close(g);
        buf_release(&b);
    }
}

static void a_file_that_is_cut_anywhere_is_refused(UNUSED void **state)
{
    struct buf b = BUF_INIT;
    file_make(&b, &(struct spoilt){ .what = "nothing" });
    for (size_t len = 0; len < b.len; len++) {
        struct error err = { 0 };
        struct gguf *g = gguf_open(file_put(&b, len), &err);
        if (g || (!strstr(err.text, "truncated") && !strstr(err.text, "not a GGUF file")))
            fail_msg("at %zu of %zu bytes: %s", len, b.len, g ? "it was read" : err.text);
        assert_int_equal(gguf_is(file_put(&b, len)), len >= 4);
    }
    buf_release(&b);
}

static int folder_make(UNUSED void **state)
{
    return mkdtemp(root) ? 0 : -1;
}

static int folder_remove(UNUSED void **state)
{
    struct error err;
    return dir_remove(root, &err) ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_becomes_the_bits_of_gguf_py),
        cmocka_unit_test(metadata_of_every_kind_is_read),
        cmocka_unit_test(hostile_files_are_refused_and_named),
        cmocka_unit_test(a_file_that_is_cut_anywhere_is_refused),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
