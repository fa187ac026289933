/* Ranks as processes: the same bits for all, and no wait without an end. tags: asan tsan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <inttypes.h>
#include <stdlib.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "kernels/collective/collective.h"
#include "kernels/collective/exchange.h"
#include "kernels/collective/late.h"
#include "kernels/ops.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/mix64.h"

#define LIMIT_MS 60000    // a wait of the tests that takes longer never ends
#define RANKS 3

static char dir[256];
static const char *kind;    // that the ranks meet by

/* RC_TEST_DEVICES=cuda:0,cuda:1,...: the ranks' devices; else all are "ref". */
static struct device *rank_device(int rank, struct error *err)
{
    char name[32] = "ref";
    const char *at = getenv("RC_TEST_DEVICES");
    for (int r = 0; at && *at && r <= rank; r++, at += strcspn(at, ","), at += *at == ',')
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
    return device_new(name, 1, err);
}

/* How many ranks meet at most: one on each of those devices. */
static int ranks_most(void)
{
    const char *at = getenv("RC_TEST_DEVICES");
    int n = 1;
    for (const char *p = at; p && (p = strchr(p, ',')) != NULL; p++)
        n++;
    return at ? MIN(n, RANKS) : RANKS;
}

static bool put(struct device *dev, void *to, const void *from, size_t n, struct error *err)
{
    return mem_copy(dev, to, from, n, COPY_H2D, err) && device_sync(dev, err);
}

static bool get(struct device *dev, void *to, const void *from, size_t n, struct error *err)
{
    return mem_copy(dev, to, from, n, COPY_D2H, err) && device_sync(dev, err);
}

struct told {
    int n, last, worst;
};

static void waits_note(void *ctx, int rank)
{
    struct told *t = ctx;
    t->n++;
    t->last = rank;
    t->worst = rank > t->worst ? rank : t->worst;
}

static struct collective *join(struct device *dev, const char *name, int rank, int n_rank, int64_t wait_ms, struct told *told,
                               struct error *err)
{
    struct collective_config c = { .kind = kind,
                                   .dir = dir,
                                   .name = name,
                                   .rank = rank,
                                   .n_rank = n_rank,
                                   .dev = dev,
                                   .join_ms = LIMIT_MS,
                                   .wait_ms = wait_ms,
                                   .waits = told ? waits_note : NULL,
                                   .ctx = told };
    return collective_join(&c, err);
}

/* Run a rank of a test in a separate process; it exits with 0 when body returns true. */
static pid_t rank_start(const char *name, int rank, int n_rank, int64_t wait_ms,
                        bool (*body)(struct collective *c, struct device *dev, struct error *err))
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    struct error err = { 0 };
    struct device *dev = rank_device(rank, &err);
    struct collective *c = dev ? join(dev, name, rank, n_rank, wait_ms, NULL, &err) : NULL;
    bool ok = c && body(c, dev, &err);
    if (!ok)
        fprintf(stderr, "rank %d: %s\n", rank, err.text[0] ? err.text : "another result");
    collective_leave(c);
    device_free(dev);
    _exit(ok ? 0 : 1);
}

static void ranks_end(const pid_t *pid, int n)
{
    for (int i = 0; i < n; i++) {
        int status = -1;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

static void call(const char *name)
{
    struct error err;
    if (!collective_call(dir, name, &err))
        fail_msg("%s", err.text);
}

static void assert_no_name_is_left(void)
{
    DIR *d = opendir(dir);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    assert_int_equal(n, 0);
}

/* Loops over memory that only this thread has, over whose bytes the sanitizer of threads would need most of the test's time. */
#define OWN_MEMORY __attribute__((no_sanitize_thread))

/* Values whose sum depends on the order: large ones that cancel, and small ones lost in them. */
OWN_MEMORY static float value(int rank, int64_t i, int round)
{
    uint32_t x = (uint32_t)(i * 2654435761u) ^ (uint32_t)(rank * 40503 + round * 977);
    float small = (float)(int32_t)(x * 2246822519u >> 8) * 1e-6f;
    return rank == 0 ? small : rank == 1 ? 1e7f + small : rank == 2 ? -1e7f + small : small;
}

/* own: n shard values from first on, and x: nothing yet; both with something behind their ends. */
OWN_MEMORY static void values_fill(float *own, float *x, int64_t n, int rank, int64_t first, int64_t m, int round)
{
    for (int64_t i = 0; i <= n; i++) {
        own[i] = i < m ? value(rank, first + i, round) : NAN;
        x[i] = NAN;
    }
}

/* The first of k elements from first on that is not what rank q has; -1: there is none. */
OWN_MEMORY static int64_t value_other(const float *x, int q, int64_t first, int64_t k, int round)
{
    for (int64_t i = first; i < first + k; i++)
        if (x[i] != value(q, i, round))
            return i;
    return -1;
}

/* Every rank gets the shards of all; what lies behind them stays. */
static bool shards_come(struct collective *c, struct device *dev, int64_t n, int round, struct error *err)
{
    int rank = collective_rank(c), n_rank = collective_n_rank(c);
    int64_t first, m = collective_shard(n, n_rank, rank, &first);
    size_t size = (size_t)(n + 1) * 4;
    float *x_dev = mem_new(dev, size, "a test", err), *own_dev = x_dev ? mem_new(dev, size, "a test", err) : NULL;
    float *x = malloc(size), *own = malloc(size);
    bool ok = own_dev && x && own;
    if (ok)
        values_fill(own, x, n, rank, first, m, round);
    ok = ok && put(dev, own_dev, own, size, err) && put(dev, x_dev, x, size, err) && collective_all_gather(c, x_dev, own_dev, n, err)
         && get(dev, x, x_dev, size, err);
    for (int q = 0; q < n_rank && ok; q++) {
        int64_t k = collective_shard(n, n_rank, q, &first), other = value_other(x, q, first, k, round);
        if (other >= 0)
            ok = error_set(err, ERR_DATA, "element %" PRId64 " of %" PRId64 " is not what rank %d has", other, n, q);
    }
    if (ok && !isnan(x[n]))
        ok = error_set(err, ERR_DATA, "the element behind %" PRId64 " was written", n);
    mem_free(dev, x_dev);
    mem_free(dev, own_dev);
    free(x);
    free(own);
    return ok;
}

/* ---- bytes from all to all */
/* How many bytes a rank sends another in a round; the same on all ranks. */
static size_t bytes_n(int from, int to, int round, size_t most)
{
    uint64_t x = mix64((uint64_t)(from * 1000003 + to * 1009 + round));
    return x % 4 == 0 ? 0 : x % 4 == 1 ? 1 : x % 4 == 2 ? (size_t)(x >> 8) % 5000 : (size_t)(x >> 8) % most;
}

OWN_MEMORY static char byte_of(int from, int to, int round, size_t i)
{
    return (char)(from * 31 + to * 7 + round + (int)(i * 2654435761u >> 9));
}

OWN_MEMORY static void bytes_fill(char *out, size_t n, int from, int to, int round)
{
    for (size_t i = 0; i < n; i++)
        out[i] = byte_of(from, to, round, i);
}

#define BEHIND 8    // bytes after what comes, each of them 0x5a
/* The first of n bytes, and of those behind them, that is wrong; n + BEHIND: there is none. */
OWN_MEMORY static size_t byte_wrong(const char *in, size_t n, int from, int to, int round)
{
    for (size_t i = 0; i < n + BEHIND; i++)
        if (in[i] != (i < n ? byte_of(from, to, round, i) : 0x5a))
            return i;
    return n + BEHIND;
}

/* Rounds of random sizes, 0 and 1 among them; what lies behind what comes stays. */
static bool bytes_come(struct collective *c, int n_round, size_t most, struct error *err)
{
    int rank = collective_rank(c), n_rank = collective_n_rank(c);
    bool ok = true;
    for (int round = 0; round < n_round && ok; round++) {
        struct collective_bytes b = { { 0 } };
        char *in[COLLECTIVE_RANK_MAX] = { 0 }, *out = malloc(most + 5000);
        for (int q = 0; q < n_rank && ok; q++) {
            b.send_bytes[q] = bytes_n(rank, q, round, most);
            b.recv_bytes[q] = bytes_n(q, rank, round, most);
            b.send[q] = mem_new(c->dev, b.send_bytes[q] + 1, "a test", err);
            b.recv[q] = mem_new(c->dev, b.recv_bytes[q] + BEHIND, "a test", err);
            in[q] = malloc(b.recv_bytes[q] + BEHIND);
            memset(in[q], 0x5a, b.recv_bytes[q] + BEHIND);
            bytes_fill(out, b.send_bytes[q], rank, q, round);
            ok = b.send[q] && b.recv[q] && put(c->dev, b.recv[q], in[q], b.recv_bytes[q] + BEHIND, err)
                 && put(c->dev, (void *)b.send[q], out, b.send_bytes[q], err);
        }
        if (ok && round % 2) {
            ok = collective_all_to_all(c, &b, err);
        } else if (ok) {    // as one who has other things to do
            bool done = false;
            ok = collective_begin(c, &b, err);
            while (ok && !done) {
                ok = collective_poll(c, 0, &done, err);
                usleep(50);    // the other things; without them, ranks that only look keep the cores from those that work
            }
        }
        for (int q = 0; q < n_rank; q++) {
            ok = ok && get(c->dev, in[q], b.recv[q], b.recv_bytes[q] + BEHIND, err);
            size_t wrong = ok ? byte_wrong(in[q], b.recv_bytes[q], q, rank, round) : 0;
            if (ok && wrong < b.recv_bytes[q] + BEHIND)
                ok = error_set(err, ERR_DATA, "byte %zu of %zu from rank %d in round %d is wrong", wrong, b.recv_bytes[q], q, round);
            free(in[q]);
            mem_free(c->dev, (void *)b.send[q]);
            mem_free(c->dev, b.recv[q]);
        }
        free(out);
    }
    return ok;
}

static bool many_bytes_come(struct collective *c, UNUSED struct device *dev, struct error *err)
{
    return bytes_come(c, 5, (size_t)5 << 20, err) && bytes_come(c, 40, 5000, err);    // more than a slot, then many
}

static bool one_rank_awaits_more(struct collective *c, struct device *dev, struct error *err)
{
    char *mem = mem_new(dev, 512, "a test", err);    // for the process's life
    int other = 1 - collective_rank(c);
    struct collective_bytes b = { { 0 } };
    if (!mem)
        return false;
    b.send[other] = mem;
    b.send_bytes[other] = 4;
    b.recv[other] = mem + 256;
    b.recv_bytes[other] = collective_rank(c) == 0 ? 4 : 5;
    bool ok = collective_all_to_all(c, &b, err);
    if (collective_rank(c) == 0)    // its own bytes may have come before the other one has left
        return ok || err->code == ERR_CLOSED;
    return !ok && err->code == ERR_DATA && strstr(err->text, "rank 0 sends 4 bytes where 5 are awaited");
}

static void bytes_of_any_length_come_from_all_to_all(UNUSED void **state)
{
    for (int n_rank = 1; n_rank <= ranks_most(); n_rank++) {
        pid_t pid[RANKS];
        call("bytes");
        for (int r = 0; r < n_rank; r++)
            pid[r] = rank_start("bytes", r, n_rank, LIMIT_MS, many_bytes_come);
        ranks_end(pid, n_rank);
        assert_no_name_is_left();
    }
    pid_t pid[2];
    call("bytes");
    for (int r = 0; r < 2; r++)
        pid[r] = rank_start("bytes", r, 2, LIMIT_MS, one_rank_awaits_more);
    ranks_end(pid, 2);
}

/* ---- exchange.h: sums piece by piece */
#define PIECES 6
static const int64_t piece_n[PIECES] = { 70001, 8192, 1, 24577, 0, 128 };

/* What a rank exchanges with: its gradient's places and its stage, full of NAN. */
struct giver {
    struct exchange_config f;
    int64_t at[PIECES], own_n[PIECES], own_at[PIECES], n_flat, n_sum, n_stage;
    struct mem_handle h;
    float *share, *grad;    // share: the stage, and a flat copy of the sum
    float *weights;         // (n_sum) this rank's shards of something else
};

static bool giver_open(struct giver *g, struct collective *c, struct device *dev, int n_slot, bool offered, struct error *err)
{
    int64_t first;
    *g = (struct giver){ 0 };
    for (int p = 0; p < PIECES; p++) {
        g->at[p] = (g->n_flat + 3) / 4 * 4;
        g->n_flat = g->at[p] + piece_n[p];
        g->own_n[p] = collective_shard(piece_n[p], collective_n_rank(c), collective_rank(c), &first);
        g->own_at[p] = (g->n_sum + 3) / 4 * 4;
        g->n_sum = g->own_at[p] + g->own_n[p];
    }
    int64_t slot_n = n_slot == 2 ? 24580 : 70004;    // the first piece takes both places
    g->n_stage = (exchange_stage_n(70001, slot_n, collective_n_rank(c)) + 3) / 4 * 4;
    size_t share_bytes = (size_t)(g->n_stage + g->n_flat) * 4;
    g->share = mem_share_new(dev, share_bytes, "a test", &g->h, err);
    g->grad = mem_new(dev, (size_t)g->n_flat * 4, "a test", err);
    g->weights = mem_new(dev, (size_t)g->n_sum * 4, "a test", err);
    float *sum = mem_new(dev, (size_t)g->n_sum * 4, "a test", err);
    memset(g->share, 0xff, share_bytes);
    memset(g->grad, 0xff, (size_t)g->n_flat * 4);
    memset(sum, 0, (size_t)g->n_sum * 4);
    g->f = (struct exchange_config){ .c = c,
                                     .dev = dev,
                                     .n_piece = PIECES,
                                     .piece_n = piece_n,
                                     .sum = sum,
                                     .sum_at = g->own_at,
                                     .slot = g->grad,
                                     .n_slot = n_slot,
                                     .slot_n = n_slot ? slot_n : 0,
                                     .slot_at = g->at,
                                     .stage = g->share,
                                     .n_rank_host = 2 };
    BUG_IF(n_slot && exchange_slots_n(70001, slot_n, n_slot) > g->n_flat, "no room for %d places", n_slot);
    return !offered || collective_offer(c, g->share, share_bytes, &g->h, err);
}

static void giver_close(struct giver *g)    // when the meeting is over: others may still reach the share
{
    struct device *dev = g->f.dev;
    mem_free(dev, g->f.sum);
    mem_free(dev, g->grad);
    mem_free(dev, g->weights);
    mem_share_free(dev, g->share, (size_t)(g->n_stage + g->n_flat) * 4, &g->h);
}

/* Ask for all of a piece of which each rank has a shard; the shard is written for this time. Only where ranks are apart. */
static bool piece_is_asked_for(struct exchange *x, struct giver *g, int p, int64_t time, struct error *err)
{
    if (!g->f.every || p < 0)
        return true;
    for (int64_t i = 0; i < g->own_n[p]; i++)
        g->weights[g->own_at[p] + i] = (float)(1000 * time + collective_rank(g->f.c));
    return exchange_fetch(x, p, g->weights + g->own_at[p], g->share + g->n_stage + g->at[p], sizeof *g->weights, err);
}

static bool piece_has_come(struct exchange *x, struct giver *g, int p, int64_t time, struct error *err)
{
    int64_t first, n_rank = collective_n_rank(g->f.c);
    if (!g->f.every)
        return true;
    if (!exchange_await(x, p, err))
        return false;
    for (int q = 0; q < n_rank; q++)
        for (int64_t n = collective_shard(piece_n[p], (int)n_rank, q, &first), i = first; i < first + n; i++)
            if (g->share[g->n_stage + g->at[p] + i] != (float)(1000 * time + q))
                return error_set(err, ERR_DATA, "element %" PRId64 " of piece %d of time %d did not come from rank %d", i, p, (int)time, q);
    return true;
}

/* One rank's gradient of a piece in a round, or what is not added where it has no micro-batch; some ranks dawdle, so that others run
 * ahead as far as they can. */
static bool piece_is_given(struct exchange *x, struct giver *g, int p, int64_t round, int64_t n_micro, int step, struct error *err)
{
    int rank = collective_rank(g->f.c), n_rank = collective_n_rank(g->f.c);
    int64_t at = round * n_rank, time = step + at;
    if (!piece_is_asked_for(x, g, p - 1, time, err) || !piece_has_come(x, g, p, time, err))
        return false;
    if (piece_n[p] == 0)
        return true;
    float *to = exchange_slot(x, p, err);
    if (!to)
        return false;
    if ((at + p + rank + step) % 7 == 0)
        usleep(2000);
    for (int64_t i = 0; i < piece_n[p]; i++)
        to[i] = at + rank < n_micro ? value((int)((at + rank) % 3), g->at[p] + i, step + (int)at) : NAN;
    return exchange_give(x, p, err);
}

/* A step of this many micro-batches, each with values of its own. */
static bool step_is_given(struct exchange *x, struct giver *g, int64_t n_micro, int step, struct error *err)
{
    int rank = collective_rank(g->f.c), n_rank = collective_n_rank(g->f.c);
    int64_t n_round = (n_micro - (g->f.every ? 0 : rank) + n_rank - 1) / n_rank, late = g->f.late;
    if (!exchange_begin(x, n_micro, err))
        return false;
    for (int64_t k = 0; k < n_round; k++) {
        if (!piece_is_asked_for(x, g, PIECES - 1, step + k * n_rank, err))
            return false;
        for (int p = PIECES - 1; p >= 1; p--)
            if (!piece_is_given(x, g, p, k, n_micro, step, err))
                return false;
        if (k >= late && !piece_is_given(x, g, 0, k - late, n_micro, step, err))
            return false;
    }
    for (int64_t k = MAX(n_round - late, (int64_t)0); k < n_round; k++)
        if (!piece_is_given(x, g, 0, k, n_micro, step, err))
            return false;
    return exchange_end(x, err);
}

static bool sum_is_the_chain(const struct giver *g, int64_t n_micro, int step, struct error *err)
{
    int rank = collective_rank(g->f.c), n_rank = collective_n_rank(g->f.c);
    int64_t first;
    for (int p = 0; p < PIECES; p++) {
        collective_shard(piece_n[p], n_rank, rank, &first);
        for (int64_t i = 0; i < g->own_n[p]; i++) {
            float want = 0, got = g->f.sum[g->own_at[p] + i];
            for (int64_t k = 0; k < n_micro; k++)
                want += value((int)(k % 3), g->at[p] + first + i, step + (int)(k / n_rank * n_rank));
            if (memcmp(&want, &got, 4) != 0)
                return error_set(err, ERR_DATA, "element %" PRId64 " of piece %d of step %d is %.9g, in order %.9g", first + i, p, step,
                                 (double)got, (double)want);
        }
    }
    return true;
}

/* The whole sum to every rank, written over what was offered. */
static bool sum_is_spread(struct exchange *x, struct giver *g, struct error *err)
{
    int rank = collective_rank(g->f.c), n_rank = collective_n_rank(g->f.c);
    int64_t first;
    float *flat = g->share + g->n_stage;
    for (int p = 0; p < PIECES; p++) {
        struct exchange_parts parts = { .base = (char *)(flat + g->at[p]) };
        for (int q = 0; q < n_rank; q++) {
            parts.size_bytes[q] = (size_t)collective_shard(piece_n[p], n_rank, q, &first) * 4;
            parts.at[q] = (size_t)first * 4;
        }
        for (size_t i = 0; i < parts.size_bytes[rank] / 4; i++)
            flat[g->at[p] + (int64_t)(parts.at[rank] / 4 + i)] = (float)(rank + 1);
        if (!exchange_share(x, &parts, err))
            return false;
    }
    if (!exchange_sent(x, err))
        return false;
    for (int p = 0; p < PIECES; p++)
        for (int q = 0; q < n_rank; q++) {
            int64_t n = collective_shard(piece_n[p], n_rank, q, &first);
            for (int64_t i = 0; i < n; i++)
                if (flat[g->at[p] + first + i] != (float)(q + 1))
                    return error_set(err, ERR_DATA, "element %" PRId64 " of piece %d did not come from rank %d", first + i, p, q);
        }
    return true;
}

/* A step counts what this rank's micro-batches and its shards of the sum come to. */
static bool bytes_are_counted(struct exchange *x, const struct giver *g, int64_t n_micro, struct error *err)
{
    int rank = collective_rank(g->f.c), n_rank = collective_n_rank(g->f.c);
    int64_t n_own_micro = (n_micro - rank + n_rank - 1) / n_rank, n_round = (n_micro + n_rank - 1) / n_rank, reduced = 0, gathered = 0,
            reduced_host = 0, first;
    struct exchange_stats s;
    for (int p = 0; p < PIECES; p++) {
        for (int q = 0; q < n_rank; q++)    // two ranks a host
            reduced_host += q / 2 == rank / 2 ? 0 : 4 * n_own_micro * collective_shard(piece_n[p], n_rank, q, &first);
        reduced += 4 * n_own_micro * (piece_n[p] - g->own_n[p]);
        gathered += 4 * (n_rank - 1) * g->own_n[p] * (1 + (g->f.every ? n_round : 0));    // spread, and fetched
    }
    if (!exchange_stats_take(x, &s, err))
        return false;
    if (s.reduce_bytes != reduced || s.gather_bytes != gathered)
        return error_set(err, ERR_DATA, "%" PRId64 " and %" PRId64 " bytes were counted, not %" PRId64 " and %" PRId64, s.reduce_bytes,
                         s.gather_bytes, reduced, gathered);
    if (s.reduce_host_bytes != reduced_host)
        return error_set(err, ERR_DATA, "%" PRId64 " bytes to other hosts were counted, not %" PRId64, s.reduce_host_bytes, reduced_host);
    if ((reduced > 0 && !(s.reduce_s > 0)) || (gathered > 0 && !(s.gather_s > 0))
        || (exchange_reaches(x) && s.exposed_s < s.reduce_s + s.gather_s))
        return error_set(err, ERR_DATA, "%g and %g s on their way, %g s of it exposed", s.reduce_s, s.gather_s, s.exposed_s);
    if (!exchange_stats_take(x, &s, err) || s.reduce_bytes || s.reduce_s > 0 || s.exposed_s > 0)
        return error_set(err, ERR_DATA, "a step's cost is told twice");
    return true;
}

/* How gradients are exchanged; the ranks' processes have it from the test's. */
static struct way {
    int n_slot, late;    // as in struct exchange_config
    bool offered;        // the ranks reach each other's memory; else they are apart
    bool every;          // then they fetch in between
} way;

static bool steps_are_exchanged(struct collective *c, struct device *dev, struct error *err)
{
    static const int64_t micros[] = { 7, 1, 0, 6, 2 };
    struct giver g;
    bool reach;
    if (way.offered && !(collective_reaches(c, &reach, err) && reach))
        return false;
    bool ok = giver_open(&g, c, dev, way.n_slot, way.offered, err);
    g.f.late = way.late;
    g.f.every = way.every;
    struct exchange *x = ok ? exchange_new(&g.f, err) : NULL;
    ok = x && exchange_reaches(x) == way.offered;
    for (size_t s = 0; ok && s < ARRAY_SIZE(micros); s++) {
        memset(g.f.sum, 0, (size_t)g.n_sum * 4);
        ok = step_is_given(x, &g, micros[s], (int)s, err) && sum_is_the_chain(&g, micros[s], (int)s, err) && sum_is_spread(x, &g, err)
             && bytes_are_counted(x, &g, micros[s], err);
        exchange_stop(x);
    }
    exchange_free(x);
    uint8_t mine = 0, all[RANKS];
    ok = ok && collective_gather(c, &mine, 1, all, err);    // no rank reads the share any more
    giver_close(&g);
    return ok;
}

/* Memory of the host that ranks offer, whatever their devices. */
static bool host_memory_is_read(struct collective *c, struct device *dev, struct error *err)
{
    struct mem_handle h;
    int64_t n = 5000, n_rank = collective_n_rank(c);
    uint8_t mine = 0, all[RANKS];
    int64_t *p = host_share_new(dev, (size_t)n * sizeof *p, "a test", &h, err);
    for (int64_t i = 0; p && i < n; i++)
        p[i] = i * RANKS + collective_rank(c);
    bool ok = p && collective_offer_host(c, p, (size_t)n * sizeof *p, &h, err);
    for (int q = 0; q < n_rank && ok; q++) {
        const int64_t *other = collective_peer(c, p + 7, q);
        for (int64_t i = 7; i < n && ok; i++)
            ok = (other && other[i - 7] == i * RANKS + q)
                 || error_set(err, ERR_DATA, "element %" PRId64 " of rank %d's host memory is not what it wrote", i, q);
    }
    ok = ok && collective_gather(c, &mine, 1, all, err);    // nobody reads any more
    host_share_free(dev, p, (size_t)n * sizeof *p, &h);
    return ok;
}

static bool shards_and_more(struct collective *c, struct device *dev, struct error *err)
{
    static const int64_t sizes[] = { 1, 2, 7, 1000, 70001, 8192, 8193, 0, 3 };
    int rank = collective_rank(c), n_rank = collective_n_rank(c);
    if (!shards_come(c, dev, ((int64_t)n_rank << 20) + 5, 0, err))    // shards of more than what is processed at a time
        return false;
    for (int round = 0; round < 4; round++)
        for (size_t s = 0; s < ARRAY_SIZE(sizes); s++) {
            int64_t n = sizes[s];
            double mine[3] = { rank, (double)n, round }, all[RANKS][3];
            if (!shards_come(c, dev, n, round, err))
                return false;
            if (!collective_gather(c, mine, sizeof mine, all, err))
                return false;
            for (int q = 0; q < n_rank; q++)
                if (all[q][0] != q || all[q][1] != (double)n || all[q][2] != round)
                    return error_set(err, ERR_DATA, "what rank %d gave is not what came", q);
        }
    for (int64_t i = 0; i < 2000; i++) {    // fast ones, so that a rank that runs ahead would be seen
        int64_t mine = i * n_rank + rank, all[RANKS];
        if (!collective_gather(c, &mine, sizeof mine, all, err))
            return false;
        for (int q = 0; q < n_rank; q++)
            if (all[q] != i * n_rank + q)
                return error_set(err, ERR_DATA, "gathering %" PRId64 ": rank %d is ahead or behind", i, q);
    }
    return true;
}

static void what_each_rank_has_comes_to_all(UNUSED void **state)
{
    for (int n_rank = 1; n_rank <= ranks_most(); n_rank++) {
        pid_t pid[RANKS];
        call("shards");
        for (int r = 0; r < n_rank; r++)
            pid[r] = rank_start("shards", r, n_rank, LIMIT_MS, shards_and_more);
        ranks_end(pid, n_rank);
        assert_no_name_is_left();
    }
}

static void on_two_and_more_ranks(const char *name, bool (*body)(struct collective *, struct device *, struct error *))
{
    for (int n_rank = 2; n_rank <= RANKS; n_rank++) {
        pid_t pid[RANKS];
        call(name);
        for (int r = 0; r < n_rank; r++)
            pid[r] = rank_start(name, r, n_rank, LIMIT_MS, body);
        ranks_end(pid, n_rank);
        assert_no_name_is_left();
    }
}

static void host_memory_that_ranks_offer_is_read(UNUSED void **state)
{
    on_two_and_more_ranks("host", host_memory_is_read);
}

static void pieces_are_added_in_the_order_of_micro_batches(UNUSED void **state)
{
    static const struct way ways[] = {
        { 0, 0, true, false }, { 1, 0, true, false }, { 2, 0, true, false },
        { 0, 1, true, false }, { 2, 2, true, false }, { 0, 0, false, false },
    };
    for (size_t w = 0; w < ARRAY_SIZE(ways); w++) {
        way = ways[w];
        on_two_and_more_ranks("pieces", steps_are_exchanged);
    }
}

static void sums_of_pieces_need_no_way_to_the_others_memory(UNUSED void **state)
{
    static const struct way ways[] = { { 0, 0, false, false }, { 1, 0, false, false }, { 2, 0, false, true }, { 0, 1, false, false } };
    for (size_t w = 0; w < ARRAY_SIZE(ways); w++) {
        way = ways[w];
        on_two_and_more_ranks("pieces", steps_are_exchanged);
    }
}

/* Step after step until the others have gone. */
static bool exchanges_until_closed(struct collective *c, struct device *dev, struct error *err)
{
    struct giver g;
    bool ok = giver_open(&g, c, dev, 1, true, err);
    struct exchange *x = ok ? exchange_new(&g.f, err) : NULL;
    int64_t began = clock_ms();
    for (int s = 0; ok && x; s++)
        ok = step_is_given(x, &g, 2 * RANKS, s, err);
    exchange_free(x);
    if (err->code != ERR_CLOSED)
        return error_wrap(err, "not closed, but");
    return clock_ms() - began < LIMIT_MS / 2 || error_set(err, ERR_TIMEOUT, "a limit was waited for");
}

/* Dies in the middle of a round: after its last piece but one, or while another waits for a place. */
static bool dies_in_an_exchange(struct collective *c, struct device *dev, struct error *err)
{
    struct giver g;
    bool ok = giver_open(&g, c, dev, 1, true, err);
    struct exchange *x = ok ? exchange_new(&g.f, err) : NULL;
    if (!x || !step_is_given(x, &g, 2 * RANKS, 0, err) || !exchange_begin(x, 2 * RANKS, err))
        return false;
    for (int p = PIECES - 1; p >= collective_rank(c); p--)
        if (piece_n[p] > 0 && (!exchange_slot(x, p, err) || !exchange_give(x, p, err)))
            return false;
    kill(getpid(), SIGKILL);
    return false;
}

static void the_others_leave_an_exchange_when_a_rank_dies(UNUSED void **state)
{
    for (int victim = 0; victim < RANKS; victim++) {
        pid_t pid[RANKS];
        int n = 0, status;
        call("exchange");
        pid_t lost = rank_start("exchange", victim, RANKS, LIMIT_MS, dies_in_an_exchange);
        for (int r = 0; r < RANKS; r++)
            if (r != victim)
                pid[n++] = rank_start("exchange", r, RANKS, LIMIT_MS, exchanges_until_closed);
        ranks_end(pid, n);
        assert_int_equal(waitpid(lost, &status, 0), lost);
        assert_true(WIFSIGNALED(status));
        assert_no_name_is_left();
    }
}

static bool never_gives(struct collective *c, struct device *dev, struct error *err)
{
    struct giver g;
    (void)!giver_open(&g, c, dev, 1, true, err);
    pause();    // until it is killed
    return false;
}

static void a_rank_that_does_not_give_is_named(UNUSED void **state)
{
    struct error err = { 0 };
    struct told told = { .worst = -1 };
    struct giver g;
    int status;
    struct device *dev = device_new("ref", 1, &err);
    call("late giver");
    pid_t pid = rank_start("late giver", 1, 2, LIMIT_MS, never_gives);
    struct collective *c = join(dev, "late giver", 0, 2, 400, &told, &err);
    struct exchange *x = c && giver_open(&g, c, dev, 1, true, &err) ? exchange_new(&g.f, &err) : NULL;
    if (!x)
        fail_msg("%s", err.text);
    told = (struct told){ .worst = -1 };
    assert_false(step_is_given(x, &g, 2, 0, &err));
    assert_int_equal(err.code, ERR_TIMEOUT);
    assert_non_null(strstr(err.text, "rank 1 "));
    assert_int_equal(told.worst, 1);
    assert_int_equal(told.last, -1);
    exchange_free(x);
    collective_leave(c);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    giver_close(&g);
    device_free(dev);
    assert_no_name_is_left();
}

static int told_pipe[2];

static void waits_tell(UNUSED void *ctx, int rank)
{
    if (rank == 1 && write(told_pipe[1], "x", 1) != 1)
        abort();
}

/* Gives its part, and comes to a meeting, when the other one has said that it waits. */
static bool gives_late(struct collective *c, struct device *dev, struct error *err)
{
    char go;
    uint8_t mine = 0, all[2];
    struct giver g;
    struct exchange *x = giver_open(&g, c, dev, 0, true, err) ? exchange_new(&g.f, err) : NULL;
    bool ok = x && read(told_pipe[0], &go, 1) == 1 && step_is_given(x, &g, 2, 0, err) && read(told_pipe[0], &go, 1) == 1
              && exchange_meet(x, &mine, 1, all, err);
    exchange_free(x);
    collective_leave(c);
    giver_close(&g);
    device_free(dev);
    _exit(ok ? 0 : 1);
}

static void time_spent_waiting_is_that_of_the_rank_that_is_late(UNUSED void **state)
{
    struct error err = { 0 };
    struct giver g;
    struct exchange_stats s;
    uint8_t mine = 0, all[2];
    struct device *dev = device_new("ref", 1, &err);
    assert_int_equal(pipe(told_pipe), 0);
    call("late by");
    pid_t pid = rank_start("late by", 1, 2, LIMIT_MS, gives_late);
    struct collective_config config = { .kind = kind,
                                        .dir = dir,
                                        .name = "late by",
                                        .rank = 0,
                                        .n_rank = 2,
                                        .dev = dev,
                                        .join_ms = LIMIT_MS,
                                        .wait_ms = LIMIT_MS,
                                        .waits = waits_tell };
    struct collective *c = collective_join(&config, &err);
    struct exchange *x = c && giver_open(&g, c, dev, 0, true, &err) ? exchange_new(&g.f, &err) : NULL;
    if (!x || !step_is_given(x, &g, 2, 0, &err) || !exchange_stats_take(x, &s, &err))
        fail_msg("%s", err.text);
    assert_true(s.late_s[1] > 0.05);    // a wait is reported after 0.1 s
    assert_true(s.late_s[0] == 0 && s.late_sum_s == s.late_s[1]);
    if (!exchange_meet(x, &mine, 1, all, &err) || !exchange_stats_take(x, &s, &err))
        fail_msg("%s", err.text);
    assert_true(s.late_s[1] > 0.05 && s.late_sum_s == s.late_s[1]);
    exchange_free(x);
    collective_leave(c);
    ranks_end(&pid, 1);
    giver_close(&g);
    device_free(dev);
    close(told_pipe[0]);
    close(told_pipe[1]);
    assert_no_name_is_left();
}

/* Three ranks look after a transfer: one has done it and goes away, and one stands still until it is told to go on. */
static bool looks_or_stands_still(struct collective *c, UNUSED struct device *dev, struct error *err)
{
    struct late l = { 0 };
    struct collective_wait w = { 0 };
    uint8_t mine = 0, all[RANKS];
    char go;
    int rank = collective_rank(c);
    bool ok = collective_gather(c, &mine, 1, all, err);
    (void)late_look(&l, c, clock_ms());
    if (rank == 2)
        ok = ok && read(told_pipe[0], &go, 1) == 1;
    if (rank > 0)
        late_done(&l, c);
    for (int64_t began = clock_ms(), late = -1; ok && rank == 0 && late != 2; usleep(1000)) {
        late = late_look(&l, c, clock_ms());
        ok = clock_ms() - began < LIMIT_MS / 2 || error_set(err, ERR_DATA, "the rank that stands still is not found, but %d", (int)late);
    }
    if (rank == 0) {
        ok = ok && write(told_pipe[1], "x", 1) == 1;
        for (int q = 1; q < RANKS; q++)
            while (ok && collective_count(c, q, COLLECTIVE_COUNT_DONE) == 0)
                ok = collective_wait(c, &w, q, COLLECTIVE_COUNT_DONE, 0, 50, err);
        ok = ok && late_look(&l, c, clock_ms() + LIMIT_MS) == -1;    // they have done it, however long ago
    }
    return ok && collective_gather(c, &mine, 1, all, err);
}

static void a_rank_that_does_not_look_after_a_transfer_is_late(UNUSED void **state)
{
    pid_t pid[RANKS];
    assert_int_equal(pipe(told_pipe), 0);
    call("looks");
    for (int r = 0; r < RANKS; r++)
        pid[r] = rank_start("looks", r, RANKS, LIMIT_MS, looks_or_stands_still);
    ranks_end(pid, RANKS);
    close(told_pipe[0]);
    close(told_pipe[1]);
    assert_no_name_is_left();
}

/* One of each call, from memory that the others cannot read. */
static bool turn_take(struct collective *c, struct error *err)
{
    static float x[9000], own[9000];
    int64_t mine = 0, all[RANKS];
    return collective_gather(c, &mine, sizeof mine, all, err) && collective_all_gather(c, x, own, ARRAY_SIZE(x), err)
           && bytes_come(c, 1, 3, err);
}

static bool takes_turns_until_closed(struct collective *c, UNUSED struct device *dev, struct error *err)
{
    int64_t began = clock_ms();
    while (turn_take(c, err))
        ;
    if (err->code != ERR_CLOSED)
        return error_wrap(err, "not closed, but");
    if (clock_ms() - began > LIMIT_MS / 2)
        return error_set(err, ERR_TIMEOUT, "a limit was waited for");
    return !turn_take(c, err);    // and it stays closed
}

/* Dies somewhere in the calls of the others: its own are cut short after this many. */
static bool stands_still(struct collective *c, UNUSED struct device *dev, struct error *err)
{
    int64_t mine = 0, all[RANKS];
    for (int i = 0; i < 10; i++)
        if (!turn_take(c, err))
            return false;
    if (collective_rank(c) > 0 && !collective_gather(c, &mine, sizeof mine, all, err))
        return false;    // the others are in the next call already
    kill(getpid(), SIGKILL);
    return false;
}

static bool leaves(struct collective *c, UNUSED struct device *dev, struct error *err)
{
    int64_t mine = 0, all[RANKS];
    return collective_gather(c, &mine, sizeof mine, all, err);
}

static void the_others_leave_when_a_rank_dies_or_leaves(UNUSED void **state)
{
    for (int dies = 0; dies < 2; dies++)
        for (int victim = 0; victim < RANKS; victim++) {
            pid_t pid[RANKS];
            int n = 0, status;
            call("deaths");
            pid_t lost = rank_start("deaths", victim, RANKS, LIMIT_MS, dies ? stands_still : leaves);
            for (int r = 0; r < RANKS; r++)
                if (r != victim)
                    pid[n++] = rank_start("deaths", r, RANKS, LIMIT_MS, takes_turns_until_closed);
            ranks_end(pid, n);
            assert_int_equal(waitpid(lost, &status, 0), lost);
            assert_true(dies ? WIFSIGNALED(status) : WIFEXITED(status));
            assert_no_name_is_left();
        }
}

/* Each call of the interface. */
#define CALLS 4
#define CALL_BEGIN CALLS    // as the third, and what is begun is not waited for
static bool call_make(struct collective *c, int which, struct error *err)
{
    const size_t big = (size_t)9 << 20;    // more than the kernel keeps for a socket
    const int64_t n = 90000;
    static char *mem;    // for a process's life, however the call ends
    int64_t mine = 0, all[RANKS];
    struct collective_bytes b = { { 0 } };
    if (!mem && !(mem = mem_new(c->dev, (1 + RANKS) * big, "a test", err)))
        return false;
    for (int q = 0; q < collective_n_rank(c); q++) {
        b.send[q] = mem;
        b.recv[q] = mem + (size_t)(1 + q) * big;
        b.send_bytes[q] = b.recv_bytes[q] = (which == 2 || which == CALL_BEGIN) && q != collective_rank(c) ? big : 0;
    }
    switch (which) {
    case 0: return collective_gather(c, &mine, sizeof mine, all, err);
    case 1: return collective_all_gather(c, (float *)(void *)mem, (float *)(void *)(mem + big), n, err);
    case CALL_BEGIN: return collective_begin(c, &b, err);
    default: return collective_all_to_all(c, &b, err);    // of many bytes, or of none
    }
}

static int stop_at, how;    // before which call, and by which signal

/* The calls before it are made only where the limit is long: under a short one a rank that a busy machine keeps would be late, too. */
static int call_first(void)
{
    return how == SIGSTOP ? stop_at : 0;
}

static bool is_stopped(struct collective *c, UNUSED struct device *dev, struct error *err)
{
    for (int i = call_first(); i < stop_at; i++)
        if (!call_make(c, i, err))
            return false;
    kill(getpid(), how);
    pause();
    return false;
}

/* As rank 0 of two; in a process of its own, since a GPU's does not survive a fork. */
static bool the_other_is_named(struct error *err)
{
    int n = call_first(), status;
    pid_t pid = rank_start("stopped", 1, 2, LIMIT_MS, is_stopped);
    struct device *dev = rank_device(0, err);
    struct collective *c = dev ? join(dev, "stopped", 0, 2, how == SIGSTOP ? 400 : LIMIT_MS, NULL, err) : NULL;
    int64_t began = clock_ms();
    while (c && n < CALLS && call_make(c, n, err))
        n++;
    bool ok = c && n == stop_at && err->code == (how == SIGSTOP ? ERR_TIMEOUT : ERR_CLOSED) && strstr(err->text, "rank 1 ")
              && clock_ms() - began < LIMIT_MS / 2;
    if (!ok)
        return error_wrap(err, "call %d of %d, after %" PRId64 " ms", n, stop_at, clock_ms() - began);
    ok = !call_make(c, 0, err) && err->code == ERR_CLOSED;    // and it stays so
    collective_leave(c);
    device_free(dev);
    kill(pid, SIGKILL);
    return waitpid(pid, &status, 0) == pid && ok;
}

static void a_stopped_or_killed_rank_is_named_at_every_call(UNUSED void **state)
{
    static const int signals[] = { SIGSTOP, SIGKILL };
    for (int k = 0; k < 2 * CALLS; k++) {
        stop_at = k / 2;
        how = signals[k % 2];
        call("stopped");
        pid_t pid = fork();
        if (pid == 0) {
            struct error err = { 0 };
            bool ok = the_other_is_named(&err);
            if (!ok)
                fprintf(stderr, "%s\n", err.text);
            _exit(ok ? 0 : 1);
        }
        ranks_end(&pid, 1);
        assert_no_name_is_left();
    }
}

/* ---- a rank that gives up */
#define WHY "its device has melted"
#define GAVE_UP "rank 1 gave up: " WHY

static bool why_is_heard(bool ok, int64_t began, const struct error *why, struct error *err)
{
    if (ok || why->code != ERR_CLOSED || strcmp(why->text, GAVE_UP) != 0 || clock_ms() - began > LIMIT_MS / 2)
        return error_set(err, ERR_DATA, "after %" PRId64 " ms not its words, but: %s", clock_ms() - began, ok ? "nothing" : why->text);
    return true;
}

/* Rank 1 makes the calls before `stop_at`, when all have joined; it gives up instead of that, or with its bytes under way. */
static bool gives_up_or_hears_why(struct collective *c, UNUSED struct device *dev, struct error *err)
{
    struct error why = { 0 };
    char here = 0;
    int n = 0;
    int64_t began = clock_ms();
    if (collective_rank(c) != 1 && write(told_pipe[1], &here, 1) != 1)
        return error_set(err, ERR_IO, "rank 1 has ended");
    if (collective_rank(c) == 1) {
        close(told_pipe[1]);    // as the test does: no rank waits for one that has ended
        for (int q = 1; q < collective_n_rank(c); q++)
            if (read(told_pipe[0], &here, 1) != 1)
                return error_set(err, ERR_IO, "another rank has not joined");
        for (; n < stop_at && n < CALLS; n++)
            if (!call_make(c, n, err))
                return false;
        if (stop_at == CALL_BEGIN && !call_make(c, CALL_BEGIN, err))
            return false;
        collective_abandon(&c, 1, WHY);
        collective_abandon(&c, 1, "nobody hears this");
    } else {
        while (n < CALLS && call_make(c, n, &why))
            n++;
        if (n == CALLS && stop_at == CALL_BEGIN)
            n += call_make(c, 2, &why);
        bool all_came = stop_at == CALL_BEGIN
                        && n > CALLS;                         // a socket takes any number of bytes from who begins if this rank is as quick
        if ((n > stop_at && !all_came) || n < stop_at - 1)    // who waits for a third one in the call before hears it there
            return error_set(err, ERR_DATA, "it has ended at call %d of %d", n, stop_at);
        if (!all_came && !why_is_heard(false, began, &why, err))
            return false;
    }
    return why_is_heard(call_make(c, 0, &why), began, &why, err);    // and it stays so
}

static void a_rank_that_gives_up_is_heard_at_every_call(UNUSED void **state)
{
    for (stop_at = 0; stop_at <= CALL_BEGIN; stop_at++)
        for (int n_rank = 2; n_rank <= ranks_most(); n_rank++) {
            pid_t pid[RANKS];
            assert_int_equal(pipe(told_pipe), 0);
            call("gives up");
            for (int r = 0; r < n_rank; r++)
                pid[r] = rank_start("gives up", r, n_rank, LIMIT_MS, gives_up_or_hears_why);
            close(told_pipe[1]);
            ranks_end(pid, n_rank);
            close(told_pipe[0]);
            assert_no_name_is_left();
        }
}

/* Each has two meetings, as with a device in each. Rank 1 gives up the first, rank 0 hears it there, and rank 2 in the other. */
static bool the_cause_goes_on(struct collective *c, struct device *dev, struct error *err)
{
    struct error why = { 0 };
    int rank = collective_rank(c);
    int64_t began = clock_ms();
    struct collective *both[3] = { c, NULL, join(dev, "second", rank, RANKS, LIMIT_MS, NULL, err) };
    if (!both[2])
        return false;
    if (rank == 1)
        collective_abandon(&c, 1, WHY);
    bool ok = rank == 2 || why_is_heard(call_make(c, 0, &why), began, &why, err);
    if (rank == 0 && ok)
        collective_abandon(both, 3, "another one's failure");
    ok = ok && why_is_heard(call_make(both[2], 0, &why), began, &why, err);
    collective_leave(both[2]);
    return ok;
}

static void the_first_cause_is_heard_in_all_meetings(UNUSED void **state)
{
    pid_t pid[RANKS];
    call("first");
    call("second");
    for (int r = 0; r < RANKS; r++)
        pid[r] = rank_start("first", r, RANKS, LIMIT_MS, the_cause_goes_on);
    ranks_end(pid, RANKS);
    assert_no_name_is_left();
}

/* Rank 0 waits in call `stop_at` until its limit has passed. The others come to it after that; one may find it all there, and no more. */
static bool waits_or_is_late(struct collective *c, UNUSED struct device *dev, struct error *err)
{
    struct error why = { 0 };
    char go[RANKS] = { 0 };
    bool first = collective_rank(c) == 0;
    if (!first && (close(told_pipe[1]) != 0 || read(told_pipe[0], go, 1) != 1))
        return error_set(err, ERR_IO, "rank 0 has ended");
    bool ok = call_make(c, stop_at, &why) && (first || call_make(c, stop_at, &why));
    const char *not_come = strncmp(why.text, "rank 0 gave up: ", 16) == 0 ? why.text + 16 : why.text;
    if (ok || why.code != (first ? ERR_TIMEOUT : ERR_CLOSED) || (not_come == why.text) != first || strncmp(not_come, "rank ", 5) != 0)
        return error_set(err, ERR_DATA, "not who has not come, but: %s", ok ? "nothing" : why.text);
    return !first || write(told_pipe[1], go, RANKS - 1) == RANKS - 1;
}

static void the_others_hear_for_whom_a_rank_has_waited_too_long(UNUSED void **state)
{
    for (stop_at = 0; stop_at < CALLS; stop_at += CALLS - 1) {    // a barrier, and bytes
        pid_t pid[RANKS];
        assert_int_equal(pipe(told_pipe), 0);
        call("too long");
        for (int r = 0; r < RANKS; r++)
            pid[r] = rank_start("too long", r, RANKS, r == 0 ? 400 : LIMIT_MS, waits_or_is_late);
        close(told_pipe[1]);    // as the late ones do: they do not wait for a rank 0 that has ended
        ranks_end(pid, RANKS);
        close(told_pipe[0]);
        assert_no_name_is_left();
    }
}

static int give_up_at;    // which piece of the second step

static bool gives_up_in_an_exchange(struct collective *c, struct device *dev, struct error *err)
{
    struct error why = { 0 };
    struct giver g;
    int64_t began = clock_ms();
    struct exchange *x = giver_open(&g, c, dev, 1, true, err) ? exchange_new(&g.f, err) : NULL;
    bool ok = false, first = x && step_is_given(x, &g, 2 * RANKS, 0, &why);
    if (first && collective_rank(c) == 1) {
        ok = exchange_begin(x, 2 * RANKS, err);
        for (int p = PIECES - 1; p > give_up_at && ok; p--)
            ok = piece_n[p] == 0 || (exchange_slot(x, p, err) && exchange_give(x, p, err));
        collective_abandon(&c, 1, WHY);
    } else if (first || (x && collective_n_rank(c) > 2)) {    // who waits for a third one in the first step hears it there
        ok = why_is_heard(first && step_is_given(x, &g, 2 * RANKS, 1, &why), began, &why, err);
    } else if (x) {
        *err = why;
    }
    exchange_free(x);
    return ok;
}

static void a_rank_that_gives_up_within_an_exchange_is_heard(UNUSED void **state)
{
    for (give_up_at = 0; give_up_at < PIECES; give_up_at++)
        on_two_and_more_ranks("gives", gives_up_in_an_exchange);
}

static bool sends_until_closed(struct collective *c, UNUSED struct device *dev, struct error *err)
{
    int n = 0;
    while (call_make(c, 2, err))
        if (collective_rank(c) == 1 && ++n == 3 && write(told_pipe[1], "x", 1) != 1)
            return false;
    return err->code == ERR_CLOSED;
}

static void a_rank_that_dies_while_bytes_are_on_their_way_ends_it_for_the_other(UNUSED void **state)
{
    for (int i = 0; i < 3; i++) {
        pid_t pid[2];
        char go;
        int status;
        assert_int_equal(pipe(told_pipe), 0);
        call("midst");
        for (int r = 0; r < 2; r++)
            pid[r] = rank_start("midst", r, 2, LIMIT_MS, sends_until_closed);
        close(told_pipe[1]);
        assert_int_equal(read(told_pipe[0], &go, 1), 1);
        usleep((useconds_t)(i * 1700));    // another moment each time
        int64_t began = clock_ms();
        kill(pid[1], SIGKILL);
        assert_int_equal(waitpid(pid[1], &status, 0), pid[1]);
        ranks_end(pid, 1);
        assert_true(clock_ms() - began < LIMIT_MS / 2);
        close(told_pipe[0]);
        assert_no_name_is_left();
    }
}

static char *page;    // that parent and ranks share

static bool reads_for_a_while(struct collective *c, UNUSED struct device *dev, struct error *err)
{
    int64_t mine = 0, all[2];
    c->kind->touches(c, true);
    if (!collective_gather(c, &mine, sizeof mine, all, err))
        return false;
    for (int i = 0; i < 3; i++)    // the reading itself: some waits that end when the other one leaves, or by their limit
        (void)!collective_gather(c, &mine, sizeof mine, all, err);
    *page = 1;
    c->kind->touches(c, false);
    return true;
}

static bool dies_reading(struct collective *c, UNUSED struct device *dev, struct error *err)
{
    int64_t mine = 0, all[2];
    c->kind->touches(c, true);
    if (!collective_gather(c, &mine, sizeof mine, all, err))
        return false;
    kill(getpid(), SIGKILL);
    return false;
}

/* What a rank has offered may be freed when it has left; so it must not leave while another one reads. */
static void a_rank_leaves_when_nobody_reads_its_memory_any_more(UNUSED void **state)
{
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(page != MAP_FAILED);
    for (int dies = 0; dies < 2; dies++) {
        struct error err = { 0 };
        struct device *dev = device_new("ref", 1, &err);
        int64_t mine = 0, all[2];
        int status;
        call("reading");
        pid_t pid = rank_start("reading", 1, 2, LIMIT_MS, dies ? dies_reading : reads_for_a_while);
        struct collective *c = join(dev, "reading", 0, 2, LIMIT_MS, NULL, &err);
        if (!c || !collective_gather(c, &mine, sizeof mine, all, &err))
            fail_msg("%s", err.text);
        if (dies) {    // ended, and not waited for by its parent: it reads no more
            siginfo_t info;
            assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
        }
        int64_t began = clock_ms();
        collective_leave(c);
        assert_true(dies ? clock_ms() - began < 2500 : *page == 1);    // a dead one is not waited for: 5 s
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(dies ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
        device_free(dev);
    }
    munmap(page, 4096);
    assert_no_name_is_left();
}

static bool is_late(UNUSED struct collective *c, UNUSED struct device *dev, UNUSED struct error *err)
{
    pause();    // until it is killed
    return false;
}

static void a_rank_that_does_not_come_is_named_after_a_limited_wait(UNUSED void **state)
{
    struct error err = { 0 };
    struct told told = { .worst = -1 };
    struct device *dev = device_new("ref", 1, &err);
    int64_t mine = 0, all[2];
    int status;
    call("late");
    pid_t pid = rank_start("late", 1, 2, LIMIT_MS, is_late);
    struct collective *c = join(dev, "late", 0, 2, 400, &told, &err);
    if (!c)
        fail_msg("%s", err.text);
    told.n = 0;
    assert_false(collective_gather(c, &mine, sizeof mine, all, &err));
    assert_int_equal(err.code, ERR_TIMEOUT);
    assert_non_null(strstr(err.text, "rank 1 "));
    assert_int_equal(told.worst, 1);
    assert_int_equal(told.last, -1);    // notified that it waits, and that it no longer does
    assert_int_equal(told.n, 2);
    collective_leave(c);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    device_free(dev);
    assert_no_name_is_left();
}

static bool has_joined(UNUSED struct collective *c, UNUSED struct device *dev, UNUSED struct error *err)
{
    return true;
}

static void joining_has_a_limit_of_its_own(UNUSED void **state)
{
    pid_t pid[2];
    call("joining");
    for (int r = 0; r < 2; r++)
        pid[r] = rank_start("joining", r, 2, 0, has_joined);    // no wait at all, once it has joined
    ranks_end(pid, 2);
    assert_no_name_is_left();
}

static void a_meeting_can_be_called_off_and_is_not_joined_uncalled(UNUSED void **state)
{
    struct error err = { 0 };
    struct device *dev = device_new("ref", 1, &err);
    assert_null(join(dev, "uncalled", 0, 2, LIMIT_MS, NULL, &err));
    assert_int_equal(err.code, ERR_CLOSED);
    call("off");
    int status, link[2];
    assert_int_equal(pipe(link), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char go;    // called off before the other joins, or while it waits: both end it the same way
        _exit(read(link[0], &go, 1) == 1 ? (collective_call_off(dir, "off"), 0) : 1);
    }
    assert_int_equal(write(link[1], "x", 1), 1);
    assert_null(join(dev, "off", 0, 2, LIMIT_MS, NULL, &err));
    assert_int_equal(err.code, ERR_CLOSED);
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    close(link[0]);
    close(link[1]);
    device_free(dev);
    assert_no_name_is_left();
}

static void a_place_is_taken_once_and_all_count_the_same(UNUSED void **state)
{
    static const struct {
        int rank, n_rank;
        enum error_code want;
    } cases[] = { { 1, 3, ERR_USAGE }, { 0, 2, ERR_EXISTS }, { 2, 2, ERR_USAGE }, { -1, 2, ERR_USAGE }, { 0, 65, ERR_USAGE } };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        int status, link[2];
        char there;
        call("places");
        assert_int_equal(pipe(link), 0);
        pid_t pid = fork();
        if (pid == 0) {
            struct device *dev = device_new("ref", 1, &err);
            struct collective_config c = {
                .kind = kind, .dir = dir, .name = "places", .rank = 0, .n_rank = 2, .dev = dev, .join_ms = LIMIT_MS, .wait_ms = LIMIT_MS
            };
            close(link[0]);
            pid_t inner = fork();
            if (inner == 0) {    // looks until rank 0 has joined: the mapped file holds what it has reached at byte 64
                char path[400];
                struct error none;
                struct file_map map = { 0 };
                snprintf(path, sizeof path, "%s/places", dir);
                bool tcp = strcmp(kind, "tcp") == 0;    // has the file when rank 0 is there
                while (file_map_open(&map, path, &none) && (map.size_bytes == 0 || (!tcp && (map.data[0] == 0 || map.data[64] == 0)))) {
                    file_map_close(&map);
                    usleep(1000);
                }
                file_map_close(&map);
                _exit(write(link[1], "x", 1) == 1 ? 0 : 1);
            }
            struct collective *none = collective_join(&c, &err);
            waitpid(inner, &status, 0);
            _exit(!none && err.code == ERR_CLOSED ? 0 : 1);
        }
        close(link[1]);
        assert_int_equal(read(link[0], &there, 1), 1);
        close(link[0]);
        struct device *dev = device_new("ref", 1, &err);
        assert_null(join(dev, "places", cases[i].rank, cases[i].n_rank, LIMIT_MS, NULL, &err));
        assert_int_equal(err.code, cases[i].want);
        collective_call_off(dir, "places");
        waitpid(pid, &status, 0);
        assert_int_equal(status, 0);
        device_free(dev);
        assert_no_name_is_left();
    }
}

static int dir_open(UNUSED void **state)
{
    snprintf(dir, sizeof dir, "/tmp/rc-collective-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int dir_close(UNUSED void **state)
{
    struct error err;
    return dir_remove(dir, &err) ? 0 : -1;
}

/* ---- tcp */
/* Where rank 0 listens, as the meeting's file says, and its key. */
static uint16_t port_of(const char *name, char key[65])
{
    char path[400], text[COLLECTIVE_FILE_MAX] = "";
    unsigned port = 0;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    for (int64_t end = clock_ms() + LIMIT_MS; !strchr(text, '\n') && clock_ms() < end; usleep(1000)) {
        FILE *f = fopen(path, "r");
        if (!f || !fgets(text, sizeof text, f))
            text[0] = 0;
        if (f)
            fclose(f);
    }
    assert_int_equal(sscanf(text, "127.0.0.1 %u %64s", &port, key), 2);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    return (uint16_t)port;
}

/* Connect, send this many bytes of a first message, then of a proof; *n: what came back until the other end closed. */
static void stranger_calls(uint16_t port, size_t n_hello, const char *start, size_t n_proof, size_t *n)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    char hello[4096] = "", back[4096];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memcpy(hello, start, strlen(start));
    hello[40] = 1;    // rank 1 of 2
    hello[44] = 2;
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    (void)!send(fd, hello, n_hello, MSG_NOSIGNAL);
    (void)!send(fd, hello, n_proof, MSG_NOSIGNAL);
    *n = 0;
    for (ssize_t k; (k = recv(fd, back, sizeof back, 0)) > 0;)
        *n += (size_t)k;
    close(fd);
}

static bool gathers_once(struct collective *c, UNUSED struct device *dev, struct error *err)
{
    return call_make(c, 0, err);
}

static void strangers_are_sent_away_and_the_ranks_meet(UNUSED void **state)
{
    pid_t pid[2];
    char key[65];
    size_t n;
    call("strangers");
    pid[0] = rank_start("strangers", 0, 2, LIMIT_MS, gathers_once);
    uint16_t port = port_of("strangers", key);
    stranger_calls(port, 4096, "GET / HTTP/1.1\r\n\r\n", 0, &n);
    assert_int_equal(n, 0);    // not a word to who speaks another language
    stranger_calls(port, 52, "rcrank1", 32, &n);
    assert_int_equal(n, 64);                       // a number to prove itself by, and no welcome
    stranger_calls(port, 10, "rcrank1", 0, &n);    // too short: sent away after a limit
    assert_int_equal(n, 0);
    pid[1] = rank_start("strangers", 1, 2, LIMIT_MS, gathers_once);
    ranks_end(pid, 2);
    assert_no_name_is_left();
}

/* One after the other, each without a word. */
static void strangers_crowd(uint16_t port)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    for (;;) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        bool ok = connect(fd, (struct sockaddr *)&to, sizeof to) == 0;
        close(fd);
        if (!ok)    // nobody listens any more
            _exit(0);
    }
}

static void a_rank_waits_no_longer_than_its_limit_while_strangers_keep_coming(UNUSED void **state)
{
    struct error err = { 0 };
    struct device *dev = device_new("ref", 1, &err);
    char key[65];
    int status;
    struct collective_config config = {
        .kind = kind, .dir = dir, .name = "crowd", .n_rank = 2, .dev = dev, .join_ms = 400, .wait_ms = 400
    };
    call("crowd");
    pid_t pid = fork();
    if (pid == 0)
        strangers_crowd(port_of("crowd", key));
    int64_t began = clock_ms();
    assert_null(collective_join(&config, &err));
    assert_int_equal(err.code, ERR_TIMEOUT);
    assert_non_null(strstr(err.text, "rank 1 "));
    assert_true(clock_ms() - began < 10000);    // on a busy machine; they come as long as it listens
    assert_int_equal(waitpid(pid, &status, 0), pid);
    device_free(dev);
    assert_no_name_is_left();
}

/* Who listens in rank 0's place must know the key, too. */
static void a_rank_does_not_believe_a_listener_without_the_key(UNUSED void **state)
{
    struct error err = { 0 };
    struct device *dev = device_new("ref", 1, &err);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0), status;
    char path[400];
    assert_true(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 1) == 0
                && getsockname(fd, (struct sockaddr *)&at, &len) == 0);
    call("impostor");
    snprintf(path, sizeof path, "%s/impostor", dir);
    FILE *f = fopen(path, "w");
    fprintf(f, "127.0.0.1 %u %064d\n", ntohs(at.sin_port), 7);
    fclose(f);
    pid_t pid = fork();
    if (pid == 0) {
        char hello[52], answer[64] = "";
        int c = accept(fd, NULL, NULL);
        _exit(recv(c, hello, sizeof hello, MSG_WAITALL) == sizeof hello && send(c, answer, sizeof answer, MSG_NOSIGNAL) == sizeof answer
                      && recv(c, hello, 1, 0) == 0
                  ? 0
                  : 1);
    }
    close(fd);
    assert_null(join(dev, "impostor", 1, 2, LIMIT_MS, NULL, &err));
    assert_int_equal(err.code, ERR_REFUSED);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    collective_call_off(dir, "impostor");
    device_free(dev);
}

/* A rank of another host: what it has of the meeting's file is in a folder of its own, with rank 0's address as seen from there. */
static void ranks_of_several_hosts_meet_by_copies_of_the_file_and_share_rank_0s_secret(UNUSED void **state)
{
    enum { N = 4 };    // two on each host
    pid_t pid[N];
    char there[320], from[420], to[420], key[65], text[COLLECTIVE_FILE_MAX], copy[COLLECTIVE_FILE_MAX];
    struct error err;
    snprintf(there, sizeof there, "%s/.there", dir);
    assert_int_equal(mkdir(there, 0700), 0);
    call("apart");
    assert_true(collective_call(there, "apart", &err));
    for (int r = 0; r < N; r++) {
        if ((pid[r] = fork()) != 0)
            continue;
        char secret[128] = "", all[N];
        memset(secret, r == 0 ? 's' : 0, sizeof secret);
        struct collective_config c = { .kind = "tcp",
                                       .dir = r < 2 ? dir : there,
                                       .name = "apart",
                                       .rank = r,
                                       .n_rank = N,
                                       .address = "*",
                                       .secret = secret,
                                       .secret_bytes = sizeof secret,
                                       .join_ms = LIMIT_MS,
                                       .wait_ms = LIMIT_MS };
        struct collective *k = collective_join(&c, &err);
        char mine = (char)('a' + r);
        bool ok = k && collective_gather(k, &mine, 1, all, &err) && memcmp(all, "abcd", N) == 0 && secret[0] == 's' && secret[127] == 's';
        if (!ok)
            fprintf(stderr, "rank %d: %s\n", r, k ? "another result" : err.text);
        collective_leave(k);
        _exit(ok ? 0 : 1);
    }
    (void)port_of("apart", key);    // it is written
    snprintf(from, sizeof from, "%s/apart", dir);
    snprintf(to, sizeof to, "%s/apart", there);
    FILE *f = fopen(from, "r");
    size_t n = fread(text, 1, sizeof text, f), m = collective_file_for(text, n, "127.0.0.2", copy);    // the same host by another name
    fclose(f);
    assert_true(m > 0 && strncmp(copy, "127.0.0.2 ", 10) == 0 && strstr(copy, key));
    assert_int_equal(collective_file_for(text, n - 1, "127.0.0.2", copy), 0);    // it is not whole
    assert_int_equal(collective_file_for(text, n, "a b", copy), 0);
    assert_true((f = fopen(to, "w")) && fwrite(copy, 1, m, f) == m && fclose(f) == 0);
    ranks_end(pid, N);
    assert_int_equal(unlink(to), 0);    // whoever made the copy removes it
    assert_int_equal(rmdir(there), 0);
    assert_no_name_is_left();
}

static void a_kind_that_is_none_or_not_for_cpus_is_refused(UNUSED void **state)
{
    struct error err = { 0 };
    struct device *dev = device_new("ref", 1, &err);
    kind = "pigeons";
    assert_null(join(dev, "x", 0, 2, LIMIT_MS, NULL, &err));
    assert_int_equal(err.code, ERR_USAGE);
    kind = "nccl";
    assert_null(join(dev, "x", 0, 2, LIMIT_MS, NULL, &err));
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    device_free(dev);
}

int main(void)
{
#define EVERY_KIND                                                                                                                         \
    cmocka_unit_test(what_each_rank_has_comes_to_all), cmocka_unit_test(bytes_of_any_length_come_from_all_to_all),                         \
        cmocka_unit_test(sums_of_pieces_need_no_way_to_the_others_memory), cmocka_unit_test(the_others_leave_when_a_rank_dies_or_leaves),  \
        cmocka_unit_test(a_rank_that_does_not_come_is_named_after_a_limited_wait), cmocka_unit_test(joining_has_a_limit_of_its_own),       \
        cmocka_unit_test(a_stopped_or_killed_rank_is_named_at_every_call),                                                                 \
        cmocka_unit_test(a_rank_that_dies_while_bytes_are_on_their_way_ends_it_for_the_other),                                             \
        cmocka_unit_test(a_rank_that_gives_up_is_heard_at_every_call), cmocka_unit_test(the_first_cause_is_heard_in_all_meetings),         \
        cmocka_unit_test(the_others_hear_for_whom_a_rank_has_waited_too_long),                                                             \
        cmocka_unit_test(a_rank_that_does_not_look_after_a_transfer_is_late),                                                              \
        cmocka_unit_test(a_rank_that_gives_up_within_an_exchange_is_heard),                                                                \
        cmocka_unit_test(a_meeting_can_be_called_off_and_is_not_joined_uncalled),                                                          \
        cmocka_unit_test(a_place_is_taken_once_and_all_count_the_same)
    const struct CMUnitTest ipc[] = {
        EVERY_KIND,
        cmocka_unit_test(host_memory_that_ranks_offer_is_read),
        cmocka_unit_test(pieces_are_added_in_the_order_of_micro_batches),
        cmocka_unit_test(the_others_leave_an_exchange_when_a_rank_dies),
        cmocka_unit_test(a_rank_that_does_not_give_is_named),
        cmocka_unit_test(time_spent_waiting_is_that_of_the_rank_that_is_late),
        cmocka_unit_test(a_rank_leaves_when_nobody_reads_its_memory_any_more),
    };
    const struct CMUnitTest local[] = { EVERY_KIND };
    const struct CMUnitTest tcp[] = {
        EVERY_KIND,
        cmocka_unit_test(strangers_are_sent_away_and_the_ranks_meet),
        cmocka_unit_test(a_rank_waits_no_longer_than_its_limit_while_strangers_keep_coming),
        cmocka_unit_test(a_rank_does_not_believe_a_listener_without_the_key),
        cmocka_unit_test(ranks_of_several_hosts_meet_by_copies_of_the_file_and_share_rank_0s_secret),
        cmocka_unit_test(a_kind_that_is_none_or_not_for_cpus_is_refused),
    };
    const struct CMUnitTest gpus[] = {
        cmocka_unit_test(what_each_rank_has_comes_to_all),
        cmocka_unit_test(bytes_of_any_length_come_from_all_to_all),
        cmocka_unit_test(a_stopped_or_killed_rank_is_named_at_every_call),
        cmocka_unit_test(a_rank_that_dies_while_bytes_are_on_their_way_ends_it_for_the_other),
        cmocka_unit_test(a_rank_that_gives_up_is_heard_at_every_call),
    };
    if (getenv("RC_TEST_DEVICES")) {
        kind = "local";
        int on_gpus = cmocka_run_group_tests_name("local, GPUs", gpus, dir_open, dir_close);
        kind = "nccl";
        return on_gpus + cmocka_run_group_tests_name("nccl", gpus, dir_open, dir_close);
    }
    kind = "ipc";
    int failed = cmocka_run_group_tests_name("ipc", ipc, dir_open, dir_close);
    kind = "local";
    failed += cmocka_run_group_tests_name("local", local, dir_open, dir_close);
    kind = "tcp";
    failed += cmocka_run_group_tests_name("tcp", tcp, dir_open, dir_close);
    return failed;
}
