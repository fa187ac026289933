/* series.c - see series.h */
#include "protocol/record/series.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct series_node no_value = { .min = INFINITY, .max = -INFINITY };

void series_init(struct series *s)
{
    *s = (struct series){ .last = NAN };
}

void series_release(struct series *s)
{
    free(s->value);
    for (int k = 0; k < SERIES_LEVELS; k++)
        free(s->level[k]);
    series_init(s);
}

/* Steps in a node of level k. */
static int64_t node_width(int k)
{
    return (int64_t)SERIES_FAN << 3 * k;
}
_Static_assert(SERIES_FAN == 8, "node_width shifts by 3");

static bool series_grow(struct series *s, int64_t need)
{
    int64_t cap = s->cap ? s->cap : 256;
    while (cap < need)
        cap *= 2;
    float *value = realloc(s->value, (size_t)cap * sizeof(*value));
    if (!value)
        return false;
    s->value = value;
    for (int k = 0; k < SERIES_LEVELS; k++) {
        int64_t w = node_width(k), had = (s->cap + w - 1) / w, want = (cap + w - 1) / w;
        struct series_node *node = realloc(s->level[k], (size_t)want * sizeof(*node));
        if (!node)
            return false;    // what was enlarged stays so; cap still has the old size
        s->level[k] = node;
        for (int64_t i = had; i < want; i++)
            node[i] = no_value;
    }
    s->cap = cap;
    return true;
}

static void node_add(struct series_node *to, const struct series_node *from)
{
    to->min = fminf(to->min, from->min);
    to->max = fmaxf(to->max, from->max);
    to->sum += from->sum;
    to->n += from->n;
}

static struct series_node leaf(float v)
{
    return isnan(v) ? no_value : (struct series_node){ v, v, v, 1 };
}

/* Recompute node `at` of level k from its children. */
static void node_make(struct series *s, int k, int64_t at)
{
    int64_t first = at * SERIES_FAN, children = k == 0 ? s->n : (s->n + node_width(k - 1) - 1) / node_width(k - 1);
    struct series_node sum = no_value;
    for (int64_t i = first; i < first + SERIES_FAN && i < children; i++) {
        struct series_node child = k == 0 ? leaf(s->value[i]) : s->level[k - 1][i];
        node_add(&sum, &child);
    }
    s->level[k][at] = sum;
}

/* Append a value. Nodes are made when their last step comes: a query uses no others, and a million steps cost a pass. */
static void series_append(struct series *s, float value)
{
    s->value[s->n++] = value;
    for (int k = 0; k < SERIES_LEVELS && s->n % node_width(k) == 0; k++)
        node_make(s, k, s->n / node_width(k) - 1);
}

bool series_set(struct series *s, int64_t step, double value)
{
    if (step < 0 || step >= SERIES_MAX || (step >= s->cap && !series_grow(s, step + 1)))
        return false;
    if (!isfinite(value) || fabs(value) > 3e38)
        value = NAN;
    if (!isnan(value))
        s->last = value;
    while (s->n < step)
        series_append(s, NAN);
    if (s->n == step) {
        series_append(s, (float)value);
        return true;
    }
    s->value[step] = (float)value;
    for (int k = 0; k < SERIES_LEVELS; k++)
        node_make(s, k, step / node_width(k));
    return true;
}

void series_cut(struct series *s, int64_t first)
{
    first = MAX(first, 0);
    if (first >= s->n)
        return;
    s->n = first;
    for (int k = 0; k < SERIES_LEVELS; k++) {
        int64_t w = node_width(k);
        for (int64_t i = (first + w - 1) / w; i < (s->cap + w - 1) / w; i++)
            s->level[k][i] = no_value;
    }
    s->last = NAN;
    for (int64_t i = first - 1; i >= 0 && isnan(s->last); i--)
        s->last = (double)s->value[i];
}

struct series_span series_query(const struct series *s, int64_t a, int64_t b)
{
    a = MAX(a, 0);
    b = MIN(b, s->n);
    double min = INFINITY, max = -INFINITY, sum = 0;
    int64_t n = 0;
    while (a < b) {
        int k = -1;    // the largest node that starts at a and ends before b
        while (k + 1 < SERIES_LEVELS && a % node_width(k + 1) == 0 && a + node_width(k + 1) <= b)
            k++;
        struct series_node node = k < 0 ? leaf(s->value[a]) : s->level[k][a / node_width(k)];
        min = fmin(min, (double)node.min);
        max = fmax(max, (double)node.max);
        sum += (double)node.sum;
        n += node.n;
        a += k < 0 ? 1 : node_width(k);
    }
    if (n == 0)
        return (struct series_span){ NAN, NAN, NAN, 0 };
    return (struct series_span){ min, max, sum / (double)n, n };
}
