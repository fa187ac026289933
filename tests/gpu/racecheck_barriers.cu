/* What does compute-sanitizer's racecheck take for a race at named barriers? 512 threads write what 64 read, as in spread_kernel
 * (kernels/cuda/draw.cu), in PTX's own form of producer and consumer (ISA, "bar"). No form has a race; racecheck reports one where the
 * writers meet at a barrier of their own before they write.
 *
 *     nvcc -arch=sm_90a -o racecheck_barriers tests/gpu/racecheck_barriers.cu
 *     for form in 0 1 2 3; do compute-sanitizer --tool racecheck ./racecheck_barriers $form; done */
#include <cstdio>
#include <cstdlib>

#define MAKERS 512
#define ADDERS 64

__device__ static inline void meet(int id, int n)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}

__device__ static inline void come(int id, int n)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n) : "memory");
}

/* own: makers meet at barrier 1 before they write. wait: they wait for the adders after that; else they only arrive. */
template <bool own, bool wait> __global__ void hand_over(float *out, int number)
{
    __shared__ float4 place[MAKERS];
    if (threadIdx.x < MAKERS) {
        if (own)
            meet(1, MAKERS);
        place[threadIdx.x] = make_float4(threadIdx.x, 1, 2, 3);
        if (wait)
            meet(2 + number, MAKERS + ADDERS);
        else
            come(2 + number, MAKERS + ADDERS);
    } else {
        int slot = threadIdx.x - MAKERS;
        float sum = 0;
        meet(2 + number, MAKERS + ADDERS);
        for (int i = slot; i < MAKERS; i += ADDERS)
            sum += place[i].x + place[i].y + place[i].z + place[i].w;
        out[slot] = sum;
    }
}

int main(int argc, char **argv)
{
    static const char *const says[] = { "makers arrive", "makers wait", "own barrier, makers arrive", "own barrier, makers wait" };
    void (*const kernel[])(float *, int) = { hand_over<false, false>, hand_over<false, true>, hand_over<true, false>,
                                             hand_over<true, true> };
    float *out;
    int form = argc > 1 ? atoi(argv[1]) : 0;
    if (form < 0 || form > 3 || cudaMalloc(&out, ADDERS * sizeof *out) != cudaSuccess)
        return 2;
    kernel[form]<<<1, MAKERS + ADDERS>>>(out, 0);
    printf("%s: %s\n", says[form], cudaGetErrorString(cudaDeviceSynchronize()));
    return 0;
}
