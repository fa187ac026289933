/* run_failure.h - sock/failure: why a run ended early, for cases where the journal cannot record it
 *
 * The reason must get through on a full disk, so its space is reserved when the run starts: a spare file that is overwritten and
 * renamed. Any process of the run may write; the first reason is kept. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "protocol/base/error.h"
#define RUN_FAILURE_MAX 4096    // bytes that are kept
/* Reserve the space, and remove what an earlier start of the run left. */
MUST_USE bool run_failure_prepare(const char *run_dir, struct error *err);
MUST_USE bool run_failure_write(const char *run_dir, const char *text, struct error *err);
/* False: there is none. */
bool run_failure_read(const char *run_dir, char *out, size_t size);
