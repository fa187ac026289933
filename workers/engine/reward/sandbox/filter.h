/* filter.h - which system calls a program in the sandbox may make (seccomp)
 *
 * A list of what is allowed: what CPython and the C library need to compute, to read and write files, to start threads
 * and children. All else fails with EPERM, so that a program sees an ordinary error: no sockets but pairs, no
 * namespaces, mounts, tracing, reading of other processes' memory, keys, io_uring, perf, bpf, memory files or System V
 * memory. Any thread. */
#pragma once
#include "protocol/base/error.h"
/* The compiled filter as a memory file (CLOEXEC), ready for bwrap's --seccomp; -1: see err. The caller closes it. */
int filter_make(struct error *err);
