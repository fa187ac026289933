/* pool.h - threads that share one job at a time
 *
 * Owned by a CPU device; the thread that drives the device calls pool_run and takes part in the work. Which thread takes which
 * piece is random, so a piece's result must not depend on it. Idle threads spin for a moment, then sleep; a call
 * does not wait for a thread that has not begun. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
struct pool;
/* n_thread threads including the caller's, 1 to 256. NULL: see err. */
struct pool *pool_new(int n_thread, struct error *err);
void pool_free(struct pool *p);
/* Call fn(arg, piece, thread) for each piece in [0, n_piece), thread in [0, n_thread); returns when all are done. work_ns: about how long
 * one thread would take for all of them, in ns; it decides how many threads are worth waking. */
typedef void pool_fn(void *arg, int64_t piece, int thread);
void pool_run(struct pool *p, pool_fn *fn, void *arg, int64_t n_piece, int64_t work_ns);
