#include "workers/harness/record.h"
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/buf.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"

#define RECORDS_MAX 16384                         // files
#define RECORDS_BYTES_MAX ((int64_t)256 << 20)    // of all
#define RECORD_BYTES_MAX ((size_t)32 << 20)       // of one; a longer session has none, and is played again where it must be

struct entry {
    int64_t item, sample, n_byte;
};
struct records {
    char dir[4096];
    struct entry *entry;    // (n) owned
    int64_t n, cap, n_byte;
};

static bool record_path(const struct records *r, int64_t item, int64_t sample, char *out, size_t size)
{
    return snprintf(out, size, "%s/%" PRId64 ".%" PRId64, r->dir, item, sample) < (int)size;
}

static struct entry *entry_find(struct records *r, int64_t item, int64_t sample)
{
    for (int64_t i = 0; i < r->n; i++)
        if (r->entry[i].item == item && r->entry[i].sample == sample)
            return &r->entry[i];
    return NULL;
}

static void entry_remove(struct records *r, struct entry *e)
{
    char path[4200];
    if (record_path(r, e->item, e->sample, path, sizeof path))
        unlink(path);
    r->n_byte -= e->n_byte;
    *e = r->entry[--r->n];
}

static bool entry_add(struct records *r, int64_t item, int64_t sample, int64_t n_byte)
{
    if (r->n == r->cap) {
        int64_t cap = MAX(2 * r->cap, (int64_t)64);
        struct entry *more = realloc(r->entry, (size_t)cap * sizeof *more);
        if (!more)
            return false;
        r->entry = more;
        r->cap = cap;
    }
    r->entry[r->n++] = (struct entry){ .item = item, .sample = sample, .n_byte = n_byte };
    r->n_byte += n_byte;
    return true;
}

/* Items come in order, so those of the lowest are with the controller. */
static void oldest_drop(struct records *r)
{
    while (r->n > RECORDS_MAX || (r->n > 1 && r->n_byte > RECORDS_BYTES_MAX)) {
        struct entry *low = &r->entry[0];
        for (int64_t i = 1; i < r->n; i++)
            if (r->entry[i].item < low->item)
                low = &r->entry[i];
        entry_remove(r, low);
    }
}

struct records *records_new(const char *dir, struct error *err)
{
    struct records *r = calloc(1, sizeof *r);
    if (!r || strlen(dir) >= sizeof r->dir) {
        error_set(err, ERR_NO_MEMORY, "no memory for the sessions in '%s'", dir);
        free(r);
        return NULL;
    }
    snprintf(r->dir, sizeof r->dir, "%s", dir);
    DIR *d = dir_make(dir, 0700, err) ? opendir(dir) : NULL;
    if (!d) {
        if (path_is_dir(dir))
            error_errno(err, "cannot read the folder '%s'", dir);
        free(r);
        return NULL;
    }
    for (struct dirent *e; (e = readdir(d));) {
        int64_t item, sample;
        char rest;
        struct stat s;
        char path[4400];
        if (sscanf(e->d_name, "%" SCNd64 ".%" SCNd64 "%c", &item, &sample, &rest) != 2)
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (stat(path, &s) == 0 && S_ISREG(s.st_mode) && !entry_add(r, item, sample, s.st_size))
            log_warn("no memory to look after the session in '%s'", path);
    }
    closedir(d);
    oldest_drop(r);
    return r;
}

void records_free(struct records *r)
{
    if (r)
        free(r->entry);
    free(r);
}

bool records_put(struct records *r, int64_t item, int64_t sample, const json_t *record, struct error *err)
{
    char path[4200];
    if (!r || !record_path(r, item, sample, path, sizeof path))
        return true;
    char *text = json_text_dump(record, JSON_COMPACT);
    size_t len = text ? strlen(text) : 0;
    bool ok = text || error_set(err, ERR_NO_MEMORY, "no memory for a session's record");
    if (ok && len > RECORD_BYTES_MAX) {
        log_warn("the session of item %" PRId64 ", sample %" PRId64 ", is too long to be kept (%zu bytes)", item, sample, len);
    } else if (ok && (ok = file_write_secret(path, text, len, err))) {
        struct entry *old = entry_find(r, item, sample);
        if (old) {
            r->n_byte += (int64_t)len - old->n_byte;
            old->n_byte = (int64_t)len;
        } else if (!entry_add(r, item, sample, (int64_t)len)) {
            log_warn("no memory to look after the session in '%s'", path);
        }
        oldest_drop(r);
    }
    free(text);
    return ok;
}

json_t *records_get(struct records *r, int64_t item, int64_t sample)
{
    char path[4200];
    struct error err;
    struct buf text = BUF_INIT;
    json_t *o = NULL;
    if (!r || !record_path(r, item, sample, path, sizeof path) || !path_exists(path))    // another scorer may have written it
        return NULL;
    if (file_read(&text, path, RECORD_BYTES_MAX, &err))
        o = json_text_read(buf_text(&text), text.len, JSON_ALLOW_NUL, NULL);
    if (!json_is_object(o)) {
        log_warn("the session in '%s' cannot be read and is played again", path);
        json_decref(o);
        o = NULL;
    }
    buf_release(&text);
    return o;
}

void records_drop(struct records *r, int64_t item, int64_t sample)
{
    char path[4200];
    struct entry *e = r ? entry_find(r, item, sample) : NULL;
    if (e)
        entry_remove(r, e);
    else if (r && record_path(r, item, sample, path, sizeof path))
        unlink(path);
}
