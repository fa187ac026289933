/* outlet.h - the trainer's side of publication (wire.h): keeps shared versions and hands them to producers
 *
 * Made and called by the thread that drives the device; the outlet's own thread serves the producers. outlet_new takes all device
 * memory: n_slot versions, and a hash per tensor, which other devices of this process get when weights on them are first shared. */
#pragma once
#include "workers/engine/publish/bundle.h"
#include "workers/engine/publish/wire.h"

#define OUTLET_SLOT_MAX 9
struct outlet_config {
    struct device *dev;             // borrowed as long as the outlet lives
    const char *dir;                // for the socket: the run's sock/
    enum weights_way way;           // WAY_COPY or WAY_NCCL
    const struct bundle *bundle;    // what a version is; borrowed as long as the outlet lives
    size_t bucket_bytes;            // of a broadcast; 0: what suits the device
    int n_slot;                     // versions kept at a time; 0: the weights themselves are shared
    int64_t limit_ms;               // of each wait for producers; 0: 60 s
};
struct outlet;
struct outlet *outlet_new(const struct outlet_config *config, struct error *err);
void outlet_free(struct outlet *o);    // NULL is fine
/* Put version into a slot, in place of the smallest there, and see to it that producers get it; does nothing when it is already
 * there. Returns when weights (device) may change again; without slots they must not before outlet_withdraw has returned, and h is what
 * others open them with (else it may be NULL). ERR_TIMEOUT names the producer that still reads the slot. */
MUST_USE bool outlet_share(struct outlet *o, void *weights, const struct mem_handle *h, int64_t version, struct error *err);
/* As outlet_share, for weights that lie in several places, which this device reaches. With slots they come together in one. Without slots
 * every producer copies them, whatever the way, and none is sent them: producers open the parts by their handles, and what from has is
 * borrowed until outlet_withdraw has returned. */
MUST_USE bool outlet_share_extents(struct outlet *o, const struct extents *from, int64_t version, struct error *err);
/* Without slots: nobody gets what is shared any more, or reads the weights. ERR_TIMEOUT names the producer that still does; nobody begins to
 * all the same. With slots it does nothing. */
MUST_USE bool outlet_withdraw(struct outlet *o, struct error *err);
/* Fill places, on this very device and others of this process that reach it, with version; the devices are idle on return. ERR_NOT_FOUND:
 * it is in no slot, and nothing has been written. */
MUST_USE bool outlet_copy(struct outlet *o, const struct places *places, int64_t version, struct error *err);
/* The versions in slots; returns how many. Any thread. */
int outlet_versions(struct outlet *o, int64_t version[OUTLET_SLOT_MAX]);
/* The weights go back to an earlier step: the contents of slots and of producers' staging buffers are no longer valid. Without slots
 * outlet_withdraw comes first. */
void outlet_forget(struct outlet *o);
/* Producers connected now, and hash and milliseconds of the last version that all of them had received or copied. Any thread. */
struct outlet_look {
    int n_member;
    int n_waiting;      // of them, those that want a version which has not been shared yet
    int64_t version;    // -1: none yet
    uint64_t hash;
    double ms;    // from outlet_share's begin to the last producer's end
};
void outlet_look(struct outlet *o, struct outlet_look *out);
