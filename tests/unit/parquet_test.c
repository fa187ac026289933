/* tags: valgrind */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <glob.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/file.h"
#include "workers/engine/data/parquet/parquet.h"

/* ---- files that pyarrow has written (tests/golden/make_data.py) ---- */

/* Equal as JSON, where 2 and 2.0 are one number. */
static bool same(const json_t *a, const json_t *b)
{
    const char *name;
    json_t *v;
    size_t i;
    if (json_is_number(a) && json_is_number(b))
        return json_is_integer(a) && json_is_integer(b) ? json_integer_value(a) == json_integer_value(b)
                                                        : json_number_value(a) == json_number_value(b);
    if (json_is_array(a) && json_array_size(a) == json_array_size(b)) {
        json_array_foreach((json_t *)a, i, v) if (!same(v, json_array_get(b, i))) return false;
        return true;
    }
    if (json_is_object(a) && json_object_size(a) == json_object_size(b)) {
        json_object_foreach((json_t *)a, name, v) if (!same(v, json_object_get(b, name))) return false;
        return true;
    }
    return json_equal(a, b);
}

/* Read a file to its end, or to the first error; how many rows came. */
static int64_t rows_read(const uint8_t *file, size_t size, struct buf *out, struct error *err)
{
    int64_t n = 0;
    bool done = false;
    struct parquet *p = parquet_open(file, size, (size_t)16 << 20, 0, err);
    for (; p && parquet_next(p, out, &done, err) && !done; n++)
        buf_char(out, '\n');
    parquet_free(p);
    return p && done ? n : -1;
}

static void every_form_gives_the_rows_that_pyarrow_reads(UNUSED void **state)
{
    glob_t g;
    assert_int_equal(glob(TEST_DATA_DIR "/golden/data/*.parquet", 0, NULL, &g), 0);
    assert_true(g.gl_pathc > 25);
    for (size_t i = 0; i < g.gl_pathc; i++) {
        struct error err = { 0 };
        struct file_map map;
        struct buf out = BUF_INIT, want = BUF_INIT;
        char lines[4096];
        snprintf(lines, sizeof lines, "%.*s.jsonl", (int)(strlen(g.gl_pathv[i]) - 8), g.gl_pathv[i]);
        assert_true(file_map_open(&map, g.gl_pathv[i], &err) && file_read(&want, lines, 1 << 24, &err));
        int64_t n = rows_read(map.data, map.size_bytes, &out, &err), line = 0;
        if (n < 0)
            fail_msg("%s: %s", g.gl_pathv[i], err.text);
        const char *a = buf_text(&out), *b = buf_text(&want);
        for (; *a && *b; line++, a = strchr(a, '\n') + 1, b = strchr(b, '\n') + 1) {
            json_t *got = json_loadb(a, strcspn(a, "\n"), 0, NULL), *wanted = json_loadb(b, strcspn(b, "\n"), 0, NULL);
            if (!got || !wanted || !same(got, wanted))
                fail_msg("%s, row %d: %.*s", g.gl_pathv[i], (int)line, (int)strcspn(a, "\n"), a);
            json_decref(got);
            json_decref(wanted);
        }
        if (line != n || *a || *b)
            fail_msg("%s: %d rows", g.gl_pathv[i], (int)n);
        buf_release(&out);
        buf_release(&want);
        file_map_close(&map);
    }
    globfree(&g);
}

/* What is damaged ends in an error or in other rows, never in a crash (valgrind and the sanitizers look on), nor without end. */
static void damaged_files_are_survived(UNUSED void **state)
{
    glob_t g;
    uint64_t seed = 1;
    assert_int_equal(glob(TEST_DATA_DIR "/golden/data/*_v[12].parquet", 0, NULL, &g), 0);
    for (size_t i = 0; i < g.gl_pathc; i++) {
        struct error err = { 0 };
        struct file_map map;
        assert_true(file_map_open(&map, g.gl_pathv[i], &err));
        uint8_t *copy = malloc(map.size_bytes);
        for (int k = 0; k < 60; k++) {
            struct buf out = { .max = 1 << 22 };
            size_t size = map.size_bytes;
            memcpy(copy, map.data, size);
            for (int flip = 0; flip < 1 + k % 3; flip++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                copy[(seed >> 33) % size] ^= (uint8_t)(1 << (seed >> 29 & 7));
            }
            if (k % 4 == 0)    // cut, but with the footer kept
                memmove(copy + 40, copy + 60, size -= 60);
            rows_read(copy, size, &out, &err);
            buf_release(&out);
        }
        for (size_t size = 0; size < map.size_bytes; size += 1 + map.size_bytes / 40) {
            struct buf out = BUF_INIT;
            struct error why = { 0 };
            assert_int_equal(rows_read(map.data, size, &out, &why), -1);
            assert_int_equal(why.code, ERR_DATA);
            buf_release(&out);
        }
        free(copy);
        file_map_close(&map);
    }
    globfree(&g);
}

/* ---- files made by hand: what pyarrow does not write ---- */

struct hand {
    uint8_t b[4096];
    size_t n;
};

static void put(struct hand *h, const void *data, size_t n)
{
    memcpy(h->b + h->n, data, n);
    h->n += n;
}

static void put_byte(struct hand *h, int b)
{
    h->b[h->n++] = (uint8_t)b;
}

static void put_varint(struct hand *h, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        put_byte(h, (int)(v & 0x7F) | 0x80);
    put_byte(h, (int)v);
}

/* A field of type i32 or i64, step ids after the last one. */
static void put_int(struct hand *h, int step, int64_t v)
{
    put_byte(h, step << 4 | 5);
    put_varint(h, (uint64_t)v << 1 ^ (uint64_t)(v >> 63));
}

static void put_text(struct hand *h, int step, const char *text)
{
    put_byte(h, step << 4 | 8);
    put_varint(h, strlen(text));
    put(h, text, strlen(text));
}

static void put_list(struct hand *h, int step, int n)
{
    put_byte(h, step << 4 | 9);
    put_byte(h, n << 4 | 12);
}

/* A page: its header, then body. kind 0: data of encoding; 2: dictionary. */
static void put_page(struct hand *h, int kind, int64_t n_value, int encoding, const struct hand *body)
{
    put_int(h, 1, kind);
    put_int(h, 1, (int64_t)body->n);
    put_int(h, 1, (int64_t)body->n);
    put_byte(h, (kind == 0 ? 2 : 4) << 4 | 12);
    put_int(h, 1, n_value);
    put_int(h, 1, encoding);
    if (kind == 0) {
        put_int(h, 1, 3);
        put_int(h, 1, 3);
    }
    put_byte(h, 0);
    put_byte(h, 0);
    put(h, body->b, body->n);
}

struct column {
    int repetition, type, codec;    // of parquet.thrift
    int64_t n_value, n_row, size_more, file_rows;
    bool is_list;    // of two levels: the list, and "array" in it
};

/* A whole file of one column x, whose pages are given; the dictionary, if any, comes first. */
static void file_finish(struct hand *f, const struct hand *pages, const struct column *c)
{
    *f = (struct hand){ .n = 0 };
    put(f, "PAR1", 4);
    put(f, pages->b, pages->n);
    size_t at = f->n;
    put_int(f, 1, 1);
    put_list(f, 1, c->is_list ? 3 : 2);
    put_text(f, 4, "root");    // the root: name, one child
    put_int(f, 1, 1);
    put_byte(f, 0);
    if (c->is_list) {
        put_int(f, 3, 1);    // optional
        put_text(f, 1, "x");
        put_int(f, 1, 1);
        put_int(f, 1, 3);    // converted type LIST
        put_byte(f, 0);
    }
    put_int(f, 1, c->type);
    put_int(f, 2, c->is_list ? 2 : c->repetition);
    put_text(f, 1, c->is_list ? "array" : "x");
    put_byte(f, 0);
    put_int(f, 1, c->file_rows ? c->file_rows : c->n_row);
    put_list(f, 1, 1);    // row groups
    put_list(f, 1, 1);    // columns
    put_byte(f, 3 << 4 | 12);
    put_int(f, 4, c->codec);
    put_int(f, 1, c->n_value);
    put_int(f, 2, (int64_t)pages->n + c->size_more);
    put_int(f, 2, 4);
    put_byte(f, 0);
    put_byte(f, 0);
    put_int(f, 2, c->n_row);
    put_byte(f, 0);
    put_byte(f, 0);
    uint32_t len = (uint32_t)(f->n - at);
    put(f, &len, 4);
    put(f, "PAR1", 4);
}

/* Levels of version 1: length, then a run of n times value. */
static void put_levels(struct hand *h, uint64_t n, int value)
{
    struct hand run = { .n = 0 };
    put_varint(&run, n << 1);
    put_byte(&run, value);
    uint32_t len = (uint32_t)run.n;
    put(h, &len, 4);
    put(h, run.b, run.n);
}

static void forms_of_other_writers_are_read(UNUSED void **state)
{
    struct hand body = { .n = 0 }, pages = { .n = 0 }, f;
    struct buf out = BUF_INIT;
    struct error err = { 0 };
    // DuckDB: a dictionary with encoding 2 on both pages
    put(&body, "\x02\0\0\0hi\x01\0\0\0x", 11);
    put_page(&pages, 2, 2, 2, &body);
    body.n = 0;
    put(&body, "\x01\x06\x01\x02\x00", 5);    // width 1: three times 1, once 0
    put_page(&pages, 0, 4, 2, &body);
    file_finish(&f, &pages, &(struct column){ .type = 6, .n_value = 4, .n_row = 4 });
    if (rows_read(f.b, f.n, &out, &err) != 4)
        fail_msg("%s", err.text);
    assert_string_equal(buf_text(&out), "{\"x\":\"x\"}\n{\"x\":\"x\"}\n{\"x\":\"x\"}\n{\"x\":\"hi\"}\n");
    // old Avro and Thrift writers: a list whose repeated node is the element
    buf_clear(&out);
    body.n = pages.n = 0;
    put(&body, "\x02\0\0\0\x03\x02", 6);    // repetition 0, 1, 0 (bit-packed): two rows
    put(&body, "\x02\0\0\0\x03\x1A", 6);    // definition 2, 2, 1: the second list is empty
    put(&body, "\x07\0\0\0\xFE\xFF\xFF\xFF", 8);
    put_page(&pages, 0, 3, 0, &body);
    file_finish(&f, &pages, &(struct column){ .type = 1, .n_value = 3, .n_row = 2, .is_list = true });
    if (rows_read(f.b, f.n, &out, &err) != 2)
        fail_msg("%s", err.text);
    assert_string_equal(buf_text(&out), "{\"x\":[7,-2]}\n{\"x\":[]}\n");
    buf_release(&out);
}

static void lies_about_sizes_are_refused_before_memory_is_taken(UNUSED void **state)
{
    static const struct {
        struct column column;
        const char *want;
    } cases[] = {
        { { .repetition = 1, .type = 1, .n_value = 1LL << 31, .n_row = 1LL << 31 }, "more than 1048576 bytes when read" },
        { { .repetition = 1, .type = 1, .n_value = 1LL << 40, .n_row = 1LL << 40 }, "row group 0 is damaged" },
        { { .repetition = 1, .type = 1, .n_value = 9, .n_row = 8 }, "has 9 values for the 8 rows" },
        { { .repetition = 1, .type = 1, .n_value = 4, .n_row = 4 }, "it has more values than its column" },
        { { .repetition = 1, .type = 1, .n_value = -1, .n_row = -1 }, "lies outside the file" },
        { { .repetition = 1, .type = 1, .n_value = 9, .n_row = 9, .size_more = 1 << 20 }, "lies outside the file" },
        { { .repetition = 1, .type = 1, .n_value = 9, .n_row = 9, .file_rows = 10 }, "10 rows, 9 of them in row groups" },
        { { .repetition = 1, .type = 1, .codec = 4, .n_value = 9, .n_row = 9 }, "compressed by Brotli" },
        { { .repetition = 1, .type = 1, .codec = 99, .n_value = 9, .n_row = 9 }, "codec 99" },
        { { .repetition = 3, .type = 1, .n_value = 9, .n_row = 9 }, "of a kind that is not known here (repetition 3)" },
        { { .repetition = 1, .type = 9, .n_value = 9, .n_row = 9 }, "schema is damaged" },
        { { .repetition = 0, .type = 1, .n_value = 1LL << 31, .n_row = 1LL << 31 }, "its values are damaged" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct hand body = { .n = 0 }, pages = { .n = 0 }, f;
        struct buf out = { .max = 1 << 20 };
        struct error err = { 0 };
        put_levels(&body, 1ull << 31, 0);    // all null
        int64_t n = cases[i].column.n_value;
        put_page(&pages, 0, n == 1LL << 31 ? n : 9, 0, &body);
        file_finish(&f, &pages, &cases[i].column);
        if (rows_read(f.b, f.n, &out, &err) >= 0 || !strstr(err.text, cases[i].want))
            fail_msg("case %zu: wanted '%s', got '%s'", i, cases[i].want, err.text);
        assert_true(out.cap <= 2 << 20);
        buf_release(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_gives_the_rows_that_pyarrow_reads),
        cmocka_unit_test(damaged_files_are_survived),
        cmocka_unit_test(forms_of_other_writers_are_read),
        cmocka_unit_test(lies_about_sizes_are_refused_before_memory_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
