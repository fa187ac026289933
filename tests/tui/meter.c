/* meter.c - what a console costs: processor share, bytes per second, time to answer a key, memory after resizes
 *
 *   tui_meter COLSxROWS SECONDS COMMAND...
 * Figures only: they are ratios of a quiet machine and no test fails on them. The processor time is the command's own process
 * (all threads), from /proc; a key is answered when the first byte comes back. */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "tests/tui/pty.h"

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double cpu_s(pid_t pid)
{
    char path[64];
    uint64_t user = 0, kernel = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f || fscanf(f, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" PRIu64 " %" PRIu64, &user, &kernel) != 2)
        user = kernel = 0;
    if (f)
        fclose(f);
    return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

static long rss_kib(pid_t pid)
{
    char path[64];
    long pages = 0;
    snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f || fscanf(f, "%*d %ld", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    int cols, rows;
    double seconds = argc > 3 ? atof(argv[2]) : 0;
    if (argc < 4 || sscanf(argv[1], "%dx%d", &cols, &rows) != 2 || seconds < 1) {
        fprintf(stderr, "usage: tui_meter COLSxROWS SECONDS COMMAND...\n");
        return 2;
    }
    struct pty p;
    if (!pty_start(&p, cols, rows, NULL, argv + 3) || !pty_wait(&p, "? help", 60)) {
        fprintf(stderr, "meter: no console came up\n");
        return 1;
    }
    pty_read(&p, 1500, 0);
    int64_t bytes = p.bytes_out;
    double cpu = cpu_s(p.pid), start = now_s();
    pty_read(&p, (int)(1000 * seconds), 0);
    double took = now_s() - start;
    printf("%dx%d: %.2f %% of a core, %.0f bytes/s", cols, rows, 100 * (cpu_s(p.pid) - cpu) / took, (double)(p.bytes_out - bytes) / took);
    enum {
        KEYS = 200,
    };
    double answer_ms[KEYS];
    for (int i = 0; i < KEYS; i++) {
        pty_read(&p, 100, 20);
        double sent = now_s();
        pty_type(&p, i % 2 ? "1" : "2");
        struct pollfd fd = { .fd = p.master, .events = POLLIN };
        poll(&fd, 1, 5000);
        answer_ms[i] = 1000 * (now_s() - sent);
    }
    qsort(answer_ms, KEYS, sizeof(*answer_ms), ascending);
    printf(", key answered in %.1f ms (median), %.1f ms (99 of 100), %.1f ms (worst of %d)\n", answer_ms[KEYS / 2],
           answer_ms[KEYS * 99 / 100], answer_ms[KEYS - 1], KEYS);
    long before = rss_kib(p.pid);
    enum {
        RESIZES = 2000,
    };
    for (int i = 0; i < RESIZES; i++) {
        pty_resize(&p, 20 + i * 7 % 180, 5 + i * 3 % 55);
        pty_read(&p, 4, 0);
    }
    printf("%dx%d: resident memory %.1f MiB, after %d resizes %.1f MiB\n", cols, rows, (double)before / 1024, RESIZES,
           (double)rss_kib(p.pid) / 1024);
    pty_finish(&p, 10, true);
    return 0;
}
