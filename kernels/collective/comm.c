#include "kernels/collective/comm.h"
#include "kernels/ops.h"

bool comm_available(struct device *dev, struct error *err)
{
    return dev->op->comm->available(dev, err);
}

bool comm_id_make(struct device *dev, struct comm_id *id, struct error *err)
{
    return dev->op->comm->id_make(dev, id, err);
}

struct comm *comm_new(struct device *dev, const struct comm_id *id, int n_rank, int rank, struct error *err)
{
    if (n_rank < 2 || n_rank > COMM_RANK_MAX || rank < 0 || rank >= n_rank) {
        error_set(err, ERR_SHAPE, "rank %d in a group of %d; a group has 2 to %d members", rank, n_rank, COMM_RANK_MAX);
        return NULL;
    }
    return dev->op->comm->new_(dev, id, n_rank, rank, err);
}

void comm_free(struct comm *c)
{
    if (c)
        c->op->free_(c);
}

enum comm_state comm_poll(struct comm *c, struct error *err)
{
    return c->op->poll(c, err);
}

bool comm_broadcast(struct comm *c, const struct comm_broadcast *b, struct error *err)
{
    if (b->bucket_bytes == 0 || b->bucket_bytes % 256 != 0 || b->size_bytes == 0
        || (b->size_bytes + b->bucket_bytes - 1) / b->bucket_bytes > COMM_BUCKET_MAX)
        return error_set(err, ERR_SHAPE,
                         "a broadcast of %zu bytes in buckets of %zu: a bucket is a multiple of 256, and they are at most %d",
                         b->size_bytes, b->bucket_bytes, COMM_BUCKET_MAX);
    return c->op->broadcast(c, b, err);
}

bool comm_exchange(struct comm *c, const struct comm_exchange *x, struct error *err)
{
    if (!c->op->exchange)
        return error_set(err, ERR_UNSUPPORTED, "%s sends no bytes from all to all", c->dev->name);
    return c->op->exchange(c, x, err);
}

bool comm_copied(struct comm *c)
{
    return c->op->copied(c);
}
