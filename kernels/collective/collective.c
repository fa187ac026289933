#include "kernels/collective/collective.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "kernels/collective/kinds.h"
#include "kernels/ops.h"

static const struct collective_kind *const kinds[] = { &collective_ipc, &collective_local, &collective_tcp, &collective_nccl };

struct collective *collective_join(const struct collective_config *config, struct error *err)
{
    const struct collective_kind *k = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        if (strcmp(kinds[i]->name, config->kind) == 0)
            k = kinds[i];
    if (!k) {
        error_set(err, ERR_USAGE, "there is no way for ranks to meet called '%s'", config->kind);
        return NULL;
    }
    if (config->n_rank < 1 || config->n_rank > COLLECTIVE_RANK_MAX || config->rank < 0 || config->rank >= config->n_rank) {
        error_set(err, ERR_USAGE, "rank %d of %d is not possible; at most %d meet", config->rank, config->n_rank, COLLECTIVE_RANK_MAX);
        return NULL;
    }
    return k->join(config, err);
}

/* Close the memory offered by ranks below n. */
static void offer_close(struct collective *c, struct offer *o, int n)
{
    for (int q = 0; q < n; q++)
        if (q != c->rank && o->of[q])
            o->host ? host_share_close(c->dev, o->of[q], o->size_bytes) : mem_share_close(c->dev, o->of[q], o->size_bytes);
}

void collective_leave(struct collective *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->n_offer; i++)
        offer_close(c, &c->offer[i], c->n_rank);
    c->kind->leave(c);
}

void collective_abandon(struct collective *const *c, int n, const char *why)
{
    char first[COLLECTIVE_WHY_MAX];
    int rank = -1;
    const char *known = NULL;
    for (int i = 0; i < n && !known; i++)
        known = c[i] ? c[i]->kind->cause(c[i], &rank) : NULL;
    snprintf(first, sizeof first, "%s", known ? known : why[0] ? why : "it does not say why");
    for (int i = 0; i < n; i++)
        if (c[i])
            c[i]->kind->abandon(c[i], known ? rank : c[i]->rank, first);
}

bool collective_over(const struct collective *c, struct error *err)
{
    char name[64];
    int rank;
    const char *why = c->kind->cause(c, &rank);
    return why ? error_set(err, ERR_CLOSED, "%s gave up: %s", collective_name(c, rank, name, sizeof name), why)
               : error_set(err, ERR_CLOSED, "another rank has left");
}

bool collective_call(const char *dir, const char *name, struct error *err)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = file_create(path, O_RDWR | O_EXCL, 0600, err);
    if (fd < 0)
        return error_wrap(err, "while calling a meeting");
    close(fd);
    return true;
}

void collective_call_off(const char *dir, const char *name)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}

const char *collective_name(const struct collective *c, int rank, char *out, size_t size)
{
    if (c->name)
        return c->name(c->ctx, rank, out, size);
    snprintf(out, size, "rank %d", rank);
    return out;
}

int collective_rank(const struct collective *c)
{
    return c->rank;
}

int collective_n_rank(const struct collective *c)
{
    return c->n_rank;
}

bool collective_gather(struct collective *c, const void *mine, size_t size_bytes, void *all, struct error *err)
{
    BUG_IF(size_bytes > COLLECTIVE_GATHER_MAX, "%zu bytes to be gathered", size_bytes);
    return c->kind->gather(c, mine, size_bytes, all, err);
}

int collective_last(const struct collective *c)
{
    return c->last;
}

int64_t collective_shard(int64_t n, int n_rank, int r, int64_t *first)
{
    int64_t n_block = (n + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK, each = (n_block + n_rank - 1) / n_rank * SUMSQ_BLOCK;
    *first = MIN(n, each * r);
    return MIN(n, *first + each) - *first;
}

static bool offer_make(struct collective *c, void *mem, size_t size_bytes, const struct mem_handle *h, bool host, struct error *err)
{
    struct error ignored;    // the other way works as well, only slower
    uint8_t can = 1, others[COLLECTIVE_RANK_MAX];
    BUG_IF(c->n_offer == COLLECTIVE_OFFER_MAX, "more than %d pieces of memory offered", COLLECTIVE_OFFER_MAX);
    if (!c->kind->shares)
        return true;
    struct offer *o = &c->offer[c->n_offer];
    *o = (struct offer){ .size_bytes = size_bytes, .host = host };
    if (!collective_gather(c, h, sizeof *h, o->handle, err))
        return false;
    for (int q = 0; q < c->n_rank; q++) {
        o->of[q] = q == c->rank ? mem
                   : !mem       ? NULL
                   : host       ? host_share_open(c->dev, &o->handle[q], size_bytes, &ignored)
                                : mem_share_open(c->dev, &o->handle[q], size_bytes, &ignored);
        can = can && o->of[q];
    }
    bool ok = collective_gather(c, &can, 1, others, err);
    for (int q = 0; q < c->n_rank && ok; q++)
        can = can && others[q];
    if (ok && can)
        c->n_offer++;
    else
        offer_close(c, o, c->n_rank);
    return ok;
}

bool collective_offer(struct collective *c, void *mem, size_t size_bytes, const struct mem_handle *h, struct error *err)
{
    return offer_make(c, mem, size_bytes, h, false, err);
}

bool collective_offer_host(struct collective *c, void *mem, size_t size_bytes, const struct mem_handle *h, struct error *err)
{
    return offer_make(c, mem, size_bytes, h, true, err);
}

/* The offer that p lies in, and how far in; NULL: none. */
static const struct offer *offer_find(const struct collective *c, const void *p, size_t *at)
{
    for (int i = 0; i < c->n_offer; i++) {
        const char *mine = c->offer[i].of[c->rank];
        if ((const char *)p >= mine && (const char *)p < mine + c->offer[i].size_bytes) {
            *at = (size_t)((const char *)p - mine);
            return &c->offer[i];
        }
    }
    return NULL;
}

void *collective_peer(const struct collective *c, const void *p, int rank)
{
    size_t at;
    const struct offer *o = offer_find(c, p, &at);
    return o ? o->of[rank] + at : NULL;
}

const struct mem_handle *collective_handle(const struct collective *c, const void *p, int rank)
{
    size_t at;
    const struct offer *o = offer_find(c, p, &at);
    return o && at == 0 ? &o->handle[rank] : NULL;
}

bool collective_reaches(struct collective *c, bool *yes, struct error *err)
{
    const size_t size_bytes = 4096;
    struct mem_handle h = { 0 };
    struct error ignored;
    int before = c->n_offer;
    *yes = false;
    if (!c->kind->shares)
        return true;
    void *mem = mem_share_new(c->dev, size_bytes, "a test of the way between ranks", &h, &ignored);
    uint8_t mine = 0, all[COLLECTIVE_RANK_MAX];
    bool ok = collective_offer(c, mem, size_bytes, &h, err);
    *yes = ok && c->n_offer > before;
    if (*yes)
        offer_close(c, &c->offer[--c->n_offer], c->n_rank);
    ok = ok && collective_gather(c, &mine, 1, all, err);    // nobody has it open any more
    mem_share_free(c->dev, mem, size_bytes, &h);
    return ok;
}

bool collective_touch_begin(struct collective *c, struct error *err)
{
    struct collective_wait w = { 0 };
    if (c->n_touch++ == 0)
        c->kind->touches(c, true);    // first: a rank that leaves after this look sees it
    bool ok = c->kind->wait(c, &w, -1, 0, 0, 0, err);
    for (int q = 0; q < c->n_rank && ok; q++)
        ok = q == c->rank || c->kind->wait(c, &w, q, 0, c->kind->count(c, q, 0), 0, err);
    c->kind->wait_end(c, &w);
    if (!ok && --c->n_touch == 0)
        c->kind->touches(c, false);
    return ok;
}

void collective_touch_end(struct collective *c)
{
    struct error ignored;
    (void)!lanes_sync(c->dev, &ignored);    // a device that fails does no more copies
    if (--c->n_touch == 0)
        c->kind->touches(c, false);
}

void collective_count_set(struct collective *c, int which, uint32_t value)
{
    c->kind->count_set(c, which, value);
}

uint32_t collective_count(const struct collective *c, int rank, int which)
{
    return c->kind->count(c, rank, which);
}

bool collective_wait(struct collective *c, struct collective_wait *w, int rank, int which, uint32_t seen, int64_t ms, struct error *err)
{
    return c->kind->wait(c, w, rank, which, seen, ms, err);
}

void collective_wait_end(struct collective *c, struct collective_wait *w)
{
    c->kind->wait_end(c, w);
}

bool collective_bytes_agree(const struct collective *c, const struct collective_bytes *b, const uint64_t *all, struct error *err)
{
    char name[64];
    for (int q = 0; q < c->n_rank; q++)
        if (q != c->rank && all[q * c->n_rank + c->rank] != b->recv_bytes[q])
            return error_set(err, ERR_DATA, "%s sends %" PRIu64 " bytes where %zu are awaited", collective_name(c, q, name, sizeof name),
                             all[q * c->n_rank + c->rank], b->recv_bytes[q]);
    return true;
}

bool collective_begin(struct collective *c, const struct collective_bytes *b, struct error *err)
{
    if (b->send_bytes[c->rank] != b->recv_bytes[c->rank])
        return error_set(err, ERR_DATA, "a rank sends itself %zu bytes where %zu are awaited", b->send_bytes[c->rank],
                         b->recv_bytes[c->rank]);
    return mem_copy(c->dev, b->recv[c->rank], b->send[c->rank], b->send_bytes[c->rank], COPY_D2D, err) && c->kind->begin(c, b, err);
}

bool collective_poll(struct collective *c, int64_t ms, bool *done, struct error *err)
{
    return c->kind->poll(c, ms, done, err);
}

bool collective_all_to_all(struct collective *c, const struct collective_bytes *b, struct error *err)
{
    bool done = false, ok = collective_begin(c, b, err);
    while (ok && !done)
        ok = collective_poll(c, 1000, &done, err);
    return ok && device_sync(c->dev, err);
}

bool collective_all_gather(struct collective *c, float *x, const float *own, int64_t n, struct error *err)
{
    if (c->kind->all_gather)
        return c->kind->all_gather(c, x, own, n, err);
    struct collective_bytes b = { 0 };
    int64_t first, n_own = collective_shard(n, c->n_rank, c->rank, &first);
    for (int q = 0; q < c->n_rank; q++) {
        b.send[q] = own;
        b.send_bytes[q] = (size_t)n_own * sizeof *x;
        b.recv_bytes[q] = (size_t)collective_shard(n, c->n_rank, q, &first) * sizeof *x;
        b.recv[q] = x + first;
    }
    return device_sync(c->dev, err) && collective_all_to_all(c, &b, err);
}
