#include "workers/controller/evaluating.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <jansson.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "workers/controller/controller.h"
#include "workers/controller/weights.h"
#include "workers/controller/workers.h"

#define HEARD_MS 60000    // a producer unheard for so long is not counted on

/* The journal's numbers of the steps that are being or to be evaluated; -1: none. */
static const char *const evaluation_names[] = { "evaluation running", "evaluation wanted", "evaluation next" };

/* A producer of this host with weights of its own, which no training changes. */
static bool samples_apart(const struct worker *w)
{
    return w->start && w->produces && !w->consumes && !worker_is_away(w) && clock_ms() - w->heard_ms < HEARD_MS;
}

static bool anybody_apart(const struct controller *c)
{
    for (int i = 0; i < c->workers.n; i++)
        if (samples_apart(&c->workers.worker[i]))
            return true;
    return false;
}

/* Free-running, producers have the newest weights only, and the first trainer evaluates. */
static bool first_alone(const struct controller *c)
{
    return c->config.free_running || run_config_posted(&c->config);
}

/* Does it ever take parts of evaluations? A node has no evaluation sets. */
static bool evaluates(const struct controller *c, const struct worker *w)
{
    return !worker_is_away(w) && (w->rank == 0 ? w->produces || run_config_first_evaluates(&c->config) : w->produces && !first_alone(c));
}

bool evaluating_can(const struct controller *c, const struct worker *w)
{
    return evaluates(c, w) && w->version == evals_step(&c->evals) && !version_undone(c, w) && (!w->consumes || trainer_in_step(c, w));
}

bool evaluating_shares(const struct controller *c, int64_t version)
{
    return !first_alone(c) && run_config_travels(&c->config) && version == evals_step(&c->evals) && anybody_apart(c);
}

bool evaluating_reach(const struct controller *c, const struct worker *w)
{
    int64_t version = evals_step(&c->evals);
    if (w->consumes)    // its own, for the copy that it samples with
        return evaluates(c, w) && version == c->step && trainer_in_step(c, w) && evaluating_holds_step(c);
    return samples_apart(w) && evaluating_shares(c, version) && weights_coming(c, w, version);
}

bool evaluating_holds_step(const struct controller *c)
{
    const struct evals *e = &c->evals;
    int64_t version = evals_step(e);
    if (e->wanted >= 0)    // one after the other: it must have begun before a step makes the next one due
        return true;
    if (version < 0)    // a worker with a part may die: then another one needs these weights
        return evals_at_risk(e) && !weights_outlive_step(c);
    return !(evaluating_shares(c, version) && weights_shared(c, version) && weights_outlive_step(c));
}

/* ---- its beginning and end ---- */

/* One that evaluates alone takes all at once; of several, the quick ones take more parts. */
static int parts_of(const struct controller *c)
{
    int n = 0;
    for (int i = 0; i < c->workers.n && !first_alone(c); i++) {
        const struct worker *w = &c->workers.worker[i];
        n += w->start && evaluates(c, w) && clock_ms() - w->heard_ms < HEARD_MS;
    }
    return n <= 1 ? 1 : 2 * n;
}

bool evaluating_begin(struct controller *c, struct error *err)
{
    if (c->evals.running >= 0)
        return true;
    struct run_config *at = malloc(sizeof *at);
    if (!at)
        return error_set(err, ERR_NO_MEMORY, "no memory");
    config_at(c, c->evals.wanted, INT64_MAX, at);
    bool ok = evals_begin(&c->evals, at, parts_of(c), err);
    free(at);
    return ok;
}

static bool result_note(struct controller *c, int64_t step, const char *name, int64_t n, double mean, struct error *err)
{
    char text[160];
    if (!transaction(c, err) || !journal_eval_put(c->journal, c->incarnation, step, name, n, mean, "{}", err))
        return false;
    evals_put(&c->evals, name, step, n, mean);
    snprintf(text, sizeof text, "%s %.4f of %" PRId64 " at step %" PRId64, name, mean, n, step);
    json_t *o = json_pack("{s:I, s:s, s:I}", "step", (json_int_t)step, "set", name, "n", (json_int_t)n);
    if (isfinite(mean))
        json_object_set_new(o, "mean", json_real(mean));
    event_add_facts(c, "eval", "controller", text, o);
    return true;
}

/* Correct answers over scored samples, and with several samples per prompt pass@k for 2, 4, ... and all of them. *left: how many results
 * there may still be. */
static bool set_note(struct controller *c, int64_t step, const struct eval_results *r, int *left, struct error *err)
{
    int64_t k[EVAL_K_MAX], n = r->tally.n_prompt;
    int n_k = eval_ks(r->set.n, k);
    char name[64];
    if (!result_note(c, step, r->set.name, n, eval_mean(&r->tally), err))
        return false;
    for (int i = 0; i<n_k && * left> 0; i++) {
        double mean = eval_pass_at(&r->tally, k[i]);
        if (k[i] == 1 || isnan(mean) || !eval_pass_name(name, r->set.name, k[i]))
            continue;
        if (!result_note(c, step, name, n, mean, err))
            return false;
        --*left;
    }
    return true;
}

/* Note its results once all are there. */
static bool end_note(struct controller *c, struct error *err)
{
    struct evals *e = &c->evals;
    if (!evals_complete(e))
        return true;
    int left = EVAL_ROW_MAX - e->sets->n;    // beside each set's mean
    eval_sets_write(e->sets, c->process.run_dir, e->running);
    for (int i = 0; i < e->sets->n; i++)
        if (!set_note(c, e->running, &e->sets->set[i], &left, err))
            return false;
    evals_end(e);
    weights_forget(c, c->step);    // what was kept for it
    return true;
}

/* ---- what comes ---- */

void evaluated_came(struct controller *c, struct request *r, const struct msg_in *in)
{
    struct error err;
    if (!evals_came(&c->evals, in->root, &err) || !end_note(c, &err)) {    // they do not come again, and it would wait for them
        run_fail(c, "cannot note an evaluation: %s", err.text);
        refuse_later(c, r, &err);
    } else {
        ok_later(c, r);
    }
}

bool part_done(struct controller *c, int64_t task, const struct mval *told, struct error *err)
{
    return evals_sampled(&c->evals, task, mval_get(told, "eval"), err) && end_note(c, err);
}

/* A controller that is killed has the next one evaluate what it could not. */
static void wish_note(struct controller *c)
{
    struct error err;
    const int64_t now[] = { c->evals.running, c->evals.wanted, c->evals.next };
    for (size_t i = 0; i < ARRAY_SIZE(now) && !run_is_over(c); i++) {
        if (now[i] == c->evals.noted[i])
            continue;
        if (transaction(c, &err) && number_put(c, evaluation_names[i], now[i], &err))
            c->evals.noted[i] = now[i];
        else
            run_fail(c, "cannot note an evaluation: %s", err.text);
    }
}

/* Have all workers of this host asked for work, so that this controller knows what they have? */
static bool all_are_known(const struct controller *c)
{
    int64_t n = 0;
    for (int i = 0; i < c->workers.n; i++)
        n += c->workers.worker[i].start && !worker_is_away(&c->workers.worker[i]);
    return n >= run_config_n_worker(&c->config) || clock_ms() - c->started_ms > HEARD_MS;
}

static void lost_look(struct controller *c)
{
    int64_t version = evals_step(&c->evals);
    if (version < 0 || version == c->step || run_is_over(c) || !all_are_known(c)
        || (evaluating_shares(c, version) && weights_shared(c, version)))
        return;
    for (int i = 0; i < c->workers.n; i++)
        if (c->workers.worker[i].start && evaluating_can(c, &c->workers.worker[i]))
            return;
    log_warn("nobody has the weights of step %" PRId64 " any more: step %" PRId64 " is evaluated instead", version, c->step);
    evals_forgo(&c->evals);
    evals_want(&c->evals, c->step);
}

void evaluating_tick(struct controller *c)
{
    lost_look(c);
    wish_note(c);
}

bool evaluating_load(struct controller *c, struct error *err)
{
    for (size_t i = 0; i < ARRAY_SIZE(evaluation_names); i++) {
        int64_t *step = &c->evals.noted[i];
        if (!number_get(c, evaluation_names[i], -1, step, err))
            return false;
        if (*step >= 0 && *step <= c->step)
            evals_want(&c->evals, *step);
    }
    return true;
}
