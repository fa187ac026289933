/* bench start: seconds from nothing to the first sampled token, with the share of each part: the device and its libraries, the weights, the
 * generator's memory, and the first token. A GPU chooses the algorithms of all products while the weights are read (choose_s, of which load_s
 * has only what takes longer than reading), or takes them from disk (kinds_from_disk of kinds). The second prompt says what of the first
 * token is paid once. With --shape it writes random weights to --model first; the
 * device has then been opened once, so the first part is that of the next call. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include "kernels/choices.h"
#include "kernels/ops.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "tests/bench/bench.h"
#include "workers/engine/model/model.h"
#include "workers/engine/sampler/generator.h"

#define MAX_TOK ((int64_t)2048)    // unless --max-tok says otherwise
enum {
    N_PROMPT = 64,
    N_NEW = 16,
};
struct start_bench {
    const char *dir, *device, *shape;
    int64_t n_thread, batch, max_tok;    // max_tok 0: MAX_TOK, or what the model takes
};
enum part {
    DEVICE,
    LOAD,
    GENERATOR,
    FIRST_TOKEN,
    PART_N,
};

/* Random weights of the shape into the directory, unless there are some. */
static bool model_write(const struct start_bench *b, struct error *err)
{
    bool ok = false;
    char path[4096];
    struct device *dev = NULL;
    struct model *m = NULL;
    const struct model_config *c = NULL;
    if (!path_join(path, sizeof path, b->dir, "config.json"))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", b->dir);
    if (path_exists(path))
        return true;
    TRY((c = config_shape(b->shape, err)) && dir_make(b->dir, 0777, err) && (dev = device_new(b->device, (int)b->n_thread, err)));
    TRY((m = model_new_random(c, 1, dev, dev->kind == DEVICE_CUDA ? DT_BF16 : DT_F32, err)) && model_save(m, b->dir, err));
    ok = true;
out:
    model_free(m);
    device_free(dev);
    return ok;
}

/* Seconds from submitting a prompt to its first token. */
static bool token_wait(struct generator *g, int64_t item, double *s, struct error *err)
{
    int32_t prompt[N_PROMPT];
    const uint64_t seed = 1;
    struct generator_stats stats;
    for (int k = 0; k < N_PROMPT; k++)
        prompt[k] = 3 + k;
    struct generator_item it = {
        .item = item, .prompt = prompt, .n_prompt = N_PROMPT, .n_sample = 1, .seed = &seed, .sampling = SAMPLING_DEFAULT
    };
    it.sampling.max_new_tok = N_NEW;
    int64_t start = clock_ns();
    generator_stats(g, &stats);
    int64_t before = stats.n_decode_tok;
    if (!generator_submit(g, &it, err))
        return false;
    while (stats.n_decode_tok == before) {
        if (!generator_step(g, err))
            return false;
        generator_stats(g, &stats);
    }
    *s = (double)(clock_ns() - start) * 1e-9;
    while (!generator_idle(g))
        if (!generator_step(g, err))
            return false;
    group_free(generator_poll(g));
    return true;
}

bool bench_start(int argc, char **argv, struct error *err)
{
    bool ok = false;
    struct start_bench b = { .device = "cpu:0", .batch = 64 };
    struct cli_option options[] = {
        { "model", "m", CLI_STR, &b.dir, "DIR", "model directory" },
        { "shape", NULL, CLI_STR, &b.shape, "NAME", "write random weights of this shape there first, unless there are some" },
        { "device", NULL, CLI_STR, &b.device, "NAME", "cpu:0, cuda:0 ... (default cpu:0)" },
        { "threads", NULL, CLI_I64, &b.n_thread, "N", "CPU threads (default: all cores)" },
        { "batch", NULL, CLI_I64, &b.batch, "B", "samples at once that the generator has room for (default 64)" },
        { "max-tok", NULL, CLI_I64, &b.max_tok, "N", "tokens of its longest sequence (default 2048, or what the model takes)" },
    };
    struct cli cli = { .command = "bench start",
                       .options = options,
                       .n_options = ARRAY_SIZE(options),
                       .about = "Loads a model and prints seconds to the first sampled token." };
    struct device *dev = NULL;
    struct model *m = NULL;
    struct generator *g = NULL;
    int64_t at[PART_N + 1];
    double part[PART_N], again;
    if (!cli_parse(&cli, argc, argv, err))
        return false;
    if (cli.help_wanted)
        return true;
    if (!b.dir || b.batch < 1 || b.batch > 65536 || (b.max_tok && b.max_tok < N_PROMPT + N_NEW) || b.max_tok > 1 << 20)
        return error_set(err, ERR_USAGE, "--model is needed; --batch is 1 to 65536, --max-tok %d to 1048576", N_PROMPT + N_NEW);
    TRY(!b.shape || model_write(&b, err));
    at[DEVICE] = clock_ns();
    TRY((dev = device_new(b.device, (int)b.n_thread, err)) != NULL);
    at[LOAD] = clock_ns();
    TRY((m = model_load(b.dir, dev, dev->kind == DEVICE_CUDA ? DT_BF16 : DT_F32, err)) && device_sync(dev, err));
    at[GENERATOR] = clock_ns();
    int64_t most_tok = b.max_tok ? b.max_tok : MIN(MAX_TOK, config_longest(model_config(m)));
    struct generator_config config = { .model = m, .max_seq = b.batch, .max_item = b.batch, .max_seq_tok = most_tok };
    model_length_set(m, config.max_seq_tok);
    TRY((g = generator_new(&config, err)) && device_sync(dev, err));
    at[FIRST_TOKEN] = clock_ns();
    TRY(token_wait(g, 1, &part[FIRST_TOKEN], err) && token_wait(g, 2, &again, err));
    for (int i = 0; i < FIRST_TOKEN; i++)
        part[i] = (double)(at[i + 1] - at[i]) * 1e-9;
    int n_kind = 0, n_disk = 0;
    for (int i = 0; dev->choices && i < dev->choices->n; i++) {
        const struct choice *x = &dev->choices->at[i];
        n_kind += x->state != CHOICE_READ;
        n_disk += x->state != CHOICE_READ && x->from_disk;
    }
    double bytes = (double)config_n_param(model_config(m)) * (double)dtype_size(model_dtype(m));
    printf("{\"bench\":\"start\",\"model\":\"%s\",\"device\":\"%s\",\"what\":\"%s\",\"parameters\":%" PRId64
           ",\"total_s\":%.3f,\"device_s\":%.3f,\"load_s\":%.3f,\"load_gb_per_s\":%.2f,\"generator_s\":%.3f,\"first_token_s\":%.3f,"
           "\"second_prompt_s\":%.4f,\"choose_s\":%.3f,\"kinds\":%d,\"kinds_from_disk\":%d}\n",
           b.shape ? b.shape : b.dir, dev->name, dev->what, config_n_param(model_config(m)),
           part[DEVICE] + part[LOAD] + part[GENERATOR] + part[FIRST_TOKEN], part[DEVICE], part[LOAD], bytes / part[LOAD] * 1e-9,
           part[GENERATOR], part[FIRST_TOKEN], again, dev->choices ? dev->choices->seconds : 0.0, n_kind, n_disk);
    ok = true;
out:
    generator_free(g);
    model_free(m);
    device_free(dev);
    return ok;
}
