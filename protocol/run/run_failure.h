/* run_failure.h - sock/failure: why a run has ended before its time, where the journal cannot tell it
 *
 * The words must get through on a full disk, so their room is taken when the run is started: a spare file that is written
 * over and renamed. Any process of the run may write; the first one's words stand. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "protocol/base/error.h"
#define RUN_FAILURE_MAX 4096    // bytes that are kept
/* Take the room, and forget what an earlier life of the run has left. */
MUST_USE bool run_failure_prepare(const char *run_dir, struct error *err);
MUST_USE bool run_failure_write(const char *run_dir, const char *text, struct error *err);
/* False: there is none. */
bool run_failure_read(const char *run_dir, char *out, size_t size);
