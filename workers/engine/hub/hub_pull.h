/* hub_pull.h - fill the hub's cache with a model or a data set: what huggingface_hub's snapshot_download does, over libcurl
 *
 * The list of files with their sizes and hashes comes from the hub's API; each missing one is downloaded next to its final place
 * (blobs/HASH.incomplete, resumed when it exists), checked against its hash, and only then given its name; refs/ is written last,
 * so that a cache never names an incomplete model. Blocks; one thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "protocol/base/error.h"
#include "workers/engine/hub/hub.h"

struct hub_pull {
    enum hub_kind kind;
    const char *name;              // org/name
    const char *revision;          // branch, tag or commit; NULL: main
    const char *const *include;    // (n_include) shell patterns of files to get; 0: what a model needs (weights as
    int n_include;                 // safetensors, configurations, tokenizer, templates), or a data set's files
    const char *config, *split;    // of a data set, when n_include is 0 (hub_data.h); NULL: all of its data files
    bool offline;                  // ask the cache only
    FILE *progress;                // where to draw a bar, or one line per file when it is not a terminal; NULL: nowhere
};
/* Get it; its directory goes into dir. The endpoint is $HF_ENDPOINT, else https://huggingface.co; the
 * token is $HF_TOKEN, $HUGGING_FACE_HUB_TOKEN or the file $HF_TOKEN_PATH, else token in $HF_HOME, and is sent only to the endpoint,
 * and only encrypted unless the endpoint is this machine. ERR_REFUSED: the hub wants another token; ERR_NOT_FOUND. */
MUST_USE bool hub_pull(const struct hub_pull *p, char *dir, size_t size, struct error *err);
