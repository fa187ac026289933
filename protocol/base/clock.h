/* clock.h - the two clocks, one for durations and one for dates, and how a duration is written
 *
 * Everything that waits counts on the monotonic clock, so that a jump of the wall clock changes no time limit. Any thread. */
#pragma once
#include <pthread.h>
#include <stdint.h>
#include <time.h>
/* Monotonic time since some fixed moment. */
int64_t clock_ns(void);
static inline int64_t clock_ms(void)
{
    return clock_ns() / 1000000;
}
/* A condition whose timed waits count on the monotonic clock, and the time ms from now for pthread_cond_timedwait. */
void clock_cond_init(pthread_cond_t *cond);
struct timespec clock_after(int64_t ms);
/* Seconds since 1970, for dates in files and logs; may jump. */
double clock_wall_s(void);
/* "4.2s", "1:05", "2:03:04", "3d 4h"; "-" when unknown. Returns out. */
const char *duration_format(char out[16], double s);
