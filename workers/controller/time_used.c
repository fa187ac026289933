/* How long the run has gone. */
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "workers/controller/controller.h"

double run_used_s(const struct controller *c)
{
    return (double)(c->used_before_ms + clock_ms() - c->started_ms) / 1000;
}

bool run_used_keep(struct controller *c, struct error *err)
{
    c->used_kept_ms = clock_ms();
    return number_put(c, "used_ms", c->used_before_ms + c->used_kept_ms - c->started_ms, err);
}

/* A failure loses some seconds of the time at most. That the journal cannot be written is found with what must be in it. */
void run_used_note(struct controller *c)
{
    struct error err;
    if (!transaction(c, &err) || !run_used_keep(c, &err))
        log_warn("the time used is not noted: %s", err.text);
}
