#include "workers/schedule/eval_sets.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/wire/message.h"

#define RECORDS_MAX ((size_t)1 << 30)    // bytes of records that are kept at once

struct eval_sets *eval_sets_new(const struct run_config *config, int64_t n_part, struct error *err)
{
    struct eval_set set[EVAL_SET_MAX];
    struct eval_sets *s = calloc(1, sizeof *s);
    if (!s) {
        error_set(err, ERR_NO_MEMORY, "no memory for an evaluation");
        return NULL;
    }
    s->config = *config;
    s->n_part = n_part;
    int n = run_config_eval_sets(config, set, err);
    if (n < 0 || (!(s->set = calloc((size_t)n + 1, sizeof *s->set)) && !error_set(err, ERR_NO_MEMORY, "no memory for an evaluation"))) {
        free(s);
        return NULL;
    }
    for (s->n = 0; s->n < n; s->n++)
        s->set[s->n].set = set[s->n];
    return s;
}

void eval_sets_free(struct eval_sets *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n; i++) {
        struct eval_results *r = &s->set[i];
        for (int64_t k = 0; r->record && k < r->tally.n_prompt; k++)
            free(r->record[k]);
        free(r->record);
        free(r->come);
        eval_tally_release(&r->tally);
    }
    free(s->set);
    free(s);
}

/* The results of a set that has n prompts; NULL with ERR_DATA, or ERR_NO_MEMORY. */
static struct eval_results *results_find(struct eval_sets *s, const char *name, int64_t n, struct error *err)
{
    int i = 0;
    while (i < s->n && strcmp(s->set[i].set.name, name) != 0)
        i++;
    if (i == s->n || n < 0 || n > EVAL_PROMPT_MAX || (s->set[i].known && s->set[i].tally.n_prompt != n)) {
        error_set(err, ERR_DATA, "no evaluation set '%.60s' of %" PRId64 " prompts is being evaluated", name, n);
        return NULL;
    }
    struct eval_results *r = &s->set[i];
    if (r->known)
        return r;
    if (!eval_tally_init(&r->tally, n, r->set.n, err))
        return NULL;
    r->come = calloc((size_t)n + 1, sizeof *r->come);
    r->record = calloc((size_t)n + 1, sizeof *r->record);
    if (!r->come || !r->record) {
        free(r->come);
        free(r->record);
        r->come = NULL;
        r->record = NULL;
        eval_tally_release(&r->tally);
        error_set(err, ERR_NO_MEMORY, "no memory to evaluate %" PRId64 " prompts", n);
        return NULL;
    }
    r->known = true;
    return r;
}

static void sample_add(struct eval_results *r, int64_t row, const struct mval *sample)
{
    int64_t score = mval_i64(mval_get(sample, "score"), SCORE_ERROR);
    const struct mval *told = mval_get(sample, "correct");
    bool correct = mval_bool(told, false);
    struct reward_output out = { .score = score >= SCORE_OK && score <= SCORE_ERROR ? (enum score_state)score : SCORE_ERROR,
                                 .reward = mval_f64(mval_get(sample, "reward"), 0),
                                 .format_acc = (float)mval_f64(mval_get(sample, "format_acc"), NAN),
                                 .ans_acc = !told     ? NAN
                                            : correct ? 1
                                                      : 0,
                                 .verdict = correct ? VERDICT_EQUAL : VERDICT_DIFFERENT };
    eval_tally_add(&r->tally, row, &out, mval_i64(mval_get(sample, "n_tok"), 0),
                   mval_i64(mval_get(sample, "finish"), FINISH_STOP) == FINISH_LENGTH ? FINISH_LENGTH : FINISH_STOP);
}

bool eval_sets_take(struct eval_sets *s, const struct mval *told, struct error *err)
{
    char name[64];
    size_t len;
    int64_t row = mval_i64(mval_get(told, "row"), -1);
    const struct mval *samples = mval_get(told, "samples");
    struct eval_results *r = results_find(s, mval_text(told, "set", name, sizeof name), mval_i64(mval_get(told, "n"), -1), err);
    if (!r)
        return false;
    if (row < 0 || row >= r->tally.n_prompt || mval_n(samples) > r->set.n)
        return error_set(err, ERR_DATA, "prompt %" PRId64 " with %" PRId64 " answers is not of evaluation set '%s'", row, mval_n(samples),
                         name);
    if (r->come[row])
        return true;
    for (int64_t i = 0; i < mval_n(samples); i++)
        sample_add(r, row, mval_at(samples, i));
    const char *record = mval_str(mval_get(told, "records"), &len);
    if (record && len > 0 && s->n_byte + len <= RECORDS_MAX && (r->record[row] = strndup(record, len)))
        s->n_byte += len;
    r->come[row] = true;
    r->n_come++;
    return true;
}

bool eval_sets_told(struct eval_sets *s, const struct mval *told, struct error *err)
{
    for (int64_t k = 0; k < mval_n(told); k++) {
        size_t len;
        char name[64];
        const struct mval *set = mval_at(told, k), *dropped = mval_get(set, "dropped");
        const char *key = mval_key(told, k, &len);
        snprintf(name, sizeof name, "%.*s", key ? (int)MIN(len, sizeof name - 1) : 0, key ? key : "");
        struct eval_results *r = results_find(s, name, mval_i64(mval_get(set, "n"), -1), err);
        if (!r)
            return false;
        for (int64_t i = 0; i < mval_n(dropped); i++) {
            int64_t row = mval_i64(mval_at(dropped, i), -1);
            if (row < 0 || row >= r->tally.n_prompt)
                return error_set(err, ERR_DATA, "prompt %" PRId64 " is not of evaluation set '%s'", row, name);
            r->n_come += !r->come[row];
            r->come[row] = true;
        }
    }
    return true;
}

bool eval_sets_complete(const struct eval_sets *s)
{
    for (int i = 0; i < s->n; i++)
        if (!s->set[i].known || s->set[i].n_come < s->set[i].tally.n_prompt)
            return false;
    return true;
}

bool eval_sets_has(const struct eval_sets *s, int64_t part)
{
    for (int i = 0; i < s->n; i++)
        for (int64_t row = part; row < s->set[i].tally.n_prompt; row += s->n_part)
            if (!s->set[i].come[row])
                return false;
    return true;
}

static bool records_write(const struct eval_sets *s, const struct eval_results *r, const char *run_dir, int64_t step, struct error *err)
{
    char dir[4200], path[4400];
    bool own = s->config.eval_save_dir[0] != 0, ok = false;
    struct buf text = BUF_INIT;
    snprintf(dir, sizeof dir, "%s%s", own ? s->config.eval_save_dir : run_dir, own ? "" : "/eval");
    TRY(eval_file_path(path, sizeof path, dir, own ? s->config.project : NULL, r->set.name, step, err));
    char *slash = strrchr(path, '/');
    *slash = 0;
    bool made = dir_make(path, 0755, err);
    *slash = '/';
    for (int64_t k = 0; k < r->tally.n_prompt; k++)
        if (r->record[k])
            buf_add(&text, r->record[k], strlen(r->record[k]));
    ok = made && file_write(path, buf_text(&text), text.len, err);
out:
    buf_release(&text);
    return ok;
}

void eval_sets_write(const struct eval_sets *s, const char *run_dir, int64_t step)
{
    struct error err;
    for (int i = 0; i < s->n; i++)
        if (!records_write(s, &s->set[i], run_dir, step, &err))
            log_warn("an evaluation's records are not kept: %s", err.text);
}
