/* Checks: everything that can be wrong with a run is found before anything is created. */
#include "console/train/train_parts.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/collective/comm.h"
#include "kernels/ops.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/run/node.h"
#include "protocol/settings/wandb_who.h"
#include "protocol/wire/run_door.h"
#include "workers/engine/data/identity.h"
#include "workers/engine/load/model_find.h"
#include "workers/engine/model/config.h"
#include "workers/engine/model/lora.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/stages.h"
#include "workers/engine/model/team.h"
#include "workers/engine/template/template.h"
#include "workers/engine/text/tokenizer.h"
#include "workers/engine/trainer/checkpoint.h"

static bool model_check(struct train *t, struct error *err)
{
    char dir[PATH_MAX], full[PATH_MAX];
    struct model_config shape;
    if (!t->config.model[0])
        return error_set(err, ERR_USAGE, "--model is needed: a model directory, a .gguf file, or org/name in the Hugging Face cache");
    if (!model_find(dir, sizeof dir, t->config.model, err))
        return false;
    if (!realpath(dir, full))
        return error_errno(err, "cannot find the model '%s'", dir);
    if (strlen(full) >= sizeof t->config.model)
        return error_set(err, ERR_USAGE, "the model's path '%s' is too long", full);
    snprintf(t->config.model, sizeof t->config.model, "%s", full);
    if (t->config.tokenizer_path[0]) {
        char own[PATH_MAX];
        if (!model_find(dir, sizeof dir, t->config.tokenizer_path, err))
            return false;
        if (!realpath(dir, own) || strlen(own) >= sizeof t->config.tokenizer_path)
            return error_errno(err, "cannot find the tokenizer '%s'", dir);
        snprintf(t->config.tokenizer_path, sizeof t->config.tokenizer_path, "%s", own);
    }
    struct tokenizer *tokenizer = NULL;
    struct template *chat = NULL;
    const char *from = run_config_tokenizer(&t->config);
    bool ok = model_files_check(full, &shape, err) && (tokenizer = tokenizer_load(from, err))
              && tokenizer_fits(tokenizer, shape.vocab, from, err) && template_find(from, &chat, err)
              && identity_model(t->identity, full, from, err);
    tokenizer_free(tokenizer);
    template_free(chat);
    return ok;
}

/* The adapter to train, if one is: its modules, or the files to start from, whose rank becomes the run's. */
static bool adapter_check(struct train *t, struct error *err)
{
    struct run_config *c = &t->config;
    char full[PATH_MAX];
    struct model_config shape;
    struct lora_config lora = { .rank = c->lora_rank };
    if (c->lora_rank == 0 && !c->lora_adapter[0])
        return true;
    if (c->lora_dropout > 0)
        return error_set(err, ERR_USAGE,
                         "'lora_dropout' is %g; only 0 works: with dropout the trainer's log-probs would not be those of the sampler",
                         c->lora_dropout);
    if (!config_load(&shape, c->model, err))
        return false;
    if (!c->lora_adapter[0])
        return (lora_targets_parse(&lora, c->lora_target_modules, err) || error_wrap(err, "'lora_target_modules'"))
               && lora_n_param(&lora, &shape, err) > 0;
    if (!realpath(c->lora_adapter, full) || strlen(full) >= sizeof c->lora_adapter)
        return error_errno(err, "cannot find the adapter '%s'", c->lora_adapter);
    snprintf(c->lora_adapter, sizeof c->lora_adapter, "%s", full);
    if (!lora_config_load(&lora, full, err) || !lora_files_check(full, &shape, err))
        return false;
    if (c->lora_rank > 0 && c->lora_rank != lora.rank)
        return error_set(err, ERR_USAGE, "'lora_rank' is %" PRId64 ", but the adapter '%s' has rank %" PRId64 "; leave 'lora_rank' away",
                         c->lora_rank, full, lora.rank);
    c->lora_rank = lora.rank;
    return identity_adapter(t->identity, full, err);
}

/* The teacher: its files, and its tokenizer, which must be the model's. Its place in memory is the plan's matter. */
static bool teacher_check(struct train *t, struct error *err)
{
    struct run_config *c = &t->config;
    char dir[PATH_MAX], full[PATH_MAX];
    struct model_config shape;
    const char *from = run_config_tokenizer(c);
    int64_t longest = c->max_prompt_tokens + c->max_new_tokens;
    if (!c->teacher[0])
        return true;
    if (!model_find(dir, sizeof dir, c->teacher, err))
        return error_wrap(err, "'teacher'");
    if (!realpath(dir, full) || strlen(full) >= sizeof c->teacher)
        return error_errno(err, "cannot find the teacher '%s'", dir);
    snprintf(c->teacher, sizeof c->teacher, "%s", full);
    struct tokenizer *own = NULL, *other = NULL;
    if (!model_files_check(full, &shape, err))
        return error_wrap(err, "'teacher'");
    bool ok = ((own = tokenizer_load(from, err)) && (other = tokenizer_load(full, err)) && tokenizer_same(own, from, other, full, err)
               && tokenizer_fits(own, shape.vocab, full, err))
              || error_wrap(err, "'teacher' needs the model's tokenizer, since it reads the model's tokens");
    if (ok && longest > rope_longest(&shape.rope, shape.max_pos))
        ok = error_set(err, ERR_USAGE,
                       "'teacher' reads at most %" PRId64 " tokens, and 'max_prompt_tokens' and 'max_new_tokens' are %" PRId64
                       " together; make them smaller",
                       rope_longest(&shape.rope, shape.max_pos), longest);
    tokenizer_free(own);
    tokenizer_free(other);
    return ok && identity_teacher(t->identity, full, err);
}

/* The checkpoint of another run that this one begins with. Its bytes are compared by the trainer, which reads them anyway. */
static bool beginning_check(const struct train *t, struct error *err)
{
    int64_t size_bytes;
    const char *path = t->config.checkpoint_path;
    return !path[0] || t->resume
           || ((checkpoint_measure(path, &size_bytes, err) || error_wrap(err, "'checkpoint_path'"))
               && checkpoint_config_check(path, t->config.model, err));
}

static bool devices_choose(struct run_config *c, struct error *err);

/* With external engines: the trainers' devices as without producers, and the engines after them. */
static bool trainers_choose(struct run_config *c, struct error *err)
{
    struct run_config own = *c;
    strcpy(own.backend, "rollcall");
    strcpy(own.placement, "shared");
    own.num_inferencer = own.num_trainers;
    if (!devices_choose(&own, err))
        return false;
    const char *further = own.devices;    // those without a worker come last
    for (int64_t i = 0; i < c->num_trainers && *further; i++)
        further += strcspn(further, ",") + (i + 1 < c->num_trainers);
    size_t at = (size_t)snprintf(c->devices, sizeof c->devices, "%.*s", (int)(further - own.devices), own.devices);
    for (int64_t i = 0; i < c->num_inferencer && at < sizeof c->devices; i++)
        at += (size_t)snprintf(c->devices + at, sizeof c->devices - at, ",engine:%" PRId64, i);
    if (at < sizeof c->devices)
        at += (size_t)snprintf(c->devices + at, sizeof c->devices - at, "%s", further);
    return at < sizeof c->devices || error_set(err, ERR_USAGE, "a list of %" PRId64 " engines is too long", c->num_inferencer);
}

/* The nearest layout that n devices are enough for, as the end of a sentence: fewer trainers here and the others on nodes, or smaller
 * ones. */
static const char *layout_nearest(const struct run_config *c, int64_t n, char *out, size_t size)
{
    struct run_config own = *c, best = *c;
    int64_t most = 0;
    bool shared = strcmp(c->placement, "apart") != 0 && !run_config_external(c);
    out[0] = 0;
    if (run_config_n_device(c) <= n)
        return out;
    for (own.trainers_per_node = run_config_trainers_here(c) - 1; shared && own.trainers_per_node > 0; own.trainers_per_node--)
        if (run_config_n_device(&own) <= n) {
            snprintf(out, size, "; 'trainers_per_node' %" PRId64 " needs %" PRId64 " here, and the others on nodes", own.trainers_per_node,
                     run_config_n_device(&own));
            return out;
        }
    own.trainers_per_node = c->trainers_per_node;
    for (own.tensor_parallel_size = c->tensor_parallel_size; own.tensor_parallel_size > 0; own.tensor_parallel_size /= 2)
        for (own.pipeline_parallel_size = c->pipeline_parallel_size; own.pipeline_parallel_size > 0; own.pipeline_parallel_size--)
            if (run_config_n_device(&own) <= n && run_config_trainer_devices(&own) > most) {
                most = run_config_trainer_devices(&own);
                best = own;
            }
    if (most > 0)
        snprintf(out, size, "; 'tensor_parallel_size' %" PRId64 " with 'pipeline_parallel_size' %" PRId64 " needs %" PRId64,
                 best.tensor_parallel_size, best.pipeline_parallel_size, run_config_n_device(&best));
    return out;
}

/* Turn `auto` into a list of as many devices as the counts need: GPUs when the machine has one, else CPUs. A given list must be
 * that long. */
static bool devices_choose(struct run_config *c, struct error *err)
{
    struct error none;
    char nearest[160];
    int64_t n = run_config_n_device(c), n_given = 1;
    if (run_config_external(c) && !strstr(c->devices, "engine:"))
        return trainers_choose(c, err);
    for (const char *at = c->devices; (at = strchr(at, ',')); at++)
        n_given++;
    if (strcmp(c->devices, "auto") != 0)
        return n_given == n
               || error_set(err, ERR_USAGE,
                            "'devices' names %" PRId64 " (%s), but num_trainers %" PRId64 "%s and num_inferencer %" PRId64
                            " with placement '%s', tensor_parallel_size %" PRId64 ", pipeline_parallel_size %" PRId64
                            " and producer_tensor_parallel_size %" PRId64 " need %" PRId64 "%s",
                            n_given, c->devices, run_config_trainers_here(c), run_config_n_host(c) > 1 ? " on this machine" : "",
                            c->num_inferencer, c->placement, c->tensor_parallel_size, c->pipeline_parallel_size,
                            c->producer_tensor_parallel_size, n, layout_nearest(c, n_given, nearest, sizeof nearest));
    struct device *gpu = path_exists("/dev/nvidiactl") ? device_new("cuda:0", 0, &none) : NULL;
    size_t at = 0;
    for (int64_t i = 0; i < n && at < sizeof c->devices; i++)
        at += (size_t)snprintf(c->devices + at, sizeof c->devices - at, "%s%s:%" PRId64, i ? "," : "", gpu ? "cuda" : "cpu", i);
    device_free(gpu);
    return at < sizeof c->devices || error_set(err, ERR_USAGE, "a list of %" PRId64 " devices is too long", n);
}

/* Turn `auto` into the best method for the run's devices, when weights have to be transferred. */
static bool weights_choose(struct run_config *c, struct error *err)
{
    bool all_cuda = true, all_cpu = true;
    for (const char *at = c->devices; *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ',')) {
        all_cuda = all_cuda && strncmp(at, "cuda:", 5) == 0;
        all_cpu = all_cpu && strncmp(at, "cpu:", 4) == 0;
    }
    if (!run_config_travels(c))
        return true;
    if (all_cpu && strcmp(c->weights, "nccl") == 0)
        fprintf(stderr, "note: 'weights' nccl is for GPUs; between CPUs weights go through shared memory, as with copy\n");
    bool asked = strcmp(c->weights, "auto") != 0, nccl = strcmp(c->weights, "nccl") == 0;
    if (asked && strcmp(c->weights, "files") != 0 && !all_cuda && !all_cpu)
        return error_set(err, ERR_USAGE,
                         "weights '%s' works between GPUs or between CPUs, but devices are '%s'; leave it at 'auto', or use "
                         "'files'",
                         c->weights, c->devices);
    if (asked && !(nccl && all_cuda))
        return true;
    if (!all_cuda) {
        strcpy(c->weights, "files");
        return true;
    }
    char first[32];
    struct error why = { 0 };
    snprintf(first, sizeof first, "%.*s", (int)MIN(strcspn(c->devices, ","), sizeof first - 1), c->devices);
    struct device *gpu = device_new(first, 0, &why);
    bool there = gpu && comm_available(gpu, &why);
    device_free(gpu);
    if (!there && asked)
        return error_wrap((*err = why, err), "weights 'nccl'");
    if (!there)
        fprintf(stderr, "note: weights are sent by copy, not by nccl: %s\n", why.text);
    strcpy(c->weights, there ? "nccl" : "copy");
    return true;
}

/* Settle the order of sums for the whole life of the run, and check that the model can be cut so. */
static bool parts_choose(struct run_config *c, struct error *err)
{
    struct model_config shape;
    c->sum_parts = MAX(run_config_sum_parts(c), 1);
    int parts = run_config_sum_parts(c);
    return config_load(&shape, c->model, err)
           && (run_config_posted(c) || team_check(&shape, (int)c->producer_tensor_parallel_size, parts, err)
               || error_wrap(err, "'producer_tensor_parallel_size' %" PRId64 ", 'sum_parts' %" PRId64, c->producer_tensor_parallel_size,
                             c->sum_parts))
           && (team_train_check(&shape, (int)c->tensor_parallel_size, parts, err)
               || error_wrap(err, "'tensor_parallel_size' %" PRId64 ", 'sum_parts' %" PRId64, c->tensor_parallel_size, c->sum_parts))
           && (stages_check(&shape, (int)c->pipeline_parallel_size, err)
               || error_wrap(err, "'pipeline_parallel_size' %" PRId64, c->pipeline_parallel_size));
}

static bool sizes_check(struct train *t, struct error *err)
{
    const struct run_config *c = &t->config;
    if (!parts_choose(&t->config, err) || !devices_choose(&t->config, err) || !weights_choose(&t->config, err))
        return false;
    if (c->view_group[0] && !run_view_group_check(c->view_group, err))
        return false;
    return run_plan_make(&t->plan, c, t->n_row, err);
}

static bool start_check(struct train *t, struct error *err)
{
    return model_check(t, err) && adapter_check(t, err) && teacher_check(t, err) && beginning_check(t, err) && data_check(t, err)
           && sizes_check(t, err) && machine_check(t, err) && folders_check(t, err) && wandb_who_check(&t->config, true, err)
           && (!t->resume || kept_check(t, err));
}

static bool start_check_far(struct train *t, struct error *err)
{
    return model_check(t, err) && adapter_check(t, err) && teacher_check(t, err) && beginning_check(t, err) && data_check(t, err)
           && (t->resume || name_check(t, err)) && room_check(t, err) && folders_check(t, err) && wandb_who_check(&t->config, false, err)
           && (!t->resume || kept_check(t, err));
}

/* Settings that do not work here are named with their line; what data, models and machines lack has a place of its own. */
static bool checked(struct train *t, bool (*check)(struct train *t, struct error *err), struct error *err)
{
    if (!(t->identity = json_object()))
        return error_set(err, ERR_NO_MEMORY, "no memory for the settings");
    if (check(t, err))
        return true;
    if (err->code == ERR_USAGE)
        run_config_place(&t->config, err);
    return false;
}

bool train_check(struct train *t, struct error *err)
{
    return checked(t, start_check, err);
}

bool train_check_far(struct train *t, struct error *err)
{
    return checked(t, start_check_far, err);
}
