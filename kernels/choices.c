#include "kernels/choices.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool kinds_equal(const struct product_kind *a, const struct product_kind *b)
{
    return a->n_out == b->n_out && a->n_in == b->n_in && a->parts == b->parts && a->bias == b->bias && a->f32 == b->f32;
}

struct choice *choices_find(struct choices *c, const struct product_kind *kind)
{
    for (int i = 0; i < c->n; i++)
        if (kinds_equal(&c->at[i].kind, kind))
            return &c->at[i];
    return NULL;
}

struct choice *choices_take(struct choices *c, const struct product_kind *kind)
{
    struct choice *x = choices_find(c, kind);
    if (x)
        return x;
    for (int i = 0; c->n == CHOICES_MAX && !x && i < c->n; i++)
        if (c->at[i].state == CHOICE_READ)
            x = &c->at[i];
    if (!x && c->n == CHOICES_MAX)
        return NULL;
    if (!x)
        x = &c->at[c->n++];
    *x = (struct choice){ .kind = *kind };
    return x;
}

void choices_join(struct choices *c, const struct choices *from)
{
    c->seconds += from->seconds;
    for (int i = 0; i < from->n; i++) {
        const struct choice *y = &from->at[i];
        struct choice *x = y->state == CHOICE_PASSED && !choices_find(c, &y->kind) ? choices_take(c, &y->kind) : NULL;
        if (!x)
            continue;
        *x = *y;
        x->state = CHOICE_READ;
    }
}

void choice_name(struct choice *c, const char *name)
{
    char all[sizeof c->name];
    size_t len = strlen(name);
    for (const char *s = c->name; *s; s += strcspn(s, " ") + (s[strcspn(s, " ")] == ' '))
        if (strncmp(s, name, len) == 0 && (s[len] == 0 || s[len] == ' '))
            return;
    snprintf(all, sizeof all, "%s%s%s", c->name, c->name[0] ? " " : "", name);
    memcpy(c->name, all, sizeof all);
}

int64_t choice_rows(int b, int64_t *last)
{
    *last = b == CHOICE_BUCKETS - 1 ? 0 : (int64_t)1 << b;
    return b == 0 ? 1 : ((int64_t)1 << (b - 1)) + 1;
}

/* Text that is cut off where out ends. */
struct text {
    char *out;
    size_t size, len;
};
static void text_add(struct text *t, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void text_add(struct text *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(t->out + t->len, t->size - t->len, fmt, ap);
    va_end(ap);
    t->len = n < 0 ? t->len : MIN(t->len + (size_t)n, t->size - 1);
}

static bool ways_equal(const struct choice_way *a, const struct choice_way *b)
{
    return a->own == b->own && (a->own > 0 || memcmp(a->config, b->config, sizeof a->config) == 0);
}

static void way_add(struct text *t, const struct choice_way *w)
{
    if (w->own > 0)
        text_add(t, "own kernel of %" PRId32 " outputs a block", w->own);
    else
        text_add(t, "library %" PRId32 " tile %" PRId32 " stages %" PRId32, w->config[CHOICE_ID], w->config[CHOICE_TILE],
                 w->config[CHOICE_STAGES]);
}

/* The ways, those of neighbouring numbers of rows in one where they are equal. */
static void ways_add(struct text *t, const struct choice *c)
{
    for (int b = 0; b < CHOICE_BUCKETS;) {
        int end = b + 1;
        int64_t last, first = choice_rows(b, &last);
        while (end < CHOICE_BUCKETS && ways_equal(&c->way[b], &c->way[end]))
            end++;
        choice_rows(end - 1, &last);
        text_add(t, b ? ", " : " ");
        if (last == 0)
            text_add(t, "%" PRId64 "+ rows ", first);
        else if (first == last)
            text_add(t, "%" PRId64 " row%s ", first, first == 1 ? "" : "s");
        else
            text_add(t, "%" PRId64 "-%" PRId64 " rows ", first, last);
        way_add(t, &c->way[b]);
        b = end;
    }
}

void choice_text(const struct choice *c, char *out, size_t size)
{
    struct text t = { out, size, 0 };
    text_add(&t, "%s %" PRId64 " to %" PRId64 "%s%s", c->name[0] ? c->name : "product", c->kind.n_in, c->kind.n_out,
             c->kind.bias ? " with bias" : "", c->kind.f32 ? " in fp32" : "");
    if (c->split > 1)
        text_add(&t, ", sums in %d parts", c->split);
    switch (c->state) {
    case CHOICE_PLAIN:
        text_add(&t, ": plain kernel at any number of rows; equal bits: failed, the library keeps no one order of summation here");
        return;
    case CHOICE_UNFIT:
        text_add(&t, ": plain kernel at any number of rows, for sizes that are no multiples of 8; equal bits: passed");
        return;
    case CHOICE_READ:
    case CHOICE_PASSED: break;
    }
    text_add(&t, ":");
    ways_add(&t, c);
    text_add(&t, "; equal bits: %s", c->state == CHOICE_PASSED ? "passed" : "not tried yet");
    if (c->n_left_out > 0)
        text_add(&t, ", %d with other bits left out", c->n_left_out);
    if (c->untimed)
        text_add(&t, "; not timed, for lack of memory");
    if (c->from_disk)
        text_add(&t, "; from disk");
}
