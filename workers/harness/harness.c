/* harness.c - the life of a session
 *
 * WAITS (session_new: for its turn among max_sessions) -> RUNS (program_begin) -> OVER (session_over). A failed program makes it WAIT
 * again with the replies it has (program_failed), one that asks otherwise than before without (session_start_over). A session with a record is
 * never begun: RECORDED answers from it, and WAITS when it does not fit.
 *
 * A request of the program is in the session's queue (request_take), then in flight (request_hand: it has gone to the worker as the answer
 * to a turn) until the next turn brings its reply (reply_take). n_served replies of n_reply have been given to the program that runs now;
 * while there are others its requests are compared with those they answered. */
#include "workers/harness/harness.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
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
#include "protocol/base/digest.h"
#include "protocol/base/file.h"
#include "protocol/base/hold.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "protocol/base/thread.h"
#include "protocol/record/bounds.h"
#include "workers/engine/reward/line_program.h"
#include "workers/harness/door.h"
#include "workers/harness/player.h"
#include "workers/harness/record.h"

#define SESSIONS_MAX 16384    // also those that are over and may be asked about again
#define QUEUE_MAX 16          // requests of a session that wait; more are refused
#define REFUSED_MAX 64        // requests of a session that were refused; then it is left out
#define FRESH_MAX 8           // times that a session starts over since its program asks otherwise
#define LATER_MS 5000         // a turn without an answer is answered with `later`
#define GRACE_MS 2000         // for a program to end after its reward

enum session_state {
    SESSION_WAITS,
    SESSION_RUNS,
    SESSION_RECORDED,
    SESSION_OVER,
};
struct session {
    struct session *next;    // oldest first
    enum session_state state;
    char *from;    // as in struct turn; owned, as the next
    char *row;
    int64_t serial, sample, item, seed;
    char key[DOOR_KEY_MAX];
    char **reply;    // (n_reply) texts, owned
    int64_t n_reply, n_served;
    json_t *request;           // the n_reply requests that they answer, {"path", "body", "ask"}; null where none is known yet
    struct turn_job *asked;    // the turn that waits for an answer; NULL: the worker draws, or has not asked
    int64_t asked_ms;
    bool fresh;                           // the worker is to start over, and has not done so
    char flight_ask[65];                  // the request that the worker draws for, by its hash; "": none
    struct door_request *flight;          // the same; NULL: none, or its program has gone
    struct door_request *first, *last;    // requests that wait
    int n_queue;
    struct player player;
    int n_restart, n_fresh, n_refused;
    int64_t used_ms, thinks_ms;    // the program's own time so far; since when it is its turn, 0: it is not
    int64_t end_ms;                // when a program that is not wanted any more is killed; 0: it is wanted
    json_t *record;                // RECORDED
    /* how it ended */
    enum score_state score;
    char reason[48];
    bool has_reward, has_acc;
    double reward, acc;
};
struct harness {
    struct harness_config config;
    struct door *door;
    struct records *records;    // NULL: nothing is kept
    pthread_t thread;
    bool has_thread;
    int wake;    // eventfd: there is news for the thread
    atomic_bool closing;
    struct session *session;    // the thread's own, as the next two
    int64_t n_session, n_running;
    struct pollfd *fds;      // (2 max_sessions + 1) owned
    struct session **at;     // (2 max_sessions + 1) whose they are; owned
    pthread_mutex_t lock;    // guards: all below
    struct turn_job *in_first, *in_last, *done_first, *done_last;
    int64_t n_in;
    struct harness_stats stats;
};

static void wake_up(void *ctx)
{
    struct harness *h = ctx;
    uint64_t one = 1;
    (void)!write(h->wake, &one, sizeof one);    // EAGAIN: it is awake
}

/* ---- answers to the worker ---- */

static void job_finish(struct harness *h, struct turn_job *job)
{
    pthread_mutex_lock(&h->lock);
    h->stats.n_turn += !job->answer.later;
    h->stats.n_timeout += job->answer.state == SCORE_TIMEOUT;
    h->stats.n_error += job->answer.state == SCORE_ERROR;
    turn_job_push(&h->done_first, &h->done_last, job);
    pthread_mutex_unlock(&h->lock);
    h->config.wake(h->config.ctx);
}

/* Answer a turn with this object, which is taken; NULL: no memory. */
static void job_answer(struct harness *h, struct turn_job *job, json_t *o)
{
    job->answer.json = o ? json_text_dump(o, JSON_COMPACT) : NULL;
    job->answer.state = job->answer.json ? SCORE_OK : SCORE_ERROR;
    if (!job->answer.json)
        snprintf(job->answer.reason, sizeof job->answer.reason, "harness: no memory");
    json_decref(o);
    job_finish(h, job);
}

/* Answer a turn without an answer of the program: it is left out because of why. */
static void job_fail(struct harness *h, struct turn_job *job, enum score_state score, const char *why)
{
    job->answer.state = score;
    snprintf(job->answer.reason, sizeof job->answer.reason, "%s", why);
    job_finish(h, job);
}

static void job_later(struct harness *h, struct turn_job *job)
{
    job->answer.later = true;
    job_finish(h, job);
}

/* The turn that waits for an answer, which the caller gives. */
static struct turn_job *asked_pop(struct session *s)
{
    struct turn_job *job = s->asked;
    s->asked = NULL;
    return job;
}

static void session_tell(struct harness *h, struct session *s, json_t *o)
{
    job_answer(h, asked_pop(s), o);
}

static void end_tell(struct harness *h, struct session *s)
{
    if (s->score != SCORE_OK) {
        job_fail(h, asked_pop(s), s->score, s->reason);
        return;
    }
    json_t *o = json_pack("{s:b}", "done", 1);
    if (o && s->has_reward)
        json_object_set_new(o, "reward", json_real(s->reward));
    if (o && s->has_acc)
        json_object_set_new(o, "ans_acc", json_real(s->acc));
    session_tell(h, s, o);
}

/* ---- sessions ---- */

static void requests_refuse(struct session *s, const char *why)
{
    if (s->flight)
        door_refuse(s->flight, 410, "session_over", why);
    s->flight = NULL;
    for (struct door_request *q; (q = s->first);) {
        s->first = q->next;
        door_refuse(q, 410, "session_over", why);
    }
    s->last = NULL;
    s->n_queue = 0;
}

/* The program that runs is not needed any more: it goes within wait_ms, and its requests are refused. */
static void program_end(struct harness *h, struct session *s)
{
    requests_refuse(s, "this session's program is being ended");
    if (!player_runs(&s->player))
        return;
    player_end(&s->player, 0);
    h->n_running--;
    s->thinks_ms = 0;
    s->end_ms = 0;
}

static void replies_clear(struct session *s)
{
    for (int64_t i = 0; i < s->n_reply; i++)
        free(s->reply[i]);
    s->n_reply = s->n_served = 0;
    json_array_clear(s->request);
}

static bool reply_add(struct session *s, const char *text)
{
    char **more = realloc(s->reply, (size_t)(s->n_reply + 1) * sizeof *more), *copy = more ? strdup(text) : NULL;
    if (more)
        s->reply = more;
    if (!copy)
        return false;
    s->reply[s->n_reply++] = copy;
    while ((int64_t)json_array_size(s->request) < s->n_reply)
        if (json_array_append_new(s->request, json_null()) != 0)
            return false;
    return true;
}

/* Free a session that is not in the list and has no program. */
static void session_release(struct session *s)
{
    player_release(&s->player);
    replies_clear(s);
    free(s->reply);
    json_decref(s->request);
    json_decref(s->record);
    free(s->from);
    free(s->row);
    free(s);
}

static void session_free(struct harness *h, struct session *s)
{
    struct session **at = &h->session;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    h->n_session--;
    program_end(h, s);
    if (s->asked)
        job_fail(h, asked_pop(s), SCORE_ERROR, "harness: the session was dropped");
    session_release(s);
}

/* The object that a reply's text is. NULL: it is none. */
static json_t *reply_read(const char *text)
{
    return json_str_read(text, JSON_ALLOW_NUL, NULL);
}

/* Are the session's replies from the given one on those that the record's requests got? */
static bool record_fits(const json_t *record, const struct session *s, int64_t from)
{
    bool fits = s->n_reply <= (int64_t)json_array_size(json_object_get(record, "request"));
    for (int64_t i = from; fits && i < s->n_reply; i++) {
        json_t *o = reply_read(s->reply[i]);
        const char *drawn = json_string_value(json_object_get(o, "drawn"));
        const char *was = json_string_value(json_array_get(json_object_get(record, "drawn"), (size_t)i));
        fits = drawn && was && strcmp(drawn, was) == 0;
        json_decref(o);
    }
    return fits;
}

static void row_hash(const struct session *s, char hex[65])
{
    struct digest d;
    digest_init(&d, true);
    digest_add(&d, s->row, strlen(s->row));
    digest_hex(&d, hex);
}

/* The session's record, when it is of the same row and seed. */
static json_t *record_find(const struct harness *h, const struct session *s)
{
    char hex[65];
    json_t *o = s->item < EVAL_ITEM_BASE ? records_get(h->records, s->item, s->sample) : NULL;
    const char *row = json_string_value(json_object_get(o, "row"));
    row_hash(s, hex);
    if (o && row && strcmp(row, hex) == 0 && json_integer_value(json_object_get(o, "seed")) == s->seed)
        return o;
    json_decref(o);
    return NULL;
}

/* Put what the record says of the session's end into it. */
static void record_end(const json_t *record, struct session *s)
{
    const json_t *end = json_object_get(record, "end"), *reward = json_object_get(end, "reward"), *acc = json_object_get(end, "ans_acc");
    s->score = SCORE_OK;
    s->has_reward = json_double_get(reward, &s->reward);
    s->has_acc = json_double_get(acc, &s->acc);
}

/* Take the end that is on the disk, when another session of the same sample has ended meanwhile with the same replies. That is so when a
 * controller was killed and gives items again that are still inside a worker. The reward on the disk is the one that was acknowledged. */
static bool record_take(const struct harness *h, struct session *s)
{
    json_t *record = record_find(h, s);
    bool same = record && s->n_reply == (int64_t)json_array_size(json_object_get(record, "request")) && record_fits(record, s, 0);
    if (same)
        record_end(record, s);
    json_decref(record);
    return same;
}

/* A session that has ended well goes to the disk. True also where it cannot be kept because some of its requests are not known. */
static bool record_write(struct harness *h, const struct session *s, struct error *err)
{
    char hex[65];
    if (!h->records || s->item >= EVAL_ITEM_BASE)
        return true;
    json_t *drawn = json_array(), *end = json_object();
    bool whole = drawn && end;
    for (int64_t i = 0; whole && i < s->n_reply; i++) {
        json_t *o = reply_read(s->reply[i]);
        whole = !json_is_null(json_array_get(s->request, (size_t)i)) && json_array_append(drawn, json_object_get(o, "drawn")) == 0;
        json_decref(o);
    }
    if (whole && s->has_reward)
        json_object_set_new(end, "reward", json_real(s->reward));
    if (whole && s->has_acc)
        json_object_set_new(end, "ans_acc", json_real(s->acc));
    row_hash(s, hex);
    json_t *o = whole ? json_pack("{s:s, s:I, s:O, s:O, s:O}", "row", hex, "seed", (json_int_t)s->seed, "request", s->request, "drawn",
                                  drawn, "end", end)
                      : NULL;
    bool ok = !whole || (o && records_put(h->records, s->item, s->sample, o, err))
              || (!o && error_set(err, ERR_NO_MEMORY, "no memory for a session's record"));
    json_decref(o);
    json_decref(drawn);
    json_decref(end);
    return ok;
}

/* The session is over: it has the reward that was put into it, or, with another score, none because of why. */
static void session_over(struct harness *h, struct session *s, enum score_state score, const char *why)
{
    s->state = SESSION_OVER;
    s->score = score;
    snprintf(s->reason, sizeof s->reason, "harness: %s", why);
    if (score != SCORE_OK)
        program_end(h, s);
    requests_refuse(s, "this session has ended");
    s->thinks_ms = 0;
}

/* Start over: the program asked otherwise than in its former life. */
static void session_start_over(struct harness *h, struct session *s)
{
    program_end(h, s);
    s->fresh = s->n_reply > 0 || s->flight_ask[0] || (s->asked && s->asked->turn.n_text > 0);
    s->flight_ask[0] = 0;
    replies_clear(s);
    s->state = SESSION_WAITS;
    pthread_mutex_lock(&h->lock);
    h->stats.n_fresh++;
    pthread_mutex_unlock(&h->lock);
    if (++s->n_fresh > FRESH_MAX)
        session_over(h, s, SCORE_ERROR, "asks otherwise each time");
}

/* ---- what the program asks ---- */

static struct door_request *request_pop(struct session *s)
{
    struct door_request *q = s->first;
    s->first = q->next;
    s->last = s->first ? s->last : NULL;
    s->n_queue--;
    q->next = NULL;
    return q;
}

/* Note the request that reply i answers. */
static void request_note(struct session *s, int64_t i, const struct door_request *q)
{
    json_t *o = json_pack("{s:s, s:o, s:s}", "path", q->path, "body", json_stringn(q->body, q->len), "ask", q->ask);
    if (i < (int64_t)json_array_size(s->request))
        json_array_set_new(s->request, (size_t)i, o ? o : json_null());
    else
        json_array_append_new(s->request, o ? o : json_null());
}

/* Give a reply to the program. */
static void reply_send(struct door_request *q, const char *text)
{
    json_t *o = reply_read(text), *body = json_object_get(o, "body");
    json_int_t status = json_integer_value(json_object_get(o, "status"));
    if (json_is_string(body) && status >= 200 && status < 600)
        door_answer(q, (int)status, json_is_true(json_object_get(o, "stream")), json_string_value(body), json_string_length(body));
    else
        door_refuse(q, 500, NULL, "the worker gave no answer");
    json_decref(o);
}

static bool reply_is_to(const char *text, const struct door_request *q)
{
    json_t *o = reply_read(text);
    const char *ask = json_string_value(json_object_get(o, "ask"));
    bool is = ask && strcmp(ask, q->ask) == 0;
    json_decref(o);
    return is;
}

static void request_refuse(struct harness *h, struct session *s, struct door_request *q, int status, const char *code, const char *why)
{
    door_refuse(q, status, code, why);
    if (++s->n_refused > REFUSED_MAX && s->state != SESSION_OVER)
        session_over(h, s, SCORE_ERROR, "asks on though it is refused");
}

/* A reward as its program posts or prints it; false: why says what is wrong. */
static bool reward_read(struct session *s, const json_t *o, const char **why)
{
    struct error err;
    double reward, acc = 0;
    json_t *a = json_object_get(o, "ans_acc");
    *why = "'reward' must be a finite number";
    if (!json_double_get(json_object_get(o, "reward"), &reward) || !bound_check(BOUND_REWARD, reward, &err))
        return false;
    *why = "'ans_acc' must be a number or a truth value";
    if (json_is_boolean(a))
        acc = json_is_true(a);
    else if (a && !json_is_null(a) && !json_double_get(a, &acc))
        return false;
    s->has_acc = a && !json_is_null(a);
    s->acc = acc > 0;
    s->has_reward = true;
    s->reward = reward;
    return true;
}

/* The session's reward has come. It is on the disk before it is acknowledged. */
static void reward_take(struct harness *h, struct session *s, struct door_request *q)
{
    static const char taken[] = "{\"status\":\"taken\"}";
    struct error err;
    const char *why;
    json_t *o = json_text_read(q->body, q->len, 0, NULL);
    bool fits = reward_read(s, o, &why);
    json_decref(o);
    if (!fits) {
        request_refuse(h, s, q, 400, NULL, why);
    } else if (s->n_served < s->n_reply || (s->flight_ask[0] && !s->flight)) {    // in its former life it had asked for more
        door_refuse(q, 409, NULL, "this session starts over, since it ends otherwise than before");
        session_start_over(h, s);
    } else if (record_take(h, s)) {
        door_refuse(q, 410, "session_over", "another session of this sample has ended meanwhile, and its reward counts");
        session_over(h, s, SCORE_OK, "");
        s->end_ms = clock_ms() + GRACE_MS;
    } else if (!record_write(h, s, &err)) {
        log_warn("a reward was not taken: %s", err.text);
        door_refuse(q, 503, NULL, "the reward cannot be written to the run's folder");
    } else {
        hold_point("rewarded");
        session_over(h, s, SCORE_OK, "");
        s->end_ms = clock_ms() + GRACE_MS;
        door_answer(q, 200, false, taken, sizeof taken - 1);
    }
}

/* Hand the first request to the worker. */
static void request_hand(struct harness *h, struct session *s)
{
    struct door_request *q = request_pop(s);
    json_t *body = json_stringn(q->body, q->len);
    if (!body) {
        request_refuse(h, s, q, 400, NULL, "the body is not UTF-8");
    } else if (s->n_reply >= h->config.max_turns) {
        request_refuse(h, s, q, 400, "max_turns", "this session has had all its turns ('max_turns' of the run); give its reward");
    } else {
        request_note(s, s->n_reply, q);
        snprintf(s->flight_ask, sizeof s->flight_ask, "%s", q->ask);
        s->flight = q;
        session_tell(h, s, json_pack("{s:{s:s, s:O, s:s}}", "request", "path", q->path, "body", body, "ask", q->ask));
    }
    json_decref(body);
}

/* Take the program's requests as far as that goes now. */
static void requests_serve(struct harness *h, struct session *s)
{
    while (s->first && s->state == SESSION_RUNS) {
        struct door_request *q = s->first;
        if (request_gone(q)) {
            door_refuse(request_pop(s), 400, NULL, "its client has gone");
        } else if (q->kind == REQUEST_REWARD) {
            reward_take(h, s, request_pop(s));
        } else if (s->n_served < s->n_reply) {    // played again
            if (!reply_is_to(s->reply[s->n_served], q)) {
                session_start_over(h, s);
                return;
            }
            request_note(s, s->n_served, q);
            reply_send(request_pop(s), s->reply[s->n_served++]);
        } else if (s->flight_ask[0]) {    // the worker draws for a request, this one or another
            bool same = strcmp(s->flight_ask, q->ask) == 0;
            if (s->flight && !(request_gone(s->flight) && same))
                return;
            if (!same) {
                session_start_over(h, s);
                return;
            }
            if (s->flight)    // its client has given up and asks again
                door_refuse(s->flight, 400, NULL, "its client has gone");
            s->flight = request_pop(s);
        } else if (s->asked && !s->fresh) {
            request_hand(h, s);
        } else {
            return;
        }
    }
}

/* Whose time runs. */
static void clock_mind(struct session *s)
{
    int64_t now = clock_ms();
    bool thinks = s->state == SESSION_RUNS && player_runs(&s->player) && !s->flight && !s->first;
    if (s->thinks_ms)
        s->used_ms += now - s->thinks_ms;
    s->thinks_ms = thinks ? now : 0;
}

/* Answer from the record, or find that it does not fit. */
static void record_serve(struct harness *h, struct session *s)
{
    const json_t *request = json_object_get(s->record, "request");
    int64_t n = (int64_t)json_array_size(request);
    if (!record_fits(s->record, s, s->n_served)) {
        records_drop(h->records, s->item, s->sample);
        json_decref(s->record);
        s->record = NULL;
        s->n_served = 0;
        s->flight_ask[0] = 0;
        s->state = SESSION_WAITS;
        return;
    }
    s->n_served = s->n_reply;
    if (!s->asked)
        return;
    if (s->n_reply == n) {
        record_end(s->record, s);
        session_over(h, s, SCORE_OK, "");
        end_tell(h, s);
        return;
    }
    json_t *q = json_array_get(request, (size_t)s->n_reply);
    const char *ask = json_string_value(json_object_get(q, "ask"));
    snprintf(s->flight_ask, sizeof s->flight_ask, "%s", ask ? ask : "?");
    session_tell(h, s, json_pack("{s:O}", "request", q));
}

/* Go on with a session as far as that goes now. */
static void session_go(struct harness *h, struct session *s)
{
    if (s->state == SESSION_RECORDED)
        record_serve(h, s);
    requests_serve(h, s);
    if (s->asked && s->fresh) {
        if (s->asked->turn.n_text > 0) {
            session_tell(h, s, json_pack("{s:b}", "restart", 1));
        } else {
            s->fresh = false;
            requests_serve(h, s);
        }
    }
    if (s->asked && s->state == SESSION_RUNS && !s->fresh && s->flight_ask[0]) {    // its answer was lost
        json_t *q = json_array_get(s->request, (size_t)s->n_reply);
        if (json_is_object(q))
            session_tell(h, s, json_pack("{s:O}", "request", q));
    }
    if (s->asked && s->state == SESSION_OVER)
        end_tell(h, s);
    clock_mind(s);
}

/* ---- programs ---- */

/* The line that the program reads. */
static char *input_make(const struct harness *h, const struct session *s)
{
    json_t *row = json_str_read(s->row, JSON_ALLOW_NUL, NULL);
    json_t *o = json_pack("{s:I, s:I, s:I, s:o, s:s, s:s}", "item", (json_int_t)s->item, "sample", (json_int_t)s->sample, "seed",
                          (json_int_t)s->seed, "row", row ? row : json_null(), "base_url", door_url(h->door), "model", h->config.model);
    char *text = o ? json_text_dump(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return text;
}

static void program_begin(struct harness *h, struct session *s)
{
    struct error err;
    char dir[4200] = "";
    char *input = input_make(h, s);
    bool ok = input || error_set(&err, ERR_NO_MEMORY, "no memory for a session's program");
    if (ok && h->config.dir[0])
        ok = snprintf(dir, sizeof dir, "%s/session-%" PRId64 ".%" PRId64 "-%.8s", h->config.dir, s->item, s->sample, s->key + 3)
                 < (int)sizeof dir
             || error_set(&err, ERR_IO, "the path of a session's folder is too long");
    struct player_order o = { .command = h->config.command,
                              .url = door_url(h->door),
                              .key = s->key,
                              .model = h->config.model,
                              .input = input,
                              .dir = dir,
                              .errors = h->config.errors };
    ok = ok && player_start(&s->player, &o, &err);
    free(input);
    if (!ok) {
        log_warn("%s", err.text);
        session_over(h, s, SCORE_ERROR, "it cannot be started");
    } else {
        s->state = SESSION_RUNS;
        s->n_served = 0;
        h->n_running++;
    }
    session_go(h, s);
}

/* It has ended before its session had. */
static void program_failed(struct harness *h, struct session *s, int status)
{
    char why[40];
    snprintf(why, sizeof why, status > 128 ? "ended by signal %d" : "exit %d", status > 128 ? status - 128 : status);
    pthread_mutex_lock(&h->lock);
    h->stats.n_restart += s->n_restart < h->config.max_restarts;
    int64_t n = h->stats.n_restart;
    pthread_mutex_unlock(&h->lock);
    if (s->n_restart >= h->config.max_restarts) {
        session_over(h, s, SCORE_ERROR, why);
        return;
    }
    if (is_worth_a_line(n))
        log_warn("the harness '%s' failed (%s) and is started again (%" PRId64 ")", h->config.command, why, n);
    s->n_restart++;
    s->state = SESSION_WAITS;
}

/* The program has ended by itself. */
static void program_ended(struct harness *h, struct session *s)
{
    struct error err;
    const char *why = NULL;
    char text[40];
    int status = player_end(&s->player, 0);
    h->n_running--;
    s->end_ms = 0;
    clock_mind(s);
    if (s->state == SESSION_OVER)
        return;
    requests_serve(h, s);    // what it posted last
    if (s->state != SESSION_RUNS)
        return;
    requests_refuse(s, "this session's program has ended");
    if (status != 0) {
        program_failed(h, s, status);
        return;
    }
    const char *line = player_last_line(&s->player);
    json_t *o = line[0] == '{' ? json_str_read(line, 0, NULL) : NULL;
    const char *error = json_string_value(json_object_get(o, "error"));
    bool rewards = json_object_get(o, "reward") != NULL;
    if (error) {
        snprintf(text, sizeof text, "%s", error);
        session_over(h, s, SCORE_ERROR, text);
    } else if (rewards && !reward_read(s, o, &why)) {
        session_over(h, s, SCORE_ERROR, "its reward is no finite number");
    } else if (!rewards && h->config.wants_reward) {
        session_over(h, s, SCORE_ERROR, "it gave no reward");
    } else if (s->n_served < s->n_reply || s->flight_ask[0]) {
        session_start_over(h, s);
    } else {
        if (!record_take(h, s) && !record_write(h, s, &err))
            log_warn("a session is not kept: %s", err.text);
        session_over(h, s, SCORE_OK, "");
    }
    json_decref(o);
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
            session_free(h, s);
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
        request_refuse(h, s, q, 429, NULL, "this session has too many requests at once");
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
        session_free(h, h->session);
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
