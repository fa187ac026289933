/* rollcall logprobs: log-probs of given ids by the trainer's path, one line each, in the order of the input */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "console/tools/jsonl.h"
#include "workers/engine/load/tool_model.h"
#include "protocol/base/buf.h"
#include "protocol/base/cli.h"
#include "protocol/base/subcommand.h"
#include "workers/engine/model/model.h"
#include "workers/engine/pass/pass.h"

struct request {
    int64_t number;    // its line number, from 1
    int32_t *id;       // (n) owned
    int64_t n, prompt_len;
    float temperature;
};
struct logprobs {
    struct tool_model tool;
    const char *input;
    int64_t batch_tok, max_len;
    struct request *request;    // (n_request)
    int64_t n_request;
    // one packed batch
    int64_t max_tok, max_seq;
    int32_t *token, *target, *cu;
    float *temperature, *logp;
    struct buf line;
};

static bool request_parse(const json_t *row, const struct model_config *mc, struct request *r, struct error *err)
{
    double temperature = 1;
    if (!row_ids(row, "ids", &r->id, &r->n, err) || !row_i64(row, "prompt_len", 1, INT32_MAX, &r->prompt_len, err)
        || (json_object_get(row, "temperature") && !row_f64(row, "temperature", &temperature, err)))
        return false;
    r->temperature = temperature > 0 ? (float)temperature : 1;    // greedy samples are recorded at temperature 1
    if (!(temperature >= 0) || temperature > 100)
        return error_set(err, ERR_DATA, "'temperature' is %g; it must be between 0 and 100", temperature);
    if (r->prompt_len > r->n)
        return error_set(err, ERR_DATA, "'prompt_len' is %" PRId64 ", but there are only %" PRId64 " ids", r->prompt_len, r->n);
    if (r->n > config_longest(mc))
        return error_set(err, ERR_DATA, "'ids' has %" PRId64 " tokens; the model takes at most %" PRId64, r->n, config_longest(mc));
    for (int64_t i = 0; i < r->n; i++)
        if (r->id[i] >= mc->vocab)
            return error_set(err, ERR_DATA, "'ids'[%" PRId64 "] is %d; the model knows 0 to %" PRId64, i, r->id[i], mc->vocab - 1);
    return true;
}

static bool requests_read(struct logprobs *l, struct error *err)
{
    struct jsonl in = { 0 };
    json_t *row = NULL;
    bool ok = false;
    TRY(jsonl_open(&in, l->input, err));
    for (int64_t cap = 0;;) {
        TRY(jsonl_next(&in, &row, err));
        if (!row)
            break;
        if (l->n_request == cap) {
            cap = cap ? cap * 2 : 256;
            struct request *grown = realloc(l->request, (size_t)cap * sizeof *grown);
            if (!grown) {
                error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " lines", cap);
                goto out;
            }
            l->request = grown;
        }
        struct request *r = &l->request[l->n_request++];
        *r = (struct request){ .number = in.number };
        if (!request_parse(row, model_config(l->tool.model), r, err)) {
            jsonl_wrap(&in, in.number, err);
            goto out;
        }
        l->max_tok = MAX(l->max_tok, r->n);
        json_decref(row);
        row = NULL;
    }
    ok = true;
out:
    json_decref(row);
    jsonl_close(&in);
    return ok;
}

/* Pack requests from first on end to end, up to the budget; returns the index after the last. */
static int64_t batch_pack(struct logprobs *l, int64_t first, struct model_batch *batch)
{
    int64_t n = 0, at = 0, i = first;
    for (; i < l->n_request && n < l->max_seq && at + l->request[i].n <= l->max_tok; i++) {
        const struct request *r = &l->request[i];
        l->cu[n++] = (int32_t)at;
        for (int64_t k = 0; k < r->n; k++) {
            l->token[at + k] = r->id[k];
            l->target[at + k] = k + 1 >= r->prompt_len && k + 1 < r->n ? r->id[k + 1] : -1;
            l->temperature[at + k] = r->temperature;
        }
        at += r->n;
    }
    l->cu[n] = (int32_t)at;
    *batch = (struct model_batch){ .n_seq = n, .n_tok = at, .token = l->token, .cu_tok = l->cu };
    return i;
}

static bool request_print(struct logprobs *l, const struct request *r, const float *logp, struct error *err)
{
    buf_clear(&l->line);
    buf_str(&l->line, "{\"logprobs\":[");
    for (int64_t k = r->prompt_len - 1; k + 1 < r->n; k++)
        if (isfinite(logp[k]))
            buf_fmt(&l->line, k >= r->prompt_len ? ",%.9g" : "%.9g", (double)logp[k]);
        else
            return error_set(err, ERR_DATA,
                             "line %" PRId64 ": the log-prob of ids[%" PRId64 "] is %g; the weights contain numbers that are not "
                             "finite, or it is not a token",
                             r->number, k + 1, (double)logp[k]);
    buf_str(&l->line, "]}\n");
    if (l->line.failed)
        return error_set(err, ERR_NO_MEMORY, "no memory for the output of line %" PRId64, r->number);
    return fwrite(l->line.data, 1, l->line.len, stdout) == l->line.len || error_errno(err, "cannot write the output");
}

static bool requests_run(struct logprobs *l, struct error *err)
{
    bool ok = false;
    struct model_run *run = NULL;
    int64_t longest = l->max_tok;
    l->max_tok = MAX(l->max_tok, l->batch_tok);
    l->max_seq = MIN(l->n_request, l->max_tok);
    size_t n = (size_t)l->max_tok;
    l->token = malloc(n * sizeof *l->token);
    l->target = malloc(n * sizeof *l->target);
    l->temperature = malloc(n * sizeof *l->temperature);
    l->logp = malloc(n * sizeof *l->logp);
    l->cu = malloc(((size_t)l->max_seq + 1) * sizeof *l->cu);
    if (!l->token || !l->target || !l->temperature || !l->logp || !l->cu) {
        error_set(err, ERR_NO_MEMORY, "no memory for batches of %zu tokens", n);
        goto out;
    }
    struct run_limits limits = { .max_tok = l->max_tok, .max_seq = l->max_seq, .max_seq_tok = longest };
    model_length_set(l->tool.model, MAX(longest, l->max_len));
    TRY((run = model_run_new(l->tool.model, &limits, err)) != NULL);
    for (int64_t first = 0, next; first < l->n_request; first = next) {
        struct model_batch batch;
        next = batch_pack(l, first, &batch);
        TRY(model_score(run, &batch, l->target, l->temperature, l->logp, NULL, err));
        for (int64_t i = first; i < next; i++)
            TRY(request_print(l, &l->request[i], l->logp + l->cu[i - first], err));
    }
    ok = true;
out:
    model_run_free(run);
    return ok;
}

static bool logprobs_cmd(int argc, char **argv, struct error *err)
{
    struct logprobs l = { .tool = TOOL_MODEL_DEFAULT, .batch_tok = 4096 };
    // clang-format off
    struct cli_option options[] = {
        TOOL_MODEL_OPTIONS(&l.tool),
        {"input", "i", CLI_STR, &l.input, "FILE",
         "lines of {\"ids\":[...],\"prompt_len\":N,\"temperature\":T} (default: standard "
         "input; T 1)"},
        {"batch-tokens", NULL, CLI_I64, &l.batch_tok, "N",
         "tokens in one pass (default 4096); changes the speed, never the result"},
        {"max-model-len", NULL, CLI_I64, &l.max_len, "N",
         "longest sequence of the run that drew them (default: of the input); longrope has other frequencies for long ones"},
    };
    // clang-format on
    struct cli cli = { .command = "rollcall logprobs",
                       .options = options,
                       .n_options = ARRAY_SIZE(options),
                       .about = "Prints {\"logprobs\":[...]} of the ids after the prompt, computed as in training. Numbers read back "
                                "to the same bits." };
    bool ok = false;
    if (!cli_parse(&cli, argc, argv, err))
        return false;
    if (cli.help_wanted)
        return true;
    if (l.batch_tok < 1 || l.batch_tok > 1 << 24)
        return error_set(err, ERR_USAGE, "--batch-tokens is %" PRId64 "; it must be between 1 and %d", l.batch_tok, 1 << 24);
    if (l.max_len < 0)
        return error_set(err, ERR_USAGE, "--max-model-len is %" PRId64 "; it must be at least 1, or 0 for the longest line", l.max_len);
    TRY(tool_model_load(&l.tool, false, err));
    TRY(requests_read(&l, err));
    TRY(l.n_request == 0 || requests_run(&l, err));
    ok = true;
out:
    for (int64_t i = 0; i < l.n_request; i++)
        free(l.request[i].id);
    free(l.request);
    free(l.token);
    free(l.target);
    free(l.temperature);
    free(l.logp);
    free(l.cu);
    buf_release(&l.line);
    tool_model_release(&l.tool);
    return ok;
}

const struct subcommand logprobs_subcommand = { "logprobs", logprobs_cmd, "log-probs of given ids, by the trainer's path" };
