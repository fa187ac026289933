/* held.h - the models of a load, which the engine owns from their making to loading_undo
 *
 * The pointers of struct engine (model, ref, sampler, trained, copy) borrow them. The engine's thread alone. */
#pragma once
#include "workers/worker/engine_state.h"

/* Keep m until held_free; takes m. Returns m; NULL: m is NULL. */
struct model *held_add(struct engine *e, struct model *m);
/* Bytes that device q of each has for weights, as the models count them; 0 is the first. e->bare has none. */
size_t held_bytes(const struct engine *e, int q);
/* Free them, the last one first: a view or an adapter goes before its base. */
void held_free(struct engine *e);
