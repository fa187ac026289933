/* checkpoint.h - a training state on disk: a Hugging Face directory plus state/, complete or recognisably not
 *
 *   step-000120/  model.safetensors config.json tokenizer.json tokenizer_config.json ...   (loads in transformers)
 *                 of an adapter adapter_model.safetensors adapter_config.json instead of the first two (loads in PEFT)
 *     state/      trainer.safetensors (masters, moments)  state.json (step, settings)
 *                 reference.safetensors, of a reference that has moved
 *     state/manifest.json: size and hash of every other file; written last
 *
 * Written into a hidden sibling, synced, then renamed: a directory of the final name with a good manifest is complete.
 * The snapshot is taken by the device thread (training stalls only for the copy), writing happens in a thread of its
 * own. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

struct trainer;
struct checkpoint_writer;
/* What stands beside the model; strings are copied. */
struct checkpoint_info {
    int64_t step;                 // optimizer steps: names the directory
    const char *tokenizer_dir;    // tokenizer*.json, special_tokens_map.json, generation_config.json, ... come from here; or NULL
    const char *settings;         // JSON text kept as state.json's "settings"; or NULL
    const char *run;              // id of the run it belongs to; or NULL
};
/* A writer with one background thread; NULL: see err. The destructor waits for what is being written. */
struct checkpoint_writer *checkpoint_writer_new(struct error *err);
void checkpoint_writer_free(struct checkpoint_writer *w);
/* Have done(ctx) called, on the writer's thread, each time a checkpoint has been written or has failed: checkpoint_poll knows it by
 * then. Before the first checkpoint_start. */
void checkpoint_writer_notify(struct checkpoint_writer *w, void (*done)(void *ctx), void *ctx);
/* A checkpoint is written from a copy in host memory, which is kept for the next one. Returns the bytes of that copy: the weights, the
 * moments of the n_param parameters that are trained, and with half, weights in bf16, their masters. */
size_t checkpoint_copy_bytes(int64_t n_param, size_t weight_bytes, bool half);
/* Copy weights and state to host memory and start writing dir/step-NNNNNN. Waits first for an unfinished earlier one.
 * An existing complete checkpoint of that name is replaced, but never one of another run. */
MUST_USE bool checkpoint_start(struct checkpoint_writer *w, struct trainer *t, const char *dir, const struct checkpoint_info *info,
                               struct error *err);
/* The part of the other ranks in it, where they are apart and keep shards (trainer_gives_first); else nothing. */
MUST_USE bool checkpoint_give(const struct trainer *t, struct error *err);
/* False while one is being written; true once it is done or none was: then *path (if any was written) names it and a
 * failure is in err with *ok false. Does not wait. */
bool checkpoint_poll(struct checkpoint_writer *w, bool *ok, char path[4096], struct error *err);
/* Wait for the one being written. */
MUST_USE bool checkpoint_wait(struct checkpoint_writer *w, struct error *err);
/* Is path a complete checkpoint? Reads and hashes every file; err says what is wrong. *step from its manifest. */
MUST_USE bool checkpoint_verify(const char *path, int64_t *step, struct error *err);
/* May a run of this model directory begin with another run's checkpoint? That gives tensors; all else comes from the model, which must
 * compute with them as that run did. */
MUST_USE bool checkpoint_config_check(const char *path, const char *model, struct error *err);
/* The id of the run that a checkpoint belongs to, from its manifest, at most 63 bytes; "": it does not say. */
MUST_USE bool checkpoint_owner(const char *path, char run[64], struct error *err);
/* Set the trainer's masters, moments and version (and so the model's weights), and the reference if it had moved, from a checkpoint that
 * has been verified. ERR_USAGE: it is of all weights and the trainer's model has an adapter, or the other way round. */
MUST_USE bool checkpoint_restore(struct trainer *t, const char *path, struct error *err);
/* Before the first step: where the model in dir, which the trainer's weights came from, has fp32 or fp16 files and is trained in bf16, set the
 * masters to the files' own values. Masters that began as the rounded weights would all be in the middle of what rounds to them, and the first
 * small updates would change no weight. The weights keep their bits. An adapter, fp32 and bf16 files need nothing. */
MUST_USE bool checkpoint_masters_begin(struct trainer *t, const char *dir, struct error *err);
/* The step of the newest checkpoint of dir that looks complete, not read; run as for checkpoint_prune. -1: none, or no such folder. */
MUST_USE bool checkpoint_last(const char *dir, const char *run, int64_t *step, struct error *err);
/* The newest checkpoint of dir that is whole; every byte of it is read. run: as for checkpoint_prune. broken gets a line for each
 * newer one that is broken: its path, and why. *step -1: none is whole. */
MUST_USE bool checkpoint_newest_whole(const char *dir, const char *run, char path[4096], int64_t *step, struct buf *broken,
                                      struct error *err);
/* Rename dir's checkpoints of later steps than step, those of this run and those without an owner, to step-N.broken-K, so that
 * nothing is saved over them. */
MUST_USE bool checkpoint_set_aside(const char *dir, const char *run, int64_t step, struct error *err);
/* Keep the checkpoint at path whatever else is removed (a file state/pinned), or no longer; one that is written in its place inherits
 * that. */
MUST_USE bool checkpoint_pin(const char *path, bool pinned, struct error *err);
bool checkpoint_is_pinned(const char *path);
/* Size of the checkpoint at path by its manifest, when every file of it is there with the size that the manifest gives; else err says
 * what is wrong. No file but the manifest is read. */
MUST_USE bool checkpoint_measure(const char *path, int64_t *size_bytes, struct error *err);
/* Remove all but the newest keep complete checkpoints of dir; 0 keeps all. run: only checkpoints of this run, or without an owner,
 * count and go; NULL: all do. Pinned ones stay and do not count. Those that a rollback has moved aside (step-N.undone-K) go when keep
 * others are complete. Where the name is a link, only the link goes; links gets its path. */
MUST_USE bool checkpoint_prune(const char *dir, int64_t keep, const char *run, struct buf *links, struct error *err);
