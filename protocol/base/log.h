/* log.h - one line per event: time, level, component, sentence, key=value
 *
 * Lines go to stderr (a process of a run has its log file there). Level from RC_LOG (error, warn, info, debug; default info).
 * Nothing per token, nothing secret. Any thread: a line is one write. */
#pragma once
#include "protocol/base/macros.h"
enum log_level {
    LOG_ERROR,
    LOG_WARN,
    LOG_INFO,
    LOG_DEBUG,
};
/* Set the component name in each line of this process, e.g. "worker cpu:0"; called once, before other threads start. */
void log_component(const char *name);
const char *log_component_name(void);
void log_at(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);
#define log_error(...) log_at(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_at(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_at(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_at(LOG_DEBUG, __VA_ARGS__)
