#include "kernels/collective/collective.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "kernels/collective/local.h"
#include "kernels/ops.h"

static const struct collective_kind *const kinds[] = { &collective_local };

struct collective *collective_join(const struct collective_config *config, struct error *err)
{
    const struct collective_kind *k = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        if (strcmp(kinds[i]->name, config->kind) == 0)
            k = kinds[i];
    if (!k) {
        error_set(err, ERR_USAGE, "ranks cannot meet by '%s'", config->kind);
        return NULL;
    }
    if (config->n_rank < 1 || config->n_rank > COLLECTIVE_RANK_MAX || config->rank < 0 || config->rank >= config->n_rank) {
        error_set(err, ERR_USAGE, "rank %d of %d is not possible; at most %d meet", config->rank, config->n_rank, COLLECTIVE_RANK_MAX);
        return NULL;
    }
    return k->join(config, err);
}

/* Let go of what ranks below n gave. */
static void offer_close(struct collective *c, struct offer *o, int n)
{
    for (int q = 0; q < n; q++)
        if (q != c->rank && o->of[q])
            mem_share_close(c->dev, o->of[q], o->size_bytes);
}

void collective_leave(struct collective *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->n_offer; i++)
        offer_close(c, &c->offer[i], c->n_rank);
    c->kind->leave(c);
}

bool collective_call(const char *dir, const char *name, struct error *err)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_errno(err, "cannot call a meeting at '%s'", path);
    close(fd);
    return true;
}

void collective_call_off(const char *dir, const char *name)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
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

int64_t collective_shard(int64_t n, int n_rank, int r, int64_t *first)
{
    int64_t n_block = (n + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK, each = (n_block + n_rank - 1) / n_rank * SUMSQ_BLOCK;
    *first = MIN(n, each * r);
    return MIN(n, *first + each) - *first;
}

bool collective_offer(struct collective *c, const void *mem, size_t size_bytes, const struct mem_handle *h, struct error *err)
{
    struct mem_handle all[COLLECTIVE_RANK_MAX];
    struct error ignored;    // the other way is as good, only slower
    uint8_t can = 1, others[COLLECTIVE_RANK_MAX];
    BUG_IF(c->n_offer == COLLECTIVE_OFFER_MAX, "more than %d pieces of memory offered", COLLECTIVE_OFFER_MAX);
    struct offer *o = &c->offer[c->n_offer];
    *o = (struct offer){ .size_bytes = size_bytes };
    if (!collective_gather(c, h, sizeof *h, all, err))
        return false;
    for (int q = 0; q < c->n_rank; q++) {
        o->of[q] = q == c->rank ? mem : mem_share_open(c->dev, &all[q], size_bytes, &ignored);
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

/* The offer that p lies in, and how far in; NULL: none, so it goes through host memory. */
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

/* What this rank has asked of its device is done, on all ranks. */
static bool all_done(struct collective *c, struct error *err)
{
    uint8_t mine = 0, all[COLLECTIVE_RANK_MAX];
    return device_sync(c->dev, err) && collective_gather(c, &mine, 1, all, err);
}

/* The reading is over: before anyone changes or frees what others read. */
static bool read_end(struct collective *c, bool ok, struct error *err)
{
    struct error ignored;
    ok = device_sync(c->dev, ok ? err : &ignored) && ok;
    c->kind->reads(c, false);
    return ok && all_done(c, err);
}

bool collective_reduce(struct collective *c, float *sum, const float *x, int64_t n, int n_given, struct error *err)
{
    BUG_IF(n_given < 0 || n_given > c->n_rank, "a sum over %d of %d ranks", n_given, c->n_rank);
    size_t at;
    int64_t first, m = collective_shard(n, c->n_rank, c->rank, &first);
    const struct offer *o = offer_find(c, x, &at);
    if (!o)
        return c->kind->reduce(c, sum, x, n, n_given, err);
    c->kind->reads(c, true);
    bool ok = all_done(c, err);
    for (int q = 0; q < n_given && ok; q++)
        ok = OP(c->dev, err, axpy, .y = sum, .x = (const float *)(const void *)(o->of[q] + at) + first, .n = m, .scale = 1);
    return read_end(c, ok, err);
}

bool collective_all_gather(struct collective *c, float *x, const float *sum, int64_t n, struct error *err)
{
    size_t at;
    const struct offer *o = offer_find(c, sum, &at);
    if (!o)
        return c->kind->all_gather(c, x, sum, n, err);
    c->kind->reads(c, true);
    bool ok = all_done(c, err);
    for (int q = 0; q < c->n_rank && ok; q++) {
        int64_t first, m = collective_shard(n, c->n_rank, q, &first);
        ok = m == 0 || mem_copy(c->dev, x + first, o->of[q] + at, (size_t)m * sizeof *x, COPY_D2D, err);
    }
    return read_end(c, ok, err);
}
