/* program.h - run another program and take what it prints: sbatch, scontrol, ourselves. Any thread. */
#pragma once
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
/* Run argv[0], found on the PATH, with an empty standard input, for at most limit_ms (then it is killed: ERR_TIMEOUT), and append what
 * it prints to out and errors (NULL: it goes where ours goes). status: its exit status, 128 + N after signal N. ERR_NOT_FOUND: there is
 * no such program. */
MUST_USE bool program_run(char *const argv[], int limit_ms, struct buf *out, struct buf *errors, int *status, struct error *err);
