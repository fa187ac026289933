#include "kernels/collective/collective.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "kernels/collective/local.h"

static const struct collective_kind *const kinds[] = { &collective_local };

struct collective *collective_join(const struct collective_config *config, struct error *err)
{
    const struct collective_kind *k = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        if (strcmp(kinds[i]->name, config->kind) == 0)
            k = kinds[i];
    if (!k) {
        error_set(err, ERR_USAGE, "ranks cannot meet by '%s'", config->kind);
        return NULL;
    }
    if (config->n_rank < 1 || config->n_rank > COLLECTIVE_RANK_MAX || config->rank < 0 || config->rank >= config->n_rank) {
        error_set(err, ERR_USAGE, "rank %d of %d is not possible; at most %d meet", config->rank, config->n_rank, COLLECTIVE_RANK_MAX);
        return NULL;
    }
    return k->join(config, err);
}

void collective_leave(struct collective *c)
{
    if (c)
        c->kind->leave(c);
}

bool collective_call(const char *dir, const char *name, struct error *err)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_errno(err, "cannot call a meeting at '%s'", path);
    close(fd);
    return true;
}

void collective_call_off(const char *dir, const char *name)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}

int collective_rank(const struct collective *c)
{
    return c->rank;
}

int collective_n_rank(const struct collective *c)
{
    return c->n_rank;
}

bool collective_gather(struct collective *c, const void *mine, size_t size_bytes, void *all, struct error *err)
{
    BUG_IF(size_bytes > COLLECTIVE_GATHER_MAX, "%zu bytes to be gathered", size_bytes);
    return c->kind->gather(c, mine, size_bytes, all, err);
}

bool collective_sum(struct collective *c, float *x, int64_t n, struct error *err)
{
    return c->kind->sum(c, x, n, err);
}

bool collective_broadcast(struct collective *c, void *x, size_t size_bytes, int from, struct error *err)
{
    BUG_IF(from < 0 || from >= c->n_rank, "a broadcast from rank %d of %d", from, c->n_rank);
    return c->kind->broadcast(c, x, size_bytes, from, err);
}
