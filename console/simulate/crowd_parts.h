/* crowd_parts.h - the two halves of crowd.h, which share nothing but sockets and the process: the head, and the nodes' agents
 *
 * Both belong to the one loop of crowd.c. */
#pragma once
#include "console/simulate/crowd.h"
#include "protocol/wire/transport.h"

#define CROWD_GATE "gate"
/* crowd_head.c */
struct crowd_head;
struct crowd_head *crowd_head_new(const struct crowd_options *o, const char *run_dir, struct transport *t, struct error *err);
void crowd_head_free(struct crowd_head *h);
void crowd_head_tick(struct crowd_head *h, int64_t now_ns);
void crowd_head_asked(struct crowd_head *h, struct net_event *ev, int64_t now_ns);    // takes ev's request
/* crowd_nodes.c */
struct crowd_nodes;
struct crowd_nodes *crowd_nodes_new(const struct crowd_options *o, struct transport *t, int64_t now_ns, struct error *err);
void crowd_nodes_free(struct crowd_nodes *n);
void crowd_nodes_tick(struct crowd_nodes *n, int64_t now_ns);
void crowd_nodes_answered(struct crowd_nodes *n, const struct net_event *ev, int64_t now_ns);
/* crowd.c: let the process open the files that this many connections need. */
MUST_USE bool crowd_descriptors(int64_t agents, struct error *err);
/* The name of node i, from 0. */
const char *crowd_node_name(char out[32], int64_t i);
