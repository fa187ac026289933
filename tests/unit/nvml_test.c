/* GPU figures through a library with NVML's names whose answers this file writes (tests/fake_nvml.c).
 *
 * tags: limit=60 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/base/macros.h"
#include "protocol/run/telemetry.h"
#include "workers/host/nvml.h"
#include "workers/host/sampler.h"

static const char
    h200[] = "count 1\ngpu.0.name NVIDIA H200\ngpu.0.uuid GPU-1234\ngpu.0.bus 00000000:5D:00.0\ngpu.0.util 87\ngpu.0.mem_util 41\n"
             "gpu.0.mem_total 150754820096\ngpu.0.mem_used 37688705024\ngpu.0.temp 64\ngpu.0.power_mw 512345\ngpu.0.power_limit_mw 700000\n"
             "gpu.0.clock_sm 1755\ngpu.0.clock_mem 3201\ngpu.0.clock_graphics 1755\ngpu.0.clock_sm_max 1980\ngpu.0.throttle 0x24\n"
             "gpu.0.ecc_corrected 3\ngpu.0.ecc_uncorrected 0\ngpu.0.pcie_gen 5\ngpu.0.pcie_gen_max 5\ngpu.0.pcie_width 16\n"
             "gpu.0.pcie_width_max 16\ngpu.0.links 18\ngpu.0.link_errors 7\ngpu.0.field_82 71\ngpu.0.field_138 1000\ngpu.0.field_139 2000\n"
             "gpu.0.field_142 1\ngpu.0.field_143 2\ngpu.0.process 4242 12345678 55\n";

static char script[64];

static void script_write(const char *text)
{
    struct error err;
    assert_true(file_write(script, text, strlen(text), &err));
}

static int setup(UNUSED void **state)
{
    snprintf(script, sizeof script, "/tmp/rc-nvml-XXXXXX");
    int fd = mkstemp(script);
    if (fd >= 0)
        close(fd);
    setenv("FAKE_NVML", script, 1);
    setenv("RC_NVML_LIBRARY", FAKE_NVML_LIBRARY, 1);
    return fd < 0;
}

static int teardown(UNUSED void **state)
{
    return unlink(script);
}

static void every_figure_arrives_in_its_own_unit(UNUSED void **state)
{
    // clang-format off
    static const struct { enum gpu_field field; double want; } known[] = {
        { GPU_UTIL, 87 }, { GPU_MEM_UTIL, 41 }, { GPU_MEM_USED, 37688705024.0 }, { GPU_MEM_TOTAL, 150754820096.0 },
        { GPU_MEM_PERCENT, 25 }, { GPU_TEMP, 64 }, { GPU_MEM_TEMP, 71 }, { GPU_POWER, 512.345 }, { GPU_POWER_LIMIT, 700 },
        { GPU_SM_CLOCK, 1755 }, { GPU_MEM_CLOCK, 3201 }, { GPU_GRAPHICS_CLOCK, 1755 }, { GPU_SM_CLOCK_MAX, 1980 },
        { GPU_THROTTLE, 0x24 }, { GPU_SLOWED, 1 }, { GPU_ECC_CORRECTED, 3 }, { GPU_ECC_UNCORRECTED, 0 }, { GPU_ROWS_REMAPPED, 3 },
        { GPU_PCIE_GEN, 5 }, { GPU_PCIE_GEN_MAX, 5 }, { GPU_PCIE_WIDTH, 16 }, { GPU_PCIE_WIDTH_MAX, 16 }, { GPU_NVLINKS, 18 },
        { GPU_NVLINK_ERRORS, 7 }, { GPU_LOST, 0 },
    };
    // clang-format on
    /* a rate needs two samples; the rest this device has not (no fan, no encoder, an old driver without PCIe counters) */
    static const enum gpu_field unknown[] = { GPU_NVLINK_TX, GPU_NVLINK_RX, GPU_PCIE_TX, GPU_PCIE_RX,
                                              GPU_FAN,       GPU_ENCODER,   GPU_RUN_MEM, GPU_RUN_UTIL };
    struct error err;
    struct gpu_sample g;
    char text[128];
    script_write(h200);
    struct nvml *n = nvml_new(&err);
    assert_non_null(n);
    assert_int_equal(nvml_n_gpu(n), 1);
    assert_string_equal(nvml_driver(n), "580.1");
    nvml_sample(n, 0, &g);
    assert_string_equal(g.name, "NVIDIA H200");
    assert_string_equal(g.uuid, "GPU-1234");
    assert_string_equal(g.bus, "00000000:5D:00.0");
    for (size_t i = 0; i < ARRAY_SIZE(known); i++)
        if (fabs(g.value[known[i].field] - known[i].want) > 1e-9 * known[i].want)
            fail_msg("%s is %.17g, not %.17g", gpu_fields[known[i].field].name, g.value[known[i].field], known[i].want);
    assert_float_equal(g.value[GPU_POWER_PERCENT], 100 * 512.345 / 700, 1e-9);
    for (size_t i = 0; i < ARRAY_SIZE(unknown); i++)
        if (!isnan(g.value[unknown[i]]))
            fail_msg("%s is %.17g, but nobody knows it", gpu_fields[unknown[i]].name, g.value[unknown[i]]);
    assert_int_equal(ARRAY_SIZE(known) + ARRAY_SIZE(unknown) + 1, GPU_FIELD_N);
    assert_string_equal(throttle_text(g.value[GPU_THROTTLE], text, sizeof text), "power limit, heat");
    assert_int_equal(g.n_process, 1);
    assert_int_equal(g.process[0].pid, 4242);
    assert_float_equal(g.process[0].mem_bytes, 12345678, 0);
    assert_float_equal(g.process[0].util_percent, 55, 0);
    nvml_free(n);
}

static void a_rate_is_what_passed_since_the_sample_before(UNUSED void **state)
{
    struct error err;
    struct gpu_sample g;
    script_write(h200);
    struct nvml *n = nvml_new(&err);
    assert_non_null(n);
    nvml_sample(n, 0, &g);
    script_write("count 1\ngpu.0.field_138 1001000\ngpu.0.field_139 1999\n");
    nvml_sample(n, 0, &g);
    assert_true(g.value[GPU_NVLINK_TX] > 1024e6 / 60);    // a million KiB, within the test's time limit
    assert_true(isnan(g.value[GPU_NVLINK_RX]));           // a counter that went backwards says nothing
    nvml_free(n);
}

static void a_device_that_reports_nothing_is_unknown_and_not_0(UNUSED void **state)
{
    struct error err;
    struct gpu_sample g;
    script_write("count 1\n");
    struct nvml *n = nvml_new(&err);
    assert_non_null(n);
    nvml_sample(n, 0, &g);
    assert_string_equal(g.name, "");
    for (int i = 0; i < GPU_FIELD_N; i++)
        if (i != GPU_LOST && !isnan(g.value[i]))
            fail_msg("%s is %.17g, but nobody knows it", gpu_fields[i].name, g.value[i]);
    assert_float_equal(g.value[GPU_LOST], 0, 0);
    nvml_free(n);
}

static void a_device_that_is_lost_in_the_middle_reports_nothing_else(UNUSED void **state)
{
    struct error err;
    struct gpu_sample g;
    char text[sizeof h200 + 64];
    snprintf(text, sizeof text, "gpu.0.ecc_uncorrected lost\n%s", h200);    // found before the number after it
    script_write(text);
    struct nvml *n = nvml_new(&err);
    assert_non_null(n);
    nvml_sample(n, 0, &g);
    assert_int_equal(g.state, GPU_GONE);
    assert_float_equal(g.value[GPU_LOST], 1, 0);
    assert_true(isnan(g.value[GPU_UTIL]));
    assert_string_equal(g.name, "NVIDIA H200");    // its name is known from before
    script_write(h200);
    nvml_sample(n, 0, &g);
    assert_int_equal(g.state, GPU_FINE);
    assert_float_equal(g.value[GPU_UTIL], 87, 0);
    nvml_free(n);
}

static void without_a_driver_the_reason_is_given(UNUSED void **state)
{
    struct error err;
    script_write("init 9\n");
    assert_null(nvml_new(&err));
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "Driver Not Loaded"));
    setenv("RC_NVML_LIBRARY", "/nonexistent/libnvidia-ml.so.1", 1);
    assert_null(nvml_new(&err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nonexistent/libnvidia-ml.so.1"));
    setenv("RC_NVML_LIBRARY", "libm.so.6", 1);    // a library, but not this one
    assert_null(nvml_new(&err));
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "nvmlInit_v2"));
    setenv("RC_NVML_LIBRARY", FAKE_NVML_LIBRARY, 1);
}

static void the_sampler_ends_though_the_driver_keeps_its_call(UNUSED void **state)
{
    struct error err;
    struct node_sample out;
    script_write("hang 50\n");
    struct sampler *s = sampler_new("/", &err);
    assert_non_null(s);
    assert_false(sampler_take(s, &out));
    sampler_free(s);    // else the test's time limit ends it
}

static void host_figures_make_sense(UNUSED void **state)
{
    double v[HOST_FIELD_N];
    struct host_before before = { 0 };
    host_sample(v, &before, "/");
    assert_true(isnan(v[HOST_CPU]));    // a share of the time since the last sample
    assert_true(v[HOST_LOAD] >= 0);
    assert_true(v[HOST_MEM_TOTAL] > 1e8 && v[HOST_MEM_USED] > 0 && v[HOST_MEM_USED] < v[HOST_MEM_TOTAL]);
    assert_float_equal(v[HOST_MEM_PERCENT], 100 * v[HOST_MEM_USED] / v[HOST_MEM_TOTAL], 1e-9);
    assert_true(v[HOST_DISK_PERCENT] >= 0 && v[HOST_DISK_PERCENT] <= 100 && v[HOST_DISK_USED] > 0);
    for (int i = 0; isnan(v[HOST_CPU]) && i < 1000; i++) {    // /proc/stat counts in hundredths of a second
        usleep(10000);
        host_sample(v, &before, "/");
    }
    assert_true(v[HOST_CPU] >= 0 && v[HOST_CPU] <= 100);
    assert_true(isnan(v[HOST_NET_SENT]) || v[HOST_NET_SENT] >= 0);
}

static void names_are_found_and_none_occurs_twice(UNUSED void **state)
{
    int gpu;
    assert_ptr_equal(telemetry_find("host/load", &gpu), &host_fields[HOST_LOAD]);
    assert_int_equal(gpu, -1);
    assert_ptr_equal(telemetry_find("gpu/15/temp_celsius", &gpu), &gpu_fields[GPU_TEMP]);
    assert_int_equal(gpu, 15);
    static const char *const none[] = { "host/", "gpu/16/temp_celsius", "gpu/-1/temp_celsius", "gpu//temp_celsius", "gpu/1", "train/loss" };
    for (size_t i = 0; i < ARRAY_SIZE(none); i++)
        assert_null(telemetry_find(none[i], &gpu));
    for (int i = 0; i < GPU_FIELD_N; i++) {
        assert_non_null(gpu_fields[i].name);
        size_t len = strlen(gpu_fields[i].name), tail = strlen(gpu_fields[i].unit);
        assert_true(tail == 0 || (len > tail && strcmp(gpu_fields[i].name + len - tail, gpu_fields[i].unit) == 0));
        for (int k = 0; k < i; k++)
            assert_string_not_equal(gpu_fields[i].name, gpu_fields[k].name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_figure_arrives_in_its_own_unit),
        cmocka_unit_test(a_rate_is_what_passed_since_the_sample_before),
        cmocka_unit_test(a_device_that_reports_nothing_is_unknown_and_not_0),
        cmocka_unit_test(a_device_that_is_lost_in_the_middle_reports_nothing_else),
        cmocka_unit_test(without_a_driver_the_reason_is_given),
        cmocka_unit_test(host_figures_make_sense),
        cmocka_unit_test(names_are_found_and_none_occurs_twice),
        cmocka_unit_test(the_sampler_ends_though_the_driver_keeps_its_call),    // last: leaves its thread behind
    };
    return cmocka_run_group_tests_name("nvml", tests, setup, teardown);
}
