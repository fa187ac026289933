/* network.h - the address at which a trainer of a run on several hosts meets the others
 *
 * It is the one that the control connection uses: on the head the HOST of `listen`, on a node the address from which it reaches the head. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "protocol/base/error.h"

struct run_config;
/* The address for collective_config, numeric or a name, "*" for all addresses; "": all trainers are on one host. */
MUST_USE bool network_address(const struct run_config *c, const char *run_dir, char *out, size_t size, struct error *err);
/* Let NCCL use the interface of that address, unless the environment has NCCL_SOCKET_IFNAME. Before the process has threads: it changes
 * the environment. */
MUST_USE bool network_choose(const struct run_config *c, const char *run_dir, struct error *err);
