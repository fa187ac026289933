/* bench decode: tokens a second of the engine as rollouts use it (scheduler, decode, sampling), prefill apart. On a CPU
 * the bar is 50k tokens/s a core for a model of 0.6 M parameters at batch 32. */
#include <stdio.h>
#include <stdlib.h>
#include "console/bench.h"
#include "console/tool_model.h"
#include "kernels/ops.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "workers/model/model.h"
#include "workers/producer/generator.h"

struct decode_bench {
    struct tool_model tool;
    const char *shape;
    int64_t batch, n_prompt, n_new, rounds;
};
struct decode_times {
    double prefill_s, decode_s, all_s;    // of one round
};

/* A full batch of samples, each n_new tokens long. */
static bool round_run(const struct decode_bench *b, struct generator *g, const int32_t *prompt, struct decode_times *t,
                      struct error *err)
{
    struct generator_stats before, after;
    int64_t start = clock_ns();
    generator_stats(g, &before);
    for (int64_t i = 0; i < b->batch; i++) {
        uint64_t seed = 1;
        struct generator_item item = {.item = i,
                                      .prompt = prompt,
                                      .n_prompt = b->n_prompt,
                                      .n_sample = 1,
                                      .seed = &seed,
                                      .sampling = SAMPLING_DEFAULT};
        item.sampling.max_new_tok = b->n_new;
        if (!generator_submit(g, &item, err))
            return false;
    }
    while (!generator_idle(g))
        if (!generator_step(g, err))
            return false;
    for (struct group *group; (group = generator_poll(g));)
        group_free(group);
    generator_stats(g, &after);
    t->all_s = (double)(clock_ns() - start) * 1e-9;
    t->prefill_s = after.prefill_s - before.prefill_s;
    t->decode_s = after.decode_s - before.decode_s;
    return true;
}

static int times_compare(const void *a, const void *b)
{
    double x = ((const struct decode_times *)a)->decode_s, y = ((const struct decode_times *)b)->decode_s;
    return (x > y) - (x < y);
}

static bool model_make(struct decode_bench *b, struct error *err)
{
    if (!b->shape)
        return tool_model_load(&b->tool, false, err);
    const struct model_config *config = config_shape(b->shape, err);
    if (!config || !(b->tool.dev = device_new(b->tool.device, (int)b->tool.n_thread, err)))
        return false;
    bool bf16 = b->tool.dev->kind == DEVICE_CUDA;
    b->tool.model = model_new_random(config, 1, b->tool.dev, bf16 ? DT_BF16 : DT_F32, err);
    return b->tool.model != NULL;
}

bool bench_decode(int argc, char **argv, struct error *err)
{
    struct decode_bench b = { .tool = TOOL_MODEL_DEFAULT, .batch = 32, .n_prompt = 16, .n_new = 128, .rounds = 5 };
    struct cli_option options[] = {
        TOOL_MODEL_OPTIONS(&b.tool),
        { "shape", NULL, CLI_STR, &b.shape, "NAME", "random weights of this shape in place of --model, e.g. starter" },
        { "batch", NULL, CLI_I64, &b.batch, "B", "samples decoded at once (default 32)" },
        { "prompt", NULL, CLI_I64, &b.n_prompt, "P", "prompt tokens (default 16)" },
        { "new", NULL, CLI_I64, &b.n_new, "N", "new tokens a sample (default 128)" },
        { "rounds", NULL, CLI_I64, &b.rounds, "R", "measured rounds; the median is printed (default 5)" },
    };
    struct cli cli = { .command = "rollcall bench decode", .options = options, .n_options = ARRAY_SIZE(options),
                       .about = "Generates full batches and prints tokens a second." };
    struct generator *g = NULL;
    int32_t *prompt = NULL;
    struct decode_times *times = NULL;
    bool ok = false;
    if (!cli_parse(&cli, argc, argv, err))
        return false;
    if (cli.help_wanted)
        return true;
    if (b.batch < 1 || b.batch > 65536 || b.n_prompt < 1 || b.n_prompt > 1 << 20 || b.n_new < 2 || b.n_new > 1 << 20 ||
        b.rounds < 1 || b.rounds > 1000)
        return error_set(err, ERR_USAGE,
                         "--batch and --prompt must be at least 1, --new at least 2, --rounds 1 to 1000");
    TRY(model_make(&b, err));
    prompt = malloc((size_t)b.n_prompt * sizeof *prompt);
    times = malloc((size_t)b.rounds * sizeof *times);
    if (!prompt || !times) {
        error_set(err, ERR_NO_MEMORY, "no memory for the measurement");
        goto out;
    }
    for (int64_t i = 0; i < b.n_prompt; i++)
        prompt[i] = (int32_t)((i * 37 + 11) % model_config(b.tool.model)->vocab);
    struct generator_config config = { .model = b.tool.model, .max_seq = b.batch, .max_item = b.batch,
                                       .max_seq_tok = b.n_prompt + b.n_new };
    TRY((g = generator_new(&config, err)) != NULL);
    TRY(round_run(&b, g, prompt, &times[0], err));    // warm-up
    for (int64_t i = 0; i < b.rounds; i++)
        TRY(round_run(&b, g, prompt, &times[i], err));
    qsort(times, (size_t)b.rounds, sizeof *times, times_compare);
    const struct decode_times *t = &times[b.rounds / 2];
    double n_tok = (double)(b.batch * (b.n_new - 1)), tok_per_s = n_tok / t->decode_s;
    const struct device *dev = b.tool.dev;
    int n_core = dev->kind == DEVICE_CPU ? dev->n_thread : 1;
    printf("{\"bench\":\"decode\",\"device\":\"%s\",\"what\":\"%s\",\"parameters\":%lld,\"batch\":%lld,\"prompt\":%lld,"
           "\"new\":%lld,\"tok_per_s\":%.0f,\"tok_per_s_core\":%.0f,\"step_us\":%.1f,\"prefill_tok_per_s\":%.0f,"
           "\"all_tok_per_s\":%.0f}\n",
           dev->name, dev->what, (long long)config_n_param(model_config(b.tool.model)), (long long)b.batch,
           (long long)b.n_prompt, (long long)b.n_new, tok_per_s, tok_per_s / n_core,
           t->decode_s * 1e6 / (double)(b.n_new - 1), (double)(b.batch * b.n_prompt) / t->prefill_s,
           (double)(b.batch * b.n_new) / t->all_s);
    ok = true;
out:
    generator_free(g);
    free(prompt);
    free(times);
    tool_model_release(&b.tool);
    return ok;
}
