/* gate_parts.h - the inside of the gate; only for gate_*.c. How it works is told in gate_cmd.c. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/run/run_config.h"
#include "protocol/run/node.h"
#include "workers/node/relay.h"
#include "workers/process/process.h"

#define NODES_MAX 64
#define LETTERS_MAX 64

struct node_seen {
    struct node node;    // name, id, host
    bool here;           // heard lately
    bool told;           // it has been ordered to stop
    int64_t start, heard_ms;
    char dismissed[200];          // by whom; "": it is welcome
    char restart[64];             // a process of it that an operator wants restarted
    int64_t restart_pid;          // its process id until then
    struct request *restarter;    // who waits for that
    int64_t restart_limit_ms;
    struct buf beat;    // its last message node
};
struct letter {            // asked of the controller until it has been answered
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
    struct node_seen node[NODES_MAX];
    int n_node;
    struct letter letter[LETTERS_MAX];
    char state[32];    // the run's, as its agent tells
    int64_t step, status_ms;
    bool status_open;
    int64_t n_piece;    // pieces of files given
};
bool run_over(const struct gate *g);

/* ---- gate_letters.c: what the controller must be told ---- */
struct msg_out *letter_begin(struct gate *g, enum msg_type type);    // finish it; NULL: too many wait, the log has it
void event_tell(struct gate *g, const char *kind, const char *who, const char *text);
void letters_tick(struct gate *g);
int64_t letters_due(const struct gate *g);    // these two: when the tick must be called next; INT64_MAX: not before something comes
bool letter_answered(struct gate *g, const struct net_event *ev);    // false: that was no letter

/* ---- gate_nodes.c: who is here ---- */
struct node_seen *node_find(struct gate *g, const char *name);    // NULL: no node has ever had this name, or it was forgotten
void join_asked(struct gate *g, struct request *r, const struct msg_in *in);
void node_asked(struct gate *g, struct request *r, const struct msg_in *in, const void *data, size_t len);
void node_command(struct gate *g, struct request *r, const struct msg_in *in);    // an operator's: dismiss, or restart a process
void nodes_tick(struct gate *g);
int64_t nodes_due(const struct gate *g);
void nodes_write(void *ctx,
                 struct msg_out *m);      // for the heartbeat: all nodes' processes, named NODE/NAME, and the figures of those here
bool nodes_told(const struct gate *g);    // has everybody who is here been ordered to stop?

/* ---- gate_files.c: what a node needs, in pieces ---- */
MUST_USE bool files_make(struct gate *g, struct error *err);
void file_asked(struct gate *g, struct request *r, const struct msg_in *in);
