/* logtail.c - see logtail.h */
#include "console/fleet/logtail.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/run/log_places.h"

#define CHUNK_BYTES (64 << 10)
#define STAMP 23    // "2026-11-21T22:33:50.123": lines are sorted by it

struct tail_line {
    const char *text;    // in struct logtail.text
    size_t len;
    int file, order;
};
struct logtail {
    char dir[4096];
    struct log_place file[LOG_PLACES];
    int n_file;
    char *text;    // LOG_PLACES chunks would be 4 MiB: use one buffer that grows as needed
    size_t cap;
};

struct logtail *logtail_new(const char *dir, struct error *err)
{
    struct logtail *t = calloc(1, sizeof(*t));
    if (!t || snprintf(t->dir, sizeof(t->dir), "%s", dir) >= (int)sizeof(t->dir)) {
        free(t);
        error_set(err, ERR_NO_MEMORY, "no memory to follow the logs in '%.200s'", dir);
        return NULL;
    }
    return t;
}

void logtail_free(struct logtail *t)
{
    if (!t)
        return;
    free(t->text);
    free(t);
}

static int line_order(const void *a, const void *b)
{
    const struct tail_line *x = a, *y = b;
    int by_time = x->len >= STAMP && y->len >= STAMP ? memcmp(x->text, y->text, STAMP) : 0;
    return by_time ? by_time : x->order - y->order;
}

void logtail_pump(struct logtail *t, struct run_view *m)
{
    log_places_look(t->dir, t->file, &t->n_file);
    if (!t->text) {
        t->cap = CHUNK_BYTES;
        t->text = malloc(t->cap);
        if (!t->text)
            return;
    }
    static const size_t lines_max = 4096;
    struct tail_line *line = calloc(lines_max, sizeof(*line));
    size_t n_line = 0, used = 0, start[LOG_PLACES + 1];
    for (int i = 0; i < t->n_file; i++) {
        int64_t skipped;
        if (t->cap - used < CHUNK_BYTES) {
            char *more = realloc(t->text, t->cap + CHUNK_BYTES);
            if (!more)
                break;
            t->text = more;
            t->cap += CHUNK_BYTES;
        }
        start[i] = used;
        used += log_place_read(t->dir, &t->file[i], t->text + used, CHUNK_BYTES, &skipped);
        start[i + 1] = used;
        if (skipped > 0) {
            char note[96];
            int n = snprintf(note, sizeof(note), "%" PRId64 " bytes of %s are skipped: it grows too fast", skipped, t->file[i].name);
            view_log(m, "console", note, (size_t)n);
        }
    }
    for (int i = 0; line && i < t->n_file && used > 0; i++)    // only now, since the text no longer moves
        for (size_t at = start[i]; at < start[i + 1] && n_line < lines_max;) {
            const char *end = memchr(t->text + at, '\n', used - at);
            size_t len = end ? (size_t)(end - t->text) - at : used - at;
            line[n_line] = (struct tail_line){ t->text + at, len, i, (int)n_line };
            n_line++;
            at += len + 1;
        }
    qsort(line, n_line, sizeof(*line), line_order);
    for (size_t i = 0; i < n_line; i++) {
        char proc[64];
        snprintf(proc, sizeof(proc), "%.*s", (int)strlen(t->file[line[i].file].name) - 4, t->file[line[i].file].name);
        view_log(m, proc, line[i].text, line[i].len);
    }
    free(line);
}
