#include "protocol/base/clean_out.h"
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/utf8.h"

#define OUT_BYTES 4096
#define GROWN_BYTES 6    // "\u001b" for one character

struct clean {
    int fd;
    bool is_lasting;    // one of the process's own, which are not freed
    uint8_t held[8];    // the beginning of a character whose end has not come yet
    size_t n_held;
    uint8_t out[OUT_BYTES];
    size_t n_out;
};

bool terminal_obeys(uint32_t c)
{
    return (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0) || (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

static bool out_flush(struct clean *s)
{
    size_t done = 0;
    while (done < s->n_out) {
        ssize_t n = write(s->fd, s->out + done, s->n_out - done);
        if (n < 0 && errno != EINTR)
            break;
        done += n > 0 ? (size_t)n : 0;
    }
    bool ok = done == s->n_out;
    s->n_out = 0;
    return ok;
}

static bool one_add(struct clean *s, const uint8_t *p, int len)
{
    char text[GROWN_BYTES + 1];
    if (s->n_out + GROWN_BYTES > OUT_BYTES && !out_flush(s))
        return false;
    if (len < 0) {
        memcpy(s->out + s->n_out, "\xef\xbf\xbd", 3);
        s->n_out += 3;
    } else if (terminal_obeys(utf8_character(p, len))) {
        snprintf(text, sizeof text, "\\u%04x", utf8_character(p, len) & 0xffff);
        memcpy(s->out + s->n_out, text, GROWN_BYTES);
        s->n_out += GROWN_BYTES;
    } else {
        memcpy(s->out + s->n_out, p, (size_t)len);
        s->n_out += (size_t)len;
    }
    return true;
}

static ssize_t clean_write(void *cookie, const char *data, size_t size)
{
    struct clean *s = cookie;
    const uint8_t *p = (const uint8_t *)data;
    size_t at = 0;
    while (at < size) {
        uint8_t joined[sizeof s->held];
        size_t n_joined = s->n_held;
        memcpy(joined, s->held, n_joined);
        while (n_joined < 4 && s->n_held && at + n_joined - s->n_held < size) {    // what was held, and what follows it
            joined[n_joined] = p[at + n_joined - s->n_held];
            n_joined++;
        }
        const uint8_t *from = s->n_held ? joined : p + at;
        size_t left = s->n_held ? n_joined : size - at;
        int len = utf8_look(from, left);
        if (len == 0) {    // a valid start without its end: at most three bytes
            memcpy(s->held, from, left);
            s->n_held = left;
            break;
        }
        if (!one_add(s, from, len))
            return 0;
        size_t taken = (size_t)abs(len);
        at += taken > s->n_held ? taken - s->n_held : 0;
        s->n_held = 0;
    }
    return out_flush(s) ? (ssize_t)size : 0;
}

static int clean_close(void *cookie)
{
    struct clean *s = cookie;
    bool ok = !s->n_held || (one_add(s, s->held, -1) && out_flush(s));
    if (!s->is_lasting)
        free(s);
    return ok ? 0 : -1;
}

static FILE *stream_open(struct clean *s, int fd)
{
    FILE *f = fopencookie(s, "w", (cookie_io_functions_t){ .write = clean_write, .close = clean_close });
    s->fd = fd;
    if (f)
        setvbuf(f, NULL, isatty(fd) ? _IOLBF : _IOFBF, BUFSIZ);
    return f;
}

FILE *clean_stream(int fd)
{
    struct clean *s = calloc(1, sizeof *s);
    FILE *f = s ? stream_open(s, fd) : NULL;
    if (!f)
        free(s);
    return f;
}

bool clean_out_begin(struct error *err)
{
    /* static: a leak checker, which stands between stdio and them, does not see that stdio still has them at the end */
    static struct clean of_out = { .is_lasting = true }, of_notes = { .is_lasting = true };
    FILE *out = stream_open(&of_out, STDOUT_FILENO), *notes = stream_open(&of_notes, STDERR_FILENO);
    if (!out || !notes)
        return error_set(err, ERR_NO_MEMORY, "no memory to print");
    setvbuf(notes, NULL, _IONBF, 0);
    stdout = out;
    stderr = notes;
    return true;
}

bool line_print(FILE *out, const char *fmt, ...)
{
    va_list args;
    char *text;
    va_start(args, fmt);
    int len = vasprintf(&text, fmt, args);
    va_end(args);
    if (len < 0)
        return false;
    bool ok = true;
    for (const char *at = text; ok;) {
        size_t n = strcspn(at, "\n");
        ok = fwrite(at, 1, n, out) == n && fputs(at[n] ? "\\u000a" : "\n", out) >= 0;
        if (!at[n])
            break;
        at += n + 1;
    }
    free(text);
    return ok;
}
