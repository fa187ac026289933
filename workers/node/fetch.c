#include "workers/node/fetch.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/run/node.h"

#define PIECE_LIMIT_MS 20000
#define AGAIN_MS 200
#define BEGIN_AGAIN_MAX 8    // the file was replaced this often: something is wrong

struct piece {
    int64_t offset;    // -1: free
    bool open;
    int64_t again_ms;
};
struct fetch {
    char name[160], path[4200], temp[4210];
    int64_t made, version, size_max;
    struct peer *peer[FETCH_TAGS];
    int n_peer;
    uint64_t tag;
    int fd;
    int64_t size_bytes, stamp;    // size -1: the first piece has not arrived
    int64_t next, done;           // offset to request next; bytes written
    int n_again;
    struct piece piece[FETCH_TAGS];
    bool failed, finished;
    struct error err;
};

static void begin(struct fetch *f)
{
    f->size_bytes = f->stamp = -1;
    f->next = f->done = 0;
    for (int i = 0; i < FETCH_TAGS; i++)
        f->piece[i].offset = -1;    // tells whether an answer belongs to an earlier attempt
}

struct fetch *fetch_new(const char *name, int64_t made, int64_t version, const char *path, int64_t size_max, struct peer *const *peer,
                        int n_peer, uint64_t tag, struct error *err)
{
    struct fetch *f = calloc(1, sizeof *f);
    if (!f) {
        error_set(err, ERR_NO_MEMORY, "no memory to fetch '%s'", path);
        return NULL;
    }
    snprintf(f->name, sizeof f->name, "%s", name ? name : "");
    snprintf(f->path, sizeof f->path, "%s", path);
    snprintf(f->temp, sizeof f->temp, "%s.new", f->path);
    f->made = made;
    f->version = version;
    f->size_max = size_max;
    f->n_peer = MIN(n_peer, FETCH_TAGS);
    memcpy(f->peer, peer, (size_t)f->n_peer * sizeof *peer);
    f->tag = tag;
    f->fd = file_create(f->temp, O_WRONLY | O_TRUNC, 0600, err);
    if (f->fd < 0) {
        free(f);
        return NULL;
    }
    begin(f);
    return f;
}

void fetch_free(struct fetch *f)
{
    if (!f)
        return;
    if (f->fd >= 0) {
        close(f->fd);
        unlink(f->temp);
    }
    free(f);
}

static void finish(struct fetch *f)
{
    int fd = f->fd;
    f->fd = -1;
    if (close(fd) == 0 && rename(f->temp, f->path) == 0) {
        f->finished = true;
        return;
    }
    f->failed = true;
    error_errno(&f->err, "cannot write '%s'", f->path);
    unlink(f->temp);
}

static bool piece_ask(struct fetch *f, int i)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_FILE);
    if (f->name[0]) {
        msg_str(&m, "name", f->name);
    } else {
        msg_i64(&m, "version", f->version);
        msg_i64(&m, "made", f->made);
    }
    msg_i64(&m, "offset", f->piece[i].offset);
    msg_i64(&m, "n_bytes", NODE_PIECE_BYTES);
    bool ok = msg_finish(&m, &err) && peer_ask(f->peer[i % f->n_peer], &m, PIECE_LIMIT_MS, f->tag + (uint64_t)i, &err);
    msg_release(&m);
    return ok;
}

/* Can another piece be asked for? Until the first has come it goes alone: it brings the size. */
static bool more_wanted(const struct fetch *f)
{
    return f->size_bytes < 0 ? f->next == 0 : f->next < f->size_bytes;
}

int64_t fetch_due(const struct fetch *f)
{
    int64_t due = INT64_MAX;
    if (f->failed || f->finished)
        return clock_ms();    // fetch_state says so
    for (int i = 0; i < FETCH_TAGS; i++)
        if (!f->piece[i].open && (f->piece[i].offset >= 0 || more_wanted(f)))
            due = MIN(due, f->piece[i].again_ms);
    return due;
}

void fetch_tick(struct fetch *f)
{
    int64_t now = clock_ms();
    for (int i = 0; i < FETCH_TAGS && !f->failed && !f->finished; i++) {
        struct piece *p = &f->piece[i];
        if (p->open || now < p->again_ms)
            continue;
        if (p->offset < 0) {
            if (!more_wanted(f))
                continue;
            p->offset = f->next;
            f->next += NODE_PIECE_BYTES;
        }
        p->open = piece_ask(f, i);
        p->again_ms = now + AGAIN_MS;
    }
}

/* Write one piece; false: f has failed. */
static bool piece_take(struct fetch *f, struct piece *p, const struct mval *root)
{
    size_t len = 0;
    int64_t size = mval_i64(mval_get(root, "size_bytes"), -1), stamp = mval_i64(mval_get(root, "stamp"), -1);
    const char *data = mval_bin(mval_get(root, "data"), &len);
    if (f->size_bytes < 0 && p->offset == 0) {
        f->size_bytes = size;
        f->stamp = stamp;
    }
    if (size < 0 || size > f->size_max)
        return error_set(&f->err, ERR_DATA, "the head's '%s' has %" PRId64 " bytes; at most %" PRId64 " are accepted", f->path, size,
                         f->size_max);
    if (size != f->size_bytes || stamp != f->stamp) {
        if (++f->n_again > BEGIN_AGAIN_MAX)
            return error_set(&f->err, ERR_DATA, "the head's '%s' keeps being replaced", f->path);
        begin(f);
        return ftruncate(f->fd, 0) == 0 || error_errno(&f->err, "cannot write '%s'", f->temp);
    }
    int64_t want = MIN(NODE_PIECE_BYTES, size - p->offset);
    if (!data || (int64_t)len != want)
        return error_set(&f->err, ERR_DATA, "a piece of '%s' has %zu bytes, not %" PRId64, f->path, len, want);
    for (size_t at = 0; at < len;) {
        ssize_t n = pwrite(f->fd, data + at, len - at, p->offset + (int64_t)at);
        if (n <= 0)
            return error_errno(&f->err, "cannot write '%s'", f->temp);
        at += (size_t)n;
    }
    f->done += want;
    p->offset = -1;
    if (f->done == f->size_bytes)
        finish(f);
    return true;
}

bool fetch_answered(struct fetch *f, const struct net_event *ev)
{
    struct msg_in in;
    struct error err;
    if (ev->kind != NET_ANSWER || ev->tag < f->tag || ev->tag >= f->tag + FETCH_TAGS)
        return false;
    struct piece *p = &f->piece[ev->tag - f->tag];
    p->open = false;
    if (p->offset < 0 || ev->failed || f->failed || f->finished) {    // from an earlier attempt, or lost: request it again
        p->again_ms = clock_ms() + (ev->failed ? AGAIN_MS : 0);
        return true;
    }
    if (!msg_read_answer(&in, MSG_FILE, ev->data, ev->len, &err)) {
        f->failed = true;
        f->err = err;
        return true;
    }
    f->failed = !piece_take(f, p, in.root);
    msg_in_release(&in);
    p->again_ms = 0;
    return true;
}

enum fetch_state fetch_state(const struct fetch *f, struct error *err)
{
    if (f->failed)
        *err = f->err;
    return f->failed ? FETCH_FAILED : f->finished ? FETCH_DONE : FETCH_GOES;
}

int64_t fetch_bytes(const struct fetch *f, int64_t *size_bytes)
{
    *size_bytes = MAX(f->size_bytes, (int64_t)0);
    return f->done;
}
