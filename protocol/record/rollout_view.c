#include "protocol/record/rollout_view.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/utf8.h"
#include "protocol/record/rollout_file.h"
#include "protocol/wire/message.h"

void rollout_view_release(struct rollout_view *r)
{
    free(r->prompt);
    for (int i = 0; i < r->n_sample; i++) {
        struct sample_view *s = &r->sample[i];
        free(s->text);
        free(s->token);
        free(s->logp);
        free(s->entropy);
        free(s->newer);
        free(s->mask);
        free(s->piece);
    }
    free(r->sample);
    *r = (struct rollout_view){ 0 };
}

bool rollout_view_begin(struct rollout_view *r, int64_t item, int64_t step, const char *prompt, size_t len)
{
    char *copy = text_keep(prompt, len, ROLLOUT_TEXT_MAX);
    struct sample_view *sample = calloc(ROLLOUT_SAMPLES, sizeof(*sample));
    rollout_view_release(r);
    if (!copy || !sample) {
        free(copy);
        free(sample);
        return false;
    }
    *r = (struct rollout_view){ .item = item, .step = step, .version = -1, .line = -1, .prompt = copy, .sample = sample };
    return true;
}

void rollout_sample(struct rollout_view *r, const char *text, size_t len, double reward, int64_t n_tok, bool cut, const char *reason)
{
    char *copy = r->n_sample < ROLLOUT_SAMPLES ? text_keep(text, len, ROLLOUT_TEXT_MAX) : NULL;
    if (!copy)
        return;
    struct sample_view *s = &r->sample[r->n_sample++];
    *s = (struct sample_view){ .text = copy, .reward = reward, .adv = NAN, .ans_acc = NAN, .n_tok = n_tok, .cut = cut };
    for (int k = 0; k < GROUP_PARTS_MAX; k++)
        s->part[k] = NAN;
    snprintf(s->reason, sizeof(s->reason), "%s", reason);
}

char sample_sign(const struct sample_view *s)
{
    return isnan(s->reward) ? '?' : s->reward > 0.5 ? '1' : s->reward > 0 ? '+' : '0';
}

/* Elements first to first + n of an array field of n_all elements; NULL: it is missing, of another size, or there is no memory. */
static void *array_part(const struct mval *v, const char *name, size_t size, int64_t n_all, int64_t first, int64_t n)
{
    size_t len = 0;
    const char *all = mval_bin(mval_get(v, name), &len);
    if (!all || n <= 0 || len != (size_t)n_all * size)
        return NULL;
    void *part = malloc((size_t)n * size);
    if (part)
        memcpy(part, all + (size_t)first * size, (size_t)n * size);
    return part;
}

static void tokens_read(struct sample_view *s, const struct mval *v, int64_t n_all, int64_t first)
{
    if (s->n_tok < 0 || first + s->n_tok > n_all)
        return;
    s->token = array_part(v, "token", sizeof(*s->token), n_all, first, s->n_tok);
    if (!mval_bool(mval_get(v, "no_logp"), false))    // else they are not known
        s->logp = array_part(v, "logp", sizeof(*s->logp), n_all, first, s->n_tok);
    s->entropy = array_part(v, "entropy", sizeof(*s->entropy), n_all, first, s->n_tok);
    s->newer = array_part(v, "newer", sizeof(*s->newer), n_all, first, s->n_tok);
    s->mask = array_part(v, "mask", sizeof(*s->mask), n_all, first, s->n_tok);
    s->piece = array_part(v, "piece", sizeof(*s->piece), n_all, first, s->n_tok);
}

static int64_t own_tokens(const struct sample_view *s)
{
    int64_t n = 0;
    for (int64_t t = 0; t < s->n_tok; t++)
        n += !s->mask || s->mask[t];
    return n;
}

/* The advantages by the run's rule; groups that came with their own keep those unknown here. */
static void advantages_make(struct rollout_view *r, const struct mval *samples, enum advantage_form form)
{
    struct sample sample[ROLLOUT_SAMPLES];
    double adv[ROLLOUT_SAMPLES];
    struct group g = { .n_sample = r->n_sample, .sample = sample };
    for (int i = 0; i < r->n_sample; i++) {
        bool scored = !isnan(r->sample[i].reward);
        sample[i] = (struct sample){ .score = scored ? SCORE_OK : SCORE_NONE,
                                     .reward = scored ? r->sample[i].reward : 0,
                                     .n_tok = own_tokens(&r->sample[i]),
                                     .again = i > 0 && mval_bool(mval_get(mval_at(samples, i), "again"), false) };
    }
    advantage_group(adv, form, &g);
    for (int i = 0; i < r->n_sample; i++)
        r->sample[i].adv = sample[i].score != SCORE_OK ? NAN : mval_bool(mval_get(mval_at(samples, i), "adv_zero"), false) ? 0 : adv[i];
}

bool rollout_view_read(struct rollout_view *r, const struct mval *v, enum advantage_form form)
{
    size_t len, token_bytes = 0;
    const char *prompt = mval_str(mval_get(v, "prompt_text"), &len);
    const struct mval *samples = mval_get(v, "samples");
    int64_t first = 0;
    if (!rollout_view_begin(r, mval_i64(mval_get(v, "item"), -1), mval_i64(mval_get(v, "step"), -1), prompt ? prompt : "",
                            prompt ? len : 0))
        return false;
    r->line = mval_i64(mval_get(v, "line"), -1);
    r->version = mval_i64(mval_get(v, "version"), -1);
    mval_text(v, "gold", r->gold, sizeof(r->gold));
    bool tokens = mval_bin(mval_get(v, "token"), &token_bytes) != NULL;
    for (int64_t i = 0; i < mval_n(samples); i++) {
        const struct mval *s = mval_at(samples, i);
        char reason[64];
        const char *text = mval_str(mval_get(s, "text"), &len);
        bool scored = mval_i64(mval_get(s, "score"), SCORE_OK) == SCORE_OK;
        int64_t n_tok = mval_i64(mval_get(s, "n_tok"), 0);
        int before = r->n_sample;
        rollout_sample(r, text ? text : "", text ? len : 0, scored ? mval_f64(mval_get(s, "reward"), NAN) : NAN, n_tok,
                       mval_i64(mval_get(s, "finish"), FINISH_STOP) == FINISH_LENGTH, mval_text(s, "reason", reason, sizeof(reason)));
        if (r->n_sample == before)
            break;
        struct sample_view *o = &r->sample[before];
        const void *parts = mval_bin(mval_get(s, "parts"), &len);
        if (parts && len == sizeof(o->part))
            memcpy(o->part, parts, len);
        o->ans_acc = scored ? mval_f64(mval_get(s, "ans_acc"), NAN) : NAN;
        if (tokens)
            tokens_read(o, v, (int64_t)(token_bytes / sizeof(int32_t)), first);
        first += MAX(n_tok, (int64_t)0);
    }
    if (!mval_get(v, "adv"))
        advantages_make(r, samples, form);
    return true;
}

bool rollout_view_load(struct rollout_view *r, const char *path, int64_t offset, int64_t size_bytes, enum advantage_form form,
                       struct error *err)
{
    struct msg_in in;
    struct buf record = { .max = ROLLOUT_RECORD_MAX + 1 };
    bool ok = rollout_file_read(path, offset, size_bytes, &record, err) && msg_read_request(&in, record.data, record.len, err);
    if (ok) {
        ok = rollout_view_read(r, in.root, form) || error_set(err, ERR_NO_MEMORY, "no memory for a group");
        msg_in_release(&in);
    }
    if (!ok)
        rollout_view_release(r);
    buf_release(&record);
    return ok;
}
