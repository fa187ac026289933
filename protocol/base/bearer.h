/* bearer.h - the token that HTTP clients show: "Authorization: Bearer TOKEN" (RFC 6750)
 *
 * Any thread. */
#pragma once
#include <stdbool.h>
#include "protocol/base/error.h"
#define BEARER_MAX 512    // bytes of a token, with its NUL
/* The first line of a file. ERR_DATA: it is empty. */
MUST_USE bool bearer_read(char token[BEARER_MAX], const char *path, struct error *err);
/* Does the header's value (NULL: there is none) show token? The time it takes does not depend on where they differ. */
bool bearer_matches(const char *token, const char *header);
/* Does the value of "x-api-key", in which Anthropic's clients show it, do so? */
bool bearer_is_key(const char *token, const char *key);
