/* exchange.c - how a give goes its way between ranks that reach each other's memory, and what does not depend on that; see exchange.h,
 * and exchange_apart.c for the others
 *
 * Gives are numbered through all rounds and steps, the same on all ranks; the numbers below only rise, and one never passes the next:
 *
 *   taken <= taking                 this rank's sums: made, and asked for
 *   pushed <= pushing <= ready <= given    its own gives: copies done, copies asked for, computed, asked of the device
 *
 *  1. Give g may be pushed when it is computed and each owner has taken give g - EXCHANGE_STAGES; g - 1, where one of both takes all
 *     places.
 *  2. It may be taken when all ranks that give it have pushed it. The shard of this rank's own is added from where it was computed.
 *  3. Its place may be computed into again when it is pushed and taken here. With a place for each piece the gradients of several
 *     micro-batches may be added up there before it is given.
 *  4. A rank that has no gradient in the last round passes over its gives: they count as pushed.
 *  5. The counters that the others see are ready, pushed and taken; each is set after what it counts is done on the device. Nobody
 *     goes on by ready: it tells a wait for a rank that computes from one for what is on its way. */
#include "kernels/collective/exchange.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "kernels/collective/exchange_impl.h"
#include "protocol/base/clock.h"

#define LANE_OF_SUMS 0
_Static_assert(EXCHANGE_RANK_MAX == COLLECTIVE_RANK_MAX, "as many ranks as meet");
_Static_assert(COLLECTIVE_RANK_MAX <= LANE_SUM_MAX, "a sum takes what all ranks give");

int64_t exchange_stage_n(int64_t piece_max, int64_t slot_n, int n_rank)
{
    int64_t first, whole = collective_shard(piece_max, n_rank, 0, &first), each = collective_shard(slot_n, n_rank, 0, &first);
    return (n_rank - 1) * MAX(EXCHANGE_STAGES * each, whole);
}

int64_t exchange_slots_n(int64_t piece_max, int64_t slot_n, int n_slot)
{
    return MAX(n_slot * slot_n, piece_max);
}

static bool marks_new(struct exchange *x, struct error *err)
{
    bool ok = true;
    if (!(x->computed = calloc((size_t)x->n_mark, sizeof *x->computed)))
        return error_set(err, ERR_NO_MEMORY, "no memory for the exchange between ranks");
    for (int i = 0; ok && i < x->n_mark; i++)
        ok = (x->computed[i] = mark_new(x->f.dev, err)) != NULL;
    for (int i = 0; ok && i < EXCHANGE_STAGES * PUSH_LANES; i++)
        ok = (x->copied[i / PUSH_LANES][i % PUSH_LANES] = mark_new(x->f.dev, err)) != NULL;
    for (int i = 0; ok && i < TAKES; i++)
        ok = (x->added[i] = mark_new(x->f.dev, err)) != NULL;
    return ok && (x->idle = mark_new(x->f.dev, err)) != NULL;
}

static bool watches_new(struct exchange *x, struct error *err)
{
    for (int i = 0; i < PUSH_LANES; i++)
        if (!(x->push_watch[i] = stopwatch_new(x->f.dev, 1 + i, err)) || !(x->send_watch[i] = stopwatch_new(x->f.dev, 1 + i, err)))
            return false;
    return (x->sum_watch = stopwatch_new(x->f.dev, LANE_OF_SUMS, err))
           && (x->fetch_watch = stopwatch_new(x->f.dev, EXCHANGE_FREE_LANE, err))
           && (x->stall_watch = stopwatch_new(x->f.dev, STOPWATCH_DEVICE, err));
}

static void watches_free(struct exchange *x)
{
    for (int i = 0; i < PUSH_LANES; i++) {
        stopwatch_free(x->push_watch[i]);
        stopwatch_free(x->send_watch[i]);
    }
    stopwatch_free(x->sum_watch);
    stopwatch_free(x->fetch_watch);
    stopwatch_free(x->stall_watch);
}

/* Does the piece take all places? */
static bool is_wide(const struct exchange *x, int piece)
{
    return x->f.n_slot && x->f.piece_n[piece] > x->f.slot_n;
}

static bool order_new(struct exchange *x, struct error *err)
{
    if (!(x->order = calloc((size_t)x->f.n_piece, sizeof *x->order)))
        return error_set(err, ERR_NO_MEMORY, "no memory for the exchange between ranks");
    for (int p = x->f.n_piece - 1; p >= 0; p--)
        if (x->f.piece_n[p] > 0)
            x->order[x->n_order++] = p;
    if (!(x->after = calloc((size_t)x->f.n_piece, sizeof *x->after)))
        return error_set(err, ERR_NO_MEMORY, "no memory for the exchange between ranks");
    BUG_IF(x->f.late && (x->n_order < 2 || x->order[x->n_order - 1] != 0), "a late first piece that is not there, or is alone");
    return true;
}

struct exchange *exchange_new(const struct exchange_config *config, struct error *err)
{
    struct exchange *x = calloc(1, sizeof *x);
    int64_t first;
    if (!x) {
        error_set(err, ERR_NO_MEMORY, "no memory for the exchange between ranks");
        return NULL;
    }
    x->f = *config;
    x->rank = collective_rank(config->c);
    x->n_rank = collective_n_rank(config->c);
    x->apart = !collective_peer(config->c, config->stage, x->rank);
    for (int p = 0; p < config->n_piece; p++)
        if (!is_wide(x, p))
            x->shard_max = MAX(x->shard_max, collective_shard(config->piece_n[p], x->n_rank, 0, &first));
    x->n_mark = config->n_slot ? config->n_slot : config->n_piece;
    if (order_new(x, err) && marks_new(x, err) && watches_new(x, err) && (!x->apart || apart_new(x, err)))
        return x;
    exchange_free(x);
    return NULL;
}

void exchange_free(struct exchange *x)
{
    if (!x)
        return;
    exchange_stop(x);
    for (int i = 0; x->computed && i < x->n_mark; i++)
        mark_free(x->f.dev, x->computed[i]);
    for (int i = 0; i < EXCHANGE_STAGES * PUSH_LANES; i++)
        mark_free(x->f.dev, x->copied[i / PUSH_LANES][i % PUSH_LANES]);
    for (int i = 0; i < TAKES; i++)
        mark_free(x->f.dev, x->added[i]);
    mark_free(x->f.dev, x->idle);
    watches_free(x);
    free(x->order);
    free(x->after);
    apart_free(x);
    free(x->computed);
    free(x);
}

/* ---- where things are */
static int64_t n_round(const struct exchange *x)
{
    return (x->n_grad + x->n_rank - 1) / x->n_rank;
}

/* Which piece of which round a give is. With `late` the first rounds lack the last piece of the order, of which as many follow at the end. */
struct turn {
    int piece;
    int64_t round;
};
static struct turn turn_of(const struct exchange *x, int64_t give)
{
    int64_t n = x->n_order, late = MIN(x->f.late, n_round(x)), i = give - x->base, body = (n_round(x) - late) * n;
    if (i < late * (n - 1))
        return (struct turn){ x->order[i % (n - 1)], i / (n - 1) };
    i -= late * (n - 1);
    if (i >= body)
        return (struct turn){ x->order[n - 1], n_round(x) - late + i - body };
    return (struct turn){ x->order[i % n], i / n + (i % n < n - 1 ? late : 0) };
}

int exchange_piece_of(const struct exchange *x, int64_t give)
{
    return turn_of(x, give).piece;
}

int exchange_n_given(const struct exchange *x, int64_t give)
{
    return (int)MIN(x->n_grad - turn_of(x, give).round * x->n_rank, x->n_rank);
}

/* Is this rank among them? */
static bool is_ours(const struct exchange *x, int64_t give)
{
    return x->rank < exchange_n_given(x, give);
}

int64_t exchange_before_in_place(const struct exchange *x, int64_t give, int n)
{
    for (int64_t g = give - 1; g > give - n; g--)
        if (is_wide(x, exchange_piece_of(x, give)) || (g >= x->base && is_wide(x, exchange_piece_of(x, g))))
            return g;
    return give - n;
}

/* How many gives must have been pushed and taken before the place for this rank's next gradient of a piece is free. */
static int64_t slot_free_at(const struct exchange *x, int piece)
{
    return x->f.n_slot ? exchange_before_in_place(x, x->given, x->f.n_slot) + 1 : x->after[piece];
}

static struct mark *computed_of(const struct exchange *x, int64_t give)
{
    return x->computed[x->f.n_slot ? give % x->f.n_slot : exchange_piece_of(x, give)];
}

float *exchange_slot_of(const struct exchange *x, int64_t give)
{
    int p = exchange_piece_of(x, give);
    return x->f.slot + (!x->f.n_slot ? x->f.slot_at[p] : is_wide(x, p) ? 0 : give % x->f.n_slot * x->f.slot_n);
}

float *exchange_stage_of(const struct exchange *x, int owner, int from, int64_t give)
{
    int p = exchange_piece_of(x, give);
    int64_t first, of = from < owner ? from : from - 1, most = collective_shard(x->f.piece_n[p], x->n_rank, 0, &first);
    float *stage = x->apart ? x->f.stage : collective_peer(x->f.c, x->f.stage, owner);    // apart: its own
    return is_wide(x, p) ? stage + of * most : stage + (give % EXCHANGE_STAGES * (x->n_rank - 1) + of) * x->shard_max;
}

/* The lane to another rank, so that copies to several go at once. */
static int lane_to(const struct exchange *x, int rank)
{
    return 1 + (rank + x->n_rank - x->rank - 1) % x->n_rank % PUSH_LANES;
}

void exchange_count(const struct exchange *x, int rank, int64_t n_bytes, int64_t *all, int64_t *host)
{
    bool leaves = x->f.n_rank_host > 0 && rank / x->f.n_rank_host != x->rank / x->f.n_rank_host;
    *all += rank == x->rank ? 0 : n_bytes;
    *host += leaves ? n_bytes : 0;
}

int64_t exchange_look(struct exchange *x, int rank, int which)
{
    int64_t *last = &x->done[which][rank];
    return *last += (int64_t)(collective_count(x->f.c, rank, which) - (uint32_t)*last);
}

/* ---- carrying on */
/* Begin or end to measure on the lanes that lead to other ranks. */
static bool watches_set(const struct exchange *x, struct stopwatch *const *w, bool begins, struct error *err)
{
    for (int i = 0; i < MIN(PUSH_LANES, x->n_rank - 1); i++)
        if (!(begins ? stopwatch_begin(w[i], err) : stopwatch_end(w[i], err)))
            return false;
    return true;
}

static bool push(struct exchange *x, int64_t give, struct error *err)
{
    int64_t first;
    const float *from = exchange_slot_of(x, give);
    if (!watches_set(x, x->push_watch, true, err))
        return false;
    for (int i = 1; i < x->n_rank; i++) {
        int r = (x->rank + i) % x->n_rank;    // not all to the same one at a time
        int64_t n = collective_shard(x->f.piece_n[exchange_piece_of(x, give)], x->n_rank, r, &first);
        if (!lane_copy(x->f.dev, lane_to(x, r), exchange_stage_of(x, r, x->rank, give), from + first, (size_t)n * 4, err))
            return false;
        exchange_count(x, r, n * 4, &x->stats.reduce_bytes, &x->stats.reduce_host_bytes);
    }
    if (!watches_set(x, x->push_watch, false, err))
        return false;
    for (int i = 0; i < PUSH_LANES; i++)
        if (!lane_mark(x->f.dev, 1 + i, x->copied[give % EXCHANGE_STAGES][i], err))
            return false;
    return true;
}

bool exchange_take(struct exchange *x, int64_t give, struct error *err)
{
    int64_t first;
    int p = exchange_piece_of(x, give);
    struct lane_sum s = { .y = x->f.sum + x->f.sum_at[p],
                          .n_x = exchange_n_given(x, give),
                          .n = collective_shard(x->f.piece_n[p], x->n_rank, x->rank, &first) };
    for (int q = 0; q < s.n_x; q++)
        s.x[q] = q == x->rank ? exchange_slot_of(x, give) + first : exchange_stage_of(x, x->rank, q, give);
    return stopwatch_begin(x->sum_watch, err) && lane_sum(x->f.dev, LANE_OF_SUMS, &s, err) && stopwatch_end(x->sum_watch, err)
           && lane_mark(x->f.dev, LANE_OF_SUMS, x->added[give % TAKES], err);
}

bool exchange_takes_look(struct exchange *x, struct error *err)
{
    for (bool done; x->taken < x->taking;) {
        if (!mark_done(x->f.dev, x->added[x->taken % TAKES], &done, err))
            return false;
        if (!done)
            return true;
        x->taken++;
        if (!x->apart)
            collective_count_set(x->f.c, COUNT_TAKEN, (uint32_t)x->taken);
    }
    return true;
}

static bool stage_is_free(struct exchange *x, int64_t give)
{
    for (int r = 0; r < x->n_rank; r++)
        if (r != x->rank && exchange_look(x, r, COUNT_TAKEN) <= exchange_before_in_place(x, give, EXCHANGE_STAGES))
            return false;
    return true;
}

static bool all_have_come(struct exchange *x, int64_t give)
{
    int n = exchange_n_given(x, give);
    for (int q = 0; q < n; q++)
        if ((q == x->rank ? x->ready : exchange_look(x, q, COUNT_PUSHED)) <= give)
            return false;
    return true;
}

static bool marks_done(struct exchange *x, struct mark *const *mark, int n, bool *done, struct error *err)
{
    *done = true;
    for (int i = 0; i < n && *done; i++)
        if (!mark_done(x->f.dev, mark[i], done, err))
            return false;
    return true;
}

/* One look at everything; *moved when something went on. */
static bool carry_on(struct exchange *x, bool *moved, struct error *err)
{
    bool ok = false, done = true;
    int64_t before = x->ready + x->pushing + x->pushed + x->taking + x->taken;
    while (x->ready < x->given) {
        TRY(!is_ours(x, x->ready) || mark_done(x->f.dev, computed_of(x, x->ready), &done, err));
        if (!done)
            break;
        collective_count_set(x->f.c, COUNT_READY, (uint32_t)++x->ready);
    }
    while (x->pushed < x->pushing) {
        TRY(!is_ours(x, x->pushed) || marks_done(x, x->copied[x->pushed % EXCHANGE_STAGES], PUSH_LANES, &done, err));
        if (!done)
            break;
        collective_count_set(x->f.c, COUNT_PUSHED, (uint32_t)++x->pushed);
    }
    TRY(exchange_takes_look(x, err));
    for (; x->pushing < x->ready && x->pushing - x->pushed < EXCHANGE_STAGES; x->pushing++) {
        if (is_ours(x, x->pushing) && !stage_is_free(x, x->pushing))
            break;
        TRY(!is_ours(x, x->pushing) || push(x, x->pushing, err));
    }
    for (; x->taking < x->total && x->taking - x->taken < TAKES && all_have_come(x, x->taking); x->taking++)
        TRY(exchange_take(x, x->taking, err));
    *moved = x->ready + x->pushing + x->pushed + x->taking + x->taken != before;
    ok = true;
out:
    return ok;
}

/* What keeps this rank from going on. */
struct late {
    int rank, which;    // whose counter must rise; -1: our own device
    int64_t give;       // whose sum is waited for, here or there
};
static struct late late_find(struct exchange *x)
{
    if (x->taking < x->total && x->taking == x->taken)
        for (int q = 0, n = exchange_n_given(x, x->taking); q < n; q++)
            if (q != x->rank && exchange_look(x, q, COUNT_PUSHED) <= x->taking)
                return (struct late){ q, COUNT_PUSHED, x->taking };
    if (x->pushing < x->ready && x->pushing == x->pushed && is_ours(x, x->pushing)) {
        int64_t before = exchange_before_in_place(x, x->pushing, EXCHANGE_STAGES);
        for (int r = 0; r < x->n_rank; r++)
            if (r != x->rank && exchange_look(x, r, COUNT_TAKEN) <= before)
                return (struct late){ r, COUNT_TAKEN, before };
    }
    return (struct late){ -1, COUNT_PUSHED, x->total };
}

/* The device stood still for s seconds: since a rank has not computed its part of the sum, or else for what is on its way. */
static void wait_note(struct exchange *x, const struct late *l, double s)
{
    for (int q = 0, n = l->rank < 0 ? 0 : exchange_n_given(x, l->give); q < n; q++)
        if (q != x->rank && exchange_look(x, q, COUNT_READY) <= l->give) {
            x->stats.late_s[q] += s;
            return;
        }
    x->stats.exposed_s += s;
}

/* Carry on, and when nothing goes on wait for a moment. It counts as waiting once the device has done what it was asked for before. */
static bool wait_on(struct exchange *x, struct collective_wait *w, struct error *err)
{
    bool moved, ok, idle;
    struct late late = late_find(x);
    uint32_t seen = late.rank < 0 ? 0 : collective_count(x->f.c, late.rank, late.which);
    if (!mark_done(x->f.dev, x->idle, &idle, err) || !carry_on(x, &moved, err))
        return false;
    if (moved) {
        collective_wait_end(x->f.c, w);
        return true;
    }
    int64_t began = clock_ns();
    if (x->f.dev->host_memory) {    // nothing of our own is ever under way
        ok = collective_wait(x->f.c, w, late.rank, late.which, seen, EXCHANGE_WAIT_MS, err);
    } else {
        nanosleep(&(struct timespec){ .tv_nsec = EXCHANGE_POLL_NS }, NULL);
        ok = collective_wait(x->f.c, w, late.rank, late.which, seen, 0, err);
    }
    if (idle)
        wait_note(x, &late, (double)(clock_ns() - began) * 1e-9);
    return ok;
}

bool exchange_poll(struct exchange *x, struct error *err)
{
    bool moved;
    return x->apart ? apart_carry_on(x, &moved, err) : carry_on(x, &moved, err);
}

bool exchange_reaches(const struct exchange *x)
{
    return !x->apart;
}

/* ---- a step */
bool exchange_begin(struct exchange *x, int64_t n_grad, struct error *err)
{
    x->n_grad = n_grad;
    x->total = x->base + n_round(x) * x->n_order;
    if (x->touching || x->apart)
        return true;
    return x->touching = collective_touch_begin(x->f.c, err);
}

/* Pass over gives of others alone. */
static bool others_pass(struct exchange *x, struct error *err)
{
    for (; !x->f.every && x->given < x->total && !is_ours(x, x->given); x->given += !x->apart)
        if (x->apart && !apart_give(x, err))
            return false;
    return true;
}

static bool is_turn_of(const struct exchange *x, int piece)
{
    return x->given < x->total && exchange_piece_of(x, x->given) == piece;
}

/* Wait until this many gives are pushed and taken. */
static bool wait_until(struct exchange *x, int64_t pushed, int64_t taken, struct error *err)
{
    struct collective_wait w = { 0 };
    bool ok = (x->pushed >= pushed && x->taken >= taken) || mark_set(x->f.dev, x->idle, err);
    while (ok && (x->pushed < pushed || x->taken < taken))
        ok = wait_on(x, &w, err);
    collective_wait_end(x->f.c, &w);
    return ok;
}

float *exchange_slot(struct exchange *x, int piece, struct error *err)
{
    if (!others_pass(x, err))
        return NULL;
    BUG_IF(x->f.n_slot && !is_turn_of(x, piece), "piece %d is given out of turn", piece);
    int64_t n = slot_free_at(x, piece);
    if (!(x->apart ? apart_slot_wait(x, n, err) : wait_until(x, n, n, err)))
        return NULL;
    return x->f.n_slot ? exchange_slot_of(x, x->given) : x->f.slot + x->f.slot_at[piece];
}

bool exchange_turn(struct exchange *x, int *piece, struct error *err)
{
    if (!others_pass(x, err))
        return false;
    *piece = x->given < x->total ? exchange_piece_of(x, x->given) : -1;
    return true;
}

bool exchange_give(struct exchange *x, int piece, struct error *err)
{
    if (!others_pass(x, err))
        return false;
    BUG_IF(!is_turn_of(x, piece), "piece %d is given out of turn", piece);
    x->after[piece] = x->given + 1;
    if (x->apart)
        return apart_give(x, err);
    if (!mark_set(x->f.dev, computed_of(x, x->given), err))
        return false;
    x->given++;
    return exchange_poll(x, err);
}

bool exchange_end(struct exchange *x, struct error *err)
{
    if (!others_pass(x, err) || !(x->apart ? apart_end(x, err) : wait_until(x, x->given, x->total, err)))
        return false;
    x->base = x->given = x->ready = x->pushing = x->pushed = x->total;    // a rank with nothing to give in the last round has passed it too
    if (x->apart)
        return true;
    collective_count_set(x->f.c, COUNT_READY, (uint32_t)x->ready);
    collective_count_set(x->f.c, COUNT_PUSHED, (uint32_t)x->pushed);
    return true;
}

void exchange_stop(struct exchange *x)
{
    if (x->touching)
        collective_touch_end(x->f.c);
    x->touching = false;
}

static bool own_send(struct exchange *x, const void *p, size_t size_bytes, struct error *err)
{
    BUG_IF(!x->touching, "sent outside of a step");
    if (!watches_set(x, x->send_watch, true, err))
        return false;
    for (int i = 1; i < x->n_rank; i++) {
        int r = (x->rank + i) % x->n_rank;
        if (!lane_copy(x->f.dev, lane_to(x, r), collective_peer(x->f.c, p, r), p, size_bytes, err))
            return false;
        exchange_count(x, r, (int64_t)size_bytes, &x->stats.gather_bytes, &x->stats.gather_host_bytes);
    }
    return watches_set(x, x->send_watch, false, err);
}

bool exchange_share(struct exchange *x, const struct exchange_parts *p, struct error *err)
{
    return x->apart ? apart_share(x, p, err) : own_send(x, p->base + p->at[x->rank], p->size_bytes[x->rank], err);
}

bool exchange_sent(struct exchange *x, struct error *err)
{
    uint8_t mine = 0, all[COLLECTIVE_RANK_MAX];
    int64_t began = clock_ns();
    if (x->apart)    // shared, not sent: it is there
        return true;
    bool ok = lanes_sync(x->f.dev, err) && collective_gather(x->f.c, &mine, 1, all, err);
    x->stats.exposed_s += (double)(clock_ns() - began) * 1e-9;
    return ok;
}

/* ---- what it costs */
bool exchange_fetch_begin(struct exchange *x, struct error *err)
{
    return stopwatch_begin(x->fetch_watch, err);
}

bool exchange_fetch_end(struct exchange *x, int64_t n_bytes, struct error *err)
{
    x->stats.gather_bytes += n_bytes;
    return stopwatch_end(x->fetch_watch, err);
}

bool exchange_stall(struct exchange *x, bool begins, struct error *err)
{
    return begins ? stopwatch_begin(x->stall_watch, err) : stopwatch_end(x->stall_watch, err);
}

bool exchange_meet(struct exchange *x, const void *mine, size_t size_bytes, void *all, struct error *err)
{
    int64_t began = clock_ns();
    bool ok = collective_gather(x->f.c, mine, size_bytes, all, err);
    if (ok && collective_last(x->f.c) != x->rank)
        x->stats.late_s[collective_last(x->f.c)] += (double)(clock_ns() - began) * 1e-9;
    return ok;
}

/* How long the slowest of the lanes took that lead to other ranks. */
static bool watches_take(const struct exchange *x, struct stopwatch *const *w, double *s, struct error *err)
{
    double of_lane;
    *s = 0;
    for (int i = 0; i < MIN(PUSH_LANES, x->n_rank - 1); i++) {
        if (!stopwatch_take(w[i], &of_lane, err))
            return false;
        *s = MAX(*s, of_lane);
    }
    return true;
}

bool exchange_stats_take(struct exchange *x, struct exchange_stats *stats, struct error *err)
{
    double push_s, send_s, sum_s, fetch_s, stall_s;
    if (!watches_take(x, x->push_watch, &push_s, err) || !watches_take(x, x->send_watch, &send_s, err)
        || !stopwatch_take(x->sum_watch, &sum_s, err) || !stopwatch_take(x->fetch_watch, &fetch_s, err)
        || !stopwatch_take(x->stall_watch, &stall_s, err))
        return false;
    *stats = x->stats;
    stats->reduce_s += push_s + sum_s;
    stats->gather_s += send_s + fetch_s;
    /* copies that the caller's thread makes itself hide behind nothing */
    if (!x->apart)    // else it has been noted where this rank waited
        stats->exposed_s += x->f.dev->host_memory ? stats->reduce_s + stats->gather_s : stall_s;
    for (int q = 0; q < x->n_rank; q++)
        stats->late_sum_s += stats->late_s[q];
    x->stats = (struct exchange_stats){ 0 };
    return true;
}
