/* bundle.h - what a version of the weights consists of, and what each device takes of it
 *
 * A version is one run of bytes with tensors in it, as the trainer has them. Each tensor has a hash (mem_hash of ops.h, words counted from
 * its first), so that what has arrived can be checked and a wrong one named. A receiver is one device or several (a team, team.h); each
 * takes rectangles of tensors straight into its own memory, where they lie without gaps. Both sides make the bundle from the model's
 * table. All here is called by the thread that drives the devices. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/ops.h"
#include "workers/engine/model/extent.h"
#include "workers/engine/model/team.h"

struct bundle_tensor {
    char name[96];
    size_t at, size_bytes;    // in the version
    size_t row_bytes;         // of a row, which an area may have a part of
};
struct bundle {
    size_t size_bytes;
    int64_t n;
    struct bundle_tensor *tensor;    // (n) in the order of at
};
/* The weights of m, which may be a shape only. */
MUST_USE bool bundle_of_model(struct bundle *b, const struct model *m, struct error *err);
/* size_bytes in n tensors of about equal size; for measurements and tests. */
MUST_USE bool bundle_of_size(struct bundle *b, size_t size_bytes, int64_t n, struct error *err);
void bundle_release(struct bundle *b);

/* An area of one tensor. */
struct piece {
    int64_t tensor;
    struct area of;
    size_t to;    // bytes of the place: where it begins
};
struct place {
    struct device *dev;    // borrowed
    void *mem;             // its weights; borrowed
    int64_t n;
    const struct piece *piece;    // (n) in the order of tensors; NULL: the whole version, n its tensors
};
#define PLACE_MAX TEAM_MAX
struct places {
    int n;
    struct place at[PLACE_MAX];
    struct piece *piece[PLACE_MAX];    // owned
};
/* Where m, whole or a team's slices, has a version of its weights. Valid until m's weights move. */
MUST_USE bool places_of_model(struct places *p, const struct model *m, struct error *err);
/* One device, the whole version. */
void places_of_whole(struct places *p, struct device *dev, void *mem, const struct bundle *b);
void places_release(struct places *p);

/* Memory for hashes, on each of n devices, and when it is first asked about weights on others of this process, on these. The devices are
 * borrowed as long as it lives. */
struct hasher;
struct hasher *hasher_new(const struct bundle *b, struct device *const *dev, int n, struct error *err);
void hasher_free(struct hasher *h);    // NULL is fine
/* The hash of each tensor (host; b.n) of a whole version at mem on the first device; waits for it. */
MUST_USE bool bundle_hash(struct hasher *h, const void *mem, uint64_t *hash, struct error *err);
/* As bundle_hash, for a version in several places. Each area, and each row of it, begins and ends with a word of 8 bytes. Each part is
 * hashed by its own device, if that is known, or by the first. */
MUST_USE bool bundle_hash_extents(struct hasher *h, const struct extents *from, uint64_t *hash, struct error *err);
/* Hash what is in places and compare with want (host; b.n), which came with version. Every place's part of a tensor counts: together they
 * have each element, and those that are in several are equal. ERR_DATA names the tensor. Waits for the devices. */
MUST_USE bool bundle_check(struct hasher *h, const struct places *p, const uint64_t *want, int64_t version, struct error *err);
uint64_t bundle_hash_join(const uint64_t *hash, int64_t n);    // of all hashes, for logs and comparisons
/* Can this be a table of where a version's tensors are: is each place an area of the version and within its part, and are they together as long as
 * the tensors? For tables that have come from elsewhere. One that passes and has a byte twice, so that another is missing, has other hashes. */
bool extents_are_whole(const struct bundle *b, const struct extents *x);
/* Fill places from a version; src[q] is how device q sees it. Gaps between tensors that are in no place are left as they are. Asynchronous. The
 * calling thread drives the first at the end. */
MUST_USE bool places_fill(const struct bundle *b, const struct places *p, const struct extents src[], struct error *err);
/* Bring bytes [at, at + n) of a version together on dev, at `to`; gaps that are in no place are 0. Asynchronous. */
MUST_USE bool extents_gather(const struct bundle *b, const struct extents *src, struct device *dev, size_t at, size_t n, void *to,
                             struct error *err);
MUST_USE bool places_sync(const struct places *p, struct error *err);    // until all their devices are idle
/* Fill places from this host's memory, which has been read on return. Rows that are not neighbours go through a buffer of BUNDLE_STAGE. */
#define BUNDLE_STAGE ((size_t)16 << 20)
MUST_USE bool places_fill_from_host(const struct bundle *b, const struct places *p, const void *src, struct error *err);
