#include "workers/worker/evaluation.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include "protocol/base/clock.h"
#include "workers/engine/data/dataset.h"
#include "workers/engine/data/identity.h"
#include "workers/engine/reward/reward.h"
#include "workers/engine/sampler/generator.h"
#include "workers/worker/items.h"
#include "workers/worker/sampling.h"
#include "workers/worker/saving.h"

#define EVAL_WAIT_MS 600000      // for an answer of the environment
#define EVAL_BACKLOG_MAX 1024    // groups that wait for their scores; then it samples no more
#define EVAL_LOOK_MS 1000        // checkpoints are looked after meanwhile

/* A part of one set of an evaluation. */
struct evaluation {
    struct eval_set set;
    struct dataset *data;
    struct sampling sampling;
    struct eval_place place;
    struct eval_told *told;
    int64_t first_item;    // the item number of the set's first prompt
    int64_t next, step;    // row to submit next, and from one to the next of this part
};

/* Are the set's data those the run began with? */
static bool identity_check(const struct engine *e, const struct evaluation *x, struct error *err)
{
    char changed[256] = "", name[96];
    json_t *was = NULL, *is = json_object();
    snprintf(name, sizeof name, "eval_dataset %s", x->set.name);
    bool ok = identity_read(e->run_dir, &was, err) && (!was || identity_add(is, name, dataset_hash(x->data), err));
    if (ok && was && identity_changed(was, is, changed, sizeof changed))
        ok = error_set(err, ERR_DATA,
                       "'%.200s' has changed while the run goes on; put back what it was and go on with --resume, or, if that is "
                       "wanted, --resume with --accept-changed '%s'",
                       x->set.path, changed);
    json_decref(was);
    json_decref(is);
    return ok;
}

static bool evaluation_open(struct engine *e, const struct task *t, struct evaluation *x, struct error *err)
{
    struct dataset_columns columns = { x->set.prompt_column, x->set.answer_column, x->set.prompt_template };
    if (!(x->data = dataset_open(x->set.path, &columns, err)) || !identity_check(e, x, err))
        return false;
    int64_t n = dataset_n_row(x->data);
    if (x->set.limit > 0)
        n = MIN(n, x->set.limit);
    sampling_make(e, &t->config, x->set.temperature, &x->sampling);
    x->sampling.top_p = (float)x->set.top_p;
    x->sampling.max_new_tok = x->set.max_new_tokens;
    x->told->n = x->place.n = n;
    x->told->dropped = calloc((size_t)(n / x->step) + 1, sizeof *x->told->dropped);
    return x->told->dropped || error_set(err, ERR_NO_MEMORY, "no memory to evaluate %" PRId64 " prompts", n);
}

/* Submit prompts until the sampler is full or none is left. */
static bool prompts_submit(struct engine *e, struct evaluation *x, struct error *err)
{
    for (; x->next < x->place.n; x->next += x->step) {
        struct error full = { 0 };
        bool dropped;
        struct prompt_order o = {
            .data = x->data, .data_row = x->next, .prompt_row = x->next, .item = x->first_item + x->next, .n_sample = x->set.n, .level = -1
        };
        if (!prompt_submit(e, &o, &x->sampling, &dropped, &full)) {
            if (full.code == ERR_FULL)
                return true;
            *err = full;
            char where[512];
            return error_wrap(err, "%s", dataset_where(x->data, x->next, where, sizeof where));
        }
        if (dropped)
            x->told->dropped[x->told->n_dropped++] = x->next;
    }
    return true;
}

/* Send the finished groups to be scored. */
static bool groups_send(struct engine *e, struct evaluation *x, struct error *err)
{
    struct group *g;
    bool ending;
    while ((g = sampler_poll(e, &ending))) {
        struct report *r = group_report(e, g, e->made, x->data, g->prompt_row, err);
        if (!r)
            return false;
        r->eval = x->place;
        r->out = calloc((size_t)g->n_sample, sizeof *r->out);
        if (!r->out) {
            report_free(r);
            return error_set(err, ERR_NO_MEMORY, "no memory for a group's scores");
        }
        engine_report(e, r);
        engine_progress(e, 1);
    }
    return true;
}

/* Wait until the scorer has room: its answers come to the worker's loop, which says how many are missing. Without a limit of its own:
 * the loop gives up on a group after its tries. */
static void scorer_wait(struct engine *e)
{
    bool waits = true, told = false;
    while (waits) {
        int64_t n = 0;
        struct timespec end = clock_after(EVAL_LOOK_MS);
        pthread_mutex_lock(&e->lock);
        for (const struct report *r = e->report_first; r; r = r->next)
            n += r->eval.id != 0;
        waits = n + e->n_backlog >= EVAL_BACKLOG_MAX;
        if (waits && told)
            pthread_cond_timedwait(&e->some, &e->lock, &end);
        pthread_mutex_unlock(&e->lock);
        if (!waits)
            break;
        if (!told)
            engine_waits_for(e, "the scorer");
        told = true;
        saving_look(e, false);
    }
    if (told)
        engine_waits_for(e, "");
}

static bool set_sample(struct engine *e, const struct task *t, struct evaluation *x, struct error *err)
{
    if (!evaluation_open(e, t, x, err))
        return false;
    while (x->next < x->place.n || !sampler_empty(e)) {
        scorer_wait(e);
        if (!prompts_submit(e, x, err) || !sampler_wait(e, EVAL_WAIT_MS, err) || !sampler_step(e, err))
            return false;
        items_look(e);
        if (!groups_send(e, x, err))
            return false;
        saving_look(e, false);
    }
    return true;
}

bool evaluation_run(struct engine *e, struct task *t, struct report *r, struct error *err)
{
    struct eval_set set[EVAL_SET_MAX];
    int n = run_config_eval_sets(&t->config, set, err);
    if (n < 0)
        return false;
    if (!(r->told = calloc((size_t)n + 1, sizeof *r->told)))
        return error_set(err, ERR_NO_MEMORY, "no memory for an evaluation");
    for (int i = 0; i < n; i++) {
        struct evaluation x = { .set = set[i],
                                .place = { .id = t->eval },
                                .told = &r->told[r->n_told++],
                                .first_item = EVAL_ITEM_BASE * (i + 1),
                                .next = t->part,
                                .step = t->n_part };
        snprintf(x.place.set, sizeof x.place.set, "%s", set[i].name);
        snprintf(x.told->set, sizeof x.told->set, "%s", set[i].name);
        bool ok = set_sample(e, t, &x, err);
        dataset_free(x.data);
        if (!ok)
            return error_wrap(err, "while evaluating '%s'", set[i].name);
    }
    return true;
}
