/* serve_job.h - a job for the policy's thread: continue prompts, pause, resume, load weights
 *
 * Made by a thread that serves HTTP and given to the policy (policy.h), which finishes it (http_job.h). The fields above `choice` do
 * not change once the policy has it. The policy appends tokens under the lock and wakes the HTTP side, which reads under the lock. A
 * job's size is bounded by its ask: samples, and tokens of each. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "workers/serve/adapter.h"
#include "workers/serve/ask.h"
#include "workers/http/http_job.h"
#include "workers/serve/stop_text.h"

enum job_kind {
    JOB_GENERATE,
    JOB_PAUSE,
    JOB_RESUME,
    JOB_UPDATE,            // new weights from a directory
    JOB_FORGET,            // empty the prefix cache
    JOB_ADAPTER_LOAD,      // the adapter in a directory
    JOB_ADAPTER_UNLOAD,    // no adapter
};
enum pause_mode {
    PAUSE_ABORT,    // work under way ends now, with what it has
    PAUSE_WAIT,     // ... is finished first
    PAUSE_KEEP,     // ... waits, and continues after resuming
};
enum choice_end {
    CHOICE_OPEN,
    CHOICE_STOP,      // an end token or stop string
    CHOICE_LENGTH,    // no more tokens were allowed
    CHOICE_ABORT,     // ended by an order or by its client
};
struct top_token {
    int32_t id;
    float logp;
};
/* The log-probs of a prompt's tokens; the first token has none. */
struct prompt_logps {
    int64_t n;                // tokens so far, without the first; 0 until the prompt has been run, and then the next are NULL
    float *logp;              // owned, as the next two; room for all tokens but the first
    int32_t *rank;            // from 1: the likeliest token
    struct top_token *top;    // (n, ask.n_read) likeliest first; NULL: not asked for
};
/* The blocks that messages and responses are made of (reply_parts.h). */
enum block_kind {
    BLOCK_NONE,
    BLOCK_THINKING,
    BLOCK_TEXT,
};
/* One sample, as far as it has been generated. */
struct job_choice {
    int32_t *token;           // (n_tok) owned, as the next three; room for cap
    float *logp;              // (n_tok) at the sampling temperature
    int32_t *version;         // (n_tok) of the weights that drew it
    struct top_token *top;    // (n_tok, ask.n_top) likeliest first; NULL: not asked for
    int64_t n_tok, cap;
    struct stop_text text;
    enum choice_end end;
    int64_t n_cached;      // tokens of its prompt that were not run, since an earlier one left them
    int32_t stop_token;    // the end token that ended it; -1: none
    // how much of it a stream has sent; used by the HTTP side
    int64_t sent_tok;
    size_t sent_text;         // with blocks: of the block of text
    size_t sent_thinking;     // of the block of thinking, and the next three: with blocks
    enum block_kind block;    // that is open
    int n_block;              // blocks that are complete
    int64_t n_event;
    bool began, ended;
};
struct serve_job {
    struct http_job http;    // first; its lock guards: everything from choice on, except the policy's fields
    enum job_kind kind;
    struct ask ask;           // JOB_GENERATE
    double created_s;         // since 1970
    int64_t n_choice;         // prompts x samples, a prompt's samples together
    enum pause_mode pause;    // JOB_PAUSE
    char dir[4096];           // JOB_UPDATE, JOB_ADAPTER_LOAD
    int64_t version;          // JOB_UPDATE, JOB_ADAPTER_LOAD: of the new weights; -1: the current one plus 1
    /* JOB_ADAPTER_*, owned: the wanted name, or "". When the job is done: the adapter that was loaded or unloaded. */
    struct adapter_look *adapter;
    struct job_choice *choice;    // (n_choice) owned
    struct prompt_logps *read;    // (ask.n_prompt) owned; NULL: not asked for
    bool failed;                  // it is done because of err
    struct error err;
    int64_t done_version;    // of the weights when it was done
    // used by the policy
    struct serve_job *next;    // in its queue
    int64_t next_choice;       // open samples from this one on are not in the generator
    int64_t n_open;            // samples that have not ended
    bool touched;              // has news in this step
};
static inline struct serve_job *serve_job_of(struct http_job *j)
{
    return (struct serve_job *)j;    // its first member
}
/* A job with one reference. NULL: no memory. */
struct serve_job *serve_job_new(enum job_kind kind, struct error *err);
/* Take the encoded ask (a holds nothing then) and make room for its samples. */
MUST_USE bool serve_job_ask(struct serve_job *j, struct ask *a, const struct tokenizer *tokenizer, struct error *err);
/* Make room for the log-probs of a prompt, once; when it is about to be run, so that requests that wait hold none. */
MUST_USE bool serve_job_prompt_room(struct serve_job *j, int64_t prompt, struct error *err);
MUST_USE bool serve_job_adapter(struct serve_job *j, struct error *err);    // make room for its adapter
void serve_job_hold(struct serve_job *j);
void serve_job_drop(struct serve_job *j);    // NULL is fine
/* Append a token to a choice. *stopped: its text now holds a stop string. Lock held. False: no memory. */
MUST_USE bool choice_add(struct serve_job *j, struct job_choice *c, int32_t id, float logp, int64_t version, bool *stopped);
const char *choice_end_name(enum choice_end end);    // OpenAI's names, and "abort"
