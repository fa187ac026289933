/* tool_model.h - what the tools that run a model share: its options, loading it with its text side, and letting it
 * go */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/cli.h"
#include "protocol/base/error.h"

struct device;
struct encoder;
struct model;
struct template;
struct tokenizer;
struct tool_model {
    const char *name;      // --model: a directory, of a model or of an adapter, a GGUF file, or org/name in the Hugging Face cache
    const char *device;    // --device; "cpu:0"
    const char *dtype;     // --dtype: "auto", "float32" or "bfloat16"
    int64_t n_thread;      // --threads; 0: all cores
    /* In place of loading name: the model by open(ctx), on the device, with the text side of text_name. NULL: as usual. */
    struct model *(*open)(void *ctx, struct device *dev, struct error *err);
    void *open_ctx;
    const char *text_name;    // a directory
    bool late;                // leave a model's weights in its files until they are taken (model_files_open); not an adapter's base
    char dir[4096];           // where the model is; from here on: after tool_model_load
    struct device *dev;       // owned, as all below
    struct model *model;
    struct tokenizer *tokenizer;    // with need_text, else NULL
    struct encoder *encoder;        // with it
    struct template *template;      // with it; NULL when the directory has no chat template
};
#define TOOL_MODEL_DEFAULT ((struct tool_model){ .device = "cpu:0", .dtype = "auto" })
/* Rows for a command's table of options. */
#define TOOL_MODEL_OPTIONS(t)                                                                                                              \
    { "model", "m", CLI_STR, &(t)->name, "DIR", "model or adapter directory, a .gguf file, or org/name in the Hugging Face cache" },       \
        { "device", NULL, CLI_STR, &(t)->device, "NAME", "cpu:0, cuda:0 ... or ref (default cpu:0)" },                                     \
        { "dtype", NULL, CLI_STR, &(t)->dtype, "TYPE", "float32, bfloat16 or auto: float32 on a CPU, bfloat16 on a GPU" },                 \
    {                                                                                                                                      \
        "threads", NULL, CLI_I64, &(t)->n_thread, "N", "CPU threads (default: all cores)"                                                  \
    }

/* Open the device, load the model and, with need_text, its tokenizer. On failure t holds nothing. */
MUST_USE bool tool_model_load(struct tool_model *t, bool need_text, struct error *err);
void tool_model_release(struct tool_model *t);
