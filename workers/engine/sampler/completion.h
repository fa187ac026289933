/* completion.h - the text of what was sampled, as rewards, environments and records read it
 *
 * One meaning for runs, evaluations and environments: special tokens and the end token are left out, but not the tags of the answer's
 * format, which a tokenizer may have as special tokens. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

struct tokenizer;
/* Make t show the tags that rewards look for: answer.h's default ones, and those of response_format_tags (NULL or "": none). Before t is
 * shared. ERR_USAGE as answer_tags_read. */
MUST_USE bool completion_tags_show(struct tokenizer *t, const char *response_format_tags, struct error *err);
/* Append the text of n sampled ids to out, without bytes of 0. False: no memory. */
MUST_USE bool completion_text(const struct tokenizer *t, const int32_t *id, int64_t n, struct buf *out);
