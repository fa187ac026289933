/* hub.h - models and data sets by name: the Hugging Face cache
 *
 * The cache is laid out as huggingface_hub does (HUB/models--ORG--NAME or datasets--ORG--NAME with refs/, blobs/ and
 * snapshots/COMMIT/ of links into blobs/), so that each finds the other's downloads. HUB is $HF_HUB_CACHE, else $HF_HOME/hub, else
 * $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. Nothing is downloaded unless hub_pull is called. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include "protocol/base/error.h"

/* The directory (or file) that name means, into out of size bytes: name itself when it exists, else org/name in the
 * cache at revision (NULL: main; a branch, a tag or a commit). ERR_NOT_FOUND says how to get it. */
MUST_USE bool hub_find(char *out, size_t size, const char *name, const char *revision, struct error *err);
enum hub_kind {
    HUB_MODEL,
    HUB_DATASET,
};
/* The folder of a data set's revision (NULL: main) in the cache, into out; its last part is the commit. ERR_NOT_FOUND says how to
 * get it. */
MUST_USE bool hub_find_dataset(char *out, size_t size, const char *name, const char *revision, struct error *err);
/* Write the cache's folder into out. */
MUST_USE bool hub_cache_dir(char *out, size_t size, struct error *err);
/* Whether name could be a repository's: org/name or name, of letters, digits, '-', '_' and '.'. */
bool hub_name_ok(const char *name);
/* Whether a text could be a branch, a tag or a commit, and cannot lead out of the folder. */
bool hub_revision_ok(const char *revision);
/* The folder of a repository in the cache, into out. */
MUST_USE bool hub_repo_dir(char *out, size_t size, enum hub_kind kind, const char *name, struct error *err);
