#include "workers/atropos/atropos_group.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "protocol/record/bounds.h"

#define NOT_TRAINED (-100)    // in masks

/* A posted group's fields, borrowed from root. */
struct fields {
    json_t *root, *tokens, *masks, *scores, *logprobs, *advantages, *overrides;
    int64_t n;    // sequences
    double temperature;
};

static const json_t *number_in(const json_t *o, const char *outer, const char *name)
{
    const json_t *v = json_object_get(json_object_get(o, outer), name);
    return json_is_number(v) ? v : NULL;
}

static bool fields_read(struct fields *f, const struct scored *posted, struct error *err)
{
    *f = (struct fields){ .root = json_text_parse(posted->text, posted->len, JSON_ALLOW_NUL, "group", err) };
    if (!f->root)
        return false;
    f->tokens = json_object_get(f->root, "tokens");
    f->masks = json_object_get(f->root, "masks");
    f->scores = json_object_get(f->root, "scores");
    f->logprobs = json_object_get(f->root, "inference_logprobs");
    f->advantages = json_object_get(f->root, "advantages");
    f->overrides = json_object_get(f->root, "overrides");
    f->n = (int64_t)json_array_size(f->tokens);
    const json_t *t = number_in(f->root, "generation_params", "temperature");
    t = t ? t : number_in(f->root, "group_overrides", "temperature");
    f->temperature = t && json_number_value(t) > 0 ? json_number_value(t) : 1;
    if (!json_array_size(f->advantages))
        f->advantages = NULL;
    if (!json_array_size(f->logprobs))
        f->logprobs = NULL;
    const struct {
        const json_t *list;
        const char *name;
        bool needed;
    } lists[] = {
        { f->masks, "masks", true },
        { f->scores, "scores", true },
        { f->logprobs, "inference_logprobs", false },
        { f->advantages, "advantages", false },
    };
    for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
        if ((lists[i].needed || lists[i].list) && (int64_t)json_array_size(lists[i].list) != f->n)
            return error_set(err, ERR_DATA, "'%s' has %zu entries for %" PRId64 " sequences", lists[i].name, json_array_size(lists[i].list),
                             f->n);
    return true;
}

static const json_t *at2(const json_t *lists, int64_t i, int64_t k)
{
    return json_array_get(json_array_get(lists, (size_t)i), (size_t)k);
}

static int64_t len_of(const json_t *lists, int64_t i)
{
    return (int64_t)json_array_size(json_array_get(lists, (size_t)i));
}

static bool is_trained(const struct fields *f, int64_t i, int64_t k)
{
    return json_integer_value(at2(f->masks, i, k)) != NOT_TRAINED;
}

/* A token's advantage: one may stand alone for all of a sequence. */
static const json_t *advantage_at(const struct fields *f, int64_t i, int64_t k)
{
    return at2(f->advantages, i, len_of(f->advantages, i) == 1 ? 0 : k);
}

/* Can token k of sequence i be computed with? These are looked at as they were posted: as fp32 they may be other numbers. */
static bool token_check(const struct fields *f, int64_t i, int64_t k, const struct posted_rules *rules, struct error *err)
{
    const json_t *id = at2(f->tokens, i, k);
    if (!json_is_integer(id))
        return error_set(err, ERR_DATA, "the token is no whole number");
    if (!bound_id_check(json_integer_value(id), rules->n_id, err))
        return false;
    if (!is_trained(f, i, k) || k == 0)
        return true;
    return (!f->logprobs || bound_check(BOUND_LOGP, json_number_value(at2(f->logprobs, i, k)), err))    // 1.0 stands for none
           && (!f->advantages || bound_check(BOUND_ADVANTAGE, json_number_value(advantage_at(f, i, k)), err));
}

static double temperature_of(const struct fields *f, int64_t i)
{
    const json_t *t = json_object_get(json_array_get(f->overrides, (size_t)i), "temperature");
    return json_is_number(t) && json_number_value(t) > 0 ? json_number_value(t) : f->temperature;
}

/* Do the lists of sequence i fit each other and the trainer? */
static bool sequence_check(const struct fields *f, int64_t i, const struct posted_rules *rules, struct error *err)
{
    int64_t n = len_of(f->tokens, i), n_adv = f->advantages ? len_of(f->advantages, i) : n;
    int64_t n_logp = f->logprobs ? len_of(f->logprobs, i) : n;
    if (n < 2 || n > rules->max_seq_tok)
        return error_set(err, ERR_DATA, "sequence %" PRId64 " has %" PRId64 " tokens; the run trains on 2 to %" PRId64, i, n,
                         rules->max_seq_tok);
    if (len_of(f->masks, i) != n || n_logp != n || (n_adv != n && n_adv != 1))
        return error_set(err, ERR_DATA,
                         "sequence %" PRId64 " has %" PRId64 " tokens, %" PRId64 " masks, %" PRId64 " log-probs and %" PRId64
                         " advantages; there must be as many of each",
                         i, n, len_of(f->masks, i), n_logp, n_adv);
    if (!bound_check(BOUND_REWARD, json_number_value(json_array_get(f->scores, (size_t)i)), err)
        || !bound_check(BOUND_TEMPERATURE, temperature_of(f, i), err))
        return error_wrap(err, "sequence %" PRId64, i);
    for (int64_t k = 0; k < n; k++)
        if (!token_check(f, i, k, rules, err))
            return error_wrap(err, "sequence %" PRId64 ", token %" PRId64, i, k);
    return true;
}

/* Tokens that all sequences begin with and that are not trained on; at least 1, since the first one has nothing to be predicted
 * from, and in each sequence at least one must follow. 0: they do not even share the first. */
static int64_t prompt_len(const struct fields *f)
{
    for (int64_t k = 0;; k++)
        for (int64_t i = 0; i < f->n; i++) {
            bool same = json_integer_value(at2(f->tokens, i, k)) == json_integer_value(at2(f->tokens, 0, k));
            if (k + 1 >= len_of(f->tokens, i) || !same || (k > 0 && is_trained(f, i, k)))
                return k;
        }
}

static void sample_fill(struct group *g, const struct fields *f, int64_t i)
{
    struct sample *s = &g->sample[i];
    double t = temperature_of(f, i);
    s->n_tok = len_of(f->tokens, i) - g->n_prompt;
    s->finish = FINISH_STOP;
    s->score = SCORE_OK;
    s->reward = json_number_value(json_array_get(f->scores, (size_t)i));
    s->format_acc = s->ans_acc = NAN;    // environments post scores alone
    s->temperature = t != f->temperature ? (float)t : 0;
    s->adv_zero = json_is_true(json_object_get(json_array_get(f->overrides, (size_t)i), "set_advantage_to_zero"));
    for (int p = 0; p < GROUP_PARTS_MAX; p++)
        s->part[p] = NAN;
    for (int64_t k = 0; k < s->n_tok; k++) {
        int64_t at = s->first_tok + k, from = g->n_prompt + k;
        g->token[at] = (int32_t)json_integer_value(at2(f->tokens, i, from));
        g->mask[at] = is_trained(f, i, from);
        g->logp[at] = g->mask[at] && f->logprobs ? (float)json_number_value(at2(f->logprobs, i, from)) : 0;
        if (g->has_adv && g->mask[at])
            g->adv[at] = (float)json_number_value(advantage_at(f, i, from));
    }
}

struct group *posted_group(const struct scored *posted, const struct posted_rules *rules, int64_t item, struct error *err)
{
    struct fields f;
    struct group *g = NULL;
    int64_t n_prompt, n_tok = 0;
    bool ok = fields_read(&f, posted, err);
    if (ok && !f.logprobs && rules->needs_logp)
        ok = error_set(
            err, ERR_DATA,
            "'inference_logprobs' is missing, and %s is made of it; have the environment post it, or train with 'kl_coeff' 0 and "
            "without a 'teacher'",
            rules->needs_logp);
    for (int64_t i = 0; ok && i < f.n; i++)
        ok = sequence_check(&f, i, rules, err);
    if (!ok)
        goto out;
    n_prompt = prompt_len(&f);
    if (n_prompt == 0) {
        error_set(err, ERR_DATA, "the sequences begin with different tokens; a group has one prompt");
        goto out;
    }
    for (int64_t i = 0; i < f.n; i++)
        n_tok += len_of(f.tokens, i) - n_prompt;
    TRY((g = group_new(n_prompt, (int32_t)f.n, n_tok, err)) != NULL);
    g->item = item;
    g->weight_version = posted->version;
    g->temperature = (float)f.temperature;
    g->top_p = 1;
    g->has_adv = f.advantages != NULL;
    g->no_logp = f.logprobs == NULL;
    for (int64_t k = 0; k < n_prompt; k++)
        g->prompt[k] = (int32_t)json_integer_value(at2(f.tokens, 0, k));
    for (int64_t i = 0, at = 0; i < f.n; at += g->sample[i++].n_tok) {
        g->sample[i].first_tok = at;
        sample_fill(g, &f, i);
    }
    if (!group_bounds_check(g, rules->n_id, err)) {    // a log-prob and an advantage together
        group_free(g);
        g = NULL;
    }
out:
    json_decref(f.root);
    return g;
}

struct group *posted_none(int64_t item, int64_t version, struct error *err)
{
    struct group *g = group_new(1, 1, 1, err);
    if (!g)
        return NULL;
    g->item = item;
    g->weight_version = version;
    g->temperature = g->top_p = 1;
    g->sample[0] = (struct sample){ .n_tok = 1, .finish = FINISH_STOP, .score = SCORE_ERROR, .reason = "posted: cannot be trained on" };
    for (int p = 0; p < GROUP_PARTS_MAX; p++)
        g->sample[0].part[p] = NAN;
    return g;
}

int64_t posted_version(const struct scored *posted, int64_t now)
{
    json_t *root = json_text_read(posted->text, posted->len, JSON_ALLOW_NUL, NULL);
    const json_t *v = number_in(root, "generation_params", "weight_version");
    v = v ? v : number_in(root, "group_overrides", "weight_version");
    int64_t version = json_is_integer(v) && json_integer_value(v) >= 0 ? MIN((int64_t)json_integer_value(v), now) : -1;
    json_decref(root);
    return version;
}
