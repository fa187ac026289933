/* sampling_options.h - the sampling options of the tools, and the engine made from them */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/cli.h"
#include "protocol/base/error.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/sampler/prompt.h"

struct tool_model;
struct sampling_options {
    double temperature, top_p, min_p;
    int64_t top_k, max_new_tok, min_new_tok, max_prompt_tok;    // max_prompt_tok 0: what the model allows
    int64_t batch;                                              // samples decoded at once
    const char *stop, *long_prompt_name;
    bool ignore_eos;
    enum long_prompt long_prompt;    // set by sampling_options_check, from its name
};
#define SAMPLING_OPTIONS_DEFAULT                                                                                                           \
    ((struct sampling_options){ .temperature = 1, .top_p = 1, .max_new_tok = 1024, .batch = 256, .long_prompt_name = "refuse" })
#define SAMPLING_OPTIONS(o)                                                                                                                  \
    { "temperature", "T", CLI_F64, &(o)->temperature, "T", "0 is greedy (default 1)" },                                                      \
        { "top-p", NULL, CLI_F64, &(o)->top_p, "P", "keep the likeliest tokens that add up to probability P (default 1: all)" },             \
        { "top-k", NULL, CLI_I64, &(o)->top_k, "K", "keep the K likeliest tokens (default 0: all)" },                                        \
        { "min-p", NULL, CLI_F64, &(o)->min_p, "P", "keep tokens with at least P times the largest probability (default 0: all)" },          \
        { "max-new-tokens", "mnt", CLI_I64, &(o)->max_new_tok, "N", "longest completion (default 1024, or what fits)" },                     \
        { "min-new-tokens", NULL, CLI_I64, &(o)->min_new_tok, "N", "draw no end token, and end at no --stop, before N tokens (default 0)" }, \
        { "max-prompt-tokens", "mpt", CLI_I64, &(o)->max_prompt_tok, "N", "longest prompt (default: what fits)" },                           \
        { "long-prompt", NULL, CLI_STR, &(o)->long_prompt_name, "HOW", "refuse (default), drop, cut_left" },                                 \
        { "stop", NULL, CLI_STR, &(o)->stop, "TEXT", "end a completion after this text" },                                                   \
        { "ignore-eos", NULL, CLI_FLAG, &(o)->ignore_eos, NULL, "continue after the end token" },                                            \
    {                                                                                                                                        \
        "batch", NULL, CLI_I64, &(o)->batch, "N", "samples decoded at once (default 256, on a CPU 32 per thread)"                            \
    }
/* Check that every option is within its bounds. */
MUST_USE bool sampling_options_check(struct sampling_options *o, struct error *err);
/* Longest prompt that leaves room for one token. */
int64_t sampling_options_max_prompt(const struct sampling_options *o, const struct model *m);
/* Print on stderr what was done with prompts that are texts. */
void prompt_notes_print(const struct prompt_maker *p);
/* How a prompt of n_prompt tokens is sampled: the options, the tokenizer's end tokens, and no more tokens than the model allows. */
void sampling_options_for(const struct sampling_options *o, const struct tool_model *t, int64_t n_prompt, struct sampling *out);
/* An engine for prompts of at most longest tokens, with room for max_item of them. */
struct generator *sampling_options_engine(const struct sampling_options *o, const struct tool_model *t, int64_t longest, int64_t max_item,
                                          struct error *err);
