/* tags: asan
 * Histograms: bins as numpy.histogram makes them, and bytes that survive the way through the journal. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "protocol/record/histogram.h"

static void bins_are_numpys(UNUSED void **state)
{
    /* numpy.histogram(v, 32): the last bin has both edges; 0.3 is in the bin that begins there though 0.3 / 3.2 * 32 is below 3 */
    static const struct {
        double value[4];
        int64_t n;
        int bin[4];
        double first, last;
        const char *why;
    } cases[] = {
        { { 0, 0.1, 0.3, 3.2 }, 4, { 0, 1, 2, 31 }, 0, 3.2, "0.3 is just below the rounded edge 3 x 0.1" },
        { { 5, 5, 5, 5 }, 4, { 16, 16, 16, 16 }, 4.5, 5.5, "all the same: half to either side" },
        { { -1, 31, 15, NAN }, 3, { 0, 31, 16, -1 }, -1, 31, "what is not finite is left out" },
        { { 7 }, 1, { 16 }, 6.5, 7.5, "one value" },
    };
    for (size_t c = 0; c < ARRAY_SIZE(cases); c++) {
        struct histogram h;
        uint32_t want[HISTOGRAM_BINS] = { 0 };
        histogram_make(&h, cases[c].value, cases[c].n + (int64_t)(c == 2));
        for (int64_t i = 0; i < cases[c].n; i++)
            want[cases[c].bin[i]]++;
        assert_int_equal(h.n, cases[c].n);
        assert_memory_equal(h.count, want, sizeof want);
        assert_true(histogram_edge(&h, 0) == cases[c].first && histogram_edge(&h, HISTOGRAM_BINS) == cases[c].last);
    }
}

static void every_value_is_between_the_edges_of_its_bin(UNUSED void **state)
{
    srand(3);
    for (int round = 0; round < 200; round++) {
        double value[257];
        struct histogram h;
        uint32_t want[HISTOGRAM_BINS] = { 0 };
        int64_t n = 1 + rand() % 257;
        for (int64_t i = 0; i < n; i++)
            value[i] = round % 2 ? (double)(rand() % 64) / 64 : (double)rand() / (1 + rand() % 1000);
        histogram_make(&h, value, n);
        for (int64_t i = 0; i < n; i++) {
            int k = 0;
            while (k < HISTOGRAM_BINS - 1 && value[i] >= histogram_edge(&h, k + 1))
                k++;
            want[k]++;
        }
        assert_memory_equal(h.count, want, sizeof want);
    }
}

static void packed_histograms_are_the_same_again_and_broken_ones_are_refused(UNUSED void **state)
{
    struct histogram h[HISTOGRAM_N] = { 0 }, back[HISTOGRAM_N];
    struct buf packed = BUF_INIT;
    struct error err;
    const double value[] = { 1, 2, 2.5, -4 };
    histogram_make(&h[HISTOGRAM_REWARD], value, 4);
    histogram_make(&h[HISTOGRAM_ADVANTAGES], value, 1);
    histograms_pack(&packed, h);
    assert_true(histograms_unpack(back, packed.data, packed.len, &err));
    assert_memory_equal(&back[HISTOGRAM_REWARD], &h[HISTOGRAM_REWARD], sizeof *h);
    assert_memory_equal(&back[HISTOGRAM_ADVANTAGES], &h[HISTOGRAM_ADVANTAGES], sizeof *h);
    assert_int_equal(back[HISTOGRAM_LENGTH].n, 0);
    assert_false(histograms_unpack(back, packed.data, packed.len - 1, &err));
    packed.data[0] = 77;    // one that a later version knows
    assert_true(histograms_unpack(back, packed.data, packed.len, &err));
    assert_int_equal(back[HISTOGRAM_REWARD].n, 0);
    packed.data[0] = HISTOGRAM_REWARD;
    memset(packed.data + 9, 0xff, 8);    // min is not finite
    assert_false(histograms_unpack(back, packed.data, packed.len, &err));
    assert_non_null(strstr(err.text, "metrics/reward_hist"));
    buf_release(&packed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bins_are_numpys),
        cmocka_unit_test(every_value_is_between_the_edges_of_its_bin),
        cmocka_unit_test(packed_histograms_are_the_same_again_and_broken_ones_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
