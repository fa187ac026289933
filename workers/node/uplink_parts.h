/* uplink_parts.h - the inside of the uplink; only for uplink_*.c. uplink_cmd.c says how it works. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "kernels/ops.h"
#include "protocol/run/node.h"
#include "protocol/settings/run_config.h"
#include "protocol/wire/join_token.h"
#include "workers/node/relay.h"
#include "workers/process/process.h"

#define WORKERS_MAX 64
#define N_STREAM 3        // connections over which weights come in pieces
#define WEIGHTS_KEPT 2    // versions

struct weights_fetch;           // weights_fetch.h
struct copy;                    // uplink_trainers.c
struct held_order {             // to sample with a version, or to train from a checkpoint: kept back until its files are here
    char worker[64];            // "": free
    int64_t start;              // the worker's life
    struct request *request;    // NULL: the worker has given up and will ask again
    struct buf answer;
    int64_t version, made;    // made: by which incarnation
    int64_t round;            // of a checkpoint: the trainers' round; 0: the order is to sample
};
struct uplink {
    struct process process;
    struct run_config config;
    struct node node;
    struct server *server;
    struct peer *head;     // for requests, which may be long
    struct peer *pulse;    // for signs of life, which must not wait for those; after one without an answer, the next goes over head
    struct peer *stream[N_STREAM];
    bool introduce;    // signs of life go over head, too, until one is answered there: the gate is to know that this connection is ours
    const struct peer *way;    // over which the last one went
    struct relays relays;
    struct held_order order[WORKERS_MAX];
    struct weights_fetch *fetch;
    int64_t fetch_version, fetch_made, fetch_ms;
    uint64_t fetch_tag;
    double mib_per_s, delta_ratio, fetch_s;    // of the last weights, ratio: their bytes by those on the wire; NAN: none yet
    int64_t wire_bytes;                        // of all weights
    struct {
        int64_t version, file_bytes, wire_bytes;
        double s;
    } fetched;            // the head has not been told of yet; version -1: nothing
    struct copy *copy;    // of a checkpoint; NULL: none was wanted yet
    struct meeting {
        int64_t round;    // of the one that trainers here are to join; 0: none
        int64_t asked;    // the round whose file the head is being asked for; 0: it is not
        int64_t again_ms;
        bool told;               // they have its file
    } meeting[SUM_PARTS_MAX];    // of each of a trainer's devices
    struct weights {
        int64_t version, made;
        bool left;           // by an earlier process: good enough to add differences to, which is checked, and for nothing else
    } here[WEIGHTS_KEPT];    // newest first; version -1: none
    /* the head */
    char state[32], reason[400];    // of the run, as the head says; or why the node ends
    int64_t step, beat_ms, heard_ms;
    int64_t asked_ms;                    // when the last sign of life was sent
    double answer_ms;                    // from a sign of life to its answer, averaged over some; NAN: none yet
    int64_t n_answer;                    // of those
    int64_t n_beat_lost;                 // signs of life without an answer in time
    int64_t lost_ms;                     // when the last one of them was found; 0: none was
    int64_t n_lost_before, warned_ms;    // what was said of them last
    int64_t looked_ms;                   // when the silence of the head was looked at last; 0: not yet
    int64_t moved_ms;                    // when the head was last looked for at another address
    bool moved;                          // since it was heard last
    bool beat_open, status_open, ends;
    bool over;    // the head has said that its run is, and is ending itself
    char token[JOIN_TOKEN_LEN + 1], token_id[JOIN_TOKEN_ID_LEN + 1];
    bool strange;            // the head has not accepted it since it was heard last
    bool token_new;          // connect with it: the connections were made with another one
    int64_t token_ms;        // when its file was last looked at
    struct buf processes;    // the agent's last answer to status
};
enum {
    TAG_BEAT = 1,
    TAG_STATUS,
    TAG_RESTART,
    TAG_MEETING,    // and above, one for each of a trainer's devices
};
#define FETCH_TAG ((uint64_t)1 << 40)    // tags of fetches are these and above,
#define FETCH_TAG_STEP 16                // this many for each: FETCH_TAGS, WEIGHTS_FETCH_TAGS

/* ---- uplink_head.c: signs of life to the head, and its orders ---- */
/* The node ends with this state of its run, and why; the first call counts. */
void node_end(struct uplink *u, const char *state, const char *reason);
/* Take the token in the node's file, if it is another one than before. */
MUST_USE bool uplink_token_read(struct uplink *u, struct error *err);
void beat_send(struct uplink *u, bool leaving);
void beat_came(struct uplink *u, const struct net_event *ev);
void status_came(struct uplink *u, const struct net_event *ev);    // the agent's, for the next beat
void head_tick(struct uplink *u);
int64_t head_due(const struct uplink *u);    // when head_tick must be called next

void uplink_wake(void *ctx);    // of a fetch, whose ctx is the struct process; from any thread

/* ---- uplink_weights.c: weights from the head, and the orders that wait for them ---- */
/* Keep back the order that ev has brought for the worker's request x until its weights are here. False: not kept, x is as it was. */
bool weights_order_keep(struct uplink *u, struct relay *x, const struct net_event *ev, const struct msg_in *in);
/* The worker asks for work: true when its order is on the way and ev's request was taken for the answer. */
bool weights_order_asked(struct uplink *u, struct net_event *ev, const struct msg_in *in);
/* Take note of the weights that an earlier process has left in the folder. */
void weights_find(struct uplink *u);
/* Add what the weights of version have cost to a report that they are in place, once. */
void weights_fetched_write(struct uplink *u, int64_t version, struct msg_out *m);
void weights_tick(struct uplink *u);
int64_t weights_due(const struct uplink *u);    // when weights_tick must be called next; INT64_MAX: not before something comes
void weights_release(struct uplink *u);

/* ---- uplink_trainers.c: what trainers here need of the head: the meeting with the others, and checkpoints ---- */
/* A trainer was told to meet the others in this round: its meetings here follow the head's from now on. */
void meeting_follow(struct uplink *u, int64_t round);
void meeting_find(struct uplink *u);                                // after a start: one that an uplink before this one has followed
bool meeting_came(struct uplink *u, const struct net_event *ev);    // false: it was no answer about one
/* Is the checkpoint for this round here? Then where. False: it is not. */
bool checkpoint_here(const struct uplink *u, int64_t round, char path[4200]);
/* Bring the checkpoint that the head has at path, if none is being brought. False: the node has ended. */
bool checkpoint_bring(struct uplink *u, int64_t round, const char *path);
/* Has it been lost: the head had it no longer? Once per time. */
bool checkpoint_lost(struct uplink *u, int64_t *round);
void trainers_answered(struct uplink *u, const struct net_event *ev);    // to one of its fetches
void trainers_tick(struct uplink *u);
int64_t trainers_due(const struct uplink *u);    // when trainers_tick must be called next; INT64_MAX: not before something comes
void trainers_release(struct uplink *u);
