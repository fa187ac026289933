/* local.h - the collective of ranks on one host, through a mapped file without a name; see local.c */
#pragma once
#include "kernels/collective/collective.h"
extern const struct collective_kind collective_local;
