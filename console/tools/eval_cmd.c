/* rollcall eval: sample answers to a dataset's problems, score them, print the counts as one line of JSON */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "console/tools/sampling_options.h"
#include "workers/engine/load/tool_model.h"
#include "console/tools/jsonl.h"
#include "protocol/base/buf.h"
#include "protocol/base/cli.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/base/json_text.h"
#include "protocol/base/subcommand.h"
#include "workers/engine/model/model.h"
#include "workers/engine/sampler/completion.h"
#include "workers/engine/sampler/eval.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/sampler/prompt.h"
#include "workers/engine/reward/reward.h"
#include "workers/engine/data/dataset.h"
#include "workers/engine/text/tokenizer.h"

struct problem {
    json_t *row;                // owned
    struct token_list token;    // its prompt
    bool dropped;
    struct buf lines;    // its records, until they are written in order
    bool done;
};
struct eval {
    struct tool_model tool;
    struct sampling_options sampling;
    struct dataset *data;
    const char *dataset, *reward_type, *system_prompt, *output, *code_url, *tags;
    bool own_system_prompt;       // use the reward type's, whatever the model's run has
    char of_run[RUN_TEXT_MAX];    // the system prompt of the run that has saved the model; "": there is none, or it has none of its own
    int64_t n, seed, limit;
    struct reward *reward;
    struct problem *problem;    // (n_problem)
    int64_t n_problem, n_written;
    int64_t n_dropped, n_cut;
    struct eval_tally tally;
    FILE *records;
};

/* A checkpoint is evaluated with the system prompt that its run trains with: RUN/run.yaml of RUN/checkpoints/step-N. */
static void run_system_find(struct eval *e, struct run_config *c)
{
    char path[4200];
    struct error err;
    snprintf(path, sizeof path, "%s/../../run.yaml", e->tool.dir);
    run_config_init(c);
    if (!path_exists(path))
        return;
    if (!run_config_read(c, path, &err)) {
        log_warn("%s; the system prompt of its run is not known: give it with --system-prompt", err.text);
        return;
    }
    snprintf(e->of_run, sizeof e->of_run, "%s", c->system_prompt);
    if (e->of_run[0])
        e->system_prompt = e->of_run;
}

static bool system_choose(struct eval *e, struct error *err)
{
    if (e->system_prompt || e->own_system_prompt)
        return true;
    struct run_config *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, ERR_NO_MEMORY, "no memory for settings");
    run_system_find(e, c);
    free(c);
    return true;
}

static void system_print(const struct prompt_maker *maker)
{
    struct buf text = BUF_INIT;
    buf_str(&text, "system prompt: ");
    prompt_maker_system(maker, &text);
    fputs(buf_text(&text), stderr);
    buf_release(&text);
}

static bool problems_read(struct eval *e, struct error *err)
{
    struct prompt_maker maker = { .encoder = e->tool.encoder,
                                  .template = e->tool.template,
                                  .system_prompt = prompt_system(e->system_prompt, e->reward_type),
                                  .system_is_rewards = !e->system_prompt,
                                  .max_tok = sampling_options_max_prompt(&e->sampling, e->tool.model),
                                  .long_prompt = e->sampling.long_prompt };
    int64_t n = dataset_n_row(e->data);
    if (e->limit > 0)
        n = MIN(n, e->limit);
    e->problem = calloc((size_t)n, sizeof *e->problem);
    if (!e->problem)
        return error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " problems", n);
    for (int64_t i = 0; i < n; i++) {
        struct problem *p = &e->problem[e->n_problem++];
        if (!(p->row = dataset_row(e->data, i, err)))
            return false;
        if (!reward_row_check(e->reward, p->row, err) || !prompt_make(&maker, p->row, &p->token, &p->dropped, err)) {
            char where[512];
            return error_wrap(err, "%s", dataset_where(e->data, i, where, sizeof where));
        }
    }
    e->n_dropped = maker.n_dropped;
    e->n_cut = maker.n_cut;
    system_print(&maker);
    prompt_notes_print(&maker);
    if (dataset_n_answered(e->data) > 0)
        fprintf(stderr, "note: %" PRId64 " rows end with the assistant's answer, which is not shown to the model\n",
                dataset_n_answered(e->data));
    return true;
}

/* Score a finished group, count it, and keep its records. */
static bool group_score(struct eval *e, const struct group *g, struct error *err)
{
    struct problem *p = &e->problem[g->prompt_row];
    size_t n = (size_t)g->n_sample;
    struct reward_input *in = calloc(n, sizeof *in);
    struct reward_output *out = calloc(n, sizeof *out);
    struct buf *text = calloc(n, sizeof *text), prompt = BUF_INIT;
    bool ok = in && out && text && tokenizer_decode(e->tool.tokenizer, g->prompt, g->n_prompt, false, &prompt)
              && buf_nul_replace(&prompt, 0);
    for (size_t i = 0; ok && i < n; i++) {
        const struct sample *s = &g->sample[i];
        ok = completion_text(e->tool.tokenizer, g->token + s->first_tok, s->n_tok, &text[i]);
        // no length rules in an evaluation (ColossalChat's evaluation mode)
        in[i] = (struct reward_input){ .response = buf_text(&text[i]), .response_len = text[i].len, .row = p->row };
    }
    if (!ok) {
        error_set(err, ERR_NO_MEMORY, "no memory to score %zu samples", n);
        goto out;
    }
    reward_score(e->reward, in, out, (int64_t)n);
    for (size_t i = 0; i < n; i++) {
        const struct sample *s = &g->sample[i];
        struct eval_record record = { .prompt = buf_text(&prompt),
                                      .prediction = buf_text(&text[i]),
                                      .prediction_len = (int64_t)text[i].len,
                                      .row = p->row,
                                      .prompt_row = g->prompt_row,
                                      .sample = (int64_t)i,
                                      .n_tok = s->n_tok,
                                      .finish = s->finish,
                                      .out = &out[i] };
        eval_tally_add(&e->tally, g->prompt_row, &out[i], s->n_tok, s->finish);
        if (e->records && !(ok = eval_record_line(&p->lines, &record, err)))
            goto out;
    }
    p->done = true;
out:
    for (size_t i = 0; text && i < n; i++)
        buf_release(&text[i]);
    buf_release(&prompt);
    free(text);
    free(in);
    free(out);
    return ok;
}

/* Write the records of finished problems, as far as their order allows. */
static bool records_write(struct eval *e, struct error *err)
{
    for (; e->n_written < e->n_problem; e->n_written++) {
        struct problem *p = &e->problem[e->n_written];
        if (!p->done && !p->dropped)
            return true;
        if (e->records && p->lines.len && fwrite(p->lines.data, 1, p->lines.len, e->records) != p->lines.len)
            return error_errno(err, "cannot write '%s'", e->output);
        buf_release(&p->lines);
        token_list_release(&p->token);
    }
    return true;
}

static bool problems_run(struct eval *e, struct error *err)
{
    struct generator *engine = NULL;
    uint64_t *seed = malloc((size_t)e->n * sizeof *seed);
    const char *stop = reward_stop_string(e->reward_type);
    int64_t longest = 1, next = 0, window = 4 * e->sampling.batch;
    bool ok = false;
    if (!seed) {
        error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " seeds", e->n);
        goto out;
    }
    if (stop && !e->sampling.stop) {    // the reward type's own stop rule: its tag ends the answer, not the end token
        e->sampling.stop = stop;
        e->sampling.ignore_eos = true;
    }
    for (int64_t i = 0; i < e->n; i++)
        seed[i] = (uint64_t)e->seed;
    for (int64_t i = 0; i < e->n_problem; i++)
        longest = MAX(longest, e->problem[i].token.n);
    TRY((engine = sampling_options_engine(&e->sampling, &e->tool, longest, window, err)) != NULL);
    while (e->n_written < e->n_problem) {
        for (; next < e->n_problem && next < e->n_written + window; next++) {
            const struct problem *p = &e->problem[next];
            struct generator_item item = {
                .item = next, .prompt_row = next, .prompt = p->token.id, .n_prompt = p->token.n, .n_sample = (int32_t)e->n, .seed = seed
            };
            if (p->dropped)
                continue;
            sampling_options_for(&e->sampling, &e->tool, p->token.n, &item.sampling);
            TRY(generator_submit(engine, &item, err));
        }
        TRY(generator_step(engine, err));
        for (struct group *group; (group = generator_poll(engine));) {
            bool scored = group_score(e, group, err);
            group_free(group);
            TRY(scored);
        }
        TRY(records_write(e, err));
    }
    ok = true;
out:
    generator_free(engine);
    free(seed);
    return ok;
}

static bool result_print(const struct eval *e, FILE *out, struct error *err)
{
    json_t *json = eval_tally_json(&e->tally);
    if (json)
        json_object_set_new(json, "n_long_prompts_dropped", json_integer(e->n_dropped));
    if (json)
        json_object_set_new(json, "n_long_prompts_cut", json_integer(e->n_cut));
    char *text = json ? json_text_dump(json, JSON_COMPACT | JSON_REAL_PRECISION(10)) : NULL;
    bool ok = text && json_line_print(text, out);
    free(text);
    json_decref(json);
    return ok || error_set(err, ERR_IO, "cannot print the result");
}

static bool reward_open(struct eval *e, struct error *err)
{
    struct reward_config config = { .type = e->reward_type,
                                    .max_new_tok = e->sampling.max_new_tok,
                                    .code_verifier_api_url = e->code_url,
                                    .program_timeout_s = 60,
                                    .response_format_tags = e->tags };
    return (e->reward = reward_new(&config, err)) != NULL;
}

static bool eval_cmd(int argc, char **argv, struct error *err)
{
    struct eval e = { .tool = TOOL_MODEL_DEFAULT, .sampling = SAMPLING_OPTIONS_DEFAULT, .reward_type = "boxed", .n = 1 };
    struct dataset_columns columns = { NULL };
    // clang-format off
    struct cli_option options[] = {
        TOOL_MODEL_OPTIONS(&e.tool),
        {"dataset", "d", CLI_STR, &e.dataset, "NAME", "a file (JSON lines, a JSON array, CSV, Parquet), a folder, a pattern, or ORG/NAME[:CONFIG][:SPLIT] of the hub"},
        {"prompt-column", NULL, CLI_STR, &columns.prompt, "NAME", "take the prompt from this column; without it the layout is recognised"},
        {"answer-column", NULL, CLI_STR, &columns.answer, "NAME", "take the answer from this column"},
        {"prompt-template", NULL, CLI_STR, &columns.template, "TEXT", "the prompt's text, with columns in braces"},
        {"reward-type", "rt", CLI_STR, &e.reward_type, "R",
         "boxed (default), think_answer_tags, math, code, program:CMD"},
        {"response-format-tags", NULL, CLI_STR, &e.tags, "JSON", "tags of think_answer_tags, as in a run file (default: <think>, <answer>)"},
        {"n", NULL, CLI_I64, &e.n, "N", "samples for each problem (default 1)"},
        {"seed", NULL, CLI_I64, &e.seed, "S", "of the random draws (default 0)"},
        {"limit", NULL, CLI_I64, &e.limit, "N", "only the first N problems (default 0: all)"},
        {"output", "o", CLI_STR, &e.output, "FILE", "file for one line of JSON per sample; must not exist. With - they go to standard output, and the result to standard error"},
        {"system-prompt", "s", CLI_STR, &e.system_prompt, "TEXT",
         "put before messages that have no system message; 'none' for none (default, as in training: that of the model's run, or the reward type's own)"},
        {"default-system-prompt", NULL, CLI_FLAG, &e.own_system_prompt, NULL,
         "use the reward type's own system prompt, whatever the model's run uses"},
        {"code-verifier-api-url", NULL, CLI_STR, &e.code_url, "URL", "address of an external verifier for code (default: the local sandbox)"},
        SAMPLING_OPTIONS(&e.sampling),
    };
    // clang-format on
    struct cli cli = { .command = "rollcall eval",
                       .options = options,
                       .n_options = ARRAY_SIZE(options),
                       .about = "Samples answers to a dataset's problems, scores them, and prints\n"
                                "{\"n\":problems,\"mean\":share of right answers,\"pass_at\":{\"1\":...},...}." };
    bool ok = false;
    if (!cli_parse(&cli, argc, argv, err))
        return false;
    if (cli.help_wanted)
        return true;
    if (!e.dataset)
        return error_set(err, ERR_USAGE, "--dataset is needed");
    if (e.n < 1 || e.n > 65536)
        return error_set(err, ERR_USAGE, "--n is %" PRId64 "; it must be between 1 and 65536", e.n);
    if (e.limit < 0)
        return error_set(err, ERR_USAGE, "--limit is %" PRId64 "; it must be at least 1, or 0 for all", e.limit);
    if (!sampling_options_check(&e.sampling, err))
        return false;
    TRY(reward_open(&e, err));
    TRY((e.data = dataset_open(e.dataset, &columns, err)) != NULL);
    TRY(tool_model_load(&e.tool, true, err) && completion_tags_show(e.tool.tokenizer, e.tags, err));
    TRY(system_choose(&e, err));
    TRY(problems_read(&e, err));
    TRY(eval_tally_init(&e.tally, e.n_problem, e.n, err));
    bool streamed = e.output && path_is_stream(e.output);
    if (e.output && !(e.records = streamed ? fdopen(dup(STDOUT_FILENO), "we") : fopen(e.output, "wxe"))) {
        error_errno(err, "cannot create '%s'", e.output);
        goto out;
    }
    TRY(problems_run(&e, err));
    if (e.records) {
        int failed = fclose(e.records);
        e.records = NULL;
        if (failed) {
            error_errno(err, "cannot write '%s'", e.output);
            goto out;
        }
    }
    TRY(result_print(&e, streamed ? stderr : stdout, err));
    ok = true;
out:
    if (e.records)
        fclose(e.records);
    for (int64_t i = 0; i < e.n_problem; i++) {
        json_decref(e.problem[i].row);
        token_list_release(&e.problem[i].token);
        buf_release(&e.problem[i].lines);
    }
    free(e.problem);
    eval_tally_release(&e.tally);
    reward_free(e.reward);
    dataset_free(e.data);
    tool_model_release(&e.tool);
    return ok;
}

const struct subcommand eval_subcommand = { "eval", eval_cmd, "sample answers to a dataset and score them" };
