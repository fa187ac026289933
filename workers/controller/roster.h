/* roster.h - the workers that the controller knows, and questions about them */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/run/run_state.h"
#include "workers/engine/publish/outlet.h"
#include "workers/schedule/ledger.h"

#define AWAY_MS 60000    // a worker of another node that is not heard for this long is given no weights

struct controller;
struct request;
struct worker {
    char name[64];                      // "": the slot is free
    int64_t start;                      // random, of the process that has this name
    int64_t incarnation, step;          // of the weights it trains with, or has loaded
    int64_t items;                      // inside its sampler, of version
    int64_t version, made;              // of the weights it samples with: optimizer steps, and the incarnation that made them so
    int64_t ending, ending_made;        // the version whose last samples it draws beside, likewise; -1: none
    bool gap;                           // fewer than half of its batch runs, and it has a place for another version
    bool produces, consumes, busy;      // busy: it samples, and asks for more of it
    bool lent;                          // of a machine that may only sample: the run does not depend on it
    int64_t rank;                       // among the trainers; -1: it is none
    int64_t round, given_round;         // it has met the other trainers in; it was sent to meet them in
    int64_t saves;                      // the last checkpoint of this round that it has brought its shards for (rounds.saves)
    int64_t task;                       // given and not reported; 0: none
    enum task_kind task_kind;           // TASK_NONE when there is none
    int64_t task_step;                  // that the task was given for
    int64_t shared[OUTLET_SLOT_MAX];    // (n_shared) versions that it keeps for others, as it said last
    int n_shared;
    int64_t keeps;           // how many it can keep
    int n_again;             // weights that did not come, in a row
    struct request *held;    // its request for work; NULL: it has none open
    int64_t held_ms, heard_ms;
};
struct workers {
    struct worker worker[WORKER_MAX];    // (n) in the order in which they came first
    int n;
    int64_t looked_ms;    // when workers_tick was called last
};

struct worker *worker_find(struct controller *c, const char *name);    // NULL: none is called so
int worker_id(const struct controller *c, const struct worker *w);     // its number in the ledger's leases
bool worker_is_away(const struct worker *w);                           // is it of another node?
bool worker_is_of(const struct worker *w, const char *node);           // is it of this other node?
const struct worker *workers_first(const struct controller *c);        // the trainer of rank 0, whatever it holds; NULL: there is none
/* Has one of another node been heard lately that gets weights from the first trainer? A trainer there that samples with its own does not. */
bool workers_are_away(const struct controller *c);
int64_t workers_in_task(const struct controller *c, enum task_kind kind);    // TASK_NONE: in any
void workers_tasks_forget(struct controller *c);    // the run returns: nothing that was given counts, but for loads
/* Which workers have not finished what they were given, for a command that waits for them. */
void workers_late(const struct controller *c, char *out, size_t size);
bool trainer_in_step(const struct controller *c, const struct worker *w);
/* It has made the step that the first trainer is still to report. */
bool trainer_is_ahead(const struct controller *c, const struct worker *w);
