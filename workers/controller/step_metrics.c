#include "workers/controller/step_metrics.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/settings/metrics.h"
#include "workers/controller/controller.h"

static void metric_put(struct step_metrics *s, const char *name, double value)
{
    int i = 0;
    while (i < s->n && strcmp(s->name[i], name) != 0)
        i++;
    if (i == (int)ARRAY_SIZE(s->value))
        return;
    if (i == s->n) {
        snprintf(s->name[i], sizeof s->name[i], "%s", name);
        s->value[i].name = s->name[i];
        s->n++;
    }
    s->value[i].value = value;
}

/* One of the controller's own. */
static void metric_own(struct step_metrics *s, enum metric_id id, double value)
{
    BUG_IF(metrics[id].by != BY_CONTROLLER, "'%s' is not the controller's to compute", metrics[id].name);
    metric_put(s, metrics[id].name, value);
}

/* What a batch has seen of the groups that went by. */
struct seen {
    struct group_summary sum;
    int64_t n, same, filtered;    // groups: all; those whose samples are all worth the same; those that were left out
    int64_t judged, right, wrong, filtered_right,
        filtered_wrong;                             // with a sample whose ans_acc is known; of these all right, none right; of the filtered
    double solve_rate;                              // sum over the judged ones
    int64_t rollout_step, first_item, last_item;    // the newest; -1: there is no group
};

static struct seen batch_seen(const struct controller *c, int64_t batch)
{
    const struct ledger_item *item[BATCH_MAX];
    struct seen s = { .n = ledger_batch_seen(c->ledger, batch, item, ARRAY_SIZE(item)), .first_item = -1, .last_item = -1 };
    for (int64_t k = 0; k < s.n; k++) {
        const struct group_summary *g = &item[k]->summary;
        s.sum.n_sample += g->n_sample;
        s.sum.n_scored += g->n_scored;
        s.sum.n_again += g->n_again;
        s.sum.n_truncated += g->n_truncated;
        s.sum.n_left_out += g->n_left_out;
        s.sum.n_tok += g->n_tok;
        s.sum.n_tok_max = MAX(s.sum.n_tok_max, g->n_tok_max);
        s.sum.reward_sum += g->reward_sum;
        s.sum.reward_sum2 += g->reward_sum2;
        s.sum.n_format += g->n_format;
        s.sum.n_ans += g->n_ans;
        s.sum.format_sum += g->format_sum;
        s.sum.ans_sum += g->ans_sum;
        s.same += !(g->reward_low < g->reward_high);
        s.filtered += item[k]->fate == LEDGER_FILTERED;
        if (g->n_ans > 0) {
            bool all = g->ans_sum >= (double)g->n_ans, none = g->ans_sum <= 0, filtered = item[k]->fate == LEDGER_FILTERED;
            s.judged++;
            s.solve_rate += g->ans_sum / (double)g->n_ans;
            s.right += all;
            s.wrong += none;
            s.filtered_right += all && filtered;
            s.filtered_wrong += none && filtered;
        }
        s.rollout_step = MAX(s.rollout_step, item[k]->rollout_step);
        s.first_item = s.first_item < 0 ? item[k]->item : s.first_item;
        s.last_item = item[k]->item;
    }
    return s;
}

bool step_metrics_ends_episode(struct controller *c, int64_t batch)
{
    struct seen seen = batch_seen(c, batch);
    return seen.n > 0 && (seen.last_item + 1) / c->n_row > seen.first_item / c->n_row;
}

/* What the ledger knows of the groups that went by since the step before. */
static void batch_metrics(struct controller *c, int64_t batch)
{
    struct step_metrics *s = &c->metrics;
    struct seen seen = batch_seen(c, batch);
    const struct group_summary *sum = &seen.sum;
    struct ledger_counts counts;
    double groups = seen.n > 0 ? (double)seen.n : NAN, samples = sum->n_sample > 0 ? (double)sum->n_sample : NAN;
    double judged = seen.judged > 0 ? (double)seen.judged : NAN;
    double scored = sum->n_scored > 0 ? (double)sum->n_scored : NAN, mean = sum->reward_sum / scored;
    metric_own(s, M_REWARD, mean);
    metric_own(s, M_REWARD_STD, sqrt(fmax(sum->reward_sum2 / scored - mean * mean, 0)));
    metric_own(s, M_FORMAT_ACC, sum->n_format > 0 ? sum->format_sum / (double)sum->n_format : NAN);
    metric_own(s, M_ANS_ACC, sum->n_ans > 0 ? sum->ans_sum / (double)sum->n_ans : NAN);
    metric_own(s, M_RESPONSE_LENGTH, (double)sum->n_tok / samples);
    metric_own(s, M_LENGTH_MAX, (double)sum->n_tok_max);
    metric_own(s, M_TRUNCATED, (double)sum->n_truncated / samples);
    metric_own(s, M_LEFT_OUT, (double)sum->n_left_out / samples);
    metric_own(s, M_PATHS, run_config_harness(&c->config) ? samples / (samples - (double)sum->n_again) : NAN);
    metric_own(s, M_NO_SPREAD, (double)seen.same / groups);
    metric_own(s, M_FILTERED, (double)seen.filtered / groups);
    metric_own(s, M_GROUPS, (double)seen.n);
    metric_own(s, M_SOLVE_RATE, seen.solve_rate / judged);
    metric_own(s, M_ALL_RIGHT, (double)seen.right / judged);
    metric_own(s, M_NONE_RIGHT, (double)seen.wrong / judged);
    metric_own(s, M_FILTERED_GROUPS, (double)seen.filtered);
    metric_own(s, M_FILTERED_ALL_RIGHT, seen.judged > 0 ? (double)seen.filtered_right : NAN);
    metric_own(s, M_FILTERED_NONE_RIGHT, seen.judged > 0 ? (double)seen.filtered_wrong : NAN);
    ledger_counts(c->ledger, 1, &counts);
    metric_own(s, M_BUFFER_DEPTH, (double)counts.returned);
    int64_t n_solved = c->config.no_resampling_pass_rate > 0 && seen.n > 0 ? solved_until(c, seen.rollout_step) : -1;
    metric_own(s, M_SOLVED_PROMPTS, n_solved >= 0 ? (double)n_solved : NAN);
    if (levels_on(c))
        metric_own(s, M_LEVEL, seen.n > 0 ? (double)levels_at(c, seen.rollout_step) : NAN);
    metric_own(s, M_ROLLOUT_STEP, (double)seen.rollout_step);
    metric_own(s, M_EPISODE, seen.n > 0 ? (double)(seen.last_item / c->n_row) : NAN);
    metric_own(s, M_TOKENS_TOTAL, (double)c->counts.total.n_tok);
    metric_own(s, M_SAMPLES_TOTAL, (double)c->counts.total.n_sample);
}

/* What the groups know of their scoring that came in the step_s seconds since the step before. */
static void score_metrics(struct controller *c, double step_s)
{
    struct step_metrics *s = &c->metrics;
    metric_own(s, M_SCORE_S, s->scored.wait_s);
    metric_own(s, M_SCORE_LATENCY_MS, s->scored.n > 0 ? 1000 * s->scored.verify_s / (double)s->scored.n : NAN);
    metric_own(s, M_SCORE_QUEUE, step_s > 0 ? s->scored.response_s / step_s : NAN);    // Little's law: number = rate x wait
    metric_own(s, M_SCORE_TIMEOUTS, (double)c->counts.total.n_timeout);
    metric_own(s, M_SCORE_ERRORS, (double)c->counts.total.n_error);
}

void step_metrics_posted(struct step_metrics *s, const struct mval *posted)
{
    if (!posted)
        return;
    s->posted.known = true;
    s->posted.environments = mval_f64(mval_get(posted, "environments"), NAN);
    s->posted.per_min = mval_f64(mval_get(posted, "per_min"), NAN);
    s->posted.waiting = mval_f64(mval_get(posted, "waiting"), NAN);
    s->posted.age = mval_f64(mval_get(posted, "age"), NAN);
    s->posted.refused = mval_f64(mval_get(posted, "refused"), NAN);
    s->posted.full = mval_f64(mval_get(posted, "full"), NAN);
}

void step_metrics_fetched(struct step_metrics *s, const struct mval *fetched)
{
    double file = mval_f64(mval_get(fetched, "file_bytes"), NAN), wire = mval_f64(mval_get(fetched, "wire_bytes"), NAN);
    if (!(file > 0 && wire > 0))
        return;
    s->fetched.file_bytes += file;
    s->fetched.wire_bytes += wire;
    s->fetched.longest_s = fmax(s->fetched.longest_s, mval_f64(mval_get(fetched, "s"), 0));
}

void step_metrics_sampled(struct step_metrics *s, const struct mval *sampled)
{
    double put_back = (double)mval_i64(mval_get(sampled, "n_put_back"), -1);
    if (!sampled)
        return;
    s->sampled.generate_s += mval_f64(mval_get(sampled, "generate_s"), 0);
    s->sampled.tail_s += mval_f64(mval_get(sampled, "tail_s"), 0);
    s->sampled.gap_s += mval_f64(mval_get(sampled, "gap_s"), 0);
    s->sampled.n_gap += mval_get(sampled, "gap_s") != NULL;
    s->sampled.n_tok += (double)mval_i64(mval_get(sampled, "n_tok"), 0);
    s->sampled.n_draft += (double)mval_i64(mval_get(sampled, "n_draft"), 0);
    s->sampled.n_accepted += (double)mval_i64(mval_get(sampled, "n_accepted"), 0);
    s->sampled.n_put_back += put_back < 0 ? NAN : put_back;
    s->sampled.flops += mval_f64(mval_get(sampled, "flops"), NAN);
    s->sampled.flops_most += mval_f64(mval_get(sampled, "flops_most"), NAN);
    s->sampled.bytes += mval_f64(mval_get(sampled, "bytes"), NAN);
    s->sampled.bytes_most += mval_f64(mval_get(sampled, "bytes_most"), NAN);
}

/* What sampling has cost. Trainers that sample say it of themselves; where none does, the workers that only sample say it. */
static void sampled_metrics(struct step_metrics *s, int64_t n_producer)
{
    double one_s = s->sampled.generate_s / (double)n_producer;
    bool told = step_metric(s, metrics[M_GENERATE_S].name) > 0;
    if (!told && !(one_s > 0))
        return;    // groups that end together: the seconds came, or will come, with the first
    struct step_sampled all = s->sampled;
    memset(&s->sampled, 0, sizeof s->sampled);
    if (told)
        return;
    metric_put(s, metrics[M_GENERATE_S].name, one_s);
    metric_put(s, metrics[M_ROLLOUT_TOK_PER_S].name, all.n_tok / one_s);
    metric_put(s, metrics[M_IDLE_SHARE].name, all.tail_s / all.generate_s);
    metric_own(s, M_GAP_SHARE, all.n_gap > 0 ? all.gap_s / all.generate_s : NAN);
    metric_put(s, metrics[M_DRAFT_ACCEPTANCE].name, all.n_draft > 0 ? all.n_accepted / all.n_draft : NAN);
    metric_put(s, metrics[M_PUT_BACK].name, all.n_put_back);
    metric_put(s, metrics[M_ROLLOUT_MFU].name, all.flops / all.flops_most);
    metric_put(s, metrics[M_ROLLOUT_MBU].name, all.bytes / all.bytes_most);
}

static void fetched_metrics(struct step_metrics *s)
{
    if (!(s->fetched.wire_bytes > 0))
        return;
    metric_own(s, M_NODES_FETCH_S, s->fetched.longest_s);
    metric_own(s, M_NODES_SENT_GB, s->fetched.wire_bytes * 1e-9);
    metric_own(s, M_NODES_DELTA_RATIO, s->fetched.file_bytes / s->fetched.wire_bytes);
}

static void posted_metrics(struct step_metrics *s)
{
    if (!s->posted.known)
        return;
    metric_own(s, M_ENV_COUNT, s->posted.environments);
    metric_own(s, M_ENV_PER_MIN, s->posted.per_min);
    metric_own(s, M_ENV_WAITING, s->posted.waiting);
    metric_own(s, M_ENV_AGE, s->posted.age);
    metric_own(s, M_ENV_REFUSED, s->posted.refused);
    metric_own(s, M_ENV_FULL, s->posted.full);
}

/* What the trainer has measured; what the ledger knows of all groups, one worker cannot know. */
static void told_take(struct step_metrics *s, const struct mval *told)
{
    s->n = 0;
    for (int64_t k = 0; k < mval_n(told); k++) {
        size_t len;
        char name[96];
        const char *key = mval_key(told, k, &len);
        if (!key || len >= sizeof name)
            continue;
        memcpy(name, key, len);
        name[len] = 0;
        if (!metric_is_controllers(name))
            metric_put(s, name, mval_f64(mval_at(told, k), NAN));
    }
}

void step_metrics_make(struct controller *c, int64_t batch, const struct mval *told)
{
    struct step_metrics *s = &c->metrics;
    step_metrics_pause(s, s->resting_ms > 0);
    double paused_s = (double)s->paused_ms / 1000, step_s = (double)(clock_ms() - s->step_ms) / 1000 - paused_s;
    told_take(s, told);
    double idle_s = step_metric(s, metrics[M_IDLE_S].name);
    if (paused_s > 0 && !isnan(idle_s))    // a trainer does not know that it waits because of a pause
        metric_put(s, metrics[M_IDLE_S].name, fmax(idle_s - paused_s, 0));
    sampled_metrics(s, c->config.num_inferencer);
    batch_metrics(c, batch);
    metric_own(s, M_STEP_S, step_s);
    score_metrics(c, step_s);
    posted_metrics(s);
    fetched_metrics(s);
    if (c->config.listen_lent[0])
        metric_own(s, M_LENT_REFUSED, (double)c->counts.total.n_refused);
    if (c->config.apply_evolving_rubric_reward) {
        metric_own(s, M_RUBRICS_ACTIVE, s->rubrics.n > 0 ? (double)s->rubrics.n_judged / (double)s->rubrics.n : NAN);
        metric_own(s, M_RUBRICS_WRITTEN, (double)s->rubrics.n_written);
        metric_own(s, M_RUBRICS_FAILED, (double)s->rubrics.n_failed);
    }
    if (c->config.over_sample_rate > 0) {
        metric_own(s, M_STOPPED_GROUPS, (double)s->stopped.n);
        metric_own(s, M_STOPPED_TOKENS, (double)s->stopped.n_tok);
    }
    /* the first trainer measured these, and reported them when the save was done */
    metric_put(s, metrics[M_CHECKPOINT_STALL_S].name, c->checkpoints.stall_s);
    metric_put(s, metrics[M_CHECKPOINT_WRITE_S].name, c->checkpoints.write_s);
    if (s->host_mem_bytes > 0)
        metric_own(s, M_HOST_MEM_GIB, s->host_mem_bytes / (1 << 30));
    s->step_s_mean = step_s_mean(s->step_s_mean, step_s);
    step_metrics_restart(s);
}

void step_metrics_restart(struct step_metrics *s)
{
    s->step_ms = clock_ms();
    s->paused_ms = 0;
    s->resting_ms = s->resting_ms > 0 ? s->step_ms : 0;
    memset(&s->scored, 0, sizeof s->scored);
    memset(&s->stopped, 0, sizeof s->stopped);
    memset(&s->rubrics, 0, sizeof s->rubrics);
    memset(&s->fetched, 0, sizeof s->fetched);
}

void step_metrics_pause(struct step_metrics *s, bool paused)
{
    int64_t now = clock_ms();
    if (s->resting_ms > 0)
        s->paused_ms += now - s->resting_ms;
    s->resting_ms = paused ? now : 0;
}

void step_metrics_group(struct step_metrics *s, const struct group_summary *group)
{
    s->scored.wait_s += group->score_s;
    s->scored.response_s += group->score_s * (double)group->n_sample;
    s->scored.verify_s += group->verify_s;
    s->scored.n += group->n_sample;
}

void step_metrics_rubrics(struct step_metrics *s, int64_t n_judged, int64_t n_written, bool failed)
{
    s->rubrics.n++;
    s->rubrics.n_judged += n_judged;
    s->rubrics.n_written += n_written;
    s->rubrics.n_failed += failed;
}

void step_metrics_stopped(struct step_metrics *s, int64_t n_tok)
{
    s->stopped.n++;
    s->stopped.n_tok += n_tok;
}

void step_metrics_host(struct step_metrics *s, double mem_bytes)
{
    s->host_mem_bytes = mem_bytes;
}

double step_metric(const struct step_metrics *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->name[i], name) == 0)
            return s->value[i].value;
    return NAN;
}

void step_metrics_write(const struct step_metrics *s, struct msg_out *m)
{
    msg_map(m, "metrics");
    for (int i = 0; i < s->n; i++)
        msg_f64(m, s->name[i], s->value[i].value);
    msg_end(m);
}
