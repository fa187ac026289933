/* metric_names.h - metrics under the names of another system, where they mean the same
 *
 * For exporters (setting metric_names), so that a run's charts lie over those of open-instruct or of Atropos' example trainer. Names and
 * meanings: open-instruct's grpo_fast.py as of August 2026, Atropos 0.4.0. A metric without a counterpart keeps its name. Pure. */
#pragma once
#include <stdint.h>
#include "protocol/record/journal.h"

enum metric_naming {    // in the order of the choices of 'metric_names'
    NAMES_ROLLCALL,
    NAMES_OPEN_INSTRUCT,
    NAMES_ATROPOS,
};
#define METRIC_NAMES_MORE 3    // metrics that a naming adds
/* The metrics of optimizer step `step` under these names into out (n + METRIC_NAMES_MORE); returns how many. Values differ where the other
 * system counts the other way (val/stop_rate is 1 - metrics/truncated_ratio), and two become one where it has one (clipped tokens). */
int metric_names_make(enum metric_naming naming, int64_t step, const struct journal_metric *in, int n, struct journal_metric *out);
