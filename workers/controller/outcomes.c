#include "workers/controller/outcomes.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/log.h"
#include "workers/controller/controller.h"

/* An outcome as the journal has it: "+step text" or "-code text". */
static const char *outcome_text(const char *outcome)
{
    const char *blank = strchr(outcome, ' ');
    return blank ? blank + 1 : "";
}

static void outcome_answer(struct controller *c, struct request *r, const char *outcome)
{
    struct msg_out m = MSG_OUT_INIT;
    const char *text = outcome_text(outcome);
    if (outcome[0] == '+') {
        msg_begin(&m, MSG_OK);
        msg_str(&m, "effect", text);
        msg_i64(&m, "step", strtoll(outcome + 1, NULL, 10));
    } else {
        char code[32];
        snprintf(code, sizeof code, "%.*s", (int)MIN((size_t)(text - outcome - 2), sizeof code - 1), outcome + 1);
        msg_begin(&m, MSG_REFUSED);
        msg_str(&m, "code", code);
        msg_str(&m, "reason", text);
    }
    answer_later(c, r, &m);
}

bool outcome_again(struct controller *c, struct request *r, const char *id, bool *known, struct error *err)
{
    struct buf outcome = BUF_INIT;
    bool ok = transaction(c, err) && journal_command_get(c->journal, id, &outcome, known, err);
    if (ok && *known)
        outcome_answer(c, r, buf_text(&outcome));
    buf_release(&outcome);
    return ok;
}

static void outcome_set(struct controller *c, struct request *r, const char *id, const char *who, const char *outcome, const char *detail)
{
    struct error err;
    event_add(c, "command", who, outcome_text(outcome), detail);
    if (!transaction(c, &err) || !journal_command_put(c->journal, id, outcome, &err))
        log_error("a command's outcome is not kept: %s", err.text);
    outcome_answer(c, r, outcome);
}

void outcome_ok(struct controller *c, struct request *r, const char *id, const char *who, const char *text, const char *detail)
{
    struct buf outcome = BUF_INIT;
    struct error err;
    if (buf_fmt(&outcome, "+%" PRId64 " %s", c->step, text)) {
        outcome_set(c, r, id, who, buf_text(&outcome), detail);
    } else {
        error_set(&err, ERR_NO_MEMORY, "it has taken effect, but there is no memory to say it: %.200s", text);
        refuse_later(c, r, &err);
    }
    buf_release(&outcome);
}

void outcome_failed(struct controller *c, struct request *r, const char *id, const char *who, const struct error *why)
{
    char outcome[1200];
    snprintf(outcome, sizeof outcome, "-%s %.1023s", error_code_name(why->code), why->text);
    outcome_set(c, r, id, who, outcome, "");
}
