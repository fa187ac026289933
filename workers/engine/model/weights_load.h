/* weights_load.h - the tensors of files into a device's memory, by several threads; only for model_files.c */
#pragma once
#include <stdint.h>
#include "protocol/base/error.h"

struct model;
struct st_tensor;
/* Buffers that tensors pass through on their way to m's device: made with the first ones, and kept for those that follow. */
struct weights_loader;
struct weights_loader *weights_loader_new(const struct model *m, struct error *err);    // borrows m's device. NULL: see err
void weights_loader_free(struct weights_loader *l);                                     // NULL is fine
/* Load tensors [first, last) of m, whose table this is, from file[i] (n_tensor), converted to m's type. `to` (device) is where the tensor
 * `first` goes; the others follow as in the flat order. The files' tensors have the model's shapes. They are there when it returns.
 * ERR_DATA names the first tensor with a value that is not finite in m's type. */
MUST_USE bool weights_load(struct weights_loader *l, const struct model *m, const struct st_tensor *const *file, int64_t first,
                           int64_t last, char *to, struct error *err);
