/* recent.h - the last groups that came, as their messages, for the operator's screen
 *
 * Owned by the controller's loop thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"

#define RECENT_MAX 16

struct controller;
struct msg_in;
struct request;
struct recent {
    struct buf group[RECENT_MAX];    // group n is at n % RECENT_MAX
    int64_t n;                       // that have been taken in
    int64_t told_ms;                 // when one was last sent to the listeners
};
void recent_release(struct recent *r);
/* A group has come: it is kept, unless it is very long, and now and then one is sent to listeners. */
void recent_add(struct controller *c, const void *data, size_t len);
void rollouts_asked(struct controller *c, struct request *r, const struct msg_in *in);    // the newest first
