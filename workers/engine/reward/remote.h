/* remote.h - an external verifier of programs, asked over HTTP: the protocol of ColossalChat's code verifier
 *
 * POST of {"in_outs": test_cases, "generation": the response, "timeout": seconds per test, "debug": false} to the URL as
 * given; the answer is {"result": [...], "metadata": [...]}: 1 or true for a test that passed, anything else for one
 * that did not; it may stop at the first failure. One thread per struct remote. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "workers/engine/reward/reward.h"
struct remote;
/* url: one address, or several with commas between them, which are asked in turn. key_file: its first line is sent as a bearer token;
 * NULL: none. test_timeout_s: time the verifier is asked to allow per test; 0: 10. Does not connect yet. */
struct remote *remote_new(const char *url, const char *key_file, double test_timeout_s, struct error *err);
void remote_free(struct remote *r);
/* Have a program judged by open-instruct's service: POST of {program, tests, max_execution_time} to /test_program or
 * /test_program_stdio of the address, unless it names a path. runtime_s: (n_test) seconds, -1 for a test that did not pass. */
MUST_USE bool remote_tests(struct remote *r, bool stdio, const char *code, size_t len, const json_t *tests, int64_t n_test,
                           double *runtime_s, struct error *err);
/* Have in's response judged on the n_test tests of its row. n_pass: tests passed; first: the first that failed; tests:
 * each that was run. False: after three attempts the verifier could not be reached or gave no valid answer. */
MUST_USE bool remote_run(struct remote *r, const struct reward_input *in, int64_t n_test, int64_t *n_pass, int64_t *first,
                         struct test_results *tests, struct error *err);
