#include "workers/worker/evaluation.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include "protocol/base/buf.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "workers/engine/data/dataset.h"
#include "workers/engine/data/identity.h"
#include "workers/engine/reward/reward.h"
#include "workers/engine/sampler/eval.h"
#include "workers/engine/sampler/generator.h"
#include "workers/worker/episodes.h"
#include "workers/worker/items.h"
#include "workers/worker/saving.h"

#define EVAL_ITEM_BASE ((int64_t)1 << 40)    // evaluations number their items from here, out of the range of training items
#define EVAL_WAIT_MS 600000                  // for the scores of an evaluation

/* One set of an evaluation. */
struct evaluation {
    struct eval_set set;
    struct dataset *data;
    struct sampling sampling;
    struct eval_tally tally;
    int64_t first_item;        // the item number of its first prompt
    int64_t n_prompt, next;    // prompts, and the next to submit
    int64_t n_out;             // groups submitted and not tallied
    struct buf lines;          // records
    const char *run;           // id
    int64_t serial;            // of it among all sets that this process has begun to evaluate
};

/* ---- scores ---- */

static void sample_record(struct evaluation *x, const struct report *r, int32_t i, const json_t *row)
{
    struct error err;
    const struct sample *s = &r->group->sample[i];
    struct eval_record record = { .prompt = r->prompt_text,
                                  .prediction = r->text[i],
                                  .prediction_len = (int64_t)strlen(r->text[i]),
                                  .row = row,
                                  .prompt_row = r->group->prompt_row,
                                  .sample = i,
                                  .n_tok = s->n_tok,
                                  .finish = s->finish,
                                  .out = &r->out[i],
                                  .run = x->run };
    if (!eval_record_line(&x->lines, &record, &err))
        log_warn("an evaluation's record: %s", err.text);
}

static void group_tally(struct evaluation *x, const struct report *r)
{
    json_error_t je;
    json_t *row = json_loads(r->row, 0, &je);
    for (int32_t i = 0; i < r->group->n_sample; i++) {
        const struct sample *s = &r->group->sample[i];
        eval_tally_add(&x->tally, r->group->prompt_row, &r->out[i], s->n_tok, s->finish);
        sample_record(x, r, i, row);
    }
    json_decref(row);
    x->n_out--;
}

/* Take the groups of this set that have come back scored. wait: wait until some group has. */
static bool scores_collect(struct engine *e, struct evaluation *x, bool wait, struct error *err)
{
    struct timespec end = clock_after(EVAL_WAIT_MS);
    pthread_mutex_lock(&e->lock);
    bool late = false;
    while (wait && !e->scored && !late)
        late = pthread_cond_timedwait(&e->some, &e->lock, &end) != 0;
    struct report *list = e->scored;
    e->scored = NULL;
    pthread_mutex_unlock(&e->lock);
    if (late && !list)
        return error_set(err, ERR_TIMEOUT, "the scorer has not answered for %d s in an evaluation", EVAL_WAIT_MS / 1000);
    while (list) {
        struct report *r = list;
        list = r->next;
        if (r->evaluation == x->serial) {    // else it was at the scorer when an earlier evaluation failed
            group_tally(x, r);
            engine_progress(e, 1);
        }
        report_free(r);
    }
    return true;
}

/* ---- sampling ---- */

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
    x->n_prompt = dataset_n_row(x->data);
    if (x->set.limit > 0)
        x->n_prompt = MIN(x->n_prompt, x->set.limit);
    sampling_make(e, &t->config, x->set.temperature, &x->sampling);
    x->sampling.top_p = (float)x->set.top_p;
    x->sampling.max_new_tok = x->set.max_new_tokens;
    return eval_tally_init(&x->tally, x->n_prompt, x->set.n, err);
}

static void evaluation_close(struct evaluation *x)
{
    eval_tally_release(&x->tally);
    buf_release(&x->lines);
    dataset_free(x->data);
}

/* Submit prompts until the sampler is full or none is left. */
static bool prompts_submit(struct engine *e, struct evaluation *x, struct error *err)
{
    for (; x->next < x->n_prompt; x->next++) {
        struct error full = { 0 };
        bool dropped;
        struct prompt_order o = {
            .data = x->data, .data_row = x->next, .prompt_row = x->next, .item = x->first_item + x->next, .n_sample = x->set.n
        };
        if (!prompt_submit(e, &o, &x->sampling, &dropped, &full)) {
            if (full.code == ERR_FULL)
                return true;
            *err = full;
            char where[512];
            return error_wrap(err, "%s", dataset_where(x->data, x->next, where, sizeof where));
        }
        x->n_out += !dropped;
    }
    return true;
}

/* Send the finished groups to be scored. */
static bool groups_send(struct engine *e, struct evaluation *x, struct error *err)
{
    struct group *g;
    while ((g = sampler_poll(e))) {
        struct report *r = group_report(e, g, x->data, g->prompt_row, err);
        if (!r)
            return false;
        r->eval = true;
        r->evaluation = x->serial;
        r->out = calloc((size_t)g->n_sample, sizeof *r->out);
        if (!r->out) {
            report_free(r);
            return error_set(err, ERR_NO_MEMORY, "no memory for a group's scores");
        }
        engine_report(e, r);
    }
    return true;
}

static bool set_evaluate(struct engine *e, const struct task *t, struct evaluation *x, struct error *err)
{
    if (!evaluation_open(e, t, x, err))
        return false;
    while (x->next < x->n_prompt || !sampler_empty(e)) {
        if (!prompts_submit(e, x, err) || !sampler_wait(e, EVAL_WAIT_MS, err) || !sampler_step(e, err))
            return false;
        items_look(e);
        if (!groups_send(e, x, err) || !scores_collect(e, x, false, err))
            return false;
        saving_look(e, false);
    }
    while (x->n_out > 0)
        if (!scores_collect(e, x, true, err))
            return false;
    return true;
}

/* ---- the task ---- */

static void records_write(const struct engine *e, const struct task *t, const struct evaluation *x)
{
    char dir[4200], path[4400];
    struct error err;
    snprintf(dir, sizeof dir, "%s/eval", e->run_dir);
    bool own = e->config.eval_save_dir[0] != 0;
    if (own)
        snprintf(dir, sizeof dir, "%s", e->config.eval_save_dir);
    if (!eval_file_path(path, sizeof path, dir, own ? e->config.project : NULL, x->set.name, t->step, &err))
        goto failed;
    char *slash = strrchr(path, '/');
    *slash = 0;
    bool made = dir_make(path, 0755, &err);
    *slash = '/';
    if (made && file_write(path, buf_text(&x->lines), x->lines.len, &err))
        return;
failed:
    log_warn("an evaluation's records are not kept: %s", err.text);
}

/* Its results: correct answers over scored samples, and with several samples per prompt pass@k for 2, 4, ... and all of them. most: how
 * many results there may be by then. */
static void results_put(struct report *r, const struct evaluation *x, int most)
{
    int64_t k[EVAL_K_MAX];
    int n = eval_ks(x->set.n, k);
    snprintf(r->evals[r->n_eval].set, sizeof r->evals[0].set, "%s", x->set.name);
    r->evals[r->n_eval].n = x->n_prompt;
    r->evals[r->n_eval++].mean = eval_mean(&x->tally);
    for (int i = 0; i < n && r->n_eval < most; i++) {
        double mean = eval_pass_at(&x->tally, k[i]);
        if (k[i] == 1 || isnan(mean) || !eval_pass_name(r->evals[r->n_eval].set, x->set.name, k[i]))
            continue;
        r->evals[r->n_eval].n = x->n_prompt;
        r->evals[r->n_eval++].mean = mean;
    }
}

bool evaluation_run(struct engine *e, struct task *t, struct report *r, struct error *err)
{
    struct eval_set set[EVAL_SET_MAX];
    int n = run_config_eval_sets(&t->config, set, err);
    if (n < 0)
        return false;
    for (int i = 0; i < n; i++) {
        struct evaluation x = { .set = set[i], .first_item = EVAL_ITEM_BASE * (i + 1), .run = e->run_id, .serial = ++e->n_evaluation };
        bool ok = set_evaluate(e, t, &x, err);
        if (ok) {
            results_put(r, &x, EVAL_ROW_MAX - (n - 1 - i));    // there is room for each later set's mean
            records_write(e, t, &x);
        }
        evaluation_close(&x);
        if (!ok)
            return error_wrap(err, "while evaluating '%s'", set[i].name);
    }
    return true;
}
