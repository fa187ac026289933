/* programs.h - run a program on the tests of open-instruct's code data, in sandboxes
 *
 * Two forms: assertions, each run in a process of its own that calls the program in another (sandbox/asserts.py), and pairs
 * of input and output. An assertion that cannot be judged so leaves the sample out, with the reason. For the verifiers code and
 * code_stdio, and for the service that answers the same requests. Upstream does not run programs that mention os, threading
 * and others; here they run, since the sandbox contains them. One thread per struct programs. */
#pragma once
#include <jansson.h>
#include "workers/engine/reward/runner.h"

enum program_form {
    PROGRAM_ASSERTS,    // tests: ["assert add(1, 2) == 3", ...]
    PROGRAM_STDIO,      // tests: [{"input": "1\n", "output": "2\n"}, ...]
};
#define PROGRAM_TESTS_MAX 4096    // of one program
/* Read tests: a list, or text that is JSON. ERR_DATA: they are neither, or Python's pickles, which are never opened. On
 * failure t holds nothing. */
MUST_USE bool program_tests_read(struct tests *t, const json_t *tests, enum program_form form, struct error *err);
/* Run code on t, each test for at most test_s seconds. runtime_s: (t->n), see runner.h. False: a sandbox failed, or no memory. */
MUST_USE bool program_tests_run(struct sandbox_host *host, const struct tests *t, enum program_form form, const char *code, size_t len,
                                double test_s, double *runtime_s, struct runner_result *r, struct error *err);
/* The last ``` block of a response with or without "python" after the fence, stripped; the whole response without one. */
bool program_block(const char *text, size_t len, const char **code, size_t *code_len);
