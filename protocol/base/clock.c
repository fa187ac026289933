#include "protocol/base/clock.h"
#include <stdio.h>

int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void clock_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

struct timespec clock_after(int64_t ms)
{
    int64_t ns = clock_ns() + ms * 1000000;
    return (struct timespec){ .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };
}

double clock_wall_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

const char *duration_format(char out[16], double s)
{
    if (!(s >= 0) || s > 1e9) {
        snprintf(out, 16, "-");
        return out;
    }
    long t = (long)(s + 0.5);
    if (s < 9.95)
        snprintf(out, 16, "%.1fs", s);
    else if (t < 60)
        snprintf(out, 16, "%lds", t);
    else if (t < 3600)
        snprintf(out, 16, "%ld:%02ld", t / 60, t % 60);
    else if (t < 48 * 3600)
        snprintf(out, 16, "%ld:%02ld:%02ld", t / 3600, t / 60 % 60, t % 60);
    else
        snprintf(out, 16, "%ldd %ldh", t / 86400, t / 3600 % 24);
    return out;
}
