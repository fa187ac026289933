#include "workers/controller/solved.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/log.h"
#include "workers/controller/controller.h"

static void chunk_name(char out[32], int64_t chunk)
{
    snprintf(out, 32, "solved %" PRId64, chunk);
}

void solved_release(struct solved *s)
{
    buf_release(&s->added);
}

static bool chunk_read(struct controller *c, int64_t chunk, struct buf *text, bool *found, struct error *err)
{
    char name[32];
    chunk_name(name, chunk);
    buf_clear(text);
    return journal_value_get(c->journal, name, text, found, err);
}

bool solved_add(struct controller *c, int64_t rollout_step, int64_t row, struct error *err)
{
    struct solved *s = &c->solved;
    bool found;
    if (rollout_step / SOLVED_STEPS != s->chunk) {
        if (!solved_save(c, err) || !chunk_read(c, rollout_step / SOLVED_STEPS, &s->added, &found, err))
            return false;
        s->chunk = rollout_step / SOLVED_STEPS;
    }
    s->n++;
    return buf_fmt(&s->added, "%" PRId64 " %" PRId64 "\n", rollout_step, row)
           || error_set(err, ERR_NO_MEMORY, "no memory for the list of solved prompts");
}

bool solved_save(struct controller *c, struct error *err)
{
    char name[32];
    chunk_name(name, c->solved.chunk);
    return transaction(c, err) && journal_value_put(c->journal, name, c->solved.added.data, c->solved.added.len, err);
}

static int64_t later_than(const struct buf *text, int64_t last)
{
    int64_t n = 0;
    for (const char *at = buf_text(text), *end; (end = strchr(at, '\n')); at = end + 1)
        n += strtoll(at, NULL, 10) > last;
    return n;
}

int64_t solved_until(struct controller *c, int64_t last)
{
    const struct solved *s = &c->solved;
    struct error err;
    struct buf text = BUF_INIT;
    int64_t later = later_than(&s->added, last);
    bool found, ok = true;
    for (int64_t k = MAX(last, (int64_t)0) / SOLVED_STEPS; ok && k < s->chunk; k++)
        if ((ok = chunk_read(c, k, &text, &found, &err)))
            later += later_than(&text, last);
    if (!ok)
        log_warn("%s", err.text);
    buf_release(&text);
    return ok ? s->n - later : -1;
}

/* Forbid the rows of a chunk, and keep in out those of steps before n_cut. */
static bool chunk_take(struct solved *s, struct ledger *l, const struct buf *text, int64_t n_cut, struct buf *out)
{
    bool ok = true;
    for (const char *at = buf_text(text), *end; ok && (end = strchr(at, '\n')); at = end + 1) {
        if (strtoll(at, NULL, 10) >= n_cut)
            continue;
        ledger_forbid(l, strtoll(at + strcspn(at, " \n"), NULL, 10));
        s->n++;
        ok = buf_add(out, at, (size_t)(end + 1 - at));
    }
    return ok;
}

bool solved_load(struct controller *c, struct ledger *l, int64_t n_cut, struct error *err)
{
    struct solved *s = &c->solved;
    struct buf text = BUF_INIT;
    bool found = true, ok = true;
    s->n = 0;
    for (int64_t k = 0; ok && (k * SOLVED_STEPS < n_cut || found); k++) {    // beyond it what is to be forgotten
        ok = chunk_read(c, k, &text, &found, err);
        buf_clear(&s->added);
        s->chunk = k;
        if (ok && !chunk_take(s, l, &text, n_cut, &s->added))
            ok = error_set(err, ERR_NO_MEMORY, "no memory for the list of solved prompts");
        if (ok && s->added.len != text.len)
            ok = solved_save(c, err);
    }
    buf_release(&text);
    return ok;
}
