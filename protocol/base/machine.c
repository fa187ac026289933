#include "protocol/base/machine.h"
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

size_t machine_memory_available(void)
{
    char line[256];
    uint64_t kib;
    size_t found = SIZE_MAX;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && found == SIZE_MAX && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" PRIu64 " kB", &kib) == 1)
            found = (size_t)kib * 1024;
    if (f)
        fclose(f);
    return found;
}
