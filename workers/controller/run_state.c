/* The run's state: controller.h, invariant 5. */
#include <stdarg.h>
#include <stdio.h>
#include "protocol/base/hold.h"
#include "protocol/base/log.h"
#include "protocol/run/run_failure.h"
#include "workers/controller/controller.h"

bool run_is_over(const struct controller *c)
{
    return run_state_is_over(c->state);
}

void state_set(struct controller *c, enum run_state state, const char *who, const char *text)
{
    if (c->state == state)
        return;
    char line[1200];
    if (run_state_is_over(state))
        c->ending(c);
    snprintf(line, sizeof line, "%s%s%s", run_state_name(state), text[0] ? ": " : "", text);
    c->state = state;
    run_used_note(c);
    step_metrics_pause(&c->metrics, state == RUN_PAUSED);
    if (text != c->reason)    // a reason that stays must not be printed onto itself
        snprintf(c->reason, sizeof c->reason, "%s", text);
    event_add_facts(c, "state", who, line, run_state_facts(state, text));
    if (run_is_over(c))
        c->ended(c);
    process_phase(&c->process, run_state_name(state), "");
    hold_point(run_state_name(state));
}

void run_fail(struct controller *c, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (run_is_over(c))
        return;
    struct error err;
    log_error("the run fails: %s", text);
    if (!run_failure_write(c->process.run_dir, text, &err))    // the journal may be what has failed
        log_error("%s", err.text);
    state_set(c, RUN_FAILED, "controller", text);
}
