/* bench_ranks.c - optimizer steps that several devices share, a process each, as the trainers of a run do: how long they take, how
 * much of that a rank stood still for the others or for what was on its way, and the hash of the weights after the last one
 *
 * With one device it is the measure for the others: the same batch leaves the same hash on any number of them, whatever each keeps.
 * Random weights, random sequences of one length. The first steps are not timed. Times are medians, of the first rank. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "console/bench/bench.h"
#include "console/bench/bench_tools.h"
#include "console/bench/bench_train.h"
#include "kernels/collective/collective.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/settings/metrics.h"
#include "workers/engine/model/model.h"
#include "workers/engine/trainer/ranks.h"
#include "workers/engine/trainer/trainer.h"

#define RANKS_MAX 8
#define WARM 2            // steps that are not timed
#define WAIT_MS 600000    // for another rank: it may be drawing its weights

struct plan {
    const char *shape, *dtype, *collective;
    const struct model_config *config;
    char device[RANKS_MAX][32];
    int n_rank;
    bool bf16, recompute;
    int64_t len, tokens, micro, zero, rounds;
    double host_share;
    char dir[64];    // where they meet
};
struct result {
    bool ok;
    double step_s, exposed_s, idle_s, reduce_s, gather_s, sent_gb;
    double memory_gb, planned_gb;    // of the rank that uses most
    uint64_t hash;
    char text[256];
};

/* The steps of one rank, with what it needs made and met. */
static bool steps_run(const struct plan *p, const struct trainer *t, struct ranks *ranks, struct group *const *g, int64_t n_group,
                      struct result *out, struct error *err)
{
    static const enum metric_id told[] = { M_RANKS_EXPOSED_S, M_RANKS_IDLE_S, M_RANKS_REDUCE_S, M_RANKS_GATHER_S };
    double *const at[] = { &out->exposed_s, &out->idle_s, &out->reduce_s, &out->gather_s };
    double step[TRAIN_ROUNDS_MAX], of_step[ARRAY_SIZE(told)][TRAIN_ROUNDS_MAX], metric[METRIC_N];
    struct trainer_hyper h;
    train_hyper_make(&h);
    for (int64_t r = -WARM; r < p->rounds; r++) {
        int64_t t0 = clock_ns();
        train_groups_date(g, n_group, trainer_version(t));
        if (!ranks_step(ranks, (const struct group *const *)g, n_group, &h, metric, err))
            return false;
        if (r < 0)
            continue;
        step[r] = (double)(clock_ns() - t0) * 1e-9;
        for (size_t k = 0; k < ARRAY_SIZE(told); k++)
            of_step[k][r] = p->n_rank > 1 ? metric[told[k]] : 0;
        out->sent_gb = p->n_rank > 1 ? metric[M_RANKS_SENT_GB] : 0;
    }
    out->step_s = bench_median(step, p->rounds);
    for (size_t k = 0; k < ARRAY_SIZE(told); k++)
        *at[k] = bench_median(of_step[k], p->rounds);
    return true;
}

static bool rank_run(const struct plan *p, int rank, struct result *out, struct error *err)
{
    bool ok = false;
    int64_t n_group = 0;
    size_t total, at_start, now;
    struct trainer_memory need;
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    struct device *dev = device_new(p->device[rank], 0, err);
    struct group **g = train_groups_make(p->config->vocab, p->tokens / p->len, p->len, 1, TRAIN_GROUP, &n_group, err);
    struct model *m = NULL;
    struct trainer *t = NULL;
    struct collective *c = NULL;
    struct ranks *ranks = NULL;
    struct collective_config meet = { .kind = p->collective,
                                      .dir = p->dir,
                                      .name = "ranks",
                                      .rank = rank,
                                      .n_rank = p->n_rank,
                                      .dev = dev,
                                      .join_ms = WAIT_MS,
                                      .wait_ms = WAIT_MS };
    set.token_budget_max = p->micro ? p->micro : p->tokens;
    set.recompute_block = p->recompute;
    set.run_all = true;
    set.n_rank = p->n_rank;
    set.rank = rank;
    set.zero_stage = (int)p->zero;
    TRY(dev && g && mem_info(dev, &at_start, &total, err));
    TRY(m = model_random_open(p->config, 1, dev, p->bf16 ? DT_BF16 : DT_F32, err));    // the trainer takes what it keeps
    set.offload = p->host_share > 0;
    trainer_memory(m, &set, &need);    // with state_bytes 0: all of it in host memory, and the stage on the device
    set.state_bytes[0] = (size_t)((1 - p->host_share) * (double)need.host) + need.state;
    TRY(t = trainer_new(m, NULL, &set, err));
    TRY(c = collective_join(&meet, err));
    TRY(ranks = ranks_new(t, &c, err));
    TRY(steps_run(p, t, ranks, g, n_group, out, err));
    TRY(ranks_hash(ranks, &out->hash, err) && mem_info(dev, &now, &total, err));
    trainer_memory(m, &set, &need);
    out->planned_gb = (double)(need.weight + need.activation + need.gradient + need.state) * 1e-9;
    out->memory_gb = at_start > now ? (double)(at_start - now) * 1e-9 : 0;
    ok = true;
out:
    ranks_free(ranks);
    collective_leave(c);
    trainer_free(t);
    model_free(m);
    train_groups_free(g, n_group);
    device_free(dev);
    return ok;
}

/* A rank's process; its result goes to fd. */
static pid_t rank_start(const struct plan *p, int rank, int fd)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    struct error err = { 0 };
    struct result r = { 0 };
    r.ok = rank_run(p, rank, &r, &err);
    snprintf(r.text, sizeof r.text, "%s: %.200s", p->device[rank], err.text);
    _exit(write(fd, &r, sizeof r) == (ssize_t)sizeof r ? 0 : 1);
}

/* All ranks' results; *same: all hold the same weights. */
static bool ranks_run(const struct plan *p, struct result *first, bool *same, struct error *err)
{
    struct result all[RANKS_MAX] = { 0 };
    int link[RANKS_MAX][2];
    pid_t pid[RANKS_MAX];
    bool ok = true;
    int n = 0;
    if (!collective_call(p->dir, "ranks", err))
        return false;
    for (; n < p->n_rank && ok; n++) {
        if (pipe(link[n]) != 0) {
            ok = error_errno(err, "cannot start rank %d", n);
            break;
        }
        pid[n] = rank_start(p, n, link[n][1]);
        if (pid[n] < 0)    // its pipe is at its end at once
            ok = error_errno(err, "cannot start rank %d", n);
        close(link[n][1]);
    }
    for (int r = 0; r < n; r++) {
        int status;
        bool whole = read(link[r][0], &all[r], sizeof all[r]) == (ssize_t)sizeof all[r];
        close(link[r][0]);
        if (pid[r] > 0)
            waitpid(pid[r], &status, 0);
        /* one that left because another failed has nothing to add */
        if ((!whole || !all[r].ok) && (ok || strstr(err->text, "another rank has left")))
            ok = error_set(err, ERR_INTERNAL, "%s", whole ? all[r].text : "a rank has died");
    }
    *first = all[0];
    *same = true;
    for (int r = 1; r < p->n_rank && ok; r++) {
        *same = *same && all[r].hash == all[0].hash;
        first->memory_gb = MAX(first->memory_gb, all[r].memory_gb);
    }
    return ok;
}

static bool plan_check(struct plan *p, const char *devices, struct error *err)
{
    for (const char *at = devices; *at;) {
        size_t n = strcspn(at, ",");
        if (p->n_rank == RANKS_MAX || n == 0 || n >= sizeof p->device[0])
            return error_set(err, ERR_USAGE, "--devices is '%s'; it names up to %d devices, such as cuda:0,cuda:1", devices, RANKS_MAX);
        snprintf(p->device[p->n_rank++], sizeof p->device[0], "%.*s", (int)n, at);
        at += n + (at[n] == ',');
    }
    if (p->n_rank < 1 || p->rounds < 1 || p->rounds > TRAIN_ROUNDS_MAX || p->zero < 0 || p->zero > 3)
        return error_set(err, ERR_USAGE, "--devices names at least one, --rounds goes from 1 to %d, --zero from 0 to 3", TRAIN_ROUNDS_MAX);
    if (!(p->host_share >= 0 && p->host_share <= 1))
        return error_set(err, ERR_USAGE, "--host-share is 0 to 1");
    if (p->len < 2 || p->tokens < p->len || p->tokens > 1 << 24 || (p->micro && p->micro < p->len))
        return error_set(err, ERR_USAGE, "--seq is at least 2, --tokens and --micro at least --seq");
    bool cuda = strncmp(p->device[0], "cuda:", 5) == 0;
    p->bf16 = strcmp(p->dtype, "bfloat16") == 0 || (cuda && strcmp(p->dtype, "auto") == 0);
    if (!p->bf16 && strcmp(p->dtype, "auto") != 0 && strcmp(p->dtype, "float32") != 0)
        return error_set(err, ERR_USAGE, "--dtype is '%s'; it may be auto, float32 or bfloat16", p->dtype);
    return (p->config = config_shape(p->shape, err)) != NULL;
}

bool bench_ranks(int argc, char **argv, struct error *err)
{
    const char *devices = "cpu:0,cpu:1";
    struct plan p = {
        .shape = "starter", .dtype = "auto", .collective = "ipc", .len = 256, .tokens = 2048, .micro = 512, .zero = 1, .rounds = 3
    };
    struct cli_option options[] = {
        { "shape", NULL, CLI_STR, &p.shape, "NAME", "random weights of this shape, e.g. Qwen2.5-0.5B (starter)" },
        { "devices", NULL, CLI_STR, &devices, "NAMES", "one rank on each (cpu:0,cpu:1)" },
        { "dtype", NULL, CLI_STR, &p.dtype, "TYPE", "float32, bfloat16 or auto: float32 on a CPU, bfloat16 on a GPU" },
        { "zero", NULL, CLI_I64, &p.zero, "N",
          "what a rank keeps of its shards only: 0 nothing, 1 masters and moments, 2 gradients too, 3 weights too (1)" },
        { "collective", NULL, CLI_STR, &p.collective, "KIND", "how they exchange: ipc, local, tcp or nccl (ipc)" },
        { "seq", NULL, CLI_I64, &p.len, "N", "tokens of a sequence (256)" },
        { "tokens", NULL, CLI_I64, &p.tokens, "N", "tokens of an optimizer step, of all ranks (2048)" },
        { "micro", NULL, CLI_I64, &p.micro, "N", "tokens of a micro-batch; 0: all at once (512)" },
        { "host-share", NULL, CLI_F64, &p.host_share, "F", "share of masters and moments in host memory, 0 to 1 (0)" },
        { "recompute-full", NULL, CLI_FLAG, &p.recompute, NULL, "keep only the blocks' inputs" },
        { "rounds", NULL, CLI_I64, &p.rounds, "N", "steps timed; the medians count (3)" },
    };
    struct cli cli = { .command = "rollcall bench ranks",
                       .options = options,
                       .n_options = ARRAY_SIZE(options),
                       .about = "Training steps that several devices share, and the hash of the weights they leave.\n" };
    struct result r;
    bool same;
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (!plan_check(&p, devices, err))
        return false;
    snprintf(p.dir, sizeof p.dir, "/tmp/rollcall-ranks-XXXXXX");
    if (!mkdtemp(p.dir))
        return error_errno(err, "cannot make '%s'", p.dir);
    struct error ignored;
    bool ok = ranks_run(&p, &r, &same, err);
    (void)!dir_remove(p.dir, &ignored);
    if (!ok)
        return false;
    double rate = train_flops(p.config, p.tokens / p.len, p.len) / r.step_s * 1e-12 / p.n_rank;
    printf(
        "{\"bench\":\"ranks\",\"model\":\"%s\",\"devices\":\"%s\",\"zero\":%" PRId64 ",\"host_share\":%g,\"dtype\":\"%s\",\"seq\":%" PRId64
        ",\"tokens\":%" PRId64 ",\"micro\":%" PRId64 ",\"steps\":%" PRId64 ",\"ms\":%.2f,\"tok_per_s\":%.0f,\"tflops_each\":%.1f,"
        "\"collective\":\"%s\",\"exposed_ms\":%.2f,\"exposed\":%.4f,\"idle_ms\":%.2f,\"reduce_ms\":%.2f,\"gather_ms\":%.2f,\"sent_gb\":%.3f,\"memory_gb\":%.3f,\"planned_gb\":%.3f,\"hash\":\"%016" PRIx64
        "\",\"check\":%s}\n",
        p.shape, devices, p.zero, p.host_share, p.bf16 ? "bf16" : "fp32", p.len, p.tokens / p.len * p.len, p.micro, p.rounds + WARM,
        r.step_s * 1e3, (double)(p.tokens / p.len * p.len) / r.step_s, rate, p.collective, r.exposed_s * 1e3, r.exposed_s / r.step_s,
        r.idle_s * 1e3, r.reduce_s * 1e3, r.gather_s * 1e3, r.sent_gb, r.memory_gb, r.planned_gb, r.hash, same ? "true" : "false");
    return true;
}
