/* run_far.h - `--connect HOST:PORT`: a run on another machine, known by its address and a token alone
 *
 * The run is given a folder here, for as long as the command lasts, that holds what a shared file system would show of it: RUN/launch/head
 * (run_head.h) and RUN/sock/join. Everything that takes a run's directory then works with it; the door (run_door.h) leads to the head.
 * Any thread. */
#pragma once
#include <limits.h>
#include "protocol/base/error.h"
#include "protocol/wire/join_token.h"

struct run_far {
    char top[PATH_MAX - 300];    // "": not open
    char dir[PATH_MAX];          // stands for the run's directory; its name is the address
};
/* The token in token_file, or in the variable ROLLCALL_JOIN_TOKEN when that is NULL. */
MUST_USE bool run_far_token(char token[JOIN_TOKEN_LEN + 1], const char *token_file, struct error *err);
/* token_file: NULL: the variable ROLLCALL_JOIN_TOKEN. On failure f holds nothing. */
MUST_USE bool run_far_open(struct run_far *f, const char *address, const char *token_file, struct error *err);
void run_far_close(struct run_far *f);    // removes the folder
