#include "console/fleet/doctor.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "console/fleet/alarm.h"

/* The inputs of the rules, computed once. Shares are of a step's wall time; NAN: not known. */
struct facts {
    const struct model *m;
    double step_s, generate, score, train, publish, ranks, idle, stall;
    double filtered;           // share of groups
    double longest, median;    // response lengths
    bool at_once;              // generation and training overlap, on devices of their own
};

static double recent(const struct model *m, enum metric_id id)
{
    int64_t n = m->metric[id].n;
    return n == 0 ? NAN : series_query(&m->metric[id], MAX(n - DOCTOR_STEPS, 0), n).mean;
}

static struct facts facts_make(const struct model *m)
{
    struct facts f = { .m = m, .step_s = recent(m, M_STEP_S) };
    f.generate = recent(m, M_GENERATE_S) / f.step_s;
    f.score = recent(m, M_SCORE_S) / f.step_s;
    f.train = recent(m, M_TRAIN_S) / f.step_s;
    f.publish = recent(m, M_PUBLISH_S) / f.step_s;
    f.ranks = recent(m, M_RANKS_S) / f.step_s;
    f.idle = recent(m, M_IDLE_S) / f.step_s;
    f.stall = recent(m, M_CHECKPOINT_STALL_S) / f.step_s;
    f.filtered = recent(m, M_FILTERED);
    f.longest = recent(m, M_LENGTH_MAX);
    f.median = recent(m, M_LENGTH_P50);
    f.at_once = f.generate + f.train > 1.15;
    return f;
}

/* A rule over the shares; the first row whose applies() holds gives the diagnosis. */
struct bound_rule {
    const char *name;
    bool (*applies)(const struct facts *f);
    size_t share;        // offset of the field of struct facts that is told
    const char *text;    // "%.0f %%" of share, then of a step's seconds
    const char *remedy;
    const char *knob;
};

static bool mostly_filtered(const struct facts *f)
{
    return f->filtered > 0.5;
}

static bool ranks_wait(const struct facts *f)
{
    return f->ranks > 0.2;
}

static bool scoring_waits(const struct facts *f)
{
    return f->score > 0.25 && f->score > f->train && (f->at_once ? f->idle > 0.15 : f->score + f->train + f->publish > 0.6);
}

static bool publishing_waits(const struct facts *f)
{
    return f->publish > 0.2;
}

static bool saving_waits(const struct facts *f)
{
    return f->stall > 0.2;
}

static bool tail_waits(const struct facts *f)
{
    return f->generate > 0.5 && f->longest > 4 * f->median;
}

static bool generation_bounds(const struct facts *f)
{
    return f->at_once ? f->idle > 0.1 : f->generate > f->train;
}

static bool training_bounds(const struct facts *f)
{
    return f->train > 0.3;
}

// clang-format off
static const struct bound_rule rules[] = {
    { "filtering", mostly_filtered, offsetof(struct facts, filtered), "filtering: %.0f %% of the groups give no gradient; a step takes %s",
      "prompts that are sometimes solved: harder or easier ones, or a wider filter_range", "filter_range" },
    { "ranks", ranks_wait, offsetof(struct facts, ranks), "trainers wait for each other for %.0f %% of a step of %s",
      "fewer trainers, or more micro-batches for each: a smaller token_budget", "token_budget" },
    { "scoring", scoring_waits, offsetof(struct facts, score), "scoring: groups wait for their scores for %.0f %% of a step of %s",
      "a quicker verifier, more scorer threads, or n_behind above 0", "n_behind" },
    { "publishing", publishing_waits, offsetof(struct facts, publish), "publishing the weights takes %.0f %% of a step of %s",
      "weights: copy or nccl, or a larger train_batch_size", "weights" },
    { "saving", saving_waits, offsetof(struct facts, stall), "checkpoints hold training up for %.0f %% of a step of %s", "save less often", "save_interval" },
    { "long tail", tail_waits, offsetof(struct facts, generate), "generation takes %.0f %% of a step of %s, by its long tail: few long answers hold the rest up",
      "n_behind above 0 fills the gap; a smaller max_new_tokens shortens it", "n_behind" },
    { "generation", generation_bounds, offsetof(struct facts, generate), "generation bounds the run: %.0f %% of a step of %s",
      "more producers (-i), a larger inference_microbatch_size, or a smaller max_new_tokens", "inference_microbatch_size" },
    { "training", training_bounds, offsetof(struct facts, train), "training bounds the run: %.0f %% of a step of %s", "more trainers (-t), or a larger token_budget",
      "token_budget" },
};
// clang-format on

static bool broken_say(const struct model *m, int64_t now_ns, struct diagnosis *d)
{
    struct alarm alarm;
    int n = alarms_check(m, now_ns, &alarm, 1);
    if (n == 0)
        return false;
    d->kind = alarm.crit ? DIAGNOSIS_CRIT : DIAGNOSIS_WARN;
    d->name = "alarm";
    if (n > 1)
        snprintf(d->text, sizeof d->text, "%s (+%d more: 8)", alarm.text, n - 1);
    else
        snprintf(d->text, sizeof d->text, "%s", alarm.text);
    snprintf(d->remedy, sizeof d->remedy, "%s", alarm.remedy);
    return true;
}

static double buffer_of(const struct model *m, const char *name)
{
    for (int i = 0; i < m->n_buffer; i++)
        if (strcmp(m->buffer[i].name, name) == 0)
            return m->buffer[i].value;
    return 0;
}

/* Before the first step: what the run waits for. */
static void beginning_say(const struct model *m, int64_t now_ns, struct diagnosis *d)
{
    const struct proc *late = NULL;
    d->kind = DIAGNOSIS_BOUND;
    d->name = "first step";
    for (int i = 0; i < m->n_proc; i++)
        if (strcmp(m->proc[i].phase, "loading") == 0 && (!late || m->proc[i].phase_s > late->phase_s))
            late = &m->proc[i];
    if (late) {
        snprintf(d->text, sizeof d->text, "no step yet: %s has been loading for %.0f s", late->name,
                 late->phase_s + (double)(now_ns - late->heard_ns) * 1e-9);
        return;
    }
    double back = buffer_of(m, "returned") + buffer_of(m, "filtered") + buffer_of(m, "waiting");
    if (back + buffer_of(m, "generating") > 0)
        snprintf(d->text, sizeof d->text, "no step yet: %.0f groups are back, %.0f of them filtered; %.0f are being sampled", back,
                 buffer_of(m, "filtered"), buffer_of(m, "generating"));
    else
        d->kind = DIAGNOSIS_NONE;
}

static void bound_say(const struct model *m, struct diagnosis *d)
{
    struct facts f = facts_make(m);
    for (size_t i = 0; i < ARRAY_SIZE(rules) && f.step_s > 0; i++) {
        if (!rules[i].applies(&f))
            continue;
        char step[24];
        snprintf(step, sizeof step, f.step_s < 10 ? "%.2g s" : "%.0f s", f.step_s);
        d->kind = DIAGNOSIS_BOUND;
        snprintf(d->text, sizeof d->text, rules[i].text, 100 * fmin(*(const double *)((const char *)&f + rules[i].share), 1), step);
        snprintf(d->remedy, sizeof d->remedy, "%s", rules[i].remedy);
        d->knob = rules[i].knob;
        d->name = rules[i].name;
        return;
    }
}

struct diagnosis doctor_say(const struct model *m, int64_t now_ns)
{
    struct diagnosis d = { .kind = DIAGNOSIS_NONE };
    if (m->told_ns == 0 || broken_say(m, now_ns, &d) || run_state_is_over(m->state))
        return d;
    if (m->state == RUN_PAUSED) {
        d.kind = DIAGNOSIS_WARN;
        d.name = "paused";
        snprintf(d.text, sizeof d.text, "paused: training waits for an operator");
        snprintf(d.remedy, sizeof d.remedy, "r resumes");
    } else if (m->step == 0) {
        beginning_say(m, now_ns, &d);
    } else {
        bound_say(m, &d);
    }
    return d;
}
