/* join_rotation.h - what a change of join tokens leaves on disk, so that a crash at any moment loses nobody
 *
 * The head writes the token to be replaced, with the time until which it is good, beside the token's file (`join.before`), and then the
 * new token into the file. Cut between the two, both files have the same token: nothing was replaced. A node first notes the token that
 * it gives up (`join.replaced`), then writes the new one into its file: given an old copy again at its next start, it knows better. */
#pragma once
#include <stdbool.h>
#include "protocol/base/error.h"
#include "protocol/wire/join_token.h"

#define JOIN_COMMAND_LEN 64                                // hexadecimal digits
#define JOIN_COMMANDS_SIZE (8 * (JOIN_COMMAND_LEN + 1))    // of this many commands
struct join_before {
    char token[JOIN_TOKEN_LEN + 1];       // "": none was replaced
    double until_s;                       // since 1970; 0: it is over, whatever the clock says
    char commands[JOIN_COMMANDS_SIZE];    // SHA-256, in hexadecimal, of the ids of the last that replaced one, newest first, with commas
};
/* Read which token was in the token's file path before, if any. A file that is no such file is an error. */
MUST_USE bool join_before_read(struct join_before *b, const char *path, struct error *err);
/* Change what is known of the token before: how long it is good. */
MUST_USE bool join_before_write(const char *path, const struct join_before *b, struct error *err);
/* There was none. */
MUST_USE bool join_before_forget(const char *path, struct error *err);
/* Replace the token in the file path by token, and keep what was there as b says. */
MUST_USE bool join_token_replace(const char *path, const char *token, const struct join_before *b, struct error *err);

/* A node's: write the token that its head has sent into the file path, and note that it replaces before. */
MUST_USE bool join_token_follow(const char *path, const char *token, const char *before, struct error *err);
/* Has token been replaced by what is in the file path, or by one that was there since? */
bool join_token_was_replaced(const char *path, const char *token);
