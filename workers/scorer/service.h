/* service.h - rollcall scorer --listen: programs judged over HTTP, for trainers that ask a code verifier
 *
 * Answers ColossalChat's request (POST / or /check_correctness: in_outs, generation, timeout) and open-instruct's (POST
 * /test_program and /test_program_stdio: program, tests, max_execution_time); GET /health. Programs run in the same
 * sandboxes as a run's. */
#pragma once
#include "protocol/base/error.h"
/* The command; argv[0] is its name. Returns when SIGTERM or SIGINT has come and what was under way is answered. */
bool service_cmd(int argc, char **argv, struct error *err);
