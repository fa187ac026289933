/* colossal_blocks.h - the mappings that ColossalChat's constructors are given, in a run file
 *
 * grpo_config, plugin_config, generate_config, model_config and tokenizer_config hold settings, most under rollcall's names. A table has the
 * keys that mean another setting there, and those that nothing here needs. Read-only data: any thread. */
#pragma once
#include <stdbool.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "protocol/settings/run_config.h"

#define BLOCK_KEYS_MAX 64
#define BLOCK_BESIDE ""    // the block of the keys beside such mappings: they are a consumer's arguments

struct block_key {
    const char *block;    // NULL: any
    const char *name;
    const char *sets;    // the setting that it is another name of; NULL: none
    const char *only;    // without a setting: the value that is possible; NULL: any
    const char *why;     // ... and why it has no effect
};
bool block_is(const char *name);
/* NULL: the key has no meaning of its own there. */
const struct block_key *block_key_find(const char *block, const char *name);
/* Take a key that sets nothing; it is noted by blocks_finish. */
MUST_USE bool block_key_take(struct run_config *c, const struct block_key *k, const char *text, struct error *err);
/* Note the keys that had no effect. notes may be NULL. */
void blocks_finish(struct run_config *c, struct buf *notes);
