#include "workers/controller/history.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "workers/controller/controller.h"

#define STEPS_MAX 20000    // rows in one answer
#define SERIES_MAX 256     // different metrics in one answer
#define EVENTS_MAX 1000

/* ---- steps: the answer is a table, a column for each name that was seen ---- */

struct past_step {
    int64_t step;
    double wall_s;
    int32_t *name;    // (n) index into names; -1: it has no column
    double *value;    // (n)
    int n;
};
struct past {
    struct past_step *row;    // (n) owned
    int64_t n, cap, from, limit;
    char (*names)[96];    // (n_names, at most SERIES_MAX) owned
    int n_names;
    bool more, ok;    // more: there are rows beyond limit; ok: memory has sufficed
};

static void past_release(struct past *p)
{
    for (int64_t i = 0; i < p->n; i++) {
        free(p->row[i].name);
        free(p->row[i].value);
    }
    free(p->row);
    free(p->names);
}

/* The column of a name, made when it is new; -1: there are too many. hint: where it was in the row before. */
static int32_t column(struct past *p, const char *name, int hint)
{
    if (hint < p->n_names && strcmp(p->names[hint], name) == 0)    // rows usually agree
        return hint;
    int k = 0;
    while (k < p->n_names && strcmp(p->names[k], name) != 0)
        k++;
    if (k == SERIES_MAX)
        return -1;
    if (k == p->n_names)
        snprintf(p->names[p->n_names++], sizeof p->names[k], "%s", name);
    return k;
}

static bool row_room(struct past *p)
{
    if (p->n < p->cap)
        return true;
    int64_t cap = MAX(2 * p->cap, (int64_t)256);
    void *row = realloc(p->row, (size_t)cap * sizeof *p->row);
    if (!row)
        return false;
    p->row = row;
    p->cap = cap;
    return true;
}

static bool step_row(void *arg, const struct journal_step *s)
{
    struct past *p = arg;
    if (s->step < p->from)
        return true;
    if (p->n == p->limit) {
        p->more = true;
        return false;
    }
    if (!row_room(p))
        return p->ok = false;
    struct past_step *row = &p->row[p->n++];
    *row = (struct past_step){ .step = s->step, .wall_s = s->wall_s, .n = s->n };
    row->name = malloc((size_t)MAX(s->n, 1) * sizeof *row->name);
    row->value = malloc((size_t)MAX(s->n, 1) * sizeof *row->value);
    if (!row->name || !row->value)
        return p->ok = false;
    for (int i = 0; i < s->n; i++) {
        row->name[i] = column(p, s->metric[i].name, i);
        row->value[i] = s->metric[i].value;
    }
    return true;
}

/* The rows as columns: steps, times, and values (row by row), NAN where a step has none. False: no memory. */
static bool table_write(const struct past *p, struct msg_out *m)
{
    size_t n = (size_t)p->n, w = (size_t)p->n_names;
    int64_t *step = calloc(MAX(n, (size_t)1), sizeof *step);
    double *wall = calloc(MAX(n, (size_t)1), sizeof *wall), *value = calloc(MAX(n * w, (size_t)1), sizeof *value);
    bool ok = step && wall && value;
    for (size_t i = 0; ok && i < n * w; i++)
        value[i] = NAN;
    for (size_t i = 0; ok && i < n; i++) {
        step[i] = p->row[i].step;
        wall[i] = p->row[i].wall_s;
        for (int k = 0; k < p->row[i].n; k++)
            if (p->row[i].name[k] >= 0)
                value[i * w + (size_t)p->row[i].name[k]] = p->row[i].value[k];
    }
    if (ok) {
        msg_bin(m, "step", step, n * sizeof *step);
        msg_bin(m, "time", wall, n * sizeof *wall);
        msg_bin(m, "value", value, n * w * sizeof *value);
    }
    free(step);
    free(wall);
    free(value);
    return ok;
}

static bool steps_write(struct controller *c, struct past *p, struct msg_out *m, struct error *err)
{
    p->names = calloc(SERIES_MAX, sizeof *p->names);
    if (p->names && !journal_steps_read(c->journal, 0, step_row, p, err))
        return false;
    if (!p->names || !p->ok)
        return error_set(err, ERR_NO_MEMORY, "no memory for past steps");
    msg_begin(m, MSG_OK);
    msg_list(m, "names");
    for (int i = 0; i < p->n_names; i++)
        msg_str(m, NULL, p->names[i]);
    msg_end(m);
    if (!table_write(p, m))
        return error_set(err, ERR_NO_MEMORY, "no memory for past steps");
    msg_bool(m, "more", p->more);
    return true;
}

void steps_asked(struct controller *c, struct request *r, const struct msg_in *in)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    struct past p = { .from = mval_i64(mval_get(in->root, "from"), 0), .ok = true };
    p.limit = MIN(MAX(mval_i64(mval_get(in->root, "limit"), STEPS_MAX), 1), STEPS_MAX);
    answer_or_refuse_later(c, r, steps_write(c, &p, &m, &err), &m, &err);
    past_release(&p);
}

/* ---- events: the last ones ---- */

struct events_reader {
    struct msg_out *m;
    int64_t skip;
};

static bool event_count(void *arg, UNUSED const struct journal_event *e)
{
    ++*(int64_t *)arg;
    return true;
}

static bool event_row(void *arg, const struct journal_event *e)
{
    struct events_reader *r = arg;
    if (r->skip-- > 0)
        return true;
    msg_map(r->m, NULL);
    msg_i64(r->m, "id", e->seq);
    msg_f64(r->m, "time", e->wall_s);
    msg_i64(r->m, "step", e->step);
    msg_str(r->m, "kind", e->kind);
    msg_str(r->m, "who", e->who);
    msg_str(r->m, "text", e->text);
    if (e->detail[0])
        msg_str(r->m, "detail", e->detail);
    msg_end(r->m);
    return true;
}

void events_asked(struct controller *c, struct request *r, const struct msg_in *in)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    int64_t after = mval_i64(mval_get(in->root, "after"), 0), n = 0;
    int64_t limit = MIN(MAX(mval_i64(mval_get(in->root, "limit"), EVENTS_MAX), 1), EVENTS_MAX);
    struct events_reader reader = { .m = &m };
    bool ok = journal_events_read(c->journal, after, NULL, event_count, &n, &err);
    reader.skip = n - limit;
    msg_begin(&m, MSG_OK);
    msg_list(&m, "events");
    ok = ok && journal_events_read(c->journal, after, NULL, event_row, &reader, &err);
    msg_end(&m);
    answer_or_refuse_later(c, r, ok, &m, &err);
}
