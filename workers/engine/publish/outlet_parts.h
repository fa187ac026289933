/* outlet_parts.h - the inside of the outlet; only for outlet*.c. outlet.c says how it works. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "workers/engine/publish/outlet.h"

#define MEMBER_MAX (COMM_RANK_MAX - 1)

struct slot {
    struct extents from;    // its memory, owned; without slots the trainers' weights, borrowed while it has a version
    struct extent whole;    // what lies in one part
    struct extent_part part;
    int64_t version;    // -1: none
    uint64_t *hash;     // (bundle.n) of its tensors,
    bool hashed;        // once that is true
    int n_reader;
};
struct member {
    int fd;             // -1: free
    char name[64];      // "" : has not said it yet
    int64_t want;       // -1: nothing
    int64_t sent;       // newest version that it has been sent; -1: none
    int reading;        // the slot it copies from; -1: none
    int rank;           // in the group; 0: in none
    bool copies;        // it takes no part in broadcasts
    bool confirms;      // it has not said yet that it has what was sent
    int64_t want_ms;    // since when it wants
};
enum outlet_group {
    GROUP_NONE,
    GROUP_BUILDING,
    GROUP_READY,
    GROUP_SENDING,
    GROUP_CONFIRMING,
};
enum outlet_share_state {
    SHARE_NONE,
    SHARE_ASKED,
    SHARE_RUNS,
    SHARE_COPIED,
    SHARE_FAILED,
};
struct outlet {
    struct outlet_config config;
    char dir[4096];
    int listen_fd, wake_fd;
    bool in_place;    // one slot, whose memory is the weights
    struct hasher *hasher;
    pthread_t thread;
    bool thread_runs;
    pthread_mutex_t lock;    // guards: slot, member, share*, withdrawn, look, drop, quit
    pthread_cond_t changed;
    struct slot slot[OUTLET_SLOT_MAX];
    struct member member[MEMBER_MAX];
    enum outlet_share_state share;
    int share_slot;
    int64_t share_version;
    const void *share_src;
    int64_t withdrawn;    // greatest version that was; -1: none
    int64_t shared_ns;    // when the last share began
    struct outlet_look look;
    bool drop;    // members are to be told to forget
    bool quit;
    /* the thread's own */
    struct comm *comm;
    enum outlet_group group;
    bool stale;     // members have come or gone since it was built
    bool broken;    // a member of the group is gone
    int send_slot, n_failed;
    int64_t send_version, group_ms, group_limit_ms;
};

int64_t outlet_limit_ms(const struct outlet *o);
/* With the lock: the slot that holds version, -1: none; and the newest version in a slot, -1: none. */
int outlet_slot_find(const struct outlet *o, int64_t version);
/* With the lock: can this version, which is in no slot, not come any more? */
bool outlet_is_gone(const struct outlet *o, int64_t version);
/* With the lock: do the weights that are shared where they are lie in several places? A broadcast needs them in one. */
bool outlet_is_scattered(const struct outlet *o);
int64_t outlet_newest(const struct outlet *o);

/* ---- outlet_serve.c: the outlet's thread, and the producers that talk to it ---- */
void *outlet_main(void *arg);
/* With the lock: does it take part in broadcasts? */
bool member_is_sent(const struct outlet *o, const struct member *m);
/* With the lock: send it what the version in a slot is told by: its hashes, with SLOT where it lies, then w. */
void outlet_say_hashed(struct outlet *o, struct member *m, const struct slot *s, struct wire w);
/* With the lock: send a member away, and send it a message; one that does not take it is sent away. */
void outlet_member_close(struct outlet *o, struct member *m, const char *why);
void outlet_say(struct outlet *o, struct member *m, struct wire w);
/* With the lock, before anything newer is sent: members forget what was shared before outlet_forget. */
void outlet_drop_tell(struct outlet *o);

/* ---- outlet_group.c: the group that broadcasts; for the outlet's thread, without the lock ---- */
void outlet_group_tick(struct outlet *o);
/* Begin what the group has to do next. True: there is something to be sent, or it is under way. */
bool outlet_group_serve(struct outlet *o);
void outlet_group_end(struct outlet *o);
