/* template_pool.c - the memory of a template or a rendering, and how a failure leaves it */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/template/template_parts.h"

struct chunk {
    struct chunk *next;
    size_t size, used;
    _Alignas(16) char data[];
};

void *jinja_pool_take(struct fail *f, size_t bytes)
{
    struct jinja_pool *p = f->pool;
    bytes = (bytes + 15) & ~(size_t)15;
    if (bytes > p->max - MIN(p->max, p->used))
        jinja_fail_set(f, ERR_FULL, "more than %zu MiB of memory are needed", p->max >> 20);
    if (!p->chunk || p->chunk->size - p->chunk->used < bytes) {
        size_t size = MAX(bytes, (size_t)16 << 10);
        if (p->chunk && size < p->chunk->size * 2 && p->chunk->size < (size_t)1 << 20)
            size = p->chunk->size * 2;
        struct chunk *c = malloc(sizeof *c + size);
        if (!c)
            jinja_fail_set(f, ERR_NO_MEMORY, "no memory");
        *c = (struct chunk){ .next = p->chunk, .size = size };
        p->chunk = c;
    }
    char *at = p->chunk->data + p->chunk->used;
    p->chunk->used += bytes;
    p->used += bytes;
    return memset(at, 0, bytes);
}

void jinja_pool_release(struct jinja_pool *p)
{
    while (p->chunk) {
        struct chunk *next = p->chunk->next;
        free(p->chunk);
        p->chunk = next;
    }
}

void jinja_fail_set(struct fail *f, enum error_code code, const char *fmt, ...)
{
    char why[800];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    error_set(f->err, code, "%s:%d: %s", f->name, f->line, why);
    longjmp(f->at, 1);
}
