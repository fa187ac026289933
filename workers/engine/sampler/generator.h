/* generator.h - continuous batching: prompts in, rollout groups out
 *
 * An item is one prompt with G samples. Its prompt is run through the model once, its pages of keys and values are
 * shared by the samples, and the samples of all items are decoded together; each leaves when it has ended and makes
 * room for the next. Owned by the one thread that drives the device; nothing here locks. All memory of a step is taken
 * by generator_new; submitting and finishing allocate, a step does not.
 *
 * What is promised: a token and its log-prob are the same bits whatever else runs, in whatever order and batch. They
 * depend on the weights, the prompt, the sampling settings and (seed, item, sample, position) only.
 *
 * On a GPU the host is one step behind: a decode step starts with the tokens of the one before while these are still on
 * the device, and only then are they fetched and examined. So the end of a sample is noticed one step late, and the
 * token that step drew for it is dropped.
 *
 * A sample takes pages as it grows. When they run out, the youngest samples are put back: they lose their pages, keep their tokens and
 * go on later, after their keys and values have been computed again. These have the same bits, so only the time differs; but where
 * weights are replaced while items run (generator_version_update), a sample that was put back goes on with keys of the new ones alone. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/record/group.h"
#include "workers/engine/sampler/sampling.h"

struct model;        // workers/engine/model/model.h
struct tokenizer;    // workers/engine/text/tokenizer.h

/* A token that a sample has just got. */
struct drawn {
    int64_t prompt_row;     // of its item
    int32_t sample;         // index in its item
    int32_t id;             // the token
    float logp;             // at the sampling temperature, as in struct group
    float entropy;          // the same; 0 unless the generator keeps it
    int64_t version;        // of the weights that drew it
    bool is_last;           // the item's own settings end the sample here,
    bool is_stop;           // by an end token or stop string; else by length
    int64_t n_cached;       // tokens of its prompt that the cache already had, so they were not run
    const float *logits;    // (vocab) host, the ones it was drawn from, for items with keep_logits; until the call returns
};
/* Called for every token, in order within its sample, on the generator's thread. Returns true to end the sample with this
 * token, as a stop string does. May not call the generator. */
typedef bool generator_watch(void *ctx, const struct drawn *d);
/* A token of a prompt, for items with keep_prompt. */
struct read_token {
    int64_t prompt_row;     // of its item
    int64_t at;             // its place in the prompt, from 1: nothing comes before the first
    int32_t id;             // the token
    float logp;             // at temperature 1
    const float *logits;    // (vocab) host, of the token before it; until the call returns
};
/* Called for every such token, in order, on the generator's thread, before the item's first token is drawn. May not call the generator. */
typedef void generator_read_watch(void *ctx, const struct read_token *t);
struct generator_config {
    struct model *model;                  // borrowed as long as the generator lives
    const struct tokenizer *tokenizer;    // borrowed; only for stop strings, else NULL
    int64_t max_seq;                      // most samples decoded in one step (on a CPU fewer: what its caches hold)
    int64_t max_item;                     // most items waiting or running
    int64_t max_seq_tok;                  // longest prompt + completion, tokens
    int64_t prefill_tok;                  // prompt tokens run in one prefill; 0: what suits the device
    size_t kv_bytes;                      // pool; 0: max_seq samples of max_seq_tok, at most half of what is free
    void *kv_mem;                         // (device; kv_bytes) memory of the pool, borrowed; others may use it while the
                                          // generator is idle. NULL: its own
    enum {
        BEHIND_AUTO,
        BEHIND_NEVER,
        BEHIND_ALWAYS,
    } behind;    // auto: yes on a device that works asynchronously
    enum {
        SPECULATE_AUTO,
        SPECULATE_NEVER,
        SPECULATE_ALWAYS,
    } speculate;                         // run guesses at next tokens along; auto: while that is quicker
    bool entropy;                        // groups get the entropy that each token was drawn at
    int64_t version;                     // version of the weights now in model
    int64_t lora_rank;                   // highest rank of an adapter of generator_model_set's models
    bool prefix_cache;                   // later prompts reuse pages that earlier ones have left; generator_cache_clear before others use
                                         // kv_mem
    generator_watch *watch;              // NULL: no watcher
    generator_read_watch *read_watch;    // of items with keep_prompt; NULL: there are none
    void *watch_ctx;                     // of both
};
/* One prompt to be continued. */
struct generator_item {
    int64_t item;             // the number that determines its random draws
    int64_t prompt_row;       // passed on to the group
    int64_t rollout_step;     // passed on to the group
    const int32_t *prompt;    // (n_prompt) ids; copied
    int64_t n_prompt;         // at least 1
    int32_t n_sample;         // at least 1
    int32_t first_sample;     // number of sample 0 for its noise; 0, unless the samples of one prompt are split over items
    const uint64_t *seed;     // (n_sample) copied
    struct sampling sampling;
    uint64_t cache_salt;    // prompts of different salts share no cached pages
    bool keep_logits;       // watch, if there is one, gets the logits; while such an item runs, the host is not a step behind
    bool keep_prompt;       // read_watch gets the prompt's tokens; nothing of the prompt comes from the cache
    bool guest;             // somebody else's in the owner's batch: all its tokens go to watch, and no group is made of it
};
struct generator;

/* Make a generator with all its memory; ERR_SHAPE says which sizes cannot work. Free before the model. */
struct generator *generator_new(const struct generator_config *config, struct error *err);
void generator_free(struct generator *g);    // with all items still inside; NULL is fine

/* Queue an item. ERR_FULL: max_item items are inside; try again after a step. ERR_SHAPE: it can never run (too long for
 * max_seq_tok or for the pool), with the sizes. On failure nothing has changed. */
MUST_USE bool generator_submit(struct generator *g, const struct generator_item *item, struct error *err);
/* Device memory that generator_new takes in addition to the pool. */
size_t generator_bytes(const struct generator_config *config);
/* The part of it that holds states of sequences; 0: the model has none. */
size_t generator_state_bytes(const struct generator_config *config);
/* Bytes of a pool large enough that max_seq samples of max_seq_tok never wait. */
size_t generator_kv_bytes(const struct model *m, int64_t max_seq, int64_t max_seq_tok);
/* One round: admit what fits, run waiting prompts in a few prefills of up to prefill_tok tokens, decode one token for every running
 * sample. Does nothing when idle. On failure the generator is empty (generator_clear). */
MUST_USE bool generator_step(struct generator *g, struct error *err);
/* Run and record decode steps of every size up to max_seq rows, and run prompts of every number of tokens that has algorithms of its own,
 * so that no later step is the first of its kind: for a server, whose first clients would wait for that. Counts nowhere, and leaves
 * nothing in the prefix cache. Does nothing on a device that records nothing. Only while idle, and when generator_poll has given all
 * finished groups. On failure the generator is empty (generator_clear). */
MUST_USE bool generator_warm(struct generator *g, struct error *err);
/* The next finished group, in the order of finishing; returns it for group_free, NULL: none. */
struct group *generator_poll(struct generator *g);
bool generator_idle(const struct generator *g);        // nothing waiting, nothing running (finished groups may wait in poll)
bool generator_own_idle(const struct generator *g);    // ... except for guests
/* Drop everything inside, including finished groups. Returns how many items were dropped. */
int64_t generator_clear(struct generator *g);
/* Drop the items of this prompt_row in whatever state; finished ones may still come from generator_poll. Returns how many. */
int64_t generator_drop(struct generator *g, int64_t prompt_row);
/* An item that was stopped (generator_stop, generator_drop_item). */
struct stopped_item {
    int64_t item, version;     // version: of the weights
    int64_t n_tok, n_drawn;    // tokens of its longest sample, and of all
};
/* Drop the next item of this rollout step, guests aside, that has a sample of more than n_tok tokens. False: there is none. */
bool generator_stop(struct generator *g, int64_t rollout_step, int64_t n_tok, struct stopped_item *out);
/* Drop this item, guests aside, waiting or running. False: it is not inside; a finished one may still come from generator_poll. */
bool generator_drop_item(struct generator *g, int64_t item, struct stopped_item *out);
/* Forget the pages that later prompts might begin with; what runs keeps its own. */
void generator_cache_clear(struct generator *g);
/* The weights in the model have been replaced in place: items not started yet and those submitted from now on carry
 * this version. ERR_REFUSED while an item is started but not finished: a group is generated entirely at one version. */
MUST_USE bool generator_version_set(struct generator *g, int64_t version, struct error *err);

/* As generator_version_set, while items are being generated (free-running). They continue with the new weights and the keys and values of
 * the old ones, and group.newer says which tokens the new weights drew. */
void generator_version_update(struct generator *g, int64_t version);

/* Continue with another model from now on: m, of the same base (lora.h), with an adapter of at most lora_rank or none. m is borrowed
 * in place of config.model. What runs goes on with m, as after generator_version_update. */
MUST_USE bool generator_model_set(struct generator *g, struct model *m, int64_t version, struct error *err);

struct generator_stats {
    int64_t n_step;                 // rounds that did something
    int64_t n_decode;               // decode steps launched, since the start, as the four below
    int64_t n_kv_tok;               // tokens whose keys and values they read, row by row
    int64_t n_run_tok;              // tokens run through the model, in prompts and in decode steps
    int64_t n_seen_tok;             // tokens that each of those saw, itself included, together
    int64_t n_decode_tok;           // tokens sampled, since the start
    int64_t n_group;                // groups finished, since the start
    int64_t n_cached_tok;           // prompt tokens that the cache had, since the start
    int64_t n_running_seq;          // samples being decoded
    int64_t n_waiting_seq;          // samples that wait for room, also those that were put back
    int64_t n_put_back;             // times that a sample was put back because pages had run out, since the start
    int64_t n_again_tok;            // tokens run again for that
    int64_t n_draft, n_accepted;    // guesses at next tokens that were run, and that came true, since the start
    int64_t n_page, n_free_page;    // of the pool
    int64_t page_tok;               // tokens per page
    double prefill_s, decode_s;     // busy time, since the start
};
void generator_stats(const struct generator *g, struct generator_stats *out);
void generator_stats_add(struct generator_stats *to,
                         const struct generator_stats *other);    // those of two generators with pages of one size

/* A look at a sample that is being decoded, for the operator's screen. */
struct generator_live {
    int64_t item;
    int32_t sample;
    const int32_t *prompt;    // (n_prompt) borrowed until the next call on the generator, as token
    int64_t n_prompt;
    const int32_t *token;    // (n_tok) sampled so far
    int64_t n_tok;
};
/* Up to max running samples, oldest items first; returns how many. */
int64_t generator_live(const struct generator *g, struct generator_live *out, int64_t max);
