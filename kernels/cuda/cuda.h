/* cuda.h - the CUDA back end's device and what its operations share
 *
 * Included by .cu files only. Every launcher checks sizes, launches on the device's one stream and returns; nothing waits.
 * Compiled with -fmad=false: a product and a sum are fused only where __fmaf_rn says so, so the same expression gives the
 * same bits in every kernel. */
#pragma once
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
extern "C" {
#include "kernels/choices.h"
#include "kernels/ops.h"
}
typedef __nv_bfloat16 bf16;

#define CUDA_PAGE_TOK 64       // a KV page is one tile of attention
#define DECODE_GROUP_MAX 16    // query heads per key head that decoding's attention takes at once
#define NORM_PARTS_MAX 4       // parts of a product that a norm adds up
#define CUDA_PIPES 3           // pieces of optimizer state between host and device at a time: one in, one computed, one out
struct gemm_plan;
/* A product that was left unfinished for the norm after it (linear_fwd.for_norm): split fp32 parts to be added in order to the bias; or
 * a sum over devices (tree_sum.for_norm). */
struct unfinished {
    const void *y;        // where it would be; NULL: none
    const float *part;    // (split, n, d) in the scratch
    const void *bias;     // (d), or NULL
    int split;
    const float *x[SUM_PARTS_MAX];    // of a sum over devices (split) of (n, d), instead of part
    struct step_meeting meet;         // n 0: none
};
struct cuda_device {
    struct device base;    // first
    cudaStream_t stream;
    cublasLtHandle_t lt;
    void *workspace;    // cuBLASLt's workspace, one stream
    size_t workspace_bytes;
    void *scratch;    // of the running operation
    size_t scratch_bytes;
    void *old[32];    // earlier, smaller pieces of scratch
    int n_old;
    struct unfinished unfinished;
    struct rope_fwd turn_left;    // left for the attn_paged that comes next (rope_fwd.for_decode); out NULL: none
    struct linear_fwd gate;       // left for the swiglu_fwd that comes next (linear_fwd.for_gate); y NULL: none
    cudaGraphNode_t early;        // the kernel that launch_early has recorded last, or NULL
    struct gemm_plan *plan;       // chosen algorithms (gemm_choose.cu), a list
    int n_sm;
    int shared_bytes;             // what a block may have at most: 227 KiB on Hopper, 99 on cards for desktops
    bool hopper;                  // use its own matrix instructions and copies: sm_90, and not RC_CUDA_PATH=ampere
    bool may_early;               // kernels of a recorded step may start before the one before ends
    uint32_t *turn;               // counters of kernels that share out work; 0 between them
    uint32_t *late;               // host memory: 1 + the device of its team that a kernel has given up to wait for (meet.cuh); else 0
    cudaStream_t lane[LANE_N];    // made by their first use
    /* optimizer state in host memory (optim.cu); made by its first step */
    cudaStream_t in, out;
    cudaEvent_t begun, loaded[CUDA_PIPES], done[CUDA_PIPES], out_done[CUDA_PIPES];
};
static inline struct cuda_device *cuda_of(struct device *dev)
{
    return (struct cuda_device *)dev;
}
/* True for cudaSuccess; else err names the operation and CUDA's reason, which CUDA then forgets: the next launch is not blamed for it. */
static inline bool cuda_ok(cudaError_t status, const char *op, struct error *err)
{
    if (status == cudaSuccess)
        return true;
    (void)cudaGetLastError();
    return error_set(err, status == cudaErrorMemoryAllocation ? ERR_NO_MEMORY : ERR_INTERNAL, "%s: CUDA says %s", op,
                     cudaGetErrorString(status));
}
/* As cuda_ok, after a call that waits for the device: also names the peer that a step has waited for in vain. */
bool cuda_wait_ok(struct device *dev, cudaError_t status, const char *op, struct error *err);
static inline bool launch_ok(const char *op, struct error *err)
{
    return cuda_ok(cudaGetLastError(), op, err);
}
/* Get size_bytes of scratch for this operation: grows when a larger operation comes, never while recording. */
void *cuda_scratch(struct cuda_device *cu, size_t size_bytes, const char *op, struct error *err);
/* y[j] += sum over i, in order, of part[i * ld + j]; rows.cu. */
void cuda_parts_add(struct cuda_device *cu, float *y, const float *part, int64_t n_part, int64_t ld, int64_t d);
/* Does a norm of n rows of d, ld apart, take a thread per 8 elements, and may therefore finish a sum over devices? */
bool norm_is_few(int64_t n, int64_t d, int64_t ld);
/* Sizes of heads that attention and its rotation are compiled for. */
static inline bool cuda_head_size_ok(int hd)
{
    return hd == 16 || hd == 32 || hd == 64 || hd == 96 || hd == 128 || hd == 256;
}
static inline unsigned blocks_for(int64_t n, int64_t per_block)
{
    return (unsigned)((n + per_block - 1) / per_block);
}
/* gemm.cu: the product that was left, and a's act(gate) up, in one. */
bool cuda_gate_run(struct cuda_device *cu, const struct swiglu_fwd *a, struct error *err);
/* Does a kernel that is recorded now come right after one of launch_early, and nothing else? */
bool cuda_early(struct cuda_device *cu);
/* Remember the kernel just launched. */
void cuda_early_note(struct cuda_device *cu);
#define CUDA_ROW(name) extern "C" bool name##_cuda(struct device *dev, const struct name *a, struct error *err);
OPS_DENSE(CUDA_ROW)
OPS_EXPERTS(CUDA_ROW)
OPS_DELTA(CUDA_ROW)
#undef CUDA_ROW
bool cuda_weight_init(struct device *dev, struct weight *w, struct error *err);
void cuda_weight_release(struct device *dev, struct weight *w);
bool cuda_weight_refresh(struct device *dev, struct weight *w, struct error *err);
bool cuda_product_choose(struct device *dev, const struct product_kind *kind, struct choice **out, struct error *err);
bool cuda_linear_cost(struct device *dev, struct linear_cost *c, struct error *err);
bool cuda_lane_copy(struct device *dev, int lane, void *dst, const void *src, size_t size_bytes, struct error *err);
bool cuda_lane_sum(struct device *dev, int lane, const struct lane_sum *s, struct error *err);
cudaStream_t cuda_lane(struct cuda_device *cu, int lane, struct error *err);    // NULL: see err
bool cuda_lanes_sync(struct device *dev, struct error *err);
void cuda_lanes_close(struct cuda_device *cu);
void cuda_plans_free(struct cuda_device *cu);
void cuda_pipes_close(struct cuda_device *cu);
extern const struct comm_ops nccl_comm_ops;    // kernels/collective/nccl.cu

/* Call fn<T>(...) for the element type of a dtype. */
#define BY_TYPE(t, fn, ...) ((t) == DT_BF16 ? fn<bf16>(__VA_ARGS__) : fn<float>(__VA_ARGS__))

#ifdef __CUDACC__
/* Launch a kernel of the decoding step, which calls next_start and before_wait. In a recorded step it may start while the one before it,
 * launched by this too, still runs: what it does before before_wait (reading weights, which no kernel of a step writes) takes no time of
 * its own. Every block must call before_wait, also one with nothing to wait for: the kernel after it relies on all before. */
template <typename... P, typename... A>
static bool launch_early_clusters(struct cuda_device *cu, unsigned cluster, void (*kernel)(P...), dim3 grid, dim3 block,
                                  size_t shared_bytes, const char *op, struct error *err, A... args)
{
    cudaLaunchAttribute attr[2] = {};
    cudaLaunchConfig_t c = {};
    attr[c.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attr[c.numAttrs].val.clusterDim.x = cluster;
    attr[c.numAttrs].val.clusterDim.y = attr[c.numAttrs].val.clusterDim.z = 1;
    c.numAttrs += cluster > 1;
    attr[c.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[c.numAttrs].val.programmaticStreamSerializationAllowed = 1;
    c.numAttrs += cuda_early(cu);
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = shared_bytes;
    c.stream = cu->stream;
    c.attrs = attr;
    bool ok = cuda_ok(cudaLaunchKernelEx(&c, kernel, P(args)...), op, err);
    cuda_early_note(cu);
    return ok;
}
template <typename... P, typename... A>
static bool launch_early(struct cuda_device *cu, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, const char *op,
                         struct error *err, A... args)
{
    return launch_early_clusters(cu, 1, kernel, grid, block, shared_bytes, op, err, args...);
}
__device__ static inline float to_float(float x)
{
    return x;
}
__device__ static inline float to_float(bf16 x)
{
    return __bfloat162float(x);
}
template <typename T> __device__ static inline T from_float(float x);
template <> __device__ inline float from_float<float>(float x)
{
    return x;
}
template <> __device__ inline bf16 from_float<bf16>(float x)
{
    return __float2bfloat16_rn(x);
}
/* V elements at p (aligned to their size) as floats, and back. */
template <typename T, int V> struct __align__(sizeof(T) * V) vec_of
{
    T x[V];
};
template <typename T, int V> __device__ static inline void load_v(float (&out)[V], const T *p)
{
    vec_of<T, V> v = *(const vec_of<T, V> *)p;
#pragma unroll
    for (int i = 0; i < V; i++)
        out[i] = to_float(v.x[i]);
}
template <typename T, int V> __device__ static inline void store_v(T *p, const float (&in)[V])
{
    vec_of<T, V> v;
#pragma unroll
    for (int i = 0; i < V; i++)
        v.x[i] = from_float<T>(in[i]);
    *(vec_of<T, V> *)p = v;
}
__device__ static inline float warp_sum(float x)
{
#pragma unroll
    for (int w = 16; w > 0; w /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, w);
    return x;
}
__device__ static inline float warp_max(float x)
{
#pragma unroll
    for (int w = 16; w > 0; w /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, w));
    return x;
}
/* Reduce over the block, with the result in every thread; tmp: 33 floats of shared memory, free again on return. Fixed tree: lanes,
 * then warps in order of their number. */
__device__ static inline float block_sum(float x, float *tmp)
{
    int warp = threadIdx.x / 32, n_warp = blockDim.x / 32;
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0)
        tmp[warp] = x;
    __syncthreads();
    float all = 0;
    for (int i = 0; i < n_warp; i++)
        all += tmp[i];
    __syncthreads();
    return all;
}
__device__ static inline float block_max(float x, float *tmp)
{
    int warp = threadIdx.x / 32, n_warp = blockDim.x / 32;
    x = warp_max(x);
    if (threadIdx.x % 32 == 0)
        tmp[warp] = x;
    __syncthreads();
    float all = tmp[0];
    for (int i = 1; i < n_warp; i++)
        all = fmaxf(all, tmp[i]);
    __syncthreads();
    return all;
}
/* The sigmoid in act(x) = x sigmoid(u), and du / dx. */
__device__ static inline float gate_sigmoid(float x, enum gate_act act, float *slope)
{
    const float in = (float)GELU_IN, cube = (float)GELU_CUBE;
    *slope = act == ACT_SILU ? 1.0f : in * __fmaf_rn(3.0f * cube, x * x, 1.0f);
    return 1.0f / (1.0f + expf(act == ACT_SILU ? -x : -(in * x * __fmaf_rn(cube, x * x, 1.0f))));
}
__device__ static inline float gate_times(float gate, float up, enum gate_act act)
{
    float slope, sig = gate_sigmoid(gate, act, &slope);
    return gate * sig * up;
}
/* In a kernel that was launched by launch_early: let the next such kernel start as soon as all blocks have come here, and wait until
 * what the kernels before this one have written is there. */
__device__ static inline void next_start(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ static inline void before_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#endif
