/* inlet.h - a producer's side of publication (wire.h): gets versions from the trainer's outlet
 *
 * Made and called by the thread that drives the device; the inlet's own thread keeps the connection, receives broadcasts ahead of
 * time, and joins a new group when a member has died. inlet_new takes all device memory: a hash per tensor, and with `staged`
 * a version. */
#pragma once
#include "workers/engine/publish/bundle.h"
#include "workers/engine/publish/wire.h"

struct inlet_config {
    struct device *const *dev;    // (n_device) borrowed as long as the inlet lives; several: it takes slices, and copies them
    int n_device;
    const char *dir;     // where the outlet's socket is
    const char *name;    // ours, for the other side's messages: "worker cuda:1"
    enum weights_way way;
    bool staged;                    // have room for a version that arrives before it is wanted; else none is sent then
    const struct bundle *bundle;    // what a version is; borrowed as long as the inlet lives
    int64_t limit_ms;               // of the outlet; 0: 60 s
};
struct inlet;
struct inlet *inlet_new(const struct inlet_config *config, struct error *err);
void inlet_free(struct inlet *in);    // NULL is fine
/* Fill places, on the inlet's devices, with version, waiting up to limit_ms for it; the devices are idle on return. *hash is that of all
 * its tensors' (bundle_hash_join). ERR_NOT_FOUND: the trainer does not have this version any more, and weights are as they were; after
 * other failures they mean nothing. ERR_CLOSED: the trainer's process is gone, or went back to an earlier step; ERR_TIMEOUT; ERR_DATA: a
 * tensor, which is named, has another hash than the trainer's. */
MUST_USE bool inlet_take(struct inlet *in, const struct places *places, int64_t version, int64_t limit_ms, uint64_t *hash,
                         struct error *err);
/* Bytes that an inlet takes of each device for a bundle. */
size_t inlet_bytes(const struct inlet *in);
