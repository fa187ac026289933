/* atropos.h - groups that environments post and trainers fetch, as Atropos' API server keeps them
 *
 * The state behind the routes in atropos_routes.c: the trainer's registration, the environments, the queue of scored groups, the
 * groups of each environment that are too small to be queued alone, and the batches. It follows atroposlib 0.4 (api/server.py) but
 * for these decisions: groups that come before a trainer has registered are kept; batches are formed one at a time, when they are
 * asked for, and handed out in that order (`lifo`: all that can be formed, the newest first, as there); an environment that has
 * not asked for long no longer counts; memory is bounded; and with a folder for the log (atropos_log.h) everything acknowledged
 * outlives the process.
 *
 * A batch that was handed out is kept until its answer has been sent (atropos_sent). If the client went away, or the process was
 * killed before, the batch is handed out again: a batch may come twice then, and is never lost. One thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "workers/atropos/atropos_data.h"

#define ATROPOS_TEXT_MAX 1024       // bytes of a name or path, with its NUL
#define ATROPOS_ENVS_MAX 4096       // registrations
#define ATROPOS_GROUPS_MAX 65536    // groups inside
#define ATROPOS_BUFFER_MAX 256      // groups of one environment that wait for others to fill up its group size
#define ATROPOS_OUT_MAX 8           // batches being sent at once

struct atropos_config {
    const char *dir;            // for the log; NULL: everything is lost with the process
    size_t max_bytes;           // of all groups inside
    int64_t env_expire_ms;      // an environment silent for so long no longer counts; 0: it always does
    bool lifo;                  // hand out batches as Atropos does
    int64_t (*now_ms)(void);    // NULL: the monotonic clock
};
struct atropos_trainer {
    char group[ATROPOS_TEXT_MAX], project[ATROPOS_TEXT_MAX], checkpoint_dir[ATROPOS_TEXT_MAX];
    int64_t batch_size;    // sequences
    int64_t max_token_len, save_interval, starting_step, num_steps;
};
struct atropos_env {
    char desired_name[ATROPOS_TEXT_MAX], name[ATROPOS_TEXT_MAX + 16];
    int64_t max_token_len, group_size;
    double weight;
    bool has_share;
    double share;       // of each batch, at least
    bool connected;     // it has not said goodbye
    int64_t seen_ms;    // when it last asked or posted
};
/* What came from an environment, for people; counted since this process began. */
struct atropos_look {
    const char *name;     // borrowed until the next call of anything
    bool counts;          // it takes part
    int64_t n_group;      // taken
    int64_t n_refused;    // posts that were faulty
    int64_t n_full;       // groups for which there was no room (503)
    int64_t n_waiting;    // groups in the queue
    double per_min;       // groups, over the last minute
    double age;           // of those in the queue: mean of steps since the weights that drew them; NAN: the queue is empty
    double silent_s;      // since it last asked or posted
};
struct atropos_posted {
    int64_t n_buffered;     // of the groups, those that were put aside
    int64_t buffer_seqs;    // sequences in the last such group's buffer
};
struct atropos_env_status {    // what an environment asks for, many times per second
    int64_t current_step, queue_size, self_queue_size, max_group_size;
    double unallocated_fraction, env_weight;
};
struct atropos_batch {
    int64_t number;           // from 1
    struct scored **group;    // (n) borrowed until atropos_sent
    int64_t n;
};
struct atropos;
/* Start with what the folder holds. NULL: see err. */
struct atropos *atropos_new(const struct atropos_config *config, struct error *err);
void atropos_free(struct atropos *a);    // NULL is fine

/* A trainer comes; the second one changes nothing, unless it takes over. */
MUST_USE bool atropos_register(struct atropos *a, const struct atropos_trainer *t, bool take_over, struct error *err);
const struct atropos_trainer *atropos_trainer(const struct atropos *a);    // NULL: none has registered
bool atropos_is_started(const struct atropos *a);                          // has it asked for a batch?
int64_t atropos_step(const struct atropos *a);                             // batches formed, from starting_step on
/* An environment comes (name and connected are set here); *id numbers it. ERR_FULL: there are too many. */
MUST_USE bool atropos_env_add(struct atropos *a, const struct atropos_env *e, int64_t *id, struct error *err);
const struct atropos_env *atropos_env(const struct atropos *a, int64_t id);    // NULL: there is none
MUST_USE bool atropos_env_leave(struct atropos *a, int64_t id, struct error *err);
MUST_USE bool atropos_env_status(struct atropos *a, int64_t id, struct atropos_env_status *s, struct error *err);
/* Take n groups, all or none; takes the references in every case. ERR_FULL: there is no room now. */
MUST_USE bool atropos_post(struct atropos *a, struct scored **g, int64_t n, struct atropos_posted *p, struct error *err);
/* The next batch; b->n is 0 when none can be formed. */
MUST_USE bool atropos_batch(struct atropos *a, struct atropos_batch *b, struct error *err);
/* The batch's answer has been sent (arrived), or its client has gone. A number that is no longer known is fine. */
void atropos_sent(struct atropos *a, int64_t number, bool arrived);
/* For a run, whose items take the place of batches. Begin: the run is the trainer, and has started. */
MUST_USE bool atropos_begin(struct atropos *a, const struct atropos_trainer *t, struct error *err);
void atropos_step_set(struct atropos *a, int64_t step);    // the run's optimizer steps
/* The oldest group of the queue belongs to this item from now on, until atropos_sent (with the item as its number) or
 * atropos_give_back, also over a restart; the same item gets the same group. *g is borrowed until then; NULL: the queue is empty. */
MUST_USE bool atropos_take(struct atropos *a, int64_t item, const struct scored **g, struct error *err);
/* The group goes back to the beginning of the queue. */
MUST_USE bool atropos_give_back(struct atropos *a, int64_t item, struct error *err);
/* Items that have a group, ascending by when they took it, into out (max). Returns how many. */
int64_t atropos_taken(const struct atropos *a, int64_t *out, int64_t max);
/* A post was faulty and not taken, for this reason; env_id -1: whose is not known. */
#define ATROPOS_REFUSAL_MAX 256
void atropos_refused(struct atropos *a, int64_t env_id, const char *why);
const char *atropos_refusal(const struct atropos *a);    // why the last one was; "": none was
/* Every environment's, those that take part first, into out (max). Returns how many. all: everything that came, also from what is no
 * registered environment; its name is NULL. */
int64_t atropos_looks(const struct atropos *a, struct atropos_look *out, int64_t max, struct atropos_look *all);
int64_t atropos_n_env(const struct atropos *a);                  // environments that take part
int64_t atropos_queued(const struct atropos *a);                 // groups in the queue
const struct scored *atropos_latest(const struct atropos *a);    // the last one queued; NULL: none
/* Up to max groups of the queue, oldest first, borrowed until the next call of anything; nothing changes. Returns how many. */
int64_t atropos_peek(const struct atropos *a, struct scored *const **group, int64_t max);
/* Forget groups, environments and registration. */
MUST_USE bool atropos_reset(struct atropos *a, struct error *err);
