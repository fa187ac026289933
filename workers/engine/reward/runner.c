#include "workers/engine/reward/runner.h"
#include <inttypes.h>
#include <string.h>
#include "protocol/base/clock.h"

#define LOAD_MAX 8     // each spare killed together with its zygote uses one
#define AGAIN_MAX 4    // one kill may use two: the sandbox that ran, and a spare loaded before the kill reached it

/* Take a sandbox and load the program. *s is NULL after a failure. */
static enum case_status program_load(struct sandbox_host *host, struct sandbox **s, const char *code, size_t len, const char *function,
                                     struct error *err)
{
    enum case_status status = CASE_SANDBOX;
    for (int attempt = 0; attempt < LOAD_MAX && status == CASE_SANDBOX; attempt++) {    // spares may have died
        *s = sandbox_take(host, err);
        if (!*s)
            return CASE_SANDBOX;
        status = sandbox_load(*s, code, len, function, err);
        if (status != CASE_OK) {
            sandbox_free(*s);
            *s = NULL;
        }
    }
    return status;
}

static enum test_code code_of(enum case_status status)
{
    switch (status) {
    case CASE_OK: return TEST_PASSED;
    case CASE_ANSWER: return TEST_WRONG;
    case CASE_COMPILE:
    case CASE_MISSING: return TEST_NO_PROGRAM;
    case CASE_TIMEOUT:
    case CASE_MEMORY:
    case CASE_OUTPUT:
    case CASE_CRASH:
    case CASE_SANDBOX: break;
    }
    return TEST_FAILED;
}

void runner_run(struct sandbox_host *host, const struct tests *t, const char *code, size_t len, const struct runner_options *options,
                struct runner_result *r, struct buf *first_out)
{
    struct sandbox *s = NULL;
    struct buf out = BUF_INIT;
    int64_t end = clock_ms() + (int64_t)(options->whole_s * 1000);
    int n_again = 0;
    *r = (struct runner_result){ .status = CASE_OK };
    for (int64_t i = 0; i < t->n; i++) {
        enum case_status status = CASE_OK;
        bool ok = false;
        double left = (double)(end - clock_ms()) / 1000;
        int64_t start = 0;
        if (left <= 0)
            status = CASE_TIMEOUT;
        if (status == CASE_OK && !s)
            status = program_load(host, &s, code, len, options->left_out ? sandbox_asserts : t->function, &r->err);
        if (status == CASE_OK) {
            start = clock_ns();
            status = sandbox_run(s, t->test[i].input, t->test[i].input_len, options->test_s > 0 ? MIN(left, options->test_s) : left, &out,
                                 &r->err);
        }
        if (status == CASE_SANDBOX && s && n_again < AGAIN_MAX) {    // killed, but not by the program: run the same test once more
            n_again++;
            sandbox_free(s);
            s = NULL;
            i--;
            continue;
        }
        size_t prefix = options->left_out ? strlen(options->left_out) : 0;
        if (status == CASE_OK && prefix && out.len > prefix && memcmp(buf_text(&out), options->left_out, prefix) == 0) {
            error_set(&r->err, ERR_UNSUPPORTED, "test %" PRId64 ": %.300s", i + 1, buf_text(&out) + prefix);
            status = CASE_SANDBOX;
        }
        if (status == CASE_OK && !test_compare(t, i, buf_text(&out), out.len, &ok, &r->err))
            status = CASE_SANDBOX;
        if (status == CASE_OK && !ok)
            status = CASE_ANSWER;
        r->n_pass += status == CASE_OK;
        if (options->runtime_s)
            options->runtime_s[i] = status == CASE_OK ? (double)(clock_ns() - start) / 1e9 : -1;
        if (status != CASE_SANDBOX)    // otherwise nothing is known about the test
            test_results_add(&r->tests, code_of(status));
        if (status != CASE_OK && r->status == CASE_OK) {
            r->status = status;
            r->first = i;
            if (status == CASE_ANSWER)
                buf_add(first_out, buf_text(&out), MIN(out.len, 256));
        }
        if (status == CASE_SANDBOX)
            r->status = status;    // nothing is known about this test, so the share is unknown too
        if (status == CASE_SANDBOX || status == CASE_COMPILE || status == CASE_MISSING || (status != CASE_OK && !options->all) || left <= 0)
            break;
        if (s && sandbox_is_dead(s)) {
            sandbox_free(s);
            s = NULL;
        }
    }
    sandbox_free(s);
    buf_release(&out);
}
