/* local.h - the collective of ranks on one host, by way of a mapped file that has lost its name; see local.c */
#pragma once
#include "kernels/collective/collective.h"
extern const struct collective_kind collective_local;
