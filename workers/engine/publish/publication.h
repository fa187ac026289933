/* publication.h - how weights go from the trainer's process to the producers', whichever way the
 * run has chosen
 *
 *   files        between any devices: a file in the run's sock/ (weights_file_*), which other nodes
 *                get too
 *   copy, nccl   between workers of a host: a struct publication. In the first trainer's process it
 *                is an outlet, which gives; in every other process that samples an inlet, which
 *                takes (wire.h)
 *
 * There is one publication per worker, driven by the thread that drives its device. Shared weights
 * are kept in slots, so that training can go on while producers take them, or, without slots,
 * producers read them in place until they are withdrawn. */
#pragma once
#include <stdio.h>
#include "workers/engine/publish/outlet.h"

struct extents;    // workers/engine/model/extent.h
struct model;      // workers/engine/model/model.h
struct publication_config {
    // The model that gives or takes. It says which tensors and devices there are; borrowed for the
    // call.
    const struct model *model;
    const char *run_dir;
    const char *name;        // this worker, for messages
    enum weights_way way;    // WAY_COPY or WAY_NCCL
    bool gives;              // this side shares; else it takes
    int64_t limit_ms;        // limit of each wait for the other side; 0: 60 s
    // Versions that are kept at a time. 0: the weights themselves are shared, and withdrawn before
    // they change; the other side stages nothing.
    int n_slot;
};
/* Bytes of the first device's memory that a publication takes for weights of size_bytes. n_device
 * is the number of devices of the model that takes. */
size_t publication_room(size_t size_bytes, enum weights_way way, bool gives, int n_slot, int n_device);
struct publication;
/* Returns a publication for publication_free; NULL: see err. */
struct publication *publication_new(const struct publication_config *config, struct error *err);
void publication_free(struct publication *p);             // NULL is fine
size_t publication_bytes(const struct publication *p);    // what it takes of the device's memory
/* Make a newly loaded m ready to give. Its weights may move to memory that other processes can
 * open, so nothing may keep their address yet. */
MUST_USE bool publication_model(struct publication *p, struct model *m, struct error *err);
/* Make m's weights available as `version`, made by incarnation `made` (wire.h). from says where the
 * weights lie; NULL: in m, which is whole. They are read until this returns, or, without slots,
 * until publication_withdraw. */
MUST_USE bool publication_share(struct publication *p, struct model *m, const struct extents *from, int64_t made, int64_t version,
                                struct error *err);
/* Do producers read shared weights where they are, until publication_withdraw? p NULL: no. */
bool publication_in_place(const struct publication *p);
/* Call it before shared weights change or go. Without slots no producer gets them or reads them any
 * more on return. With slots nothing happens. ERR_TIMEOUT names the producer that still reads. NULL
 * is fine. */
MUST_USE bool publication_withdraw(struct publication *p, struct error *err);
/* Fill m's weights with `version`. The side that gives takes it from its slot. ERR_NOT_FOUND: the
 * version is not there, and the weights are as they were. After any other failure the weights mean
 * nothing. */
MUST_USE bool publication_take(struct publication *p, struct model *m, int64_t made, int64_t version, struct error *err);
/* The path of a version's file: the bytes of all weights, a hash per tensor, and an end that marks
 * it. */
void weights_file_path(const char *run_dir, int64_t made, int64_t version, char *out, size_t size);
/* Write m's weights to path, through a file beside it that is renamed. They pass through a host
 * buffer of BUNDLE_STAGE bytes, and through one on the device if they lie in several places. from
 * is as for publication_share. */
MUST_USE bool weights_file_write(const struct model *m, const struct extents *from, const char *path, struct error *err);
/* Write what follows `size` bytes of weights in such a file: the hashes of n tensors, and the end.
 * False: see errno. */
MUST_USE bool weights_file_end(FILE *f, const uint64_t *hash, int64_t n, size_t size);
/* *key gets a number for what a file of weights holds, made of its tensors' hashes. data has the
 * file's `size` bytes. False: it is not such a file. */
MUST_USE bool weights_file_key(const void *data, size_t size, uint64_t *key);
/* Fill m's weights from such a file. A team's devices read only what their slices hold.
 * ERR_NOT_FOUND: the file is there no longer. ERR_DATA names the file, or the tensor whose hash is
 * not the file's. */
MUST_USE bool weights_file_read(struct model *m, const char *path, int64_t version, struct error *err);
/* The weights go back to an earlier step: no shared version is valid any more. */
void publication_forget(struct publication *p);
/* The versions in slots now. Returns how many. */
int publication_versions(struct publication *p, int64_t version[OUTLET_SLOT_MAX]);
/* The side that gives: milliseconds from sharing the last version until every producer had it. The
 * other side: milliseconds that taking it took. NAN: not known. */
double publication_ms(struct publication *p);
