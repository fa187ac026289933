/* inlet.h - a producer's side of publication (wire.h): gets versions from the trainer's outlet
 *
 * Made and called by the thread that drives the device; the inlet's own thread keeps the connection, receives broadcasts ahead of
 * time, and joins a new group when a member has died. inlet_new takes all device memory. */
#pragma once
#include "workers/engine/publish/wire.h"

struct inlet_config {
    struct device *dev;    // borrowed as long as the inlet lives
    const char *dir;       // where the outlet's socket is
    const char *name;      // ours, for the other side's messages: "worker cuda:1"
    enum weights_way way;
    size_t size_bytes;
};
struct inlet;
struct inlet *inlet_new(const struct inlet_config *config, struct error *err);
void inlet_free(struct inlet *in);    // NULL is fine
/* Fill weights (device) with version, waiting up to limit_ms for it; the device is idle on return. ERR_NOT_FOUND: the
 * trainer does not have this version any more, and weights are as they were; after other failures they mean nothing. ERR_CLOSED:
 * the trainer's process is gone, or went back to an earlier step; ERR_TIMEOUT; ERR_DATA: the hashes differ. */
MUST_USE bool inlet_take(struct inlet *in, void *weights, int64_t version, int64_t limit_ms, uint64_t *hash, struct error *err);
