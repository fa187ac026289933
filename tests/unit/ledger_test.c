/* tags: tsan valgrind
 * The ledger: the order of everything follows from the seed and the groups, never from when they arrive. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "workers/engine/data/row_level.h"
#include "workers/schedule/ledger.h"

struct log {    // the journal's part: the last thing said about each item
    struct ledger_item item[4096];
    int64_t n;
    bool solved[10];    // rows
};

static void changed(void *ctx, const struct ledger_item *i)
{
    struct log *log = ctx;
    log->item[i->item] = *i;
}

static void solved(void *ctx, int64_t row)
{
    struct log *log = ctx;
    log->solved[row] = true;
}

static void opened(struct log *log, const struct ledger *l, int64_t first, int64_t n)
{
    for (int64_t i = first; i < first + n; i++)
        log->item[i] = *ledger_find(l, i);
    log->n = first + n;
}

static struct ledger *ledger_make(int64_t n_behind)
{
    struct error err = { 0 };
    struct ledger_rules rules = { .seed = 7, .n_row = 10, .n_item_max = 400, .shuffle = true, .n_behind = n_behind };
    struct ledger *l = ledger_new(&rules, &err);
    assert_non_null(l);
    return l;
}

/* What a group of this item holds: fixed by the item, as it is in a run. */
static struct group_summary summary_of(int64_t item)
{
    return (struct group_summary){ .n_sample = 4, .n_scored = 4, .n_ans = 4, .ans_sum = (double)(item * 7 % 5) };    // 0 .. 4 right of 4
}

static const struct ledger_cut rules_all = { .batch_size = 4, .filter = { NAN, NAN, false } };
static const struct ledger_cut rules_solved = { .batch_size = 4, .filter = { NAN, NAN, false }, .pass_rate = 0.9, .solved = solved };
static int64_t row_of[4096];    // of each item of the last play
static const struct ledger_cut rules_filter = { .batch_size = 3, .dynamic = true, .filter = { 0.01, 0.99, false } };

/* Play a run in which groups return and steps are trained in an order drawn from noise, with lost workers and returns to
 * earlier steps; items of each batch into batches[n][...]. */
static int64_t play(int64_t n_behind, const struct ledger_cut *cut, unsigned noise, bool kills, int64_t batches[64][8],
                    int64_t version_of[4096])
{
    struct log *log = calloc(1, sizeof *log);
    struct ledger *l = ledger_make(n_behind);
    int64_t step = 0, first, sampler = 0, saved = 0;
    memset(batches, 0xff, 64 * sizeof batches[0]);
    srand(noise);
    for (int turn = 0; turn < 20000 && step < 40; turn++) {
        while (ledger_open(l, 8, &first)) {
            opened(log, l, first, 8);
            for (int64_t i = first; i < first + 8; i++)
                version_of[i] = ledger_find(l, i)->version, row_of[i] = ledger_find(l, i)->row;
        }
        int64_t wanted = ledger_version_wanted(l);
        if (wanted >= 0 && wanted != sampler && wanted == step && ledger_version_done(l, sampler))
            sampler = step;    // publish
        const struct ledger_item *i = ledger_lease(l, sampler, 1 + rand() % 2);
        if (i) {
            if (rand() % 8 == 0) {
                ledger_lease_end(l, i->worker);
            } else {
                struct group_summary s = summary_of(i->item);
                assert_int_equal(ledger_return(l, i->item, sampler, &s), LEDGER_NEW);
                assert_int_equal(ledger_return(l, i->item, sampler, &s), LEDGER_KNOWN);
                changed(log, ledger_find(l, i->item));
            }
        }
        while (ledger_can_cut(l))
            ledger_cut(l, cut, changed, log);
        const struct ledger_item *b[8];
        int64_t n = ledger_batch(l, step, b, 8);
        /* the trainer may leave a version when nobody needs it, or the samplers have a copy of their own */
        if (n > 0 && rand() % 2 && (ledger_version_done(l, step) || (n_behind > 0 && sampler == step))) {
            for (int64_t k = 0; k < n; k++) {
                assert_true(batches[step][k] == -1 || batches[step][k] == b[k]->item);
                batches[step][k] = b[k]->item;
            }
            ledger_trained(l, step, changed, log);
            step++;
            if (step % 5 == 0 && ledger_can_return(l, step)) {
                saved = step;
                ledger_forget(l, saved);
            }
        }
        ledger_check(l);
        if (kills && rand() % 60 == 0) {    // the controller dies: make a new ledger from what was written
            struct ledger_state state;
            struct error err = { 0 };
            ledger_state(l, &state);
            ledger_free(l);
            l = ledger_make(n_behind);
            for (int64_t k = 0; k < log->n; k++) {
                struct ledger_item back = log->item[k];
                if (back.fate == LEDGER_LEASED)
                    back.fate = LEDGER_ISSUED;
                assert_true(ledger_restore_item(l, &back, &err));
            }
            ledger_restore_state(l, &state);
            for (int64_t row = 0; row < 10; row++)
                if (log->solved[row])
                    (void)ledger_forbid(l, row);
        }
        if (kills && rand() % 90 == 0 && ledger_can_return(l, saved)) {    // the trainer dies: back to what was saved
            ledger_return_to(l, saved, changed, log);
            step = saved;
            sampler = saved;    // what was loaded
        }
    }
    free(log);
    ledger_free(l);
    return step;
}

static void batches_do_not_depend_on_arrival_or_kills(UNUSED void **state)
{
    static int64_t want[64][8], got[64][8], version_want[4096], version_got[4096], row_want[4096];
    static const struct {
        int64_t n_behind;
        const struct ledger_cut *cut;
    } cases[] = {
        { 0, &rules_all },    { 1, &rules_all },    { 2, &rules_all },    { 0, &rules_filter },
        { 1, &rules_filter }, { 0, &rules_solved }, { 2, &rules_solved },
    };
    for (size_t c = 0; c < ARRAY_SIZE(cases); c++) {
        assert_int_equal(play(cases[c].n_behind, cases[c].cut, 1, false, want, version_want), 40);
        memcpy(row_want, row_of, sizeof row_want);
        for (unsigned noise = 2; noise < 12; noise++) {
            assert_int_equal(play(cases[c].n_behind, cases[c].cut, noise, true, got, version_got), 40);
            assert_memory_equal(want, got, 40 * sizeof want[0]);
            for (int64_t i = 0; i <= want[39][2]; i++) {
                assert_int_equal(version_want[i], version_got[i]);
                assert_int_equal(row_want[i], row_of[i]);
            }
        }
    }
}

static void solved_prompts_are_not_opened_again(UNUSED void **state)
{
    struct ledger *l = ledger_make(0);
    struct log *log = calloc(1, sizeof *log);
    int64_t first, n_solved = 0;
    assert_true(ledger_open(l, 8, &first));
    for (int64_t i = 0; i < 8; i++) {
        struct group_summary s = summary_of(i);
        const struct ledger_item *leased = ledger_lease(l, 0, 1);
        assert_int_equal(ledger_return(l, leased->item, 0, &s), LEDGER_NEW);
    }
    ledger_cut(l, &rules_solved, changed, log);
    for (int64_t i = 0; i < 8; i++) {
        bool all = summary_of(i).ans_sum >= 4;
        n_solved += all;
        assert_int_equal(log->solved[ledger_find(l, i)->row], all);
    }
    assert_int_equal(n_solved, 2);
    assert_true(ledger_open(l, 8, &first));
    for (int64_t i = 8; i < 16; i++)
        assert_false(log->solved[ledger_find(l, i)->row]);
    ledger_allow_all(l);
    for (int64_t row = 0; row < 9; row++)
        assert_true(ledger_forbid(l, row));
    assert_false(ledger_forbid(l, 9));    // the last one
    free(log);
    ledger_free(l);
}

static void not_noted(UNUSED void *ctx, UNUSED const struct ledger_item *i)
{
}

/* Groups that count are told to ctx in order. */
static void counted(void *ctx, const struct ledger_item *i)
{
    struct log *log = ctx;
    log->item[log->n++] = *i;
}

static void items_have_rows_of_the_level_and_the_groups_of_a_cut_count_once(UNUSED void **state)
{
    static const uint8_t level_of[10] = { 0, 1, 2, 0, 1, 2, 0, 1, LEVEL_EVERY, 1 };
    struct ledger_cut cut = rules_filter;
    struct ledger *l = ledger_make(0);
    struct log *log = calloc(1, sizeof *log);
    int64_t first, often[10] = { 0 };
    cut.counts = counted;
    for (int64_t step = 0; step < 30; step++) {
        ledger_level(l, level_of, step % 3);
        assert_true(ledger_open(l, 8, &first));
        for (int64_t i = first; i < first + 8; i++) {
            struct group_summary s = summary_of(i);
            int64_t row = ledger_find(l, i)->row;
            often[row]++;
            assert_true(level_of[row] == step % 3 || level_of[row] == LEVEL_EVERY);
            assert_int_equal(ledger_return(l, ledger_lease(l, ledger_find(l, i)->version, 1)->item, ledger_find(l, i)->version, &s),
                             LEDGER_NEW);
        }
        log->n = 0;
        ledger_cut(l, &cut, not_noted, log);
        assert_int_equal(log->n, 8);    // those that are filtered, too
        for (int64_t i = 0; i < 8; i++)
            assert_int_equal(log->item[i].item, first + i);
    }
    for (int64_t row = 0; row < 10; row++)
        assert_true(often[row] > 5);
    assert_true(ledger_forbid(l, 2) && ledger_forbid(l, 5) && ledger_forbid(l, 8));
    ledger_level(l, level_of, 2);
    assert_true(ledger_open(l, 8, &first));    // none of that level is left: of the others
    free(log);
    ledger_free(l);
}

static void without_a_filter_batches_are_the_items_in_order_and_ages_keep_their_bound(UNUSED void **state)
{
    static int64_t b[64][8], version[4096];
    for (int64_t n_behind = 0; n_behind < 3; n_behind++) {
        assert_int_equal(play(n_behind, &rules_all, 3, false, b, version), 40);
        for (int64_t n = 0; n < 40; n++)
            for (int64_t k = 0; k < 4; k++) {
                assert_int_equal(b[n][k], 4 * n + k);
                /* at most (n_behind + 1) K - 1 optimizer steps old, K = 8 / 4 */
                assert_in_range(n - version[4 * n + k], 0, (n_behind + 1) * 2 - 1);
            }
    }
}

static void an_episode_shows_every_prompt_once_and_the_next_in_another_order(UNUSED void **state)
{
    struct ledger *l = ledger_make(0);
    int64_t seen[10] = { 0 }, same = 0;
    for (int64_t i = 0; i < 10; i++) {
        seen[ledger_row(l, i)]++;
        int64_t first = ledger_row(l, i);
        same += first == ledger_row(l, 10 + i);
    }
    for (int64_t i = 0; i < 10; i++)
        assert_int_equal(seen[i], 1);
    assert_true(same < 10);
    ledger_free(l);
}

static void a_group_of_other_weights_or_of_no_item_is_not_taken(UNUSED void **state)
{
    struct ledger *l = ledger_make(0);
    int64_t first;
    struct group_summary s = summary_of(0);
    assert_true(ledger_open(l, 8, &first));
    assert_false(ledger_open(l, 8, &first));    // n_behind 0: the next waits for the cut of this one
    assert_int_equal(ledger_return(l, 3, 1, &s), LEDGER_NOT_OURS);
    assert_int_equal(ledger_return(l, 8, 0, &s), LEDGER_NOT_OURS);
    assert_int_equal(ledger_return(l, -1, 0, &s), LEDGER_NOT_OURS);
    assert_int_equal(ledger_return(l, 3, 0, &s), LEDGER_NEW);
    ledger_free(l);
}

static void the_last_part_of_the_data_that_fills_no_rollout_step_is_not_opened(UNUSED void **state)
{
    struct error err = { 0 };
    struct ledger_rules rules = { .seed = 1, .n_row = 10, .n_item_max = 10 };
    struct ledger *l = ledger_new(&rules, &err);
    struct log *log = calloc(1, sizeof *log);
    struct ledger_counts counts;
    int64_t first;
    assert_true(ledger_open(l, 8, &first));
    ledger_counts(l, 8, &counts);
    assert_true(counts.exhausted);
    const struct ledger_item *i;
    while ((i = ledger_lease(l, 0, 1))) {
        struct group_summary s = summary_of(i->item);
        assert_int_equal(ledger_return(l, i->item, 0, &s), LEDGER_NEW);
    }
    assert_true(ledger_can_cut(l));
    assert_int_equal(ledger_cut(l, &rules_all, changed, log), 2);
    assert_false(ledger_open(l, 8, &first));
    ledger_free(l);
    free(log);
}

static void a_prompt_in_quarantine_gives_its_places_to_others(UNUSED void **state)
{
    struct ledger *l = ledger_make(0), *plain = ledger_make(0);
    int64_t first, bad = ledger_row(l, 2), seen = 0;
    assert_true(ledger_forbid(l, bad));
    assert_false(ledger_forbid(l, bad));
    assert_false(ledger_forbid(l, 10));
    assert_true(ledger_open(l, 8, &first));
    for (int64_t i = 0; i < 8; i++) {
        assert_int_not_equal(ledger_find(l, i)->row, bad);
        seen += ledger_find(l, i)->row == ledger_row(plain, i);
    }
    assert_int_equal(seen, 7);    // the others keep their places
    for (int64_t row = 0; row < 10; row++)
        (void)ledger_forbid(l, row);
    struct ledger_counts n;
    ledger_counts(l, 8, &n);
    assert_int_equal(n.n_item, 8);
    ledger_free(l);
    ledger_free(plain);
}

static void give_back(struct ledger *l, int64_t item, int64_t version, int64_t at)
{
    struct group_summary s = summary_of(item);
    s.file_offset = at;
    s.file_bytes = 1;
    assert_int_equal(ledger_return(l, item, version, &s), LEDGER_NEW);
}

static void free_running_batches_form_by_arrival_and_leave_out_what_is_too_old(UNUSED void **state)
{
    struct error err = { 0 };
    struct ledger_rules rules = { .seed = 7, .n_row = 10, .n_item_max = 400, .free = true, .max_age = 3 };
    struct ledger *l = ledger_new(&rules, &err);
    const struct ledger_item *in[8];
    struct ledger_counts n;
    struct log log = { 0 };
    int64_t first, n_open = 0;
    assert_non_null(l);
    while (ledger_open(l, 4, &first))
        n_open++;
    assert_int_equal(n_open, 3);    // max_age x 4 items
    for (int i = 0; i < 12; i++)
        assert_int_equal(ledger_lease(l, i % 2, 1)->item, i);    // whichever weights the worker has
    assert_null(ledger_lease(l, 0, 1));
    assert_false(ledger_form(l, &rules_all, changed, &log));
    give_back(l, 7, 0, 10);
    give_back(l, 2, 0, 20);
    struct group_summary later = summary_of(7);
    later.file_offset = 1000;
    ledger_amend(l, 7, &later);    // changed by an operator, it keeps its place
    give_back(l, 11, 0, 30);
    assert_false(ledger_form(l, &rules_all, changed, &log));
    give_back(l, 0, 0, 40);
    give_back(l, 5, 0, 50);
    assert_true(ledger_form(l, &rules_all, changed, &log));
    assert_int_equal(ledger_batch(l, 0, in, 8), 4);    // those that arrived first; told in item order
    assert_true(in[0]->item == 0 && in[1]->item == 2 && in[2]->item == 7 && in[3]->item == 11);
    assert_false(ledger_open(l, 4, &first));    // they are being trained on
    ledger_trained(l, 0, changed, &log);
    assert_true(ledger_open(l, 4, &first));
    for (int64_t batch = 1; batch < 4; batch++) {
        for (int64_t k = 0; k < 4; k++)
            give_back(l, ledger_lease(l, batch, 1)->item, batch, 100 * batch + k);
        assert_true(ledger_form(l, &rules_all, changed, &log));
        assert_int_equal(ledger_batch(l, batch, in, 8), 4);
        ledger_trained(l, batch, changed, &log);
        while (ledger_open(l, 4, &first))
            ;
    }
    assert_int_equal(ledger_find(l, 5)->batch, 1);    // it had waited longest
    give_back(l, 1, 0, 900);                          // begun with the first weights: four steps old in batch 4
    give_back(l, 3, 1, 901);
    assert_false(ledger_form(l, &rules_all, changed, &log));
    assert_int_equal(ledger_find(l, 1)->fate, LEDGER_STALE);
    assert_int_equal(ledger_find(l, 3)->fate, LEDGER_RETURNED);
    assert_int_equal(ledger_batch_seen(l, 4, in, 8), 1);    // and it counts with that batch
    ledger_check(l);                                        // which is not formed yet
    ledger_counts(l, 4, &n);
    assert_true(n.stale == 1 && n.trained == 16);
    ledger_return_to(l, 2, changed, &log);    // as it was cut: batches stay
    assert_int_equal(ledger_batch(l, 3, in, 8), 4);
    assert_int_equal(in[0]->fate, LEDGER_RETURNED);
    ledger_free(l);
}

static void group_back(struct ledger *l, int64_t item)
{
    struct group_summary sum = summary_of(item);
    assert_int_equal(ledger_return(l, item, ledger_find(l, item)->version, &sum), LEDGER_NEW);
}

/* What can be sampled with the weights of step or older ones is, and what can be cut and opened too. */
static void settle(struct ledger *l, struct log *log, const struct ledger_cut *cut, int64_t step)
{
    int64_t first;
    const struct ledger_item *i;
    for (bool moved = true; moved;) {
        moved = false;
        while (ledger_open(l, 8, &first)) {
            opened(log, l, first, 8);
            moved = true;
        }
        int64_t wanted = ledger_version_wanted(l);
        while (wanted >= 0 && wanted <= step && (i = ledger_lease(l, wanted, 1))) {
            group_back(l, i->item);
            moved = true;
        }
        if (ledger_can_cut(l)) {
            ledger_cut(l, cut, changed, log);
            moved = true;
        }
    }
}

/* Go on from optimizer step `from` until `to` have been made. */
static void play_on(struct ledger *l, struct log *log, const struct ledger_cut *cut, int64_t from, int64_t to)
{
    const struct ledger_item *in[8];
    settle(l, log, cut, from);
    for (int64_t step = from; step < to; step++) {
        assert_true(ledger_batch(l, step, in, 8) > 0);
        ledger_trained(l, step, changed, log);
        settle(l, log, cut, step + 1);
        ledger_check(l);
    }
}

static void assert_same_state(const struct ledger *a, const struct ledger *b)
{
    struct ledger_state x, y;
    ledger_state(a, &x);
    ledger_state(b, &y);
    assert_true(x.n_cut == y.n_cut && x.n_batch == y.n_batch && x.n_open == y.n_open && x.n_item == y.n_item);
    for (int64_t i = 0; i < x.n_item; i++) {
        const struct ledger_item *p = ledger_find(a, i), *q = ledger_find(b, i);
        assert_true(p->fate == q->fate && p->batch == q->batch && p->version == q->version && p->rollout_step == q->rollout_step);
    }
}

static void what_later_weights_have_made_is_made_again_after_a_rollback_and_ends_alike(void **state)
{
    (void)state;
    static const struct {
        int64_t n_behind, to, from;
        const struct ledger_cut *cut;
        const char *why;
    } cases[] = {
        { 0, 4, 9, &rules_all, "two batches of each rollout step" },
        { 1, 4, 9, &rules_all, "one rollout step ahead" },
        { 3, 2, 12, &rules_all, "further back than the cuts remember" },
        { 0, 7, 8, &rules_filter, "batches that span rollout steps, filtered groups between" },
        { 2, 5, 20, &rules_filter, "both" },
        { 1, 0, 6, &rules_all, "to the beginning" },
    };
    struct log *log = calloc(1, sizeof *log);
    for (size_t c = 0; c < ARRAY_SIZE(cases); c++) {
        struct ledger *l = ledger_make(cases[c].n_behind), *never = ledger_make(cases[c].n_behind);
        play_on(l, log, cases[c].cut, 0, cases[c].from);
        assert_true(ledger_holds(l, cases[c].to));
        ledger_rewind(l, cases[c].to, changed, log);
        struct ledger_state s;
        ledger_state(l, &s);
        for (int64_t i = 0; i < s.n_item; i++) {    // nothing of the later weights is left, and nothing needs weights that are gone
            const struct ledger_item *item = ledger_find(l, i);
            assert_true(item->version < MAX(cases[c].to, 1) || item->rollout_step <= cases[c].n_behind);
            assert_true(item->fate != LEDGER_TRAINED || item->batch < cases[c].to);
            assert_true(item->fate != LEDGER_LEASED);
        }
        assert_true(ledger_can_return(l, cases[c].to));
        play_on(l, log, cases[c].cut, cases[c].to, 24);
        play_on(never, log, cases[c].cut, 0, 24);
        assert_same_state(l, never);
        ledger_free(l);
        ledger_free(never);
    }
    free(log);
}

static void free_running_a_rollback_issues_what_later_weights_have_sampled_again(void **state)
{
    (void)state;
    struct error err = { 0 };
    struct ledger_rules rules = { .seed = 7, .n_row = 10, .n_item_max = 400, .free = true, .max_age = 3 };
    struct ledger *l = ledger_new(&rules, &err);
    struct log *log = calloc(1, sizeof *log);
    int64_t first;
    while (ledger_open(l, 4, &first))
        ;
    for (int64_t batch = 0; batch < 2; batch++) {
        for (int64_t k = 0; k < 4; k++)
            give_back(l, ledger_lease(l, batch, 1)->item, batch, 100 * batch + k);
        assert_true(ledger_form(l, &rules_all, changed, log));
        ledger_trained(l, batch, changed, log);
    }
    give_back(l, ledger_lease(l, 2, 1)->item, 2, 300);
    ledger_rewind(l, 1, changed, log);
    struct ledger_counts n;
    ledger_counts(l, 4, &n);
    assert_int_equal(n.n_batch, 1);
    assert_int_equal(n.trained, 4);
    assert_int_equal(n.returned, 4);    // sampled with the weights of step 1, which are there again
    assert_int_equal(ledger_find(l, 8)->fate, LEDGER_ISSUED);
    assert_int_equal(ledger_find(l, 8)->version, -1);
    assert_true(ledger_form(l, &rules_all, changed, log));    // and trained on first
    ledger_free(l);
    free(log);
}

static void free_running_a_lost_group_of_a_batch_that_a_rollback_undoes_is_of_no_batch(void **state)
{
    (void)state;
    struct error err = { 0 };
    struct ledger_rules rules = { .seed = 7, .n_row = 10, .n_item_max = 400, .free = true, .max_age = 3 };
    struct ledger *l = ledger_new(&rules, &err);
    struct log *log = calloc(1, sizeof *log);
    const struct ledger_item *in[8];
    int64_t first, oldest;
    while (ledger_open(l, 4, &first))
        ;
    for (int64_t batch = 0; batch < 2; batch++) {
        for (int64_t k = 0; k < 4; k++)
            give_back(l, ledger_lease(l, batch, 1)->item, batch, 100 * batch + k);
        assert_true(ledger_form(l, &rules_all, changed, log));
        if (batch == 0)
            ledger_trained(l, 0, changed, log);
    }
    ledger_lose(l, 5);
    assert_int_equal(ledger_reissue(l, &oldest, changed, log), 1);
    ledger_rewind(l, 1, changed, log);
    ledger_check(l);
    for (const struct ledger_item *i; (i = ledger_lease(l, 1, 1)) != NULL;)
        give_back(l, i->item, 1, 300 + i->item);
    assert_true(ledger_form(l, &rules_all, changed, log));
    assert_int_equal(ledger_batch(l, 1, in, 8), 4);
    ledger_free(l);
    free(log);
}

static void a_lost_group_is_sampled_again_for_its_batch_and_only_if_it_is_still_needed(void **state)
{
    (void)state;
    struct log *log = calloc(1, sizeof *log);
    const struct ledger_item *batch[8];
    struct ledger *l = ledger_make(0);
    int64_t first, oldest;
    assert_true(ledger_open(l, 8, &first));
    opened(log, l, first, 8);
    for (int64_t i = 0; i < 8; i++)
        group_back(l, i);
    assert_int_equal(ledger_cut(l, &rules_all, changed, log), 2);    // batches 0 and 1, of items 0 to 3 and 4 to 7
    ledger_trained(l, 0, changed, log);
    ledger_lose(l, 1);    // has been trained on: no longer needed
    ledger_lose(l, 6);
    assert_int_equal(ledger_reissue(l, &oldest, changed, log), 1);
    assert_int_equal(oldest, 0);
    assert_int_equal(log->item[6].fate, LEDGER_ISSUED);
    assert_int_equal(log->item[6].batch, 1);
    assert_int_equal(ledger_batch(l, 1, batch, 8), 0);    // not before it is whole
    assert_int_equal(ledger_batch(l, 0, batch, 8), 4);
    assert_false(ledger_can_return(l, 1));    // item 6 wants the weights of step 0
    assert_true(ledger_can_return(l, 0));
    ledger_return_to(l, 0, changed, log);
    assert_int_equal(log->item[1].fate, LEDGER_ISSUED);    // now it is needed again
    assert_int_equal(log->item[0].fate, LEDGER_RETURNED);
    assert_int_equal(ledger_batch(l, 0, batch, 8), 0);
    assert_true(ledger_open(l, 8, &first));
    for (int64_t i = 8; i < 16; i++)
        group_back(l, i);
    assert_false(ledger_can_cut(l));    // what is cut must not depend on when they come back
    group_back(l, 1);
    group_back(l, 6);
    assert_int_equal(ledger_batch(l, 0, batch, 8), 4);
    assert_int_equal(ledger_batch(l, 1, batch, 8), 4);
    assert_int_equal(batch[2]->item, 6);
    assert_true(ledger_can_cut(l));
    ledger_trained(l, 0, changed, log);
    ledger_forget(l, 1);
    assert_false(ledger_can_return(l, 0));    // its items are not held any more
    assert_true(ledger_can_return(l, 1));
    ledger_free(l);
    free(log);
}

/* However many rollout steps are sampled ahead: the first items after step 2 are of version 2, and batch 2 takes them. */
static void a_ledger_that_begins_at_a_step_goes_on_from_there(UNUSED void **state)
{
    for (int64_t n_behind = 0; n_behind < 3; n_behind++) {
        struct ledger *l = ledger_make(n_behind);
        struct log *log = calloc(1, sizeof *log);
        const struct ledger_item *i, *batch[8];
        int64_t first;
        ledger_begin_at(l, 2, 1, 8);
        assert_int_equal(ledger_first(l), 8);
        assert_true(ledger_can_return(l, 2));
        assert_false(ledger_can_return(l, 1));
        for (int64_t s = 0; s <= n_behind; s++) {
            assert_true(ledger_open(l, 8, &first));
            assert_int_equal(first, 8 + 8 * s);
            assert_int_equal(ledger_find(l, first)->version, 2);
        }
        assert_false(ledger_open(l, 8, &first));
        while ((i = ledger_lease(l, 2, 1))) {
            struct group_summary s = summary_of(i->item);
            assert_int_equal(ledger_return(l, i->item, 2, &s), LEDGER_NEW);
        }
        assert_true(ledger_can_cut(l));
        assert_int_equal(ledger_cut(l, &rules_all, changed, log), 2);
        assert_int_equal(ledger_batch(l, 2, batch, 8), 4);
        assert_int_equal(batch[0]->item, 8);
        assert_int_equal(ledger_batch(l, 1, batch, 8), 0);
        struct group_summary s = summary_of(3);
        assert_int_equal(ledger_return(l, 3, 0, &s), LEDGER_KNOWN);    // of before
        assert_true(ledger_open(l, 8, &first));
        assert_int_equal(ledger_find(l, first)->version, 4);
        ledger_free(l);
        free(log);
    }
}

static void changed_nowhere(UNUSED void *ctx, UNUSED const struct ledger_item *i)
{
}

/* Play rollout steps of 8 items whose groups are all filtered but for n_kept of each, which fill no batch: how many items the
 * ledger examines in n_step of them. The schedule is queried as the controller does in each turn. */
static int64_t work_of_wasted_steps(struct ledger *l, int n_step, int n_kept)
{
    static const struct ledger_cut cut = { .batch_size = 8, .dynamic = true, .filter = { 0.01, 0.99, false } };
    const struct ledger_item *i, *batch[8];
    struct ledger_counts counts;
    int64_t before = ledger_looked(l), first;
    for (int s = 0; s < n_step; s++) {
        assert_true(ledger_open(l, 8, &first));
        while ((i = ledger_lease(l, 0, 1))) {
            struct group_summary sum = { .n_sample = 4, .n_scored = 4, .n_ans = 4, .ans_sum = s == 0 && i->item - first < n_kept ? 2 : 0 };
            assert_int_equal(ledger_return(l, i->item, 0, &sum), LEDGER_NEW);
            ledger_counts(l, 8, &counts);
            assert_int_equal(ledger_batch(l, 0, batch, 8), 0);
            assert_int_equal(ledger_version_done(l, 0), counts.issued + counts.leased == 0);
        }
        assert_true(ledger_can_cut(l));
        assert_int_equal(ledger_cut(l, &cut, changed_nowhere, NULL), 0);
        ledger_let_go(l);
    }
    return ledger_looked(l) - before;
}

static void the_work_of_a_step_does_not_grow_with_the_groups_that_were_filtered(UNUSED void **state)
{
    for (int n_kept = 0; n_kept < 2; n_kept++) {    // 1: a group waits in the pool all the time
        struct error err = { 0 };
        struct ledger_rules rules = { .seed = 7, .n_row = 10, .n_item_max = 1 << 20 };
        struct ledger *l = ledger_new(&rules, &err);
        assert_non_null(l);
        int64_t early = work_of_wasted_steps(l, 100, n_kept);
        (void)work_of_wasted_steps(l, 4000, 0);
        int64_t late = work_of_wasted_steps(l, 100, 0);
        assert_in_range(late, 1, early + LEDGER_GONE_MAX + 8);    // many may be let go at once in these steps
        assert_in_range(ledger_looked(l), 1, 42 * (early + 2 * 8 * 100));
        if (n_kept == 0)
            assert_in_range(ledger_first(l), 8 * 4200 - 2 * LEDGER_GONE_MAX - 8, 8 * 4200 - LEDGER_GONE_MAX);
        else
            assert_int_equal(ledger_first(l), 0);    // it waits for its batch
        ledger_free(l);
    }
}

static void the_work_of_a_step_does_not_grow_with_the_steps_that_were_trained(UNUSED void **state)
{
    struct error err = { 0 };
    struct ledger_rules rules = { .seed = 7, .n_row = 10, .n_item_max = 1 << 20 };
    struct ledger *l = ledger_new(&rules, &err);
    const struct ledger_item *i, *batch[16];
    int64_t first, step = 0, early = 0, before = 0;
    for (int s = 0; s < 2000; s++) {
        assert_true(ledger_open(l, 8, &first));
        while ((i = ledger_lease(l, step, 1)))
            group_back(l, i->item);
        for (int64_t made = ledger_cut(l, &rules_filter, changed_nowhere, NULL); made > 0; made--) {
            assert_int_equal(ledger_batch(l, step, batch, 16), 3);
            assert_true(ledger_batch_seen(l, step, batch, 16) >= 3);
            ledger_trained(l, step++, changed_nowhere, NULL);
        }
        if (s == 99)
            early = ledger_looked(l);
        if (s == 1899)
            before = ledger_looked(l);
    }
    assert_in_range(ledger_looked(l) - before, 1, early + early / 10);    // 100 steps each; the pool's left-over differs by a group
    assert_int_equal(ledger_first(l), 0);                                 // nothing was saved: a return to step 0 needs them all
    assert_true(ledger_can_return(l, 0));
    ledger_free(l);
}

static void what_gave_nothing_is_let_go_and_the_run_can_still_return(UNUSED void **state)
{
    struct error err = { 0 };
    struct ledger_rules rules = { .seed = 7, .n_row = 10, .n_item_max = 1 << 20 };
    struct ledger *l = ledger_new(&rules, &err), *back;
    struct ledger_state s;
    (void)work_of_wasted_steps(l, 3000, 0);
    int64_t first = ledger_first(l), next;
    struct group_summary sum = { .n_sample = 4, .n_scored = 4, .n_ans = 4 };
    assert_true(first > 0);
    assert_true(ledger_can_return(l, 0));
    assert_int_equal(ledger_return(l, 0, 0, &sum), LEDGER_KNOWN);
    ledger_state(l, &s);
    assert_int_equal(s.floor, 0);
    assert_non_null(back = ledger_new(&rules, &err));    // a controller that comes after it has none of them
    ledger_restore_state(back, &s);
    assert_int_equal(ledger_first(back), 8 * 3000);
    assert_true(ledger_open(back, 8, &next));
    assert_int_equal(next, 8 * 3000);
    assert_int_equal(ledger_return(back, 0, 0, &sum), LEDGER_KNOWN);
    ledger_free(back);
    ledger_free(l);
}

/* 5 of 8 items count: those with the shortest of these lengths, and the first two of the three with 7 tokens. */
static const int64_t lengths[8] = { 9, 3, 1, 7, 7, 2, 8, 7 };
static const int64_t shortest[5] = { 1, 2, 3, 4, 5 };

static struct group_summary summary_with(int64_t item, int64_t n_tok)
{
    struct group_summary s = summary_of(item);
    s.n_tok_max = n_tok;
    s.file_offset = item;
    s.file_bytes = 1;
    return s;
}

/* The last item that is out, or all of them: the rollout step is cut without what was dropped, also after a restart. */
static void a_rollout_step_is_cut_without_the_items_that_were_dropped(UNUSED void **state)
{
    for (int64_t n_dropped = 1; n_dropped <= 8; n_dropped += 7) {
        struct log *log = calloc(1, sizeof *log);
        struct ledger *l = ledger_make(0);
        struct ledger_cut cut = { .batch_size = 4, .filter = { NAN, NAN, false } };
        const struct ledger_item *in[8];
        struct ledger_state s;
        struct error err = { 0 };
        int64_t first;
        assert_true(ledger_open(l, 8, &first));
        opened(log, l, first, 8);
        for (int64_t k = 0; k < 8; k++) {
            struct group_summary sum = summary_with(k, 1);
            assert_false(ledger_can_cut(l));
            assert_non_null(ledger_lease(l, 0, 1));
            if (k >= n_dropped)
                assert_int_equal(ledger_return(l, k, 0, &sum), LEDGER_NEW);
            else
                ledger_stop(l, k);
            assert_int_equal(ledger_return(l, k, 0, &sum), LEDGER_KNOWN);    // it comes too late
            changed(log, ledger_find(l, k));
        }
        ledger_state(l, &s);
        ledger_free(l);
        l = ledger_make(0);
        for (int64_t k = 0; k < 8; k++)
            assert_true(ledger_restore_item(l, &log->item[k], &err));
        ledger_restore_state(l, &s);
        assert_true(ledger_can_cut(l));
        assert_int_equal(ledger_cut(l, &cut, changed, log), (8 - n_dropped) / 4);
        assert_false(ledger_can_cut(l));
        if (n_dropped == 1) {
            assert_int_equal(ledger_batch(l, 0, in, 8), 4);
            assert_int_equal(in[0]->item, 1);
        }
        assert_int_equal(ledger_find(l, 0)->fate, LEDGER_STOPPED);
        assert_true(ledger_open(l, 8, &first));    // and the run goes on
        assert_int_equal(first, 8);
        ledger_free(l);
        free(log);
    }
}

/* Let the items of the second rollout step come in an order drawn from noise; one that is certain not to count may be stopped instead.
 * Now and then the controller dies, and at the end an operator goes back to before the cut. Returns how many were stopped while they
 * were out. */
static int64_t tail_play(unsigned noise)
{
    struct log *log = calloc(1, sizeof *log);
    struct ledger *l = ledger_make(1);
    struct ledger_cut cut = { .batch_size = 5, .n_need = 5, .filter = { NAN, NAN, false } };
    const struct ledger_item *in[8];
    struct ledger_counts n;
    int64_t first, n_stopped = 0, order[8];
    srand(noise);
    for (int64_t k = 0; k < 2; k++) {
        assert_true(ledger_open(l, 8, &first));
        opened(log, l, first, 8);
    }
    for (int64_t k = 0; k < 16; k++) {
        struct group_summary s = summary_with(k, 1);
        assert_non_null(ledger_lease(l, 0, 1));
        if (k < 8) {
            assert_int_equal(ledger_return(l, k, 0, &s), LEDGER_NEW);
            changed(log, ledger_find(l, k));
            continue;
        }
        int64_t at = rand() % (k - 7);
        order[k - 8] = order[at];
        order[at] = k;
    }
    assert_int_equal(ledger_cut(l, &cut, changed, log), 1);
    for (int64_t k = 0; k < 8; k++) {
        int64_t item = order[k], tail = ledger_tail(l, 1, 5);
        struct group_summary s = summary_with(item, lengths[item - 8]);
        assert_false(ledger_can_cut(l));
        assert_int_equal(tail >= 0, k - n_stopped >= 5);
        if (tail >= 0 && s.n_tok_max > tail && rand() % 2) {
            ledger_stop(l, item);
            n_stopped++;
            assert_int_equal(ledger_return(l, item, 0, &s), LEDGER_KNOWN);    // another worker had it as well
        } else {
            assert_int_equal(ledger_return(l, item, 0, &s), LEDGER_NEW);
        }
        changed(log, ledger_find(l, item));
    }
    if (rand() % 2) {
        struct ledger_state state;
        struct error err = { 0 };
        ledger_state(l, &state);
        ledger_free(l);
        l = ledger_make(1);
        for (int64_t k = 0; k < log->n; k++)
            assert_true(ledger_restore_item(l, &log->item[k], &err));
        ledger_restore_state(l, &state);
    }
    for (int round = 0; round < 2; round++) {    // the second after the rollback
        assert_true(ledger_can_cut(l));
        assert_int_equal(ledger_cut(l, &cut, changed, log), 1);
        assert_int_equal(ledger_batch(l, 1, in, 8), 5);
        for (int64_t k = 0; k < 5; k++)
            assert_int_equal(in[k]->item, 8 + shortest[k]);
        assert_int_equal(ledger_batch_seen(l, 1, in, 8), 5);    // metrics do not depend on what came too late
        ledger_counts(l, 8, &n);
        assert_int_equal(n.stopped, 6);
        while (ledger_open(l, 8, &first))
            ;
        ledger_rewind(l, 1, changed, log);
    }
    ledger_free(l);
    free(log);
    return n_stopped;
}

static void of_more_items_than_needed_the_shortest_count_whatever_comes_first(UNUSED void **state)
{
    int64_t n_stopped = 0;
    for (unsigned noise = 0; noise < 200; noise++)
        n_stopped += tail_play(noise);
    assert_true(n_stopped > 50);
}

static void an_item_counts_as_given_to_one_worker_until_another_has_it(UNUSED void **state)
{
    struct ledger *l = ledger_make(0);
    struct group_summary s = { 0 };
    int64_t first;
    assert_true(ledger_open(l, 4, &first));
    assert_false(ledger_was_given(l, 0, 0));    // worker 0 is nobody
    assert_int_equal(ledger_lease(l, 0, 3)->item, 0);
    assert_int_equal(ledger_lease(l, 0, 4)->item, 1);
    assert_true(ledger_was_given(l, 0, 3) && ledger_was_given(l, 1, 4));
    assert_false(ledger_was_given(l, 0, 4) || ledger_was_given(l, 1, 3) || ledger_was_given(l, 2, 3));
    ledger_lease_end(l, 3);    // it was silent: what it has may still come
    assert_true(ledger_was_given(l, 0, 3));
    assert_int_equal(ledger_lease(l, 0, 4)->item, 0);
    assert_true(ledger_was_given(l, 0, 4));
    assert_false(ledger_was_given(l, 0, 3));
    ledger_worker_forget(l, 4);    // it is gone, and a new worker has its number
    assert_false(ledger_was_given(l, 0, 4) || ledger_was_given(l, 1, 4));
    assert_int_equal(ledger_lease(l, 0, 4)->item, 0);
    assert_true(ledger_was_given(l, 0, 4));
    assert_false(ledger_was_given(l, 1, 4));
    assert_int_equal(ledger_return(l, 0, 0, &s), LEDGER_NEW);
    assert_false(ledger_was_given(l, 0, 4));     // it is not out any more
    assert_false(ledger_was_given(l, 99, 4));    // not opened
    ledger_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_item_counts_as_given_to_one_worker_until_another_has_it),
        cmocka_unit_test(batches_do_not_depend_on_arrival_or_kills),
        cmocka_unit_test(solved_prompts_are_not_opened_again),
        cmocka_unit_test(items_have_rows_of_the_level_and_the_groups_of_a_cut_count_once),
        cmocka_unit_test(without_a_filter_batches_are_the_items_in_order_and_ages_keep_their_bound),
        cmocka_unit_test(an_episode_shows_every_prompt_once_and_the_next_in_another_order),
        cmocka_unit_test(a_group_of_other_weights_or_of_no_item_is_not_taken),
        cmocka_unit_test(a_ledger_that_begins_at_a_step_goes_on_from_there),
        cmocka_unit_test(a_prompt_in_quarantine_gives_its_places_to_others),
        cmocka_unit_test(free_running_batches_form_by_arrival_and_leave_out_what_is_too_old),
        cmocka_unit_test(the_last_part_of_the_data_that_fills_no_rollout_step_is_not_opened),
        cmocka_unit_test(what_later_weights_have_made_is_made_again_after_a_rollback_and_ends_alike),
        cmocka_unit_test(free_running_a_rollback_issues_what_later_weights_have_sampled_again),
        cmocka_unit_test(free_running_a_lost_group_of_a_batch_that_a_rollback_undoes_is_of_no_batch),
        cmocka_unit_test(a_lost_group_is_sampled_again_for_its_batch_and_only_if_it_is_still_needed),
        cmocka_unit_test(the_work_of_a_step_does_not_grow_with_the_groups_that_were_filtered),
        cmocka_unit_test(the_work_of_a_step_does_not_grow_with_the_steps_that_were_trained),
        cmocka_unit_test(a_rollout_step_is_cut_without_the_items_that_were_dropped),
        cmocka_unit_test(of_more_items_than_needed_the_shortest_count_whatever_comes_first),
        cmocka_unit_test(what_gave_nothing_is_let_go_and_the_run_can_still_return),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
