/* policy.h - what continues the requests: a queue, and a generator's continuous batch that they all join
 *
 * Any thread adds jobs with policy_submit; they start in order of arrival, as room allows. The forward path is that of rollouts and
 * training, so log-probs are the same to the bit.
 *
 * In a server (`rollcall serve`) the policy owns a generator, and the thread that drives it. New weights wait until nothing is under
 * way, unless the policy is paused with its work kept: then that work continues with the new ones, and every token records which
 * weights drew it.
 *
 * Weights that a trainer lends (policy_config.lent) are held while requests are under way. When the trainer wants them, those under way are
 * finished first, all samples of each, and new ones wait; so a request never mixes versions. One that takes longer than the trainer waits fails,
 * and so do all when the trainer goes.
 *
 * In a run (policy_config.model NULL) the generator is the sampler's, whose thread calls the functions of the second part, and
 * the requests are guests in it: when the run needs the memory or changes the weights, they are lifted out, and later continue where they
 * were. A sample that was lifted out has the same tokens as one that was not, as long as the weights are the same. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "workers/serve/adapter.h"
#include "workers/serve/ask.h"
#include "workers/serve/serve_job.h"

struct drawn_book;
struct lent;
struct model;
struct policy;
struct policy_config {
    struct lent *lent;          // whose the model's weights are (lent.h); borrowed. NULL: they are its own
    struct drawn_book *book;    // notes what was drawn; borrowed. NULL: nothing is noted
    struct model *model;        // borrowed; only the policy's thread uses it until policy_free. NULL: in a run
    int64_t n_id;               // in a run: token ids are below
    void (*wake)(void *ctx);    // in a run: called by other threads when policy_feed has something to do
    void *wake_ctx;
    const struct tokenizer *tokenizer;    // borrowed
    int64_t max_seq;                      // samples decoded at once; in a run, inside the generator at once
    int64_t max_seq_tok;                  // prompt and completion
    int64_t max_queue;                    // prompts inside, waiting and running
    int64_t max_lora_rank;                // of adapters that are loaded later; 0: none can be
    size_t kv_bytes;                      // as in struct generator_config
    const int32_t *eos;                   // (n_eos) end tokens; borrowed
    int n_eos;
};
/* Make generator and thread. NULL: see err. */
struct policy *policy_new(const struct policy_config *config, struct error *err);
/* End the thread: what is inside ends as aborted, and is done when this returns. NULL is fine. */
void policy_free(struct policy *e);
/* Hand a job over; the policy takes a reference. Fails with ERR_FULL (too many prompts are inside) or ERR_CLOSED (policy_close). */
MUST_USE bool policy_submit(struct policy *e, struct serve_job *j, struct error *err);
/* The job's client has gone: end it soon. */
void policy_leave(struct policy *e, struct serve_job *j);
/* Take no more jobs. Wait until all are done, at most limit_ms; false: some are still under way. */
bool policy_close(struct policy *e, int64_t limit_ms);
/* End everything under way, with what it has. */
void policy_abort_all(struct policy *e);

struct policy_state {
    bool paused, failed;             // failed: the last step failed, or nothing can be sampled yet; err says why
    int64_t version;                 // of the weights
    int64_t n_prompt;                // prompts inside
    int64_t n_decode_tok;            // tokens drawn since the start
    int64_t n_running, n_waiting;    // samples being decoded, and those that wait for room; in a run also its own
    int64_t n_page, n_page_used;     // of keys and values; also what the prefix cache keeps
    int64_t n_put_back;              // times that a sample was put back because pages had run out, since the start
    struct error err;
};
void policy_state(struct policy *e, struct policy_state *out);
/* The adapter that new requests are computed with. False: adapters cannot be loaded here. */
bool policy_adapter(struct policy *e, struct adapter_look *out);

/* ---- in a run: for the thread that drives the generator */
struct drawn;
struct generator;
struct read_token;
/* Continue the requests in g, whose watcher passes tokens with a prompt_row below 0 to policy_watch, and which has room for max_seq
 * items and samples in addition to the run's. */
void policy_attach(struct policy *e, struct generator *g);
void policy_lift(struct policy *e);      // take all guests out of the generator; the next policy_feed puts them back
void policy_detach(struct policy *e);    // the same, until there is another generator
/* Has policy_feed something to do? */
bool policy_wants(struct policy *e);
void policy_version_set(struct policy *e, int64_t version);    // of the generator's weights
/* Before a step of the generator: take new requests, and let as many samples join as may. While the run has
 * items of its own inside, all prompts of guests together have at most a quarter of the tokens that the run draws. */
void policy_feed(struct policy *e);
bool policy_watch(struct policy *e, const struct drawn *d);
void policy_read_watch(struct policy *e, const struct read_token *t);
/* After a step. why: it failed, and so do all requests; NULL: it did not. */
void policy_stepped(struct policy *e, const struct error *why);
/* Take no more jobs, and end all with what they have. */
void policy_end(struct policy *e);
