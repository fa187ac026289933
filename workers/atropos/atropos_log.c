#include "workers/atropos/atropos_log.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include <zlib.h>
#include "protocol/base/file.h"
#include "protocol/base/log.h"

#define SEGMENT_BYTES ((int64_t)64 << 20)    // then a new one begins
#define SPARSE 4                             // a segment of which less than 1/SPARSE still waits is copied away
#define COPY_GROUPS 64                       // in one record
#define RESERVE_BYTES (1 << 20)
#define PIECES 1000    // of one writev; at most IOV_MAX

struct record_head {
    char magic[4];                  // "rcA2"
    uint32_t kind, n_group, crc;    // crc: of kind, n_group, len and what follows
    uint64_t len;                   // of what follows
};
struct group_head {
    int64_t id, n_seq, env_id, version;
    uint64_t len;    // of its text, which follows
};
struct segment {
    int64_t number, size_bytes;
    int64_t live_bytes, n_live;    // groups that wait
    int64_t cut_bytes;             // at its end, which a kill left
    bool is_damaged;
};
struct atropos_log {
    char dir[PATH_MAX - 64];
    int lock_fd, fd;            // fd: the newest segment; -1: none yet
    struct segment *segment;    // (n_segment) ascending; the last one is the newest
    int64_t n_segment, cap;
    bool is_full;      // the last record found no space
    bool is_broken;    // the disk failed in a way that leaves the newest segment's end unknown
};

static void segment_path(const struct atropos_log *l, int64_t number, const char *suffix, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/%08" PRId64 ".log%s", l->dir, number, suffix);
}

static struct segment *segment_find(const struct atropos_log *l, int64_t number)
{
    for (int64_t i = 0; i < l->n_segment; i++)
        if (l->segment[i].number == number)
            return &l->segment[i];
    return NULL;
}

static bool segment_add(struct atropos_log *l, int64_t number, struct error *err)
{
    if (l->n_segment == l->cap) {
        int64_t cap = MAX(2 * l->cap, 16);
        struct segment *grown = realloc(l->segment, (size_t)cap * sizeof *grown);
        if (!grown)
            return error_set(err, ERR_NO_MEMORY, "no memory for the segments of '%s'", l->dir);
        l->segment = grown;
        l->cap = cap;
    }
    l->segment[l->n_segment++] = (struct segment){ .number = number };
    return true;
}

/* ---- space that is kept */
static void reserve_path(const struct atropos_log *l, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/reserve", l->dir);
}

/* False: there is no space for it. */
static bool reserve_make(const struct atropos_log *l)
{
    char path[PATH_MAX];
    struct stat st;
    struct error ignored;
    reserve_path(l, path);
    if (lstat(path, &st) == 0 && st.st_size == RESERVE_BYTES)
        return true;
    int fd = file_create(path, O_WRONLY, 0600, &ignored);
    bool ok = fd >= 0 && posix_fallocate(fd, 0, RESERVE_BYTES) == 0;
    if (fd >= 0)
        close(fd);
    if (!ok)
        unlink(path);
    return ok;
}

/* Give the space to what is written next. False: it has been given already. */
static bool reserve_give(const struct atropos_log *l)
{
    char path[PATH_MAX];
    reserve_path(l, path);
    if (unlink(path) != 0)
        return false;
    log_warn("the disk of '%s' is full: no groups are taken until some were handed out, or there is space", l->dir);
    return true;
}

static bool is_no_space(int why)
{
    return why == ENOSPC || why == EDQUOT;
}

/* ---- writing */
static uint32_t head_crc(const struct record_head *h)
{
    uint32_t c = (uint32_t)crc32(0, (const Bytef *)&h->kind, sizeof h->kind + sizeof h->n_group);
    return (uint32_t)crc32(c, (const Bytef *)&h->len, sizeof h->len);
}

static bool pieces_write(int fd, struct iovec *v, int64_t n, struct error *err)
{
    for (int64_t at = 0; at < n;) {
        ssize_t did = writev(fd, v + at, (int)MIN(n - at, PIECES));
        if (did < 0 && errno == EINTR)
            continue;
        if (did < 0)
            return error_errno(err, "posted groups cannot be written");
        while (at < n && (size_t)did >= v[at].iov_len)
            did -= (ssize_t)v[at++].iov_len;
        if (at < n) {
            v[at].iov_base = (char *)v[at].iov_base + did;
            v[at].iov_len -= (size_t)did;
        }
    }
    return true;
}

/* Append one record of groups to fd, whose size is *size. */
static bool groups_write(int fd, int64_t *size, enum atropos_record kind, struct scored *const *g, int64_t n, struct error *err)
{
    struct record_head h = { .magic = "rcA2", .kind = kind, .n_group = (uint32_t)n };
    struct group_head *head = calloc((size_t)n, sizeof *head);
    struct iovec *v = calloc((size_t)(2 * n + 1), sizeof *v);
    bool ok = false;
    if (!head || !v) {
        error_set(err, ERR_NO_MEMORY, "no memory to write posted groups");
        goto out;
    }
    v[0] = (struct iovec){ &h, sizeof h };
    for (int64_t i = 0; i < n; i++) {
        head[i] = (struct group_head){ g[i]->id, g[i]->n_seq, g[i]->env_id, g[i]->version, g[i]->len };
        v[2 * i + 1] = (struct iovec){ &head[i], sizeof head[i] };
        v[2 * i + 2] = (struct iovec){ g[i]->text, g[i]->len };
        h.len += sizeof head[i] + g[i]->len;
    }
    h.crc = head_crc(&h);
    for (int64_t i = 1; i <= 2 * n; i++)
        h.crc = (uint32_t)crc32(h.crc, v[i].iov_base, (uInt)v[i].iov_len);
    TRY(pieces_write(fd, v, 2 * n + 1, err));
    *size += (int64_t)(sizeof h + h.len);
    ok = true;
    int why;
out:
    why = errno;
    free(head);
    free(v);
    errno = why;
    return ok;
}

static bool text_write(int fd, int64_t *size, enum atropos_record kind, const struct buf *text, struct error *err)
{
    struct record_head h = { .magic = "rcA2", .kind = kind, .len = text->len };
    struct iovec v[] = { { &h, sizeof h }, { text->data, text->len } };
    h.crc = (uint32_t)crc32(head_crc(&h), (const Bytef *)text->data, (uInt)text->len);
    if (!pieces_write(fd, v, 2, err))
        return false;
    *size += (int64_t)(sizeof h + h.len);
    return true;
}

/* The last record is whole, or cut off again. */
static bool record_end(struct atropos_log *l, bool ok, bool sync, int64_t before, struct error *err)
{
    struct segment *s = &l->segment[l->n_segment - 1];
    if (ok && sync && fdatasync(l->fd) != 0) {
        error_errno(err, "the disk does not keep posted groups");
        l->is_broken = true;    // what a failed sync leaves behind is unknown
        return false;
    }
    if (!ok) {
        s->size_bytes = before;
        l->is_broken = ftruncate(l->fd, before) != 0 || lseek(l->fd, before, SEEK_SET) != before;
    }
    return ok;
}

static bool is_writable(const struct atropos_log *l, struct error *err)
{
    return !l->is_broken || error_set(err, ERR_IO, "the disk of '%s' failed earlier; nothing is taken until a restart", l->dir);
}

bool atropos_log_post(struct atropos_log *l, struct scored *const *g, int64_t n, struct error *err)
{
    struct segment *s = &l->segment[l->n_segment - 1];
    int64_t before = s->size_bytes;
    if (!is_writable(l, err))
        return false;
    l->is_full = !reserve_make(l);
    if (l->is_full)
        return error_set(err, ERR_FULL, "the disk of '%s' is full; no groups are taken until some were handed out, or there is space",
                         l->dir);
    errno = 0;
    bool ok = groups_write(l->fd, &s->size_bytes, RECORD_POST, g, n, err);
    l->is_full = !ok && is_no_space(errno);
    if (!record_end(l, ok, true, before, err))
        return false;
    for (int64_t i = 0; i < n; i++) {
        g[i]->place = s->number;
        s->live_bytes += (int64_t)g[i]->len;
        s->n_live++;
    }
    return true;
}

bool atropos_log_note(struct atropos_log *l, const struct buf *json, bool sync, struct error *err)
{
    struct segment *s = &l->segment[l->n_segment - 1];
    int64_t before = s->size_bytes;
    if (json->failed)
        return error_set(err, ERR_NO_MEMORY, "no memory to note a change");
    if (!is_writable(l, err))
        return false;
    errno = 0;
    bool ok = text_write(l->fd, &s->size_bytes, RECORD_NOTE, json, err);
    bool again = !ok && is_no_space(errno) && reserve_give(l);
    if (record_end(l, ok, sync, before, err))
        return true;
    return again && is_writable(l, err) && record_end(l, text_write(l->fd, &s->size_bytes, RECORD_NOTE, json, err), sync, before, err);
}

/* Delete older segments that nothing needs. */
static void segments_drop(struct atropos_log *l)
{
    int64_t kept = 0;
    char path[PATH_MAX];
    for (int64_t i = 0; i < l->n_segment; i++) {
        if (i == l->n_segment - 1 || l->segment[i].n_live > 0) {
            l->segment[kept++] = l->segment[i];
            continue;
        }
        segment_path(l, l->segment[i].number, "", path);
        if (unlink(path) != 0)
            log_warn("'%s' is no longer needed but cannot be deleted: %s", path, strerror(errno));
    }
    l->n_segment = kept;
}

void atropos_log_left(struct atropos_log *l, const struct scored *g)
{
    struct segment *s = segment_find(l, g->place);
    if (!s)
        return;
    BUG_IF(s->n_live < 1 || s->live_bytes < (int64_t)g->len,
           "group %" PRId64 " leaves segment %" PRId64 ", where %" PRId64 " wait of %" PRId64 " bytes", g->id, s->number, s->n_live,
           s->live_bytes);
    s->live_bytes -= (int64_t)g->len;
    if (--s->n_live == 0)
        segments_drop(l);
}

/* Count what still waits in each segment; while the log was read, groups left without atropos_log_left. */
static void live_count(struct atropos_log *l, struct scored *const *live, int64_t n_live)
{
    for (int64_t i = 0; i < l->n_segment; i++)
        l->segment[i].n_live = l->segment[i].live_bytes = 0;
    for (int64_t i = 0; i < n_live; i++) {
        struct segment *s = segment_find(l, live[i]->place);
        if (s) {
            s->n_live++;
            s->live_bytes += (int64_t)live[i]->len;
        }
    }
}

bool atropos_log_is_long(const struct atropos_log *l)
{
    return l->segment[l->n_segment - 1].size_bytes > SEGMENT_BYTES;
}

bool atropos_log_would_shrink(const struct atropos_log *l)
{
    const struct segment *s = &l->segment[l->n_segment - 1];
    return l->is_full && s->live_bytes < s->size_bytes / SPARSE;
}

static bool is_sparse(const struct atropos_log *l, const struct scored *g)
{
    const struct segment *s = segment_find(l, g->place);
    return s && s->live_bytes < s->size_bytes / SPARSE;
}

/* Write a segment's beginning: the state, and groups copied from sparse segments, which go to copied (n). */
static bool beginning_write(struct atropos_log *l, int fd, int64_t *size, const struct buf *state, struct scored *const *live,
                            int64_t n_live, struct scored **copied, int64_t *n_copied, struct error *err)
{
    *n_copied = 0;
    for (int64_t i = 0; i < n_live; i++)
        if (is_sparse(l, live[i]))
            copied[(*n_copied)++] = live[i];
    if (!text_write(fd, size, RECORD_STATE, state, err))
        return false;
    for (int64_t i = 0; i < *n_copied; i += COPY_GROUPS)
        if (!groups_write(fd, size, RECORD_GROUPS, copied + i, MIN(*n_copied - i, COPY_GROUPS), err))
            return false;
    return fsync(fd) == 0 || error_errno(err, "posted groups cannot be written");
}

/* Say in the newest segment, before another begins, that one follows: if that is missing, a start notices. What a kill left at its end is
 * cut off first. Without space for it nothing is lost. */
static void next_note(struct atropos_log *l)
{
    struct segment *s = l->n_segment ? &l->segment[l->n_segment - 1] : NULL;
    struct buf text = BUF_INIT;
    struct error ignored;
    char path[PATH_MAX];
    if (!s || s->is_damaged || l->is_broken)
        return;
    segment_path(l, s->number, "", path);
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    int64_t end = s->size_bytes - s->cut_bytes, size = 0;
    buf_str(&text, "{}");
    if (fd >= 0 && ftruncate(fd, end) == 0 && lseek(fd, end, SEEK_SET) == end && !text_write(fd, &size, RECORD_NEXT, &text, &ignored)
        && ftruncate(fd, end) != 0)
        log_debug("a part of a record is left in '%s'", path);
    if (fd >= 0)
        close(fd);
    buf_release(&text);
}

static bool turn_once(struct atropos_log *l, const struct buf *state, struct scored *const *live, int64_t n_live, struct error *err)
{
    int64_t number = l->n_segment ? l->segment[l->n_segment - 1].number + 1 : 1, size = 0, n_copied = 0;
    char path[PATH_MAX], tmp[PATH_MAX];
    struct scored **copied = calloc((size_t)MAX(n_live, 1), sizeof *copied);
    bool ok = false;
    int fd = -1;
    segment_path(l, number, "", path);
    segment_path(l, number, ".tmp", tmp);
    live_count(l, live, n_live);
    if (!copied || state->failed) {
        error_set(err, ERR_NO_MEMORY, "no memory for a new segment of '%s'", l->dir);
        goto out;
    }
    fd = file_create(tmp, O_WRONLY | O_TRUNC, 0600, err);
    if (fd < 0)
        goto out;
    TRY(beginning_write(l, fd, &size, state, live, n_live, copied, &n_copied, err));
    next_note(l);
    TRY(segment_add(l, number, err));
    if (rename(tmp, path) != 0 || !dir_sync(l->dir, err)) {
        l->n_segment--;
        l->is_broken = true;    // which of the two files a restart would find is unknown
        error_errno(err, "cannot rename '%s'", tmp);
        goto out;
    }
    ok = true;
    if (l->fd >= 0)
        close(l->fd);
    l->fd = fd;
    struct segment *s = &l->segment[l->n_segment - 1];
    s->size_bytes = size;
    for (int64_t i = 0; i < n_copied; i++) {
        struct segment *old = segment_find(l, copied[i]->place);
        old->live_bytes -= (int64_t)copied[i]->len;
        old->n_live--;
        copied[i]->place = number;
        s->live_bytes += (int64_t)copied[i]->len;
        s->n_live++;
    }
    segments_drop(l);
out:;
    int why = errno;
    if (!ok && fd >= 0) {
        close(fd);
        unlink(tmp);
    }
    free(copied);
    errno = why;
    return ok;
}

bool atropos_log_turn(struct atropos_log *l, const struct buf *state, struct scored *const *live, int64_t n_live, struct error *err)
{
    errno = 0;
    bool ok = turn_once(l, state, live, n_live, err);
    if (!ok && is_no_space(errno) && reserve_give(l))
        ok = turn_once(l, state, live, n_live, err);
    if (ok)
        reserve_make(l);    // without it nothing is taken
    return ok;
}

/* ---- reading */
/* The record at p; NULL: none that is whole. */
static const struct record_head *record_at(const uint8_t *p, const uint8_t *end, struct record_head *h)
{
    if ((size_t)(end - p) < sizeof *h)
        return NULL;
    memcpy(h, p, sizeof *h);
    if (memcmp(h->magic, "rcA2", 4) != 0 || h->len > (uint64_t)(end - p) - sizeof *h || h->len > UINT_MAX)
        return NULL;
    uint32_t crc = head_crc(h);
    for (uint64_t at = 0; at < h->len; at += 1 << 30)
        crc = (uint32_t)crc32(crc, p + sizeof *h + at, (uInt)MIN(h->len - at, 1u << 30));
    return crc == h->crc ? h : NULL;
}

/* The groups of a record that is whole: those that are wanted (all: r->wants is not asked). *n of them in out. */
static bool groups_read(struct atropos_log *l, struct segment *s, const struct record_head *h, const uint8_t *p,
                        const struct atropos_reader *r, void *ctx, bool all, struct scored **out, int64_t *n, struct error *err)
{
    const uint8_t *end = p + h->len;
    for (uint32_t i = 0; i < h->n_group; i++) {
        struct group_head g;
        if ((size_t)(end - p) < sizeof g)
            break;
        memcpy(&g, p, sizeof g);
        p += sizeof g;
        if (g.len > (uint64_t)(end - p))
            break;
        if (all || r->wants(ctx, g.id)) {
            struct scored like = { .id = g.id, .n_seq = g.n_seq, .env_id = g.env_id, .version = g.version };
            struct scored *made = scored_new(&like, (const char *)p, g.len);
            if (!made)
                return error_set(err, ERR_NO_MEMORY, "no memory for the groups in '%s'", l->dir);
            made->place = s->number;
            out[(*n)++] = made;
        }
        p += g.len;
    }
    return true;
}

static bool record_read(struct atropos_log *l, struct segment *s, const struct record_head *h, const uint8_t *p,
                        const struct atropos_reader *r, void *ctx, bool only_groups, struct error *err)
{
    bool is_post = h->kind == RECORD_POST && !only_groups, ok = false;
    struct scored **g = NULL;
    int64_t n = 0, given = 0;
    if (h->kind == RECORD_NOTE)
        return only_groups || r->note(ctx, (const char *)p, h->len, err);
    if (h->kind != RECORD_POST && h->kind != RECORD_GROUPS)
        return true;
    g = calloc(h->n_group + 1, sizeof *g);
    if (!g)
        return error_set(err, ERR_NO_MEMORY, "no memory for the groups in '%s'", l->dir);
    TRY(groups_read(l, s, h, p, r, ctx, is_post, g, &n, err));
    if (is_post) {
        given = n;
        TRY(r->post(ctx, g, n, err));
    }
    while (given < n)
        TRY(r->group(ctx, g[given++], err));
    ok = true;
out:
    while (given < n)
        scored_drop(g[given++]);
    free(g);
    return ok;
}

/* The next whole record after p, where none is; NULL: there is none. */
static const uint8_t *record_after(const uint8_t *p, const uint8_t *end)
{
    struct record_head h;
    while (p < end && (p = memmem(p + 1, (size_t)(end - p - 1), "rcA2", 4)) != NULL)
        if (record_at(p, end, &h))
            return p;
    return NULL;
}

/* Damage, since a kill leaves nothing whole after a broken record: say it, and keep the file from being deleted with its groups. */
static void damage_tell(const struct atropos_log *l, const struct segment *s, int64_t from, int64_t bytes, bool more)
{
    char path[PATH_MAX], kept[PATH_MAX];
    segment_path(l, s->number, "", path);
    segment_path(l, s->number, ".damaged", kept);
    bool is_kept = link(path, kept) == 0 || errno == EEXIST;
    log_error("'%s' is damaged: %" PRId64 " bytes from byte %" PRId64
              " on cannot be read, and what was acknowledged in them is lost; %s%s%s",
              path, bytes, from, more ? "what is whole after them is kept" : "nothing follows them",
              is_kept ? "; the file is also kept as " : "", is_kept ? kept : "");
}

/* Is the record at p, which is not whole, as long as it says? Then it was written to its end. */
static bool is_long_enough(const uint8_t *p, const uint8_t *end)
{
    struct record_head h;
    if ((size_t)(end - p) < sizeof h)
        return false;
    memcpy(&h, p, sizeof h);
    return memcmp(h.magic, "rcA2", 4) == 0 && h.len == (uint64_t)(end - p) - sizeof h;
}

/* What is not a record at p, in the newest segment or an older one: where the next one is, or end. In an older one only those groups
 * matter that still wait; the state says which are missing. */
static const uint8_t *broken_skip(const struct atropos_log *l, struct segment *s, const uint8_t *data, const uint8_t *p, const uint8_t *end,
                                  bool newest)
{
    const uint8_t *next = record_after(p, end);
    if (newest && !next && !is_long_enough(p, end)) {
        log_warn("'%s/%08" PRId64 ".log': the last %" PRId64 " bytes are not whole records, and are left out; a kill leaves such an end",
                 l->dir, s->number, (int64_t)(end - p));
        s->cut_bytes = end - p;
    } else if (newest) {
        damage_tell(l, s, p - data, (next ? next : end) - p, next != NULL);
        s->is_damaged = true;
    }
    return next ? next : end;
}

/* Read a segment: only the groups that the state names, or as the newest one, which has the state. */
static bool segment_read(struct atropos_log *l, struct segment *s, bool newest, bool state_only, const struct atropos_reader *r, void *ctx,
                         struct error *err)
{
    struct file_map map = { 0 };
    struct record_head h;
    char path[PATH_MAX];
    bool ok = false, ready = !newest, goes_on = false;
    segment_path(l, s->number, "", path);
    if (!file_map_open(&map, path, err))
        return false;
    const uint8_t *p = map.data, *end = p + map.size_bytes;
    s->size_bytes = (int64_t)map.size_bytes;
    while (p < end) {
        if (!record_at(p, end, &h)) {
            if (state_only)
                break;
            p = broken_skip(l, s, map.data, p, end, newest);
            continue;
        }
        if (h.kind == RECORD_STATE && state_only) {
            ok = r->state(ctx, (const char *)p + sizeof h, h.len, err);
            goto out;
        }
        if (state_only)
            break;
        if (!ready && h.kind != RECORD_STATE && h.kind != RECORD_GROUPS) {
            ready = true;
            TRY(r->ready(ctx, err));
        }
        TRY(record_read(l, s, &h, p + sizeof h, r, ctx, !newest, err));
        goes_on = h.kind == RECORD_NEXT;
        p += sizeof h + h.len;
    }
    if (state_only) {
        error_set(err, ERR_DATA, "'%s' is damaged at its beginning; move '%s' away to begin with nothing", path, l->dir);
        goto out;
    }
    if (newest && goes_on)
        log_error("'%s' says that another segment follows it, and there is none: what was acknowledged there is lost", path);
    ok = ready || r->ready(ctx, err);
out:
    file_map_close(&map);
    return ok;
}

static int number_compare(const void *a, const void *b)
{
    const struct segment *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

static bool segments_list(struct atropos_log *l, struct error *err)
{
    DIR *d = opendir(l->dir);
    bool ok = true;
    if (!d)
        return error_errno(err, "cannot read '%s'", l->dir);
    for (const struct dirent *e; ok && (e = readdir(d));) {
        int64_t number;
        size_t digits = strspn(e->d_name, "0123456789");
        if (digits >= 8 && digits <= 18 && strcmp(e->d_name + digits, ".log") == 0 && sscanf(e->d_name, "%" SCNd64, &number) == 1)
            ok = segment_add(l, number, err);
    }
    closedir(d);
    if (l->n_segment > 1)
        qsort(l->segment, (size_t)l->n_segment, sizeof *l->segment, number_compare);
    return ok;
}

static bool folder_lock(struct atropos_log *l, struct error *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/lock", l->dir);
    l->lock_fd = file_create(path, O_RDWR, 0600, err);
    if (l->lock_fd < 0)
        return false;
    return flock(l->lock_fd, LOCK_EX | LOCK_NB) == 0
           || (errno == EWOULDBLOCK ? error_set(err, ERR_EXISTS, "another server uses '%s'", l->dir)
                                    : error_errno(err, "cannot lock '%s'", path));
}

struct atropos_log *atropos_log_open(const char *dir, const struct atropos_reader *r, void *ctx, struct error *err)
{
    struct atropos_log *l = calloc(1, sizeof *l);
    bool ok = false;
    if (!l) {
        error_set(err, ERR_NO_MEMORY, "no memory to open '%s'", dir);
        return NULL;
    }
    l->fd = l->lock_fd = -1;
    if (snprintf(l->dir, sizeof l->dir, "%s", dir) >= (int)sizeof l->dir) {
        error_set(err, ERR_USAGE, "the path '%.100s...' is too long", dir);
        goto out;
    }
    TRY(dir_make(l->dir, 0700, err) && folder_lock(l, err) && segments_list(l, err));
    if (l->n_segment > 0) {
        TRY(segment_read(l, &l->segment[l->n_segment - 1], true, true, r, ctx, err));
        for (int64_t i = 0; i < l->n_segment; i++)
            TRY(segment_read(l, &l->segment[i], i == l->n_segment - 1, false, r, ctx, err));
    }
    ok = true;
out:
    if (!ok) {
        atropos_log_close(l);
        l = NULL;
    }
    return l;
}

void atropos_log_close(struct atropos_log *l)
{
    if (!l)
        return;
    if (l->fd >= 0)
        close(l->fd);
    if (l->lock_fd >= 0)
        close(l->lock_fd);
    free(l->segment);
    free(l);
}
