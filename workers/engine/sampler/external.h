/* external.h - an inference engine of somebody else's as a sampler: vLLM, SGLang, or rollcall's own server, over HTTP
 *
 * It takes items as a generator does, and gives groups. Threads of its own send the requests, one item each. What they have met:
 * 1. An engine that is away (cannot be reached, answers 5xx, or nothing within request_s) is asked again, with growing pauses, until
 *    it has been away for patience_s. Then the sampler has failed, with a sentence.
 *    Meanwhile external_is_away says so, for an owner that can have its items drawn elsewhere.
 * 2. An answer that is none (wrong shape, 4xx) is asked for again TRIES times; then the sampler has failed.
 * 3. Weights are a directory that the engine is told to read, or that a program of the operator's gives to it (helper): the engine need
 *    not see this host's files then. After it was away, it may have been started again: so it is told again before the next request.
 *    An answer that says it was drawn by other weights is dropped, and the same is done.
 *
 * Functions are called by one thread, its owner's. wake(ctx) is called by the others when external_ready may have become true, or
 * external_trouble has changed. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "workers/engine/sampler/external_wire.h"

struct external_config {
    enum external_kind kind;
    const char *url;           // http://HOST:PORT without a slash at its end; borrowed, as token_file
    const char *token_file;    // whose first line is sent as a bearer token; NULL: none
    const char *helper;        // a command (line_program.h) that gives the engine a model's weights; NULL: the engine reads them itself
    double request_s, patience_s;
    int n_request;            // at once
    bool spare;               // others draw, too: nobody waits for weights to reach an engine that is away
    int64_t n_id, n_vocab;    // ids of tokens are below n_id; rows of the model's table of tokens
    void (*wake)(void *ctx);
    void *ctx;
};
struct external;
struct external *external_new(const struct external_config *config, struct error *err);
void external_stop(struct external *x);    // give up what is in progress, for good; any thread
void external_free(struct external *x);    // stops it first; NULL is fine
/* Have the engine read dir, a model's directory or (adapter) an adapter's, which stays until the next call has returned. Waits until
 * it has, at most patience_s; a spare one that is away gets them when it is back. Requests that are under way go on with what they began with, and those that begin afterwards carry this
 * version. On failure the engine is told again before the next request. */
MUST_USE bool external_weights_set(struct external *x, const char *dir, bool adapter, int64_t version, struct error *err);
/* Queue an item; copied. */
MUST_USE bool external_submit(struct external *x, const struct generator_item *item, struct error *err);
/* The next finished group, for group_free; NULL: none. */
struct group *external_poll(struct external *x);
bool external_ready(struct external *x);    // external_poll has a group, or the sampler has failed
bool external_idle(struct external *x);     // nothing inside
/* Has it failed? Everything inside is dropped then, and it may be used again. */
bool external_failed(struct external *x, struct error *err);
/* Has it not answered for a while? Once nothing is inside it is asked now and then whether it is back, and given its weights. */
bool external_is_away(struct external *x);
void external_clear(struct external *x);                              // drop everything inside
void external_trouble(struct external *x, char *out, size_t size);    // what is wrong now; "": nothing
struct external_stats {
    int64_t n_tok;        // tokens that have come, since the start
    int64_t n_running;    // samples that are asked for now
};
void external_stats(struct external *x, struct external_stats *out);
