#include "protocol/run/run_last.h"
#include <stdio.h>
#include <string.h>
#include "protocol/record/journal.h"
#include "protocol/run/run_failure.h"

static bool state_take(void *arg, const struct journal_event *e)
{
    struct run_last *last = arg;
    last->state = run_state_read(e->detail, strlen(e->detail), last->reason, sizeof last->reason);
    return true;
}

bool run_last_read(struct journal *j, const char *run_dir, bool live, struct run_last *last, struct error *err)
{
    *last = (struct run_last){ .state = RUN_UNKNOWN };
    if (!journal_events_read(j, 0, "state", state_take, last, err) || !journal_last_step(j, &last->step, err))
        return false;
    if (live || run_state_is_over(last->state))
        return true;
    last->state = RUN_FAILED;
    last->reason[0] = 0;
    if (!run_failure_read(run_dir, last->reason, sizeof last->reason)) {    // else it could no longer write its journal
        last->killed = true;
        snprintf(last->reason, sizeof last->reason,
                 "all its processes have ended; 'rollcall train --resume' continues from the last checkpoint");
    }
    return true;
}
