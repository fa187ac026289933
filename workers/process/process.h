/* process.h - what all processes of a run have in common: transport, heartbeat to the agent, and when to end
 *
 * One struct per process, owned by its loop thread. The loop is
 *     while (!process_is_over(p)) {
 *         if (process_wait(p, &ev, process_pause_ms(p, due_ms))) { handle ev; net_event_release(&ev); }
 *         do what is due, and set due_ms to when something will be
 *     }
 * It sleeps until a message arrives, another thread calls process_wake, or something is due: nothing polls. process_wait sends the
 * heartbeats and handles their answers itself. A process that has had no answer from an agent for ORPHAN_S ends itself, so that
 * nothing outlives its run. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "protocol/wire/transport.h"

#define ORPHAN_S 10         // without an answer from the agent
#define HEARTBEAT_MS 500    // until process_pace

struct process {
    char run_dir[4096];    // absolute
    char name[64];         // "controller", "worker cpu:0", "scorer"
    int64_t start;         // random; distinguishes restarts of one name
    struct transport *transport;
    struct peer *agent;
    char phase[32];         // what it is doing
    char waits_for[160];    // "" : it is working
    int64_t phase_ms;       // since when, monotonic clock
    double progress;        // grows with each piece of work
    /* Add gauges (inside an open map), the lists of other nodes and details (inside an open map) to a heartbeat; may be NULL. */
    void (*gauges)(void *ctx, struct msg_out *m);
    void (*nodes)(void *ctx, struct msg_out *m);
    void (*detail)(void *ctx, struct msg_out *m);
    void *ctx;
    /* own */
    int64_t pace_ms;    // between two heartbeats
    int64_t beat_ms, heard_ms, looked_ms;
    bool beat_open, stop_ordered;
    FILE *profile;    // NULL: its phases are not recorded
};
/* Open the transport of run_dir/sock and handle SIGTERM and SIGINT (they order a stop). */
MUST_USE bool process_init(struct process *p, const char *run_dir, const char *name, struct error *err);
void process_release(struct process *p);
/* Send a heartbeat every heartbeat_s from now on (the setting of this name); phases are still reported at once. */
void process_pace(struct process *p, double heartbeat_s);
/* Record when phases begin and end in RUN/logs/NAME.prof, as ColossalChat's profiler does: lines "TIME NAME PID:: Enter PHASE", Exit
 * likewise, TIME in seconds since 1970; blanks of names and phases are underscores. A process that starts again adds to the file. */
MUST_USE bool process_profile(struct process *p, struct error *err);
/* Set what the process is doing; the agent is told at once when the words change. */
void process_phase(struct process *p, const char *phase, const char *waits_for);
/* Wait up to timeout_ms for an event that this module does not handle itself. False: none came. */
bool process_wait(struct process *p, struct net_event *ev, int64_t timeout_ms);
/* How long to wait when the owner has nothing to do before due_ms on the monotonic clock (INT64_MAX: until something arrives).
 * Never longer than until the next heartbeat, so that the owner gets a turn, and can report news, before each. */
int64_t process_pause_ms(const struct process *p, int64_t due_ms);
/* End process_wait early; the only function here that any thread may call. */
void process_wake(struct process *p);
/* A stop was ordered, by the agent or a signal. */
bool process_is_over(const struct process *p);
/* Read an internal process's --run DIR and --name NAME (and nothing else). Borrowed from argv. */
MUST_USE bool process_args(int argc, char **argv, const char *command, const char **run_dir, const char **name, struct error *err);
