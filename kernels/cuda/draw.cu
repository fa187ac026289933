/* draw.cu - the draw of a token from a row of logits, with its log-prob
 *
 * The log-prob has the bits of logprob_fwd (head.cuh). Two passes over the row, the second in contiguous parts, one per warp. */
#include "kernels/cuda/head.cuh"
#include "kernels/philox.h"

/* Call f(j, logit) for this thread's elements of the row. */
template <typename F> __device__ static inline void row_each(const float *__restrict__ z, int64_t n, bool wide, F f)
{
    if (wide) {
        int64_t n4 = n / 4 * 4;
        for (int64_t j = (int64_t)threadIdx.x * 4; j < n4; j += HEAD_THREADS * 4) {
            float4 v = *(const float4 *)(z + j);
            f(j, v.x);
            f(j + 1, v.y);
            f(j + 2, v.z);
            f(j + 3, v.w);
        }
        if (threadIdx.x < n - n4)
            f(n4 + threadIdx.x, z[n4 + threadIdx.x]);
        return;
    }
    for (int64_t j = threadIdx.x; j < n; j += HEAD_THREADS)
        f(j, z[j]);
}
/* --- sampling -------------------------------------------------------------------------------------------------------- */
__device__ static uint32_t order_key(float x)    // floats as integers in the same order, and back
{
    uint32_t u = __float_as_uint(x);
    return u >> 31 ? ~u : u | 0x80000000u;
}
__device__ static float order_float(uint32_t key)
{
    return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}
/* What a row's token is drawn from: its logits, all of them or without the banned ids. The latter costs a comparison per id and element,
 * in code of its own, so that other rows pay nothing. */
struct whole_row {
    const float *z;
    __device__ float operator()(int64_t, float x) const
    {
        return x;
    }
};
struct row_without {
    const float *z;
    const int32_t *ban;    // (n) shared memory
    int n;
    __device__ float operator()(int64_t j, float x) const
    {
        for (int k = 0; k < n; k++)
            x = j == ban[k] ? -INFINITY : x;
        return x;
    }
};
/* Sum of e^(z - top) (or the count) over logits not below least. */
template <typename R>
__device__ static float mass_from(R from, int64_t n, bool wide, float least, bool count, float inv_t, float top, float *tmp)
{
    float sum = 0;
    row_each(from.z, n, wide, [&](int64_t j, float z) {
        float x = from(j, z);
        sum += x < least ? 0 : count ? 1.0f : expf(x * inv_t - top);
    });
    return head_sum(sum, tmp);
}
/* The largest threshold whose mass reaches want, by bisection over the floats between low and high. */
template <typename R>
__device__ static float mass_threshold(R from, int64_t n, bool wide, float low, float high, float want, bool count, float inv_t, float top,
                                       float *tmp)
{
    uint32_t a = order_key(low), b = order_key(high);
    while (a < b) {
        uint32_t mid = a + (b - a + 1) / 2;
        if (mass_from(from, n, wide, order_float(mid), count, inv_t, top, tmp) >= want)
            a = mid;
        else
            b = mid - 1;
    }
    return order_float(a);
}
/* e^d where `there`, else 0; without a branch, so that the exponentials of several elements are computed side by side. */
__device__ static inline float mass_of(float d, bool there)
{
    float e = expf(d);
    asm volatile("" : "+f"(e));
    return there ? e : 0;
}
/* Ids are searched in groups of a warp's width, of which a part has at most GROUPS_MAX; longer ones one after the other. */
#define GROUPS_MAX 1024
struct group_mass {
    float all, most;    // sum of the group, and the largest of its running sums at an id with any mass (else -inf)
};
/* What the lanes hold of a group of ids: their masses and running sums. */
struct group_run {
    float e, run;
};
template <typename R> __device__ static inline float group_load(R from, int64_t j, int64_t end)
{
    int lane = threadIdx.x % 32;
    return j + lane < end ? from(j + lane, from.z[j + lane]) : -INFINITY;
}
__device__ static inline group_run group_scan(float x, int64_t j, int64_t end, float least, float inv_t, float top)
{
    int lane = threadIdx.x % 32;
    group_run g;
    g.e = mass_of(x * inv_t - top, j + lane < end && !(x < least));
    g.run = g.e;
#pragma unroll
    for (int w = 1; w < 32; w *= 2) {
        float before = __shfl_up_sync(0xffffffffu, g.run, w);
        if (lane >= w)
            g.run += before;
    }
    return g;
}
/* Where a search has come to. */
struct search {
    int64_t last;     // the latest group with any mass; -1: none
    float at, cum;    // the sum of masses before it, and before the next group
    bool passed;      // it holds the id
};
/* Go on over n groups from id j on. */
__device__ static search groups_pass(search s, const group_mass *mass, int n, int64_t j, float target)
{
    for (int k0 = 0; k0 < n && !s.passed; k0 += 16)
#pragma unroll
        for (int k = k0; k < k0 + 16; k++) {    // without branches: a chain of sums
            group_mass g = k < n ? mass[k] : group_mass{ 0, -INFINITY };
            bool here = !s.passed && g.most > -INFINITY;
            s.last = here ? j + k * 32 : s.last;
            s.at = here ? s.cum : s.at;
            s.passed |= here && s.cum + g.most > target;
            s.cum += g.all;
        }
    return s;
}
#define SEARCH_EACH 4    // groups that a warp reads at once
/* The first id from j0 to j1 at which the sum of masses, from cum on, passes target; the last one with any mass if none does, -1 if none
 * has any. All warps sum the groups, the first adds the sums in order and looks into the one that passes; only it knows the result. */
template <typename R>
__device__ static int32_t part_search(R from, int64_t j0, int64_t j1, float least, float inv_t, float top, float cum, float target,
                                      group_mass *mass)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    search s = { -1, cum, cum, false };
    for (int64_t j = j0; j < j1; j += GROUPS_MAX * 32) {
        int n = (int)((min(j1 - j, (int64_t)GROUPS_MAX * 32) + 31) / 32);
        for (int k0 = warp; k0 < n; k0 += HEAD_WARPS * SEARCH_EACH) {
            float x[SEARCH_EACH];
#pragma unroll
            for (int u = 0; u < SEARCH_EACH; u++)
                x[u] = group_load(from, j + (k0 + u * HEAD_WARPS) * 32, j1);
#pragma unroll
            for (int u = 0; u < SEARCH_EACH; u++) {
                int k = k0 + u * HEAD_WARPS;
                group_run g = group_scan(x[u], j + k * 32, j1, least, inv_t, top);
                float most = warp_max(g.e > 0 ? g.run : -INFINITY);
                if (lane == 31 && k < n)
                    mass[k] = group_mass{ g.run, most };
            }
        }
        __syncthreads();
        if (warp == 0)
            s = groups_pass(s, mass, n, j, target);
        __syncthreads();
    }
    if (warp != 0 || s.last < 0)
        return -1;
    group_run g = group_scan(group_load(from, s.last, j1), s.last, j1, least, inv_t, top);
    unsigned any = __ballot_sync(0xffffffffu, g.e > 0), over = __ballot_sync(0xffffffffu, g.e > 0 && s.at + g.run > target);
    return (int32_t)s.last + (over ? __ffs(over) - 1 : 31 - __clz(any));
}
/* The best of what is left of a row. */
template <typename R> __device__ static row_top row_top_of(R from, int64_t n, bool wide, float *tmp)
{
    row_top own = { -INFINITY, INT32_MAX };
    row_each(from.z, n, wide, [&](int64_t j, float z) {    // in the order of j
        float x = from(j, z);
        if (x > own.x)
            own = row_top{ x, (int)j };
    });
    float highest = head_max(own.x, tmp);
    return row_top{ highest, best_id(own, highest, (int *)tmp) };
}
#define MASS_EACH 8    // elements of a lane that are read at once, while as many are worked on
/* The sum of a warp's masses from j0 to j1: each lane's in their order, then over the lanes. */
template <typename R> __device__ static inline float part_mass(R from, int64_t j0, int64_t j1, float least, float inv_t, float top)
{
    int lane = threadIdx.x % 32, n = j1 > j0 ? (int)(j1 - j0) : 0, k = 0;
    float own = 0, x[MASS_EACH], next[MASS_EACH], e[MASS_EACH];
    const float *z = from.z + j0 + lane;
    if (n >= 32 * MASS_EACH)
#pragma unroll
        for (int u = 0; u < MASS_EACH; u++)
            next[u] = z[32 * u];
    for (; k + 32 * MASS_EACH <= n; k += 32 * MASS_EACH) {
#pragma unroll
        for (int u = 0; u < MASS_EACH; u++)
            x[u] = next[u];
        if (k + 64 * MASS_EACH <= n)
#pragma unroll
            for (int u = 0; u < MASS_EACH; u++)
                next[u] = z[k + 32 * (MASS_EACH + u)];
#pragma unroll
        for (int u = 0; u < MASS_EACH; u++) {
            x[u] = from(j0 + lane + k + 32 * u, x[u]);
            e[u] = mass_of(x[u] * inv_t - top, !(x[u] < least));
        }
#pragma unroll
        for (int u = 0; u < MASS_EACH; u++)
            own += e[u];
    }
    for (k += lane; k < n; k += 32) {
        float v = from(j0 + k, from.z[j0 + k]);
        own += mass_of(v * inv_t - top, !(v < least));
    }
    return warp_sum(own);
}
/* What the threads of a row share. */
struct draw_room {
    float tmp[33];
    float part[HEAD_WARPS];
    group_mass mass[GROUPS_MAX];
    int32_t ban[SAMPLE_BAN_MAX];
};
/* The draw: each warp sums a contiguous part of the row, then the part that holds the target is searched. best: the largest of `from`; it is
 * the token when the temperature is 0. Only the first warp knows the result. */
template <typename R>
__device__ static int32_t row_draw(R from, const sample_row &row, int64_t n, bool wide, float inv_t, row_top best, draw_room *room)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (!(row.temperature > 0))
        return best.id;
    float least = -INFINITY, highest = best.x, top = highest * inv_t, *tmp = room->tmp;
    if (row.top_k > 0 && row.top_k < n)
        least = mass_threshold(from, n, wide, -INFINITY, highest, (float)row.top_k, true, inv_t, top, tmp);
    if (row.top_p < 1)
        least = mass_threshold(from, n, wide, least, highest, row.top_p * mass_from(from, n, wide, least, false, inv_t, top, tmp), false,
                               inv_t, top, tmp);
    if (row.min_p > 0)
        least = fmaxf(least, fminf(highest, highest + logf(row.min_p) / inv_t));
    int64_t step = (n + HEAD_WARPS - 1) / HEAD_WARPS, j0 = warp * step, j1 = j0 + step < n ? j0 + step : n;
    float own = part_mass(from, j0, j1, least, inv_t, top);
    if (lane == 0)
        room->part[warp] = own;
    __syncthreads();
    float total = 0;
    for (int w = 0; w < HEAD_WARPS; w++)
        total += room->part[w];
    float target = philox_uniform(row.seed, row.item, row.sample, row.pos) * total, cum = 0;
    int chosen = 0;
    for (; chosen < HEAD_WARPS - 1 && cum + room->part[chosen] <= target; chosen++)
        cum += room->part[chosen];
    while (chosen > 0 && room->part[chosen] == 0)    // rounding put the target after the last id with any mass
        chosen--;
    int32_t drawn = part_search(from, chosen * step, min(n, (chosen + 1) * step), least, inv_t, top, cum, target, room->mass);
    return drawn >= 0 ? drawn : best.id;
}
/* As above without the banned ids of row i. Not inlined, so that it takes no registers from the others. */
__device__ __noinline__ static int32_t row_draw_without(const struct sample_fwd *a, int64_t i, bool wide, float inv_t, draw_room *room)
{
    sample_row row = a->row[i];
    if (threadIdx.x < row.n_ban)
        room->ban[threadIdx.x] = a->ban[i * SAMPLE_BAN_MAX + threadIdx.x];
    __syncthreads();
    row_without from = { a->logits + i * a->ld, room->ban, row.n_ban };
    return row_draw(from, row, a->n_live, wide, inv_t, row_top_of(from, a->n_live, wide, room->tmp), room);
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CLUSTER_CODE 1
#endif
/* --- the draw of one row by a cluster --------------------------------------------------------------------------------
 *
 * A row's sums are 512 chains of additions in both passes, whose order must stay. One thread per chain, which also computes its exponentials,
 * takes some 50 us per row however many blocks share the chains. So here all threads of a cluster's blocks compute exponentials into shared
 * memory, and few warps do nothing but add them up:
 * 1. Block b of SPREAD has the chains from 64 b on of row_see. A stage is SPREAD rounds of SEE_EACH elements: MAKERS threads take the largest of
 *    their elements, learn from each other what the chain's largest was by then, and leave e^(z - largest) and z - largest; ADDERS threads,
 *    one per chain, add them up as seen_add does.
 * 2. The blocks tell each other their largest logits. Then each takes two of the row's HEAD_WARPS parts, from their beginnings: e^(z - top) stays
 *    in shared memory, and one warp per part adds up its lanes' chains as part_mass does.
 * 3. They tell each other their sums. The block with the part that holds the target searches it as part_search does. */
#define SPREAD 8                           // blocks of a cluster
#define ADDERS (HEAD_THREADS / SPREAD)     // chains of a block
#define PARTS_OWN (HEAD_WARPS / SPREAD)    // parts of a block
#define MAKERS HEAD_THREADS
#define STAGE_PLACES (SEE_EACH / 4 * MAKERS)    // of float4, in a stage
#define BATCH 8                                 // ids of its lane that a maker takes at a time in the second pass
#define BATCHES_MAX 8
#define ROW_PAD 33    // floats from one group of 32 masses to the next
struct told_top {
    float x;
    int id;
};
struct spread_room {
    uint64_t top_here, sums_here;    // barriers for what the blocks tell
    told_top top[SPREAD];
    float sum[HEAD_WARPS], weighted[HEAD_WARPS], part[HEAD_WARPS];
    told_top warp_top[HEAD_WARPS + ADDERS / 32];
    float most[2][SPREAD][ADDERS];    // of a stage, by round and chain
};
#ifdef CLUSTER_CODE
__device__ static inline uint32_t spread_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
/* Wait for all of `threads` at barrier id, or only come. */
__device__ static inline void spread_meet(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ static inline void spread_come(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
enum {
    MEET_MAKERS = 1,
    MEET_FULL = 2,     // and 3: a stage's numbers are there
    MEET_FREE = 4,     // and 5: they have been added up
    MEET_BATCH = 6,    // to 13: masses are there
};
/* Store a word at `to` of another block, which its barrier counts. */
__device__ static inline void tell(void *to, uint32_t value, uint64_t *bar, int block)
{
    asm volatile("{\n.reg .b32 a, b;\nmapa.shared::cluster.u32 a, %0, %3;\nmapa.shared::cluster.u32 b, %2, %3;\n"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [a], %1, [b];\n}" ::"r"(spread_at(to)),
                 "r"(value), "r"(spread_at(bar)), "r"(block)
                 : "memory");
}
/* Expect `bytes` of words, once; then wait for them. */
__device__ static inline void told_expect(uint64_t *bar, int bytes)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(spread_at(bar)) : "memory");
    asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1; }" ::"r"(spread_at(bar)), "r"(bytes) : "memory");
}
__device__ static inline void told_wait(uint64_t *bar)
{
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0;\n@!p bra again;\n}" ::"r"(
                     spread_at(bar))
                 : "memory");
}
/* SEE_EACH elements of chain t in round r of a row; missing ones -inf. */
__device__ static inline void round_load(float (&x)[SEE_EACH], const float *z, int r, int t, int n4)
{
#pragma unroll
    for (int g = 0; g < SEE_EACH / 4; g++) {
        int j = r * HEAD_THREADS * SEE_EACH + g * HEAD_THREADS * 4 + t * 4;
        float4 v = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        if (j < n4)
            v = *(const float4 *)(z + j);
        x[4 * g] = v.x, x[4 * g + 1] = v.y, x[4 * g + 2] = v.z, x[4 * g + 3] = v.w;
    }
}
/* A maker's stages of the first pass; what it has seen of the row. */
template <bool WEIGH> __device__ static row_top spread_make(const float *z, int rank, int n4, float inv_t, spread_room *room, float4 *place)
{
    int k = threadIdx.x / ADDERS, slot = threadIdx.x % ADDERS, t = rank * ADDERS + slot, round = HEAD_THREADS * SEE_EACH;
    int n_stage = ((n4 + round - 1) / round + SPREAD - 1) / SPREAD;
    row_top own = { -INFINITY, INT32_MAX };
    float base = -INFINITY, x[SEE_EACH], next[SEE_EACH];
    round_load(next, z, k, t, n4);
    for (int s = 0; s < n_stage; s++) {
        int r = s * SPREAD + k, b = s & 1;
#pragma unroll
        for (int i = 0; i < SEE_EACH; i++)
            x[i] = next[i];
        round_load(next, z, r + SPREAD, t, n4);
        float m = x[0];
#pragma unroll
        for (int i = 1; i < SEE_EACH; i++)
            m = fmaxf(m, x[i]);
        if (s >= 2)
            spread_meet(MEET_FREE + b, MAKERS + ADDERS);
        room->most[b][k][slot] = m;
        if (m > own.x) {
            own.x = m;
#pragma unroll
            for (int i = SEE_EACH - 1; i >= 0; i--)
                if (x[i] == m)
                    own.id = r * round + i / 4 * HEAD_THREADS * 4 + t * 4 + i % 4;
        }
        spread_meet(MEET_MAKERS, MAKERS);
        float p = base;
#pragma unroll
        for (int i = 0; i < SPREAD; i++) {
            float o = room->most[b][i][slot];
            p = i <= k ? fmaxf(p, o) : p;
            base = fmaxf(base, o);
        }
        bool none = p == -INFINITY && m == -INFINITY;
        float top = p * inv_t;
#pragma unroll
        for (int g = 0; g < SEE_EACH / 4; g++) {
            float e[4], d[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                d[i] = __fmaf_rn(x[4 * g + i], inv_t, -top);
                e[i] = mass_of(d[i], !none);
                d[i] = none ? 0 : fmaxf(d[i], -87.0f);
            }
            float4 *to = place + (b * (WEIGH ? 2 : 1)) * STAGE_PLACES + (k * SEE_EACH / 4 + g) * ADDERS + slot;
            to[0] = make_float4(e[0], e[1], e[2], e[3]);
            if (WEIGH)
                to[STAGE_PLACES] = make_float4(d[0], d[1], d[2], d[3]);
        }
        spread_come(MEET_FULL + b, MAKERS + ADDERS);
    }
    return own;
}
/* An adder's chain of the first pass. */
template <bool WEIGH>
__device__ static own_seen spread_add(const float *z, int rank, int n, int n4, float inv_t, spread_room *room, const float4 *place)
{
    int slot = threadIdx.x - MAKERS, t = rank * ADDERS + slot, round = HEAD_THREADS * SEE_EACH;
    int n_round = (n4 + round - 1) / round, n_stage = (n_round + SPREAD - 1) / SPREAD;
    own_seen s = { { -INFINITY, INT32_MAX }, 0, 0 };
    float tail = t < n - n4 ? z[n4 + t] : -INFINITY;
    for (int stage = 0; stage < n_stage; stage++) {
        int b = stage & 1, rounds = min(SPREAD, n_round - stage * SPREAD);
        spread_meet(MEET_FULL + b, MAKERS + ADDERS);
        const float4 *from = place + (b * (WEIGH ? 2 : 1)) * STAGE_PLACES + slot;
        for (int k = 0; k < rounds; k++, from += SEE_EACH / 4 * ADDERS) {
            float most = room->most[b][k][slot];
            float4 e[SEE_EACH / 4], d[SEE_EACH / 4];
#pragma unroll
            for (int g = 0; g < SEE_EACH / 4; g++) {
                e[g] = from[g * ADDERS];
                if (WEIGH)
                    d[g] = from[STAGE_PLACES + g * ADDERS];
            }
            if (most > s.best.x) {
                seen_lower(s, __fmaf_rn(s.best.x, inv_t, -(most * inv_t)));
                s.best.x = most;
            }
#pragma unroll
            for (int g = 0; g < SEE_EACH / 4; g++) {
                s.sum += e[g].x;
                s.sum += e[g].y;
                s.sum += e[g].z;
                s.sum += e[g].w;
                if (WEIGH) {
                    s.weighted = __fmaf_rn(e[g].x, d[g].x, s.weighted);
                    s.weighted = __fmaf_rn(e[g].y, d[g].y, s.weighted);
                    s.weighted = __fmaf_rn(e[g].z, d[g].z, s.weighted);
                    s.weighted = __fmaf_rn(e[g].w, d[g].w, s.weighted);
                }
            }
        }
        if (stage + 2 < n_stage)
            spread_come(MEET_FREE + b, MAKERS + ADDERS);
    }
    if (t < n - n4) {    // the elements after the last four
        if (tail > s.best.x) {
            seen_lower(s, __fmaf_rn(s.best.x, inv_t, -(tail * inv_t)));
            s.best = row_top{ tail, n4 + t };
        }
        if (!(s.best.x == -INFINITY && tail == -INFINITY)) {
            float d = __fmaf_rn(tail, inv_t, -(s.best.x * inv_t)), e = expf(d);
            s.sum += e;
            s.weighted = __fmaf_rn(e, fmaxf(d, -87.0f), s.weighted);
        }
    }
    return s;
}
/* The masses of the groups of one part, a group per thread; all and most of group_scan's. */
__device__ static inline group_mass group_sum(const float *row)
{
    float run[32];
    unsigned any = 0;
#pragma unroll
    for (int l = 0; l < 32; l++) {
        run[l] = row[l];
        any |= run[l] > 0 ? 1u << l : 0;
    }
#pragma unroll
    for (int w = 1; w < 32; w *= 2)
#pragma unroll
        for (int l = 31; l >= w; l--)
            run[l] += run[l - w];
    group_mass g = { run[31], -INFINITY };
#pragma unroll
    for (int l = 0; l < 32; l++)
        g.most = fmaxf(g.most, any >> l & 1 ? run[l] : -INFINITY);
    return g;
}
/* The rows that need more passes: by the makers of a cluster's first block. */
__device__ __noinline__ static void sample_alone(const struct sample_fwd *a, int64_t i, float inv_t, draw_room *room)
{
    struct sample_row row = a->row[i];
    whole_row whole = { a->logits + i * a->ld };
    row_seen seen = row_see(whole.z, a->n_live, true, inv_t, room->tmp);
    row_stat r = seen.stat;
    int32_t id = row.n_ban > 0 ? row_draw_without(a, i, true, inv_t, room) : row_draw(whole, row, a->n_live, true, inv_t, seen.best, room);
    if (threadIdx.x != 0)
        return;
    a->id[i] = id;
    if (a->logp)
        a->logp[i] = stat_logp(r, whole.z, id, a->n_live, inv_t);
    if (a->entropy)
        a->entropy[i] = stat_entropy(r);
}
#endif
/* Each element is read twice, from memory and then from the second-level cache. */
template <bool WEIGH>
__global__ static void __launch_bounds__(MAKERS + ADDERS, 2) spread_kernel(const __grid_constant__ struct sample_fwd a)
{
#ifdef CLUSTER_CODE
    extern __shared__ __align__(16) char spread_shared[];
    __shared__ spread_room room;
    int64_t i = blockIdx.x / SPREAD;
    int rank = blockIdx.x % SPREAD, n = (int)a.n_live, n4 = n / 4 * 4, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float *z = a.logits + i * a.ld;
    bool maker = threadIdx.x < MAKERS;
    next_start();
    if (threadIdx.x == 0) {
        told_expect(&room.top_here, SPREAD * (int)sizeof(told_top));
        told_expect(&room.sums_here, 3 * HEAD_WARPS * (int)sizeof(float));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    before_wait();
    struct sample_row row = a.row[i];
    float inv_t = row.temperature > 0 ? 1.0f / row.temperature : 1.0f;
    if (row.n_ban > 0 || (row.temperature > 0 && ((row.top_k > 0 && row.top_k < n) || row.top_p < 1))) {
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
        if (rank == 0 && maker)
            sample_alone(&a, i, inv_t, (draw_room *)spread_shared);
        return;
    }
    own_seen seen = { { -INFINITY, INT32_MAX }, 0, 0 };
    row_top own;
    if (maker) {
        own = spread_make<WEIGH>(z, rank, n4, inv_t, &room, (float4 *)spread_shared);
    } else {
        seen = spread_add<WEIGH>(z, rank, n, n4, inv_t, &room, (const float4 *)spread_shared);
        own = seen.best;
    }
    /* The second pass: maker's ids of part `part`, u-th group, u = warp % SPREAD + SPREAD v. */
    int step = (n + HEAD_WARPS - 1) / HEAD_WARPS, part = warp / SPREAD, j0 = (rank * PARTS_OWN + part) * step, j1 = min(n, j0 + step);
    float next[BATCH];
    if (maker)
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            int j = j0 + (warp % SPREAD + SPREAD * u) * 32 + lane;
            next[u] = j < j1 ? z[j] : -INFINITY;
        }
    float most = warp_max(own.x);
    int best = __reduce_min_sync(0xffffffffu, own.x == most ? own.id : INT32_MAX);
    if (lane == 0)
        room.warp_top[warp] = told_top{ most, best };
    __syncthreads();
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    if (warp == 0) {
        told_top w = lane < HEAD_WARPS + ADDERS / 32 ? room.warp_top[lane] : told_top{ -INFINITY, INT32_MAX };
        most = warp_max(w.x);
        best = __reduce_min_sync(0xffffffffu, w.x == most ? w.id : INT32_MAX);
        if (lane < SPREAD) {
            tell(&room.top[rank].x, __float_as_uint(most), &room.top_here, lane);
            tell(&room.top[rank].id, (uint32_t)best, &room.top_here, lane);
        }
    }
    told_wait(&room.top_here);
    float highest = -INFINITY;
    best = INT32_MAX;
    for (int b = 0; b < SPREAD; b++)
        highest = fmaxf(highest, room.top[b].x);
    for (int b = 0; b < SPREAD; b++)
        best = room.top[b].x == highest ? min(best, room.top[b].id) : best;
    best = best == INT32_MAX ? 0 : best;
    float top = highest * inv_t, least = -INFINITY;
    if (row.min_p > 0 && row.temperature > 0)
        least = fmaxf(least, fminf(highest, highest + logf(row.min_p) / inv_t));
    float *mass = (float *)spread_shared;    // (PARTS_OWN, groups, ROW_PAD)
    int n_group = (step + 31) / 32, n_batch = (n_group + SPREAD * BATCH - 1) / (SPREAD * BATCH);
    if (maker) {
        float x[BATCH];
        for (int v = 0; v < n_batch; v++) {
            int u0 = warp % SPREAD + SPREAD * BATCH * v;
#pragma unroll
            for (int u = 0; u < BATCH; u++)
                x[u] = next[u];
#pragma unroll
            for (int u = 0; u < BATCH; u++) {
                int j = j0 + (u0 + SPREAD * (BATCH + u)) * 32 + lane;
                next[u] = j < j1 ? z[j] : -INFINITY;
            }
#pragma unroll
            for (int u = 0; u < BATCH; u++) {
                int k = u0 + SPREAD * u;
                x[u] = mass_of(x[u] * inv_t - top, j0 + k * 32 + lane < j1 && !(x[u] < least));
            }
#pragma unroll
            for (int u = 0; u < BATCH; u++)
                if (u0 + SPREAD * u < n_group)
                    mass[(part * n_group + u0 + SPREAD * u) * ROW_PAD + lane] = x[u];
            spread_come(MEET_BATCH + min(v, BATCHES_MAX - 1), MAKERS + ADDERS);
        }
    } else {
        int p = warp - HEAD_WARPS;
        seen_lower(seen, __fmaf_rn(seen.best.x, inv_t, -top));
        float sum = warp_sum(seen.sum), weighted = warp_sum(seen.weighted), acc = 0;
        if (lane < SPREAD) {
            tell(&room.sum[rank * PARTS_OWN + p], __float_as_uint(sum), &room.sums_here, lane);
            tell(&room.weighted[rank * PARTS_OWN + p], __float_as_uint(weighted), &room.sums_here, lane);
        }
        for (int v = 0; v < n_batch; v++) {
            spread_meet(MEET_BATCH + min(v, BATCHES_MAX - 1), MAKERS + ADDERS);
            int g1 = min(n_group, (v + 1) * SPREAD * BATCH), g = v * SPREAD * BATCH;
            const float *from = mass + (p * n_group + g) * ROW_PAD + lane;
            for (; g + 16 <= g1; g += 16, from += 16 * ROW_PAD) {
                float e[16];
#pragma unroll
                for (int u = 0; u < 16; u++)
                    e[u] = from[u * ROW_PAD];
#pragma unroll
                for (int u = 0; u < 16; u++)
                    acc += e[u];
            }
            for (; g < g1; g++, from += ROW_PAD)
                acc += *from;
        }
        acc = warp_sum(acc);
        if (lane < SPREAD)
            tell(&room.part[rank * PARTS_OWN + p], __float_as_uint(acc), &room.sums_here, lane);
    }
    told_wait(&room.sums_here);
    float total = 0;
    for (int w = 0; w < HEAD_WARPS; w++)
        total += room.part[w];
    float target = philox_uniform(row.seed, row.item, row.sample, row.pos) * total, cum = 0;
    int chosen = 0;
    for (; chosen < HEAD_WARPS - 1 && cum + room.part[chosen] <= target; chosen++)
        cum += room.part[chosen];
    while (chosen > 0 && room.part[chosen] == 0)
        chosen--;
    if (chosen / PARTS_OWN != rank || !maker)
        return;
    j0 = chosen * step, j1 = min(n, j0 + step);
    const float *mine = mass + chosen % PARTS_OWN * n_group * ROW_PAD;
    float *all = (float *)&room.most[0][0][0], *peak = all + SPREAD * ADDERS;    // (n_group) each
    for (int g = threadIdx.x; g < (n_group + 31) / 32 * 32; g += MAKERS) {
        group_mass m = g < n_group ? group_sum(mine + g * ROW_PAD) : group_mass{ 0, -INFINITY };
        all[g] = m.all;
        peak[g] = m.most;
    }
    spread_meet(MEET_MAKERS, MAKERS);
    if (warp != 0)
        return;
    int last = -1;
    float at = cum;
    for (int g0 = 0; g0 < n_group; g0 += 32) {
        float before = 0;
#pragma unroll
        for (int l = 0; l < 32; l++) {
            before = l == lane ? cum : before;
            cum += all[g0 + l];
        }
        float m = peak[g0 + lane];
        unsigned there = __ballot_sync(0xffffffffu, m > -INFINITY), over = __ballot_sync(0xffffffffu, m > -INFINITY && before + m > target);
        if (there) {
            int l = over ? __ffs(over) - 1 : 31 - __clz(there);
            last = g0 + l;
            at = __shfl_sync(0xffffffffu, before, l);
        }
        if (over)
            break;
    }
    int32_t id = best;
    if (row.temperature > 0 && last >= 0) {
        group_run g;
        g.e = mine[last * ROW_PAD + lane];
        g.run = g.e;
#pragma unroll
        for (int w = 1; w < 32; w *= 2) {
            float before = __shfl_up_sync(0xffffffffu, g.run, w);
            if (lane >= w)
                g.run += before;
        }
        unsigned any = __ballot_sync(0xffffffffu, g.e > 0), over = __ballot_sync(0xffffffffu, g.e > 0 && at + g.run > target);
        id = j0 + last * 32 + (over ? __ffs(over) - 1 : 31 - __clz(any));
    }
    if (lane != 0)
        return;
    row_stat r = { top, 0, 0 };
    for (int w = 0; w < HEAD_WARPS; w++)
        r.sum += room.sum[w];
    for (int w = 0; w < HEAD_WARPS; w++)
        r.weighted += room.weighted[w];
    a.id[i] = id;
    if (a.logp)
        a.logp[i] = stat_logp(r, z, id, n, inv_t);
    if (WEIGH)
        a.entropy[i] = stat_entropy(r);
#endif
}
/* Two passes over the row. */
__global__ static void __launch_bounds__(HEAD_THREADS, 2) sample_kernel(const __grid_constant__ struct sample_fwd a, bool wide)
{
    __shared__ draw_room room;
    int64_t i = blockIdx.x, n = a.n_live;
    whole_row whole = { a.logits + i * a.ld };
    const float *z = whole.z;
    next_start();
    before_wait();
    struct sample_row row = a.row[i];
    float inv_t = row.temperature > 0 ? 1.0f / row.temperature : 1.0f;
    row_seen seen = row_see(z, n, wide, inv_t, room.tmp);
    row_stat r = seen.stat;
    int32_t id = row.n_ban > 0 ? row_draw_without(&a, i, wide, inv_t, &room) : row_draw(whole, row, n, wide, inv_t, seen.best, &room);
    if (threadIdx.x != 0)
        return;
    a.id[i] = id;
    if (a.logp)
        a.logp[i] = stat_logp(r, z, id, n, inv_t);
    if (a.entropy)
        a.entropy[i] = stat_entropy(r);
}
extern "C" bool sample_fwd_cuda(struct device *dev, const struct sample_fwd *args, struct error *err)
{
    struct sample_fwd a = *args;
    if (!logits_ok("sample_fwd", a.n, a.vocab, a.n_live, a.ld, err))
        return false;
    a.n_live = a.n_live ? a.n_live : a.vocab;
    a.ld = a.ld ? a.ld : a.vocab;
    if (a.n == 0)
        return true;
    int n_group = (int)blocks_for((int64_t)blocks_for(a.n_live, HEAD_WARPS), 32);
    size_t masses = (size_t)(PARTS_OWN * n_group * ROW_PAD) * sizeof(float),
           stages = (size_t)(a.entropy ? 4 : 2) * STAGE_PLACES * sizeof(float4);
    size_t shared = MAX(MAX(masses, stages), sizeof(draw_room));
    /* Measured on an H200: faster up to one block per multiprocessor, slower from 64 rows on; see NOTES.md. */
    bool spread = cuda_of(dev)->hopper && a.ld % 4 == 0 && a.n * SPREAD <= cuda_of(dev)->n_sm && n_group <= SPREAD * ADDERS
                  && n_group <= SPREAD * BATCH * BATCHES_MAX && shared + sizeof(spread_room) + 1024 <= (size_t)cuda_of(dev)->shared_bytes;
    if (spread) {
        void (*kernel)(struct sample_fwd) = a.entropy ? spread_kernel<true> : spread_kernel<false>;
        return cuda_ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared), "sample_fwd", err)
               && launch_early_clusters(cuda_of(dev), SPREAD, kernel, (unsigned)(a.n * SPREAD), MAKERS + ADDERS, shared, "sample_fwd", err,
                                        a);
    }
    return launch_early(cuda_of(dev), sample_kernel, (unsigned)a.n, HEAD_THREADS, 0, "sample_fwd", err, a, a.ld % 4 == 0);
}
