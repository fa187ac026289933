/* fill.h - a file that several threads fill at once, each its own parts, and that has its name when it is whole
 *
 * In a file system in memory (tmpfs) the parts are written where they are mapped: threads that call write() take turns, however many they
 * are. The pages of a part are made before it is touched, so that no memory left is an error and not a signal. The file may take the
 * place of an earlier one, whose pages need be neither found nor cleared.
 *
 * Opened, finished and closed by its owner; the rest is for any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct fill {
    int fd;          // -1: finished, or none
    uint8_t *map;    // (size) NULL: written by write()
    size_t size;     // bytes
    char path[4210];
};
/* A file of size bytes at path, of any content. spare: a file that nobody needs any more, or no file; it is used when it is on tmpfs, has no
 * other name and nobody reads it (file_map_shared), and its own name goes in any case. NULL: none. */
MUST_USE bool fill_open(struct fill *f, const char *path, const char *spare, size_t size, struct error *err);
/* Where the n bytes at at can be written; NULL: only by fill_write. */
uint8_t *fill_place(struct fill *f, size_t at, size_t n);
/* Have data there; nothing is done if it is there already. */
MUST_USE bool fill_write(struct fill *f, const uint8_t *data, size_t at, size_t n, struct error *err);
/* The calling thread does not write this part again: it need not stay mapped. at: a multiple of a page; n: may go
 * beyond the end. */
void fill_leave(struct fill *f, size_t at, size_t n);
/* Give the file its name. On failure it is removed. No thread writes any more. */
MUST_USE bool fill_finish(struct fill *f, const char *path, struct error *err);
/* Remove it, unless it has its name. No thread uses f any more. */
void fill_close(struct fill *f);
