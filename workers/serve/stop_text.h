/* stop_text.h - the text of a sample as a stream: never half a character, and cut where a stop string begins
 *
 * A stop string may begin in one token and end in a later one, so the text that could be the beginning of one is held back:
 * `safe` bytes can be shown, the rest may still be cut. Tokens and log-probs are never cut; only the text is. One thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "workers/engine/text/tokenizer.h"

struct stop_text {
    struct decoder decoder;
    const char *const *stop;    // (n_stop) borrowed; none is empty
    int n_stop;
    bool include_stop;    // the text ends after the stop string, not before it
    struct buf text;      // UTF-8
    size_t safe;          // bytes of text that no later token can cut
    int stopped_by;       // index of the stop string found; -1: none
};
void stop_text_init(struct stop_text *t, const struct tokenizer *tokenizer, bool skip_special, const char *const *stop, int n_stop,
                    bool include_stop);
void stop_text_release(struct stop_text *t);
/* Add a token's text. *stopped: a stop string is complete now; the text has been cut, and nothing more may be added. Not may_stop: one
 * that this token completes is text like any other. False: no memory. */
MUST_USE bool stop_text_push(struct stop_text *t, int32_t id, bool may_stop, bool *stopped);
/* The sample has ended in another way: the text held back can be shown. False: no memory. */
MUST_USE bool stop_text_end(struct stop_text *t);
