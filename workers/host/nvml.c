/* The prototypes follow NVIDIA's NVML API reference (docs.nvidia.com/deploy/nvml-api); every symbol except the few that find
 * devices may be missing in an older driver; then its figures are unknown. */
#include "workers/host/nvml.h"
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"

enum {
    NVML_OK = 0,
    NVML_NOT_SUPPORTED = 3,
    NVML_GPU_IS_LOST = 15,
    NVML_RESET_REQUIRED = 16,
};    // nvmlReturn_t
enum {
    CLOCK_GRAPHICS = 0,
    CLOCK_SM = 1,
    CLOCK_MEM = 2,
};    // nvmlClockType_t
enum {
    FI_MEMORY_TEMP = 82,
    FI_NVLINK_TX_KIB = 138,
    FI_NVLINK_RX_KIB = 139,
    FI_REMAPPED_CORRECTED = 142,
    FI_REMAPPED_UNCORRECTED = 143,
    FI_PCIE_TX_BYTES = 197,
    FI_PCIE_RX_BYTES = 198,
};
enum {
    VALUE_DOUBLE,
    VALUE_UINT,
    VALUE_ULONG,
    VALUE_ULONG_LONG,
    VALUE_LONG_LONG,
    VALUE_INT,
};    // nvmlValueType_t
#define NVLINK_MAX 18
#define NVLINK_ALL UINT32_MAX    // as scope: the sum of all links
#define NVLINK_COUNTERS 4        // replay, recovery, CRC of flits and of data

typedef struct nvmlDevice_st *device_handle;
struct utilization {
    unsigned gpu, memory;
};
struct memory {
    unsigned long long total, free, used;
};
struct pci_info {
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};
struct process_info {
    unsigned pid;
    unsigned long long used_bytes;
    unsigned gpu_instance, compute_instance;
};
struct process_utilization {
    unsigned pid;
    unsigned long long time_us;
    unsigned sm, memory, encoder, decoder;
};
struct field_value {
    unsigned field, scope;
    long long time_us, latency_us;
    int type, result;
    union {
        double d;
        unsigned u;
        unsigned long ul;
        unsigned long long ull;
        long long ll;
        int i;
    } value;
};

struct calls {
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*error_text)(int);
    int (*driver_version)(char *, unsigned);
    int (*count)(unsigned *);
    int (*by_index)(unsigned, device_handle *);
    int (*name)(device_handle, char *, unsigned);
    int (*uuid)(device_handle, char *, unsigned);
    int (*pci_info)(device_handle, struct pci_info *);
    int (*utilization)(device_handle, struct utilization *);
    int (*memory)(device_handle, struct memory *);
    int (*temperature)(device_handle, int, unsigned *);
    int (*power)(device_handle, unsigned *);
    int (*power_limit)(device_handle, unsigned *);
    int (*clock)(device_handle, int, unsigned *);
    int (*clock_max)(device_handle, int, unsigned *);
    int (*throttle)(device_handle, unsigned long long *);
    int (*ecc)(device_handle, int, int, unsigned long long *);
    int (*fan)(device_handle, unsigned *);
    int (*encoder)(device_handle, unsigned *, unsigned *);
    int (*pcie_gen)(device_handle, unsigned *);
    int (*pcie_gen_max)(device_handle, unsigned *);
    int (*pcie_width)(device_handle, unsigned *);
    int (*pcie_width_max)(device_handle, unsigned *);
    int (*link_state)(device_handle, unsigned, int *);
    int (*link_errors)(device_handle, unsigned, int, unsigned long long *);
    int (*fields)(device_handle, int, struct field_value *);
    int (*processes)(device_handle, unsigned *, struct process_info *);
    int (*process_utilization)(device_handle, struct process_utilization *, unsigned *, unsigned long long);
};
#define CALL(member) offsetof(struct calls, member)
static const struct {
    size_t at;
    const char *symbol, *older;
    bool needed;
} symbols[] = {
    { CALL(init), "nvmlInit_v2", NULL, true },
    { CALL(shutdown), "nvmlShutdown", NULL, true },
    { CALL(error_text), "nvmlErrorString", NULL, true },
    { CALL(count), "nvmlDeviceGetCount_v2", NULL, true },
    { CALL(by_index), "nvmlDeviceGetHandleByIndex_v2", NULL, true },
    { CALL(driver_version), "nvmlSystemGetDriverVersion" },
    { CALL(name), "nvmlDeviceGetName" },
    { CALL(uuid), "nvmlDeviceGetUUID" },
    { CALL(pci_info), "nvmlDeviceGetPciInfo_v3" },
    { CALL(utilization), "nvmlDeviceGetUtilizationRates" },
    { CALL(memory), "nvmlDeviceGetMemoryInfo" },
    { CALL(temperature), "nvmlDeviceGetTemperature" },
    { CALL(power), "nvmlDeviceGetPowerUsage" },
    { CALL(power_limit), "nvmlDeviceGetEnforcedPowerLimit" },
    { CALL(clock), "nvmlDeviceGetClockInfo" },
    { CALL(clock_max), "nvmlDeviceGetMaxClockInfo" },
    { CALL(throttle), "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons" },
    { CALL(ecc), "nvmlDeviceGetTotalEccErrors" },
    { CALL(fan), "nvmlDeviceGetFanSpeed" },
    { CALL(encoder), "nvmlDeviceGetEncoderUtilization" },
    { CALL(pcie_gen), "nvmlDeviceGetCurrPcieLinkGeneration" },
    { CALL(pcie_gen_max), "nvmlDeviceGetMaxPcieLinkGeneration" },
    { CALL(pcie_width), "nvmlDeviceGetCurrPcieLinkWidth" },
    { CALL(pcie_width_max), "nvmlDeviceGetMaxPcieLinkWidth" },
    { CALL(link_state), "nvmlDeviceGetNvLinkState" },
    { CALL(link_errors), "nvmlDeviceGetNvLinkErrorCounter" },
    { CALL(fields), "nvmlDeviceGetFieldValues" },
    { CALL(processes), "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2" },
    { CALL(process_utilization), "nvmlDeviceGetProcessUtilization" },
};

enum {
    COUNT_NVLINK_TX,
    COUNT_NVLINK_RX,
    COUNT_PCIE_TX,
    COUNT_PCIE_RX,
    COUNT_N,
};
struct gpu {
    device_handle handle;
    enum gpu_state state;    // from finding the devices; later samples look again
    char name[96], uuid[96], bus[32];
    double count[COUNT_N];    // bytes at count_ns; NAN: not known
    int64_t count_ns[COUNT_N];
    unsigned long long process_us;    // time of the newest process sample seen
};
struct nvml {
    void *library;
    struct calls call;
    bool ready;
    char driver[80];
    struct gpu gpu[NODE_GPUS];
    int n_gpu;
};

static bool calls_find(struct nvml *n, const char *path, struct error *err)
{
    for (size_t i = 0; i < ARRAY_SIZE(symbols); i++) {
        void *f = dlsym(n->library, symbols[i].symbol);
        if (!f && symbols[i].older)
            f = dlsym(n->library, symbols[i].older);
        if (!f && symbols[i].needed)
            return error_set(err, ERR_UNSUPPORTED, "'%s' lacks %s", path, symbols[i].symbol);
        memcpy((char *)&n->call + symbols[i].at, &f, sizeof f);
    }
    return true;
}

/* What a call's result says about the device as a whole. */
static bool told(int result, enum gpu_state *state)
{
    if (result == NVML_GPU_IS_LOST)
        *state = GPU_GONE;
    else if (result == NVML_RESET_REQUIRED && *state == GPU_FINE)
        *state = GPU_NEEDS_RESET;
    return result == NVML_OK;
}

static void gpu_find(struct nvml *n, int i)
{
    const struct calls *c = &n->call;
    struct gpu *g = &n->gpu[i];
    struct pci_info pci = { 0 };
    *g = (struct gpu){ 0 };
    for (int k = 0; k < COUNT_N; k++)
        g->count[k] = NAN;
    if (!told(c->by_index((unsigned)i, &g->handle), &g->state)) {
        g->handle = NULL;
        return;
    }
    if (!c->name || !told(c->name(g->handle, g->name, sizeof g->name), &g->state))
        g->name[0] = 0;
    if (!c->uuid || !told(c->uuid(g->handle, g->uuid, sizeof g->uuid), &g->state))
        g->uuid[0] = 0;
    if (c->pci_info && told(c->pci_info(g->handle, &pci), &g->state))
        snprintf(g->bus, sizeof g->bus, "%.31s", pci.bus_id);
}

struct nvml *nvml_new(struct error *err)
{
    const char *named = getenv("RC_NVML_LIBRARY"), *path = named && named[0] ? named : "libnvidia-ml.so.1";
    struct nvml *n = calloc(1, sizeof *n);
    unsigned count = 0;
    int rv;
    if (!n) {
        error_set(err, ERR_NO_MEMORY, "no memory for GPU telemetry");
        return NULL;
    }
    n->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!n->library) {
        error_set(err, ERR_NOT_FOUND, "no NVIDIA driver here: %s", dlerror());
        goto failed;
    }
    if (!calls_find(n, path, err))
        goto failed;
    if ((rv = n->call.init()) != NVML_OK) {
        error_set(err, ERR_UNSUPPORTED, "'%s' cannot be used: %s", path, n->call.error_text(rv));
        goto failed;
    }
    n->ready = true;
    if (!n->call.driver_version || n->call.driver_version(n->driver, sizeof n->driver) != NVML_OK)
        n->driver[0] = 0;
    if ((rv = n->call.count(&count)) != NVML_OK) {
        error_set(err, ERR_UNSUPPORTED, "'%s' does not list its devices: %s", path, n->call.error_text(rv));
        goto failed;
    }
    n->n_gpu = (int)MIN(count, (unsigned)NODE_GPUS);
    for (int i = 0; i < n->n_gpu; i++)
        gpu_find(n, i);
    return n;
failed:
    nvml_free(n);
    return NULL;
}

void nvml_free(struct nvml *n)
{
    if (!n)
        return;
    if (n->ready)
        n->call.shutdown();
    if (n->library)
        dlclose(n->library);
    free(n);
}

int nvml_n_gpu(const struct nvml *n)
{
    return n->n_gpu;
}

const char *nvml_driver(const struct nvml *n)
{
    return n->driver;
}

typedef int unsigned_call(device_handle, unsigned *);

static void take(unsigned_call *call, const struct gpu *g, double scale, double *out, enum gpu_state *state)
{
    unsigned v;
    if (call && told(call(g->handle, &v), state))
        *out = scale * (double)v;
}

static void clock_take(int (*call)(device_handle, int, unsigned *), const struct gpu *g, int kind, double *out, enum gpu_state *state)
{
    unsigned v;
    if (call && told(call(g->handle, kind, &v), state))
        *out = (double)v;
}

static void ecc_take(const struct calls *c, const struct gpu *g, int kind, double *out, enum gpu_state *state)
{
    unsigned long long v;
    if (c->ecc && told(c->ecc(g->handle, kind, 0 /* since the driver was loaded */, &v), state))
        *out = (double)v;
}

static double field_number(const struct field_value *f)
{
    if (f->result != NVML_OK)
        return NAN;
    switch (f->type) {
    case VALUE_DOUBLE: return f->value.d;
    case VALUE_UINT: return f->value.u;
    case VALUE_ULONG: return (double)f->value.ul;
    case VALUE_ULONG_LONG: return (double)f->value.ull;
    case VALUE_LONG_LONG: return (double)f->value.ll;
    case VALUE_INT: return f->value.i;
    }
    return NAN;
}

/* Bytes per second since the last sample. A counter that went back (wrapped or reset) gives no rate. */
static double rate(struct gpu *g, int counter, double bytes)
{
    int64_t now = clock_ns();
    double was = g->count[counter], passed_s = (double)(now - g->count_ns[counter]) * 1e-9;
    g->count[counter] = bytes;
    g->count_ns[counter] = now;
    return bytes >= was && passed_s > 0 ? (bytes - was) / passed_s : NAN;    // a NAN on either side gives NAN
}

static void fields_take(const struct calls *c, struct gpu *g, double *value, enum gpu_state *state)
{
    struct field_value f[] = {
        { FI_MEMORY_TEMP },        { FI_NVLINK_TX_KIB, NVLINK_ALL }, { FI_NVLINK_RX_KIB, NVLINK_ALL },
        { FI_REMAPPED_CORRECTED }, { FI_REMAPPED_UNCORRECTED },      { FI_PCIE_TX_BYTES },
        { FI_PCIE_RX_BYTES },
    };
    for (size_t i = 0; i < ARRAY_SIZE(f); i++)
        f[i].result = NVML_NOT_SUPPORTED;    // until the library says otherwise
    if (!c->fields || !told(c->fields(g->handle, ARRAY_SIZE(f), f), state))
        return;
    for (size_t i = 0; i < ARRAY_SIZE(f); i++)
        told(f[i].result, state);
    value[GPU_MEM_TEMP] = field_number(&f[0]);
    value[GPU_NVLINK_TX] = rate(g, COUNT_NVLINK_TX, 1024 * field_number(&f[1]));
    value[GPU_NVLINK_RX] = rate(g, COUNT_NVLINK_RX, 1024 * field_number(&f[2]));
    value[GPU_ROWS_REMAPPED] = field_number(&f[3]) + field_number(&f[4]);
    /* a 32-bit counter wraps several times per second at full speed: no rate can be computed from it */
    if (f[5].type == VALUE_ULONG_LONG)
        value[GPU_PCIE_TX] = rate(g, COUNT_PCIE_TX, field_number(&f[5]));
    if (f[6].type == VALUE_ULONG_LONG)
        value[GPU_PCIE_RX] = rate(g, COUNT_PCIE_RX, field_number(&f[6]));
}

static void links_take(const struct calls *c, const struct gpu *g, double *value, enum gpu_state *state)
{
    unsigned long long errors;
    for (unsigned link = 0; c->link_state && link < NVLINK_MAX; link++) {
        int up;
        if (!told(c->link_state(g->handle, link, &up), state))
            continue;
        value[GPU_NVLINKS] = (isnan(value[GPU_NVLINKS]) ? 0 : value[GPU_NVLINKS]) + (up != 0);
        for (int k = 0; up && c->link_errors && k < NVLINK_COUNTERS; k++)
            if (told(c->link_errors(g->handle, link, k, &errors), state))
                value[GPU_NVLINK_ERRORS] = (isnan(value[GPU_NVLINK_ERRORS]) ? 0 : value[GPU_NVLINK_ERRORS]) + (double)errors;
    }
}

static void processes_take(const struct calls *c, struct gpu *g, struct gpu_sample *out)
{
    struct process_info info[GPU_PROCESSES];
    struct process_utilization use[4 * GPU_PROCESSES];
    unsigned n = ARRAY_SIZE(info), n_use = ARRAY_SIZE(use);
    if (!c->processes || !told(c->processes(g->handle, &n, info), &out->state))
        return;
    n = MIN(n, (unsigned)GPU_PROCESSES);
    for (unsigned i = 0; i < n; i++)
        out->process[i] = (struct gpu_process){ info[i].pid, info[i].used_bytes == ~0ull ? NAN : (double)info[i].used_bytes, NAN };
    out->n_process = (int)n;
    if (!c->process_utilization || !told(c->process_utilization(g->handle, use, &n_use, g->process_us), &out->state))
        return;
    for (unsigned k = 0; k < MIN(n_use, (unsigned)ARRAY_SIZE(use)); k++) {    // samples come in order of time: keep the newest
        g->process_us = MAX(g->process_us, use[k].time_us);
        for (unsigned i = 0; i < n; i++)
            if (info[i].pid == use[k].pid)
                out->process[i].util_percent = use[k].sm;
    }
}

void nvml_sample(struct nvml *n, int i, struct gpu_sample *out)
{
    const struct calls *c = &n->call;
    struct gpu *g = &n->gpu[i];
    struct utilization u;
    struct memory m;
    unsigned long long reasons;
    unsigned encoder, period, temp;
    double *v = out->value;
    *out = (struct gpu_sample){ .state = g->handle ? GPU_FINE : g->state };
    snprintf(out->name, sizeof out->name, "%s", g->name);
    snprintf(out->uuid, sizeof out->uuid, "%s", g->uuid);
    snprintf(out->bus, sizeof out->bus, "%s", g->bus);
    for (int k = 0; k < GPU_FIELD_N; k++)
        v[k] = NAN;
    if (g->handle) {
        if (c->utilization && told(c->utilization(g->handle, &u), &out->state)) {
            v[GPU_UTIL] = u.gpu;
            v[GPU_MEM_UTIL] = u.memory;
        }
        if (c->memory && told(c->memory(g->handle, &m), &out->state)) {
            v[GPU_MEM_USED] = (double)m.used;
            v[GPU_MEM_TOTAL] = (double)m.total;
            v[GPU_MEM_PERCENT] = m.total ? 100 * (double)m.used / (double)m.total : NAN;
        }
        if (c->temperature && told(c->temperature(g->handle, 0, &temp), &out->state))
            v[GPU_TEMP] = temp;
        take(c->power, g, 1e-3, &v[GPU_POWER], &out->state);
        take(c->power_limit, g, 1e-3, &v[GPU_POWER_LIMIT], &out->state);
        if (v[GPU_POWER_LIMIT] > 0)
            v[GPU_POWER_PERCENT] = 100 * v[GPU_POWER] / v[GPU_POWER_LIMIT];
        clock_take(c->clock, g, CLOCK_SM, &v[GPU_SM_CLOCK], &out->state);
        clock_take(c->clock, g, CLOCK_MEM, &v[GPU_MEM_CLOCK], &out->state);
        clock_take(c->clock, g, CLOCK_GRAPHICS, &v[GPU_GRAPHICS_CLOCK], &out->state);
        clock_take(c->clock_max, g, CLOCK_SM, &v[GPU_SM_CLOCK_MAX], &out->state);
        if (c->throttle && told(c->throttle(g->handle, &reasons), &out->state)) {
            v[GPU_THROTTLE] = (double)reasons;
            v[GPU_SLOWED] = throttle_slows(reasons);
        }
        ecc_take(c, g, 0, &v[GPU_ECC_CORRECTED], &out->state);
        ecc_take(c, g, 1, &v[GPU_ECC_UNCORRECTED], &out->state);
        take(c->fan, g, 1, &v[GPU_FAN], &out->state);
        if (c->encoder && told(c->encoder(g->handle, &encoder, &period), &out->state))
            v[GPU_ENCODER] = encoder;
        take(c->pcie_gen, g, 1, &v[GPU_PCIE_GEN], &out->state);
        take(c->pcie_gen_max, g, 1, &v[GPU_PCIE_GEN_MAX], &out->state);
        take(c->pcie_width, g, 1, &v[GPU_PCIE_WIDTH], &out->state);
        take(c->pcie_width_max, g, 1, &v[GPU_PCIE_WIDTH_MAX], &out->state);
        fields_take(c, g, v, &out->state);
        links_take(c, g, v, &out->state);
        processes_take(c, g, out);
    }
    if (out->state == GPU_GONE) {    // answers from before the device was lost are of no use
        for (int k = 0; k < GPU_FIELD_N; k++)
            v[k] = NAN;
        out->n_process = 0;
    }
    v[GPU_LOST] = out->state == GPU_GONE;
}
