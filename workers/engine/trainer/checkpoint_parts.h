/* checkpoint_parts.h - what the checkpoint_*.c files share */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "workers/engine/trainer/state.h"

#define CHECKPOINT_PATH 4096                // bytes of a path
#define CHECKPOINT_VERSION 1                // of the manifest
#define CHECKPOINT_REFERENCE "reference"    // the tensor in state/reference.safetensors

extern const char *const checkpoint_state_names[STATE_N];    // of the tensors in state/trainer.safetensors
/* dir/name; ERR_USAGE when it is too long. */
MUST_USE bool checkpoint_join(char out[CHECKPOINT_PATH], const char *dir, const char *name, struct error *err);
/* Size and hash of a file's bytes; the hash is mem_hash's (kernels/ops.h). */
MUST_USE bool checkpoint_file_hash(const char *path, size_t *size, uint64_t *hash, struct error *err);
