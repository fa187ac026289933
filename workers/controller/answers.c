#include "workers/controller/answers.h"
#include <stdlib.h>
#include "protocol/base/hold.h"
#include "workers/controller/controller.h"

void answer_later(struct controller *c, struct request *r, struct msg_out *m)
{
    struct error err;
    if (!msg_finish(m, &err)) {
        refuse_later(c, r, &err);
        msg_release(m);
        return;
    }
    if (c->answers.n == c->answers.cap) {
        int cap = MAX(2 * c->answers.cap, 64);
        struct answer *p = realloc(c->answers.answer, (size_t)cap * sizeof *p);
        if (!p) {
            request_drop(r);
            msg_release(m);
            return;
        }
        c->answers.answer = p;
        c->answers.cap = cap;
    }
    c->answers.answer[c->answers.n++] = (struct answer){ r, *m };
    *m = MSG_OUT_INIT;
}

void refuse_later(struct controller *c, struct request *r, const struct error *why)
{
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_REFUSED);
    msg_str(&m, "code", error_code_name(why->code));
    msg_str(&m, "reason", why->text);
    answer_later(c, r, &m);
}

void answer_or_refuse_later(struct controller *c, struct request *r, bool ok, struct msg_out *m, const struct error *why)
{
    if (ok) {
        answer_later(c, r, m);
    } else {
        refuse_later(c, r, why);
        msg_release(m);
    }
}

void ok_later(struct controller *c, struct request *r)
{
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_OK);
    answer_later(c, r, &m);
}

bool transaction(struct controller *c, struct error *err)
{
    if (c->in_transaction)
        return true;
    c->in_transaction = journal_begin(c->journal, err);
    return c->in_transaction;
}

void answers_send(struct controller *c)
{
    struct error err;
    bool ok = true;
    if (c->in_transaction) {
        c->in_transaction = false;
        ok = journal_commit(c->journal, &err);
        if (!ok) {
            journal_rollback(c->journal);
            run_fail(c, "the journal cannot be written: %s", err.text);
        }
    }
    if (ok && c->ship_due)
        journal_ship(c->journal);
    c->ship_due = c->ship_due && !ok;
    if (c->answers.n > 0)
        hold_point("answering");
    for (int i = 0; i < c->answers.n; i++) {
        if (ok)
            request_answer(c->answers.answer[i].request, &c->answers.answer[i].msg);
        else
            request_refuse(c->answers.answer[i].request, &err);
        msg_release(&c->answers.answer[i].msg);
    }
    c->answers.n = 0;
    if (!c->in_transaction)    // a failed commit has begun the next one, with the event that says so
        journal_rest(c->journal);
}

bool answers_wait(const struct controller *c)
{
    return c->in_transaction || c->answers.n > 0;
}

void answers_release(struct answers *a)
{
    for (int i = 0; i < a->n; i++)
        msg_release(&a->answer[i].msg);
    free(a->answer);
    *a = (struct answers){ 0 };
}
