#include "workers/controller/events.h"
#include <stdlib.h>
#include "protocol/base/clock.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "workers/controller/controller.h"

#define UNHEARD_MAX 64    // messages that the agent has not taken: it is away, and telemetry may be lost

static void told_send(struct controller *c, struct msg_out *m)
{
    struct error err;
    if (!msg_finish(m, &err) || !peer_ask(c->process.agent, m, 2000, 0, &err))
        log_debug("not published: %s", err.text);
    msg_release(m);
}

void publish(struct controller *c, const char *topic, void (*body)(struct controller *c, struct msg_out *m))
{
    struct msg_out m = MSG_OUT_INIT;
    if (peer_n_open(c->process.agent) > UNHEARD_MAX)
        return;
    msg_begin(&m, MSG_PUBLISH);
    msg_str(&m, "topic", topic);
    msg_map(&m, "body");
    body(c, &m);
    msg_end(&m);
    told_send(c, &m);
}

void event_add(struct controller *c, const char *kind, const char *who, const char *text, const char *detail)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    log_info("%s: %s", kind, text);
    if (!transaction(c, &err) || !journal_event_add(c->journal, c->incarnation, c->step, kind, who, text, detail, &err))
        log_error("event not written: %s", err.text);
    if (peer_n_open(c->process.agent) > UNHEARD_MAX)
        return;
    msg_begin(&m, MSG_PUBLISH);
    msg_str(&m, "topic", "event");
    msg_map(&m, "body");
    msg_f64(&m, "time", clock_wall_s());
    msg_i64(&m, "step", c->step);
    msg_str(&m, "kind", kind);
    msg_str(&m, "who", who);
    msg_str(&m, "text", text);
    if (detail[0])
        msg_str(&m, "detail", detail);
    msg_end(&m);
    told_send(c, &m);
}

void event_add_facts(struct controller *c, const char *kind, const char *who, const char *text, json_t *facts)
{
    char *detail = facts ? json_text_dump(facts, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    event_add(c, kind, who, text, detail ? detail : "");
    free(detail);
    json_decref(facts);
}
