/* run_stages.c - a run on the stages of a pipeline: what a step of pipeline.h's table does, and what passes between devices
 *
 * 1. A set (struct run_set) is a stage's from its forward to its backward step of a micro-batch. Both buffers between stages q and q + 1
 *    belong to q's set: `edge`, which q + 1 copies in its forward step, and `dedge`, which q + 1 fills in its backward step.
 * 2. A step begins when the steps that it waits for are done: on the host when they have been asked for (team_await), on the device
 *    after their marks. A stage's marks are used in turn; one that is set again stands for later work of the same stage.
 * 3. A shared tensor's gradient: stage 0 leaves the gradient by its stream and its tokens in the last stage's memory (`dembed`).
 * 4. With several ranks each stage exchanges its gradient with the same stage of the others (model_run_idle_of), whose other stages may
 *    wait for what it has not sent yet: whoever waits carries its exchange on. All ranks take their steps in one order, that of the table
 *    for the most micro-batches, so the earliest step of all that are waited for can always be taken. */
#include <stdlib.h>
#include "kernels/stopwatch.h"
#include "workers/engine/model/model_impl.h"
#include "workers/engine/model/pipeline.h"
#include "workers/engine/pass/run_impl.h"
#include "workers/engine/model/team_impl.h"

#define MARKS (4 * PIPELINE_STAGES_MAX)    // more steps than any stage is ahead of another
_Static_assert(PIPELINE_STAGES_MAX == TEAM_MAX, "a stage is a rank");

struct stage_runs {
    struct model_run *whole;    // the run that callers have
    struct team *team;
    int n;
    struct model_run *run[TEAM_MAX];
    struct mark *mark[TEAM_MAX][MARKS];
    struct stopwatch *idle[TEAM_MAX];
    int64_t shared_tok[PIPELINE_STAGES_MAX + 1];    // tokens whose gradient is in each dembed
    struct pipeline plan;                           // of the last work
};

/* ---- life */
static struct run_limits stage_limits(const struct model *stage, const struct run_limits *lim)
{
    struct run_limits l = *lim;
    l.mem = NULL;
    l.n_set = pipeline_sets(stage->n_stage, stage->stage);
    l.n_shared = lim->train ? stage->n_shared : 0;
    return l;
}

size_t model_stage_run_bytes(const struct model *stage, const struct run_limits *lim)
{
    struct run_limits l = stage_limits(stage, lim);
    return model_run_bytes(stage, &l);
}

static bool stage_open(void *ctx, int q, struct error *err)
{
    struct stage_runs *s = ctx;
    struct model *stage = team_rank(s->team, q)->slice;
    struct run_limits lim = stage_limits(stage, &s->whole->lim);
    lim.head_rows = run_head_rows(s->whole->m, &lim);    // as on one device, whichever has the head: a sum's chunks follow from it
    for (int i = 0; i < MARKS; i++)
        if (!(s->mark[q][i] = mark_new(stage->dev, err)))
            return false;
    if (!(s->idle[q] = stopwatch_new(stage->dev, STOPWATCH_DEVICE, err)))
        return false;
    return (s->run[q] = model_run_new(stage, &lim, err)) != NULL;
}

static bool stages_open(struct model_run *r, struct error *err)
{
    struct stage_runs *s = r->stages = calloc(1, sizeof *s);
    if (!s)
        return error_set(err, ERR_NO_MEMORY, "no memory for a run in stages");
    s->whole = r;
    s->team = r->m->team;
    s->n = team_size(s->team);
    return team_call(s->team, stage_open, s, err);
}

static void stages_close(struct model_run *r)
{
    struct stage_runs *s = r->stages;
    if (!s)
        return;
    for (int q = 0; q < s->n; q++) {
        for (int i = 0; i < MARKS; i++)
            mark_free(team_rank(s->team, q)->dev, s->mark[q][i]);
        stopwatch_free(s->idle[q]);
        model_run_free(s->run[q]);
    }
    pipeline_release(&s->plan);
    free(s);
}

static void stages_bind(struct model_run *r, struct model *m)
{
    for (int q = 0; q < r->stages->n; q++)
        model_run_bind(r->stages->run[q], team_rank(m->team, q)->slice);
}

/* ---- steps */
struct working {
    struct stage_runs *s;
    const struct model_work *w;
};

/* The run of a stage's device. */
static struct model_run *run_of(struct stage_runs *s, int q, int rank)
{
    return s->run[q]->form->device(s->run[q], rank);
}

static struct model_run *stages_device(struct model_run *r, int q)
{
    int n = model_n_device(r->stages->run[0]->m);
    return run_of(r->stages, q / n, q % n);
}

static int set_of(const struct working *k, int q, int64_t micro)
{
    return (int)(micro % k->s->plan.stage[q].n_set);
}

/* Where the stage's gradient goes. */
static struct model_grad grad_of(const struct working *k, int q)
{
    const struct model_grad *slice = k->w->grad->slice + q * model_n_device(k->s->run[q]->m);
    struct model_grad g = *slice;    // of a stage of one device
    g.slice = slice;
    g.set = false;    // several are under way at once
    return g;
}

static bool forward_do(const struct working *k, int q, int64_t micro, struct error *err)
{
    struct model_run *r = k->s->run[q];
    int set = set_of(k, q, micro);
    struct model_batch b;
    r->form->set_use(r, set);
    if (!k->w->batch(k->w->ctx, q, micro, &b, err) || !run_batch_put(r, &b, err))
        return false;
    r->set[set].n_tok = r->n_tok;
    r->set[set].n_seq = r->n_seq;
    r->set[set].seen = r->seen;
    struct pass p = { .n = b.n_tok, .token = r->token, .pos = r->pos };
    for (int i = 0; i < model_n_device(r->m) && q > 0; i++)
        run_of(k->s, q, i)->input = run_of(k->s, q - 1, i)->set[set_of(k, q - 1, micro)].edge;
    return run_forward(r, &p, err) && (k->w->grad || q + 1 < k->s->n || k->w->finish(k->w->ctx, micro, r, NULL, err));
}

/* Where the gradient by the stream goes that the stage reads: to the stage before, or from the first one to the shared tensor's. */
static void gradient_goes(const struct working *k, int q, int64_t micro)
{
    struct stage_runs *s = k->s;
    for (int i = 0; i < model_n_device(s->run[q]->m); i++) {
        struct model_run *r = run_of(s, q, i), *last = run_of(s, s->n - 1, i);
        if (q > 0) {
            r->dinput = run_of(s, q - 1, i)->set[set_of(k, q - 1, micro)].dedge;
        } else if (s->plan.n_shared > 0) {
            int64_t slot = micro % s->plan.n_shared, at = slot * r->lim.max_tok;
            s->shared_tok[slot] = s->run[q]->n_tok;
            r->dinput = (char *)last->dembed + (size_t)(at * r->m->c.d_model) * dtype_size(r->m->dtype);
            r->dinput_token = last->dembed_token + at;
        }
    }
}

static void shared_use(const struct working *k, int q, int64_t micro)
{
    for (int i = 0; i < model_n_device(k->s->run[q]->m) && k->s->plan.n_shared > 0; i++) {
        struct model_run *r = run_of(k->s, q, i);
        r->dhead = r->dheads + micro % k->s->plan.n_shared * r->m->c.vocab * r->m->c.d_model;
    }
}

static bool backward_do(const struct working *k, int q, int64_t micro, struct error *err)
{
    struct model_run *r = k->s->run[q];
    struct model_grad g = grad_of(k, q);
    r->form->set_use(r, set_of(k, q, micro));
    gradient_goes(k, q, micro);
    if (q + 1 == k->s->n) {    // it has the head
        shared_use(k, q, micro);
        return k->w->finish(k->w->ctx, micro, r, &g, err);
    }
    return r->form->layers_bwd(r, &g, err);
}

/* The shared tensor's gradient in a micro-batch, of which the head's part is there. */
struct embedding {
    const struct model_grad *g;
    int64_t slot, n_tok;
};
static bool embed_of(void *ctx, struct model_run *r, struct error *err)
{
    const struct embedding *e = ctx;
    int64_t at = e->slot * r->lim.max_tok;
    return embed_grad(r, &e->g->slice[r->rank], (char *)r->dembed + (size_t)(at * r->m->c.d_model) * dtype_size(r->m->dtype),
                      r->dembed_token + at, e->n_tok, err);
}
static bool embed_do(const struct working *k, int q, int64_t micro, struct error *err)
{
    struct model_run *r = k->s->run[q];
    struct model_grad g = grad_of(k, q);
    struct embedding e = { &g, micro % k->s->plan.n_shared, k->s->shared_tok[micro % k->s->plan.n_shared] };
    shared_use(k, q, micro);
    return r->form->each(r, embed_of, &e, err);
}

/* Stage q waits until others have done what each of these says, on the host and on the device; each of its devices carries its exchange on
 * meanwhile. */
struct awaiting {
    struct stage_runs *s;
    const struct stage_wait *wait;
    int n;
};
static bool steps_await(void *ctx, struct model_run *r, struct error *err)
{
    const struct awaiting *a = ctx;
    for (int i = 0; i < a->n; i++) {
        const struct stage_wait *w = &a->wait[i];
        if (w->stage >= 0
            && (!team_await(a->s->team, w->stage, w->step + 1, r->idle, r->idle_ctx, err)
                || !device_after(r->m->dev, a->s->mark[w->stage][w->step % MARKS], err)))
            return false;
    }
    return true;
}
static bool waits_do(struct stage_runs *s, int q, const struct stage_wait *wait, int n, struct error *err)
{
    struct model_run *r = s->run[q];
    struct awaiting a = { s, wait, n };
    bool any = false;
    for (int i = 0; i < n; i++)
        any = any || wait[i].stage >= 0;
    return !any || (stopwatch_begin(s->idle[q], err) && r->form->each(r, steps_await, &a, err) && stopwatch_end(s->idle[q], err));
}

/* A stage that is done stands still until all are. */
static bool end_await(struct stage_runs *s, int q, struct error *err)
{
    struct stage_wait wait[TEAM_MAX];
    for (int other = 0; other < s->n; other++)
        wait[other] = (struct stage_wait){ other == q ? -1 : other, s->plan.stage[other].n_step - 1 };
    return waits_do(s, q, wait, s->n, err);
}

/* One stage's list, from its beginning to its end. */
static bool stage_main(void *ctx, int q, struct error *err)
{
    static bool (*const step_do[])(const struct working *, int, int64_t, struct error *) = {
        [STAGE_FORWARD] = forward_do, [STAGE_BACKWARD] = backward_do, [STAGE_EMBED] = embed_do
    };
    const struct working *k = ctx;
    struct stage_runs *s = k->s;
    struct device *dev = team_rank(s->team, q)->dev;
    const struct stage_list *l = &s->plan.stage[q];
    for (int64_t i = 0; i < l->n_step; i++) {
        const struct stage_step *step = &l->step[i];
        if (!waits_do(s, q, step->wait, 2, err) || !step_do[step->kind](k, q, step->micro, err)
            || !mark_set(dev, s->mark[q][i % MARKS], err))
            return false;
        team_done(s->team, q);
    }
    return end_await(s, q, err);
}

struct idle_taken {
    struct stage_runs *s;
    double *idle_s;
};
static bool idle_take(void *ctx, int q, struct error *err)
{
    struct idle_taken *i = ctx;
    return stopwatch_take(i->s->idle[q], &i->idle_s[q], err);
}
static bool stages_idle_take(struct model_run *r, double *idle_s, struct error *err)
{
    return team_call(r->stages->team, idle_take, &(struct idle_taken){ r->stages, idle_s }, err);
}

/* Where weights are in shards, bind the embedding: the first stage reads it where it is, and it stays there while the stages work. */
static bool table_bind(void *m, int q, struct error *err)
{
    struct model *has = team_slice(m, q);
    return !has->own.embed || model_bind(has, 0, err);
}

static bool stages_work(struct model_run *r, const struct model_work *w, struct error *err)
{
    struct stage_runs *s = r->stages;
    struct working k = { s, w };
    if (s->plan.n_micro != w->n_micro || s->plan.backward != (w->grad != NULL) || s->plan.n_stage != s->n) {
        if (!pipeline_make(&s->plan, s->n, w->n_micro, w->grad, r->m->c.tied, err) || !pipeline_check(&s->plan, err)) {
            s->plan.n_stage = 0;
            return false;
        }
    }
    return (!model_keeps_shards(team_slice(r->m, 0)) || model_team_call(r->m, table_bind, r->m, err))
           && team_call(s->team, stage_main, &k, err);
}

const struct run_form run_stages = { .spread = true,
                                     .open = stages_open,
                                     .close = stages_close,
                                     .bind = stages_bind,
                                     .device = stages_device,
                                     .idle_take = stages_idle_take,
                                     .work = stages_work };
