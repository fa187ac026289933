/* worker_cmd.c - the worker's process: its loop between controller, scorer and engine
 *
 * The controller decides, the worker asks. The worker requests work whenever the engine is idle and nothing of its own
 * is on the way (the answer may then be any task), or while it samples and has room (then only more items). Groups and
 * reports of tasks are resent until they are answered; the controller recognises them by item or task, so duplicates do
 * no harm. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/subcommand.h"
#include "protocol/run/node.h"
#include "workers/worker/network.h"
#include "workers/worker/worker_parts.h"

static void wake(void *ctx)
{
    process_wake(&((struct worker_process *)ctx)->process);
}

static void gauges_write(void *ctx, struct msg_out *m)
{
    struct worker_process *w = ctx;
    struct engine_look look;
    engine_look(w->engine, &look);
    msg_i64(m, "step", look.step);
    msg_i64(m, "version", look.version);
    msg_i64(m, "items", look.n_item + look.n_item_ending);
    msg_i64(m, "running", look.n_running);
    if (look.n_page > 0) {
        msg_i64(m, "waiting", look.n_waiting);
        msg_i64(m, "pages_used", look.n_page_used);
        msg_i64(m, "pages", look.n_page);
        msg_i64(m, "put_back", look.n_put_back);
    }
    msg_f64(m, "tok_per_s", look.tok_per_s);
    if (w->config.serve[0]) {
        msg_i64(m, "guests", look.n_guest);
        msg_i64(m, "guest_tok", look.guest_tok);
    }
    if (!isnan(look.publish_ms))
        msg_f64(m, "publish_ms", look.publish_ms);
    if (!isnan(look.ranks_idle_s)) {
        msg_f64(m, "ranks_idle_s", look.ranks_idle_s);
        msg_f64(m, "ranks_exposed_s", look.ranks_exposed_s);
    }
}

static void phase_tell(struct worker_process *w, const struct engine_look *look)
{
    w->process.progress = MAX(w->process.progress, look->progress);
    if (!look->idle)
        process_phase(&w->process, look->phase, look->waits_for);
    else if (w->n_score_open > 0)
        process_phase(&w->process, "scoring", "scorer");
    else if (w->parcels || w->fetching)
        process_phase(&w->process, "waiting", "controller to take or give groups");
    else if (look->away)
        process_phase(&w->process, "waiting", "its engine to come back");
    else
        process_phase(&w->process, "waiting", "controller to give work");
}

static void worker_turn(struct worker_process *w)
{
    struct engine_look look;
    w->turned_ms = clock_ms();
    reports_take(w);
    parcels_send(w);
    backlog_show(w);
    engine_look(w->engine, &look);
    phase_tell(w, &look);
    tasks_tick(w, &look);
}

static void worker_loop(struct worker_process *w)
{
    struct net_event ev;
    while (!process_is_over(&w->process)) {
        int n = 0;
        int64_t due = MIN(parcels_due(w), tasks_due(w));    // the engine's thread wakes the loop on any change
        while (n++ < 64 && process_wait(&w->process, &ev, n == 1 ? process_pause_ms(&w->process, due) : 0)) {
            if (ev.kind == NET_ANSWER && ev.tag == TAG_WORK)
                tasks_answered(w, &ev);
            else if (ev.kind == NET_ANSWER && ev.tag == TAG_FETCH)
                groups_answered(w, &ev);
            else if (ev.kind == NET_ANSWER)
                parcel_answered(w, &ev);
            net_event_release(&ev);
        }
        worker_turn(w);
    }
}

static bool worker_cmd(int argc, char **argv, struct error *err)
{
    const char *run_dir = NULL, *name = NULL;
    char path[4200];
    bool ok = false;
    struct worker_process *w = calloc(1, sizeof *w);
    if (!w)
        return error_set(err, ERR_NO_MEMORY, "no memory for a worker");
    TRY(process_args(argc, argv, "rollcall worker", &run_dir, &name, err));
    log_component(name);
    w->incarnation = -1;
    run_config_init(&w->config);
    snprintf(path, sizeof path, "%s/run.yaml", run_dir);
    TRY(run_config_read(&w->config, path, err) && run_id_read(run_dir, w->run_id, err));
    TRY(node_config(&w->config, run_dir, err));
    TRY(network_choose(&w->config, run_dir, err));
    const char *device = strchr(name, ' ');    // "worker cpu:0"
    if (!device) {
        error_set(err, ERR_USAGE, "'%s' does not name a device, as 'worker cpu:0' does", name);
        goto out;
    }
    TRY(process_init(&w->process, run_dir, name, err));
    process_pace(&w->process, w->config.heartbeat_s);
    TRY(!w->config.enable_profiling || process_profile(&w->process, err));
    TRY(w->controller = peer_new(w->process.transport, "controller", err));
    TRY(w->scorer = peer_new(w->process.transport, "scorer", err));
    TRY(run_config_part(&w->config, device + 1, &w->part, err));
    int64_t n_thread = w->config.threads, n_device = run_config_n_device(&w->config);
    if (n_thread == 0 && n_device > 1)
        n_thread = MAX(sysconf(_SC_NPROCESSORS_ONLN) / n_device, 1);
    TRY(w->engine = engine_new(&w->config, run_dir, device + 1, (int)n_thread, wake, w, err));
    w->process.gauges = gauges_write;
    w->process.ctx = w;
    worker_loop(w);
    ok = true;
out:
    if (w->engine) {
        struct engine_look look;
        engine_look(w->engine, &look);
        if (!look.idle)    // in the middle of a computation that is no longer needed
            _exit(ok ? 0 : 1);
    }
    engine_free(w->engine);
    parcels_release(w);
    task_free(w->fetching);
    free(w->fetch_item);
    process_release(&w->process);
    free(w);
    return ok;
}

const struct subcommand worker_subcommand = { "worker", worker_cmd, NULL };
