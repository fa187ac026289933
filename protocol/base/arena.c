#include "protocol/base/arena.h"
#include <stdlib.h>
#include <string.h>

bool arena_init(struct arena *a, size_t size_bytes, const char *what, struct error *err)
{
    *a = (struct arena){ 0 };
    size_t size = (MAX(size_bytes, (size_t)1) + 63) & ~(size_t)63;
    char *base = size < size_bytes ? NULL : aligned_alloc(64, size);
    if (!base)
        return error_set(err, ERR_NO_MEMORY, "no memory for %s (%.1f MiB)", what, (double)size_bytes / (1 << 20));
    memset(base, 0, size);
    *a = (struct arena){ base, size, 0 };
    return true;
}

void arena_release(struct arena *a)
{
    free(a->base);
    *a = (struct arena){ 0 };
}

void *arena_take(struct arena *a, size_t size_bytes)
{
    size_t size = (size_bytes + 63) & ~(size_t)63;
    BUG_IF(size < size_bytes || size > a->size_bytes - a->used_bytes, "arena of %zu bytes, %zu used, %zu wanted",
           a->size_bytes, a->used_bytes, size_bytes);
    void *at = a->base + a->used_bytes;
    a->used_bytes += size;
    return at;
}

void arena_reset(struct arena *a)
{
    a->used_bytes = 0;
}
