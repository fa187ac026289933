/* library.h - shared libraries that are opened by name at run time
 *
 * NVIDIA's Python packages (nvidia-cublas, nvidia-nccl-cu13) lay theirs into site-packages/nvidia/NAME/lib, where the loader does not
 * look. The executable of our wheel lies in bin/ of the same environment and finds them from there. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "protocol/base/error.h"
/* Open a library: `name` is a path, or a file name for which the loader's own places come first and then NVIDIA's packages. What the
 * library needs in turn and the loader does not find is opened from these packages, too. It stays open until the process ends. NULL:
 * ERR_NOT_FOUND says which library is missing and what brings it, ERR_UNSUPPORTED what the loader says of one that is there. */
void *library_open(const char *name, struct error *err);
/* NCCL: the file that RC_NCCL names, else libnccl.so.2. */
void *library_open_nccl(struct error *err);
/* The path of an open library whose file name begins with `start`. False: none is open, or out of size bytes is too short. */
bool library_where(const char *start, char *out, size_t size);
