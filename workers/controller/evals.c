#include "workers/controller/evals.h"
#include <stdio.h>
#include <string.h>
#include "protocol/run/journal.h"
#include "protocol/wire/message.h"

void evals_init(struct evals *e)
{
    *e = (struct evals){ .wanted = -1, .running = -1 };
}

static bool row_load(void *arg, const struct journal_eval *row)
{
    evals_put(arg, row->set, row->step, row->n, row->mean);
    return true;
}

bool evals_load(struct evals *e, struct journal *j, struct error *err)
{
    return journal_evals_read(j, row_load, e, err);
}

void evals_want(struct evals *e, int64_t step)
{
    e->wanted = step;
}

bool evals_due(const struct evals *e)
{
    return e->wanted >= 0 && e->running < 0;
}

void evals_begin(struct evals *e, int64_t step)
{
    e->running = step;
    e->wanted = -1;
}

bool evals_running(const struct evals *e)
{
    return e->running >= 0;
}

void evals_end(struct evals *e)
{
    e->running = -1;
}

void evals_interrupted(struct evals *e)
{
    if (e->running < 0)
        return;
    e->wanted = e->running;
    e->running = -1;
}

void evals_forgo(struct evals *e)
{
    e->wanted = -1;
}

bool evals_idle(const struct evals *e)
{
    return e->wanted < 0 && e->running < 0;
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

bool evals_any(const struct evals *e)
{
    return e->n > 0;
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
