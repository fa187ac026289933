#include "workers/worker/task.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "workers/engine/reward/environment_pool.h"
#include "workers/engine/reward/reward.h"

struct task *task_new(enum task_kind kind, struct error *err)
{
    struct task *t = calloc(1, sizeof *t);
    if (!t) {
        error_set(err, ERR_NO_MEMORY, "no memory for a task");
        return NULL;
    }
    t->kind = kind;
    return t;
}

void task_free(struct task *t)
{
    if (!t)
        return;
    for (int64_t i = 0; t->group && i < t->n_group; i++)
        group_free(t->group[i]);
    free(t->group);
    for (int64_t i = 0; t->item && i < t->n_item; i++)
        free(t->item[i].rubrics);
    free(t->item);
    free(t);
}

struct report *report_new(const struct task *t)
{
    struct report *r = calloc(1, sizeof *r);
    BUG_IF(!r, "no memory for a report of %zu bytes", sizeof *r);
    r->kind = REPORT_DONE;
    r->task_kind = t->kind;
    r->task = t->task;
    r->incarnation = t->incarnation;
    r->step = t->step;
    r->round = t->round;
    r->version = t->version;
    r->ok = true;
    for (int i = 0; i < METRIC_N; i++)
        r->metric[i] = NAN;
    return r;
}

void report_fail(struct report *r, const struct error *why)
{
    r->ok = false;
    r->code = why->code;
    snprintf(r->error, sizeof r->error, "%.500s", why->text);
}

void report_free(struct report *r)
{
    if (!r)
        return;
    for (int32_t i = 0; r->last && r->group && i < r->group->n_sample; i++)
        if (r->last[i] != r->text[i])
            free(r->last[i]);
    for (int32_t i = 0; r->text && r->group && i < r->group->n_sample; i++)
        free(r->text[i]);
    turn_job_free(r->turn);
    free(r->last);
    free(r->piece);
    free(r->text);
    free(r->row);
    free(r->out);
    free(r->histogram);
    free(r->left_item);
    free(r->rubrics);
    for (int i = 0; i < r->n_told; i++)
        free(r->told[i].dropped);
    free(r->told);
    free(r->prompt_text);
    group_free(r->group);
    free(r);
}
