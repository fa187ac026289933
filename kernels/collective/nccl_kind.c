/* nccl_kind.c - GPUs whose bytes go by NCCL (comm.h); presence, barriers and counters are local's, or between hosts tcp's
 *
 * NCCL's unique id is a secret: whoever knows it can join. Ranks of one host tell it each other in memory; between hosts it goes with the
 * meeting's key. What NCCL itself sends over a network is not encrypted, and whoever can send to its ports can disturb it.
 *
 * Before a transfer all ranks meet and compare what they send, so that no kernel of NCCL is started for a rank that does not come. A
 * rank that dies within a transfer leaves the others' kernels waiting: their poll sees the death and fails, and leaving ends the
 * kernels (ncclCommAbort). One that is late within a transfer is found by counters (late.h), and named. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "kernels/collective/comm.h"
#include "kernels/collective/kinds.h"
#include "kernels/collective/late.h"
#include "kernels/ops.h"
#include "protocol/base/clock.h"

struct nccl_ranks {
    struct collective base;
    struct collective *local;    // or tcp
    struct comm *comm;           // NULL: this rank is alone
    int64_t wait_ms;
    void (*waits)(void *ctx, int rank);
    struct late late;    // of transfers, or of joining
    int told;            // 1 + the rank that the operator is told of; 0: none
};

static struct nccl_ranks *of(const struct collective *c)
{
    return (struct nccl_ranks *)c;
}

/* Is everybody alive, and the transfer not too slow? */
static bool others_look(struct nccl_ranks *n, struct error *err)
{
    struct collective *l = n->local;
    char name[64];
    int64_t now = clock_ms();
    int late = late_look(&n->late, l, now);
    for (int q = 0; q < l->n_rank; q++) {
        struct collective_wait w = { 0 };    // asked only whether it lives
        if (q != l->rank && !l->kind->wait(l, &w, q, 0, l->kind->count(l, q, 0), 0, err))
            return false;
    }
    if (late >= 0 && n->waits && n->told != late + 1) {
        n->told = late + 1;
        n->waits(n->base.ctx, late);
    }
    if (now - n->late.began_ms < n->wait_ms)
        return true;
    if (late >= 0)
        return error_set(err, ERR_TIMEOUT, "%s has not come in %" PRId64 " s", collective_name(l, late, name, sizeof name),
                         (n->wait_ms + 999) / 1000);
    return error_set(err, ERR_TIMEOUT, "the ranks' bytes have not come in %" PRId64 " s, though no rank is late",
                     (n->wait_ms + 999) / 1000);
}

static void told_end(struct nccl_ranks *n)
{
    if (n->told)
        n->waits(n->base.ctx, -1);
    n->told = 0;
}

/* Until the comm is ready. */
static bool comm_wait(struct nccl_ranks *n, int64_t ms, bool *done, struct error *err)
{
    enum comm_state state;
    int64_t end = clock_ms() + ms;
    while ((state = comm_poll(n->comm, err)) == COMM_BUSY) {
        if (!others_look(n, err)) {
            told_end(n);
            return false;
        }
        if (clock_ms() >= end)
            break;
        nanosleep(&(struct timespec){ .tv_nsec = 5000 }, NULL);
    }
    if (state == COMM_FAILED)    // as it does when a rank that has given up ends its part: that one's words say more
        (void)!others_look(n, err);
    *done = state == COMM_READY;
    if (*done)
        late_done(&n->late, n->local);
    if (*done || state == COMM_FAILED)
        told_end(n);
    return state != COMM_FAILED;
}

static void nccl_touches(struct collective *c, bool now)
{
    of(c)->local->kind->touches(of(c)->local, now);
}

static void nccl_count_set(struct collective *c, int which, uint32_t value)
{
    collective_count_set(of(c)->local, which, value);
}

static uint32_t nccl_count(const struct collective *c, int rank, int which)
{
    return collective_count(of(c)->local, rank, which);
}

static bool nccl_wait(struct collective *c, struct collective_wait *w, int rank, int which, uint32_t seen, int64_t ms, struct error *err)
{
    return collective_wait(of(c)->local, w, rank, which, seen, ms, err);
}

static void nccl_wait_end(struct collective *c, struct collective_wait *w)
{
    collective_wait_end(of(c)->local, w);
}

static bool nccl_gather(struct collective *c, const void *mine, size_t size_bytes, void *all, struct error *err)
{
    bool ok = collective_gather(of(c)->local, mine, size_bytes, all, err);
    c->last = of(c)->local->last;
    return ok;
}

static bool nccl_begin(struct collective *c, const struct collective_bytes *b, struct error *err)
{
    struct nccl_ranks *n = of(c);
    struct comm_exchange x = { .send = b->send, .recv = b->recv, .send_bytes = b->send_bytes, .recv_bytes = b->recv_bytes };
    uint64_t mine[COLLECTIVE_RANK_MAX], all[COLLECTIVE_RANK_MAX * COLLECTIVE_RANK_MAX];
    for (int q = 0; q < c->n_rank; q++)
        mine[q] = b->send_bytes[q];
    return collective_gather(n->local, mine, (size_t)c->n_rank * sizeof mine[0], all, err) && collective_bytes_agree(c, b, all, err)
           && (!n->comm || comm_exchange(n->comm, &x, err));
}

static bool nccl_poll(struct collective *c, int64_t ms, bool *done, struct error *err)
{
    *done = !of(c)->comm;
    return *done || comm_wait(of(c), ms, done, err);
}

static void nccl_abandon(struct collective *c, int rank, const char *why)
{
    of(c)->local->kind->abandon(of(c)->local, rank, why);
}

static const char *nccl_cause(const struct collective *c, int *rank)
{
    return of(c)->local->kind->cause(of(c)->local, rank);
}

static void nccl_leave(struct collective *c)
{
    comm_free(of(c)->comm);
    collective_leave(of(c)->local);
    free(c);
}

static struct collective *nccl_join(const struct collective_config *config, struct error *err)
{
    struct collective_config local = *config;
    struct comm_id mine = { { 0 } }, all[COLLECTIVE_RANK_MAX];
    struct nccl_ranks *n = NULL;
    bool done = false;
    if (config->dev->host_memory)
        error_set(err, ERR_UNSUPPORTED, "NCCL moves bytes between GPUs; for %s there are ipc, local and tcp", config->dev->name);
    else if (comm_available(config->dev, err) && !(n = calloc(1, sizeof *n)))
        error_set(err, ERR_NO_MEMORY, "no memory for the exchange between ranks");
    if (!n)
        return NULL;
    n->base = (struct collective){ .kind = &collective_nccl,
                                   .rank = config->rank,
                                   .n_rank = config->n_rank,
                                   .dev = config->dev,
                                   .name = config->name_of,
                                   .ctx = config->ctx };
    n->waits = config->waits;
    n->wait_ms = config->join_ms;    // until NCCL has joined, too
    bool apart = config->address != NULL && config->n_rank > 1, ok = true;
    local.kind = apart ? "tcp" : "local";
    if (apart) {
        local.dev = NULL;
        local.secret = &mine;
        local.secret_bytes = sizeof mine;
        ok = config->rank > 0 || comm_id_make(config->dev, &mine, err);
    }
    ok = ok && (n->local = collective_join(&local, err)) != NULL;
    if (ok && config->n_rank == 1) {
        n->wait_ms = config->wait_ms;
        return &n->base;
    }
    if (!apart)
        ok = ok && (config->rank > 0 || comm_id_make(config->dev, &mine, err)) && collective_gather(n->local, &mine, sizeof mine, all, err);
    ok = ok && (n->comm = comm_new(config->dev, apart ? &mine : &all[0], config->n_rank, config->rank, err));
    while (ok && !done)
        ok = comm_wait(n, 100, &done, err);
    n->wait_ms = config->wait_ms;
    if (ok)
        return &n->base;
    nccl_leave(&n->base);
    return NULL;
}

const struct collective_kind collective_nccl = {
    .name = "nccl",
    .join = nccl_join,
    .abandon = nccl_abandon,
    .cause = nccl_cause,
    .leave = nccl_leave,
    .touches = nccl_touches,
    .count_set = nccl_count_set,
    .count = nccl_count,
    .wait = nccl_wait,
    .wait_end = nccl_wait_end,
    .gather = nccl_gather,
    .begin = nccl_begin,
    .poll = nccl_poll,
};
