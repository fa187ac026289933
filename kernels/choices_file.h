/* choices_file.h - a GPU's choices of algorithms, kept on disk for the next start
 *
 * One text for each card and version of its libraries, in $XDG_CACHE_HOME/rollcall or ~/.cache/rollcall. RC_CUDA_CHOICES=off: none is read or
 * written. It is input from outside: bounded, checked, and only a hint. What it names is looked up among the algorithms that the library
 * offers, and tried for equal bits before it is used. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "kernels/choices.h"
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

#define CHOICES_FILE_MAX ((size_t)256 << 10)    // bytes; a full table takes a fifth of it

/* A table for a card and libraries, with what is on disk; a broken file is removed with one line in the log, and one that cannot be read is
 * ignored with one. Returns it for free(). NULL: see err. */
struct choices *choices_open(const char *what, struct error *err);
/* Write the table if it has changed, together with what others have written meanwhile. A failure is one line in the log: the next start
 * takes longer. */
void choices_save(struct choices *c);
/* Say each entry that was used in the log, once. */
void choices_tell(struct choices *c, const char *device);

/* The file's path; false: there is to be none, or no home. */
bool choices_path(const char *what, char *out, size_t size);
/* The text of the entries worth keeping. */
void choices_write(const struct choices *c, struct buf *out);
/* Add a text's entries, unless they are in c. ERR_DATA names path and line; c is then as before. */
MUST_USE bool choices_parse(struct choices *c, const char *text, size_t len, const char *path, struct error *err);
