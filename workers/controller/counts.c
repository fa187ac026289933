#include "workers/controller/counts.h"
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "workers/controller/controller.h"

#define REASON "waste_reason"    // the journal's name of waste.reason

/* The journal's name of each number. */
static const struct count {
    const char *name;
    size_t offset;
} counts[] = {
    { "tokens", offsetof(struct counts, total.n_tok) },
    { "samples", offsetof(struct counts, total.n_sample) },
    { "score_timeouts", offsetof(struct counts, total.n_timeout) },
    { "score_errors", offsetof(struct counts, total.n_error) },
    { "wasted", offsetof(struct counts, total.n_wasted) },
    { "lent_refused", offsetof(struct counts, total.n_refused) },
    { "waste_samples", offsetof(struct counts, waste.n_sample) },
    { "waste_groups", offsetof(struct counts, waste.n_group) },
    { "waste_format", offsetof(struct counts, waste.n_format) },
    { "waste_right", offsetof(struct counts, waste.n_right) },
    { "waste_unknown", offsetof(struct counts, waste.n_unknown) },
    { "waste_left_out", offsetof(struct counts, waste.n_left_out) },
    { "waste_timeouts", offsetof(struct counts, waste.n_timeout) },
    { "waste_errors", offsetof(struct counts, waste.n_error) },
    { "waste_told", offsetof(struct counts, waste.told) },
};
_Static_assert(ARRAY_SIZE(counts) <= COUNT_MAX, "COUNT_MAX is too small");

static int64_t *count_at(struct counts *n, size_t i)
{
    return (int64_t *)(void *)((char *)n + counts[i].offset);
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
        if (!number_get(c, counts[i].name, 0, &c->counts.kept[i], err))
            return false;
        *count_at(&c->counts, i) = c->counts.kept[i];
    }
    bool ok = journal_value_get(c->journal, REASON, &reason, &found, err)
              && journal_events_read(c->journal, 0, "state", over_see, &was_over, err);
    if (ok)
        snprintf(c->counts.waste.reason, sizeof c->counts.waste.reason, "%s", found ? buf_text(&reason) : "");
    if (ok && was_over)
        c->counts.waste = (struct waste){ 0 };    // kept with the next group
    buf_release(&reason);
    return ok;
}

bool counts_keep(struct controller *c, struct error *err)
{
    bool waste_moved = false;
    for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
        int64_t now = *count_at(&c->counts, i);
        if (now == c->counts.kept[i])
            continue;
        if (!number_put(c, counts[i].name, now, err))
            return false;
        c->counts.kept[i] = now;
        waste_moved = waste_moved || counts[i].offset - offsetof(struct counts, waste) < sizeof c->counts.waste;
    }
    return !waste_moved    // its reason changes only with it
           || (transaction(c, err) && journal_value_put(c->journal, REASON, c->counts.waste.reason, strlen(c->counts.waste.reason), err));
}

void counts_add(struct counts *n, const struct group_summary *group, const struct batch_filter *filter)
{
    n->total.n_tok += group->n_tok;
    n->total.n_sample += group->n_sample;
    n->total.n_timeout += group->n_timeout;
    n->total.n_error += group->n_error;
    if (waste_is(group, filter))
        n->total.n_wasted += group->n_sample;
}
