/* policy.h - the thread that owns model and generator, and its queue
 *
 * All requests join one continuous batch. Any thread adds jobs with policy_submit; they start in order of arrival, as
 * room allows. The forward path is that of rollouts and training, so log-probs are the same to the bit. New weights
 * wait until nothing is under way, unless the policy is paused with its work kept: then that work continues with the
 * new ones, and every token records which weights drew it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "workers/serve/adapter.h"
#include "workers/serve/ask.h"
#include "workers/serve/serve_job.h"

struct model;
struct policy;
struct policy_config {
    struct model *model;                  // borrowed; only the policy's thread uses it until policy_free
    const struct tokenizer *tokenizer;    // borrowed
    int64_t max_seq;                      // samples decoded at once
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
    bool paused, failed;     // failed: the last step failed; err says why
    int64_t version;         // of the weights
    int64_t n_prompt;        // prompts inside
    int64_t n_decode_tok;    // tokens drawn since the start
    struct error err;
};
void policy_state(struct policy *e, struct policy_state *out);
/* The adapter that new requests are computed with. False: adapters cannot be loaded here. */
bool policy_adapter(struct policy *e, struct adapter_look *out);
