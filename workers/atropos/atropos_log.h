/* atropos_log.h - what the server of scored groups has acknowledged, on disk
 *
 * A folder of segments, NUMBER.log, of records with checksums: groups as they were posted, and notes (JSON) of every other change
 * of state. A record is on the disk before the request is answered. Reading the records in order gives the state again. A segment
 * begins with the whole small state, which names the groups that still wait; so older segments are needed only for the texts of
 * those groups, and are deleted when none is left. A segment with few of them is copied away. The folder therefore takes at most
 * about four times the waiting groups, and two segments. A kill leaves a broken record at a segment's end, which was never acknowledged;
 * a broken record with whole ones after it is damage: those are read, and the file is kept beside as NUMBER.log.damaged. The file
 * 'reserve' keeps space with which groups can be handed out, and a restart made, when the disk is full; new groups may not take it.
 *
 * SQLite, which keeps the journal, was measured in its place (tests/bench/posts.c, groups of 200 kB, two shared cores): its write-ahead log
 * takes 95 posts per second where this takes 215, and one flipped bit loses each group after it; its rollback journal takes 44.
 *
 * One process at a time (a lock), one thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "workers/atropos/atropos_data.h"

enum atropos_record {
    RECORD_STATE = 1,    // the whole small state, as JSON; the first of a segment
    RECORD_GROUPS,       // groups that wait, copied from an older segment
    RECORD_POST,         // groups as they were posted
    RECORD_NOTE,         // another change, as JSON
    RECORD_NEXT,         // the log goes on in the next segment
};
/* Functions that rebuild the state from the records, in their order. False stops the reading; err says why. */
struct atropos_reader {
    bool (*state)(void *ctx, const char *json, size_t len, struct error *err);
    bool (*wants)(void *ctx, int64_t id);                                        // does the state name this group?
    bool (*group)(void *ctx, struct scored *g, struct error *err);               // takes g
    bool (*ready)(void *ctx, struct error *err);                                 // all groups that the state names have been read
    bool (*post)(void *ctx, struct scored **g, int64_t n, struct error *err);    // takes the groups
    bool (*note)(void *ctx, const char *json, size_t len, struct error *err);
};
struct atropos_log;
/* Open a folder (made when missing), and read what it holds. Until atropos_log_turn nothing can be added. NULL: see err;
 * ERR_EXISTS: another server uses it. */
struct atropos_log *atropos_log_open(const char *dir, const struct atropos_reader *r, void *ctx, struct error *err);
void atropos_log_close(struct atropos_log *l);    // NULL is fine
/* Begin a new segment with this state; live: all groups that wait. On failure the old segment is still the newest. */
MUST_USE bool atropos_log_turn(struct atropos_log *l, const struct buf *state, struct scored *const *live, int64_t n_live,
                               struct error *err);
bool atropos_log_is_long(const struct atropos_log *l);    // is it time for that?
/* Has the disk no space, and would a new segment give some back? */
bool atropos_log_would_shrink(const struct atropos_log *l);
/* Add posted groups, on the disk on return, and set their place. On failure nothing has been added. */
MUST_USE bool atropos_log_post(struct atropos_log *l, struct scored *const *g, int64_t n, struct error *err);
/* Add a note. sync: on the disk on return; otherwise a power cut may lose it, a kill does not. */
MUST_USE bool atropos_log_note(struct atropos_log *l, const struct buf *json, bool sync, struct error *err);
/* This group waits no longer. */
void atropos_log_left(struct atropos_log *l, const struct scored *g);
