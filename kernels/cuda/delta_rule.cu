/* delta_rule.cu - the gated delta rule forward: token by token, with the state in registers
 *
 * A block has COLS columns of a value head's state of one sequence. Its first warps walk the tokens; RULE_LOADERS more read and normalise
 * the next TILE of them meanwhile. A whole sequence, a piece of one, and a decoding step's one token run this same loop, so a token's bits
 * are the same in all of them; between calls the state is in its slot as it was in registers. A step reads and writes 8 d_k d_v bytes per
 * head. */
#include "kernels/cuda/delta_rule.cuh"
#define RULE_WARPS 4
#define RULE_COLS (RULE_WARPS * DELTA_WARP_COLS)
#define RULE_LOADERS 2
#define RULE_THREADS (32 * (RULE_WARPS + RULE_LOADERS))

/* a.kept: see delta_rule.cuh. */
template <typename T, int ROWS> __global__ static void __launch_bounds__(RULE_THREADS, ROWS > 32 ? 1 : 3) rule_fwd_kernel(rule_fwd a)
{
    constexpr int TILE = ROWS > 32 ? 8 : 16;
    __shared__ rule_tile<ROWS, TILE, RULE_COLS> tile[2];
    struct delta_heads h = a.in.h;
    int n_cb = (h.d_v + RULE_COLS - 1) / RULE_COLS, col0 = (int)(blockIdx.x % (unsigned)n_cb) * RULE_COLS, warp = (int)threadIdx.x / 32;
    int64_t head = blockIdx.x / (unsigned)n_cb % (unsigned)h.n_v, q = blockIdx.x / (unsigned)n_cb / (unsigned)h.n_v,
            n_s = (int64_t)h.d_k * h.d_v;
    bool loads = warp >= RULE_WARPS, own = threadIdx.x % DELTA_LANES == 0;
    int in_block = (int)threadIdx.x / DELTA_LANES, j = col0 + in_block;    // the thread's column
    float s[ROWS] = {};
    next_start();
    before_wait();
    delta_span p = delta_span_of(&a.of, h, q);
    int64_t n = p.end - p.first, n_kept = (n + DELTA_KEEP - 1) / DELTA_KEEP - 1;
    if (a.kept)
        n = max(n_kept, (int64_t)0) * DELTA_KEEP + (n_kept > 0);    // the last state is kept when its first token comes
    if (p.absent) {
        for (int64_t i = 0; i < n; i++)
            if (!loads && own && j < h.d_v)
                ((T *)a.o)[((p.first + i) * h.n_v + head) * h.d_v + j] = from_float<T>(0.0f);
        return;
    }
    bool mine = !loads && j < h.d_v;
    float *slot = p.state ? p.state + head * n_s + j : NULL;
    if (mine && slot && !p.fresh)
        column_read(s, slot, h);
    if (loads)
        tile_load<T>(tile[0], a.in, p.first, (int)min(n, (int64_t)TILE), head, col0, warp - RULE_WARPS, RULE_LOADERS);
    __syncthreads();
    for (int64_t i0 = 0, b = 0; i0 < n; i0 += TILE, b ^= 1) {
        int m = (int)min(n - i0, (int64_t)TILE);
        if (loads) {
            int64_t next = i0 + TILE;
            if (next < n)
                tile_load<T>(tile[b ^ 1], a.in, p.first + next, (int)min(n - next, (int64_t)TILE), head, col0, warp - RULE_WARPS,
                             RULE_LOADERS);
        } else {
            if (a.kept && i0 > 0 && i0 % DELTA_KEEP == 0 && mine)
                column_write(a.kept + (kept_at(p, i0) * h.n_v + head) * n_s + j, s, h);
#pragma unroll 1
            for (int i = 0; i < m; i++) {
                float lacks, o = rule_step(s, &lacks, tile[b], i, in_block, (float *)NULL, 0);
                if (!a.kept && own && mine)
                    ((T *)a.o)[((p.first + i0 + i) * h.n_v + head) * h.d_v + j] = from_float<T>(o);
            }
        }
        __syncthreads();
    }
    if (mine && slot)
        column_write(slot, s, h);
}
template <typename T, int ROWS> static bool fwd_launch(struct cuda_device *cu, const rule_fwd *a, const char *op, struct error *err)
{
    int64_t blocks = a->of.n_seq * a->in.h.n_v * ((a->in.h.d_v + RULE_COLS - 1) / RULE_COLS);
    if (blocks > INT32_MAX)
        return error_set(err, ERR_SHAPE, "%s: %" PRId64 " heads of sequences in one call", op, a->of.n_seq * a->in.h.n_v);
    return launch_early(cu, rule_fwd_kernel<T, ROWS>, (unsigned)blocks, RULE_THREADS, 0, op, err, *a);
}
template <typename T> static bool fwd_run(struct cuda_device *cu, const rule_fwd *a, const char *op, struct error *err)
{
    return BY_KEY_WIDTH(T, a->in.h.d_k, fwd_launch, cu, a, op, err);
}
bool cuda_rule_fwd(struct cuda_device *cu, const rule_fwd *a, enum dtype t, const char *op, struct error *err)
{
    return a->of.n_seq == 0 || BY_TYPE(t, fwd_run, cu, a, op, err);
}
extern "C" bool delta_rule_fwd_cuda(struct device *dev, const struct delta_rule_fwd *a, struct error *err)
{
    rule_fwd f = { { a->x, a->row, a->a_log, a->dt_bias, a->heads }, a->o, NULL, a->of };
    return delta_cuda_check("delta_rule_fwd", &a->of, a->heads, err) && cuda_rule_fwd(cuda_of(dev), &f, a->dtype, "delta_rule_fwd", err);
}
