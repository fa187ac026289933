/* both.h - functions of a header that C and CUDA, host and device, compile from the same text */
#pragma once
#ifdef __CUDACC__
#define BOTH_SIDES __host__ __device__
#else
#define BOTH_SIDES
#endif
