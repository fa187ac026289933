/* Runs of blocks are claimed with the lock and received without it. A thread asks for its next run before it has received the one before,
 * so that the way to the head and back costs no time. Each offer has a number (round); a thread whose connection fails gives its claims
 * back and waits for the next round. */
#include "workers/node/bulk/bulk_fetch.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/thread.h"
#include "workers/node/bulk/delta.h"
#include "workers/node/bulk/fill.h"
#include "workers/engine/publish/publication.h"

#define THREADS BULK_CONNECTIONS_EACH
#define LIMIT_MS 20000    // of each wait for the head
#define RUN_BLOCKS 16     // 4 MiB of weights: short, so that the last ones end together
#define AHEAD 4           // runs that a connection is asked for at a time

enum block_state {
    BLOCK_NEEDED,
    BLOCK_CLAIMED,
    BLOCK_HERE,
};
struct run {
    uint32_t first, n;
};
struct lane {    // a thread and its connection
    struct bulk_fetch *fetch;
    pthread_t thread;
    bool runs;                  // the thread was made
    struct bulk *bulk;          // with the lock: to be cut; NULL: none
    int64_t round;              // of the offer that it works on
    struct run ahead[AHEAD];    // claimed, oldest first
    int n_ahead;
};
struct bulk_fetch {
    struct bulk_fetch_config config;
    char path[4200];
    struct fill file;    // what has arrived
    int base_fd;         // -1: none
    int64_t size_bytes;
    uint64_t key;
    uint32_t n_block;
    struct lane lane[THREADS];
    int n_lane;
    pthread_mutex_t lock;    // guards: all below
    pthread_cond_t changed;
    char address[280];
    struct bulk_offer offer;
    int64_t round;
    uint8_t *state;           // (n_block) owned; enum block_state
    uint32_t next, n_here;    // before next none is needed
    int n_lost;               // threads that wait for another offer
    bool over, no_base, failed, finished;
    int64_t wire_bytes, delta_bytes;
    struct error err;
};

/* ---- blocks ---- */

/* With the lock: a run of blocks that nobody has claimed; n 0: there is none. */
static struct run run_claim(struct bulk_fetch *f)
{
    struct run r = { 0 };
    while (f->next < f->n_block && f->state[f->next] != BLOCK_NEEDED)
        f->next++;
    r.first = f->next;
    while (r.n < RUN_BLOCKS && f->next < f->n_block && f->state[f->next] == BLOCK_NEEDED) {
        f->state[f->next++] = BLOCK_CLAIMED;
        r.n++;
    }
    return r;
}

/* With the lock: what was claimed and is not here is needed again. */
static void runs_return(struct bulk_fetch *f, struct lane *l)
{
    for (int k = 0; k < l->n_ahead; k++)
        for (uint32_t i = l->ahead[k].first; i < l->ahead[k].first + l->ahead[k].n; i++)
            if (f->state[i] == BLOCK_CLAIMED) {
                f->state[i] = BLOCK_NEEDED;
                f->next = MIN(f->next, i);
            }
    l->n_ahead = 0;
}

/* What can go wrong beside the connection. */
enum trouble {
    TROUBLE_NONE,
    TROUBLE_CONNECTION,
    TROUBLE_BASE,
    TROUBLE_DISK,
};

/* What a thread needs to make a block: two places in turn, since what one link leads to is what the next one begins with. The base is read
 * to where it becomes what the first record leads to, which is the block's place in the file if nothing else follows: one pass. */
struct maker {
    struct delta_coder *coder;
    uint8_t *place[2];      // (DELTA_BLOCK) owned
    uint8_t *last;          // where the block is made in the end: in the file, or NULL
    bool has_base;          // else the block is to come whole
    const uint8_t *from;    // what the next record's differences are from; NULL: the base, not read yet
    int n_link;             // of this block
};

static bool base_read(const struct bulk_fetch *f, uint8_t *out, size_t at, size_t n, struct error *err)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(f->base_fd, out + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_errno(err, "cannot read the weights that differences are from");
        if (got == 0)
            return error_set(err, ERR_DATA, "the weights that differences are from have become shorter");
        done += (size_t)got;
    }
    return true;
}

/* Make what a record leads to, of n bytes of the block that is expected; *out: where it is, until the next but one. */
static enum trouble record_take(struct bulk_fetch *f, struct maker *m, uint32_t want, const uint8_t *data, size_t len, size_t n,
                                bool is_link, const uint8_t **out, struct error *err)
{
    struct bulk_block head;
    if (len < sizeof head) {
        error_set(err, ERR_DATA, "the head has sent a block of %zu bytes", len);
        return TROUBLE_CONNECTION;
    }
    memcpy(&head, data, sizeof head);
    data += sizeof head;
    len -= sizeof head;
    bool raw = head.kind == DELTA_RAW;
    if (head.index != want || (is_link && (raw || !m->has_base || m->n_link == BULK_LINKS_MAX))) {
        error_set(err, ERR_DATA, "the head has sent %s of block %" PRIu32 " for block %" PRIu32 " of '%s'", is_link ? "a link" : "what is",
                  head.index, want, f->path);
        return TROUBLE_CONNECTION;
    }
    if (raw && len != n) {
        error_set(err, ERR_DATA, "the head has sent %zu bytes for a block of %zu", len, n);
        return TROUBLE_CONNECTION;
    }
    uint8_t *place = is_link || !m->last ? m->place[m->n_link % 2] : m->last;
    const uint8_t *from = m->from;
    if (!raw && !from && m->has_base) {
        if (!base_read(f, place, (size_t)want * DELTA_BLOCK, n, err))
            return TROUBLE_BASE;
        from = place;
    }
    if (!raw && !delta_decode(m->coder, (enum delta_kind)head.kind, data, len, from, place, n, err))
        return TROUBLE_BASE;
    *out = raw ? data : place;
    if (delta_hash(*out, n) == head.hash)
        return TROUBLE_NONE;
    error_set(err, ERR_DATA, "block %" PRIu32 " has another hash than at the head", want);
    return raw ? TROUBLE_CONNECTION : TROUBLE_BASE;
}

/* Receive the block that is expected, and the links before it. */
static enum trouble block_take(struct bulk_fetch *f, struct maker *m, struct bulk *b, uint32_t want, bool has_base, struct error *err)
{
    size_t at = (size_t)want * DELTA_BLOCK, n = MIN(DELTA_BLOCK, (size_t)f->size_bytes - at), len;
    uint8_t type = BULK_LINK;
    const void *data;
    const uint8_t *block = NULL;
    m->has_base = has_base && f->base_fd >= 0;
    m->last = fill_place(&f->file, at, n);
    m->from = NULL;
    for (m->n_link = 0; type == BULK_LINK; m->n_link++, m->from = block) {
        if (!bulk_receive(b, &type, &data, &len, err))
            return TROUBLE_CONNECTION;
        if (type != BULK_BLOCK && type != BULK_LINK) {
            error_set(err, ERR_DATA, "the head has sent a record of type %u", type);
            return TROUBLE_CONNECTION;
        }
        enum trouble t = record_take(f, m, want, data, len, n, type == BULK_LINK, &block, err);
        if (t != TROUBLE_NONE)
            return t;
    }
    bool whole = block != m->last && block != m->place[0] && block != m->place[1];
    if (!fill_write(&f->file, block, at, n, err))
        return TROUBLE_DISK;
    pthread_mutex_lock(&f->lock);
    f->state[want] = BLOCK_HERE;
    f->n_here++;
    f->delta_bytes += whole ? 0 : (int64_t)n;
    pthread_mutex_unlock(&f->lock);
    return TROUBLE_NONE;
}

/* ---- a thread ---- */

/* Ask for runs until AHEAD are on their way. */
static bool runs_ask(struct bulk_fetch *f, struct lane *l, struct bulk *b, struct error *err)
{
    while (l->n_ahead < AHEAD) {
        pthread_mutex_lock(&f->lock);
        struct run r = f->over || f->no_base || f->failed ? (struct run){ 0 } : run_claim(f);
        if (r.n > 0)
            l->ahead[l->n_ahead++] = r;
        pthread_mutex_unlock(&f->lock);
        if (r.n == 0)
            return true;
        struct bulk_want want = { r.first, r.n };
        if (!bulk_send(b, BULK_WANT, &want, sizeof want, NULL, 0, err) || !bulk_flush(b, err))
            return false;
    }
    return true;
}

/* Receive the oldest run. */
static enum trouble run_take(struct bulk_fetch *f, struct lane *l, struct bulk *b, bool has_base, struct maker *m, struct error *err)
{
    const struct run r = l->ahead[0];
    for (uint32_t i = r.first; i < r.first + r.n; i++) {
        int64_t before = bulk_received(b);
        enum trouble t = block_take(f, m, b, i, has_base, err);
        pthread_mutex_lock(&f->lock);
        f->wire_bytes += bulk_received(b) - before;
        bool over = f->over;
        pthread_mutex_unlock(&f->lock);
        if (t != TROUBLE_NONE)
            return t;
        if (over) {
            error_set(err, ERR_STOPPED, "the fetch has ended");
            return TROUBLE_CONNECTION;
        }
    }
    fill_leave(&f->file, (size_t)r.first * DELTA_BLOCK, (size_t)r.n * DELTA_BLOCK);
    l->n_ahead--;
    memmove(l->ahead, l->ahead + 1, (size_t)l->n_ahead * sizeof *l->ahead);
    return TROUBLE_NONE;
}

/* Fetch blocks with one offer until none is needed. */
static enum trouble lane_work(struct bulk_fetch *f, struct lane *l, const char *address, const struct bulk_offer *offer, struct maker *m,
                              struct error *err)
{
    struct bulk *b = bulk_connect(address, &offer->ticket, BULK_CONNECT_MS, err);
    enum trouble t = b ? TROUBLE_NONE : TROUBLE_CONNECTION;
    pthread_mutex_lock(&f->lock);
    l->bulk = b;
    pthread_mutex_unlock(&f->lock);
    if (b)
        bulk_limit(b, LIMIT_MS);
    while (t == TROUBLE_NONE) {
        if (!runs_ask(f, l, b, err))
            t = TROUBLE_CONNECTION;
        else if (l->n_ahead == 0)
            break;
        else
            t = run_take(f, l, b, offer->has_base, m, err);
    }
    pthread_mutex_lock(&f->lock);
    bool last = f->n_here == f->n_block;
    pthread_mutex_unlock(&f->lock);
    struct error none;
    if (b && last && bulk_send(b, BULK_DONE, NULL, 0, NULL, 0, &none) && !bulk_flush(b, &none))
        last = false;    // the head ends the offer itself after a while
    pthread_mutex_lock(&f->lock);
    l->bulk = NULL;
    bulk_free(b);
    runs_return(f, l);
    pthread_mutex_unlock(&f->lock);
    return t;
}

/* With the lock: note what an offer's work has come to. */
static void lane_note(struct bulk_fetch *f, const struct lane *l, enum trouble t, const struct error *err)
{
    if (t == TROUBLE_DISK && !f->failed) {
        f->failed = true;
        f->err = *err;
    } else if (t != TROUBLE_NONE && l->round == f->round && !f->failed) {
        f->no_base = f->no_base || t == TROUBLE_BASE;
        f->err = *err;
    }
    f->finished = f->finished || f->n_here == f->n_block;
    f->n_lost++;
    pthread_cond_broadcast(&f->changed);
}

static void *lane_main(void *arg)
{
    struct lane *l = arg;
    struct bulk_fetch *f = l->fetch;
    struct error err = { 0 };
    struct maker m = { .coder = delta_coder_new(&err), .place = { malloc(DELTA_BLOCK), malloc(DELTA_BLOCK) } };
    pthread_mutex_lock(&f->lock);
    while (!f->over && !f->failed && !f->finished) {
        char address[sizeof f->address];
        struct bulk_offer offer = f->offer;
        snprintf(address, sizeof address, "%s", f->address);
        l->round = f->round;
        enum trouble t = TROUBLE_DISK;
        pthread_mutex_unlock(&f->lock);
        if (m.coder && m.place[0] && m.place[1])
            t = lane_work(f, l, address, &offer, &m, &err);
        else
            error_set(&err, ERR_NO_MEMORY, "no memory to receive weights");
        pthread_mutex_lock(&f->lock);
        lane_note(f, l, t, &err);
        pthread_mutex_unlock(&f->lock);
        f->config.wake(f->config.ctx);
        pthread_mutex_lock(&f->lock);
        while (!f->over && !f->failed && !f->finished && f->round == l->round)
            pthread_cond_wait(&f->changed, &f->lock);    // bulk_fetch_again or bulk_fetch_free ends it
    }
    pthread_mutex_unlock(&f->lock);
    delta_coder_free(m.coder);
    free(m.place[0]);
    free(m.place[1]);
    return NULL;
}

/* ---- for the owner ---- */

static bool threads_start(struct bulk_fetch *f, struct error *err)
{
    int rv = 0, n = 0;
    for (; n < f->n_lane && rv == 0; n++) {
        f->lane[n].fetch = f;
        rv = thread_start(&f->lane[n].thread, lane_main, &f->lane[n]);
        f->lane[n].runs = rv == 0;
    }
    return rv == 0 || error_set(err, ERR_IO, "cannot make a thread to fetch weights: %s", strerror(rv));
}

/* Open the base; without one that fits whole blocks are all that can be read. */
static int base_open(const char *path, int64_t size_bytes)
{
    struct stat st;
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    if (fd >= 0 && (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size != size_bytes)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

struct bulk_fetch *bulk_fetch_new(const struct bulk_fetch_config *config, const struct bulk_offer *offer, struct error *err)
{
    char temp[4210];
    struct bulk_fetch *f = calloc(1, sizeof *f);
    if (!f) {
        error_set(err, ERR_NO_MEMORY, "no memory to fetch '%s'", config->path);
        return NULL;
    }
    f->config = *config;
    f->file.fd = f->base_fd = -1;
    f->offer = *offer;
    f->round = 1;
    f->size_bytes = offer->size_bytes;
    f->key = offer->key;
    pthread_mutex_init(&f->lock, NULL);
    clock_cond_init(&f->changed);
    snprintf(f->address, sizeof f->address, "%s", config->address);
    snprintf(f->path, sizeof f->path, "%s", config->path);
    snprintf(temp, sizeof temp, "%s.new", f->path);
    if (offer->size_bytes < 1 || offer->size_bytes > MIN(config->size_max, (int64_t)UINT32_MAX * (int64_t)DELTA_BLOCK)) {
        error_set(err, ERR_DATA, "the head's '%s' has %" PRId64 " bytes; 1 to %" PRId64 " are accepted", f->path, offer->size_bytes,
                  config->size_max);
        goto fail;
    }
    f->n_block = (uint32_t)(((size_t)f->size_bytes + DELTA_BLOCK - 1) / DELTA_BLOCK);
    if (!(f->state = calloc(f->n_block, 1))) {
        error_set(err, ERR_NO_MEMORY, "no memory to fetch '%s'", f->path);
        goto fail;
    }
    if (!fill_open(&f->file, temp, config->spare_path, (size_t)f->size_bytes, err))
        goto fail;
    f->n_lane = (int)MAX(MIN(sysconf(_SC_NPROCESSORS_ONLN), (long)THREADS), 2L);
    f->base_fd = base_open(config->base_path, f->size_bytes);
    if (threads_start(f, err))
        return f;
fail:
    bulk_fetch_free(f);
    return NULL;
}

void bulk_fetch_free(struct bulk_fetch *f)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->lock);
    f->over = true;
    for (int i = 0; i < THREADS; i++)
        if (f->lane[i].bulk)
            bulk_cut(f->lane[i].bulk);
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    for (int i = 0; i < THREADS; i++)
        if (f->lane[i].runs)
            pthread_join(f->lane[i].thread, NULL);
    fill_close(&f->file);
    if (f->base_fd >= 0)
        close(f->base_fd);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    explicit_bzero(&f->offer, sizeof f->offer);
    free(f->state);
    free(f);
}

/* All blocks are in the file, and no thread writes: it holds what the offer said. */
static bool file_finish(struct bulk_fetch *f, struct error *err)
{
    struct file_map map;
    uint64_t key = 0;
    if (!file_map_open(&map, f->file.path, err))
        return false;
    bool ok = f->config.plain || (weights_file_key(map.data, map.size_bytes, &key) && key == f->key);
    file_map_close(&map);
    if (!ok)
        return error_set(err, ERR_DATA, "'%s' holds other weights than the head has offered", f->file.path);
    return fill_finish(&f->file, f->path, err);
}

enum bulk_fetch_state bulk_fetch_state(struct bulk_fetch *f, struct error *err)
{
    pthread_mutex_lock(&f->lock);
    if (f->finished && !f->failed && f->file.fd >= 0 && !file_finish(f, &f->err))
        f->failed = true;
    enum bulk_fetch_state state = f->failed               ? BULK_FETCH_FAILED
                                  : f->finished           ? BULK_FETCH_DONE
                                  : f->n_lost < f->n_lane ? BULK_FETCH_GOES
                                  : f->no_base            ? BULK_FETCH_NO_BASE
                                                          : BULK_FETCH_CUT;
    if (state != BULK_FETCH_GOES && state != BULK_FETCH_DONE)
        *err = f->err;
    pthread_mutex_unlock(&f->lock);
    return state;
}

bool bulk_fetch_again(struct bulk_fetch *f, const char *address, const struct bulk_offer *offer, struct error *err)
{
    if (offer->key != f->key || offer->size_bytes != f->size_bytes)
        return error_set(err, ERR_DATA, "the head's '%s' has been replaced", f->path);
    pthread_mutex_lock(&f->lock);
    f->offer = *offer;
    snprintf(f->address, sizeof f->address, "%s", address);
    f->round++;
    f->n_lost = 0;
    f->no_base = false;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    return true;
}

void bulk_fetch_look(struct bulk_fetch *f, struct bulk_fetch_look *out)
{
    pthread_mutex_lock(&f->lock);
    *out = (struct bulk_fetch_look){ .done_bytes = MIN((int64_t)f->n_here * (int64_t)DELTA_BLOCK, f->size_bytes),
                                     .size_bytes = f->size_bytes,
                                     .wire_bytes = f->wire_bytes,
                                     .delta_bytes = f->delta_bytes };
    pthread_mutex_unlock(&f->lock);
}
