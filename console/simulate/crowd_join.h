/* crowd_join.h - many made-up nodes that join a real run, to measure what its head has to do for them
 *
 * Each has a connection of its own, with the run's token, and does what a node does: once per period it says that it is there, with five
 * processes and the figures of a GPU; now and then it sends figures for the journal; and its worker asks for work. The worker says that it is in the
 * middle of sampling, so the head answers at once and gives it no items: the run is not held up, and its bytes are the same. What the
 * measuring needs is all in memory; nothing is written. One thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

#define CROWD_NODES 1024        // as many as a head takes
#define CROWD_HEAD_CORES 1.0    // a head may use at most, of 1000 nodes,
#define CROWD_WORK_MS 5.0       // and 99 of 100 requests for work are to be answered within this time
struct crowd_join_options {
    const char *address;    // HOST:PORT of the head
    const char *token;      // the run's
    int64_t nodes;
    double period_s, measure_s;    // between signs of life; how long to measure
};
/* Join, say so, measure for measure_s, print the figures, leave. ERR_REFUSED: a figure is beyond its bar, which was printed. */
MUST_USE bool crowd_join(const struct crowd_join_options *o, struct error *err);
