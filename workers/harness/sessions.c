/* sessions.c - what a session has and is told: answers to the worker, the replies so far, and its record on the disk */
#include "workers/harness/harness_parts.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/digest.h"
#include "protocol/base/json_text.h"
#include "protocol/base/thread.h"
#include "protocol/record/bounds.h"

#define FRESH_MAX 8    // times that a session starts over since its program asks otherwise

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

void job_fail(struct harness *h, struct turn_job *job, enum score_state score, const char *why)
{
    job->answer.state = score;
    snprintf(job->answer.reason, sizeof job->answer.reason, "%s", why);
    job_finish(h, job);
}

void job_later(struct harness *h, struct turn_job *job)
{
    job->answer.later = true;
    job_finish(h, job);
}

struct turn_job *asked_pop(struct session *s)
{
    struct turn_job *job = s->asked;
    s->asked = NULL;
    return job;
}

void session_tell(struct harness *h, struct session *s, json_t *o)
{
    job_answer(h, asked_pop(s), o);
}

void end_tell(struct harness *h, struct session *s)
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

void requests_refuse(struct session *s, const char *why)
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

void program_end(struct harness *h, struct session *s)
{
    requests_refuse(s, "this session's program is being ended");
    if (!player_runs(&s->player))
        return;
    player_end(&s->player, 0);
    h->n_running--;
    s->thinks_ms = 0;
    s->end_ms = 0;
}

void replies_clear(struct session *s)
{
    for (int64_t i = 0; i < s->n_reply; i++)
        free(s->reply[i]);
    s->n_reply = s->n_served = 0;
    json_array_clear(s->request);
}

bool reply_add(struct session *s, const char *text)
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

void session_release(struct session *s)
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

void session_drop(struct harness *h, struct session *s)
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

json_t *reply_read(const char *text)
{
    return json_str_read(text, JSON_ALLOW_NUL, NULL);
}

bool record_fits(const json_t *record, const struct session *s, int64_t from)
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

json_t *record_find(const struct harness *h, const struct session *s)
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

void record_end(const json_t *record, struct session *s)
{
    const json_t *end = json_object_get(record, "end"), *reward = json_object_get(end, "reward"), *acc = json_object_get(end, "ans_acc");
    s->score = SCORE_OK;
    s->has_reward = json_double_get(reward, &s->reward);
    s->has_acc = json_double_get(acc, &s->acc);
}

bool record_take(const struct harness *h, struct session *s)
{
    json_t *record = record_find(h, s);
    bool same = record && s->n_reply == (int64_t)json_array_size(json_object_get(record, "request")) && record_fits(record, s, 0);
    if (same)
        record_end(record, s);
    json_decref(record);
    return same;
}

bool record_write(struct harness *h, const struct session *s, struct error *err)
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

void session_over(struct harness *h, struct session *s, enum score_state score, const char *why)
{
    s->state = SESSION_OVER;
    s->score = score;
    snprintf(s->reason, sizeof s->reason, "harness: %s", why);
    if (score != SCORE_OK)
        program_end(h, s);
    requests_refuse(s, "this session has ended");
    s->thinks_ms = 0;
}

void session_start_over(struct harness *h, struct session *s)
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
