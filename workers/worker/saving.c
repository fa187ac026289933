#include "workers/worker/saving.h"
#include <stdio.h>
#include "protocol/base/buf.h"
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "workers/engine/trainer/checkpoint.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/trainer/state.h"
#include "workers/worker/loading.h"

/* On the writer's thread. */
static void checkpoint_written(void *ctx)
{
    struct engine *e = ctx;
    pthread_mutex_lock(&e->lock);
    e->written = true;
    pthread_cond_signal(&e->some);
    pthread_mutex_unlock(&e->lock);
}

bool saving_prepare(struct engine *e, struct error *err)
{
    if (e->saving.writer)
        return true;
    if (!(e->saving.writer = checkpoint_writer_new(err)))
        return false;
    checkpoint_writer_notify(e->saving.writer, checkpoint_written, e);
    return true;
}

/* Bring this trainer's shards to the first one, which waits for them; once for each checkpoint. */
static bool shards_give(struct engine *e, struct task *t, struct error *err)
{
    if (t->save != e->saves && !checkpoint_give(e->trainer, err))
        return false;
    pthread_mutex_lock(&e->lock);
    e->look.saves = e->saves = t->save;
    pthread_mutex_unlock(&e->lock);
    engine_done(e, t, report_new(t), NULL);
    task_free(t);
    return true;
}

static bool checkpoint_begin(struct engine *e, struct task *t, struct report *r, struct error *err)
{
    int64_t before = clock_ns();
    r->round = e->round;    // a snapshot also takes what the other trainers keep
    if (!e->ranks && e->config.num_trainers > 1)
        return error_set(err, ERR_CLOSED, "the trainers have parted");
    if (e->rank > 0)
        return shards_give(e, t, err);
    struct checkpoint_info info = { .step = t->step, .tokenizer_dir = run_config_tokenizer(&e->config), .run = e->run_id };
    if (!checkpoint_start(e->saving.writer, e->trainer, t->path, &info, err))
        return false;
    e->saving.stall_s = (double)(clock_ns() - before) / 1e9;
    e->saving.began_ms = clock_ms();
    e->saving.task = t;
    return true;
}

bool saving_run(struct engine *e, struct task *t, struct report *r, struct error *err)
{
    bool ok = checkpoint_begin(e, t, r, err);
    if (!ok && e->trainer && trainer_gives_first(e->trainer))    // the first one waits for the others' shards, and they for it
        trainers_give_up(e, err);
    return ok;
}

/* Remove old checkpoints; the report notes what the operator should know. */
static void saving_prune(struct engine *e, const struct task *t, struct report *r)
{
    struct error why;
    struct buf links = BUF_INIT;
    if (!checkpoint_prune(t->path, t->config.keep_checkpoints, e->run_id, &links, &why))
        snprintf(r->note, sizeof r->note, "old checkpoints stay: %.400s", why.text);
    else if (links.len > 0)
        snprintf(r->note, sizeof r->note, "an old checkpoint was a link: the link is removed, and the files that it led to stay (%.300s)",
                 buf_text(&links));
    if (r->note[0])
        log_warn("%s", r->note);
    buf_release(&links);
}

void saving_look(struct engine *e, bool wait)
{
    bool ok = true;
    char path[4096] = "";
    struct error err = { 0 };
    struct task *t = e->saving.task;
    if (!t || (!wait && !checkpoint_poll(e->saving.writer, &ok, path, &err)))
        return;
    if (wait)
        ok = checkpoint_wait(e->saving.writer, &err);
    struct report *r = report_new(t);
    r->metric[M_CHECKPOINT_STALL_S] = e->saving.stall_s;
    r->metric[M_CHECKPOINT_WRITE_S] = (double)(clock_ms() - e->saving.began_ms) / 1000;
    log_info("checkpoint %s stall_s=%.3f write_s=%.3f", ok ? "written" : "failed", r->metric[M_CHECKPOINT_STALL_S],
             r->metric[M_CHECKPOINT_WRITE_S]);
    if (ok)
        saving_prune(e, t, r);
    engine_done(e, t, r, ok ? NULL : &err);
    task_free(t);
    e->saving.task = NULL;
}

void saving_end(struct engine *e)
{
    struct error err;
    if (e->saving.task && !checkpoint_wait(e->saving.writer, &err))
        log_warn("%s", err.text);
    checkpoint_writer_free(e->saving.writer);
    task_free(e->saving.task);
    e->saving = (struct saving){ 0 };
}
