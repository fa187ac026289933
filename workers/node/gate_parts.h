/* gate_parts.h - the inside of the gate; only for gate_*.c. gate_cmd.c explains how it works. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "kernels/collective/collective.h"
#include "protocol/run/node.h"
#include "protocol/settings/run_config.h"
#include "protocol/wire/join_rotation.h"
#include "workers/node/bulk/bulk_server.h"
#include "workers/node/relay.h"
#include "workers/process/process.h"

#define NODES_MAX 1024
#define LETTERS_MAX (NODES_MAX + 64)    // all nodes may go at once

struct node_seen {
    struct node node;                        // name, id, host
    bool here;                               // heard from recently
    bool lent;                               // it has joined with the token for sampling only
    uint64_t connection[2];                  // by which its last 'node' messages came, the newest first
    char token_id[JOIN_TOKEN_ID_LEN + 1];    // name of the token that it has, as it says; "": it does not say
    bool told;                               // it has been ordered to stop
    int64_t start;
    int64_t heard_ms;             // when bytes last came from it; 0: no 'node' message has come since the gate opened
    int64_t asked_ms;             // when it asked to join; 0: it has not since the gate has opened
    char dismissed[200];          // who dismissed it; "": nobody
    char restart[64];             // one of its processes that an operator wants to restart
    int64_t restart_pid;          // that process's id before the restart
    struct request *restarter;    // the request that waits for it
    int64_t restart_limit_ms;
    struct buf beat;             // its last 'node' message
    struct msg_out processes;    // and what the gate's heartbeats say of it: values of two lists, made once for many
    struct msg_out figures;
};
/* Where trainers of the run are on a node: the first of them is (its index + 1) x trainers_per_node. */
struct trainer_place {
    char id[33];         // of the node; "": it is free
    int64_t heard_ms;    // when that node asked to join, or was heard
};
struct letter {            // sent to the controller until it has answered
    struct msg_out msg;    // empty: free
    bool open;
    int64_t again_ms;
};
enum door_kind {
    DOOR_NODES,
    DOOR_LENT,    // for nodes that may sample and no more ('listen_lent')
    N_DOOR,
};
struct door {
    struct server *server;    // NULL: there is none
    char token[JOIN_TOKEN_LEN + 1], id[JOIN_TOKEN_ID_LEN + 1];
    char past[JOIN_TOKEN_LEN + 1];    // the token before, which is accepted, too; "": none is
    char past_id[JOIN_TOKEN_ID_LEN + 1];
    bool wary;                            // connections of a token that was ended at once are still there: they are told nothing
    double until_s;                       // how long it is, or was, in seconds since 1970; 0: not at all
    char commands[JOIN_COMMANDS_SIZE];    // digests of the ids of those that replaced it, newest first
    bool told;                            // the journal has it
    int64_t cut_ms;                       // when connections of tokens before are to be ended; 0: not
    struct request *asker;                // of the operator who replaced it; NULL: answered
    int64_t asker_limit_ms;
};
struct gate {
    struct process process;
    struct run_config config;
    struct peer *controller;
    struct server *local;
    struct door door[N_DOOR];
    struct relays relays;
    struct node_file file[NODE_FILES_MAX];
    int n_file, n_common;    // those that every node needs come first; then what only trainers do
    struct trainer_place place[COLLECTIVE_RANK_MAX];
    int64_t opened_ms;
    struct buf settings;
    char hash[65], device[16];
    struct node_seen *node;    // (n_node) owned, of room for node_cap; pointers to one hold until another comes or goes
    int n_node, node_cap;
    uint32_t name_key[NODES_MAX];    // (n_node) of the nodes' names: most that differ have different ones
    int64_t nodes_look_ms;           // when nodes_tick has something to see to, at the earliest
    struct letter letter[LETTERS_MAX];
    int n_letter;      // places up to the last that is in use
    char state[32];    // the run's state, as reported by its agent
    int64_t step, status_ms;
    bool status_open;
    int64_t n_piece;    // pieces of files sent
    struct bulk_server *bulk;
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
void node_release(struct node_seen *n);
struct node_seen *node_find(struct gate *g, const char *name);    // NULL: no node has had this name, or it was forgotten
void join_asked(struct gate *g, struct request *r, const struct msg_in *in);
void node_asked(struct gate *g, struct request *r, const struct msg_in *in);
void node_command(struct gate *g, struct request *r, const struct msg_in *in);    // an operator's command: dismiss, or restart a process
void nodes_tick(struct gate *g);
int64_t nodes_due(const struct gate *g);
void nodes_write(void *ctx,
                 struct msg_out *m);    // for the heartbeat: all nodes' processes, named NODE/NAME, and the figures of those present
int64_t nodes_known_ms(const struct gate *g);    // from when on the nodes that were present before the gate opened have been heard again
bool nodes_told(const struct gate *g);           // have all nodes that are present or about to come been ordered to stop?

/* ---- gate_tokens.c: the doors, and who gets in ---- */
/* Read the door's token; it is made when there is none. */
MUST_USE bool door_token(struct gate *g, enum door_kind kind, struct error *err);
/* Listen at the address in text, a setting's value, for nodes that have the token. */
MUST_USE bool door_open(struct gate *g, enum door_kind kind, const char *text, struct error *err);
bool gate_lent(const struct gate *g, const struct request *r);                    // did it come through the door of lent machines?
void token_rotate(struct gate *g, struct request *r, const struct msg_in *in);    // an operator's command
/* The token that this node is to have instead of its own; NULL: it has the right one, or it is not to be told. */
const char *token_news(const struct gate *g, const struct node_seen *n);
void tokens_tick(struct gate *g);
int64_t tokens_due(const struct gate *g);

/* ---- gate_lent.c: what machines may ask that may only sample ---- */
/* May the sender of r ask this? *lent: the name of its node when it is a lent machine that is to be known by name (gate_lent.c); borrowed until
 * nodes come or go. */
MUST_USE bool right_check(struct gate *g, const struct request *r, const struct msg_in *in, const char **lent, struct error *err);
/* A lent machine's message as it is passed on: what a sampler has to say, and whose it is. The caller releases m. */
MUST_USE bool lent_write(struct msg_out *m, const struct msg_in *in, const char *lent, struct error *err);

/* ---- gate_seats.c: which nodes train ---- */
/* The rank of the first trainer of a node that asks to join with this many devices: its own place, or a free one, which it now has. -1: it is to
 * sample only. */
int64_t seat_give(struct gate *g, const struct node *who, int64_t n_device);
/* A node says that it has the place with this first trainer. False: it has not, or not any more. */
bool seat_hold(struct gate *g, const struct node *who, int64_t first);
/* Is a place free for a node that has none? Then it is kept for it until it has joined again. */
bool seat_spare(struct gate *g, const struct node *who, int64_t n_device);
/* The devices that a node needs for trainers whose place is free, if these are too few; *first: the first of them. 0: there are none. */
int64_t seat_missed(const struct gate *g, int64_t n_device, int64_t *first);
bool seat_has(const struct gate *g, const struct node *who, int64_t rank);    // is this trainer on that node?
void seat_free(struct gate *g, const struct node *who);                       // the node has gone: its place is free

/* ---- gate_files.c: what a node needs, in pieces ---- */
MUST_USE bool files_make(struct gate *g, struct error *err);
void file_asked(struct gate *g, struct request *r, const struct msg_in *in);
void weights_asked(struct gate *g, struct request *r, const struct msg_in *in);    // answered with a ticket for bulk connections
