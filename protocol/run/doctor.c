#include "protocol/run/doctor.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "protocol/settings/run_config.h"

/* The inputs of the rules, computed once. Shares are of a step's wall time; NAN: not known. */
struct facts {
    double step_s, generate, score, train, publish, ranks, exposed, stages, idle, stall;
    int late;                  // the trainer that the others waited for in all of the last steps; -1: not always the same
    double filtered;           // share of groups
    double longest, median;    // response lengths
    double tail;               // share of generating in which fewer than half of the batch ran; NAN: not known
    bool at_once;              // generation and training overlap, on devices of their own
};

/* Over the last DOCTOR_STEPS steps, those that have it; NAN: none has. */
static double mean(const struct doctor_source *from, enum metric_id id)
{
    double sum = 0, v;
    int n = 0;
    for (int back = 0; back < DOCTOR_STEPS; back++)
        if (!isnan(v = from->value(from->arg, id, back))) {
            sum += v;
            n++;
        }
    return n ? sum / n : NAN;
}

/* The times of a step; what a run does not measure takes none. */
static double share(const struct doctor_source *from, enum metric_id id, double step_s)
{
    double v = mean(from, id);
    return isnan(v) ? 0 : v / step_s;
}

static int late_find(const struct doctor_source *from)
{
    double first = from->value(from->arg, M_RANKS_LATE, 0);
    int n = 0;
    for (int back = 0; back < DOCTOR_STEPS && !isnan(from->value(from->arg, M_STEP_S, back)); back++, n++)
        if (!(from->value(from->arg, M_RANKS_LATE, back) == first))    // NAN is not the same
            return -1;
    return n >= DOCTOR_LATE_STEPS ? (int)first : -1;
}

static struct facts facts_make(const struct doctor_source *from)
{
    struct facts f = { .step_s = mean(from, M_STEP_S), .late = late_find(from) };
    f.generate = share(from, M_GENERATE_S, f.step_s);
    f.score = share(from, M_SCORE_S, f.step_s);
    f.train = share(from, M_TRAIN_S, f.step_s);
    f.publish = share(from, M_PUBLISH_S, f.step_s);
    f.ranks = share(from, M_RANKS_IDLE_S, f.step_s);
    f.exposed = share(from, M_RANKS_EXPOSED_S, f.step_s);
    f.stages = share(from, M_STAGES_IDLE_S, f.step_s);
    f.idle = share(from, M_IDLE_S, f.step_s);
    f.stall = share(from, M_CHECKPOINT_STALL_S, f.step_s);
    f.filtered = mean(from, M_FILTERED);
    f.longest = mean(from, M_LENGTH_MAX);
    f.median = mean(from, M_LENGTH_P50);
    f.tail = mean(from, M_IDLE_SHARE);
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

static bool one_is_late(const struct facts *f)
{
    return f->ranks > 0.2 && f->late >= 0;
}

static bool ranks_wait(const struct facts *f)
{
    return f->ranks > 0.2;
}

static bool sending_waits(const struct facts *f)
{
    return f->exposed > 0.2;
}

static bool stages_wait(const struct facts *f)
{
    return f->stages > 0.2;
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
    return f->generate > 0.5 && (isnan(f->tail) ? f->longest > 4 * f->median : f->tail > 0.3);
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
    { "late trainer", one_is_late, offsetof(struct facts, ranks), "the other trainers wait for %.0f %% of a step of %s, and always for ",
      "look at its device: clocks, temperature, other programs on it; or share the work out in smaller parts: a smaller token_budget", "token_budget" },
    { "ranks", ranks_wait, offsetof(struct facts, ranks), "trainers wait for each other for %.0f %% of a step of %s",
      "fewer trainers, or more micro-batches for each: a smaller token_budget", "token_budget" },
    { "sending", sending_waits, offsetof(struct facts, exposed), "gradients and weights are on their way for %.0f %% of a step of %s, which no computing hides",
      "a larger token_budget, train_batch_size or, in a new run, grad_group: fewer rounds", "token_budget" },
    { "stages", stages_wait, offsetof(struct facts, stages), "a stage of the trainer's pipeline waits for the others for %.0f %% of a step of %s",
      "more micro-batches for it: a smaller token_budget; or fewer stages", "token_budget" },
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

/* Names besides those of the rules. */
static const char *const other_names[] = { "alarm", "paused", "first step", "refused posts", "servers", "missing trainers" };
static const char *const kind_names[] = {
    [DIAGNOSIS_NONE] = "", [DIAGNOSIS_BOUND] = "bound", [DIAGNOSIS_WARN] = "warn", [DIAGNOSIS_CRIT] = "crit"
};

bool doctor_bound(const struct doctor_source *from, struct diagnosis *d)
{
    struct facts f = facts_make(from);
    for (size_t i = 0; i < ARRAY_SIZE(rules) && f.step_s > 0; i++) {
        if (!rules[i].applies(&f))
            continue;
        char step[24];
        snprintf(step, sizeof step, f.step_s < 10 ? "%.2g s" : "%.0f s", f.step_s);
        d->kind = DIAGNOSIS_BOUND;
        snprintf(d->text, sizeof d->text, rules[i].text, 100 * fmin(*(const double *)((const char *)&f + rules[i].share), 1), step);
        if (rules[i].applies == one_is_late) {
            char name[64];
            size_t n = strlen(d->text);
            snprintf(d->text + n, sizeof d->text - n, "%s", run_config_trainer(from->config, f.late, name, sizeof name));
        }
        snprintf(d->remedy, sizeof d->remedy, "%s", rules[i].remedy);
        d->knob = rules[i].knob;
        d->name = rules[i].name;
        return true;
    }
    return false;
}

bool doctor_groups(double back, double filtered, double sampled, struct diagnosis *d)
{
    if (!(back + sampled > 0))
        return false;
    d->kind = DIAGNOSIS_BOUND;
    d->name = "first step";
    snprintf(d->text, sizeof d->text, "no step yet: %.0f groups are back, %.0f of them filtered; %.0f are being sampled", back, filtered,
             sampled);
    return true;
}

void doctor_paused(struct diagnosis *d)
{
    d->kind = DIAGNOSIS_WARN;
    d->name = "paused";
    snprintf(d->text, sizeof d->text, "paused: training waits for an operator");
    snprintf(d->remedy, sizeof d->remedy, "r resumes");
}

const char *diagnosis_kind_name(enum diagnosis_kind k)
{
    return kind_names[k];
}

enum diagnosis_kind diagnosis_kind_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(kind_names); i++)
        if (strcmp(kind_names[i], name) == 0)
            return (enum diagnosis_kind)i;
    return DIAGNOSIS_NONE;
}

void diagnosis_name(struct diagnosis *d, const char *name)
{
    d->name = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(rules); i++)
        if (strcmp(rules[i].name, name) == 0) {
            d->name = rules[i].name;
            d->knob = rules[i].knob;
        }
    for (size_t i = 0; i < ARRAY_SIZE(other_names); i++)
        if (strcmp(other_names[i], name) == 0)
            d->name = other_names[i];
}
