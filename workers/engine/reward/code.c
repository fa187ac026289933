/* code.c - the reward kinds "code" (all tests must pass) and "code_share" (10 times the share of tests passed)
 *
 * Scores as ColossalChat's (coati/distributed): 10 when all tests pass and there is a ```python fence, with
 * the soft over-length punishment; 0 when a test fails; 0 without a fence, though right tests then still count as
 * accurate. A program's own time-out, memory limit or crash is a wrong answer. Only trouble with the sandbox, an
 * external verifier or the data leaves the sample out. Upstream counts an empty list of tests as success; here it is an
 * error of the data. */
#include <inttypes.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/utf8.h"
#include "workers/engine/reward/kind.h"
#include "workers/engine/reward/remote.h"
#include "workers/engine/reward/runner.h"
#include "workers/engine/reward/sandbox/sandbox.h"
#include "workers/engine/reward/tests.h"

#define TOTAL_S 60.0    // of all tests of one program; PRIME gives 6 s, ColossalChat 600 s

struct code {
    bool share;
    struct sandbox_host *host;    // NULL: remote
    struct remote *remote;        // NULL: host
};
static bool open_any(void **self, const struct reward_config *config, bool share, struct error *err)
{
    struct code *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, ERR_NO_MEMORY, "no memory for a code reward");
    struct sandbox_limits limits = sandbox_limits_default;
    if (config->program_timeout_s > 0)
        limits.case_s = config->program_timeout_s;
    c->share = share;
    if (config->code_verifier_api_url)
        c->remote = remote_new(config->code_verifier_api_url, config->code_verifier_key_file, config->program_timeout_s, err);
    else
        c->host = sandbox_host_new(&limits, err);
    if (!c->remote && !c->host) {
        free(c);
        return false;
    }
    *self = c;
    return true;
}

static bool code_open(void **self, const struct reward_config *config, UNUSED const char *arg, struct error *err)
{
    return open_any(self, config, false, err);
}

static bool code_share_open(void **self, const struct reward_config *config, UNUSED const char *arg, struct error *err)
{
    return open_any(self, config, true, err);
}

static void code_close(void *self)
{
    struct code *c = self;
    sandbox_host_free(c->host);
    remote_free(c->remote);
    free(c);
}

/* Cut for a log: no control characters, whole UTF-8. */
static void text_cut(char *to, size_t size, const char *from, size_t len)
{
    utf8_copy(to, size, from, len);
    for (size_t i = 0, n = utf8_cut(from, len, size - 1); i < n; i++)
        to[i] = (unsigned char)to[i] < 32 ? ' ' : to[i];
}

static void program_score(struct code *c, const struct reward_config *config, const struct reward_input *in, struct reward_output *out,
                          const struct tests *t)
{
    const char *code;
    size_t len;
    struct buf first_out = BUF_INIT;
    struct runner_result r = { .status = CASE_MISSING };
    bool fence = program_find(in->response, in->response_len, &code, &len), blank = true;
    for (size_t i = 0; i < len; i++)
        blank = blank && isspace((unsigned char)code[i]);
    out->format_acc = fence;
    if (blank)
        snprintf(out->rule, sizeof out->rule, "code: missing code");
    else if (c->remote)
        r.status = remote_run(c->remote, in, t->n, &r.n_pass, &r.first, &r.tests, &r.err) ? CASE_OK : CASE_SANDBOX;
    else
        runner_run(c->host, t, code, len, &(struct runner_options){ .all = c->share, .whole_s = TOTAL_S }, &r, &first_out);
    out->tests = r.tests;
    if (c->remote && r.status == CASE_OK && r.n_pass < t->n)
        r.status = CASE_ANSWER;
    if (r.status == CASE_SANDBOX) {
        out->score = r.err.code == ERR_TIMEOUT ? SCORE_TIMEOUT : SCORE_ERROR;
        snprintf(out->rule, sizeof out->rule, "code: %s", c->remote ? "verifier error" : "sandbox error");
        log_warn("%s: %s", out->rule, r.err.text);
        goto out;
    }
    out->score = SCORE_OK;
    out->verdict = r.status == CASE_OK ? VERDICT_EQUAL : VERDICT_DIFFERENT;
    out->ans_acc = r.status == CASE_OK;
    if (!blank)
        snprintf(out->rule, sizeof out->rule,
                 r.status == CASE_OK ? "code: all %" PRId64 " tests pass" : "code: %2$s in test %3$" PRId64 " of %1$" PRId64, t->n,
                 case_status_name(r.status), r.first + 1);
    if (r.status != CASE_OK && !blank) {
        text_cut(out->pred, sizeof out->pred, buf_text(&first_out), first_out.len);
        text_cut(out->gold, sizeof out->gold, t->test[r.first].output, t->test[r.first].output_len);
    }
    double share = c->share ? (double)r.n_pass / (double)t->n : r.status == CASE_OK;
    out->reward = fence || config->eval ? share * REWARD_ACC : 0;
    if (r.status == CASE_OK)
        out->reward += reward_length_punishment(config, in);
out:
    buf_release(&first_out);
}

static void code_score(void *self, const struct reward_config *config, const struct reward_input *in, struct reward_output *out, int64_t n)
{
    struct tests t = { 0 };
    struct error err = { 0 };
    bool ok = false;
    for (int64_t i = 0; i < n; i++) {
        int64_t start = clock_ns();
        if (i == 0 || in[i].row != in[i - 1].row) {    // samples of a group share their row
            tests_release(&t);
            ok = tests_read(&t, json_object_get(in[i].row, "test_cases"), &err);
            if (!ok)
                log_warn("code: %s", err.text);
        }
        if (ok) {
            program_score(self, config, &in[i], &out[i], &t);
        } else {
            out[i].score = SCORE_ERROR;
            snprintf(out[i].rule, sizeof out[i].rule, "code: error in test_cases");
        }
        out[i].us = (double)(clock_ns() - start) / 1000;
    }
    tests_release(&t);
}

static bool code_row_check(UNUSED void *self, const json_t *row, struct error *err)
{
    struct tests t;
    if (!json_object_get(row, "test_cases"))
        return error_set(err, ERR_DATA, "'test_cases' is missing; %s",
                         json_object_get(row, "gt_answer")
                             ? "the row has 'gt_answer', for the reward types boxed, think_answer_tags and math"
                             : "use data with tests, or another reward_type");
    if (!tests_read(&t, json_object_get(row, "test_cases"), err))
        return false;
    tests_release(&t);
    return true;
}

/* ColossalChat's README, section "Reward Type". */
#define SYSTEM_PROMPT "You are a helpful assistant."
const struct reward_kind reward_kind_code = {
    .name = "code",
    .system_prompt = SYSTEM_PROMPT,
    .open = code_open,
    .close = code_close,
    .row_check = code_row_check,
    .score = code_score,
};
const struct reward_kind reward_kind_code_share = {
    .name = "code_share",
    .system_prompt = SYSTEM_PROMPT,
    .open = code_share_open,
    .close = code_close,
    .row_check = code_row_check,
    .score = code_score,
};
