/* How its work stays the same however long a run is: most items that are held have come to their end, and what a turn asks for is only
 * among those that have not.
 *
 * 1. live lists the items that are on their way, wait or are being trained on, in order. A run that trains for days, or filters all
 *    it samples, has no more of them than it may have open. Every question of the schedule looks at these alone.
 * 2. passed and lead only move on, past items that have come to their end, so that each is looked at once.
 * 3. All held items are gone through when the run returns, when the ledger is restored, and for a batch that has been trained on. */
#include "workers/schedule/ledger.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "workers/schedule/prompt_order.h"

#define AFTER_N (LEDGER_BEHIND_MAX + 2)

struct ledger {
    struct ledger_rules rules;
    struct ledger_item *item;    // (n) held items, in order; item[0].item is first
    int64_t first, n, cap;
    int64_t *live;    // (n_live) numbers of the items whose fate is at most LEDGER_RETURNED, ascending
    int64_t n_live;
    struct ledger_item **back;         // (cap) scratch of backs_sort
    int64_t n_ended[LEDGER_FATE_N];    // held items that are not live, by fate
    int64_t passed, passed_n;          // ledger_batch_seen of batch passed_n and later ones needs no item before passed
    int64_t lead;                      // items before it gave nothing
    bool any_lost;
    int64_t looked;    // items looked at
    struct ledger_state state;
    struct prompt_order *order;
};

struct ledger *ledger_new(const struct ledger_rules *rules, struct error *err)
{
    if (rules->n_row < 1 || rules->n_behind < 0 || rules->n_behind > LEDGER_BEHIND_MAX) {
        error_set(err, ERR_SHAPE, "a run with %" PRId64 " usable prompts and n_behind %" PRId64 " cannot be scheduled", rules->n_row,
                  rules->n_behind);
        return NULL;
    }
    struct ledger *l = calloc(1, sizeof *l);
    if (!l || !(l->order = prompt_order_new(rules->seed, rules->n_row, rules->shuffle))) {
        free(l);
        error_set(err, ERR_NO_MEMORY, "no memory for the order of %" PRId64 " prompts", rules->n_row);
        return NULL;
    }
    l->rules = *rules;
    return l;
}

void ledger_free(struct ledger *l)
{
    if (!l)
        return;
    free(l->item);
    free(l->live);
    free(l->back);
    prompt_order_free(l->order);
    free(l);
}

int64_t ledger_row(const struct ledger *l, int64_t item)
{
    return prompt_order_row(l->order, item);
}

bool ledger_forbid(struct ledger *l, int64_t row)
{
    return prompt_order_forbid(l->order, row);
}

void ledger_allow_all(struct ledger *l)
{
    prompt_order_allow_all(l->order);
}

void ledger_level(struct ledger *l, const uint8_t *of, int64_t level)
{
    prompt_order_level(l->order, of, level);
}

static struct ledger_item *at(const struct ledger *l, int64_t item)
{
    return item >= l->first && item < l->first + l->n ? &l->item[item - l->first] : NULL;
}

const struct ledger_item *ledger_find(const struct ledger *l, int64_t item)
{
    return at(l, item);
}

/* These two are how items are looked at in turn: k counts from 0. */
static struct ledger_item *held(const struct ledger *l, int64_t k)
{
    ((struct ledger *)l)->looked++;    // a count: what is answered does not depend on it
    return &l->item[k];
}

static struct ledger_item *live(const struct ledger *l, int64_t k)
{
    return held(l, l->live[k] - l->first);
}

int64_t ledger_looked(const struct ledger *l)
{
    return l->looked;
}

static bool is_live(const struct ledger_item *i)
{
    return i->fate <= LEDGER_RETURNED;
}

/* Is group i on its way (again)? */
static bool is_out(const struct ledger_item *i)
{
    return i->fate == LEDGER_ISSUED || i->fate == LEDGER_LEASED;
}

/* Did it come to nothing? */
static bool is_gone(const struct ledger_item *i)
{
    return i->fate == LEDGER_FILTERED || i->fate == LEDGER_STALE || i->fate == LEDGER_STOPPED;
}

/* Room for one more item, at the end; it is not live yet. */
static struct ledger_item *item_add(struct ledger *l)
{
    if (l->n == l->cap) {
        int64_t cap = MAX(l->cap * 2, 256);
        struct ledger_item *p = realloc(l->item, (size_t)cap * sizeof *p);
        l->item = p ? p : l->item;
        int64_t *q = p ? realloc(l->live, (size_t)cap * sizeof *q) : NULL;
        l->live = q ? q : l->live;
        struct ledger_item **back = q ? realloc(l->back, (size_t)cap * sizeof *back) : NULL;
        l->back = back ? back : l->back;
        if (!p || !q || !back)
            return NULL;
        l->cap = cap;
    }
    struct ledger_item *i = &l->item[l->n++];
    *i = (struct ledger_item){ .batch = -1 };
    return i;
}

/* An item comes to its end; live_drop follows. */
static void item_end(struct ledger *l, struct ledger_item *i, enum ledger_fate fate)
{
    i->fate = fate;
    l->n_ended[fate]++;
}

/* Leave out of live what has come to its end. */
static void live_drop(struct ledger *l)
{
    int64_t n = 0;
    for (int64_t k = 0; k < l->n_live; k++)
        if (is_live(live(l, k)))
            l->live[n++] = l->live[k];
    l->n_live = n;
}

/* Count and list the held items again. */
static void live_list(struct ledger *l)
{
    l->n_live = 0;
    memset(l->n_ended, 0, sizeof l->n_ended);
    for (int64_t k = 0; k < l->n; k++) {
        const struct ledger_item *i = held(l, k);
        if (is_live(i))
            l->live[l->n_live++] = i->item;
        else
            l->n_ended[i->fate]++;
    }
    l->passed = l->passed_n = 0;
}

/* Forget the first n items, which have come to their end. */
static void held_drop(struct ledger *l, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        l->n_ended[held(l, k)->fate]--;
    memmove(l->item, l->item + n, (size_t)(l->n - n) * sizeof *l->item);
    l->first += n;
    l->n -= n;
}

void ledger_check(const struct ledger *l)
{
    const struct ledger_state *s = &l->state;
    int64_t n_ended[LEDGER_FATE_N] = { 0 }, n_live = 0;
    BUG_IF(s->n_cut > s->n_open, "%" PRId64 " rollout steps are cut, and %" PRId64 " opened", s->n_cut, s->n_open);
    for (int64_t k = 0; k < l->n; k++) {
        const struct ledger_item *i = &l->item[k];
        BUG_IF(i->item != l->first + k, "item %" PRId64 " is in the place of %" PRId64, i->item, l->first + k);
        /* an item that came to nothing may have gone by with a batch that is not formed yet, or is undone */
        BUG_IF(!is_gone(i) && i->batch >= s->n_batch, "item %" PRId64 " is of batch %" PRId64 " of %" PRId64, i->item, i->batch,
               s->n_batch);
        BUG_IF(i->fate == LEDGER_TRAINED && i->batch < 0, "item %" PRId64 " is trained on, and of no batch", i->item);
        BUG_IF(i->fate == LEDGER_LEASED && i->worker <= 0, "item %" PRId64 " is leased to nobody", i->item);
        if (is_live(i)) {
            BUG_IF(n_live == l->n_live || l->live[n_live] != i->item, "item %" PRId64 " is not listed as live in its place", i->item);
            n_live++;
        } else {
            n_ended[i->fate]++;
        }
    }
    BUG_IF(n_live != l->n_live, "%" PRId64 " items are live, and %" PRId64 " listed", n_live, l->n_live);
    for (int f = 0; f < LEDGER_FATE_N; f++)
        BUG_IF(n_ended[f] != l->n_ended[f], "%" PRId64 " items ended as %d, and %" PRId64 " are counted", n_ended[f], f, l->n_ended[f]);
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
    if (is_live(i))
        l->live[l->n_live++] = i->item;
    else
        l->n_ended[i->fate]++;
    l->any_lost = l->any_lost || i->lost;
    return true;
}

void ledger_state(const struct ledger *l, struct ledger_state *out)
{
    *out = l->state;
}

void ledger_restore_state(struct ledger *l, const struct ledger_state *state)
{
    l->state = *state;
    if (l->n == 0)
        l->first = state->n_item;
}

void ledger_begin_at(struct ledger *l, int64_t step, int64_t n_open, int64_t n_item)
{
    n_open = MAX(n_open, 1 + l->rules.n_behind);    // else the next rollout steps would count as the run's first, of version 0
    l->first = n_item;
    l->state = (struct ledger_state){ .n_cut = n_open, .n_batch = step, .n_open = n_open, .n_item = n_item, .floor = step };
    for (size_t i = 0; i < AFTER_N; i++)
        l->state.after[i] = step;
}

bool ledger_open(struct ledger *l, int64_t n, int64_t *first_item)
{
    int64_t s = l->state.n_open, before = s - 1 - l->rules.n_behind;
    if (n < 1 || n > l->rules.n_item_max - l->state.n_item)
        return false;
    if (l->rules.free ? l->n_live > (MAX(l->rules.max_age, (int64_t)2) - 1) * n : before >= l->state.n_cut)
        return false;
    int64_t version = l->rules.free ? -1 : before < 0 ? 0 : l->state.after[before % AFTER_N];
    if (l->n == 0)
        l->first = l->state.n_item;
    for (int64_t k = 0; k < n; k++) {
        struct ledger_item *i = item_add(l);
        if (!i) {
            l->n -= k;
            l->n_live -= k;
            return false;
        }
        i->item = l->state.n_item + k;
        i->row = prompt_order_open(l->order, i->item);
        i->rollout_step = s;
        i->version = version;
        l->live[l->n_live++] = i->item;
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
    for (int64_t k = 0; k < l->n_live; k++) {
        struct ledger_item *i = live(l, k);
        if (i->fate == LEDGER_ISSUED && (l->rules.free || i->version == version) && (rollout_step < 0 || i->rollout_step == rollout_step)) {
            i->fate = LEDGER_LEASED;
            i->worker = worker;
            return i;
        }
    }
    return NULL;
}

const struct ledger_item *ledger_lease(struct ledger *l, int64_t version, int worker)
{
    return ledger_lease_of(l, version, -1, worker);
}

const struct ledger_item *ledger_next(const struct ledger *l, int64_t version)
{
    for (int64_t k = 0; k < l->n_live; k++) {
        const struct ledger_item *i = live(l, k);
        if (i->fate == LEDGER_ISSUED && (l->rules.free || i->version == version))
            return i;
    }
    return NULL;
}

bool ledger_issued(const struct ledger *l, int64_t version)
{
    return ledger_next(l, version) != NULL;
}

int64_t ledger_version_issued(const struct ledger *l)
{
    int64_t version = -1;
    for (int64_t k = 0; k < l->n_live; k++) {
        const struct ledger_item *i = live(l, k);
        if (i->fate == LEDGER_ISSUED && (version < 0 || i->version < version))
            version = i->version;
    }
    return version;
}

int64_t ledger_first(const struct ledger *l)
{
    return l->first;
}

int64_t ledger_lease_end(struct ledger *l, int worker)
{
    int64_t n = 0;
    for (int64_t k = 0; k < l->n_live; k++) {
        struct ledger_item *i = live(l, k);
        if (i->fate == LEDGER_LEASED && i->worker == worker) {
            i->fate = LEDGER_ISSUED;
            n++;
        }
    }
    return n;
}

bool ledger_was_given(const struct ledger *l, int64_t item, int worker)
{
    const struct ledger_item *i = at(l, item);
    return i && is_out(i) && worker > 0 && i->worker == worker;
}

void ledger_worker_forget(struct ledger *l, int worker)
{
    ledger_lease_end(l, worker);
    for (int64_t k = 0; k < l->n_live; k++)
        if (live(l, k)->worker == worker)
            live(l, k)->worker = 0;
}

enum ledger_return ledger_return(struct ledger *l, int64_t item, int64_t version, const struct group_summary *summary)
{
    struct ledger_item *i = at(l, item);
    if (!i)
        return item >= 0 && item < l->first ? LEDGER_KNOWN : LEDGER_NOT_OURS;
    if (!l->rules.free && i->version != version)
        return LEDGER_NOT_OURS;
    if (!is_out(i))
        return LEDGER_KNOWN;
    i->fate = LEDGER_RETURNED;
    i->version = version;
    i->summary = *summary;
    i->lost = false;
    return LEDGER_NEW;
}

/* Would group a have been complete after b? */
static bool is_later(const struct ledger_item *a, const struct ledger_item *b)
{
    if (a->summary.n_tok_max != b->summary.n_tok_max)
        return a->summary.n_tok_max > b->summary.n_tok_max;
    return a->item > b->item;
}

static int by_completion(const void *a, const void *b)
{
    return is_later(*(struct ledger_item *const *)a, *(struct ledger_item *const *)b) ? 1 : -1;
}

/* The groups of a rollout step that are back into l->back, in the order in which they would have been complete; how many. */
static int64_t backs_sort(const struct ledger *l, int64_t rollout_step)
{
    int64_t n = 0;
    for (int64_t k = 0; k < l->n_live; k++) {
        struct ledger_item *i = live(l, k);
        if (i->rollout_step == rollout_step && i->fate == LEDGER_RETURNED)
            l->back[n++] = i;
    }
    if (n > 0)
        qsort(l->back, (size_t)n, sizeof *l->back, by_completion);
    return n;
}

int64_t ledger_tail(const struct ledger *l, int64_t rollout_step, int64_t n_need)
{
    return backs_sort(l, rollout_step) >= n_need ? l->back[n_need - 1]->summary.n_tok_max : -1;
}

void ledger_stop(struct ledger *l, int64_t item)
{
    struct ledger_item *i = at(l, item);
    if (!i || !is_out(i))
        return;
    i->summary = (struct group_summary){ 0 };
    item_end(l, i, LEDGER_STOPPED);
    live_drop(l);
}

void ledger_again(struct ledger *l, int64_t item)
{
    struct ledger_item *i = at(l, item);
    if (i && i->fate == LEDGER_LEASED)
        i->fate = LEDGER_ISSUED;
}

void ledger_amend(struct ledger *l, int64_t item, const struct group_summary *summary)
{
    struct ledger_item *i = at(l, item);
    if (!i || i->fate != LEDGER_RETURNED)
        return;
    int64_t arrived = group_arrival(&i->summary);
    i->summary = *summary;
    i->summary.arrived = arrived;
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
        i->lost = l->any_lost = true;
}

int64_t ledger_reissue(struct ledger *l, int64_t *oldest, void (*changed)(void *ctx, const struct ledger_item *item), void *ctx)
{
    int64_t n = 0;
    *oldest = INT64_MAX;
    for (int64_t k = 0; k < l->n_live; k++) {
        struct ledger_item *i = live(l, k);
        if (!i->lost || i->fate != LEDGER_RETURNED)
            continue;
        *oldest = MIN(*oldest, i->version);
        item_reissue(l, i);
        changed(ctx, i);
        n++;
    }
    return n;
}

bool ledger_can_cut(const struct ledger *l)
{
    if (l->state.n_cut >= l->state.n_open || l->n == 0 || l->item[l->n - 1].rollout_step < l->state.n_cut)
        return false;
    for (int64_t k = 0; k < l->n_live; k++) {
        const struct ledger_item *i = live(l, k);
        if (i->rollout_step > l->state.n_cut)
            continue;    // an earlier one can only be one that is sampled again
        if (is_out(i))
            return false;
    }
    return true;    // also when an operator has dropped all of its items
}

static bool group_counts(const struct ledger_cut *cut, const struct group_summary *s)
{
    return !cut->dynamic || batch_filter_passes(&cut->filter, s);
}

static bool group_solves(const struct ledger_cut *cut, const struct group_summary *s)
{
    return cut->pass_rate > 0 && s->n_scored > 0 && s->ans_sum >= cut->pass_rate * (double)s->n_scored;
}

/* Groups of rollout step s beyond its n_need first do not count. */
static void tail_end(struct ledger *l, int64_t s, int64_t n_need, void (*changed)(void *ctx, const struct ledger_item *item), void *ctx)
{
    int64_t n = backs_sort(l, s);
    for (int64_t k = n_need; k < n; k++) {
        item_end(l, l->back[k], LEDGER_STOPPED);
        changed(ctx, l->back[k]);
    }
    live_drop(l);
}

int64_t ledger_cut(struct ledger *l, const struct ledger_cut *cut, void (*changed)(void *ctx, const struct ledger_item *item), void *ctx)
{
    int64_t s = l->state.n_cut, in_pool = 0, made = 0;
    if (cut->n_need > 0)
        tail_end(l, s, cut->n_need, changed, ctx);
    for (int64_t k = 0; k < l->n_live; k++) {
        struct ledger_item *i = live(l, k);
        if (i->rollout_step == s && i->fate == LEDGER_RETURNED && cut->counts)
            cut->counts(ctx, i);
        if (i->rollout_step == s && i->fate == LEDGER_RETURNED && group_solves(cut, &i->summary) && ledger_forbid(l, i->row))
            cut->solved(ctx, i->row);
        if (i->rollout_step == s && i->fate == LEDGER_RETURNED && !group_counts(cut, &i->summary)) {
            item_end(l, i, LEDGER_FILTERED);
            changed(ctx, i);
        }
        if (i->rollout_step <= s && i->fate == LEDGER_RETURNED && i->batch < 0)
            in_pool++;
    }
    for (int64_t k = 0; in_pool >= cut->batch_size; in_pool -= cut->batch_size, made++)
        for (int64_t taken = 0; taken < cut->batch_size; k++) {
            struct ledger_item *i = live(l, k);
            if (i->fate != LEDGER_RETURNED || i->batch >= 0)
                continue;
            i->batch = l->state.n_batch + made;
            taken++;
            changed(ctx, i);
        }
    live_drop(l);
    l->state.n_batch += made;
    l->state.after[s % AFTER_N] = l->state.n_batch;
    l->state.n_cut++;
    return made;
}

/* The group that arrived first of those in no batch; NULL: none. */
static struct ledger_item *pool_first(const struct ledger *l)
{
    struct ledger_item *first = NULL;
    for (int64_t k = 0; k < l->n_live; k++) {
        struct ledger_item *i = live(l, k);
        if (i->fate == LEDGER_RETURNED && i->batch < 0 && (!first || group_arrival(&i->summary) < group_arrival(&first->summary)))
            first = i;
    }
    return first;
}

bool ledger_form(struct ledger *l, const struct ledger_cut *cut, void (*changed)(void *ctx, const struct ledger_item *item), void *ctx)
{
    int64_t n = l->state.n_batch, in_pool = 0;
    for (int64_t k = 0; k < l->n_live; k++) {
        struct ledger_item *i = live(l, k);
        if (i->fate != LEDGER_RETURNED || i->batch >= 0)
            continue;
        bool stale = n - i->version > l->rules.max_age;
        if (!stale && group_counts(cut, &i->summary)) {
            in_pool++;
            continue;
        }
        item_end(l, i, stale ? LEDGER_STALE : LEDGER_FILTERED);
        i->batch = n;    // it went by with this one
        changed(ctx, i);
    }
    live_drop(l);
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

/* A batch that has been trained on: none of it is live. */
static int64_t batch_trained(const struct ledger *l, int64_t n, const struct ledger_item **out, int64_t max)
{
    int64_t found = 0;
    for (int64_t k = 0; k < l->n && found < max; k++) {
        const struct ledger_item *i = held(l, k);
        if (i->batch == n && i->fate == LEDGER_TRAINED)
            out[found++] = i;
    }
    return found;
}

int64_t ledger_batch(const struct ledger *l, int64_t n, const struct ledger_item **out, int64_t max)
{
    int64_t found = 0;
    if (n < 0 || n >= l->state.n_batch)
        return 0;
    for (int64_t k = 0; k < l->n_live; k++) {
        const struct ledger_item *i = live(l, k);
        if (i->batch != n)
            continue;
        if (is_out(i))    // it is sampled again: the batch is not there yet
            return 0;
        if (found < max)
            out[found++] = i;
    }
    return found > 0 ? found : batch_trained(l, n, out, max);
}

int64_t ledger_batch_seen(const struct ledger *l, int64_t n, const struct ledger_item **out, int64_t max)
{
    int64_t begin = n >= l->passed_n ? MAX(l->passed - l->first, (int64_t)0) : 0, found = 0, last_before = begin - 1, last = -1;
    for (int64_t k = begin; k < l->n; k++) {
        int64_t batch = held(l, k)->batch;
        if (batch >= 0 && batch < n)
            last_before = k;
        if (batch == n)
            last = k;
    }
    for (int64_t k = begin; k <= last && found < max; k++)
        if (l->item[k].batch == n || (!l->rules.free && k > last_before && l->item[k].fate == LEDGER_FILTERED))
            out[found++] = &l->item[k];
    return found;
}

/* Batch n has been trained on, last is the last item of it: what ended before it, and with it or an earlier one, is passed. */
static void passed_move(struct ledger *l, int64_t n, int64_t last)
{
    l->passed = MAX(l->passed, l->first);
    l->passed_n = n + 1;
    for (; l->passed < l->first + l->n; l->passed++) {
        const struct ledger_item *i = held(l, l->passed - l->first);
        if (is_live(i) || i->batch > n || (i->batch < 0 && i->item > last))
            return;
    }
}

void ledger_trained(struct ledger *l, int64_t n, void (*changed)(void *ctx, const struct ledger_item *item), void *ctx)
{
    int64_t last = -1;
    for (int64_t k = 0; k < l->n_live; k++) {
        struct ledger_item *i = live(l, k);
        if (i->batch != n || i->fate != LEDGER_RETURNED)
            continue;
        item_end(l, i, LEDGER_TRAINED);
        last = i->item;
        changed(ctx, i);
    }
    live_drop(l);
    passed_move(l, n, last);
}

void ledger_forget(struct ledger *l, int64_t step)
{
    int64_t n = 0;
    while (n < l->n && l->item[n].rollout_step < l->state.n_cut
           && (is_gone(held(l, n)) || (l->item[n].fate == LEDGER_TRAINED && l->item[n].batch < step)))
        n++;
    if (n == 0)
        return;
    held_drop(l, n);
    l->state.floor = MAX(l->state.floor, step);
}

void ledger_let_go(struct ledger *l)
{
    l->lead = MAX(l->lead, l->first);
    while (l->lead < l->first + l->n) {
        const struct ledger_item *i = held(l, l->lead - l->first);
        if (!is_gone(i) || i->rollout_step >= l->state.n_cut)
            break;
        l->lead++;
    }
    if (l->lead - l->first > 2 * LEDGER_GONE_MAX)    // seldom, since what stays is moved
        held_drop(l, l->lead - l->first - LEDGER_GONE_MAX);
}

bool ledger_can_return(const struct ledger *l, int64_t step)
{
    if (step < l->state.floor)
        return false;
    if (l->rules.free)
        return true;
    for (int64_t k = 0; k < l->n_live; k++)
        if (is_out(live(l, k)) && l->item[l->live[k] - l->first].version < step)
            return false;
    for (int64_t k = 0; l->any_lost && k < l->n; k++) {
        const struct ledger_item *i = held(l, k);
        if (i->lost && i->batch >= step && i->version < step)
            return false;
    }
    return true;
}

void ledger_return_to(struct ledger *l, int64_t step, void (*changed)(void *ctx, const struct ledger_item *item), void *ctx)
{
    for (int64_t k = 0; k < l->n; k++) {
        struct ledger_item *i = held(l, k);
        if (i->fate == LEDGER_LEASED)
            i->fate = LEDGER_ISSUED;
        if (i->fate == LEDGER_TRAINED && i->batch >= step) {
            i->fate = LEDGER_RETURNED;
            if (i->lost)
                item_reissue(l, i);
            changed(ctx, i);
        }
    }
    live_list(l);
}

/* The first rollout step that was opened by a cut and is to be sampled with weights of `step` or later is not open any more, and what
 * was cut since then is not cut. Its version is the number of batches that the cut which opened it left, so it will be opened again
 * just as it was; the ring of state.after does not reach so far back. */
static void rollouts_close(struct ledger *l, int64_t step)
{
    int64_t n_behind = l->rules.n_behind, k = 0;
    while (k < l->n && (held(l, k)->rollout_step <= n_behind || l->item[k].version < step))
        k++;
    if (k == l->n)
        return;
    int64_t s = l->item[k].rollout_step, version = l->item[k].version;
    l->state.n_item = l->item[k].item;
    l->state.n_open = s;
    l->state.n_cut = s - n_behind;
    l->state.n_batch = version;
    l->state.after[(s - 1 - n_behind) % AFTER_N] = version;
    l->n = k;
}

/* Item i as it was when the run had made step steps and cut what the state says. */
static bool item_rewind(struct ledger *l, struct ledger_item *i, int64_t step)
{
    struct ledger_item was = *i;
    if (i->fate == LEDGER_LEASED)
        i->fate = LEDGER_ISSUED;
    bool uncut = i->rollout_step >= l->state.n_cut && !l->rules.free;
    if ((i->fate == LEDGER_TRAINED && i->batch >= step) || (i->fate == LEDGER_FILTERED && uncut && !i->lost)
        || (i->fate == LEDGER_STOPPED && uncut && !i->lost && i->summary.file_bytes > 0))
        i->fate = LEDGER_RETURNED;
    if (is_live(i) && i->batch >= l->state.n_batch)    // also when it is sampled again for a batch that is not there any more
        i->batch = -1;
    bool undone = l->rules.free && !l->rules.posted && i->version > step;    // sampled with weights that are made again
    if (i->fate == LEDGER_RETURNED && (i->lost || undone))
        item_reissue(l, i);
    return was.fate != i->fate || was.batch != i->batch;
}

void ledger_rewind(struct ledger *l, int64_t step, void (*changed)(void *ctx, const struct ledger_item *item), void *ctx)
{
    if (l->rules.free)
        l->state.n_batch = MIN(l->state.n_batch, step);
    else
        rollouts_close(l, step);
    for (int64_t k = 0; k < l->n; k++)
        if (item_rewind(l, held(l, k), step))
            changed(ctx, &l->item[k]);
    live_list(l);
    l->lead = 0;
}

bool ledger_holds(const struct ledger *l, int64_t step)
{
    return l->n > 0 && (l->first == 0 || l->rules.free || l->item[0].version < step);
}

bool ledger_version_done(const struct ledger *l, int64_t version)
{
    if (l->rules.free)
        return true;
    for (int64_t k = 0; k < l->n_live; k++) {
        const struct ledger_item *i = live(l, k);
        if (is_out(i) && i->version == version)
            return false;
    }
    return true;
}

int64_t ledger_version_wanted(const struct ledger *l)
{
    int64_t version = -1;
    for (int64_t k = 0; k < l->n_live; k++) {
        const struct ledger_item *i = live(l, k);
        if (is_out(i) && (version < 0 || i->version < version))
            version = i->version;
    }
    return version;
}

void ledger_counts(const struct ledger *l, int64_t n_per_step, struct ledger_counts *out)
{
    *out = (struct ledger_counts){ .n_batch = l->state.n_batch,
                                   .n_cut = l->state.n_cut,
                                   .n_open = l->state.n_open,
                                   .n_item = l->state.n_item,
                                   .filtered = l->n_ended[LEDGER_FILTERED],
                                   .stale = l->n_ended[LEDGER_STALE],
                                   .stopped = l->n_ended[LEDGER_STOPPED],
                                   .trained = l->n_ended[LEDGER_TRAINED],
                                   .exhausted = n_per_step > l->rules.n_item_max - l->state.n_item };
    for (int64_t k = 0; k < l->n_live; k++) {
        const struct ledger_item *i = live(l, k);
        out->unbatched += i->batch < 0;
        out->issued += i->fate == LEDGER_ISSUED;
        out->leased += i->fate == LEDGER_LEASED;
        out->returned += i->fate == LEDGER_RETURNED;
        out->pool += i->fate == LEDGER_RETURNED && i->batch < 0 && i->rollout_step < l->state.n_cut;
    }
}

void ledger_item_max_set(struct ledger *l, int64_t n_item_max)
{
    l->rules.n_item_max = n_item_max;
}
