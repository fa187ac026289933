#include "workers/controller/ledger.h"
#include <math.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define AFTER_N (LEDGER_BEHIND_MAX + 2)

struct ledger {
    struct ledger_rules rules;
    struct ledger_item *item;    // (n) held items, in order; item[0].item is first
    int64_t first, n, cap;
    struct ledger_state state;
    int64_t *order;           // (n_row) the prompt order of order_episode
    int64_t order_episode;    // -1: none made yet
    bool *forbidden;          // (n_row)
    int64_t n_forbidden;
};

static uint64_t splitmix(uint64_t *x)    // Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014
{
    uint64_t z = *x += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

struct ledger *ledger_new(const struct ledger_rules *rules, struct error *err)
{
    if (rules->n_row < 1 || rules->n_behind < 0 || rules->n_behind > LEDGER_BEHIND_MAX) {
        error_set(err, ERR_SHAPE, "a run with %" PRId64 " usable prompts and n_behind %" PRId64 " cannot be scheduled", rules->n_row,
                  rules->n_behind);
        return NULL;
    }
    struct ledger *l = calloc(1, sizeof *l);
    int64_t *order = calloc((size_t)rules->n_row, sizeof *order);
    bool *forbidden = calloc((size_t)rules->n_row, sizeof *forbidden);
    if (!l || !order || !forbidden) {
        free(l);
        free(order);
        free(forbidden);
        error_set(err, ERR_NO_MEMORY, "no memory for the order of %" PRId64 " prompts", rules->n_row);
        return NULL;
    }
    l->rules = *rules;
    l->order = order;
    l->forbidden = forbidden;
    l->order_episode = -1;
    return l;
}

void ledger_free(struct ledger *l)
{
    if (!l)
        return;
    free(l->item);
    free(l->order);
    free(l->forbidden);
    free(l);
}

/* Fisher-Yates (Knuth, TAOCP 2, 3.4.2, algorithm P), keyed by seed and episode; r % k is biased by less than n_row / 2^64. */
static void order_make(struct ledger *l, int64_t episode)
{
    uint64_t x = (uint64_t)l->rules.seed ^ (uint64_t)episode * 0xd1342543de82ef95u;
    for (int64_t i = 0; i < l->rules.n_row; i++)
        l->order[i] = i;
    if (l->rules.shuffle)
        for (int64_t i = l->rules.n_row - 1; i > 0; i--) {
            int64_t j = (int64_t)(splitmix(&x) % (uint64_t)(i + 1));
            int64_t t = l->order[i];
            l->order[i] = l->order[j];
            l->order[j] = t;
        }
    l->order_episode = episode;
}

int64_t ledger_row(const struct ledger *l, int64_t item)
{
    int64_t episode = item / l->rules.n_row;
    if (episode != l->order_episode)
        order_make((struct ledger *)l, episode);    // a cache: what it answers does not change
    return l->order[item % l->rules.n_row];
}

bool ledger_forbid(struct ledger *l, int64_t row)
{
    if (row < 0 || row >= l->rules.n_row || l->forbidden[row] || l->n_forbidden + 1 >= l->rules.n_row)
        return false;
    l->forbidden[row] = true;
    l->n_forbidden++;
    return true;
}

/* The row an item gets when it is opened: that of its place, or of the next place whose row is allowed. */
static int64_t row_open(const struct ledger *l, int64_t item)
{
    int64_t base = item - item % l->rules.n_row, row = ledger_row(l, item);
    for (int64_t k = 1; l->forbidden[row]; k++)
        row = ledger_row(l, base + (item - base + k) % l->rules.n_row);
    return row;
}

static struct ledger_item *at(const struct ledger *l, int64_t item)
{
    return item >= l->first && item < l->first + l->n ? &l->item[item - l->first] : NULL;
}

const struct ledger_item *ledger_find(const struct ledger *l, int64_t item)
{
    return at(l, item);
}

static struct ledger_item *item_add(struct ledger *l)
{
    if (l->n == l->cap) {
        int64_t cap = MAX(l->cap * 2, 256);
        struct ledger_item *p = realloc(l->item, (size_t)cap * sizeof *p);
        if (!p)
            return NULL;
        l->item = p;
        l->cap = cap;
    }
    struct ledger_item *i = &l->item[l->n++];
    *i = (struct ledger_item){ .batch = -1 };
    return i;
}

bool ledger_restore_item(struct ledger *l, const struct ledger_item *item, struct error *err)
{
    if (l->n == 0)
        l->first = item->item;
    if (item->item != l->first + l->n)
        return error_set(err, ERR_DATA, "the journal's item %" PRId64 " follows item %" PRId64, item->item, (l->first + l->n - 1));
    struct ledger_item *i = item_add(l);
    if (!i)
        return error_set(err, ERR_NO_MEMORY, "no memory for the ledger");
    *i = *item;
    return true;
}

void ledger_state(const struct ledger *l, struct ledger_state *out)
{
    *out = l->state;
}

void ledger_restore_state(struct ledger *l, const struct ledger_state *state)
{
    l->state = *state;
}

void ledger_begin_at(struct ledger *l, int64_t step, int64_t n_open, int64_t n_item)
{
    n_open = MAX(n_open, 1 + l->rules.n_behind);    // else the next rollout steps would count as the run's first, of version 0
    l->first = n_item;
    l->state = (struct ledger_state){ .n_cut = n_open, .n_batch = step, .n_open = n_open, .n_item = n_item, .floor = step };
    for (size_t i = 0; i < AFTER_N; i++)
        l->state.after[i] = step;
}

/* Items that are on their way, or wait to be trained on. */
static int64_t unended(const struct ledger *l)
{
    int64_t n = 0;
    for (int64_t k = 0; k < l->n; k++)
        n += l->item[k].fate <= LEDGER_RETURNED;
    return n;
}

bool ledger_open(struct ledger *l, int64_t n, int64_t *first_item)
{
    int64_t s = l->state.n_open, before = s - 1 - l->rules.n_behind;
    if (n < 1 || n > l->rules.n_item_max - l->state.n_item)
        return false;
    if (l->rules.free ? unended(l) > (MAX(l->rules.max_age, (int64_t)2) - 1) * n : before >= l->state.n_cut)
        return false;
    int64_t version = l->rules.free ? -1 : before < 0 ? 0 : l->state.after[before % AFTER_N];
    if (l->n == 0)
        l->first = l->state.n_item;
    for (int64_t k = 0; k < n; k++) {
        struct ledger_item *i = item_add(l);
        if (!i) {
            l->n -= k;
            return false;
        }
        i->item = l->state.n_item + k;
        i->row = row_open(l, i->item);
        i->rollout_step = s;
        i->version = version;
    }
    *first_item = l->state.n_item;
    l->state.n_item += n;
    l->state.n_open++;
    if (l->rules.free)
        l->state.n_cut = l->state.n_open;    // nothing waits for the whole of it
    return true;
}

const struct ledger_item *ledger_lease_of(struct ledger *l, int64_t version, int64_t rollout_step, int worker)
{
    for (int64_t k = 0; k < l->n; k++)
        if (l->item[k].fate == LEDGER_ISSUED && (l->rules.free || l->item[k].version == version)
            && (rollout_step < 0 || l->item[k].rollout_step == rollout_step)) {
            l->item[k].fate = LEDGER_LEASED;
            l->item[k].worker = worker;
            return &l->item[k];
        }
    return NULL;
}

const struct ledger_item *ledger_lease(struct ledger *l, int64_t version, int worker)
{
    return ledger_lease_of(l, version, -1, worker);
}

const struct ledger_item *ledger_next(const struct ledger *l, int64_t version)
{
    for (int64_t k = 0; k < l->n; k++)
        if (l->item[k].fate == LEDGER_ISSUED && (l->rules.free || l->item[k].version == version))
            return &l->item[k];
    return NULL;
}

bool ledger_issued(const struct ledger *l, int64_t version)
{
    return ledger_next(l, version) != NULL;
}

int64_t ledger_version_issued(const struct ledger *l)
{
    int64_t version = -1;
    for (int64_t k = 0; k < l->n; k++)
        if (l->item[k].fate == LEDGER_ISSUED && (version < 0 || l->item[k].version < version))
            version = l->item[k].version;
    return version;
}

int64_t ledger_first(const struct ledger *l)
{
    return l->first;
}

int64_t ledger_lease_end(struct ledger *l, int worker)
{
    int64_t n = 0;
    for (int64_t k = 0; k < l->n; k++)
        if (l->item[k].fate == LEDGER_LEASED && l->item[k].worker == worker) {
            l->item[k].fate = LEDGER_ISSUED;
            n++;
        }
    return n;
}

enum ledger_return ledger_return(struct ledger *l, int64_t item, int64_t version, const struct group_summary *summary)
{
    struct ledger_item *i = at(l, item);
    if (!i)
        return item >= 0 && item < l->first ? LEDGER_KNOWN : LEDGER_NOT_OURS;
    if (!l->rules.free && i->version != version)
        return LEDGER_NOT_OURS;
    if (i->fate != LEDGER_ISSUED && i->fate != LEDGER_LEASED)
        return LEDGER_KNOWN;
    i->fate = LEDGER_RETURNED;
    i->version = version;
    i->summary = *summary;
    i->lost = false;
    return LEDGER_NEW;
}

static void item_reissue(struct ledger *l, struct ledger_item *i)
{
    i->fate = LEDGER_ISSUED;
    i->version = l->rules.free ? -1 : i->version;
    i->summary = (struct group_summary){ 0 };
    i->lost = false;
}

void ledger_lose(struct ledger *l, int64_t item)
{
    struct ledger_item *i = at(l, item);
    if (i && i->fate > LEDGER_LEASED)
        i->lost = true;
}

int64_t ledger_reissue(struct ledger *l, int64_t *oldest, void (*changed)(void *ctx, const struct ledger_item *item), void *ctx)
{
    int64_t n = 0;
    *oldest = INT64_MAX;
    for (int64_t k = 0; k < l->n; k++) {
        struct ledger_item *i = &l->item[k];
        if (!i->lost || i->fate != LEDGER_RETURNED)
            continue;
        *oldest = MIN(*oldest, i->version);
        item_reissue(l, i);
        changed(ctx, i);
        n++;
    }
    return n;
}

/* Is group i on its way (again)? */
static bool is_out(const struct ledger_item *i)
{
    return i->fate == LEDGER_ISSUED || i->fate == LEDGER_LEASED;
}

bool ledger_can_cut(const struct ledger *l)
{
    bool any = false;
    if (l->state.n_cut >= l->state.n_open)
        return false;
    for (int64_t k = 0; k < l->n; k++)
        if (l->item[k].rollout_step <= l->state.n_cut) {    // an earlier one can only be one that is sampled again
            any = any || l->item[k].rollout_step == l->state.n_cut;
            if (l->item[k].fate == LEDGER_ISSUED || l->item[k].fate == LEDGER_LEASED)
                return false;
        }
    return any;
}

static bool group_counts(const struct ledger_cut *cut, const struct group_summary *s)
{
    if (!cut->dynamic || isnan(cut->filter_low) || isnan(cut->filter_high))
        return true;
    if (s->n_scored == 0)
        return false;
    double mean = s->ans_sum / (double)s->n_scored;
    return mean > cut->filter_low && mean < cut->filter_high;
}

int64_t ledger_cut(struct ledger *l, const struct ledger_cut *cut, void (*changed)(void *ctx, const struct ledger_item *item), void *ctx)
{
    int64_t s = l->state.n_cut, in_pool = 0, made = 0;
    for (int64_t k = 0; k < l->n; k++) {
        struct ledger_item *i = &l->item[k];
        if (i->rollout_step == s && i->fate == LEDGER_RETURNED && !group_counts(cut, &i->summary)) {
            i->fate = LEDGER_FILTERED;
            changed(ctx, i);
        }
        if (i->rollout_step <= s && i->fate == LEDGER_RETURNED && i->batch < 0)
            in_pool++;
    }
    for (int64_t k = 0; in_pool >= cut->batch_size; in_pool -= cut->batch_size, made++)
        for (int64_t taken = 0; taken < cut->batch_size; k++) {
            struct ledger_item *i = &l->item[k];
            if (i->fate != LEDGER_RETURNED || i->batch >= 0)
                continue;
            i->batch = l->state.n_batch + made;
            taken++;
            changed(ctx, i);
        }
    l->state.n_batch += made;
    l->state.after[s % AFTER_N] = l->state.n_batch;
    l->state.n_cut++;
    return made;
}

/* The group that arrived first of those in no batch; NULL: none. The rollout file is written in the order of arrival. */
static struct ledger_item *pool_first(const struct ledger *l)
{
    struct ledger_item *first = NULL;
    for (int64_t k = 0; k < l->n; k++) {
        struct ledger_item *i = &l->item[k];
        if (i->fate == LEDGER_RETURNED && i->batch < 0 && (!first || i->summary.file_offset < first->summary.file_offset))
            first = i;
    }
    return first;
}

bool ledger_form(struct ledger *l, const struct ledger_cut *cut, void (*changed)(void *ctx, const struct ledger_item *item), void *ctx)
{
    int64_t n = l->state.n_batch, in_pool = 0;
    for (int64_t k = 0; k < l->n; k++) {
        struct ledger_item *i = &l->item[k];
        if (i->fate != LEDGER_RETURNED || i->batch >= 0)
            continue;
        bool stale = n - i->version > l->rules.max_age;
        if (!stale && group_counts(cut, &i->summary)) {
            in_pool++;
            continue;
        }
        i->fate = stale ? LEDGER_STALE : LEDGER_FILTERED;
        i->batch = n;    // it went by with this one
        changed(ctx, i);
    }
    if (in_pool < cut->batch_size)
        return false;
    for (int64_t taken = 0; taken < cut->batch_size; taken++) {
        struct ledger_item *i = pool_first(l);
        i->batch = n;
        changed(ctx, i);
    }
    l->state.n_batch++;
    return true;
}

int64_t ledger_batch(const struct ledger *l, int64_t n, const struct ledger_item **out, int64_t max)
{
    int64_t found = 0;
    for (int64_t k = 0; k < l->n; k++)
        if (l->item[k].batch == n && n >= 0 && is_out(&l->item[k]))    // it is sampled again: the batch is not there yet
            return 0;
    for (int64_t k = 0; k < l->n && found < max; k++)
        if (l->item[k].batch == n && n >= 0 && (l->item[k].fate == LEDGER_RETURNED || l->item[k].fate == LEDGER_TRAINED))
            out[found++] = &l->item[k];
    return found;
}

int64_t ledger_batch_seen(const struct ledger *l, int64_t n, const struct ledger_item **out, int64_t max)
{
    int64_t found = 0, last_before = -1, last = -1;
    for (int64_t k = 0; k < l->n; k++) {
        if (l->item[k].batch >= 0 && l->item[k].batch < n)
            last_before = k;
        if (l->item[k].batch == n)
            last = k;
    }
    for (int64_t k = 0; k <= last && found < max; k++)
        if (l->item[k].batch == n || (!l->rules.free && k > last_before && l->item[k].fate == LEDGER_FILTERED))
            out[found++] = &l->item[k];
    return found;
}

void ledger_trained(struct ledger *l, int64_t n, void (*changed)(void *ctx, const struct ledger_item *item), void *ctx)
{
    for (int64_t k = 0; k < l->n; k++)
        if (l->item[k].batch == n && l->item[k].fate == LEDGER_RETURNED) {
            l->item[k].fate = LEDGER_TRAINED;
            changed(ctx, &l->item[k]);
        }
}

void ledger_forget(struct ledger *l, int64_t step)
{
    int64_t n = 0;
    while (n < l->n && l->item[n].rollout_step < l->state.n_cut
           && (l->item[n].fate == LEDGER_FILTERED || l->item[n].fate == LEDGER_STALE
               || (l->item[n].fate == LEDGER_TRAINED && l->item[n].batch < step)))
        n++;
    if (n == 0)
        return;
    memmove(l->item, l->item + n, (size_t)(l->n - n) * sizeof *l->item);
    l->first += n;
    l->n -= n;
    l->state.floor = MAX(l->state.floor, step);
}

bool ledger_can_return(const struct ledger *l, int64_t step)
{
    if (step < l->state.floor)
        return false;
    if (l->rules.free)
        return true;
    for (int64_t k = 0; k < l->n; k++)
        if ((is_out(&l->item[k]) || (l->item[k].lost && l->item[k].batch >= step)) && l->item[k].version < step)
            return false;
    return true;
}

void ledger_return_to(struct ledger *l, int64_t step, void (*changed)(void *ctx, const struct ledger_item *item), void *ctx)
{
    for (int64_t k = 0; k < l->n; k++) {
        struct ledger_item *i = &l->item[k];
        if (i->fate == LEDGER_LEASED)
            i->fate = LEDGER_ISSUED;
        if (i->fate == LEDGER_TRAINED && i->batch >= step) {
            i->fate = LEDGER_RETURNED;
            if (i->lost)
                item_reissue(l, i);
            changed(ctx, i);
        }
    }
}

bool ledger_version_done(const struct ledger *l, int64_t version)
{
    if (l->rules.free)
        return true;
    for (int64_t k = 0; k < l->n; k++)
        if ((l->item[k].fate == LEDGER_ISSUED || l->item[k].fate == LEDGER_LEASED) && l->item[k].version == version)
            return false;
    return true;
}

int64_t ledger_version_wanted(const struct ledger *l)
{
    int64_t version = -1;
    for (int64_t k = 0; k < l->n; k++)
        if ((l->item[k].fate == LEDGER_ISSUED || l->item[k].fate == LEDGER_LEASED) && (version < 0 || l->item[k].version < version))
            version = l->item[k].version;
    return version;
}

void ledger_counts(const struct ledger *l, int64_t n_per_step, struct ledger_counts *out)
{
    *out = (struct ledger_counts){ .n_batch = l->state.n_batch,
                                   .n_cut = l->state.n_cut,
                                   .n_open = l->state.n_open,
                                   .n_item = l->state.n_item,
                                   .exhausted = n_per_step > l->rules.n_item_max - l->state.n_item };
    for (int64_t k = 0; k < l->n; k++) {
        out->unbatched += l->item[k].fate <= LEDGER_RETURNED && l->item[k].batch < 0;
        switch (l->item[k].fate) {
        case LEDGER_ISSUED: out->issued++; break;
        case LEDGER_LEASED: out->leased++; break;
        case LEDGER_RETURNED:
            out->returned++;
            out->pool += l->item[k].batch < 0 && l->item[k].rollout_step < l->state.n_cut;
            break;
        case LEDGER_FILTERED: out->filtered++; break;
        case LEDGER_STALE: out->stale++; break;
        case LEDGER_TRAINED: out->trained++; break;
        }
    }
}

void ledger_item_max_set(struct ledger *l, int64_t n_item_max)
{
    l->rules.n_item_max = n_item_max;
}
