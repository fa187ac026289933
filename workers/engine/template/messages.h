/* messages.h - messages in the form that chat templates add to other texts
 *
 * What clients of the server send and what rows of data hold goes through here before it is rendered. Any thread. */
#pragma once
#include <jansson.h>
#include "protocol/base/error.h"

/* The messages of a list with each content as one text: a list of text parts is joined with line ends, and null, as beside tool calls,
 * is empty, as in vLLM. Objects stay: some templates print what a tool returned as JSON. Arguments of a call that are JSON in a string,
 * as OpenAI sends them, become the object that templates print. Returns a new list, in which messages that change are copies; it is the
 * caller's, for json_decref. NULL: see err; a part that is not text, and arguments that are not JSON are ERR_DATA. */
json_t *messages_flatten(const json_t *messages, struct error *err);
