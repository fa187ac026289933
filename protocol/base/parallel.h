/* parallel.h - a loop whose rounds do not depend on each other, by several threads
 *
 * For work that one thread's speed bounds: drawing, hashing, the first touch of fresh memory. Threads are started for the call and
 * have ended when it returns. */
#pragma once
#include <stdint.h>
/* Call body(ctx, i) once for every i of [0, n), in any order, on at most n_thread threads (0: as many as there are processors), of which the
 * caller's is one. Where threads cannot be started, those that run do their share. Any thread; body must not mind which. */
void parallel_run(int64_t n, int n_thread, void (*body)(void *ctx, int64_t i), void *ctx);
