/* returning.h - going back to an earlier step, when a trainer has lost its weights */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct controller;
/* The newest step that can be returned to, and its checkpoint's path ("" for the start); -1: there is none. */
int64_t return_target(struct controller *c, char path[4096]);
/* As return_target, also further back than the ledger keeps in reach: its items are then read from the journal again. */
int64_t return_find(struct controller *c, char path[4096]);
/* From step on a new incarnation makes the steps; the run is at step then. */
MUST_USE bool incarnation_begin(struct controller *c, int64_t step, struct error *err);
/* cause: who has lost what, for the event; steps that are made again come out the same, so nothing is lost. */
MUST_USE bool controller_return(struct controller *c, int64_t step, const char *cause, struct error *err);
/* All trainers go back to the newest step that can be returned to; several of them meet in a new round. False: the run has failed. */
bool trainers_return(struct controller *c, const char *cause, char path[4096]);
