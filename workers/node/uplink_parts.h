/* uplink_parts.h - the inside of the uplink; only for uplink_*.c. uplink_cmd.c says how it works. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/run/node.h"
#include "protocol/run/run_config.h"
#include "workers/node/relay.h"
#include "workers/process/process.h"

#define WORKERS_MAX 64
#define N_STREAM 4        // connections that weights come over
#define WEIGHTS_KEPT 2    // versions

struct fetch;                   // fetch.h
struct order {                  // to sample with a version: kept back until its weights are here
    char worker[64];            // "": free
    int64_t start;              // the worker's life
    struct request *request;    // NULL: the worker has given up and will ask again
    struct buf answer;
    int64_t version, made;    // made: by which incarnation
};
struct uplink {
    struct process process;
    struct run_config config;
    struct node node;
    struct server *server;
    struct peer *head, *stream[N_STREAM];
    struct relays relays;
    struct order order[WORKERS_MAX];
    struct fetch *fetch;
    int64_t fetch_version, fetch_made, fetch_ms;
    uint64_t fetch_tag;
    double mib_per_s;    // of the last weights; NAN: none yet
    struct {
        int64_t version, made;
    } here[WEIGHTS_KEPT];    // newest first; version -1: none
    /* the head */
    char state[32], reason[400];    // of the run, as the head says; or why the node ends
    int64_t step, beat_ms, heard_ms;
    bool beat_open, status_open, ends;
    struct buf processes;    // the agent's last answer to status
};
enum {
    TAG_BEAT = 1,
    TAG_STATUS,
    TAG_RESTART,
};
#define FETCH_TAG ((uint64_t)1 << 40)    // tags of fetches are these and above

/* ---- uplink_head.c: signs of life to the head, and its orders ---- */
/* The node ends with this state of its run, and why; the first call counts. */
void node_end(struct uplink *u, const char *state, const char *reason);
void beat_send(struct uplink *u, bool leaving);
void beat_came(struct uplink *u, const struct net_event *ev);
void status_came(struct uplink *u, const struct net_event *ev);    // the agent's, for the next beat
void head_tick(struct uplink *u);
int64_t head_due(const struct uplink *u);    // when head_tick must be called next

/* ---- uplink_weights.c: weights from the head, and the orders that wait for them ---- */
/* Keep back the order that ev has brought for the worker's request x until its weights are here. False: not kept, x is as it was. */
bool weights_order_keep(struct uplink *u, struct relay *x, const struct net_event *ev, const struct msg_in *in);
/* The worker asks for work: true when its order is on the way and ev's request was taken for the answer. */
bool weights_order_asked(struct uplink *u, struct net_event *ev, const struct msg_in *in);
void weights_tick(struct uplink *u);
int64_t weights_due(const struct uplink *u);    // when weights_tick must be called next; INT64_MAX: not before something comes
void weights_release(struct uplink *u);
