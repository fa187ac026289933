/* rollcall generate: prompts in, samples out, one line each, in the order of the input */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "console/tools/jsonl.h"
#include "console/tools/sampling_options.h"
#include "workers/engine/load/tool_model.h"
#include "protocol/base/buf.h"
#include "protocol/base/cli.h"
#include "protocol/base/json_text.h"
#include "protocol/base/subcommand.h"
#include "workers/engine/model/model.h"
#include "workers/engine/sampler/eval.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/data/conversation.h"
#include "workers/engine/sampler/prompt.h"
#include "workers/engine/text/tokenizer.h"

struct prompt {
    int64_t number;    // its line number, from 1
    struct token_list token;
    bool dropped;
    struct group *group;    // once generated, until printed
};
struct generate {
    struct tool_model tool;
    struct sampling_options sampling;
    const char *input, *system_prompt;
    int64_t n, seed;
    bool json;
    struct prompt *prompt;    // (n_prompt)
    int64_t n_prompt, n_printed;
    int64_t n_dropped, n_cut;
    struct buf text, line;
};

static bool prompts_read(struct generate *g, struct error *err)
{
    struct jsonl in = { 0 };
    struct prompt_maker maker = { .encoder = g->tool.encoder,
                                  .template = g->tool.template,
                                  .system_prompt = g->system_prompt,
                                  .max_tok = sampling_options_max_prompt(&g->sampling, g->tool.model),
                                  .long_prompt = g->sampling.long_prompt };
    json_t *row = NULL;
    bool ok = false, answered;
    TRY(jsonl_open(&in, g->input, err));
    for (int64_t cap = 0;;) {
        TRY(jsonl_next(&in, &row, err));
        if (!row)
            break;
        if (g->n_prompt == cap) {
            cap = cap ? cap * 2 : 256;
            struct prompt *grown = realloc(g->prompt, (size_t)cap * sizeof *grown);
            if (!grown) {
                error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " prompts", cap);
                goto out;
            }
            g->prompt = grown;
        }
        struct prompt *p = &g->prompt[g->n_prompt++];
        *p = (struct prompt){ .number = in.number };
        if (!conversation_settle(row, &answered, err) || !prompt_make(&maker, row, &p->token, &p->dropped, err)) {
            jsonl_wrap(&in, in.number, err);
            goto out;
        }
        json_decref(row);
        row = NULL;
    }
    g->n_dropped = maker.n_dropped;
    g->n_cut = maker.n_cut;
    maker.n_text = 0;    // its input says 'prompt' where it means a text
    prompt_notes_print(&maker);
    ok = true;
out:
    json_decref(row);
    jsonl_close(&in);
    return ok;
}

static void ids_add(struct buf *line, const int32_t *id, int64_t n)
{
    buf_char(line, '[');
    for (int64_t i = 0; i < n; i++)
        buf_fmt(line, i ? ",%d" : "%d", id[i]);
    buf_char(line, ']');
}

static bool sample_print(struct generate *g, const struct prompt *p, const struct sample *s, struct error *err)
{
    const int32_t *id = p->group->token + s->first_tok;
    const float *logp = p->group->logp + s->first_tok;
    int64_t n_text = tokenizer_n_text(g->tool.tokenizer, id, s->n_tok);
    buf_clear(&g->text);
    buf_clear(&g->line);
    bool ok = tokenizer_decode(g->tool.tokenizer, id, n_text, true, &g->text);
    if (g->json) {
        buf_str(&g->line, "{\"ids\":");
        ids_add(&g->line, id, s->n_tok);
        buf_str(&g->line, ",\"prompt_ids\":");
        ids_add(&g->line, p->group->prompt, p->group->n_prompt);
        buf_str(&g->line, ",\"logprobs\":[");
        for (int64_t i = 0; i < s->n_tok; i++)
            buf_fmt(&g->line, i ? ",%.9g" : "%.9g", (double)logp[i]);
        json_t *text = json_text(buf_text(&g->text), g->text.len);
        char *quoted = text ? json_text_dump(text, JSON_ENCODE_ANY) : NULL;
        ok = ok && quoted;
        buf_fmt(&g->line, "],\"text\":%s,\"finish_reason\":\"%s\"}\n", quoted ? quoted : "null",
                s->finish == FINISH_STOP ? "stop" : "length");
        free(quoted);
        json_decref(text);
    } else {
        buf_fmt(&g->line, "%s%s\n", buf_text(&g->text), s->finish == FINISH_LENGTH ? " [cut]" : "");
    }
    if (!ok || g->line.failed)
        return error_set(err, ERR_NO_MEMORY, "no memory for the text of line %" PRId64, p->number);
    return fwrite(g->line.data, 1, g->line.len, stdout) == g->line.len || error_errno(err, "cannot write the output");
}

/* Print the finished prompts, as far as their order allows. */
static bool prompts_print(struct generate *g, struct error *err)
{
    for (; g->n_printed < g->n_prompt; g->n_printed++) {
        struct prompt *p = &g->prompt[g->n_printed];
        if (!p->group && !p->dropped)
            return true;
        if (p->dropped)
            printf("{\"dropped\":true,\"line\":%" PRId64 "}\n", p->number);
        for (int32_t i = 0; p->group && i < p->group->n_sample; i++)
            if (!sample_print(g, p, &p->group->sample[i], err))
                return false;
        group_free(p->group);
        p->group = NULL;
        token_list_release(&p->token);
    }
    return true;
}

static bool prompts_run(struct generate *g, struct error *err)
{
    struct generator *engine = NULL;
    uint64_t *seed = malloc((size_t)g->n * sizeof *seed);
    int64_t longest = 1, next = 0, window = 4 * g->sampling.batch;
    bool ok = false;
    if (!seed) {
        error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " seeds", g->n);
        goto out;
    }
    for (int64_t i = 0; i < g->n; i++)
        seed[i] = (uint64_t)g->seed;    // the draws differ by item and sample number
    for (int64_t i = 0; i < g->n_prompt; i++)
        longest = MAX(longest, g->prompt[i].token.n);
    TRY((engine = sampling_options_engine(&g->sampling, &g->tool, longest, window, err)) != NULL);
    while (g->n_printed < g->n_prompt) {
        for (; next < g->n_prompt && next < g->n_printed + window; next++) {
            const struct prompt *p = &g->prompt[next];
            struct generator_item item = { .item = p->number,
                                           .prompt_row = next,
                                           .prompt = p->token.id,
                                           .n_prompt = p->token.n,
                                           .n_sample = (int32_t)g->n,
                                           .seed = seed };
            if (p->dropped)
                continue;
            sampling_options_for(&g->sampling, &g->tool, p->token.n, &item.sampling);
            if (!generator_submit(engine, &item, err)) {
                error_wrap(err, "line %" PRId64, p->number);
                goto out;
            }
        }
        TRY(generator_step(engine, err));
        for (struct group *group; (group = generator_poll(engine));)
            g->prompt[group->prompt_row].group = group;
        TRY(prompts_print(g, err));
    }
    ok = true;
out:
    generator_free(engine);
    free(seed);
    return ok;
}

static bool generate_cmd(int argc, char **argv, struct error *err)
{
    struct generate g = { .tool = TOOL_MODEL_DEFAULT, .sampling = SAMPLING_OPTIONS_DEFAULT, .n = 1 };
    // clang-format off
    struct cli_option options[] = {
        TOOL_MODEL_OPTIONS(&g.tool),
        {"input", "i", CLI_STR, &g.input, "FILE",
         "lines of {\"prompt\":TEXT}, {\"messages\":[...]} or {\"prompt_ids\":[...]} "
         "(default: standard input)"},
        {"json", NULL, CLI_FLAG, &g.json, NULL,
         "one line of JSON per sample: ids, prompt_ids, logprobs, text, finish_reason"},
        {"n", NULL, CLI_I64, &g.n, "N", "samples for each prompt (default 1)"},
        {"seed", NULL, CLI_I64, &g.seed, "S", "of the random draws (default 0)"},
        {"system-prompt", "s", CLI_STR, &g.system_prompt, "TEXT", "put before messages that have no system message"},
        SAMPLING_OPTIONS(&g.sampling),
    };
    // clang-format on
    struct cli cli = { .command = "rollcall generate",
                       .options = options,
                       .n_options = ARRAY_SIZE(options),
                       .about = "Continues prompts. The samples of a prompt are printed together, in the order of the input; the same seed "
                                "gives the same samples, whatever else is generated." };
    bool ok = false;
    if (!cli_parse(&cli, argc, argv, err))
        return false;
    if (cli.help_wanted)
        return true;
    if (g.n < 1 || g.n > 65536)
        return error_set(err, ERR_USAGE, "--n is %" PRId64 "; it must be between 1 and 65536", g.n);
    if (!sampling_options_check(&g.sampling, err))
        return false;
    TRY(tool_model_load(&g.tool, true, err));
    TRY(prompts_read(&g, err));
    TRY(prompts_run(&g, err));
    if (g.n_dropped || g.n_cut)
        fprintf(stderr, "%" PRId64 " prompts were too long and left out, %" PRId64 " were cut from the left\n", g.n_dropped, g.n_cut);
    ok = true;
out:
    for (int64_t i = 0; i < g.n_prompt; i++) {
        token_list_release(&g.prompt[i].token);
        group_free(g.prompt[i].group);
    }
    free(g.prompt);
    buf_release(&g.text);
    buf_release(&g.line);
    tool_model_release(&g.tool);
    return ok;
}

const struct subcommand generate_subcommand = { "generate", generate_cmd, "continue prompts with a model" };
