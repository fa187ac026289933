/* Events for the journal: sent to the controller until it has them. */
#include "workers/agent/agent_parts.h"
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"

/* Put an event into the journal and on the operators' screens, through the controller. When NOTE_MAX are already waiting, it goes
 * into the log only. */
void note_add(struct agent *a, const char *kind, const char *who, const char *text)
{
    log_warn("%s: %s", who, text);
    for (int i = 0; i < NOTE_MAX; i++)
        if (!a->note[i].text[0]) {
            struct note *n = &a->note[i];
            *n = (struct note){ 0 };
            snprintf(n->id, sizeof n->id, "agent-%d-%" PRId64, (int)getpid(), clock_ns());
            snprintf(n->kind, sizeof n->kind, "%s", kind);
            snprintf(n->who, sizeof n->who, "%s", who);
            snprintf(n->text, sizeof n->text, "%s", text);
            return;
        }
}

int64_t notes_due(const struct agent *a)
{
    int64_t due = INT64_MAX;
    for (int i = 0; i < NOTE_MAX; i++)
        if (a->note[i].text[0] && !a->note[i].open)
            due = MIN(due, a->note[i].again_ms);
    return due;
}

void notes_tick(struct agent *a)
{
    struct error err;
    int64_t now = clock_ms();
    for (int i = 0; i < NOTE_MAX; i++) {
        struct note *n = &a->note[i];
        struct msg_out m = MSG_OUT_INIT;
        if (!n->text[0] || n->open || now < n->again_ms)
            continue;
        msg_begin(&m, MSG_PUBLISH);
        msg_str(&m, "topic", "event");
        msg_map(&m, "body");
        msg_str(&m, "id", n->id);
        msg_str(&m, "kind", n->kind);
        msg_str(&m, "who", n->who);
        msg_str(&m, "text", n->text);
        msg_end(&m);
        n->open = msg_finish(&m, &err) && peer_ask(a->controller, &m, NOTE_LIMIT_MS, TAG_NOTE + (uint64_t)i, &err);
        n->again_ms = now + 200;
        msg_release(&m);
    }
}

void note_answered(struct agent *a, const struct net_event *ev)
{
    struct note *n = &a->note[ev->tag - TAG_NOTE];
    n->open = false;
    if (!ev->failed)
        n->text[0] = 0;
}
