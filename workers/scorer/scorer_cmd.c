/* scorer_cmd.c - the scorer process: score requests of the workers in, scores out; turns in, what the environment says out
 *
 * The loop thread only moves requests into the queue and finished jobs out of it, so that it can always report its state; the
 * threads of queue.c do the work, which may be slow, crash a program or wait for a verifier. A request is answered when all its
 * samples are scored, refused when it is malformed or the queue is full, and not answered at all when the scorer dies: then the
 * worker asks the next scorer, which scores it again. */
#include <inttypes.h>
#include <stdatomic.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "protocol/base/secret.h"
#include "protocol/base/subcommand.h"
#include "protocol/settings/run_config.h"
#include "workers/engine/reward/environment_pool.h"
#include "workers/engine/reward/queue.h"
#include "workers/harness/harness.h"
#include "workers/process/process.h"
#include "workers/scorer/service.h"

#define N_OPEN 1024          // requests held open at once
#define MAX_DEPTH 65536      // samples waiting
#define SAMPLES_MAX 4096     // samples in one request
#define TEXTS_MAX 4096       // a model's turns in one request
#define STOP_WAIT_MS 3000    // time for the threads to finish their current sample

struct scorer {
    struct process process;
    struct server *server;
    struct score_queue *queue;
    struct environment_pool *pool;    // NULL: the run has no environment that answers turns
    struct harness *harness;          // NULL: it has none that asks the model
    int n_part;                       // parts of the reward, for the answers
    _Atomic int64_t judge_left;       // requests to the judge, of 'llm_judge_budget'
    struct verify_options options;    // the queue's threads read it
    char sessions[4200];              // the harness's folder
};

static void gauges_add(void *ctx, struct msg_out *m)
{
    struct scorer *s = ctx;
    struct score_stats stats;
    queue_stats(s->queue, &stats);
    msg_i64(m, "scorer/queue_depth", stats.depth);
    msg_i64(m, "scorer/busy_threads", stats.busy);
    msg_i64(m, "scorer/scored", stats.n_scored);
    msg_i64(m, "scorer/left_out", stats.n_left_out);
    msg_i64(m, "scorer/timeouts", stats.n_timeout);
    msg_i64(m, "scorer/errors", stats.n_error);
    msg_i64(m, "scorer/refused", stats.n_refused);
    msg_f64(m, "scorer/latency_ms", stats.latency_ms);
    msg_f64(m, "scorer/latency_max_ms", stats.latency_max_ms);
    msg_f64(m, "scorer/busy_s", stats.busy_s);
    if (s->harness) {
        struct harness_stats sessions;
        harness_stats(s->harness, &sessions);
        msg_i64(m, "harness/running", sessions.running);
        msg_i64(m, "harness/waiting", sessions.waiting);
        msg_i64(m, "harness/turns", sessions.n_turn);
        msg_i64(m, "harness/timeouts", sessions.n_timeout);
        msg_i64(m, "harness/errors", sessions.n_error);
        msg_i64(m, "harness/restarts", sessions.n_restart);
        msg_i64(m, "harness/fresh", sessions.n_fresh);
        msg_i64(m, "harness/recorded", sessions.n_recorded);
    }
    if (!s->pool)
        return;
    struct environment_stats turns;
    environment_pool_stats(s->pool, &turns);
    msg_i64(m, "environment/waiting", turns.waiting);
    msg_i64(m, "environment/turns", turns.n_turn);
    msg_i64(m, "environment/timeouts", turns.n_timeout);
    msg_i64(m, "environment/errors", turns.n_error);
    msg_f64(m, "environment/latency_ms", turns.latency_ms);
}

static void on_wake(void *ctx)
{
    process_wake(&((struct scorer *)ctx)->process);
}

/* Make a request's job, copied out of the message. NULL: see err. */
static struct score_job *job_read(const struct mval *root, struct error *err)
{
    size_t row_len, text_bytes = 0;
    json_error_t je;
    const struct mval *samples = mval_get(root, "samples");
    const char *row = mval_str(mval_get(root, "row"), &row_len);
    int64_t n = mval_n(samples);
    if (n > SAMPLES_MAX) {
        error_set(err, ERR_DATA, "a request of %" PRId64 " samples; at most %d are accepted", n, SAMPLES_MAX);
        return NULL;
    }
    for (int64_t i = 0; i < n; i++) {
        size_t len;
        if (!mval_str(mval_get(mval_at(samples, i), "text"), &len)) {
            error_set(err, ERR_DATA, "sample %" PRId64 " has no 'text'", i);
            return NULL;
        }
        text_bytes += len + 1;
        if (mval_str(mval_get(mval_at(samples, i), "transcript"), &len))
            text_bytes += len + 1;
    }
    struct score_job *job = job_new(n, text_bytes);
    if (!job) {
        error_set(err, ERR_NO_MEMORY, "no memory for a request of %" PRId64 " samples", n);
        return NULL;
    }
    job->row = json_text_read(row, row_len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &je);
    if (!json_is_object(job->row)) {
        error_set(err, ERR_DATA, "'row' is not a JSON object: %s", job->row ? "another kind" : je.text);
        job_free(job);
        return NULL;
    }
    job->eval = mval_bool(mval_get(root, "eval"), false);
    int64_t max_new_tok = mval_i64(mval_get(root, "max_new_tokens"),
                                   0);    // a knob: use the value the samples were made with, not the initial one
    char *text = job->text;
    for (int64_t i = 0; i < n; i++) {
        const struct mval *sample = mval_at(samples, i), *n_tok = mval_get(sample, "n_tok");
        size_t len;
        const char *from = mval_str(mval_get(sample, "text"), &len);
        memcpy(text, from, len);
        text[len] = 0;
        job->in[i] = (struct reward_input){
            .response = text,
            .response_len = len,
            .row = job->row,
            .has_length = n_tok && !job->eval,
            .n_tok = mval_i64(n_tok, -1),
            .finish = mval_i64(mval_get(sample, "finish"), 0) == 1 ? FINISH_LENGTH : FINISH_STOP,
            .max_new_tok = max_new_tok,
            .tool_ok = mval_bool(mval_get(sample, "tool_ok"), false),
            .has_environment = mval_get(sample, "reward") != NULL,
            .environment_reward = mval_f64(mval_get(sample, "reward"), 0),
            .environment_acc = (float)mval_f64(mval_get(sample, "ans_acc"), 0),
        };
        text += len + 1;
        if ((from = mval_str(mval_get(sample, "transcript"), &len))) {
            memcpy(text, from, len);
            text[len] = 0;
            job->in[i].transcript = text;
            job->in[i].transcript_len = len;
            text += len + 1;
        }
    }
    return job;
}

/* A field's text, owned. NULL: it is not there, or no memory. */
static char *text_copy(const struct mval *v)
{
    size_t len;
    const char *text = mval_str(v, &len);
    return text ? strndup(text, len) : NULL;
}

/* Make a turn's job, copied out of the message. NULL: see err. */
static struct turn_job *turn_read(const struct mval *root, struct error *err)
{
    const struct mval *texts = mval_get(root, "texts");
    int64_t n = mval_n(texts);
    if (n > TEXTS_MAX) {
        error_set(err, ERR_DATA, "a conversation of %" PRId64 " turns; at most %d are accepted", n, TEXTS_MAX);
        return NULL;
    }
    struct turn_job *job = turn_job_new(n);
    bool ok = job && (job->row = text_copy(mval_get(root, "row")))
              && (!mval_get(root, "from") || (job->from = text_copy(mval_get(root, "from"))));
    for (int64_t i = 0; ok && i < n; i++)
        ok = (job->text[i] = text_copy(mval_at(texts, i)));
    if (!ok) {
        error_set(err, ERR_DATA, "no memory for a turn, or one of its texts is missing");
        turn_job_free(job);
        return NULL;
    }
    job->turn.item = mval_i64(mval_get(root, "item"), 0);
    job->turn.sample = mval_i64(mval_get(root, "sample"), 0);
    job->turn.seed = mval_i64(mval_get(root, "seed"), 0);
    job->turn.row = job->row;
    job->turn.from = job->from;
    job->turn.serial = mval_i64(mval_get(root, "serial"), 0);
    job->turn.oldest = mval_i64(mval_get(root, "oldest"), 0);
    job->turn.text = (const char *const *)job->text;
    return job;
}

static void turn_take(struct scorer *s, struct net_event *ev, const struct mval *root)
{
    struct error err = { 0 };
    struct turn_job *job = NULL;
    if (!s->pool && !s->harness)
        error_set(&err, ERR_USAGE, "the run has no environment");
    else
        job = turn_read(root, &err);
    if (job && s->harness && !job->from) {
        error_set(&err, ERR_DATA, "a turn does not say whose it is");
        turn_job_free(job);
        job = NULL;
    }
    if (job)
        job->ctx = ev->request;
    if (!job || !(s->harness ? harness_put(s->harness, job, &err) : environment_pool_put(s->pool, job, &err))) {
        request_refuse(ev->request, &err);
        turn_job_free(job);
    }
}

static void turn_answer(struct scorer *s, struct turn_job *job)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_OK);
    msg_i64(&m, "score", job->answer.state);
    msg_str(&m, "reason", job->answer.reason);
    msg_str(&m, "answer", job->answer.json ? job->answer.json : "");
    if (job->answer.later)
        msg_bool(&m, "later", true);
    if (msg_finish(&m, &err))
        request_answer(job->ctx, &m);
    else
        request_refuse(job->ctx, &err);
    msg_release(&m);
    s->process.progress += 1;
    turn_job_free(job);
}

static void request_take(struct scorer *s, struct net_event *ev)
{
    struct error err = { 0 };
    struct msg_in in;
    if (!msg_read_request(&in, ev->data, ev->len, &err)) {
        request_refuse(ev->request, &err);
        return;
    }
    struct score_job *job = NULL;
    if (in.type == MSG_TURN) {
        turn_take(s, ev, in.root);
        msg_in_release(&in);
        return;
    }
    if (in.type != MSG_SCORE)
        error_set(&err, ERR_USAGE, "the scorer does not answer '%s'", msg_specs[in.type].name);
    else
        job = job_read(in.root, &err);
    msg_in_release(&in);
    if (!job) {
        request_refuse(ev->request, &err);
        return;
    }
    job->ctx = ev->request;
    if (!queue_put(s->queue, job, &err)) {
        request_refuse(ev->request, &err);
        job_free(job);
    }
}

static void job_answer(struct scorer *s, struct score_job *job)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_OK);
    msg_list(&m, "results");
    for (int64_t i = 0; i < job->n; i++) {
        const struct reward_output *o = &job->out[i];
        msg_map(&m, NULL);
        msg_i64(&m, "score", o->score);
        msg_f64(&m, "reward", o->reward);
        if (!isnan(o->format_acc))
            msg_f64(&m, "format_acc", o->format_acc);
        if (!isnan(o->ans_acc))
            msg_f64(&m, "ans_acc", o->ans_acc);
        msg_list(&m, "parts");
        for (int k = 0; k < s->n_part; k++)
            msg_f64(&m, NULL, o->part[k]);
        msg_end(&m);
        msg_str(&m, "rule", o->rule);
        msg_str(&m, "pred", o->pred);
        msg_str(&m, "gold", o->gold);
        msg_bin(&m, "tests", o->tests.code, (size_t)o->tests.n);
        msg_f64(&m, "us", o->us);
        msg_end(&m);
    }
    msg_end(&m);
    char *evolved = job->evolved ? json_text_dump(job->evolved, JSON_COMPACT) : NULL;
    if (evolved)
        msg_str(&m, "rubrics", evolved);
    free(evolved);
    if (msg_finish(&m, &err))
        request_answer(job->ctx, &m);
    else
        request_refuse(job->ctx, &err);
    msg_release(&m);
    s->process.progress += (double)job->n;
    job_free(job);
}

/* How many parts the answers have: counted from a list's members, not by making a reward, which would start sandboxes in this thread. */
static int parts_count(const char *type)
{
    int n = 1;
    for (const char *p = type; (p = strstr(p, " + ")); p += 3)
        n++;
    return MIN(n > 1 || strchr(type, '*') ? n : 0, GROUP_PARTS_MAX);
}

static bool scorer_loop(struct scorer *s, struct error *err)
{
    struct net_event ev;
    while (!process_is_over(&s->process)) {
        if (process_wait(&s->process, &ev, process_pause_ms(&s->process, INT64_MAX))) {
            if (ev.kind == NET_REQUEST)
                request_take(s, &ev);
            net_event_release(&ev);
        }
        for (struct score_job *job; (job = queue_done(s->queue));)
            job_answer(s, job);
        for (struct turn_job *job; s->pool && (job = environment_pool_done(s->pool));)
            turn_answer(s, job);
        for (struct turn_job *job; s->harness && (job = harness_done(s->harness));)
            turn_answer(s, job);
        if (queue_has_failed(s->queue, err) || (s->pool && environment_pool_failed(s->pool, err)))
            return false;
        struct score_stats stats;
        struct environment_stats turns = { 0 };
        struct harness_stats sessions = { 0 };
        queue_stats(s->queue, &stats);
        if (s->pool)
            environment_pool_stats(s->pool, &turns);
        if (s->harness)
            harness_stats(s->harness, &sessions);
        if (s->pool && !environment_pool_ready(s->pool))
            process_phase(&s->process, "starting", "the environment's start");
        else if (!queue_is_ready(s->queue))
            process_phase(&s->process, "starting", "the reward's set-up");
        else if (stats.depth > 0)
            process_phase(&s->process, "scoring", "");
        else if (turns.waiting > 0 || sessions.running > 0)
            process_phase(&s->process, "playing", "");
        else
            process_phase(&s->process, "waiting", "completions to score");
    }
    return true;
}

/* The harness of a run, which keeps its sessions in the run's folder. */
static struct harness *scorer_harness(struct scorer *s, const struct run_config *c, const char *run_dir, struct error *err)
{
    if (snprintf(s->sessions, sizeof s->sessions, "%s/harness", run_dir) >= (int)sizeof s->sessions) {
        error_set(err, ERR_IO, "the path '%s' is too long", run_dir);
        return NULL;
    }
    struct harness_config config = { .command = run_config_harness(c),
                                     .model = c->name,
                                     .dir = s->sessions,
                                     .max_sessions = run_config_sessions(c),
                                     .timeout_s = c->session_timeout_s,
                                     .max_restarts = c->session_restarts,
                                     .max_turns = c->max_turns,
                                     .wants_reward = strstr(c->reward_type, "environment") != NULL,
                                     .wake = on_wake,
                                     .ctx = s };
    secret_process();    // the keys of its sessions
    return harness_new(&config, err);
}

static bool scorer_cmd(int argc, char **argv, struct error *err)
{
    bool of_a_run = false;
    for (int i = 1; i < argc; i++)
        of_a_run = of_a_run || strncmp(argv[i], "--run", 5) == 0;
    if (!of_a_run)
        return service_cmd(argc, argv, err);
    const char *run_dir = NULL, *name = NULL;
    struct run_config *c = malloc(sizeof *c);
    struct scorer *s = calloc(1, sizeof *s);
    struct reward_config config;
    bool ok = false, clean = true;
    char path[4200];
    if (!c || !s) {
        error_set(err, ERR_NO_MEMORY, "no memory for a scorer");
        goto out;
    }
    TRY(process_args(argc, argv, "rollcall scorer", &run_dir, &name, err));
    log_component(name);
    run_config_init(c);
    snprintf(path, sizeof path, "%s/run.yaml", run_dir);
    TRY(run_config_read(c, path, err));
    config = reward_config_of(c, &s->options);
    atomic_init(&s->judge_left, c->llm_judge_budget);
    s->options.llm_judge_left = c->llm_judge_budget > 0 ? &s->judge_left : NULL;
    if (c->code_verifier_key_file[0] || c->llm_judge_key_file[0])
        secret_process();
    s->n_part = parts_count(c->reward_type);
    TRY(process_init(&s->process, run_dir, name, err));
    process_pace(&s->process, c->heartbeat_s);
    TRY(!c->enable_profiling || process_profile(&s->process, err));
    int n_thread = (int)(c->scorer_threads > 0 ? c->scorer_threads : MAX(sysconf(_SC_NPROCESSORS_ONLN), 1));
    s->queue = queue_new(&config, n_thread, MAX_DEPTH, on_wake, s, err);
    if (!s->queue)
        goto out;
    if (run_config_harness(c)) {
        if (!(s->harness = scorer_harness(s, c, run_dir, err)))
            goto out;
    } else if (c->environment[0]) {
        int n = (int)(c->environment_processes > 0 ? c->environment_processes : n_thread);
        if (!(s->pool = environment_pool_new(c->environment + strlen("program:"), c->environment_timeout_s, n, on_wake, s, err)))
            goto out;
    }
    s->process.gauges = gauges_add;
    s->process.ctx = s;
    s->server = server_new(s->process.transport, name, N_OPEN, err);
    if (!s->server)
        goto out;
    ok = scorer_loop(s, err);
out:
    if (s && s->queue && !queue_free(s->queue, STOP_WAIT_MS)) {
        clean = false;    // a thread is busy with a sample; its sandboxes and programs end with this process
        log_warn("ending while completions are being scored");
    }
    if (s && clean && s->pool && !environment_pool_free(s->pool, STOP_WAIT_MS)) {
        clean = false;
        log_warn("ending while the environment is asked");
    }
    if (s && clean && s->harness)
        harness_free(s->harness);
    if (s && clean) {
        if (s->process.transport)
            process_release(&s->process);
        free(s);
    }
    if (clean)
        free(c);
    return ok;
}

const struct subcommand scorer_subcommand = { "scorer", scorer_cmd, "judge programs over HTTP, for runs here and elsewhere" };
