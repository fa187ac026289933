/* mix64.h - splitmix64: a word's bits spread over all of it, and the small generator made of that
 *
 * Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014; https://prng.di.unimi.it/splitmix64.c. Whole numbers only,
 * so the bits are the same everywhere: weights, orders of prompts and hashes in files depend on them. */
#pragma once
#include <stdint.h>

#define MIX64_STEP 0x9e3779b97f4a7c15u    // what the generator's state moves by

static inline uint64_t mix64(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
/* The generator's next number; state is its seed to start. */
static inline uint64_t mix64_next(uint64_t *state)
{
    return mix64(*state += MIX64_STEP);
}
