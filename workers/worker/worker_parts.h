/* worker_parts.h - internals of the worker's loop; only for worker_*.c. worker_cmd.c says how it works. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/run/run_owner.h"
#include "protocol/settings/run_config.h"
#include "workers/process/process.h"
#include "workers/worker/engine.h"

#define REPEAT_MS 200    // before another try to send something

enum parcel_kind {
    PARCEL_SCORE,
    PARCEL_TURN,
    PARCEL_GROUP,
    PARCEL_STOPPED,
    PARCEL_EVALUATED,
    PARCEL_DONE,
};
struct parcel {    // something that must arrive
    struct parcel *next;
    enum parcel_kind kind;
    uint64_t tag;
    struct report *report;    // score, turn, group
    struct msg_out msg;
    bool open;
    int n_try;
    int64_t again_ms, began_ms;
    bool saved;    // a report of a checkpoint, which is written in the background
};
struct worker_process {
    struct process process;
    struct peer *controller, *scorer;
    struct engine *engine;
    struct run_config config;
    char run_id[RUN_ID_BYTES];
    int64_t incarnation;
    struct run_part part;
    bool work_open;
    int64_t work_ms, rest_ms;    // when it last asked; after the run is over, it does not ask before
    int64_t turned_ms;           // when the last turn began: whatever was due then has been done
    struct task *fetching;       // a train task whose groups are being fetched
    bool fetch_open;
    int64_t *fetch_item;    // (fetching->n_group) the groups still missing, from n_fetched on
    int64_t n_fetched, fetch_ms;
    struct parcel *parcels;
    int n_score_open, n_turn_open, n_group_open, n_begin_open;    // n_begin_open: of n_turn_open, those that begin a sample
    uint64_t next_tag;
};
enum {
    TAG_WORK = 1,
    TAG_FETCH = 2,
    TAG_FIRST = 16,
};

/* ---- worker_parcels.c: reliable delivery of groups to the scorer and the controller, and of reports of tasks ---- */
void parcels_send(struct worker_process *w);    // those that are due
void parcel_answered(struct worker_process *w, struct net_event *ev);
int64_t parcels_due(const struct worker_process *w);    // when parcels_send must be called next; INT64_MAX: after an answer
void parcels_release(struct worker_process *w);
void reports_take(struct worker_process *w);                              // from the engine
void backlog_show(struct worker_process *w);                              // to the engine: how much of an evaluation the scorer still has
void done_send(struct worker_process *w, const struct report *report);    // to the controller: a task has ended

/* ---- worker_tasks.c: tasks from the controller ---- */
void tasks_answered(struct worker_process *w, const struct net_event *ev);
void groups_answered(struct worker_process *w, const struct net_event *ev);    // the groups of a train task
void tasks_tick(struct worker_process *w, const struct engine_look *look);     // ask for what is due
int64_t tasks_due(const struct worker_process *w);                             // when tasks_tick must be called next, as parcels_due
