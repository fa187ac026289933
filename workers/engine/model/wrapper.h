/* wrapper.h - what the files of a model hold beside its text part: vision, layers that predict further tokens, and the names that go with
 * them; only for model.c and model_files.c
 *
 * Some families are served as they were published, so they are saved with all of that as it was loaded (config.h, keeps_wrapper). The files
 * stay open, so that they can be copied when their names are gone. Any thread may call the functions that take a const model. */
#pragma once
#include "workers/engine/model/model.h"
#include "workers/engine/model/safetensors.h"

/* Open dir's files for m->wrapper, where m's family keeps what is in them. Says in the log how many tensors are kept, and how many cannot
 * be because of their type. After a failure m can only be freed. */
MUST_USE bool wrapper_open(struct model *m, const char *dir, struct error *err);
void wrapper_free(struct model *m);
/* The name that the files have for one of m's tensors. Borrowed from m. */
const char *wrapper_name(const struct model *m, const char *name);
/* Put the tensors that are kept into out, which has room for all, unless it is NULL, and return how many there are. They are borrowed
 * from m. */
int64_t wrapper_kept(const struct model *m, struct st_out *out);
/* Write dir/config.json as it was loaded, but for the type of the weights and whether head and embedding are tied. */
MUST_USE bool wrapper_config_save(const struct model *m, const char *dir, const char *dtype, struct error *err);
