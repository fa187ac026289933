/* meet.cuh - devices of one recorded step wait for each other inside a kernel
 *
 * The step is one graph over all devices. An edge between devices costs some 10 µs; a word written into the other's memory and seen there
 * some 2. Word [q][at] of a device is set by device q and cleared by its own block `at` once seen. Two sets of words serve in turn: the
 * next use of a set comes after a meeting with the other one, which its owner comes to after it has cleared this one. Devices must be
 * different cards: blocks that wait keep the multiprocessors they are on. */
#pragma once
#include "kernels/cuda/cuda.h"
#define MEET_LIMIT_S 20    // then a step that takes milliseconds will not end: the kernel notes for which device it waited, and fails
#ifdef __CUDACC__
__device__ static inline uint64_t time_ns(void)
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
/* Block `at` of this device has come, and what kernels before this one have written may be read by the others; wait for theirs. Called by
 * all threads, of which there are at least m.n. late: see cuda_device. */
__device__ static inline void devices_meet(const struct step_meeting &m, int64_t at, uint32_t *late)
{
    int q = (int)threadIdx.x;
    if (q < m.n && q != m.rank) {
        uint32_t *to = m.word[q] + m.rank * MEET_ROWS + at, *own = m.word[m.rank] + q * MEET_ROWS + at, seen;
        asm volatile("st.release.sys.global.u32 [%0], 1;" ::"l"(to) : "memory");
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(own) : "memory");
        for (uint64_t from = seen ? 0 : time_ns(); !seen;) {
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(own) : "memory");
            if (!seen && time_ns() - from > MEET_LIMIT_S * 1000000000ull) {
                *(volatile uint32_t *)late = 1 + (uint32_t)q;
                __threadfence_system();
                __trap();
            }
        }
        *own = 0;
    }
    __syncthreads();
}
#endif
