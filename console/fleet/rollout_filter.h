/* rollout_filter.h - which rollout groups an operator wants to see
 *
 * A filter is words: is:cut (a sample that was cut), is:whole, is:unscored, is:solved (every sample), is:failed (none), is:mixed (rewards
 * differ), reward<0.5 (also >, =), reason:TEXT, line:N, step:N (of training, or of the weights that sampled it), item:N. What is left is
 * text that the prompt or a completion must contain; !text: that nothing of the group contains. A group passes when one of its samples
 * meets all that is asked of a sample. Pure. */
#pragma once
#include <stdbool.h>
#include "protocol/record/rollout_view.h"

struct rollout_filter {
    char text[256], reason[64];    // "": any
    bool without;                  // text must not be there
    bool cut, whole, unscored, solved, failed, mixed;
    char compare;    // < > = with reward; 0: any
    double reward;
    int64_t line, step, item;    // -1: any
};
void rollout_filter_parse(struct rollout_filter *f, const char *words);
bool rollout_filter_passes(const struct rollout_filter *f, const struct rollout_view *g);
/* Does sample i meet what is asked of a sample? */
bool rollout_filter_sample(const struct rollout_filter *f, const struct rollout_view *g, int i);
