/* session.h - what a harness's program has asked of a sample, as paths of tokens
 *
 * A request is what the model reads, and the reply is what it draws. Where the text of a request begins with exactly the text that was
 * read and drawn so far, the request goes on with that path: the ids that were drawn stay as they are, and only what follows is tokenised,
 * once. A request that begins otherwise (contexts are compacted, thinking is left out, another conversation begins) is a new path; what
 * it shares with an older one up to the end of a turn is copied, ids and all. Each path is a sample of the group that comes out. A
 * drawn token counts in the loss of the first path that has it, and of no other.
 *
 * An assistant's message that is one of this session's replies stands for the text that was drawn, also where it came with tool calls.
 *
 * Requests and replies are those of `rollcall serve` (workers/serve/ask.h, reply.h). How tokens are drawn is the run's to say: a request may
 * ask for fewer tokens and for stop strings, and its temperature, top_p, seed and the like do not count.
 *
 * Engine's thread only. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>
#include "protocol/base/error.h"
#include "workers/engine/sampler/sampling.h"
#include "workers/serve/ask.h"
#include "workers/serve/reply.h"

#define SESSION_PATHS_MAX 64    // of a session; a request that needs another one is refused

struct drawn;
struct session;
/* A path: everything that was read and drawn, in order. */
struct session_path {
    int32_t *token;    // (n) owned, as the next four
    float *logp, *entropy;
    int32_t *newer;        // against the weights that drew the item's first token
    uint8_t *mask;         // 1: drawn, and in the loss of this path
    int64_t n, n_first;    // n_first: tokens before the first that was drawn in it
};
struct session_config {
    struct ask_text text;          // max_seq_tok: tokens of a path, at most
    struct reply_context reply;    // what the model is called
    int64_t max_turn_tok;          // of a reply; 0: what there is room for
};
/* Returns it for session_free. NULL: no memory. */
struct session *session_new(void);
void session_free(struct session *s);     // NULL is fine
void session_clear(struct session *s);    // start over

/* Take the harness's answer {"path", "body", "ask"} (harness.h). base: the run's sampling. *text NULL: tokens are to be drawn after
 * session_prompt, by *sampling; else it is the reply, without drawing, for free. id names the reply. False: no memory. */
MUST_USE bool session_ask(struct session *s, const struct session_config *c, const json_t *request, const struct sampling *base,
                          const char *id, struct sampling *sampling, char **text, struct error *err);
const int32_t *session_prompt(const struct session *s, int64_t *n);    // borrowed until the next token
int session_branch(const struct session *s);                           // the number of the path that is drawn for, from 0
/* A token was drawn; first: version of the weights that drew the item's first. Returns true when it ends the reply (also where
 * d->is_last does not say so). */
bool session_token(struct session *s, const struct drawn *d, int64_t first);
/* The reply is complete: its text for the harness, for free. version: of the weights that drew its last token. NULL: no memory. */
char *session_reply(struct session *s, const struct session_config *c, int64_t version);

int session_n_path(const struct session *s);
const struct session_path *session_path(const struct session *s, int i);
