/* code.c - the verifiers code and code_stdio: the share of tests that the response's program passes
 *
 * open-instruct's CodeVerifier: a share below code_pass_rate_reward_threshold counts as 0; with code_apply_perf_penalty each
 * passed test counts for the share of code_max_execution_time that it left. Run in sandboxes here, or by a service that
 * answers open-instruct's requests (code_verifier_api_url). Trouble with either leaves the sample out; there it scores 0. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "workers/engine/reward/remote.h"
#include "workers/engine/reward/verify/programs.h"
#include "workers/engine/reward/verify/verify.h"

static bool tests_check(const json_t *truth, enum program_form form, struct error *err)
{
    struct tests t;
    if (!program_tests_read(&t, truth, form, err))
        return false;
    tests_release(&t);
    return true;
}

bool verify_code_check(UNUSED struct verify_host *h, const json_t *truth, struct error *err)
{
    return tests_check(truth, PROGRAM_ASSERTS, err);
}

bool verify_code_stdio_check(UNUSED struct verify_host *h, const json_t *truth, struct error *err)
{
    return tests_check(truth, PROGRAM_STDIO, err);
}

/* Make what runs programs when the first one comes: most rewards run none. */
static bool runner_open(struct verify_host *h, struct error *err)
{
    struct sandbox_limits limits = sandbox_limits_default;
    if (h->options.code_api_url)
        return h->remote
               || (h->remote = remote_new(h->options.code_api_url, h->options.code_key_file, h->options.code_max_execution_time, err))
                      != NULL;
    limits.case_s = MAX(ceil(h->options.code_max_execution_time), 1);
    return h->sandboxes || (h->sandboxes = sandbox_host_new(&limits, err)) != NULL;
}

/* The score of the tests' run times, -1 for those that did not pass. */
static double share_score(const struct verify_options *o, const double *runtime_s, int64_t n, int64_t *n_pass)
{
    double left = 0;
    *n_pass = 0;
    for (int64_t i = 0; i < n; i++) {
        *n_pass += runtime_s[i] >= 0;
        left += runtime_s[i] >= 0 ? (o->code_max_execution_time - runtime_s[i]) / o->code_max_execution_time : 0;
    }
    double share = (double)*n_pass / (double)n;
    if (share < o->code_pass_rate_reward_threshold || share == 0)
        return 0;
    return o->code_apply_perf_penalty ? left / (double)n : share;
}

static void code_score(struct verify_host *h, const struct verify_input *in, enum program_form form, struct verify_result *out)
{
    struct tests t = { 0 };
    struct error err = { 0 };
    struct runner_result r = { .status = CASE_OK };
    const char *code;
    size_t len;
    double *runtime_s = NULL;
    bool ok = false;
    int64_t n_pass;
    bool fence = program_block(in->text.s, in->text.len, &code, &len);
    TRY(runner_open(h, &err));
    TRY(program_tests_read(&t, in->truth, form, &err));
    runtime_s = pool_take(&h->pool, (size_t)t.n * sizeof *runtime_s);
    if (!runtime_s) {
        error_set(&err, ERR_NO_MEMORY, "no memory for tests");
        goto out;
    }
    if (h->options.code_api_url)
        TRY(remote_tests(h->remote, form == PROGRAM_STDIO, code, len, in->truth, t.n, runtime_s, &err));
    else
        TRY(program_tests_run(h->sandboxes, &t, form, code, len, h->options.code_max_execution_time, runtime_s, &r, &err));
    out->score = share_score(&h->options, runtime_s, t.n, &n_pass);
    for (int64_t i = 0; i < t.n; i++)
        test_results_add(&out->tests, runtime_s[i] >= 0 ? TEST_PASSED : TEST_FAILED);
    if (n_pass == t.n)
        snprintf(out->why, sizeof out->why, "all %" PRId64 " tests pass", t.n);
    else
        snprintf(out->why, sizeof out->why, "%" PRId64 " of %" PRId64 " tests pass%s%s%s", n_pass, t.n, r.status != CASE_OK ? "; " : "",
                 r.status != CASE_OK ? case_status_name(r.status) : "", fence ? "" : "; no ``` block");
    ok = true;
out:
    if (!ok)
        verify_fail(out, err.code == ERR_TIMEOUT ? SCORE_TIMEOUT : SCORE_ERROR, "%s", err.text);
    tests_release(&t);
}

void verify_code(struct verify_host *h, const struct verify_input *in, struct verify_result *out)
{
    code_score(h, in, PROGRAM_ASSERTS, out);
}

void verify_code_stdio(struct verify_host *h, const struct verify_input *in, struct verify_result *out)
{
    code_score(h, in, PROGRAM_STDIO, out);
}
