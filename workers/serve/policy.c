/* policy.c - one loop: take jobs, feed the generator, step, hand out the tokens
 *
 * Invariants:
 *  1. Only the loop's thread (in a run: the sampler's) touches model, generator, slots and the lists below `lock`. It never waits while
 *     it holds a lock.
 *  2. A job is in `incoming` (policy_submit), then in `active` until it is done (job_end). n_prompt counts the prompts of both.
 *  3. A slot is one item inside the generator: samples of one prompt, next to each other; its number is told by the item's prompt_row
 *     (slot_row), which is below 0. The samples of a job start in order, and jobs start in order of arrival. In an active job the open
 *     samples from next_choice on are not in the generator, and those before it are.
 *  4. While an update waits, nothing new goes into the generator; it is applied when the generator is idle, or at once while the
 *     policy is paused.
 *  5. Lent weights are held (lent.h) whenever the generator steps or has items, and not while it is idle. */
#include "workers/serve/policy.h"
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/thread.h"
#include "protocol/record/drawn_book.h"
#include "workers/engine/model/model.h"
#include "workers/engine/sampler/generator.h"
#include "workers/serve/lent.h"

#define LOGP_LEAST (-9999.0f)    // means minus infinity, as in vLLM, since JSON has none
#define LENT_LOOK_MS 200         // between two looks at lent weights while there is nothing to do
#define LENT_WAIT_MS 100         // for lent weights that change, before requests are looked at again
#define OWN_PER_GUEST 4          // tokens that a run draws for each one of its guests' prompts

struct slot {
    struct serve_job *job;    // NULL: free
    int64_t first;            // the item's first sample, as an index of the job's choices
    int64_t n_open;           // samples that have not ended
};
struct job_list {
    struct serve_job *first, *last;
};
struct policy {
    struct policy_config config;
    struct generator *generator;    // in a run borrowed; NULL: none at present
    struct ask_text text;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;         // guards: the next ten, adapter.look
    pthread_cond_t news, done;    // for the loop; for policy_close
    struct job_list incoming;
    struct policy_state state;
    bool closed, stop, abort;
    bool left;    // the client of some job has gone
    // used only by the loop
    struct job_list active;
    struct serve_job *update;      // new weights or another adapter: waits for the generator to be idle
    struct adapter adapter;        // its look is read by others: written under lock
    struct drawn_book *book;       // of the run that gave the weights; NULL: config.book
    struct serve_job *draining;    // a JOB_PAUSE that waits for the same
    bool paused;
    bool lost;            // the trainer that lends the weights is not there
    bool tainted;         // lent weights have changed while they were held
    struct slot *slot;    // (n_slot)
    int64_t n_slot;
    int64_t n_inside;              // open samples inside the generator
    struct serve_job **touched;    // (max_touched) jobs with news in this step
    int64_t n_touched, max_touched;
    /* in a run */
    int64_t n_drawn, seen_tok;    // tokens of guests in this step; all tokens the generator had drawn before it
    int64_t allowance;            // tokens of guests' prompts that may be run now, while the run has items inside
};

/* The prompt_row by which the generator knows a slot; it is its own inverse. */
static int64_t slot_row(int64_t slot)
{
    return -1 - slot;
}

static void list_push(struct job_list *l, struct serve_job *j)
{
    j->next = NULL;
    if (l->last)
        l->last->next = j;
    else
        l->first = j;
    l->last = j;
}

static void list_remove(struct job_list *l, struct serve_job *j)
{
    struct serve_job *before = NULL;
    for (struct serve_job *x = l->first; x != j; x = x->next)
        before = x;
    if (before)
        before->next = j->next;
    else
        l->first = j->next;
    if (l->last == j)
        l->last = before;
}

/* ---- ending jobs */
/* The job is done: wake its waiter and drop it. It is in no list any more. */
static void job_end(struct policy *e, struct serve_job *j, const struct error *err)
{
    pthread_mutex_lock(&j->http.lock);
    j->http.done = true;
    j->done_version = e->state.version;
    if (err) {
        j->failed = true;
        j->err = *err;
    }
    http_job_tell(&j->http);
    pthread_mutex_unlock(&j->http.lock);
    pthread_mutex_lock(&e->lock);
    e->state.n_prompt -= j->kind == JOB_GENERATE ? j->ask.n_prompt : 0;
    pthread_cond_broadcast(&e->done);
    pthread_mutex_unlock(&e->lock);
    serve_job_drop(j);
}

static void slot_empty(struct policy *e, int64_t i)
{
    struct slot *s = &e->slot[i];
    generator_drop(e->generator, slot_row(i));
    e->n_inside -= s->n_open;
    s->job = NULL;
}

/* Take a job's prompts out of the generator; its open samples end as aborted. */
static void job_abort(struct policy *e, struct serve_job *j)
{
    for (int64_t i = 0; i < e->n_slot; i++)
        if (e->slot[i].job == j)
            slot_empty(e, i);
    pthread_mutex_lock(&j->http.lock);
    for (int64_t i = 0; i < j->n_choice; i++) {
        struct job_choice *c = &j->choice[i];
        if (c->end == CHOICE_OPEN && !stop_text_end(&c->text))
            log_warn("no memory for the last characters of a sample that was ended early");
        c->end = c->end == CHOICE_OPEN ? CHOICE_ABORT : c->end;
    }
    pthread_mutex_unlock(&j->http.lock);
}

/* End all generating jobs; with err they failed, otherwise they are aborted with what they have. */
static void active_clear(struct policy *e, const struct error *err)
{
    for (struct serve_job *j; (j = e->active.first);) {
        list_remove(&e->active, j);
        job_abort(e, j);
        job_end(e, j, err);
    }
}

/* ---- tokens */
/* The likeliest tokens of a row, likeliest first (of equal ones the lower id). Their log-probs are the sampled token's
 * plus the difference of the logits at the sampling temperature: this needs no second sum over the vocabulary, and the
 * sampled token has the same number in both places. */
static void top_find(struct top_token *top, int64_t n_top, const float *logits, int64_t n_id, int32_t id, float logp, float temperature)
{
    int64_t n = 0;
    for (int64_t i = 0; i < n_id; i++) {
        if (n == n_top && !(logits[i] > top[n - 1].logp))
            continue;
        int64_t at = n < n_top ? n++ : n - 1;
        for (; at > 0 && logits[i] > top[at - 1].logp; at--)
            top[at] = top[at - 1];
        top[at] = (struct top_token){ .id = (int32_t)i, .logp = logits[i] };
    }
    float scale = temperature > 0 ? temperature : 1;
    for (int64_t k = 0; k < n_top; k++) {
        float l = k < n ? (top[k].logp - logits[id]) / scale + logp : LOGP_LEAST;
        top[k] = (struct top_token){ .id = k < n ? top[k].id : -1, .logp = isfinite(l) ? l : LOGP_LEAST };
    }
}

/* Note a sample that has ended, by its oldest token's weights. */
static void choice_note(struct policy *e, const struct serve_job *j, const struct job_choice *c)
{
    const struct token_list *prompt = &j->ask.prompt[(c - j->choice) / j->ask.n].token;
    int64_t version = c->n_tok > 0 ? c->version[0] : -1;
    for (int64_t i = 1; i < c->n_tok; i++)
        version = MIN(version, (int64_t)c->version[i]);
    drawn_book_add(e->book ? e->book : e->config.book, prompt->id, prompt->n, c->token, c->n_tok, version);
}

bool policy_watch(struct policy *e, const struct drawn *d)
{
    struct slot *s = &e->slot[slot_row(d->prompt_row)];
    struct serve_job *j = s->job;
    bool stopped = false, ok, ends;
    e->n_drawn++;
    if (e->config.lent && !lent_clean(e->config.lent)) {    // drawn by unknown weights
        e->tainted = true;
        return true;
    }
    if (!j || atomic_load(&j->http.gone))
        return true;
    pthread_mutex_lock(&j->http.lock);
    struct job_choice *c = &j->choice[s->first + d->sample];
    if (c->n_tok == 0)
        c->n_cached = d->n_cached;
    bool wanted = j->ask.max_tok != 0;    // else it was drawn only because that reads the prompt
    c->stop_token = wanted && d->is_stop ? d->id : -1;
    ok = !wanted || choice_add(j, c, d->id, d->logp, d->version, &stopped);
    if (ok && wanted && j->ask.n_top > 0 && d->logits)
        top_find(c->top + (c->n_tok - 1) * j->ask.n_top, j->ask.n_top, d->logits, e->text.n_id, d->id, d->logp,
                 j->ask.temperature < 1e-5 ? 0 : (float)j->ask.temperature);
    ends = d->is_last || stopped || !ok;
    if (ends) {
        c->end = !ok ? CHOICE_ABORT : stopped || c->stop_token >= 0 ? CHOICE_STOP : CHOICE_LENGTH;
        if (!stopped && !stop_text_end(&c->text))
            c->end = CHOICE_ABORT;
        if (c->end != CHOICE_ABORT)
            choice_note(e, j, c);
        j->n_open--;
        e->n_inside--;
        if (--s->n_open == 0)
            s->job = NULL;
    }
    pthread_mutex_unlock(&j->http.lock);
    if (!j->touched) {
        BUG_IF(e->n_touched == e->max_touched, "%" PRId64 " jobs have news", e->n_touched);
        e->touched[e->n_touched++] = j;
        j->touched = true;
    }
    return ends;
}

/* generator_watch: append a token to its choice. */
static bool token_came(void *ctx, const struct drawn *d)
{
    return policy_watch(ctx, d);
}

void policy_read_watch(struct policy *e, const struct read_token *t)
{
    const struct slot *s = &e->slot[slot_row(t->prompt_row)];
    struct serve_job *j = s->job;
    int64_t rank = 1, at = t->at - 1;
    if (!j)
        return;
    for (int64_t i = 0; i < e->text.n_id; i++)
        rank += t->logits[i] > t->logits[t->id];
    pthread_mutex_lock(&j->http.lock);
    struct prompt_logps *p = &j->read[s->first / j->ask.n];
    p->logp[at] = t->logp;
    p->rank[at] = (int32_t)rank;
    if (p->top)
        top_find(p->top + at * j->ask.n_read, j->ask.n_read, t->logits, e->text.n_id, t->id, t->logp, 1);
    p->n = t->at;
    pthread_mutex_unlock(&j->http.lock);
}

static void prompt_read(void *ctx, const struct read_token *t)
{
    policy_read_watch(ctx, t);
}

/* Wake the waiters of jobs with news; jobs whose samples have all ended are done. */
static void news_tell(struct policy *e)
{
    for (int64_t i = 0; i < e->n_touched; i++) {
        struct serve_job *j = e->touched[i];
        j->touched = false;
        if (j->n_open == 0) {
            list_remove(&e->active, j);
            job_end(e, j, NULL);
        } else if (j->ask.stream) {
            pthread_mutex_lock(&j->http.lock);
            http_job_tell(&j->http);
            pthread_mutex_unlock(&j->http.lock);
        }
    }
    e->n_touched = 0;
}

/* ---- into the generator */
static int64_t slot_find(const struct policy *e)
{
    for (int64_t i = 0; i < e->n_slot; i++)
        if (!e->slot[i].job)
            return i;
    return -1;
}

/* The job's next samples for the generator, from next_choice on: those of one prompt that have no token yet, or one that was lifted out
 * with some. 0: all open ones are inside. */
static int64_t samples_next(const struct policy *e, struct serve_job *j)
{
    int64_t n = 0, n_most = MIN(j->ask.n, e->config.max_seq);
    while (j->next_choice < j->n_choice && j->choice[j->next_choice].end != CHOICE_OPEN)
        j->next_choice++;
    for (int64_t i = j->next_choice; i < j->n_choice && n < n_most && i / j->ask.n == j->next_choice / j->ask.n; i++, n++) {
        if (j->choice[i].end != CHOICE_OPEN)
            break;
        if (j->choice[i].n_tok > 0)
            return MAX(n, (int64_t)1);
    }
    return n;
}

/* May this many samples more, of a prompt of this many tokens, join now? */
static bool samples_may(const struct policy *e, int64_t n_sample, int64_t n_prompt)
{
    bool guest = !e->config.model;
    return !guest
           || (e->n_inside + n_sample <= e->config.max_seq
               && (generator_own_idle(e->generator) || OWN_PER_GUEST * n_prompt <= e->allowance));
}

/* Everything so far of the job's next sample: its prompt, and what it has drawn. */
static bool sequence_make(const struct serve_job *j, struct token_list *out, struct error *err)
{
    const struct job_choice *c = &j->choice[j->next_choice];
    const struct token_list *prompt = &j->ask.prompt[j->next_choice / j->ask.n].token;
    return (token_list_add(out, prompt->id, prompt->n) && token_list_add(out, c->token, c->n_tok))
           || error_set(err, ERR_NO_MEMORY, "no memory for a prompt of %" PRId64 " tokens", prompt->n + c->n_tok);
}

/* Give the job's next n samples to the generator. ERR_FULL: later. */
static bool samples_submit(struct policy *e, struct serve_job *j, int64_t n, struct error *err)
{
    const struct job_choice *c = &j->choice[j->next_choice];
    int64_t prompt = j->next_choice / j->ask.n, at = slot_find(e), n_prompt = j->ask.prompt[prompt].token.n;
    bool keep_prompt = j->read && j->read[prompt].n == 0 && c->n_tok == 0;
    struct token_list sequence = { .n = 0 };
    uint64_t seed = j->ask.seed;
    if (at < 0 || !samples_may(e, n, n_prompt + c->n_tok))
        return error_set(err, ERR_FULL, "there is no room at present");
    uint64_t *seeds = malloc((size_t)n * sizeof *seeds);
    if (!seeds)
        return error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " seeds", n);
    bool ok = (j->ask.has_seed || getrandom(&seed, sizeof seed, 0) == (ssize_t)sizeof seed
               || error_errno(err, "the system gives no random numbers"))
              && sequence_make(j, &sequence, err);
    ok = ok && (!keep_prompt || serve_job_prompt_room(j, prompt, err));
    for (int64_t i = 0; i < n; i++)
        seeds[i] = seed;    // prompt and sample number make the draws differ
    struct generator_item item = { .item = prompt,
                                   .prompt_row = slot_row(at),
                                   .prompt = sequence.id,
                                   .n_prompt = sequence.n,
                                   .n_sample = (int32_t)n,
                                   .first_sample = (int32_t)(j->next_choice % j->ask.n),
                                   .seed = seeds,
                                   .cache_salt = j->ask.cache_salt,
                                   .keep_logits = j->ask.n_top > 0,
                                   .keep_prompt = keep_prompt,
                                   .guest = true };
    ok = ok && ask_sampling(&j->ask, n_prompt, &e->text, e->config.eos, e->config.n_eos, &item.sampling, err);
    item.sampling.max_new_tok -= c->n_tok;
    item.sampling.min_new_tok = MAX(item.sampling.min_new_tok - c->n_tok, (int64_t)0);
    ok = ok && generator_submit(e->generator, &item, err);
    if (ok) {
        e->slot[at] = (struct slot){ .job = j, .first = j->next_choice, .n_open = n };
        e->n_inside += n;
        e->allowance -= generator_own_idle(e->generator) ? 0 : OWN_PER_GUEST * sequence.n;
        j->next_choice += n;
    }
    free(seeds);
    token_list_release(&sequence);
    return ok;
}

/* Jobs of which nothing is inside yet only with begin. */
static void prompts_feed(struct policy *e, bool begin)
{
    for (struct serve_job *j = e->active.first, *next; j; j = next) {
        struct error err;
        next = j->next;
        bool ok = true;
        if (!begin && j->next_choice == 0)
            continue;
        for (int64_t n; ok && (n = samples_next(e, j)) > 0;)
            ok = samples_submit(e, j, n, &err);
        if (!ok && err.code == ERR_FULL)
            return;
        if (!ok) {
            list_remove(&e->active, j);
            job_abort(e, j);
            job_end(e, j, &err);
        }
    }
}

/* ---- orders */
static void paused_set(struct policy *e, bool paused)
{
    e->paused = paused;
    pthread_mutex_lock(&e->lock);
    e->state.paused = paused;
    pthread_mutex_unlock(&e->lock);
}

/* Load the directory's weights next to the ones in use, then copy them over: on failure nothing has changed. */
static bool weights_load(struct policy *e, const struct serve_job *j, int64_t version, struct error *err)
{
    struct device *dev = model_device(e->config.model);
    struct model *fresh = model_load(j->dir, dev, model_dtype(e->config.model), err);
    if (!fresh)
        return false;
    char what[600];
    snprintf(what, sizeof what, "'%.500s'", j->dir);
    bool ok = config_same(model_config(e->config.model), model_config(fresh), what, err) && model_weights_copy(e->config.model, fresh, err)
              && device_sync(dev, err);
    model_free(fresh);
    if (ok)
        generator_version_update(e->generator, version);
    return ok;
}

/* Compute with the job's adapter, or with none, from now on; on failure nothing has changed. */
static bool adapter_change(struct policy *e, struct serve_job *j, int64_t version, struct error *err)
{
    struct adapter was = e->adapter, is = { .look.n_load = was.look.n_load };
    bool load = j->kind == JOB_ADAPTER_LOAD;
    if (load && !adapter_open(&is, e->config.model, j->dir, j->adapter->name, e->config.max_lora_rank, err))
        return false;
    if (!load && j->adapter->name[0] && strcmp(j->adapter->name, was.look.name) != 0)
        return error_set(err, ERR_NOT_FOUND, "no adapter '%.200s' is loaded", j->adapter->name);
    if (!generator_model_set(e->generator, is.model ? is.model : e->config.model, version, err)) {
        adapter_close(&is);
        return false;
    }
    pthread_mutex_lock(&e->lock);
    e->adapter = is;
    pthread_mutex_unlock(&e->lock);
    pthread_mutex_lock(&j->http.lock);
    *j->adapter = load ? is.look : was.look;
    pthread_mutex_unlock(&j->http.lock);
    adapter_close(&was);
    return true;
}

/* Note what is drawn for the run whose weights these are, if it is one on this host. */
static void book_follow(struct policy *e, const char *dir)
{
    char path[4200];
    struct error err;
    drawn_book_close(e->book);
    e->book = NULL;
    if (drawn_book_path_given(dir, path, sizeof path) && !(e->book = drawn_book_open(path, &err)))
        log_warn("what is drawn for environments is not noted: %s", err.text);
}

static void update_run(struct policy *e)
{
    struct serve_job *j = e->update;
    struct error err;
    int64_t start = clock_ns(), version = j->version >= 0 ? j->version : e->state.version + 1;
    e->update = NULL;
    bool ok = j->kind == JOB_UPDATE ? weights_load(e, j, version, &err) : adapter_change(e, j, version, &err);
    if (ok) {
        book_follow(e, j->dir);
        pthread_mutex_lock(&e->lock);
        e->state.version = version;
        pthread_mutex_unlock(&e->lock);
        log_info("%s dir=%s version=%" PRId64 " took_s=%.2f",
                 j->kind == JOB_UPDATE         ? "weights have been replaced"
                 : j->kind == JOB_ADAPTER_LOAD ? "an adapter has been loaded"
                                               : "the adapter has been unloaded",
                 j->dir, version, (double)(clock_ns() - start) * 1e-9);
    } else {
        log_warn("weights could not be replaced: %s", err.text);
    }
    job_end(e, j, ok ? NULL : &err);
}

/* Start a job; generating jobs become active, the others are done or wait for the generator. */
static void job_begin(struct policy *e, struct serve_job *j)
{
    struct error err;
    bool weights = j->kind == JOB_UPDATE || j->kind == JOB_ADAPTER_LOAD || j->kind == JOB_ADAPTER_UNLOAD;
    if ((!e->config.model && j->kind != JOB_GENERATE) || (e->config.lent && weights)) {
        error_set(&err, ERR_REFUSED, e->config.lent ? "the weights belong to the trainer that lends them" : "the weights belong to a run");
        job_end(e, j, &err);
        return;
    }
    if (e->lost && j->kind == JOB_GENERATE) {
        job_end(e, j, &e->state.err);    // written by this thread alone
        return;
    }
    switch (j->kind) {
    case JOB_GENERATE: list_push(&e->active, j); return;
    case JOB_PAUSE:
        if (j->pause == PAUSE_ABORT)
            active_clear(e, NULL);
        if (j->pause == PAUSE_WAIT && !e->paused && !generator_idle(e->generator)) {
            if (e->draining) {
                error_set(&err, ERR_REFUSED, "another request to pause is waiting already");
                job_end(e, j, &err);
            } else {
                e->draining = j;
            }
            return;
        }
        if (e->draining)    // it wanted a pause, and has one; what it waited for is held, or has ended
            job_end(e, e->draining, NULL);
        e->draining = NULL;
        paused_set(e, true);
        job_end(e, j, NULL);
        return;
    case JOB_RESUME:
        if (e->draining)
            job_end(e, e->draining, NULL);
        e->draining = NULL;
        paused_set(e, false);
        job_end(e, j, NULL);
        return;
    case JOB_FORGET:
        generator_cache_clear(e->generator);
        job_end(e, j, NULL);
        return;
    case JOB_UPDATE:
    case JOB_ADAPTER_LOAD:
    case JOB_ADAPTER_UNLOAD:
        if (e->update) {
            error_set(&err, ERR_REFUSED, "another update of the weights is waiting already");
            job_end(e, j, &err);
        } else {
            e->update = j;
        }
        return;
    }
}

/* ---- the loop */
/* What other threads have left since the last time. */
struct news {
    struct job_list jobs;
    bool left, aborted;
};

/* Lock held. */
static void news_move(struct policy *e, struct news *out)
{
    *out = (struct news){ .jobs = e->incoming, .left = e->left, .aborted = e->abort };
    e->incoming = (struct job_list){ NULL, NULL };
    e->left = e->abort = false;
}

/* Wait until there is something to do, and take it. False: the thread must end. */
static bool news_wait(struct policy *e, struct news *out)
{
    pthread_mutex_lock(&e->lock);
    bool idle = generator_idle(e->generator) && !e->active.first, looked = false;
    struct timespec end = clock_after(LENT_LOOK_MS);
    while (!e->stop && !e->incoming.first && !e->left && !e->abort && !e->update && !e->draining && (idle || e->paused) && !looked)
        if (e->config.lent)
            looked = pthread_cond_timedwait(&e->news, &e->lock, &end) != 0;
        else
            pthread_cond_wait(&e->news, &e->lock);
    news_move(e, out);
    bool stop = e->stop;
    pthread_mutex_unlock(&e->lock);
    return !stop;
}

static void left_end(struct policy *e)
{
    for (struct serve_job *j = e->active.first, *next; j; j = next) {
        next = j->next;
        if (!atomic_load(&j->http.gone))
            continue;
        list_remove(&e->active, j);
        job_abort(e, j);
        job_end(e, j, NULL);
    }
}

/* Show the generator's figures to others. */
static void stats_note(struct policy *e)
{
    struct generator_stats s = { 0 };
    if (e->generator)    // a run may have none for a while
        generator_stats(e->generator, &s);
    pthread_mutex_lock(&e->lock);
    e->state.n_running = s.n_running_seq;
    e->state.n_waiting = s.n_waiting_seq;
    e->state.n_page = s.n_page;
    e->state.n_page_used = s.n_page - s.n_free_page;
    e->state.n_put_back = s.n_put_back;
    pthread_mutex_unlock(&e->lock);
}

/* Begin the new jobs, and end those that are not wanted any more. */
static void news_apply(struct policy *e, struct news *news)
{
    for (struct serve_job *j; (j = news->jobs.first);) {
        list_remove(&news->jobs, j);
        job_begin(e, j);
    }
    if (news->left)
        left_end(e);
    if (news->aborted)
        active_clear(e, NULL);
}

/* What a step of the generator means: err when it failed. */
static void step_told(struct policy *e, int64_t n_drawn, const struct error *err)
{
    news_tell(e);
    stats_note(e);
    pthread_mutex_lock(&e->lock);
    e->state.n_decode_tok += n_drawn;
    e->state.failed = err;
    if (err)
        e->state.err = *err;
    pthread_mutex_unlock(&e->lock);
    if (!err)
        return;
    log_error("a step failed, and all requests with it: %s", err->text);
    active_clear(e, err);
}

static void step_run(struct policy *e)
{
    struct error err;
    e->n_drawn = 0;
    bool ok = generator_step(e->generator, &err);
    step_told(e, e->n_drawn, ok ? NULL : &err);
}

/* End all jobs: those under way with what they have. */
static void jobs_end(struct policy *e, struct job_list *more)
{
    struct error stopping;
    error_set(&stopping, ERR_CLOSED, "the server is stopping");
    active_clear(e, NULL);
    if (e->update)
        list_push(more, e->update);
    if (e->draining)
        list_push(more, e->draining);
    e->update = e->draining = NULL;
    for (struct serve_job *j; (j = more->first);) {
        list_remove(more, j);
        job_end(e, j, &stopping);
    }
}

/* ---- lent weights */
/* What is under way fails with err, and the trainer has its weights. */
static void lent_give_up(struct policy *e, const struct error *err)
{
    active_clear(e, err);
    lent_release(e->config.lent);
    e->tainted = false;
}

static void lent_note(struct policy *e, const struct error *lost)
{
    e->lost = lost;
    pthread_mutex_lock(&e->lock);
    e->state.version = lent_version(e->config.lent);
    e->state.failed = lost;
    if (lost)
        e->state.err = *lost;
    pthread_mutex_unlock(&e->lock);
}

/* Have the weights in hand. False: not now. */
static bool lent_take(struct policy *e)
{
    struct error err;
    bool moved, changed;
    enum lent_state state = lent_hold(e->config.lent, e->config.model, LENT_WAIT_MS, &moved, &changed, &err);
    if (state == LENT_LATER)
        return false;
    bool ok = state == LENT_HELD;
    if (ok && moved)
        ok = generator_model_set(e->generator, e->config.model, lent_version(e->config.lent), &err);
    else if (ok && changed)
        generator_version_update(e->generator, lent_version(e->config.lent));
    if (!ok)
        lent_give_up(e, &err);
    if (!ok || changed || e->lost)
        lent_note(e, ok ? NULL : &err);
    return ok;
}

/* Before a step: hold the weights, or see that the trainer gets them. False: no step can be taken. */
static bool lent_turn(struct policy *e)
{
    struct error err;
    bool under_way = !generator_idle(e->generator);
    for (const struct serve_job *j = e->active.first; j; j = j->next)
        under_way = under_way || j->next_choice > 0;    // others of its samples wait for room
    if (under_way && e->paused && lent_wanted(e->config.lent)) {
        error_set(&err, ERR_CLOSED, "the trainer has changed the weights while the server was paused; ask again");
        lent_give_up(e, &err);
        under_way = false;
    }
    if (!under_way)    // the trainer need not ask
        lent_release(e->config.lent);
    bool ok = lent_take(e);
    if (ok && !under_way && (e->paused || !e->active.first))
        lent_release(e->config.lent);
    return ok;
}

/* After a step: nothing of it was handed out if the weights changed meanwhile. */
static void lent_stepped(struct policy *e)
{
    struct error err;
    if (!e->tainted)
        return;
    error_set(&err, ERR_CLOSED, "the trainer has changed the weights before this request was finished; ask again");
    log_warn("requests that the trainer could not wait for have failed");
    lent_give_up(e, &err);
}

static void *policy_main(void *arg)
{
    struct policy *e = arg;
    struct news news;
    while (news_wait(e, &news)) {
        news_apply(e, &news);
        if (e->update && (e->paused || generator_idle(e->generator)))
            update_run(e);
        if (e->draining && generator_idle(e->generator)) {
            paused_set(e, true);
            job_end(e, e->draining, NULL);
            e->draining = NULL;
        }
        bool held = !e->config.lent || lent_turn(e);
        if (e->paused || !held) {
            stats_note(e);    // of what has ended or left
            continue;
        }
        if (!e->update && !e->draining)
            prompts_feed(e, !e->config.lent || !lent_wanted(e->config.lent));
        step_run(e);
        if (e->config.lent)
            lent_stepped(e);
    }
    jobs_end(e, &news.jobs);
    return NULL;
}

/* ---- in a run */
void policy_attach(struct policy *e, struct generator *g)
{
    struct generator_stats stats;
    generator_stats(g, &stats);
    e->generator = g;
    e->seen_tok = stats.n_decode_tok;
    pthread_mutex_lock(&e->lock);
    e->state.failed = false;
    pthread_mutex_unlock(&e->lock);
}

void policy_lift(struct policy *e)
{
    for (struct serve_job *j = e->active.first; j; j = j->next)
        j->next_choice = 0;
    for (int64_t i = 0; i < e->n_slot; i++)
        if (e->slot[i].job)
            slot_empty(e, i);
}

void policy_detach(struct policy *e)
{
    policy_lift(e);
    e->generator = NULL;
    stats_note(e);
    pthread_mutex_lock(&e->lock);
    e->state.failed = true;
    error_set(&e->state.err, ERR_CLOSED, "the run is loading its weights");
    pthread_mutex_unlock(&e->lock);
}

bool policy_wants(struct policy *e)
{
    bool wants = false;
    for (struct serve_job *j = e->active.first; j && !wants; j = j->next)
        wants = samples_next(e, j) > 0;
    pthread_mutex_lock(&e->lock);
    wants = wants || e->incoming.first || e->left || e->abort;
    pthread_mutex_unlock(&e->lock);
    return wants;
}

void policy_version_set(struct policy *e, int64_t version)
{
    pthread_mutex_lock(&e->lock);
    e->state.version = version;
    pthread_mutex_unlock(&e->lock);
}

void policy_feed(struct policy *e)
{
    struct news news;
    pthread_mutex_lock(&e->lock);
    news_move(e, &news);
    pthread_mutex_unlock(&e->lock);
    news_apply(e, &news);
    prompts_feed(e, true);
    e->n_drawn = 0;
}

void policy_stepped(struct policy *e, const struct error *why)
{
    struct generator_stats stats;
    generator_stats(e->generator, &stats);
    int64_t n_own = stats.n_decode_tok - e->seen_tok - e->n_drawn;
    e->seen_tok = stats.n_decode_tok;
    // what is not used is kept up to one longest prompt, so that a burst cannot follow a pause
    e->allowance = MIN(e->allowance + MAX(n_own, (int64_t)0), OWN_PER_GUEST * e->config.max_seq_tok);
    step_told(e, e->n_drawn, why);
}

void policy_end(struct policy *e)
{
    struct news news;
    pthread_mutex_lock(&e->lock);
    e->closed = true;
    news_move(e, &news);
    pthread_mutex_unlock(&e->lock);
    jobs_end(e, &news.jobs);
}

/* ---- for other threads */
struct policy *policy_new(const struct policy_config *config, struct error *err)
{
    bool ok = false;
    struct policy *e = calloc(1, sizeof *e);
    if (!e) {
        error_set(err, ERR_NO_MEMORY, "no memory for the policy");
        return NULL;
    }
    e->config = *config;
    bool in_run = !config->model;
    e->text = (struct ask_text){ .tokenizer = config->tokenizer,
                                 .max_seq_tok = config->max_seq_tok,
                                 .n_id = in_run ? config->n_id : model_n_live(config->model) };
    pthread_mutex_init(&e->lock, NULL);
    clock_cond_init(&e->news);
    clock_cond_init(&e->done);
    e->n_slot = in_run ? config->max_seq : MAX(64, 2 * config->max_seq);    // room for a full batch to wait while one runs
    e->max_touched = e->n_slot;
    struct generator_config g = { .model = config->model,
                                  .tokenizer = config->tokenizer,
                                  .max_seq = config->max_seq,
                                  .max_item = e->n_slot,
                                  .max_seq_tok = config->max_seq_tok,
                                  .kv_bytes = config->kv_bytes,
                                  .lora_rank = config->max_lora_rank,
                                  .prefix_cache = true,
                                  .watch = token_came,
                                  .read_watch = prompt_read,
                                  .watch_ctx = e };
    TRY(in_run || (e->generator = generator_new(&g, err)) != NULL);
    TRY(in_run || config->lent || generator_warm(e->generator, err));    // weights that are lent are not looked at before they are held
    stats_note(e);
    e->slot = calloc((size_t)e->n_slot, sizeof *e->slot);
    e->touched = calloc((size_t)e->max_touched, sizeof(struct serve_job *));
    if (!e->slot || !e->touched) {
        error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " requests", e->n_slot);
        goto out;
    }
    if (in_run)
        policy_detach(e);
    int rv = in_run ? 0 : thread_start(&e->thread, policy_main, e);
    e->has_thread = !in_run && rv == 0;
    if (rv != 0) {
        error_set(err, ERR_IO, "the policy's thread cannot be started: %s", strerror(rv));
        goto out;
    }
    ok = true;
out:
    if (!ok) {
        policy_free(e);
        e = NULL;
    }
    return e;
}

void policy_free(struct policy *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    e->stop = e->closed = true;
    pthread_cond_signal(&e->news);
    pthread_mutex_unlock(&e->lock);
    if (e->has_thread)
        pthread_join(e->thread, NULL);
    if (e->config.model)
        generator_free(e->generator);
    adapter_close(&e->adapter);
    drawn_book_close(e->book);
    pthread_cond_destroy(&e->news);
    pthread_cond_destroy(&e->done);
    pthread_mutex_destroy(&e->lock);
    free(e->slot);
    free(e->touched);
    free(e);
}

/* Unlock; there is something new for the loop. */
static void unlock_and_wake(struct policy *e)
{
    pthread_cond_signal(&e->news);
    pthread_mutex_unlock(&e->lock);
    if (e->config.wake)
        e->config.wake(e->config.wake_ctx);
}

bool policy_submit(struct policy *e, struct serve_job *j, struct error *err)
{
    bool ok = true;
    int64_t n_prompt = j->kind == JOB_GENERATE ? j->ask.n_prompt : 0;
    pthread_mutex_lock(&e->lock);
    if (e->closed)
        ok = error_set(err, ERR_CLOSED, "the server is stopping");
    else if (e->state.n_prompt > 0 && n_prompt > e->config.max_queue - e->state.n_prompt)
        ok = error_set(err, ERR_FULL, "%" PRId64 " prompts are being worked on or wait; at most %" PRId64 " may", e->state.n_prompt,
                       e->config.max_queue);
    if (ok) {
        serve_job_hold(j);
        e->state.n_prompt += n_prompt;
        list_push(&e->incoming, j);
    }
    unlock_and_wake(e);
    return ok;
}

void policy_leave(struct policy *e, struct serve_job *j)
{
    atomic_store(&j->http.gone, true);
    pthread_mutex_lock(&e->lock);
    e->left = true;
    unlock_and_wake(e);
}

bool policy_close(struct policy *e, int64_t limit_ms)
{
    struct timespec end = clock_after(limit_ms);
    int rv = 0;
    pthread_mutex_lock(&e->lock);
    e->closed = true;
    while (e->state.n_prompt > 0 && rv == 0)
        rv = pthread_cond_timedwait(&e->done, &e->lock, &end);
    bool done = e->state.n_prompt == 0;
    pthread_mutex_unlock(&e->lock);
    return done;
}

void policy_abort_all(struct policy *e)
{
    pthread_mutex_lock(&e->lock);
    e->abort = true;
    unlock_and_wake(e);
}

void policy_state(struct policy *e, struct policy_state *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->state;
    pthread_mutex_unlock(&e->lock);
}

bool policy_adapter(struct policy *e, struct adapter_look *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->adapter.look;
    pthread_mutex_unlock(&e->lock);
    return e->config.max_lora_rank > 0;
}
