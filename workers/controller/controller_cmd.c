/* The controller's process: one loop. See controller.h for its invariants. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/subcommand.h"
#include "protocol/base/log.h"
#include "workers/controller/controller.h"
#include "workers/controller/evaluating.h"
#include "workers/controller/groups.h"
#include "workers/controller/history.h"
#include "workers/controller/reports.h"
#include "workers/controller/rollback.h"
#include "workers/controller/status.h"

#define CONTROLLER_WAITING (2 * WORKER_MAX)    // requests held open at once, at most
#define EVENTS_AT_ONCE 256                     // of a turn
#define LOOK_MS 1000                           // whether our place is still ours

/* What is not here is not for the controller. A handler takes the request. */
// clang-format off
static void (*const handlers[MSG_TYPE_COUNT])(struct controller *c, struct request *r, const struct msg_in *in) = {
    [MSG_WORK] = work_asked,
    [MSG_GROUP] = group_came,
    [MSG_STOPPED] = tails_stopped,
    [MSG_FETCH] = fetch_asked,
    [MSG_EVALUATED] = evaluated_came,
    [MSG_DONE] = done_came,
    [MSG_GONE] = gone_told,
    [MSG_COMMAND] = command_came,
    [MSG_STEPS] = steps_asked,
    [MSG_EVENTS] = events_asked,
    [MSG_ROLLOUTS] = rollouts_asked,
    [MSG_CHECKPOINTS] = checkpoints_asked,
    [MSG_STATUS] = status_asked,
    [MSG_PUBLISH] = event_told,
};
// clang-format on

static void request_dispatch(struct controller *c, struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    if (!msg_read_request(&in, ev->data, ev->len, &err)) {
        refuse_later(c, ev->request, &err);
        return;
    }
    if (handlers[in.type]) {
        handlers[in.type](c, ev->request, &in);
    } else {
        error_set(&err, ERR_UNSUPPORTED, "'%s' is not for the controller", msg_specs[in.type].name);
        refuse_later(c, ev->request, &err);
    }
    msg_in_release(&in);
}

static void phase_tell(struct controller *c)
{
    char waits[160] = "";
    if (c->state == RUN_STARTING)
        snprintf(waits, sizeof waits, "a worker that has loaded the model");
    else if (orders_first(c))
        snprintf(waits, sizeof waits, "command '%s' to take effect", orders_first(c));
    process_phase(&c->process, run_state_name(c->state), waits);
}

/* When the next turn has something to do though nothing has come. */
static int64_t controller_due(const struct controller *c)
{
    return MIN(workers_due(c), MIN(orders_due(c), storage_due(c)));
}

/* One turn of the loop: what has come, what follows from it, the journal, the answers. True: it has
 * changed something that its earlier parts have not seen, so the next turn must not wait. */
static bool turn(struct controller *c, int64_t pause_ms)
{
    struct net_event ev;
    bool again = false;
    int n = 0;
    while (n++ < EVENTS_AT_ONCE && process_wait(&c->process, &ev, n == 1 ? pause_ms : 0)) {
        again = true;
        if (ev.kind == NET_REQUEST)
            request_dispatch(c, &ev);
        else if (ev.kind == NET_ANSWER)
            rescore_answered(c, &ev);
        net_event_release(&ev);
    }
    storage_note(c);
    rescore_tick(c);
    rollback_tick(c);    // before the run ends: it may be what its last checkpoint was waited for
    evaluating_tick(c);
    missing_tick(c);
    run_tick(c);
    again = workers_tick(c) || again;
    orders_tick(c);
    storage_tick(c);
    again = again || answers_wait(c);
    answers_send(c);
    if (!c->in_transaction)
        checkpoints_move(&c->checkpoints);
    if (c->ledger)    // after the answers: nobody waits for it
        again = rollout_log_turn(c->log, c->ledger, c->rollout_path, c->now.rollout_log_interval) || again;
    controller_check(c);
    phase_tell(c);
    c->process.progress++;    // its work is to turn this loop: it is late only when it is not heard
    return again;
}

/* Once a second: a controller whose socket another one has taken must not write on. */
static void place_look(const struct controller *c, int64_t *looked_ms)
{
    if (clock_ms() < *looked_ms + LOOK_MS)
        return;
    *looked_ms = clock_ms();
    if (!server_is_ours(c->server)) {
        log_error("another controller has taken our place; ending");
        _exit(1);
    }
}

static void loop(struct controller *c)
{
    int64_t looked_ms = clock_ms();
    bool again = true;
    while (!process_is_over(&c->process)) {
        again = turn(c, again ? 0 : process_pause_ms(&c->process, MIN(controller_due(c), looked_ms + LOOK_MS)));
        place_look(c, &looked_ms);
    }
    log_info("ends at step %" PRId64 ", %s", c->step, run_state_name(c->state));
}

static bool controller_cmd(int argc, char **argv, struct error *err)
{
    const char *run_dir = NULL, *name = "controller";
    if (!process_args(argc, argv, "rollcall controller", &run_dir, &name, err))
        return false;
    log_component(name);
    struct controller *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, ERR_NO_MEMORY, "no memory for the controller");
    bool ok = false;
    TRY(process_init(&c->process, run_dir, name, err));
    c->process.detail = detail_write;
    c->process.ctx = c;
    c->ending = doctor_end;
    c->ended = orders_end;
    TRY(controller_open(c, run_dir, err));
    process_pace(&c->process, c->config.heartbeat_s);
    TRY(!c->config.enable_profiling || process_profile(&c->process, err));
    TRY(c->server = server_new(c->process.transport, "controller", CONTROLLER_WAITING, err));
    log_info("run '%s' at step %" PRId64 " of %" PRId64 ", incarnation %" PRId64, run_dir, c->step, c->max_steps, c->incarnation);
    loop(c);
    ok = true;
out:
    controller_close(c);
    process_release(&c->process);
    free(c);
    return ok;
}

const struct subcommand controller_subcommand = { "controller", controller_cmd, NULL };
