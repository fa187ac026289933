#include <inttypes.h>
#include <stdio.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "workers/engine/publish/outlet_parts.h"

#define FAILURES_MAX 3    // groups that failed in a row, until everybody is sent away

void outlet_group_end(struct outlet *o)
{
    struct comm *c = o->comm;
    enum outlet_group was = o->group;
    o->comm = NULL;
    o->group = GROUP_NONE;
    o->broken = false;
    comm_free(c);
    pthread_mutex_lock(&o->lock);
    if (was == GROUP_SENDING)
        o->slot[o->send_slot].n_reader--;
    if (o->share == SHARE_RUNS || o->share == SHARE_ASKED)
        o->share = SHARE_FAILED;
    for (int i = 0; i < MEMBER_MAX; i++)
        o->member[i].rank = o->member[i].confirms = 0;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->lock);
}

static void group_fail(struct outlet *o, const char *why)
{
    log_warn("weights: the group is given up: %s", why);
    outlet_group_end(o);
    if (++o->n_failed < FAILURES_MAX)
        return;
    o->n_failed = 0;
    pthread_mutex_lock(&o->lock);
    for (int i = 0; i < MEMBER_MAX; i++)
        if (member_is_sent(o, &o->member[i]))
            outlet_member_close(o, &o->member[i], "is sent away: no group could be built with it");
    pthread_mutex_unlock(&o->lock);
}

static void group_build(struct outlet *o)
{
    struct error err = { 0 };
    struct comm_id id;
    int n = 1;
    outlet_group_end(o);
    o->stale = false;
    if (!comm_id_make(o->config.dev, &id, &err)) {
        group_fail(o, err.text);
        return;
    }
    pthread_mutex_lock(&o->lock);
    for (int i = 0; i < MEMBER_MAX; i++)
        if (member_is_sent(o, &o->member[i]))
            o->member[i].rank = n++;
    for (int i = 0; i < MEMBER_MAX; i++)
        if (o->member[i].rank)
            outlet_say(o, &o->member[i], (struct wire){ .kind = WIRE_JOIN, .rank = o->member[i].rank, .n_rank = n, .id = id });
    pthread_mutex_unlock(&o->lock);
    o->comm = comm_new(o->config.dev, &id, n, 0, &err);
    if (!o->comm) {
        group_fail(o, err.text);
        return;
    }
    o->group = GROUP_BUILDING;
    o->group_ms = clock_ms();
    o->group_limit_ms = outlet_limit_ms(o);
    log_info("weights: building a group of %d by %s", n, weights_way_name(o->config.way));
}

/* Begin to send slot, or the share that is asked for (slot -1). */
static void send_begin(struct outlet *o, int slot)
{
    struct error err = { 0 };
    struct comm_broadcast b = { .size_bytes = o->config.bundle->size_bytes, .bucket_bytes = o->config.bucket_bytes };
    pthread_mutex_lock(&o->lock);
    outlet_drop_tell(o);
    if (slot < 0) {
        if (o->share != SHARE_ASKED) {
            pthread_mutex_unlock(&o->lock);
            return;
        }
        o->share = SHARE_RUNS;
        slot = o->share_slot;
        b.src = o->share_src;
        o->send_version = o->share_version;
    } else if (o->slot[slot].version < 0) {    // it was chosen, and has been withdrawn or given to a share since
        pthread_mutex_unlock(&o->lock);
        return;
    } else {
        o->send_version = o->slot[slot].version;
    }
    b.buf = (void *)o->slot[slot].from.part[0].mem;
    o->slot[slot].n_reader++;
    o->send_slot = slot;
    for (int i = 0; i < MEMBER_MAX; i++)
        if (o->member[i].rank) {
            o->member[i].confirms = true;
            outlet_say(o, &o->member[i], (struct wire){ .kind = WIRE_SEND, .version = o->send_version, .bucket_bytes = b.bucket_bytes });
        }
    pthread_mutex_unlock(&o->lock);
    o->group = GROUP_SENDING;
    o->group_ms = clock_ms();
    if (!comm_broadcast(o->comm, &b, &err))
        group_fail(o, err.text);
}

static void send_end(struct outlet *o)
{
    const struct slot *s = &o->slot[o->send_slot];
    o->group = GROUP_CONFIRMING;
    pthread_mutex_lock(&o->lock);
    o->slot[o->send_slot].n_reader--;
    outlet_drop_tell(o);
    for (int i = 0; i < MEMBER_MAX; i++)
        if (o->member[i].rank)
            outlet_say_hashed(o, &o->member[i], s, (struct wire){ .kind = WIRE_SENT, .version = o->send_version });
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->lock);
}

/* Have all members what was sent? */
static bool all_confirmed(struct outlet *o)
{
    bool all = true;
    pthread_mutex_lock(&o->lock);
    for (int i = 0; i < MEMBER_MAX; i++)
        all = all && !o->member[i].confirms;
    pthread_mutex_unlock(&o->lock);
    return all;
}

void outlet_group_tick(struct outlet *o)
{
    struct error err = { 0 };
    if (o->group == GROUP_NONE)
        return;
    if (o->broken) {
        log_info("weights: a member of the group is gone");
        outlet_group_end(o);
        return;
    }
    if (o->group == GROUP_READY)
        return;
    pthread_mutex_lock(&o->lock);
    bool copies = o->share == SHARE_RUNS, hashed = o->slot[o->send_slot].hashed;
    pthread_mutex_unlock(&o->lock);
    enum comm_state s = o->group != GROUP_CONFIRMING ? comm_poll(o->comm, &err) : all_confirmed(o) ? COMM_READY : COMM_BUSY;
    if (copies && s != COMM_FAILED && comm_copied(o->comm)) {
        pthread_mutex_lock(&o->lock);
        o->slot[o->send_slot].version = o->send_version;
        o->share = SHARE_COPIED;
        pthread_cond_broadcast(&o->changed);
        pthread_mutex_unlock(&o->lock);
    }
    if (s == COMM_FAILED) {
        group_fail(o, err.text);
    } else if (s == COMM_READY && o->group == GROUP_BUILDING) {
        o->group = GROUP_READY;
        log_info("weights: the group is ready after %" PRId64 " ms", clock_ms() - o->group_ms);
    } else if (s == COMM_READY && o->group == GROUP_SENDING && hashed) {
        send_end(o);
    } else if (s == COMM_READY && o->group == GROUP_CONFIRMING) {
        o->group = GROUP_READY;
        o->n_failed = 0;
    } else if (clock_ms() - o->group_ms > o->group_limit_ms) {
        char text[200];
        snprintf(text, sizeof text, "%s has waited for all producers to take part for %" PRId64 " s",
                 o->group == GROUP_BUILDING ? "building it" : "a broadcast", o->group_limit_ms / 1000);
        group_fail(o, text);
    }
}

/* What has to be sent next: a slot, -1: the share asked for, -2: nothing. */
static int send_choose(struct outlet *o)
{
    int choice = -2;
    bool some = false, all = true;
    pthread_mutex_lock(&o->lock);
    int64_t last = outlet_newest(o);
    for (int i = 0; i < MEMBER_MAX; i++) {
        struct member *m = &o->member[i];
        if (!member_is_sent(o, m))
            continue;
        some = true;
        int slot = outlet_slot_find(o, m->want);
        all = all && slot >= 0;
        if (slot >= 0) {
            choice = slot;
        } else if (m->want >= 0 && outlet_is_gone(o, m->want)) {
            int64_t gone = m->want;
            m->want = -1;
            outlet_say(o, m, (struct wire){ .kind = WIRE_GONE, .version = gone });
        } else if (choice == -2 && last >= 0 && m->sent < last) {
            choice = outlet_slot_find(o, last);
        }
    }
    if (o->in_place && (!all || outlet_is_scattered(o)))
        choice = -2;    // a member that does not want it now has no memory for it
    if (o->share == SHARE_ASKED) {
        choice = some ? -1 : -2;
        if (!some) {
            o->share = SHARE_FAILED;    // nobody is there (any more): the other thread copies
            pthread_cond_broadcast(&o->changed);
        }
    }
    pthread_mutex_unlock(&o->lock);
    return choice;
}

bool outlet_group_serve(struct outlet *o)
{
    int choice;
    if (o->group != GROUP_NONE && o->group != GROUP_READY)
        return true;
    if ((choice = send_choose(o)) == -2)
        return false;
    if (o->group == GROUP_NONE || o->stale)
        group_build(o);
    else
        send_begin(o, choice);
    return true;
}
