#include "workers/engine/reward/reward.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/record/bounds.h"
#include "protocol/settings/run_config.h"
#include "workers/engine/reward/answer.h"
#include "workers/engine/reward/kind.h"
#include "workers/engine/reward/verify/verify.h"

static const struct reward_kind *const kinds[] = {
    &reward_kind_boxed,   &reward_kind_think,  &reward_kind_math,         &reward_kind_code,  &reward_kind_code_share,
    &reward_kind_program, &reward_kind_verify, &reward_kind_verify_named, &reward_kind_judge, &reward_kind_environment,
};

struct part {
    const struct reward_kind *kind;
    double weight;
    char name[64];    // the kind's name with its argument, without the weight
    void *self;       // the kind's own state
};
struct reward {
    struct reward_config config;
    struct answer_tags tags;
    char *url, *key_file;    // copies of what config points to
    struct part *part;       // (n_part)
    int n_part;
    bool weighted;                    // more than one part, or a weight other than 1: parts are reported
    struct reward_output *scratch;    // (n_scratch) one part's outputs in a combined reward
    int64_t n_scratch;
};

struct reward_config reward_config_of(const struct run_config *c, struct verify_options *options)
{
    *options = (struct verify_options){
        .verification_reward = c->verification_reward,
        .remap_verifier = c->remap_verifier,
        .format_reward = c->format_reward,
        .additive_format_reward = c->additive_format_reward,
        .non_stop_penalty = c->non_stop_penalty,
        .non_stop_penalty_value = c->non_stop_penalty_value,
        .only_reward_good_outputs = c->only_reward_good_outputs,
        .math_symbolic = c->math_symbolic,
        .code_api_url = c->code_verifier_api_url[0] ? c->code_verifier_api_url : NULL,
        .code_key_file = c->code_verifier_key_file[0] ? c->code_verifier_key_file : NULL,
        .code_max_execution_time = c->code_max_execution_time,
        .code_pass_rate_reward_threshold = c->code_pass_rate_reward_threshold,
        .code_apply_perf_penalty = c->code_apply_perf_penalty,
        .llm_judge_url = c->llm_judge_url[0] ? c->llm_judge_url : NULL,
        .llm_judge_model = c->llm_judge_model,
        .llm_judge_key_file = c->llm_judge_key_file[0] ? c->llm_judge_key_file : NULL,
        .llm_judge_template = c->llm_judge_template[0] ? c->llm_judge_template : NULL,
        .llm_judge_max_tokens = c->llm_judge_max_tokens,
        .llm_judge_max_context_length = c->llm_judge_max_context_length,
        .llm_judge_temperature = c->llm_judge_temperature,
        .llm_judge_timeout = c->llm_judge_timeout,
        .max_active_rubrics = c->apply_evolving_rubric_reward ? c->max_active_rubrics : 0,
        .max_length_verifier_max_length = c->max_length_verifier_max_length,
    };
    return (struct reward_config){
        .type = c->reward_type,
        .max_new_tok = c->max_new_tokens,
        .soft_over_length_punishment = c->soft_over_length_punishment,
        .cache_len = c->cache_length,
        .program_timeout_s = c->reward_timeout_s,
        .code_verifier_api_url = c->code_verifier_api_url[0] ? c->code_verifier_api_url : NULL,
        .code_verifier_key_file = c->code_verifier_key_file[0] ? c->code_verifier_key_file : NULL,
        .response_format_tags = c->response_format_tags[0] ? c->response_format_tags : NULL,
        .verify = options,
    };
}

double reward_length_punishment(const struct reward_config *config, const struct reward_input *in)
{
    int64_t limit = in->max_new_tok > 0 ? in->max_new_tok : config->max_new_tok;
    int64_t cache_len = config->cache_len > 0 ? config->cache_len : MIN((int64_t)1024, limit / 4);
    double m = (double)limit, c = (double)cache_len, l = (double)in->n_tok;
    if (!config->soft_over_length_punishment || !in->has_length || c <= 0 || m <= 0)
        return 0;
    return l > m - c && l <= m ? ((m - c) - l) / c * REWARD_ACC : 0;
}

/* ColossalChat sets a cut response's reward to 0 in every kind, with or without the soft punishment. Upstream goes by
 * the length, so a response that ends exactly at the limit counts as cut; here the finish reason decides. */
static bool over_length(const struct reward_input *in)
{
    return in->has_length && in->finish == FINISH_LENGTH;
}

static const struct reward_kind *kind_find(const char *name, const char **arg)
{
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        size_t n = strlen(kinds[i]->name);
        bool takes_arg = kinds[i]->name[n - 1] == ':';
        if (takes_arg ? strncmp(name, kinds[i]->name, n) == 0 : strcmp(name, kinds[i]->name) == 0) {
            *arg = name + n;
            return kinds[i];
        }
    }
    if (verify_find(name)) {    // gsm8k is verify:gsm8k
        *arg = name;
        return &reward_kind_verify_named;
    }
    return NULL;
}

static bool kind_unknown(const char *name, struct error *err)
{
    const char *best = kinds[0]->name;
    char known[512] = "";
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", kinds[i]->name);
        if (word_distance(name, kinds[i]->name) < word_distance(name, best))
            best = kinds[i]->name;
    }
    return error_set(err, ERR_USAGE,
                     "unknown reward type '%s'; did you mean '%s'? There are %s and weighted lists such as "
                     "'0.8*boxed + 0.2*math'",
                     name, best, known);
}

#define TYPE_MAX 4096    // bytes of a reward type
/* Take the next member off a list "w*name + w*name" (separated by " + ", so that a program's arguments may hold a
 * plus). text is cut in place; *rest is NULL after the last. */
static bool member_next(char *text, char **rest, struct part *part, const char **arg, struct error *err)
{
    char *plus = strstr(text, " + ");
    *rest = plus ? plus + 3 : NULL;
    if (plus)
        *plus = 0;
    while (*text == ' ')
        text++;
    for (size_t n = strlen(text); n > 0 && text[n - 1] == ' '; n--)
        text[n - 1] = 0;
    part->weight = 1;
    size_t digits = strspn(text, "0123456789.eE+-");
    char *star = text + digits + strspn(text + digits, " ");
    if (digits > 0 && *star == '*') {
        text[digits] = 0;
        if (!parse_f64(text, &part->weight))
            return error_set(err, ERR_USAGE, "'%s' is not a valid weight of a reward", text);
        text = star + 1;
        while (*text == ' ')
            text++;
    }
    part->kind = kind_find(text, arg);
    if (!part->kind)
        return kind_unknown(text, err);
    snprintf(part->name, sizeof part->name, "%s", text);
    return true;
}

struct reward *reward_new(const struct reward_config *config, struct error *err)
{
    struct reward *r = calloc(1, sizeof *r);
    char *type = NULL;
    bool ok = false;
    if (!r) {
        error_set(err, ERR_NO_MEMORY, "no memory for a reward");
        return NULL;
    }
    r->config = *config;
    if (!config->type || !*config->type || strlen(config->type) > TYPE_MAX) {
        error_set(err, ERR_USAGE, "a reward type of 1 to %d bytes is needed", TYPE_MAX);
        goto out;
    }
    if (config->response_format_tags && !answer_tags_read(&r->tags, config->response_format_tags, err))
        goto out;
    r->config.tags = config->response_format_tags ? &r->tags : NULL;
    r->config.response_format_tags = NULL;
    type = strdup(config->type);
    r->url = config->code_verifier_api_url ? strdup(config->code_verifier_api_url) : NULL;
    r->part = calloc(GROUP_PARTS_MAX, sizeof *r->part);
    r->key_file = config->code_verifier_key_file ? strdup(config->code_verifier_key_file) : NULL;
    if (!type || !r->part || (config->code_verifier_api_url && !r->url) || (config->code_verifier_key_file && !r->key_file)) {
        error_set(err, ERR_NO_MEMORY, "no memory for a reward");
        goto out;
    }
    r->config.code_verifier_api_url = r->url;
    r->config.code_verifier_key_file = r->key_file;
    r->config.type = NULL;    // borrowed until we return
    for (char *text = type, *rest; text; text = rest) {
        const char *arg;
        if (r->n_part == GROUP_PARTS_MAX) {
            error_set(err, ERR_USAGE, "a reward has at most %d parts", GROUP_PARTS_MAX);
            goto out;
        }
        struct part *p = &r->part[r->n_part];
        TRY(member_next(text, &rest, p, &arg, err));
        if (p->kind->open && !p->kind->open(&p->self, &r->config, arg, err))
            goto out;
        r->n_part++;
        for (int i = 0; i < r->n_part - 1; i++)
            if (strcmp(r->part[i].name, p->name) == 0) {
                error_set(err, ERR_USAGE, "reward '%s' occurs twice in '%s'", p->name, config->type);
                goto out;
            }
    }
    r->weighted = r->n_part > 1 || r->part[0].weight != 1;
    r->config.verify = NULL;    // borrowed until we return
    ok = true;
out:
    free(type);
    if (!ok) {
        reward_free(r);
        r = NULL;
    }
    return r;
}

void reward_free(struct reward *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n_part; i++)
        if (r->part[i].kind->close)
            r->part[i].kind->close(r->part[i].self);
    free(r->part);
    free(r->scratch);
    free(r->url);
    free(r->key_file);
    free(r);
}

static void output_clear(struct reward_output *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = (struct reward_output){ .score = SCORE_LEFT_OUT, .verdict = VERDICT_CANNOT_TELL };
        for (int k = 0; k < GROUP_PARTS_MAX; k++)
            out[i].part[k] = NAN;
    }
}

static void part_score(struct reward *r, struct part *p, const struct reward_input *in, struct reward_output *out, int64_t n)
{
    output_clear(out, n);
    p->kind->score(p->self, &r->config, in, out, n);
    for (int64_t i = 0; i < n; i++)
        if (!p->kind->keeps_cut && over_length(&in[i]) && out[i].score == SCORE_OK)
            out[i].reward = 0;
}

/* Add part k's outputs to the sum. The sample's verdict, texts and accuracies are the first part's, since that is the
 * reward that knows what an answer is; accuracies that it does not say are those of the next part that does. A part that cannot tell
 * leaves the sample out. */
static void part_add(const struct part *p, int k, const struct reward_output *part, struct reward_output *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        struct reward_output *o = &out[i];
        double us = o->us + part[i].us;
        if (k == 0) {
            *o = part[i];
            o->reward = 0;
        } else if (part[i].score != SCORE_OK && o->score == SCORE_OK) {
            o->score = part[i].score;
            snprintf(o->rule, sizeof o->rule, "%s", part[i].rule);
        }
        o->us = us;
        if (part[i].score == SCORE_OK) {
            o->format_acc = isnan(o->format_acc) ? part[i].format_acc : o->format_acc;
            o->ans_acc = isnan(o->ans_acc) ? part[i].ans_acc : o->ans_acc;
            o->part[k] = part[i].reward;
            if (part[i].n_criterion > 0) {
                o->n_criterion = part[i].n_criterion;
                memcpy(o->criterion, part[i].criterion, sizeof o->criterion);
            }
            o->reward += p->weight * part[i].reward;
        }
    }
}

/* A reward that no step could compute with is none: the sample is left out, and its rule says why. */
static void outputs_bound(struct reward_output *out, int64_t n)
{
    struct error why;
    for (int64_t i = 0; i < n; i++)
        if (out[i].score == SCORE_OK && !bound_check(BOUND_REWARD, out[i].reward, &why)) {
            out[i].score = SCORE_ERROR;
            out[i].reward = 0;
            snprintf(out[i].rule, sizeof out[i].rule, "%.90s", why.text);
        }
}

bool reward_wants_groups(const struct reward *r)
{
    for (int i = 0; i < r->n_part; i++)
        if (r->part[i].kind->wants_groups && r->part[i].kind->wants_groups(r->part[i].self))
            return true;
    return false;
}

void reward_score(struct reward *r, const struct reward_input *in, struct reward_output *out, int64_t n)
{
    if (!r->weighted) {
        part_score(r, &r->part[0], in, out, n);
        outputs_bound(out, n);
        return;
    }
    output_clear(out, n);
    if (n > r->n_scratch) {
        struct reward_output *more = realloc(r->scratch, (size_t)n * sizeof *more);
        if (!more) {
            for (int64_t i = 0; i < n; i++) {
                out[i].score = SCORE_ERROR;
                snprintf(out[i].rule, sizeof out[i].rule, "no memory");
            }
            return;
        }
        r->scratch = more;
        r->n_scratch = n;
    }
    for (int k = 0; k < r->n_part; k++) {
        part_score(r, &r->part[k], in, r->scratch, n);
        part_add(&r->part[k], k, r->scratch, out, n);
    }
    outputs_bound(out, n);
}

json_t *reward_evolve(struct reward *r, const struct reward_input *in, const struct reward_output *out, int64_t n)
{
    json_t *told = NULL;
    for (int i = 0; i < r->n_part && !told && n > 0; i++)
        if (r->part[i].kind->evolve)
            told = r->part[i].kind->evolve(r->part[i].self, in, out, n);
    return told;
}

bool reward_row_check(const struct reward *r, const json_t *row, struct error *err)
{
    for (int i = 0; i < r->n_part; i++)
        if (r->part[i].kind->row_check && !r->part[i].kind->row_check(r->part[i].self, row, err))
            return error_wrap(err, "reward '%s' cannot score this row", r->part[i].name);
    return true;
}

int reward_n_part(const struct reward *r)
{
    return r->weighted ? r->n_part : 0;
}

const char *reward_part_name(const struct reward *r, int i)
{
    return r->part[i].name;
}

/* The first member of the type that has the wanted string. */
static const char *type_string(const char *type, size_t offset)
{
    struct error err = { 0 };
    struct part part;
    const char *found = NULL, *arg;
    char *copy = strlen(type) <= TYPE_MAX ? strdup(type) : NULL;
    for (char *text = copy, *rest; text && !found; text = rest) {
        if (!member_next(text, &rest, &part, &arg, &err))
            break;
        memcpy(&found, (const char *)part.kind + offset, sizeof found);
    }
    free(copy);
    return found;
}

const char *reward_system_prompt(const char *type)
{
    return type_string(type, offsetof(struct reward_kind, system_prompt));
}

const char *reward_stop_string(const char *type)
{
    return type_string(type, offsetof(struct reward_kind, stop_string));
}
