#include "workers/schedule/waste.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

bool waste_is(const struct group_summary *group, const struct batch_filter *filter)
{
    return group->n_scored == 0 || !batch_filter_passes(filter, group);
}

void waste_add(struct waste *w, const struct group_summary *group, const struct batch_filter *filter, const char *reason)
{
    if (!waste_is(group, filter)) {
        *w = (struct waste){ 0 };
        return;
    }
    w->n_group++;
    w->n_sample += group->n_sample;
    w->n_format += llround(group->format_sum);
    w->n_right += llround(group->ans_sum);
    w->n_unknown += group->n_scored - group->n_ans;
    w->n_left_out += group->n_left_out;
    w->n_timeout += group->n_timeout;
    w->n_error += group->n_error;
    if (reason[0])
        snprintf(w->reason, sizeof w->reason, "%s", reason);
}

/* All were scored, and all filtered: what the answers lack. It comes first, since a narrow screen shows only the beginning. */
static const char *filtered_text(const struct waste *w, char *out, size_t size)
{
    if (w->n_unknown > 0 && w->n_unknown == w->n_sample - w->n_left_out) {
        snprintf(out, size,
                 "none of %" PRId64 " answers has an accuracy: all of the last %" PRId64
                 " groups were filtered; filter_range needs a reward "
                 "that gives ans_acc, filter_no_spread one that differs within a group",
                 w->n_sample, w->n_group);
        return out;
    }
    bool no_format = w->n_format == 0 && w->n_right == 0;
    int n = no_format ? snprintf(out, size, "0 of %" PRId64 " answers have the right format", w->n_sample)
                      : snprintf(out, size, "%" PRId64 " of %" PRId64 " answers are right", w->n_right, w->n_sample);
    snprintf(out + n, size - (size_t)n, ": all of the last %" PRId64 " groups were filtered; %s", w->n_group,
             no_format                   ? "check the prompt, the chat template and reward_type: the reward finds nothing to score"
             : w->n_right == 0           ? "take easier prompts, raise max_new_tokens if answers are cut, or widen filter_range"
             : w->n_right == w->n_sample ? "take harder prompts, or widen filter_range"
                                         : "filter_range or filter_no_spread keeps none of these prompts: widen it, or take other prompts");
    return out;
}

const char *waste_text(const struct waste *w, char *out, size_t size)
{
    int n;
    if (w->n_sample == 0) {
        snprintf(out, size, "every sample was left out or filtered; look at the rollouts, and at logs/scorer.log");
        return out;
    }
    if (w->n_left_out == 0) {
        return filtered_text(w, out, size);
    }
    if (w->n_left_out == w->n_sample)
        n = snprintf(out, size, "the last %" PRId64 " samples were all left out", w->n_sample);
    else
        n = snprintf(out, size, "of the last %" PRId64 " samples %" PRId64 " were left out and the others' groups filtered", w->n_sample,
                     w->n_left_out);
    n += snprintf(out + n, size - (size_t)n, " (%" PRId64 " time-outs, %" PRId64 " errors of the verifier%s%s); ", w->n_timeout, w->n_error,
                  w->reason[0] ? ", the last: " : "", w->reason);
    snprintf(out + n, size - (size_t)n, "%s",
             w->n_timeout > w->n_left_out / 2 ? "look at logs/scorer.log, and raise reward_timeout_s if the verifier only needs longer"
             : w->n_error > 0                 ? "look at logs/scorer.log for what the verifier says"
                                              : "look at the rollouts: reward_type cannot tell about these answers");
    return out;
}
