/* engine.h - the device's side of a worker: model, sampler, trainer and checkpoints, driven by a separate thread
 *
 * The worker's loop (worker_cmd.c) puts tasks in and takes reports out (task.h). Both queues lock internally, and a
 * report wakes the loop through the function given. Nothing else is shared, except the engine's account of what it is
 * doing (engine_look). */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/settings/run_config.h"
#include "workers/engine/publish/outlet.h"
#include "workers/worker/task.h"

/* What the engine is doing, for heartbeats and scheduling. */
struct engine_look {
    char phase[32], waits_for[64];
    double progress;                         // pieces of work done: tokens, micro-batches, groups
    bool idle;                               // no task waits or runs
    bool sampling;                           // it is running items: more may be put in
    bool away;                               // its external engine is not there: others are to sample
    int64_t n_item, n_item_ending;           // items inside the sampler: of version, and of the one whose last samples it draws beside
    int64_t items_max;                       // most items of version that the controller lets it hold, from the last items task
    bool gap;                                // fewer than half of its batch runs, and there is a place for another version
    bool taking;                             // new weights are being taken, or wait for that: version is about to change
    int64_t step, version, n_row;            // of the weights; -1, -1 and 0 before the first load
    int64_t n_id;                            // token ids that may be drawn are below this; 0: the model is elsewhere, or not loaded
    int64_t made;                            // the incarnation that made version
    int64_t ending, ending_made;             // the version that it finishes beside, and the incarnation that made it; -1: none
    int64_t round;                           // the round in which it met the other trainers; 0: none
    int64_t saves;                           // the last checkpoint in it that this trainer has brought its shards for (task.save); 0: none
    int64_t n_running, n_waiting;            // samples being decoded, and those that wait for room
    int64_t n_guest, guest_tok;              // requests' prompts inside; tokens drawn for requests so far ('serve')
    int64_t n_page, n_page_used;             // of keys and values; 0 before the first items
    int64_t n_put_back;                      // as in struct generator_stats
    double tok_per_s;                        // decoded, over the last second or so
    int64_t shared[OUTLET_SLOT_MAX];         // (n_shared) versions that it keeps available to others
    int n_shared, n_keeps;                   // n_keeps: how many it can keep
    double ranks_idle_s, ranks_exposed_s;    // of the last step with other trainers, as in struct ranks_cost; NAN: none yet
    double publish_ms;                       // time to send or receive the last version; NAN: none
};
/* A server outside of the run, from which environments draw, that has not got the newest weights in time. */
struct engine_server {
    char name[320];       // "the server at http://HOST:PORT"
    char trouble[200];    // why
    double behind_s;      // for how long
};
struct engine;
/* config is copied; device, such as "cpu:0", is one of the config's. The engine's thread calls wake(ctx) when a report is
 * waiting. */
struct engine *engine_new(const struct run_config *config, const char *run_dir, const char *device, int n_thread, void (*wake)(void *ctx),
                          void *ctx, struct error *err);
void engine_free(struct engine *e);                          // waits for the running task
void engine_put(struct engine *e, struct task *t);           // takes t
struct report *engine_take(struct engine *e);                // NULL: none is waiting
void engine_answered(struct engine *e, struct report *r);    // a turn with the environment's answer; takes r
/* The tails of all open rollout steps are these now. */
void engine_tails(struct engine *e, const struct tail *tail, int n);
/* These (n) items were dropped by operators: they are sampled no further. */
void engine_dropped(struct engine *e, const int64_t *item, int n);
/* n groups of an evaluation have not been scored yet; it samples no more while they are many. */
void engine_backlog(struct engine *e, int64_t n);
void engine_look(struct engine *e, struct engine_look *out);
int engine_servers(struct engine *e, struct engine_server *out, int max);    // returns how many there are, at most max
/* The lines of the usable prompts in the data's file, as pairs (prompt_lines.h). Returns their number, at most max; 0
 * when there are more, -1 before the first load. */
int64_t engine_lines(struct engine *e, int64_t (*pair)[2], int64_t max);
/* The levels of the usable prompts, a byte for each (row_level.h), borrowed as long as the engine is there; *n 0: they have none. */
const uint8_t *engine_levels(struct engine *e, int64_t *n);
/* For data in several files, append a line per file: the number of its first line among the lines of all files, a blank, its
 * path. */
void engine_files(struct engine *e, struct buf *out);
