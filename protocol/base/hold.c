#include "protocol/base/hold.h"
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"

#define HOLD_LIMIT_MS 300000    // by then the test has forgotten us
#define HOLD_LOOK_MS 2

void hold_point(const char *point)
{
    char wanted[PATH_MAX], held[PATH_MAX];
    const char *dir = getenv("RC_TEST_HOLD");
    if (!dir || !dir[0])
        return;
    snprintf(wanted, sizeof wanted, "%s/%s@%s", dir, log_component_name(), point);
    snprintf(held, sizeof held, "%s/%s@%s.%d", dir, log_component_name(), point, (int)getpid());
    if (rename(wanted, held) != 0)
        return;
    log_warn("held at '%s' until '%s' is removed", point, held);
    int64_t until = clock_ms() + HOLD_LIMIT_MS;
    while (path_exists(held) && clock_ms() < until)
        poll(NULL, 0, HOLD_LOOK_MS);
}
