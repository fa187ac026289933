/* sandbox.h - run an untrusted Python program on test inputs, contained
 *
 * One sandbox per completion: bubblewrap with all namespaces (no network, no other process visible), a read-only /usr
 * and nothing else of the machine, a small private /tmp, no /proc, a seccomp filter, an unprivileged uid, limits on
 * memory, processes, files, output and time. Inside, driver.py forks one child per case. Only inputs go in and only
 * bytes come out; expected answers never go in. The clock, the comparison and the verdict are on this side. sandbox.c
 * lists the invariants.
 *
 * A sandbox_host and its sandboxes belong to one thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

struct sandbox_limits {
    double case_s;        // wall time of one case, and the processor time (rounded up) of each of its processes
    int64_t mem_bytes;    // address space of a process, and memory of all processes of a sandbox together
    int64_t out_bytes;    // of a case's output and of any one file
    int64_t tmp_bytes;    // of /tmp
    int64_t n_task;       // processes and threads of a sandbox, the driver included
};
extern const struct sandbox_limits sandbox_limits_default;    // 10 s, 1 GiB, 4 MiB, 16 MiB, 32

enum case_status {
    CASE_OK,        // ended by itself; out holds what it wrote
    CASE_ANSWER,    // ran, but its result cannot be an answer (call-based: not a JSON value)
    CASE_TIMEOUT,
    CASE_MEMORY,
    CASE_OUTPUT,     // more output than allowed
    CASE_CRASH,      // an uncaught exception, a signal, a bad exit of the whole sandbox
    CASE_COMPILE,    // not a Python program
    CASE_MISSING,    // the function asked for is not there
    CASE_SANDBOX,    // the sandbox itself failed: nothing is known about the program
};
const char *case_status_name(enum case_status status);    // "time-out", "memory limit", ...

struct sandbox_host;
struct sandbox;
/* Find bubblewrap and /usr/bin/python3, make the filter and prove with a harmless program that it all works and that
 * the sandbox contains. ERR_UNSUPPORTED says precisely what is missing. limits are copied. */
struct sandbox_host *sandbox_host_new(const struct sandbox_limits *limits, struct error *err);
void sandbox_host_free(struct sandbox_host *h);
/* Why the kernel does not limit the memory of whole sandboxes (cgroup.h), so that shared anonymous memory is refused
 * instead; NULL: it does. Borrowed from h. */
const char *sandbox_host_no_cgroups(const struct sandbox_host *h);
/* The modules outside of the standard library that many programs import and that the sandbox's Python does not have (today only
 * numpy is looked for); NULL: none. A program that imports one of them crashes. Borrowed from h. */
const char *sandbox_host_lacks(const struct sandbox_host *h);
/* Take a sandbox; the next is started in the background meanwhile. Returns it for sandbox_free. NULL: see err. */
struct sandbox *sandbox_take(struct sandbox_host *h, struct error *err);
extern const char sandbox_asserts[];    // stands for a function's name: each case's input asserts something (asserts.py)
/* Give it its program: stdin and stdout (function NULL), call-based, or asserted of (sandbox_asserts). CASE_OK: cases may
 * be run. CASE_SANDBOX: see err. */
enum case_status sandbox_load(struct sandbox *s, const char *code, size_t len, const char *function, struct error *err);
/* Run one case for at most wall_s seconds (and never longer than case_s). out is cleared and filled with the output
 * when the status is CASE_OK. After CASE_TIMEOUT, CASE_MEMORY by the sum of its processes, or a crash of the driver the
 * sandbox is dead (sandbox_is_dead) and a new one must be taken and loaded for further cases. */
enum case_status sandbox_run(struct sandbox *s, const char *input, size_t len, double wall_s, struct buf *out, struct error *err);
bool sandbox_is_dead(const struct sandbox *s);
/* Kill everything inside, reap it and free s. NULL is fine. */
void sandbox_free(struct sandbox *s);
