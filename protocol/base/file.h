/* file.h - whole files: read with a bound, write so that a crash leaves the old or the new, map read-only
 *
 * Messages name the path and the operating system's reason. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
/* Append a file's bytes to b; fails when it is larger than max_bytes or not a regular file: a FIFO has no end to wait for. */
MUST_USE bool file_read(struct buf *b, const char *path, size_t max_bytes, struct error *err);
/* As file_read, for a text: ERR_DATA names the line of the first byte that is not UTF-8, or that is NUL. */
MUST_USE bool file_read_text(struct buf *b, const char *path, size_t max_bytes, struct error *err);
/* Write data to path through a temporary file, fsync and rename, and sync the folder: after a crash either the old file or the new
 * one is there, never a part. */
MUST_USE bool file_write(const char *path, const void *data, size_t len, struct error *err);
/* As file_write, for a file that only its owner may read (mode 0600). */
MUST_USE bool file_write_secret(const char *path, const void *data, size_t len, struct error *err);
/* Open a file of ours, made with mode if it is not there; -1: see err. Every file that rollcall creates comes from here: a link at path is
 * not followed, and what is not a regular file is refused. flags: O_WRONLY or O_RDWR, and O_APPEND or O_EXCL. O_TRUNC stands for a new
 * file: what had the name, a link too, loses it and keeps its bytes. The descriptor is closed on exec. ERR_USAGE: path is "-", which
 * means a stream that the caller does not write to; file_write refuses it likewise. */
MUST_USE int file_create(const char *path, int flags, unsigned mode, struct error *err);
/* Open such a file, mode 0644, as a stream to write to: with append at the end of what is there, else as a new file. NULL: see err. */
MUST_USE FILE *file_create_stream(const char *path, bool append, struct error *err);
/* Close *fd, if it is one, and make it -1. */
void fd_close(int *fd);
/* Make a folder and its missing parents; an existing folder is fine. */
MUST_USE bool dir_make(const char *path, unsigned mode, struct error *err);
/* Make renames and new files in dir survive a power cut. */
MUST_USE bool dir_sync(const char *dir, struct error *err);
/* Remove a folder and everything in it. A link, also at path itself, is removed and never followed. A missing folder is fine. */
MUST_USE bool dir_remove(const char *path, struct error *err);
bool path_is_stream(const char *path);    // "-", which stands for standard input or output where a command takes a file's name
bool path_exists(const char *path);
bool path_is_dir(const char *path);
bool path_is_link(const char *path);      // a symbolic one, wherever it leads
bool path_in_memory(const char *path);    // what is there is on tmpfs
/* The user's folder for what can be made again ($XDG_CACHE_HOME, else ~/.cache) + "/" + below. False when there is neither, or the path is
 * too long: as the XDG Base Directory Specification says, a relative one does not count. */
bool cache_path(char *out, size_t size, const char *below);
/* What stands for c in a file's name that is made from a text: c itself, or '_'. first: it would be a name's first character, where a dot hides
 * the file. */
char path_plain(char c, bool first);
/* dir + "/" + name (or name when it is absolute) into out of size bytes; false when it does not fit. */
bool path_join(char *out, size_t size, const char *dir, const char *name);
/* Map a file read-only; size 0 gives data NULL and true. The mapping is the caller's, for file_map_close. */
struct file_map {
    const uint8_t *data;
    size_t size_bytes;
};
MUST_USE bool file_map_open(struct file_map *map, const char *path, struct error *err);
/* As file_map_open, for a file that others reuse when nobody reads it (fill.h): while it is mapped it stays as it is. ERR_NOT_FOUND: it is in use
 * for other bytes already. */
MUST_USE bool file_map_shared(struct file_map *map, const char *path, struct error *err);
void file_map_close(struct file_map *map);
