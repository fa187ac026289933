/* player.h - a session's program: its command, what it is given, and how it ended
 *
 * The program is the user's own and runs with the caller's rights. It gets the session on standard input, as one line of JSON, and in its
 * environment the address and key by which OpenAI's clients ask (OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL) and a folder of its own
 * (RC_SESSION_DIR), which goes with it. Nothing that it has started outlives it (leash.h). The last 64 KiB of its standard output are kept,
 * whose last line counts. One thread at a time. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "workers/engine/reward/leash.h"

struct player {
    struct leash leash;
    int out;            // our end of its standard output, non-blocking; -1: closed
    struct buf said;    // the end of its standard output
    char dir[4200];     // its folder; "": none
};
struct player_order {         // all borrowed for the call
    const char *command;      // for /bin/sh
    const char *url, *key;    // of the endpoint
    const char *model;        // its name for clients
    const char *input;        // for standard input, without a line's end
    const char *dir;          // its folder, which is made; "": none
    int errors;               // for its standard error; 0: ours
};
MUST_USE bool player_start(struct player *l, const struct player_order *o, struct error *err);
bool player_runs(const struct player *l);
void player_read(struct player *l);    // take what it has written
/* It has ended (poll says POLLERR of leash.end), or is to end now: everything that it has started ends, too. Returns its status
 * (leash.h). said stays until the next start. */
int player_end(struct player *l, int64_t wait_ms);
/* The last line that it wrote which is not blank, without its end; borrowed until the next change of l. */
const char *player_last_line(struct player *l);
void player_release(struct player *l);    // of one that does not run
