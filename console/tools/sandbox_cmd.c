/* sandbox_cmd.c - rollcall sandbox: Python programs as JSON lines in, what they wrote out, each run in a sandbox of its own
 *
 *     in   {"code": "print(6 * 7)", "input": "what it reads"}
 *     out  {"status": "ok", "output": "42\n"}
 * For tools that run a model's programs (examples/environments/tools.py). A line is answered before the next is read. */
#include <stdio.h>
#include <stdlib.h>
#include <jansson.h>
#include "console/tools/jsonl.h"
#include "protocol/base/cli.h"
#include "protocol/base/json_text.h"
#include "protocol/base/subcommand.h"
#include "workers/engine/reward/sandbox/sandbox.h"

/* Run one program. CASE_SANDBOX: err says why. */
static enum case_status program_run(struct sandbox_host *host, const json_t *row, double time_s, struct buf *out, struct error *err)
{
    const json_t *code = json_object_get(row, "code"), *input = json_object_get(row, "input");
    struct sandbox *s = sandbox_take(host, err);
    if (!s)
        return CASE_SANDBOX;
    enum case_status status = sandbox_load(s, json_string_value(code), json_string_length(code), NULL, err);
    if (status == CASE_OK)
        status = sandbox_run(s, json_is_string(input) ? json_string_value(input) : "", json_string_length(input), time_s, out, err);
    sandbox_free(s);
    return status;
}

static bool row_answer(struct sandbox_host *host, const json_t *row, double time_s, struct error *err)
{
    struct buf out = BUF_INIT;
    bool ok = false;
    char *line = NULL;
    json_t *answer = NULL;
    if (!json_is_string(json_object_get(row, "code")))
        return error_set(err, ERR_DATA, "there is no string 'code'");
    enum case_status status = program_run(host, row, time_s, &out, err);
    if (status == CASE_SANDBOX)
        goto out;
    answer = json_object();
    json_object_set_new(answer, "status", json_string(status == CASE_OK ? "ok" : case_status_name(status)));
    json_object_set_new(answer, "output", json_text_new(status == CASE_OK ? buf_text(&out) : ""));
    line = json_text_dump(answer, JSON_COMPACT);
    ok = (line && json_line_print(line, stdout) && fflush(stdout) == 0) || error_set(err, ERR_IO, "cannot write an answer");
out:
    free(line);
    json_decref(answer);
    buf_release(&out);
    return ok;
}

static bool sandbox_cmd(int argc, char **argv, struct error *err)
{
    struct sandbox_limits limits = sandbox_limits_default;
    // clang-format off
    struct cli_option options[] = {
        { "time", "t", CLI_F64, &limits.case_s, "S", "seconds a program may take (default 10)" },
        { "memory", "m", CLI_I64, &limits.mem_bytes, "BYTES", "memory of all its processes (default 1 GiB)" },
    };
    // clang-format on
    struct cli cli = {
        .command = "rollcall sandbox",
        .about =
            "Runs Python programs, contained: lines of {\"code\":TEXT,\"input\":TEXT} in, lines of {\"status\":...,\"output\":TEXT} out. "
            "Status is ok, or why there is no output.",
        .options = options,
        .n_options = ARRAY_SIZE(options)
    };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (!(limits.case_s > 0) || limits.mem_bytes < 1 << 20)
        return error_set(err, ERR_USAGE, "--time must be above 0, and --memory at least a MiB");
    struct jsonl in;
    struct sandbox_host *host = sandbox_host_new(&limits, err);
    if (!host || !jsonl_open(&in, NULL, err)) {
        sandbox_host_free(host);
        return false;
    }
    json_t *row = NULL;
    bool ok;
    while ((ok = jsonl_next(&in, &row, err)) && row) {
        ok = row_answer(host, row, limits.case_s, err) || jsonl_wrap(&in, in.number, err);
        json_decref(row);
        if (!ok)
            break;
    }
    jsonl_close(&in);
    sandbox_host_free(host);
    return ok;
}

const struct subcommand sandbox_subcommand = { "sandbox", sandbox_cmd, "run Python programs in the sandbox, as JSON lines" };
