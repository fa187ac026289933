/* macros.h - the few macros used everywhere */
#pragma once
#include <stddef.h>
#define MUST_USE __attribute__((warn_unused_result))
#define UNUSED __attribute__((unused))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
/* The only macro that hides a jump: leave through the function's one cleanup label. */
#define TRY(call)                                                                                                                          \
    do {                                                                                                                                   \
        if (!(call))                                                                                                                       \
            goto out;                                                                                                                      \
    } while (0)
