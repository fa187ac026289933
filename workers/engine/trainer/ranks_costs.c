/* ranks_costs.c - what a step costs the ranks: bytes and time on their way, and which rank waited for which */
#include "protocol/settings/metrics.h"
#include "workers/engine/trainer/ranks_impl.h"
#include "workers/engine/trainer/ranks.h"
#include "workers/engine/trainer/step.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/trainer/update.h"

/* What every rank tells the others of its step. */
struct told_cost {
    double reduce_s, gather_s, reduce_gb, gather_gb, reduce_host_gb, gather_host_gb;
    struct ranks_cost own;
    float late_s[RANK_MAX];    // that it waited for this rank to compute
};

/* The rank that the others have waited for longest, and how long one of them did; -1: nobody waited. */
static int late_find(const struct told_cost *all, int n_rank, double *late_s)
{
    int late = -1;
    double most = 0;
    for (int q = 0; q < n_rank; q++) {
        double sum = 0, longest = 0;
        for (int r = 0; r < n_rank; r++) {
            sum += (double)all[r].late_s[q];
            longest = MAX(longest, (double)all[r].late_s[q]);
        }
        if (sum > most) {
            most = sum;
            late = q;
            *late_s = longest;
        }
    }
    return late;
}

static bool stats_take(struct end *e, void *stats, struct error *err)
{
    return exchange_stats_take(e->x, (struct exchange_stats *)stats + e->index, err);
}

/* What the devices of the rank have sent together since the last such call, and the longest of their times, which run beside each
 * other. */
bool ranks_stats_join(struct rank *k, struct exchange_stats *s, struct error *err)
{
    struct exchange_stats each[SUM_PARTS_MAX];
    *s = (struct exchange_stats){ 0 };
    if (!ranks_ends_do(k, stats_take, each, err))
        return false;
    for (int q = 0; q < k->n_end; q++) {
        const struct exchange_stats *e = &each[q];
        s->reduce_bytes += e->reduce_bytes;
        s->gather_bytes += e->gather_bytes;
        s->reduce_host_bytes += e->reduce_host_bytes;
        s->gather_host_bytes += e->gather_host_bytes;
        s->reduce_s = MAX(s->reduce_s, e->reduce_s);
        s->gather_s = MAX(s->gather_s, e->gather_s);
        s->exposed_s = MAX(s->exposed_s, e->exposed_s);
        s->late_sum_s = MAX(s->late_sum_s, e->late_sum_s);
        for (int o = 0; o < k->r->n_rank; o++)
            s->late_s[o] = MAX(s->late_s[o], e->late_s[o]);
    }
    return true;
}

/* How the ranks have waited for each other, and what they sent: on every rank the same, but for its own. */
bool ranks_costs_note(struct ranks *r, double *metric, struct error *err)
{
    struct exchange_stats s;
    struct told_cost own = { 0 }, all[RANK_MAX];
    double late_s = 0, idle_s = 0, exposed_s = 0, reduce_host_gb = 0, gather_host_gb = 0;
    int n_host = trainer_n_rank_host(r->here[0].t);
    _Static_assert(sizeof own <= COLLECTIVE_GATHER_MAX, "it is gathered at once");
    if (!ranks_stats_join(&r->here[0], &s, err))
        return false;
    own.reduce_s = s.reduce_s;
    own.gather_s = s.gather_s;
    own.reduce_gb = (double)s.reduce_bytes * 1e-9;
    own.gather_gb = (double)s.gather_bytes * 1e-9;
    own.reduce_host_gb = (double)s.reduce_host_bytes * 1e-9;
    own.gather_host_gb = (double)s.gather_host_bytes * 1e-9;
    own.own = (struct ranks_cost){ .idle_s = s.late_sum_s, .exposed_s = s.exposed_s };
    for (int q = 0; q < r->n_rank; q++)
        own.late_s[q] = (float)s.late_s[q];
    if (!ranks_gather(r, &own, sizeof own, all, err))
        return false;
    for (int q = 0; q < r->n_rank; q++) {
        r->cost[q] = all[q].own;
        idle_s = MAX(idle_s, all[q].own.idle_s);
        exposed_s = MAX(exposed_s, all[q].own.exposed_s);
        reduce_host_gb += all[q].reduce_host_gb;
        gather_host_gb += all[q].gather_host_gb;
    }
    int late = late_find(all, r->n_rank, &late_s);
    metric[M_RANKS_S] = own.own.idle_s + own.own.exposed_s;
    metric[M_RANKS_IDLE_S] = idle_s;
    metric[M_RANKS_EXPOSED_S] = exposed_s;
    if (late >= 0) {
        metric[M_RANKS_LATE] = late;
        metric[M_RANKS_LATE_S] = late_s;
    }
    metric[M_RANKS_REDUCE_S] = own.reduce_s;
    metric[M_RANKS_GATHER_S] = own.gather_s;
    metric[M_RANKS_REDUCE_GB] = own.reduce_gb;
    metric[M_RANKS_GATHER_GB] = own.gather_gb;
    metric[M_RANKS_SENT_GB] = own.reduce_gb + own.gather_gb;
    if (n_host > 0 && n_host < r->n_rank) {
        metric[M_HOSTS_REDUCE_GB] = reduce_host_gb;
        metric[M_HOSTS_GATHER_GB] = gather_host_gb;
    }
    return true;
}

/* How the stages of the trainer's pipeline have waited for each other. */
bool ranks_stages_note(struct ranks *r, double *metric, struct error *err)
{
    struct trainer *t = r->here[0].t;
    const double *idle_s;
    double most = 0;
    int n = trainer_stages(t, &idle_s);
    if (!trainer_stages_measure(t, err))
        return false;
    for (int q = 0; q < n; q++)
        most = MAX(most, idle_s[q]);
    if (n > 0) {
        metric[M_STAGES_N] = n;
        metric[M_STAGES_IDLE_S] = most;
    }
    return true;
}

int ranks_costs(const struct ranks *r, const struct ranks_cost **cost)
{
    *cost = r->cost;
    return r->n_rank;
}
