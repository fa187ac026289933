/* harness.c - the thread of a harness: turns of the worker and requests of programs find their sessions (programs.c) */
#include "workers/harness/harness.h"
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/base/bearer.h"
#include "protocol/base/child.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/thread.h"
#include "workers/harness/harness_parts.h"

#define SESSIONS_MAX 16384    // also those that are over and may be asked about again
#define QUEUE_MAX 16          // requests of a session that wait; more are refused
#define LATER_MS 5000         // a turn without an answer is answered with `later`

static void wake_up(void *ctx)
{
    struct harness *h = ctx;
    uint64_t one = 1;
    (void)!write(h->wake, &one, sizeof one);    // EAGAIN: it is awake
}

/* ---- turns of the worker ---- */

static struct session *session_find(struct harness *h, const struct turn *t)
{
    for (struct session *s = h->session; s; s = s->next)
        if (s->serial == t->serial && s->sample == t->sample && strcmp(s->from, t->from) == 0)
            return s;
    return NULL;
}

/* Drop the sessions that the turn's worker has no more: an earlier start of it had them, or their items have left it. */
static void old_drop(struct harness *h, const struct turn *t)
{
    size_t name = strcspn(t->from, "/");
    for (struct session *s = h->session, *next; s; s = next) {
        next = s->next;
        bool same_worker = strncmp(s->from, t->from, name) == 0 && s->from[name] == t->from[name];
        if (same_worker && (strcmp(s->from, t->from) != 0 || s->serial < t->oldest))
            session_drop(h, s);
    }
}

static struct session *session_new(struct harness *h, const struct turn *t)
{
    uint8_t random[16];
    struct session *s = calloc(1, sizeof *s);
    if (s)
        *s = (struct session){ .serial = t->serial, .sample = t->sample, .item = t->item, .seed = t->seed, .player = { .out = -1 } };
    bool ok = s && (s->from = strdup(t->from)) && (s->row = strdup(t->row)) && (s->request = json_array())
              && getrandom(random, sizeof random, 0) == (ssize_t)sizeof random;
    for (int64_t i = 0; ok && i < t->n_text; i++)
        ok = reply_add(s, t->text[i]);
    if (!ok) {
        if (s)
            session_release(s);
        return NULL;
    }
    size_t at = (size_t)snprintf(s->key, sizeof s->key, "rc-");
    for (size_t i = 0; i < sizeof random; i++)
        at += (size_t)snprintf(s->key + at, sizeof s->key - at, "%02x", random[i]);
    s->record = record_find(h, s);
    if (s->record) {
        s->state = SESSION_RECORDED;
        pthread_mutex_lock(&h->lock);
        h->stats.n_recorded++;
        pthread_mutex_unlock(&h->lock);
    }
    struct session **end = &h->session;
    while (*end)
        end = &(*end)->next;
    *end = s;
    h->n_session++;
    return s;
}

/* The reply to the request in flight. */
static void reply_take(struct session *s, const char *text)
{
    if (!reply_add(s, text))
        return;    // the worker asks again, with all of them
    s->flight_ask[0] = 0;
    if (!s->flight)
        return;    // its program was ended meanwhile; the next one gets it
    reply_send(s->flight, text);
    s->flight = NULL;
    s->n_served++;
}

/* Start again with the worker's texts, which are not those that are here. */
static void session_reset(struct harness *h, struct session *s, const struct turn *t)
{
    program_end(h, s);
    replies_clear(s);
    for (int64_t i = 0; i < t->n_text; i++)
        if (!reply_add(s, t->text[i]))
            break;
    s->flight_ask[0] = 0;
    s->fresh = false;
    if (s->state == SESSION_RUNS)
        s->state = SESSION_WAITS;
}

static void turn_take(struct harness *h, struct turn_job *job)
{
    const struct turn *t = &job->turn;
    old_drop(h, t);
    struct session *s = session_find(h, t);
    if (!s && h->n_session < SESSIONS_MAX)
        s = session_new(h, t);
    if (!s) {
        job_fail(h, job, SCORE_ERROR, "harness: no room for a session");
        return;
    }
    if (!s->fresh && t->n_text < s->n_reply) {    // an older question that came twice: the worker has its answer and never goes back
        job_later(h, job);
        return;
    }
    if (s->asked)    // asked again: the former one was given up
        job_later(h, asked_pop(s));
    if (!s->fresh && t->n_text == s->n_reply + 1 && s->flight_ask[0])
        reply_take(s, t->text[t->n_text - 1]);
    else if (!s->fresh && t->n_text != s->n_reply && s->state != SESSION_OVER)
        session_reset(h, s, t);
    s->asked = job;
    s->asked_ms = clock_ms();
    session_go(h, s);
}

/* ---- requests of the programs ---- */

static void request_take(struct harness *h, struct door_request *q)
{
    char shown[DOOR_KEY_MAX + 8];
    struct session *s = h->session, *found = NULL;
    snprintf(shown, sizeof shown, "Bearer %s", q->key);
    for (; s; s = s->next)    // all of them: the time says nothing about keys
        if (bearer_matches(s->key, shown))
            found = s;
    s = found;
    if (!s) {
        door_refuse(q, 401, "invalid_api_key", "this key is of no session; a session's program finds its own in OPENAI_API_KEY");
    } else if (s->state != SESSION_RUNS) {
        json_t *o = q->kind == REQUEST_REWARD ? json_text_read(q->body, q->len, 0, NULL) : NULL;
        double again;
        bool same = s->state == SESSION_OVER && s->has_reward && json_double_get(json_object_get(o, "reward"), &again)
                    && again == s->reward;
        json_decref(o);
        if (same)    // its answer was lost
            door_answer(q, 200, false, "{\"status\":\"taken\"}", strlen("{\"status\":\"taken\"}"));
        else
            door_refuse(q, 410, "session_over", "this session has ended");
    } else if (s->n_queue >= QUEUE_MAX) {
        asked_refuse(h, s, q, 429, NULL, "this session has too many requests at once");
    } else {
        if (s->last)
            s->last->next = q;
        else
            s->first = q;
        s->last = q;
        s->n_queue++;
        session_go(h, s);
    }
}

/* ---- the thread ---- */

static void news_take(struct harness *h)
{
    struct turn_job *job;
    struct door_request *q;
    do {
        pthread_mutex_lock(&h->lock);
        job = turn_job_pop(&h->in_first, &h->in_last);
        h->n_in -= job != NULL;
        pthread_mutex_unlock(&h->lock);
        if (job)
            turn_take(h, job);
    } while (job);
    while ((q = door_take(h->door)))
        request_take(h, q);
}

/* What is due: programs to be begun and ended, turns to be answered later. Returns for how long nothing is, ms. */
static int64_t dues_do(struct harness *h)
{
    int64_t now = clock_ms(), next = 60000, limit = (int64_t)(h->config.timeout_s * 1000), n_waiting = 0;
    for (struct session *s = h->session; s; s = s->next) {
        if (s->state == SESSION_WAITS && !player_runs(&s->player)) {
            if (h->n_running < h->config.max_sessions)
                program_begin(h, s);
            else
                n_waiting++;
        }
        clock_mind(s);
        if (s->thinks_ms && s->used_ms >= limit) {
            session_over(h, s, SCORE_TIMEOUT, "time-out");
            session_go(h, s);
        } else if (s->thinks_ms) {
            next = MIN(next, limit - s->used_ms);
        }
        if (s->end_ms && now >= s->end_ms)
            program_end(h, s);
        else if (s->end_ms)
            next = MIN(next, s->end_ms - now);
        if (s->asked && now - s->asked_ms >= LATER_MS) {
            job_later(h, asked_pop(s));
        } else if (s->asked) {
            next = MIN(next, s->asked_ms + LATER_MS - now);
        }
    }
    pthread_mutex_lock(&h->lock);
    h->stats.running = h->n_running;
    h->stats.waiting = n_waiting;
    pthread_mutex_unlock(&h->lock);
    return MAX(next, (int64_t)1);
}

/* Wait for news, and for what the programs write and their ends. */
static void events_wait(struct harness *h, int64_t wait_ms)
{
    uint64_t count;
    int n = 0;
    h->fds[n++] = (struct pollfd){ .fd = h->wake, .events = POLLIN };
    for (struct session *s = h->session; s; s = s->next) {
        if (!player_runs(&s->player))
            continue;
        h->at[n] = s;
        h->fds[n++] = (struct pollfd){ .fd = s->player.leash.end };
        h->at[n] = s;
        h->fds[n++] = (struct pollfd){ .fd = s->player.out, .events = POLLIN };
    }
    if (poll(h->fds, (nfds_t)n, (int)wait_ms) <= 0)
        return;
    if (h->fds[0].revents)
        (void)!read(h->wake, &count, sizeof count);
    news_take(h);    // first what the programs asked; a program's end comes after it
    for (int i = 1; i < n; i += 2) {
        struct session *s = h->session;
        while (s && s != h->at[i])    // the news may have dropped it
            s = s->next;
        if (!s || !player_runs(&s->player) || s->player.leash.end != h->fds[i].fd)
            continue;
        if (h->fds[i + 1].revents)
            player_read(&s->player);
        if (h->fds[i].revents) {
            program_ended(h, s);
            session_go(h, s);
        }
    }
}

static void *harness_main(void *arg)
{
    struct harness *h = arg;
    while (!atomic_load(&h->closing)) {
        news_take(h);
        events_wait(h, dues_do(h));
    }
    while (h->session)
        session_drop(h, h->session);
    for (struct door_request *q; (q = door_take(h->door));)
        door_refuse(q, 503, NULL, "the run is stopping");
    return NULL;
}

/* ---- for other threads ---- */

bool harness_put(struct harness *h, struct turn_job *job, struct error *err)
{
    pthread_mutex_lock(&h->lock);
    bool ok = h->n_in < SESSIONS_MAX || error_set(err, ERR_FULL, "%d turns wait for the harness already", SESSIONS_MAX);
    if (ok) {
        turn_job_push(&h->in_first, &h->in_last, job);
        h->n_in++;
    }
    pthread_mutex_unlock(&h->lock);
    wake_up(h);
    return ok;
}

struct turn_job *harness_done(struct harness *h)
{
    pthread_mutex_lock(&h->lock);
    struct turn_job *job = turn_job_pop(&h->done_first, &h->done_last);
    pthread_mutex_unlock(&h->lock);
    return job;
}

void harness_stats(struct harness *h, struct harness_stats *out)
{
    pthread_mutex_lock(&h->lock);
    *out = h->stats;
    pthread_mutex_unlock(&h->lock);
}

void harness_free(struct harness *h)
{
    struct turn_job *job;
    if (!h)
        return;
    atomic_store(&h->closing, true);
    if (h->has_thread) {
        wake_up(h);
        pthread_join(h->thread, NULL);
    }
    door_free(h->door);
    while ((job = turn_job_pop(&h->in_first, &h->in_last)) || (job = turn_job_pop(&h->done_first, &h->done_last)))
        turn_job_free(job);
    records_free(h->records);
    fd_close(&h->wake);
    pthread_mutex_destroy(&h->lock);
    free(h->fds);
    free(h->at);
    free(h);
}

struct harness *harness_new(const struct harness_config *config, struct error *err)
{
    struct harness *h = calloc(1, sizeof *h);
    bool ok = false;
    if (!h) {
        error_set(err, ERR_NO_MEMORY, "no memory for the harness");
        return NULL;
    }
    h->config = *config;
    pthread_mutex_init(&h->lock, NULL);
    size_t n = 2 * (size_t)config->max_sessions + 1;
    if ((h->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
        error_errno(err, "cannot make an event of the harness");
        goto out;
    }
    h->fds = calloc(n, sizeof *h->fds);
    h->at = calloc(n, sizeof(struct session *));
    TRY((h->fds && h->at) || error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " sessions", config->max_sessions));
    TRY(!config->dir[0] || (h->records = records_new(config->dir, err)));
    TRY(h->door = door_new(config->max_sessions, config->model, wake_up, h, err));
    if (thread_start(&h->thread, harness_main, h) != 0) {
        error_set(err, ERR_NO_MEMORY, "the harness's thread cannot be started");
        goto out;
    }
    h->has_thread = ok = true;
out:
    if (!ok) {
        harness_free(h);
        h = NULL;
    }
    return h;
}

static void post(void *ctx)
{
    sem_post(ctx);
}

/* Does the shell know the program that the command begins with? Words that it would expand or read otherwise pass. */
static bool program_is_known(const char *command, struct error *err)
{
    char word[256];
    const char *from = command + strspn(command, " \t");
    size_t len = strcspn(from, " \t\n;&|");
    if (len == 0 || len >= sizeof word || strcspn(from, "=$`\"'\\(){}<>*?[~#!") < len)
        return true;
    snprintf(word, sizeof word, "%.*s", (int)len, from);
    char *argv[] = { "sh", "-c", "command -v -- \"$1\" >/dev/null 2>&1", "sh", word, NULL };
    pid_t pid;
    int status = 0, rv = child_spawn(&pid, "/bin/sh", NULL, 0, argv, NULL);
    if (rv != 0)
        return child_unspawned(rv, "/bin/sh", err);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status == 0
           || error_set(err, ERR_USAGE, "'environment': there is no program '%s' (harness '%.400s'); give its path, or install it", word,
                        command);
}

bool harness_try(const struct harness_config *config, const struct turn *t, struct turn_answer *out, struct error *err)
{
    struct harness_config c = *config;
    struct harness *h = NULL;
    struct turn_job *job = NULL;
    sem_t done;
    bool ok = false;
    if (sem_init(&done, 0, 0) != 0)
        return error_errno(err, "cannot wait for the harness");
    c.wake = post;
    c.ctx = &done;
    TRY(program_is_known(c.command, err));
    TRY(h = harness_new(&c, err));
    do {
        turn_job_free(job);
        job = turn_job_new(0);
        TRY((job && (job->row = strdup(t->row)) && (job->from = strdup("start/0")))
            || error_set(err, ERR_NO_MEMORY, "no memory for a session"));
        job->turn = (struct turn){ .item = t->item, .sample = t->sample, .seed = t->seed, .row = job->row, .from = job->from };
        TRY(harness_put(h, job, err));
        while (!(job = harness_done(h)))
            while (sem_wait(&done) != 0) {    // a signal
            }
    } while (job->answer.later);
    *out = job->answer;
    job->answer.json = NULL;
    ok = true;
out:
    harness_free(h);
    turn_job_free(job);
    sem_destroy(&done);
    return ok;
}
