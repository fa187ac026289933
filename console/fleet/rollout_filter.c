#include "console/fleet/rollout_filter.h"
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "protocol/base/macros.h"

static const struct {
    const char *word;
    size_t at;    // of the bool
} flags[] = {
    { "is:cut", offsetof(struct rollout_filter, cut) },           { "is:whole", offsetof(struct rollout_filter, whole) },
    { "is:unscored", offsetof(struct rollout_filter, unscored) }, { "is:solved", offsetof(struct rollout_filter, solved) },
    { "is:failed", offsetof(struct rollout_filter, failed) },     { "is:mixed", offsetof(struct rollout_filter, mixed) },
};
static const struct {
    const char *prefix;
    size_t at;    // of the int64_t
} numbers[] = {
    { "line:", offsetof(struct rollout_filter, line) },
    { "step:", offsetof(struct rollout_filter, step) },
    { "item:", offsetof(struct rollout_filter, item) },
};

/* Is it one of the words with a meaning? Then it is in f. */
static bool word_take(struct rollout_filter *f, const char *word)
{
    char *end;
    for (size_t i = 0; i < ARRAY_SIZE(flags); i++)
        if (strcmp(word, flags[i].word) == 0)
            return *(bool *)((char *)f + flags[i].at) = true;
    for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
        size_t n = strlen(numbers[i].prefix);
        long long v = strncmp(word, numbers[i].prefix, n) == 0 ? strtoll(word + n, &end, 10) : -1;
        if (v >= 0 && end > word + n && !*end) {
            *(int64_t *)(void *)((char *)f + numbers[i].at) = v;
            return true;
        }
    }
    if (strncmp(word, "reward", 6) == 0 && word[6] && strchr("<>=", word[6])) {
        double v = strtod(word + 7, &end);
        if (end > word + 7 && !*end) {
            f->compare = word[6];
            f->reward = v;
            return true;
        }
    }
    if (strncmp(word, "reason:", 7) == 0 && word[7]) {
        snprintf(f->reason, sizeof(f->reason), "%s", word + 7);
        return true;
    }
    return false;
}

void rollout_filter_parse(struct rollout_filter *f, const char *words)
{
    char word[256];
    *f = (struct rollout_filter){ .line = -1, .step = -1, .item = -1 };
    for (words += strspn(words, " "); *words; words += strspn(words, " ")) {
        size_t n = strcspn(words, " ");
        snprintf(word, sizeof(word), "%.*s", (int)n, words);
        if (!word_take(f, word)) {
            size_t at = strlen(f->text);
            snprintf(f->text + at, sizeof(f->text) - at, "%s%s", at ? " " : "", word);
        }
        words += n;
    }
    if (f->text[0] == '!' && f->text[1]) {
        f->without = true;
        memmove(f->text, f->text + 1, strlen(f->text));
    }
}

bool rollout_filter_sample(const struct rollout_filter *f, const struct rollout_view *g, int i)
{
    const struct sample_view *s = &g->sample[i];
    bool scored = !isnan(s->reward);
    if ((f->cut && !s->cut) || (f->whole && s->cut) || (f->unscored && scored))
        return false;
    if (f->compare
        && !(scored
             && (f->compare == '<'   ? s->reward < f->reward
                 : f->compare == '>' ? s->reward > f->reward
                                     : s->reward == f->reward)))
        return false;
    if (f->reason[0] && !strcasestr(s->reason, f->reason))
        return false;
    return !f->text[0] || f->without || strcasestr(g->prompt, f->text) || strcasestr(s->text, f->text);
}

/* Did a sample give the right answer? By its accuracy, where that is known, or else by its reward. */
static bool sample_solved(const struct sample_view *s)
{
    return isnan(s->ans_acc) ? s->reward > 0.5 : s->ans_acc > 0;
}

bool rollout_filter_passes(const struct rollout_filter *f, const struct rollout_view *g)
{
    int n_scored = 0, n_solved = 0;
    double low = INFINITY, high = -INFINITY;
    bool any = false, held = strcasestr(g->prompt, f->text) != NULL;
    for (int i = 0; i < g->n_sample; i++) {
        const struct sample_view *s = &g->sample[i];
        any = any || rollout_filter_sample(f, g, i);
        held = held || strcasestr(s->text, f->text);
        if (isnan(s->reward))
            continue;
        n_scored++;
        n_solved += sample_solved(s);
        low = fmin(low, s->reward);
        high = fmax(high, s->reward);
    }
    if ((f->line >= 0 && g->line != f->line) || (f->item >= 0 && g->item != f->item))
        return false;
    if (f->step >= 0 && g->step != f->step && g->version != f->step)
        return false;
    if ((f->solved && (n_scored == 0 || n_solved < n_scored)) || (f->failed && (n_scored == 0 || n_solved > 0))
        || (f->mixed && !(high > low)))
        return false;
    return any && !(f->text[0] && f->without && held);
}
