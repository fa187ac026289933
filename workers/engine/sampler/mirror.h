/* mirror.h - memory of the device and of the host with the same contents, for small messages between them
 *
 * Both are the same memory where the host can read the device's; copying then costs nothing. A mirror with two sides
 * has two host parts, separate from the device's: one is written or read while a copy of the other is under way. Owned
 * by the one thread that drives the device. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "protocol/base/error.h"

struct device;    // kernels/ops.h
struct mirror {
    void *host, *dev;
    void *other;    // the side of the host that is not host; NULL: there is one
    size_t size_bytes;
};
/* Allocate size_bytes on both sides, the host's zeroed. On failure m can be released. */
MUST_USE bool mirror_init(struct device *d, struct mirror *m, size_t size_bytes, bool two_sides, const char *what, struct error *err);
void mirror_release(struct device *d, struct mirror *m);
/* Copy all of it, in stream order. */
MUST_USE bool mirror_up(struct device *d, const struct mirror *m, struct error *err);
MUST_USE bool mirror_down(struct device *d, const struct mirror *m, struct error *err);    // complete after device_sync
void mirror_flip(struct mirror *m);                                                        // host becomes the other side, if there is one
/* The device address that corresponds to an address on the host's side. */
void *mirror_dev(const struct mirror *m, const void *host);
