/* bench_train.h - timing whole optimizer steps of any shape on any device, for bench train and bench cpu */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/ops.h"
#include "protocol/base/error.h"
#include "workers/engine/model/config.h"
#define TRAIN_ROUNDS_MAX 64

struct train_bench {
    const struct model_config *config;
    const char *device;
    int n_thread;    // CPU threads; 0: all
    enum dtype dtype;
    int64_t n_seq, len;         // sequences per optimizer step, tokens per sequence
    int64_t n_prompt, group;    // tokens of the prompt, and how many sequences in a row share it
    bool apart;                 // prompts are computed for each of them
    int64_t token_budget;       // tokens per micro-batch; 0: all in one
    int64_t n_live;             // ids that occur, as with a tokenizer that has no more; 0: all
    int64_t parts;              // of sums (model_parts_set); 0 and 1: the device's own order
    double host_share;          // of masters and moments in host memory, 0 to 1
    bool recompute_block;
    bool stale;           // the samples stay those of the first weights: their ratios are looked at before the loss (skip_threshold)
    int64_t lora_rank;    // of an adapter, which alone is trained; 0: all weights are
    int64_t n_team;       // devices that the model is cut over, the named one and those after it; 0: 1
    int64_t n_stage;      // stages of layers that it is cut into, each on n_team devices; 0: 1
    int rounds;
    const char *profile;    // file for the timeline of the last steps, or NULL
    /* out */
    double step_s;                       // median
    double shared;                       // of the tokens, those that were computed with others' (share_prompts)
    uint64_t hash;                       // of the weights at the end
    size_t planned_bytes, used_bytes;    // device memory: from the tables of tensors, and as reported by the device
    size_t host_bytes;                   // pinned
    size_t grown_bytes;                  // device memory taken after the first step
};
/* Run steps of the trainer on random sequences, one sample each, with the log-probs of a uniform policy. */
MUST_USE bool train_bench_run(struct train_bench *b, struct error *err);
/* Groups of random completions with rewards 0 and 1 by turns, for a GRPO step: n_seq samples of len rows each, `group` (at most) of which
 * have one prompt of n_prompt tokens, 1 to len; ids below vocab. For train_groups_free; NULL: see err. */
struct group;
struct trainer_hyper;
#define TRAIN_GROUP 64
struct group **train_groups_make(int64_t vocab, int64_t n_seq, int64_t len, int64_t n_prompt, int64_t group, int64_t *n_group,
                                 struct error *err);
void train_groups_free(struct group **g, int64_t n);
/* Let them be samples of the weights of this version. */
void train_groups_date(struct group *const *g, int64_t n, int64_t version);
void train_hyper_make(struct trainer_hyper *h);
/* Floating-point operations of a step: 6 per weight and token, plus causal attention's. */
double train_flops(const struct model_config *c, int64_t n_seq, int64_t len);
