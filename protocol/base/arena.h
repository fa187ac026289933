/* arena.h - memory taken once and given out in pieces, freed or reset as a whole
 *
 * Zeroed when taken. One thread. Pieces are aligned to 64 bytes (a cache line, an AVX-512 register). */
#pragma once
#include <stddef.h>
#include "protocol/base/error.h"
struct arena {
    char *base;          // size_bytes bytes
    size_t size_bytes;
    size_t used_bytes;
};
/* Take size_bytes now; on failure says what it was for. */
MUST_USE bool arena_init(struct arena *a, size_t size_bytes, const char *what, struct error *err);
void arena_release(struct arena *a);
/* A piece of the arena; running out is a bug of the one who sized it. */
void *arena_take(struct arena *a, size_t size_bytes);
void arena_reset(struct arena *a);    // all pieces are given back; contents stay as they are
