/* What must hold after every turn of the loop: the invariants of controller.h and ledger.h. It is checked in builds with a sanitizer, which
 * tests use that kill processes and make runs return. */
#include <inttypes.h>
#include "kernels/collective/collective.h"
#include "workers/controller/controller.h"

#ifdef RC_CHECKS
/* Invariants 1 and 2: nothing is promised that the journal does not have, and the journal has made as many steps as the run says. */
static void journal_check(const struct controller *c)
{
    struct error err = { 0 };
    int64_t step;
    BUG_IF(c->answers.n > 0, "%d answers wait after those that were committed have gone", c->answers.n);
    if (c->in_transaction || run_is_over(c))    // one that cannot be committed has let the run fail
        return;
    if (journal_last_step(c->journal, &step, &err))
        BUG_IF(step != c->step, "the run is at step %" PRId64 ", and the journal at %" PRId64, c->step, step);
}

/* Invariant 3: trainers that are in step have different ranks, and what has begun in their round is no later than the run's step. Without
 * such a trainer the numbers may be of a round before a resume with another number of trainers, or of a return that has failed. */
static void trainers_check(const struct controller *c)
{
    const struct rounds *r = &c->rounds;
    bool seen[COLLECTIVE_RANK_MAX] = { false };
    for (int i = 0; i < c->workers.n; i++) {
        const struct worker *w = &c->workers.worker[i];
        if (!w->name[0] || w->rank < 0 || w->rank >= COLLECTIVE_RANK_MAX || !trainer_in_step(c, w))
            continue;
        BUG_IF(seen[w->rank], "two trainers of rank %" PRId64 " are in step", w->rank);
        seen[w->rank] = true;
        BUG_IF(r->begun > c->step, "a trainer has begun step %" PRId64 ", and the run is at %" PRId64, r->begun + 1, c->step);
        BUG_IF(r->saving > c->step, "a checkpoint of step %" PRId64 " has begun, and the run is at %" PRId64, r->saving, c->step);
    }
}

/* Invariant 4: each incarnation that is listed began after a later step than the one before it, and the last one is the present one. */
static void lineage_check(const struct controller *c)
{
    const struct lineage *l = &c->lineage;
    for (int64_t i = 1; i < l->n; i++)
        BUG_IF(l->part[i].from <= l->part[i - 1].from || l->part[i].incarnation <= l->part[i - 1].incarnation,
               "incarnation %" PRId64 " from step %" PRId64 " follows %" PRId64 " from %" PRId64, l->part[i].incarnation, l->part[i].from,
               l->part[i - 1].incarnation, l->part[i - 1].from);
    BUG_IF(l->n > 0 && l->part[l->n - 1].incarnation != c->incarnation,
           "the run is in incarnation %" PRId64 ", and the last one that made steps is %" PRId64, c->incarnation,
           l->part[l->n - 1].incarnation);
}

/* Parts of an evaluation are with workers that are known. */
static void evals_check(const struct controller *c)
{
    const struct evals *e = &c->evals;
    for (int i = 0; i < e->n_part; i++)
        BUG_IF(e->part[i].worker < 0 || e->part[i].worker > c->workers.n, "part %d of an evaluation is at worker %d of %d", i,
               e->part[i].worker, c->workers.n);
}

void controller_check(const struct controller *c)
{
    journal_check(c);
    trainers_check(c);
    lineage_check(c);
    evals_check(c);
    if (c->ledger)
        ledger_check(c->ledger);
}
#else
void controller_check(UNUSED const struct controller *c)
{
}
#endif
