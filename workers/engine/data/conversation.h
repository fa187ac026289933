/* conversation.h - a row's `messages` and `tools` as people keep them, in the one form that prompts are made from
 *
 * Rows come from files, from a tool's input and from environments; all go through here. Any thread. */
#pragma once
#include <stdbool.h>
#include <jansson.h>
#include "protocol/base/error.h"

/* Settle `messages` (when it is a message or a list of them) and `tools` of a row, in place:
 *  - members of their objects that are null are left out, but for a message's `content`: Parquet, and what is exported from it, gives
 *    every object of a list the members of all others;
 *  - `tools` becomes a list of objects: it may come as such a list, as one object, as the JSON text of either, or as a list of such
 *    texts. null and an empty text are no tools;
 *  - the assistant's turns at the end of `messages` are removed, since they are what the model is to find itself, as open-instruct and
 *    ms-swift do. *answered: they were there. answered NULL: they stay.
 * Fails where `tools` is something else, and where no message would be left. */
MUST_USE bool conversation_settle(json_t *row, bool *answered, struct error *err);
