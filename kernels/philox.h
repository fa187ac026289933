/* philox.h - counter-based random numbers: Philox-4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11
 *
 * A pure function, the same on every device. Included by C and CUDA. */
#pragma once
#include <stdint.h>
#include "kernels/both.h"

BOTH_SIDES static inline void philox_4x32(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t c0 = (uint32_t)(p1 >> 32) ^ c[1] ^ k0, c2 = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[0] = c0;
        c[1] = (uint32_t)p1;
        c[2] = c2;
        c[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}
/* Strictly inside (0, 1): (n + 1/2) 2^-23 for the top 23 bits n, exact in fp32. */
BOTH_SIDES static inline float philox_uniform(uint64_t seed, int64_t item, int32_t sample, int32_t pos)
{
    uint32_t c[4] = { (uint32_t)item, (uint32_t)((uint64_t)item >> 32), (uint32_t)sample, (uint32_t)pos };
    philox_4x32(c, (uint32_t)seed, (uint32_t)(seed >> 32));
    return ((float)(c[0] >> 9) + 0.5f) * (1.0f / 8388608.0f);
}
