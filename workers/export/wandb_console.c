/* The controller's log as wandb's output.log: "UTC-TIME text", errors with ERROR before the time, like the real client's lines. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/json_text.h"
#include "workers/export/wandb.h"

#define TAKE_MAX ((size_t)256 << 10)
#define LINE_MAX_BYTES 4096

/* A line without terminal control: escape sequences (ECMA-48, CSI) and everything before the last carriage return are removed. */
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

static bool line_hand(wandb_console_fn *fn, void *arg, const char *line, size_t len)
{
    char text[LINE_MAX_BYTES];
    bool is_error = memmem(line, MIN(len, (size_t)32), " ERROR ", 7) != NULL;
    size_t n = line_clean(text, line, len);
    return fn(arg, text, n, is_error, clock_wall_s());
}

int wandb_console_each(const struct wandb_setup *s, struct wandb_cursor *c, wandb_console_fn *fn, void *arg)
{
    int n = 0;
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
        bool on = true;
        for (char *end; on && at < len && (end = memchr(data + at, '\n', len - at)); n += on) {
            on = line_hand(fn, arg, data + at, (size_t)(end - data) - at);
            at = on ? (size_t)(end - data) + 1 : at;
        }
        if (on && at == 0 && len == TAKE_MAX && line_hand(fn, arg, data, len)) {    // longer than any line of ours
            at = len;
            n++;
        }
        c->console_at += (int64_t)at;
        c->n_console += n;
    }
    free(data);
    if (fd >= 0)
        close(fd);
    return n;
}

struct console_lines {
    struct buf *out, text;
    int n;
    bool structured;
};

static bool line_add(void *arg, const char *text, size_t len, bool is_error, double wall_s)
{
    struct console_lines *l = arg;
    char when[64];
    time_t seconds = (time_t)wall_s;
    struct tm tm;
    gmtime_r(&seconds, &tm);
    size_t n = strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(when + n, sizeof when - n, ".%06d", (int)((wall_s - (double)seconds) * 1e6));
    buf_clear(&l->text);
    if (l->structured) {
        buf_fmt(&l->text, "{%s\"ts\":\"%s\",\"content\":", is_error ? "\"level\":\"error\"," : "", when);
        json_text_print(&l->text, text, len, JSON_TEXT_UTF8);
        buf_char(&l->text, '}');
    } else {
        buf_fmt(&l->text, "%s%s ", is_error ? "ERROR " : "", when);
        buf_add(&l->text, text, len);
    }
    if (l->n++)
        buf_char(l->out, ',');
    json_text_print(l->out, buf_text(&l->text), l->text.len, JSON_TEXT_UTF8);
    return true;
}

void wandb_console_take(struct buf *out, int *n, const struct wandb_setup *s, bool structured, struct wandb_cursor *c)
{
    struct console_lines l = { .out = out, .text = BUF_INIT, .structured = structured };
    wandb_console_each(s, c, line_add, &l);
    *n += l.n;
    buf_release(&l.text);
}
