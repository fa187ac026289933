/* prompt.h - from a dataset's line to the ids a model continues: template, tokens, and the handling of long prompts
 *
 * Used by producers and by the tools, so that both see the same prompts. A prompt that is too long is never cut
 * silently: a policy says what happens, and it is counted. One thread (its encoder's). */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>
#include "protocol/base/error.h"

struct encoder;
struct template;
struct token_list;
enum long_prompt {
    LONG_REFUSE,      // an error that names the row
    LONG_DROP,        // leave the row out
    LONG_CUT_LEFT,    // keep the last tokens, so that the end of the question and the generation prompt stay
};
struct prompt_maker {
    struct encoder *encoder;            // borrowed
    const struct template *template;    // borrowed; NULL: rows with messages are refused
    const char *system_prompt;          // put before messages that have no system message; NULL: none
    int64_t max_tok;                    // longest prompt, tokens; 0: no limit
    enum long_prompt long_prompt;
    int64_t n_dropped, n_cut;    // so far
    int64_t longest;             // tokens of the longest prompt seen, before cutting
    int64_t shortest;            // ... of the shortest; 0: none was seen
};
/* "refuse", "drop" or "cut_left". */
MUST_USE bool long_prompt_parse(const char *name, enum long_prompt *out, struct error *err);
/* The prompt's ids, appended to out (emptied first). row has `messages` (one object or a list; they go through the
 * template with a generation prompt, and with `tools` where the row has a list of them), or `prompt` (raw text, special
 * tokens in it are recognised), or `prompt_ids`.
 * *dropped: too long under LONG_DROP; out is empty then. ERR_DATA says what is wrong with the row, without naming
 * its line. */
MUST_USE bool prompt_make(struct prompt_maker *p, const json_t *row, struct token_list *out, bool *dropped, struct error *err);
/* The ids that go between a model's turn and its next one, appended to out: what the template writes after a turn, a message of
 * role with this text, and the beginning of the next turn. Without a template, or for a row whose prompt was a text (chat
 * false), the text alone. last: the turn's last bytes (an end token's; n_last 0: it ended without one), which are not
 * written again. What the model drew is never tokenised again, so the template's view of earlier turns does not matter. */
MUST_USE bool prompt_turn_add(struct prompt_maker *p, bool chat, const char *role, const char *text, size_t len, const void *last,
                              size_t n_last, struct token_list *out, struct error *err);
