/* rollout_file.h - rollouts/NAME.zst: records appended one after the other, readable while they are written
 *
 * Each record is one zstd frame with a checksum, so `zstdcat NAME.zst` prints all of them, and a record can be read
 * alone by the offset and size that the index (the run's journal) keeps. A crash can leave part of the last record; it is cut off
 * when the file is opened again. What a record holds is up to the caller (usually lines of JSON). One writer per file, one thread;
 * readers may be anywhere.
 *
 * Frames: RFC 8878. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

#define ROLLOUT_RECORD_MAX ((size_t)256 << 20)    // bytes of one record before compression; larger is an error

struct rollout_file;
struct rollout_opened {
    int64_t n_record;         // whole records found after known_size; all of them when the file is shorter than that
    int64_t size_bytes;       // the file's size now
    int64_t cut_bytes;        // length of a broken tail that was removed
    int64_t damaged_bytes;    // bytes between whole records that are not records; they stay in place
    int64_t lost_bytes;       // how much shorter than known_size the file was
};
/* Open path for appending; a missing file is created. The first known_size bytes (from the index) are assumed to be whole records;
 * 0: everything is checked. After them, whole records are kept and anything after the last one is cut off. A power cut may have
 * left the file shorter than known_size: then everything is checked, and records that the index names after size_bytes, or in a
 * damaged place, are lost; rollout_file_read reports it for each record. opened may be NULL. */
struct rollout_file *rollout_file_open(const char *path, int64_t known_size, struct rollout_opened *opened, struct error *err);
/* Cut off the records from size_bytes on, which must be where a record begins. */
MUST_USE bool rollout_file_cut(struct rollout_file *f, int64_t size_bytes, struct error *err);
/* Close without syncing; NULL is fine. */
void rollout_file_close(struct rollout_file *f);
/* Add one record; offset and size_bytes return where it is. On failure (disk full) the file is unchanged. */
MUST_USE bool rollout_file_append(struct rollout_file *f, const void *data, size_t len, int64_t *offset, int64_t *size_bytes,
                                  struct error *err);
/* Return when everything appended so far would survive a power cut. Call this before the index names a record. Another thread may
 * call it while this one appends. */
MUST_USE bool rollout_file_sync(struct rollout_file *f, struct error *err);

/* Read the record at offset with this size; appends it to out. ERR_DATA: it is not there, or damaged. */
MUST_USE bool rollout_file_read(const char *path, int64_t offset, int64_t size_bytes, struct buf *out, struct error *err);
/* All records in order. */
struct rollout_reader;
struct rollout_reader *rollout_reader_new(const char *path, struct error *err);
void rollout_reader_free(struct rollout_reader *r);
/* Put the next record into out (cleared first); *more is false at the end. Part of a record at the very end counts as the end,
 * since its writer may be at work; damage elsewhere is ERR_DATA with the offset, and the next call continues at the next whole
 * record. */
MUST_USE bool rollout_reader_next(struct rollout_reader *r, struct buf *out, bool *more, struct error *err);
