/* node_name.h - what a node may be called. Any thread. */
#pragma once
#include <stdbool.h>
#include "protocol/base/error.h"

#define NODE_NAME_MAX 32    // bytes
/* Letters, digits, '.', '_' and '-', not beginning with '.' or '-', at most NODE_NAME_MAX. */
MUST_USE bool node_name_check(const char *name, struct error *err);
