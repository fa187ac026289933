/* bench decode: tokens per second of the engine as rollouts use it: prefill of distinct prompts, scheduler, decode,
 * sampling and recording of log-probs, end tokens ignored. With --mean the samples end at lengths as they come in training, and it
 * says how many run at once in this many pages of keys and values. Before the figure is printed the recorded log-probs are
 * compared with packed scoring, byte by byte. With --speculate the same rounds are run without and with guesses at next tokens
 * (generator_draft.c), as often as each pays; their tokens and log-probs must be the same. On a CPU the target is 50k tokens/s per core for a model of 0.6 M
 * parameters at batch 32. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/bench/bench.h"
#include "console/bench/bench_adapter.h"
#include "console/bench/bench_tools.h"
#include "workers/engine/load/tool_model.h"
#include "kernels/ops.h"
#include "kernels/trace.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/mix64.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/team.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/pass/pass.h"

#define GROUP_MAX 64
struct decode_bench {
    struct tool_model tool;
    const char *shape, *profile;
    int64_t batch, n_prompt, n_new, group, n_live, lora_rank, rounds, mean, n_page, n_sample, n_device, parts;
    struct device *helper[SUM_PARTS_MAX - 1];    // (n_device - 1) owned
    uint64_t hash;                               // of the first round's tokens and log-probs
    bool speculate;
    double temperature;
    int64_t *n_left;    // (n_sample) tokens until each ends; with mean
};
struct decode_times {
    double prefill_s, decode_s, all_s;    // of one round
    double n_tok, n_step;
    double n_running;    // mean of the steps in which others waited for room; NAN: none did
    double n_put_back, n_again_tok;
};

/* Lengths of an exponential distribution: an end is as likely after any token. */
static void lengths_make(struct decode_bench *b)
{
    uint64_t x = 88172645463325252u;
    for (int64_t i = 0; i < b->n_sample; i++) {
        x ^= x << 13;    // xorshift, Marsaglia 2003
        x ^= x >> 7;
        x ^= x << 17;
        double u = ((double)(x >> 11) + 0.5) / 9007199254740992.0;
        b->n_left[i] = MIN((int64_t)ceil(-log(u) * (double)b->mean), b->n_new);
    }
}

static bool sample_ends(void *ctx, const struct drawn *d)
{
    struct decode_bench *b = ctx;
    return --b->n_left[d->prompt_row * b->group + d->sample] <= 0;
}

/* Prompt i has b->n_prompt ids, different from the others'. */
static void prompt_fill(const struct decode_bench *b, int64_t i, int32_t *prompt)
{
    int64_t vocab = model_n_live(b->tool.model);
    for (int64_t k = 0; k < b->n_prompt; k++)
        prompt[k] = (int32_t)((i * 7919 + k * 37 + k * k % 101 + 11) % vocab);
}

/* A hash of a group's tokens and of the bits of their log-probs. */
static uint64_t group_hash(const struct group *g)
{
    uint64_t hash = mix64((uint64_t)g->item);
    for (int64_t i = 0; i < g->n_tok; i++) {
        uint32_t bits;
        memcpy(&bits, &g->logp[i], sizeof bits);
        hash = mix64(hash + ((uint64_t)(uint32_t)g->token[i] << 32 | bits) + MIX64_STEP);
    }
    return hash;
}

/* All samples from beginning to end, each n_new tokens long or as lengths_make says; one of their groups goes to *kept when that is not
 * NULL. */
static bool round_run(struct decode_bench *b, struct generator *g, int32_t *prompt, struct decode_times *t, struct group **kept,
                      struct error *err)
{
    struct generator_stats before, after;
    int64_t start = clock_ns();
    generator_stats(g, &before);
    uint64_t seed[GROUP_MAX];
    for (int i = 0; i < GROUP_MAX; i++)
        seed[i] = 1;
    if (b->mean)
        lengths_make(b);
    for (int64_t i = 0; i < b->n_sample / b->group; i++) {
        struct generator_item item = { .item = i,
                                       .prompt_row = i,
                                       .prompt = prompt,
                                       .n_prompt = b->n_prompt,
                                       .n_sample = (int32_t)b->group,
                                       .seed = seed,
                                       .sampling = SAMPLING_DEFAULT };
        item.sampling.max_new_tok = b->n_new;
        item.sampling.temperature = (float)b->temperature;
        prompt_fill(b, i, prompt);
        if (!generator_submit(g, &item, err))
            return false;
    }
    double running = 0, crowded = 0;
    while (!generator_idle(g)) {
        if (!generator_step(g, err))
            return false;
        generator_stats(g, &after);
        running += after.n_waiting_seq > 0 ? (double)after.n_running_seq : 0;
        crowded += after.n_waiting_seq > 0;
    }
    generator_stats(g, &after);
    t->n_running = crowded > 0 ? running / crowded : NAN;
    t->n_tok = (double)(after.n_decode_tok - before.n_decode_tok);
    t->n_step = b->mean ? (double)(after.n_step - before.n_step) : (double)(b->n_new - 1);
    t->n_put_back = (double)(after.n_put_back - before.n_put_back);
    t->n_again_tok = (double)(after.n_again_tok - before.n_again_tok);
    t->all_s = (double)(clock_ns() - start) * 1e-9;
    t->prefill_s = after.prefill_s - before.prefill_s;
    t->decode_s = after.decode_s - before.decode_s;
    for (struct group *group; (group = generator_poll(g));) {
        b->hash += kept ? group_hash(group) : 0;
        if (kept && !*kept)
            *kept = group;
        else
            group_free(group);
    }
    return true;
}

/* Does packed scoring give exactly the log-probs that were recorded for the first sample? */
static bool group_check(const struct decode_bench *b, const struct group *g, bool *same, struct error *err)
{
    int64_t n_tok = g->sample[0].n_tok, n = g->n_prompt + n_tok;
    int32_t cu[2] = { 0, (int32_t)n };
    int32_t *token = malloc((size_t)n * sizeof *token), *target = malloc((size_t)n * sizeof *target);
    float *temperature = malloc((size_t)n * sizeof *temperature), *logp = malloc((size_t)n * sizeof *logp);
    struct model_run *run = NULL;
    bool ok = false;
    if (!token || !target || !temperature || !logp) {
        error_set(err, ERR_NO_MEMORY, "no memory to check %" PRId64 " tokens", n);
        goto out;
    }
    memcpy(token, g->prompt, (size_t)g->n_prompt * sizeof *token);
    memcpy(token + g->n_prompt, g->token, (size_t)n_tok * sizeof *token);
    for (int64_t i = 0; i < n; i++) {
        target[i] = i >= g->n_prompt - 1 && i + 1 < n ? token[i + 1] : -1;
        temperature[i] = g->temperature > 0 ? g->temperature : 1;
    }
    struct run_limits limits = { .max_tok = n, .max_seq = 1, .max_seq_tok = n };
    struct model_batch batch = { .n_seq = 1, .n_tok = n, .token = token, .cu_tok = cu };
    TRY((run = model_run_new(b->tool.model, &limits, err)) != NULL);
    TRY(model_score(run, &batch, target, temperature, logp, NULL, err));
    *same = memcmp(logp + g->n_prompt - 1, g->logp, (size_t)n_tok * sizeof *logp) == 0;
    ok = true;
out:
    model_run_free(run);
    free(token);
    free(target);
    free(temperature);
    free(logp);
    return ok;
}

/* Parameters that a step reads: of a mixture of experts those that some row of the batch is expected to choose, if all are as likely. */
static double step_params(const struct decode_bench *b)
{
    const struct model_config *c = model_config(b->tool.model);
    double n = (double)c->experts.n, k = (double)c->experts.k, all = (double)config_n_param(c);
    if (c->experts.n <= c->experts.k)
        return all;
    double idle = n * pow(1 - k / n, (double)b->batch), each = (double)(config_n_product(c) - config_n_active(c)) / (n - k);
    return all - idle * each;
}

/* Seconds that a decode step cannot beat on an H200: weights once, keys and values of every sequence (half of the
 * new tokens on average), states of every sequence twice, read and written, at 4.3 TB/s, the measured speed of a device copy. */
static double step_floor_s(const struct decode_bench *b)
{
    const struct model_config *c = model_config(b->tool.model);
    double elem = (double)dtype_size(model_dtype(b->tool.model));
    double kv = 2.0 * (double)(config_n_attn(c) * c->n_kv_head * c->d_head) * elem,
           states = 2.0 * (double)kv_pool_state_bytes(b->tool.model);
    double context = (double)b->n_prompt + (double)b->n_new / 2;
    return (step_params(b) * elem + (double)b->batch * (context * kv + states)) / 4.3e12;
}

/* How many samples ran at once, and how many there would be if each had pages for its longest length from the beginning. */
static void crowd_text(const struct decode_bench *b, const struct generator *g, const struct decode_times *t, char *out, size_t size)
{
    struct generator_stats s;
    generator_stats(g, &s);
    int64_t shared = b->n_prompt / s.page_tok, own = (b->n_prompt + b->n_new - 2) / s.page_tok + 1 - shared;
    int64_t reserved = MIN(s.n_page * b->group / (shared + b->group * own), b->batch);
    out[0] = 0;
    if (!isnan(t->n_running))
        snprintf(out, size,
                 ",\"new_mean\":%.0f,\"pages\":%" PRId64 ",\"running\":%.1f,\"running_if_reserved\":%" PRId64
                 ",\"put_back\":%.0f,\"again_tok\":%.0f",
                 t->n_tok / (double)b->n_sample, s.n_page, t->n_running, reserved, t->n_put_back, t->n_again_tok);
}

static int times_compare(const void *a, const void *b)
{
    double x = ((const struct decode_times *)a)->all_s, y = ((const struct decode_times *)b)->all_s;
    return (x > y) - (x < y);
}

/* The rounds of a generator, after two to warm it up; the median is the one in the middle of times (rounds). The first one's groups are hashed, and one of them
 * kept. Sorts times. */
static bool rounds_run(struct decode_bench *b, struct generator *g, int32_t *prompt, struct decode_times *times, struct group **kept,
                       double *grown_mb, struct error *err)
{
    size_t free_before, free_after, total;
    b->hash = 0;
    // the first draws the tokens to check, the second records what graphs the first has only warmed up
    if (!round_run(b, g, prompt, times, kept, err) || !round_run(b, g, prompt, times, NULL, err)
        || !mem_info(b->tool.dev, &free_before, &total, err))
        return false;
    for (int64_t i = 0; i < b->rounds; i++)
        if (!round_run(b, g, prompt, &times[i], NULL, err))
            return false;
    if (!mem_info(b->tool.dev, &free_after, &total, err))
        return false;
    *grown_mb = free_before > free_after ? (double)(free_before - free_after) * 1e-6 : 0;
    qsort(times, (size_t)b->rounds, sizeof *times, times_compare);
    return true;
}

/* Repeat the rounds with guesses at next tokens, into out as members of the line that is printed. times holds those without, and then those with. */
static bool speculate_compare(struct decode_bench *b, const struct generator_config *plain, int32_t *prompt, struct decode_times *times,
                              char *out, size_t size, struct error *err)
{
    bool ok = false;
    double plain_s = times[b->rounds / 2].all_s, grown_mb;
    uint64_t hash = b->hash;
    struct group *kept = NULL;
    struct generator_stats s;
    struct generator_config config = *plain;
    config.speculate = SPECULATE_AUTO;
    struct generator *g = generator_new(&config, err);
    TRY(g && rounds_run(b, g, prompt, times, &kept, &grown_mb, err));
    generator_stats(g, &s);
    double all = s.n_draft ? (double)s.n_draft : NAN, tok = (double)s.n_decode_tok;
    snprintf(out, size, ",\"speculate_ratio\":%.3f,\"accepted\":%.3f,\"drafts_per_tok\":%.2f,\"speculate_same\":%s",
             plain_s / times[b->rounds / 2].all_s, isnan(all) ? 0 : (double)s.n_accepted / all, (double)s.n_draft / tok,
             b->hash == hash ? "true" : "false");
    b->hash = hash;
    ok = true;
out:
    group_free(kept);
    generator_free(g);
    return ok;
}

/* On several devices each has only its slice of the weights (team_make). */
static bool model_make(struct decode_bench *b, struct error *err)
{
    b->tool.late = b->n_device > 1 && b->lora_rank == 0;
    if (!b->shape)
        return tool_model_load(&b->tool, false, err);
    const struct model_config *config = config_shape(b->shape, err);
    if (!config || !(b->tool.dev = device_new(b->tool.device, (int)b->tool.n_thread, err)))
        return false;
    bool bf16 = b->tool.dev->kind == DEVICE_CUDA;
    struct model_config longer = *config;    // random weights have no positions they were not trained for
    longer.max_pos = MAX(config->max_pos, b->n_prompt + b->n_new);
    struct model *(*make)(const struct model_config *, uint64_t, struct device *, enum dtype,
                          struct error *) = b->tool.late ? model_random_open : model_new_random;
    return (b->tool.model = make(&longer, 1, b->tool.dev, bf16 ? DT_BF16 : DT_F32, err)) != NULL;
}

/* Let the model work on --device and those after it. */
static bool team_make(struct decode_bench *b, struct error *err)
{
    struct device *all[SUM_PARTS_MAX] = { b->tool.dev };
    bool ok = bench_devices_after(all, b->n_device, b->tool.n_thread, err);
    memcpy(b->helper, all + 1, sizeof b->helper);
    return ok && model_team(b->tool.model, all, (int)b->n_device, err);
}

/* The options' bounds, and what depends on other options where it was not given. */
static bool options_check(struct decode_bench *b, struct error *err)
{
    b->n_sample = b->n_sample ? b->n_sample : b->batch;
    if (b->n_sample < b->batch || b->n_sample > 65536 || b->n_sample % MAX(b->group, 1) || b->mean < 0 || b->mean > b->n_new
        || b->n_page < 0 || b->n_page > INT32_MAX)
        return error_set(err, ERR_USAGE,
                         "--samples must be a multiple of --group from --batch to 65536, --mean at most --new, and --pages not negative");
    if (b->batch < 1 || b->batch > 65536 || b->n_prompt < 1 || b->n_prompt > 1 << 20 || b->n_new < 2 || b->n_new > 1 << 20 || b->rounds < 1
        || b->rounds > 1000 || b->group < 1 || b->group > GROUP_MAX || b->batch % b->group)
        return error_set(err, ERR_USAGE,
                         "--batch and --prompt must be at least 1, --new at least 2, --rounds 1 to 1000, --group 1 to "
                         "%d and a divisor of --batch",
                         GROUP_MAX);
    if (b->n_device < 1 || b->n_device > SUM_PARTS_MAX || b->parts < 0 || b->parts > SUM_PARTS_MAX)
        return error_set(err, ERR_USAGE, "--ptp is 1 to %d, --sum-parts at most that", SUM_PARTS_MAX);
    b->parts = b->parts ? b->parts : b->n_device > 1 ? MAX(b->n_device, (int64_t)4) : 1;
    return true;
}

/* The line of JSON: t is the median round; crowd and speculated are more members of it. */
static void line_print(const struct decode_bench *b, const struct decode_times *t, double grown_mb, bool same, const char *crowd,
                       const char *speculated)
{
    const struct device *dev = b->tool.dev;
    char roofline[32] = "null";
    if (dev->kind == DEVICE_CUDA && !b->mean && b->n_sample == b->batch)
        snprintf(roofline, sizeof roofline, "%.3f", step_floor_s(b) * t->n_step / t->decode_s);
    printf(
        "{\"bench\":\"decode\",\"model\":\"%s\",\"device\":\"%s\",\"what\":\"%s\",\"parameters\":%" PRId64 ",\"batch\":%" PRId64 ","
        "\"prompt\":%" PRId64 ",\"new\":%" PRId64 ",\"tok_per_s\":%.0f,\"ms\":%.2f,\"decode_tok_per_s\":%.0f,"
        "\"decode_tok_per_s_core\":%.0f,\"step_us\":%.1f,\"prefill_tok_per_s\":%.0f,\"roofline\":%s,\"grown_mb\":%.1f,\"devices\":%" PRId64
        ",\"sum_parts\":%" PRId64 ",\"hash\":\"%016" PRIx64 "\",\"check\":%s%s%s}\n",
        b->shape ? b->shape : b->tool.name, dev->name, dev->what, config_n_param(model_config(b->tool.model)), b->batch, b->n_prompt,
        b->n_new, t->n_tok / t->all_s, t->all_s * 1e3, (t->n_tok - (double)b->n_sample) / t->decode_s,
        (t->n_tok - (double)b->n_sample) / t->decode_s / (dev->kind == DEVICE_CPU ? dev->n_thread : 1), t->decode_s * 1e6 / t->n_step,
        (double)(b->n_sample * b->n_prompt) / t->prefill_s, roofline, grown_mb, b->n_device, b->parts, b->hash, same ? "true" : "false",
        crowd, speculated);
}

bool bench_decode(int argc, char **argv, struct error *err)
{
    struct decode_bench b = {
        .tool = TOOL_MODEL_DEFAULT, .batch = 32, .n_prompt = 16, .n_new = 128, .group = 1, .rounds = 5, .n_device = 1, .temperature = 1
    };
    struct cli_option options[] = {
        TOOL_MODEL_OPTIONS(&b.tool),
        { "shape", NULL, CLI_STR, &b.shape, "NAME", "random weights of this shape instead of --model, e.g. starter" },
        { "batch", NULL, CLI_I64, &b.batch, "B", "samples decoded at once (default 32)" },
        { "prompt", NULL, CLI_I64, &b.n_prompt, "P", "prompt tokens (default 16)" },
        { "new", NULL, CLI_I64, &b.n_new, "N", "new tokens per sample (default 128)" },
        { "group", NULL, CLI_I64, &b.group, "G", "samples that share a prompt (default 1)" },
        { "samples", NULL, CLI_I64, &b.n_sample, "S", "samples of a round, of which at most B run at once (default B)" },
        { "mean", NULL, CLI_I64, &b.mean, "M", "samples end after M tokens on average (exponential), at most N (0: all after N)" },
        { "pages", NULL, CLI_I64, &b.n_page, "P", "pages of keys and values that there are (0: enough for all)" },
        { "live", NULL, CLI_I64, &b.n_live, "N", "only ids below this may be drawn, as with a tokenizer that has no more (0: all)" },
        { "lora-rank", NULL, CLI_I64, &b.lora_rank, "R", "with a random adapter of this rank on all modules (0: none)" },
        { "ptp", NULL, CLI_I64, &b.n_device, "N", "work on N devices, --device and those after it, as a team (default 1)" },
        { "sum-parts", NULL, CLI_I64, &b.parts, "S", "sums in S parts, as the setting sum_parts (default: what --ptp needs)" },
        { "temperature", NULL, CLI_F64, &b.temperature, "T", "sampling temperature (default 1); 0 makes random weights repeat themselves" },
        { "speculate", NULL, CLI_FLAG, &b.speculate, NULL,
          "the same again with speculative decoding: the ratio of speeds, and the share of drafted tokens that came true" },
        { "profile", NULL, CLI_STR, &b.profile, "FILE",
          "one more round with the time of each operation: a table, and the timeline to FILE" },
        { "rounds", NULL, CLI_I64, &b.rounds, "R", "measured rounds; the median is printed (default 5)" },
    };
    struct cli cli = { .command = "rollcall bench decode",
                       .options = options,
                       .n_options = ARRAY_SIZE(options),
                       .about = "Generates full batches and prints tokens per second." };
    struct generator *g = NULL;
    int32_t *prompt = NULL;
    struct decode_times *times = NULL;
    struct group *kept = NULL;
    bool same = false;
    bool ok = false;
    if (!cli_parse(&cli, argc, argv, err))
        return false;
    if (cli.help_wanted)
        return true;
    if (!options_check(&b, err))
        return false;
    TRY(model_make(&b, err) && model_parts_set(b.tool.model, b.parts > 1 ? (int)b.parts : 0, err));
    TRY(bench_adapter(b.tool.model, b.lora_rank, false, err) && team_make(&b, err));
    if (b.n_live < 0 || b.n_live > model_config(b.tool.model)->vocab) {
        error_set(err, ERR_USAGE, "--live is %" PRId64 "; the model knows %" PRId64 " ids", b.n_live, model_config(b.tool.model)->vocab);
        goto out;
    }
    if (b.n_live)
        model_n_live_set(b.tool.model, b.n_live);
    prompt = malloc((size_t)b.n_prompt * sizeof *prompt);
    times = malloc((size_t)b.rounds * sizeof *times);
    b.n_left = malloc((size_t)b.n_sample * sizeof *b.n_left);
    if (!prompt || !times || !b.n_left) {
        error_set(err, ERR_NO_MEMORY, "no memory for the measurement");
        goto out;
    }
    struct generator_config config = {
        .model = b.tool.model,
        .max_seq = b.batch,
        .max_item = b.n_sample,
        .max_seq_tok = b.n_prompt + b.n_new,
        .kv_bytes = (size_t)b.n_page * kv_pool_page_bytes(b.tool.model),
        .speculate = SPECULATE_NEVER,
        .watch = b.mean ? sample_ends : NULL,
        .watch_ctx = &b,
    };
    model_length_set(b.tool.model, config.max_seq_tok);
    TRY((g = generator_new(&config, err)) != NULL);
    double grown_mb;
    TRY(rounds_run(&b, g, prompt, times, &kept, &grown_mb, err));
    TRY(group_check(&b, kept, &same, err));
    const struct decode_times middle = times[b.rounds / 2];
    char crowd[256], speculated[160] = "";
    crowd_text(&b, g, &middle, crowd, sizeof crowd);
    TRY(!b.speculate || speculate_compare(&b, &config, prompt, times, speculated, sizeof speculated, err));
    line_print(&b, &middle, grown_mb, same, crowd, speculated);
    if (b.profile) {
        struct decode_times traced;
        TRY(trace_start(b.tool.dev, 100000, err));
        TRY(round_run(&b, g, prompt, &traced, NULL, err));
        trace_print(b.tool.dev);
    }
    ok = true;
out:
    if (b.tool.dev && b.tool.dev->trace)
        ok = trace_stop(b.tool.dev, b.profile, err) && ok;
    group_free(kept);
    generator_free(g);
    free(prompt);
    free(times);
    free(b.n_left);
    model_free(b.tool.model);    // before the devices that it works on
    b.tool.model = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(b.helper); i++)
        device_free(b.helper[i]);
    tool_model_release(&b.tool);
    return ok;
}
