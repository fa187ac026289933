/* run_head.h - RUN/launch/head: where the head of a run is reached that a starter put on another machine
 *
 * The head writes the file each time it starts; nodes and operators' tools on a shared file system read it. Any thread. */
#pragma once
#include <stdbool.h>
#include "protocol/base/error.h"

#define LAUNCH_FOLDER "launch"    // in the run's directory: what a starter has left (console/train/launch.h)
#define HEAD_FILE LAUNCH_FOLDER "/head"
#define HEAD_ADDRESSES_MAX 8

struct run_head {
    char host[256];                           // the name of the head's machine, as gethostname says it
    char start[64];                           // a word that differs from start to start
    char address[HEAD_ADDRESSES_MAX][280];    // HOST:PORT, in the order in which they are to be tried
    int n_address;
};
/* This machine's host name, and addresses for port: the name that the scheduler knows it by (NULL: none), its host name when that can be
 * resolved, and each IPv4 address of its network interfaces but the loopback. */
void run_head_here(struct run_head *h, const char *name, int port);
MUST_USE bool run_head_write(const struct run_head *h, const char *run_dir, struct error *err);
/* ERR_NOT_FOUND: the run has no such file. */
MUST_USE bool run_head_read(struct run_head *h, const char *run_dir, struct error *err);
/* Is the run led by another machine than this one? */
bool run_head_is_elsewhere(const char *run_dir);
/* The first address at which something accepts a connection within limit_ms each; NULL: none does, err says why for the last one. */
const char *run_head_reach(const struct run_head *h, int limit_ms, struct error *err);
