/* gate_parts.h - the inside of the gate; only for gate_*.c. gate_cmd.c explains how it works. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/run/run_config.h"
#include "protocol/run/node.h"
#include "workers/node/relay.h"
#include "workers/process/process.h"

#define NODES_MAX 1024
#define LETTERS_MAX (NODES_MAX + 64)    // all nodes may go at once

struct node_seen {
    struct node node;    // name, id, host
    bool here;           // heard from recently
    bool told;           // it has been ordered to stop
    int64_t start, heard_ms;
    char dismissed[200];          // who dismissed it; "": nobody
    char restart[64];             // one of its processes that an operator wants to restart
    int64_t restart_pid;          // that process's id before the restart
    struct request *restarter;    // the request that waits for it
    int64_t restart_limit_ms;
    struct buf beat;    // its last 'node' message
};
struct letter {            // sent to the controller until it has answered
    struct msg_out msg;    // empty: free
    bool open;
    int64_t again_ms;
};
struct gate {
    struct process process;
    struct run_config config;
    struct peer *controller;
    struct server *nodes, *local;
    struct relays relays;
    struct node_file file[NODE_FILES_MAX];
    int n_file;
    struct buf settings;
    char hash[65], device[16];
    struct node_seen *node;    // (n_node) owned, of room for node_cap; pointers to one hold until another comes or goes
    int n_node, node_cap;
    struct letter letter[LETTERS_MAX];
    char state[32];    // the run's state, as reported by its agent
    int64_t step, status_ms;
    bool status_open;
    int64_t n_piece;    // pieces of files sent
};
bool run_over(const struct gate *g);

/* ---- gate_letters.c: what the controller must be told ---- */
struct msg_out *letter_begin(struct gate *g,
                             enum msg_type type);    // finish it; NULL: too many are waiting, the log has it
void event_tell(struct gate *g, const char *kind, const char *who, const char *text);
void letters_tick(struct gate *g);
int64_t letters_due(const struct gate *g);    // these two: when the tick must be called next; INT64_MAX: not before something comes
bool letter_answered(struct gate *g, const struct net_event *ev);    // false: the answer was not to a letter

/* ---- gate_nodes.c: which nodes are present ---- */
struct node_seen *node_find(struct gate *g, const char *name);    // NULL: no node has had this name, or it was forgotten
void join_asked(struct gate *g, struct request *r, const struct msg_in *in);
void node_asked(struct gate *g, struct request *r, const struct msg_in *in, const void *data, size_t len);
void node_command(struct gate *g, struct request *r, const struct msg_in *in);    // an operator's command: dismiss, or restart a process
void nodes_tick(struct gate *g);
int64_t nodes_due(const struct gate *g);
void nodes_write(void *ctx,
                 struct msg_out *m);      // for the heartbeat: all nodes' processes, named NODE/NAME, and the figures of those present
bool nodes_told(const struct gate *g);    // have all present nodes been ordered to stop?

/* ---- gate_files.c: what a node needs, in pieces ---- */
MUST_USE bool files_make(struct gate *g, struct error *err);
void file_asked(struct gate *g, struct request *r, const struct msg_in *in);
