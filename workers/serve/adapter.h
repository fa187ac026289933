/* adapter.h - the adapter that a server computes with at present, on the model that it was started with
 *
 * At most one at a time. Owned by the policy's thread; struct adapter_look is plain data for the others. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "workers/engine/model/lora_config.h"

#define ADAPTER_NAME_MAX 256    // bytes of a name, with its NUL

struct model;
/* What clients are told about an adapter. */
struct adapter_look {
    char name[ADAPTER_NAME_MAX];    // "": there is none
    char dir[4096];
    int64_t id;        // the number of the load that brought it, from 1
    int64_t n_load;    // adapters loaded since the start
    struct lora_config config;
};
struct adapter {
    struct model *model;    // a view of the base with the adapter; owned. NULL: none
    struct adapter_look look;
};
/* Load the adapter in dir, of at most rank_max, onto base, which must outlive it. On failure a is unchanged. */
MUST_USE bool adapter_open(struct adapter *a, const struct model *base, const char *dir, const char *name, int64_t rank_max,
                           struct error *err);
void adapter_close(struct adapter *a);    // nothing computes with it any more; one that is not open is fine
