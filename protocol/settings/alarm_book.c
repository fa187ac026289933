#include "protocol/settings/alarm_book.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/cli.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/yaml_file.h"
#include "protocol/settings/metrics.h"

#define BOOK_FILE_MAX ((size_t)1 << 18)
#define MEDIAN_LEAST 8    // values, for a median

static const char *const when_names[ALARM_WHEN_N] = {
    [ALARM_ABOVE] = "above",
    [ALARM_BELOW] = "below",
    [ALARM_EQUALS] = "equals",
    [ALARM_TIMES_MEDIAN] = "times_median",
    [ALARM_BELOW_MEDIAN] = "below_median",
    [ALARM_RISES] = "rises",
};
static const char *const state_names[] = { "quiet", "firing", "acknowledged", "muted" };
static const struct {
    const char *name;
    enum alarm_action bit;
} actions[] = { { "bell", ALARM_BELL }, { "pause", ALARM_PAUSE }, { "checkpoint", ALARM_CHECKPOINT }, { "rollback", ALARM_ROLLBACK } };

/* Thresholds published by other projects are named; the others are our own. */
// clang-format off
static const struct {
    const char *name;
    enum metric_id metric;
    enum alarm_when when;
    double limit;
    int steps;
    bool critical;
    const char *text, *remedy;
} defaults[] = {
    { "sampler_trainer_diff", M_SAMPLER_TRAINER_DIFF, ALARM_ABOVE, 0, 1, true, "sampler and trainer disagree by {} nat",
      "this is a bug, not noise: save the run and report it" },
    { "reward_zero", M_REWARD, ALARM_EQUALS, 0, 3, true, "reward exactly 0 for 3 steps",     // verl PR 5635: a verifier that always fails
      "look at the rollouts (3): format, verifier, too few tokens?" },
    { "all_right", M_ANS_ACC, ALARM_EQUALS, 1, 3, false, "every answer was right for 3 steps",
      "there is nothing left to learn, or the verifier accepts anything" },
    { "entropy_collapse", M_ENTROPY, ALARM_BELOW, 0.005, 3, false, "entropy collapsed to {}",
      "raise temperature, clip_eps_high or kl_coeff; lower learning_rate" },
    { "entropy_rise", M_ENTROPY, ALARM_TIMES_MEDIAN, 3, 1, true, "entropy jumped to {}: answers may turn to gibberish",
      "lower learning_rate; U goes back to before the last change" },
    { "no_spread", M_NO_SPREAD, ALARM_ABOVE, 0.8, 3, false, "{} of the groups have no spread, so no gradient",
      "other prompts, larger num_generations, or filter_range" },
    { "truncated", M_TRUNCATED, ALARM_ABOVE, 0.05, 3, false, "{} of the responses are cut",  // AReaL algo_perf.md: above 0.05
      "raise max_new_tokens" },
    { "left_out", M_LEFT_OUT, ALARM_ABOVE, 0.01, 1, false, "{} of the samples could not be scored", "see the scorer's log (5)" },
    { "score_timeouts", M_SCORE_TIMEOUTS, ALARM_RISES, 0, 1, false, "verifier time-outs, {} so far", "see the scorer's log (5); raise reward_timeout_s" },
    { "score_errors", M_SCORE_ERRORS, ALARM_RISES, 0, 1, false, "verifier errors, {} so far", "see the scorer's log (5)" },
    { "clip_high", M_CLIP_HIGH, ALARM_ABOVE, 0.2, 3, false, "{} of the tokens are clipped above", "lower learning_rate or n_behind" },
    { "clip_low", M_CLIP_LOW, ALARM_ABOVE, 0.2, 3, false, "{} of the tokens are clipped below", "lower learning_rate or n_behind" },
    { "rho_high", M_RHO_MEAN, ALARM_ABOVE, 2, 3, false, "the mean correction for older weights is {}",        // verl rollout_corr.md: outside 0.5 to 2
      "lower n_behind, or train_batch_size" },
    { "rho_low", M_RHO_MEAN, ALARM_BELOW, 0.5, 3, false, "the mean correction for older weights is {}", "lower n_behind, or train_batch_size" },
    { "masked", M_RHO_MASKED, ALARM_ABOVE, 0.1, 3, false, "{} of the tokens are left out as too far from the present weights", "lower n_behind or learning_rate" },
    { "kl_jump", M_KL, ALARM_TIMES_MEDIAN, 10, 1, false, "KL jumped to {}", "lower learning_rate, raise kl_coeff" },
    { "grad_norm_jump", M_GRAD_NORM, ALARM_TIMES_MEDIAN, 5, 1, false, "gradient norm jumped to {}", "lower learning_rate; look at the rollouts" },
    { "step_slow", M_STEP_S, ALARM_TIMES_MEDIAN, 2.5, 3, false, "steps take {} s", "see who waits for whom (2)" },
    { "publish_slow", M_PUBLISH_S, ALARM_TIMES_MEDIAN, 3, 3, false, "handing over the weights takes {} s", "see the network, and the setting weights" },
    { "rollout_slow", M_ROLLOUT_TOK_PER_S, ALARM_BELOW_MEDIAN, 0.5, 3, false, "sampling has fallen to {} tokens per second", "see devices and throttling (2)" },
};
// clang-format on

void alarm_book_init(struct alarm_book *b)
{
    *b = (struct alarm_book){ .n = ARRAY_SIZE(defaults) };
    for (int i = 0; i < b->n; i++) {
        struct alarm_rule *r = &b->rule[i];
        *r = (struct alarm_rule){ .when = defaults[i].when,
                                  .limit = defaults[i].limit,
                                  .steps = defaults[i].steps,
                                  .critical = defaults[i].critical,
                                  .on = true,
                                  .actions = defaults[i].critical ? ALARM_BELL : 0 };
        snprintf(r->name, sizeof r->name, "%s", defaults[i].name);
        snprintf(r->metric, sizeof r->metric, "%s", metrics[defaults[i].metric].name);
        snprintf(r->text, sizeof r->text, "%s", defaults[i].text);
        snprintf(r->remedy, sizeof r->remedy, "%s", defaults[i].remedy);
    }
}

const struct alarm_rule *alarm_rule_find(const struct alarm_book *b, const char *name)
{
    for (int i = 0; i < b->n; i++)
        if (strcmp(b->rule[i].name, name) == 0)
            return &b->rule[i];
    return NULL;
}

void alarm_book_find(const char *run_file, char *path, size_t size)
{
    const char *slash = strrchr(run_file, '/'), *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    snprintf(path, size, "%.*salarms.yaml", slash ? (int)(slash + 1 - run_file) : 0, run_file);
    if (path_exists(path))
        return;
    if (config && config[0])
        snprintf(path, size, "%s/rollcall/alarms.yaml", config);
    else
        snprintf(path, size, "%s/.config/rollcall/alarms.yaml", home ? home : "");
    if (!path_exists(path))
        path[0] = 0;
}

/* ---- reading ---- */

static bool text_take(char *out, size_t size, const char *text, struct error *why)
{
    if (strlen(text) >= size)
        return error_set(why, ERR_USAGE, "is longer than %zu bytes", size - 1);
    snprintf(out, size, "%s", text);
    return true;
}

static bool bool_take(bool *out, const char *text, struct error *why)
{
    *out = strcmp(text, "true") == 0;
    return *out || strcmp(text, "false") == 0 || error_set(why, ERR_USAGE, "is '%.40s'; it must be true or false", text);
}

static bool action_take(struct alarm_rule *r, const char *text, struct error *why)
{
    for (size_t i = 0; i < ARRAY_SIZE(actions); i++)
        if (strcmp(actions[i].name, text) == 0) {
            r->actions |= actions[i].bit;
            return true;
        }
    return error_set(why, ERR_USAGE, "does not know '%.40s'; it is a list of bell, pause, checkpoint and rollback", text);
}

static bool actions_take(struct alarm_rule *r, struct fy_node *value, struct error *why)
{
    void *it = NULL;
    r->actions = 0;
    if (fy_node_is_scalar(value)) {
        const char *text = yaml_text(value, why);
        return text && (!text[0] || action_take(r, text, why));
    }
    if (!fy_node_is_sequence(value))
        return error_set(why, ERR_USAGE, "must be a list of bell, pause, checkpoint and rollback");
    for (struct fy_node *e; (e = fy_node_sequence_iterate(value, &it));) {
        const char *text = yaml_text(e, why);
        if (!text || !action_take(r, text, why))
            return false;
    }
    return true;
}

/* A condition: "above: 0.2", or "rises: true". */
static bool when_take(struct alarm_rule *r, enum alarm_when when, const char *text, struct error *why)
{
    bool rises;
    if (when == ALARM_RISES ? !bool_take(&rises, text, why) || !rises : !parse_f64(text, &r->limit) || !isfinite(r->limit))
        return why->text[0] ? false
                            : error_set(why, ERR_USAGE, when == ALARM_RISES ? "must be true" : "is '%.40s', which is not a number", text);
    r->when = when;
    return true;
}

static bool field_take(struct alarm_rule *r, const char *name, struct fy_node *value, struct error *why)
{
    if (strcmp(name, "actions") == 0)
        return actions_take(r, value, why);
    const char *text = fy_node_is_scalar(value) ? yaml_text(value, why) : NULL;
    if (!text)
        return why->text[0] ? false : error_set(why, ERR_USAGE, "must be a single value");
    for (int w = 0; w < ALARM_WHEN_N; w++)
        if (strcmp(name, when_names[w]) == 0)
            return when_take(r, (enum alarm_when)w, text, why);
    if (strcmp(name, "metric") == 0)
        return text_take(r->metric, sizeof r->metric, text, why);
    if (strcmp(name, "text") == 0)
        return text_take(r->text, sizeof r->text, text, why);
    if (strcmp(name, "remedy") == 0)
        return text_take(r->remedy, sizeof r->remedy, text, why);
    if (strcmp(name, "command") == 0)
        return text_take(r->command, sizeof r->command, text, why);
    if (strcmp(name, "on") == 0)
        return bool_take(&r->on, text, why);
    if (strcmp(name, "severity") == 0) {
        r->critical = strcmp(text, "critical") == 0;
        return r->critical || strcmp(text, "warning") == 0 || error_set(why, ERR_USAGE, "is '%.40s'; it must be critical or warning", text);
    }
    if (strcmp(name, "steps") == 0)
        return (parse_i64(text, &r->steps) && r->steps >= 1 && r->steps <= ALARM_STEPS_MAX)
               || error_set(why, ERR_USAGE, "is '%.40s'; it must be 1 to %d", text, ALARM_STEPS_MAX);
    return error_set(why, ERR_USAGE,
                     "is not known; an alarm has metric, above, below, equals, times_median, below_median, rises, steps, severity, "
                     "text, remedy, actions, command and on");
}

/* Is this a metric that a run can have? Own reward parts and evaluation sets are named by the run. */
static bool metric_is_known(const char *name)
{
    return metric_find(name) >= 0 || strncmp(name, "reward/", 7) == 0 || strncmp(name, "eval/", 5) == 0;
}

static bool rule_read(struct alarm_book *b, struct fy_node *key, struct fy_node *fields, const char *path, struct error *err)
{
    struct error why = { 0 };
    const char *name = key ? yaml_text(key, &why) : NULL;
    int line = key ? yaml_line(key) : 0;
    void *it = NULL;
    if (!name || !name[0] || strlen(name) >= sizeof b->rule[0].name || !fields || !fy_node_is_mapping(fields))
        return error_set(err, ERR_USAGE, "%s:%d: '%.60s' is not a name with the fields of an alarm", path, line, name ? name : "");
    struct alarm_rule *r = (struct alarm_rule *)alarm_rule_find(b, name);
    bool has_when = r != NULL;
    if (!r && b->n == ALARM_RULES)
        return error_set(err, ERR_USAGE, "%s:%d: a book holds at most %d alarms", path, line, ALARM_RULES);
    if (!r) {
        r = &b->rule[b->n++];
        *r = (struct alarm_rule){ .steps = 1, .on = true };
        snprintf(r->name, sizeof r->name, "%s", name);
        snprintf(r->text, sizeof r->text, "%s is {}", name);
    }
    for (struct fy_node_pair *p; (p = fy_node_mapping_iterate(fields, &it));) {
        const char *field = yaml_text(fy_node_pair_key(p), &why);
        if (field && yaml_is_null(fy_node_pair_value(p)))
            continue;    // not given
        if (!field || !field_take(r, field, fy_node_pair_value(p), &why))
            return error_set(err, ERR_USAGE, "%s:%d: '%s' of alarm '%s' %s", path, yaml_line(fy_node_pair_key(p)), field ? field : "?",
                             name, why.text);
        for (int w = 0; w < ALARM_WHEN_N; w++)
            has_when |= strcmp(field, when_names[w]) == 0;
    }
    if (!r->metric[0] || !has_when)
        return error_set(err, ERR_USAGE, "%s:%d: alarm '%s' needs a metric and a condition, such as above: 0.2", path, line, name);
    if (!metric_is_known(r->metric))
        return error_set(err, ERR_USAGE, "%s:%d: alarm '%s' watches '%s', which is not a metric; 'rollcall metrics' lists them", path, line,
                         name, r->metric);
    return true;
}

bool alarm_book_read(struct alarm_book *b, const char *path, struct error *err)
{
    struct yaml_file y;
    void *it = NULL;
    bool ok = yaml_open(&y, path, BOOK_FILE_MAX, "an alarm book", "'name:' lines with fields below", err);
    for (struct fy_node_pair *p; ok && y.root && (p = fy_node_mapping_iterate(y.root, &it));)
        ok = rule_read(b, fy_node_pair_key(p), fy_node_pair_value(p), path, err);
    yaml_close(&y);
    return ok;
}

/* ---- printing ---- */

static void quoted(struct buf *out, const char *text)
{
    json_text_print(out, text, strlen(text), JSON_TEXT_UTF8);    // a JSON string is a YAML string too
}

static void field_print(struct buf *out, const char *field, const char *text)
{
    buf_fmt(out, "  %s: ", field);
    quoted(out, text);
    buf_char(out, '\n');
}

/* The name of an alarm or a metric: bare, where YAML takes it so. */
static void name_print(struct buf *out, const char *name)
{
    size_t n = 0;
    while ((name[n] >= 'a' && name[n] <= 'z') || (name[n] >= 'A' && name[n] <= 'Z')
           || (n > 0 && ((name[n] >= '0' && name[n] <= '9') || (name[n] && strchr("_/.-", name[n])))))
        n++;
    if (name[n])
        quoted(out, name);
    else
        buf_str(out, name);
}

void alarm_book_print(const struct alarm_book *b, struct buf *out)
{
    char list[64];
    buf_str(
        out,
        "# What a run is watched for. As alarms.yaml next to the run file, or in ~/.config/rollcall, it changes the defaults, which\n"
        "# these are: what is left out stays. on: false turns an alarm off. {} in a text is the value. actions: bell, pause,\n"
        "# checkpoint, rollback (to before the last change of knobs when that was at most 20 steps ago; else to the newest\n"
        "# checkpoint, and the run pauses). command: run by a shell, with ROLLCALL_ALARM, ROLLCALL_TEXT, ROLLCALL_STEP, ROLLCALL_RUN.\n");
    for (int i = 0; i < b->n; i++) {
        const struct alarm_rule *r = &b->rule[i];
        name_print(out, r->name);
        buf_str(out, ":\n  metric: ");
        name_print(out, r->metric);
        buf_char(out, '\n');
        if (r->when == ALARM_RISES)
            buf_str(out, "  rises: true\n");
        else
            buf_fmt(out, "  %s: %.9g\n", when_names[r->when], r->limit);
        buf_fmt(out, "  steps: %d\n  severity: %s\n", (int)r->steps, r->critical ? "critical" : "warning");
        field_print(out, "text", r->text);
        field_print(out, "remedy", r->remedy);
        buf_fmt(out, "  actions: [%s]\n", alarm_actions_text(r->actions, list));
        if (r->command[0])
            field_print(out, "command", r->command);
        if (!r->on)
            buf_str(out, "  on: false\n");
    }
}

/* ---- judging ---- */

/* The median of the known ones of up to 32 values before the last of n; NAN with fewer than 8. */
static double median_before(const double *value, int n)
{
    double v[ALARM_PAST];
    int m = 0;
    for (int i = MAX(n - ALARM_PAST, 0); i < n - 1; i++) {
        if (isnan(value[i]))
            continue;
        int at = m++;
        for (; at > 0 && v[at - 1] > value[i]; at--)
            v[at] = v[at - 1];
        v[at] = value[i];
    }
    return m < MEDIAN_LEAST ? NAN : v[m / 2];
}

static bool holds_now(const struct alarm_rule *r, const double *value, int n)
{
    double v = value[n - 1], before;
    if (isnan(v))
        return false;
    switch (r->when) {
    case ALARM_ABOVE: return v > r->limit;
    case ALARM_BELOW: return v < r->limit;
    case ALARM_EQUALS: return v == r->limit;
    case ALARM_TIMES_MEDIAN: before = median_before(value, n); return before > 0 && v > r->limit * before;
    case ALARM_BELOW_MEDIAN: before = median_before(value, n); return before > 0 && v < r->limit * before;
    case ALARM_RISES: before = n > 1 ? value[n - 2] : NAN; return v > (isnan(before) ? 0 : before);    // counters start at 0
    case ALARM_WHEN_N: break;
    }
    return false;
}

bool alarm_holds(const struct alarm_rule *r, const double *value, int n)
{
    if (n < r->steps)
        return false;
    for (int k = 0; k < r->steps; k++)
        if (!holds_now(r, value, n - k))
            return false;
    return true;
}

void alarm_say(const struct alarm_rule *r, double value, char *out, size_t size)
{
    char number[24];
    bool share = r->when == ALARM_ABOVE && r->limit > 0 && r->limit < 1;
    snprintf(number, sizeof number, share ? "%.0f %%" : r->when == ALARM_RISES ? "%.0f" : "%.3g", share ? 100 * value : value);
    const char *at = strstr(r->text, "{}");
    if (at)
        snprintf(out, size, "%.*s%s%s", (int)(at - r->text), r->text, number, at + 2);
    else
        snprintf(out, size, "%s", r->text);
}

/* ---- names ---- */

const char *alarm_state_name(enum alarm_state s)
{
    return state_names[s];
}

enum alarm_state alarm_state_find(const char *name, size_t len)
{
    for (size_t i = 0; i < ARRAY_SIZE(state_names); i++)
        if (strlen(state_names[i]) == len && memcmp(state_names[i], name, len) == 0)
            return (enum alarm_state)i;
    return ALARM_QUIET;
}

const char *alarm_when_name(enum alarm_when w)
{
    return when_names[w];
}

enum alarm_when alarm_when_find(const char *name)
{
    int w = 0;
    while (w < ALARM_WHEN_N && strcmp(when_names[w], name) != 0)
        w++;
    return (enum alarm_when)w;
}

const char *alarm_actions_text(unsigned set, char out[64])
{
    out[0] = 0;
    for (size_t i = 0; i < ARRAY_SIZE(actions); i++)
        if (set & actions[i].bit) {
            size_t at = strlen(out);
            snprintf(out + at, 64 - at, "%s%s", at ? ", " : "", actions[i].name);
        }
    return out;
}
