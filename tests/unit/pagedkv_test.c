#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/sampler/pagedkv.h"

static void pages_of_a_number_of_tokens_are_rounded_up(UNUSED void **state)
{
    struct pagedkv p = { .page_tok = 16 };
    static const struct {
        int64_t n_tok, want;
    } cases[] = { { 0, 0 }, { 1, 1 }, { 16, 1 }, { 17, 2 }, { 160, 10 } };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_int_equal(pagedkv_pages(&p, cases[i].n_tok), cases[i].want);
}

static void taking_is_all_or_nothing(UNUSED void **state)
{
    struct pagedkv p;
    struct error err = { 0 };
    int32_t page[8];
    assert_true(pagedkv_init(&p, 4, 16, &err));
    assert_true(pagedkv_take(&p, page, 3));
    assert_false(pagedkv_take(&p, page + 3, 2));
    assert_int_equal(p.n_free, 1);
    assert_true(pagedkv_take(&p, page + 3, 1));
    assert_false(pagedkv_take(&p, page + 4, 1));
    assert_true(pagedkv_take(&p, page + 4, 0));
    pagedkv_drop(&p, page, 4);
    assert_int_equal(p.n_free, 4);
    assert_true(pagedkv_check(&p, &err));
    pagedkv_release(&p);
}

static void a_shared_page_is_free_when_its_last_holder_has_gone(UNUSED void **state)
{
    struct pagedkv p;
    struct error err = { 0 };
    int32_t page[2];
    assert_true(pagedkv_init(&p, 2, 16, &err));
    assert_true(pagedkv_take(&p, page, 2));
    pagedkv_share(&p, page, 1);
    pagedkv_share(&p, page, 1);
    pagedkv_drop(&p, page, 2);
    assert_int_equal(p.n_free, 1);    // page[1] only
    pagedkv_drop(&p, page, 1);
    assert_int_equal(p.n_free, 1);
    pagedkv_drop(&p, page, 1);
    assert_int_equal(p.n_free, 2);
    assert_true(pagedkv_check(&p, &err));
    pagedkv_release(&p);
}

/* Groups of random sizes come and go; a simple count must agree at every moment, and nothing may be left. */
static void no_page_is_lost_or_given_twice_over_a_long_random_use(UNUSED void **state)
{
    enum {
        N_PAGE = 97,
        N_GROUP = 12,
        SAMPLES = 5,
        PAGES = 6,
    };
    struct pagedkv p;
    struct error err = { 0 };
    struct {
        int n_shared, n_sample, n_own[SAMPLES];
        int32_t shared[PAGES], own[SAMPLES][PAGES];
    } group[N_GROUP] = { 0 };
    int owner[N_PAGE] = { 0 };
    uint32_t x = 12345;
    assert_true(pagedkv_init(&p, N_PAGE, 16, &err));
    for (int round = 0; round < 20000; round++) {
        x = x * 1664525 + 1013904223;
        int i = (int)(x >> 16) % N_GROUP;
        if (group[i].n_sample) {    // one sample ends
            int s = --group[i].n_sample;
            for (int k = 0; k < group[i].n_own[s]; k++)
                owner[group[i].own[s][k]] = 0;
            pagedkv_drop(&p, group[i].own[s], group[i].n_own[s]);
            pagedkv_drop(&p, group[i].shared, group[i].n_shared);
            if (group[i].n_sample == 0)
                for (int k = 0; k < group[i].n_shared; k++)
                    owner[group[i].shared[k]] = 0;
        } else {
            group[i].n_shared = (int)(x >> 8) % PAGES;
            if (!pagedkv_take(&p, group[i].shared, group[i].n_shared))
                continue;
            for (int k = 0; k < group[i].n_shared; k++) {
                assert_int_equal(owner[group[i].shared[k]], 0);
                owner[group[i].shared[k]] = 1;
            }
            for (int s = 0; s < SAMPLES; s++) {
                int n = 1 + (int)(x >> (3 + s)) % (PAGES - 1);
                if (!pagedkv_take(&p, group[i].own[s], n))
                    break;
                for (int k = 0; k < n; k++) {
                    assert_int_equal(owner[group[i].own[s][k]], 0);
                    owner[group[i].own[s][k]] = 1;
                }
                group[i].n_own[s] = n;
                group[i].n_sample++;
                pagedkv_share(&p, group[i].shared, group[i].n_shared);
            }
            pagedkv_drop(&p, group[i].shared, group[i].n_shared);    // now only the samples hold them
            if (group[i].n_sample == 0)
                for (int k = 0; k < group[i].n_shared; k++)
                    owner[group[i].shared[k]] = 0;
        }
        int n_free = 0;
        for (int k = 0; k < N_PAGE; k++)
            n_free += !owner[k];
        assert_int_equal(n_free, p.n_free);
    }
    for (int i = 0; i < N_GROUP; i++)
        while (group[i].n_sample) {
            int s = --group[i].n_sample;
            pagedkv_drop(&p, group[i].own[s], group[i].n_own[s]);
            pagedkv_drop(&p, group[i].shared, group[i].n_shared);
        }
    assert_int_equal(p.n_free, N_PAGE);
    assert_true(pagedkv_check(&p, &err));
    pagedkv_release(&p);
}

static void a_pool_that_cannot_be_says_its_sizes(UNUSED void **state)
{
    struct pagedkv p;
    struct error err = { 0 };
    assert_false(pagedkv_init(&p, 0, 16, &err));
    assert_non_null(strstr(err.text, "0 pages"));
    assert_false(pagedkv_init(&p, (int64_t)1 << 40, 16, &err));
    pagedkv_release(&p);    // safe on what has failed
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_of_a_number_of_tokens_are_rounded_up),
        cmocka_unit_test(taking_is_all_or_nothing),
        cmocka_unit_test(a_shared_page_is_free_when_its_last_holder_has_gone),
        cmocka_unit_test(no_page_is_lost_or_given_twice_over_a_long_random_use),
        cmocka_unit_test(a_pool_that_cannot_be_says_its_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
