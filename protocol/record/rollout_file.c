#include "protocol/record/rollout_file.h"
#include <inttypes.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>
#include "protocol/base/file.h"

#define RECORD_LEVEL 3    // zstd's default; rollouts are text and ids, higher levels gain little and cost much

struct rollout_file {
    int fd;
    char *path;
    int64_t size_bytes;    // whole records end here, and so does the file
    ZSTD_CCtx *cctx;
    char *scratch;    // one compressed record
    size_t scratch_size;
};

static bool zstd_broken(struct error *err, const char *path, int64_t offset, const char *why)
{
    return error_set(err, ERR_DATA, "'%s' is damaged at byte %" PRId64 ": %s", path, offset, why);
}

/* How many bytes the one frame in data[0..size) says it holds; SIZE_MAX when it does not say, or says more than a record may have or
 * than its blocks can hold (RFC 8878: 3 bytes and more for at most 128 KiB), so that no damaged header is given memory. */
static size_t content_size(const uint8_t *data, size_t size)
{
    uint64_t content = ZSTD_getFrameContentSize(data, size);    // "unknown" and "error" are the largest values
    return content > ROLLOUT_RECORD_MAX || content > (uint64_t)(size / 3) << 17 ? SIZE_MAX : (size_t)content;
}

/* The compressed size of the record that starts at data, with its checksum verified; 0: there is no whole record. */
static size_t record_check(ZSTD_DCtx *dctx, const uint8_t *data, size_t len, struct buf *scratch)
{
    size_t size = ZSTD_findFrameCompressedSize(data, len);
    if (ZSTD_isError(size))
        return 0;
    size_t content = content_size(data, size);
    if (content == SIZE_MAX)
        return 0;
    buf_clear(scratch);
    char *out = buf_reserve(scratch, content);
    if (!out || ZSTD_decompressDCtx(dctx, out, content, data, size) != content)
        return 0;
    scratch->len = content;
    return size;
}

/* Where the first whole record at or after `from` begins in map; the end of the map when there is none. */
static size_t record_find(ZSTD_DCtx *dctx, const struct file_map *map, size_t from, struct buf *scratch)
{
    static const uint8_t magic[4] = { 0x28, 0xb5, 0x2f, 0xfd };
    for (size_t at = from; at + sizeof magic <= map->size_bytes; at++) {
        const uint8_t *found = memmem(map->data + at, map->size_bytes - at, magic, sizeof magic);
        if (!found)
            break;
        at = (size_t)(found - map->data);
        if (record_check(dctx, found, map->size_bytes - at, scratch) > 0)
            return at;
    }
    return map->size_bytes;
}

/* Where the last whole record at or after start ends in map. A broken place followed by a whole record is damage and is skipped;
 * without one it is a torn tail. */
static bool records_scan(const struct file_map *map, const char *path, int64_t start, struct rollout_opened *o, struct error *err)
{
    struct buf scratch = { .max = ROLLOUT_RECORD_MAX + 1 };
    ZSTD_DCtx *dctx = ZSTD_createDCtx();
    size_t at = (size_t)start, end = at, size;
    if (!dctx)
        return error_set(err, ERR_NO_MEMORY, "no memory to check '%s'", path);
    while (at < map->size_bytes) {
        if ((size = record_check(dctx, map->data + at, map->size_bytes - at, &scratch)) > 0) {
            o->damaged_bytes += (int64_t)(at - end);
            end = at += size;
            o->n_record++;
        } else {
            at = record_find(dctx, map, at + 1, &scratch);
        }
    }
    o->size_bytes = (int64_t)end;
    o->cut_bytes = (int64_t)(map->size_bytes - end);
    ZSTD_freeDCtx(dctx);
    buf_release(&scratch);
    return true;
}

/* Sync the folder, so that the file's name survives a power cut too. */
static bool parent_sync(const char *path, struct error *err)
{
    char *dir = strdup(path), *slash = dir ? strrchr(dir, '/') : NULL;
    if (slash)
        slash[slash == dir] = 0;
    bool ok = dir ? dir_sync(slash ? dir : ".", err) : error_set(err, ERR_NO_MEMORY, "no memory to open '%s'", path);
    free(dir);
    return ok;
}

struct rollout_file *rollout_file_open(const char *path, int64_t known_size, struct rollout_opened *opened, struct error *err)
{
    struct rollout_opened o = { 0 };
    struct file_map map = { 0 };
    bool ok = false;
    struct rollout_file *f = calloc(1, sizeof *f);
    if (!f || !(f->path = strdup(path)) || !(f->cctx = ZSTD_createCCtx())) {
        error_set(err, ERR_NO_MEMORY, "no memory to open '%s'", path);
        if (f)
            f->fd = -1;
        goto out;
    }
    ZSTD_CCtx_setParameter(f->cctx, ZSTD_c_checksumFlag, 1);
    ZSTD_CCtx_setParameter(f->cctx, ZSTD_c_compressionLevel, RECORD_LEVEL);
    f->fd = file_create(path, O_RDWR, 0644, err);
    if (f->fd < 0)
        goto out;
    TRY(file_map_open(&map, path, err));
    if (map.size_bytes == 0)
        TRY(parent_sync(path, err));
    bool is_short = (int64_t)map.size_bytes < known_size;
    o.lost_bytes = is_short ? known_size - (int64_t)map.size_bytes : 0;
    TRY(records_scan(&map, path, is_short ? 0 : known_size, &o, err));
    if (o.cut_bytes > 0 && ftruncate(f->fd, o.size_bytes) != 0) {
        error_errno(err, "cannot cut the broken end off '%s'", path);
        goto out;
    }
    if (lseek(f->fd, o.size_bytes, SEEK_SET) < 0) {
        error_errno(err, "cannot append to '%s'", path);
        goto out;
    }
    f->size_bytes = o.size_bytes;
    if (opened)
        *opened = o;
    ok = true;
out:
    file_map_close(&map);
    if (!ok) {
        rollout_file_close(f);
        f = NULL;
    }
    return f;
}

void rollout_file_close(struct rollout_file *f)
{
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    ZSTD_freeCCtx(f->cctx);
    free(f->scratch);
    free(f->path);
    free(f);
}

bool rollout_file_append(struct rollout_file *f, const void *data, size_t len, int64_t *offset, int64_t *size_bytes, struct error *err)
{
    if (len > ROLLOUT_RECORD_MAX)
        return error_set(err, ERR_SHAPE, "a rollout record of %zu bytes is larger than the %zu allowed", len, ROLLOUT_RECORD_MAX);
    size_t bound = ZSTD_compressBound(len);
    if (bound > f->scratch_size) {
        char *grown = realloc(f->scratch, bound);
        if (!grown)
            return error_set(err, ERR_NO_MEMORY, "no memory for a rollout record of %zu bytes", len);
        f->scratch = grown;
        f->scratch_size = bound;
    }
    size_t size = ZSTD_compress2(f->cctx, f->scratch, f->scratch_size, data, len);
    if (ZSTD_isError(size))
        return error_set(err, ERR_INTERNAL, "cannot compress a rollout record: %s", ZSTD_getErrorName(size));
    for (size_t done = 0; done < size;) {
        ssize_t n = pwrite(f->fd, f->scratch + done, size - done, f->size_bytes + (int64_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            error_errno(err, "cannot append to '%s'", f->path);
            // what was written lies after size_bytes: the next append overwrites it, the next open cuts it
            if (ftruncate(f->fd, f->size_bytes) != 0)
                error_wrap(err, "and the piece written could not be removed");
            return false;
        }
        done += (size_t)n;
    }
    *offset = f->size_bytes;
    *size_bytes = (int64_t)size;
    f->size_bytes += (int64_t)size;
    return true;
}

bool rollout_file_cut(struct rollout_file *f, int64_t size_bytes, struct error *err)
{
    if (ftruncate(f->fd, size_bytes) != 0)
        return error_errno(err, "cannot cut '%s' to %" PRId64 " bytes", f->path, size_bytes);
    f->size_bytes = size_bytes;
    return true;
}

bool rollout_file_sync(struct rollout_file *f, struct error *err)
{
    if (fdatasync(f->fd) != 0)
        return error_errno(err, "cannot sync '%s'", f->path);
    return true;
}

struct rollout_reader {
    struct file_map map;
    char *path;
    size_t at;
    ZSTD_DCtx *dctx;
};

struct rollout_reader *rollout_reader_new(const char *path, struct error *err)
{
    struct rollout_reader *r = calloc(1, sizeof *r);
    if (!r || !(r->path = strdup(path)) || !(r->dctx = ZSTD_createDCtx())) {
        error_set(err, ERR_NO_MEMORY, "no memory to read '%s'", path);
        rollout_reader_free(r);
        return NULL;
    }
    if (!file_map_open(&r->map, path, err)) {
        rollout_reader_free(r);
        return NULL;
    }
    return r;
}

void rollout_reader_free(struct rollout_reader *r)
{
    if (!r)
        return;
    file_map_close(&r->map);
    ZSTD_freeDCtx(r->dctx);
    free(r->path);
    free(r);
}

/* Unpack the one frame in data[0..size) and append it to out. */
static bool record_unpack(ZSTD_DCtx *dctx, const uint8_t *data, size_t size, const char *path, int64_t offset, struct buf *out,
                          struct error *err)
{
    size_t content = content_size(data, size);
    if (content == SIZE_MAX)
        return zstd_broken(err, path, offset, "the record does not say its size, or is too large");
    char *to = buf_reserve(out, content);
    if (!to)
        return error_set(err, ERR_NO_MEMORY, "no memory for a record of %zu bytes of '%s'", content, path);
    size_t n = ZSTD_decompressDCtx(dctx, to, content, data, size);
    if (ZSTD_isError(n) || n != content)
        return zstd_broken(err, path, offset, ZSTD_isError(n) ? ZSTD_getErrorName(n) : "the record is shorter than it says");
    out->len += n;
    out->data[out->len] = 0;
    return true;
}

bool rollout_reader_next(struct rollout_reader *r, struct buf *out, bool *more, struct error *err)
{
    buf_clear(out);
    *more = false;
    if (r->at >= r->map.size_bytes)
        return true;
    const uint8_t *data = r->map.data + r->at;
    size_t left = r->map.size_bytes - r->at, size = ZSTD_findFrameCompressedSize(data, left);
    bool ok = !ZSTD_isError(size) && record_unpack(r->dctx, data, size, r->path, (int64_t)r->at, out, err);
    if (!ok && !ZSTD_isError(size) && err->code != ERR_DATA)
        return false;
    if (ok) {
        r->at += size;
        *more = true;
        return true;
    }
    static const uint8_t magic[4] = { 0x28, 0xb5, 0x2f, 0xfd };
    struct buf scratch = { .max = ROLLOUT_RECORD_MAX + 1 };
    size_t damaged = r->at;
    r->at = record_find(r->dctx, &r->map, damaged + 1, &scratch);
    buf_release(&scratch);
    if (ZSTD_isError(size) && r->at == r->map.size_bytes && memcmp(data, magic, MIN(left, sizeof magic)) == 0)    // cut short
        return true;
    return !ZSTD_isError(size) ? false : zstd_broken(err, r->path, (int64_t)damaged, "no record starts there");
}

bool rollout_file_read(const char *path, int64_t offset, int64_t size_bytes, struct buf *out, struct error *err)
{
    struct file_map map = { 0 };
    bool ok = false;
    ZSTD_DCtx *dctx = ZSTD_createDCtx();
    if (!dctx) {
        error_set(err, ERR_NO_MEMORY, "no memory to read '%s'", path);
        goto out;
    }
    TRY(file_map_open(&map, path, err));
    if (offset < 0 || size_bytes <= 0 || (uint64_t)offset > map.size_bytes || (uint64_t)size_bytes > map.size_bytes - (uint64_t)offset) {
        error_set(err, ERR_DATA, "'%s' of %zu bytes has no record of %" PRId64 " bytes at byte %" PRId64, path, map.size_bytes, size_bytes,
                  offset);
        goto out;
    }
    TRY(record_unpack(dctx, map.data + offset, (size_t)size_bytes, path, offset, out, err));
    ok = true;
out:
    file_map_close(&map);
    ZSTD_freeDCtx(dctx);
    return ok;
}
