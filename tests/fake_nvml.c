/* A library with NVML's names whose answers are in the file that FAKE_NVML names, read again at each call: lines "KEY VALUE".
 * Keys: count; gpu.N.WORD for the figures below. A figure that is not there is answered with NVML_ERROR_NOT_SUPPORTED, one that is
 * "lost" with NVML_ERROR_GPU_IS_LOST; "gpu.N.lost 1" answers everything so. gpu.N.process "PID BYTES SM". init "ERROR": what nvmlInit gives. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct nvmlDevice_st {
    int index;
};
static struct nvmlDevice_st devices[16];
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, LOST = 15 };

static bool value_find(const char *key, char *out, size_t size)
{
    char line[256];
    const char *path = getenv("FAKE_NVML");
    FILE *f = path ? fopen(path, "re") : NULL;
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        char *space = strchr(line, ' ');
        if (!space)
            continue;
        *space = 0;
        if (strcmp(line, key) == 0) {
            space[1 + strcspn(space + 1, "\n")] = 0;
            snprintf(out, size, "%s", space + 1);
            found = true;
        }
    }
    if (f)
        fclose(f);
    return found;
}

static int text_of(const struct nvmlDevice_st *d, const char *word, char *out, size_t size)
{
    char key[64];
    snprintf(key, sizeof key, "gpu.%d.lost", d->index);
    if (value_find(key, out, size))
        return LOST;
    snprintf(key, sizeof key, "gpu.%d.%s", d->index, word);
    if (!value_find(key, out, size))
        return NOT_SUPPORTED;
    return strcmp(out, "lost") == 0 ? LOST : OK;
}

static int number_of(const struct nvmlDevice_st *d, const char *word, unsigned long long *out)
{
    char text[128];
    int rv = text_of(d, word, text, sizeof text);
    if (rv == OK)
        *out = strtoull(text, NULL, 0);
    return rv;
}

static int small_of(const struct nvmlDevice_st *d, const char *word, unsigned *out)
{
    unsigned long long v = 0;
    int rv = number_of(d, word, &v);
    if (rv == OK)
        *out = (unsigned)v;
    return rv;
}

int nvmlInit_v2(void);
int nvmlInit_v2(void)
{
    char text[64];
    if (value_find("hang", text, sizeof text))    // a driver that does not come back
        sleep((unsigned)atoi(text));
    return value_find("init", text, sizeof text) ? atoi(text) : OK;
}
int nvmlShutdown(void);
int nvmlShutdown(void)
{
    return OK;
}
const char *nvmlErrorString(int rv);
const char *nvmlErrorString(int rv)
{
    return rv == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "some error";
}
int nvmlSystemGetDriverVersion(char *out, unsigned size);
int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    snprintf(out, size, "580.1");
    return OK;
}
int nvmlDeviceGetCount_v2(unsigned *n);
int nvmlDeviceGetCount_v2(unsigned *n)
{
    char text[64];
    *n = value_find("count", text, sizeof text) ? (unsigned)atoi(text) : 0;
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, struct nvmlDevice_st **d);
int nvmlDeviceGetHandleByIndex_v2(unsigned i, struct nvmlDevice_st **d)
{
    if (i >= 16)
        return INVALID;
    devices[i].index = (int)i;
    *d = &devices[i];
    return OK;
}

#define TEXT(function, word)                                                                                                               \
    int function(struct nvmlDevice_st *d, char *out, unsigned size);                                                                       \
    int function(struct nvmlDevice_st *d, char *out, unsigned size)                                                                        \
    {                                                                                                                                      \
        return text_of(d, word, out, size);                                                                                                \
    }
#define SMALL(function, word)                                                                                                              \
    int function(struct nvmlDevice_st *d, unsigned *out);                                                                                  \
    int function(struct nvmlDevice_st *d, unsigned *out)                                                                                   \
    {                                                                                                                                      \
        return small_of(d, word, out);                                                                                                     \
    }
TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
SMALL(nvmlDeviceGetPowerUsage, "power_mw")
SMALL(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")
SMALL(nvmlDeviceGetFanSpeed, "fan")
SMALL(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen")
SMALL(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max")
SMALL(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
SMALL(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")

struct pci {
    char legacy[16];
    unsigned numbers[5];
    char bus[32];
};
int nvmlDeviceGetPciInfo_v3(struct nvmlDevice_st *d, struct pci *out);
int nvmlDeviceGetPciInfo_v3(struct nvmlDevice_st *d, struct pci *out)
{
    return text_of(d, "bus", out->bus, sizeof out->bus);
}
struct use {
    unsigned gpu, memory;
};
int nvmlDeviceGetUtilizationRates(struct nvmlDevice_st *d, struct use *out);
int nvmlDeviceGetUtilizationRates(struct nvmlDevice_st *d, struct use *out)
{
    int rv = small_of(d, "util", &out->gpu);
    return rv == OK ? small_of(d, "mem_util", &out->memory) : rv;
}
struct memory {
    unsigned long long total, free, used;
};
int nvmlDeviceGetMemoryInfo(struct nvmlDevice_st *d, struct memory *out);
int nvmlDeviceGetMemoryInfo(struct nvmlDevice_st *d, struct memory *out)
{
    int rv = number_of(d, "mem_total", &out->total);
    return rv == OK ? number_of(d, "mem_used", &out->used) : rv;
}
int nvmlDeviceGetTemperature(struct nvmlDevice_st *d, int sensor, unsigned *out);
int nvmlDeviceGetTemperature(struct nvmlDevice_st *d, int sensor, unsigned *out)
{
    return sensor ? INVALID : small_of(d, "temp", out);
}
int nvmlDeviceGetClockInfo(struct nvmlDevice_st *d, int kind, unsigned *out);
int nvmlDeviceGetClockInfo(struct nvmlDevice_st *d, int kind, unsigned *out)
{
    static const char *const words[] = { "clock_graphics", "clock_sm", "clock_mem" };
    return kind > 2 ? INVALID : small_of(d, words[kind], out);
}
int nvmlDeviceGetMaxClockInfo(struct nvmlDevice_st *d, int kind, unsigned *out);
int nvmlDeviceGetMaxClockInfo(struct nvmlDevice_st *d, int kind, unsigned *out)
{
    return kind != 1 ? INVALID : small_of(d, "clock_sm_max", out);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(struct nvmlDevice_st *d, unsigned long long *out);    // the older name only
int nvmlDeviceGetCurrentClocksThrottleReasons(struct nvmlDevice_st *d, unsigned long long *out)
{
    return number_of(d, "throttle", out);
}
int nvmlDeviceGetTotalEccErrors(struct nvmlDevice_st *d, int kind, int since, unsigned long long *out);
int nvmlDeviceGetTotalEccErrors(struct nvmlDevice_st *d, int kind, int since, unsigned long long *out)
{
    return since ? INVALID : number_of(d, kind ? "ecc_uncorrected" : "ecc_corrected", out);
}
int nvmlDeviceGetNvLinkState(struct nvmlDevice_st *d, unsigned link, int *up);
int nvmlDeviceGetNvLinkState(struct nvmlDevice_st *d, unsigned link, int *up)
{
    unsigned n = 0;
    int rv = small_of(d, "links", &n);
    *up = link < n;
    return rv;
}
int nvmlDeviceGetNvLinkErrorCounter(struct nvmlDevice_st *d, unsigned link, int counter, unsigned long long *out);
int nvmlDeviceGetNvLinkErrorCounter(struct nvmlDevice_st *d, unsigned link, int counter, unsigned long long *out)
{
    return link || counter ? (*out = 0, OK) : number_of(d, "link_errors", out);
}
struct field {
    unsigned id, scope;
    long long time, latency;
    int type, result;
    unsigned long long value;
};
int nvmlDeviceGetFieldValues(struct nvmlDevice_st *d, int n, struct field *f);
int nvmlDeviceGetFieldValues(struct nvmlDevice_st *d, int n, struct field *f)
{
    for (int i = 0; i < n; i++) {
        char word[32];
        if ((f[i].id == 138 || f[i].id == 139) && f[i].scope != ~0u) {
            f[i].result = INVALID;
            continue;
        }
        snprintf(word, sizeof word, "field_%u", f[i].id);
        f[i].result = number_of(d, word, &f[i].value);
        f[i].type = f[i].id == 82 || f[i].id == 142 || f[i].id == 143 ? 1 : 3;    // unsigned, unsigned long long
    }
    return n > 0 && f[0].result == LOST ? LOST : OK;
}
struct process {
    unsigned pid;
    unsigned long long bytes;
    unsigned instance[2];
};
int nvmlDeviceGetComputeRunningProcesses_v3(struct nvmlDevice_st *d, unsigned *n, struct process *out);
int nvmlDeviceGetComputeRunningProcesses_v3(struct nvmlDevice_st *d, unsigned *n, struct process *out)
{
    char text[128];
    int rv = text_of(d, "process", text, sizeof text);
    *n = rv == OK && sscanf(text, "%u %llu", &out[0].pid, &out[0].bytes) == 2;
    return rv;
}
struct process_use {
    unsigned pid;
    unsigned long long time;
    unsigned sm, memory, encoder, decoder;
};
int nvmlDeviceGetProcessUtilization(struct nvmlDevice_st *d, struct process_use *out, unsigned *n, unsigned long long since);
int nvmlDeviceGetProcessUtilization(struct nvmlDevice_st *d, struct process_use *out, unsigned *n, unsigned long long since)
{
    char text[128];
    int rv = text_of(d, "process", text, sizeof text);
    unsigned long long bytes;
    *n = rv == OK && sscanf(text, "%u %llu %u", &out[0].pid, &bytes, &out[0].sm) == 3;
    out[0].time = since + 1;
    return rv == OK && *n == 0 ? NOT_FOUND : rv;
}
