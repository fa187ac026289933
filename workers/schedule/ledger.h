/* ledger.h - what happens to every item: which prompt it is, which worker samples it, in which train batch it ends
 *
 * Pure: no clock, socket or file; the controller writes the same facts to the journal and builds the ledger from it again. The
 * order of everything follows from the seed and from what the groups hold, never from when they arrive:
 *
 * 1. Rollout step s holds the next items in the shuffled order. It is opened (its items numbered, its weight version fixed)
 *    when rollout step s - 1 - n_behind has been cut, in the moment of that cut; the first 1 + n_behind at once, version 0.
 * 2. A rollout step is cut when all its groups are back and all earlier ones are cut: the groups that count join the pool, in
 *    item order, and while the pool holds a train batch, the next batch takes it. What is left over waits in the pool.
 * 3. The version a rollout step is sampled with is the number of batches that had been cut when it was opened, so the
 *    trainer must have reached it, and must not have passed it where sampler and trainer share their weights.
 * 4. An item's fate moves on: issued -> returned -> filtered | batch assigned -> trained. Returning to an earlier optimizer
 *    step only takes trained back to assigned: groups are kept, since the same weights would make the same bytes again (with
 *    knobs changed meanwhile: they are off-policy, with the log-probs they were drawn with). An operator's rollback also takes back
 *    what came of later weights (ledger_rewind).
 *
 * With over_sample_rate a rollout step has more items than it needs. Those that count are the groups whose longest sample is shortest
 * (of equal ones the first item): the first n to be complete if all samples of the step were drawn at once, a token per tick. So the
 * choice follows from the groups' contents too. It also says early what cannot count: once n groups are back, the n-th shortest of them
 * is the tail (ledger_tail), and an item with a longer sample is stopped. The rollout step is cut when every item is back or stopped.
 *
 * Free-running is another schedule for the same items, which gives up that order. n items at a time are opened, as long as no more than
 * max_age n (at least 2 n) are on their way, wait or are being trained on. An item is sampled with whatever weights the worker has; its
 * group says which. The next batch is formed when the trainer is free, from the groups in the order in which they arrived. A group
 * whose first token would be more than max_age optimizer steps old is left out as stale. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/record/group.h"

#define WORKER_MAX 2048    // that a run may have
#define LEDGER_BEHIND_MAX 8
#define LEDGER_GONE_MAX 4096    // filtered and stale items that are kept for the metrics of the next batch, at least

struct ledger_rules {
    int64_t seed;
    int64_t n_row;         // usable prompts
    int64_t n_item_max;    // items of the whole run: n_row x episodes
    bool shuffle;
    int64_t n_behind;    // rollout steps, at most LEDGER_BEHIND_MAX
    bool free;           // free-running; then n_behind is not looked at
    int64_t max_age;     // free: optimizer steps
    bool posted;         // free: groups come from outside, and a group that came cannot be had again
};
enum ledger_fate {
    LEDGER_ISSUED,
    LEDGER_LEASED,
    LEDGER_RETURNED,
    LEDGER_FILTERED,
    LEDGER_STALE,
    LEDGER_STOPPED,    // its rollout step had enough shorter groups, or an operator dropped it; without file_bytes it was never whole
    LEDGER_TRAINED,
    LEDGER_FATE_N,
};
struct ledger_item {
    int64_t item, row, rollout_step;
    int64_t version;    // optimizer steps the weights have had; -1: any will do (free, not returned yet)
    enum ledger_fate fate;
    int64_t batch;    // it belongs to batch n, which makes optimizer step n + 1; -1: to none (yet)
    int worker;       // the worker that has the lease, or had it last (ledger_was_given)
    bool lost;        // its group is not kept any more: the record of it is damaged or missing
    struct group_summary summary;
};
struct ledger;
struct ledger *ledger_new(const struct ledger_rules *rules, struct error *err);
void ledger_free(struct ledger *l);                                // NULL is fine
void ledger_check(const struct ledger *l);                         // do the rules above hold among the held items? A bug ends the process
void ledger_item_max_set(struct ledger *l, int64_t n_item_max);    // the run has become longer or shorter

/* Restore from the journal: items in order with fate ISSUED, RETURNED, FILTERED or TRAINED, then the state that
 * ledger_state returned when they were written. */
MUST_USE bool ledger_restore_item(struct ledger *l, const struct ledger_item *item, struct error *err);
struct ledger_state {
    int64_t n_cut;                           // rollout steps cut
    int64_t n_batch;                         // batches cut
    int64_t n_open;                          // rollout steps opened
    int64_t n_item;                          // items opened
    int64_t floor;                           // no return to before this optimizer step: its items have been forgotten
    int64_t after[LEDGER_BEHIND_MAX + 2];    // batches cut when rollout step s had been cut, at s % (LEDGER_BEHIND_MAX + 2)
};
void ledger_state(const struct ledger *l, struct ledger_state *out);
void ledger_restore_state(struct ledger *l, const struct ledger_state *state);

/* Let a new ledger go on after optimizer step `step`, with n_item as the first item: those before it are not held, and no return leads
 * to before that step. n_open: rollout steps that count as cut. */
void ledger_begin_at(struct ledger *l, int64_t step, int64_t n_open, int64_t n_item);

/* A group that is back, and whose record turns out to be damaged or missing, is marked lost (before: ledger_restore_item, or here).
 * Those that are still to be trained on become issued again, with the batch they belong to: their items make the same bytes again.
 * Those that have been trained on do so only when the run returns to before that. changed as below; returns how many were issued, and
 * in *oldest the smallest version they are to be sampled with. */
void ledger_lose(struct ledger *l, int64_t item);
int64_t ledger_reissue(struct ledger *l, int64_t *oldest, void (*changed)(void *ctx, const struct ledger_item *item), void *ctx);

/* Open the next rollout step with n items, if rule 1 allows and items are left (fewer than n: it is not opened, since a part of
 * one would change later ones). False: nothing to open now. */
bool ledger_open(struct ledger *l, int64_t n, int64_t *first_item);
/* The prompt of an item: position item % n_row of the episode's order. */
int64_t ledger_row(const struct ledger *l, int64_t item);
/* Items opened from now on take another row of the order in place of this one. False: it is forbidden already, or the last. */
bool ledger_forbid(struct ledger *l, int64_t row);
void ledger_allow_all(struct ledger *l);
void ledger_level(struct ledger *l, const uint8_t *of, int64_t level);    // prompt_order_level
/* The next issued item of exactly this version, now leased to worker; NULL: none. */
const struct ledger_item *ledger_lease(struct ledger *l, int64_t version, int worker);
/* As ledger_lease, from one rollout step (whose items share their settings). */
const struct ledger_item *ledger_lease_of(struct ledger *l, int64_t version, int64_t rollout_step, int worker);
/* The one that ledger_lease would find; NULL: none. */
const struct ledger_item *ledger_next(const struct ledger *l, int64_t version);
bool ledger_issued(const struct ledger *l, int64_t version);    // would it find one?
int64_t ledger_version_issued(const struct ledger *l);          // the smallest version it would find one of; -1: none
int64_t ledger_first(const struct ledger *l);                   // the oldest item that is held
/* Leases of a worker end: its items can be leased again. Returns how many. */
int64_t ledger_lease_end(struct ledger *l, int worker);
/* Was an item that is out given to this worker, and to no other since? Its lease may have ended, for it was silent. */
bool ledger_was_given(const struct ledger *l, int64_t item, int worker);
/* A worker is no more, and its number may be another's soon: its leases end, and nothing counts as given to it. */
void ledger_worker_forget(struct ledger *l, int worker);
enum ledger_return {
    LEDGER_NEW,
    LEDGER_KNOWN,
    LEDGER_NOT_OURS,
};
enum ledger_return ledger_return(struct ledger *l, int64_t item, int64_t version, const struct group_summary *summary);

/* The longest sample of the group that is n_need-th to be complete in this rollout step (above), tokens; -1: fewer are back. */
int64_t ledger_tail(const struct ledger *l, int64_t rollout_step, int64_t n_need);
/* An item that is out has a sample of more tokens than ledger_tail, or an operator drops it: it is stopped. Its rollout step is cut
 * without it. */
void ledger_stop(struct ledger *l, int64_t item);
/* An item that is out is issued again. */
void ledger_again(struct ledger *l, int64_t item);

/* The group of a returned item has been changed by an operator. */
void ledger_amend(struct ledger *l, int64_t item, const struct group_summary *summary);

/* Rule 2, for one rollout step. Is there one that can be cut? */
bool ledger_can_cut(const struct ledger *l);
struct ledger_cut {
    int64_t batch_size;    // groups of a train batch
    int64_t n_need;        // groups of a rollout step that can count; 0: all
    bool dynamic;          // only groups that pass the filter count; else all do
    struct batch_filter filter;
    double pass_rate;    // a prompt that a group of the step has solved at least this often is forbidden from now on; 0: none is
    void (*solved)(void *ctx, int64_t row);                       // called for each
    void (*counts)(void *ctx, const struct ledger_item *item);    // called for each group of the step that was not stopped; NULL: for none
};
/* Cut the next rollout step; changed is called for each item whose fate or batch it has fixed. Returns batches made. */
int64_t ledger_cut(struct ledger *l, const struct ledger_cut *cut, void (*changed)(void *ctx, const struct ledger_item *item), void *ctx);
/* Free: form batch n_batch, which the trainer waits for, from what has arrived. changed as above; false: too little is there. */
bool ledger_form(struct ledger *l, const struct ledger_cut *cut, void (*changed)(void *ctx, const struct ledger_item *item), void *ctx);
/* The groups of batch n in item order into out (at most max); how many, 0: it has not been cut. */
int64_t ledger_batch(const struct ledger *l, int64_t n, const struct ledger_item **out, int64_t max);
/* All groups that went by up to batch n and after batch n - 1: its own, and the filtered ones between (for metrics), the oldest of very
 * many left out. */
int64_t ledger_batch_seen(const struct ledger *l, int64_t n, const struct ledger_item **out, int64_t max);
/* Batch n has been trained on; changed as above. */
void ledger_trained(struct ledger *l, int64_t n, void (*changed)(void *ctx, const struct ledger_item *item), void *ctx);
/* Forget items that no return to optimizer step `step` or later can need. */
void ledger_forget(struct ledger *l, int64_t step);
/* Forget the oldest items that were filtered or too old: no return needs them. Keeps LEDGER_GONE_MAX. */
void ledger_let_go(struct ledger *l);
/* Can the run return to optimizer step `step`? Only when its items are still held, and no group is still to be made (again) with older
 * weights. */
bool ledger_can_return(const struct ledger *l, int64_t step);
/* Return to it: what was trained later is untrained, leases end. */
void ledger_return_to(struct ledger *l, int64_t step, void (*changed)(void *ctx, const struct ledger_item *item), void *ctx);
/* Return to it on an operator's word: what was sampled with the weights of `step` or later is sampled again, since those weights, or the
 * settings, were not wanted; rollout steps opened since then will be opened again, and batches cut again. What older weights have
 * sampled stays, as nobody has those any more. Free-running, groups of later weights are issued again. Items from ledger_state's n_item
 * on are forgotten; the journal's rows of them no longer count. */
void ledger_rewind(struct ledger *l, int64_t step, void (*changed)(void *ctx, const struct ledger_item *item), void *ctx);
bool ledger_holds(const struct ledger *l, int64_t step);    // all that ledger_rewind would look at, so that it need not be read again
/* Is every item of this version that was opened back? (Then weights of this version are needed no more.) */
bool ledger_version_done(const struct ledger *l, int64_t version);
/* The smallest version that an item which is not back is to be sampled with, or -1: all are back. */
int64_t ledger_version_wanted(const struct ledger *l);
const struct ledger_item *ledger_find(const struct ledger *l, int64_t item);    // NULL: forgotten or not opened

struct ledger_counts {
    int64_t issued, leased, returned, filtered, stale, stopped, trained;    // items still held, by fate
    int64_t pool;                                                           // returned, cut, and in no batch yet
    int64_t unbatched;                                                      // issued, leased or returned, and in no batch yet
    int64_t n_batch;                                                        // batches cut
    int64_t n_cut, n_open;                                                  // rollout steps
    int64_t n_item;                                                         // items opened in the whole run
    bool exhausted;                                                         // no further rollout step can be opened, ever
};
void ledger_counts(const struct ledger *l, int64_t n_per_step, struct ledger_counts *out);
/* How many items all calls so far have looked at, which is what their time goes into: for tests of that. */
int64_t ledger_looked(const struct ledger *l);
