/* kinds.h - the kinds of collective.h, for its table */
#pragma once
#include "kernels/collective/collective.h"
extern const struct collective_kind collective_ipc, collective_local, collective_tcp, collective_nccl;
