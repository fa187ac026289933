/* model_find.h - the directory that a model's name means, whatever form the model has
 *
 * A GGUF file is converted once (gguf_dir.h), exactly, into $XDG_CACHE_HOME/rollcall/gguf, else ~/.cache/rollcall/gguf, and that folder is
 * used from then on. Its name is made of the file's path, size and time, so that a file which changes is converted again. The folder is
 * made under another name and renamed, so that it is whole or not there, whoever else converts at the same time. A conversion leaves the
 * newest eight folders, by their last start, and those that are in use or were started from within a day; it removes others and says so. */
#pragma once
#include <stddef.h>
#include "protocol/base/error.h"

/* Into out of size bytes: a directory, a .gguf file, or org/name in the Hugging Face cache (at revision main); ERR_NOT_FOUND says how to
 * get that. */
MUST_USE bool model_find(char *out, size_t size, const char *name, struct error *err);
