/* data.c - see data.h */
#include "protocol/base/data.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/base/macros.h"

bool data_path(char *out, size_t size, const char *rel)
{
    char beside[4096] = "";
    ssize_t n = readlink("/proc/self/exe", beside, sizeof(beside) - 64);
    if (n > 0) {
        beside[n] = 0;
        char *slash = strrchr(beside, '/');
        if (slash)
            snprintf(slash, 64, "/../share/rollcall");
    }
    const char *const dirs[] = { getenv("RC_DATA"), beside, RC_DATA_DIR, RC_SOURCE_DIR };
    for (size_t i = 0; i < ARRAY_SIZE(dirs); i++)
        if (dirs[i] && dirs[i][0] && path_join(out, size, dirs[i], rel) && path_exists(out))
            return true;
    return false;
}
