/* late.h - which of the ranks of a transfer that a library carries is late
 *
 * The library says that a transfer is not done, and not for which rank it waits. So a rank that looks after its transfer shows that by a counter
 * of the collective beneath, and by another one how many it has done: one that does neither for a moment is what the others wait for. */
#pragma once
#include "kernels/collective/collective.h"

#define LATE_TELL_MS 100    // a wait this long is reported to the operator
struct late {
    int64_t began_ms;                        // of the transfer under way; 0: none is
    int64_t beat_ms;                         // when this rank last showed that it looks after it
    uint32_t beat, done;                     // this rank's counters
    uint32_t seen[COLLECTIVE_RANK_MAX];      // the others' beats,
    int64_t seen_ms[COLLECTIVE_RANK_MAX];    // and when they last rose
};
/* This rank looks after its transfer, the first time or again, at now_ms. The rank that has not for the longest time, and for more than
 * LATE_TELL_MS; -1: none such. */
int late_look(struct late *l, struct collective *c, int64_t now_ms);
/* Its transfer is done. */
void late_done(struct late *l, struct collective *c);
