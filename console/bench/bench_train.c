/* rollcall bench train: optimizer steps of the trainer itself (packing, forward, backward, clip, AdamW) on random sequences, and
 * their memory use. First the gradient of one GRPO step of small models is compared with the reference's (ref): the shape itself when
 * it is small, else a model with the same kind of heads. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/bench/bench.h"
#include "console/bench/bench_adapter.h"
#include "console/bench/bench_tools.h"
#include "console/bench/bench_train.h"
#include "kernels/trace.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "workers/engine/model/stages.h"
#include "workers/engine/plan/memory_plan.h"
#include "workers/engine/model/team.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/trainer/ranks.h"
#include "workers/engine/trainer/state.h"
#include "workers/engine/trainer/step.h"
#include "workers/engine/trainer/trainer_metrics.h"
#include "workers/engine/trainer/update.h"
#include "workers/engine/model/model.h"
#define CHECK_PARAMS 5000000    // shapes up to this are checked themselves
#define CHECK_SEQ 4
#define CHECK_LEN 64
#define CHECK_PROMPT 20    // which two of them share
#define GRADIENT_SEEDS 8
#define GRADIENT_MORE 1.25    // times the reference's rounding that a device's may be
#define GRADIENT_MOST 2       // times that it may be, whatever the spread over the seeds is
#define GRADIENT_SPREADS 3    // standard errors of the mean over the seeds

double train_flops(const struct model_config *c, int64_t n_seq, int64_t len)
{
    return 3 * config_flops(c, (double)len / 2) * (double)(n_seq * len);
}

void train_groups_free(struct group **g, int64_t n)
{
    for (int64_t i = 0; g && i < n; i++)
        group_free(g[i]);
    free(g);
}

struct group **train_groups_make(int64_t vocab, int64_t n_seq, int64_t len, int64_t n_prompt, int64_t group, int64_t *n_group,
                                 struct error *err)
{
    *n_group = (n_seq + group - 1) / group;
    len -= n_prompt - 1;    // tokens that are sampled: the last of them is no row
    struct group **out = calloc((size_t)*n_group, sizeof *out);
    uint64_t rng = 1;
    if (!out) {
        error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " sequences", n_seq);
        return NULL;
    }
    for (int64_t i = 0; i < *n_group; i++) {
        int32_t n = (int32_t)MIN(n_seq - i * group, group);
        struct group *g = out[i] = group_new(n_prompt, n, n * len, err);
        if (!g) {
            train_groups_free(out, *n_group);
            return NULL;
        }
        g->temperature = 1;
        g->max_new_tok = len;
        for (int64_t k = 0; k < n_prompt; k++)
            g->prompt[k] = (int32_t)((i + 31 * k) % vocab);
        for (int32_t k = 0; k < n; k++)
            g->sample[k] = (struct sample){ .first_tok = k * len,
                                            .n_tok = len,
                                            .score = SCORE_OK,
                                            .finish = FINISH_STOP,
                                            .reward = (i + k) % 3 == 0,
                                            .ans_acc = (float)((i + k) % 3 == 0) };
        for (int64_t k = 0; k < n * len; k++) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            g->token[k] = (int32_t)((rng >> 33) % (uint64_t)vocab);
            g->logp[k] = -logf((float)vocab);
        }
    }
    return out;
}

void train_groups_date(struct group *const *g, int64_t n, int64_t version)
{
    for (int64_t i = 0; i < n; i++)
        g[i]->weight_version = version;
}

void train_hyper_make(struct trainer_hyper *h)
{
    trainer_hyper_init(h);
    h->lr = 1e-5;
    h->form.beta = 0;
    h->has_filter = false;
}

static int train_bench_devices(const struct train_bench *b)
{
    return MAX((int)b->n_team, 1) * MAX((int)b->n_stage, 1);
}

/* Cut *m over the devices. */
static bool team_cut(const struct train_bench *b, struct model **m, struct device *const *all, struct error *err)
{
    struct model *whole = *m;
    if (b->n_team <= 1 && b->n_stage <= 1)
        return true;
    int n_team = MAX((int)b->n_team, 1);
    *m = b->n_stage > 1 ? model_staged_new(whole, all, (int)b->n_stage, n_team, err) : model_sliced_new(whole, all, n_team, err);
    model_free(whole);
    return *m != NULL;
}

/* As a run's plan does (memory_plan.h): keep more of the activations on a GPU that has room for it. */
static bool keep_where_room(const struct model *m, struct trainer_settings *set, struct trainer_memory *need, struct error *err)
{
    size_t have, total;
    struct trainer_memory t;
    struct trainer_settings more = *set;
    more.keep_more = true;
    if (set->recompute_block || set->n_team > 1 || set->n_stage > 1 || model_device(m)->kind != DEVICE_CUDA)
        return true;
    trainer_memory(m, &more, &t);
    if (!mem_info(model_device(m), &have, &total, err))
        return false;
    if (t.activation + t.gradient + t.state + RESERVE_CUDA <= have) {
        *set = more;
        *need = t;
    }
    return true;
}

bool train_bench_run(struct train_bench *b, struct error *err)
{
    bool ok = false;
    double took[TRAIN_ROUNDS_MAX], grad_norm;
    struct device *dev = device_new(b->device, b->n_thread, err), *all[SUM_PARTS_MAX] = { dev };
    struct model *m = NULL;
    struct trainer *t = NULL;
    struct trainer_hyper h;
    struct trainer_memory need;
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    int64_t n_group = 0;
    struct group **g = NULL;
    size_t total, at_start, at_first, now, weight_bytes;
    if (!dev)
        return false;
    set.token_budget_max = b->token_budget ? b->token_budget : b->n_seq * b->len;
    set.recompute_block = b->recompute_block;
    set.run_all = true;
    set.share_prompts = !b->apart;
    train_hyper_make(&h);
    TRY(g = train_groups_make(b->n_live ? b->n_live : b->config->vocab, b->n_seq, b->len, b->n_prompt, b->group, &n_group, err));
    TRY(mem_info(dev, &at_start, &total, err));
    bool cut = train_bench_devices(b) > 1;    // then the first device has no more than its part of the weights
    TRY(m = cut ? model_random_open(b->config, 1, dev, b->dtype, err) : model_new_random(b->config, 1, dev, b->dtype, err));
    TRY(model_parts_set(m, b->parts > 1 ? (int)b->parts : 0, err));
    if (b->n_live)
        model_n_live_set(m, b->n_live);
    TRY(bench_adapter(m, b->lora_rank, true, err) && bench_devices_after(all, train_bench_devices(b), b->n_thread, err)
        && team_cut(b, &m, all, err));
    set.n_team = (int)b->n_team;
    set.n_stage = (int)b->n_stage;
    weight_bytes = model_held_bytes(m);
    set.offload = b->host_share > 0;
    b->host_bytes = 0;
    for (int q = 0; q < trainer_devices(&set); q++) {
        trainer_memory_of_device(m, &set, q, &need);    // with state_bytes 0: all of it in host memory, and the stage on the device
        set.state_bytes[q] = (size_t)((1 - b->host_share) * (double)need.host) + need.state;
        trainer_memory_of_device(m, &set, q, &need);
        b->host_bytes += need.host;
    }
    trainer_memory(m, &set, &need);
    TRY(keep_where_room(m, &set, &need, err));
    b->planned_bytes = weight_bytes + need.activation + need.gradient + need.state;
    TRY(t = trainer_new(m, NULL, &set, err));
    for (int r = -2; r < b->rounds; r++) {
        struct trainer_sums sums;
        int64_t t0 = clock_ns();
        train_groups_date(g, n_group, b->stale ? 0 : trainer_version(t));
        TRY(trainer_begin(t, (const struct group *const *)g, n_group, &h, err));
        TRY(trainer_grad(t, &h, &sums, err));
        TRY(trainer_apply(t, &h, &grad_norm, err));
        b->shared = sums.n_shared_tok / sums.n_packed_tok;
        if (r >= 0)
            took[r] = (double)(clock_ns() - t0) * 1e-9;
        if (r == -2)
            TRY(mem_info(dev, &at_first, &total, err));
        if (r == -1 && b->profile)
            TRY(trace_start(dev, 100000, err));
    }
    TRY(mem_info(dev, &now, &total, err));
    b->used_bytes = at_start > now ? at_start - now : 0;    // on a CPU other load comes and goes
    b->grown_bytes = at_first > now ? at_first - now : 0;
    b->step_s = bench_median(took, b->rounds);
    ok = trainer_hash(t, &b->hash, err);
out:
    if (dev->trace) {
        trace_print(dev);
        ok = trace_stop(dev, b->profile, err) && ok;
    }
    train_groups_free(g, n_group);
    trainer_free(t);
    model_free(m);
    for (int q = 0; q < SUM_PARTS_MAX; q++)
        device_free(all[q]);
    return ok;
}

/* The gradient of one GRPO step of random weights on this device (model_n_flat floats, for free()); NULL: see err. */
static float *gradient_of(const struct model_config *c, const char *device, enum dtype dtype, int64_t lora_rank, uint64_t seed,
                          const struct group *const *g, int64_t n_group, int64_t *n_flat, struct error *err)
{
    bool ok = false;
    float *grad = NULL;
    struct device *dev = device_new(device, 0, err);
    struct model *m = dev ? model_new_random(c, seed, dev, dtype, err) : NULL;
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    struct trainer *t = NULL;
    struct trainer_hyper h;
    struct trainer_sums sums;
    train_hyper_make(&h);
    set.token_budget_max = CHECK_LEN * CHECK_SEQ / 2;    // two micro-batches
    h.form.clip_low = 1;                                 // no token is at an edge, to be clipped by rounding here and not there
    h.form.clip_high = 1e6f;
    TRY(m && bench_adapter(m, lora_rank, true, err) && (t = trainer_new(m, NULL, &set, err)));
    *n_flat = model_n_flat(m);
    if (!(grad = malloc((size_t)*n_flat * 4))) {
        error_set(err, ERR_NO_MEMORY, "no memory for a gradient of %" PRId64 " elements", *n_flat);
        goto out;
    }
    TRY(trainer_begin(t, g, n_group, &h, err) && trainer_grad(t, &h, &sums, err));
    ok = trainer_grad_get(t, grad, err);
out:
    trainer_free(t);
    model_free(m);
    device_free(dev);
    if (!ok) {
        free(grad);
        return NULL;
    }
    return grad;
}

/* How far the gradients of one step are from each other, as shares of the norm; means over GRADIENT_SEEDS models. */
struct gradient_apart {
    double between;              // this device and the other, both in the run's type
    double here, there;          // each of them and fp32
    double excess, excess_sq;    // here - GRADIENT_MORE there, and its square
};

static bool gradient_apart_add(const struct model_config *c, const char *device, const char *other, enum dtype dtype, int64_t lora_rank,
                               uint64_t seed, struct gradient_apart *apart, struct error *err)
{
    bool ok = false;
    int64_t n_group, n = 0;
    float *here = NULL, *there = NULL, *exact = NULL;
    struct group **g = train_groups_make(c->vocab, CHECK_SEQ, CHECK_LEN, CHECK_PROMPT, CHECK_SEQ, &n_group, err);
    if (!g)
        return false;
    const struct group *const *in = (const struct group *const *)g;
    TRY(here = gradient_of(c, device, dtype, lora_rank, seed, in, n_group, &n, err));
    TRY(there = gradient_of(c, other, dtype, lora_rank, seed, in, n_group, &n, err));
    TRY(exact = dtype == DT_F32 ? there : gradient_of(c, "cpu:0", DT_F32, lora_rank, seed, in, n_group, &n, err));    // ref is slow
    double to_here = bench_distance(here, exact, n), to_there = bench_distance(there, exact, n);
    double excess = to_here - GRADIENT_MORE * to_there;
    apart->between += bench_distance(here, there, n) / GRADIENT_SEEDS;
    apart->here += to_here / GRADIENT_SEEDS;
    apart->there += to_there / GRADIENT_SEEDS;
    apart->excess += excess / GRADIENT_SEEDS;
    apart->excess_sq += excess * excess / GRADIENT_SEEDS;
    ok = true;
out:
    free(here);
    free(there);
    if (exact != there)
        free(exact);
    train_groups_free(g, n_group);
    return ok;
}

/* The standard error of apart->excess. */
static double excess_error(const struct gradient_apart *apart)
{
    return sqrt(MAX(apart->excess_sq - apart->excess * apart->excess, 0.0) / (GRADIENT_SEEDS - 1));
}

/* Is this device's gradient right? In fp32 it is within 1e-4 of the reference's. In bf16 both round, each in its own places, so that
 * their distance from each other says nothing. What counts is each one's distance from the CPU's fp32 (which such a check in fp32 compares
 * with the reference's): this device's is at most GRADIENT_MORE times that of the reference's bf16. A seed in which one of them happens to
 * round an attention weight of a near tie otherwise is several times as far as the next, so that the mean over the seeds is held against
 * its own standard error; and no spread excuses more than GRADIENT_MOST times the reference's. */
static bool gradient_check(const struct model_config *shape, const char *device, enum dtype dtype, int64_t lora_rank,
                           struct gradient_apart *apart, bool *same, struct error *err)
{
    struct model_config c = *shape;
    if (config_n_param(&c) > CHECK_PARAMS) {
        c.n_layer = 2;
        c.n_head = MIN(c.n_head / c.n_kv_head, 8);    // one KV head of the same size and group
        c.n_kv_head = 1;
        c.d_model = 256;
        c.d_ff = 512;
        c.experts.d_ff = MIN(c.experts.d_ff, 128);
        c.experts.k = MIN(c.experts.k, 4);
        c.experts.n = MIN(c.experts.n, 16);
        c.vocab = 512;
        c.initializer_range = 0.2;
    }
    *apart = (struct gradient_apart){ 0 };
    for (uint64_t seed = 1; seed <= GRADIENT_SEEDS; seed++)
        if (!gradient_apart_add(&c, device, "ref", dtype, lora_rank, seed, apart, err))
            return false;
    *same = dtype == DT_F32 ? apart->between <= 1e-4
                            : apart->excess <= GRADIENT_SPREADS * excess_error(apart) && apart->here <= GRADIENT_MOST * apart->there;
    return true;
}

bool bench_train(int argc, char **argv, struct error *err)
{
    const char *shape = "starter", *dtype_name = "auto";
    int64_t tokens = 2048, n_thread = 0, rounds = 7;
    struct train_bench b = { .device = "cpu:0", .len = 256, .n_prompt = 1, .group = TRAIN_GROUP };
    struct cli_option options[] = {
        { "shape", NULL, CLI_STR, &shape, "NAME", "random weights of this shape, e.g. Qwen2.5-0.5B (starter)" },
        { "device", NULL, CLI_STR, &b.device, "NAME", "cpu:0, cuda:0 ... (cpu:0)" },
        { "dtype", NULL, CLI_STR, &dtype_name, "TYPE", "float32, bfloat16 or auto: float32 on a CPU, bfloat16 on a GPU" },
        { "seq", NULL, CLI_I64, &b.len, "N", "tokens of a sequence (256)" },
        { "prompt", NULL, CLI_I64, &b.n_prompt, "N", "of them, those of the prompt (1)" },
        { "group", NULL, CLI_I64, &b.group, "G", "sequences that have one prompt, which is computed once (64)" },
        { "apart", NULL, CLI_FLAG, &b.apart, NULL, "compute it for each: share_prompts false" },
        { "tokens", NULL, CLI_I64, &tokens, "N", "tokens of an optimizer step (2048)" },
        { "micro", NULL, CLI_I64, &b.token_budget, "N", "tokens of a micro-batch; 0: all at once" },
        { "host-share", NULL, CLI_F64, &b.host_share, "F", "share of masters and moments in host memory, 0 to 1 (0)" },
        { "live", NULL, CLI_I64, &b.n_live, "N", "only ids below this occur, as with a tokenizer that has no more (0: all)" },
        { "sum-parts", NULL, CLI_I64, &b.parts, "S", "sums in S parts, as the setting sum_parts (1; with --tp 4)" },
        { "tp", NULL, CLI_I64, &b.n_team, "N", "compute on N devices, --device and those after it, as a team (1)" },
        { "pp", NULL, CLI_I64, &b.n_stage, "N", "compute as a pipeline of N stages of layers, each on a device or a team (1)" },
        { "lora-rank", NULL, CLI_I64, &b.lora_rank, "R", "train an adapter of this rank on all modules, the model frozen (0: train all)" },
        { "recompute-full", NULL, CLI_FLAG, &b.recompute_block, NULL, "keep only the blocks' inputs" },
        { "stale", NULL, CLI_FLAG, &b.stale, NULL, "samples of earlier weights: their log-probs are needed before the loss" },
        { "threads", NULL, CLI_I64, &n_thread, "N", "CPU threads; 0: all" },
        { "rounds", NULL, CLI_I64, &rounds, "N", "steps timed; the median counts (7)" },
        { "profile", NULL, CLI_STR, &b.profile, "FILE", "time of each operation: a table, and the timeline to FILE" },
    };
    struct cli cli = { .command = "rollcall bench train",
                       .options = options,
                       .n_options = ARRAY_SIZE(options),
                       .about = "Whole training steps: forward, backward, clip, AdamW, on packed random sequences.\n" };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (rounds < 1 || rounds > TRAIN_ROUNDS_MAX || b.len < 2 || tokens < b.len || tokens > 1 << 24 || n_thread < 0 || n_thread > 256)
        return error_set(err, ERR_USAGE, "--rounds must be 1 to %d, --seq 2 to --tokens, --threads 0 to 256", TRAIN_ROUNDS_MAX);
    if ((b.token_budget && b.token_budget < b.len) || !(b.host_share >= 0 && b.host_share <= 1))
        return error_set(err, ERR_USAGE, "--micro must be 0 or at least --seq, --host-share 0 to 1");
    if (b.n_prompt < 1 || b.n_prompt >= b.len || b.group < 1 || b.group > 1024)
        return error_set(err, ERR_USAGE, "--prompt must be 1 to below --seq, --group 1 to 1024");
    bool cuda = strncmp(b.device, "cuda:", 5) == 0, bf16 = strcmp(dtype_name, "bfloat16") == 0 || (cuda && strcmp(dtype_name, "auto") == 0);
    if (!bf16 && strcmp(dtype_name, "auto") != 0 && strcmp(dtype_name, "float32") != 0)
        return error_set(err, ERR_USAGE, "--dtype is '%s'; it may be auto, float32 or bfloat16", dtype_name);
    struct gradient_apart apart;
    bool same;
    b.n_thread = (int)n_thread;
    b.dtype = bf16 ? DT_BF16 : DT_F32;
    b.n_seq = tokens / b.len;
    b.rounds = (int)rounds;
    if (!(b.config = config_shape(shape, err)))
        return false;
    if (b.n_team < 0 || b.n_team > SUM_PARTS_MAX || b.parts < 0 || b.parts > SUM_PARTS_MAX || (b.n_team > 1 && b.lora_rank > 0))
        return error_set(err, ERR_USAGE, "--tp and --sum-parts are 1 to %d, and --tp goes without --lora-rank", SUM_PARTS_MAX);
    if (b.n_stage < 0 || b.n_stage > SUM_PARTS_MAX || train_bench_devices(&b) > SUM_PARTS_MAX || (b.n_stage > 1 && b.lora_rank > 0))
        return error_set(err, ERR_USAGE, "--pp is 1 to %d, so is --tp times --pp, and --pp goes without --lora-rank", SUM_PARTS_MAX);
    b.parts = b.parts ? b.parts : b.n_team > 1 ? MAX(b.n_team, (int64_t)4) : 1;
    if (b.n_live < 0 || b.n_live > b.config->vocab)
        return error_set(err, ERR_USAGE, "--live is %" PRId64 "; the model knows %" PRId64 " ids", b.n_live, b.config->vocab);
    if (!gradient_check(b.config, b.device, b.dtype, b.lora_rank, &apart, &same, err) || !train_bench_run(&b, err))
        return false;
    /* frozen matrices have no gradient, a third of the products; an adapter's own products are few and not counted */
    double frozen = b.lora_rank > 0 ? 2 * (double)(config_n_active(b.config) * b.n_seq * b.len) : 0;
    double rate = (1 - b.shared) * (train_flops(b.config, b.n_seq, b.len) - frozen) / b.step_s * 1e-12;
    printf("{\"bench\":\"train\",\"model\":\"%s\",\"device\":\"%s\",\"dtype\":\"%s\",\"lora_rank\":%" PRId64 ",\"seq\":%" PRId64
           ",\"prompt\":%" PRId64 ",\"group\":%" PRId64 ",\"shared\":%.4f,\"tokens\":%" PRId64 ",\"micro\":%" PRId64 ",\"devices\":%" PRId64
           ",\"stages\":%" PRId64 ",\"sum_parts\":%" PRId64 ",\"hash\":\"%016" PRIx64 "\","
           "\"ms\":%.2f,\"tok_per_s\":%.0f,\"tflops\":%.3f,\"memory_gb\":%.3f,\"planned_gb\":%.3f,\"host_gb\":%.3f,\"grown_mb\":%.1f,"
           "\"gradient_distance\":%.2g,\"gradient_to_fp32\":%.3g,\"gradient_to_fp32_ref\":%.3g,\"gradient_excess\":%.3g,"
           "\"gradient_excess_error\":%.3g,\"check\":%s",
           shape, b.device, bf16 ? "bf16" : "fp32", b.lora_rank, b.len, b.n_prompt, b.group, b.shared, (b.n_seq * b.len),
           (b.token_budget ? b.token_budget : b.n_seq * b.len), (int64_t)train_bench_devices(&b), MAX(b.n_stage, (int64_t)1), b.parts,
           b.hash, b.step_s * 1e3, (double)(b.n_seq * b.len) / b.step_s, rate, (double)b.used_bytes * 1e-9, (double)b.planned_bytes * 1e-9,
           (double)b.host_bytes * 1e-9, (double)b.grown_bytes * 1e-6, apart.between, apart.here, apart.there, apart.excess,
           excess_error(&apart), same ? "true" : "false");
    if (cuda && bf16)    // a large bf16 product on an H200, random data
        printf(",\"roofline\":%.3f", rate / 790);
    printf("}\n");
    return true;
}
