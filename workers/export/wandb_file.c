/* The .wandb file: a 7-byte header, then 32 KiB blocks counted from the file's beginning, filled with chunks as in LevelDB's log
 * but with a plain CRC-32 (zlib's) over the type byte and the payload. Chunk: crc u32, length u16, type u8 (1 full, 2 first,
 * 3 middle, 4 last), payload. When fewer than 7 bytes are left in a block, it is filled with zeros. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include "protocol/base/file.h"
#include "workers/export/wandb.h"

#define BLOCK 32768
#define CHUNK_HEAD 7

struct wandb_file {
    int fd;
    int64_t at;    // bytes written
    int64_t n_record;
    struct buf record, chunks;
    char path[1024];
};

void pb_varint(struct buf *b, uint64_t v)
{
    for (; v >= 128; v >>= 7)
        buf_char(b, (char)(v | 128));
    buf_char(b, (char)v);
}

void pb_int(struct buf *b, int field, int64_t v)
{
    pb_varint(b, (uint64_t)field << 3);
    pb_varint(b, (uint64_t)v);
}

void pb_bytes(struct buf *b, int field, const void *data, size_t len)
{
    pb_varint(b, (uint64_t)field << 3 | 2);
    pb_varint(b, len);
    buf_add(b, data, len);
}

void pb_text(struct buf *b, int field, const char *text)
{
    pb_bytes(b, field, text, strlen(text));
}

static void chunk_add(struct wandb_file *f, unsigned char type, const char *data, size_t len)
{
    unsigned char head[CHUNK_HEAD];
    uLong crc = crc32(crc32(0, &type, 1), (const Bytef *)data, (uInt)len);
    for (int i = 0; i < 4; i++)
        head[i] = (unsigned char)(crc >> (8 * i));
    head[4] = (unsigned char)len;
    head[5] = (unsigned char)(len >> 8);
    head[6] = type;
    buf_add(&f->chunks, head, sizeof head);
    buf_add(&f->chunks, data, len);
}

static bool chunks_write(struct wandb_file *f, struct error *err)
{
    if (f->chunks.failed)
        return error_set(err, ERR_NO_MEMORY, "no memory for '%s'", f->path);
    for (size_t at = 0; at < f->chunks.len;) {
        ssize_t n = write(f->fd, f->chunks.data + at, f->chunks.len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(err, "cannot write '%s'", f->path);
        at += (size_t)n;
    }
    f->at += (int64_t)f->chunks.len;
    buf_clear(&f->chunks);
    return true;
}

struct wandb_file *wandb_file_new(const char *path, struct error *err)
{
    static const unsigned char head[] = { 0x3a, 0x57, 0x26, 0x42, 0xe1, 0xbe, 0x00 };
    struct wandb_file *f = calloc(1, sizeof *f);
    if (!f) {
        error_set(err, ERR_NO_MEMORY, "no memory for '%s'", path);
        return NULL;
    }
    snprintf(f->path, sizeof f->path, "%s", path);
    f->fd = file_create(path, O_WRONLY | O_EXCL, 0644, err);
    buf_add(&f->chunks, head, sizeof head);
    if (f->fd < 0 || !chunks_write(f, err)) {
        wandb_file_close(f);
        return NULL;
    }
    return f;
}

bool wandb_file_add(struct wandb_file *f, int field, const struct buf *message, const struct buf *extra, struct error *err)
{
    buf_clear(&f->record);
    pb_int(&f->record, 1, ++f->n_record);
    pb_bytes(&f->record, field, buf_text(message), message->len);
    if (extra)
        buf_add(&f->record, buf_text(extra), extra->len);
    if (f->record.failed || message->failed)
        return error_set(err, ERR_NO_MEMORY, "no memory for '%s'", f->path);
    const char *data = f->record.data;
    size_t left = f->record.len;
    bool first = true;
    do {
        size_t room = BLOCK - (size_t)((f->at + (int64_t)f->chunks.len) % BLOCK);
        if (room < CHUNK_HEAD) {
            buf_add(&f->chunks, "\0\0\0\0\0\0", room);
            continue;
        }
        size_t n = MIN(left, room - CHUNK_HEAD);
        bool last = n == left;
        chunk_add(f, first ? (last ? 1 : 2) : last ? 4 : 3, data, n);
        data += n;
        left -= n;
        first = false;
    } while (left > 0);
    return chunks_write(f, err);
}

bool wandb_file_sync(struct wandb_file *f, struct error *err)
{
    return fdatasync(f->fd) == 0 || error_errno(err, "cannot sync '%s'", f->path);
}

void wandb_file_close(struct wandb_file *f)
{
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    buf_release(&f->record);
    buf_release(&f->chunks);
    free(f);
}
