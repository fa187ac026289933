/* compare.c - see compare.h */
#include "console/tui/compare.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

void compare_release(struct compare *c)
{
    free(c->here.end_s);
    free(c->there.end_s);
    *c = (struct compare){ 0 };
}

/* Step 0 is before the first one; a step of unknown length takes none. */
static void clock_update(struct run_clock *k, const struct run_view *m)
{
    const struct series *s = &m->metric[M_STEP_S];
    k->n = MIN(k->n, m->n_step);    // the run went back
    if (m->n_step > k->cap) {
        int64_t cap = MAX(2 * k->cap, m->n_step + 64);
        double *more = realloc(k->end_s, (size_t)cap * sizeof(*more));
        if (!more)
            return;    // later steps have no time until there is memory
        k->end_s = more;
        k->cap = cap;
    }
    for (; k->n < m->n_step; k->n++) {
        double took = series_at(s, k->n);
        k->end_s[k->n] = (k->n ? k->end_s[k->n - 1] : 0) + (isnan(took) ? 0 : took);
    }
}

void compare_update(struct compare *c, const struct run_view *here)
{
    if (!c->model)
        return;
    clock_update(&c->here, here);
    clock_update(&c->there, c->model);
}

/* The other run's step that ended last when this run's `step` did; beyond its last one: no step of it. */
static int64_t step_by_time(const void *arg, int64_t step)
{
    const struct compare *c = arg;
    const struct run_clock *h = &c->here, *t = &c->there;
    if (h->n == 0 || t->n == 0)
        return step;
    double at = step < h->n ? h->end_s[MAX(step, (int64_t)0)] : INFINITY;
    int64_t low = 0, high = t->n;
    while (low < high) {    // the first that ends later
        int64_t middle = low + (high - low) / 2;
        if (t->end_s[middle] <= at)
            low = middle + 1;
        else
            high = middle;
    }
    bool beyond = at > t->end_s[t->n - 1];
    return beyond ? t->n : MAX(low - 1, (int64_t)0);
}

static const struct series *series_of(const struct compare *c, const char *metric)
{
    int id = metric_find(metric);
    if (id >= 0)
        return &c->model->metric[id];
    for (int i = 0; i < c->model->n_extra; i++)
        if (strcmp(c->model->extra[i].name, metric) == 0)
            return &c->model->extra[i].series;
    return NULL;
}

bool compare_line(const struct compare *c, const char *metric, struct chart_line *out)
{
    const struct series *s = c->model ? series_of(c, metric) : NULL;
    if (!s || s->n == 0)
        return false;
    *out = (struct chart_line){
        .series = s, .letter = COMPARE_LETTER, .role = ROLE_SERIES7, .step_of = c->by_time ? step_by_time : NULL, .arg = c
    };
    return true;
}

int64_t compare_steps(const struct compare *c, int64_t n)
{
    return c->model && !c->by_time ? MAX(n, c->model->n_step) : n;
}

double compare_value(const struct compare *c, const char *metric, int64_t step)
{
    const struct series *s = c->model ? series_of(c, metric) : NULL;
    return s ? series_at(s, c->by_time ? step_by_time(c, step) : step) : NAN;
}
