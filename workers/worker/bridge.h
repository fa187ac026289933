/* bridge.h - the weights of a run that trains on posted groups, for the servers from which its environments draw
 *
 * The first trainer writes them to a directory and has each server at 'engine_url' read it: when it has loaded, every
 * bridge_interval steps, and at the end. These are the modes none (a whole model) and lora_only, lora_restart (an adapter) of
 * Atropos' trainer; in its mode shared_vllm servers compute with the trainer's weights themselves: the run's own ('serve'), or separate
 * ones (lending.h). The trainer waits until the servers have read a version, at most 20 s, and only for those with which all is well. Each
 * server has a thread of its own that gives it the newest version, so one that was away misses those between; its groups are corrected
 * for their age. On the engine's thread; where there is nothing to do the functions do nothing. */
#pragma once
#include "workers/worker/engine_state.h"

MUST_USE bool bridge_open(struct engine *e, struct error *err);    // after a load, with what was loaded
void bridge_step(struct engine *e, int64_t max_steps);             // after an optimizer step
/* The servers that did not get the newest version in time, at most max; returns how many. From any thread. */
int bridge_behind(const struct run_config *c, struct bridge *b, struct engine_server *out, int max);
void bridge_free(struct bridge *b);    // NULL is fine
