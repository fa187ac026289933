/* counted.h - a device's memory, counted where it is given and taken back, and perhaps limited */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "kernels/ops.h"

struct counted {
    struct ops op;    // first: the device points here
    const struct ops *real;
    struct device *dev;
    size_t now, most, limit;    // bytes; limit 0: none
    struct {
        void *p;
        size_t size;
    } given[256];
};

static inline struct counted *count_of(const struct device *dev)
{
    return (struct counted *)(uintptr_t)dev->op;
}

static inline bool count_has(const struct counted *c, size_t size, const char *what, struct error *err)
{
    return c->limit == 0 || c->now + size <= c->limit || error_set(err, ERR_NO_MEMORY, "no room for %zu bytes of %s", size, what);
}

static inline void *count_give(struct counted *c, void *p, size_t size)
{
    size_t i = 0;
    while (i < ARRAY_SIZE(c->given) && c->given[i].p)
        i++;
    assert_true(i < ARRAY_SIZE(c->given));
    c->given[i].p = p;
    c->given[i].size = p ? size : 0;
    c->now += c->given[i].size;
    c->most = MAX(c->most, c->now);
    return p;
}

static inline void count_back(struct counted *c, const void *p)
{
    for (size_t i = 0; i < ARRAY_SIZE(c->given); i++)
        if (p && c->given[i].p == p) {
            c->now -= c->given[i].size;
            c->given[i].p = NULL;
            return;
        }
}

static inline void *counted_new(struct device *dev, size_t size, const char *what, struct error *err)
{
    struct counted *c = count_of(dev);
    return count_has(c, size, what, err) ? count_give(c, c->real->mem_new(dev, size, what, err), size) : NULL;
}

static inline void counted_free(struct device *dev, void *p)
{
    count_back(count_of(dev), p);
    count_of(dev)->real->mem_free(dev, p);
}

static inline void *counted_share_new(struct device *dev, size_t size, const char *what, struct mem_handle *h, struct error *err)
{
    struct counted *c = count_of(dev);
    return count_has(c, size, what, err) ? count_give(c, c->real->mem_share_new(dev, size, what, h, err), size) : NULL;
}

static inline void counted_share_free(struct device *dev, void *p, size_t size, const struct mem_handle *h)
{
    count_back(count_of(dev), p);
    count_of(dev)->real->mem_share_free(dev, p, size, h);
}

static inline void count_begin(struct counted *c, struct device *dev)
{
    *c = (struct counted){ .op = *dev->op, .real = dev->op, .dev = dev };
    c->op.mem_new = counted_new;
    c->op.mem_free = counted_free;
    c->op.mem_share_new = counted_share_new;
    c->op.mem_share_free = counted_share_free;
    dev->op = &c->op;
}

static inline void count_end(struct counted *c)
{
    assert_int_equal(c->now, 0);    // all has been given back
    c->dev->op = c->real;
}
