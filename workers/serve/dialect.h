/* dialect.h - requests of other shapes as the chat that they ask for
 *
 * Two shapes: Anthropic's /v1/messages and OpenAI's /v1/responses. Each is turned into the body of an OpenAI chat that means the same, which
 * ask_parse then reads, so that every field has one meaning. Thinking is the field `reasoning_content` of an assistant's message, where
 * templates look for it. What has no meaning in a chat (images, tools that the server runs, stored conversations) is refused by name.
 *
 * Any thread. */
#pragma once
#include <jansson.h>
#include "protocol/base/error.h"

/* Returns the chat's body, for json_decref; body (an object) is borrowed. NULL: ERR_DATA names the field. */
json_t *dialect_of_messages(const json_t *body, struct error *err);
json_t *dialect_of_responses(const json_t *body, struct error *err);
