#include "workers/engine/sampler/mirror.h"
#include <string.h>
#include "kernels/ops.h"

bool mirror_init(struct device *d, struct mirror *m, size_t size_bytes, bool two_sides, const char *what, struct error *err)
{
    *m = (struct mirror){ .size_bytes = size_bytes };
    m->dev = mem_new(d, size_bytes, what, err);
    if (m->dev)
        m->host = d->host_memory && !two_sides ? m->dev : host_new(d, size_bytes, what, err);
    if (m->host && two_sides)
        m->other = host_new(d, size_bytes, what, err);
    if (!m->host || (two_sides && !m->other))
        return false;
    memset(m->host, 0, size_bytes);
    if (two_sides)
        memset(m->other, 0, size_bytes);
    return true;
}

void mirror_release(struct device *d, struct mirror *m)
{
    if (m->host != m->dev)
        host_free(d, m->host);
    host_free(d, m->other);
    mem_free(d, m->dev);
    *m = (struct mirror){ 0 };
}

void mirror_flip(struct mirror *m)
{
    if (!m->other)
        return;
    void *host = m->host;
    m->host = m->other;
    m->other = host;
}

bool mirror_up(struct device *d, const struct mirror *m, struct error *err)
{
    return m->host == m->dev || mem_copy(d, m->dev, m->host, m->size_bytes, COPY_H2D, err);
}

bool mirror_down(struct device *d, const struct mirror *m, struct error *err)
{
    return m->host == m->dev || mem_copy(d, m->host, m->dev, m->size_bytes, COPY_D2H, err);
}

void *mirror_dev(const struct mirror *m, const void *host)
{
    return (char *)m->dev + ((const char *)host - (const char *)m->host);
}
