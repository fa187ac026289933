/* orders.h - what operators ask of the run: pause, stop, changes of knobs, checkpoints, evaluations
 *
 * A command is carried out once by its id and answered when it has taken effect; what takes time waits in pending, with its limit. One
 * table in orders.c says for each command how it begins and when it has taken effect. A wanted pause and a wanted stop survive a killed
 * controller. Owned by the controller's loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "protocol/run/control_lock.h"

#define ORDERS_MAX 32

struct controller;
struct msg_in;
struct order_row;    // orders.c
struct request;
enum pause_depth {
    PAUSE_NONE,
    PAUSE_ROLLOUTS,    // no new items are issued
    PAUSE_STEP,        // the optimizer step is finished
    PAUSE_DRAIN,       // what is in flight is finished, and saved
};
struct order {    // a command that waits
    const struct order_row *row;
    struct request *request;
    char id[128], who[128];
    bool force;                // in spite of another's lock
    enum pause_depth depth;    // of a pause
    int64_t step;              // that the run had when it was asked
    int64_t item;              // of a drop, or a new score
    int64_t limit_ms;
};
struct orders {
    enum pause_depth pause;     // wanted
    char pause_who[64];         // who wants it, when the run itself does: "alarm kl_jump"; "": an operator
    bool stop;                  // wanted
    int64_t rollback;           // step to go back to; -1: none is wanted
    char rollback_who[128];     // who wants it
    char rollback_told[256];    // what the last one has undone
    struct control_lock lock;
    struct order pending[ORDERS_MAX];
    int n;
};
void command_came(struct controller *c, struct request *r, const struct msg_in *in);
void orders_pause(struct controller *c, enum pause_depth depth, const char *who);    // the run itself wants to be paused
void orders_restore(struct controller *c);    // what pause or stop was wanted before this controller began
void orders_tick(struct controller *c);       // a pause that is reached; commands that have taken effect, or are late
int64_t orders_due(const struct controller *c);
void orders_end(struct controller *c);                   // the run is over: answers all commands that still wait
const char *orders_first(const struct controller *c);    // the name of a command that waits; NULL: none does
const char *pause_depth_name(enum pause_depth depth);    // "" for none
