/* Letters: what the controller must be told, sent until it has answered. */
#include "workers/node/gate_parts.h"
#include "protocol/base/clock.h"
#include "protocol/base/log.h"

#define LETTER_TAG 16

struct msg_out *letter_begin(struct gate *g, enum msg_type type)
{
    for (int i = 0; i < LETTERS_MAX; i++)
        if (!g->letter[i].msg.buf.len) {
            g->letter[i] = (struct letter){ .msg = MSG_OUT_INIT };
            msg_begin(&g->letter[i].msg, type);
            g->n_letter = MAX(g->n_letter, i + 1);
            return &g->letter[i].msg;
        }
    return NULL;    // the log has it
}

void event_tell(struct gate *g, const char *kind, const char *who, const char *text)
{
    struct error err;
    struct msg_out *m = letter_begin(g, MSG_PUBLISH);
    log_info("%s", text);
    if (!m)
        return;
    msg_str(m, "topic", "event");
    msg_map(m, "body");
    msg_str(m, "kind", kind);
    msg_str(m, "who", who);
    msg_str(m, "text", text);
    msg_end(m);
    if (!msg_finish(m, &err))
        msg_release(m);
}

void letters_tick(struct gate *g)
{
    struct error err;
    int64_t now = clock_ms();
    while (g->n_letter > 0 && !g->letter[g->n_letter - 1].msg.buf.len)
        g->n_letter--;
    for (int i = 0; i < g->n_letter; i++) {
        struct letter *l = &g->letter[i];
        if (!l->msg.buf.len || l->open || now < l->again_ms)
            continue;
        l->open = peer_ask(g->controller, &l->msg, 5000, LETTER_TAG + (uint64_t)i, &err);
        l->again_ms = now + 200;
    }
}

int64_t letters_due(const struct gate *g)
{
    int64_t due = INT64_MAX;
    for (int i = 0; i < g->n_letter; i++)
        if (g->letter[i].msg.buf.len && !g->letter[i].open)
            due = MIN(due, g->letter[i].again_ms);
    return due;
}

bool letter_answered(struct gate *g, const struct net_event *ev)
{
    if (ev->peer != g->controller || ev->tag < LETTER_TAG || ev->tag >= LETTER_TAG + LETTERS_MAX)
        return false;
    struct letter *l = &g->letter[ev->tag - LETTER_TAG];
    l->open = false;
    if (!ev->failed)
        msg_release(&l->msg);
    return true;
}
