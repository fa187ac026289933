/* One lock for everything. A connection's thread holds it while it looks for a block and while it notes one that it has written, not
 * while it compresses or sends. References keep things alive: a connection its offer, an offer its pairs, a pair its two versions.
 *
 * A pair that nobody uses any more is let go of when its newer version is: if all its blocks have been written, they stay without the
 * versions (an old pair), as a link of chains for nodes that are late. Links are found by the numbers of the versions' contents. */
#include "workers/node/bulk/bulk_server.h"
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/base/thread.h"
#include "workers/node/bulk/delta.h"
#include "workers/engine/publish/publication.h"

#define LIMIT_MS 20000                    // of each wait for a node
#define IDLE_MS 20000                     // an offer without connections
#define WRITE_LIMIT_MS 30000              // another thread's compression of one block
#define DRAIN_MS 10000                    // of threads that were told to end
#define PACKED_MAX ((size_t)1 << 30)      // bytes of written blocks that are kept
#define OLD_PAIRS_MAX 16                  // of them
#define VERSION_MAX ((int64_t)1 << 42)    // bytes

struct version {
    char path[4200];
    struct stat st;    // which file that was
    struct file_map map;
    uint64_t key;
    bool plain;    // any file, and no weights
    int n_ref;     // pairs
    struct version *next;
};
struct packed {
    enum {
        PACKED_NOT,
        PACKED_BUSY,
        PACKED_DONE,
    } state;
    enum delta_kind kind;
    uint32_t len;
    uint8_t *data;    // owned; NULL: nothing to send, or the block itself
    uint64_t hash;
};
struct pair {
    struct version *base, *new;    // base NULL: whole blocks; both NULL: an old pair
    uint64_t from, to;             // numbers of their contents
    int64_t size_bytes;            // of each file
    uint32_t n_block;
    struct packed *block;    // (n_block) owned
    size_t bytes;            // of the blocks' data
    int n_ref;               // offers
    struct pair *next;
};
struct offer {
    struct bulk_ticket ticket;
    struct pair *pair;                    // NULL: free
    struct pair *link[BULK_LINKS_MAX];    // (n_link) that lead from the node's version to the pair's base
    int n_link;
    bool over;
    int n_connection;
    int64_t used_ms;
};
struct connection {
    struct bulk_server *server;
    struct offer *offer;
    int fd;    // closed with the lock, when the connection leaves the list
    uint8_t hello[BULK_HELLO_BYTES];
    struct connection *next;
};
struct bulk_server {
    pthread_mutex_t lock;    // guards: all below, and what it points to; not the bytes of mapped files and of written blocks
    pthread_cond_t changed;
    struct version *versions;
    struct version *recent[2];    // the two that were offered last; NULL: none
    struct pair *pairs;
    struct offer offer[BULK_OFFERS_MAX];
    struct connection *connections;
    int n_connection;
    size_t packed_bytes;
    int64_t sent_bytes, block_bytes;
    bool over;
};

struct bulk_server *bulk_server_new(struct error *err)
{
    struct bulk_server *s = calloc(1, sizeof *s);
    if (!s) {
        error_set(err, ERR_NO_MEMORY, "no memory to send weights");
        return NULL;
    }
    pthread_mutex_init(&s->lock, NULL);
    clock_cond_init(&s->changed);
    return s;
}

/* ---- versions and pairs; with the lock ---- */

static void version_drop(struct bulk_server *s, struct version *v)
{
    struct version **at = &s->versions;
    while (*at != v)
        at = &(*at)->next;
    *at = v->next;
    file_map_close(&v->map);
    free(v);
}

static void versions_release(struct pair *p)
{
    if (p->new)
        p->new->n_ref--;
    if (p->base)
        p->base->n_ref--;
    p->base = p->new = NULL;
}

static void pair_drop(struct bulk_server *s, struct pair *p)
{
    struct pair **at = &s->pairs;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    for (uint32_t i = 0; i < p->n_block; i++)
        free(p->block[i].data);
    s->packed_bytes -= p->bytes;
    versions_release(p);
    free(p->block);
    free(p);
}

/* Has every block been written, and are those that are differences here? */
static bool pair_is_whole(const struct pair *p)
{
    for (uint32_t i = 0; i < p->n_block; i++) {
        const struct packed *b = &p->block[i];
        if (b->state != PACKED_DONE || (b->kind != DELTA_SAME && b->kind != DELTA_RAW && !b->data))
            return false;
    }
    return true;
}

static bool version_is_recent(const struct bulk_server *s, const struct version *v)
{
    return !s->over && (v == s->recent[0] || v == s->recent[1]);
}

/* Let go of the oldest of the old pairs that nobody uses; most: only if there are more old pairs than that. False: there is none. */
static bool oldest_drop(struct bulk_server *s, int most)
{
    struct pair *oldest = NULL;
    int n = 0;
    for (struct pair *p = s->pairs; p; p = p->next) {    // the newest first
        n += !p->new;
        if (!p->new && p->n_ref == 0)
            oldest = p;
    }
    if (!oldest || n <= most)
        return false;
    pair_drop(s, oldest);
    return true;
}

/* Let go of what nobody uses: pairs that end at an older version, but for what they lead from and to, then versions of no pair. */
static void unused_drop(struct bulk_server *s)
{
    for (struct pair *p = s->pairs, *next; p; p = next) {
        next = p->next;
        if (p->n_ref > 0 || !p->new || version_is_recent(s, p->new))
            continue;
        if (p->base && !s->over && pair_is_whole(p) && p->bytes < (size_t)p->size_bytes / 2)    // else it makes no chain small
            versions_release(p);
        else
            pair_drop(s, p);
    }
    while (oldest_drop(s, s->over ? 0 : OLD_PAIRS_MAX))
        ;
    for (struct version *v = s->versions, *next; v; v = next) {
        next = v->next;
        if (v->n_ref == 0 && !version_is_recent(s, v))
            version_drop(s, v);
    }
}

static bool file_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec
           && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static bool version_key_find(struct version *v)
{
    const int64_t which[] = { (int64_t)v->st.st_dev, (int64_t)v->st.st_ino, v->st.st_size, v->st.st_mtim.tv_sec, v->st.st_mtim.tv_nsec };
    if (!v->plain)
        return weights_file_key(v->map.data, v->map.size_bytes, &v->key);
    v->key = delta_hash(which, sizeof which);
    return v->map.size_bytes > 0;
}

static void version_gone(const char *path, struct error *err)
{
    error_set(err, ERR_NOT_FOUND, "there is no '%s', or no longer", path);
}

/* The file path, mapped. may_be_gone: one that was mapped before and has been removed since will do. plain: of any kind. NULL: see err. */
static struct version *version_find(struct bulk_server *s, const char *path, bool may_be_gone, bool plain, struct error *err)
{
    struct stat st;
    bool there = stat(path, &st) == 0;
    for (struct version *v = s->versions; v; v = v->next)
        if (strcmp(v->path, path) == 0 && v->plain == plain && (there ? file_same(&v->st, &st) : may_be_gone))
            return v;
    struct version *v = there ? calloc(1, sizeof *v) : NULL;
    if (!v) {
        if (there)
            error_set(err, ERR_NO_MEMORY, "no memory to send '%s'", path);
        else
            version_gone(path, err);
        return NULL;
    }
    snprintf(v->path, sizeof v->path, "%s", path);
    v->st = st;
    v->plain = plain;
    if (!file_map_open(&v->map, path, err)) {
        if (!path_exists(path))    // it has been removed since
            version_gone(path, err);
        free(v);
        return NULL;
    }
    v->next = s->versions;
    s->versions = v;
    if ((int64_t)v->map.size_bytes == st.st_size && st.st_size <= VERSION_MAX && version_key_find(v))
        return v;
    error_set(err, ERR_DATA, plain ? "'%s' is empty" : "'%s' does not hold weights", path);
    version_drop(s, v);
    return NULL;
}

static struct pair *pair_find(struct bulk_server *s, struct version *base, struct version *new, struct error *err)
{
    for (struct pair *p = s->pairs; p; p = p->next)
        if (p->base == base && p->new == new)
            return p;
    uint32_t n = (uint32_t)((new->map.size_bytes + DELTA_BLOCK - 1) / DELTA_BLOCK);
    struct pair *p = malloc(sizeof *p);
    struct packed *block = calloc(n, sizeof *block);
    if (!p || !block) {
        free(p);
        free(block);
        error_set(err, ERR_NO_MEMORY, "no memory to send '%s'", new->path);
        return NULL;
    }
    *p = (struct pair){ .base = base,
                        .new = new,
                        .from = base ? base->key : 0,
                        .to = new->key,
                        .size_bytes = (int64_t) new->map.size_bytes,
                        .n_block = n,
                        .block = block,
                        .next = s->pairs };
    s->pairs = p;
    new->n_ref++;
    if (base)
        base->n_ref++;
    return p;
}

/* ---- chains; with the lock ---- */

/* The pairs that lead from one version's contents to another's into link; how many, at most max, or -1: there are none. */
static int links_find(const struct bulk_server *s, uint64_t from, uint64_t to, int64_t size_bytes, struct pair **link, int max)
{
    if (from == to)
        return 0;
    for (struct pair *p = max > 0 ? s->pairs : NULL; p; p = p->next) {
        bool leads = p->to == to && p->size_bytes == size_bytes && (p->base || !p->new) && p->from != to && pair_is_whole(p);
        int n = leads ? links_find(s, from, p->from, size_bytes, link, max - 1) : -1;
        if (n >= 0) {
            link[n] = p;
            return n + 1;
        }
    }
    return -1;
}

/* A version that is mapped, other than new, and to which links lead from base_key: the fewest. NULL: none. */
static struct version *chain_find(const struct bulk_server *s, uint64_t base_key, const struct version *new, struct pair **link,
                                  int *n_link)
{
    struct version *found = NULL;
    for (struct version *v = s->versions; v; v = v->next) {
        struct pair *some[BULK_LINKS_MAX];
        int n = v == new || v->plain || v->map.size_bytes != new->map.size_bytes
                    ? -1
                    : links_find(s, base_key, v->key, (int64_t)v->map.size_bytes, some, found ? *n_link - 1 : BULK_LINKS_MAX);
        if (n < 0)
            continue;
        found = v;
        *n_link = n;
        memcpy(link, some, (size_t)n * sizeof(struct pair *));
    }
    return found;
}

/* ---- offers; with the lock ---- */

static void offer_end(struct bulk_server *s, struct offer *o)
{
    o->pair->n_ref--;
    for (int i = 0; i < o->n_link; i++)
        o->link[i]->n_ref--;
    explicit_bzero(o, sizeof *o);
    unused_drop(s);
}

/* As bulk_server_offer; plain: as bulk_server_offer_file. */
static bool offer_make(struct bulk_server *s, const char *path, bool plain, const char *base_path, uint64_t base_key, bool links,
                       struct bulk_offer *out, struct error *err)
{
    struct offer *o = NULL;
    struct error none;
    for (int i = 0; i < BULK_OFFERS_MAX && !o; i++)
        if (!s->offer[i].pair)
            o = &s->offer[i];
    if (!o)
        return error_set(err, ERR_FULL, "files are already on their way to nodes %d times; ask again", BULK_OFFERS_MAX);
    struct version *new = version_find(s, path, false, plain, err);
    if (!new)
        return false;
    struct version *base = base_path ? version_find(s, base_path, true, false, &none) : NULL;
    if (base && (base->key != base_key || base->map.size_bytes != new->map.size_bytes))
        base = NULL;
    struct pair *link[BULK_LINKS_MAX];
    int n_link = 0;
    if (!base && base_path && links)
        base = chain_find(s, base_key, new, link, &n_link);
    struct bulk_ticket ticket;
    struct pair *p = bulk_ticket_make(&ticket, err) ? pair_find(s, base, new, err) : NULL;
    if (p) {
        *o = (struct offer){ .ticket = ticket, .pair = p, .n_link = n_link, .used_ms = clock_ms() };
        for (int i = 0; i < n_link; i++) {
            o->link[i] = link[i];
            link[i]->n_ref++;
        }
        *out = (struct bulk_offer){
            .ticket = ticket, .size_bytes = (int64_t) new->map.size_bytes, .key = new->key, .has_base = base != NULL
        };
        p->n_ref++;
        if (s->recent[0] != new && !plain) {
            s->recent[1] = s->recent[0];
            s->recent[0] = new;
        }
    }
    unused_drop(s);
    return p != NULL;
}

bool bulk_server_offer(struct bulk_server *s, const char *path, const char *base_path, uint64_t base_key, bool links,
                       struct bulk_offer *out, struct error *err)
{
    pthread_mutex_lock(&s->lock);
    bool ok = offer_make(s, path, false, base_path, base_key, links, out, err);
    pthread_mutex_unlock(&s->lock);
    return ok;
}

bool bulk_server_offer_file(struct bulk_server *s, const char *path, struct bulk_offer *out, struct error *err)
{
    pthread_mutex_lock(&s->lock);
    bool ok = offer_make(s, path, true, NULL, 0, false, out, err);
    pthread_mutex_unlock(&s->lock);
    return ok;
}

static bool offer_is_idle(const struct offer *o)
{
    return o->pair && o->n_connection == 0;
}

void bulk_server_tick(struct bulk_server *s)
{
    int64_t now = clock_ms();
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < BULK_OFFERS_MAX; i++)
        if (offer_is_idle(&s->offer[i]) && now >= s->offer[i].used_ms + IDLE_MS)
            offer_end(s, &s->offer[i]);
    pthread_mutex_unlock(&s->lock);
}

int64_t bulk_server_due(struct bulk_server *s)
{
    int64_t due = INT64_MAX;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < BULK_OFFERS_MAX; i++)
        if (offer_is_idle(&s->offer[i]))
            due = MIN(due, s->offer[i].used_ms + IDLE_MS);
    pthread_mutex_unlock(&s->lock);
    return due;
}

void bulk_server_look(struct bulk_server *s, struct bulk_server_look *out)
{
    pthread_mutex_lock(&s->lock);
    *out = (struct bulk_server_look){ .n_connection = s->n_connection, .sent_bytes = s->sent_bytes, .block_bytes = s->block_bytes };
    pthread_mutex_unlock(&s->lock);
}

/* ---- a connection's thread ---- */

/* Write block i, which is this thread's to write, and note it for the others. Its bytes are in scratch, whether the note has a copy or not. */
static void block_write(struct bulk_server *s, struct pair *p, uint32_t i, struct delta_coder *coder, uint8_t *scratch, struct packed *out)
{
    size_t at = (size_t)i * DELTA_BLOCK, n = MIN(DELTA_BLOCK, p->new->map.size_bytes - at);
    const uint8_t *new = p->new->map.data + at;
    *out = (struct packed){ .state = PACKED_DONE, .hash = delta_hash(new, n) };
    out->len = (uint32_t)delta_encode(coder, p->base ? p->base->map.data + at : NULL, new, n, scratch, &out->kind);
    uint8_t *copy = out->len > 0 ? malloc(out->len) : NULL;
    if (copy)
        memcpy(copy, scratch, out->len);
    pthread_mutex_lock(&s->lock);
    while (copy && s->packed_bytes + out->len > PACKED_MAX && oldest_drop(s, 0))
        ;
    bool kept = out->len == 0 || (copy && s->packed_bytes + out->len <= PACKED_MAX);
    p->block[i] = kept ? *out : (struct packed){ 0 };
    if (kept && copy) {
        p->block[i].data = copy;
        p->bytes += out->len;
        s->packed_bytes += out->len;
        copy = NULL;
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    free(copy);
    out->data = scratch;
}

/* What block i is sent as; scratch holds DELTA_BLOCK bytes for it. */
static bool block_get(struct bulk_server *s, struct pair *p, uint32_t i, struct delta_coder *coder, uint8_t *scratch, struct packed *out,
                      struct error *err)
{
    struct timespec until = clock_after(WRITE_LIMIT_MS);
    bool late = false;
    pthread_mutex_lock(&s->lock);
    while (p->block[i].state == PACKED_BUSY && !late)
        late = pthread_cond_timedwait(&s->changed, &s->lock, &until) == ETIMEDOUT;
    bool mine = p->block[i].state == PACKED_NOT;
    *out = p->block[i];
    if (mine)
        p->block[i].state = PACKED_BUSY;
    pthread_mutex_unlock(&s->lock);
    if (mine)
        block_write(s, p, i, coder, scratch, out);
    return out->state == PACKED_DONE || error_set(err, ERR_TIMEOUT, "a block of weights was not written in %d s", WRITE_LIMIT_MS / 1000);
}

static bool block_send(struct bulk *b, enum bulk_record type, uint32_t i, const struct packed *x, const void *data, size_t len,
                       struct error *err)
{
    struct bulk_block head = { .index = i, .kind = (uint8_t)x->kind, .hash = x->hash };
    return bulk_send(b, type, &head, sizeof head, data, len, err);
}

/* Are the links of block i and what follows, last, together smaller than the block, of n bytes? */
static bool chain_is_smaller(const struct offer *o, uint32_t i, const struct packed *last, size_t n)
{
    size_t bytes = last->len;
    bool whole = last->kind == DELTA_RAW;
    for (int k = 0; k < o->n_link; k++) {
        whole = whole || o->link[k]->block[i].kind == DELTA_RAW;
        bytes += o->link[k]->block[i].len + sizeof(struct bulk_block);
    }
    return !whole && bytes < n;
}

static bool links_send(struct bulk *b, const struct offer *o, uint32_t i, struct error *err)
{
    for (int k = 0; k < o->n_link; k++) {
        const struct packed *x = &o->link[k]->block[i];
        if (x->kind != DELTA_SAME && !block_send(b, BULK_LINK, i, x, x->data, x->len, err))
            return false;
    }
    return true;
}

static bool want_serve(struct connection *c, struct bulk *b, const struct bulk_want *want, struct delta_coder *coder, uint8_t *scratch,
                       struct error *err)
{
    struct pair *p = c->offer->pair;
    struct packed x;
    if (want->n == 0 || want->first >= p->n_block || want->n > p->n_block - want->first)
        return error_set(err, ERR_DATA, "a node wants %" PRIu32 " blocks from %" PRIu32 " on, of %" PRIu32, want->n, want->first,
                         p->n_block);
    for (uint32_t i = want->first; i < want->first + want->n; i++) {
        size_t at = (size_t)i * DELTA_BLOCK, n = MIN(DELTA_BLOCK, p->new->map.size_bytes - at);
        if (!block_get(c->server, p, i, coder, scratch, &x, err))
            return false;
        if (!chain_is_smaller(c->offer, i, &x, n))
            x.kind = DELTA_RAW;
        bool raw = x.kind == DELTA_RAW;
        if ((!raw && !links_send(b, c->offer, i, err))
            || !block_send(b, BULK_BLOCK, i, &x, raw ? p->new->map.data + at : x.data, raw ? n : x.len, err))
            return false;
    }
    return bulk_flush(b, err);
}

/* Serve until the node has enough. False: the connection has failed. */
static bool wants_serve(struct connection *c, struct bulk *b, struct delta_coder *coder, uint8_t *scratch, struct error *err)
{
    uint8_t type;
    const void *data;
    size_t len;
    struct bulk_want want;
    for (int64_t sent = 0;;) {
        if (!bulk_receive(b, &type, &data, &len, err))
            return false;
        if (type == BULK_DONE)
            break;
        if (type != BULK_WANT || len != sizeof want)
            return error_set(err, ERR_DATA, "a node has sent a record of type %u with %zu bytes", type, len);
        memcpy(&want, data, sizeof want);
        if (!want_serve(c, b, &want, coder, scratch, err))
            return false;
        pthread_mutex_lock(&c->server->lock);
        c->server->sent_bytes += bulk_sent(b) - sent;
        c->server->block_bytes += (int64_t)MIN((size_t)want.n * DELTA_BLOCK, c->offer->pair->new->map.size_bytes);
        pthread_mutex_unlock(&c->server->lock);
        sent = bulk_sent(b);
    }
    pthread_mutex_lock(&c->server->lock);
    c->offer->over = true;
    pthread_mutex_unlock(&c->server->lock);
    return true;
}

static void connection_end(struct connection *c, struct bulk *b)
{
    struct bulk_server *s = c->server;
    struct offer *o = c->offer;
    pthread_mutex_lock(&s->lock);
    struct connection **at = &s->connections;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    if (b)
        bulk_free(b);    // with the lock: bulk_server_free shuts the descriptors of the list
    else
        close(c->fd);
    s->n_connection--;
    o->n_connection--;
    o->used_ms = clock_ms();
    if (o->over && o->n_connection == 0)
        offer_end(s, o);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    free(c);
}

static void *connection_main(void *arg)
{
    struct connection *c = arg;
    struct error err;
    struct delta_coder *coder = delta_coder_new(&err);
    uint8_t *scratch = malloc(DELTA_BLOCK);
    struct bulk *b = bulk_accept(c->fd, c->hello, &c->offer->ticket, LIMIT_MS, &err);
    if (coder && scratch && b && !wants_serve(c, b, coder, scratch, &err) && err.code != ERR_CLOSED)
        log_warn("weights for a node: %s", err.text);
    delta_coder_free(coder);
    free(scratch);
    connection_end(c, b);
    return NULL;
}

static bool connection_start(struct connection *c)
{
    pthread_t thread;
    bool ok = thread_start(&thread, connection_main, c) == 0;
    if (ok)
        pthread_detach(thread);
    return ok;
}

bool bulk_server_connection(void *server, int fd, const uint8_t *hello)
{
    struct bulk_server *s = server;
    struct offer *o = NULL;
    struct connection *c = calloc(1, sizeof *c);
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < BULK_OFFERS_MAX && !o; i++)
        if (s->offer[i].pair && memcmp(s->offer[i].ticket.name, hello + 4, BULK_NAME_BYTES) == 0)
            o = &s->offer[i];
    bool ok = c && o && !o->over && !s->over && o->n_connection < BULK_CONNECTIONS_EACH;
    if (ok) {
        *c = (struct connection){ .server = s, .offer = o, .fd = fd, .next = s->connections };
        memcpy(c->hello, hello, BULK_HELLO_BYTES);
        if ((ok = connection_start(c))) {    // it waits for the lock before it looks at the list
            s->connections = c;
            s->n_connection++;
            o->n_connection++;
        }
    }
    pthread_mutex_unlock(&s->lock);
    if (!ok)
        free(c);
    return ok;
}

void bulk_server_free(struct bulk_server *s)
{
    if (!s)
        return;
    struct timespec until = clock_after(DRAIN_MS);
    bool late = false;
    pthread_mutex_lock(&s->lock);
    s->over = true;
    for (struct connection *c = s->connections; c; c = c->next)
        shutdown(c->fd, SHUT_RDWR);
    while (s->n_connection > 0 && !late)
        late = pthread_cond_timedwait(&s->changed, &s->lock, &until) == ETIMEDOUT;
    if (!late) {
        for (int i = 0; i < BULK_OFFERS_MAX; i++)
            if (s->offer[i].pair)
                offer_end(s, &s->offer[i]);
        unused_drop(s);
    }
    pthread_mutex_unlock(&s->lock);
    if (late) {
        log_warn("a thread that sends weights does not end");    // it goes with the process, and so does what it uses
        return;
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
