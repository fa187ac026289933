/* file_tensors.h - a model's tensors under the names that files give them; for this folder and for reading checkpoints */
#pragma once
#include <stdbool.h>
#include "workers/engine/model/config.h"
#include "workers/engine/model/safetensors.h"

/* The file's tensor of one of the model's. Files of a model of images and text have a prefix before the names of its text part. NULL: there
 * is none. Borrowed from s. */
const struct st_tensor *file_tensor(const struct model_config *c, const struct shards *s, const char *name);
/* Is this the name of a tensor beside the text part: of images, or of layers that predict further tokens? */
bool file_tensor_is_beside(const struct model_config *c, const char *name);
/* Do the files of dir hold a head whose values are not those of the embedding? Reads both as far as they agree. False also where
 * the files cannot be read; whoever loads them says why. */
bool file_head_differs(const struct model_config *c, const char *dir);
