/* gemm_plain.cu - products of any sizes and strides: fp32 (tests, small models), shapes that are not multiples of 8, and cards whose
 * library keeps no one order of summation */
#include "kernels/cuda/gemm.cuh"
#include <inttypes.h>
#define TILE 64
#define TILE_K 16
/* 256 threads per 64 x 64 tile, 4 x 4 elements each, one fused chain per element. With accumulate the finished chain is added to c. */
template <typename T, typename C>
__global__ static void plain_kernel(C *c, int64_t ldc, const T *__restrict__ a, int64_t am, int64_t ak, const T *__restrict__ b, int64_t bn,
                                    int64_t bk, const T *__restrict__ bias, int64_t m, int64_t n, int64_t n_k, bool accumulate)
{
    __shared__ float as[TILE_K][TILE + 1], bs[TILE_K][TILE + 1];
    int64_t i0 = (int64_t)blockIdx.y * TILE, j0 = (int64_t)blockIdx.x * TILE;
    int ti = threadIdx.x / 16, tj = threadIdx.x % 16;
    float acc[4][4];
#pragma unroll
    for (int x = 0; x < 4; x++)
#pragma unroll
        for (int y = 0; y < 4; y++) {
            int64_t i = i0 + ti + 16 * x, j = j0 + tj + 16 * y;
            acc[x][y] = i < m && j < n && bias ? to_float(bias[j]) : 0;
        }
    for (int64_t k0 = 0; k0 < n_k; k0 += TILE_K) {
        for (int e = threadIdx.x; e < TILE * TILE_K; e += 256) {
            int k = ak == 1 ? e % TILE_K : e / TILE, i = ak == 1 ? e / TILE_K : e % TILE;
            as[k][i] = i0 + i < m && k0 + k < n_k ? to_float(a[(i0 + i) * am + (k0 + k) * ak]) : 0;
            k = bk == 1 ? e % TILE_K : e / TILE, i = bk == 1 ? e / TILE_K : e % TILE;
            bs[k][i] = j0 + i < n && k0 + k < n_k ? to_float(b[(j0 + i) * bn + (k0 + k) * bk]) : 0;
        }
        __syncthreads();
        int64_t stop = min((int64_t)TILE_K, n_k - k0);
        for (int k = 0; k < stop; k++)
#pragma unroll
            for (int x = 0; x < 4; x++)
#pragma unroll
                for (int y = 0; y < 4; y++)
                    acc[x][y] = __fmaf_rn(as[k][ti + 16 * x], bs[k][tj + 16 * y], acc[x][y]);
        __syncthreads();
    }
#pragma unroll
    for (int x = 0; x < 4; x++)
#pragma unroll
        for (int y = 0; y < 4; y++) {
            int64_t i = i0 + ti + 16 * x, j = j0 + tj + 16 * y;
            if (i < m && j < n)
                c[i * ldc + j] = from_float<C>(accumulate ? to_float(c[i * ldc + j]) + acc[x][y] : acc[x][y]);
        }
}
template <typename T, typename C> static void plain_launch(cudaStream_t s, const struct plain_product *p)
{
    plain_kernel<T, C><<<dim3(blocks_for(p->n, TILE), blocks_for(p->m, TILE)), 256, 0, s>>>(
        (C *)p->c, p->ldc, (const T *)p->a, p->am, p->ak, (const T *)p->b, p->bn, p->bk, (const T *)p->bias, p->m, p->n, p->k,
        p->accumulate);
}
bool plain_run(struct cuda_device *cu, const struct plain_product *p, const char *op, struct error *err)
{
    if (p->m > 65535 * TILE)
        return error_set(err, ERR_SHAPE, "%s: %" PRId64 " rows in one call", op, p->m);
    if (p->dtype == DT_F32)
        plain_launch<float, float>(cu->stream, p);
    else if (p->c_dtype == DT_F32)
        plain_launch<bf16, float>(cu->stream, p);
    else
        plain_launch<bf16, bf16>(cu->stream, p);
    return launch_ok(op, err);
}
