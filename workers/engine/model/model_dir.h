/* model_dir.h - the directory into which a model is written: not overwritten by accident, with its tokenizer's files
 *
 * Any thread. */
#pragma once
#include <stdbool.h>
#include "kernels/ops.h"
#include "protocol/base/error.h"
/* May a model be written into dir? ERR_EXISTS when it holds a config.json or weights and force is false. Creates
 * nothing, so that a command which fails later leaves nothing behind. */
MUST_USE bool model_dir_check(const char *dir, bool force, struct error *err);
/* Copy tokenizer.json, tokenizer_config.json and a tokenizer's other files; missing ones are skipped. */
MUST_USE bool model_dir_copy_tokenizer(const char *from, const char *to, struct error *err);
/* The names of the files that a model's directory may have besides its weights, one at a time; NULL: no more. */
const char *model_dir_file(int i);
/* "float32", "fp32", "bfloat16", "bf16". */
MUST_USE bool model_dtype_parse(enum dtype *out, const char *name, struct error *err);
