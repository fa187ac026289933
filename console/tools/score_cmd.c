/* score_cmd.c - rollcall score: JSON lines with a response and its gt_answer in, one line with its score out */
#include <inttypes.h>
#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/tools/jsonl.h"
#include "protocol/base/cli.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/subcommand.h"
#include "protocol/settings/run_config.h"
#include "workers/engine/reward/reward.h"

#define BATCH 64          // lines scored at a time, so that programs and sandboxes work in parallel
#define BATCH_MAX 4096    // more only for the lines of one group
#define LINE_MAX_BYTES (64u << 20)

static const char *const verdict_name[] = {
    [VERDICT_DIFFERENT] = "different",
    [VERDICT_EQUAL] = "equal",
    [VERDICT_CANNOT_TELL] = "cannot_tell",
};

/* Fill `in` from the line; the row owns the text. A line is a group of its own, unless it has a number as its "group". max_new_tok: a
 * response of this length counts as cut unless it says how it ended; 0: none. */
static bool input_read(const char *path, int64_t line, const char *text, size_t len, int64_t max_new_tok, struct reward_input *in,
                       json_t **row, struct error *err)
{
    json_error_t je;
    *row = json_text_read(text, len, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &je);
    if (!*row || !json_is_object(*row))
        return error_set(err, ERR_DATA, "%s:%" PRId64 ": not a JSON object: %s", path, line, *row ? "another kind" : je.text);
    const json_t *response = json_object_get(*row, "response"), *n_tok = json_object_get(*row, "n_tok");
    const json_t *finish = json_object_get(*row, "finish_reason");
    if (!json_is_string(response))
        return error_set(err, ERR_DATA, "%s:%" PRId64 ": 'response' must be a string", path, line);
    *in = (struct reward_input){ .response = json_string_value(response), .response_len = json_string_length(response), .row = *row };
    in->tool_ok = json_is_true(json_object_get(*row, "tool_ok"));
    const json_t *group = json_object_get(*row, "group");
    if (group && (!json_is_integer(group) || json_integer_value(group) < 0))
        return error_set(err, ERR_DATA, "%s:%" PRId64 ": 'group' must be a number from 0", path, line);
    in->group = group ? json_integer_value(group) : -line;
    if (!n_tok && !finish)
        return true;
    if (n_tok && (!json_is_integer(n_tok) || json_integer_value(n_tok) < 0))
        return error_set(err, ERR_DATA, "%s:%" PRId64 ": 'n_tok' must be a count", path, line);
    const char *why = json_string_value(finish);
    if (finish && (!why || (strcmp(why, "stop") != 0 && strcmp(why, "length") != 0)))
        return error_set(err, ERR_DATA, "%s:%" PRId64 ": 'finish_reason' must be \"stop\" or \"length\"", path, line);
    in->has_length = true;
    in->n_tok = n_tok ? json_integer_value(n_tok) : -1;
    bool cut = finish ? why[0] == 'l' : max_new_tok > 0 && in->n_tok >= max_new_tok;
    in->finish = cut ? FINISH_LENGTH : FINISH_STOP;
    return true;
}

static bool output_print(const struct reward *r, const struct reward_output *o, struct error *err)
{
    bool ok = o->score == SCORE_OK;
    json_t *line = json_object();
    json_object_set_new(line, "reward", ok && isfinite(o->reward) ? json_real(o->reward) : json_null());
    json_object_set_new(line, "format_acc", isnan(o->format_acc) ? json_null() : json_integer(o->format_acc > 0));
    json_object_set_new(line, "ans_acc", isnan(o->ans_acc) ? json_null() : json_integer(o->ans_acc > 0));
    json_object_set_new(line, "verdict", json_string(verdict_name[o->verdict]));
    json_object_set_new(line, "pred", json_text_new(o->pred));
    json_object_set_new(line, "gold", json_text_new(o->gold));
    json_object_set_new(line, "rule", json_text_new(o->rule));
    for (int k = 0; k < reward_n_part(r); k++) {
        if (k == 0)
            json_object_set_new(line, "parts", json_object());
        json_object_set_new(json_object_get(line, "parts"), reward_part_name(r, k),
                            isfinite(o->part[k]) ? json_real(o->part[k]) : json_null());
    }
    if (o->tests.n > 0)
        json_object_set_new(line, "test_results", test_results_json(&o->tests));
    json_object_set_new(line, "us", json_real(round(o->us * 10) / 10));
    char *text = json_text_dump(line, JSON_COMPACT | JSON_REAL_PRECISION(10));
    json_decref(line);
    bool done = text && json_line_print(text, stdout);
    free(text);
    return done || error_set(err, ERR_IO, "cannot write a score");
}

struct tally {
    int64_t n, n_right, n_format, n_left_out;
    int64_t n_unknown_right, n_unknown_format;    // the reward does not say
    double reward;
};

/* n of n_known as a share, "unknown" of none. Returns out. */
static const char *share_text(int64_t n, int64_t n_known, char *out, size_t size)
{
    if (n_known > 0)
        snprintf(out, size, "%.4f", (double)n / (double)n_known);
    else
        snprintf(out, size, "unknown");
    return out;
}

/* Lines that wait to be scored. */
struct batch {
    struct reward_input in[BATCH_MAX];
    struct reward_output out[BATCH_MAX];
    json_t *row[BATCH_MAX];
    int64_t n;
};

/* Score the first n lines, print their scores, and move what follows to the front. */
static bool batch_score(struct reward *r, struct batch *b, int64_t n, struct tally *t, struct error *err)
{
    bool ok = true;
    if (n > 0)
        reward_score(r, b->in, b->out, n);
    for (int64_t i = 0; i < n; i++) {
        const struct reward_output *o = &b->out[i];
        ok = ok && output_print(r, o, err);
        t->n++;
        t->n_right += o->ans_acc > 0;
        t->n_format += o->format_acc > 0;
        t->n_unknown_right += isnan(o->ans_acc);
        t->n_unknown_format += isnan(o->format_acc);
        t->n_left_out += o->score != SCORE_OK;
        t->reward += o->score == SCORE_OK ? o->reward : 0;
        json_decref(b->row[i]);
    }
    b->n -= n;
    memmove(b->in, b->in + n, (size_t)b->n * sizeof *b->in);
    memmove(b->row, b->row + n, (size_t)b->n * sizeof(json_t *));
    return ok;
}

/* Score lines before the last one once there are enough, unless its group may still grow. */
static bool batch_grown(struct reward *r, struct batch *b, struct tally *t, struct error *err)
{
    int64_t last = b->n - 1;
    if (b->n > BATCH && b->in[last].group != b->in[last - 1].group)
        return batch_score(r, b, last, t, err);
    if (b->n == BATCH_MAX)
        return error_set(err, ERR_DATA, "group %" PRId64 " has more than %d lines", b->in[last].group, BATCH_MAX - 1);
    return true;
}

static bool file_score(struct reward *r, const char *path, FILE *f, int64_t max_new_tok, struct tally *t, struct error *err)
{
    struct batch *b = calloc(1, sizeof *b);
    char *text = NULL;
    size_t cap = 0;
    int64_t line = 0;
    bool ok = false;
    ssize_t len;
    if (!b)
        return error_set(err, ERR_NO_MEMORY, "no memory for responses");
    while (errno = 0, (len = getline(&text, &cap, f)) >= 0) {
        line++;
        if ((size_t)len > LINE_MAX_BYTES) {
            error_set(err, ERR_DATA, "%s:%" PRId64 ": a line of more than %u bytes", path, line, LINE_MAX_BYTES);
            goto out;
        }
        if (strspn(text, " \t\r\n") == (size_t)len)
            continue;
        struct reward_input *in = &b->in[b->n];
        json_t **row = &b->row[b->n++];
        TRY(input_read(path, line, text, (size_t)len, max_new_tok, in, row, err));
        TRY(batch_grown(r, b, t, err));
    }
    if (ferror(f)) {
        error_errno(err, "cannot read '%s'", path);
        goto out;
    }
    TRY(batch_score(r, b, b->n, t, err));
    ok = true;
out:
    for (int64_t i = 0; i < b->n; i++)
        json_decref(b->row[i]);
    free(b);
    free(text);
    return ok;
}

static bool score_cmd(int argc, char **argv, struct error *err)
{
    struct reward_config config = { 0 }, run;
    struct verify_options verify = VERIFY_OPTIONS_DEFAULT;
    struct run_config *settings = NULL;
    _Atomic int64_t judge_left;
    const char *input = NULL, *run_file = NULL;
    bool summary = false;
    // clang-format off
    struct cli_option options[] = {
        { "reward-type", "rt", CLI_STR, &config.type, "TYPE",
          "boxed, think_answer_tags, math, code, code_share, program:CMD, verify (what each line names in dataset, with its ground_truth), "
          "verify:NAME, judge:URL, or '0.8*boxed + 0.2*program:CMD'" },
        { "input", "i", CLI_STR, &input, "FILE", "JSON lines with response and gt_answer (and the number of their group, for a reward that compares them); - reads standard input" },
        { "config", "c", CLI_STR, &run_file, "FILE", "a run file: its reward settings apply (verification_reward, format_reward, ...), and its reward_type without --reward-type" },
        { "eval", NULL, CLI_FLAG, &config.eval, NULL,
          "score as an evaluation does: a right answer needs no valid format" },
        { "max-new-tokens", "mnt", CLI_I64, &config.max_new_tok, "N", "longest response, for the length rules: a line's n_tok gives its length, its finish_reason (stop or length) says whether it "
          "was cut; without one, N tokens or more count as cut" },
        { "soft-over-length-punishment", NULL, CLI_FLAG, &config.soft_over_length_punishment, NULL,
          "punish lengths near the limit (DAPO, eq. 13)" },
        { "cache-length", NULL, CLI_I64, &config.cache_len, "N",
          "how near, in tokens (0, the default: the smaller of 1024 and a quarter of N)" },
        { "code-verifier-api-url", NULL, CLI_STR, &config.code_verifier_api_url, "URL",
          "an external verifier for code, or several with commas between them" },
        { "code-verifier-key-file", NULL, CLI_STR, &config.code_verifier_key_file, "FILE", "send the bearer token in this file to it" },
        { "program-timeout", NULL, CLI_F64, &config.program_timeout_s, "S", "time limit for a reward program's answer or one test of code, in seconds" },
        { "summary", NULL, CLI_FLAG, &summary, NULL, "print the mean scores to stderr at the end" },
    };
    // clang-format on
    struct cli cli = { .command = "rollcall score",
                       .about = "Scores responses as training and evaluation do.",
                       .options = options,
                       .n_options = ARRAY_SIZE(options) };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if ((!config.type && !run_file) || !input)
        return error_set(err, ERR_USAGE, "--reward-type (or --config) and --input are needed");
    if (run_file) {
        if (!(settings = malloc(sizeof *settings)))
            return error_set(err, ERR_NO_MEMORY, "no memory for a run file");
        run_config_init(settings);
        if (!run_config_read(settings, run_file, err)) {
            free(settings);
            return false;
        }
        run = reward_config_of(settings, &verify);
        config.type = config.type ? config.type : run.type;
        config.max_new_tok = config.max_new_tok ? config.max_new_tok : run.max_new_tok;
        config.response_format_tags = run.response_format_tags;
        config.soft_over_length_punishment = config.soft_over_length_punishment || run.soft_over_length_punishment;
        config.cache_len = config.cache_len ? config.cache_len : run.cache_len;
        config.code_verifier_api_url = config.code_verifier_api_url ? config.code_verifier_api_url : run.code_verifier_api_url;
        config.code_verifier_key_file = config.code_verifier_key_file ? config.code_verifier_key_file : run.code_verifier_key_file;
        config.program_timeout_s = config.program_timeout_s > 0 ? config.program_timeout_s : run.program_timeout_s;
    }
    if (config.code_verifier_api_url)
        verify.code_api_url = config.code_verifier_api_url;
    if (config.code_verifier_key_file)
        verify.code_key_file = config.code_verifier_key_file;
    if (settings && settings->llm_judge_budget > 0) {
        atomic_init(&judge_left, settings->llm_judge_budget);
        verify.llm_judge_left = &judge_left;
    }
    config.program_timeout_s = config.program_timeout_s > 0 ? config.program_timeout_s : 10;
    config.verify = &verify;
    struct reward *r = reward_new(&config, err);
    free(settings);
    if (!r)
        return false;
    bool is_stdin = path_is_stream(input);
    FILE *f = is_stdin ? stdin : fopen(input, "re");
    struct tally t = { 0 };
    bool ok = f ? file_score(r, is_stdin ? "<stdin>" : input, f, config.max_new_tok, &t, err) : error_errno(err, "cannot open '%s'", input);
    if (f && !is_stdin)
        fclose(f);
    reward_free(r);
    char format[32], right[32];
    if (ok && summary && t.n > 0)
        fprintf(stderr, "%" PRId64 " scored: reward %.4f, format_acc %s, ans_acc %s, left out %" PRId64 "\n", t.n,
                t.n > t.n_left_out ? t.reward / (double)(t.n - t.n_left_out) : NAN,
                share_text(t.n_format, t.n - t.n_unknown_format, format, sizeof format),
                share_text(t.n_right, t.n - t.n_unknown_right, right, sizeof right), t.n_left_out);
    return ok;
}

const struct subcommand score_subcommand = { "score", score_cmd, "score responses in a JSON lines file" };
