/* tags: asan
 * What a model needs and what a card can do, of which MFU and memory bandwidth are shares. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "workers/engine/model/config.h"
#include "workers/engine/plan/peaks.h"

static void cards_are_found_by_the_names_that_drivers_give(UNUSED void **state)
{
    static const struct {
        const char *name;
        double tflops, gb_per_s;
    } cases[] = {
        { "NVIDIA H200, 132 multiprocessors, 139 GiB", 989.5, 4800 },
        { "NVIDIA H200 NVL", 989.5, 4800 },
        { "NVIDIA GH200 480GB", 990, 4000 },
        { "NVIDIA H100 80GB HBM3", 989.5, 3350 },
        { "NVIDIA H100 PCIe", 756, 2000 },
        { "NVIDIA H20", 148, 4000 },
        { "NVIDIA A100-SXM4-80GB", 312, 2039 },
        { "NVIDIA A100-SXM4-40GB", 312, 1555 },
        { "NVIDIA A10G", 70, 600 },
        { "NVIDIA A10", 125, 600 },
        { "NVIDIA L40S", 362, 864 },
        { "NVIDIA L4", 121, 300 },
        { "NVIDIA GeForce RTX 4090", 165.2, 1008 },
        { "NVIDIA B200", 2250, 8000 },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const struct device_peak *p = peak_find(cases[i].name);
        if (!p || p->tflops != cases[i].tflops || p->gb_per_s != cases[i].gb_per_s)
            fail_msg("'%s': %g TFLOP/s, %g GB/s", cases[i].name, p ? p->tflops : 0, p ? p->gb_per_s : 0);
    }
    assert_null(peak_find("AMD EPYC, avx512, 2 threads"));
    assert_null(peak_find("Tesla V100-SXM2-16GB"));    // without bf16
}

static void operations_and_bytes_are_those_of_the_shape(UNUSED void **state)
{
    struct error err;
    const struct model_config *c = config_shape("Qwen2.5-0.5B", &err);
    assert_non_null(c);
    /* 24 layers of 896 x (896 q + 896 o + 2 x 128 k, v + 3 x 4864), and a tied head of 151936 x 896 */
    const int64_t product = 24 * 896 * (896 + 896 + 256 + 14592) + 151936 * 896;
    assert_int_equal(config_n_product(c), product);
    assert_int_equal(config_n_kv(c), 2 * 24 * 2 * 64);
    /* q k and the sum of values: two products of 14 heads x 64 with each token seen */
    assert_true(config_flops(c, 1000) == 2.0 * (double)product + 4.0 * 24 * 14 * 64 * 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cards_are_found_by_the_names_that_drivers_give),
        cmocka_unit_test(operations_and_bytes_are_those_of_the_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
