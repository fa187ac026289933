/* What is counted over all lives of the controller: of every group once, in the transaction that keeps the group. */
#include "workers/controller/controller.h"
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define REASON "waste_reason"    // the journal's name of waste.reason

/* The journal's name of each number. */
static const struct count {
    const char *name;
    size_t offset;
} counts[] = {
    { "tokens", offsetof(struct controller, total.n_tok) },
    { "samples", offsetof(struct controller, total.n_sample) },
    { "score_timeouts", offsetof(struct controller, total.n_timeout) },
    { "score_errors", offsetof(struct controller, total.n_error) },
    { "wasted", offsetof(struct controller, total.n_wasted) },
    { "waste_samples", offsetof(struct controller, waste.n_sample) },
    { "waste_groups", offsetof(struct controller, waste.n_group) },
    { "waste_format", offsetof(struct controller, waste.n_format) },
    { "waste_right", offsetof(struct controller, waste.n_right) },
    { "waste_left_out", offsetof(struct controller, waste.n_left_out) },
    { "waste_timeouts", offsetof(struct controller, waste.n_timeout) },
    { "waste_errors", offsetof(struct controller, waste.n_error) },
    { "waste_told", offsetof(struct controller, waste.told) },
};
_Static_assert(ARRAY_SIZE(counts) <= COUNT_MAX, "COUNT_MAX is too small");

static int64_t *count_at(struct controller *c, size_t i)
{
    return (int64_t *)(void *)((char *)c + counts[i].offset);
}

static bool over_see(void *arg, const struct journal_event *e)
{
    char reason[8];
    *(bool *)arg = run_state_is_over(run_state_read(e->detail, strlen(e->detail), reason, sizeof reason));
    return true;
}

bool counts_load(struct controller *c, struct error *err)
{
    bool found, was_over = false;
    struct buf reason = BUF_INIT;
    for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
        if (!number_get(c, counts[i].name, 0, &c->count_kept[i], err))
            return false;
        *count_at(c, i) = c->count_kept[i];
    }
    bool ok = journal_value_get(c->journal, REASON, &reason, &found, err)
              && journal_events_read(c->journal, 0, "state", over_see, &was_over, err);
    if (ok)
        snprintf(c->waste.reason, sizeof c->waste.reason, "%s", found ? buf_text(&reason) : "");
    if (ok && was_over)
        c->waste = (struct waste){ 0 };    // kept with the next group
    buf_release(&reason);
    return ok;
}

bool counts_keep(struct controller *c, struct error *err)
{
    bool waste_moved = false;
    for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
        int64_t now = *count_at(c, i);
        if (now == c->count_kept[i])
            continue;
        if (!number_put(c, counts[i].name, now, err))
            return false;
        c->count_kept[i] = now;
        waste_moved = waste_moved || counts[i].offset - offsetof(struct controller, waste) < sizeof c->waste;
    }
    return !waste_moved    // its reason changes only with it
           || (transaction(c, err) && journal_value_put(c->journal, REASON, c->waste.reason, strlen(c->waste.reason), err));
}

void totals_add(struct controller *c, const struct group_summary *group)
{
    c->total.n_tok += group->n_tok;
    c->total.n_sample += group->n_sample;
    c->total.n_timeout += group->n_timeout;
    c->total.n_error += group->n_error;
    struct batch_filter filter = run_config_filter(&c->now);
    if (waste_is(group, &filter))
        c->total.n_wasted += group->n_sample;
}
