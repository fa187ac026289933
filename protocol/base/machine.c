#include "protocol/base/machine.h"
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

struct machine_memory machine_memory(void)
{
    struct machine_memory m = { SIZE_MAX, SIZE_MAX };
    char line[256];
    uint64_t kib;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "MemTotal: %" PRIu64 " kB", &kib) == 1)
            m.total = (size_t)kib * 1024;
        if (sscanf(line, "MemAvailable: %" PRIu64 " kB", &kib) == 1)
            m.available = (size_t)kib * 1024;
    }
    if (f)
        fclose(f);
    return m;
}
