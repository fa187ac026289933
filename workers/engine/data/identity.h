/* identity.h - what a run began with, as hashes: data, model, tokenizer, chat template, adapter
 *
 * Replacing any of them would silently change the run: the same item would be another prompt, the same reward would be paid for
 * another answer. So the hashes are kept (RUN/identity.json, and in the journal) and compared at start, at each start of a worker
 * and at resume. The hashes detect replaced or edited files; they are not for secrets. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "protocol/base/error.h"

/* The parts of a model directory into out: "model" (config.json and the weights; of large files each MiB's first 4 KiB), "tokenizer" and
 * "chat_template". */
MUST_USE bool identity_model(json_t *out, const char *dir, const char *tokenizer_dir, struct error *err);
/* The adapter that the run starts from, as the part "adapter"; dir "": from none, and nothing is added. */
MUST_USE bool identity_adapter(json_t *out, const char *dir, struct error *err);
/* The run's teacher, as the part "teacher"; dir "": there is none, and nothing is added. */
MUST_USE bool identity_teacher(json_t *out, const char *dir, struct error *err);
/* Add one more part. */
MUST_USE bool identity_add(json_t *out, const char *name, uint64_t hash, struct error *err);
/* Names of the parts of was that are there in is, with another hash, separated by ", "; how many. */
int identity_changed(const json_t *was, const json_t *is, char *names, size_t size);

/* RUN/identity.json. *out is NULL when there is none (an older run, or another node's). */
MUST_USE bool identity_read(const char *run_dir, json_t **out, struct error *err);
MUST_USE bool identity_write(const char *run_dir, const json_t *parts, struct error *err);
