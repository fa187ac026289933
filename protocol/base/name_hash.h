/* name_hash.h - a hash of short names, for tables in memory: FNV-1a of 32 bits (draft-eastlake-fnv). No file depends on it. */
#pragma once
#include <stddef.h>
#include <stdint.h>

static inline uint32_t name_hash(const char *s, size_t len)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)s[i]) * 16777619u;
    return h;
}
