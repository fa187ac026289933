/* webhook.c - a run's alerts and its end, sent to a chat's or another service's webhook
 *
 * Alerts, critical alarms that begin, and how the run ended are read from the journal in order; what is new is sent as one POST:
 * Slack's {"text": ...}, or {"run", "events": [{kind, step, time, text}]} for any other receiver. The cursor says what was sent, so
 * that a restart repeats nothing but a message whose answer was lost. A receiver that is away is asked again with growing pauses and
 * holds up nothing; after the run's end it has END_MS. The address is a secret: it is read from a file, and never logged. */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/bearer.h"
#include "protocol/base/client.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "protocol/base/utf8.h"
#include "protocol/run/run_state.h"
#include "workers/export/export.h"
#include "workers/export/rows.h"

#define EVENTS_MAX 32    // of one message; the rest go with the next
#define TEXT_MAX 1000    // bytes of an event's text
#define REQUEST_S 20
#define PAUSE_MIN_MS 1000    // between messages, and after the first failure
#define PAUSE_MAX_MS 60000
#define END_MS 60000

struct webhook {
    char url[BEARER_MAX], run[256];
    bool slack;
    struct client client;
    json_t *events;      // what is to be sent
    int64_t seq;         // of the newest event that was read
    int64_t sent_seq;    // of the newest that needs no sending any more
};

static bool is_end(const struct journal_event *e)
{
    return strcmp(e->kind, "state") == 0 && run_state_is_over(run_state_find(e->text));
}

static bool event_take(void *arg, const struct journal_event *e)
{
    struct webhook *w = arg;
    if (json_array_size(w->events) == EVENTS_MAX)
        return false;
    w->seq = e->seq;
    if (!event_alerts(e) && !is_end(e))
        return true;
    char text[TEXT_MAX + 1];
    utf8_copy(text, sizeof text, e->text, strlen(e->text));
    json_t *one = json_pack("{s:s, s:I, s:f, s:o}", "kind", e->kind, "step", (json_int_t)e->step, "time", e->wall_s, "text",
                            json_text_new(text));
    return one && json_array_append_new(w->events, one) == 0;
}

/* The message's body; NULL: no memory. */
static char *body_make(const struct webhook *w)
{
    struct buf text = BUF_INIT;
    size_t i;
    const json_t *e;
    json_t *body = NULL;
    if (w->slack) {
        buf_fmt(&text, "rollcall %s", w->run);
        json_array_foreach(w->events, i, e)
            buf_fmt(&text, "\n%s, step %" PRId64 ": %s", json_string_value(json_object_get(e, "kind")),
                    (int64_t)json_integer_value(json_object_get(e, "step")), json_string_value(json_object_get(e, "text")));
        body = json_pack("{s:s}", "text", buf_text(&text));
    } else {
        body = json_pack("{s:s, s:O}", "run", w->run, "events", w->events);
    }
    char *out = body ? json_text_dump(body, JSON_COMPACT) : NULL;
    json_decref(body);
    buf_release(&text);
    return out;
}

/* *gone: the receiver will never take it. */
static bool message_send(struct webhook *w, bool *gone)
{
    struct error err;
    char *body = body_make(w);
    long status = 0;
    *gone = false;
    if (!body)
        return false;
    bool ok = client_post(&w->client, "the webhook", w->url, body, REQUEST_S, &status, &err) || status / 100 == 2;
    free(body);
    if (ok)
        return true;
    if (status)    // what it says may hold the address
        log_warn("alerts could not be sent: the webhook answered with status %ld", status);
    else
        log_warn("alerts could not be sent: %s", err.text);
    *gone = status / 100 == 4 && status != 408 && status != 429;
    return false;
}

static bool webhook_open(struct webhook *w, const struct export_request *r, struct error *err)
{
    const char *slash;
    char full[4200];
    if (!r->webhook_file)
        return error_set(err, ERR_USAGE, "the webhook's address is needed: --webhook-file FILE");
    if (!bearer_read(w->url, r->webhook_file, err))
        return false;
    w->slack = r->webhook_format && strcmp(r->webhook_format, "auto") != 0 ? strcmp(r->webhook_format, "slack") == 0
                                                                           : strstr(w->url, "://hooks.slack.com/") != NULL;
    snprintf(full, sizeof full, "%s", r->run_dir);
    for (size_t n = strlen(full); n > 1 && full[n - 1] == '/';)
        full[--n] = 0;
    slash = strrchr(full, '/');
    snprintf(w->run, sizeof w->run, "%s", slash && slash[1] ? slash + 1 : full);
    w->events = json_array();
    if (!w->events)
        return error_set(err, ERR_NO_MEMORY, "no memory for a webhook");
    bool ok = client_init(&w->client, "the webhook", NULL, err);
    w->client.ignores_body = true;
    return ok;
}

static void webhook_release(struct webhook *w)
{
    client_release(&w->client);
    json_decref(w->events);
    explicit_bzero(w->url, sizeof w->url);
}

bool export_webhook(const struct export_request *r, struct error *err)
{
    struct webhook w = { .seq = 0 };
    struct cursor cursor;
    int64_t pause_ms = PAUSE_MIN_MS, next_ms = 0, end_ms = 0;
    bool ok = false, gone;
    struct journal *j = journal_open_reader(r->run_dir, err);
    TRY(j && cursor_read(&cursor, r->run_dir, "webhook", err) && webhook_open(&w, r, err));
    w.seq = w.sent_seq = cursor.extra;
    for (;;) {
        bool last = !r->follow || !run_goes_on(j, r->run_dir);
        TRY(journal_events_read(j, w.seq, NULL, event_take, &w, err));
        bool full = json_array_size(w.events) == EVENTS_MAX, sent = json_array_size(w.events) == 0;
        if (!sent && clock_ms() >= next_ms) {
            sent = message_send(&w, &gone);
            if (gone)
                log_warn("%zu alerts are given up", json_array_size(w.events));
            pause_ms = sent || gone ? PAUSE_MIN_MS : MIN(pause_ms * 2, PAUSE_MAX_MS);
            next_ms = clock_ms() + pause_ms;
            sent = sent || gone;
        }
        if (sent && w.seq != w.sent_seq) {
            json_array_clear(w.events);
            w.sent_seq = cursor.extra = w.seq;
            TRY(cursor_write(&cursor, r->run_dir, "webhook", err));
        }
        end_ms = last && end_ms == 0 ? clock_ms() + END_MS : end_ms;
        if (last && ((sent && !full) || clock_ms() >= end_ms)) {
            if (!sent)
                log_warn("the run has ended, and %zu alerts are not sent", json_array_size(w.events));
            break;
        }
        if (last)
            poll(NULL, 0, 200);
        else
            rows_wait(r->run_dir, 1000);
    }
    ok = true;
out:
    webhook_release(&w);
    journal_close(j);
    return ok;
}
