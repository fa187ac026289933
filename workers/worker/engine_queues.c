/* engine_queues.c - what the loop and the engine's thread tell each other: tasks, reports, and what the engine is doing */
#include <stdio.h>
#include <inttypes.h>
#include <string.h>
#include "protocol/base/hold.h"
#include "workers/engine/data/dataset.h"
#include "workers/worker/engine_state.h"

/* ---- the queues, from the loop's side ---- */

struct report *engine_take(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    struct report *r = e->report_first;
    if (r) {
        e->report_first = r->next;
        if (!e->report_first)
            e->report_last = &e->report_first;
    }
    pthread_mutex_unlock(&e->lock);
    return r;
}

void engine_put(struct engine *e, struct task *t)
{
    pthread_mutex_lock(&e->lock);
    t->next = NULL;
    *e->task_last = t;
    e->task_last = &t->next;
    e->look.idle = false;
    e->look.taking = e->look.taking || t->kind == TASK_PUBLISH;
    if (t->kind == TASK_ITEMS) {
        e->look.gap = false;
        e->look.sampling = true;
        e->look.n_item += t->n_item;
    }
    pthread_cond_signal(&e->some);
    pthread_mutex_unlock(&e->lock);
}

void engine_answered(struct engine *e, struct report *r)
{
    pthread_mutex_lock(&e->lock);
    r->next = NULL;
    *e->turned_last = r;
    e->turned_last = &r->next;
    pthread_cond_signal(&e->some);
    pthread_mutex_unlock(&e->lock);
}

void engine_tails(struct engine *e, const struct tail *tail, int n)
{
    pthread_mutex_lock(&e->lock);
    e->n_tail = MIN(n, TAIL_MAX);
    memcpy(e->tail, tail, (size_t)e->n_tail * sizeof *tail);
    pthread_mutex_unlock(&e->lock);
}

void engine_dropped(struct engine *e, const int64_t *item, int n)
{
    pthread_mutex_lock(&e->lock);
    e->n_dropped = MIN(n, DROPPED_TOLD_MAX);
    memcpy(e->dropped, item, (size_t)e->n_dropped * sizeof *item);
    pthread_mutex_unlock(&e->lock);
}

void engine_backlog(struct engine *e, int64_t n)
{
    pthread_mutex_lock(&e->lock);
    e->n_backlog = n;
    pthread_cond_signal(&e->some);
    pthread_mutex_unlock(&e->lock);
}

void engine_look(struct engine *e, struct engine_look *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->look;
    pthread_mutex_unlock(&e->lock);
}

void engine_files(struct engine *e, struct buf *out)
{
    struct engine_look look;
    engine_look(e, &look);
    int n = look.n_row > 0 && e->prompts.data ? dataset_n_file(e->prompts.data) : 0;
    for (int i = 0; i < n && n > 1; i++)
        buf_fmt(out, "%" PRId64 " %s\n", dataset_file_line(e->prompts.data, i), dataset_file(e->prompts.data, i));
}

const uint8_t *engine_levels(struct engine *e, int64_t *n)
{
    struct engine_look look;
    engine_look(e, &look);
    const uint8_t *level = look.n_row > 0 ? e->prompts.level : NULL;
    *n = level ? look.n_row : 0;
    return level ? level : (const uint8_t *)"";
}

int64_t engine_lines(struct engine *e, int64_t (*pair)[2], int64_t max)
{
    int64_t n = 0, next = 0;
    struct engine_look look;
    engine_look(e, &look);
    if (look.n_row == 0 || !e->prompts.data)
        return -1;
    for (int64_t i = 0; i < look.n_row; i++, next++) {    // once n_row is visible, the prompts no longer change
        int64_t line = dataset_line(e->prompts.data, e->prompts.usable[i]);
        if (i > 0 && line == next)
            continue;
        if (n == max)
            return 0;
        pair[n][0] = i;
        pair[n++][1] = next = line;
    }
    return n;
}

/* ---- what tasks report ---- */

void engine_phase(struct engine *e, const char *phase)
{
    pthread_mutex_lock(&e->lock);
    snprintf(e->look.phase, sizeof e->look.phase, "%s", phase);
    e->look.progress++;
    pthread_mutex_unlock(&e->lock);
    e->wake(e->wake_ctx);
    hold_point(phase);
}

void engine_waits_for(struct engine *e, const char *what)
{
    pthread_mutex_lock(&e->lock);
    snprintf(e->look.waits_for, sizeof e->look.waits_for, "%s", what);
    pthread_mutex_unlock(&e->lock);
    e->wake(e->wake_ctx);
}

void engine_progress(struct engine *e, double n)
{
    pthread_mutex_lock(&e->lock);
    e->look.progress += n;
    pthread_mutex_unlock(&e->lock);
}

void engine_report(struct engine *e, struct report *r)
{
    pthread_mutex_lock(&e->lock);
    r->next = NULL;
    *e->report_last = r;
    e->report_last = &r->next;
    pthread_mutex_unlock(&e->lock);
    e->wake(e->wake_ctx);
}

void engine_done(struct engine *e, const struct task *t, struct report *r, const struct error *why)
{
    if (t->kind != TASK_SAVE && t->kind != TASK_EVAL)    // those may be about an earlier step than the engine's
        r->step = e->step;
    if (why) {
        report_fail(r, why);
        r->left = r->round > 0 && (why->code == ERR_CLOSED || why->code == ERR_TIMEOUT);
    }
    engine_report(e, r);
}
