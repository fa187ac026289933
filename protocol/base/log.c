#include "protocol/base/log.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "protocol/base/clean_out.h"
#include "protocol/base/utf8.h"

/* The one mutable global of the program: a process has one name, set before its threads start. */
static char component[64] = "rollcall";

void log_component(const char *name)
{
    snprintf(component, sizeof component, "%s", name);
}

const char *log_component_name(void)
{
    return component;
}

static enum log_level level_wanted(void)
{
    static const char *const names[] = { "error", "warn", "info", "debug" };
    const char *want = getenv("RC_LOG");
    for (int i = 0; want && i < (int)ARRAY_SIZE(names); i++)
        if (strcmp(want, names[i]) == 0)
            return (enum log_level)i;
    return LOG_INFO;
}

void log_at(enum log_level level, const char *fmt, ...)
{
    static const char *const tags[] = { "ERROR", "WARN", "INFO", "DEBUG" };
    if (level > level_wanted())
        return;
    char line[2048];
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &tm);
    int n = (int)strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &tm);
    n += snprintf(line + n, sizeof line - (size_t)n, ".%03ld %-5s %s: ", now.tv_nsec / 1000000, tags[level], component);
    va_list ap;
    va_start(ap, fmt);
    int more = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    n = more < 0 ? n : MIN(n + more, (int)sizeof line - 2);
    for (int i = 0, len; i<n; i += len> 0 ? len : 1) {    // an event is one line, and what comes from outside must not drive a terminal
        len = utf8_look((const uint8_t *)line + i, (size_t)(n - i));
        uint32_t c = len > 0 ? utf8_character((const uint8_t *)line + i, len) : 0;
        if (c == '\n' || c == '\t' || terminal_obeys(c))
            memset(line + i, ' ', (size_t)MAX(len, 1));
    }
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)n) < 0) {
        /* nowhere left to say it */
    }
}
