#include "protocol/settings/atropos_options.h"
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include "protocol/base/cli.h"
#include "protocol/base/json_text.h"
#include "protocol/settings/knobs.h"

#define NUMBER(field) .number = offsetof(struct run_config, atropos.field)
#define SERVER_WHY "it is about an inference server that the example trainer would start; start one with 'rollcall serve'"
#define SHARED_WHY "with 'weight_bridge_mode' shared_vllm the weights are in memory once, and servers read them there"
#define RANK_WHY "'devices' and 'num_trainers' say what trains; the example trainer has it without using it, too"

// clang-format off
const struct atropos_option atropos_options[] = {
    { "atropos_url", .help = "train on the batches of this Atropos API server (run-api), http://HOST:PORT; environments: {\"url\": …} in a run file" },
    { "model_name", { "model" }, .help = "model" },
    { "training_steps", { "max_steps" }, .help = "max_steps" },
    { "batch_size", NUMBER(batch_size), .help = "sequences of one forward and backward pass: train_microbatch_size" },
    { "gradient_accumulation_steps", NUMBER(accumulation), .help = "passes of an optimizer step; batch_size times this is an API batch, in sequences: train_batch_size x num_trainers x num_generations" },
    { "seq_len", NUMBER(seq_len), .help = "longest sequence: max_prompt_tokens + max_new_tokens" },
    { "adafactor_scale_parameter", .is_switch = true, .only = " true ", .why = "'optimizer' adafactor is torch.optim.Adafactor, which scales a tensor's step by its size", .help = "only true" },
    { "adafactor_relative_step", .is_switch = true, .only = " false ", .why = "'optimizer' adafactor is torch.optim.Adafactor, whose rate is learning_rate and at most 1 / sqrt(step)", .help = "only false" },
    { "device", { "devices" }, .words = "cuda=auto cpu=cpu:0", .help = "devices; cuda: auto" },
    { "save_path", { "save_dir" }, .help = "save_dir" },
    { "checkpoint_interval", { "save_interval" }, .help = "save_interval" },
    { "clip_eps", { "clip_eps_low", "clip_eps_high" }, .help = "clip_eps_low and clip_eps_high" },
    { "use_wandb", { "wandb" }, .words = "true=online false=off", .is_switch = true, .help = "wandb online" },
    { "wandb_project", { "project" }, .help = "project" },
    { "lora_layer_indices", .only = " all ", .why = "an adapter is in all layers", .help = "only all" },
    { "vllm_port", NUMBER(vllm_port), .help = "engine_url http://127.0.0.1:PORT; with weight_bridge_mode shared_vllm serve 127.0.0.1:PORT" },
    { "vllm_gpu", .why = SERVER_WHY },
    { "gpu_memory_utilization", .why = SERVER_WHY },
    { "vllm_gpu_memory_utilization", .why = SERVER_WHY },
    { "max_model_len", .why = SERVER_WHY },
    { "vllm_config_path", { "weight_bridge_file" }, .help = "weight_bridge_file" },
    { "trainer_rank", .why = RANK_WHY },
    { "world_size", .why = RANK_WHY },
    { "init_method", .why = RANK_WHY },
    { "num_inference_nodes", .why = RANK_WHY },
    { "debug_loading", .is_switch = true, .why = "the run's logs say what is loaded" },
    { "benchmark", .is_switch = true, .why = "every step's times are in the journal anyway" },
    { "use_shared_memory", .is_switch = true, .why = SHARED_WHY },
    { "single_copy", .is_switch = true, .why = SHARED_WHY },
    { "log_dir", .why = "logs are in the run's directory" },
};
// clang-format on
const int n_atropos_options = ARRAY_SIZE(atropos_options);
_Static_assert(ARRAY_SIZE(atropos_options) <= ATROPOS_OPTIONS_MAX, "ATROPOS_OPTIONS_MAX is too small");
_Static_assert(ARRAY_SIZE(atropos_options) <= 64, "run_config.atropos.given has a bit for each");

const struct atropos_option *atropos_option_find(const char *name)
{
    for (int i = 0; i < n_atropos_options; i++) {
        const char *a = atropos_options[i].name, *b = name;
        while (*a && (*b == '-' ? '_' : *b) == *a)
            a++, b++;
        if (!*a && !*b)
            return &atropos_options[i];
    }
    return NULL;
}

/* What text stands for among o's words: "cuda=auto cpu=cpu:0". Into out, or text itself. */
static const char *word_for(const struct atropos_option *o, const char *text, char *out, size_t size)
{
    size_t len = strlen(text);
    for (const char *at = o->words; at && len > 0; at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL)
        if (strncmp(at, text, len) == 0 && at[len] == '=') {
            snprintf(out, size, "%.*s", (int)strcspn(at + len + 1, " "), at + len + 1);
            return out;
        }
    return text;
}

static bool url_set(struct run_config *c, const char *url, enum knob_source source, struct error *err)
{
    struct error none;
    struct environments e;
    json_t *o = json_pack("{s:s}", "url", url);
    char *text = o ? json_text_dump(o, JSON_COMPACT) : NULL;
    bool ok = text ? run_config_set(c, "environments", text, source, NULL, err)
                   : error_set(err, ERR_USAGE, "'atropos_url' is not text in UTF-8");
    if (ok && !run_config_environments(c, &e, &none))
        ok = error_set(err, ERR_USAGE, "'atropos_url' is '%.100s'; it is http://HOST:PORT", url);
    free(text);
    json_decref(o);
    return ok;
}

static bool only_check(const struct atropos_option *o, const char *text, struct error *err)
{
    const char *at = o->only ? strstr(o->only, text) : NULL;
    if (!o->only || (text[0] && !strchr(text, ' ') && at && at[-1] == ' ' && at[strlen(text)] == ' '))
        return true;
    return error_set(err, ERR_USAGE, "'%s' is '%.60s'; possible is%s: %s", o->name, text, o->only, o->why);
}

bool atropos_option_set(struct run_config *c, const struct atropos_option *o, const char *text, enum knob_source source,
                        const char *base_dir, struct error *err)
{
    char word[64];
    int64_t n;
    if (strcmp(o->name, "atropos_url") == 0 && !url_set(c, text, source, err))
        return false;
    if (!only_check(o, text, err))
        return false;
    if (o->number) {
        if (!parse_i64(text, &n) || n < 1 || n > 1 << 24)
            return error_set(err, ERR_USAGE, "'%s' is '%.60s'; it is a whole number from 1 to %d", o->name, text, 1 << 24);
        *(int64_t *)((char *)c + o->number) = n;
        if (o->number != offsetof(struct run_config, atropos.vllm_port))
            c->atropos.source = (unsigned char)MAX((int)c->atropos.source, (int)source);
    }
    for (size_t i = 0; i < ARRAY_SIZE(o->sets) && o->sets[i]; i++)
        if (!run_config_set(c, o->sets[i], word_for(o, text, word, sizeof word), source, base_dir, err))
            return error_wrap(err, "'%s'", o->name);
    c->atropos.given |= (uint64_t)1 << (o - atropos_options);
    return true;
}

/* Give the setting this number, unless it was given itself. */
static bool number_set(struct run_config *c, const char *name, int64_t n, struct error *err)
{
    char text[32];
    struct error none;
    const struct knob *k = knob_find(name, &none);
    snprintf(text, sizeof text, "%" PRId64, n);
    return c->source[k - knobs] > FROM_PRESET || run_config_set(c, name, text, (enum knob_source)c->atropos.source, NULL, err);
}

/* An API batch is batch_size x gradient_accumulation_steps sequences; its defaults are the example trainer's. */
static bool batch_finish(struct run_config *c, struct error *err)
{
    int64_t pass = c->atropos.batch_size ? c->atropos.batch_size : 2, n = c->atropos.accumulation ? c->atropos.accumulation : 32;
    int64_t seqs = pass * n, per_prompt = c->num_generations * c->num_trainers;
    if (!c->atropos.batch_size && !c->atropos.accumulation)
        return true;
    if (seqs % per_prompt != 0)
        return error_set(err, ERR_USAGE,
                         "a batch of %" PRId64 " sequences ('batch_size' %" PRId64 " x 'gradient_accumulation_steps' %" PRId64
                         ") is not a multiple of the %" PRId64
                         " of 'num_generations' x 'num_trainers'; 'num_generations' is the group_size "
                         "of the environments",
                         seqs, pass, n, per_prompt);
    return number_set(c, "train_microbatch_size", pass, err) && number_set(c, "train_batch_size", seqs / per_prompt, err)
           && number_set(c, "inference_batch_size", seqs / c->num_generations, err)
           && number_set(c, "inference_microbatch_size", seqs / c->num_generations, err);
}

bool atropos_options_finish(struct run_config *c, struct buf *notes, struct error *err)
{
    int64_t seq_len = c->atropos.seq_len;
    for (int i = 0; notes && i < n_atropos_options; i++) {
        const struct atropos_option *o = &atropos_options[i];
        if ((c->atropos.given >> i & 1) && o->why && !o->only)
            buf_fmt(notes, "note: '%s' has no effect: %s\n", o->name, o->why);
    }
    c->atropos.given = 0;
    if (seq_len == 1)
        return error_set(err, ERR_USAGE, "'seq_len' is 1; a sequence has a prompt and an answer");
    /* the sum matters where environments post; a prompt may have a quarter of it */
    return batch_finish(c, err)
           && (seq_len == 0
               || (number_set(c, "max_prompt_tokens", MIN(c->max_prompt_tokens, MAX(seq_len / 4, (int64_t)1)), err)
                   && number_set(c, "max_new_tokens", MAX(seq_len - c->max_prompt_tokens, (int64_t)1), err)));
}

void environment_note(struct buf *notes)
{
    // clang-format off
    static const struct { const char *name, *why; } variables[] = {
        { "VLLM_ENABLE_SHARED_WEIGHTS", SHARED_WHY },
        { "NUM_INFERENCE_NODES", "'listen' or 'hosts' bring nodes that sample" },
        { "MASTER_ADDR", "'listen' says where nodes meet" },
        { "MASTER_PORT", "'listen' says where nodes meet" },
        { "RAY_ADDRESS", "there is no Ray; 'hosts' starts other nodes" },
        { "RAY_CGRAPH_get_timeout", "there is no Ray; 'engine_timeout_s' and 'ranks_timeout_s' bound what is waited for" },
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(variables); i++) {
        const char *value = getenv(variables[i].name);
        if (value && value[0])
            buf_fmt(notes, "note: the environment's %s has no effect: %s\n", variables[i].name, variables[i].why);
    }
}
