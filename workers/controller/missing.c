#include "workers/controller/missing.h"
#include <inttypes.h>
#include <stdio.h>
#include "protocol/base/buf.h"
#include "protocol/base/clock.h"
#include "protocol/run/doctor.h"
#include "protocol/settings/host_list.h"
#include "workers/controller/controller.h"

#define NAMED_MAX 6    // trainers, and hosts, that are named one by one

static bool trainer_is_here(const struct controller *c, int64_t rank)
{
    for (int i = 0; i < c->workers.n; i++)
        if (c->workers.worker[i].name[0] && c->workers.worker[i].start && c->workers.worker[i].rank == rank)
            return true;
    return false;
}

static bool node_is_here(const struct controller *c, const char *node)
{
    for (int i = 0; i < c->workers.n; i++)
        if (worker_is_of(&c->workers.worker[i], node))
            return true;
    return false;
}

/* Append a name to a list of which n are there. */
static void named_add(struct buf *out, int n, const char *fmt, int64_t number, const char *text)
{
    if (n < NAMED_MAX) {
        buf_str(out, n ? ", " : "");
        buf_fmt(out, fmt, number, text);
    } else if (n == NAMED_MAX) {
        buf_str(out, " and more");
    }
}

/* The trainers of other nodes that are missing, into out; returns how many. Those of this host have an agent that watches them. */
static int trainers_missing(const struct controller *c, struct buf *out)
{
    const struct run_config *k = &c->config;
    int n = 0;
    for (int64_t rank = 0; rank < k->num_trainers; rank++) {
        bool own = rank >= k->first_trainer && rank < k->first_trainer + run_config_trainers_here(k);
        if (!own && !trainer_is_here(c, rank))
            named_add(out, n++, "%" PRId64 "%s", rank, "");
    }
    return n;
}

/* What is known of the machines that are to bring them: those of 'hosts'; others have no name before they come. */
static void hosts_missing(const struct controller *c, struct buf *out)
{
    struct host host[HOSTS_MAX];
    struct error none;
    int n_host = 0, n = 0;
    if (!c->config.hosts[0] || !host_list_read(c->config.hosts, host, &n_host, &none))
        return;
    for (int i = 0; i < n_host; i++)
        if (!node_is_here(c, host[i].node)) {
            buf_str(out, n ? "" : "; these of 'hosts' have not joined: ");
            named_add(out, n++, "%.0" PRId64 "%s", 0, host[i].node);
        }
}

static void who_find(struct controller *c)
{
    struct missing *k = &c->missing;
    struct buf ranks = BUF_INIT, hosts = BUF_INIT;
    int n = trainers_missing(c, &ranks);
    hosts_missing(c, &hosts);
    snprintf(k->who, sizeof k->who, "trainer%s %.60s of another node %s not come%.100s", n == 1 ? "" : "s", buf_text(&ranks),
             n == 1 ? "has" : "have", buf_text(&hosts));
    buf_release(&ranks);
    buf_release(&hosts);
}

/* When the run ends without them. */
static const char *limit_text(const struct controller *c, char *out, size_t size)
{
    if (c->now.join_timeout_s > 0)
        snprintf(out, size, "the run fails after %g s ('join_timeout_s')", c->now.join_timeout_s);
    else
        snprintf(out, size, "the run waits for them without a limit ('join_timeout_s' is 0)");
    return out;
}

void missing_tick(struct controller *c)
{
    struct missing *k = &c->missing;
    struct buf ranks = BUF_INIT;
    char text[480], limit[96];
    int64_t now = clock_ms();
    bool all_here = c->config.num_trainers == 1 || run_is_over(c) || trainers_missing(c, &ranks) == 0;
    buf_release(&ranks);
    if (all_here) {
        if (k->told && !run_is_over(c))
            event_add(c, "node", "controller", "all trainers are here", "");
        *k = (struct missing){ 0 };
        return;
    }
    k->since_ms = k->since_ms ? k->since_ms : now;
    double waited_s = (double)(now - k->since_ms) / 1000;
    if (waited_s < c->now.slow_s)
        return;
    who_find(c);
    if (!k->told) {
        k->told = true;
        snprintf(text, sizeof text, "%s for %.0f s; %s", k->who, waited_s, limit_text(c, limit, sizeof limit));
        event_add(c, "alert", "controller", text, "");
    }
    if (c->now.join_timeout_s > 0 && waited_s >= c->now.join_timeout_s && c->state != RUN_PAUSED)
        run_fail(c, "%s for %.0f s ('join_timeout_s'); 'rollcall train --resume' continues once the node can join", k->who, waited_s);
}

bool missing_judge(const struct controller *c, struct diagnosis *d)
{
    char limit[96];
    if (!c->missing.told)
        return false;
    d->kind = DIAGNOSIS_WARN;
    d->name = "missing trainers";
    snprintf(d->text, sizeof d->text, "no step is made: %s for %.0f s", c->missing.who, (double)(clock_ms() - c->missing.since_ms) / 1000);
    snprintf(d->remedy, sizeof d->remedy, "look at that node's own log, and at RUN/logs/gate.log; %s", limit_text(c, limit, sizeof limit));
    return true;
}
