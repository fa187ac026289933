#include "workers/controller/levels.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "workers/controller/controller.h"
#include "workers/engine/data/row_level.h"

#define ROWS_NAME "row_levels"

void levels_release(struct levels *l)
{
    free(l->after);
    buf_release(&l->rows);
    *l = (struct levels){ 0 };
}

bool levels_on(const struct controller *c)
{
    return c->config.curriculum_levels > 1;
}

/* ---- the rows' levels ---- */

bool levels_known(const struct controller *c)
{
    return !levels_on(c) || c->levels.told;
}

const uint8_t *levels_rows(const struct controller *c)
{
    return c->levels.rows.len > 0 ? (const uint8_t *)c->levels.rows.data : NULL;
}

bool levels_take(struct controller *c, const struct mval *rows, struct error *err)
{
    size_t len = 0;
    const void *told = rows ? mval_bin(rows, &len) : NULL;
    if (!levels_on(c) || c->levels.told || !told)    // the data are the same ever after (identity.h)
        return true;
    buf_clear(&c->levels.rows);
    if (!buf_add(&c->levels.rows, told, len))
        return error_set(err, ERR_NO_MEMORY, "no memory for the levels of %zu prompts", len);
    c->levels.told = transaction(c, err) && journal_value_put(c->journal, ROWS_NAME, told, len, err);
    return c->levels.told;
}

bool levels_rows_check(const struct controller *c, struct error *err)
{
    return c->levels.rows.len == 0 || c->levels.rows.len == (size_t)c->n_row
           || error_set(err, ERR_DATA, "there are the levels of %zu prompts, and %" PRId64 " usable prompts", c->levels.rows.len, c->n_row);
}

int64_t levels_of(const struct controller *c, const struct ledger_item *i)
{
    const uint8_t *rows = levels_rows(c);    // an item has a row of another level when every one of its own is forbidden
    return rows && rows[i->row] != LEVEL_EVERY ? rows[i->row] : levels_at(c, i->rollout_step);
}

/* ---- what the cuts have led to ---- */

static struct curriculum begin(const struct controller *c)
{
    return (struct curriculum){ .level = c->config.curriculum_start };
}

struct curriculum levels_now(const struct controller *c)
{
    return c->levels.n > 0 ? c->levels.after[c->levels.n - 1] : begin(c);
}

int64_t levels_at(const struct controller *c, int64_t rollout_step)
{
    const struct levels *l = &c->levels;
    int64_t k = rollout_step - 1 - c->config.n_behind - l->first;    // the cut that lets it open
    return l->n == 0 || k < 0 ? c->config.curriculum_start : l->after[MIN(k, l->n - 1)].level;
}

static bool after_add(struct controller *c, int64_t rollout_step, const struct curriculum *after, struct error *err)
{
    struct levels *l = &c->levels;
    if (l->n == l->cap) {
        int64_t cap = MAX(2 * l->cap, (int64_t)64);
        struct curriculum *more = realloc(l->after, (size_t)cap * sizeof *more);
        if (!more)
            return error_set(err, ERR_NO_MEMORY, "no memory for the levels of rollout steps");
        l->after = more;
        l->cap = cap;
    }
    if (l->n == 0)
        l->first = rollout_step;
    if (rollout_step != l->first + l->n)
        return error_set(err, ERR_DATA, "the journal's level of rollout step %" PRId64 " follows that of step %" PRId64, rollout_step,
                         l->first + l->n - 1);
    l->after[l->n++] = *after;
    return true;
}

static void chunk_name(char out[32], int64_t chunk)
{
    snprintf(out, 32, "levels %" PRId64, chunk);
}

/* Write the chunk of the last cut: "STEP LEVEL GROUPS ANSWERS RIGHT\n" for each of its cuts. */
static bool chunk_save(struct controller *c, struct error *err)
{
    const struct levels *l = &c->levels;
    char name[32];
    struct buf text = BUF_INIT;
    int64_t chunk = (l->first + l->n - 1) / LEVELS_STEPS;
    chunk_name(name, chunk);
    for (int64_t k = MAX(chunk * LEVELS_STEPS - l->first, (int64_t)0); k < l->n; k++)
        buf_fmt(&text, "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %.17g\n", l->first + k, l->after[k].level, l->after[k].n_group,
                l->after[k].n_answer, l->after[k].right);
    bool ok = (!text.failed || error_set(err, ERR_NO_MEMORY, "no memory for the levels of rollout steps")) && transaction(c, err)
              && journal_value_put(c->journal, name, text.data, text.len, err);
    buf_release(&text);
    return ok;
}

/* Take a chunk's cuts before n_cut. */
static bool chunk_take(struct controller *c, const struct buf *text, int64_t n_cut, struct error *err)
{
    for (const char *at = buf_text(text), *end; (end = strchr(at, '\n')); at = end + 1) {
        int64_t step;
        struct curriculum one;
        if (sscanf(at, "%" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %lg", &step, &one.level, &one.n_group, &one.n_answer, &one.right)
            != 5)
            return error_set(err, ERR_DATA, "the journal's levels of rollout steps cannot be read");
        if (step < n_cut && !after_add(c, step, &one, err))
            return false;
    }
    return true;
}

bool levels_load(struct controller *c, int64_t n_cut, struct error *err)
{
    struct levels *l = &c->levels;
    struct buf text = BUF_INIT;
    char name[32];
    bool found, ok = true;
    l->n = 0;
    for (int64_t k = 0; ok && k * LEVELS_STEPS < n_cut; k++) {
        buf_clear(&text);
        chunk_name(name, k);
        ok = journal_value_get(c->journal, name, &text, &found, err) && chunk_take(c, &text, n_cut, err);
    }
    if (ok && !l->told) {
        buf_clear(&l->rows);
        ok = journal_value_get(c->journal, ROWS_NAME, &l->rows, &l->told, err);
    }
    buf_release(&text);
    return ok;
}

/* ---- a cut ---- */

static void change_tell(struct controller *c, int64_t rollout_step, const struct curriculum *now, int by, double share, int64_t n_answer)
{
    char text[200];
    int64_t from = rollout_step + 1 + c->config.n_behind;
    snprintf(text, sizeof text,
             "level %" PRId64 " -> %" PRId64 " from rollout step %" PRId64 " on: %.1f %% of %" PRId64 " answers were right",
             now->level - by, now->level, from + 1, 100 * share, n_answer);
    event_add_facts(c, "level", "controller", text,
                    json_pack("{s:I, s:I, s:I, s:f}", "level", (json_int_t)now->level, "before", (json_int_t)(now->level - by),
                              "rollout_step", (json_int_t)from, "share", share));
}

bool levels_cut(struct controller *c, int64_t rollout_step, struct curriculum *now, const struct run_config *at, struct error *err)
{
    const struct curriculum_rule rule = { .harder = at->curriculum_pass_rate,
                                          .easier = at->curriculum_easier_rate,
                                          .n_group = at->curriculum_groups,
                                          .n_level = c->config.curriculum_levels };
    double share;
    int64_t n_answer = now->n_answer;
    if (rollout_step == 0 && now->n_group == 0)
        event_add(
            c, "alert", "controller",
            "no answer of the first rollout step is known to be right or wrong (ans_acc), so the curriculum's level stays until some are; "
            "have the reward say it",
            "");
    int by = curriculum_decide(now, &rule, &share);
    if (by != 0)
        change_tell(c, rollout_step, now, by, share, n_answer);
    return after_add(c, rollout_step, now, err) && chunk_save(c, err);
}

/* ---- what is shown ---- */

void levels_write(const struct controller *c, struct msg_out *m)
{
    struct curriculum now = levels_now(c);
    double share = curriculum_share(&now);
    msg_map(m, "level");
    msg_i64(m, "level", now.level);
    msg_i64(m, "levels", c->config.curriculum_levels);
    msg_i64(m, "groups", now.n_group);
    msg_i64(m, "of", c->now.curriculum_groups);
    msg_i64(m, "answers", now.n_answer);
    if (!isnan(share))
        msg_f64(m, "share", share);
    msg_f64(m, "harder", c->now.curriculum_pass_rate);
    msg_f64(m, "easier", c->now.curriculum_easier_rate);
    msg_end(m);
}
