/* filter.h - which system calls a program in the sandbox may make (seccomp)
 *
 * A list of what is allowed: what CPython and the C library need to compute, to read and write files, to start threads
 * and children. Everything else fails with EPERM, so that a program sees an ordinary error: no sockets except pairs, no
 * namespaces, mounts, tracing, reading of other processes' memory, keys, io_uring, perf, bpf, memory files, System V
 * memory or file locks. Any thread. */
#pragma once
#include "protocol/base/error.h"
/* The compiled filter as a memory file (CLOEXEC); -1: see err. The caller closes it. With shared_memory a program may map
 * anonymous memory that processes share. That is safe only where a cgroup limits a program's memory, since such pages stay, and
 * are charged to no process, once nobody has them mapped. Without it mmap fails with ENOMEM, as at any memory limit. */
int filter_make(bool shared_memory, struct error *err);
