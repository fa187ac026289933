#include "workers/engine/model/pipeline.h"
#include <inttypes.h>
#include <stdlib.h>
#include "protocol/base/macros.h"

static const char *const kind_text[] = { [STAGE_FORWARD] = "forward", [STAGE_BACKWARD] = "backward", [STAGE_EMBED] = "embedding" };

int pipeline_sets(int n_stage, int q)
{
    return n_stage - q;
}

/* The last stage takes a micro-batch's embedding step this many backward steps after its own. With backward steps twice as long as forward
 * ones these take 3 b units until then, and the other stages' backward steps 2 (n - 1): nothing waits from 2 (n - 1) / 3 on. */
static int embed_after(int n_stage)
{
    return (2 * (n_stage - 1) + 2) / 3;
}

int pipeline_shared(int n_stage)
{
    return n_stage > 1 ? embed_after(n_stage) + 1 : 0;
}

/* ---- making */
static void step_add(struct stage_list *l, enum stage_step_kind kind, int64_t micro)
{
    l->step[l->n_step++] = (struct stage_step){ kind, micro, { { .stage = -1 }, { .stage = -1 } } };
}

static void list_make(struct pipeline *p, int q)
{
    struct stage_list *l = &p->stage[q];
    bool embeds = p->n_shared > 0 && q == p->n_stage - 1;
    int64_t m = p->n_micro, ahead = p->backward ? MIN(m, p->n_stage - 1 - q) : m;
    for (int64_t k = 0; k < ahead; k++)
        step_add(l, STAGE_FORWARD, k);
    for (int64_t k = 0; k < m && p->backward; k++) {
        if (ahead + k < m)
            step_add(l, STAGE_FORWARD, ahead + k);
        step_add(l, STAGE_BACKWARD, k);
        if (embeds && k >= p->n_shared - 1)
            step_add(l, STAGE_EMBED, k - (p->n_shared - 1));
    }
    for (int64_t k = MAX(0, m - (p->n_shared - 1)); embeds && k < m; k++)
        step_add(l, STAGE_EMBED, k);
}

/* The step of another stage that hands over what this one reads. */
static bool giver(const struct pipeline *p, int q, const struct stage_step *s, int *stage, enum stage_step_kind *kind)
{
    *kind = s->kind == STAGE_FORWARD ? STAGE_FORWARD : STAGE_BACKWARD;
    *stage = s->kind == STAGE_FORWARD ? q - 1 : s->kind == STAGE_BACKWARD ? q + 1 : 0;
    return *stage >= 0 && *stage < p->n_stage && *stage != q;
}

static void waits_make(struct pipeline *p)
{
    for (int q = 0; q < p->n_stage; q++) {
        int64_t seen[PIPELINE_STAGES_MAX][STAGE_STEP_KINDS] = { { 0 } };    // each kind is in order: go on where the last one was
        for (int64_t i = 0; i < p->stage[q].n_step; i++) {
            struct stage_step *s = &p->stage[q].step[i];
            enum stage_step_kind kind;
            int from;
            if (giver(p, q, s, &from, &kind)) {
                const struct stage_list *l = &p->stage[from];
                int64_t *at = &seen[from][kind];
                while (l->step[*at].kind != kind || l->step[*at].micro != s->micro)
                    ++*at;
                s->wait[0] = (struct stage_wait){ from, *at };
            }
            int64_t before = s->micro - p->stage[q].n_set;    // whose set it takes: without backward steps, the next stage has read it?
            if (!p->backward && q + 1 < p->n_stage && before >= 0)
                s->wait[1] = (struct stage_wait){ q + 1, before };
        }
    }
}

bool pipeline_make(struct pipeline *p, int n_stage, int64_t n_micro, bool backward, bool shared, struct error *err)
{
    int64_t most = n_micro * (backward ? 2 * n_stage + 1 : n_stage), at = 0;
    if (n_stage < 1 || n_stage > PIPELINE_STAGES_MAX || n_micro < 0)
        return error_set(err, ERR_USAGE, "a pipeline of %d stages and %" PRId64 " micro-batches is not possible", n_stage, n_micro);
    if (most > p->cap) {
        struct stage_step *more = realloc(p->mem, (size_t)most * sizeof *more);
        if (!more)
            return error_set(err, ERR_NO_MEMORY, "no memory for a pipeline of %" PRId64 " micro-batches", n_micro);
        p->mem = more;
        p->cap = most;
    }
    p->n_stage = n_stage;
    p->n_micro = n_micro;
    p->backward = backward;
    p->n_shared = backward && shared ? pipeline_shared(n_stage) : 0;
    for (int q = 0; q < n_stage; q++) {
        p->stage[q] = (struct stage_list){ .step = p->mem + at, .n_set = pipeline_sets(n_stage, q) };
        list_make(p, q);
        at += p->stage[q].n_step;
    }
    waits_make(p);
    return true;
}

void pipeline_release(struct pipeline *p)
{
    free(p->mem);
    *p = (struct pipeline){ 0 };
}

/* ---- checking */
/* A table under check: seen[q][i][s] is how many steps of stage s are done for certain when step i of stage q begins; place[q][kind][k]
 * is where stage q has that step of micro-batch k. */
struct checking {
    const struct pipeline *p;
    int64_t (*seen[PIPELINE_STAGES_MAX])[PIPELINE_STAGES_MAX];
    int64_t *place[PIPELINE_STAGES_MAX][STAGE_STEP_KINDS];
    void *rows, *places;
};

static bool step_wrong(int q, const struct stage_step *s, const char *what, struct error *err)
{
    return error_set(err, ERR_INTERNAL, "schedule of a pipeline: stage %d's %s step of micro-batch %" PRId64 " %s", q, kind_text[s->kind],
                     s->micro, what);
}

static bool complete_check(struct checking *c, int q, struct error *err)
{
    const struct pipeline *p = c->p;
    const struct stage_list *l = &p->stage[q];
    int64_t next[STAGE_STEP_KINDS] = { 0 };
    const int64_t want[] = { [STAGE_FORWARD] = p->n_micro,
                             [STAGE_BACKWARD] = p->backward ? p->n_micro : 0,
                             [STAGE_EMBED] = p->n_shared > 0 && q == p->n_stage - 1 ? p->n_micro : 0 };
    for (int64_t i = 0; i < l->n_step; i++) {
        const struct stage_step *s = &l->step[i];
        if (s->micro != next[s->kind] || s->micro >= p->n_micro)
            return step_wrong(q, s, "is not in the order of the micro-batches", err);
        c->place[q][s->kind][next[s->kind]++] = i;
        if (s->kind > STAGE_FORWARD && next[s->kind] > next[s->kind - 1])
            return step_wrong(q, s, "comes before what it needs of its own stage", err);
    }
    for (int k = 0; k < STAGE_STEP_KINDS; k++)
        if (next[k] != want[k])
            return error_set(err, ERR_INTERNAL,
                             "schedule of a pipeline: stage %d has %" PRId64 " %s steps for %" PRId64 " micro-batches, not %" PRId64, q,
                             next[k], kind_text[k], p->n_micro, want[k]);
    return true;
}

static bool waits_check(const struct pipeline *p, int q, struct error *err)
{
    const struct stage_list *l = &p->stage[q];
    for (int64_t i = 0; i < l->n_step; i++) {
        const struct stage_step *s = &l->step[i];
        enum stage_step_kind kind;
        int from;
        for (int w = 0; w < 2; w++)
            if (s->wait[w].stage >= 0
                && (s->wait[w].stage >= p->n_stage || s->wait[w].stage == q || s->wait[w].step < 0
                    || s->wait[w].step >= p->stage[s->wait[w].stage].n_step))
                return step_wrong(q, s, "waits for a step that there is not", err);
        if (!giver(p, q, s, &from, &kind))
            continue;
        const struct stage_step *given = s->wait[0].stage == from ? &p->stage[from].step[s->wait[0].step] : NULL;
        if (!given || given->kind != kind || given->micro != s->micro)
            return step_wrong(q, s, "does not wait for what is handed to it", err);
    }
    return true;
}

/* Let the stages go as far as they can; what each knows of the others grows by its waits. */
static bool stages_run(struct checking *c, struct error *err)
{
    const struct pipeline *p = c->p;
    int64_t at[PIPELINE_STAGES_MAX] = { 0 }, known[PIPELINE_STAGES_MAX][PIPELINE_STAGES_MAX] = { { 0 } };
    for (bool moved = true; moved;) {
        moved = false;
        for (int q = 0; q < p->n_stage; q++)
            while (at[q] < p->stage[q].n_step) {
                const struct stage_step *s = &p->stage[q].step[at[q]];
                bool ready = true;
                for (int w = 0; w < 2; w++)
                    ready = ready && (s->wait[w].stage < 0 || s->wait[w].step < at[s->wait[w].stage]);
                if (!ready)
                    break;
                for (int w = 0; w < 2; w++) {
                    if (s->wait[w].stage < 0)
                        continue;
                    const int64_t *theirs = c->seen[s->wait[w].stage][s->wait[w].step];
                    for (int o = 0; o < p->n_stage; o++)
                        known[q][o] = MAX(known[q][o], theirs[o]);
                    known[q][s->wait[w].stage] = MAX(known[q][s->wait[w].stage], s->wait[w].step + 1);
                }
                known[q][q] = at[q];
                for (int o = 0; o < p->n_stage; o++)
                    c->seen[q][at[q]][o] = known[q][o];
                at[q]++;
                moved = true;
            }
    }
    for (int q = 0; q < p->n_stage; q++)
        if (at[q] < p->stage[q].n_step)
            return step_wrong(q, &p->stage[q].step[at[q]], "is never reached", err);
    return true;
}

/* Is step (q, i), which writes, after the reading step of stage `reader`? */
static bool after(const struct checking *c, int q, int64_t i, int reader, enum stage_step_kind kind, int64_t micro)
{
    return c->seen[q][i][reader] > c->place[reader][kind][micro];
}

static bool memory_check(const struct checking *c, int q, struct error *err)
{
    const struct pipeline *p = c->p;
    const struct stage_list *l = &p->stage[q];
    int last = p->n_stage - 1;
    for (int64_t i = 0; i < l->n_step; i++) {
        const struct stage_step *s = &l->step[i];
        int64_t set = s->micro - l->n_set, sum = s->micro - p->n_shared;
        if (s->kind == STAGE_FORWARD && set >= 0
            && ((p->backward && !after(c, q, i, q, STAGE_BACKWARD, set)) || (q < last && !after(c, q, i, q + 1, STAGE_FORWARD, set))))
            return step_wrong(q, s, "writes a set that is in use", err);
        if (s->kind == STAGE_BACKWARD && p->n_shared > 0 && (q == 0 || q == last) && sum >= 0 && !after(c, q, i, last, STAGE_EMBED, sum))
            return step_wrong(q, s, "writes a shared sum that is in use", err);
    }
    return true;
}

bool pipeline_check(const struct pipeline *p, struct error *err)
{
    struct checking c = { .p = p };
    int64_t n = 0, m = MAX(p->n_micro, (int64_t)1);
    bool ok = true;
    for (int q = 0; q < p->n_stage; q++)
        n += p->stage[q].n_step;
    int64_t(*rows)[PIPELINE_STAGES_MAX] = c.rows = calloc((size_t)MAX(n, (int64_t)1), sizeof *rows);
    int64_t *place = c.places = calloc((size_t)p->n_stage * STAGE_STEP_KINDS * (size_t)m, sizeof *place);
    if (!rows || !place)
        ok = error_set(err, ERR_NO_MEMORY, "no memory to check a pipeline of %" PRId64 " micro-batches", p->n_micro);
    for (int q = 0; q < p->n_stage && ok; rows += p->stage[q].n_step, q++) {
        c.seen[q] = rows;
        for (int k = 0; k < STAGE_STEP_KINDS; k++, place += m)
            c.place[q][k] = place;
        ok = complete_check(&c, q, err);
    }
    for (int q = 0; q < p->n_stage && ok; q++)
        ok = waits_check(p, q, err);
    ok = ok && stages_run(&c, err);
    for (int q = 0; q < p->n_stage && ok; q++)
        ok = memory_check(&c, q, err);
    free(c.rows);
    free(c.places);
    return ok;
}
