/* node.h - a second host that samples for a run, and may train for it: what head and node agree on
 *
 * head                                        node
 *   agent  <- unix -  gate  <===== TLS =====>  uplink  - unix ->  agent
 *   controller <------'                          '------------->  workers, scorer
 *
 * The gate (gate_*.c) is a process of the head's agent when the run listens: it admits nodes, serves them the files they need and
 * the weights, and passes their work on to the controller. The uplink (uplink_cmd.c) plays the controller on the node: the node's
 * agent, workers and scorer run as in any run, in a folder that looks like a run's. `rollcall agent --join` (join_cmd.c) makes that
 * folder, starts the node's keeper, and watches it. A folder is a node's when it holds the file `node`.
 *
 * What must stay true:
 * 1. A node holds nothing that cannot be lost: when all of it is killed, its items are issued again with the same seeds and
 *    weights, so the run's bytes do not depend on which node samples what. When its trainers are lost, all trainers go back to the last
 *    checkpoint, and wait for a node that takes their place (gate_seats.c).
 * 2. A node cannot fail the run: a task that fails there ends the node (uplink_cmd.c, task_failed).
 * 3. The controller knows a node's workers as NODE/NAME; the uplink writes these names, the gate refuses others.
 * 4. Trainers meet over connections of their own (kernels/collective). What they must know for that, the meeting's key, comes over TLS:
 *    the uplink copies the meeting's file from the head to the node's folder and back off again (uplink_trainers.c).
 * 5. Weights travel beside the requests, over connections that the gate has given a ticket for (weights_fetch.h on the node,
 *    workers/node/bulk/bulk_server.h on the head). They are lost like anything else: what is missing is asked for again.
 * 6. Nothing is accepted beyond a stated size: names 32 bytes, pieces of files 4 MiB, files the size that join announced. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "protocol/settings/node_name.h"

#define NODE_HEADS_MAX 2048
#define NODE_FILE "node"                         // in the node's folder
#define NODE_TOKEN_FILE "sock/join"              // of run and node
#define NODE_LENT_TOKEN_FILE "sock/join-lent"    // of the run: for machines that may sample and no more
#define NODE_REJOIN_FILE "sock/rejoin"           // left by the uplink: why the node is to join again
#define NODE_END_FILE "sock/end"                 // left by the uplink: why the node ends, when it has not failed
/* What to do when the head and this machine have different tokens, after "ADDRESS ". */
#define NODE_STRANGE                                                                                                                        \
    "does not accept the join token of this machine: it is that of another run, or it has been replaced (rollcall ctl rotate-token); copy " \
    "the run's sock/join here again"
#define NODE_PIECE_BYTES ((int64_t)4 << 20)
#define NODE_FILES_MAX 640    // of the model's and the data's
#define NODE_DATA_FILES_MAX 256

struct node {
    char name[NODE_NAME_MAX + 1];
    char id[33];                   // random, made once per folder
    char host[256];                // our host's name
    char head[280];                // HOST:PORT
    char heads[NODE_HEADS_MAX];    // all at which the run's head may be, with commas between them
    char hash[65];                 // of the settings and files this node has
    double wait_s;                 // for an absent head
    int64_t n_device;
    int64_t first_trainer;    // rank of the first one here; -1: none
};
struct run_config;
/* Is run_dir a node's folder? */
bool node_here(const char *run_dir);
MUST_USE bool node_read(struct node *n, const char *run_dir, struct error *err);
MUST_USE bool node_write(const struct node *n, const char *run_dir, struct error *err);
/* Complete the settings of a process in run_dir with what only a node's folder says; a run's own are as they are. */
MUST_USE bool node_config(struct run_config *c, const char *run_dir, struct error *err);
/* Go on with the head's next address, after the last one the first; false: there is only one. */
bool node_head_next(struct node *n);
/* Read such a list, "tcp://a:1,b:2": n->heads, and of it n->head. what: as of node_address. */
MUST_USE bool node_heads_read(struct node *n, const char *list, const char *what, struct error *err);
/* The address without brackets under which the head of this node is reached: the HOST of its `head`. */
void node_head_host(const struct node *n, char *out, size_t size);
/* "tcp://HOST:PORT" or "HOST:PORT" -> "HOST:PORT". what: "listen", "--join", for the message. */
MUST_USE bool node_address(const char *text, const char *what, char out[280], struct error *err);

#define NODE_MEETING "meeting/"          // before a meeting's name: the file of the trainers' meeting, of the run's sock/
#define NODE_CHECKPOINT "checkpoint/"    // before STEP-FOLDER/FILE: a file of one of the run's checkpoints
/* What a node needs of the head's files. */
struct node_file {
    char name[160];     // "model/config.json", "data/train.jsonl": where it goes in the node's folder
    char path[4096];    // on the head; "" on a node
    int64_t size_bytes;
    char hash[65];    // SHA-256
};
#define NODE_CHAT_TEMPLATES "model/additional_chat_templates"    // the one folder in another one
/* Is name one that may be written under a node's folder? */
bool node_file_name_ok(const char *name);
/* SHA-256 of a file, read in pieces: tick(ctx) is called between them (NULL: not called). */
MUST_USE bool node_file_hash(const char *path, char hex[65], int64_t *size_bytes, void (*tick)(void *ctx), void *ctx, struct error *err);
