/* waste.h - groups in a row that nothing can be learned from: left out by their verifier, or outside filter_range
 *
 * A run may go on for days on such groups and end as if all were well. The controller counts them as they come (the count survives its
 * own death, counts.c), alerts the operator when there are many (setting waste_alert), and gives up when there are too many
 * (waste_limit). Pure: no clock, socket or file. Owned by the controller's loop thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/record/group.h"

#define WASTE_TEXT_MAX 480

struct waste {
    int64_t n_group;               // groups in a row that gave nothing
    int64_t n_sample;              // their completions
    int64_t n_format, n_right;     // of these: in the right format, with the right answer
    int64_t n_unknown;             // of these: scored by a reward that gives no accuracy
    int64_t n_left_out;            // of these: by the verifier; the others' groups were filtered
    int64_t n_timeout, n_error;    // of these: its time-outs, its failures
    char reason[64];               // of the last one left out, in the reward's words; ""
    int64_t told;                  // 1: the alert has been raised
};
/* Is there nothing to learn from in this group? */
bool waste_is(const struct group_summary *group, const struct batch_filter *filter);
/* Count a group; one that is useful sets the count back to 0. reason: of one of its samples that was left out, or "". */
void waste_add(struct waste *w, const struct group_summary *group, const struct batch_filter *filter, const char *reason);
/* What has happened, and after "; " what to look at, into out of at least WASTE_TEXT_MAX bytes; returns out. Without a group
 * in the count, what can be said of a whole run. */
const char *waste_text(const struct waste *w, char *out, size_t size);
