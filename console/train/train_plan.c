/* What --dry-run prints: placement, batch arithmetic, memory, what trainers exchange, seconds per step. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/train/train_parts.h"
#include "kernels/ops.h"
#include "protocol/base/machine.h"
#include "workers/engine/model/config.h"
#include "workers/engine/model/pipeline.h"

/* The name of the trainer's device q, in the order of team_slice. */
static void trainer_device_name(const struct run_config *c, int64_t rank, int q, char *out, size_t size)
{
    const char *at = c->devices;
    for (int64_t r = 0; r < rank; r++)
        at += strcspn(at, ",") + 1;
    if (q == 0)
        snprintf(out, size, "%.*s", (int)MIN(strcspn(at, ","), size - 1), at);
    else
        run_config_trainer_helper(c, rank, q - 1, out, size);
}

/* Name the devices of stage q of each trainer of this machine. */
static void stage_devices(const struct run_config *c, int q, struct buf *out)
{
    int n_team = (int)c->tensor_parallel_size;
    for (int64_t r = 0; r < run_config_trainers_here(c); r++)
        for (int i = 0; i < n_team; i++) {
            char name[64];
            trainer_device_name(c, r, q * n_team + i, name, sizeof name);
            buf_fmt(out, "%s%s", i > 0 ? " and " : r ? ", " : "", name);
        }
}

static bool part_keeps_whole(const struct run_config *c, const struct run_part *part, int zero_stage)
{
    struct holder h = holder_of(c, part, run_config_apart(c), zero_stage);
    struct holdings holdings;
    holdings_of(&holdings, &h);
    return holdings_find(&holdings, HOLDS_CURRENT, HELD_WHOLE);
}

/* Does the trainer of this rank keep the whole weights beside what it trains, if that is not whole? zero_stage: that the trainers have. */
static bool keeps_whole(const struct run_config *c, int64_t rank, int zero_stage)
{
    bool samples = !run_config_posted(c) && strcmp(c->placement, "apart") != 0 && rank < c->num_inferencer;
    return part_keeps_whole(c, &(struct run_part){ .rank = rank, .producer = samples ? rank : -1, .helps = -1 }, zero_stage);
}

/* As a clause: which devices keep the whole weights, where trainers have several devices each. */
static const char *whole_text(const struct run_config *c, int zero_stage, char *out, size_t size)
{
    bool gives = part_keeps_whole(c, &(struct run_part){ .rank = 0, .producer = -1, .helps = -1 }, zero_stage),
         next = c->num_trainers > 1 && keeps_whole(c, 1, zero_stage);
    snprintf(out, size, ";\n                %s device also keeps the whole weights, to %s",
             c->num_trainers == 1 || next ? "the first" : "the first one's first", gives ? "publish" : "sample");
    return keeps_whole(c, 0, zero_stage) ? out : "";
}

/* The trainers' pipelines: what each device has. room: has the zero_stage that auto has chosen; or zeros. */
static void stages_print(const struct run_config *c, const struct run_room *room)
{
    struct run_stage stage[PIPELINE_STAGES_MAX];
    int n = (int)c->pipeline_parallel_size;
    char name[64];
    struct error err;
    double mib = 1 << 20;
    if (n == 1)
        return;
    snprintf(name, sizeof name, "%.*s", (int)MIN(strcspn(c->devices, ","), sizeof name - 1), c->devices);
    struct device *dev = device_new(name, (int)c->threads, &err);
    bool several = c->num_trainers > 1;
    int zero = !several ? 0 : run_config_zero(c) < 0 ? MAX(room->plan.zero_stage, 1) : run_config_zero(c);
    bool ok = dev && run_stages_room(stage, c, zero, room->state_bytes, dev, &err);
    device_free(dev);
    if (!ok)
        return;
    char each[32] = "", whole[128];
    const char *most = c->offload_optimizer && c->tensor_parallel_size > 1 ? "at most " : "";    // each device has state as it has room
    if (c->tensor_parallel_size > 1)
        snprintf(each, sizeof each, " of %" PRId64 " devices", c->tensor_parallel_size);
    printf("%s a pipeline of %d stages%s (1F1B), idle for %d of m + %d turns with m micro-batches\n"
           "                %sin a step%s%s",
           several ? "trainers:       each" : "trainer:       ", n, each, n - 1, n - 1, several ? "of its own " : "",
           whole_text(c, zero, whole, sizeof whole), several ? ". With zero_stage " : "");
    if (several)
        printf("%d", zero);
    printf("\n");
    for (int q = 0; q < n; q++) {
        char layers[48];
        const struct run_stage *s = &stage[q];
        if (s->end - s->first == 1)
            snprintf(layers, sizeof layers, "layer %" PRId64, s->first);
        else
            snprintf(layers, sizeof layers, "layers %" PRId64 " to %" PRId64, s->first, s->end - 1);
        struct buf names = BUF_INIT;
        stage_devices(c, q, &names);
        printf("                %s: %s%s%s: %s%.4g MiB%s of weights, gradient, masters and moments,\n"
               "                and %.4g MiB for activations of %d micro-batch%s\n",
               buf_text(&names), layers, s->has_embedding ? ", embedding" : "", q == n - 1 ? ", head" : "", most, (double)s->kept / mib,
               each[0] ? " each" : "", (double)s->activation / mib, s->n_set, s->n_set == 1 ? "" : "es");
        buf_release(&names);
    }
}

static void placement_print(const struct train *t, const struct run_room *room)
{
    const struct run_config *c = &t->config;
    int64_t n = run_config_n_worker(c);
    printf("processes:      keeper, agent, controller, %sscorer, %" PRId64 " worker%s\n", run_config_posted(c) ? "environments, " : "", n,
           n == 1 ? "" : "s");
    const char *title = "placement:      ", *how = run_config_n_host(c) > 1 ? run_config_collective(c) : c->collective;
    for (const char *at = c->devices; *at; at += at[strcspn(at, ",")] ? strcspn(at, ",") + 1 : strcspn(at, ",")) {
        struct error err;
        struct run_part part;
        char device[64], role[64];
        snprintf(device, sizeof device, "%.*s", (int)MIN(strcspn(at, ","), (size_t)50), at);
        char url[280] = "";
        bool outside = run_config_engine(c, device, url, sizeof url);
        if (run_config_part(c, device, &part, &err))
            printf("%s%s: %s%s%s%s%s\n", title, device, run_part_text(&part, role, sizeof role), outside ? ", " : "",
                   outside ? c->backend : "", outside ? " at " : "", url);
        title = "                ";
    }
    for (int64_t first = c->trainers_per_node; run_config_n_host(c) > 1 && first < c->num_trainers; first += c->trainers_per_node) {
        int64_t n_there = run_config_trainers_at(c, first), n_device = run_config_devices_at(c, first);
        printf("                a node that joins at %s with %" PRId64 " device%s: trainer%s %" PRId64, c->listen, n_device,
               n_device == 1 ? "" : "s", n_there == 1 ? "" : "s", first);
        if (n_there > 1)
            printf(" to %" PRId64, first + n_there - 1);
        printf(", samples too\n");
    }
    int64_t n_device = run_config_trainer_devices(c);
    if (c->num_trainers > 1 || n_device > 1 || c->producer_tensor_parallel_size > 1) {
        printf("layout:         %" PRId64 " trainer%s on %" PRId64 " device%s each", c->num_trainers, c->num_trainers == 1 ? "" : "s",
               n_device, n_device == 1 ? "" : "s");
        if (!run_config_posted(c))
            printf("; %" PRId64 " producer%s on %" PRId64 " device%s each", c->num_inferencer, c->num_inferencer == 1 ? "" : "s",
                   c->producer_tensor_parallel_size, c->producer_tensor_parallel_size == 1 ? "" : "s");
        printf("%s%s\n", c->num_trainers > 1 ? "; exchange: " : "", c->num_trainers > 1 ? how : "");
    }
    if (run_config_sum_parts(c) > 0)
        printf(
            "sums:           in %d parts, as a tree: the same bits with tensor_parallel_size and producer_tensor_parallel_size 1 to %d\n",
            run_config_sum_parts(c), run_config_sum_parts(c));
    if (c->grad_group > 1)
        printf("gradient:       summed over %" PRId64
               " micro-batches in a row by one trainer, then over these groups: the same bytes with\n"
               "                any number of trainers and 'grad_group' %" PRId64 "\n",
               c->grad_group, c->grad_group);
    char whole[128];
    stages_print(c, room);
    if (c->tensor_parallel_size > 1 && c->pipeline_parallel_size == 1)
        printf("%son %" PRId64 " devices, each with its part of the weights, gradient, masters and moments%s\n",
               c->num_trainers > 1 ? "trainers:       each " : "trainer:        ", c->tensor_parallel_size,
               whole_text(c, room->plan.zero_stage, whole, sizeof whole));
}

static bool weights_are_half(const struct run_config *c)
{
    return run_dtype(c, strncmp(c->devices, "cuda", 4) == 0 ? DEVICE_CUDA : DEVICE_CPU) == DT_BF16;
}

/* What of a run with an adapter the plan's weights are. */
static void adapter_print(const struct run_config *c)
{
    struct model_config shape;
    struct error err;
    if (c->lora_rank > 0 && config_load(&shape, c->model, &err))
        printf("                %.1f M frozen parameters in %s, and an adapter of rank %" PRId64 " with %.1f M\n",
               (double)config_n_param(&shape) * 1e-6, weights_are_half(c) ? "bf16" : "fp32", c->lora_rank, run_n_trained(c, &shape) * 1e-6);
}

/* What several trainers keep, as the memory plan has it, and send, at each zero_stage that is possible. Source of what is sent: ZeRO,
 * arXiv 1910.02054, section 7, with the chain of micro-batches added up in its owner's shard (ranks.h). */
static void trainers_print(const struct train *t)
{
    struct trainer_memory need[ZERO_MAX + 1];
    struct model_config shape;
    struct error err;
    const struct run_config *c = &t->config;
    char first[64];
    int most, set = run_config_zero(c);
    size_t whole_bytes;
    double n_rank = (double)c->num_trainers, mib = 1 << 20;
    snprintf(first, sizeof first, "%.*s", (int)MIN(strcspn(c->devices, ","), sizeof first - 1), c->devices);
    struct device *dev = n_rank >= 2 && config_load(&shape, c->model, &err) ? device_new(first, (int)c->threads, &err) : NULL;
    bool ok = dev && run_trainer_room(need, &most, &whole_bytes, c, dev, &err);
    device_free(dev);
    if (!ok)
        return;
    double weight = weights_are_half(c) ? 2 : 4, n = run_n_trained(c, &shape) / (double)c->tensor_parallel_size,
           way = (n_rank - 1) / n_rank;
    const char *title = "trainers:       ", *where = c->pipeline_parallel_size > 1 ? "the first device of each"
                                                     : c->tensor_parallel_size > 1 ? "each device"
                                                                                   : "each";
    char round[64] = "a round of micro-batches";
    if (c->grad_group > 1)
        snprintf(round, sizeof round, "a round of %" PRId64 " micro-batches each", c->grad_group);
    if (c->pipeline_parallel_size > 1)
        n = (double)need[0].weight / weight;
    for (int z = 0; z <= most; z++) {
        if (set >= 0 && MIN(set, most) != z)
            continue;
        printf("%szero_stage %d: weights, gradient, masters and moments take %.4g MiB of %s of %g trainers; it sends\n"
               "                %.4g MiB of gradients %s and %.4g MiB of %s%s\n",
               title, z, (double)(need[z].weight + need[z].gradient + need[z].state) / mib, where, n_rank, 4 * n * way / mib, round,
               (z == 0   ? 4
                : z == 3 ? 2 * weight
                         : weight)
                   * n * way / mib,
               z == 0   ? "their sums a step"
               : z == 3 ? c->grad_group > 1 ? "weights a micro-batch" : "weights as often"
                        : "new weights a step",
               set < 0 && z == 1 ? " (auto: this, or the next one that has room)" : "");
        title = "                ";
    }
    if (most < ZERO_MAX || (set >= 0 && set < ZERO_MAX) || run_config_trainer_devices(c) > 1)
        return;
    if (keeps_whole(c, 0, ZERO_MAX))
        printf("                (with zero_stage 3 %s a whole copy of the weights, too: %.4g MiB)\n",
               keeps_whole(c, 1, ZERO_MAX) ? "a trainer that samples, and the first one, keep" : "the first one keeps",
               (double)whole_bytes / mib);
    else if (run_config_travels(c))
        printf("                (with zero_stage 3 others get the weights out of all trainers' shards, without a whole copy)\n");
}

/* Have the devices of the other stages of a trainer's pipeline room for these? least: of each further device of any trainer as many bytes as
 * are free, where they are fewer than what is there. */
static bool further_room(const struct run_config *c, int64_t rank, struct device *first, size_t *least, struct error *err)
{
    struct device *dev[PIPELINE_STAGES_MAX] = { first };
    bool alone = first->host_memory || (c->pipeline_parallel_size == 1 && !run_devices_differ(c, first));
    int n = alone ? 1 : (int)run_config_trainer_devices(c), n_open = 1;
    for (bool ok = true; ok && n_open < n; n_open += ok) {
        char name[64];
        size_t have, total;
        trainer_device_name(c, rank, n_open, name, sizeof name);
        if (!(ok = (dev[n_open] = device_new(name, (int)c->threads, err)) != NULL && mem_info(dev[n_open], &have, &total, err)))
            break;
        least[n_open] = MIN(least[n_open], have);
    }
    bool ok = n_open == n && run_stages_fit(c, dev, err);
    for (int q = 1; q < n; q++)
        device_free(dev[q]);
    return ok;
}

/* Has this machine room for what of masters and moments is not on its trainers' devices, and for the copy of which checkpoints are written? A
 * CPU's part of the run is in the same memory. */
static bool host_room(const struct run_config *c, const struct run_room *room, struct error *err)
{
    size_t each = memory_plan_host(&room->plan), have = machine_memory().available;
    size_t taken = each * (size_t)run_config_trainers_here(c) + (strncmp(c->devices, "cpu", 3) == 0 ? room->plan.total : 0);
    if (each > 0 && !run_host_fits(each, run_config_trainers_here(c), have, err))
        return false;
    return taken + room->copy <= have
           || error_set(
               err, ERR_NO_MEMORY,
               "a checkpoint is written from a copy of %.1f GB in this machine's memory, of which %.1f GB are available and the run "
               "takes %.1f GB; free %.1f GB, or train an adapter ('lora_rank')",
               (double)room->copy * 1e-9, (double)have * 1e-9, (double)taken * 1e-9, (double)(taken + room->copy - have) * 1e-9);
}

bool train_room(const struct train *t, struct run_room *room, bool *planned, struct error *err)
{
    const struct run_config *c = &t->config;
    char first[64], lacks[64], role[64];
    struct run_part part;
    struct error none;
    size_t least[SUM_PARTS_MAX];
    memset(least, 0xff, sizeof least);
    snprintf(first, sizeof first, "%.*s", (int)MIN(strcspn(c->devices, ","), sizeof first - 1), c->devices);
    *planned = run_config_part(c, first, &part, &none);
    if (!*planned)
        return true;
    struct device *dev = device_new(first, (int)c->threads, err);
    bool ok = dev != NULL;
    for (int64_t r = 0; r < run_config_trainers_here(c) && ok; r++)
        ok = further_room(c, r, dev, least, err);
    ok = ok && device_enter(dev, err) && run_room_plan(room, c, &part, dev, run_devices_differ(c, dev) ? least : NULL, err);
    device_free(dev);
    if (!ok || room->fits)
        return ok && host_room(c, room, err);
    trainer_device_name(c, 0, room->lacks.device, lacks, sizeof lacks);
    return error_set(err, ERR_NO_MEMORY, "%s has %.1f GB free, and %s needs %.1f GB of it; %s", lacks,
                     (double)(room->lacks.device > 0 ? least[room->lacks.device] : room->have) * 1e-9,
                     run_part_text(&part, role, sizeof role), (double)room->lacks.need * 1e-9, room->nearest);
}

/* What the weights that travel take, beside those of the trainer. */
static void publication_print(const struct train *t, const struct run_publication *p)
{
    if (p->held == 0)
        return;
    if (p->n_kept > 0)
        printf("                the first trainer keeps %d of the last versions for them (%.1f MB)", p->n_kept, (double)p->kept * 1e-6);
    else
        printf("                out of the first trainer's own weights (no further copy)");
    printf(", and each of a producer's devices has %.1f MB%s", (double)p->held * 1e-6,
           t->config.producer_tensor_parallel_size > 1 ? ", its slices" : "");
    if (p->staged > 0)
        printf("\n                and %.1f MB for a version that comes while it samples", (double)p->staged * 1e-6);
    printf("\n");
}

/* That samplers may have two versions in work. */
static void gap_print(const struct run_config *c, const struct run_room *room)
{
    if (room->fills_gap)
        printf("                a producer that does not train has them, and keys and values, twice for the tail of a rollout step\n"
               "                (fill_gap%s)\n",
               strcmp(c->fill_gap, "auto") == 0 ? ", auto: where there is room" : "");
}

/* What of masters and moments is in host memory: of each of a trainer's devices, and of all trainers of this machine. */
static void host_print(const struct run_config *c, const struct memory_plan *p)
{
    int n = (int)run_config_trainer_devices(c);
    int64_t n_trainer = run_config_trainers_here(c);
    size_t each = memory_plan_host(p);
    if (each == 0)
        return;
    printf("                and %.3g GB of host memory for masters and moments", (double)each * 1e-9);
    for (int q = 0; q < n && n > 1; q++) {
        char name[64];
        trainer_device_name(c, 0, q, name, sizeof name);
        printf("%s%s %.3g", q ? ", " : ": ", name, (double)p->host[q] * 1e-9);
    }
    if (n_trainer > 1)
        printf("; %.3g GB for %" PRId64 " trainers", (double)each * (double)n_trainer * 1e-9, n_trainer);
    printf("\n");
}

static void room_print(const struct train *t, const struct run_room *room)
{
    const struct run_config *c = &t->config;
    const struct memory_plan *p = &room->plan;
    printf("memory:         %.3g of %.3g GB of %.*s: weights %.3g, gradient %.3g, masters and moments %.3g, sampler %.3g,\n"
           "                activations %.3g, keys and values %.3g%s\n",
           (double)p->total * 1e-9, (double)room->have * 1e-9, (int)strcspn(c->devices, ","), c->devices, (double)p->weights * 1e-9,
           (double)p->gradient * 1e-9, (double)p->state * 1e-9, (double)p->sampler * 1e-9, (double)p->activation * 1e-9,
           (double)p->kv * 1e-9, p->turns ? " (these two by turns)" : "");
    if (p->states)
        printf("                of the sampler's %.3g are states of sequences\n", (double)p->states * 1e-9);
    adapter_print(c);
    host_print(c, p);
    if (room->copy > 0)
        printf("                and %.3g GB of host memory for the copy from which checkpoints are written\n", (double)room->copy * 1e-9);
    if (c->num_trainers > 1 && run_config_zero(c) < 0 && p->zero_stage > 1)
        printf("                zero_stage %d (auto: %d has no room)\n", p->zero_stage, p->zero_stage - 1);
    else if (c->num_trainers > 1)
        printf("                zero_stage %d%s\n", p->zero_stage, run_config_zero(c) < 0 ? " (auto)" : "");
}

/* Parts of the run, one after the other, that hold the same weights. */
struct alike {
    char role[64];    // the first one's
    int n;
    struct buf rows;
};

static void alike_print(const struct alike *a, const char *title)
{
    printf("%s%s", title, a->role);
    if (a->n > 1)
        printf(", and %d more like it", a->n - 1);
    printf("\n%s", buf_text(&a->rows));
}

/* Which weights each part of the run on this machine holds. room: what fill_gap and zero_stage have come to on the first device. */
static void holds_print(const struct train *t, const struct run_room *room)
{
    struct error err;
    char device[64];
    struct run_config *c = malloc(sizeof *c);
    struct alike last = { .rows = BUF_INIT };
    const char *title = "holds:          ";
    snprintf(device, sizeof device, "%.*s", (int)MIN(strcspn(t->config.devices, ","), sizeof device - 1), t->config.devices);
    struct device *dev = c ? device_new(device, (int)t->config.threads, &err) : NULL;
    if (dev) {
        *c = t->config;
        snprintf(c->fill_gap, sizeof c->fill_gap, "%s", room->fills_gap ? "on" : "off");
    }
    for (const char *at = t->config.devices; dev && *at; at += strcspn(at, ","), at += *at == ',') {
        struct run_part part;
        struct holdings holdings;
        struct alike next = { .n = 1, .rows = BUF_INIT };
        snprintf(device, sizeof device, "%.*s", (int)MIN(strcspn(at, ","), sizeof device - 1), at);
        if (!run_config_part(c, device, &part, &err) || !run_part_has_worker(&part)
            || !run_holdings(&holdings, c, &part, room->plan.zero_stage, dev, &err))
            continue;
        run_part_text(&part, next.role, sizeof next.role);
        holdings_print(&holdings, 18, &next.rows);
        if (last.n > 0 && strcmp(buf_text(&next.rows), buf_text(&last.rows)) == 0) {
            last.n++;
            buf_release(&next.rows);
            continue;
        }
        if (last.n > 0) {
            alike_print(&last, title);
            title = "                ";
        }
        buf_release(&last.rows);
        last = next;
    }
    if (last.n > 0)
        alike_print(&last, title);
    buf_release(&last.rows);
    device_free(dev);
    free(c);
}

bool train_plan_print(const struct train *t, struct error *err)
{
    const struct run_plan *p = &t->plan;
    printf("run:            %s\n", t->resume ? t->run_dir : t->config.name[0] ? t->config.name : "(a free name)");
    printf("model:          %s\n", t->config.model);
    for (const char *at = buf_text(&t->about), *title = "data:       "; *at; at = strchr(at, '\n') + 1, title = "evaluation: ")
        if (*at != '\n')    // posted groups are the data
            printf("%s    %.*s\n", title, (int)strcspn(at, "\n"), at);
    printf("%s", buf_text(&t->shown));
    struct run_room room = { 0 };
    bool planned, fits = train_room(t, &room, &planned, err);    // what does not fit is said where the memory is
    placement_print(t, &room);
    struct environments e;
    struct error none;
    bool posted = run_config_posted(&t->config) && run_config_environments(&t->config, &e, &none);
    if (posted && e.url[0])
        printf("environments:   batches of the Atropos API at %s, groups of any size that fit into %" PRId64 " tokens a sequence\n", e.url,
               t->config.max_prompt_tokens + t->config.max_new_tokens);
    else if (posted)
        printf("environments:   post at %s, groups of any size that fit into %" PRId64 " tokens a sequence\n", e.listen,
               t->config.max_prompt_tokens + t->config.max_new_tokens);
    else
        printf("rollout step:   %" PRId64 " prompts x %" PRId64 " completions\n", p->prompts_per_rollout_step, t->config.num_generations);
    if (p->prompts_opened > p->prompts_per_rollout_step)
        printf("over-sampling:  %" PRId64 " prompts are sampled, and the %" PRId64 " with the shortest answers count\n", p->prompts_opened,
               p->prompts_per_rollout_step);
    if (t->config.serve[0])
        printf("served:         at %s, %" PRId64 " samples of requests at once\n", t->config.serve, run_config_serve_samples(&t->config));
    printf("optimizer step: %" PRId64 " prompts (train_batch_size %" PRId64 " x %" PRId64 " trainers), %" PRId64
           " of them per rollout step\n",
           p->prompts_per_train_batch, t->config.train_batch_size, p->dp, p->k);
    printf("length:         %" PRId64 " optimizer steps\n", run_steps(t));
    if (t->config.free_running)
        printf("free-running:   not repeatable; a group's first token is at most %" PRId64 " optimizer steps old when trained on\n",
               p->max_age_steps);
    else if (p->on_policy)
        printf("on-policy:      strictly (n_behind 0, one optimizer step per rollout step)\n");
    else
        printf("on-policy:      no; a token is at most %" PRId64 " optimizer steps old when trained on (without filtering)\n",
               p->max_age_steps);
    if (!fits)
        return false;
    if (planned) {
        room_print(t, &room);
        holds_print(t, &room);
    }
    trainers_print(t);
    train_estimate_print(t);
    const struct run_config *c = &t->config;
    const char *own = strcmp(c->placement, "apart") == 0 ? ""
                      : c->n_behind == 0                 ? "shared by sampler and trainer on each device"
                                                         : "copied on the device for its sampler",
               *way = strcmp(c->weights, "files") == 0      ? "by file"
                      : strcmp(c->weights, "copy") == 0     ? "by copy"
                      : strncmp(c->devices, "cpu:", 4) == 0 ? "through shared memory"
                                                            : "by nccl";
    bool far = run_config_travels(c);
    if (run_config_external(c))
        way = "as directories, by the engines' own routes,";
    if (posted)
        return true;    // nothing is sampled here
    printf("%s        %s%s%s%s\n", c->lora_rank > 0 ? "adapter:" : "weights:", own, own[0] && far ? "; " : "", far ? way : "",
           far ? run_config_external(c) ? " from the first trainer to the engines" : " from the first trainer to other samplers" : "");
    publication_print(t, &room.publication);
    gap_print(c, &room);
    return true;
}
