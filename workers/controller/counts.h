/* counts.h - what is counted over the whole run, however often its controller dies: totals, and groups in a row that gave nothing
 *
 * Each group counts once, in the transaction that keeps it; returning to an earlier step takes none away. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/record/group.h"
#include "workers/schedule/waste.h"

#define COUNT_MAX 16    // numbers

struct journal;
struct controller;
struct counts {
    struct {
        int64_t n_tok, n_sample, n_timeout, n_error;
        int64_t n_wasted;     // samples of groups that nothing could be learned from (waste.h)
        int64_t n_refused;    // groups of lent machines, as they were not theirs to return, or claimed what cannot be (lent_groups.h)
    } total;
    struct waste waste;         // up to the last group that came
    int64_t kept[COUNT_MAX];    // all of these as the journal has them
};
/* As the journal has them. A run that was over begins a new row of waste: its operator has seen to the cause. */
MUST_USE bool counts_load(struct controller *c, struct error *err);
/* Put what has changed into the journal, in the open transaction. */
MUST_USE bool counts_keep(struct controller *c, struct error *err);
/* A group has come: into the totals. */
void counts_add(struct counts *n, const struct group_summary *group, const struct batch_filter *filter);
