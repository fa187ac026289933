/* Differences of weights: what comes out is what went in, whatever has changed; and what a hostile block may do.
 * tags: asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/mix64.h"
#include "workers/node/bulk/delta.h"

struct fixture {
    struct delta_coder *coder;
    uint8_t base[DELTA_BLOCK], new[DELTA_BLOCK], packed[DELTA_BLOCK], out[DELTA_BLOCK + 1];
};

static int setup(void **state)
{
    struct error err;
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    assert_non_null(f->coder = delta_coder_new(&err));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    delta_coder_free(f->coder);
    free(f);
    return 0;
}

/* bf16 numbers of the size that weights have, 0.02 and below, of both signs. */
static void weights_fill(uint8_t *out, size_t n, uint64_t seed)
{
    for (size_t i = 0; i + 2 <= n; i += 2) {
        uint64_t r = mix64_next(&seed);
        uint16_t w = (uint16_t)((r & 0x8000) | (0x3c00 + (r >> 16 & 0xff)) | 1);
        memcpy(out + i, &w, sizeof w);
    }
}

/* Move every k-th word by step. */
static void words_move(uint8_t *p, size_t n, size_t k, int step)
{
    for (size_t i = k - 1; i < n / 2; i += k) {
        uint16_t w;
        memcpy(&w, p + 2 * i, sizeof w);
        w = (uint16_t)(w + step);
        memcpy(p + 2 * i, &w, sizeof w);
    }
}

static void floats_fill(uint8_t *base, uint8_t *new, size_t n)
{
    uint64_t seed = 3;
    for (size_t i = 0; i + 4 <= n; i += 4) {
        float a = 0.02f * ((float)(mix64_next(&seed) >> 40) / 16777216.0f - 0.5f), b = a + 1e-6f;
        memcpy(base + i, &a, sizeof a);
        memcpy(new + i, &b, sizeof b);
    }
}

/* Encode, decode, compare; returns the bytes written and their kind. */
static size_t there_and_back(struct fixture *f, size_t n, enum delta_kind *kind)
{
    struct error err = { 0 };
    size_t len = delta_encode(f->coder, f->base, f->new, n, f->packed, kind);
    assert_true(len < n || n == 0);
    memset(f->out, 0xa5, sizeof f->out);
    if (!delta_decode(f->coder, *kind, *kind == DELTA_RAW ? f->new : f->packed, *kind == DELTA_RAW ? n : len, f->base, f->out, n, &err))
        fail_msg("%s", err.text);
    assert_memory_equal(f->out, f->new, n);
    assert_int_equal(f->out[n], 0xa5);
    assert_true(delta_hash(f->out, n) == delta_hash(f->new, n));
    memcpy(f->out, f->base, n);    // and in the base's own place
    if (!delta_decode(f->coder, *kind, *kind == DELTA_RAW ? f->new : f->packed, *kind == DELTA_RAW ? n : len, f->out, f->out, n, &err))
        fail_msg("%s", err.text);
    assert_memory_equal(f->out, f->new, n);
    return *kind == DELTA_RAW ? n : len;
}

static void what_comes_out_is_what_went_in(void **state)
{
    static const struct {
        size_t n, every;
        int step;
        enum delta_kind kind;
        size_t most;    // bytes written
        const char *why;
    } cases[] = {
        { DELTA_BLOCK, 0, 0, DELTA_SAME, 0, "nothing has changed" },
        { DELTA_BLOCK, 50, 1, DELTA_SPARSE, 4000, "2 % by one place: equal distances cost next to nothing" },
        { DELTA_BLOCK, 50, -1, DELTA_SPARSE, 4000, "and downwards" },
        { DELTA_BLOCK, 300, 1, DELTA_SPARSE, 2000, "distances above 255" },
        { DELTA_BLOCK, 100, 127, DELTA_SPARSE, 4000, "the largest code of a byte" },
        { DELTA_BLOCK, 100, 128, DELTA_SPARSE, 5000, "a wide code" },
        { DELTA_BLOCK, 100, -128, DELTA_SPARSE, 5000, "the largest code of a byte, downwards" },
        { DELTA_BLOCK, 100, 0x8000, DELTA_SPARSE, 5000, "changed signs" },
        { DELTA_BLOCK, 1, 1, DELTA_DENSE2, 200, "all words by one place" },
        { DELTA_BLOCK, DELTA_BLOCK / 2, 3, DELTA_SPARSE, 100, "the last word alone" },
        { 514, 7, 1, DELTA_SPARSE, 150, "a short block whose words are no multiple of 4" },
        { 513, 7, 1, DELTA_RAW, 513, "an odd number of bytes" },
        { 2, 1, 1, DELTA_RAW, 2, "one word: the block itself is smaller" },
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        enum delta_kind kind;
        weights_fill(f->base, DELTA_BLOCK, 1);
        memcpy(f->new, f->base, DELTA_BLOCK);
        if (cases[i].every)
            words_move(f->new, cases[i].n, cases[i].every, cases[i].step);
        size_t len = there_and_back(f, cases[i].n, &kind);
        if (kind != cases[i].kind || len > cases[i].most)
            fail_msg("%s: kind %d, %zu bytes", cases[i].why, (int)kind, len);
    }
}

static void other_weights_are_sent_as_they_are(void **state)
{
    struct fixture *f = *state;
    enum delta_kind kind;
    uint64_t seed = 5;
    for (size_t i = 0; i < DELTA_BLOCK; i += 8) {
        uint64_t a = mix64_next(&seed), b = mix64_next(&seed);
        memcpy(f->base + i, &a, 8);
        memcpy(f->new + i, &b, 8);
    }
    there_and_back(f, DELTA_BLOCK, &kind);
    assert_int_equal(kind, DELTA_RAW);
    assert_int_equal(delta_encode(f->coder, NULL, f->new, DELTA_BLOCK, f->packed, &kind), 0);
    assert_int_equal(kind, DELTA_RAW);
}

static void a_step_of_fp32_weights_takes_less_than_half(void **state)
{
    struct fixture *f = *state;
    enum delta_kind kind;
    floats_fill(f->base, f->new, DELTA_BLOCK);
    size_t len = there_and_back(f, DELTA_BLOCK, &kind);
    assert_int_equal(kind, DELTA_DENSE4);
    assert_true(len < DELTA_BLOCK / 2);
}

static void another_base_is_found_by_the_hash(void **state)
{
    struct fixture *f = *state;
    struct error err;
    enum delta_kind kind;
    weights_fill(f->base, DELTA_BLOCK, 1);
    memcpy(f->new, f->base, DELTA_BLOCK);
    words_move(f->new, DELTA_BLOCK, 40, 1);
    size_t len = delta_encode(f->coder, f->base, f->new, DELTA_BLOCK, f->packed, &kind);
    f->base[DELTA_BLOCK - 1] ^= 1;
    assert_true(delta_decode(f->coder, kind, f->packed, len, f->base, f->out, DELTA_BLOCK, &err));
    assert_true(delta_hash(f->out, DELTA_BLOCK) != delta_hash(f->new, DELTA_BLOCK));
}

static void each_bit_and_the_length_count_in_the_hash(void **state)
{
    struct fixture *f = *state;
    weights_fill(f->base, 512, 9);
    for (size_t n = 1; n < 80; n++) {
        uint64_t whole = delta_hash(f->base, n);
        assert_true(whole != delta_hash(f->base, n - 1));
        for (size_t bit = 0; bit < 8 * n; bit++) {
            f->base[bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_true(whole != delta_hash(f->base, n));
            f->base[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
    }
}

/* A block that was cut or changed is refused or gives something else; it never writes outside of its block. */
static void a_hostile_block_stays_within_its_bounds(void **state)
{
    struct fixture *f = *state;
    struct error err;
    enum delta_kind kind;
    uint64_t seed = 11;
    size_t n = 4096;
    weights_fill(f->base, n, 1);
    memcpy(f->new, f->base, n);
    words_move(f->new, n, 9, 200);
    size_t len = delta_encode(f->coder, f->base, f->new, n, f->packed, &kind);
    assert_int_equal(kind, DELTA_SPARSE);
    for (size_t cut = 0; cut < len; cut++)
        assert_false(delta_decode(f->coder, kind, f->packed, cut, f->base, f->out, n, &err));
    for (int round = 0; round < 20000; round++) {
        uint64_t r = mix64_next(&seed);
        size_t at = (size_t)(r >> 16) % len;
        uint8_t *copy = malloc(len);    // so that a byte too far is seen
        assert_non_null(copy);
        memcpy(copy, f->packed, len);
        copy[at] = (uint8_t)r;
        f->out[n] = 0xa5;
        if (!delta_decode(f->coder, (enum delta_kind)(r >> 8 & 7), copy, len, f->base, f->out, n, &err))
            assert_int_equal(err.code, ERR_DATA);
        assert_int_equal(f->out[n], 0xa5);
        free(copy);
    }
    assert_false(delta_decode(f->coder, kind, f->packed, len, NULL, f->out, n, &err));
    assert_non_null(strstr(err.text, "nothing to add"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_comes_out_is_what_went_in, setup, teardown),
        cmocka_unit_test_setup_teardown(other_weights_are_sent_as_they_are, setup, teardown),
        cmocka_unit_test_setup_teardown(a_step_of_fp32_weights_takes_less_than_half, setup, teardown),
        cmocka_unit_test_setup_teardown(another_base_is_found_by_the_hash, setup, teardown),
        cmocka_unit_test_setup_teardown(each_bit_and_the_length_count_in_the_hash, setup, teardown),
        cmocka_unit_test_setup_teardown(a_hostile_block_stays_within_its_bounds, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
