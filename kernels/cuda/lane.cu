/* lane.cu - what goes on beside a device's stream: copies to peers, and sums of what came from them
 *
 * Copies into memory of another GPU are pushed and go by the copy engines: some 380 GB/s over NVLink on an H200, and a product
 * that runs beside them loses nothing (NOTES.md). A sum reads what has arrived from memory of its own GPU at the speed of that
 * memory, so it takes the multiprocessors for a moment only. Lanes have a higher priority than the stream: a sum begins as soon as
 * blocks of a product end. */
#include "kernels/cuda/cuda.h"

cudaStream_t cuda_lane(struct cuda_device *cu, int lane, struct error *err)
{
    int least, most;
    if (!cu->lane[lane]) {
        cudaSetDevice(cu->base.index);
        if (!cuda_ok(cudaDeviceGetStreamPriorityRange(&least, &most), "opening a lane", err)
            || !cuda_ok(cudaStreamCreateWithPriority(&cu->lane[lane], cudaStreamNonBlocking, most), "opening a lane", err))
            return NULL;
    }
    return cu->lane[lane];
}

void cuda_lanes_close(struct cuda_device *cu)
{
    for (int i = 0; i < LANE_N; i++)
        if (cu->lane[i])
            cudaStreamDestroy(cu->lane[i]);
}

bool cuda_lanes_sync(struct device *dev, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    for (int i = 0; i < LANE_N; i++)
        if (cu->lane[i] && !cuda_ok(cudaStreamSynchronize(cu->lane[i]), "waiting for a lane", err))
            return false;
    return true;
}

bool cuda_lane_copy(struct device *dev, int lane, void *dst, const void *src, size_t size_bytes, struct error *err)
{
    cudaStream_t s = cuda_lane(cuda_of(dev), lane, err);
    return s && cuda_ok(cudaMemcpyAsync(dst, src, size_bytes, cudaMemcpyDeviceToDevice, s), "lane_copy", err);
}

/* Reads 4 (n_x + 1) bytes and writes 4 an element; 16 bytes an access. Each element's chain is in order of x. */
__global__ static void sum_kernel(struct lane_sum a)
{
    int64_t n4 = a.n / 4, step = (int64_t)gridDim.x * blockDim.x, at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (int64_t i = at; i < n4; i += step) {
        float4 y = ((const float4 *)a.y)[i];
        for (int q = 0; q < a.n_x; q++) {
            float4 x = ((const float4 *)a.x[q])[i];
            y.x += x.x;
            y.y += x.y;
            y.z += x.z;
            y.w += x.w;
        }
        ((float4 *)a.y)[i] = y;
    }
    for (int64_t i = 4 * n4 + at; i < a.n; i += step) {
        float y = a.y[i];
        for (int q = 0; q < a.n_x; q++)
            y += a.x[q][i];
        a.y[i] = y;
    }
}

bool cuda_lane_sum(struct device *dev, int lane, const struct lane_sum *a, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    cudaStream_t s = cuda_lane(cu, lane, err);
    if (!s)
        return false;
    for (int q = 0; q < a->n_x; q++)
        if ((uintptr_t)a->x[q] % 16 || (uintptr_t)a->y % 16)
            return error_set(err, ERR_SHAPE, "lane_sum: memory that does not begin at a multiple of 16 bytes");
    unsigned most = (unsigned)(cu->n_sm * 4), grid = MIN(blocks_for(a->n, 4 * 256), most);
    sum_kernel<<<grid, 256, 0, s>>>(*a);
    return launch_ok("lane_sum", err);
}
