/* weights.h - which samplers can take which version of the weights, and from where
 *
 * The first trainer shares a version in its memory (copy, nccl: for this host) or in a file of the run's sock/ (for other nodes, and by
 * the way 'files' for all). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct controller;
struct worker;
/* Does anybody sample but with its own trainer's present weights? Then they are put where others find them. */
bool weights_are_shared(const struct controller *c);
bool weights_shared(const struct controller *c, int64_t version);    // can every sampler have this version now?
bool weights_shared_with(const struct controller *c, const struct worker *w, int64_t version);    // can w?
/* Can w have this version, or is it being shared now? A sampler that takes it out of memory may wait for it already. */
bool weights_coming(const struct controller *c, const struct worker *w, int64_t version);
/* Can a sampler still take a version that was shared when the trainer has gone on from it? */
bool weights_outlive_step(const struct controller *c);
/* Is there room for the first trainer w to share the present version: a free place, or one of a version that nobody will want? */
bool weights_fit(const struct controller *c, const struct worker *w);
bool weights_own_present(const struct controller *c);    // does the first trainer sample with a copy of the present weights?
bool weights_need_file(const struct controller *c);      // is what is shared written into a file?
bool version_undone(const struct controller *c, const struct worker *w);    // does w sample with weights of a step that has been undone?
/* The file that version's weights are shared in. */
void weights_path(const struct controller *c, int64_t version, char *out, size_t size);
void weights_forget(const struct controller *c, int64_t step);              // remove files before step that nobody will want
void weights_undo(const struct controller *c, int64_t from, int64_t to);    // remove the files of the steps after from, up to to
