/* runner.h - run a program on its tests, in sandboxes
 *
 * One sandbox for all tests of a program, and a new one after a test that kills it. One thread per sandbox_host. */
#pragma once
#include "protocol/base/buf.h"
#include "workers/engine/reward/reward.h"
#include "workers/engine/reward/sandbox/sandbox.h"
#include "workers/engine/reward/tests.h"

struct runner_options {
    bool all;                // run the tests after one that failed, too
    double whole_s;          // of all tests together
    double test_s;           // of one; 0: the sandbox's
    const char *left_out;    // of assertions: an output that begins so says why nothing can be known of the program; else NULL
    double *runtime_s;       // (t->n) seconds of each test, -1 for one that did not pass or was not run; NULL: not wanted
};
/* What is known about a program once its tests have run. */
struct runner_result {
    enum case_status status;      // of the first test that did not pass; CASE_OK: all did
    int64_t first;                // its number
    int64_t n_pass;               // tests passed (up to the first failure unless a share is wanted)
    struct test_results tests;    // each test that was run
    struct error err;             // of CASE_SANDBOX
};

/* Run the tests in order. first_out gets the start of the first wrong output. */
void runner_run(struct sandbox_host *host, const struct tests *t, const char *code, size_t len, const struct runner_options *options,
                struct runner_result *r, struct buf *first_out);
