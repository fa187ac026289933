/* group_msg.h - a rollout group as a message and back
 *
 * The producer writes a struct group as the message 'group'; the controller stores and serves the bytes and reads only the
 * summary; the consumer reads the whole group. Pure; any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/record/group.h"
#include "protocol/wire/message.h"

/* What people read of a group; any of it may be NULL. Borrowed. */
struct group_texts {
    const char *prompt;
    const char *const *sample;    // (n_sample) decoded completions
    const uint16_t *piece;        // (n_tok) bytes of its sample's text that a token gave, joined in order; the end token may give none
};
/* Add the fields of 'group' for g into an open map or message. texts may be NULL. */
void group_write(struct msg_out *m, const struct group *g, const struct group_texts *texts);
/* Read a group from its message's map; every size is checked against the others. Returns it for group_free. */
struct group *group_read(const struct mval *map, struct error *err);
/* Prompt and completion of sample 0 as one text, as in the rollout log; missing parts are left out. For free(); NULL: no memory. */
char *group_text(const struct mval *map, struct error *err);
/* What the scorer says of a sample (an entry of results in the answer to 'score'), and the same as members of an entry of samples in
 * 'group'. */
void sample_score_read(struct sample *s, const struct mval *result);
void sample_score_write(struct msg_out *m, const struct sample *s);
/* Read only what the ledger keeps, with the same size checks. */
MUST_USE bool group_summary_read(const struct mval *map, struct group_summary *out, struct error *err);
