#include "protocol/run/telemetry.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct telemetry_field host_fields[HOST_FIELD_N] = {
    [HOST_CPU] = { "cpu_percent", "percent", "cpu", 1, "processor time in use, of all cores" },
    [HOST_LOAD] = { "load", "", "load", 1, "mean number of threads running or ready to run, over a minute" },
    [HOST_MEM_USED] = { "mem_used_bytes", "bytes", NULL, 1, "memory not available to new programs" },
    [HOST_MEM_TOTAL] = { "mem_total_bytes", "bytes", NULL, 1, "memory of the node" },
    [HOST_MEM_PERCENT] = { "mem_percent", "percent", "memory_percent", 1, "memory in use" },
    [HOST_RUN_CPU] = { "run_cpu_cores", "cores", NULL, 1, "cores kept busy by the run's processes on this node" },
    [HOST_RUN_MEM] = { "run_mem_bytes", "bytes", "proc.memory.rssMB", 1e-6, "resident memory of the run's processes on this node" },
    [HOST_RUN_THREADS] = { "run_threads", "threads", "proc.cpu.threads", 1, "threads of the run's processes on this node" },
    [HOST_DISK_PERCENT] = { "disk_percent", "percent", "disk./.usagePercent", 1,
                            "share of space in use on the file system of the run's directory" },
    [HOST_DISK_USED] = { "disk_used_bytes", "bytes", "disk./.usageGB", 1e-9, "bytes in use on the file system of the run's directory" },
    [HOST_DISK_READ] = { "disk_read_bytes", "bytes", "disk.in", 1e-6, "bytes read from disks since the agent began" },
    [HOST_DISK_WRITTEN] = { "disk_written_bytes", "bytes", "disk.out", 1e-6, "bytes written to disks since the agent began" },
    [HOST_NET_SENT] = { "net_sent_bytes", "bytes", "network.sent", 1, "bytes sent over networks since the agent began" },
    [HOST_NET_RECEIVED] = { "net_received_bytes", "bytes", "network.recv", 1, "bytes received over networks since the agent began" },
};

const struct telemetry_field gpu_fields[GPU_FIELD_N] = {
    [GPU_UTIL] = { "util_percent", "percent", "gpu", 1, "share of time in which a kernel ran" },
    [GPU_MEM_UTIL] = { "mem_util_percent", "percent", "memory", 1, "share of time in which memory was read or written" },
    [GPU_MEM_PERCENT] = { "mem_percent", "percent", "memoryAllocated", 1, "memory in use" },
    [GPU_MEM_USED] = { "mem_used_bytes", "bytes", "memoryAllocatedBytes", 1, "memory in use" },
    [GPU_MEM_TOTAL] = { "mem_total_bytes", "bytes", NULL, 1, "memory of the device" },
    [GPU_RUN_MEM] = { "run_mem_bytes", "bytes", NULL, 1, "memory that the run's processes hold" },
    [GPU_RUN_UTIL] = { "run_util_percent", "percent", NULL, 1, "share of time in which kernels of the run's processes ran" },
    [GPU_TEMP] = { "temp_celsius", "celsius", "temp", 1, "temperature of the chip" },
    [GPU_MEM_TEMP] = { "mem_temp_celsius", "celsius", "memoryTemp", 1, "temperature of the memory" },
    [GPU_POWER] = { "power_watts", "watts", "powerWatts", 1, "power drawn" },
    [GPU_POWER_LIMIT] = { "power_limit_watts", "watts", "enforcedPowerLimitWatts", 1, "power limit" },
    [GPU_POWER_PERCENT] = { "power_percent", "percent", "powerPercent", 1, "power drawn as a share of the power limit" },
    [GPU_SM_CLOCK] = { "sm_clock_mhz", "mhz", "smClock", 1, "clock of the multiprocessors" },
    [GPU_SM_CLOCK_MAX] = { "sm_clock_max_mhz", "mhz", NULL, 1, "maximum clock of the multiprocessors" },
    [GPU_MEM_CLOCK] = { "mem_clock_mhz", "mhz", "memoryClock", 1, "clock of the memory" },
    [GPU_GRAPHICS_CLOCK] = { "graphics_clock_mhz", "mhz", "graphicsClock", 1, "clock of the graphics domain" },
    [GPU_THROTTLE] = { "throttle_reasons", "", NULL, 1, "NVML's bits for why the clocks are reduced" },
    [GPU_SLOWED] = { "slowed", "", "slowed", 1, "1 while power, heat or hardware reduce the clocks" },
    [GPU_ECC_CORRECTED] = { "ecc_corrected", "", "correctedMemoryErrors", 1, "corrected memory errors since the driver was loaded" },
    [GPU_ECC_UNCORRECTED] = { "ecc_uncorrected", "", "uncorrectedMemoryErrors", 1,
                              "uncorrected memory errors since the driver was loaded" },
    [GPU_ROWS_REMAPPED] = { "rows_remapped", "", NULL, 1, "memory rows replaced by spare ones after uncorrectable errors" },
    [GPU_FAN] = { "fan_percent", "percent", "fanSpeed", 1, "speed of the fan" },
    [GPU_ENCODER] = { "encoder_percent", "percent", "encoderUtilization", 1, "use of the video encoder" },
    [GPU_PCIE_GEN] = { "pcie_generation", "", "pcieLinkGen", 1, "current PCIe generation of the link" },
    [GPU_PCIE_GEN_MAX] = { "pcie_generation_max", "", "maxPcieLinkGen", 1, "highest PCIe generation that device and slot support" },
    [GPU_PCIE_WIDTH] = { "pcie_lanes", "lanes", "pcieLinkWidth", 1, "current PCIe lanes of the link" },
    [GPU_PCIE_WIDTH_MAX] = { "pcie_max_lanes", "lanes", "maxPcieLinkWidth", 1, "most PCIe lanes that device and slot support" },
    [GPU_PCIE_TX] = { "pcie_tx_bytes_per_second", "bytes_per_second", "pcieTxBytes", 1, "bytes sent over PCIe per second" },
    [GPU_PCIE_RX] = { "pcie_rx_bytes_per_second", "bytes_per_second", "pcieRxBytes", 1, "bytes received over PCIe per second" },
    [GPU_NVLINKS] = { "nvlinks", "", NULL, 1, "NVLinks that are up" },
    [GPU_NVLINK_TX] = { "nvlink_tx_bytes_per_second", "bytes_per_second", "nvlinkTxBytes", 1, "bytes sent over all NVLinks per second" },
    [GPU_NVLINK_RX] = { "nvlink_rx_bytes_per_second", "bytes_per_second", "nvlinkRxBytes", 1,
                        "bytes received over all NVLinks per second" },
    [GPU_NVLINK_ERRORS] = { "nvlink_errors", "", "nvlinkErrors", 1, "replays, recoveries and checksum errors of all NVLinks" },
    [GPU_LOST] = { "lost", "", NULL, 1, "1 when the device has fallen off the bus" },
};

static const struct telemetry_field *field_find(const struct telemetry_field *fields, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(fields[i].name, name) == 0)
            return &fields[i];
    return NULL;
}

const struct telemetry_field *telemetry_find(const char *full_name, int *gpu)
{
    *gpu = -1;
    if (strncmp(full_name, "host/", 5) == 0)
        return field_find(host_fields, HOST_FIELD_N, full_name + 5);
    if (strncmp(full_name, "gpu/", 4) != 0 || full_name[4] < '0' || full_name[4] > '9')
        return NULL;
    char *end;
    long index = strtol(full_name + 4, &end, 10);
    if (*end != '/' || index >= NODE_GPUS)
        return NULL;
    *gpu = (int)index;
    return field_find(gpu_fields, GPU_FIELD_N, end + 1);
}

/* nvmlClocksEventReasons of NVML's documentation; slows: it makes work slower; fault: and it does not on a machine that is well. */
static const struct {
    unsigned long long bit;
    const char *words;
    bool slows, fault;
} reasons[] = {
    { 0x1, "idle", false, false },
    { 0x2, "clocks set by a program", false, false },
    { 0x4, "power limit", true, false },
    { 0x8, "hardware slowdown", true, true },
    { 0x10, "sync boost", true, false },
    { 0x20, "heat", true, true },
    { 0x40, "hardware thermal protection", true, true },
    { 0x80, "power brake", true, true },
    { 0x100, "display clocks", false, false },
};

const char *throttle_text(double bits, char *out, size_t size)
{
    size_t n = 0;
    out[0] = 0;
    for (size_t i = 0; !isnan(bits) && i < ARRAY_SIZE(reasons); i++)
        if ((unsigned long long)bits & reasons[i].bit && n < size)
            n += (size_t)snprintf(out + n, size - n, "%s%s", n ? ", " : "", reasons[i].words);
    return out;
}

bool throttle_slows(unsigned long long bits)
{
    for (size_t i = 0; i < ARRAY_SIZE(reasons); i++)
        if (reasons[i].slows && bits & reasons[i].bit)
            return true;
    return false;
}

static bool reason_is_fault(const char *word, size_t len)
{
    for (size_t i = 0; i < ARRAY_SIZE(reasons); i++)
        if (strlen(reasons[i].words) == len && memcmp(reasons[i].words, word, len) == 0)
            return reasons[i].fault;
    return len > 0;
}

bool throttle_is_fault(const char *text)
{
    for (; *text; text += strspn(text, ", ")) {
        size_t len = strcspn(text, ",");
        if (reason_is_fault(text, len))
            return true;
        text += len;
    }
    return false;
}

void telemetry_print_docs(struct buf *out)
{
    buf_str(out, "| figure | meaning | at wandb |\n|---|---|---|\n");
    for (int i = 0; i < HOST_FIELD_N; i++)
        buf_fmt(out, "| `host/%s` | %s | %s%s%s |\n", host_fields[i].name, host_fields[i].help, host_fields[i].wandb ? "`system." : "",
                host_fields[i].wandb ? host_fields[i].wandb : "", host_fields[i].wandb ? "`" : "");
    for (int i = 0; i < GPU_FIELD_N; i++)
        buf_fmt(out, "| `gpu/N/%s` | %s | %s%s%s |\n", gpu_fields[i].name, gpu_fields[i].help, gpu_fields[i].wandb ? "`system.gpu.N." : "",
                gpu_fields[i].wandb ? gpu_fields[i].wandb : "", gpu_fields[i].wandb ? "`" : "");
}
