/* agent_parts.h - the inside of the agent; only for agent_*.c. agent_cmd.c explains how it works. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "protocol/run/control_lock.h"
#include "protocol/settings/run_config.h"
#include "protocol/wire/transport.h"
#include "workers/host/node_watch.h"

#define CHILD_MAX 80
#define PENDING_MAX 128
#define NOTE_MAX 16           // most events on their way into the journal
#define NOTE_LIMIT_MS 1000    // until one is sent again; its id makes sure that it is written once
#define RESTART_MAX 16        // restarts remembered by the id of their command
/* Tags of requests: indices in pending, then those in note, then a sample for the journal. */
#define TAG_NOTE ((uint64_t)PENDING_MAX)
#define TAG_SAMPLE (TAG_NOTE + NOTE_MAX)

struct child {
    char name[64];
    const char *command;    // subcommand; NULL: the keeper, which is started but not watched for heartbeats
    bool exporter;          // has no heartbeat, ends by itself, and may outlive the run until everything is sent
    pid_t pid;              // 0: not running
    int pidfd;
    int64_t started_ms, next_ms;    // next_ms: when it may be started
    int64_t unspawned_ms;           // since when it cannot be started; 0: it can
    int n_restart, n_quick;
    bool spoke;          // it has given a sign of life
    bool mute;           // it has not in time, and was killed for that
    bool failed;         // an exporter: it has ended for good, with data unsent
    int64_t stuck_ms;    // since when its verdict has been stuck; 0: it is not stuck
    /* its last heartbeat */
    int64_t heard_ms, start, phase_ms;
    char phase[32], waits_for[160];
    double progress;
    int64_t progress_ms;    // when progress last changed
    double longest_s;       // longest time without progress that ended well, in this phase
    struct buf gauges;      // the message they came in; the gate's also has the processes of other nodes
    double cpu_s;           // processor seconds at sampled_ms
    double cpu_share, rss_mib, n_thread;
};
struct page {      // which of the other nodes an answer to status is to have
    bool whole;    // all of them: neither from nor limit was given
    int64_t from, limit;
};
struct pending {                // a request on its way to the controller, or waiting for a restarted process
    struct request *request;    // NULL: free
    struct buf msg;
    enum msg_type type;
    struct peer *to;    // the controller, or the gate
    int64_t limit_ms, again_ms;
    bool open;                        // asked, not answered
    const struct restart *restart;    // NULL; else waits for its child's restart
    struct page page;                 // of a request for the status
};
struct restart {     // a process that an operator's command restarted: carried out once, however often it is asked
    char id[128];    // "": free
    int child;
    pid_t pid;    // process id of the process that was killed
    int64_t start;
};
struct note {                                      // an event for the journal; asked again until the controller has it
    char id[48], kind[16], who[128], text[256];    // text "": free
    bool open;                                     // asked, not answered
    int64_t again_ms;
};
struct agent {
    char run_dir[4096];
    struct child self;    // what this process itself uses
    struct transport *transport;
    struct server *server;
    struct server *view;    // answers questions only
    struct publisher *telemetry, *view_telemetry;
    struct peer *controller;    // on a node: its uplink
    struct peer *gate;          // NULL: the run does not accept nodes
    bool is_node;               // of another head (protocol/run/node.h)
    struct run_config config;
    struct node_watch *node;    // figures of host and devices
    struct child child[CHILD_MAX];
    int n_child;
    struct pending pending[PENDING_MAX];
    struct restart restart[RESTART_MAX];
    int n_restart;    // in total; the newest is at (n_restart - 1) % RESTART_MAX
    struct note note[NOTE_MAX];
    int64_t turned_ms;           // when the loop last turned
    struct journal *journal;     // for reading; NULL: nobody has asked for what is in it
    int64_t kept_ms;             // when the last sample went to the journal; 0: none yet
    struct buf detail;           // the controller's last heartbeat
    struct control_lock lock;    // as it said then
    int64_t detail_ms, ended_ms, stop_ms, sampled_ms;
    bool over;
    bool waits_told;    // the log has said that the end waits for last answers
    char failure[1024];
};

/* ---- agent_children.c: processes are started, found dead and restarted ---- */
struct child *child_add(struct agent *a, const char *command, const char *name);    // NULL: there are too many already
struct child *child_find(struct agent *a, const char *name);                        // NULL: there is none
void child_watch(struct child *c, pid_t pid);                                       // it is alive, with this process id
void child_kill(const struct child *c);
void child_stop(const struct child *c);    // asks it to end (SIGTERM), which it would otherwise learn with its next heartbeat
void children_tick(struct agent *a);
int64_t children_due(const struct agent *a);    // these three: when the tick must be called next; INT64_MAX: not before something comes
int pidfd_of(pid_t pid);                        // -1: it is not alive

/* Note which process died, of what, and what becomes of its work. how: "was killed by signal 9 (SIGKILL)". */
void death_note(struct agent *a, const struct child *c, pid_t pid, const char *how, int64_t lived_ms);

/* ---- agent_lives.c: what outlives an agent that is killed ---- */
void lives_find(struct agent *a);    // once the children that are alive are watched: what the agent before has kept; says how it ended
void lives_keep(const struct agent *a);

/* ---- agent_heartbeat.c: what processes report about themselves, and which are slow or stuck ---- */
double silence_s(const struct agent *a);                                    // a silence this long matters
const char *child_verdict(const struct agent *a, const struct child *c);    // ok, slow or stuck
void heartbeat_came(struct agent *a, struct request *r, const struct msg_in *in);
void stuck_tick(struct agent *a);
/* The process that others wait for, and the reason; out stays "" when nothing is late. */
void late_tell(const struct agent *a, char *out, size_t size);

/* ---- agent_notes.c: events for the journal ---- */
void note_add(struct agent *a, const char *kind, const char *who, const char *text);
void notes_tick(struct agent *a);
int64_t notes_due(const struct agent *a);
void note_answered(struct agent *a, const struct net_event *ev);

/* ---- agent_status.c: the answer to status; samples for the journal ---- */
void page_read(struct page *p, const struct mval *root);    // of a request for the status
void status_answer(struct agent *a, struct request *r, const struct page *page, const struct mval *detail, double controller_s);
void status_cached(struct agent *a, struct request *r, const struct page *page);
void telemetry_send(struct agent *a, const char *topic, const void *data, size_t len);
void telemetry_tick(struct agent *a);

/* ---- agent_kept.c: what the run keeps in its folder, for consoles on other machines ---- */
void kept_asked(struct agent *a, struct request *r, const struct msg_in *in);

/* ---- agent_pending.c: requests that wait for the controller, the gate or a process's restart ---- */
/* Hold r for at most limit_ms; to ask the controller, call pending_ask next. NULL: too many are waiting, and r was refused. */
struct pending *pending_new(struct agent *a, struct request *r, enum msg_type type, const void *data, size_t len, int64_t limit_ms);
void pending_ask(struct agent *a, struct pending *x);
void pending_answered(struct agent *a, struct net_event *ev);
void pendings_tick(struct agent *a);
int64_t pendings_due(const struct agent *a);
/* May this command be carried out, as far as the run's lock goes? The controller judges what it carries out itself. */
bool command_allowed(const struct agent *a, const struct msg_in *in, bool of_node, struct error *err);
bool restart_asked(struct agent *a, struct request *r, const struct msg_in *in);    // false: it is a different command

/* ---- agent_keeper.c ---- */
MUST_USE bool keeper_run(const char *run_dir, struct error *err);
#define QUICK_MS 8000    // a process that lived shorter has failed at its start
