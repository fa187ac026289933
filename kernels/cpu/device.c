/* device.c - opening a CPU device: code path, threads */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

struct path_choice {
    const struct cpu_path *path;
    bool supported;
};

/* The code path RC_CPU names, or the widest one. */
static const struct cpu_path *path_choose(struct error *err)
{
    const char *want = getenv("RC_CPU");
    __builtin_cpu_init();
    bool fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const struct path_choice choice[] = {
        { &cpu_path_avx512, fma && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
                                && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") },
        { &cpu_path_avx2, fma },
        { &cpu_path_scalar, true },
    };
    for (size_t i = 0; i < ARRAY_SIZE(choice); i++) {
        bool named = want && *want;
        if (named && strcmp(want, choice[i].path->name) != 0)
            continue;
        if (choice[i].supported)
            return choice[i].path;
        if (named) {
            error_set(err, ERR_UNSUPPORTED, "RC_CPU is '%s', which this processor does not support", want);
            return NULL;
        }
    }
    error_set(err, ERR_USAGE, "RC_CPU is '%s'; it may be avx512, avx2 or scalar", want ? want : "");
    return NULL;
}

static int cores_usable(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? MAX(1, CPU_COUNT(&set)) : 1;
}

static void cpu_device_free(struct device *dev)
{
    struct cpu_device *cpu = cpu_of(dev);
    pool_free(cpu->pool);
    free(cpu->scratch);
    free(cpu);
}

#define CPU_ENTRY(name) .name = name##_cpu,
static const struct ops cpu_ops = { .device_free = cpu_device_free,
                                    HOST_OPS,
                                    .weight_init = cpu_weight_init,
                                    .weight_release = cpu_weight_release,
                                    .weight_refresh = cpu_weight_refresh,
                                    OPS_TABLE(CPU_ENTRY) };

/* The processor's name from /proc/cpuinfo, or "CPU". */
static void processor_name(char *out, size_t size)
{
    char line[256];
    snprintf(out, size, "CPU");
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon) {
            line[strcspn(line, "\n")] = 0;
            snprintf(out, size, "%s", colon + 2);
            break;
        }
    }
    if (f)
        fclose(f);
}

struct device *device_new_cpu(int index, int n_thread, struct error *err)
{
    const struct cpu_path *path = path_choose(err);
    if (!path)
        return NULL;
    struct cpu_device *cpu = calloc(1, sizeof *cpu);
    if (!cpu) {
        error_set(err, ERR_NO_MEMORY, "no memory for a device");
        return NULL;
    }
    if (n_thread == 0)
        n_thread = MIN(256, cores_usable());
    cpu->path = path;
    cpu->pool = pool_new(n_thread, err);
    if (!cpu->pool) {
        free(cpu);
        return NULL;
    }
    char name[64];
    processor_name(name, sizeof name);
    cpu->base = (struct device){ .op = &cpu_ops,
                                 .kind = DEVICE_CPU,
                                 .index = index,
                                 .n_thread = n_thread,
                                 .kv_page_tok = PANEL,
                                 .head_rows = 1 << 19,
                                 .host_memory = true };
    snprintf(cpu->base.name, sizeof cpu->base.name, "cpu:%d", index);
    snprintf(cpu->base.what, sizeof cpu->base.what, "%.60s, %s, %d thread%s", name, path->name, n_thread, n_thread > 1 ? "s" : "");
    return &cpu->base;
}
