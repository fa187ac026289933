/* board.h - turns at weights that a trainer and servers on its host have in memory once
 *
 * A small file that all of them map. The trainer makes it; servers join it, at most BOARD_READERS. A server holds the weights while it
 * computes with them. Before the trainer changes them it asks all to let go, and waits for those that live, but not for ever. A server
 * that did not let go in time finds that afterwards (board_clean): what it has computed since may come from two versions, and it drops that.
 * So nobody can keep the trainer from its work, and nobody mixes versions.
 *
 * Which side lives is known by locks on the file (of the open file description, fcntl(2)), which end with the process: byte 0 is the trainer's, byte
 * 1 + i reader i's. A trainer that is started again makes a new file in the place of the old one.
 *
 * A board belongs to one thread. Not over a network file system. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

#define BOARD_READERS 64
struct board;

/* ---- the trainer */
/* Make the file; the weights have this version. NULL: see err. */
struct board *board_new(const char *path, int64_t version, struct error *err);
/* The weights are about to change: ask for them, and wait at most limit_ms. Returns how many have not let go. Not a second time before
 * board_changed: returns 0 at once. */
int board_change(struct board *b, int64_t limit_ms);
bool board_has_readers(const struct board *b);           // from any thread: has a server joined that lives?
void board_changed(struct board *b, int64_t version);    // they are whole again, and this is their version

/* ---- a server */
/* ERR_NOT_FOUND: there is no such file, or its trainer has gone. NULL: see err. */
struct board *board_join(const char *path, struct error *err);
enum board_turn {
    BOARD_HELD,     // the weights stay as they are until board_release
    BOARD_LATER,    // the trainer changes them
    BOARD_GONE,     // the trainer has gone, and its memory with it; the board can only be freed
};
/* Hold the weights, after at most wait_ms. Held already: the same again. */
enum board_turn board_hold(struct board *b, int64_t wait_ms);
void board_release(struct board *b);    // not held: nothing
bool board_is_held(const struct board *b);
bool board_wanted(const struct board *b);        // the trainer waits for the weights
bool board_clean(const struct board *b);         // while held: they have not been touched
int64_t board_version(const struct board *b);    // of the weights; while held, or else of the latest that were whole
bool board_lives(const struct board *b);         // the trainer is there

void board_free(struct board *b);    // the trainer's: removes the file, too. NULL is fine
