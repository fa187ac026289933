/* weights_load.h - the tensors of files into a model's memory, by several threads; only for model_files.c */
#pragma once
#include "protocol/base/error.h"

struct model;
struct st_tensor;
/* Load tensor i of the model from file[i] (n_tensor of the model), converted to its type. The files' tensors have the model's shapes. */
MUST_USE bool weights_load(struct model *m, const struct st_tensor *const *file, struct error *err);
