/* The controller's log as wandb's output.log: "UTC-TIME text", errors with ERROR before the time, as the real client's lines. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "workers/export/wandb.h"

#define TAKE_MAX ((size_t)256 << 10)
#define LINE_MAX_BYTES 4096

/* A line without what drives a terminal: escape sequences (ECMA-48, CSI) and all before the last carriage return. */
static size_t line_clean(char *out, const char *line, size_t len)
{
    const char *shown = memrchr(line, '\r', len ? len - 1 : 0);
    size_t n = 0;
    if (shown) {
        len -= (size_t)(shown + 1 - line);
        line = shown + 1;
    }
    for (size_t i = 0; i < len && n < LINE_MAX_BYTES; i++) {
        if (line[i] == 27 && i + 1 < len && line[i + 1] == '[') {
            for (i += 2; i < len && !(line[i] >= 0x40 && line[i] <= 0x7e);)
                i++;
        } else if ((unsigned char)line[i] >= 32 || line[i] == '\t') {
            out[n++] = line[i];
        }
    }
    return n;
}

static void line_add(struct buf *out, int *n, const char *line, size_t len)
{
    char text[LINE_MAX_BYTES + 64];
    double now = clock_wall_s();
    time_t seconds = (time_t)now;
    struct tm tm;
    gmtime_r(&seconds, &tm);
    size_t at = memmem(line, MIN(len, (size_t)32), " ERROR ", 7) ? (size_t)snprintf(text, sizeof text, "ERROR ") : 0;
    at += strftime(text + at, sizeof text - at, "%Y-%m-%dT%H:%M:%S", &tm);
    at += (size_t)snprintf(text + at, sizeof text - at, ".%06d ", (int)((now - (double)seconds) * 1e6));
    at += line_clean(text + at, line, len);
    if ((*n)++)
        buf_char(out, ',');
    json_text_print(out, text, at);
}

void wandb_console_take(struct buf *out, int *n, const struct wandb_setup *s, struct wandb_cursor *c)
{
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof path, "%.4000s/logs/controller.log", s->run_dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *data = fd >= 0 ? malloc(TAKE_MAX) : NULL;
    if (data && fstat(fd, &st) == 0) {
        if (st.st_size < c->console_at)
            c->console_at = 0;    // a new file
        ssize_t got = pread(fd, data, TAKE_MAX, c->console_at);
        size_t at = 0, len = got > 0 ? (size_t)got : 0;
        for (char *end; at < len && (end = memchr(data + at, '\n', len - at)); at = (size_t)(end - data) + 1)
            line_add(out, n, data + at, (size_t)(end - data) - at);
        if (at == 0 && len == TAKE_MAX) {    // a line longer than any of ours
            line_add(out, n, data, len);
            at = len;
        }
        c->console_at += (int64_t)at;
        c->n_console += *n;
    }
    free(data);
    if (fd >= 0)
        close(fd);
}
