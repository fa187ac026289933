/* logtail.c - see logtail.h */
#include "console/fleet/logtail.h"
#include <inttypes.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/buf.h"
#include "protocol/base/file.h"

#define FILES_MAX 64
#define CHUNK_BYTES (64 << 10)
#define FIRST_BYTES (16 << 10)
#define STAMP 23    // "2026-11-21T22:33:50.123": lines are sorted by it

struct tail_file {
    char name[64];
    int64_t at;    // read so far
};
struct tail_line {
    const char *text;    // in struct logtail.text
    size_t len;
    int file, order;
};
struct logtail {
    char dir[4096];
    struct tail_file file[FILES_MAX];
    int n_file;
    char *text;    // FILES_MAX chunks would be 4 MiB: use one buffer that grows as needed
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

static struct tail_file *file_find(struct logtail *t, const char *name)
{
    for (int i = 0; i < t->n_file; i++)
        if (strcmp(t->file[i].name, name) == 0)
            return &t->file[i];
    if (t->n_file == FILES_MAX || strlen(name) >= sizeof(t->file[0].name))
        return NULL;
    struct tail_file *f = &t->file[t->n_file++];
    *f = (struct tail_file){ .at = -1 };
    snprintf(f->name, sizeof(f->name), "%s", name);
    return f;
}

/* Read whole new lines of a file into text; *skipped: bytes left out before them. */
static size_t file_take(struct logtail *t, struct tail_file *f, char *text, size_t room, int64_t *skipped)
{
    char path[4200];
    struct stat st;
    *skipped = 0;
    if (!path_join(path, sizeof(path), t->dir, f->name))
        return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        if (fd >= 0)
            close(fd);
        return 0;
    }
    bool first = f->at < 0;
    if (first || st.st_size < f->at)
        f->at = first && st.st_size > FIRST_BYTES ? st.st_size - FIRST_BYTES : 0;
    bool cut = first && f->at > 0;    // starts inside a line
    if (st.st_size - f->at > (int64_t)room) {
        *skipped = st.st_size - (int64_t)room - f->at;
        f->at += *skipped;
        cut = true;
    }
    ssize_t n = pread(fd, text, room, f->at);
    close(fd);
    if (n <= 0)
        return 0;
    char *end = memrchr(text, '\n', (size_t)n);
    if (!end)
        return 0;
    size_t len = (size_t)(end - text) + 1;
    f->at += (int64_t)len;
    if (cut) {
        char *start = memchr(text, '\n', len);
        size_t drop = (size_t)(start - text) + 1;
        memmove(text, text + drop, len - drop);
        len -= drop;
    }
    return len;
}

static int line_order(const void *a, const void *b)
{
    const struct tail_line *x = a, *y = b;
    int by_time = x->len >= STAMP && y->len >= STAMP ? memcmp(x->text, y->text, STAMP) : 0;
    return by_time ? by_time : x->order - y->order;
}

void logtail_pump(struct logtail *t, struct model *m)
{
    DIR *d = opendir(t->dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        size_t n = strlen(e->d_name);
        if (n > 4 && strcmp(e->d_name + n - 4, ".log") == 0)
            (void)file_find(t, e->d_name);    // from now on the file is known
    }
    if (d)
        closedir(d);
    if (!t->text) {
        t->cap = CHUNK_BYTES;
        t->text = malloc(t->cap);
        if (!t->text)
            return;
    }
    static const size_t lines_max = 4096;
    struct tail_line *line = calloc(lines_max, sizeof(*line));
    size_t n_line = 0, used = 0, start[FILES_MAX + 1];
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
        used += file_take(t, &t->file[i], t->text + used, CHUNK_BYTES, &skipped);
        start[i + 1] = used;
        if (skipped > 0) {
            char note[96];
            int n = snprintf(note, sizeof(note), "%" PRId64 " bytes of %s are skipped: it grows too fast", skipped, t->file[i].name);
            model_log(m, "console", note, (size_t)n);
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
        model_log(m, proc, line[i].text, line[i].len);
    }
    free(line);
}
