#include "protocol/record/group_msg.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/record/bounds.h"

void sample_score_write(struct msg_out *m, const struct sample *s)
{
    msg_i64(m, "score", s->score);
    msg_f64(m, "reward", s->reward);
    if (!isnan(s->format_acc))
        msg_f64(m, "format_acc", (double)s->format_acc);
    if (!isnan(s->ans_acc))
        msg_f64(m, "ans_acc", (double)s->ans_acc);
    msg_bin(m, "parts", s->part, sizeof s->part);
    msg_str(m, "reason", s->reason);
}

void sample_score_read(struct sample *s, const struct mval *result)
{
    char rule[96], pred[64];
    const struct mval *parts = mval_get(result, "parts");
    int64_t score = mval_i64(mval_get(result, "score"), SCORE_ERROR);
    s->score = score >= SCORE_OK && score <= SCORE_ERROR ? (enum score_state)score : SCORE_ERROR;
    if (s->score == SCORE_OK && !bound_holds(BOUND_REWARD, mval_f64(mval_get(result, "reward"), 0)))    // a scorer may be anybody's
        s->score = SCORE_ERROR;
    bool ok = s->score == SCORE_OK;
    s->reward = ok ? mval_f64(mval_get(result, "reward"), 0) : 0;
    s->format_acc = ok ? (float)mval_f64(mval_get(result, "format_acc"), NAN) : 0;
    s->ans_acc = ok ? (float)mval_f64(mval_get(result, "ans_acc"), NAN) : 0;
    for (int k = 0; k < GROUP_PARTS_MAX; k++)
        s->part[k] = k < mval_n(parts) ? mval_f64(mval_at(parts, k), NAN) : NAN;
    mval_text(result, "rule", rule, sizeof rule);
    mval_text(result, "pred", pred, sizeof pred);
    snprintf(s->reason, sizeof s->reason, "%.30s%s%.16s", rule, pred[0] ? ": " : "", pred);
}

void group_write(struct msg_out *m, const struct group *g, const struct group_texts *texts)
{
    const struct group_texts none = { 0 };
    texts = texts ? texts : &none;
    msg_i64(m, "item", g->item);
    msg_i64(m, "row", g->prompt_row);
    msg_i64(m, "rollout_step", g->rollout_step);
    msg_i64(m, "version", g->weight_version);
    msg_f64(m, "temperature", (double)g->temperature);
    msg_f64(m, "top_p", (double)g->top_p);
    msg_i64(m, "top_k", g->top_k);
    msg_i64(m, "max_new_tok", g->max_new_tok);
    msg_bin(m, "prompt", g->prompt, (size_t)g->n_prompt * sizeof *g->prompt);
    msg_bin(m, "token", g->token, (size_t)g->n_tok * sizeof *g->token);
    msg_bin(m, "logp", g->logp, (size_t)g->n_tok * sizeof *g->logp);
    bool updated = false, given = false;
    for (int64_t i = 0; i < g->n_tok; i++) {
        updated = updated || g->newer[i] != 0;
        given = given || g->mask[i] == 0;
    }
    if (updated)
        msg_bin(m, "newer", g->newer, (size_t)g->n_tok * sizeof *g->newer);
    if (given)
        msg_bin(m, "mask", g->mask, (size_t)g->n_tok);
    if (g->has_entropy)
        msg_bin(m, "entropy", g->entropy, (size_t)g->n_tok * sizeof *g->entropy);
    if (g->no_logp)
        msg_bool(m, "no_logp", true);
    if (g->has_adv)
        msg_bin(m, "adv", g->adv, (size_t)g->n_tok * sizeof *g->adv);
    msg_list(m, "samples");
    for (int32_t i = 0; i < g->n_sample; i++) {
        const struct sample *s = &g->sample[i];
        msg_map(m, NULL);
        msg_i64(m, "n_tok", s->n_tok);
        msg_bin(m, "seed", &s->seed, sizeof s->seed);
        msg_i64(m, "finish", s->finish);
        sample_score_write(m, s);
        if (s->temperature > 0)
            msg_f64(m, "temperature", (double)s->temperature);
        if (s->adv_zero)
            msg_bool(m, "adv_zero", true);
        if (s->again)
            msg_bool(m, "again", true);
        if (texts->sample)
            msg_str(m, "text", texts->sample[i]);
        msg_end(m);
    }
    msg_end(m);
    if (texts->prompt)
        msg_str(m, "prompt_text", texts->prompt);
    if (texts->piece)
        msg_bin(m, "piece", texts->piece, (size_t)g->n_tok * sizeof *texts->piece);
    if (g->gold[0])
        msg_str(m, "gold", g->gold);
    msg_f64(m, "gen_s", g->gen_s);
    msg_f64(m, "score_s", g->score_s);
    msg_f64(m, "verify_s", g->verify_s);
}

/* The bytes of a field that must hold n elements of size bytes; n -1: any number, returned in *n_out. */
static const void *array_field(const struct mval *map, const char *name, size_t size, int64_t n, int64_t *n_out, struct error *err)
{
    size_t len = 0;
    const void *p = mval_bin(mval_get(map, name), &len);
    if (!p || len % size != 0 || (n >= 0 && len != (size_t)n * size)) {
        error_set(err, ERR_DATA, "'%s' of a group has %zu bytes, which does not fit its other fields", name, len);
        return NULL;
    }
    if (n_out)
        *n_out = (int64_t)(len / size);
    return p;
}

static bool sample_check(const struct mval *s, int64_t i, int64_t *left, struct error *err)
{
    int64_t n = mval_i64(mval_get(s, "n_tok"), -1), finish = mval_i64(mval_get(s, "finish"), -1);
    int64_t score = mval_i64(mval_get(s, "score"), -1);
    if (n < 0 || n > *left || finish < FINISH_STOP || finish > FINISH_LENGTH || score < SCORE_NONE || score > SCORE_ERROR)
        return error_set(err, ERR_DATA, "sample %" PRId64 " of a group has impossible values", i);
    *left -= n;
    return true;
}

static void known_add(int64_t *n, double *sum, double value)
{
    *n += !isnan(value);
    *sum += isnan(value) ? 0 : value;
}

bool group_summary_read(const struct mval *map, struct group_summary *out, struct error *err)
{
    struct group_summary sum = { .gen_s = mval_f64(mval_get(map, "gen_s"), 0),
                                 .score_s = mval_f64(mval_get(map, "score_s"), 0),
                                 .verify_s = mval_f64(mval_get(map, "verify_s"), 0),
                                 .arrived = mval_i64(mval_get(map, "arrived"), 0) };
    const struct mval *samples = mval_get(map, "samples");
    if (!array_field(map, "token", sizeof(int32_t), -1, &sum.n_tok, err) || !array_field(map, "logp", sizeof(float), sum.n_tok, NULL, err))
        return false;
    int64_t left = sum.n_tok;
    sum.n_sample = mval_n(samples);
    for (int64_t i = 0; i < sum.n_sample; i++) {
        const struct mval *s = mval_at(samples, i);
        if (!sample_check(s, i, &left, err))
            return false;
        int64_t n = mval_i64(mval_get(s, "n_tok"), 0);
        sum.n_tok_max = MAX(sum.n_tok_max, n);
        sum.n_truncated += mval_i64(mval_get(s, "finish"), 0) == FINISH_LENGTH;
        sum.n_again += i > 0 && mval_bool(mval_get(s, "again"), false);
        int64_t score = mval_i64(mval_get(s, "score"), 0);
        if (score != SCORE_OK) {
            sum.n_left_out++;
            sum.n_timeout += score == SCORE_TIMEOUT;
            sum.n_error += score == SCORE_ERROR;
            continue;
        }
        double reward = mval_f64(mval_get(s, "reward"), 0);
        sum.reward_low = sum.n_scored ? fmin(sum.reward_low, reward) : reward;
        sum.reward_high = sum.n_scored ? fmax(sum.reward_high, reward) : reward;
        sum.n_scored++;
        sum.reward_sum += reward;
        sum.reward_sum2 += reward * reward;
        known_add(&sum.n_format, &sum.format_sum, mval_f64(mval_get(s, "format_acc"), NAN));
        known_add(&sum.n_ans, &sum.ans_sum, mval_f64(mval_get(s, "ans_acc"), NAN));
    }
    if (left != 0 || sum.n_sample == 0)
        return error_set(err, ERR_DATA, "a group's samples do not add up to its %" PRId64 " tokens", sum.n_tok);
    *out = sum;
    return true;
}

struct group *group_read(const struct mval *map, struct error *err)
{
    struct group_summary sum;
    int64_t n_prompt, at = 0;
    if (!group_summary_read(map, &sum, err))
        return NULL;
    const void *prompt = array_field(map, "prompt", sizeof(int32_t), -1, &n_prompt, err);
    const void *token = array_field(map, "token", sizeof(int32_t), sum.n_tok, NULL, err);
    const void *logp = array_field(map, "logp", sizeof(float), sum.n_tok, NULL, err);
    bool updated = mval_get(map, "newer") != NULL;
    const void *newer = updated ? array_field(map, "newer", sizeof(int32_t), sum.n_tok, NULL, err) : NULL;
    bool has_entropy = mval_get(map, "entropy") != NULL;
    const void *entropy = has_entropy ? array_field(map, "entropy", sizeof(float), sum.n_tok, NULL, err) : NULL;
    bool given = mval_get(map, "mask") != NULL;
    const uint8_t *mask = given ? array_field(map, "mask", 1, sum.n_tok, NULL, err) : NULL;
    bool has_adv = mval_get(map, "adv") != NULL;
    const void *adv = has_adv ? array_field(map, "adv", sizeof(float), sum.n_tok, NULL, err) : NULL;
    if (!prompt || !token || !logp || (updated && !newer) || (has_entropy && !entropy) || (given && !mask) || (has_adv && !adv))
        return NULL;
    struct group *g = group_new(n_prompt, (int32_t)sum.n_sample, sum.n_tok, err);
    if (!g)
        return NULL;
    g->item = mval_i64(mval_get(map, "item"), 0);
    g->prompt_row = mval_i64(mval_get(map, "row"), 0);
    g->rollout_step = mval_i64(mval_get(map, "rollout_step"), 0);
    g->weight_version = mval_i64(mval_get(map, "version"), 0);
    g->temperature = (float)mval_f64(mval_get(map, "temperature"), 1);
    g->top_p = (float)mval_f64(mval_get(map, "top_p"), 1);
    g->top_k = (int32_t)mval_i64(mval_get(map, "top_k"), 0);
    g->max_new_tok = mval_i64(mval_get(map, "max_new_tok"), 0);
    mval_text(map, "gold", g->gold, sizeof g->gold);
    g->gen_s = sum.gen_s;
    g->score_s = sum.score_s;
    g->verify_s = sum.verify_s;
    memcpy(g->prompt, prompt, (size_t)n_prompt * sizeof(int32_t));
    memcpy(g->token, token, (size_t)sum.n_tok * sizeof(int32_t));
    memcpy(g->logp, logp, (size_t)sum.n_tok * sizeof(float));
    if (updated)
        memcpy(g->newer, newer, (size_t)sum.n_tok * sizeof(int32_t));
    g->has_entropy = has_entropy;
    if (has_entropy)
        memcpy(g->entropy, entropy, (size_t)sum.n_tok * sizeof(float));
    g->no_logp = mval_bool(mval_get(map, "no_logp"), false);
    g->has_adv = has_adv;
    if (has_adv)
        memcpy(g->adv, adv, (size_t)sum.n_tok * sizeof(float));
    for (int64_t i = 0; given && i < sum.n_tok; i++)
        g->mask[i] = mask[i] != 0;
    for (int64_t i = 0; i < sum.n_sample; i++) {
        const struct mval *s = mval_at(mval_get(map, "samples"), i);
        struct sample *o = &g->sample[i];
        size_t len = 0;
        const void *p = mval_bin(mval_get(s, "seed"), &len);
        o->first_tok = at;
        o->n_tok = mval_i64(mval_get(s, "n_tok"), 0);
        at += o->n_tok;
        if (p && len == sizeof o->seed)
            memcpy(&o->seed, p, len);
        o->finish = (enum finish_reason)mval_i64(mval_get(s, "finish"), 0);
        o->score = (enum score_state)mval_i64(mval_get(s, "score"), 0);
        o->reward = mval_f64(mval_get(s, "reward"), 0);
        o->format_acc = (float)mval_f64(mval_get(s, "format_acc"), o->score == SCORE_OK ? NAN : 0);
        o->ans_acc = (float)mval_f64(mval_get(s, "ans_acc"), o->score == SCORE_OK ? NAN : 0);
        for (int k = 0; k < GROUP_PARTS_MAX; k++)
            o->part[k] = NAN;
        p = mval_bin(mval_get(s, "parts"), &len);
        if (p && len == sizeof o->part)
            memcpy(o->part, p, len);
        o->temperature = (float)mval_f64(mval_get(s, "temperature"), 0);
        o->adv_zero = mval_bool(mval_get(s, "adv_zero"), false);
        o->again = i > 0 && mval_bool(mval_get(s, "again"), false);
        mval_text(s, "reason", o->reason, sizeof o->reason);
    }
    return g;
}

char *group_text(const struct mval *map, struct error *err)
{
    size_t n_prompt = 0, n_answer = 0;
    const char *prompt = mval_str(mval_get(map, "prompt_text"), &n_prompt);
    const char *answer = mval_str(mval_get(mval_at(mval_get(map, "samples"), 0), "text"), &n_answer);
    n_prompt = prompt ? n_prompt : 0;
    n_answer = answer ? n_answer : 0;
    char *text = malloc(n_prompt + n_answer + 1);
    if (!text) {
        error_set(err, ERR_NO_MEMORY, "no memory for a text of %zu bytes", n_prompt + n_answer);
        return NULL;
    }
    if (n_prompt)
        memcpy(text, prompt, n_prompt);
    if (n_answer)
        memcpy(text + n_prompt, answer, n_answer);
    text[n_prompt + n_answer] = 0;
    return text;
}
