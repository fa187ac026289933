/* verify_kind.c - the reward "verify": the verifiers that a row names, and "verify:NAME": one for every row
 *
 * A row of open-instruct's data names its verifiers in 'dataset' (a text or a list) and gives each its ground truth in
 * 'ground_truth' (the same, in the same order). The reward is verification_reward times the sum of their scores, combined
 * with the format and the penalties as open-instruct's RewardConfig does, with two differences: any format_reward works
 * (there every value but 1 takes all rewards away unless it is added), and what upstream scores 0 though it could not be
 * verified is left out. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "protocol/base/clock.h"
#include "workers/engine/reward/kind.h"
#include "workers/engine/reward/verify/verify.h"

#define PAIRS_MAX 32    // verifiers of one row
#define FORMAT ".*?</think>\\s*<answer>.*?</answer>"

struct verify {
    struct verify_host host;
    const struct verifier *only;    // NULL: the row says
    char *remap;                    // "OLD\0NEW" as old and new; owned, NULL: none
    const char *old_name, *new_name;
};
struct pair {
    const struct verifier *verifier;
    const json_t *truth;    // borrowed from the row
};

static void verify_close(void *self)
{
    struct verify *v = self;
    verify_host_release(&v->host);
    free(v->remap);
    free(v);
}

static bool remap_read(struct verify *v, const char *text, struct error *err)
{
    if (!text || !*text)
        return true;
    v->remap = strdup(text);
    if (!v->remap)
        return error_set(err, ERR_NO_MEMORY, "no memory for a verifier");
    char *equal = strchr(v->remap, '=');
    if (!equal || equal == v->remap || strchr(equal + 1, '='))
        return error_set(err, ERR_USAGE, "'remap_verifier' is '%s'; it must be OLD=NEW", text);
    *equal = 0;
    v->old_name = v->remap;
    v->new_name = equal + 1;
    return verify_find(v->new_name) || error_set(err, ERR_USAGE, "'remap_verifier' names '%s', which is not a verifier", v->new_name);
}

static bool unknown(const char *name, struct error *err)
{
    size_t n;
    const struct verifier *table = verify_table(&n);
    char known[512] = "";
    for (size_t i = 0, used = 0; i < n && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", table[i].name);
    return error_set(err, ERR_DATA, "'%.60s' is not a verifier; there are %s", name, known);
}

/* url: of the judge, in place of the options'; NULL: theirs. */
static bool open_any(void **self, const struct reward_config *config, const char *arg, const char *url, struct error *err)
{
    struct verify *v = calloc(1, sizeof *v);
    struct verify_options options = config->verify ? *config->verify : VERIFY_OPTIONS_DEFAULT;
    options.llm_judge_url = url ? url : options.llm_judge_url;
    bool ok = false;
    if (!v)
        return error_set(err, ERR_NO_MEMORY, "no memory for a verifier");
    if (*arg && !(v->only = verify_find(arg))) {
        unknown(arg, err);
        err->code = ERR_USAGE;
        goto out;
    }
    TRY(remap_read(v, options.remap_verifier, err));
    TRY(verify_host_init(&v->host, &options, err));
    *self = v;
    ok = true;
out:
    if (!ok)
        verify_close(v);
    return ok;
}

static bool verify_open(void **self, const struct reward_config *config, const char *arg, struct error *err)
{
    return open_any(self, config, arg, NULL, err);
}

static bool judge_open(void **self, const struct reward_config *config, const char *arg, struct error *err)
{
    if (strncmp(arg, "http://", 7) != 0 && strncmp(arg, "https://", 8) != 0)
        return error_set(err, ERR_USAGE, "'judge:%s' must name the judge's address, e.g. judge:http://127.0.0.1:8000/v1", arg);
    return open_any(self, config, "judge", arg, err);
}

/* ---- rows ---- */

static bool pair_add(const struct verify *v, const json_t *name, const json_t *truth, struct pair *pair, struct error *err)
{
    const char *text = json_string_value(name);
    if (!text)
        return error_set(err, ERR_DATA, "'dataset' must be the name of a verifier, or a list of them");
    if (!truth)
        return error_set(err, ERR_DATA, "'ground_truth' is missing");
    const char *mapped = v->old_name && strcasecmp(text, v->old_name) == 0 ? v->new_name : text;
    *pair = (struct pair){ verify_find(mapped), truth };
    return pair->verifier || unknown(mapped, err);
}

/* The verifiers of a row with their ground truths. A single name takes 'ground_truth' as a whole, or the one member of a list. */
static bool pairs_read(const struct verify *v, const json_t *row, struct pair *pair, int *n, struct error *err)
{
    const json_t *names = json_object_get(row, "dataset"), *truth = json_object_get(row, "ground_truth");
    if (!truth || json_is_null(truth))
        truth = json_object_get(row, "gt_answer");
    *n = 0;
    if (v->only || json_is_string(names)) {
        const json_t *one = json_array_size(truth) == 1 ? json_array_get(truth, 0) : truth;
        *n = 1;
        if (!v->only)
            return pair_add(v, names, one, &pair[0], err);
        pair[0] = (struct pair){ v->only, one };
        return one || v->only->check == verify_any_check || error_set(err, ERR_DATA, "'ground_truth' is missing, and 'gt_answer' too");
    }
    if (!json_is_array(names) || json_array_size(names) == 0)
        return error_set(err, ERR_DATA,
                         "'dataset' is missing; it names the verifiers of the row. For one verifier of all rows give its "
                         "name as the reward_type");
    if (json_array_size(names) > PAIRS_MAX)
        return error_set(err, ERR_DATA, "'dataset' names %zu verifiers; at most %d are accepted", json_array_size(names), PAIRS_MAX);
    bool lists = json_is_array(truth) && json_array_size(truth) == json_array_size(names);
    if (!lists && json_array_size(names) > 1)
        return error_set(err, ERR_DATA, "'dataset' names %zu verifiers, and 'ground_truth' has %zu members; each verifier needs one",
                         json_array_size(names), json_array_size(truth));
    for (; *n < (int)json_array_size(names); ++*n)
        if (!pair_add(v, json_array_get(names, (size_t)*n), lists ? json_array_get(truth, (size_t)*n) : truth, &pair[*n], err))
            return false;
    return true;
}

static bool verify_row_check(void *self, const json_t *row, struct error *err)
{
    struct verify *v = self;
    struct pair pair[PAIRS_MAX];
    int n;
    if (!pairs_read(v, row, pair, &n, err))
        return false;
    for (int i = 0; i < n; i++)
        if (!verify_check(&v->host, pair[i].verifier, pair[i].truth, err))
            return false;
    return true;
}

/* ---- scores ---- */

/* The reward of verifiers' rewards that add up to sum. */
static double combine(const struct verify_options *o, const struct reward_input *in, bool format, double sum)
{
    double reward = o->format_reward != 0 && format ? o->format_reward : 0;
    if (!o->only_reward_good_outputs || in->tool_ok) {
        if (o->format_reward == 0)
            reward = sum;
        else if (o->additive_format_reward)
            reward += sum;
        else
            reward = format ? sum : 0;
    }
    if (o->non_stop_penalty && in->has_length && in->finish != FINISH_STOP)
        reward = o->non_stop_penalty_value;
    return reward;
}

static void row_score(struct verify *v, const struct reward_input *in, struct reward_output *out)
{
    struct pair pair[PAIRS_MAX];
    struct verify_result res;
    struct error err = { 0 };
    struct span text = span_of(in->response, in->response_len), valid;
    const struct verify_options *o = &v->host.options;
    double sum = 0;
    bool all = true;
    size_t used = 0;
    int n;
    if (!pairs_read(v, in->row, pair, &n, &err)) {
        out->score = SCORE_ERROR;
        snprintf(out->rule, sizeof out->rule, "%.*s", (int)sizeof out->rule - 1, err.text);
        return;
    }
    valid = text_valid(&v->host.pool, text);
    bool format = regex_find(v->host.regexes, "^" FORMAT, RE_DOT_ALL, valid, 0, NULL);
    pool_release(&v->host.pool);
    for (int i = 0; i < n; i++) {
        struct verify_input one = { text, in->has_length || in->n_tok > 0 ? in->n_tok : -1, pair[i].truth, in->row };
        verify_run(&v->host, pair[i].verifier, &one, &res);
        if (i == 0) {
            memcpy(out->pred, res.pred, sizeof out->pred);
            memcpy(out->gold, res.gold, sizeof out->gold);
        }
        if (res.tests.n > 0)
            out->tests = res.tests;
        if (res.state != SCORE_OK) {
            out->score = res.state;
            snprintf(out->rule, sizeof out->rule, "%s: %.*s", pair[i].verifier->name, (int)sizeof out->rule - 24, res.why);
            return;
        }
        if (res.n_criterion > 0) {
            out->n_criterion = (int8_t)res.n_criterion;
            memcpy(out->criterion, res.criterion, sizeof out->criterion);
        }
        sum += o->verification_reward * res.score;
        all = all && res.score >= 1;
        if (n == 1)
            snprintf(out->rule, sizeof out->rule, "%s: %.*s", pair[i].verifier->name, (int)sizeof out->rule - 24, res.why);
        else if (used < sizeof out->rule)
            used += (size_t)snprintf(out->rule + used, sizeof out->rule - used, "%s%s %.3g", i ? ", " : "", pair[i].verifier->name,
                                     res.score);
    }
    out->score = SCORE_OK;
    out->format_acc = o->format_reward == 0 || format;
    out->ans_acc = all;
    out->verdict = all ? VERDICT_EQUAL : VERDICT_DIFFERENT;
    out->reward = combine(o, in, format, sum);
}

static void verify_score(void *self, UNUSED const struct reward_config *config, const struct reward_input *in, struct reward_output *out,
                         int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t start = clock_ns();
        row_score(self, &in[i], &out[i]);
        out[i].us = (double)(clock_ns() - start) * 1e-3;
    }
}

static json_t *verify_evolve(void *self, const struct reward_input *in, const struct reward_output *out, int64_t n)
{
    struct verify *v = self;
    struct pair pair[PAIRS_MAX];
    struct error err;
    int n_pair;
    if (v->host.options.max_active_rubrics == 0 || !pairs_read(v, in[0].row, pair, &n_pair, &err))
        return NULL;
    for (int i = 0; i < n_pair; i++) {
        json_t *truth = pair[i].verifier->score == verify_rubric ? verify_rubric_read(pair[i].truth, &err) : NULL;
        json_t *told = truth ? verify_rubric_evolve(&v->host, truth, in, out, n) : NULL;
        json_decref(truth);
        if (told)
            return told;
    }
    return NULL;
}

const struct reward_kind reward_kind_verify = {
    .name = "verify",
    .open = verify_open,
    .close = verify_close,
    .row_check = verify_row_check,
    .score = verify_score,
    .evolve = verify_evolve,
    .keeps_cut = true,
};
const struct reward_kind reward_kind_verify_named = {
    .name = "verify:",
    .open = verify_open,
    .close = verify_close,
    .row_check = verify_row_check,
    .score = verify_score,
    .evolve = verify_evolve,
    .keeps_cut = true,
};
const struct reward_kind reward_kind_judge = {
    .name = "judge:",
    .open = judge_open,
    .close = verify_close,
    .row_check = verify_row_check,
    .score = verify_score,
    .evolve = verify_evolve,
    .keeps_cut = true,
};
