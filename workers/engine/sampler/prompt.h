/* prompt.h - from a dataset's line to the ids a model continues: template, tokens, and the handling of long prompts
 *
 * Used by producers and by the tools, so that both see the same prompts. A prompt that is too long is never cut
 * silently: a policy says what happens, and it is counted. One thread (its encoder's). */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

struct encoder;
struct run_config;
struct template;
struct token_list;
enum long_prompt {
    LONG_REFUSE,      // an error that names the row
    LONG_DROP,        // leave the row out
    LONG_CUT_LEFT,    // keep the last tokens, so that the end of the question and the generation prompt stay
};
struct prompt_maker {
    struct encoder *encoder;            // borrowed
    const struct template *template;    // borrowed; NULL: texts are continued as they are (a base model)
    const char *system_prompt;          // put before messages that have no system message; NULL: none
    bool system_is_rewards;             // it is the reward_type's own
    int64_t max_tok;                    // longest prompt, tokens; 0: no limit
    enum long_prompt long_prompt;
    int64_t n_dropped, n_cut;    // so far
    int64_t n_text;              // prompts that were texts in `prompt`
    int64_t n_plain;             // messages without a template
    int64_t n_tools;             // messages with tools; only the first are rendered without them, too
    bool tools_unseen;           // which gave the same text
    int64_t n_rendered;          // messages whose text was a rendered prompt
    int64_t n_system;            // messages that the system prompt was put before
    int64_t longest;             // tokens of the longest prompt seen, before cutting
    int64_t shortest;            // ... of the shortest; 0: none was seen
};
/* "refuse", "drop" or "cut_left". */
MUST_USE bool long_prompt_parse(const char *name, enum long_prompt *out, struct error *err);
/* The system prompt that given asks for, as the setting 'system_prompt' does: its text, "none" for none (NULL), or NULL or "" for
 * that of the reward type (NULL: it has none). */
const char *prompt_system(const char *given, const char *reward_type);
/* The maker of a run's prompts; encoder and template (NULL: the model has none) are borrowed, and so is c. */
struct prompt_maker prompt_maker_of(const struct run_config *c, struct encoder *encoder, const struct template *template);
/* After no row of the data set name fitted: set err to how long the shortest prompt is and how much of row's is the system prompt. */
void prompt_none_fits(const struct prompt_maker *p, const char *name, const json_t *row, struct error *err);
/* The prompt's ids, appended to out (emptied first). row has one of
 *   `messages`    one object or a list. They go through the template, with a generation prompt and with `tools`, a list of objects, where
 *                 the row has them (data/conversation.h). A single message whose text the template has already rendered is continued as
 *                 it is, with what is missing at its end. Without a template the text of one question is continued, after the
 *                 tokenizer's begin token and its system message.
 *   `prompt`      a text that is continued as it is; special tokens in it are recognised. Without a template after the begin token.
 *   `prompt_ids`  these ids
 * *dropped: too long under LONG_DROP; out is empty then. ERR_DATA says what is wrong with the row, without naming
 * its line. */
MUST_USE bool prompt_make(struct prompt_maker *p, const json_t *row, struct token_list *out, bool *dropped, struct error *err);
/* For the operator: the system prompt that the prompts so far have got, a line with its end. */
void prompt_maker_system(const struct prompt_maker *p, struct buf *out);
/* For the operator: what was done with prompts that are texts, a line each, each with its end. Nothing where there were none. */
void prompt_maker_notes(const struct prompt_maker *p, struct buf *out);
/* What the template writes after an answer that ends a conversation, as ids; appended to out, which stays empty where there is no
 * template, or none that shows an answer. */
MUST_USE bool prompt_answer_end(struct prompt_maker *p, struct token_list *out, struct error *err);
/* The ids that go between a model's turn and its next one, appended to out: what the template writes after a turn, a message of
 * role with this text, and the beginning of the next turn. tools: those of the prompt, NULL: none. Without a template, or for a row whose
 * prompt was a text (chat false), the text alone. last: the turn's last bytes (an end token's; n_last 0: it ended without one), which are
 * not written again. What the model drew is never tokenised again, so the template's view of earlier turns does not matter. */
MUST_USE bool prompt_turn_add(struct prompt_maker *p, bool chat, const json_t *tools, const char *role, const char *text, size_t len,
                              const void *last, size_t n_last, struct token_list *out, struct error *err);
