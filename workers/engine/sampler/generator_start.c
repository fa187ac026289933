/* generator_start.c - samples become rows: those of new items, and those that were put back */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/ops.h"
#include "protocol/base/clock.h"
#include "workers/engine/sampler/generator_parts.h"
#include "workers/engine/pass/pass.h"

/* Sequences that are run in one pass. */
struct prefill {
    int64_t n, n_tok;
    bool any_known;      // the keys and values of some beginnings are there already
    bool any_watched;    // all logits of some prompt are wanted
};

/* ---- rows ---- */
/* Add a row for a sample of e that has no tokens; its n_page pages are in the table already, and counted. It takes the slot of its
 * state. */
static struct row *row_add(struct generator *g, struct entry *e, int32_t sample, int64_t n_page, int32_t state)
{
    struct row *r = &g->row[g->n_run++];
    r->entry = e;
    r->sample = sample;
    r->n_tok = 0;
    r->n_ahead = 0;
    r->place[0] = r->place[1] = -1;
    r->n_page = n_page;
    r->state = state;
    g->n_promised += sample_promise(g, &e->spec, n_page);
    g->table_changed = true;
    return r;
}

/* How many of e's next n_sample samples need a copy of the prompt's last page? Its last sample takes that page over. */
static int64_t tails_copied(const struct generator *g, const struct entry *e, int64_t n_sample)
{
    return e->spec.n_prompt % g->pages.page_tok != 0 ? MIN(n_sample, (int64_t)e->spec.n_sample - 1 - e->n_admitted) : 0;
}

/* The slot of e's next sample: a copy of the prompt's, which is noted for rows_start, or for the last sample that one itself. */
static int32_t row_state(struct generator *g, struct entry *e, bool last)
{
    if (last || g->states.n_page == 0)
        return e->state;
    int32_t own = state_take(g);
    g->state_dst[g->n_state_copy] = own;
    g->state_src[g->n_state_copy++] = e->state;
    return own;
}

/* Admit e's next sample as the last row, with the pages of its prompt; false when there is no room. A page to be copied from the prompt
 * is noted for rows_start. */
static bool row_admit(struct generator *g, struct entry *e)
{
    bool copies = tails_copied(g, e, 1) > 0, last = e->n_admitted == e->spec.n_sample - 1;
    if (g->n_run == g->config.max_seq || !sample_fits(g, &e->spec, copies, e->n_page))
        return false;
    int32_t *table = row_table(g, g->n_run);
    int64_t n_shared = copies ? e->n_full : e->n_page;
    memcpy(table, e->page, (size_t)n_shared * sizeof *table);
    pagedkv_share(&g->pages, e->page, n_shared);
    if (copies) {
        BUG_IF(!pagedkv_take(&g->pages, table + n_shared, 1), "no room for the copy of a prompt's last page");
        g->copy_dst[g->n_copy] = table[n_shared];
        g->copy_src[g->n_copy++] = e->page[n_shared];
    }
    row_add(g, e, e->n_admitted++, e->n_page, row_state(g, e, last));
    if (last) {
        pagedkv_drop(&g->pages, e->page, e->n_page);    // its state has a new owner
        e->held = false;
    }
    return true;
}

/* Draw the next tokens of the new rows row0 .. n_run - 1; from[] says which row of table, of weights of this version, each
 * starts from. Copies the prompt pages they need. */
static bool rows_start(struct generator *g, int64_t row0, const float *table, int64_t n_table, int64_t version, struct error *err)
{
    int64_t n = g->n_run - row0, n_copy = g->n_copy, n_state = g->n_state_copy;
    g->n_copy = g->n_state_copy = 0;
    if (n == 0)
        return true;
    for (int64_t i = 0; i < n; i++)
        sample_fill(g, i, &g->row[row0 + i], 0);
    if (!step_send(g, err))
        return false;
    if (n_copy && !kv_pool_copy(g->kv, mirror_dev(&g->step, g->copy_dst), mirror_dev(&g->step, g->copy_src), n_copy, err))
        return false;
    if (n_state && !kv_pool_states_copy(g->kv, g->state_dst, g->state_src, n_state, err))
        return false;
    return OP(g->dev, err, rows_gather, .y = g->logits, .table = table, .row = mirror_dev(&g->step, g->from), .n = n, .n_row = n_table,
              .d = g->vocab, .dtype = DT_F32)
           && sample_run(g, g->logits, n, err) && flight_start(g, row0, n, version, err) && flights_collect(g, err);
}

/* ---- prompts ---- */
/* Add the sequence of an item's prompt and n_own tokens of a sample to p; n_page pages are there for it, and the first n_known tokens have
 * their keys and values in them. state: the slot for its state. */
static void prefill_add(struct generator *g, struct prefill *p, const struct generator_item *spec, const int32_t *own, int64_t n_own,
                        int64_t n_known, const int32_t *page, int64_t n_page, int32_t state)
{
    int32_t *to = g->prefill_token + p->n_tok;
    for (int64_t i = n_known; i < spec->n_prompt + n_own; i++)
        *to++ = i < spec->n_prompt ? spec->prompt[i] : own[i - spec->n_prompt];
    memcpy(g->prefill_table + p->n * g->max_page, page, (size_t)n_page * sizeof *page);
    g->prefill_cu[p->n] = (int32_t)p->n_tok;
    g->prefill_state[p->n] = state;
    g->prefill_start[p->n++] = (int32_t)n_known;
    p->n_tok = to - g->prefill_token;
    int64_t n_all = spec->n_prompt + n_own;
    g->stats.n_run_tok += n_all - n_known;
    g->stats.n_seen_tok += (n_all * (n_all + 1) - n_known * (n_known + 1)) / 2;
    p->any_known |= n_known > 0;
    p->any_watched |= spec->keep_prompt;
}

/* Run them; their last logits come into prefill_logits. */
static bool prefill_run(struct generator *g, const struct prefill *p, struct error *err)
{
    g->prefill_cu[p->n] = (int32_t)p->n_tok;
    struct model_batch batch = {
        .n_seq = p->n, .n_tok = p->n_tok, .token = g->prefill_token, .cu_tok = g->prefill_cu, .state = g->prefill_state
    };
    return model_prefill_after(g->run, &batch, p->any_known ? g->prefill_start : NULL, g->prefill_past, g->kv, g->prefill_table,
                               g->max_page, g->prefill_logits, !p->any_watched, err);
}

/* Admit samples of the started item that had no room before. */
static bool partial_admit(struct generator *g, struct error *err)
{
    int64_t row0 = g->n_run;
    struct entry *e = g->partial;
    while (e->n_admitted < e->spec.n_sample && row_admit(g, e))
        g->from[g->n_run - 1 - row0] = 0;
    if (e->n_admitted == e->spec.n_sample)
        g->partial = NULL;
    return rows_start(g, row0, g->saved, 1, g->saved_version, err);
}

/* The item whose prompt is to be run next: a started one that has lost its pages, or the first waiting one. NULL: none. */
static struct entry *prompt_next(const struct generator *g)
{
    return g->partial ? g->partial : g->waiting.first;
}

/* The entry's prompt is about to be run: it is a started one from now on. */
static void entry_start(struct generator *g, struct entry *e, int64_t n_known, int64_t now)
{
    if (e == g->partial) {    // for the second time
        g->partial = NULL;
        return;
    }
    e->epoch = g->epoch;
    e->order = g->next_order++;
    e->start_ns = now;
    e->n_cached = n_known;
    g->stats.n_cached_tok += n_known;
    entries_remove(&g->waiting, e);
    entries_push(&g->running, e);
    drafts_learn_prompt(g, e);
}

/* Take as many items as have room, with the pages of their prompts, into batch and p. */
static void batch_collect(struct generator *g, struct prefill *p, int64_t now)
{
    int64_t n_row = g->n_run, page_tok = g->pages.page_tok;
    int64_t promised = g->n_promised;    // pages that the running samples and those of earlier items will take
    for (struct entry *e; (e = prompt_next(g)) && p->n < PREFILL_SEQ_MAX && n_row < g->config.max_seq;) {
        int64_t n_hit = 0;    // at least one token is run: its logits are needed
        if (g->cache.entry && !e->spec.keep_prompt)
            n_hit = prefix_cache_take(&g->cache, e->spec.cache_salt, e->spec.prompt, e->spec.n_prompt - 1, e->page);
        e->n_page = pagedkv_pages(&g->pages, e->spec.n_prompt);
        e->n_full = e->spec.n_prompt / page_tok;
        int64_t more = (tails_copied(g, e, 1) > 0) + (n_row > 0 ? sample_promise(g, &e->spec, e->n_page) + promised : 0);
        if ((p->n > 0 && p->n_tok + e->spec.n_prompt - n_hit * page_tok > g->config.prefill_tok)
            || !room_make(g, e->n_page - n_hit + more)) {
            pagedkv_drop(&g->pages, e->page, n_hit);
            break;
        }
        e->held = pagedkv_take(&g->pages, e->page + n_hit, e->n_page - n_hit);
        e->state = state_take(g);
        entry_start(g, e, n_hit * page_tok, now);
        int64_t n_sample = MIN((int64_t)e->spec.n_sample - e->n_admitted, g->config.max_seq - n_row);
        n_row += n_sample;
        promised += tails_copied(g, e, n_sample) + n_sample * sample_promise(g, &e->spec, e->n_page);
        g->batch[p->n] = e;
        prefill_add(g, p, &e->spec, NULL, 0, n_hit * page_tok, e->page, e->n_page, e->state);
    }
}

/* model_head_look: row i of the prefill has these logits. */
static void prompt_row_look(void *ctx, int64_t i, const float *logits)
{
    struct generator *g = ctx;
    int64_t s = 0;
    while (i >= g->prefill_cu[s + 1])
        s++;
    const struct entry *e = g->batch[s];
    int64_t at = i - g->prefill_cu[s] + 1;
    struct read_token t = {
        .prompt_row = e->spec.prompt_row, .at = at, .id = e->spec.prompt[at], .logp = g->read_logp[i], .logits = logits
    };
    g->config.read_watch(g->config.watch_ctx, &t);
}

/* Show the prompts that are watched, of the n that have just been run. */
static bool prompts_show(struct generator *g, int64_t n, struct error *err)
{
    bool any = false;
    for (int64_t s = 0; s < n && g->read_target; s++)
        any |= g->batch[s]->spec.keep_prompt && g->batch[s]->spec.n_prompt > 1;
    if (!any)
        return true;
    for (int64_t s = 0; s < n; s++) {
        const struct generator_item *spec = &g->batch[s]->spec;
        for (int64_t i = g->prefill_cu[s]; i < g->prefill_cu[s + 1]; i++)
            g->read_target[i] = spec->keep_prompt && i + 1 < g->prefill_cu[s + 1] ? spec->prompt[i - g->prefill_cu[s] + 1] : -1;
    }
    struct token_loss loss = { .target = g->read_target, .temperature = g->read_temperature, .logp = g->read_logp };
    return model_head_look(g->run, &loss, g->logits_host, prompt_row_look, g, err);
}

/* Run the prompts of items that have room, admit their samples and draw their first tokens. */
static bool prompts_start(struct generator *g, struct error *err)
{
    int64_t row0 = g->n_run, now = clock_ns();
    struct prefill p = { 0 };
    batch_collect(g, &p, now);
    if (p.n == 0)
        return true;
    if (!prefill_run(g, &p, err) || !prompts_show(g, p.n, err))
        return false;
    for (int64_t i = 0; i < p.n && g->cache.entry; i++)
        prefix_cache_add(&g->cache, g->batch[i]->spec.cache_salt, g->batch[i]->spec.prompt, g->batch[i]->spec.n_prompt, g->batch[i]->page);
    for (int64_t i = 0; i < p.n; i++) {
        struct entry *e = g->batch[i];
        while (e->n_admitted < e->spec.n_sample && row_admit(g, e))
            g->from[g->n_run - 1 - row0] = (int32_t)i;
        if (e->n_admitted == e->spec.n_sample)
            continue;
        BUG_IF(i != p.n - 1, "item %" PRId64 " of a prefill has samples left but is not the last", e->spec.item);
        g->partial = e;
        g->saved_version = g->version;
        if (!mem_copy(g->dev, g->saved, g->prefill_logits + i * g->vocab, (size_t)g->vocab * sizeof(float), COPY_D2D, err))
            return false;
    }
    bool ok = rows_start(g, row0, g->prefill_logits, p.n, g->version, err);
    g->stats.prefill_s += (double)(clock_ns() - now) * 1e-9;
    return ok;
}

/* ---- samples that were put back ---- */
/* The prompt's full pages that a sample of e may share with the first n_row rows or with e; NULL: there are none. */
static const int32_t *prompt_pages(const struct generator *g, const struct entry *e, int64_t n_row)
{
    if (e->held)
        return e->page;
    for (int64_t i = 0; i < n_row; i++)
        if (g->row[i].entry == e)
            return row_table(g, i);
    return NULL;
}

/* Find what is known of a sequence that continues e's prompt by own: its pages into table, each held once more. Returns how many. With
 * states nothing is: pages alone do not say what the state after them was. */
static int64_t known_pages(struct generator *g, const struct entry *e, const struct ended *own, int64_t n_row, int32_t *table)
{
    int64_t n_tok = e->spec.n_prompt + own->n_tok - 1;    // at least one token is run: its logits are needed
    const int32_t *page = prompt_pages(g, e, n_row);
    if (g->states.n_page > 0)
        return 0;
    if (!page && g->cache.entry) {
        memcpy(g->cache_token, e->spec.prompt, (size_t)e->spec.n_prompt * sizeof(int32_t));
        memcpy(g->cache_token + e->spec.n_prompt, own->token, (size_t)own->n_tok * sizeof(int32_t));
        return prefix_cache_take(&g->cache, e->spec.cache_salt, g->cache_token, n_tok, table);
    }
    int64_t n = page ? MIN(e->n_full, n_tok / g->pages.page_tok) : 0;
    if (n > 0)
        memcpy(table, page, (size_t)n * sizeof *table);
    pagedkv_share(&g->pages, table, n);
    return n;
}

/* Give a sample that was put back a row again, and add its sequence to p; false when there is no room. Rows from row0 on are not run
 * yet. */
static bool row_resume(struct generator *g, struct entry *e, int32_t sample, int64_t row0, struct prefill *p)
{
    struct ended *d = &e->ended[sample];
    int32_t *table = row_table(g, g->n_run);
    int64_t n_tok = e->spec.n_prompt + d->n_tok, n_page = pagedkv_pages(&g->pages, n_tok), n_known = known_pages(g, e, d, row0, table);
    int64_t known_tok = n_known * g->pages.page_tok;
    bool fits = p->n == 0 || p->n_tok + n_tok - known_tok <= g->config.prefill_tok;
    fits = fits && sample_fits(g, &e->spec, n_page - n_known, n_page);
    if (!fits && g->n_run == 0 && g->partial) {    // nothing else will free pages
        entry_pages_drop(g, g->partial);
        fits = sample_fits(g, &e->spec, n_page - n_known, n_page);
    }
    BUG_IF(!fits && g->n_run == 0, "%" PRId64 " pages have no room for a sample that is alone", g->pages.n_page);
    if (!fits) {
        pagedkv_drop(&g->pages, table, n_known);
        return false;
    }
    BUG_IF(!pagedkv_take(&g->pages, table + n_known, n_page - n_known), "no room for %" PRId64 " pages of a sample", n_page - n_known);
    struct row *r = row_add(g, e, sample, n_page, state_take(g));
    prefill_add(g, p, &e->spec, d->token, d->n_tok, known_tok, table, n_page, r->state);
    r->n_tok = d->n_tok;
    memcpy(r->token, d->token, (size_t)d->n_tok * sizeof *r->token);
    memcpy(r->logp, d->logp, (size_t)d->n_tok * sizeof *r->logp);
    memcpy(r->entropy, d->entropy, (size_t)d->n_tok * sizeof *r->entropy);
    memcpy(r->newer, d->newer, (size_t)d->n_tok * sizeof *r->newer);
    free(d->token);
    *d = (struct ended){ 0 };
    e->n_back--;
    g->n_back--;
    g->stats.n_again_tok += n_tok - known_tok;
    return true;
}

/* Samples that were put back go on, the oldest first: compute their keys and values again and draw the next tokens. */
static bool samples_resume(struct generator *g, struct error *err)
{
    int64_t row0 = g->n_run, now = clock_ns();
    int32_t sample;
    struct prefill p = { 0 };
    for (struct entry *e; p.n < PREFILL_SEQ_MAX && g->n_run < g->config.max_seq && (e = back_oldest(g, &sample));) {
        if (!row_resume(g, e, sample, row0, &p))
            break;
        g->from[p.n - 1] = (int32_t)(p.n - 1);
    }
    if (p.n == 0)
        return true;
    bool ok = prefill_run(g, &p, err) && rows_start(g, row0, g->prefill_logits, p.n, g->version, err);
    g->stats.prefill_s += (double)(clock_ns() - now) * 1e-9;
    return ok;
}

/* ---- whatever is next ---- */
/* Is there room for a sample that was put back, for one of the started item, or for the first waiting one? Counts all cached pages as
 * free, so that the answer may be yes too often. */
static bool start_possible(const struct generator *g)
{
    int32_t sample;
    const struct entry *e = back_oldest(g, &sample);
    bool is_back = e != NULL;
    if (!e && !(e = prompt_next(g)))
        return false;
    if (g->n_run == 0 || g->n_run == g->config.max_seq)
        return g->n_run == 0;
    int64_t n_page = pagedkv_pages(&g->pages, e->spec.n_prompt), n_take = n_page;
    if (is_back) {
        n_page = pagedkv_pages(&g->pages, e->spec.n_prompt + e->ended[sample].n_tok);
        n_take = n_page - (prompt_pages(g, e, g->n_run) && g->states.n_page == 0 ? e->n_full : 0);
    } else if (e->held) {
        n_take = 0;
    }
    return n_take + (!is_back && tails_copied(g, e, 1) > 0) + sample_promise(g, &e->spec, n_page) + rows_promised(g)
           <= g->pages.n_free + g->cache.n_entry;
}

/* Run the prompts of one prefill, or what else is next. */
static bool prefill_start(struct generator *g, struct error *err)
{
    g->n_promised = rows_promised(g);
    if (g->n_back > 0 && !samples_resume(g, err))
        return false;
    if (g->n_back == 0 && g->partial && g->partial->held && !partial_admit(g, err))
        return false;
    return g->n_back > 0 || (g->partial && g->partial->held) || prompts_start(g, err);
}

bool samples_start(struct generator *g, struct error *err)
{
    if (!start_possible(g))
        return true;
    if (!flights_collect(g, err))
        return false;
    g->draft.last_ns = 0;
    for (int i = 0; i < PREFILLS_MAX && start_possible(g); i++) {
        int64_t n_run = g->n_run;
        if (!prefill_start(g, err))
            return false;
        if (g->n_run <= n_run)
            break;
    }
    return true;
}
