#include "workers/controller/posted.h"
#include <inttypes.h>
#include <stdio.h>
#include "protocol/run/doctor.h"
#include "protocol/wire/message.h"
#include "workers/controller/controller.h"

void posted_heard(struct controller *c, const struct mval *posted)
{
    struct posted *p = &c->posted;
    char text[400];
    double n = mval_f64(mval_get(posted, "refused"), 0);
    if (!posted)
        return;
    p->n_before = n < p->n_refused ? 0 : p->n_before;    // the door has started again
    p->n_refused = n;
    mval_text(posted, "refusal", p->refusal, sizeof p->refusal);
    if (n == 0 || p->refusal_told)
        return;
    p->refusal_told = true;
    snprintf(text, sizeof text, "a group that an environment posted was refused: %s; env/refused counts more of them", p->refusal);
    event_add(c, "alert", "environments", text, "");
}

void posted_taken(struct controller *c, const struct msg_in *group)
{
    struct posted *p = &c->posted;
    char text[400];
    p->n_before = p->n_refused;
    if (p->no_logp_told || !mval_bool(mval_get(group->root, "no_logp"), false))
        return;
    p->no_logp_told = true;
    snprintf(
        text, sizeof text,
        "environments post groups without 'inference_logprobs', first for item %" PRId64
        "; the trainer takes the log-probs of its own weights for them, so nothing corrects for older weights or a server's other kernels",
        mval_i64(mval_get(group->root, "item"), -1));
    event_add(c, "weights", "environments", text, "");
}

bool posted_judge(const struct controller *c, struct diagnosis *d)
{
    const struct posted *p = &c->posted;
    if (!(p->n_refused > p->n_before))
        return false;
    d->kind = c->step == 0 ? DIAGNOSIS_CRIT : DIAGNOSIS_WARN;
    d->name = "refused posts";
    snprintf(d->text, sizeof d->text, "environments' groups are refused, %.0f since one was taken: %.200s", p->n_refused - p->n_before,
             p->refusal);
    snprintf(d->remedy, sizeof d->remedy, "have the environment post what this names; it has got the same sentence as the answer 422");
    return true;
}
