/* programs.c - the life of a session: what its program asks, and how it begins and ends
 *
 * WAITS (session_new: for its turn among max_sessions) -> RUNS (program_begin) -> OVER (session_over). A failed program makes it WAIT
 * again with the replies it has (program_failed), one that asks otherwise than before without (session_start_over). A session with a record is
 * never begun: RECORDED answers from it, and WAITS when it does not fit.
 *
 * A request of the program is in the session's queue (request_take), then in flight (request_hand: it has gone to the worker as the answer
 * to a turn) until the next turn brings its reply (reply_take). n_served replies of n_reply have been given to the program that runs now;
 * while there are others its requests are compared with those they answered. */
#include "workers/harness/harness_parts.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/hold.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "protocol/base/thread.h"
#include "protocol/record/bounds.h"
#include "workers/engine/reward/line_program.h"

#define REFUSED_MAX 64    // requests of a session that were refused; then it is left out
#define GRACE_MS 2000     // for a program to end after its reward

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

void reply_send(struct door_request *q, const char *text)
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

void asked_refuse(struct harness *h, struct session *s, struct door_request *q, int status, const char *code, const char *why)
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
        asked_refuse(h, s, q, 400, NULL, why);
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
        asked_refuse(h, s, q, 400, NULL, "the body is not UTF-8");
    } else if (s->n_reply >= h->config.max_turns) {
        asked_refuse(h, s, q, 400, "max_turns", "this session has had all its turns ('max_turns' of the run); give its reward");
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

void clock_mind(struct session *s)
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

void session_go(struct harness *h, struct session *s)
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

void program_begin(struct harness *h, struct session *s)
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

void program_ended(struct harness *h, struct session *s)
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
