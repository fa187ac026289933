#include "workers/schedule/evals.h"
#include <stdio.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/macros.h"
#include "protocol/record/journal.h"
#include "protocol/wire/message.h"

void evals_init(struct evals *e)
{
    *e = (struct evals){ .running = -1, .wanted = -1, .next = -1, .noted = { -1, -1, -1 } };
}

static bool row_load(void *arg, const struct journal_eval *row)
{
    evals_put(arg, row->set, row->step, row->n, row->mean);
    return true;
}

bool evals_load(struct evals *e, struct journal *j, struct error *err)
{
    e->n = 0;
    return journal_evals_read(j, row_load, e, err);
}

void evals_release(struct evals *e)
{
    eval_sets_free(e->sets);
    e->sets = NULL;
}

void evals_want(struct evals *e, int64_t step)
{
    if (e->wanted < 0 || e->wanted == step)
        e->wanted = step;
    else
        e->next = step;
}

bool evals_idle(const struct evals *e)
{
    return e->wanted < 0 && e->running < 0;
}

/* The first part that waits; -1: none does. */
static int part_waiting(const struct evals *e)
{
    for (int i = 0; e->running >= 0 && i < e->n_part; i++)
        if (e->part[i].worker == 0)
            return i;
    return -1;
}

int64_t evals_step(const struct evals *e)
{
    return e->running < 0 ? e->wanted : part_waiting(e) >= 0 ? e->running : -1;
}

static bool part_is_here(const struct evals *e, int i)
{
    return e->part[i].sampled && eval_sets_has(e->sets, i);
}

bool evals_at_risk(const struct evals *e)
{
    for (int i = 0; e->running >= 0 && i < e->n_part; i++)
        if (e->part[i].worker && !part_is_here(e, i))
            return true;
    return false;
}

bool evals_begin(struct evals *e, const struct run_config *at, int n_part, struct error *err)
{
    BUG_IF(n_part < 1 || n_part > EVAL_PART_MAX, "an evaluation in %d parts", n_part);
    if (!(e->sets = eval_sets_new(at, n_part, err)))
        return false;
    memset(e->part, 0, sizeof e->part);
    e->n_part = n_part;
    e->running = e->wanted;
    e->wanted = e->next;
    e->next = -1;
    e->id = MAX((int64_t)(clock_wall_s() * 1000), e->id + 1);    // not that of one that an earlier controller began
    return true;
}

int evals_part_give(struct evals *e, int worker, int64_t task)
{
    int i = part_waiting(e);
    BUG_IF(i < 0, "no part of an evaluation waits");
    e->part[i] = (struct eval_part){ .worker = worker, .task = task };
    return i;
}

void evals_lost(struct evals *e, int worker)
{
    for (int i = 0; e->running >= 0 && i < e->n_part; i++)
        if (e->part[i].worker == worker && !part_is_here(e, i))
            e->part[i] = (struct eval_part){ 0 };
}

bool evals_sampled(struct evals *e, int64_t task, const struct mval *told, struct error *err)
{
    for (int i = 0; e->running >= 0 && i < e->n_part; i++)
        if (e->part[i].worker && e->part[i].task == task) {
            e->part[i].sampled = true;
            return eval_sets_told(e->sets, told, err);
        }
    return true;    // it was given to somebody else meanwhile
}

bool evals_came(struct evals *e, const struct mval *told, struct error *err)
{
    if (e->running < 0 || mval_i64(mval_get(told, "eval"), -1) != e->id)
        return true;
    return eval_sets_take(e->sets, told, err);
}

bool evals_complete(const struct evals *e)
{
    if (e->running < 0)
        return false;
    for (int i = 0; i < e->n_part; i++)
        if (!e->part[i].sampled)
            return false;
    return eval_sets_complete(e->sets);
}

void evals_end(struct evals *e)
{
    evals_release(e);
    e->running = -1;
}

void evals_back(struct evals *e, int64_t step)
{
    if (e->running > step)
        evals_end(e);
    if (e->next > step)
        e->next = -1;
    if (e->wanted > step) {
        e->wanted = e->next;
        e->next = -1;
    }
}

void evals_forgo(struct evals *e)
{
    evals_end(e);
    e->wanted = e->next = -1;
}

void evals_put(struct evals *e, const char *set, int64_t step, int64_t n, double mean)
{
    int i = 0;
    while (i < e->n && strcmp(e->row[i].set, set) != 0)
        i++;
    if (i == EVAL_ROW_MAX)
        return;
    e->n = MAX(e->n, i + 1);
    e->row[i] = (struct eval_row){ .step = step, .n = n, .mean = mean };
    snprintf(e->row[i].set, sizeof e->row[i].set, "%s", set);
}

bool evals_have(const struct evals *e, const char *set, int64_t step)
{
    for (int i = 0; i < e->n; i++)
        if (strcmp(e->row[i].set, set) == 0)
            return e->row[i].step == step;
    return false;
}

void evals_write(const struct evals *e, struct msg_out *m)
{
    msg_map(m, "eval");
    for (int i = 0; i < e->n; i++) {
        msg_map(m, e->row[i].set);
        msg_i64(m, "step", e->row[i].step);
        msg_i64(m, "n", e->row[i].n);
        msg_f64(m, "mean", e->row[i].mean);
        msg_end(m);
    }
    msg_end(m);
}
