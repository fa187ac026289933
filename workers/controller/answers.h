/* answers.h - answers that wait until the journal has what they say */
#pragma once
#include "protocol/wire/message.h"
#include "protocol/base/error.h"

struct controller;
struct request;
struct answers {
    struct answer {
        struct request *request;
        struct msg_out msg;
    } * answer;    // (n) owned
    int n, cap;
};
void answer_later(struct controller *c, struct request *r, struct msg_out *m);    // takes m
void refuse_later(struct controller *c, struct request *r, const struct error *why);
/* Answer with m when ok, else refuse with why; takes m in both cases. */
void answer_or_refuse_later(struct controller *c, struct request *r, bool ok, struct msg_out *m, const struct error *why);
void ok_later(struct controller *c, struct request *r);
/* Begin a transaction of the journal if none is open; answers_send ends it. */
MUST_USE bool transaction(struct controller *c, struct error *err);
/* Commit, then send what waits. When the journal cannot be written nothing that depends on it is acknowledged, and the run fails. */
void answers_send(struct controller *c);
bool answers_wait(const struct controller *c);    // is there anything to commit or to send?
void answers_release(struct answers *a);          // unsent
