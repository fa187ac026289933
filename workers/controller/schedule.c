#include "workers/controller/schedule.h"
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "protocol/record/group_msg.h"
#include "workers/controller/controller.h"

/* ---- from the journal ---- */

struct restore {
    struct controller *c;
    struct error *err;
    bool ok;
    struct ledger *ledger;    // that is being built
    int64_t n_item;           // that the run has opened
    int64_t n_lost;           // groups whose records are damaged or missing
    struct error lost;        // the first of them
};

/* What the filters and metrics need of a group, read from its record again. One that is damaged or missing counts as lost. */
static bool summary_restore(struct restore *r, const struct journal_item *row, struct ledger_item *item)
{
    struct buf record = BUF_INIT;
    struct msg_in in;
    bool ok = rollout_file_read(r->c->rollout_path, row->file_offset, row->file_bytes, &record, r->err)
              && msg_read_request(&in, record.data, record.len, r->err);
    if (ok) {
        ok = group_summary_read(in.root, &item->summary, r->err);
        msg_in_release(&in);
    }
    buf_release(&record);
    item->summary.file_offset = row->file_offset;
    item->summary.file_bytes = row->file_bytes;
    if (ok)
        return true;
    if (r->err->code != ERR_DATA) {
        error_wrap(r->err, "while reading group %" PRId64 " again", row->item);
        return false;
    }
    if (r->n_lost++ == 0)
        r->lost = *r->err;
    item->summary = (struct group_summary){ 0 };
    item->lost = true;
    return true;
}

/* The journal keeps fate and place. */
static bool item_restore(void *arg, const struct journal_item *row)
{
    struct restore *r = arg;
    if (row->item >= r->n_item)    // opened before a rollback, and not again yet
        return true;
    static const enum ledger_fate fates[] = {
        [ITEM_ISSUED] = LEDGER_ISSUED, [ITEM_RETURNED] = LEDGER_RETURNED, [ITEM_FILTERED] = LEDGER_FILTERED,
        [ITEM_STALE] = LEDGER_STALE,   [ITEM_STOPPED] = LEDGER_STOPPED,   [ITEM_TRAINED] = LEDGER_TRAINED
    };
    struct ledger_item item = { .item = row->item,
                                .row = row->prompt_row,
                                .rollout_step = row->rollout_step,
                                .version = row->weight_version,
                                .batch = row->step > 0 ? row->step - 1 : -1 };
    if ((size_t)row->fate >= ARRAY_SIZE(fates)) {
        r->ok = error_set(r->err, ERR_DATA, "the journal gives item %" PRId64 " the unknown fate %d", row->item, (int)row->fate);
        return false;
    }
    item.fate = fates[row->fate];
    bool no_group = item.fate == LEDGER_ISSUED || (item.fate == LEDGER_STOPPED && row->file_offset < 0);
    r->ok = (no_group || summary_restore(r, row, &item)) && ledger_restore_item(r->ledger, &item, r->err);
    return r->ok;
}

/* The ledger's cursors as state_save has written them; *first: the first item that was held. */
static bool state_read(const struct buf *text, struct ledger_state *out, int64_t *first, struct error *err)
{
    json_error_t jerr;
    json_t *o = json_text_read(text->data, text->len, 0, &jerr), *after = json_object_get(o, "after");
    bool ok = o && json_array_size(after) == ARRAY_SIZE(out->after);
    if (ok) {
        out->n_cut = json_integer_value(json_object_get(o, "n_cut"));
        out->n_batch = json_integer_value(json_object_get(o, "n_batch"));
        out->n_open = json_integer_value(json_object_get(o, "n_open"));
        out->n_item = json_integer_value(json_object_get(o, "n_item"));
        out->floor = json_integer_value(json_object_get(o, "floor"));
        *first = json_integer_value(json_object_get(o, "first"));
        for (size_t i = 0; i < ARRAY_SIZE(out->after); i++)
            out->after[i] = json_integer_value(json_array_get(after, i));
    }
    json_decref(o);
    return ok || error_set(err, ERR_DATA, "the journal's ledger cannot be read");
}

/* What the groups that are cut have led to: the rows that no item gets any more, in quarantine or solved, and the level. */
static bool learned_load(struct controller *c, struct ledger *l, struct error *err)
{
    struct ledger_state s;
    ledger_state(l, &s);
    ledger_allow_all(l);
    return quarantine_load(c, l, err) && (c->config.no_resampling_pass_rate == 0 || solved_load(c, l, s.n_cut, err))
           && (!levels_on(c) || levels_load(c, s.n_cut, err));
}

/* The ledger as the journal has it. all: with every item the run has had, else with those that it held. NULL: see r->err. */
static struct ledger *ledger_load(struct controller *c, int64_t n_row, bool all, struct restore *r)
{
    bool found, ok = false;
    struct buf text = BUF_INIT;
    struct ledger_state s = { 0 };
    int64_t first = 0;
    struct ledger_rules rules = { .seed = c->config.seed,
                                  .n_row = n_row,
                                  .shuffle = c->config.shuffle,
                                  .n_behind = c->config.n_behind,
                                  .free = c->config.free_running,
                                  .max_age = c->config.max_staleness,
                                  .posted = run_config_posted(&c->config) };
    struct ledger *l = r->ledger = ledger_new(&rules, r->err);
    if (!l)
        return NULL;
    TRY(journal_value_get(c->journal, "ledger", &text, &found, r->err));
    if (found) {
        TRY(state_read(&text, &s, &first, r->err));
        if (all) {
            first = c->rebuild_item;
            s.floor = c->rebuild_step;
        }
        r->n_item = s.n_item;
        TRY(journal_items_read(c->journal, first, item_restore, r, r->err) && r->ok);
        ledger_restore_state(l, &s);
    } else if (c->rebuild_step > 0) {
        ledger_begin_at(l, c->rebuild_step, c->rebuild_item / open_n(c, &c->now), c->rebuild_item);
    }
    TRY(learned_load(c, l, r->err));
    ok = true;
out:
    buf_release(&text);
    if (!ok)
        ledger_free(l);
    return ok ? l : NULL;
}

bool ledger_prepare(struct controller *c, int64_t n_row, struct error *err)
{
    struct restore r = { .c = c, .err = err, .ok = true };
    if (!(c->ledger = ledger_load(c, n_row, false, &r)))
        return false;
    c->n_row = n_row;
    return number_put(c, "n_row", n_row, err) && lines_load(c, err) && levels_rows_check(c, err) && length_set(c, err)
           && (r.n_lost == 0 || groups_lost(c, r.n_lost, &r.lost, err)) && ledger_advance(c, err);
}

bool ledger_reload(struct controller *c, struct error *err)
{
    struct restore r = { .c = c, .err = err, .ok = true };
    struct ledger *all = ledger_load(c, c->n_row, true, &r);
    if (!all)
        return false;
    ledger_free(c->ledger);
    c->ledger = all;
    if (!length_set(c, err))
        return false;
    log_info("all items are held again, %" PRId64 " of their groups cannot be read", r.n_lost);
    return state_save(c, err);
}

/* ---- how far it goes ---- */

int64_t open_n(const struct controller *c, const struct run_config *at)
{
    return c->config.free_running ? at->train_batch_size * c->config.num_trainers : run_config_opened(at);
}

bool length_set(struct controller *c, struct error *err)
{
    struct run_plan plan;
    struct ledger_counts n;
    c->max_steps = c->now.max_steps;
    if (!c->ledger)
        return true;
    if (c->max_steps > 0) {
        ledger_item_max_set(c->ledger, INT64_MAX / 2);
        return true;
    }
    if (!run_plan_make(&plan, &c->config, c->n_row, err))
        return false;
    int64_t n_item = plan.rollout_steps * plan.prompts_opened;
    ledger_item_max_set(c->ledger, n_item);
    ledger_counts(c->ledger, 1, &n);
    /* as many as the data still give in batches of today's size; the data decide, filtered groups make it fewer */
    int64_t n_left = MAX(n_item - n.n_item, (int64_t)0) + n.unbatched;
    if (tails_need(c, &c->now) > 0)    // of each rollout step that is left only a part counts
        n_left = n_left / plan.prompts_opened * plan.prompts_per_rollout_step + n_left % plan.prompts_opened;
    c->max_steps = n.n_batch + n_left / (c->now.train_batch_size * c->config.num_trainers);
    return true;
}

/* ---- into the journal ---- */

bool state_save(struct controller *c, struct error *err)
{
    struct ledger_state s;
    ledger_state(c->ledger, &s);
    json_t *after = json_array();
    for (size_t i = 0; i < ARRAY_SIZE(s.after); i++)
        json_array_append_new(after, json_integer(s.after[i]));
    json_t *o = json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:o}", "floor", (json_int_t)s.floor, "n_cut", (json_int_t)s.n_cut, "n_batch",
                          (json_int_t)s.n_batch, "n_open", (json_int_t)s.n_open, "n_item", (json_int_t)s.n_item, "first",
                          (json_int_t)ledger_first(c->ledger), "after", after);
    char *text = o ? json_text_dump(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (!text)
        return error_set(err, ERR_NO_MEMORY, "no memory for the ledger's state");
    bool ok = transaction(c, err) && journal_value_put(c->journal, "ledger", text, strlen(text), err);
    free(text);
    return ok;
}

struct put {
    struct controller *c;
    struct error *err;
    bool ok;
    struct curriculum level;    // as the rollout step that is being cut makes it
};

static void item_put(void *ctx, const struct ledger_item *i)
{
    struct put *p = ctx;
    static const enum item_fate fates[] = {
        [LEDGER_ISSUED] = ITEM_ISSUED,     [LEDGER_LEASED] = ITEM_ISSUED, [LEDGER_RETURNED] = ITEM_RETURNED,
        [LEDGER_FILTERED] = ITEM_FILTERED, [LEDGER_STALE] = ITEM_STALE,   [LEDGER_STOPPED] = ITEM_STOPPED,
        [LEDGER_TRAINED] = ITEM_TRAINED
    };
    struct journal_item row = {
        .item = i->item,
        .prompt_row = i->row,
        .rollout_step = i->rollout_step,
        .weight_version = i->version,
        .fate = fates[i->fate],
        .step = i->batch + 1,
        .reward_mean = i->summary.n_scored > 0 ? i->summary.reward_sum / (double)i->summary.n_scored : NAN,
        .file_offset = i->summary.file_bytes > 0 ? i->summary.file_offset : -1,
        .file_bytes = i->summary.file_bytes > 0 ? i->summary.file_bytes : -1,
    };
    if (i->fate == LEDGER_STOPPED && i->summary.file_bytes > 0)
        step_metrics_stopped(&p->c->metrics, i->summary.n_tok);
    if (i->fate == LEDGER_STOPPED)    // when it came is chance, so nothing may follow from it
        p->ok = p->ok && rubrics_forget(p->c, i->item, i->item, p->err);
    p->ok = p->ok && transaction(p->c, p->err) && journal_item_put(p->c->journal, &row, p->err);
}

bool item_write(struct controller *c, const struct ledger_item *i, struct error *err)
{
    struct put p = { .c = c, .err = err, .ok = true };
    item_put(&p, i);
    if (p.ok && i->summary.file_bytes > 0 && i->fate == LEDGER_RETURNED && i->batch < 0)
        p.ok = number_put(c, "rollout_bytes", i->summary.file_offset + i->summary.file_bytes, err);
    return p.ok;
}

/* Open the next rollout step if it may be; at is scratch. */
static bool open_next(struct controller *c, struct run_config *at, struct put *p)
{
    int64_t first;
    struct ledger_state s;
    ledger_state(c->ledger, &s);
    config_at(c, s.n_batch, s.n_open, at);
    int64_t n = open_n(c, at);
    if (levels_on(c))
        ledger_level(c->ledger, levels_rows(c), levels_at(c, s.n_open));
    if ((c->max_steps > 0 && s.n_batch >= c->max_steps) || !ledger_open(c->ledger, n, &first))
        return false;
    for (int64_t i = first; i < first + n; i++)
        item_put(p, ledger_find(c->ledger, i));
    return true;
}

static void group_counts(void *ctx, const struct ledger_item *i)
{
    struct put *p = ctx;
    curriculum_add(&p->level, levels_of(p->c, i), &i->summary);
}

static void row_solved(void *ctx, int64_t row)
{
    struct put *p = ctx;
    struct ledger_state s;
    ledger_state(p->c->ledger, &s);
    p->ok = p->ok && solved_add(p->c, s.n_cut, row, p->err);
}

/* Cut the oldest open rollout step, if it is all there; free-running: form the batch that the trainer waits for. */
static bool cut_next(struct controller *c, struct run_config *at, struct put *p)
{
    struct ledger_state s;
    ledger_state(c->ledger, &s);
    config_at(c, s.n_batch, s.n_cut, at);
    struct ledger_cut cut = { .batch_size = at->train_batch_size * c->config.num_trainers,
                              .n_need = tails_need(c, at),
                              .dynamic = at->dynamic_batching,
                              .filter = run_config_filter(at),
                              .pass_rate = c->config.no_resampling_pass_rate,
                              .solved = row_solved,
                              .counts = levels_on(c) ? group_counts : NULL };
    if (c->config.free_running)
        return s.n_batch == c->step && s.n_batch < c->max_steps && ledger_form(c->ledger, &cut, item_put, p);
    if (!ledger_can_cut(c->ledger))
        return false;
    int64_t n_solved = c->solved.n;
    p->level = levels_now(c);
    ledger_cut(c->ledger, &cut, item_put, p);
    p->ok = p->ok && (c->solved.n == n_solved || solved_save(c, p->err));
    p->ok = p->ok && (!levels_on(c) || levels_cut(c, s.n_cut, &p->level, at, p->err));
    return true;
}

bool ledger_advance(struct controller *c, struct error *err)
{
    struct run_config *at = malloc(sizeof *at);
    struct put p = { .c = c, .err = err, .ok = true };
    bool cut, opened, moved = false, free_running = c->config.free_running;
    if (!at)
        return error_set(err, ERR_NO_MEMORY, "no memory for settings");
    do {    // in logical time all that can be opened is, before anything is cut; else what leaves makes room first
        cut = free_running && cut_next(c, at, &p);
        opened = open_next(c, at, &p);
        cut = cut || (!free_running && !opened && cut_next(c, at, &p));
        moved = moved || cut || opened;
    } while (cut || opened);
    free(at);
    if (moved)
        ledger_let_go(c->ledger);
    return p.ok && (!moved || state_save(c, err));
}

bool ledger_step_done(struct controller *c, int64_t batch, struct error *err)
{
    struct put p = { .c = c, .err = err, .ok = true };
    ledger_trained(c->ledger, batch, item_put, &p);
    return p.ok;
}

bool ledger_back(struct controller *c, int64_t step, struct error *err)
{
    struct put p = { .c = c, .err = err, .ok = true };
    ledger_return_to(c->ledger, step, item_put, &p);
    return p.ok;
}

bool ledger_undo(struct controller *c, int64_t step, struct error *err)
{
    struct put p = { .c = c, .err = err, .ok = true };
    if (!ledger_holds(c->ledger, step) && !ledger_reload(c, err))
        return false;
    ledger_rewind(c->ledger, step, item_put, &p);
    struct ledger_state s;
    ledger_state(c->ledger, &s);
    p.ok = p.ok && rubrics_forget(c, s.n_item, INT64_MAX, err);
    return p.ok && learned_load(c, c->ledger, err) && state_save(c, err);
}

bool groups_lost(struct controller *c, int64_t n, const struct error *why, struct error *err)
{
    struct put p = { .c = c, .err = err, .ok = true };
    char text[640], path[4096];
    int64_t oldest, n_again = ledger_reissue(c->ledger, &oldest, item_put, &p);
    if (!p.ok)
        return false;
    snprintf(text, sizeof text, "%" PRId64 " group%s cannot be read again, and what is still needed of that is sampled again: %.400s", n,
             n == 1 ? "" : "s", why->text);
    event_add(c, "alert", "controller", text, "");
    /* Weights older than the trainer's may be gone, and several trainers may have begun on a batch: they begin again together. */
    bool back = n_again > 0 && (c->config.num_trainers > 1 || (!c->config.free_running && oldest < c->step));
    (void)(back && trainers_return(c, "groups are to be sampled again", path));    // it fails the run itself
    return true;
}
