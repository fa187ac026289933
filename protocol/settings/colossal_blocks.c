#include "protocol/settings/colossal_blocks.h"
#include <assert.h>
#include <string.h>

#define ENGINE "it is about an engine that is not used here"
#define ENDS "a response ends with the end tag of 'response_format_tags', which stays in it, and with the model's end tokens"
#define ATTENTION "there is one way to compute attention"
#define DTYPE "'dtype' says how numbers are kept"
#define LOGPROBS "each token's log-prob is always kept"
#define LENGTH "'max_prompt_tokens' and 'max_new_tokens' bound a sequence"
#define DIVIDED "it is about how ColossalAI divides a model; 'tensor_parallel_size' and 'pipeline_parallel_size' do it here"

// clang-format off
static const struct block_key keys[] = {
    { BLOCK_BESIDE,       "batch_size",                  .sets = "train_batch_size" },
    { "model_config",     "path",                        .sets = "model" },
    { "model_config",     "tensor_parallel_size",        .sets = "producer_tensor_parallel_size" },    // of an inference engine
    { "tokenizer_config", "path",                        .sets = "tokenizer_path" },
    { "generate_config",  "max_tokens",                  .sets = "max_new_tokens" },
    { "generate_config",  "n",                           .sets = "num_generations" },
    { "generate_config",  "logprobs",                    .why = LOGPROBS },
    { "generate_config",  "output_logits",               .why = LOGPROBS },
    { "generate_config",  "return_dict_in_generate",     .why = LOGPROBS },
    { "generate_config",  "do_sample",                   .only = "true", .why = "samples are always drawn; 'temperature' says how" },
    { "generate_config",  "stop",                        .why = ENDS },
    { "generate_config",  "stop_strings",                .why = ENDS },
    { "generate_config",  "include_stop_str_in_output",  .why = ENDS },
    { NULL,               "trust_remote_code",           .why = "no code of a model's directory is ever run" },
    { "model_config",     "torch_dtype",                 .why = DTYPE },
    { "model_config",     "dtype",                       .why = DTYPE },
    { "plugin_config",    "precision",                   .why = DTYPE },
    { "model_config",     "attn_implementation",         .why = ATTENTION },
    { "model_config",     "use_flash_attention_2",       .why = ATTENTION },
    { "plugin_config",    "enable_flash_attention",      .why = ATTENTION },
    { "model_config",     "use_cache",                   .why = "keys and values are always kept while a sample is drawn" },
    { "model_config",     "device_map",                  .why = "'devices' says where the run computes" },
    { "model_config",     "max_model_len",               .why = LENGTH },
    { "model_config",     "gpu_memory_utilization",      .why = ENGINE },
    { "model_config",     "enforce_eager",               .why = ENGINE },
    { "model_config",     "enable_chunked_prefill",      .why = ENGINE },
    { "model_config",     "enable_sleep_mode",           .why = ENGINE },
    { "plugin_config",    "num_layers_per_stage",        .why = DIVIDED },
    { "plugin_config",    "num_microbatches",            .why = "'train_microbatch_size' or 'token_budget' bounds a micro-batch" },
    { "plugin_config",    "parallel_output",             .why = DIVIDED },
    { "plugin_config",    "custom_policy",               .why = DIVIDED },
    { "plugin_config",    "make_vocab_size_divisible_by", .why = DIVIDED },
    { "plugin_config",    "enable_metadata_cache",       .why = DIVIDED },
};
// clang-format on
static_assert(ARRAY_SIZE(keys) <= BLOCK_KEYS_MAX, "struct run_config has a bit for each");

bool block_is(const char *name)
{
    static const char *const blocks[] = { "grpo_config", "plugin_config", "generate_config", "model_config", "tokenizer_config" };
    for (size_t i = 0; i < ARRAY_SIZE(blocks); i++)
        if (strcmp(name, blocks[i]) == 0)
            return true;
    return false;
}

const struct block_key *block_key_find(const char *block, const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        if (strcmp(keys[i].name, name) == 0 && (keys[i].block ? strcmp(keys[i].block, block) == 0 : block[0]))
            return &keys[i];
    return NULL;
}

bool block_key_take(struct run_config *c, const struct block_key *k, const char *text, struct error *err)
{
    if (k->only && strcmp(k->only, text) != 0)
        return error_set(err, ERR_USAGE, "'%s' can only be %s: %s", k->name, k->only, k->why);
    c->blocks_given |= (uint64_t)1 << (k - keys);
    return true;
}

void blocks_finish(struct run_config *c, struct buf *notes)
{
    for (size_t i = 0; notes && i < ARRAY_SIZE(keys); i++)
        if (c->blocks_given >> i & 1)
            buf_fmt(notes, "note: '%s' has no effect: %s\n", keys[i].name, keys[i].why);
    c->blocks_given = 0;
}
