/* publication.h - how this worker's weights go to others or come from them, whichever way the run has chosen
 *
 * files: the arena's bytes in a file of the run's sock/, written aside and renamed; any device, and what other nodes are given.
 * copy, nccl: a struct publication: an outlet in the first trainer's process, an inlet in every other of this host that samples
 * (wire.h). One per worker, driven by the thread that drives the device. */
#pragma once
#include "workers/engine/publish/outlet.h"

struct model;    // workers/engine/model/model.h
struct publication_config {
    const struct model *model;     // for the size of its weights; borrowed for the call
    const char *run_dir, *name;    // name: this worker, for messages
    enum weights_way way;          // WAY_COPY or WAY_NCCL
    bool gives;                    // it shares; else it takes
    int n_slot;                    // versions that are kept at a time
};
struct publication;
struct publication *publication_new(const struct publication_config *config, struct error *err);
void publication_free(struct publication *p);             // NULL is fine
size_t publication_bytes(const struct publication *p);    // of the device's memory
/* Make version, that incarnation made has made (wire.h), available: m's weights as they are. */
MUST_USE bool publication_share(struct publication *p, const struct model *m, int64_t made, int64_t version, struct error *err);
/* Fill m's weights with version; the side that gives has it in a slot. On failure m's weights mean nothing, except after
 * ERR_NOT_FOUND: then they are as they were. */
MUST_USE bool publication_take(struct publication *p, struct model *m, int64_t made, int64_t version, struct error *err);
/* The same by a file, and which that is. */
void weights_file_path(const char *run_dir, int64_t made, int64_t version, char *out, size_t size);
MUST_USE bool weights_file_write(const struct model *m, const char *path, struct error *err);
MUST_USE bool weights_file_read(struct model *m, const char *path, struct error *err);
/* The weights go back to an earlier step: nothing that was shared is valid any more. */
void publication_forget(struct publication *p);
/* Versions that are kept now; returns how many. */
int publication_versions(struct publication *p, int64_t version[OUTLET_SLOT_MAX]);
/* Milliseconds from sharing the last version until every producer had it, or in taking it; NAN: not known. */
double publication_ms(struct publication *p);
