/* atropos_parts.h - the inside of the server of scored groups; only for atropos.c, atropos_env.c and atropos_state.c */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "protocol/base/error.h"
#include "workers/atropos/atropos.h"

struct groups {
    struct scored **at;    // (n) one reference each
    int64_t n, cap;
};
/* Not in the log: of this process. */
struct came {
    int64_t n_group, n_refused, n_full;
    int64_t minute;             // the one that `now` counts
    int64_t n_now, n_before;    // groups in it, and in the one before
};
struct env {
    struct atropos_env e;
    struct came came;
    struct groups buffer;    // groups that are smaller than its group size
};
struct batch {
    struct batch *next;
    int64_t number;
    bool out;    // its answer is being sent
    struct groups group;
};
struct named {
    int64_t id;
    struct scored *group;    // NULL: not read yet
};
struct atropos {
    struct atropos_config config;
    struct atropos_log *log;    // NULL: none, or it is being read
    bool registered, started;
    struct atropos_trainer trainer;
    int64_t step, next_id, next_batch;
    struct env **env;    // (n_env)
    int64_t n_env, cap_env;
    struct groups queue;
    struct batch *first, *last;    // formed and not sent yet, in order
    int64_t n_out;                 // of them being sent
    struct scored *latest;         // one reference
    struct came came;              // from all
    char refusal[ATROPOS_REFUSAL_MAX];
    size_t bytes;    // of all groups inside
    int64_t n_group;
    // while the log is read
    json_t *state;
    struct named *named;    // (n_named) by id: the groups that the state names
    int64_t n_named, n_lost, first_lost;
};

int64_t atropos_now(const struct atropos *a);    // by the configured clock, ms

/* Lists of groups. A place that is reserved makes the later push one that cannot fail. */
MUST_USE bool groups_reserve(struct groups *l, int64_t more, struct error *err);
void groups_push(struct groups *l, struct scored *g);    // takes the reference

/* Memory for n posted groups, wherever in queue and buffers they go. */
MUST_USE bool post_reserve(struct atropos *a, struct scored **g, int64_t n, struct error *err);
/* The changes, each applied when it is in the log. None can fail: its room has been reserved before. */
void register_apply(struct atropos *a, const struct atropos_trainer *t);
void post_apply(struct atropos *a, struct scored **g, int64_t n, struct atropos_posted *p);    // takes the references
void batch_apply(struct atropos *a, struct batch *b, const int64_t *index, int64_t n);         // these groups of the queue; takes b
void take_apply(struct atropos *a, struct batch *b, int64_t index, int64_t item);              // this group of the queue; takes b
void give_back_apply(struct atropos *a, struct batch *b);                                      // frees b
void sent_apply(struct atropos *a, struct batch *b);                                           // frees b
void reset_apply(struct atropos *a);

void batch_push(struct atropos *a, struct batch *b);                  // as the newest; takes b
struct batch *batch_find(const struct atropos *a, int64_t number);    // NULL: there is none

/* atropos_env.c */
MUST_USE bool env_reserve(struct atropos *a, struct error *err);    // room for one more
struct env *env_find(const struct atropos *a, int64_t id);          // NULL: there is none
bool env_counts(const struct atropos *a, const struct atropos_env *e);
void group_counted(struct atropos *a, int64_t env_id, bool full);    // a group was taken or, full, had no room

/* atropos_state.c */
/* Write a change down before it is applied; takes note (NULL: there was no memory for it). sync: as in atropos_log_note. Without a
 * log nothing is written. */
MUST_USE bool change_note(struct atropos *a, json_t *note, bool sync, struct error *err);
/* Begin a new segment of the log. */
MUST_USE bool state_turn(struct atropos *a, struct error *err);
/* ... when it is time for one. */
MUST_USE bool state_keep_short(struct atropos *a, struct error *err);
/* Parts of notes. NULL: no memory, which json_pack and change_note pass on. */
json_t *ids_json(struct scored *const *group, const int64_t *index, int64_t n);    // their ids; index: only of these (n)
json_t *trainer_json(const struct atropos_trainer *t);
json_t *env_json(const struct atropos_env *e);
/* Read the folder of the configuration, and begin a new segment there. On failure state_release frees what was read. */
MUST_USE bool state_open(struct atropos *a, struct error *err);
void state_release(struct atropos *a);    // what is needed only while the log is read
