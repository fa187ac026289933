/* gguf_dir.h - a GGUF file's model as a Hugging Face directory
 *
 * Weights, config.json, tokenizer and chat template all come out of the one file. A directory is made, instead of a second source of
 * weights beside safetensors, because every part of rollcall, and every other program, already reads directories: loading, plans, slices of
 * several devices, other nodes, checkpoints and tokenizers stay as they are.
 *
 * Exact values are kept: F16 and BF16 tensors as they are, all others in fp32, as transformers dequantises them. What llama.cpp's
 * converter does to a model is undone: the rows of q and k are put back in the order that Llama's RoPE in transformers has, and 1 is
 * taken off Gemma's norms. Any thread. */
#pragma once
#include <stdbool.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

enum gguf_keep {
    GGUF_KEEP_EXACT,
    GGUF_KEEP_F32,     // all values in fp32
    GGUF_KEEP_BF16,    // rounded to bf16, to nearest even
};
struct gguf;
/* The texts beside the weights. */
struct gguf_files {
    struct buf config, generation, tokenizer, tokenizer_config;    // zero to start
};
/* Make them. ERR_UNSUPPORTED names what this version does not run: an architecture, a tokenizer, a kind of RoPE. f is to be released
 * either way. */
MUST_USE bool gguf_files_make(struct gguf_files *f, const struct gguf *g, enum gguf_keep keep, struct error *err);
void gguf_files_release(struct gguf_files *f);
/* Write the model in the file at path into dir, which is made if it is not there. When it fails, what was written stays. */
MUST_USE bool gguf_convert(const char *path, const char *dir, enum gguf_keep keep, struct error *err);
/* In gguf_words.c: tokenizer.json and tokenizer_config.json. */
MUST_USE bool gguf_words_make(struct gguf_files *f, const struct gguf *g, struct error *err);
