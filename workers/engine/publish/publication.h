/* publication.h - how this worker's weights go to others or come from them, whichever way the run has chosen
 *
 * files: the arena's bytes and a hash per tensor in a file of the run's sock/, written aside and renamed; any device, and what other
 * nodes are given.
 * copy, nccl: a struct publication: an outlet in the first trainer's process, an inlet in every other of this host that samples
 * (wire.h). One per worker, driven by the thread that drives the device. */
#pragma once
#include <stdio.h>
#include "workers/engine/publish/outlet.h"

struct extents;    // workers/engine/model/extent.h
struct model;      // workers/engine/model/model.h
struct publication_config {
    const struct model *model;     // that gives, or that takes: for its tensors and devices; borrowed for the call
    const char *run_dir, *name;    // name: this worker, for messages
    enum weights_way way;          // WAY_COPY or WAY_NCCL
    bool gives;                    // it shares; else it takes
    int64_t limit_ms;              // of each wait for the other side; 0: 60 s
    int n_slot;    // versions that are kept at a time; 0: they are withdrawn before the weights change, and nothing is staged
};
/* Bytes of the first device's memory that it takes for weights of size_bytes; n_device: that the taking model is on. */
size_t publication_room(size_t size_bytes, enum weights_way way, bool gives, int n_slot, int n_device);
struct publication;
struct publication *publication_new(const struct publication_config *config, struct error *err);
void publication_free(struct publication *p);             // NULL is fine
size_t publication_bytes(const struct publication *p);    // of the device's memory
/* Ready a newly loaded m to give: its weights may move to memory that others can open. Before anybody keeps their address. */
MUST_USE bool publication_model(struct publication *p, struct model *m, struct error *err);
/* Make version, that incarnation made has made (wire.h), available: m's weights as they are. from: where they lie, read until this
 * returns, or in place; NULL: in m, which is whole. */
MUST_USE bool publication_share(struct publication *p, struct model *m, const struct extents *from, int64_t made, int64_t version,
                                struct error *err);
/* Are weights that were shared read where they are, until publication_withdraw? NULL: no. */
bool publication_in_place(const struct publication *p);
/* Before weights that were shared change or go: without slots nobody gets them or reads them any more; with slots nothing happens.
 * ERR_TIMEOUT names who still reads. NULL is fine. */
MUST_USE bool publication_withdraw(struct publication *p, struct error *err);
/* Fill m's weights with version; the side that gives has it in a slot. On failure m's weights mean nothing, except after
 * ERR_NOT_FOUND: then they are as they were. */
MUST_USE bool publication_take(struct publication *p, struct model *m, int64_t made, int64_t version, struct error *err);
/* The same by a file, and which that is. What is written or read passes through a bounded buffer, with weights in several places one on the
 * device as well (BUNDLE_STAGE), and only a team's slices are read of a tensor. from: as above. ERR_DATA names the file, or the tensor whose hash is another than the file's. */
void weights_file_path(const char *run_dir, int64_t made, int64_t version, char *out, size_t size);
MUST_USE bool weights_file_write(const struct model *m, const struct extents *from, const char *path, struct error *err);
/* What follows size bytes of weights in such a file: the hashes of n tensors, and what marks it. False: see errno. */
MUST_USE bool weights_file_end(FILE *f, const uint64_t *hash, int64_t n, size_t size);
/* A number for what a file of weights holds, from its tensors' hashes; data: its size bytes. False: it is not such a file. */
MUST_USE bool weights_file_key(const void *data, size_t size, uint64_t *key);
MUST_USE bool weights_file_read(struct model *m, const char *path, int64_t version, struct error *err);
/* The weights go back to an earlier step: nothing that was shared is valid any more. */
void publication_forget(struct publication *p);
/* Versions that are kept now; returns how many. */
int publication_versions(struct publication *p, int64_t version[OUTLET_SLOT_MAX]);
/* Milliseconds from sharing the last version until every producer had it, or in taking it; NAN: not known. */
double publication_ms(struct publication *p);
